/* SPDX-License-Identifier: Apache-2.0
 *
 * Notices: how each part of a message is reported where a device has no write with immediate (iWARP: RFC 5040 has no
 * immediate data). Behind the part's writes, on the same QP, goes a SEND of 8 bytes, inline; it consumes a receive WR
 * as an immediate would, and the receive WRs have memory for it. Plain writes that were posted before are in place when
 * a SEND is received (RFC 5040, 5.5), as with an immediate.
 *
 * The bytes are what the immediate would be, and the length of the write that it would have come with.
 */
#include "plugin/ib/ib_progress.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- memory ------------------------------------------------------------------ */

static size_t bytes_of(const struct ib_comm *comm) {
  return RAIL_ROUND_UP(comm->plan.nqps * IB_RECV_DEPTH * sizeof(struct ib_notice_wire), (size_t)sysconf(_SC_PAGESIZE));
}

bool ib_notices_open(struct ib_comm *comm) {
  void *memory = NULL;
  if (posix_memalign(&memory, (size_t)sysconf(_SC_PAGESIZE), bytes_of(comm)) != 0) return false;
  memset(memory, 0, bytes_of(comm));
  ib_recv_comm_of(comm)->notices = memory;
  return true;
}

bool ib_notices_register(struct ib_comm *comm, unsigned int rail) {
  struct ib_rail *r = &comm->rails[rail];
  r->notice_mr = ib_verbs.reg_mr(r->port->hca->pd, ib_recv_comm_of(comm)->notices, bytes_of(comm),
                                 IBV_ACCESS_LOCAL_WRITE);
  return r->notice_mr != NULL;
}

void ib_notices_close(struct ib_comm *comm) {
  if (comm->sender || !ib_recv_comm_of(comm)->notices) return;
  for (unsigned int r = 0; r < comm->nrails; r++) {
    if (comm->rails[r].notice_mr) (void)ib_verbs.dereg_mr(comm->rails[r].notice_mr);
    comm->rails[r].notice_mr = NULL;
  }
  free(ib_recv_comm_of(comm)->notices);
  ib_recv_comm_of(comm)->notices = NULL;
}

/* ---- the receiver -------------------------------------------------------------- */

void ib_notices_attach(struct ib_recv_comm *rc, struct ib_qp *qp, struct ibv_recv_wr *wrs, struct ibv_sge *sges) {
  struct ib_notice_wire *first = &rc->notices[qp->index * IB_RECV_DEPTH];
  for (unsigned int i = 0; i < IB_RECV_BATCH; i++) {
    unsigned int place = qp->next_notice + i;
    sges[i] = (struct ibv_sge){.addr = (uintptr_t)&first[place], .length = sizeof *first,
                               .lkey = rc->base.rails[qp->rail].notice_mr->lkey};
    wrs[i].wr_id |= place; /* its argument (ib_wr_id) */
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
  }
  qp->next_notice = (uint16_t)((qp->next_notice + IB_RECV_BATCH) % IB_RECV_DEPTH);
}

bool ib_notice_take(const struct ib_recv_comm *rc, const struct ibv_wc *wc, uint32_t *imm, uint64_t *rest) {
  const unsigned int qp = ib_wr_qp(wc->wr_id), place = ib_wr_arg(wc->wr_id);
  const struct ib_notice_wire *notice = &rc->notices[qp * IB_RECV_DEPTH + place];
  if (wc->opcode != IBV_WC_RECV || wc->byte_len != sizeof *notice) return false;
  *imm = le32toh(notice->imm);
  *rest = le32toh(notice->rest);
  return true;
}

/* ---- the sender ------------------------------------------------------------------ */

void ib_notice_make(const struct ib_send_comm *sc, struct ib_imm *imm, uint64_t size, struct ibv_send_wr *wr,
                    struct ibv_sge *sge, struct ib_notice_wire *notice) {
  unsigned int unit = ib_imm_unit_log2(size);
  imm->body = size >> unit << unit;
  *notice = (struct ib_notice_wire){.imm = htole32(ib_imm_encode(imm, sc->base.plan.qps_per_message)),
                                    .rest = htole32((uint32_t)(size - imm->body))};
  *sge = (struct ibv_sge){.addr = (uintptr_t)notice, .length = sizeof *notice};
  wr->opcode = IBV_WR_SEND;
  wr->send_flags |= IBV_SEND_INLINE;
  wr->sg_list = sge;
  wr->num_sge = 1;
}
