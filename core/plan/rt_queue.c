/* SPDX-License-Identifier: Apache-2.0
 * A communicator's queue of plans and launches, and its executor thread. Both that thread and one in rt_queue_wait run
 * what is queued, one at a time (the one that stops the queue: what was launched). rt_group.c and rt_enqueue.c add
 * plans in the user's thread, rt_device_plan.c adds launches, also in the driver's. */
#include "core/plan/rt_queue.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_wait.h"
#include "core/gpu/rt_launch_lock.h"

/* Polls without progress: first spin, then yield the processor, then sleep, for about what a wake-up costs. Where a
 * host is oversubscribed, spinning keeps the rank that is waited for from running, and each yield runs others. */
#define SPIN_POLLS 64
#define YIELD_POLLS 50000
#define OVERSUBSCRIBED_YIELD_POLLS 2000
#define SLEEP_NS 50000
/* A launch on a device makes progress without this thread: yields before it sleeps. */
#define LAUNCH_YIELD_POLLS 200
/* Kernels see a failure at once, but may be queued behind the program's own kernels. */
#define LAUNCH_END_NS 30000000000ull

/* How long the executor leaves a new plan to a thread that waits, and how many such short sleeps without work it
 * makes before it sleeps until it is woken: waking it costs the caller a system call. Where a host is oversubscribed it
 * looks for new plans less often: with 64 ranks on 2 cores their executors took a third of the processors' time. */
#define EXECUTOR_GRACE_NS 500000u
#define OVERSUBSCRIBED_LOOK_NS 10000000u
#define EXECUTOR_SHORT_SLEEPS 20

/* ---- running one plan ------------------------------------------------------ */

static void idle_wait(const struct ncclComm *comm, int idle_polls) {
  if (idle_polls < SPIN_POLLS && !comm->oversubscribed)
    rail_cpu_relax();
  else if (idle_polls < (comm->oversubscribed ? OVERSUBSCRIBED_YIELD_POLLS : YIELD_POLLS))
    sched_yield();
  else
    nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
}

/* After a poll that found nothing; `polls` of them in a row. */
static void wait_for_progress(struct ncclComm *comm, struct rt_plan *plan, int polls, struct rt_wait *wait) {
  uint64_t now, ms;
  idle_wait(comm, polls);
  if (polls == SPIN_POLLS) rt_wait_begin(wait);
  if (polls < SPIN_POLLS || !rt_wait_check_due(wait, &now)) return;
  rt_plan_compare(comm, plan);
  rt_wait_check_departed(wait, comm, rt_plan_departed_peer(comm, plan));
  if (rt_wait_is_long(wait, now, &ms)) rt_plan_report_stall(comm, plan, ms);
}

/* True when the plan finished; false when the communicator failed first. */
static bool run_plan(struct ncclComm *comm, struct rt_plan *plan) {
  rt_plan_begin(comm, plan);
  struct rt_wait wait;
  int polls = 0;
  while (!rt_comm_failed(comm)) {
    bool moved = false;
    if (rt_plan_poll(comm, plan, &moved) == 0 && !rt_comm_failed(comm)) return true;
    if (!comm->proxy.threaded && atomic_load_explicit(&comm->proxy.unfinished, memory_order_relaxed) > 0)
      moved |= rt_proxy_pass(&comm->proxy);
    polls = moved ? 0 : RAIL_MIN(polls + 1, YIELD_POLLS);
    if (!moved) wait_for_progress(comm, plan, polls, &wait);
  }
  return false;
}

/* ---- watching one launch on a device ------------------------------------------------ */

/* Until the launch is over, or it did not end in time after the communicator failed. */
static void watch_launch(struct ncclComm *comm, struct rt_launch *launch) {
  struct rt_wait wait;
  uint64_t now, ms, give_up = 0, progress = rt_launch_progress(launch);
  rt_wait_begin(&wait);
  for (int idle = 1; !rt_launch_over(launch) && !comm->gpu.stuck; idle = RAIL_MIN(idle + 1, 2 * YIELD_POLLS)) {
    /* Where no other thread drives the proxy, this one does; else the device needs no help. */
    bool drives = !comm->proxy.threaded && atomic_load_explicit(&comm->proxy.unfinished, memory_order_relaxed) > 0;
    if (drives && rt_proxy_pass(&comm->proxy)) idle = 0;
    if (drives || idle < LAUNCH_YIELD_POLLS)
      idle_wait(comm, idle);
    else
      nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    if (!rt_wait_check_due(&wait, &now)) continue;
    if (!rt_gpu_lost(comm)) rt_wait_check_departed(&wait, comm, rt_launch_departed_peer(launch));
    if (!rt_comm_failed(comm)) {
      const uint64_t before = progress;
      progress = rt_launch_progress(launch);
      if (progress != before) rt_wait_begin(&wait);
      else if (rt_wait_is_long(&wait, now, &ms)) rt_launch_report_stall(launch, ms);
      continue;
    }
    if (!give_up) give_up = now + LAUNCH_END_NS;
    if (now < give_up) continue;
    comm->gpu.stuck = true;
    /* Without its end: the driver would wait for this kernel in any call that frees memory. */
    rt_launch_lock_kernel_begin();
    return;
  }
}

