/* SPDX-License-Identifier: Apache-2.0
 *
 * Taking connections down. Close never fails and waits for nobody: an error
 * would end NCCL's own clean-up, and the peer may close seconds later.
 *
 * By the time of close the caller has freed its buffers (deregMr stopped the
 * QPs if it had to). A receiver that has got everything lives on for a moment in
 * the watch thread's hands, without any buffer of the caller's: the last ACK may
 * have been lost, and its sender would else see its retries fail for a message
 * that arrived.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_mr.h"
#include "plugin/ib/ib_stats.h"
#include "plugin/ib/ib_watch.h"

static void warn_if(const struct ib_comm *comm, const char *what, int err) {
  if (err)
    RAIL_WARN("RailIB: close of the connection with %s: %s: %s; what it held goes when the process ends",
              comm->peer_text, what, strerror(err));
}

/* What goes first is what uses the rest: data QPs, flush QPs, their CQs, then the memory that they read and wrote. */
static void destroy_verbs(struct ib_comm *comm) {
  for (unsigned int i = 0; comm->qps && i < comm->plan.nqps; i++) ib_qp_destroy(&comm->qps[i]);
  if (!comm->sender) {
    ib_flush_close(ib_recv_comm_flush(comm));
    ib_recv_comm_set_flush(comm, NULL);
  }
  for (unsigned int r = 0; r < comm->nrails; r++) {
    struct ib_rail *rail = &comm->rails[r];
    if (rail->cq) warn_if(comm, "ibv_destroy_cq", ib_verbs.destroy_cq(rail->cq));
    if (rail->ctrl_mr) warn_if(comm, "ibv_dereg_mr", ib_verbs.dereg_mr(rail->ctrl_mr));
    rail->cq = NULL;
    rail->ctrl_mr = NULL;
  }
  ib_mhandles_free(comm);
}

/* In a child of fork nothing is freed: the verbs objects are the parent's, and memory that is registered may not even
 * be mapped here (ibv_fork_init). */
void ib_comm_destroy(struct ib_comm *comm) {
  if (!comm || comm->forked) return;
  atomic_store(&comm->stopped, true); /* events of its QPs mean nothing any more */
  ib_watch_remove(comm, false);
  destroy_verbs(comm);
  rail_sock_close(&comm->side_fd);
  ib_stats_comm_end(comm);
  free(comm->qps);
  comm->qps = NULL;
  comm->magic = 0;
  ib_comm_free_kind(comm);
}

rail_result_t ib_close_send(void *send_comm) {
  if (!send_comm) return RAIL_OK;
  struct ib_comm *comm = ib_comm_of(send_comm, IB_SEND_COMM_MAGIC, "closeSend");
  if (!comm) return RAIL_OK; /* said so */
  ib_watch_remove(comm, true);
  ib_comm_destroy(comm);
  return RAIL_OK;
}

/* Only what a sender's retries can still need. */
static bool should_linger(const struct ib_comm *comm) {
  uint32_t ended = IB_COMM_PEER_CLOSED | IB_COMM_PEER_LOST | IB_COMM_PEER_SILENT | IB_COMM_HOST_SILENT |
                   IB_COMM_QP_FATAL | IB_COMM_CQ_ERROR | IB_COMM_DEVICE_FATAL;
  return ib_comm_linger_ms(comm) && !comm->forked && comm->failed == RAIL_OK && !atomic_load(&comm->stopped) &&
         !atomic_load(&comm->outstanding) && !(atomic_load(&comm->health) & ended);
}

rail_result_t ib_close_recv(void *recv_comm) {
  if (!recv_comm) return RAIL_OK;
  struct ib_comm *comm = ib_comm_of(recv_comm, IB_RECV_COMM_MAGIC, "closeRecv");
  if (!comm) return RAIL_OK;
  if (should_linger(comm)) {
    comm->magic = 0; /* it is closed */
    ib_watch_linger(comm, ib_comm_destroy);
    return RAIL_OK;
  }
  ib_watch_remove(comm, true);
  ib_comm_destroy(comm);
  return RAIL_OK;
}
