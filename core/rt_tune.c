/* SPDX-License-Identifier: Apache-2.0 */
#include "core/rt_tune.h"

#include <stddef.h>

#include "common/compiler.h"
#include "core/kernel/rt_kernel.h"

#define HOST_TUNING "2026-11-22-host-tuning.md"

const char *const rt_func_names[RT_NFUNC] = {"Broadcast",     "Reduce",    "AllGather",
                                             "ReduceScatter", "AllReduce", "SendRecv"};
const char *const rt_algo_names[RT_NALGO] = {"Ring", "Exchange"};
const char *const rt_proto_names[RT_NPROTO] = {"Simple", "LL"};

/* ---- the table --------------------------------------------------------------------------- */

/* The first rule that fits decides. What it picks must be allowed, and a function's wishes only hold what it has. If
 * nothing that is allowed fits, thresholds and transports do not count, the number of ranks does. */
struct rule {
  int nranks; /* 0: any */
  bool shm_only;
  size_t threshold; /* where rt_tuning has the most bytes; 0: any number */
  int pick;
  const char *measured;
};

#define MOST(field) .threshold = offsetof(struct rt_tuning, field)

/* The exchange takes one step of latency instead of two and reduces everything twice. Two ranks get equal bits: no
 * operator minds which operand comes first. With more ranks each would add up in an order of its own. */
static const struct rule algo_rules[] = {
    {.nranks = 2, MOST(exchange_max), .pick = RT_ALGO_EXCHANGE, .measured = HOST_TUNING},
    {.pick = RT_ALGO_RING},
};

/* Through a proxy LL doubles the bytes and saves nothing: the proxy waits for the counters anyway. */
static const struct rule proto_rules[] = {
    {.shm_only = true, MOST(ll_max), .pick = RT_LL, .measured = HOST_TUNING},
    {.pick = RT_SIMPLE},
};

struct rt_tuning rt_tuning_of(const struct rt_params *p, uint32_t algos, uint32_t protos) {
  return (struct rt_tuning){
      .algos = algos,
      .protos = protos,
      .nchannels = (int)p->nchannels,
      .slot_size = {[RT_SIMPLE] = rt_slot_size(p->buffsize), [RT_LL] = rt_slot_size(p->ll_buffsize)},
      .ll_max = (uint64_t)p->ll_max,
      .chunk = (uint64_t)p->chunk,
      .exchange_max = (uint64_t)p->exchange_max,
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
    case RT_EXCHANGE: return RT_F_ALLREDUCE;
    default: return RT_F_SENDRECV;
  }
}

static bool fits(const struct rule *r, const struct rt_tuning *t, uint64_t bytes, int nranks, bool strict) {
  if (r->nranks && r->nranks != nranks) return false;
  if (!strict) return true;
  const uint64_t *most = (const uint64_t *)(const void *)((const char *)t + r->threshold);
  return (!r->shm_only || t->all_shm) && (r->threshold == 0 || bytes <= *most);
}

/* The last rule fits everything, and holds even where it is not allowed: something must be done. */
static const struct rule *choose(const struct rule *rules, size_t n, unsigned allowed, const struct rt_tuning *t,
                                 uint64_t bytes, int nranks) {
  for (int strict = 1; strict >= 0; strict--)
    for (size_t i = 0; i < n; i++)
      if (allowed & 1u << rules[i].pick && fits(&rules[i], t, bytes, nranks, strict)) return &rules[i];
  return &rules[n - 1];
}

/* Where the first rule's threshold was measured, if there was something to choose. */
static const char *why(const struct rule *rules, unsigned allowed) {
  return allowed & (allowed - 1) ? rules[0].measured : NULL;
}

struct rt_choice rt_tune(const struct rt_tuning *t, enum rt_coll coll, uint64_t bytes, int nranks) {
  struct rt_choice c = {.algo = RT_ALGO_RING, .schedule = coll, .proto = RT_SIMPLE, .nchannels = t->nchannels};
  if (coll == RT_COPY) return c;
  enum rt_func f = func_of(coll);
  unsigned algos = rt_wish(t->algos, f), protos = rt_wish(t->protos, f);
  const struct rule *algo = choose(algo_rules, RAIL_COUNT_OF(algo_rules), algos, t, bytes, nranks);
  const struct rule *proto = choose(proto_rules, RAIL_COUNT_OF(proto_rules), protos, t, bytes, nranks);
  c.algo = (enum rt_algo)algo->pick;
  c.proto = (enum rt_proto)proto->pick;
  if (c.algo == RT_ALGO_EXCHANGE) c.schedule = RT_EXCHANGE;
  if (f == RT_F_ALLREDUCE && nranks == 2) c.algo_measured = why(algo_rules, algos);
  if (t->all_shm) c.proto_measured = why(proto_rules, protos);
  if (f == RT_F_SENDRECV) c.nchannels = 1;
  return c;
}

/* ---- chunks ------------------------------------------------------------------------------ */

/* Small enough that a slot is still in the cache when it is read, large enough that counters do not matter. */
#define CHUNK_TARGET (128u * 1024)
/* Below this a pipeline of more steps costs more than it hides: a step over a network has system calls in it. */
#define CHUNK_MIN_SHM (16u * 1024)
#define CHUNK_MIN_NET (64u * 1024)

uint64_t rt_tune_chunk(const struct rt_tuning *t, enum rt_proto proto, enum rt_coll schedule, uint64_t bytes,
                       int nranks, uint64_t esize) {
  uint64_t cap = rt_proto_payload(proto, t->slot_size[proto]);
  uint64_t want = t->chunk ? t->chunk : CHUNK_TARGET;
  if (!t->chunk) {
    uint64_t per_step = schedule == RT_ALLREDUCE ? bytes / (uint64_t)nranks : bytes;
    uint64_t least = t->all_shm ? CHUNK_MIN_SHM : CHUNK_MIN_NET;
    /* Two loops or more per collective, so that receiving, reducing and sending overlap. */
    while (want > least && want * 2 > per_step) want /= 2;
  }
  uint64_t n = RAIL_MIN(want, cap) / esize;
  return RAIL_MAX(n, 1u);
}
