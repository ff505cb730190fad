/* SPDX-License-Identifier: Apache-2.0
 *
 * A send from isend to its completion.
 *
 * isend looks for the oldest buffer of its tag that the receiver has granted. There the message goes as the GRANT says:
 * inside a control message if it is small, else as a tagged send, or by writes into the buffer, in at most as many
 * parts as there are paths, each with a FIN behind it. Without such a buffer a small message goes ahead on credit
 * (EAGER): the receiver has a place for it. The send is done when its operations have completed, or at once where
 * libfabric has taken a copy: its memory is the caller's again.
 *
 * What the receiver reports (ACK, and each GRANT; ofi_grant.c) tells which EAGERs are there and how much credit is free
 * again, and lets close know when all has arrived.
 */
#include <assert.h>
#include <limits.h>
#include <string.h>

#include "common/base/clock.h"
#include "plugin/ofi/ofi_progress.h"

#define PART_ALIGN 4096 /* of the parts of a message */
#define ASK_AFTER_NS 1000000 /* isend has found nothing for so long: there may be a buffer that is not granted */

/* What isend's caller gave. */
struct message {
  const void *data;
  size_t size;
  uint32_t tag;
  struct ofi_mhandle *mr;
};

/* ---- the steps of a send, in their order; each is explained at its definition --------- */

static rail_result_t match_and_take(struct ofi_send_comm *sc, const struct message *message, struct ofi_send **out,
                                    const struct ofi_buffer **buffer);
static rail_result_t no_grant(struct ofi_send_comm *sc);
RAIL_HOT_INLINE bool inject_eager(struct ofi_send_comm *sc, struct ofi_send *send, const struct message *message);
static void post_send(struct ofi_send *send, const struct ofi_buffer *buffer, const struct message *message);
static rail_result_t post_op(struct ofi_send *send, struct ofi_op *op);
static struct ofi_op *prepare(struct ofi_send *send, const struct ofi_buffer *buffer, uint32_t tag);
static rail_result_t post_parts(struct ofi_send *send, const struct ofi_buffer *buffer);
static rail_result_t post_next_write(struct ofi_send *send, unsigned int part, unsigned int path);
static rail_result_t post_fin(struct ofi_send *send, unsigned int part, unsigned int path);
RAIL_COLD static void refuse_size(struct ofi_send *send, const struct ofi_buffer *buffer);
static void complete_send(struct ofi_send *send);

/* ---- isend --------------------------------------------------------------------------- */

rail_result_t ofi_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                        void **request) {
  (void)phandle; /* NCCL's profilers know no event of a libfabric operation */
  struct ofi_comm *comm = ofi_comm_of(send_comm, OFI_SEND_COMM_MAGIC, "isend");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!rail_net_memory_covers(mhandle, comm, data, size) || size > RAIL_NET_MAX_BYTES))
    return rail_net_refuse_buffer("RailOFI", "isend", mhandle, comm, data, size);
  if (rail_unlikely(!ofi_endpoint_try(comm->endpoint))) return ofi_comm_status(comm); /* another thread polls for it */
  struct ofi_send *send = NULL;
  const struct ofi_buffer *buffer = NULL;
  const struct message message = {.data = data, .size = size, .tag = (uint32_t)tag, .mr = mhandle};
  rail_result_t result = match_and_take(ofi_send_comm_of(comm), &message, &send, &buffer);
  if (send) {
    *request = send; /* from here on test returns a failure */
    bool may_inject = !buffer && OFI_FRAME_SIZE + size <= comm->paths[0].nic->max_inject;
    bool injected = may_inject && inject_eager(ofi_send_comm_of(comm), send, &message);
    if (rail_unlikely(!injected)) post_send(send, buffer, &message);
  }
  ofi_endpoint_unlock(comm->endpoint);
  return result;
}

/* ---- match --------------------------------------------------------------------------- */

static bool is_in_host_memory(const struct ofi_mhandle *mr) { return !mr || mr->memory.type == RAIL_PTR_HOST; }

