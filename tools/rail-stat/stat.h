/* SPDX-License-Identifier: Apache-2.0
 *
 * rail-stat: shows the counters of every process that uses Railyard on this
 * machine. The files, in the order of a run:
 *   main.c options.c    what was asked for
 *   snapshot.c          one snapshot of all pages; rates between two
 *   table.c live.c      for people
 *   prometheus.c json.c for programs
 */
#ifndef RAIL_STAT_H
#define RAIL_STAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kit/kit_stats.h"
#include "tools/common/exit.h"

#define RS_NAME "rail-stat"
#define RS_MAX_PIDS 64

/* ---- options (options.c) ---- */

enum rs_mode { RS_DEFAULT, RS_LIVE, RS_ONCE, RS_PROMETHEUS, RS_JSON, RS_LIST, RS_CLEAN };

struct rs_options {
  enum rs_mode mode;
  int64_t pids[RS_MAX_PIDS];
  int npids;            /* 0: all processes */
  uint64_t interval_ms; /* between two snapshots */
  bool streams;
  int label_width; /* of the table's first column at most; 0: as long as the labels are */
  const char *dir;
};

/* 0: go on. Else the process ends: 1 help or version was printed, -1 a bad argument was named on stderr. */
int rs_options_parse(int argc, char **argv, struct rs_options *o);

/* ---- snapshots (snapshot.c) ---- */

struct rs_page {
  char file[256];
  struct kit_stats_view *view; /* NULL: not readable, `err` and `why` say the reason */
  int err;
  char why[256];
};

struct rs_snapshot {
  struct rs_page *pages; /* by file name */
  size_t n;
};

/* Reads every page that the options choose, those of dead processes too. -1: reported on stderr. */
int rs_snapshot_take(const struct rs_options *o, struct rs_snapshot *shot);
void rs_snapshot_free(struct rs_snapshot *shot);
/* Is there something of a living process to show? */
bool rs_page_shows(const struct rs_page *page);
/* Says on stderr what is not shown, and what to do: once a process. */
void rs_report_hidden(const struct rs_snapshot *shot);
/* The same in a few words, "" if there is nothing; for the live view. */
void rs_hidden_text(const struct rs_snapshot *shot, char *text, size_t size);

/* The name of the page: the part of the file's name behind the pid. It tells pages of one process apart. */
const char *rs_page_name(const struct rs_page *page);
/* Index of a group's counter, -1 if it has none of that name. */
int rs_counter(const struct kit_stats_view_group *group, const char *name);
/* By how much a value grew in a second since the previous snapshot; negative: not known, this is the first snapshot. */
double rs_rate(const struct rs_snapshot *before, const struct rs_page *page, uint32_t group,
               const struct kit_stats_view_record *record, int counter);
/* The next pair of a label, cut out into key and value (sizes RAIL_STATS_LABEL); false at its end. */
bool rs_label_next(const char **at, char *key, char *value);

/* ---- output ---- */

/* `before` may be NULL: then there are no rates. */
void rs_table(FILE *f, const struct rs_options *o, const struct rs_snapshot *shot, const struct rs_snapshot *before);
void rs_list(FILE *f, const struct rs_snapshot *shot);
int rs_live(struct rs_options *o); /* exit status */
int rs_prometheus(FILE *f, const struct rs_snapshot *shot); /* -1: no memory */
void rs_json(FILE *f, const struct rs_snapshot *shot);

#endif
