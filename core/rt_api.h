/* SPDX-License-Identifier: Apache-2.0
 * What the files with public functions share. */
#ifndef RT_API_H
#define RT_API_H

#include "core/rt_comm.h"
#include "core/rt_error.h"

/* pncclX: the profiling name of every function. */
#define RT_PNAME(name) \
  extern __typeof__(nccl##name) pnccl##name __attribute__((alias("nccl" #name), visibility("default")))

/* ncclInvalidArgument, logged with the caller's name, unless comm is one of ours; the failure of a failed one. */
ncclResult_t rt_check_comm(const struct ncclComm *comm, const char *call);
/* The same, but a failed communicator is fine: for queries and taking down. */
ncclResult_t rt_check_handle(const struct ncclComm *comm, const char *call);

#endif
