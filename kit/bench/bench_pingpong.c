/* SPDX-License-Identifier: Apache-2.0
 *
 * One message at a time to and fro, over one connection each way. Receives
 * are posted ahead, as NCCL's proxy does; the answer leaves before the next
 * receive is posted.
 *
 * A phase is a few batches. Before each the first side tells the other how
 * many round trips it has, so that nothing but messages passes between them
 * while times are taken; 0 ends the phase.
 */
#include "common/base/clock.h"
#include "kit/bench/bench_side.h"

#define MOST_TRIPS (1u << 20)
#define BATCHES 4 /* at least, once it is known how long a round trip takes */

/* Until `n` messages have come in; sends are driven meanwhile. */
static void await(struct kit_bench_side *s, uint64_t n, uint64_t since) {
  kit_bench_note_time(s, since);
  for (unsigned int passes = 1;; passes++) {
    bool progress = kit_bench_test_in(s, &s->in[0]);
    if (s->in[0].done >= n) return;
    progress |= kit_bench_pass_out(s, &s->out[0]);
    if ((passes & 1023) == 0) kit_bench_patient(s, rail_now_ns(), since);
    if (!progress) kit_bench_idle(s);
  }
}

/* The message may wait for room: it leaves in await() then. */
static void send_next(struct kit_bench_side *s) {
  s->out[0].limit++;
  kit_bench_pass_out(s, &s->out[0]);
}

/* Every send done, so that the next batch or the close finds nothing in flight. */
static void drain(struct kit_bench_side *s) {
  uint64_t since = rail_now_ns();
  kit_bench_note_time(s, since);
  while (s->out[0].done < s->out[0].limit) {
    if (kit_bench_pass_out(s, &s->out[0])) continue;
    kit_bench_patient(s, rail_now_ns(), since);
    kit_bench_idle(s);
  }
}

static void begin(struct kit_bench_side *s, uint64_t trips) {
  kit_bench_note_time(s, rail_now_ns());
  s->out[0].limit = s->out[0].done;
  s->in[0].limit = s->in[0].done + trips;
  kit_bench_post_in(s, &s->in[0]);
  kit_meet(s->kit);
}

static void serve(struct kit_bench_side *s, uint64_t trips) {
  uint64_t had = s->in[0].done;
  begin(s, trips);
  for (uint64_t i = 0; i < trips; i++) {
    uint64_t start = rail_now_ns();
    send_next(s);
    await(s, had + i + 1, start);
    uint64_t ns = rail_now_ns() - start;
    if (i > 0 || trips == 1) kit_bench_sample(&s->samples, ns); /* the first follows a pause */
    kit_bench_post_in(s, &s->in[0]);
  }
  drain(s);
}

static void answer(struct kit_bench_side *s, uint64_t trips) {
  uint64_t had = s->in[0].done;
  begin(s, trips);
  for (uint64_t i = 0; i < trips; i++) {
    await(s, had + i + 1, rail_now_ns());
    send_next(s);
    kit_bench_post_in(s, &s->in[0]);
  }
  drain(s);
}

static uint64_t next_batch(const struct kit_bench_side *s, double seconds, double left) {
  if (left <= 0) return 0;
  if (s->round_trip_s <= 0) return 1;
  double trips = RAIL_MIN(left, seconds / BATCHES) / s->round_trip_s;
  return trips < 1 ? 1 : trips > MOST_TRIPS ? MOST_TRIPS : (uint64_t)trips;
}

/* Returns the seconds that the batches took. */
static double lead(struct kit_bench_side *s, double seconds) {
  double spent = 0;
  for (;;) {
    uint64_t trips = next_batch(s, seconds, seconds - spent);
    kit_put(s->kit, 1, &trips, sizeof trips);
    if (trips == 0) return spent;
    uint64_t start = rail_now_ns();
    serve(s, trips);
    double took = (double)(rail_now_ns() - start) / 1e9;
    /* Beginning and ending a batch takes longer than a round trip: one alone says nothing. */
    s->round_trip_s = trips < 16 ? took / (double)(4 * trips) : took / (double)trips;
    spent += took;
  }
}

static double follow(struct kit_bench_side *s) {
  double spent = 0;
  for (;;) {
    uint64_t trips;
    kit_get(s->kit, 0, &trips, sizeof trips);
    if (trips == 0) return spent;
    uint64_t start = rail_now_ns();
    answer(s, trips);
    spent += (double)(rail_now_ns() - start) / 1e9;
  }
}

void kit_bench_pingpong(struct kit_bench_side *s, double seconds, struct kit_bench_record *out) {
  uint64_t before = s->in[0].done;
  s->samples.n = 0;
  struct kit_bench_usage used = kit_bench_usage_now(&s->counters);
  out->seconds = s->rank == 0 ? lead(s, seconds) : follow(s);
  out->used = kit_bench_usage_since(&s->counters, &used);
  out->messages = s->in[0].done - before;
  if (s->rank == 0) kit_bench_samples_sum_up(&s->samples, 2, out);
}
