/* SPDX-License-Identifier: Apache-2.0
 * Public calls that make memory: of the GPU that is current, in a program that has one, else of the host. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>

#include "common/base/log.h"
#include "core/api/rt_api.h"
#include "core/gpu/rt_gpu.h"
#include "core/gpu/rt_mem.h"

struct block {
  LIST_ENTRY(block) link;
  void *base;
  void *context; /* NULL: it is the host's memory, of `size` bytes */
  size_t size;
  struct rt_mem mem;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(blocks, block) blocks = LIST_HEAD_INITIALIZER(blocks); /* allocated and not freed */

/* ---- of the host ---------------------------------------------------------------------- */

static ncclResult_t make_host(struct block *b, size_t size) {
  b->size = RAIL_ROUND_UP(size, (size_t)RT_PAGE);
  b->base = mmap(NULL, b->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (b->base != MAP_FAILED) return ncclSuccess;
  return rt_error(RAIL_SYSTEM_ERROR, "ncclMemAlloc of %zu bytes: %s", size, strerror(errno));
}

/* ---- of a device ---------------------------------------------------------------------- */

/* Every device that reaches this one may use it, as with NCCL: which peers will is not known yet. */
static void allow_peers(const struct rt_mem *mem, int device) {
  const struct rt_cuda *cu = rt_cuda();
  char why[RT_WHY];
  int n = 0, can = 0;
  if (cu->device_count(&n) != RT_CU_SUCCESS) n = 0;
  for (int peer = 0; peer < n; peer++) {
    if (peer == device || cu->device_reaches(&can, peer, device) != RT_CU_SUCCESS || !can) continue;
    if (!rt_mem_allow(mem, peer, why))
      RAIL_INFO(RAIL_SUB_INIT, "ncclMemAlloc: CUDA device %d cannot use memory of device %d: %s", peer, device, why);
  }
}

/* With all export handles that the device has; fabric handles may not be permitted to this process. */
static bool make_mapped(struct rt_mem *mem, int device, size_t size, char why[RT_WHY]) {
  const int handles = rt_mem_handles(device);
  if (rt_mem_map(mem, device, size, handles, NULL, why)) return true;
  return handles & RT_CU_FABRIC_HANDLE && rt_mem_map(mem, device, size, handles & ~RT_CU_FABRIC_HANDLE, NULL, why);
}

static bool make_on(int device, struct rt_mem *mem, size_t size, char why[RT_WHY]) {
  if (rt_mem_may_map(device)) {
    if (make_mapped(mem, device, size, why)) {
      allow_peers(mem, device);
      return true;
    }
    RAIL_INFO(RAIL_SUB_INIT, "ncclMemAlloc: no mapped memory (%s), cuMemAlloc instead", why);
  }
  return rt_mem_alloc(mem, size, why);
}

static ncclResult_t make_device(struct block *b, void *context, size_t size) {
  struct rt_cuda_scope scope;
  char why[RT_WHY] = "the current CUDA context cannot be used";
  int device = -1;
  bool good = rt_cuda_enter(&scope, context) == RAIL_OK &&
              !rt_cuda_refused(rt_cuda()->ctx_get_device(&device), "cuCtxGetDevice", why) &&
              make_on(device, &b->mem, size, why);
  rt_cuda_leave(&scope);
  b->context = context;
  b->base = (void *)(uintptr_t)b->mem.address;
  return good ? ncclSuccess : rt_error(RAIL_CUDA_ERROR, "ncclMemAlloc of %zu bytes on CUDA device %d: %s", size, device,
                                       why);
}

/* Memory of a context that was destroyed is freed already, but mapped memory is not. */
static void free_device(struct block *b) {
  struct rt_cuda_scope scope;
  bool entered = !b->mem.mapped && rt_cuda_enter(&scope, b->context) == RAIL_OK;
  if (entered || b->mem.mapped) rt_mem_free(&b->mem);
  if (entered) rt_cuda_leave(&scope);
}

/* ---- the calls ------------------------------------------------------------------------- */

/* The context of the calling thread; NULL: it has none, or there is no driver. */
static void *current(void) {
  const struct rt_cuda *cu = rt_cuda();
  void *context = NULL;
  return cu && cu->ctx_get_current(&context) == RT_CU_SUCCESS ? context : NULL;
}

RAIL_EXPORT ncclResult_t ncclMemAlloc(void **ptr, size_t size) {
  if (!ptr) return rt_error(RAIL_BAD_ARGUMENT, "ncclMemAlloc: ptr is NULL");
  *ptr = NULL;
  if (size > (size_t)PTRDIFF_MAX - RT_PAGE) return rt_error(RAIL_BAD_ARGUMENT, "ncclMemAlloc: size is %zu", size);
  struct block *b = calloc(1, sizeof *b);
  if (!b) return rt_error(RAIL_SYSTEM_ERROR, "ncclMemAlloc: out of memory");
  void *context = current();
  const size_t some = RAIL_MAX(size, (size_t)1); /* 0 bytes get an address, too */
  ncclResult_t r = context ? make_device(b, context, some) : make_host(b, some);
  if (r != ncclSuccess) {
    free(b);
    return r;
  }
  pthread_mutex_lock(&lock);
  LIST_INSERT_HEAD(&blocks, b, link);
  pthread_mutex_unlock(&lock);
  *ptr = b->base;
  return ncclSuccess;
}

RAIL_EXPORT ncclResult_t ncclMemFree(void *ptr) {
  if (!ptr) return ncclSuccess;
  pthread_mutex_lock(&lock);
  struct block *b = LIST_FIRST(&blocks);
  while (b && b->base != ptr) b = LIST_NEXT(b, link);
  if (b) LIST_REMOVE(b, link);
  pthread_mutex_unlock(&lock);
  if (!b) return rt_error(RAIL_BAD_ARGUMENT, "ncclMemFree: %p was not made by ncclMemAlloc, or is freed already", ptr);
  if (b->context)
    free_device(b);
  else
    munmap(b->base, b->size);
  free(b);
  return ncclSuccess;
}

RT_PNAME(MemAlloc);
RT_PNAME(MemFree);
