/* SPDX-License-Identifier: Apache-2.0
 *
 * A receive from irecv to its completion.
 *
 * irecv writes CTS entries, one per buffer, into the ring in the sender's memory, by one RDMA write. The sender writes
 * into the buffers; each part of a message ends with an immediate, which consumes a receive WR here. Those are posted
 * when the connection is made, enough for all that can be outstanding, and posted again in batches: irecv posts none.
 * test calls ib_recv_done for each completion; the receive is done when all its buffers are. When the QP that carries
 * CTS writes was lost (ib_failover.c), the CTS writes of receives that are not done are resent. With the SEND protocol
 * (ib_two_sided.c) irecv posts the receive WRs, with the caller's memory.
 */
#include "plugin/ib/ib_progress.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/ib/ib_failover.h"

_Static_assert(IB_RECV_DEPTH % IB_RECV_BATCH == 0, "preposted in whole batches");

struct recv_args {
  unsigned int n;
  void **data;
  const size_t *sizes;
  const int *tags;
  void **mhandles, **phandles;
};

/* ---- the steps of a receive, in their order; each is explained at its definition ---- */

RAIL_HOT_INLINE rail_result_t receive(struct ib_recv_comm *rc, const struct recv_args *args, void **request,
                                      const bool two_sided);
static rail_result_t receive_two_sided(struct ib_recv_comm *rc, const struct recv_args *args, void **request);
static rail_result_t receive_group(struct ib_recv_comm *rc, const struct recv_args *args, void **request);
RAIL_HOT_INLINE rail_result_t post_cts(struct ib_recv_comm *rc, struct ib_qp *qp, unsigned int n, unsigned int slot);
static rail_result_t handle_notice(struct ib_recv_comm *rc, const struct ibv_wc *wc);
static inline rail_result_t handle_immediate(struct ib_recv_comm *rc, const struct ibv_wc *wc);
RAIL_HOT_INLINE rail_result_t handle_part(struct ib_recv_comm *rc, const struct ibv_wc *wc, uint32_t bits,
                                          uint64_t tail_bytes);
RAIL_COLD static rail_result_t protocol_error(struct ib_comm *comm, const struct ibv_wc *wc, const char *why);
RAIL_HOT_INLINE void finish_buffer(struct ib_comm *comm, struct ib_recv *recv, struct ib_buffer *b);
static rail_result_t repost_recv_wrs(struct ib_comm *comm, struct ib_qp *qp);

/* ---- irecv -------------------------------------------------------------- */

rail_result_t ib_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request) {
  /* *request may be RAIL_NET_OPTIONAL_RECV, which allows a receive to be done before its bytes are in place. The bytes
   * are in place when the last part is reported, and until then the slot is in use: nothing would be gained. */
  *request = NULL;
  struct ib_comm *comm = ib_comm_of(recv_comm, IB_RECV_COMM_MAGIC, "irecv");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!rail_net_recv_args_ok(n, IB_MAX_GROUP, data, sizes, tags)))
    return rail_net_refuse_recv_args("RailIB", n, IB_MAX_GROUP, data, sizes, tags);
  struct ib_recv_comm *rc = ib_recv_comm_of(comm);
  if (rail_unlikely(comm->plan.two_sided || n != 1)) {
    const struct recv_args args = {(unsigned int)n, data, sizes, tags, mhandles, phandles};
    return comm->plan.two_sided ? receive_two_sided(rc, &args, request) : receive_group(rc, &args, request);
  }
  const struct recv_args args = {1, data, sizes, tags, mhandles, phandles};
  return receive(rc, &args, request, false);
}

/* Two questions about the QP that carries CTS writes: has it room, is its send queue full? Both are false while there
 * is none (cts_qp NULL: it is lost): a receive is begun all the same, and announced when there is one again
 * (ib_recv_resend). */
static inline bool has_cts_room(const struct ib_recv_comm *rc) { return rc->cts_qp && rc->cts_qp->sq_avail; }
static inline bool is_cts_full(const struct ib_recv_comm *rc) { return rc->cts_qp && !rc->cts_qp->sq_avail; }

