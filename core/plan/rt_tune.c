/* SPDX-License-Identifier: Apache-2.0
 * The table of rules, and a choice from it: pure, but for railTuningPrint, which prints what would be chosen.
 * rt_comm_init.c computes the thresholds once for each communicator; rt_enqueue.c asks for each task, in the user's
 * thread. */
#include "core/plan/rt_tune.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/base/compiler.h"
#include "core/host/rt_program.h"
#include "core/plan/rt_tree.h"
#include "rail/railyard.h"

#define HOST_TUNING "2026-11-22-host-tuning.md"
#define HOST_TREE "2026-11-22-host-tree.md"
#define HOST_PAT "2026-11-26-host-pat.md"
#define HOST_RUNTIME "2026-11-25-runtime-on-hosts.md"
#define NET_ALLREDUCE "2026-11-28-allreduce-tcp.md"

const char *const rt_algo_names[RT_NALGO] = {"Ring", "Exchange", "Tree", "PAT"};
const char *const rt_proto_names[RT_NPROTO] = {"Simple", "LL"};

/* ---- the table --------------------------------------------------------------------------- */

/* The first rule that fits, and whose pick is allowed, decides. If there is none, a second pass: only what makes it
 * possible counts. So for more than two ranks trees stand before the exchange, which sends everything log2(ranks)
 * times. */
struct rule {
  /* When the pick is possible: */
  int min_ranks, max_ranks; /* 0: any number */
  bool host_only;           /* on host memory only */
  bool power_of_two;        /* with so many ranks only */
  /* When it pays off: */
  int pays_at;              /* with so many ranks and more */
  enum { ANYWHERE, ALL_DIRECT, OVER_NET } where; /* rt_tuning's `all_direct`, or not */
  enum { ANY_HOSTS, ROOMY, CROWDED } hosts; /* rt_tuning's `crowded` */
  size_t threshold; /* offset in rt_tuning of the largest size; 0: any size */
  int pick;
  const char *measured;
};

#define UP_TO(field) .threshold = offsetof(struct rt_tuning, field)

/* Exchange and Tree are AllReduce's alone, PAT is the others': rt_algo_masks (rt_algo_mask.c) clears the other bits.
 * The exchange has log2(ranks) steps, where a tree has twice as many and a ring 2 * (ranks - 1); but all ranks reduce
 * and send everything in each of them. Of other numbers of ranks than powers of two it would have two steps more. Where
 * many ranks share a core what counts is that a tree has the fewest messages: it goes as far as an exchange would. */
static const struct rule algo_rules[] = {
    {.min_ranks = 2, .max_ranks = 2, .host_only = true, .where = OVER_NET, UP_TO(exchange_max_pair),
     .pick = RT_ALGO_EXCHANGE, .measured = NET_ALLREDUCE},
    {.min_ranks = 2, .max_ranks = 2, UP_TO(exchange_max), .pick = RT_ALGO_EXCHANGE, .measured = HOST_TUNING},
    {.min_ranks = 2, .pays_at = 3, .where = ALL_DIRECT, UP_TO(tree_max), .pick = RT_ALGO_TREE, .measured = HOST_TREE},
    {.min_ranks = 4, .host_only = true, .power_of_two = true, .where = OVER_NET, .hosts = ROOMY, UP_TO(exchange_max),
     .pick = RT_ALGO_EXCHANGE, .measured = HOST_RUNTIME},
    {.min_ranks = 2, .host_only = true, .pays_at = 3, .where = OVER_NET, .hosts = CROWDED, UP_TO(exchange_max),
     .pick = RT_ALGO_TREE, .measured = HOST_RUNTIME},
    {.min_ranks = 2, .pays_at = 3, .where = OVER_NET, UP_TO(tree_max_net), .pick = RT_ALGO_TREE,
     .measured = HOST_RUNTIME},
    {.min_ranks = 2, .host_only = true, .pays_at = 3, .where = OVER_NET, UP_TO(pat_max_net), .pick = RT_ALGO_PAT,
     .measured = HOST_PAT},
    {.pick = RT_ALGO_RING},
};

/* Through a proxy LL doubles the bytes and saves nothing, because the proxy waits for the counters. */
static const struct rule proto_rules[] = {
    {.where = ALL_DIRECT, UP_TO(ll_max), .pick = RT_LL, .measured = HOST_TUNING},
    {.pick = RT_SIMPLE},
};

