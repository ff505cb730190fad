/* SPDX-License-Identifier: Apache-2.0
 *
 * The declarations that rt_cuda.h has of its own, against the toolkit's where there is one; and how the driver is
 * found: when the program has loaded it, not before, and only if it has all calls.
 */
#include "core/gpu/rt_cuda.h"

#include <dlfcn.h>

#include "test/harness/program.h"
#include "test/harness/ranks.h"

#if __has_include("/usr/local/cuda/include/cuda.h")
#define HAVE_CUDA_H
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wundef"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include "/usr/local/cuda/include/cuda.h"
#pragma GCC diagnostic pop

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
SAME(RT_CU_SUCCESS, CUDA_SUCCESS);
SAME(RT_CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(RT_CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(RT_CU_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
SAME(RT_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(RT_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(RT_CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(RT_CU_POINTER_CONTEXT, CU_POINTER_ATTRIBUTE_CONTEXT);
SAME(RT_CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(RT_CU_POINTER_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_DEVICE_POINTER);
SAME(RT_CU_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(RT_CU_POINTER_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(RT_CU_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(RT_CU_DEVICE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(RT_CU_DEVICE_COMPUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(RT_CU_DEVICE_HOST_PAGE_TABLES, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
SAME(RT_CU_DEVICE_GPU_DIRECT_RDMA, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
SAME(RT_CU_DEVICE_DMA_BUF, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
SAME(RT_CU_DEVICE_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(RT_CU_DEVICE_FD_HANDLES, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(RT_CU_DEVICE_RDMA_OF_VIRTUAL_MEMORY, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(RT_CU_DEVICE_FABRIC_HANDLES, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
SAME(RT_CU_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(RT_CU_ON_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(RT_CU_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(RT_CU_FD_HANDLE, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(RT_CU_FABRIC_HANDLE, CU_MEM_HANDLE_TYPE_FABRIC);
SAME(sizeof(CUmemGenericAllocationHandle), sizeof(uint64_t));
SAME(sizeof(struct rt_cuda_fabric), sizeof(CUmemFabricHandle));
SAME(sizeof(struct rt_cuda_location), sizeof(CUmemLocation));
SAME(offsetof(struct rt_cuda_location, id), offsetof(CUmemLocation, id));
SAME(sizeof(struct rt_cuda_allocation), sizeof(CUmemAllocationProp));
SAME(offsetof(struct rt_cuda_allocation, type), offsetof(CUmemAllocationProp, type));
SAME(offsetof(struct rt_cuda_allocation, handles), offsetof(CUmemAllocationProp, requestedHandleTypes));
SAME(offsetof(struct rt_cuda_allocation, location), offsetof(CUmemAllocationProp, location));
SAME(offsetof(struct rt_cuda_allocation, of_windows), offsetof(CUmemAllocationProp, win32HandleMetaData));
SAME(offsetof(struct rt_cuda_allocation, compression), offsetof(CUmemAllocationProp, allocFlags.compressionType));
SAME(offsetof(struct rt_cuda_allocation, rdma), offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
SAME(offsetof(struct rt_cuda_allocation, usage), offsetof(CUmemAllocationProp, allocFlags.usage));
SAME(sizeof(struct rt_cuda_access), sizeof(CUmemAccessDesc));
SAME(offsetof(struct rt_cuda_access, access), offsetof(CUmemAccessDesc, flags));
SAME(RT_CU_HANDLE_DMA_BUF_FD, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME(RT_CU_DEVICE_REGISTERED_HOST_POINTER, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME(RT_CU_PEER_ACCESS_ALREADY_ENABLED, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME(RT_CU_P2P_NATIVE_ATOMICS, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
SAME(RT_CU_IPC_LAZY_PEER_ACCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(RT_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(sizeof(struct rt_cuda_ipc), sizeof(CUipcMemHandle));
SAME(RT_CU_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(RT_CU_REGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(RT_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(RT_CU_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(RT_CU_CAPTURE_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(RT_CU_CAPTURE_ACTIVE, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(RT_CU_OBJECT_NO_SYNC, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
SAME(RT_CU_OBJECT_MOVE, CU_GRAPH_USER_OBJECT_MOVE);

/* What a name of cuda.h stands for, after its macros. */
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define SYMBOL_OF(field, symbol) [offsetof(struct rt_cuda, field) / sizeof(void (*)(void))] = TEXT(symbol)
static const char *const meant[] = {
    SYMBOL_OF(get_error_name, cuGetErrorName),
    SYMBOL_OF(driver_version, cuDriverGetVersion),
    SYMBOL_OF(device_count, cuDeviceGetCount),
    SYMBOL_OF(ctx_get_current, cuCtxGetCurrent),
    SYMBOL_OF(ctx_push, cuCtxPushCurrent),
    SYMBOL_OF(ctx_pop, cuCtxPopCurrent),
    SYMBOL_OF(ctx_get_device, cuCtxGetDevice),
    SYMBOL_OF(device_attribute, cuDeviceGetAttribute),
    SYMBOL_OF(device_bus_id, cuDeviceGetPCIBusId),
    SYMBOL_OF(device_by_bus_id, cuDeviceGetByPCIBusId),
    SYMBOL_OF(device_reaches, cuDeviceCanAccessPeer),
    SYMBOL_OF(device_p2p, cuDeviceGetP2PAttribute),
    SYMBOL_OF(peer_access, cuCtxEnablePeerAccess),
    SYMBOL_OF(mem_alloc, cuMemAlloc),
    SYMBOL_OF(mem_free, cuMemFree),
    SYMBOL_OF(mem_set, cuMemsetD8Async),
    SYMBOL_OF(mem_get, cuMemcpyDtoHAsync),
    SYMBOL_OF(ipc_export, cuIpcGetMemHandle),
    SYMBOL_OF(ipc_open, cuIpcOpenMemHandle),
    SYMBOL_OF(ipc_close, cuIpcCloseMemHandle),
    SYMBOL_OF(stream_create, cuStreamCreate),
    SYMBOL_OF(stream_destroy, cuStreamDestroy),
    SYMBOL_OF(stream_query, cuStreamQuery),
    SYMBOL_OF(pointer_attributes, cuPointerGetAttributes),
    SYMBOL_OF(host_register, cuMemHostRegister),
    SYMBOL_OF(host_unregister, cuMemHostUnregister),
    SYMBOL_OF(stream_wait, cuStreamWaitEvent),
    SYMBOL_OF(stream_get_context, cuStreamGetCtx),
    SYMBOL_OF(capture_mode, cuThreadExchangeStreamCaptureMode),
    SYMBOL_OF(user_object_create, cuUserObjectCreate),
    SYMBOL_OF(user_object_release, cuUserObjectRelease),
    SYMBOL_OF(graph_retain_object, cuGraphRetainUserObject),
    SYMBOL_OF(event_create, cuEventCreate),
    SYMBOL_OF(event_record, cuEventRecord),
    SYMBOL_OF(event_query, cuEventQuery),
    SYMBOL_OF(event_destroy, cuEventDestroy),
    SYMBOL_OF(module_load, cuModuleLoad),
    SYMBOL_OF(module_load_data, cuModuleLoadData),
    SYMBOL_OF(module_unload, cuModuleUnload),
    SYMBOL_OF(module_function, cuModuleGetFunction),
    SYMBOL_OF(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor),
    SYMBOL_OF(launch_kernel, cuLaunchKernel),
    SYMBOL_OF(launch_host, cuLaunchHostFunc),
    SYMBOL_OF(range_handle, cuMemGetHandleForAddressRange),
    SYMBOL_OF(mem_granularity, cuMemGetAllocationGranularity),
    SYMBOL_OF(mem_create, cuMemCreate),
    SYMBOL_OF(mem_release, cuMemRelease),
    SYMBOL_OF(mem_reserve, cuMemAddressReserve),
    SYMBOL_OF(mem_unreserve, cuMemAddressFree),
    SYMBOL_OF(mem_map, cuMemMap),
    SYMBOL_OF(mem_unmap, cuMemUnmap),
    SYMBOL_OF(mem_access, cuMemSetAccess),
    SYMBOL_OF(mem_export, cuMemExportToShareableHandle),
    SYMBOL_OF(mem_import, cuMemImportFromShareableHandle),
};
#endif

TEST(numbers_and_symbols_are_the_toolkits) {
#ifdef HAVE_CUDA_H
  static const char *const ours[] = {
#define NAME_(field, symbol, arguments) #symbol,
      /* The names as they are, not what cuda.h makes of them: # keeps an argument from being expanded. */
      RT_CUDA_CALLS(NAME_) RT_CUDA_NEW_CALLS(NAME_)
#undef NAME_
  };
  CHECK(sizeof meant <= sizeof ours);
  for (size_t i = 0; i < sizeof meant / sizeof *meant; i++)
    if (meant[i]) CHECK_STR(ours[i], meant[i]);
#else
  tap_skip_case("no cuda.h in /usr/local/cuda/include");
#endif
}

/* In a process of its own each: a driver that was found stays. */
static void not_loaded(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ENSURE(rt_cuda() == NULL && rt_cuda() == NULL, "there is a driver");
}
TEST(a_driver_that_is_not_loaded_is_not_there) { job_run("", 1, 10000, not_loaded, NULL); }

static void loaded(const struct rank *rank, void *arg) {
  (void)rank;
  char path[RANKS_PATH];
  ENSURE(ranks_built(arg, path), "no %s", (char *)arg);
  setenv("RAIL_CUDA_LIB", path, 1);
  ENSURE(rt_cuda() == NULL, "a driver was loaded for its own sake");
  void *library = dlopen(path, RTLD_NOW);
  ENSURE(library, "%s", dlerror());
  bool whole = dlsym(library, "cuLaunchKernel") != NULL;
  ENSURE((rt_cuda() != NULL) == whole, "a driver that %s", whole ? "is whole was not found" : "lacks calls was taken");
  dlclose(library);
  const char *text = NULL;
  if (whole) ENSURE(rt_cuda()->get_error_name(0, &text) == 0 && text, "it went with the handle of the program");
}
TEST(a_driver_that_was_loaded_is_found) {
  static char name[] = "test/libfakegpu.so";
  char path[RANKS_PATH];
  if (!ranks_built(name, path)) tap_skip_case("the build has no C++ compiler for the fake driver");
  job_run("", 1, 10000, loaded, name);
}
TEST(a_driver_without_a_call_is_not_used) {
  static char name[] = "test/liboldcuda.so";
  job_run("NCCL_DEBUG=NONE", 1, 10000, loaded, name);
}

static void failing(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ENSURE(rt_cuda_check(0, "cuThis", "do that") == RAIL_OK, "success is none");
  ENSURE(rt_cuda_check(700, "cuThis", "do that") == RAIL_CUDA_ERROR, "a failure is none");
}
TEST(a_result_becomes_ours) { job_run("NCCL_DEBUG=NONE", 1, 10000, failing, NULL); }

TEST_MAIN(TEST_CASE(numbers_and_symbols_are_the_toolkits), TEST_CASE(a_driver_that_is_not_loaded_is_not_there),
          TEST_CASE(a_driver_that_was_loaded_is_found), TEST_CASE(a_driver_without_a_call_is_not_used),
          TEST_CASE(a_result_becomes_ours))
