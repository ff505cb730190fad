/* SPDX-License-Identifier: Apache-2.0
 * Contexts: made, recognised, taken back. */
#include "common/net/net_ctx.h"

#include <stdlib.h>

#include "common/base/log.h"

#define MAGIC 0x5854434eu

static bool init_locks(struct rail_net_ctx *ctx) {
  if (pthread_mutex_init(&ctx->lock, NULL) != 0) return false;
  if (rail_attempts_init(&ctx->attempts) == RAIL_OK) return true;
  pthread_mutex_destroy(&ctx->lock);
  return false;
}

rail_result_t rail_net_ctx_new(const char *plugin, const struct rail_net_init *args, struct rail_net_ctx **out) {
  struct rail_net_ctx *ctx = calloc(1, sizeof *ctx);
  *out = NULL;
  if (!ctx || !init_locks(ctx)) {
    free(ctx);
    RAIL_WARN("%s: init: out of memory", plugin);
    return RAIL_SYSTEM_ERROR;
  }
  ctx->magic = MAGIC;
  ctx->traffic_class = args->traffic_class;
  ctx->profiler = args->profiler;
  *out = ctx;
  return RAIL_OK;
}

void rail_net_ctx_free(struct rail_net_ctx *ctx, void (*drop)(void *attempt),
                       void (*close)(struct rail_net_ctx_link *link)) {
  rail_attempts_free(&ctx->attempts, drop);
  while (!LIST_EMPTY(&ctx->listeners)) close(LIST_FIRST(&ctx->listeners));
  ctx->magic = 0;
  pthread_mutex_destroy(&ctx->lock);
  free(ctx);
}

struct rail_net_ctx *rail_net_ctx_of(const char *plugin, void *arg, const char *call) {
  struct rail_net_ctx *ctx = arg;
  if (rail_likely(ctx && ctx->magic == MAGIC)) return ctx;
  RAIL_WARN("%s: %s: %p is not a context that init returned", plugin, call, arg);
  return NULL;
}

void rail_net_ctx_add(struct rail_net_ctx *ctx, struct rail_net_ctx_link *link) {
  link->ctx = ctx;
  pthread_mutex_lock(&ctx->lock);
  LIST_INSERT_HEAD(&ctx->listeners, link, next);
  pthread_mutex_unlock(&ctx->lock);
}

void rail_net_ctx_remove(struct rail_net_ctx_link *link) {
  pthread_mutex_lock(&link->ctx->lock);
  LIST_REMOVE(link, next);
  pthread_mutex_unlock(&link->ctx->lock);
}

/* ---- connect ------------------------------------------------------------------ */

rail_result_t rail_net_connect_enter(struct rail_net_connect *call, const struct rail_protocol *protocol, void *ctx,
                                     void *handle) {
  const char *why = "it is NULL";
  *call = (struct rail_net_connect){.protocol = protocol, .handle = handle};
  call->ctx = rail_net_ctx_of(protocol->plugin, ctx, "connect");
  if (!call->ctx) return RAIL_BAD_ARGUMENT;
  if (!handle || !rail_handle_decode(protocol, handle, &call->listener, &why)) {
    RAIL_WARN("%s: connect: this handle cannot be used: %s", protocol->plugin, why);
    return RAIL_BAD_ARGUMENT;
  }
  uint64_t number = call->listener.attempt;
  if (number == 0) return RAIL_OK;
  call->attempt = rail_attempts_find(&call->ctx->attempts, number);
  if (call->attempt) return RAIL_OK;
  RAIL_WARN("%s: connect: this handle names attempt %llx, which is not under way here; allowed: a handle as listen "
            "made it, or as this context's connect left it", protocol->plugin, (unsigned long long)number);
  return RAIL_BAD_ARGUMENT;
}

rail_result_t rail_net_connect_keep(struct rail_net_connect *call, void *attempt) {
  if (rail_attempts_add(&call->ctx->attempts, attempt, &call->listener.attempt) != RAIL_OK) {
    RAIL_WARN("%s: connect: out of memory", call->protocol->plugin);
    return RAIL_SYSTEM_ERROR;
  }
  call->attempt = attempt;
  rail_handle_set_attempt(call->handle, call->listener.attempt);
  return RAIL_OK;
}

void rail_net_connect_leave(struct rail_net_connect *call) {
  rail_attempts_remove(&call->ctx->attempts, call->listener.attempt);
  rail_handle_set_attempt(call->handle, 0);
}
