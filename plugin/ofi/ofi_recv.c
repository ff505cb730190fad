/* SPDX-License-Identifier: Apache-2.0
 *
 * A receive from irecv to its completion.
 *
 * irecv takes the next slot of `recvs`. A small message may be there already (EAGER), or come on credit: then the
 * sender need not know of the receive. Else its buffers are granted to the sender, in one control message with those of
 * other irecvs in a row. How the bytes of a message come depends on the buffer: inside a control message, into a tagged
 * receive that is posted before its GRANT, or by writes of the sender, of which each part ends with a FIN. The receive
 * is done when all its buffers are.
 *
 * GRANTs are made in the order of the receives: what stands before a receive that needs one is granted, too. So both
 * sides agree which buffer an EAGER fills: the oldest one of its tag that is not filled, of those whose GRANT the
 * sender did not have when it sent. A message for a buffer whose GRANT it had names that buffer.
 *
 * The sender learns what has arrived, and which places are free again, from each GRANT, or from an ACK (ofi_grant.c).
 */
#include <limits.h>
#include <string.h>

#include "common/base/ordered_copy.h"
#include "plugin/ofi/ofi_progress.h"

/* ---- the steps of a receive, in their order; each is explained at its definition ------- */

static rail_result_t receive(struct ofi_recv_comm *rc, int n, void **data, const size_t *sizes, const int *tags,
                             void **mhandles, void **request);
static bool take_unexpected(struct ofi_recv_comm *rc, struct ofi_recv *recv);
static void take_eager(struct ofi_recv_comm *rc, uint32_t tag, uint32_t first_unknown, const void *payload,
                       uint32_t size);
RAIL_HOT_INLINE void fill(struct ofi_recv_comm *rc, struct ofi_recv_buffer *b, const void *payload, uint32_t size);
static void handle_granted(struct ofi_recv_comm *rc, const struct ofi_frame *frame, const void *payload);
static void complete_granted(struct ofi_recv_comm *rc, struct ofi_recv_buffer *b, uint64_t size);
RAIL_HOT_INLINE void complete_buffer(struct ofi_recv_comm *rc, struct ofi_recv_buffer *b, uint64_t size);

/* ---- irecv ----------------------------------------------------------------------------- */

rail_result_t ofi_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                        void **phandles, void **request) {
  (void)phandles;
  /* *request may be RAIL_NET_OPTIONAL_RECV, which allows a receive to be done before its bytes are in place. The slot
   * is in use until they are: nothing would be gained. */
  *request = NULL;
  struct ofi_comm *comm = ofi_comm_of(recv_comm, OFI_RECV_COMM_MAGIC, "irecv");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!rail_net_recv_args_ok(n, OFI_MAX_GROUP, data, sizes, tags)))
    return rail_net_refuse_recv_args("RailOFI", n, OFI_MAX_GROUP, data, sizes, tags);
  const unsigned int count = (unsigned int)n;
  const unsigned int bad = rail_net_first_bad_buffer(comm, RAIL_NET_MAX_BYTES, count, data, sizes, mhandles);
  if (rail_unlikely(bad < count))
    return rail_net_refuse_buffer("RailOFI", "irecv", mhandles ? mhandles[bad] : NULL, comm, data[bad], sizes[bad]);
  if (rail_unlikely(!ofi_endpoint_try(comm->endpoint))) return ofi_comm_status(comm); /* another thread polls for it */
  rail_result_t result = receive(ofi_recv_comm_of(comm), n, data, sizes, tags, mhandles, request);
  ofi_endpoint_unlock(comm->endpoint);
  return result;
}

/* ---- take a slot, tell the sender ------------------------------------------------------- */

/* How the buffer's message is to come. Without EAGERs the device supports GPU memory, and the sender's payload may be
 * there: such a payload cannot follow a frame, which is in host memory (rxm and efa take the kind of memory from the
 * first piece of a message). So the buffer is INLINE only if it has no bytes. */