/* The receiver has a place for it. A message in memory of a device is not copied there. */
static bool has_credit(const struct ofi_send_comm *sc, uint64_t size, const struct ofi_mhandle *mr) {
  return sc->base.eager_count && size <= sc->base.max_inline &&
         sc->next_eager - sc->report.freed < sc->base.eager_count && is_in_host_memory(mr);
}

static struct ofi_grant *search_granted(struct ofi_send_comm *sc, uint32_t tag, unsigned int *index) {
  for (uint32_t seq = sc->grants_used; seq != sc->grants_applied; seq++) {
    struct ofi_grant *grant = &sc->grants[seq % OFI_MAX_GRANTS];
    bool all_taken = !grant->kept || grant->seq != seq; /* or a later GRANT is at its index */
    if (all_taken && seq == sc->grants_used) sc->grants_used++;
    for (unsigned int i = 0; !all_taken && i < grant->n; i++)
      if (!(grant->taken & 1u << i) && grant->buffers[i].tag == tag) {
        *index = i;
        return grant;
      }
  }
  return NULL;
}

/* The oldest buffer of this tag that is granted and not taken. */
static inline struct ofi_grant *oldest_granted(struct ofi_send_comm *sc, uint32_t tag, unsigned int *index) {
  return sc->grants_used == sc->grants_applied ? NULL : search_granted(sc, tag, index);
}

static struct ofi_send *take_request(struct ofi_send_comm *sc) {
  struct ofi_request *r = SLIST_FIRST(&sc->free);
  if (rail_likely(r != NULL)) {
    SLIST_REMOVE_HEAD(&sc->free, free);
    return rail_container_of(r, struct ofi_send, base);
  }
  if (sc->sends_used == OFI_MAX_SENDS) return NULL;
  struct ofi_send *send = &sc->sends[sc->sends_used];
  send->base.comm = &sc->base;
  send->frames = sc->send_frames + sc->sends_used * OFI_MAX_PATHS * OFI_FRAME_SIZE;
  for (unsigned int i = 0; i < OFI_MAX_PATHS; i++) send->parts[i].data.request = send->parts[i].fin.request = send;
  sc->sends_used++;
  return send;
}

/* The buffers that it granted are its caller's again. */
RAIL_COLD static rail_result_t peer_revoked(struct ofi_send_comm *sc) {
  return ofi_comm_fail_faults(&sc->base, RAIL_OOB_PEER_CLOSED);
}

/* Finds the granted buffer, or credit, and takes a request. *out: that, not outstanding yet; NULL: not now. *buffer:
 * that it goes to; NULL: on credit. Under the lock. */
static rail_result_t match_and_take(struct ofi_send_comm *sc, const struct message *message, struct ofi_send **out,
                                    const struct ofi_buffer **buffer) {
  unsigned int index = 0;
  RAIL_TRY(ofi_comm_status(&sc->base)); /* who had the lock may have ended it */
  bool credit = has_credit(sc, message->size, message->mr);
  struct ofi_grant *grant = oldest_granted(sc, message->tag, &index);
  if (!grant && (!credit || sc->expects_grants)) { /* where the receiver grants, its next GRANT may have come */
    (void)ofi_poll(sc->base.endpoint); /* the caller may have no request to test */
    RAIL_TRY(ofi_comm_status(&sc->base));
    grant = oldest_granted(sc, message->tag, &index);
  }
  if (rail_unlikely(sc->base.revoked)) return peer_revoked(sc);
  bool faults = atomic_load_explicit(&sc->base.pending_work, memory_order_relaxed) & OFI_PEER_FAULTS;
  if (!grant && !credit) credit = has_credit(sc, message->size, message->mr); /* the poll may have brought some */
  if (!grant && (faults || !credit)) return no_grant(sc);
  struct ofi_send *send = take_request(sc);
  if (rail_unlikely(!send)) {
    rail_stats_add(&sc->base.stats[OFI_COMM_WAITS_ROOM], 1);
    return RAIL_OK;
  }
  sc->expects_grants = grant != NULL;
  sc->unmatched_since_ns = 0;
  if (grant) {
    send->grant_seq = grant->seq;
    send->index = (uint8_t)index;
    grant->taken |= (uint8_t)(1u << index);
    if (grant->taken == (1u << grant->n) - 1) grant->kept = false;
    sc->granted_sends++;
    *buffer = &grant->buffers[index];
  }
  ofi_comm_set_unreported(sc, true);
  *out = send;
  return RAIL_OK;
}

