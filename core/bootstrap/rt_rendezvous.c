/* SPDX-License-Identifier: Apache-2.0
 *
 * The rendezvous' thread, a poll loop. A rank's side is in rt_rendezvous_join.c.
 *
 * A client is a pending connection (common/conn/pending.h) until it has sent a valid hello. Then it
 * is a rank, and its connection must stay open until the answer: one that closes
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
#include "common/conn/pending.h"
#include "core/comm/rt_error.h"

#define PENDING_MAX 512 /* pending connections; beyond, one is dropped */
#define ANSWER_MS 10000 /* to send the table to all ranks, who wait for it: as long as for a hello */

/* What a rank sends. */
struct first_message {
  struct rt_boot_header head;
  struct rt_boot_hello hello;
};

/* A rank that has come. */
struct client {
  int fd;
  int rank;
  union rail_addr from;
  size_t sent; /* bytes of the answer */
};

struct root {
  LIST_ENTRY(root) link; /* in `running` */
  int listen_fd;         /* open while it is in `running` */
  union rail_addr addr;
  uint8_t secret[RT_SECRET_BYTES];
  struct rail_pending_set pending;
  struct client *clients; /* in the order in which they came; places for nranks */
  struct pollfd *polls;   /* [0] pending connections and the listener, [1 + i] clients[i] */
  size_t n;               /* clients whose connections are open */
  int nranks, arrived;    /* nranks is 0 until the first hello */
  uint8_t *here;         /* by rank */
  unsigned char *answer; /* header, session secret, addresses: filled in as ranks arrive */
  size_t answer_size;
  uint64_t deadline;
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

/* ---- hellos ---- */

static const struct first_message *message_of(const struct rail_pending *p) {
  return (const struct first_message *)(const void *)p->bytes;
}

static struct rail_addr_wire *root_table(struct root *r) {
  return (struct rail_addr_wire *)(void *)(r->answer + sizeof(struct rt_boot_header) + sizeof(struct rt_boot_table));
}

/* Sends a reason, for a connection that is then closed. It fits an empty socket buffer, so one try is enough. */
static void refuse(int fd, const char *why) {
  struct {
    struct rt_boot_header head;
    char text[RT_BOOT_MAX_TEXT];
  } out;
  size_t len = strnlen(why, sizeof out.text), done = 0;
  out.head = rt_boot_header_make(RT_BOOT_REFUSED, 0, len);
  memcpy(out.text, why, len);
  rail_sock_send_some(fd, &out, sizeof out.head + len, &done);
  shutdown(fd, SHUT_WR);
  char rest[256]; /* unread bytes at close would send a reset, which could overtake the reason */
  size_t n;
  struct iovec iov = {.iov_base = rest, .iov_len = sizeof rest};
  for (int i = 0; i < 16 && rail_sock_recvv(fd, &iov, 1, &n) == RAIL_OK; i++) {}
}

/* A client that knows the secret, and is no rank that can be taken. */
RAIL_PRINTF(3, 4) static void refuse_rank(struct root *r, struct rail_pending *p, const char *fmt, ...) {
  char why[RT_BOOT_MAX_TEXT], text[RAIL_ADDR_TEXT];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(why, sizeof why, fmt, ap);
  va_end(ap);
  RAIL_WARN("bootstrap: rendezvous refuses %s: %s", rail_addr_text(&p->peer, text), why);
  snprintf(r->refused, sizeof r->refused, "; refused %s: %.64s", text, why);
  int fd = rail_pending_remove(&r->pending, p);
  refuse(fd, why);
  rail_sock_close(&fd);
}

/* Thousands of ranks need more descriptors than the usual soft limit of 1024. */
static void raise_fd_limit(int nranks) {
  struct rlimit limit;
  rlim_t want = (rlim_t)nranks + PENDING_MAX + 256;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= want) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = RAIL_MIN(want, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = before;
  static atomic_flag said = ATOMIC_FLAG_INIT;
  if (limit.rlim_cur < want && !atomic_flag_test_and_set(&said))
    RAIL_INFO(RAIL_SUB_BOOTSTRAP | RAIL_SUB_INIT,
              "bootstrap: the rendezvous of %d ranks wants %llu descriptors, the limit is %llu (RLIMIT_NOFILE; hard: "
              "%llu); fewer connections can wait there at a time", nranks, (unsigned long long)want,
              (unsigned long long)limit.rlim_cur, (unsigned long long)limit.rlim_max);
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
  r->clients = calloc((size_t)nranks, sizeof *r->clients);
  struct pollfd *polls = realloc(r->polls, ((size_t)nranks + 1) * sizeof *polls);
  if (polls) r->polls = polls;
  if (!r->answer || !r->here || !r->clients || !polls) return RAIL_SYSTEM_ERROR;
  memcpy(r->answer, &head, sizeof head);
  memcpy(r->answer + sizeof head, &table, sizeof table);
  r->nranks = nranks;
  raise_fd_limit(nranks);
  return RAIL_OK;
}

/* A whole hello has come: the pending connection becomes a rank, or is refused. */
static void handle_hello(struct root *r, struct rail_pending *p) {
  const struct rt_boot_hello *h = &message_of(p)->hello;
  union rail_addr addr;
  if (!rail_same_bytes(h->secret, r->secret, RT_SECRET_BYTES)) {
    rail_pending_drop(&r->pending, p, "wrong secret (a rank of another job, or a stale unique id?)");
    return;
  }
  if (h->nranks == 0 || h->nranks > RT_BOOT_MAX_RANKS || h->rank >= h->nranks || h->zero != 0 ||
      !rail_addr_unpack(&h->addr, &addr) || (h->nranks > 1 && rail_addr_port(&addr) == 0)) {
    refuse_rank(r, p, "rank %" PRIu32 " of %" PRIu32 " is not a valid hello", h->rank, h->nranks);
    return;
  }
  if (r->nranks == 0 && !r->fatal_error[0] && first_hello(r, (int)h->nranks) != RAIL_OK)
    snprintf(r->fatal_error, sizeof r->fatal_error, "the rendezvous ran out of memory");
  if (r->nranks == 0) {
    rail_pending_drop(&r->pending, p, r->fatal_error);
    return;
  }
  if ((int)h->nranks != r->nranks) {
    refuse_rank(r, p, "rank %" PRIu32 " says there are %" PRIu32 " ranks, the first to arrive said %d", h->rank,
                h->nranks, r->nranks);
    return;
  }
  if (r->here[h->rank]) {
    refuse_rank(r, p, "rank %" PRIu32 " is here already; two processes have the same rank", h->rank);
    return;
  }
  uint64_t deadline = rail_deadline_in_ms(h->timeout_ms);
  if (r->arrived == 0 || deadline < r->deadline) r->deadline = deadline;
  root_table(r)[h->rank] = h->addr;
  r->here[h->rank] = 1;
  r->arrived++;
  struct client *c = &r->clients[r->n++];
  *c = (struct client){.rank = (int)h->rank, .from = p->peer};
  c->fd = rail_pending_remove(&r->pending, p);
}

static bool of_another_version(const struct rt_boot_header *h) {
  return h->magic == RT_BOOT_MAGIC && h->version != RT_BOOT_VERSION;
}

/* What is wrong with a pending connection's header; NULL: nothing so far. */
static const char *header_error(const struct rt_boot_header *h) {
  if (h->magic == RT_BOOT_MAGIC && (h->type != RT_BOOT_HELLO || h->length < RT_SECRET_BYTES)) return "not a hello";
  if (of_another_version(h)) return NULL; /* refused when its secret has come */
  const char *error = rt_boot_header_error(h, sizeof(struct rt_boot_hello));
  return !error && h->length != sizeof(struct rt_boot_hello) ? "not a hello" : error;
}

/* A client with the right secret is a rank of this job, which cannot start without it. */
static void refuse_version(struct root *r, struct rail_pending *p) {
  char text[RAIL_ADDR_TEXT], why[sizeof r->fatal_error];
  snprintf(why, sizeof why,
           "a rank at %s speaks version %d of the bootstrap protocol, this job's rendezvous version %d; install one "
           "version of librailyard on all ranks",
           rail_addr_text(&p->peer, text), message_of(p)->head.version, RT_BOOT_VERSION);
  if (rail_same_bytes(message_of(p)->hello.secret, r->secret, RT_SECRET_BYTES))
    memcpy(r->fatal_error, why, sizeof why);
  refuse(p->fd, why);
  rail_pending_drop(&r->pending, p, "another version of the bootstrap protocol");
}

static bool read_hello(void *root, struct rail_pending *p) {
  struct root *r = root;
  const struct rt_boot_header *head = &message_of(p)->head;
  rail_result_t result = p->have < sizeof *head ? rail_pending_read(p, sizeof *head) : RAIL_OK;
  const char *error = result == RAIL_OK ? header_error(head) : NULL;
  bool other_version = of_another_version(head);
  if (result == RAIL_OK && !error)
    result = rail_pending_read(p, other_version ? sizeof *head + RT_SECRET_BYTES : sizeof(struct first_message));
  if (result == RAIL_IN_PROGRESS) return false;
  if (!error && result != RAIL_OK) error = errno ? strerror(errno) : "it closed before its hello";
  if (error) rail_pending_drop(&r->pending, p, error);
  else if (other_version) refuse_version(r, p);
  else handle_hello(r, p);
  return true;
}

/* ---- root: the loop ---- */

static void drop(struct root *r, size_t i) {
  rail_sock_close(&r->clients[i].fd);
  r->clients[i] = r->clients[--r->n];
}

/* A rank sends nothing while it waits: its connection is readable when it is closed, or the rank is broken. */
static bool rank_left(struct client *c) {
  char byte;
  size_t n;
  struct iovec iov = {.iov_base = &byte, .iov_len = 1};
  return rail_sock_recvv(c->fd, &iov, 1, &n) != RAIL_IN_PROGRESS;
}

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
    if (r->polls[1 + i].revents == 0 || !rank_left(c)) continue;
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

/* Until all ranks have arrived. False with `why` otherwise. */
static bool gather_ranks(struct root *r, char *why, size_t cap) {
  while (r->nranks == 0 || r->arrived < r->nranks) {
    uint64_t until = rail_pending_deadline(&r->pending);
    until = until ? RAIL_MIN(until, r->deadline) : r->deadline;
    r->polls[0] = (struct pollfd){.fd = r->pending.epoll, .events = POLLIN};
    for (size_t i = 0; i < r->n; i++) r->polls[1 + i] = (struct pollfd){.fd = r->clients[i].fd, .events = POLLIN};
    if (poll(r->polls, r->n + 1, rail_deadline_left_ms(until)) < 0 && errno != EINTR) {
      snprintf(why, cap, "poll failed: %s", strerror(errno));
      return false;
    }
    if (gathering_failed(r, why, cap)) return false;
    if (rail_pending_poll(&r->pending, &r->listen_fd, 1) != RAIL_OK && !atomic_load(&r->cancelled))
      RAIL_WARN("bootstrap: rendezvous cannot accept a connection: %m");
    if (r->fatal_error[0]) {
      snprintf(why, cap, "%s", r->fatal_error);
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
      if (rail_sock_send_some(c->fd, r->answer, r->answer_size, &c->sent) != RAIL_IN_PROGRESS) drop(r, i);
    }
    for (size_t i = 0; i < r->n; i++) r->polls[i] = (struct pollfd){.fd = r->clients[i].fd, .events = POLLOUT};
    if (r->n) poll(r->polls, r->n, rail_deadline_left_ms(deadline));
  }
}

static void root_free(struct root *r) {
  while (r->n > 0) drop(r, r->n - 1);
  rail_pending_close(&r->pending);
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
  rail_pending_close(&r->pending);
  rail_sock_close(&r->listen_fd);
  if (r->pending.unlogged)
    RAIL_WARN("bootstrap: rendezvous dropped %u more unauthenticated connections", r->pending.unlogged);
  if (complete) {
    answer_all(r);
  } else if (r->nranks > 0) {
    RAIL_WARN("bootstrap: rendezvous at %s failed: %s", rail_addr_text(&r->addr, text), why);
    for (size_t i = 0; i < r->n; i++) refuse(r->clients[i].fd, why);
  } else {
    RAIL_INFO(RAIL_SUB_BOOTSTRAP, "bootstrap: rendezvous at %s ends: %s", rail_addr_text(&r->addr, text), why);
  }
  root_free(r);
  return NULL;
}

rail_result_t rt_rendezvous_start(union rail_addr *addr, const uint8_t secret[RT_SECRET_BYTES], uint64_t unused_ms) {
  static const struct rail_pending_ops ops = {.read = read_hello};
  char text[RAIL_ADDR_TEXT];
  struct root *r = calloc(1, sizeof *r);
  if (!r) return RAIL_SYSTEM_ERROR;
  r->listen_fd = -1;
  r->pending = (struct rail_pending_set){.ops = &ops, .owner = r, .module = "bootstrap", .name = "the rendezvous",
                                         .size = sizeof(struct first_message), .max = PENDING_MAX,
                                         .hello_ms = RT_BOOT_HELLO_MS};
  rail_pending_init(&r->pending);
  memcpy(r->secret, secret, sizeof r->secret);
  r->deadline = rail_deadline_in_ms(unused_ms);
  r->polls = calloc(1, sizeof *r->polls);
  /* The caller logs errno, or retries. */
  if (!r->polls || rail_sock_listen(addr, RT_BOOT_MAX_RANKS, &r->listen_fd) != RAIL_OK ||
      !rail_pending_watch(&r->pending, r->listen_fd))
    goto failed;
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
