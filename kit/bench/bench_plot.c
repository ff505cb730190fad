/* SPDX-License-Identifier: Apache-2.0
 * The figures as a picture: a panel each, a line for each column and way of running it. */
#include <math.h>
#include <string.h>

#include "kit/bench/kit_bench.h"
#include "kit/kit_json.h"
#include "kit/kit_plot.h"

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
    struct kit_bench_spread s = kit_bench_spread(r, c, column, panel->metric);
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
