/* SPDX-License-Identifier: Apache-2.0
 * A send from isend to its completion. */
#ifndef IB_SEND_H
#define IB_SEND_H

#include <assert.h>

#include "plugin/ib/ib_comm.h"

rail_result_t ib_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request);

/* ---- the comm ---- */

/* NULL: out of memory. The handshake fills in the rest of the base. */
struct ib_comm *ib_send_comm_alloc(void);
/* The QPs are in RTS, the keys are known. `progress`: ib_progress. False: out of memory. */
bool ib_send_comm_start(struct ib_comm *comm, rail_result_t (*progress)(struct ib_comm *comm));

/* ---- from test ---- */

void ib_send_done(struct ib_comm *comm, const struct ibv_wc *wc);
/* Nothing completes: is it because all sends wait for the turn of one that is not called (ib_two_sided.h)? Then
 * RAIL_OK, or after RAIL_IB_TAG_TIMEOUT an error; else RAIL_IN_PROGRESS. */
rail_result_t ib_send_check_turn(struct ib_send_comm *sc);
/* Posts what waited for room in a send queue, as far as there is room now. */
rail_result_t ib_send_resume(struct ib_send_comm *sc);
/* Bytes that are posted, or wait for room, and have not completed. */
uint64_t ib_send_bytes_pending(const struct ib_send_comm *sc);
/* A request that is done goes back into its pool; sizes may be NULL. Returns its result. */
rail_result_t ib_send_finish(struct ib_send *send, int *sizes);
/* ---- the loss and the return of a QP ---- */

/* Messages go over the QPs that are UP (ib_failover.h), from now on. */
void ib_send_use_up(struct ib_send_comm *sc);
/* What follows when a QP is DOWN (ib_failover.h): completes the entries of qp->posted that are over. Those that are
 * left in it are parts to be resent. */
void ib_send_reconcile(struct ib_send_comm *sc, struct ib_qp *qp, const struct ib_posted *over, unsigned int nover);
/* Resends them. RAIL_IN_PROGRESS: some wait for room in a send queue, or for what is known of another lost QP. */
rail_result_t ib_send_resend(struct ib_send_comm *sc, struct ib_qp *lost);
/* ---- what ib_two_sided.c posts, too ---- */

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
  if (len <= qp->max_inline && send->mr->memory.type == RAIL_PTR_HOST) wr->send_flags = IBV_SEND_INLINE;
}

#endif
