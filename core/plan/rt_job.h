/* SPDX-License-Identifier: Apache-2.0
 *
 * One job of a plan: its proxy operations, and on the host its program, which rt_queue.c polls until it is
 * done.
 */
#ifndef RT_JOB_H
#define RT_JOB_H

#include "core/plan/rt_queue.h"

/* Does a proxy move the steps of this end? */
bool rt_job_proxied(const struct rt_job_end *e);
/* How far the job will move its connections. */
void rt_job_count(struct rt_job *job);
/* Before all others: reads a factor that is to be read now; no proxy operation is under way. */
void rt_job_begin(struct rt_job *job);
/* Gives the proxy the operations of the job's receives, or of its sends. Counted before. */
void rt_job_submit(struct ncclComm *comm, struct rt_job *job, bool sends);
/* Does what can be done now. True: something happened; job->done tells whether that was all. A mismatch fails the
 * communicator. */
bool rt_job_poll(struct ncclComm *comm, struct rt_job *job);

/* Undoes the registrations that were made for this plan. */
void rt_plan_deregister(struct ncclComm *comm, struct rt_plan *plan);
void rt_plan_free(struct ncclComm *comm, struct rt_plan *plan);

#endif
