/* SPDX-License-Identifier: Apache-2.0
 *
 * listen, accept, closeListen: the receiver's side of a handshake. Each call of accept polls the listener once, then
 * runs the steps of the connections whose HELLO it has taken (common/conn/setup.h), within a bound of time; the first
 * that is ready is the peer of this call. What ends accept with an error, as any peer would meet it: ports that do not
 * fit, a local device that fails, a peer that refused.
 */
#include "plugin/ib/ib_listen.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"

#define HINTS_NS 1000000000ull /* see give_hints: what is offered is checked again when the connection is made */
#define CALL_NS 300000ull /* most time for these steps in one call; the last step may end later */

static struct rail_ports tcp_ports = {.plugin = "RailIB", .range_param = "RAIL_IB_PORTS", .bind_param = "RAIL_IB_BIND"};

bool ib_handshake_load(void) {
  rail_ports_load(&tcp_ports, ib_params.ports, ib_params.bind);
  return ib_protocol_load();
}

/* ---- steps that only this side has --------------------------------------- */

static rail_result_t step_hints(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  s->nhints = s->theirs.nrails;
  for (unsigned int i = 0; i < s->nhints; i++) {
    s->hints[i] = (struct ib_gid){.type = s->theirs.rails[i].gid_type, .valid = true};
    memcpy(s->hints[i].raw, s->theirs.rails[i].gid, sizeof s->hints[i].raw);
  }
  return RAIL_OK;
}

static rail_result_t step_ready(struct rail_setup *s) {
  return rail_handshake_send(&s->handshake, IB_MESSAGE_READY, NULL, 0);
}

static const struct rail_setup_row table[] = {
  {"recv offer", ib_setup_recv_offer, "the peer's offer", false},
  {"hints", step_hints, NULL, false},
  {"query ports", ib_setup_query_ports, NULL, false},
  {"offer", ib_setup_offer, NULL, false},
  {"plan", ib_setup_plan, NULL, false},
  {"welcome", rail_setup_welcome, NULL, false},
  {"send offer", ib_setup_send_offer, NULL, false},
  {"comm", ib_setup_comm, NULL, false},
  {"completion queues", ib_setup_cqs, NULL, false},
  {"memory", ib_setup_memory, NULL, false},
  {"queue pairs", ib_setup_qps, NULL, false},
  {"to INIT", ib_setup_inits, NULL, false},
  {"receives", ib_setup_receives, "the driver to take flush queue pairs to RTS", false},
  {"send queue pairs", ib_setup_send_qps, NULL, false},
  {"recv queue pairs", ib_setup_recv_qps, "the peer's queue pairs", false},
  {"to RTR", ib_setup_rtrs, "the driver to take queue pairs to RTR (address resolution)", false},
  {"to RTS", ib_setup_rtss, "the driver to take queue pairs to RTS", false},
  {"start", ib_setup_start, NULL, false},
  {"ready", step_ready, NULL, false},
  {"test writes", ib_setup_test_writes, NULL, false},
  {"verified", ib_setup_verified, "the first writes over each queue pair", false},
  {"all sent", rail_setup_flushed, "the peer to read what was sent", false},
};

static const struct rail_setup_ops ops = {.protocol = &ib_protocol, .rows = table, .nrows = RAIL_COUNT_OF(table),
                                          .refused = ib_setup_refused};

/* ---- connections that are being set up ------------------------------------- */

static struct rail_setup *begin(void *owner, const union rail_addr *peer) {
  const struct ib_listen *l = owner;
  struct ib_setup *s = ib_setup_new(l->in_ctx.ctx, l->device, &ops, false, peer);
  return s ? &s->base : NULL;
}

static unsigned int on_hello(void *owner, const struct rail_pending *conn, const struct rail_hello *hello) {
  struct ib_listen *l = owner;
  return rail_accepting_hello(&l->accepting, conn, hello);
}

static void count(void *owner, enum rail_listener_event event) {
  const struct ib_listen *l = owner;
  ib_stats_count(l->device->name, event == RAIL_LISTENER_DROPPED ? IB_DEVICE_STRANGERS : IB_DEVICE_REFUSED);
}

static const struct rail_listener_ops listener_ops = {.protocol = &ib_protocol, .on_hello = on_hello, .count = count};