/* No buffer of this tag is granted, and the message cannot go on credit: the caller tries again. That has no limit of
 * time: the irecv may come as late as it likes. A receiver grants small buffers only where it is asked to. An error:
 * the peer is gone. Under the lock. */
static rail_result_t no_grant(struct ofi_send_comm *sc) {
  rail_stats_add(&sc->base.stats[OFI_COMM_WAITS_GRANT], 1);
  const uint32_t work = atomic_load_explicit(&sc->base.pending_work, memory_order_acquire);
  if (rail_unlikely(work & OFI_PEER_FAULTS)) return ofi_comm_fail_faults(&sc->base, work & OFI_PEER_FAULTS);
  if (rail_unlikely(work & RAIL_OOB_STALLED)) ofi_comm_check_stall(&sc->base);
  if (sc->base.eager_count && !sc->asked) {
    uint64_t now = rail_now_ns();
    if (!sc->unmatched_since_ns) sc->unmatched_since_ns = now;
    else if (now - sc->unmatched_since_ns > ASK_AFTER_NS) sc->asked = ofi_comm_ask(sc);
  }
  return rail_first_error(&sc->base.error);
}

/* ---- a message on credit that libfabric copies ---------------------------------------- */

/* The next EAGER's frame; take_next_eager counts it. */
RAIL_HOT_INLINE void make_eager(const struct ofi_send_comm *sc, uint32_t tag, struct ofi_frame *frame) {
  ofi_frame_begin(frame, OFI_FRAME_EAGER);
  frame->eager = sc->next_eager;
  frame->tag = tag;
  frame->first_unknown = sc->grants_applied;
}

RAIL_HOT_INLINE void take_next_eager(struct ofi_send_comm *sc, uint32_t tag) {
  uint32_t seq = sc->next_eager++;
  sc->in_flight[seq % OFI_MAX_GRANTS].tag = tag;
  sc->in_flight[seq % OFI_MAX_GRANTS].has_grant = false;
}

/* An EAGER that the provider copies needs no operation: frame and payload are put together where it copies them from,
 * and the send is done. False: nothing was sent, and nothing is counted. */
RAIL_HOT_INLINE bool inject_eager(struct ofi_send_comm *sc, struct ofi_send *send, const struct message *message) {
  struct ofi_comm *comm = &sc->base;
  uint8_t bytes[OFI_MAX_INJECT];
  struct ofi_frame frame;
  make_eager(sc, message->tag, &frame);
  frame.comm = comm->remote_index;
  frame.token = comm->remote_token;
  ofi_head_encode(&frame, bytes);
  if (message->size) memcpy(bytes + OFI_FRAME_SIZE, message->data, message->size);
  const struct ofi_path *path = &comm->paths[0];
  if (rail_unlikely(!ofi_op_inject(comm->endpoint, path->nic, bytes, OFI_FRAME_SIZE + message->size, path->to)))
    return false;
  take_next_eager(sc, message->tag);
  uint64_t *stats = comm->stats;
  rail_stats_add(&stats[OFI_COMM_FRAMES], 1);
  rail_stats_add(&stats[OFI_COMM_INLINE], 1);
  rail_stats_add(&stats[OFI_COMM_MESSAGES], 1);
  rail_stats_add(&stats[OFI_COMM_BYTES], message->size);
  send->size = message->size;
  send->base.magic = OFI_REQ_SEND; /* it was never outstanding */
  atomic_store_explicit(&send->base.state, OFI_COMPLETE, memory_order_release);
  return true;
}

