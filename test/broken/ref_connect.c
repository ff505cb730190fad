/* SPDX-License-Identifier: Apache-2.0
 *
 * The dialling side: a TCP connection, then the greeting, in as many calls as it
 * takes. An attempt lives in its context; the handle carries only its number.
 * It needs nothing from the accepting side's calls, so one thread may do both.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/broken/ref.h"

void ref_dial_free(struct ref_dial *d) {
  if (d->fd >= 0) close(d->fd);
  free(d);
}

static int failed(const struct ref_dial *d, int error) {
  struct sockaddr_in in;
  memcpy(&in, &d->to, sizeof in); /* the port lies at the same place in both families */
  ref_warn("cannot connect to port %d: %s", ntohs(in.sin_port), strerror(error));
  return RAIL_REMOTE_ERROR;
}

/* A port without a listener can be given to the very socket that dials it, which then connects to itself. */
static bool met_itself(int fd) {
  struct sockaddr_in6 a = {0}, b = {0};
  socklen_t la = sizeof a, lb = sizeof b;
  return getsockname(fd, (struct sockaddr *)&a, &la) == 0 && getpeername(fd, (struct sockaddr *)&b, &lb) == 0 &&
         la == lb && memcmp(&a, &b, la) == 0;
}

/* Is the TCP connection there? */
static int reach(struct ref_dial *d) {
  struct pollfd ready = {.fd = d->fd, .events = POLLOUT};
  int error = 0;
  socklen_t len = sizeof error;
  if (poll(&ready, 1, 0) <= 0) return RAIL_OK;
  if (getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) error = errno;
  if (!error && met_itself(d->fd)) error = ECONNREFUSED;
  if (error) return failed(d, error);
  d->connected = true;
  return RAIL_OK;
}

static int greet(struct ref_dial *d) {
  ssize_t n = send(d->fd, (uint8_t *)&d->hello + d->sent, sizeof d->hello - d->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0 && errno != EAGAIN && errno != EINTR) return failed(d, errno);
  if (n > 0) d->sent += (size_t)n;
  return RAIL_OK;
}

static int step(struct ref_dial *d) {
  int rc = RAIL_OK;
  if ((BROKEN(handle_address) || BROKEN(in_progress_escapes)) && d->calls++ < 3) return rc;
  if (!d->connected) rc = reach(d);
  if (rc == RAIL_OK && d->connected) rc = greet(d);
  if (rc == RAIL_OK && d->sent < sizeof d->hello && ref_now_ms() > d->deadline) rc = failed(d, ETIMEDOUT);
  return rc;
}

static int start(const struct ref_handle *h, struct ref_dial **out) {
  static _Atomic uint64_t numbers = 1;
  struct ref_dial *d = calloc(1, sizeof *d);
  if (!d) return RAIL_SYSTEM_ERROR;
  *d = (struct ref_dial){.id = numbers++, .hello = h->hello, .to = h->addr, .deadline = ref_now_ms() + REF_DIAL_MS};
  d->to_len = h->addr.sin6_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof d->to;
  d->fd = socket(h->addr.sin6_family, SOCK_STREAM | SOCK_NONBLOCK | ref_cloexec(), 0);
  int rc = d->fd < 0 ? RAIL_SYSTEM_ERROR : RAIL_OK;
  if (rc == RAIL_OK && connect(d->fd, (struct sockaddr *)&d->to, d->to_len) != 0 && errno != EINPROGRESS &&
      errno != EINTR)
    rc = failed(d, errno);
  if (rc != RAIL_OK) ref_dial_free(d);
  else *out = d;
  return rc;
}

/* The attempt that the handle names, taken out of the list; NULL: no such attempt. */
static struct ref_dial *take(struct ref_ctx *ctx, uint64_t id) {
  pthread_mutex_lock(&ctx->lock);
  struct ref_dial **p = &ctx->dials;
  while (*p && (*p)->id != id && !(BROKEN(handle_trusted) && (uintptr_t)*p == id)) p = &(*p)->next;
  struct ref_dial *d = *p;
  if (d) *p = d->next;
  pthread_mutex_unlock(&ctx->lock);
  return d;
}

static void put_back(struct ref_ctx *ctx, struct ref_dial *d) {
  pthread_mutex_lock(&ctx->lock);
  d->next = ctx->dials;
  ctx->dials = d;
  pthread_mutex_unlock(&ctx->lock);
}

static void wait_for_accept(void) {
  for (int calls = ref_accepts, ms = 0; calls == ref_accepts && ms < 2000; ms++) usleep(1000);
}

static int dial(void *ctx_arg, int dev, void *handle, void **send_comm) {
  struct ref_ctx *ctx = ctx_arg;
  struct ref_dial *d = NULL;
  struct ref_handle h;
  memcpy(&h, handle, sizeof h); /* the bytes need not be aligned */
  if (BROKEN(handle_trusted) && h.dial) ((struct ref_dial *)(uintptr_t)h.dial)->calls++;
  bool sane = h.hello.magic == REF_MAGIC && (h.addr.sin6_family == AF_INET || h.addr.sin6_family == AF_INET6);
  if (!ctx || !ref_device(dev) || !sane) {
    ref_warn("connect: device %d, handle %s", dev, sane ? "valid" : "not one of this plugin");
    return RAIL_BAD_ARGUMENT;
  }
  int rc = RAIL_OK;
  if (h.dial) d = take(ctx, h.dial);
  else rc = start(&h, &d);
  if (rc == RAIL_OK && !d) return RAIL_BAD_ARGUMENT;
  if (rc == RAIL_OK) {
    if (BROKEN(handle_address) && h.dial && d->from != handle) return RAIL_INTERNAL_ERROR;
    d->from = handle;
    h.dial = BROKEN(handle_trusted) ? (uintptr_t)d : d->id;
    rc = step(d);
    if (rc == RAIL_OK && d->sent < sizeof d->hello) {
      put_back(ctx, d);
      memcpy(handle, &h, sizeof h);
      return RAIL_OK;
    }
    h.dial = 0;
    memcpy(handle, &h, sizeof h);
    if (rc == RAIL_OK) {
      rc = ref_comm_open(d->fd, ref_device(dev), true, ctx->profiler, send_comm);
      d->fd = -1;
    }
    ref_dial_free(d);
  }
  return rc;
}

int ref_connect(void *ctx, int dev, void *handle, void **send_comm, struct rail_net_device_handle **dev_handle) {
  *send_comm = NULL;
  if (BROKEN(dev_handle_junk) && dev_handle) *dev_handle = handle;
  if (BROKEN(connect_sleeps)) usleep(5000);
  if (BROKEN(connect_waits_for_accept)) wait_for_accept();
  int rc = dial(ctx, dev, handle, send_comm);
  if (BROKEN(in_progress_escapes) && rc == RAIL_OK && !*send_comm) return RAIL_IN_PROGRESS;
  if (BROKEN(dead_port_for_ever) && rc == RAIL_REMOTE_ERROR) return RAIL_OK;
  if (BROKEN(connect_dirty) && rc != RAIL_OK) *send_comm = &ref_defect;
  return rc;
}
