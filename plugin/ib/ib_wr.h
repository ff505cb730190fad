/* SPDX-License-Identifier: Apache-2.0
 * wr_id: what a completion is about. Of a failed one little else counts, so everything is in it. */
#ifndef IB_WR_H
#define IB_WR_H

#include <stdint.h>

enum ib_wr_kind {
  IB_WR_SEND = 1,   /* a write of a part: arg = index of the send request, count = writes of the chain up to it */
  IB_WR_RECV = 2,   /* a receive WR of a data QP */
  IB_WR_CTS = 3,    /* a CTS write that was asked to complete: count = CTS writes it stands for */
  IB_WR_FLUSH = 4,  /* arg = index of the flush request */
  IB_WR_VERIFY = 5, /* the handshake's first writes */
  IB_WR_ASK = 6,    /* a receiver's write of nothing, behind CTS writes: count = those it stands for, and itself */
};

/* kind 8 | qp 16 | count 16 | arg 24 */
static inline uint64_t ib_wr_id(enum ib_wr_kind kind, unsigned int qp, unsigned int count, unsigned int arg) {
  return (uint64_t)kind << 56 | (uint64_t)qp << 40 | (uint64_t)(count & 0xffff) << 24 | (arg & 0xffffff);
}
static inline enum ib_wr_kind ib_wr_kind(uint64_t id) { return (enum ib_wr_kind)(id >> 56); }
static inline unsigned int ib_wr_qp(uint64_t id) { return (unsigned int)(id >> 40) & 0xffff; }
static inline unsigned int ib_wr_count(uint64_t id) { return (unsigned int)(id >> 24) & 0xffff; }
static inline unsigned int ib_wr_arg(uint64_t id) { return (unsigned int)id & 0xffffff; }

#endif
