/* SPDX-License-Identifier: Apache-2.0
 *
 * What a receiver tells its sender, and what the sender keeps of it: GRANTs, which name buffers, and ACKs, which report
 * what has arrived and what credit is free again. A GRANT carries the same report, so an ACK goes only where no GRANT
 * does. Both go at once, or with a later poll, which finds the comm in a list of the endpoint's (struct
 * ofi_control_link) and calls ofi_control_send.
 *
 * GRANTs are made in the order of the receives: what stands before a receive that needs one is granted, too.
 *
 * GRANTs and ACKs may overtake each other: the sender keeps what has arrived, apply_* follows the order in which the
 * receiver made them. A GRANT is applied when all before it are here, an ACK when all GRANTs are that were made before
 * it: so both sides agree which EAGER has filled which buffer (match_eager).
 */
#include <string.h>

#include "plugin/ofi/ofi_progress.h"

/* ---- the steps, in their order; each is explained at its definition ---------------------- */

/* The receiver's: */
static struct ofi_recv *next_to_grant(struct ofi_recv_comm *rc);
static rail_result_t post_trecvs(struct ofi_recv_comm *rc, struct ofi_recv *recv);
static void add_grant(struct ofi_recv_comm *rc, struct ofi_recv *recv, struct ofi_frame *frame);
static void prepare_grant(struct ofi_recv_comm *rc, struct ofi_recv *first, struct ofi_frame *frame);
static void send_ack(struct ofi_recv_comm *rc);
static void control_failed(struct ofi_recv_comm *rc, struct ofi_op *op, const struct ofi_completion *completion);
/* The sender's: */
static bool keep_grant(struct ofi_send_comm *sc, uint32_t seq, const struct ofi_buffer *buffers, unsigned int n,
                       const struct ofi_report *report);
static bool apply_grant(struct ofi_send_comm *sc, struct ofi_grant *grant);
static bool match_eager(struct ofi_send_comm *sc, uint32_t tag);
static bool apply_held_ack(struct ofi_send_comm *sc);
static bool apply_report(struct ofi_send_comm *sc, const struct ofi_report *report);

/* ---- the receiver: GRANTs; tagged receives are posted before theirs goes ---------------- */

bool ofi_grant_is_needed(const struct ofi_recv_comm *rc, const struct ofi_recv *recv) {
  if (!rc->base.eager_count || rc->grant_wanted) return true;
  if (rc->have.seen - rc->have.freed >= rc->base.eager_count / 2) return true;
  for (unsigned int i = 0; i < recv->n; i++)
    if (recv->buffers[i].kind != OFI_BUFFER_INLINE && ofi_recv_is_unfilled(&recv->buffers[i])) return true;
  return false;
}

void ofi_grant_with_next_poll(struct ofi_recv_comm *rc) {
  rc->grants_due = true;
  ofi_endpoint_set_control(rc->base.endpoint, &rc->control, OFI_CONTROL_NOW);
}

void ofi_grant_all(struct ofi_recv_comm *rc) {
  const size_t each = OFI_BUFFER_SIZE(rc->base.endpoint->nnics);
  struct ofi_recv *first, *recv;
  struct ofi_frame frame;
  rc->grants_due = false;
  recv = next_to_grant(rc);
  while ((first = recv)) {
    ofi_frame_begin(&frame, OFI_FRAME_GRANT);
    frame.grant = recv->grant_seq;
    frame.nkeys = rc->base.endpoint->nnics;
    do {
      add_grant(rc, recv, &frame);
      rc->first_ungranted++;
      recv = next_to_grant(rc);
    } while (recv && (frame.nbuffers + recv->n) * each <= OFI_BUFFERS_MAX);
    prepare_grant(rc, first, &frame);
    int err = ofi_op_post(&first->grant);
    if (rail_unlikely(err)) {
      (void)ofi_comm_post_failed(&first->grant, err);
      return;
    }
  }
}

/* Has the provider no room for a tagged receive of it yet? */
static bool is_waiting(const struct ofi_recv *recv) {
  for (unsigned int i = 0; i < recv->n; i++)
    if (recv->buffers[i].op.state == OFI_OP_WAITING) return true;
  return false;
}

/* The next receive that is not granted and has messages to come, with its tagged receives posted: messages for those
 * that are not would fill the sender's queue, and the ones that are posted wait behind them. NULL: there is none, or
 * the provider has no room yet, or the comm has failed. */
