/* SPDX-License-Identifier: Apache-2.0
 *
 * A block runs a job (rt_device.h): the actions of its schedule one after the
 * other, as rt_kernel.c does on the host, but it waits where that returns.
 *
 * Thread 0 leads: it alone knows the schedule and the connections, waits, looks at what
 * came, and writes into shared memory what all threads shall move. The barrier before
 * they do is needed anyway, to carry over what its wait has acquired; so nothing is gained by
 * each thread's computing the action for itself, and the many divisions in there would cost them registers.
 * While the others move an action's data thread 0 makes up the next one; it and its warp therefore get the
 * last part of the data (rd_turned).
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
#include "core/kernel/rt_device.h"
#include "core/kernel/rt_sched_impl.h"

/* What thread 0 tells the others. */
struct rd_step {
  bool go; /* false: the job is over */
  int proto;
  struct rt_work work;   /* Simple */
  struct rd_lines lines; /* LL, LL128 */
};

/* A block's shared memory. But for `step` and `job` it is thread 0's own. */
struct rd_block {
  struct rt_device_job job; /* a copy; what it is to be written to the job in the end, too */
  struct rd_step step;
  struct rd_fifo recv, send;
  bool opened;               /* the connections are ours */
  bool proxied;              /* what comes in comes from a proxy */
  uint64_t granted;          /* steps of recv */
  uint64_t grant_i;          /* first action whose receive has not been granted */
  uint64_t n;                /* actions */
  struct rt_action action;   /* the one in hand, and while its data is moved the next */
  bool sends, receives;      /* of the action in hand */
  uint64_t in_bytes, out_bytes; /* of its steps on the FIFO */
};

RD_CALL void rd_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) { rt_sched_action_(s, i, a); }

/* The first warp's threads come last. */
RD_FN uint32_t rd_turned(void) {
  const uint32_t warp = blockDim.x < 32 ? blockDim.x : 32;
  return (threadIdx.x + blockDim.x - warp) % blockDim.x;
}

/* ---- the receiving side, by thread 0 ---- */

/* Tells the proxy how large the next receives are, up to 8 steps ahead. They land in the slots. */
RD_FN void rd_grant_receives(struct rd_block *b) {
  const uint64_t before = b->granted;
  struct rt_action a;
  while (b->grant_i < b->n && b->granted < b->recv.step + RT_STEPS) {
    rd_action(&b->job.sched, b->grant_i++, &a);
    if (!a.recv) continue;
    struct rt_slot *slot = &b->recv.slot[b->granted++ % RT_STEPS];
    slot->ptr = slot->mhandle = NULL;
    slot->capacity = a.n * b->job.sched.esize;
  }
  if (b->granted != before) rd_store_release_sys(b->recv.credit, b->granted);
}

RD_FN bool rd_recv_wait(struct rd_block *b) {
  if (rd_fifo_look(&b->recv, b->recv.tail)) return true;
  b->job.state = RT_DEVICE_ABORTED;
  return false;
}

/* Is the step that came of the size, and between kernels of the protocol and call, that our own call asks for? */
RD_FN bool rd_recv_matches(struct rd_block *b) {
  const struct rt_slot came = b->recv.slot[b->recv.step % RT_STEPS];
  const bool same_call = b->proxied || came.call == b->job.call;
  if (came.bytes == b->in_bytes && same_call && (b->proxied || (int)came.proto == b->job.proto)) return true;
  b->job.state = RT_DEVICE_MISMATCH;
  b->job.got = same_call ? (uint64_t)came.bytes : came.call >> 4;
  b->job.expected = same_call ? b->in_bytes : b->job.call >> 4;
  return false;
}

RD_FN void rd_recv_finish(struct rd_block *b) {
  if (!b->proxied) {
    rd_fifo_return(&b->recv);
    b->granted = b->recv.step + 1 + RT_STEPS;
  } /* else credit follows the next grant */
  b->recv.step++;
}

/* ---- what is to be moved, by thread 0 ---- */

