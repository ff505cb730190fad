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

/* All return a result. */
GH_API int cudaGetLastError(void);
GH_API int cudaPeekAtLastError(void);
GH_API int cudaDriverGetVersion(int *version);
GH_API int cudaRuntimeGetVersion(int *version);
GH_API int cudaGetDeviceCount(int *count);
GH_API int cudaGetDevice(int *device);
GH_API int cudaSetDevice(int device);
GH_API int cudaGetDeviceProperties(void *properties, int device);
GH_API int cudaGetDeviceProperties_v2(void *properties, int device);
GH_API int cudaDeviceGetAttribute(int *value, int attribute, int device);
GH_API int cudaDeviceGetPCIBusId(char *text, int size, int device);
GH_API int cudaDeviceGetByPCIBusId(int *device, const char *text);
GH_API int cudaDeviceCanAccessPeer(int *can, int device, int peer);
GH_API int cudaDeviceEnablePeerAccess(int peer, unsigned flags);
GH_API int cudaDeviceSetLimit(int limit, size_t value);
GH_API int cudaDeviceSynchronize(void);
GH_API int cudaMalloc(void **memory, size_t size);
GH_API int cudaFree(void *memory);
GH_API int cudaMallocAsync(void **memory, size_t size, void *stream);
GH_API int cudaMallocFromPoolAsync(void **memory, size_t size, void *pool, void *stream);
GH_API int cudaFreeAsync(void *memory, void *stream);
GH_API int cudaMemPoolCreate(void **pool, const void *properties);
GH_API int cudaMemPoolDestroy(void *pool);
GH_API int cudaMemPoolSetAttribute(void *pool, int attribute, void *value);
GH_API int cudaHostAlloc(void **memory, size_t size, unsigned flags);
GH_API int cudaFreeHost(void *memory);
GH_API int cudaHostRegister(void *memory, size_t size, unsigned flags);
GH_API int cudaHostUnregister(void *memory);
GH_API int cudaHostGetDevicePointer(void **address, void *memory, unsigned flags);
GH_API int cudaPointerGetAttributes(struct gh_pointer_attributes *attributes, const void *memory);
GH_API int cudaMemcpy(void *to, const void *from, size_t size, int kind);
GH_API int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream);
GH_API int cudaMemset(void *memory, int value, size_t size);
GH_API int cudaMemsetAsync(void *memory, int value, size_t size, void *stream);
GH_API int cudaIpcGetMemHandle(struct gh_ipc *handle, void *memory);
GH_API int cudaIpcOpenMemHandle(void **memory, struct gh_ipc handle, unsigned flags);
GH_API int cudaIpcCloseMemHandle(void *memory);
GH_API int cudaStreamCreate(void **stream);
GH_API int cudaStreamCreateWithFlags(void **stream, unsigned flags);
GH_API int cudaStreamDestroy(void *stream);
GH_API int cudaStreamSynchronize(void *stream);
GH_API int cudaStreamQuery(void *stream);
GH_API int cudaStreamGetId(void *stream, unsigned long long *id);
GH_API int cudaStreamWaitEvent(void *stream, void *event, unsigned flags);
GH_API int cudaStreamIsCapturing(void *stream, int *status);
GH_API int cudaThreadExchangeStreamCaptureMode(int *mode);
GH_API int cudaEventCreate(void **event);
GH_API int cudaEventCreateWithFlags(void **event, unsigned flags);
GH_API int cudaEventDestroy(void *event);
GH_API int cudaEventRecord(void *event, void *stream);
GH_API int cudaEventQuery(void *event);
GH_API int cudaEventSynchronize(void *event);
GH_API int cudaLaunchHostFunc(void *stream, void (*call)(void *arg), void *arg);
GH_API int cudaUserObjectCreate(void **object, void *arg, void (*destroy)(void *arg), unsigned count,
                                unsigned flags);
