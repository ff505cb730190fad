/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gpu/rt_area.h"

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
#include "core/comm/rt_comm.h"

#define ZERO_MS 10000u

struct rt_area {
  struct rt_area *next; /* of the process' */
  struct rt_mem mem;
  uint64_t serial;
  void *context;
  int ordinal, refs; /* the owner, and takers in this process */
  const struct ncclComm *comm;
};

/* An area whose owner is gone, and which another process still has. */
struct leftover {
  struct leftover *next;
  struct rt_area *area;
  const struct rt_area_offer *offer;
  struct rt_range shared;
  int64_t taker;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all that follows, and refs */
static struct rt_area *areas;
static struct leftover *leftovers;
static uint64_t serials;

/* ---- what the driver says ---------------------------------------------------------- */

static bool enter(struct rt_cuda_scope *scope, void *context, char why[RT_WHY]) {
  if (rt_cuda_enter(scope, context) == RAIL_OK) return true;
  snprintf(why, RT_WHY, "the communicator's CUDA context cannot be made current");
  return false;
}

/* On the legacy stream a copy would wait for what the program does on others. */
static bool make_side(struct rt_gpu *gpu, char why[RT_WHY]) {
  return gpu->side ||
         !rt_cuda_refused(rt_cuda()->stream_create(&gpu->side, RT_CU_STREAM_NON_BLOCKING), "cuStreamCreate", why);
}

static bool make_zero(struct rt_gpu *gpu, uint64_t address, size_t size, char why[RT_WHY]) {
  const struct rt_cuda *cu = rt_cuda();
  if (!make_side(gpu, why)) return false;
  if (rt_cuda_refused(cu->mem_set(address, 0, size, gpu->side), "cuMemsetD8Async", why)) return false;
  uint64_t until = rail_deadline_in_ms(ZERO_MS);
  int r = cu->stream_query(gpu->side);
  for (; r == RT_CU_NOT_READY && !rail_deadline_passed(until); r = cu->stream_query(gpu->side))
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
  return !rt_cuda_refused(r, "cuStreamQuery", why);
}

/* ---- the process' own --------------------------------------------------------------- */

static void free_memory(struct rt_area *area) {
  struct rt_cuda_scope scope;
  /* A program may have ended its context first; that took the memory with it, but not what is mapped. */
  bool entered = rt_cuda_enter(&scope, area->context) == RAIL_OK;
  if (entered || area->mem.mapped) rt_mem_free(&area->mem);
  rt_cuda_leave(&scope);
}

static void unref(struct rt_area *area) {
  pthread_mutex_lock(&lock);
  bool last = --area->refs == 0;
  struct rt_area **at = &areas;
  while (last && *at != area) at = &(*at)->next;
  if (last) *at = area->next;
  pthread_mutex_unlock(&lock);
  if (!last) return;
  free_memory(area);
  free(area);
}

static struct rt_area *find(const struct rt_area_offer *o) {
  pthread_mutex_lock(&lock);
  struct rt_area *a = areas;
  while (a && !(a->serial == o->serial && a->mem.address == o->address && a->mem.size == o->size)) a = a->next;
  if (a) a->refs++;
  pthread_mutex_unlock(&lock);
  return a;
}

/* One way; what it leaves behind if it fails is nothing. */
static bool fill_so(struct ncclComm *comm, const struct rt_peer *peer, enum rt_way way, size_t size, struct rt_mem *mem,
                    struct rt_way_to *to, char why[RT_WHY]) {
  if (!rt_way_make(comm, peer, way, size, mem, to, why)) return false;
  if (make_zero(&comm->gpu, mem->address, mem->size, why)) return true;
  rt_mem_free(mem);
  return false;
}

static bool fill(struct ncclComm *comm, int peer, size_t size, struct rt_mem *mem, struct rt_area_offer *offer,
                 char why[RT_WHY]) {
  const uint32_t ways = rt_ways_to(comm, &comm->peers[peer]);
  snprintf(why, RT_WHY, "there is no way that both have (NCCL_CUMEM_ENABLE?)");
  for (uint32_t way = RT_WAY_NONE + 1; way < RT_WAYS; way++) {
    if (!(ways & RT_WAY_BIT(way))) continue;
    if (fill_so(comm, &comm->peers[peer], (enum rt_way)way, size, mem, &offer->to, why)) return true;
    RAIL_INFO(RAIL_SUB_INIT, "rank %d: rank %d cannot get at memory of this GPU by %s: %s", comm->rank, peer,
              rt_way_text(way), why);
  }
  return false;
}

static bool describe(struct ncclComm *comm, int peer, size_t size, struct rt_area *a, struct rt_area_offer *offer,
                     char why[RT_WHY]) {
  struct rt_cuda_scope scope;
  bool good = enter(&scope, a->context, why) &&
              !rt_cuda_refused(rt_cuda()->device_bus_id(offer->bus_id, RT_CUDA_BUS_ID, a->ordinal),
                               "cuDeviceGetPCIBusId", why) &&
              fill(comm, peer, size, &a->mem, offer, why);
  rt_cuda_leave(&scope);
  return good;
}

static void reap(void);

struct rt_area *rt_area_make(struct ncclComm *comm, int peer, size_t size, struct rt_area_offer *offer,
                             char why[RT_WHY]) {
  reap();
  struct rt_area *a = calloc(1, sizeof *a);
  snprintf(why, RT_WHY, "out of memory");
  if (!a) return NULL;
  *a = (struct rt_area){.context = comm->gpu.context, .ordinal = comm->gpu.ordinal, .refs = 1, .comm = comm};
  if (!describe(comm, peer, size, a, offer, why)) {
    free(a);
    return NULL;
  }
  pthread_mutex_lock(&lock);
  a->serial = ++serials;
  a->next = areas;
  areas = a;
  pthread_mutex_unlock(&lock);
  offer->size = a->mem.size;
  offer->address = a->mem.address;
  offer->serial = a->serial;
  return a;
}

char *rt_area_base(const struct rt_area *area) { return (char *)(uintptr_t)area->mem.address; }

/* ---- offering ----------------------------------------------------------------------- */

static bool move_on(struct rt_area_offer *o, uint32_t from, uint32_t to) {
  return __atomic_compare_exchange_n(&o->state, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static void set_state(struct rt_area_offer *o, enum rt_offer_state state) {
  __atomic_store_n(&o->state, (uint32_t)state, __ATOMIC_RELEASE);
}

void rt_area_withhold(struct rt_area_offer *offer) { set_state(offer, RT_OFFER_WITHDRAWN); }

void rt_area_publish(struct rt_area_offer *offer) { set_state(offer, RT_OFFER_OFFERED); }

/* ---- taking --------------------------------------------------------------------------- */

struct taking {
  struct ncclComm *comm;
  struct rt_area_offer offer; /* a copy: what was checked stays so */
  struct rt_area_view *view;
  int owner, fd; /* a rank; of RT_WAY_FD, -1 if it has not come */
  char *why;
};

/* How far is the memory's GPU from the communicator's, and is that near enough? */
static bool near_enough(struct taking *t, enum rt_distance farthest) {
  const struct rt_cuda *cu = rt_cuda();
  char own[RT_CUDA_BUS_ID] = "";
  int mine = t->comm->gpu.ordinal, theirs = mine, reaches = 1, atomics = 0;
  if (!memchr(t->offer.bus_id, 0, sizeof t->offer.bus_id)) {
    snprintf(t->why, RT_WHY, "the offer is garbled");
    return false;
  }
  if (rt_cuda_refused(cu->device_by_bus_id(&theirs, t->offer.bus_id), "cuDeviceGetByPCIBusId", t->why)) {
    snprintf(t->why, RT_WHY, "GPU %s is not visible to this process (CUDA_VISIBLE_DEVICES)", t->offer.bus_id);
    return false;
  }
  t->view->path = RT_LOC;
  if (mine != theirs) {
    if (rt_cuda_refused(cu->device_reaches(&reaches, mine, theirs), "cuDeviceCanAccessPeer", t->why) ||
        rt_cuda_refused(cu->device_bus_id(own, sizeof own, mine), "cuDeviceGetPCIBusId", t->why))
      return false;
    if (cu->device_p2p(&atomics, RT_CU_P2P_NATIVE_ATOMICS, mine, theirs) != RT_CU_SUCCESS) atomics = 0;
    t->view->path = atomics ? RT_NVL : rt_pci_bus_distance(rt_params()->sysfs, own, t->offer.bus_id);
  }
  return !rt_p2p_refusal(t->view->path, farthest, reaches != 0, t->why, RT_WHY);
}

/* May kernels of the taker's use memory of this process? */
static bool allow(struct taking *t, const struct rt_area *a) {
  if (a->mem.mapped) return a->ordinal == t->comm->gpu.ordinal || rt_mem_allow(&a->mem, t->comm->gpu.ordinal, t->why);
  if (a->context == t->view->context) return true;
  int r = rt_cuda()->peer_access(a->context, 0);
  if (r == RT_CU_PEER_ACCESS_ALREADY_ENABLED) r = RT_CU_SUCCESS;
  return !rt_cuda_refused(r, "cuCtxEnablePeerAccess", t->why);
}

static bool take_shared(struct taking *t, struct rt_area_offer *offer) {
  struct rt_area *a = find(&t->offer);
  snprintf(t->why, RT_WHY, "its memory is gone");
  if (!a) return false;
  if (!allow(t, a) || !move_on(offer, RT_OFFER_OFFERED, RT_OFFER_TAKEN)) {
    unref(a);
    return false;
  }
  t->view->shared = a;
  t->view->base = rt_area_base(a);
  return true;
}

static bool take_exported(struct taking *t, struct rt_area_offer *offer) {
  const uint32_t way = t->offer.to.way;
  const struct rt_peer *owner = &t->comm->peers[t->owner];
  if (way >= RT_WAYS || !(rt_ways_to(t->comm, owner) & RT_WAY_BIT(way))) {
    snprintf(t->why, RT_WHY, "it is offered by %s, which this rank cannot", rt_way_text(way));
    return false;
  }
  if (way == RT_WAY_FD && t->fd < 0) {
    snprintf(t->why, RT_WHY, "its file descriptor has not come; is the limit of open files (ulimit -n) reached?");
    return false;
  }
  snprintf(t->why, RT_WHY, "it is offered no more");
  if (!move_on(offer, RT_OFFER_OFFERED, RT_OFFER_TAKEN)) return false;
  if (!rt_way_take(t->comm, &t->offer.to, (size_t)t->offer.size, t->fd, &t->view->mem, t->why)) return false;
  t->view->way = (enum rt_way)way;
  t->view->base = (char *)(uintptr_t)t->view->mem.address;
  return true;
}

/* A file descriptor is taken out of the inbox whatever becomes of the offer: it keeps the memory alive. */
static void fetch_fd(struct taking *t) {
  const struct rt_area_offer *o = &t->offer;
  if (o->to.way == RT_WAY_FD) t->fd = rt_inbox_take(&t->comm->inbox, t->comm->peers[t->owner].pid, o->to.key);
}

bool rt_area_take(struct ncclComm *comm, struct rt_area_offer *offer, size_t size, int owner,
                  enum rt_distance farthest, struct rt_area_view *view, char why[RT_WHY]) {
  struct taking t = {.comm = comm, .offer = *offer, .view = view, .owner = owner, .fd = -1, .why = why};
  struct rt_cuda_scope scope = {0};
  const bool own = rt_peer_same_process(&comm->peers[comm->rank], &comm->peers[owner]);
  *view = (struct rt_area_view){.context = comm->gpu.context};
  fetch_fd(&t);
  bool good = rt_way_size_fits(&t.offer.to, t.offer.size, size);
  if (!good) snprintf(why, RT_WHY, "it has %llu bytes instead of %zu", (unsigned long long)t.offer.size, size);
  good = good && enter(&scope, view->context, why) && near_enough(&t, farthest) && make_side(&comm->gpu, why) &&
         (own ? take_shared(&t, offer) : take_exported(&t, offer));
  rt_cuda_leave(&scope);
  if (t.fd >= 0) close(t.fd);
  if (!good && rt_offer_state(offer) != RT_OFFER_WITHDRAWN) set_state(offer, RT_OFFER_REFUSED);
  return good;
}

void rt_area_use(const struct rt_area_view *view, struct rt_area_offer *offer) {
  offer->path = (uint32_t)view->path;
  set_state(offer, RT_OFFER_USED);
}

void rt_area_return(struct rt_area_view *view, struct rt_area_offer *offer) {
  struct rt_cuda_scope scope;
  if (!view->base) return;
  if (view->shared) {
    unref(view->shared);
  } else {
    bool entered = rt_cuda_enter(&scope, view->context) == RAIL_OK;
    if (entered || view->mem.mapped) rt_way_return(view->way, &view->mem);
    rt_cuda_leave(&scope);
  }
  view->base = NULL;
  set_state(offer, RT_OFFER_RETURNED);
}

/* ---- letting go ------------------------------------------------------------------------ */

static bool process_ended(int64_t pid) {
  int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
  if (fd < 0) return kill((pid_t)pid, 0) != 0;
  struct pollfd p = {.fd = fd, .events = POLLIN};
  bool ended = poll(&p, 1, 0) == 1;
  close(fd);
  return ended;
}

static bool has_taken(const struct rt_area_offer *o) {
  enum rt_offer_state state = rt_offer_state(o);
  return state == RT_OFFER_TAKEN || state == RT_OFFER_USED;
}

static bool returned(const struct leftover *l) { return !has_taken(l->offer) || process_ended(l->taker); }

static void reap(void) {
  struct leftover *over = NULL;
  pthread_mutex_lock(&lock);
  for (struct leftover **at = &leftovers, *l; (l = *at);) {
    if (!returned(l)) {
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
    unref(l->area);
    munmap(l->shared.base, l->shared.size);
    free(l);
  }
}

bool rt_area_leave(struct rt_area *area, struct rt_area_offer *offer, int64_t taker, struct rt_range shared) {
  bool untaken = move_on(offer, RT_OFFER_OFFERED, RT_OFFER_WITHDRAWN);
  /* What another process has mapped stays where it is for that one. */
  if (untaken || taker == getpid() || area->mem.mapped || !has_taken(offer)) {
    unref(area);
    return false;
  }
  struct leftover *l = malloc(sizeof *l);
  if (!l) return true; /* rather kept for ever than freed under another process' hands */
  *l = (struct leftover){.area = area, .offer = offer, .shared = shared, .taker = taker};
  pthread_mutex_lock(&lock);
  l->next = leftovers;
  leftovers = l;
  pthread_mutex_unlock(&lock);
  return true;
}

static bool has_leftovers(const struct ncclComm *comm) {
  pthread_mutex_lock(&lock);
  const struct leftover *l = leftovers;
  while (l && l->area->comm != comm) l = l->next;
  pthread_mutex_unlock(&lock);
  return l != NULL;
}

/* Nobody waits for them again: another communicator may come to lie at this address. */
static void disown(const struct ncclComm *comm) {
  pthread_mutex_lock(&lock);
  for (struct leftover *l = leftovers; l; l = l->next)
    if (l->area->comm == comm) l->area->comm = NULL;
  pthread_mutex_unlock(&lock);
}

void rt_area_settle(const struct ncclComm *comm, uint64_t ms) {
  uint64_t until = rail_deadline_in_ms(ms);
  for (reap(); has_leftovers(comm) && !rail_deadline_passed(until); reap())
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  if (!has_leftovers(comm)) return;
  RAIL_INFO(RAIL_SUB_INIT, "rank %d: other processes still use memory of CUDA device %d that this communicator lent "
            "them; it is freed once they have let go of it, at the latest with this process",
            comm->rank, comm->gpu.ordinal);
  disown(comm);
}
