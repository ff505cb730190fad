/* SPDX-License-Identifier: Apache-2.0
 * For tests of ghost: its libraries, opened and asked for calls as NCCL does. */
#ifndef TEST_GHOST_RUNTIME_H
#define TEST_GHOST_RUNTIME_H

#include <dlfcn.h>

#include "ghost/driver/gh_cuda.h"
#include "test/harness/program.h"
#include "test/harness/ranks.h"

static void *runtime;
static int (*launch_kernel)(const struct gh_launch_config *, void *, void **, void **);
static int (*get_function)(void **, const void *);
static int (*cuda_malloc)(void **, size_t), (*cuda_free)(void *), (*make_stream)(void **, unsigned);
static int (*end_stream)(void *), (*sync_stream)(void *), (*async_copy)(void *, const void *, size_t, int, void *);
static int (*async_set)(void *, int, size_t, void *);
static const char kernel_symbol, strange_symbol;

static void *symbol(const char *name) {
  void *found = dlsym(runtime, name);
  ENSURE(found, "%s is missing", name);
  return found;
}

static void open_libraries(void) {
  static struct { int magic, version; const void *image; void *rest; } wrapper;
  static const uint32_t image[4] = {0xba55ed50u};
  char path[RANKS_PATH];
  if (runtime) return;
  ENSURE(ranks_built("test/libghostnccl.so", path) && dlopen(path, RTLD_NOW), "libghostnccl.so: %s", dlerror());
  ENSURE(ranks_built("lib/ghost/libcuda.so.1", path), "no libcuda.so.1"); /* the next is linked with it */
  ENSURE(ranks_built("lib/ghost/libcudart.so.13", path), "no libcudart.so.13");
  runtime = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ENSURE(runtime, "%s", dlerror());
  void **(*add_image)(void *) = symbol("__cudaRegisterFatBinary");
  void (*add_function)(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *) =
      symbol("__cudaRegisterFunction");
  int (*entry)(const char *, void **, unsigned, unsigned long long, int *) = symbol("cudaGetDriverEntryPointByVersion");
  int status = -1;
  wrapper.image = image;
  void **handle = add_image(&wrapper);
  add_function(handle, &kernel_symbol, NULL, "ncclDevKernel_Generic", -1, NULL, NULL, NULL, NULL, NULL);
  add_function(handle, &strange_symbol, NULL, "strangeKernel", -1, NULL, NULL, NULL, NULL, NULL);
  ENSURE(entry("cuLaunchKernelEx", (void **)&launch_kernel, 11060, 0, &status) == 0 && status == 0, "cuLaunchKernelEx");
  get_function = symbol("cudaGetFuncBySymbol");
  cuda_malloc = symbol("cudaMalloc");
  cuda_free = symbol("cudaFree");
  make_stream = symbol("cudaStreamCreateWithFlags");
  end_stream = symbol("cudaStreamDestroy");
  sync_stream = symbol("cudaStreamSynchronize");
  async_copy = symbol("cudaMemcpyAsync");
  async_set = symbol("cudaMemsetAsync");
}

#define CUDA(call)                                       \
  do {                                                   \
    int r_ = (call);                                     \
    ENSURE(r_ == 0, "%s: CUDA result %d", #call, r_);    \
  } while (0)

#endif
