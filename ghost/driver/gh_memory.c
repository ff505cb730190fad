/* SPDX-License-Identifier: Apache-2.0
 * The emulated driver's memory: which ranges it knows, and whose they are. */
#include <stdlib.h>
#include <string.h>

#include "ghost/driver/gh_cuda.h"
#include "ghost/driver/gh_driver.h"
#include "ghost/driver/gh_nic.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

enum { HOST_MEMORY = 1, DEVICE_MEMORY = 2 };

struct range {
  struct range *next;
  char *base;
  size_t size;
  int type;
  bool managed;
  bool owned; /* the driver has allocated it; of the host's memory: it was not just registered */
  struct gh_context *context; /* NULL: it is mapped */
  int device;
  unsigned access; /* of mapped memory: a bit for each device */
  bool rdma;
};
static struct range *ranges;

static struct range *find(const void *p, size_t size) {
  const char *at = p;
  struct range *r = ranges;
  while (r && !(at >= r->base && at + size <= r->base + r->size)) r = r->next;
  return r;
}

bool gh_reachable(const void *p, size_t size, const struct gh_context *context) {
  pthread_mutex_lock(&lock);
  const struct range *r = find(p, size);
  bool foreign = r && context && r->type == DEVICE_MEMORY && !r->managed && r->context != context;
  const struct gh_context *owner = foreign ? r->context : NULL;
  bool forbidden = foreign && context && !owner && !(r->access >> context->device & 1);
  pthread_mutex_unlock(&lock);
  return r && !forbidden && (!owner || gh_has_peer_access(context, owner));
}

bool gh_on_device(const void *p) {
  pthread_mutex_lock(&lock);
  const struct range *r = find(p, 1);
  bool device = r && r->type == DEVICE_MEMORY;
  pthread_mutex_unlock(&lock);
  return device;
}

/* False: no memory. */
static bool add(struct range range) {
  struct range *r = malloc(sizeof *r);
  if (!r) return false;
  *r = range;
  pthread_mutex_lock(&lock);
  r->next = ranges;
  ranges = r;
  pthread_mutex_unlock(&lock);
  return true;
}

static struct range range_here(void *base, size_t size, int type) {
  struct gh_context *c = gh_context();
  return (struct range){.base = base, .size = size, .type = type, .context = c, .device = c->device};
}

static struct range **place_of(const void *base, int type, bool mapped) {
  struct range **at = &ranges;
  while (*at && !((*at)->base == base && (*at)->type == type && !(*at)->context == mapped)) at = &(*at)->next;
  return at;
}

/* What the driver has allocated itself is given back by take_owned. */
static bool remove_range(const void *base, int type, bool mapped) {
  pthread_mutex_lock(&lock);
  struct range **at = place_of(base, type, mapped), *r = *at && !(*at)->owned ? *at : NULL;
  if (r) *at = r->next;
  pthread_mutex_unlock(&lock);
  free(r);
  return r != NULL;
}

/* Takes the driver's own memory that begins at `base` out of the list; false: nothing of this type does, or it is of
 * another process, or only registered, and is given back by another call. */
static bool take_owned(const void *base, int type, struct range *out) {
  pthread_mutex_lock(&lock);
  struct range **at = place_of(base, type, false), *r = *at && (*at)->owned ? *at : NULL;
  if (r) *out = *r;
  if (r) *at = r->next;
  pthread_mutex_unlock(&lock);
  free(r);
  return r != NULL;
}

bool gh_add_imported(void *base, size_t size) { return add(range_here(base, size, DEVICE_MEMORY)); }
bool gh_remove_imported(const void *base) { return remove_range(base, DEVICE_MEMORY, false); }

/* A range that holds the address; false: the driver knows none. */
static bool range_of(uint64_t address, struct range *out) {
  pthread_mutex_lock(&lock);
  const struct range *r = find((void *)(uintptr_t)address, 1);
  if (r) *out = *r;
  pthread_mutex_unlock(&lock);
  return r != NULL;
}

bool gh_add_mapped(void *base, size_t size, int device, unsigned access, bool rdma) {
  pthread_mutex_lock(&lock);
  struct range *there = *place_of(base, DEVICE_MEMORY, true);
  if (there) there->access = access; /* kernels of who had it may run */
  pthread_mutex_unlock(&lock);
  return there || add((struct range){.base = base, .size = size, .type = DEVICE_MEMORY, .device = device,
                                     .access = access, .rdma = rdma});
}

void gh_remove_mapped(const void *base) { remove_range(base, DEVICE_MEMORY, true); }

/* From `LARGE` on an allocation shares no page with another; whole pages never do. */
#define LARGE ((size_t)2 << 20)

