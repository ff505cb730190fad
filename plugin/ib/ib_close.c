/* SPDX-License-Identifier: Apache-2.0
 *
 * Closing connections. Close never fails: an error would end NCCL's own clean-up. Nor does it wait for the peer, who
 * may close seconds later.
 *
 * By the time of close the caller has freed its buffers (deregMr stopped the QPs if it had to). A receiver that has
 * received everything lingers, owned by the watch thread and without any buffer of the caller's: its last ACK may have
 * been lost, and without an answer to the retransmission its sender would report an error for a message that arrived.
 */
#include "plugin/ib/ib_comm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/ib/ib_connect.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_progress.h"
#include "plugin/ib/ib_stats.h"
#include "plugin/ib/ib_stripe.h"

static void warn_if(int err, const struct ib_comm *comm, const char *what) {
  if (err)
    RAIL_WARN("RailIB: close of the connection with %s: %s: %s; what it held goes when the process ends",
              comm->peer_text, what, strerror(err));
}

/* Users before what they use: data QPs, what the RDMA CM has of them, flush QPs, their CQs and the channels of those,
 * then the registrations. */
static void destroy_verbs(struct ib_comm *comm) {
  for (unsigned int i = 0; comm->qps && i < comm->plan.nqps; i++) ib_qp_destroy(&comm->qps[i]);
  ib_return_close(comm);
  ib_cm_close(comm);
  if (!comm->sender) ib_flush_close(comm);
  ib_wait_close(comm);
  for (unsigned int r = 0; r < comm->nrails; r++) {
    struct ib_rail *rail = &comm->rails[r];
    if (rail->cq) warn_if(ib_verbs.destroy_cq(rail->cq), comm, "ibv_destroy_cq");
    warn_if(ib_wait_destroy_channel(rail), comm, "ibv_destroy_comp_channel");
    if (rail->ctrl_mr) warn_if(ib_verbs.dereg_mr(rail->ctrl_mr), comm, "ibv_dereg_mr");
    rail->cq = NULL;
    rail->ctrl_mr = NULL;
  }
  ib_notices_close(comm);
  ib_mhandles_free(comm);
}

void ib_comm_free(struct ib_comm *comm) {
  free(comm->ctrl_buf);
  free(comm->qps);
  free(comm->failover);
  if (comm->sender) {
    ib_stripe_close(ib_send_comm_of(comm));
    ib_two_sided_close(ib_send_comm_of(comm));
    free(ib_send_comm_of(comm)->posted);
  }
  comm->magic = 0;
  if (comm->sender) free(ib_send_comm_of(comm));
  else free(ib_recv_comm_of(comm));
}

/* In a child of fork nothing is freed: the verbs objects are the parent's, and registered memory may not even be mapped
 * here (ibv_fork_init). */
void ib_comm_destroy(struct ib_comm *comm) {
  if (!comm || comm->forked) return;
  (void)ib_comm_set_stopped(comm); /* events of its QPs are ignored from here on */
  rail_watch_remove(&ib_watch, &comm->watched, false);
  destroy_verbs(comm);
  rail_sock_close(&comm->oob_fd);
  ib_stats_comm_end(comm);
  ib_comm_free(comm);
}

/* Only while a sender's retransmissions may need an answer, or what an iWARP sender sent may be on its way. Not with
 * receives outstanding: the peer could write into their buffers, which are the caller's again when close returns. */
static bool should_linger(const struct ib_comm *comm) {
  uint32_t ended = IB_COMM_PEER_CLOSED | IB_COMM_PEER_LOST | IB_COMM_PEER_SILENT | IB_COMM_HOST_SILENT |
                   IB_COMM_QP_FATAL | IB_COMM_CQ_ERROR | IB_COMM_DEVICE_FATAL;
  return ib_comm_linger_ms(comm) && !comm->forked && rail_first_error(&comm->error) == RAIL_OK &&
         !atomic_load(&comm->outstanding) && !(atomic_load(&comm->pending_work) & ended);
}

static void destroy_lingering(void *comm) { ib_comm_destroy(comm); }

/* A completion of iWARP says that the NIC has taken the bytes. They go out, and GOODBYE behind them, unless the peer
 * has closed; a network that needs longer than a second for them has failed. */
static bool linger_for_iwarp(struct ib_comm *comm) {
  if (!comm->rails[0].port->iwarp || !should_linger(comm)) return false;
  comm->magic = 0; /* it is closed */
  uint64_t ms = RAIL_MIN(ib_comm_linger_ms(comm), IB_GRACE_MS);
  if (!rail_watch_linger(&ib_watch, &comm->watched, ms, true, destroy_lingering)) ib_comm_destroy(comm);
  return true;
}

rail_result_t ib_close_send(void *send_comm) {
  if (!send_comm) return RAIL_OK;
  struct ib_comm *comm = ib_comm_of(send_comm, IB_SEND_COMM_MAGIC, "closeSend");
  if (!comm) return RAIL_OK; /* the line is written */
  if (linger_for_iwarp(comm)) return RAIL_OK;
  rail_watch_remove(&ib_watch, &comm->watched, true);
  ib_comm_destroy(comm);
  return RAIL_OK;
}

rail_result_t ib_close_recv(void *recv_comm) {
  if (!recv_comm) return RAIL_OK;
  struct ib_comm *comm = ib_comm_of(recv_comm, IB_RECV_COMM_MAGIC, "closeRecv");
  if (!comm) return RAIL_OK;
  if (should_linger(comm)) {
    comm->magic = 0; /* it is closed */
    if (!rail_watch_linger(&ib_watch, &comm->watched, ib_comm_linger_ms(comm), false, destroy_lingering))
      ib_comm_destroy(comm);
    return RAIL_OK;
  }
  rail_watch_remove(&ib_watch, &comm->watched, true);
  ib_comm_destroy(comm);
  return RAIL_OK;
}
