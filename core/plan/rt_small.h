/* SPDX-License-Identifier: Apache-2.0
 *
 * Small collectives between ranks of one host. All ranks map one segment, in which each has a lane that it alone
 * writes. A rank publishes its input once, in a slot of its lane; every rank whose result needs it reads it there and
 * reduces in the order of ranks, so all have the same bits. No steps, no neighbours, no copies in between.
 *
 *   slot: | seq | call | number | 40 bytes of payload |   one cache line; a larger payload begins in the next line
 *
 * An operation has the same sequence number on all ranks. It is published by a release store of the slot's seq =
 * sequence number + 1, and read after an acquire load of that. A lane has RT_SMALL_SLOTS slots: a rank publishes
 * operation s when all ranks have published s - RT_SMALL_SLOTS + 1, so have finished reading the operation whose slot
 * it takes.
 *
 * Operations run one after the other. A call whose communicator has nothing to do runs in its own thread and is then
 * over when it returns, or handed to the work queue (rt_task_run_small); all others are jobs of a plan.
 */
#ifndef RT_SMALL_H
#define RT_SMALL_H

#include "common/base/result.h"
#include "core/host/rt_program.h"

struct ncclComm;

#define RT_SMALL_SLOTS 8u

/* What this rank does in a call: a function of the call's arguments but for the buffers. */
struct rt_small_call {
  enum rt_coll coll; /* RT_ALLREDUCE to RT_REDUCE */
  int type, op, root;
  uint64_t count;
  uint64_t id;                  /* rt_sched_call: equal on all ranks */
  const struct rt_reduce_fns *fns; /* NULL: nothing is reduced */
  union rt_scalar scalar;
  uint64_t published;           /* elements that this rank publishes */
  uint64_t at, n;               /* elements that it reads of each rank: the first, and how many */
  int first, end;               /* of these ranks: first to end - 1 */
  size_t esize;
};

/* One operation under way. */
struct rt_small_op {
  struct rt_small_call call;
  const char *send;
  char *recv;
  uint64_t number; /* of the communicator's collectives */
  uint64_t seq;    /* of its small operations */
  bool begun;      /* published */
  int next;        /* the rank to read next */
  const char *acc; /* the reduction of those before */
  /* When RT_PROGRAM_MISMATCH: whose call differs, and its id (rt_sched_call). */
  int peer;
  uint64_t got;
};

#define RT_SMALL_CACHED 16u

/* A communicator's part; zeroed: closed. Touched by the thread that makes calls and the one that runs plans. */
struct rt_small {
  char *segment; /* the lanes; NULL: not open, or the communicator's memory is a device's */
  bool opened;
  size_t size, lane_size, slot_size;
  int rank, nranks;
  uint64_t serving, next_seq; /* the operation whose turn it is; that of the next call */
  uint64_t all_published;     /* operations that all ranks are known to have published */
  struct rt_small_call cached[RT_SMALL_CACHED];
};

/* Collective, between ranks of one host: fails when the ranks' kinds of memory differ; on host memory maps the segment,
 * which rank 0 makes. */
rail_result_t rt_small_open(struct ncclComm *comm);
/* The other ranks learn that this one is gone. Accepts a zeroed struct. */
void rt_small_close(struct rt_small *s);

/* Fills in the call of a rank. False: there is no such operator. `op`: enum rt_redop; `scalar` as in rt_program. */
bool rt_small_describe(struct rt_small_call *call, enum rt_coll coll, int type, int op, uint64_t count, int root,
                       int rank, int nranks);

/* Takes the next sequence number, in the order of calls, on all ranks the same. The caller has filled in call, send,
 * recv and number. */
void rt_small_init(struct rt_small *s, struct rt_small_op *op);
/* Does what can be done now. */
enum rt_program_state rt_small_poll(struct rt_small *s, struct rt_small_op *op);
/* A rank that an operation waits for; `departed`: although it has ended its communicator. -1: none. */
int rt_small_awaited(const struct rt_small *s, const struct rt_small_op *op, bool departed);

/* Before a collective begins that is not small: ranks whose call of that number is small can find the difference. */
void rt_small_announce(struct rt_small *s, uint64_t number, uint64_t id);
/* For a call that waits: a rank that has announced one of the same number that is not small, or has published one that
 * is; -1: none. *id: of that call. */
int rt_small_find_announced(const struct rt_small *s, uint64_t number, uint64_t *id);
int rt_small_find_published(const struct rt_small *s, uint64_t number, uint64_t *id);

#endif
