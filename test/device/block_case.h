/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases of what blocks run (rt_device.h), for whatever runs them: the CPU executor in
 * test/unit/test_device_block.c, a GPU in test/gpu/blocks.cu. All ranks of a communicator are
 * blocks of one launch, or some of them host kernels in a thread beside it. The same
 * schedules are run by host kernels alone, over connections of their own, and every byte of
 * memory must be the same afterwards, those around the buffers included.
 */
#ifndef DEVICE_BLOCK_CASE_H
#define DEVICE_BLOCK_CASE_H

#include "core/host/rt_device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BLOCK_RANKS 8 /* of trees; the others have up to 4 */
#define BLOCK_SLOT 512u /* bytes, of all protocols */

struct block_machine {
  void *(*get)(size_t n); /* memory that host and blocks address alike, at a multiple of 128 */
  void (*put)(void *p);
  bool (*run)(struct rt_device_launch *launch, unsigned threads); /* until all jobs have ended */
};

struct block_case {
  enum rt_coll coll;
  int proto, type, op; /* op -1: none */
  int nranks, root;
  uint64_t count, chunk;
  int channels;        /* each has connections and a part of the elements of its own */
  int parts;           /* of a channel: jobs one after the other on its connections */
  bool proxied, in_place, deferred;
  unsigned misalign;   /* bytes, of the buffers */
  unsigned host_ranks; /* a bit for each rank that is not a block */
  uint64_t step;       /* of all connections, to begin with */
  unsigned threads;    /* of a block, where it can be chosen */
  int runs;            /* of the same launch on the same connections */
};

/* Is the job's latest run over? Then its results can be read. */
static inline bool block_ended(const struct rt_device_launch *l, int job) {
  return rt_observe(&l->job[job].ran) == l->run;
}

/* Most elements of a step. */
uint64_t block_case_chunk(int proto, uint64_t esize);

/* NULL, or what is wrong. */
const char *block_case_run(const struct block_machine *m, const struct block_case *c);

/* What a case is, for messages. */
const char *block_case_text(const struct block_case *c);

/* Calls `each` for a fixed list of cases of the collective, fewer if `few`; stops when that returns false. */
void block_cases(enum rt_coll coll, bool few, bool (*each)(const struct block_case *c, void *arg), void *arg);
/* The same for every type and operator, with each protocol. */
void block_cases_of_types(bool few, bool (*each)(const struct block_case *c, void *arg), void *arg);

#ifdef __cplusplus
}
#endif

#endif
