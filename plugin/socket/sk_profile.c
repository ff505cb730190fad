/* SPDX-License-Identifier: Apache-2.0
 * Events for NCCL's profiler. */
#include "plugin/socket/sk_profile.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/socket/sk_calls.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"

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
                             : rail_container_of(r, const struct sk_recv, base)->slots[i].capacity},
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
