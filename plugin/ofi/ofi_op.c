/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation from its post to its completion: posted, or waiting for room; polled for, and handed to ofi_progress.c;
 * ended with the endpoint.
 */
#include "plugin/ofi/ofi_op.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/ofi/ofi_comm.h"

#define BATCH 16          /* completions that are read at once */
#define MAX_BATCHES 8     /* per poll and NIC: a call must return within a millisecond */
#define MAX_FAILURES 1024 /* of receives of control messages, one after the other: then nothing will come any more */

/* ---- the steps of an operation, in their order; each is explained at its definition ----- */

__attribute__((always_inline)) static inline int post_now(struct ofi_op *op);
static void begin_op(struct ofi_op *op, enum ofi_op_state state);
RAIL_HOT_INLINE bool poll_nic(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic);
__attribute__((noinline)) static void handle_entries(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic,
                                                     const struct fi_cq_msg_entry *entries, ssize_t n);
RAIL_HOT_INLINE void frame_done(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic, struct ofi_op *op,
                                size_t size);
static void op_done(struct ofi_endpoint *endpoint, struct ofi_op *op, const struct ofi_completion *completion);
static void end_op(struct ofi_op *op);
RAIL_COLD static void read_error(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic);
static void post_used_receives(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic);
static void post_waiting(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic, struct ofi_op_list *list);
static void send_from(struct ofi_endpoint *endpoint, struct ofi_control_list *list);

/* ---- posting ---------------------------------------------------------------------------- */

/* What a post returns beside libfabric's errors, which are negative: */
#define NOT_TRIED 1 /* libfabric was not asked */
#define INJECTED 2  /* it has copied the message and will report no completion */
/* Not now, in contrast to an error: it was not tried, or libfabric has no room. */
static inline bool is_not_now(int err) { return err == NOT_TRIED || err == -FI_EAGAIN; }

static struct ofi_op_list *list_of(const struct ofi_op *op) {
  return op->kind == OFI_OP_TRECV ? &op->nic->waiting_receives : &op->nic->waiting;
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
  int err = is_behind_another(list, op) ? NOT_TRIED : post_now(op);
  if (rail_likely(err == INJECTED)) {
    err = 0;
  } else if (rail_likely(err == 0)) {
    begin_op(op, OFI_OP_POSTED);
  } else if (is_not_now(err)) {
    begin_op(op, OFI_OP_WAITING);
    STAILQ_INSERT_TAIL(list, op, link);
    err = 0;
  }
  return err;
}

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

/* Gives it to libfabric: the calls that move data. 0, INJECTED, or libfabric's error. Always inlined, and nothing
 * between it and the call: a stack of isend is short to read. */
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
      uint64_t delivery = nic->device_nic->caps.send_after_write ? 0 : FI_DELIVERY_COMPLETE;
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

/* It is outstanding: posted, or waiting. */
static void begin_op(struct ofi_op *op, enum ofi_op_state state) {
  struct ofi_endpoint *endpoint = op->comm->endpoint;
  op->state = state;
  op->nic->bytes_outstanding += op->size;
  op->comm->nops++;
  op->comm->noutgoing += op->kind > OFI_OP_TRECV;
  endpoint->nops++;
  ofi_timer_set(OFI_FIRST_MS);
}

bool ofi_op_inject(const struct ofi_endpoint *endpoint, const struct ofi_endpoint_nic *nic, const void *bytes,
                   size_t size, fi_addr_t to) {
  if (rail_unlikely(ofi_endpoint_is_shut(endpoint))) return false;
  return rail_likely(STAILQ_EMPTY(&nic->waiting)) && fi_inject(nic->ep, bytes, size, to) == 0;
}

/* Ahead of all receives that wait: those complete only when GRANTs and messages are received. Not among a
 * comm's outstanding operations: it is the endpoint's. */
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
    end_op(op);
  } else if (op->state == OFI_OP_POSTED) {
    int err = (int)fi_cancel(&op->nic->ep->fid, &op->context);
    return err == -FI_ENOENT ? 0 : err; /* it has ended, and its completion is yet to be read */
  }
  return 0;
}

/* ---- polling ---------------------------------------------------------------------------- */

