/* SPDX-License-Identifier: Apache-2.0
 *
 * Progress engines: who moves connections besides the caller.
 *
 * inline  nobody: test moves data. A comm has no seat.
 * epoll   threads wait for sockets to become ready, then own the comm and move it as test would.
 * uring   threads give the sockets' reads and writes to the kernel, many in one system call.
 *
 * The threads belong to the process and are spread over all comms; they begin
 * with the first comm and end with the last context. A comm at an engine has a
 * seat there. Its caller starts what is small in isend and irecv, leaves the
 * rest to the engine, and reads flags in test.
 *
 * A child of fork has none of them, nor of its parent's comms (sk_watch.h); its
 * own comms get threads of their own.
 */
#ifndef SK_ENGINE_H
#define SK_ENGINE_H

#include "plugin/socket/sk_comm.h"

/* Sends above this size are left to the engine: a copy of more costs the caller longer than waking a thread does. */
#define SK_ENGINE_INLINE_BYTES (64 * 1024)

/* Gives a finished comm to the engine chosen by RAIL_SOCKET_ENGINE. One that cannot have a seat is moved by its
 * caller; that is said once. */
void sk_engine_attach(struct sk_comm *comm);

/* For who owns the comm for ever: after return no engine touches it, nor, on its behalf, the caller's memory. */
void sk_engine_detach(struct sk_comm *comm);

/* One stream has another socket, or loses the one it has. For the owner, of comms with and without a seat; the old
 * socket is still open. */
void sk_engine_stream_new(struct sk_comm *comm, struct sk_stream *s);
void sk_engine_stream_gone(struct sk_comm *comm, struct sk_stream *s);

/* The owner's, for a comm that is about to fail: from here on its streams are read and written directly, so that it can
 * be seen what the peer has said. */
void sk_engine_settle(struct sk_comm *comm);

/* No thread is left after it, and no seat. */
void sk_engine_stop(void);

#endif
