/* SPDX-License-Identifier: Apache-2.0
 *
 * What the host has beyond rt_sched_impl.h: PAT's schedules, which take log2(nranks) rounds, rounded up. In all of them
 * a rank sends by connection k to the ring index 2^k after its own.
 */
#include "core/host/rt_sched.h"

#include "core/host/rt_sched_impl.h"

int rt_sched_rounds(int nranks) { return rt_sched_rounds_(nranks); }

/* ---- all-gather and reduce-scatter: all blocks move at once ---- */

/* `work` has this loop's part of every block one after the other. An all-gather (Bruck's) has them backwards from the
 * rank's own: in round k, from 0 on, it sends all that it has, at most what is still missing, and has twice as many. A
 * reduce-scatter is that in reverse. It has the blocks forwards from its own: in round k, from the last one on, it
 * sends the sums of the blocks that are 2^k and more after its own, gets as many for its own and those behind it, and
 * adds them; so a sum is made in one order, which the number of ranks decides. */

/* Blocks that round k sends, and receives. */
static uint64_t pat_blocks(const struct rt_sched *s, int k) {
  return RAIL_MIN(1ull << k, (uint64_t)s->nranks - (1ull << k));
}

/* Elements of a block in a loop: as many as let a round be one step, if there are so many. */
static uint64_t pat_part(const struct rt_sched *s) {
  const uint64_t most_blocks = (uint64_t)s->nranks / 2;
  return RAIL_MIN(s->len, RAIL_MAX(s->chunk / most_blocks, (uint64_t)1));
}

static uint64_t pat_steps(const struct rt_sched *s, int k, uint64_t part) {
  const uint64_t all = pat_blocks(s, k) * part;
  return all <= s->chunk ? 1 : RAIL_DIV_UP(all, s->chunk); /* seldom more: no division */
}

/* Of a loop: each step is an action that sends and one that receives, and each block is copied once. */
static uint64_t pat_loop_actions(const struct rt_sched *s) {
  const uint64_t part = pat_part(s);
  uint64_t actions = (uint64_t)s->nranks;
  for (int k = 0; k < rt_sched_rounds(s->nranks); k++) actions += 2 * pat_steps(s, k, part);
  return actions;
}

/* One loop: elements at .. at + n of every block, in rounds for `part` of them. */
struct pat_loop {
  uint64_t at, n, part;
};

/* That of action *i, of which its number in the loop is left. */
static struct pat_loop pat_loop_of(const struct rt_sched *s, uint64_t *i) {
  const uint64_t actions = pat_loop_actions(s), part = pat_part(s);
  uint64_t done = 0;
  if (*i >= actions) {
    done = *i / actions * part;
    *i %= actions;
  }
  return (struct pat_loop){.at = s->lo + done, .n = RAIL_MIN(part, s->len - done), .part = part};
}

/* A step's part of a round's blocks, which begin at `first` in `work`. */
static char *pat_piece(const struct rt_sched *s, const struct pat_loop *l, int k, uint64_t step, uint64_t first,
                       struct rt_action *a) {
  const uint64_t all = pat_blocks(s, k) * l->n, from = RAIL_MIN(step * s->chunk, all);
  a->n = RAIL_MIN(s->chunk, all - from);
  return s->work + (first * l->n + from) * s->esize;
}

/* The round of action *i, of which its number in the round is left; each step is sent, then one is received. -1: it is
 * beyond them. */
static int pat_round(const struct rt_sched *s, const struct pat_loop *l, bool backwards, uint64_t *i) {
  const int rounds = rt_sched_rounds(s->nranks);
  for (int r = 0; r < rounds; r++) {
    const int k = backwards ? rounds - 1 - r : r;
    const uint64_t actions = 2 * pat_steps(s, k, l->part);
    if (*i < actions) return k;
    *i -= actions;
  }
  return -1;
}

static void pat_allgather_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  const struct pat_loop l = pat_loop_of(s, &i);
  const bool first = i == 0;
  const int k = pat_round(s, &l, false, &i);
  if (k < 0) {
    a->n = l.n;
    a->src = s->work + i * l.n * s->esize;
    a->dst = s->recv + (rt_sched_block_(s, (int)i) * s->count + l.at) * s->esize;
    return;
  }
  a->send = i % 2 == 0;
  a->recv = !a->send;
  a->from = a->to = (uint8_t)k;
  char *piece = pat_piece(s, &l, k, i / 2, a->send ? 0 : 1ull << k, a);
  if (a->send) a->src = first ? s->send + l.at * s->esize : piece;
  if (a->recv || first) a->dst = piece;
}

