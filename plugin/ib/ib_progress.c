/* SPDX-License-Identifier: Apache-2.0
 *
 * What polls: test (ib_test), irecv where it has no room, and isend where it finds no CTS and failover has work to do
 * (both by ib_progress); deregMr (ib_comm_drain). Each completion is checked for its status and dispatched by kind to
 * the file that posted it. When a poll finds nothing test looks at what the watch thread found, and at the clock; at
 * the clock also once in a few thousand completions.
 */
#include "plugin/ib/ib_progress.h"

#include <errno.h>
#include <sched.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_failover.h"

#define BATCH 16
#define MAX_BATCHES 8   /* per call and CQ: a call must return within a millisecond */
#define EMPTY_TESTS 16  /* of so many tests that found nothing one looks at the wait for a turn */
#define CLOCK_EACH 4096 /* completions between two looks at the clock, when every poll finds some */
#define PEER_BITS \
  (IB_COMM_PEER_CLOSED | IB_COMM_PEER_GONE | IB_COMM_PEER_LOST | IB_COMM_PEER_SILENT | IB_COMM_HOST_SILENT)
#define SLOWEST_BYTES_PER_MS 1000 /* a megabyte a second: slower networks do not carry RDMA */
#define DRAIN_MS 1000   /* a stopped QP flushes within microseconds; one that takes so long does not */

/* ---- the steps of test, in their order; each is explained at its definition ------- */

static rail_result_t test_found(struct ib_comm *comm, struct ibv_wc *wcs, int n);
RAIL_HOT_INLINE void dispatch_polled(struct ib_comm *comm, struct ibv_cq *cq, struct ibv_wc *wcs, int n);
RAIL_HOT_INLINE rail_result_t dispatch(struct ib_comm *comm, const struct ibv_wc *wc);
static bool poll_rails(struct ib_comm *comm, unsigned int first);
static inline rail_result_t after_completions(struct ib_comm *comm);
static inline void after_empty_poll(struct ib_comm *comm);
static rail_result_t work_when_idle(const struct ib_request *r);
static void clear_probe(struct ib_comm *comm);
RAIL_COLD static rail_result_t handle_pending(const struct ib_request *r, uint32_t work);
static rail_result_t poll_all(struct ib_comm *comm, bool *found);

/* ---- test --------------------------------------------------------------- */

/* A test that found no completion over the first rail has no other work: no fault to handle, no other rail to poll, no
 * event to wait for, no turn to check. */
static inline bool is_quiet(const struct ib_comm *comm) {
  return rail_likely(!(atomic_load_explicit(&comm->pending_work, memory_order_acquire) | comm->test_has_more));
}

/* A request that is done is free again. Returns its result. */
static inline rail_result_t finish(struct ib_request *r, int *sizes) {
  if (r->magic == IB_REQ_SEND) return ib_send_finish(rail_container_of(r, struct ib_send, base), sizes);
  if (r->magic == IB_REQ_RECV) return ib_recv_finish(rail_container_of(r, struct ib_recv, base), sizes);
  return ib_flush_finish(r);
}

rail_result_t ib_test(void *request, int *done, int *sizes) {
  struct ib_request *r = request;
  if (rail_unlikely(!r || r == RAIL_NET_OPTIONAL_RECV)) return rail_net_refuse_request("RailIB", r);
  if (rail_unlikely(!ib_request_is_outstanding(r))) return rail_net_refuse_request("RailIB", r);
  if (r->pending) {
    struct ibv_wc wcs[BATCH];
    rail_result_t result = rail_first_error(&r->comm->error);
    if (rail_likely(result == RAIL_OK)) {
      const int n = ibv_poll_cq(r->comm->rails[0].cq, BATCH, wcs);
      if (!n && is_quiet(r->comm)) {
        if (r->comm->completions) after_empty_poll(r->comm);
        return r->result; /* of one that has failed, other buffers may still be written */
      }
      result = n ? test_found(r->comm, wcs, n) : work_when_idle(r);
    }
    /* A request that is done is done, whatever happened to others. */
    if (r->pending) {
      if (rail_unlikely(result != RAIL_OK && r->comm->profiler)) ib_profile_stop(r);
      return result == RAIL_OK ? r->result : result;
    }
  }
  if (rail_unlikely(r->comm->profiler != NULL)) ib_profile_stop(r);
  *done = 1;
  return finish(r, sizes);
}

/* ---- when a poll finds completions ------------------------------------------------- */

/* The poll of the first rail has found n completions. */
static __attribute__((noinline)) rail_result_t test_found(struct ib_comm *comm, struct ibv_wc *wcs, int n) {
  dispatch_polled(comm, comm->rails[0].cq, wcs, n);
  if (rail_unlikely(comm->test_has_more)) (void)poll_rails(comm, 1);
  return after_completions(comm);
}

