/* SPDX-License-Identifier: Apache-2.0
 * The socket plugin's events for NCCL's profiler (common/obs/profile.h). None per chunk: chunks are made and finished by
 * whoever moves the connection, and are counted per stream in sk_stats.h instead. Without a callback a connection has
 * no struct sk_profile. After close there is no call. */
#ifndef SK_PROFILE_H
#define SK_PROFILE_H

#include "common/obs/profile.h"
#include "plugin/socket/sk_comm.h"

/* What NCCL tells a profiler of a socket event: its ncclProfilerNetSockDescr_v1_t. */
#define SK_PROFILE_ID ((INT64_C(2) << 16) | 1) /* network type "socket", version of the structure */
#define SK_PROFILE_SOCKET 1                    /* the one kind of event */

struct sk_profile_event {
  uint8_t type; /* SK_PROFILE_SOCKET */
  struct {
    int fd;        /* stream 0 as it was connected */
    int op;        /* 0 send, 1 receive */
    size_t length; /* of the message; of a receive: of the buffer */
  } sock;
};
_Static_assert(sizeof(struct sk_profile_event) == 24 && sizeof(struct sk_profile_event) <= RAIL_PROFILE_EVENT_MAX,
               "NCCL's layout");
_Static_assert(offsetof(struct sk_profile_event, sock.fd) == 8, "NCCL's layout");
_Static_assert(offsetof(struct sk_profile_event, sock.op) == 12, "NCCL's layout");
_Static_assert(offsetof(struct sk_profile_event, sock.length) == 16, "NCCL's layout");

/* Sets comm->profile if the context has a callback. RAIL_SYSTEM_ERROR: out of memory. */
rail_result_t sk_profile_init(struct sk_comm *comm, const struct sk_comm_args *args);

/* For comms with a profile; the caller's progress thread. `phandles`: one per buffer, or NULL. */
void sk_profile_start(struct sk_request *r, void *const *phandles);
void sk_profile_stop(struct sk_request *r);

#endif
