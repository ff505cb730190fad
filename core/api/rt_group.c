/* SPDX-License-Identifier: Apache-2.0
 * Groups, and ncclGroupSimulateEnd. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/thread.h"
#include "core/host/rt_types.h"
#include "core/api/rt_api.h"
#include "core/plan/rt_tune.h"
#include "core/gpu/rt_device_plan.h"

/* One thing that may have a thread of its own: to make a communicator, or to connect what its tasks need. */
struct group_job {
  struct rt_init_args init;
  ncclComm_t *out;
  struct ncclComm *comm;
  struct rt_task *tasks;
  int ntasks;
  struct rt_plan *plan;
  rail_result_t result;
  bool over; /* nothing is left to run */
  pthread_t thread;
  bool threaded;
};

static _Thread_local struct group {
  int depth;
  struct rt_task *tasks;
  int ntasks, cap_tasks;
  struct group_job *inits;
  int ninits, cap_inits;
  ncclResult_t error; /* of a call inside the group: the whole group is dropped */
  bool in_progress;   /* a thread makes a communicator of the group that does not block */
} group;

/* Room for n more elements of an array; the old contents stay. */
static bool reserve(void **array, int used, int *cap, int n, size_t each) {
  if (used + n <= *cap) return true;
  int want = RAIL_MAX(used + n, 2 * *cap + 8);
  void *grown = realloc(*array, (size_t)want * each);
  if (!grown) return false;
  *array = grown;
  *cap = want;
  return true;
}

static void group_clear(void) {
  free(group.tasks);
  free(group.inits);
  memset(&group, 0, sizeof group);
}

/* ---- running the jobs ------------------------------------------------------------------ */

/* The job's result is the communicator's: the call's own error may be a consequence of a failure that another rank has
 * reported. `errors`: of this thread before the job; the text of a new one is the reason, else `reason`. */
static void finish_job(struct group_job *j, rail_result_t result, unsigned errors, const char *reason) {
  if (result != RAIL_OK)
    rt_comm_fail(j->comm, result, "%s", rt_error_count() != errors ? rt_error_text() : reason);
  j->result = result == RAIL_OK ? RAIL_OK : (rail_result_t)atomic_load(&j->comm->failed);
}

/* A failure is reported to the other ranks at once: some may be waiting in another thread of this group. */
static void *init_job(void *arg) {
  struct group_job *j = arg;
  const unsigned errors = rt_error_count();
  finish_job(j, rt_comm_init(j->comm, &j->init), errors, "the communicator could not be made; earlier lines say why");
  return NULL;
}

#define PLAN_REASON "an operation could not be started; earlier lines say why"

static void build_plan(struct group_job *j) {
  const unsigned errors = rt_error_count();
  finish_job(j, rt_plan_build(j->comm, j->tasks, j->ntasks, &j->plan), errors, PLAN_REASON);
  j->over = j->result != RAIL_OK || !j->plan;
}

static void *ready_job(void *arg) {
  struct group_job *j = arg;
  const unsigned errors = rt_error_count();
  finish_job(j, rt_plan_make_ready(j->plan), errors, PLAN_REASON);
  j->over = true;
  return NULL;
}

/* Runs all jobs that are not over, each but the last in a thread of its own, because one may wait for the others. */
static void run_jobs(struct group_job *jobs, int n, void *(*run)(void *)) {
  while (n > 0 && jobs[n - 1].over) n--;
  if (n == 0) return;
  for (int i = 0; i < n - 1; i++) {
    if (jobs[i].over) continue;
    int err = rail_thread_start("rail-group", run, &jobs[i], &jobs[i].thread);
    jobs[i].threaded = err == 0;
    if (err == 0) continue;
    jobs[i].result = RAIL_SYSTEM_ERROR;
    rt_comm_fail(jobs[i].comm, RAIL_SYSTEM_ERROR, "cannot start a thread: %s; raise the limit of threads",
                 strerror(err));
  }
  run(&jobs[n - 1]);
  for (int i = 0; i < n - 1; i++)
    if (jobs[i].threaded) pthread_join(jobs[i].thread, NULL);
}

/* Threads only for what waits for other ranks. Nothing is launched before all are ready: a kernel would keep the driver
 * from what the others have to make. */
static void make_plans(struct group_job *jobs, int n) {
  for (int i = 0; i < n; i++) {
    build_plan(&jobs[i]);
    if (!jobs[i].over && !rt_plan_waits_for_ranks(jobs[i].plan)) ready_job(&jobs[i]);
  }
  run_jobs(jobs, n, ready_job);
  for (int i = 0; i < n; i++) {
    if (jobs[i].result == RAIL_OK || !jobs[i].plan) continue;
    rt_plan_free(jobs[i].comm, jobs[i].plan);
    jobs[i].plan = NULL;
  }
}

