/* SPDX-License-Identifier: Apache-2.0
 *
 * The bootstrap thread's connections: opened, written, closed; and failures, which a
 * rank learns from a neighbour or finds out about it, and passes on along the ring:
 * each rank once, away from where it came.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "core/bootstrap/rt_boot.h"

struct rt_boot_conn *rt_boot_conn_add(struct rt_bootstrap *b, int fd, enum rt_boot_conn_kind kind, int peer) {
  struct rt_boot_conn *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->fd = fd;
  c->kind = kind;
  c->peer = peer;
  c->last_rx_ns = rail_now_ns();
  struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
  if (epoll_ctl(b->thread.epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
    free(c);
    return NULL;
  }
  LIST_INSERT_HEAD(&b->thread.conns, c, link);
  return c;
}

void rt_boot_conn_close(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  if (c->fd < 0) return;
  /* Closing alone would not do it where a forked child holds the socket too. */
  epoll_ctl(b->thread.epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
  if (c->kind == RT_BOOT_CONN_RING) b->thread.ring[c->neighbour] = NULL;
  if (c->msg) {
    pthread_mutex_lock(&b->lock);
    b->unexpected_bytes -= c->msg->size;
    pthread_mutex_unlock(&b->lock);
    free(c->msg);
  }
  rail_sock_close(&c->fd);
  LIST_REMOVE(c, link);
  LIST_INSERT_HEAD(&b->thread.closed, c, link);
}

void rt_boot_conn_free_closed(struct rt_bootstrap *b) {
  struct rt_boot_conn *c;
  while ((c = LIST_FIRST(&b->thread.closed)) != NULL) {
    LIST_REMOVE(c, link);
    free(c);
  }
}

/* ---- writing on the ring ---- */

static void set_events(struct rt_bootstrap *b, struct rt_boot_conn *c, uint32_t events) {
  struct epoll_event ev = {.events = events, .data.ptr = c};
  epoll_ctl(b->thread.epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
}

/* An error is left to the reading side, which gets the same one and reports it. */
void rt_boot_conn_flush(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  if (c->out_have == c->out_sent) return;
  rail_result_t result = rail_sock_send_some(c->fd, c->out, c->out_have, &c->out_sent);
  if (result == RAIL_IN_PROGRESS) {
    set_events(b, c, EPOLLIN | EPOLLOUT);
    return;
  }
  c->out_have = c->out_sent = 0;
  set_events(b, c, EPOLLIN);
}

/* `out` has room for one message of each type: a heartbeat is only sent when it is empty, the others are sent once. */
void rt_boot_conn_send(struct rt_bootstrap *b, struct rt_boot_conn *c, enum rt_boot_type type, uint32_t tag,
                       const void *body, size_t size) {
  struct rt_boot_header head = rt_boot_header_make(type, tag, size);
  if (!c || c->goodbye || c->out_have + sizeof head + size > sizeof c->out) return;
  memcpy(c->out + c->out_have, &head, sizeof head);
  if (size) memcpy(c->out + c->out_have + sizeof head, body, size);
  c->out_have += sizeof head + size;
  rt_boot_conn_flush(b, c);
}

void rt_boot_conn_heartbeat(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  if (b->args.heartbeat_ms == 0 || !c || c->out_have) return;
  rt_boot_conn_send(b, c, RT_BOOT_HEARTBEAT, (uint32_t)RAIL_MIN(b->args.heartbeat_ms, (uint64_t)UINT32_MAX), NULL, 0);
}

/* ---- failure ---- */

void rt_boot_send_failure(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  struct rt_boot_abort out;
  pthread_mutex_lock(&b->lock);
  size_t len = strnlen(b->why, sizeof out.text);
  out.origin = (uint32_t)b->origin;
  out.result = (uint32_t)atomic_load(&b->failed);
  memcpy(out.text, b->why, len);
  pthread_mutex_unlock(&b->lock);
  rt_boot_conn_send(b, c, RT_BOOT_ABORT, 0, &out, offsetof(struct rt_boot_abort, text) + len);
}

void rt_boot_send_failure_once(struct rt_bootstrap *b, const struct rt_boot_conn *source) {
  if (b->thread.failure_sent) return;
  b->thread.failure_sent = true;
  for (int i = 0; i < 2; i++)
    if (b->thread.ring[i] != source) rt_boot_send_failure(b, b->thread.ring[i]);
}

void rt_boot_fail(struct rt_bootstrap *b, const struct rt_boot_conn *source, int origin, rail_result_t result,
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
  rt_boot_send_failure_once(b, source);
  if (b->args.on_failure) b->args.on_failure(b->args.arg, result, why);
}

void rt_boot_peer_failed(struct rt_bootstrap *b, const struct rt_boot_conn *c, const char *fmt, ...) {
  char what[200], why[RT_BOOT_MAX_TEXT];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  snprintf(why, sizeof why, "rank %d (%s) %s", c->peer, rt_bootstrap_peer_text(b, c->peer), what);
  rt_boot_fail(b, c, c->peer, RAIL_REMOTE_ERROR, why);
}
