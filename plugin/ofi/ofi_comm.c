/* SPDX-License-Identifier: Apache-2.0
 * What both kinds of comm share: made and freed, the first error in words, control messages. */
#include "plugin/ofi/ofi_comm.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- made and freed ---------------------------------------------------------- */

/* Frames of both kinds: PINGs, PONGs, REVOKE or REVOKED, ASK or the refusal of a size. */
#define FIXED_FRAMES ((2 * OFI_MAX_PATHS + 2) * OFI_FRAME_SIZE)
#define PONG_FRAMES (OFI_MAX_PATHS * OFI_FRAME_SIZE)
#define REVOKE_FRAME (2 * OFI_MAX_PATHS * OFI_FRAME_SIZE)
#define LAST_FRAME ((2 * OFI_MAX_PATHS + 1) * OFI_FRAME_SIZE)

static bool new_sender(struct ofi_comm *comm) {
  struct ofi_send_comm *sc = ofi_send_comm_of(comm);
  SLIST_INIT(&sc->free);
  sc->grants_applied = sc->grants_used = sc->next_eager = sc->report.seen = sc->report.freed = OFI_FIRST_SEQ;
  sc->sends = calloc(OFI_MAX_SENDS, sizeof *sc->sends);
  /* What each part of a send posts: one frame. */
  if (!sc->sends ||
      !ofi_memory_alloc(comm->endpoint, FIXED_FRAMES + OFI_MAX_SENDS * OFI_MAX_PATHS * OFI_FRAME_SIZE, &comm->frames))
    return false;
  sc->ask_frame = (uint8_t *)comm->frames.bytes + LAST_FRAME;
  sc->send_frames = (uint8_t *)comm->frames.bytes + FIXED_FRAMES;
  return true;
}

static bool new_receiver(struct ofi_comm *comm) {
  struct ofi_recv_comm *rc = ofi_recv_comm_of(comm);
  rc->next_seq = rc->first_incomplete = rc->first_ungranted = rc->ngrants = OFI_FIRST_SEQ;
  rc->have.seen = rc->have.freed = OFI_FIRST_SEQ;
  rc->reported = rc->have;
  SLIST_INIT(&rc->free_flushes);
  for (unsigned int i = 0; i < OFI_MAX_RECVS; i++) {
    rc->recvs[i].base = (struct ofi_request){.magic = OFI_REQ_FREE, .comm = comm};
    for (unsigned int b = 0; b < OFI_MAX_GROUP; b++) rc->recvs[i].buffers[b].op.request = &rc->recvs[i];
    rc->flushes[i].base = (struct ofi_request){.magic = OFI_REQ_FREE, .comm = comm};
    SLIST_INSERT_HEAD(&rc->free_flushes, &rc->flushes[i].base, free);
  }
  rc->payloads = malloc(OFI_MAX_EAGER * (size_t)ofi_device_inline(comm->device) + 1);
  for (unsigned int i = OFI_MAX_EAGER; i > 0; i--) rc->free_payloads[rc->nfree_payloads++] = (uint8_t)(i - 1);
  /* An ACK, a GRANT for each receive. */
  if (!rc->payloads ||
      !ofi_memory_alloc(comm->endpoint, FIXED_FRAMES + (1 + OFI_MAX_RECVS) * OFI_FRAME_MAX, &comm->frames))
    return false;
  rc->refusal_frame = (uint8_t *)comm->frames.bytes + LAST_FRAME;
  rc->ack_frame = (uint8_t *)comm->frames.bytes + FIXED_FRAMES;
  for (unsigned int i = 0; i < OFI_MAX_RECVS; i++) rc->recvs[i].frame = rc->ack_frame + (1 + i) * OFI_FRAME_MAX;
  return true;
}

static void free_memory(struct ofi_comm *comm) {
  comm->magic = 0;
  if (comm->sender) {
    free(ofi_send_comm_of(comm)->sends);
    free(ofi_send_comm_of(comm));
  } else {
    free(ofi_recv_comm_of(comm)->payloads);
    free(ofi_recv_comm_of(comm));
  }
}

