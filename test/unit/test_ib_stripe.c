/* SPDX-License-Identifier: Apache-2.0
 * Striping by rate: who gets how much of a message, from rates and from what is outstanding; what is counted meanwhile,
 * and when QPs are lost. */
#include "plugin/ib/ib_progress.h"
#include "plugin/ib/ib_stripe.h"

#include "common/base/compiler.h"
#include "kit/kit_ensure.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_param.h"
#include "test/harness/tap.h"
#include "test/unit/ib_pair.h"

/* ---- shares --------------------------------------------------------------------- */

#define MANY IB_MAX_QPS

/* Lines until it is done, at a weight of all weights. */
static double time_of(const struct ib_stripe_claim *claim, uint64_t more) {
  return (double)(claim->outstanding + more) * IB_STRIPE_WEIGHTS / claim->weight;
}

/* What always holds. Returns the number of parts. */
static unsigned int check_shares(const struct ib_stripe_claim *claims, unsigned int n,
                                 const struct ib_stripe_limits *limits, uint64_t lines) {
  uint64_t shares[MANY], sum = 0;
  unsigned int parts = ib_stripe_shares(claims, n, limits, lines, shares), found = 0;
  double first = 0, last = 0;
  for (unsigned int i = 0; i < n; i++) {
    sum += shares[i];
    found += shares[i] != 0;
    if (!shares[i] || (int)i == limits->trial) continue;
    if (parts > 1) CHECK_MSG(shares[i] >= limits->least, "a part of %" PRIu64 " lines", shares[i]);
    double at = time_of(&claims[i], shares[i]), slack = time_of(&claims[i], n + 1) - time_of(&claims[i], 0);
    first = first > 0 ? RAIL_MIN(first, at + slack) : at + slack;
    last = RAIL_MAX(last, at - slack);
  }
  CHECK_MSG(sum == lines, "%" PRIu64 " lines of %" PRIu64, sum, lines);
  CHECK_INT(found, parts);
  CHECK(parts >= 1 && parts <= limits->most && (parts == limits->all || !(parts & (parts - 1))));
  CHECK_MSG(last <= first, "one is done at %.0f, another at %.0f", last, first);
  return parts;
}

/* Lines are rounded down, and what is left goes to the largest part. */
#define CHECK_NEAR(a, b) CHECK_MSG((a) + 3 > (b) && (a) < (b) + 4, "%" PRIu64 ", expected %d", (a), (b))

TEST(all_finish_at_the_same_time) {
  static const struct ib_stripe_limits limits = {.most = 3, .all = 3, .least = 8, .trial = -1};
  struct ib_stripe_claim claims[3] = {{0, 780}, {0, 7800}, {0, 7800}};
  uint64_t shares[3];
  CHECK_INT(ib_stripe_shares(claims, 3, &limits, 21000, shares), 3);
  CHECK_NEAR(shares[0], 1000);
  CHECK_NEAR(shares[1], 10000);
  claims[1].outstanding = 4000; /* it gets so much less */
  CHECK_INT(ib_stripe_shares(claims, 3, &limits, 17000, shares), 3);
  CHECK_NEAR(shares[0], 1000);
  CHECK_NEAR(shares[1], 6000);
  claims[1].outstanding = 1 << 20; /* none, and the message has as many parts as have a name */
  CHECK_INT(ib_stripe_shares(claims, 3, &limits, 17000, shares), 2);
  CHECK_INT(shares[1], 0);
  CHECK_NEAR(shares[0], 1545);
}

TEST(a_part_that_is_too_small_is_left_out) {
  struct ib_stripe_limits limits = {.most = 4, .all = 4, .least = 8, .trial = -1};
  static const struct ib_stripe_claim claims[4] = {{0, 5000}, {0, 10}, {0, 5000}, {0, 5000}};
  uint64_t shares[4];
  CHECK_INT(ib_stripe_shares(claims, 4, &limits, 1000, shares), 2); /* three parts have no name */
  CHECK(!shares[1] && !shares[3]);
  CHECK_INT(ib_stripe_shares(claims, 4, &limits, 1 << 20, shares), 4);
  limits.trial = 1;
  CHECK_INT(ib_stripe_shares(claims, 4, &limits, 1000, shares), 4);
  CHECK(shares[0] == 332 && shares[1] == 8 && shares[2] == 330 && shares[3] == 330);
  limits.trial_lines = 200;
  CHECK_INT(ib_stripe_shares(claims, 4, &limits, 1000, shares), 4);
  CHECK(shares[0] == 268 && shares[1] == 200 && shares[2] == 266 && shares[3] == 266);
  limits.trial_lines = 400; /* more than an equal part */
  CHECK_INT(ib_stripe_shares(claims, 4, &limits, 1000, shares), 4);
  CHECK_INT(shares[1], 250);
  limits.trial = -1;
  limits.most = 1;
  CHECK_INT(ib_stripe_shares(claims, 4, &limits, 7, shares), 1);
  CHECK_INT(shares[0], 7);
}

