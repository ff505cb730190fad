/* SPDX-License-Identifier: Apache-2.0
 *
 * One launch of a device plan (rt_device_plan.h): from just before its kernel is launched until kernel and proxy
 * operations are over. Each launch has operations of its own: a plan that was captured into a graph may begin its next
 * one while the proxy still sends what the last one produced.
 */
#ifndef RT_LAUNCH_H
#define RT_LAUNCH_H

#include "core/plan/rt_plan.h"

/* Steps of a job's connections when it is over. */
struct rt_last_steps {
  uint64_t send[RT_PEERS], recv[RT_PEERS];
};

struct rt_launch {
  STAILQ_ENTRY(rt_launch) link; /* in the work queue */
  struct rt_plan *plan;
  bool owns_plan;            /* else a graph has it */
  uint64_t number;           /* `run` of its struct rt_device_launch */
  struct rt_last_steps *last_steps; /* one a job; behind the ops */
  int nops;
  struct rt_proxy_op ops[];
};

STAILQ_HEAD(rt_launches, rt_launch);

/* None of these makes a call of the driver: in a graph its own thread calls them. */

/* NULL without memory. */
struct rt_launch *rt_launch_new(struct rt_plan *plan);
/* Submits the proxy operations. */
void rt_launch_begin(struct rt_launch *launch);
/* Did the job, which is over, find that the two ranks' calls differ? Then the communicator fails. */
void rt_launch_check_job(const struct rt_plan *plan, int j);
/* Has the kernel ended? Proxy operations may go on. */
bool rt_launch_kernel_over(const struct rt_launch *launch);
/* Is the launch over? When the communicator fails that is when the kernel, which sees the abort word, has ended. */
bool rt_launch_over(const struct rt_launch *launch);
/* When it is over. */
void rt_launch_retire(const struct rt_launch *launch);
/* A rank that the launch waits for although it has closed its end of the connection; -1: none. */
int rt_launch_departed_peer(const struct rt_launch *launch);
/* Counts what the launch has done: unchanged between two calls, it has made no progress. */
uint64_t rt_launch_progress(const struct rt_launch *launch);
/* Warns that the launch has not moved for so long: which call, what it waits for. */
void rt_launch_report_stall(const struct rt_launch *launch, uint64_t ms);
void rt_launch_free(struct rt_launch *launch);

#endif
