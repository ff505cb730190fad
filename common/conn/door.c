/* SPDX-License-Identifier: Apache-2.0
 * Strangers come in, are heard, and go: to the host, or away. */
#include "common/conn/door.h"

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

#define MAX_STRANGERS 1024 /* of all listeners */
#define OWN_STRANGERS 2    /* of one, however many the others have */
#define EVENTS_AT_ONCE 32
/* Most time for those at the doors, and again for those inside: a call takes less than a millisecond. */
#define NEWS_NS 200000ull
#define LINE_EVERY_NS 1000000000ull
#define ANY_LINE_EVERY_NS 100000000ull

/* ---- lines ------------------------------------------------------------ */

static _Atomic uint64_t next_any_line; /* of all listeners of the plugin */

static bool may_log(struct rail_doors *d) {
  uint64_t now = rail_now_ns(), next = atomic_load_explicit(&next_any_line, memory_order_relaxed);
  if (now < d->next_line || now < next) return false;
  if (!atomic_compare_exchange_strong(&next_any_line, &next, now + ANY_LINE_EVERY_NS)) return false;
  d->next_line = now + LINE_EVERY_NS;
  return true;
}

void rail_doors_log(struct rail_doors *d, const union rail_addr *peer, const char *why) {
  char from[RAIL_ADDR_TEXT], others[48] = "";
  if (!may_log(d)) {
    d->unlogged++;
    return;
  }
  if (d->unlogged) snprintf(others, sizeof others, " (and %u others since the last line)", d->unlogged);
  RAIL_WARN("%s: accept on %s: dropped a connection from %s: %s; still listening%s", d->rules->plugin, d->name,
            rail_addr_text(peer, from), why, others);
  d->unlogged = 0;
}

/* ---- room ------------------------------------------------------------- */

static _Atomic uint32_t all_strangers; /* of all listeners of the plugin */

/* Files that the process may open. */
static uint64_t file_limit(void) {
  struct rlimit limit;
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : UINT32_MAX;
}

/* Must one go, now that this one is here, who has not said everything yet? The kernel hands out the lowest number that
 * is free, so `fd` says how many files are open at least. */
static bool is_full(const struct rail_doors *d, int fd) {
  uint64_t files = file_limit(), all = atomic_load_explicit(&all_strangers, memory_order_relaxed);
  if ((uint64_t)fd >= files - files / 4) return true;
  return d->nstrangers > OWN_STRANGERS && all > RAIL_MIN(MAX_STRANGERS, files / 4);
}

/* ---- going away ------------------------------------------------------- */

/* A fresh socket takes these bytes, and reading first what came keeps the
 * close from resetting the connection before they are seen. */
void rail_door_refuse(int *fd, const void *reply, size_t size) {
  uint8_t scratch[512];
  size_t done = 0, n;
  (void)rail_sock_send_some(*fd, reply, size, &done);
  shutdown(*fd, SHUT_WR);
  (void)rail_sock_recvv(*fd, &(struct iovec){.iov_base = scratch, .iov_len = sizeof scratch}, 1, &n);
  rail_sock_close(fd);
}

/* Out of the table; the socket is the caller's. */
static void forget(struct rail_doors *d, struct rail_stranger *s) {
  if (s->older) s->older->younger = s->younger;
  else d->oldest = s->younger;
  if (s->younger) s->younger->older = s->older;
  else d->youngest = s->older;
  d->nstrangers--;
  atomic_fetch_sub_explicit(&all_strangers, 1, memory_order_relaxed);
  /* Closing alone would not do it where a forked child holds the socket too. */
  if (s->watched) (void)epoll_ctl(d->epoll, EPOLL_CTL_DEL, s->fd, NULL);
  free(s);
}

static void turn_away(struct rail_doors *d, struct rail_stranger *s, const struct rail_refusal *refusal) {
  int fd = s->fd;
  bool silently = refusal->reply_size == 0;
  rail_doors_log(d, &s->peer, refusal->why);
  forget(d, s);
  if (d->rules->count) d->rules->count(d->host, silently ? RAIL_DOOR_STRANGER : RAIL_DOOR_REFUSED);
  if (silently) rail_sock_close(&fd);
  else rail_door_refuse(&fd, refusal->reply, refusal->reply_size);
}

static void drop(struct rail_doors *d, struct rail_stranger *s, const char *why) {
  struct rail_refusal refusal = {.reply_size = 0};
  snprintf(refusal.why, sizeof refusal.why, "%s", why);
  turn_away(d, s, &refusal);
}

/* The oldest that has said nothing, else the oldest; NULL: there is none. */
static struct rail_stranger *first_to_go(const struct rail_doors *d) {
  struct rail_stranger *s = d->oldest;
  while (s && s->have) s = s->younger;
  return s ? s : d->oldest;
}

/* ---- inside ----------------------------------------------------------- */

