/* SPDX-License-Identifier: Apache-2.0
 * The emulated driver's virtual memory management. An allocation is a file without a name, whose last page says what it
 * is; who imports it has a descriptor of the same file, so that it lives as the driver's does: until nobody has it
 * mapped or holds a handle, in whatever process. Only whole reservations can be mapped, given access and
 * unmapped. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ghost/driver/gh_cuda.h"
#include "ghost/driver/gh_driver.h"
#include "ghost/driver/gh_nic.h"

#define UNIT ((size_t)2 << 20)
#define PAGE 4096u
#define MARK 0x66616b656d656d31ull
#define FABRIC_MARK 0x66616b65666162ull
#define ALL_HANDLES (GH_FD_HANDLE | GH_FABRIC_HANDLE)

#define ON_HOST (-1) /* in the place of a device */

/* What lies in the last page. */
struct trailer {
  uint64_t mark, size;
  int device, handles, rdma;
};

/* As this process has it; a handle is a pointer to it. */
struct allocation {
  struct allocation *next;
  struct trailer trailer;
  int fd, handles, mappings;
};

struct reservation {
  struct reservation *next;
  char *base;
  size_t size;
  struct allocation *allocation; /* mapped there */
  unsigned access;     /* a bit for each device, and one for the host */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
static struct reservation *reservations;

/* These need no context. */
static int enter(const char *call) {
  int r = gh_enter(call);
  return r == OK && gh_capture_mode() != MODE_RELAXED && gh_invalidate_captures() ? CAPTURE_UNSUPPORTED : r;
}

static int leave(int result) {
  pthread_mutex_unlock(&lock);
  return result;
}

static struct allocation *find_allocation(uint64_t handle) {
  struct allocation *p = allocations;
  while (p && !((uint64_t)(uintptr_t)p == handle && p->handles > 0)) p = p->next;
  return p;
}

static struct reservation *find_reservation(uint64_t address, size_t size) {
  struct reservation *r = reservations;
  while (r && !((uint64_t)(uintptr_t)r->base == address && r->size == size)) r = r->next;
  return r;
}

/* With the lock. */
static void drop_if_unused(struct allocation *p) {
  if (p->handles || p->mappings) return;
  struct allocation **at = &allocations;
  while (*at != p) at = &(*at)->next;
  *at = p->next;
  close(p->fd);
  free(p);
}

/* Takes the descriptor, also if there is no memory. */
static int add_allocation(uint64_t *handle, int fd, const struct trailer *trailer) {
  struct allocation *p = calloc(1, sizeof *p);
  if (!p) {
    close(fd);
    return OUT_OF_MEMORY;
  }
  *p = (struct allocation){.trailer = *trailer, .fd = fd, .handles = 1};
  pthread_mutex_lock(&lock);
  p->next = allocations;
  allocations = p;
  pthread_mutex_unlock(&lock);
  gh_count_live("handles", 1);
  *handle = (uint64_t)(uintptr_t)p;
  return OK;
}

/* ---- allocations ---- */

static int check(const struct gh_allocation *how) {
  if (!gh_attribute(GH_DEVICE_VIRTUAL_MEMORY)) return NOT_SUPPORTED;
  bool of_host = how->location.type == GH_ON_HOST_NUMA || how->location.type == GH_ON_HOST;
  if (how->type != 1 || how->of_windows || how->compression || how->usage) return INVALID_VALUE;
  if (!of_host && how->location.type != GH_ON_DEVICE) return INVALID_VALUE;
  if (!of_host && (how->location.id < 0 || how->location.id >= gh_devices())) return INVALID_DEVICE;
  if (how->handles & ~ALL_HANDLES) return INVALID_VALUE;
  if (how->handles & GH_FD_HANDLE && !gh_attribute(GH_DEVICE_FD_HANDLES)) return NOT_SUPPORTED;
  if (how->handles & GH_FABRIC_HANDLE && !gh_attribute(GH_DEVICE_FABRIC_HANDLES)) return NOT_SUPPORTED;
  return how->rdma && !gh_attribute(GH_DEVICE_RDMA_OF_VIRTUAL_MEMORY) ? INVALID_VALUE : OK;
}

GH_API int cuMemGetAllocationGranularity(size_t *granularity, const struct gh_allocation *how, int option) {
  int r = gh_enter("cuMemGetAllocationGranularity");
  if (r == OK && (!granularity || !how || option < 0 || option > 1)) r = INVALID_VALUE;
  if (r == OK) r = check(how);
  if (r == OK) *granularity = UNIT;
  return r;
}

/* The kernel zeroes host memory, which NCCL relies on. CUDA does not document what a device's memory holds; NCCL relies
 * on zeros there, too, in memory that a peer maps (p2pSendProxySetup in src/transport/p2p.cc). */
static bool comes_as_zeros(int device) {
  const char *told = getenv("GHOST_MAPPED");
  return device == ON_HOST || (told && strcmp(told, "zeros") == 0);
}

static bool fill(int fd, size_t size) {
  char garbage[1 << 16];
  bool good = true;
  memset(garbage, 0xA5, sizeof garbage);
  for (size_t at = 0; good && at < size; at += sizeof garbage)
    good = pwrite(fd, garbage, sizeof garbage, (off_t)at) == (ssize_t)sizeof garbage;
  return good;
}

GH_API int cuMemCreate(uint64_t *handle, size_t size, const struct gh_allocation *how, unsigned long long flags) {
  int r = enter("cuMemCreate");
  if (r == OK && (!handle || !how || flags || !size || size % UNIT)) r = INVALID_VALUE;
  if (r == OK) r = check(how);
  if (r) return r;
  const int device = how->location.type == GH_ON_DEVICE ? how->location.id : ON_HOST;
  const struct trailer trailer = {MARK, size, device, how->handles, how->rdma};
  int fd = memfd_create("ghost", MFD_CLOEXEC);
  bool good = fd >= 0 && ftruncate(fd, (off_t)(size + PAGE)) == 0 &&
              (comes_as_zeros(device) || fill(fd, size)) &&
              pwrite(fd, &trailer, sizeof trailer, (off_t)size) == (ssize_t)sizeof trailer;
  if (good) return add_allocation(handle, fd, &trailer);
  if (fd >= 0) close(fd);
  return OUT_OF_MEMORY;
}

GH_API int cuMemRelease(uint64_t handle) {
  int r = gh_enter_ending("cuMemRelease");
  if (r) return r;
  pthread_mutex_lock(&lock);
  struct allocation *p = find_allocation(handle);
  if (!p) return leave(INVALID_VALUE);
  p->handles--;
  drop_if_unused(p);
  gh_count_live("handles", -1);
  return leave(OK);
}

GH_API int cuMemGetAllocationPropertiesFromHandle(struct gh_allocation *how, uint64_t handle) {
  int r = gh_enter("cuMemGetAllocationPropertiesFromHandle");
  if (r) return r;
  pthread_mutex_lock(&lock);
  const struct allocation *p = find_allocation(handle);
  if (!p) return leave(INVALID_VALUE);
  *how = (struct gh_allocation){.type = 1, .handles = p->trailer.handles, .rdma = (unsigned char)p->trailer.rdma};
  how->location.type = p->trailer.device == ON_HOST ? GH_ON_HOST_NUMA : GH_ON_DEVICE;
  how->location.id = p->trailer.device == ON_HOST ? 0 : p->trailer.device;
  return leave(OK);
}

/* One more handle of what is mapped there. */
GH_API int cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
  int r = gh_enter("cuMemRetainAllocationHandle");
  if (r) return r;
  pthread_mutex_lock(&lock);
  const char *at = address;
  struct reservation *of = reservations;
  while (of && !(at >= of->base && at < of->base + of->size)) of = of->next;
  if (!of || !of->allocation) return leave(INVALID_VALUE);
  of->allocation->handles++;
  gh_count_live("handles", 1);
  *handle = (uint64_t)(uintptr_t)of->allocation;
  return leave(OK);
}