bool ofi_poll(struct ofi_endpoint *endpoint) {
  bool any = false;
  endpoint->polls++;
  for (unsigned int i = 0; i < endpoint->nnics; i++) any |= poll_nic(endpoint, &endpoint->nics[i]);
  if (rail_unlikely(!TAILQ_EMPTY(&endpoint->control_now))) send_from(endpoint, &endpoint->control_now);
  return any;
}

bool ofi_poll_background(struct ofi_endpoint *endpoint) {
  bool any = ofi_poll(endpoint);
  send_from(endpoint, &endpoint->control_later);
  return any;
}

/* Reads what has completed, then posts what has waited. */
RAIL_HOT_INLINE bool poll_nic(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic) {
  struct fi_cq_msg_entry entries[BATCH];
  bool any = false;
  for (int batch = 0; batch < MAX_BATCHES && !ofi_endpoint_is_shut(endpoint); batch++) {
    ssize_t n = fi_cq_read(nic->cq, entries, BATCH);
    if (n == -FI_EAGAIN || n == 0) break;
    any = true;
    if (rail_likely(n > 0)) handle_entries(endpoint, nic, entries, n);
    else if (n == -FI_EAVAIL) read_error(endpoint, nic);
    else ofi_shut(endpoint, ofi_fabric_strerror((int)n));
    if (nic->nused > nic->nreceives / 4) post_used_receives(endpoint, nic);
    if (n > 0 && n < BATCH) break;
  }
  if (nic->nused && !any) post_used_receives(endpoint, nic);
  if (rail_unlikely(!STAILQ_EMPTY(&nic->waiting_receives))) post_waiting(endpoint, nic, &nic->waiting_receives);
  if (rail_unlikely(!STAILQ_EMPTY(&nic->waiting))) post_waiting(endpoint, nic, &nic->waiting);
  return any;
}

/* ---- polling: completions --------------------------------------------------------------- */

/* Completions of operations that have succeeded. Not inlined: a poll that finds nothing needs none of its registers. */
__attribute__((noinline)) static void handle_entries(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic,
                                                     const struct fi_cq_msg_entry *entries, ssize_t n) {
  for (ssize_t i = 0; i < n && !ofi_endpoint_is_shut(endpoint); i++) {
    struct ofi_op *op = entries[i].op_context;
    if (op->kind == OFI_OP_FRAME_IN) frame_done(endpoint, nic, op, entries[i].len);
    else op_done(endpoint, op, &(struct ofi_completion){.size = entries[i].len});
  }
}

/* The comm that a frame names; NULL: none that is open. */
static inline struct ofi_comm *find_comm(const struct ofi_endpoint *endpoint, uint32_t index, uint64_t token) {
  struct ofi_comm *comm = index < endpoint->ncomms ? endpoint->comms[index] : NULL;
  return comm && comm->token == token ? comm : NULL;
}

RAIL_COLD static void malformed(struct ofi_endpoint *endpoint, const void *bytes, size_t size) {
  struct ofi_frame frame;
  if (!ofi_frame_decode_head(bytes, size, &frame)) return;
  struct ofi_comm *comm = find_comm(endpoint, frame.comm, frame.token);
  if (comm) endpoint->ops->malformed(comm, (unsigned int)frame.type, size);
}

/* Its receive has ended, and is to be posted anew. */
static void add_used_receive(const struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic, struct ofi_op *op) {
  op->state = OFI_OP_IDLE;
  if (ofi_endpoint_is_shut(endpoint)) return;
  STAILQ_INSERT_TAIL(&nic->used_receives, op, link);
  nic->nused++;
}

/* It is no EAGER. Not inlined: an EAGER needs no room for it. */
__attribute__((noinline)) static void other_frame_done(struct ofi_endpoint *endpoint, const void *bytes, size_t size) {
  struct ofi_frame frame;
  const void *payload;
  if (rail_likely(ofi_frame_decode(bytes, size, &frame, &payload))) {
    struct ofi_comm *comm = find_comm(endpoint, frame.comm, frame.token);
    if (comm) endpoint->ops->frame(comm, &frame, payload); /* on_frame, ofi_progress.c */
  } else {
    malformed(endpoint, bytes, size);
  }
}

/* A control message has come. Messages that are no frames, and frames for comms that are closed, are dropped: anybody
 * may send them. */
