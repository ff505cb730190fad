/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations: posted, completed, cancelled; completion queues polled; an endpoint shut. Opening endpoints, and who uses
 * them, is in ofi_endpoint.c.
 */
#include "plugin/ofi/ofi_endpoint.h"

#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/ofi/ofi_comm.h"

#define BATCH 16          /* completions that are read at once */
#define MAX_BATCHES 8     /* per poll and NIC: a call must return within a millisecond */
#define MOST_FULL 16      /* peers that may take nothing in one pass over what waits */
#define MOST_KEYS (1u << 16) /* that are tried for one registration */
#define MAX_FAILURES 1024 /* of receives of control messages, one after the other: then nothing will come any more */

const char *ofi_endpoint_strerror(int err) { return ofi_fabric.strerror(err < 0 ? -err : err); }

/* ---- the timer of the watch thread ------------------------------------------ */

static _Atomic int timer_fd = -1;
static _Atomic bool timer_set;

int ofi_endpoint_timer_open(void) {
  ofi_endpoint_timer_close(); /* a forked child has its parent's */
  int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  atomic_store(&timer_set, false);
  atomic_store(&timer_fd, fd);
  return fd;
}

void ofi_endpoint_timer_close(void) {
  int fd = atomic_exchange(&timer_fd, -1);
  if (fd >= 0) close(fd);
}

void ofi_endpoint_set_timer(long ms) {
  const struct itimerspec once = {.it_value.tv_nsec = ms * 1000000};
  if (atomic_load_explicit(&timer_set, memory_order_relaxed) || atomic_exchange(&timer_set, true)) return;
  int fd = atomic_load(&timer_fd);
  if (fd >= 0) (void)timerfd_settime(fd, 0, &once, NULL);
}

void ofi_endpoint_read_timer(void) {
  uint64_t count;
  (void)!read(atomic_load(&timer_fd), &count, sizeof count);
  atomic_store(&timer_set, false);
}

/* ---- posting ------------------------------------------------------------- */

/* A message that the provider copies and never completes. Only on one host, where nothing can lose it: other providers
 * say nothing of one whose connection breaks. */
#define INJECTED 1
static int inject_frame(const struct ofi_endpoint_nic *nic, const struct ofi_op *op) {
  uint8_t bytes[OFI_INJECT_MOST];
  memcpy(bytes, op->head, op->head_size);
  if (op->size) memcpy(bytes + op->head_size, op->data, op->size);
  int err = (int)fi_inject(nic->ep, bytes, op->head_size + op->size, op->to);
  return err ? err : INJECTED;
}

static bool can_inject(const struct ofi_endpoint_nic *nic, const struct ofi_op *op) {
  return op->head_size + op->size <= nic->inject_most && (!op->size || op->host);
}

static int post_frame(struct fid_ep *ep, struct ofi_op *op) {
  struct iovec iov[2] = {{.iov_base = op->head, .iov_len = op->head_size}, {.iov_base = op->data, .iov_len = op->size}};
  void *desc[2] = {op->head_desc, op->desc};
  const struct fi_msg msg = {.msg_iov = iov, .desc = desc, .iov_count = op->size ? 2 : 1, .addr = op->to,
                             .context = &op->context};
  return (int)fi_sendmsg(ep, &msg, FI_COMPLETION);
}

/* Without FI_ORDER_SAW the write's completion, for which the FIN waits, must mean that the bytes are in place. */
static int post_write(const struct ofi_endpoint_nic *nic, struct ofi_op *op) {
  struct iovec iov = {.iov_base = op->data, .iov_len = op->size};
  struct fi_rma_iov rma = {.addr = op->remote_addr, .len = op->size, .key = op->key};
  const struct fi_msg_rma msg = {.msg_iov = &iov, .desc = &op->desc, .iov_count = 1, .addr = op->to, .rma_iov = &rma,
                                 .rma_iov_count = 1, .context = &op->context};
  return (int)fi_writemsg(nic->ep, &msg, FI_COMPLETION | (nic->nic->caps.send_after_write ? 0 : FI_DELIVERY_COMPLETE));
}

static int post_receive(struct fid_ep *ep, struct ofi_op *op) {
  return (int)fi_recv(ep, op->data, op->size, op->desc, FI_ADDR_UNSPEC, &op->context);
}

