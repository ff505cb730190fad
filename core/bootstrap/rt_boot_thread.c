/* SPDX-License-Identifier: Apache-2.0
 *
 * The bootstrap thread of one communicator: accepts peers, queues their messages for the receives, sends heartbeats to
 * both neighbours of the ring and notices when one of them died. The neighbours of a dead rank notice it first; they
 * pass it on.
 *
 * It sleeps in epoll_wait and wakes for traffic, for its event descriptor, and for the next heartbeat.
 *
 * A forked child that outlives a rank keeps that rank's sockets open, so that no connection closes when the rank is
 * killed; then only the missing heartbeats show it.
 */
#include <errno.h>
#include <inttypes.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "core/bootstrap/rt_boot.h"

#define PENDING_MAX 256 /* pending connections; beyond, one is dropped */
#define GOODBYE_MS 1000 /* close waits no longer for the goodbyes to be acknowledged */
#define READS_PER_PASS 64      /* of one connection before the others are read */

/* ---- reading ---- */

/* The connection has ended, or failed with err. */
static void handle_end(struct rt_bootstrap *b, struct rt_boot_conn *c, int err) {
  switch (c->kind) {
    case RT_BOOT_CONN_DATA:
      pthread_mutex_lock(&b->lock);
      b->data_closed[c->peer] = 1;
      pthread_cond_broadcast(&b->cond);
      pthread_mutex_unlock(&b->lock);
      break;
    case RT_BOOT_CONN_RING:
      if (!c->goodbye)
        rt_boot_peer_failed(b, c, "died: connection closed%s%s", err ? ": " : "", err ? strerror(err) : "");
      break;
  }
  rt_boot_conn_close(b, c);
}

/* Room for a message's body; it counts towards the limit from now on. */
static struct rt_boot_message *new_message(struct rt_bootstrap *b, const struct rt_boot_conn *c) {
  struct rt_boot_message *msg = NULL;
  pthread_mutex_lock(&b->lock);
  bool fits = b->unexpected_bytes + c->head.length <= RT_BOOT_UNEXPECTED_MAX;
  if (fits) b->unexpected_bytes += c->head.length;
  pthread_mutex_unlock(&b->lock);
  if (fits) {
    msg = malloc(sizeof *msg + c->head.length);
    if (msg) {
      *msg = (struct rt_boot_message){
          .peer = (uint32_t)c->peer, .tag = c->head.tag, .type = c->head.type, .size = c->head.length};
      return msg;
    }
    pthread_mutex_lock(&b->lock);
    b->unexpected_bytes -= c->head.length;
    pthread_mutex_unlock(&b->lock);
  }
  char why[160];
  snprintf(why, sizeof why, "rank %d has %s for a message of %" PRIu32 " bytes from rank %d", b->rank,
           fits ? "no memory" : "too many messages that nobody receives, and no room", c->head.length, c->peer);
  rt_boot_fail(b, NULL, b->rank, RAIL_SYSTEM_ERROR, why);
  return NULL;
}

/* A whole header has come: may this connection carry such a message? False: the connection is closed. */
static bool handle_header(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  const struct rt_boot_header *h = &c->head;
  const char *error = rt_boot_header_error(h, RT_BOOT_MAX_MESSAGE);
  bool expected = false;
  if (c->kind == RT_BOOT_CONN_DATA) {
    expected = h->type == RT_BOOT_MESSAGE || h->type == RT_BOOT_GATHER || h->type == RT_BOOT_SPLIT;
  } else if (h->type == RT_BOOT_ABORT) {
    expected = h->length >= offsetof(struct rt_boot_abort, text) && h->length <= sizeof c->abort;
  } else {
    expected = (h->type == RT_BOOT_HEARTBEAT || h->type == RT_BOOT_GOODBYE) && h->length == 0;
  }
  if (!error && !expected) error = "unexpected message";
  if (error) {
    rt_boot_peer_failed(b, c, "broke the bootstrap protocol: %s (type %u, %" PRIu32 " bytes)", error, h->type,
                        h->length);
    rt_boot_conn_close(b, c);
    return false;
  }
  if (c->kind != RT_BOOT_CONN_DATA) return true;
  c->msg = new_message(b, c);
  if (!c->msg) rt_boot_conn_close(b, c);
  return c->msg != NULL;
}

/* A neighbour passes on a failure. */
static void handle_abort(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  char why[RT_BOOT_MAX_TEXT];
  const struct rt_boot_abort *a = &c->abort;
  rt_boot_sanitize_text(why, sizeof why, a->text, c->head.length - offsetof(struct rt_boot_abort, text));
  bool valid = a->result > RAIL_OK && a->result < RAIL_IN_PROGRESS && a->origin < (uint32_t)b->nranks;
  rt_boot_fail(b, c, valid ? (int)a->origin : c->peer, valid ? (rail_result_t)a->result : RAIL_REMOTE_ERROR, why);
}

