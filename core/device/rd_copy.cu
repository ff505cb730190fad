/* SPDX-License-Identifier: Apache-2.0
 * reduceCopy as a kernel of its own. The runtime's library does not have it: tests and measurements do. */
#include "core/device/rd_copy.cuh"

#include "core/device/rd_reduce.cuh"

static __global__ void rd_reduce_copy_kernel(const __grid_constant__ struct rt_reduce_copy w) {
  rd_reduce_copy_block(w);
}

cudaError_t rd_launch_reduce_copy(const struct rt_reduce_copy *w, unsigned blocks, unsigned threads,
                                  cudaStream_t stream) {
  if (!rd_work_is_valid(w)) return cudaErrorInvalidValue;
  rd_reduce_copy_kernel<<<blocks, threads, 0, stream>>>(*w);
  return cudaGetLastError();
}
