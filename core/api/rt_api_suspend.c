/* SPDX-License-Identifier: Apache-2.0
 * Public calls about a communicator's memory: what it has, giving it back and making it again. */
#include "core/api/rt_api.h"
#include "core/gpu/rt_device_plan.h"

RAIL_EXPORT ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
  ncclResult_t r = rt_check_comm(comm, "ncclCommSuspend");
  if (r != ncclSuccess) return r;
  if (flags != NCCL_SUSPEND_MEM)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclCommSuspend: flags is %#x; allowed is NCCL_SUSPEND_MEM (%#x)",
                    (unsigned)flags, NCCL_SUSPEND_MEM);
  r = rt_group_check_unused(comm, "ncclCommSuspend");
  if (r != ncclSuccess) return r;
  atomic_fetch_add(&comm->users, 1);
  rt_queue_wait(&comm->queue);
  if (rt_comm_failed(comm)) {
    rt_error_keep(comm->error);
    r = (ncclResult_t)atomic_load(&comm->failed);
  } else if (rt_device_plan_graphs_alive(comm)) {
    r = rt_error(RAIL_BAD_USAGE, "ncclCommSuspend: a captured graph has calls of this communicator; destroy it first");
  } else if (!rt_comm_drop_connections(comm)) {
    r = rt_error(RAIL_BAD_USAGE, "ncclCommSuspend: kernels of other communicators of this process go on running, and "
                                 "memory cannot be freed meanwhile; wait for them first");
  } else {
    atomic_store(&comm->state, RT_COMM_SUSPENDED);
  }
  atomic_fetch_sub(&comm->users, 1);
  return r;
}

RAIL_EXPORT ncclResult_t ncclCommResume(ncclComm_t comm) {
  ncclResult_t r = rt_check_handle(comm, "ncclCommResume");
  if (r != ncclSuccess) return r;
  enum rt_comm_state suspended = RT_COMM_SUSPENDED;
  atomic_fetch_add(&comm->users, 1);
  if (atomic_compare_exchange_strong(&comm->state, &suspended, RT_COMM_OPEN))
    r = rt_check_comm(comm, "ncclCommResume"); /* it may have failed meanwhile */
  else
    r = rt_error(RAIL_BAD_USAGE, "ncclCommResume: the communicator is not suspended");
  atomic_fetch_sub(&comm->users, 1);
  return r;
}

RAIL_EXPORT ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value) {
  ncclResult_t r = rt_check_made(comm, "ncclCommMemStats");
  if (r != ncclSuccess) return r;
  if (!value) return rt_error(RAIL_BAD_ARGUMENT, "ncclCommMemStats: value is NULL");
  const struct rt_comm_memory m = rt_comm_count_memory(comm);
  switch ((int)stat) {
    case ncclStatGpuMemSuspend: *value = m.connections; return ncclSuccess;
    case ncclStatGpuMemSuspended: *value = atomic_load(&comm->state) == RT_COMM_SUSPENDED; return ncclSuccess;
    case ncclStatGpuMemPersist: *value = m.rest; return ncclSuccess;
    case ncclStatGpuMemTotal: *value = m.connections + m.rest; return ncclSuccess;
    default:
      return rt_error(RAIL_BAD_ARGUMENT, "ncclCommMemStats: stat is %d; allowed are 0 to %d", (int)stat,
                      ncclStatGpuMemTotal);
  }
}

RT_PNAME(CommSuspend);
RT_PNAME(CommResume);
RT_PNAME(CommMemStats);
