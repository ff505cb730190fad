/* SPDX-License-Identifier: Apache-2.0
 * What several rounds of a cell amount to: figures, the table, JSON, the plot. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compiler.h"
#include "kit/bench/kit_bench.h"
#include "kit/kit_json.h"
#include "kit/kit_plot.h"

#define MAX_ROUNDS 1000

struct kit_bench_result *kit_bench_at(const struct kit_bench_results *r, unsigned int round, size_t cell,
                                      unsigned int column) {
  return &r->all[((size_t)round * r->plan->ncells + cell) * r->plan->ncolumns + column];
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static struct kit_bench_spread spread_of(double *values, unsigned int n) {
  struct kit_bench_spread s = {NAN, NAN, NAN, n};
  if (n == 0) return s;
  qsort(values, n, sizeof *values, compare);
  s.least = values[0];
  s.greatest = values[n - 1];
  s.median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  return s;
}

static double value(const struct kit_bench_results *r, unsigned int round, size_t cell, unsigned int column,
                    enum kit_bench_metric metric) {
  const struct kit_bench_result *result = kit_bench_at(r, round, cell, column);
  return result->verdict == KIT_BENCH_OK ? result->figures[metric] : NAN;
}

static struct kit_bench_spread spread_of_rounds(const struct kit_bench_results *r, size_t cell, unsigned int column,
                                         enum kit_bench_metric metric) {
  double values[MAX_ROUNDS];
  unsigned int n = 0;
  for (unsigned int i = 0; i < r->plan->rounds && n < MAX_ROUNDS; i++) {
    double v = value(r, i, cell, column, metric);
    if (!isnan(v)) values[n++] = v;
  }
  return spread_of(values, n);
}

/* The column's figure over the first column's: the median of the rounds' ratios; NAN: there is none. */
static double ratio_to_first(const struct kit_bench_results *r, size_t cell, unsigned int column,
                       enum kit_bench_metric metric) {
  double values[MAX_ROUNDS];
  unsigned int n = 0;
  for (unsigned int i = 0; i < r->plan->rounds && n < MAX_ROUNDS; i++) {
    double mine = value(r, i, cell, column, metric), first = value(r, i, cell, 0, metric);
    if (!isnan(mine) && !isnan(first) && first != 0) values[n++] = mine / first;
  }
  return spread_of(values, n).median;
}

/* The gravest verdict of all rounds, and how many were not fine. */
static enum kit_bench_verdict worst_verdict(const struct kit_bench_results *r, size_t cell, unsigned int column,
                                       unsigned int *bad) {
  static const enum kit_bench_verdict gravest[] = {KIT_BENCH_WRONG, KIT_BENCH_CRASHED, KIT_BENCH_STUCK,
                                                   KIT_BENCH_FAILED, KIT_BENCH_ERROR, KIT_BENCH_SKIPPED};
  unsigned int count[KIT_BENCH_ERROR + 1] = {0};
  *bad = 0;
  for (unsigned int i = 0; i < r->plan->rounds; i++) {
    enum kit_bench_verdict v = kit_bench_at(r, i, cell, column)->verdict;
    count[v]++;
    *bad += v != KIT_BENCH_OK;
  }
  for (size_t i = 0; i < RAIL_COUNT_OF(gravest); i++)
    if (count[gravest[i]] > 0) return gravest[i];
  return KIT_BENCH_OK;
}

/* ---- The results as a table a kind, a row for each cell and column ---- */

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
    fprintf(f, " %13s", number(spread_of_rounds(r, cell, column, shown[c->kind][i]).median, text));
    if (i > 0) continue;
    struct kit_bench_spread s = spread_of_rounds(r, cell, column, leader(c));
    fprintf(f, " %7s", s.n > 1 ? number((s.greatest - s.least) / s.median * 50, text) : "-");
    fprintf(f, " %7s", column == 0 ? "1" : number(ratio_to_first(r, cell, column, leader(c)), text));
  }
}

