/* SPDX-License-Identifier: Apache-2.0
 * The emulated driver's devices as peers of each other, and memory of other processes. What is exported comes to lie
 * in a file without a name, which others find by its owner's descriptor; its last page counts who has it open. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ghost/driver/gh_cuda.h"
#include "ghost/driver/gh_driver.h"

#define PAGE 4096u
#define BLOCK (2u << 20)
#define DOMAIN 0xffffu /* that no machine has */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool enabled[GH_MAX_DEVICES][GH_MAX_DEVICES];

/* ---- peers ---- */

static bool peers_are(const char *what) {
  const char *text = getenv("GHOST_PEERS");
  return text && strcmp(text, what) == 0;
}

bool gh_can_access_peers(void) { return !peers_are("none"); }

bool gh_has_peer_access(const struct gh_context *from, const struct gh_context *to) {
  pthread_mutex_lock(&lock);
  bool may = from == to || enabled[from->device][to->device];
  pthread_mutex_unlock(&lock);
  return may;
}

static int enter_pair(const char *call, int device, int peer) {
  int r = gh_enter(call);
  bool bad = device < 0 || peer < 0 || device >= gh_devices() || peer >= gh_devices() || device == peer;
  return r ? r : bad ? INVALID_DEVICE : OK;
}

GH_API int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  int r = enter_pair("cuDeviceCanAccessPeer", device, peer);
  if (r == OK) *can = gh_can_access_peers();
  return r;
}

GH_API int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) {
  int r = enter_pair("cuDeviceGetP2PAttribute", device, peer);
  if (r == OK && attribute != 3) r = INVALID_VALUE; /* native atomics */
  if (r == OK) *value = peers_are("nvlink");
  return r;
}

GH_API int cuDeviceGetPCIBusId(char *text, int size, int device) {
  int r = gh_enter("cuDeviceGetPCIBusId");
  if (r == OK && (device < 0 || device >= gh_devices())) r = INVALID_DEVICE;
  if (r == OK && size < 13) r = INVALID_VALUE;
  if (r == OK) snprintf(text, (size_t)size, "%04X:%02X:00.0", DOMAIN, (unsigned)device & 0xff);
  return r;
}

GH_API int cuDeviceGetByPCIBusId(int *device, const char *text) {
  int r = gh_enter("cuDeviceGetByPCIBusId");
  unsigned domain = 0, bus = 0;
  if (r == OK && sscanf(text, "%x:%2x:00.0", &domain, &bus) != 2) r = INVALID_VALUE;
  if (r == OK && (domain != DOMAIN || (int)bus >= gh_devices())) r = INVALID_DEVICE;
  if (r == OK) *device = (int)bus;
  return r;
}

GH_API int cuCtxEnablePeerAccess(void *peer, unsigned flags) {
  int r = gh_enter_context("cuCtxEnablePeerAccess");
  const struct gh_context *to = peer, *from = gh_context();
  if (r == OK && flags) r = INVALID_VALUE;
  if (r == OK && (!gh_is_context(peer) || to == from)) r = INVALID_CONTEXT;
  if (r == OK && !gh_can_access_peers()) r = PEER_ACCESS_UNSUPPORTED;
  if (r) return r;
  gh_wait_for("cuCtxEnablePeerAccess", from);
  pthread_mutex_lock(&lock);
  if (enabled[from->device][to->device]) r = PEER_ACCESS_ALREADY_ENABLED;
  enabled[from->device][to->device] = true;
  pthread_mutex_unlock(&lock);
  return r;
}

/* ---- memory of other processes ---- */

#define MARK 0x66616b65697063ull
struct handle {
  uint64_t mark, size;
  int64_t pid;
  int fd, device;
};
_Static_assert(sizeof(struct handle) <= sizeof(struct gh_ipc), "it fits");

/* Of this process: what it has exported, and what it has opened. */
struct shared {
  struct shared *next;
  char *base;
  size_t size;
  int fd; /* of what is opened: -1 */
  int *open_elsewhere;
};
static struct shared *exported, *opened;

static struct shared **find(struct shared **list, const void *base) {
  while (*list && (*list)->base != base) list = &(*list)->next;
  return list;
}

static struct shared *take_out(struct shared **list, const void *base) {
  pthread_mutex_lock(&lock);
  struct shared **at = find(list, base), *s = *at;
  if (s) *at = s->next;
  pthread_mutex_unlock(&lock);
  return s;
}

static struct shared *put_in(struct shared **list, struct shared value) {
  struct shared *s = malloc(sizeof *s);
  if (!s) return NULL;
  *s = value;
  pthread_mutex_lock(&lock);
  s->next = *list;
  *list = s;
  pthread_mutex_unlock(&lock);
  return s;
}

static void *map(void *at, size_t size, int fd, size_t from) {
  void *p = mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, (off_t)from);
  return p == MAP_FAILED ? NULL : p;
}

