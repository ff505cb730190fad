/* SPDX-License-Identifier: Apache-2.0
 *
 * The schedules of rt_sched.h, as source for the host and for a GPU: plain C11
 * that is also CUDA C++. Included by rt_sched.c, whose functions the host calls, and by
 * the kernel of core/device.
 */
#ifndef RT_SCHED_IMPL_H
#define RT_SCHED_IMPL_H

#include <string.h>

#include "common/base/compiler.h"
#include "core/host/rt_sched.h"
#include "core/host/rt_types.h"

/* Chunks begin on cache lines of an aligned buffer where that costs nothing. */
#define RT_CHUNK_ALIGN_ 64u

RT_HD int rt_sched_ring_index_(const struct rt_sched *s, int steps_back) {
  int r = (s->rank - steps_back) % s->nranks;
  return r < 0 ? r + s->nranks : r;
}

/* The rank at that ring index: the number of its block in a buffer. */
RT_HD uint64_t rt_sched_block_(const struct rt_sched *s, int steps_back) {
  int index = rt_sched_ring_index_(s, steps_back);
  return (uint64_t)(s->order ? s->order[index] : index);
}

RT_HD uint64_t rt_sched_loops_(uint64_t len, uint64_t per_loop) { return RAIL_DIV_UP(len, per_loop); }

RT_HD int rt_sched_rounds_(int nranks) {
  int rounds = 0;
  while (1ll << rounds < nranks) rounds++;
  return rounds;
}

/* ---- loops of several steps, interleaved ---- */

/* Which loop action i belongs to, and which step k of it. */
struct rt_sched_step_ { uint64_t loop; int k; };

RT_HD struct rt_sched_step_ rt_sched_step_of_(uint64_t loop, uint64_t k) {
  struct rt_sched_step_ p;
  p.loop = loop;
  p.k = (int)k;
  return p;
}

/* Along the diagonal: at time t step 0 of loop t, step 1 of loop t-1, and so on. */
RT_HD struct rt_sched_step_ rt_sched_diagonal_(uint64_t i, uint64_t nloops, uint64_t steps) {
  uint64_t t = 0, first = 0, count = 1; /* time, first and number of steps at that time */
  if (nloops >= steps) {
    /* Skip the full diagonals in one stride; before and after them there are less than `steps` others. */
    uint64_t ramp = steps * (steps - 1) / 2, full = (nloops - steps + 1) * steps;
    if (i >= ramp + full) {
      i -= ramp + full;
      t = nloops;
    } else if (i >= ramp) {
      return rt_sched_step_of_(steps - 1 + (i - ramp) / steps - (i - ramp) % steps, (i - ramp) % steps);
    }
  }
  for (;; t++, i -= count) {
    first = t < nloops ? 0 : t - nloops + 1;
    count = RAIL_MIN(t, steps - 1) - first + 1;
    if (i < count) break;
  }
  return rt_sched_step_of_(t - first - i, first + i);
}

/* ---- all-reduce: a reduce-scatter, then an all-gather, of nranks chunks a loop ---- */

struct rt_sched_loop_ {
  uint64_t base, region, chunk;
};

RT_HD struct rt_sched_loop_ rt_sched_allreduce_loop_(const struct rt_sched *s, uint64_t loop) {
  uint64_t per_loop = s->chunk * (uint64_t)s->nranks;
  struct rt_sched_loop_ p;
  p.base = loop * per_loop;
  p.region = RAIL_MIN(per_loop, s->len - p.base);
  uint64_t align = RAIL_MAX((uint64_t)(RT_CHUNK_ALIGN_ / s->esize), (uint64_t)1);
  p.chunk = RAIL_MIN(s->chunk, RAIL_ROUND_UP(RAIL_DIV_UP(p.region, (uint64_t)s->nranks), align));
  return p;
}

/* In plain order a rank needs, right after sending step k, the step that its neighbour makes of it, so every delay of a
 * neighbour stalls it. Interleaved, the input of a step was sent 2n-1 actions earlier. Sends and receives stay in one
 * order: both ends of a connection walk the same diagonals. But up to 2n-1 steps are then in flight per connection
 * while a rank receives one and sends one, and a ring deadlocks when all its FIFOs are full: 8 slots allow 4 ranks. */
#define RT_DIAGONAL_MAX_RANKS_ 4

RT_HD struct rt_sched_step_ rt_sched_allreduce_step_(const struct rt_sched *s, uint64_t i, uint64_t nloops) {
  uint64_t steps = 2 * (uint64_t)s->nranks - 1;
  if (s->nranks > RT_DIAGONAL_MAX_RANKS_) return rt_sched_step_of_(i / steps, i % steps);
  return rt_sched_diagonal_(i, nloops, steps);
}

