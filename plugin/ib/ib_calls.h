/* SPDX-License-Identifier: Apache-2.0
 * The calls that begin and end connections and registrations; contexts are common/net/net_ctx.h's. */
#ifndef IB_CALLS_H
#define IB_CALLS_H

#include <stdbool.h>

#include "common/net/net_ctx.h"

/* Key file, ports to listen on: once, under the plugin's lock. False, after one line: there must be no devices. */
bool ib_handshake_load(void);

/* ib_connect.c, ib_listen.c, ib_accept.c */
rail_result_t ib_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle);
void ib_connect_drop(void *attempt); /* of a context's attempts */
rail_result_t ib_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t ib_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t ib_close_listen(void *listen_comm);
void ib_listener_close(struct rail_net_listener *listener); /* of a context's listeners */

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
