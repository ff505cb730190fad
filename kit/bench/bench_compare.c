/* SPDX-License-Identifier: Apache-2.0
 * Two files of results: what has changed beyond what the rounds differ among themselves. */
#include <math.h>
#include <string.h>

#include "kit/bench/kit_bench.h"

#ifndef RAIL_HAVE_JANSSON

bool kit_bench_can_compare(const char *before) {
  fprintf(stderr, "rail-kit bench: %s: this build cannot compare: it was made without libjansson\n", before);
  return false;
}

int kit_bench_compare(const char *before, const char *now, double fail_below, FILE *f) {
  (void)now, (void)fail_below, (void)f;
  return kit_bench_can_compare(before) ? 0 : -1;
}

#else

#include <jansson.h>

#define LEAST_CHANGE 0.03 /* below that machines differ from minute to minute, however few the rounds */

struct point { double median, least, greatest; };

static json_t *load(const char *path) {
  json_error_t error;
  json_t *all = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
  const char *tool = json_string_value(json_object_get(all, "tool"));
  if (!all) {
    fprintf(stderr, "rail-kit bench: %s: line %d: %s\n", path, error.line, error.text);
  } else if (!tool || strcmp(tool, "rail-kit bench") != 0 || !json_is_array(json_object_get(all, "cells"))) {
    fprintf(stderr, "rail-kit bench: %s is not what --json wrote\n", path);
    json_decref(all);
    all = NULL;
  }
  return all;
}

static const char *text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "?";
}

