/* SPDX-License-Identifier: Apache-2.0
 *
 * The CTS ring. Entries: what goes in comes out, and one that is half written is
 * never taken, whichever of its words or bytes are there. Matching: against a
 * list of buffers that is searched from the beginning, with a writer that is
 * interrupted between any two words.
 */
#include "plugin/ib/ib_cts.h"

#include <endian.h>

#include "common/base/compiler.h"
#include "kit/kit_ensure.h"
#include "test/harness/tap.h"

#define WORDS 8
#define TAGS 5

static struct ib_cts random_cts(struct kit_rng *rng, unsigned int count, unsigned int index) {
  struct ib_cts cts = {.addr = kit_rng_next(rng) >> 8,
                       .size = kit_rng_next(rng) >> (24 + kit_rng_below(rng, 40)),
                       .tag = (uint32_t)kit_rng_next(rng) >> kit_rng_below(rng, 32),
                       .count = (uint8_t)count,
                       .index = (uint8_t)index};
  for (int i = 0; i < IB_MAX_RAILS; i++) cts.rkeys[i] = (uint32_t)kit_rng_next(rng);
  return cts;
}

static bool same(const struct ib_cts *a, const struct ib_cts *b) {
  return a->addr == b->addr && a->size == b->size && a->tag == b->tag && a->count == b->count && a->index == b->index &&
         memcmp(a->rkeys, b->rkeys, sizeof a->rkeys) == 0;
}

/* ---- entries ------------------------------------------------------------ */

TEST(round_trip) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  for (int i = 0; i < 10000; i++) {
    unsigned int count = 1 + kit_rng_below(&rng, IB_MAX_GROUP), index = kit_rng_below(&rng, count);
    uint32_t seq = (uint32_t)kit_rng_next(&rng);
    struct ib_cts cts = random_cts(&rng, count, index), back;
    struct ib_cts_wire wire = {0};
    ib_cts_encode(&cts, seq, &wire);
    CHECK_INT(ib_cts_decode(&wire, seq, index, &back), IB_CTS_ENTRY_GOOD);
    CHECK(same(&cts, &back));
    CHECK_INT(ib_cts_decode(&wire, seq + 1, index, &back), IB_CTS_ENTRY_NOT_YET);
    CHECK_INT(ib_cts_decode(&wire, seq - IB_MAX_RECVS, index, &back), IB_CTS_ENTRY_NOT_YET);
    CHECK_INT(ib_cts_decode(&wire, seq, (index + 1) % 8, &back), IB_CTS_ENTRY_BAD); /* another's place */
  }
}

/* Fresh memory is no entry, of whichever receive. */
TEST(zeros) {
  struct ib_cts_wire wire = {0};
  struct ib_cts cts;
  for (uint32_t seq = 1; seq < 100000; seq++) CHECK_INT(ib_cts_decode(&wire, seq, 0, &cts), IB_CTS_ENTRY_NOT_YET);
  CHECK_INT(ib_cts_decode(&wire, 0, 0, &cts), IB_CTS_ENTRY_TORN); /* its number is there, for what that is worth */
}

TEST(values_that_cannot_be) {
  static const struct ib_cts bad[] = {
    {.count = 0, .index = 0},  {.count = 9, .index = 0}, {.count = 255, .index = 0}, {.count = 3, .index = 3},
    {.count = 1, .index = 200}, {.count = 1, .size = RAIL_NET_MAX_BYTES + 1},
    {.count = 1, .addr = UINT64_MAX - 10, .size = 11}};
  struct ib_cts_wire wire;
  struct ib_cts cts;
  for (unsigned int i = 0; i < RAIL_COUNT_OF(bad); i++) {
    ib_cts_encode(&bad[i], 7, &wire);
    CHECK_MSG(ib_cts_decode(&wire, 7, bad[i].index & 7, &cts) == IB_CTS_ENTRY_BAD, "value %u is taken", i);
  }
  /* The checksum covers the zeros, too. */
  ib_cts_encode(&(struct ib_cts){.count = 1}, 7, &wire);
  wire.zero[1] = 1;
  CHECK_INT(ib_cts_decode(&wire, 7, 0, &cts), IB_CTS_ENTRY_TORN);
}

/* A checksum has 32 bits, so one mixture in 2^32 is taken by chance: a run looks at some millions, and may meet one
 * such, but two only once in some million runs. */
static unsigned int coincidences;

