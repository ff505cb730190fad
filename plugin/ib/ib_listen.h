/* SPDX-License-Identifier: Apache-2.0
 *
 * A listener on the interface of the oob connections, and the connections whose HELLO it has taken and that are being
 * set up (ib_setup.h), until accept returns them.
 *
 * One thread at a time: the one that calls accept with it, then closeListen.
 */
#ifndef IB_LISTEN_H
#define IB_LISTEN_H

#include "common/conn/listener.h"
#include "plugin/ib/ib_setup.h"

#define IB_LISTEN_MAGIC 0x4e4c4249u
#define IB_MAX_ACCEPTING 64 /* of one listener */

struct ib_listen {
  uint32_t magic;
  struct rail_net_ctx_link in_ctx;
  const struct ib_device *device;
  struct rail_listener listener;
  struct rail_accepting accepting;
};

/* Key file, ports to listen on: once, under the plugin's lock. False, after one line: there must be no devices. */
bool ib_handshake_load(void);
rail_result_t ib_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t ib_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);
rail_result_t ib_close_listen(void *listen_comm);
void ib_listener_close(struct rail_net_ctx_link *link); /* of a context's listeners */

#endif
