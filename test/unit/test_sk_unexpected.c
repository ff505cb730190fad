/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of unexpected messages against a model: a list of messages in the order
 * in which they came, each in one of three states. Random operations by a
 * sender that keeps to its credit; after each of them credit, order, contents
 * and the limits of the ring are what the model says. RAIL_TEST_SEED repeats.
 */
#include "plugin/socket/sk_recv.h"

#include "kit/kit_ensure.h"
#include "test/harness/tap.h"

#define MAX_LIVE 4096

enum state { WAITS, CLAIMED, FREED };

struct message {
  struct sk_bounce *bounce;
  enum state state;
  uint32_t tag, seq, size;
};

struct model {
  struct sk_unexpected unexpected;
  struct message live[MAX_LIVE]; /* a queue: the oldest that is not free is first */
  uint32_t first, count;
  uint64_t used, freed, told; /* bytes, as the two ends count them */
  uint32_t cused, cfreed, ctold;
  uint32_t seq;
  uint64_t furthest; /* the largest tail: beyond the ring's size it went around */
  struct kit_rng *rng;
};

static struct message *at(struct model *m, uint32_t i) { return &m->live[(m->first + i) % MAX_LIVE]; }

static uint8_t byte_of(uint32_t seq, uint32_t i) { return (uint8_t)(seq * 31 + i * 7 + (i >> 8)); }

static bool sender_may(const struct model *m, uint32_t size) {
  return m->cused - m->ctold < m->unexpected.eager_count &&
         m->used - m->told + sk_credit_of(size) <= m->unexpected.eager_bytes;
}

static void check(struct model *m) {
  const struct sk_unexpected *e = &m->unexpected;
  uint64_t open = 0;
  uint32_t waiting = 0;
  for (uint32_t i = 0; i < m->count; i++) {
    const struct message *msg = at(m, i);
    open += sk_credit_of(msg->size);
    waiting += msg->state == WAITS;
  }
  CHECK(e->bytes_used == m->used && e->bytes_freed == m->freed && e->bytes_reported == m->told);
  CHECK(e->count_used == m->cused && e->count_freed == m->cfreed);
  CHECK_INT(m->used - m->freed, open); /* what is spent and not free is in the ring */
  CHECK_INT(m->cused - m->cfreed, m->count);
  CHECK_INT(e->tail - e->head, open);
  CHECK(e->tail - e->head <= e->eager_bytes);
  CHECK_INT(e->table.count, waiting);
  CHECK(m->count || e->tail == 0); /* an empty ring begins anew, with memory that was used before */
  m->furthest = RAIL_MAX(m->furthest, e->tail);
  /* A sender that cannot go on hears of what is free. */
  if ((m->told != m->freed || m->ctold != m->cfreed) && !sender_may(m, e->eager_size))
    CHECK(sk_unexpected_should_report(e));
  if (m->told == m->freed && m->ctold == m->cfreed) CHECK(!sk_unexpected_should_report(e));
}

static void send_one(struct model *m, uint32_t tag, uint32_t size, bool finds_buffer) {
  struct sk_unexpected *e = &m->unexpected;
  CHECK(sk_unexpected_charge(e, size));
  m->used += sk_credit_of(size);
  m->cused++;
  uint32_t seq = m->seq++;
  if (finds_buffer) {
    sk_unexpected_pass(e, size);
    m->freed += sk_credit_of(size);
    m->cfreed++;
    return;
  }
  struct sk_bounce *b = sk_unexpected_put(e, tag, seq, size);
  CHECK(b->target.unexpected && b->target.size == size && b->target.seq == seq);
  CHECK((uint8_t *)b >= e->ring && b->target.data + size <= e->ring + e->eager_bytes + sk_credit_of(e->eager_size));
  CHECK(b->target.data >= (uint8_t *)(b + 1));
  for (uint32_t i = 0; i < size; i++) b->target.data[i] = byte_of(seq, i);
  *at(m, m->count++) = (struct message){.bounce = b, .tag = tag, .seq = seq, .size = size};
  CHECK(m->count <= MAX_LIVE);
}

static void claim(struct model *m, uint32_t tag) {
  struct sk_bounce *b = sk_unexpected_take(&m->unexpected, tag);
  for (uint32_t i = 0; i < m->count; i++) {
    struct message *msg = at(m, i);
    if (msg->state != WAITS || msg->tag != tag) continue;
    CHECK(b == msg->bounce); /* the oldest of its tag */
    msg->state = CLAIMED;
    return;
  }
  CHECK(!b);
}

/* The message's bytes are still what was put there, then its place is free. */
static void release(struct model *m, uint32_t i) {
  struct message *msg = at(m, i);
  if (msg->state != CLAIMED) return;
  CHECK_INT(msg->bounce->target.seq, msg->seq);
  for (uint32_t k = 0; k < msg->size; k++)
    CHECK_MSG(msg->bounce->target.data[k] == byte_of(msg->seq, k), "message %u of %u bytes: byte %u", msg->seq,
              msg->size, k);
  sk_unexpected_free(&m->unexpected, msg->bounce);
  msg->state = FREED;
  while (m->count && at(m, 0)->state == FREED) {
    m->freed += sk_credit_of(at(m, 0)->size);
    m->cfreed++;
    m->first++;
    m->count--;
  }
}

static void tell(struct model *m) {
  m->told = m->unexpected.bytes_reported = m->freed;
  m->ctold = m->unexpected.count_reported = m->cfreed;
}