/* A poll found several completions, of a full batch there may be more; or it failed. After an error the rest is still
 * dispatched: it may finish requests. */
static __attribute__((noinline)) void dispatch_several(struct ib_comm *comm, struct ibv_cq *cq, struct ibv_wc *wcs,
                                                       int n) {
  for (int batch = 1; n > 0; batch++) {
    comm->completions += (uint32_t)n;
    for (const struct ibv_wc *wc = wcs; wc != wcs + n; wc++) (void)dispatch(comm, wc);
    if (n < BATCH || batch == MAX_BATCHES) return;
    n = ibv_poll_cq(cq, BATCH, wcs);
  }
  if (rail_unlikely(n < 0)) (void)ib_error_post(comm, NULL, "ibv_poll_cq", EIO);
}

/* Dispatches n completions, and what else the queue has. n: what a poll has returned, unless that is 0. */
RAIL_HOT_INLINE void dispatch_polled(struct ib_comm *comm, struct ibv_cq *cq, struct ibv_wc *wcs, int n) {
  if (rail_unlikely(n != 1)) {
    dispatch_several(comm, cq, wcs, n);
    return;
  }
  comm->completions++;
  (void)dispatch(comm, wcs);
}

/* An HCA handles the packets of a QP in order, so a flushed receive WR shows that none is being handled any more. With
 * the SEND protocol only receive WRs name the caller's memory. */
static void count_receive(struct ib_comm *comm, const struct ibv_wc *wc) {
  unsigned int qp = ib_wr_qp(wc->wr_id);
  if (qp >= comm->plan.nqps) return;
  if (ib_wr_kind(wc->wr_id) == IB_WR_RECV && wc->status != IBV_WC_SUCCESS) atomic_store(&comm->qps[qp].flushed, true);
  if (ib_wr_kind(wc->wr_id) == IB_WR_BUFFER) atomic_fetch_sub(&comm->qps[qp].receives, 1);
}

RAIL_COLD static rail_result_t failed_completion(struct ib_comm *comm, const struct ibv_wc *wc) {
  const unsigned int qp = ib_wr_qp(wc->wr_id);
  count_receive(comm, wc);
  if (wc->status == IBV_WC_RETRY_EXC_ERR && qp < comm->plan.nqps) ib_port_forget_gids(ib_qp_port(comm, qp));
  return ib_failover_completion(comm, wc) ? RAIL_OK : ib_error_completion(comm, wc);
}

/* The peer's process has no part in a probe, so it does not count as progress: a stopped peer would seem alive. */
static void probe_done(struct ib_comm *comm, const struct ibv_wc *wc) {
  ib_recv_cts_done(comm, wc);
  ib_detect_probe_done(comm, ib_wr_qp(wc->wr_id));
  clear_probe(comm);
  comm->completions--; /* its batch is counted */
}

/* Kinds that most connections, or most calls, do not meet. Apart, so that the others are told by a branch each. */
static __attribute__((noinline)) rail_result_t dispatch_rare(struct ib_comm *comm, const struct ibv_wc *wc) {
  const enum ib_wr_kind kind = ib_wr_kind(wc->wr_id);
  if (kind == IB_WR_BUFFER) return ib_recv_buffer_done(comm, wc);
  if (kind == IB_WR_FLUSH) ib_flush_done(comm, wc);
  else if (kind == IB_WR_PROBE) probe_done(comm, wc);
  else ib_return_verified(comm, ib_wr_qp(wc->wr_id));
  return RAIL_OK;
}

/* Status first: the other fields of a failed completion, but wr_id and qp_num, mean nothing. The most frequent kinds
 * come first. */
RAIL_HOT_INLINE rail_result_t dispatch(struct ib_comm *comm, const struct ibv_wc *wc) {
  if (rail_unlikely(wc->status != IBV_WC_SUCCESS)) return failed_completion(comm, wc);
  const enum ib_wr_kind kind = ib_wr_kind(wc->wr_id);
  if (kind == IB_WR_RECV) return ib_recv_done(comm, wc);
  if (kind == IB_WR_SEND) ib_send_done(comm, wc);
  else if (kind == IB_WR_CTS) ib_recv_cts_done(comm, wc);
  else return dispatch_rare(comm, wc);
  return RAIL_OK;
}

/* Polls the rails from `first` on. True: there was a completion. */
static __attribute__((noinline)) bool poll_rails(struct ib_comm *comm, unsigned int first) {
  struct ibv_wc wcs[BATCH];
  bool found = false;
  for (unsigned int rail = first; rail < comm->nrails; rail++) {
    struct ibv_cq *cq = comm->rails[rail].cq;
    const int n = ibv_poll_cq(cq, BATCH, wcs);
    if (n) dispatch_polled(comm, cq, wcs, n);
    found |= n != 0;
  }
  return found;
}

