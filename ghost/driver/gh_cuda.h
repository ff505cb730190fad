/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of cuda.h that the emulated driver has, with declarations of our own: no toolkit is needed to build. What
 * cuda.h calls CUcontext, CUstream, CUevent, CUmodule, CUfunction, CUgraph is void *, CUdeviceptr is uint64_t, enums
 * are int or unsigned.
 */
#ifndef GH_CUDA_H
#define GH_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  GH_MULTIPROCESSORS = 16, /* attributes of a device */
  GH_COMPUTE_MAJOR = 75,
  GH_COMPUTE_MINOR = 76,
  GH_SHARED_MEMORY_OPTIN = 97,
  GH_DEVICE_VIRTUAL_MEMORY = 102,
  GH_DEVICE_FD_HANDLES = 103,
  GH_DEVICE_RDMA_OF_VIRTUAL_MEMORY = 110,
  GH_DEVICE_DMA_BUF = 124,
  GH_DEVICE_FABRIC_HANDLES = 128,
  GH_HOST_NUMA_ID = 134,

  GH_ON_DEVICE = 1, /* types of locations */
  GH_ON_HOST = 2,
  GH_ON_HOST_NUMA = 3,

  GH_FD_HANDLE = 1, /* what memory can be exported as: bits */
  GH_FABRIC_HANDLE = 8,
};

/* CUipcMemHandle, CUmemFabricHandle, CUmemLocation, CUmemAllocationProp, CUmemAccessDesc, CUuuid. */
struct gh_ipc { unsigned char bytes[64]; };
struct gh_fabric { unsigned char bytes[64]; };
struct gh_location { int type, id; };
struct gh_allocation {
  int type, handles;
  struct gh_location location;
  void *of_windows;
  unsigned char compression, rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
struct gh_access {
  struct gh_location location;
  int access;
};
struct gh_uuid { unsigned char bytes[16]; };

/* CUlaunchConfig and its attributes. */
struct gh_launch_attribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    struct { void *event; int flags; } completion;
  } value;
};
struct gh_launch_config {
  unsigned grid[3], block[3], shared;
  void *stream;
  const struct gh_launch_attribute *attributes;
  unsigned nattributes;
};
enum { GH_LAUNCH_COMPLETION_EVENT = 12 };

/* CU_LAUNCH_PARAM_*: keys in the list `extra` of a launch. */
#define GH_PARAM_END ((void *)0)
#define GH_PARAM_BUFFER ((void *)1)
#define GH_PARAM_SIZE ((void *)2)