/* 0, INJECTED, or libfabric's error. Always inlined: a stack of isend is short to read. */
__attribute__((always_inline)) static inline int post_now(const struct ofi_endpoint_nic *nic, struct ofi_op *op) {
  switch (op->kind) {
    case OFI_OP_FRAME_IN: return post_receive(nic->ep, op);
    case OFI_OP_TRECV:
      return (int)fi_trecv(nic->ep, op->data, op->size, op->desc, FI_ADDR_UNSPEC, op->tag, 0, &op->context);
    case OFI_OP_TSEND: return (int)fi_tsend(nic->ep, op->data, op->size, op->desc, op->to, op->tag, &op->context);
    case OFI_OP_WRITE: return post_write(nic, op);
    case OFI_OP_FLUSH:
      return (int)fi_read(nic->ep, op->data, op->size, op->desc, op->to, op->remote_addr, op->key, &op->context);
    case OFI_OP_PING:
    case OFI_OP_REVOKE:
    case OFI_OP_GRANT:
    case OFI_OP_EAGER:
    case OFI_OP_DATA:
    case OFI_OP_FIN:
    case OFI_OP_TOO_LARGE:
    case OFI_OP_ASK: break;
  }
  return can_inject(nic, op) ? inject_frame(nic, op) : post_frame(nic->ep, op);
}

static struct ofi_op_list *list_of(struct ofi_endpoint_nic *nic, const struct ofi_op *op) {
  return op->kind == OFI_OP_TRECV ? &nic->waiting_receives : &nic->waiting;
}

static void begin(struct ofi_endpoint *endpoint, struct ofi_op *op, enum ofi_op_state state) {
  struct ofi_endpoint_nic *nic = &endpoint->nics[op->nic];
  op->state = state;
  nic->bytes_posted += op->size;
  op->comm->nops++;
  op->comm->nposted += op->kind != OFI_OP_TRECV;
  endpoint->nops++;
  ofi_endpoint_set_timer(OFI_FIRST_MS);
}

