/* SPDX-License-Identifier: Apache-2.0
 *
 * The rendezvous' thread, a poll loop over its clients. A rank's side is in rt_rendezvous_join.c.
 *
 * A client is a pending connection until it has sent a valid hello. Then it has a
 * rank, and its connection must stay open until the answer: one that closes
 * earlier ends the rendezvous for all, because no communicator can be made without that rank.
 */
#include "core/bootstrap/rt_rendezvous.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "core/comm/rt_error.h"

#define PENDING_MAX 512 /* pending connections; beyond, the oldest is dropped */
#define DROP_LINES 8    /* log lines about dropped connections; the rest is counted */
#define ANSWER_MS 10000 /* to send the table to all ranks, who wait for it: as long as for a hello */

struct client {
  int fd;
  int rank; /* -1: pending */
  union rail_addr from;
  uint64_t deadline; /* for the hello */
  struct {
    struct rt_boot_header head;
    struct rt_boot_hello hello;
  } in;
  size_t have, sent;
};

struct root {
  LIST_ENTRY(root) link; /* in `running` */
  int listen_fd;         /* open while it is in `running` */
  union rail_addr addr;
  uint8_t secret[RT_SECRET_BYTES];
  struct client *clients;
  struct pollfd *polls; /* [0] the listener, [1 + i] clients[i] */
  size_t n, cap;
  int nranks, arrived;   /* nranks is 0 until the first hello */
  uint8_t *here;         /* by rank */
  unsigned char *answer; /* header, session secret, addresses: filled in as ranks arrive */
  size_t answer_size;
  uint64_t deadline, accept_after;
  unsigned dropped;
  char refused[160];     /* the last rank that was refused, for the final error */
  char fatal_error[200]; /* why it must end at once; "": it need not */
  atomic_bool cancelled;
  char cancel_reason[200]; /* constant once cancelled */
};

/* ---- the rendezvous of this process that wait for ranks ---- */

static LIST_HEAD(roots, root) running = LIST_HEAD_INITIALIZER(running);
static pthread_mutex_t running_lock = PTHREAD_MUTEX_INITIALIZER;

static struct root *find_running(const uint8_t secret[RT_SECRET_BYTES]) {
  struct root *r = LIST_FIRST(&running);
  while (r && !rail_same_bytes(r->secret, secret, RT_SECRET_BYTES)) r = LIST_NEXT(r, link);
  return r;
}

static void add_running(struct root *r) {
  pthread_mutex_lock(&running_lock);
  LIST_INSERT_HEAD(&running, r, link);
  pthread_mutex_unlock(&running_lock);
}

static void remove_running(struct root *r) {
  pthread_mutex_lock(&running_lock);
  LIST_REMOVE(r, link);
  pthread_mutex_unlock(&running_lock);
}

bool rt_rendezvous_runs(const uint8_t secret[RT_SECRET_BYTES]) {
  pthread_mutex_lock(&running_lock);
  bool found = find_running(secret) != NULL;
  pthread_mutex_unlock(&running_lock);
  return found;
}

void rt_rendezvous_cancel(const uint8_t secret[RT_SECRET_BYTES], const char *why) {
  pthread_mutex_lock(&running_lock);
  struct root *r = find_running(secret);
  if (r && !atomic_load(&r->cancelled)) {
    snprintf(r->cancel_reason, sizeof r->cancel_reason, "%s", why);
    atomic_store(&r->cancelled, true);
    shutdown(r->listen_fd, SHUT_RDWR); /* wakes its thread */
  }
  pthread_mutex_unlock(&running_lock);
}

/* ---- root: clients ---- */

static struct rail_addr_wire *root_table(struct root *r) {
  return (struct rail_addr_wire *)(void *)(r->answer + sizeof(struct rt_boot_header) + sizeof(struct rt_boot_table));
}

static void drop(struct root *r, size_t i) {
  rail_sock_close(&r->clients[i].fd);
  r->clients[i] = r->clients[--r->n];
}

static void drop_pending(struct root *r, size_t i, const char *why) {
  char text[RAIL_ADDR_TEXT];
  if (r->dropped++ < DROP_LINES)
    RAIL_WARN("bootstrap: rendezvous drops the connection from %s: %s", rail_addr_text(&r->clients[i].from, text), why);
  drop(r, i);
}

