/* SPDX-License-Identifier: Apache-2.0
 *
 * A receive from irecv to its completion.
 *
 * irecv takes the next slot of the table and grants its buffers to the sender in one control message. How the bytes
 * of a message come depends on the buffer: inside a control message, into a tagged receive that irecv posts, or by
 * writes of the sender, of which each part ends with a FIN. The receive is done when all its buffers are. Messages
 * that have arrived are acknowledged: with the next GRANT, or in an ACK when the endpoint is polled before there is
 * one. / */
#include <limits.h>
#include <string.h>

#include "common/base/ordered_copy.h"
#include "plugin/ofi/ofi_progress.h"

/* ---- acknowledgements ------------------------------------------------------- */

/* Moves what is to be acknowledged into the frame. */
static void take_acks(struct ofi_recv_comm *rc, struct ofi_frame *frame) {
  while (rc->unacked_slots) {
    unsigned int slot = (unsigned int)__builtin_ctz(rc->unacked_slots);
    struct ofi_recv *recv = &rc->recvs[slot];
    frame->acks[frame->nacks++] = (struct ofi_ack){.seq = recv->seq, .mask = recv->unacked};
    recv->unacked = 0;
    rc->unacked_slots &= rc->unacked_slots - 1;
  }
}

/* ---- irecv -------------------------------------------------------------------- */

static bool recv_args_ok(const struct ofi_comm *comm, int n, void **data, const size_t *sizes, const int *tags,
                         void **mhandles, void **request) {
  if (!request || !data || !sizes || !tags || n < 1 || n > OFI_MAX_GROUP) return false;
  for (int i = 0; i < n; i++)
    if (!ofi_mr_covers(comm, mhandles ? mhandles[i] : NULL, data[i], sizes[i]) || sizes[i] > RAIL_NET_MAX_BYTES)
      return false;
  return true;
}

RAIL_COLD static rail_result_t bad_recv(const struct ofi_comm *comm, int n, void **data, const size_t *sizes,
                                        const int *tags, void **mhandles, void **request) {
  if (!request || !data || !sizes || !tags)
    RAIL_WARN("RailOFI: irecv: data %p, sizes %p, tags %p, request %p; none may be NULL", (void *)data,
              (const void *)sizes, (const void *)tags, (void *)request);
  else if (n < 1 || n > OFI_MAX_GROUP) RAIL_WARN("RailOFI: irecv: n is %d; allowed: 1..%d", n, OFI_MAX_GROUP);
  else
    for (int i = 0; i < n; i++) {
      const struct ofi_mhandle *mr = mhandles ? mhandles[i] : NULL;
      if (!ofi_mr_covers(comm, mr, data[i], sizes[i]) || sizes[i] > RAIL_NET_MAX_BYTES)
        return ofi_mr_refuse(comm, "irecv", mr, data[i], sizes[i]);
    }
  return RAIL_BAD_ARGUMENT;
}

/* How the buffer's message is to come. */
static void choose_kind(const struct ofi_comm *comm, struct ofi_recv_buffer *b) {
  bool host = !b->mr || b->mr->type == RAIL_PTR_HOST;
  if (host && b->capacity <= comm->max_inline) b->kind = OFI_BUFFER_INLINE;
  else if (comm->device->rails[0]->protocol == OFI_PROTOCOL_RMA) b->kind = OFI_BUFFER_RMA;
  else b->kind = OFI_BUFFER_TAGGED;
  b->takes_data = host && b->kind != OFI_BUFFER_TAGGED;
}

static rail_result_t post_trecv(struct ofi_recv *recv, unsigned int index, unsigned int path) {
  struct ofi_recv_buffer *b = &recv->buffers[index];
  struct ofi_comm *comm = recv->base.comm;
  b->op.request = recv;
  b->op.data = b->data;
  b->op.size = b->capacity;
  b->op.desc = b->mr ? b->mr->descs[comm->paths[path].nic] : NULL;
  b->op.tag = ofi_tag(comm->index, recv->seq, index);
  return ofi_comm_post(comm, &b->op, OFI_OP_TRECV, path);
}

