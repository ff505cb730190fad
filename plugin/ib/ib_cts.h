/* SPDX-License-Identifier: Apache-2.0
 *
 * Clear to send (CTS). The receiver tells of each receive (one irecv) by an RDMA write into a ring in the sender's
 * memory: IB_MAX_RECVS slots, one per receive, slot = (number of the receive) % IB_MAX_RECVS, of up to 8 entries, one
 * per buffer. The receiver writes slot k + 32 only when receive k is done, and thus after the sender has read slot k:
 * there is no other flow control.
 *
 * An entry's last word holds the number of the receive and a checksum of the other 60 bytes. So nothing depends on the
 * order in which the HCA's writes become visible:
 *
 *   an entry is torn     with the right number and a wrong checksum: it is still being written (IB_CTS_ENTRY_TORN)
 *   a receive is torn    while an entry of it is, or one is not there yet beside others that are (IB_CTS_NEXT_TORN)
 *   it is not posted     while no entry has its number (IB_CTS_EMPTY, IB_CTS_OTHER_TAGS)
 *
 * The reader tries again later. It reads a receive's first entry first: a receive that lacks that one alone looks as if
 * it were not posted, and only ib_cts_lacks_first tells the difference. That reads up to seven lines of memory: isend
 * asks it in one of 64 calls that find no receive, and before it gives a tag up. A receive that stays torn ends the
 * connection when the peer's HCA must have finished all retransmissions (check_torn, ib_send.c).
 *
 * Below it: the split of a message into parts and writes, and the immediates by which the sender's writes are reported
 * to the receiver. All of it is pure: no verbs. The ring has one reader, and one writer (the HCA).
 */
#ifndef IB_CTS_H
#define IB_CTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/compiler.h"
#include "plugin/ib/ib_plan.h"

/* On the wire: little-endian, 64 bytes, 64-byte aligned. */
struct ib_cts_wire {
  uint64_t addr;
  uint64_t size;                /* capacity of the buffer */
  uint32_t rkeys[IB_MAX_RAILS]; /* by the receiver's rail */
  uint32_t tag;
  uint8_t count, index; /* of the buffers of this receive */
  uint8_t zero[2];
  uint32_t seq;  /* number of the receive, from 1, modulo 2^32 */
  uint32_t checksum; /* of all the above */
};
_Static_assert(sizeof(struct ib_cts_wire) == 64, "an entry is a cache line");

struct ib_cts_ring { /* in registered memory of the sender */
  struct ib_cts_wire slots[IB_MAX_RECVS][IB_MAX_GROUP];
};

/* In host order, with the wire's layout: an entry is copied once. */
struct ib_cts {
  union {
    struct {
      uint64_t addr, size;
      union {
        uint32_t rkeys[IB_MAX_RAILS];
        struct {
          uint32_t parts, first_qp; /* ib_two_sided.c: part i goes over QP first_qp + i, modulo their number */
        };
      };
      uint32_t tag;
      uint8_t count, index;
      uint8_t slot, unused; /* slot: for the immediate; zero on the wire */
    };
    uint64_t words[7];
  };
};
_Static_assert(sizeof(struct ib_cts) == offsetof(struct ib_cts_wire, seq), "all words but the last");

/* `slot` and `unused` of *cts must be 0, as they are on the wire. */
void ib_cts_encode(const struct ib_cts *cts, uint32_t seq, struct ib_cts_wire *wire);
enum ib_cts_entry_state {
  IB_CTS_ENTRY_NOT_YET,
  IB_CTS_ENTRY_GOOD,
  IB_CTS_ENTRY_TORN, /* the number is there, the checksum is wrong */
  IB_CTS_ENTRY_BAD,  /* the checksum is right, the values are invalid */
};
enum ib_cts_entry_state ib_cts_decode(const struct ib_cts_wire *wire, uint32_t seq, unsigned int index,
                                      struct ib_cts *cts);

/* ---- matching: which buffer the next send of a tag goes into ------------ */

