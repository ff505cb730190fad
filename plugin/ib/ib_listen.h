/* SPDX-License-Identifier: Apache-2.0
 *
 * A listener: TCP sockets that accept oob connections (common/conn/door.h), and pending connections: those whose HELLO
 * was accepted. Each runs its own table of steps; none waits for another.
 *
 * One thread at a time: the one that calls accept with it, then closeListen.
 */
#ifndef IB_LISTEN_H
#define IB_LISTEN_H

#include "common/conn/door.h"
#include "common/conn/replay.h"
#include "plugin/ib/ib_setup.h"

#define IB_LISTEN_MAGIC 0x4e4c4249u
#define IB_MAX_PENDING 64 /* pending connections of one listener */

struct ib_pending {
  struct ib_pending *next;
  struct ib_setup setup;
};

struct ib_listen {
  uint32_t magic;
  struct rail_net_listener in_ctx;
  const struct ib_device *device;
  struct ib_handle handle; /* as listen returned it */
  struct rail_doors doors;
  struct rail_replay seen;
  struct ib_pending *pending, **last; /* in the order in which accept serves them */
  unsigned int npending;
};

/* Key file, ports to listen on: once, under the plugin's lock. False, after one line: there must be no devices. */
bool ib_handshake_load(void);
rail_result_t ib_listen(void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t ib_close_listen(void *listen_comm);
void ib_listener_close(struct rail_net_listener *listener); /* of a context's listeners */
/* ib_accept.c */
rail_result_t ib_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle);

/* Adds a pending connection, whose HELLO was checked. False: no room or memory; fd is still the caller's. */
bool ib_pending_add(struct ib_listen *l, int fd, const union rail_addr *peer, const struct ib_hello_wire *hello);
void ib_pending_free(struct ib_listen *l);

#endif