/* Sends a reason, for a connection that is then closed. It fits an empty socket buffer, so one try is enough. */
static void refuse(struct client *c, const char *why) {
  struct {
    struct rt_boot_header head;
    char text[RT_BOOT_MAX_TEXT];
  } out;
  size_t len = strnlen(why, sizeof out.text), done = 0;
  out.head = rt_boot_header_make(RT_BOOT_REFUSED, 0, len);
  memcpy(out.text, why, len);
  rail_sock_send_some(c->fd, &out, sizeof out.head + len, &done);
  shutdown(c->fd, SHUT_WR);
  char rest[256]; /* unread bytes at close would send a reset, which could overtake the reason */
  size_t n;
  struct iovec iov = {.iov_base = rest, .iov_len = sizeof rest};
  for (int i = 0; i < 16 && rail_sock_recvv(c->fd, &iov, 1, &n) == RAIL_OK; i++) {}
}

RAIL_PRINTF(3, 4) static void refuse_rank(struct root *r, size_t i, const char *fmt, ...) {
  char why[RT_BOOT_MAX_TEXT], text[RAIL_ADDR_TEXT];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(why, sizeof why, fmt, ap);
  va_end(ap);
  RAIL_WARN("bootstrap: rendezvous refuses %s: %s", rail_addr_text(&r->clients[i].from, text), why);
  snprintf(r->refused, sizeof r->refused, "; refused %s: %.64s", text, why);
  refuse(&r->clients[i], why);
  drop(r, i);
}

