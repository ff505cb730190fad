/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory registration. TCP needs none; what is kept is the promise that after dereg_mr no thread touches the range,
 * even when requests are outstanding.
 */
#include <stdlib.h>

#include "common/base/log.h"
#include "plugin/socket/sk_comm.h"

rail_result_t sk_reg_mr(void *comm_arg, void *data, size_t size, int type, void **mhandle) {
  struct sk_comm *comm = sk_comm_of(comm_arg, 0, "regMr");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (type != RAIL_PTR_HOST) {
    RAIL_WARN("RailSocket: regMr: pointer type %d; allowed: %d (host memory)", type, RAIL_PTR_HOST);
    return RAIL_BAD_ARGUMENT;
  }
  if (!data && size) {
    RAIL_WARN("RailSocket: regMr: address NULL with size %zu", size);
    return RAIL_BAD_ARGUMENT;
  }
  struct sk_mr *mr = calloc(1, sizeof *mr);
  if (!mr) {
    RAIL_WARN("RailSocket: regMr: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  rail_net_memory_init(&mr->memory, comm, data, size, type);
  pthread_mutex_lock(&comm->mrs_lock);
  LIST_INSERT_HEAD(&comm->mrs, mr, next);
  pthread_mutex_unlock(&comm->mrs_lock);
  *mhandle = mr;
  return RAIL_OK;
}

rail_result_t sk_dereg_mr(void *comm_arg, void *mhandle) {
  struct sk_mr *mr = mhandle;
  if (!mr) return RAIL_OK;
  struct sk_comm *comm = sk_comm_of(comm_arg, 0, "deregMr");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (!rail_net_memory_is_of(&mr->memory, comm)) {
    RAIL_WARN("RailSocket: deregMr: %p is not a registration of this connection", mhandle);
    return RAIL_BAD_ARGUMENT;
  }
  if (atomic_load_explicit(&mr->memory.outstanding, memory_order_acquire) && !sk_comm_is_stopped(comm)) {
    /* Normal at abort, a bug at any other time; either way the connection is over. */
    sk_comm_stop(comm);
    RAIL_INFO(RAIL_SUB_NET, "RailSocket: deregMr of %#llx+%llu with %u requests outstanding: the connection is stopped",
              (unsigned long long)mr->memory.addr, (unsigned long long)mr->memory.size,
              atomic_load(&mr->memory.outstanding));
    sk_zerocopy_end(comm->streams, comm->nstreams, comm->device_name);
    for (uint32_t i = 0; i < comm->nstreams; i++)
      if (comm->streams[i].fd >= 0) shutdown(comm->streams[i].fd, SHUT_RDWR); /* tells the peer at once */
  }
  mr->memory.magic = 0;
  /* Requests that are done and have not been tested yet refer to it: it is freed with the connection. */
  if (atomic_load_explicit(&mr->memory.outstanding, memory_order_acquire)) return RAIL_OK;
  pthread_mutex_lock(&comm->mrs_lock);
  LIST_REMOVE(mr, next);
  pthread_mutex_unlock(&comm->mrs_lock);
  free(mr);
  return RAIL_OK;
}
