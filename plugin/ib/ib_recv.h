/* SPDX-License-Identifier: Apache-2.0
 * A receive from irecv to its completion. */
#ifndef IB_RECV_H
#define IB_RECV_H

#include "plugin/ib/ib_comm.h"

rail_result_t ib_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request);

/* ---- the comm ---- */

/* NULL: out of memory. The handshake fills in the rest of the base. */
struct ib_comm *ib_recv_comm_alloc(void);
/* Posts the receive WRs, unless irecv does (ib_two_sided.h); the QPs are in INIT. */
rail_result_t ib_recv_comm_prepost(struct ib_comm *comm);
/* Posts those of one QP; errno of ibv_post_recv, or 0. */
int ib_recv_prepost_qp(struct ib_comm *comm, struct ib_qp *qp);
/* The QPs are in RTS, the keys are known. `progress`: ib_progress. */
void ib_recv_comm_start(struct ib_comm *comm, const struct ib_remote_ring *ring,
                        rail_result_t (*progress)(struct ib_comm *comm));

/* ---- from test ---- */

rail_result_t ib_recv_done(struct ib_comm *comm, const struct ibv_wc *wc);
/* The same for a receive WR with the caller's memory (ib_two_sided.h). */
rail_result_t ib_recv_buffer_done(struct ib_comm *comm, const struct ibv_wc *wc);
void ib_recv_cts_done(struct ib_comm *comm, const struct ibv_wc *wc);
/* When nothing completes: posts a write whose completion stands for all CTS writes so far. */
rail_result_t ib_recv_probe(struct ib_recv_comm *rc);
/* A request that is done is free again; sizes may be NULL. Returns its result. */
rail_result_t ib_recv_finish(struct ib_recv *recv, int *sizes);
/* ---- the loss of a QP ---- */

/* What follows when the QP that carried CTS writes is DOWN (ib_failover.h): takes another one, and returns how many
 * CTS writes are to be resent. */
unsigned int ib_recv_move_cts(struct ib_recv_comm *rc, unsigned int qp);
/* Resends them. RAIL_IN_PROGRESS: some wait for room in the send queue. */
rail_result_t ib_recv_resend(struct ib_recv_comm *rc);

#endif
