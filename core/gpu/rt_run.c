/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gpu/rt_run.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "core/host/rt_device.h"
#include "core/comm/rt_comm.h"
#include "core/gpu/rt_cuda.h"
#include "core/gpu/rt_gate.h"
#include "core/gpu/rt_graph.h"
#include "core/plan/rt_job.h"
#include "core/gpu/rt_module.h"

#define DEVICE_ADVICE "an earlier error on the device, or the program's use of the stream, may be the reason"
#define TRY_CUDA(call, name) RAIL_TRY(rt_cuda_check(rt_cuda()->call, name, DEVICE_ADVICE))

/* ---- filling in --------------------------------------------------------------------- */

/* The latest job before j that uses the same connection. */
static int job_before(const struct rt_plan *plan, int j, const struct rt_connector *c) {
  while (c && --j >= 0) {
    const struct rt_job_end *ends = c->is_send ? plan->jobs[j].send : plan->jobs[j].recv;
    for (int p = 0; p < RT_PEERS; p++)
      if (ends[p].connector == c) return j;
  }
  return -1;
}

/* What a launch has of a plan's job. */
static struct rt_device_job *place_of(const struct rt_plan *plan, int j) {
  return &plan->launch->job[plan->jobs[j].slot];
}

/* The place of the job that must have left the connection before job j; -1: none. The host's own have turns. */
static int place_before(const struct rt_plan *plan, int j, const struct rt_connector *c) {
  int before = job_before(plan, j, c);
  return before < 0 || !(plan->jobs[j].on_device || plan->jobs[before].on_device) ? -1 : plan->jobs[before].slot;
}

static void fill_order(struct rt_plan *plan, int j) {
  struct rt_device_job *d = place_of(plan, j);
  for (int p = 0; p < RT_PEERS; p++) {
    d->recv_after[p] = place_before(plan, j, plan->jobs[j].recv[p].connector);
    d->send_after[p] = place_before(plan, j, plan->jobs[j].send[p].connector);
  }
}

static void fill_job(struct rt_plan *plan, int j) {
  struct rt_job *job = &plan->jobs[j];
  const struct rt_program *k = &job->program;
  struct rt_device_job *d = place_of(plan, j);
  *d = (struct rt_device_job){
      .sched = k->sched,
      .proto = (int)k->proto,
      .type = job->type,
      .op = job->op,
      .scalar = k->scalar,
      .deferred = job->scalar,
      .call = k->call,
  };
  for (int p = 0; p < RT_PEERS; p++) {
    struct rt_connector *recv = job->recv[p].connector, *send = job->send[p].connector;
    d->recv[p] = recv ? &recv->conn : NULL;
    d->send[p] = send ? &send->conn : NULL;
  }
}

/* From now on the device's kernels may use the connection. */
static rail_result_t reach(struct ncclComm *comm, struct rt_connector *c) {
  RAIL_TRY(rt_gpu_map(comm, c));
  if (c->end->add_device_slots) c->end->add_device_slots(comm, c);
  return RAIL_OK;
}

static rail_result_t reach_all(struct ncclComm *comm, const struct rt_job *job) {
  for (int p = 0; p < RT_PEERS; p++) {
    if (job->recv[p].connector) RAIL_TRY(reach(comm, job->recv[p].connector));
    if (job->send[p].connector) RAIL_TRY(reach(comm, job->send[p].connector));
  }
  return RAIL_OK;
}

/* Block i runs job i of the launch: the device's come first there. */
static void find_places(struct rt_plan *plan) {
  int blocks = 0, others = 0;
  for (int j = 0; j < plan->njobs; j++) blocks += plan->jobs[j].on_device;
  plan->nblocks = blocks;
  for (int j = 0, block = 0; j < plan->njobs; j++)
    plan->jobs[j].slot = plan->jobs[j].on_device ? block++ : blocks + others++;
}

