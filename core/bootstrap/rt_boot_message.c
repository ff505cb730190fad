/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages, in the threads that send and receive them. A send connects to the
 * peer when it is the first one, and writes a whole message. A receive takes a message
 * that the bootstrap thread has queued, or waits for it.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "core/bootstrap/rt_boot.h"
#include "core/comm/rt_error.h"

#define RECONNECT_MS 20           /* between two attempts while there is no route */
#define PROBE_MS 1000             /* to connect, where only whether a rank has left is asked */
#define FINISH_MS 2000            /* for the rest of a message when the communicator has failed */
#define CHILD_TAG 0x80000000u     /* in the tags of children's allgathers; all others are numbers without it */
#define GATHER_WINDOW (64u << 20) /* bytes of one allgather that may be unexpected at a slow rank */

/* ---- waiting ---- */

/* The failure that ends a wait with these limits; 0: none. */
static int failure(struct rt_bootstrap *b, const struct rt_boot_limits *limits) {
  return limits && limits->ignore_failure ? 0 : atomic_load_explicit(&b->failed, memory_order_acquire);
}

static bool is_set(const _Atomic int *flag) { return flag && atomic_load_explicit(flag, memory_order_relaxed); }

/* RAIL_OK, or which limit was reached: as rt_boot_wait. No lock needed. */
static rail_result_t check_limits(struct rt_bootstrap *b, const struct rt_boot_limits *limits) {
  int failed = failure(b, limits);
  if (failed) return (rail_result_t)failed;
  bool ignore_failure = limits && limits->ignore_failure;
  if ((!ignore_failure && is_set(b->args.abort_flag)) || (limits && is_set(limits->abort_flag))) {
    errno = ECANCELED;
    return RAIL_REMOTE_ERROR;
  }
  if (limits && rail_deadline_passed(limits->deadline)) {
    errno = ETIMEDOUT;
    return RAIL_REMOTE_ERROR;
  }
  return RAIL_OK;
}

rail_result_t rt_boot_wait(struct rt_bootstrap *b, const struct rt_boot_limits *limits) {
  RAIL_TRY(check_limits(b, limits));
  uint64_t until = rail_deadline_in_ms(RT_BOOT_POLL_MS);
  struct timespec ts = {.tv_sec = (time_t)(until / 1000000000ull), .tv_nsec = (long)(until % 1000000000ull)};
  pthread_cond_timedwait(&b->cond, &b->lock, &ts);
  return RAIL_OK;
}

/* As rt_boot_wait, for a descriptor of the caller's own. */
static rail_result_t wait_fd(struct rt_bootstrap *b, int fd, short events, int ms,
                             const struct rt_boot_limits *limits) {
  RAIL_TRY(check_limits(b, limits));
  struct pollfd pfd = {.fd = fd, .events = events};
  if (poll(&pfd, 1, ms) < 0 && errno != EINTR) return RAIL_SYSTEM_ERROR;
  return RAIL_OK;
}

/* A failure or an abort has its log line already. */
static bool already_reported(struct rt_bootstrap *b, const struct rt_boot_limits *limits, int err) {
  return err == ECANCELED || failure(b, limits) != 0;
}

/* A few texts a thread, so that one line may name several ranks. */
const char *rt_bootstrap_peer_text(const struct rt_bootstrap *b, int peer) {
  static _Thread_local char texts[4][RAIL_ADDR_TEXT];
  static _Thread_local unsigned next;
  if (peer < 0 || peer >= b->nranks) return "?";
  if (b->addrs[peer].sa.sa_family == AF_UNSPEC) return "local";
  return rail_addr_text(&b->addrs[peer], texts[next++ % RAIL_COUNT_OF(texts)]);
}

/* ---- unexpected messages ---- */

static struct rt_boot_bucket *bucket_of(struct rt_bootstrap *b, uint32_t peer, uint16_t type, uint32_t tag) {
  uint32_t hash = (peer * 2654435761u) ^ (tag * 2246822519u) ^ type;
  return &b->unexpected[(hash >> 16 ^ hash) % RT_BOOT_BUCKETS];
}

void rt_boot_message_put(struct rt_bootstrap *b, struct rt_boot_message *msg) {
  STAILQ_INSERT_TAIL(bucket_of(b, msg->peer, msg->type, msg->tag), msg, link);
  pthread_cond_broadcast(&b->cond);
}

