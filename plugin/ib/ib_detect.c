/* SPDX-License-Identifier: Apache-2.0
 *
 * Detection of a path that drops all packets, long before the HCA's retries are over: RAIL_IB_PATH_TIMEOUT. The
 * progress thread checks its QPs where tests find nothing. One that has something outstanding, of which nothing
 * completes for a while, is suspect, and goes through these steps:
 *
 *   half of the time     a write of zero bytes over it: the peer's HCA asks for what it has missed, so where only
 *                        packets were lost they are resent now
 *   three quarters       the same over a witness: a QP over another path
 *   that has completed   once more over the suspect: its path may have become well when the witness' did
 *   a quarter later      nothing has completed over it: it is lost (ib_failover.c)
 *
 * Without a witness that answers the peer's host may be what does not, or both paths are gone: the HCA's retries, and
 * the deadlines of the oob connection, decide as ever.
 */
#include "common/base/clock.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_progress.h"

#define CHECK_EACH 8 /* of so many tests that found nothing one checks all QPs */
#define SLOWEST 100  /* a path carries a hundredth of its port's speed, at least */

static uint64_t limit_ns(void) { return (uint64_t)ib_params.path_ms * 1000000; }

/* ---- what is outstanding ---------------------------------------------------------- */

/* Of a sender: what the QP has not completed, in bytes of messages. */
static uint64_t bytes_outstanding(struct ib_send_comm *sc, const struct ib_qp *qp) {
  uint64_t bytes = 0;
  for (uint32_t i = qp->posted.first; i != qp->posted.end; i++) {
    const struct ib_posted entry = *ib_posted_at(&qp->posted, i);
    const struct ib_send *send = &sc->sends[entry.send];
    bytes += send->shares ? send->shares[entry.part].size : send->length / send->nparts + IB_ALIGN;
  }
  return bytes;
}

/* How long the HCA may take for that, where its path is slow. */
static uint64_t transfer_ns(struct ib_comm *comm, unsigned int index) {
  const uint64_t mbps = (uint64_t)RAIL_MAX(ib_qp_port(comm, index)->speed, 1);
  return comm->sender ? bytes_outstanding(ib_send_comm_of(comm), &comm->qps[index]) * 8000 * SLOWEST / mbps : 0;
}

/* False: nothing is outstanding over the QP. *mark changes when something of it completes. A receiver's CTS writes are
 * not all signaled, and complete behind the write of step one. */
static bool is_outstanding(struct ib_comm *comm, const struct ib_qp *qp, uint64_t *mark) {
  if (comm->sender) {
    *mark = qp->posted.first;
    return qp->posted.first != qp->posted.end;
  }
  const struct ib_recv_comm *rc = ib_recv_comm_of(comm);
  *mark = (uint64_t)rc->next_seq << 32 | qp->sq_avail;
  return rc->cts_qp == qp && qp->sq_avail != qp->sizes.send_depth;
}

/* ---- writes of zero bytes --------------------------------------------------------- */

/* Where they would write: the oldest buffer that is written to over the suspect QP, or the peer's ring. */
static void set_remote_addr(struct ib_comm *comm, const struct ib_qp *suspect, const struct ib_qp *qp,
                            struct ibv_send_wr *wr) {
  if (!comm->sender) {
    const struct ib_remote_ring *ring = &ib_recv_comm_of(comm)->remote_ring;
    wr->wr.rdma.remote_addr = ring->addr;
    wr->wr.rdma.rkey = ring->rkeys[qp->remote_rail];
    return;
  }
  const struct ib_posted oldest = *ib_posted_at(&suspect->posted, suspect->posted.first);
  const struct ib_cts *buffer = ib_send_comm_of(comm)->sends[oldest.send].buffer;
  wr->wr.rdma.remote_addr = buffer->addr;
  wr->wr.rdma.rkey = buffer->rkeys[qp->remote_rail];
}

/* Where there is no room what is outstanding has to complete first, and will be seen. False: it cannot be posted. */
static bool post_probe(struct ib_comm *comm, const struct ib_qp *suspect, struct ib_qp *qp) {
  if (!comm->sender && ib_recv_comm_of(comm)->cts_qp == qp) return ib_recv_probe(ib_recv_comm_of(comm)) == RAIL_OK;
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
                           .wr_id = ib_wr_id(IB_WR_PROBE, qp->index, 1, 0)}, *bad;
  if (!qp->sq_avail) return qp == suspect;
  set_remote_addr(comm, suspect, qp, &wr);
  if (ibv_post_send(qp->qp, &wr, &bad)) return false;
  qp->sq_avail--;
  return true;
}

