/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a call's buffers are device or host memory. A communicator works on one kind, which its first call with
 * buffers decides; a call with the other kind is refused. Device memory is a device's own or managed memory. Host
 * memory that is registered with CUDA can be used as both; alone in the first call it counts as the device's, as a
 * caller of NCCL expects, if there is a kernel. Without a driver in the process all memory is the host's, and no call
 * is made to find that out.
 */
#ifndef RT_BUFFER_H
#define RT_BUFFER_H

#include "core/comm/rt_comm.h"

/* Checks one call; `send` and `recv` are NULL where the call has none. The first call decides the communicator's
 * `memory`, and with device memory its device and context. A refusal is logged with the call's name. */
ncclResult_t rt_buffer_check(struct ncclComm *comm, const char *call, const void *send, const void *recv, void *stream);

/* May the memory be, or come to be, the device's to this communicator? */
ncclResult_t rt_buffer_is_device(const struct ncclComm *comm, const void *p, bool *is_device);

/* Can the communicator's kernels read the factor of an operator when they run? */
ncclResult_t rt_buffer_check_scalar(const struct ncclComm *comm, const char *call, const void *scalar);

#endif
