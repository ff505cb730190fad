/* SPDX-License-Identifier: Apache-2.0
 *
 * One-way transfers over all lanes. A phase begins and ends with nothing in
 * flight, so that its bytes over its time are exact whatever the size.
 *
 * When its time is up a side posts nothing new and tells each neighbour how
 * far it has posted on every lane between them; both go on to the greater of
 * the two, so that every send meets a receive.
 */
#include "common/base/clock.h"
#include "kit/bench/bench_side.h"

enum stage { POSTING, STOPPING, DRAINING };

/* What one neighbour tells the other. */
struct posted {
  uint64_t out[KIT_BENCH_COMMS], in[KIT_BENCH_COMMS]; /* as the teller sees them */
};

struct phase {
  enum stage stage;
  uint64_t until, moved; /* when posting ends; when something last moved */
  bool heard[KIT_MAX_SIDES];
};

static bool is_neighbour(const struct kit_bench_side *s, int rank) {
  return kit_bench_edge(&s->cell, s->rank, rank) || kit_bench_edge(&s->cell, rank, s->rank);
}

static void stop_posting(struct kit_bench_side *s, struct phase *p) {
  struct posted mine[KIT_MAX_SIDES] = {0};
  for (unsigned int i = 0; i < s->nout; i++)
    mine[s->out[i].peer].out[s->out[i].number] = s->out[i].limit = s->out[i].posted;
  for (unsigned int i = 0; i < s->nin; i++)
    mine[s->in[i].peer].in[s->in[i].number] = s->in[i].limit = s->in[i].posted;
  for (int r = 0; r < (int)s->cell.sides; r++)
    if (is_neighbour(s, r)) kit_put(s->kit, r, &mine[r], sizeof mine[r]);
  p->stage = STOPPING;
}

static void raise_limits(struct kit_bench_side *s, unsigned int rank, const struct posted *theirs) {
  for (unsigned int i = 0; i < s->nout; i++) {
    struct kit_bench_lane *lane = &s->out[i];
    if (lane->peer == rank) lane->limit = RAIL_MAX(lane->limit, theirs->in[lane->number]);
  }
  for (unsigned int i = 0; i < s->nin; i++) {
    struct kit_bench_lane *lane = &s->in[i];
    if (lane->peer == rank) lane->limit = RAIL_MAX(lane->limit, theirs->out[lane->number]);
  }
  /* A receive takes a whole group, so both ends go on to the end of one. */
  for (unsigned int i = 0; i < s->nout; i++)
    if (s->out[i].peer == rank) s->out[i].limit = RAIL_ROUND_UP(s->out[i].limit, s->cell.group);
  for (unsigned int i = 0; i < s->nin; i++)
    if (s->in[i].peer == rank) s->in[i].limit = RAIL_ROUND_UP(s->in[i].limit, s->cell.group);
}

static void hear_neighbours(struct kit_bench_side *s, struct phase *p) {
  struct posted theirs;
  bool all = true;
  for (int r = 0; r < (int)s->cell.sides; r++) {
    if (p->heard[r] || !is_neighbour(s, r)) continue;
    if (kit_heard(s->kit, r, sizeof theirs)) {
      kit_get(s->kit, r, &theirs, sizeof theirs);
      raise_limits(s, (unsigned int)r, &theirs);
      p->heard[r] = true;
    }
    all = all && p->heard[r];
  }
  if (all) p->stage = DRAINING;
}

static void look(struct kit_bench_side *s, struct phase *p, bool progress) {
  uint64_t now = rail_now_ns();
  if (progress) p->moved = now;
  if (p->stage == POSTING && now >= p->until) stop_posting(s, p);
  if (p->stage == STOPPING) hear_neighbours(s, p);
  kit_bench_patient(s, now, p->moved);
}

static uint64_t messages_in(const struct kit_bench_side *s) {
  uint64_t sum = 0;
  for (unsigned int i = 0; i < s->nin; i++) sum += s->in[i].done;
  return sum;
}

static void begin(struct kit_bench_side *s) {
  s->samples.n = 0;
  for (unsigned int i = 0; i < s->nout; i++) s->out[i].limit = UINT64_MAX;
  for (unsigned int i = 0; i < s->nin; i++) {
    s->in[i].limit = UINT64_MAX;
    s->in[i].arrived_ns = 0;
  }
  kit_meet(s->kit);
}

void kit_bench_transfer(struct kit_bench_side *s, double seconds, struct kit_bench_record *out) {
  const unsigned int mask = s->cell.size < KIT_BENCH_SMALL ? KIT_BENCH_LOOK_MASK : 0;
  unsigned int passes = 0;
  bool moved = false; /* since the last look */
  begin(s);
  uint64_t before = messages_in(s), start = rail_now_ns();
  kit_bench_note_time(s, start);
  struct kit_bench_usage used = kit_bench_usage_now(&s->counters);
  struct phase p = {.until = start + (uint64_t)(seconds * 1e9), .moved = start};
  while (p.stage != DRAINING || !kit_bench_all_done(s)) {
    bool progress = kit_bench_pass(s);
    moved |= progress;
    if (!progress || (++passes & mask) == 0) {
      look(s, &p, moved);
      moved = false;
    }
    if (!progress) kit_bench_idle(s);
  }
  out->seconds = (double)(rail_now_ns() - start) / 1e9;
  out->used = kit_bench_usage_since(&s->counters, &used);
  out->messages = messages_in(s) - before;
  if (s->cell.kind == KIT_BENCH_JITTER) kit_bench_samples_sum_up(&s->samples, 1, out);
}
