/* SPDX-License-Identifier: Apache-2.0
 * The comm itself, piece by piece: completion queues, its own memory registered, queue pairs from nothing to RTS, and a
 * first write over each. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_connect.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_progress.h"

static void fill_base(struct ib_setup *s) {
  struct ib_comm *c = s->comm;
  c->device = s->device;
  c->plan = s->plan;
  c->nrails = s->mine.nrails;
  c->nremote_rails = s->theirs.nrails;
  c->profiler = s->ctx->profiler;
  c->sender_timeout = s->base.connector ? s->mine.timeout : s->theirs.timeout;
  c->receiver_timeout = s->base.connector ? s->theirs.timeout : s->mine.timeout;
  c->peer_process = s->theirs.process;
  rail_addr_text(&s->base.peer, c->peer_text);
  memcpy(c->remote_rails, s->theirs.rails, sizeof c->remote_rails);
  for (unsigned int i = 0; i < c->nrails; i++) {
    c->rails[i].port = s->ports[i];
    c->rails[i].gid_index = s->gid_index[i];
    c->rails[i].lid = s->mine.rails[i].lid;
    memcpy(c->rails[i].gid, s->mine.rails[i].gid, sizeof c->rails[i].gid);
  }
}

rail_result_t ib_build_comm(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  s->comm = base->connector ? ib_send_comm_alloc() : ib_recv_comm_alloc();
  if (!s->comm) return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "out of memory");
  fill_base(s);
  s->comm->qps = calloc(s->plan.nqps, sizeof *s->comm->qps);
  if (!s->comm->qps || rail_random_bytes(&s->ours.token, sizeof s->ours.token) != RAIL_OK)
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "out of memory, or no random bytes");
  s->ours.token |= 1; /* not 0, which unwritten memory holds */
  if (s->plan.notices && !base->connector && !ib_notices_open(s->comm))
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "out of memory");
  s->ours.nqps = s->plan.nqps;
  s->ours.nrails = s->mine.nrails;
  s->ours.ctrl_addr = (uintptr_t)s->comm->ctrl_buf;
  s->ours.verify_addr = (uintptr_t)s->comm->ctrl_buf->verify.in;
  if (ib_stats_comm_begin(s->comm) == RAIL_OK) return RAIL_OK;
  return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "out of memory (the line above says for what)");
}

/* ---- per rail ------------------------------------------------------------ */

rail_result_t ib_build_cqs(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct ib_rail *rail = &s->comm->rails[base->piece];
  const struct ib_port *port = rail->port;
  struct ib_qp_sizes sizes = ib_offer_sizes(s, port);
  int entries = base->connector || !ib_flush_is_needed(s->comm) ? 0 : IB_MAX_FLUSHES;
  for (unsigned int i = 0; i < s->plan.nqps; i++)
    if (s->plan.qps[i].local_rail == base->piece) entries += (int)(sizes.send_depth + sizes.recv_depth);
  if (entries > port->hca->attr.max_cqe)
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "%s has completion queues of up to %d "
                           "entries, and %d are needed; lower NCCL_IB_QPS_PER_CONNECTION", port->name,
                           port->hca->attr.max_cqe, entries);
  if (!ib_wait_create_cq(s->comm, rail, entries))
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "%s: no completion queue of %d entries: %s; "
                           "is the limit of locked memory (ulimit -l) large enough?", port->name, entries,
                           strerror(errno));
  return rail_setup_piece_done(base, s->comm->nrails);
}

rail_result_t ib_build_memory(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct ib_rail *rail = &s->comm->rails[base->piece];
  const size_t size = sizeof *s->comm->ctrl_buf;
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  rail->ctrl_mr = ib_verbs.reg_mr(rail->port->hca->pd, s->comm->ctrl_buf, size, access);
  if (!rail->ctrl_mr)
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "%s: %zu bytes of the connection's own cannot "
                           "be registered: %s; raise the limit of locked memory (ulimit -l unlimited)",
                           rail->port->name, size, strerror(errno));
  s->ours.rkeys[base->piece] = rail->ctrl_mr->rkey;
  if (s->plan.notices && !base->connector && !ib_notices_register(s->comm, base->piece))
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "%s: memory of notices cannot be registered: "
                           "%s; raise the limit of locked memory (ulimit -l unlimited)", rail->port->name,
                           strerror(errno));
  return rail_setup_piece_done(base, s->comm->nrails);
}

