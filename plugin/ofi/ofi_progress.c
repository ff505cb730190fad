/* SPDX-License-Identifier: Apache-2.0
 *
 * test, and where completions and control messages go. Behind its poll test looks at what the watch thread found.
 */
#include "plugin/ofi/ofi_progress.h"

#include "common/base/clock.h"

/* Time and polls (a caller may stand still for longer) in which operations of a peer that ended may still complete. */
#define GONE_MS 1000
#define GONE_POLLS 256

/* ---- the steps of test, in their order; each is explained at its definition -------------- */

static rail_result_t progress_request(struct ofi_request *r);
RAIL_COLD static rail_result_t handle_pending(struct ofi_request *r, uint32_t work, bool found);

/* ---- test ----------------------------------------------------------------------------- */

rail_result_t ofi_test(void *request, int *done, int *sizes) {
  struct ofi_request *r = request;
  if (rail_unlikely(!r || r == RAIL_NET_OPTIONAL_RECV)) return rail_net_refuse_request("RailOFI", r);
  if (rail_unlikely(r->magic != OFI_REQ_SEND && r->magic != OFI_REQ_RECV && r->magic != OFI_REQ_FLUSH))
    return rail_net_refuse_request("RailOFI", r);
  if (!ofi_request_is_complete(r)) {
    rail_result_t result = progress_request(r);
    /* A request that is done is done, whatever happened to others. */
    if (!ofi_request_is_complete(r)) return result;
  }
  if (r->magic == OFI_REQ_SEND) ofi_send_finish(rail_container_of(r, struct ofi_send, base), sizes);
  else if (r->magic == OFI_REQ_RECV) ofi_recv_finish(rail_container_of(r, struct ofi_recv, base), sizes);
  else ofi_flush_finish(rail_container_of(r, struct ofi_flush, base));
  *done = 1;
  return RAIL_OK;
}

/* Polls the endpoint, unless another thread does. RAIL_OK, or the comm's error. */
static rail_result_t progress_request(struct ofi_request *r) {
  struct ofi_comm *comm = r->comm;
  RAIL_TRY(ofi_comm_status(comm));
  if (rail_unlikely(!ofi_endpoint_try(comm->endpoint))) return RAIL_OK; /* another thread polls for this one */
  bool found = ofi_poll(comm->endpoint);
  if (!ofi_request_is_complete(r)) {
    const uint32_t work = atomic_load_explicit(&comm->pending_work, memory_order_acquire);
    if (rail_unlikely(work)) (void)handle_pending(r, work, found);
  }
  ofi_endpoint_unlock(comm->endpoint);
  return rail_first_error(&comm->error);
}

/* The request is not done, and the watch thread has found something. When a poll has found nothing, all that the peer
 * sent before it went has been handled; on an endpoint with other connections that may never be. A receiver that closed
 * with nothing outstanding has every message that was sent to buffers of it; libfabric has yet to complete their
 * operations. */
RAIL_COLD static rail_result_t handle_pending(struct ofi_request *r, uint32_t work, bool found) {
  struct ofi_comm *comm = r->comm;
  const uint32_t faults = work & OFI_PEER_FAULTS;
  if (work & OFI_FLUSH_LATER) ofi_flush_begin_later(ofi_recv_comm_of(comm));
  if (work & RAIL_OOB_STALLED) ofi_comm_check_stall(comm);
  if (!faults || r->magic == OFI_REQ_FLUSH) return RAIL_OK; /* a flush needs no peer */
  if (!comm->gone_deadline) {
    comm->gone_deadline = rail_deadline_in_ms(GONE_MS);
    comm->gone_polls = comm->endpoint->polls + GONE_POLLS;
  }
  bool over = rail_deadline_passed(comm->gone_deadline) && comm->endpoint->polls >= comm->gone_polls;
  bool has_all = comm->sender && work & RAIL_OOB_PEER_CLOSED && !(work & RAIL_OOB_PEER_GAVE_UP);
  return (found || has_all) && !over ? RAIL_OK : ofi_comm_fail_faults(comm, faults);
}

/* ---- from ofi_poll: struct ofi_endpoint_ops ----------------------------------------------- */

