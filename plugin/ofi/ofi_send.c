/* SPDX-License-Identifier: Apache-2.0
 *
 * A send from isend to its completion.
 *
 * isend matches its tag among the buffers that the receiver has granted, takes a request and posts the message:
 * inside a control message if it is small, else as the grant says: a tagged send, or writes into the buffer, one part
 * per path, each with a FIN behind it. The send is done when its operations have completed and the receiver has
 * acknowledged the message; so what was reported as sent has arrived, and close has nothing to wait for.
 *
 * GRANTs may overtake each other. A receive is matched when all before it are granted, so that a tag means the oldest
 * one.
 */
#include <limits.h>
#include <string.h>

#include "plugin/ofi/ofi_progress.h"

#define PART_ALIGN 4096 /* of the parts of a message */

/* ---- grants and acknowledgements -------------------------------------------- */

static void finish(struct ofi_send *send) {
  struct ofi_comm *comm = send->base.comm;
  rail_stats_add(&comm->stats[OFI_COMM_MESSAGES], 1);
  rail_stats_add(&comm->stats[OFI_COMM_BYTES], send->size);
  ofi_mr_release(send->mr);
  ofi_request_end(&send->base);
}

/* The receiver has the message of this buffer. */
static void acknowledge(struct ofi_slot *slot, unsigned int index) {
  struct ofi_send *send = slot->sends[index];
  slot->acked |= (uint8_t)(1u << index);
  slot->sends[index] = NULL;
  if (slot->acked == (1u << slot->n) - 1) slot->granted = false;
  send->acked = true;
  if (send->pending == 0) finish(send);
}

/* False: the receiver acknowledges what was not sent. */
static bool handle_ack(struct ofi_send_comm *sc, const struct ofi_ack *ack) {
  struct ofi_slot *slot = &sc->slots[ack->seq % OFI_MAX_RECVS];
  if (!slot->granted || slot->seq != ack->seq) return true; /* a later GRANT of this slot has implied it */
  uint32_t mask = ack->mask & ~(uint32_t)slot->acked;
  if (mask & ~(uint32_t)slot->taken) return false;
  for (unsigned int i = 0; i < slot->n; i++)
    if (mask & 1u << i) acknowledge(slot, i);
  return true;
}

/* Can it be written to, over whatever path? */
static bool can_write(const struct ofi_comm *comm) {
  for (unsigned int i = 0; i < comm->endpoint->nnics; i++) {
    const struct ofi_caps *caps = &comm->endpoint->nics[i].nic->caps;
    if (!caps->rma || !(caps->send_after_write || caps->delivery_complete)) return false;
  }
  return true;
}

static bool is_buffer_right(const struct ofi_comm *comm, const struct ofi_buffer *b) {
  if (b->kind == OFI_BUFFER_INLINE) return b->takes_data && b->size <= comm->max_inline;
  if (b->kind == OFI_BUFFER_RMA) return can_write(comm);
  return b->path < comm->npaths && !b->takes_data && comm->endpoint->nics[comm->paths[b->path].nic].nic->caps.tagged;
}

/* False: no GRANT that a receiver sends. The slot's last receive is done, or the receiver would not use it again. */
static bool handle_grant(struct ofi_send_comm *sc, const struct ofi_frame *frame) {
  struct ofi_slot *slot = &sc->slots[frame->seq % OFI_MAX_RECVS];
  if (frame->seq - sc->head >= OFI_MAX_RECVS || frame->nkeys != sc->base.remote_nics) return false;
  if (slot->granted && (slot->seq == frame->seq || slot->taken != (1u << slot->n) - 1)) return false;
  for (unsigned int i = 0; i < frame->nbuffers; i++)
    if (!is_buffer_right(&sc->base, &frame->buffers[i])) return false;
  for (unsigned int i = 0; slot->granted && i < slot->n; i++)
    if (!(slot->acked & 1u << i)) acknowledge(slot, i);
  slot->seq = frame->seq;
  slot->n = (uint8_t)frame->nbuffers;
  slot->taken = slot->acked = 0;
  slot->granted = true;
  memcpy(slot->buffers, frame->buffers, frame->nbuffers * sizeof frame->buffers[0]);
  for (slot = &sc->slots[sc->head % OFI_MAX_RECVS]; slot->granted && slot->seq == sc->head;
       slot = &sc->slots[sc->head % OFI_MAX_RECVS])
    sc->head++;
  return true;
}

