/* SPDX-License-Identifier: Apache-2.0
 * The list of closed connections whose sockets still deliver. */
#include "common/conn/linger.h"

#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "common/base/clock.h"
#include "common/base/log.h"

#define GRACE_MS 2000   /* for the peer's own end, after our bytes have arrived: its caller may be busy for so long */
#define FINAL_MS 1000   /* at the last finalize, for what was not reported as sent */
#define REAP_AT_ONCE 16 /* comms, and reads of 16 KiB of a socket, in one call: both in passing, some 100 us */
#define DRAIN_READS 4
#define MAX_LINGER 1024 /* comms; then the first is dropped: their descriptors are limited */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static STAILQ_HEAD(, rail_linger) list = STAILQ_HEAD_INITIALIZER(list); /* least recently checked first */
static _Atomic uint32_t count;

bool rail_linger_any(void) { return count != 0; }

static void free_linger(struct rail_linger *l) {
  for (uint32_t i = 0; i < l->nfds; i++) {
    rail_sock_close(&l->fds[i]);
    free(l->tails[i].bytes);
  }
  free(l);
}

/* True when the peer has ended the stream (or it is dead) and nothing is left to read. */
static bool drain(int fd) {
  uint8_t scratch[16 * 1024];
  struct iovec iov = {.iov_base = scratch, .iov_len = sizeof scratch};
  for (int i = 0; i < DRAIN_READS; i++) {
    size_t n;
    rail_result_t result = rail_sock_recvv(fd, &iov, 1, &n);
    if (result == RAIL_IN_PROGRESS) return false;
    if (result != RAIL_OK) return true;
  }
  return false;
}

/* Bytes that the peer's kernel does not have. */
static size_t undelivered_bytes(const struct rail_linger *l) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < l->nfds; i++) {
    int unsent = 0; /* the end of the stream counts as one */
    bytes += l->tails[i].size - l->tails[i].done;
    if (l->fds[i] >= 0 && ioctl(l->fds[i], SIOCOUTQ, &unsent) == 0 && unsent > 1) bytes += (size_t)unsent - 1;
  }
  return bytes;
}

static void end_linger(struct rail_linger *l) {
  char peer[RAIL_ADDR_TEXT];
  size_t lost = l->reported_sent ? undelivered_bytes(l) : 0;
  if (lost)
    RAIL_WARN("%s: closing the connection to %s: %zu bytes that were sent have not arrived after %.1f s and "
              "may be lost: the peer is stopped or reads nothing, or the network is down. %s is how long finalize "
              "waits for them", l->plugin,
              rail_addr_text(&l->peer, peer), lost, (double)(rail_now_ns() - l->added) / 1e9, l->close_param);
  free_linger(l);
}

static void send_tail(int fd, struct rail_linger_tail *tail) {
  if (tail->done == tail->size) return;
  rail_result_t result = rail_sock_send_some(fd, tail->bytes, tail->size, &tail->done);
  if (result == RAIL_OK) shutdown(fd, SHUT_WR);
  else if (result != RAIL_IN_PROGRESS) tail->done = tail->size;
}

/* One step for one comm's sockets; true when there is nothing more to do for it. */
static bool step(struct rail_linger *l, uint64_t now) {
  bool ended = true;
  for (uint32_t i = 0; i < l->nfds; i++) {
    send_tail(l->fds[i], &l->tails[i]);
    if (l->fds[i] >= 0 && drain(l->fds[i])) rail_sock_close(&l->fds[i]);
    ended &= l->fds[i] < 0;
  }
  if (ended) return true;
  uint64_t age_ms = (now - l->added) / 1000000;
  uint64_t limit_ms = (uint64_t)l->peer_ms;
  return (limit_ms && age_ms >= limit_ms) || (age_ms >= GRACE_MS && undelivered_bytes(l) == 0);
}

/* Under the lock: a step for each of the first `n`, which then go to the end. */
static void reap(uint32_t n) {
  uint64_t now = rail_now_ns();
  struct rail_linger *l;
  for (; n > 0 && (l = STAILQ_FIRST(&list)); n--) {
    STAILQ_REMOVE_HEAD(&list, next);
    if (step(l, now)) {
      count--;
      end_linger(l);
    } else {
      STAILQ_INSERT_TAIL(&list, l, next);
    }
  }
}

static void drop_all(void (*end)(struct rail_linger *l)) {
  struct rail_linger *l;
  while ((l = STAILQ_FIRST(&list))) {
    STAILQ_REMOVE_HEAD(&list, next);
    end(l);
  }
  count = 0;
}

void rail_linger_reap(void) {
  if (pthread_mutex_trylock(&lock) != 0) return; /* another thread does it */
  reap(RAIL_MIN(count, REAP_AT_ONCE));
  pthread_mutex_unlock(&lock);
}

void rail_linger_add(struct rail_linger *l) {
  l->added = rail_now_ns();
  pthread_mutex_lock(&lock);
  if (step(l, l->added)) {
    free_linger(l);
  } else {
    STAILQ_INSERT_TAIL(&list, l, next);
    if (++count > MAX_LINGER) {
      struct rail_linger *first = STAILQ_FIRST(&list);
      STAILQ_REMOVE_HEAD(&list, next);
      count--;
      end_linger(first);
    }
  }
  pthread_mutex_unlock(&lock);
}

/* ---- the last finalize, and fork ------------------------------------------- */

static bool must_wait(uint64_t since, uint64_t close_ms) {
  uint64_t now = rail_now_ns();
  const struct rail_linger *l;
  STAILQ_FOREACH(l, &list, next) {
    uint64_t limit_ms = l->reported_sent ? close_ms : RAIL_MIN(close_ms, FINAL_MS);
    if (now - since < limit_ms * 1000000 && undelivered_bytes(l)) return true;
  }
  return false;
}

void rail_linger_wait(uint64_t since, int64_t close_ms) {
  pthread_mutex_lock(&lock);
  for (reap(count); must_wait(since, (uint64_t)close_ms); reap(count)) {
    pthread_mutex_unlock(&lock);
    poll(NULL, 0, 1);
    pthread_mutex_lock(&lock);
  }
  drop_all(end_linger);
  pthread_mutex_unlock(&lock);
}

void rail_linger_before_fork(void) { pthread_mutex_lock(&lock); }

void rail_linger_after_fork(bool child) {
  if (child) drop_all(free_linger); /* the sockets stay the parent's: no shutdown, only this process' copies close */
  pthread_mutex_unlock(&lock);
}
