/* SPDX-License-Identifier: Apache-2.0
 * GPU memory of a P2P connection, exported and imported by the types that both ranks have. rt_p2p.c calls it, in the
 * thread that connects or frees; rt_comm_init.c finds the types, and rt_comm.c waits for importers when it
 * closes its connections. */
#include "core/gpu/rt_export.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/sock.h"
#include "core/comm/rt_comm.h"

#define BIT RT_EXPORT_BIT
#define BETWEEN_PROCESSES (BIT(RT_EXPORT_FABRIC) | BIT(RT_EXPORT_FD) | BIT(RT_EXPORT_IPC))
#define WITHIN_A_PROCESS (BIT(RT_EXPORT_MAPPED) | BIT(RT_EXPORT_PLAIN))
#define LARGEST_GRANULARITY (1u << 30)
#define ZERO_MS 10000u /* to clear new memory, behind whatever the program has queued on the device */
#define CLOSE_MS 1000u /* how long an owner waits for an importer to close */

struct rt_export {
  struct rt_export *next; /* of the process' */
  struct rt_mem mem;
  uint64_t serial;
  void *context;
  int ordinal, refs; /* the owner, and importers in this process */
};

/* An export whose owner has ended, and which another process still has. */
struct leftover {
  struct leftover *next;
  struct rt_export *e;
  const uint64_t *closed;
  struct rt_range shared;
  int64_t importer;
  uint64_t deadline; /* of waiting for it */
  bool logged;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all that follows, and refs */
static struct rt_export *exports;
static struct leftover *leftovers;
static uint64_t serials;

/* ---- types ------------------------------------------------------------------------------ */

const char *rt_export_text(uint32_t type) {
  static const char *const text[RT_EXPORT_TYPES] = {"nothing",  "cuMem fabric handles", "cuMem file descriptors",
                                                    "CUDA IPC", "direct pointers",      "direct pointers"};
  return type < RT_EXPORT_TYPES ? text[type] : "an unknown type";
}

uint32_t rt_export_open(int device, struct rt_fd_receiver *receiver) {
  uint32_t types = BIT(RT_EXPORT_IPC) | BIT(RT_EXPORT_PLAIN);
  char why[RT_WHY];
  if (!rt_mem_may_map(device)) return types;
  const int handles = rt_mem_handles(device);
  types |= BIT(RT_EXPORT_MAPPED);
  if (handles & RT_CU_FABRIC_HANDLE && rt_mem_has_fabric(device, why))
    types |= BIT(RT_EXPORT_FABRIC);
  else if (handles & RT_CU_FABRIC_HANDLE)
    RAIL_INFO(RAIL_SUB_INIT, "P2P: CUDA device %d has no fabric: %s", device, why);
  if (handles & RT_CU_FD_HANDLE && rt_fd_receiver_open(receiver))
    types |= BIT(RT_EXPORT_FD);
  else if (handles & RT_CU_FD_HANDLE)
    RAIL_INFO(RAIL_SUB_INIT, "P2P: no unix socket for file descriptors of GPU memory: %s", strerror(errno));
  return types;
}

uint32_t rt_export_types(const struct ncclComm *comm, const struct rt_peer *peer) {
  const struct rt_peer *me = &comm->peers[comm->rank];
  return rt_peer_same_process(me, peer) ? me->export_types & WITHIN_A_PROCESS
                                        : me->export_types & peer->export_types & BETWEEN_PROCESSES;
}

bool rt_export_size_fits(const struct rt_export_record *record, size_t wanted) {
  const uint32_t g = record->granularity;
  return g >= RT_PAGE && g <= LARGEST_GRANULARITY && (g & (g - 1)) == 0 &&
         record->size == RAIL_ROUND_UP(wanted, (size_t)g);
}

/* ---- making: the context is current -------------------------------------------------------- */

static bool export_fd(uint64_t handle, const struct rt_peer *peer, struct rt_export_record *record, char why[RT_WHY]) {
  int fd = -1;
  if (rail_random_bytes(record->key, sizeof record->key) != RAIL_OK) {
    snprintf(why, RT_WHY, "no random bytes for a key");
    return false;
  }
  if (rt_cuda_refused(rt_cuda()->mem_export(&fd, handle, RT_CU_FD_HANDLE, 0), "cuMemExportToShareableHandle", why))
    return false;
  bool good = rt_fd_send(peer->fd_receiver, peer->pid, record->key, fd, why);
  close(fd);
  return good;
}

/* The driver counts who has mapped the memory: the handle is not needed once it is exported. */
static bool make_mapped(struct ncclComm *comm, const struct rt_peer *peer, size_t size, struct rt_mem *mem,
                        struct rt_export_record *record, char why[RT_WHY]) {
  const int handles[RT_EXPORT_TYPES] = {[RT_EXPORT_FABRIC] = RT_CU_FABRIC_HANDLE, [RT_EXPORT_FD] = RT_CU_FD_HANDLE};
  uint64_t handle = 0;
  bool good = true;
  if (!rt_mem_map(mem, comm->gpu.ordinal, size, handles[record->type], &handle, why)) return false;
  if (record->type == RT_EXPORT_FD) good = export_fd(handle, peer, record, why);
  if (record->type == RT_EXPORT_FABRIC)
    good = !rt_cuda_refused(rt_cuda()->mem_export(&record->fabric, handle, RT_CU_FABRIC_HANDLE, 0),
                            "cuMemExportToShareableHandle", why);
  rt_mem_release(handle);
  if (!good) rt_mem_free(mem);
  return good;
}

static bool make_plain(size_t size, struct rt_mem *mem, struct rt_export_record *record, char why[RT_WHY]) {
  if (!rt_mem_alloc(mem, RAIL_ROUND_UP(size, RT_GPU_BLOCK), why)) return false;
  bool good = record->type != RT_EXPORT_IPC ||
              !rt_cuda_refused(rt_cuda()->ipc_export(&record->ipc, mem->address), "cuIpcGetMemHandle", why);
  if (!good) rt_mem_free(mem);
  return good;
}

/* On a stream of its own: on the legacy stream it would wait for what the program does on others. */
static bool make_zero(struct rt_gpu *gpu, const struct rt_mem *mem, char why[RT_WHY]) {
  const struct rt_cuda *cu = rt_cuda();
  if (!gpu->own_stream &&
      rt_cuda_refused(cu->stream_create(&gpu->own_stream, RT_CU_STREAM_NON_BLOCKING), "cuStreamCreate", why))
    return false;
  if (rt_cuda_refused(cu->mem_set(mem->address, 0, mem->size, gpu->own_stream), "cuMemsetD8Async", why)) return false;
  uint64_t until = rail_deadline_in_ms(ZERO_MS);
  int r = cu->stream_query(gpu->own_stream);
  for (; r == RT_CU_NOT_READY && !rail_deadline_passed(until); r = cu->stream_query(gpu->own_stream))
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
  return !rt_cuda_refused(r, "cuStreamQuery", why);
}

/* By one type; a failure leaves nothing behind. */
static bool make_by(struct ncclComm *comm, const struct rt_peer *peer, enum rt_export_type type, size_t size,
                    struct rt_mem *mem, struct rt_export_record *record, char why[RT_WHY]) {
  record->type = type;
  bool good = type == RT_EXPORT_IPC || type == RT_EXPORT_PLAIN ? make_plain(size, mem, record, why)
                                                               : make_mapped(comm, peer, size, mem, record, why);
  if (!good) return false;
  if (make_zero(&comm->gpu, mem, why)) return true;
  rt_mem_free(mem);
  return false;
}

static bool make_best(struct ncclComm *comm, int peer, size_t size, struct rt_mem *mem, struct rt_export_record *record,
                      char why[RT_WHY]) {
  const uint32_t types = rt_export_types(comm, &comm->peers[peer]);
  snprintf(why, RT_WHY, "there is no way that both have (NCCL_CUMEM_ENABLE?)");
  for (uint32_t type = RT_EXPORT_NONE + 1; type < RT_EXPORT_TYPES; type++) {
    if (!(types & BIT(type))) continue;
    if (make_by(comm, &comm->peers[peer], (enum rt_export_type)type, size, mem, record, why)) return true;
    RAIL_INFO(RAIL_SUB_INIT, "rank %d: rank %d cannot get at memory of this GPU by %s: %s", comm->rank, peer,
              rt_export_text(type), why);
  }
  return false;
}

static bool enter(struct rt_cuda_scope *scope, void *context, char why[RT_WHY]) {
  if (rt_cuda_enter(scope, context) == RAIL_OK) return true;
  snprintf(why, RT_WHY, "the communicator's CUDA context cannot be made current");
  return false;
}

static void reap(void);

struct rt_export *rt_export_make(struct ncclComm *comm, int peer, size_t size, struct rt_export_record *record,
                                 char why[RT_WHY]) {
  struct rt_cuda_scope scope;
  reap();
  struct rt_export *e = calloc(1, sizeof *e);
  snprintf(why, RT_WHY, "out of memory");
  if (!e) return NULL;
  *e = (struct rt_export){.context = comm->gpu.context, .ordinal = comm->gpu.ordinal, .refs = 1};
  bool good = enter(&scope, e->context, why) &&
              !rt_cuda_refused(rt_cuda()->device_bus_id(record->bus_id, RT_CUDA_BUS_ID, e->ordinal),
                               "cuDeviceGetPCIBusId", why) &&
              make_best(comm, peer, size, &e->mem, record, why);
  rt_cuda_leave(&scope);
  if (!good) {
    memset(record, 0, sizeof *record);
    free(e);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  e->serial = ++serials;
  e->next = exports;
  exports = e;
  pthread_mutex_unlock(&lock);
  /* The largest power of 2 that the size is a multiple of serves as well as the driver's own number. */
  const size_t lowest = e->mem.size & (~e->mem.size + 1);
  record->granularity = lowest < LARGEST_GRANULARITY ? (uint32_t)lowest : LARGEST_GRANULARITY;
  record->size = e->mem.size;
  record->address = e->mem.address;
  record->serial = e->serial;
  return e;
}

char *rt_export_base(const struct rt_export *e) { return (char *)(uintptr_t)e->mem.address; }

/* ---- importing ------------------------------------------------------------------------------ */

/* In this process. */
static struct rt_export *find(const struct rt_export_record *r) {
  pthread_mutex_lock(&lock);
  struct rt_export *e = exports;
  while (e && !(e->serial == r->serial && e->mem.address == r->address && e->mem.size == r->size)) e = e->next;
  if (e) e->refs++;
  pthread_mutex_unlock(&lock);
  return e;
}

static void unref(struct rt_export *e) {
  struct rt_cuda_scope scope;
  pthread_mutex_lock(&lock);
  bool last = --e->refs == 0;
  struct rt_export **at = &exports;
  while (last && *at != e) at = &(*at)->next;
  if (last) *at = e->next;
  pthread_mutex_unlock(&lock);
  if (!last) return;
  /* A program may have ended its context first; that took the memory with it, but not what is mapped. */
  bool entered = rt_cuda_enter(&scope, e->context) == RAIL_OK;
  if (entered || e->mem.mapped) rt_mem_free(&e->mem);
  rt_cuda_leave(&scope);
  free(e);
}

/* How far is the memory's GPU from the communicator's, and is that near enough? */
static bool near_enough(const struct ncclComm *comm, const struct rt_export_record *record, enum rt_distance farthest,
                        enum rt_distance *path, char why[RT_WHY]) {
  const struct rt_cuda *cu = rt_cuda();
  char own[RT_CUDA_BUS_ID] = "";
  int mine = comm->gpu.ordinal, theirs = mine, reaches = 1, atomics = 0;
  if (!memchr(record->bus_id, 0, sizeof record->bus_id)) {
    snprintf(why, RT_WHY, "its record is garbled");
    return false;
  }
  if (rt_cuda_refused(cu->device_by_bus_id(&theirs, record->bus_id), "cuDeviceGetByPCIBusId", why)) {
    snprintf(why, RT_WHY, "GPU %s is not visible to this process (CUDA_VISIBLE_DEVICES)", record->bus_id);
    return false;
  }
  *path = RT_LOC;
  if (mine != theirs) {
    if (rt_cuda_refused(cu->device_reaches(&reaches, mine, theirs), "cuDeviceCanAccessPeer", why) ||
        rt_cuda_refused(cu->device_bus_id(own, sizeof own, mine), "cuDeviceGetPCIBusId", why))
      return false;
    if (cu->device_p2p(&atomics, RT_CU_P2P_NATIVE_ATOMICS, mine, theirs) != RT_CU_SUCCESS) atomics = 0;
    *path = atomics ? RT_NVL : rt_pci_bus_distance(rt_params()->sysfs, own, record->bus_id);
  }
  return !rt_p2p_refusal(*path, farthest, reaches != 0, why, RT_WHY);
}

/* May the importer's kernels use memory of this process? */
static bool allow(const struct ncclComm *comm, const struct rt_export *e, char why[RT_WHY]) {
  if (e->mem.mapped) return e->ordinal == comm->gpu.ordinal || rt_mem_allow(&e->mem, comm->gpu.ordinal, why);
  if (e->context == comm->gpu.context) return true;
  int r = rt_cuda()->peer_access(e->context, 0);
  if (r == RT_CU_PEER_ACCESS_ALREADY_ENABLED) r = RT_CU_SUCCESS;
  return !rt_cuda_refused(r, "cuCtxEnablePeerAccess", why);
}

static bool import_shared(const struct ncclComm *comm, const struct rt_export_record *record, struct rt_import *import,
                          char why[RT_WHY]) {
  struct rt_export *e = find(record);
  snprintf(why, RT_WHY, "its memory is gone");
  if (!e) return false;
  if (!allow(comm, e, why)) {
    unref(e);
    return false;
  }
  import->shared = e;
  import->base = rt_export_base(e);
  return true;
}

/* `fd`: of RT_EXPORT_FD, -1 if it has not come. */
static bool import_exported(const struct ncclComm *comm, const struct rt_export_record *record, int owner, int fd,
                            struct rt_import *import, char why[RT_WHY]) {
  struct rt_mem *mem = &import->mem;
  struct rt_cuda_fabric fabric = record->fabric;
  const int device = comm->gpu.ordinal;
  const size_t size = (size_t)record->size;
  if (record->type >= RT_EXPORT_TYPES || !(rt_export_types(comm, &comm->peers[owner]) & BIT(record->type))) {
    snprintf(why, RT_WHY, "it is exported by %s, which this rank cannot import", rt_export_text(record->type));
    return false;
  }
  bool good = false;
  *mem = (struct rt_mem){.size = size};
  if (record->type == RT_EXPORT_FABRIC)
    good = rt_mem_import(mem, device, size, RT_CU_FABRIC_HANDLE, &fabric, why);
  else if (record->type == RT_EXPORT_IPC)
    good = !rt_cuda_refused(rt_cuda()->ipc_open(&mem->address, record->ipc, RT_CU_IPC_LAZY_PEER_ACCESS),
                            "cuIpcOpenMemHandle", why);
  else if (fd >= 0)
    good = rt_mem_import(mem, device, size, RT_CU_FD_HANDLE, (void *)(intptr_t)fd, why);
  else
    snprintf(why, RT_WHY, "its file descriptor has not come; is the limit of open files (ulimit -n) reached?");
  if (good) import->base = (char *)(uintptr_t)mem->address;
  return good;
}

bool rt_import_open(struct ncclComm *comm, const struct rt_export_record *record, size_t size, int owner,
                    enum rt_distance farthest, struct rt_import *import, char why[RT_WHY]) {
  struct rt_cuda_scope scope = {0};
  const struct rt_peer *peer = &comm->peers[owner];
  const bool same_process = rt_peer_same_process(&comm->peers[comm->rank], peer);
  *import = (struct rt_import){.context = comm->gpu.context, .type = record->type};
  /* Received even if the record turns out to be useless: the descriptor keeps the memory alive. */
  const int fd = record->type == RT_EXPORT_FD ? rt_fd_receive(&comm->fd_receiver, peer->pid, record->key) : -1;
  bool good = rt_export_size_fits(record, size);
  if (!good) snprintf(why, RT_WHY, "it has %llu bytes instead of %zu", (unsigned long long)record->size, size);
  good =
      good && enter(&scope, import->context, why) && near_enough(comm, record, farthest, &import->path, why) &&
      (same_process ? import_shared(comm, record, import, why) : import_exported(comm, record, owner, fd, import, why));
  rt_cuda_leave(&scope);
  if (fd >= 0) close(fd);
  return good;
}

void rt_import_close(struct rt_import *import) {
  struct rt_cuda_scope scope;
  char why[RT_WHY];
  if (!import->base) return;
  if (import->shared) {
    unref(import->shared);
  } else {
    bool entered = rt_cuda_enter(&scope, import->context) == RAIL_OK;
    if (import->type != RT_EXPORT_IPC)
      rt_mem_free(&import->mem);
    else if (entered && rt_cuda_refused(rt_cuda()->ipc_close(import->mem.address), "cuIpcCloseMemHandle", why))
      RAIL_INFO(RAIL_SUB_INIT, "%s", why);
    rt_cuda_leave(&scope);
  }
  *import = (struct rt_import){.base = NULL};
}

/* ---- the owner's end -------------------------------------------------------------------------- */

static bool process_ended(int64_t pid) {
  int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
  if (fd < 0) return kill((pid_t)pid, 0) != 0;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  bool ended = poll(&p, 1, 0) == 1;
  close(fd);
  return ended;
}

/* Frees what importers have closed by now. */
static void reap(void) {
  struct leftover *over = NULL;
  pthread_mutex_lock(&lock);
  for (struct leftover **at = &leftovers, *l; (l = *at);) {
    if (!__atomic_load_n(l->closed, __ATOMIC_ACQUIRE) && !process_ended(l->importer)) {
      at = &l->next;
      continue;
    }
    *at = l->next;
    l->next = over;
    over = l;
  }
  pthread_mutex_unlock(&lock);
  while (over) {
    struct leftover *l = over;
    over = l->next;
    unref(l->e);
    munmap(l->shared.base, l->shared.size);
    free(l);
  }
}

bool rt_export_free(struct rt_export *e, int64_t importer, const uint64_t *closed, struct rt_range shared) {
  if (!closed || importer == getpid() || e->mem.mapped || __atomic_load_n(closed, __ATOMIC_ACQUIRE)) {
    unref(e);
    return false;
  }
  struct leftover *l = malloc(sizeof *l);
  if (!l) return true; /* leaked on purpose: another process may still have it mapped */
  *l = (struct leftover){
      .e = e, .closed = closed, .shared = shared, .importer = importer, .deadline = rail_deadline_in_ms(CLOSE_MS)};
  pthread_mutex_lock(&lock);
  l->next = leftovers;
  leftovers = l;
  pthread_mutex_unlock(&lock);
  return true;
}

static bool any_pending(void) {
  pthread_mutex_lock(&lock);
  const struct leftover *l = leftovers;
  while (l && rail_deadline_passed(l->deadline)) l = l->next;
  pthread_mutex_unlock(&lock);
  return l != NULL;
}

void rt_export_wait(void) {
  for (reap(); any_pending(); reap()) nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  pthread_mutex_lock(&lock);
  for (struct leftover *l = leftovers; l; l = l->next) {
    if (!l->logged)
      RAIL_INFO(RAIL_SUB_INIT,
                "process %lld still uses memory of CUDA device %d that a communicator of this process "
                "exported to it; it is freed when that process has closed it, at the latest with this process",
                (long long)l->importer, l->e->ordinal);
    l->logged = true;
  }
  pthread_mutex_unlock(&lock);
}