static struct ofi_recv *next_to_grant(struct ofi_recv_comm *rc) {
  for (; rc->first_ungranted != rc->next_seq; rc->first_ungranted++) {
    struct ofi_recv *recv = ofi_recv_at(rc, rc->first_ungranted);
    if (recv->pending == 0) continue; /* EAGERs have filled all of it */
    if (!recv->trecvs_posted && post_trecvs(rc, recv) != RAIL_OK) return NULL;
    if (rail_likely(!is_waiting(recv))) return recv;
    ofi_grant_with_next_poll(rc);
    return NULL;
  }
  return NULL;
}

static void prepare_trecv(struct ofi_recv *recv, unsigned int index, unsigned int path) {
  struct ofi_recv_buffer *b = &recv->buffers[index];
  struct ofi_comm *comm = recv->base.comm;
  b->op.data = b->data;
  b->op.size = b->capacity;
  b->op.desc = b->mr ? b->mr->descs[comm->paths[path].local_nic] : NULL;
  b->op.tag = ofi_tag(comm->index, comm->token, recv->grant_seq, index);
  ofi_comm_prepare(comm, &b->op, OFI_OP_TRECV, path);
}

/* Posts the tagged receives of the next GRANT, whose number is in their tags. */
static rail_result_t post_trecvs(struct ofi_recv_comm *rc, struct ofi_recv *recv) {
  recv->grant_seq = rc->ngrants;
  recv->trecvs_posted = true;
  for (unsigned int i = 0; i < recv->n; i++) {
    if (recv->buffers[i].kind != OFI_BUFFER_TAGGED || !ofi_recv_is_unfilled(&recv->buffers[i])) continue;
    prepare_trecv(recv, i, ofi_comm_least_path(recv->base.comm));
    int err = ofi_op_post(&recv->buffers[i].op);
    if (rail_unlikely(err)) return ofi_comm_post_failed(&recv->buffers[i].op, err);
  }
  return RAIL_OK;
}

/* The address that a peer names to write to the buffer: a virtual one, or an offset in the registration. */
static uint64_t remote_addr(const struct ofi_comm *comm, const struct ofi_recv_buffer *b) {
  uint64_t addr = (uintptr_t)b->data;
  return !b->mr ? 0 : comm->device->rails[0]->caps.mr_virt_addr ? addr : addr - b->mr->memory.addr;
}

/* Adds the receive's GRANT to the frame. */
static void add_grant(struct ofi_recv_comm *rc, struct ofi_recv *recv, struct ofi_frame *frame) {
  for (unsigned int i = 0; i < recv->n; i++) {
    struct ofi_recv_buffer *b = &recv->buffers[i];
    enum ofi_buffer_kind kind = ofi_recv_is_unfilled(b) ? b->kind : OFI_BUFFER_FILLED;
    struct ofi_buffer *out = &frame->buffers[frame->nbuffers++];
    *out = (struct ofi_buffer){.addr = kind == OFI_BUFFER_RMA ? remote_addr(&rc->base, b) : 0,
                               .size = b->capacity, .tag = b->tag, .kind = kind,
                               .path = kind == OFI_BUFFER_TAGGED ? b->op.path : 0,
                               .takes_data = b->takes_data, .last = i + 1 == recv->n};
    if (kind == OFI_BUFFER_RMA && b->mr) memcpy(out->keys, b->mr->keys, sizeof b->mr->keys);
  }
  rc->by_grant[recv->grant_seq % OFI_MAX_RECVS] = recv;
  rc->ngrants++;
  recv->granted = true;
}

/* Prepares the frame for its post, by the operation and in the memory of the first receive that it is about. */
static void prepare_grant(struct ofi_recv_comm *rc, struct ofi_recv *first, struct ofi_frame *frame) {
  struct ofi_comm *comm = &rc->base;
  frame->report = rc->reported = rc->have;
  rc->grant_wanted = false;
  if (rc->control.due == OFI_CONTROL_LATER) ofi_endpoint_set_control(comm->endpoint, &rc->control, OFI_CONTROL_NONE);
  ofi_comm_prepare_report(comm, &first->grant, OFI_OP_GRANT, 0, frame, first->frame);
}

/* ---- the receiver: ACKs ----------------------------------------------------------------- */

