/* SPDX-License-Identifier: Apache-2.0
 *
 * Any number of connections may be half open. A stranger that says nothing or
 * nonsense costs a place in a table and, at the end, one line in the log; whoever
 * has said HELLO by the time we look never enters the table.
 */
#include "plugin/socket/sk_reception.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/ports.h"
#include "common/sockopt.h"
#include "plugin/socket/sk_dial.h"
#include "plugin/socket/sk_sockopt.h"
#include "plugin/socket/sk_group.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_rejoin.h"

#define BACKLOG 4096 /* the kernel lowers it to net.core.somaxconn */
#define MAX_STRANGERS 1024
#define EVENTS_AT_ONCE 32
/* Most time for those at the doors, and again for those inside: a call takes less than a millisecond. */
#define NEWS_NS 200000ull
#define LINE_EVERY_NS 1000000000ull
#define ANY_LINE_EVERY_NS 100000000ull

static struct rail_ports ports = {
  .plugin = "RailSocket", .range_param = "RAIL_SOCKET_PORTS", .bind_param = "RAIL_SOCKET_BIND"};

void sk_reception_load(void) { rail_ports_load(&ports, sk_params.ports, sk_params.bind); }

/* ---- lines ------------------------------------------------------------ */

static _Atomic uint64_t next_any_line; /* of all listeners of the process */

static bool may_log(struct sk_reception *r) {
  uint64_t now = rail_now_ns(), next = atomic_load_explicit(&next_any_line, memory_order_relaxed);
  if (now < r->next_line || now < next) return false;
  if (!atomic_compare_exchange_strong(&next_any_line, &next, now + ANY_LINE_EVERY_NS)) return false;
  r->next_line = now + LINE_EVERY_NS;
  return true;
}

void sk_reception_log(struct sk_reception *r, const union rail_addr *peer, const char *why) {
  char from[RAIL_ADDR_TEXT], others[48] = "";
  if (!may_log(r)) {
    r->unlogged++;
    return;
  }
  if (r->unlogged) snprintf(others, sizeof others, " (and %u others since the last line)", r->unlogged);
  RAIL_WARN("RailSocket: accept on %s: dropped a connection from %s: %s; still listening%s", r->device->name,
            rail_addr_text(peer, from), why, others);
  r->unlogged = 0;
}

void sk_reception_count(const struct sk_reception *r, enum sk_stats_device counter) {
  /* Looked up each time: the page may be gone, with a connection that nobody closed still here. */
  uint64_t *record = sk_stats_device(r->device->name);
  if (record) rail_stats_add_shared(&record[counter], 1);
}

/* ---- answers ---------------------------------------------------------- */

/* A fresh socket takes these bytes, and reading first what came keeps the
 * close from resetting the connection before they are seen. */
void sk_refuse(int *fd, enum sk_reason reason, unsigned int stream) {
  struct sk_answer_wire answer;
  uint8_t scratch[512];
  size_t done = 0, n;
  sk_answer_encode(reason, stream, 0, &answer);
  (void)rail_sock_send_some(*fd, &answer, sizeof answer, &done);
  shutdown(*fd, SHUT_WR);
  (void)rail_sock_recvv(*fd, &(struct iovec){.iov_base = scratch, .iov_len = sizeof scratch}, 1, &n);
  rail_sock_close(fd);
}

rail_result_t sk_welcome(const struct sk_reception *r, int fd, unsigned int stream, uint32_t features,
                         const uint8_t *hello_mac) {
  struct sk_answer_wire answer;
  size_t done = 0;
  sk_answer_encode(SK_REASON_NONE, stream, features, &answer);
  if (r->handle.flags & SK_HANDLE_AUTH) RAIL_TRY(sk_auth_sign_answer(hello_mac, &answer));
  rail_sockopt_traffic_class(fd, r->traffic_class); /* the priority is not inherited */
  rail_result_t result = rail_sock_send_some(fd, &answer, sizeof answer, &done);
  return result == RAIL_IN_PROGRESS ? RAIL_SYSTEM_ERROR : result; /* a socket that takes not even this is of no use */
}

/* ---- strangers -------------------------------------------------------- */

/* Out of the table; the socket is the caller's. */
static void forget(struct sk_reception *r, struct sk_stranger *s) {
  if (s->older) s->older->younger = s->younger;
  else r->oldest = s->younger;
  if (s->younger) s->younger->older = s->older;
  else r->youngest = s->older;
  r->nstrangers--;
  /* Closing alone would not do it where a forked child holds the socket too. */
  if (s->watched) (void)epoll_ctl(r->epoll, EPOLL_CTL_DEL, s->fd, NULL);
  free(s);
}

