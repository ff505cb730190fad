/* SPDX-License-Identifier: Apache-2.0
 * Loading, and what is remembered of the plugin. */
#include "plugin/railtrace/tr_wrap.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "plugin/railtrace/tr_finding.h"
#include "plugin/railtrace/tr_param.h"

#define MAX_DEVICES 1024 /* whose maxRecvs is remembered */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rail_net *nets[RAIL_NET_VERSION_MAX + 1]; /* by the caller's version */
static _Atomic(struct rail_net *) current;
static struct tr_ctx *contexts;
static uint64_t ctx_ids;
static unsigned int live_contexts;
static _Atomic int max_recvs[MAX_DEVICES]; /* 0: not asked yet */
static char failure[1024]; /* why the plugin could not be loaded, until it is logged */
static bool failure_logged;

struct rail_net *tr_wrap_net(int version) {
  if (!tr_params.plugin) return NULL;
  if (version < RAIL_NET_VERSION_MIN || version > RAIL_NET_VERSION_MAX) version = RAIL_NET_VERSION_MAX;
  pthread_mutex_lock(&lock);
  if (!nets[version]) (void)rail_net_load(tr_params.plugin, version, &nets[version], failure, sizeof failure);
  struct rail_net *net = nets[version];
  pthread_mutex_unlock(&lock);
  return net;
}

void tr_wrap_log_failure(void) {
  pthread_mutex_lock(&lock);
  if (failure[0] && !failure_logged) RAIL_WARN("RAIL_TRACE_PLUGIN=%s cannot be loaded: %s", tr_params.plugin, failure);
  failure_logged = failure[0] != 0;
  pthread_mutex_unlock(&lock);
}

struct rail_net *tr_wrap_current(void) { return atomic_load(&current); }
void tr_wrap_set_current(struct rail_net *net) { atomic_store(&current, net); }

void tr_wrap_unload(void) {
  atomic_store(&current, NULL);
  for (int v = 0; v <= RAIL_NET_VERSION_MAX; v++) {
    rail_net_unload(nets[v]);
    nets[v] = NULL;
  }
}

int tr_wrap_devices(struct rail_net *net) {
  int ndev = 0;
  return rail_net_devices(net, &ndev) == RAIL_OK ? ndev : 0;
}

unsigned int tr_wrap_max_recvs(struct rail_net *net, int dev) {
  bool kept = dev >= 0 && dev < MAX_DEVICES;
  int n = kept ? atomic_load_explicit(&max_recvs[dev], memory_order_relaxed) : 0;
  struct rail_net_props_v12 props;
  if (n == 0) {
    n = rail_net_properties(net, dev, &props) == RAIL_OK && props.max_recvs > 0 ? props.max_recvs : 1;
    if (kept) atomic_store_explicit(&max_recvs[dev], n, memory_order_relaxed);
  }
  return (unsigned int)n;
}

/* ---- contexts ---------------------------------------------------------- */

struct tr_ctx *tr_ctx_new(struct rail_net *net, void *real) {
  struct tr_ctx *ctx = calloc(1, sizeof *ctx);
  if (!ctx) return NULL;
  ctx->net = net;
  ctx->real = real;
  ctx->live = true;
  pthread_mutex_lock(&lock);
  ctx->id = ++ctx_ids;
  ctx->next = contexts;
  contexts = ctx;
  live_contexts++;
  pthread_mutex_unlock(&lock);
  return ctx;
}

/* Contexts are few, and the calls that have one are rare: a list will do. */
struct tr_ctx *tr_ctx_of(void *handle, const char *call) {
  pthread_mutex_lock(&lock);
  struct tr_ctx *ctx = contexts;
  while (ctx && ctx != handle) ctx = ctx->next;
  bool live = ctx && ctx->live;
  pthread_mutex_unlock(&lock);
  if (live) return ctx;
  (void)tr_broken(RAIL_RULE_CTX_UNKNOWN, NULL, 0, (uintptr_t)handle, 0, "%s with context %p%s", call, handle,
                  ctx ? ", which was finalized" : "");
  return NULL;
}

unsigned int tr_ctx_end(struct tr_ctx *ctx) {
  pthread_mutex_lock(&lock);
  ctx->live = false;
  unsigned int left = --live_contexts;
  pthread_mutex_unlock(&lock);
  return left;
}

bool tr_ctx_any_live(void) {
  pthread_mutex_lock(&lock);
  bool any = live_contexts > 0;
  pthread_mutex_unlock(&lock);
  return any;
}

void tr_ctx_free_all(void) {
  while (contexts) {
    struct tr_ctx *ctx = contexts;
    contexts = ctx->next;
    free(ctx);
  }
}
