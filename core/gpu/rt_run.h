/* SPDX-License-Identifier: Apache-2.0
 *
 * Device plans: all jobs of a plan are one kernel on the user's stream, block j
 * runs job j (core/host/rt_device.h). The plan is filled in once; each time it is
 * run there is a struct rt_run, with the proxy operations of that time: a plan that was captured into a graph
 * may begin its next run while the proxy still sends what the last one left behind.
 *
 * Calls of a group whose buffers are the host's are jobs of the same plan, and run beside the kernel: whoever
 * attends to the run polls them. Blocks and host's jobs that share a connection wait for each other's `ran` in the
 * launch, where the host's have a place behind the blocks'. Such a plan cannot be captured.
 *
 * Runs of a communicator follow each other on the device. Outside of captures that is
 * seen to here, by an event from stream to stream; who launches graphs orders them himself.
 */
#ifndef RT_RUN_H
#define RT_RUN_H

#include "core/plan/rt_queue.h"

/* Steps of a job's connections when it is over. */
struct rt_target { uint64_t send[RT_PEERS], recv[RT_PEERS]; };

struct rt_run {
  struct rt_run *next;
  struct rt_plan *plan;
  bool owns_plan;            /* else a graph has it */
  uint64_t number;           /* the launch's `run` */
  int host_left;             /* jobs of the host that are not over; whoever attends to the run counts them */
  struct rt_target *targets; /* one a job; behind the ops */
  int nops;
  struct rt_proxy_op ops[];
};

/* After connecting: registers the connections, fills in the launch. */
rail_result_t rt_run_prepare(struct ncclComm *comm, struct rt_plan *plan);
/* Takes over a chain of plans: runs them on their stream, one after the other, or makes them part of the graph that the
 * stream captures. Waits until plans on the host are over. The communicator has failed when this does. */
rail_result_t rt_run_launch(struct ncclComm *comm, struct rt_plan *plans);

/* Polls the host's jobs. True: one of them got on. */
bool rt_run_move(struct ncclComm *comm, struct rt_run *run);
/* Is the run over? When the communicator fails that is when the kernel, told by the abort word, has ended. */
bool rt_run_over(struct ncclComm *comm, struct rt_run *run);
/* When it is over. */
void rt_run_retire(const struct rt_run *run);
/* The peer that the run waits for although it has closed its end; NULL: none. */
const struct rt_connector *rt_run_waits_for_nobody(const struct rt_run *run);
void rt_run_free(struct ncclComm *comm, struct rt_run *run);

/* May a graph still run a captured plan? */
bool rt_run_graphs_alive(struct ncclComm *comm);
/* Frees all captured plans. Before rt_gpu_close. */
void rt_run_close(struct ncclComm *comm);

#endif
