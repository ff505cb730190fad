/* SPDX-License-Identifier: Apache-2.0
 *
 * The service thread of one communicator: accepts peers, files their
 * messages, keeps the heartbeats of the two ring connections and finds out that a
 * neighbour died. A failure is known to the neighbours of the dead rank first;
 * they pass it on around the ring, each rank once, away from where it came.
 *
 * It sleeps in epoll_wait and wakes for traffic, for its event descriptor, and
 * for the next heartbeat.
 *
 * A forked child that outlives a rank keeps that rank's sockets open, so that no
 * connection closes when it is killed; then the heartbeats find it out.
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "core/bootstrap/rt_boot_conn.h"

#define STRANGER_MS 10000   /* to introduce oneself */
#define STRANGERS_MAX 256   /* connections that have not yet; beyond, the oldest goes */
#define ACCEPT_PAUSE_MS 100 /* when accept fails for want of descriptors */
#define GOODBYE_MS 1000     /* at most, to get the last words out */

/* ---- failure ---- */

void rt_watch_tell(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  struct rt_boot_abort out;
  pthread_mutex_lock(&b->lock);
  size_t len = strnlen(b->why, sizeof out.text);
  out.origin = (uint32_t)b->origin;
  out.result = (uint32_t)atomic_load(&b->failed);
  memcpy(out.text, b->why, len);
  pthread_mutex_unlock(&b->lock);
  rt_boot_conn_queue(b, c, RT_BOOT_ABORT, 0, &out, offsetof(struct rt_boot_abort, text) + len);
}

/* Passes the failure on, except to `source`. Once. */
static void spread(struct rt_bootstrap *b, const struct rt_boot_conn *source) {
  if (b->watch.spread) return;
  b->watch.spread = true;
  for (int i = 0; i < 2; i++)
    if (b->watch.ring[i] != source) rt_watch_tell(b, b->watch.ring[i]);
}

void rt_watch_fail(struct rt_bootstrap *b, const struct rt_boot_conn *source, int origin, rail_result_t result,
                   const char *why) {
  pthread_mutex_lock(&b->lock);
  bool first = atomic_load(&b->failed) == 0 && !b->closing;
  if (first) {
    snprintf(b->why, sizeof b->why, "%s", why);
    b->origin = origin;
    atomic_store_explicit(&b->failed, (int)result, memory_order_release);
    pthread_cond_broadcast(&b->cond);
  }
  pthread_mutex_unlock(&b->lock);
  if (!first) return;
  RAIL_WARN("bootstrap: rank %d of %d ends the communicator: %s", b->rank, b->nranks, why);
  spread(b, source);
  if (b->args.on_failure) b->args.on_failure(b->args.arg, result, why);
}

void rt_watch_peer_failed(struct rt_bootstrap *b, const struct rt_boot_conn *c, const char *fmt, ...) {
  char what[200], why[RT_BOOT_MAX_TEXT];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  snprintf(why, sizeof why, "rank %d (%s) %s", c->peer, rt_bootstrap_peer_text(b, c->peer), what);
  rt_watch_fail(b, c, c->peer, RAIL_REMOTE_ERROR, why);
}

/* ---- accepting ---- */

static void drop_oldest_stranger(struct rt_bootstrap *b) {
  struct rt_boot_conn *oldest = NULL;
  for (struct rt_boot_conn *c = b->watch.conns; c; c = c->next)
    if (c->kind == RT_BOOT_CONN_STRANGER && (!oldest || c->since < oldest->since)) oldest = c;
  if (oldest) rt_boot_conn_drop_stranger(b, oldest, "too many silent connections, this is the oldest");
}

static void watch_listener(struct rt_bootstrap *b, bool on) {
  struct epoll_event ev = {.events = on ? EPOLLIN : 0, .data.ptr = b};
  epoll_ctl(b->watch.epoll_fd, EPOLL_CTL_MOD, b->listen_fd, &ev);
  b->watch.accept_after = on ? 0 : rail_deadline_in_ms(ACCEPT_PAUSE_MS);
}

