/* SPDX-License-Identifier: Apache-2.0
 * Pending connections: accepted, read, evicted, dropped when late. */
#include "common/conn/pending.h"

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

#define MAX_PENDING 1024 /* of all sets that share their limits */
#define OWN_PENDING 2    /* of one, however many the others have */
#define EVENTS_AT_ONCE 32
#define POLL_NS 200000ull /* most time to accept, and again to read: a poll takes less than a millisecond */
#define FRESH_NS 1000000000ull /* a peer's first message may be so late without being suspicious */
#define PAUSE_MS 100      /* until the next try to accept after a shortage of files, where the owner sleeps */
/* Between two log lines about dropped connections, of one set, of all: a flood must not fill the disk. */
#define LINE_EVERY_NS 1000000000ull
#define ANY_LINE_EVERY_NS 100000000ull

/* ---- lines ------------------------------------------------------------ */

static _Atomic uint64_t next_any_line; /* of all sets of the process */

static bool may_log(struct rail_pending_set *s) {
  uint64_t now = rail_now_ns(), next = atomic_load_explicit(&next_any_line, memory_order_relaxed);
  if (now < s->next_line || now < next) return false;
  if (!atomic_compare_exchange_strong(&next_any_line, &next, now + ANY_LINE_EVERY_NS)) return false;
  s->next_line = now + LINE_EVERY_NS;
  return true;
}

void rail_pending_log(struct rail_pending_set *s, const char *what, const union rail_addr *peer, const char *why) {
  char from[RAIL_ADDR_TEXT], others[48] = "";
  if (!may_log(s)) {
    s->unlogged++;
    return;
  }
  if (s->unlogged) snprintf(others, sizeof others, " (and %u others since the last line)", s->unlogged);
  RAIL_WARN("%s: accept on %s: %s a connection from %s: %s; still listening%s", s->module, s->name, what,
            rail_addr_text(peer, from), why, others);
  s->unlogged = 0;
}

/* ---- room ------------------------------------------------------------- */

static _Atomic uint32_t all_pending; /* of all sets that share their limits */

uint64_t rail_pending_file_limit(void) {
  struct rlimit limit;
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : UINT32_MAX;
}

/* True: over the limit, evict one. Asked when a connection with an incomplete message was added. The kernel hands out
 * the lowest free number, so at least `fd` files are open. */
static bool is_full(const struct rail_pending_set *s, int fd) {
  if (s->max) return s->count > s->max;
  uint64_t files = rail_pending_file_limit(), all = atomic_load_explicit(&all_pending, memory_order_relaxed);
  if ((uint64_t)fd >= files - files / 4) return true;
  return s->count > OWN_PENDING && all > RAIL_MIN(MAX_PENDING, files / 4);
}

/* Has it been silent for so long that it is not just late? */
static bool is_stale(const struct rail_pending_set *s, const struct rail_pending *c) {
  return rail_now_ns() + s->hello_ms * 1000000ull > c->deadline + FRESH_NS;
}

/* The oldest that has sent nothing, else the oldest; NULL: there is none. Where peers do not dial again (`max`),
 * clients that send a byte and wait must not keep out who is only late: there one that is silent goes first if it is
 * stale. */
static struct rail_pending *first_to_evict(const struct rail_pending_set *s) {
  struct rail_pending *c = TAILQ_FIRST(&s->list);
  while (c && c->have) c = TAILQ_NEXT(c, next);
  return c && (!s->max || is_stale(s, c)) ? c : TAILQ_FIRST(&s->list);
}

/* ---- leaving ------------------------------------------------------------ */

int rail_pending_remove(struct rail_pending_set *s, struct rail_pending *c) {
  int fd = c->fd;
  TAILQ_REMOVE(&s->list, c, next);
  s->count--;
  if (!s->max) atomic_fetch_sub_explicit(&all_pending, 1, memory_order_relaxed);
  /* Closing alone would not do it where a forked child holds the socket too. */
  if (c->watched) (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, fd, NULL);
  free(c);
  return fd;
}

void rail_pending_drop(struct rail_pending_set *s, struct rail_pending *c, const char *why) {
  rail_pending_log(s, "dropped", &c->peer, why);
  int fd = rail_pending_remove(s, c);
  if (s->ops->dropped) s->ops->dropped(s->owner);
  rail_sock_close(&fd);
}

/* Unless its first message has come meanwhile: many may have come since the last poll. Not from within read_some,
 * whose events name connections. */
static void evict(struct rail_pending_set *s, struct rail_pending *c, const char *why) {
  if (!s->ops->read(s->owner, c)) rail_pending_drop(s, c, why);
}

/* ---- coming ------------------------------------------------------------- */

static bool make_epoll(struct rail_pending_set *s) {
  if (s->epoll < 0) s->epoll = epoll_create1(EPOLL_CLOEXEC);
  return s->epoll >= 0;
}

/* Into the epoll set. */
static void watch(struct rail_pending_set *s, struct rail_pending *c) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = c};
  c->watched = make_epoll(s) && epoll_ctl(s->epoll, EPOLL_CTL_ADD, c->fd, &event) == 0;
  if (!c->watched) rail_pending_drop(s, c, "there is no file or memory left to wait for its hello with");
}