GH_API int cudaGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags);
GH_API int cudaFuncGetAttributes(struct gh_function_attributes *attributes, const void *symbol);
GH_API int cudaFuncSetAttribute(const void *symbol, int attribute, int value);
GH_API int cudaGetFuncBySymbol(void **function, const void *symbol);
GH_API int cudaLaunchKernel(const void *symbol, struct gh_dim3 grid, struct gh_dim3 block, void **arguments,
                            size_t shared, void *stream);
GH_API int cudaLaunchKernelExC(const struct gh_launch_config_rt *config, const void *symbol, void **arguments);
GH_API int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *status);
GH_API int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                            unsigned long long flags, int *status);
GH_API int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph,
                                       const void **nodes, size_t *n);
/* Edges have no data here. CUDA 13 has the calls that take some by the names which 12 had for those that take none. */
#if GH_RT_VERSION >= 13000
#define GH_RT_EDGES(name, version) name
#else
#define GH_RT_EDGES(name, version) name##version
GH_API int cudaStreamUpdateCaptureDependencies(void *stream, void **nodes, size_t n, unsigned flags);
GH_API int cudaGraphAddDependencies(void *graph, void *const *from, void *const *to, size_t n);
#endif
GH_API int GH_RT_EDGES(cudaStreamGetCaptureInfo, _v3)(void *stream, int *status, unsigned long long *id, void **graph,
                                                      const void **nodes, const void **edges, size_t *n);
GH_API int GH_RT_EDGES(cudaStreamUpdateCaptureDependencies, _v2)(void *stream, void **nodes, const void *edges,
                                                                 size_t n, unsigned flags);
GH_API int GH_RT_EDGES(cudaGraphAddDependencies, _v2)(void *graph, void *const *from, void *const *to,
                                                      const void *edges, size_t n);
GH_API int cudaGraphAddEventRecordNode(void **node, void *graph, void *const *after, size_t n, void *event);
GH_API int cudaGraphAddEventWaitNode(void **node, void *graph, void *const *after, size_t n, void *event);
GH_API int cudaGraphAddHostNode(void **node, void *graph, void *const *after, size_t n,
                                const struct gh_host_node *host);
GH_API int cudaGraphAddKernelNode(void);
GH_API int cudaStreamBeginCapture(void *stream, int mode);
GH_API int cudaStreamEndCapture(void *stream, void **graph);
GH_API int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags);
GH_API int cudaGraphLaunch(void *exec, void *stream);
GH_API int cudaGraphExecDestroy(void *exec);
GH_API int cudaGraphDestroy(void *graph);
GH_API int cudaMemcpyBatchAsync(void);
GH_API int cudaArrayGetInfo(void);

GH_API const char *cudaGetErrorString(int error);
GH_API const char *cudaGetErrorName(int error);

/* What the compiler puts into objects with kernels. */
GH_API void **__cudaRegisterFatBinary(void *wrapper);
GH_API void __cudaRegisterFatBinaryEnd(void **handle);
GH_API void __cudaUnregisterFatBinary(void **handle);
GH_API void __cudaRegisterFunction(void **handle, const char *symbol, char *function, const char *name, int limit,
                                   void *tid, void *bid, void *block, void *grid, int *warp);
GH_API void __cudaRegisterVar(void **handle, char *variable, char *address, const char *name, int external,
                              size_t size, int constant, int global);
GH_API char __cudaInitModule(void **handle);
GH_API int __cudaGetKernel(void **kernel, const void *symbol);
GH_API int __cudaLaunchKernel(void *kernel, struct gh_dim3 grid, struct gh_dim3 block, void **arguments,
                              size_t shared, void *stream);
GH_API unsigned __cudaPushCallConfiguration(struct gh_dim3 grid, struct gh_dim3 block, size_t shared, void *stream);
GH_API int __cudaPopCallConfiguration(struct gh_dim3 *grid, struct gh_dim3 *block, size_t *shared, void *stream);

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
       GH_RT_INVALID_FUNCTION = 98, GH_RT_NOT_SUPPORTED = 801 };

#endif
