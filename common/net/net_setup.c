/* SPDX-License-Identifier: Apache-2.0
 * Listeners, and attempts to connect, of plugins whose handshake is a table of steps. */
#include "common/net/net_setup.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"

#define LISTEN_MAGIC 0x4e54454eu
#define ACCEPT_NS 300000ull  /* most time for steps in one call of accept; the last step may end later */
#define CONNECT_NS 200000ull /* the same of connect */

/* ---- listen, closeListen ------------------------------------------------------- */

static struct rail_setup *begin_half_open(void *owner, const union rail_addr *peer) {
  const struct rail_net_listen *l = owner;
  struct rail_setup *s;
  return l->ops->begin(l->in_ctx.ctx, l->device, peer, NULL, -1, &s) == RAIL_OK ? s : NULL;
}

static unsigned int on_hello(void *owner, const struct rail_pending *conn, const struct rail_hello *hello) {
  struct rail_net_listen *l = owner;
  return rail_half_open_hello(&l->half_open, conn, hello);
}

static void count(void *owner, enum rail_listener_event event) {
  const struct rail_net_listen *l = owner;
  l->ops->count(l->listener.pending.name, event);
}

static rail_result_t open_listener(struct rail_net_listen *l, const char *name) {
  union rail_addr addr;
  const char *interface = l->ops->oob_interface(&addr);
  RAIL_TRY(rail_listener_init(&l->listener, &l->listener_ops, l, name, l->ops->hello_ms()));
  return rail_listener_add(&l->listener, l->ops->ports, interface, &addr);
}

rail_result_t rail_net_setup_listen(const struct rail_net_setup_ops *ops, void *ctx_arg, const void *device,
                                    const char *name, void *handle_bytes, void **listen_comm) {
  const char *plugin = ops->protocol->plugin;
  char addr[RAIL_ADDR_TEXT];
  struct rail_net_ctx *ctx = rail_net_ctx_of(plugin, ctx_arg, "listen");
  if (!ctx) return RAIL_BAD_ARGUMENT;
  if (!handle_bytes) {
    RAIL_WARN("%s: listen: handle is NULL; allowed: the address of %d bytes", plugin, RAIL_NET_HANDLE_SIZE);
    return RAIL_BAD_ARGUMENT;
  }
  struct rail_net_listen *l = calloc(1, sizeof *l);
  if (!l) {
    RAIL_WARN("%s: listen: out of memory", plugin);
    return RAIL_SYSTEM_ERROR;
  }
  l->magic = LISTEN_MAGIC;
  l->ops = ops;
  l->device = device;
  l->listener_ops = (struct rail_listener_ops){.protocol = ops->protocol, .on_hello = on_hello, .count = count};
  rail_half_open_init(&l->half_open, &l->listener, RAIL_NET_MAX_HALF_OPEN, begin_half_open, ops->free);
  rail_result_t result = open_listener(l, name);
  if (result != RAIL_OK) {
    rail_listener_close(&l->listener);
    free(l);
    return result;
  }
  struct rail_handle *handle = &l->listener.handle;
  if (ops->fill_handle) ops->fill_handle(device, handle);
  rail_listener_handle(&l->listener, handle_bytes);
  rail_net_ctx_add(ctx, &l->in_ctx);
  RAIL_INFO(RAIL_SUB_NET, "%s: listening for %s at %s%s", plugin, name, rail_addr_text(&handle->addrs[0], addr),
            handle->auth ? ", authenticated" : "");
  *listen_comm = l;
  return RAIL_OK;
}

rail_result_t rail_net_setup_close_listen(const struct rail_net_setup_ops *ops, void *listen_comm) {
  struct rail_net_listen *l = listen_comm;
  if (!l) return RAIL_OK;
  if (l->magic != LISTEN_MAGIC || l->ops != ops) {
    RAIL_WARN("%s: closeListen: %p is not an open listener", ops->protocol->plugin, listen_comm);
    return RAIL_OK; /* an error would end the caller's clean-up */
  }
  rail_net_ctx_remove(&l->in_ctx);
  rail_half_open_close(&l->half_open);
  rail_listener_close(&l->listener);
  l->magic = 0;
  free(l);
  return RAIL_OK;
}

void rail_net_setup_close_listener(struct rail_net_ctx_link *link) {
  struct rail_net_listen *l = rail_container_of(link, struct rail_net_listen, in_ctx);
  (void)rail_net_setup_close_listen(l->ops, l);
}

/* ---- accept ---------------------------------------------------------------------- */

rail_result_t rail_net_setup_accept(const struct rail_net_setup_ops *ops, void *listen_comm, void **recv_comm) {
  struct rail_net_listen *l = listen_comm;
  struct rail_setup *s;
  if (!l || l->magic != LISTEN_MAGIC || l->ops != ops) {
    RAIL_WARN("%s: accept: %p is not an open listener", ops->protocol->plugin, listen_comm);
    return RAIL_BAD_ARGUMENT;
  }
  RAIL_TRY(rail_listener_poll(&l->listener));
  RAIL_TRY(rail_half_open_next(&l->half_open, rail_now_ns() + ACCEPT_NS, &s));
  if (!s) return RAIL_OK;
  rail_result_t result = ops->take(s, recv_comm);
  ops->free(s);
  return result;
}

/* ---- connect --------------------------------------------------------------------- */

void rail_net_setup_drop_attempt(void *arg) {
  struct rail_net_attempt *a = arg;
  if (a->setup) a->ops->free(a->setup);
  free(a);
}

static rail_result_t new_attempt(const struct rail_net_setup_ops *ops, struct rail_net_connect *call,
                                 const void *device, const char *name, int traffic_class) {
  const struct rail_handle *listener = &call->listener;
  union rail_addr from;
  const char *interface = ops->oob_interface(&from);
  if (!rail_connector_agree_auth(ops->protocol, listener, name)) {
    ops->count(name, RAIL_LISTENER_REFUSED);
    return RAIL_BAD_USAGE;
  }
  struct rail_net_attempt *a = calloc(1, sizeof *a);
  if (!a) {
    RAIL_WARN("%s: connect: out of memory", ops->protocol->plugin);
    return RAIL_SYSTEM_ERROR;
  }
  a->ops = ops;
  rail_result_t result = ops->begin(call->ctx, device, &listener->addrs[0], listener, traffic_class, &a->setup);
  if (result == RAIL_OK) result = rail_setup_begin_dial(a->setup, listener, interface, &from);
  if (result == RAIL_OK) result = rail_net_connect_keep(call, a);
  if (result != RAIL_OK) rail_net_setup_drop_attempt(a);
  return result;
}

rail_result_t rail_net_setup_connect(const struct rail_net_setup_ops *ops, void *ctx, const void *device,
                                     const char *name, void *handle, int traffic_class, void **send_comm) {
  struct rail_net_connect call;
  RAIL_TRY(rail_net_connect_enter(&call, ops->protocol, ctx, handle));
  if (!call.attempt) RAIL_TRY(new_attempt(ops, &call, device, name, traffic_class));
  struct rail_net_attempt *a = call.attempt;
  rail_result_t result = rail_setup_run(a->setup, rail_now_ns() + CONNECT_NS);
  if (result == RAIL_IN_PROGRESS) return RAIL_OK;
  if (result == RAIL_OK) result = ops->take(a->setup, send_comm);
  rail_net_connect_leave(&call);
  rail_net_setup_drop_attempt(a);
  return result;
}
