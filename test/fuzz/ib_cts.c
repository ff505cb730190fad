/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * The ring of CTS entries in a sender's memory, which its peer writes by RDMA at any time. Input: steps; an entry has
 * any fields and a right checksum, or is bytes alone.
 *
 * Held: a buffer that a send takes has the send's tag and values that are allowed, it was written with its number and
 * checksum, and no more sends take it than times it was written; never more receives are open than there are slots.
 */
#include <endian.h>
#include <stdlib.h>

#include "plugin/ib/ib_cts.h"
#include "plugin/ib/ib_wire.h"
#include "test/fuzz/lib/fuzz.h"

enum step { ENTRY, ANY_ENTRY, RAW, TAKE, LOOK, STEPS };

struct bed {
  struct ib_cts_ring *ring;
  struct ib_cts_match match;
  unsigned int written[IB_MAX_RECVS][IB_MAX_GROUP], taken[IB_MAX_RECVS][IB_MAX_GROUP];
};

/* A receive's next entry, mostly as an honest peer writes it: its count may be too large. */
static void write_entry(struct bed *b, struct fuzz_in *in) {
  uint32_t seq = b->match.next + fuzz_u8(in) % 3;
  unsigned int count = 1 + fuzz_u8(in) % (IB_MAX_GROUP + 2), index = fuzz_u8(in) % IB_MAX_GROUP;
  const struct ib_cts cts = {.addr = 1 << 20, .size = fuzz_u16(in), .tag = fuzz_u8(in) % 4, .count = (uint8_t)count,
                             .index = (uint8_t)index};
  ib_cts_encode(&cts, seq, &b->ring->slots[seq % IB_MAX_RECVS][index]);
  b->written[seq % IB_MAX_RECVS][index]++;
}

/* The right checksum for any values, at any place, with a number that is not far away. */
static void write_any_entry(struct bed *b, struct fuzz_in *in) {
  unsigned int slot = fuzz_u8(in) % IB_MAX_RECVS, index = fuzz_u8(in) % IB_MAX_GROUP;
  uint32_t seq = b->match.next + (uint32_t)(int8_t)fuzz_u8(in);
  struct ib_cts cts = {.addr = fuzz_u64(in), .size = fuzz_u64(in), .tag = fuzz_u8(in) % 4, .count = fuzz_u8(in),
                       .index = fuzz_u8(in)};
  ib_cts_encode(&cts, seq, &b->ring->slots[slot][index]);
  b->written[slot][index]++;
}

static void write_raw(struct bed *b, struct fuzz_in *in) {
  unsigned int slot = fuzz_u8(in) % IB_MAX_RECVS, at = fuzz_u16(in) % sizeof b->ring->slots[0];
  size_t size = fuzz_u8(in) % 65;
  if (size > sizeof b->ring->slots[0] - at) size = sizeof b->ring->slots[0] - at;
  const uint8_t *bytes = fuzz_take(in, &size);
  if (size) memcpy((uint8_t *)b->ring->slots[slot] + at, bytes, size);
}

/* False: the peer has written what is invalid, which ends the connection. */
static bool take(struct bed *b, uint32_t tag) {
  const struct ib_cts *buffer = NULL;
  uint32_t takes = b->match.takes;
  enum ib_cts_found found = ib_cts_take(&b->match, tag, &buffer);
  FUZZ_CHECK((found == IB_CTS_TAKEN) == (b->match.takes != takes));
  FUZZ_CHECK(b->match.next - b->match.oldest <= IB_MAX_RECVS);
  if (found != IB_CTS_TAKEN) return found != IB_CTS_INVALID;
  FUZZ_CHECK(buffer->tag == tag && buffer->slot < IB_MAX_RECVS);
  FUZZ_CHECK(buffer->count >= 1 && buffer->count <= IB_MAX_GROUP && buffer->index < buffer->count);
  FUZZ_CHECK(buffer->size <= RAIL_NET_MAX_BYTES && buffer->addr + buffer->size >= buffer->addr);
  FUZZ_CHECK(buffer == &b->match.buffers[buffer->slot][buffer->index]);
  FUZZ_CHECK(++b->taken[buffer->slot][buffer->index] <= b->written[buffer->slot][buffer->index]);
  return true;
}

static void look(const struct bed *b) {
  uint32_t tags[3];
  unsigned int n = ib_cts_tags(&b->match, tags, 3);
  FUZZ_CHECK(n <= IB_MAX_RECVS * IB_MAX_GROUP);
  for (unsigned int i = 0; i < n && i < 3; i++) FUZZ_CHECK(tags[i] < 4);
  (void)ib_cts_lacks_first(&b->match);
}

