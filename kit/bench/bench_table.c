/* SPDX-License-Identifier: Apache-2.0
 * The results as a table a kind, a row for each cell and column. */
#include <math.h>
#include <string.h>

#include "common/base/compiler.h"
#include "kit/bench/kit_bench.h"

#define NONE KIT_BENCH_METRICS

/* The first leads: it is shown with its spread and its ratio. */
static const enum kit_bench_metric shown[KIT_BENCH_KINDS][9] = {
    [KIT_BENCH_BW] = {KIT_BENCH_GB_S, KIT_BENCH_MESSAGES_S, KIT_BENCH_CPU_GB, KIT_BENCH_SWITCHES,
                      KIT_BENCH_INSTRUCTIONS, NONE},
    [KIT_BENCH_LATENCY] = {KIT_BENCH_HALF_P50, KIT_BENCH_HALF_MIN, KIT_BENCH_HALF_P90, KIT_BENCH_HALF_P99,
                           KIT_BENCH_HALF_P999, KIT_BENCH_JITTER_US, KIT_BENCH_INSTRUCTIONS, NONE},
    [KIT_BENCH_JITTER] = {KIT_BENCH_GAP_P99, KIT_BENCH_GAP_P50, KIT_BENCH_GAP_P999, KIT_BENCH_GAP_MAX,
                          KIT_BENCH_JITTER_US, NONE},
    [KIT_BENCH_CONNECT] = {KIT_BENCH_CONNECTS_S, KIT_BENCH_CONNECT_P50, KIT_BENCH_CONNECT_P99, KIT_BENCH_CLOSE_US,
                           KIT_BENCH_FDS_LEFT, KIT_BENCH_THREADS_LEFT, NONE},
};
static const char *const titles[KIT_BENCH_KINDS] = {
    [KIT_BENCH_BW] = "transfers", [KIT_BENCH_LATENCY] = "half round trips",
    [KIT_BENCH_JITTER] = "gaps between arrivals", [KIT_BENCH_CONNECT] = "connections made"};

/* Three or four digits that mean something, never an exponent. */
static const char *number(double x, char text[24]) {
  if (isnan(x)) snprintf(text, 24, "-");
  else if (fabs(x) >= 1e6) snprintf(text, 24, "%.2fM", x / 1e6);
  else snprintf(text, 24, "%.*f", fabs(x) >= 100 || x == 0 ? 0 : fabs(x) >= 10 ? 1 : fabs(x) >= 1 ? 2 : 4, x);
  return text;
}

/* Messages of no bytes have no bandwidth: their number leads. */
static enum kit_bench_metric leader(const struct kit_bench_cell *c) {
  return c->kind == KIT_BENCH_BW && c->size == 0 ? KIT_BENCH_MESSAGES_S : shown[c->kind][0];
}

static void print_head(enum kit_bench_kind kind, FILE *f) {
  fprintf(f, "\n# %s\n# %-7s %5s %6s %5s %6s %5s %5s  %-14s", titles[kind], "pattern", "sides", "size", "comms",
          "window", "group", "sleep", "plugin");
  for (int i = 0; shown[kind][i] != NONE; i++) {
    fprintf(f, " %13s", kit_bench_metrics[shown[kind][i]].title);
    if (i == 0) fprintf(f, " %7s %7s", "+-%", "ratio");
  }
  fputc('\n', f);
}

static void print_figures(const struct kit_bench_results *r, size_t cell, unsigned int column, FILE *f) {
  const struct kit_bench_cell *c = &r->plan->cells[cell];
  char text[24];
  for (int i = 0; shown[c->kind][i] != NONE; i++) {
    fprintf(f, " %13s", number(kit_bench_spread(r, cell, column, shown[c->kind][i]).median, text));
    if (i > 0) continue;
    struct kit_bench_spread s = kit_bench_spread(r, cell, column, leader(c));
    fprintf(f, " %7s", s.n > 1 ? number((s.greatest - s.least) / s.median * 50, text) : "-");
    fprintf(f, " %7s", column == 0 ? "1" : number(kit_bench_ratio(r, cell, column, leader(c)), text));
  }
}