static void pat_reduce_scatter_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  const struct pat_loop l = pat_loop_of(s, &i);
  if (i < (uint64_t)s->nranks) {
    a->n = l.n;
    a->src = s->send + (rt_sched_block_(s, -(int)i) * s->count + l.at) * s->esize;
    a->dst = s->work + i * l.n * s->esize;
    return;
  }
  i -= (uint64_t)s->nranks;
  const int k = pat_round(s, &l, true, &i);
  a->send = i % 2 == 0;
  a->recv = a->reduce = !a->send;
  a->partial = true;
  a->from = a->to = (uint8_t)k;
  char *piece = pat_piece(s, &l, k, i / 2, a->send ? 1ull << k : 0, a);
  a->src = piece;
  a->last = a->recv && k == 0;
  if (a->recv) a->dst = a->last ? s->recv + l.at * s->esize : piece;
}

/* ---- broadcast and reduce: a binomial tree ---- */

/* Numbered from the root, in the direction of a broadcast's steps or against that of a reduce's, a rank's parent has
 * the number without its lowest bit: the largest subtrees are the farthest, so few steps leave a host. */
int rt_sched_pat_tree(const struct rt_sched *s, int *children) {
  const int steps = s->coll == RT_PAT_REDUCE ? s->root - s->rank : s->rank - s->root;
  const int number = steps < 0 ? steps + s->nranks : steps;
  int up = 0;
  if (number == 0)
    up = rt_sched_rounds(s->nranks);
  else
    while (!(number >> up & 1)) up++;
  *children = 0;
  while (*children < up && number + (1ll << *children) < s->nranks) ++*children;
  return number == 0 ? -1 : up;
}

static uint64_t pat_tree_actions(const struct rt_sched *s) {
  int children;
  rt_sched_pat_tree(s, &children);
  return (uint64_t)RAIL_MAX(children, 1);
}

/* To the child with the largest subtree first. */
static void pat_broadcast_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  int children;
  const int up = rt_sched_pat_tree(s, &children);
  const uint64_t actions = (uint64_t)RAIL_MAX(children, 1), byte = rt_sched_chunk_at_(s, i / actions, &a->n) * s->esize;
  const int k = (int)(i % actions);
  a->recv = k == 0 && up >= 0;
  if (a->recv) a->from = (uint8_t)up;
  a->send = children > 0;
  if (a->send) a->to = (uint8_t)(children - 1 - k);
  if (!a->recv) a->src = (up < 0 ? s->send : s->recv) + byte;
  if (k == 0 && s->recv) a->dst = s->recv + byte;
}

/* From the child with the smallest subtree first; `work` has the sum until the last one's step comes. */
static void pat_reduce_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  int children;
  const int up = rt_sched_pat_tree(s, &children);
  const uint64_t actions = (uint64_t)RAIL_MAX(children, 1), byte = rt_sched_chunk_at_(s, i / actions, &a->n) * s->esize;
  const int k = (int)(i % actions);
  const bool complete = k + 1 == (int)actions;
  a->recv = a->reduce = children > 0;
  if (a->recv) a->from = (uint8_t)k;
  a->partial = k > 0;
  a->src = k > 0 ? s->work : s->send + byte;
  a->send = complete && up >= 0;
  if (a->send) a->to = (uint8_t)up;
  a->last = complete && up < 0;
  if (!complete) a->dst = s->work;
  if (a->last) a->dst = s->recv + byte;
}

/* ---- all schedules ---- */

uint64_t rt_sched_work(const struct rt_sched *s) {
  if (s->nranks == 1) return 0;
  switch (s->coll) {
    case RT_PAT_ALLGATHER:
    case RT_PAT_REDUCE_SCATTER: return (uint64_t)s->nranks * pat_part(s) * s->esize;
    case RT_PAT_REDUCE: return RAIL_MIN(s->chunk, s->len) * s->esize;
    default: return 0;
  }
}

uint64_t rt_sched_actions(const struct rt_sched *s) {
  if (s->nranks == 1 || s->len == 0) return rt_sched_actions_(s);
  switch (s->coll) {
    case RT_PAT_ALLGATHER:
    case RT_PAT_REDUCE_SCATTER: return rt_sched_loops_(s->len, pat_part(s)) * pat_loop_actions(s);
    case RT_PAT_BROADCAST:
    case RT_PAT_REDUCE: return rt_sched_loops_(s->len, s->chunk) * pat_tree_actions(s);
    default: return rt_sched_actions_(s);
  }
}

void rt_sched_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  void (*pat)(const struct rt_sched *, uint64_t, struct rt_action *) = NULL;
  switch (s->nranks > 1 ? s->coll : RT_COPY) {
    case RT_PAT_ALLGATHER: pat = pat_allgather_action; break;
    case RT_PAT_REDUCE_SCATTER: pat = pat_reduce_scatter_action; break;
    case RT_PAT_BROADCAST: pat = pat_broadcast_action; break;
    case RT_PAT_REDUCE: pat = pat_reduce_action; break;
    default: rt_sched_action_(s, i, a); return;
  }
  memset(a, 0, sizeof *a);
  pat(s, i, a);
}

uint64_t rt_sched_call(const struct rt_sched *s) {
  enum rt_coll coll = s->coll == RT_RECV ? RT_SEND : s->coll;
  return s->count * s->esize << 4 | (uint64_t)coll;
}
