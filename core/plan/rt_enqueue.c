/* SPDX-License-Identifier: Apache-2.0
 * From tasks to plans: algorithm and protocol, jobs, connectors, registrations. */
#include "core/plan/rt_enqueue.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/bootstrap/rt_boot_wire.h"
#include "core/comm/rt_error.h"
#include "core/comm/rt_param.h"
#include "core/comm/rt_reg.h"
#include "core/gpu/rt_device_plan.h"
#include "core/gpu/rt_launch_lock.h"
#include "core/host/rt_types.h"
#include "core/plan/rt_plan.h"
#include "core/plan/rt_tune.h"

_Static_assert(RT_BOOT_MAX_RANKS <= 1 << RT_LINKS, "a host's schedule has a connection for each power of two");

/* A group's plan under construction. */
struct builder {
  struct ncclComm *comm;
  struct rt_plan *plan;
  int nends; /* of the plan's that jobs have */
  int ncollectives; /* among the tasks */
  uint64_t calls_before; /* the communicator's collectives with data before these */
};

static bool is_reduction(const struct rt_task *t) {
  return t->coll == RT_ALLREDUCE || t->coll == RT_REDUCE_SCATTER || t->coll == RT_REDUCE;
}

static bool is_p2p(const struct rt_task *t) { return t->coll == RT_SEND || t->coll == RT_RECV; }

/* ---- operators ---------------------------------------------------------------------- */

/* What the call reduces with, enum rt_redop. */
static int operator_of(const struct rt_task *t) { return t->op < ncclNumOps ? (int)t->op : RT_PREMULSUM; }

static rail_result_t set_operator(struct rt_job *job, const struct rt_task *t) {
  struct ncclComm *comm = t->comm;
  struct rt_program *prog = &job->program;
  job->op = operator_of(t);
  if (t->op < ncclNumOps) {
    prog->fns = rt_reduce_lookup((int)t->type, (int)t->op);
    if (t->op == ncclAvg) rt_scalar_avg(&prog->scalar, (int)t->type, comm->nranks);
    return prog->fns ? RAIL_OK : RAIL_BAD_ARGUMENT;
  }
  const struct rt_premul *m = &t->premul;
  prog->fns = rt_reduce_lookup((int)t->type, RT_PREMULSUM);
  if (!prog->fns) return RAIL_BAD_ARGUMENT;
  if (m->deferred)
    job->scalar = m->scalar;
  else
    rt_scalar_premul(&prog->scalar, (int)t->type, m->value);
  return RAIL_OK;
}

/* ---- jobs ------------------------------------------------------------------------------- */

/* A job's connector; one that is not connected yet is put in the plan's list. `schedule`: the job's. */
static rail_result_t add_connector(struct builder *b, uint32_t schedule, int channel, int peer, bool is_send,
                                   struct rt_job_end *out) {
  struct rt_connector *c = rt_comm_connector(b->comm, channel, peer, is_send);
  if (!c) return RAIL_SYSTEM_ERROR;
  out->connector = c;
  if (c->connected) return RAIL_OK;
  for (int i = 0; i < b->plan->nconnectors; i++)
    if (b->plan->connectors[i] == c) return RAIL_OK;
  c->schedule = schedule;
  b->plan->connectors[b->plan->nconnectors++] = c;
  return RAIL_OK;
}

/* Connectors both ways to all neighbours in the tree. Its nodes are ring indices, so that ranks of a host are
 * neighbours as far as possible. All ranks connect in the same call, the first one that uses the tree. */
static rail_result_t add_tree_connectors(struct builder *b, int channel, int tree, struct rt_job *job) {
  struct ncclComm *comm = b->comm;
  const struct rt_tree node = rt_tree_of(tree, comm->ring.index, comm->nranks);
  const int peers[] = {[RT_CHILD] = node.child[0], [RT_OTHER_CHILD] = node.child[1], [RT_PARENT] = node.parent};
  job->program.sched.tree = (struct rt_tree_node){.children = (uint8_t)((node.child[0] >= 0) + (node.child[1] >= 0)),
                                                  .has_parent = node.parent >= 0,
                                                  .depth = (uint16_t)node.depth};
  for (int p = 0; p < job->nlinks; p++) {
    if (peers[p] < 0) continue;
    const int peer = rt_ring_rank_at(comm, peers[p]), tree_channel = tree * comm->nchannels + channel;
    RAIL_TRY(add_connector(b, RT_TREE, tree_channel, peer, false, &job->recv[p]));
    RAIL_TRY(add_connector(b, RT_TREE, tree_channel, peer, true, &job->send[p]));
  }
  return RAIL_OK;
}

