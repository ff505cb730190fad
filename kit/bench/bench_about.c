/* SPDX-License-Identifier: Apache-2.0
 * This machine, as a reader of the figures has to know it. */
#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "kit/bench/bench_load.h"
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

void kit_bench_look_around(struct kit_bench_about *a) {
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
