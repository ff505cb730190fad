/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of CUDA's runtime library that NCCL makes, on the driver's. Results and flags have the driver's numbers,
 * which are the runtime's too. Declarations of our own, as in gh_cuda.h: handles are void *, enums int or unsigned.
 */
#ifndef GH_CUDART_H
#define GH_CUDART_H

#include "ghost/driver/gh_cuda.h"

/* The sources are compiled for each soname: 12080 for libcudart.so.12. */
#ifndef GH_RT_VERSION
#define GH_RT_VERSION 13000
#endif

/* cudaDim3, as it is passed: in registers. */
struct gh_dim3 { unsigned x, y, z; };
/* cudaFuncAttributes */
struct gh_function_attributes {
  size_t shared, constant, local;
  int threads, registers, ptx, binary, cache, dynamic, carveout, cluster_set, cluster[3], cluster_policy, nonportable;
  int reserved[16];
};
/* cudaPointerAttributes; what libcudart.so.12 writes is shorter by what is reserved. */
struct gh_pointer_attributes {
  int type, device;
  void *on_device, *on_host;
};
/* cudaLaunchConfig_t */
struct gh_launch_config_rt {
  struct gh_dim3 grid, block;
  size_t shared;
  void *stream;
  const struct gh_launch_attribute *attributes;
  unsigned nattributes;
};

/* X(symbol, arguments): all return a result. */
#define GH_CUDART_CALLS(X)                                                                                            \
  X(cudaGetLastError, (void))                                                                                         \
  X(cudaPeekAtLastError, (void))                                                                                      \
  X(cudaDriverGetVersion, (int *version))                                                                             \
  X(cudaRuntimeGetVersion, (int *version))                                                                            \
  X(cudaGetDeviceCount, (int *count))                                                                                 \
  X(cudaGetDevice, (int *device))                                                                                     \
  X(cudaSetDevice, (int device))                                                                                      \
  X(cudaGetDeviceProperties, (void *properties, int device))                                                          \
  X(cudaGetDeviceProperties_v2, (void *properties, int device))                                                       \
  X(cudaDeviceGetAttribute, (int *value, int attribute, int device))                                                  \
  X(cudaDeviceGetPCIBusId, (char *text, int size, int device))                                                        \
  X(cudaDeviceGetByPCIBusId, (int *device, const char *text))                                                         \
  X(cudaDeviceCanAccessPeer, (int *can, int device, int peer))                                                        \
  X(cudaDeviceEnablePeerAccess, (int peer, unsigned flags))                                                           \
  X(cudaDeviceSetLimit, (int limit, size_t value))                                                                    \
  X(cudaDeviceSynchronize, (void))                                                                                    \
  X(cudaMalloc, (void **memory, size_t size))                                                                         \
  X(cudaFree, (void *memory))                                                                                         \
  X(cudaMallocAsync, (void **memory, size_t size, void *stream))                                                      \
  X(cudaMallocFromPoolAsync, (void **memory, size_t size, void *pool, void *stream))                                  \
  X(cudaFreeAsync, (void *memory, void *stream))                                                                      \
  X(cudaMemPoolCreate, (void **pool, const void *properties))                                                         \
  X(cudaMemPoolDestroy, (void *pool))                                                                                 \
  X(cudaMemPoolSetAttribute, (void *pool, int attribute, void *value))                                                \
  X(cudaHostAlloc, (void **memory, size_t size, unsigned flags))                                                      \
  X(cudaFreeHost, (void *memory))                                                                                     \
  X(cudaHostRegister, (void *memory, size_t size, unsigned flags))                                                    \
  X(cudaHostUnregister, (void *memory))                                                                               \
  X(cudaHostGetDevicePointer, (void **address, void *memory, unsigned flags))                                         \
  X(cudaPointerGetAttributes, (struct gh_pointer_attributes *attributes, const void *memory))                         \
  X(cudaMemcpy, (void *to, const void *from, size_t size, int kind))                                                  \
  X(cudaMemcpyAsync, (void *to, const void *from, size_t size, int kind, void *stream))                               \
  X(cudaMemset, (void *memory, int value, size_t size))                                                               \
  X(cudaMemsetAsync, (void *memory, int value, size_t size, void *stream))                                            \
  X(cudaIpcGetMemHandle, (struct gh_ipc *handle, void *memory))                                                       \
  X(cudaIpcOpenMemHandle, (void **memory, struct gh_ipc handle, unsigned flags))                                      \
  X(cudaIpcCloseMemHandle, (void *memory))                                                                            \
  X(cudaStreamCreate, (void **stream))                                                                                \
  X(cudaStreamCreateWithFlags, (void **stream, unsigned flags))                                                       \
  X(cudaStreamDestroy, (void *stream))                                                                                \
  X(cudaStreamSynchronize, (void *stream))                                                                            \
  X(cudaStreamQuery, (void *stream))                                                                                  \
  X(cudaStreamGetId, (void *stream, unsigned long long *id))                                                          \
  X(cudaStreamWaitEvent, (void *stream, void *event, unsigned flags))                                                 \
  X(cudaStreamIsCapturing, (void *stream, int *status))                                                               \
  X(cudaThreadExchangeStreamCaptureMode, (int *mode))                                                                 \
  X(cudaEventCreate, (void **event))                                                                                  \
  X(cudaEventCreateWithFlags, (void **event, unsigned flags))                                                         \
  X(cudaEventDestroy, (void *event))                                                                                  \
  X(cudaEventRecord, (void *event, void *stream))                                                                     \
  X(cudaEventQuery, (void *event))                                                                                    \
  X(cudaEventSynchronize, (void *event))                                                                              \
  X(cudaLaunchHostFunc, (void *stream, void (*call)(void *arg), void *arg))                                           \
  X(cudaUserObjectCreate, (void **object, void *arg, void (*destroy)(void *arg), unsigned count, unsigned flags))     \
  X(cudaGraphRetainUserObject, (void *graph, void *object, unsigned count, unsigned flags))                           \
  X(cudaFuncGetAttributes, (struct gh_function_attributes *attributes, const void *symbol))                           \
  X(cudaFuncSetAttribute, (const void *symbol, int attribute, int value))                                             \
  X(cudaGetFuncBySymbol, (void **function, const void *symbol))                                                       \
  X(cudaLaunchKernel,                                                                                                 \
    (const void *symbol, struct gh_dim3 grid, struct gh_dim3 block, void **arguments, size_t shared, void *stream))   \
  X(cudaLaunchKernelExC, (const struct gh_launch_config_rt *config, const void *symbol, void **arguments))            \
  X(cudaGetDriverEntryPoint, (const char *symbol, void **function, unsigned long long flags, int *status))            \
  X(cudaGetDriverEntryPointByVersion,                                                                                 \
    (const char *symbol, void **function, unsigned version, unsigned long long flags, int *status))                   \
  /* What NCCL does when a stream captures needs a graph's nodes, which the driver does not show: not supported. */   \
  X(cudaStreamGetCaptureInfo, (void *stream, int *status, unsigned long long *id, void **graph, const void **nodes,   \
                               const void **edges, size_t *n))                                                        \
  X(cudaStreamGetCaptureInfo_v2,                                                                                      \
    (void *stream, int *status, unsigned long long *id, void **graph, const void **nodes, size_t *n))                 \
  X(cudaStreamUpdateCaptureDependencies, (void))                                                                      \
  X(cudaGraphAddEventRecordNode, (void))                                                                              \
  X(cudaGraphAddDependencies, (void))                                                                                 \
  X(cudaMemcpyBatchAsync, (void))                                                                                     \
  X(cudaArrayGetInfo, (void))

