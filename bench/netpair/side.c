/* SPDX-License-Identifier: Apache-2.0
 * One of the two processes, from connecting to closing. */
#include "bench/netpair/side.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "common/clock.h"

#define OPEN_LIMIT_MS 10000

bool side_fail(struct side *s, enum verdict verdict, const char *fmt, ...) {
  int none = VERDICT_OK;
  char *what = s->shared->what;
  size_t size = sizeof s->shared->what;
  va_list ap;
  if (!atomic_compare_exchange_strong(&s->shared->verdict, &none, (int)verdict)) return false;
  int n = snprintf(what, size, "%s: ", s->id == 0 ? "sender" : "receiver");
  va_start(ap, fmt);
  vsnprintf(what + n, size - (size_t)n, fmt, ap);
  va_end(ap);
  return false;
}

bool side_stopped(const struct side *s) { return atomic_load(&s->shared->verdict) != VERDICT_OK; }

bool side_meet(struct side *s) {
  atomic_store(&s->shared->arrived[s->id], ++s->meetings);
  while (atomic_load(&s->shared->arrived[1 - s->id]) < s->meetings) {
    if (side_stopped(s)) return false;
    sched_yield();
  }
  return true;
}

bool side_patient(struct side *s, uint64_t moved) {
  if (side_stopped(s)) return false;
  if (rail_now_ns() - moved <= (uint64_t)(s->o->patience_s * 1e9)) return true;
  return side_fail(s, VERDICT_STUCK, "nothing moved for %g s", s->o->patience_s);
}

void side_idle(const struct side *s) {
  if (s->o->sleep_us == 0) {
    sched_yield();
  } else {
    struct timespec t = {.tv_nsec = (long)s->o->sleep_us * 1000};
    nanosleep(&t, NULL);
  }
}

double side_cpu_s(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* All slots of all lanes, touched, so that no page is first met in the middle of a phase. */
static bool make_lanes(struct side *s) {
  unsigned int most = RAIL_MAX(s->nout, 1u) + s->nin;
  size_t stride = RAIL_ROUND_UP(s->o->size, (size_t)RAIL_CACHELINE);
  size_t each = RAIL_ROUND_UP(stride * s->o->window, 4096ul);
  s->memory_size = each * most;
  if (posix_memalign((void **)&s->memory, 4096, s->memory_size) != 0)
    return side_fail(s, VERDICT_FAILED, "no memory for %zu bytes", s->memory_size);
  memset(s->memory, 0xa5, s->memory_size);
  for (unsigned int i = 0; i < s->nout + s->nin; i++) {
    struct lane *lane = i < s->nout ? &s->out[i] : &s->in[i - s->nout];
    lane->index = i < s->nout ? i : i - s->nout;
    lane->base = s->memory + i * each;
    lane->stride = stride;
  }
  return true;
}

static bool open_wire(struct side *s) {
  uint64_t deadline = rail_deadline_in_ms(OPEN_LIMIT_MS);
  for (;;) {
    rail_result_t result = s->ops->open(s);
    if (result == RAIL_OK) return true;
    if (result != RAIL_IN_PROGRESS) return side_fail(s, VERDICT_FAILED, "connecting returned %d", (int)result);
    if (side_stopped(s)) return false;
    if (rail_deadline_passed(deadline)) return side_fail(s, VERDICT_STUCK, "no connection after %d ms", OPEN_LIMIT_MS);
    sched_yield();
  }
}

void side_run(struct side *s) {
  struct outcome unused, *out = &s->shared->outcome[s->id];
  bool (*phase)(struct side *, unsigned int, double, struct outcome *) =
      s->o->latency ? pingpong_phase : transfer_phase;
  bool ok = make_lanes(s) && open_wire(s) && phase(s, 0, s->o->warmup_s, &unused) && phase(s, 1, s->o->seconds, out);
  /* What failed stays open: the process ends, and a plugin in trouble might not let go. */
  if (ok && side_meet(s)) {
    s->ops->close(s);
    free(s->memory);
  }
}