TEST(random_shares) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  for (int i = 0; i < 20000; i++) {
    struct ib_stripe_claim claims[MANY];
    unsigned int n = 1 + kit_rng_below(&rng, i % 10 ? 8 : MANY), weights = IB_STRIPE_WEIGHTS / n;
    bool split = kit_rng_below(&rng, 2);
    struct ib_stripe_limits limits = {.most = 1 + kit_rng_below(&rng, n), .least = 1 + kit_rng_below(&rng, 70),
                                      .trial = kit_rng_below(&rng, 4) ? -1 : (int)kit_rng_below(&rng, n)};
    limits.trial_lines = kit_rng_next(&rng) >> (kit_rng_below(&rng, 64));
    limits.all = split ? limits.most : n;
    for (unsigned int q = 0; q < n; q++)
      claims[q] = (struct ib_stripe_claim){.outstanding = kit_rng_next(&rng) >> (kit_rng_below(&rng, 40) + 24),
                                           .weight = 1 + kit_rng_below(&rng, weights)};
    (void)check_shares(claims, n, &limits, 1 + (kit_rng_next(&rng) >> (kit_rng_below(&rng, 30) + 31)));
  }
}

/* 256 messages of a TiB outstanding, and another one. */
TEST(the_largest_numbers) {
  static const struct ib_stripe_limits limits = {.most = 2, .all = 2, .least = 1, .trial = -1};
  const uint64_t most = RAIL_NET_MAX_BYTES / IB_ALIGN;
  struct ib_stripe_claim claims[2] = {{255 * most, 1}, {0, IB_STRIPE_WEIGHTS - 1}};
  CHECK_INT(check_shares(claims, 2, &limits, most), 1);
  claims[0].outstanding = 0;
  CHECK_INT(check_shares(claims, 2, &limits, most), 2);
}

/* ---- weights --------------------------------------------------------------------- */

TEST(weights_are_equal_until_rates_differ) {
  static const double near[] = {10, 11, 10.5}, apart[] = {10, 12, 11};
  uint32_t weights[3];
  CHECK(ib_stripe_weights(near, 3, true, weights));
  CHECK(weights[0] == weights[1] && weights[1] == weights[2]);
  CHECK(!ib_stripe_weights(near, 3, false, weights)); /* it takes less to stay apart than to part */
  CHECK(weights[0] < weights[2] && weights[2] < weights[1]);
  CHECK(!ib_stripe_weights(apart, 3, true, weights));
}

TEST(weights_are_in_proportion) {
  static const double rates[] = {1, 10, 10, 0}, none[] = {0, 0, 0};
  uint32_t weights[MANY];
  CHECK(!ib_stripe_weights(rates, 3, true, weights));
  CHECK(weights[0] >= 775 && weights[0] <= 785 && weights[1] >= 7795 && weights[1] <= 7805);
  CHECK(!ib_stripe_weights(rates, 4, true, weights)); /* unknown: as the others are on average */
  CHECK(weights[3] >= 4090 && weights[3] <= 4100);
  CHECK(ib_stripe_weights(none, 3, false, weights));
}

TEST(weights_fit) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  for (int i = 0; i < 2000; i++) {
    double rates[MANY];
    uint32_t weights[MANY], sum = 0;
    unsigned int n = 1 + kit_rng_below(&rng, MANY);
    for (unsigned int q = 0; q < n; q++) rates[q] = (double)(kit_rng_next(&rng) >> kit_rng_below(&rng, 64)) / 1e9;
    (void)ib_stripe_weights(rates, n, i % 2, weights);
    for (unsigned int q = 0; q < n; q++) {
      CHECK(weights[q] > 0);
      sum += weights[q];
    }
    CHECK(sum <= IB_STRIPE_WEIGHTS);
  }
}

/* ---- a connection ------------------------------------------------------------------ */

#define MESSAGE (1 << 20)
#define WINDOW 8
static uint8_t out[MESSAGE], in[WINDOW][MESSAGE];

struct side {
  struct pair pair;
  struct ib_send_comm *sc;
  struct ib_mhandle *mh_out, *mh_in;
  void *sends[WINDOW], *recvs[WINDOW];
};

