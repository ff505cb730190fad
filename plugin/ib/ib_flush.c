/* SPDX-License-Identifier: Apache-2.0
 *
 * Flush: what was received into GPU memory is visible to the GPU once a read over the same path has come back. Per rail
 * there is a QP that is connected to itself, and iflush reads one byte with it from the last buffer that holds data.
 * The read follows the rail's earlier writes to the same memory through all bridges, so when its response is here the
 * writes are there.
 */
#include "plugin/ib/ib_progress.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_param.h"

bool ib_flush_wanted(enum ib_flush_mode mode, bool disabled, bool gpu_direct, bool dmabuf) {
  if (mode != IB_FLUSH_AUTO) return mode == IB_FLUSH_ALWAYS;
  return !disabled && (gpu_direct || dmabuf); /* only GPU memory needs it */
}

/* ---- opening and closing ------------------------------------------------ */

/* The QP is its own peer; all else as the data QP of the same rail. */
static rail_result_t set_attr(struct ib_qp *qp, const struct ib_comm *comm, unsigned int rail) {
  struct ib_port_attr attr;
  const struct ib_qp_attr *data = &comm->qps[rail].attr; /* QP i is on rail i % nrails */
  RAIL_TRY(ib_port_query(comm->rails[rail].port, &attr));
  qp->attr = (struct ib_qp_attr){.port = comm->rails[rail].port->number,
                                 .pkey_index = data->pkey_index,
                                 .sgid_index = (uint8_t)comm->rails[rail].gid_index,
                                 .grh = comm->rails[rail].port->roce || attr.grh_required,
                                 .mtu = attr.mtu,
                                 .sl = data->sl,
                                 .traffic_class = data->traffic_class,
                                 .timeout = data->timeout,
                                 .retry_cnt = data->retry_cnt,
                                 .dlid = attr.lid,
                                 .dest_qpn = qp->qp->qp_num};
  memcpy(qp->attr.dgid, comm->rails[rail].gid, sizeof qp->attr.dgid);
  return RAIL_OK;
}

static rail_result_t create(struct ib_flush *f, unsigned int i, struct ib_qp *qp) {
  const struct ib_rail *rail = &f->comm->rails[i];
  static const struct ib_qp_sizes sizes = {.send_depth = IB_MAX_FLUSHES, .recv_depth = 1};
  RAIL_TRY(ib_qp_create(qp, rail->port, rail->cq, &sizes, f->comm));
  qp->rail = qp->remote_rail = (uint8_t)i;
  qp->index = (uint16_t)i;
  return set_attr(qp, f->comm, i);
}