static void *take_memory(size_t size, bool managed) {
  void *memory = NULL;
  if (!managed && gh_is_exportable(size)) return gh_allocate_exportable(size);
  return posix_memalign(&memory, size < LARGE && size % 4096 ? 512 : 4096, size) ? NULL : memory;
}

static void give_memory_back(const struct range *of) {
  if (!of->managed && gh_is_exportable(of->size)) gh_free_exportable(of->base);
  else free(of->base);
}

static int allocate(uint64_t *address, size_t size, bool managed) {
  if (!size) return INVALID_VALUE;
  void *memory = take_memory(size, managed);
  if (!memory) return OUT_OF_MEMORY;
  memset(memory, 0xA5, size);
  struct range range = range_here(memory, size, DEVICE_MEMORY);
  range.managed = managed;
  range.owned = true;
  if (!add(range)) {
    give_memory_back(&range);
    return OUT_OF_MEMORY;
  }
  gh_count_live("allocated", 1);
  *address = (uint64_t)(uintptr_t)memory;
  return OK;
}

GH_API int cuMemAlloc_v2(uint64_t *address, size_t size) {
  int r = gh_enter_unsafe("cuMemAlloc_v2");
  if (r) return r;
  gh_may_wait_for("cuMemAlloc", gh_context());
  return allocate(address, size, false);
}

GH_API int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags) {
  int r = gh_enter_unsafe("cuMemAllocManaged");
  if (r == OK && flags != 1) r = INVALID_VALUE;
  return r ? r : allocate(address, size, true);
}

GH_API int cuMemFree_v2(uint64_t address) {
  int r = gh_enter_ending("cuMemFree_v2");
  if (r) return r;
  void *base = (void *)(uintptr_t)address;
  struct range of;
  gh_wait_for_all("cuMemFree"); /* peers of the context have it mapped, too */
  if (!take_owned(base, DEVICE_MEMORY, &of)) return INVALID_VALUE;
  gh_nic_forget(base, of.size);
  give_memory_back(&of);
  gh_count_live("allocated", -1);
  return OK;
}

GH_API int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t address) {
  int r = gh_enter_context("cuMemGetAddressRange_v2");
  struct range of;
  if (r == OK && !range_of(address, &of)) r = NOT_FOUND;
  if (r == OK && base) *base = (uint64_t)(uintptr_t)of.base;
  if (r == OK && size) *size = of.size;
  return r;
}

GH_API int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t size, int type,
                                         unsigned long long flags) {
  int r = gh_enter_unsafe("cuMemGetHandleForAddressRange");
  if (r == OK && (type != 1 || flags || address % 4096 || size % 4096)) r = INVALID_VALUE;
  pthread_mutex_lock(&lock);
  const struct range *of = find((void *)(uintptr_t)address, size);
  if (r == OK && (!of || of->type != DEVICE_MEMORY || of->managed || !(of->context || of->rdma))) r = INVALID_VALUE;
  pthread_mutex_unlock(&lock);
  if (r) return r;
  int fd = gh_dma_buf(address, size);
  if (fd < 0) return OUT_OF_MEMORY;
  *(int *)handle = fd;
  return OK;
}

static uintptr_t page_of(const char *p) { return (uintptr_t)p / 4096; }

static bool shares_page_with_registered(const char *base, size_t size) {
  const uintptr_t first = page_of(base), last = page_of(base + size - 1);
  pthread_mutex_lock(&lock);
  struct range *r = ranges;
  while (r && (r->type != HOST_MEMORY || first > page_of(r->base + r->size - 1) || last < page_of(r->base)))
    r = r->next;
  pthread_mutex_unlock(&lock);
  return r != NULL;
}

/* Whole pages are what the hardware maps: a page of two registrations is refused as the driver does. */
GH_API int cuMemHostRegister_v2(void *memory, size_t size, unsigned flags) {
  int r = gh_enter_unsafe("cuMemHostRegister_v2");
  if (r == OK && (!memory || !size || flags & ~3u)) r = INVALID_VALUE;
  if (r == OK && shares_page_with_registered(memory, size)) r = ALREADY_REGISTERED;
  if (r) return r;
  gh_may_wait_for("cuMemHostRegister", gh_context());
  if (!add(range_here(memory, size, HOST_MEMORY))) return OUT_OF_MEMORY;
  gh_count_live("registered", 1);
  return OK;
}

GH_API int cuMemHostUnregister(void *memory) {
  int r = gh_enter_ending("cuMemHostUnregister");
  if (r == OK) gh_wait_for_all("cuMemHostUnregister");
  if (r == OK && !remove_range(memory, HOST_MEMORY, false)) r = NOT_REGISTERED;
  if (r == OK) gh_count_live("registered", -1);
  return r;
}

