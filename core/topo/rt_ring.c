/* SPDX-License-Identifier: Apache-2.0 */
#include "core/topo/rt_ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/topo/rt_topo.h"

int rt_ring_rank_at(const struct ncclComm *comm, int place) {
  int p = (place + comm->nranks) % comm->nranks;
  return comm->ring.order ? comm->ring.order[p] : p;
}

int rt_ring_index_of(const struct ncclComm *comm, int rank) {
  int place = comm->ring.order ? 0 : rank;
  while (rt_ring_rank_at(comm, place) != rank) place++;
  return place;
}

static rail_result_t find_order(const struct ncclComm *comm, int *order) {
  struct rt_topo_rank *ranks = calloc((size_t)comm->nranks, sizeof *ranks);
  if (!ranks) return RAIL_SYSTEM_ERROR;
  for (int r = 0; r < comm->nranks; r++)
    ranks[r] = (struct rt_topo_rank){comm->peers[r].host_hash, &comm->peers[r].gpu};
  rail_result_t result = rt_topo_ring(ranks, comm->nranks, order);
  free(ranks);
  return result;
}

/* As NCCL writes it; of very many ranks the first. */
void rt_ring_print(const struct ncclComm *comm) {
  char text[512];
  size_t used = 0;
  for (int p = 0; p < comm->nranks && used + 16 < sizeof text; p++)
    used += (size_t)snprintf(text + used, sizeof text - used, " %d", rt_ring_rank_at(comm, p));
  for (int c = 0; c < comm->nchannels; c++)
    RAIL_INFO(RAIL_SUB_GRAPH, "Channel %02d/%02d :%s", c, comm->nchannels, text);
}

rail_result_t rt_ring_open(struct ncclComm *comm) {
  struct rt_ring *ring = &comm->ring;
  ring->size = RAIL_ROUND_UP((size_t)comm->nranks * sizeof *ring->order, (size_t)RT_PAGE);
  int *order = mmap(NULL, ring->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (order == MAP_FAILED) return RAIL_SYSTEM_ERROR;
  ring->order = order;
  RAIL_TRY(find_order(comm, order));
  ring->index = rt_ring_index_of(comm, comm->rank);
  bool moved = false;
  for (int p = 0; p < comm->nranks; p++) moved |= order[p] != p;
  if (!moved) rt_ring_close(comm);
  return RAIL_OK;
}

void rt_ring_close(struct ncclComm *comm) {
  struct rt_ring *ring = &comm->ring;
  if (ring->order) munmap(ring->order, ring->size);
  ring->order = NULL;
}
