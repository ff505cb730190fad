/* SPDX-License-Identifier: Apache-2.0
 *
 * test, and the one progress function: completions in, each to the file that
 * began it. Where there are none, and only there, is time to ask what the watch
 * thread has found, and what time it is.
 */
#include "plugin/ib/ib_progress.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_error.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_stats.h"

#define BATCH 16
#define MAX_BATCHES 8   /* per call and CQ: a call must return within a millisecond */
#define CLOCK_EACH 4096 /* completions, where there always are some */
#define PEER_BITS \
  (IB_COMM_PEER_CLOSED | IB_COMM_PEER_GONE | IB_COMM_PEER_LOST | IB_COMM_PEER_SILENT | IB_COMM_HOST_SILENT)
#define ACK_TOLERANCE 4 /* the standard's tolerance: a timeout of T ends between T and 4T */
#define PROBE_GRACE_MS 1000
#define SLOWEST_BYTES_PER_MS 1000
#define DRAIN_MS 1000
#define CLOSED_GRACE_MS 1000 /* beyond the time for which a closed receiver answers */

/* ---- completions -------------------------------------------------------- */

/* An HCA works a queue pair's packets off one by one, so an unused receive says that no packet is in work. */
static void note_flushed(struct ib_comm *comm, const struct ibv_wc *wc) {
  unsigned int qp = ib_wr_qp(wc->wr_id);
  if (ib_wr_kind(wc->wr_id) == IB_WR_RECV && wc->status != IBV_WC_SUCCESS && qp < comm->plan.nqps)
    atomic_store(&comm->qps[qp].flushed, true);
}

RAIL_COLD static rail_result_t failed_completion(struct ib_comm *comm, const struct ibv_wc *wc) {
  note_flushed(comm, wc);
  return ib_error_completion(comm, wc);
}

/* Status first: of a failed one little else counts. */
static rail_result_t dispatch(struct ib_comm *comm, const struct ibv_wc *wc) {
  if (rail_unlikely(wc->status != IBV_WC_SUCCESS)) return failed_completion(comm, wc);
  switch (ib_wr_kind(wc->wr_id)) {
    case IB_WR_SEND: ib_send_done(comm, wc); return RAIL_OK;
    case IB_WR_RECV: return ib_recv_done(comm, wc);
    case IB_WR_CTS: ib_recv_cts_done(comm, wc); return RAIL_OK;
    case IB_WR_PROBE: ib_recv_probe_done(comm, wc); return RAIL_OK;
    case IB_WR_FLUSH: ib_flush_done(comm, wc); return RAIL_OK;
    case IB_WR_VERIFY: break; /* the handshake has what it wanted */
  }
  return RAIL_OK;
}

/* After an error the rest still counts, of the other rails, too: it may finish requests. */
static void poll_cq(struct ib_comm *comm, struct ibv_cq *cq) {
  struct ibv_wc wcs[BATCH];
  int n = BATCH;
  for (int batch = 0; batch < MAX_BATCHES && n == BATCH; batch++) {
    n = ibv_poll_cq(cq, BATCH, wcs);
    if (rail_unlikely(n < 0)) {
      (void)ib_error_post(comm, NULL, "ibv_poll_cq", EIO);
      return;
    }
    for (int i = 0; i < n; i++) (void)dispatch(comm, &wcs[i]);
    comm->moved += (uint32_t)n;
  }
}

static void note_time(struct ib_comm *comm) {
  comm->moved = 0;
  if (rail_unlikely(comm->probe_deadline)) ib_probe_clear(comm);
  comm->last_progress = rail_now_ns();
  rail_stats_set(&comm->stats[IB_COMM_LAST_PROGRESS], comm->last_progress);
}

/* *found: there was something. */
static rail_result_t poll_all(struct ib_comm *comm, bool *found) {
  uint32_t moved = comm->moved;
  *found = false;
  RAIL_TRY(ib_comm_status(comm));
  for (unsigned int i = 0; i < comm->nrails; i++) poll_cq(comm, comm->rails[i].cq);
  if (rail_unlikely(comm->failed != RAIL_OK)) return comm->failed;
  *found = comm->moved != moved;
  if (comm->sender && rail_unlikely(ib_send_comm_of(comm)->unposted)) RAIL_TRY(ib_send_resume(ib_send_comm_of(comm)));
  bool due = !*found || comm->moved > CLOCK_EACH || !comm->last_progress;
  if (rail_unlikely(comm->moved && due)) note_time(comm);
  return RAIL_OK;
}

rail_result_t ib_progress(struct ib_comm *comm) {
  bool found;
  return poll_all(comm, &found);
}

/* ---- what is there after the end ----------------------------------------- */

static bool all_flushed(const struct ib_comm *comm) {
  for (unsigned int i = 0; i < comm->plan.nqps; i++)
    if (!atomic_load(&comm->qps[i].flushed)) return false;
  return true;
}

/* The caller's thread may be in poll_cq meanwhile, for the last time: what it finds it notes, too. */
bool ib_qp_drain(struct ib_comm *comm) {
  uint64_t deadline = atomic_load(&comm->drain_deadline);
  if (!deadline) {
    deadline = rail_deadline_in_ms(DRAIN_MS);
    atomic_store(&comm->drain_deadline, deadline);
  }
  for (;;) {
    struct ibv_wc wcs[BATCH];
    for (unsigned int r = 0; r < comm->nrails; r++) {
      int n = ibv_poll_cq(comm->rails[r].cq, BATCH, wcs);
      for (int i = 0; i < n; i++) note_flushed(comm, &wcs[i]);
    }
    if (all_flushed(comm)) return true;
    if (rail_deadline_passed(deadline)) return false;
    sched_yield();
  }
}