static void one_step(struct model *m, uint32_t tags) {
  uint32_t tag = kit_rng_below(m->rng, tags);
  switch (kit_rng_below(m->rng, 8)) {
    case 0:
    case 1:
    case 2: {
      /* Sizes that end on a line, beside one, small and largest. */
      uint32_t pick = kit_rng_below(m->rng, 5), max = m->unexpected.eager_size;
      uint32_t size = pick == 0   ? max
                      : pick == 1 ? 0
                      : pick == 2 ? max / 64 / 2 * 64
                                  : kit_rng_below(m->rng, max + 1);
      if (sender_may(m, size)) send_one(m, tag, size, kit_rng_below(m->rng, 4) == 0);
      break;
    }
    case 3:
    case 4: claim(m, tag); break;
    case 5:
    case 6:
      if (m->count) release(m, kit_rng_below(m->rng, m->count));
      break;
    default:
      if (sk_unexpected_should_report(&m->unexpected) || kit_rng_below(m->rng, 10) == 0) tell(m);
  }
  check(m);
}

/* True if it went around. */
static bool run(struct kit_rng *rng, uint32_t size, uint32_t count, uint32_t bytes, uint32_t tags, int steps) {
  static struct model m;
  memset(&m, 0, sizeof m);
  m.rng = rng;
  CHECK_OK(sk_unexpected_init(&m.unexpected, size, count, bytes));
  for (int i = 0; i < steps; i++) one_step(&m, tags);
  for (uint32_t tag = 0; tag < tags; tag++)
    while (m.unexpected.table.count && sk_match_next(&m.unexpected.table, tag, NULL)) claim(&m, tag);
  while (m.count) { /* backwards: the first that was put goes last, and takes all along */
    uint64_t before = m.freed;
    for (uint32_t i = m.count; i-- > 1;) release(&m, i);
    CHECK_INT(m.freed, before);
    release(&m, 0);
  }
  tell(&m);
  check(&m);
  CHECK(m.unexpected.head == m.unexpected.tail && m.freed == m.used);
  sk_unexpected_release(&m.unexpected);
  return m.furthest > bytes;
}

TEST(random_operations) {
  struct kit_rng rng;
  int around = 0;
  kit_rng_start(&rng);
  for (int round = 0; round < 20; round++) {
    uint32_t size = kit_rng_below(&rng, 600);
    uint32_t least = 4 * (uint32_t)sk_credit_of(size);
    uint32_t bytes = least + kit_rng_below(&rng, 4096); /* not a multiple of a line, mostly */
    around += run(&rng, size, 4 + kit_rng_below(&rng, 60), bytes, 1 + kit_rng_below(&rng, 6), 4000);
  }
  CHECK_MSG(around > 2, "the ring went around in %d of 20 rounds", around); /* it does in most */
}

TEST(the_defaults) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  run(&rng, 32 * 1024, 1024, 1 << 20, 3, 60000);
}

/* What goes beyond the credit, by one message or one byte, is noticed. */
TEST(beyond_credit) {
  struct sk_unexpected e = {0};
  CHECK_OK(sk_unexpected_init(&e, 100, 3, 4096));
  CHECK(!sk_unexpected_charge(&e, 101));
  CHECK_INT(e.bytes_used, 0);
  for (int i = 0; i < 3; i++) CHECK(sk_unexpected_charge(&e, 1));
  CHECK(!sk_unexpected_charge(&e, 1));
  sk_unexpected_release(&e);

  e = (struct sk_unexpected){0};
  CHECK_OK(sk_unexpected_init(&e, 1000, 100, 3 * 1152 + 63)); /* the rest of a line is nobody's */
  for (int i = 0; i < 3; i++) CHECK(sk_unexpected_charge(&e, 1000));
  for (int i = 0; i < 3; i++) sk_unexpected_pass(&e, 1000);
  CHECK(!sk_unexpected_charge(&e, 0)); /* free again, but the sender was not told */
  sk_unexpected_release(&e);

  e = (struct sk_unexpected){0};
  CHECK_OK(sk_unexpected_init(&e, 1000, 100, 3 * 1152));
  for (int i = 0; i < 3; i++) CHECK(sk_unexpected_charge(&e, 1000));
  for (int i = 0; i < 3; i++) sk_unexpected_pass(&e, 1000);
  e.bytes_reported = e.bytes_freed;
  e.count_reported = e.count_freed;
  CHECK(sk_unexpected_charge(&e, 1000));
  sk_unexpected_release(&e);
}

/* A message that begins in the last line keeps its bytes in one piece, and the next begins behind them. */
TEST(across_the_end) {
  struct sk_unexpected e = {0};
  const uint32_t size = 256, cost = 384; /* 1024 is no multiple of it */
  CHECK_OK(sk_unexpected_init(&e, size, 64, 1024));
  struct sk_bounce *previous = NULL;
  for (uint32_t i = 0; i < 200; i++) {
    CHECK(sk_unexpected_charge(&e, size));
    struct sk_bounce *b = sk_unexpected_put(&e, 0, i, size);
    memset(b->target.data, (int)i, size);
    if (previous) {
      for (uint32_t k = 0; k < size; k++) CHECK_INT(previous->target.data[k], (uint8_t)(i - 1));
      CHECK(sk_unexpected_take(&e, 0) == previous);
      sk_unexpected_free(&e, previous);
      e.bytes_reported = e.bytes_freed;
      e.count_reported = e.count_freed;
    }
    CHECK_INT(e.tail - e.head, cost);
    previous = b;
  }
  sk_unexpected_release(&e);
}

TEST_MAIN(TEST_CASE(random_operations), TEST_CASE(the_defaults), TEST_CASE(beyond_credit), TEST_CASE(across_the_end))
