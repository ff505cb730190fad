/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory registration. A handle belongs to a connection and holds one registration per rail, which the HCA's cache may
 * share with others.
 *
 * The cache is one array of pointers to entries, sorted by buffer and beginning. NCCL registers a handful of buffers
 * again and again, once per connection, so a look-up is the frequent case and an insertion that moves pointers the rare
 * one.
 *
 * The cache's lock is held while the HCA registers and deregisters. Two threads that register one range must not
 * register it twice, and an entry that is being deregistered must not be found. The cost is that registrations of one
 * HCA wait for one another, which the kernel's lock on the address space and the HCA's command queue make them do in
 * any case. NCCL's transport does the same.
 */
#include "plugin/ib/ib_comm.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/ib/ib_progress.h"
#include "plugin/ib/ib_stats.h"

/* What is registered. Ordinary memory is rounded to pages, and serves every range inside it. A dma-buf is registered
 * exactly: the memory around it is not the caller's. It is identified by its file's inode, whatever the descriptor; the
 * registration holds the buffer, so that the inode is not reused while the entry exists. */
struct range {
  bool dmabuf;
  dev_t device;
  ino_t inode;
  uint64_t begin, end; /* addresses */
  uint64_t offset;     /* in the dma-buf */
  int access;
};

struct ib_mr_entry {
  struct range range;
  struct ibv_mr *mr;
  uint32_t references;
  bool retired; /* removed from the array */
};

/* ---- the order of entries ------------------------------------------------- */

#define COMPARE(field) \
  if (a->field != b->field) return a->field < b->field ? -1 : 1

/* Ordinary memory first, then dma-bufs; ranges that begin at the same place have the shorter one first. */
static int compare(const struct range *a, const struct range *b) {
  COMPARE(dmabuf);
  COMPARE(device);
  COMPARE(inode);
  COMPARE(begin);
  COMPARE(end);
  COMPARE(offset);
  COMPARE(access);
  return 0;
}

