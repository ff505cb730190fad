/* SPDX-License-Identifier: Apache-2.0
 * Listening: a socket on the device's own address, a secret, a handle that names both. */
#include "plugin/socket/sk_listen.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "plugin/socket/sk_close.h"
#include "plugin/socket/sk_param.h"

#define BACKLOG 4096 /* the kernel lowers it to net.core.somaxconn */

static void link_listen(struct sk_ctx *ctx, struct sk_listen *l) {
  pthread_mutex_lock(&ctx->lock);
  l->next = ctx->listens;
  if (ctx->listens) ctx->listens->prev = l;
  ctx->listens = l;
  pthread_mutex_unlock(&ctx->lock);
}

rail_result_t sk_listen(void *ctx_arg, int dev, void *handle_bytes, void **listen_comm) {
  char text[RAIL_ADDR_TEXT];
  if (!handle_bytes || !listen_comm) {
    RAIL_WARN("RailSocket: listen: handle %p, listenComm %p; neither may be NULL", handle_bytes, (void *)listen_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *listen_comm = NULL;
  struct sk_ctx *ctx = sk_ctx_of(ctx_arg, "listen");
  const struct sk_device *device = sk_device_at(dev, "listen");
  if (!ctx || !device) return RAIL_BAD_ARGUMENT;
  sk_close_reap();

  struct sk_listen *l = calloc(1, sizeof *l);
  if (!l) goto no_memory;
  l->magic = SK_LISTEN_MAGIC;
  l->ctx = ctx;
  l->dev = dev;
  l->device = device;
  l->fd = -1;
  l->handle.streams = (unsigned int)sk_params.streams;
  l->cap = 16;
  l->polls = calloc(l->cap + 1, sizeof *l->polls);
  l->strangers = calloc(l->cap, sizeof *l->strangers);
  if (!l->polls || !l->strangers) goto free_listen;
  if (rail_random_bytes(l->handle.secret, sizeof l->handle.secret) != RAIL_OK) {
    RAIL_WARN("RailSocket: listen: no random bytes from the kernel: %s", strerror(errno));
    sk_listen_free(l);
    return RAIL_SYSTEM_ERROR;
  }
  l->addr = device->addr;
  rail_addr_set_port(&l->addr, 0);
  if (rail_sock_listen(&l->addr, BACKLOG, &l->fd) != RAIL_OK) {
    RAIL_WARN("RailSocket: listen on %s, address %s: %s%s", device->name, rail_addr_text(&l->addr, text),
              strerror(errno),
              errno == EMFILE || errno == ENFILE ? "; raise the limit of open files (ulimit -n)"
              : errno == EADDRINUSE              ? "; no free port (net.ipv4.ip_local_port_range)"
                                                 : "");
    sk_listen_free(l);
    return RAIL_SYSTEM_ERROR;
  }
  /* Accepted sockets inherit the sizes; set later they would not count for the TCP window. */
  (void)rail_sock_set_buffers(l->fd, sk_params.sndbuf, sk_params.rcvbuf);
  l->polls[0] = (struct pollfd){.fd = l->fd, .events = POLLIN};
  l->handle.naddrs = 1;
  l->handle.addrs[0] = l->addr;
  sk_handle_encode(&l->handle, handle_bytes);
  link_listen(ctx, l);
  RAIL_TRACE(RAIL_SUB_NET, "RailSocket: listen %p on %s %s", (void *)l, device->name, rail_addr_text(&l->addr, text));
  *listen_comm = l;
  return RAIL_OK;

free_listen:
  sk_listen_free(l);
no_memory:
  RAIL_WARN("RailSocket: listen: out of memory");
  return RAIL_SYSTEM_ERROR;
}

void sk_listen_free(struct sk_listen *l) {
  rail_sock_close(&l->fd);
  for (uint32_t i = 0; i < l->nstrangers; i++) rail_sock_close(&l->polls[i + 1].fd);
  for (struct sk_group *g = l->groups, *next; g; g = next) {
    next = g->next;
    for (unsigned int i = 0; i < g->streams; i++) rail_sock_close(&g->fds[i]);
    free(g);
  }
  free(l->polls);
  free(l->strangers);
  l->magic = 0;
  free(l);
}

rail_result_t sk_close_listen(void *listen_comm) {
  struct sk_listen *l = listen_comm;
  if (!l) return RAIL_OK;
  if (l->magic != SK_LISTEN_MAGIC) {
    RAIL_WARN("RailSocket: closeListen: %p is not an open listener", listen_comm);
    return RAIL_OK; /* an error would end the caller's clean-up */
  }
  pthread_mutex_lock(&l->ctx->lock);
  if (l->prev) l->prev->next = l->next;
  else l->ctx->listens = l->next;
  if (l->next) l->next->prev = l->prev;
  pthread_mutex_unlock(&l->ctx->lock);
  sk_listen_free(l);
  sk_close_reap();
  return RAIL_OK;
}