/* Bytes of a step on the FIFO; both ends know which steps of LL are written to the slot's end. */
RD_FN uint64_t rd_step_bytes(const struct rd_fifo *f, int proto, uint64_t payload) {
  if (proto == RT_LL) return rd_ll_out_lines(f, payload) * RT_LL_LINE;
  return proto == RD_LL128 ? rd_ll128_lines(payload) * RD_LL128_LINE : payload;
}

RD_FN void rd_work_fill(struct rd_block *b, struct rt_work *w) {
  const struct rt_action *a = &b->action;
  const bool local = a->reduce || !a->recv;
  w->nsrc = w->ndst = 0;
  if (local) w->src[w->nsrc++] = a->src; /* first, where pre-operations are made */
  if (a->recv) w->src[w->nsrc++] = rd_fifo_slot(&b->recv);
  if (a->dst) w->dst[w->ndst++] = a->dst;
  if (a->send) w->dst[w->ndst++] = rd_fifo_slot(&b->send);
  const bool plain = b->job.op < 0; /* then in bytes, whatever the type */
  w->count = plain ? a->n * b->job.sched.esize : a->n;
  w->type = plain ? RT_UINT8 : b->job.type;
  w->op = plain ? RT_SUM : b->job.op;
  w->scalar = b->job.scalar;
  w->npre = local;
  w->last = a->last;
}

RD_FN void rd_lines_fill(struct rd_block *b, const struct rt_work *w, struct rd_lines *l) {
  const struct rt_action *a = &b->action;
  l->in = a->recv ? rd_fifo_slot(&b->recv) : NULL;
  l->out = a->send ? rd_fifo_slot(&b->send) : NULL;
  l->local = w->npre ? a->src : NULL;
  l->dst = a->dst;
  l->bytes = a->n * b->job.sched.esize;
  l->in_step = b->recv.step;
  l->out_step = b->send.step;
  l->out_lines = b->out_bytes / RT_LL_LINE;
  l->tail = b->recv.tail;
  l->type = w->type;
  l->op = w->op;
  l->what = (rt_work_npre(w) > 0 ? RD_PRE : 0) | (w->nsrc > 1 ? RD_REDUCE : 0) | (rt_work_post(w) ? RD_POST : 0);
  l->scalar = w->scalar;
}

/* Until action i can be done: then `step` says what it is. */
RD_FN void rd_step_begin(struct rd_block *b, uint64_t i) {
  const struct rt_action *a = &b->action;
  const int proto = b->job.proto;
  b->step.go = false;
  if (b->job.state != RT_DEVICE_DONE || i == b->n) return;
  const uint64_t payload = a->n * b->job.sched.esize;
  if (b->proxied) rd_grant_receives(b);
  b->receives = a->recv;
  b->sends = a->send;
  if (a->recv) b->in_bytes = rd_step_bytes(&b->recv, proto, payload);
  if (a->recv && proto == RT_SIMPLE && (!rd_recv_wait(b) || !rd_recv_matches(b))) return;
  if (a->send) {
    b->out_bytes = rd_step_bytes(&b->send, proto, payload);
    if (!rd_fifo_look(&b->send, b->send.credit)) {
      b->job.state = RT_DEVICE_ABORTED;
      return;
    }
  }
  rd_work_fill(b, &b->step.work);
  if (proto != RT_SIMPLE) rd_lines_fill(b, &b->step.work, &b->step.lines);
  b->step.go = true;
}