/* How many entries are not after `range`. */
static size_t position(const struct ib_mr_cache *cache, const struct range *range) {
  size_t low = 0, high = cache->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (compare(&cache->entries[middle]->range, range) <= 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

static struct ib_mr_entry *find_dmabuf(const struct ib_mr_cache *cache, const struct range *range) {
  size_t after = position(cache, range);
  if (after == 0 || compare(&cache->entries[after - 1]->range, range) != 0) return NULL;
  return cache->entries[after - 1];
}

/* An entry that covers the range begins before it, by no more than the length of the longest entry. */
static struct ib_mr_entry *find_memory(const struct ib_mr_cache *cache, const struct range *range) {
  struct range last = *range;
  last.end = UINT64_MAX;
  for (size_t i = position(cache, &last); i-- > 0;) {
    const struct range *candidate = &cache->entries[i]->range;
    if (range->end - candidate->begin > cache->longest) break;
    if (candidate->end >= range->end && candidate->access == range->access) return cache->entries[i];
  }
  return NULL;
}

static struct ib_mr_entry *find(const struct ib_mr_cache *cache, const struct range *range) {
  return range->dmabuf ? find_dmabuf(cache, range) : find_memory(cache, range);
}

static size_t bytes_of(size_t entries) { return entries * sizeof(struct ib_mr_entry *); }

/* Makes room for one more before registering. */
static bool grow(struct ib_mr_cache *cache) {
  if (cache->count < cache->room) return true;
  size_t room = cache->room ? 2 * cache->room : 16;
  struct ib_mr_entry **entries = realloc(cache->entries, bytes_of(room));
  if (!entries) return false;
  cache->entries = entries;
  cache->room = room;
  return true;
}

static void insert(struct ib_mr_cache *cache, struct ib_mr_entry *entry) {
  size_t at = position(cache, &entry->range);
  memmove(&cache->entries[at + 1], &cache->entries[at], bytes_of(cache->count - at));
  cache->entries[at] = entry;
  cache->count++;
  if (!entry->range.dmabuf) cache->longest = RAIL_MAX(cache->longest, entry->range.end - entry->range.begin);
}

/* No two entries are equal: the second would have found the first. */
static void take_out(struct ib_mr_cache *cache, const struct ib_mr_entry *entry) {
  size_t at = position(cache, &entry->range);
  cache->count--;
  memmove(&cache->entries[at - 1], &cache->entries[at], bytes_of(cache->count - (at - 1)));
  if (cache->count == 0) cache->longest = 0;
}

/* ---- registering ----------------------------------------------------------- */

/* What may be wrong, by errno. */
static const char *advice(const struct range *range, int err) {
  if ((err == ENOMEM || err == EPERM) && !range->dmabuf)
    return "memory cannot be locked: is `ulimit -l` (memlock) too low for this process? In a container: --ulimit "
           "memlock=-1";
  if (err == EFAULT && !range->dmabuf)
    return "the address is not ordinary memory that this process may write to; GPU memory needs the peer memory module "
           "(nvidia_peermem) or a dma-buf";
  if (err == EOPNOTSUPP || err == ENOTSUP || err == EINVAL)
    return range->dmabuf ? "the driver or the kernel cannot register a dma-buf" : "the device refuses such a range";
  if (err == ENOMEM) return "the device has no memory region left, or the buffer cannot be mapped for it";
  return "see docs/rdma-errors.md, registering memory";
}

static void log_failure(const struct ib_hca *hca, const struct ib_mr_key *key, const struct range *range, int err) {
  char of[64] = "";
  if (range->dmabuf)
    snprintf(of, sizeof of, " (dma-buf %d, offset %llu)", key->fd, (unsigned long long)key->offset);
  RAIL_WARN("RailIB: registering %#llx+%llu%s with %s: %s; %s", (unsigned long long)key->addr,
            (unsigned long long)key->size, of, hca->name, strerror(err), advice(range, err));
}

static struct ibv_mr *register_range(const struct ib_hca *hca, const struct ib_mr_key *key, const struct range *range) {
  void *begin = (void *)(uintptr_t)range->begin;
  size_t size = range->end - range->begin;
  errno = 0;
  if (range->dmabuf) {
    if (ib_verbs.reg_dmabuf_mr)
      return ib_verbs.reg_dmabuf_mr(hca->pd, range->offset, size, range->begin, key->fd, range->access);
    errno = EOPNOTSUPP;
    return NULL;
  }
  /* Access bits that a device may ignore pass only through the newer call. */
  int optional = range->access & (int)IBV_ACCESS_OPTIONAL_RANGE;
  if (optional && ib_verbs.reg_mr_iova2)
    return ib_verbs.reg_mr_iova2(hca->pd, begin, size, range->begin, (unsigned int)range->access);
  return ib_verbs.reg_mr(hca->pd, begin, size, range->access & ~optional);
}

static rail_result_t make_range(const struct ib_hca *hca, const struct ib_mr_key *key, struct range *range) {
  uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  struct stat st;
  *range = (struct range){.dmabuf = key->fd >= 0, .access = key->access};
  if (key->size == 0 || key->addr + key->size < key->addr || key->addr + key->size > UINT64_MAX - page) {
    RAIL_WARN("RailIB: registering %#llx+%llu with %s: not a range of addresses", (unsigned long long)key->addr,
              (unsigned long long)key->size, hca->name);
    return RAIL_BAD_ARGUMENT;
  }
  range->begin = range->dmabuf ? key->addr : key->addr / page * page;
  range->end = range->dmabuf ? key->addr + key->size : RAIL_ROUND_UP(key->addr + key->size, page);
  if (!range->dmabuf) return RAIL_OK;
  if (fstat(key->fd, &st) != 0) {
    RAIL_WARN("RailIB: registering %#llx+%llu with %s: dma-buf %d: %s", (unsigned long long)key->addr,
              (unsigned long long)key->size, hca->name, key->fd, strerror(errno));
    return RAIL_BAD_ARGUMENT;
  }
  range->device = st.st_dev;
  range->inode = st.st_ino;
  range->offset = key->offset;
  return RAIL_OK;
}

/* Under the lock. All ports of the HCA share its registrations. */
static void count_entries(const struct ib_hca *hca) {
  for (unsigned int i = 0; i < hca->nports; i++) {
    uint64_t *stats = hca->ports[i].stats;
    if (stats) rail_stats_set(&stats[IB_DEVICE_REGISTERED], hca->mrs.count);
  }
}

/* Under the lock. NULL after a line. */
static struct ib_mr_entry *add(struct ib_hca *hca, const struct ib_mr_key *key, const struct range *range) {
  struct ib_mr_entry *entry = calloc(1, sizeof *entry);
  if (!entry || !grow(&hca->mrs)) {
    free(entry);
    RAIL_WARN("RailIB: registering %#llx+%llu with %s: out of memory", (unsigned long long)key->addr,
              (unsigned long long)key->size, hca->name);
    return NULL;
  }
  entry->range = *range;
  entry->mr = register_range(hca, key, range);
  if (!entry->mr) {
    log_failure(hca, key, range, errno);
    free(entry);
    return NULL;
  }
  insert(&hca->mrs, entry);
  count_entries(hca);
  return entry;
}

static void deregister(const struct ib_hca *hca, struct ib_mr_entry *entry) {
  int err = ib_verbs.dereg_mr(entry->mr);
  if (err)
    RAIL_WARN("RailIB: deregistering %#llx+%llu from %s: %s; its pages stay locked",
              (unsigned long long)entry->range.begin, (unsigned long long)(entry->range.end - entry->range.begin),
              hca->name, strerror(err));
  free(entry);
}

/* ---- the cache -------------------------------------------------------------- */

void ib_mr_cache_close(struct ib_hca *hca) {
  for (size_t i = 0; i < hca->mrs.count; i++) deregister(hca, hca->mrs.entries[i]);
  free(hca->mrs.entries);
  hca->mrs.entries = NULL;
  hca->mrs.count = hca->mrs.room = hca->mrs.longest = 0;
}

rail_result_t ib_mr_cache_get(struct ib_hca *hca, const struct ib_mr_key *key, struct ib_mr_entry **entry) {
  struct range range;
  *entry = NULL;
  RAIL_TRY(make_range(hca, key, &range));
  pthread_mutex_lock(&hca->mrs.lock);
  struct ib_mr_entry *e = find(&hca->mrs, &range);
  if (!e) e = add(hca, key, &range);
  if (e) e->references++;
  pthread_mutex_unlock(&hca->mrs.lock);
  *entry = e;
  return e ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

void ib_mr_cache_put(struct ib_hca *hca, struct ib_mr_entry *entry) {
  if (!entry) return;
  pthread_mutex_lock(&hca->mrs.lock);
  if (--entry->references == 0) {
    if (!entry->retired) take_out(&hca->mrs, entry);
    count_entries(hca);
    deregister(hca, entry);
  }
  pthread_mutex_unlock(&hca->mrs.lock);
}

/* Out of the cache, though referenced: the memory may be freed while a stopped QP still holds its registration. */
static void retire(struct ib_hca *hca, struct ib_mr_entry *entry) {
  if (!entry) return;
  pthread_mutex_lock(&hca->mrs.lock);
  if (!entry->retired) take_out(&hca->mrs, entry);
  entry->retired = true;
  pthread_mutex_unlock(&hca->mrs.lock);
}

struct ibv_mr *ib_mr_entry_mr(const struct ib_mr_entry *entry) { return entry->mr; }

unsigned int ib_mr_cache_count(struct ib_hca *hca) {
  pthread_mutex_lock(&hca->mrs.lock);
  size_t count = hca->mrs.count;
  pthread_mutex_unlock(&hca->mrs.lock);
  return (unsigned int)count;
}

/* ---- a connection's handles -------------------------------------------------- */

/* Of the lists of handles of all comms. By the contract one thread at a time registers with a comm (net_ops.h); the
 * lock keeps the list whole for callers that register from several. Held for a few stores. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

static void link_handle(struct ib_comm *comm, struct ib_mhandle *handle) {
  pthread_mutex_lock(&list_lock);
  LIST_INSERT_HEAD(&comm->mhandles, handle, link);
  pthread_mutex_unlock(&list_lock);
}

static void unlink_handle(struct ib_mhandle *handle) {
  pthread_mutex_lock(&list_lock);
  LIST_REMOVE(handle, link);
  pthread_mutex_unlock(&list_lock);
}

static void release_entries(struct ib_comm *comm, struct ib_mhandle *handle) {
  for (unsigned int i = 0; i < comm->nrails; i++) {
    if (handle->entries[i]) ib_mr_cache_put(comm->rails[i].port->hca, handle->entries[i]);
    handle->entries[i] = NULL;
  }
}

static void retire_entries(struct ib_comm *comm, struct ib_mhandle *handle) {
  for (unsigned int i = 0; i < comm->nrails; i++) retire(comm->rails[i].port->hca, handle->entries[i]);
}

/* One set of access bits for all uses of a buffer (sends read it, receives write it, a flush reads it back), so that a
 * buffer which several connections register is registered once. The peer of a send comm never learns a key of its
 * buffers; with the SEND protocol no peer does. */
static int access_on(const struct ib_hca *hca, bool two_sided) {
  int access = IBV_ACCESS_LOCAL_WRITE | (two_sided ? 0 : IBV_ACCESS_REMOTE_WRITE) | IBV_ACCESS_REMOTE_READ;
  return hca->relaxed_ordering ? access | (int)IBV_ACCESS_RELAXED_ORDERING : access;
}

static bool supports(const struct ib_comm *comm, int type, int fd) {
  const int needed = fd >= 0 ? RAIL_PTR_DMABUF : type;
  return (ib_device_ptr_support(comm->device, comm->plan.two_sided) & needed) != 0;
}

static const char *why_unsupported(const struct ib_comm *comm, int fd) {
  if (comm->plan.two_sided) return "with RAIL_IB_PROTOCOL=send only host memory can be registered, and no dma-buf";
  if (comm->rails[0].port->iwarp) return "over iWARP only host memory can be registered, and no dma-buf";
  if (fd >= 0) return "the kernel or the HCA's driver registers no dma-bufs";
  return "the peer memory module of the GPU's driver (nvidia_peermem) is not loaded, so that only host memory and "
         "dma-bufs can be registered";
}

static rail_result_t check_args(const struct ib_comm *comm, const char *call, const void *data, size_t size, int type,
                           int fd) {
  if (type != RAIL_PTR_HOST && type != RAIL_PTR_CUDA && type != RAIL_PTR_DMABUF) {
    RAIL_WARN("RailIB: %s: pointer type %d; allowed: %d (host), %d (CUDA), %d (dma-buf)", call, type, RAIL_PTR_HOST,
              RAIL_PTR_CUDA, RAIL_PTR_DMABUF);
    return RAIL_BAD_ARGUMENT;
  }
  if (type == RAIL_PTR_DMABUF && fd < 0) {
    RAIL_WARN("RailIB: %s: pointer type %d (dma-buf) without a file descriptor; regMrDmaBuf takes one", call, type);
    return RAIL_BAD_ARGUMENT;
  }
  if (!data && size) {
    RAIL_WARN("RailIB: %s: address NULL with size %zu", call, size);
    return RAIL_BAD_ARGUMENT;
  }
  if (supports(comm, type, fd)) return RAIL_OK;
  RAIL_WARN("RailIB: %s of %p+%zu over %s: %s", call, data, size, comm->device->name, why_unsupported(comm, fd));
  return RAIL_SYSTEM_ERROR;
}

/* `key` is complete but for `access`, which depends on the rail. A handle of no bytes registers nothing. */
static rail_result_t register_on_rails(struct ib_comm *comm, struct ib_mr_key *key, struct ib_mhandle *handle) {
  for (unsigned int i = 0; key->size && i < comm->nrails; i++) {
    struct ib_hca *hca = comm->rails[i].port->hca;
    key->access = access_on(hca, comm->plan.two_sided);
    rail_result_t result = ib_mr_cache_get(hca, key, &handle->entries[i]);
    if (result != RAIL_OK) {
      release_entries(comm, handle);
      return result;
    }
    handle->lkeys[i] = ib_mr_entry_mr(handle->entries[i])->lkey;
    handle->rkeys[i] = ib_mr_entry_mr(handle->entries[i])->rkey;
  }
  return RAIL_OK;
}

static rail_result_t reg(const char *call, void *comm_arg, void *data, size_t size, int type, uint64_t offset, int fd,
                         void **mhandle) {
  struct ib_comm *comm = ib_comm_of(comm_arg, 0, call);
  if (!comm) return RAIL_BAD_ARGUMENT;
  RAIL_TRY(check_args(comm, call, data, size, type, fd));
  struct ib_mhandle *handle = calloc(1, sizeof *handle);
  if (!handle) {
    RAIL_WARN("RailIB: %s: out of memory", call);
    return RAIL_SYSTEM_ERROR;
  }
  rail_net_memory_init(&handle->memory, comm, data, size, type);
  struct ib_mr_key key = {.addr = handle->memory.addr, .size = size, .fd = fd, .offset = offset};
  rail_result_t result = register_on_rails(comm, &key, handle);
  if (result != RAIL_OK) {
    free(handle);
    return result;
  }
  link_handle(comm, handle);
  *mhandle = handle;
  return RAIL_OK;
}

rail_result_t ib_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle) {
  return reg("regMr", comm, data, size, type, 0, -1, mhandle);
}

rail_result_t ib_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle) {
  if (fd < 0) {
    RAIL_WARN("RailIB: regMrDmaBuf of %p+%zu: file descriptor %d", data, size, fd);
    return RAIL_BAD_ARGUMENT;
  }
  return reg("regMrDmaBuf", comm, data, size, type, offset, fd, mhandle);
}

rail_result_t ib_dereg_mr(void *comm_arg, void *mhandle) {
  struct ib_mhandle *handle = mhandle;
  if (!handle) return RAIL_OK;
  struct ib_comm *comm = ib_comm_of(comm_arg, 0, "deregMr");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (!rail_net_memory_is_of(&handle->memory, comm)) {
    RAIL_WARN("RailIB: deregMr: %p is not a registration of this connection", mhandle);
    return RAIL_BAD_ARGUMENT;
  }
  if (atomic_load_explicit(&handle->memory.outstanding, memory_order_acquire) && !atomic_load(&comm->stopped)) {
    /* Normal at abort, a bug at any other time; either way the connection is over. The registration may be shared and
     * live on, so it is the QPs that must not touch the range any more. */
    ib_comm_stop(comm);
    RAIL_INFO(RAIL_SUB_NET, "RailIB: deregMr of %#llx+%llu with %u requests outstanding: the connection is stopped",
              (unsigned long long)handle->memory.addr, (unsigned long long)handle->memory.size,
              atomic_load(&handle->memory.outstanding));
    rail_watch_remove(&ib_watch, &comm->watched, true); /* sends GOODBYE at once */
  }
  /* A receiver waits: its HCA may still write a packet to memory that the caller is about to free. A sender's HCA only
   * reads. That changes no memory, and the pages are there: they stay pinned until the registration is released. A last
   * packet may carry what the caller has put there since, as with any buffer that is changed before its send is done;
   * but the caller has given that message up, and the connection with it. */
  if (atomic_load_explicit(&handle->memory.outstanding, memory_order_acquire) && !comm->sender && !comm->forked &&
      !(atomic_load(&comm->pending_work) & IB_COMM_DEVICE_FATAL) && /* a dead HCA flushes nothing */
      !ib_comm_drain(comm))
    RAIL_INFO(RAIL_SUB_NET, "RailIB: deregMr of %#llx+%llu: the HCA has not said within a second that it has stopped",
              (unsigned long long)handle->memory.addr, (unsigned long long)handle->memory.size);
  handle->memory.magic = 0;
  /* Requests refer to it, and a QP that was stopped in the middle of a write may, too: Soft-RoCE's holds the
   * registration until it is destroyed, and ibv_dereg_mr would wait for that for up to 50 s (Linux 6.1, rxe_pool.c). It
   * is released with the connection, and is out of the cache until then, because the caller may free the memory. */
  if (atomic_load_explicit(&handle->memory.outstanding, memory_order_acquire)) {
    if (!comm->forked) retire_entries(comm, handle);
    return RAIL_OK;
  }
  if (!comm->forked) release_entries(comm, handle);
  unlink_handle(handle);
  free(handle);
  return RAIL_OK;
}

void ib_mhandles_free(struct ib_comm *comm) {
  for (struct ib_mhandle *handle; (handle = LIST_FIRST(&comm->mhandles)) != NULL;) {
    LIST_REMOVE(handle, link);
    release_entries(comm, handle);
    handle->memory.magic = 0;
    free(handle);
  }
}