/* Thousands of ranks need more descriptors than the usual soft limit of 1024. */
static void raise_fd_limit(int nranks) {
  struct rlimit limit;
  rlim_t want = (rlim_t)nranks + PENDING_MAX + 256;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= want) return;
  limit.rlim_cur = RAIL_MIN(want, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

/* The first valid hello sets the number of ranks. */
static rail_result_t first_hello(struct root *r, int nranks) {
  size_t body = sizeof(struct rt_boot_table) + (size_t)nranks * sizeof(struct rail_addr_wire);
  struct rt_boot_header head = rt_boot_header_make(RT_BOOT_TABLE, 0, body);
  struct rt_boot_table table;
  RAIL_TRY(rail_random_bytes(table.secret, sizeof table.secret));
  r->answer_size = sizeof head + body;
  r->answer = calloc(1, r->answer_size);
  r->here = calloc((size_t)nranks, 1);
  if (!r->answer || !r->here) return RAIL_SYSTEM_ERROR;
  memcpy(r->answer, &head, sizeof head);
  memcpy(r->answer + sizeof head, &table, sizeof table);
  r->nranks = nranks;
  raise_fd_limit(nranks);
  return RAIL_OK;
}

/* A whole hello has come: the pending connection becomes a rank, or is refused. */
static rail_result_t handle_hello(struct root *r, size_t i) {
  struct client *c = &r->clients[i];
  const struct rt_boot_hello *h = &c->in.hello;
  union rail_addr addr;
  if (!rail_same_bytes(h->secret, r->secret, RT_SECRET_BYTES)) {
    drop_pending(r, i, "wrong secret (a rank of another job, or a stale unique id?)");
    return RAIL_OK;
  }
  if (h->nranks == 0 || h->nranks > RT_BOOT_MAX_RANKS || h->rank >= h->nranks || h->zero != 0 ||
      !rail_addr_unpack(&h->addr, &addr) || (h->nranks > 1 && rail_addr_port(&addr) == 0)) {
    refuse_rank(r, i, "rank %" PRIu32 " of %" PRIu32 " is not a valid hello", h->rank, h->nranks);
    return RAIL_OK;
  }
  if (r->nranks == 0) RAIL_TRY(first_hello(r, (int)h->nranks));
  if ((int)h->nranks != r->nranks) {
    refuse_rank(r, i, "rank %" PRIu32 " says there are %" PRIu32 " ranks, the first to arrive said %d", h->rank,
                h->nranks, r->nranks);
    return RAIL_OK;
  }
  if (r->here[h->rank]) {
    refuse_rank(r, i, "rank %" PRIu32 " is here already; two processes have the same rank", h->rank);
    return RAIL_OK;
  }
  c->rank = (int)h->rank;
  r->here[c->rank] = 1;
  r->arrived++;
  root_table(r)[c->rank] = h->addr;
  uint64_t deadline = rail_deadline_in_ms(h->timeout_ms);
  if (r->arrived == 1 || deadline < r->deadline) r->deadline = deadline;
  return RAIL_OK;
}

static bool of_another_version(const struct rt_boot_header *h) {
  return h->magic == RT_BOOT_MAGIC && h->version != RT_BOOT_VERSION;
}

/* What is wrong with a pending connection's header; NULL: nothing so far. */
static const char *header_error(const struct client *c) {
  const struct rt_boot_header *h = &c->in.head;
  if (h->magic == RT_BOOT_MAGIC && (h->type != RT_BOOT_HELLO || h->length < RT_SECRET_BYTES)) return "not a hello";
  if (of_another_version(h)) return NULL; /* refused when its secret has come */
  const char *error = rt_boot_header_error(h, sizeof c->in.hello);
  return !error && h->length != sizeof c->in.hello ? "not a hello" : error;
}

/* A client with the right secret is a rank of this job, which cannot start without it. */
static void refuse_version(struct root *r, size_t i) {
  char text[RAIL_ADDR_TEXT];
  struct client *c = &r->clients[i];
  const int version = c->in.head.version;
  bool ours = rail_same_bytes(c->in.hello.secret, r->secret, RT_SECRET_BYTES);
  char why[sizeof r->fatal_error];
  snprintf(why, sizeof why,
           "a rank at %s speaks version %d of the bootstrap protocol, this job's rendezvous version %d; install one "
           "version of librailyard on all ranks",
           rail_addr_text(&c->from, text), version, RT_BOOT_VERSION);
  if (ours) memcpy(r->fatal_error, why, sizeof why);
  refuse(c, why);
  if (ours)
    drop(r, i);
  else
    drop_pending(r, i, "another version of the bootstrap protocol");
}

/* Reads a pending connection. */
static rail_result_t read_hello(struct root *r, size_t i) {
  struct client *c = &r->clients[i];
  rail_result_t result = RAIL_OK;
  if (c->have < sizeof c->in.head) {
    result = rail_sock_recv_some(c->fd, &c->in, sizeof c->in.head, &c->have);
    const char *error = result == RAIL_OK ? header_error(c) : NULL;
    if (error) {
      drop_pending(r, i, error);
      return RAIL_OK;
    }
  }
  bool other_version = of_another_version(&c->in.head);
  size_t all = other_version ? sizeof c->in.head + RT_SECRET_BYTES : sizeof c->in;
  if (result == RAIL_OK) result = rail_sock_recv_some(c->fd, &c->in, all, &c->have);
  if (result == RAIL_OK && other_version) {
    refuse_version(r, i);
    return RAIL_OK;
  }
  if (result == RAIL_OK) return handle_hello(r, i);
  if (result != RAIL_IN_PROGRESS) drop_pending(r, i, errno ? strerror(errno) : "it closed before its hello");
  return RAIL_OK;
}

/* A rank sends nothing while it waits: its connection is readable when it is closed, or the rank is broken. */
static bool rank_left(struct client *c) {
  char byte;
  size_t n;
  struct iovec iov = {.iov_base = &byte, .iov_len = 1};
  return rail_sock_recvv(c->fd, &iov, 1, &n) != RAIL_IN_PROGRESS;
}

static void drop_oldest_pending(struct root *r) {
  size_t oldest = r->n, pending = 0;
  for (size_t i = 0; i < r->n; i++) {
    if (r->clients[i].rank >= 0) continue;
    pending++;
    if (oldest == r->n || r->clients[i].deadline < r->clients[oldest].deadline) oldest = i;
  }
  if (pending >= PENDING_MAX) drop_pending(r, oldest, "too many silent connections, this is the oldest");
}

static rail_result_t grow(struct root *r) {
  if (r->n < r->cap) return RAIL_OK;
  size_t cap = r->cap ? 2 * r->cap : 64;
  struct client *clients = realloc(r->clients, cap * sizeof *clients);
  if (clients) r->clients = clients;
  struct pollfd *polls = realloc(r->polls, (cap + 1) * sizeof *polls);
  if (polls) r->polls = polls;
  if (!clients || !polls) return RAIL_SYSTEM_ERROR;
  r->cap = cap;
  return RAIL_OK;
}

static rail_result_t accept_clients(struct root *r) {
  for (;;) {
    int fd;
    union rail_addr from;
    rail_result_t result = rail_sock_accept(r->listen_fd, &fd, &from);
    if (result == RAIL_IN_PROGRESS || (result != RAIL_OK && atomic_load(&r->cancelled))) return RAIL_OK;
    if (result != RAIL_OK) {
      if (r->accept_after == 0) RAIL_WARN("bootstrap: rendezvous cannot accept: %m; raise the limit of open files");
      r->accept_after = rail_deadline_in_ms(RT_BOOT_ACCEPT_PAUSE_MS);
      return RAIL_OK;
    }
    if (r->n >= PENDING_MAX) drop_oldest_pending(r);
    if (grow(r) != RAIL_OK) {
      rail_sock_close(&fd);
      return RAIL_SYSTEM_ERROR;
    }
    struct client *c = &r->clients[r->n++];
    memset(c, 0, sizeof *c);
    c->fd = fd;
    c->rank = -1;
    c->from = from;
    c->deadline = rail_deadline_in_ms(RT_BOOT_HELLO_MS);
  }
}

/* ---- root: the loop ---- */

void rt_rendezvous_missing(const uint8_t *here, int nranks, char *text, size_t cap) {
  size_t at = 0;
  int named = 0, more = 0;
  text[0] = 0;
  for (int rank = 0; rank < nranks; rank++) {
    if (here[rank]) continue;
    if (named == 16 || at + 48 > cap) {
      more++;
      continue;
    }
    at += (size_t)snprintf(text + at, cap - at, "%s%d", named++ ? ", " : "", rank);
  }
  if (more) snprintf(text + at, cap - at, " and %d more", more);
}

/* Why the rendezvous must end without success, in `why`; false while it need not. */
static bool gathering_failed(struct root *r, char *why, size_t cap) {
  char text[RAIL_ADDR_TEXT], missing[160];
  if (atomic_load(&r->cancelled)) {
    snprintf(why, cap, "%s", r->cancel_reason);
    return true;
  }
  for (size_t i = 0; i < r->n; i++) {
    struct client *c = &r->clients[i];
    if (c->rank < 0 || r->polls[1 + i].revents == 0 || !rank_left(c)) continue;
    snprintf(why, cap, "rank %d (%s) left the rendezvous before all ranks had met (%d of %d had); it died or gave up",
             c->rank, rail_addr_text(&c->from, text), r->arrived, r->nranks);
    return true;
  }
  if (!rail_deadline_passed(r->deadline)) return false;
  if (r->nranks == 0) {
    snprintf(why, cap, "no rank came");
    return true;
  }
  rt_rendezvous_missing(r->here, r->nranks, missing, sizeof missing);
  snprintf(why, cap, "%d of %d ranks arrived; missing: %s%s", r->arrived, r->nranks, missing, r->refused);
  return true;
}

static uint64_t next_deadline(const struct root *r) {
  uint64_t next = r->deadline;
  for (size_t i = 0; i < r->n; i++)
    if (r->clients[i].rank < 0) next = RAIL_MIN(next, r->clients[i].deadline);
  if (r->accept_after) next = RAIL_MIN(next, r->accept_after);
  return next;
}

/* Until all ranks have arrived. False with `why` otherwise. */
static bool gather_ranks(struct root *r, char *why, size_t cap) {
  while (r->nranks == 0 || r->arrived < r->nranks) {
    bool paused = r->accept_after && !rail_deadline_passed(r->accept_after);
    r->polls[0] = (struct pollfd){.fd = paused ? -1 : r->listen_fd, .events = POLLIN};
    for (size_t i = 0; i < r->n; i++) r->polls[1 + i] = (struct pollfd){.fd = r->clients[i].fd, .events = POLLIN};
    if (poll(r->polls, r->n + 1, rail_deadline_left_ms(next_deadline(r))) < 0 && errno != EINTR) {
      snprintf(why, cap, "poll failed: %s", strerror(errno));
      return false;
    }
    if (gathering_failed(r, why, cap)) return false;
    /* Backwards, because drop() moves the last client into the hole. */
    for (size_t i = r->n; i-- > 0;) {
      rail_result_t result = RAIL_OK;
      if (r->clients[i].rank >= 0) continue;
      if (r->polls[1 + i].revents)
        result = read_hello(r, i);
      else if (rail_deadline_passed(r->clients[i].deadline))
        drop_pending(r, i, "no hello in time");
      if (result != RAIL_OK) {
        snprintf(why, cap, "the rendezvous ran out of memory");
        return false;
      }
    }
    if (r->fatal_error[0]) {
      snprintf(why, cap, "%s", r->fatal_error);
      return false;
    }
    if (!paused && accept_clients(r) != RAIL_OK) {
      snprintf(why, cap, "the rendezvous ran out of memory");
      return false;
    }
  }
  return true;
}

/* Sends the table to all at once; a rank that does not read it reaches its own deadline and logs that. */
static void answer_all(struct root *r) {
  uint64_t deadline = rail_deadline_in_ms(ANSWER_MS);
  while (r->n > 0 && !rail_deadline_passed(deadline)) {
    for (size_t i = r->n; i-- > 0;) {
      struct client *c = &r->clients[i];
      if (c->rank < 0 || rail_sock_send_some(c->fd, r->answer, r->answer_size, &c->sent) != RAIL_IN_PROGRESS)
        drop(r, i);
    }
    for (size_t i = 0; i < r->n; i++) r->polls[i] = (struct pollfd){.fd = r->clients[i].fd, .events = POLLOUT};
    if (r->n) poll(r->polls, r->n, rail_deadline_left_ms(deadline));
  }
}

static void root_free(struct root *r) {
  while (r->n > 0) drop(r, r->n - 1);
  rail_sock_close(&r->listen_fd);
  free(r->clients);
  free(r->polls);
  free(r->here);
  free(r->answer);
  free(r);
}

static void *root_main(void *arg) {
  struct root *r = arg;
  char why[RT_BOOT_MAX_TEXT], text[RAIL_ADDR_TEXT];
  bool complete = gather_ranks(r, why, sizeof why);
  remove_running(r);
  /* Before any answer: a rank that has one may open the next communicator at the same address. */
  rail_sock_close(&r->listen_fd);
  if (r->dropped > DROP_LINES)
    RAIL_WARN("bootstrap: rendezvous dropped %u more unauthenticated connections", r->dropped - DROP_LINES);
  if (complete) {
    answer_all(r);
  } else if (r->nranks > 0) {
    RAIL_WARN("bootstrap: rendezvous at %s failed: %s", rail_addr_text(&r->addr, text), why);
    for (size_t i = 0; i < r->n; i++)
      if (r->clients[i].rank >= 0) refuse(&r->clients[i], why);
  } else {
    RAIL_INFO(RAIL_SUB_BOOTSTRAP, "bootstrap: rendezvous at %s ends: %s", rail_addr_text(&r->addr, text), why);
  }
  root_free(r);
  return NULL;
}

rail_result_t rt_rendezvous_start(union rail_addr *addr, const uint8_t secret[RT_SECRET_BYTES], uint64_t unused_ms) {
  char text[RAIL_ADDR_TEXT];
  struct root *r = calloc(1, sizeof *r);
  if (!r) return RAIL_SYSTEM_ERROR;
  r->listen_fd = -1;
  memcpy(r->secret, secret, sizeof r->secret);
  r->deadline = rail_deadline_in_ms(unused_ms);
  if (grow(r) != RAIL_OK) goto failed;
  if (rail_sock_listen(addr, RT_BOOT_MAX_RANKS, &r->listen_fd) != RAIL_OK)
    goto failed; /* the caller logs errno, or retries */
  r->addr = *addr;
  add_running(r);
  int err = rail_thread_start("rail-rendezvous", root_main, r, NULL);
  if (err == 0) return RAIL_OK;
  remove_running(r);
  errno = err;
  RAIL_WARN("bootstrap: no thread for the rendezvous at %s: %m", rail_addr_text(addr, text));

failed:
  err = errno;
  root_free(r);
  errno = err;
  return RAIL_SYSTEM_ERROR;
}
