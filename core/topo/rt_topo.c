/* SPDX-License-Identifier: Apache-2.0
 * The ring order (rt_comm_init.c, while a communicator is made) and the NIC of a rank (rt_net.c, for each NET
 * connection), computed from the records of all ranks. */
#include "core/topo/rt_topo.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/compiler.h"

bool rt_topo_gpu_valid(const struct rt_topo_gpu *gpu) {
  return gpu->pci.nhops >= 0 && gpu->pci.nhops <= RT_PCI_HOPS && gpu->npeers <= RT_TOPO_PEERS;
}

/* ---- distances ------------------------------------------------------------------ */

static bool has_nvlink_to(const struct rt_topo_gpu *a, const struct rt_topo_gpu *b) {
  if (!b->pci.nhops) return false;
  uint64_t number = b->pci.hop[b->pci.nhops - 1];
  for (uint32_t i = 0; i < a->npeers; i++)
    if (a->peer[i] == number) return true;
  return false;
}

enum rt_distance rt_topo_distance(const struct rt_topo_rank *a, const struct rt_topo_rank *b) {
  if (a->host != b->host) return RT_NET;
  enum rt_distance pci = rt_pci_distance(&a->gpu->pci, &b->gpu->pci);
  if (pci == RT_LOC) return pci;
  bool linked =
      (a->gpu->switched && b->gpu->switched) || has_nvlink_to(a->gpu, b->gpu) || has_nvlink_to(b->gpu, a->gpu);
  return linked ? RT_NVL : pci;
}

int rt_topo_nic(const struct rt_topo_gpu *gpu, const struct rt_pci *nics, int n, int index) {
  enum rt_distance nearest = RT_NET;
  int count = 0;
  for (int i = 0; i < n; i++) {
    enum rt_distance d = rt_pci_distance(&gpu->pci, &nics[i]);
    count = d < nearest ? 1 : count + (d == nearest);
    nearest = RAIL_MIN(nearest, d);
  }
  int wanted = index % RAIL_MAX(count, 1), at = 0;
  for (; rt_pci_distance(&gpu->pci, &nics[at]) != nearest || wanted-- > 0; at++) continue;
  return at;
}

/* ---- the path through one host ----------------------------------------------------- */

/* The ranks of a host, ascending. */
struct host {
  const struct rt_topo_rank *ranks;
  int *member;
  int n;
  bool closed; /* the only host: the ring returns from its last rank to its first */
};

/* One link of a class costs more than all links of lower classes in a path of RT_TOPO_EXACT ranks. */
static uint64_t cost(const struct host *h, int a, int b) {
  enum rt_distance d = rt_topo_distance(&h->ranks[h->member[a]], &h->ranks[h->member[b]]);
  return d == RT_LOC ? 0 : 1ull << 5 * (d - 1);
}

/* least[set * n + last]: the least cost from rank `last` through all ranks that are not in the set (Held and Karp). */
static uint64_t *fill_least(const struct host *h) {
  size_t n = (size_t)h->n, all = (1u << n) - 1;
  uint64_t *least = malloc((all + 1) * n * sizeof *least);
  for (size_t set = least ? all : 0; set > 0; set--)
    for (size_t last = 0; last < n; last++) {
      uint64_t best = set == all ? (h->closed ? cost(h, (int)last, 0) : 0) : UINT64_MAX;
      for (size_t next = 0; next < n; next++)
        if (!(set >> next & 1))
          best = RAIL_MIN(best, cost(h, (int)last, (int)next) + least[(set | 1u << next) * n + next]);
      least[set * n + last] = best;
    }
  return least;
}

/* The cheapest path; of several the first in the order of ranks. */
static rail_result_t order_exactly(const struct host *h, int *out) {
  size_t n = (size_t)h->n, set = 0;
  uint64_t *least = fill_least(h);
  if (!least) return RAIL_SYSTEM_ERROR;
  for (size_t i = 0; i < n; i++) {
    size_t best = n;
    uint64_t best_cost = UINT64_MAX;
    for (size_t next = 0; next < n; next++) {
      if (set >> next & 1 || (i == 0 && h->closed && next > 0)) continue;
      uint64_t c = least[(set | 1u << next) * n + next] + (i ? cost(h, out[i - 1], (int)next) : 0);
      if (c >= best_cost) continue;
      best_cost = c;
      best = next;
    }
    out[i] = (int)best;
    set |= 1u << best;
  }
  free(least);
  return RAIL_OK;
}

static void order_greedily(const struct host *h, int *out) {
  for (int i = 0; i < h->n; i++) out[i] = i;
  for (int i = 1; i < h->n; i++) {
    int best = i;
    for (int k = i + 1; k < h->n; k++) {
      uint64_t c = cost(h, out[i - 1], out[k]), least = cost(h, out[i - 1], out[best]);
      if (c < least || (c == least && out[k] < out[best])) best = k;
    }
    int taken = out[best];
    memmove(&out[i + 1], &out[i], (size_t)(best - i) * sizeof out[0]);
    out[i] = taken;
  }
}

/* ---- all hosts --------------------------------------------------------------------- */

/* Writes the host's ranks to order[]; scratch has as many elements. */
static rail_result_t add_host(const struct host *h, int *scratch, int *order) {
  if (h->n > RT_TOPO_EXACT)
    order_greedily(h, scratch);
  else
    RAIL_TRY(order_exactly(h, scratch));
  for (int i = 0; i < h->n; i++) order[i] = h->member[scratch[i]];
  return RAIL_OK;
}

static void rotate_to_rank_0(int *order, int *scratch, int n) {
  int at = 0;
  while (order[at] != 0) at++;
  for (int i = 0; i < n; i++) scratch[i] = order[(at + i) % n];
  memcpy(order, scratch, (size_t)n * sizeof order[0]);
}

rail_result_t rt_topo_ring(const struct rt_topo_rank *ranks, int n, int *order) {
  int *member = calloc((size_t)n, sizeof *member), *scratch = calloc((size_t)n, sizeof *scratch);
  rail_result_t r = member && scratch ? RAIL_OK : RAIL_SYSTEM_ERROR;
  for (int first = 0, placed = 0; first < n && r == RAIL_OK; first++) {
    bool seen = false;
    for (int i = 0; i < first && !seen; i++) seen = ranks[i].host == ranks[first].host;
    if (seen) continue;
    struct host h = {.ranks = ranks, .member = member};
    for (int i = first; i < n; i++)
      if (ranks[i].host == ranks[first].host) member[h.n++] = i;
    h.closed = h.n == n;
    r = add_host(&h, scratch, &order[placed]);
    placed += h.n;
  }
  if (r == RAIL_OK) rotate_to_rank_0(order, scratch, n);
  free(member);
  free(scratch);
  return r;
}