static void choose_kind(const struct ofi_comm *comm, struct ofi_recv_buffer *b) {
  bool host = !b->mr || b->mr->memory.type == RAIL_PTR_HOST;
  if (host && b->capacity <= comm->max_inline && (comm->eager_count || !b->capacity)) b->kind = OFI_BUFFER_INLINE;
  else if (comm->device->rails[0]->protocol == OFI_PROTOCOL_RMA) b->kind = OFI_BUFFER_RMA;
  else b->kind = OFI_BUFFER_TAGGED;
  b->takes_data = host && b->kind != OFI_BUFFER_TAGGED;
}

/* seq, or the oldest receive that is in the table still, if seq is older. */
static uint32_t clamp_to_table(const struct ofi_recv_comm *rc, uint32_t seq) {
  return rc->next_seq - seq > OFI_MAX_RECVS ? rc->next_seq - OFI_MAX_RECVS : seq;
}

RAIL_COLD static rail_result_t fail_unreachable(struct ofi_comm *comm) {
  return ofi_comm_fail(comm, RAIL_REMOTE_ERROR, "the provider could not send the peer an earlier control message; has "
                       "it closed the connection? check: the peer's log, the fabric between the two");
}

/* Takes a slot; where the sender must know of it, grants its buffers. Under the lock. */
static rail_result_t receive(struct ofi_recv_comm *rc, int n, void **data, const size_t *sizes, const int *tags,
                             void **mhandles, void **request) {
  struct ofi_recv *recv = &rc->recvs[rc->next_seq % OFI_MAX_RECVS];
  RAIL_TRY(ofi_comm_status(&rc->base)); /* who had the lock may have ended it */
  if (rail_unlikely(recv->base.magic != OFI_REQ_FREE || recv->grant.state != OFI_OP_IDLE)) {
    rail_stats_add(&rc->base.stats[OFI_COMM_WAITS_ROOM], 1);
    (void)ofi_poll(rc->base.endpoint);
    return rail_first_error(&rc->base.error);
  }
  recv->seq = rc->next_seq++;
  rc->first_incomplete = clamp_to_table(rc, rc->first_incomplete);
  rc->first_ungranted = clamp_to_table(rc, rc->first_ungranted);
  recv->n = recv->pending = (uint32_t)n;
  recv->trecvs_posted = recv->granted = false;
  for (int i = 0; i < n; i++) {
    struct ofi_recv_buffer *b = &recv->buffers[i];
    b->data = data[i];
    b->capacity = sizes[i];
    b->size = 0;
    b->tag = (uint32_t)tags[i];
    b->done = b->cancelled = false;
    b->parts = b->left = 0;
    b->mr = sizes[i] ? mhandles[i] : NULL;
    if (b->mr) rail_net_memory_hold(&b->mr->memory);
    choose_kind(&rc->base, b);
  }
  ofi_request_begin(&recv->base, OFI_REQ_RECV);
  *request = recv;
  /* The request exists now: test returns a failure. */
  if (rc->unexpected && rail_unlikely(!take_unexpected(rc, recv))) return RAIL_OK;
  if (rail_unlikely(recv->pending && rc->sender_unreachable)) {
    (void)fail_unreachable(&rc->base);
  } else if (recv->pending && ofi_grant_is_needed(rc, recv)) {
    /* The first of several irecvs in a row, without a poll in between, is granted at once. The others go together: the
     * next ofi_poll finds the comm in endpoint->control_now and calls ofi_control_send. */
    if (rc->last_grant_poll == rc->base.endpoint->polls) {
      ofi_grant_with_next_poll(rc);
    } else {
      rc->last_grant_poll = rc->base.endpoint->polls;
      ofi_grant_all(rc);
    }
  }
  return RAIL_OK;
}

/* ---- unexpected messages: kept in places until their receive ----------------------------- */

