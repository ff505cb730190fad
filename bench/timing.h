/* SPDX-License-Identifier: Apache-2.0
 * What the programs of this folder need: the clock that rail-coll uses, and arguments that are checked. */
#ifndef RAIL_BENCH_TIMING_H
#define RAIL_BENCH_TIMING_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double bench_now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* A decimal number of at least `least`; ends the program otherwise. */
static inline size_t bench_number(const char *what, const char *text, size_t least) {
  char *end;
  errno = 0;
  unsigned long long v = strtoull(text, &end, 10);
  if (errno == 0 && *end == 0 && text[0] >= '0' && text[0] <= '9' && v >= least) return (size_t)v;
  fprintf(stderr, "%s: '%s' is not a number from %zu on\n", what, text, least);
  exit(2);
}

#endif