/* ---- addresses ---- */

GH_API int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t hint,
                               unsigned long long flags) {
  int r = enter("cuMemAddressReserve");
  if (r == OK && (!address || flags || hint || !size || size % UNIT || alignment & (alignment - 1) || alignment > UNIT))
    r = INVALID_VALUE;
  if (r) return r;
  char *raw = mmap(NULL, size + UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return OUT_OF_MEMORY;
  char *base = raw + (UNIT - (uintptr_t)raw % UNIT) % UNIT;
  if (base > raw) munmap(raw, (size_t)(base - raw));
  munmap(base + size, (size_t)(raw + UNIT - base));
  struct reservation *new = calloc(1, sizeof *new);
  if (!new) {
    munmap(base, size);
    return OUT_OF_MEMORY;
  }
  *new = (struct reservation){.base = base, .size = size};
  pthread_mutex_lock(&lock);
  new->next = reservations;
  reservations = new;
  gh_count_live("reserved", 1);
  *address = (uint64_t)(uintptr_t)base;
  return leave(OK);
}

GH_API int cuMemAddressFree(uint64_t address, size_t size) {
  int r = gh_enter_ending("cuMemAddressFree");
  if (r) return r;
  pthread_mutex_lock(&lock);
  struct reservation *of = find_reservation(address, size), **at = &reservations;
  if (!of || of->allocation) return leave(INVALID_VALUE);
  while (*at != of) at = &(*at)->next;
  *at = of->next;
  munmap(of->base, of->size);
  free(of);
  gh_count_live("reserved", -1);
  return leave(OK);
}

GH_API int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
  int r = enter("cuMemMap");
  if (r) return r;
  pthread_mutex_lock(&lock);
  struct reservation *to = find_reservation(address, size);
  struct allocation *p = find_allocation(handle);
  if (!to || to->allocation || !p || offset || flags || size > p->trailer.size) return leave(INVALID_VALUE);
  if (mmap(to->base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd, 0) == MAP_FAILED) return leave(OUT_OF_MEMORY);
  to->allocation = p;
  p->mappings++;
  gh_count_live("mapped", 1);
  return leave(OK);
}