static struct rt_boot_message *take(struct rt_bootstrap *b, uint32_t peer, uint16_t type, uint32_t tag) {
  struct rt_boot_bucket *bucket = bucket_of(b, peer, type, tag);
  for (struct rt_boot_message *msg = STAILQ_FIRST(bucket); msg; msg = STAILQ_NEXT(msg, link)) {
    if (msg->peer != peer || msg->type != type || msg->tag != tag) continue;
    STAILQ_REMOVE(bucket, msg, rt_boot_message, link);
    b->unexpected_bytes -= msg->size;
    return msg;
  }
  return NULL;
}

void rt_boot_messages_free(struct rt_bootstrap *b) {
  for (size_t i = 0; i < RT_BOOT_BUCKETS; i++) {
    struct rt_boot_message *msg;
    while ((msg = STAILQ_FIRST(&b->unexpected[i])) != NULL) {
      STAILQ_REMOVE_HEAD(&b->unexpected[i], link);
      free(msg);
    }
  }
}

/* ---- sending ---- */

/* A message that is partly written is finished even after a failure or an abort, within FINISH_MS: if the
 * communicator is then shrunk, more messages must be able to follow. *begun: something went out. */
static rail_result_t send_all(struct rt_bootstrap *b, int fd, struct iovec *iov, int niov,
                              const struct rt_boot_limits *limits, bool *begun) {
  struct rt_boot_limits rest;
  while (niov > 0) {
    size_t n;
    rail_result_t result = rail_sock_sendv(fd, iov, niov, &n);
    if (result == RAIL_IN_PROGRESS) {
      result = wait_fd(b, fd, POLLOUT, RT_BOOT_POLL_MS, limits);
      if (result != RAIL_OK && *begun && limits != &rest) {
        rest = (struct rt_boot_limits){.deadline = rail_deadline_in_ms(FINISH_MS), .ignore_failure = true};
        limits = &rest;
        result = RAIL_OK;
      }
      if (result != RAIL_OK) return result;
      continue;
    }
    if (result != RAIL_OK) return result;
    *begun = true;
    for (; niov > 0 && n >= iov->iov_len; iov++, niov--) n -= iov->iov_len;
    if (niov > 0) {
      iov->iov_base = (char *)iov->iov_base + n;
      iov->iov_len -= n;
    }
  }
  return RAIL_OK;
}

/* Every peer listened before it joined the rendezvous, so a refused connection means that it is gone; only the lack of
 * a route may be temporary. */
static rail_result_t try_connect(struct rt_bootstrap *b, const union rail_addr *to, const struct rt_boot_limits *limits,
                                 int *fd) {
  for (;;) {
    rail_result_t result = rail_sock_connect(to, NULL, fd);
    while (result == RAIL_IN_PROGRESS) {
      result = wait_fd(b, *fd, POLLOUT, RT_BOOT_POLL_MS, limits);
      if (result == RAIL_OK)
        result = rail_sock_connected(*fd);
      else
        break;
    }
    if (result == RAIL_OK) return RAIL_OK;
    rail_sock_close(fd);
    if (errno != EHOSTUNREACH && errno != ENETUNREACH && errno != EADDRNOTAVAIL) return result;
    RAIL_TRY(wait_fd(b, -1, 0, RECONNECT_MS, limits));
  }
}

/* Once the peer has answered it knows whose connection this is. A wait that reaches a limit leaves the connection open:
 * the peer may have read the hello, and would take a closed connection for this rank's end. */
static rail_result_t await_accept(struct rt_bootstrap *b, struct rt_boot_tx *tx, const struct rt_boot_limits *limits) {
  unsigned char byte = 0;
  size_t have = 0;
  rail_result_t result;
  while ((result = rail_sock_recv_some(tx->fd, &byte, 1, &have)) == RAIL_IN_PROGRESS)
    RAIL_TRY(wait_fd(b, tx->fd, POLLIN, RT_BOOT_POLL_MS, limits));
  tx->accepted = result == RAIL_OK && byte == RT_BOOT_ACCEPTED;
  if (tx->accepted) return RAIL_OK;
  if (result == RAIL_OK) errno = EPROTO;
  int err = errno;
  rail_sock_close(&tx->fd);
  errno = err;
  return RAIL_REMOTE_ERROR;
}

static struct rt_boot_limits with_timeout(const struct rt_bootstrap *b, const struct rt_boot_limits *limits) {
  struct rt_boot_limits within = limits ? *limits : (struct rt_boot_limits){0};
  if (within.deadline == 0) within.deadline = rail_deadline_in_ms(b->args.timeout_ms);
  return within;
}