static void drop(struct sk_reception *r, struct sk_stranger *s, enum sk_reason reason, const char *why) {
  int fd = s->fd;
  unsigned int stream = le16toh(s->wire.stream);
  sk_reception_log(r, &s->peer, why);
  forget(r, s);
  if (reason == SK_REASON_NONE || reason == SK_REASON_GARBAGE) {
    sk_reception_count(r, SK_DEVICE_STRANGERS);
    rail_sock_close(&fd);
  } else {
    sk_reception_count(r, SK_DEVICE_REFUSED);
    sk_refuse(&fd, reason, stream);
  }
}

/* The oldest that has said nothing goes, else the oldest. */
static void make_room(struct sk_reception *r, const char *why) {
  struct sk_stranger *victim = r->oldest;
  while (victim && victim->have) victim = victim->younger;
  if (!victim) victim = r->oldest;
  if (victim) drop(r, victim, SK_REASON_NONE, why);
}

/* A whole HELLO is here. */
static void judge(struct sk_reception *r, struct sk_stranger *s) {
  struct sk_hello hello;
  char why[160];
  enum sk_reason reason = sk_hello_decode(&s->wire, &r->handle, &hello);
  if (reason == SK_REASON_NONE && (hello.flags & SK_HELLO_AUTH) && !sk_auth_check_hello(&r->handle, &s->wire))
    reason = SK_REASON_MAC;
  if (reason == SK_REASON_NONE)
    reason = hello.flags & SK_HELLO_REJOIN ? sk_rejoin_offer(r, &hello, s) : sk_group_join(r, &hello, s);
  if (reason == SK_REASON_NONE) {
    forget(r, s);
    return;
  }
  if (reason == SK_REASON_VERSION)
    snprintf(why, sizeof why, "%s (%u, ours %d)", sk_reason_text(reason), hello.version, SK_WIRE_VERSION);
  else snprintf(why, sizeof why, "%s", sk_reason_text(reason));
  drop(r, s, reason, why);
}

/* Reads what came. True when the stranger left the table. */
static bool hear(struct sk_reception *r, struct sk_stranger *s) {
  rail_result_t result = rail_sock_recv_some(s->fd, &s->wire, sizeof s->wire, &s->have);
  if (result == RAIL_OK) {
    judge(r, s);
    return true;
  }
  if (!sk_hello_plausible(&s->wire, s->have)) {
    drop(r, s, SK_REASON_GARBAGE, sk_reason_text(SK_REASON_GARBAGE));
    return true;
  }
  /* Another version's HELLO may be shorter than ours, and its sender waits for an answer. */
  if (s->have >= 8 && le16toh(s->wire.version) != SK_WIRE_VERSION) {
    char why[96];
    snprintf(why, sizeof why, "%s (%u, ours %d)", sk_reason_text(SK_REASON_VERSION), le16toh(s->wire.version),
             SK_WIRE_VERSION);
    drop(r, s, SK_REASON_VERSION, why);
    return true;
  }
  if (result != RAIL_IN_PROGRESS) {
    drop(r, s, SK_REASON_NONE, "it closed the connection before a whole hello");
    return true;
  }
  return false;
}

/* It has to be waited for. */
static void watch(struct sk_reception *r, struct sk_stranger *s) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = s};
  if (r->epoll < 0) r->epoll = epoll_create1(EPOLL_CLOEXEC);
  s->watched = r->epoll >= 0 && epoll_ctl(r->epoll, EPOLL_CTL_ADD, s->fd, &event) == 0;
  if (!s->watched) drop(r, s, SK_REASON_NONE, "there is no file or memory left to wait for its hello with");
}

static void meet(struct sk_reception *r, int fd, unsigned int door, const union rail_addr *peer) {
  if (r->nstrangers == MAX_STRANGERS)
    make_room(r, "too many half-open connections, and this one was silent longest");
  struct sk_stranger *s = calloc(1, sizeof *s);
  if (!s) {
    rail_sock_close(&fd);
    sk_reception_log(r, peer, "out of memory");
    return;
  }
  s->fd = fd;
  s->door = door;
  s->peer = *peer;
  s->deadline = rail_deadline_in_ms((uint64_t)sk_params.handshake_ms);
  s->older = r->youngest;
  if (r->youngest) r->youngest->younger = s;
  else r->oldest = s;
  r->youngest = s;
  r->nstrangers++;
  /* Most real peers have said HELLO before we look. */
  if (!hear(r, s)) watch(r, s);
}

