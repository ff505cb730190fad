/* SPDX-License-Identifier: Apache-2.0
 * Opening and closing a listener, and checking HELLOs. */
#include "plugin/ib/ib_listen.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/conn/ports.h"
#include "plugin/ib/ib_param.h"

#define HINTS_NS 1000000000ull

static struct rail_ports ports = {.plugin = "RailIB", .range_param = "RAIL_IB_PORTS", .bind_param = "RAIL_IB_BIND"};

bool ib_handshake_load(void) {
  rail_ports_load(&ports, ib_params.ports, ib_params.bind);
  return ib_auth_load();
}

/* ---- HELLO ---------------------------------------------------------- */

static bool refuse(enum ib_reason reason, unsigned int version, struct rail_refusal *refusal) {
  struct ib_answer answer = {.reason = reason, .rail_here = -1, .rail_there = -1};
  if (reason == IB_REASON_VERSION)
    snprintf(refusal->why, sizeof refusal->why, "%s (%u, ours %d)", ib_reason_text(reason), version, IB_WIRE_VERSION);
  else snprintf(refusal->why, sizeof refusal->why, "%s", ib_reason_text(reason));
  if (reason == IB_REASON_GARBAGE) return false;
  _Static_assert(IB_REFUSAL_SIZE <= sizeof refusal->reply, "a refusal fits");
  ib_refusal_encode(&answer, refusal->reply);
  refusal->reply_size = IB_REFUSAL_SIZE;
  return false;
}

static unsigned int version_of(const struct rail_stranger *stranger) {
  return stranger->message[4] | (unsigned int)stranger->message[5] << 8;
}

static bool plausible(void *host, const struct rail_stranger *stranger, struct rail_refusal *refusal) {
  const struct ib_listen *l = host;
  enum ib_reason reason = ib_hello_plausible(stranger->message, stranger->have, &l->handle);
  return reason == IB_REASON_NONE || refuse(reason, version_of(stranger), refusal);
}

/* Only authenticated HELLOs are remembered, for detecting replays. */
static enum ib_reason check_hello(struct ib_listen *l, const struct ib_hello_wire *hello) {
  enum ib_reason reason = ib_hello_check(hello, &l->handle);
  if (reason != IB_REASON_NONE || !(l->handle.flags & IB_HANDLE_AUTH)) return reason;
  if (!ib_auth_check_hello(&l->handle, hello)) return IB_REASON_MAC;
  switch (rail_replay_note(&l->seen, hello->comm_id, 0)) {
    case RAIL_REPLAY_NEW: return IB_REASON_NONE;
    case RAIL_REPLAY_SEEN: return IB_REASON_REPLAY;
    default: return IB_REASON_BUSY;
  }
}

static bool whole(void *host, const struct rail_stranger *stranger, struct rail_refusal *refusal) {
  struct ib_listen *l = host;
  struct ib_hello_wire hello;
  memcpy(&hello, stranger->message, sizeof hello);
  enum ib_reason reason = check_hello(l, &hello);
  if (reason == IB_REASON_NONE && !ib_pending_add(l, stranger->fd, &stranger->peer, &hello)) reason = IB_REASON_BUSY;
  return reason == IB_REASON_NONE || refuse(reason, version_of(stranger), refusal);
}

static void count(void *host, enum rail_door_event event) {
  const struct ib_listen *l = host;
  ib_setup_count(l->device, event == RAIL_DOOR_STRANGER ? IB_DEVICE_STRANGERS : IB_DEVICE_REFUSED);
}

static const struct rail_door_rules rules = {
  .plugin = "RailIB",
  .message_size = sizeof(struct ib_hello_wire),
  .plausible = plausible,
  .whole = whole,
  .count = count,
};

/* ---- opening and closing ------------------------------------------------- */

/* Thousands of listeners are opened at once: the ports are queried at most once a second for all of them. */
static void give_hints(struct ib_handle *handle, const struct ib_device *device, int dev) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static struct {
    uint64_t until;
    unsigned int ngids;
    uint8_t gids[IB_HANDLE_GIDS][16];
  } known[IB_MAX_DEVICES];
  pthread_mutex_lock(&lock);
  if (rail_now_ns() >= known[dev].until) {
    known[dev].ngids = ib_offer_hints(device, known[dev].gids);
    known[dev].until = rail_now_ns() + HINTS_NS;
  }
  handle->ngids = known[dev].ngids;
  memcpy(handle->gids, known[dev].gids, known[dev].ngids * sizeof handle->gids[0]);
  pthread_mutex_unlock(&lock);
}

static rail_result_t open_door(struct ib_listen *l) {
  union rail_addr interface;
  const char *name = ib_oob_interface(&interface);
  int fd = -1;
  if (!name) {
    RAIL_WARN("RailIB: listen: there is no network interface for the oob connection (NCCL_SOCKET_IFNAME)");
    return RAIL_SYSTEM_ERROR;
  }
  rail_result_t result = rail_random_bytes(l->handle.secret, sizeof l->handle.secret);
  if (result != RAIL_OK) {
    RAIL_WARN("RailIB: listen: no random bytes from the kernel: %s", strerror(errno));
    return result;
  }
  RAIL_TRY(rail_ports_listen(&ports, name, &interface, RAIL_DOOR_BACKLOG, &l->handle.addr, &fd));
  rail_doors_add(&l->doors, fd);
  return RAIL_OK;
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
  l->last = &l->pending;
  l->handle.flags = ib_auth_on() ? IB_HANDLE_AUTH : 0;
  give_hints(&l->handle, device, dev);
  rail_doors_init(&l->doors, &rules, l, device->name, (uint64_t)ib_params.handshake_ms);
  rail_result_t result = open_door(l);
  if (result != RAIL_OK) {
    rail_doors_close(&l->doors);
    free(l);
    return result;
  }
  ib_handle_encode(&l->handle, handle_bytes);
  rail_net_ctx_add(ctx, &l->in_ctx);
  RAIL_INFO(RAIL_SUB_NET, "RailIB: listening for %s at %s%s", device->name, rail_addr_text(&l->handle.addr, addr),
            l->handle.flags & IB_HANDLE_AUTH ? ", authenticated" : "");
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
  ib_pending_free(l);
  rail_doors_close(&l->doors);
  rail_replay_free(&l->seen);
  l->magic = 0;
  free(l);
  return RAIL_OK;
}

void ib_listener_close(struct rail_net_listener *listener) {
  (void)ib_close_listen(rail_container_of(listener, struct ib_listen, in_ctx));
}
