/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams that are lost and come back.
 *
 * With the feature FAILOVER (sk_path.h) a stream may be lost while the others go on. Whichever side finds it dead sends
 * LOST on another one. The receiver's LOST ends the matter: it carries how many frames of that stream had arrived
 * whole. The sender then dials again (sk_dial.h), and JOIN begins a new generation.
 *
 * Without it, one case is repaired: a stream that was cut before the acceptor had answered its HELLO is connected
 * again.
 *
 * All calls are the owner's.
 */
#ifndef SK_FAILOVER_H
#define SK_FAILOVER_H

#include "plugin/socket/sk_path.h"

/* Streams that broke are lost; one that ended properly was closed by the peer, or given up, and then the peer sends
 * LOST over another. *ended: no stream is left over which the peer could send anything. */
rail_result_t sk_failover_check(struct sk_comm *comm, bool *ended);
/* The watch thread's check of every stream, some times a second: is its interface up, does its peer acknowledge, has a
 * lost one come back? `now` is its time. */
void sk_failover_tick(struct sk_comm *comm, uint64_t now);

/* Frames LOST and JOIN. */
rail_result_t sk_failover_on_lost(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame);
rail_result_t sk_failover_on_join(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame);

/* Sender: sends HELLO again on streams that ended before the acceptor answered (others took their places, or it was
 * busy); nothing else was written. If the listener is gone so is the peer. Once it has answered on another stream it
 * has their HELLOs, and reads no more of them: then they are lost with FAILOVER, and the connection is without. */
RAIL_COLD rail_result_t sk_failover_retry_hellos(struct sk_comm *comm);

#endif