/* A send takes the oldest buffer of its tag that no send has taken. Entries are read from the ring once, checked and
 * kept here, until the receiver uses the slot again: that is when the receive is done, and nothing of its messages is
 * to be posted any more. A receiver that reuses a slot early can only misdirect writes within its own
 * memory. */
struct ib_cts_match {
  const struct ib_cts_ring *ring;
  uint32_t oldest, next; /* numbers of receives: the first with a buffer left; the first that was not read yet */
  uint32_t takes;      /* buffers taken: a change shows that a send matched */
  uint8_t left[IB_MAX_RECVS]; /* one bit per buffer that no send has taken */
  uint32_t tags[IB_MAX_RECVS][IB_MAX_GROUP];
  struct ib_cts buffers[IB_MAX_RECVS][IB_MAX_GROUP];
};

void ib_cts_match_init(struct ib_cts_match *m, const struct ib_cts_ring *ring);
enum ib_cts_found {
  IB_CTS_TAKEN,      /* *buffer, in the table, is the caller's */
  IB_CTS_EMPTY,      /* the receiver has posted nothing more */
  IB_CTS_OTHER_TAGS, /* there are buffers, of other tags */
  IB_CTS_NEXT_TORN,  /* the oldest receive that was not read yet is torn; there may be buffers of other tags */
  IB_CTS_INVALID,    /* an entry with a right checksum and invalid values */
};
enum ib_cts_found ib_cts_take(struct ib_cts_match *m, uint32_t tag, const struct ib_cts **buffer);
/* The next receive's first entry is missing: has another of its entries arrived? Never of receive 0, 2^32 receives
 * after the first: what was never written has its number. */
bool ib_cts_lacks_first(const struct ib_cts_match *m);
/* For log lines: up to `max` tags of buffers that no send has taken, oldest first; returns how many there are. */
unsigned int ib_cts_tags(const struct ib_cts_match *m, uint32_t *tags, unsigned int max);

/* ---- split: a message into parts, a part into writes ------------------------------
 *
 *   part    the bytes of a message that go over one QP; a message has 1 to 128
 *   body    of a part: its first bytes, by plain RDMA writes; it may be empty
 *   tail    of a part: the rest, by one RDMA write with immediate, which alone consumes a receive WR of the receiver
 *   layout  where a part lies in its message, and how it is split into writes
 *   share   place and size of a part (ib_stripe.h), where parts are not equal
 *   chain   work requests, linked by `next`, that one ibv_post_send posts (ib_send.c)
 *
 * All parts but the last are multiples of IB_ALIGN bytes. A part of up to one write is its tail, unless adaptive
 * routing wants the bulk without immediate. The tail's length is in the receiver's completion; the body's is in the
 * immediate, so the body is a multiple of the unit in which the immediate counts. With the SEND protocol
 * (ib_two_sided.c) the buffer is divided, a part is one SEND, and a QP may have several.
 */

#define IB_ALIGN_LOG2 7
_Static_assert(1 << IB_ALIGN_LOG2 == IB_ALIGN, "a body is counted in lines");
#define IB_IMM_MANTISSA_MAX 0xffffu

struct ib_layout {
  uint64_t offset, size;
  uint64_t body;  /* of `size`: goes first, in plain writes; the rest is at most one write */
  uint64_t write; /* bytes of one write; above max_write only for a part of more than 65535 such writes, which the
                     immediate could not count otherwise */
};

/* How many parts: a power of two, or all; none smaller than min_part unless it is the only one. */
static inline unsigned int ib_count_parts(uint64_t size, unsigned int all, uint64_t min_part) {
  if (all == 1 || size < 2 * IB_ALIGN || size < min_part) return 1;
  uint64_t most = size / RAIL_MAX(min_part, (uint64_t)IB_ALIGN);
  if (most >= all) return all;
  return most < 2 ? 1 : 1u << (31 - (unsigned int)__builtin_clz((unsigned int)most));
}

