/* SPDX-License-Identifier: Apache-2.0
 * The calls of the CUDA driver that rail-coll makes, looked up in its library at run time. */
#include "tools/rail-coll/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/rail-coll/coll.h"

#define NON_BLOCKING 1     /* no order with the legacy stream */
#define ATTACH_GLOBAL 1u   /* managed memory: of every stream */
#define CAPTURE_RELAXED 2  /* other threads may allocate meanwhile */

/* X(field, symbol, arguments). CUcontext, CUstream, CUgraph as void *, CUdeviceptr as uint64_t, CUdevice as int. */
#define CALLS(X)                                                                           \
  X(init, cuInit, (unsigned flags))                                                        \
  X(error_name, cuGetErrorName, (int error, const char **text))                            \
  X(device_count, cuDeviceGetCount, (int *count))                                          \
  X(device_get, cuDeviceGet, (int *device, int ordinal))                                   \
  X(device_name, cuDeviceGetName, (char *text, int size, int device))                      \
  X(device_bus_id, cuDeviceGetPCIBusId, (char *text, int size, int device))                \
  X(context_retain, cuDevicePrimaryCtxRetain, (void **context, int device))                \
  X(context_release, cuDevicePrimaryCtxRelease_v2, (int device))                           \
  X(context_use, cuCtxSetCurrent, (void *context))                                         \
  X(alloc, cuMemAlloc_v2, (uint64_t *address, size_t size))                                \
  X(alloc_managed, cuMemAllocManaged, (uint64_t *address, size_t size, unsigned flags))    \
  X(release, cuMemFree_v2, (uint64_t address))                                             \
  X(to_device, cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t size))              \
  X(from_device, cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t size))                  \
  X(stream_create, cuStreamCreate, (void **stream, unsigned flags))                        \
  X(stream_destroy, cuStreamDestroy_v2, (void *stream))                                    \
  X(stream_wait, cuStreamSynchronize, (void *stream))                                      \
  X(capture_begin, cuStreamBeginCapture_v2, (void *stream, int mode))                      \
  X(capture_end, cuStreamEndCapture, (void *stream, void **graph))                         \
  X(graph_make, cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags)) \
  X(graph_launch, cuGraphLaunch, (void *exec, void *stream))                               \
  X(graph_drop, cuGraphExecDestroy, (void *exec))                                          \
  X(capture_drop, cuGraphDestroy, (void *graph))

static struct {
#define FIELD_(field, symbol, arguments) int(*field) arguments;
  CALLS(FIELD_)
  int devices; /* 0: not opened yet */
} cu;

static int refuse(int rank, const char *what, const char *why) {
  fprintf(stderr, RC_NAME ": rank %d: --memory: %s%s\n", rank, what, why);
  return -1;
}

static int find_calls(int rank, void *library) {
  static const struct { const char *symbol; void *at; } calls[] = {
#define ROW_(field, symbol, arguments) {#symbol, &cu.field},
      CALLS(ROW_)};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    void *found = dlsym(library, calls[i].symbol);
    if (!found) return refuse(rank, "the CUDA driver is older than CUDA 12: it has no ", calls[i].symbol);
    memcpy(calls[i].at, &found, sizeof found); /* a function's address out of an object's */
  }
  return 0;
}

/* The library that the runtime looks for, too. Called by the process' one thread, before there are more. */
static int open_driver(int rank) {
  const char *name = getenv("RAIL_CUDA_LIB");
  if (!name || !*name) name = "libcuda.so.1";
  void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (!library) return refuse(rank, "there is no CUDA driver here: ", dlerror());
  if (find_calls(rank, library) != 0) return -1;
  int r = cu.init(0), count = 0;
  if (r == 0) r = cu.device_count(&count);
  if (r != 0) return refuse(rank, "the CUDA driver cannot be used: ", rc_gpu_error(r));
  if (count < 1) return refuse(rank, "there is no CUDA device here", "");
  cu.devices = count;
  return 0;
}

const char *rc_gpu_error(int result) {
  const char *name = NULL;
  return cu.error_name && cu.error_name(result, &name) == 0 && name ? name : "an unknown error";
}