struct ofi_comm *ofi_comm_new(bool sender, struct ofi_endpoint *endpoint) {
  struct ofi_send_comm *sc = sender ? calloc(1, sizeof *sc) : NULL;
  struct ofi_recv_comm *rc = sender ? NULL : calloc(1, sizeof *rc);
  struct ofi_comm *comm = sc ? &sc->base : rc ? &rc->base : NULL;
  if (!comm) goto no_memory;
  comm->magic = sender ? OFI_SEND_COMM_MAGIC : OFI_RECV_COMM_MAGIC;
  comm->sender = sender;
  comm->endpoint = endpoint;
  comm->device = endpoint->device;
  comm->oob_fd = -1;
  LIST_INIT(&comm->mhandles);
  if (rail_random_bytes(&comm->token, sizeof comm->token) != RAIL_OK || !(sender ? new_sender : new_receiver)(comm))
    goto no_memory;
  if (ofi_endpoint_add(endpoint, comm, &comm->index)) return comm;
  ofi_memory_free(&comm->frames);

no_memory:
  if (comm) free_memory(comm);
  RAIL_WARN("RailOFI: a connection over %s: out of memory", endpoint->device->name);
  return NULL;
}

static void release_peers(struct ofi_comm *comm) {
  for (unsigned int i = 0; i < comm->npaths; i++) {
    struct ofi_path *path = &comm->paths[i];
    if (path->peer) ofi_endpoint_release(comm->endpoint, path->local_nic, path->peer);
    path->peer = NULL;
  }
}

int ofi_comm_connect(struct ofi_comm *comm, const struct ofi_offer *mine, const struct ofi_offer *peer) {
  struct ofi_endpoint *endpoint = comm->endpoint;
  comm->max_inline = RAIL_MIN(mine->max_inline, peer->max_inline);
  comm->eager_count = comm->max_inline ? RAIL_MIN(mine->eager_count, peer->eager_count) : 0;
  comm->remote_index = peer->comm;
  comm->remote_token = peer->token;
  comm->remote_nics = peer->nnics;
  comm->peer_process = peer->process;
  release_peers(comm); /* of an earlier dial */
  comm->npaths = RAIL_MAX(endpoint->nnics, peer->nnics);
  for (unsigned int i = 0; i < comm->npaths; i++) {
    struct ofi_path *path = &comm->paths[i];
    path->local_nic = (uint8_t)(i % endpoint->nnics);
    path->nic = &endpoint->nics[path->local_nic];
    path->remote_nic = (uint8_t)(i % peer->nnics);
    int err = ofi_endpoint_resolve(endpoint, path->local_nic, &peer->addrs[path->remote_nic], &path->peer);
    if (err) {
      path->peer = NULL;
      return err;
    }
    path->to = path->peer->addr;
  }
  return 0;
}

void ofi_comm_close_mrs(struct ofi_comm *comm) {
  struct ofi_mhandle *mr;
  LIST_FOREACH(mr, &comm->mhandles, link)
    for (unsigned int i = 0; i < OFI_MAX_PATHS; i++) {
      if (mr->mrs[i]) (void)fi_close(&mr->mrs[i]->fid);
      mr->mrs[i] = NULL;
    }
}

void ofi_comm_free(struct ofi_comm *comm) {
  struct ofi_mhandle *mr;
  ofi_comm_close_mrs(comm);
  while ((mr = LIST_FIRST(&comm->mhandles))) {
    LIST_REMOVE(mr, link);
    mr->memory.magic = 0;
    free(mr);
  }
  if (!comm->sender)
    ofi_endpoint_set_control(comm->endpoint, &ofi_recv_comm_of(comm)->control, OFI_CONTROL_NONE);
  else if (ofi_send_comm_of(comm)->unreported)
    comm->endpoint->nunreported--;
  ofi_endpoint_remove(comm->endpoint, comm->index);
  ofi_stats_comm_end(comm);
  if (comm->endpoint->kept) return;
  release_peers(comm);
  if (!comm->sender) ofi_memory_free(&ofi_recv_comm_of(comm)->flush_target);
  ofi_memory_free(&comm->frames);
  free_memory(comm);
}

/* ---- the first error -------------------------------------------------------------- */

rail_result_t ofi_comm_fail(struct ofi_comm *comm, rail_result_t result, const char *fmt, ...) {
  if (rail_first_error_set(&comm->error, result) && !atomic_load(&comm->stopped)) {
    char why[640];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    ofi_stats_count(comm->device->name, OFI_DEVICE_ERRORS);
    RAIL_WARN("RailOFI: %s %s over %s (%s): %s", comm->sender ? "sending to" : "receiving from", comm->peer_text,
              comm->device->name, comm->device->rails[0]->provider, why);
  }
  return rail_first_error(&comm->error);
}