void ofi_send_frame(struct ofi_send_comm *sc, const struct ofi_frame *frame) {
  bool good = true;
  if (frame->type == OFI_FRAME_REVOKE) {
    sc->base.revoked = true;
    ofi_send_revoked(sc);
    return;
  }
  for (unsigned int i = 0; i < frame->nacks && good; i++) good = handle_ack(sc, &frame->acks[i]);
  if (good && frame->type == OFI_FRAME_GRANT) good = handle_grant(sc, frame);
  if (!good || (frame->type != OFI_FRAME_GRANT && frame->type != OFI_FRAME_ACK))
    (void)ofi_comm_fail(&sc->base, RAIL_REMOTE_ERROR,
                        "protocol error: a control message of type %u for receive %u that "
                        "cannot be; is the peer of another release?",
                        frame->type, frame->seq);
}

/* The peer closed, and had received everything that it granted buffers for. */
void ofi_send_acknowledge_all(struct ofi_send_comm *sc) {
  for (unsigned int r = 0; r < OFI_MAX_RECVS; r++)
    for (unsigned int i = 0; i < sc->slots[r].n; i++)
      if (sc->slots[r].granted && sc->slots[r].taken & ~sc->slots[r].acked & 1u << i) acknowledge(&sc->slots[r], i);
}

/* After the peer's REVOKE: REVOKED, when nothing of ours is under way any more. */
void ofi_send_revoked(struct ofi_send_comm *sc) {
  if (sc->base.revoked && sc->base.nops == 0) ofi_comm_revoke(&sc->base);
}

/* ---- match -------------------------------------------------------------------- */

/* The oldest buffer of this tag that is granted and not taken. */
static struct ofi_slot *match(struct ofi_send_comm *sc, uint32_t tag, unsigned int *index) {
  for (uint32_t seq = sc->tail; seq != sc->head; seq++) {
    struct ofi_slot *slot = &sc->slots[seq % OFI_MAX_RECVS];
    bool full = !slot->granted || slot->seq != seq || slot->taken == (1u << slot->n) - 1;
    if (full && seq == sc->tail) sc->tail++;
    for (unsigned int i = 0; !full && i < slot->n; i++)
      if (!(slot->taken & 1u << i) && slot->buffers[i].tag == tag) {
        *index = i;
        return slot;
      }
  }
  return NULL;
}

static struct ofi_send *take_request(struct ofi_send_comm *sc) {
  struct ofi_request *r = SLIST_FIRST(&sc->free);
  if (rail_likely(r != NULL)) {
    SLIST_REMOVE_HEAD(&sc->free, free);
    return rail_container_of(r, struct ofi_send, base);
  }
  if (sc->sends_used == OFI_MAX_SENDS) return NULL;
  struct ofi_send *send = (struct ofi_send *)(void *)(sc->sends + sc->sends_used * sc->send_size);
  uint8_t *frames = (uint8_t *)sc->base.frames.bytes + (OFI_MAX_PATHS + 1) * OFI_FRAME_SIZE;
  send->base.comm = &sc->base;
  send->frames = frames + sc->sends_used * OFI_MAX_PATHS * OFI_FRAME_SIZE;
  sc->sends_used++;
  return send;
}

/* ---- post ----------------------------------------------------------------------- */

static rail_result_t post_fin(struct ofi_send *send, unsigned int part, unsigned int path) {
  struct ofi_part *p = &send->parts[part];
  struct ofi_frame frame = {.type = OFI_FRAME_FIN, .seq = send->seq, .index = send->index, .parts = send->nparts,
                            .size = send->size};
  p->fin.request = send;
  send->pending++;
  return ofi_comm_post_frame(send->base.comm, &p->fin, OFI_OP_FIN, path, &frame, send->frames + part * OFI_FRAME_SIZE);
}

/* The write of one part. With FI_ORDER_SAW the FIN may follow at once; else it waits for the write's completion. */
static rail_result_t post_part(struct ofi_send *send, const struct ofi_buffer *buffer, unsigned int part,
                               uint64_t each) {
  struct ofi_comm *comm = send->base.comm;
  uint64_t at = part * each;
  unsigned int path = ofi_comm_least_path(comm);
  struct ofi_op *op = &send->parts[part].data;
  op->request = send;
  op->data = (char *)(uintptr_t)send->data + at;
  op->size = RAIL_MIN(each, send->size - at);
  op->desc = send->mr->descs[comm->paths[path].nic];
  op->remote_addr = buffer->addr + at;
  op->key = buffer->keys[comm->paths[path].remote_nic];
  send->pending++;
  RAIL_TRY(ofi_comm_post(comm, op, OFI_OP_WRITE, path));
  return comm->endpoint->nics[op->nic].nic->caps.send_after_write ? post_fin(send, part, path) : RAIL_OK;
}

