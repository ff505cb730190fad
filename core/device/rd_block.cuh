/* SPDX-License-Identifier: Apache-2.0
 *
 * A block runs a job (rt_device.h), or several in turn: the actions of its schedule one after the other, as
 * rt_program.c does on the host, but it waits where that returns.
 *
 * Thread 0 leads: it alone has the schedule and the connections, waits, looks at what came, and writes into shared
 * memory what all threads shall move. The barrier before they do is needed anyway, to carry over what its wait has
 * acquired; so nothing is gained by each thread's computing the action for itself, and the many divisions in there
 * would cost them registers. While the others move an action's data thread 0 makes up the next one; it and its warp
 * therefore get the last part of the data (rd_turned).
 *
 * An action, between two barriers:
 *
 *   thread 0   grant receives to a proxy; wait for credit, and for what comes in (lines: by each for itself)
 *   barrier
 *   all        move the data; thread 0: the next action
 *   barrier
 *   thread 0   publish what was sent; look at what lines belonged to; return the slot
 */
#ifndef RD_BLOCK_CUH
#define RD_BLOCK_CUH

#include "core/device/rd_ll.cuh"
#include "core/host/rt_device.h"
#include "core/host/rt_sched_impl.h"

/* What thread 0 prepares for all threads. */
struct rd_step {
  bool go; /* false: the job is over */
  int proto;
  struct rt_reduce_copy work;   /* Simple */
  struct rd_lines lines; /* LL, LL128 */
};

/* A block's shared memory. All threads write the job and the connections, read `step` and `opened`; the rest is thread
 * 0's own. */
struct rd_block {
  uint64_t run;             /* the launch's */
  const uint32_t *abort;
  struct rt_device_job job; /* a copy; what it is to be written to the job in the end, too */
  struct rt_conn recv_conn[RT_PEERS], send_conn[RT_PEERS]; /* copies, without what only host programs use */
  struct rd_step step;
  struct rd_fifo recv[RT_PEERS], send[RT_PEERS];
  bool opened;               /* the connections are ours; only then are they copied */
  bool proxied[RT_PEERS];    /* what comes in by it comes from a proxy */
  bool parted[RT_PEERS];     /* lines of LL128 may come in parts there */
  uint64_t granted[RT_PEERS]; /* steps of recv */
  uint64_t grant_i[RT_PEERS]; /* first action whose receive by it may not have been granted */
  uint64_t n;                /* actions */
  struct rt_action action;   /* the one in hand, and while its data is moved the next */
  struct rd_fifo *in, *out;  /* what the action in hand receives by and sends by, or NULL */
  uint32_t from;             /* number of `in` */
  uint64_t in_bytes, out_bytes; /* of its steps on the FIFO */
};

RD_CALL void rd_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) { rt_sched_action_(s, i, a); }

/* The first warp's threads come last. */
RD_FN uint32_t rd_turned(void) {
  const uint32_t warp = blockDim.x < 32 ? blockDim.x : 32;
  return (threadIdx.x + blockDim.x - warp) % blockDim.x;
}

/* ---- the receiving side, by thread 0 ---- */

/* Posts to a connection's proxy how large the next receives are, up to 8 steps ahead. They land in the slots. */
RD_FN void rd_grant_receives(struct rd_block *b, int peer) {
  const struct rd_fifo *f = &b->recv[peer];
  const uint64_t before = b->granted[peer];
  struct rt_action a;
  while (b->grant_i[peer] < b->n && b->granted[peer] < f->step + RT_STEPS) {
    rd_action(&b->job.sched, b->grant_i[peer]++, &a);
    if (!a.recv || a.from != peer) continue;
    struct rt_slot *slot = &f->slot[b->granted[peer]++ % RT_STEPS];
    slot->ptr = slot->mhandle = NULL;
    slot->capacity = a.n * b->job.sched.esize;
  }
  if (b->granted[peer] != before) rd_store_release_sys(f->credit, b->granted[peer]);
}

RD_FN bool rd_recv_wait(struct rd_block *b) {
  if (rd_fifo_look(b->in, b->in->tail)) return true;
  b->job.state = RT_DEVICE_ABORTED;
  return false;
}

