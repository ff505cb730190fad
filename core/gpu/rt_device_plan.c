/* SPDX-License-Identifier: Apache-2.0
 * Fills in a plan for the device, and launches it on the user's streams, at once or as nodes of a graph. rt_enqueue.c
 * prepares it in the thread that makes plans ready, rt_group.c launches it in the thread that ends the group; a graph's
 * host node (begin_in_graph) runs in a thread of the driver. */
#include "core/gpu/rt_device_plan.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/gpu/rt_cuda.h"
#include "core/gpu/rt_graph.h"
#include "core/gpu/rt_launch.h"
#include "core/gpu/rt_launch_lock.h"
#include "core/gpu/rt_module.h"
#include "core/host/rt_device.h"
#include "core/plan/rt_enqueue.h"
#include "core/plan/rt_p2p_blocks.h"
#include "core/plan/rt_plan.h"

#define DEVICE_ADVICE "an earlier error on the device, or the program's use of the stream, may be the reason"
#define TRY_CUDA(call, name) RAIL_TRY(rt_cuda_check(rt_cuda()->call, name, DEVICE_ADVICE))

rail_result_t rt_device_plan_take_streams(struct rt_plan *plan, const struct rt_task *tasks, int n) {
  plan->streams = calloc((size_t)RAIL_MAX(n, 1), sizeof plan->streams[0]);
  if (!plan->streams) return RAIL_SYSTEM_ERROR;
  for (int i = 0; i < n; i++) {
    int s = 0;
    while (s < plan->nstreams && plan->streams[s] != tasks[i].stream) s++;
    if (s == plan->nstreams) plan->streams[plan->nstreams++] = tasks[i].stream;
  }
  return RAIL_OK;
}

/* ---- filling in --------------------------------------------------------------------- */

/* The latest job before j that uses the same connection; -1: none. */
static int job_before(const struct rt_plan *plan, int j, const struct rt_connector *c) {
  while (c && --j >= 0) {
    const struct rt_job_end *ends = c->is_send ? plan->jobs[j].send : plan->jobs[j].recv;
    for (int p = 0; p < plan->jobs[j].nlinks; p++)
      if (ends[p].connector == c) return j;
  }
  return -1;
}

static void fill_job(struct rt_plan *plan, int j) {
  struct rt_job *job = &plan->jobs[j];
  const struct rt_program *prog = &job->program;
  struct rt_device_job *d = &plan->launch->job[j];
  *d = (struct rt_device_job){
      .sched = prog->sched,
      .proto = (int)prog->proto,
      .type = job->type,
      .op = job->op,
      .scalar = prog->scalar,
      .deferred = job->scalar,
      .call = prog->call,
      .next = job->next,
  };
  for (int p = 0; p < job->nlinks; p++) {
    struct rt_connector *recv = job->recv[p].connector, *send = job->send[p].connector;
    d->recv[p] = recv ? &recv->conn : NULL;
    d->send[p] = send ? &send->conn : NULL;
    d->recv_after[p] = job_before(plan, j, recv);
    d->send_after[p] = job_before(plan, j, send);
  }
}

static rail_result_t map_connections(struct ncclComm *comm, const struct rt_job *job) {
  for (int p = 0; p < job->nlinks; p++) {
    if (job->recv[p].connector) RAIL_TRY(rt_gpu_map(comm, job->recv[p].connector));
    if (job->send[p].connector) RAIL_TRY(rt_gpu_map(comm, job->send[p].connector));
  }
  return RAIL_OK;
}

/* ---- blocks ---- */

static bool is_p2p(const struct rt_job *job) {
  const enum rt_coll coll = job->program.sched.coll;
  return coll == RT_SEND || coll == RT_RECV || coll == RT_COPY;
}