static bool same_cell(const json_t *a, const json_t *b) {
  static const char *const keys[] = {"kind", "pattern", "memory", "sides", "size", "comms", "window", "group",
                                     "sleep_us"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (!json_equal(json_object_get(a, keys[i]), json_object_get(b, keys[i]))) return false;
  /* Older files do not have these keys. */
  return json_is_true(json_object_get(a, "spin")) == json_is_true(json_object_get(b, "spin")) &&
         json_is_true(json_object_get(a, "one_buffer")) == json_is_true(json_object_get(b, "one_buffer"));
}

static const json_t *find_cell(const json_t *all, const json_t *like) {
  const json_t *cells = json_object_get(all, "cells");
  for (size_t i = 0; i < json_array_size(cells); i++)
    if (same_cell(json_array_get(cells, i), like)) return json_array_get(cells, i);
  return NULL;
}

/* By name; where each file has one plugin only, that one whatever its name. */
static const json_t *find_result(const json_t *cell, const char *column, bool alone) {
  const json_t *results = json_object_get(cell, "results");
  for (size_t i = 0; i < json_array_size(results); i++) {
    const json_t *result = json_array_get(results, i);
    if (strcmp(text_of(result, "column"), column) == 0 || (alone && json_array_size(results) == 1)) return result;
  }
  return NULL;
}

static bool read_point(const json_t *result, const char *key, struct point *p) {
  const json_t *figure = json_object_get(json_object_get(result, "figures"), key);
  p->median = json_number_value(json_object_get(figure, "median"));
  p->least = json_number_value(json_object_get(figure, "least"));
  p->greatest = json_number_value(json_object_get(figure, "greatest"));
  return json_is_number(json_object_get(figure, "median")) && p->median > 0 && isfinite(p->median);
}

/* Half of what the rounds differ, as a share. */
static double noise_of(const struct point *p) { return (p->greatest - p->least) / 2 / p->median; }

struct comparison {
  FILE *f;
  double fail_below;
  unsigned int compared, better, worse, below, broken; /* broken: verdicts that were ok */
  unsigned int fresh, gone;                            /* results of one file only */
};

static void print_change(struct comparison *c, const json_t *cell, const char *column, const char *what) {
  fprintf(c->f, "  %-7s %-7s %9lld B %2lld comms  window %-3lld group %-2lld  %-14s %s\n", text_of(cell, "kind"),
          text_of(cell, "pattern"), (long long)json_integer_value(json_object_get(cell, "size")),
          (long long)json_integer_value(json_object_get(cell, "comms")),
          (long long)json_integer_value(json_object_get(cell, "window")),
          (long long)json_integer_value(json_object_get(cell, "group")), column, what);
}

static void compare_metric(struct comparison *c, const json_t *cell, const json_t *old, const json_t *new,
                           const struct kit_bench_metric_info *info) {
  struct point a, b;
  char what[200];
  if (!info->leads || !info->better || !read_point(old, info->key, &a) || !read_point(new, info->key, &b)) return;
  double ratio = b.median / a.median, gain = info->better > 0 ? ratio : 1 / ratio;
  double noise = fmax(LEAST_CHANGE, noise_of(&a) + noise_of(&b));
  const char *mark = fabs(ratio - 1) <= noise ? "" : gain > 1 ? "  better" : "  WORSE";
  c->compared++;
  c->better += *mark && gain > 1;
  c->worse += *mark && gain < 1;
  c->below += *mark && gain < c->fail_below;
  snprintf(what, sizeof what, "%-14s %12.5g -> %-12.5g %.3fx (noise %.1f %%)%s", info->title, a.median, b.median, ratio,
           noise * 100, mark);
  print_change(c, cell, text_of(new, "column"), what);
}

static void compare_result(struct comparison *c, const json_t *cell, const json_t *old, const json_t *new) {
  bool was = strcmp(text_of(old, "verdict"), "ok") == 0, is = strcmp(text_of(new, "verdict"), "ok") == 0;
  char what[200];
  if (was != is) {
    snprintf(what, sizeof what, "was %s, is %s%s", text_of(old, "verdict"), text_of(new, "verdict"),
             is ? "" : "  WORSE");
    print_change(c, cell, text_of(new, "column"), what);
    c->better += is;
    c->worse += !is;
    c->broken += !is;
  }
  for (int m = 0; m < KIT_BENCH_METRICS; m++) compare_metric(c, cell, old, new, &kit_bench_metrics[m]);
}

/* Results of `before` that have no counterpart in `now`. */
static unsigned int count_gone(const json_t *before, const json_t *now, bool alone) {
  const json_t *cells = json_object_get(before, "cells");
  unsigned int n = 0;
  for (size_t i = 0; i < json_array_size(cells); i++) {
    const json_t *cell = json_array_get(cells, i), *new_cell = find_cell(now, cell);
    const json_t *results = json_object_get(cell, "results");
    for (size_t k = 0; k < json_array_size(results); k++)
      n += !find_result(new_cell, text_of(json_array_get(results, k), "column"), alone);
  }
  return n;
}

static void compare_cells(struct comparison *c, const json_t *before, const json_t *now) {
  const json_t *cells = json_object_get(now, "cells");
  const bool alone = json_array_size(json_object_get(before, "columns")) == 1 &&
                     json_array_size(json_object_get(now, "columns")) == 1;
  c->gone = count_gone(before, now, alone);
  for (size_t i = 0; i < json_array_size(cells); i++) {
    const json_t *cell = json_array_get(cells, i), *old_cell = find_cell(before, cell);
    const json_t *results = json_object_get(cell, "results");
    for (size_t k = 0; k < json_array_size(results); k++) {
      const json_t *new = json_array_get(results, k);
      const json_t *old = find_result(old_cell, text_of(new, "column"), alone);
      if (old) compare_result(c, cell, old, new);
      else c->fresh++;
    }
  }
}

static void warn_of_differences(FILE *f, const json_t *before, const json_t *now) {
  static const char *const keys[] = {"host", "cpu", "kernel"};
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (strcmp(text_of(before, keys[i]), text_of(now, keys[i])) != 0)
      fprintf(f, "# NOT THE SAME %s: %s, now %s\n", keys[i], text_of(before, keys[i]), text_of(now, keys[i]));
}

bool kit_bench_can_compare(const char *before) {
  json_t *all = load(before);
  json_decref(all);
  return all != NULL;
}

int kit_bench_compare(const char *before_path, const char *now_path, double fail_below, FILE *f) {
  struct comparison c = {.f = f, .fail_below = fail_below};
  json_t *before = load(before_path), *now = before ? load(now_path) : NULL;
  if (now) {
    fprintf(f, "# before: %s, rail-kit %s; now: %s, rail-kit %s\n", text_of(before, "date"), text_of(before, "version"),
            text_of(now, "date"), text_of(now, "version"));
    warn_of_differences(f, before, now);
    compare_cells(&c, before, now);
    fprintf(f, "# %u figures compared: %u better, %u worse; results only before: %u, only now: %u\n", c.compared,
            c.better, c.worse, c.gone, c.fresh);
    if (c.below) fprintf(f, "# %u below %g times what they were\n", c.below, fail_below);
    if (c.broken) fprintf(f, "# %u were ok and are not\n", c.broken);
    if (!c.compared && !c.broken)
      fprintf(stderr, "rail-kit bench: %s has no figure that %s has, too: other plugins, sizes or --buffers?\n",
              now_path, before_path);
  }
  int result = !now || (!c.compared && !c.broken) ? -1 : c.below > 0 || (c.broken && fail_below > 0);
  json_decref(before);
  json_decref(now);
  return result;
}

#endif
