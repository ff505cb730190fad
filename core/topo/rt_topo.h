/* SPDX-License-Identifier: Apache-2.0
 *
 * From where GPUs and NICs are to the order of the ring and to the NIC of each
 * rank. Pure: every rank works it out from the same records, so all must come to the same.
 * Where nothing is known, the order is that of the ranks.
 */
#ifndef RT_TOPO_H
#define RT_TOPO_H

#include "common/base/result.h"
#include "core/topo/rt_pci.h"

#define RT_TOPO_PEERS 8

/* A rank's GPU. All zero: it has none, or nothing is known of it. */
struct rt_topo_gpu {
  struct rt_pci pci;
  uint64_t peer[RT_TOPO_PEERS]; /* GPUs at the other end of its NVLinks: rt_pci_number */
  uint32_t npeers;
  uint32_t switched; /* its NVLinks lead to a switch, through which it reaches all that are on one */
};

struct rt_topo_rank {
  uint64_t host;
  const struct rt_topo_gpu *gpu;
};

/* Can the numbers be taken as they are? For what another process says. */
bool rt_topo_gpu_valid(const struct rt_topo_gpu *gpu);

enum rt_distance rt_topo_distance(const struct rt_topo_rank *a, const struct rt_topo_rank *b);

/* Up to so many ranks of a host the ring's way through them is the best there is; above, the nearest is always next. */
#define RT_TOPO_EXACT 10

/* order[p]: the rank at place p of the ring; rank 0 is at place 0. Hosts come in the order of their first ranks, each
 * as one stretch, in which far neighbours are as few as can be: the ring is as fast as its slowest link. */
rail_result_t rt_topo_ring(const struct rt_topo_rank *ranks, int n, int *order);

/* Which of n > 0 NICs a rank uses: one of the nearest to its GPU, the turn-th of them, round and round. */
int rt_topo_nic(const struct rt_topo_gpu *gpu, const struct rt_pci *nics, int n, int turn);

#endif