static inline void *mhandle_of(const struct recv_args *args, unsigned int i) {
  return args->mhandles ? args->mhandles[i] : NULL;
}

/* Takes the next slot, encodes a CTS entry for each buffer, and posts them. Compiled three times: for one buffer, which
 * is what most receives have, for a group, and for the SEND protocol (ib_two_sided.c), whose lines are those with
 * `two_sided`, a constant. */
RAIL_HOT_INLINE rail_result_t receive(struct ib_recv_comm *rc, const struct recv_args *args, void **request,
                                      const bool two_sided) {
  struct ib_comm *comm = &rc->base;
  const unsigned int n = args->n;
  const size_t *sizes = args->sizes;
  const unsigned int bad =
    rail_net_first_bad_buffer(comm, comm->max_bytes, n, args->data, sizes, args->mhandles);
  if (rail_unlikely(bad < n))
    return ib_comm_refuse_buffer(comm, "irecv", mhandle_of(args, bad), args->data[bad], sizes[bad]);
  RAIL_TRY(rail_first_error(&comm->error));

  /* The next slot, if its last receive is done, and room in the send queue. Poll here (ib_progress) when there is none:
   * the caller may have no request left to test. */
  unsigned int slot = rc->next_seq % IB_MAX_RECVS;
  struct ib_recv *recv = rc->recvs + slot;
  if (rail_unlikely(!has_cts_room(rc)) || (two_sided && !ib_two_sided_has_room(rc, n, sizes)))
    (void)comm->progress(comm);
  if (rail_unlikely(recv->base.magic != IB_REQ_FREE || is_cts_full(rc)) ||
      (two_sided && !ib_two_sided_has_room(rc, n, sizes))) {
    rail_stats_add(&comm->stats[IB_COMM_WAITS_ROOM], 1);
    return rail_first_error(&comm->error);
  }

  /* Take the request, and encode an entry per buffer. */
  rail_result_t result = RAIL_OK; /* of posting receive WRs, with the SEND protocol */
  ib_request_begin(comm, &recv->base, IB_REQ_RECV, n);
  recv->n = n;
  for (unsigned int i = 0; i < n; i++) {
    struct ib_mhandle *mr = sizes[i] ? args->mhandles[i] : NULL;
    void *data = args->data[i];
    const uint32_t tag = (uint32_t)args->tags[i];
    struct ib_cts cts = {.addr = two_sided ? 0 : (uintptr_t)data, .size = sizes[i], .tag = tag, .count = (uint8_t)n,
                         .index = (uint8_t)i};
    recv->buffers[i] = (struct ib_buffer){.capacity = sizes[i], .tag = tag, .mr = mr};
    if (mr) rail_net_memory_hold(&mr->memory);
    if (two_sided) ib_two_sided_divide(rc, &cts);
    if (two_sided && result == RAIL_OK) result = ib_two_sided_receive(rc, slot, &cts, data);
    if (!two_sided && mr) memcpy(cts.rkeys, mr->rkeys, sizeof cts.rkeys);
    ib_cts_encode(&cts, rc->next_seq, &comm->ctrl_buf->ring.slots[slot][i]);
  }
  *request = recv;
  if (rail_unlikely(comm->profiler != NULL)) ib_profile_start(&recv->base, args->phandles);

  /* The request exists now: test reports a failure to post. post_cts returns RAIL_OK, too, where failover takes over:
   * then, as without a QP, the receive is announced when there is one again. One whose receive WRs are not all there is
   * never announced. */
  if (rail_unlikely(result != RAIL_OK)) return RAIL_OK;
  if (rail_unlikely(!rc->cts_qp) || rail_likely(post_cts(rc, rc->cts_qp, n, slot) == RAIL_OK)) rc->next_seq++;
  return RAIL_OK;
}

/* The same with the SEND protocol, and for a group of buffers. Out of line: nothing of them is in the way of receives
 * of one buffer. */
static __attribute__((noinline)) rail_result_t receive_two_sided(struct ib_recv_comm *rc, const struct recv_args *args,
                                                                 void **request) {
  return receive(rc, args, request, true);
}