static const char *operation(enum ofi_op_kind kind) {
  switch (kind) {
    case OFI_OP_FRAME_IN: return "receive of control messages";
    case OFI_OP_PROBE: return "probe (fi_send)";
    case OFI_OP_PING: return "first message (fi_send)";
    case OFI_OP_REVOKE: return "last message (fi_send)";
    case OFI_OP_GRANT: return "control message for a receive (fi_send)";
    case OFI_OP_ACK: return "report (fi_send)";
    case OFI_OP_TRECV: return "receive (fi_trecv)";
    case OFI_OP_TSEND: return "send (fi_tsend)";
    case OFI_OP_EAGER:
    case OFI_OP_DATA: return "send (fi_send)";
    case OFI_OP_WRITE: return "send (fi_write)";
    case OFI_OP_FIN: return "control message behind a send (fi_send)";
    case OFI_OP_TOO_LARGE:
    case OFI_OP_REFUSAL: return "refusal (fi_send)";
    case OFI_OP_ASK: return "control message for a report (fi_send)";
    case OFI_OP_FLUSH: return "flush (fi_read)";
  }
  return "operation";
}

/* Errors of the peer or of the way to it; all others are this side's. */
static bool is_remote(int err) {
  switch (err) {
    case FI_ECONNRESET:
    case FI_ECONNREFUSED:
    case FI_ECONNABORTED:
    case FI_ENOTCONN:
    case FI_EHOSTUNREACH:
    case FI_EHOSTDOWN:
    case FI_ENETUNREACH:
    case FI_ETIMEDOUT:
    case FI_ESHUTDOWN:
    case FI_EIO:
    case FI_EACCES:
    case FI_EKEYREJECTED:
    case FI_EREMOTEIO:
    case FI_ECANCELED: return true;
    default: return false;
  }
}

/* Bytes, the frame's too. */
static size_t size_of(const struct ofi_op *op) {
  switch (op->kind) {
    case OFI_OP_TRECV:
    case OFI_OP_TSEND:
    case OFI_OP_WRITE:
    case OFI_OP_FLUSH: return op->size;
    default: return op->head_size + op->size;
  }
}

rail_result_t ofi_comm_fail_op(struct ofi_op *op, const struct ofi_completion *completion) {
  struct ofi_comm *comm = op->comm;
  return ofi_comm_fail(
      comm, is_remote(completion->err) ? RAIL_REMOTE_ERROR : RAIL_SYSTEM_ERROR,
      "%s of %zu bytes with %s: %s (error %d; the provider says %d: %s); %u requests outstanding; check: "
      "the peer's log, the fabric between the two, fi_pingpong -p '%s'",
      operation(op->kind), size_of(op), op->nic->device_nic->name, ofi_fabric_strerror(completion->err),
      completion->err, completion->prov_errno, completion->text ? completion->text : "",
      atomic_load(&comm->outstanding), comm->device->rails[0]->provider);
}

static const struct {
  uint32_t bit;
  rail_result_t result;
  const char *what, *check;
} fault_rows[] = { /* the most specific one first */
  {RAIL_OOB_PEER_LOST, RAIL_REMOTE_ERROR, "the peer's process or host is gone: the oob connection broke",
   "the peer's log; was it killed (dmesg: out of memory)?"},
  {RAIL_OOB_HOST_SILENT, RAIL_REMOTE_ERROR, "the peer's host has not answered for RAIL_OFI_DEADLINE",
   "is the host up, is the network of the oob connection (NCCL_SOCKET_IFNAME) cut?"},
  {RAIL_OOB_PEER_SILENT, RAIL_REMOTE_ERROR, "the peer's process has not answered for RAIL_OFI_PEER_TIMEOUT",
   "is it stopped (SIGSTOP, debugger, checkpoint), is its host swapping?"},
  {RAIL_OOB_PEER_CLOSED, RAIL_REMOTE_ERROR, "the peer closed the connection while requests were outstanding",
   "the peer's log: did it abort?"},
};

