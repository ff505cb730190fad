/* SPDX-License-Identifier: Apache-2.0
 * The calls listen, accept and closeListen. The work behind them is the acceptor's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/conn/linger.h"
#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_connect.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_stats.h"

static void log_listening(const struct sk_device *device, const struct rail_handle *handle) {
  char addrs[SK_MAX_RAILS * (RAIL_ADDR_TEXT + 2)], text[RAIL_ADDR_TEXT];
  size_t at = 0;
  for (unsigned int i = 0; i < handle->naddrs; i++) {
    rail_addr_text(&handle->addrs[i], text);
    at += (size_t)snprintf(addrs + at, sizeof addrs - at, "%s%s", i ? ", " : "", text);
  }
  unsigned int streams = sk_handle_streams(handle);
  RAIL_INFO(RAIL_SUB_NET, "RailSocket: listening on %s at %s, %u stream%s per rail%s%s", device->name, addrs, streams,
            streams > 1 ? "s" : "", handle->auth ? ", authenticated" : "", sk_handle_tls(handle) ? ", encrypted" : "");
}

rail_result_t sk_listen(void *ctx_arg, int dev, void *handle_bytes, void **listen_comm) {
  if (!handle_bytes || !listen_comm) {
    RAIL_WARN("RailSocket: listen: handle %p, listenComm %p; neither may be NULL", handle_bytes, (void *)listen_comm);
    return RAIL_BAD_ARGUMENT;
  }
  struct rail_net_ctx *ctx = rail_net_ctx_of("RailSocket", ctx_arg, "listen");
  const struct sk_device *device = sk_device_at(dev, "listen");
  if (!ctx || !device) return RAIL_BAD_ARGUMENT;
  rail_linger_reap();

  struct sk_listen *l = calloc(1, sizeof *l);
  if (!l) {
    RAIL_WARN("RailSocket: listen: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  l->magic = SK_LISTEN_MAGIC;
  rail_result_t result = sk_acceptor_open(device, sk_traffic_class(-1, ctx->traffic_class), &l->acceptor);
  if (result != RAIL_OK) {
    free(l);
    return result;
  }
  rail_listener_handle(&l->acceptor->listener, handle_bytes);
  rail_net_ctx_add(ctx, &l->in_ctx);
  log_listening(device, &l->acceptor->listener.handle);
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
  sk_acceptor_close(l->acceptor);
  l->magic = 0;
  free(l);
  rail_linger_reap();
  return RAIL_OK;
}

void sk_listener_close(struct rail_net_ctx_link *link) {
  (void)sk_close_listen(rail_container_of(link, struct sk_listen, in_ctx));
}

/* Creates the comm, which owns the sockets from here on, also on failure. `here`: this end's address. */
static rail_result_t create(const struct sk_comm_args *args, const union rail_addr *here, void **recv_comm) {
  char peer_text[RAIL_ADDR_TEXT], here_text[RAIL_ADDR_TEXT];
  RAIL_TRY(sk_recv_create(args, recv_comm));
  sk_stats_count(args->device->name, SK_DEVICE_ACCEPTS);
  RAIL_INFO(RAIL_SUB_NET, "RailSocket: accepted %s at %s over %s, %u stream%s%s%s",
            rail_addr_text(&args->peers[0], peer_text), rail_addr_text(here, here_text), args->device->name,
            args->nstreams, args->nstreams > 1 ? "s" : "",
            args->features & SK_FEATURE_FAILOVER ? ", with failover" : "",
            args->features & SK_FEATURE_TLS ? ", encrypted" : "");
  return RAIL_OK;
}

/* The next complete comm as arguments. False: there is none. */
static bool accept_next(struct sk_listen *l, struct sk_comm_args *args, rail_result_t *result) {
  struct sk_acceptor *a = l->acceptor;
  pthread_mutex_lock(&a->lock);
  *result = sk_acceptor_poll(a);
  struct sk_half_open_comm *p = *result == RAIL_OK ? sk_acceptor_take(a) : NULL;
  if (!p) {
    pthread_mutex_unlock(&a->lock);
    return false;
  }
  *args = (struct sk_comm_args){.side = SK_RECEIVER,
                                .device = a->device,
                                .ctx = l->in_ctx.ctx,
                                .nstreams = p->nstreams,
                                .eager_size = p->limits.eager_size,
                                .eager_count = p->limits.eager_count,
                                .eager_bytes = p->limits.eager_bytes,
                                .features = p->limits.features};
  memcpy(args->comm_id, p->comm_id, sizeof args->comm_id);
  for (unsigned int i = 0; i < p->nstreams; i++) {
    args->nics[i] = a->device->rails[p->streams[i].rail];
    args->peers[i] = p->streams[i].peer;
    args->sessions[i] = p->streams[i].session;
    args->fds[i] = p->streams[i].fd; /* the comm's from here on */
    p->streams[i].fd = -1;
  }
  if (p->limits.features & SK_FEATURE_FAILOVER) {
    args->accepted = sk_accepted_new(a, p);
    if (!args->accepted) *result = RAIL_SYSTEM_ERROR;
  }
  sk_half_open_free(p);
  pthread_mutex_unlock(&a->lock);
  return true;
}

rail_result_t sk_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  struct sk_listen *l = listen_comm;
  struct sk_comm_args args;
  rail_result_t result;
  if (!recv_comm || !l || l->magic != SK_LISTEN_MAGIC) {
    RAIL_WARN("RailSocket: accept: listenComm %p, recvComm %p; allowed: an open listener, and not NULL", listen_comm,
              (void *)recv_comm);
    return RAIL_BAD_ARGUMENT;
  }
  rail_linger_reap();
  if (!accept_next(l, &args, &result)) return result;
  if (result != RAIL_OK) {
    RAIL_WARN("RailSocket: accept: out of memory for a connection");
    for (unsigned int i = 0; i < args.nstreams; i++) rail_sock_close(&args.fds[i]);
    return result;
  }
  union rail_addr here = rail_sock_local(args.fds[0]);
  return create(&args, &here, recv_comm);
}
