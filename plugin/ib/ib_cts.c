/* SPDX-License-Identifier: Apache-2.0
 * The CTS ring: encoding and decoding entries, matching a send's tag. */
#include "plugin/ib/ib_cts.h"

#include <endian.h>
#include <string.h>

#define WORDS (sizeof(struct ib_cts_wire) / sizeof(uint64_t))
_Static_assert(offsetof(struct ib_cts_wire, seq) == (WORDS - 1) * sizeof(uint64_t), "number and checksum share a word");

static unsigned int slot_of(uint32_t seq) { return seq % IB_MAX_RECVS; }

/* ---- entries ------------------------------------------------------------ */

__extension__ typedef unsigned __int128 product;

static product multiply(uint64_t a, uint64_t b) { return (product)a * b; }

/* Two words and two constants make a product of 128 bits, in which a difference of either word reaches both halves; in
 * a product modulo 2^64, differences in the highest byte could cancel. The constants are the first digits of pi: they
 * only have to be independent of the data. */
static inline uint32_t checksum_of(const uint64_t *words, uint32_t seq) {
  static const uint64_t by[WORDS] = {0x243f6a8885a308d3, 0x13198a2e03707345, 0xa4093822299f31d1, 0x082efa98ec4e6c89,
                                     0x452821e638d01377, 0xbe5466cf34e90c6d, 0xc0ac29b7c97c50dd, 0x3f84d5b5b5470917};
  product sum = multiply(le64toh(words[WORDS - 2]) ^ by[WORDS - 2], seq ^ by[WORDS - 1]);
  RAIL_UNROLL for (unsigned int i = 0; i < WORDS - 2; i += 2)
    sum += multiply(le64toh(words[i]) ^ by[i], le64toh(words[i + 1]) ^ by[i + 1]);
  uint64_t folded = (uint64_t)sum ^ (uint64_t)(sum >> 64);
  return (uint32_t)(folded ^ folded >> 32);
}

/* To or from the wire: nothing, where the CPU is little-endian. */
static inline void swap(struct ib_cts *cts) {
  cts->addr = le64toh(cts->addr);
  cts->size = le64toh(cts->size);
  for (unsigned int i = 0; i < IB_MAX_RAILS; i++) cts->rkeys[i] = le32toh(cts->rkeys[i]);
  cts->tag = le32toh(cts->tag);
}

void ib_cts_encode(const struct ib_cts *cts, uint32_t seq, struct ib_cts_wire *wire) {
  struct ib_cts out = *cts;
  swap(&out);
  memcpy(wire, out.words, sizeof out.words);
  wire->seq = htole32(seq);
  wire->checksum = htole32(checksum_of(out.words, seq));
}

/* rest: the entry's last word, count | index << 8 and zeros above. What is left without the index must be a count, 1 to
 * IB_MAX_GROUP; of any other word it is larger, or below 1 and wraps around. To compare each byte takes 3 instructions
 * more. */
static inline bool is_sane(const struct ib_cts *cts, uint32_t rest, unsigned int index) {
  return rest - (index << 8) - 1 < IB_MAX_GROUP && index < cts->count && cts->size <= RAIL_NET_MAX_BYTES &&
         cts->addr + cts->size >= cts->addr;
}

