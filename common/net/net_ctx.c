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

void *rail_net_ctx_attempt(const char *plugin, struct rail_net_ctx *ctx, uint64_t number) {
  void *attempt = rail_attempts_find(&ctx->attempts, number);
  if (!attempt)
    RAIL_WARN("%s: connect: this handle names attempt %llx, which is not under way here; allowed: a handle as listen "
              "made it, or as this context's connect left it", plugin, (unsigned long long)number);
  return attempt;
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
