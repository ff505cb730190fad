/* SPDX-License-Identifier: Apache-2.0
 *
 * Return of a lost QP: a new one takes its place. docs/protocol-ib.md, 8, "The return", has the steps, the frames and
 * the times; here they are, in this order:
 *
 *   begin                  1: DOWN → REBUILDING
 *   create, announce       1 and 2
 *   to_rtr_with_peer       3
 *   install                → VERIFYING: the new QP takes its place in the comm
 *   verify, write_first    → UP: READY, and a receiver's first write
 *
 * Each call does what can be done without waiting. Step 3 to RTR, which may take a second, a thread of its own does.
 */
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/sock.h"
#include "common/base/thread.h"
#include "common/conn/watch.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_progress.h"

#define FIRST_DELAY_MS 1000
#define LONGEST_DELAY_MS 30000
#define STABLE_MS 10000 /* a QP that was in use for so long begins with the first delay again */
#define LEAST_MS 100    /* between two tries, whatever the peer sends */

/* ---- when --------------------------------------------------------------------- */

void ib_return_schedule(struct ib_failover_qp *fq) {
  uint64_t now = rail_now_ns(), ms = 0;
  if (fq->up_since && now - fq->up_since >= STABLE_MS * 1000000ull) fq->tries = 0;
  if (fq->tries) ms = RAIL_MIN((uint64_t)FIRST_DELAY_MS << RAIL_MIN(fq->tries - 1, 8u), LONGEST_DELAY_MS);
  fq->up_since = 0;
  fq->retry_at = now + ms * 1000000;
}

/* Its port has come up since the last look, or has other GIDs: it is tried at once, and soon again, because a switch
 * may take a second until it forwards. */
static void take_port_up(struct ib_failover_qp *fq) {
  if (!(atomic_fetch_and(&fq->return_events, ~IB_EVENT_PORT_UP) & IB_EVENT_PORT_UP)) return;
  fq->retry_at = rail_now_ns();
  fq->tries = 0;
}

/* 0: when an event says so, or never; else not before that time. QPs that the RDMA CM has set up do not come back:
 * their ids belong to the lost QPs. */
static uint64_t retry_time(const struct ib_comm *comm, unsigned int index) {
  const struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  const struct ib_port *port = ib_qp_port(comm, index);
  if (comm->cm) return 0;
  if (atomic_load(&port->faults) & IB_PORT_DOWN || atomic_load(&port->hca->faults) & IB_HCA_FATAL) return 0;
  return atomic_load(&fq->return_events) & IB_EVENT_PEER_NEW ? fq->began + LEAST_MS * 1000000ull : fq->retry_at;
}

uint64_t ib_return_next(const struct ib_comm *comm) {
  uint64_t first = 0;
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    struct ib_failover_qp *fq = ib_failover_qp(comm, i);
    if (fq->state != IB_FAILOVER_DOWN) continue;
    take_port_up(fq);
    uint64_t at = retry_time(comm, i);
    if (at && (!first || at < first)) first = at;
  }
  return first;
}

/* ---- the new QP ----------------------------------------------------------------- */

/* The receive WR of a sender's QP, which nothing consumes: only by its flush the QP is seen to have stopped. */
int ib_return_prepost(struct ib_comm *comm, struct ib_qp *qp) {
  struct ibv_recv_wr wr = {.wr_id = ib_wr_id(IB_WR_RECV, qp->index, 1, 0)}, *bad;
  return comm->sender ? ibv_post_recv(qp->qp, &wr, &bad) : ib_recv_prepost_qp(comm, qp);
}

static bool is_gid(const struct ib_gid_table *table, unsigned int i, const struct ib_rail *rail, uint8_t type) {
  if (i >= table->count || !table->gids[i].valid) return false;
  if (memcmp(table->gids[i].raw, rail->gid, sizeof rail->gid) != 0) return false;
  return table->gids[i].type == type || table->gids[i].type == IB_GID_UNKNOWN || type == IB_GID_UNKNOWN;
}