/* The HCA may be writing right now: whole words are read, once; what was read is checked, and used. */
static inline enum ib_cts_entry_state decode(const struct ib_cts_wire *wire, uint32_t seq, unsigned int index,
                                             struct ib_cts *cts) {
  const uint64_t *from = (const uint64_t *)(const void *)wire;
  uint64_t last = le64toh(__atomic_load_n(&from[WORDS - 1], __ATOMIC_ACQUIRE));
  if ((uint32_t)last != seq) return IB_CTS_ENTRY_NOT_YET;
  RAIL_UNROLL for (unsigned int i = 0; i < WORDS - 1; i++) cts->words[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
  if (last >> 32 != checksum_of(cts->words, seq)) return IB_CTS_ENTRY_TORN;
  const uint32_t rest = (uint32_t)(le64toh(cts->words[WORDS - 2]) >> 32);
  swap(cts);
  if (rail_unlikely(!is_sane(cts, rest, index))) return IB_CTS_ENTRY_BAD;
  cts->slot = (uint8_t)slot_of(seq);
  return IB_CTS_ENTRY_GOOD;
}

enum ib_cts_entry_state ib_cts_decode(const struct ib_cts_wire *wire, uint32_t seq, unsigned int index,
                                      struct ib_cts *cts) {
  return decode(wire, seq, index, cts);
}

/* ---- matching ----------------------------------------------------------- */

void ib_cts_match_init(struct ib_cts_match *m, const struct ib_cts_ring *ring) {
  memset(m, 0, sizeof *m);
  m->ring = ring;
  m->oldest = m->next = 1;
}

/* The buffers of a receive but the first. Out of line: most receives have one buffer. */
static __attribute__((noinline)) enum ib_cts_entry_state read_others(struct ib_cts_match *m, unsigned int slot) {
  const struct ib_cts_wire *wire = m->ring->slots[slot];
  struct ib_cts *entries = m->buffers[slot];
  for (unsigned int i = 1; i < entries[0].count; i++) {
    enum ib_cts_entry_state seen = decode(&wire[i], m->next, i, &entries[i]);
    if (seen != IB_CTS_ENTRY_GOOD) return seen == IB_CTS_ENTRY_NOT_YET ? IB_CTS_ENTRY_TORN : seen;
    if (entries[i].count != entries[0].count) return IB_CTS_ENTRY_BAD;
    m->tags[slot][i] = entries[i].tag;
  }
  return IB_CTS_ENTRY_GOOD;
}

/* Reads receive m->next into the table, if all of it is there. */
static inline enum ib_cts_entry_state read_next(struct ib_cts_match *m) {
  const unsigned int slot = slot_of(m->next);
  struct ib_cts *first = m->buffers[slot];
  enum ib_cts_entry_state seen = decode(m->ring->slots[slot], m->next, 0, first);
  if (seen == IB_CTS_ENTRY_GOOD && rail_unlikely(first->count > 1)) seen = read_others(m, slot);
  if (seen != IB_CTS_ENTRY_GOOD) return seen;
  m->tags[slot][0] = first->tag;
  m->left[slot] = (uint8_t)((1u << first->count) - 1);
  m->next++;
  return IB_CTS_ENTRY_GOOD;
}

static inline const struct ib_cts *take_from(struct ib_cts_match *m, unsigned int slot, uint32_t tag) {
  for (unsigned int left = m->left[slot]; left; left &= left - 1) {
    const unsigned int i = (unsigned int)__builtin_ctz(left);
    if (m->tags[slot][i] != tag) continue;
    m->left[slot] &= (uint8_t)~(1u << i);
    m->takes++;
    while (m->oldest != m->next && !m->left[slot_of(m->oldest)]) m->oldest++;
    return &m->buffers[slot][i];
  }
  return NULL;
}

static __attribute__((noinline)) enum ib_cts_found search(struct ib_cts_match *m, uint32_t tag,
                                                         const struct ib_cts **buffer) {
  for (uint32_t seq = m->oldest; seq != m->next; seq++)
    if ((*buffer = take_from(m, slot_of(seq), tag))) return IB_CTS_TAKEN;
  while (m->next - m->oldest != IB_MAX_RECVS) { /* the receiver cannot have posted more */
    enum ib_cts_entry_state seen = read_next(m);
    if (rail_unlikely(seen >= IB_CTS_ENTRY_TORN)) return seen == IB_CTS_ENTRY_BAD ? IB_CTS_INVALID : IB_CTS_NEXT_TORN;
    if (seen == IB_CTS_ENTRY_NOT_YET) return m->oldest == m->next ? IB_CTS_EMPTY : IB_CTS_OTHER_TAGS;
    if ((*buffer = take_from(m, slot_of(m->next - 1), tag))) return IB_CTS_TAKEN;
  }
  return IB_CTS_OTHER_TAGS;
}

/* Mostly all receives that were read are taken, and the next one has one buffer, of that tag. */
enum ib_cts_found ib_cts_take(struct ib_cts_match *m, uint32_t tag, const struct ib_cts **buffer) {
  const uint32_t seq = m->next;
  if (m->oldest != seq) return search(m, tag, buffer);
  struct ib_cts *first = m->buffers[0] + slot_of(seq) * IB_MAX_GROUP;
  const enum ib_cts_entry_state seen = decode(m->ring->slots[slot_of(seq)], seq, 0, first);
  if (seen == IB_CTS_ENTRY_NOT_YET) return IB_CTS_EMPTY;
  if (rail_unlikely(seen != IB_CTS_ENTRY_GOOD || first->count != 1 || first->tag != tag)) return search(m, tag, buffer);
  m->oldest = m->next = seq + 1;
  m->takes++;
  *buffer = first;
  return IB_CTS_TAKEN;
}

bool ib_cts_lacks_first(const struct ib_cts_match *m) {
  if (!m->next) return false; /* fresh memory's number, too */
  const struct ib_cts_wire *entries = m->ring->slots[slot_of(m->next)];
  for (unsigned int i = 1; i < IB_MAX_GROUP; i++)
    if (le32toh(__atomic_load_n(&entries[i].seq, __ATOMIC_RELAXED)) == m->next) return true;
  return false;
}

unsigned int ib_cts_tags(const struct ib_cts_match *m, uint32_t *tags, unsigned int max) {
  unsigned int n = 0;
  for (uint32_t seq = m->oldest; seq != m->next; seq++)
    for (unsigned int i = 0, slot = slot_of(seq); i < IB_MAX_GROUP; i++) {
      if (!(m->left[slot] & 1u << i)) continue;
      if (n < max) tags[n] = m->tags[slot][i];
      n++;
    }
  return n;
}
