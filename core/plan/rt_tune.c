/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan/rt_tune.h"

#include <stddef.h>

#include "common/base/compiler.h"
#include "core/host/rt_program.h"
#include "core/plan/rt_tree.h"

#define HOST_TUNING "2026-11-22-host-tuning.md"
#define HOST_TREE "2026-11-22-host-tree.md"

const char *const rt_func_names[RT_NFUNC] = {"Broadcast",     "Reduce",    "AllGather",
                                             "ReduceScatter", "AllReduce", "SendRecv"};
const char *const rt_algo_names[RT_NALGO] = {"Ring", "Exchange", "Tree"};
const char *const rt_proto_names[RT_NPROTO] = {"Simple", "LL"};

/* ---- the table --------------------------------------------------------------------------- */

/* The first rule that fits decides. What it picks must be allowed, and a function's masks only hold what it has. If
 * nothing that is allowed fits, thresholds, transports and `from` do not count, but the number of ranks that can do it
 * does. */
struct rule {
  int least, most; /* ranks that can do it; 0: any */
  int from;        /* ranks with which it is chosen */
  enum { ANYWHERE, OVER_SHM, OVER_NET } where;
  size_t threshold; /* where rt_tuning has the most bytes; 0: any number */
  int pick;
  const char *measured;
};

#define MOST(field) .threshold = offsetof(struct rt_tuning, field)

/* The exchange takes one step of latency instead of two and reduces everything twice. Two ranks get equal bits: no
 * operator minds which operand comes first. With more ranks each would add up in an order of its own. */
static const struct rule algo_rules[] = {
    {.least = 2, .most = 2, MOST(exchange_max), .pick = RT_ALGO_EXCHANGE, .measured = HOST_TUNING},
    {.least = 2, .from = 3, .where = OVER_SHM, MOST(tree_max), .pick = RT_ALGO_TREE, .measured = HOST_TREE},
    {.least = 2, .from = 3, .where = OVER_NET, MOST(tree_max_net), .pick = RT_ALGO_TREE, .measured = HOST_TREE},
    {.pick = RT_ALGO_RING},
};

/* Through a proxy LL doubles the bytes and saves nothing: the proxy waits for the counters anyway. */
static const struct rule proto_rules[] = {
    {.where = OVER_SHM, MOST(ll_max), .pick = RT_LL, .measured = HOST_TUNING},
    {.pick = RT_SIMPLE},
};

struct rt_tuning rt_tuning_of(const struct rt_params *p, uint32_t algos, uint32_t protos) {
  return (struct rt_tuning){
      .algos = algos,
      .protos = protos,
      .nchannels = RAIL_MAX(1, (int)p->nchannels),
      .slot_size = {[RT_SIMPLE] = rt_slot_size(p->buffsize), [RT_LL] = rt_slot_size(p->ll_buffsize)},
      .ll_max = (uint64_t)p->ll_max,
      .chunk = (uint64_t)p->chunk,
      .exchange_max = (uint64_t)p->exchange_max,
      .tree_max = (uint64_t)p->tree_max,
      .tree_max_net = (uint64_t)p->tree_max_net,
  };
}

/* ---- choosing ---------------------------------------------------------------------------- */

static enum rt_func func_of(enum rt_coll coll) {
  switch (coll) {
    case RT_BROADCAST: return RT_F_BROADCAST;
    case RT_REDUCE: return RT_F_REDUCE;
    case RT_ALLGATHER: return RT_F_ALLGATHER;
    case RT_REDUCE_SCATTER: return RT_F_REDUCESCATTER;
    case RT_ALLREDUCE:
    case RT_EXCHANGE:
    case RT_TREE: return RT_F_ALLREDUCE;
    default: return RT_F_SENDRECV;
  }
}

static bool fits(const struct rule *r, const struct rt_tuning *t, uint64_t bytes, int nranks, bool strict) {
  if (nranks < r->least || (r->most && nranks > r->most)) return false;
  if (!strict) return true;
  if (nranks < r->from) return false;
  const uint64_t *most = (const uint64_t *)(const void *)((const char *)t + r->threshold);
  return (r->where == ANYWHERE || t->all_shm == (r->where == OVER_SHM)) && (r->threshold == 0 || bytes <= *most);
}

/* NULL: nothing that is allowed can be done. */
static const struct rule *choose(const struct rule *rules, size_t n, unsigned allowed, const struct rt_tuning *t,
                                 uint64_t bytes, int nranks) {
  for (int strict = 1; strict >= 0; strict--)
    for (size_t i = 0; i < n; i++)
      if (allowed & 1u << rules[i].pick && fits(&rules[i], t, bytes, nranks, strict)) return &rules[i];
  return NULL;
}

