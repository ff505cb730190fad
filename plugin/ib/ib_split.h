/* SPDX-License-Identifier: Apache-2.0
 *
 * How a message becomes RDMA writes, and what its immediates say. Pure.
 *
 * A message has 1 to 128 parts, each on a QP of its own; all but the last are
 * multiples of IB_ALIGN bytes. A part is a chain of plain writes (its body) and
 * one write with immediate (its tail), the only one that costs the receiver a
 * receive WR. A part of up to one write is its tail, unless adaptive routing wants
 * the bulk without immediate. The tail's length is in the receiver's completion;
 * the body's is in the immediate, as mantissa << (7 + exponent), so the
 * body is a multiple of that:
 *
 *   bit 31..27 row of the CTS | 26..24 index | 23..21 parts code | 20..16 exponent | 15..0 mantissa
 *
 * parts code c: 1 << c parts for c < 7; 7: all QPs that a message may have (the plan's qps_per_message).
 * Exponent 31 is no length but a word to the receiver: mantissa is enum ib_imm_word.
 */
#ifndef IB_SPLIT_H
#define IB_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "plugin/ib/ib_plan.h"

enum ib_imm_word {
  IB_IMM_TOO_LARGE = 1, /* the message is larger than this buffer; nothing was written; a message of one part */
};

struct ib_imm {
  unsigned int row, index, parts; /* parts: as a number */
  uint64_t body;                  /* bytes before the tail */
  unsigned int word;              /* 0: none */
};
/* Host byte order; `all` is the plan's qps_per_message. */
uint32_t ib_imm_encode(const struct ib_imm *imm, unsigned int all);
void ib_imm_decode(uint32_t bits, unsigned int all, struct ib_imm *imm);

/* How many parts: a power of two, or all; none smaller than min_part unless it is the only one. */
unsigned int ib_split_parts(uint64_t size, unsigned int all, uint64_t min_part);

struct ib_part {
  uint64_t offset, size;
  uint64_t body;  /* of `size`: goes ahead in plain writes; what is left is at most one write */
  uint64_t write; /* bytes of one write; more than max_write only where the immediate could not tell the body otherwise:
                     parts above 65535 of them */
};
/* Part i of n. separate: all but a short tail goes in the body (adaptive routing). */
struct ib_part ib_split_part(uint64_t size, unsigned int i, unsigned int n, unsigned int max_write_log2, bool separate);

#endif