/* The functions whose masks are those of parameters that are not set. */
static uint32_t unrestricted(uint32_t algos, uint32_t protos) {
  const uint32_t all_algos = rt_algo_masks(NULL), all_protos = rt_proto_masks(NULL);
  uint32_t funcs = 0;
  for (enum rt_func f = 0; f < RT_NFUNC; f++)
    if (rt_func_mask(algos, f) == rt_func_mask(all_algos, f) && rt_func_mask(protos, f) == rt_func_mask(all_protos, f))
      funcs |= 1u << f;
  return funcs;
}

struct rt_tuning rt_tuning_of(const struct rt_params *p, uint32_t algos, uint32_t protos) {
  return (struct rt_tuning){
      .algos = algos,
      .protos = protos,
      .nchannels = RAIL_MAX(1, (int)p->nchannels),
      .slot_size = {[RT_SIMPLE] = rt_slot_size(p->buffsize), [RT_LL] = rt_slot_size(p->ll_buffsize)},
      .ll_max = (uint64_t)p->ll_max,
      .chunk = (uint64_t)p->chunk,
      .exchange_max = (uint64_t)p->exchange_max,
      .exchange_max_pair = 2 * (uint64_t)p->exchange_max,
      .tree_max = (uint64_t)p->tree_max,
      .tree_max_net = (uint64_t)p->tree_max_net,
      .pat_max_net = (uint64_t)p->pat_max_net,
      .small_max = (uint64_t)p->small_max,
      .small_funcs = unrestricted(algos, protos),
  };
}

/* ---- choosing ---------------------------------------------------------------------------- */

static enum rt_func func_of(enum rt_coll coll) {
  switch (coll) {
    case RT_BROADCAST:
    case RT_PAT_BROADCAST: return RT_F_BROADCAST;
    case RT_REDUCE:
    case RT_PAT_REDUCE: return RT_F_REDUCE;
    case RT_ALLGATHER:
    case RT_PAT_ALLGATHER: return RT_F_ALLGATHER;
    case RT_REDUCE_SCATTER:
    case RT_PAT_REDUCE_SCATTER: return RT_F_REDUCESCATTER;
    case RT_ALLREDUCE:
    case RT_EXCHANGE:
    case RT_TREE: return RT_F_ALLREDUCE;
    case RT_SEND:
    case RT_RECV:
    case RT_COPY:
    case RT_COLL_COUNT: break;
  }
  return RT_F_SENDRECV;
}

static bool is_there(const struct rule *r, const struct rt_tuning *t) {
  return (r->where == ANYWHERE || t->all_direct == (r->where == ALL_DIRECT)) &&
         (r->hosts == ANY_HOSTS || t->crowded == (r->hosts == CROWDED));
}

static bool is_possible(const struct rule *r, const struct rt_tuning *t, int nranks) {
  if (nranks < r->min_ranks || (r->max_ranks && nranks > r->max_ranks)) return false;
  return !(r->host_only && t->on_device) && !(r->power_of_two && nranks & (nranks - 1));
}

static bool fits(const struct rule *r, const struct rt_tuning *t, uint64_t bytes, int nranks,
                 bool check_preferences) {
  if (!is_possible(r, t, nranks)) return false;
  if (!check_preferences) return true;
  if (nranks < r->pays_at) return false;
  const uint64_t *max_bytes = (const uint64_t *)(const void *)((const char *)t + r->threshold);
  return is_there(r, t) && (r->threshold == 0 || bytes <= *max_bytes);
}

/* NULL: nothing that is allowed is possible. */
static const struct rule *choose(const struct rule *rules, size_t n, unsigned allowed, const struct rt_tuning *t,
                                 uint64_t bytes, int nranks) {
  for (int pass = 1; pass <= 2; pass++)
    for (size_t i = 0; i < n; i++)
      if (allowed & 1u << rules[i].pick && fits(&rules[i], t, bytes, nranks, pass == 1)) return &rules[i];
  return NULL;
}

/* The file with the measurement behind the first rule that may apply to these ranks; NULL: only one pick is allowed. */
static const char *measured(const struct rule *rules, unsigned allowed, const struct rt_tuning *t, int nranks) {
  const struct rule *r = rules;
  while (r->measured && (!(allowed & 1u << r->pick) || !is_there(r, t) || !is_possible(r, t, nranks) ||
                         nranks < r->pays_at))
    r++;
  return allowed & (allowed - 1) ? r->measured : NULL;
}

