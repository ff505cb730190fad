/* SPDX-License-Identifier: Apache-2.0
 *
 * listen, accept, closeListen and connect of a plugin whose handshake is a table of steps (common/conn/setup.h). The
 * plugin's functions look up the device and call these.
 *
 * connect runs the steps of its attempt (net_ctx.h) within a bound of time. accept polls the listener once, then runs
 * the steps of the connections whose HELLO it has taken, within a bound of time; the first that is ready is the peer of
 * this call.
 *
 * A listener is used by one thread at a time, and so is an attempt. What accept or connect returns as an error is one
 * that any peer would meet.
 */
#ifndef RAIL_NET_SETUP_H
#define RAIL_NET_SETUP_H

#include "common/conn/setup.h"
#include "common/net/net_ctx.h"

#define RAIL_NET_MAX_HALF_OPEN 64 /* connections of one listener; of all: listener.h */

struct rail_net_setup_ops {
  const struct rail_protocol *protocol;
  struct rail_ports *ports;     /* that listeners are bound to */
  uint64_t (*hello_ms)(void); /* that a client has for its HELLO */

  /* Of the oob connections: the interface's name and address. There is one if there are devices. */
  const char *(*oob_interface)(union rail_addr *addr);
  /* What a listener's handle says beside addresses: param and payload. NULL: nothing. */
  void (*fill_handle)(const void *device, struct rail_handle *handle);
  /* A connection to be set up, with its steps; the TCP connection is not there yet. `listener`: the handle that connect
   * was called with; NULL: accept's side. An error has been logged. */
  rail_result_t (*begin)(struct rail_net_ctx *ctx, const void *device, const union rail_addr *peer,
                         const struct rail_handle *listener, int traffic_class, struct rail_setup **setup);
  /* Through: *comm is the caller's, or an error that was logged. */
  rail_result_t (*take)(struct rail_setup *setup, void **comm);
  /* Frees everything that `take` did not hand out. */
  void (*free)(struct rail_setup *setup);
  /* For statistics, by the device's name. */
  void (*count)(const char *device, enum rail_listener_event event);
};

struct rail_net_listen {
  uint32_t magic;
  const struct rail_net_setup_ops *ops;
  struct rail_net_ctx_link in_ctx;
  const void *device;
  struct rail_listener listener;
  struct rail_listener_ops listener_ops;
  struct rail_half_open half_open;
};

/* Of connect; in its context's table. */
struct rail_net_attempt {
  const struct rail_net_setup_ops *ops;
  struct rail_setup *setup;
};

/* `device`: as device_at of the plugin gave it; `name`: its name, kept. */
rail_result_t rail_net_setup_listen(const struct rail_net_setup_ops *ops, void *ctx, const void *device,
                                    const char *name, void *handle, void **listen_comm);
rail_result_t rail_net_setup_accept(const struct rail_net_setup_ops *ops, void *listen_comm, void **recv_comm);
rail_result_t rail_net_setup_close_listen(const struct rail_net_setup_ops *ops, void *listen_comm);
rail_result_t rail_net_setup_connect(const struct rail_net_setup_ops *ops, void *ctx, const void *device,
                                     const char *name, void *handle, int traffic_class, void **send_comm);

/* What finalize calls for what is half open in a context: rail_net_process.drop_attempt and close_listener. */
void rail_net_setup_drop_attempt(void *attempt);
void rail_net_setup_close_listener(struct rail_net_ctx_link *link);

#endif
