/* SPDX-License-Identifier: Apache-2.0 */
#include "core/kernel/rt_sched.h"

#include <string.h>

#include "common/compiler.h"

/* Chunks begin on cache lines of an aligned buffer where that costs nothing. */
#define CHUNK_ALIGN 64u

static int ring_rank(const struct rt_sched *s, int steps_back) {
  int r = (s->rank - steps_back) % s->nranks;
  return r < 0 ? r + s->nranks : r;
}

static uint64_t loops(uint64_t len, uint64_t per_loop) { return RAIL_DIV_UP(len, per_loop); }

/* ---- all-reduce: a reduce-scatter, then an all-gather, of nranks chunks a loop ---- */

struct loop_part {
  uint64_t base, region, chunk;
};

static struct loop_part allreduce_loop(const struct rt_sched *s, uint64_t loop) {
  uint64_t per_loop = s->chunk * (uint64_t)s->nranks;
  struct loop_part p = {.base = loop * per_loop};
  p.region = RAIL_MIN(per_loop, s->len - p.base);
  uint64_t align = RAIL_MAX(CHUNK_ALIGN / s->esize, 1u);
  p.chunk = RAIL_MIN(s->chunk, RAIL_ROUND_UP(RAIL_DIV_UP(p.region, (uint64_t)s->nranks), align));
  return p;
}

static void allreduce_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  int n = s->nranks, per_loop = 2 * n - 1;
  struct loop_part p = allreduce_loop(s, i / (uint64_t)per_loop);
  int k = (int)(i % (uint64_t)per_loop);
  /* In step k of both phases a rank works on the chunk that is k+1 behind it. */
  uint64_t at = p.chunk * (uint64_t)ring_rank(s, k + 1);
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

static uint64_t chunk_at(const struct rt_sched *s, uint64_t loop, uint64_t *n) {
  uint64_t at = loop * s->chunk;
  *n = RAIL_MIN(s->chunk, s->len - at);
  return s->lo + at;
}

static void reduce_scatter_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  uint64_t n = (uint64_t)s->nranks;
  int k = (int)(i % n);
  uint64_t at = chunk_at(s, i / n, &a->n);
  uint64_t block = (uint64_t)ring_rank(s, k + 1);
  a->recv = k > 0;
  a->send = k < s->nranks - 1;
  a->reduce = k > 0;
  a->last = k == s->nranks - 1;
  a->src = s->send + (block * s->count + at) * s->esize;
  if (a->last) a->dst = s->recv + at * s->esize;
}

static void allgather_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  uint64_t n = (uint64_t)s->nranks;
  int k = (int)(i % n);
  uint64_t at = chunk_at(s, i / n, &a->n);
  uint64_t block = (uint64_t)ring_rank(s, k);
  a->recv = k > 0;
  a->send = k < s->nranks - 1;
  a->dst = s->recv + (block * s->count + at) * s->esize;
  if (k == 0) a->src = s->send + at * s->esize;
}

/* ---- chains: broadcast away from root, reduce towards it; one action a chunk ---- */

static void broadcast_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  uint64_t byte = chunk_at(s, i, &a->n) * s->esize;
  bool is_root = s->rank == s->root, is_end = (s->rank + 1) % s->nranks == s->root;
  a->recv = !is_root;
  a->send = !is_end;
  if (s->recv) a->dst = s->recv + byte;
  if (is_root) a->src = s->send + byte;
}

static void reduce_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  uint64_t byte = chunk_at(s, i, &a->n) * s->esize;
  bool is_root = s->rank == s->root, is_first = s->rank == (s->root + 1) % s->nranks;
  a->recv = !is_first;
  a->send = !is_root;
  a->reduce = !is_first;
  a->last = is_root;
  a->src = s->send + byte;
  if (is_root) a->dst = s->recv + byte;
}

/* ---- one-sided ---- */

static void point_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  uint64_t byte = chunk_at(s, i, &a->n) * s->esize;
  a->send = s->coll == RT_SEND;
  a->recv = s->coll == RT_RECV;
  a->last = s->coll == RT_COPY;
  if (s->coll != RT_RECV) a->src = s->send + byte;
  if (s->coll != RT_SEND) a->dst = s->recv + byte;
}

uint64_t rt_sched_actions(const struct rt_sched *s) {
  /* A message of no bytes is still a message. */
  if (s->coll == RT_SEND || s->coll == RT_RECV) return RAIL_MAX(loops(s->len, s->chunk), 1u);
  if (s->len == 0) return 0;
  uint64_t n = (uint64_t)s->nranks;
  if (n == 1 || s->coll == RT_COPY) return loops(s->len, s->chunk);
  switch (s->coll) {
    case RT_ALLREDUCE: return loops(s->len, s->chunk * n) * (2 * n - 1);
    case RT_REDUCE_SCATTER:
    case RT_ALLGATHER: return loops(s->len, s->chunk) * n;
    default: return loops(s->len, s->chunk);
  }
}

void rt_sched_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) {
  memset(a, 0, sizeof *a);
  if (s->nranks == 1 && s->coll != RT_SEND && s->coll != RT_RECV) {
    struct rt_sched self = *s;
    self.coll = RT_COPY;
    point_action(&self, i, a);
    return;
  }
  switch (s->coll) {
    case RT_ALLREDUCE: allreduce_action(s, i, a); break;
    case RT_REDUCE_SCATTER: reduce_scatter_action(s, i, a); break;
    case RT_ALLGATHER: allgather_action(s, i, a); break;
    case RT_BROADCAST: broadcast_action(s, i, a); break;
    case RT_REDUCE: reduce_action(s, i, a); break;
    default: point_action(s, i, a); break;
  }
}