static enum rt_coll pat_schedule(enum rt_coll coll) {
  switch (coll) {
    case RT_BROADCAST: return RT_PAT_BROADCAST;
    case RT_REDUCE: return RT_PAT_REDUCE;
    case RT_ALLGATHER: return RT_PAT_ALLGATHER;
    case RT_REDUCE_SCATTER: return RT_PAT_REDUCE_SCATTER;
    default: return coll;
  }
}

/* Smaller steps cost more than their pipelining hides: a step over a network includes system calls. Nor is a second
 * tree worth its steps for less. */
static uint64_t chunk_min(const struct rt_tuning *t) { return (t->all_direct ? 16u : 64u) * 1024; }

/* Bytes of a step from which on another block of a GPU pays off: 64 for each of its threads. */
#define BLOCK_BYTES (32u * 1024)

static uint64_t step_bytes(enum rt_coll schedule, uint64_t bytes, int nranks) {
  return schedule == RT_ALLREDUCE ? bytes / (uint64_t)nranks : bytes;
}

static int channels_for(const struct rt_tuning *t, enum rt_coll coll, uint64_t bytes, int nranks) {
  if (t->blocks == 0) return t->nchannels;
  uint64_t n = step_bytes(coll, bytes, nranks) / BLOCK_BYTES;
  return (int)RAIL_MAX(1u, RAIL_MIN(n, (uint64_t)t->nchannels));
}

/* What all ranks publish for one operation, which each of them may read, stays in a core's second-level cache. */
#define SMALL_TOTAL (64u * 1024)

uint64_t rt_tune_small_max(const struct rt_tuning *t, int nranks) {
  if (!t->all_direct || nranks < 2) return 0;
  return RAIL_MIN(t->small_max, SMALL_TOTAL / (uint64_t)nranks);
}

static bool is_small(const struct rt_tuning *t, enum rt_func f, uint64_t bytes, int nranks) {
  const uint64_t blocks = f == RT_F_REDUCESCATTER ? (uint64_t)nranks : 1;
  return f != RT_F_SENDRECV && t->small_funcs & 1u << f && bytes <= rt_tune_small_max(t, nranks) / blocks;
}

struct rt_choice rt_tune(const struct rt_tuning *t, enum rt_coll coll, uint64_t bytes, int nranks) {
  struct rt_choice c = {.func = func_of(coll), .schedule = coll, .ntrees = 1};
  c.nchannels = channels_for(t, coll, bytes, nranks);
  if (coll == RT_COPY || nranks == 1) return c;
  enum rt_func f = c.func;
  unsigned algos = rt_func_mask(t->algos, f), protos = rt_func_mask(t->protos, f);
  const struct rule *algo = NULL;
  if (f != RT_F_SENDRECV) algo = choose(algo_rules, RAIL_COUNT_OF(algo_rules), algos, t, bytes, nranks);
  const struct rule *proto = choose(proto_rules, RAIL_COUNT_OF(proto_rules), protos, t, bytes, nranks);
  if (f == RT_F_SENDRECV) c.nchannels = 1;
  c.none = !proto || (!algo && f != RT_F_SENDRECV);
  if (c.none) return c;
  c.small = is_small(t, f, bytes, nranks);
  if (algo) c.algo = (enum rt_algo)algo->pick;
  c.proto = (enum rt_proto)proto->pick;
  if (c.algo == RT_ALGO_EXCHANGE) c.schedule = RT_EXCHANGE;
  if (c.algo == RT_ALGO_PAT) c.schedule = pat_schedule(coll);
  if (c.algo == RT_ALGO_TREE) {
    c.schedule = RT_TREE;
    if (bytes >= RT_TREES * chunk_min(t) * (uint64_t)c.nchannels) c.ntrees = RT_TREES;
  }
  if (algo) c.algo_measured = measured(algo_rules, algos, t, nranks);
  if (t->all_direct) c.proto_measured = measured(proto_rules, protos & ((1u << RT_NPROTO) - 1), t, nranks);
  return c;
}

bool rt_tune_may_be_direct(enum rt_coll schedule) {
  switch (schedule) {
    case RT_ALLREDUCE:
    case RT_REDUCE_SCATTER:
    case RT_ALLGATHER:
    case RT_BROADCAST:
    case RT_REDUCE:
    case RT_SEND:
    case RT_RECV:
    case RT_COPY:
    case RT_EXCHANGE: return true;
    case RT_TREE:
    case RT_PAT_ALLGATHER:
    case RT_PAT_REDUCE_SCATTER:
    case RT_PAT_BROADCAST:
    case RT_PAT_REDUCE: /* all by the slots */
    case RT_COLL_COUNT: break;
  }
  return false;
}

