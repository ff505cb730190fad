/* SPDX-License-Identifier: Apache-2.0
 * Listening sockets, pending connections, and what is checked of a HELLO. */
#include "common/conn/listener.h"

#include <endian.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "common/base/log.h"
#include "common/conn/handshake.h"

#define BACKLOG 4096     /* for listen(2); the kernel lowers it to net.core.somaxconn */
#define MAX_PENDING 1024 /* of all listeners */
#define OWN_PENDING 2    /* of one, however many the others have */
#define EVENTS_AT_ONCE 32
#define POLL_NS 200000ull /* most time to accept, and again to read: a poll takes less than a millisecond */
/* Between two log lines about dropped connections, of one listener, of all: a flood must not fill the disk. */
#define LINE_EVERY_NS 1000000000ull
#define ANY_LINE_EVERY_NS 100000000ull

/* ---- lines ------------------------------------------------------------ */

static _Atomic uint64_t next_any_line; /* of all listeners of the plugin */

static bool may_log(struct rail_listener *l) {
  uint64_t now = rail_now_ns(), next = atomic_load_explicit(&next_any_line, memory_order_relaxed);
  if (now < l->next_line || now < next) return false;
  if (!atomic_compare_exchange_strong(&next_any_line, &next, now + ANY_LINE_EVERY_NS)) return false;
  l->next_line = now + LINE_EVERY_NS;
  return true;
}

void rail_listener_log_drop(struct rail_listener *l, const union rail_addr *peer, const char *why) {
  char from[RAIL_ADDR_TEXT], others[48] = "";
  if (!may_log(l)) {
    l->unlogged++;
    return;
  }
  if (l->unlogged) snprintf(others, sizeof others, " (and %u others since the last line)", l->unlogged);
  RAIL_WARN("%s: accept on %s: dropped a connection from %s: %s; still listening%s", l->ops->protocol->plugin, l->name,
            rail_addr_text(peer, from), why, others);
  l->unlogged = 0;
}

/* ---- room ------------------------------------------------------------- */

static _Atomic uint32_t all_pending; /* of all listeners of the plugin */

/* Files that the process may open. */
static uint64_t file_limit(void) {
  struct rlimit limit;
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : UINT32_MAX;
}

/* True: over the limit, evict one. Asked when a connection with an incomplete HELLO was added. The kernel hands out the
 * lowest free number, so at least `fd` files are open. */
static bool is_full(const struct rail_listener *l, int fd) {
  uint64_t files = file_limit(), all = atomic_load_explicit(&all_pending, memory_order_relaxed);
  if ((uint64_t)fd >= files - files / 4) return true;
  return l->npending > OWN_PENDING && all > RAIL_MIN(MAX_PENDING, files / 4);
}

/* ---- refusing and dropping -------------------------------------------- */

/* Out of the list and freed; the socket is the caller's. */
static void unlink_pending(struct rail_listener *l, struct rail_pending *c) {
  TAILQ_REMOVE(&l->pending, c, next);
  l->npending--;
  atomic_fetch_sub_explicit(&all_pending, 1, memory_order_relaxed);
  /* Closing alone would not do it where a forked child holds the socket too. */
  if (c->watched) (void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, c->fd, NULL);
  free(c);
}

/* Without an answer. */
static void drop(struct rail_listener *l, struct rail_pending *c, const char *why) {
  int fd = c->fd;
  rail_listener_log_drop(l, &c->peer, why);
  unlink_pending(l, c);
  if (l->ops->count) l->ops->count(l->owner, RAIL_LISTENER_DROPPED);
  rail_sock_close(&fd);
}