static void print_row(const struct kit_bench_results *r, size_t cell, unsigned int column, FILE *f) {
  const struct kit_bench_cell *c = &r->plan->cells[cell];
  unsigned int bad;
  char size[32], sleep[16];
  enum kit_bench_verdict worst = worst_verdict(r, cell, column, &bad);
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
  enum kit_bench_verdict worst = worst_verdict(r, cell, column, &bad);
  if (bad == 0) return NULL;
  while (kit_bench_at(r, round, cell, column)->verdict != worst) round++;
  return kit_bench_at(r, round, cell, column);
}

/* What cannot be measured usually cannot in many cells, for one reason; either process may report it. */
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
  double busy = 0; /* NAN: not known of a round */
  char cores[32] = "unknown";
  for (unsigned int k = 0; k < r->plan->ncolumns; k++) {
    const struct kit_bench_column *c = &r->plan->columns[k];
    fprintf(f, "# %s: %s", c->name, *c->plugin ? c->plugin : "plain TCP streams");
    if (c->version) fprintf(f, ", %s, v%d", c->wire, c->version);
    for (unsigned int i = 0; i < c->nenv; i++) fprintf(f, ", %s", c->env[i]);
    fputc('\n', f);
  }
  for (unsigned int i = 0; i < r->plan->rounds; i++)
    if (!isnan(busy) && !(r->others[i] <= busy)) busy = r->others[i];
  if (!isnan(busy)) snprintf(cores, sizeof cores, "%.2f", busy);
  fprintf(f, "# %u round%s of %g s a cell after %g s; cores that others kept busy: %s%s\n", r->plan->rounds,
          r->plan->rounds == 1 ? "" : "s", r->plan->seconds, r->plan->warmup_s, cores,
          busy > 0.2 ? " - NOT QUIET, do not quote these figures" : "");
  if (*r->counting) fprintf(f, "# instructions: %s\n", r->counting);
  for (int kind = 0; kind < KIT_BENCH_KINDS; kind++) print_kind(r, (enum kit_bench_kind)kind, f);
  print_bad(r, f);
}

/* ---- Everything about a run as one JSON object, for kit_bench_compare and scripts ---- */

#define SCHEMA 1

static void write_about(struct kit_json *j, const struct kit_bench_about *a) {
  kit_json_text(j, "tool", "rail-kit bench");
  kit_json_int(j, "schema", SCHEMA);
  kit_json_text(j, "version", a->kit_version);
  kit_json_text(j, "date", a->date);
  kit_json_text(j, "host", a->host);
  kit_json_text(j, "kernel", a->kernel);
  kit_json_text(j, "machine", a->machine);
  kit_json_text(j, "cpu", a->cpu);
  kit_json_int(j, "cores", a->cores);
  kit_json_number(j, "memory_gib", a->memory_gib);
  kit_json_text(j, "load", a->load);
  kit_json_array(j, "command");
  for (int i = 0; i < a->argc; i++) kit_json_text(j, NULL, a->argv[i]);
  kit_json_end(j, ']');
}

static void write_plan(struct kit_json *j, const struct kit_bench_results *r) {
  const struct kit_bench_plan *p = r->plan;
  kit_json_object(j, "plan");
  kit_json_int(j, "rounds", p->rounds);
  kit_json_number(j, "warmup_s", p->warmup_s);
  kit_json_number(j, "seconds", p->seconds);
  kit_json_number(j, "patience_s", p->patience_s);
  kit_json_int(j, "connects", (int64_t)p->connects);
  kit_json_int(j, "newest_version", p->version);
  kit_json_int(j, "dev", p->dev);
  kit_json_bool(j, "check", p->check);
  kit_json_int(j, "seed", (int64_t)p->seed);
  kit_json_int(j, "hosts", p->link ? 2 : 1);
  kit_json_end(j, '}');
  kit_json_array(j, "others_busy");
  for (unsigned int i = 0; i < p->rounds; i++) kit_json_number(j, NULL, r->others[i]);
  kit_json_end(j, ']');
  kit_json_text(j, "instructions", r->counting);
}

