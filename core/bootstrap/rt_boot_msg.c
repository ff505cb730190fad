/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages, as their senders and receivers see them: connect on the first
 * send, write whole messages, wait for what the service thread files.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "core/bootstrap/rt_boot.h"
#include "core/comm/rt_error.h"

#define RECONNECT_MS 20
#define FINISH_MS 2000 /* for the rest of a message, when the communicator has failed */
#define GATHER_WINDOW (64u << 20) /* bytes of one allgather that may lie unread at a slow rank */

/* ---- waiting ---- */

/* The failure that ends a wait of this patience; 0: none. */
static int ending(struct rt_bootstrap *b, const struct rt_patience *patience) {
  return patience && patience->outlives_failure ? 0 : atomic_load_explicit(&b->failed, memory_order_acquire);
}

static bool flagged(const _Atomic int *flag) { return flag && atomic_load_explicit(flag, memory_order_relaxed); }

rail_result_t rt_boot_check(struct rt_bootstrap *b, const struct rt_patience *patience) {
  int failed = ending(b, patience);
  if (failed) return (rail_result_t)failed;
  bool outlives = patience && patience->outlives_failure;
  if ((!outlives && flagged(b->args.abort_flag)) || (patience && flagged(patience->abort_flag))) {
    errno = ECANCELED;
    return RAIL_REMOTE_ERROR;
  }
  if (patience && rail_deadline_passed(patience->deadline)) {
    errno = ETIMEDOUT;
    return RAIL_REMOTE_ERROR;
  }
  return RAIL_OK;
}

rail_result_t rt_boot_wait(struct rt_bootstrap *b, const struct rt_patience *patience) {
  RAIL_TRY(rt_boot_check(b, patience));
  uint64_t until = rail_deadline_in_ms(RT_WAIT_SLICE_MS);
  struct timespec ts = {.tv_sec = (time_t)(until / 1000000000ull), .tv_nsec = (long)(until % 1000000000ull)};
  pthread_cond_timedwait(&b->cond, &b->lock, &ts);
  return RAIL_OK;
}

/* One slice for a descriptor of the caller's own. */
static rail_result_t wait_fd(struct rt_bootstrap *b, int fd, short events, int ms, const struct rt_patience *patience) {
  RAIL_TRY(rt_boot_check(b, patience));
  struct pollfd pfd = {.fd = fd, .events = events};
  if (poll(&pfd, 1, ms) < 0 && errno != EINTR) return RAIL_SYSTEM_ERROR;
  return RAIL_OK;
}

/* A failure or abort that is already known elsewhere needs no line of its own. */
static bool known(struct rt_bootstrap *b, const struct rt_patience *patience, int err) {
  return err == ECANCELED || ending(b, patience) != 0;
}

/* ---- the box ---- */

static struct rt_bucket *bucket_of(struct rt_bootstrap *b, uint32_t peer, uint16_t type, uint32_t tag) {
  uint32_t hash = (peer * 2654435761u) ^ (tag * 2246822519u) ^ type;
  return &b->box[(hash >> 16 ^ hash) % RT_BOX_BUCKETS];
}

void rt_boot_file(struct rt_bootstrap *b, struct rt_message *msg) {
  struct rt_bucket *bucket = bucket_of(b, msg->peer, msg->type, msg->tag);
  msg->next = NULL;
  *bucket->tail = msg;
  bucket->tail = &msg->next;
  pthread_cond_broadcast(&b->cond);
}

static struct rt_message *take(struct rt_bootstrap *b, uint32_t peer, uint16_t type, uint32_t tag) {
  struct rt_bucket *bucket = bucket_of(b, peer, type, tag);
  for (struct rt_message **at = &bucket->head; *at; at = &(*at)->next) {
    struct rt_message *msg = *at;
    if (msg->peer != peer || msg->type != type || msg->tag != tag) continue;
    *at = msg->next;
    if (!*at) bucket->tail = at;
    b->box_bytes -= msg->size;
    return msg;
  }
  return NULL;
}

void rt_boot_box_free(struct rt_bootstrap *b) {
  for (size_t i = 0; i < RT_BOX_BUCKETS; i++) {
    for (struct rt_message *msg = b->box[i].head, *next; msg; msg = next) {
      next = msg->next;
      free(msg);
    }
  }
}

/* ---- sending ---- */

/* How long a wait may go on when the communicator has failed and a message is half out. */
static struct rt_patience to_the_end(void) {
  return (struct rt_patience){.deadline = rail_deadline_in_ms(FINISH_MS), .outlives_failure = true};
}

