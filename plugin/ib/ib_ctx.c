/* SPDX-License-Identifier: Apache-2.0
 * A context: what init makes and finalize takes back. */
#include "plugin/ib/ib_ctx.h"

#include <stdlib.h>

#include "common/log.h"

struct ib_ctx *ib_ctx_of(void *arg, const char *call) {
  struct ib_ctx *ctx = arg;
  if (ctx && ctx->magic == IB_CTX_MAGIC) return ctx;
  RAIL_WARN("RailIB: %s: %p is no context that init gave out", call, arg);
  return NULL;
}

rail_result_t ib_ctx_new(const struct rail_net_init *args, struct ib_ctx **out) {
  struct ib_ctx *ctx = calloc(1, sizeof *ctx);
  *out = NULL;
  if (!ctx) goto no_memory;
  if (rail_attempts_init(&ctx->attempts) != RAIL_OK) goto no_memory;
  if (pthread_mutex_init(&ctx->lock, NULL) != 0) {
    rail_attempts_free(&ctx->attempts, ib_connect_drop);
    goto no_memory;
  }
  ctx->magic = IB_CTX_MAGIC;
  ctx->comm_id = args->comm_id;
  ctx->traffic_class = args->traffic_class;
  ctx->profiler = args->profiler;
  *out = ctx;
  return RAIL_OK;

no_memory:
  free(ctx);
  RAIL_WARN("RailIB: init: out of memory");
  return RAIL_SYSTEM_ERROR;
}

void ib_ctx_free(struct ib_ctx *ctx) {
  rail_attempts_free(&ctx->attempts, ib_connect_drop);
  while (ctx->listens) (void)ib_close_listen(ctx->listens);
  pthread_mutex_destroy(&ctx->lock);
  ctx->magic = 0;
  free(ctx);
}
