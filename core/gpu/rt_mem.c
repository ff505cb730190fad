/* SPDX-License-Identifier: Apache-2.0
 * Makes, maps, shares and frees memory of a GPU through the driver; keeps nothing itself. Called by rt_export.c and by
 * ncclMemAlloc and ncclMemFree (rt_api_mem.c), in the caller's thread. */
#include "core/gpu/rt_mem.h"

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "core/comm/rt_param.h"

#define FIRST_VERSION 12000 /* earlier drivers import only from devices that both processes number alike */
#define AUTOMATICALLY (-2)

/* ---- what there is ---------------------------------------------------------------- */

static bool has_calls(const struct rt_cuda *cu) {
#define HAS_(field, symbol, arguments) cu->field &&
  return RT_CUDA_MAPPING_CALLS(HAS_) true;
#undef HAS_
}

static bool attribute(int which, int device) {
  int value = 0;
  return rt_cuda()->device_attribute(&value, which, device) == RT_CU_SUCCESS && value;
}

bool rt_mem_may_map(int device) {
  const struct rt_cuda *cu = rt_cuda();
  const int64_t enable = rt_params()->cumem_enable;
  int version = 0;
  if (!cu || !has_calls(cu) || device < 0) return false;
  if (enable != AUTOMATICALLY) return enable == 1;
  return cu->driver_version(&version) == RT_CU_SUCCESS && version >= FIRST_VERSION &&
         attribute(RT_CU_DEVICE_VIRTUAL_MEMORY, device);
}

int rt_mem_handles(int device) {
  return (attribute(RT_CU_DEVICE_FD_HANDLES, device) ? RT_CU_FD_HANDLE : 0) |
         (attribute(RT_CU_DEVICE_FABRIC_HANDLES, device) ? RT_CU_FABRIC_HANDLE : 0);
}

/* ---- making ------------------------------------------------------------------------- */

bool rt_mem_alloc(struct rt_mem *m, size_t size, char why[RT_WHY]) {
  *m = (struct rt_mem){.size = size};
  if (!rt_cuda_refused(rt_cuda()->mem_alloc(&m->address, size), "cuMemAlloc", why)) return true;
  *m = (struct rt_mem){0};
  return false;
}

/* NICs may reach it where that is possible at all: dma-bufs are made of such memory only. */
static struct rt_cuda_allocation description(int device, int handles) {
  return (struct rt_cuda_allocation){
      .type = RT_CU_PINNED,
      .handles = handles,
      .location = {.type = RT_CU_ON_DEVICE, .id = device},
      .rdma = attribute(RT_CU_DEVICE_RDMA_OF_VIRTUAL_MEMORY, device),
  };
}

static bool granularity(size_t *out, const struct rt_cuda_allocation *how, char why[RT_WHY]) {
  return !rt_cuda_refused(rt_cuda()->mem_granularity(out, how, 0), "cuMemGetAllocationGranularity", why);
}

static bool export_and_import(uint64_t handle, char why[RT_WHY]) {
  const struct rt_cuda *cu = rt_cuda();
  struct rt_cuda_fabric fabric;
  uint64_t again = 0;
  if (rt_cuda_refused(cu->mem_export(&fabric, handle, RT_CU_FABRIC_HANDLE, 0), "cuMemExportToShareableHandle", why) ||
      rt_cuda_refused(cu->mem_import(&again, &fabric, RT_CU_FABRIC_HANDLE), "cuMemImportFromShareableHandle", why))
    return false;
  rt_mem_release(again);
  return true;
}

bool rt_mem_has_fabric(int device, char why[RT_WHY]) {
  const struct rt_cuda_allocation how = description(device, RT_CU_FABRIC_HANDLE);
  size_t unit = 0;
  uint64_t handle = 0;
  if (!granularity(&unit, &how, why)) return false;
  if (rt_cuda_refused(rt_cuda()->mem_create(&handle, unit, &how, 0), "cuMemCreate", why)) return false;
  bool good = export_and_import(handle, why);
  rt_mem_release(handle);
  return good;
}

/* Puts m->size bytes of the handle to an address. */
static bool map(struct rt_mem *m, int device, size_t alignment, uint64_t handle, char why[RT_WHY]) {
  const struct rt_cuda *cu = rt_cuda();
  uint64_t at = 0;
  if (rt_cuda_refused(cu->mem_reserve(&at, m->size, alignment, 0, 0), "cuMemAddressReserve", why)) return false;
  if (rt_cuda_refused(cu->mem_map(at, m->size, 0, handle, 0), "cuMemMap", why)) {
    cu->mem_unreserve(at, m->size);
    return false;
  }
  m->address = at;
  m->mapped = true;
  if (rt_mem_allow(m, device, why)) return true;
  rt_mem_free(m);
  return false;
}

bool rt_mem_map(struct rt_mem *m, int device, size_t size, int handles, uint64_t *handle, char why[RT_WHY]) {
  const struct rt_cuda_allocation how = description(device, handles);
  size_t unit = 0;
  uint64_t own = 0;
  *m = (struct rt_mem){0};
  if (!granularity(&unit, &how, why)) return false;
  m->size = RAIL_ROUND_UP(size, unit);
  if (rt_cuda_refused(rt_cuda()->mem_create(&own, m->size, &how, 0), "cuMemCreate", why)) return false;
  bool good = map(m, device, unit, own, why);
  if (good && handle)
    *handle = own;
  else
    rt_mem_release(own);
  return good;
}

bool rt_mem_import(struct rt_mem *m, int device, size_t size, int type, void *shared, char why[RT_WHY]) {
  const struct rt_cuda_allocation how = description(device, type);
  size_t unit = 0;
  uint64_t theirs = 0;
  *m = (struct rt_mem){.size = size};
  if (!granularity(&unit, &how, why)) return false;
  if (rt_cuda_refused(rt_cuda()->mem_import(&theirs, shared, type), "cuMemImportFromShareableHandle", why))
    return false;
  bool good = map(m, device, unit, theirs, why);
  rt_mem_release(theirs); /* what is mapped keeps the memory */
  return good;
}

bool rt_mem_allow(const struct rt_mem *m, int device, char why[RT_WHY]) {
  const struct rt_cuda_access access = {.location = {.type = RT_CU_ON_DEVICE, .id = device},
                                        .access = RT_CU_READ_WRITE};
  return !rt_cuda_refused(rt_cuda()->mem_access(m->address, m->size, &access, 1), "cuMemSetAccess", why);
}

/* ---- ending --------------------------------------------------------------------------- */

static void must(int result, const char *call) {
  char why[RT_WHY];
  if (rt_cuda_refused(result, call, why)) RAIL_INFO(RAIL_SUB_INIT, "%s", why);
}

void rt_mem_release(uint64_t handle) { must(rt_cuda()->mem_release(handle), "cuMemRelease"); }

void rt_mem_free(struct rt_mem *m) {
  const struct rt_cuda *cu = rt_cuda();
  if (m->address && m->mapped) {
    must(cu->mem_unmap(m->address, m->size), "cuMemUnmap");
    must(cu->mem_unreserve(m->address, m->size), "cuMemAddressFree");
  } else if (m->address) {
    must(cu->mem_free(m->address), "cuMemFree");
  }
  *m = (struct rt_mem){0};
}
