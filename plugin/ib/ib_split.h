/* SPDX-License-Identifier: Apache-2.0
 *
 * Split: a message into parts. Pure.
 *
 *   part   the bytes of a message that go over one QP; a message has 1 to 128
 *   body   of a part: its first bytes, by plain RDMA writes; it may be empty
 *   tail   of a part: the rest, by one RDMA write with immediate, which alone consumes a receive WR of the receiver
 *   share  a part's place and size (ib_stripe.h), where parts are not equal
 *   chain  work requests, linked by `next`, that one ibv_post_send posts (ib_send.c)
 *
 * All parts but the last are multiples of IB_ALIGN bytes. A part of up to one write is its tail, unless adaptive
 * routing wants the bulk without immediate. The tail's length is in the receiver's completion; the body's is in the
 * immediate, so the body is a multiple of the unit in which the immediate counts. With the SEND protocol
 * (ib_two_sided.h) the buffer is divided, a part is one SEND, and a QP may have several.
 */
#ifndef IB_SPLIT_H
#define IB_SPLIT_H

#include "plugin/ib/ib_cts.h"

struct ib_part {
  uint64_t offset, size;
  uint64_t body;  /* of `size`: goes first, in plain writes; the rest is at most one write */
  uint64_t write; /* bytes of one write; above max_write only for a part of more than 65535 such writes, which the
                     immediate could not count otherwise */
};

/* How many parts: a power of two, or all; none smaller than min_part unless it is the only one. */
static inline unsigned int ib_split_parts(uint64_t size, unsigned int all, uint64_t min_part) {
  if (all == 1 || size < 2 * IB_ALIGN || size < min_part) return 1;
  uint64_t most = size / RAIL_MAX(min_part, (uint64_t)IB_ALIGN);
  if (most >= all) return all;
  return most < 2 ? 1 : 1u << (31 - (unsigned int)__builtin_clz((unsigned int)most));
}

/* Part i of n equal ones; its writes are not set. */
RAIL_HOT_INLINE struct ib_part ib_split_part(uint64_t size, unsigned int i, unsigned int n) {
  struct ib_part part = {.size = size};
  if (n == 1) return part;
  uint64_t lines = (size + IB_ALIGN - 1) / IB_ALIGN, each = lines / n, more = lines % n;
  part.offset = RAIL_MIN((i * each + RAIL_MIN(i, more)) * IB_ALIGN, size);
  part.size = RAIL_MIN((each + (i < more)) * IB_ALIGN, size - part.offset);
  return part;
}

/* A part into writes. separate: all but a short tail goes in the body (adaptive routing). */
RAIL_HOT_INLINE void ib_split_writes(struct ib_part *part, unsigned int max_write_log2, bool separate) {
  unsigned int unit = ib_imm_unit_log2(part->size), log2 = RAIL_MAX(max_write_log2, unit);
  part->write = 1ull << log2;
  if (separate) part->body = part->size >> unit << unit;
  else part->body = part->size <= part->write ? 0 : (part->size - 1) >> log2 << log2;
}

#endif