/* ---- where nothing was found -------------------------------------------- */

/* The peer said goodbye, with sends of ours under way. What it had received it acknowledges for a while yet, and the
 * HCA asks again; what is not acknowledged when that time is over never will be. A peer that closed with receives
 * outstanding does not wait: the end of its side channel says so. */
static bool awaits_ack(struct ib_send_comm *sc, bool gone) {
  if (!sc->closed_deadline || gone > sc->peer_gone)
    sc->closed_deadline = rail_deadline_in_ms((gone ? 0 : ib_comm_linger_ms(&sc->base)) + CLOSED_GRACE_MS);
  sc->peer_gone = gone;
  return !rail_deadline_passed(sc->closed_deadline);
}

/* Can the request still be completed, with what is known of the connection? */
static bool may_complete(const struct ib_request *r, uint32_t health) {
  if (health & ~PEER_BITS) return false;
  if (r->magic == IB_REQ_FLUSH) return true; /* needs no peer */
  if ((health & ~IB_COMM_PEER_GONE) != IB_COMM_PEER_CLOSED || r->magic == IB_REQ_RECV) return false;
  return awaits_ack(ib_send_comm_of(r->comm), health & IB_COMM_PEER_GONE);
}

/* The last completions come before a goodbye, but it may have been heard of between our look at the CQs and our look at
 * the health word: so once more. */
RAIL_COLD static rail_result_t check_health(struct ib_request *r, uint32_t health) {
  bool found;
  rail_result_t result = poll_all(r->comm, &found);
  if (result != RAIL_OK || found || !r->pending || may_complete(r, health)) return result;
  return ib_error_health(r->comm, health);
}

/* How long the HCA may take for what it owes: its retries, and the slowest of networks. 0: for ever. */
static uint64_t probe_timeout_ms(const struct ib_comm *comm) {
  const struct ib_qp_path *path = &comm->qps[0].path; /* all have the same timeouts */
  uint64_t bytes = comm->sender ? ib_send_bytes_pending(rail_container_of(comm, const struct ib_send_comm, base)) : 0;
  double budget = ib_error_budget(path->timeout, path->retry_cnt);
  if (budget <= 0) return 0;
  return (uint64_t)(ACK_TOLERANCE * budget * 1000) + PROBE_GRACE_MS + bytes / SLOWEST_BYTES_PER_MS;
}

/* Nothing moves. Mostly the peer has nothing to send or to receive; but an HCA, or its driver, may also have lost a
 * work request, and then nobody would ever hear of it. A sender's requests are all owed by the HCA; a receiver's are
 * the peer's, so the HCA is asked for a completion. It owes that whatever the peer does: time is up only if we polled
 * and it is not here. */
RAIL_COLD static rail_result_t check_stalled(struct ib_comm *comm) {
  if (comm->probe_deadline)
    return rail_deadline_passed(comm->probe_deadline) ? ib_error_health(comm, IB_COMM_STALLED) : RAIL_OK;
  uint64_t ms = probe_timeout_ms(comm);
  if (!ms) return RAIL_OK;
  comm->probe_deadline = rail_deadline_in_ms(ms);
  return comm->sender ? RAIL_OK : ib_recv_probe(ib_recv_comm_of(comm));
}

static rail_result_t on_idle(struct ib_request *r) {
  uint32_t health = atomic_load_explicit(&r->comm->health, memory_order_acquire);
  if (rail_likely(!health)) return RAIL_OK;
  return health == IB_COMM_STALLED ? check_stalled(r->comm) : check_health(r, health & ~IB_COMM_STALLED);
}

/* ---- test --------------------------------------------------------------- */

/* Moves the comm. The result is its own. */
static rail_result_t progress_request(struct ib_request *r) {
  bool found;
  RAIL_TRY(poll_all(r->comm, &found));
  return found || !r->pending ? RAIL_OK : on_idle(r);
}

static void finish(struct ib_request *r, int *sizes) {
  struct ib_comm *comm = r->comm;
  if (r->magic == IB_REQ_SEND) ib_send_finish(ib_send_comm_of(comm), rail_container_of(r, struct ib_send, base), sizes);
  else if (r->magic == IB_REQ_RECV)
    ib_recv_finish(ib_recv_comm_of(comm), rail_container_of(r, struct ib_recv, base), sizes);
  else ib_flush_finish(ib_recv_comm_of(comm), r);
}

rail_result_t ib_test(void *request, int *done, int *sizes) {
  if (!done) {
    RAIL_WARN("RailIB: test: done is NULL; allowed: the address of an int");
    return RAIL_BAD_ARGUMENT;
  }
  *done = 0;
  struct ib_request *r = ib_request_of(request, "test");
  if (!r) return RAIL_BAD_ARGUMENT;
  if (r->pending) {
    rail_result_t result = progress_request(r);
    /* A request that finished is finished, whatever became of the others. */
    if (r->pending) {
      if (result == RAIL_OK) result = r->result; /* other buffers of it may still be written */
      if (rail_unlikely(result != RAIL_OK && r->comm->profiler)) ib_profile_stop(r);
      return result;
    }
  }
  if (rail_unlikely(r->comm->profiler != NULL)) ib_profile_stop(r);
  rail_result_t result = r->result;
  finish(r, sizes);
  *done = 1;
  return result;
}