rail_result_t ofi_comm_fail_faults(struct ofi_comm *comm, uint32_t faults) {
  for (size_t i = 0; i < RAIL_COUNT_OF(fault_rows); i++)
    if (faults & fault_rows[i].bit)
      return ofi_comm_fail(comm, fault_rows[i].result, "%s; %u requests outstanding; check: %s", fault_rows[i].what,
                           atomic_load(&comm->outstanding), fault_rows[i].check);
  return rail_first_error(&comm->error);
}

/* ---- posting --------------------------------------------------------------------------- */

RAIL_COLD rail_result_t ofi_comm_post_failed(struct ofi_op *op, int err) {
  const struct ofi_completion failed = {.err = -err, .text = "it could not be posted"};
  return ofi_comm_fail_op(op, &failed);
}

rail_result_t ofi_comm_ping(struct ofi_comm *comm, unsigned int path) {
  struct ofi_frame frame;
  ofi_frame_begin(&frame, OFI_FRAME_PING);
  frame.path = path;
  uint8_t *bytes = (uint8_t *)comm->frames.bytes + path * OFI_FRAME_SIZE;
  return ofi_comm_post_frame(comm, &comm->pings[path], OFI_OP_PING, path, &frame, bytes);
}

void ofi_comm_revoke(struct ofi_comm *comm) {
  struct ofi_frame frame;
  ofi_frame_begin(&frame, comm->sender ? OFI_FRAME_REVOKED : OFI_FRAME_REVOKE);
  if (comm->revoke.state != OFI_OP_IDLE) return;
  (void)ofi_comm_post_frame(comm, &comm->revoke, OFI_OP_REVOKE, 0, &frame,
                            (uint8_t *)comm->frames.bytes + REVOKE_FRAME);
}

bool ofi_comm_ask(struct ofi_send_comm *sc) {
  struct ofi_frame frame;
  if (sc->ask.state != OFI_OP_IDLE) return false;
  ofi_frame_begin(&frame, OFI_FRAME_ASK);
  frame.next_eager = sc->next_eager;
  frame.granted_sends = sc->granted_sends;
  (void)ofi_comm_post_frame(&sc->base, &sc->ask, OFI_OP_ASK, 0, &frame, sc->ask_frame);
  return true;
}

/* ---- where nothing moves ----------------------------------------------------------------- */

#define THIRDS 3 /* of RAIL_OFI_DEADLINE. A PING, and counts that differ, are of the end of the first */

static struct ofi_counts counts_of(struct ofi_comm *comm) {
  if (comm->sender) {
    const struct ofi_send_comm *sc = ofi_send_comm_of(comm);
    return (struct ofi_counts){.eagers = sc->next_eager, .filled = sc->granted_sends, .grants = sc->grants_applied};
  }
  const struct ofi_recv_comm *rc = ofi_recv_comm_of(comm);
  return (struct ofi_counts){.eagers = rc->have.seen, .filled = rc->have.filled, .grants = rc->ngrants};
}

/* An error says nothing more than no answer does: a peer that has closed takes no message. */
static void post_probe(struct ofi_comm *comm, struct ofi_op *op, struct ofi_frame *frame, uint8_t *bytes) {
  if (op->state != OFI_OP_IDLE) return;
  ofi_comm_prepare_frame(comm, op, OFI_OP_PROBE, frame->path, frame, bytes);
  (void)ofi_op_post(op);
}

void ofi_comm_pinged(struct ofi_comm *comm, const struct ofi_frame *ping) {
  struct ofi_frame frame;
  const struct ofi_counts counts = counts_of(comm);
  comm->verified |= 1u << ping->path;
  if (!ping->wants_pong || ping->path >= comm->npaths || atomic_load(&comm->stopped)) return;
  ofi_frame_begin(&frame, OFI_FRAME_PONG);
  frame.path = ping->path;
  frame.is_idle = comm->noutgoing == 0;
  frame.next_eager = counts.eagers;
  frame.filled = counts.filled;
  frame.grants = counts.grants;
  post_probe(comm, &comm->pongs[frame.path], &frame,
             (uint8_t *)comm->frames.bytes + PONG_FRAMES + frame.path * OFI_FRAME_SIZE);
}