void rail_pending_add(struct rail_pending_set *s, int fd, unsigned int index, const union rail_addr *peer) {
  struct rail_pending *c = calloc(1, sizeof *c + s->size);
  if (!c) {
    rail_sock_close(&fd);
    rail_pending_log(s, "dropped", peer, "out of memory");
    return;
  }
  c->fd = fd;
  c->index = index;
  c->peer = *peer;
  c->deadline = rail_deadline_in_ms(s->hello_ms);
  TAILQ_INSERT_TAIL(&s->list, c, next);
  s->count++;
  if (!s->max) atomic_fetch_add_explicit(&all_pending, 1, memory_order_relaxed);
  /* Most real peers have sent everything before the poll. */
  if (s->ops->read(s->owner, c)) return;
  struct rail_pending *evicted = is_full(s, fd) ? first_to_evict(s) : NULL;
  if (evicted != c) watch(s, c);
  if (evicted) evict(s, evicted, "too many pending connections, and this one was silent longest");
}

/* Has the listening socket wake the owner, or not. */
static void watch_listener(struct rail_pending_set *s, bool on) {
  struct epoll_event event = {.events = on ? EPOLLIN : 0};
  (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listen_fd, &event);
  s->resume = on ? 0 : rail_deadline_in_ms(PAUSE_MS);
}

/* No file to accept with: that of a pending connection goes to the next one. False: there is none, or, where the owner
 * sleeps meanwhile, none that is stale: the shortage may pass. */
static bool make_room(struct rail_pending_set *s) {
  if (may_log(s))
    RAIL_WARN("%s: accept on %s: %s; raise the limit of open files (ulimit -n); trying again", s->module, s->name,
              strerror(errno));
  struct rail_pending *c = first_to_evict(s);
  if (!c || (s->listen_fd >= 0 && !is_stale(s, c))) return false;
  evict(s, c, "too many open files, and this one was silent longest");
  return true;
}

/* Accepts from one listening socket until there is none or the time is over. */
static rail_result_t accept_some(struct rail_pending_set *s, int listen_fd, unsigned int index, uint64_t until) {
  do {
    union rail_addr peer;
    int fd;
    rail_result_t result = rail_sock_accept(listen_fd, &fd, &peer);
    if (result == RAIL_OK) {
      rail_pending_add(s, fd, index, &peer);
      continue;
    }
    if (result == RAIL_IN_PROGRESS) return RAIL_OK;
    bool may_pass = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (may_pass && make_room(s)) continue;
    int err = errno;
    if (s->listen_fd >= 0) watch_listener(s, false);
    errno = err;
    return may_pass ? RAIL_OK : result;
  } while (rail_now_ns() < until);
  return RAIL_OK;
}

/* Has those read of which epoll reports something. That removes no other one, so each event's connection is there. */
static void read_some(struct rail_pending_set *s, uint64_t until) {
  struct epoll_event events[EVENTS_AT_ONCE];
  int n;
  do {
    n = s->count ? epoll_wait(s->epoll, events, EVENTS_AT_ONCE, 0) : 0;
    for (int i = 0; i < n; i++) {
      struct rail_pending *c = events[i].data.ptr; /* NULL: the listening socket */
      if (c) (void)s->ops->read(s->owner, c);
    }
  } while (n == EVENTS_AT_ONCE && rail_now_ns() < until);
}

rail_result_t rail_pending_poll(struct rail_pending_set *s, const int *listen_fds, unsigned int n) {
  uint64_t now = rail_now_ns();
  if (s->resume && now >= s->resume) watch_listener(s, true);
  for (unsigned int i = 0; i < n && !s->resume; i++)
    RAIL_TRY(accept_some(s, listen_fds[i], i, now + (i + 1) * POLL_NS / n));
  read_some(s, now + 2 * POLL_NS);
  /* What has arrived counts: the owner may have been away. */
  now = rail_now_ns();
  for (struct rail_pending *c = TAILQ_FIRST(&s->list), *next; c && now >= c->deadline; c = next) {
    next = TAILQ_NEXT(c, next);
    evict(s, c, c->have ? "it sent only part of a hello within the time limit"
                        : "it sent nothing within the time limit");
  }
  return RAIL_OK;
}

/* ---- waiting, opening, closing -------------------------------------------- */

bool rail_pending_watch(struct rail_pending_set *s, int listen_fd) {
  struct epoll_event event = {.events = EPOLLIN};
  if (!make_epoll(s) || epoll_ctl(s->epoll, EPOLL_CTL_ADD, listen_fd, &event) != 0) return false;
  s->listen_fd = listen_fd;
  return true;
}

uint64_t rail_pending_deadline(const struct rail_pending_set *s) {
  const struct rail_pending *oldest = TAILQ_FIRST(&s->list);
  if (oldest && s->resume) return RAIL_MIN(oldest->deadline, s->resume);
  return oldest ? oldest->deadline : s->resume;
}

void rail_pending_init(struct rail_pending_set *s) {
  TAILQ_INIT(&s->list);
  s->epoll = s->listen_fd = -1;
}

void rail_pending_close(struct rail_pending_set *s) {
  while (!TAILQ_EMPTY(&s->list)) {
    int fd = rail_pending_remove(s, TAILQ_FIRST(&s->list));
    rail_sock_close(&fd);
  }
  rail_sock_close(&s->epoll);
  s->listen_fd = -1;
}
