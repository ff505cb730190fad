/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of connection set-up. connect connects all streams at once; each sends HELLO as soon as it is connected.
 * connect hands the comm out when the last HELLO is written and does not wait for the acceptor: its ANSWER is read by
 * the data path. So two ranks may both finish connect before either calls accept. The work behind listen and accept is
 * the acceptor's (sk_acceptor.c).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/conn/connector.h"
#include "common/conn/linger.h"
#include "common/net/net_ctx.h"
#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_connect.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_stats.h"

#define EAGER_BYTES_ALL_READ (1 << 20) /* without AHEAD */

struct sk_connect {
  struct rail_net_ctx *ctx;
  const struct sk_device *device;
  struct rail_handle listener;
  struct sk_limits limits;
  struct rail_waited waited;
  unsigned int nstreams;
  struct sk_dial dials[SK_MAX_STREAMS];
};

void sk_connect_drop(void *attempt) {
  struct sk_connect *a = attempt;
  for (unsigned int i = 0; i < a->nstreams; i++) rail_dial_close(&a->dials[i].dial);
  free(a);
}

/* ---- connect: an attempt ------------------------------------------------- */

/* What may be on its way to a receiver that has posted no buffer. With AHEAD that is more, because the receiver need
 * not read it (may_leave_unread in sk_recv.c). Else it is copied once more, from memory that should be in the cache. */
static void choose_limits(struct sk_connect *a) {
  unsigned int rails = RAIL_MAX(a->device->nrails, a->listener.naddrs);
  int64_t ahead = RAIL_MIN(sk_params.ahead, sk_params.eager_bytes / 4 - (int64_t)sk_credit_of(0));
  int64_t all_read = RAIL_MIN(sk_params.eager_bytes, EAGER_BYTES_ALL_READ);
  bool goes_ahead = a->nstreams == 1 && sk_params.eager > 0 && ahead > SK_MAX_EAGER;
  a->limits = (struct sk_limits){.features = (rails > 1 && a->nstreams > 1 ? SK_FEATURE_FAILOVER : 0) |
                                             (sk_params.tls ? SK_FEATURE_TLS : 0) |
                                             (goes_ahead ? SK_FEATURE_AHEAD : 0),
                                 .eager_size = (uint32_t)(goes_ahead ? ahead : sk_params.eager),
                                 .eager_count = (uint32_t)sk_params.eager_count,
                                 .eager_bytes = (uint32_t)(goes_ahead ? sk_params.eager_bytes : all_read)};
}

/* Streams go from the rails here to the rails there, in turn. */
static void prepare_dials(struct sk_connect *a, int traffic_class) {
  const struct sk_device *d = a->device;
  const struct rail_handle *l = &a->listener;
  unsigned int rails = RAIL_MAX(d->nrails, l->naddrs);
  a->nstreams = sk_streams_of(sk_handle_streams(l), rails);
  for (unsigned int i = 0, here = 0, there = 0; i < a->nstreams; i++) {
    sk_dial_init(&a->dials[i], d->rails[here], &l->addrs[there], i, traffic_class,
                 d->nrails > 1 ? RAIL_BIND_DEVICE_TRY : RAIL_BIND_ADDR);
    here = here + 1 < d->nrails ? here + 1 : 0;
    there = there + 1 < l->naddrs ? there + 1 : 0;
  }
}

static rail_result_t prepare_hellos(struct sk_connect *a) {
  struct rail_hello hello = {.streams = a->nstreams};
  RAIL_TRY(rail_random_bytes(hello.comm_id, sizeof hello.comm_id));
  for (; hello.stream < a->nstreams; hello.stream++) {
    a->dials[hello.stream].hello = hello;
    RAIL_TRY(sk_dial_hello(&a->dials[hello.stream], &a->listener, &a->limits, false, 0));
  }
  return RAIL_OK;
}

