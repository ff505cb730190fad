/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections made and closed again. A batch is all lanes of the cell: the
 * handles are handed over first, then all sides meet, and from there on until
 * its last connection is there a side's time counts. So what carries the
 * handles is not in it. The first batch is not counted: it starts what a
 * plugin starts once.
 */
#include <time.h>

#include "common/base/clock.h"
#include "kit/bench/bench_side.h"

#define SETTLE_MS 1000 /* closing may go on behind the caller's back for so long */

struct totals {
  double opening_s, closing_s;
  uint64_t connections, closed;
};

static void batch(struct kit_bench_side *s, struct totals *t) {
  kit_bench_listen_all(s);
  kit_meet(s->kit);
  uint64_t start = rail_now_ns();
  kit_bench_join_all(s);
  uint64_t open = rail_now_ns();
  for (unsigned int i = 0; i < s->nout; i++) kit_bench_sample(&s->samples, s->out[i].opened_ns - start);
  kit_meet(s->kit); /* a connection is closed when both ends have it */
  uint64_t closing = rail_now_ns();
  kit_bench_close_all(s);
  t->closing_s += (double)(rail_now_ns() - closing) / 1e9;
  t->opening_s += (double)(open - start) / 1e9;
  t->connections += s->nout;
  t->closed += s->nout + s->nin;
}

/* The first side decides for all. */
static bool go_on(struct kit_bench_side *s, bool wanted) {
  uint8_t word = wanted;
  if (s->rank != 0) {
    kit_get(s->kit, 0, &word, sizeof word);
    return word != 0;
  }
  for (int r = 1; r < (int)s->cell.sides; r++) kit_put(s->kit, r, &word, sizeof word);
  return wanted;
}

/* What there is more than there was before. */
static int left(int (*count)(void), int before) {
  uint64_t deadline = rail_deadline_in_ms(SETTLE_MS);
  while (count() > before && !rail_deadline_passed(deadline)) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
  return RAIL_MAX(count() - before, 0);
}

void kit_bench_connects(struct kit_bench_side *s, double seconds, struct kit_bench_record *out) {
  struct totals t = {0};
  batch(s, &t);
  kit_meet(s->kit);
  int fds = kit_fd_count(), threads = kit_thread_count();
  struct kit_bench_usage used = kit_bench_usage_now(&s->counters);
  uint64_t until = rail_now_ns() + (uint64_t)(seconds * 1e9), made = 0;
  uint64_t edges = 0;
  for (int a = 0; a < (int)s->cell.sides; a++)
    for (int b = 0; b < (int)s->cell.sides; b++) edges += kit_bench_edge(&s->cell, a, b);
  t = (struct totals){0};
  s->samples.n = 0;
  while (go_on(s, s->connects ? made < s->connects : rail_now_ns() < until)) {
    batch(s, &t);
    made += edges * s->cell.comms;
  }
  out->used = kit_bench_usage_since(&s->counters, &used);
  out->seconds = t.opening_s;
  out->messages = t.connections;
  out->close_us = t.closed ? t.closing_s / (double)t.closed * 1e6 : 0;
  kit_bench_samples_sum_up(&s->samples, 1, out);
  kit_meet(s->kit);
  out->fds_left = left(kit_fd_count, fds);
  out->threads_left = left(kit_thread_count, threads);
}