static void unmap(void *at, size_t size) {
  if (at) munmap(at, size);
}

/* One call writes 2 GiB at most. */
static bool write_all(int fd, const char *from, size_t size) {
  for (size_t at = 0; at < size;) {
    ssize_t n = pwrite(fd, from + at, size - at, (off_t)at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += (size_t)n;
  }
  return true;
}

/* The allocation stays where it is, and what is in it. NULL: no memory, and nothing has changed. */
static struct shared *export_now(char *base, size_t size) {
  int fd = memfd_create("ghost", MFD_CLOEXEC);
  bool good = fd >= 0 && !ftruncate(fd, (off_t)(size + PAGE)) && write_all(fd, base, size);
  int *count = good ? map(NULL, PAGE, fd, size) : NULL;
  struct shared *s = NULL;
  if (count) s = put_in(&exported, (struct shared){.base = base, .size = size, .fd = fd, .open_elsewhere = count});
  if (s && map(base, size, fd, 0)) return s;
  if (s) free(take_out(&exported, base));
  unmap(count, PAGE);
  if (fd >= 0) close(fd);
  return NULL;
}

GH_API int cuIpcGetMemHandle(struct gh_ipc *out, uint64_t address) {
  int r = gh_enter_context("cuIpcGetMemHandle");
  char *base = (char *)(uintptr_t)address;
  size_t size = r ? 0 : gh_allocated(base);
  /* What is smaller lies in one block with others, and the block is what the other process gets. */
  if (r == OK && (size == 0 || size % BLOCK)) r = INVALID_VALUE;
  if (r) return r;
  pthread_mutex_lock(&lock);
  struct shared *s = *find(&exported, base);
  pthread_mutex_unlock(&lock);
  if (!s) s = export_now(base, size);
  if (!s) return OUT_OF_MEMORY;
  struct handle h = {.mark = MARK, .size = size, .pid = getpid(), .fd = s->fd, .device = gh_context()->device};
  memset(out, 0, sizeof *out);
  memcpy(out, &h, sizeof h);
  return OK;
}

void gh_unexport(void *base, size_t size) {
  struct shared *s = take_out(&exported, base);
  if (!s) return;
  /* Undefined in CUDA: counted, so that tests find it. */
  if (__atomic_load_n(s->open_elsewhere, __ATOMIC_ACQUIRE)) gh_count_live("freed while open", 1);
  (void)mmap(base, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  munmap(s->open_elsewhere, PAGE);
  close(s->fd);
  free(s);
}

GH_API int cuIpcOpenMemHandle_v2(uint64_t *address, struct gh_ipc handle, unsigned flags) {
  int r = gh_enter_unsafe("cuIpcOpenMemHandle_v2");
  struct handle h;
  char path[64];
  memcpy(&h, &handle, sizeof h);
  if (r == OK && (h.mark != MARK || flags != 1)) r = INVALID_VALUE;
  if (r == OK && h.pid == getpid()) r = INVALID_CONTEXT;
  if (r == OK && h.device != gh_context()->device && !gh_can_access_peers()) r = PEER_ACCESS_UNSUPPORTED;
  if (r) return r;
  gh_wait_for("cuIpcOpenMemHandle", gh_context());
  snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)h.pid, h.fd);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  char *base = fd < 0 ? NULL : map(NULL, h.size, fd, 0);
  int *count = base ? map(NULL, PAGE, fd, h.size) : NULL;
  if (fd >= 0) close(fd);
  struct shared *s = NULL;
  if (count) s = put_in(&opened, (struct shared){.base = base, .size = h.size, .fd = -1, .open_elsewhere = count});
  if (!s || !gh_add_imported(base, h.size)) {
    if (s) free(take_out(&opened, base));
    unmap(count, PAGE);
    unmap(base, h.size);
    return count ? OUT_OF_MEMORY : INVALID_VALUE;
  }
  __atomic_add_fetch(count, 1, __ATOMIC_ACQ_REL);
  gh_count_live("opened", 1);
  *address = (uint64_t)(uintptr_t)base;
  return OK;
}

GH_API int cuIpcCloseMemHandle(uint64_t address) {
  int r = gh_enter_ending("cuIpcCloseMemHandle");
  if (r == OK) gh_wait_for_all("cuIpcCloseMemHandle");
  struct shared *s = r ? NULL : take_out(&opened, (void *)(uintptr_t)address);
  if (!s) return r ? r : INVALID_VALUE;
  gh_remove_imported(s->base);
  __atomic_sub_fetch(s->open_elsewhere, 1, __ATOMIC_ACQ_REL);
  munmap(s->base, s->size);
  munmap(s->open_elsewhere, PAGE);
  free(s);
  gh_count_live("opened", -1);
  return OK;
}