void ofi_ack_soon(struct ofi_recv_comm *rc) {
  const struct ofi_report *r = &rc->have;
  uint32_t freed = r->freed - rc->reported.freed, credit_left = rc->base.eager_count - (r->seen - r->freed);
  bool now = freed && freed >= credit_left / 2; /* half of what the sender can have */
  if (rail_unlikely(rc->report_wanted) && (int32_t)(r->seen - rc->report_wanted_at.seen) >= 0 &&
      (int32_t)(r->filled - rc->report_wanted_at.filled) >= 0) {
    rc->report_wanted = false;
    now = true;
  }
  if (!now && rc->control.due) return; /* it is in a list already */
  if (memcmp(r, &rc->reported, sizeof *r) == 0) return;
  ofi_endpoint_set_control(rc->base.endpoint, &rc->control, now ? OFI_CONTROL_NOW : OFI_CONTROL_LATER);
}

/* ---- the receiver: both, from a poll ---------------------------------------------------- */

void ofi_control_send(struct ofi_control_link *link) {
  struct ofi_recv_comm *rc = rail_container_of(link, struct ofi_recv_comm, control);
  if (rail_unlikely(ofi_comm_status(&rc->base) != RAIL_OK)) return;
  if (rc->grants_due) ofi_grant_all(rc);
  uint32_t faults = atomic_load_explicit(&rc->base.pending_work, memory_order_relaxed) & OFI_PEER_FAULTS;
  if (faults || rc->sender_unreachable || memcmp(&rc->have, &rc->reported, sizeof rc->have) == 0) return;
  if (rail_unlikely(rc->ack.state != OFI_OP_IDLE)) return; /* its completion asks again */
  send_ack(rc);
}

/* Posts an ACK: what has arrived, and what credit is free. */
static void send_ack(struct ofi_recv_comm *rc) {
  struct ofi_frame frame;
  ofi_frame_begin(&frame, OFI_FRAME_ACK);
  frame.next_grant = rc->ngrants;
  frame.report = rc->reported = rc->have;
  ofi_comm_prepare_report(&rc->base, &rc->ack, OFI_OP_ACK, 0, &frame, rc->ack_frame);
  int err = ofi_op_post(&rc->ack);
  const struct ofi_completion failed = {.err = -err, .text = "it could not be posted"};
  if (rail_unlikely(err)) control_failed(rc, &rc->ack, &failed);
}

void ofi_control_done(struct ofi_op *op, const struct ofi_completion *completion) {
  struct ofi_recv_comm *rc = ofi_recv_comm_of(op->comm);
  if (rail_first_error(&rc->base.error) != RAIL_OK) return;
  if (rail_unlikely(completion->err)) control_failed(rc, op, completion);
  else if (op->kind == OFI_OP_ACK) ofi_ack_soon(rc);
}

/* A sender that has closed takes no control message, and what it had sent is here. So one that cannot be sent is an
 * error where a receive waits for more, now or later. */
static void control_failed(struct ofi_recv_comm *rc, struct ofi_op *op, const struct ofi_completion *completion) {
  rc->sender_unreachable = true;
  if (atomic_load_explicit(&rc->base.outstanding, memory_order_relaxed)) (void)ofi_comm_fail_op(op, completion);
}

/* ---- the sender: GRANTs ----------------------------------------------------------------- */

/* All are kept before the first is applied. */
bool ofi_handle_grants(struct ofi_send_comm *sc, const struct ofi_frame *frame) {
  struct ofi_grant *grant;
  uint32_t seq = frame->grant;
  if (frame->nkeys != sc->base.remote_nics) return false;
  for (unsigned int i = 0, n; i < frame->nbuffers; i += n) {
    for (n = 1; !frame->buffers[i + n - 1].last; n++) continue; /* ofi_frame_decode has checked that there is one */
    if (!keep_grant(sc, seq++, &frame->buffers[i], n, &frame->report)) return false;
  }
  for (grant = &sc->grants[sc->grants_applied % OFI_MAX_GRANTS]; grant->kept && grant->seq == sc->grants_applied;
       grant = &sc->grants[sc->grants_applied % OFI_MAX_GRANTS])
    if (!apply_grant(sc, grant) || !apply_held_ack(sc)) return false;
  return true;
}

/* Can it be written to, over whatever path? */
static bool can_write(const struct ofi_comm *comm) {
  for (unsigned int i = 0; i < comm->endpoint->nnics; i++) {
    const struct ofi_caps *caps = &comm->endpoint->nics[i].device_nic->caps;
    if (!caps->rma || !(caps->send_after_write || caps->delivery_complete)) return false;
  }
  return true;
}

static bool is_buffer_right(const struct ofi_comm *comm, const struct ofi_buffer *b) {
  switch (b->kind) {
    case OFI_BUFFER_FILLED: return comm->eager_count != 0;
    case OFI_BUFFER_INLINE: return b->takes_data && b->size <= comm->max_inline;
    case OFI_BUFFER_RMA: return can_write(comm);
    case OFI_BUFFER_TAGGED: break;
  }
  return b->path < comm->npaths && !b->takes_data && comm->paths[b->path].nic->device_nic->caps.tagged;
}

