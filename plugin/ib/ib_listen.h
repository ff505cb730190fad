/* SPDX-License-Identifier: Apache-2.0
 *
 * A listener: a door on the oob connection's interface, and the connections
 * behind it that are being made. Any number of strangers may stand before it
 * (common/conn/door.h); whoever has said HELLO is a pending-made connection, a table of
 * steps of its own, and none waits for another.
 *
 * One thread at a time: the one that calls accept with it, then closeListen.
 */
#ifndef IB_LISTEN_H
#define IB_LISTEN_H

#include "common/conn/door.h"
#include "common/conn/replay.h"
#include "plugin/ib/ib_setup.h"

#define IB_LISTEN_MAGIC 0x4e4c4249u
#define IB_MAX_PENDING 64 /* pending-made connections of one listener */

struct ib_pending {
  struct ib_pending *next;
  struct ib_setup setup;
};

struct ib_listen {
  uint32_t magic;
  struct rail_net_listener in_ctx;
  const struct ib_device *device;
  struct ib_handle handle; /* as it was given out */
  struct rail_doors doors;
  struct rail_replay seen;
  struct ib_pending *pending, **last; /* in the order in which they have their turn */
  unsigned int npending;
};

/* Key file, ports to listen on: once, under the plugin's lock. False, after one line: there must be no devices. */
bool ib_handshake_load(void);
rail_result_t ib_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t ib_close_listen(void *listen_comm);
void ib_listener_close(struct rail_net_listener *listener); /* of a context's listeners */
/* ib_accept.c */
rail_result_t ib_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);

/* ib_accept.c: a HELLO that was found right. False: there is no place or memory for it, and fd is still the
 * caller's. */
bool ib_pending_add(struct ib_listen *l, int fd, const union rail_addr *peer, const struct ib_hello_wire *hello);
void ib_pending_free(struct ib_listen *l);

#endif
