/* SPDX-License-Identifier: Apache-2.0
 * Groups, and ncclGroupSimulateEnd. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/thread.h"
#include "core/api/rt_api.h"
#include "core/gpu/rt_device_plan.h"
#include "core/host/rt_types.h"
#include "core/plan/rt_tune.h"

/* One communicator of a group: it is made, or its tasks become a plan and what they need is connected. That may wait
 * for other ranks, so it may have a thread of its own. */
struct group_member {
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
  struct group_member *inits;
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

/* ---- running the members ------------------------------------------------------------------- */

/* The member's result is the communicator's: the call's own error may be a consequence of a failure that another rank
 * has reported. `errors`: of this thread before the call; the text of a new one is the reason, else `reason`. */
static void finish_member(struct group_member *m, rail_result_t result, unsigned errors, const char *reason) {
  if (result != RAIL_OK)
    rt_comm_fail(m->comm, result, "%s", rt_error_count() != errors ? rt_error_text() : reason);
  m->result = result == RAIL_OK ? RAIL_OK : (rail_result_t)atomic_load(&m->comm->failed);
}

/* A failure is reported to the other ranks at once: some may be waiting in another thread of this group. */
static void *init_member(void *arg) {
  struct group_member *m = arg;
  const unsigned errors = rt_error_count();
  const rail_result_t r = rt_comm_init(m->comm, &m->init);
  if (r != RAIL_OK && rt_error_count() != errors) rt_comm_fail_logged(m->comm, r, rt_error_text());
  finish_member(m, r, errors, "the communicator could not be made; earlier lines say why");
  return NULL;
}

#define PLAN_REASON "an operation could not be started; earlier lines say why"

static void build_plan(struct group_member *m) {
  const unsigned errors = rt_error_count();
  finish_member(m, rt_plan_build(m->comm, m->tasks, m->ntasks, &m->plan), errors, PLAN_REASON);
  m->over = m->result != RAIL_OK || !m->plan;
}

static void *ready_member(void *arg) {
  struct group_member *m = arg;
  const unsigned errors = rt_error_count();
  finish_member(m, rt_plan_make_ready(m->plan), errors, PLAN_REASON);
  m->over = true;
  return NULL;
}

/* Runs all members that are not over, each but the last in a thread of its own: one may wait for the others. */
static void run_members(struct group_member *members, int n, void *(*run)(void *)) {
  while (n > 0 && members[n - 1].over) n--;
  if (n == 0) return;
  for (int i = 0; i < n - 1; i++) {
    if (members[i].over) continue;
    int err = rail_thread_start("rail-group", run, &members[i], &members[i].thread);
    members[i].threaded = err == 0;
    if (err == 0) continue;
    members[i].result = RAIL_SYSTEM_ERROR;
    rt_comm_fail(members[i].comm, RAIL_SYSTEM_ERROR, "cannot start a thread: %s; raise the limit of threads",
                 strerror(err));
  }
  run(&members[n - 1]);
  for (int i = 0; i < n - 1; i++)
    if (members[i].threaded) pthread_join(members[i].thread, NULL);
}

/* Threads only for what waits for other ranks. Nothing is launched before all are ready: a kernel would keep the driver
 * from what the others have to make. */
static void make_plans(struct group_member *members, int n) {
  for (int i = 0; i < n; i++) {
    build_plan(&members[i]);
    if (!members[i].over && !rt_plan_waits_for_ranks(members[i].plan)) ready_member(&members[i]);
  }
  run_members(members, n, ready_member);
  for (int i = 0; i < n; i++) {
    if (members[i].result == RAIL_OK || !members[i].plan) continue;
    rt_plan_free(members[i].comm, members[i].plan);
    members[i].plan = NULL;
  }
}

static ncclResult_t make_comms(void) {
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < group.ninits; i++) rt_init_hold_parent(&group.inits[i].init);
  run_members(group.inits, group.ninits, init_member);
  for (int i = 0; i < group.ninits; i++) rt_init_end(&group.inits[i].init); /* of those that did not run */
  for (int i = 0; i < group.ninits; i++) {
    struct group_member *m = &group.inits[i];
    if (m->result != RAIL_OK) {
      result = (ncclResult_t)m->result;
      rt_error_keep(m->comm->error);
      rt_comm_free(m->comm);
    } else if (m->comm->nranks == 0) {
      rt_comm_free(m->comm); /* a split without a color */
    } else {
      *m->out = m->comm;
    }
  }
  return result;
}

