/* SPDX-License-Identifier: Apache-2.0
 * Files one by one, in the form that was asked for. */
#include "kit/trace/kit_trace.h"

#include <stdio.h>
#include <stdlib.h>

#include "kit/kit_json.h"
#include "kit/kit_plot.h"

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

/* ---- the plot: bytes a second and requests outstanding, a line for each file ---- */

static void series(struct kit_json *j, const char *name, const double *v, uint64_t bin_ns, double scale) {
  kit_json_object(j, NULL);
  kit_json_text(j, "name", name);
  kit_json_array(j, "x");
  for (int i = 0; i < KIT_TRACE_BINS; i++) kit_json_number(j, NULL, ((double)i + 0.5) * (double)bin_ns / 1e9);
  kit_json_end(j, ']');
  kit_json_array(j, "y");
  for (int i = 0; i < KIT_TRACE_BINS; i++) kit_json_number(j, NULL, v[i] * scale);
  kit_json_end(j, ']');
  kit_json_end(j, '}');
}

/* Two passes: the first finds how long the bins are. */
static bool sum_with_bins(const char *path, const struct kit_trace *how, struct kit_trace_summary *s) {
  struct kit_trace_summary first = {0};
  struct rail_trace *trace;
  char why[300] = "out of memory";
  bool ok = rail_trace_open(path, &trace, why, sizeof why) && kit_trace_sum(trace, how, &first, why, sizeof why);
  if (ok) {
    s->bin_ns = (first.last_ns - first.first_ns) / KIT_TRACE_BINS + 1;
    s->first_ns = first.first_ns;
    s->bin_bytes = calloc(KIT_TRACE_BINS, sizeof *s->bin_bytes);
    s->bin_depth = calloc(KIT_TRACE_BINS, sizeof *s->bin_depth);
    rail_trace_rewind(trace);
    ok = s->bin_bytes && s->bin_depth && kit_trace_sum(trace, how, s, why, sizeof why);
  }
  if (!ok) fprintf(stderr, "rail-kit: %s: %s\n", path, why);
  kit_trace_summary_free(&first);
  rail_trace_close(trace);
  return ok;
}

static void panel(struct kit_json *j, const struct kit_trace *how, const struct kit_trace_summary *sums, bool bytes) {
  kit_json_object(j, NULL);
  kit_json_text(j, "ylabel", bytes ? "GB/s done" : "requests outstanding");
  kit_json_text(j, "xlabel", "seconds");
  kit_json_array(j, "series");
  for (size_t i = 0; how->files[i]; i++)
    series(j, how->files[i], bytes ? sums[i].bin_bytes : sums[i].bin_depth, sums[i].bin_ns,
           bytes ? 1.0 / (double)sums[i].bin_ns : 1.0);
  kit_json_end(j, ']');
  kit_json_end(j, '}');
}

struct figure { const struct kit_trace *how; const struct kit_trace_summary *sums; };

static bool write_figure(FILE *f, const void *arg) {
  const struct figure *figure = arg;
  struct kit_json j = kit_json_start(f);
  kit_json_object(&j, NULL);
  kit_json_text(&j, "title", "rail-kit trace");
  kit_json_array(&j, "panels");
  panel(&j, figure->how, figure->sums, true);
  panel(&j, figure->how, figure->sums, false);
  kit_json_end(&j, ']');
  kit_json_end(&j, '}');
  return kit_json_finish(&j);
}

static bool write_plot(const struct kit_trace *how) {
  size_t n = 0;
  while (how->files[n]) n++;
  struct kit_trace_summary *sums = calloc(n + 1, sizeof *sums);
  bool ok = sums != NULL;
  for (size_t i = 0; ok && i < n; i++) ok = sum_with_bins(how->files[i], how, &sums[i]);
  ok = ok && kit_plot(write_figure, &(struct figure){how, sums}, how->plot);
  for (size_t i = 0; sums && i < n; i++) kit_trace_summary_free(&sums[i]);
  free(sums);
  return ok;
}

/* ---- the files ---- */

int kit_trace_run(const struct kit_trace *how, FILE *out) {
  int status = FINE;
  if (how->plot) return write_plot(how) ? FINE : UNREADABLE;
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
