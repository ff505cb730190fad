/* SPDX-License-Identifier: Apache-2.0
 *
 * The accepting side's first half: listening sockets, and the pending
 * connections behind them, which have not sent a whole HELLO yet. A HELLO
 * (protocol.h) is read and checked here: length, version, secret, key and
 * replay filter; one that passes is handed to the plugin with its socket.
 *
 * Use, from a plugin's calls:
 *   listen       rail_listener_init; rail_listener_add once per interface;
 *                rail_listener_handle gives the bytes for NCCL
 *   accept       rail_listener_poll: calls ops->on_hello for each connection
 *                whose HELLO is there; the plugin keeps those that it takes,
 *                e.g. in a struct rail_handshake of their own (handshake.h)
 *   closeListen  rail_listener_close
 *
 * Ownership: the listener owns its sockets and the pending connections; a
 * socket is the plugin's from the moment on_hello returns RAIL_REASON_NONE.
 * Not thread-safe: one thread at a time, or the plugin's lock. Nothing here
 * waits. What clients can cost is limited for all listeners of a plugin in a
 * process together: of those without a HELLO in pending.h, of those whose HELLO
 * the plugin takes by rail_listener_reserve below.
 */
#ifndef RAIL_LISTENER_H
#define RAIL_LISTENER_H

#include "common/conn/pending.h"
#include "common/conn/ports.h"
#include "common/conn/protocol.h"
#include "common/conn/replay.h"

enum rail_listener_event {
  RAIL_LISTENER_DROPPED, /* without an ANSWER: silence, nonsense, no room */
  RAIL_LISTENER_REFUSED, /* with a refusal */
};

struct rail_listener_ops {
  const struct rail_protocol *protocol;
  /* A HELLO that is right in all that protocol.h knows, and was not received before. RAIL_REASON_NONE: the plugin has
   * taken the socket conn->fd; the rest of *conn and *hello end with the call. Else a reason of rail_reason or of the
   * plugin's own: the connection is refused with it, and with the words in listener->why if there are any. Of the
   * listener's functions it may call those for half-open connections only. */
  unsigned int (*on_hello)(void *owner, const struct rail_pending *conn, const struct rail_hello *hello);
  /* For statistics; NULL: not counted. */
  void (*count)(void *owner, enum rail_listener_event event);
};

struct rail_listener {
  const struct rail_listener_ops *ops;
  void *owner;
  struct rail_handle handle; /* as it is given out. The plugin sets param and payload */
  int fds[RAIL_HANDLE_ADDRS]; /* listening sockets, handle.naddrs of them */
  struct rail_pending_set pending;
  struct rail_replay replay;
  unsigned int half_open; /* sockets that are reserved */
  char why[192];          /* on_hello's, for the line about a refusal; empty: the reason's text */
};

/* No socket yet; the secret is drawn, and handle.auth set if there is a key. `ops` and `name` are kept, `owner` is
 * handed to the ops. An error, after one line, is one of the kernel's random source; close is harmless then. */
rail_result_t rail_listener_init(struct rail_listener *listener, const struct rail_listener_ops *ops, void *owner,
                                 const char *name, uint64_t hello_ms);
/* Listens on an interface: its name and address, with the port and address to bind of `ports`. At most
 * RAIL_HANDLE_ADDRS. The socket is listener->fds[i] with the index of its address in the handle; options that accepted
 * sockets shall inherit (buffer sizes, traffic class) are set on it at once. Logs why not. */
rail_result_t rail_listener_add(struct rail_listener *listener, struct rail_ports *ports, const char *interface,
                                const union rail_addr *addr);
static inline void rail_listener_handle(const struct rail_listener *listener, void *bytes) {
  rail_handle_encode(listener->ops->protocol, &listener->handle, bytes);
}
/* Closes everything that is still the listener's. */
void rail_listener_close(struct rail_listener *listener);

/* Accepts and reads whatever is there, once. An error, after one line, is one of a listening socket itself; what may
 * pass (EMFILE) is not one. */
rail_result_t rail_listener_poll(struct rail_listener *listener);

/* ---- half-open connections: on_hello took their HELLO, accept has not returned them ----
 *
 * A peer with the listener's secret may begin any number of them. All listeners of a plugin in a process share a limit
 * of sockets: 16,384, and half of the files that the process may open (RLIMIT_NOFILE). A listener that has none is
 * given what it asks for, so that a flood of one does not block another. */

/* For on_hello. False: no room, and `why` says so: refuse with RAIL_REASON_BUSY, the peer tries again. */
bool rail_listener_reserve(struct rail_listener *listener, unsigned int sockets);
/* They are accepted, or dropped. */
void rail_listener_release(struct rail_listener *listener, unsigned int sockets);
/* The limit, as RLIMIT_NOFILE is now. */
uint64_t rail_listener_max_half_open(void);

/* For connections that the plugin took, and has to drop or refuse later: "dropped a connection from PEER: WHY", or
 * "refused", within the same limits of lines. */
static inline void rail_listener_log_drop(struct rail_listener *listener, const union rail_addr *peer,
                                          const char *why) {
  rail_pending_log(&listener->pending, "dropped", peer, why);
}
static inline void rail_listener_log_refusal(struct rail_listener *listener, const union rail_addr *peer,
                                             const char *why) {
  rail_pending_log(&listener->pending, "refused", peer, why);
}

#endif
