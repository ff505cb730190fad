/* SPDX-License-Identifier: Apache-2.0
 *
 * A receive from irecv to its completion.
 *
 * irecv tells the sender of its buffers: one write of CTS entries into the ring
 * in the sender's memory. The sender writes into the buffers, and each part of a
 * message ends with an immediate, which costs a receive WR here. Those are posted
 * when the connection is made, enough for all that can be outstanding, and given
 * back in chains: irecv posts none. The request is done when all its buffers are.
 */
#include <arpa/inet.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/ib/ib_error.h"
#include "plugin/ib/ib_stats.h"
#include "plugin/ib/ib_progress.h"

#define CTS_SIGNALED 16 /* each so many CTS writes one is asked to complete */

_Static_assert(IB_RECV_DEPTH % IB_RECV_BATCH == 0, "preposted in whole chains");

/* ---- the comm ----------------------------------------------------------- */

struct ib_comm *ib_recv_comm_alloc(void) {
  struct ib_recv_comm *rc = calloc(1, sizeof *rc);
  size_t size;
  if (!rc) return NULL;
  rc->ctrl_buf = ib_ctrl_buf_alloc(&size);
  if (!rc->ctrl_buf) {
    free(rc);
    return NULL;
  }
  rc->base.magic = IB_RECV_COMM_MAGIC;
  rc->base.side_fd = -1;
  rc->next_seq = 1;
  (void)ib_request_pool_init(rc->recvs, sizeof rc->recvs[0], IB_MAX_RECVS, &rc->base);
  rc->free_flushes = ib_request_pool_init(rc->flushes, sizeof rc->flushes[0], IB_MAX_FLUSHES, &rc->base);
  return &rc->base;
}

void ib_recv_comm_start(struct ib_comm *comm, const struct ib_remote_ring *remote_ring,
                        rail_result_t (*progress)(struct ib_comm *comm)) {
  ib_recv_comm_of(comm)->remote_ring = *remote_ring;
  ib_recv_comm_of(comm)->progress = progress;
  ib_limit_inline(comm);
}

/* Gives a chain of receive WRs to a QP: empty ones, which only immediates consume. */
static rail_result_t post_recv_batch(struct ib_comm *comm, struct ib_qp *qp) {
  struct ibv_recv_wr wrs[IB_RECV_BATCH], *bad;
  for (unsigned int i = 0; i < IB_RECV_BATCH; i++)
    wrs[i] = (struct ibv_recv_wr){.wr_id = ib_wr_id(IB_WR_RECV, qp->index, 1, 0), .next = &wrs[i + 1]};
  wrs[IB_RECV_BATCH - 1].next = NULL;
  int err = ibv_post_recv(qp->qp, wrs, &bad);
  if (rail_unlikely(err)) return ib_error_post(comm, qp, "ibv_post_recv", err);
  qp->rq_consumed -= IB_RECV_BATCH;
  return RAIL_OK;
}

rail_result_t ib_recv_comm_prepost(struct ib_comm *comm) {
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    comm->qps[i].rq_consumed = IB_RECV_DEPTH;
    while (comm->qps[i].rq_consumed) RAIL_TRY(post_recv_batch(comm, &comm->qps[i]));
  }
  return RAIL_OK;
}

/* ---- telling the sender ------------------------------------------------- */

static void write_entries(struct ib_recv_comm *rc, const struct ib_recv *recv, unsigned int row, void **data) {
  for (unsigned int i = 0; i < recv->n; i++) {
    const struct ib_buffer *b = &recv->buffers[i];
    struct ib_cts cts = {
      .addr = (uintptr_t)data[i], .size = b->capacity, .tag = b->tag, .count = recv->n, .index = i};
    if (b->mr) memcpy(cts.rkeys, b->mr->rkeys, sizeof cts.rkeys);
    ib_cts_encode(&cts, rc->next_seq, &rc->ctrl_buf->ring.rows[row][i]);
  }
}