/* Part i of n equal ones; its writes are not set. */
RAIL_HOT_INLINE struct ib_layout ib_equal_part(uint64_t size, unsigned int i, unsigned int n) {
  struct ib_layout layout = {.size = size};
  if (n == 1) return layout;
  uint64_t lines = (size + IB_ALIGN - 1) / IB_ALIGN, each = lines / n, more = lines % n;
  layout.offset = RAIL_MIN((i * each + RAIL_MIN(i, more)) * IB_ALIGN, size);
  layout.size = RAIL_MIN((each + (i < more)) * IB_ALIGN, size - layout.offset);
  return layout;
}

/* log2 of the unit in which an immediate counts so many bytes: the least that does. */
static inline unsigned int ib_imm_unit_log2(uint64_t bytes) {
  unsigned int log2 = IB_ALIGN_LOG2;
  if (rail_likely(bytes <= (uint64_t)IB_IMM_MANTISSA_MAX << IB_ALIGN_LOG2)) return log2;
  while (bytes >> log2 > IB_IMM_MANTISSA_MAX) log2++;
  return log2;
}

/* A part into writes. separate: all but a short tail goes in the body (adaptive routing). */
RAIL_HOT_INLINE void ib_split_writes(struct ib_layout *layout, unsigned int max_write_log2, bool separate) {
  unsigned int unit = ib_imm_unit_log2(layout->size), log2 = RAIL_MAX(max_write_log2, unit);
  layout->write = 1ull << log2;
  if (separate) layout->body = layout->size >> unit << unit;
  else layout->body = layout->size <= layout->write ? 0 : (layout->size - 1) >> log2 << log2;
}

/* ---- immediates: the last write of each part reports it to the receiver ------
 *
 *   bit 31..27 slot of the CTS | 26..24 index | 23..21 parts code | 20..16 exponent | 15..0 mantissa
 *
 * parts code c: 1 << c parts for c < 7; 7: all QPs that a message may have (the plan's qps_per_message). The part's
 * body (above) has mantissa << (7 + exponent) bytes. With exponent 31 the mantissa is an error code (enum
 * ib_imm_error) instead of a length.
 */
enum ib_imm_error {
  IB_IMM_TOO_LARGE = 1, /* the message is larger than this buffer: nothing was written, and it has one part */
};

struct ib_imm {
  unsigned int slot, index, parts; /* parts: as a number */
  uint64_t body;                  /* bytes before the tail */
  unsigned int error;             /* enum ib_imm_error; 0: none */
};
#define IB_IMM_EXPONENT_ERROR 31u
#define IB_IMM_CODE_ALL 7u

/* Host byte order; `all` is the plan's qps_per_message. */
static inline uint32_t ib_imm_encode(const struct ib_imm *imm, unsigned int all) {
  unsigned int code = imm->parts == all ? IB_IMM_CODE_ALL : (unsigned int)__builtin_ctz(imm->parts);
  uint32_t at = imm->slot << 27 | imm->index << 24 | code << 21;
  if (rail_unlikely(imm->error)) return at | IB_IMM_EXPONENT_ERROR << 16 | imm->error;
  unsigned int log2 = ib_imm_unit_log2(imm->body);
  return at | (log2 - IB_ALIGN_LOG2) << 16 | (uint32_t)(imm->body >> log2);
}
static inline void ib_imm_decode(uint32_t bits, unsigned int all, struct ib_imm *imm) {
  unsigned int code = bits >> 21 & 7, exponent = bits >> 16 & 31, mantissa = bits & IB_IMM_MANTISSA_MAX;
  imm->slot = bits >> 27;
  imm->index = bits >> 24 & 7;
  imm->parts = code == IB_IMM_CODE_ALL ? all : 1u << code;
  const bool error = rail_unlikely(exponent == IB_IMM_EXPONENT_ERROR);
  imm->error = error ? mantissa : 0;
  imm->body = error ? 0 : (uint64_t)mantissa << (IB_ALIGN_LOG2 + exponent);
}

/* The same where a device has no immediates (ib_notice.c): a SEND of these bytes. On the wire: little-endian. */
struct ib_notice_wire {
  uint32_t imm;
  uint32_t rest; /* bytes of the part behind the body that `imm` has */
};
_Static_assert(sizeof(struct ib_notice_wire) == 8, "it is inline everywhere");

#endif