/* Is the port active, and has it its LID and its GID again? That may be at another index than before the link was down.
 * InfiniBand does without a GID where neither side needs a GRH. */
static bool has_address(struct ib_rail *rail, uint8_t peers_type) {
  struct ib_gid gid = {.valid = true};
  struct ib_port_attr now;
  memcpy(gid.raw, rail->gid, sizeof gid.raw);
  if (ib_port_query(rail->port, &now) != RAIL_OK || !now.active) return false;
  if (!rail->port->roce && now.lid != rail->lid) return false;
  if (!rail->port->roce && ib_gid_is_empty(&gid)) return true;
  if (is_gid(&now.gids, (unsigned int)rail->gid_index, rail, peers_type)) return true;
  for (unsigned int i = 0; i < now.gids.count; i++)
    if (is_gid(&now.gids, i, rail, peers_type)) {
      rail->gid_index = (int)i;
      return true;
    }
  return false;
}

static enum ib_return begin(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  take_port_up(fq);
  uint64_t at = retry_time(comm, index), now = rail_now_ns();
  if (!at || at > now) return IB_RETURN_WAITS;
  ib_comm_drop_qp(&comm->qps[index]);
  fq->state = IB_FAILOVER_REBUILDING;
  fq->began = now;
  fq->tries++;
  fq->has_peer_new = fq->next_broke = fq->has_wc = false;
  atomic_fetch_and(&fq->faults, IB_FAULT_PEER_STOPPED | IB_FAULT_PEER_REFUSED);
  return IB_RETURN_GOES_ON;
}

static enum ib_return create(struct ib_comm *comm, unsigned int index) {
  struct ib_qp *qp = &comm->qps[index], *next = &ib_failover_qp(comm, index)->next;
  struct ib_rail *rail = &comm->rails[qp->rail];
  struct ib_qp_sizes sizes = qp->sizes;
  uint32_t psn;
  next->index = qp->index;
  next->rail = qp->rail;
  next->remote_rail = qp->remote_rail;
  next->attr = qp->attr;
  if (!has_address(rail, comm->remote_rails[qp->remote_rail].gid_type)) return IB_RETURN_FAILED;
  if (rail_random_bytes(&psn, sizeof psn) != RAIL_OK) return IB_RETURN_FAILED;
  next->attr.sgid_index = (uint8_t)rail->gid_index;
  next->attr.sq_psn = psn & 0xffffff;
  return ib_qp_create(next, rail->port, rail->cq, &sizes, comm) == RAIL_OK ? IB_RETURN_GOES_ON : IB_RETURN_FAILED;
}

/* Of a transition: a modify that timed out is tried again. */
static enum ib_return moved(rail_result_t result) {
  return result == RAIL_OK || result == RAIL_IN_PROGRESS ? IB_RETURN_GOES_ON : IB_RETURN_FAILED;
}

/* NEW is sent when nothing of this side can fail any more before the peer's NEW. */
static enum ib_return announce(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  rail_result_t result = ib_qp_to_init(&fq->next, ib_qp_port(comm, index), access);
  if (result != RAIL_OK) return moved(result);
  if (ib_return_prepost(comm, &fq->next)) return IB_RETURN_FAILED;
  atomic_store(&fq->own_qpn, fq->next.qp->qp_num);
  atomic_store(&fq->own_psn, fq->next.attr.sq_psn);
  atomic_store(&fq->new_due, true);
  atomic_store(&comm->failover->frames_due, true);
  return rail_watch_send_frames(&comm->watched) ? IB_RETURN_GOES_ON : IB_RETURN_FAILED;
}

/* Over RoCE the kernel resolves the peer's address within this modify, and waits for a second where nobody answers.
 * Data must go on over the other QPs meanwhile: a thread does it. */
static void *move_to_rtr(void *arg) {
  struct ib_qp *next = arg;
  struct ib_comm *comm = next->qp->qp_context;
  struct ib_failover_qp *fq = ib_failover_qp(comm, next->index);
  fq->rtr_result = ib_qp_to_rtr(next, ib_qp_port(comm, next->index));
  atomic_store(&fq->rtr_done, true);
  atomic_fetch_or(&comm->pending_work, IB_COMM_FAILOVER);
  return NULL;
}