RAIL_HOT_INLINE void frame_done(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic, struct ofi_op *op,
                                size_t size) {
  const struct ofi_frame_wire *wire = op->data;
  nic->failed_receives = 0;
  if (rail_likely(ofi_is_eager(wire, size))) {
    struct ofi_comm *comm = find_comm(endpoint, le32toh(wire->comm), le64toh(wire->token));
    if (rail_likely(comm != NULL)) endpoint->ops->eager(comm, wire, size); /* on_eager, ofi_progress.c */
  } else {
    other_frame_done(endpoint, op->data, size);
  }
  add_used_receive(endpoint, nic, op);
}

/* An operation of a comm has ended. */
static void op_done(struct ofi_endpoint *endpoint, struct ofi_op *op, const struct ofi_completion *completion) {
  if (op->kind != OFI_OP_PROBE) { /* which is no progress of a comm */
    op->comm->stall.busy = 0;
    rail_stats_add(&op->comm->stats[OFI_COMM_COMPLETIONS], 1);
  }
  end_op(op);
  endpoint->ops->completed(op, completion); /* on_completion, ofi_progress.c */
}

/* It is over, and idle again. */
static void end_op(struct ofi_op *op) {
  struct ofi_endpoint *endpoint = op->comm->endpoint;
  op->state = OFI_OP_IDLE;
  op->nic->bytes_outstanding -= op->size;
  op->comm->nops--;
  op->comm->noutgoing -= op->kind > OFI_OP_TRECV;
  endpoint->nops--;
}

/* Anybody may send a message that is too large. */
RAIL_COLD static void frame_failed(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic, struct ofi_op *op,
                                   const struct ofi_completion *completion) {
  if (completion->err != FI_ETRUNC && ++nic->failed_receives >= MAX_FAILURES) ofi_shut(endpoint, completion->text);
  add_used_receive(endpoint, nic, op);
}

/* An error without an operation: completions were lost, or the queue does not work any more. A message that is injected
 * has no operation either, and the end of its peer is its connection's to notice; no provider is known to give one
 * (fi_inject leaves no pending entry over shm, and tcp drops it with a line of its log). */
RAIL_COLD static void read_error(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic) {
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
  struct ofi_op *op = entry.op_context;
  if (op && op->kind == OFI_OP_FRAME_IN) frame_failed(endpoint, nic, op, &failed);
  else if (op) op_done(endpoint, op, &failed);
  else if (!nic->max_inject || !(entry.flags & FI_SEND)) ofi_shut(endpoint, ofi_fabric_strerror(failed.err));
}

/* ---- polling: what is posted, or sent, by a poll ---------------------------------------- */

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
static void post_waiting(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic, struct ofi_op_list *list) {
  const bool receives = list == &nic->waiting_receives;
  nic->passes++;
  for (struct ofi_op *op = STAILQ_FIRST(list), *next; op && !endpoint->shut; op = next) {
    next = STAILQ_NEXT(op, link);
    if (!receives && peer_of(op)->full == nic->passes) continue;
    int err = must_not_send(op) ? -FI_ECANCELED : is_ahead_of_its_write(op) ? NOT_TRIED : post_now(op);
    if (is_not_now(err)) {
      if (receives) return;
      peer_of(op)->full = nic->passes;
      continue;
    }
    STAILQ_REMOVE(list, op, ofi_op, link);
    if (err == 0) {
      op->state = OFI_OP_POSTED;
      continue;
    }
    if (rail_unlikely(op->kind == OFI_OP_FRAME_IN)) { /* no GRANT would be received */
      op->state = OFI_OP_IDLE;
      ofi_shut(endpoint, ofi_fabric_strerror(err));
      return;
    }
    const struct ofi_completion result = {.err = err == INJECTED ? 0 : -err, .text = "it could not be posted"};
    end_op(op);
    endpoint->ops->completed(op, &result);
    next = STAILQ_FIRST(list); /* others may have left the list */
  }
}

/* Has the GRANTs and ACKs sent of those that are in the list now. */
static void send_from(struct ofi_endpoint *endpoint, struct ofi_control_list *list) {
  const struct ofi_control_link *last = TAILQ_LAST(list, ofi_control_list);
  for (struct ofi_control_link *link = TAILQ_FIRST(list), *next; link && last; link = next) {
    next = link == last ? NULL : TAILQ_NEXT(link, link);
    ofi_endpoint_set_control(endpoint, link, OFI_CONTROL_NONE);
    endpoint->ops->send_control(link); /* ofi_control_send, ofi_grant.c */
  }
}