/* A whole message has come. False: the connection is closed. */
static bool handle_message(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  if (c->kind == RT_BOOT_CONN_DATA) {
    pthread_mutex_lock(&b->lock);
    rt_boot_message_put(b, c->msg);
    pthread_mutex_unlock(&b->lock);
    c->msg = NULL;
    return true;
  }
  if (c->head.type == RT_BOOT_GOODBYE) {
    /* Carries the acknowledgement that the other side waits for. */
    rt_boot_conn_send(b, c, RT_BOOT_HEARTBEAT, 0, NULL, 0);
    c->goodbye = true;
  }
  /* Three of the peer's intervals at least, which may be longer than ours. */
  if (c->head.type == RT_BOOT_HEARTBEAT && c->head.tag)
    c->timeout_ms = RAIL_MAX(b->args.heartbeat_timeout_ms, 3ull * c->head.tag);
  if (c->head.type == RT_BOOT_ABORT) handle_abort(b, c);
  return true;
}

void rt_boot_conn_read(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  for (int i = 0; i < READS_PER_PASS; i++) {
    rail_result_t result = RAIL_OK;
    if (c->head_have < sizeof c->head) {
      result = rail_sock_recv_some(c->fd, &c->head, sizeof c->head, &c->head_have);
      if (result == RAIL_OK && !handle_header(b, c)) return;
    }
    if (result == RAIL_OK) {
      void *body = c->kind == RT_BOOT_CONN_DATA ? (void *)c->msg->data : (void *)&c->abort;
      result = rail_sock_recv_some(c->fd, body, c->head.length, &c->body_have);
    }
    c->last_rx_ns = rail_now_ns();
    if (result == RAIL_IN_PROGRESS) return;
    if (result != RAIL_OK) {
      handle_end(b, c, errno);
      return;
    }
    if (!handle_message(b, c)) return;
    c->head_have = c->body_have = 0;
  }
}

/* ---- accepting ---- */

/* What a pending connection sends first. */
struct first_message {
  struct rt_boot_header head;
  struct rt_boot_peer_hello hello;
};

static const char *hello_error(const struct rt_bootstrap *b, const struct rt_boot_peer_hello *h) {
  int prev = (b->rank + b->nranks - 1) % b->nranks;
  if (!rail_same_bytes(h->secret, b->secret, RT_SECRET_BYTES)) return "wrong secret (a rank of another communicator?)";
  if (h->from >= (uint32_t)b->nranks || h->nranks != (uint32_t)b->nranks) return "it is no rank of this communicator";
  if (h->to != (uint32_t)b->rank) return "it looks for another rank";
  if (h->link != RT_BOOT_LINK_RING && h->link != RT_BOOT_LINK_DATA) return "unknown kind of connection";
  if (h->link == RT_BOOT_LINK_RING && (h->from != (uint32_t)prev || b->prev_connected))
    return "it is not the previous rank, or that one is connected already";
  return NULL;
}

static void add_ring(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  c->neighbour = RT_BOOT_PREV;
  b->thread.ring[RT_BOOT_PREV] = c;
  rt_boot_conn_heartbeat(b, c);
  if (atomic_load(&b->failed)) rt_boot_send_failure(b, c); /* it was not connected when the failure was sent */
  pthread_mutex_lock(&b->lock);
  b->prev_connected = true;
  pthread_cond_broadcast(&b->cond);
  pthread_mutex_unlock(&b->lock);
}

