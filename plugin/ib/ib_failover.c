/* SPDX-License-Identifier: Apache-2.0
 *
 * Loss of a QP. docs/protocol-ib.md, 8, has the steps; here they are, in this order:
 *
 *   ib_failover_lose       1: UP → AWAIT_FLUSH, after a failed completion, a failed post (ib_error_post_or_failover
 *                          in ib_error.c), silence (ib_detect.c), an event, or the peer's STOPPED
 *   await_flush            2 and 3: → AWAIT_PEER
 *   await_peer             4: → DOWN, and then reconcile, or move_cts_and_flushes
 *   resend_all             what is to be written again, over QPs that are UP
 *   step_return            the return (ib_return.c)
 *
 * Nothing waits: ib_failover_run goes as far as it can with each QP, and the caller's next test that finds nothing to
 * poll calls it again.
 */
#include "plugin/ib/ib_failover.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/conn/watch.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_progress.h"

#define FLUSH_MS 1000 /* a QP in ERR flushes within microseconds; one that takes so long does not */

/* A sender's receive WRs are posted here. They have to be there before a loss: Soft-RoCE does not look at what is
 * posted to a QP in ERR. */
rail_result_t ib_failover_init(struct ib_comm *comm) {
  comm->failover = calloc(1, sizeof *comm->failover + comm->plan.nqps * sizeof comm->failover->qps[0]);
  if (!comm->failover) {
    RAIL_WARN("RailIB: connection with %s: out of memory", comm->peer_text);
    return RAIL_SYSTEM_ERROR;
  }
  if (!comm->sender) return RAIL_OK;
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    int err = ib_return_prepost(comm, &comm->qps[i]);
    if (err) return ib_error_post(comm, &comm->qps[i], "ibv_post_recv", err);
  }
  return RAIL_OK;
}

/* ---- lost: the QP to ERR ------------------------------------------------------------ */

static void move_to_err(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  fq->state = IB_FAILOVER_AWAIT_FLUSH;
  fq->deadline = rail_deadline_in_ms(FLUSH_MS);
  atomic_fetch_and(&fq->return_events, ~IB_EVENT_PORT_UP);
  ib_comm_stop_qp(comm, index);
  atomic_fetch_or(&comm->pending_work, IB_COMM_FAILOVER);
}

static bool step_return(struct ib_comm *comm, unsigned int index);

/* Is only one QP UP? One whose first write, or READY, has come since the last look is made UP first. */
static bool only_one_is_up(struct ib_comm *comm) {
  for (unsigned int i = 0; i < comm->plan.nqps && ib_count_qps_up(comm) == 1; i++)
    if (ib_failover_qp(comm, i)->state == IB_FAILOVER_VERIFYING) (void)step_return(comm, i);
  return ib_count_qps_up(comm) == 1;
}

bool ib_failover_lose(struct ib_comm *comm, unsigned int index) {
  struct ib_failover *f = comm->failover;
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  struct ib_qp *qp = &comm->qps[index];
  if (fq->state == IB_FAILOVER_VERIFYING) move_to_err(comm, index); /* nothing went over it */
  if (fq->state != IB_FAILOVER_UP) return true;
  if (only_one_is_up(comm)) return false;
  uint64_t now = rail_now_ns();
  if (!f->recovering) {
    f->recovering = true;
    f->lost = f->resent = 0;
    f->first = index;
    f->noticed = now;
    f->idle_ns = comm->last_progress && comm->last_progress < now ? now - comm->last_progress : 0;
  }
  f->lost++;
  fq->lost_at = now;
  move_to_err(comm, index);
  if (comm->sender) {
    ib_send_update_live(ib_send_comm_of(comm));
  } else if (ib_recv_comm_of(comm)->cts_qp == qp) {
    ib_recv_comm_of(comm)->cts_qp = NULL;
  }
  comm->probe_deadline = 0; /* it may have been for this QP */
  rail_stats_add(&comm->stats[IB_COMM_LOST], 1);
  return true;
}

/* The first completion that says why is kept. */
static bool lose_qp_by(struct ib_comm *comm, unsigned int index, const struct ibv_wc *wc) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  if (fq->next.qp && fq->next.qp->qp_num == wc->qp_num) fq->next_broke = true;
  if (fq->state == IB_FAILOVER_UP || (fq->wc.status == IBV_WC_WR_FLUSH_ERR && wc->status != IBV_WC_WR_FLUSH_ERR)) {
    fq->wc = *wc;
    fq->has_wc = true;
  }
  return ib_failover_lose(comm, index);
}