static void accept_peers(struct rt_bootstrap *b) {
  for (;;) {
    int fd;
    union rail_addr from;
    rail_result_t result = rail_sock_accept(b->listen_fd, &fd, &from);
    if (result == RAIL_IN_PROGRESS) return;
    struct rt_boot_conn *c = result == RAIL_OK ? rt_boot_conn_add(b, fd, RT_BOOT_CONN_STRANGER) : NULL;
    if (!c) {
      RAIL_WARN("bootstrap: rank %d cannot accept a connection: %m; raise the limit of open files", b->rank);
      rail_sock_close(&fd);
      watch_listener(b, false);
      return;
    }
    c->from = from;
    if (++b->watch.nstrangers > STRANGERS_MAX) drop_oldest_stranger(b);
  }
}

/* ---- time ---- */

static void check_time(struct rt_bootstrap *b, uint64_t round_start) {
  uint64_t now = rail_now_ns();
  if (b->watch.accept_after && now >= b->watch.accept_after) watch_listener(b, true);
  for (struct rt_boot_conn *c = b->watch.conns, *next; c && b->watch.nstrangers; c = next) {
    next = c->next;
    if (c->kind == RT_BOOT_CONN_STRANGER && now - c->since > STRANGER_MS * 1000000ull)
      rt_boot_conn_drop_stranger(b, c, "it did not introduce itself in time");
  }
  if (b->args.heartbeat_ms == 0) return;
  if (now >= b->watch.beat_at) {
    b->watch.beat_at = now + b->args.heartbeat_ms * 1000000ull;
    for (int i = 0; i < 2; i++) rt_boot_conn_heartbeat(b, b->watch.ring[i]);
  }
  /* If this process itself was stopped, the neighbours' heartbeats may be on their way: judge nobody yet. */
  bool stalled = now - round_start > (b->args.heartbeat_ms + b->args.heartbeat_timeout_ms / 2) * 1000000ull;
  for (int i = 0; i < 2; i++) {
    struct rt_boot_conn *c = b->watch.ring[i];
    if (!c || c->departed || c->silence_ms == 0) continue;
    if (stalled) c->heard = now;
    if (now - c->heard > c->silence_ms * 1000000ull)
      rt_watch_peer_failed(b, c,
                           "was silent for %" PRIu64 " ms: stopped, or the network is down (RAIL_HEARTBEAT_TIMEOUT)",
                           (now - c->heard) / 1000000);
  }
}

static int sleep_ms(const struct rt_bootstrap *b) {
  uint64_t until = 0;
  if (b->args.heartbeat_ms && (b->watch.ring[0] || b->watch.ring[1])) until = b->watch.beat_at;
  if (b->watch.nstrangers) until = RAIL_MIN(until ? until : UINT64_MAX, rail_deadline_in_ms(STRANGER_MS / 10));
  if (b->watch.accept_after) until = RAIL_MIN(until ? until : UINT64_MAX, b->watch.accept_after);
  return rail_deadline_left_ms(until);
}

/* ---- the thread ---- */

/* May the connection be closed? When the peer's kernel has all that was queued, or the peer is leaving as well. */
static bool parted(struct rt_bootstrap *b, int place) {
  struct rt_boot_conn *c = b->watch.ring[place];
  int unacked = 0;
  if (c) rt_boot_conn_flush(b, c);
  if (c) rt_boot_conn_read(b, c); /* its goodbye may be here; finishes c when it has closed */
  c = b->watch.ring[place];
  return !c || c->departed || (c->out_have == 0 && (ioctl(c->fd, SIOCOUTQ, &unacked) != 0 || unacked == 0));
}

/* Last words. A close while heartbeats lie unread resets the connection, which could take the goodbye with it; hence
 * the wait for the acknowledgement. */
static void say_goodbye(struct rt_bootstrap *b) {
  uint64_t deadline = rail_deadline_in_ms(GOODBYE_MS);
  for (int i = 0; i < 2; i++) rt_boot_conn_queue(b, b->watch.ring[i], RT_BOOT_GOODBYE, 0, NULL, 0);
  for (;;) {
    bool next = parted(b, RT_TO_NEXT), prev = parted(b, RT_FROM_PREV); /* both have their turn each time */
    if ((next && prev) || rail_deadline_passed(deadline)) return;
    struct pollfd fds[2] = {{.fd = next ? -1 : b->watch.ring[RT_TO_NEXT]->fd, .events = POLLIN},
                            {.fd = prev ? -1 : b->watch.ring[RT_FROM_PREV]->fd, .events = POLLIN}};
    poll(fds, 2, 1);
  }
}

