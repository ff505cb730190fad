/* SPDX-License-Identifier: Apache-2.0
 * One launch: its steps and its proxy operations, whether it is over, what it waits for. rt_device_plan.c makes and
 * begins it, in the thread that launches or in the driver's; rt_queue.c watches, retires and frees it, in the executor
 * or in a thread that waits. */
#include "core/gpu/rt_launch.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/comm/rt_comm.h"
#include "core/gpu/rt_launch_lock.h"
#include "core/host/rt_device.h"
#include "core/plan/rt_plan.h"

/* ---- beginning ------------------------------------------------------------------------ */

static bool has_op(const struct rt_job_end *e) { return rt_job_proxied(e) && e->steps; }

struct rt_launch *rt_launch_new(struct rt_plan *plan) {
  size_t nops = 0;
  for (int j = 0; j < plan->njobs; j++) {
    const struct rt_job *job = &plan->jobs[j];
    for (int p = 0; p < job->nlinks; p++) nops += (size_t)has_op(&job->recv[p]) + (size_t)has_op(&job->send[p]);
  }
  struct rt_launch *launch =
      calloc(1, sizeof *launch + nops * sizeof launch->ops[0] + (size_t)plan->njobs * sizeof launch->last_steps[0]);
  if (!launch) return NULL;
  launch->plan = plan;
  launch->owns_plan = !plan->captured;
  launch->number = plan->launch->run;
  launch->last_steps = (struct rt_last_steps *)(void *)&launch->ops[nops];
  return launch;
}

static uint64_t last_step(const struct rt_job_end *e) {
  struct rt_connector *c = e->connector;
  if (!c) return 0;
  /* While a kernel may use the connection, its count of steps is the kernel's. */
  if (c->launches++ == 0) c->planned = c->conn.step;
  return c->planned += e->steps;
}

/* A graph may begin a launch while the program makes a call: which of them counts first does not matter. */
static void set_last_steps(struct rt_launch *launch) {
  pthread_mutex_lock(&launch->plan->comm->gpu.lock);
  for (int j = 0; j < launch->plan->njobs; j++) {
    const struct rt_job *job = &launch->plan->jobs[j];
    for (int p = 0; p < job->nlinks; p++) {
      launch->last_steps[j].recv[p] = last_step(&job->recv[p]);
      launch->last_steps[j].send[p] = last_step(&job->send[p]);
    }
  }
  atomic_fetch_add(&launch->plan->launches, 1);
  pthread_mutex_unlock(&launch->plan->comm->gpu.lock);
}

static void submit_op(struct rt_launch *launch, const struct rt_job *job, const struct rt_job_end *e) {
  if (!has_op(e)) return;
  struct rt_proxy_op *op = &launch->ops[launch->nops++];
  op->connector = e->connector;
  op->proto = job->program.proto;
  op->nsteps = e->steps;
  rt_proxy_submit(&launch->plan->comm->proxy, op);
}

void rt_launch_begin(struct rt_launch *launch) {
  const struct rt_plan *plan = launch->plan;
  set_last_steps(launch);
  if (plan->comm->shares_process) rt_launch_lock_kernel_begin();
  /* Receives first: a rank that posts early is never what others wait for. */
  for (int j = 0; j < plan->njobs; j++)
    for (int p = 0; p < plan->jobs[j].nlinks; p++) submit_op(launch, &plan->jobs[j], &plan->jobs[j].recv[p]);
  for (int j = 0; j < plan->njobs; j++)
    for (int p = 0; p < plan->jobs[j].nlinks; p++) submit_op(launch, &plan->jobs[j], &plan->jobs[j].send[p]);
}

/* ---- until it is over ----------------------------------------------------------------- */

void rt_launch_check_job(const struct rt_plan *plan, int j) {
  const struct rt_device_job *d = &plan->launch->job[j];
  if (d->state != RT_DEVICE_MISMATCH) return;
  rt_comm_fail_mismatch(plan->comm, plan->jobs[j].recv[d->from].connector->peer, d->got, d->expected);
}

static bool job_over(const struct rt_launch *launch, int j) {
  return rt_observe(&launch->plan->launch->job[j].ran) >= launch->number;
}

/* Only the plan's latest launch is checked: a newer one has already checked this one's results, and its kernel may be
 * writing. */
static void check_jobs(const struct rt_launch *launch) {
  struct rt_plan *plan = launch->plan;
  pthread_mutex_lock(&plan->comm->gpu.lock);
  for (int j = 0; j < plan->njobs && plan->launch->run == launch->number; j++)
    if (job_over(launch, j)) rt_launch_check_job(plan, j);
  pthread_mutex_unlock(&plan->comm->gpu.lock);
}

static int count_jobs_over(const struct rt_launch *launch) {
  int over = 0;
  for (int j = 0; j < launch->plan->njobs; j++) over += job_over(launch, j);
  return over;
}

