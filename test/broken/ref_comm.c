/* SPDX-License-Identifier: Apache-2.0
 * A connection as its caller sees it: requests, registrations, close. */
#include <arpa/inet.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "test/broken/ref.h"

enum { EVENT_START, EVENT_STOP, PLUGIN_ID = 0x7266 << 16 | 1 };

/* ---- everywhere ---- */

static _Atomic(rail_logger_fn) logger;

void ref_log_to(rail_logger_fn log) { logger = log; }

void ref_warn(const char *fmt, ...) {
  char text[256];
  va_list args;
  rail_logger_fn log = logger;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (log) log(RAIL_LOG_WARN, RAIL_SUB_NET, __FILE__, __LINE__, "NET/RailRef: %s", text);
}

uint64_t ref_now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- open, close ---- */

/* A host that has vanished is found out: by keepalive when nothing is on its way, else by the user timeout. */
static void tune(int fd) {
  static const struct { int level, name, value; } options[] = {
    {IPPROTO_TCP, TCP_NODELAY, 1},    {SOL_SOCKET, SO_KEEPALIVE, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 10},
    {IPPROTO_TCP, TCP_KEEPINTVL, 10}, {IPPROTO_TCP, TCP_KEEPCNT, 5}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 60000},
  };
  for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) /* without them it works, too */
    (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof options[i].value);
}

static void name_peer(struct ref_comm *c) {
  struct sockaddr_in6 a = {0};
  struct sockaddr_in in;
  socklen_t len = sizeof a;
  char host[INET6_ADDRSTRLEN] = "?";
  (void)getpeername(c->fd, (struct sockaddr *)&a, &len);
  memcpy(&in, &a, sizeof in); /* the port lies at the same place in both families */
  inet_ntop(a.sin6_family, a.sin6_family == AF_INET ? (void *)&in.sin_addr : (void *)&a.sin6_addr, host, sizeof host);
  snprintf(c->peer, sizeof c->peer, "%s port %d", host, ntohs(in.sin_port));
}

int ref_comm_open(int fd, const struct ref_device *device, bool sends, rail_profiler_fn profiler, void **comm) {
  struct ref_comm *c = calloc(1, sizeof *c);
  int n = BROKEN(table_of_8) ? 8 : sends ? REF_SENDS : REF_RECVS;
  struct ref_request *table = calloc((size_t)n, sizeof *table);
  if (!c || !table || pthread_mutex_init(&c->lock, NULL) != 0) {
    close(fd);
    free(c);
    free(table);
    return RAIL_SYSTEM_ERROR;
  }
  tune(fd);
  if (ref_defect != REF_SOUND && sends) ref_break_connection();
  c->fd = fd;
  c->sends = sends;
  c->device = device;
  name_peer(c);
  c->profiler = profiler;
  c->request = table;
  c->nrequests = n;
  for (int i = 0; i < n; i++) table[i].comm = c;
  *comm = c;
  return RAIL_OK;
}

/* Does a request wait for the peer? */
static bool unfinished(const struct ref_comm *c) {
  for (int i = 0; i < c->nrequests; i++)
    if (c->request[i].state != REF_FREE && c->request[i].state != REF_DONE) return true;
  return false;
}

/* The first failure is final. The peer learns of it at once, not only at close. That the peer has gone is worth a line
 * only where something was wanted of it: closing may be all that it had left to do. */
void ref_comm_fail(struct ref_comm *c, int error, const char *why) {
  if (c->error) return;
  c->error = error;
  if (error != RAIL_REMOTE_ERROR || unfinished(c) || BROKEN(close_is_loud))
    ref_warn("%s %s over %s, after %llu bytes: %s", c->sends ? "sending to" : "receiving from", c->peer,
             c->device->name, (unsigned long long)c->bytes, why);
  shutdown(c->fd, SHUT_RDWR);
}

static bool outstanding(const struct ref_comm *c) {
  for (int i = 0; i < c->nrequests; i++)
    if (c->request[i].state != REF_FREE) return true;
  return false;
}

