/* SPDX-License-Identifier: Apache-2.0
 * The runtime's memory and copies. */
#include <stdlib.h>

#include "ghost/runtime/gh_cudart.h"

static uint64_t address_of(const void *p) { return (uint64_t)(uintptr_t)p; }

GH_API int cudaMalloc(void **memory, size_t size) {
  uint64_t address = 0;
  int r = gh_rt_enter();
  if (r == 0) r = cuMemAlloc_v2(&address, size);
  if (r == 0) *memory = (void *)(uintptr_t)address;
  return gh_rt_leave(r);
}

/* Freeing nothing makes the device's context, no more. */
GH_API int cudaFree(void *memory) {
  int r = gh_rt_enter();
  return gh_rt_leave(r || !memory ? r : cuMemFree_v2(address_of(memory)));
}

/* Pools: memory is there at once, and goes when the stream has come to where it was freed. */
GH_API int cudaMallocAsync(void **memory, size_t size, void *stream) {
  (void)stream;
  return cudaMalloc(memory, size);
}

GH_API int cudaMallocFromPoolAsync(void **memory, size_t size, void *pool, void *stream) {
  (void)pool;
  return cudaMallocAsync(memory, size, stream);
}

GH_API int cudaFreeAsync(void *memory, void *stream) {
  int r = gh_rt_enter();
  if (r == 0) r = cuStreamSynchronize(stream);
  return gh_rt_leave(r) ? r : cudaFree(memory);
}

GH_API int cudaMemPoolCreate(void **pool, const void *properties) {
  (void)properties;
  *pool = malloc(1);
  return gh_rt_leave(*pool ? GH_RT_SUCCESS : 2);
}

GH_API int cudaMemPoolDestroy(void *pool) {
  free(pool);
  return GH_RT_SUCCESS;
}

GH_API int cudaMemPoolSetAttribute(void *pool, int attribute, void *value) {
  (void)attribute;
  return gh_rt_leave(pool && value ? GH_RT_SUCCESS : GH_RT_INVALID_VALUE);
}

GH_API int cudaHostAlloc(void **memory, size_t size, unsigned flags) {
  GH_RT_CALL(cuMemHostAlloc(memory, size, flags));
}
GH_API int cudaFreeHost(void *memory) {
  int r = gh_rt_enter();
  return gh_rt_leave(r || !memory ? r : cuMemFreeHost(memory));
}
GH_API int cudaHostRegister(void *memory, size_t size, unsigned flags) {
  GH_RT_CALL(cuMemHostRegister_v2(memory, size, flags));
}
GH_API int cudaHostUnregister(void *memory) { GH_RT_CALL(cuMemHostUnregister(memory)); }

GH_API int cudaHostGetDevicePointer(void **address, void *memory, unsigned flags) {
  uint64_t found = 0;
  int r = gh_rt_enter();
  if (r == 0) r = cuMemHostGetDevicePointer_v2(&found, memory, flags);
  if (r == 0) *address = (void *)(uintptr_t)found;
  return gh_rt_leave(r);
}

/* Types: 0 is memory that CUDA does not know, 1 the host's, 2 a device's, 3 managed. */
GH_API int cudaPointerGetAttributes(struct gh_pointer_attributes *a, const void *memory) {
  int attributes[] = {2, 8, 9}, device = -2;
  unsigned type = 0, managed = 0;
  void *values[] = {&type, &managed, &device};
  int r = gh_rt_enter();
  if (r == 0) r = cuPointerGetAttributes(3, attributes, values, address_of(memory));
  if (r) return gh_rt_leave(r);
  void *p = (void *)(uintptr_t)memory;
  *a = (struct gh_pointer_attributes){.type = managed ? 3 : (int)type, .device = device};
  a->on_device = type ? p : NULL;
  a->on_host = type != 2 || managed ? p : NULL;
  return GH_RT_SUCCESS;
}

/* Addresses say themselves whose they are. */
GH_API int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
  (void)kind;
  GH_RT_CALL(cuMemcpy(address_of(to), address_of(from), size));
}

GH_API int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  (void)kind;
  GH_RT_CALL(cuMemcpyAsync(address_of(to), address_of(from), size, stream));
}

GH_API int cudaMemset(void *memory, int value, size_t size) {
  GH_RT_CALL(cuMemsetD8_v2(address_of(memory), (unsigned char)value, size));
}

GH_API int cudaMemsetAsync(void *memory, int value, size_t size, void *stream) {
  GH_RT_CALL(cuMemsetD8Async(address_of(memory), (unsigned char)value, size, stream));
}

GH_API int cudaIpcGetMemHandle(struct gh_ipc *handle, void *memory) {
  GH_RT_CALL(cuIpcGetMemHandle(handle, address_of(memory)));
}

GH_API int cudaIpcOpenMemHandle(void **memory, struct gh_ipc handle, unsigned flags) {
  uint64_t address = 0;
  int r = gh_rt_enter();
  if (r == 0) r = cuIpcOpenMemHandle_v2(&address, handle, flags);
  if (r == 0) *memory = (void *)(uintptr_t)address;
  return gh_rt_leave(r);
}

GH_API int cudaIpcCloseMemHandle(void *memory) { GH_RT_CALL(cuIpcCloseMemHandle(address_of(memory))); }
