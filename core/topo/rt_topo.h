/* SPDX-License-Identifier: Apache-2.0
 *
 * From the PCI paths and NVLinks of GPUs and NICs to the order of the ring and the NIC of each
 * rank. Pure functions, except for rt_topo_detect: every rank computes the same result from the same records.
 * Where nothing is known, the order is that of the ranks.
 */
#ifndef RT_TOPO_H
#define RT_TOPO_H

#include "common/base/result.h"
#include "core/topo/rt_pci.h"

#define RT_TOPO_PEERS 8

/* A rank's GPU. All zero: it has none, or its path is unknown. */
struct rt_topo_gpu {
  struct rt_pci pci;
  uint64_t peer[RT_TOPO_PEERS]; /* GPUs at the other end of its NVLinks: rt_pci_number */
  uint32_t npeers;
  uint32_t switched; /* its NVLinks lead to an NVSwitch, and so to every GPU that has such links */
};

struct rt_topo_rank {
  uint64_t host;
  const struct rt_topo_gpu *gpu;
};

/* A CUDA device of this process; all zero where there is none or its path cannot be found. Without NVML it has no
 * NVLinks. The result is cached for the process (rt_nvml.c). */
void rt_topo_detect(int device, struct rt_topo_gpu *gpu);

/* Are the counts in bounds? For a record that another process sent. */
bool rt_topo_gpu_valid(const struct rt_topo_gpu *gpu);

enum rt_distance rt_topo_distance(const struct rt_topo_rank *a, const struct rt_topo_rank *b);

/* The ring's path through up to so many ranks of a host is the shortest one, found in 2^n * n^2 steps; above, the
 * nearest rank is always next. */
#define RT_TOPO_EXACT 10

/* order[i]: the rank at ring index i; rank 0 is at index 0. Hosts come in the order of their first ranks, the ranks of
 * each in a row, with as few distant neighbours as possible: a ring is as fast as its slowest link. */
rail_result_t rt_topo_ring(const struct rt_topo_rank *ranks, int n, int *order);

/* Which of n > 0 NICs a rank uses: of the k NICs that are nearest to its GPU, number `index` modulo k. */
int rt_topo_nic(const struct rt_topo_gpu *gpu, const struct rt_pci *nics, int n, int index);

#endif