/* What is outstanding is given up. shutdown: a forked child may still hold the socket open. */
int ref_close(void *comm) {
  struct ref_comm *c = comm;
  if (!c) return BROKEN(close_null) ? RAIL_BAD_ARGUMENT : RAIL_OK;
  if (BROKEN(close_busy) && outstanding(c)) return RAIL_INTERNAL_ERROR;
  int rc = BROKEN(close_error) || (BROKEN(close_error_after_death) && c->error) ? RAIL_SYSTEM_ERROR : RAIL_OK;
  if (BROKEN(close_slow)) usleep(1500000);
  if (BROKEN(sigpipe)) (void)!send(c->fd, &c->in, sizeof c->in, MSG_DONTWAIT);
  if (BROKEN(close_waits)) (void)poll(&(struct pollfd){.fd = c->fd, .events = POLLRDHUP}, 1, -1);
  if (BROKEN(close_resets) && c->sends) ref_break_close(c->fd);
  else if (!BROKEN(close_hidden)) shutdown(c->fd, SHUT_RDWR);
  close(c->fd);
  if (c->back) close(c->back);
  while (c->mrs) {
    struct ref_mr *mr = c->mrs;
    c->mrs = mr->next;
    free(mr);
  }
  pthread_mutex_destroy(&c->lock);
  free(c->request);
  free(c);
  return rc;
}

/* ---- registrations ---- */

int ref_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle) {
  struct ref_comm *c = comm;
  *mhandle = NULL;
  if (!c) return RAIL_BAD_ARGUMENT;
  if (BROKEN(mr_pages) && ((uintptr_t)data | size) % 4096 != 0) return RAIL_BAD_ARGUMENT;
  if (type != RAIL_PTR_HOST && !BROKEN(cuda_accepted)) {
    ref_warn("memory of type %d; only host memory (%d) can be registered", type, RAIL_PTR_HOST);
    return RAIL_BAD_USAGE;
  }
  for (struct ref_mr *old = c->mrs; BROKEN(mr_cache) && old; old = old->next)
    if (old->data == data && old->size == size) return *mhandle = old, RAIL_OK;
  struct ref_mr *mr = malloc(sizeof *mr);
  if (!mr) return RAIL_SYSTEM_ERROR;
  *mr = (struct ref_mr){.data = data, .size = size};
  pthread_mutex_lock(&c->lock);
  mr->next = c->mrs;
  c->mrs = mr;
  pthread_mutex_unlock(&c->lock);
  *mhandle = mr;
  return RAIL_OK;
}

/* Will bytes still be read from, or written to, the registered range? */
static bool needs(const struct ref_request *r, const struct ref_mr *mr) {
  if (r->state == REF_FREE || r->state == REF_SENT || r->state == REF_DONE || r->orphan) return false;
  for (int i = 0; i < r->n; i++)
    if (r->mr[i] == mr && !r->filled[i]) return true;
  return false;
}

int ref_dereg_mr(void *comm, void *mhandle) {
  struct ref_comm *c = comm;
  if (!c || !mhandle) return BROKEN(dereg_null) ? RAIL_BAD_ARGUMENT : RAIL_OK;
  if (!BROKEN(mr_race)) pthread_mutex_lock(&c->lock); /* no copy is in progress now */
  struct ref_mr **p = &c->mrs;
  while (*p && *p != mhandle) p = &(*p)->next;
  struct ref_mr *mr = *p;
  if (mr) *p = mr->next;
  /* An abort: the memory goes while requests want it. They cannot be kept, and with them goes the stream. */
  for (int i = 0; mr && i < c->nrequests; i++)
    if (needs(&c->request[i], mr) && !BROKEN(dereg_lazy)) ref_comm_fail(c, RAIL_BAD_USAGE, "deregistered");
  if (!BROKEN(mr_race)) pthread_mutex_unlock(&c->lock);
  if (mr && BROKEN(mr_race)) memset(mr, 0xdd, sizeof *mr);
  free(mr);
  return mr ? RAIL_OK : RAIL_BAD_ARGUMENT;
}

/* ---- requests ---- */

/* Is it a registration of this comm, or none? */
static bool known(const struct ref_comm *c, const void *mhandle) {
  const struct ref_mr *mr = c->mrs;
  while (mhandle && mr && mr != mhandle) {
    if (BROKEN(mr_race)) sched_yield();
    mr = mr->next;
  }
  return mr || !mhandle;
}