static __attribute__((noinline)) rail_result_t receive_group(struct ib_recv_comm *rc, const struct recv_args *args,
                                                             void **request) {
  return receive(rc, args, request, false);
}

/* ---- CTS writes ------------------------------------------------------------- */

RAIL_HOT_INLINE rail_result_t post_write(struct ib_recv_comm *rc, struct ib_qp *qp, struct ibv_send_wr *wr) {
  struct ibv_send_wr *bad;
  int err = ibv_post_send(qp->qp, wr, &bad);
  if (rail_unlikely(err)) return ib_error_post_or_failover(&rc->base, qp, "ibv_post_send", err);
  qp->sq_avail--;
  return RAIL_OK;
}

/* One write of all entries of the slot, whose bytes may become visible there in any order: the sender tells by numbers
 * and checksums which entries are torn (ib_cts_take). Each 16th write is signaled, and so is the last that fits into
 * the send queue: its completion stands for all before it. */
RAIL_HOT_INLINE rail_result_t post_cts(struct ib_recv_comm *rc, struct ib_qp *qp, unsigned int n, unsigned int slot) {
  const struct ib_cts_ring *ring = &rc->base.ctrl_buf->ring;
  const uint64_t offset = (uint64_t)slot * sizeof ring->slots[0];
  const uint32_t bytes = n * (uint32_t)sizeof ring->slots[0][0];
  struct ibv_send_wr *wr = &rc->cts_wr;
  rc->cts_sge.addr = (uintptr_t)ring + offset;
  rc->cts_sge.length = bytes;
  wr->wr_id = ib_wr_id_of(qp, ++rc->cts_unsignaled, slot);
  wr->send_flags = bytes <= qp->max_inline ? IBV_SEND_INLINE : 0;
  wr->wr.rdma.remote_addr = rc->remote_ring.addr + offset;
  if (rc->cts_unsignaled == IB_CTS_SIGNALED || qp->sq_avail == 1) {
    wr->send_flags |= IBV_SEND_SIGNALED;
    rc->cts_unsignaled = 0;
  }
  RAIL_TRY(post_write(rc, qp, wr));
  rail_stats_add(&rc->base.stats[IB_COMM_WRITES], 1);
  return RAIL_OK;
}

void ib_recv_cts_done(struct ib_comm *comm, const struct ibv_wc *wc) {
  comm->qps[ib_wr_qp(wc->wr_id)].sq_avail += ib_wr_count(wc->wr_id);
}

/* ---- from test: a part of a message has come --------------------------------- */

rail_result_t ib_recv_done(struct ib_comm *comm, const struct ibv_wc *wc) {
  struct ib_qp *qp = &comm->qps[ib_wr_qp(wc->wr_id)];
  if (rail_unlikely(qp->ignore_completions)) return RAIL_OK; /* not in the count that was told: it is sent again */
  /* Counted first: with the last part the receive may be done, and then the watch thread may tell the count. */
  ib_qp_count_tail(qp);
  struct ib_recv_comm *rc = ib_recv_comm_of(comm);
  RAIL_TRY(rail_unlikely(comm->plan.notices) ? handle_notice(rc, wc) : handle_immediate(rc, wc));
  return ++qp->rq_consumed < IB_RECV_BATCH ? RAIL_OK : repost_recv_wrs(comm, qp);
}

/* A part of a message is reported by a notice. */
static __attribute__((noinline)) rail_result_t handle_notice(struct ib_recv_comm *rc, const struct ibv_wc *wc) {
  uint32_t bits;
  uint64_t tail;
  if (!ib_notice_take(rc, wc, &bits, &tail)) return protocol_error(&rc->base, wc, "a message that is no notice");
  return handle_part(rc, wc, bits, tail);
}

/* A part of a message is reported by an immediate. */
static inline rail_result_t handle_immediate(struct ib_recv_comm *rc, const struct ibv_wc *wc) {
  if (rail_unlikely(wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM))
    return protocol_error(&rc->base, wc, "a message that is no write");
  return handle_part(rc, wc, ntohl(wc->imm_data), wc->byte_len);
}

