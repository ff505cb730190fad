/* SPDX-License-Identifier: Apache-2.0
 * One process of a cell: its job, from reading it to telling what came of it. */
#include <stdio.h>
#include <stdlib.h>

#include "kit/bench/bench_process.h"

#define SPARE_S 20 /* beyond the phases and their patience: connecting, checking, closing */

void kit_bench_job_write(struct kit_job *job, const struct kit_bench_plan *plan, const struct kit_bench_cell *cell,
                         const struct kit_bench_column *column) {
  *job = (struct kit_job){.kind = "bench", .seed = plan->seed, .version = plan->version, .dev = plan->dev,
                          .fuse = plan->fuse};
  kit_bench_cell_text(cell, job->name, sizeof job->name);
  snprintf(job->plugin, sizeof job->plugin, "%s", column->plugin);
  kit_job_add(job, "tcp", "%d", column->plugin[0] == 0);
  kit_job_add(job, "kind", "%d", (int)cell->kind);
  kit_job_add(job, "pattern", "%d", (int)cell->pattern);
  kit_job_add(job, "memory", "%d", (int)cell->memory);
  kit_job_add(job, "size", "%llu", (unsigned long long)cell->size);
  kit_job_add(job, "comms", "%u", cell->comms);
  kit_job_add(job, "window", "%u", cell->window);
  kit_job_add(job, "group", "%u", cell->group);
  kit_job_add(job, "sleep_us", "%u", cell->sleep_us);
  kit_job_add(job, "spin", "%d", cell->spin);
  kit_job_add(job, "one_buffer", "%d", cell->one_buffer);
  kit_job_add(job, "check", "%d", plan->check);
  kit_job_add(job, "connects", "%llu", (unsigned long long)plan->connects);
  kit_job_add(job, "warmup_us", "%.0f", plan->warmup_s * 1e6);
  kit_job_add(job, "timed_us", "%.0f", plan->seconds * 1e6);
  kit_job_add(job, "patience_us", "%.0f", plan->patience_s * 1e6);
  double copies = (double)kit_bench_bytes(cell) * cell->sides / 2e8; /* seconds, on a slow machine */
  job->limit_ms = (uint64_t)((plan->warmup_s + 2 * plan->seconds + 4 * plan->patience_s + copies + SPARE_S) * 1e3);
}

static uint32_t number(const struct kit_job *job, const char *key, uint64_t least, uint64_t most) {
  uint64_t n = kit_job_number(job, key, UINT64_MAX);
  ENSURE(n >= least && n <= most, "the job's %s is %llu", key, (unsigned long long)n);
  return (uint32_t)n;
}

static double seconds(const struct kit_job *job, const char *key) { return number(job, key, 0, UINT32_MAX) / 1e6; }

static void read_job(struct kit_bench_process *s) {
  const struct kit_job *job = s->job;
  struct kit_bench_cell *c = &s->cell;
  c->kind = number(job, "kind", 0, KIT_BENCH_KINDS - 1);
  c->pattern = number(job, "pattern", 0, KIT_BENCH_ALL);
  c->memory = number(job, "memory", 0, KIT_BENCH_CUDA);
  c->sides = (uint32_t)job->nprocesses;
  c->size = number(job, "size", 0, RAIL_NET_MAX_BYTES_V8);
  c->comms = number(job, "comms", 1, KIT_BENCH_COMMS);
  c->window = number(job, "window", 1, KIT_BENCH_WINDOW);
  c->group = number(job, "group", 1, KIT_BENCH_GROUP);
  c->sleep_us = number(job, "sleep_us", 0, 100000);
  c->spin = number(job, "spin", 0, 1);
  c->one_buffer = number(job, "one_buffer", 0, 1);
  s->window = RAIL_ROUND_UP(c->window, c->group);
  s->check = number(job, "check", 0, 1) && c->kind != KIT_BENCH_CONNECT && !c->one_buffer;
  s->connects = number(job, "connects", 0, UINT32_MAX);
  s->warmup_s = seconds(job, "warmup_us");
  s->seconds = seconds(job, "timed_us");
  s->patience_ns = (uint64_t)(seconds(job, "patience_us") * 1e9);
  s->wire = number(job, "tcp", 0, 1) ? &kit_bench_wire_tcp : &kit_bench_wire_net;
}

/* ---- One of a cell's processes, from reading its job to telling what came of it ---- */

static void measure(struct kit_bench_process *s, struct kit_bench_record *out) {
  void (*phase)(struct kit_bench_process *, double, struct kit_bench_record *) =
      s->cell.kind == KIT_BENCH_LATENCY ? kit_bench_pingpong : kit_bench_transfer;
  struct kit_bench_record warm = *out;
  kit_bench_listen_all(s);
  kit_bench_connect_all(s);
  kit_barrier(s->kit);
  if (s->check) kit_bench_verify(s);
  phase(s, s->warmup_s, &warm);
  phase(s, s->seconds, out);
  kit_barrier(s->kit);
  kit_bench_close_all(s);
}

void kit_bench_process_main(struct kit_process *kit) {
  struct kit_bench_process s = {.kit = kit, .job = kit_process_job(kit), .rank = kit_process_rank(kit)};
  s.calls = kit_call_slot();
  read_job(&s);
  kit_bench_counters_open(&s.counters);
  if (!kit_bench_samples_make(&s.samples)) kit_bench_fail(&s, KIT_BENCH_ERROR, "no memory for samples");
  kit_bench_make_conns(&s);
  kit_bench_require(&s, s.wire->start(&s), "init");
  struct kit_bench_record out = kit_bench_empty_record(&s);
  if (s.cell.kind == KIT_BENCH_CONNECT) kit_bench_connects(&s, s.seconds, &out);
  else measure(&s, &out);
  kit_bench_require(&s, s.wire->stop(&s), "finalize");
  kit_send_record(kit, &out, sizeof out);
  kit_bench_memory_free(&s.memory);
  kit_bench_samples_free(&s.samples);
  kit_bench_counters_close(&s.counters);
  free(s.requests);
  free(s.out);
}