/* ---- post ---------------------------------------------------------------------------- */

/* Posts a send, in one operation or in parts. */
static void post_send(struct ofi_send *send, const struct ofi_buffer *buffer, const struct message *message) {
  send->data = message->data;
  send->size = message->size;
  send->mr = message->size ? message->mr : NULL;
  send->nparts = 1;
  send->pending = 0;
  ofi_request_begin(&send->base, OFI_REQ_SEND);
  if (send->mr) rail_net_memory_hold(&send->mr->memory);
  if (rail_unlikely(buffer && send->size > buffer->size)) {
    refuse_size(send, buffer);
    return;
  }
  struct ofi_op *op = prepare(send, buffer, message->tag);
  rail_result_t sent = op ? post_op(send, op) : post_parts(send, buffer);
  if (sent == RAIL_OK && send->pending == 0) complete_send(send);
}

/* Posts one operation of a send. It is pending until it completes; not where libfabric has taken a copy, and it is idle
 * again. */
static rail_result_t post_op(struct ofi_send *send, struct ofi_op *op) {
  int err = ofi_op_post(op);
  if (rail_unlikely(err)) return ofi_comm_post_failed(op, err);
  send->pending += op->state != OFI_OP_IDLE;
  return RAIL_OK;
}

/* ---- post: a message in one operation -------------------------------------------------- */

/* EAGER, or DATA for a buffer that was granted: the payload follows the frame. */
RAIL_HOT_INLINE void prepare_inline(struct ofi_send *send, enum ofi_op_kind kind, struct ofi_frame *frame) {
  struct ofi_comm *comm = send->base.comm;
  struct ofi_op *op = &send->parts[0].data;
  op->desc = send->mr ? send->mr->descs[comm->paths[0].local_nic] : NULL;
  frame->size = send->size;
  rail_stats_add(&comm->stats[OFI_COMM_INLINE], 1);
  ofi_comm_prepare_frame(comm, op, kind, 0, frame, send->frames);
}

static void prepare_eager(struct ofi_send *send, uint32_t tag) {
  struct ofi_send_comm *sc = ofi_send_comm_of(send->base.comm);
  struct ofi_frame frame;
  make_eager(sc, tag, &frame);
  take_next_eager(sc, tag);
  prepare_inline(send, OFI_OP_EAGER, &frame);
}

static void prepare_data(struct ofi_send *send) {
  struct ofi_frame frame;
  ofi_frame_begin(&frame, OFI_FRAME_DATA);
  frame.grant = send->grant_seq;
  frame.index = send->index;
  prepare_inline(send, OFI_OP_DATA, &frame);
}

static void prepare_tagged(struct ofi_send *send, const struct ofi_buffer *buffer) {
  struct ofi_comm *comm = send->base.comm;
  struct ofi_op *op = &send->parts[0].data;
  op->desc = send->mr ? send->mr->descs[comm->paths[buffer->path].local_nic] : NULL;
  op->tag = ofi_tag(comm->remote_index, comm->remote_token, send->grant_seq, send->index);
  ofi_comm_prepare(comm, op, OFI_OP_TSEND, buffer->path);
}

/* Fills in the operation that carries all of the message, on credit where no buffer is granted. NULL: in parts. */
static struct ofi_op *prepare(struct ofi_send *send, const struct ofi_buffer *buffer, uint32_t tag) {
  struct ofi_op *op = &send->parts[0].data;
  op->data = (void *)(uintptr_t)send->data;
  op->size = send->size;
  if (!buffer) prepare_eager(send, tag);
  else if (buffer->takes_data && send->size <= send->base.comm->max_inline && is_in_host_memory(send->mr))
    prepare_data(send);
  else if (buffer->kind == OFI_BUFFER_TAGGED) prepare_tagged(send, buffer);
  else return NULL;
  return op;
}

/* ---- post: a message in parts ---------------------------------------------------------- */

/* Of each part but the last, which has the rest: at most as many as paths, of RAIL_OFI_MIN_PART or more if the message
 * has as much. */