bool ofi_comm_ponged(struct ofi_comm *comm, const struct ofi_frame *pong) {
  struct ofi_stall *s = &comm->stall;
  s->ponged |= s->pinged & 1u << pong->path;
  s->peer_idle = pong->is_idle;
  s->theirs = (struct ofi_counts){.eagers = pong->next_eager, .filled = pong->filled, .grants = pong->grants};
  return pong->path < comm->npaths;
}

static void ping_all(struct ofi_comm *comm) {
  struct ofi_frame frame;
  comm->stall.ponged = 0;
  for (unsigned int i = 0; i < comm->npaths; i++) {
    ofi_frame_begin(&frame, OFI_FRAME_PING);
    frame.wants_pong = 1;
    frame.path = i;
    comm->stall.pinged |= 1u << i;
    post_probe(comm, &comm->pings[i], &frame, (uint8_t *)comm->frames.bytes + i * OFI_FRAME_SIZE);
  }
}

static bool same_counts(const struct ofi_counts *a, const struct ofi_counts *b) {
  return a->eagers == b->eagers && a->filled == b->filled && a->grants == b->grants;
}

static void fail_stalled(struct ofi_comm *comm, const char *what) {
  (void)ofi_comm_fail(comm, RAIL_REMOTE_ERROR, "%s for %.1f s (RAIL_OFI_DEADLINE), though the peer's process answers "
                      "over TCP; %u requests outstanding; check: the fabric between the two, how many connections the "
                      "provider carries, fi_pingpong -p '%s'", what, (double)ofi_params.deadline_ms / 1e3,
                      atomic_load(&comm->outstanding), comm->device->rails[0]->provider);
}

/* What has left one side, and is not at the other. */
static void fail_lost(struct ofi_comm *comm, const struct ofi_counts *mine, const struct ofi_counts *theirs) {
  const struct ofi_counts *from = comm->sender ? mine : theirs, *to = comm->sender ? theirs : mine;
  uint32_t messages = from->eagers - to->eagers + from->filled - to->filled, grants = to->grants - from->grants;
  (void)ofi_comm_fail(comm, RAIL_REMOTE_ERROR, "the provider has lost what it had completed: %u messages and %u "
                      "receives that are granted have not arrived, though it carries others; %u requests outstanding; "
                      "check: did the fabric between the two fail meanwhile? FI_LOG_LEVEL=warn says more",
                      messages, grants, atomic_load(&comm->outstanding));
}

/* While the peer's process is silent over the oob connection nothing can be said of the fabric: how long that may be is
 * RAIL_OFI_PEER_TIMEOUT. A PING needs nothing of the peer's caller: its watch thread polls, which the PINGs of the oob
 * connection wake. */
void ofi_comm_check_stall(struct ofi_comm *comm) {
  struct ofi_stall *s = &comm->stall;
  const unsigned int paths = (1u << comm->npaths) - 1;
  const struct ofi_counts mine = counts_of(comm);
  atomic_fetch_and(&comm->pending_work, ~RAIL_OOB_STALLED);
  if (atomic_exchange(&comm->peer_silent, false)) {
    *s = (struct ofi_stall){0};
    return;
  }
  bool answered = s->pinged && s->ponged == paths;
  bool differ = answered && s->peer_idle && !comm->noutgoing && !same_counts(&mine, &s->theirs);
  bool as_before = s->differing && same_counts(&mine, &s->last_mine) && same_counts(&s->theirs, &s->last_theirs);
  s->busy = comm->noutgoing ? s->busy + 1 : 0;
  s->unanswered = s->pinged && !answered ? s->unanswered + 1 : 0;
  s->differing = !differ ? 0 : as_before ? s->differing + 1 : 1;
  s->last_mine = mine;
  s->last_theirs = s->theirs;
  if (s->busy >= THIRDS) fail_stalled(comm, "libfabric has completed none of the connection's operations");
  else if (s->unanswered >= THIRDS - 1) fail_stalled(comm, "the fabric has carried no message there and back");
  else if (s->differing >= THIRDS - 1) fail_lost(comm, &mine, &s->theirs);
  else ping_all(comm);
}

unsigned int ofi_comm_least_path(const struct ofi_comm *comm) {
  unsigned int least = 0;
  for (unsigned int i = 1; i < comm->npaths; i++)
    if (comm->paths[i].nic->bytes_outstanding < comm->paths[least].nic->bytes_outstanding) least = i;
  return least;
}
