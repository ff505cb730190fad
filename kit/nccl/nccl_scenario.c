/* SPDX-License-Identifier: Apache-2.0
 *
 * Communicators from their making to their end: made again and again, two at once, split; a rank that is killed, that
 * aborts, or that is stopped for a while. Collectives are all-reduces of floats, which NCCL runs as it likes.
 *
 * A rank that is lost is noticed by its neighbours' proxies. All others wait for data that does not come, until
 * somebody aborts them: a watchdog in a framework, here the rank that noticed it.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_call_trace.h"
#include "kit/nccl/nccl_rank.h"

#define FLOAT 7 /* of NCCL's types */
#define SMALL 1000
#define LARGE (256u << 10) /* elements: several steps of every channel */
#define ROUNDS 20          /* before something happens */
#define STOPPED_S 3
#define GRAPH_LAUNCHES 3
#define GRAPH_CALLS 20 /* in one graph, as the gradients of a training step */
#define CAPTURE_THREAD 1 /* cudaStreamCaptureModeThreadLocal */

static struct kit_nccl_call all_reduce(const struct kit_nccl_rank *r, size_t count, unsigned round) {
  return (struct kit_nccl_call){.coll = KIT_NCCL_ALL_REDUCE, .type = FLOAT, .count = count, .rank = r->rank,
                                .ranks = r->n, .round = round};
}

/* One all-reduce whose contents are right. */
static void one_call(struct kit_nccl_rank *r, size_t count, unsigned round) {
  struct kit_nccl_call c = all_reduce(r, count, round);
  size_t wrong = 0;
  kit_nccl_prepare(r, &c, false);
  NCCL(r, kit_nccl_start(r, &c, false));
  NCCL(r, kit_nccl_wait(r));
  kit_nccl_finish(r, &c, false, &wrong);
  ENSURE(!wrong, "%s", r->wrong);
}

static int version_of(struct kit_nccl_rank *r) {
  int version = 0;
  NCCL(r, r->ncclGetVersion(&version));
  return version;
}

/* NCCL 2.28.3 to 2.29.7 forget the plugin's name when they unload it, with the last communicator of the process
 * (nccl#1978): there one more is kept as long as others come and go. */
static void *keep_one(struct kit_nccl_rank *r) {
  const int version = version_of(r);
  return version >= 22803 && version <= 22907 ? kit_nccl_make_comm(r) : NULL;
}

static void destroy_kept(struct kit_nccl_rank *r, void *kept) {
  kit_barrier(r->self);
  if (kept) kit_nccl_destroy_comm(r, kept);
}

/* ---- made again and again ---- */

static void repeated(struct kit_nccl_rank *r) {
  int n = (int)kit_job_number(kit_process_job(r->self), "repeat", 0), fds = 0, threads = 0;
  long kib = 0;
  ENSURE(n > KIT_NCCL_WARM, "%d communicators; allowed: more than %d", n, KIT_NCCL_WARM);
  void *kept = keep_one(r);
  for (int i = 0; i < n; i++) {
    if (i == KIT_NCCL_WARM) {
      fds = kit_fd_count();
      threads = kit_thread_count();
      kib = kit_rss_kb();
    }
    r->comm = kit_nccl_make_comm(r);
    one_call(r, SMALL, (unsigned)i);
    kit_barrier(r->self);
    kit_nccl_destroy_comm(r, r->comm);
  }
  /* A plugin that NCCL leaves loaded may still be closing connections. */
  const uint64_t until = rail_deadline_in_ms(kit_patience_ms(5000));
  while ((kit_fd_count() > fds || kit_thread_count() > threads) && !rail_deadline_passed(until)) usleep(10000);
  int more_fds = kit_fd_count() - fds, more_threads = kit_thread_count() - threads;
  double each = (double)(kit_rss_kb() - kib) / (n - KIT_NCCL_WARM);
  destroy_kept(r, kept);
  kit_metric(r->self, "communicators", n, "");
  kit_metric(r->self, "resident_KiB_a_communicator", each, "KiB");
  ENSURE(more_fds <= 0, "%d file descriptors are left by %d communicators", more_fds, n - KIT_NCCL_WARM);
  ENSURE(more_threads <= 0, "%d threads are left by %d communicators", more_threads, n - KIT_NCCL_WARM);
}

/* ---- two at once, and parts ---- */

