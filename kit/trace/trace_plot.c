/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/trace/trace_plot.h"

#include <stdlib.h>

#include "kit/kit_json.h"
#include "kit/kit_plot.h"

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

/* Two passes: the first tells how long the bins are. */
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

bool kit_trace_plot(const struct kit_trace *how) {
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