static ncclResult_t make_comms(void) {
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < group.ninits; i++) rt_init_hold_parent(&group.inits[i].init);
  run_jobs(group.inits, group.ninits, init_job);
  for (int i = 0; i < group.ninits; i++) rt_init_end(&group.inits[i].init); /* of those that did not run */
  for (int i = 0; i < group.ninits; i++) {
    struct group_job *j = &group.inits[i];
    if (j->result != RAIL_OK) {
      result = (ncclResult_t)j->result;
      rt_error_keep(j->comm->error);
      rt_comm_free(j->comm);
    } else if (j->comm->nranks == 0) {
      rt_comm_free(j->comm); /* a split without a color */
    } else {
      *j->out = j->comm;
    }
  }
  return result;
}

/* ---- planning --------------------------------------------------------------------------- */

/* The group's tasks by communicator, each one's in their order. Returns the number of jobs, or -1 without memory.
 * *sorted: what the caller frees; NULL when all tasks are of one communicator. */
static int split_tasks(struct group_job **jobs_out, struct rt_task **sorted) {
  const int n = group.ntasks;
  int ncomms = 1, njobs = 0, at = 0;
  for (int i = 1; i < n; i++) ncomms += group.tasks[i].comm != group.tasks[i - 1].comm; /* at most so many */
  struct group_job *jobs = *jobs_out = calloc((size_t)ncomms, sizeof *jobs);
  *sorted = NULL;
  if (!jobs) return -1;
  if (ncomms == 1) {
    *jobs = (struct group_job){.comm = group.tasks[0].comm, .tasks = group.tasks, .ntasks = n};
    return 1;
  }
  struct rt_task *tasks = *sorted = calloc((size_t)n, sizeof *tasks);
  if (!tasks) return -1;
  for (int i = 0; i < n; i++) {
    struct ncclComm *comm = group.tasks[i].comm;
    bool seen = false;
    for (int j = 0; j < njobs && !seen; j++) seen = jobs[j].comm == comm;
    if (seen) continue;
    struct group_job *job = &jobs[njobs++];
    job->comm = comm;
    job->tasks = &tasks[at];
    for (int k = i; k < n; k++)
      if (group.tasks[k].comm == comm) tasks[at++] = group.tasks[k];
    job->ntasks = (int)(&tasks[at] - job->tasks);
  }
  return njobs;
}

static ncclResult_t launch_jobs(struct group_job *jobs, int njobs) {
  /* ncclCommAbort of another thread frees a communicator only when it has no users. */
  for (int i = 0; i < njobs; i++) atomic_fetch_add(&jobs[i].comm->users, 1);
  make_plans(jobs, njobs);
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < njobs; i++) {
    struct group_job *j = &jobs[i];
    if (j->result == RAIL_OK && j->plan && j->plan->on_device)
      j->result = rt_device_plan_launch(j->comm, j->plan);
    else if (j->result == RAIL_OK && j->plan)
      /* With several communicators the caller waits for one after the other: let the executors begin at once. */
      rt_queue_enqueue(&j->comm->queue, j->plan, njobs > 1);
    if (j->result != RAIL_OK) {
      result = (ncclResult_t)j->result;
      rt_error_keep(j->comm->error);
    }
    atomic_fetch_sub(&j->comm->users, 1);
  }
  return result;
}

static ncclResult_t launch_tasks(void) {
  struct group_job *jobs;
  struct rt_task *sorted;
  const int njobs = split_tasks(&jobs, &sorted);
  const ncclResult_t result =
      njobs > 0 ? launch_jobs(jobs, njobs)
                : rt_error(RAIL_SYSTEM_ERROR, "out of memory for %d calls of one group", group.ntasks);
  free(jobs);
  free(sorted);
  return result;
}

static void drop_inits(void) {
  for (int i = 0; i < group.ninits; i++) {
    rt_init_end(&group.inits[i].init);
    rt_comm_free(group.inits[i].comm);
  }
}

static ncclResult_t run_group(void) {
  ncclResult_t result = group.error;
  if (result == ncclSuccess && group.ninits)
    result = make_comms();
  else
    drop_inits();
  if (result == ncclSuccess && group.ntasks) result = launch_tasks();
  if (result == ncclSuccess && group.in_progress) result = ncclInProgress;
  group_clear();
  return result;
}

/* ---- calls -------------------------------------------------------------------------------- */

