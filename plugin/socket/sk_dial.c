/* SPDX-License-Identifier: Apache-2.0
 * A small state machine, one row per state. */
#include "plugin/socket/sk_dial.h"

#include <errno.h>
#include <net/if.h>

#include "common/clock.h"
#include "common/log.h"
#include "plugin/socket/sk_sockopt.h"

#define BACKOFF_MIN_MS 1
#define BACKOFF_MAX_MS 200
#define TIED_TRY_MS 1000 /* for an attempt that is tied to its interface, when one without may follow */

/* ---- which way -------------------------------------------------------- */

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

void sk_leg_init(struct sk_leg *leg, const struct sk_device *path, const union rail_addr *peer, int traffic_class,
                 enum sk_leg_tie tie) {
  *leg = (struct sk_leg){.fd = -1, .path = path, .peer = *peer, .traffic_class = traffic_class, .tie = tie};
  /* The listener's scope is a number of its own machine. */
  if (peer->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&peer->in6.sin6_addr))
    leg->peer.in6.sin6_scope_id = if_nametoindex(path->name);
  if (tie != SK_TIE_NONE && is_here(&leg->peer)) leg->tie = SK_TIE_NONE;
}

void sk_leg_close(struct sk_leg *leg) { rail_sock_close(&leg->fd); }

/* ---- the states ------------------------------------------------------- */

/* Each step returns RAIL_OK after a change of state, RAIL_IN_PROGRESS when it
 * waits, or an error that ends the attempts. */
static rail_result_t step_wait(struct sk_leg *leg);
static rail_result_t step_tcp(struct sk_leg *leg);
static rail_result_t step_hello(struct sk_leg *leg);

static const struct {
  const char *name;
  rail_result_t (*step)(struct sk_leg *leg);
} states[] = {
  [SK_LEG_WAIT] = {"wait", step_wait},
  [SK_LEG_TCP] = {"tcp", step_tcp},
  [SK_LEG_HELLO] = {"hello", step_hello},
  [SK_LEG_DONE] = {"done", NULL},
};
_Static_assert(RAIL_COUNT_OF(states) == SK_LEG_STATES, "a row for each state");

static void change(struct sk_leg *leg, enum sk_leg_state to) {
  char peer[RAIL_ADDR_TEXT];
  if (rail_log_trace_on())
    RAIL_TRACE(RAIL_SUB_NET, "RailSocket: %s to %s, stream %u: %s -> %s", leg->path->name,
               rail_addr_text(&leg->peer, peer), le16toh(leg->hello.stream), states[leg->state].name, states[to].name);
  leg->state = to;
}

/* What time may cure: the peer's listener or its route is not there yet, or it
 * is overrun; and anything that being tied to an interface may have caused. */
static bool worth_retrying(const struct sk_leg *leg, int err) {
  return err == ECONNREFUSED || err == ETIMEDOUT || err == EHOSTUNREACH || err == ENETUNREACH || err == ECONNRESET ||
         err == EADDRNOTAVAIL || err == EAGAIN || err == EPIPE || err == ENETDOWN || err == ECONNABORTED || leg->tied;
}

static rail_result_t retry_later(struct sk_leg *leg, int err) {
  rail_sock_close(&leg->fd);
  leg->sent = 0;
  leg->last_errno = err;
  change(leg, SK_LEG_WAIT);
  if (!worth_retrying(leg, err)) return rail_result_of_errno(err);
  leg->backoff_ms = leg->backoff_ms ? RAIL_MIN(2 * leg->backoff_ms, BACKOFF_MAX_MS) : BACKOFF_MIN_MS;
  leg->retry_at = rail_deadline_in_ms(leg->backoff_ms);
  return RAIL_IN_PROGRESS;
}

/* Not permitted (before Linux 5.7, without CAP_NET_RAW) is fine: then the
 * source address alone tells the rails apart. */
static bool tie_to_interface(const struct sk_leg *leg) {
  return setsockopt(leg->fd, SOL_SOCKET, SO_BINDTODEVICE, leg->path->name, (socklen_t)strlen(leg->path->name)) == 0;
}

static rail_result_t step_wait(struct sk_leg *leg) {
  if (leg->retry_at && !rail_deadline_passed(leg->retry_at)) return RAIL_IN_PROGRESS;
  leg->tied = false;
  leg->started = rail_now_ns();
  if (rail_sock_open(&leg->peer, sk_device_source(leg->path, &leg->peer), &leg->fd) != RAIL_OK)
    return retry_later(leg, errno);
  if (leg->tie == SK_TIE_ALWAYS || (leg->tie == SK_TIE_TRY && leg->attempts % 2 == 0))
    leg->tied = tie_to_interface(leg);
  leg->attempts++;
  sk_sockopt_set(leg->fd, leg->traffic_class);
  rail_result_t result = rail_sock_start(leg->fd, &leg->peer);
  if (result != RAIL_OK && result != RAIL_IN_PROGRESS) return retry_later(leg, errno);
  change(leg, result == RAIL_OK ? SK_LEG_HELLO : SK_LEG_TCP);
  return RAIL_OK;
}

static rail_result_t step_tcp(struct sk_leg *leg) {
  rail_result_t result = rail_sock_connected(leg->fd);
  if (result == RAIL_IN_PROGRESS) {
    bool give_up = leg->tied && leg->tie == SK_TIE_TRY && rail_now_ns() - leg->started > TIED_TRY_MS * 1000000ull;
    return give_up ? retry_later(leg, ETIMEDOUT) : result;
  }
  if (result != RAIL_OK) return retry_later(leg, errno);
  change(leg, SK_LEG_HELLO);
  return RAIL_OK;
}

static rail_result_t step_hello(struct sk_leg *leg) {
  rail_result_t result = rail_sock_send_some(leg->fd, &leg->hello, sizeof leg->hello, &leg->sent);
  if (result == RAIL_IN_PROGRESS) return result;
  if (result != RAIL_OK) return retry_later(leg, errno);
  change(leg, SK_LEG_DONE);
  return RAIL_OK;
}

rail_result_t sk_leg_step(struct sk_leg *leg) {
  while (leg->state != SK_LEG_DONE) {
    rail_result_t result = states[leg->state].step(leg);
    if (result != RAIL_OK) return result;
  }
  return RAIL_OK;
}
