/* SPDX-License-Identifier: Apache-2.0
 * Starting kernels on a GPU, from host code that sees only this. The runtime itself starts them through the driver. */
#ifndef DEVICE_LAUNCH_CUH
#define DEVICE_LAUNCH_CUH

#include <cuda_runtime_api.h>

#include "core/host/rt_device.h"
#include "core/host/rt_reduce_copy.h"

/* All jobs of the launch, on the stream. */
cudaError_t launch_collective(struct rt_device_launch *launch, cudaStream_t stream);
/* A reduceCopy alone: `blocks` channels, each with its part of the elements. The work is copied; its
 * pointers are to memory that the device can reach. */
cudaError_t launch_reduce_copy(const struct rt_reduce_copy *w, unsigned blocks, unsigned threads, cudaStream_t stream);

#endif
