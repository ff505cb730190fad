/* SPDX-License-Identifier: Apache-2.0
 * test, the one function that polls, and wr_id, by which completions find the files that post. */
#ifndef IB_PROGRESS_H
#define IB_PROGRESS_H

#include "plugin/ib/ib_comm.h"

rail_result_t ib_test(void *request, int *done, int *sizes);

/* ---- wr_id: what a completion is about ---------------------------------------
 * A failed completion says little else, so everything is in it: kind 8 | qp 16 | count 16 | arg 24 bits. */

enum ib_wr_kind {
  IB_WR_SEND = 1,   /* a write of a part: arg = index of the send request, count = writes of the chain up to it */
  IB_WR_RECV = 2,   /* a receive WR of a data QP */
  IB_WR_CTS = 3,    /* a signaled CTS write: count = CTS writes it stands for */
  IB_WR_FLUSH = 4,  /* arg = index of the flush request */
  IB_WR_VERIFY = 5, /* first writes: the handshake's, and of a QP that comes back */
  IB_WR_PROBE = 6,  /* a write of zero bytes: count = itself, and the CTS writes before it that it stands for */
  IB_WR_BUFFER = 7, /* a receive WR with the caller's memory: arg = ib_buffer_arg (ib_two_sided.h) */
};

static inline uint64_t ib_wr_id(enum ib_wr_kind kind, unsigned int qp, unsigned int count, unsigned int arg) {
  return (uint64_t)kind << 56 | (uint64_t)qp << 40 | (uint64_t)(count & 0xffff) << 24 | (arg & 0xffffff);
}
/* The same, from ib_qp.wr_id. */
static inline uint64_t ib_wr_id_of(const struct ib_qp *qp, unsigned int count, unsigned int arg) {
  return qp->wr_id | (uint64_t)count << 24 | arg;
}
static inline enum ib_wr_kind ib_wr_kind(uint64_t id) { return (enum ib_wr_kind)(id >> 56); }
static inline unsigned int ib_wr_qp(uint64_t id) { return (unsigned int)(id >> 40) & 0xffff; }
static inline unsigned int ib_wr_count(uint64_t id) { return (unsigned int)(id >> 24) & 0xffff; }
static inline unsigned int ib_wr_arg(uint64_t id) { return (unsigned int)id & 0xffffff; }

/* ---- polling ------------------------------------------------------------------ */

/* Polls all CQs of a comm, within a bound, and posts what waited for room; RAIL_OK or the comm's failure. */
rail_result_t ib_progress(struct ib_comm *comm);

/* After ib_comm_stop of a recv comm: waits until the HCA writes to no memory for it any more, which each QP shows by
 * flushing an unused receive WR, or with the SEND protocol by completing all that irecv posted. Microseconds; a second
 * at most for all calls together, then false. Any thread. */
bool ib_qp_drain(struct ib_comm *comm);

#endif