/* ---- per queue pair ------------------------------------------------------ */

/* ib_qp.c has logged the failure with device and queue pair; this line adds the peer. */
static rail_result_t qp_failed(struct ib_setup *s) {
  const struct ib_plan_qp *p = &s->plan.qps[s->base.piece];
  return rail_setup_fail(&s->base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "queue pair %u, from port %s to port %s of "
                         "the peer, could not be made (the line above says why)", s->base.piece,
                         s->mine.rails[p->local_rail].name, s->theirs.rails[p->remote_rail].name);
}

static rail_result_t set_attr(struct ib_setup *s, struct ib_qp *qp) {
  const struct ib_plan_qp *p = &s->plan.qps[qp->index];
  unsigned int retries = RAIL_MIN((unsigned int)ib_params.retry_cnt, s->ports[p->local_rail]->hca->max_retries);
  uint32_t psn;
  RAIL_TRY(rail_random_bytes(&psn, sizeof psn));
  qp->attr = (struct ib_qp_attr){
    .port = s->ports[p->local_rail]->number,
    .pkey_index = (uint16_t)ib_params.pkey,
    .sgid_index = (uint8_t)s->gid_index[p->local_rail],
    .grh = p->grh,
    .mtu = p->mtu,
    .sl = s->mine.sl,
    .traffic_class = s->mine.traffic_class,
    .timeout = (uint8_t)ib_params.timeout,
    .retry_cnt = (uint8_t)retries,
    .dlid = ib_plan_dlid(&s->mine.rails[p->local_rail], &s->theirs.rails[p->remote_rail]),
    .sq_psn = psn & 0xffffff,
  };
  memcpy(qp->attr.dgid, s->theirs.rails[p->remote_rail].gid, sizeof qp->attr.dgid);
  return RAIL_OK;
}

rail_result_t ib_build_qps(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct ib_qp *qp = &s->comm->qps[base->piece];
  const struct ib_plan_qp *p = &s->plan.qps[base->piece];
  const struct ib_rail *rail = &s->comm->rails[p->local_rail];
  struct ib_qp_sizes sizes = ib_offer_sizes(s, rail->port);
  qp->index = (uint16_t)base->piece;
  qp->rail = p->local_rail;
  qp->remote_rail = p->remote_rail;
  if (set_attr(s, qp) != RAIL_OK || ib_qp_create(qp, rail->port, rail->cq, &sizes, s->comm) != RAIL_OK)
    return qp_failed(s);
  if (s->plan.notices && qp->max_inline < sizeof(struct ib_notice_wire))
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "%s: its queue pairs take %u bytes inline, and "
                           "%zu are needed where a device has no write with immediate", rail->port->name,
                           qp->max_inline, sizeof(struct ib_notice_wire));
  return rail_setup_piece_done(base, s->plan.nqps);
}

static rail_result_t move_one(struct ib_setup *s, rail_result_t result) {
  if (result == RAIL_IN_PROGRESS) return result;
  return result == RAIL_OK ? rail_setup_piece_done(&s->base, s->plan.nqps) : qp_failed(s);
}

rail_result_t ib_build_inits(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  struct ib_qp *qp = &s->comm->qps[base->piece];
  return move_one(s, ib_qp_to_init(qp, s->comm->rails[qp->rail].port, access));
}

rail_result_t ib_build_rtrs(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  if (s->plan.rdmacm) return RAIL_OK; /* ib_cm.c has moved the QPs already */
  struct ib_qp *qp = &s->comm->qps[base->piece];
  const struct ib_qp_info *peer = &s->peers.qps[base->piece];
  qp->attr.dest_qpn = peer->qpn;
  qp->attr.rq_psn = peer->psn;
  qp->attr.ece = (struct ibv_ece){peer->ece_vendor, peer->ece_options, peer->ece_comp_mask};
  qp->attr.use_ece = s->plan.ece && (peer->ece_vendor || peer->ece_options);
  return move_one(s, ib_qp_to_rtr(qp, s->comm->rails[qp->rail].port));
}