static void sample_time(struct ib_comm *comm) {
  comm->completions = 0;
  comm->sample_above = CLOCK_EACH;
  comm->last_progress = rail_now_ns();
  rail_stats_set(&comm->stats[IB_COMM_LAST_PROGRESS], comm->last_progress);
}

/* Completions were found. What waited for room in a send queue may have some now. */
static inline rail_result_t after_completions(struct ib_comm *comm) {
  comm->last_poll_empty = false;
  if (rail_unlikely(comm->test_has_more) && comm->event_driven) ib_wait_found(comm);
  if (rail_unlikely(comm->completions > comm->sample_above)) {
    if (comm->probe_deadline) clear_probe(comm);
    sample_time(comm);
  }
  if (rail_unlikely(rail_first_error(&comm->error) != RAIL_OK)) return rail_first_error(&comm->error);
  if (!comm->sender || rail_likely(STAILQ_EMPTY(&ib_send_comm_of(comm)->unposted))) return RAIL_OK;
  return ib_send_resume(ib_send_comm_of(comm));
}

/* ---- when a poll finds nothing ---------------------------------------------- */

/* No completion was found, and there were some since the time was sampled. A connection in use finds nothing now and
 * then: only the second time in a row counts. */
static inline void after_empty_poll(struct ib_comm *comm) {
  if (comm->last_poll_empty) sample_time(comm);
  comm->last_poll_empty = true;
}

/* A send may wait for the turn of one that is never called (ib_two_sided.c). No fault tells of that, so every few tests
 * that find nothing look at it. */
static rail_result_t check_turn(struct ib_comm *comm) {
  struct ib_two_sided *t = comm->sender ? ib_send_comm_of(comm)->two_sided : NULL;
  if (!t || ++t->empty_tests % EMPTY_TESTS) return RAIL_OK;
  rail_result_t result = ib_send_check_turn(ib_send_comm_of(comm));
  return result == RAIL_IN_PROGRESS ? RAIL_OK : result;
}

/* No completion was found, and the comm is not quiet. */
static __attribute__((noinline)) rail_result_t work_when_idle(const struct ib_request *r) {
  struct ib_comm *comm = r->comm;
  bool found;
  if (poll_rails(comm, 1)) return after_completions(comm);
  if (comm->completions) after_empty_poll(comm);
  if (ib_detect_is_possible(comm)) ib_detect_empty_test(comm);
  const uint32_t work = atomic_load_explicit(&comm->pending_work, memory_order_acquire);
  if (work) return handle_pending(r, work);
  RAIL_TRY(check_turn(comm));
  return comm->event_driven && ib_wait_idle(comm, r) ? poll_all(comm, &found) : RAIL_OK;
}

/* The peer sent GOODBYE while sends of ours are outstanding. It acknowledges retransmissions of what it had received
 * for RAIL_IB_LINGER; what is not acknowledged by then never will be. A peer that closed with receives outstanding does
 * not linger: it closes the oob connection at once (gone). */
static bool may_be_acknowledged(struct ib_send_comm *sc, bool gone) {
  if (!sc->closed_deadline || gone > sc->peer_gone)
    sc->closed_deadline = rail_deadline_in_ms((gone ? 0 : ib_comm_linger_ms(&sc->base)) + IB_GRACE_MS);
  sc->peer_gone = gone;
  return !rail_deadline_passed(sc->closed_deadline);
}

/* Can the request still complete on a connection with these fault bits? */
static bool may_complete(const struct ib_request *r, uint32_t faults) {
  if (faults & ~PEER_BITS) return false;
  if (r->magic == IB_REQ_FLUSH) return true; /* needs no peer */
  if ((faults & ~IB_COMM_PEER_GONE) != IB_COMM_PEER_CLOSED || r->magic == IB_REQ_RECV) return false;
  return may_be_acknowledged(ib_send_comm_of(r->comm), faults & IB_COMM_PEER_GONE);
}

/* The peer's last completions precede its GOODBYE, but the GOODBYE may have arrived between the poll and the read of
 * the fault bits. So poll once more. */
RAIL_COLD static rail_result_t check_faults(const struct ib_request *r, uint32_t faults) {
  bool found;
  rail_result_t result = poll_all(r->comm, &found);
  if (result != RAIL_OK || found || !r->pending || may_complete(r, faults)) return result;
  return ib_error_faults(r->comm, faults);
}

/* Bytes that are posted, or wait for room, and have not completed. */
static uint64_t bytes_pending(const struct ib_send_comm *sc) {
  uint64_t bytes = 0;
  for (unsigned int i = 0; i < IB_MAX_SENDS; i++)
    if (sc->sends[i].base.magic == IB_REQ_SEND && sc->sends[i].base.pending) bytes += sc->sends[i].length;
  return bytes;
}