static void refuse(struct rail_listener *l, struct rail_pending *c, unsigned int reason) {
  const struct rail_protocol *protocol = l->ops->protocol;
  const char *text = rail_reason_text(protocol, reason);
  char why[160];
  int fd = c->fd;
  if (reason == RAIL_REASON_GARBAGE) {
    drop(l, c, text);
    return;
  }
  if (reason == RAIL_REASON_VERSION) {
    struct rail_hello_wire wire;
    memcpy(&wire, c->bytes, RAIL_HELLO_PREFIX);
    snprintf(why, sizeof why, "%s (%u, ours %u)", text, le16toh(wire.version), protocol->version);
    text = why;
  }
  rail_listener_log_drop(l, &c->peer, text);
  unlink_pending(l, c);
  if (l->ops->count) l->ops->count(l->owner, RAIL_LISTENER_REFUSED);
  rail_refuse(protocol, &fd, reason);
}

/* The oldest that has sent nothing, else the oldest; NULL: there is none. */
static struct rail_pending *first_to_evict(const struct rail_listener *l) {
  struct rail_pending *c = TAILQ_FIRST(&l->pending);
  while (c && c->have) c = TAILQ_NEXT(c, next);
  return c ? c : TAILQ_FIRST(&l->pending);
}

/* ---- reading HELLOs ---------------------------------------------------- */

/* A whole HELLO is here. Only what is authentic goes into the replay filter. */
static unsigned int offer_hello(struct rail_listener *l, const struct rail_pending *c) {
  struct rail_hello hello;
  enum rail_reason reason = rail_hello_decode(l->ops->protocol, &l->handle, c->bytes, &hello);
  if (reason != RAIL_REASON_NONE) return reason;
  if (hello.auth && !hello.reconnect) {
    enum rail_replay_result seen = rail_replay_note(&l->replay, hello.mac);
    if (seen != RAIL_REPLAY_NEW) return seen == RAIL_REPLAY_SEEN ? RAIL_REASON_REPLAY : RAIL_REASON_BUSY;
  }
  return l->ops->on_hello(l->owner, c, &hello);
}

/* Reads what came. True when the connection left the list. */
static bool read_hello(struct rail_listener *l, struct rail_pending *c) {
  rail_result_t result = rail_sock_recv_some(c->fd, c->bytes, rail_hello_size(l->ops->protocol), &c->have);
  unsigned int reason;
  if (result == RAIL_OK) {
    reason = offer_hello(l, c);
    if (reason == RAIL_REASON_NONE) unlink_pending(l, c);
    else refuse(l, c, reason);
    return true;
  }
  /* Before the end of the stream is looked at, so that garbage is called garbage. */
  reason = rail_hello_check_prefix(l->ops->protocol, &l->handle, c->bytes, c->have);
  if (reason != RAIL_REASON_NONE) refuse(l, c, reason);
  else if (result != RAIL_IN_PROGRESS) drop(l, c, "it closed the connection before a whole hello");
  else return false;
  return true;
}

/* Into the epoll set. */
static void watch(struct rail_listener *l, struct rail_pending *c) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
  if (l->epoll < 0) l->epoll = epoll_create1(EPOLL_CLOEXEC);
  c->watched = l->epoll >= 0 && epoll_ctl(l->epoll, EPOLL_CTL_ADD, c->fd, &event) == 0;
  if (!c->watched) drop(l, c, "there is no file or memory left to wait for its hello with");
}

static void add_pending(struct rail_listener *l, int fd, unsigned int index, const union rail_addr *peer) {
  struct rail_pending *c = calloc(1, sizeof *c + rail_hello_size(l->ops->protocol));
  if (!c) {
    rail_sock_close(&fd);
    rail_listener_log_drop(l, peer, "out of memory");
    return;
  }
  c->fd = fd;
  c->index = index;
  c->peer = *peer;
  c->deadline = rail_deadline_in_ms(l->hello_ms);
  TAILQ_INSERT_TAIL(&l->pending, c, next);
  l->npending++;
  atomic_fetch_add_explicit(&all_pending, 1, memory_order_relaxed);
  /* Most real peers have sent everything before the poll. */
  if (read_hello(l, c)) return;
  struct rail_pending *evicted = is_full(l, fd) ? first_to_evict(l) : NULL;
  if (evicted != c) watch(l, c);
  if (evicted) drop(l, evicted, "too many half-open connections, and this one was silent longest");
}

/* ---- polling ------------------------------------------------------------ */