/* A flush QP has failed: its rail has. */
static bool lose_rail(struct ib_comm *comm, const struct ibv_wc *wc) {
  bool all = true;
  for (unsigned int i = 0; i < comm->plan.nqps; i++)
    if (comm->qps[i].rail == ib_wr_qp(wc->wr_id)) all = lose_qp_by(comm, i, wc) && all;
  return all;
}

/* May another queue pair do better? Errors of the request, of memory or of this plugin would follow it there. */
static bool another_may_do_better(enum ibv_wc_status status) {
  switch (status) {
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_BAD_RESP_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_FATAL_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_GENERAL_ERR: return true;
    default: return false;
  }
}

bool ib_failover_completion(struct ib_comm *comm, const struct ibv_wc *wc) {
  unsigned int index = ib_wr_qp(wc->wr_id);
  if (!comm->failover || index >= comm->plan.nqps) return false;
  if (!another_may_do_better(wc->status)) return false;
  return ib_wr_kind(wc->wr_id) == IB_WR_FLUSH ? lose_rail(comm, wc) : lose_qp_by(comm, index, wc);
}

/* ---- what the watch thread has read, or a post returned ----------------------------- */

/* Is there a QP over another port, and that port not down? */
static bool other_port_is_up(const struct ib_comm *comm, unsigned int index) {
  for (unsigned int i = 0; i < comm->plan.nqps; i++)
    if (ib_failover_qp(comm, i)->state == IB_FAILOVER_UP && ib_qp_port(comm, i) != ib_qp_port(comm, index) &&
        !(atomic_load(&ib_qp_port(comm, i)->faults) & IB_PORT_DOWN))
      return true;
  return false;
}

/* A port that is down may come back in time, and meanwhile its HCA goes on trying; with no better one it tries on. */
static bool port_may_return(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  atomic_fetch_and(&fq->faults, ~IB_FAULT_PORT); /* before the look at it, or else its next fall is forgotten */
  if (!(atomic_load(&ib_qp_port(comm, index)->faults) & IB_PORT_DOWN) || !other_port_is_up(comm, index)) {
    fq->deadline = 0;
    return true;
  }
  ib_qp_fault(comm, index, IB_FAULT_PORT); /* look again */
  if (!fq->deadline) fq->deadline = rail_deadline_in_ms((uint64_t)ib_params.port_grace_ms);
  return !rail_deadline_passed(fq->deadline);
}

/* Has STOPPED sent, once, with the receiver's count. False: there is no oob connection any more. */
static bool tell_stopped(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  fq->state = IB_FAILOVER_AWAIT_PEER;
  if (atomic_exchange(&fq->stopped_or_refused, true)) return true;
  uint32_t count = comm->sender ? 0 : atomic_load_explicit(&comm->qps[index].tails, memory_order_relaxed);
  atomic_store(&fq->own_count, count);
  atomic_store(&fq->stopped_due, true);
  atomic_store(&comm->failover->frames_due, true);
  return rail_watch_send_frames(&comm->watched);
}

/* Ends the rebuild of a QP, by the peer's STOPPED or a failure here; no data went over it. */
static void give_up_rebuild(struct ib_comm *comm, unsigned int index) {
  ib_return_drop(ib_failover_qp(comm, index));
  (void)tell_stopped(comm, index); /* without the oob connection there is no other rebuild */
}

static rail_result_t handle_qp_faults(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  uint32_t faults = atomic_load(&fq->faults);
  if (!faults) return RAIL_OK;
  if (faults & IB_FAULT_PEER_REFUSED) return ib_error_all_lost(comm); /* whatever this side saw */
  if (fq->state == IB_FAILOVER_DOWN)
    return faults & IB_FAULT_PEER_STOPPED ? ib_error_second_stopped(comm, index) : RAIL_OK;
  if (fq->state == IB_FAILOVER_REBUILDING) {
    if (faults & IB_FAULT_PEER_STOPPED && !ib_return_is_busy(fq)) give_up_rebuild(comm, index);
    return RAIL_OK;
  }
  if (faults == IB_FAULT_PORT && fq->state == IB_FAILOVER_UP && port_may_return(comm, index)) return RAIL_OK;
  if (ib_failover_lose(comm, index)) return RAIL_OK;
  return ib_error_last_qp(comm, index, faults);
}

