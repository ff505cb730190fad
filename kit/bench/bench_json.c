/* SPDX-License-Identifier: Apache-2.0
 * Everything about a run as one JSON object, for kit_bench_compare and scripts. */
#include <math.h>

#include "kit/bench/kit_bench.h"
#include "kit/kit_json.h"

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
    struct kit_bench_spread s = kit_bench_spread(r, cell, column, (enum kit_bench_metric)m);
    if (s.n == 0) continue;
    kit_json_object(j, kit_bench_metrics[m].key);
    kit_json_number(j, "median", s.median);
    kit_json_number(j, "least", s.least);
    kit_json_number(j, "greatest", s.greatest);
    kit_json_int(j, "rounds", s.n);
    kit_json_number(j, "ratio", kit_bench_ratio(r, cell, column, (enum kit_bench_metric)m));
    kit_json_end(j, '}');
  }
  kit_json_end(j, '}');
}

static void write_result(struct kit_json *j, const struct kit_bench_results *r, size_t cell, unsigned int column) {
  unsigned int bad;
  enum kit_bench_verdict worst = kit_bench_worst(r, cell, column, &bad);
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
