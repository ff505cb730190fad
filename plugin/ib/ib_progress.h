/* SPDX-License-Identifier: Apache-2.0
 * The data path: its calls, wr_id, and what ib_progress.c calls in the files that post. */
#ifndef IB_PROGRESS_H
#define IB_PROGRESS_H

#include <assert.h>

#include "plugin/ib/ib_comm.h"

/* ---- vtable calls ----------------------------------------------------------- */

rail_result_t ib_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);
rail_result_t ib_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request);
rail_result_t ib_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles, void **request);
rail_result_t ib_test(void *request, int *done, int *sizes);

/* ---- wr_id: what a completion is about ---------------------------------------
 * A failed completion says little else, so everything is in it: kind 8 | qp 16 | count 16 | arg 24 bits. */

enum ib_wr_kind {
  IB_WR_SEND = 1,   /* a write of a part: arg = index of the send request, count = writes of the chain up to it */
  IB_WR_RECV = 2,   /* a receive WR of a data QP */
  IB_WR_CTS = 3,    /* a signaled CTS write: count = CTS writes it stands for */
  IB_WR_FLUSH = 4,  /* arg = index of the flush request */
  IB_WR_VERIFY = 5, /* first writes: the handshake's, and of a QP that comes back */
  IB_WR_PROBE = 6,  /* a receiver's write of zero bytes behind CTS writes: count = those it stands for, and itself */
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

/* ---- ib_progress.c ------------------------------------------------------------ */

/* Polls all CQs of a comm, within a bound, and posts what waited for room; RAIL_OK or the comm's failure. */
rail_result_t ib_progress(struct ib_comm *comm);

/* After ib_comm_stop of a recv comm: waits until the HCA writes to no memory for it any more, which each QP shows by
 * flushing an unused receive WR, or with the SEND protocol by completing all that irecv posted. Microseconds; a second
 * at most for all calls together, then false. Any thread. */
bool ib_qp_drain(struct ib_comm *comm);

/* ---- ib_send.c ------------------------------------------------------------------ */

void ib_send_done(struct ib_comm *comm, const struct ibv_wc *wc);
/* Nothing completes: is it because all sends wait for the turn of one that is not called (ib_two_sided.h)? Then
 * RAIL_OK, or after RAIL_IB_TAG_TIMEOUT an error; else RAIL_IN_PROGRESS. */
rail_result_t ib_send_check_turn(struct ib_send_comm *sc);
/* Posts what waited for room in a send queue, as far as there is room now. */
rail_result_t ib_send_resume(struct ib_send_comm *sc);
/* A request that is done goes back into its pool; sizes may be NULL. Here and below. */
void ib_send_finish(struct ib_send_comm *sc, struct ib_send *send, int *sizes);
/* Messages go over the QPs that are UP (ib_failover.h), from now on. */
void ib_send_use_up(struct ib_send_comm *sc);
/* What follows when a QP is DOWN (ib_failover.h). Completes what the receiver has, which has had `count` tails on that
 * QP, and returns how many parts are left, to be resent; IB_COUNT_INVALID: that count cannot be. */
unsigned int ib_send_reconcile(struct ib_send_comm *sc, struct ib_qp *qp, uint32_t count);
/* Resends them. RAIL_IN_PROGRESS: some wait for room in a send queue, or for what is known of another lost QP. */
rail_result_t ib_send_resend(struct ib_send_comm *sc, struct ib_qp *lost);
/* Bytes that are posted, or wait for room, and have not completed. */
uint64_t ib_send_bytes_pending(const struct ib_send_comm *sc);

/* Gives `wr` the `len` bytes at `at` of the message; its flags are set anew. */
RAIL_HOT_INLINE void ib_attach_payload(const struct ib_send *send, const struct ib_qp *qp, uint64_t at, uint64_t len,
                                       struct ibv_send_wr *wr, struct ibv_sge *sge) {
  wr->sg_list = sge;
  wr->num_sge = len != 0;
  wr->send_flags = 0;
  if (!len) return;
  assert(send->mr); /* isend refuses bytes without a registration */
  sge->addr = (uintptr_t)send->data + at;
  sge->length = (uint32_t)len;
  sge->lkey = send->mr->lkeys[qp->rail];
  if (len <= qp->max_inline && send->mr->type == RAIL_PTR_HOST) wr->send_flags = IBV_SEND_INLINE;
}

/* ---- ib_recv.c ------------------------------------------------------------------ */

rail_result_t ib_recv_done(struct ib_comm *comm, const struct ibv_wc *wc);
/* The same for a receive WR with the caller's memory (ib_two_sided.h). */
rail_result_t ib_recv_buffer_done(struct ib_comm *comm, const struct ibv_wc *wc);
void ib_recv_cts_done(struct ib_comm *comm, const struct ibv_wc *wc);
void ib_recv_finish(struct ib_recv *recv, int *sizes);
/* What follows when the QP that carried CTS writes is DOWN (ib_failover.h): takes another one, and returns how many
 * CTS writes are to be resent. */
unsigned int ib_recv_move_cts(struct ib_recv_comm *rc, unsigned int qp);
/* Resends them. RAIL_IN_PROGRESS: some wait for room in the send queue. */
rail_result_t ib_recv_resend(struct ib_recv_comm *rc);
/* When nothing completes: posts a write whose completion stands for all CTS writes so far. */
rail_result_t ib_recv_probe(struct ib_recv_comm *rc);

/* ---- ib_flush.c ----------------------------------------------------------------- */

void ib_flush_done(struct ib_comm *comm, const struct ibv_wc *wc);
void ib_flush_finish(struct ib_recv_comm *rc, struct ib_request *flush);
/* A rail has no QP left that is up: no flush waits for it any more. */
void ib_flush_lose_rail(struct ib_recv_comm *rc, unsigned int rail);
/* Makes the QP of such a rail anew, one step per call, each behind a poll that found nothing. RAIL_OK: flushes wait for
 * it again; RAIL_IN_PROGRESS; or an error, after which it may be called again later. */
rail_result_t ib_flush_return_rail(struct ib_recv_comm *rc, unsigned int rail);
bool ib_flush_is_pending(const struct ib_recv_comm *rc);

#endif