rail_result_t ib_build_rtss(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  if (s->plan.rdmacm) return RAIL_OK; /* ib_cm.c has moved the QPs already */
  struct ib_qp *qp = &s->comm->qps[base->piece];
  return move_one(s, ib_qp_to_rts(qp, s->comm->rails[qp->rail].port));
}

/* ---- starting the data path ------------------------------------------------ */

/* Receive WRs first, then the flush queue pairs, which are connected to themselves. */
rail_result_t ib_build_receives(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  if (base->piece == 0) {
    if (ib_recv_comm_prepost(s->comm) != RAIL_OK)
      return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "no receives could be posted");
    return rail_setup_piece_done(base, 2);
  }
  rail_result_t result = ib_flush_open(s->comm);
  if (result == RAIL_OK || result == RAIL_IN_PROGRESS) return result;
  return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "no queue pair to flush GPU memory with");
}

rail_result_t ib_build_start(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct ib_remote_ring ring = {.addr = s->peers.ctrl_addr};
  memcpy(ring.rkeys, s->peers.rkeys, sizeof ring.rkeys);
  ib_wait_open(s->comm);
  bool ok = !s->plan.failover || ib_failover_init(s->comm) == RAIL_OK;
  if (base->connector && s->plan.two_sided) ok = ib_two_sided_open(s->comm, &ring) && ok;
  if (!base->connector) ib_recv_comm_start(s->comm, &ring, ib_progress);
  else ok = ib_send_comm_start(s->comm, ib_progress) && ok;
  if (ok) return RAIL_OK;
  return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "no memory, or no receives could be posted");
}

/* ---- first writes --------------------------------------------------------
 *
 * The first writes over each queue pair, both ways, into the peer's control buffer: a packet as large as the path's
 * MTU, which only has to arrive, and behind it the token that the peer waits for. The oob connection and RDMA take
 * different paths: TCP may work where a wrong GID, VLAN, MTU or firewall drops RDMA. Found here, the line names the
 * peer, two ports and two GIDs; found by the first message, half a minute later, it would be "retry exceeded".
 */

#define COMPLETIONS_AT_ONCE 16
#define WRITE_SIZE sizeof(uint64_t)

#define ADVICE \
  "TCP between the hosts works and RDMA does not: look at NCCL_IB_GID_INDEX, the VLANs and MTUs of both ports, " \
  "routing between the two GIDs, and UDP port 4791 in firewalls (RAIL_IB_VERIFY=0 leaves this test out)"

/* Both rings are zero until all first writes have arrived, so zeros may be written over them. */
_Static_assert(sizeof(struct ib_cts_ring) >= 128u << IBV_MTU_4096, "a packet fits");

rail_result_t ib_build_test_writes(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  if (!s->plan.verify) return RAIL_OK;
  struct ib_verify *words = &s->comm->ctrl_buf->verify;
  struct ib_qp *qp = &s->comm->qps[base->piece];
  char ports[IB_PORTS_TEXT];
  words->out = s->peers.token;
  const uint32_t lkey = s->comm->rails[qp->rail].ctrl_mr->lkey, rkey = s->peers.rkeys[qp->remote_rail];
  struct ibv_sge sges[] = {{.addr = s->ours.ctrl_addr, .length = 128u << qp->attr.mtu, .lkey = lkey},
                           {.addr = (uintptr_t)&words->out, .length = WRITE_SIZE, .lkey = lkey}};
  struct ibv_send_wr wrs[2], *bad = NULL;
  memset(wrs, 0, sizeof wrs);
  for (unsigned int i = 0; i < 2; i++) {
    wrs[i].wr_id = ib_wr_id(IB_WR_VERIFY, base->piece, i + 1, 0);
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
    wrs[i].opcode = IBV_WR_RDMA_WRITE;
    wrs[i].wr.rdma.rkey = rkey;
  }
  wrs[0].next = &wrs[1];
  wrs[0].wr.rdma.remote_addr = s->peers.ctrl_addr;
  wrs[1].wr.rdma.remote_addr = s->peers.verify_addr + base->piece * WRITE_SIZE;
  wrs[1].send_flags = IBV_SEND_SIGNALED;
  int err = ibv_post_send(qp->qp, wrs, &bad);
  if (err)
    return rail_setup_fail(base, IB_REASON_VERIFY, RAIL_SYSTEM_ERROR, "the first write between %s could not be "
                           "posted: %s", ib_offer_ports_text(s, base->piece, ports), strerror(err));
  return rail_setup_piece_done(base, s->plan.nqps);
}