/* How long the HCA may take for a completion: its retries, and the slowest network. 0: no limit. */
static uint64_t completion_limit_ms(const struct ib_comm *comm) {
  const uint64_t retries_ms = ib_qp_limit_ms(&comm->qps[0].attr); /* all QPs have the same timeouts */
  uint64_t bytes = comm->sender ? bytes_pending(rail_container_of(comm, const struct ib_send_comm, base)) : 0;
  return retries_ms ? retries_ms + bytes / SLOWEST_BYTES_PER_MS : 0;
}

/* The HCA works: the probe completed, or something else did. */
static void clear_probe(struct ib_comm *comm) {
  comm->probe_deadline = 0;
  atomic_fetch_and(&comm->pending_work, ~IB_COMM_STALLED);
}

/* Nothing completes. Mostly the peer has nothing to send or to receive; but an HCA, or its driver, may also have lost a
 * work request, and then nothing would ever report it. A sender's requests are all the HCA's to complete, but for those
 * that wait for a turn; a SEND completes only if the peer has posted its receive WR, as it announced. A receiver's wait
 * for the peer, so a probe is posted. The HCA completes that whatever the peer does; when the deadline has passed after
 * a poll without a completion, the work request is lost. */
RAIL_COLD static rail_result_t check_stalled(struct ib_comm *comm) {
  if (comm->completions) { /* not noted in last_progress yet, so the watch thread has not seen them */
    clear_probe(comm);
    sample_time(comm);
    return RAIL_OK;
  }
  rail_result_t result = comm->sender ? ib_send_check_turn(ib_send_comm_of(comm)) : RAIL_IN_PROGRESS;
  if (result != RAIL_IN_PROGRESS) return result;
  if (comm->probe_deadline)
    return rail_deadline_passed(comm->probe_deadline) ? ib_error_stalled(comm) : RAIL_OK;
  uint64_t ms = completion_limit_ms(comm);
  if (!ms) return RAIL_OK;
  comm->probe_deadline = rail_deadline_in_ms(ms);
  comm->sample_above = 0; /* the next completion, whosever it is, clears it */
  return comm->sender ? RAIL_OK : ib_recv_probe(ib_recv_comm_of(comm));
}

/* Does what the watch thread has asked for by bits of pending_work. */
RAIL_COLD static rail_result_t handle_pending(const struct ib_request *r, uint32_t work) {
  const uint32_t faults = work & ~IB_COMM_WORK;
  if (work & IB_COMM_FAILOVER) RAIL_TRY(ib_failover_run(r->comm));
  if (!r->pending) return RAIL_OK;
  if (faults) return check_faults(r, faults);
  return !(work & IB_COMM_STALLED) || ib_failover_awaits(r->comm) ? RAIL_OK : check_stalled(r->comm);
}

/* ---- from isend and irecv ------------------------------------------------------------ */

rail_result_t ib_progress(struct ib_comm *comm) {
  bool found;
  RAIL_TRY(poll_all(comm, &found));
  if (found || !(atomic_load_explicit(&comm->pending_work, memory_order_acquire) & IB_COMM_FAILOVER)) return RAIL_OK;
  return ib_failover_run(comm);
}

/* Polls all rails. *found: there was a completion. */
static rail_result_t poll_all(struct ib_comm *comm, bool *found) {
  RAIL_TRY(rail_first_error(&comm->error));
  *found = poll_rails(comm, 0);
  if (*found) return after_completions(comm);
  if (comm->completions) after_empty_poll(comm);
  return RAIL_OK;
}

/* ---- draining stopped QPs -------------------------------------------------- */

static bool all_flushed(const struct ib_comm *comm) {
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    const struct ib_qp *qp = &comm->qps[i];
    if (comm->plan.two_sided ? atomic_load(&qp->receives) != 0 : !atomic_load(&qp->flushed)) return false;
  }
  return true;
}

/* The progress thread may be in poll_cq meanwhile, for the last time; it notes what it finds, too. */
bool ib_comm_drain(struct ib_comm *comm) {
  uint64_t deadline = atomic_load(&comm->drain_deadline);
  if (!deadline) {
    deadline = rail_deadline_in_ms(DRAIN_MS);
    atomic_store(&comm->drain_deadline, deadline);
  }
  for (;;) {
    struct ibv_wc wcs[BATCH];
    for (unsigned int r = 0; r < comm->nrails; r++) {
      int n = ibv_poll_cq(comm->rails[r].cq, BATCH, wcs);
      for (int i = 0; i < n; i++) count_receive(comm, &wcs[i]);
    }
    if (all_flushed(comm)) return true;
    if (rail_deadline_passed(deadline)) return false;
    sched_yield();
  }
}
