/* SPDX-License-Identifier: Apache-2.0
 * Monotonic time and deadlines, in nanoseconds. A deadline of 0 means "none". */
#ifndef RAIL_CLOCK_H
#define RAIL_CLOCK_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* Between two calls of one thread, in the time that counts against a peer. In a longer gap this process was stopped, or
 * its caller away; polls of a caller that waits are less than a millisecond apart. */
#define RAIL_MAX_STEP_NS 1000000000ull

static inline uint64_t rail_now_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static inline uint64_t rail_deadline_in_ms(uint64_t ms) { return rail_now_ns() + ms * 1000000ull; }

static inline bool rail_deadline_passed(uint64_t deadline) { return deadline != 0 && rail_now_ns() >= deadline; }

/* Milliseconds left, rounded up, at least 0; -1 for no deadline (poll's convention). */
static inline int rail_deadline_left_ms(uint64_t deadline) {
  if (deadline == 0) return -1;
  uint64_t now = rail_now_ns();
  if (now >= deadline) return 0;
  uint64_t ms = (deadline - now + 999999ull) / 1000000ull;
  return ms > 0x7fffffff ? 0x7fffffff : (int)ms;
}

/* For how long a peer has been waited for, counted so. */
struct rail_waited {
  uint64_t ns;
  uint64_t noted; /* when it was last looked at */
};

static inline void rail_waited_begin(struct rail_waited *w) { *w = (struct rail_waited){.noted = rail_now_ns()}; }

static inline void rail_waited_note(struct rail_waited *w) {
  const uint64_t now = rail_now_ns(), step = now - w->noted;
  w->ns += step < RAIL_MAX_STEP_NS ? step : RAIL_MAX_STEP_NS;
  w->noted = now;
}

/* 0: no limit. */
static inline bool rail_waited_is_late(const struct rail_waited *w, int64_t limit_ms) {
  return limit_ms && w->ns >= (uint64_t)limit_ms * 1000000;
}

#endif
