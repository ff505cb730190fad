/* SPDX-License-Identifier: Apache-2.0
 * The CTS ring: encoding and decoding entries, matching a send's tag. Encoding and decoding immediates. */
#include "plugin/ib/ib_cts.h"

#include <endian.h>
#include <stddef.h>
#include <string.h>

#include "common/base/compiler.h"

#define WORDS (sizeof(struct ib_cts_wire) / sizeof(uint64_t))
_Static_assert(offsetof(struct ib_cts_wire, seq) == (WORDS - 1) * sizeof(uint64_t), "number and checksum share a word");

static unsigned int slot_of(uint32_t seq) { return seq % IB_MAX_RECVS; }

/* ---- entries ------------------------------------------------------------ */

__extension__ typedef unsigned __int128 product;

static product multiply(uint64_t a, uint64_t b) { return (product)a * b; }

/* Two words and two constants make a product of 128 bits, in which a difference of either word reaches both halves; in
 * a product modulo 2^64, differences in the highest byte could cancel. The constants are the first digits of pi: they
 * only have to be independent of the data. */
static uint32_t checksum_of(const uint64_t *words, uint32_t seq) {
  static const uint64_t by[WORDS] = {0x243f6a8885a308d3, 0x13198a2e03707345, 0xa4093822299f31d1, 0x082efa98ec4e6c89,
                                     0x452821e638d01377, 0xbe5466cf34e90c6d, 0xc0ac29b7c97c50dd, 0x3f84d5b5b5470917};
  product sum = multiply(le64toh(words[WORDS - 2]) ^ by[WORDS - 2], seq ^ by[WORDS - 1]);
  for (unsigned int i = 0; i < WORDS - 2; i += 2)
    sum += multiply(le64toh(words[i]) ^ by[i], le64toh(words[i + 1]) ^ by[i + 1]);
  uint64_t folded = (uint64_t)sum ^ (uint64_t)(sum >> 64);
  return (uint32_t)(folded ^ folded >> 32);
}

void ib_cts_encode(const struct ib_cts *cts, uint32_t seq, struct ib_cts_wire *wire) {
  uint64_t words[WORDS];
  wire->addr = htole64(cts->addr);
  wire->size = htole64(cts->size);
  for (unsigned int i = 0; i < IB_MAX_RAILS; i++) wire->rkeys[i] = htole32(cts->rkeys[i]);
  wire->tag = htole32(cts->tag);
  wire->count = (uint8_t)cts->count;
  wire->index = (uint8_t)cts->index;
  wire->zero[0] = wire->zero[1] = 0;
  wire->seq = htole32(seq);
  memcpy(words, wire, sizeof words);
  wire->checksum = htole32(checksum_of(words, seq));
}

static bool is_sane(const struct ib_cts_wire *wire, unsigned int index, const struct ib_cts *cts) {
  return cts->count >= 1 && cts->count <= IB_MAX_GROUP && cts->index == index && index < cts->count &&
         !wire->zero[0] && !wire->zero[1] && cts->size <= RAIL_NET_MAX_BYTES && cts->addr <= UINT64_MAX - cts->size;
}

