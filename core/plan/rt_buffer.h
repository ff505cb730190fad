/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose memory a call's buffers are. A call runs on the device when one of its
 * buffers is the device's own or managed memory, or when all are host memory that is
 * registered with CUDA (as a caller of NCCL expects) and there is a kernel; then each buffer must be one of the three.
 * Any other call runs on the host. Without a driver in the process all memory is the host's,
 * and finding that out costs no call.
 */
#ifndef RT_BUFFER_H
#define RT_BUFFER_H

#include "core/comm/rt_comm.h"

/* Decides for one call; `send` and `recv` are NULL where the call has none. The first call on the device decides for
 * its communicator which device, and which of its contexts, that is. A refusal is logged with the call's name. */
ncclResult_t rt_buffer_locate(struct ncclComm *comm, const char *call, const void *send, const void *recv, void *stream,
                              bool *on_device);

/* Can whoever runs the call read the factor of an operator when it runs? */
ncclResult_t rt_buffer_locate_scalar(const char *call, const void *scalar, bool on_device);

#endif
