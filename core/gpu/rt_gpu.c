/* SPDX-License-Identifier: Apache-2.0
 * Opens and closes what a communicator has of its GPU, maps connections for the device, and owns the memory that
 * launches are described in. Called by the thread that makes plans ready, launches, or frees; rt_gpu_lost by the thread
 * that watches a launch. */
#include "core/gpu/rt_gpu.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/gpu/rt_cuda.h"
#include "core/gpu/rt_module.h"
#include "core/host/rt_device.h"

#define LAST_MS 1000u /* see wait_for_last: the moment is microseconds */

#define CHECK(call, what, advice) rt_cuda_check(rt_cuda()->call, what, advice)

/* ---- registered host memory ------------------------------------------------------ */

#define REGISTER_ADVICE "raise the limit of locked memory (ulimit -l), or lower NCCL_BUFFSIZE"

static rail_result_t register_range(const struct rt_range *r) {
  return CHECK(host_register(r->base, r->size, RT_CU_REGISTER_PORTABLE | RT_CU_REGISTER_DEVICEMAP),
               "cuMemHostRegister", REGISTER_ADVICE);
}

/* A failure is not an error: a destroyed context has unregistered all by itself. */
static void unregister_range(const struct rt_range *r) {
  int result = rt_cuda()->host_unregister(r->base);
  if (result != RT_CU_SUCCESS) RAIL_INFO(RAIL_SUB_INIT, "cuMemHostUnregister: result %d", result);
}

static rail_result_t map_ranges(struct rt_connector *c) {
  struct rt_range all[RT_MAX_RANGES] = {{c, RAIL_ROUND_UP(sizeof *c, (size_t)RT_PAGE)}};
  int n = 1 + c->end->ranges(c, &all[1]);
  for (int i = 0; i < n; i++) {
    RAIL_TRY(register_range(&all[i]));
    c->mapped[c->nmapped++] = all[i];
  }
  return RAIL_OK;
}

rail_result_t rt_gpu_map(struct ncclComm *comm, struct rt_connector *c) {
  if (c->nmapped) return RAIL_OK;
  comm->gpu.called_driver = true;
  struct rt_cuda_scope scope;
  RAIL_TRY(rt_cuda_enter(&scope, comm->gpu.context));
  rail_result_t r = map_ranges(c);
  rt_cuda_leave(&scope);
  return r;
}

void rt_gpu_unmap(struct ncclComm *comm, struct rt_connector *c) {
  struct rt_cuda_scope scope;
  if (!c->nmapped || rt_cuda_enter(&scope, comm->gpu.context) != RAIL_OK) return;
  while (c->nmapped > 0) unregister_range(&c->mapped[--c->nmapped]);
  rt_cuda_leave(&scope);
}

/* ---- launches ------------------------------------------------------------------------ */

/* Registering memory is slow, and may wait for kernels: launches are parts of slabs, and are used again. The first slab
 * has room for as many calls at once as programs make. */
#define SLAB_SIZE ((size_t)1 << 20)

struct rt_launch_slab {
  struct rt_launch_slab *next;
  struct rt_range range;
  size_t used;
};

static size_t launch_size(int n) { return sizeof(struct rt_device_launch) + (size_t)n * sizeof(struct rt_device_job); }

