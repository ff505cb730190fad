/* SPDX-License-Identifier: Apache-2.0
 *
 * What a plugin's init makes: a context, with everything that is half open, so
 * that finalize can reclaim what the caller dropped.
 *
 * Contexts may be used by many threads at once; a connect attempt or a listener
 * itself is used by one thread at a time, the one that calls connect or accept
 * with it.
 */
#ifndef RAIL_NET_CTX_H
#define RAIL_NET_CTX_H

#include <sys/queue.h>

#include "common/conn/attempts.h"
#include "common/conn/protocol.h"
#include "common/net/net_ops.h"

/* A member of a plugin's listener: its entry in the context's list. */
struct rail_net_ctx_link {
  struct rail_net_ctx *ctx;
  LIST_ENTRY(rail_net_ctx_link) next; /* in ctx->listeners, under its lock */
};

struct rail_net_ctx {
  uint32_t magic;
  int traffic_class;             /* -1: undefined */
  rail_profiler_fn profiler;     /* NULL: none */
  struct rail_attempts attempts; /* of connect; a lock of its own */
  pthread_mutex_t lock;          /* guards what follows */
  LIST_HEAD(, rail_net_ctx_link) listeners;
};

/* `plugin` begins every line ("RailSocket"). RAIL_SYSTEM_ERROR after one: out of memory. */
rail_result_t rail_net_ctx_new(const char *plugin, const struct rail_net_init *args, struct rail_net_ctx **ctx);
/* `drop` gets every attempt that is left, `close` the link of every listener, which it removes. Connections that were
 * handed out are not the context's. */
void rail_net_ctx_free(struct rail_net_ctx *ctx, void (*drop)(void *attempt),
                       void (*close)(struct rail_net_ctx_link *link));

/* NULL, after one line, if that is no context of ours. */
struct rail_net_ctx *rail_net_ctx_of(const char *plugin, void *ctx, const char *call);
void rail_net_ctx_add(struct rail_net_ctx *ctx, struct rail_net_ctx_link *link);
void rail_net_ctx_remove(struct rail_net_ctx_link *link);

/* ---- connect ------------------------------------------------------------------
 *
 * connect is called with the same handle until it is through. Between two calls its attempt, whatever the plugin needs,
 * lives in its context's table, and the handle holds only its number. Each call: rail_net_connect_enter; in the first
 * one the plugin makes its attempt and rail_net_connect_keep keeps it; in the last one rail_net_connect_leave.
 */
struct rail_net_connect {
  const struct rail_protocol *protocol;
  struct rail_net_ctx *ctx;
  void *handle;                /* the caller's */
  struct rail_handle listener; /* what it says */
  void *attempt;               /* NULL: this is the first call */
};

/* RAIL_BAD_ARGUMENT, after one line: no context of ours, or a handle that cannot be used here. */
rail_result_t rail_net_connect_enter(struct rail_net_connect *call, const struct rail_protocol *protocol, void *ctx,
                                     void *handle);
/* RAIL_SYSTEM_ERROR, after one line: out of memory; the attempt is still the plugin's. */
rail_result_t rail_net_connect_keep(struct rail_net_connect *call, void *attempt);
/* The attempt is the plugin's again, and the handle may connect again. */
void rail_net_connect_leave(struct rail_net_connect *call);

#endif