static void open_side(struct side *s, const struct pair_shape *shape) {
  ib_params_load();
  pair_open(&s->pair, shape);
  s->sc = ib_send_comm_of(s->pair.sc);
  s->mh_out = pair_reg(&s->pair, s->pair.sc, out, sizeof out);
  s->mh_in = pair_reg(&s->pair, s->pair.rc, in, sizeof in);
  for (size_t i = 0; i < sizeof out; i++) out[i] = (uint8_t)(i * 7 + (i >> 8) + (i >> 16));
  memset(in, 0, sizeof in);
}

static void begin(struct side *s, int i, size_t size) {
  s->recvs[i] = pair_irecv(&s->pair, in[i], size, i, s->mh_in);
  s->sends[i] = pair_isend(&s->pair, out, size, i, s->mh_out);
  CHECK(s->recvs[i] && s->sends[i]);
}

static void finish(struct side *s, int i, size_t size) {
  CHECK_INT(pair_finish(s->sends[i], RAIL_OK), size);
  CHECK_INT(pair_finish(s->recvs[i], RAIL_OK), size);
  CHECK(memcmp(in[i], out, size) == 0);
}

static uint64_t given(const struct side *s, unsigned int qp) { return s->sc->stripe->routes[qp].assigned; }
static void check_nothing_outstanding(const struct side *s) {
  for (unsigned int i = 0; i < s->sc->stripe->nroutes; i++)
    CHECK_INT(s->sc->stripe->routes[i].assigned - s->sc->stripe->routes[i].done, 0);
}

/* From now on. */
static void set_rates(struct side *s, double a, double b, double c) {
  s->sc->stripe->routes[0].rate = a;
  s->sc->stripe->routes[1].rate = b;
  s->sc->stripe->routes[2].rate = c;
  s->sc->stripe->round_left = 0;
}

static const struct pair_shape three = {3, 3, 3, 20, 64, 0};

TEST(a_message_is_divided_by_rate) {
  struct side s;
  open_side(&s, &three);
  begin(&s, 0, MESSAGE);
  finish(&s, 0, MESSAGE);
  CHECK(s.sc->stripe->equal);
  for (unsigned int i = 0; i < 3; i++) {
    CHECK(given(&s, i) >= MESSAGE / 3 - IB_ALIGN);
    CHECK(given(&s, i) <= MESSAGE / 3 + IB_ALIGN);
  }
  uint64_t before[3] = {given(&s, 0), given(&s, 1), given(&s, 2)};
  set_rates(&s, 1, 10, 10);
  begin(&s, 1, MESSAGE);
  CHECK(!s.sc->stripe->equal);
  for (unsigned int i = 0; i < 3; i++) {
    uint64_t expected = i ? MESSAGE / 21 * 10 : MESSAGE / 21, part = given(&s, i) - before[i];
    CHECK_MSG(part > expected * 97 / 100 && part < expected * 103 / 100, "QP %u has %" PRIu64 " bytes", i, part);
  }
  finish(&s, 1, MESSAGE);
  check_nothing_outstanding(&s);
  pair_close(&s.pair);
}

/* A measurement that began before what had arrived was polled says too much. */
TEST(a_rate_does_not_jump) {
  struct side s;
  open_side(&s, &three);
  set_rates(&s, 1e-9, 1e-9, 1e-9);
  begin(&s, 0, MESSAGE);
  finish(&s, 0, MESSAGE);
  for (unsigned int i = 0; i < 3; i++) {
    CHECK(s.sc->stripe->routes[i].rate > 1.2e-9 && s.sc->stripe->routes[i].rate < 1.3e-9);
    CHECK(s.sc->stripe->routes[i].left_out == 0 && s.sc->stripe->routes[i].used_at != 0); /* none was on trial */
  }
  pair_close(&s.pair);
}

/* So slow that it has no part: after a while it is given a small one; if that was fast, another one at once. */
TEST(a_fast_trial_is_followed_by_another) {
  struct side s;
  open_side(&s, &three);
  struct ib_stripe_route *slow = &s.sc->stripe->routes[0];
  for (int i = 0; i < 2; i++) {
    uint64_t before = given(&s, 0);
    set_rates(&s, 1e-9, 10, 10);
    if (i == 0) slow->left_out = 1000;
    begin(&s, i, MESSAGE);
    CHECK_INT(given(&s, 0) - before, s.sc->stripe->least * IB_ALIGN);
    CHECK(slow->on_trial);
    finish(&s, i, MESSAGE);
    CHECK(!slow->on_trial && slow->left_out > 0 && slow->used_at == 0);
  }
  pair_close(&s.pair);
}

