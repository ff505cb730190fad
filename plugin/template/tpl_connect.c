/* SPDX-License-Identifier: Apache-2.0
 *
 * listen, connect, accept: what common/conn does for this plugin. The handle carries an address and a secret; the
 * connector dials and sends HELLO, and that is a send comm (tpl_send.c reads the welcome); the acceptor takes a
 * connection whose HELLO is right, and welcomes it when accept hands it out.
 */
#include "plugin/template/tpl_connect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/sockopt.h"
#include "common/conn/listener.h"
#include "plugin/template/tpl_comm.h"
#include "plugin/template/tpl_param.h"

#define HELLO_MS 10000 /* a peer sends it at once */
#define MAX_HALF_OPEN 64 /* connections of one listener; of all: listener.h */
#define LISTEN_MAGIC RAIL_OBJECT_MAGIC(TPL_TAG, 'L')

static struct rail_key key = {.plugin = TPL_NAME, .param = "RAIL_TEMPLATE_AUTH_FILE"};
static struct rail_ports ports = {.plugin = TPL_NAME, .range_param = "", .bind_param = ""};
static struct rail_connector_limits limits = {.warn_ms = 10000, .connect_param = "RAIL_TEMPLATE_CONNECT_TIMEOUT",
                                              .deadline_param = "RAIL_TEMPLATE_DEADLINE"};
static const struct rail_protocol protocol = {.plugin = TPL_NAME, .tag = TPL_TAG, .version = TPL_VERSION, .key = &key};

struct listen_comm {
  uint32_t magic;
  struct rail_net_ctx_link in_ctx;
  const struct tpl_device *device;
  struct rail_listener listener;
  STAILQ_HEAD(, half_open) half_open; /* their HELLO is here, and accept has not handed them out */
};

struct half_open {
  STAILQ_ENTRY(half_open) link;
  struct rail_handshake handshake;
  union rail_addr peer;
};

rail_result_t tpl_handshake_load(void) {
  rail_ports_load(&ports, NULL, NULL);
  limits.connect_ms = tpl_params.connect_ms;
  limits.deadline_ms = tpl_params.deadline_ms;
  return rail_key_load(&key, tpl_params.auth_file) ? RAIL_OK : RAIL_BAD_USAGE;
}

/* ---- listen -------------------------------------------------------------- */

static void free_half_open(struct listen_comm *l, struct half_open *a) {
  STAILQ_REMOVE(&l->half_open, a, half_open, link);
  rail_listener_release(&l->listener, 1);
  rail_handshake_close(&a->handshake);
  free(a);
}

/* The peer closed the connection, or its host has not answered for the deadline that on_hello set. */
static bool is_gone(const struct half_open *a) {
  rail_result_t result = rail_handshake_peek(&a->handshake);
  return result != RAIL_OK && result != RAIL_IN_PROGRESS;
}

/* A peer that lives may wait for accept as long as it likes (connector.h), so what bounds the list is its length: one
 * that finds it full is refused as busy, and tries again. accept drops those that are gone. */
static unsigned int on_hello(void *owner, const struct rail_pending *conn, const struct rail_hello *hello) {
  struct listen_comm *l = owner;
  if (l->listener.half_open >= MAX_HALF_OPEN || !rail_listener_reserve(&l->listener, 1)) return RAIL_REASON_BUSY;
  struct half_open *a = calloc(1, sizeof *a);
  if (!a) {
    rail_listener_release(&l->listener, 1);
    return RAIL_REASON_BUSY;
  }
  a->peer = conn->peer;
  rail_handshake_init(&a->handshake);
  rail_handshake_begin(&a->handshake, &protocol, conn->fd, false, hello);
  if (rail_handshake_welcome(&a->handshake, NULL) != RAIL_OK) {
    free(a);
    rail_listener_release(&l->listener, 1);
    return RAIL_REASON_FAILED;
  }
  rail_sockopt_host_deadline(conn->fd, tpl_params.deadline_ms, 0);
  STAILQ_INSERT_TAIL(&l->half_open, a, link);
  return RAIL_REASON_NONE;
}

static void count(void *owner, enum rail_listener_event event) {
  const struct listen_comm *l = owner;
  tpl_stats_count(l->device->name, event == RAIL_LISTENER_REFUSED ? TPL_REFUSED : TPL_DROPPED);
}

static const struct rail_listener_ops listener_ops = {.protocol = &protocol, .on_hello = on_hello, .count = count};

