/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/bench/bench_usage.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static int open_counter(bool kernel) {
  struct perf_event_attr attr = {
      .type = PERF_TYPE_HARDWARE, .size = sizeof attr, .config = PERF_COUNT_HW_INSTRUCTIONS, .inherit = 1,
      .exclude_kernel = !kernel, .exclude_hv = 1};
  return (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

static void say_why_not(struct kit_bench_counters *c, int error) {
  const char *hint = error == EACCES || error == EPERM ? " (see kernel.perf_event_paranoid)"
                     : error == ENOENT || error == EOPNOTSUPP ? " (no such counter on this machine)" : "";
  snprintf(c->why_not, sizeof c->why_not, "not allowed: perf_event_open: %s%s", strerror(error), hint);
}

void kit_bench_counters_open(struct kit_bench_counters *c) {
  *c = (struct kit_bench_counters){.fd = open_counter(true), .counted = 2};
  if (c->fd < 0) {
    c->fd = open_counter(false);
    c->counted = 1;
  }
  if (c->fd >= 0) return;
  c->counted = 0;
  say_why_not(c, errno);
}

void kit_bench_counters_close(struct kit_bench_counters *c) {
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
}

struct kit_bench_usage kit_bench_usage_now(const struct kit_bench_counters *c) {
  struct kit_bench_usage u = {.counted = c->counted};
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  u.cpu_s = (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
  u.switches = (uint64_t)r.ru_nvcsw + (uint64_t)r.ru_nivcsw;
  memcpy(u.why_not, c->why_not, sizeof u.why_not);
  if (u.counted && read(c->fd, &u.instructions, sizeof u.instructions) != (ssize_t)sizeof u.instructions) u.counted = 0;
  return u;
}

struct kit_bench_usage kit_bench_usage_since(const struct kit_bench_counters *c, const struct kit_bench_usage *before) {
  struct kit_bench_usage u = kit_bench_usage_now(c);
  u.cpu_s -= before->cpu_s;
  u.switches -= before->switches;
  u.instructions -= before->instructions;
  return u;
}