/* A pending connection becomes a ring or data connection, or is dropped. */
static void handle_hello(struct rt_bootstrap *b, struct rail_pending *p) {
  const struct rt_boot_peer_hello *h = &((const struct first_message *)(const void *)p->bytes)->hello;
  const char *error = hello_error(b, h);
  bool ring = h->link == RT_BOOT_LINK_RING;
  struct rt_boot_conn *c = NULL;
  if (!error) {
    c = rt_boot_conn_add(b, p->fd, ring ? RT_BOOT_CONN_RING : RT_BOOT_CONN_DATA, (int)h->from);
    if (!c) error = strerror(errno);
  }
  if (error) {
    rail_pending_drop(&b->thread.pending, p, error);
    return;
  }
  const union rail_addr from = p->peer;
  const unsigned char accepted = RT_BOOT_ACCEPTED;
  (void)rail_pending_remove(&b->thread.pending, p);
  if (ring) {
    add_ring(b, c);
  } else if (send(c->fd, &accepted, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) {
    rail_pending_log(&b->thread.pending, "dropped", &from, "the answer to its hello cannot be sent");
    rt_boot_conn_close(b, c);
  }
}

static bool read_hello(void *bootstrap, struct rail_pending *p) {
  struct rt_bootstrap *b = bootstrap;
  const struct rt_boot_header *head = (const struct rt_boot_header *)(const void *)p->bytes;
  rail_result_t result = p->have < sizeof *head ? rail_pending_read(p, sizeof *head) : RAIL_OK;
  const char *error = NULL;
  if (result == RAIL_OK) {
    error = rt_boot_header_error(head, sizeof(struct rt_boot_peer_hello));
    if (!error && (head->type != RT_BOOT_PEER_HELLO || head->length != sizeof(struct rt_boot_peer_hello)))
      error = "not a hello";
    if (!error) result = rail_pending_read(p, sizeof(struct first_message));
  }
  if (result == RAIL_IN_PROGRESS) return false;
  if (!error && result != RAIL_OK) error = errno ? strerror(errno) : "it closed before its hello";
  if (error) rail_pending_drop(&b->thread.pending, p, error);
  else handle_hello(b, p);
  return true;
}

void rt_boot_pending_init(struct rt_bootstrap *b) {
  static const struct rail_pending_ops ops = {.read = read_hello};
  snprintf(b->thread.name, sizeof b->thread.name, "rank %d of %d", b->rank, b->nranks);
  b->thread.pending = (struct rail_pending_set){.ops = &ops, .owner = b, .module = "bootstrap",
                                                 .name = b->thread.name, .size = sizeof(struct first_message),
                                                 .max = PENDING_MAX, .hello_ms = RT_BOOT_HELLO_MS};
  rail_pending_init(&b->thread.pending);
}

static void poll_pending(struct rt_bootstrap *b) {
  if (rail_pending_poll(&b->thread.pending, &b->listen_fd, 1) != RAIL_OK)
    RAIL_WARN("bootstrap: rank %d cannot accept a connection: %m", b->rank);
}

/* ---- time ---- */

static void check_time(struct rt_bootstrap *b, uint64_t pass_start) {
  uint64_t now = rail_now_ns();
  if (rail_deadline_passed(rail_pending_deadline(&b->thread.pending))) poll_pending(b);
  if (b->args.heartbeat_ms == 0) return;
  if (now >= b->thread.next_heartbeat) {
    b->thread.next_heartbeat = now + b->args.heartbeat_ms * 1000000ull;
    for (int i = 0; i < 2; i++) rt_boot_conn_heartbeat(b, b->thread.ring[i]);
  }
  /* If this process itself was stopped, the neighbours' heartbeats may still have to be read: none is late yet. */
  bool stalled = now - pass_start > (b->args.heartbeat_ms + b->args.heartbeat_timeout_ms / 2) * 1000000ull;
  for (int i = 0; i < 2; i++) {
    struct rt_boot_conn *c = b->thread.ring[i];
    if (!c || c->goodbye || c->timeout_ms == 0) continue;
    if (stalled) c->last_rx_ns = now;
    if (now - c->last_rx_ns > c->timeout_ms * 1000000ull)
      rt_boot_peer_failed(b, c,
                          "was silent for %" PRIu64 " ms: stopped, or the network is down (RAIL_HEARTBEAT_TIMEOUT)",
                          (now - c->last_rx_ns) / 1000000);
  }
}

static int sleep_ms(const struct rt_bootstrap *b) {
  uint64_t until = rail_pending_deadline(&b->thread.pending), beat = b->thread.next_heartbeat;
  if (b->args.heartbeat_ms && (b->thread.ring[0] || b->thread.ring[1])) until = until ? RAIL_MIN(until, beat) : beat;
  return rail_deadline_left_ms(until);
}

/* ---- the thread ---- */

/* May the connection be closed? Yes when the peer has acknowledged all that was sent, or is leaving as well. */
static bool can_close(struct rt_bootstrap *b, int neighbour) {
  struct rt_boot_conn *c = b->thread.ring[neighbour];
  int unacked = 0;
  if (c) rt_boot_conn_flush(b, c);
  if (c) rt_boot_conn_read(b, c); /* the peer's goodbye may have come, or its close */
  c = b->thread.ring[neighbour];
  return !c || c->goodbye || (c->out_have == 0 && (ioctl(c->fd, SIOCOUTQ, &unacked) != 0 || unacked == 0));
}

/* Closing a socket with unread heartbeats resets the connection, and the reset could overtake the goodbye; hence the
 * wait for the acknowledgement. */
static void send_goodbyes(struct rt_bootstrap *b) {
  uint64_t deadline = rail_deadline_in_ms(GOODBYE_MS);
  for (int i = 0; i < 2; i++) rt_boot_conn_send(b, b->thread.ring[i], RT_BOOT_GOODBYE, 0, NULL, 0);
  for (;;) {
    bool next = can_close(b, RT_BOOT_NEXT), prev = can_close(b, RT_BOOT_PREV); /* both, each time */
    if ((next && prev) || rail_deadline_passed(deadline)) return;
    struct pollfd fds[2] = {{.fd = next ? -1 : b->thread.ring[RT_BOOT_NEXT]->fd, .events = POLLIN},
                            {.fd = prev ? -1 : b->thread.ring[RT_BOOT_PREV]->fd, .events = POLLIN}};
    poll(fds, 2, 1);
  }
}

static void *bootstrap_thread(void *arg) {
  struct rt_bootstrap *b = arg;
  struct epoll_event events[64];
  uint64_t value;
  for (;;) {
    uint64_t pass_start = rail_now_ns();
    int n = epoll_wait(b->thread.epoll_fd, events, RAIL_COUNT_OF(events), sleep_ms(b));
    for (int i = 0; i < n; i++) {
      void *source = events[i].data.ptr;
      if (!source) {
        while (read(b->event_fd, &value, sizeof value) < 0 && errno == EINTR) {}
      } else if (source == b) {
        poll_pending(b);
      } else {
        struct rt_boot_conn *c = source;
        if (c->fd >= 0 && (events[i].events & EPOLLOUT)) rt_boot_conn_flush(b, c);
        if (c->fd >= 0 && (events[i].events & ~(uint32_t)EPOLLOUT)) rt_boot_conn_read(b, c);
      }
    }
    pthread_mutex_lock(&b->lock);
    bool closing = b->closing, aborted = b->aborted_here;
    pthread_mutex_unlock(&b->lock);
    if (aborted) rt_boot_send_failure_once(b, NULL);
    if (closing) break;
    check_time(b, pass_start);
    rt_boot_conn_free_closed(b);
  }
  send_goodbyes(b);
  return NULL;
}

/* ---- start, stop ---- */

void rt_boot_thread_wake(struct rt_bootstrap *b) {
  uint64_t one = 1;
  if (b->event_fd < 0) return;
  while (write(b->event_fd, &one, sizeof one) < 0 && errno == EINTR) {}
}

static void close_all(struct rt_bootstrap *b) {
  while (!LIST_EMPTY(&b->thread.conns)) rt_boot_conn_close(b, LIST_FIRST(&b->thread.conns));
  rt_boot_conn_free_closed(b);
  rail_pending_close(&b->thread.pending);
  rail_sock_close(&b->thread.epoll_fd);
}

rail_result_t rt_boot_thread_start(struct rt_bootstrap *b, int next_fd) {
  struct epoll_event wake = {.events = EPOLLIN, .data.ptr = NULL}, pending = {.events = EPOLLIN, .data.ptr = b};
  b->thread.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  b->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (b->thread.epoll_fd < 0 || b->event_fd < 0) goto failed;
  if (epoll_ctl(b->thread.epoll_fd, EPOLL_CTL_ADD, b->event_fd, &wake) != 0) goto failed;
  if (!rail_pending_watch(&b->thread.pending, b->listen_fd)) goto failed;
  if (epoll_ctl(b->thread.epoll_fd, EPOLL_CTL_ADD, b->thread.pending.epoll, &pending) != 0) goto failed;
  struct rt_boot_conn *c = rt_boot_conn_add(b, next_fd, RT_BOOT_CONN_RING, (b->rank + 1) % b->nranks);
  if (!c) goto failed;
  next_fd = -1; /* the connection's now */
  c->neighbour = RT_BOOT_NEXT;
  b->thread.ring[RT_BOOT_NEXT] = c;
  rt_boot_conn_heartbeat(b, c);
  b->thread.next_heartbeat = rail_deadline_in_ms(b->args.heartbeat_ms);
  int err = rail_thread_start("rail-bootstrap", bootstrap_thread, b, &b->thread_id);
  if (err == 0) {
    b->thread_started = true;
    return RAIL_OK;
  }
  errno = err;

failed:
  RAIL_WARN("bootstrap: rank %d cannot start its bootstrap thread: %m", b->rank);
  rail_sock_close(&next_fd);
  close_all(b);
  return RAIL_SYSTEM_ERROR;
}

void rt_boot_thread_stop(struct rt_bootstrap *b) {
  if (b->thread_started) {
    pthread_mutex_lock(&b->lock);
    b->closing = true;
    pthread_mutex_unlock(&b->lock);
    rt_boot_thread_wake(b);
    pthread_join(b->thread_id, NULL);
    b->thread_started = false;
    close_all(b);
  }
  rail_sock_close(&b->event_fd);
}