static enum ib_return begin_rtr(struct ib_comm *comm, struct ib_failover_qp *fq) {
  atomic_store(&fq->rtr_done, false);
  fq->rtr_begun = rail_thread_start("rail-ib-rtr", move_to_rtr, &fq->next, &fq->rtr_thread) == 0;
  if (fq->rtr_begun) return IB_RETURN_WAITS;
  return moved(ib_qp_to_rtr(&fq->next, ib_qp_port(comm, fq->next.index)));
}

static void join(struct ib_failover_qp *fq) {
  if (fq->rtr_begun) pthread_join(fq->rtr_thread, NULL);
  fq->rtr_begun = false;
}

static enum ib_return end_rtr(struct ib_failover_qp *fq) {
  if (ib_return_is_busy(fq)) return IB_RETURN_WAITS;
  join(fq);
  return moved(fq->rtr_result);
}

static enum ib_return to_rtr_with_peer(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  if (!fq->has_peer_new) {
    if (!(atomic_fetch_and(&fq->return_events, ~IB_EVENT_PEER_NEW) & IB_EVENT_PEER_NEW)) return IB_RETURN_WAITS;
    fq->has_peer_new = true;
    fq->next.attr.dest_qpn = atomic_load(&fq->peer_qpn);
    fq->next.attr.rq_psn = atomic_load(&fq->peer_psn);
  }
  return ib_qp_modify_waits(&fq->next) ? IB_RETURN_GOES_ON : begin_rtr(comm, fq);
}

static void send_ready(struct ib_comm *comm, struct ib_failover_qp *fq) {
  atomic_store(&fq->ready_due, true);
  atomic_store(&comm->failover->frames_due, true);
  (void)rail_watch_send_frames(&comm->watched); /* else the peer, or the end of the oob connection, ends it */
}

/* What was in fault before the new one takes its place: a post of a flush, an event of the flush QP that is replaced, a
 * port that is up again. The port is looked at afterwards, so that its next fall is not forgotten. */
static void forget_faults(struct ib_comm *comm, unsigned int index) {
  atomic_fetch_and(&ib_failover_qp(comm, index)->faults, ~(IB_FAULT_PORT | IB_FAULT_EVENT | IB_FAULT_POST));
  if (atomic_load(&ib_qp_port(comm, index)->faults) & IB_PORT_DOWN) ib_qp_fault(comm, index, IB_FAULT_PORT);
}

/* Flushes of the rail come first: the peer may write from READY on. A QP that broke meanwhile has flushed its receive
 * WRs: as one in use its stop would be waited for in vain. */
static enum ib_return install(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  if (fq->next_broke) return IB_RETURN_FAILED;
  if (!comm->sender) {
    rail_result_t result = ib_flush_return_rail(ib_recv_comm_of(comm), comm->qps[index].rail);
    if (result != RAIL_OK) return moved(result);
  }
  forget_faults(comm, index);
  if (!ib_comm_replace_qp(comm, &comm->qps[index], &fq->next)) return IB_RETURN_WAITS; /* until it is destroyed */
  fq->state = IB_FAILOVER_VERIFYING;
  fq->verified = false;
  if (comm->sender) {
    atomic_fetch_and(&fq->return_events, ~IB_EVENT_PEER_READY); /* the receiver's answers this READY */
    send_ready(comm, fq);
  }
  return IB_RETURN_GOES_ON;
}

static enum ib_return next_step(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  if (fq->rtr_begun) return end_rtr(fq);
  switch (fq->next.state) {
    case IB_QP_NONE: return create(comm, index);
    case IB_QP_RESET: return announce(comm, index);
    case IB_QP_INIT: return to_rtr_with_peer(comm, index);
    case IB_QP_RTR: return moved(ib_qp_to_rts(&fq->next, ib_qp_port(comm, index)));
    default: return install(comm, index);
  }
}

