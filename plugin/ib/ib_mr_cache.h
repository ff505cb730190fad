/* SPDX-License-Identifier: Apache-2.0
 *
 * Registrations of one HCA's protection domain: page-rounded, reference
 * counted, found by range, access and dma-buf, each registered once. A lock of
 * its own; used by service threads only, never by the data path.
 */
#ifndef IB_MR_CACHE_H
#define IB_MR_CACHE_H

#include <stdbool.h>

#include "common/base/result.h"
#include "plugin/ib/ib_verbs.h"

struct ib_hca;

struct ib_mr_key {
  uint64_t addr, size; /* as the caller gave them */
  int access;          /* IBV_ACCESS_* */
  int fd;              /* -1: ordinary memory */
  uint64_t offset;     /* in the dma-buf */
};

struct ib_mr_entry;

struct ib_mr_cache *ib_mr_cache_open(struct ib_hca *hca);
void ib_mr_cache_close(struct ib_mr_cache *cache); /* what is left is deregistered */

/* One reference. Logs a failure with range, device and what to check (memlock, peer memory module, dma-buf). */
rail_result_t ib_mr_cache_get(struct ib_mr_cache *cache, const struct ib_mr_key *key, struct ib_mr_entry **entry);
/* The last reference deregisters. `entry` is unusable afterwards either way. */
void ib_mr_cache_put(struct ib_mr_cache *cache, struct ib_mr_entry *entry);
/* Nobody finds it any more; who has it keeps it until he puts it. For memory that may be freed while a stopped QP
 * still holds its registration. */
void ib_mr_cache_retire(struct ib_mr_cache *cache, struct ib_mr_entry *entry);
struct ibv_mr *ib_mr_entry_mr(const struct ib_mr_entry *entry);
/* For tests and counters. */
unsigned int ib_mr_cache_count(struct ib_mr_cache *cache);

#endif