int rc_gpu_open(struct rc_gpu *g, int rank, int device) {
  int handle = 0, r = 0;
  if (cu.devices == 0 && open_driver(rank) != 0) return -1;
  g->device = device < 0 ? rank % cu.devices : device;
  if (g->device >= cu.devices) {
    fprintf(stderr, RC_NAME ": rank %d: --device: there is no CUDA device %d here, only 0 to %d\n", rank, g->device,
            cu.devices - 1);
    return -1;
  }
  const char *what = "cuDeviceGet";
  r = cu.device_get(&handle, g->device);
  if (r == 0) what = "cuDeviceGetName", r = cu.device_name(g->name, sizeof g->name, handle);
  if (r == 0) what = "cuDeviceGetPCIBusId", r = cu.device_bus_id(g->bus_id, sizeof g->bus_id, handle);
  if (r == 0) what = "cuDevicePrimaryCtxRetain", r = cu.context_retain(&g->context, handle);
  g->open = r == 0;
  if (r == 0) what = "cuCtxSetCurrent", r = rc_gpu_use(g);
  if (r == 0) what = "cuStreamCreate", r = cu.stream_create(&g->stream, NON_BLOCKING);
  if (r == 0) return 0;
  fprintf(stderr, RC_NAME ": rank %d: CUDA device %d: %s: %s\n", rank, g->device, what, rc_gpu_error(r));
  return -1;
}

static int drop_graph(struct rc_gpu *g) {
  void *graph = g->graph;
  g->graph = NULL;
  return graph ? cu.graph_drop(graph) : 0;
}

void rc_gpu_close(struct rc_gpu *g) {
  if (!g->open) return;
  (void)rc_gpu_use(g);
  (void)drop_graph(g);
  if (g->stream) (void)cu.stream_destroy(g->stream);
  (void)rc_gpu_use(NULL);
  (void)cu.context_release(g->device);
  *g = (struct rc_gpu){0};
}

int rc_gpu_use(const struct rc_gpu *g) {
  return cu.devices > 0 ? cu.context_use(g && g->open ? g->context : NULL) : 0;
}

/* ---- memory ---- */

int rc_gpu_alloc(const struct rc_gpu *g, size_t size, bool managed, char **memory) {
  uint64_t address = 0;
  int r = rc_gpu_use(g);
  if (r == 0) r = managed ? cu.alloc_managed(&address, size, ATTACH_GLOBAL) : cu.alloc(&address, size);
  *memory = r == 0 ? (char *)(uintptr_t)address : NULL;
  return r;
}

void rc_gpu_free(const struct rc_gpu *g, char *memory) {
  if (!memory || rc_gpu_use(g) != 0) return;
  (void)cu.release((uint64_t)(uintptr_t)memory);
}

int rc_gpu_put(const struct rc_gpu *g, char *to, const void *from, size_t size) {
  int r = rc_gpu_use(g);
  if (r == 0) r = cu.to_device((uint64_t)(uintptr_t)to, from, size);
  /* The copy returns when `from` is free again. It is the legacy stream's, for which ours does not wait. */
  return r != 0 ? r : cu.stream_wait(NULL);
}

int rc_gpu_get(const struct rc_gpu *g, void *to, const char *from, size_t size) {
  int r = rc_gpu_use(g);
  return r != 0 ? r : cu.from_device(to, (uint64_t)(uintptr_t)from, size);
}

/* ---- the stream ---- */

int rc_gpu_wait(const struct rc_gpu *g) {
  int r = rc_gpu_use(g);
  return r != 0 ? r : cu.stream_wait(g->stream);
}

int rc_gpu_capture_begin(struct rc_gpu *g) {
  int r = rc_gpu_use(g);
  if (r == 0) r = drop_graph(g);
  return r != 0 ? r : cu.capture_begin(g->stream, CAPTURE_RELAXED);
}

int rc_gpu_capture_end(struct rc_gpu *g) {
  void *captured = NULL;
  int r = rc_gpu_use(g);
  if (r == 0) r = cu.capture_end(g->stream, &captured);
  if (r == 0) r = cu.graph_make(&g->graph, captured, 0);
  if (r != 0) g->graph = NULL;
  if (captured) (void)cu.capture_drop(captured);
  return r;
}

int rc_gpu_launch_graph(const struct rc_gpu *g) {
  int r = rc_gpu_use(g);
  return r != 0 ? r : cu.graph_launch(g->graph, g->stream);
}
