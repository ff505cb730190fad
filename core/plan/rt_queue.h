/* SPDX-License-Identifier: Apache-2.0
 *
 * The host's stand-in for a CUDA stream: plans run one after the other, in the
 * order they were enqueued. A plan is everything of one group on one communicator:
 * its kernels run side by side (each takes its connections in order, rt_conn.next_ticket).
 *
 * A plan is run by the executor thread, or by a thread that waits for it and
 * finds it not yet begun, which saves a switch of threads. So the executor gives a waiter
 * EXECUTOR_GRACE to come before it begins. Only one thread runs plans at a time.
 *
 * Plans of a communicator whose buffers are a device's run there (rt_device_plan.h). The same threads look after their
 * runs until they are over. Such a communicator has no plans of the host but those of calls without data that came
 * before the first buffer.
 */
#ifndef RT_QUEUE_H
#define RT_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/host/rt_program.h"
#include "core/transport/rt_proxy.h"

struct ncclComm;
struct rt_device_launch;
struct rt_hold;
struct rt_run;

/* What a rank says of calls that do not fit together: itself, bytes, peer, bytes. */
#define RT_MISMATCH_TEXT                                                                                        \
  "rank %d got %llu bytes from rank %d where its own call expects %llu: the two ranks' calls differ in count, " \
  "type or order"

/* One connection of a job. */
struct rt_job_end {
  struct rt_connector *connector; /* NULL: none */
  struct rt_proxy_op op;
  uint64_t steps; /* that the job moves it, once they are counted */
};

/* One kernel and the proxy operations of its connections, which have its numbers. */
struct rt_job {
  struct rt_program program;
  struct rt_job_end send[RT_PEERS], recv[RT_PEERS];
  int type, op;       /* enum rt_type, enum rt_redop; op -1: nothing is reduced */
  const void *scalar; /* factor to be read when the plan starts, or NULL */
  /* Registrations made for this plan with the first connections, undone at its end. */
  void *send_mh[2], *recv_mh;
  bool done;
};

struct rt_plan {
  struct rt_plan *next;
  struct ncclComm *comm;
  /* A device plan: what its kernel gets, and the streams that its calls named; it runs on the first. */
  struct rt_device_launch *launch;
  void **streams;
  int nstreams;
  bool on_device;
  bool waits_at_gate; /* before it is launched: rt_gate.h */
  bool captured; /* in a graph: kept until that is gone, or the communicator ends */
  struct rt_hold *hold; /* then: which tells */
  atomic_int runs;      /* that are not over */
  bool dead;            /* the graph has it without its kernel: nothing to begin */
  int njobs;
  struct rt_job jobs[];
};

struct rt_queue {
  struct ncclComm *comm;
  pthread_mutex_t lock;            /* guards all below */
  pthread_cond_t work, idle;       /* for the executor; for those who wait */
  struct rt_plan *first, **end;    /* enqueued and not begun */
  struct rt_run *runs, **runs_end; /* begun on a device and not over */
  struct rt_run *failed_runs;      /* as failed_plans */
  bool running, stop, thread_started;
  bool urgent;                  /* begin without grace: nobody may wait for this communicator first */
  bool watching;                /* the executor wakes by itself in a moment: no need to */
  int pending;                  /* plans and runs that are not finished */
  struct rt_plan *failed_plans; /* kept until the communicator is freed: a proxy may know them */
  pthread_t thread;
  atomic_int pending_hint;
};

rail_result_t rt_queue_init(struct rt_queue *s, struct ncclComm *comm);
/* Ends the executor; what has not begun will not. Both accept a zeroed struct, destroy stops first. */
void rt_queue_stop(struct rt_queue *s);
void rt_queue_destroy(struct rt_queue *s);

/* Takes over the plan. urgent: the executor shall begin at once. */
void rt_queue_enqueue(struct rt_queue *s, struct rt_plan *plan, bool urgent);
/* Until everything enqueued is finished or the communicator failed. */
void rt_queue_wait(struct rt_queue *s);
/* A kernel is about to run on a device. Callable from the driver's threads: it makes no call of the driver. */
void rt_queue_add_run(struct rt_queue *s, struct rt_run *run);
/* Also tells the executor not to hold back: the caller polls instead of waiting. */
bool rt_queue_idle(struct rt_queue *s);

#endif
