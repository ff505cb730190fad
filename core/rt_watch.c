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

#include "common/clock.h"
#include "common/log.h"
#include "core/rt_boot.h"
#include "core/rt_thread.h"

#define STRANGER_MS 10000    /* to introduce oneself */
#define STRANGERS_MAX 256    /* connections that have not yet; beyond, the oldest goes */
#define STRANGER_LINES 8     /* log lines about them */
#define ACCEPT_PAUSE_MS 100  /* when accept fails for want of descriptors */
#define GOODBYE_MS 1000      /* at most, to get the last words out */
#define READS_PER_TURN 64    /* of one connection before the others have theirs */

enum conn_kind { CONN_STRANGER, CONN_RING, CONN_DATA };
enum { TO_NEXT, FROM_PREV }; /* places in rt_watch.ring */

struct rt_conn {
  struct rt_conn *next, **link; /* in conns, or next alone in finished */
  int fd; /* -1: finished */
  enum conn_kind kind;
  int place; /* ring: TO_NEXT or FROM_PREV */
  int peer;  /* -1: stranger */
  union rail_addr from;
  uint64_t since; /* stranger: arrival */

  /* what is being read */
  struct rt_boot_header head;
  size_t head_have, body_have;
  union { struct rt_boot_peer_hello hello; struct rt_boot_abort abort; } small;
  struct rt_message *msg; /* data: the body goes here */

  /* ring only */
  uint64_t heard;       /* last time that anything came */
  uint64_t silence_ms;  /* 0 until the first heartbeat: how long it may be silent */
  bool departed;        /* said goodbye */
  unsigned char out[sizeof(struct rt_boot_abort) + 4 * sizeof(struct rt_boot_header)];
  size_t out_have, out_sent;
};

/* ---- connections ---- */

