/* SPDX-License-Identifier: Apache-2.0
 * The kernel of collectives, and how host code starts one. */
#include "core/device/rd_kernels.cuh"

#include "core/device/rd_block.cuh"

extern "C" __global__ void __launch_bounds__(RT_DEVICE_THREADS) rd_collective(struct rt_device_launch *launch) {
  rd_collective_block(launch);
}

cudaError_t rd_launch_collective(struct rt_device_launch *launch, cudaStream_t stream) {
  rd_collective<<<(unsigned)launch->nblocks, RT_DEVICE_THREADS, 0, stream>>>(launch);
  return cudaGetLastError();
}