/* ---- shutting the endpoint: at its end, or because it cannot go on -------------------------- */

static void warn_open(const char *what, const struct ofi_nic *nic, int err) {
  RAIL_WARN("RailOFI: closing %s of provider %s: %s: %s; what it held goes when the process ends", nic->name,
            nic->provider, what, ofi_fabric_strerror(err));
}

void ofi_close_fid(struct fid *fid, const char *what, const struct ofi_nic *nic) {
  int err = fi_close(fid);
  if (err) warn_open(what, nic, err);
}

/* Registrations may be bound to an endpoint (FI_MR_ENDPOINT): cxi closes it only after all of them. Elsewhere they may
 * be closed only when nothing uses them any more. */
static int close_endpoint(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *n) {
  int err = fi_close(&n->ep->fid);
  if (err != -FI_EBUSY) return err;
  for (uint32_t i = 0; i < endpoint->ncomms; i++)
    if (endpoint->comms[i]) endpoint->ops->unbind(endpoint->comms[i]);
  for (unsigned int i = 0; i < endpoint->nnics; i++) ofi_memory_close_mrs(&endpoint->nics[i].frames_in);
  return fi_close(&n->ep->fid);
}

/* What was posted is freed after the endpoints are closed. */
void ofi_shut_unlogged(struct ofi_endpoint *endpoint, const char *why) {
  endpoint->shut = true;
  for (unsigned int i = 0; i < endpoint->nnics; i++) {
    struct ofi_endpoint_nic *n = &endpoint->nics[i];
    int err = n->ep ? close_endpoint(endpoint, n) : 0;
    if (err) warn_open("endpoint", n->device_nic, err);
    endpoint->kept |= err != 0;
    n->ep = NULL;
    STAILQ_INIT(&n->waiting);
    STAILQ_INIT(&n->waiting_receives);
    STAILQ_INIT(&n->used_receives);
    n->nused = 0;
    n->bytes_outstanding = 0;
  }
  endpoint->nops = 0;
  for (uint32_t i = 0; i < endpoint->ncomms; i++)
    if (endpoint->comms[i]) endpoint->ops->shut(endpoint->comms[i], why);
  for (unsigned int i = 0; i < endpoint->nnics && !endpoint->kept; i++)
    ofi_memory_free(&endpoint->nics[i].frames_in);
}

void ofi_shut(struct ofi_endpoint *endpoint, const char *why) {
  if (endpoint->shut || endpoint->ending) return; /* ending: it is closed next, and has no connections */
  RAIL_WARN("RailOFI: the endpoint of %s is closed, and all its connections with it: %s", endpoint->device->name, why);
  ofi_shut_unlogged(endpoint, why);
}

/* ---- the timer of the watch thread ------------------------------------------------------ */

static _Atomic int timer_fd = -1;
static _Atomic long timer_ms; /* it fires within so many; 0: it is not set */

int ofi_timer_open(void) {
  ofi_timer_close(); /* a forked child has its parent's */
  int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  atomic_store(&timer_ms, 0);
  atomic_store(&timer_fd, fd);
  return fd;
}

void ofi_timer_close(void) {
  int fd = atomic_exchange(&timer_fd, -1);
  if (fd >= 0) close(fd);
}

/* Of two threads that set it at once, the later one's system call may have the longer time: it looks again. */
void ofi_timer_set(long ms) {
  long set = atomic_load_explicit(&timer_ms, memory_order_relaxed);
  do
    if (set && set <= ms) return;
  while (!atomic_compare_exchange_weak(&timer_ms, &set, ms));
  int fd = atomic_load(&timer_fd);
  while (fd >= 0) {
    const struct itimerspec once = {.it_value.tv_nsec = ms * 1000000};
    (void)timerfd_settime(fd, 0, &once, NULL);
    set = atomic_load(&timer_ms);
    if (!set || set >= ms) return;
    ms = set;
  }
}

void ofi_timer_read(void) {
  uint64_t count;
  (void)!read(atomic_load(&timer_fd), &count, sizeof count);
  atomic_store(&timer_ms, 0);
}