/* The connectors that the schedule of a ring, or of a send or receive, uses: it receives `from` and sends `to`. */
static rail_result_t add_connectors(struct builder *b, const struct rt_task *t, uint32_t schedule, int channel,
                                    struct rt_job_end *from, struct rt_job_end *to) {
  struct ncclComm *comm = b->comm;
  int n = comm->nranks, index = comm->ring.index;
  int next = rt_ring_rank_at(comm, index + 1), prev = rt_ring_rank_at(comm, index - 1);
  bool send = true, recv = true;
  switch (t->coll) {
    case RT_COPY: return RAIL_OK;
    case RT_SEND:
      next = t->root;
      recv = false;
      break;
    case RT_RECV:
      prev = t->root;
      send = false;
      break;
    case RT_BROADCAST:
      recv = comm->rank != t->root;
      send = next != t->root;
      break;
    case RT_REDUCE:
      send = comm->rank != t->root;
      recv = prev != t->root;
      break;
    default: break;
  }
  if (n == 1) return RAIL_OK;
  if (recv) RAIL_TRY(add_connector(b, schedule, channel, prev, false, from));
  if (send) RAIL_TRY(add_connector(b, schedule, channel, next, true, to));
  return RAIL_OK;
}

/* The connectors that the schedule of PAT uses, of those to and from the ring indices that are a power of two away. A
 * broadcast's and a reduce's depend on the root: the next root may need more. Those of the ring are always made: a rank
 * whose call differs, and takes a ring, waits for one of them, and finds that out. */
static rail_result_t add_pat_connectors(struct builder *b, int channel, struct rt_job *job) {
  struct ncclComm *comm = b->comm;
  const struct rt_sched *s = &job->program.sched;
  const bool reduces = s->coll == RT_PAT_REDUCE, all = s->coll == RT_PAT_ALLGATHER || s->coll == RT_PAT_REDUCE_SCATTER;
  int children = job->nlinks;
  const int up = all ? -1 : rt_sched_pat_tree(s, &children);
  for (int k = 0; k < job->nlinks; k++) {
    const bool child = k < children, parent = k == up;
    const int to = rt_ring_rank_at(comm, comm->ring.index + (1 << k));
    const int from = rt_ring_rank_at(comm, comm->ring.index - (1 << k));
    const bool sends = all || (reduces ? parent : child), receives = all || (reduces ? child : parent);
    struct rt_job_end none, *send = sends ? &job->send[k] : &none, *recv = receives ? &job->recv[k] : &none;
    if (sends || k == 0) RAIL_TRY(add_connector(b, s->coll, channel, to, true, send));
    if (receives || k == 0) RAIL_TRY(add_connector(b, s->coll, channel, from, false, recv));
  }
  return RAIL_OK;
}

/* The connectors that the exchange uses, to and from the indices that differ in one bit; and as for PAT the ring's. */
static rail_result_t add_exchange_connectors(struct builder *b, int channel, struct rt_job *job) {
  struct rt_job_end none;
  for (int k = 0; k < job->nlinks; k++) {
    const int peer = rt_ring_rank_at(b->comm, b->comm->ring.index ^ 1 << k);
    RAIL_TRY(add_connector(b, RT_EXCHANGE, channel, peer, true, &job->send[k]));
    RAIL_TRY(add_connector(b, RT_EXCHANGE, channel, peer, false, &job->recv[k]));
  }
  if (job->nlinks == 1) return RAIL_OK;
  RAIL_TRY(add_connector(b, RT_EXCHANGE, channel, rt_ring_rank_at(b->comm, b->comm->ring.index + 1), true, &none));
  return add_connector(b, RT_EXCHANGE, channel, rt_ring_rank_at(b->comm, b->comm->ring.index - 1), false, &none);
}

static rail_result_t add_job_connectors(struct builder *b, const struct rt_task *t, int channel, int tree,
                                        struct rt_job *job) {
  const struct rt_choice *choice = &t->choice;
  if (choice->algo == RT_ALGO_TREE) return add_tree_connectors(b, channel, tree, job);
  if (choice->algo == RT_ALGO_PAT) return add_pat_connectors(b, channel, job);
  if (choice->algo == RT_ALGO_EXCHANGE) return add_exchange_connectors(b, channel, job);
  /* A send or receive that fits the other end's is found by its bytes. */
  const uint32_t schedule = is_p2p(t) ? RT_ANY_SCHEDULE : (uint32_t)choice->schedule;
  return add_connectors(b, t, schedule, channel, &job->recv[0], &job->send[0]);
}

