/* SPDX-License-Identifier: Apache-2.0
 * The calls that begin and end connections; contexts are common/net/net_ctx.h's. */
#ifndef SK_CALLS_H
#define SK_CALLS_H

#include "common/net/net_ctx.h"

/* sk_connect.c */
rail_result_t sk_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle);
void sk_connect_drop(void *attempt); /* of a context's attempts */

/* sk_listen.c */
rail_result_t sk_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t sk_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t sk_close_listen(void *listen_comm);
void sk_listener_close(struct rail_net_listener *listener); /* of a context's listeners */

#endif