static void write_columns(struct kit_json *j, const struct kit_bench_plan *p) {
  kit_json_array(j, "columns");
  for (unsigned int k = 0; k < p->ncolumns; k++) {
    const struct kit_bench_column *c = &p->columns[k];
    kit_json_object(j, NULL);
    kit_json_text(j, "name", c->name);
    kit_json_text(j, "plugin", *c->plugin ? c->plugin : NULL);
    kit_json_text(j, "wire", c->wire);
    kit_json_int(j, "version", c->version);
    kit_json_array(j, "env");
    for (unsigned int i = 0; i < c->nenv; i++) kit_json_text(j, NULL, c->env[i]);
    kit_json_end(j, ']');
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
}

static void write_round(struct kit_json *j, const struct kit_bench_result *result) {
  kit_json_object(j, NULL);
  kit_json_text(j, "verdict", kit_bench_verdict_words[result->verdict]);
  if (result->verdict != KIT_BENCH_OK) {
    kit_json_text(j, "what", result->what);
    kit_json_text(j, "said", result->said);
  } else {
    kit_json_int(j, "messages", (int64_t)result->messages);
    kit_json_number(j, "seconds", result->seconds);
    for (int m = 0; m < KIT_BENCH_METRICS; m++)
      if (!isnan(result->figures[m])) kit_json_number(j, kit_bench_metrics[m].key, result->figures[m]);
  }
  kit_json_end(j, '}');
}

static void write_figures(struct kit_json *j, const struct kit_bench_results *r, size_t cell, unsigned int column) {
  kit_json_object(j, "figures");
  for (int m = 0; m < KIT_BENCH_METRICS; m++) {
    struct kit_bench_spread s = spread_of_rounds(r, cell, column, (enum kit_bench_metric)m);
    if (s.n == 0) continue;
    kit_json_object(j, kit_bench_metrics[m].key);
    kit_json_number(j, "median", s.median);
    kit_json_number(j, "least", s.least);
    kit_json_number(j, "greatest", s.greatest);
    kit_json_int(j, "rounds", s.n);
    kit_json_number(j, "ratio", ratio_to_first(r, cell, column, (enum kit_bench_metric)m));
    kit_json_end(j, '}');
  }
  kit_json_end(j, '}');
}

static void write_result(struct kit_json *j, const struct kit_bench_results *r, size_t cell, unsigned int column) {
  unsigned int bad;
  enum kit_bench_verdict worst = worst_verdict(r, cell, column, &bad);
  kit_json_object(j, NULL);
  kit_json_text(j, "column", r->plan->columns[column].name);
  kit_json_text(j, "verdict", kit_bench_verdict_words[worst]);
  kit_json_int(j, "bad_rounds", bad);
  write_figures(j, r, cell, column);
  kit_json_array(j, "rounds");
  for (unsigned int i = 0; i < r->plan->rounds; i++) write_round(j, kit_bench_at(r, i, cell, column));
  kit_json_end(j, ']');
  kit_json_end(j, '}');
}

static void write_cell(struct kit_json *j, const struct kit_bench_results *r, size_t cell) {
  const struct kit_bench_cell *c = &r->plan->cells[cell];
  kit_json_object(j, NULL);
  kit_json_text(j, "kind", kit_bench_kind_words[c->kind]);
  kit_json_text(j, "pattern", kit_bench_pattern_words[c->pattern]);
  kit_json_text(j, "memory", kit_bench_memory_words[c->memory]);
  kit_json_int(j, "sides", c->sides);
  kit_json_int(j, "size", (int64_t)c->size);
  kit_json_int(j, "comms", c->comms);
  kit_json_int(j, "window", c->window);
  kit_json_int(j, "group", c->group);
  kit_json_int(j, "sleep_us", c->sleep_us);
  kit_json_bool(j, "spin", c->spin);
  kit_json_bool(j, "one_buffer", c->one_buffer);
  kit_json_array(j, "results");
  for (unsigned int k = 0; k < r->plan->ncolumns; k++) write_result(j, r, cell, k);
  kit_json_end(j, ']');
  kit_json_end(j, '}');
}

bool kit_bench_json(const struct kit_bench_results *r, const struct kit_bench_about *about, FILE *f) {
  struct kit_json j = kit_json_start(f);
  kit_json_object(&j, NULL);
  write_about(&j, about);
  write_plan(&j, r);
  write_columns(&j, r->plan);
  kit_json_array(&j, "cells");
  for (size_t c = 0; c < r->plan->ncells; c++) write_cell(&j, r, c);
  kit_json_end(&j, ']');
  kit_json_end(&j, '}');
  return kit_json_finish(&j);
}

/* ---- The figures as a plot: a panel each, a line for each column and way of running it ---- */

struct figure { const struct kit_bench_results *r; const struct kit_bench_about *about; };

struct panel { enum kit_bench_kind kind; enum kit_bench_metric metric; const char *label; };

static const struct panel panels[] = {
    {KIT_BENCH_BW, KIT_BENCH_GB_S, "GB/s"},
    {KIT_BENCH_BW, KIT_BENCH_MESSAGES_S, "messages/s"},
    {KIT_BENCH_BW, KIT_BENCH_CPU_GB, "CPU s/GB"},
    {KIT_BENCH_LATENCY, KIT_BENCH_HALF_P50, "half round trip, median, us"},
    {KIT_BENCH_LATENCY, KIT_BENCH_HALF_P99, "half round trip, p99, us"},
    {KIT_BENCH_JITTER, KIT_BENCH_GAP_P99, "gap between arrivals, p99, us"},
    {KIT_BENCH_CONNECT, KIT_BENCH_CONNECTS_S, "connections/s"},
};

static uint64_t x_of(const struct kit_bench_cell *c) { return c->kind == KIT_BENCH_CONNECT ? c->comms : c->size; }

/* Are both points of one line: the same but for x? */
static bool same_line(const struct kit_bench_cell *a, const struct kit_bench_cell *b) {
  struct kit_bench_cell x = *a, y = *b;
  x.size = y.size = 0;
  if (x.kind == KIT_BENCH_CONNECT) x.comms = y.comms = 0;
  return kit_bench_same_cell(&x, &y);
}

static bool starts_line(const struct kit_bench_plan *p, size_t cell) {
  for (size_t i = 0; i < cell; i++)
    if (same_line(&p->cells[i], &p->cells[cell])) return false;
  return true;
}

static void line_name(const struct kit_bench_column *column, const struct kit_bench_cell *c, char *text, size_t size) {
  int n = snprintf(text, size, "%s", column->name);
  if (c->kind == KIT_BENCH_LATENCY) return;
  n += snprintf(text + n, size - (size_t)n, ", %s of %u", kit_bench_pattern_words[c->pattern], c->sides);
  if (c->kind == KIT_BENCH_CONNECT) return;
  n += snprintf(text + n, size - (size_t)n, ", %u comms, window %u", c->comms, c->window);
  if (c->group > 1) n += snprintf(text + n, size - (size_t)n, ", %u a receive", c->group);
  if (c->sleep_us) snprintf(text + n, size - (size_t)n, ", sleeping");
}

static double pick(const struct kit_bench_spread *s, const char *what) {
  return strcmp(what, "low") == 0 ? s->least : strcmp(what, "high") == 0 ? s->greatest : s->median;
}

/* One value of each point; cells of a line come in order of size. */
static void values(struct kit_json *j, const struct kit_bench_results *r, const struct panel *panel, size_t first,
                   unsigned int column, const char *what) {
  const struct kit_bench_plan *p = r->plan;
  kit_json_array(j, what);
  for (size_t c = first; c < p->ncells; c++) {
    if (!same_line(&p->cells[first], &p->cells[c])) continue;
    struct kit_bench_spread s = spread_of_rounds(r, c, column, panel->metric);
    if (s.n == 0 || !(s.median > 0)) continue;
    if (*what == 'x') kit_json_int(j, NULL, (int64_t)x_of(&p->cells[c]));
    else kit_json_number(j, NULL, pick(&s, what));
  }
  kit_json_end(j, ']');
}

static void write_lines(struct kit_json *j, const struct kit_bench_results *r, const struct panel *panel) {
  const struct kit_bench_plan *p = r->plan;
  char name[200];
  kit_json_array(j, "series");
  for (unsigned int k = 0; k < p->ncolumns; k++) {
    int dash = 0;
    for (size_t c = 0; c < p->ncells; c++) {
      if (p->cells[c].kind != panel->kind || !starts_line(p, c)) continue;
      kit_json_object(j, NULL);
      line_name(&p->columns[k], &p->cells[c], name, sizeof name);
      kit_json_text(j, "name", name);
      kit_json_int(j, "color", k);
      kit_json_int(j, "dash", dash++);
      kit_json_bool(j, "points", true);
      values(j, r, panel, c, k, "x");
      values(j, r, panel, c, k, "y");
      values(j, r, panel, c, k, "low");
      values(j, r, panel, c, k, "high");
      kit_json_end(j, '}');
    }
  }
  kit_json_end(j, ']');
}

/* A tick at each size. */
static void write_ticks(struct kit_json *j, const struct kit_bench_plan *p, enum kit_bench_kind kind) {
  char text[32];
  kit_json_array(j, "xticks");
  for (size_t c = 0; c < p->ncells; c++) {
    bool seen = p->cells[c].kind != kind;
    for (size_t i = 0; i < c && !seen; i++) seen = p->cells[i].kind == kind && x_of(&p->cells[i]) == x_of(&p->cells[c]);
    if (seen) continue;
    kit_json_array(j, NULL);
    kit_json_int(j, NULL, (int64_t)x_of(&p->cells[c]));
    kit_json_text(j, NULL, kit_bench_size_text(x_of(&p->cells[c]), text, sizeof text));
    kit_json_end(j, ']');
  }
  kit_json_end(j, ']');
}

static bool has_kind(const struct kit_bench_plan *p, enum kit_bench_kind kind) {
  for (size_t c = 0; c < p->ncells; c++)
    if (p->cells[c].kind == kind) return true;
  return false;
}

static bool write_figure(FILE *f, const void *arg) {
  const struct figure *figure = arg;
  struct kit_json j = kit_json_start(f);
  kit_json_object(&j, NULL);
  kit_json_format(&j, "title", "rail-kit bench: %s, %s, %.10s", figure->about->host, figure->about->cpu,
                  figure->about->date);
  kit_json_array(&j, "panels");
  for (size_t i = 0; i < sizeof panels / sizeof *panels; i++) {
    if (!has_kind(figure->r->plan, panels[i].kind)) continue;
    kit_json_object(&j, NULL);
    kit_json_text(&j, "ylabel", panels[i].label);
    kit_json_text(&j, "xlabel", panels[i].kind == KIT_BENCH_CONNECT ? "connections at a time" : "bytes of a message");
    kit_json_text(&j, "xscale", "symlog"); /* messages may have no bytes */
    kit_json_text(&j, "yscale", "log");
    write_ticks(&j, figure->r->plan, panels[i].kind);
    write_lines(&j, figure->r, &panels[i]);
    kit_json_end(&j, '}');
  }
  kit_json_end(&j, ']');
  kit_json_end(&j, '}');
  return kit_json_finish(&j);
}

bool kit_bench_plot(const struct kit_bench_results *r, const struct kit_bench_about *about, const char *target) {
  return kit_plot(write_figure, &(struct figure){r, about}, target);
}
