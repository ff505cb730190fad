/* SPDX-License-Identifier: Apache-2.0
 *
 * One run of a device plan (rt_device_plan.h): from just before its kernel is launched until kernel and proxy
 * operations are over. Each run has operations of its own: a plan that was captured into a graph may begin its next run
 * while the proxy still sends what the last one produced.
 */
#ifndef RT_RUN_H
#define RT_RUN_H

#include "core/plan/rt_plan.h"

/* Steps of a job's connections when it is over. */
struct rt_target {
  uint64_t send[RT_PEERS], recv[RT_PEERS];
};

struct rt_run {
  STAILQ_ENTRY(rt_run) link; /* in the work queue */
  struct rt_plan *plan;
  bool owns_plan;            /* else a graph has it */
  uint64_t number;           /* the launch's `run` */
  struct rt_target *targets; /* one a job; behind the ops */
  int nops;
  struct rt_proxy_op ops[];
};

STAILQ_HEAD(rt_runs, rt_run);

/* None of these makes a call of the driver: in a graph its own thread calls them. */

/* NULL without memory. */
struct rt_run *rt_run_new(struct rt_plan *plan);
/* Submits the proxy operations. */
void rt_run_begin(struct rt_run *run);
/* Did the job, which is over, find that the two ranks' calls differ? Then the communicator fails. */
void rt_run_check_job(const struct rt_plan *plan, int j);
/* Is the run over? When the communicator fails that is when the kernel, which sees the abort word, has ended. */
bool rt_run_over(const struct rt_run *run);
/* When it is over. */
void rt_run_retire(const struct rt_run *run);
/* A rank that the run waits for although it has closed its end of the connection; -1: none. */
int rt_run_departed_peer(const struct rt_run *run);
void rt_run_free(struct rt_run *run);

#endif
