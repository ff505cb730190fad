/* SPDX-License-Identifier: Apache-2.0
 *
 * A communicator's work queue, which is to plans on the host what a CUDA stream is to kernels: they run one after the
 * other, in the order in which they were enqueued. The programs of one plan run side by side.
 *
 * A plan is run by the executor thread, or by a thread that waits for it and finds it not yet begun, which saves a
 * switch of threads. So the executor leaves a new plan to waiters for EXECUTOR_GRACE_NS before it begins, and on an
 * oversubscribed host notices it up to OVERSUBSCRIBED_LOOK_NS late. Only one thread runs plans at a time.
 *
 * A communicator on device memory runs its plans there (rt_device_plan.h). The same threads watch each launch until it
 * is over. Only calls without data, before the first buffer, have plans for the host there.
 */
#ifndef RT_QUEUE_H
#define RT_QUEUE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/gpu/rt_launch.h"
#include "core/plan/rt_plan.h"

struct ncclComm;

struct rt_queue {
  struct ncclComm *comm;
  pthread_mutex_t lock;  /* guards all below */
  pthread_cond_t work;   /* for the executor */
  pthread_cond_t idle;   /* for threads that wait */
  struct rt_plans plans; /* enqueued, not begun */
  struct rt_launches launches; /* begun on a device, not over */
  /* Kept until the communicator is freed: the proxy may have their operations. */
  struct rt_plans failed_plans;
  struct rt_launches failed_launches;
  bool running, stop, thread_started;
  bool urgent;  /* begin at once: a waiter may wait for another communicator first */
  bool sleeps_briefly; /* the executor will wake by itself: no signal needed */
  int pending;  /* plans and launches that are not finished */
  pthread_t thread;
  atomic_int pending_hint; /* `pending`, to be read without the lock */
};

rail_result_t rt_queue_init(struct rt_queue *q, struct ncclComm *comm);
/* Ends the executor; plans that have not begun never will. Both accept a zeroed struct, destroy stops first. */
void rt_queue_stop(struct rt_queue *q);
void rt_queue_destroy(struct rt_queue *q);

/* Takes ownership of the plan. urgent: the executor shall begin at once. */
void rt_queue_enqueue(struct rt_queue *q, struct rt_plan *plan, bool urgent);
/* Until all plans and launches are finished or the communicator has failed. */
void rt_queue_wait(struct rt_queue *q);
/* Before a kernel is launched. Callable from the driver's threads: it makes no call of the driver. */
void rt_queue_add_launch(struct rt_queue *q, struct rt_launch *launch);
/* Is there nothing to run or to wait for? Then what other threads have run is visible to this one. */
static inline bool rt_queue_empty(struct rt_queue *q) {
  return atomic_load_explicit(&q->pending_hint, memory_order_acquire) == 0;
}
/* If not, the executor begins at once: the caller polls instead of waiting. */
bool rt_queue_idle(struct rt_queue *q);
/* The same, but waits where all that is left are launches whose kernels have ended: a program that has waited for its
 * streams can wait for nothing else. */
bool rt_queue_settle(struct rt_queue *q);

#endif
