/* SPDX-License-Identifier: Apache-2.0
 * A plan while it runs: its proxy operations begun, its jobs polled in turn, its stall described, its end. rt_queue.c
 * calls it, in the thread that runs the plan; rt_enqueue.c, which builds plans, allocates here. */
#include "core/plan/rt_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/gpu/rt_graph.h"

/* ---- starting ---- */

rail_result_t rt_job_allocate(struct ncclComm *comm, struct rt_job *job) {
  struct rt_sched *s = &job->program.sched;
  const uint64_t bytes = rt_sched_work(s);
  if (bytes == 0) return RAIL_OK;
  s->work = aligned_alloc(RAIL_CACHELINE, RAIL_ROUND_UP((size_t)bytes, (size_t)RAIL_CACHELINE));
  if (s->work) return RAIL_OK;
  RAIL_WARN("rank %d: out of memory for %llu bytes of blocks under way; NCCL_ALGO=^PAT does without", comm->rank,
            (unsigned long long)bytes);
  return RAIL_SYSTEM_ERROR;
}

bool rt_job_proxied(const struct rt_job_end *e) { return e->connector && e->connector->end->progress; }

void rt_job_count(struct rt_job *job) {
  uint64_t nsend[RT_LINKS], nrecv[RT_LINKS];
  rt_program_count_steps(&job->program, nsend, nrecv);
  for (int p = 0; p < job->nlinks; p++) {
    job->recv[p].steps = nrecv[p];
    job->send[p].steps = nsend[p];
  }
}

static void submit(struct ncclComm *comm, const struct rt_job *job, struct rt_job_end *ends) {
  for (int p = 0; p < job->nlinks; p++) {
    struct rt_job_end *e = &ends[p];
    if (!rt_job_proxied(e) || e->steps == 0) continue;
    e->op.connector = e->connector;
    e->op.proto = job->program.proto;
    e->op.nsteps = e->steps;
    rt_proxy_submit(&comm->proxy, &e->op);
  }
}

void rt_plan_begin(struct ncclComm *comm, struct rt_plan *plan) {
  for (int i = 0; i < plan->njobs; i++) {
    struct rt_job *job = &plan->jobs[i];
    bool proxied = false;
    union rt_scalar *scalar = job->is_small ? &job->small.call.scalar : &job->program.scalar;
    if (job->scalar) rt_scalar_premul(scalar, job->type, job->scalar);
    if (job->is_small) continue;
    if (job->number != RT_NO_NUMBER) rt_small_announce(&comm->small, job->number, job->program.call);
    for (int p = 0; p < job->nlinks; p++) {
      atomic_store_explicit(&job->send[p].op.finished, true, memory_order_relaxed);
      atomic_store_explicit(&job->recv[p].op.finished, true, memory_order_relaxed);
      proxied |= rt_job_proxied(&job->send[p]) || rt_job_proxied(&job->recv[p]);
    }
    if (!proxied) continue;
    rt_job_count(job);
    /* Receives first: posted early, they never delay the peer. */
    submit(comm, job, job->recv);
    submit(comm, job, job->send);
  }
}

/* ---- running ---- */

static bool ops_finished(struct rt_job *job) {
  for (int p = 0; p < job->nlinks; p++)
    if (!atomic_load_explicit(&job->send[p].op.finished, memory_order_acquire) ||
        !atomic_load_explicit(&job->recv[p].op.finished, memory_order_acquire))
      return false;
  return true;
}

static int peer_of(const struct rt_job *job, const struct rt_conn *c) {
  for (int p = 0; p < job->nlinks; p++)
    if (job->program.recv[p] == c) return job->recv[p].connector->peer;
  return -1;
}

static enum rt_program_state poll_program(struct ncclComm *comm, struct rt_job *job) {
  enum rt_program_state state = rt_program_poll(&job->program);
  if (state == RT_PROGRAM_MISMATCH)
    rt_comm_fail_mismatch(comm, peer_of(job, job->program.blocked), job->program.got, job->program.expected);
  return state == RT_PROGRAM_DONE && !ops_finished(job) ? RT_PROGRAM_WAIT : state;
}

/* `got`, `expected`: of rt_sched_call, which has the bytes above 4 bits. */
static void calls_differ(struct ncclComm *comm, int peer, uint64_t got, uint64_t expected) {
  rt_comm_fail_mismatch(comm, peer, got >> 4, expected >> 4);
}