/* A failure or an abort does not end it between two bytes at once: if the communicator is to be shrunk, messages must
 * be able to follow. *begun: something went out. */
static rail_result_t send_all(struct rt_bootstrap *b, int fd, struct iovec *iov, int niov,
                              const struct rt_patience *patience, bool *begun) {
  struct rt_patience rest;
  while (niov > 0) {
    size_t n;
    rail_result_t result = rail_sock_sendv(fd, iov, niov, &n);
    if (result == RAIL_IN_PROGRESS) {
      result = wait_fd(b, fd, POLLOUT, RT_WAIT_SLICE_MS, patience);
      if (result != RAIL_OK && *begun && patience != &rest) {
        rest = to_the_end();
        patience = &rest;
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

/* Every peer listens since before the rendezvous, so "refused" means gone; the rest may pass. */
static rail_result_t try_connect(struct rt_bootstrap *b, const union rail_addr *to, const struct rt_patience *patience,
                                 int *fd) {
  for (;;) {
    rail_result_t result = rail_sock_connect(to, NULL, fd);
    while (result == RAIL_IN_PROGRESS) {
      result = wait_fd(b, *fd, POLLOUT, RT_WAIT_SLICE_MS, patience);
      if (result == RAIL_OK)
        result = rail_sock_connected(*fd);
      else
        break;
    }
    if (result == RAIL_OK) return RAIL_OK;
    rail_sock_close(fd);
    if (errno != EHOSTUNREACH && errno != ENETUNREACH && errno != EADDRNOTAVAIL) return result;
    RAIL_TRY(wait_fd(b, -1, 0, RECONNECT_MS, patience));
  }
}

/* The peer knows whose connection this is: from here on it will notice should it break. So a wait that is given up
 * leaves the connection: the peer, once it looks, would take a closed one for this rank's end. */
static rail_result_t await_welcome(struct rt_bootstrap *b, struct rt_out *out, const struct rt_patience *patience) {
  unsigned char byte = 0;
  size_t have = 0;
  rail_result_t result;
  while ((result = rail_sock_recv_some(out->fd, &byte, 1, &have)) == RAIL_IN_PROGRESS)
    RAIL_TRY(wait_fd(b, out->fd, POLLIN, RT_WAIT_SLICE_MS, patience));
  out->welcomed = result == RAIL_OK && byte == RT_BOOT_WELCOME;
  if (out->welcomed) return RAIL_OK;
  if (result == RAIL_OK) errno = EPROTO;
  int err = errno;
  rail_sock_close(&out->fd);
  errno = err;
  return RAIL_REMOTE_ERROR;
}

static struct rt_patience within_timeout(const struct rt_bootstrap *b, const struct rt_patience *patience) {
  struct rt_patience within = patience ? *patience : (struct rt_patience){0};
  if (within.deadline == 0) within.deadline = rail_deadline_in_ms(b->args.timeout_ms);
  return within;
}

/* The errno of a connection that was not made, for who reads the log. */
static void cannot_connect(struct rt_bootstrap *b, int peer, const struct rt_patience *patience, rail_result_t result,
                           int err) {
  if (known(b, patience, err)) return;
  rt_error(result,
           "bootstrap: rank %d cannot connect to rank %d (%s): %s; has that rank died, or does a firewall stand "
           "between?",
           b->rank, peer, rt_bootstrap_peer_text(b, peer), strerror(err));
}

rail_result_t rt_boot_connect(struct rt_bootstrap *b, int peer, enum rt_boot_link link,
                              const struct rt_patience *patience, int *fd) {
  struct {
    struct rt_boot_header head;
    struct rt_boot_peer_hello hello;
  } out;
  struct rt_patience within = within_timeout(b, patience);
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
  cannot_connect(b, peer, patience, result, err);
  return result;
}

/* Until messages can go out to the peer; out's lock held. */
static rail_result_t open_out(struct rt_bootstrap *b, struct rt_out *out, int peer,
                              const struct rt_patience *patience) {
  if (out->fd < 0) RAIL_TRY(rt_boot_connect(b, peer, RT_BOOT_LINK_DATA, patience, &out->fd));
  if (out->welcomed) return RAIL_OK;
  struct rt_patience within = within_timeout(b, patience);
  rail_result_t result = await_welcome(b, out, &within);
  if (result != RAIL_OK) cannot_connect(b, peer, patience, result, errno);
  return result;
}

static rail_result_t send_to_self(struct rt_bootstrap *b, enum rt_boot_type type, uint32_t tag, const void *data,
                                  size_t size) {
  struct rt_message *msg = malloc(sizeof *msg + size);
  if (!msg) {
    rt_error(RAIL_SYSTEM_ERROR, "bootstrap: rank %d: no memory for a message of %zu bytes", b->rank, size);
    return RAIL_SYSTEM_ERROR;
  }
  *msg = (struct rt_message){.peer = (uint32_t)b->rank, .tag = tag, .type = (uint16_t)type, .size = size};
  if (size) memcpy(msg->data, data, size);
  pthread_mutex_lock(&b->lock);
  bool full = b->box_bytes + size > RT_BOX_MAX_BYTES;
  if (!full) {
    b->box_bytes += size;
    rt_boot_file(b, msg);
  }
  pthread_mutex_unlock(&b->lock);
  if (!full) return RAIL_OK;
  free(msg);
  rt_error(RAIL_BAD_USAGE, "bootstrap: rank %d: more than %llu bytes sent to itself and not received", b->rank,
           RT_BOX_MAX_BYTES);
  return RAIL_BAD_USAGE;
}

rail_result_t rt_boot_send(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag, const void *data,
                           size_t size, const struct rt_patience *patience) {
  if (peer < 0 || peer >= b->nranks || size > RT_BOOT_MAX_MESSAGE || (size && !data)) {
    rt_error(RAIL_BAD_ARGUMENT, "bootstrap: rank %d: cannot send %zu bytes to rank %d (of %d ranks, at most %u bytes)",
             b->rank, size, peer, b->nranks, RT_BOOT_MAX_MESSAGE);
    return RAIL_BAD_ARGUMENT;
  }
  RAIL_TRY(rt_boot_check(b, patience));
  if (peer == b->rank) return send_to_self(b, type, tag, data, size);

  struct rt_out *out = &b->outs[peer];
  struct rt_boot_header head = rt_boot_header_make(type, tag, size);
  struct iovec iov[2] = {{.iov_base = &head, .iov_len = sizeof head},
                         {.iov_base = (void *)(uintptr_t)data, .iov_len = size}};
  bool begun = false;
  pthread_mutex_lock(&out->lock);
  rail_result_t result = out->broken ? RAIL_OK : open_out(b, out, peer, patience);
  if (result != RAIL_OK) {
    pthread_mutex_unlock(&out->lock);
    return result;
  }
  errno = EPIPE;
  result = out->broken ? RAIL_REMOTE_ERROR : send_all(b, out->fd, iov, size ? 2 : 1, patience, &begun);
  int err = errno;
  if (result != RAIL_OK && begun) {
    rail_sock_close(&out->fd);
    out->broken = true;
  }
  pthread_mutex_unlock(&out->lock);
  if (result != RAIL_OK && !known(b, patience, err))
    rt_error(result, "bootstrap: rank %d: sending %zu bytes to rank %d (%s) failed: %s", b->rank, size, peer,
             rt_bootstrap_peer_text(b, peer), strerror(err));
  return result;
}

/* ---- receiving ---- */

/* Takes what was filed, or says why there is nothing; lock held. */
static rail_result_t look(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag,
                          const struct rt_patience *patience, struct rt_message **msg) {
  int failed = ending(b, patience);
  *msg = NULL;
  if (failed) return (rail_result_t)failed;
  *msg = take(b, (uint32_t)peer, (uint16_t)type, tag);
  if (*msg) return RAIL_OK;
  return b->gone[peer] ? RAIL_REMOTE_ERROR : RAIL_IN_PROGRESS;
}

static rail_result_t deliver(struct rt_bootstrap *b, struct rt_message *msg, void *data, size_t size) {
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

static rail_result_t receive(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag, void *data,
                             size_t size, bool wait, const struct rt_patience *patience) {
  if (peer < 0 || peer >= b->nranks || (size && !data)) {
    rt_error(RAIL_BAD_ARGUMENT, "bootstrap: rank %d: cannot receive from rank %d (of %d ranks)", b->rank, peer,
             b->nranks);
    return RAIL_BAD_ARGUMENT;
  }
  struct rt_message *msg;
  rail_result_t waited = RAIL_OK;
  pthread_mutex_lock(&b->lock);
  rail_result_t result = look(b, type, peer, tag, patience, &msg);
  while (wait && result == RAIL_IN_PROGRESS && waited == RAIL_OK) {
    waited = rt_boot_wait(b, patience);
    result = look(b, type, peer, tag, patience, &msg);
  }
  int err = errno;
  bool gone = b->gone[peer];
  pthread_mutex_unlock(&b->lock);
  if (result == RAIL_OK) return deliver(b, msg, data, size);
  if (result == RAIL_IN_PROGRESS && !wait)
    return rt_boot_check(b, NULL) == RAIL_OK ? RAIL_IN_PROGRESS : RAIL_REMOTE_ERROR;
  if (result == RAIL_IN_PROGRESS) result = waited;
  if (ending(b, patience)) return result;
  if (gone) {
    rt_error(result,
             "bootstrap: rank %d waits for a message of rank %d (%s), tag %u, which has closed the communicator",
             b->rank, peer, rt_bootstrap_peer_text(b, peer), tag);
  } else if (err == ETIMEDOUT) {
    rt_error(result, "bootstrap: rank %d: no message from rank %d (%s), tag %u, within %" PRIu64 " ms", b->rank, peer,
             rt_bootstrap_peer_text(b, peer), tag, b->args.timeout_ms);
  }
  return result;
}

rail_result_t rt_boot_recv(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag, void *data,
                           size_t size, const struct rt_patience *patience) {
  return receive(b, type, peer, tag, data, size, true, patience);
}

/* ---- the public forms ---- */

rail_result_t rt_bootstrap_send(struct rt_bootstrap *b, int peer, uint32_t tag, const void *data, size_t size) {
  return rt_boot_send(b, RT_BOOT_MESSAGE, peer, tag, data, size, NULL);
}

rail_result_t rt_bootstrap_recv(struct rt_bootstrap *b, int peer, uint32_t tag, void *data, size_t size) {
  return receive(b, RT_BOOT_MESSAGE, peer, tag, data, size, true, NULL);
}

rail_result_t rt_bootstrap_try_recv(struct rt_bootstrap *b, int peer, uint32_t tag, void *data, size_t size) {
  return receive(b, RT_BOOT_MESSAGE, peer, tag, data, size, false, NULL);
}

/* Ring: in step s this rank passes on the block that came in step s - 1. */
static rail_result_t gather_piece(struct rt_bootstrap *b, char *all, size_t each, size_t at, size_t size) {
  int n = b->nranks, next = (b->rank + 1) % n, prev = (b->rank + n - 1) % n;
  pthread_mutex_lock(&b->lock);
  uint32_t tag = b->gathers++;
  pthread_mutex_unlock(&b->lock);
  for (int step = 0; step < n - 1; step++) {
    size_t mine = (size_t)((b->rank - step + n) % n), theirs = (size_t)((prev - step + n) % n);
    RAIL_TRY(rt_boot_send(b, RT_BOOT_GATHER, next, tag, all + mine * each + at, size, NULL));
    RAIL_TRY(rt_boot_recv(b, RT_BOOT_GATHER, prev, tag, all + theirs * each + at, size, NULL));
  }
  return RAIL_OK;
}

/* A rank that lags may find everybody's blocks waiting, hence pieces: no rank gets two pieces ahead of another. */
rail_result_t rt_bootstrap_allgather(struct rt_bootstrap *b, void *all, size_t each) {
  if (b->nranks == 1 || each == 0) return rt_boot_check(b, NULL);
  size_t piece = RAIL_MAX((size_t)1, GATHER_WINDOW / (size_t)b->nranks);
  for (size_t at = 0; at < each; at += piece) RAIL_TRY(gather_piece(b, all, each, at, RAIL_MIN(piece, each - at)));
  return RAIL_OK;
}

/* Dissemination: after step k each rank has heard, directly or not, of 2^(k+1) ranks before it. */
rail_result_t rt_bootstrap_barrier(struct rt_bootstrap *b) {
  int n = b->nranks;
  pthread_mutex_lock(&b->lock);
  uint32_t tag = b->gathers++;
  pthread_mutex_unlock(&b->lock);
  for (int step = 1; step < n; step *= 2) {
    RAIL_TRY(rt_boot_send(b, RT_BOOT_GATHER, (b->rank + step) % n, tag, NULL, 0, NULL));
    RAIL_TRY(rt_boot_recv(b, RT_BOOT_GATHER, (b->rank + n - step % n) % n, tag, NULL, 0, NULL));
  }
  return rt_boot_check(b, NULL);
}
