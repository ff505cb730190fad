/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA driver as the runtime uses it: a table of the few calls, filled from
 * the library that the program itself has loaded. Declarations of our own, so that neither
 * a toolkit is needed to build nor a GPU to run. A program that has no driver loaded
 * has no device memory either: then there is nothing to do, and nothing is said.
 *
 * The calls take what cuda.h calls CUcontext, CUstream, CUevent, CUmodule and
 * CUfunction as void *, CUdeviceptr as uint64_t, enums as int or unsigned.
 */
#ifndef RT_CUDA_H
#define RT_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/result.h"

/* cuda.h's numbers; test_cuda.c compares them where there is a toolkit. */
enum {
  RT_CU_SUCCESS = 0,
  RT_CU_NOT_INITIALIZED = 3,
  RT_CU_DEINITIALIZED = 4,
  RT_CU_STUB_LIBRARY = 34, /* the toolkit's, to link with */
  RT_CU_NO_DEVICE = 100,
  RT_CU_INVALID_CONTEXT = 201,
  RT_CU_NOT_READY = 600,
  RT_CU_PEER_ACCESS_ALREADY_ENABLED = 704,

  RT_CU_POINTER_CONTEXT = 1,
  RT_CU_POINTER_MEMORY_TYPE = 2,
  RT_CU_POINTER_DEVICE_POINTER = 3,
  RT_CU_POINTER_IS_MANAGED = 8,
  RT_CU_POINTER_DEVICE_ORDINAL = 9,
  RT_CU_MEMORY_HOST = 1, /* registered with a context; unknown to it: 0 */

  RT_CU_DEVICE_MULTIPROCESSORS = 16,
  RT_CU_DEVICE_COMPUTE_MAJOR = 75,
  RT_CU_DEVICE_REGISTERED_HOST_POINTER = 91,
  RT_CU_DEVICE_HOST_PAGE_TABLES = 100, /* it hangs on the processor by a coherent link */
  RT_CU_DEVICE_VIRTUAL_MEMORY = 102, /* the calls of `struct rt_mem` work */
  RT_CU_DEVICE_FD_HANDLES = 103,
  RT_CU_DEVICE_RDMA_OF_VIRTUAL_MEMORY = 110,
  RT_CU_DEVICE_GPU_DIRECT_RDMA = 116,
  RT_CU_DEVICE_DMA_BUF = 124,
  RT_CU_DEVICE_FABRIC_HANDLES = 128,

  RT_CU_PINNED = 1,        /* a type of allocations */
  RT_CU_ON_DEVICE = 1,     /* a type of locations */
  RT_CU_READ_WRITE = 3,    /* access */
  RT_CU_FD_HANDLE = 1,     /* what memory can be exported as: bits */
  RT_CU_FABRIC_HANDLE = 8,

  RT_CU_P2P_NATIVE_ATOMICS = 3, /* between two devices: as a rule, over NVLink */
  RT_CU_IPC_LAZY_PEER_ACCESS = 1,
  RT_CU_STREAM_NON_BLOCKING = 1,

  RT_CU_REGISTER_PORTABLE = 1,
  RT_CU_REGISTER_DEVICEMAP = 2,
  RT_CU_EVENT_DISABLE_TIMING = 2,
  RT_CU_CAPTURE_MODE_RELAXED = 2,
  RT_CU_CAPTURE_NONE = 0,
  RT_CU_CAPTURE_ACTIVE = 1,
  RT_CU_HANDLE_DMA_BUF_FD = 1,
  RT_CU_OBJECT_NO_SYNC = 1, /* for creating one */
  RT_CU_OBJECT_MOVE = 1,    /* for having a graph retain it */
};