static enum rt_program_state poll_small(struct ncclComm *comm, struct rt_small_op *op) {
  enum rt_program_state state = rt_small_poll(&comm->small, op);
  if (state == RT_PROGRAM_MISMATCH) calls_differ(comm, op->peer, op->got, op->call.id);
  return state;
}

int rt_plan_poll(struct ncclComm *comm, struct rt_plan *plan, bool *moved) {
  int left = 0;
  for (int i = 0; i < plan->njobs; i++) {
    struct rt_job *job = &plan->jobs[i];
    if (job->done) continue;
    enum rt_program_state state = job->is_small ? poll_small(comm, &job->small) : poll_program(comm, job);
    job->done = state == RT_PROGRAM_DONE;
    *moved |= state == RT_PROGRAM_PROGRESS || job->done;
    if (!job->done) left++;
    if (rt_comm_failed(comm)) break;
  }
  return left;
}

void rt_plan_compare(struct ncclComm *comm, struct rt_plan *plan) {
  for (int i = 0; i < plan->njobs; i++) {
    const struct rt_job *job = &plan->jobs[i];
    if (job->done || (!job->is_small && job->number == RT_NO_NUMBER)) continue;
    uint64_t id = 0;
    int peer = job->is_small ? rt_small_find_announced(&comm->small, job->small.number, &id)
                             : rt_small_find_published(&comm->small, job->number, &id);
    if (peer >= 0) calls_differ(comm, peer, id, job->is_small ? job->small.call.id : job->program.call);
  }
}

int rt_plan_departed_peer(struct ncclComm *comm, struct rt_plan *plan) {
  for (int i = 0; i < plan->njobs; i++) {
    struct rt_job *job = &plan->jobs[i];
    int departed = job->is_small && !job->done ? rt_small_awaited(&comm->small, &job->small, true) : -1;
    if (departed >= 0) return departed;
    for (int e = 0; e < 2 * job->nlinks; e++) {
      const struct rt_connector *c = e < job->nlinks ? job->send[e].connector : job->recv[e - job->nlinks].connector;
      if (job->done || !c || !c->end->peer_left || !c->end->peer_left(c)) continue;
      /* The peer's last steps are visible by now: poll for them once more. */
      if (rt_program_poll(&job->program) == RT_PROGRAM_WAIT && job->program.blocked == &c->conn) return c->peer;
    }
  }
  return -1;
}

/* ---- a plan that waits for long ---- */

static const char *const coll_names[RT_COLL_COUNT] = {
  [RT_ALLREDUCE] = "AllReduce (Ring)",
  [RT_REDUCE_SCATTER] = "ReduceScatter (Ring)",
  [RT_ALLGATHER] = "AllGather (Ring)",
  [RT_BROADCAST] = "Broadcast (Ring)",
  [RT_REDUCE] = "Reduce (Ring)",
  [RT_SEND] = "Send",
  [RT_RECV] = "Recv",
  [RT_COPY] = "copy",
  [RT_EXCHANGE] = "AllReduce (Exchange)",
  [RT_TREE] = "AllReduce (Tree)",
  [RT_PAT_ALLGATHER] = "AllGather (PAT)",
  [RT_PAT_REDUCE_SCATTER] = "ReduceScatter (PAT)",
  [RT_PAT_BROADCAST] = "Broadcast (PAT)",
  [RT_PAT_REDUCE] = "Reduce (PAT)",
};

/* The end whose peer, or proxy, a job waits for; NULL: an earlier call has to finish with a connection. */
static const struct rt_job_end *awaited_end(const struct rt_job *job) {
  const struct rt_program *prog = &job->program;
  for (int i = 0; i < 2 * job->nlinks; i++) {
    const struct rt_job_end *e = i < job->nlinks ? &job->recv[i] : &job->send[i - job->nlinks];
    if (!e->connector) continue;
    if (prog->phase >= RT_PHASE_DRAIN ? !atomic_load(&e->op.finished) : &e->connector->conn == prog->blocked) return e;
  }
  return NULL;
}