/* As far as it goes: under load polls that find nothing, of which each call needs one, are rare. But each step of
 * install needs one: of a lost flush QP nothing may be left. */
static enum ib_return rebuild(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  enum ib_return step;
  bool installs;
  do {
    installs = !fq->rtr_begun && fq->next.state == IB_QP_RTS;
    step = next_step(comm, index);
  } while (step == IB_RETURN_GOES_ON && !installs && !fq->next.modify_tries && !ib_peer_has_ended(fq));
  return step;
}

/* ---- the first write over it ------------------------------------------------------ */

static enum ib_return mark_up(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  fq->state = IB_FAILOVER_UP;
  fq->deadline = 0;
  fq->up_since = rail_now_ns();
  if (comm->sender) ib_send_update_live(ib_send_comm_of(comm));
  else send_ready(comm, fq);
  rail_stats_add(&comm->stats[IB_COMM_RETURNED], 1);
  RAIL_INFO(RAIL_SUB_NET, "RailIB: %s %s over %s: queue pair %u of port %s to %s is in use again, %.1f s after it was "
            "lost; %u of %u are", comm->sender ? "sending to" : "receiving from", comm->peer_text, comm->device->name,
            index, ib_qp_port(comm, index)->name, comm->remote_rails[comm->qps[index].remote_rail].name,
            (double)(fq->up_since - fq->lost_at) / 1e9, ib_count_qps_up(comm), comm->plan.nqps);
  return IB_RETURN_WAITS;
}

static enum ib_return write_first(struct ib_comm *comm, unsigned int index) {
  const struct ib_remote_ring *ring = &ib_recv_comm_of(comm)->remote_ring;
  struct ib_qp *qp = &comm->qps[index];
  struct ibv_send_wr wr = {.wr_id = ib_wr_id(IB_WR_VERIFY, index, 1, 0), .opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED,
                           .wr.rdma = {.remote_addr = ring->addr, .rkey = ring->rkeys[qp->remote_rail]}}, *bad;
  if (ibv_post_send(qp->qp, &wr, &bad)) return IB_RETURN_FAILED;
  qp->sq_avail--;
  return IB_RETURN_WAITS;
}

static enum ib_return verify(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  bool ready = atomic_fetch_and(&fq->return_events, ~IB_EVENT_PEER_READY) & IB_EVENT_PEER_READY;
  if (comm->sender ? ready : fq->verified) return mark_up(comm, index);
  return ready ? write_first(comm, index) : IB_RETURN_WAITS;
}

void ib_return_verified(struct ib_comm *comm, unsigned int index) {
  if (!comm->failover || index >= comm->plan.nqps) return;
  if (ib_failover_qp(comm, index)->state != IB_FAILOVER_VERIFYING) return;
  comm->qps[index].sq_avail++;
  ib_failover_qp(comm, index)->verified = true;
  atomic_fetch_or(&comm->pending_work, IB_COMM_FAILOVER);
}

/* ---- all of it --------------------------------------------------------------------- */

enum ib_return ib_return_step(struct ib_comm *comm, unsigned int index) {
  switch (ib_failover_qp(comm, index)->state) {
    case IB_FAILOVER_DOWN: return comm->failover->recovering ? IB_RETURN_WAITS : begin(comm, index);
    case IB_FAILOVER_REBUILDING: return rebuild(comm, index);
    case IB_FAILOVER_VERIFYING: return verify(comm, index);
    default: return IB_RETURN_WAITS;
  }
}

void ib_return_join(struct ib_comm *comm) {
  for (unsigned int i = 0; comm->failover && i < comm->plan.nqps; i++) join(ib_failover_qp(comm, i));
}

void ib_return_drop(struct ib_failover_qp *fq) {
  join(fq);
  ib_qp_destroy(&fq->next);
}

void ib_return_close(struct ib_comm *comm) {
  for (unsigned int i = 0; comm->failover && i < comm->plan.nqps; i++) ib_return_drop(ib_failover_qp(comm, i));
}
