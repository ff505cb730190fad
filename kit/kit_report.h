/* SPDX-License-Identifier: Apache-2.0
 *
 * The results of a list of things tried on a plugin (conform's checks, fault's
 * scenarios), for people, as JSON and as JUnit XML.
 */
#ifndef RAIL_KIT_REPORT_H
#define RAIL_KIT_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kit/kit_group.h"

enum kit_level {
  KIT_MUST,     /* NCCL hangs, crashes or corrupts data without it */
  KIT_SHOULD,   /* NCCL works without it, its users suffer */
  KIT_OBSERVED, /* a figure or a choice; no verdict (but a crash or a hang is one) */
};
const char *kit_level_text(enum kit_level level); /* "MUST", "SHOULD", "OBSERVED" */

/* One thing tried once. Texts that are not copied belong to tables that live forever. */
struct kit_result {
  const char *id, *name, *what, *source;
  enum kit_level level;
  int version;
  uint64_t seed;
  enum kit_end end;
  char text[1024]; /* why it did not end well, or why it was skipped */
  char again[1536]; /* a command line that repeats just this */
  double seconds;
  char *notes; /* lines: notes, figures, the plugin's warnings; owned; NULL: none */
  struct kit_figure { char name[64], unit[16]; double value; int rank; } *figures;
  int nfigures;
  char *log;   /* the plugin's warnings; owned */
};
void kit_result_free(struct kit_result *r);
/* For a process group's on_message: keeps notes, figures and warnings. */
void kit_result_message(struct kit_result *r, const struct kit_message *message);
void kit_result_outcome(struct kit_result *r, const struct kit_outcome *outcome, int nprocesses);
/* Is it a finding that makes the whole fail? */
bool kit_result_bad(const struct kit_result *r);

struct kit_report {
  const char *command; /* "conform", "fault", "nccl" */
  const char *plugin, *name;
  uint64_t seed;
  int dev;
  struct rail_net_vprops_v12 fuse; /* of which it is made; ndevs 0: it is dev */
  bool verbose;        /* notes of what went well, too */
  const char *json, *junit; /* paths, "-" for standard output; NULL: not wanted */
  FILE *table;         /* for people; NULL when standard output is taken by JSON */
  bool live;           /* `table` is a terminal */
  double start;        /* seconds, of CLOCK_MONOTONIC */
  struct kit_result *results;
  int count, room;
  int expected;        /* how many there will be; 0: not known */
  bool stopped;        /* at the first failure: what is left was not tried */
};

void kit_report_start(struct kit_report *r);
/* Shows what is under way, on a terminal. */
void kit_report_progress(struct kit_report *r, const char *name);
/* Writes the command line that repeats the result alone; `connect`: where the other host listens, or NULL. */
void kit_report_again(const struct kit_report *r, struct kit_result *result, const char *connect);
/* Takes the result over and prints its line. */
void kit_report_add(struct kit_report *r, struct kit_result *result);
/* Sums, files. Returns the program's exit status. Frees everything. */
int kit_report_finish(struct kit_report *r);

/* Where nothing can be run: a report of one failed MUST that shows why, or with KIT_END_ERROR where the plugin's file
 * is not there. `version`: the one asked for. Returns the program's exit status. */
int kit_report_unusable(struct kit_report *r, int version, const char *why);

/* A path, shell-quoted if need be, at the end of `text`. */
void kit_append_quoted(char *text, size_t size, const char *word);

#endif
