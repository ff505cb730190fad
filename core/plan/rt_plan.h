/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan: all operations of one group on one communicator. It has a job for each channel and
 * tree of a collective and for each send and receive. A job is a schedule and its connections; on
 * the host a program runs it (rt_program.h), on a device a block of the plan's kernel does (rt_device_plan.h).
 */
#ifndef RT_PLAN_H
#define RT_PLAN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "core/host/rt_program.h"
#include "core/plan/rt_small.h"
#include "core/transport/rt_proxy.h"

struct ncclComm;
struct rt_device_launch;
struct rt_graph_ref;

#define RT_NO_NUMBER UINT64_MAX

/* One connection of a job. */
struct rt_job_end {
  struct rt_connector *connector; /* NULL: none */
  struct rt_proxy_op op;
  uint64_t steps; /* that the job sends or receives on it, once they are counted */
};

/* `send` and `recv` have the indices of the program's. A small job, on the host only, has `small` instead of all
 * three. */
struct rt_job {
  bool is_small;
  struct rt_small_op small;
  uint64_t number; /* of the communicator's collectives (a small job's is `small`'s); RT_NO_NUMBER: a send or receive */
  struct rt_program program;
  struct rt_job_end *send, *recv; /* of the plan's ends, `nlinks` each */
  int nlinks;
  int type, op;       /* enum rt_type, enum rt_redop; op -1: nothing is reduced */
  const void *scalar; /* factor to be read when the plan starts, or NULL */
  /* Registrations made for this plan with the first connections, released at its end. */
  void *send_mh[2], *recv_mh;
  bool done;
  int next; /* on a device: the job that the same block runs after this one; 0: none */
};

struct rt_plan {
  STAILQ_ENTRY(rt_plan) link; /* in the work queue */
  struct rt_plan *next_graph; /* captured: in the communicator's list */
  struct ncclComm *comm;
  size_t size; /* of the plan's memory */
  /* A device plan: its kernel's argument, and the streams that its calls named; it runs on the first. */
  struct rt_device_launch *launch;
  void **streams;
  int nstreams;
  bool on_device, has_collective;
  bool opens_small;     /* it is the first with data, and makes the memory of small calls, too: rt_small.h */
  bool waits_for_setups; /* before it is launched: rt_launch_lock.h */
  bool captured;        /* in a graph: kept until that is gone, or the communicator ends */
  struct rt_graph_ref *graph; /* captured: has the graph been destroyed? */
  atomic_int launches;  /* that are not over */
  bool dead;            /* the graph has it without its kernel: nothing to begin */
  struct rt_connector **connectors; /* to be connected before it begins; in the plan's memory, as `ends` */
  int nconnectors;
  struct rt_job_end *ends; /* of all jobs */
  int njobs, nblocks;      /* blocks of a device plan */
  struct rt_job jobs[];
};

STAILQ_HEAD(rt_plans, rt_plan);

/* ---- on the host ---- */

/* Submits the proxy operations. */
void rt_plan_begin(struct ncclComm *comm, struct rt_plan *plan);
/* Polls each unfinished job once; returns how many are left. *moved is set when one made progress. A mismatch fails the
 * communicator. */
int rt_plan_poll(struct ncclComm *comm, struct rt_plan *plan, bool *moved);
/* A rank that a job waits for although it has closed its end of the connection; -1: none. */
int rt_plan_departed_peer(struct ncclComm *comm, struct rt_plan *plan);
/* Warns that the plan has not moved for so long: which call, what it waits for. */
void rt_plan_report_stall(const struct ncclComm *comm, const struct rt_plan *plan, uint64_t ms);
/* Fails the communicator when another rank's call of the number of one that waits is of another kind: small, or not. */
void rt_plan_compare(struct ncclComm *comm, struct rt_plan *plan);

/* ---- anywhere ---- */

#define RT_WAIT_TEXT 160
/* That a job waits for the other end of a connection, in step `step`, from 0, of so many. */
void rt_job_wait_text(const struct rt_connector *c, uint64_t step, uint64_t nsteps, char *text, size_t size);
/* Warns that the job's call has not moved for so long, and what it waits for. */
void rt_job_report_stall(const struct ncclComm *comm, const struct rt_job *job, uint64_t ms, const char *wait);

/* An empty plan with room for so many jobs, ends and as many connectors; NULL: out of memory. The communicator keeps
 * the memory of one plan that was freed, which the next one takes if it fits. */
struct rt_plan *rt_plan_alloc(struct ncclComm *comm, int jobs, int ends);
/* The memory that the job's schedule works in; rt_plan_free frees it. */
rail_result_t rt_job_allocate(struct ncclComm *comm, struct rt_job *job);
/* Does a proxy transfer the steps of this end? */
bool rt_job_proxied(const struct rt_job_end *e);
/* Fills in the number of steps of all ends. */
void rt_job_count(struct rt_job *job);
/* Releases the registrations that were made for this plan. */
void rt_plan_deregister(struct ncclComm *comm, struct rt_plan *plan);
void rt_plan_free(struct ncclComm *comm, struct rt_plan *plan);

#endif