/* ---- the queue --------------------------------------------------------------- */

static bool has_work(const struct rt_queue *q) { return !STAILQ_EMPTY(&q->plans) || !STAILQ_EMPTY(&q->launches); }

static void count_finished(struct rt_queue *q) {
  q->pending--;
  atomic_store_explicit(&q->pending_hint, q->pending, memory_order_release);
}

/* Runs the first plan. Lock as for run_queue. */
static void run_first_plan(struct rt_queue *q) {
  struct rt_plan *plan = STAILQ_FIRST(&q->plans);
  STAILQ_REMOVE_HEAD(&q->plans, link);
  pthread_mutex_unlock(&q->lock);
  bool ok = !rt_comm_failed(q->comm) && run_plan(q->comm, plan);
  if (!ok) rt_proxy_quiesce(&q->comm->proxy);
  /* The user's buffers are not accessed any more: the plugin requires that before a deregistration. */
  rt_plan_deregister(q->comm, plan);
  if (ok) rt_plan_free(q->comm, plan);
  pthread_mutex_lock(&q->lock);
  if (!ok) STAILQ_INSERT_TAIL(&q->failed_plans, plan, link);
  count_finished(q);
}

/* What is left to do for a launch that is over; the lock is not held. False: the communicator has failed. */
static bool end_launch(struct ncclComm *comm, struct rt_launch *launch) {
  rt_launch_retire(launch);
  if (rt_comm_failed(comm)) {
    rt_proxy_quiesce(&comm->proxy);
    return false;
  }
  rt_launch_free(launch);
  return true;
}

/* Watches the first launch on a device until it is over. Lock as for run_queue. */
static void finish_first_launch(struct rt_queue *q) {
  struct rt_launch *launch = STAILQ_FIRST(&q->launches);
  pthread_mutex_unlock(&q->lock);
  watch_launch(q->comm, launch);
  pthread_mutex_lock(&q->lock);
  STAILQ_REMOVE_HEAD(&q->launches, link); /* before it is retired, when a graph may free its plan */
  pthread_mutex_unlock(&q->lock);
  const bool ok = end_launch(q->comm, launch);
  pthread_mutex_lock(&q->lock);
  if (!ok) STAILQ_INSERT_TAIL(&q->failed_launches, launch, link);
  count_finished(q);
}

/* Runs queued plans, and watches launches, until there are none. The lock is held on entry and exit; `running` keeps
 * other threads out meanwhile. */
static void run_queue(struct rt_queue *q) {
  q->running = true;
  while (has_work(q) && !q->stop) {
    if (!STAILQ_EMPTY(&q->launches))
      finish_first_launch(q);
    else
      run_first_plan(q);
  }
  q->running = false;
  q->urgent = false;
  pthread_cond_broadcast(&q->idle);
}

static void sleep_briefly(struct rt_queue *q, unsigned int ns) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += ns;
  if (until.tv_nsec >= 1000000000) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000;
  }
  q->sleeps_briefly = true;
  pthread_cond_timedwait(&q->work, &q->lock, &until);
  q->sleeps_briefly = false;
}

static void *executor(void *arg) {
  struct rt_queue *q = arg;
  const unsigned int look_ns = q->comm->oversubscribed ? OVERSUBSCRIBED_LOOK_NS : EXECUTOR_GRACE_NS;
  struct rt_plan *waiting = NULL; /* the first plan before the last short sleep: no waiter has come for it */
  int short_sleeps = 0;
  pthread_mutex_lock(&q->lock);
  while (!q->stop) {
    struct rt_plan *first = q->running ? NULL : STAILQ_FIRST(&q->plans);
    bool launched = !q->running && !STAILQ_EMPTY(&q->launches);
    if (launched || (first && (q->urgent || first == waiting))) {
      run_queue(q);
      short_sleeps = 0;
    } else if (q->pending > 0 || short_sleeps < EXECUTOR_SHORT_SLEEPS) {
      short_sleeps = q->pending > 0 ? 0 : short_sleeps + 1;
      waiting = first;
      sleep_briefly(q, first ? EXECUTOR_GRACE_NS : look_ns);
    } else {
      pthread_cond_wait(&q->work, &q->lock);
      short_sleeps = 0;
    }
  }
  pthread_mutex_unlock(&q->lock);
  return NULL;
}

