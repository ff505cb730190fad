/* SPDX-License-Identifier: Apache-2.0
 *
 * Notices: how each part of a message is reported where a device has no write with immediate (iWARP: RFC 5040 has no
 * immediate data). Behind the part's writes, on the same QP, goes a SEND of 8 bytes, inline; it consumes a receive WR
 * as an immediate would, and the receive WRs have memory for it. Plain writes that were posted before are in place when
 * a SEND is received (RFC 5040, 5.5), as with an immediate.
 *
 * The bytes are what the immediate would be, and the length of the write that it would have come with.
 */
#ifndef IB_NOTICE_H
#define IB_NOTICE_H

#include "plugin/ib/ib_comm.h"

/* ---- the receiver's memory for them ----------------------------------------- */

/* For a recv comm whose plan has notices. False: out of memory. */
bool ib_notices_open(struct ib_comm *comm);
/* For the QPs over that rail. False: errno says why. */
bool ib_notices_register(struct ib_comm *comm, unsigned int rail);
/* The QPs are destroyed. Does nothing where there are none. */
void ib_notices_close(struct ib_comm *comm);

/* Gives a batch of IB_RECV_BATCH receive WRs of that QP the memory whose notices have been taken longest ago. */
void ib_notices_attach(struct ib_recv_comm *rc, struct ib_qp *qp, struct ibv_recv_wr *wrs, struct ibv_sge *sges);
/* Reads the one that has come. False: it is none. */
bool ib_notice_take(const struct ib_recv_comm *rc, const struct ibv_wc *wc, uint32_t *imm, uint64_t *rest);

/* ---- the sender's -------------------------------------------------------------- */

/* Makes `wr` the notice of a part of `size` bytes. `imm` has slot, index and number of parts; its body is set here.
 * `notice` must live until `wr` is posted. */
void ib_notice_make(const struct ib_send_comm *sc, struct ib_imm *imm, uint64_t size, struct ibv_send_wr *wr,
                    struct ibv_sge *sge, struct ib_notice_wire *notice);

#endif
