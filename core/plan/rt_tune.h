/* SPDX-License-Identifier: Apache-2.0
 *
 * Which algorithm, protocol, channels and chunk an operation uses: pure functions
 * of values that are equal on all ranks, over one table of rules (rt_tune.c) whose thresholds are
 * parameters and name their measurements.
 */
#ifndef RT_TUNE_H
#define RT_TUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/comm/rt_param.h"
#include "core/host/rt_conn.h"
#include "core/host/rt_sched.h"

/* The functions that NCCL_ALGO and NCCL_PROTO can name; the last is ours, for sends and receives. */
enum rt_func {
  RT_F_BROADCAST,
  RT_F_REDUCE,
  RT_F_ALLGATHER,
  RT_F_REDUCESCATTER,
  RT_F_ALLREDUCE,
  RT_F_SENDRECV,
  RT_NFUNC
};

/* Exchange: recursive doubling, of two ranks one step; of more on the host only, a power of two of them. Tree:
 * core/plan/rt_tree.h. PAT: log2(ranks) steps for each function but AllReduce, on the host (core/host/rt_sched.c);
 * NCCL's is for AllGather and ReduceScatter. */
enum rt_algo { RT_ALGO_RING, RT_ALGO_EXCHANGE, RT_ALGO_TREE, RT_ALGO_PAT, RT_NALGO };

extern const char *const rt_func_names[RT_NFUNC], *const rt_algo_names[RT_NALGO], *const rt_proto_names[RT_NPROTO];

/* What is allowed, RT_FUNC_MASK_BITS for each function: bits 1 << enum rt_algo, or 1 << enum rt_proto. */
#define RT_FUNC_MASK_BITS 4
_Static_assert(RT_NALGO <= RT_FUNC_MASK_BITS, "a bit for each algorithm");
static inline unsigned rt_func_mask(uint32_t masks, enum rt_func f) {
  return masks >> ((unsigned)f * RT_FUNC_MASK_BITS) & ((1u << RT_FUNC_MASK_BITS) - 1);
}

/* For any function? */
static inline bool rt_func_mask_any(uint32_t masks, int bit) { return (masks & 0x11111111u * (1u << bit)) != 0; }

/* NCCL_ALGO's and NCCL_PROTO's text as such; NULL: everything. Wrong words are warned about and left out. A function
 * may have nothing left: its calls fail. */
uint32_t rt_algo_masks(const char *text);
uint32_t rt_proto_masks(const char *text);

struct rt_tuning {
  uint32_t algos, protos; /* masks */
  bool on_device;         /* kernels of a GPU run the schedules */
  bool all_direct;        /* no pair of neighbours in the ring has a proxy in between (P2P, SHM): LL pays off */
  bool crowded;           /* rt_peers_are_crowded */
  int nchannels;
  int blocks; /* not 0: channels go by size, and a group's are no more than so many, for which the GPUs have room */
  uint64_t slot_size[RT_NPROTO];
  uint64_t ll_max, chunk, exchange_max;   /* RAIL_LL_MAX, RAIL_CHUNK, RAIL_EXCHANGE_MAX */
  uint64_t exchange_max_pair;             /* of two ranks on host memory over a network: twice RAIL_EXCHANGE_MAX */
  uint64_t tree_max, tree_max_net;        /* RAIL_TREE_MAX, RAIL_TREE_MAX_NET */
  uint64_t pat_max_net;                   /* RAIL_PAT_MAX_NET */
  uint64_t small_max;                     /* RAIL_SMALL_MAX */
  uint32_t small_funcs; /* 1 << enum rt_func: NCCL_ALGO and NCCL_PROTO leave the choice */
};

struct rt_choice {
  enum rt_func func;
  bool none; /* NCCL_ALGO or NCCL_PROTO leave nothing that these ranks could do: the call must fail */
  enum rt_algo algo;
  enum rt_coll schedule; /* the algorithm's form of the call */
  enum rt_proto proto;
  int nchannels;
  int ntrees; /* that share a channel's data; 1 where there are none */
  bool small; /* on the host none of these: each rank publishes its input, and all read it (rt_small.h) */
  const char *algo_measured, *proto_measured; /* a file of docs/results, or NULL: there was no other choice */
};

/* The parameters' part of it; nchannels, blocks, on_device, all_direct and crowded are the communicator's. */
struct rt_tuning rt_tuning_of(const struct rt_params *p, uint32_t algos, uint32_t protos);

/* `bytes`: of the call's count, so of one rank's block in an all-gather or reduce-scatter. */
struct rt_choice rt_tune(const struct rt_tuning *t, enum rt_coll coll, uint64_t bytes, int nranks);
/* Bytes that a rank may publish for a small operation; 0: there are none. */
uint64_t rt_tune_small_max(const struct rt_tuning *t, int nranks);
/* The protocol of a GPU's kernels: LL128 where NCCL_PROTO names it and the choice is Simple. */
enum rt_proto rt_tune_device(const struct rt_tuning *t, enum rt_coll coll, enum rt_proto proto);
/* May the schedule's program on the host read and write the user's buffers, where a connection allows that? */
bool rt_tune_may_be_direct(enum rt_coll schedule);
/* May such a program's steps land in the output? `bytes` as for rt_tune. */
bool rt_tune_receives_direct(enum rt_coll schedule, uint64_t bytes);
/* Connections each way that a job may have. */
int rt_tune_links(const struct rt_choice *c, int nranks);
/* The most elements of one step. */
uint64_t rt_tune_chunk(const struct rt_tuning *t, enum rt_proto proto, enum rt_coll schedule, uint64_t bytes,
                       int nranks, uint64_t esize);

/* How long an operation may take, in us: only for ncclGroupSimulateEnd. `bytes` as for rt_tune. */
double rt_estimate_us(enum rt_coll coll, uint64_t bytes, int nranks, bool all_direct);

#endif