rail_result_t rt_run_prepare(struct ncclComm *comm, struct rt_plan *plan) {
  find_places(plan);
  RAIL_TRY(rt_gpu_open(comm));
  if (plan->nblocks > comm->gpu.most_blocks) {
    RAIL_WARN("rank %d: %d operations of one group are more than the %d that run side by side on CUDA device %d; make "
              "smaller groups, or lower RAIL_NCHANNELS if it is set",
              comm->rank, plan->nblocks, comm->gpu.most_blocks, comm->gpu.ordinal);
    return RAIL_BAD_USAGE;
  }
  RAIL_TRY(rt_gpu_launch_get(comm, plan->nblocks, plan->njobs - plan->nblocks, &plan->launch));
  for (int j = 0; j < plan->njobs; j++) {
    if (plan->jobs[j].on_device) {
      RAIL_TRY(reach_all(comm, &plan->jobs[j]));
      fill_job(plan, j);
    }
    rt_job_count(&plan->jobs[j]);
    fill_order(plan, j);
  }
  return RAIL_OK;
}

/* ---- one run ------------------------------------------------------------------------- */

/* The run has the operations of the device's jobs; the host's, which run once, have their own. */
static bool has_op(const struct rt_job *job, const struct rt_job_end *e) {
  return job->on_device && rt_job_proxied(e) && e->steps;
}

static void submit_op(struct rt_run *run, const struct rt_job *job, const struct rt_job_end *e) {
  if (!has_op(job, e)) return;
  struct rt_proxy_op *op = &run->ops[run->nops++];
  op->connector = e->connector;
  op->proto = job->program.proto;
  op->nsteps = e->steps;
  op->on_device = true;
  rt_proxy_submit(&run->plan->comm->proxy, op);
}

static bool job_over(const struct rt_run *run, int j) {
  return rt_observe(&place_of(run->plan, j)->ran) >= run->number;
}

/* A job that found out that the calls differ ends with that. */
static void look_at_job(struct ncclComm *comm, const struct rt_plan *plan, int j) {
  const struct rt_device_job *d = place_of(plan, j);
  if (d->state != RT_DEVICE_MISMATCH) return;
  rt_comm_fail(comm, RAIL_BAD_USAGE, RT_MISMATCH_TEXT, comm->rank, (unsigned long long)d->got,
               plan->jobs[j].recv[d->from].connector->peer, (unsigned long long)d->expected);
}

/* NULL without memory. */
static struct rt_run *new_run(struct rt_plan *plan) {
  size_t nops = 0;
  for (int j = 0; j < plan->njobs; j++) {
    const struct rt_job *job = &plan->jobs[j];
    for (int p = 0; p < RT_PEERS; p++) nops += (size_t)has_op(job, &job->recv[p]) + (size_t)has_op(job, &job->send[p]);
  }
  struct rt_run *run = NULL;
  run = calloc(1, sizeof *run + nops * sizeof run->ops[0] + (size_t)plan->njobs * sizeof run->targets[0]);
  if (!run) return NULL;
  run->plan = plan;
  run->owns_plan = !plan->captured;
  run->number = plan->launch->run;
  run->host_left = plan->njobs - plan->nblocks;
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
  if (comm->shares_process) rt_gate_ran();
}

static void submit_job(struct rt_run *run, int j, bool sends) {
  struct rt_job *job = &run->plan->jobs[j];
  if (!job->on_device) rt_job_submit(run->plan->comm, job, sends);
  for (int p = 0; p < RT_PEERS; p++) submit_op(run, job, sends ? &job->send[p] : &job->recv[p]);
}

/* On every connection in the plan's order. */
static void submit_ops(struct rt_run *run) {
  for (int j = 0; j < run->plan->njobs; j++)
    if (!run->plan->jobs[j].on_device) rt_job_begin(&run->plan->jobs[j]);
  /* Receives first: a rank that posts early is never what others wait for. */
  for (int j = 0; j < run->plan->njobs; j++) submit_job(run, j, false);
  for (int j = 0; j < run->plan->njobs; j++) submit_job(run, j, true);
}

/* Before the kernel of each run, by the thread that launches it or by the driver's in a graph: no call of the driver is
 * allowed here, and none waits. False: the communicator has failed; a kernel that follows ends by itself. */
