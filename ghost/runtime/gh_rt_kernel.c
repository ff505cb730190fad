/* SPDX-License-Identifier: Apache-2.0
 * Kernels as programs have them: registered by what compilers put into objects, known by a symbol of the host. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ghost/runtime/gh_cudart.h"

/* What __cudaRegisterFatBinary is given. */
struct wrapper {
  int magic, version;
  const void *image;
  void *rest;
};

struct image {
  struct image *next;
  const void *data;
  void *modules[GH_MAX_DEVICES]; /* loaded when one of its functions is asked for */
};

struct kernel {
  struct kernel *next;
  struct image *image;
  const void *symbol;
  void *functions[GH_MAX_DEVICES];
  char name[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct image *images;
static struct kernel *kernels;

GH_API void **__cudaRegisterFatBinary(void *wrapper) {
  const struct wrapper *w = wrapper;
  struct image *i = calloc(1, sizeof *i);
  if (!i) abort(); /* before main, with no way to say that it failed */
  i->data = w->image;
  pthread_mutex_lock(&lock);
  i->next = images;
  images = i;
  pthread_mutex_unlock(&lock);
  return (void **)i;
}

GH_API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
GH_API char __cudaInitModule(void **handle) { return handle != NULL; }

/* At the end of the program, or when the library with the kernels is closed. */
GH_API void __cudaUnregisterFatBinary(void **handle) {
  struct image *of = (struct image *)handle;
  pthread_mutex_lock(&lock);
  for (struct kernel **at = &kernels; *at;) {
    struct kernel *k = *at;
    if (k->image != of) at = &k->next;
    else *at = k->next, free(k);
  }
  struct image **at = &images;
  while (*at && *at != of) at = &(*at)->next;
  if (*at) *at = of->next;
  pthread_mutex_unlock(&lock);
  free(of);
}

GH_API void __cudaRegisterFunction(void **handle, const char *symbol, char *function, const char *name, int limit,
                                      void *tid, void *bid, void *block, void *grid, int *warp) {
  (void)function, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
  struct kernel *k = calloc(1, sizeof *k + strlen(name) + 1);
  if (!k) abort();
  k->image = (struct image *)handle;
  k->symbol = symbol;
  strcpy(k->name, name);
  pthread_mutex_lock(&lock);
  k->next = kernels;
  kernels = k;
  pthread_mutex_unlock(&lock);
}

/* Variables of the device are of no use without its code. */
GH_API void __cudaRegisterVar(void **handle, char *variable, char *address, const char *name, int external,
                                 size_t size, int constant, int global) {
  (void)handle, (void)variable, (void)address, (void)name, (void)external, (void)size, (void)constant, (void)global;
}

/* The function in the current context. */
static int find(const void *symbol, void **function) {
  int r = gh_rt_enter(), device = gh_rt_device();
  if (r) return r;
  pthread_mutex_lock(&lock);
  struct kernel *k = kernels;
  while (k && k->symbol != symbol) k = k->next;
  struct image *i = k ? k->image : NULL;
  if (!k) r = GH_RT_INVALID_FUNCTION;
  if (r == 0 && !i->modules[device]) r = cuModuleLoadData(&i->modules[device], i->data);
  if (r == 0 && !k->functions[device]) r = cuModuleGetFunction(&k->functions[device], i->modules[device], k->name);
  if (r == 0) *function = k->functions[device];
  pthread_mutex_unlock(&lock);
  return r;
}

GH_API int cudaGetFuncBySymbol(void **function, const void *symbol) { return gh_rt_leave(find(symbol, function)); }

GH_API int cudaFuncGetAttributes(struct gh_function_attributes *a, const void *symbol) {
  void *function;
  int r = find(symbol, &function), major = 0;
  if (r == 0) r = cuDeviceGetAttribute(&major, GH_COMPUTE_MAJOR, gh_rt_device());
  if (r) return gh_rt_leave(r);
  *a = (struct gh_function_attributes){.threads = 1024, .registers = 96, .ptx = major * 10, .binary = major * 10};
  return GH_RT_SUCCESS;
}

GH_API int cudaFuncSetAttribute(const void *symbol, int attribute, int value) {
  void *function;
  (void)attribute;
  (void)value;
  return gh_rt_leave(find(symbol, &function));
}

GH_API int cudaLaunchKernel(const void *symbol, struct gh_dim3 grid, struct gh_dim3 block, void **arguments,
                               size_t shared, void *stream) {
  void *function;
  int r = find(symbol, &function);
  if (r == 0)
    r = cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream, arguments,
                       NULL);
  return gh_rt_leave(r);
}

/* As newer compilers launch: a handle that is good for every device. */
GH_API int __cudaGetKernel(void **kernel, const void *symbol) {
  pthread_mutex_lock(&lock);
  struct kernel *k = kernels;
  while (k && k->symbol != symbol) k = k->next;
  pthread_mutex_unlock(&lock);
  *kernel = k;
  return gh_rt_leave(k ? GH_RT_SUCCESS : GH_RT_INVALID_FUNCTION);
}

GH_API int __cudaLaunchKernel(void *kernel, struct gh_dim3 grid, struct gh_dim3 block, void **arguments,
                                 size_t shared, void *stream) {
  const struct kernel *k = kernel;
  return cudaLaunchKernel(k->symbol, grid, block, arguments, shared, stream);
}

GH_API int cudaLaunchKernelExC(const struct gh_launch_config_rt *c, const void *symbol, void **arguments) {
  void *function;
  struct gh_launch_config to = {{c->grid.x, c->grid.y, c->grid.z}, {c->block.x, c->block.y, c->block.z},
                                (unsigned)c->shared, c->stream, c->attributes, c->nattributes};
  int r = find(symbol, &function);
  return gh_rt_leave(r ? r : cuLaunchKernelEx(&to, function, arguments, NULL));
}

/* ---- f<<<grid, block>>>(…): the numbers wait for the call that is compiled next ---- */

static __thread struct {
  struct gh_dim3 grid, block;
  size_t shared;
  void *stream;
} pushed;

GH_API unsigned __cudaPushCallConfiguration(struct gh_dim3 grid, struct gh_dim3 block, size_t shared, void *stream) {
  pushed.grid = grid;
  pushed.block = block;
  pushed.shared = shared;
  pushed.stream = stream;
  return 0;
}

GH_API int __cudaPopCallConfiguration(struct gh_dim3 *grid, struct gh_dim3 *block, size_t *shared, void *stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  memcpy(stream, &pushed.stream, sizeof pushed.stream);
  return GH_RT_SUCCESS;
}
