/* SPDX-License-Identifier: Apache-2.0
 *
 * Events for NCCL's profiler: a Start when a request begins, a Stop when test
 * reports that it is done or has failed. One event per send and per buffer of a
 * receive; not per chunk, because chunks are made and finished by whoever moves
 * the connection, and the callback may only come from the caller's own thread
 * (chunks are counted per stream in sk_stats.h instead).
 *
 * - A buffer whose phandle is NULL has no event: NCCL's bootstrap passes NULL,
 *   and its callback would follow it.
 * - Where the callback leaves *e_handle NULL, nothing was begun, and nothing is
 *   stopped.
 * - A request that the caller gives up without a test that ends it keeps its
 *   event open: close and dereg_mr run on another thread, when what the phandles
 *   belong to may be gone. After close there is no call.
 *
 * Without a callback (v6 to v9, or none given) a connection has no struct
 * sk_profile, and what is left is one branch in isend, irecv and test.
 */
#ifndef SK_PROFILE_H
#define SK_PROFILE_H

#include "plugin/socket/sk_comm.h"

/* What NCCL tells a profiler of a socket event: its ncclProfilerNetSockDescr_v1_t. */
#define SK_PROFILE_ID ((INT64_C(2) << 16) | 1) /* network type "socket", version of the structure */
#define SK_PROFILE_SOCKET 1                    /* the one kind of event */

enum sk_profile_call { SK_PROFILE_START = 0, SK_PROFILE_STOP = 1 };

struct sk_profile_event {
  uint8_t type; /* SK_PROFILE_SOCKET */
  struct {
    int fd;        /* stream 0 as it was connected */
    int op;        /* 0 send, 1 receive */
    size_t length; /* of the message; of a receive: of the buffer */
  } sock;
};
_Static_assert(sizeof(struct sk_profile_event) == 24, "NCCL's layout");
_Static_assert(offsetof(struct sk_profile_event, sock.fd) == 8, "NCCL's layout");
_Static_assert(offsetof(struct sk_profile_event, sock.op) == 12, "NCCL's layout");
_Static_assert(offsetof(struct sk_profile_event, sock.length) == 16, "NCCL's layout");

/* Sets comm->profile if the context has a callback. RAIL_SYSTEM_ERROR: out of memory. */
rail_result_t sk_profile_init(struct sk_comm *comm, const struct sk_comm_args *args);

/* For comms with a profile; the caller's progress thread. `phandles`: one per buffer, or NULL. */
void sk_profile_start(struct sk_request *r, void *const *phandles);
/* Once, however often it is called. */
void sk_profile_stop(struct sk_request *r);

#endif
