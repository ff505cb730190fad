/* SPDX-License-Identifier: Apache-2.0
 * Proves: sends and receives that share blocks have a place each, those of a connection in their order; and whichever
 * messages a group has, and however many blocks each rank has, all of them come through, also where a message needs
 * both of its ends at once. */
#include "core/plan/rt_p2p_blocks.h"

#include <stdlib.h>
#include <string.h>

#include "test/harness/tap.h"

enum { MOST_RANKS = 9, MOST_OPS = 4 * MOST_RANKS };

/* One rank's operations as they lie in its blocks, and how far each block is. */
struct rank_ops {
  struct rt_p2p_op ops[MOST_OPS];
  int n, nblocks, at[MOST_OPS];
};

static void add(struct rank_ops *r, int distance, bool is_recv) {
  r->ops[r->n] = (struct rt_p2p_op){.distance = distance, .is_recv = is_recv, .job = r->n};
  r->n++;
}

/* Each operation has one place; the first of all blocks are first, in the blocks' order; lists are what `next` says. */
static void check_lists(const struct rank_ops *r, int most) {
  bool seen[MOST_OPS] = {false};
  int listed = 0;
  CHECK(r->nblocks >= 1 && r->nblocks <= most);
  for (int i = 0; i < r->n; i++) {
    CHECK(r->ops[i].job >= 0 && r->ops[i].job < r->n && !seen[r->ops[i].job]);
    seen[r->ops[i].job] = true;
  }
  for (int block = 0; block < r->nblocks; block++) {
    for (int i = block, index = 0; i >= 0; i = r->ops[i].next, index++, listed++) {
      const struct rt_p2p_op *o = &r->ops[i], *next = o->next >= 0 ? &r->ops[o->next] : NULL;
      CHECK_INT(o->block, block);
      CHECK_INT(o->index, index);
      CHECK(!next || o->next > i);
      CHECK(!next || (next->is_recv == o->is_recv && next->distance >= o->distance));
      CHECK(!next || next->distance > o->distance || next->job > o->job);
    }
  }
  CHECK_INT(listed, r->n);
}

/* A send is done with its receive, when both are their blocks' current operations. */
static bool step(struct rank_ops *ranks, int n, int s, int block) {
  struct rank_ops *from = &ranks[s];
  const int i = from->at[block];
  if (i < 0 || from->ops[i].is_recv) return false;
  struct rank_ops *to = &ranks[(s + from->ops[i].distance) % n];
  for (int b = 0; b < to->nblocks && from->ops[i].distance; b++) {
    const int k = to->at[b];
    if (k < 0 || !to->ops[k].is_recv || to->ops[k].distance != from->ops[i].distance) continue;
    to->at[b] = to->ops[k].next;
    from->at[block] = from->ops[i].next;
    return true;
  }
  if (from->ops[i].distance == 0) from->at[block] = from->ops[i].next;
  return from->ops[i].distance == 0;
}

static void check_progress(struct rank_ops *ranks, int n) {
  bool moved = true;
  for (int r = 0; r < n; r++)
    for (int block = 0; block < ranks[r].nblocks; block++) ranks[r].at[block] = block;
  while (moved) {
    moved = false;
    for (int r = 0; r < n; r++)
      for (int block = 0; block < ranks[r].nblocks; block++) moved |= step(ranks, n, r, block);
  }
  for (int r = 0; r < n; r++)
    for (int block = 0; block < ranks[r].nblocks; block++)
      CHECK_MSG(ranks[r].at[block] < 0, "rank %d of %d: block %d stands still", r, n, block);
}

static void run(struct rank_ops *ranks, int n, unsigned *seed) {
  for (int r = 0; r < n; r++) {
    *seed = *seed * 1664525u + 1013904223u;
    const int most = 2 + (int)(*seed >> 24) % 6;
    ranks[r].nblocks = ranks[r].n ? rt_p2p_share_blocks(ranks[r].ops, ranks[r].n, most) : 0;
    if (ranks[r].n) check_lists(&ranks[r], most);
  }
  check_progress(ranks, n);
}

TEST(all_to_all) {
  unsigned seed = 1;
  for (int n = 1; n <= MOST_RANKS; n++) {
    static struct rank_ops ranks[MOST_RANKS];
    memset(ranks, 0, sizeof ranks);
    for (int r = 0; r < n; r++)
      for (int d = 0; d < n; d++) {
        add(&ranks[r], d, false);
        if (d) add(&ranks[r], d, true);
      }
    run(ranks, n, &seed);
  }
}

/* Any messages, up to two from a rank to another; the ranks make their calls in orders of their own. */
TEST(any_messages) {
  unsigned seed = 7;
  for (int round = 0; round < 2000; round++) {
    static struct rank_ops ranks[MOST_RANKS];
    const int n = 2 + round % (MOST_RANKS - 1);
    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < n * n; i++) {
      seed = seed * 1664525u + 1013904223u;
      const int s = (int)(seed >> 20) % n, d = 1 + (int)(seed >> 8) % (n - 1), t = (s + d) % n;
      if (ranks[s].n == MOST_OPS || ranks[t].n == MOST_OPS) continue;
      add(&ranks[s], d, false);
      add(&ranks[t], d, true);
    }
    run(ranks, n, &seed);
  }
}

TEST(blocks_are_shared_evenly) {
  struct rank_ops r = {.n = 0};
  for (int d = 1; d <= 8; d++) add(&r, d, false);
  for (int d = 1; d <= 8; d++) add(&r, d, true);
  CHECK_INT(rt_p2p_share_blocks(r.ops, r.n, 6), 6);
  for (int i = 0; i < r.n; i++) CHECK_INT(r.ops[i].is_recv, r.ops[i].block >= 3);
  r.n = 0;
  for (int d = 1; d <= 8; d++) add(&r, d, true);
  add(&r, 3, false);
  CHECK_INT(rt_p2p_share_blocks(r.ops, r.n, 6), 6); /* one for the send */
  r.n = 0;
  for (int i = 0; i < 8; i++) add(&r, 3, true);
  CHECK_INT(rt_p2p_share_blocks(r.ops, r.n, 6), 1); /* one connection */
}

TEST_MAIN(TEST_CASE(all_to_all), TEST_CASE(any_messages), TEST_CASE(blocks_are_shared_evenly))
