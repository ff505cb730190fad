/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations: posted, waiting for room, cancelled.
 */
#include "plugin/ofi/ofi_op.h"

#include <string.h>

#include "plugin/ofi/ofi_comm.h"

/* A message that the provider copies and never completes: the endpoint's max_inject. */
#define INJECTED 1
static bool can_inject(const struct ofi_op *op) {
  return op->head_size + op->size <= op->nic->max_inject;
}

/* A frame and its payload, side by side. Returns their size. */
static size_t gather(const struct ofi_op *op, uint8_t *bytes) {
  memcpy(bytes, op->head, OFI_FRAME_SIZE); /* most have no more */
  if (op->head_size > OFI_FRAME_SIZE)
    memcpy(bytes + OFI_FRAME_SIZE, (uint8_t *)op->head + OFI_FRAME_SIZE, op->head_size - OFI_FRAME_SIZE);
  if (op->size) memcpy(bytes + op->head_size, op->data, op->size);
  return op->head_size + op->size;
}

static int call_recv(struct ofi_op *op) {
  return (int)fi_recv(op->nic->ep, op->data, op->size, op->desc, FI_ADDR_UNSPEC, &op->context);
}

/* The calls of libfabric that move data. 0, INJECTED, or libfabric's error. Always inlined, and nothing between it and
 * the call: a stack of isend is short to read. */
__attribute__((always_inline)) static inline int post_now(struct ofi_op *op) {
  const struct ofi_endpoint_nic *nic = op->nic;
  switch (op->kind) {
    case OFI_OP_FRAME_IN: return call_recv(op);
    case OFI_OP_TRECV:
      return (int)fi_trecv(nic->ep, op->data, op->size, op->desc, FI_ADDR_UNSPEC, op->tag, 0, &op->context);
    case OFI_OP_TSEND: return (int)fi_tsend(nic->ep, op->data, op->size, op->desc, op->to, op->tag, &op->context);
    case OFI_OP_FLUSH:
      return (int)fi_read(nic->ep, op->data, op->size, op->desc, op->to, op->remote_addr, op->key, &op->context);
    case OFI_OP_WRITE: {
      const struct iovec iov = {.iov_base = op->data, .iov_len = op->size};
      const struct fi_rma_iov rma = {.addr = op->remote_addr, .len = op->size, .key = op->key};
      const struct fi_msg_rma msg = {.msg_iov = &iov, .desc = &op->desc, .iov_count = 1, .addr = op->to,
                                     .rma_iov = &rma, .rma_iov_count = 1, .context = &op->context};
      /* Without FI_ORDER_SAW the completion, for which the FIN waits, must mean that the bytes are in place. */
      uint64_t delivery = nic->nic->caps.send_after_write ? 0 : FI_DELIVERY_COMPLETE;
      return (int)fi_writemsg(nic->ep, &msg, FI_COMPLETION | delivery);
    }
    case OFI_OP_PROBE:
    case OFI_OP_PING:
    case OFI_OP_REVOKE:
    case OFI_OP_GRANT:
    case OFI_OP_ACK:
    case OFI_OP_EAGER:
    case OFI_OP_DATA:
    case OFI_OP_FIN:
    case OFI_OP_TOO_LARGE:
    case OFI_OP_REFUSAL:
    case OFI_OP_ASK: break;
  }
  if (can_inject(op)) {
    uint8_t bytes[OFI_MAX_INJECT];
    size_t size = gather(op, bytes);
    int err = (int)fi_inject(nic->ep, bytes, size, op->to);
    return err ? err : INJECTED;
  }
  const struct iovec iov[2] = {{.iov_base = op->head, .iov_len = op->head_size},
                               {.iov_base = op->data, .iov_len = op->size}};
  void *desc[2] = {op->head_desc, op->desc};
  const struct fi_msg msg = {.msg_iov = iov, .desc = desc, .iov_count = op->size ? 2 : 1, .addr = op->to,
                             .context = &op->context};
  return (int)fi_sendmsg(nic->ep, &msg, FI_COMPLETION);
}

static struct ofi_op_list *list_of(const struct ofi_op *op) {
  return op->kind == OFI_OP_TRECV ? &op->nic->waiting_receives : &op->nic->waiting;
}

static void begin(struct ofi_op *op, enum ofi_op_state state) {
  struct ofi_endpoint *endpoint = op->comm->endpoint;
  op->state = state;
  op->nic->bytes_outstanding += op->size;
  op->comm->nops++;
  op->comm->noutgoing += op->kind > OFI_OP_TRECV;
  endpoint->nops++;
  ofi_timer_set(OFI_FIRST_MS);
}

void ofi_op_end(struct ofi_op *op) {
  struct ofi_endpoint *endpoint = op->comm->endpoint;
  op->state = OFI_OP_IDLE;
  op->nic->bytes_outstanding -= op->size;
  op->comm->nops--;
  op->comm->noutgoing -= op->kind > OFI_OP_TRECV;
  endpoint->nops--;
}

