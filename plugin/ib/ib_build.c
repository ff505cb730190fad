/* SPDX-License-Identifier: Apache-2.0
 * The comm itself, piece by piece: completion queues, its own memory registered, queue pairs from nothing to RTS. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_progress.h"
#include "plugin/ib/ib_setup.h"

static void fill_base(struct ib_setup *s) {
  struct ib_comm *c = s->comm;
  c->magic = s->connector ? IB_SEND_COMM_MAGIC : IB_RECV_COMM_MAGIC;
  c->sender = s->connector;
  c->ctx = s->ctx;
  c->device = s->device;
  c->plan = s->plan;
  c->nrails = s->mine.nrails;
  c->nremote_rails = s->theirs.nrails;
  c->peer = s->peer;
  c->profiler = s->ctx->profiler;
  c->sender_timeout = s->connector ? s->mine.timeout : s->theirs.timeout;
  c->peer_process = s->theirs.process;
  c->side_fd = -1;
  rail_addr_text(&s->peer, c->peer_text);
  memcpy(c->remote_rails, s->theirs.rails, sizeof c->remote_rails);
  for (unsigned int i = 0; i < c->nrails; i++) {
    c->rails[i].port = s->ports[i];
    c->rails[i].gid_index = s->gid_index[i];
    memcpy(c->rails[i].gid, s->mine.rails[i].gid, sizeof c->rails[i].gid);
  }
}

rail_result_t ib_setup_comm(struct ib_setup *s) {
  void *own;
  size_t size;
  s->comm = s->connector ? ib_send_comm_alloc() : ib_recv_comm_alloc();
  if (!s->comm) return ib_setup_fail(s, IB_REASON_FAILED, RAIL_SYSTEM_ERROR, "out of memory");
  fill_base(s);
  s->comm->qps = calloc(s->plan.nqps, sizeof *s->comm->qps);
  if (!s->comm->qps || rail_random_bytes(&s->ours.token, sizeof s->ours.token) != RAIL_OK)
    return ib_setup_fail(s, IB_REASON_FAILED, RAIL_SYSTEM_ERROR, "out of memory, or no random bytes");
  s->ours.token |= 1; /* not what memory is full of */
  ib_comm_own_memory(s->comm, &own, &size);
  s->ours.nqps = s->plan.nqps;
  s->ours.nrails = s->mine.nrails;
  s->ours.own_addr = (uintptr_t)own;
  s->ours.verify_addr = (uintptr_t)own + size - sizeof(struct ib_verify) + offsetof(struct ib_verify, in);
  return ib_stats_comm_begin(s->comm);
}

/* ---- per rail ------------------------------------------------------------ */

rail_result_t ib_setup_cqs(struct ib_setup *s) {
  struct ib_rail *rail = &s->comm->rails[s->piece];
  const struct ib_port *port = rail->port;
  struct ib_qp_sizes sizes = ib_setup_sizes(s, port);
  int entries = 2 * IB_MAX_FLUSHES;
  for (unsigned int i = 0; i < s->plan.nqps; i++)
    if (s->plan.qps[i].local_rail == s->piece) entries += (int)(sizes.send_depth + sizes.recv_depth);
  if (entries > port->hca->attr.max_cqe)
    return ib_setup_fail(s, IB_REASON_FAILED, RAIL_SYSTEM_ERROR, "%s has completion queues of up to %d entries, and %d "
                         "are needed; lower NCCL_IB_QPS_PER_CONNECTION", port->name, port->hca->attr.max_cqe, entries);
  rail->cq = ib_verbs.create_cq(port->hca->context, entries, s->comm, NULL, 0);
  if (!rail->cq)
    return ib_setup_fail(s, IB_REASON_FAILED, RAIL_SYSTEM_ERROR, "%s: no completion queue of %d entries: %s; is the "
                         "limit of locked memory (ulimit -l) large enough?", port->name, entries, strerror(errno));
  return ib_setup_piece_done(s, s->comm->nrails);
}

