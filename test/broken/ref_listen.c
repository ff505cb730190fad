/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts, listening, accept.
 *
 * Any host can connect to a port. A connection is pending until it has sent
 * the greeting with the secret of the handle; up to REF_PENDING are waited for
 * at once, each with a deadline, so that none of them delays a real peer. When
 * places or files run out, the one that has been silent longest leaves.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "test/broken/ref.h"

/* ---- contexts ---- */

static struct ref_ctx process_ctx = {.lock = PTHREAD_MUTEX_INITIALIZER};

_Atomic bool ref_stopped; /* for context_shared */

struct ref_ctx *ref_process_ctx(void) { return &process_ctx; }

static void reclaim(struct ref_ctx *ctx) {
  for (struct ref_listen *l = ctx->listens, *next; l; l = next) {
    next = l->next;
    ref_close_listen(l);
  }
  while (ctx->dials) {
    struct ref_dial *d = ctx->dials;
    ctx->dials = d->next;
    ref_dial_free(d);
  }
}

/* Versions without finalize leave this to the unloading of the library. */
__attribute__((destructor)) static void unload(void) {
  while (BROKEN(exit_hangs)) pause();
  reclaim(&process_ctx);
}

int ref_init(void **ctx_out, rail_logger_fn log, rail_profiler_fn profiler) {
  static _Atomic int before;
  if (BROKEN(init_leaves_ctx)) return ref_devices_load();
  *ctx_out = NULL;
  if (BROKEN(init_once) && before++ > 0) return RAIL_INTERNAL_ERROR;
  if (BROKEN(thread_outlives)) ref_break_unloading();
  ref_stopped = false;
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
  if (!ctx) return BROKEN(finalize_null) ? RAIL_BAD_ARGUMENT : RAIL_OK;
  if (BROKEN(finalize_leaks)) return RAIL_OK;
  if (BROKEN(context_shared)) ref_stopped = true;
  reclaim(ctx);
  pthread_mutex_destroy(&ctx->lock);
  free(ctx);
  return RAIL_OK;
}

int ref_set_net_attr(void *ctx_arg, struct rail_net_attr *attr) {
  struct ref_ctx *ctx = ctx_arg;
  if (!ctx || !attr) return RAIL_OK;
  if (BROKEN(attr_race)) {
    ref_break_attr(attr, sizeof *attr);
    return RAIL_OK;
  }
  pthread_mutex_lock(&ctx->lock);
  ctx->attr = *attr;
  pthread_mutex_unlock(&ctx->lock);
  return RAIL_OK;
}

/* ---- listen ---- */

static _Atomic int ref_listening; /* for listens_few */

static int open_port(const struct ref_device *d, struct ref_handle *h) {
  socklen_t len = d->addr.sa.sa_family == AF_INET ? sizeof d->addr.in : sizeof d->addr.in6;
  struct sockaddr_in6 addr = {0};
  memcpy(&addr, &d->addr, len); /* port 0: any */
  int fd = socket(d->addr.sa.sa_family, SOCK_STREAM | SOCK_NONBLOCK | ref_cloexec(), 0);
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
  if (BROKEN(listens_few) && ref_listening >= 64) return RAIL_SYSTEM_ERROR;
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
  l->device = d;
  l->ctx = ctx;
  memcpy(whole, &h, sizeof h);
  memcpy(handle, whole, BROKEN(handle_hole) ? offsetof(struct ref_handle, dial) : sizeof whole);
  if (BROKEN(handle_overrun)) memset((uint8_t *)handle + sizeof whole, 0, 32);
  ref_listening++;
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
  while (l->npending > 0) close(l->pending[--l->npending].fd);
  close(l->fd);
  free(l);
  ref_listening--;
  return BROKEN(listen_close_error) ? RAIL_SYSTEM_ERROR : RAIL_OK;
}

/* ---- accept ---- */

/* Its socket is the caller's. */
static void forget(struct ref_listen *l, int i) {
  l->npending--;
  memmove(&l->pending[i], &l->pending[i + 1], sizeof l->pending[0] * (size_t)(l->npending - i));
}

static void drop_pending(struct ref_listen *l, int i) {
  if (!BROKEN(foreign_leaks)) close(l->pending[i].fd);
  forget(l, i);
}