/* Is the step that came of the size, and between kernels of the protocol and call, that our own call asks for? */
RD_FN bool rd_recv_matches(struct rd_block *b) {
  const struct rt_slot came = b->in->slot[b->in->step % RT_STEPS];
  const bool proxied = b->proxied[b->from], same_call = proxied || came.call == b->job.call;
  if (came.bytes == b->in_bytes && same_call && (proxied || (int)came.proto == b->job.proto)) return true;
  b->job.state = RT_DEVICE_MISMATCH;
  b->job.from = b->from;
  b->job.got = same_call ? (uint64_t)came.bytes : came.call >> 4;
  b->job.expected = same_call ? b->in_bytes : b->job.call >> 4;
  return false;
}

RD_FN void rd_recv_finish(struct rd_block *b) {
  if (!b->proxied[b->from]) {
    rd_fifo_return(b->in);
    b->granted[b->from] = b->in->step + 1 + RT_STEPS;
  } /* else credit follows the next grant */
  b->in->step++;
}

/* ---- what is to be moved, by thread 0 ---- */

/* Bytes of a step on the FIFO; both ends know which steps of LL are written to the slot's end. */
RD_FN uint64_t rd_step_bytes(const struct rd_fifo *f, int proto, uint64_t payload) {
  if (proto == RT_LL) return rd_ll_out_lines(f, payload) * RT_LL_LINE;
  return proto == RD_LL128 ? rd_ll128_lines(payload) * RD_LL128_LINE : payload;
}

RD_FN void rd_work_fill(struct rd_block *b, struct rt_reduce_copy *w) {
  const struct rt_action *a = &b->action;
  const bool local = a->reduce || !a->recv;
  w->nsrc = w->ndst = 0;
  if (local) w->src[w->nsrc++] = a->src; /* first, where pre-operations are made */
  if (b->in) w->src[w->nsrc++] = rd_fifo_slot(b->in);
  if (a->dst) w->dst[w->ndst++] = a->dst;
  if (b->out) w->dst[w->ndst++] = rd_fifo_slot(b->out);
  const bool plain = b->job.op < 0; /* then in bytes, whatever the type */
  w->count = plain ? a->n * b->job.sched.esize : a->n;
  w->type = plain ? RT_UINT8 : b->job.type;
  w->op = plain ? RT_SUM : b->job.op;
  w->scalar = b->job.scalar;
  w->npre = local && !a->partial;
  w->last = a->last;
}

RD_FN void rd_lines_fill(struct rd_block *b, const struct rt_reduce_copy *w, struct rd_lines *l) {
  const struct rt_action *a = &b->action;
  l->in = b->in ? rd_fifo_slot(b->in) : NULL;
  l->tail_first = b->in && b->parted[b->from];
  l->out = b->out ? rd_fifo_slot(b->out) : NULL;
  l->local = a->reduce || !a->recv ? a->src : NULL;
  l->dst = a->dst;
  l->bytes = a->n * b->job.sched.esize;
  l->in_step = b->in ? b->in->step : 0;
  l->out_step = b->out ? b->out->step : 0;
  l->out_lines = b->out_bytes / RT_LL_LINE;
  l->tail = b->in ? b->in->tail : NULL;
  l->type = w->type;
  l->op = w->op;
  l->what = (rt_reduce_copy_npre(w) > 0 ? RD_PRE : 0) | (w->nsrc > 1 ? RD_REDUCE : 0) |
            (rt_reduce_copy_post(w) ? RD_POST : 0);
  l->scalar = w->scalar;
}

/* Until action i can be done: then `step` says what it is. */
RD_FN void rd_step_begin(struct rd_block *b, uint64_t i) {
  const struct rt_action *a = &b->action;
  const int proto = b->job.proto;
  b->step.go = false;
  if (b->job.state != RT_DEVICE_DONE || i == b->n) return;
  const uint64_t payload = a->n * b->job.sched.esize;
  for (int p = 0; p < RT_PEERS; p++)
    if (b->proxied[p]) rd_grant_receives(b, p);
  b->from = a->from;
  b->in = a->recv ? &b->recv[a->from] : NULL;
  b->out = a->send ? &b->send[a->to] : NULL;
  if (b->in) b->in_bytes = rd_step_bytes(b->in, proto, payload);
  if (b->in && proto == RT_SIMPLE && (!rd_recv_wait(b) || !rd_recv_matches(b))) return;
  if (b->out) {
    b->out_bytes = rd_step_bytes(b->out, proto, payload);
    if (!rd_fifo_look(b->out, b->out->credit)) {
      b->job.state = RT_DEVICE_ABORTED;
      return;
    }
  }
  rd_work_fill(b, &b->step.work);
  if (proto != RT_SIMPLE) rd_lines_fill(b, &b->step.work, &b->step.lines);
  b->step.go = true;
}

