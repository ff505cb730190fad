/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of open comms, and the thread that watches them: one per process, from the first comm until the last context
 * is finalized (or the plugin is unloaded). It wakes four times a second, and never while there are no comms. What it
 * does with each at a tick is in sk_keepalive.h.
 *
 * All functions are thread-safe. A child of fork has no watch thread and none of its parent's comms: their sockets are
 * closed there, without sending anything, so that a child that outlives its parent does not keep them open; a call that
 * names such a comm finds it stopped.
 */
#ifndef SK_WATCH_H
#define SK_WATCH_H

struct sk_comm;

/* From here on the thread may own the comm at times. */
void sk_watch_add(struct sk_comm *comm);
/* After return it does not touch it any more. Waits at most for one pass over this comm. */
void sk_watch_remove(struct sk_comm *comm);
/* Removes any comm and returns it, or NULL. Not while the thread runs. */
struct sk_comm *sk_watch_take(void);
/* Ends the thread; the next comm starts another. */
void sk_watch_end(void);

#endif