GH_API int cuMemUnmap(uint64_t address, size_t size) {
  int r = gh_enter_ending("cuMemUnmap");
  if (r) return r;
  gh_wait_for_all("cuMemUnmap");
  pthread_mutex_lock(&lock);
  struct reservation *of = find_reservation(address, size);
  if (!of || !of->allocation) return leave(INVALID_VALUE);
  (void)mmap(of->base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  of->allocation->mappings--;
  drop_if_unused(of->allocation);
  of->allocation = NULL;
  if (of->access) gh_remove_mapped(of->base);
  gh_nic_forget(of->base, size);
  of->access = 0;
  gh_count_live("mapped", -1);
  return leave(OK);
}

static int check_access(const struct allocation *p, const struct gh_access *a) {
  if (a->access != 0 && a->access != 3) return INVALID_VALUE;
  if (a->location.type == GH_ON_HOST_NUMA || a->location.type == GH_ON_HOST)
    return p->trailer.device == ON_HOST ? OK : INVALID_VALUE;
  if (a->location.type != GH_ON_DEVICE) return INVALID_VALUE;
  if (p->trailer.device == ON_HOST && a->location.id >= 0 && a->location.id < gh_devices()) return OK;
  if (a->location.id < 0 || a->location.id >= gh_devices()) return INVALID_DEVICE;
  return a->location.id == p->trailer.device || gh_can_access_peers() ? OK : INVALID_DEVICE;
}

static int set_access(struct reservation *of, unsigned access) {
  const struct trailer *t = &of->allocation->trailer;
  if (access && !gh_add_mapped(of->base, of->size, t->device, access, t->rdma != 0)) return OUT_OF_MEMORY;
  if (!access && of->access) gh_remove_mapped(of->base);
  of->access = access;
  (void)mprotect(of->base, of->size, access ? PROT_READ | PROT_WRITE : PROT_NONE);
  return OK;
}

GH_API int cuMemSetAccess(uint64_t address, size_t size, const struct gh_access *access, size_t n) {
  int r = enter("cuMemSetAccess");
  if (r) return r;
  pthread_mutex_lock(&lock);
  struct reservation *of = find_reservation(address, size);
  if (!of || !of->allocation || !access || !n) return leave(INVALID_VALUE);
  unsigned bits = of->access;
  for (size_t i = 0; r == OK && i < n; i++) {
    r = check_access(of->allocation, &access[i]);
    if (r) break;
    unsigned bit = access[i].location.type == GH_ON_DEVICE ? 1u << access[i].location.id : 1u << GH_MAX_DEVICES;
    bits = access[i].access ? bits | bit : bits & ~bit;
  }
  if (r == OK) r = set_access(of, bits);
  return leave(r);
}

/* ---- between processes ---- */

struct fabric { uint64_t mark; int64_t pid; int fd; };
_Static_assert(sizeof(struct fabric) <= sizeof(struct gh_fabric), "it fits");

GH_API int cuMemExportToShareableHandle(void *out, uint64_t handle, int type, unsigned long long flags) {
  int r = enter("cuMemExportToShareableHandle");
  if (r) return r;
  pthread_mutex_lock(&lock);
  const struct allocation *p = find_allocation(handle);
  if (!p || !out || flags || (type != GH_FD_HANDLE && type != GH_FABRIC_HANDLE) || !(p->trailer.handles & type))
    return leave(INVALID_VALUE);
  if (type == GH_FD_HANDLE) {
    int fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
    memcpy(out, &fd, sizeof fd);
    return leave(fd < 0 ? OUT_OF_MEMORY : OK);
  }
  const struct fabric f = {.mark = FABRIC_MARK, .pid = getpid(), .fd = p->fd};
  memset(out, 0, sizeof(struct gh_fabric));
  memcpy(out, &f, sizeof f);
  return leave(OK);
}

static int open_shared(const void *shared, int type) {
  struct fabric f;
  char path[64];
  if (type == GH_FD_HANDLE) return fcntl((int)(intptr_t)shared, F_DUPFD_CLOEXEC, 0);
  memcpy(&f, shared, sizeof f);
  if (f.mark != FABRIC_MARK) return -1;
  snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)f.pid, f.fd);
  return open(path, O_RDWR | O_CLOEXEC);
}

GH_API int cuMemImportFromShareableHandle(uint64_t *handle, void *shared, int type) {
  int r = enter("cuMemImportFromShareableHandle");
  if (r == OK && (!handle || (type != GH_FD_HANDLE && type != GH_FABRIC_HANDLE))) r = INVALID_VALUE;
  if (r) return r;
  struct trailer t = {.mark = 0};
  struct stat st;
  int fd = open_shared(shared, type);
  bool good = fd >= 0 && fstat(fd, &st) == 0 && st.st_size > (off_t)PAGE &&
              pread(fd, &t, sizeof t, st.st_size - (off_t)PAGE) == (ssize_t)sizeof t && t.mark == MARK &&
              t.handles & type;
  if (good) return add_allocation(handle, fd, &t);
  if (fd >= 0) close(fd);
  return INVALID_VALUE;
}
