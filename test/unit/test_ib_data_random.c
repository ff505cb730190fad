/* SPDX-License-Identifier: Apache-2.0
 *
 * Random traffic over the ib plugin's data path: groups of random tags, sends
 * that come before their buffers, tests in any order, over every shape of
 * connection. Each message's bytes and what lies around its buffer are checked.
 * RAIL_TEST_SEED repeats.
 */
#include "kit/kit_ensure.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_progress.h"
#include "plugin/ib/ib_stripe.h"
#include "test/unit/ib_pair.h"

#define TAGS 5
#define SLOT (96 * 1024) /* one buffer and the guard behind it */
#define MOST (80 * 1024)
#define GUARD 0xee

struct group { void *request; int n; int tags[8]; uint32_t number[8]; size_t capacity[8]; };
struct sent { void *request; size_t size; };

static struct {
  struct pair pair;
  struct kit_rng rng;
  uint8_t *out, *in; /* out: a slot per send; in: a slot per buffer */
  struct ib_mhandle *mh_out, *mh_in;
  struct group groups[IB_MAX_RECVS];
  struct sent sends[IB_MAX_SENDS];
  uint32_t posted[TAGS], begun[TAGS]; /* buffers, and sends, of each tag */
  unsigned int finished;
} w;

static uint32_t below(uint32_t n) { return kit_rng_below(&w.rng, n); }

/* Size and bytes of the k-th message of a tag: both sides know. */
static uint64_t mix(int tag, uint32_t k) { return ((uint64_t)tag << 32 | k) * 0x9e3779b97f4a7c15u >> 13; }
static size_t size_of(int tag, uint32_t k) {
  static const size_t most[] = {1, 9, 129, 300, 5000, 20000, MOST, 2};
  uint64_t x = mix(tag, k);
  return (size_t)(x >> 3) % most[x & 7];
}
static uint8_t byte_of(int tag, uint32_t k, size_t i) { return (uint8_t)(mix(tag, k) + i * 7 + (i >> 8)); }

static void post_group(void) {
  void *data[8], *mhs[8];
  size_t at = ib_recv_comm_of(w.pair.rc)->next_seq % IB_MAX_RECVS;
  struct group *g = &w.groups[at];
  if (g->request) return;
  g->n = below(2) ? 1 : 1 + (int)below(8);
  for (int i = 0; i < g->n; i++) {
    uint8_t *slot = w.in + (at * 8 + (size_t)i) * SLOT;
    g->tags[i] = (int)below(TAGS);
    g->number[i] = w.posted[g->tags[i]]++;
    g->capacity[i] = size_of(g->tags[i], g->number[i]) + (below(2) ? 0 : below(1000));
    memset(slot, GUARD, g->capacity[i] + 64);
    data[i] = slot;
    mhs[i] = w.mh_in;
  }
  CHECK_OK(ib_irecv(w.pair.rc, g->n, data, g->capacity, g->tags, mhs, NULL, &g->request));
  if (!g->request) /* no room: the same again later, as far as this test is concerned another */
    for (int i = 0; i < g->n; i++) w.posted[g->tags[i]]--;
}

/* A few may be sent ahead of their buffers: they are "not now". */
static void begin_send(void) {
  int tag = (int)below(TAGS);
  unsigned int slot = below(IB_MAX_SENDS);
  struct sent *s = &w.sends[slot];
  uint32_t k = w.begun[tag];
  uint8_t *data = w.out + (size_t)slot * SLOT;
  if (s->request || k > w.posted[tag]) return;
  s->size = size_of(tag, k);
  for (size_t i = 0; i < s->size; i++) data[i] = byte_of(tag, k, i);
  CHECK_OK(ib_isend(w.pair.sc, data, s->size, tag, w.mh_out, NULL, &s->request));
  if (s->request) w.begun[tag]++;
}

static void test_send(void) {
  unsigned int slot = below(IB_MAX_SENDS);
  struct sent *s = &w.sends[slot];
  int done = 0, size = -1;
  if (!s->request) return;
  CHECK_OK(ib_test(s->request, &done, &size));
  if (!done) return;
  CHECK_INT(size, s->size);
  memset(w.out + (size_t)slot * SLOT, 0x11, s->size); /* the caller's again: what is not read yet is lost */
  s->request = NULL;
}

static void check_buffer(const struct group *g, int i, size_t size) {
  const uint8_t *slot = w.in + ((size_t)(g - w.groups) * 8 + (size_t)i) * SLOT;
  int tag = g->tags[i];
  uint32_t k = g->number[i];
  CHECK_MSG(size == size_of(tag, k), "message %u of tag %d has %zu bytes, expected %zu", k, tag, size, size_of(tag, k));
  for (size_t b = 0; b < size; b++)
    CHECK_MSG(slot[b] == byte_of(tag, k, b), "message %u of tag %d, %zu bytes: byte %zu is wrong", k, tag, size, b);
  for (size_t b = size; b < g->capacity[i] + 64; b++)
    CHECK_MSG(slot[b] == GUARD, "message %u of tag %d, %zu bytes: byte %zu behind it was written", k, tag, size, b);
}

static void test_group(void) {
  struct group *g = &w.groups[below(IB_MAX_RECVS)];
  int done = 0, sizes[8] = {0};
  if (!g->request) return;
  CHECK_OK(ib_test(g->request, &done, sizes));
  if (!done) return;
  for (int i = 0; i < g->n; i++) check_buffer(g, i, (size_t)sizes[i]);
  g->request = NULL;
  w.finished += (unsigned int)g->n;
}

