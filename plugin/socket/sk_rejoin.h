/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams that are connected again. One that was cut before the acceptor had
 * answered its HELLO (a flood took its place, or the acceptor was busy) says
 * the same HELLO once more. A lost one of a connection over several devices
 * comes back: the sender dials again and says HELLO with the rejoin flag, the
 * receiver finds it at the listening sockets that it kept. What the two must
 * tell each other about bytes that were lost is the data path's business.
 *
 * Threads: each object is used by one thread at a time. Nothing here waits.
 */
#ifndef SK_REJOIN_H
#define SK_REJOIN_H

#include "plugin/socket/sk_dial.h"
#include "plugin/socket/sk_group.h"

struct sk_rejoin;

/* ---- the connection's side (sender: dial; receiver: take) -------------- */

/* One step of bringing `stream` back. RAIL_OK: *fd is a stream ready for frames,
 * the caller's. RAIL_IN_PROGRESS: later; it keeps trying for as long as it is
 * called. RAIL_REMOTE_ERROR, after one line: the peer will never take it back. */
rail_result_t sk_rejoin_dial(struct sk_rejoin *r, unsigned int stream, int *fd);

/* The same for a stream whose HELLO was not answered: RAIL_OK when it is said again, and *answer what is to come.
 * RAIL_REMOTE_ERROR, with an errno: nobody listens there any more, or RAIL_SOCKET_CONNECT_TIMEOUT has passed since the
 * stream was cut for the first time. */
rail_result_t sk_rejoin_retry(struct sk_rejoin *r, unsigned int stream, struct sk_answer_wire *answer, int *fd);

/* The receiver's: which stream has come back, if any. A peer may give a stream
 * up before this side has noticed, and again later: the latest one counts. */
rail_result_t sk_rejoin_take(struct sk_rejoin *r, unsigned int *stream, int *fd);

void sk_rejoin_free(struct sk_rejoin *r); /* NULL is fine */

/* ---- the handshake's side ---------------------------------------------- */

/* NULL when memory is out. `legs` tell which ways the streams went. */
struct sk_rejoin *sk_rejoin_new_sender(const struct sk_handle *listener, const struct sk_hello *hello,
                                       const struct sk_leg *legs);
/* Takes a reference of the reception. Under its lock. */
struct sk_rejoin *sk_rejoin_new_receiver(struct sk_reception *reception, const struct sk_group *group);

/* A stranger says that it comes back. SK_REASON_NONE: its socket is the connection's. Under the reception's lock. */
enum sk_reason sk_rejoin_offer(struct sk_reception *reception, const struct sk_hello *hello,
                               const struct rail_stranger *s);

#endif