/* Up to here an exchange's registration costs more than the slots do (docs/results/2026-11-28-allreduce-tcp.md). */
#define EXCHANGE_BY_SLOTS (64u * 1024)

/* Only the root of a reduce has an output. */
bool rt_tune_receives_direct(enum rt_coll schedule, uint64_t bytes) {
  return schedule == RT_EXCHANGE ? bytes > EXCHANGE_BY_SLOTS : schedule != RT_REDUCE;
}

enum rt_proto rt_tune_device(const struct rt_tuning *t, enum rt_coll coll, enum rt_proto proto) {
  bool named = coll != RT_COPY && rt_func_mask(t->protos, func_of(coll)) & 1u << RD_LL128;
  return named && proto == RT_SIMPLE ? (enum rt_proto)RD_LL128 : proto;
}

int rt_tune_links(const struct rt_choice *c, int nranks) {
  if (c->algo == RT_ALGO_TREE) return RT_PEERS;
  return c->algo == RT_ALGO_PAT || c->algo == RT_ALGO_EXCHANGE ? rt_sched_rounds(nranks) : 1;
}

/* ---- chunks ------------------------------------------------------------------------------ */

/* Small enough that a slot is still in the cache when it is read, large enough that counters do not matter. */
#define CHUNK_TARGET (128u * 1024)

/* Over TCP twice as much is faster with cubic, and no slower with bbr (HOST_RUNTIME). Not where the last rank is
 * several hops from the first, in chains and in trees: it waits for the first chunk. */
static uint64_t chunk_scale(const struct rt_tuning *t, enum rt_coll schedule, int nranks) {
  bool many_hops = nranks > 2 && (schedule == RT_BROADCAST || schedule == RT_REDUCE || schedule == RT_TREE ||
                                  schedule == RT_PAT_BROADCAST || schedule == RT_PAT_REDUCE);
  return t->all_direct || many_hops ? 1 : 2;
}

uint64_t rt_tune_chunk(const struct rt_tuning *t, enum rt_proto proto, enum rt_coll schedule, uint64_t bytes,
                       int nranks, uint64_t esize) {
  /* A slot of LL128 is as large as one of Simple. */
  uint64_t cap = rt_proto_payload(proto, t->slot_size[(int)proto == RD_LL128 ? RT_SIMPLE : proto]);
  const uint64_t scale = chunk_scale(t, schedule, nranks), least = chunk_min(t) * scale;
  uint64_t want = t->chunk ? t->chunk : CHUNK_TARGET * scale;
  if (!t->chunk) {
    uint64_t per_step = step_bytes(schedule, bytes, nranks);
    /* At least two loops per collective, so that receiving, reducing and sending overlap. */
    while (want > least && want * 2 > per_step) want /= 2;
  }
  uint64_t n = RAIL_MIN(want, cap) / esize;
  return RAIL_MAX(n, 1u);
}

/* ---- estimates --------------------------------------------------------------------------- */

/* A step costs a latency, and its bytes the link's time for them. The figures are of two ranks on the
 * machine of docs/results/2026-11-21-allreduce-2-ranks.md: latency from 8 bytes (one step), bandwidth from 1 MiB. */
struct link {
  double step_us, bytes_per_us;
};
static const struct link shm_link = {0.79, 6460}, net_link = {7.6, 3410};

double rt_estimate_us(enum rt_coll coll, uint64_t bytes, int nranks, bool all_direct) {
  const struct link *l = all_direct ? &shm_link : &net_link;
  double n = nranks, steps = n - 1, sent = (double)bytes;
  switch (coll) {
    case RT_ALLREDUCE:
      steps = 2 * (n - 1);
      sent *= steps / n;
      break;
    case RT_TREE: /* a rank sends one half once, as a leaf, and the other half three times */
      steps = 2 * rt_tree_depth(nranks);
      sent *= 2;
      break;
    case RT_REDUCE_SCATTER:
    case RT_ALLGATHER: sent *= steps; break;
    case RT_PAT_REDUCE_SCATTER:
    case RT_PAT_ALLGATHER:
      sent *= steps;
      steps = rt_sched_rounds(nranks);
      break;
    case RT_BROADCAST:
    case RT_REDUCE: break;
    case RT_EXCHANGE: /* all bytes in each step */
    case RT_PAT_BROADCAST:
    case RT_PAT_REDUCE: /* the root's bytes, which go one after the other */
      steps = rt_sched_rounds(nranks);
      sent *= steps;
      break;
    case RT_SEND:
    case RT_RECV:
    case RT_COPY:
    case RT_COLL_COUNT: steps = 1; break;
  }
  return nranks == 1 ? 0 : steps * l->step_us + sent / l->bytes_per_us;
}