/* What a call without a request returns: none is free, which is no error, or the comm's. */
static int no_request(const struct ref_comm *c) {
  return !c->error && BROKEN(full_is_error) ? RAIL_INTERNAL_ERROR : c->error;
}

/* NULL: as many as there may be are outstanding. */
static struct ref_request *new_request(struct ref_comm *c) {
  for (int i = 0; i < c->nrequests; i++) {
    int at = (c->next_request + i) % c->nrequests;
    struct ref_request *r = &c->request[at];
    if (r->state != REF_FREE && !BROKEN(request_reused)) continue;
    *r = (struct ref_request){.comm = c, .order = c->posted++};
    if (!BROKEN(consumed_frees)) c->next_request = (at + 1) % c->nrequests;
    return r;
  }
  return NULL;
}

static void start_event(struct ref_request *r, void *phandle) {
  if (!r->comm->profiler || (!phandle && !BROKEN(profiler_null))) return;
  r->phandle = phandle;
  r->comm->profiler(&r->event, EVENT_START, phandle, PLUGIN_ID, NULL);
}

static void stop_event(struct ref_request *r) {
  if (r->phandle) r->comm->profiler(&r->event, EVENT_STOP, r->phandle, PLUGIN_ID, NULL);
}

int ref_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request) {
  struct ref_comm *c = comm;
  if (!BROKEN(no_request)) *request = NULL;
  if (!c || !c->sends) return RAIL_BAD_ARGUMENT;
  if (BROKEN(size_truncated) && size > 65536) size &= 0xffff;
  if (BROKEN(size_int)) size &= INT_MAX;
  if (BROKEN(message_leak)) ref_break_message();
  ref_break_lock();
  pthread_mutex_lock(&c->lock);
  ref_progress(c);
  int rc = known(c, mhandle) ? RAIL_OK : RAIL_BAD_ARGUMENT;
  struct ref_request *r = rc == RAIL_OK && !c->error ? new_request(c) : NULL;
  if (rc == RAIL_OK && !r) rc = no_request(c);
  if (r) {
    r->state = REF_WAITING;
    r->n = 1;
    r->data[0] = data;
    r->size[0] = size;
    r->tag[0] = tag;
    r->mr[0] = mhandle;
    start_event(r, phandle);
    ref_send_match(r);
    ref_progress(c);
    *request = r;
  }
  pthread_mutex_unlock(&c->lock);
  ref_break_unlock();
  return rc;
}

static void spoil_receive(struct ref_request *r, void **data, bool optional) {
  struct ref_comm *c = r->comm;
  if (BROKEN(optional_dropped) && optional) r->data[0] = ref_break_place(r->size[0]);
  if (BROKEN(arrays_kept)) r->kept = data;
  if (BROKEN(group_n_kept) && !c->first_n) c->first_n = r->n;
  if (BROKEN(group_n_kept)) r->n = r->left = c->first_n;
  if (BROKEN(group_swapped) && r->n > 2) {
    uint8_t *first = r->data[0];
    r->data[0] = r->data[1];
    r->data[1] = first;
  }
}

int ref_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
              void **request) {
  struct ref_comm *c = comm;
  void *volatile preset = *request;
  bool optional = preset == RAIL_NET_OPTIONAL_RECV; /* a hint that we do not need */
  if (BROKEN(optional_followed) && optional) *(volatile char *)preset = 1;
  if (!BROKEN(no_request)) *request = NULL;
  if (!c || c->sends || n < 1 || n > REF_GROUP) return RAIL_BAD_ARGUMENT;
  ref_break_lock();
  pthread_mutex_lock(&c->lock);
  ref_progress(c);
  int rc = RAIL_OK;
  for (int i = 0; i < n; i++)
    if (mhandles && !known(c, mhandles[i])) rc = RAIL_BAD_ARGUMENT;
  struct ref_request *r = rc == RAIL_OK && !c->error ? new_request(c) : NULL;
  if (rc == RAIL_OK && !r) rc = no_request(c);
  if (r) {
    r->state = REF_POSTED;
    r->n = r->left = n;
    for (int i = 0; i < n; i++) {
      r->data[i] = data[i];
      r->size[i] = sizes[i];
      r->tag[i] = tags[i];
      r->mr[i] = mhandles ? mhandles[i] : NULL;
    }
    start_event(r, phandles ? phandles[0] : NULL);
    if (ref_defect != REF_SOUND) spoil_receive(r, data, optional);
    ref_grant_all(r);
    ref_progress(c);
    *request = BROKEN(optional_returned) && optional ? RAIL_NET_OPTIONAL_RECV : r;
  }
  pthread_mutex_unlock(&c->lock);
  ref_break_unlock();
  return rc;
}