/* Those behind one door, until there are none or the time is over. */
static rail_result_t open_door(struct sk_reception *r, unsigned int door, uint64_t until) {
  do {
    union rail_addr peer;
    int fd;
    rail_result_t result = rail_sock_accept(r->doors[door], &fd, &peer);
    if (result == RAIL_IN_PROGRESS) return RAIL_OK;
    if (result != RAIL_OK) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) {
        RAIL_WARN("RailSocket: accept on %s: %s", r->device->name, strerror(errno));
        return result;
      }
      /* A stranger's file for whoever waits outside. Without one: it may pass. */
      if (may_log(r))
        RAIL_WARN("RailSocket: accept on %s: %s; raise the limit of open files (ulimit -n); trying again",
                  r->device->name, strerror(errno));
      if (!r->nstrangers) return RAIL_OK;
      make_room(r, "too many open files, and this one was silent longest");
      continue;
    }
    meet(r, fd, door, &peer);
  } while (rail_now_ns() < until);
  return RAIL_OK;
}

/* Those inside that have said something. An event's stranger is still there:
 * hearing one removes no other. */
static void listen_to_strangers(struct sk_reception *r, uint64_t until) {
  struct epoll_event events[EVENTS_AT_ONCE];
  int n;
  do {
    n = r->nstrangers ? epoll_wait(r->epoll, events, EVENTS_AT_ONCE, 0) : 0;
    for (int i = 0; i < n; i++) (void)hear(r, events[i].data.ptr);
  } while (n == EVENTS_AT_ONCE && rail_now_ns() < until);
}

rail_result_t sk_reception_step(struct sk_reception *r) {
  uint64_t now = rail_now_ns();
  for (unsigned int i = 0; i < r->handle.naddrs; i++)
    RAIL_TRY(open_door(r, i, now + (i + 1) * NEWS_NS / r->handle.naddrs));
  listen_to_strangers(r, now + 2 * NEWS_NS);
  /* After the reading, so that what had arrived in time counts. */
  now = rail_now_ns();
  for (struct sk_stranger *s = r->oldest, *next; s && now >= s->deadline; s = next) {
    next = s->younger;
    drop(r, s, SK_REASON_NONE, s->have ? "it said only part of a hello within the time limit"
                                       : "it said nothing within the time limit");
  }
  sk_group_expire(r, now);
  return RAIL_OK;
}

/* ---- opening and closing ---------------------------------------------- */

static void destroy(struct sk_reception *r) {
  for (struct sk_stranger *s = r->oldest, *next; s; s = next) {
    int fd = s->fd;
    next = s->younger;
    forget(r, s);
    rail_sock_close(&fd);
  }
  sk_groups_free(r);
  rail_seen_free(&r->seen);
  for (int i = 0; i < SK_MAX_RAILS; i++) rail_sock_close(&r->doors[i]);
  rail_sock_close(&r->epoll);
  pthread_mutex_destroy(&r->lock);
  free(r);
}

rail_result_t sk_reception_open(const struct sk_device *device, int traffic_class, struct sk_reception **out) {
  struct sk_reception *r = calloc(1, sizeof *r);
  rail_result_t result;
  if (!r || pthread_mutex_init(&r->lock, NULL) != 0) {
    free(r);
    RAIL_WARN("RailSocket: listen: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  r->device = device;
  r->traffic_class = traffic_class;
  r->refs = 1;
  r->epoll = -1;
  for (int i = 0; i < SK_MAX_RAILS; i++) r->doors[i] = -1;
  r->handle.flags = sk_auth_on() ? SK_HANDLE_AUTH : 0;
  r->handle.streams = (unsigned int)sk_params.streams;
  r->handle.naddrs = device->nrails;
  result = rail_random_bytes(r->handle.secret, sizeof r->handle.secret);
  if (result != RAIL_OK) RAIL_WARN("RailSocket: listen: no random bytes from the kernel: %s", strerror(errno));
  for (unsigned int i = 0; i < device->nrails && result == RAIL_OK; i++) {
    result = rail_ports_listen(&ports, device->rails[i]->name, &device->rails[i]->addr, BACKLOG, &r->handle.addrs[i],
                               &r->doors[i]);
    if (result != RAIL_OK) break;
    /* Accepted sockets inherit these; set later, sizes would not count for the
     * TCP window, and the first packets would be of no class. */
    sk_sockopt_set(r->doors[i], traffic_class);
  }
  if (result != RAIL_OK) destroy(r);
  else *out = r;
  return result;
}

void sk_reception_ref(struct sk_reception *r) {
  pthread_mutex_lock(&r->lock);
  r->refs++;
  pthread_mutex_unlock(&r->lock);
}

void sk_reception_unref(struct sk_reception *r) {
  pthread_mutex_lock(&r->lock);
  bool last = --r->refs == 0;
  pthread_mutex_unlock(&r->lock);
  if (last) destroy(r);
}

void sk_reception_close(struct sk_reception *r) {
  pthread_mutex_lock(&r->lock);
  r->closed = true;
  sk_groups_free(r);
  rail_seen_free(&r->seen);
  pthread_mutex_unlock(&r->lock);
  sk_reception_unref(r);
}