rail_result_t ib_setup_memory(struct ib_setup *s) {
  struct ib_rail *rail = &s->comm->rails[s->piece];
  void *own;
  size_t size;
  ib_comm_own_memory(s->comm, &own, &size);
  rail->own_mr = ib_verbs.reg_mr(rail->port->hca->pd, own, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (!rail->own_mr)
    return ib_setup_fail(s, IB_REASON_FAILED, RAIL_SYSTEM_ERROR, "%s: %zu bytes of the connection's own cannot be "
                         "registered: %s; raise the limit of locked memory (ulimit -l unlimited)", rail->port->name,
                         size, strerror(errno));
  s->ours.rkeys[s->piece] = rail->own_mr->rkey;
  return ib_setup_piece_done(s, s->comm->nrails);
}

/* ---- per queue pair ------------------------------------------------------ */

/* What went wrong has its line, from ib_qp.c, with device and queue pair; here it gets its peer. */
static rail_result_t qp_failed(struct ib_setup *s) {
  const struct ib_plan_qp *p = &s->plan.qps[s->piece];
  return ib_setup_fail(s, IB_REASON_FAILED, RAIL_SYSTEM_ERROR, "queue pair %u, from port %s to port %s of the peer, "
                       "could not be made (the line above says why)", s->piece, s->mine.rails[p->local_rail].name,
                       s->theirs.rails[p->remote_rail].name);
}

static rail_result_t our_path(struct ib_setup *s, struct ib_qp *qp) {
  const struct ib_plan_qp *p = &s->plan.qps[qp->index];
  unsigned int retries = RAIL_MIN((unsigned int)ib_params.retry_cnt, s->ports[p->local_rail]->hca->max_retries);
  uint32_t psn;
  RAIL_TRY(rail_random_bytes(&psn, sizeof psn));
  qp->path = (struct ib_qp_path){
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
  memcpy(qp->path.dgid, s->theirs.rails[p->remote_rail].gid, sizeof qp->path.dgid);
  return RAIL_OK;
}

rail_result_t ib_setup_qps(struct ib_setup *s) {
  struct ib_qp *qp = &s->comm->qps[s->piece];
  const struct ib_plan_qp *p = &s->plan.qps[s->piece];
  const struct ib_rail *rail = &s->comm->rails[p->local_rail];
  struct ib_qp_sizes sizes = ib_setup_sizes(s, rail->port);
  qp->index = (uint16_t)s->piece;
  qp->rail = p->local_rail;
  qp->remote_rail = p->remote_rail;
  if (our_path(s, qp) != RAIL_OK || ib_qp_create(qp, rail->port, rail->cq, &sizes, s->comm) != RAIL_OK)
    return qp_failed(s);
  return ib_setup_piece_done(s, s->plan.nqps);
}

static rail_result_t move_one(struct ib_setup *s, rail_result_t result) {
  if (result == RAIL_IN_PROGRESS) return result;
  return result == RAIL_OK ? ib_setup_piece_done(s, s->plan.nqps) : qp_failed(s);
}

rail_result_t ib_setup_inits(struct ib_setup *s) {
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  struct ib_qp *qp = &s->comm->qps[s->piece];
  return move_one(s, ib_qp_to_init(qp, s->comm->rails[qp->rail].port, access));
}

rail_result_t ib_setup_rtrs(struct ib_setup *s) {
  struct ib_qp *qp = &s->comm->qps[s->piece];
  const struct ib_qp_side *peer = &s->peers.qps[s->piece];
  qp->path.dest_qpn = peer->qpn;
  qp->path.rq_psn = peer->psn;
  qp->path.ece = (struct ibv_ece){peer->ece_vendor, peer->ece_options, peer->ece_comp_mask};
  qp->path.use_ece = s->plan.ece && (peer->ece_vendor || peer->ece_options);
  return move_one(s, ib_qp_to_rtr(qp, s->comm->rails[qp->rail].port));
}

rail_result_t ib_setup_rtss(struct ib_setup *s) {
  struct ib_qp *qp = &s->comm->qps[s->piece];
  return move_one(s, ib_qp_to_rts(qp, s->comm->rails[qp->rail].port));
}

/* ---- the data path's part ------------------------------------------------ */

/* Receive WRs first, then the flush queue pairs, which are connected to themselves. */
rail_result_t ib_setup_receives(struct ib_setup *s) {
  struct ib_flush *flush = ib_recv_comm_flush(s->comm); /* half made, or NULL */
  if (s->piece == 0) {
    if (ib_recv_comm_prepost(s->comm) != RAIL_OK)
      return ib_setup_fail(s, IB_REASON_FAILED, RAIL_SYSTEM_ERROR, "no receives could be posted");
    return ib_setup_piece_done(s, 2);
  }
  rail_result_t result = ib_flush_open(s->comm, &flush);
  ib_recv_comm_set_flush(s->comm, flush);
  if (result == RAIL_OK || result == RAIL_IN_PROGRESS) return result;
  return ib_setup_fail(s, IB_REASON_FAILED, RAIL_SYSTEM_ERROR, "no queue pair to flush GPU memory with");
}

rail_result_t ib_setup_start(struct ib_setup *s) {
  struct ib_cts_place place = {.addr = s->peers.own_addr};
  memcpy(place.rkeys, s->peers.rkeys, sizeof place.rkeys);
  if (s->connector) ib_send_comm_start(s->comm);
  else ib_recv_comm_start(s->comm, &place, ib_progress);
  return RAIL_OK;
}
