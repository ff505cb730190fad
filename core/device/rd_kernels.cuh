/* SPDX-License-Identifier: Apache-2.0
 * Starting a kernel on a GPU, from host code that sees only this. */
#ifndef RD_KERNELS_CUH
#define RD_KERNELS_CUH

#include <cuda_runtime_api.h>

#include "core/kernel/rt_device.h"
#include "core/kernel/rt_work.h"

/* A reduceCopy on the stream: `blocks` channels, each with its part of the elements. The work is copied; its
 * pointers are to memory that the device can reach. */
cudaError_t rd_launch_reduce_copy(const struct rt_work *w, unsigned blocks, unsigned threads, cudaStream_t stream);

/* All jobs of the launch, a block each, on the stream. */
cudaError_t rd_launch_collective(struct rt_device_launch *launch, cudaStream_t stream);

#endif
