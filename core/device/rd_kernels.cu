/* SPDX-License-Identifier: Apache-2.0
 * The kernels that exist, and how host code starts one. */
#include "core/device/rd_kernels.cuh"

#include "core/device/rd_block.cuh"
#include "core/device/rd_reduce.cuh"

static __global__ void rd_reduce_copy_kernel(const __grid_constant__ struct rt_work w) {
  rd_reduce_copy_block(w);
}

cudaError_t rd_launch_reduce_copy(const struct rt_work *w, unsigned blocks, unsigned threads, cudaStream_t stream) {
  if (!rd_work_is_valid(w)) return cudaErrorInvalidValue;
  rd_reduce_copy_kernel<<<blocks, threads, 0, stream>>>(*w);
  return cudaGetLastError();
}

extern "C" __global__ void __launch_bounds__(RT_DEVICE_THREADS) rd_collective(struct rt_device_launch *launch) {
  rd_collective_block(launch);
}

cudaError_t rd_launch_collective(struct rt_device_launch *launch, cudaStream_t stream) {
  rd_collective<<<(unsigned)launch->njobs, RT_DEVICE_THREADS, 0, stream>>>(launch);
  return cudaGetLastError();
}
