/* SPDX-License-Identifier: Apache-2.0
 * A small state machine, one row per state. */
#include "common/conn/dial.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"

/* Between two attempts, doubled. Soon, for a listener that is full for a moment; at last five a second, so that ten
 * thousand that wait do not keep a host busy. */
#define BACKOFF_MIN_MS 1
#define BACKOFF_MAX_MS 200
#define DEVICE_TRY_MS 1000 /* for an attempt that is bound to its device, when one without may follow */

/* ---- source address -------------------------------------------------------- */

/* Does the kernel deliver to this address without leaving the machine? It then
 * chooses the address itself as source. No packet is sent for it. */
static bool is_here(const union rail_addr *peer) {
  union rail_addr source;
  socklen_t len = sizeof source;
  int fd = socket(peer->sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  bool here = fd >= 0 && connect(fd, &peer->sa, rail_addr_len(peer)) == 0 && getsockname(fd, &source.sa, &len) == 0 &&
              rail_addr_same_host(&source, peer);
  rail_sock_close(&fd);
  return here;
}

static bool is_loopback(const union rail_addr *addr) {
  if (addr->sa.sa_family == AF_INET) return (ntohl(addr->in.sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&addr->in6.sin6_addr);
}

/* NULL: let the kernel choose. */
static const union rail_addr *source_of(const struct rail_dial *dial) {
  const union rail_addr *own = dial->args.addr;
  if (own->sa.sa_family != dial->peer.sa.sa_family) return NULL;
  /* A loopback source cannot leave the host, and a loopback peer needs no device. */
  return is_loopback(own) == is_loopback(&dial->peer) ? own : NULL;
}

void rail_dial_init(struct rail_dial *dial, const struct rail_dial_args *args, const union rail_addr *peer) {
  *dial = (struct rail_dial){.args = *args, .peer = *peer, .fd = -1};
  /* The listener's scope is a number of its own machine. */
  if (peer->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&peer->in6.sin6_addr))
    dial->peer.in6.sin6_scope_id = if_nametoindex(dial->args.interface);
  if (dial->args.bind != RAIL_BIND_ADDR && is_here(&dial->peer)) dial->args.bind = RAIL_BIND_ADDR;
}

void rail_dial_close(struct rail_dial *dial) { rail_sock_close(&dial->fd); }

/* ---- the states ------------------------------------------------------- */

struct message { const void *bytes; size_t size; };

/* Each step returns RAIL_OK after a change of state, RAIL_IN_PROGRESS when it
 * waits, or an error that ends the attempts. */
static rail_result_t step_wait(struct rail_dial *dial, struct message message);
static rail_result_t step_tcp(struct rail_dial *dial, struct message message);
static rail_result_t step_hello(struct rail_dial *dial, struct message message);

static const struct {
  const char *name;
  rail_result_t (*step)(struct rail_dial *dial, struct message message);
} states[] = {
  [RAIL_DIAL_WAIT] = {"wait", step_wait},
  [RAIL_DIAL_TCP] = {"tcp", step_tcp},
  [RAIL_DIAL_HELLO] = {"hello", step_hello},
  [RAIL_DIAL_DONE] = {"done", NULL},
};
_Static_assert(RAIL_COUNT_OF(states) == RAIL_DIAL_STATES, "a row for each state");

static void change(struct rail_dial *dial, enum rail_dial_state to) {
  char peer[RAIL_ADDR_TEXT], number[24] = "";
  if (rail_log_trace_on()) {
    if (dial->args.stream >= 0) snprintf(number, sizeof number, ", stream %d", dial->args.stream);
    RAIL_TRACE(RAIL_SUB_NET, "%s: %s to %s%s: %s -> %s", dial->args.plugin, dial->args.interface,
               rail_addr_text(&dial->peer, peer), number, states[dial->state].name, states[to].name);
  }
  dial->state = to;
}

/* After these a later attempt may succeed: the peer's listener or its route is not there yet, or it
 * is overrun; and anything that binding to the device may have caused. */
static bool worth_retrying(const struct rail_dial *dial, int err) {
  return err == ECONNREFUSED || err == ETIMEDOUT || err == EHOSTUNREACH || err == ENETUNREACH || err == ECONNRESET ||
         err == EADDRNOTAVAIL || err == EAGAIN || err == EPIPE || err == ENETDOWN || err == ECONNABORTED ||
         dial->device_bound;
}

static rail_result_t retry_later(struct rail_dial *dial, int err) {
  rail_sock_close(&dial->fd);
  dial->sent = 0;
  dial->last_errno = err;
  change(dial, RAIL_DIAL_WAIT);
  if (!worth_retrying(dial, err)) return rail_result_of_errno(err);
  dial->backoff_ms = dial->backoff_ms ? RAIL_MIN(2 * dial->backoff_ms, BACKOFF_MAX_MS) : BACKOFF_MIN_MS;
  dial->retry_at = rail_deadline_in_ms(dial->backoff_ms);
  return RAIL_IN_PROGRESS;
}

/* Not permitted (before Linux 5.7, without CAP_NET_RAW) is fine: then the
 * source address alone tells the rails apart. */
static bool bind_to_device(const struct rail_dial *dial) {
  const char *name = dial->args.interface;
  return setsockopt(dial->fd, SOL_SOCKET, SO_BINDTODEVICE, name, (socklen_t)strlen(name)) == 0;
}

static rail_result_t step_wait(struct rail_dial *dial, struct message message) {
  (void)message;
  if (dial->retry_at && !rail_deadline_passed(dial->retry_at)) return RAIL_IN_PROGRESS;
  enum rail_dial_bind bind = dial->args.bind;
  dial->device_bound = false;
  dial->started = rail_now_ns();
  if (rail_sock_open(&dial->peer, source_of(dial), &dial->fd) != RAIL_OK) return retry_later(dial, errno);
  if (bind == RAIL_BIND_DEVICE || (bind == RAIL_BIND_DEVICE_TRY && dial->attempts % 2 == 0))
    dial->device_bound = bind_to_device(dial);
  dial->attempts++;
  if (dial->args.set_options) dial->args.set_options(dial->fd, dial->args.traffic_class);
  rail_result_t result = rail_sock_start(dial->fd, &dial->peer);
  if (result != RAIL_OK && result != RAIL_IN_PROGRESS) return retry_later(dial, errno);
  change(dial, result == RAIL_OK ? RAIL_DIAL_HELLO : RAIL_DIAL_TCP);
  return RAIL_OK;
}

static rail_result_t step_tcp(struct rail_dial *dial, struct message message) {
  (void)message;
  rail_result_t result = rail_sock_connected(dial->fd);
  if (result == RAIL_IN_PROGRESS) {
    bool may_unbind = dial->device_bound && dial->args.bind == RAIL_BIND_DEVICE_TRY;
    bool give_up = may_unbind && rail_now_ns() - dial->started > DEVICE_TRY_MS * 1000000ull;
    return give_up ? retry_later(dial, ETIMEDOUT) : result;
  }
  if (result != RAIL_OK) return retry_later(dial, errno);
  change(dial, RAIL_DIAL_HELLO);
  return RAIL_OK;
}

static rail_result_t step_hello(struct rail_dial *dial, struct message message) {
  rail_result_t result = rail_sock_send_some(dial->fd, message.bytes, message.size, &dial->sent);
  if (result == RAIL_IN_PROGRESS) return result;
  if (result != RAIL_OK) return retry_later(dial, errno);
  change(dial, RAIL_DIAL_DONE);
  return RAIL_OK;
}

void rail_dial_again(struct rail_dial *dial, int err) {
  dial->fd = -1;
  (void)retry_later(dial, err);
}

rail_result_t rail_dial_step(struct rail_dial *dial, const void *message, size_t size) {
  while (dial->state != RAIL_DIAL_DONE)
    RAIL_TRY(states[dial->state].step(dial, (struct message){message, size}));
  return RAIL_OK;
}
