/* SPDX-License-Identifier: Apache-2.0
 *
 * One array of pointers to entries, sorted by buffer and beginning. NCCL
 * registers a handful of buffers again and again, once per connection, so
 * a look-up is the frequent case and an insertion that moves pointers the rare
 * one.
 *
 * The lock is held while the HCA registers and deregisters. Two threads that
 * ask for one range must not register it twice, and nobody may find an entry
 * that is about to go; what it costs is that registrations of one HCA wait for
 * one another, which the kernel's own lock on the address space and the HCA's
 * command queue make them do in any case. NCCL's own transport does the same.
 */
#include "plugin/ib/ib_mr_cache.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/ib/ib_device.h"
#include "plugin/ib/ib_stats.h"

/* What is registered. Ordinary memory is rounded to pages, and anything inside it is served by it. A dma-buf is taken
 * as it comes: what lies around it is not the caller's. Its file's inode says which buffer it is, whatever the
 * descriptor; the registration holds the buffer, so that the inode is not used again while the entry is there. */
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
  bool retired; /* not in the array any more */
};

struct ib_mr_cache {
  struct ib_hca *hca;
  pthread_mutex_t lock; /* guards all below */
  struct ib_mr_entry **entries;
  size_t count, room;
  uint64_t longest; /* no entry of ordinary memory is longer */
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

/* An entry that holds the range begins before it, and not by more than the longest one is long. */
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

/* Room for one more, so that what is registered finds a place. */
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
static void count_entries(const struct ib_mr_cache *cache) {
  for (unsigned int i = 0; i < cache->hca->nports; i++) {
    uint64_t *stats = cache->hca->ports[i].stats;
    if (stats) rail_stats_set(&stats[IB_DEVICE_REGISTERED], cache->count);
  }
}

/* Under the lock. NULL after a line. */
static struct ib_mr_entry *add(struct ib_mr_cache *cache, const struct ib_mr_key *key, const struct range *range) {
  struct ib_mr_entry *entry = calloc(1, sizeof *entry);
  if (!entry || !grow(cache)) {
    free(entry);
    RAIL_WARN("RailIB: registering %#llx+%llu with %s: out of memory", (unsigned long long)key->addr,
              (unsigned long long)key->size, cache->hca->name);
    return NULL;
  }
  entry->range = *range;
  entry->mr = register_range(cache->hca, key, range);
  if (!entry->mr) {
    log_failure(cache->hca, key, range, errno);
    free(entry);
    return NULL;
  }
  insert(cache, entry);
  count_entries(cache);
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

struct ib_mr_cache *ib_mr_cache_open(struct ib_hca *hca) {
  struct ib_mr_cache *cache = calloc(1, sizeof *cache);
  if (!cache) return NULL;
  cache->hca = hca;
  pthread_mutex_init(&cache->lock, NULL);
  return cache;
}

void ib_mr_cache_close(struct ib_mr_cache *cache) {
  if (!cache) return;
  for (size_t i = 0; i < cache->count; i++) deregister(cache->hca, cache->entries[i]);
  pthread_mutex_destroy(&cache->lock);
  free(cache->entries);
  free(cache);
}

rail_result_t ib_mr_cache_get(struct ib_mr_cache *cache, const struct ib_mr_key *key, struct ib_mr_entry **entry) {
  struct range range;
  *entry = NULL;
  RAIL_TRY(make_range(cache->hca, key, &range));
  pthread_mutex_lock(&cache->lock);
  struct ib_mr_entry *e = find(cache, &range);
  if (!e) e = add(cache, key, &range);
  if (e) e->references++;
  pthread_mutex_unlock(&cache->lock);
  *entry = e;
  return e ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

void ib_mr_cache_put(struct ib_mr_cache *cache, struct ib_mr_entry *entry) {
  if (!entry) return;
  pthread_mutex_lock(&cache->lock);
  if (--entry->references == 0) {
    if (!entry->retired) take_out(cache, entry);
    count_entries(cache);
    deregister(cache->hca, entry);
  }
  pthread_mutex_unlock(&cache->lock);
}

void ib_mr_cache_retire(struct ib_mr_cache *cache, struct ib_mr_entry *entry) {
  if (!entry) return;
  pthread_mutex_lock(&cache->lock);
  if (!entry->retired) take_out(cache, entry);
  entry->retired = true;
  pthread_mutex_unlock(&cache->lock);
}

struct ibv_mr *ib_mr_entry_mr(const struct ib_mr_entry *entry) { return entry->mr; }

unsigned int ib_mr_cache_count(struct ib_mr_cache *cache) {
  pthread_mutex_lock(&cache->lock);
  size_t count = cache->count;
  pthread_mutex_unlock(&cache->lock);
  return (unsigned int)count;
}
