/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls of the CUDA driver that a program with device buffers makes, declared as rt_cuda.h declares those of the
 * runtime. X(symbol, arguments). Ghost's driver defines all of them and those of RT_CUDA_CALLS.
 */
#ifndef FAKEGPU_DRIVER_H
#define FAKEGPU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "core/gpu/rt_cuda.h"

#define GPU_CALLS(X)                                                                        \
  X(cuInit, (unsigned flags))                                                               \
  X(cuDeviceGet, (int *device, int ordinal))                                                \
  X(cuDeviceGetName, (char *text, int size, int device))                                    \
  X(cuDevicePrimaryCtxRetain, (void **context, int device))                                 \
  X(cuDevicePrimaryCtxRelease_v2, (int device))                                             \
  X(cuCtxSetCurrent, (void *context))                                                       \
  X(cuMemAllocManaged, (uint64_t *address, size_t size, unsigned flags))                    \
  X(cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t size))                          \
  X(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t size))                                \
  X(cuStreamSynchronize, (void *stream))                                                    \
  X(cuStreamBeginCapture_v2, (void *stream, int mode))                                      \
  X(cuStreamEndCapture, (void *stream, void **graph))                                       \
  X(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags))      \
  X(cuGraphLaunch, (void *exec, void *stream))                                              \
  X(cuGraphExecDestroy, (void *exec))                                                       \
  X(cuGraphDestroy, (void *graph))

#endif