#define GH_RT_API __attribute__((visibility("default")))
#define GH_RT_DECLARE_(symbol, arguments) GH_RT_API int symbol arguments;
GH_CUDART_CALLS(GH_RT_DECLARE_)

GH_RT_API const char *cudaGetErrorString(int error);
GH_RT_API const char *cudaGetErrorName(int error);

/* What the compiler puts into objects with kernels. */
GH_RT_API void **__cudaRegisterFatBinary(void *wrapper);
GH_RT_API void __cudaRegisterFatBinaryEnd(void **handle);
GH_RT_API void __cudaUnregisterFatBinary(void **handle);
GH_RT_API void __cudaRegisterFunction(void **handle, const char *symbol, char *function, const char *name, int limit,
                                      void *tid, void *bid, void *block, void *grid, int *warp);
GH_RT_API void __cudaRegisterVar(void **handle, char *variable, char *address, const char *name, int external,
                                 size_t size, int constant, int global);
GH_RT_API char __cudaInitModule(void **handle);
GH_RT_API int __cudaGetKernel(void **kernel, const void *symbol);
GH_RT_API int __cudaLaunchKernel(void *kernel, struct gh_dim3 grid, struct gh_dim3 block, void **arguments,
                                 size_t shared, void *stream);
GH_RT_API unsigned __cudaPushCallConfiguration(struct gh_dim3 grid, struct gh_dim3 block, size_t shared, void *stream);
GH_RT_API int __cudaPopCallConfiguration(struct gh_dim3 *grid, struct gh_dim3 *block, size_t *shared, void *stream);

/* ---- inside ---- */

/* Makes a device's context current, if none is: how most calls begin. */
int gh_rt_enter(void);
/* Keeps an error for cudaGetLastError; "not ready" is none. Returns it. */
int gh_rt_leave(int result);
int gh_rt_device(void);

#define GH_RT_CALL(call)              \
  do {                                \
    int r_ = gh_rt_enter();           \
    if (r_ == 0) r_ = (call);         \
    return gh_rt_leave(r_);           \
  } while (0)

enum { GH_RT_SUCCESS = 0, GH_RT_INVALID_VALUE = 1, GH_RT_INVALID_DEVICE = 101, GH_RT_NOT_READY = 600,
       GH_RT_INVALID_FUNCTION = 98, GH_RT_NOT_SUPPORTED = 801, GH_RT_MAX_DEVICES = 8 };

#endif