RT_HD void rt_sched_allreduce_action_(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  int n = s->nranks, per_loop = 2 * n - 1;
  struct rt_sched_step_ at_i = rt_sched_allreduce_step_(s, i, rt_sched_loops_(s->len, s->chunk * (uint64_t)n));
  struct rt_sched_loop_ p = rt_sched_allreduce_loop_(s, at_i.loop);
  int k = at_i.k;
  /* In step k of both phases a rank works on the chunk that is k+1 behind it. */
  uint64_t at = p.chunk * (uint64_t)rt_sched_ring_index_(s, k + 1);
  a->n = at >= p.region ? 0 : RAIL_MIN(p.chunk, p.region - at);
  uint64_t byte = (s->lo + p.base + RAIL_MIN(at, p.region)) * s->esize;
  a->recv = k > 0;
  a->send = k < per_loop - 1;
  a->reduce = k > 0 && k < n;
  a->last = k == n - 1;
  if (k < n) a->src = s->send + byte;
  if (k >= n - 1) a->dst = s->recv + byte;
}

/* ---- reduce-scatter, all-gather: the two phases alone, blocks of `count` elements ---- */

RT_HD uint64_t rt_sched_chunk_at_(const struct rt_sched *s, uint64_t loop, uint64_t *n) {
  uint64_t at = loop * s->chunk;
  *n = RAIL_MIN(s->chunk, s->len - at);
  return s->lo + at;
}

RT_HD void rt_sched_reduce_scatter_action_(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  uint64_t n = (uint64_t)s->nranks;
  int k = (int)(i % n);
  uint64_t at = rt_sched_chunk_at_(s, i / n, &a->n);
  uint64_t block = rt_sched_block_(s, k + 1);
  a->recv = k > 0;
  a->send = k < s->nranks - 1;
  a->reduce = k > 0;
  a->last = k == s->nranks - 1;
  a->src = s->send + (block * s->count + at) * s->esize;
  if (a->last) a->dst = s->recv + at * s->esize;
}

RT_HD void rt_sched_allgather_action_(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  uint64_t n = (uint64_t)s->nranks;
  int k = (int)(i % n);
  uint64_t at = rt_sched_chunk_at_(s, i / n, &a->n);
  uint64_t block = rt_sched_block_(s, k);
  a->recv = k > 0;
  a->send = k < s->nranks - 1;
  a->dst = s->recv + (block * s->count + at) * s->esize;
  if (k == 0) a->src = s->send + at * s->esize;
}

/* ---- chains: broadcast away from root, reduce towards it; one action a chunk ---- */

RT_HD void rt_sched_broadcast_action_(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  uint64_t byte = rt_sched_chunk_at_(s, i, &a->n) * s->esize;
  bool is_root = s->rank == s->root, is_end = (s->rank + 1) % s->nranks == s->root;
  a->recv = !is_root;
  a->send = !is_end;
  if (s->recv) a->dst = s->recv + byte;
  if (is_root) a->src = s->send + byte;
}

RT_HD void rt_sched_reduce_action_(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  uint64_t byte = rt_sched_chunk_at_(s, i, &a->n) * s->esize;
  bool is_root = s->rank == s->root, is_first = s->rank == (s->root + 1) % s->nranks;
  a->recv = !is_first;
  a->send = !is_root;
  a->reduce = !is_first;
  a->last = is_root;
  a->src = s->send + byte;
  if (is_root) a->dst = s->recv + byte;
}

/* ---- exchange: recursive doubling between a power of two of ranks, for latency ---- */

/* In round k, from 0 on, a rank and the one whose index differs in bit k alone send each other the sums that they have,
 * of 2^k ranks each, and add them. All operators commute, so that all ranks get the same bits. Step k of a chunk
 * receives and adds a sum of 2^(k-1) ranks, but for step 0, and sends the result, but for the last. */
RT_HD void rt_sched_exchange_action_(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  const int rounds = rt_sched_rounds_(s->nranks);
  const struct rt_sched_step_ at = rt_sched_diagonal_(i, rt_sched_loops_(s->len, s->chunk), (uint64_t)rounds + 1);
  const uint64_t byte = rt_sched_chunk_at_(s, at.loop, &a->n) * s->esize;
  a->send = at.k < rounds;
  if (a->send) a->to = (uint8_t)at.k;
  a->recv = a->reduce = at.k > 0;
  if (a->recv) a->from = (uint8_t)(at.k - 1);
  a->last = at.k == rounds;
  a->partial = at.k > 1;
  if (a->recv) a->dst = s->recv + byte;
  a->src = a->partial ? a->dst : s->send + byte;
}

/* ---- a tree: chunks are reduced on their way up, and results come down ---- */

/* Actions of one chunk up and down. The root's last step up is the first down. */
RT_HD uint64_t rt_sched_tree_up_(const struct rt_sched *s) { return s->tree.children ? s->tree.children : 1u; }
RT_HD uint64_t rt_sched_tree_down_(const struct rt_sched *s) {
  return s->tree.has_parent ? rt_sched_tree_up_(s) : s->tree.children - 1u;
}

/* From the children, the one with the smaller subtree first; its sum stays in the output buffer until the other child's
 * step comes. */