/* ---- stopped by both sides ---------------------------------------------------------- */

/* AWAIT_FLUSH: ib_progress.c notes a flushed receive WR, behind which the HCA writes nothing for this QP. A HCA that
 * failed writes nothing any more, and may flush nothing. */
static rail_result_t await_flush(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  struct ib_qp *qp = &comm->qps[index];
  if (fq->state != IB_FAILOVER_AWAIT_FLUSH) return RAIL_OK;
  if (atomic_load(&ib_qp_port(comm, index)->hca->faults) & IB_HCA_FATAL) atomic_store(&qp->flushed, true);
  if (!atomic_load(&qp->flushed))
    return rail_deadline_passed(fq->deadline) ? ib_error_never_flushed(comm, index, FLUSH_MS) : RAIL_OK;
  qp->ignore_completions = !comm->sender; /* STOPPED has the count: nothing more is counted */
  return tell_stopped(comm, index) ? RAIL_OK : ib_error_cannot_notify(comm, index);
}

/* The next QP in its place begins with nothing, and may be stopped again. In this order: PEER_STOPPED, else the watch
 * thread would answer it again; new_due and ready_due; then stopped_or_refused, which has kept those two from being
 * sent. */
static void forget_counts(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  atomic_store_explicit(&comm->qps[index].tails, 0, memory_order_relaxed);
  atomic_fetch_and(&fq->faults, ~IB_FAULT_PEER_STOPPED);
  atomic_store(&fq->new_due, false);
  atomic_store(&fq->ready_due, false);
  atomic_store(&fq->stopped_or_refused, false);
}

/* No QP of the rail may be written over, or write, any more. */
static bool is_down(const struct ib_comm *comm, unsigned int rail) {
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    enum ib_failover_state state = ib_failover_qp(comm, i)->state;
    if (comm->qps[i].rail == rail && state != IB_FAILOVER_DOWN && state != IB_FAILOVER_REBUILDING) return false;
  }
  return true;
}

unsigned int ib_posted_split(struct ib_qp *qp, uint32_t count, struct ib_posted *done, unsigned int *ndone) {
  struct ib_posted_ring *ring = &qp->posted;
  uint32_t unacked = 0;       /* tails without a completion */
  uint32_t end = ring->first; /* behind the entries that are kept */
  for (uint32_t i = ring->first; i != ring->end; i++) unacked += ib_posted_at(ring, i)->tail;
  const uint32_t acked = atomic_load_explicit(&qp->tails, memory_order_relaxed) - unacked;
  uint32_t delivered = count - acked; /* of the unacked ones */
  *ndone = 0;
  if (delivered > unacked) return IB_COUNT_INVALID;
  for (uint32_t i = ring->first; i != ring->end; i++) {
    const struct ib_posted entry = *ib_posted_at(ring, i);
    if (entry.tail && !delivered) {
      *ib_posted_at(ring, end++) = entry;
      continue;
    }
    delivered -= entry.tail;
    done[(*ndone)++] = entry;
  }
  ring->end = end;
  return end - ring->first;
}

/* The sender is told how many tails of the lost QP the receiver has counted: those parts are done, the others stay in
 * qp->posted for resend_all. */
static rail_result_t reconcile(struct ib_comm *comm, unsigned int index) {
  struct ib_posted done[IB_SEND_DEPTH];
  unsigned int ndone;
  const uint32_t count = atomic_load(&ib_failover_qp(comm, index)->peer_count);
  const unsigned int left = ib_posted_split(&comm->qps[index], count, done, &ndone);
  if (left == IB_COUNT_INVALID) return ib_error_bad_count(comm, index, count);
  ib_send_reconcile(ib_send_comm_of(comm), &comm->qps[index], done, ndone);
  forget_counts(comm, index);
  comm->failover->resent += left;
  return RAIL_OK;
}

/* The receiver has told its count; what it has to resend are CTS writes, if this QP carried them. A rail without QPs is
 * out of flushes, too: its QPs are in ERR, and what the HCA wrote for them it wrote before the flushed receive WRs that
 * await_flush saw. That is less than a read says, which a lost rail could not be asked for. */
