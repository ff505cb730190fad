/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan/rt_job.h"

#include <stdlib.h>

#include "core/comm/rt_comm.h"
#include "core/gpu/rt_graph.h"

bool rt_job_proxied(const struct rt_job_end *e) { return e->connector && e->connector->end->progress; }

void rt_job_count(struct rt_job *job) {
  uint64_t nsend[RT_PEERS], nrecv[RT_PEERS];
  rt_program_count_steps(&job->program, nsend, nrecv);
  for (int p = 0; p < RT_PEERS; p++) {
    job->recv[p].steps = nrecv[p];
    job->send[p].steps = nsend[p];
  }
}

void rt_job_begin(struct rt_job *job) {
  if (job->scalar) rt_scalar_premul(&job->program.scalar, job->type, job->scalar);
  for (int p = 0; p < RT_PEERS; p++) {
    atomic_store_explicit(&job->send[p].op.finished, true, memory_order_relaxed);
    atomic_store_explicit(&job->recv[p].op.finished, true, memory_order_relaxed);
  }
}

void rt_job_submit(struct ncclComm *comm, struct rt_job *job, bool sends) {
  for (int p = 0; p < RT_PEERS; p++) {
    struct rt_job_end *e = sends ? &job->send[p] : &job->recv[p];
    if (!rt_job_proxied(e) || e->steps == 0) continue;
    e->op.connector = e->connector;
    e->op.proto = job->program.proto;
    e->op.nsteps = e->steps;
    rt_proxy_submit(&comm->proxy, &e->op);
  }
}

static bool ops_finished(struct rt_job *job) {
  for (int p = 0; p < RT_PEERS; p++)
    if (!atomic_load_explicit(&job->send[p].op.finished, memory_order_acquire) ||
        !atomic_load_explicit(&job->recv[p].op.finished, memory_order_acquire))
      return false;
  return true;
}

/* The rank at the other end. */
static int peer_at(const struct rt_job *job, const struct rt_conn *c) {
  for (int p = 0; p < RT_PEERS; p++)
    if (job->program.recv[p] == c) return job->recv[p].connector->peer;
  return -1;
}

bool rt_job_poll(struct ncclComm *comm, struct rt_job *job) {
  enum rt_program_state state = rt_program_poll(&job->program);
  if (state == RT_PROGRAM_MISMATCH)
    rt_comm_fail(comm, RAIL_BAD_USAGE, RT_MISMATCH_TEXT, comm->rank, (unsigned long long)job->program.got,
                 peer_at(job, job->program.blocked), (unsigned long long)job->program.expected);
  job->done = state == RT_PROGRAM_DONE && ops_finished(job);
  return state == RT_PROGRAM_PROGRESS || job->done;
}

void rt_plan_deregister(struct ncclComm *comm, struct rt_plan *plan) {
  for (int i = 0; i < plan->njobs; i++) {
    struct rt_job *job = &plan->jobs[i];
    for (int b = 0; b < 2; b++)
      if (job->send_mh[b]) job->send[0].connector->end->dereg(comm, job->send[0].connector, job->send_mh[b]);
    if (job->recv_mh) job->recv[0].connector->end->dereg(comm, job->recv[0].connector, job->recv_mh);
    job->send_mh[0] = job->send_mh[1] = job->recv_mh = NULL;
  }
}

void rt_plan_free(struct ncclComm *comm, struct rt_plan *plan) {
  rt_plan_deregister(comm, plan);
  rt_gpu_launch_put(comm, plan->launch);
  rt_graph_let_go(plan->hold);
  free(plan->streams);
  free(plan);
}