static uint64_t part_size(const struct ofi_send *send) {
  uint64_t max = send->size / RAIL_MAX((uint64_t)ofi_params.min_part, PART_ALIGN);
  uint64_t n = RAIL_MAX(RAIL_MIN(max, send->base.comm->npaths), 1);
  return RAIL_ROUND_UP(RAIL_DIV_UP(send->size, n), PART_ALIGN);
}

/* Divides the message, and posts the first write of each part over the NIC with least outstanding. An empty message is
 * its FIN alone. */
static rail_result_t post_parts(struct ofi_send *send, const struct ofi_buffer *buffer) {
  struct ofi_comm *comm = send->base.comm;
  uint64_t each = part_size(send);
  if (!send->size) return post_fin(send, 0, 0);
  assert(send->mr); /* isend refuses bytes without a registration */
  send->nparts = (uint8_t)RAIL_DIV_UP(send->size, each); /* fewer, where rounding has made them larger */
  for (unsigned int i = 0; i < send->nparts; i++) {
    struct ofi_part *p = &send->parts[i];
    unsigned int path = ofi_comm_least_path(comm);
    p->left = RAIL_MIN(each, send->size - i * each);
    p->data.data = (char *)(uintptr_t)send->data + i * each;
    p->data.desc = send->mr->descs[comm->paths[path].local_nic];
    p->data.remote_addr = buffer->addr + i * each;
    p->data.key = buffer->keys[comm->paths[path].remote_nic];
    RAIL_TRY(post_next_write(send, i, path));
  }
  return RAIL_OK;
}

/* Posts the next write of a part, up to the provider's largest message. The FIN may follow the last one at once where
 * it cannot arrive without the bytes; else it waits for the write's completion. */
static rail_result_t post_next_write(struct ofi_send *send, unsigned int part, unsigned int path) {
  struct ofi_comm *comm = send->base.comm;
  struct ofi_part *p = &send->parts[part];
  const struct ofi_caps *caps = &comm->paths[path].nic->device_nic->caps;
  p->data.size = caps->max_msg_size ? RAIL_MIN(p->left, caps->max_msg_size) : p->left;
  p->left -= p->data.size;
  ofi_comm_prepare(comm, &p->data, OFI_OP_WRITE, path);
  RAIL_TRY(post_op(send, &p->data));
  return caps->fin_at_once && !p->left ? post_fin(send, part, path) : RAIL_OK;
}

/* Posts the FIN behind the last write of a part: it tells the receiver. */
static rail_result_t post_fin(struct ofi_send *send, unsigned int part, unsigned int path) {
  struct ofi_op *op = &send->parts[part].fin;
  struct ofi_frame frame;
  ofi_frame_begin(&frame, OFI_FRAME_FIN);
  frame.grant = send->grant_seq;
  frame.index = send->index;
  frame.parts = send->nparts;
  frame.size = send->size;
  ofi_comm_prepare_frame(send->base.comm, op, OFI_OP_FIN, path, &frame, send->frames + part * OFI_FRAME_SIZE);
  return post_op(send, op);
}

/* The message is larger than its buffer. Both sides fail, with a line that says why. */
RAIL_COLD static void refuse_size(struct ofi_send *send, const struct ofi_buffer *buffer) {
  struct ofi_comm *comm = send->base.comm;
  struct ofi_op *op = &send->parts[0].data;
  struct ofi_frame frame;
  ofi_frame_begin(&frame, OFI_FRAME_TOO_LARGE);
  frame.grant = send->grant_seq;
  frame.index = send->index;
  frame.size = send->size;
  op->data = NULL;
  op->size = 0;
  ofi_comm_prepare_frame(comm, op, OFI_OP_TOO_LARGE, 0, &frame, send->frames);
  (void)post_op(send, op);
  (void)ofi_comm_fail(comm, RAIL_BAD_USAGE, "a message of %llu bytes with tag %u meets a receive buffer of %llu bytes; "
                      "send and receive do not fit together", (unsigned long long)send->size, buffer->tag,
                      (unsigned long long)buffer->size);
}