static struct ofi_place *place_at(struct ofi_recv_comm *rc, uint32_t seq) {
  return &rc->places[seq % OFI_MAX_GRANTS];
}
static uint8_t *payload_of(struct ofi_recv_comm *rc, const struct ofi_place *place) {
  return rc->payloads + (size_t)place->payload * rc->base.max_inline;
}

/* Keeps a message in its place, which is free. There is a payload: places that are not free are as many as the credit
 * at most. */
static void keep_message(struct ofi_recv_comm *rc, struct ofi_place *place, const struct ofi_place *message,
                         const void *payload) {
  *place = *message;
  place->payload = rc->free_payloads[--rc->nfree_payloads];
  if (place->size) memcpy(payload_of(rc, place), payload, place->size);
}

/* The payload's bytes stay as they are until the next message is kept. */
static void release_place(struct ofi_recv_comm *rc, struct ofi_place *place) {
  place->state = OFI_PLACE_FREE;
  rc->free_payloads[rc->nfree_payloads++] = (uint8_t)place->payload;
}

/* Where none is, all places are free. */
static bool any_is_kept(const struct ofi_recv_comm *rc) { return rc->nfree_payloads != OFI_MAX_EAGER; }

/* Their credit is the sender's again. */
static void free_places(struct ofi_recv_comm *rc) {
  if (rail_likely(!any_is_kept(rc))) rc->have.freed = rc->have.seen;
  while (rc->have.freed != rc->have.seen && place_at(rc, rc->have.freed)->state == OFI_PLACE_FREE)
    rc->have.freed++;
}

/* Fills the receive's buffers with messages that came before it, the oldest of each tag first. False: the comm has
 * failed. */
static bool take_unexpected(struct ofi_recv_comm *rc, struct ofi_recv *recv) {
  for (unsigned int i = 0; i < recv->n; i++)
    for (uint32_t seq = rc->have.freed; seq != rc->have.seen; seq++) {
      struct ofi_place *place = place_at(rc, seq);
      if (place->state != OFI_PLACE_UNEXPECTED || place->tag != recv->buffers[i].tag) continue;
      release_place(rc, place);
      rc->unexpected--;
      fill(rc, &recv->buffers[i], payload_of(rc, place), place->size);
      if (rail_unlikely(rail_first_error(&rc->base.error) != RAIL_OK)) return false;
      break;
    }
  free_places(rc);
  ofi_ack_soon(rc);
  return true;
}

/* ---- from test: what came ---------------------------------------------------------------- */

RAIL_COLD static void protocol_error(struct ofi_comm *comm, const struct ofi_frame *frame, const char *why) {
  (void)ofi_comm_fail(comm, RAIL_REMOTE_ERROR,
                      "protocol error: %s (control message of type %u, number %u, buffer %u, "
                      "%llu bytes); is the peer of another release?",
                      why, frame->type, frame->seq, frame->index, (unsigned long long)frame->size);
}

RAIL_COLD static void fail_too_large(struct ofi_comm *comm, uint64_t size, const struct ofi_recv_buffer *b) {
  (void)ofi_comm_fail(comm, RAIL_BAD_USAGE, "the peer's message of %llu bytes with tag %u is larger than the receive "
                      "buffer of %llu bytes; send and receive do not fit together", (unsigned long long)size, b->tag,
                      (unsigned long long)b->capacity);
}

/* The sender is about to close, or has found no buffer for a message: there may be a small one that is not granted. */
static void handle_ask(struct ofi_recv_comm *rc, const struct ofi_frame *frame) {
  rc->report_wanted = rc->grant_wanted = true;
  rc->report_wanted_at = (struct ofi_report){.seen = frame->next_eager, .filled = frame->granted_sends};
  ofi_grant_all(rc);
  ofi_ack_soon(rc);
}

