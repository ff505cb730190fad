/* SPDX-License-Identifier: Apache-2.0
 *
 * Registrations: those of a connection, and below them the cache of each HCA's protection domain: page-rounded,
 * reference counted, found by range, access and dma-buf, each registered once.
 * Used by service threads only, never by the data path.
 */
#ifndef IB_MR_H
#define IB_MR_H

#include "plugin/ib/ib_device.h"

struct ib_comm;

rail_result_t ib_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
rail_result_t ib_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
rail_result_t ib_dereg_mr(void *comm, void *mhandle);
/* Frees all handles that the comm's caller did not deregister; the QPs are destroyed. */
void ib_mhandles_free(struct ib_comm *comm);

/* ---- the cache ------------------------------------------------------------ */

struct ib_mr_key {
  uint64_t addr, size; /* the caller's */
  int access;          /* IBV_ACCESS_* */
  int fd;              /* -1: ordinary memory */
  uint64_t offset;     /* in the dma-buf */
};

struct ib_mr_entry;

/* Deregisters what is left, when the HCA is about to be closed. */
void ib_mr_cache_close(struct ib_hca *hca);

/* One reference. Logs a failure with range, device and what to check (memlock, peer memory module, dma-buf). */
rail_result_t ib_mr_cache_get(struct ib_hca *hca, const struct ib_mr_key *key, struct ib_mr_entry **entry);
/* The last reference deregisters. `entry` is unusable afterwards either way. */
void ib_mr_cache_put(struct ib_hca *hca, struct ib_mr_entry *entry);
struct ibv_mr *ib_mr_entry_mr(const struct ib_mr_entry *entry);
/* For tests and counters. */
unsigned int ib_mr_cache_count(struct ib_hca *hca);

#endif