/* The peer's message was larger than this buffer, and has not been sent. */
RAIL_COLD static void refused_size(struct ib_comm *comm, struct ib_recv *recv, const struct ib_buffer *b) {
  RAIL_WARN("RailIB: irecv from %s over %s: the peer's message with tag %u is larger than the receive buffer of %llu "
            "bytes; send and receive do not fit together", comm->peer_text, comm->device->name, b->tag,
            (unsigned long long)b->capacity);
  recv->base.result = RAIL_BAD_USAGE;
  if (comm->profiler) ib_profile_stop(&recv->base);
}

/* The immediate carries an error instead of a length. */
RAIL_COLD static rail_result_t peer_refused_size(struct ib_comm *comm, const struct ibv_wc *wc,
                                                 const struct ib_imm *imm, struct ib_recv *recv, struct ib_buffer *b) {
  if (imm->error != IB_IMM_TOO_LARGE || b->parts) return protocol_error(comm, wc, "an unknown error code");
  refused_size(comm, recv, b);
  b->parts = 1;
  finish_buffer(comm, recv, b);
  return RAIL_OK;
}

/* One part of a message is in its buffer: what its immediate says, and the bytes of the write that came with it.
 * Everything is checked: the peer may be wrong. */
RAIL_HOT_INLINE rail_result_t handle_part(struct ib_recv_comm *rc, const struct ibv_wc *wc, uint32_t bits,
                                          uint64_t tail_bytes) {
  struct ib_comm *comm = &rc->base;
  const unsigned int all = comm->plan.qps_per_message;
  struct ib_imm imm;
  ib_imm_decode(bits, all, &imm);
  struct ib_recv *recv = rc->recvs + imm.slot;
  struct ib_buffer *b = recv->buffers + imm.index;
  /* A receive that is done has no buffer with parts left; one that was never posted has no buffers. */
  if (rail_unlikely(imm.index >= recv->n || (b->parts && !b->left)))
    return protocol_error(comm, wc, "data for a buffer that is not posted");
  if (rail_unlikely(imm.error)) return peer_refused_size(comm, wc, &imm, recv, b);
  if (rail_unlikely(imm.parts > all || (b->parts && b->parts != imm.parts)))
    return protocol_error(comm, wc, "a wrong number of parts");
  const uint64_t bytes = imm.body + tail_bytes;
  if (rail_unlikely(bytes > b->capacity - b->arrived))
    return protocol_error(comm, wc, "more data than the buffer holds");
  if (!b->parts) b->parts = b->left = (uint16_t)imm.parts;
  b->arrived += bytes;
  if (--b->left == 0) finish_buffer(comm, recv, b);
  return RAIL_OK;
}

/* The receive WR says which part it is, so nothing from the peer is trusted; the HCA has checked the length. */
rail_result_t ib_recv_buffer_done(struct ib_comm *comm, const struct ibv_wc *wc) {
  struct ib_recv_comm *rc = ib_recv_comm_of(comm);
  const unsigned int arg = ib_wr_arg(wc->wr_id), slot = ib_buffer_slot(arg), index = ib_buffer_index(arg);
  struct ib_recv *recv = &rc->recvs[slot];
  struct ib_buffer *b = &recv->buffers[index];
  atomic_fetch_sub(&comm->qps[ib_wr_qp(wc->wr_id)].receives, 1);
  if (rail_unlikely(wc->opcode != IBV_WC_RECV)) return protocol_error(comm, wc, "a write in place of a SEND");
  b->arrived += wc->byte_len;
  if (!wc->byte_len && !ib_buffer_part(arg) && ib_two_sided_is_refused(rc, slot, index)) refused_size(comm, recv, b);
  if (--b->left == 0) finish_buffer(comm, recv, b);
  return RAIL_OK;
}

/* What the peer reports cannot be. */
RAIL_COLD static rail_result_t protocol_error(struct ib_comm *comm, const struct ibv_wc *wc, const char *why) {
  RAIL_WARN("RailIB: irecv from %s over %s: protocol error: %s (immediate %#x, %u bytes, QP %#x); is the peer of "
            "another release?", comm->peer_text, comm->device->name, why, ntohl(wc->imm_data), wc->byte_len,
            wc->qp_num);
  return ib_comm_fail(comm, RAIL_REMOTE_ERROR);
}

