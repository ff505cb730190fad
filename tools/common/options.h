/* SPDX-License-Identifier: Apache-2.0
 *
 * Command lines. A command is one table of options; help and error lines come from the table, so that they cannot
 * differ from what is accepted. A bad value is reported with the option's name, the value and what is allowed.
 */
#ifndef TOOL_OPTIONS_H
#define TOOL_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/common/exit.h"

/* What a value is, and which type of field it goes to. */
enum tool_kind {
  TOOL_FLAG,    /* no value; bool: true */
  TOOL_BOOL,    /* 0 or 1; bool */
  TOOL_INT,     /* int, min ... max, none below 0 */
  TOOL_U64,     /* uint64_t, all of them */
  TOOL_BYTES,   /* uint64_t, min ... 16T; K, M, G, T multiply by 1024 */
  TOOL_REAL,    /* double, min ... max */
  TOOL_SECONDS, /* min ... max seconds, fractions too; uint64_t: milliseconds */
  TOOL_TEXT,    /* const char *, not empty; `allowed` says what it is */
  TOOL_CHOICE,  /* one of `words`; int or an enum: its index */
  TOOL_CALL,    /* `set` does it; with or without a value */
  TOOL_HELP,    /* prints the help and ends */
};

struct tool_command;
struct tool_option;

/* What `set` gets. */
struct tool_value {
  const struct tool_command *command;
  const struct tool_option *option;
  const char *text; /* NULL: the option takes none */
  void *into;       /* the struct that is filled */
};

struct tool_option {
  const char *name;
  char letter;     /* 0: none */
  const char *arg; /* the value's name in the help; NULL: takes none */
  const char *help;
  enum tool_kind kind;
  size_t at; /* the field's place in the struct that is filled */
  double min, max;
  const char *allowed;      /* TOOL_TEXT: "a directory" */
  const char *const *words; /* TOOL_CHOICE; NULL at the end */
  const char *preset;       /* the default, as the help shows it behind the text; NULL: none, or the text says it */
  int (*set)(const struct tool_value *value); /* 0, 1: end well, -1: reported by tool_bad */
  int tag;                  /* for `set` */
};

struct tool_command {
  const char *name;  /* "rail-coll", "rail-kit inspect" */
  const char *usage; /* what is typed behind the name: "FILE [option...]" */
  const char *about; /* lines, without the last line's end */
  void (*lists)(FILE *f); /* prints more between that and the options; or NULL */
  const struct tool_option *options;
  size_t noptions;
  const char *tail; /* lines below the options: exit statuses; or NULL */
};

/* Reads argv[1]...; the fields of `into` hold their defaults before. 0: go on, *operands (ending with NULL) are the
 * words that are no options; operands NULL: there may be none. Else the process ends: 1 help or the like was printed,
 * -1 what is wrong was reported on stderr. */
int tool_options_read(const struct tool_command *command, int argc, char **argv, void *into, char ***operands);

/* Error lines. Both return -1. */
int tool_bad(const struct tool_value *value, const char *allowed, ...) __attribute__((format(printf, 2, 3)));
int tool_misuse(const struct tool_command *command, const char *what, const char *word); /* word may be NULL */
/* For a value whose fault shows only beside others: the option of that name and the text it had. */
struct tool_value tool_value(const struct tool_command *command, const char *name, const char *text);

/* A number without sign, decimal, 0x or 0...; `suffix`: K, M, G or T may follow, and a B. */
bool tool_parse_u64(const char *text, bool suffix, uint64_t *out);

/* ---- subcommands ---- */

struct tool_sub {
  const char *name;
  const char *what; /* one line of the program's help; NULL: not shown */
  int (*run)(int argc, char **argv); /* argv[0] is the subcommand; exit status */
};

struct tool_program {
  const char *name, *version;
  const char *about; /* lines, without the last line's end */
  const struct tool_sub *subs; /* ends with a NULL name */
  const char *tail;
};

/* NAME SUB ..., NAME help [SUB], NAME --help, NAME --version. Exit status. */
int tool_program_run(const struct tool_program *program, int argc, char **argv);

#endif