static rail_result_t post_writes(struct ofi_send *send, const struct ofi_buffer *buffer) {
  uint64_t most = send->size / RAIL_MAX((uint64_t)ofi_params.min_part, PART_ALIGN);
  uint64_t wanted = RAIL_MAX(RAIL_MIN(most, send->base.comm->npaths), 1);
  uint64_t each = RAIL_ROUND_UP(RAIL_DIV_UP(send->size, wanted), PART_ALIGN);
  send->nparts = (uint8_t)RAIL_DIV_UP(send->size, each); /* fewer, where parts are rounded up to the whole message */
  for (unsigned int i = 0; i < send->nparts; i++) RAIL_TRY(post_part(send, buffer, i, each));
  return RAIL_OK;
}

/* A message of no bytes for a buffer that takes none inside a control message: only the FIN. */
static rail_result_t post_empty(struct ofi_send *send) { return post_fin(send, 0, 0); }

static rail_result_t post_inline(struct ofi_send *send) {
  struct ofi_comm *comm = send->base.comm;
  struct ofi_op *op = &send->parts[0].data;
  struct ofi_frame frame = {.type = OFI_FRAME_DATA, .seq = send->seq, .index = send->index, .size = send->size};
  op->request = send;
  op->data = (void *)(uintptr_t)send->data;
  op->size = send->size;
  op->desc = send->mr ? send->mr->descs[comm->paths[0].nic] : NULL;
  send->pending++;
  rail_stats_add(&comm->stats[OFI_COMM_INLINE], 1);
  return ofi_comm_post_frame(comm, op, OFI_OP_DATA, 0, &frame, send->frames);
}

static rail_result_t post_tagged(struct ofi_send *send, const struct ofi_buffer *buffer) {
  struct ofi_comm *comm = send->base.comm;
  struct ofi_op *op = &send->parts[0].data;
  op->request = send;
  op->data = (void *)(uintptr_t)send->data;
  op->size = send->size;
  op->desc = send->mr ? send->mr->descs[comm->paths[buffer->path].nic] : NULL;
  op->tag = ofi_tag(comm->remote_index, send->seq, send->index);
  send->pending++;
  return ofi_comm_post(comm, op, OFI_OP_TSEND, buffer->path);
}

/* Both sides fail, with a line that says why. */
RAIL_COLD static rail_result_t refuse_size(struct ofi_send *send, const struct ofi_buffer *buffer) {
  struct ofi_comm *comm = send->base.comm;
  struct ofi_op *op = &send->parts[0].data;
  struct ofi_frame frame = {.type = OFI_FRAME_TOO_LARGE, .seq = send->seq, .index = send->index, .size = send->size};
  op->request = send;
  op->data = NULL;
  op->size = 0;
  send->pending++;
  (void)ofi_comm_post_frame(comm, op, OFI_OP_TOO_LARGE, 0, &frame, send->frames);
  return ofi_comm_fail(comm, RAIL_BAD_USAGE,
                       "a message of %llu bytes with tag %u meets a receive buffer of %llu bytes; "
                       "send and receive do not fit together",
                       (unsigned long long)send->size, buffer->tag, (unsigned long long)buffer->size);
}

static rail_result_t post_data(struct ofi_send *send, const struct ofi_buffer *buffer) {
  send->nparts = 1;
  if (rail_unlikely(send->size > buffer->size)) return refuse_size(send, buffer);
  if (buffer->takes_data && send->size <= send->base.comm->max_inline) return post_inline(send);
  if (buffer->kind == OFI_BUFFER_TAGGED) return post_tagged(send, buffer);
  return send->size ? post_writes(send, buffer) : post_empty(send);
}

/* ---- isend ------------------------------------------------------------------------- */

/* Nothing is granted for this tag. That has no limit: a receiver may post as late as it likes. A peer that is gone ends
 * it. Under the lock. */
static rail_result_t no_grant(struct ofi_send_comm *sc) {
  rail_stats_add(&sc->base.stats[OFI_COMM_WAITS_GRANT], 1);
  uint32_t faults = atomic_load_explicit(&sc->base.faults, memory_order_acquire) & OFI_PEER_FAULTS;
  return rail_unlikely(faults) ? ofi_comm_fail_faults(&sc->base, faults) : rail_first_error(&sc->base.error);
}