/* Immediates: 32 bits of the peer's. */
static void decode_imm(uint32_t bits, unsigned int all) {
  struct ib_imm imm;
  ib_imm_decode(bits, all, &imm);
  FUZZ_CHECK(imm.slot < IB_MAX_RECVS && imm.index < IB_MAX_GROUP && imm.parts >= 1 && (!imm.error || !imm.body));
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  struct bed b = {.ring = aligned_alloc(64, sizeof *b.ring)};
  FUZZ_CHECK(b.ring);
  memset(b.ring, 0, sizeof *b.ring);
  ib_cts_match_init(&b.match, b.ring);
  decode_imm(fuzz_u32(&in), 1 + fuzz_u8(&in));
  for (bool goes_on = true; in.left && goes_on;) {
    switch ((enum step)(fuzz_u8(&in) % STEPS)) {
      case ENTRY: write_entry(&b, &in); break;
      case ANY_ENTRY: write_any_entry(&b, &in); break;
      case RAW: write_raw(&b, &in); break;
      case TAKE: goes_on = take(&b, fuzz_u8(&in) % 4); break;
      case LOOK: look(&b); break;
      case STEPS: break;
    }
  }
  free(b.ring);
}

static void put_entry(struct fuzz_out *out, unsigned int ahead, unsigned int count, unsigned int index,
                      unsigned int tag) {
  fuzz_put8(out, ENTRY);
  fuzz_put8(out, ahead);
  fuzz_put8(out, count - 1);
  fuzz_put8(out, index);
  fuzz_put16(out, 4096);
  fuzz_put8(out, tag);
}

static void put_take(struct fuzz_out *out, unsigned int tag) {
  fuzz_put8(out, TAKE);
  fuzz_put8(out, tag);
}

static void begin(struct fuzz_out *out) {
  out->size = 0;
  fuzz_put32(out, 3u << 27 | 1u << 24 | 2u << 21 | 5u << 16 | 77);
  fuzz_put8(out, 3);
}

void fuzz_make_seeds(void) {
  struct fuzz_out out;
  begin(&out);
  for (unsigned int i = 0; i < 3 * IB_MAX_RECVS; i++) { /* around the ring */
    put_entry(&out, 0, 1, 0, i % 4);
    put_take(&out, i % 4);
  }
  fuzz_seed("in-order", out.bytes, out.size);
  begin(&out);
  for (unsigned int i = 8; i-- > 0;) put_entry(&out, 0, 8, i, i % 4); /* the first entry last */
  fuzz_put8(&out, LOOK);
  for (unsigned int i = 0; i < 8; i++) put_take(&out, 3 - i % 4);
  put_entry(&out, 1, 1, 0, 2);
  put_take(&out, 2);
  put_entry(&out, 0, 1, 0, 1);
  put_take(&out, 2);
  put_take(&out, 1);
  fuzz_put8(&out, LOOK);
  fuzz_seed("group", out.bytes, out.size);
  begin(&out);
  for (unsigned int i = 0; i < IB_MAX_RECVS + 1; i++) { /* one more than there are slots */
    put_entry(&out, 0, 1, 0, 1);
    put_take(&out, 2);
  }
  fuzz_seed("full", out.bytes, out.size);
  begin(&out);
  put_entry(&out, 0, 2, 0, 1);
  put_take(&out, 1); /* torn */
  fuzz_put8(&out, ANY_ENTRY);
  fuzz_put8(&out, 1);
  fuzz_put8(&out, 1);
  fuzz_put8(&out, 0);
  fuzz_put64(&out, 4096);
  fuzz_put64(&out, 100);
  fuzz_put8(&out, 1);
  fuzz_put8(&out, 2);
  fuzz_put8(&out, 1);
  put_take(&out, 1);
  put_take(&out, 1);
  fuzz_put8(&out, RAW);
  fuzz_put8(&out, 2);
  fuzz_put16(&out, 0);
  fuzz_put8(&out, 64);
  struct ib_cts_wire wire;
  ib_cts_encode(&(struct ib_cts){.addr = UINT64_MAX, .size = 2, .tag = 1, .count = 1}, 2, &wire);
  fuzz_put(&out, &wire, sizeof wire);
  put_take(&out, 1); /* invalid */
  fuzz_seed("torn-and-invalid", out.bytes, out.size);
}