rail_result_t tpl_listen(void *ctx_arg, int dev, void *handle, void **listen_comm) {
  struct rail_net_ctx *ctx = rail_net_ctx_of(TPL_NAME, ctx_arg, "listen");
  const struct tpl_device *device = tpl_device_at(dev, "listen");
  if (!ctx || !device) return RAIL_BAD_ARGUMENT;
  struct listen_comm *l = calloc(1, sizeof *l);
  if (!l) {
    RAIL_WARN(TPL_NAME ": listen: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  l->magic = LISTEN_MAGIC;
  l->device = device;
  STAILQ_INIT(&l->half_open);
  rail_result_t result = rail_listener_init(&l->listener, &listener_ops, l, device->name, HELLO_MS);
  if (result == RAIL_OK) result = rail_listener_add(&l->listener, &ports, device->name, &device->addr);
  if (result != RAIL_OK) {
    rail_listener_close(&l->listener);
    free(l);
    return result;
  }
  /* Accepted sockets inherit it. */
  rail_sockopt_traffic_class(l->listener.fds[0], rail_traffic_class(TPL_NAME, -1, -1, ctx->traffic_class));
  rail_listener_handle(&l->listener, handle);
  rail_net_ctx_add(ctx, &l->in_ctx);
  *listen_comm = l;
  return RAIL_OK;
}

rail_result_t tpl_close_listen(void *listen_comm) {
  struct listen_comm *l = listen_comm;
  struct half_open *a;
  if (!l) return RAIL_OK;
  if (l->magic != LISTEN_MAGIC) {
    RAIL_WARN(TPL_NAME ": closeListen: %p is not an open listener", listen_comm);
    return RAIL_OK; /* an error would end the caller's clean-up */
  }
  rail_net_ctx_remove(&l->in_ctx);
  while ((a = STAILQ_FIRST(&l->half_open))) {
    rail_handshake_refuse(&a->handshake, RAIL_REASON_GONE, NULL);
    free_half_open(l, a);
  }
  rail_listener_close(&l->listener);
  l->magic = 0;
  free(l);
  return RAIL_OK;
}

void tpl_listener_close(struct rail_net_ctx_link *link) {
  (void)tpl_close_listen(rail_container_of(link, struct listen_comm, in_ctx));
}

/* ---- accept -------------------------------------------------------------- */

rail_result_t tpl_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  struct listen_comm *l = listen_comm;
  struct half_open *a;
  if (!l || l->magic != LISTEN_MAGIC) {
    RAIL_WARN(TPL_NAME ": accept: %p is not an open listener", listen_comm);
    return RAIL_BAD_ARGUMENT;
  }
  RAIL_TRY(rail_listener_poll(&l->listener));
  while ((a = STAILQ_FIRST(&l->half_open))) {
    if (is_gone(a) || rail_handshake_flush(&a->handshake) != RAIL_OK) { /* a fresh socket takes a welcome at once */
      rail_listener_log_drop(&l->listener, &a->peer, "it went away before it was accepted");
      free_half_open(l, a);
      continue;
    }
    rail_result_t result = tpl_recv_create(l->device, &a->peer, a->handshake.fd, recv_comm);
    if (result == RAIL_OK) a->handshake.fd = -1; /* the comm's from here on */
    free_half_open(l, a);
    if (result == RAIL_OK) tpl_stats_count(l->device->name, TPL_ACCEPTS);
    return result;
  }
  return RAIL_OK;
}

/* ---- connect ------------------------------------------------------------- */

void tpl_connect_drop(void *attempt) {
  tpl_attempt_close(attempt);
  free(attempt);
}

static rail_result_t attempt_new(struct rail_net_connect *call, const struct tpl_device *device, int traffic_class) {
  const struct rail_handle *listener = &call->listener;
  const struct rail_dial_args args = {
    .plugin = TPL_NAME, .interface = device->name, .addr = &device->addr, .bind = RAIL_BIND_ADDR, .stream = -1,
    .traffic_class = rail_traffic_class(TPL_NAME, -1, traffic_class, call->ctx->traffic_class),
    .set_options = rail_sockopt_traffic_class};
  if (!rail_connector_agree_auth(&protocol, listener, device->name)) return RAIL_BAD_USAGE;
  struct tpl_attempt *a = calloc(1, sizeof *a);
  if (!a) {
    RAIL_WARN(TPL_NAME ": connect: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  rail_handshake_init(&a->handshake);
  rail_result_t result = rail_connector_init(&a->connector, &protocol, listener, &args, NULL, &limits,
                                             device->name, &a->handshake);
  if (result != RAIL_OK) RAIL_WARN(TPL_NAME ": connect over %s: %s", device->name, a->connector.why);
  else result = rail_net_connect_keep(call, a);
  if (result != RAIL_OK) tpl_connect_drop(a);
  return result;
}

rail_result_t tpl_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                          struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  struct rail_net_connect call;
  const struct tpl_device *device = tpl_device_at(dev, "connect");
  if (!device) return RAIL_BAD_ARGUMENT;
  RAIL_TRY(rail_net_connect_enter(&call, &protocol, ctx, handle));
  if (!call.attempt) RAIL_TRY(attempt_new(&call, device, traffic_class));
  struct tpl_attempt *a = call.attempt;
  rail_handshake_note_time(&a->handshake);
  rail_result_t result = rail_connector_dial(&a->connector);
  if (result == RAIL_IN_PROGRESS) return RAIL_OK;
  rail_net_connect_leave(&call);
  if (result != RAIL_OK) {
    char peer[RAIL_ADDR_TEXT];
    RAIL_WARN(TPL_NAME ": connect to %s over %s: %s", rail_addr_text(&call.listener.addrs[0], peer), device->name,
              a->connector.why);
  } else {
    result = tpl_send_create(device, a, send_comm); /* a: the comm's from here on */
  }
  if (result != RAIL_OK) tpl_connect_drop(a);
  else tpl_stats_count(device->name, TPL_CONNECTS);
  return result;
}