/* What a route is given on trial, of a message of 1 MiB; 0: no trial. */
static uint64_t trial_of(double own, double others) {
  struct side s;
  open_side(&s, &three);
  struct ib_stripe_route *route = &s.sc->stripe->routes[0];
  set_rates(&s, own, others, others * 2); /* not equal */
  route->left_out = 1000;
  if (own <= 0) ib_stripe_update_live(s.sc); /* it has come back */
  s.sc->stripe->round_left = 0;
  begin(&s, 0, MESSAGE);
  uint64_t bytes = given(&s, 0);
  if (!route->on_trial) {
    CHECK_MSG(bytes > MESSAGE / 4 && bytes < MESSAGE / 2, "%" PRIu64 " bytes", bytes);
    bytes = 0;
  }
  finish(&s, 0, MESSAGE);
  pair_close(&s.pair);
  return bytes;
}

/* What the others carry in 20 us, and it itself in 1 ms. */
TEST(a_trial_measures_more_than_latency) {
  uint64_t bytes = trial_of(1, 4);
  CHECK_MSG(bytes > 119000 && bytes <= 120000, "%" PRIu64 " bytes", bytes);
  CHECK_INT(trial_of(1, 40), MESSAGE / IB_ALIGN / 3 * IB_ALIGN); /* at most an equal part */
  bytes = trial_of(0.05, 4);
  CHECK_MSG(bytes > 49000 && bytes <= 50000, "%" PRIu64 " bytes", bytes);
}

/* One that has come back: rounds without it were counted meanwhile, but its rate is not known. */
TEST(a_route_that_has_come_back_has_a_part_by_the_mean) { CHECK_INT(trial_of(0, 10), 0); }

/* Two faster routes are all that a message has parts for: after four rounds the route without a rate has a trial. */
TEST(a_route_without_a_rate_is_measured) {
  struct side s;
  open_side(&s, &(struct pair_shape){4, 4, 2, 20, 64, 0});
  struct ib_stripe_route *unknown = &s.sc->stripe->routes[3];
  for (int i = 0; i < 6 && !given(&s, 3); i++) {
    set_rates(&s, 10, 10, 1);
    s.sc->stripe->routes[2].left_out = 0; /* its turn has not come */
    CHECK(unknown->rate <= 0 && i < 5);
    begin(&s, i, MESSAGE);
    CHECK_INT(given(&s, 2), 0);
    if (given(&s, 3)) CHECK(unknown->on_trial);
    finish(&s, i, MESSAGE);
  }
  CHECK_INT(given(&s, 3), (uint64_t)(7 * 20000) / IB_ALIGN * IB_ALIGN); /* the mean of the others, for 20 us */
  CHECK(unknown->rate > 0 && !unknown->on_trial);
  pair_close(&s.pair);
}

/* From its first part on: it has no rate, and is found by that of the others. */
TEST(a_route_that_stands_still_from_the_start) {
  struct side s;
  open_side(&s, &three);
  set_rates(&s, 0, 10, 10);
  s.sc->stripe->routes[0].ends_at = UINT64_MAX - 1; /* as if a byte had been outstanding since 1970 */
  s.sc->stripe->routes[0].began = 1;
  s.sc->stripe->routes[0].bytes = 1;
  begin(&s, 0, MESSAGE);
  CHECK_INT(given(&s, 0), 0);
  finish(&s, 0, MESSAGE);
  pair_close(&s.pair);
}

/* QPs that connect the same rails share a route, unless each message goes over all of them. */
TEST(routes_are_pairs_of_rails) {
  static const struct { unsigned int remote_rails, nqps, per_message, routes; } rows[] = {
    {3, 3, 3, 3}, {3, 12, 3, 3}, {3, 12, 12, 12}, {1, 6, 3, 3}, {2, 12, 3, 6}, {2, 3, 3, 3}};
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) {
    struct side s;
    open_side(&s, &(struct pair_shape){3, rows[i].nqps, rows[i].per_message, 20, 64, 0});
    s.sc->base.nremote_rails = rows[i].remote_rails;
    CHECK(ib_send_comm_start(&s.sc->base, ib_progress));
    CHECK_INT(s.sc->stripe->nroutes, rows[i].routes);
    pair_close(&s.pair);
  }
}

/* A message with one part: in turn, but not to one that has much to do, or is slow. */
TEST(a_small_message_takes_what_is_free) {
  struct side s;
  open_side(&s, &three);
  for (int i = 0; i < 3; i++) begin(&s, i, 4096);
  for (unsigned int i = 0; i < 3; i++) CHECK_INT(given(&s, i), 4096);
  s.sc->stripe->routes[0].assigned += 100000; /* as if it had a large part */
  for (int i = 3; i < 6; i++) begin(&s, i, 4096);
  CHECK_INT(given(&s, 0), 104096);
  s.sc->stripe->routes[0].assigned -= 100000;
  for (int i = 0; i < 6; i++) finish(&s, i, 4096);
  check_nothing_outstanding(&s);
  pair_close(&s.pair);
}