static struct rt_choice choose(const struct rt_task *t) {
  return rt_tune(&t->comm->tuning, t->coll, t->count * rt_type_size((int)t->type), t->comm->nranks);
}

ncclResult_t rt_task_choose(struct rt_task *t) {
  struct rt_last_choice *last = &t->comm->last_choice;
  const bool on_device = t->comm->tuning.on_device;
  if (!last->valid || last->coll != t->coll || last->type != t->type || last->count != t->count ||
      last->on_device != on_device)
    *last = (struct rt_last_choice){true, on_device, t->coll, t->type, t->count, choose(t)};
  t->choice = last->choice;
  if (!t->choice.none || t->count == 0) return ncclSuccess;
  const struct rt_params *p = rt_params();
  return rt_error(RAIL_BAD_USAGE,
                  "rank %d of %d: no algorithm and protocol are left for %s of %s: NCCL_ALGO is '%s', NCCL_PROTO '%s'; "
                  "rail-coll --tuning shows what there is",
                  t->comm->rank, t->comm->nranks, rt_func_names[t->choice.func], rt_type_name((int)t->type),
                  p->algo ? p->algo : "", p->proto ? p->proto : "");
}

/* A device's kernel uses LL only where no proxy is in between. An empty message is Simple, because the peer's
 * communicator may not be on a device yet. */
static enum rt_proto protocol(const struct builder *b, const struct rt_task *t, enum rt_proto chosen) {
  const struct rt_tuning *tuning = &b->comm->tuning;
  if (is_p2p(t) && t->count == 0) return RT_SIMPLE;
  if (!b->plan->on_device) return chosen;
  return tuning->all_direct ? rt_tune_device(tuning, t->coll, chosen) : RT_SIMPLE;
}

static rail_result_t add_job(struct builder *b, const struct rt_task *t, int channel, int tree, uint64_t lo,
                             uint64_t len) {
  const struct rt_choice *choice = &t->choice;
  size_t esize = rt_type_size((int)t->type);
  struct rt_job *job = &b->plan->jobs[b->plan->njobs];
  struct rt_program *prog = &job->program;
  uint64_t bytes = len * esize;
  prog->proto = protocol(b, t, choice->proto);
  job->type = (int)t->type;
  job->op = -1;
  job->number = RT_NO_NUMBER;
  job->nlinks = rt_tune_links(choice, t->comm->nranks);
  job->send = &b->plan->ends[b->nends];
  job->recv = job->send + job->nlinks;
  b->nends += 2 * job->nlinks;
  prog->sched = (struct rt_sched){
      .coll = choice->schedule,
      .rank = t->comm->ring.index,
      .nranks = t->comm->nranks,
      .root = rt_ring_index_of(t->comm, t->root),
      .order = t->comm->ring.order,
      .esize = esize,
      .send = t->send,
      .recv = t->recv,
      .count = t->count,
      .lo = lo,
      .len = len,
      .chunk = rt_tune_chunk(&b->comm->tuning, prog->proto, choice->schedule, bytes, t->comm->nranks, esize),
  };
  if (is_reduction(t)) RAIL_TRY(set_operator(job, t));
  b->plan->njobs++;
  RAIL_TRY(add_job_connectors(b, t, channel, tree, job));
  return rt_job_allocate(b->comm, job);
}

/* On one channel. */
static rail_result_t add_single_job(struct builder *b, const struct rt_task *t) {
  return add_job(b, t, 0, 0, 0, t->count);
}

static bool describe_small(struct rt_small_call *call, const struct rt_task *t) {
  return rt_small_describe(call, t->coll, (int)t->type, operator_of(t), t->count, t->root, t->comm->rank,
                           t->comm->nranks);
}

/* The first collective also makes the connections of its ring: a rank whose call differs and is not small waits for
 * them before it can find that out. */