/* Where the threshold of the first rule for so many ranks was measured, if there was something to choose. */
static const char *why(const struct rule *rules, unsigned allowed, int nranks) {
  const struct rule *r = rules;
  while (r->measured && (nranks < RAIL_MAX(r->least, r->from) || (r->most && nranks > r->most))) r++;
  return allowed & (allowed - 1) ? r->measured : NULL;
}

/* Below this a pipeline of more steps costs more than it hides: a step over a network has system calls in it. Nor is a
 * second tree worth its steps for less. */
static uint64_t chunk_min(const struct rt_tuning *t) { return (t->all_shm ? 16u : 64u) * 1024; }

/* Bytes of a step for which a GPU's block is worth its part in counters: 64 for each of its threads. */
#define BLOCK_BYTES (32u * 1024)

static uint64_t step_bytes(enum rt_coll schedule, uint64_t bytes, int nranks) {
  return schedule == RT_ALLREDUCE ? bytes / (uint64_t)nranks : bytes;
}

static int channels_for(const struct rt_tuning *t, enum rt_coll coll, uint64_t bytes, int nranks) {
  if (t->blocks == 0) return t->nchannels;
  uint64_t n = step_bytes(coll, bytes, nranks) / BLOCK_BYTES;
  return (int)RAIL_MAX(1u, RAIL_MIN(n, (uint64_t)t->nchannels));
}

struct rt_choice rt_tune(const struct rt_tuning *t, enum rt_coll coll, uint64_t bytes, int nranks) {
  struct rt_choice c = {.func = func_of(coll), .schedule = coll, .ntrees = 1};
  c.nchannels = channels_for(t, coll, bytes, nranks);
  if (coll == RT_COPY || nranks == 1) return c;
  enum rt_func f = c.func;
  unsigned algos = rt_func_mask(t->algos, f), protos = rt_func_mask(t->protos, f);
  const struct rule *algo = choose(algo_rules, RAIL_COUNT_OF(algo_rules), algos, t, bytes, nranks);
  const struct rule *proto = choose(proto_rules, RAIL_COUNT_OF(proto_rules), protos, t, bytes, nranks);
  if (f == RT_F_SENDRECV) c.nchannels = 1;
  c.none = !proto || (!algo && f != RT_F_SENDRECV);
  if (c.none) return c;
  if (algo) c.algo = (enum rt_algo)algo->pick;
  c.proto = (enum rt_proto)proto->pick;
  if (c.algo == RT_ALGO_EXCHANGE) c.schedule = RT_EXCHANGE;
  if (c.algo == RT_ALGO_TREE) {
    c.schedule = RT_TREE;
    if (bytes >= RT_TREES * chunk_min(t) * (uint64_t)c.nchannels) c.ntrees = RT_TREES;
  }
  if (f == RT_F_ALLREDUCE) c.algo_measured = why(algo_rules, algos, nranks);
  if (t->all_shm) c.proto_measured = why(proto_rules, protos & ((1u << RT_NPROTO) - 1), nranks);
  return c;
}

enum rt_proto rt_tune_device(const struct rt_tuning *t, enum rt_coll coll, enum rt_proto proto) {
  bool named = coll != RT_COPY && rt_func_mask(t->protos, func_of(coll)) & 1u << RD_LL128;
  return named && proto == RT_SIMPLE ? (enum rt_proto)RD_LL128 : proto;
}

/* ---- chunks ------------------------------------------------------------------------------ */

/* Small enough that a slot is still in the cache when it is read, large enough that counters do not matter. */
#define CHUNK_TARGET (128u * 1024)

uint64_t rt_tune_chunk(const struct rt_tuning *t, enum rt_proto proto, enum rt_coll schedule, uint64_t bytes,
                       int nranks, uint64_t esize) {
  /* A slot of LL128 is as large as one of Simple. */
  uint64_t cap = rt_proto_payload(proto, t->slot_size[(int)proto == RD_LL128 ? RT_SIMPLE : proto]);
  uint64_t want = t->chunk ? t->chunk : CHUNK_TARGET;
  if (!t->chunk) {
    uint64_t per_step = step_bytes(schedule, bytes, nranks);
    /* Two loops or more per collective, so that receiving, reducing and sending overlap. */
    while (want > chunk_min(t) && want * 2 > per_step) want /= 2;
  }
  uint64_t n = RAIL_MIN(want, cap) / esize;
  return RAIL_MAX(n, 1u);
}