/* The address that a peer names to write to the buffer: a virtual one, or an offset in the registration. */
static uint64_t remote_addr(const struct ofi_comm *comm, const struct ofi_recv_buffer *b) {
  uint64_t addr = (uintptr_t)b->data;
  return !b->mr ? 0 : comm->device->rails[0]->caps.mr_virt_addr ? addr : addr - b->mr->addr;
}

static rail_result_t post_trecvs(struct ofi_recv *recv) {
  for (unsigned int i = 0; i < recv->n; i++)
    if (recv->buffers[i].kind == OFI_BUFFER_TAGGED)
      RAIL_TRY(post_trecv(recv, i, ofi_comm_least_path(recv->base.comm)));
  return RAIL_OK;
}

/* Has the provider no room for a tagged receive of it yet? */
static bool is_waiting(const struct ofi_recv *recv) {
  for (unsigned int i = 0; i < recv->n; i++)
    if (recv->buffers[i].op.state == OFI_OP_WAITING) return true;
  return false;
}

static rail_result_t grant(struct ofi_recv_comm *rc, struct ofi_recv *recv) {
  struct ofi_comm *comm = &rc->base;
  struct ofi_frame frame;
  frame.type = OFI_FRAME_GRANT;
  frame.seq = recv->seq;
  frame.index = frame.parts = frame.nacks = 0;
  frame.size = 0;
  frame.nbuffers = recv->n;
  frame.nkeys = comm->endpoint->nnics;
  take_acks(rc, &frame);
  for (unsigned int i = 0; i < recv->n; i++) {
    struct ofi_recv_buffer *b = &recv->buffers[i];
    frame.buffers[i] = (struct ofi_buffer){.addr = b->kind == OFI_BUFFER_RMA ? remote_addr(comm, b) : 0,
                                           .size = b->capacity, .tag = b->tag, .kind = b->kind,
                                           .path = b->kind == OFI_BUFFER_TAGGED ? b->op.path : 0,
                                           .takes_data = b->takes_data};
    if (b->kind == OFI_BUFFER_RMA && b->mr) memcpy(frame.buffers[i].keys, b->mr->keys, sizeof b->mr->keys);
  }
  recv->grant.request = recv;
  return ofi_comm_post_frame(comm, &recv->grant, OFI_OP_GRANT, 0, &frame, recv->frame);
}

/* A GRANT follows the tagged receives that it is about: messages for those that are not posted would fill the sender's
 * queue, and the ones that are posted wait behind them. */
static void grant_held(struct ofi_recv_comm *rc) {
  for (uint32_t slots = rc->held_slots; slots; slots &= slots - 1) {
    unsigned int slot = (unsigned int)__builtin_ctz(slots);
    if (is_waiting(&rc->recvs[slot])) continue;
    rc->held_slots &= ~(1u << slot);
    if (grant(rc, &rc->recvs[slot]) != RAIL_OK) return;
  }
  if (rc->held_slots) ofi_endpoint_ack_later(rc->base.endpoint, &rc->ack_link, true);
}

/* What the endpoint calls for comms that have something to send: GRANTs that were held, acknowledgements. */
void ofi_recv_ack(struct ofi_ack_link *link) {
  struct ofi_recv_comm *rc = rail_container_of(link, struct ofi_recv_comm, ack_link);
  struct ofi_frame frame = {.type = OFI_FRAME_ACK};
  if (rail_unlikely(rc->held_slots && ofi_comm_status(&rc->base) == RAIL_OK)) grant_held(rc);
  if (!rc->unacked_slots || rc->ack.state != OFI_OP_IDLE || rail_first_error(&rc->base.error) != RAIL_OK) return;
  take_acks(rc, &frame);
  rc->ack.request = NULL;
  (void)ofi_comm_post_frame(&rc->base, &rc->ack, OFI_OP_GRANT, 0, &frame, rc->ack_frame);
}

