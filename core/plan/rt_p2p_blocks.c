/* SPDX-License-Identifier: Apache-2.0
 * Sorts sends and receives by distance into the lists of the blocks that run them. rt_device_plan.c calls it while it
 * prepares a plan. */
#include "core/plan/rt_p2p_blocks.h"

#include <stdlib.h>

#include "common/base/compiler.h"

static int by_distance(const void *x, const void *y) {
  const struct rt_p2p_op *a = x, *b = y;
  if (a->is_recv != b->is_recv) return a->is_recv - b->is_recv;
  return a->distance != b->distance ? a->distance - b->distance : a->job - b->job;
}

static int by_index(const void *x, const void *y) {
  const struct rt_p2p_op *a = x, *b = y;
  return a->index != b->index ? a->index - b->index : a->block - b->block;
}

static bool same_distance(const struct rt_p2p_op *a, const struct rt_p2p_op *b) {
  return a->is_recv == b->is_recv && a->distance == b->distance;
}

/* Of sorted sends, or receives. */
static int count_distances(const struct rt_p2p_op *ops, int n) {
  int count = n > 0;
  for (int i = 1; i < n; i++) count += !same_distance(&ops[i], &ops[i - 1]);
  return count;
}

/* The distances take turns at the blocks. `length`: of each block's list. */
static void share(struct rt_p2p_op *ops, int n, int first, int nblocks, int *length) {
  for (int i = 0, turn = 0; i < n; i++) {
    if (i > 0 && !same_distance(&ops[i], &ops[i - 1])) turn++;
    ops[i].block = first + turn % nblocks;
    ops[i].index = length[ops[i].block]++;
  }
}

int rt_p2p_share_blocks(struct rt_p2p_op *ops, int n, int most) {
  int nsends = 0, *of_block = calloc((size_t)most, sizeof *of_block); /* length of its list; then an operation */
  if (!of_block) return -1;
  qsort(ops, (size_t)n, sizeof *ops, by_distance);
  while (nsends < n && !ops[nsends].is_recv) nsends++;
  const int to = count_distances(ops, nsends), from = count_distances(&ops[nsends], n - nsends);
  const int recv_blocks = RAIL_MIN(from, RAIL_MAX(most / 2, most - to)), send_blocks = RAIL_MIN(to, most - recv_blocks);
  share(ops, nsends, 0, send_blocks, of_block);
  share(&ops[nsends], n - nsends, send_blocks, recv_blocks, of_block);
  qsort(ops, (size_t)n, sizeof *ops, by_index);
  for (int block = 0; block < most; block++) of_block[block] = -1;
  for (int i = n - 1; i >= 0; i--) {
    ops[i].next = of_block[ops[i].block];
    of_block[ops[i].block] = i;
  }
  free(of_block);
  return send_blocks + recv_blocks;
}
