/* SPDX-License-Identifier: Apache-2.0
 * Listening sockets, pending connections, and what is checked of a HELLO. */
#include "common/conn/listener.h"

#include <endian.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/conn/handshake.h"

#define BACKLOG 4096 /* for listen(2); the kernel lowers it to net.core.somaxconn */
#define MAX_HALF_OPEN 16384 /* sockets of half-open connections, of all listeners */

/* ---- refusing --------------------------------------------------------- */

/* Refuses it; drops what is no HELLO. */
static void turn_away(struct rail_listener *l, struct rail_pending *c, unsigned int reason) {
  const struct rail_protocol *protocol = l->ops->protocol;
  const char *text = rail_reason_text(protocol, reason);
  char why[160];
  if (reason == RAIL_REASON_GARBAGE) {
    rail_pending_drop(&l->pending, c, text);
    return;
  }
  if (reason == RAIL_REASON_VERSION) {
    struct rail_hello_wire wire;
    memcpy(&wire, c->bytes, RAIL_HELLO_PREFIX);
    snprintf(why, sizeof why, "%s (%u, ours %u)", text, le16toh(wire.version), protocol->version);
    text = why;
  } else if (*l->why) {
    text = l->why;
  }
  rail_pending_log(&l->pending, "refused", &c->peer, text);
  int fd = rail_pending_remove(&l->pending, c);
  if (l->ops->count) l->ops->count(l->owner, RAIL_LISTENER_REFUSED);
  rail_refuse(protocol, &fd, reason);
}

/* ---- reading HELLOs ---------------------------------------------------- */

/* A whole HELLO is here. Only what is authentic goes into the replay filter. */
static unsigned int offer_hello(struct rail_listener *l, const struct rail_pending *c) {
  struct rail_hello hello;
  enum rail_reason reason = rail_hello_decode(l->ops->protocol, &l->handle, c->bytes, &hello);
  if (reason != RAIL_REASON_NONE) return reason;
  if (hello.auth && !hello.reconnect) {
    enum rail_replay_result seen = rail_replay_note(&l->replay, hello.mac);
    if (seen != RAIL_REPLAY_NEW) return seen == RAIL_REPLAY_SEEN ? RAIL_REASON_REPLAY : RAIL_REASON_BUSY;
  }
  return l->ops->on_hello(l->owner, c, &hello);
}

static bool read_hello(void *listener, struct rail_pending *c) {
  struct rail_listener *l = listener;
  rail_result_t result = rail_pending_read(c, l->pending.size);
  unsigned int reason;
  *l->why = '\0';
  if (result == RAIL_OK) {
    reason = offer_hello(l, c);
    if (reason == RAIL_REASON_NONE) (void)rail_pending_remove(&l->pending, c); /* the socket is the plugin's */
    else turn_away(l, c, reason);
    return true;
  }
  /* Before the end of the stream is looked at, so that garbage is called garbage. */
  reason = rail_hello_check_prefix(l->ops->protocol, &l->handle, c->bytes, c->have);
  if (reason == RAIL_REASON_NONE && result == RAIL_IN_PROGRESS) return false;
  if (reason != RAIL_REASON_NONE) turn_away(l, c, reason);
  else rail_pending_drop(&l->pending, c, "it closed the connection before a whole hello");
  return true;
}

static void count_dropped(void *listener) {
  struct rail_listener *l = listener;
  if (l->ops->count) l->ops->count(l->owner, RAIL_LISTENER_DROPPED);
}

static const struct rail_pending_ops pending_ops = {.read = read_hello, .dropped = count_dropped};

rail_result_t rail_listener_poll(struct rail_listener *l) {
  rail_result_t result = rail_pending_poll(&l->pending, l->fds, l->handle.naddrs);
  if (result != RAIL_OK) RAIL_WARN("%s: accept on %s: %s", l->ops->protocol->plugin, l->pending.name, strerror(errno));
  return result;
}

/* ---- half-open connections ------------------------------------------------ */

static _Atomic uint64_t all_half_open; /* sockets, of all listeners */

uint64_t rail_listener_max_half_open(void) { return RAIL_MIN(MAX_HALF_OPEN, rail_pending_file_limit() / 2); }

bool rail_listener_reserve(struct rail_listener *l, unsigned int sockets) {
  const uint64_t max = rail_listener_max_half_open(), before = atomic_fetch_add(&all_half_open, sockets);
  if (before + sockets > max && l->half_open) {
    atomic_fetch_sub(&all_half_open, sockets);
    snprintf(l->why, sizeof l->why, "too many half-open connections in this process, %llu sockets of at most %llu "
             "(half of the files it may open, and %d); if they are this job's, raise ulimit -n",
             (unsigned long long)before, (unsigned long long)max, MAX_HALF_OPEN);
    return false;
  }
  l->half_open += sockets;
  return true;
}

void rail_listener_release(struct rail_listener *l, unsigned int sockets) {
  l->half_open -= sockets;
  atomic_fetch_sub(&all_half_open, sockets);
}

/* ---- opening and closing ---------------------------------------------- */

rail_result_t rail_listener_init(struct rail_listener *l, const struct rail_listener_ops *ops, void *owner,
                                 const char *name, uint64_t hello_ms) {
  *l = (struct rail_listener){.ops = ops, .owner = owner};
  l->pending = (struct rail_pending_set){.ops = &pending_ops, .owner = l, .module = ops->protocol->plugin, .name = name,
                                         .size = rail_hello_size(ops->protocol), .hello_ms = hello_ms};
  rail_pending_init(&l->pending);
  l->handle.auth = rail_key_on(ops->protocol->key);
  rail_result_t result = rail_random_bytes(l->handle.secret, sizeof l->handle.secret);
  if (result != RAIL_OK)
    RAIL_WARN("%s: listen: no random bytes from the kernel: %s", ops->protocol->plugin, strerror(errno));
  return result;
}

rail_result_t rail_listener_add(struct rail_listener *l, struct rail_ports *ports, const char *interface,
                                const union rail_addr *addr) {
  unsigned int i = l->handle.naddrs;
  RAIL_TRY(rail_ports_listen(ports, interface, addr, BACKLOG, &l->handle.addrs[i], &l->fds[i]));
  l->handle.naddrs++;
  return RAIL_OK;
}

void rail_listener_close(struct rail_listener *l) {
  rail_pending_close(&l->pending);
  for (unsigned int i = 0; i < l->handle.naddrs; i++) rail_sock_close(&l->fds[i]);
  l->handle.naddrs = 0;
  rail_replay_free(&l->replay);
}