/* Under the lock. */
static rail_result_t receive(struct ofi_recv_comm *rc, int n, void **data, const size_t *sizes, const int *tags,
                             void **mhandles, void **request) {
  struct ofi_recv *recv = &rc->recvs[rc->next_seq % OFI_MAX_RECVS];
  if (rail_unlikely(recv->base.magic != OFI_REQ_FREE || recv->grant.state != OFI_OP_IDLE)) {
    rail_stats_add(&rc->base.stats[OFI_COMM_WAITS_ROOM], 1);
    (void)ofi_endpoint_poll(rc->base.endpoint);
    return rail_first_error(&rc->base.error);
  }
  /* The GRANT of a slot says that its last receive is done. */
  rc->unacked_slots &= ~(1u << rc->next_seq % OFI_MAX_RECVS);
  recv->unacked = 0;
  recv->seq = rc->next_seq++;
  recv->n = recv->pending = (uint32_t)n;
  for (int i = 0; i < n; i++) {
    struct ofi_recv_buffer *b = &recv->buffers[i];
    b->data = data[i];
    b->capacity = sizes[i];
    b->arrived = 0;
    b->tag = (uint32_t)tags[i];
    b->done = false;
    b->parts = b->left = 0;
    b->mr = sizes[i] ? mhandles[i] : NULL;
    ofi_mr_hold(b->mr);
    choose_kind(&rc->base, b);
  }
  ofi_request_begin(&recv->base, OFI_REQ_RECV);
  *request = recv;
  /* The request exists now: test reports a failure. */
  if (post_trecvs(recv) != RAIL_OK) return RAIL_OK;
  if (rail_likely(!is_waiting(recv))) {
    (void)grant(rc, recv);
  } else {
    rc->held_slots |= 1u << recv->seq % OFI_MAX_RECVS;
    ofi_endpoint_ack_later(rc->base.endpoint, &rc->ack_link, true);
  }
  return RAIL_OK;
}

rail_result_t ofi_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                        void **phandles, void **request) {
  (void)phandles;
  /* *request may be RAIL_NET_OPTIONAL_RECV, which allows a receive to be done before its bytes are in place. The slot
   * is in use until they are: nothing would be gained. */
  if (request) *request = NULL;
  struct ofi_comm *comm = ofi_comm_of(recv_comm, OFI_RECV_COMM_MAGIC, "irecv");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!recv_args_ok(comm, n, data, sizes, tags, mhandles, request)))
    return bad_recv(comm, n, data, sizes, tags, mhandles, request);
  if (rail_unlikely(ofi_comm_status(comm) != RAIL_OK)) return ofi_comm_status(comm);
  if (rail_unlikely(!ofi_endpoint_try(comm->endpoint))) return RAIL_OK; /* another thread polls for this one */
  rail_result_t result = receive(ofi_recv_comm_of(comm), n, data, sizes, tags, mhandles, request);
  ofi_endpoint_unlock(comm->endpoint);
  return result;
}

/* ---- from test ------------------------------------------------------------------- */

static void finish_buffer(struct ofi_recv *recv, unsigned int index, uint64_t size) {
  struct ofi_recv_comm *rc = ofi_recv_comm_of(recv->base.comm);
  struct ofi_recv_buffer *b = &recv->buffers[index];
  b->done = true;
  b->arrived = size;
  recv->unacked |= (uint8_t)(1u << index);
  rc->unacked_slots |= 1u << recv->seq % OFI_MAX_RECVS;
  rail_stats_add(&rc->base.stats[OFI_COMM_MESSAGES], 1);
  rail_stats_add(&rc->base.stats[OFI_COMM_BYTES], size);
  ofi_mr_release(b->mr);
  if (--recv->pending == 0) ofi_request_end(&recv->base);
  /* The caller calls again, to test what is outstanding; with nothing outstanding it may not. */
  bool last = atomic_load_explicit(&rc->base.outstanding, memory_order_relaxed) == 0;
  ofi_endpoint_ack_later(rc->base.endpoint, &rc->ack_link, last);
}

RAIL_COLD static void peer_refused_size(struct ofi_comm *comm, uint64_t size, const struct ofi_recv_buffer *b) {
  (void)ofi_comm_fail(comm, RAIL_BAD_USAGE, "the peer's message of %llu bytes with tag %u is larger than the receive "
                      "buffer of %llu bytes; send and receive do not fit together", (unsigned long long)size, b->tag,
                      (unsigned long long)b->capacity);
}