static void move_cts_and_flushes(struct ib_comm *comm, unsigned int index) {
  struct ib_recv_comm *rc = ib_recv_comm_of(comm);
  forget_counts(comm, index);
  comm->failover->resent += ib_recv_move_cts(rc, index);
  if (is_down(comm, comm->qps[index].rail)) ib_flush_lose_rail(rc, comm->qps[index].rail);
}

/* AWAIT_PEER: with STOPPED of both sides nothing of this QP can arrive any more. */
static rail_result_t await_peer(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  if (fq->state != IB_FAILOVER_AWAIT_PEER || !(atomic_load(&fq->faults) & IB_FAULT_PEER_STOPPED)) return RAIL_OK;
  fq->state = IB_FAILOVER_DOWN;
  fq->why_lost = ib_error_why_lost(comm, index);
  comm->qps[index].ignore_completions = true;
  comm->failover->switched = rail_now_ns();
  ib_return_schedule(fq);
  if (comm->sender) return reconcile(comm, index);
  move_cts_and_flushes(comm, index);
  return RAIL_OK;
}

/* ---- resent ------------------------------------------------------------------------- */

/* Over the QPs that are UP. Of a sender's parts one that is begun goes on first; then each lost QP's, the oldest first.
 * RAIL_IN_PROGRESS: some wait for room in a send queue, or for the peer's STOPPED of another QP. */
static rail_result_t resend_all(struct ib_comm *comm) {
  if (!comm->sender) return ib_recv_resend(ib_recv_comm_of(comm));
  struct ib_send_comm *sc = ib_send_comm_of(comm);
  if (ib_is_begun(&sc->resend)) RAIL_TRY(ib_send_resend(sc, &comm->qps[sc->resend_of]));
  for (unsigned int i = 0; i < comm->plan.nqps; i++)
    if (ib_failover_qp(comm, i)->state == IB_FAILOVER_DOWN) RAIL_TRY(ib_send_resend(sc, &comm->qps[i]));
  return RAIL_OK;
}

/* With nothing awaited and all resent the loss is over, and the log says so. */
static rail_result_t resend_and_end(struct ib_comm *comm, bool awaits) {
  rail_result_t result = resend_all(comm);
  if (result == RAIL_IN_PROGRESS) return RAIL_OK;
  RAIL_TRY(result);
  if (awaits) return RAIL_OK;
  comm->failover->recovering = false;
  ib_error_report_loss(comm);
  return RAIL_OK;
}

/* ---- the return, and all steps in order ----------------------------------------------- */

/* The return of a QP, if it is on its way (ib_return.c). True: run again. Not of one that the peer has stopped:
 * handle_qp_faults ends that rebuild, and what came after STOPPED is the next one's. */
static bool step_return(struct ib_comm *comm, unsigned int index) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  if (ib_peer_has_ended(fq)) return false;
  enum ib_return step = ib_return_step(comm, index);
  if (step != IB_RETURN_FAILED) return step == IB_RETURN_GOES_ON;
  if (fq->state == IB_FAILOVER_VERIFYING) {
    move_to_err(comm, index);
  } else if (fq->has_peer_new) {
    give_up_rebuild(comm, index);
  } else { /* the peer knows nothing of it */
    ib_return_drop(fq);
    atomic_store(&fq->new_due, false);
    fq->state = IB_FAILOVER_DOWN;
    ib_return_schedule(fq);
  }
  return true;
}

rail_result_t ib_failover_run(struct ib_comm *comm) {
  struct ib_failover *f = comm->failover;
  bool again = false;
  atomic_fetch_and(&comm->pending_work, ~IB_COMM_FAILOVER);
  if (!f) return RAIL_OK;
  /* Those on their way back first, so that one that is UP by now counts when another is lost. */
  for (unsigned int i = 0; i < comm->plan.nqps; i++) again |= step_return(comm, i);
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    RAIL_TRY(handle_qp_faults(comm, i));
    RAIL_TRY(await_flush(comm, i));
    RAIL_TRY(await_peer(comm, i));
  }
  const bool awaits = ib_count_qps_awaiting(comm) != 0;
  const bool recovering = f->recovering; /* after its end, too: only then is what is DOWN rebuilt */
  if (recovering) RAIL_TRY(resend_and_end(comm, awaits));
  if (again || awaits || recovering) atomic_fetch_or(&comm->pending_work, IB_COMM_FAILOVER);
  else atomic_store(&f->retry_at, ib_return_next(comm));
  return comm->sender ? ib_send_resume(ib_send_comm_of(comm)) : RAIL_OK; /* other QPs are in use */
}