/* Neither waits for the other; each has a stream and buffers of its own. */
static void two_at_once(struct kit_nccl_rank *first) {
  struct kit_nccl_rank second;
  kit_nccl_rank_open(&second, first->self, 0, first->room);
  struct kit_nccl_rank *both[2] = {first, &second}, *r = first;
  for (int i = 0; i < 2; i++) both[i]->comm = kit_nccl_make_comm(both[i]);
  for (unsigned round = 0; round < ROUNDS; round++) {
    struct kit_nccl_call calls[2];
    size_t wrong = 0;
    for (int i = 0; i < 2; i++) {
      calls[i] = all_reduce(both[i], i ? SMALL : LARGE, 2 * round + (unsigned)i);
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
  one_call(&second, LARGE, 0); /* the end of one is not the other's */
  kit_barrier(first->self);
  kit_nccl_destroy_comm(r, second.comm);
  kit_nccl_rank_close(&second);
}

/* Even and odd ranks, where there are enough for two parts; their order is turned round. */
static void split(struct kit_nccl_rank *r) {
  int parts = r->n >= 4 ? 2 : 1;
  struct kit_nccl_rank child = *r;
  r->comm = kit_nccl_make_comm(r);
  one_call(r, LARGE, 1);
  NCCL(r, r->ncclCommSplit(r->comm, r->rank % parts, r->n - r->rank, &child.comm, NULL));
  child.n = r->n / parts + (r->rank % parts < r->n % parts);
  child.rank = child.n - 1 - r->rank / parts;
  for (unsigned round = 2; round < ROUNDS; round++) one_call(round % 2 ? r : &child, round % 4 ? SMALL : LARGE, round);
  kit_barrier(r->self);
  kit_nccl_destroy_comm(r, child.comm);
  one_call(r, LARGE, 0);
  kit_barrier(r->self);
  kit_nccl_destroy_comm(r, r->comm);
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
  struct kit_nccl_call c = all_reduce(r, LARGE, 0);
  size_t wrong = 0;
  r->comm = kit_nccl_make_comm(r);
  void *exec = capture(r, &c);
  for (c.round = 0; c.round < GRAPH_LAUNCHES; c.round++) {
    kit_nccl_prepare(r, &c, false);
    CUDA(r->cudaGraphLaunch(exec, r->stream));
    NCCL(r, kit_nccl_wait(r));
    kit_nccl_finish(r, &c, false, &wrong);
    ENSURE(!wrong, "launch %u of a graph: %s", c.round, r->wrong);
    one_call(r, SMALL, c.round);
  }
  CUDA(r->cudaGraphExecDestroy(exec));
  kit_barrier(r->self);
  kit_nccl_destroy_comm(r, r->comm);
}

/* ---- a rank that is lost ---- */

static int last_of(const struct kit_nccl_rank *r) { return r->n - 1; }

/* Sent by the lost rank when it goes and by each survivor when it notices; the difference is NCCL's detection time. */
static void send_time_to_survivors(struct kit_nccl_rank *r, uint64_t when) {
  for (int to = 0; to < last_of(r); to++)
    if (to != r->rank) kit_send_bytes(r->self, to, &when, sizeof when);
}

/* NCCL 2.26 and 2.27 drop what a plugin's calls return to their proxy: no rank notices, and a framework's watchdog has
 * to. There each rank aborts after so long. */
#define UNREPORTED_NS 2000000000ull
static bool drops_errors(struct kit_nccl_rank *r) { return version_of(r) / 100 == 226 || version_of(r) / 100 == 227; }

/* Calls until NCCL reports an error, or another rank says that it has. */
static void wait_for_loss(struct kit_nccl_rank *r) {
  uint64_t went, noticed = 0, give_up = drops_errors(r) ? rail_now_ns() + UNREPORTED_NS : UINT64_MAX;
  int last = last_of(r);
  bool told = false;
  kit_process_allow_loss(r->self, last);
  for (unsigned round = ROUNDS; !noticed && !told; round++) {
    struct kit_nccl_call c = all_reduce(r, LARGE, round);
    size_t wrong = 0;
    bool done = false;
    kit_nccl_prepare(r, &c, false);
    int error = kit_nccl_start(r, &c, false); /* it may say so at once */
    kit_call_begin(KIT_CALL_COLLECTIVE);
    while (!error && !told && !(done = kit_nccl_poll(r, &error))) {
      for (int from = 0; from < last; from++)
        if (from != r->rank && kit_bytes_ready(r->self, from, sizeof noticed)) told = true;
      told |= rail_now_ns() > give_up;
      usleep(200);
    }
    kit_call_end();
    if (error) noticed = rail_now_ns();
    else if (done) kit_nccl_finish(r, &c, false, &wrong);
    ENSURE(!wrong, "a result that came while a rank was lost is wrong: %s", r->wrong);
  }
  send_time_to_survivors(r, noticed);
  kit_recv_bytes(r->self, last, &went, sizeof went);
  if (noticed) kit_metric(r->self, "noticed_after", (noticed < went ? 0 : (double)(noticed - went) / 1e6), "ms");
}

static void abort_comm(struct kit_nccl_rank *r) {
  uint64_t start = rail_now_ns();
  kit_call_begin(KIT_CALL_COMM_ABORT);
  NCCL(r, r->ncclCommAbort(r->comm));
  kit_call_end();
  kit_metric(r->self, "aborted_in", (double)(rail_now_ns() - start) / 1e6, "ms");
}

/* Reads the other survivors' times, so that nothing of this job is left in the pipes. */
static void drain_survivors(struct kit_nccl_rank *r) {
  uint64_t noticed;
  for (int from = 0; from < last_of(r); from++)
    if (from != r->rank) kit_recv_bytes(r->self, from, &noticed, sizeof noticed);
}

/* In NCCL 2.24 and 2.25 the proxy's thread tries an operation that failed again and again, also when it shall stop:
 * after an error of the plugin ncclCommAbort never ends. */
static bool abort_never_ends(struct kit_nccl_rank *r) {
  return version_of(r) / 100 == 224 || version_of(r) / 100 == 225;
}

static void abort_or_end(struct kit_nccl_rank *r) {
  if (!abort_never_ends(r)) {
    abort_comm(r);
    drain_survivors(r);
    return;
  }
  drain_survivors(r);
  kit_note(r->self, "ended, not aborted: ncclCommAbort of NCCL 2.24 and 2.25 never ends after a plugin's error");
  kit_process_expect_death(r->self);
  kill(getpid(), SIGKILL);
}

static void killed(struct kit_nccl_rank *r) {
  r->comm = kit_nccl_make_comm(r);
  for (unsigned round = 0; round < ROUNDS; round++) one_call(r, LARGE, round);
  if (r->rank == last_of(r)) {
    struct kit_nccl_call c = all_reduce(r, LARGE, ROUNDS);
    kit_process_expect_death(r->self);
    kit_nccl_prepare(r, &c, false);
    NCCL(r, kit_nccl_start(r, &c, false));
    send_time_to_survivors(r, rail_now_ns());
    kill(getpid(), SIGKILL);
  }
  wait_for_loss(r);
  abort_or_end(r);
}

/* And all go on with a new communicator. */
static void aborted(struct kit_nccl_rank *r) {
  void *kept = keep_one(r);
  r->comm = kit_nccl_make_comm(r);
  for (unsigned round = 0; round < ROUNDS; round++) one_call(r, LARGE, round);
  if (r->rank == last_of(r)) {
    send_time_to_survivors(r, rail_now_ns());
    abort_comm(r);
  } else {
    wait_for_loss(r);
    abort_or_end(r);
  }
  if (abort_never_ends(r)) return;
  kit_barrier(r->self);
  r->comm = kit_nccl_make_comm(r);
  one_call(r, LARGE, 0);
  kit_barrier(r->self);
  kit_nccl_destroy_comm(r, r->comm);
  destroy_kept(r, kept);
}

/* A process that is only stopped, as under a debugger or on a busy host, is not lost. */
static void stop_for_a_while(void) {
  pid_t rank = getpid(), waker = fork();
  ENSURE(waker >= 0, "fork failed");
  if (waker == 0) {
    sleep(STOPPED_S);
    kill(rank, SIGCONT);
    _exit(0);
  }
  raise(SIGSTOP);
  waitpid(waker, NULL, 0);
}

static void stopped(struct kit_nccl_rank *r) {
  r->comm = kit_nccl_make_comm(r);
  for (unsigned round = 0; round < ROUNDS; round++) {
    if (round == ROUNDS / 2 && r->rank == last_of(r)) stop_for_a_while();
    one_call(r, LARGE, round);
  }
  kit_barrier(r->self);
  kit_nccl_destroy_comm(r, r->comm);
}

/* ---- all ---- */

/* No count here: a declared one that differs does not compile. */
const struct kit_nccl_scenario kit_nccl_scenarios[] = {
  {"comm.repeated", "communicators made and destroyed again and again leave no file descriptor and no thread", true,
   repeated},
  {"comm.two_at_once", "two communicators of one process work at the same time, and one when the other is gone", false,
   two_at_once},
  {"comm.split", "a communicator that was split works beside its parts", false, split},
  {"comm.graph", "collectives that were captured in one CUDA graph are launched several times, between others", false,
   captured},
  {"fault.killed", "when a rank is killed NCCL reports an error on another one, and all can abort", false, killed},
  {"fault.aborted", "when a rank aborts NCCL reports an error on another one, and a new communicator works", false,
   aborted},
  {"fault.stopped", "a rank that is stopped for 3 s and goes on is no error", false, stopped},
};

void kit_nccl_scenario(struct kit_process *self) {
  struct kit_nccl_rank r;
  if (kit_job_number(kit_process_job(self), "gpus_per_process", 1) > 1)
    kit_skip("communicators are made, split and lost with one GPU a process; leave out --gpus-per-process");
  const char *name = kit_job_arg(kit_process_job(self), "scenario"); /* good until the next argument is read */
  for (int i = 0; i < KIT_NCCL_SCENARIOS; i++) {
    if (strcmp(kit_nccl_scenarios[i].name, name) != 0) continue;
    kit_nccl_rank_open(&r, self, 0, LARGE * sizeof(float));
    kit_nccl_scenarios[i].run(&r);
    kit_nccl_rank_close(&r);
    return;
  }
  ENSURE(false, "unknown scenario %s", name);
}