/* Does an operation of the list keep this one from being posted? What goes to one peer keeps its order; a peer that
 * cannot be reached keeps nothing from others. Receives are posted in turn. */
static bool is_behind_another(const struct ofi_op_list *list, const struct ofi_op *op) {
  const struct ofi_op *other;
  if (rail_likely(STAILQ_EMPTY(list))) return false;
  if (op->kind == OFI_OP_TRECV) return true;
  STAILQ_FOREACH(other, list, link)
    if (other->to == op->to) return true;
  return false;
}

int ofi_op_post(struct ofi_op *op) {
  struct ofi_op_list *list = list_of(op);
  if (rail_unlikely(ofi_endpoint_is_shut(op->comm->endpoint))) return -FI_ESHUTDOWN;
  int err = is_behind_another(list, op) ? -FI_EAGAIN : post_now(op);
  if (rail_likely(err == INJECTED)) {
    err = 0;
  } else if (rail_likely(err == 0)) {
    begin(op, OFI_OP_POSTED);
  } else if (err == -FI_EAGAIN) {
    begin(op, OFI_OP_WAITING);
    STAILQ_INSERT_TAIL(list, op, link);
    err = 0;
  }
  return err;
}

/* Ahead of all receives that wait: those complete only when GRANTs and messages find a place. */
int ofi_op_receive_frame(struct ofi_endpoint *endpoint, struct ofi_op *op) {
  if (rail_unlikely(ofi_endpoint_is_shut(endpoint))) return -FI_ESHUTDOWN;
  int err = call_recv(op);
  if (rail_likely(err == 0)) {
    op->state = OFI_OP_POSTED;
  } else if (err == -FI_EAGAIN) {
    op->state = OFI_OP_WAITING;
    STAILQ_INSERT_HEAD(&op->nic->waiting_receives, op, link);
    err = 0;
  }
  return err;
}

int ofi_op_cancel(struct ofi_op *op) {
  if (ofi_endpoint_is_shut(op->comm->endpoint)) return 0;
  if (op->state == OFI_OP_WAITING) {
    STAILQ_REMOVE(list_of(op), op, ofi_op, link);
    ofi_op_end(op);
  } else if (op->state == OFI_OP_POSTED) {
    int err = (int)fi_cancel(&op->nic->ep->fid, &op->context);
    return err == -FI_ENOENT ? 0 : err; /* it has ended, and its completion is yet to be read */
  }
  return 0;
}

/* Data of a comm that has failed, and the FIN of what was perhaps never written, must not go out any more. */
static bool must_not_send(const struct ofi_op *op) {
  bool data = op->kind == OFI_OP_TSEND || op->kind == OFI_OP_EAGER || op->kind == OFI_OP_DATA ||
              op->kind == OFI_OP_WRITE || op->kind == OFI_OP_FIN;
  return data && rail_first_error(&op->comm->error) != RAIL_OK;
}

/* A FIN that found no room must not be tried while its write is under way: when that fails, a provider may make a new
 * connection for what comes next, over which the FIN would arrive. */
static bool is_ahead_of_its_write(const struct ofi_op *op) {
  return op->kind == OFI_OP_FIN && rail_container_of(op, struct ofi_part, fin)->data.state != OFI_OP_IDLE;
}

static struct ofi_peer *peer_of(const struct ofi_op *op) {
  return op->kind == OFI_OP_FLUSH ? op->nic->self : op->comm->paths[op->path].peer;
}

/* Tries those that wait, in order; of what goes to a peer that takes nothing now, only the first. */
void ofi_op_post_waiting(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic, struct ofi_op_list *list) {
  const bool receives = list == &nic->waiting_receives;
  nic->passes++;
  for (struct ofi_op *op = STAILQ_FIRST(list), *next; op && !endpoint->shut; op = next) {
    next = STAILQ_NEXT(op, link);
    if (!receives && peer_of(op)->full == nic->passes) continue;
    int err = must_not_send(op) ? -FI_ECANCELED : is_ahead_of_its_write(op) ? -FI_EAGAIN : post_now(op);
    if (err == -FI_EAGAIN) {
      if (receives) return;
      peer_of(op)->full = nic->passes;
      continue;
    }
    STAILQ_REMOVE(list, op, ofi_op, link);
    if (err == 0) {
      op->state = OFI_OP_POSTED;
      continue;
    }
    if (rail_unlikely(op->kind == OFI_OP_FRAME_IN)) { /* no GRANT would find a place */
      op->state = OFI_OP_IDLE;
      ofi_shut(endpoint, ofi_fabric_strerror(err));
      return;
    }
    const struct ofi_completion result = {.err = err == INJECTED ? 0 : -err, .text = "it could not be posted"};
    ofi_op_end(op);
    endpoint->ops->completed(op, &result);
    next = STAILQ_FIRST(list); /* others may have left the list */
  }
}
