/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts, listening, accept.
 *
 * Anybody can connect to a port. Whoever does is a stranger until it has sent
 * the greeting with the secret of the handle; up to REF_STRANGERS are waited for
 * at once, each with a deadline, so that none of them delays a real peer. When
 * places or files run out, the one that has been silent longest leaves.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "test/broken/ref.h"

/* ---- contexts ---- */

static struct ref_ctx process_ctx = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct ref_ctx *ref_process_ctx(void) { return &process_ctx; }

static void reclaim(struct ref_ctx *ctx) {
  while (ctx->listens) ref_close_listen(ctx->listens);
  while (ctx->dials) {
    struct ref_dial *d = ctx->dials;
    ctx->dials = d->next;
    ref_dial_free(d);
  }
}

/* Versions without finalize leave this to the unloading of the library. */
__attribute__((destructor)) static void unload(void) { reclaim(&process_ctx); }

int ref_init(void **ctx_out, rail_logger_fn log, rail_profiler_fn profiler) {
  *ctx_out = NULL;
  ref_log_to(log);
  if (ref_devices_load() != RAIL_OK) return RAIL_SYSTEM_ERROR;
  struct ref_ctx *ctx = calloc(1, sizeof *ctx);
  if (!ctx) return RAIL_SYSTEM_ERROR;
  if (pthread_mutex_init(&ctx->lock, NULL) != 0) {
    free(ctx);
    return RAIL_SYSTEM_ERROR;
  }
  ctx->profiler = profiler;
  *ctx_out = ctx;
  return RAIL_OK;
}

int ref_finalize(void *ctx_arg) {
  struct ref_ctx *ctx = ctx_arg;
  if (!ctx) return RAIL_OK;
  reclaim(ctx);
  pthread_mutex_destroy(&ctx->lock);
  free(ctx);
  return RAIL_OK;
}

int ref_set_net_attr(void *ctx_arg, struct rail_net_attr *attr) {
  struct ref_ctx *ctx = ctx_arg;
  if (!ctx || !attr) return RAIL_OK;
  pthread_mutex_lock(&ctx->lock);
  ctx->attr = *attr;
  pthread_mutex_unlock(&ctx->lock);
  return RAIL_OK;
}

/* ---- listen ---- */

static int open_port(const struct ref_device *d, struct ref_handle *h) {
  socklen_t len = d->addr.sa.sa_family == AF_INET ? sizeof d->addr.in : sizeof d->addr.in6;
  struct sockaddr_in6 addr = {0};
  memcpy(&addr, &d->addr, len); /* port 0: any */
  int fd = socket(d->addr.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0 && bind(fd, (struct sockaddr *)&addr, len) == 0 && listen(fd, SOMAXCONN) == 0 &&
      getsockname(fd, (struct sockaddr *)&addr, &len) == 0) {
    h->addr = addr;
    return fd;
  }
  ref_warn("cannot listen on %s: %s", d->name, strerror(errno));
  if (fd >= 0) close(fd);
  return -1;
}

int ref_listen(void *ctx_arg, int dev, void *handle, void **listen_comm) {
  struct ref_ctx *ctx = ctx_arg;
  const struct ref_device *d = ref_device(dev);
  *listen_comm = NULL;
  if (!ctx || !d) return RAIL_BAD_ARGUMENT;
  uint8_t whole[RAIL_NET_HANDLE_SIZE] = {0};
  struct ref_handle h = {.hello = {.magic = REF_MAGIC}};
  if (getrandom(h.hello.secret, sizeof h.hello.secret, GRND_NONBLOCK) != sizeof h.hello.secret)
    return RAIL_SYSTEM_ERROR;
  struct ref_listen *l = calloc(1, sizeof *l);
  if (!l) return RAIL_SYSTEM_ERROR;
  l->fd = open_port(d, &h);
  if (l->fd < 0) {
    free(l);
    return RAIL_SYSTEM_ERROR;
  }
  l->hello = h.hello;
  l->ctx = ctx;
  memcpy(whole, &h, sizeof h);
  memcpy(handle, whole, sizeof whole);
  pthread_mutex_lock(&ctx->lock);
  l->next = ctx->listens;
  ctx->listens = l;
  pthread_mutex_unlock(&ctx->lock);
  *listen_comm = l;
  return RAIL_OK;
}

int ref_close_listen(void *listen_comm) {
  struct ref_listen *l = listen_comm;
  if (!l) return RAIL_OK;
  pthread_mutex_lock(&l->ctx->lock);
  struct ref_listen **p = &l->ctx->listens;
  while (*p && *p != l) p = &(*p)->next;
  if (*p) *p = l->next;
  pthread_mutex_unlock(&l->ctx->lock);
  while (l->nstrangers > 0) close(l->stranger[--l->nstrangers].fd);
  close(l->fd);
  free(l);
  return RAIL_OK;
}

/* ---- accept ---- */

/* Its socket is the caller's. */
static void forget(struct ref_listen *l, int i) {
  l->nstrangers--;
  memmove(&l->stranger[i], &l->stranger[i + 1], sizeof l->stranger[0] * (size_t)(l->nstrangers - i));
}

static void turn_away(struct ref_listen *l, int i) {
  close(l->stranger[i].fd);
  forget(l, i);
}

/* A few a call, so that no call is long. */
static void let_in(struct ref_listen *l) {
  for (int i = 0; i < 4; i++) {
    int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE) && l->nstrangers > 0) {
      turn_away(l, 0);
      continue;
    }
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) return; /* nobody, or a shortage that may pass: a later call sees */
    if (l->nstrangers == REF_STRANGERS) turn_away(l, 0);
    l->stranger[l->nstrangers++] = (struct ref_stranger){.fd = fd, .deadline = ref_now_ms() + REF_GREETING_MS};
  }
}

enum verdict { UNDECIDED, PEER, INTRUDER };

static enum verdict listen_to(const struct ref_listen *l, struct ref_stranger *s) {
  ssize_t n = recv(s->fd, (uint8_t *)&s->hello + s->got, sizeof s->hello - s->got, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return UNDECIDED;
  if (n <= 0) return INTRUDER;
  s->got += (size_t)n;
  if (memcmp(&s->hello, &l->hello, s->got) != 0) return INTRUDER; /* the first wrong byte is enough */
  return s->got == sizeof s->hello ? PEER : UNDECIDED;
}

/* The socket of somebody who has greeted, or -1. */
static int next_peer(struct ref_listen *l) {
  struct pollfd ready[REF_STRANGERS];
  for (int i = 0; i < l->nstrangers; i++) ready[i] = (struct pollfd){.fd = l->stranger[i].fd, .events = POLLIN};
  if (poll(ready, (nfds_t)l->nstrangers, 0) < 0) return -1; /* a signal: the next call looks again */
  uint64_t now = ref_now_ms();
  for (int i = l->nstrangers - 1; i >= 0; i--) {
    struct ref_stranger *s = &l->stranger[i];
    enum verdict v = ready[i].revents ? listen_to(l, s) : now > s->deadline ? INTRUDER : UNDECIDED;
    if (v == INTRUDER) turn_away(l, i);
    if (v != PEER) continue;
    int fd = s->fd;
    forget(l, i);
    return fd;
  }
  return -1;
}

int ref_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  struct ref_listen *l = listen_comm;
  (void)dev_handle; /* for devices that the GPU drives: left alone */
  *recv_comm = NULL;
  if (!l) return RAIL_BAD_ARGUMENT;
  let_in(l);
  int fd = next_peer(l);
  return fd < 0 ? RAIL_OK : ref_comm_open(fd, false, l->ctx->profiler, recv_comm);
}
