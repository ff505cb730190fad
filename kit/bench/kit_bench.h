/* SPDX-License-Identifier: Apache-2.0
 *
 * What a plugin can do, in figures. A cell is one measurement: what is
 * measured, over which connections, with which messages. A column is what
 * carries it: a plugin, or plain TCP streams. Each cell of each column runs
 * in a process group of its own (kit_group.h), so whatever a plugin does, it becomes
 * the result of that cell.
 *
 * A round goes through all cells and runs every column of a cell one right
 * after the other, forwards in one round and backwards in the next, so that
 * what the machine does meanwhile meets all alike.
 */
#ifndef RAIL_KIT_BENCH_H
#define RAIL_KIT_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kit/kit_group.h"
#include "kit/kit_process.h"

#define KIT_BENCH_COLUMNS 8
#define KIT_BENCH_COMMS 64   /* connections on an edge */
#define KIT_BENCH_WINDOW 512 /* messages outstanding on a connection */
#define KIT_BENCH_GROUP 32   /* buffers of a receive; what a plugin takes is its maxRecvs */
#define KIT_BENCH_ENV 16

enum kit_bench_kind {
  KIT_BENCH_BW,      /* one-way transfers on every edge */
  KIT_BENCH_LATENCY, /* ping-pong, one connection each way */
  KIT_BENCH_JITTER,  /* transfers with a look at the clock at each arrival */
  KIT_BENCH_CONNECT, /* connections made and closed again */
  KIT_BENCH_KINDS,
};
extern const char *const kit_bench_kind_words[]; /* NULL at the end, as those below */

enum kit_bench_pattern { KIT_BENCH_PAIR, KIT_BENCH_BIDIR, KIT_BENCH_RING, KIT_BENCH_INCAST, KIT_BENCH_ALL };
extern const char *const kit_bench_pattern_words[];

enum kit_bench_where { KIT_BENCH_HOST, KIT_BENCH_CUDA };
extern const char *const kit_bench_memory_words[];

struct kit_bench_cell {
  enum kit_bench_kind kind;
  enum kit_bench_pattern pattern;
  enum kit_bench_where memory;
  uint32_t sides;    /* processes: 2 for a pair */
  uint64_t size;     /* of a message */
  uint32_t comms;    /* connections on each edge of the pattern */
  uint32_t window;   /* messages outstanding on each */
  uint32_t group;    /* buffers of a receive */
  uint32_t sleep_us; /* what a pass without progress does: 0 sched_yield, else sleeps so long */
  bool spin;         /* or neither: looks again at once */
  bool one_buffer;   /* every message of a connection leaves from one buffer, and comes into one */
};

/* "bw pair of 2, size 4K, comms 4, window 8"; 128 bytes are enough */
const char *kit_bench_cell_text(const struct kit_bench_cell *cell, char *text, size_t size);
/* Does a connection go from one process to the other? Also what is asked of a cell by its kind. */
bool kit_bench_edge(const struct kit_bench_cell *cell, int from, int to);
bool kit_bench_same_cell(const struct kit_bench_cell *a, const struct kit_bench_cell *b);
/* "4096", "4K": as the command line takes it */
const char *kit_bench_size_text(uint64_t bytes, char *text, size_t size);

/* Of buffers, on the process that has most. */
uint64_t kit_bench_bytes(const struct kit_bench_cell *cell);

struct kit_bench_column {
  char name[64];
  char plugin[1024];                     /* path or name; empty: plain TCP streams */
  const char *env[KIT_BENCH_ENV + 1];    /* NAME=value; NULL at the end */
  unsigned int nenv;
  char wire[64];                         /* what the plugin calls itself, once a cell has run */
  int version;                           /* of its vtable */
};

/* ---- figures ---- */

enum kit_bench_metric {
  KIT_BENCH_GB_S,
  KIT_BENCH_MESSAGES_S,
  KIT_BENCH_HALF_MIN, /* of a round trip, in us */
  KIT_BENCH_HALF_P50,
  KIT_BENCH_HALF_P90,
  KIT_BENCH_HALF_P99,
  KIT_BENCH_HALF_P999,
  KIT_BENCH_GAP_P50, /* between two arrivals on a connection, in us */
  KIT_BENCH_GAP_P99,
  KIT_BENCH_GAP_P999,
  KIT_BENCH_GAP_MAX,
  KIT_BENCH_JITTER_US, /* the 99th of a hundred less the median, of half round trips or gaps */
  KIT_BENCH_CONNECTS_S,
  KIT_BENCH_CONNECT_P50, /* of one connection, in us */
  KIT_BENCH_CONNECT_P99,
  KIT_BENCH_CLOSE_US,
  KIT_BENCH_FDS_LEFT,
  KIT_BENCH_THREADS_LEFT,
  KIT_BENCH_CPU_GB, /* CPU seconds of all processes for 1e9 bytes */
  KIT_BENCH_SWITCHES, /* context switches for 1000 messages */
  KIT_BENCH_INSTRUCTIONS, /* for a message, of all processes */
  KIT_BENCH_METRICS,
};

