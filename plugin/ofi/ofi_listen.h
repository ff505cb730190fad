/* SPDX-License-Identifier: Apache-2.0
 * The calls of connection set-up. */
#ifndef OFI_LISTEN_H
#define OFI_LISTEN_H

#include <stdbool.h>

#include "common/net/net_ctx.h"

/* Key file, ports to listen on: once, under the plugin's lock. False, after one line: there must be no devices. */
bool ofi_handshake_load(void);
rail_result_t ofi_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t ofi_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t ofi_close_listen(void *listen_comm);
void ofi_listener_close(struct rail_net_ctx_link *link); /* of a context's listeners */

/* ofi_connect.c */
rail_result_t ofi_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                          struct rail_net_device_handle **dev_handle);
void ofi_connect_drop(void *attempt); /* of a context's attempts */

#endif
