/* SPDX-License-Identifier: Apache-2.0
 * In which order a communicator's rings go through its ranks. */
#ifndef RT_RING_H
#define RT_RING_H

#include <stddef.h>

#include "common/base/result.h"

struct ncclComm;

/* In pages of its own: a device's kernels look at `order`. */
struct rt_ring {
  int *order;  /* rank at each place; NULL: each rank has the place of its number */
  size_t size; /* of order's pages */
  int index;   /* this rank's */
};

/* From the peers' records. */
rail_result_t rt_ring_open(struct ncclComm *comm);
/* Says what came out of it. */
void rt_ring_print(const struct ncclComm *comm);
void rt_ring_close(struct ncclComm *comm);

/* The rank at a place, which may be beyond the last, or -1: the ring goes round. */
int rt_ring_rank_at(const struct ncclComm *comm, int place);
int rt_ring_index_of(const struct ncclComm *comm, int rank);

#endif