GH_API int cuMemHostAlloc(void **memory, size_t size, unsigned flags) {
  int r = gh_enter_unsafe("cuMemHostAlloc");
  if (r == OK && (!size || flags & ~7u)) r = INVALID_VALUE;
  if (r) return r;
  size_t whole = (size + 4095) / 4096 * 4096;
  void *p = NULL;
  if (posix_memalign(&p, 4096, whole)) return OUT_OF_MEMORY;
  memset(p, 0xA5, whole);
  struct range range = range_here(p, whole, HOST_MEMORY);
  range.owned = true;
  if (!add(range)) {
    free(p);
    return OUT_OF_MEMORY;
  }
  gh_count_live("host memory", 1);
  *memory = p;
  return OK;
}

GH_API int cuMemFreeHost(void *memory) {
  int r = gh_enter_ending("cuMemFreeHost");
  struct range of;
  if (r == OK) gh_wait_for_all("cuMemFreeHost");
  if (r == OK && !take_owned(memory, HOST_MEMORY, &of)) r = INVALID_VALUE;
  if (r) return r;
  free(memory);
  gh_count_live("host memory", -1);
  return OK;
}

/* Addresses are the same on both sides. */
GH_API int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned flags) {
  int r = gh_enter_context("cuMemHostGetDevicePointer_v2");
  struct range of;
  if (r == OK && (flags || !range_of((uint64_t)(uintptr_t)memory, &of) || of.type != HOST_MEMORY)) r = INVALID_VALUE;
  if (r == OK) *address = (uint64_t)(uintptr_t)memory;
  return r;
}

static int pointer_attribute(void *value, int attribute, uint64_t pointer, const struct range *of) {
  switch (attribute) {
    case 1: *(void **)value = of->context; break;
    case 2: *(unsigned *)value = (unsigned)of->type; break;
    case 3: *(uint64_t *)value = of->base ? pointer : 0; break;
    case 8: *(unsigned *)value = of->managed; break;
    case 9: *(int *)value = of->base ? of->device : -2; break;
    default: return INVALID_VALUE;
  }
  return OK;
}

GH_API int cuPointerGetAttributes(unsigned n, int *attributes, void **values, uint64_t pointer) {
  int r = gh_enter("cuPointerGetAttributes");
  struct range of = {.base = NULL};
  range_of(pointer, &of);
  for (unsigned i = 0; r == OK && i < n; i++) r = pointer_attribute(values[i], attributes[i], pointer, &of);
  return r;
}

/* Unlike the call for several, it does not answer for memory that the driver does not know. */
GH_API int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) {
  int r = gh_enter("cuPointerGetAttribute");
  struct range of = {.base = NULL};
  if (r == OK && !range_of(pointer, &of)) r = INVALID_VALUE;
  return r ? r : pointer_attribute(value, attribute, pointer, &of);
}

static int copy(const char *call, void *to, const void *from, size_t size, const void *on_device) {
  int r = gh_enter_context(call);
  if (r == OK) gh_wait_for_legacy(call);
  if (r == OK && !gh_reachable(on_device, size, NULL)) r = INVALID_VALUE;
  if (r == OK) memcpy(to, from, size);
  return r;
}

GH_API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  void *p = (void *)(uintptr_t)to;
  return copy("cuMemcpyHtoD_v2", p, from, size, p);
}

GH_API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  void *p = (void *)(uintptr_t)from;
  return copy("cuMemcpyDtoH_v2", to, p, size, p);
}

bool gh_exceeds_allocation(const void *p, size_t size) {
  struct range of;
  const char *at = p;
  return range_of((uint64_t)(uintptr_t)p, &of) && size > (size_t)(of.base + of.size - at);
}

/* For either direction: memory that the driver does not know is the host's own. */
GH_API int cuMemcpy(uint64_t to, uint64_t from, size_t size) {
  int r = gh_enter_context("cuMemcpy");
  if (r == OK) gh_wait_for_legacy("cuMemcpy");
  void *into = (void *)(uintptr_t)to, *out_of = (void *)(uintptr_t)from;
  if (r == OK && (gh_exceeds_allocation(into, size) || gh_exceeds_allocation(out_of, size))) r = INVALID_VALUE;
  if (r == OK) memmove(into, out_of, size);
  return r;
}

GH_API int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t size) {
  int r = gh_enter_context("cuMemsetD8_v2");
  void *p = (void *)(uintptr_t)address;
  if (r == OK) gh_wait_for_legacy("cuMemsetD8_v2");
  if (r == OK && !gh_reachable(p, size, NULL)) r = INVALID_VALUE;
  if (r == OK) memset(p, value, size);
  return r;
}