static rail_result_t post_write(struct ib_recv_comm *rc, struct ib_qp *qp, struct ibv_send_wr *wr) {
  struct ibv_send_wr *bad;
  int err = ibv_post_send(qp->qp, wr, &bad);
  if (rail_unlikely(err)) return ib_error_post(&rc->base, qp, "ibv_post_send", err);
  qp->sq_avail--;
  return RAIL_OK;
}

/* One write of all entries. The last of some that fits into the send queue, and each 16th, is asked to complete: it
 * tells the room of all. */
static rail_result_t post_entries(struct ib_recv_comm *rc, const struct ib_recv *recv, unsigned int row) {
  struct ib_qp *qp = &rc->base.qps[0];
  uint32_t bytes = recv->n * (uint32_t)sizeof(struct ib_cts_wire);
  struct ibv_sge sge = {.addr = (uintptr_t)rc->ctrl_buf->ring.rows[row],
                        .length = bytes,
                        .lkey = rc->base.rails[qp->rail].ctrl_mr->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .send_flags = bytes <= qp->max_inline ? IBV_SEND_INLINE : 0,
                           .wr.rdma = {.remote_addr = rc->remote_ring.addr + row * sizeof rc->ctrl_buf->ring.rows[0],
                                       .rkey = rc->remote_ring.rkeys[qp->remote_rail]}};
  wr.wr_id = ib_wr_id(IB_WR_CTS, qp->index, ++rc->cts_unsignaled, row);
  if (rc->cts_unsignaled == CTS_SIGNALED || qp->sq_avail == 1) {
    wr.send_flags |= IBV_SEND_SIGNALED;
    rc->cts_unsignaled = 0;
  }
  RAIL_TRY(post_write(rc, qp, &wr));
  rail_stats_add(&rc->base.stats[IB_COMM_WRITES], 1);
  return RAIL_OK;
}

/* A write of nothing, behind all others. Without room the last of those was asked to complete. A flush is owed anyway,
 * and an answer to something else would hide that it is lost. */
rail_result_t ib_recv_probe(struct ib_recv_comm *rc) {
  struct ib_qp *qp = &rc->base.qps[0];
  if (!qp->sq_avail || ib_flush_is_pending(rc)) return RAIL_OK;
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED,
                           .wr_id = ib_wr_id(IB_WR_PROBE, qp->index, ++rc->cts_unsignaled, 0),
                           .wr.rdma = {.remote_addr = rc->remote_ring.addr, .rkey = rc->remote_ring.rkeys[qp->remote_rail]}};
  rc->cts_unsignaled = 0;
  return post_write(rc, qp, &wr);
}

void ib_recv_cts_done(struct ib_comm *comm, const struct ibv_wc *wc) {
  comm->qps[ib_wr_qp(wc->wr_id)].sq_avail += ib_wr_count(wc->wr_id);
}

/* The peer had no part in it: no progress, or a peer whose process is stopped would seem alive. */
void ib_recv_probe_done(struct ib_comm *comm, const struct ibv_wc *wc) {
  ib_recv_cts_done(comm, wc);
  ib_probe_clear(comm);
  comm->moved--; /* counted with its batch */
}

/* ---- irecv -------------------------------------------------------------- */

static bool recv_args_ok(const struct ib_comm *comm, int n, void **data, const size_t *sizes, const int *tags,
                         void **mhandles, void **request) {
  if (!request || !data || !sizes || !tags || n < 1 || n > IB_MAX_GROUP) return false;
  for (int i = 0; i < n; i++)
    if (!ib_mr_covers(comm, mhandles ? mhandles[i] : NULL, data[i], sizes[i]) || sizes[i] > RAIL_NET_MAX_BYTES)
      return false;
  return true;
}

