/* SPDX-License-Identifier: Apache-2.0
 * A connection as its caller sees it: requests, registrations, close. */
#include <limits.h>
#include <netinet/tcp.h>
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

int ref_comm_open(int fd, bool sends, rail_profiler_fn profiler, void **comm) {
  struct ref_comm *c = calloc(1, sizeof *c);
  int n = sends ? REF_SENDS : REF_RECVS;
  struct ref_request *table = calloc((size_t)n, sizeof *table);
  if (!c || !table || pthread_mutex_init(&c->lock, NULL) != 0) {
    close(fd);
    free(c);
    free(table);
    return RAIL_SYSTEM_ERROR;
  }
  tune(fd);
  c->fd = fd;
  c->sends = sends;
  c->profiler = profiler;
  c->request = table;
  c->nrequests = n;
  for (int i = 0; i < n; i++) table[i].comm = c;
  *comm = c;
  return RAIL_OK;
}

/* The first failure is final. The peer learns of it at once, not only at close. */
void ref_comm_fail(struct ref_comm *c, int error) {
  if (c->error) return;
  c->error = error;
  shutdown(c->fd, SHUT_RDWR);
}

/* What is outstanding is given up. shutdown: a forked child may still hold the socket open. */
int ref_close(void *comm) {
  struct ref_comm *c = comm;
  if (!c) return RAIL_OK;
  shutdown(c->fd, SHUT_RDWR);
  close(c->fd);
  while (c->mrs) {
    struct ref_mr *mr = c->mrs;
    c->mrs = mr->next;
    free(mr);
  }
  pthread_mutex_destroy(&c->lock);
  free(c->request);
  free(c);
  return RAIL_OK;
}

/* ---- registrations ---- */

int ref_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle) {
  struct ref_comm *c = comm;
  *mhandle = NULL;
  if (!c) return RAIL_BAD_ARGUMENT;
  if (type != RAIL_PTR_HOST) {
    ref_warn("memory of type %d; only host memory (%d) can be registered", type, RAIL_PTR_HOST);
    return RAIL_BAD_USAGE;
  }
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
  if (r->state == REF_FREE || r->state == REF_SENT || r->state == REF_DONE) return false;
  for (int i = 0; i < r->n; i++)
    if (r->mr[i] == mr && !r->filled[i]) return true;
  return false;
}

int ref_dereg_mr(void *comm, void *mhandle) {
  struct ref_comm *c = comm;
  if (!c || !mhandle) return RAIL_OK;
  pthread_mutex_lock(&c->lock); /* nobody is in the middle of a copy now */
  struct ref_mr **p = &c->mrs;
  while (*p && *p != mhandle) p = &(*p)->next;
  struct ref_mr *mr = *p;
  if (mr) *p = mr->next;
  /* An abort: the memory goes while requests want it. They cannot be kept, and with them goes the stream. */
  for (int i = 0; mr && i < c->nrequests; i++)
    if (needs(&c->request[i], mr)) ref_comm_fail(c, RAIL_BAD_USAGE);
  pthread_mutex_unlock(&c->lock);
  free(mr);
  return mr ? RAIL_OK : RAIL_BAD_ARGUMENT;
}

/* ---- requests ---- */

/* NULL: as many as there may be are outstanding. */
static struct ref_request *new_request(struct ref_comm *c) {
  for (int i = 0; i < c->nrequests; i++) {
    int at = (c->next_request + i) % c->nrequests;
    struct ref_request *r = &c->request[at];
    if (r->state != REF_FREE) continue;
    *r = (struct ref_request){.comm = c};
    c->next_request = (at + 1) % c->nrequests;
    return r;
  }
  return NULL;
}

static void start_event(struct ref_request *r, void *phandle) {
  if (!phandle || !r->comm->profiler) return;
  r->phandle = phandle;
  r->comm->profiler(&r->event, EVENT_START, phandle, PLUGIN_ID, NULL);
}

static void stop_event(struct ref_request *r) {
  if (r->phandle) r->comm->profiler(&r->event, EVENT_STOP, r->phandle, PLUGIN_ID, NULL);
}

int ref_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request) {
  struct ref_comm *c = comm;
  *request = NULL;
  if (!c || !c->sends) return RAIL_BAD_ARGUMENT;
  pthread_mutex_lock(&c->lock);
  ref_progress(c);
  int rc = c->error;
  struct ref_request *r = rc == RAIL_OK ? new_request(c) : NULL;
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
  return rc;
}

int ref_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
              void **request) {
  struct ref_comm *c = comm;
  *request = NULL; /* a preset RAIL_NET_OPTIONAL_RECV is a hint that we do not need */
  if (!c || c->sends || n < 1 || n > REF_GROUP) return RAIL_BAD_ARGUMENT;
  pthread_mutex_lock(&c->lock);
  ref_progress(c);
  int rc = c->error;
  struct ref_request *r = rc == RAIL_OK ? new_request(c) : NULL;
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
    ref_grant_all(r);
    ref_progress(c);
    *request = r;
  }
  pthread_mutex_unlock(&c->lock);
  return rc;
}

/* Host memory: what has been received can be seen. */
int ref_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request) {
  (void)comm, (void)n, (void)data, (void)sizes, (void)mhandles;
  *request = NULL;
  return RAIL_OK;
}

static int as_int(size_t size) { return size > INT_MAX ? INT_MAX : (int)size; }

int ref_test(void *request, int *done, int *sizes) {
  struct ref_request *r = request;
  *done = 0;
  if (!r) return RAIL_BAD_ARGUMENT;
  struct ref_comm *c = r->comm;
  int rc = RAIL_OK;
  pthread_mutex_lock(&c->lock);
  ref_progress(c);
  if (r->state == REF_DONE) { /* also on a comm that has failed since */
    *done = 1;
    for (int i = 0; sizes && i < r->n; i++) sizes[i] = as_int(c->sends ? r->size[i] : r->got[i]);
    stop_event(r);
    r->state = REF_FREE;
  } else {
    rc = r->state == REF_FREE ? RAIL_BAD_ARGUMENT : c->error;
  }
  pthread_mutex_unlock(&c->lock);
  return rc;
}

int ref_irecv_consumed(void *comm, int n, void *request) {
  (void)comm, (void)n, (void)request; /* may have been used anew meanwhile */
  return RAIL_OK;
}
