/* SPDX-License-Identifier: Apache-2.0
 *
 * listen, accept, closeListen: the receiver's side of a handshake. Each call of accept polls the listener once, then
 * runs the steps of the connections whose HELLO it has taken, within a bound of time; the first that is ready is the
 * peer of this call.
 *
 * One thread at a time: the one that calls accept with it, then closeListen.
 */
#include "plugin/ofi/ofi_listen.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "plugin/ofi/ofi_param.h"
#include "plugin/ofi/ofi_setup.h"

#define LISTEN_MAGIC 0x4e4c4f52u
#define MAX_ACCEPTING 64    /* of one listener */
#define CALL_NS 300000ull   /* most time for these steps in one call; the last step may end later */

struct ofi_listen {
  uint32_t magic;
  struct rail_net_ctx_link in_ctx;
  const struct ofi_device *device;
  struct rail_listener listener;
  struct rail_accepting accepting;
};

static struct rail_ports tcp_ports = {.plugin = "RailOFI", .range_param = "RAIL_OFI_PORTS",
                                      .bind_param = "RAIL_OFI_BIND"};

bool ofi_handshake_load(void) {
  rail_ports_load(&tcp_ports, ofi_params.ports, ofi_params.bind);
  return ofi_protocol_load();
}

static struct rail_setup *begin(void *owner, const union rail_addr *peer) {
  const struct ofi_listen *l = owner;
  struct ofi_setup *s = ofi_setup_new(l->in_ctx.ctx, l->device, false, peer);
  return s ? &s->base : NULL;
}

static unsigned int on_hello(void *owner, const struct rail_pending *conn, const struct rail_hello *hello) {
  struct ofi_listen *l = owner;
  return rail_accepting_hello(&l->accepting, conn, hello);
}

static void count(void *owner, enum rail_listener_event event) {
  const struct ofi_listen *l = owner;
  ofi_stats_count(l->device->name, event == RAIL_LISTENER_DROPPED ? OFI_DEVICE_DROPPED : OFI_DEVICE_REFUSED);
}

static const struct rail_listener_ops listener_ops = {.protocol = &ofi_protocol, .on_hello = on_hello, .count = count};

rail_result_t ofi_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  struct ofi_listen *l = listen_comm;
  struct rail_setup *base;
  if (!recv_comm || !l || l->magic != LISTEN_MAGIC) {
    RAIL_WARN("RailOFI: accept: listenComm %p, recvComm %p; allowed: an open listener, and not NULL", listen_comm,
              (void *)recv_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *recv_comm = NULL;
  RAIL_TRY(rail_listener_poll(&l->listener));
  RAIL_TRY(rail_accepting_next(&l->accepting, rail_now_ns() + CALL_NS, &base));
  if (!base) return RAIL_OK;
  rail_result_t result = ofi_setup_take(rail_container_of(base, struct ofi_setup, base), recv_comm);
  ofi_setup_free(base);
  return result;
}

static rail_result_t open_listener(struct ofi_listen *l) {
  union rail_addr addr;
  RAIL_TRY(rail_listener_init(&l->listener, &listener_ops, l, l->device->name, (uint64_t)ofi_params.handshake_ms));
  const char *interface = ofi_oob_interface(&addr);
  if (interface) return rail_listener_add(&l->listener, &tcp_ports, interface, &addr);
  RAIL_WARN("RailOFI: listen: there is no network interface for the oob connection (NCCL_SOCKET_IFNAME)");
  return RAIL_SYSTEM_ERROR;
}

rail_result_t ofi_listen(void *ctx_arg, int dev, void *handle_bytes, void **listen_comm) {
  char addr[RAIL_ADDR_TEXT];
  if (!handle_bytes || !listen_comm) {
    RAIL_WARN("RailOFI: listen: handle %p, listenComm %p; neither may be NULL", handle_bytes, (void *)listen_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *listen_comm = NULL;
  struct rail_net_ctx *ctx = rail_net_ctx_of("RailOFI", ctx_arg, "listen");
  const struct ofi_device *device = ofi_device_at(dev, "listen");
  if (!ctx || !device) return RAIL_BAD_ARGUMENT;
  struct ofi_listen *l = calloc(1, sizeof *l);
  if (!l) {
    RAIL_WARN("RailOFI: listen: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  l->magic = LISTEN_MAGIC;
  l->device = device;
  rail_accepting_init(&l->accepting, &l->listener, MAX_ACCEPTING, begin, ofi_setup_free);
  rail_result_t result = open_listener(l);
  if (result != RAIL_OK) {
    rail_listener_close(&l->listener);
    free(l);
    return result;
  }
  const struct rail_handle *handle = &l->listener.handle;
  rail_listener_handle(&l->listener, handle_bytes);
  rail_net_ctx_add(ctx, &l->in_ctx);
  RAIL_INFO(RAIL_SUB_NET, "RailOFI: listening for %s at %s%s", device->name, rail_addr_text(&handle->addrs[0], addr),
            handle->auth ? ", authenticated" : "");
  *listen_comm = l;
  return RAIL_OK;
}

rail_result_t ofi_close_listen(void *listen_comm) {
  struct ofi_listen *l = listen_comm;
  if (!l) return RAIL_OK;
  if (l->magic != LISTEN_MAGIC) {
    RAIL_WARN("RailOFI: closeListen: %p is not an open listener", listen_comm);
    return RAIL_OK; /* an error would end the caller's clean-up */
  }
  rail_net_ctx_remove(&l->in_ctx);
  rail_accepting_close(&l->accepting);
  rail_listener_close(&l->listener);
  l->magic = 0;
  free(l);
  return RAIL_OK;
}

void ofi_listener_close(struct rail_net_ctx_link *link) {
  (void)ofi_close_listen(rail_container_of(link, struct ofi_listen, in_ctx));
}