ncclResult_t rt_group_note(ncclResult_t result) {
  const bool wrong = result != ncclSuccess && result != ncclInProgress;
  if (wrong && group.depth && group.error == ncclSuccess) group.error = result;
  return result;
}

void rt_group_note_in_progress(void) { group.in_progress = group.depth > 0; }

/* A call outside of a group: without memory of its own. */
static ncclResult_t launch_alone(struct rt_task *task) {
  const ncclResult_t r = rt_task_choose(task);
  if (r != ncclSuccess) return r;
  struct group_job job = {.comm = task->comm, .tasks = task, .ntasks = 1};
  return launch_jobs(&job, 1);
}

ncclResult_t rt_group_add(struct rt_task *task) {
  if (group.depth == 0) return rt_task_run_small(task) ? ncclSuccess : launch_alone(task);
  const ncclResult_t r = rt_group_note(rt_task_choose(task));
  if (r != ncclSuccess) return r;
  if (!reserve((void **)&group.tasks, group.ntasks, &group.cap_tasks, 1, sizeof *task))
    return rt_group_note(
        rt_error(RAIL_SYSTEM_ERROR, "out of memory for %d calls of one group", group.ntasks + 1));
  group.tasks[group.ntasks++] = *task;
  return ncclSuccess;
}

ncclResult_t rt_group_check_unused(const struct ncclComm *comm, const char *call) {
  bool used = false;
  for (int i = 0; i < group.ntasks; i++) used |= group.tasks[i].comm == comm;
  for (int i = 0; i < group.ninits; i++) used |= group.inits[i].init.parent == comm;
  if (!used) return ncclSuccess;
  return rt_error(RAIL_BAD_USAGE, "%s: the open group has calls of this communicator; end the group first", call);
}

ncclResult_t rt_group_add_init(struct rt_init_args *args, ncclComm_t *out) {
  *out = NULL;
  struct ncclComm *comm = NULL;
  if (reserve((void **)&group.inits, group.ninits, &group.cap_inits, 1, sizeof *group.inits))
    comm = rt_comm_alloc(args);
  if (!comm) {
    rt_init_end(args);
    return rt_group_note(rt_error(RAIL_SYSTEM_ERROR, "out of memory for a communicator"));
  }
  group.inits[group.ninits++] = (struct group_job){.init = *args, .out = out, .comm = comm};
  return group.depth ? ncclSuccess : run_group();
}

RAIL_EXPORT ncclResult_t ncclGroupStart(void) {
  group.depth++;
  return ncclSuccess;
}

RAIL_EXPORT ncclResult_t ncclGroupEnd(void) {
  if (group.depth == 0) return rt_error(RAIL_BAD_USAGE, "ncclGroupEnd without ncclGroupStart in this thread");
  if (--group.depth > 0) return ncclSuccess;
  return run_group();
}

/* ---- simulating ------------------------------------------------------------------------------- */

static double estimate_us(void) {
  double sum = 0;
  for (int i = 0; i < group.ntasks; i++) {
    const struct rt_task *t = &group.tasks[i];
    uint64_t bytes = t->count * rt_type_size((int)t->type);
    bool to_self = (t->coll == RT_SEND || t->coll == RT_RECV) && t->root == t->comm->rank;
    if (!to_self) sum += rt_estimate_us(t->choice.schedule, bytes, t->comm->nranks, t->comm->tuning.all_shm);
  }
  return sum;
}

static ncclResult_t simulate(ncclSimInfo_t *info) {
  const size_t end = offsetof(ncclSimInfo_t, estimatedTime) + sizeof info->estimatedTime;
  if (!info || info->size < end || info->magic != NCCL_SIM_INFO_MAGIC)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclGroupSimulateEnd: simInfo %p; start from NCCL_SIM_INFO_INITIALIZER",
                    (void *)info);
  if (group.ninits)
    return rt_error(RAIL_BAD_USAGE, "ncclGroupSimulateEnd: the group makes communicators, which cannot be simulated");
  info->estimatedTime = (float)estimate_us();
  return ncclSuccess;
}

RAIL_EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo) {
  if (group.depth == 0) return rt_error(RAIL_BAD_USAGE, "ncclGroupSimulateEnd without ncclGroupStart in this thread");
  if (--group.depth > 0) return ncclSuccess;
  ncclResult_t result = group.error != ncclSuccess ? group.error : simulate(simInfo);
  drop_inits();
  group_clear();
  return result;
}

RT_PNAME(GroupSimulateEnd);
RT_PNAME(GroupStart);
RT_PNAME(GroupEnd);
