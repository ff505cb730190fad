/* SPDX-License-Identifier: Apache-2.0
 * What the files with public functions share. */
#ifndef RT_API_H
#define RT_API_H

#include "core/comm/rt_comm.h"
#include "core/comm/rt_error.h"

/* pncclX: the profiling name of every function. */
#define RT_PNAME(name) \
  extern __typeof__(nccl##name) pnccl##name __attribute__((alias("nccl" #name), visibility("default")))

/* A communicator of ours that can take a call: not failed, not finalized, not still being made. */
ncclResult_t rt_check_usable(const struct ncclComm *comm, const char *call);
/* A communicator of ours in whatever state: for queries and taking down. */
ncclResult_t rt_check_ours(const struct ncclComm *comm, const char *call);

/* The same for any pointer. ncclInvalidArgument, logged with the call's name, for NULL. */
static inline ncclResult_t rt_check_comm(const struct ncclComm *comm, const char *call) {
  if (comm) return rt_check_usable(comm, call);
  rt_error(RAIL_BAD_ARGUMENT, "%s: comm is NULL", call);
  return ncclInvalidArgument;
}

static inline ncclResult_t rt_check_handle(const struct ncclComm *comm, const char *call) {
  if (comm) return rt_check_ours(comm, call);
  rt_error(RAIL_BAD_ARGUMENT, "%s: comm is NULL", call);
  return ncclInvalidArgument;
}

/* The caller's configuration, checked, or NCCL's defaults for NULL. */
ncclResult_t rt_config_take(const ncclConfig_t *config, ncclConfig_t *out);
/* Makes a communicator of any kind: now, at the group's end, or in a thread if the configuration does not block. */
ncclResult_t rt_make_comm(const struct rt_init_args *args, ncclComm_t *out);

#endif