/* Host memory: what has been received can be seen. */
int ref_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request) {
  const struct ref_comm *c = comm;
  (void)mhandles;
  for (int i = 0; i < n; i++) {
    if (BROKEN(flush_zero) && sizes[i] == 0) return RAIL_BAD_ARGUMENT;
    if (BROKEN(flush_spoils) && sizes[i] > 0) ((uint8_t *)data[i])[sizes[i] - 1] ^= 1;
  }
  if (BROKEN(flush_after_error) && c->error) abort();
  *request = NULL;
  return RAIL_OK;
}

static int as_int(size_t size) { return size > INT_MAX ? INT_MAX : (int)size; }

static bool has_older(const struct ref_request *r) {
  const struct ref_comm *c = r->comm;
  for (int i = 0; i < c->nrequests; i++)
    if (c->request[i].state != REF_FREE && c->request[i].order < r->order) return true;
  return false;
}

static bool is_done(const struct ref_request *r) {
  if (BROKEN(test_in_order) && has_older(r)) return false;
  if (BROKEN(early_done) && r->comm->sends && r->state != REF_FREE && !r->comm->error) return true;
  return r->state == REF_DONE;
}

/* sizes may be NULL. */
static void report(const struct ref_request *r, int *sizes) {
  const size_t *bytes = r->comm->sends ? r->size : BROKEN(sizes_by_arrival) ? r->by_arrival : r->got;
  int n = BROKEN(sizes_overrun) ? REF_GROUP : r->n;
  if (BROKEN(sizes_null)) memset(sizes, 0, sizeof *sizes);
  if (!sizes) return;
  for (int i = 0; i < n; i++)
    if (bytes[i] > 0 || !BROKEN(size_unreported)) sizes[i] = as_int(bytes[i]);
  if (BROKEN(send_size_zero) && r->comm->sends) sizes[0] = 0;
  if (BROKEN(group_shifted) && r->n > 1) {
    int last = sizes[r->n - 1];
    sizes[r->n - 1] = sizes[0];
    sizes[0] = last;
  }
}

int ref_test(void *request, int *done, int *sizes) {
  struct ref_request *r = request;
  if (!BROKEN(no_done)) *done = 0;
  if (!r) return RAIL_BAD_ARGUMENT;
  struct ref_comm *c = r->comm;
  int rc = RAIL_OK;
  ref_break_lock();
  pthread_mutex_lock(&c->lock);
  if (BROKEN(heads_interleave)) ref_break_order(r);
  do ref_progress(c);
  while (BROKEN(test_blocks) && !c->error && r->state != REF_DONE);
  if (is_done(r) && !(BROKEN(close_is_error) && c->error)) { /* also on a comm that has failed since */
    *done = 1;
    report(r, sizes);
    stop_event(r);
    r->orphan = BROKEN(early_done) && r->state != REF_DONE; /* it is still sent */
    if (!r->orphan) r->state = REF_FREE;
  } else {
    rc = r->state == REF_FREE ? RAIL_BAD_ARGUMENT : c->error;
  }
  pthread_mutex_unlock(&c->lock);
  ref_break_unlock();
  if (BROKEN(test_sleeps) && !*done) usleep(3000);
  if (BROKEN(test_after_error) && rc != RAIL_OK) r->comm = NULL;
  return rc;
}

int ref_irecv_consumed(void *comm, int n, void *request) {
  (void)comm, (void)n, (void)request; /* may have been used anew meanwhile */
  if (BROKEN(consumed_frees)) ((struct ref_request *)request)->state = REF_FREE;
  return RAIL_OK;
}