/* Accepts from one listening socket until there is none or the time is over. */
static rail_result_t accept_some(struct rail_listener *l, unsigned int index, uint64_t until) {
  do {
    union rail_addr peer;
    int fd;
    rail_result_t result = rail_sock_accept(l->fds[index], &fd, &peer);
    if (result == RAIL_IN_PROGRESS) return RAIL_OK;
    if (result != RAIL_OK) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) {
        RAIL_WARN("%s: accept on %s: %s", l->ops->protocol->plugin, l->name, strerror(errno));
        return result;
      }
      if (may_log(l))
        RAIL_WARN("%s: accept on %s: %s; raise the limit of open files (ulimit -n); trying again",
                  l->ops->protocol->plugin, l->name, strerror(errno));
      /* The file of a pending connection goes to the next one. Without any, the shortage may pass. */
      if (!l->npending) return RAIL_OK;
      drop(l, first_to_evict(l), "too many open files, and this one was silent longest");
      continue;
    }
    add_pending(l, fd, index, &peer);
  } while (rail_now_ns() < until);
  return RAIL_OK;
}

/* Reads those of which epoll reports something. Reading one removes no other, so each event's connection is there. */
static void read_some(struct rail_listener *l, uint64_t until) {
  struct epoll_event events[EVENTS_AT_ONCE];
  int n;
  do {
    n = l->npending ? epoll_wait(l->epoll, events, EVENTS_AT_ONCE, 0) : 0;
    for (int i = 0; i < n; i++) (void)read_hello(l, events[i].data.ptr);
  } while (n == EVENTS_AT_ONCE && rail_now_ns() < until);
}

rail_result_t rail_listener_poll(struct rail_listener *l) {
  uint64_t now = rail_now_ns();
  unsigned int n = l->handle.naddrs;
  for (unsigned int i = 0; i < n; i++) RAIL_TRY(accept_some(l, i, now + (i + 1) * POLL_NS / n));
  read_some(l, now + 2 * POLL_NS);
  /* After the reading, so that what had arrived in time counts. */
  now = rail_now_ns();
  for (struct rail_pending *c = TAILQ_FIRST(&l->pending), *next; c && now >= c->deadline; c = next) {
    next = TAILQ_NEXT(c, next);
    drop(l, c, c->have ? "it sent only part of a hello within the time limit"
                       : "it sent nothing within the time limit");
  }
  return RAIL_OK;
}

/* ---- opening and closing ---------------------------------------------- */

rail_result_t rail_listener_init(struct rail_listener *l, const struct rail_listener_ops *ops, void *owner,
                                 const char *name, uint64_t hello_ms) {
  *l = (struct rail_listener){.ops = ops, .owner = owner, .name = name, .hello_ms = hello_ms, .epoll = -1};
  TAILQ_INIT(&l->pending);
  l->handle.auth = rail_key_on(ops->protocol->key);
  rail_result_t result = rail_random_bytes(l->handle.secret, sizeof l->handle.secret);
  if (result != RAIL_OK)
    RAIL_WARN("%s: listen: no random bytes from the kernel: %s", ops->protocol->plugin, strerror(errno));
  return result;
}

rail_result_t rail_listener_add(struct rail_listener *l, struct rail_ports *ports, const char *interface,
                                const union rail_addr *addr) {
  unsigned int i = l->handle.naddrs;
  RAIL_TRY(rail_ports_listen(ports, interface, addr, BACKLOG, &l->handle.addrs[i], &l->fds[i]));
  l->handle.naddrs++;
  return RAIL_OK;
}

void rail_listener_close(struct rail_listener *l) {
  for (struct rail_pending *c = TAILQ_FIRST(&l->pending), *next; c; c = next) {
    int fd = c->fd;
    next = TAILQ_NEXT(c, next);
    unlink_pending(l, c);
    rail_sock_close(&fd);
  }
  for (unsigned int i = 0; i < l->handle.naddrs; i++) rail_sock_close(&l->fds[i]);
  l->handle.naddrs = 0;
  rail_sock_close(&l->epoll);
  rail_replay_free(&l->replay);
}
