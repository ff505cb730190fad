/* SPDX-License-Identifier: Apache-2.0
 * What this process uses, all its threads together: CPU, context switches, instructions. */
#ifndef RAIL_KIT_BENCH_USAGE_H
#define RAIL_KIT_BENCH_USAGE_H

#include <stdbool.h>
#include <stdint.h>

struct kit_bench_usage {
  double cpu_s;
  uint64_t switches;
  uint64_t instructions;
  int32_t counted;   /* instructions: 0 not, 1 in user mode only, 2 in the kernel too */
  char why_not[100];
};

struct kit_bench_counters {
  int fd; /* of perf_event_open; -1: not allowed */
  int counted;
  char why_not[100];
};

/* Before the plugin is loaded: threads started from here on are counted. Never fails: what is not allowed is said. */
void kit_bench_counters_open(struct kit_bench_counters *c);
void kit_bench_counters_close(struct kit_bench_counters *c);
/* Since the process began. */
struct kit_bench_usage kit_bench_usage_now(const struct kit_bench_counters *c);
/* From `before` to now. */
struct kit_bench_usage kit_bench_usage_since(const struct kit_bench_counters *c, const struct kit_bench_usage *before);

#endif