struct kit_bench_metric_info {
  const char *key;   /* in JSON */
  const char *title; /* of a table's column */
  int better;        /* 1: greater, -1: less, 0: neither: shown, not compared */
  bool leads;        /* ratios and comparisons are about these */
};
extern const struct kit_bench_metric_info kit_bench_metrics[KIT_BENCH_METRICS];

enum kit_bench_verdict {
  KIT_BENCH_OK,
  KIT_BENCH_WRONG,   /* bytes, a size, or an order that no one sent */
  KIT_BENCH_FAILED,  /* a call returned an error */
  KIT_BENCH_STUCK,   /* nothing moved, or a call did not return */
  KIT_BENCH_CRASHED,
  KIT_BENCH_SKIPPED, /* cannot be measured here */
  KIT_BENCH_ERROR,   /* the kit's own */
};
extern const char *const kit_bench_verdict_words[];

/* One cell of one column in one round. */
struct kit_bench_result {
  enum kit_bench_verdict verdict;
  char what[1100];                 /* why, when it is not KIT_BENCH_OK */
  char said[300];                  /* the last warning that the plugin logged, when it is not KIT_BENCH_OK */
  uint64_t messages;
  double seconds;
  double figures[KIT_BENCH_METRICS]; /* NAN: there is none */
};

struct kit_bench_plan {
  struct kit_bench_column *columns;
  unsigned int ncolumns;
  struct kit_bench_cell *cells;
  size_t ncells;
  unsigned int rounds;
  double warmup_s, seconds; /* of a cell */
  double patience_s;        /* without any progress, until it counts as stuck */
  uint64_t connects;        /* most connections that a cell of that kind makes; 0: as many as its time allows */
  int version;              /* the newest vtable to take; 0: any */
  int dev;
  struct rail_net_vprops_v12 fuse; /* devices to make one of, which is used; ndevs 0: none */
  bool check;               /* a phase in which all bytes are checked, before the timed one */
  uint64_t seed;
  struct kit_placement placement;
  struct kit_link *link;
  bool quiet;               /* nothing about how far it is */
};

struct kit_bench_results {
  const struct kit_bench_plan *plan;
  struct kit_bench_result *all; /* by round, cell, column: kit_bench_at */
  double *others;               /* by round: cores that others kept busy */
  char counting[100];           /* why instructions could not be counted, or "" */
};

struct kit_bench_result *kit_bench_at(const struct kit_bench_results *r, unsigned int round, size_t cell,
                                      unsigned int column);

/* Median, least and greatest over the rounds that went well. n: how many. */
struct kit_bench_spread { double median, least, greatest; unsigned int n; };

/* ---- which cells ---- */

#define KIT_BENCH_VALUES 64

struct kit_bench_numbers {
  uint64_t at[KIT_BENCH_VALUES];
  unsigned int n;
};

/* Every choice of one with every choice of the others, where that makes sense. */
struct kit_bench_selection {
  bool kinds[KIT_BENCH_KINDS], patterns[KIT_BENCH_ALL + 1];
  struct kit_bench_numbers sizes, comms, windows, groups, sides, sleeps;
  bool spin; /* instead of sleeps */
  bool one_buffer;
  enum kit_bench_where memory;
  uint64_t buffers; /* bytes that a process should have at most: the largest cells get a smaller window */
};

/* What is not chosen yet, in `preset`'s way. */
enum kit_bench_preset { KIT_BENCH_USUAL, KIT_BENCH_QUICK, KIT_BENCH_SWEEP };
void kit_bench_selection_defaults(struct kit_bench_selection *choices, enum kit_bench_preset preset);
/* *cells is to be freed. False: no memory. */
bool kit_bench_make_cells(const struct kit_bench_selection *choices, struct kit_bench_cell **cells, size_t *ncells);

/* ---- doing it ---- */

void kit_bench_process_main(struct kit_process *self); /* a role's part, of kind "bench" */

/* Runs all; *results is to be freed. False and a line on stderr when memory is lacking. */
bool kit_bench_run(const struct kit_bench_plan *plan, struct kit_bench_results *results);
void kit_bench_free(struct kit_bench_results *results);

void kit_bench_table(const struct kit_bench_results *results, FILE *f);

/* What else a reader needs to assess or repeat the run. */
struct kit_bench_about {
  const char *kit_version;
  int argc;
  char **argv;
  char date[40], host[65], kernel[100], machine[65], cpu[128], load[64];
  long cores;
  double memory_gib;
};
void kit_bench_describe_machine(struct kit_bench_about *about);
/* False: the stream did not take all. */
bool kit_bench_json(const struct kit_bench_results *results, const struct kit_bench_about *about, FILE *f);

/* A plot of the figures over the size (of connections over their number); target: .svg or .png. */
bool kit_bench_plot(const struct kit_bench_results *results, const struct kit_bench_about *about, const char *target);

/* Prints how `now` differs from `before`, two files of kit_bench_json. 1: a figure is worse than fail_below times what
 * it was (0: that may be) and beyond the spread, or a verdict is no longer ok; 0: none is; -1, reported on stderr: a
 * file cannot be read, or they have no figure in common. */
int kit_bench_compare(const char *before, const char *now, double fail_below, FILE *f);
/* Could it compare with that file? False: reported on stderr. For before a long run. */
bool kit_bench_can_compare(const char *before);

#endif