static bool begin(struct rt_plan *plan) {
  struct ncclComm *comm = plan->comm;
  pthread_mutex_lock(&comm->gpu.lock);
  for (int j = 0; j < plan->njobs && plan->launch->run; j++)
    look_at_job(comm, plan, j); /* of the last run, before this one overwrites it */
  plan->launch->run++;
  pthread_mutex_unlock(&comm->gpu.lock);
  if (rt_comm_failed(comm)) return false;
  struct rt_run *run = new_run(plan);
  if (!run) {
    rt_comm_fail(comm, RAIL_SYSTEM_ERROR, "out of memory for %d operations", plan->njobs);
    return false;
  }
  set_targets(run);
  if (comm->shares_process) rt_gate_run();
  submit_ops(run);
  rt_queue_add_run(&comm->queue, run);
  return true;
}

static void begin_in_graph(void *arg) {
  struct rt_plan *plan = arg;
  if (!plan->dead) begin(plan);
}

/* A run that has begun since then has looked for itself, and its kernel may be writing. */
static void look_at_jobs(struct ncclComm *comm, const struct rt_run *run) {
  pthread_mutex_lock(&comm->gpu.lock);
  for (int j = 0; j < run->plan->njobs && run->plan->launch->run == run->number; j++)
    if (job_over(run, j)) look_at_job(comm, run->plan, j);
  pthread_mutex_unlock(&comm->gpu.lock);
}

/* ---- the host's jobs of a run ---- */

/* Have the blocks before it left the job's connections? A block that ended badly has left them to nobody: the
 * communicator fails. */
static bool has_turn(const struct rt_run *run, int j) {
  const struct rt_device_launch *launch = run->plan->launch;
  const struct rt_device_job *d = place_of(run->plan, j);
  for (int p = 0; p < RT_PEERS; p++) {
    const int after[] = {d->recv_after[p], d->send_after[p]};
    for (int i = 0; i < 2; i++)
      if (after[i] >= 0 && (rt_observe(&launch->job[after[i]].ran) < run->number ||
                            launch->job[after[i]].state != RT_DEVICE_DONE))
        return false;
  }
  return true;
}

static void end_host_job(struct rt_run *run, int j, enum rt_device_state state) {
  struct rt_device_job *d = place_of(run->plan, j);
  d->state = state;
  rt_publish(&d->ran, run->number); /* a block may wait for it */
  run->host_left--;
}

bool rt_run_move(struct ncclComm *comm, struct rt_run *run) {
  bool moved = false;
  for (int j = 0; j < run->plan->njobs; j++) {
    struct rt_job *job = &run->plan->jobs[j];
    if (job->on_device || job_over(run, j)) continue;
    if (!rt_comm_failed(comm) && has_turn(run, j)) moved |= rt_job_poll(comm, job);
    if (job->done || rt_comm_failed(comm)) end_host_job(run, j, job->done ? RT_DEVICE_DONE : RT_DEVICE_ABORTED);
  }
  return moved;
}

bool rt_run_over(struct ncclComm *comm, struct rt_run *run) {
  int njobs = run->plan->njobs, over = 0;
  bool ops_over = true;
  for (int j = 0; j < njobs; j++) over += job_over(run, j);
  if (over > 0) look_at_jobs(comm, run);
  for (int i = 0; i < run->nops; i++)
    ops_over &= atomic_load_explicit(&run->ops[i].finished, memory_order_acquire);
  return (over == njobs && (ops_over || rt_comm_failed(comm))) || comm->gpu.lost;
}

static bool gone(const struct rt_connector *c) { return c && c->end->peer_left && c->end->peer_left(c); }

const struct rt_connector *rt_run_waits_for_nobody(const struct rt_run *run) {
  for (int j = 0; j < run->plan->njobs; j++) {
    const struct rt_job *job = &run->plan->jobs[j];
    const struct rt_target *target = &run->targets[j];
    if (job_over(run, j)) continue;
    /* A kernel that has not begun may still find all that it needs. */
    for (int p = 0; p < RT_PEERS; p++) {
      const struct rt_connector *recv = job->recv[p].connector, *send = job->send[p].connector;
      if (gone(recv) && rt_observe(recv->conn.tail) < target->recv[p]) return recv;
      if (gone(send) && rt_observe(send->conn.credit) < target->send[p]) return send;
    }
  }
  return NULL;
}

void rt_run_free(struct ncclComm *comm, struct rt_run *run) {
  if (run->owns_plan) rt_plan_free(comm, run->plan);
  free(run);
}