RAIL_COLD static void protocol_error(struct ofi_comm *comm, const struct ofi_frame *frame, const char *why) {
  (void)ofi_comm_fail(comm, RAIL_REMOTE_ERROR,
                      "protocol error: %s (control message of type %u for buffer %u of receive "
                      "%u, %llu bytes); is the peer of another release?",
                      why, frame->type, frame->index, frame->seq, (unsigned long long)frame->size);
}

/* A part of a message is in its buffer. */
static void handle_fin(struct ofi_recv *recv, const struct ofi_frame *frame) {
  struct ofi_recv_buffer *b = &recv->buffers[frame->index];
  if (!b->parts) {
    b->parts = b->left = (uint8_t)frame->parts;
    b->arrived = frame->size;
  }
  if (b->kind != OFI_BUFFER_RMA || b->parts != frame->parts || b->arrived != frame->size)
    protocol_error(recv->base.comm, frame, "a part that does not fit the others");
  else if (--b->left == 0) finish_buffer(recv, frame->index, frame->size);
}

void ofi_recv_frame(struct ofi_recv_comm *rc, const struct ofi_frame *frame, const void *payload) {
  struct ofi_recv *recv = &rc->recvs[frame->seq % OFI_MAX_RECVS];
  if (frame->type == OFI_FRAME_REVOKED) {
    rc->base.revoked = true;
    return;
  }
  if (frame->type != OFI_FRAME_DATA && frame->type != OFI_FRAME_FIN && frame->type != OFI_FRAME_TOO_LARGE) {
    protocol_error(&rc->base, frame, "a message that no sender sends");
    return;
  }
  /* A receive that is done has no buffer that is not; one that was never posted has none. */
  struct ofi_recv_buffer *b = &recv->buffers[frame->index];
  if (recv->seq != frame->seq || frame->index >= recv->n || b->done) {
    protocol_error(&rc->base, frame, "data for a buffer that is not posted");
  } else if (frame->size > b->capacity) {
    if (frame->type == OFI_FRAME_TOO_LARGE) peer_refused_size(&rc->base, frame->size, b);
    else protocol_error(&rc->base, frame, "more data than the buffer holds");
  } else if (frame->type == OFI_FRAME_FIN) {
    handle_fin(recv, frame);
  } else if (frame->type == OFI_FRAME_DATA && b->takes_data && !b->parts) {
    rail_ordered_copy(b->data, payload, frame->size);
    finish_buffer(recv, frame->index, frame->size);
  } else {
    protocol_error(&rc->base, frame, "data that the buffer does not take so");
  }
}

/* GRANT, ACK or a tagged receive. */
void ofi_recv_done(struct ofi_op *op, const struct ofi_completion *completion) {
  struct ofi_recv_comm *rc = ofi_recv_comm_of(op->comm);
  if (rail_first_error(&rc->base.error) != RAIL_OK) return;
  if (op == &rc->ack && rc->unacked_slots) ofi_endpoint_ack_later(rc->base.endpoint, &rc->ack_link, true);
  if (op->kind == OFI_OP_TRECV) {
    struct ofi_recv *recv = op->request;
    struct ofi_recv_buffer *b = rail_container_of(op, struct ofi_recv_buffer, op);
    if (rail_likely(!completion->err)) finish_buffer(recv, (unsigned int)(b - recv->buffers), completion->size);
    else if (completion->err == FI_ETRUNC) peer_refused_size(&rc->base, 0, b);
    else (void)ofi_comm_fail_op(op, completion);
  } else if (rail_unlikely(completion->err)) {
    (void)ofi_comm_fail_op(op, completion);
  }
}

void ofi_recv_finish(struct ofi_recv *recv, int *sizes) {
  for (uint32_t i = 0; sizes && i < recv->n; i++) {
    uint64_t arrived = recv->buffers[i].arrived;
    sizes[i] = arrived > INT_MAX ? INT_MAX : (int)arrived;
  }
  recv->base.magic = OFI_REQ_FREE;
}
