/* SPDX-License-Identifier: Apache-2.0 */
#include "core/rt_run.h"

#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "core/kernel/rt_device.h"
#include "core/rt_comm.h"
#include "core/rt_cuda.h"
#include "core/rt_graph.h"

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

static void fill_job(struct rt_plan *plan, int j) {
  struct rt_job *job = &plan->jobs[j];
  const struct rt_kernel *k = &job->kernel;
  struct rt_device_job *d = &plan->launch->job[j];
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
    d->recv_after[p] = job_before(plan, j, recv);
    d->send_after[p] = job_before(plan, j, send);
  }
}

/* From now on the device's kernels may use the connection. */
static rail_result_t reach(struct ncclComm *comm, struct rt_connector *c) {
  RAIL_TRY(rt_gpu_map(comm, c));
  if (c->end->add_device_slots) c->end->add_device_slots(comm, c);
  return RAIL_OK;
}

/* The job's connections reach the device, and how far it will move them is known. */
static rail_result_t prepare_ends(struct ncclComm *comm, struct rt_job *job) {
  uint64_t nsend[RT_PEERS], nrecv[RT_PEERS];
  rt_kernel_count_steps(&job->kernel, nsend, nrecv);
  for (int p = 0; p < RT_PEERS; p++) {
    if (job->recv[p].connector) RAIL_TRY(reach(comm, job->recv[p].connector));
    if (job->send[p].connector) RAIL_TRY(reach(comm, job->send[p].connector));
    job->recv[p].steps = nrecv[p];
    job->send[p].steps = nsend[p];
  }
  return RAIL_OK;
}

rail_result_t rt_run_prepare(struct ncclComm *comm, struct rt_plan *plan) {
  RAIL_TRY(rt_gpu_open(comm));
  if (plan->njobs > comm->gpu.most_blocks) {
    RAIL_WARN("rank %d: %d operations of one group are more than the %d that run side by side on CUDA device %d; make "
              "smaller groups",
              comm->rank, plan->njobs, comm->gpu.most_blocks, comm->gpu.ordinal);
    return RAIL_BAD_USAGE;
  }
  RAIL_TRY(rt_gpu_launch_get(comm, plan->njobs, &plan->launch));
  for (int j = 0; j < plan->njobs; j++) {
    RAIL_TRY(prepare_ends(comm, &plan->jobs[j]));
    fill_job(plan, j);
  }
  return RAIL_OK;
}

/* ---- one run ------------------------------------------------------------------------- */

static bool proxied(const struct rt_job_end *e) { return e->connector && e->connector->end->progress && e->steps; }

static void add_op(struct rt_run *run, const struct rt_job *job, const struct rt_job_end *e) {
  if (!proxied(e)) return;
  struct rt_proxy_op *op = &run->ops[run->nops++];
  op->connector = e->connector;
  op->proto = job->kernel.proto;
  op->nsteps = e->steps;
  op->on_device = true;
}

static bool job_over(const struct rt_run *run, int j) {
  return rt_observe(&run->plan->launch->job[j].ran) >= run->number;
}

/* A job that found out that the calls differ ends with that. */
static void look_at_job(struct ncclComm *comm, const struct rt_plan *plan, int j) {
  const struct rt_device_job *d = &plan->launch->job[j];
  if (d->state != RT_DEVICE_MISMATCH) return;
  rt_comm_fail(comm, RAIL_BAD_USAGE, RT_MISMATCH_TEXT, comm->rank, (unsigned long long)d->got,
               plan->jobs[j].recv[d->from].connector->peer, (unsigned long long)d->expected);
}

/* NULL without memory. */
static struct rt_run *new_run(struct rt_plan *plan) {
  size_t nops = 0;
  for (int j = 0; j < plan->njobs; j++) {
    const struct rt_job *job = &plan->jobs[j];
    for (int p = 0; p < RT_PEERS; p++) nops += (size_t)proxied(&job->recv[p]) + (size_t)proxied(&job->send[p]);
  }
  struct rt_run *run = NULL;
  run = calloc(1, sizeof *run + nops * sizeof run->ops[0] + (size_t)plan->njobs * sizeof run->targets[0]);
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

void rt_run_retire(const struct rt_run *run) {
  pthread_mutex_lock(&run->plan->comm->gpu.lock);
  for (int j = 0; j < run->plan->njobs; j++) {
    const struct rt_job *job = &run->plan->jobs[j];
    for (int p = 0; p < RT_PEERS; p++) {
      if (job->recv[p].connector) job->recv[p].connector->runs--;
      if (job->send[p].connector) job->send[p].connector->runs--;
    }
  }
  atomic_fetch_sub(&run->plan->runs, 1);
  pthread_mutex_unlock(&run->plan->comm->gpu.lock);
}

static void submit_ops(struct rt_run *run) {
  struct rt_plan *plan = run->plan;
  /* Receives first: a rank that posts early is never what others wait for. */
  for (int j = 0; j < plan->njobs; j++)
    for (int p = 0; p < RT_PEERS; p++) add_op(run, &plan->jobs[j], &plan->jobs[j].recv[p]);
  for (int j = 0; j < plan->njobs; j++)
    for (int p = 0; p < RT_PEERS; p++) add_op(run, &plan->jobs[j], &plan->jobs[j].send[p]);
  for (int i = 0; i < run->nops; i++) rt_proxy_submit(&plan->comm->proxy, &run->ops[i]);
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
  submit_ops(run);
  rt_stream_add_run(&comm->stream, run);
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
  const unsigned threads = l->plan->njobs <= gpu->wide_blocks ? RT_DEVICE_THREADS : RT_DEVICE_FEW_THREADS;
  void *arguments[] = {&l->plan->launch};
  return rt_cuda_check(rt_cuda()->launch_kernel(gpu->kernel, (unsigned)l->plan->njobs, 1, 1, threads, 1, 1, 0,
                                                l->streams[0], arguments, NULL),
                       "cuLaunchKernel", DEVICE_ADVICE);
}

/* Not launched after all: for those who wait for it, it was aborted. */
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

/* The driver's thread comes back to the plan in every run of the graph. */
static rail_result_t launch_in_graph(struct launching *l, uint64_t capture, void *graph) {
  struct rt_gpu *gpu = &l->comm->gpu;
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

rail_result_t rt_run_launch(struct ncclComm *comm, struct rt_plan *plan) {
  struct launching l = {.comm = comm, .plan = plan, .streams = plan->streams, .nstreams = plan->nstreams};
  struct rt_cuda_scope scope;
  plan->streams = NULL;
  drop_graphs(comm);
  rt_stream_wait_host(&comm->stream);
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
