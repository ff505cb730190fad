/* SPDX-License-Identifier: Apache-2.0
 *
 * What init makes: a context, with lists of everything that is half open, so
 * that finalize can reclaim what the caller dropped.
 *
 * Locking. sk_ctx.lock guards the two lists. A connect attempt or a listener
 * itself is used by one thread at a time, the one that calls connect or accept
 * with it. Contexts may be used by many threads at once.
 */
#ifndef SK_CTX_H
#define SK_CTX_H

#include <pthread.h>

#include "common/net_ops.h"
#include "plugin/socket/sk_device.h"

#define SK_CTX_MAGIC 0x58544353u

struct sk_connect;
struct sk_listen;

/* Connect attempts by number. The number is in the handle, where anybody may
 * have written over it: it is looked up, never followed. */
struct sk_attempt_slot {
  struct sk_connect *attempt;
  uint32_t generation;
};

struct sk_ctx {
  uint32_t magic;
  uint64_t comm_id;
  int traffic_class;
  rail_profiler_fn profiler; /* NULL: none */
  pthread_mutex_t lock;
  struct sk_attempt_slot *attempts;
  uint32_t attempt_cap;
  struct sk_listen *listens;
};

/* NULL, after one line, if that is no context of ours. */
struct sk_ctx *sk_ctx_of(void *ctx, const char *call);

/* sk_connect.c */
rail_result_t sk_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle);
void sk_connect_free(struct sk_connect *attempt);

/* sk_listen.c, sk_accept.c */
rail_result_t sk_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t sk_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t sk_close_listen(void *listen_comm);

#endif