/* ---- the watch thread: events and frames, by which it sets faults ------------------- */

static void fault_qps(struct ib_comm *comm, const struct ib_port *port, const struct ib_hca *hca, uint32_t fault) {
  if (!comm->failover) return;
  for (unsigned int i = 0; i < comm->plan.nqps; i++)
    if (ib_qp_port(comm, i) == port || ib_qp_port(comm, i)->hca == hca) ib_qp_fault(comm, i, fault);
}

static void note_port_up(struct ib_comm *comm, const struct ib_port *port) {
  if (!comm->failover) return;
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    if (ib_qp_port(comm, i) != port) continue;
    atomic_fetch_or(&ib_failover_qp(comm, i)->return_events, IB_EVENT_PORT_UP);
    atomic_fetch_or(&comm->pending_work, IB_COMM_FAILOVER);
  }
}

void ib_failover_port(void *comm, void *arg) {
  const struct ib_port *port = arg;
  if (atomic_load(&port->faults) & IB_PORT_DOWN) fault_qps(comm, port, NULL, IB_FAULT_PORT);
  else note_port_up(comm, port);
}
void ib_failover_hca_fatal(void *comm, void *hca) { fault_qps(comm, NULL, hca, IB_FAULT_DEVICE); }

/* The loss of a flush QP is the loss of its rail. */
bool ib_failover_qp_fatal(struct ib_comm *comm, const struct ibv_qp *qp) {
  const struct ib_flush *flush = comm->sender ? NULL : ib_recv_comm_of(comm)->flush;
  if (!comm->failover) return false;
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    unsigned int rail = comm->qps[i].rail;
    bool own_event =
        atomic_load(&comm->qps[i].event_qp) == qp || atomic_load(&ib_failover_qp(comm, i)->next.event_qp) == qp;
    bool flush_event = flush && atomic_load(&flush->qps[rail].event_qp) == qp;
    if (own_event || flush_event) ib_qp_fault(comm, i, IB_FAULT_EVENT);
  }
  return true;
}

/* The peer has a new QP, or it is ready. A new STOPPED takes both back. */
static bool handle_return_frame(struct ib_comm *comm, const struct rail_oob_frame *frame) {
  const uint64_t number = frame->number;
  const uint32_t index = number & 0xff, qpn = number >> 8 & 0xffffff, psn = (uint32_t)(number >> 32);
  const uint32_t bit = frame->type == IB_FRAME_NEW ? IB_EVENT_PEER_NEW : IB_EVENT_PEER_READY;
  if (index >= comm->plan.nqps || psn > 0xffffff || (frame->type == IB_FRAME_NEW ? qpn < 2 : number != index))
    return false;
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  if (atomic_load(&fq->return_events) & bit) return false; /* said once */
  if (frame->type == IB_FRAME_NEW) {
    atomic_store(&fq->peer_qpn, qpn);
    atomic_store(&fq->peer_psn, psn);
  }
  atomic_fetch_or(&fq->return_events, bit);
  atomic_fetch_or(&comm->pending_work, IB_COMM_FAILOVER);
  return true;
}

bool ib_failover_frame(void *arg, const struct rail_oob_frame *frame) {
  struct ib_comm *comm = arg;
  unsigned int qp = (unsigned int)(frame->number & UINT32_MAX);
  if (!comm->failover) return false;
  if (frame->type == IB_FRAME_NEW || frame->type == IB_FRAME_READY) return handle_return_frame(comm, frame);
  if ((frame->type != IB_FRAME_STOPPED && frame->type != IB_FRAME_REFUSED) || qp >= comm->plan.nqps) return false;
  struct ib_failover_qp *fq = ib_failover_qp(comm, qp);
  if (atomic_load(&fq->faults) & (IB_FAULT_PEER_STOPPED | IB_FAULT_PEER_REFUSED)) return false; /* said once */
  atomic_fetch_and(&fq->return_events, ~(IB_EVENT_PEER_NEW | IB_EVENT_PEER_READY));
  atomic_store(&fq->peer_count, (uint32_t)(frame->number >> 32));
  atomic_store(&comm->failover->frames_due, true);
  ib_qp_fault(comm, qp, frame->type == IB_FRAME_STOPPED ? IB_FAULT_PEER_STOPPED : IB_FAULT_PEER_REFUSED);
  return true;
}

