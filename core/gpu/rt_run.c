/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gpu/rt_run.h"

#include <stdlib.h>

#include "core/comm/rt_comm.h"
#include "core/gpu/rt_gate.h"
#include "core/host/rt_device.h"
#include "core/plan/rt_plan.h"

/* ---- beginning ------------------------------------------------------------------------ */

static bool has_op(const struct rt_job_end *e) { return rt_job_proxied(e) && e->steps; }

struct rt_run *rt_run_new(struct rt_plan *plan) {
  size_t nops = 0;
  for (int j = 0; j < plan->njobs; j++) {
    const struct rt_job *job = &plan->jobs[j];
    for (int p = 0; p < RT_PEERS; p++) nops += (size_t)has_op(&job->recv[p]) + (size_t)has_op(&job->send[p]);
  }
  struct rt_run *run =
      calloc(1, sizeof *run + nops * sizeof run->ops[0] + (size_t)plan->njobs * sizeof run->targets[0]);
  if (!run) return NULL;
  run->plan = plan;
  run->owns_plan = !plan->captured;
  run->number = plan->launch->run;
  run->targets = (struct rt_target *)(void *)&run->ops[nops];
  return run;
}

static uint64_t next_target(const struct rt_job_end *e) {
  struct rt_connector *c = e->connector;
  if (!c) return 0;
  /* While a kernel may use the connection, its count of steps is the kernel's. */
  if (c->runs++ == 0) c->planned = c->conn.step;
  return c->planned += e->steps;
}

/* A graph may begin a run while the program makes a call: which of them counts first does not matter. */
static void set_targets(struct rt_run *run) {
  pthread_mutex_lock(&run->plan->comm->gpu.lock);
  for (int j = 0; j < run->plan->njobs; j++) {
    const struct rt_job *job = &run->plan->jobs[j];
    for (int p = 0; p < RT_PEERS; p++) {
      run->targets[j].recv[p] = next_target(&job->recv[p]);
      run->targets[j].send[p] = next_target(&job->send[p]);
    }
  }
  atomic_fetch_add(&run->plan->runs, 1);
  pthread_mutex_unlock(&run->plan->comm->gpu.lock);
}

static void submit_op(struct rt_run *run, const struct rt_job *job, const struct rt_job_end *e) {
  if (!has_op(e)) return;
  struct rt_proxy_op *op = &run->ops[run->nops++];
  op->connector = e->connector;
  op->proto = job->program.proto;
  op->nsteps = e->steps;
  rt_proxy_submit(&run->plan->comm->proxy, op);
}

void rt_run_begin(struct rt_run *run) {
  const struct rt_plan *plan = run->plan;
  set_targets(run);
  if (plan->comm->shares_process) rt_gate_kernel_begin();
  /* Receives first: a rank that posts early is never what others wait for. */
  for (int j = 0; j < plan->njobs; j++)
    for (int p = 0; p < RT_PEERS; p++) submit_op(run, &plan->jobs[j], &plan->jobs[j].recv[p]);
  for (int j = 0; j < plan->njobs; j++)
    for (int p = 0; p < RT_PEERS; p++) submit_op(run, &plan->jobs[j], &plan->jobs[j].send[p]);
}

/* ---- until it is over ----------------------------------------------------------------- */

void rt_run_check_job(const struct rt_plan *plan, int j) {
  const struct rt_device_job *d = &plan->launch->job[j];
  if (d->state != RT_DEVICE_MISMATCH) return;
  rt_comm_fail_mismatch(plan->comm, plan->jobs[j].recv[d->from].connector->peer, d->got, d->expected);
}

static bool job_over(const struct rt_run *run, int j) {
  return rt_observe(&run->plan->launch->job[j].ran) >= run->number;
}

/* Only the plan's latest run is checked: a newer one has already checked this one's results, and its kernel may be
 * writing. */
static void check_jobs(const struct rt_run *run) {
  struct rt_plan *plan = run->plan;
  pthread_mutex_lock(&plan->comm->gpu.lock);
  for (int j = 0; j < plan->njobs && plan->launch->run == run->number; j++)
    if (job_over(run, j)) rt_run_check_job(plan, j);
  pthread_mutex_unlock(&plan->comm->gpu.lock);
}

bool rt_run_over(const struct rt_run *run) {
  struct ncclComm *comm = run->plan->comm;
  int njobs = run->plan->njobs, over = 0;
  bool ops_over = true;
  for (int j = 0; j < njobs; j++) over += job_over(run, j);
  if (over > 0) check_jobs(run);
  for (int i = 0; i < run->nops; i++)
    ops_over &= atomic_load_explicit(&run->ops[i].finished, memory_order_acquire);
  return (over == njobs && (ops_over || rt_comm_failed(comm))) || comm->gpu.lost;
}

static bool has_departed(const struct rt_connector *c) { return c && c->end->peer_left && c->end->peer_left(c); }

int rt_run_departed_peer(const struct rt_run *run) {
  for (int j = 0; j < run->plan->njobs; j++) {
    const struct rt_job *job = &run->plan->jobs[j];
    const struct rt_target *target = &run->targets[j];
    if (job_over(run, j)) continue;
    /* A kernel that has not begun may still find all that it needs. */
    for (int p = 0; p < RT_PEERS; p++) {
      const struct rt_connector *recv = job->recv[p].connector, *send = job->send[p].connector;
      if (has_departed(recv) && rt_observe(recv->conn.tail) < target->recv[p]) return recv->peer;
      if (has_departed(send) && rt_observe(send->conn.credit) < target->send[p]) return send->peer;
    }
  }
  return -1;
}

/* A plan of a graph that is gone may be freed by another thread as soon as it has no runs. */
void rt_run_retire(const struct rt_run *run) {
  struct ncclComm *comm = run->plan->comm;
  pthread_mutex_lock(&comm->gpu.lock);
  for (int j = 0; j < run->plan->njobs; j++) {
    const struct rt_job *job = &run->plan->jobs[j];
    for (int p = 0; p < RT_PEERS; p++) {
      if (job->recv[p].connector) job->recv[p].connector->runs--;
      if (job->send[p].connector) job->send[p].connector->runs--;
    }
  }
  atomic_fetch_sub(&run->plan->runs, 1);
  pthread_mutex_unlock(&comm->gpu.lock);
  if (comm->shares_process) rt_gate_kernel_end();
}

void rt_run_free(struct rt_run *run) {
  if (run->owns_plan) rt_plan_free(run->plan->comm, run->plan);
  free(run);
}