void ofi_recv_on_frame(struct ofi_recv_comm *rc, const struct ofi_frame *frame, const void *payload) {
  switch (frame->type) {
    case OFI_FRAME_DATA:
    case OFI_FRAME_FIN:
    case OFI_FRAME_TOO_LARGE: handle_granted(rc, frame, payload); break;
    case OFI_FRAME_ASK: handle_ask(rc, frame); break;
    case OFI_FRAME_PONG:
      if (!ofi_comm_ponged(&rc->base, frame)) protocol_error(&rc->base, frame, "an answer over no path");
      break;
    case OFI_FRAME_REVOKED: rc->base.revoked = true; break;
    default: protocol_error(&rc->base, frame, "a message that no sender sends");
  }
}

/* ---- from test: messages on credit ------------------------------------------------------- */

RAIL_COLD static void eager_error(struct ofi_comm *comm, const struct ofi_eager *eager, const char *why) {
  protocol_error(comm, &(struct ofi_frame){.type = OFI_FRAME_EAGER, .eager = eager->seq, .size = eager->size}, why);
}

/* Messages before it are missing. */
static void keep_ahead(struct ofi_recv_comm *rc, const struct ofi_eager *eager) {
  const struct ofi_place message = {.state = OFI_PLACE_AHEAD, .tag = eager->tag,
                                    .first_unknown = eager->first_unknown, .size = eager->size};
  keep_message(rc, place_at(rc, eager->seq), &message, eager->payload);
}

/* Kept messages whose turn it is, now that the one before them has come. */
static void take_kept(struct ofi_recv_comm *rc) {
  struct ofi_place *place;
  while ((place = place_at(rc, rc->have.seen))->state == OFI_PLACE_AHEAD && !rail_first_error(&rc->base.error))
    take_eager(rc, place->tag, place->first_unknown, payload_of(rc, place), place->size);
}

/* A message on credit has come: takes it in the order of the numbers, or keeps it until those before it are here. */
void ofi_recv_on_eager(struct ofi_recv_comm *rc, const struct ofi_frame_wire *wire, size_t size) {
  const struct ofi_eager eager = ofi_eager_decode(wire, size);
  uint32_t ahead = eager.seq - rc->have.seen, used = rc->have.seen - rc->have.freed;
  bool fits = ahead < rc->base.eager_count - used && eager.size <= rc->base.max_inline;
  if (rail_unlikely(!fits || (ahead && place_at(rc, eager.seq)->state != OFI_PLACE_FREE))) {
    eager_error(&rc->base, &eager, "a message beyond the credit");
  } else if (rail_unlikely((int32_t)(rc->ngrants - eager.first_unknown) < 0)) {
    eager_error(&rc->base, &eager, "a message whose sender knows receives that were not granted");
  } else if (rail_unlikely(ahead)) {
    keep_ahead(rc, &eager);
  } else {
    take_eager(rc, eager.tag, eager.first_unknown, eager.payload, eager.size);
    if (rail_unlikely(any_is_kept(rc))) take_kept(rc);
    free_places(rc);
    ofi_ack_soon(rc);
  }
}

/* The oldest unfilled buffer of the tag that the EAGER's sender did not know of. Receives with GRANTs before
 * `first_unknown` are skipped: the sender had those, and would have named the buffer. NULL: there is none. */
static struct ofi_recv_buffer *find_buffer(struct ofi_recv_comm *rc, uint32_t tag, uint32_t first_unknown) {
  for (uint32_t seq = rc->first_incomplete; seq != rc->next_seq; seq++) {
    struct ofi_recv *recv = ofi_recv_at(rc, seq);
    if (recv->pending == 0) {
      if (seq == rc->first_incomplete) rc->first_incomplete++;
      continue;
    }
    if (recv->granted && (int32_t)(recv->grant_seq - first_unknown) < 0) continue;
    struct ofi_recv_buffer *b = recv->buffers;
    for (unsigned int i = 0; i < recv->n; i++, b++)
      if (b->tag == tag && ofi_recv_is_unfilled(b)) return b;
  }
  return NULL;
}

