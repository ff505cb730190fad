/* SPDX-License-Identifier: Apache-2.0
 *
 * What a plugin's memory handle, as regMr returns it, begins with, and what the data path asks of it. RailIB and
 * RailOFI have registrations behind it, RailSocket has none.
 */
#ifndef RAIL_NET_MEMORY_H
#define RAIL_NET_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/result.h"

#define RAIL_NET_MEMORY_MAGIC 0x52414d48u /* no longer there when it is deregistered */

struct rail_net_memory {
  uint32_t magic;
  int type; /* RAIL_PTR_* */
  const void *comm; /* the only one that may use it */
  uint64_t addr, size;
  _Atomic uint32_t outstanding; /* requests that use it: written by one thread at a time */
};

/* Of bytes at `data` that regMr was called with. */
static inline void rail_net_memory_init(struct rail_net_memory *memory, const void *comm, const void *data,
                                        uint64_t size, int type) {
  *memory = (struct rail_net_memory){
      .magic = RAIL_NET_MEMORY_MAGIC, .type = type, .comm = comm, .addr = (uintptr_t)data, .size = size};
}

/* `memory`: a caller's pointer. */
static inline bool rail_net_memory_is_of(const struct rail_net_memory *memory, const void *comm) {
  return memory && memory->magic == RAIL_NET_MEMORY_MAGIC && memory->comm == comm;
}

/* Is [data, data + size) memory that this connection may use? No memory at all needs no registration. */
static inline bool rail_net_memory_covers(const struct rail_net_memory *memory, const void *comm, const void *data,
                                          uint64_t size) {
  if (!size) return true;
  if (!rail_net_memory_is_of(memory, comm)) return false;
  uint64_t offset = (uintptr_t)data - memory->addr;
  return offset <= memory->size && size <= memory->size - offset;
}

/* The first of an irecv's buffers that is not covered, or larger than `max_bytes`; n: none. */
RAIL_HOT_INLINE unsigned int rail_net_first_bad_buffer(const void *comm, uint64_t max_bytes, unsigned int n,
                                                       void **data, const size_t *sizes, void **mhandles) {
  for (unsigned int i = 0; i < n; i++)
    if (!rail_net_memory_covers(mhandles ? mhandles[i] : NULL, comm, data[i], sizes[i]) || sizes[i] > max_bytes)
      return i;
  return n;
}

/* One line about a buffer that it does not cover, or that is too large. RAIL_BAD_ARGUMENT. The line begins "RailIB:
 * isend". */
rail_result_t rail_net_refuse_buffer(const char *plugin, const char *call, const struct rail_net_memory *memory,
                                     const void *comm, const void *data, uint64_t size);

/* A request begins, and ends, to use it. */
static inline void rail_net_memory_hold(struct rail_net_memory *memory) {
  uint32_t n = atomic_load_explicit(&memory->outstanding, memory_order_relaxed);
  atomic_store_explicit(&memory->outstanding, n + 1, memory_order_relaxed);
}
static inline void rail_net_memory_release(struct rail_net_memory *memory) {
  uint32_t n = atomic_load_explicit(&memory->outstanding, memory_order_relaxed);
  atomic_store_explicit(&memory->outstanding, n - 1, memory_order_release);
}

#endif
