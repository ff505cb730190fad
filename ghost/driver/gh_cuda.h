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

enum { GH_MAX_DEVICES = 8 };

enum {
  GH_WARP_SIZE = 10, /* attributes of a device */
  GH_MULTIPROCESSORS = 16,
  GH_COMPUTE_MAJOR = 75,
  GH_COMPUTE_MINOR = 76,
  GH_REGISTERED_HOST_POINTER = 91,
  GH_SHARED_MEMORY_OPTIN = 97,
  GH_DEVICE_VIRTUAL_MEMORY = 102,
  GH_DEVICE_FD_HANDLES = 103,
  GH_DEVICE_RDMA_OF_VIRTUAL_MEMORY = 110,
  GH_DEVICE_GPU_DIRECT_RDMA = 116,
  GH_DEVICE_RDMA_FLUSH_OPTIONS = 117,
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
/* CUDA_HOST_NODE_PARAMS */
struct gh_host_node {
  void (*call)(void *arg);
  void *argument;
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

#define GH_API __attribute__((visibility("default")))

/* All return a result. */
GH_API int cuInit(unsigned flags);
GH_API int cuGetErrorName(int error, const char **text);
GH_API int cuGetErrorString(int error, const char **text);
GH_API int cuDriverGetVersion(int *version);
GH_API int cuDeviceGetCount(int *count);
GH_API int cuDeviceGet(int *device, int ordinal);
GH_API int cuDeviceGetName(char *text, int size, int device);
GH_API int cuDeviceGetUuid(struct gh_uuid *uuid, int device);
GH_API int cuDeviceGetUuid_v2(struct gh_uuid *uuid, int device);
GH_API int cuDeviceTotalMem_v2(size_t *bytes, int device);
GH_API int cuDeviceGetAttribute(int *value, int attribute, int device);
GH_API int cuDeviceGetPCIBusId(char *text, int size, int device);
GH_API int cuDeviceGetByPCIBusId(int *device, const char *text);
GH_API int cuDeviceCanAccessPeer(int *can, int device, int peer);
GH_API int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer);
GH_API int cuDevicePrimaryCtxRetain(void **context, int device);
GH_API int cuDevicePrimaryCtxRelease_v2(int device);
GH_API int cuCtxGetCurrent(void **context);
GH_API int cuCtxSetCurrent(void *context);
GH_API int cuCtxPushCurrent_v2(void *context);
GH_API int cuCtxPopCurrent_v2(void **context);
GH_API int cuCtxGetDevice(int *device);
GH_API int cuCtxSynchronize(void);
GH_API int cuCtxEnablePeerAccess(void *peer, unsigned flags);
GH_API int cuMemAlloc_v2(uint64_t *address, size_t size);
GH_API int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags);
GH_API int cuMemFree_v2(uint64_t address);
GH_API int cuMemHostAlloc(void **memory, size_t size, unsigned flags);
GH_API int cuMemFreeHost(void *memory);
GH_API int cuMemHostRegister_v2(void *memory, size_t size, unsigned flags);
GH_API int cuMemHostUnregister(void *memory);
GH_API int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned flags);
GH_API int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address);
GH_API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size);
GH_API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size);
GH_API int cuMemcpy(uint64_t to, uint64_t from, size_t size);
GH_API int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream);
GH_API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream);
GH_API int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t size);
GH_API int cuMemsetD8Async(uint64_t address, unsigned char value, size_t size, void *stream);
GH_API int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer);
GH_API int cuPointerGetAttributes(unsigned n, int *attributes, void **values, uint64_t pointer);
GH_API int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t size, int type,
                                         unsigned long long flags);
GH_API int cuFlushGPUDirectRDMAWrites(int target, int scope);
GH_API int cuIpcGetMemHandle(struct gh_ipc *handle, uint64_t address);
GH_API int cuIpcOpenMemHandle_v2(uint64_t *address, struct gh_ipc handle, unsigned flags);
GH_API int cuIpcCloseMemHandle(uint64_t address);
GH_API int cuMemGetAllocationGranularity(size_t *granularity, const struct gh_allocation *how, int option);
GH_API int cuMemGetAllocationPropertiesFromHandle(struct gh_allocation *how, uint64_t handle);
GH_API int cuMemCreate(uint64_t *handle, size_t size, const struct gh_allocation *how, unsigned long long flags);
GH_API int cuMemRelease(uint64_t handle);
GH_API int cuMemRetainAllocationHandle(uint64_t *handle, void *address);
GH_API int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t hint,
                               unsigned long long flags);
GH_API int cuMemAddressFree(uint64_t address, size_t size);
GH_API int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags);
GH_API int cuMemUnmap(uint64_t address, size_t size);
GH_API int cuMemSetAccess(uint64_t address, size_t size, const struct gh_access *access, size_t n);
GH_API int cuMemExportToShareableHandle(void *out, uint64_t handle, int type, unsigned long long flags);
GH_API int cuMemImportFromShareableHandle(uint64_t *handle, void *shared, int type);
GH_API int cuStreamCreate(void **stream, unsigned flags);
GH_API int cuStreamDestroy_v2(void *stream);
GH_API int cuStreamSynchronize(void *stream);
GH_API int cuStreamQuery(void *stream);
GH_API int cuStreamGetCtx(void *stream, void **context);
GH_API int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
GH_API int cuStreamBeginCapture_v2(void *stream, int mode);
GH_API int cuStreamEndCapture(void *stream, void **graph);
GH_API int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph,
                                     const void **dependencies, size_t *n);
GH_API int cuStreamUpdateCaptureDependencies(void *stream, void **nodes, size_t n, unsigned flags);
GH_API int cuThreadExchangeStreamCaptureMode(int *mode);
GH_API int cuEventCreate(void **event, unsigned flags);
GH_API int cuEventDestroy_v2(void *event);
GH_API int cuEventRecord(void *event, void *stream);
GH_API int cuEventQuery(void *event);
GH_API int cuEventSynchronize(void *event);
GH_API int cuUserObjectCreate(void **object, void *arg, void (*destroy)(void *arg), unsigned count, unsigned flags);
GH_API int cuUserObjectRelease(void *object, unsigned count);
GH_API int cuGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags);
GH_API int cuGraphAddEventRecordNode(void **node, void *graph, void *const *after, size_t n, void *event);
GH_API int cuGraphAddEventWaitNode(void **node, void *graph, void *const *after, size_t n, void *event);
GH_API int cuGraphAddHostNode(void **node, void *graph, void *const *after, size_t n, const struct gh_host_node *host);
GH_API int cuGraphAddDependencies(void *graph, void *const *from, void *const *to, size_t n);
GH_API int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags);
GH_API int cuGraphLaunch(void *exec, void *stream);
GH_API int cuGraphExecDestroy(void *exec);
GH_API int cuGraphDestroy(void *graph);
GH_API int cuModuleLoad(void **module, const char *file);
GH_API int cuModuleLoadData(void **module, const void *image);
GH_API int cuModuleUnload(void *module);
GH_API int cuModuleGetFunction(void **function, void *module, const char *name);
GH_API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared);
GH_API int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                          void **extra);
GH_API int cuLaunchKernelEx(const struct gh_launch_config *config, void *function, void **arguments, void **extra);
GH_API int cuLaunchHostFunc(void *stream, void (*call)(void *arg), void *arg);

#endif