/* X(symbol, arguments): all return a result. */
#define GH_CALLS(X)                                                                                                   \
  X(cuInit, (unsigned flags))                                                                                         \
  X(cuGetErrorName, (int error, const char **text))                                                                   \
  X(cuGetErrorString, (int error, const char **text))                                                                 \
  X(cuDriverGetVersion, (int *version))                                                                               \
  X(cuDeviceGetCount, (int *count))                                                                                   \
  X(cuDeviceGet, (int *device, int ordinal))                                                                          \
  X(cuDeviceGetName, (char *text, int size, int device))                                                              \
  X(cuDeviceGetUuid, (struct gh_uuid *uuid, int device))                                                              \
  X(cuDeviceGetUuid_v2, (struct gh_uuid *uuid, int device))                                                           \
  X(cuDeviceTotalMem_v2, (size_t *bytes, int device))                                                                 \
  X(cuDeviceGetAttribute, (int *value, int attribute, int device))                                                    \
  X(cuDeviceGetPCIBusId, (char *text, int size, int device))                                                          \
  X(cuDeviceGetByPCIBusId, (int *device, const char *text))                                                           \
  X(cuDeviceCanAccessPeer, (int *can, int device, int peer))                                                          \
  X(cuDeviceGetP2PAttribute, (int *value, int attribute, int device, int peer))                                       \
  X(cuDevicePrimaryCtxRetain, (void **context, int device))                                                           \
  X(cuDevicePrimaryCtxRelease_v2, (int device))                                                                       \
  X(cuCtxGetCurrent, (void **context))                                                                                \
  X(cuCtxSetCurrent, (void *context))                                                                                 \
  X(cuCtxPushCurrent_v2, (void *context))                                                                             \
  X(cuCtxPopCurrent_v2, (void **context))                                                                             \
  X(cuCtxGetDevice, (int *device))                                                                                    \
  X(cuCtxSynchronize, (void))                                                                                         \
  X(cuCtxEnablePeerAccess, (void *peer, unsigned flags))                                                              \
  X(cuMemAlloc_v2, (uint64_t *address, size_t size))                                                                  \
  X(cuMemAllocManaged, (uint64_t *address, size_t size, unsigned flags))                                              \
  X(cuMemFree_v2, (uint64_t address))                                                                                 \
  X(cuMemHostAlloc, (void **memory, size_t size, unsigned flags))                                                     \
  X(cuMemFreeHost, (void *memory))                                                                                    \
  X(cuMemHostRegister_v2, (void *memory, size_t size, unsigned flags))                                                \
  X(cuMemHostUnregister, (void *memory))                                                                              \
  X(cuMemHostGetDevicePointer_v2, (uint64_t *address, void *memory, unsigned flags))                                  \
  X(cuMemGetAddressRange_v2, (uint64_t *base, size_t *size, uint64_t address))                                        \
  X(cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t size))                                                    \
  X(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t size))                                                          \
  X(cuMemcpy, (uint64_t to, uint64_t from, size_t size))                                                              \
  X(cuMemcpyAsync, (uint64_t to, uint64_t from, size_t size, void *stream))                                           \
  X(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t size, void *stream))                                       \
  X(cuMemsetD8_v2, (uint64_t address, unsigned char value, size_t size))                                              \
  X(cuMemsetD8Async, (uint64_t address, unsigned char value, size_t size, void *stream))                              \
  X(cuPointerGetAttribute, (void *value, int attribute, uint64_t pointer))                                            \
  X(cuPointerGetAttributes, (unsigned n, int *attributes, void **values, uint64_t pointer))                           \
  X(cuMemGetHandleForAddressRange,                                                                                    \
    (void *handle, uint64_t address, size_t size, int type, unsigned long long flags))                                \
  X(cuIpcGetMemHandle, (struct gh_ipc *handle, uint64_t address))                                                     \
  X(cuIpcOpenMemHandle_v2, (uint64_t *address, struct gh_ipc handle, unsigned flags))                                 \
  X(cuIpcCloseMemHandle, (uint64_t address))                                                                          \
  X(cuMemGetAllocationGranularity, (size_t *granularity, const struct gh_allocation *how, int option))                \
  X(cuMemGetAllocationPropertiesFromHandle, (struct gh_allocation *how, uint64_t handle))                             \
  X(cuMemCreate, (uint64_t *handle, size_t size, const struct gh_allocation *how, unsigned long long flags))          \
  X(cuMemRelease, (uint64_t handle))                                                                                  \
  X(cuMemRetainAllocationHandle, (uint64_t *handle, void *address))                                                   \
  X(cuMemAddressReserve,                                                                                              \
    (uint64_t *address, size_t size, size_t alignment, uint64_t hint, unsigned long long flags))                      \
  X(cuMemAddressFree, (uint64_t address, size_t size))                                                                \
  X(cuMemMap, (uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags))              \
  X(cuMemUnmap, (uint64_t address, size_t size))                                                                      \
  X(cuMemSetAccess, (uint64_t address, size_t size, const struct gh_access *access, size_t n))                        \
  X(cuMemExportToShareableHandle, (void *out, uint64_t handle, int type, unsigned long long flags))                   \
  X(cuMemImportFromShareableHandle, (uint64_t *handle, void *shared, int type))                                       \
  X(cuStreamCreate, (void **stream, unsigned flags))                                                                  \
  X(cuStreamDestroy_v2, (void *stream))                                                                               \
  X(cuStreamSynchronize, (void *stream))                                                                              \
  X(cuStreamQuery, (void *stream))                                                                                    \
  X(cuStreamGetCtx, (void *stream, void **context))                                                                   \
  X(cuStreamWaitEvent, (void *stream, void *event, unsigned flags))                                                   \
  X(cuStreamBeginCapture_v2, (void *stream, int mode))                                                                \
  X(cuStreamEndCapture, (void *stream, void **graph))                                                                 \
  X(cuStreamGetCaptureInfo_v2,                                                                                        \
    (void *stream, int *status, uint64_t *id, void **graph, const void **dependencies, size_t *n))                    \
  X(cuThreadExchangeStreamCaptureMode, (int *mode))                                                                   \
  X(cuEventCreate, (void **event, unsigned flags))                                                                    \
  X(cuEventDestroy_v2, (void *event))                                                                                 \
  X(cuEventRecord, (void *event, void *stream))                                                                       \
  X(cuEventQuery, (void *event))                                                                                      \
  X(cuEventSynchronize, (void *event))                                                                                \
  X(cuUserObjectCreate, (void **object, void *arg, void (*destroy)(void *arg), unsigned count, unsigned flags))       \
  X(cuUserObjectRelease, (void *object, unsigned count))                                                              \
  X(cuGraphRetainUserObject, (void *graph, void *object, unsigned count, unsigned flags))                             \
  X(cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags))                                \
  X(cuGraphLaunch, (void *exec, void *stream))                                                                        \
  X(cuGraphExecDestroy, (void *exec))                                                                                 \
  X(cuGraphDestroy, (void *graph))                                                                                    \
  X(cuModuleLoad, (void **module, const char *file))                                                                  \
  X(cuModuleLoadData, (void **module, const void *image))                                                             \
  X(cuModuleUnload, (void *module))                                                                                   \
  X(cuModuleGetFunction, (void **function, void *module, const char *name))                                           \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, void *function, int threads, size_t shared))           \
  X(cuLaunchKernel,                                                                                                   \
    (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,           \
     unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra))                                \
  X(cuLaunchKernelEx, (const struct gh_launch_config *config, void *function, void **arguments, void **extra))        \
  X(cuLaunchHostFunc, (void *stream, void (*call)(void *arg), void *arg))

#define GH_DECLARE_(symbol, arguments) __attribute__((visibility("default"))) int symbol arguments;
GH_CALLS(GH_DECLARE_)

#endif