RT_HD void rt_sched_tree_up_action_(const struct rt_sched *s, uint64_t chunk, uint64_t k, struct rt_action *a) {
  uint64_t byte = rt_sched_chunk_at_(s, chunk, &a->n) * s->esize;
  bool complete = k + 1 == rt_sched_tree_up_(s);
  a->recv = a->reduce = s->tree.children > 0;
  if (a->recv) a->from = (uint8_t)(s->tree.children - 1 - k);
  a->partial = k > 0;
  a->src = k > 0 ? s->recv + byte : s->send + byte;
  a->send = complete;
  a->to = s->tree.has_parent ? RT_PARENT : RT_CHILD;
  a->last = complete && !s->tree.has_parent;
  if (!complete || a->last) a->dst = s->recv + byte;
}

/* To the child with the larger subtree first. */
RT_HD void rt_sched_tree_down_action_(const struct rt_sched *s, uint64_t chunk, uint64_t k, struct rt_action *a) {
  uint64_t byte = rt_sched_chunk_at_(s, chunk, &a->n) * s->esize;
  a->recv = s->tree.has_parent && k == 0;
  if (a->recv) {
    a->from = RT_PARENT;
    a->send = s->tree.children > 0;
    a->to = RT_CHILD;
    a->dst = s->recv + byte;
  } else {
    a->send = a->partial = true;
    a->to = RT_OTHER_CHILD;
    a->src = s->recv + byte;
  }
}

/* A chunk's result comes down to a rank 2 * depth steps after the chunk went up from there. To hide that latency, so
 * many chunks go up first; then one goes up and one comes down in turn. A step is received in the time step after the
 * one in which it was sent, everywhere in the tree: two slots are enough. */
RT_HD void rt_sched_tree_action_(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  const uint64_t up = rt_sched_tree_up_(s), down = rt_sched_tree_down_(s), both = up + down;
  const uint64_t chunks = rt_sched_loops_(s->len, s->chunk), ahead = RAIL_MIN(2 * (uint64_t)s->tree.depth, chunks);
  const uint64_t pairs = chunks - ahead;
  if (i < ahead * up) {
    rt_sched_tree_up_action_(s, i / up, i % up, a);
    return;
  }
  i -= ahead * up;
  if (i >= pairs * both) {
    i -= pairs * both;
    rt_sched_tree_down_action_(s, pairs + i / down, i % down, a);
  } else if (i % both < up) {
    rt_sched_tree_up_action_(s, ahead + i / both, i % both, a);
  } else {
    rt_sched_tree_down_action_(s, i / both, i % both - up, a);
  }
}

/* ---- one-sided ---- */

RT_HD void rt_sched_point_action_(const struct rt_sched *s, enum rt_coll coll, uint64_t i, struct rt_action *a) {
  uint64_t byte = rt_sched_chunk_at_(s, i, &a->n) * s->esize;
  a->send = coll == RT_SEND;
  a->recv = coll == RT_RECV;
  a->last = coll == RT_COPY;
  if (coll != RT_RECV) a->src = s->send + byte;
  if (coll != RT_SEND) a->dst = s->recv + byte;
}

RT_HD uint64_t rt_sched_actions_(const struct rt_sched *s) {
  /* A message of no bytes is still a message. */
  if (s->coll == RT_SEND || s->coll == RT_RECV) return RAIL_MAX(rt_sched_loops_(s->len, s->chunk), (uint64_t)1);
  if (s->len == 0) return 0;
  uint64_t n = (uint64_t)s->nranks;
  if (n == 1 || s->coll == RT_COPY) return rt_sched_loops_(s->len, s->chunk);
  switch (s->coll) {
    case RT_ALLREDUCE: return rt_sched_loops_(s->len, s->chunk * n) * (2 * n - 1);
    case RT_EXCHANGE: return rt_sched_loops_(s->len, s->chunk) * ((uint64_t)rt_sched_rounds_(s->nranks) + 1);
    case RT_TREE: return rt_sched_loops_(s->len, s->chunk) * (rt_sched_tree_up_(s) + rt_sched_tree_down_(s));
    case RT_REDUCE_SCATTER:
    case RT_ALLGATHER: return rt_sched_loops_(s->len, s->chunk) * n;
    default: return rt_sched_loops_(s->len, s->chunk);
  }
}

RT_HD void rt_sched_action_(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  memset(a, 0, sizeof *a);
  if (s->nranks == 1 && s->coll != RT_SEND && s->coll != RT_RECV) {
    rt_sched_point_action_(s, RT_COPY, i, a);
    return;
  }
  switch (s->coll) {
    case RT_ALLREDUCE: rt_sched_allreduce_action_(s, i, a); break;
    case RT_REDUCE_SCATTER: rt_sched_reduce_scatter_action_(s, i, a); break;
    case RT_ALLGATHER: rt_sched_allgather_action_(s, i, a); break;
    case RT_BROADCAST: rt_sched_broadcast_action_(s, i, a); break;
    case RT_REDUCE: rt_sched_reduce_action_(s, i, a); break;
    case RT_EXCHANGE: rt_sched_exchange_action_(s, i, a); break;
    case RT_TREE: rt_sched_tree_action_(s, i, a); break;
    default: rt_sched_point_action_(s, s->coll, i, a); break;
  }
}

#endif