/* Reads what came. True when the stranger left the table. */
static bool hear(struct rail_doors *d, struct rail_stranger *s) {
  struct rail_refusal refusal = {.reply_size = 0};
  rail_result_t result = rail_sock_recv_some(s->fd, s->message, d->rules->message_size, &s->have);
  if (result == RAIL_OK) {
    if (d->rules->whole(d->host, s, &refusal)) forget(d, s);
    else turn_away(d, s, &refusal);
    return true;
  }
  /* Before the end of the stream is looked at: nonsense is nonsense. */
  if (!d->rules->plausible(d->host, s, &refusal)) {
    turn_away(d, s, &refusal);
    return true;
  }
  if (result != RAIL_IN_PROGRESS) {
    drop(d, s, "it closed the connection before a whole hello");
    return true;
  }
  return false;
}

/* It has to be waited for. */
static void watch(struct rail_doors *d, struct rail_stranger *s) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = s};
  if (d->epoll < 0) d->epoll = epoll_create1(EPOLL_CLOEXEC);
  s->watched = d->epoll >= 0 && epoll_ctl(d->epoll, EPOLL_CTL_ADD, s->fd, &event) == 0;
  if (!s->watched) drop(d, s, "there is no file or memory left to wait for its hello with");
}

static void meet(struct rail_doors *d, int fd, unsigned int door, const union rail_addr *peer) {
  struct rail_stranger *s = calloc(1, sizeof *s + d->rules->message_size);
  if (!s) {
    rail_sock_close(&fd);
    rail_doors_log(d, peer, "out of memory");
    return;
  }
  s->fd = fd;
  s->door = door;
  s->peer = *peer;
  s->deadline = rail_deadline_in_ms(d->patience_ms);
  s->older = d->youngest;
  if (d->youngest) d->youngest->younger = s;
  else d->oldest = s;
  d->youngest = s;
  d->nstrangers++;
  atomic_fetch_add_explicit(&all_strangers, 1, memory_order_relaxed);
  /* Most real peers have said everything before we look. */
  if (hear(d, s)) return;
  struct rail_stranger *leaves = is_full(d, fd) ? first_to_go(d) : NULL;
  if (leaves != s) watch(d, s);
  if (leaves) drop(d, leaves, "too many half-open connections, and this one was silent longest");
}

/* ---- one look --------------------------------------------------------- */

/* Those behind one door, until there are none or the time is over. */
static rail_result_t open_door(struct rail_doors *d, unsigned int door, uint64_t until) {
  do {
    union rail_addr peer;
    int fd;
    rail_result_t result = rail_sock_accept(d->fds[door], &fd, &peer);
    if (result == RAIL_IN_PROGRESS) return RAIL_OK;
    if (result != RAIL_OK) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) {
        RAIL_WARN("%s: accept on %s: %s", d->rules->plugin, d->name, strerror(errno));
        return result;
      }
      /* A stranger's file for whoever waits outside. Without one: it may pass. */
      if (may_log(d))
        RAIL_WARN("%s: accept on %s: %s; raise the limit of open files (ulimit -n); trying again", d->rules->plugin,
                  d->name, strerror(errno));
      if (!d->nstrangers) return RAIL_OK;
      drop(d, first_to_go(d), "too many open files, and this one was silent longest");
      continue;
    }
    meet(d, fd, door, &peer);
  } while (rail_now_ns() < until);
  return RAIL_OK;
}

/* Those inside that have said something. An event's stranger is still there:
 * hearing one removes no other. */
static void listen_to_strangers(struct rail_doors *d, uint64_t until) {
  struct epoll_event events[EVENTS_AT_ONCE];
  int n;
  do {
    n = d->nstrangers ? epoll_wait(d->epoll, events, EVENTS_AT_ONCE, 0) : 0;
    for (int i = 0; i < n; i++) (void)hear(d, events[i].data.ptr);
  } while (n == EVENTS_AT_ONCE && rail_now_ns() < until);
}

rail_result_t rail_doors_step(struct rail_doors *d) {
  uint64_t now = rail_now_ns();
  for (unsigned int i = 0; i < d->ndoors; i++) RAIL_TRY(open_door(d, i, now + (i + 1) * NEWS_NS / d->ndoors));
  listen_to_strangers(d, now + 2 * NEWS_NS);
  /* After the reading, so that what had arrived in time counts. */
  now = rail_now_ns();
  for (struct rail_stranger *s = d->oldest, *next; s && now >= s->deadline; s = next) {
    next = s->younger;
    drop(d, s, s->have ? "it said only part of a hello within the time limit"
                       : "it said nothing within the time limit");
  }
  return RAIL_OK;
}

/* ---- opening and closing ---------------------------------------------- */

void rail_doors_init(struct rail_doors *d, const struct rail_door_rules *rules, void *host, const char *name,
                     uint64_t patience_ms) {
  *d = (struct rail_doors){.rules = rules, .host = host, .name = name, .patience_ms = patience_ms, .epoll = -1};
}

void rail_doors_add(struct rail_doors *d, int fd) { d->fds[d->ndoors++] = fd; }

void rail_doors_close(struct rail_doors *d) {
  for (struct rail_stranger *s = d->oldest, *next; s; s = next) {
    int fd = s->fd;
    next = s->younger;
    forget(d, s);
    rail_sock_close(&fd);
  }
  while (d->ndoors) rail_sock_close(&d->fds[--d->ndoors]);
  rail_sock_close(&d->epoll);
}