/* Keeps the GRANT of n buffers. False: none that a receiver makes. When it makes one, that which was at its index is
 * filled. */
static bool keep_grant(struct ofi_send_comm *sc, uint32_t seq, const struct ofi_buffer *buffers, unsigned int n,
                       const struct ofi_report *report) {
  struct ofi_grant *grant = &sc->grants[seq % OFI_MAX_GRANTS];
  if (seq - sc->grants_applied >= OFI_MAX_GRANTS || grant->kept) return false;
  for (unsigned int i = 0; i < n; i++)
    if (!is_buffer_right(&sc->base, &buffers[i])) return false;
  grant->seq = seq;
  grant->n = (uint8_t)n;
  grant->taken = 0;
  grant->kept = true;
  grant->report = *report;
  memcpy(grant->buffers, buffers, n * sizeof *buffers);
  return true;
}

/* The oldest GRANT of those that are not applied yet is here. */
static bool apply_grant(struct ofi_send_comm *sc, struct ofi_grant *grant) {
  if (!apply_report(sc, &grant->report)) return false;
  for (unsigned int i = 0; i < grant->n; i++) {
    struct ofi_buffer *b = &grant->buffers[i];
    if (b->kind == OFI_BUFFER_FILLED || match_eager(sc, b->tag)) grant->taken |= (uint8_t)(1u << i);
  }
  if (grant->taken == (1u << grant->n) - 1) grant->kept = false;
  sc->grants_applied++;
  sc->asked = false;
  sc->unmatched_since_ns = 0;
  return true;
}

/* Has an EAGER of this tag filled the buffer, that the receiver had not seen when it made the GRANT? */
static bool match_eager(struct ofi_send_comm *sc, uint32_t tag) {
  for (uint32_t seq = sc->report.seen; seq != sc->next_eager; seq++) {
    unsigned int i = seq % OFI_MAX_GRANTS;
    if (sc->in_flight[i].has_grant || sc->in_flight[i].tag != tag) continue;
    sc->in_flight[i].has_grant = true;
    return true;
  }
  return false;
}

/* ---- the sender: ACKs, and the report of both ------------------------------------------- */

/* Of those that came too early the one that knows most is kept. */
bool ofi_handle_ack(struct ofi_send_comm *sc, const struct ofi_frame *frame) {
  uint32_t ahead = frame->next_grant - sc->grants_applied;
  if (ahead == 0) {
    /* One that was overtaken says nothing new. */
    bool old = (int32_t)(frame->report.seen - sc->report.seen) < 0 ||
               (int32_t)(frame->report.freed - sc->report.freed) < 0 ||
               (int32_t)(frame->report.filled - sc->report.filled) < 0;
    return old || apply_report(sc, &frame->report);
  }
  if (ahead > OFI_MAX_GRANTS) return (int32_t)ahead < 0; /* overtaken by GRANTs */
  if (sc->report_held && (int32_t)(frame->next_grant - sc->held_seq) < 0) return true;
  if (sc->report_held && frame->next_grant == sc->held_seq && (int32_t)(frame->report.seen - sc->held.seen) < 0)
    return true;
  sc->report_held = true;
  sc->held_seq = frame->next_grant;
  sc->held = frame->report;
  return true;
}

/* An ACK that came too early, once the GRANTs that were made before it are applied. */
static bool apply_held_ack(struct ofi_send_comm *sc) {
  if (!sc->report_held || sc->held_seq != sc->grants_applied) return true;
  sc->report_held = false;
  return apply_report(sc, &sc->held);
}

/* What isend and close know of the receiver, from here on. False: the receiver reports what was not sent. */
static bool apply_report(struct ofi_send_comm *sc, const struct ofi_report *report) {
  const struct ofi_report *old = &sc->report;
  if (report->seen - old->seen > sc->next_eager - old->seen || report->freed - old->freed > report->seen - old->freed ||
      report->filled - old->filled > sc->granted_sends - old->filled)
    return false;
  if (report->freed != old->freed) { /* if that does not help, isend asks again */
    sc->asked = false;
    sc->unmatched_since_ns = 0;
  }
  sc->report = *report;
  ofi_comm_set_unreported(sc, report->seen != sc->next_eager || report->filled != sc->granted_sends);
  return true;
}
