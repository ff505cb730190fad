/* SPDX-License-Identifier: Apache-2.0
 *
 * Making and closing connections. A connect or accept that is in progress is
 * called again and again: these tries are counted, and the one that ends it is
 * recorded.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "common/base/log.h"
#include "loader/netload.h"
#include "plugin/railtrace/tr_call.h"
#include "plugin/railtrace/tr_wrap.h"

/* A connect in progress. The plugin may keep state in the handle's bytes, and the caller may move them, so the attempt
 * is found again by what the bytes were after the last try. */
struct attempt {
  struct attempt *next;
  const struct tr_ctx *ctx;
  const void *at;
  uint64_t tries, first_ns;
  uint8_t original[RAIL_NET_HANDLE_SIZE], now[RAIL_NET_HANDLE_SIZE];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct attempt *attempts;

/* What a thread has done of its own will: it ran, or it waited. On a busy machine it also stands in line for a core,
 * and that is not the plugin's doing. */
struct pace {
  uint64_t cpu_ns;
  long waits;
};

static struct pace pace_now(void) {
  struct timespec cpu = {0};
  struct rusage usage = {0};
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  (void)getrusage(RUSAGE_THREAD, &usage);
  return (struct pace){(uint64_t)cpu.tv_sec * 1000000000 + (uint64_t)cpu.tv_nsec, usage.ru_nvcsw};
}

static void note_slow(const struct rail_trace_event *e, const struct tr_comm *comm, struct pace before) {
  uint64_t allowed = (uint64_t)tr_params.slow_ms * 1000000;
  if (rail_likely(e->duration <= allowed)) return;
  struct pace after = pace_now();
  if (after.waits != before.waits || after.cpu_ns - before.cpu_ns > allowed)
    (void)tr_broken(RAIL_RULE_SLOW_CALL, comm, 0, e->duration, allowed, "%s took %.3f ms, at most %.3f ms are allowed",
                    rail_trace_kind_name(e->kind), (double)e->duration / 1e6, (double)allowed / 1e6);
}

/* What listen, connect and accept left in *comm. NULL: none, or none that may be handed out. */
static void *settle(const struct rail_trace_event *e, rail_result_t *result, void *real, struct tr_comm *comm) {
  const char *call = rail_trace_kind_name(e->kind);
  bool refuse = false;
  if (*result != RAIL_OK) {
    if (real && real != TR_POISON)
      (void)tr_broken(RAIL_RULE_COMM_WITH_ERROR, comm, 0, (uintptr_t)real, (uint64_t)*result,
                      "%s returned %s and left %p in *comm", call, rail_result_name((int)*result), real);
    return NULL;
  }
  if (real == TR_POISON) {
    refuse = tr_broken(RAIL_RULE_COMM_UNWRITTEN, comm, 0, 0, 0, "%s succeeded without writing *comm", call);
    real = NULL;
  } else if (!real && e->kind == RAIL_TRACE_LISTEN) {
    refuse = tr_broken(RAIL_RULE_LISTEN_NULL, comm, 0, 0, 0, "listen succeeded with *comm NULL");
  }
  if (refuse) *result = RAIL_INTERNAL_ERROR;
  return real;
}

/* The comm that the caller gets for `real`. Without memory for it the plugin's is closed again. */
static rail_result_t wrap_comm(struct rail_trace_event *e, enum tr_kind kind, struct rail_net *net, void *real, int dev,
                               void **out) {
  unsigned int max_recvs = kind == TR_LISTEN ? 1 : tr_wrap_max_recvs(net, dev);
  struct tr_comm *c = tr_comm_new(kind, net, real, dev, max_recvs);
  if (c && (kind == TR_LISTEN || tr_requests_prepare(c))) {
    e->made = c->id;
    *out = tr_comm_handle(c);
    return RAIL_OK;
  }
  if (c) tr_comm_free(c);
  RAIL_WARN("%s: no memory for another comm", rail_trace_kind_name(e->kind));
  if (kind == TR_LISTEN) (void)rail_net_close_listen(net, real);
  else (void)(kind == TR_SEND ? rail_net_close_send(net, real) : rail_net_close_recv(net, real));
  return RAIL_SYSTEM_ERROR;
}

static bool bad_device(const struct tr_ctx *ctx, int dev, const char *call) {
  if (!tr_checking()) return false;
  int ndev = tr_wrap_devices(ctx->net);
  if (dev >= 0 && dev < ndev) return false;
  return tr_broken(RAIL_RULE_DEVICE_UNKNOWN, NULL, 0, (uint64_t)dev, (uint64_t)ndev, "%s on device %d of %d", call, dev,
                   ndev);
}

rail_result_t tr_listen(void *handle_of_ctx, int dev, void *handle, void **listen_comm) {
  struct rail_trace_event e;
  void *real = TR_POISON;
  struct tr_ctx *ctx = tr_ctx_of(handle_of_ctx, "listen");
  if (!ctx || bad_device(ctx, dev, "listen")) return RAIL_INTERNAL_ERROR;
  struct pace pace = pace_now();
  tr_begin(&e, RAIL_TRACE_LISTEN);
  e.ctx = ctx->id;
  e.dev = dev;
  e.made = 0;
  tr_end(&e, rail_net_raw_listen(ctx->net, ctx->real, dev, handle, &real));
  memcpy(e.handle, handle, sizeof e.handle);
  rail_result_t result = tr_result(e.result, NULL, "listen");
  note_slow(&e, NULL, pace);
  real = settle(&e, &result, real, NULL);
  if (result == RAIL_OK && real) result = wrap_comm(&e, TR_LISTEN, ctx->net, real, dev, listen_comm);
  tr_record(&e);
  return result;
}

/* ---- connect ----------------------------------------------------------- */

static struct attempt *attempt_find(const void *handle) {
  struct attempt *found = NULL;
  for (struct attempt *a = attempts; a; a = a->next) {
    if (memcmp(a->now, handle, sizeof a->now) != 0) continue;
    if (!found || a->at == handle) found = a;
  }
  return found;
}

/* The attempt that this call belongs to; a new one if there is none. NULL: no memory, then tries are not counted. */
static struct attempt *attempt_begin(const struct tr_ctx *ctx, const void *handle, uint64_t ns) {
  pthread_mutex_lock(&lock);
  struct attempt *a = attempt_find(handle);
  if (!a && (a = calloc(1, sizeof *a)) != NULL) {
    memcpy(a->original, handle, sizeof a->original);
    a->ctx = ctx;
    a->first_ns = ns;
    a->next = attempts;
    attempts = a;
  }
  if (a) a->at = handle;
  pthread_mutex_unlock(&lock);
  return a;
}

static void attempt_go_on(struct attempt *a, const void *handle) {
  pthread_mutex_lock(&lock);
  a->tries++;
  memcpy(a->now, handle, sizeof a->now);
  pthread_mutex_unlock(&lock);
}

static void attempt_end(struct attempt *a, struct rail_trace_event *e) {
  pthread_mutex_lock(&lock);
  struct attempt **at = &attempts;
  while (*at != a) at = &(*at)->next;
  *at = a->next;
  pthread_mutex_unlock(&lock);
  memcpy(e->handle, a->original, sizeof e->handle);
  e->tries = a->tries;
  e->waited = e->ns - a->first_ns;
  free(a);
}

/* NCCL abandons connections without a call when it aborts. */
void tr_attempts_drop(const struct tr_ctx *ctx) {
  pthread_mutex_lock(&lock);
  for (struct attempt **at = &attempts, *a; (a = *at);) {
    if (a->ctx != ctx) {
      at = &a->next;
      continue;
    }
    *at = a->next;
    free(a);
  }
  pthread_mutex_unlock(&lock);
}

rail_result_t tr_connect(void *handle_of_ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle) {
  struct rail_trace_event e;
  void *real = TR_POISON;
  struct rail_net_device_handle *unused = NULL; /* v6 has none, the plugin's version may */
  struct tr_ctx *ctx = tr_ctx_of(handle_of_ctx, "connect");
  if (!ctx || bad_device(ctx, dev, "connect")) return RAIL_INTERNAL_ERROR;
  struct pace pace = pace_now();
  tr_begin(&e, RAIL_TRACE_CONNECT);
  e.ctx = ctx->id;
  e.dev = dev;
  e.tag = traffic_class;
  e.made = e.tries = e.waited = 0;
  struct attempt *a = attempt_begin(ctx, handle, e.ns);
  if (!a) memcpy(e.handle, handle, sizeof e.handle);
  tr_end(&e, rail_net_raw_connect(ctx->net, ctx->real, dev, handle, traffic_class, &real,
                                  dev_handle ? dev_handle : &unused));
  rail_result_t result = tr_result(e.result, NULL, "connect");
  note_slow(&e, NULL, pace);
  real = settle(&e, &result, real, NULL);
  if (result == RAIL_OK && !real) {
    if (a) attempt_go_on(a, handle);
    return RAIL_OK;
  }
  if (a) attempt_end(a, &e);
  if (result == RAIL_OK) result = wrap_comm(&e, TR_SEND, ctx->net, real, dev, send_comm);
  tr_record(&e);
  return result;
}

/* ---- accept, close ----------------------------------------------------- */

rail_result_t tr_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  struct rail_trace_event e;
  void *real = TR_POISON;
  struct rail_net_device_handle *unused = NULL; /* v6 has none, the plugin's version may */
  struct tr_comm *l = tr_comm_of(listen_comm, TR_LISTEN, "accept");
  if (!l) return RAIL_INTERNAL_ERROR;
  struct pace pace = pace_now();
  tr_begin(&e, RAIL_TRACE_ACCEPT);
  e.comm = l->id;
  e.made = 0;
  tr_end(&e, rail_net_raw_accept(l->net, l->real, &real, dev_handle ? dev_handle : &unused));
  rail_result_t result = tr_result(e.result, l, "accept");
  note_slow(&e, l, pace);
  real = settle(&e, &result, real, l);
  if (result == RAIL_OK && !real) {
    tr_try(l, e.ns);
    return RAIL_OK;
  }
  tr_tries_end(l, &e);
  if (result == RAIL_OK) result = wrap_comm(&e, TR_RECV, l->net, real, l->dev, recv_comm);
  tr_record(&e);
  return result;
}

