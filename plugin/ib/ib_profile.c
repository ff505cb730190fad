/* SPDX-License-Identifier: Apache-2.0
 * Events for NCCL's profiler. */
#include "plugin/ib/ib_profile.h"

#include <string.h>

#include "plugin/ib/ib_progress.h"

/* The places of a request's events. */
static void **events_of(const struct ib_request *r, uint32_t *n) {
  *n = 0;
  if (r->magic == IB_REQ_SEND) {
    struct ib_send_comm *sc = ib_send_comm_of(r->comm);
    *n = 1;
    return sc->events + (rail_container_of(r, const struct ib_send, base) - sc->sends);
  }
  if (r->magic != IB_REQ_RECV) return NULL;
  struct ib_recv_comm *rc = ib_recv_comm_of(r->comm);
  const struct ib_recv *recv = rail_container_of(r, const struct ib_recv, base);
  *n = recv->n;
  return rc->events + (recv - rc->recvs) * IB_MAX_GROUP;
}

static void describe(const void *request, uint32_t i, void *out) {
  const struct ib_request *r = request;
  struct ib_profile_event event = {.type = IB_PROFILE_QP, .qp.opcode = IBV_WR_RDMA_WRITE};
  const struct ib_qp *qp = &r->comm->qps[0];
  if (r->magic == IB_REQ_SEND) {
    const struct ib_send *send = rail_container_of(r, const struct ib_send, base);
    qp = &r->comm->qps[send->first_qp];
    event.qp.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    event.qp.length = send->size;
    event.qp.wr_id = ib_wr_id(IB_WR_SEND, qp->index, 1, (unsigned int)(send - ib_send_comm_of(r->comm)->sends));
  } else {
    const struct ib_recv *recv = rail_container_of(r, const struct ib_recv, base);
    event.qp.length = recv->buffers[i].capacity;
    event.qp.wr_id = ib_wr_id(IB_WR_CTS, qp->index, 1, (unsigned int)(recv - ib_recv_comm_of(r->comm)->recvs));
  }
  event.qp.device = qp->rail;
  event.qp.qp_num = (int)qp->qp->qp_num;
  memcpy(out, &event, sizeof event);
}

static const struct rail_profile_kind kind = {.id = IB_PROFILE_ID, .describe = describe};

void ib_profile_start(struct ib_request *r, void *const *phandles) {
  uint32_t n;
  void **events = events_of(r, &n);
  rail_profile_start(&kind, r->comm->profiler, events, n, phandles, r);
}

void ib_profile_stop(struct ib_request *r) {
  uint32_t n;
  void **events = events_of(r, &n);
  rail_profile_stop(&kind, r->comm->profiler, events, n);
}
