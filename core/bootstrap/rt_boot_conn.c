/* SPDX-License-Identifier: Apache-2.0
 * Connections of the service thread; see rt_boot_conn.h. */
#include "core/bootstrap/rt_boot_conn.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "common/base/clock.h"
#include "common/base/log.h"

#define STRANGER_LINES 8  /* log lines about connections that were dropped */
#define READS_PER_TURN 64 /* of one connection before the others have theirs */

/* ---- connections ---- */

struct rt_boot_conn *rt_boot_conn_add(struct rt_bootstrap *b, int fd, enum rt_boot_conn_kind kind) {
  struct rt_boot_conn *c = calloc(1, sizeof *c);
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

void rt_boot_conn_finish(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  if (c->fd < 0) return;
  if (c->kind == RT_BOOT_CONN_STRANGER) b->watch.nstrangers--;
  if (c->kind == RT_BOOT_CONN_RING) b->watch.ring[c->place] = NULL;
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

void rt_boot_conn_free_finished(struct rt_bootstrap *b) {
  while (b->watch.finished) {
    struct rt_boot_conn *c = b->watch.finished;
    b->watch.finished = c->next;
    free(c);
  }
}

void rt_boot_conn_drop_stranger(struct rt_bootstrap *b, struct rt_boot_conn *c, const char *why) {
  char text[RAIL_ADDR_TEXT];
  unsigned line = b->watch.stranger_lines++;
  if (line < STRANGER_LINES)
    RAIL_WARN("bootstrap: rank %d drops the connection from %s: %s%s", b->rank, rail_addr_text(&c->from, text), why,
              line == STRANGER_LINES - 1 ? " (further ones are dropped without a line)" : "");
  rt_boot_conn_finish(b, c);
}

/* ---- writing on the ring ---- */

static void set_events(struct rt_bootstrap *b, struct rt_boot_conn *c, uint32_t events) {
  struct epoll_event ev = {.events = events, .data.ptr = c};
  epoll_ctl(b->watch.epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
}

/* An error here is left to the reading side, which finds the same and says so. */
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

/* `out` has room for one of each kind: a heartbeat is only queued when it is empty, the others come once. */
void rt_boot_conn_queue(struct rt_bootstrap *b, struct rt_boot_conn *c, enum rt_boot_type type, uint32_t tag,
                        const void *body, size_t size) {
  struct rt_boot_header head = rt_boot_header_make(type, tag, size);
  if (!c || c->departed || c->out_have + sizeof head + size > sizeof c->out) return;
  memcpy(c->out + c->out_have, &head, sizeof head);
  if (size) memcpy(c->out + c->out_have + sizeof head, body, size);
  c->out_have += sizeof head + size;
  rt_boot_conn_flush(b, c);
}

void rt_boot_conn_heartbeat(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  if (b->args.heartbeat_ms == 0 || !c || c->out_have) return;
  rt_boot_conn_queue(b, c, RT_BOOT_HEARTBEAT, (uint32_t)RAIL_MIN(b->args.heartbeat_ms, (uint64_t)UINT32_MAX), NULL, 0);
}

/* ---- reading ---- */

/* The connection has ended: err 0 is a plain end. */
static void lost(struct rt_bootstrap *b, struct rt_boot_conn *c, int err) {
  switch (c->kind) {
    case RT_BOOT_CONN_STRANGER:
      rt_boot_conn_drop_stranger(b, c, err ? strerror(err) : "it hung up before its introduction");
      return;
    case RT_BOOT_CONN_DATA:
      pthread_mutex_lock(&b->lock);
      b->gone[c->peer] = 1;
      pthread_cond_broadcast(&b->cond);
      pthread_mutex_unlock(&b->lock);
      break;
    case RT_BOOT_CONN_RING:
      if (!c->departed)
        rt_watch_peer_failed(b, c, "died: connection closed%s%s", err ? ": " : "", err ? strerror(err) : "");
      break;
  }
  rt_boot_conn_finish(b, c);
}

static void broke_protocol(struct rt_bootstrap *b, struct rt_boot_conn *c, const char *what) {
  rt_watch_peer_failed(b, c, "broke the bootstrap protocol: %s (type %u, %" PRIu32 " bytes)", what, c->head.type,
                       c->head.length);
  rt_boot_conn_finish(b, c);
}

/* Room for a message's body; counted against the limit from now on. */
static struct rt_message *new_message(struct rt_bootstrap *b, const struct rt_boot_conn *c) {
  struct rt_message *msg = NULL;
  pthread_mutex_lock(&b->lock);
  bool fits = b->box_bytes + c->head.length <= RT_BOX_MAX_BYTES;
  if (fits) b->box_bytes += c->head.length;
  pthread_mutex_unlock(&b->lock);
  if (fits) {
    msg = malloc(sizeof *msg + c->head.length);
    if (msg) {
      *msg = (struct rt_message){
          .peer = (uint32_t)c->peer, .tag = c->head.tag, .type = c->head.type, .size = c->head.length};
      return msg;
    }
    pthread_mutex_lock(&b->lock);
    b->box_bytes -= c->head.length;
    pthread_mutex_unlock(&b->lock);
  }
  char why[160];
  snprintf(why, sizeof why, "rank %d has %s for a message of %" PRIu32 " bytes from rank %d", b->rank,
           fits ? "no memory" : "too many messages that nobody receives, and no room", c->head.length, c->peer);
  rt_watch_fail(b, NULL, b->rank, RAIL_SYSTEM_ERROR, why);
  return NULL;
}

/* A whole header: is it what this connection may carry? False: the connection is finished. */
static bool begin(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  const struct rt_boot_header *h = &c->head;
  const char *wrong = rt_boot_header_wrong(h, RT_BOOT_MAX_MESSAGE);
  bool known = false;
  if (c->kind == RT_BOOT_CONN_STRANGER) {
    if (!wrong && (h->type != RT_BOOT_PEER_HELLO || h->length != sizeof c->small.hello)) wrong = "not an introduction";
    if (wrong) rt_boot_conn_drop_stranger(b, c, wrong);
    return !wrong;
  }
  if (c->kind == RT_BOOT_CONN_DATA) {
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
  if (c->kind != RT_BOOT_CONN_DATA) return true;
  c->msg = new_message(b, c);
  if (!c->msg) rt_boot_conn_finish(b, c);
  return c->msg != NULL;
}

/* A stranger introduced itself: it becomes a peer, or goes. */
static bool admit(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  const struct rt_boot_peer_hello *h = &c->small.hello;
  int prev = (b->rank + b->nranks - 1) % b->nranks;
  const char *wrong = NULL;
  if (!rt_boot_secret_equal(h->secret, b->secret))
    wrong = "wrong secret (a rank of another communicator?)";
  else if (h->from >= (uint32_t)b->nranks || h->nranks != (uint32_t)b->nranks)
    wrong = "it is no rank of this communicator";
  else if (h->to != (uint32_t)b->rank)
    wrong = "it looks for another rank";
  else if (h->link != RT_BOOT_LINK_RING && h->link != RT_BOOT_LINK_DATA)
    wrong = "unknown kind of connection";
  else if (h->link == RT_BOOT_LINK_RING && (h->from != (uint32_t)prev || b->prev_here))
    wrong = "the ring is closed here";
  const unsigned char welcome = RT_BOOT_WELCOME;
  if (!wrong && h->link == RT_BOOT_LINK_DATA && send(c->fd, &welcome, 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
    wrong = "it does not take the answer";
  if (wrong) {
    rt_boot_conn_drop_stranger(b, c, wrong);
    return false;
  }
  b->watch.nstrangers--;
  c->peer = (int)h->from;
  c->kind = h->link == RT_BOOT_LINK_RING ? RT_BOOT_CONN_RING : RT_BOOT_CONN_DATA;
  if (c->kind == RT_BOOT_CONN_DATA) return true;
  c->place = RT_FROM_PREV;
  c->heard = rail_now_ns();
  b->watch.ring[RT_FROM_PREV] = c;
  rt_boot_conn_heartbeat(b, c);
  if (atomic_load(&b->failed)) rt_watch_tell(b, c); /* it comes too late to hear it with the rest */
  pthread_mutex_lock(&b->lock);
  b->prev_here = true;
  pthread_cond_broadcast(&b->cond);
  pthread_mutex_unlock(&b->lock);
  return true;
}

/* A neighbour passes on a failure. */
static void told_of_failure(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  char why[RT_BOOT_MAX_TEXT];
  const struct rt_boot_abort *a = &c->small.abort;
  rt_boot_text_clean(why, sizeof why, a->text, c->head.length - offsetof(struct rt_boot_abort, text));
  bool valid = a->result > RAIL_OK && a->result < RAIL_IN_PROGRESS && a->origin < (uint32_t)b->nranks;
  rt_watch_fail(b, c, valid ? (int)a->origin : c->peer, valid ? (rail_result_t)a->result : RAIL_REMOTE_ERROR, why);
}

/* A whole message. False: the connection is finished. */
static bool finish(struct rt_bootstrap *b, struct rt_boot_conn *c) {
  if (c->kind == RT_BOOT_CONN_STRANGER) return admit(b, c);
  if (c->kind == RT_BOOT_CONN_DATA) {
    pthread_mutex_lock(&b->lock);
    rt_boot_file(b, c->msg); /* owns it now */
    pthread_mutex_unlock(&b->lock);
    c->msg = NULL;
    return true;
  }
  if (c->head.type == RT_BOOT_GOODBYE) {
    rt_boot_conn_queue(b, c, RT_BOOT_HEARTBEAT, 0, NULL,
                       0); /* carries the acknowledgement that the other side waits for */
    c->departed = true;
  }
  /* Three of its intervals at least, should it be set to a longer one than ours. */
  if (c->head.type == RT_BOOT_HEARTBEAT && c->head.tag)
    c->silence_ms = RAIL_MAX(b->args.heartbeat_timeout_ms, 3ull * c->head.tag);
  if (c->head.type == RT_BOOT_ABORT) told_of_failure(b, c);
  return true;
}

static void *body_of(struct rt_boot_conn *c) {
  return c->kind == RT_BOOT_CONN_DATA ? (void *)c->msg->data : (void *)&c->small;
}

void rt_boot_conn_read(struct rt_bootstrap *b, struct rt_boot_conn *c) {
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
