/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "common/base/compiler.h"
#include "kit/bench/kit_bench.h"

const char *const kit_bench_kind_words[] = {[KIT_BENCH_BW] = "bw", [KIT_BENCH_LATENCY] = "lat",
                                            [KIT_BENCH_JITTER] = "jitter", [KIT_BENCH_CONNECT] = "connect", NULL};
const char *const kit_bench_pattern_words[] = {[KIT_BENCH_PAIR] = "pair", [KIT_BENCH_BIDIR] = "bidir",
                                               [KIT_BENCH_RING] = "ring", [KIT_BENCH_INCAST] = "incast",
                                               [KIT_BENCH_ALL] = "all", NULL};
const char *const kit_bench_memory_words[] = {[KIT_BENCH_HOST] = "host", [KIT_BENCH_CUDA] = "cuda", NULL};
const char *const kit_bench_verdict_words[] = {
    [KIT_BENCH_OK] = "ok", [KIT_BENCH_WRONG] = "wrong", [KIT_BENCH_FAILED] = "failed", [KIT_BENCH_STUCK] = "stuck",
    [KIT_BENCH_CRASHED] = "crashed", [KIT_BENCH_SKIPPED] = "skipped", [KIT_BENCH_ERROR] = "not run", NULL};

const struct kit_bench_metric_info kit_bench_metrics[KIT_BENCH_METRICS] = {
    [KIT_BENCH_GB_S] = {"gb_s", "GB/s", 1, true},
    [KIT_BENCH_MESSAGES_S] = {"messages_s", "messages/s", 1, true},
    [KIT_BENCH_HALF_MIN] = {"half_min_us", "min us", -1, false},
    [KIT_BENCH_HALF_P50] = {"half_p50_us", "p50 us", -1, true},
    [KIT_BENCH_HALF_P90] = {"half_p90_us", "p90 us", -1, false},
    [KIT_BENCH_HALF_P99] = {"half_p99_us", "p99 us", -1, true},
    [KIT_BENCH_HALF_P999] = {"half_p999_us", "p99.9 us", -1, false},
    [KIT_BENCH_GAP_P50] = {"gap_p50_us", "p50 us", 0, false},
    [KIT_BENCH_GAP_P99] = {"gap_p99_us", "gap p99 us", -1, true},
    [KIT_BENCH_GAP_P999] = {"gap_p999_us", "p99.9 us", -1, false},
    [KIT_BENCH_GAP_MAX] = {"gap_max_us", "max us", -1, false},
    [KIT_BENCH_JITTER_US] = {"jitter_us", "jitter us", -1, false},
    [KIT_BENCH_CONNECTS_S] = {"connects_s", "connects/s", 1, true},
    [KIT_BENCH_CONNECT_P50] = {"connect_p50_us", "p50 us", -1, true},
    [KIT_BENCH_CONNECT_P99] = {"connect_p99_us", "p99 us", -1, false},
    [KIT_BENCH_CLOSE_US] = {"close_us", "close us", -1, false},
    [KIT_BENCH_FDS_LEFT] = {"fds_left", "fds left", 0, false},
    [KIT_BENCH_THREADS_LEFT] = {"threads_left", "threads left", 0, false},
    [KIT_BENCH_CPU_GB] = {"cpu_s_per_gb", "CPU s/GB", -1, true},
    [KIT_BENCH_SWITCHES] = {"switches_per_1000", "switches/1000", 0, false},
    [KIT_BENCH_INSTRUCTIONS] = {"instructions_per_message", "instr/msg", 0, false},
};

const char *kit_bench_size_text(uint64_t bytes, char *text, size_t size) {
  static const char units[] = "GMK";
  for (unsigned int i = 0; units[i]; i++) {
    unsigned int shift = 30 - 10 * i;
    if (bytes < 1ull << shift || bytes & ((1ull << shift) - 1)) continue;
    snprintf(text, size, "%llu%c", (unsigned long long)(bytes >> shift), units[i]);
    return text;
  }
  snprintf(text, size, "%llu", (unsigned long long)bytes);
  return text;
}

const char *kit_bench_cell_text(const struct kit_bench_cell *c, char *text, size_t size) {
  char bytes[32];
  int n = snprintf(text, size, "%s %s of %u", kit_bench_kind_words[c->kind], kit_bench_pattern_words[c->pattern],
                   c->sides);
  if (c->kind != KIT_BENCH_CONNECT)
    n += snprintf(text + n, size - (size_t)n, ", size %s", kit_bench_size_text(c->size, bytes, sizeof bytes));
  n += snprintf(text + n, size - (size_t)n, ", comms %u", c->comms);
  if (c->kind != KIT_BENCH_CONNECT) n += snprintf(text + n, size - (size_t)n, ", window %u", c->window);
  if (c->group > 1) n += snprintf(text + n, size - (size_t)n, ", group %u", c->group);
  if (c->sleep_us) n += snprintf(text + n, size - (size_t)n, ", sleep %u", c->sleep_us);
  if (c->spin) n += snprintf(text + n, size - (size_t)n, ", spin");
  if (c->memory == KIT_BENCH_CUDA) snprintf(text + n, size - (size_t)n, ", memory cuda");
  return text;
}

/* A ping-pong goes to and fro, whatever the pattern. */
bool kit_bench_edge(const struct kit_bench_cell *c, int from, int to) {
  enum kit_bench_pattern pattern = c->kind == KIT_BENCH_LATENCY ? KIT_BENCH_BIDIR : c->pattern;
  if (from == to) return false;
  switch (pattern) {
    case KIT_BENCH_PAIR: return from == 0 && to == 1;
    case KIT_BENCH_BIDIR: return from + to == 1;
    case KIT_BENCH_RING: return to == (from + 1) % (int)c->sides;
    case KIT_BENCH_INCAST: return to == 0;
    case KIT_BENCH_ALL: return true;
  }
  return false;
}

bool kit_bench_same_cell(const struct kit_bench_cell *a, const struct kit_bench_cell *b) {
  return a->kind == b->kind && a->pattern == b->pattern && a->memory == b->memory && a->sides == b->sides &&
         a->size == b->size && a->comms == b->comms && a->window == b->window && a->group == b->group &&
         a->sleep_us == b->sleep_us && a->spin == b->spin;
}