static void report_connect(struct rt_bootstrap *b, int peer, const struct rt_boot_limits *limits, rail_result_t result,
                           int err) {
  if (already_reported(b, limits, err)) return;
  rt_error(result, "bootstrap: rank %d cannot connect to rank %d (%s): %s; %s", b->rank, peer,
           rt_bootstrap_peer_text(b, peer), strerror(err),
           err == EMFILE || err == ENFILE ? "raise the limit of open files (ulimit -n)"
                                          : "has that rank died, or is there a firewall in between?");
  errno = err;
}

rail_result_t rt_boot_connect(struct rt_bootstrap *b, int peer, enum rt_boot_link link,
                              const struct rt_boot_limits *limits, int *fd) {
  struct {
    struct rt_boot_header head;
    struct rt_boot_peer_hello hello;
  } out;
  struct rt_boot_limits within = with_timeout(b, limits);
  bool begun = false;
  rail_result_t result = try_connect(b, &b->addrs[peer], &within, fd);
  if (result == RAIL_OK) {
    out.head = rt_boot_header_make(RT_BOOT_PEER_HELLO, 0, sizeof out.hello);
    memcpy(out.hello.secret, b->secret, RT_SECRET_BYTES);
    out.hello.from = (uint32_t)b->rank;
    out.hello.to = (uint32_t)peer;
    out.hello.link = (uint32_t)link;
    out.hello.nranks = (uint32_t)b->nranks;
    struct iovec iov = {.iov_base = &out, .iov_len = sizeof out};
    result = send_all(b, *fd, &iov, 1, &within, &begun);
  }
  if (result == RAIL_OK) return RAIL_OK;
  int err = errno;
  rail_sock_close(fd);
  report_connect(b, peer, limits, result, err);
  return result;
}

/* Makes the connection ready for messages; tx's lock held. */
static rail_result_t open_tx(struct rt_bootstrap *b, struct rt_boot_tx *tx, int peer,
                             const struct rt_boot_limits *limits) {
  if (tx->fd < 0) RAIL_TRY(rt_boot_connect(b, peer, RT_BOOT_LINK_DATA, limits, &tx->fd));
  if (tx->accepted) return RAIL_OK;
  struct rt_boot_limits within = with_timeout(b, limits);
  rail_result_t result = await_accept(b, tx, &within);
  if (result != RAIL_OK) report_connect(b, peer, limits, result, errno);
  return result;
}

static rail_result_t send_to_self(struct rt_bootstrap *b, enum rt_boot_type type, uint32_t tag, const void *data,
                                  size_t size) {
  struct rt_boot_message *msg = malloc(sizeof *msg + size);
  if (!msg) {
    rt_error(RAIL_SYSTEM_ERROR, "bootstrap: rank %d: no memory for a message of %zu bytes", b->rank, size);
    return RAIL_SYSTEM_ERROR;
  }
  *msg = (struct rt_boot_message){.peer = (uint32_t)b->rank, .tag = tag, .type = (uint16_t)type, .size = size};
  if (size) memcpy(msg->data, data, size);
  pthread_mutex_lock(&b->lock);
  bool full = b->unexpected_bytes + size > RT_BOOT_UNEXPECTED_MAX;
  if (!full) {
    b->unexpected_bytes += size;
    rt_boot_message_put(b, msg);
  }
  pthread_mutex_unlock(&b->lock);
  if (!full) return RAIL_OK;
  free(msg);
  rt_error(RAIL_BAD_USAGE, "bootstrap: rank %d: more than %llu bytes sent to itself and not received", b->rank,
           RT_BOOT_UNEXPECTED_MAX);
  return RAIL_BAD_USAGE;
}