/* One transition. */
static rail_result_t step_qp(const struct ib_flush *f, struct ib_qp *qp) {
  const struct ib_port *port = f->comm->rails[qp->rail].port;
  switch (qp->state) {
    case IB_QP_RESET: return ib_qp_to_init(qp, port, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    case IB_QP_INIT: return ib_qp_to_rtr(qp, port);
    default: return ib_qp_to_rts(qp, port);
  }
}

/* One transition of one QP per call. */
static rail_result_t step(struct ib_flush *f) {
  struct ib_qp *qp = &f->qps[f->ready];
  if (qp->state == IB_QP_NONE) return create(f, f->ready, qp);
  if (qp->state != IB_QP_RTS) return step_qp(f, qp);
  f->ready++;
  return RAIL_OK;
}

static struct ib_flush *new_flush(struct ib_comm *comm) {
  struct ib_flush *f = calloc(1, sizeof *f);
  if (!f) {
    RAIL_WARN("RailIB: accept of %s: out of memory for flushes", comm->peer_text);
    return NULL;
  }
  f->comm = comm;
  f->rails = (uint8_t)((1u << comm->nrails) - 1);
  return f;
}

bool ib_flush_is_needed(const struct ib_comm *comm) {
  const int support = ib_device_ptr_support(comm->device, comm->plan.two_sided);
  if (comm->rails[0].port->iwarp) return false; /* it connects no queue pair to itself, and offers no GPU memory */
  return ib_flush_wanted((enum ib_flush_mode)ib_params.flush, ib_params.flush_disable != 0,
                         support & RAIL_PTR_CUDA, support & RAIL_PTR_DMABUF);
}

rail_result_t ib_flush_open(struct ib_comm *comm) {
  struct ib_recv_comm *rc = ib_recv_comm_of(comm);
  if (!rc->flush) {
    if (!ib_flush_is_needed(comm)) return RAIL_OK;
    rc->flush = new_flush(comm);
    if (!rc->flush) return RAIL_SYSTEM_ERROR;
  }
  rail_result_t result = step(rc->flush);
  if (result == RAIL_OK) return rc->flush->ready < comm->nrails ? RAIL_IN_PROGRESS : RAIL_OK;
  if (result != RAIL_IN_PROGRESS) ib_flush_close(comm);
  return result;
}

void ib_flush_close(struct ib_comm *comm) {
  struct ib_flush *flush = ib_recv_comm_of(comm)->flush;
  if (!flush) return;
  for (unsigned int i = 0; i < IB_MAX_RAILS; i++) {
    ib_qp_destroy(&flush->qps[i]);
    ib_qp_destroy(&flush->next[i]);
  }
  free(flush);
  ib_recv_comm_of(comm)->flush = NULL;
}

/* ---- iflush ------------------------------------------------------------- */

static bool is_needed_for(const struct ib_mhandle *mr) {
  return mr->memory.type != RAIL_PTR_HOST || ib_params.flush == IB_FLUSH_ALWAYS;
}

/* With failover the rail is given up, and with it the read. */
RAIL_COLD static rail_result_t post_failed(struct ib_comm *comm, const struct ib_qp *flush_qp, int err) {
  if (!comm->failover) return ib_error_post(comm, flush_qp, "ibv_post_send", err);
  for (unsigned int i = 0; i < comm->plan.nqps; i++)
    if (comm->qps[i].rail == flush_qp->rail)
      RAIL_TRY(ib_error_post_or_failover(comm, &comm->qps[i], "ibv_post_send", err));
  return RAIL_OK;
}

/* A rail that is lost has no part in it: its QPs are in ERR, and were flushed (ib_failover.c). */
static rail_result_t post_reads(struct ib_recv_comm *rc, struct ib_request *r, const void *data,
                                const struct ib_mhandle *mr) {
  struct ib_flush *f = rc->flush;
  const unsigned int index = (unsigned int)(r - rc->flushes);
  f->waiting[index] = f->rails;
  for (unsigned int i = 0; i < rc->base.nrails; i++) {
    if (!(f->rails & 1u << i)) continue;
    struct ibv_sge sge = {.addr = (uintptr_t)&rc->base.ctrl_buf->flushed, .length = 1,
                          .lkey = rc->base.rails[i].ctrl_mr->lkey};
    struct ibv_send_wr wr = {.wr_id = ib_wr_id(IB_WR_FLUSH, i, 1, index),
                             .opcode = IBV_WR_RDMA_READ,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {.remote_addr = (uintptr_t)data, .rkey = mr->rkeys[i]}},
                       *bad;
    int err = ibv_post_send(f->qps[i].qp, &wr, &bad);
    if (rail_unlikely(err)) RAIL_TRY(post_failed(&rc->base, &f->qps[i], err));
  }
  return RAIL_OK;
}

RAIL_COLD static rail_result_t bad_flush(int n, const void *data, const void *sizes, const void *mhandles) {
  RAIL_WARN("RailIB: iflush: n %d, data %p, sizes %p, mhandles %p; none may be NULL, and n must be 1..%d", n, data,
            sizes, mhandles, IB_MAX_GROUP);
  return RAIL_BAD_ARGUMENT;
}

/* NULL would mean that there is nothing to wait for. */
RAIL_COLD static rail_result_t too_many(void) {
  RAIL_WARN("RailIB: iflush: more than %d flushes are outstanding on one connection; test some first", IB_MAX_FLUSHES);
  return RAIL_BAD_USAGE;
}

rail_result_t ib_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles, void **request) {
  struct ib_comm *comm = ib_comm_of(recv_comm, IB_RECV_COMM_MAGIC, "iflush");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!data || !sizes || !mhandles || n < 1 || n > IB_MAX_GROUP))
    return bad_flush(n, data, sizes, mhandles);
  if (rail_unlikely(rail_first_error(&comm->error) != RAIL_OK)) return rail_first_error(&comm->error);
  struct ib_recv_comm *rc = ib_recv_comm_of(comm);
  int i = n - 1;
  while (i >= 0 && sizes[i] <= 0) i--; /* the last buffer that holds data */
  if (!rc->flush || i < 0) return RAIL_OK;
  struct ib_mhandle *mr = mhandles[i];
  if (rail_unlikely(!rail_net_memory_covers(mhandles[i], comm, data[i], (uint64_t)sizes[i])))
    return ib_comm_refuse_buffer(comm, "iflush", mr, data[i], (uint64_t)sizes[i]);
  if (!is_needed_for(mr)) return RAIL_OK;
  struct ib_request *r = SLIST_FIRST(&rc->free_flushes);
  if (rail_unlikely(!r)) return too_many();
  SLIST_REMOVE_HEAD(&rc->free_flushes, free);
  ib_request_begin(comm, r, IB_REQ_FLUSH, (uint32_t)__builtin_popcount(rc->flush->rails));
  rc->flushed[r - rc->flushes] = mr;
  rail_net_memory_hold(&mr->memory);
  *request = r;
  (void)post_reads(rc, r, data[i], mr); /* the request exists: test reports a failure to post */
  return RAIL_OK;
}