/* All data of the action has been moved; or some of it has not, since a line did not come. */
RD_FN void rd_step_end(struct rd_block *b, bool moved) {
  const bool lines = b->step.proto != RT_SIMPLE;
  /* First: the next rank waits for it, and the tail of lines that came in may still be on its way. */
  if (b->sends && moved) {
    rd_fifo_publish(&b->send, b->step.proto, b->out_bytes);
    b->send.step++;
  }
  if (!b->receives) return;
  if (lines && (!rd_recv_wait(b) || !rd_recv_matches(b))) return;
  if (moved) {
    rd_recv_finish(b);
    return;
  }
  /* The step is ours, and yet a line of it was not there: we gave up too early, or the sender breaks the rules. */
  b->job.state = rd_load_relaxed_sys(b->recv.abort) ? RT_DEVICE_ABORTED : RT_DEVICE_MISMATCH;
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
RD_FN bool rd_wait_job(const struct rt_device_launch *launch, int job) {
  uint32_t looks = 0;
  if (job < 0) return true;
  while (rd_load_acquire_sys(&launch->job[job].ran) != launch->run)
    if (rd_wait_aborted(&looks, launch->abort)) return false;
  return launch->job[job].state == RT_DEVICE_DONE;
}

RD_FN void rd_fifo_open(struct rd_fifo *f, const struct rt_conn *c, const struct rd_block *b, const uint32_t *abort) {
  f->buff = b->job.proto == RT_SIMPLE && c->device_buff ? c->device_buff : c->buff[b->job.proto];
  f->slot_size = c->slot_size[b->job.proto];
  f->slot = c->slot;
  f->tail = c->tail;
  f->credit = c->credit;
  f->abort = abort;
  f->step = c->step;
  f->seen = c->seen;
  f->call = b->job.call;
}

RD_FN void rd_fifo_close(const struct rd_fifo *f, struct rt_conn *c) {
  c->step = f->step;
  c->seen = f->seen;
}

/* By thread 0, which then knows all of the job, and its first action. */
RD_FN void rd_job_begin(struct rd_block *b, const struct rt_device_launch *launch) {
  struct rt_device_job *job = &b->job;
  b->opened = b->step.go = false;
  if (!rd_wait_job(launch, job->recv_after) || !rd_wait_job(launch, job->send_after)) {
    job->state = RT_DEVICE_ABORTED;
    return;
  }
  job->state = RT_DEVICE_DONE;
  b->step.proto = job->proto;
  b->step.lines.abort = launch->abort;
  b->proxied = job->recv && (job->recv->flags & RT_CONN_PROXY);
  if (job->recv) {
    rd_fifo_open(&b->recv, job->recv, b, launch->abort);
    b->granted = job->recv->granted;
  }
  if (job->send) rd_fifo_open(&b->send, job->send, b, launch->abort);
  b->opened = true;
  if (job->deferred) {
    const unsigned esize = (unsigned)rt_type_size(job->type);
    job->scalar = rt_factor(job->type, rd_word_load((const char *)job->deferred, 0, esize));
  }
  b->grant_i = 0;
  b->n = rt_sched_actions_(&job->sched);
  if (b->n > 0) rd_action(&job->sched, 0, &b->action);
  rd_step_begin(b, 0);
}

/* By thread 0, when no thread touches the job's memory any more. */
RD_FN void rd_job_end(struct rd_block *b, struct rt_device_launch *launch) {
  struct rt_device_job *job = &launch->job[blockIdx.x];
  if (b->opened) {
    if (job->recv) rd_fifo_close(&b->recv, job->recv);
    if (job->recv) job->recv->granted = b->granted;
    if (job->send) rd_fifo_close(&b->send, job->send);
  }
  job->state = b->job.state;
  job->got = b->job.got;
  job->expected = b->job.expected;
  rd_store_release_sys(&job->ran, launch->run);
}

/* The kernel: block j runs job j. */
RD_FN void rd_collective_block(struct rt_device_launch *launch) {
  RD_SHARED(struct rd_block, shared);
  struct rd_block *b = &shared;
  const uint64_t *from = (const uint64_t *)(const void *)&launch->job[blockIdx.x];
  uint64_t *to = (uint64_t *)(void *)&b->job;
  for (unsigned i = threadIdx.x; i < sizeof b->job / sizeof *to; i += blockDim.x) to[i] = from[i];
  __syncthreads();
  if (threadIdx.x == 0) rd_job_begin(b, launch);
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
  if (threadIdx.x == 0) rd_job_end(b, launch);
}

#endif