/* ---- the table as text: what rt_tune returns with this environment, one row a range of sizes ---- */

static bool same_choice(const struct rt_choice *a, const struct rt_choice *b) {
  if (a->none != b->none || a->small != b->small || a->nchannels != b->nchannels) return false;
  return a->small || (a->algo == b->algo && a->proto == b->proto);
}

static void print_row(enum rt_func f, const char *ranks, bool shm, uint64_t up_to, const struct rt_choice *c) {
  char size[24] = "any";
  if (up_to != UINT64_MAX) snprintf(size, sizeof size, "%llu", (unsigned long long)up_to);
  const char *algo = c->algo_measured, *proto = c->proto_measured;
  bool both = algo && proto && strcmp(algo, proto) != 0;
  const char *algo_name = c->none ? "none" : (f == RT_F_SENDRECV ? "-" : rt_algo_names[c->algo]);
  const char *proto_name = c->none ? "none" : rt_proto_names[c->proto];
  if (c->small) {
    algo_name = "Small";
    proto_name = "-";
    algo = HOST_RUNTIME;
    both = false;
  }
  printf("%-13s  %-5s  %-9s  %12s  %-9s  %-8s  %8d  %s%s%s\n", rt_func_names[f], ranks, shm ? "SHM" : "NET", size,
         algo_name, proto_name, c->nchannels,
         algo ? algo : (proto ? proto : "-"), both ? ", " : "", both ? proto : "");
}

/* The next threshold above `bytes`. */
static uint64_t next_threshold(const struct rt_tuning *t, uint64_t bytes, int nranks) {
  uint64_t next = UINT64_MAX;
  const uint64_t small = rt_tune_small_max(t, nranks);
  const uint64_t thresholds[] = {t->ll_max,       t->exchange_max, t->exchange_max_pair, t->tree_max,
                                 t->tree_max_net, t->pat_max_net,  small,                small / (uint64_t)nranks};
  for (size_t i = 0; i < RAIL_COUNT_OF(thresholds); i++)
    if (thresholds[i] >= bytes) next = RAIL_MIN(next, thresholds[i]);
  return next;
}

static void print_function(const struct rt_tuning *t, enum rt_func f, int nranks, const char *ranks) {
  static const enum rt_coll colls[RT_NFUNC] = {
      [RT_F_BROADCAST] = RT_BROADCAST,          [RT_F_REDUCE] = RT_REDUCE,       [RT_F_ALLGATHER] = RT_ALLGATHER,
      [RT_F_REDUCESCATTER] = RT_REDUCE_SCATTER, [RT_F_ALLREDUCE] = RT_ALLREDUCE, [RT_F_SENDRECV] = RT_SEND};
  for (uint64_t from = 1;;) {
    struct rt_choice c = rt_tune(t, colls[f], from, nranks), beyond = c;
    uint64_t up_to;
    do {
      up_to = next_threshold(t, from, nranks);
      from = up_to + 1;
      if (up_to != UINT64_MAX) beyond = rt_tune(t, colls[f], from, nranks);
    } while (up_to != UINT64_MAX && same_choice(&c, &beyond));
    print_row(f, ranks, t->all_direct, up_to, &c);
    if (up_to == UINT64_MAX) return;
  }
}

RAIL_EXPORT void railTuningPrint(void) {
  const struct rt_params *p = rt_params();
  struct rt_tuning t = rt_tuning_of(p, rt_algo_masks(p->algo), rt_proto_masks(p->proto));
  printf("%-13s  %-5s  %-9s  %12s  %-9s  %-8s  %8s  %s\n", "function", "ranks", "transport", "bytes up to", "algorithm",
         "protocol", "channels", "measured in docs/results");
  for (int shm = 1; shm >= 0; shm--)
    for (int nranks = 2; nranks <= 4; nranks++)
      for (int f = 0; f < RT_NFUNC; f++) {
        static const char *const ranks[] = {[2] = "2", [3] = "more", [4] = "2^k"};
        t.all_direct = shm != 0;
        print_function(&t, (enum rt_func)f, nranks, ranks[nranks]);
      }
  printf("# Where a host has more than two ranks for a core, three and more take Tree over NET up to RAIL_EXCHANGE_MAX,"
         " %llu bytes, if it is allowed.\n",
         (unsigned long long)t.exchange_max);
}
