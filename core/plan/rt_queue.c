/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan/rt_queue.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "core/comm/rt_comm.h"
#include "core/gpu/rt_gate.h"
#include "core/plan/rt_job.h"
#include "core/gpu/rt_run.h"
#include "core/plan/rt_job.h"

/* Rounds without progress: first spin, then yield, then nap. */
#define SPIN_ROUNDS 64
#define NAP_AFTER_ROUNDS 50000
#define NAP_NS 50000
/* Rounds between two looks for peers that have left, and how long one may have left before it counts. */
#define LEFT_LOOK_ROUNDS 4096
#define LEFT_GRACE_NS 500000000ull
/* The same for a run on a device, which others move: yields before naps, time between two looks, and how long kernels
 * may take to end after the communicator failed: they see it at once, but may be queued behind the program's own. */
#define YIELD_ROUNDS 200
#define LOOK_NS 20000000ull
#define END_NS 30000000000ull

/* How long the executor leaves a new plan to a thread that waits, and how many such naps without any work it
 * makes before it sleeps until it is woken: waking it costs the caller a system call. */
#define EXECUTOR_GRACE_NS 500000u
#define EXECUTOR_NAPS 20

/* ---- running one plan ------------------------------------------------------ */

static void begin_jobs(struct ncclComm *comm, struct rt_plan *plan) {
  for (int i = 0; i < plan->njobs; i++) {
    struct rt_job *job = &plan->jobs[i];
    bool any = false;
    rt_job_begin(job);
    for (int p = 0; p < RT_PEERS; p++) any |= rt_job_proxied(&job->send[p]) || rt_job_proxied(&job->recv[p]);
    if (!any) continue;
    rt_job_count(job);
    /* Receives first: a rank that posts early is never what others wait for. */
    rt_job_submit(comm, job, false);
    rt_job_submit(comm, job, true);
  }
}

/* One round over all jobs. Returns how many are unfinished; *moved is set when anything happened. */
static int poll_jobs(struct ncclComm *comm, struct rt_plan *plan, bool *moved) {
  int left = 0;
  for (int i = 0; i < plan->njobs; i++) {
    struct rt_job *job = &plan->jobs[i];
    if (job->done) continue;
    *moved |= rt_job_poll(comm, job);
    if (!job->done) left++;
    if (rt_comm_failed(comm)) break;
  }
  return left;
}

