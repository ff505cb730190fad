/* SPDX-License-Identifier: Apache-2.0
 *
 * listen, accept, closeListen: the receiver's side of a handshake. Each call of accept polls the listener once, then
 * runs the steps of the connections whose HELLO it has taken, one after the other, within a bound of time; the first
 * that is ready is the peer of this call.
 *
 * A peer that goes silent, closes or sends something invalid is dropped with a line, and accept waits for the next one.
 * Failures that any peer would meet end accept with an error: ports that do not fit, a local device that fails, a peer
 * that refused.
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

static rail_result_t step_hints(struct ib_setup *s) {
  s->nhints = s->theirs.nrails;
  for (unsigned int i = 0; i < s->nhints; i++) {
    s->hints[i] = (struct ib_gid){.type = s->theirs.rails[i].gid_type, .valid = true};
    memcpy(s->hints[i].raw, s->theirs.rails[i].gid, sizeof s->hints[i].raw);
  }
  return RAIL_OK;
}

static rail_result_t step_welcome(struct ib_setup *s) {
  if (rail_handshake_welcome(&s->handshake, NULL) != RAIL_OK)
    return ib_setup_fail(s, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "no random bytes from the kernel, or no HMAC");
  return ib_setup_send_offer(s);
}

static rail_result_t step_ready(struct ib_setup *s) {
  return rail_handshake_send(&s->handshake, IB_MESSAGE_READY, NULL, 0);
}

static const struct ib_setup_row table[] = {
  {"recv offer", ib_setup_recv_offer, "the peer's offer", false},
  {"hints", step_hints, NULL, false},
  {"query ports", ib_setup_query_ports, NULL, false},
  {"offer", ib_setup_offer, NULL, false},
  {"plan", ib_setup_plan, NULL, false},
  {"welcome", step_welcome, NULL, false},
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
  {"all sent", ib_setup_flushed, "the peer to read what was sent", false},
};

/* ---- connections that are being set up ------------------------------------- */

static void accepting_free(struct ib_accepting *a) {
  ib_setup_free(&a->setup);
  free(a);
}

/* Without a key a HELLO proves little: when there is no room, the oldest connection that sent nothing after its HELLO
 * is dropped. */
static bool evict_oldest(struct ib_listen *l) {
  struct ib_accepting *a, *oldest = NULL;
  TAILQ_FOREACH(a, &l->accepting, link)
    if (a->setup.state == 0 && (!oldest || a->setup.handshake.begun < oldest->setup.handshake.begun)) oldest = a;
  if (!oldest) return false;
  rail_listener_log_drop(&l->listener, &oldest->setup.peer,
                         "too many connections are being set up, and this one has sent nothing after its hello");
  TAILQ_REMOVE(&l->accepting, oldest, link);
  l->naccepting--;
  accepting_free(oldest);
  return true;
}

static unsigned int on_hello(void *owner, const struct rail_pending *conn, const struct rail_hello *hello) {
  struct ib_listen *l = owner;
  if (hello->streams != 1 || hello->reconnect) return RAIL_REASON_MESSAGE;
  bool room = l->naccepting < IB_MAX_ACCEPTING || evict_oldest(l);
  struct ib_accepting *a = room ? calloc(1, sizeof *a) : NULL;
  if (!a) return RAIL_REASON_BUSY;
  ib_setup_init(&a->setup, l->in_ctx.ctx, l->device, false, &conn->peer, l->in_ctx.ctx->traffic_class);
  rail_watch_host(conn->fd, ib_params.deadline_ms, 0); /* while the peer's process may take any time */
  rail_handshake_begin(&a->setup.handshake, &ib_protocol, conn->fd, false, hello);
  TAILQ_INSERT_TAIL(&l->accepting, a, link);
  l->naccepting++;
  return RAIL_REASON_NONE;
}

static void count(void *owner, enum rail_listener_event event) {
  const struct ib_listen *l = owner;
  ib_stats_count(l->device->name, event == RAIL_LISTENER_DROPPED ? IB_DEVICE_STRANGERS : IB_DEVICE_REFUSED);
}

static const struct rail_listener_ops listener_ops = {.protocol = &ib_protocol, .on_hello = on_hello, .count = count};

static bool is_only_that_peer(unsigned int reason) {
  switch (reason) {
    case RAIL_REASON_NONE: /* it is gone */
    case RAIL_REASON_GONE:
    case RAIL_REASON_MESSAGE:
    case RAIL_REASON_VERSION:
    case RAIL_REASON_MAC:
    case RAIL_REASON_TIMEOUT: return true;
    default: return false;
  }
}

/* Runs the first one's steps. RAIL_OK with *comm, or without: it waits, or was dropped. */
static rail_result_t progress_one(struct ib_listen *l, uint64_t until, struct ib_comm **comm) {
  struct ib_accepting *a = TAILQ_FIRST(&l->accepting);
  rail_result_t result = ib_setup_run(&a->setup, table, RAIL_COUNT_OF(table), until);
  TAILQ_REMOVE(&l->accepting, a, link);
  if (result == RAIL_IN_PROGRESS) {
    TAILQ_INSERT_TAIL(&l->accepting, a, link);
    return RAIL_OK;
  }
  l->naccepting--;
  if (result == RAIL_OK) result = ib_setup_take(&a->setup, comm);
  else if (is_only_that_peer(a->setup.reason)) result = RAIL_OK;
  accepting_free(a);
  return result;
}

rail_result_t ib_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  struct ib_listen *l = listen_comm;
  struct ib_comm *comm = NULL;
  if (!recv_comm || !l || l->magic != IB_LISTEN_MAGIC) {
    RAIL_WARN("RailIB: accept: listenComm %p, recvComm %p; allowed: an open listener, and not NULL", listen_comm,
              (void *)recv_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *recv_comm = NULL;
  RAIL_TRY(rail_listener_poll(&l->listener));
  uint64_t until = rail_now_ns() + CALL_NS;
  for (unsigned int n = l->naccepting; n > 0 && !comm; n--) {
    RAIL_TRY(progress_one(l, until, &comm));
    if (rail_now_ns() >= until) break;
  }
  *recv_comm = comm;
  return RAIL_OK;
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
  TAILQ_INIT(&l->accepting);
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
  while (!TAILQ_EMPTY(&l->accepting)) {
    struct ib_accepting *a = TAILQ_FIRST(&l->accepting);
    TAILQ_REMOVE(&l->accepting, a, link);
    accepting_free(a);
  }
  rail_listener_close(&l->listener);
  l->magic = 0;
  free(l);
  return RAIL_OK;
}

void ib_listener_close(struct rail_net_ctx_link *link) {
  (void)ib_close_listen(rail_container_of(link, struct ib_listen, in_ctx));
}