/* What a comm that deregMr or close has ended still posted is over; its requests are not looked at any more. */
static void on_completion(struct ofi_op *op, const struct ofi_completion *completion) {
  struct ofi_comm *comm = op->comm;
  if (rail_likely(!atomic_load_explicit(&comm->stopped, memory_order_relaxed))) {
    switch (op->kind) {
      case OFI_OP_GRANT:
      case OFI_OP_ACK: ofi_control_done(op, completion); break;
      case OFI_OP_TRECV: ofi_recv_done(op, completion); break;
      case OFI_OP_TSEND:
      case OFI_OP_EAGER:
      case OFI_OP_DATA:
      case OFI_OP_WRITE:
      case OFI_OP_FIN:
      case OFI_OP_TOO_LARGE: ofi_send_done(op, completion); break;
      case OFI_OP_FLUSH: ofi_flush_done(op, completion); break;
      case OFI_OP_PING:
      case OFI_OP_ASK:
        if (completion->err) (void)ofi_comm_fail_op(op, completion);
        break;
      case OFI_OP_PROBE:
      case OFI_OP_REVOKE:
      case OFI_OP_REFUSAL:
      case OFI_OP_FRAME_IN: break;
    }
  }
  if (rail_unlikely(comm->revoked_due)) ofi_send_revoked(ofi_send_comm_of(comm));
  if (rail_unlikely(comm->closed && comm->nops == 0)) ofi_comm_free(comm);
}

/* So is an EAGER, which on_eager gets. */
static bool is_of_a_message(enum ofi_frame_type type) {
  return type == OFI_FRAME_DATA || type == OFI_FRAME_FIN;
}

static void on_frame(struct ofi_comm *comm, const struct ofi_frame *frame, const void *payload) {
  bool ends = frame->type == (comm->sender ? OFI_FRAME_REVOKE : OFI_FRAME_REVOKED);
  if (rail_unlikely(frame->type == OFI_FRAME_PING)) ofi_comm_pinged(comm, frame);
  else if (rail_unlikely(!comm->npaths)) return; /* the peer is not known yet: nothing can be answered */
  else if (rail_unlikely(ofi_comm_status(comm) != RAIL_OK && !ends))
    comm->late_frames += is_of_a_message(frame->type); /* close sees that something comes */
  else if (comm->sender) ofi_send_on_frame(ofi_send_comm_of(comm), frame);
  else ofi_recv_on_frame(ofi_recv_comm_of(comm), frame, payload);
}

/* A sender receives none. */
RAIL_COLD static void reject_eager(struct ofi_send_comm *sc, const struct ofi_frame_wire *wire) {
  struct ofi_frame frame;
  ofi_frame_begin(&frame, OFI_FRAME_EAGER);
  frame.eager = le32toh(wire->seq);
  ofi_send_on_frame(sc, &frame);
}

/* As on_frame. */
static void on_eager(struct ofi_comm *comm, const struct ofi_frame_wire *wire, size_t size) {
  if (rail_unlikely(!comm->npaths)) return;
  if (rail_unlikely(ofi_comm_status(comm) != RAIL_OK)) comm->late_frames++;
  else if (rail_unlikely(comm->sender)) reject_eager(ofi_send_comm_of(comm), wire);
  else ofi_recv_on_eager(ofi_recv_comm_of(comm), wire, size);
}

static void on_malformed(struct ofi_comm *comm, unsigned int type, size_t size) {
  (void)ofi_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: a control message of type %u and %zu bytes that is "
                      "none of this version's; is the peer of another release?", type, size);
}

static void unbind(struct ofi_comm *comm) {
  ofi_comm_close_mrs(comm);
  ofi_memory_close_mrs(&comm->frames);
  if (!comm->sender) ofi_memory_close_mrs(&ofi_recv_comm_of(comm)->flush_target);
}

static void shut(struct ofi_comm *comm, const char *why) {
  comm->nops = comm->noutgoing = 0;
  ofi_comm_close_mrs(comm);
  if (comm->closed) ofi_comm_free(comm);
  else
    (void)ofi_comm_fail(comm, RAIL_SYSTEM_ERROR, "the endpoint was closed: %s; check: the earlier lines of this log",
                        why);
}

const struct ofi_endpoint_ops ofi_progress_ops = {
  .completed = on_completion, .eager = on_eager, .frame = on_frame, .malformed = on_malformed,
  .send_control = ofi_control_send, .unbind = unbind, .shut = shut};