enum ib_cts_entry_state ib_cts_decode(const struct ib_cts_wire *wire, uint32_t seq, unsigned int index,
                                      struct ib_cts *cts) {
  const uint64_t *from = (const uint64_t *)(const void *)wire;
  uint64_t words[WORDS];
  struct ib_cts_wire copy;
  /* The HCA may be writing right now: a copy of whole words is checked, and used. */
  words[WORDS - 1] = __atomic_load_n(&from[WORDS - 1], __ATOMIC_ACQUIRE);
  uint64_t last = le64toh(words[WORDS - 1]);
  if ((uint32_t)last != seq) return IB_CTS_NOT_YET;
  for (unsigned int i = 0; i < WORDS - 1; i++) words[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
  if (last >> 32 != checksum_of(words, seq)) return IB_CTS_PARTIAL;
  memcpy(&copy, words, sizeof copy);
  cts->addr = le64toh(copy.addr);
  cts->size = le64toh(copy.size);
  for (unsigned int i = 0; i < IB_MAX_RAILS; i++) cts->rkeys[i] = le32toh(copy.rkeys[i]);
  cts->tag = le32toh(copy.tag);
  cts->count = copy.count;
  cts->index = copy.index;
  return rail_likely(is_sane(&copy, index, cts)) ? IB_CTS_GOOD : IB_CTS_BAD;
}

/* ---- matching ----------------------------------------------------------- */

void ib_cts_match_init(struct ib_cts_match *m, const struct ib_cts_ring *ring) {
  memset(m, 0, sizeof *m);
  m->ring = ring;
  m->tail = m->head = 1;
}

/* Reads receive m->head into the table, if all of it is there. */
static enum ib_cts_entry_state read_head(struct ib_cts_match *m) {
  unsigned int slot = slot_of(m->head), count = 1;
  for (unsigned int i = 0; i < count; i++) {
    struct ib_cts_buffer *g = &m->buffers[slot][i];
    struct ib_cts cts;
    enum ib_cts_entry_state seen = ib_cts_decode(&m->ring->slots[slot][i], m->head, i, &cts);
    if (seen != IB_CTS_GOOD) return i && seen == IB_CTS_NOT_YET ? IB_CTS_PARTIAL : seen;
    if (i && cts.count != count) return IB_CTS_BAD;
    count = cts.count;
    m->tags[slot][i] = cts.tag;
    *g = (struct ib_cts_buffer){.addr = cts.addr, .size = cts.size, .slot = slot, .index = i};
    memcpy(g->rkeys, cts.rkeys, sizeof g->rkeys);
  }
  m->count[slot] = (uint8_t)count;
  m->left[slot] = (uint8_t)((1u << count) - 1);
  m->head++;
  return IB_CTS_GOOD;
}

static bool take_from(struct ib_cts_match *m, unsigned int slot, uint32_t tag, struct ib_cts_buffer *buffer) {
  for (unsigned int i = 0; i < m->count[slot]; i++) {
    if (m->tags[slot][i] != tag || !(m->left[slot] & 1u << i)) continue;
    *buffer = m->buffers[slot][i];
    m->left[slot] &= (uint8_t)~(1u << i);
    m->takes++;
    while (m->tail != m->head && !m->left[slot_of(m->tail)]) m->tail++;
    return true;
  }
  return false;
}

enum ib_cts_found ib_cts_take(struct ib_cts_match *m, uint32_t tag, struct ib_cts_buffer *buffer) {
  for (uint32_t seq = m->tail;; seq++) {
    if (seq == m->head) {
      if (m->head - m->tail == IB_MAX_RECVS) return IB_CTS_OTHER_TAGS; /* the receiver cannot have posted more */
      enum ib_cts_entry_state seen = read_head(m);
      if (rail_unlikely(seen >= IB_CTS_PARTIAL)) return seen == IB_CTS_BAD ? IB_CTS_INVALID : IB_CTS_INCOMPLETE;
      if (seen == IB_CTS_NOT_YET) return m->tail == m->head ? IB_CTS_EMPTY : IB_CTS_OTHER_TAGS;
    }
    if (take_from(m, slot_of(seq), tag, buffer)) return IB_CTS_TAKEN;
  }
}

unsigned int ib_cts_tags(const struct ib_cts_match *m, uint32_t *tags, unsigned int max) {
  unsigned int n = 0;
  for (uint32_t seq = m->tail; seq != m->head; seq++)
    for (unsigned int i = 0, slot = slot_of(seq); i < m->count[slot]; i++) {
      if (!(m->left[slot] & 1u << i)) continue;
      if (n < max) tags[n] = m->tags[slot][i];
      n++;
    }
  return n;
}

/* ---- immediates --------------------------------------------------------- */

#define EXPONENT_ERROR 31u
#define CODE_ALL 7u

uint32_t ib_imm_encode(const struct ib_imm *imm, unsigned int all) {
  unsigned int code = imm->parts == all ? CODE_ALL : (unsigned int)__builtin_ctz(imm->parts);
  uint32_t at = imm->slot << 27 | imm->index << 24 | code << 21;
  if (rail_unlikely(imm->error)) return at | EXPONENT_ERROR << 16 | imm->error;
  unsigned int log2 = ib_imm_unit_log2(imm->body);
  return at | (log2 - IB_ALIGN_LOG2) << 16 | (uint32_t)(imm->body >> log2);
}

void ib_imm_decode(uint32_t bits, unsigned int all, struct ib_imm *imm) {
  unsigned int code = bits >> 21 & 7, exponent = bits >> 16 & 31, mantissa = bits & IB_IMM_MANTISSA_MAX;
  imm->slot = bits >> 27;
  imm->index = bits >> 24 & 7;
  imm->parts = code == CODE_ALL ? all : 1u << code;
  imm->error = exponent == EXPONENT_ERROR ? mantissa : 0;
  imm->body = exponent == EXPONENT_ERROR ? 0 : (uint64_t)mantissa << (IB_ALIGN_LOG2 + exponent);
}