rail_result_t ib_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  struct ib_listen *l = listen_comm;
  struct rail_setup *base;
  if (!recv_comm || !l || l->magic != IB_LISTEN_MAGIC) {
    RAIL_WARN("RailIB: accept: listenComm %p, recvComm %p; allowed: an open listener, and not NULL", listen_comm,
              (void *)recv_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *recv_comm = NULL;
  RAIL_TRY(rail_listener_poll(&l->listener));
  RAIL_TRY(rail_accepting_next(&l->accepting, rail_now_ns() + CALL_NS, &base));
  if (!base) return RAIL_OK;
  rail_result_t result = ib_setup_take(ib_setup_of(base), recv_comm);
  ib_setup_free(base);
  return result;
}

/* ---- listen, closeListen --------------------------------------------------- */

/* Thousands of listeners are opened at once: a port is queried once a second for all of them. */
static void give_hints(struct rail_handle *handle, const struct ib_device *device, int dev) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static struct {
    uint64_t until;
    struct ib_hints hints;
  } known[IB_MAX_DEVICES];
  pthread_mutex_lock(&lock);
  if (rail_now_ns() >= known[dev].until) {
    ib_offer_hints(device, &known[dev].hints);
    known[dev].until = rail_now_ns() + HINTS_NS;
  }
  ib_hints_encode(&known[dev].hints, handle);
  pthread_mutex_unlock(&lock);
}

static rail_result_t open_listener(struct ib_listen *l) {
  union rail_addr addr;
  RAIL_TRY(rail_listener_init(&l->listener, &listener_ops, l, l->device->name, (uint64_t)ib_params.handshake_ms));
  const char *interface = ib_oob_interface(&addr);
  if (interface) return rail_listener_add(&l->listener, &tcp_ports, interface, &addr);
  RAIL_WARN("RailIB: listen: there is no network interface for the oob connection (NCCL_SOCKET_IFNAME)");
  return RAIL_SYSTEM_ERROR;
}

rail_result_t ib_listen(void *ctx_arg, int dev, void *handle_bytes, void **listen_comm) {
  char addr[RAIL_ADDR_TEXT];
  if (!handle_bytes || !listen_comm) {
    RAIL_WARN("RailIB: listen: handle %p, listenComm %p; neither may be NULL", handle_bytes, (void *)listen_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *listen_comm = NULL;
  struct rail_net_ctx *ctx = rail_net_ctx_of("RailIB", ctx_arg, "listen");
  const struct ib_device *device = ib_device_at(dev, "listen");
  if (!ctx || !device) return RAIL_BAD_ARGUMENT;
  struct ib_listen *l = calloc(1, sizeof *l);
  if (!l) {
    RAIL_WARN("RailIB: listen: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  l->magic = IB_LISTEN_MAGIC;
  l->device = device;
  rail_accepting_init(&l->accepting, &l->listener, IB_MAX_ACCEPTING, begin, ib_setup_free);
  rail_result_t result = open_listener(l);
  if (result != RAIL_OK) {
    rail_listener_close(&l->listener);
    free(l);
    return result;
  }
  const struct rail_handle *handle = &l->listener.handle;
  give_hints(&l->listener.handle, device, dev);
  rail_listener_handle(&l->listener, handle_bytes);
  rail_net_ctx_add(ctx, &l->in_ctx);
  RAIL_INFO(RAIL_SUB_NET, "RailIB: listening for %s at %s%s", device->name, rail_addr_text(&handle->addrs[0], addr),
            handle->auth ? ", authenticated" : "");
  *listen_comm = l;
  return RAIL_OK;
}

rail_result_t ib_close_listen(void *listen_comm) {
  struct ib_listen *l = listen_comm;
  if (!l) return RAIL_OK;
  if (l->magic != IB_LISTEN_MAGIC) {
    RAIL_WARN("RailIB: closeListen: %p is not an open listener", listen_comm);
    return RAIL_OK; /* an error would end the caller's clean-up */
  }
  rail_net_ctx_remove(&l->in_ctx);
  rail_accepting_close(&l->accepting);
  rail_listener_close(&l->listener);
  l->magic = 0;
  free(l);
  return RAIL_OK;
}

void ib_listener_close(struct rail_net_ctx_link *link) {
  (void)ib_close_listen(rail_container_of(link, struct ib_listen, in_ctx));
}