/* ---- planning --------------------------------------------------------------------------- */

/* The group's tasks by communicator, each one's in their order. Returns the number of members, or -1 without memory.
 * *sorted: what the caller frees; NULL when all tasks are of one communicator. */
static int split_tasks(struct group_member **members_out, struct rt_task **sorted) {
  const int n = group.ntasks;
  int ncomms = 1, nmembers = 0, at = 0;
  for (int i = 1; i < n; i++) ncomms += group.tasks[i].comm != group.tasks[i - 1].comm; /* at most so many */
  struct group_member *members = *members_out = calloc((size_t)ncomms, sizeof *members);
  *sorted = NULL;
  if (!members) return -1;
  if (ncomms == 1) {
    *members = (struct group_member){.comm = group.tasks[0].comm, .tasks = group.tasks, .ntasks = n};
    return 1;
  }
  struct rt_task *tasks = *sorted = calloc((size_t)n, sizeof *tasks);
  if (!tasks) return -1;
  for (int i = 0; i < n; i++) {
    struct ncclComm *comm = group.tasks[i].comm;
    bool seen = false;
    for (int j = 0; j < nmembers && !seen; j++) seen = members[j].comm == comm;
    if (seen) continue;
    struct group_member *member = &members[nmembers++];
    member->comm = comm;
    member->tasks = &tasks[at];
    for (int k = i; k < n; k++)
      if (group.tasks[k].comm == comm) tasks[at++] = group.tasks[k];
    member->ntasks = (int)(&tasks[at] - member->tasks);
  }
  return nmembers;
}

static ncclResult_t launch_members(struct group_member *members, int nmembers) {
  /* ncclCommAbort of another thread frees a communicator only when it has no users. */
  for (int i = 0; i < nmembers; i++) atomic_fetch_add(&members[i].comm->users, 1);
  make_plans(members, nmembers);
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < nmembers; i++) {
    struct group_member *m = &members[i];
    if (m->result == RAIL_OK && m->plan && m->plan->on_device)
      m->result = rt_device_plan_launch(m->comm, m->plan);
    else if (m->result == RAIL_OK && m->plan)
      /* With several communicators the caller waits for one after the other: let the executors begin at once. */
      rt_queue_enqueue(&m->comm->queue, m->plan, nmembers > 1);
    if (m->result != RAIL_OK) {
      result = (ncclResult_t)m->result;
      rt_error_keep(m->comm->error);
    }
    atomic_fetch_sub(&m->comm->users, 1);
  }
  return result;
}

static ncclResult_t launch_tasks(void) {
  struct group_member *members;
  struct rt_task *sorted;
  const int nmembers = split_tasks(&members, &sorted);
  const ncclResult_t result =
      nmembers > 0 ? launch_members(members, nmembers)
                : rt_error(RAIL_SYSTEM_ERROR, "out of memory for %d calls of one group", group.ntasks);
  free(members);
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
  struct group_member member = {.comm = task->comm, .tasks = task, .ntasks = 1};
  return launch_members(&member, 1);
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
  group.inits[group.ninits++] = (struct group_member){.init = *args, .out = out, .comm = comm};
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
    if (!to_self) sum += rt_estimate_us(t->choice.schedule, bytes, t->comm->nranks, t->comm->tuning.all_direct);
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