/* Captured plans of graphs that are gone. */
static void drop_graphs(struct ncclComm *comm) {
  for (struct rt_plan **at = &comm->gpu.graphs; *at;) {
    struct rt_plan *plan = *at;
    if (rt_graph_gone(plan->hold) && atomic_load(&plan->runs) == 0) {
      *at = plan->next;
      rt_plan_free(comm, plan);
    } else {
      at = &plan->next;
    }
  }
}

void rt_run_close(struct ncclComm *comm) {
  for (struct rt_plan *plan; (plan = comm->gpu.graphs);) {
    comm->gpu.graphs = plan->next;
    rt_plan_free(comm, plan);
  }
}

bool rt_run_graphs_alive(struct ncclComm *comm) {
  drop_graphs(comm);
  return comm->gpu.graphs != NULL;
}

/* ---- launching ------------------------------------------------------------------------ */

/* What is left to do for a plan once its streams are taken out of it: it may be over, and gone, before that. */
struct launching {
  struct ncclComm *comm;
  struct rt_plan *plan;
  void **streams;
  int nstreams;
  bool taken; /* the plan is a run's or the communicator's by now */
};

static rail_result_t launch_kernel(const struct launching *l) {
  const struct rt_gpu *gpu = &l->comm->gpu;
  const unsigned threads = l->plan->nblocks <= gpu->wide_blocks ? RT_DEVICE_THREADS : RT_DEVICE_FEW_THREADS;
  void *arguments[] = {&l->plan->launch};
  return rt_cuda_check(rt_cuda()->launch_kernel(rt_module_kernel(gpu->module), (unsigned)l->plan->nblocks, 1, 1,
                                                threads, 1, 1, 0, l->streams[0], arguments, NULL),
                       "cuLaunchKernel", DEVICE_ADVICE);
}

/* Not launched after all: for those who wait for it, it was aborted. Who attends ends the host's jobs. */
static void never_runs(struct rt_plan *plan) {
  for (int j = 0; j < plan->nblocks; j++) {
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

/* The driver's thread comes back to the plan in every run of the graph. */
static rail_result_t launch_in_graph(struct launching *l, uint64_t capture, void *graph) {
  struct rt_gpu *gpu = &l->comm->gpu;
  if (rt_plan_is_shared(l->plan)) {
    RAIL_WARN("rank %d: a group is captured in which some calls have buffers in the host's memory: only a device's "
              "calls can become part of a graph; make the others outside of the capture",
              l->comm->rank);
    return RAIL_BAD_USAGE;
  }
  RAIL_TRY(rt_graph_hold(graph, &l->plan->hold));
  l->taken = l->plan->captured = true;
  l->plan->next = gpu->graphs;
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

static rail_result_t launch_plan(struct ncclComm *comm, struct rt_plan *plan) {
  struct launching l = {.comm = comm, .plan = plan, .streams = plan->streams, .nstreams = plan->nstreams};
  struct rt_cuda_scope scope;
  plan->streams = NULL;
  drop_graphs(comm);
  rt_queue_wait_host(&comm->queue);
  if (plan->waits_at_gate) rt_gate_wait_for_makers(comm->peers[0].nonce, comm->collectives);
  if (comm->shares_process) rt_gate_wait_for_closers();
  rail_result_t r = rt_cuda_enter(&scope, comm->gpu.context);
  if (r == RAIL_OK) r = launch(&l);
  rt_cuda_leave(&scope);
  if (r != RAIL_OK) {
    rt_comm_fail(comm, r, "an operation could not be put on its CUDA stream; an earlier line says why");
    r = (rail_result_t)atomic_load(&comm->failed);
  }
  if (!l.taken) rt_plan_free(comm, plan);
  free(l.streams);
  return r;
}

rail_result_t rt_run_launch(struct ncclComm *comm, struct rt_plan *plans) {
  rail_result_t r = RAIL_OK;
  for (struct rt_plan *next; plans; plans = next) {
    next = plans->next;
    if (r == RAIL_OK)
      r = launch_plan(comm, plans);
    else
      rt_plan_free(comm, plans);
  }
  return r;
}