bool rt_launch_kernel_over(const struct rt_launch *launch) {
  return count_jobs_over(launch) == launch->plan->njobs;
}

bool rt_launch_over(const struct rt_launch *launch) {
  struct ncclComm *comm = launch->plan->comm;
  const int njobs = launch->plan->njobs, over = count_jobs_over(launch);
  bool ops_over = true;
  if (over > 0) check_jobs(launch);
  for (int i = 0; i < launch->nops; i++)
    ops_over &= atomic_load_explicit(&launch->ops[i].finished, memory_order_acquire);
  return (over == njobs && (ops_over || rt_comm_failed(comm))) || comm->gpu.lost;
}

static bool has_departed(const struct rt_connector *c) { return c && c->end->peer_left && c->end->peer_left(c); }

int rt_launch_departed_peer(const struct rt_launch *launch) {
  for (int j = 0; j < launch->plan->njobs; j++) {
    const struct rt_job *job = &launch->plan->jobs[j];
    const struct rt_last_steps *last = &launch->last_steps[j];
    if (job_over(launch, j)) continue;
    /* A kernel that has not begun may still find all that it needs. */
    for (int p = 0; p < job->nlinks; p++) {
      const struct rt_connector *recv = job->recv[p].connector, *send = job->send[p].connector;
      if (has_departed(recv) && rt_observe(recv->conn.tail) < last->recv[p]) return recv->peer;
      if (has_departed(send) && rt_observe(send->conn.credit) < last->send[p]) return send->peer;
    }
  }
  return -1;
}

/* ---- a launch that does not move ------------------------------------------------------ */

uint64_t rt_launch_progress(const struct rt_launch *launch) {
  uint64_t sum = 0;
  for (int j = 0; j < launch->plan->njobs; j++) {
    const struct rt_job *job = &launch->plan->jobs[j];
    sum += job_over(launch, j);
    for (int p = 0; p < job->nlinks; p++) {
      const struct rt_connector *recv = job->recv[p].connector, *send = job->send[p].connector;
      if (recv) sum += rt_observe(recv->conn.tail) + rt_observe(recv->conn.credit);
      if (send) sum += rt_observe(send->conn.tail) + rt_observe(send->conn.credit);
    }
  }
  return sum;
}

/* What an unfinished job waits for. Whether its kernel has begun cannot be seen from here. */
static void describe_wait(const struct rt_launch *launch, int j, char text[RT_WAIT_TEXT]) {
  const struct rt_job *job = &launch->plan->jobs[j];
  char end[RT_WAIT_TEXT / 2];
  snprintf(text, RT_WAIT_TEXT, "for what is before it on its stream");
  for (int i = 0; i < 2 * job->nlinks; i++) {
    const int p = i % job->nlinks;
    const struct rt_job_end *e = i < job->nlinks ? &job->recv[p] : &job->send[p];
    const struct rt_connector *c = e->connector;
    if (!c) continue;
    const uint64_t target = c->is_send ? launch->last_steps[j].send[p] : launch->last_steps[j].recv[p];
    const uint64_t there = rt_observe(c->is_send ? c->conn.credit : c->conn.tail);
    if (there >= target) continue;
    rt_job_wait_text(c, target - there < e->steps ? e->steps - (target - there) : 0, e->steps, end, sizeof end);
    snprintf(text, RT_WAIT_TEXT, "%s, or for what is before it on its stream", end);
    return;
  }
}

void rt_launch_report_stall(const struct rt_launch *launch, uint64_t ms) {
  const struct rt_plan *plan = launch->plan;
  char wait[RT_WAIT_TEXT] = "for the network to send what it produced"; /* its kernel is over */
  int j = 0;
  while (j < plan->njobs && job_over(launch, j)) j++;
  if (j < plan->njobs) describe_wait(launch, j, wait);
  rt_job_report_stall(plan->comm, &plan->jobs[j % plan->njobs], ms, wait);
}

/* ---- when it is over ------------------------------------------------------------------ */

/* A plan of a graph that is gone may be freed by another thread as soon as it has no launches. */
void rt_launch_retire(const struct rt_launch *launch) {
  struct ncclComm *comm = launch->plan->comm;
  pthread_mutex_lock(&comm->gpu.lock);
  for (int j = 0; j < launch->plan->njobs; j++) {
    const struct rt_job *job = &launch->plan->jobs[j];
    for (int p = 0; p < job->nlinks; p++) {
      if (job->recv[p].connector) job->recv[p].connector->launches--;
      if (job->send[p].connector) job->send[p].connector->launches--;
    }
  }
  atomic_fetch_sub(&launch->plan->launches, 1);
  pthread_mutex_unlock(&comm->gpu.lock);
  if (comm->shares_process) rt_launch_lock_kernel_end();
}

void rt_launch_free(struct rt_launch *launch) {
  if (launch->owns_plan) rt_plan_free(launch->plan->comm, launch->plan);
  free(launch);
}