static struct rt_p2p_op op_of(const struct ncclComm *comm, const struct rt_job *jobs, int j) {
  const struct rt_connector *recv = jobs[j].recv[0].connector, *send = jobs[j].send[0].connector;
  const int behind = recv ? comm->rank - recv->peer : send ? send->peer - comm->rank : 0;
  return (struct rt_p2p_op){.distance = (behind + comm->nranks) % comm->nranks, .is_recv = recv != NULL, .job = j};
}

/* Collectives keep blocks of their own, and come first. Block j begins with job j, and the jobs of a connection keep
 * their order. */
static bool order_jobs(struct ncclComm *comm, struct rt_plan *plan, struct rt_job *jobs, struct rt_p2p_op *ops,
                       int np2p) {
  const int ncollectives = plan->njobs - np2p;
  memcpy(jobs, plan->jobs, (size_t)plan->njobs * sizeof *jobs);
  for (int j = 0, c = 0, p = 0; j < plan->njobs; j++) {
    if (is_p2p(&jobs[j]))
      ops[p++] = op_of(comm, jobs, j);
    else
      plan->jobs[c++] = jobs[j];
  }
  const int shared = rt_p2p_share_blocks(ops, np2p, RAIL_MAX(comm->gpu.wide_blocks - ncollectives, 2));
  for (int p = 0; p < np2p; p++) {
    struct rt_job *job = &plan->jobs[ncollectives + p];
    *job = jobs[ops[p].job];
    job->next = ops[p].next < 0 ? 0 : ncollectives + ops[p].next;
  }
  plan->nblocks = ncollectives + shared;
  return shared > 0;
}

