/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream's way to the acceptor: common/conn/dial.h with a HELLO to send.
 * connect has one for each stream. Streams that need it are connected again:
 * one that was cut before the acceptor had answered its HELLO (a flood took its
 * place, or the acceptor was busy) sends the same HELLO once more; a lost one
 * of a connection over several devices sends HELLO with the flag RECONNECT, and
 * the receiver finds it at the listening sockets that it kept (sk_acceptor.h).
 * What is sent again of the bytes that were lost is in sk_failover.h.
 *
 * One thread at a time. Nothing here waits.
 */
#ifndef SK_DIAL_H
#define SK_DIAL_H

#include "common/conn/dial.h"
#include "plugin/socket/sk_device.h"
#include "plugin/socket/sk_wire.h"

struct sk_dial {
  struct rail_dial dial;
  const struct sk_device *nic; /* one interface */
  struct rail_hello hello;
  uint8_t bytes[RAIL_HELLO_MAX]; /* of it */
};

/* Not begun; sk_dial_hello before the first step. */
void sk_dial_init(struct sk_dial *dial, const struct sk_device *nic, const union rail_addr *peer, unsigned int stream,
                  int traffic_class, enum rail_dial_bind bind);
/* What it sends; dial->hello with comm id, stream and streams is the caller's to fill before. */
rail_result_t sk_dial_hello(struct sk_dial *dial, const struct rail_handle *listener, const struct sk_limits *limits,
                            bool reconnect, uint64_t counter);
/* rail_dial_step: RAIL_OK when HELLO is written. */
rail_result_t sk_dial_step(struct sk_dial *dial);

/* ---- again ---------------------------------------------------------------- */

struct sk_reconnect;
struct sk_tls;

/* NULL when memory is out. `dials` are those of the connection's streams. */
struct sk_reconnect *sk_reconnect_new(const struct rail_handle *listener, const struct sk_limits *limits,
                                      const struct sk_dial *dials, unsigned int streams);
void sk_reconnect_free(struct sk_reconnect *r); /* NULL is fine */

/* One step of reconnecting a lost `stream`. RAIL_OK: *fd is a stream that may carry frames, with *tls over it where the
 * connection is encrypted, both the caller's. RAIL_IN_PROGRESS: later; it keeps trying for as long as it is called.
 * RAIL_REMOTE_ERROR, after one line: the peer will never take it back. */
rail_result_t sk_reconnect_lost(struct sk_reconnect *r, unsigned int stream, int *fd, struct sk_tls **tls);

/* The same for a stream whose HELLO was not answered: RAIL_OK when it is sent again, and *session that of the answer to
 * come. RAIL_REMOTE_ERROR, with an errno: no process listens there any more, or RAIL_SOCKET_CONNECT_TIMEOUT has passed
 * since the stream was cut for the first time. */
rail_result_t sk_reconnect_unanswered(struct sk_reconnect *r, unsigned int stream, struct rail_session *session,
                                      int *fd);

#endif
