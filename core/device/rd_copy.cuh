/* SPDX-License-Identifier: Apache-2.0
 * Starting a reduceCopy on a GPU, from host code that sees only this. */
#ifndef RD_COPY_CUH
#define RD_COPY_CUH

#include <cuda_runtime_api.h>

#include "core/host/rt_reduce_copy.h"

/* On the stream: `blocks` channels, each with its part of the elements. The work is copied; its
 * pointers are to memory that the device can reach. */
cudaError_t rd_launch_reduce_copy(const struct rt_reduce_copy *w, unsigned blocks, unsigned threads,
                                  cudaStream_t stream);

#endif