/* ---- the steps -------------------------------------------------------------------- */

static bool is_another_path(const struct ib_comm *comm, unsigned int a, unsigned int b) {
  return ib_qp_port(comm, a) != ib_qp_port(comm, b) || comm->qps[a].remote_rail != comm->qps[b].remote_rail;
}

/* The next QP behind the last witness that is not suspect itself. */
static void probe_witness(struct ib_comm *comm, unsigned int index, uint64_t now) {
  struct ib_failover *f = comm->failover;
  const unsigned int from = f->witness;
  for (unsigned int n = 1; n <= comm->plan.nqps; n++) {
    const unsigned int i = (from + n) % comm->plan.nqps;
    const struct ib_failover_qp *fq = ib_failover_qp(comm, i);
    if (fq->state != IB_FAILOVER_UP || fq->probed_at || !is_another_path(comm, i, index)) continue;
    f->witness = i;
    if (!post_probe(comm, &comm->qps[index], &comm->qps[i])) continue;
    f->witness_probed_at = now;
    f->witness_answered = false;
    return;
  }
}

static bool probe_suspect(struct ib_comm *comm, unsigned int index) {
  struct ib_qp *qp = &comm->qps[index];
  if (!post_probe(comm, qp, qp)) return false;
  (void)is_outstanding(comm, qp, &ib_failover_qp(comm, index)->mark); /* the probe is, too */
  return true;
}

void ib_detect_probe_done(struct ib_comm *comm, unsigned int index) {
  if (comm->failover && comm->failover->witness == index) comm->failover->witness_answered = true;
}

/* One that has something outstanding over a port that is not known to be down; that has RAIL_IB_PORT_GRACE. Times
 * begin anew with each step, so that one that this process slept through counts for nothing by itself: what completed
 * meanwhile was polled before this check. */
static void check_qp(struct ib_comm *comm, unsigned int index, uint64_t mark, uint64_t now) {
  struct ib_failover *f = comm->failover;
  struct ib_failover_qp *fq = ib_failover_qp(comm, index);
  const uint64_t limit = limit_ns();
  if (!fq->quiet_since || fq->mark != mark) {
    fq->mark = mark;
    fq->quiet_since = now;
    fq->probed_at = fq->probed_again_at = 0;
  } else if (!fq->probed_at) {
    if (now - fq->quiet_since < limit / 2 + transfer_ns(comm, index)) return;
    if (probe_suspect(comm, index)) fq->probed_at = now;
  } else if (f->witness_probed_at < fq->probed_at) {
    if (now - fq->probed_at >= limit / 4) probe_witness(comm, index, now);
  } else if (!fq->probed_again_at) {
    const bool answers = f->witness_answered && is_another_path(comm, f->witness, index);
    if (answers && probe_suspect(comm, index)) fq->probed_again_at = now;
    else if (now - f->witness_probed_at >= limit) fq->probed_at = 0; /* again from step one */
  } else if (now - fq->probed_again_at >= limit / 4) {
    if (ib_failover_lose(comm, index)) ib_qp_fault(comm, index, IB_FAULT_SILENT);
  }
}

static void check_qps(struct ib_comm *comm) {
  const uint64_t now = rail_now_ns();
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    struct ib_failover_qp *fq = ib_failover_qp(comm, i);
    uint64_t mark;
    const bool down = atomic_load(&ib_qp_port(comm, i)->faults) & IB_PORT_DOWN;
    if (fq->state == IB_FAILOVER_UP && !down && is_outstanding(comm, &comm->qps[i], &mark))
      check_qp(comm, i, mark, now);
    else fq->quiet_since = fq->probed_at = fq->probed_again_at = 0;
  }
}

void ib_detect_empty_test(struct ib_comm *comm) {
  struct ib_failover *f = comm->failover;
  if (++f->empty_tests % CHECK_EACH || !ib_params.path_ms || rail_first_error(&comm->error) != RAIL_OK) return;
  /* A flush must complete by itself: a probe's completion would hide that it is lost. */
  if (!comm->sender && ib_flush_is_pending(ib_recv_comm_of(comm))) return;
  check_qps(comm);
}
