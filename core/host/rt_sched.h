/* SPDX-License-Identifier: Apache-2.0
 *
 * Schedules: what a rank does in a collective, as a pure function from the
 * action's number to the action. One action receives at most one step and sends
 * at most one, so both ends of a connection compute the same number of steps
 * and need not exchange it.
 *
 * Most collectives are rings: a rank receives from its predecessor and sends to its successor. `rank` and `root`
 * are ring indices; the blocks of a buffer are in the order of the ranks (`order` has the rank at each ring index).
 * Send and receive (point to point) are schedules with one side only. All of these have one peer to receive from and
 * one to send to. A tree has more. The exchange and the schedules of PAT have one of each for every power of two below
 * the number of ranks: by connection k a rank of PAT sends to the one that is 2^k places after it, and receives from
 * the one 2^k places before it; the exchange has both with the one whose index differs in bit k alone. PAT, and the
 * exchange of more than two ranks, run on the host only.
 */
#ifndef RT_SCHED_H
#define RT_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum rt_coll {
  RT_ALLREDUCE,
  RT_REDUCE_SCATTER,
  RT_ALLGATHER,
  RT_BROADCAST,
  RT_REDUCE,
  RT_SEND,
  RT_RECV,
  RT_COPY,     /* to oneself */
  RT_EXCHANGE, /* all-reduce by recursive doubling: log2(ranks) steps of whole inputs or sums, one for two ranks */
  RT_TREE,     /* all-reduce up and down a tree */
  /* In log2(ranks) steps, rounded up. */
  RT_PAT_ALLGATHER,
  RT_PAT_REDUCE_SCATTER,
  RT_PAT_BROADCAST,
  RT_PAT_REDUCE,
  RT_COLL_COUNT /* one more: the compiler names the switches, docs/ARCHITECTURE.md the tables */
};

/* Connections each way, by number: all but trees, PAT and the exchange use the first alone. */
enum { RT_CHILD, RT_OTHER_CHILD, RT_PARENT, RT_PEERS };
/* The most that a schedule of the host has: PAT's and the exchange's, of 2^RT_LINKS ranks. */
#define RT_LINKS 12

/* RT_TREE: the rank's node. */
struct rt_tree_node {
  uint8_t children; /* 0..2 */
  bool has_parent;
  uint16_t depth;   /* edges to the root */
};

struct rt_sched {
  enum rt_coll coll;
  int rank, nranks, root;
  const int *order; /* the rank at each ring index; NULL: the index is the rank */
  size_t esize;     /* bytes of an element */
  const char *send; /* user's buffers; NULL where the rank has none */
  char *recv;
  uint64_t count;   /* elements of the call: NCCL's count argument */
  uint64_t lo, len; /* this channel's part of 0..count */
  uint64_t chunk;   /* most elements of one step, > 0 */
  struct rt_tree_node tree;
  char *work; /* PAT: rt_sched_work bytes for blocks and sums under way; else NULL */
};

struct rt_action {
  bool recv;       /* a step comes in */
  bool send;       /* a step goes out */
  bool reduce;     /* what comes in is combined with src */
  bool last;       /* the result is final: apply the post-operation */
  bool partial;    /* src is a partial sum in the output, not an input: no pre-operation */
  uint8_t from, to; /* the connections: recv[from], send[to] */
  const char *src; /* local input, or NULL */
  char *dst;       /* local output, or NULL */
  uint64_t n;      /* elements, 0 is a step of no bytes */
};

/* Number of actions; 0 only when there is nothing to move. */
uint64_t rt_sched_actions(const struct rt_sched *s);
/* Fills *a for 0 <= i < rt_sched_actions(s). */
void rt_sched_action(const struct rt_sched *s, uint64_t i, struct rt_action *a);

/* How many connections each way PAT and the exchange use, and how many steps they take: log2(nranks), rounded up. */
int rt_sched_rounds(int nranks);
/* The connection to the rank's parent in the tree of RT_PAT_BROADCAST, which receives from there, or RT_PAT_REDUCE; -1:
 * it is the root. Its children are at connections 0 to *children - 1. */
int rt_sched_pat_tree(const struct rt_sched *s, int *children);
/* Bytes that `work` must have; 0: none. */
uint64_t rt_sched_work(const struct rt_sched *s);

/* What both ends of a connection must agree on: bytes of NCCL's count << 4 | collective. */
uint64_t rt_sched_call(const struct rt_sched *s);

#endif