/* Idle again. */
static void end(struct ofi_endpoint *endpoint, struct ofi_op *op) {
  op->state = OFI_OP_IDLE;
  endpoint->nics[op->nic].bytes_posted -= op->size;
  op->comm->nops--;
  op->comm->nposted -= op->kind != OFI_OP_TRECV;
  op->comm->stalls = 0;
  rail_stats_add(&op->comm->stats[OFI_COMM_COMPLETIONS], 1);
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

int ofi_endpoint_post(struct ofi_endpoint *endpoint, struct ofi_op *op) {
  struct ofi_endpoint_nic *nic = &endpoint->nics[op->nic];
  struct ofi_op_list *list = list_of(nic, op);
  if (rail_unlikely(ofi_endpoint_is_shut(endpoint))) return -FI_ESHUTDOWN;
  int err = is_behind_another(list, op) ? -FI_EAGAIN : post_now(nic, op);
  if (rail_likely(err == INJECTED)) {
    err = 0;
  } else if (rail_likely(err == 0)) {
    begin(endpoint, op, OFI_OP_POSTED);
  } else if (err == -FI_EAGAIN) {
    begin(endpoint, op, OFI_OP_WAITING);
    STAILQ_INSERT_TAIL(list, op, link);
    err = 0;
  }
  return err;
}

/* Ahead of all receives that wait: those complete only when GRANTs and messages find a place. */
int ofi_endpoint_receive_frame(struct ofi_endpoint *endpoint, struct ofi_op *op) {
  struct ofi_endpoint_nic *nic = &endpoint->nics[op->nic];
  if (rail_unlikely(ofi_endpoint_is_shut(endpoint))) return -FI_ESHUTDOWN;
  int err = post_receive(nic->ep, op);
  if (rail_likely(err == 0)) {
    op->state = OFI_OP_POSTED;
  } else if (err == -FI_EAGAIN) {
    op->state = OFI_OP_WAITING;
    STAILQ_INSERT_HEAD(&nic->waiting_receives, op, link);
    err = 0;
  }
  return err;
}

void ofi_endpoint_cancel(struct ofi_endpoint *endpoint, struct ofi_op *op) {
  struct ofi_endpoint_nic *nic = &endpoint->nics[op->nic];
  if (endpoint->shut) return;
  if (op->state == OFI_OP_WAITING) {
    STAILQ_REMOVE(list_of(nic, op), op, ofi_op, link);
    end(endpoint, op);
  } else if (op->state == OFI_OP_POSTED) {
    (void)fi_cancel(&nic->ep->fid, &op->context); /* a request: the completion says what became of it */
  }
}

/* ---- shutting ------------------------------------------------------------------------ */

void ofi_endpoint_close_fid(struct fid *fid, const char *what, const struct ofi_nic *nic) {
  int err = fi_close(fid);
  if (err)
    RAIL_WARN("RailOFI: closing %s of provider %s: %s: %s; what it held goes when the process ends", nic->name,
              nic->provider, what, ofi_endpoint_strerror(err));
}

/* ops->shut of every comm is called between the two tries: registrations may be bound to an endpoint (FI_MR_ENDPOINT),
 * which then closes only after them. */
void ofi_endpoint_close(struct ofi_endpoint *endpoint, const char *why) {
  int err[OFI_MAX_PATHS] = {0};
  endpoint->shut = true;
  for (unsigned int i = 0; i < endpoint->nnics; i++) {
    struct ofi_endpoint_nic *n = &endpoint->nics[i];
    if (n->ep) err[i] = fi_close(&n->ep->fid);
    STAILQ_INIT(&n->waiting);
    STAILQ_INIT(&n->waiting_receives);
    STAILQ_INIT(&n->used_receives);
    n->nused = 0;
    n->bytes_posted = 0;
  }
  endpoint->nops = 0;
  for (uint32_t i = 0; i < endpoint->ncomms; i++)
    if (endpoint->comms[i]) endpoint->ops->shut(endpoint->comms[i], why);
  for (unsigned int i = 0; i < endpoint->nnics; i++) {
    struct ofi_endpoint_nic *n = &endpoint->nics[i];
    ofi_memory_free(&n->frames_in);
    if (err[i]) ofi_endpoint_close_fid(&n->ep->fid, "endpoint", n->nic);
    n->ep = NULL;
  }
}

void ofi_endpoint_shut(struct ofi_endpoint *endpoint, const char *why) {
  if (endpoint->shut || endpoint->ending) return; /* ending: it is closed next, and has no connections */
  RAIL_WARN("RailOFI: the endpoint of %s is closed, and all its connections with it: %s", endpoint->device->name, why);
  ofi_endpoint_close(endpoint, why);
}

/* ---- completions -------------------------------------------------------------- */

/* Data of a comm that has failed, and the FIN of what was perhaps never written, must not go out any more. */
static bool is_pointless(const struct ofi_op *op) {
  bool data = op->kind == OFI_OP_TSEND || op->kind == OFI_OP_EAGER || op->kind == OFI_OP_DATA ||
              op->kind == OFI_OP_WRITE || op->kind == OFI_OP_FIN;
  return data && rail_first_error(&op->comm->error) != RAIL_OK;
}

/* A FIN that found no room must not be tried while its write is under way: when that fails, a provider may make a new
 * connection for what comes next, over which the FIN would arrive. */
static bool is_ahead_of_its_write(const struct ofi_op *op) {
  return op->kind == OFI_OP_FIN && rail_container_of(op, struct ofi_part, fin)->data.state != OFI_OP_IDLE;
}

/* Tries those that wait, in order; of what goes to a peer that takes nothing now, only the first. */
static void post_waiting(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *nic, struct ofi_op_list *list) {
  fi_addr_t full[MOST_FULL];
  unsigned int nfull = 0;
  for (struct ofi_op *op = STAILQ_FIRST(list), *next; op && !endpoint->shut; op = next) {
    bool skip = false;
    for (unsigned int i = 0; i < nfull; i++) skip |= full[i] == op->to;
    next = STAILQ_NEXT(op, link);
    if (skip) continue;
    int err = is_pointless(op) ? -FI_ECANCELED : is_ahead_of_its_write(op) ? -FI_EAGAIN : post_now(nic, op);
    if (err == -FI_EAGAIN) {
      if (list == &nic->waiting_receives || nfull == MOST_FULL) return;
      full[nfull++] = op->to;
      continue;
    }
    STAILQ_REMOVE(list, op, ofi_op, link);
    if (err == 0) {
      op->state = OFI_OP_POSTED;
      continue;
    }
    if (rail_unlikely(op->kind == OFI_OP_FRAME_IN)) { /* no GRANT would find a place */
      op->state = OFI_OP_IDLE;
      ofi_endpoint_shut(endpoint, ofi_endpoint_strerror(err));
      return;
    }
    const struct ofi_completion result = {.err = err == INJECTED ? 0 : -err, .text = "it could not be posted"};
    end(endpoint, op);
    endpoint->ops->completed(op, &result);
    next = STAILQ_FIRST(list); /* others may have left the list */
    nfull = 0;
  }
}

static struct ofi_comm *comm_of_frame(const struct ofi_endpoint *endpoint, const struct ofi_frame *frame) {
  struct ofi_comm *comm = frame->comm < endpoint->ncomms ? endpoint->comms[frame->comm] : NULL;
  return comm && comm->token == frame->token ? comm : NULL;
}

/* Messages that are no frames, and frames for comms that are closed, are dropped: anybody may send them. */
static void frame_in(struct ofi_endpoint *endpoint, struct ofi_op *op, const struct ofi_completion *completion) {
  struct ofi_endpoint_nic *nic = &endpoint->nics[op->nic];
  struct ofi_frame frame;
  const void *payload;
  op->state = OFI_OP_IDLE;
  if (rail_likely(!completion->err)) {
    nic->failed_receives = 0;
    if (ofi_frame_decode(op->data, completion->size, &frame, &payload)) {
      struct ofi_comm *comm = comm_of_frame(endpoint, &frame);
      if (comm) endpoint->ops->frame(comm, &frame, payload);
    }
  } else if (completion->err != FI_ETRUNC && ++nic->failed_receives >= MAX_FAILURES) { /* anybody may send too much */
    ofi_endpoint_shut(endpoint, completion->text);
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
    int err = ofi_endpoint_receive_frame(endpoint, op);
    if (err) ofi_endpoint_shut(endpoint, ofi_endpoint_strerror(err));
  }
}

static void complete(struct ofi_endpoint *endpoint, void *context, const struct ofi_completion *completion) {
  struct ofi_op *op = context;
  if (op->kind == OFI_OP_FRAME_IN) {
    frame_in(endpoint, op, completion);
    return;
  }
  end(endpoint, op);
  endpoint->ops->completed(op, completion);
}

/* An error that belongs to no operation: of an injected message, whose peer is gone, which its connection notices by
 * itself; else completions were lost, or the queue does not work any more. */
static void read_error(struct ofi_endpoint *endpoint, const struct ofi_endpoint_nic *nic) {
  char text[256];
  struct fi_cq_err_entry entry = {0};
  ssize_t n = fi_cq_readerr(nic->cq, &entry, 0);
  if (n == -FI_EAGAIN) return;
  if (n < 0) {
    ofi_endpoint_shut(endpoint, ofi_endpoint_strerror((int)n));
    return;
  }
  const char *words = fi_cq_strerror(nic->cq, entry.prov_errno, entry.err_data, text, sizeof text);
  const struct ofi_completion failed = {.err = entry.err ? entry.err : FI_EOTHER, .prov_errno = entry.prov_errno,
                                        .text = words ? words : ""};
  if (entry.op_context) complete(endpoint, entry.op_context, &failed);
  else if (!(entry.flags & FI_SEND)) ofi_endpoint_shut(endpoint, ofi_endpoint_strerror(failed.err));
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
      ofi_endpoint_shut(endpoint, ofi_endpoint_strerror((int)n));
    }
    for (ssize_t i = 0; i < n && !ofi_endpoint_is_shut(endpoint); i++) {
      const struct ofi_completion good = {.size = entries[i].len};
      complete(endpoint, entries[i].op_context, &good);
    }
    if (nic->nused > nic->nreceives / 4) post_used_receives(endpoint, nic);
    if (n > 0 && n < BATCH) break;
  }
  if (nic->nused && !any) post_used_receives(endpoint, nic);
  if (rail_unlikely(!STAILQ_EMPTY(&nic->waiting_receives))) post_waiting(endpoint, nic, &nic->waiting_receives);
  if (rail_unlikely(!STAILQ_EMPTY(&nic->waiting))) post_waiting(endpoint, nic, &nic->waiting);
  return any;
}

