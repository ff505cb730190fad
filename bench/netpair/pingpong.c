/* SPDX-License-Identifier: Apache-2.0
 *
 * One message at a time to and fro, over one connection each way. Receives
 * are posted ahead, as NCCL's proxy does; the answer leaves before the next
 * receive is posted.
 */
#include <stdlib.h>

#include "bench/netpair/side.h"
#include "common/clock.h"

#define MOST_SAMPLES (4u << 20) /* later round trips of a phase are not recorded */

struct samples {
  uint32_t *ns;
  size_t n;
};

/* Until `n` messages have come in; sends are driven meanwhile. */
static bool await(struct side *s, uint64_t n, uint64_t since) {
  for (unsigned int passes = 1;; passes++) {
    bool progress = false;
    if (!lane_test_in(s, &s->in[0], &progress)) return false;
    if (s->in[0].done >= n) return true;
    if (!lane_pass_out(s, &s->out[0], &progress)) return false;
    if ((passes & 1023) == 0 && !side_patient(s, since)) return false;
    if (!progress) side_idle(s);
  }
}

/* The message may wait for room: it leaves in await() then. */
static bool send_next(struct side *s) {
  bool progress;
  s->out[0].limit++;
  return lane_pass_out(s, &s->out[0], &progress);
}

static bool post_ahead(struct side *s, unsigned int phase) {
  bool progress;
  s->in[0].limit = atomic_load(&s->shared->last[phase]);
  return lane_post_in(s, &s->in[0], &progress);
}

/* Every send done, so that the next phase or the close finds nothing in flight. */
static bool drain(struct side *s) {
  uint64_t since = rail_now_ns();
  while (s->out[0].done < s->out[0].limit) {
    bool progress = false;
    if (!lane_pass_out(s, &s->out[0], &progress) || !side_patient(s, since)) return false;
    if (!progress) side_idle(s);
  }
  return true;
}

static int compare(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

static void sum_up(const struct samples *samples, struct outcome *out) {
  static const unsigned int rank[] = {0, 50, 90, 99};
  if (samples->n == 0) return;
  qsort(samples->ns, samples->n, sizeof *samples->ns, compare);
  for (unsigned int i = 0; i < RAIL_COUNT_OF(rank); i++) {
    size_t at = (samples->n - 1) * rank[i] / 100;
    out->half_us[i] = (double)samples->ns[at] / 2e3;
  }
}

/* The last ping is the one whose receive is already posted at the other side: see post_ahead. */
static bool serve(struct side *s, unsigned int phase, uint64_t until, struct samples *samples) {
  uint64_t last = UINT64_MAX;
  for (uint64_t n = s->in[0].done; n < last; n++) {
    uint64_t start = rail_now_ns();
    if (last == UINT64_MAX && start >= until) {
      last = n + s->o->window;
      atomic_store(&s->shared->last[phase], last);
      s->in[0].limit = last;
    }
    if (!send_next(s) || !await(s, n + 1, start)) return false;
    uint64_t ns = rail_now_ns() - start;
    if (samples->n < MOST_SAMPLES) samples->ns[samples->n++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
    if (!post_ahead(s, phase)) return false;
  }
  return true;
}

static bool answer(struct side *s, unsigned int phase) {
  for (uint64_t n = s->in[0].done; n < atomic_load(&s->shared->last[phase]); n++)
    if (!await(s, n + 1, rail_now_ns()) || !send_next(s) || !post_ahead(s, phase)) return false;
  return true;
}

bool pingpong_phase(struct side *s, unsigned int phase, double seconds, struct outcome *out) {
  struct samples samples = {.ns = malloc(MOST_SAMPLES * sizeof *samples.ns)};
  if (!samples.ns) return side_fail(s, VERDICT_FAILED, "out of memory");
  s->out[0].limit = s->out[0].done;
  bool ok = post_ahead(s, phase) && side_meet(s);
  uint64_t before = s->in[0].done;
  out->start = rail_now_ns();
  out->cpu_s = side_cpu_s();
  if (ok && s->id == 0)
    ok = serve(s, phase, out->start + (uint64_t)(seconds * 1e9), &samples);
  else if (ok)
    ok = answer(s, phase);
  ok = ok && drain(s);
  out->end = rail_now_ns();
  out->cpu_s = side_cpu_s() - out->cpu_s;
  out->messages = s->in[0].done - before;
  if (ok) sum_up(&samples, out);
  free(samples.ns);
  return ok;
}
