/* SPDX-License-Identifier: Apache-2.0
 * Request pools. */
#include "plugin/socket/sk_request.h"

#include "common/base/log.h"

void sk_request_pool_init(struct sk_request_pool *pool, void *first, size_t size, uint32_t count,
                          struct sk_comm *comm) {
  *pool = (struct sk_request_pool){0};
  for (uint32_t i = count; i-- > 0;) {
    struct sk_request *r = (struct sk_request *)(void *)((char *)first + i * size);
    *r = (struct sk_request){.magic = SK_REQ_FREE, .comm = comm, .next_free = pool->free};
    pool->free = r;
  }
}

struct sk_request *sk_request_of(void *request, const char *call) {
  struct sk_request *r = request;
  if (rail_likely(r && r != RAIL_NET_OPTIONAL_RECV && (r->magic == SK_REQ_SEND || r->magic == SK_REQ_RECV))) return r;
  if (!r || r == RAIL_NET_OPTIONAL_RECV) RAIL_WARN("RailSocket: %s: %p is no request", call, request);
  else RAIL_WARN("RailSocket: %s: request %p is not outstanding (tested again after it was done?)", call, request);
  return NULL;
}