static struct rt_conn *conn_add(struct rt_bootstrap *b, int fd, enum conn_kind kind) {
  struct rt_conn *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->fd = fd;
  c->kind = kind;
  c->peer = -1;
  c->since = c->heard = rail_now_ns();
  struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
  if (epoll_ctl(b->watch.epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
    free(c);
    return NULL;
  }
  c->link = &b->watch.conns;
  c->next = b->watch.conns;
  if (c->next) c->next->link = &c->next;
  b->watch.conns = c;
  return c;
}

/* Freed at the end of the round: an event of the same round may still point here. */
static void conn_finish(struct rt_bootstrap *b, struct rt_conn *c) {
  if (c->fd < 0) return;
  if (c->kind == CONN_STRANGER) b->watch.nstrangers--;
  if (c->kind == CONN_RING) b->watch.ring[c->place] = NULL;
  if (c->msg) {
    pthread_mutex_lock(&b->lock);
    b->box_bytes -= c->msg->size;
    pthread_mutex_unlock(&b->lock);
    free(c->msg);
  }
  rail_sock_close(&c->fd);
  *c->link = c->next;
  if (c->next) c->next->link = c->link;
  c->next = b->watch.finished;
  b->watch.finished = c;
}

static void free_finished(struct rt_bootstrap *b) {
  while (b->watch.finished) {
    struct rt_conn *c = b->watch.finished;
    b->watch.finished = c->next;
    free(c);
  }
}

static void drop_stranger(struct rt_bootstrap *b, struct rt_conn *c, const char *why) {
  char text[RAIL_ADDR_TEXT];
  unsigned line = b->watch.stranger_lines++;
  if (line < STRANGER_LINES)
    RAIL_WARN("bootstrap: rank %d drops the connection from %s: %s%s", b->rank, rail_addr_text(&c->from, text), why,
              line == STRANGER_LINES - 1 ? " (further ones are dropped without a line)" : "");
  conn_finish(b, c);
}

/* ---- writing on the ring ---- */

static void set_events(struct rt_bootstrap *b, struct rt_conn *c, uint32_t events) {
  struct epoll_event ev = {.events = events, .data.ptr = c};
  epoll_ctl(b->watch.epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
}

/* An error here is left to the reading side, which finds the same and says so. */
static void flush(struct rt_bootstrap *b, struct rt_conn *c) {
  if (c->out_have == c->out_sent) return;
  rail_result_t result = rail_sock_send_some(c->fd, c->out, c->out_have, &c->out_sent);
  if (result == RAIL_IN_PROGRESS) {
    set_events(b, c, EPOLLIN | EPOLLOUT);
    return;
  }
  c->out_have = c->out_sent = 0;
  set_events(b, c, EPOLLIN);
}

/* `out` has room for one of each kind: a heartbeat is only queued when it is empty, the others come once. */
static void queue(struct rt_bootstrap *b, struct rt_conn *c, enum rt_boot_type type, uint32_t tag, const void *body,
                  size_t size) {
  struct rt_boot_header head = rt_boot_header_make(type, tag, size);
  if (!c || c->departed || c->out_have + sizeof head + size > sizeof c->out) return;
  memcpy(c->out + c->out_have, &head, sizeof head);
  if (size) memcpy(c->out + c->out_have + sizeof head, body, size);
  c->out_have += sizeof head + size;
  flush(b, c);
}

static void queue_heartbeat(struct rt_bootstrap *b, struct rt_conn *c) {
  if (b->args.heartbeat_ms == 0 || !c || c->out_have) return;
  queue(b, c, RT_BOOT_HEARTBEAT, (uint32_t)RAIL_MIN(b->args.heartbeat_ms, (uint64_t)UINT32_MAX), NULL, 0);
}

/* ---- failure ---- */

/* Passes the failure on, except to `source`. Once. */
static void spread(struct rt_bootstrap *b, const struct rt_conn *source) {
  struct rt_boot_abort out;
  if (b->watch.spread) return;
  b->watch.spread = true;
  pthread_mutex_lock(&b->lock);
  size_t len = strnlen(b->why, sizeof out.text);
  out.origin = (uint32_t)b->origin;
  out.result = (uint32_t)atomic_load(&b->failed);
  memcpy(out.text, b->why, len);
  pthread_mutex_unlock(&b->lock);
  for (int i = 0; i < 2; i++)
    if (b->watch.ring[i] != source)
      queue(b, b->watch.ring[i], RT_BOOT_ABORT, 0, &out, offsetof(struct rt_boot_abort, text) + len);
}

/* A failure that this thread found or was told of. Later ones, and any while closing, are of no interest. */
static void fail(struct rt_bootstrap *b, const struct rt_conn *source, int origin, rail_result_t result,
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

RAIL_PRINTF(3, 4) static void peer_failed(struct rt_bootstrap *b, const struct rt_conn *c, const char *fmt, ...) {
  char what[200], why[RT_BOOT_MAX_TEXT];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  snprintf(why, sizeof why, "rank %d (%s) %s", c->peer, rt_bootstrap_peer_text(b, c->peer), what);
  fail(b, c, c->peer, RAIL_REMOTE_ERROR, why);
}

/* ---- reading ---- */

/* The connection has ended: err 0 is a plain end. */
static void lost(struct rt_bootstrap *b, struct rt_conn *c, int err) {
  switch (c->kind) {
    case CONN_STRANGER:
      drop_stranger(b, c, err ? strerror(err) : "it hung up before its introduction");
      return;
    case CONN_DATA:
      pthread_mutex_lock(&b->lock);
      b->gone[c->peer] = 1;
      pthread_cond_broadcast(&b->cond);
      pthread_mutex_unlock(&b->lock);
      break;
    case CONN_RING:
      if (!c->departed) peer_failed(b, c, "died: connection closed%s%s", err ? ": " : "", err ? strerror(err) : "");
      break;
  }
  conn_finish(b, c);
}

static void broke_protocol(struct rt_bootstrap *b, struct rt_conn *c, const char *what) {
  peer_failed(b, c, "broke the bootstrap protocol: %s (type %u, %" PRIu32 " bytes)", what, c->head.type, c->head.length);
  conn_finish(b, c);
}

/* Room for a message's body; counted against the limit from now on. */
static struct rt_message *new_message(struct rt_bootstrap *b, const struct rt_conn *c) {
  struct rt_message *msg = NULL;
  pthread_mutex_lock(&b->lock);
  bool fits = b->box_bytes + c->head.length <= RT_BOX_MAX_BYTES;
  if (fits) b->box_bytes += c->head.length;
  pthread_mutex_unlock(&b->lock);
  if (fits) {
    msg = malloc(sizeof *msg + c->head.length);
    if (msg) {
      *msg = (struct rt_message){.peer = (uint32_t)c->peer, .tag = c->head.tag, .type = c->head.type,
                                 .size = c->head.length};
      return msg;
    }
    pthread_mutex_lock(&b->lock);
    b->box_bytes -= c->head.length;
    pthread_mutex_unlock(&b->lock);
  }
  char why[160];
  snprintf(why, sizeof why, "rank %d has %s for a message of %" PRIu32 " bytes from rank %d", b->rank,
           fits ? "no memory" : "too many messages that nobody receives, and no room", c->head.length, c->peer);
  fail(b, NULL, b->rank, RAIL_SYSTEM_ERROR, why);
  return NULL;
}

/* A whole header: is it what this connection may carry? False: the connection is finished. */
static bool begin(struct rt_bootstrap *b, struct rt_conn *c) {
  const struct rt_boot_header *h = &c->head;
  const char *wrong = rt_boot_header_wrong(h, RT_BOOT_MAX_MESSAGE);
  bool known = false;
  if (c->kind == CONN_STRANGER) {
    if (!wrong && (h->type != RT_BOOT_PEER_HELLO || h->length != sizeof c->small.hello)) wrong = "not an introduction";
    if (wrong) drop_stranger(b, c, wrong);
    return !wrong;
  }
  if (c->kind == CONN_DATA) {
    known = h->type == RT_BOOT_MESSAGE || h->type == RT_BOOT_GATHER || h->type == RT_BOOT_SPLIT;
  } else if (h->type == RT_BOOT_ABORT) {
    known = h->length >= offsetof(struct rt_boot_abort, text) && h->length <= sizeof c->small.abort;
  } else {
    known = (h->type == RT_BOOT_HEARTBEAT || h->type == RT_BOOT_GOODBYE) && h->length == 0;
  }
  if (!wrong && !known) wrong = "unexpected message";
  if (wrong) {
    broke_protocol(b, c, wrong);
    return false;
  }
  if (c->kind != CONN_DATA) return true;
  c->msg = new_message(b, c);
  if (!c->msg) conn_finish(b, c);
  return c->msg != NULL;
}

/* A stranger introduced itself: it becomes a peer, or goes. */
static bool admit(struct rt_bootstrap *b, struct rt_conn *c) {
  const struct rt_boot_peer_hello *h = &c->small.hello;
  int prev = (b->rank + b->nranks - 1) % b->nranks;
  const char *wrong = NULL;
  if (!rt_boot_secret_equal(h->secret, b->secret)) wrong = "wrong secret (a rank of another communicator?)";
  else if (h->from >= (uint32_t)b->nranks || h->nranks != (uint32_t)b->nranks) wrong = "it is no rank of this communicator";
  else if (h->to != (uint32_t)b->rank) wrong = "it looks for another rank";
  else if (h->link != RT_BOOT_LINK_RING && h->link != RT_BOOT_LINK_DATA) wrong = "unknown kind of connection";
  else if (h->link == RT_BOOT_LINK_RING && (h->from != (uint32_t)prev || b->prev_here)) wrong = "the ring is closed here";
  if (wrong) {
    drop_stranger(b, c, wrong);
    return false;
  }
  b->watch.nstrangers--;
  c->peer = (int)h->from;
  c->kind = h->link == RT_BOOT_LINK_RING ? CONN_RING : CONN_DATA;
  if (c->kind == CONN_DATA) return true;
  c->place = FROM_PREV;
  c->heard = rail_now_ns();
  b->watch.ring[FROM_PREV] = c;
  queue_heartbeat(b, c);
  pthread_mutex_lock(&b->lock);
  b->prev_here = true;
  pthread_cond_broadcast(&b->cond);
  pthread_mutex_unlock(&b->lock);
  return true;
}

/* A neighbour passes on a failure. */
static void told_of_failure(struct rt_bootstrap *b, struct rt_conn *c) {
  char why[RT_BOOT_MAX_TEXT];
  const struct rt_boot_abort *a = &c->small.abort;
  rt_boot_text_clean(why, sizeof why, a->text, c->head.length - offsetof(struct rt_boot_abort, text));
  bool valid = a->result > RAIL_OK && a->result < RAIL_IN_PROGRESS && a->origin < (uint32_t)b->nranks;
  fail(b, c, valid ? (int)a->origin : c->peer, valid ? (rail_result_t)a->result : RAIL_REMOTE_ERROR, why);
}

/* A whole message. False: the connection is finished. */
static bool finish(struct rt_bootstrap *b, struct rt_conn *c) {
  if (c->kind == CONN_STRANGER) return admit(b, c);
  if (c->kind == CONN_DATA) {
    pthread_mutex_lock(&b->lock);
    rt_boot_file(b, c->msg); /* owns it now */
    pthread_mutex_unlock(&b->lock);
    c->msg = NULL;
    return true;
  }
  if (c->head.type == RT_BOOT_GOODBYE) {
    queue(b, c, RT_BOOT_HEARTBEAT, 0, NULL, 0); /* carries the acknowledgement that the other side waits for */
    c->departed = true;
  }
  /* Three of its intervals at least, should it be set to a longer one than ours. */
  if (c->head.type == RT_BOOT_HEARTBEAT && c->head.tag) c->silence_ms = RAIL_MAX(b->args.heartbeat_timeout_ms, 3ull * c->head.tag);
  if (c->head.type == RT_BOOT_ABORT) told_of_failure(b, c);
  return true;
}

static void *body_of(struct rt_conn *c) { return c->kind == CONN_DATA ? (void *)c->msg->data : (void *)&c->small; }

static void read_conn(struct rt_bootstrap *b, struct rt_conn *c) {
  for (int turn = 0; turn < READS_PER_TURN; turn++) {
    rail_result_t result = RAIL_OK;
    if (c->head_have < sizeof c->head) {
      result = rail_sock_recv_some(c->fd, &c->head, sizeof c->head, &c->head_have);
      if (result == RAIL_OK && !begin(b, c)) return;
    }
    if (result == RAIL_OK) result = rail_sock_recv_some(c->fd, body_of(c), c->head.length, &c->body_have);
    c->heard = rail_now_ns();
    if (result == RAIL_IN_PROGRESS) return;
    if (result != RAIL_OK) {
      lost(b, c, errno);
      return;
    }
    if (!finish(b, c)) return;
    c->head_have = c->body_have = 0;
  }
}

/* ---- accepting ---- */

static void drop_oldest_stranger(struct rt_bootstrap *b) {
  struct rt_conn *oldest = NULL;
  for (struct rt_conn *c = b->watch.conns; c; c = c->next)
    if (c->kind == CONN_STRANGER && (!oldest || c->since < oldest->since)) oldest = c;
  if (oldest) drop_stranger(b, oldest, "too many silent connections, this is the oldest");
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
    struct rt_conn *c = result == RAIL_OK ? conn_add(b, fd, CONN_STRANGER) : NULL;
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
  for (struct rt_conn *c = b->watch.conns, *next; c && b->watch.nstrangers; c = next) {
    next = c->next;
    if (c->kind == CONN_STRANGER && now - c->since > STRANGER_MS * 1000000ull)
      drop_stranger(b, c, "it did not introduce itself in time");
  }
  if (b->args.heartbeat_ms == 0) return;
  if (now >= b->watch.beat_at) {
    b->watch.beat_at = now + b->args.heartbeat_ms * 1000000ull;
    for (int i = 0; i < 2; i++) queue_heartbeat(b, b->watch.ring[i]);
  }
  /* If this process itself was stopped, the neighbours' heartbeats may be on their way: judge nobody yet. */
  bool stalled = now - round_start > (b->args.heartbeat_ms + b->args.heartbeat_timeout_ms / 2) * 1000000ull;
  for (int i = 0; i < 2; i++) {
    struct rt_conn *c = b->watch.ring[i];
    if (!c || c->departed || c->silence_ms == 0) continue;
    if (stalled) c->heard = now;
    if (now - c->heard > c->silence_ms * 1000000ull)
      peer_failed(b, c, "was silent for %" PRIu64 " ms: stopped, or the network is down (RAIL_HEARTBEAT_TIMEOUT)",
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
  struct rt_conn *c = b->watch.ring[place];
  int unacked = 0;
  if (c) flush(b, c);
  if (c) read_conn(b, c); /* its goodbye may be here; finishes c when it has closed */
  c = b->watch.ring[place];
  return !c || c->departed || (c->out_have == 0 && (ioctl(c->fd, SIOCOUTQ, &unacked) != 0 || unacked == 0));
}

/* Last words. A close while heartbeats lie unread resets the connection, which could take the goodbye with it; hence
 * the wait for the acknowledgement. */
static void say_goodbye(struct rt_bootstrap *b) {
  uint64_t deadline = rail_deadline_in_ms(GOODBYE_MS);
  for (int i = 0; i < 2; i++) queue(b, b->watch.ring[i], RT_BOOT_GOODBYE, 0, NULL, 0);
  for (;;) {
    bool next = parted(b, TO_NEXT), prev = parted(b, FROM_PREV); /* both have their turn each time */
    if ((next && prev) || rail_deadline_passed(deadline)) return;
    struct pollfd fds[2] = {{.fd = next ? -1 : b->watch.ring[TO_NEXT]->fd, .events = POLLIN},
                            {.fd = prev ? -1 : b->watch.ring[FROM_PREV]->fd, .events = POLLIN}};
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
        struct rt_conn *c = who;
        if (c->fd >= 0 && (events[i].events & EPOLLOUT)) flush(b, c);
        if (c->fd >= 0 && (events[i].events & ~(uint32_t)EPOLLOUT)) read_conn(b, c);
      }
    }
    bool end = must_end(b);
    if (end) break;
    check_time(b, round_start);
    free_finished(b);
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
  while (b->watch.conns) conn_finish(b, b->watch.conns);
  free_finished(b);
  rail_sock_close(&b->watch.epoll_fd);
}

rail_result_t rt_watch_start(struct rt_bootstrap *b, int next_fd) {
  struct epoll_event wake = {.events = EPOLLIN, .data.ptr = NULL}, listener = {.events = EPOLLIN, .data.ptr = b};
  b->watch.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  b->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (b->watch.epoll_fd < 0 || b->event_fd < 0) goto failed;
  if (epoll_ctl(b->watch.epoll_fd, EPOLL_CTL_ADD, b->event_fd, &wake) != 0) goto failed;
  if (epoll_ctl(b->watch.epoll_fd, EPOLL_CTL_ADD, b->listen_fd, &listener) != 0) goto failed;
  struct rt_conn *c = conn_add(b, next_fd, CONN_RING);
  if (!c) goto failed;
  next_fd = -1; /* the connection's now */
  c->place = TO_NEXT;
  c->peer = (b->rank + 1) % b->nranks;
  c->from = b->addrs[c->peer];
  b->watch.ring[TO_NEXT] = c;
  queue_heartbeat(b, c);
  b->watch.beat_at = rail_deadline_in_ms(b->args.heartbeat_ms);
  int err = rt_thread_start("rail-bootstrap", watch_main, b, &b->thread);
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