static rail_result_t add_small_job(struct builder *b, const struct rt_task *t, uint64_t number) {
  struct rt_job *job = &b->plan->jobs[b->plan->njobs];
  struct rt_job_end from, to; /* only to be connected */
  const struct rt_premul *m = &t->premul;
  if (number == b->calls_before && !b->comm->small.opened)
    RAIL_TRY(add_connectors(b, t, RT_ANY_SCHEDULE, 0, &from, &to));
  if (!describe_small(&job->small.call, t)) return RAIL_BAD_ARGUMENT;
  job->is_small = true;
  job->type = (int)t->type;
  job->small.send = t->send;
  job->small.recv = t->recv;
  job->small.number = number;
  if (t->op >= ncclNumOps && m->deferred) job->scalar = m->scalar;
  if (t->op >= ncclNumOps && !m->deferred) rt_scalar_premul(&job->small.call.scalar, (int)t->type, m->value);
  b->plan->njobs++;
  return RAIL_OK;
}

/* All blocks of a launch must be on the GPU at once: on a device the calls of a group share the channels. */
static int channels_of(const struct rt_task *t, int ncollectives) {
  const struct rt_choice *c = &t->choice;
  int blocks = t->comm->tuning.blocks;
  if (blocks == 0) return c->nchannels;
  return RAIL_MAX(1, RAIL_MIN(c->nchannels, blocks / (ncollectives * c->ntrees)));
}

/* The channels, and a channel's trees, share a collective's elements evenly, in whole cache lines; in the same way on
 * every rank. */
static rail_result_t add_collective(struct builder *b, const struct rt_task *t) {
  size_t esize = rt_type_size((int)t->type);
  if (esize == 0) return RAIL_BAD_ARGUMENT; /* checked when the call was made */
  if (t->count == 0) return RAIL_OK;
  uint64_t align = RAIL_MAX(RAIL_CACHELINE / esize, (size_t)1), number = b->comm->calls++;
  if (t->choice.small && !b->plan->on_device) return add_small_job(b, t, number);
  const int first = b->plan->njobs;
  uint64_t trees = (uint64_t)t->choice.ntrees, n = (uint64_t)channels_of(t, b->ncollectives) * trees;
  uint64_t part = RAIL_ROUND_UP(RAIL_DIV_UP(t->count, n), align);
  for (uint64_t i = 0, lo = 0; i < n && lo < t->count; i++, lo += part)
    RAIL_TRY(add_job(b, t, (int)(i / trees), (int)(i % trees), lo, RAIL_MIN(part, t->count - lo)));
  for (int j = first; j < b->plan->njobs; j++) b->plan->jobs[j].number = number;
  return RAIL_OK;
}

/* The k-th send to oneself goes to the k-th receive from oneself. */
static rail_result_t add_self_copies(struct builder *b, const struct rt_task *tasks, int n) {
  int r = -1;
  for (int s = 0; s < n; s++) {
    if (tasks[s].coll != RT_SEND || tasks[s].root != b->comm->rank) continue;
    for (r++; r < n && !(tasks[r].coll == RT_RECV && tasks[r].root == b->comm->rank);) r++;
    if (r >= n ||
        tasks[r].count * rt_type_size((int)tasks[r].type) != tasks[s].count * rt_type_size((int)tasks[s].type)) {
      rt_comm_fail(b->comm, RAIL_BAD_USAGE, "%llu elements are sent to the own rank without an equal receive in the "
                   "same group", (unsigned long long)tasks[s].count);
      return RAIL_BAD_USAGE;
    }
    struct rt_task copy = tasks[s];
    copy.coll = RT_COPY;
    copy.recv = tasks[r].recv;
    copy.choice = choose(&copy);
    if (copy.count && copy.send != copy.recv) RAIL_TRY(add_single_job(b, &copy));
  }
  for (r++; r < n; r++)
    if (tasks[r].coll == RT_RECV && tasks[r].root == b->comm->rank) {
      rt_comm_fail(b->comm, RAIL_BAD_USAGE, "a receive from the own rank without a send in the same group");
      return RAIL_BAD_USAGE;
    }
  return RAIL_OK;
}

/* A group orders its collectives, and the sends and receives of each pair, but not collectives relative to sends and
 * receives. Both ends of a connection must use one order: collectives first. */
static rail_result_t add_tasks(struct builder *b, const struct rt_task *tasks, int n) {
  for (int i = 0; i < n; i++)
    if (!is_p2p(&tasks[i])) RAIL_TRY(add_collective(b, &tasks[i]));
  for (int i = 0; i < n; i++)
    if (is_p2p(&tasks[i]) && tasks[i].root != b->comm->rank) RAIL_TRY(add_single_job(b, &tasks[i]));
  return add_self_copies(b, tasks, n);
}

/* ---- after connecting --------------------------------------------------------------------- */

