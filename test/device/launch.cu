/* SPDX-License-Identifier: Apache-2.0 */
#include "test/device/launch.cuh"

#include "core/device/rd_reduce.cuh"

extern "C" __global__ void rd_collective(struct rt_device_launch *launch); /* core/device/rd_kernels.cu */

static __global__ void reduce_copy_kernel(const __grid_constant__ struct rt_reduce_copy w) {
  rd_reduce_copy_block(w);
}

cudaError_t launch_collective(struct rt_device_launch *launch, cudaStream_t stream) {
  rd_collective<<<(unsigned)launch->nblocks, RT_DEVICE_THREADS, 0, stream>>>(launch);
  return cudaGetLastError();
}

cudaError_t launch_reduce_copy(const struct rt_reduce_copy *w, unsigned blocks, unsigned threads,
                               cudaStream_t stream) {
  if (!rd_work_is_valid(w)) return cudaErrorInvalidValue;
  reduce_copy_kernel<<<blocks, threads, 0, stream>>>(*w);
  return cudaGetLastError();
}