/* No receive has a buffer for it yet. It may be in its place already. */
static void keep_unexpected(struct ofi_recv_comm *rc, struct ofi_place *place, uint32_t tag, const void *payload,
                            uint32_t size) {
  const struct ofi_place message = {.tag = tag, .size = size};
  if (place->state == OFI_PLACE_FREE) keep_message(rc, place, &message, payload);
  place->state = OFI_PLACE_UNEXPECTED;
  rc->unexpected++;
}

/* Takes the next EAGER in the order of the numbers, from its frame or from its place: finds its buffer, or keeps it as
 * unexpected. */
static void take_eager(struct ofi_recv_comm *rc, uint32_t tag, uint32_t first_unknown, const void *payload,
                       uint32_t size) {
  struct ofi_place *place = place_at(rc, rc->have.seen++);
  struct ofi_recv_buffer *b = find_buffer(rc, tag, first_unknown);
  if (rail_likely(b != NULL)) {
    if (rail_unlikely(any_is_kept(rc)) && place->state != OFI_PLACE_FREE) release_place(rc, place);
    fill(rc, b, payload, size);
  } else {
    keep_unexpected(rc, place, tag, payload, size);
  }
}

/* The send was reported as done, so the sender's next call returns the error. While a refusal is under way no second
 * one is sent: one says enough. */
RAIL_COLD static void refuse_eager(struct ofi_recv_comm *rc, uint64_t size, const struct ofi_recv_buffer *b) {
  struct ofi_frame frame;
  fail_too_large(&rc->base, size, b);
  if (rc->refusal.state != OFI_OP_IDLE) return;
  ofi_frame_begin(&frame, OFI_FRAME_TOO_LARGE);
  frame.size = size;
  (void)ofi_comm_post_frame(&rc->base, &rc->refusal, OFI_OP_REFUSAL, 0, &frame, rc->refusal_frame);
}

RAIL_COLD static void cancel_failed(struct ofi_comm *comm, int err) {
  (void)ofi_comm_fail(comm, RAIL_SYSTEM_ERROR, "the provider does not cancel a receive: fi_cancel: %s; check: another "
                      "protocol (RAIL_OFI_PROTOCOL=rma), another provider (RAIL_OFI_PROVIDER)",
                      ofi_fabric_strerror(err));
}

/* An EAGER has filled a buffer for which a tagged receive is posted. The sender sends nothing to that, but the memory
 * is libfabric's until it has ended. */
static void cancel_receive(struct ofi_recv_comm *rc, struct ofi_recv_buffer *b, uint32_t size) {
  b->cancelled = true;
  b->size = size;
  int err = ofi_op_cancel(&b->op);
  if (rail_unlikely(err)) cancel_failed(&rc->base, err);
  else if (b->op.state == OFI_OP_IDLE) complete_buffer(rc, b, size);
}

/* Copies the payload of an EAGER into its buffer. The comm fails where it is too large. */
RAIL_HOT_INLINE void fill(struct ofi_recv_comm *rc, struct ofi_recv_buffer *b, const void *payload, uint32_t size) {
  if (rail_unlikely(size > b->capacity)) {
    refuse_eager(rc, size, b);
    return;
  }
  if (size) rail_ordered_copy(b->data, payload, size);
  if (rail_likely(b->op.state == OFI_OP_IDLE)) complete_buffer(rc, b, size);
  else cancel_receive(rc, b, size);
}

/* ---- from test: messages for buffers that were granted ----------------------------------- */

/* A part of a message is in its buffer. */
static void handle_fin(struct ofi_recv_comm *rc, struct ofi_recv_buffer *b, const struct ofi_frame *frame) {
  if (!b->parts) {
    b->parts = b->left = (uint8_t)frame->parts;
    b->size = frame->size;
  }
  if (b->kind != OFI_BUFFER_RMA || b->parts != frame->parts || b->size != frame->size)
    protocol_error(&rc->base, frame, "a part that does not fit the others");
  else if (--b->left == 0) complete_granted(rc, b, frame->size);
}