static void relax(int idle_rounds) {
  if (idle_rounds < SPIN_ROUNDS)
    rail_cpu_relax();
  else if (idle_rounds < NAP_AFTER_ROUNDS)
    sched_yield();
  else
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* The peer that a kernel waits for although it has closed its end; NULL: none. */
static const struct rt_connector *waits_for_nobody(struct rt_plan *plan) {
  for (int i = 0; i < plan->njobs; i++) {
    struct rt_job *job = &plan->jobs[i];
    for (int e = 0; e < 2 * RT_PEERS; e++) {
      const struct rt_connector *c = e < RT_PEERS ? job->send[e].connector : job->recv[e - RT_PEERS].connector;
      if (job->done || !c || !c->end->peer_left || !c->end->peer_left(c)) continue;
      /* What the peer did before it left can be seen by now. */
      if (rt_program_poll(&job->program) == RT_PROGRAM_WAIT && job->program.blocked == &c->conn) return c;
    }
  }
  return NULL;
}

/* Now and then while nothing moves. A rank that leaves because of a failure has told so; that reason comes first,
 * hence the delay. */
static void look_for_leavers(struct ncclComm *comm, const struct rt_connector *c, uint64_t *left_ns) {
  uint64_t now = rail_now_ns();
  if (!c)
    *left_ns = 0;
  else if (*left_ns == 0)
    *left_ns = now;
  else if (now - *left_ns > LEFT_GRACE_NS)
    rt_comm_fail(comm, RAIL_REMOTE_ERROR, "rank %d ended its communicator while rank %d waits for it in an operation",
                 c->peer, comm->rank);
}

/* True when the plan finished; false when the communicator failed before. */
static bool run_plan(struct ncclComm *comm, struct rt_plan *plan) {
  begin_jobs(comm, plan);
  int idle = 0;
  uint64_t left_ns = 0;
  while (!rt_comm_failed(comm)) {
    bool moved = false;
    if (poll_jobs(comm, plan, &moved) == 0 && !rt_comm_failed(comm)) return true;
    if (!comm->proxy.threaded && atomic_load_explicit(&comm->proxy.unfinished, memory_order_relaxed) > 0)
      moved |= rt_proxy_pass(&comm->proxy);
    idle = moved ? 0 : idle + 1;
    if (idle) relax(idle);
    if (idle % LEFT_LOOK_ROUNDS == LEFT_LOOK_ROUNDS - 1) look_for_leavers(comm, waits_for_nobody(plan), &left_ns);
  }
  return false;
}

/* ---- looking after one run on a device ---------------------------------------- */

/* Where no other thread drives the proxy, rounds without progress are as a plan's; else the device needs no help. */
static void rest(struct ncclComm *comm, int idle_rounds) {
  bool driving = !comm->proxy.threaded && atomic_load_explicit(&comm->proxy.unfinished, memory_order_relaxed) > 0;
  if (driving || idle_rounds < YIELD_ROUNDS)
    relax(idle_rounds);
  else
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* Now and then: is there still somebody at work, here and at the other end? */
static void look_at_run(struct ncclComm *comm, const struct rt_run *run, uint64_t *left_ns) {
  if (!rt_gpu_lost(comm)) look_for_leavers(comm, rt_run_waits_for_nobody(run), left_ns);
}

/* Until the run is over, or it did not end in time after the communicator failed. */
static void attend(struct ncclComm *comm, struct rt_run *run) {
  uint64_t left_ns = 0, next_look = rail_now_ns() + LOOK_NS, give_up = 0;
  for (int idle = 1; !rt_run_over(run) && !comm->gpu.stuck; idle = RAIL_MIN(idle + 1, 2 * NAP_AFTER_ROUNDS)) {
    if (!comm->proxy.threaded && atomic_load_explicit(&comm->proxy.unfinished, memory_order_relaxed) > 0 &&
        rt_proxy_pass(&comm->proxy))
      idle = 0;
    rest(comm, idle);
    uint64_t now = rail_now_ns();
    if (now < next_look) continue;
    next_look = now + LOOK_NS;
    look_at_run(comm, run, &left_ns);
    if (!rt_comm_failed(comm)) continue;
    if (!give_up) give_up = now + END_NS;
    if (now < give_up) continue;
    comm->gpu.stuck = true;
    rt_gate_run(); /* for good: the driver would wait for it whatever is given back */
    return;
  }
}

/* ---- the queue --------------------------------------------------------------- */

static void one_less(struct rt_queue *s) {
  s->pending--;
  atomic_store_explicit(&s->pending_hint, s->pending, memory_order_release);
}

/* The first plan of the queue. As run_queue. */
static void run_first_plan(struct rt_queue *s) {
  struct rt_plan *plan = s->first;
  s->first = plan->next;
  if (!s->first) s->end = &s->first;
  pthread_mutex_unlock(&s->lock);
  bool ok = !rt_comm_failed(s->comm) && run_plan(s->comm, plan);
  if (!ok) rt_proxy_quiesce(&s->comm->proxy);
  /* From here on no byte of the user's buffers is touched: that is what deregistering promises. */
  rt_plan_deregister(s->comm, plan);
  if (ok) free(plan);
  pthread_mutex_lock(&s->lock);
  if (!ok) {
    plan->next = s->failed_plans;
    s->failed_plans = plan;
  }
  one_less(s);
}

/* The first run on a device, until it is over. As run_queue. */
static void attend_first_run(struct rt_queue *s) {
  struct rt_run *run = s->runs;
  pthread_mutex_unlock(&s->lock);
  attend(s->comm, run);
  rt_run_retire(run);
  bool ok = !rt_comm_failed(s->comm);
  if (!ok) rt_proxy_quiesce(&s->comm->proxy);
  pthread_mutex_lock(&s->lock);
  s->runs = run->next;
  if (!s->runs) s->runs_end = &s->runs;
  if (!ok) {
    run->next = s->failed_runs;
    s->failed_runs = run;
  }
  one_less(s);
  pthread_mutex_unlock(&s->lock);
  if (ok) rt_run_free(run);
  pthread_mutex_lock(&s->lock);
}

/* Runs queued plans, and looks after runs, until there are none. The lock is held on entry and exit; `running` is ours
 * meanwhile. */
static void run_queue(struct rt_queue *s) {
  s->running = true;
  while ((s->first || s->runs) && !s->stop) {
    if (s->runs)
      attend_first_run(s);
    else
      run_first_plan(s);
  }
  s->running = false;
  s->urgent = false;
  pthread_cond_broadcast(&s->idle);
}

static void nap(struct rt_queue *s) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += EXECUTOR_GRACE_NS;
  if (until.tv_nsec >= 1000000000) {
    until.tv_sec++;
    until.tv_nsec -= 1000000000;
  }
  s->watching = true;
  pthread_cond_timedwait(&s->work, &s->lock, &until);
  s->watching = false;
}

static void *executor(void *arg) {
  struct rt_queue *s = arg;
  struct rt_plan *left = NULL; /* was there before the last nap: nobody came for it */
  int naps = 0;
  pthread_mutex_lock(&s->lock);
  while (!s->stop) {
    struct rt_plan *first = s->running ? NULL : s->first;
    bool runs = !s->running && s->runs;
    if (runs || (first && (s->urgent || first == left))) {
      run_queue(s);
      naps = 0;
    } else if (s->pending > 0 || naps < EXECUTOR_NAPS) {
      naps = s->pending > 0 ? 0 : naps + 1;
      left = first;
      nap(s);
    } else {
      pthread_cond_wait(&s->work, &s->lock);
      naps = 0;
    }
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

rail_result_t rt_queue_init(struct rt_queue *s, struct ncclComm *comm) {
  s->comm = comm;
  s->end = &s->first;
  s->runs_end = &s->runs;
  pthread_mutex_init(&s->lock, NULL);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&s->work, &monotonic);
  pthread_condattr_destroy(&monotonic);
  pthread_cond_init(&s->idle, NULL);
  int err = rail_thread_start("rail-exec", executor, s, &s->thread);
  if (err) {
    RAIL_WARN("rank %d: cannot start the executor thread: %s; raise the limit of threads", comm->rank, strerror(err));
    return RAIL_SYSTEM_ERROR;
  }
  s->thread_started = true;
  return RAIL_OK;
}

void rt_queue_stop(struct rt_queue *s) {
  if (!s->comm || !s->thread_started) return;
  pthread_mutex_lock(&s->lock);
  s->stop = true;
  pthread_cond_signal(&s->work);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  s->thread_started = false;
  pthread_mutex_lock(&s->lock);
  while (s->runs) attend_first_run(s);
  pthread_mutex_unlock(&s->lock);
}

void rt_queue_destroy(struct rt_queue *s) {
  if (!s->comm) return;
  rt_queue_stop(s);
  for (struct rt_plan *list = s->first; list;) {
    struct rt_plan *next = list->next;
    rt_plan_free(s->comm, list);
    list = next;
  }
  for (struct rt_plan *list = s->failed_plans; list;) {
    struct rt_plan *next = list->next;
    free(list);
    list = next;
  }
  for (struct rt_run *list = s->failed_runs; list;) {
    struct rt_run *next = list->next;
    rt_run_free(list);
    list = next;
  }
  pthread_cond_destroy(&s->idle);
  pthread_cond_destroy(&s->work);
  pthread_mutex_destroy(&s->lock);
  s->comm = NULL;
}

void rt_queue_enqueue(struct rt_queue *s, struct rt_plan *plan, bool urgent) {
  plan->next = NULL;
  pthread_mutex_lock(&s->lock);
  *s->end = plan;
  s->end = &plan->next;
  s->pending++;
  atomic_store_explicit(&s->pending_hint, s->pending, memory_order_release);
  s->urgent |= urgent;
  if (s->urgent || !s->watching) pthread_cond_signal(&s->work);
  pthread_mutex_unlock(&s->lock);
}

void rt_queue_add_run(struct rt_queue *s, struct rt_run *run) {
  run->next = NULL;
  pthread_mutex_lock(&s->lock);
  *s->runs_end = run;
  s->runs_end = &run->next;
  s->pending++;
  atomic_store_explicit(&s->pending_hint, s->pending, memory_order_release);
  pthread_cond_signal(&s->work);
  pthread_mutex_unlock(&s->lock);
}

void rt_queue_wait(struct rt_queue *s) {
  pthread_mutex_lock(&s->lock);
  while (s->pending > 0) {
    if ((s->first || s->runs) && !s->running)
      run_queue(s);
    else
      pthread_cond_wait(&s->idle, &s->lock);
  }
  pthread_mutex_unlock(&s->lock);
}

bool rt_queue_idle(struct rt_queue *s) {
  if (atomic_load_explicit(&s->pending_hint, memory_order_acquire) == 0) return true;
  pthread_mutex_lock(&s->lock);
  bool idle = s->pending == 0;
  if (!idle && !s->running && !s->urgent) {
    s->urgent = true;
    pthread_cond_signal(&s->work);
  }
  pthread_mutex_unlock(&s->lock);
  return idle;
}