RAIL_COLD static rail_result_t bad_recv(const struct ib_comm *comm, int n, void **data, const size_t *sizes,
                                        const int *tags, void **mhandles, void **request) {
  if (!request || !data || !sizes || !tags)
    RAIL_WARN("RailIB: irecv: data %p, sizes %p, tags %p, request %p; none may be NULL", (void *)data,
              (const void *)sizes, (const void *)tags, (void *)request);
  else if (n < 1 || n > IB_MAX_GROUP) RAIL_WARN("RailIB: irecv: n is %d; allowed: 1..%d", n, IB_MAX_GROUP);
  else
    for (int i = 0; i < n; i++) {
      const struct ib_mhandle *mr = mhandles ? mhandles[i] : NULL;
      if (!ib_mr_covers(comm, mr, data[i], sizes[i]) || sizes[i] > RAIL_NET_MAX_BYTES)
        return ib_mr_refuse(comm, "irecv", mr, data[i], sizes[i]);
    }
  return RAIL_BAD_ARGUMENT;
}

/* The remote_ring of the next receive, if the last one there is over, and the send queue has room. */
static struct ib_recv *next_slot(struct ib_recv_comm *rc) {
  struct ib_recv *recv = &rc->recvs[rc->next_seq % IB_MAX_RECVS];
  struct ib_qp *qp = &rc->base.qps[0];
  /* Nobody else may look for room: there can be no request left that is tested. */
  if (rail_unlikely(!qp->sq_avail)) (void)rc->progress(&rc->base);
  if (rail_likely(recv->base.magic == IB_REQ_FREE && qp->sq_avail)) return recv;
  rail_stats_add(&rc->base.stats[IB_COMM_WAITS_ROOM], 1);
  return NULL;
}

static void fill(struct ib_recv *recv, int n, const size_t *sizes, const int *tags, void **mhandles) {
  ib_request_begin(&recv->base, IB_REQ_RECV, (uint32_t)n);
  recv->n = (uint32_t)n;
  for (int i = 0; i < n; i++) {
    recv->buffers[i] = (struct ib_buffer){
      .capacity = sizes[i], .tag = (uint32_t)tags[i], .mr = sizes[i] ? mhandles[i] : NULL};
    ib_mr_hold(recv->buffers[i].mr);
  }
}

rail_result_t ib_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request) {
  /* RAIL_NET_OPTIONAL_RECV, if it stands there, allows to complete before the bytes are in remote_ring. They are when the
   * sender says so, and until then the row is taken: there is nothing to gain. */
  if (request) *request = NULL;
  struct ib_comm *comm = ib_comm_of(recv_comm, IB_RECV_COMM_MAGIC, "irecv");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!recv_args_ok(comm, n, data, sizes, tags, mhandles, request)))
    return bad_recv(comm, n, data, sizes, tags, mhandles, request);
  if (rail_unlikely(ib_comm_status(comm) != RAIL_OK)) return ib_comm_status(comm);
  struct ib_recv_comm *rc = ib_recv_comm_of(comm);
  struct ib_recv *recv = next_slot(rc);
  if (rail_unlikely(!recv)) return comm->failed;
  unsigned int row = (unsigned int)(recv - rc->recvs);
  fill(recv, n, sizes, tags, mhandles);
  write_entries(rc, recv, row, data);
  *request = recv;
  if (rail_unlikely(comm->profiler != NULL)) ib_profile_start(&recv->base, phandles);
  /* A failure is for test to report: the request exists. */
  if (rail_likely(post_entries(rc, recv, row) == RAIL_OK)) rc->next_seq++;
  return RAIL_OK;
}

/* ---- what arrives ------------------------------------------------------- */

RAIL_COLD static rail_result_t protocol_error(struct ib_comm *comm, const struct ibv_wc *wc, const char *why) {
  RAIL_WARN("RailIB: irecv from %s over %s: protocol error: %s (immediate %#x, %u bytes, QP %#x); is the peer of "
            "another release?", comm->peer_text, comm->device->name, why, ntohl(wc->imm_data), wc->byte_len,
            wc->qp_num);
  return ib_comm_fail(comm, RAIL_REMOTE_ERROR);
}

