/* SPDX-License-Identifier: Apache-2.0
 *
 * GPU memory comes through the driver library, by the few entry points that
 * are needed; their signatures are the driver's documented ABI, so the kit
 * builds where there is no CUDA.
 */
#include "kit/bench/bench_process.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
  void *library;
  int (*init)(unsigned int flags);
  int (*device_get)(int *device, int ordinal);
  int (*context_retain)(void **context, int device);
  int (*context_use)(void *context);
  int (*alloc)(uint64_t *address, size_t size);
  int (*release)(uint64_t address);
  int (*set)(uint64_t address, unsigned char value, size_t size);
  int (*to_device)(uint64_t to, const void *from, size_t size);
  int (*from_device)(void *to, uint64_t from, size_t size);
} cu;

static bool find(void *slot, const char *name) {
  void *address = dlsym(cu.library, name);
  memcpy(slot, &address, sizeof address); /* a function's address out of an object's */
  return address != NULL;
}

static bool load(void) {
  return find(&cu.init, "cuInit") && find(&cu.device_get, "cuDeviceGet") &&
         find(&cu.context_retain, "cuDevicePrimaryCtxRetain") && find(&cu.context_use, "cuCtxSetCurrent") &&
         find(&cu.alloc, "cuMemAlloc_v2") && find(&cu.release, "cuMemFree_v2") && find(&cu.set, "cuMemsetD8_v2") &&
         find(&cu.to_device, "cuMemcpyHtoD_v2") && find(&cu.from_device, "cuMemcpyDtoH_v2");
}

static bool use_gpu(char *why, size_t why_size) {
  void *context;
  int device, error;
  cu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!cu.library || !load()) {
    snprintf(why, why_size, "no GPU memory: %s", dlerror());
    return false;
  }
  if ((error = cu.init(0)) == 0 && (error = cu.device_get(&device, 0)) == 0 &&
      (error = cu.context_retain(&context, device)) == 0 && (error = cu.context_use(context)) == 0)
    return true;
  snprintf(why, why_size, "no GPU memory: CUDA error %d", error);
  return false;
}

static bool make_cuda(struct kit_bench_memory *m, char *why, size_t why_size) {
  uint64_t address;
  if (!use_gpu(why, why_size)) return false;
  int error = cu.alloc(&address, m->size);
  if (error == 0) error = cu.set(address, 0xa5, m->size);
  if (error == 0) {
    m->base = (char *)(uintptr_t)address;
    return true;
  }
  snprintf(why, why_size, "no %zu bytes of GPU memory: CUDA error %d", m->size, error);
  return false;
}

bool kit_bench_memory_make(struct kit_bench_memory *m, size_t size, bool cuda, char *why, size_t why_size) {
  *m = (struct kit_bench_memory){.size = size, .cuda = cuda};
  if (cuda) return make_cuda(m, why, why_size);
  if (posix_memalign((void **)&m->base, 4096, size) != 0) {
    snprintf(why, why_size, "no %zu bytes of memory", size);
    return false;
  }
  memset(m->base, 0xa5, size);
  return true;
}

void kit_bench_memory_free(struct kit_bench_memory *m) {
  if (m->cuda) cu.release((uint64_t)(uintptr_t)m->base);
  else free(m->base);
  m->base = NULL;
}

bool kit_bench_memory_write(const struct kit_bench_memory *m, char *to, const void *from, size_t size) {
  if (m->cuda) return cu.to_device((uint64_t)(uintptr_t)to, from, size) == 0;
  memcpy(to, from, size);
  return true;
}

bool kit_bench_memory_read(const struct kit_bench_memory *m, void *to, const char *from, size_t size) {
  if (m->cuda) return cu.from_device(to, (uint64_t)(uintptr_t)from, size) == 0;
  memcpy(to, from, size);
  return true;
}