/* ---- frames to send, under the watch lock: by rail_watch_send_frames, or the watch thread ------------ */

enum answer {
  ANSWER_BY_PROGRESS, /* the progress thread stops the QP, too, and says so */
  ANSWER_LATER,       /* STOPPED is to be sent now, or not yet: look again soon */
  ANSWER_REFUSED,     /* the connection has failed */
};

/* The peer has stopped a QP of which this side has said nothing yet. Nothing outstanding: no tail can come any more,
 * and all that came are counted. */
static enum answer answer_stopped(struct ib_comm *comm, struct ib_failover_qp *fq) {
  if (rail_first_error(&comm->error) != RAIL_OK)
    return atomic_exchange(&fq->stopped_or_refused, true) ? ANSWER_LATER : ANSWER_REFUSED;
  if (comm->sender) return ANSWER_BY_PROGRESS;
  if (!atomic_load_explicit(&comm->outstanding, memory_order_acquire) &&
      !atomic_exchange(&fq->stopped_or_refused, true)) {
    const struct ib_qp *qp = &comm->qps[fq - comm->failover->qps];
    atomic_store(&fq->own_count, atomic_load_explicit(&qp->tails, memory_order_relaxed));
    atomic_store(&fq->stopped_due, true);
  }
  return ANSWER_LATER;
}

/* Encodes what is due of a QP, in the order in which it was decided; false: none. STOPPED is a rebuild's last frame. */
static bool next_of_qp(struct ib_failover_qp *fq, struct rail_oob_frame *frame) {
  if (atomic_exchange(&fq->stopped_due, false)) {
    frame->type = IB_FRAME_STOPPED;
    frame->number |= (uint64_t)atomic_load(&fq->own_count) << 32;
  } else if (atomic_load(&fq->stopped_or_refused)) {
    return false;
  } else if (atomic_exchange(&fq->new_due, false)) {
    frame->type = IB_FRAME_NEW;
    frame->number |= (uint64_t)atomic_load(&fq->own_qpn) << 8 | (uint64_t)atomic_load(&fq->own_psn) << 32;
  } else if (atomic_exchange(&fq->ready_due, false)) {
    frame->type = IB_FRAME_READY;
  } else {
    return false;
  }
  return true;
}

/* A tick of the watch thread: no event says when a QP whose path drops all packets is to be tried again. */
static void check_retry_time(struct ib_comm *comm) {
  uint64_t at = atomic_load(&comm->failover->retry_at);
  if (at && rail_deadline_passed(at) && atomic_compare_exchange_strong(&comm->failover->retry_at, &at, 0))
    atomic_fetch_or(&comm->pending_work, IB_COMM_FAILOVER);
}

enum rail_oob_next ib_failover_next(void *arg, struct rail_oob_frame *frame) {
  struct ib_comm *comm = arg;
  enum rail_oob_next next = RAIL_OOB_NOTHING;
  if (!comm->failover) return next;
  check_retry_time(comm);
  if (!atomic_exchange(&comm->failover->frames_due, false)) return next;
  bool unanswered = false;
  for (unsigned int i = 0; i < comm->plan.nqps && next != RAIL_OOB_FRAME; i++) {
    struct ib_failover_qp *fq = ib_failover_qp(comm, i);
    frame->number = i;
    if (!atomic_load(&fq->stopped_or_refused) && atomic_load(&fq->faults) & IB_FAULT_PEER_STOPPED) {
      unanswered = true;
      switch (answer_stopped(comm, fq)) {
        case ANSWER_REFUSED:
          frame->type = IB_FRAME_REFUSED;
          next = RAIL_OOB_FRAME;
          break;
        case ANSWER_LATER: next = RAIL_OOB_LATER; break;
        case ANSWER_BY_PROGRESS: break;
      }
    }
    if (next != RAIL_OOB_FRAME && next_of_qp(fq, frame)) next = RAIL_OOB_FRAME;
  }
  if (unanswered || next == RAIL_OOB_FRAME) atomic_store(&comm->failover->frames_due, true);
  return next;
}
