/* SPDX-License-Identifier: Apache-2.0
 * Communicators from their making to their end: made again and again, two at once, split, shrunk, in a graph. */
#include "kit/nccl/nccl_fault.h"

#include <malloc.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_call_trace.h"

#define KEPT_KIB 64 /* that the heap may grow by with each communicator; NCCL itself leaves some */
enum { SHRINK_DEFAULT = 0, SHRINK_ABORT = 1 }; /* NCCL's */
#define GRAPH_LAUNCHES 3
#define GRAPH_CALLS 20 /* in one graph, as the gradients of a training step */
#define CAPTURE_THREAD 1 /* cudaStreamCaptureModeThreadLocal */

/* ---- made again and again ---- */

/* KiB in use. What the process has of the system grows with the heaps that threads leave, and says little. */
static double heap_kib(void) {
  struct mallinfo2 m = mallinfo2();
  return (double)(m.uordblks + m.hblkhd) / 1024;
}

static void repeated(struct kit_nccl_rank *r) {
  int n = (int)kit_job_number(kit_process_job(r->self), "repeat", 0), fds = 0, threads = 0;
  double kib = 0;
  ENSURE(n > KIT_NCCL_WARM, "%d communicators; allowed: more than %d", n, KIT_NCCL_WARM);
  void *kept = kit_nccl_keep_one(r);
  for (int i = 0; i < n; i++) {
    if (i == KIT_NCCL_WARM) {
      fds = kit_fd_count();
      threads = kit_thread_count();
      kib = heap_kib();
    }
    r->comm = kit_nccl_make_comm(r);
    kit_nccl_one_call(r, KIT_NCCL_SMALL, (unsigned)i);
    kit_barrier(r->self);
    kit_nccl_destroy_comm(r, r->comm);
  }
  /* A plugin that NCCL leaves loaded may still be closing connections. */
  const uint64_t until = rail_deadline_in_ms(kit_patience_ms(5000));
  while ((kit_fd_count() > fds || kit_thread_count() > threads) && !rail_deadline_passed(until)) usleep(10000);
  int more_fds = kit_fd_count() - fds, more_threads = kit_thread_count() - threads;
  double each = (heap_kib() - kib) / (n - KIT_NCCL_WARM);
  kit_nccl_destroy_kept(r, kept);
  kit_metric(r->self, "communicators", n, "");
  kit_metric(r->self, "heap_KiB_a_communicator", each, "KiB");
  ENSURE(more_fds <= 0, "%d file descriptors are left by %d communicators", more_fds, n - KIT_NCCL_WARM);
  ENSURE(each < KEPT_KIB, "the heap has grown by %.0f KiB with each of %d communicators", each, n - KIT_NCCL_WARM);
  ENSURE(more_threads <= 0, "%d threads are left by %d communicators", more_threads, n - KIT_NCCL_WARM);
}

/* ---- two at once, and parts ---- */

/* Neither waits for the other; each has a stream and buffers of its own. */
static void two_at_once(struct kit_nccl_rank *first) {
  struct kit_nccl_rank second;
  kit_nccl_rank_open(&second, first->self, 0, first->room);
  struct kit_nccl_rank *both[2] = {first, &second}, *r = first;
  for (int i = 0; i < 2; i++) both[i]->comm = kit_nccl_make_comm(both[i]);
  for (unsigned round = 0; round < KIT_NCCL_ROUNDS; round++) {
    struct kit_nccl_call calls[2];
    size_t wrong = 0;
    for (int i = 0; i < 2; i++) {
      calls[i] = kit_nccl_all_reduce(both[i], i ? KIT_NCCL_SMALL : KIT_NCCL_LARGE, 2 * round + (unsigned)i);
      kit_nccl_prepare(both[i], &calls[i], false);
      NCCL(r, kit_nccl_start(both[i], &calls[i], false));
    }
    for (int i = 0; i < 2; i++) {
      NCCL(r, kit_nccl_wait(both[1 - i]));
      kit_nccl_finish(both[1 - i], &calls[1 - i], false, &wrong);
    }
    ENSURE(!wrong, "%s%s", first->wrong, second.wrong);
  }
  kit_barrier(first->self);
  kit_nccl_destroy_comm(r, first->comm);
  kit_nccl_one_call(&second, KIT_NCCL_LARGE, 0); /* the end of one is not the other's */
  kit_barrier(first->self);
  kit_nccl_destroy_comm(r, second.comm);
  kit_nccl_rank_close(&second);
}

/* Even and odd ranks, where there are enough for two parts; their order is turned round. */
static void split(struct kit_nccl_rank *r) {
  int parts = r->n >= 4 ? 2 : 1;
  struct kit_nccl_rank child = *r;
  r->comm = kit_nccl_make_comm(r);
  kit_nccl_one_call(r, KIT_NCCL_LARGE, 1);
  NCCL(r, r->ncclCommSplit(r->comm, r->rank % parts, r->n - r->rank, &child.comm, NULL));
  child.n = r->n / parts + (r->rank % parts < r->n % parts);
  child.rank = child.n - 1 - r->rank / parts;
  for (unsigned round = 2; round < KIT_NCCL_ROUNDS; round++)
    kit_nccl_one_call(round % 2 ? r : &child, round % 4 ? KIT_NCCL_SMALL : KIT_NCCL_LARGE, round);
  kit_barrier(r->self);
  kit_nccl_destroy_comm(r, child.comm);
  kit_nccl_one_call(r, KIT_NCCL_LARGE, 0);
  kit_barrier(r->self);
  kit_nccl_destroy_comm(r, r->comm);
}