rail_result_t rt_queue_init(struct rt_queue *q, struct ncclComm *comm) {
  q->comm = comm;
  STAILQ_INIT(&q->plans);
  STAILQ_INIT(&q->launches);
  STAILQ_INIT(&q->failed_plans);
  STAILQ_INIT(&q->failed_launches);
  pthread_mutex_init(&q->lock, NULL);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&q->work, &monotonic);
  pthread_condattr_destroy(&monotonic);
  pthread_cond_init(&q->idle, NULL);
  int err = rail_thread_start("rail-exec", executor, q, &q->thread);
  if (err) {
    RAIL_WARN("rank %d: cannot start the executor thread: %s; raise the limit of threads", comm->rank, strerror(err));
    return RAIL_SYSTEM_ERROR;
  }
  q->thread_started = true;
  return RAIL_OK;
}

void rt_queue_stop(struct rt_queue *q) {
  if (!q->comm || !q->thread_started) return;
  pthread_mutex_lock(&q->lock);
  q->stop = true;
  pthread_cond_signal(&q->work);
  pthread_mutex_unlock(&q->lock);
  pthread_join(q->thread, NULL);
  q->thread_started = false;
  pthread_mutex_lock(&q->lock);
  while (!STAILQ_EMPTY(&q->launches)) finish_first_launch(q);
  pthread_mutex_unlock(&q->lock);
}

void rt_queue_destroy(struct rt_queue *q) {
  if (!q->comm) return;
  rt_queue_stop(q);
  for (struct rt_plan *plan; (plan = STAILQ_FIRST(&q->plans));) {
    STAILQ_REMOVE_HEAD(&q->plans, link);
    rt_plan_free(q->comm, plan);
  }
  for (struct rt_plan *plan; (plan = STAILQ_FIRST(&q->failed_plans));) {
    STAILQ_REMOVE_HEAD(&q->failed_plans, link);
    rt_plan_free(q->comm, plan);
  }
  for (struct rt_launch *launch; (launch = STAILQ_FIRST(&q->failed_launches));) {
    STAILQ_REMOVE_HEAD(&q->failed_launches, link);
    rt_launch_free(launch);
  }
  pthread_cond_destroy(&q->idle);
  pthread_cond_destroy(&q->work);
  pthread_mutex_destroy(&q->lock);
  q->comm = NULL;
}

void rt_queue_enqueue(struct rt_queue *q, struct rt_plan *plan, bool urgent) {
  pthread_mutex_lock(&q->lock);
  STAILQ_INSERT_TAIL(&q->plans, plan, link);
  q->pending++;
  atomic_store_explicit(&q->pending_hint, q->pending, memory_order_release);
  q->urgent |= urgent;
  if (q->urgent || !q->sleeps_briefly) pthread_cond_signal(&q->work);
  pthread_mutex_unlock(&q->lock);
}

void rt_queue_add_launch(struct rt_queue *q, struct rt_launch *launch) {
  pthread_mutex_lock(&q->lock);
  STAILQ_INSERT_TAIL(&q->launches, launch, link);
  q->pending++;
  atomic_store_explicit(&q->pending_hint, q->pending, memory_order_release);
  /* The executor's short sleep is not waited for where it drives the proxy; nor on an oversubscribed host, where it is
   * long and finished launches would hold their memory meanwhile. */
  if (!q->sleeps_briefly || q->comm->oversubscribed || (launch->nops > 0 && !q->comm->proxy.threaded))
    pthread_cond_signal(&q->work);
  pthread_mutex_unlock(&q->lock);
}

void rt_queue_wait(struct rt_queue *q) {
  if (rt_queue_empty(q)) return;
  pthread_mutex_lock(&q->lock);
  while (q->pending > 0) {
    if (has_work(q) && !q->running)
      run_queue(q);
    else
      pthread_cond_wait(&q->idle, &q->lock);
  }
  pthread_mutex_unlock(&q->lock);
}

bool rt_queue_idle(struct rt_queue *q) {
  if (rt_queue_empty(q)) return true;
  pthread_mutex_lock(&q->lock);
  bool idle = q->pending == 0;
  if (!idle && !q->running && !q->urgent) {
    q->urgent = true;
    pthread_cond_signal(&q->work);
  }
  pthread_mutex_unlock(&q->lock);
  return idle;
}

/* Has a device's kernels to end, or a plan to run? Lock held. */
static bool runs(const struct rt_queue *q) {
  if (q->comm->memory != RT_DEVICE_MEMORY) return q->pending > 0;
  const struct rt_launch *launch;
  STAILQ_FOREACH(launch, &q->launches, link)
    if (!rt_launch_kernel_over(launch)) return true;
  return !STAILQ_EMPTY(&q->plans);
}

bool rt_queue_settle(struct rt_queue *q) {
  if (rt_queue_idle(q)) return true;
  pthread_mutex_lock(&q->lock);
  const bool wait = !runs(q);
  pthread_mutex_unlock(&q->lock);
  if (wait) rt_queue_wait(q);
  return wait;
}