rail_result_t rt_boot_send(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag, const void *data,
                           size_t size, const struct rt_boot_limits *limits) {
  if (peer < 0 || peer >= b->nranks || size > RT_BOOT_MAX_MESSAGE || (size && !data)) {
    rt_error(RAIL_BAD_ARGUMENT, "bootstrap: rank %d: cannot send %zu bytes to rank %d (of %d ranks, at most %u bytes)",
             b->rank, size, peer, b->nranks, RT_BOOT_MAX_MESSAGE);
    return RAIL_BAD_ARGUMENT;
  }
  RAIL_TRY(check_limits(b, limits));
  if (peer == b->rank) return send_to_self(b, type, tag, data, size);

  struct rt_boot_tx *tx = &b->tx[peer];
  struct rt_boot_header head = rt_boot_header_make(type, tag, size);
  struct iovec iov[2] = {{.iov_base = &head, .iov_len = sizeof head},
                         {.iov_base = (void *)(uintptr_t)data, .iov_len = size}};
  bool begun = false;
  pthread_mutex_lock(&tx->lock);
  rail_result_t result = tx->broken ? RAIL_OK : open_tx(b, tx, peer, limits);
  if (result != RAIL_OK) {
    pthread_mutex_unlock(&tx->lock);
    return result;
  }
  errno = EPIPE;
  result = tx->broken ? RAIL_REMOTE_ERROR : send_all(b, tx->fd, iov, size ? 2 : 1, limits, &begun);
  int err = errno;
  if (result != RAIL_OK && begun) {
    rail_sock_close(&tx->fd);
    tx->broken = true;
  }
  pthread_mutex_unlock(&tx->lock);
  if (result != RAIL_OK && !already_reported(b, limits, err))
    rt_error(result, "bootstrap: rank %d: sending %zu bytes to rank %d (%s) failed: %s", b->rank, size, peer,
             rt_bootstrap_peer_text(b, peer), strerror(err));
  return result;
}

bool rt_bootstrap_peer_left(struct rt_bootstrap *b, int peer) {
  struct rt_boot_limits limits = {.deadline = rail_deadline_in_ms(PROBE_MS)};
  struct rt_boot_tx *tx = &b->tx[peer];
  pthread_mutex_lock(&b->lock);
  bool left = b->data_closed[peer];
  pthread_mutex_unlock(&b->lock);
  if (left || peer == b->rank || pthread_mutex_trylock(&tx->lock) != 0) return left;
  if (!tx->broken && !tx->accepted && open_tx(b, tx, peer, &limits) != RAIL_OK && errno == ECONNREFUSED)
    tx->broken = true; /* nobody listens there any more */
  struct pollfd p = {.fd = tx->fd, .events = POLLRDHUP};
  left = tx->broken || (tx->fd >= 0 && poll(&p, 1, 0) == 1);
  pthread_mutex_unlock(&tx->lock);
  return left;
}

/* ---- receiving ---- */

/* Takes a message that was queued, or returns why there is none; lock held. */
static rail_result_t try_take(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag,
                              const struct rt_boot_limits *limits, struct rt_boot_message **msg) {
  int failed = failure(b, limits);
  *msg = NULL;
  if (failed) return (rail_result_t)failed;
  *msg = take(b, (uint32_t)peer, (uint16_t)type, tag);
  if (*msg) return RAIL_OK;
  return b->data_closed[peer] ? RAIL_REMOTE_ERROR : RAIL_IN_PROGRESS;
}

/* Copies and frees the message. */
static rail_result_t deliver(struct rt_bootstrap *b, struct rt_boot_message *msg, void *data, size_t size) {
  rail_result_t result = RAIL_OK;
  if (msg->size == size) {
    if (size) memcpy(data, msg->data, size);
  } else {
    rt_error(
        RAIL_REMOTE_ERROR,
        "bootstrap: rank %d expects %zu bytes from rank %u (%s), tag %u, and got %zu; do both run the same program?",
        b->rank, size, msg->peer, rt_bootstrap_peer_text(b, (int)msg->peer), msg->tag, msg->size);
    result = RAIL_REMOTE_ERROR;
  }
  free(msg);
  return result;
}

static void report_timeout(const struct rt_bootstrap *b, int peer, uint32_t tag, const struct rt_boot_limits *limits,
                           rail_result_t result) {
  if (limits && limits->call)
    rt_error(result,
             "%s: rank %d of %d has waited %" PRIu64 " ms for rank %d (%s) to make this call; every rank of the "
             "communicator makes it, in the same order (RAIL_BOOTSTRAP_TIMEOUT)",
             limits->call, b->rank, b->nranks, b->args.timeout_ms, limits->absent,
             rt_bootstrap_peer_text(b, limits->absent));
  else
    rt_error(result, "bootstrap: rank %d: no message from rank %d (%s), tag %u, within %" PRIu64 " ms", b->rank, peer,
             rt_bootstrap_peer_text(b, peer), tag, b->args.timeout_ms);
}

