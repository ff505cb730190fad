/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters. Each module has one table; a row names the environment variable
 * in full (NCCL_SOCKET_IFNAME, RAIL_SOCKET_STREAMS), its type, default, range,
 * doc and where the value goes in the module's parameter struct. The struct
 * is filled once, at init, and is read-only from then on.
 *
 * A value that does not parse or is out of range is warned about with name,
 * value and what is allowed, and the default is used. An environment variable
 * that begins with RAIL_ and is in no table given to rail_param_check_unknown
 * is warned about with the nearest known name.
 */
#ifndef RAIL_PARAM_H
#define RAIL_PARAM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum rail_param_type {
  RAIL_PARAM_INT,    /* int64_t; decimal, 0x hex; range lo..hi */
  RAIL_PARAM_BYTES,  /* int64_t; as INT with suffix K, M, G, T (powers of 1024) */
  RAIL_PARAM_MS,     /* int64_t milliseconds; suffix ms, s, m; bare number = seconds unless doc says otherwise */
  RAIL_PARAM_BOOL,   /* int64_t 0/1; 0 1 on off yes no true false */
  RAIL_PARAM_STRING, /* const char *; points at a copy that lives as long as the process */
  RAIL_PARAM_ENUM,   /* int64_t index into `words`, a '|'-separated list */
};

struct rail_param {
  const char *name;  /* environment variable */
  enum rail_param_type type;
  const char *def;   /* default, as text; NULL: unset string */
  int64_t lo, hi;    /* allowed range of numbers, after suffixes */
  const char *words; /* ENUM only: "off|psk" */
  const char *doc;   /* one or two sentences */
  size_t offset;     /* of the value in the module's struct */
};

struct rail_param_table {
  const char *module; /* "socket", "core" */
  const struct rail_param *rows;
  size_t count;
  const char *title; /* over a plugin's table in docs/parameters.md: "Socket plugin" */
};

/* Fills `out` from the environment; warns about bad values. Cannot fail. */
void rail_param_load(const struct rail_param_table *table, void *out);

/* Warns about every RAIL_* variable that no table of the product knows, once a
 * process: of names that are under no module's prefix only the module that was
 * loaded first warns. `tables` are the caller's; names of the product's other
 * modules are known from common/base/param_names.h. */
void rail_param_check_unknown(const struct rail_param_table *const *tables, size_t ntables);

/* One row a line, aligned: name, type, default, allowed, doc (`markdown` 0),
 * or a Markdown table for docs/parameters.md (1). */
void rail_param_print(FILE *out, const struct rail_param_table *table, int markdown);

/* Parses one value as the row says. 0, or -1 with `why` (size `cap`) filled. For tests and tools. */
int rail_param_parse(const struct rail_param *row, const char *text, int64_t *number, char *why, size_t cap);

#endif
