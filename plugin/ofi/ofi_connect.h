/* SPDX-License-Identifier: Apache-2.0
 *
 * The handshake of both sides: steps of common/conn/setup.h. Each side opens its endpoint, tells the other its
 * addresses (OFFER), and sends a PING over each path of the fabric. When the other side's PINGs are all there it says
 * READY over the oob connection, and is through when the other has said so. So a connection that is handed out has
 * carried a message each way, and neither side needs the other's calls any more to get through. */
#ifndef OFI_CONNECT_H
#define OFI_CONNECT_H

#include <stdbool.h>

#include "common/net/net_ops.h"

/* Key file, ports to listen on: once, under the plugin's lock. False, after one line: there must be no devices. */
bool ofi_handshake_load(void);

rail_result_t ofi_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t ofi_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t ofi_close_listen(void *listen_comm);
rail_result_t ofi_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                          struct rail_net_device_handle **dev_handle);

#endif