static rail_result_t map_slab(struct ncclComm *comm, struct rt_range *range) {
  range->base = mmap(NULL, range->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (range->base == MAP_FAILED) {
    RAIL_WARN("rank %d: no memory for launches of %zu bytes: %s", comm->rank, range->size, strerror(errno));
    return RAIL_SYSTEM_ERROR;
  }
  struct rt_cuda_scope scope;
  rail_result_t r = rt_cuda_enter(&scope, comm->gpu.context);
  if (r == RAIL_OK) r = register_range(range);
  rt_cuda_leave(&scope);
  if (r != RAIL_OK) munmap(range->base, range->size);
  return r;
}

/* Without the lock: the driver's thread takes it to begin a run of a graph, and the driver may wait for that run. */
static rail_result_t add_slab(struct ncclComm *comm, size_t least) {
  struct rt_launch_slab *slab = calloc(1, sizeof *slab);
  if (!slab) return RAIL_SYSTEM_ERROR;
  slab->range.size = RAIL_MAX(least, SLAB_SIZE);
  rail_result_t r = map_slab(comm, &slab->range);
  if (r != RAIL_OK) {
    free(slab);
    return r;
  }
  pthread_mutex_lock(&comm->gpu.lock);
  slab->next = comm->gpu.slabs;
  comm->gpu.slabs = slab;
  pthread_mutex_unlock(&comm->gpu.lock);
  return RAIL_OK;
}

/* A new part of a slab; NULL: no slab has room for it. */
static struct rt_launch_memory *cut(struct rt_gpu *gpu, size_t size) {
  struct rt_launch_slab *slab = gpu->slabs;
  while (slab && slab->range.size - slab->used < size) slab = slab->next;
  struct rt_launch_memory *m = slab ? calloc(1, sizeof *m) : NULL;
  if (!m) return NULL;
  *m = (struct rt_launch_memory){.next = gpu->memory, .base = (char *)slab->range.base + slab->used, .size = size};
  slab->used += size;
  gpu->memory = m;
  return m;
}

static struct rt_launch_memory *find_memory(struct rt_gpu *gpu, size_t size) {
  pthread_mutex_lock(&gpu->lock);
  struct rt_launch_memory *m = gpu->memory;
  while (m && (m->used || m->size < size)) m = m->next;
  if (!m) m = cut(gpu, size);
  if (m) m->used = true;
  pthread_mutex_unlock(&gpu->lock);
  return m;
}

rail_result_t rt_gpu_launch_get(struct ncclComm *comm, int njobs, struct rt_device_launch **launch) {
  const size_t size = RAIL_ROUND_UP(launch_size(njobs), (size_t)RT_PAGE);
  struct rt_launch_memory *m = find_memory(&comm->gpu, size);
  if (!m) {
    RAIL_TRY(add_slab(comm, size));
    m = find_memory(&comm->gpu, size);
  }
  if (!m) return RAIL_SYSTEM_ERROR;
  *launch = (struct rt_device_launch *)(void *)m->base;
  memset(*launch, 0, size);
  (*launch)->abort = (const uint32_t *)(const void *)&comm->failed;
  return RAIL_OK;
}

void rt_gpu_launch_put(struct ncclComm *comm, struct rt_device_launch *launch) {
  struct rt_gpu *gpu = &comm->gpu;
  if (!launch) return;
  pthread_mutex_lock(&gpu->lock);
  for (struct rt_launch_memory *m = gpu->memory; m; m = m->next)
    if (m->base == (char *)launch) m->used = false;
  pthread_mutex_unlock(&gpu->lock);
}

static void free_launches(struct rt_gpu *gpu, bool registered) {
  for (struct rt_launch_memory *m = gpu->memory; m; m = gpu->memory) {
    gpu->memory = m->next;
    free(m);
  }
  for (struct rt_launch_slab *slab = gpu->slabs; slab; slab = gpu->slabs) {
    gpu->slabs = slab->next;
    if (registered) unregister_range(&slab->range);
    munmap(slab->range.base, slab->range.size);
    free(slab);
  }
}

/* ---- making and taking down ---------------------------------------------------------- */

static rail_result_t load_kernel(struct ncclComm *comm) {
  struct rt_gpu *gpu = &comm->gpu;
  if (!gpu->module) RAIL_TRY(rt_module_get(gpu->context, &gpu->module));
  int multiprocessors, each, wide;
  RAIL_TRY(CHECK(device_attribute(&multiprocessors, RT_CU_DEVICE_MULTIPROCESSORS, gpu->ordinal),
                 "cuDeviceGetAttribute", "is the device still there?"));
  RAIL_TRY(CHECK(occupancy(&each, rt_module_kernel(gpu->module), RT_DEVICE_FEW_THREADS, 0),
                 "cuOccupancyMaxActiveBlocksPerMultiprocessor", "is the device still there?"));
  RAIL_TRY(CHECK(occupancy(&wide, rt_module_kernel(gpu->module), RT_DEVICE_THREADS, 0),
                 "cuOccupancyMaxActiveBlocksPerMultiprocessor", "is the device still there?"));
  int sharers = rt_peer_sharers(comm->peers, comm->nranks, comm->rank);
  gpu->wide_blocks = RAIL_MAX(multiprocessors * wide / sharers, 1);
  /* One rank's narrow blocks, spread over the multiprocessors, would leave no room for another's wide ones. */
  gpu->most_blocks = sharers > 1 ? gpu->wide_blocks : RAIL_MAX(multiprocessors * each, 1);
  return RAIL_OK;
}

/* The device must be able to use the host's addresses: all pointers in a FIFO are such. */
static rail_result_t check_device(struct ncclComm *comm) {
  int same = 0;
  RAIL_TRY(CHECK(device_attribute(&same, RT_CU_DEVICE_REGISTERED_HOST_POINTER, comm->gpu.ordinal),
                 "cuDeviceGetAttribute", "is the device still there?"));
  if (same) return RAIL_OK;
  RAIL_WARN("rank %d: CUDA device %d cannot address registered host memory as the host does; its buffers cannot be "
            "used",
            comm->rank, comm->gpu.ordinal);
  return RAIL_CUDA_ERROR;
}

static rail_result_t make_events(struct rt_gpu *gpu) {
  void **events[] = {&gpu->last, &gpu->captured, &gpu->join};
  for (size_t i = 0; i < RAIL_COUNT_OF(events); i++)
    RAIL_TRY(CHECK(event_create(events[i], RT_CU_EVENT_DISABLE_TIMING), "cuEventCreate",
                   "an earlier error on the device may be the reason"));
  return RAIL_OK;
}

static struct rt_range comm_range(struct ncclComm *comm) {
  return (struct rt_range){comm, RAIL_ROUND_UP(sizeof *comm, (size_t)RT_PAGE)};
}

static struct rt_range ring_range(const struct ncclComm *comm) {
  return (struct rt_range){comm->ring.order, comm->ring.size};
}

static rail_result_t open_parts(struct ncclComm *comm) {
  struct rt_gpu *gpu = &comm->gpu;
  struct rt_range all = comm_range(comm), ring = ring_range(comm); /* of all: the abort word */
  RAIL_TRY(check_device(comm));
  RAIL_TRY(load_kernel(comm));
  RAIL_TRY(add_slab(comm, SLAB_SIZE));
  RAIL_TRY(make_events(gpu));
  RAIL_TRY(register_range(&all));
  gpu->comm_registered = true;
  if (!ring.base) return RAIL_OK;
  RAIL_TRY(register_range(&ring));
  gpu->ring_registered = true;
  return RAIL_OK;
}

rail_result_t rt_gpu_open(struct ncclComm *comm) {
  struct rt_gpu *gpu = &comm->gpu;
  if (gpu->open) return RAIL_OK;
  gpu->called_driver = true;
  if (!gpu->lock_made) pthread_mutex_init(&gpu->lock, NULL);
  gpu->lock_made = true;
  struct rt_cuda_scope scope;
  RAIL_TRY(rt_cuda_enter(&scope, gpu->context));
  rail_result_t r = open_parts(comm);
  rt_cuda_leave(&scope);
  gpu->open = r == RAIL_OK;
  if (gpu->open)
    RAIL_INFO(RAIL_SUB_INIT, "rank %d: CUDA device %d, at most %d blocks at once", comm->rank, gpu->ordinal,
              gpu->most_blocks);
  return r;
}

bool rt_gpu_lost(struct ncclComm *comm) {
  struct rt_gpu *gpu = &comm->gpu;
  struct rt_cuda_scope scope;
  if (gpu->lost || !gpu->open) return gpu->lost;
  int r = RT_CU_INVALID_CONTEXT;
  if (rt_cuda_enter(&scope, gpu->context) == RAIL_OK) {
    r = rt_cuda()->event_query(gpu->last);
    rt_cuda_leave(&scope);
  }
  if (r == RT_CU_SUCCESS || r == RT_CU_NOT_READY) return false;
  gpu->lost = true;
  rt_cuda_check(r, "cuEventQuery", "a kernel of the program or of the runtime failed on the device");
  rt_comm_fail(comm, RAIL_CUDA_ERROR, "CUDA device %d reports an error, number %d", gpu->ordinal, r);
  return true;
}

/* A kernel stores `ran` a moment before it ends; its code must not be unloaded in between. LAST_MS at most. */
static void wait_for_last(const struct rt_gpu *gpu) {
  uint64_t deadline = rail_deadline_in_ms(LAST_MS);
  if (!gpu->has_last || gpu->lost) return;
  while (!rail_deadline_passed(deadline) && rt_cuda()->event_query(gpu->last) == RT_CU_NOT_READY)
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static void close_driver_side(struct ncclComm *comm) {
  struct rt_gpu *gpu = &comm->gpu;
  const struct rt_cuda *cu = rt_cuda();
  wait_for_last(gpu);
  void *events[] = {gpu->last, gpu->captured, gpu->join};
  for (size_t i = 0; i < RAIL_COUNT_OF(events); i++)
    if (events[i]) cu->event_destroy(events[i]);
  if (gpu->own_stream) cu->stream_destroy(gpu->own_stream);
  struct rt_range all = comm_range(comm), ring = ring_range(comm);
  if (gpu->comm_registered) unregister_range(&all);
  if (gpu->ring_registered) unregister_range(&ring);
}

void rt_gpu_close(struct ncclComm *comm) {
  struct rt_gpu *gpu = &comm->gpu;
  if (!gpu->lock_made) return;
  /* A program may have destroyed its context first; all that the driver had of ours went with it. */
  struct rt_cuda_scope scope;
  bool alive = rt_cuda_enter(&scope, gpu->context) == RAIL_OK;
  free_launches(gpu, alive);
  if (alive) close_driver_side(comm);
  rt_module_put(gpu->module, alive);
  rt_cuda_leave(&scope);
  pthread_mutex_destroy(&gpu->lock);
  memset(gpu, 0, sizeof *gpu);
}

int rt_gpu_current(void) {
  const struct rt_cuda *cu = rt_cuda();
  void *context = NULL;
  int device = -1;
  if (!cu || cu->ctx_get_current(&context) != RT_CU_SUCCESS || !context) return -1;
  return cu->ctx_get_device(&device) == RT_CU_SUCCESS ? device : -1;
}

uint32_t rt_gpu_multiprocessors(int device) {
  int n = 0;
  const struct rt_cuda *cu = rt_cuda();
  if (!cu || cu->device_attribute(&n, RT_CU_DEVICE_MULTIPROCESSORS, device) != RT_CU_SUCCESS) return 0;
  return n > 0 ? (uint32_t)n : 0;
}