/* What a driver calls CUipcMemHandle, and CUmemFabricHandle. */
struct rt_cuda_ipc { unsigned char bytes[64]; };
struct rt_cuda_fabric { unsigned char bytes[64]; };
/* CUmemLocation, CUmemAllocationProp, CUmemAccessDesc. */
struct rt_cuda_location { int type, id; };
struct rt_cuda_allocation {
  int type, handles;
  struct rt_cuda_location location;
  void *of_windows;
  unsigned char compression, rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
struct rt_cuda_access {
  struct rt_cuda_location location;
  int access;
};
/* Bytes of a device's PCI address as text, "domain:bus:device.function". */
#define RT_CUDA_BUS_ID 16

/* X(field, symbol, arguments): the versions of the symbols that cuda.h maps these names to, or older ones that do. */
#define RT_CUDA_CALLS(X)                                                                                            \
  X(get_error_name, cuGetErrorName, (int error, const char **text))                                                 \
  X(driver_version, cuDriverGetVersion, (int *version))                                                             \
  X(device_count, cuDeviceGetCount, (int *count))                                                                   \
  X(ctx_get_current, cuCtxGetCurrent, (void **context))                                                             \
  X(ctx_push, cuCtxPushCurrent_v2, (void *context))                                                                 \
  X(ctx_pop, cuCtxPopCurrent_v2, (void **context))                                                                  \
  X(ctx_get_device, cuCtxGetDevice, (int *device))                                                                  \
  X(device_attribute, cuDeviceGetAttribute, (int *value, int attribute, int device))                                \
  X(device_bus_id, cuDeviceGetPCIBusId, (char *text, int size, int device))                                         \
  X(device_by_bus_id, cuDeviceGetByPCIBusId, (int *device, const char *text))                                       \
  X(device_reaches, cuDeviceCanAccessPeer, (int *can, int device, int peer))                                        \
  X(device_p2p, cuDeviceGetP2PAttribute, (int *value, int attribute, int device, int peer))                         \
  X(peer_access, cuCtxEnablePeerAccess, (void *peer, unsigned flags))                                               \
  X(mem_alloc, cuMemAlloc_v2, (uint64_t *address, size_t size))                                                     \
  X(mem_free, cuMemFree_v2, (uint64_t address))                                                                     \
  X(mem_set, cuMemsetD8Async, (uint64_t address, unsigned char value, size_t size, void *stream))                   \
  X(mem_get, cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t size, void *stream))                            \
  X(ipc_export, cuIpcGetMemHandle, (struct rt_cuda_ipc *handle, uint64_t address))                                  \
  X(ipc_open, cuIpcOpenMemHandle_v2, (uint64_t *address, struct rt_cuda_ipc handle, unsigned flags))                \
  X(ipc_close, cuIpcCloseMemHandle, (uint64_t address))                                                             \
  X(stream_create, cuStreamCreate, (void **stream, unsigned flags))                                                 \
  X(stream_destroy, cuStreamDestroy_v2, (void *stream))                                                             \
  X(stream_query, cuStreamQuery, (void *stream))                                                                    \
  X(pointer_attributes, cuPointerGetAttributes, (unsigned n, int *attributes, void **values, uint64_t pointer))     \
  X(host_register, cuMemHostRegister_v2, (void *memory, size_t size, unsigned flags))                               \
  X(host_unregister, cuMemHostUnregister, (void *memory))                                                           \
  X(stream_wait, cuStreamWaitEvent, (void *stream, void *event, unsigned flags))                                    \
  X(stream_get_context, cuStreamGetCtx, (void *stream, void **context))                                             \
  X(capture_info, cuStreamGetCaptureInfo_v2,                                                                        \
    (void *stream, int *status, uint64_t *id, void **graph, const void **dependencies, size_t *n))                  \
  X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))                                                   \
  X(user_object_create, cuUserObjectCreate,                                                                         \
    (void **object, void *arg, void (*destroy)(void *arg), unsigned count, unsigned flags))                         \
  X(user_object_release, cuUserObjectRelease, (void *object, unsigned count))                                       \
  X(graph_retain_object, cuGraphRetainUserObject, (void *graph, void *object, unsigned count, unsigned flags))      \
  X(event_create, cuEventCreate, (void **event, unsigned flags))                                                    \
  X(event_record, cuEventRecord, (void *event, void *stream))                                                       \
  X(event_query, cuEventQuery, (void *event))                                                                       \
  X(event_destroy, cuEventDestroy_v2, (void *event))                                                                \
  X(module_load, cuModuleLoad, (void **module, const char *file))                                                   \
  X(module_load_data, cuModuleLoadData, (void **module, const void *image))                                         \
  X(module_unload, cuModuleUnload, (void *module))                                                                  \
  X(module_function, cuModuleGetFunction, (void **function, void *module, const char *name))                        \
  X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, void *function, int threads, size_t shared)) \
  X(launch_kernel, cuLaunchKernel,                                                                                  \
    (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,         \
     unsigned block_z, unsigned shared, void *stream, void **arguments, void **extra))                              \
  X(launch_host, cuLaunchHostFunc, (void *stream, void (*call)(void *arg), void *arg))