/* All data of the action has been moved; or some of it has not, since a line did not come. One fence is for both
 * directions: what was sent is there, what came in has been read. Behind it only what is said of lines' step is read,
 * and whether the slot is given back depends on that. */
RD_FN void rd_step_end(struct rd_block *b, bool moved) {
  const bool lines = b->step.proto != RT_SIMPLE;
  if (b->out && moved) rd_fifo_describe(b->out, b->step.proto, b->out_bytes);
  if (b->out || (b->in && !b->proxied[b->from])) rd_fence_sys();
  /* First: the next rank waits for it, and the tail of lines that came in may still be on its way. */
  if (b->out && moved) {
    rd_fifo_publish(b->out);
    b->out->step++;
  }
  if (!b->in) return;
  if (lines && (!rd_recv_wait(b) || !rd_recv_matches(b))) return;
  if (moved) {
    rd_recv_finish(b);
    return;
  }
  /* The step is ours, and yet a line of it was not there: we gave up too early, or the sender breaks the rules. */
  b->job.state = rd_load_relaxed_sys(b->in->abort) ? RT_DEVICE_ABORTED : RT_DEVICE_MISMATCH;
  b->job.from = b->from;
  b->job.got = 0;
  b->job.expected = b->in_bytes;
}

/* By all threads. */
RD_FN bool rd_step_move(const struct rd_step *s) {
  if (s->proto == RT_LL) return rd_ll_step(s->lines, rd_turned(), blockDim.x);
  if (s->proto == RD_LL128) return rd_ll128_step(s->lines, rd_turned(), blockDim.x);
  if (s->work.ndst > 0) rd_reduce_copy(s->work, 0, s->work.count, rd_turned(), blockDim.x);
  return true;
}

/* ---- a job ---- */

/* Waits until that job of this launch has left a connection; false if it has not ended well, or ours is aborted. */
RD_FN bool rd_wait_job(const struct rd_block *b, const struct rt_device_launch *launch, int job) {
  uint32_t looks = 0;
  if (job < 0) return true;
  while (rd_load_acquire_sys(&launch->job[job].ran) != b->run)
    if (rd_wait_aborted(&looks, b->abort)) return false;
  return launch->job[job].state == RT_DEVICE_DONE;
}

RD_FN void rd_fifo_open(struct rd_fifo *f, const struct rt_conn *c, const struct rd_block *b) {
  f->buff = c->buff[b->job.proto];
  f->slot_size = c->slot_size[b->job.proto];
  f->slot = c->slot;
  f->tail = c->tail;
  f->credit = c->credit;
  f->abort = b->abort;
  f->step = c->step;
  f->seen = c->seen;
  f->call = b->job.call;
}

RD_FN void rd_fifo_close(const struct rd_fifo *f, struct rt_conn *c) {
  c->step = f->step;
  c->seen = f->seen;
}

/* Those before us have left our connections. */
RD_FN bool rd_wait_turns(const struct rd_block *b, const struct rt_device_launch *launch) {
  const struct rt_device_job *job = &b->job;
  for (int p = 0; p < RT_PEERS; p++) {
    if (job->recv[p] && !rd_wait_job(b, launch, job->recv_after[p])) return false;
    if (job->send[p] && !rd_wait_job(b, launch, job->send_after[p])) return false;
  }
  return true;
}

/* The launch lies in host memory. Threads load side by side what one of them would load in turn, a trip over PCIe each;
 * so do those of rd_conns_copy. */
RD_FN void rd_job_copy(struct rd_block *b, const struct rt_device_launch *launch, int number) {
  const uint64_t *from = (const uint64_t *)(const void *)&launch->job[number];
  uint64_t *to = (uint64_t *)(void *)&b->job;
  uint64_t run = 0;
  const uint32_t *abort = NULL;
  if (threadIdx.x == 0) {
    run = launch->run;
    abort = launch->abort;
  }
  for (unsigned i = threadIdx.x; i < sizeof b->job / sizeof *to; i += blockDim.x) to[i] = from[i];
  if (threadIdx.x == 0) {
    b->run = run;
    b->abort = abort;
  }
}