/* DATA, FIN, TOO_LARGE: for a buffer that was granted, and that no EAGER has filled. */
static void handle_granted(struct ofi_recv_comm *rc, const struct ofi_frame *frame, const void *payload) {
  struct ofi_recv *recv = rc->by_grant[frame->grant % OFI_MAX_RECVS];
  struct ofi_recv_buffer *b = recv ? &recv->buffers[frame->index] : NULL;
  bool granted = recv && recv->granted && recv->grant_seq == frame->grant && frame->index < recv->n &&
                 ofi_recv_is_unfilled(b);
  if (rail_unlikely(!granted)) {
    protocol_error(&rc->base, frame, "data for a buffer that is not granted");
  } else if (frame->size > b->capacity) {
    if (frame->type == OFI_FRAME_TOO_LARGE) fail_too_large(&rc->base, frame->size, b);
    else protocol_error(&rc->base, frame, "more data than the buffer holds");
  } else if (frame->type == OFI_FRAME_FIN) {
    handle_fin(rc, b, frame);
  } else if (frame->type == OFI_FRAME_DATA && b->takes_data && !b->parts) {
    if (frame->size) rail_ordered_copy(b->data, payload, frame->size);
    complete_granted(rc, b, frame->size);
  } else {
    protocol_error(&rc->base, frame, "data that the buffer does not take so");
  }
}

/* A tagged receive has ended. */
void ofi_recv_done(struct ofi_op *op, const struct ofi_completion *completion) {
  struct ofi_recv_comm *rc = ofi_recv_comm_of(op->comm);
  struct ofi_recv_buffer *b = rail_container_of(op, struct ofi_recv_buffer, op);
  if (rail_first_error(&rc->base.error) != RAIL_OK) return;
  if (rail_unlikely(b->cancelled)) {
    if (completion->err == FI_ECANCELED) complete_buffer(rc, b, b->size);
    else if (completion->err) (void)ofi_comm_fail_op(op, completion);
    else
      (void)ofi_comm_fail(&rc->base, RAIL_REMOTE_ERROR, "protocol error: two messages for one buffer with tag %u; is "
                          "the peer of another release?", b->tag);
  } else if (rail_likely(!completion->err)) {
    complete_granted(rc, b, completion->size);
  } else if (completion->err == FI_ETRUNC) {
    (void)ofi_comm_fail(&rc->base, RAIL_BAD_USAGE, "a message of the peer's with tag %u is larger than the receive "
                        "buffer of %llu bytes; send and receive do not fit together", b->tag,
                        (unsigned long long)b->capacity);
  } else {
    (void)ofi_comm_fail_op(op, completion);
  }
}

/* All of a message is in its buffer that came by other means than an EAGER. */
static void complete_granted(struct ofi_recv_comm *rc, struct ofi_recv_buffer *b, uint64_t size) {
  rc->have.filled++;
  complete_buffer(rc, b, size);
  ofi_ack_soon(rc);
}

/* ---- from test: the end of a receive ------------------------------------------------------ */

/* All of a message is in its buffer: with the last buffer the receive is done. */
RAIL_HOT_INLINE void complete_buffer(struct ofi_recv_comm *rc, struct ofi_recv_buffer *b, uint64_t size) {
  struct ofi_recv *recv = b->op.request;
  uint64_t *stats = rc->base.stats;
  b->done = true;
  b->size = size;
  rail_stats_add(&stats[OFI_COMM_MESSAGES], 1);
  rail_stats_add(&stats[OFI_COMM_BYTES], size);
  if (b->mr) rail_net_memory_release(&b->mr->memory);
  if (--recv->pending) return;
  if (recv->seq == rc->first_incomplete) rc->first_incomplete++;
  ofi_request_end(&recv->base);
}

void ofi_recv_finish(struct ofi_recv *recv, int *sizes) {
  const struct ofi_recv_buffer *b = recv->buffers;
  for (unsigned int i = 0; sizes && i < recv->n; i++, b++) sizes[i] = (int)RAIL_MIN(b->size, INT_MAX);
  recv->base.magic = OFI_REQ_FREE;
}
