/* SPDX-License-Identifier: Apache-2.0
 *
 * What init makes: a context, with lists of everything that is half open, so
 * that finalize can reclaim what the caller dropped.
 *
 * Locking. sk_ctx.lock guards the list of listeners; the attempts' table has a
 * lock of its own. A connect attempt or a listener itself is used by one thread
 * at a time, the one that calls connect or accept with it. Contexts may be used
 * by many threads at once.
 */
#ifndef SK_CTX_H
#define SK_CTX_H

#include <pthread.h>

#include "common/attempts.h"
#include "common/net_ops.h"
#include "plugin/socket/sk_device.h"

#define SK_CTX_MAGIC 0x58544353u

struct sk_listen;

struct sk_ctx {
  uint32_t magic;
  uint64_t comm_id;
  int traffic_class;
  rail_profiler_fn profiler; /* NULL: none */
  struct rail_attempts attempts; /* of connect */
  pthread_mutex_t lock;
  struct sk_listen *listens;
};

/* NULL, after one line, if that is no context of ours. */
struct sk_ctx *sk_ctx_of(void *ctx, const char *call);

/* sk_connect.c */
rail_result_t sk_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle);
void sk_connects_free(struct sk_ctx *ctx); /* those under way, and their table */

/* sk_listen.c, sk_accept.c */
rail_result_t sk_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t sk_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t sk_close_listen(void *listen_comm);

#endif