/* Those that wait for room in a send queue go to what is left, and the lost QP's counts begin anew. */
TEST(what_waits_moves_to_the_queue_pairs_that_are_up) {
  static const struct pair_shape short_queues = {3, 3, 3, 17, 2, 0};
  struct side s;
  struct ib_send *send;
  open_side(&s, &short_queues);
  CHECK_OK(ib_failover_init(&s.sc->base));
  set_rates(&s, 3, 2, 1);
  for (int i = 0; i < WINDOW; i++) begin(&s, i, MESSAGE);
  CHECK(!STAILQ_EMPTY(&s.sc->unposted));
  s.sc->base.failover->qps[0].state = IB_FAILOVER_AWAIT_FLUSH;
  ib_send_update_live(s.sc);
  unsigned int waiting = 0;
  STAILQ_FOREACH(send, &s.sc->unposted, link)
    for (unsigned int i = send->next_part; i < send->nparts; i++, waiting++) CHECK(send->shares[i].qp != 0);
  CHECK(waiting > 3);
  send = STAILQ_FIRST(&s.sc->unposted);
  if (send->cursor.qp == 0) send->cursor.body_posted = IB_BETWEEN_PARTS; /* it begins anew, over another */
  for (int i = 0; i < WINDOW; i++) finish(&s, i, MESSAGE);
  CHECK(s.sc->stripe->routes[0].rate <= 0);
  check_nothing_outstanding(&s);
  pair_close(&s.pair);
}

/* What the receiver says it has of it counts as completed, much later: that time is the loss's. */
TEST(a_loss_is_no_measurement) {
  struct side s;
  open_side(&s, &three);
  CHECK_OK(ib_failover_init(&s.sc->base));
  set_rates(&s, 1, 1, 1);
  begin(&s, 0, MESSAGE);
  CHECK(s.sc->stripe->routes[0].ends_at != UINT64_MAX);
  s.sc->base.failover->qps[0].state = IB_FAILOVER_AWAIT_FLUSH;
  ib_send_update_live(s.sc);
  struct ib_qp *lost = &s.sc->base.qps[0];
  struct ib_posted done[IB_SEND_DEPTH];
  unsigned int ndone;
  CHECK_INT(ib_posted_split(lost, atomic_load(&lost->tails), done, &ndone), 0);
  ib_send_reconcile(s.sc, lost, done, ndone);
  lost->ignore_completions = true;
  CHECK(s.sc->stripe->routes[0].rate <= 0);
  finish(&s, 0, MESSAGE);
  check_nothing_outstanding(&s);
  pair_close(&s.pair);
}

/* One rail, or if so asked: nothing of all this. */
TEST(not_without_rails_and_not_unasked) {
  struct side s;
  open_side(&s, &(struct pair_shape){1, 4, 4, 20, 64, 0});
  CHECK(!s.sc->stripe);
  pair_close(&s.pair);
  setenv("RAIL_IB_STRIPING", "equal", 1);
  open_side(&s, &three);
  CHECK(!s.sc->stripe);
  begin(&s, 0, MESSAGE);
  finish(&s, 0, MESSAGE);
  pair_close(&s.pair);
  unsetenv("RAIL_IB_STRIPING");
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(all_finish_at_the_same_time), TEST_CASE(a_part_that_is_too_small_is_left_out), TEST_CASE(random_shares),
    TEST_CASE(the_largest_numbers), TEST_CASE(weights_are_equal_until_rates_differ),
    TEST_CASE(weights_are_in_proportion), TEST_CASE(weights_fit), TEST_CASE(a_message_is_divided_by_rate),
    TEST_CASE(a_rate_does_not_jump), TEST_CASE(a_fast_trial_is_followed_by_another),
    TEST_CASE(a_trial_measures_more_than_latency), TEST_CASE(a_route_that_has_come_back_has_a_part_by_the_mean),
    TEST_CASE(a_route_without_a_rate_is_measured),
    TEST_CASE(a_route_that_stands_still_from_the_start), TEST_CASE(routes_are_pairs_of_rails),
    TEST_CASE(a_small_message_takes_what_is_free), TEST_CASE(what_waits_moves_to_the_queue_pairs_that_are_up),
    TEST_CASE(a_loss_is_no_measurement), TEST_CASE(not_without_rails_and_not_unasked)};
  ib_emu_use("device emu0 ports=4");
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