/* All of a message is in its buffer: with the last buffer the receive is done. */
RAIL_HOT_INLINE void finish_buffer(struct ib_comm *comm, struct ib_recv *recv, struct ib_buffer *b) {
  uint64_t *stats = comm->stats;
  rail_stats_add(&stats[IB_COMM_MESSAGES], 1);
  rail_stats_add(&stats[IB_COMM_BYTES], b->arrived);
  if (b->mr) rail_net_memory_release(&b->mr->memory);
  if (--recv->base.pending == 0) ib_outstanding_drop(comm, stats);
}

static inline int arrived_in(const struct ib_buffer *b) { return b->arrived > INT_MAX ? INT_MAX : (int)b->arrived; }

rail_result_t ib_recv_finish(struct ib_recv *recv, int *sizes) {
  if (sizes) {
    sizes[0] = arrived_in(&recv->buffers[0]);
    for (uint32_t i = 1; rail_unlikely(i < recv->n); i++) sizes[i] = arrived_in(&recv->buffers[i]);
  }
  recv->base.magic = IB_REQ_FREE;
  return recv->base.result;
}

/* ---- receive WRs that immediates consume ------------------------------------- */

/* Without memory, but for that of notices (ib_notice.c). */
static int post_recv_wrs(struct ib_comm *comm, struct ib_qp *qp) {
  struct ibv_recv_wr *wrs = ib_recv_comm_of(comm)->recv_wrs, *bad;
  struct ibv_sge sges[IB_RECV_BATCH];
  for (unsigned int i = 0; i < IB_RECV_BATCH; i++) wrs[i].wr_id = ib_wr_id(IB_WR_RECV, qp->index, 1, 0);
  if (rail_unlikely(comm->plan.notices)) ib_notices_attach(ib_recv_comm_of(comm), qp, wrs, sges);
  int err = ibv_post_recv(qp->qp, wrs, &bad);
  if (rail_likely(!err)) qp->rq_consumed -= IB_RECV_BATCH;
  return err;
}

/* Posts as many receive WRs as were consumed, a batch at a time. */
static rail_result_t repost_recv_wrs(struct ib_comm *comm, struct ib_qp *qp) {
  int err = post_recv_wrs(comm, qp);
  return rail_likely(!err) ? RAIL_OK : ib_error_post_or_failover(comm, qp, "ibv_post_recv", err);
}

int ib_recv_prepost_qp(struct ib_comm *comm, struct ib_qp *qp) {
  int err = 0;
  qp->rq_consumed = IB_RECV_DEPTH;
  while (qp->rq_consumed && !err) err = post_recv_wrs(comm, qp);
  return err;
}

/* ---- from test: nothing completes ---------------------------------------------- */

/* Zero bytes, signaled, behind all CTS writes. With a full send queue the last of those is signaled anyway. A pending
 * flush must complete by itself, and the probe's completion would hide that it is lost. */
rail_result_t ib_recv_probe(struct ib_recv_comm *rc) {
  struct ib_qp *qp = rc->cts_qp;
  if (!qp || !qp->sq_avail || ib_flush_is_pending(rc)) return RAIL_OK;
  struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED,
                           .wr_id = ib_wr_id(IB_WR_PROBE, qp->index, ++rc->cts_unsignaled, 0),
                           .wr.rdma = {.remote_addr = rc->remote_ring.addr,
                                       .rkey = rc->remote_ring.rkeys[qp->remote_rail]}};
  rc->cts_unsignaled = 0;
  return post_write(rc, qp, &wr);
}

/* ---- the loss of a QP ------------------------------------------------------- */