static void look_at_mixture(const struct ib_cts_wire *seen, const struct ib_cts_wire *now, uint32_t seq,
                            unsigned int index) {
  struct ib_cts got;
  bool whole = memcmp(seen, now, sizeof *now) == 0;
  bool taken = ib_cts_decode(seen, seq, index, &got) == IB_CTS_ENTRY_GOOD;
  if (whole) CHECK_MSG(taken, "receive %u is whole, and not seen", seq);
  else coincidences += taken;
  CHECK_MSG(coincidences <= 1, "receive %u: a second mixture was taken for an entry", seq);
}

/* Each word as it was or as it will be: all that a reader can see of words that are written in any order, read in any
 * order. And the same for bytes, by chance and in runs: of memory that tears words. */
static void check_torn(struct kit_rng *rng, const struct ib_cts_wire *was, const struct ib_cts *cts, uint32_t seq) {
  struct ib_cts_wire now = {0}, seen;
  ib_cts_encode(cts, seq, &now);
  for (unsigned int mix = 0; mix < 1u << WORDS; mix++) {
    for (unsigned int w = 0; w < WORDS; w++)
      memcpy((char *)&seen + 8 * w, (const char *)(mix & 1u << w ? &now : was) + 8 * w, 8);
    look_at_mixture(&seen, &now, seq, cts->index);
  }
  for (unsigned int from = 0; from < 64; from++)
    for (unsigned int to = from; to <= 64; to++)
      for (int inside = 0; inside < 2; inside++) {
        seen = inside ? *was : now;
        memcpy((char *)&seen + from, (const char *)(inside ? &now : was) + from, to - from);
        look_at_mixture(&seen, &now, seq, cts->index);
      }
  for (int i = 0; i < 200; i++) {
    for (unsigned int b = 0; b < 64; b++)
      ((char *)&seen)[b] = ((const char *)(kit_rng_below(rng, 8) ? &now : was))[b];
    look_at_mixture(&seen, &now, seq, cts->index);
  }
}

TEST(torn_entries) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  for (int i = 0; i < kit_scaled(400); i++) {
    uint32_t seq = i % 3 ? (uint32_t)kit_rng_next(&rng) : IB_MAX_RECVS * (uint32_t)i;
    struct ib_cts old = random_cts(&rng, 1, 0), cts = old;
    struct ib_cts_wire was = {0};
    if (i % 4) ib_cts_encode(&old, seq - IB_MAX_RECVS, &was);
    /* From all of it new to the same buffer again; a buffer that moved by one slot is what NCCL does. */
    if (i % 5 == 0) cts = random_cts(&rng, 1, 0);
    if (i % 5 == 1) cts.addr += 1 << 17;
    if (i % 5 == 2) cts.tag++;
    if (i % 5 == 3) cts.size ^= 128, cts.addr ^= 128;
    check_torn(&rng, &was, &cts, seq);
  }
}

/* Two bytes of an entry are others, each pair of places, among zeros, random data, and what NCCL posts. What a product
 * modulo 2^64 makes of the highest bytes of two words cancels once in 256 times. */
TEST(two_changed_bytes) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  for (int i = 0; i < kit_scaled(300); i++) {
    struct ib_cts cts = {.count = 1};
    struct ib_cts_wire now = {0};
    uint32_t seq = i % 2 ? (uint32_t)kit_rng_next(&rng) : 1 + (uint32_t)i;
    if (i % 3 == 1) cts = random_cts(&rng, 1, 0);
    if (i % 3 == 2) {
      cts.addr = 0x7f0000000000u + (kit_rng_next(&rng) >> 44 << 17);
      cts.size = 1 << 17;
      cts.rkeys[0] = (uint32_t)kit_rng_next(&rng);
    }
    ib_cts_encode(&cts, seq, &now);
    for (unsigned int a = 0; a < 56; a++)
      for (unsigned int b = a + 1; b < 56; b++) {
        struct ib_cts_wire seen = now;
        ((uint8_t *)&seen)[a] ^= (uint8_t)(1 + kit_rng_below(&rng, 255));
        ((uint8_t *)&seen)[b] ^= (uint8_t)(1 + kit_rng_below(&rng, 255));
        look_at_mixture(&seen, &now, seq, 0);
      }
  }
}

/* ---- matching ----------------------------------------------------------- */

