/* SPDX-License-Identifier: Apache-2.0
 * The emulated driver's devices as peers of each other, and memory of other processes. What can be exported lies in
 * a file without a name, one a process, which others find by its owner's descriptor. Behind each allocation is a page
 * that says which it is and counts who has it open. What was freed is a hole in the file, whose place is not used
 * again. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
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
  uint64_t mark, number, offset, size;
  int64_t pid;
  int fd, device;
};
_Static_assert(sizeof(struct handle) <= sizeof(struct gh_ipc), "it fits");

/* The page behind an allocation. */
struct trailer {
  uint64_t number; /* random, never 0 */
  int open_elsewhere;
};

/* Of this process: what it may export, and what it has opened. */
struct shared {
  struct shared *next;
  char *base;
  size_t size, offset; /* offset: in the file */
  struct trailer *trailer;
  pid_t pid; /* of what may be exported: whose file it is in; a forked child has one of its own */
};
static struct shared *exportable, *opened;
static struct { int fd; size_t end; pid_t pid; unsigned int allocations; } file; /* open while there are any */

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

/* Memory, a page that nobody may touch, the trailer. */
static size_t room_of(size_t size) { return size + 2 * PAGE; }

static char *map_allocation(size_t size, int fd, size_t offset) {
  char *base = mmap(NULL, room_of(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return NULL;
  if (map(base, size, fd, offset) && map(base + size + PAGE, PAGE, fd, offset + size)) return base;
  munmap(base, room_of(size));
  return NULL;
}

static struct trailer *trailer_of(char *base, size_t size) {
  return (struct trailer *)(void *)(base + size + PAGE);
}

/* A place in the file, at `offset`. */
static bool extend_file(size_t size, size_t *offset) {
  pthread_mutex_lock(&lock);
  if (file.pid != getpid()) {
    file.fd = memfd_create("ghost", MFD_CLOEXEC);
    file.end = 0;
    file.allocations = 0;
    file.pid = file.fd < 0 ? 0 : getpid();
  }
  *offset = file.end;
  bool good = file.pid && ftruncate(file.fd, (off_t)(file.end + size + PAGE)) == 0;
  if (good) file.end += size + PAGE;
  if (good) file.allocations++;
  pthread_mutex_unlock(&lock);
  return good;
}

/* The place is not used again; without any the file goes. */
static void free_place(size_t offset, size_t size) {
  pthread_mutex_lock(&lock);
  if (--file.allocations == 0) {
    close(file.fd);
    file.pid = 0;
  } else {
    (void)fallocate(file.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)(size + PAGE));
  }
  pthread_mutex_unlock(&lock);
}

/* What is smaller lies in one block with others, and the block is what another process would get. */
bool gh_is_exportable(size_t size) { return size % BLOCK == 0; }

void *gh_allocate_exportable(size_t size) {
  uint64_t number;
  size_t offset;
  if (getrandom(&number, sizeof number, 0) != sizeof number || !extend_file(size, &offset)) return NULL;
  char *base = map_allocation(size, file.fd, offset);
  struct trailer *t = base ? trailer_of(base, size) : NULL;
  if (t) *t = (struct trailer){.number = number | 1};
  if (t && put_in(&exportable, (struct shared){.base = base, .size = size, .offset = offset, .trailer = t,
                                               .pid = getpid()}))
    return base;
  if (base) munmap(base, room_of(size));
  free_place(offset, size);
  return NULL;
}

void gh_free_exportable(void *base) {
  struct shared *s = take_out(&exportable, base);
  /* Undefined in CUDA: counted, so that tests find it. */
  if (__atomic_load_n(&s->trailer->open_elsewhere, __ATOMIC_ACQUIRE)) gh_count_live("freed while open", 1);
  if (s->pid == getpid()) free_place(s->offset, s->size);
  munmap(base, room_of(s->size));
  free(s);
}

GH_API int cuIpcGetMemHandle(struct gh_ipc *out, uint64_t address) {
  int r = gh_enter_context("cuIpcGetMemHandle");
  struct handle h = {.mark = MARK, .pid = getpid()};
  if (r) return r;
  pthread_mutex_lock(&lock);
  const struct shared *s = *find(&exportable, (void *)(uintptr_t)address);
  if (s && s->pid != getpid()) s = NULL;
  if (s) h.number = s->trailer->number, h.offset = s->offset, h.size = s->size, h.fd = file.fd;
  pthread_mutex_unlock(&lock);
  if (!s) return INVALID_VALUE;
  h.device = gh_context()->device;
  memset(out, 0, sizeof *out);
  memcpy(out, &h, sizeof h);
  return OK;
}

/* Whether the file has that place; a page behind its end is SIGBUS. */
static bool holds(int fd, const struct handle *h) {
  struct stat st;
  return fstat(fd, &st) == 0 && h->size && h->offset % PAGE == 0 && h->size % PAGE == 0 &&
         h->offset <= (uint64_t)st.st_size && h->size <= (uint64_t)st.st_size - h->offset &&
         (uint64_t)st.st_size - h->offset - h->size >= PAGE;
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
  char *base = fd >= 0 && holds(fd, &h) ? map_allocation(h.size, fd, h.offset) : NULL;
  if (fd >= 0) close(fd);
  if (!base) return INVALID_VALUE;
  struct trailer *t = trailer_of(base, h.size);
  struct shared *s = NULL;
  const bool same = t->number == h.number; /* else it was freed */
  if (same) s = put_in(&opened, (struct shared){.base = base, .size = h.size, .trailer = t});
  if (!s || !gh_add_imported(base, h.size)) {
    if (s) free(take_out(&opened, base));
    munmap(base, room_of(h.size));
    return same ? OUT_OF_MEMORY : INVALID_VALUE;
  }
  __atomic_add_fetch(&t->open_elsewhere, 1, __ATOMIC_ACQ_REL);
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
  __atomic_sub_fetch(&s->trailer->open_elsewhere, 1, __ATOMIC_ACQ_REL);
  munmap(s->base, room_of(s->size));
  free(s);
  gh_count_live("opened", -1);
  return OK;
}
