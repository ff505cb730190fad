/* SPDX-License-Identifier: Apache-2.0
 * `rail-kit trace`: what is in a recorded file, for people, as JSON, as a plot. */
#ifndef RAIL_KIT_TRACE_H
#define RAIL_KIT_TRACE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "plugin/railtrace/trace_file.h"

struct kit_trace {
  char **files; /* NULL at the end */
  const char *calls;   /* names of calls, separated by commas; NULL: all */
  uint64_t comm;       /* 0: all */
  int thread;          /* 0: all */
  double from, until;  /* seconds after the file's beginning; until 0: to its end */
  double gap_ms;       /* a connection that had work and moved nothing for so long is reported */
  bool summary, json;
  const char *plot;    /* an SVG or PNG file; NULL: none */
};

/* 0 fine, 1 a file has findings (with summary), 3 a file cannot be read (reported on stderr). */
int kit_trace_run(const struct kit_trace *how, FILE *out);

/* ---- one event as a line ---- */

bool kit_trace_takes(const struct kit_trace *how, const struct rail_trace_event *e);
void kit_trace_line(FILE *out, const struct rail_trace_event *e);

/* ---- numbers that are looked up: ids in files are a foreign client's ---- */

struct kit_trace_map {
  struct { uint64_t key; uint32_t value; } *slots; /* key 0: empty */
  size_t cap, used;
};
/* The value of a key other than 0, -1: there is none. */
int64_t kit_trace_map_get(const struct kit_trace_map *map, uint64_t key);
bool kit_trace_map_put(struct kit_trace_map *map, uint64_t key, uint32_t value); /* false: no memory */
void kit_trace_map_free(struct kit_trace_map *map);

/* A list of numbers of which quantiles are asked. */
struct kit_trace_list {
  uint64_t *v;
  size_t n, cap;
  bool sorted;
};
bool kit_trace_list_add(struct kit_trace_list *list, uint64_t v);
uint64_t kit_trace_list_at(struct kit_trace_list *list, double quantile); /* 0 when empty */

/* ---- the summary of a file ---- */

#define KIT_TRACE_SIZES 42 /* classes of sizes: 0, 1, 2-3, 4-7, … */
#define KIT_TRACE_BINS 400 /* of the plot's time axis */

struct kit_trace_open; /* a request that is outstanding */

struct kit_trace_comm {
  uint64_t id;
  enum rail_trace_kind made_by; /* listen, connect, accept */
  uint64_t begin_ns, end_ns;    /* end 0: it was not closed */
  uint64_t messages, bytes, unfinished;
  uint64_t sizes[KIT_TRACE_SIZES];
  struct kit_trace_list latency; /* from the post to the test that found it done */
  unsigned int depth, max_depth;
  uint64_t gaps, longest_gap_ns, last_move_ns;
  struct kit_trace_open *open;
  size_t nopen, cap;
};

struct kit_trace_summary {
  struct kit_trace_comm *comms;
  size_t ncomms, cap;
  struct kit_trace_map by_id;
  struct kit_trace_list calls[RAIL_TRACE_KINDS]; /* durations */
  uint64_t results[RAIL_TRACE_KINDS];            /* that were errors */
  uint64_t findings[RAIL_TRACE_RULES];
  uint64_t dropped, events, first_ns, last_ns;
  /* For the plot, when `bins` is set before: bytes done and the deepest queue in each bin. */
  uint64_t bin_ns;
  double *bin_bytes, *bin_depth;
  unsigned int total_depth;
};

/* Goes through the whole file; false: `why`. Free it in either case. */
bool kit_trace_sum(struct rail_trace *trace, const struct kit_trace *how, struct kit_trace_summary *s, char *why,
                   size_t why_size);
void kit_trace_summary_free(struct kit_trace_summary *s);
uint64_t kit_trace_findings(const struct rail_trace *trace, const struct kit_trace_summary *s, unsigned int rule);

void kit_trace_print_header(FILE *out, const struct rail_trace *trace, const char *path);
void kit_trace_print_summary(FILE *out, const struct rail_trace *trace, struct kit_trace_summary *s);

struct kit_json;
void kit_trace_json_header(struct kit_json *j, const struct rail_trace *trace, const char *path);
void kit_trace_json_event(struct kit_json *j, const struct rail_trace_event *e);
void kit_trace_json_summary(struct kit_json *j, const struct rail_trace *trace, struct kit_trace_summary *s);

#endif