static void print_row(const struct kit_bench_results *r, size_t cell, unsigned int column, FILE *f) {
  const struct kit_bench_cell *c = &r->plan->cells[cell];
  unsigned int bad;
  char size[32], sleep[16];
  enum kit_bench_verdict worst = kit_bench_worst(r, cell, column, &bad);
  if (c->spin) snprintf(sleep, sizeof sleep, "spin");
  else snprintf(sleep, sizeof sleep, "%u", c->sleep_us);
  fprintf(f, "  %-7s %5u %6s %5u %6u %5u %5s  %-14s", kit_bench_pattern_words[c->pattern], c->sides,
          kit_bench_size_text(c->size, size, sizeof size), c->comms, c->window, c->group, sleep,
          r->plan->columns[column].name);
  if (bad < r->plan->rounds) print_figures(r, cell, column, f);
  if (bad > 0) fprintf(f, "  %s in %u of %u", kit_bench_verdict_words[worst], bad, r->plan->rounds);
  fputc('\n', f);
}

static void print_kind(const struct kit_bench_results *r, enum kit_bench_kind kind, FILE *f) {
  bool any = false;
  for (size_t c = 0; c < r->plan->ncells; c++) {
    if (r->plan->cells[c].kind != kind) continue;
    if (!any) print_head(kind, f);
    any = true;
    for (unsigned int k = 0; k < r->plan->ncolumns; k++) print_row(r, c, k, f);
  }
}

/* The gravest of a cell's rounds; NULL: all are fine. */
static const struct kit_bench_result *bad_round(const struct kit_bench_results *r, size_t cell, unsigned int column) {
  unsigned int bad, round = 0;
  enum kit_bench_verdict worst = kit_bench_worst(r, cell, column, &bad);
  if (bad == 0) return NULL;
  while (kit_bench_at(r, round, cell, column)->verdict != worst) round++;
  return kit_bench_at(r, round, cell, column);
}

/* What cannot be measured usually cannot in many cells, for one reason; either side may be the one that says so. */
static bool skipped_before(const struct kit_bench_results *r, size_t cell, unsigned int column,
                           const struct kit_bench_result *now) {
  const char *why = strstr(now->what, ": ");
  for (size_t c = 0; c < cell && now->verdict == KIT_BENCH_SKIPPED && why; c++) {
    const struct kit_bench_result *other = bad_round(r, c, column);
    const char *its = other && other->verdict == KIT_BENCH_SKIPPED ? strstr(other->what, ": ") : NULL;
    if (its && strcmp(its, why) == 0) return true;
  }
  return false;
}

/* One line for each thing that went wrong; the same in several rounds counts once. */
static void print_bad(const struct kit_bench_results *r, FILE *f) {
  char text[128];
  bool any = false;
  for (size_t c = 0; c < r->plan->ncells; c++) {
    for (unsigned int k = 0; k < r->plan->ncolumns; k++) {
      const struct kit_bench_result *result = bad_round(r, c, k);
      if (!result || skipped_before(r, c, k, result)) continue;
      if (!any) fputc('\n', f);
      any = true;
      fprintf(f, "%s: %s: %s: %s\n", r->plan->columns[k].name, kit_bench_verdict_words[result->verdict],
              kit_bench_cell_text(&r->plan->cells[c], text, sizeof text), result->what);
      if (*result->said) fprintf(f, "  the plugin's last warning: %s\n", result->said);
    }
  }
}

void kit_bench_table(const struct kit_bench_results *r, FILE *f) {
  double busy = 0;
  for (unsigned int k = 0; k < r->plan->ncolumns; k++) {
    const struct kit_bench_column *c = &r->plan->columns[k];
    fprintf(f, "# %s: %s", c->name, *c->plugin ? c->plugin : "plain TCP streams");
    if (c->version) fprintf(f, ", %s, v%d", c->wire, c->version);
    for (unsigned int i = 0; i < c->nenv; i++) fprintf(f, ", %s", c->env[i]);
    fputc('\n', f);
  }
  for (unsigned int i = 0; i < r->plan->rounds; i++) busy = fmax(busy, r->others[i]);
  fprintf(f, "# %u round%s of %g s a cell after %g s; cores that others kept busy: %.2f%s\n", r->plan->rounds,
          r->plan->rounds == 1 ? "" : "s", r->plan->seconds, r->plan->warmup_s, busy,
          busy > 0.2 ? " - NOT QUIET, do not quote these figures" : "");
  if (*r->counting) fprintf(f, "# instructions: %s\n", r->counting);
  for (int kind = 0; kind < KIT_BENCH_KINDS; kind++) print_kind(r, (enum kit_bench_kind)kind, f);
  print_bad(r, f);
}