static void finish_buffer(struct ib_comm *comm, struct ib_recv *recv, struct ib_buffer *b) {
  rail_stats_add(&comm->stats[IB_COMM_MESSAGES], 1);
  rail_stats_add(&comm->stats[IB_COMM_BYTES], b->arrived);
  ib_mr_release(b->mr);
  if (--recv->base.pending == 0) ib_request_end(&recv->base);
}

/* The peer's word that its message is larger than this buffer: all that will come. */
RAIL_COLD static rail_result_t peer_refused_size(struct ib_comm *comm, const struct ibv_wc *wc, const struct ib_imm *imm,
                                            struct ib_recv *recv, struct ib_buffer *b) {
  if (imm->error != IB_IMM_TOO_LARGE || b->parts) return protocol_error(comm, wc, "an unknown word");
  RAIL_WARN("RailIB: irecv from %s over %s: the peer's message with tag %u is larger than the receive buffer of %llu "
            "bytes; send and receive do not fit together", comm->peer_text, comm->device->name, b->tag,
            (unsigned long long)b->capacity);
  recv->base.result = RAIL_BAD_USAGE;
  b->parts = 1;
  finish_buffer(comm, recv, b);
  return RAIL_OK;
}

/* One part of a message is in its buffer. Nothing of what the immediate says is believed. */
static rail_result_t handle_part(struct ib_recv_comm *rc, const struct ibv_wc *wc) {
  struct ib_comm *comm = &rc->base;
  unsigned int all = comm->plan.qps_per_message;
  struct ib_imm imm;
  if (rail_unlikely(wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM)) return protocol_error(comm, wc, "a message that is no write");
  ib_imm_decode(ntohl(wc->imm_data), all, &imm);
  struct ib_recv *recv = &rc->recvs[imm.row];
  struct ib_buffer *b = &recv->buffers[imm.index];
  /* One that is over has no buffer with parts left; one that never was, no buffers. */
  if (rail_unlikely(imm.index >= recv->n || (b->parts && !b->left)))
    return protocol_error(comm, wc, "data for a buffer that is not posted");
  if (rail_unlikely(imm.error)) return peer_refused_size(comm, wc, &imm, recv, b);
  if (!b->parts) b->parts = b->left = (uint16_t)imm.parts;
  uint64_t bytes = imm.body + wc->byte_len;
  if (rail_unlikely(imm.parts != b->parts || imm.parts > all)) return protocol_error(comm, wc, "a wrong number of parts");
  if (rail_unlikely(bytes > b->capacity - b->arrived)) return protocol_error(comm, wc, "more data than the buffer holds");
  b->arrived += bytes;
  if (--b->left == 0) finish_buffer(comm, recv, b);
  return RAIL_OK;
}

rail_result_t ib_recv_done(struct ib_comm *comm, const struct ibv_wc *wc) {
  struct ib_qp *qp = &comm->qps[ib_wr_qp(wc->wr_id)];
  RAIL_TRY(handle_part(ib_recv_comm_of(comm), wc));
  return ++qp->rq_consumed < IB_RECV_BATCH ? RAIL_OK : post_recv_batch(comm, qp);
}

void ib_recv_finish(struct ib_recv_comm *rc, struct ib_recv *recv, int *sizes) {
  (void)rc;
  for (uint32_t i = 0; sizes && i < recv->n; i++) {
    uint64_t arrived = recv->buffers[i].arrived;
    sizes[i] = arrived > INT_MAX ? INT_MAX : (int)arrived;
  }
  recv->base.magic = IB_REQ_FREE;
}

rail_result_t ib_irecv_consumed(void *recv_comm, int n, void *request) {
  (void)recv_comm, (void)n, (void)request; /* nothing is kept for the receiver's GPU */
  return RAIL_OK;
}