RD_FN void rd_conns_copy(struct rd_block *b) {
  const unsigned words = offsetof(struct rt_conn, serving) / sizeof(uint64_t);
  for (unsigned i = threadIdx.x; i < 2 * RT_PEERS * words; i += blockDim.x) {
    const unsigned p = i / words % RT_PEERS, word = i % words;
    const bool sends = i / words >= RT_PEERS;
    const struct rt_conn *c = sends ? b->job.send[p] : b->job.recv[p];
    uint64_t *to = (uint64_t *)(void *)(sends ? &b->send_conn[p] : &b->recv_conn[p]);
    if (c) to[word] = ((const uint64_t *)(const void *)c)[word];
  }
}

RD_FN void rd_fifos_open(struct rd_block *b) {
  for (int p = 0; p < RT_PEERS; p++) {
    const struct rt_conn *recv = &b->recv_conn[p];
    const bool receives = b->job.recv[p] != NULL;
    b->proxied[p] = receives && (recv->flags & RT_CONN_PROXY);
    b->parted[p] = receives && (recv->flags & RT_CONN_TORN);
    b->grant_i[p] = 0;
    if (receives) {
      rd_fifo_open(&b->recv[p], recv, b);
      b->granted[p] = recv->granted;
    }
    if (b->job.send[p]) rd_fifo_open(&b->send[p], &b->send_conn[p], b);
  }
}

RD_FN void rd_fifos_close(const struct rd_block *b) {
  for (int p = 0; p < RT_PEERS; p++) {
    if (b->job.recv[p]) rd_fifo_close(&b->recv[p], b->job.recv[p]);
    if (b->job.recv[p]) b->job.recv[p]->granted = b->granted[p];
    if (b->job.send[p]) rd_fifo_close(&b->send[p], b->job.send[p]);
  }
}

/* By thread 0: whether the connections are ours. */
RD_FN void rd_job_wait(struct rd_block *b, const struct rt_device_launch *launch) {
  b->step.go = false;
  b->opened = rd_wait_turns(b, launch);
  b->job.state = b->opened ? RT_DEVICE_DONE : RT_DEVICE_ABORTED;
}

/* By thread 0, which then knows all of the job, and its first action. */
RD_FN void rd_job_begin(struct rd_block *b) {
  struct rt_device_job *job = &b->job;
  b->step.proto = job->proto;
  b->step.lines.abort = b->abort;
  rd_fifos_open(b);
  if (job->deferred) {
    const unsigned esize = (unsigned)rt_type_size(job->type);
    job->scalar = rt_factor(job->type, rd_word_load((const char *)job->deferred, 0, esize));
  }
  b->n = rt_sched_actions_(&job->sched);
  if (b->n > 0) rd_action(&job->sched, 0, &b->action);
  rd_step_begin(b, 0);
}

/* By thread 0, when no thread touches the job's memory any more. */
RD_FN void rd_job_end(struct rd_block *b, struct rt_device_launch *launch, int number) {
  struct rt_device_job *job = &launch->job[number];
  if (b->opened) rd_fifos_close(b);
  job->state = b->job.state;
  job->from = b->job.from;
  job->got = b->job.got;
  job->expected = b->job.expected;
  rd_store_release_sys(&job->ran, b->run);
}

RD_FN void rd_job_run(struct rd_block *b, struct rt_device_launch *launch, int number) {
  rd_job_copy(b, launch, number);
  __syncthreads();
  if (threadIdx.x == 0) rd_job_wait(b, launch);
  __syncthreads();
  if (b->opened) {
    rd_conns_copy(b);
    __syncthreads();
    if (threadIdx.x == 0) rd_job_begin(b);
  }
  for (uint64_t i = 1;; i++) {
    __syncthreads();
    if (!b->step.go) break;
    if (threadIdx.x == 0 && i < b->n) rd_action(&b->job.sched, i, &b->action);
    const bool moved = !__syncthreads_or(!rd_step_move(&b->step));
    if (threadIdx.x == 0) {
      rd_step_end(b, moved);
      rd_step_begin(b, i);
    }
  }
  if (threadIdx.x == 0) rd_job_end(b, launch, number);
}

/* The kernel: block j runs job j, and those that follow it. */
RD_FN void rd_collective_block(struct rt_device_launch *launch) {
  RD_SHARED(struct rd_block, shared);
  struct rd_block *b = &shared;
  int number = (int)blockIdx.x;
  do {
    rd_job_run(b, launch, number);
    number = b->job.next;
    if (number) __syncthreads(); /* all have read the job, which the next one overwrites */
  } while (number);
}

#endif
