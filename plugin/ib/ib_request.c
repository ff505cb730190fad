/* SPDX-License-Identifier: Apache-2.0
 * Request pools, own memory, and buffers that are refused. */
#include "plugin/ib/ib_request.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/ib/ib_param.h"

void ib_limit_inline(struct ib_comm *comm) {
  for (unsigned int i = 0; i < comm->plan.nqps && !ib_params.use_inline; i++) comm->qps[i].max_inline = 0;
}

struct ib_own *ib_own_alloc(size_t *size) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  void *own = NULL;
  *size = RAIL_ROUND_UP(sizeof(struct ib_own), page);
  if (posix_memalign(&own, page, *size) != 0) return NULL;
  memset(own, 0, *size);
  return own;
}

struct ib_request *ib_request_pool_init(void *first, size_t size, uint32_t count, struct ib_comm *comm) {
  struct ib_request *free_list = NULL;
  for (uint32_t i = count; i-- > 0;) {
    struct ib_request *r = (struct ib_request *)(void *)((char *)first + i * size);
    *r = (struct ib_request){.magic = IB_REQ_FREE, .comm = comm, .next_free = free_list};
    free_list = r;
  }
  return free_list;
}

static bool is_outstanding(const struct ib_request *r) {
  return r->magic == IB_REQ_SEND || r->magic == IB_REQ_RECV || r->magic == IB_REQ_FLUSH;
}

struct ib_request *ib_request_of(void *request, const char *call) {
  struct ib_request *r = request;
  if (rail_likely(r && r != RAIL_NET_OPTIONAL_RECV && is_outstanding(r))) return r;
  if (!r || r == RAIL_NET_OPTIONAL_RECV) RAIL_WARN("RailIB: %s: %p is no request", call, request);
  else RAIL_WARN("RailIB: %s: request %p is not outstanding (tested again after it was done?)", call, request);
  return NULL;
}

RAIL_COLD rail_result_t ib_mr_refuse(const struct ib_comm *comm, const char *call, const struct ib_mhandle *mr,
                                     const void *data, uint64_t size) {
  if (size > RAIL_NET_MAX_BYTES)
    RAIL_WARN("RailIB: %s: size %llu; allowed: up to %llu", call, (unsigned long long)size,
              (unsigned long long)RAIL_NET_MAX_BYTES);
  else if (!data) RAIL_WARN("RailIB: %s: data is NULL with size %llu; allowed: NULL only with size 0", call,
                            (unsigned long long)size);
  else if (!mr) RAIL_WARN("RailIB: %s: mhandle is NULL with size %llu; allowed: NULL only with size 0, else what "
                          "regMr gave for these bytes", call, (unsigned long long)size);
  else if (mr->magic != IB_MHANDLE_MAGIC || mr->comm != comm)
    RAIL_WARN("RailIB: %s: mhandle %p is no registration of this connection", call, (const void *)mr);
  else RAIL_WARN("RailIB: %s: %p+%llu is not inside its registration, %#llx+%llu", call, data,
                 (unsigned long long)size, (unsigned long long)mr->addr, (unsigned long long)mr->size);
  return RAIL_BAD_ARGUMENT;
}
