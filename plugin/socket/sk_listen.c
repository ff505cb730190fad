/* SPDX-License-Identifier: Apache-2.0
 * Listening: sockets on the device's own addresses, a secret, a handle that names both. */
#include "plugin/socket/sk_listen.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "plugin/socket/sk_close.h"
#include "plugin/socket/sk_dial.h"
#include "plugin/socket/sk_sockopt.h"

static void say_where(const struct sk_device *device, const struct sk_handle *handle) {
  char addrs[SK_MAX_RAILS * (RAIL_ADDR_TEXT + 2)], text[RAIL_ADDR_TEXT];
  size_t at = 0;
  for (unsigned int i = 0; i < handle->naddrs; i++) {
    rail_addr_text(&handle->addrs[i], text);
    at += (size_t)snprintf(addrs + at, sizeof addrs - at, "%s%s", i ? ", " : "", text);
  }
  RAIL_INFO(RAIL_SUB_NET, "RailSocket: listening on %s at %s, %u stream%s per rail%s", device->name, addrs,
            handle->streams, handle->streams > 1 ? "s" : "", handle->flags & SK_HANDLE_AUTH ? ", authenticated" : "");
}

rail_result_t sk_listen(void *ctx_arg, int dev, void *handle_bytes, void **listen_comm) {
  if (!handle_bytes || !listen_comm) {
    RAIL_WARN("RailSocket: listen: handle %p, listenComm %p; neither may be NULL", handle_bytes, (void *)listen_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *listen_comm = NULL;
  struct rail_net_ctx *ctx = rail_net_ctx_of("RailSocket", ctx_arg, "listen");
  const struct sk_device *device = sk_device_at(dev, "listen");
  if (!ctx || !device) return RAIL_BAD_ARGUMENT;
  sk_close_reap();

  struct sk_listen *l = calloc(1, sizeof *l);
  if (!l) {
    RAIL_WARN("RailSocket: listen: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  l->magic = SK_LISTEN_MAGIC;
  l->dev = dev;
  rail_result_t result = sk_reception_open(device, sk_traffic_class(-1, ctx->traffic_class), &l->reception);
  if (result != RAIL_OK) {
    free(l);
    return result;
  }
  sk_handle_encode(&l->reception->handle, handle_bytes);
  rail_net_ctx_add(ctx, &l->in_ctx);
  say_where(device, &l->reception->handle);
  *listen_comm = l;
  return RAIL_OK;
}

rail_result_t sk_close_listen(void *listen_comm) {
  struct sk_listen *l = listen_comm;
  if (!l) return RAIL_OK;
  if (l->magic != SK_LISTEN_MAGIC) {
    RAIL_WARN("RailSocket: closeListen: %p is not an open listener", listen_comm);
    return RAIL_OK; /* an error would end the caller's clean-up */
  }
  rail_net_ctx_remove(&l->in_ctx);
  sk_reception_close(l->reception);
  l->magic = 0;
  free(l);
  sk_close_reap();
  return RAIL_OK;
}

void sk_listener_close(struct rail_net_listener *listener) {
  (void)sk_close_listen(rail_container_of(listener, struct sk_listen, in_ctx));
}