/* Those that are in the list now. */
static void send_reports(struct ofi_endpoint *endpoint, struct ofi_report_list *list) {
  const struct ofi_report_link *last = TAILQ_LAST(list, ofi_report_list);
  for (struct ofi_report_link *link = TAILQ_FIRST(list), *next; link && last; link = next) {
    next = link == last ? NULL : TAILQ_NEXT(link, link);
    ofi_endpoint_report(endpoint, link, OFI_REPORT_NONE);
    endpoint->ops->report(link);
  }
}

static bool poll_nics(struct ofi_endpoint *endpoint) {
  bool any = false;
  for (unsigned int i = 0; i < endpoint->nnics; i++) any |= poll_nic(endpoint, &endpoint->nics[i]);
  if (rail_unlikely(!TAILQ_EMPTY(&endpoint->reports_now))) send_reports(endpoint, &endpoint->reports_now);
  return any;
}

bool ofi_endpoint_poll_quietly(struct ofi_endpoint *endpoint) {
  bool any = poll_nics(endpoint);
  send_reports(endpoint, &endpoint->reports_later);
  return any;
}

bool ofi_endpoint_poll(struct ofi_endpoint *endpoint) {
  endpoint->polls++;
  return poll_nics(endpoint);
}

/* ---- memory ------------------------------------------------------------------ */