static rail_result_t attempt_new(struct rail_net_connect *call, const struct sk_device *device, int traffic_class) {
  const struct rail_handle *listener = &call->listener;
  /* Where one side encrypts and the other does not, the acceptor refuses: then both have a line that says so. */
  bool will_refuse = sk_handle_tls(listener) != (sk_params.tls != SK_TLS_OFF);
  if (!will_refuse && !rail_connector_agree_auth(&sk_protocol, listener, device->name)) {
    sk_stats_count(device->name, SK_DEVICE_REFUSED);
    return RAIL_BAD_USAGE;
  }
  struct sk_connect *a = calloc(1, sizeof *a);
  if (!a) {
    RAIL_WARN("RailSocket: connect: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  a->ctx = call->ctx;
  a->device = device;
  a->listener = *listener;
  rail_waited_begin(&a->waited);
  prepare_dials(a, sk_traffic_class(traffic_class, call->ctx->traffic_class));
  choose_limits(a);
  rail_result_t result = prepare_hellos(a);
  if (result != RAIL_OK) RAIL_WARN("RailSocket: connect: no random bytes or no HMAC: %s", strerror(errno));
  else result = rail_net_connect_keep(call, a);
  if (result != RAIL_OK) sk_connect_drop(a);
  return result;
}

/* ---- connect: the call --------------------------------------------------- */

static rail_result_t fail_dial(const struct sk_connect *a, const struct sk_dial *d, rail_result_t result) {
  char peer[RAIL_ADDR_TEXT];
  int err = d->dial.last_errno;
  RAIL_WARN("RailSocket: connect to %s over %s: %s%s", rail_addr_text(&d->dial.peer, peer), a->device->name,
            strerror(err), err == EMFILE || err == ENFILE ? "; raise the limit of open files (ulimit -n)" : "");
  return result;
}

static rail_result_t run_dials(struct sk_connect *a) {
  const struct sk_dial *waiting = NULL;
  char peer[RAIL_ADDR_TEXT];
  rail_waited_note(&a->waited);
  for (unsigned int i = 0; i < a->nstreams; i++) {
    rail_result_t result = sk_dial_step(&a->dials[i]);
    if (result == RAIL_IN_PROGRESS) waiting = &a->dials[i];
    else if (result != RAIL_OK) return fail_dial(a, &a->dials[i], result);
  }
  if (!waiting) return RAIL_OK;
  if (!rail_waited_is_late(&a->waited, sk_params.connect_ms)) return RAIL_IN_PROGRESS;
  const char *name = waiting->nic->name;
  RAIL_WARN("RailSocket: connect to %s over %s: no connection within %lld ms (RAIL_SOCKET_CONNECT_TIMEOUT): %s; "
            "is the peer alive, is that address reachable from %s, does a firewall block the port?",
            rail_addr_text(&waiting->dial.peer, peer), name, (long long)sk_params.connect_ms,
            waiting->dial.last_errno ? strerror(waiting->dial.last_errno) : "no answer", name);
  return RAIL_REMOTE_ERROR;
}

/* Creates the comm, which owns the sockets from here on, also on failure. `here`: this end's address. */
static rail_result_t create_send(const struct sk_comm_args *args, const union rail_addr *here, void **send_comm) {
  char peer_text[RAIL_ADDR_TEXT], here_text[RAIL_ADDR_TEXT];
  RAIL_TRY(sk_send_create(args, send_comm));
  sk_stats_count(args->device->name, SK_DEVICE_CONNECTS);
  RAIL_INFO(RAIL_SUB_NET, "RailSocket: connected from %s to %s over %s, %u stream%s%s%s",
            rail_addr_text(here, here_text), rail_addr_text(&args->peers[0], peer_text), args->device->name,
            args->nstreams, args->nstreams > 1 ? "s" : "",
            args->features & SK_FEATURE_FAILOVER ? ", with failover" : "",
            args->features & SK_FEATURE_TLS ? ", encrypted" : "");
  return RAIL_OK;
}

static rail_result_t hand_out(struct sk_connect *a, void **send_comm) {
  struct sk_comm_args args = {.side = SK_SENDER,
                              .device = a->device,
                              .ctx = a->ctx,
                              .nstreams = a->nstreams,
                              .eager_size = a->limits.eager_size,
                              .eager_count = a->limits.eager_count,
                              .eager_bytes = a->limits.eager_bytes,
                              .features = a->limits.features};
  memcpy(args.comm_id, a->dials[0].hello.comm_id, sizeof args.comm_id);
  args.reconnect = sk_reconnect_new(&a->listener, &a->limits, a->dials, a->nstreams);
  if (!args.reconnect) {
    RAIL_WARN("RailSocket: connect: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  for (unsigned int i = 0; i < args.nstreams; i++) {
    args.nics[i] = a->dials[i].nic;
    args.peers[i] = a->dials[i].dial.peer;
    rail_session_init(&args.sessions[i], &sk_protocol, true, &a->dials[i].hello);
    args.fds[i] = a->dials[i].dial.fd; /* the comm's from here on */
    a->dials[i].dial.fd = -1;
  }
  union rail_addr here = rail_sock_local(args.fds[0]);
  return create_send(&args, &here, send_comm);
}

rail_result_t sk_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  struct rail_net_connect call;
  const struct sk_device *device = sk_device_at(dev, "connect");
  if (!device) return RAIL_BAD_ARGUMENT;
  RAIL_TRY(rail_net_connect_enter(&call, &sk_protocol, ctx, handle));
  if (!call.attempt) RAIL_TRY(attempt_new(&call, device, traffic_class));
  struct sk_connect *a = call.attempt;
  rail_result_t result = run_dials(a);
  if (result == RAIL_IN_PROGRESS) return RAIL_OK;
  if (result == RAIL_OK) result = hand_out(a, send_comm);
  rail_net_connect_leave(&call);
  sk_connect_drop(a);
  rail_linger_reap();
  return result;
}

/* ---- listen, accept, closeListen ------------------------------------------ */

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
static rail_result_t create_recv(const struct sk_comm_args *args, const union rail_addr *here, void **recv_comm) {
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
  return create_recv(&args, &here, recv_comm);
}