static rail_result_t receive(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag, void *data,
                             size_t size, bool wait, const struct rt_boot_limits *limits) {
  if (peer < 0 || peer >= b->nranks || (size && !data)) {
    rt_error(RAIL_BAD_ARGUMENT, "bootstrap: rank %d: cannot receive from rank %d (of %d ranks)", b->rank, peer,
             b->nranks);
    return RAIL_BAD_ARGUMENT;
  }
  struct rt_boot_message *msg;
  rail_result_t waited = RAIL_OK;
  pthread_mutex_lock(&b->lock);
  rail_result_t result = try_take(b, type, peer, tag, limits, &msg);
  while (wait && result == RAIL_IN_PROGRESS && waited == RAIL_OK) {
    waited = rt_boot_wait(b, limits);
    result = try_take(b, type, peer, tag, limits, &msg);
  }
  int err = errno;
  bool closed = b->data_closed[peer];
  pthread_mutex_unlock(&b->lock);
  if (result == RAIL_OK) return deliver(b, msg, data, size);
  if (result == RAIL_IN_PROGRESS && !wait)
    return check_limits(b, NULL) == RAIL_OK ? RAIL_IN_PROGRESS : RAIL_REMOTE_ERROR;
  if (result == RAIL_IN_PROGRESS) result = waited;
  if (failure(b, limits)) return result;
  if (closed) {
    rt_error(result,
             "bootstrap: rank %d waits for a message of rank %d (%s), tag %u, which has closed the communicator",
             b->rank, peer, rt_bootstrap_peer_text(b, peer), tag);
  } else if (err == ETIMEDOUT) {
    report_timeout(b, peer, tag, limits, result);
  }
  return result;
}

rail_result_t rt_boot_recv(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag, void *data,
                           size_t size, const struct rt_boot_limits *limits) {
  return receive(b, type, peer, tag, data, size, true, limits);
}

/* ---- the public forms ---- */

rail_result_t rt_bootstrap_send(struct rt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t size) {
  return rt_boot_send(b, RT_BOOT_MESSAGE, peer, tag, data, size, NULL);
}

rail_result_t rt_bootstrap_try_recv(struct rt_bootstrap *b, int peer, uint32_t tag, void *data, size_t size) {
  return receive(b, RT_BOOT_MESSAGE, peer, tag, data, size, false, NULL);
}

static uint32_t next_gather(struct rt_bootstrap *b) {
  pthread_mutex_lock(&b->lock);
  uint32_t tag = b->gathers++;
  pthread_mutex_unlock(&b->lock);
  return tag;
}

/* On a ring: in step s this rank passes on the block that it got in step s - 1. So a block that does not come is of a
 * rank that has not begun. */
static rail_result_t gather_piece(struct rt_bootstrap *b, uint32_t tag, char *all, size_t each, size_t at, size_t size,
                                  struct rt_boot_limits *limits) {
  int n = b->nranks, next = (b->rank + 1) % n, prev = (b->rank + n - 1) % n;
  for (int step = 0; step < n - 1; step++) {
    int mine = (b->rank - step + n) % n, theirs = (prev - step + n) % n;
    limits->absent = theirs;
    RAIL_TRY(rt_boot_send(b, RT_BOOT_GATHER, next, tag, all + (size_t)mine * each + at, size, limits));
    RAIL_TRY(rt_boot_recv(b, RT_BOOT_GATHER, prev, tag, all + (size_t)theirs * each + at, size, limits));
  }
  return RAIL_OK;
}

/* In pieces, because all blocks of a piece may arrive at a slow rank before it receives any; no rank gets two pieces
 * ahead of another. */
rail_result_t rt_bootstrap_allgather(struct rt_bootstrap *b, void *all, size_t each) {
  if (b->nranks == 1 || each == 0) return check_limits(b, NULL);
  size_t piece = RAIL_MAX((size_t)1, GATHER_WINDOW / (size_t)b->nranks);
  struct rt_boot_limits limits = {.deadline = rail_deadline_in_ms(b->args.timeout_ms), .call = "making a communicator"};
  for (size_t at = 0; at < each; at += piece)
    RAIL_TRY(gather_piece(b, next_gather(b), all, each, at, RAIL_MIN(piece, each - at), &limits));
  return RAIL_OK;
}

/* One piece: a record is small. */
rail_result_t rt_bootstrap_gather_for_child(struct rt_bootstrap *b, const struct rt_bootstrap_child *child, void *all,
                                            size_t each) {
  struct rt_boot_limits limits = {.deadline = rail_deadline_in_ms(b->args.timeout_ms),
                                  .abort_flag = child->abort_flag,
                                  .call = child->call};
  if (b->nranks == 1) return check_limits(b, &limits);
  return gather_piece(b, child->serial | CHILD_TAG, all, each, 0, each, &limits);
}