static rail_result_t close_comm(void *handle, enum tr_kind kind, enum rail_trace_kind event,
                                int (*raw)(struct rail_net *net, void *comm)) {
  struct rail_trace_event e;
  const char *call = rail_trace_kind_name(event);
  if (!handle) return RAIL_OK;
  struct tr_comm *c = tr_comm_of(handle, kind, call);
  if (!c) return RAIL_INTERNAL_ERROR;
  uint32_t mrs = atomic_load(&c->mrs);
  if (mrs)
    (void)tr_broken(RAIL_RULE_CLOSE_WITH_MR, c, 0, mrs, 0, "%s with %u registration%s left", call, mrs,
                    mrs == 1 ? "" : "s");
  tr_begin(&e, event);
  e.comm = c->id;
  tr_end(&e, raw(c->net, c->real));
  rail_result_t result = tr_result(e.result, c, call);
  if (result != RAIL_OK)
    (void)tr_broken(RAIL_RULE_CLOSE_ERROR, c, 0, (uint64_t)result, 0, "%s returned %s", call,
                    rail_result_name((int)result));
  tr_record(&e);
  if (c->requests) tr_requests_drop(c);
  tr_comm_free(c);
  return result;
}

rail_result_t tr_close_send(void *comm) {
  return close_comm(comm, TR_SEND, RAIL_TRACE_CLOSE_SEND, rail_net_raw_close_send);
}
rail_result_t tr_close_recv(void *comm) {
  return close_comm(comm, TR_RECV, RAIL_TRACE_CLOSE_RECV, rail_net_raw_close_recv);
}
rail_result_t tr_close_listen(void *comm) {
  return close_comm(comm, TR_LISTEN, RAIL_TRACE_CLOSE_LISTEN, rail_net_raw_close_listen);
}