/* More jobs than find room at once: blocks share the sends and receives. */
static rail_result_t share_blocks(struct ncclComm *comm, struct rt_plan *plan, int np2p) {
  struct rt_p2p_op *ops = calloc((size_t)np2p, sizeof *ops);
  struct rt_job *jobs = malloc((size_t)plan->njobs * sizeof *jobs);
  const bool good = ops && jobs && order_jobs(comm, plan, jobs, ops, np2p);
  if (!good) RAIL_WARN("rank %d: out of memory for %d operations", comm->rank, plan->njobs);
  free(ops);
  free(jobs);
  return good ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

/* Without sends and receives: block j runs the jobs j, j + n, j + 2n and so on. A job waits only for jobs before it and
 * for the same job of other ranks, so the first one that is not over can always run. */
static void chain_collectives(struct rt_plan *plan, int nblocks) {
  for (int j = 0; j + nblocks < plan->njobs; j++) plan->jobs[j].next = j + nblocks;
  plan->nblocks = nblocks;
}

static rail_result_t find_blocks(struct ncclComm *comm, struct rt_plan *plan) {
  int np2p = 0;
  for (int j = 0; j < plan->njobs; j++) np2p += is_p2p(&plan->jobs[j]);
  plan->nblocks = plan->njobs;
  if (np2p > 2 && plan->njobs > comm->gpu.wide_blocks) RAIL_TRY(share_blocks(comm, plan, np2p));
  if (np2p == 0 && plan->njobs > comm->gpu.most_blocks) chain_collectives(plan, comm->gpu.wide_blocks);
  if (plan->nblocks <= comm->gpu.most_blocks) return RAIL_OK;
  RAIL_WARN("rank %d: %d operations of one group are more than the %d that run side by side on CUDA device %d; make "
            "smaller groups, or lower RAIL_NCHANNELS if it is set",
            comm->rank, plan->nblocks, comm->gpu.most_blocks, comm->gpu.ordinal);
  return RAIL_BAD_USAGE;
}

rail_result_t rt_device_plan_prepare(struct ncclComm *comm, struct rt_plan *plan) {
  RAIL_TRY(find_blocks(comm, plan));
  RAIL_TRY(rt_gpu_launch_get(comm, plan->njobs, &plan->launch));
  plan->launch->nblocks = plan->nblocks;
  for (int j = 0; j < plan->njobs; j++) {
    RAIL_TRY(map_connections(comm, &plan->jobs[j]));
    rt_job_count(&plan->jobs[j]);
    fill_job(plan, j);
  }
  return RAIL_OK;
}

/* ---- one launch ------------------------------------------------------------------------- */

/* Before the kernel of each launch, by the thread that launches it or by the driver's in a graph: no call of the driver
 * is allowed here, and none waits. False: the communicator has failed; a kernel that follows ends by itself. */
static bool begin(struct rt_plan *plan) {
  struct ncclComm *comm = plan->comm;
  pthread_mutex_lock(&comm->gpu.lock);
  for (int j = 0; j < plan->njobs && plan->launch->run; j++)
    rt_launch_check_job(plan, j); /* of the last launch, before this one overwrites it */
  plan->launch->run++;
  pthread_mutex_unlock(&comm->gpu.lock);
  if (rt_comm_failed(comm)) return false;
  struct rt_launch *launch = rt_launch_new(plan);
  if (!launch) {
    rt_comm_fail(comm, RAIL_SYSTEM_ERROR, "out of memory for %d operations", plan->njobs);
    return false;
  }
  rt_launch_begin(launch);
  rt_queue_add_launch(&comm->queue, launch);
  return true;
}

static void begin_in_graph(void *arg) {
  struct rt_plan *plan = arg;
  if (!plan->dead) begin(plan);
}

/* Frees captured plans whose graphs are destroyed. */
static void drop_graphs(struct ncclComm *comm) {
  for (struct rt_plan **at = &comm->gpu.graphs; *at;) {
    struct rt_plan *plan = *at;
    if (rt_graph_destroyed(plan->graph) && atomic_load(&plan->launches) == 0) {
      *at = plan->next_graph;
      rt_plan_free(comm, plan);
    } else {
      at = &plan->next_graph;
    }
  }
}

void rt_device_plan_close(struct ncclComm *comm) {
  for (struct rt_plan *plan; (plan = comm->gpu.graphs);) {
    comm->gpu.graphs = plan->next_graph;
    rt_plan_free(comm, plan);
  }
}

bool rt_device_plan_graphs_alive(struct ncclComm *comm) {
  drop_graphs(comm);
  return comm->gpu.graphs != NULL;
}

/* ---- launching ------------------------------------------------------------------------ */

/* A launch under way. It has taken the streams out of the plan, which may be over and freed before the launch returns.
 * */
struct launching {
  struct ncclComm *comm;
  struct rt_plan *plan;
  void **streams;
  int nstreams;
  bool taken; /* the plan belongs to a launch, or to the communicator */
};

static rail_result_t launch_kernel(const struct launching *l) {
  const struct rt_gpu *gpu = &l->comm->gpu;
  const unsigned threads = l->plan->nblocks <= gpu->wide_blocks ? RT_DEVICE_THREADS : RT_DEVICE_FEW_THREADS;
  void *arguments[] = {&l->plan->launch};
  return rt_cuda_check(rt_cuda()->launch_kernel(rt_module_kernel(gpu->module), (unsigned)l->plan->nblocks, 1, 1,
                                                threads, 1, 1, 0, l->streams[0], arguments, NULL),
                       "cuLaunchKernel", DEVICE_ADVICE);
}

/* Not launched after all: the thread that waits for the launch sees it aborted. */
static void never_runs(struct rt_plan *plan) {
  for (int j = 0; j < plan->njobs; j++) {
    plan->launch->job[j].state = RT_DEVICE_ABORTED;
    rt_publish(&plan->launch->job[j].ran, plan->launch->run);
  }
}

/* `after` waits for what is on `before` now. */
static rail_result_t join(struct ncclComm *comm, void *before, void *after) {
  TRY_CUDA(event_record(comm->gpu.join, before), "cuEventRecord");
  TRY_CUDA(stream_wait(after, comm->gpu.join, 0), "cuStreamWaitEvent");
  return RAIL_OK;
}

static rail_result_t launch_now(struct launching *l) {
  struct rt_gpu *gpu = &l->comm->gpu;
  if (gpu->has_last) TRY_CUDA(stream_wait(l->streams[0], gpu->last, 0), "cuStreamWaitEvent");
  if (!begin(l->plan)) return RAIL_SYSTEM_ERROR;
  l->taken = true;
  rail_result_t r = launch_kernel(l);
  if (r != RAIL_OK) {
    rt_comm_fail(l->comm, r, "a kernel could not be launched; an earlier line says why");
    never_runs(l->plan);
    return r;
  }
  TRY_CUDA(event_record(gpu->last, l->streams[0]), "cuEventRecord");
  gpu->has_last = true;
  return RAIL_OK;
}

/* In every run of the graph the driver's thread calls begin_in_graph. */
static rail_result_t launch_in_graph(struct launching *l, uint64_t capture, void *graph) {
  struct rt_gpu *gpu = &l->comm->gpu;
  RAIL_TRY(rt_graph_retain(graph, &l->plan->graph));
  l->taken = l->plan->captured = true;
  l->plan->next_graph = gpu->graphs;
  gpu->graphs = l->plan;
  if (gpu->capture == capture) TRY_CUDA(stream_wait(l->streams[0], gpu->captured, 0), "cuStreamWaitEvent");
  TRY_CUDA(launch_host(l->streams[0], begin_in_graph, l->plan), "cuLaunchHostFunc");
  l->plan->dead = true;
  RAIL_TRY(launch_kernel(l));
  l->plan->dead = false;
  TRY_CUDA(event_record(gpu->captured, l->streams[0]), "cuEventRecord");
  gpu->capture = capture;
  return RAIL_OK;
}

static rail_result_t capture_is_void(const struct ncclComm *comm) {
  RAIL_WARN("rank %d: the stream of a call captures, and the capture was invalidated by an earlier call of the program",
            comm->rank);
  return RAIL_BAD_USAGE;
}

static rail_result_t launch(struct launching *l) {
  int status = RT_CU_CAPTURE_NONE;
  uint64_t capture = 0;
  void *graph = NULL;
  for (int s = 1; s < l->nstreams; s++) RAIL_TRY(join(l->comm, l->streams[s], l->streams[0]));
  TRY_CUDA(capture_info(l->streams[0], &status, &capture, &graph, NULL, NULL), "cuStreamGetCaptureInfo");
  if (status == RT_CU_CAPTURE_NONE)
    RAIL_TRY(launch_now(l));
  else if (status == RT_CU_CAPTURE_ACTIVE)
    RAIL_TRY(launch_in_graph(l, capture, graph));
  else
    RAIL_TRY(capture_is_void(l->comm));
  for (int s = 1; s < l->nstreams; s++) RAIL_TRY(join(l->comm, l->streams[0], l->streams[s]));
  return RAIL_OK;
}

rail_result_t rt_device_plan_launch(struct ncclComm *comm, struct rt_plan *plan) {
  struct launching l = {.comm = comm, .plan = plan, .streams = plan->streams, .nstreams = plan->nstreams};
  struct rt_cuda_scope scope;
  plan->streams = NULL;
  drop_graphs(comm);
  if (plan->waits_for_setups) rt_launch_lock_wait_for_setups(comm->peers[0].nonce, comm->collectives);
  if (comm->shares_process) rt_launch_lock_launch_begin();
  rail_result_t r = rt_cuda_enter(&scope, comm->gpu.context);
  if (r == RAIL_OK) r = launch(&l);
  rt_cuda_leave(&scope);
  if (comm->shares_process) rt_launch_lock_launch_end();
  if (r != RAIL_OK) {
    rt_comm_fail(comm, r, "an operation could not be put on its CUDA stream; an earlier line says why");
    r = (rail_result_t)atomic_load(&comm->failed);
  }
  if (!l.taken) rt_plan_free(comm, plan);
  free(l.streams);
  return r;
}