/* ---- from test: control messages of the receiver --------------------------------------- */

RAIL_COLD static void peer_refused_size(struct ofi_comm *comm, uint64_t size) {
  (void)ofi_comm_fail(comm, RAIL_BAD_USAGE, "a message of %llu bytes is larger than the receive buffer that the peer "
                      "has posted for it; send and receive do not fit together", (unsigned long long)size);
}

void ofi_send_on_frame(struct ofi_send_comm *sc, const struct ofi_frame *frame) {
  bool good = false;
  if (frame->type == OFI_FRAME_REVOKE) {
    sc->base.revoked = sc->base.revoked_due = true;
    ofi_send_revoked(sc);
    return;
  }
  if (frame->type == OFI_FRAME_GRANT) good = ofi_handle_grants(sc, frame);
  else if (frame->type == OFI_FRAME_ACK) good = ofi_handle_ack(sc, frame);
  else if (frame->type == OFI_FRAME_PONG) good = ofi_comm_ponged(&sc->base, frame);
  else if (frame->type == OFI_FRAME_TOO_LARGE && sc->report.seen != sc->next_eager) {
    peer_refused_size(&sc->base, frame->size);
    return;
  }
  if (!good)
    (void)ofi_comm_fail(&sc->base, RAIL_REMOTE_ERROR,
                        "protocol error: a control message of type %u with number %u that cannot be; is the peer of "
                        "another release?", frame->type, frame->seq);
}

/* After each REVOKE of the peer's: REVOKED, when nothing of ours is under way any more. */
void ofi_send_revoked(struct ofi_send_comm *sc) {
  if (!sc->base.revoked_due || sc->base.nops) return;
  sc->base.revoked_due = false;
  ofi_comm_revoke(&sc->base);
}

/* ---- from test: completions ------------------------------------------------------------ */

/* A write is done: the next one of its part, or the FIN if that has waited for it. */
static void write_done(struct ofi_send *send, struct ofi_op *op) {
  struct ofi_part *p = rail_container_of(op, struct ofi_part, data);
  unsigned int part = (unsigned int)(p - send->parts);
  if (ofi_comm_status(send->base.comm) != RAIL_OK) return;
  if (rail_unlikely(p->left)) {
    op->data = (char *)op->data + op->size;
    op->remote_addr += op->size;
    (void)post_next_write(send, part, op->path);
  } else if (!op->nic->device_nic->caps.fin_at_once) {
    (void)post_fin(send, part, op->path);
  }
}

void ofi_send_done(struct ofi_op *op, const struct ofi_completion *completion) {
  struct ofi_send *send = op->request;
  struct ofi_comm *comm = send->base.comm;
  send->pending--;
  /* A receiver that closed and gave nothing up has the message, whatever became of its operation. */
  if (rail_unlikely(completion->err && !ofi_comm_has_arrived(ofi_send_comm_of(comm))))
    (void)ofi_comm_fail_op(op, completion);
  else if (op->kind == OFI_OP_WRITE) write_done(send, op);
  if (send->pending == 0 && rail_first_error(&comm->error) == RAIL_OK) complete_send(send);
}

/* A send is done: its operations are over, or libfabric has taken a copy. */
static void complete_send(struct ofi_send *send) {
  struct ofi_comm *comm = send->base.comm;
  rail_stats_add(&comm->stats[OFI_COMM_MESSAGES], 1);
  rail_stats_add(&comm->stats[OFI_COMM_BYTES], send->size);
  if (send->mr) rail_net_memory_release(&send->mr->memory);
  ofi_request_end(&send->base);
}

void ofi_send_finish(struct ofi_send *send, int *sizes) {
  struct ofi_send_comm *sc = ofi_send_comm_of(send->base.comm);
  if (sizes) sizes[0] = send->size > INT_MAX ? INT_MAX : (int)send->size;
  send->base.magic = OFI_REQ_FREE;
  SLIST_INSERT_HEAD(&sc->free, &send->base, free);
}