void rt_job_wait_text(const struct rt_connector *c, uint64_t step, uint64_t nsteps, char *text, size_t size) {
  snprintf(text, size, "for rank %d%s (%s, channel %d), in step %llu of %llu", c->peer,
           c->is_send ? " to receive" : "", c->transport->name, c->channel,
           (unsigned long long)RAIL_MIN(step + 1, nsteps), (unsigned long long)nsteps);
}

static void describe_wait(const struct ncclComm *comm, const struct rt_job *job, char text[RT_WAIT_TEXT]) {
  const struct rt_job_end *e = job->is_small ? NULL : awaited_end(job);
  const int rank = job->is_small ? rt_small_awaited(&comm->small, &job->small, false) : -1;
  if (e)
    rt_job_wait_text(e->connector, job->program.i, job->program.n, text, RT_WAIT_TEXT);
  else if (rank >= 0)
    snprintf(text, RT_WAIT_TEXT, "for rank %d, which has not made that call", rank);
  else
    snprintf(text, RT_WAIT_TEXT, "for an earlier call");
}

void rt_plan_report_stall(const struct ncclComm *comm, const struct rt_plan *plan, uint64_t ms) {
  const struct rt_job *job = NULL;
  char wait[RT_WAIT_TEXT];
  for (int i = 0; i < plan->njobs && !job; i++)
    if (!plan->jobs[i].done) job = &plan->jobs[i];
  if (!job) return;
  describe_wait(comm, job, wait);
  rt_job_report_stall(comm, job, ms, wait);
}

void rt_job_report_stall(const struct ncclComm *comm, const struct rt_job *job, uint64_t ms, const char *wait) {
  char which[80] = "";
  const uint64_t number = job->is_small ? job->small.number : job->number;
  const uint64_t call = job->is_small ? job->small.call.id : job->program.call;
  const enum rt_coll coll = job->is_small ? job->small.call.coll : job->program.sched.coll;
  if (number != RT_NO_NUMBER) snprintf(which, sizeof which, ", collective %llu,", (unsigned long long)number);
  RAIL_WARN("rank %d of %d: %s of %llu bytes%s has not moved for %.1f s: it waits %s. Do all ranks make the same "
            "calls, with the same counts?",
            comm->rank, comm->nranks, coll_names[coll], (unsigned long long)(call >> 4), which, (double)ms / 1000,
            wait);
}

/* ---- memory and ending ---- */

/* The largest plan whose memory a communicator keeps: about 40 operations. */
#define SPARE_PLAN_MAX (64u * 1024)

void rt_plan_deregister(struct ncclComm *comm, struct rt_plan *plan) {
  for (int i = 0; i < plan->njobs; i++) {
    struct rt_job *job = &plan->jobs[i];
    for (int b = 0; b < 2; b++)
      if (job->send_mh[b]) job->send[0].connector->end->dereg(comm, job->send[0].connector, job->send_mh[b]);
    if (job->recv_mh) job->recv[0].connector->end->dereg(comm, job->recv[0].connector, job->recv_mh);
    job->send_mh[0] = job->send_mh[1] = job->recv_mh = NULL;
  }
}

struct rt_plan *rt_plan_alloc(struct ncclComm *comm, int jobs, int ends) {
  const size_t each = sizeof(struct rt_job_end) + sizeof(struct rt_connector *);
  size_t size = sizeof(struct rt_plan) + (size_t)jobs * sizeof(struct rt_job) + (size_t)ends * each;
  struct rt_plan *plan = atomic_exchange(&comm->spare_plan, NULL);
  if (plan && size <= plan->size) {
    const size_t kept = plan->size;
    memset(plan, 0, size);
    size = kept;
  } else {
    free(plan);
    plan = calloc(1, size);
  }
  if (!plan) return NULL;
  plan->size = size;
  plan->comm = comm;
  plan->ends = (struct rt_job_end *)(void *)&plan->jobs[jobs];
  plan->connectors = (struct rt_connector **)(void *)&plan->ends[ends];
  return plan;
}

void rt_plan_free(struct ncclComm *comm, struct rt_plan *plan) {
  rt_plan_deregister(comm, plan);
  rt_gpu_launch_put(comm, plan->launch);
  rt_graph_release(plan->graph);
  for (int i = 0; i < plan->njobs; i++) free(plan->jobs[i].program.sched.work);
  free(plan->streams);
  if (plan->size <= SPARE_PLAN_MAX) plan = atomic_exchange(&comm->spare_plan, plan);
  free(plan);
}