/* The buffers that it granted are its caller's again. */
RAIL_COLD static rail_result_t peer_revoked(struct ofi_send_comm *sc) {
  return ofi_comm_fail_faults(&sc->base, RAIL_OOB_PEER_CLOSED);
}

/* Under the lock. */
static rail_result_t send_message(struct ofi_send_comm *sc, const void *data, size_t size, uint32_t tag,
                                  struct ofi_mhandle *mr, void **request) {
  unsigned int index = 0;
  struct ofi_slot *slot = match(sc, tag, &index);
  if (!slot) {
    (void)ofi_endpoint_poll(sc->base.endpoint); /* the caller may have no request to test */
    slot = match(sc, tag, &index);
  }
  if (rail_unlikely(sc->base.revoked)) return peer_revoked(sc);
  if (!slot) return no_grant(sc);
  RAIL_TRY(rail_first_error(&sc->base.error)); /* the poll may have found one */
  struct ofi_send *send = take_request(sc);
  if (rail_unlikely(!send)) {
    rail_stats_add(&sc->base.stats[OFI_COMM_WAITS_ROOM], 1);
    return RAIL_OK;
  }
  ofi_request_begin(&send->base, OFI_REQ_SEND);
  send->data = data;
  send->size = size;
  send->mr = size ? mr : NULL;
  send->seq = slot->seq;
  send->index = (uint8_t)index;
  send->acked = false;
  send->pending = 1;
  ofi_mr_hold(send->mr);
  slot->taken |= (uint8_t)(1u << index);
  slot->sends[index] = send;
  *request = send;
  (void)post_data(send, &slot->buffers[index]); /* the request exists now: test reports a failure */
  send->pending--;
  return RAIL_OK;
}

RAIL_COLD static rail_result_t bad_send(const struct ofi_comm *comm, const void *data, size_t size,
                                        const struct ofi_mhandle *mr, void **request) {
  if (request) return ofi_mr_refuse(comm, "isend", mr, data, size);
  RAIL_WARN("RailOFI: isend: request is NULL; allowed: the address of a pointer");
  return RAIL_BAD_ARGUMENT;
}

rail_result_t ofi_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                        void **request) {
  (void)phandle; /* NCCL's profiler has no description of what a libfabric provider does */
  if (request) *request = NULL;
  struct ofi_comm *comm = ofi_comm_of(send_comm, OFI_SEND_COMM_MAGIC, "isend");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!request || !ofi_mr_covers(comm, mhandle, data, size) || size > RAIL_NET_MAX_BYTES))
    return bad_send(comm, data, size, mhandle, request);
  if (rail_unlikely(ofi_comm_status(comm) != RAIL_OK)) return ofi_comm_status(comm);
  if (rail_unlikely(!ofi_endpoint_try(comm->endpoint))) return RAIL_OK; /* another thread polls for this one */
  rail_result_t result = send_message(ofi_send_comm_of(comm), data, size, (uint32_t)tag, mhandle, request);
  ofi_endpoint_unlock(comm->endpoint);
  return result;
}

/* ---- from test ------------------------------------------------------------------------ */

void ofi_send_done(struct ofi_op *op, const struct ofi_completion *completion) {
  struct ofi_send *send = op->request;
  struct ofi_comm *comm = send->base.comm;
  send->pending--;
  /* A message that the receiver has acknowledged has arrived, whatever became of its operation. */
  if (rail_unlikely(completion->err && !send->acked))
    (void)ofi_comm_fail_op(op, completion);
  else if (op->kind == OFI_OP_WRITE && !comm->endpoint->nics[op->nic].nic->caps.send_after_write &&
           ofi_comm_status(comm) == RAIL_OK)
    (void)post_fin(send, (unsigned int)(rail_container_of(op, struct ofi_part, data) - send->parts), op->path);
  if (send->acked && send->pending == 0) finish(send);
}

void ofi_send_finish(struct ofi_send *send, int *sizes) {
  struct ofi_send_comm *sc = ofi_send_comm_of(send->base.comm);
  if (sizes) sizes[0] = send->size > INT_MAX ? INT_MAX : (int)send->size;
  send->base.magic = OFI_REQ_FREE;
  SLIST_INSERT_HEAD(&sc->free, &send->base, free);
}