struct posted { struct ib_cts cts[IB_MAX_GROUP]; bool taken[IB_MAX_GROUP]; unsigned int count; bool done; };

struct model {
  struct ib_cts_ring ring;
  struct ib_cts_match match;
  struct posted slots[IB_MAX_RECVS];
  uint32_t next;  /* receive that is posted next */
  uint32_t whole; /* first that is not written whole */
  /* the one that is being written: its words, in any order */
  struct ib_cts_wire out[IB_MAX_GROUP];
  int words[IB_MAX_GROUP * WORDS];
  unsigned int nwords, written;
  struct kit_rng *rng;
};

static struct posted *slot_of(struct model *m, uint32_t seq) { return &m->slots[seq % IB_MAX_RECVS]; }

static void begin_write(struct model *m) {
  struct posted *p = slot_of(m, m->next);
  if (!p->done || m->written < m->nwords) return; /* its slot is in use; or the last one is not out */
  p->count = kit_rng_below(m->rng, 3) ? 1 : 1 + kit_rng_below(m->rng, IB_MAX_GROUP);
  p->done = false;
  for (unsigned int i = 0; i < p->count; i++) {
    p->taken[i] = false;
    p->cts[i] = random_cts(m->rng, p->count, i);
    p->cts[i].tag = kit_rng_below(m->rng, TAGS);
    ib_cts_encode(&p->cts[i], m->next, &m->out[i]);
  }
  m->nwords = p->count * WORDS;
  m->written = 0;
  for (unsigned int i = 0; i < m->nwords; i++) m->words[i] = (int)i;
  kit_rng_shuffle(m->rng, m->words, (int)m->nwords);
  m->next++;
}

static void write_words(struct model *m) {
  unsigned int n = 1 + kit_rng_below(m->rng, 2 * WORDS);
  for (; n && m->written < m->nwords; n--, m->written++) {
    size_t at = (size_t)m->words[m->written] * 8;
    memcpy((char *)m->ring.slots[(m->next - 1) % IB_MAX_RECVS] + at, (const char *)m->out + at, 8);
  }
  /* Words that do not change are there from the beginning. */
  if (memcmp(m->ring.slots[(m->next - 1) % IB_MAX_RECVS], m->out, m->nwords * 8) == 0) m->whole = m->next;
}

/* The oldest buffer of a tag among receives that are there whole; else whether the next one is torn, its first
 * entry's number at least. (Fresh memory has number 0: a ring meets that in this test only, where it begins just before
 * the wrap.) */
static enum ib_cts_found expect(struct model *m, uint32_t tag, uint32_t *seq, unsigned int *index) {
  bool others = false;
  for (*seq = m->next - IB_MAX_RECVS; *seq != m->whole; ++*seq) {
    struct posted *p = slot_of(m, *seq);
    for (*index = 0; !p->done && *index < p->count; ++*index) {
      if (p->taken[*index]) continue;
      if (p->cts[*index].tag == tag) return IB_CTS_TAKEN;
      others = true;
    }
  }
  if (le32toh(m->ring.slots[m->whole % IB_MAX_RECVS][0].seq) == m->whole) return IB_CTS_NEXT_TORN;
  return others ? IB_CTS_OTHER_TAGS : IB_CTS_EMPTY;
}

static void take(struct model *m) {
  uint32_t tag = kit_rng_below(m->rng, TAGS), seq = 0;
  unsigned int index = 0;
  const struct ib_cts *buffer = NULL;
  enum ib_cts_found want = expect(m, tag, &seq, &index), got = ib_cts_take(&m->match, tag, &buffer);
  CHECK_INT(got, want);
  if (got != IB_CTS_TAKEN) return;
  struct posted *p = slot_of(m, seq);
  CHECK_INT(buffer->slot, seq % IB_MAX_RECVS);
  CHECK_INT(buffer->index, index);
  CHECK(buffer->addr == p->cts[index].addr && buffer->size == p->cts[index].size);
  CHECK(memcmp(buffer->rkeys, p->cts[index].rkeys, sizeof buffer->rkeys) == 0);
  p->taken[index] = true;
}

/* Receives are over in any order, once all their buffers are taken. */
static void finish(struct model *m) {
  struct posted *p = &m->slots[kit_rng_below(m->rng, IB_MAX_RECVS)];
  bool all = true;
  for (unsigned int i = 0; i < p->count; i++) all &= p->taken[i];
  p->done |= all;
}

