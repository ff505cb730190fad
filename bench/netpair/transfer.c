/* SPDX-License-Identifier: Apache-2.0
 *
 * One-way transfers over all lanes. A phase begins and ends with nothing in
 * flight, so that its bytes over its time are exact whatever the size.
 */
#include "bench/netpair/side.h"
#include "common/clock.h"

#define LOOK_MASK_SMALL 31u /* small messages: how many passes between two looks at the clock */
#define SMALL ((size_t)64 << 10)

enum stage { POSTING, STOPPING, DRAINING };

struct phase {
  unsigned int number;
  enum stage stage;
  uint64_t until, moved; /* when posting ends; when something last moved */
};

static struct lane *lanes_of(struct side *s, unsigned int *n) {
  *n = s->id == 0 ? s->nout : s->nin;
  return s->id == 0 ? s->out : s->in;
}

static bool pass(struct side *s, bool *progress) {
  for (unsigned int i = 0; i < s->nout; i++)
    if (!lane_pass_out(s, &s->out[i], progress)) return false;
  for (unsigned int i = 0; i < s->nin; i++)
    if (!lane_pass_in(s, &s->in[i], progress)) return false;
  return true;
}

/* Time is up: both say how much they have posted, and both go on to the
 * greater of the two, so that every send meets a receive. */
static void stop_posting(struct side *s, struct phase *p) {
  unsigned int n;
  struct lane *lanes = lanes_of(s, &n);
  for (unsigned int i = 0; i < n; i++) lanes[i].limit = s->shared->posted[s->id][i] = lanes[i].posted;
  atomic_store(&s->shared->stopped[s->id], (int)p->number + 1);
  p->stage = STOPPING;
}

static void settle_limits(struct side *s, struct phase *p) {
  unsigned int n;
  struct lane *lanes = lanes_of(s, &n);
  if (atomic_load(&s->shared->stopped[1 - s->id]) <= (int)p->number) return;
  for (unsigned int i = 0; i < n; i++) lanes[i].limit = RAIL_MAX(s->shared->posted[0][i], s->shared->posted[1][i]);
  p->stage = DRAINING;
}

static bool look(struct side *s, struct phase *p, bool progress) {
  uint64_t now = rail_now_ns();
  if (progress) p->moved = now;
  if (p->stage == POSTING && now >= p->until) stop_posting(s, p);
  if (p->stage == STOPPING) settle_limits(s, p);
  return side_patient(s, p->moved);
}

static bool all_done(struct side *s) {
  unsigned int n;
  struct lane *lanes = lanes_of(s, &n);
  for (unsigned int i = 0; i < n; i++)
    if (lanes[i].done < lanes[i].limit) return false;
  return true;
}

static uint64_t messages_done(struct side *s) {
  unsigned int n;
  uint64_t sum = 0;
  struct lane *lanes = lanes_of(s, &n);
  for (unsigned int i = 0; i < n; i++) sum += lanes[i].done;
  return sum;
}

static void begin(struct side *s, struct phase *p, unsigned int number, double seconds, struct outcome *out) {
  unsigned int n;
  struct lane *lanes = lanes_of(s, &n);
  for (unsigned int i = 0; i < n; i++) lanes[i].limit = UINT64_MAX;
  out->messages = messages_done(s);
  out->cpu_s = side_cpu_s();
  out->start = rail_now_ns();
  *p = (struct phase){.number = number, .until = out->start + (uint64_t)(seconds * 1e9), .moved = out->start};
}

bool transfer_phase(struct side *s, unsigned int number, double seconds, struct outcome *out) {
  unsigned int passes = 0, mask = s->o->size < SMALL ? LOOK_MASK_SMALL : 0;
  bool moved = false; /* since the last look */
  struct phase p;
  if (!side_meet(s)) return false;
  begin(s, &p, number, seconds, out);
  while (p.stage != DRAINING || !all_done(s)) {
    bool progress = false;
    if (!pass(s, &progress)) return false;
    moved |= progress;
    if (!progress || (++passes & mask) == 0) {
      if (!look(s, &p, moved)) return false;
      moved = false;
    }
    if (!progress) side_idle(s);
  }
  out->end = rail_now_ns();
  out->cpu_s = side_cpu_s() - out->cpu_s;
  out->messages = messages_done(s) - out->messages;
  return true;
}