static void read_done(struct ib_recv_comm *rc, unsigned int i, unsigned int rail) {
  if (!(rc->flush->waiting[i] & 1u << rail)) return; /* its rail was lost meanwhile */
  rc->flush->waiting[i] &= (uint8_t)~(1u << rail);
  if (--rc->flushes[i].pending) return;
  rail_net_memory_release(&rc->flushed[i]->memory);
  ib_outstanding_drop(&rc->base, rc->base.stats);
}

void ib_flush_done(struct ib_comm *comm, const struct ibv_wc *wc) {
  read_done(ib_recv_comm_of(comm), ib_wr_arg(wc->wr_id), ib_wr_qp(wc->wr_id));
}

void ib_flush_lose_rail(struct ib_recv_comm *rc, unsigned int rail) {
  if (!rc->flush || !(rc->flush->rails & 1u << rail)) return;
  rc->flush->rails &= (uint8_t)~(1u << rail);
  for (unsigned int i = 0; i < IB_MAX_FLUSHES; i++)
    if (rc->flushes[i].magic == IB_REQ_FLUSH && rc->flushes[i].pending) read_done(rc, i, rail);
}

rail_result_t ib_flush_return_rail(struct ib_recv_comm *rc, unsigned int rail) {
  struct ib_flush *f = rc->flush;
  if (!f || f->rails & 1u << rail) return RAIL_OK;
  struct ib_qp *lost = &f->qps[rail], *next = &f->next[rail];
  rail_result_t result = RAIL_OK;
  if (lost->qp) ib_comm_drop_qp(lost);
  else if (next->state == IB_QP_NONE) result = create(f, rail, next);
  else if (next->state != IB_QP_RTS) result = step_qp(f, next);
  else if (ib_comm_replace_qp(&rc->base, lost, next)) f->rails |= (uint8_t)(1u << rail);
  if (result != RAIL_OK && result != RAIL_IN_PROGRESS) {
    ib_qp_destroy(next);
    return result;
  }
  return f->rails & 1u << rail ? RAIL_OK : RAIL_IN_PROGRESS;
}

bool ib_flush_is_pending(const struct ib_recv_comm *rc) {
  for (unsigned int i = 0; i < IB_MAX_FLUSHES; i++)
    if (rc->flushes[i].magic == IB_REQ_FLUSH && rc->flushes[i].pending) return true;
  return false;
}

rail_result_t ib_flush_finish(struct ib_request *flush) {
  flush->magic = IB_REQ_FREE;
  SLIST_INSERT_HEAD(&ib_recv_comm_of(flush->comm)->free_flushes, flush, free);
  return flush->result;
}
