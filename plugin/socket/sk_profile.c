/* SPDX-License-Identifier: Apache-2.0
 *
 * Events for NCCL's profiler (common/obs/profile.h). None per chunk: chunks are made and finished by whichever thread
 * moves the connection, and are counted per stream instead (sk_stats.h). After close there is no call.
 */
#include <stdlib.h>
#include <string.h>

#include "common/net/net_ctx.h"
#include "common/obs/profile.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"

/* NCCL's description of a socket event to a profiler: its ncclProfilerNetSockDescr_v1_t. */
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

/* So many sends has a sender, and so many buffers a receiver. */
#define EVENTS (RAIL_NET_MAX_REQUESTS * SK_MAX_GROUP)

struct sk_profile {
  rail_profiler_fn call;
  int fd;
  void *events[EVENTS]; /* the profiler's, by request and buffer; NULL: none is open */
};

rail_result_t sk_profile_init(struct sk_comm *comm, const struct sk_comm_args *args) {
  if (!args->ctx || !args->ctx->profiler) return RAIL_OK;
  comm->profile = calloc(1, sizeof *comm->profile);
  if (!comm->profile) return RAIL_SYSTEM_ERROR;
  comm->profile->call = args->ctx->profiler;
  comm->profile->fd = args->fds[0];
  return RAIL_OK;
}

static void **events_of(const struct sk_request *r, uint32_t *n) {
  void **events = r->comm->profile->events;
  *n = 1;
  if (r->magic == SK_REQ_SEND) {
    const struct sk_send_comm *sc = rail_container_of(r->comm, const struct sk_send_comm, base);
    return events + (rail_container_of(r, const struct sk_send, base) - sc->sends);
  }
  const struct sk_recv_comm *rc = rail_container_of(r->comm, const struct sk_recv_comm, base);
  const struct sk_recv *recv = rail_container_of(r, const struct sk_recv, base);
  *n = recv->n;
  return events + (recv - rc->recvs) * SK_MAX_GROUP;
}

static void describe(const void *request, uint32_t i, void *out) {
  const struct sk_request *r = request;
  bool sends = r->magic == SK_REQ_SEND;
  const struct sk_profile_event event = {
      .type = SK_PROFILE_SOCKET,
      .sock = {.fd = r->comm->profile->fd,
               .op = sends ? 0 : 1,
               .length = sends ? rail_container_of(r, const struct sk_send, base)->size
                               : rail_container_of(r, const struct sk_recv, base)->buffers[i].capacity},
  };
  memcpy(out, &event, sizeof event);
}

static const struct rail_profile_kind kind = {.id = SK_PROFILE_ID, .describe = describe};

void sk_profile_start(struct sk_request *r, void *const *phandles) {
  uint32_t n;
  void **events = events_of(r, &n);
  rail_profile_start(&kind, r->comm->profile->call, events, n, phandles, r);
}

void sk_profile_stop(struct sk_request *r) {
  uint32_t n;
  void **events = events_of(r, &n);
  rail_profile_stop(&kind, r->comm->profile->call, events, n);
}
