/* SPDX-License-Identifier: Apache-2.0
 *
 * A test as a program with device buffers: over ghost's driver (ghost/driver/gh_driver.h), or with
 * TEST_REAL_GPU=1 over the machine's own.
 */
#ifndef FAKEGPU_USER_H
#define FAKEGPU_USER_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kit/kit_ensure.h"
#include "test/device/gpu/driver.h"
#include "test/harness/ranks.h"

#define GPU_FIELD_(symbol, arguments) int(*symbol) arguments;
#define GPU_CALL_FIELD_(field, symbol, arguments) GPU_FIELD_(symbol, arguments)
static struct {
  GPU_CALLS(GPU_FIELD_)
  RT_CUDA_CALLS(GPU_CALL_FIELD_) RT_CUDA_NEW_CALLS(GPU_CALL_FIELD_)
  long (*calls)(const char *name); /* ghost's; NULL with a real driver */
  long (*live)(const char *what);
  void *context;
} gpu;

#define GPU(call) \
  do { \
    int gpu_r_ = (call); \
    ENSURE(gpu_r_ == 0, "%s: CUDA result %d", #call, gpu_r_); \
  } while (0)

static void *gpu_symbol(void *library, const char *name) {
  void *found = dlsym(library, name);
  ENSURE(found, "the driver has no %s", name);
  return found;
}

/* Loads the driver, and makes device 0 current. Before the first call of the runtime: it sets parameters. */
__attribute__((unused)) static void gpu_open(void) {
  static const char image[] = "fakegpu image\n";
  char path[RANKS_PATH] = "libcuda.so.1", file[64];
  bool real = getenv("TEST_REAL_GPU") != NULL;
  ENSURE(real || ranks_built("test/libfakegpu.so", path), "the build has no test/libfakegpu.so");
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  ENSURE(library, "%s: %s", path, dlerror());
  if (!real) {
    int fd = memfd_create("image", 0); /* inherited by nobody: ranks are forked, not executed */
    ENSURE(fd >= 0 && write(fd, image, sizeof image) == sizeof image, "no file for the image");
    snprintf(file, sizeof file, "/proc/self/fd/%d", fd);
    setenv("RAIL_CUDA_LIB", path, 1);
    setenv("RAIL_CUDA_KERNELS", file, 1);
    *(void **)&gpu.calls = gpu_symbol(library, "ghost_calls");
    *(void **)&gpu.live = gpu_symbol(library, "ghost_live");
  }
#define GPU_FIND_(symbol, arguments) *(void **)&gpu.symbol = gpu_symbol(library, #symbol);
#define GPU_FIND_CALL_(field, symbol, arguments) GPU_FIND_(symbol, arguments)
  GPU_CALLS(GPU_FIND_)
  RT_CUDA_CALLS(GPU_FIND_CALL_) RT_CUDA_NEW_CALLS(GPU_FIND_CALL_)
  GPU(gpu.cuInit(0));
  GPU(gpu.cuDevicePrimaryCtxRetain(&gpu.context, 0));
  GPU(gpu.cuCtxSetCurrent(gpu.context));
}

__attribute__((unused)) static void *gpu_stream(void) {
  void *stream;
  GPU(gpu.cuStreamCreate(&stream, 1)); /* non-blocking: no order with the legacy stream */
  return stream;
}

__attribute__((unused)) static void *gpu_alloc(size_t size) {
  uint64_t address;
  GPU(gpu.cuMemAlloc_v2(&address, size));
  return (void *)(uintptr_t)address;
}

__attribute__((unused)) static void gpu_free(void *p) { GPU(gpu.cuMemFree_v2((uint64_t)(uintptr_t)p)); }

/* The copy returns when `from` is free again; what is put on a non-blocking stream does not wait for the rest of it. */
__attribute__((unused)) static void gpu_put(void *to, const void *from, size_t size) {
  if (size) GPU(gpu.cuMemcpyHtoD_v2((uint64_t)(uintptr_t)to, from, size));
  if (size) GPU(gpu.cuStreamSynchronize(NULL));
}

__attribute__((unused)) static void gpu_get(void *to, const void *from, size_t size) {
  if (size) GPU(gpu.cuMemcpyDtoH_v2(to, (uint64_t)(uintptr_t)from, size));
}

/* A stream that does nothing more until it is let go; the gate must be closed anew for each use. */
struct gpu_gate { volatile int open; };

static void gpu_wait_at_gate(void *arg) {
  struct gpu_gate *g = arg;
  while (!__atomic_load_n(&g->open, __ATOMIC_ACQUIRE)) usleep(1000);
}

__attribute__((unused)) static void gpu_hold(struct gpu_gate *g, void *stream) {
  g->open = 0;
  GPU(gpu.cuLaunchHostFunc(stream, gpu_wait_at_gate, g));
}

__attribute__((unused)) static void gpu_let_go(struct gpu_gate *g) { __atomic_store_n(&g->open, 1, __ATOMIC_RELEASE); }

/* Nothing is left of what the runtime made; of the test's own it must have freed all but its streams. */
__attribute__((unused)) static void gpu_nothing_left(void) {
  static const char *const what[] = {"registered", "allocated", "modules", "events", "graphs", "objects",
                                     "opened", "freed while open", "handles", "mapped", "reserved"};
  for (size_t i = 0; gpu.live && i < sizeof what / sizeof *what; i++)
    ENSURE(gpu.live(what[i]) == 0, "%ld %s are left", gpu.live(what[i]), what[i]);
}

#endif
