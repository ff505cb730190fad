/* SPDX-License-Identifier: Apache-2.0
 *
 * The accepting side of the handshake: each call looks once at who has news
 * (sk_reception.c); the first connection of which all streams are here is the
 * peer of this call.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/socket/sk_close.h"
#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_group.h"
#include "plugin/socket/sk_listen.h"
#include "plugin/socket/sk_rejoin.h"

static void say_who(const struct sk_device *device, const struct sk_comm_args *args) {
  char peer[RAIL_ADDR_TEXT], here[RAIL_ADDR_TEXT];
  union rail_addr local = {0};
  socklen_t len = sizeof local;
  (void)getsockname(args->fds[0], &local.sa, &len);
  RAIL_INFO(RAIL_SUB_NET, "RailSocket: accepted %s at %s over %s, %u stream%s%s", rail_addr_text(&args->peers[0], peer),
            rail_addr_text(&local, here), device->name, args->nstreams, args->nstreams > 1 ? "s" : "",
            args->features & SK_FEATURE_FAILOVER ? ", with failover" : "");
}

/* The next complete group as a connection's arguments. False: there is none. */
static bool next_peer(struct sk_listen *l, struct sk_comm_args *args, rail_result_t *result) {
  struct sk_reception *r = l->reception;
  pthread_mutex_lock(&r->lock);
  *result = sk_reception_step(r);
  struct sk_group *g = *result == RAIL_OK ? sk_group_take(r) : NULL;
  if (!g) {
    pthread_mutex_unlock(&r->lock);
    return false;
  }
  *args = (struct sk_comm_args){.side = SK_RECEIVER,
                                .dev = l->dev,
                                .device = r->device,
                                .ctx = l->in_ctx.ctx,
                                .nstreams = g->streams,
                                .eager_size = g->eager_size,
                                .eager_count = g->eager_count,
                                .eager_bytes = g->eager_bytes,
                                .features = g->features};
  memcpy(args->comm_id, g->comm_id, sizeof args->comm_id);
  for (unsigned int i = 0; i < g->streams; i++) {
    args->paths[i] = r->device->rails[g->stream[i].door];
    args->peers[i] = g->stream[i].peer;
    args->fds[i] = g->stream[i].fd; /* the comm's from here on */
    g->stream[i].fd = -1;
  }
  if (g->features & SK_FEATURE_FAILOVER) {
    args->rejoin = sk_rejoin_new_receiver(r, g);
    if (!args->rejoin) *result = RAIL_SYSTEM_ERROR;
  }
  sk_reception_count(r, SK_DEVICE_ACCEPTS);
  sk_group_free(g);
  pthread_mutex_unlock(&r->lock);
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
  *recv_comm = NULL;
  sk_close_reap();
  if (!next_peer(l, &args, &result)) return result;
  if (result != RAIL_OK) {
    RAIL_WARN("RailSocket: accept: out of memory for a connection");
    for (unsigned int i = 0; i < args.nstreams; i++) rail_sock_close(&args.fds[i]);
    return result;
  }
  say_who(args.device, &args);
  return sk_recv_create(&args, recv_comm);
}
