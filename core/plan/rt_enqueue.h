/* SPDX-License-Identifier: Apache-2.0
 *
 * From calls to plans. A task is one call as the user made it (or a part of
 * one: all-to-all is sends and receives); a plan is what runs.
 */
#ifndef RT_ENQUEUE_H
#define RT_ENQUEUE_H

#include "core/comm/rt_comm.h"
#include "core/plan/rt_tune.h"

struct rt_task {
  struct ncclComm *comm;
  enum rt_coll coll;
  const void *send;
  void *recv;
  uint64_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  struct rt_premul premul; /* what op stood for when the call was made, for op >= ncclNumOps */
  int root;                /* or the peer of RT_SEND, RT_RECV */
  void *stream;            /* CUDA's; means something on the device only */
  struct rt_choice choice; /* from rt_task_choose on */
};

/* Chooses how the call is made. An error, as with NCCL, when NCCL_ALGO and NCCL_PROTO leave no algorithm or protocol
 * for it. */
ncclResult_t rt_task_choose(struct rt_task *t);
/* Runs a small call in this thread when its communicator has nothing else to do: it is over when this returns, or in
 * the work queue. False: the call has to be planned. For a call outside of a group. */
bool rt_task_run_small(const struct rt_task *t);
/* The plan of one communicator's tasks; NULL when there is nothing to do. */
rail_result_t rt_plan_build(struct ncclComm *comm, const struct rt_task *tasks, int ntasks, struct rt_plan **plan);
/* Will rt_plan_make_ready wait for other ranks? Only the first call that needs a connection does. */
bool rt_plan_waits_for_ranks(const struct rt_plan *plan);
/* Connects what the plan needs, and gives its jobs their connections and registrations. */
rail_result_t rt_plan_make_ready(struct rt_plan *plan);

#endif