/* A key that the provider leaves to us has as many bytes as its domain says, and no two registrations may have the
 * same: numbers in turn, and the next one where a number is taken. So a key that a peer may still know is used again as
 * late as possible. */
static int register_with_next_key(struct ofi_endpoint_nic *n, struct fi_mr_attr *attr, struct fid_mr **mr) {
  size_t bytes = n->nic->caps.mr_key_size;
  uint64_t last = bytes && bytes < sizeof last ? (UINT64_C(1) << 8 * bytes) - 1 : UINT64_MAX - 1;
  int err = -FI_ENOKEY;
  for (uint64_t tries = RAIL_MIN(last, MOST_KEYS); err == -FI_ENOKEY && tries; tries--) {
    attr->requested_key = n->next_key;
    n->next_key = n->next_key == last ? 1 : n->next_key + 1;
    err = fi_mr_regattr(n->domain, attr, 0, mr);
  }
  return err;
}

int ofi_endpoint_register(struct ofi_endpoint *endpoint, unsigned int nic, const struct fi_mr_attr *attr,
                          struct fid_mr **mr) {
  struct ofi_endpoint_nic *n = &endpoint->nics[nic];
  struct fi_mr_attr a = *attr;
  if (endpoint->shut) return -FI_ESHUTDOWN;
  int err = n->nic->caps.mr_prov_key ? fi_mr_regattr(n->domain, &a, 0, mr) : register_with_next_key(n, &a, mr);
  if (err || !n->nic->caps.mr_endpoint) return err;
  if (!(err = fi_mr_bind(*mr, &n->ep->fid, 0))) err = fi_mr_enable(*mr);
  if (err) (void)fi_close(&(*mr)->fid);
  return err;
}

bool ofi_memory_alloc(struct ofi_endpoint *endpoint, size_t size, struct ofi_memory *memory) {
  memset(memory, 0, sizeof *memory);
  memory->size = RAIL_ROUND_UP(size, (size_t)sysconf(_SC_PAGESIZE));
  if (posix_memalign(&memory->bytes, (size_t)sysconf(_SC_PAGESIZE), memory->size) != 0) {
    memory->bytes = NULL;
    RAIL_WARN("RailOFI: %s: out of memory", endpoint->device->name);
    return false;
  }
  const struct iovec iov = {.iov_base = memory->bytes, .iov_len = memory->size};
  const struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = FI_SEND | FI_RECV | FI_READ | FI_WRITE};
  for (unsigned int i = 0; i < endpoint->nnics; i++) {
    if (!endpoint->nics[i].nic->caps.mr_local) continue;
    int err = ofi_endpoint_register(endpoint, i, &attr, &memory->mrs[i]);
    if (err) {
      RAIL_WARN("RailOFI: registering %zu bytes with %s: fi_mr_reg: %s; is `ulimit -l` (memlock) too low?",
                memory->size, endpoint->nics[i].nic->name, ofi_endpoint_strerror(err));
      memory->mrs[i] = NULL;
      ofi_memory_free(memory);
      return false;
    }
    memory->descs[i] = fi_mr_desc(memory->mrs[i]);
  }
  return true;
}

void ofi_memory_free(struct ofi_memory *memory) {
  for (unsigned int i = 0; i < OFI_MAX_PATHS; i++)
    if (memory->mrs[i]) (void)fi_close(&memory->mrs[i]->fid);
  free(memory->bytes);
  memset(memory, 0, sizeof *memory);
}
