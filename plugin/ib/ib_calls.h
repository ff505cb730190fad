/* SPDX-License-Identifier: Apache-2.0
 * What init makes: a context, with lists of everything that is half open, so that finalize can reclaim it. */
#ifndef IB_CTX_H
#define IB_CTX_H

#include <pthread.h>

#include "common/attempts.h"
#include "common/net_ops.h"
#include "plugin/ib/ib_device.h"

#define IB_CTX_MAGIC 0x58434249u

struct ib_listen;

struct ib_ctx {
  uint32_t magic;
  uint64_t comm_id;
  int traffic_class;
  rail_profiler_fn profiler;
  struct rail_attempts attempts; /* of connect, by number */
  pthread_mutex_t lock;          /* guards what follows */
  struct ib_listen *listens;
};

/* Key file, ports to listen on: once, under the plugin's lock. False, after one line: there must be no devices. */
bool ib_handshake_load(void);

/* RAIL_SYSTEM_ERROR after one line. */
rail_result_t ib_ctx_new(const struct rail_net_init *args, struct ib_ctx **ctx);
/* With its listeners and whatever is half made; connections that were handed out are not its. */
void ib_ctx_free(struct ib_ctx *ctx);

/* NULL, after one line, if that is no context of ours. */
struct ib_ctx *ib_ctx_of(void *ctx, const char *call);

/* ib_connect.c, ib_listen.c, ib_accept.c */
rail_result_t ib_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle);
void ib_connect_drop(void *attempt); /* of ctx->attempts */
rail_result_t ib_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t ib_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t ib_close_listen(void *listen_comm);

/* ib_close.c */
rail_result_t ib_close_send(void *send_comm);
rail_result_t ib_close_recv(void *recv_comm);
/* Everything of a comm, whole or half made. */
struct ib_comm;
void ib_comm_destroy(struct ib_comm *comm);

/* ib_mr.c */
rail_result_t ib_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
rail_result_t ib_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
rail_result_t ib_dereg_mr(void *comm, void *mhandle);

#endif