/* Gives a job of the host its connections, and registers the user's buffers with them. */
static void bind_job(struct ncclComm *comm, struct rt_job *job) {
  struct rt_program *prog = &job->program;
  if (job->is_small) {
    rt_small_init(&comm->small, &job->small);
    return;
  }
  for (int p = 0; p < job->nlinks; p++) {
    prog->recv[p] = job->recv[p].connector ? &job->recv[p].connector->conn : NULL;
    prog->send[p] = job->send[p].connector ? &job->send[p].connector->conn : NULL;
  }
  rt_program_init(prog);
  if (prog->proto != RT_SIMPLE || !rt_tune_may_be_direct(prog->sched.coll)) return;
  struct rt_connector *send = job->send[0].connector, *recv = job->recv[0].connector;
  enum rt_coll coll = prog->sched.coll;
  size_t one = (size_t)prog->sched.count * prog->sched.esize, all = one * (size_t)comm->nranks;
  size_t send_size = coll == RT_REDUCE_SCATTER ? all : one, recv_size = coll == RT_ALLGATHER ? all : one;
  const char *in = prog->sched.send;
  char *out = prog->sched.recv;
  bool sends_output = coll == RT_ALLREDUCE || coll == RT_ALLGATHER || coll == RT_BROADCAST;
  /* In place an all-reduce overwrites its input, which is therefore copied to the slots; what is to be reduced is
   * received into them. */
  bool in_place = out && in && in >= out && in + send_size <= out + recv_size;
  if (send && !in_place) rt_reg_direct(comm, send, in, send_size, &prog->send_direct[0], &job->send_mh[0]);
  if (send && sends_output) rt_reg_direct(comm, send, out, recv_size, &prog->send_direct[1], &job->send_mh[1]);
  if (recv && (sends_output || !in_place) && rt_tune_receives_direct(coll, one))
    rt_reg_direct(comm, recv, out, recv_size, &prog->recv_direct, &job->recv_mh);
}

/* Returns the most jobs that the tasks can have; *ends: of all of them, or their connectors, if these are more. */
static int count_jobs(struct builder *b, const struct rt_task *tasks, int n, int *ends) {
  int jobs = 0;
  *ends = 0;
  for (int i = 0; i < n; i++) {
    const struct rt_task *t = &tasks[i];
    b->ncollectives += !is_p2p(t);
    const int here = is_p2p(t) ? 1 : t->choice.nchannels * t->choice.ntrees;
    jobs += here;
    *ends += here * 2 * (rt_tune_links(&t->choice, t->comm->nranks) + (t->choice.algo == RT_ALGO_EXCHANGE));
  }
  return jobs;
}

static rail_result_t bind_plan(struct ncclComm *comm, struct rt_plan *plan) {
  for (int i = 0; i < plan->njobs; i++) {
    struct rt_job *job = &plan->jobs[i];
    /* Without connections the program takes no tickets: on a device each job names the jobs that it follows. */
    if (plan->on_device)
      rt_program_init(&job->program);
    else
      bind_job(comm, job);
  }
  return plan->on_device ? rt_device_plan_prepare(comm, plan) : RAIL_OK;
}

/* ---- a plan ------------------------------------------------------------------------------- */

rail_result_t rt_plan_build(struct ncclComm *comm, const struct rt_task *tasks, int ntasks, struct rt_plan **plan) {
  struct builder b = {.comm = comm, .calls_before = comm->calls};
  int ends;
  const int jobs = count_jobs(&b, tasks, ntasks, &ends);
  *plan = NULL;
  comm->collectives += b.ncollectives > 0;
  b.plan = rt_plan_alloc(comm, jobs, ends);
  if (!b.plan) {
    rt_comm_fail(comm, RAIL_SYSTEM_ERROR, "out of memory for %d operations", jobs);
    return RAIL_SYSTEM_ERROR;
  }
  b.plan->on_device = comm->memory == RT_DEVICE_MEMORY;
  b.plan->has_collective = b.ncollectives > 0;
  rail_result_t r = b.plan->on_device ? rt_device_plan_take_streams(b.plan, tasks, ntasks) : RAIL_OK;
  if (r == RAIL_OK) r = add_tasks(&b, tasks, ntasks);
  if (r == RAIL_OK && b.plan->njobs > 0) {
    b.plan->opens_small = comm->calls > b.calls_before && !comm->small.opened &&
                          rt_tune_small_max(&comm->tuning, comm->nranks) > 0;
    *plan = b.plan;
  } else {
    rt_plan_free(comm, b.plan);
  }
  return r;
}

/* ---- making it ready ------------------------------------------------------------------------ */