/* Of the ranks but the last. */
static void use_shrunk(struct kit_nccl_rank *r, int flags) {
  int last = r->n - 1;
  struct kit_nccl_rank child = *r;
  child.n = last;
  kit_call_begin(KIT_CALL_COMM_INIT);
  NCCL(r, r->shrink(r->comm, &last, 1, &child.comm, NULL, flags));
  kit_call_end();
  for (unsigned round = 2; round < KIT_NCCL_ROUNDS; round++) kit_nccl_one_call(&child, KIT_NCCL_LARGE, round);
  kit_nccl_destroy_comm(r, child.comm);
}

/* First while all is well, then while a call waits for the last rank, which does not make it. */
static void shrunk(struct kit_nccl_rank *r) {
  const struct kit_nccl_call c = kit_nccl_all_reduce(r, KIT_NCCL_LARGE, 0);
  const bool stays = r->rank < r->n - 1;
  if (!r->shrink) kit_skip("this NCCL has no ncclCommShrink, which came with 2.27");
  r->comm = kit_nccl_make_comm(r);
  kit_nccl_one_call(r, KIT_NCCL_LARGE, 1);
  if (stays) use_shrunk(r, SHRINK_DEFAULT);
  kit_nccl_one_call(r, KIT_NCCL_LARGE, 0);
  kit_barrier(r->self);
  if (stays) {
    kit_nccl_prepare(r, &c, false);
    NCCL(r, kit_nccl_start(r, &c, false));
    use_shrunk(r, SHRINK_ABORT);
  }
  kit_barrier(r->self);
  kit_call_begin(KIT_CALL_COMM_ABORT);
  NCCL(r, r->ncclCommAbort(r->comm));
  kit_call_end();
}

/* ---- a graph ---- */

/* The same all-reduce again and again, as a stream has captured it: what the stream then does for each launch. */
static void *capture(struct kit_nccl_rank *r, const struct kit_nccl_call *c) {
  void *graph, *exec;
  CUDA(r->cudaStreamBeginCapture(r->stream, CAPTURE_THREAD));
  for (int i = 0; i < GRAPH_CALLS; i++) NCCL(r, kit_nccl_start(r, c, false));
  CUDA(r->cudaStreamEndCapture(r->stream, &graph));
  CUDA(r->cudaGraphInstantiate(&exec, graph, 0));
  CUDA(r->cudaGraphDestroy(graph));
  return exec;
}

/* Launched again and again with other contents, between calls that are in no graph. */
static void captured(struct kit_nccl_rank *r) {
  struct kit_nccl_call c = kit_nccl_all_reduce(r, KIT_NCCL_LARGE, 0);
  size_t wrong = 0;
  r->comm = kit_nccl_make_comm(r);
  void *exec = capture(r, &c);
  for (c.round = 0; c.round < GRAPH_LAUNCHES; c.round++) {
    kit_nccl_prepare(r, &c, false);
    CUDA(r->cudaGraphLaunch(exec, r->stream));
    NCCL(r, kit_nccl_wait(r));
    kit_nccl_finish(r, &c, false, &wrong);
    ENSURE(!wrong, "launch %u of a graph: %s", c.round, r->wrong);
    kit_nccl_one_call(r, KIT_NCCL_SMALL, c.round);
  }
  CUDA(r->cudaGraphExecDestroy(exec));
  kit_barrier(r->self);
  kit_nccl_destroy_comm(r, r->comm);
}

/* ---- all ---- */

/* No count here: a declared one that differs does not compile. */
const struct kit_nccl_scenario kit_nccl_scenarios[] = {
  {"comm.repeated", "communicators made and destroyed again and again leave no file descriptor, thread or memory", true,
   false, repeated},
  {"comm.two_at_once", "two communicators of one process work at the same time, and one when the other is gone", false,
   false, two_at_once},
  {"comm.split", "a communicator that was split works beside its parts", false, false, split},
  {"comm.graph", "collectives that were captured in one CUDA graph are launched several times, between others", false,
   false, captured},
  {"comm.shrink", "a communicator without the last rank works, also while a call waits for that one", false, false,
   shrunk},
  {"fault.killed", "when a rank is killed NCCL reports an error on another one, and all can abort", false, false,
   kit_nccl_killed},
  {"fault.aborted", "when a rank aborts NCCL reports an error on another one, and a new communicator works", false,
   false, kit_nccl_aborted},
  {"fault.stopped", "a rank that is stopped for 3 s and goes on is no error", false, false, kit_nccl_stopped},
  {"fault.link_lost", "when the link between two hosts is lost NCCL reports an error, and all can abort", false, true,
   kit_nccl_link_lost},
};

void kit_nccl_scenario(struct kit_process *self) {
  struct kit_nccl_rank r;
  if (kit_job_number(kit_process_job(self), "gpus_per_process", 1) > 1)
    kit_skip("communicators are made, split and lost with one GPU a process; leave out --gpus-per-process");
  const char *name = kit_job_arg(kit_process_job(self), "scenario"); /* good until the next argument is read */
  for (int i = 0; i < KIT_NCCL_SCENARIOS; i++) {
    if (strcmp(kit_nccl_scenarios[i].name, name) != 0) continue;
    kit_nccl_rank_open(&r, self, 0, KIT_NCCL_LARGE * sizeof(float));
    kit_nccl_scenarios[i].run(&r);
    kit_nccl_rank_close(&r);
    return;
  }
  ENSURE(false, "unknown scenario %s", name);
}