static bool must_end(struct rt_bootstrap *b) {
  pthread_mutex_lock(&b->lock);
  bool closing = b->closing, own_abort = b->local;
  pthread_mutex_unlock(&b->lock);
  if (own_abort) spread(b, NULL);
  return closing;
}

static void *watch_main(void *arg) {
  struct rt_bootstrap *b = arg;
  struct epoll_event events[64];
  uint64_t value;
  for (;;) {
    uint64_t round_start = rail_now_ns();
    int n = epoll_wait(b->watch.epoll_fd, events, RAIL_COUNT_OF(events), sleep_ms(b));
    for (int i = 0; i < n; i++) {
      void *who = events[i].data.ptr;
      if (!who) {
        while (read(b->event_fd, &value, sizeof value) < 0 && errno == EINTR) {}
      } else if (who == b) {
        accept_peers(b);
      } else {
        struct rt_boot_conn *c = who;
        if (c->fd >= 0 && (events[i].events & EPOLLOUT)) rt_boot_conn_flush(b, c);
        if (c->fd >= 0 && (events[i].events & ~(uint32_t)EPOLLOUT)) rt_boot_conn_read(b, c);
      }
    }
    bool end = must_end(b);
    if (end) break;
    check_time(b, round_start);
    rt_boot_conn_free_finished(b);
  }
  say_goodbye(b);
  return NULL;
}

/* ---- start, stop ---- */

void rt_watch_wake(struct rt_bootstrap *b) {
  uint64_t one = 1;
  if (b->event_fd < 0) return;
  while (write(b->event_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

static void close_all(struct rt_bootstrap *b) {
  while (b->watch.conns) rt_boot_conn_finish(b, b->watch.conns);
  rt_boot_conn_free_finished(b);
  rail_sock_close(&b->watch.epoll_fd);
}

rail_result_t rt_watch_start(struct rt_bootstrap *b, int next_fd) {
  struct epoll_event wake = {.events = EPOLLIN, .data.ptr = NULL}, listener = {.events = EPOLLIN, .data.ptr = b};
  b->watch.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  b->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (b->watch.epoll_fd < 0 || b->event_fd < 0) goto failed;
  if (epoll_ctl(b->watch.epoll_fd, EPOLL_CTL_ADD, b->event_fd, &wake) != 0) goto failed;
  if (epoll_ctl(b->watch.epoll_fd, EPOLL_CTL_ADD, b->listen_fd, &listener) != 0) goto failed;
  struct rt_boot_conn *c = rt_boot_conn_add(b, next_fd, RT_BOOT_CONN_RING);
  if (!c) goto failed;
  next_fd = -1; /* the connection's now */
  c->place = RT_TO_NEXT;
  c->peer = (b->rank + 1) % b->nranks;
  c->from = b->addrs[c->peer];
  b->watch.ring[RT_TO_NEXT] = c;
  rt_boot_conn_heartbeat(b, c);
  b->watch.beat_at = rail_deadline_in_ms(b->args.heartbeat_ms);
  int err = rail_thread_start("rail-bootstrap", watch_main, b, &b->thread);
  if (err == 0) {
    b->thread_on = true;
    return RAIL_OK;
  }
  errno = err;

failed:
  RAIL_WARN("bootstrap: rank %d cannot start its service thread: %m", b->rank);
  rail_sock_close(&next_fd);
  close_all(b);
  return RAIL_SYSTEM_ERROR;
}

void rt_watch_stop(struct rt_bootstrap *b) {
  if (b->thread_on) {
    pthread_mutex_lock(&b->lock);
    b->closing = true;
    pthread_mutex_unlock(&b->lock);
    rt_watch_wake(b);
    pthread_join(b->thread, NULL);
    b->thread_on = false;
    close_all(b);
  }
  rail_sock_close(&b->event_fd);
}