/* The same for those that later drivers have: NULL where this one does not. */
#define RT_CUDA_NEW_CALLS(X)                                                                                        \
  X(range_handle, cuMemGetHandleForAddressRange,                                                                    \
    (void *handle, uint64_t address, size_t size, int type, unsigned long long flags))                              \
  RT_CUDA_MAPPING_CALLS(X)

/* Virtual memory management; a driver has all of them or none. */
#define RT_CUDA_MAPPING_CALLS(X)                                                                                    \
  X(mem_granularity, cuMemGetAllocationGranularity,                                                                 \
    (size_t *granularity, const struct rt_cuda_allocation *how, int option))                                        \
  X(mem_create, cuMemCreate,                                                                                        \
    (uint64_t *handle, size_t size, const struct rt_cuda_allocation *how, unsigned long long flags))                \
  X(mem_release, cuMemRelease, (uint64_t handle))                                                                   \
  X(mem_reserve, cuMemAddressReserve,                                                                               \
    (uint64_t *address, size_t size, size_t alignment, uint64_t hint, unsigned long long flags))                    \
  X(mem_unreserve, cuMemAddressFree, (uint64_t address, size_t size))                                               \
  X(mem_map, cuMemMap, (uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags))   \
  X(mem_unmap, cuMemUnmap, (uint64_t address, size_t size))                                                         \
  X(mem_access, cuMemSetAccess,                                                                                     \
    (uint64_t address, size_t size, const struct rt_cuda_access *access, size_t n))                                 \
  X(mem_export, cuMemExportToShareableHandle, (void *out, uint64_t handle, int type, unsigned long long flags))     \
  X(mem_import, cuMemImportFromShareableHandle, (uint64_t *handle, void *shared, int type))

struct rt_cuda {
#define RT_CUDA_FIELD_(field, symbol, arguments) int(*field) arguments;
  RT_CUDA_CALLS(RT_CUDA_FIELD_)
  RT_CUDA_NEW_CALLS(RT_CUDA_FIELD_)
#undef RT_CUDA_FIELD_
};

/* The driver, if this process has it loaded; NULL otherwise. Cheap enough for every call: as long as no library comes
 * to the process, it looks at one counter. */
const struct rt_cuda *rt_cuda(void);

/* RAIL_OK for RT_CU_SUCCESS; else one line: call, result, and what to do about it. */
rail_result_t rt_cuda_check(int result, const char *call, const char *advice);

/* Refused? Then call and result are in `why`, and nothing was logged: for what can also be done otherwise. */
#define RT_WHY 192
bool rt_cuda_refused(int result, const char *call, char why[RT_WHY]);

/* Makes a context current in the calling thread, whichever library made it, and lets the thread make any call
 * although a stream may be capturing; leave restores both. */
struct rt_cuda_scope {
  bool entered;
  int capture_mode;
};
rail_result_t rt_cuda_enter(struct rt_cuda_scope *scope, void *context);
void rt_cuda_leave(struct rt_cuda_scope *scope);

#endif