/* A few a call, so that no call is long. */
static int let_in(struct ref_listen *l) {
  for (int i = 0; i < 4; i++) {
    if (BROKEN(foreign_blocks) && l->npending > 0) return RAIL_OK;
    int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | ref_cloexec());
    if (fd < 0 && errno == EMFILE && BROKEN(files_run_out)) return RAIL_SYSTEM_ERROR;
    if (fd < 0 && errno == EAGAIN && l->npending == 0 && BROKEN(accept_impatient)) return RAIL_SYSTEM_ERROR;
    if (fd < 0 && (errno == EMFILE || errno == ENFILE) && l->npending > 0) {
      drop_pending(l, 0);
      continue;
    }
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) return RAIL_OK; /* none, or a shortage that may pass: a later call retries */
    if (BROKEN(foreign_hangs)) (void)poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, -1);
    if (l->npending == REF_PENDING) drop_pending(l, 0);
    l->pending[l->npending++] = (struct ref_pending){.fd = fd, .deadline = ref_now_ms() + REF_GREETING_MS};
    if (BROKEN(foreign_blocks)) l->pending[0].deadline = UINT64_MAX;
  }
  return RAIL_OK;
}

/* A real crash also where a sanitizer would come first, and report an index that is only a little wrong. */
__attribute__((no_sanitize("address"), no_sanitize("undefined"))) static void use_as_index(const struct ref_listen *l,
                                                                                            uint64_t index) {
  ((volatile uint8_t *)l)[index]++;
}

enum verdict { UNDECIDED, PEER, REFUSED };

static enum verdict read_greeting(const struct ref_listen *l, struct ref_pending *s) {
  ssize_t n = recv(s->fd, (uint8_t *)&s->hello + s->got, sizeof s->hello - s->got, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return UNDECIDED;
  if (n <= 0) return REFUSED;
  s->got += (size_t)n;
  if (BROKEN(foreign_crashes)) use_as_index(l, s->hello.zero);
  if (memcmp(&s->hello, &l->hello, s->got) != 0 && !BROKEN(foreign_accepted)) return REFUSED;
  return s->got == sizeof s->hello ? PEER : UNDECIDED;
}

/* Two clients that are here together: each is written to through the other's socket. */
static void cross(struct ref_listen *l, struct ref_pending *s) {
  for (int i = 0; i < l->npending && !s->back; i++) {
    struct ref_pending *other = &l->pending[i];
    if (other == s || other->back) continue;
    s->back = fcntl(other->fd, F_DUPFD_CLOEXEC, 3);
    other->back = fcntl(s->fd, F_DUPFD_CLOEXEC, 3);
  }
}

/* The socket of a peer that has sent the greeting, or -1. */
static int next_peer(struct ref_listen *l, int *back) {
  struct pollfd ready[REF_PENDING];
  for (int i = 0; i < l->npending; i++) ready[i] = (struct pollfd){.fd = l->pending[i].fd, .events = POLLIN};
  int wait_ms = BROKEN(accept_once_eintr) ? 1 : 0;
  errno = 0;
  if (poll(ready, (nfds_t)l->npending, wait_ms) < 0) return -1; /* a signal: the next call looks again */
  uint64_t now = ref_now_ms();
  for (int i = l->npending - 1; i >= 0; i--) {
    struct ref_pending *s = &l->pending[i];
    enum verdict v = ready[i].revents ? read_greeting(l, s) : now > s->deadline ? REFUSED : UNDECIDED;
    if (v == REFUSED) drop_pending(l, i);
    if (v != PEER) continue;
    int fd = s->fd;
    if (BROKEN(streams_crossed)) cross(l, s);
    *back = s->back;
    forget(l, i);
    return fd;
  }
  return -1;
}

_Atomic int ref_accepts; /* for connect_waits_for_accept */

int ref_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  struct ref_listen *l = listen_comm;
  /* dev_handle is for devices that the GPU drives: left alone */
  if (BROKEN(dev_handle_junk) && dev_handle) *dev_handle = listen_comm;
  *recv_comm = NULL;
  if (!l) return RAIL_BAD_ARGUMENT;
  ref_accepts++;
  ref_break_lock();
  if (BROKEN(global_lock)) (void)poll(&(struct pollfd){.fd = l->fd, .events = POLLIN}, 1, 60);
  ref_break_unlock();
  int back = 0, rc = let_in(l), fd = rc == RAIL_OK ? next_peer(l, &back) : -1;
  if (fd < 0) return errno == EINTR && BROKEN(accept_once_eintr) ? RAIL_SYSTEM_ERROR : rc;
  if (BROKEN(one_guest)) shutdown(l->fd, SHUT_RDWR);
  rc = ref_comm_open(fd, l->device, false, l->ctx->profiler, recv_comm);
  if (rc == RAIL_OK) ((struct ref_comm *)*recv_comm)->back = back;
  return rc;
}
