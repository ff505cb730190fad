/* SPDX-License-Identifier: Apache-2.0
 * Reads what a bench says of its machine, how busy the machine is, and what a process has used: /proc, getrusage and
 * perf_event_open. */
#include "kit/bench/bench_machine.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "kit/bench/kit_bench.h"

static bool first_line(const char *path, const char *begin, char *text, size_t size) {
  FILE *f = fopen(path, "re");
  bool found = false;
  while (f && !found && fgets(text, (int)size, f)) found = strncmp(text, begin, strlen(begin)) == 0;
  if (f) fclose(f);
  if (!found) *text = 0;
  text[strcspn(text, "\n")] = 0;
  return found;
}

static void cpu_name(char *out, size_t size) {
  char line[256];
  if (!first_line("/proc/cpuinfo", "model name", line, sizeof line)) return;
  const char *colon = strchr(line, ':');
  snprintf(out, size, "%.120s", colon ? colon + 1 + strspn(colon + 1, " ") : line);
}

void kit_bench_describe_machine(struct kit_bench_about *a) {
  struct utsname u;
  struct tm tm;
  time_t now = time(NULL);
  if (localtime_r(&now, &tm)) strftime(a->date, sizeof a->date, "%Y-%m-%d %H:%M:%S %z", &tm);
  if (uname(&u) == 0) {
    snprintf(a->host, sizeof a->host, "%.64s", u.nodename);
    snprintf(a->kernel, sizeof a->kernel, "%.32s %.64s", u.sysname, u.release);
    snprintf(a->machine, sizeof a->machine, "%.64s", u.machine);
  }
  cpu_name(a->cpu, sizeof a->cpu);
  first_line("/proc/loadavg", "", a->load, sizeof a->load);
  a->cores = sysconf(_SC_NPROCESSORS_ONLN);
  a->memory_gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30);
}

static double used_by(int who) {
  struct rusage u;
  if (getrusage(who, &u) != 0) return 0;
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

struct kit_bench_load kit_bench_load_now(void) {
  char line[256];
  unsigned long long user, nice, kernel;
  struct kit_bench_load l = {.time = (double)rail_now_ns() / 1e9, .busy = NAN,
                             .own = used_by(RUSAGE_SELF) + used_by(RUSAGE_CHILDREN)};
  bool found = first_line("/proc/stat", "cpu ", line, sizeof line);
  if (found && sscanf(line, "cpu %llu %llu %llu", &user, &nice, &kernel) == 3)
    l.busy = (double)(user + nice + kernel) / (double)sysconf(_SC_CLK_TCK);
  return l;
}

double kit_bench_free_memory(void) {
  char line[256];
  unsigned long long kib;
  bool found = first_line("/proc/meminfo", "MemAvailable:", line, sizeof line);
  return found && sscanf(line, "MemAvailable: %llu", &kib) == 1 ? (double)kib * 1024 : NAN;
}

double kit_bench_load_of_others(const struct kit_bench_load *since) {
  struct kit_bench_load now = kit_bench_load_now();
  double others = (now.busy - since->busy - (now.own - since->own)) / RAIL_MAX(now.time - since->time, 1e-3);
  return others < 0 ? 0 : others;
}

/* ---- CPU time, context switches, instructions ---- */

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
