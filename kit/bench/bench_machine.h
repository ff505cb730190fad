/* SPDX-License-Identifier: Apache-2.0
 * What this process uses, and how busy others keep the machine. */
#ifndef RAIL_KIT_BENCH_MACHINE_H
#define RAIL_KIT_BENCH_MACHINE_H

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

/* Before the plugin is loaded: threads started from here on are counted. Never fails; why_not has the reason. */
void kit_bench_counters_open(struct kit_bench_counters *c);
void kit_bench_counters_close(struct kit_bench_counters *c);
/* Since the process began. */
struct kit_bench_usage kit_bench_usage_now(const struct kit_bench_counters *c);
/* From `before` to now. */
struct kit_bench_usage kit_bench_usage_since(const struct kit_bench_counters *c, const struct kit_bench_usage *before);

/* ---- How busy others keep this machine, and what is free ---- */

struct kit_bench_load { double time, busy, own; }; /* seconds */

struct kit_bench_load kit_bench_load_now(void);
/* Cores that processes which are not this one or its ended children have kept busy since. NAN: this system does not
 * report it. Interrupts are left out: loopback's belong to no process. */
double kit_bench_load_of_others(const struct kit_bench_load *since);
/* Bytes that processes can still have. NAN: this system does not report it. */
double kit_bench_free_memory(void);

#endif
