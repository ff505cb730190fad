/* SPDX-License-Identifier: Apache-2.0
 * Starting the kernel on a GPU, from host code that sees only this. */
#ifndef RD_KERNELS_CUH
#define RD_KERNELS_CUH

#include <cuda_runtime_api.h>

#include "core/host/rt_device.h"

/* All jobs of the launch, a block each, on the stream. */
cudaError_t rd_launch_collective(struct rt_device_launch *launch, cudaStream_t stream);

#endif
