/* SPDX-License-Identifier: Apache-2.0
 * Completion queues that are polled, completions and control messages handed to ofi_progress.c, GRANTs and ACKs
 * that are due. */
#include "common/base/log.h"
#include "plugin/ofi/ofi_comm.h"

#define BATCH 16          /* completions that are read at once */
#define MAX_BATCHES 8     /* per poll and NIC: a call must return within a millisecond */
#define MAX_FAILURES 1024 /* of receives of control messages, one after the other: then nothing will come any more */

static struct ofi_comm *comm_of_frame(const struct ofi_endpoint *endpoint, const struct ofi_frame *frame) {
  struct ofi_comm *comm = frame->comm < endpoint->ncomms ? endpoint->comms[frame->comm] : NULL;
  return comm && comm->token == frame->token ? comm : NULL;
}

RAIL_COLD static void malformed(struct ofi_endpoint *endpoint, const void *bytes, size_t size) {
  struct ofi_frame frame;
  struct ofi_comm *comm = ofi_frame_decode_head(bytes, size, &frame) ? comm_of_frame(endpoint, &frame) : NULL;
  if (comm) endpoint->ops->malformed(comm, (unsigned int)frame.type, size);
}

/* Messages that are no frames, and frames for comms that are closed, are dropped: anybody may send them. */
static void frame_done(struct ofi_endpoint *endpoint, struct ofi_op *op, const struct ofi_completion *completion) {
  struct ofi_endpoint_nic *nic = op->nic;
  struct ofi_frame frame;
  const void *payload;
  op->state = OFI_OP_IDLE;
  if (rail_likely(!completion->err)) {
    nic->failed_receives = 0;
    if (ofi_frame_decode(op->data, completion->size, &frame, &payload)) {
      struct ofi_comm *comm = comm_of_frame(endpoint, &frame);
      if (comm) endpoint->ops->frame(comm, &frame, payload);
    } else {
      malformed(endpoint, op->data, completion->size);
    }
  } else if (completion->err != FI_ETRUNC && ++nic->failed_receives >= MAX_FAILURES) { /* anybody may send too much */
    ofi_shut(endpoint, completion->text);
  }
  if (ofi_endpoint_is_shut(endpoint)) return;
  STAILQ_INSERT_TAIL(&nic->used_receives, op, link);
  nic->nused++;
}

/* Receives of control messages are posted anew while nothing else is to be done, or once a quarter of them is used:
 * whoever waits for a message has it before that. */
static void post_used_receives(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic) {
  while (nic->nused && !ofi_endpoint_is_shut(endpoint) && !endpoint->ending) {
    struct ofi_op *op = STAILQ_FIRST(&nic->used_receives);
    STAILQ_REMOVE_HEAD(&nic->used_receives, link);
    nic->nused--;
    int err = ofi_op_receive_frame(endpoint, op);
    if (err) ofi_shut(endpoint, ofi_fabric_strerror(err));
  }
}

static void handle_completion(struct ofi_endpoint *endpoint, void *context, const struct ofi_completion *completion) {
  struct ofi_op *op = context;
  if (op->kind <= OFI_OP_PROBE) {
    if (op->kind == OFI_OP_FRAME_IN) {
      frame_done(endpoint, op, completion);
      return;
    }
  } else {
    op->comm->stall.busy = 0;
    rail_stats_add(&op->comm->stats[OFI_COMM_COMPLETIONS], 1);
  }
  ofi_op_end(op);
  endpoint->ops->completed(op, completion);
}

/* An error without an operation: completions were lost, or the queue does not work any more. A message that is injected
 * has no operation either, and the end of its peer is its connection's to notice; no provider is known to report one
 * (fi_inject leaves no pending entry over shm, and tcp drops it with a line of its log). */
static void read_error(struct ofi_endpoint *endpoint, const struct ofi_endpoint_nic *nic) {
  char text[256];
  struct fi_cq_err_entry entry = {0};
  ssize_t n = fi_cq_readerr(nic->cq, &entry, 0);
  if (n == -FI_EAGAIN) return;
  if (n < 0) {
    ofi_shut(endpoint, ofi_fabric_strerror((int)n));
    return;
  }
  const char *words = fi_cq_strerror(nic->cq, entry.prov_errno, entry.err_data, text, sizeof text);
  const struct ofi_completion failed = {.err = entry.err ? entry.err : FI_EOTHER, .prov_errno = entry.prov_errno,
                                        .text = words ? words : ""};
  if (entry.op_context) handle_completion(endpoint, entry.op_context, &failed);
  else if (!nic->max_inject || !(entry.flags & FI_SEND)) ofi_shut(endpoint, ofi_fabric_strerror(failed.err));
}

static bool poll_nic(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic) {
  struct fi_cq_msg_entry entries[BATCH];
  bool any = false;
  for (int batch = 0; batch < MAX_BATCHES && !ofi_endpoint_is_shut(endpoint); batch++) {
    ssize_t n = fi_cq_read(nic->cq, entries, BATCH);
    if (n == -FI_EAGAIN || n == 0) break;
    any = true;
    if (rail_unlikely(n == -FI_EAVAIL)) {
      read_error(endpoint, nic);
    } else if (rail_unlikely(n < 0)) {
      ofi_shut(endpoint, ofi_fabric_strerror((int)n));
    }
    for (ssize_t i = 0; i < n && !ofi_endpoint_is_shut(endpoint); i++) {
      const struct ofi_completion good = {.size = entries[i].len};
      handle_completion(endpoint, entries[i].op_context, &good);
    }
    if (nic->nused > nic->nreceives / 4) post_used_receives(endpoint, nic);
    if (n > 0 && n < BATCH) break;
  }
  if (nic->nused && !any) post_used_receives(endpoint, nic);
  if (rail_unlikely(!STAILQ_EMPTY(&nic->waiting_receives)))
    ofi_op_post_waiting(endpoint, nic, &nic->waiting_receives);
  if (rail_unlikely(!STAILQ_EMPTY(&nic->waiting))) ofi_op_post_waiting(endpoint, nic, &nic->waiting);
  return any;
}

/* Those that are in the list now. */
static void send_control(struct ofi_endpoint *endpoint, struct ofi_control_list *list) {
  const struct ofi_control_link *last = TAILQ_LAST(list, ofi_control_list);
  for (struct ofi_control_link *link = TAILQ_FIRST(list), *next; link && last; link = next) {
    next = link == last ? NULL : TAILQ_NEXT(link, link);
    ofi_endpoint_set_control(endpoint, link, OFI_CONTROL_NONE);
    endpoint->ops->send_control(link);
  }
}

bool ofi_poll(struct ofi_endpoint *endpoint) {
  bool any = false;
  endpoint->polls++;
  for (unsigned int i = 0; i < endpoint->nnics; i++) any |= poll_nic(endpoint, &endpoint->nics[i]);
  if (rail_unlikely(!TAILQ_EMPTY(&endpoint->control_now))) send_control(endpoint, &endpoint->control_now);
  return any;
}

bool ofi_poll_quietly(struct ofi_endpoint *endpoint) {
  bool any = ofi_poll(endpoint);
  send_control(endpoint, &endpoint->control_later);
  return any;
}