static void check_tags(struct model *m) {
  uint32_t tags[IB_MAX_SENDS];
  unsigned int n = ib_cts_tags(&m->match, tags, IB_MAX_SENDS), k = 0;
  for (uint32_t seq = m->match.oldest; seq != m->match.next; seq++)
    for (unsigned int i = 0; i < slot_of(m, seq)->count; i++)
      if (!slot_of(m, seq)->taken[i]) CHECK_INT(tags[k++], slot_of(m, seq)->cts[i].tag);
  CHECK_INT(n, k);
}

static void run(uint32_t first, int steps) {
  static struct model m;
  struct kit_rng rng;
  memset(&m, 0, sizeof m);
  kit_rng_start(&rng);
  m.rng = &rng;
  ib_cts_match_init(&m.match, &m.ring);
  CHECK_INT(m.match.next, 1);
  m.match.oldest = m.match.next = m.next = m.whole = first;
  for (int i = 0; i < IB_MAX_RECVS; i++) m.slots[i].done = true;
  for (int i = 0; i < steps; i++) {
    switch (kit_rng_below(&rng, 4)) {
      case 0: begin_write(&m); break;
      case 1: write_words(&m); break;
      case 2: take(&m); break;
      default: finish(&m);
    }
    if (i % 64 == 0) check_tags(&m);
  }
  CHECK(m.match.takes > (uint32_t)steps / 50); /* the matching did not stop */
  CHECK(m.next - first > 4 * IB_MAX_RECVS);
}

TEST(against_a_list) { run(1, kit_scaled(200000)); }
TEST(numbers_wrap) {
  for (uint32_t before = 0; before < 100; before += 7) run(0u - before, 10000);
}

/* All slots full of other tags: no slot is looked at twice for two receives. */
TEST(a_full_ring) {
  static struct ib_cts_ring ring;
  struct ib_cts_match m;
  const struct ib_cts *buffer = NULL;
  ib_cts_match_init(&m, &ring);
  for (uint32_t seq = 1; seq <= IB_MAX_RECVS; seq++)
    ib_cts_encode(&(struct ib_cts){.count = 1, .tag = seq}, seq, &ring.slots[seq % IB_MAX_RECVS][0]);
  CHECK_INT(ib_cts_take(&m, 77, &buffer), IB_CTS_OTHER_TAGS);
  CHECK_INT(m.next - m.oldest, IB_MAX_RECVS);
  /* A peer that does not keep to the rule changes nothing of what was seen. */
  ib_cts_encode(&(struct ib_cts){.count = 1, .tag = 77}, 1 + IB_MAX_RECVS, &ring.slots[1][0]);
  CHECK_INT(ib_cts_take(&m, 77, &buffer), IB_CTS_OTHER_TAGS);
  CHECK_INT(ib_cts_take(&m, 1, &buffer), IB_CTS_TAKEN);
  CHECK_INT(ib_cts_take(&m, 77, &buffer), IB_CTS_TAKEN);
  for (uint32_t tag = IB_MAX_RECVS; tag > 1; tag--) CHECK_INT(ib_cts_take(&m, tag, &buffer), IB_CTS_TAKEN);
  CHECK_INT(ib_cts_take(&m, 1, &buffer), IB_CTS_EMPTY);
}

TEST(groups_that_cannot_be) {
  static struct ib_cts_ring ring;
  struct ib_cts_match m;
  const struct ib_cts *buffer = NULL;
  ib_cts_match_init(&m, &ring);
  ib_cts_encode(&(struct ib_cts){.count = 2, .index = 0, .tag = 1}, 1, &ring.slots[1][0]);
  CHECK_INT(ib_cts_take(&m, 1, &buffer), IB_CTS_NEXT_TORN); /* half of a group is nothing to take yet */
  ib_cts_encode(&(struct ib_cts){.count = 3, .index = 1, .tag = 2}, 1, &ring.slots[1][1]);
  CHECK_INT(ib_cts_take(&m, 1, &buffer), IB_CTS_INVALID);
}

TEST_MAIN(TEST_CASE(round_trip), TEST_CASE(zeros), TEST_CASE(values_that_cannot_be), TEST_CASE(torn_entries),
          TEST_CASE(two_changed_bytes), TEST_CASE(against_a_list), TEST_CASE(numbers_wrap), TEST_CASE(a_full_ring),
          TEST_CASE(groups_that_cannot_be))