bool rt_plan_waits_for_ranks(const struct rt_plan *plan) {
  return plan->nconnectors > 0 || plan->opens_small || (plan->on_device && !plan->comm->gpu.open);
}

static rail_result_t make_ready(struct ncclComm *comm, struct rt_plan *plan) {
  comm->gpu.called_driver = plan->nconnectors > 0;
  if (plan->on_device) {
    /* Calls without data may have run on the host before the first buffer. */
    if (!comm->gpu.open) rt_queue_wait(&comm->queue);
    RAIL_TRY(rt_gpu_open(comm)); /* connections may need memory there */
  }
  RAIL_TRY(rt_connect_all(comm, plan->connectors, plan->nconnectors));
  if (plan->opens_small) RAIL_TRY(rt_small_open(comm));
  return bind_plan(comm, plan);
}

/* For a collective, all ranks of this process make connections at the same call. Not for sends and receives alone:
 * other ranks may not take part, and none knows which do. */
rail_result_t rt_plan_make_ready(struct rt_plan *plan) {
  struct ncclComm *comm = plan->comm;
  if (!plan->has_collective || !plan->on_device || !comm->shares_process) return make_ready(comm, plan);
  struct rt_launch_lock_setup setup;
  rt_launch_lock_setup_begin(&setup, comm->peers[0].nonce, comm->collectives);
  rail_result_t r = make_ready(comm, plan);
  rt_launch_lock_setup_end(&setup);
  plan->waits_for_setups = comm->gpu.called_driver;
  return r;
}

/* ---- a small call in the caller's thread ---------------------------------------------------- */

/* Polls before the call is left to the work queue: ranks that call at the same time need fewer. On an
 * oversubscribed host the others run in a yield. */
#define SMALL_POLLS 200
#define SMALL_YIELDS 4

/* What the call does, from the last one with the same arguments. NULL: it is not small. */
static const struct rt_small_call *find_small(struct rt_small *s, const struct rt_task *t) {
  const unsigned hash = ((unsigned)t->count * 31u + (unsigned)t->coll) * 31u + (unsigned)t->type + (unsigned)t->op;
  struct rt_small_call *c = &s->cached[hash % RT_SMALL_CACHED];
  if (rail_likely(c->esize && c->count == t->count && c->coll == t->coll && c->type == (int)t->type &&
                  c->op == (int)t->op && c->root == t->root))
    return c;
  const uint64_t bytes = t->count * rt_type_size((int)t->type);
  if (bytes == 0 || bytes > rt_tune_small_max(&t->comm->tuning, t->comm->nranks)) return NULL;
  if (t->op >= ncclNumOps || !choose(t).small) return NULL;
  if (describe_small(c, t)) return c;
  c->esize = 0;
  return NULL;
}

/* Leaves an operation that has taken its number, and may have begun, to the work queue. */
static rail_result_t enqueue_small(struct ncclComm *comm, const struct rt_small_op *op) {
  struct rt_plan *plan = rt_plan_alloc(comm, 1, 0);
  if (!plan) return RAIL_SYSTEM_ERROR;
  plan->njobs = 1;
  plan->jobs[0] = (struct rt_job){.is_small = true, .small = *op};
  rt_queue_enqueue(&comm->queue, plan, false);
  return RAIL_OK;
}

bool rt_task_run_small(const struct rt_task *t) {
  struct ncclComm *comm = t->comm;
  if (!comm->small.segment || comm->memory != RT_HOST_MEMORY || !rt_queue_empty(&comm->queue)) return false;
  const struct rt_small_call *call = find_small(&comm->small, t);
  if (!call) return false;
  atomic_fetch_add(&comm->users, 1);
  struct rt_small_op op;
  op.call = *call;
  op.send = t->send;
  op.recv = t->recv;
  op.number = comm->calls++;
  rt_small_init(&comm->small, &op);
  int polls = 0;
  enum rt_program_state state;
  const int most = comm->oversubscribed ? SMALL_YIELDS : SMALL_POLLS;
  while ((state = rt_small_poll(&comm->small, &op)) != RT_PROGRAM_DONE && polls++ < most)
    if (comm->oversubscribed)
      sched_yield();
    else
      rail_cpu_relax();
  if (state != RT_PROGRAM_DONE && enqueue_small(comm, &op) != RAIL_OK)
    rt_comm_fail(comm, RAIL_SYSTEM_ERROR, "out of memory for a call");
  atomic_fetch_sub(&comm->users, 1);
  return true;
}