/* What all CTS writes over that QP have in common: what a provider reads of a write is set, and nothing else. */
static void use_cts_qp(struct ib_recv_comm *rc, unsigned int index) {
  const struct ib_qp *qp = &rc->base.qps[index];
  struct ibv_send_wr *wr = &rc->cts_wr;
  rc->cts_qp = &rc->base.qps[index];
  rc->cts_qp_index = index;
  rc->cts_unsignaled = 0;
  rc->cts_sge.lkey = rc->base.rails[qp->rail].ctrl_mr->lkey;
  wr->sg_list = &rc->cts_sge;
  wr->num_sge = 1;
  wr->opcode = IBV_WR_RDMA_WRITE;
  wr->wr.rdma.rkey = rc->remote_ring.rkeys[qp->remote_rail];
}

/* The entries of a receive that is not done are still in this side's ring: the same bytes go out again. Nothing of the
 * lost QP's can arrive behind them, because the peer has stopped it. */
unsigned int ib_recv_move_cts(struct ib_recv_comm *rc, unsigned int lost) {
  unsigned int i = 0, n = 0;
  if (rc->cts_qp || rc->cts_qp_index != lost) return 0;
  while (rc->base.failover->qps[i].state != IB_FAILOVER_UP) i++;
  use_cts_qp(rc, i);
  rc->cts_resend = 0;
  for (unsigned int slot = 0; slot < IB_MAX_RECVS; slot++)
    if (rc->recvs[slot].base.magic == IB_REQ_RECV && rc->recvs[slot].base.pending) {
      rc->cts_resend |= 1u << slot;
      n++;
    }
  return n;
}

RAIL_COLD rail_result_t ib_recv_resend(struct ib_recv_comm *rc) {
  while (rc->cts_qp && rc->cts_resend) {
    unsigned int slot = (unsigned int)__builtin_ctz(rc->cts_resend);
    const struct ib_recv *recv = &rc->recvs[slot];
    if (!rc->cts_qp->sq_avail) return RAIL_IN_PROGRESS;
    rc->cts_resend &= rc->cts_resend - 1;
    if (recv->base.magic != IB_REQ_RECV || !recv->base.pending) continue;
    RAIL_TRY(post_cts(rc, rc->cts_qp, recv->n, slot));
    rail_stats_add(&rc->base.stats[IB_COMM_RESENT], 1);
  }
  return RAIL_OK;
}

/* ---- the receiver's side of a comm: made ----------------------------------- */

struct ib_comm *ib_recv_comm_alloc(void) {
  struct ib_recv_comm *rc = calloc(1, sizeof *rc);
  if (!rc || !ib_comm_init(&rc->base, IB_RECV_COMM_MAGIC)) {
    free(rc);
    return NULL;
  }
  rc->next_seq = 1;
  for (unsigned int i = 0; i + 1 < IB_RECV_BATCH; i++) rc->recv_wrs[i].next = &rc->recv_wrs[i + 1];
  for (unsigned int i = 0; i < IB_MAX_RECVS; i++)
    rc->recvs[i].base = (struct ib_request){.magic = IB_REQ_FREE, .comm = &rc->base};
  ib_request_pool_init(&rc->free_flushes, rc->flushes, sizeof rc->flushes[0], IB_MAX_FLUSHES, &rc->base);
  return &rc->base;
}

void ib_recv_comm_start(struct ib_comm *comm, const struct ib_remote_ring *ring,
                        rail_result_t (*progress)(struct ib_comm *comm)) {
  struct ib_recv_comm *rc = ib_recv_comm_of(comm);
  rc->remote_ring = *ring;
  use_cts_qp(rc, 0);
  for (unsigned int i = 0; i < comm->plan.nqps; i++) comm->qps[i].wr_id_base = ib_wr_id(IB_WR_CTS, i, 0, 0);
  comm->progress = progress;
  comm->test_has_more = comm->nrails > 1 || comm->event_driven || ib_detect_is_possible(comm);
  if (comm->plan.two_sided) comm->max_bytes = ib_two_sided_max_bytes(&comm->plan);
  ib_comm_limit_inline(comm);
}

rail_result_t ib_recv_comm_prepost(struct ib_comm *comm) {
  if (comm->plan.two_sided) return RAIL_OK;
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    int err = ib_recv_prepost_qp(comm, &comm->qps[i]);
    if (err) return ib_error_post(comm, &comm->qps[i], "ibv_post_recv", err);
  }
  return RAIL_OK;
}
