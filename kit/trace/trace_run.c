/* SPDX-License-Identifier: Apache-2.0
 * Files one by one, in the form that was asked for. */
#include <stdio.h>

#include "kit/kit_json.h"
#include "kit/trace/kit_trace.h"
#include "kit/trace/trace_plot.h"

enum { FINE = 0, FOUND = 1, UNREADABLE = 3 };

static int print_events(struct rail_trace *trace, const struct kit_trace *how, struct kit_json *j, FILE *out,
                        char *why, size_t why_size) {
  struct rail_trace_event e;
  int r;
  if (how->json) kit_json_array(j, "events");
  while ((r = rail_trace_next(trace, &e, why, why_size)) == 1) {
    if (!kit_trace_takes(how, &e)) continue;
    if (!how->json) {
      kit_trace_line(out, &e);
      continue;
    }
    kit_json_object(j, NULL);
    kit_trace_json_event(j, &e);
    kit_json_end(j, '}');
  }
  if (how->json) kit_json_end(j, ']');
  return r == 0 ? FINE : UNREADABLE;
}

static int summarize(struct rail_trace *trace, const struct kit_trace *how, struct kit_json *j, FILE *out, char *why,
                     size_t why_size) {
  struct kit_trace_summary s = {0};
  uint64_t found = 0;
  bool ok = kit_trace_sum(trace, how, &s, why, why_size);
  if (how->json) kit_trace_json_summary(j, trace, &s);
  else kit_trace_print_summary(out, trace, &s);
  for (unsigned int i = 0; i < RAIL_TRACE_RULES; i++) found += kit_trace_findings(trace, &s, i);
  kit_trace_summary_free(&s);
  return !ok ? UNREADABLE : found ? FOUND : FINE;
}

static int one_file(const struct kit_trace *how, const char *path, struct kit_json *j, FILE *out) {
  struct rail_trace *trace;
  char why[300] = "";
  int status;
  if (!rail_trace_open(path, &trace, why, sizeof why)) {
    fprintf(stderr, "rail-kit: %s: %s\n", path, why);
    return UNREADABLE;
  }
  if (how->json) {
    kit_json_object(j, NULL);
    kit_trace_json_header(j, trace, path);
  } else {
    kit_trace_print_header(out, trace, path);
  }
  status = how->summary ? summarize(trace, how, j, out, why, sizeof why)
                        : print_events(trace, how, j, out, why, sizeof why);
  if (how->json) kit_json_end(j, '}');
  if (status == UNREADABLE) fprintf(stderr, "rail-kit: %s: %s\n", path, why);
  if (rail_trace_cut(trace)) {
    fprintf(stderr, "rail-kit: %s: %s\n", path, rail_trace_cut(trace));
    status = UNREADABLE;
  }
  rail_trace_close(trace);
  return status;
}

int kit_trace_run(const struct kit_trace *how, FILE *out) {
  int status = FINE;
  if (how->plot) return kit_trace_plot(how) ? FINE : UNREADABLE;
  struct kit_json j = kit_json_start(out);
  if (how->json) kit_json_array(&j, NULL);
  for (char **file = how->files; *file; file++) {
    int one = one_file(how, *file, &j, out);
    if (one > status) status = one;
  }
  if (how->json) kit_json_end(&j, ']');
  bool written = how->json ? kit_json_finish(&j) : fflush(out) == 0 && !ferror(out);
  if (!written) fprintf(stderr, "rail-kit: writing to standard output failed\n");
  return written ? status : UNREADABLE;
}