/* A flushed WR only follows another failure: that one is reported, if it is among these. */
static const struct ibv_wc *worst_of(const struct ibv_wc *wc, int n) {
  const struct ibv_wc *worst = NULL;
  for (int i = 0; i < n; i++)
    if (wc[i].status != IBV_WC_SUCCESS && (!worst || worst->status == IBV_WC_WR_FLUSH_ERR)) worst = &wc[i];
  return worst;
}

static rail_result_t poll(struct ib_setup *s, struct ibv_cq *cq) {
  struct ibv_wc wc[COMPLETIONS_AT_ONCE];
  char ports[IB_PORTS_TEXT];
  int n = ibv_poll_cq(cq, COMPLETIONS_AT_ONCE, wc);
  if (n < 0)
    return rail_setup_fail(&s->base, IB_REASON_VERIFY, RAIL_SYSTEM_ERROR, "a completion queue cannot be polled");
  const struct ibv_wc *worst = worst_of(wc, n);
  if (worst) {
    const struct ib_error_row *row = ib_error_row(worst->status);
    unsigned int qp = ib_wr_qp(worst->wr_id);
    return rail_setup_fail(&s->base, IB_REASON_VERIFY, RAIL_REMOTE_ERROR, "the first write between %s failed: %s "
                           "(status %d, vendor error 0x%x); %s",
                           ib_offer_ports_text(s, qp < s->plan.nqps ? qp : 0, ports), row->what, worst->status,
                           worst->vendor_err, ADVICE);
  }
  for (int i = 0; i < n; i++) s->verified += ib_wr_kind(wc[i].wr_id) == IB_WR_VERIFY;
  return RAIL_OK;
}

rail_result_t ib_build_recv_refusal(struct ib_setup *s) {
  struct rail_message message;
  rail_result_t result = rail_handshake_peek(&s->base.handshake);
  if (result == RAIL_OK) {
    result = rail_setup_recv(&s->base, RAIL_MESSAGE_ANSWER, &message);
    if (result != RAIL_OK) return result;
    return rail_setup_fail(&s->base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent a second welcome");
  }
  if (result == RAIL_IN_PROGRESS) return result;
  return rail_setup_fail(&s->base, RAIL_REASON_GONE, RAIL_REMOTE_ERROR, "it closed the connection, while this side "
                         "waited for %s", s->base.ops->rows[s->base.state].waits_for);
}

/* The first queue pair whose test write from the peer has not arrived; nqps: all have. */
static unsigned int missing(const struct ib_setup *s) {
  const struct ib_verify *words = &s->comm->ctrl_buf->verify;
  unsigned int i = 0;
  while (i < s->plan.nqps && __atomic_load_n(&words->in[i], __ATOMIC_ACQUIRE) == s->ours.token) i++;
  return i;
}

rail_result_t ib_build_verified(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  char ports[IB_PORTS_TEXT];
  if (!s->plan.verify) return RAIL_OK;
  for (unsigned int i = 0; i < s->comm->nrails; i++) RAIL_TRY(poll(s, s->comm->rails[i].cq));
  unsigned int first = missing(s);
  if (first == s->plan.nqps && s->verified == s->plan.nqps) return RAIL_OK;
  rail_result_t result = ib_build_recv_refusal(s);
  if (result != RAIL_IN_PROGRESS) return result;
  if (!rail_setup_is_late(base)) return result;
  return rail_setup_fail(base, IB_REASON_VERIFY, RAIL_REMOTE_ERROR, "no first write %s between %s within the time "
                         "limit (RAIL_IB_CONNECT_TIMEOUT): %s", first < s->plan.nqps ? "came in" : "was acknowledged",
                         ib_offer_ports_text(s, first < s->plan.nqps ? first : 0, ports), ADVICE);
}