/* Another QP is fast, or slow, from the next message on. */
static void change_a_rate(void) {
  struct ib_stripe *stripe = ib_send_comm_of(w.pair.sc)->stripe;
  stripe->routes[below(stripe->nroutes)].rate = 1.0 / (double)(1 + below(10) * below(200));
  stripe->round_left = 0;
}

static bool rates_change;

static void run(const struct pair_shape *shape, unsigned int messages, const char *script) {
  memset(&w, 0, sizeof w);
  kit_rng_start(&w.rng);
  pair_open(&w.pair, shape);
  emu_do(script);
  w.out = malloc((size_t)IB_MAX_SENDS * SLOT);
  w.in = malloc((size_t)IB_MAX_SENDS * SLOT);
  CHECK(w.out && w.in);
  w.mh_out = pair_reg(&w.pair, w.pair.sc, w.out, (size_t)IB_MAX_SENDS * SLOT);
  w.mh_in = pair_reg(&w.pair, w.pair.rc, w.in, (size_t)IB_MAX_SENDS * SLOT);
  uint32_t steps = 0;
  while (w.finished < messages) {
    CHECK_MSG(++steps < 4000 * messages, "stuck: %u of %u messages after %u steps", w.finished, messages, steps);
    if (rates_change && below(40) == 0) change_a_rate();
    switch (below(8)) {
      case 0: post_group(); break;
      case 1:
      case 2:
      case 3: begin_send(); break;
      case 4:
      case 5: test_send(); break;
      default: test_group();
    }
  }
  CHECK_INT(pair_lines, 0);
  for (unsigned int i = 0; i < shape->nqps; i++) {
    CHECK(w.pair.rc->qps[i].rq_consumed < IB_RECV_BATCH);
    CHECK(w.pair.sc->qps[i].sq_avail <= shape->send_depth);
  }
  pair_close(&w.pair);
  free(w.out);
  free(w.in);
}

TEST(one_qp) { run(&(struct pair_shape){1, 1, 1, 30, 64, 128}, (unsigned int)kit_scaled(10000), "progress poll"); }
TEST(data_moves_when_posted) {
  run(&(struct pair_shape){1, 1, 1, 30, 64, 128}, (unsigned int)kit_scaled(10000), "progress post");
}
TEST(several_qps_each) {
  ib_params.min_part = 256;
  run(&(struct pair_shape){1, 5, 5, 30, 64, 64}, (unsigned int)kit_scaled(10000), "progress poll burst=2 skip=7");
}
TEST(rails_in_turn) {
  ib_params.min_part = 1024;
  run(&(struct pair_shape){3, 6, 3, 30, 64, 0}, (unsigned int)kit_scaled(10000), "progress poll burst=1 skip=3");
}
TEST(small_queues_and_chains) {
  ib_params.min_part = 4096;
  for (uint32_t depth = 1; depth < 8; depth += 3)
    run(&(struct pair_shape){2, 4, 4, 12, depth, 64}, (unsigned int)kit_scaled(3000), "progress poll burst=2 skip=5");
}
TEST(adaptive_routing) {
  ib_params.adaptive_routing = 1;
  ib_params.ar_threshold = 200;
  ib_params.min_part = 512;
  run(&(struct pair_shape){1, 3, 3, 13, 32, 64}, (unsigned int)kit_scaled(5000), "progress poll burst=3 skip=11");
  ib_params_load();
}

/* The SEND protocol: messages leave in the order of buffers, whatever the order of isend. */
TEST(sends_over_one_qp) {
  pair_two_sided = true;
  run(&(struct pair_shape){1, 1, 1, 30, 64, 128}, (unsigned int)kit_scaled(10000), "progress poll");
  run(&(struct pair_shape){1, 1, 1, 30, 64, 128}, (unsigned int)kit_scaled(10000), "progress post");
  pair_two_sided = false;
}
TEST(sends_over_several) {
  pair_two_sided = true;
  ib_params.min_part = 256;
  run(&(struct pair_shape){1, 4, 4, 30, 64, 64}, (unsigned int)kit_scaled(10000), "progress poll burst=2 skip=7");
  run(&(struct pair_shape){3, 6, 3, 30, 64, 0}, (unsigned int)kit_scaled(10000), "progress poll burst=1 skip=3");
  ib_params_load();
  pair_two_sided = false;
}
TEST(sends_of_many_parts) { /* up to 20, of 4 KiB */
  pair_two_sided = true;
  for (uint32_t depth = 1; depth < 8; depth += 3)
    run(&(struct pair_shape){2, 4, 4, 12, depth, 64}, (unsigned int)kit_scaled(3000), "progress poll burst=2 skip=5");
  pair_two_sided = false;
}

TEST(rates_that_change) {
  rates_change = true;
  ib_params.min_part = 1024;
  for (unsigned int nqps = 3; nqps <= 12; nqps *= 2)
    for (int split = 0; split < 2; split++)
      run(&(struct pair_shape){3, nqps, split ? nqps : 3, 12, 64, 0}, (unsigned int)kit_scaled(4000),
          "progress poll burst=2 skip=5");
  rates_change = false;
  ib_params_load();
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(one_qp),        TEST_CASE(data_moves_when_posted),
                                          TEST_CASE(several_qps_each), TEST_CASE(rails_in_turn),
                                          TEST_CASE(small_queues_and_chains), TEST_CASE(adaptive_routing),
                                          TEST_CASE(rates_that_change), TEST_CASE(sends_over_one_qp),
                                          TEST_CASE(sends_over_several), TEST_CASE(sends_of_many_parts)};
  ib_emu_use("device emu0 ports=3");
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
