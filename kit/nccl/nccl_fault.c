/* SPDX-License-Identifier: Apache-2.0
 *
 * The last rank is killed, aborts, or is stopped for a while, or the link between two hosts is lost, at a moment that
 * the seed decides.
 *
 * A loss is noticed by the proxies of its neighbours. All others wait for data that does not come, until somebody
 * aborts them: a watchdog in a framework, here the rank that noticed it.
 */
#include "kit/nccl/nccl_fault.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_call_trace.h"

#define STOPPED_S 3
#define MOMENT_US 5000            /* an all-reduce takes less on a quiet machine */
#define UNREPORTED_NS 2000000000ull

static int last_of(const struct kit_nccl_rank *r) { return r->n - 1; }

/* ---- the moment ---- */

/* So long after the start of an all-reduce, the same for all ranks. */
struct moment { unsigned round; unsigned us; };

static struct moment draw_moment(const struct kit_nccl_rank *r) {
  struct kit_rng rng = {.state = kit_process_job(r->self)->seed};
  unsigned round = 1 + kit_rng_below(&rng, KIT_NCCL_ROUNDS);
  return (struct moment){.round = round, .us = kit_rng_below(&rng, MOMENT_US)};
}

/* A communicator, and all calls before the one in which it happens. */
static struct moment work_until_moment(struct kit_nccl_rank *r) {
  struct moment m = draw_moment(r);
  r->comm = kit_nccl_make_comm(r);
  for (unsigned round = 0; round < m.round; round++) kit_nccl_one_call(r, KIT_NCCL_LARGE, round);
  kit_barrier(r->self); /* what was sent last has arrived everywhere */
  return m;
}

/* Starts the call in which it happens, and returns when it is time. */
static void start_last_call(struct kit_nccl_rank *r, struct moment m) {
  struct kit_nccl_call c = kit_nccl_all_reduce(r, KIT_NCCL_LARGE, m.round);
  kit_nccl_prepare(r, &c, false);
  NCCL(r, kit_nccl_start(r, &c, false));
  usleep(m.us);
}

/* ---- what the others see ---- */

/* Ranks that tell each other; the last one is among them where it is not what is lost. */
struct peers { int n; };

static struct peers without_last(const struct kit_nccl_rank *r) { return (struct peers){last_of(r)}; }

/* Sent by the last rank when it happens and by each peer when it notices; the difference is NCCL's detection time. */
static void send_time(struct kit_nccl_rank *r, struct peers peers, uint64_t when) {
  for (int to = 0; to < peers.n; to++)
    if (to != r->rank) kit_send_bytes(r->self, to, &when, sizeof when);
}

/* NCCL 2.26 and 2.27 drop what a plugin's calls return to their proxy: no rank notices, and a framework's watchdog has
 * to. There each rank aborts after so long. */
static bool drops_errors(struct kit_nccl_rank *r) {
  int release = kit_nccl_version(r) / 100;
  return release == 226 || release == 227;
}

/* Has another peer noticed it? The last rank's first time is when it happened. */
static bool is_told(struct kit_nccl_rank *r, struct peers peers) {
  uint64_t when[2];
  for (int from = 0; from < peers.n; from++)
    if (from != r->rank && kit_bytes_ready(r->self, from, from == last_of(r) ? sizeof when : sizeof *when)) return true;
  return false;
}

/* Makes calls until NCCL reports an error, and returns when; 0: another peer has, or nothing is to be expected.
 * `started`: the first call is under way. */
static uint64_t notice(struct kit_nccl_rank *r, struct peers peers, unsigned round, bool started) {
  uint64_t give_up = drops_errors(r) ? rail_now_ns() + UNREPORTED_NS : UINT64_MAX;
  for (;; round++, started = false) {
    struct kit_nccl_call c = kit_nccl_all_reduce(r, KIT_NCCL_LARGE, round);
    size_t wrong = 0;
    bool done = false, told = false;
    if (!started) kit_nccl_prepare(r, &c, false);
    int error = started ? 0 : kit_nccl_start(r, &c, false); /* it may say so at once */
    kit_call_begin(KIT_CALL_COLLECTIVE);
    while (!error && !told && !(done = kit_nccl_poll(r, &error))) {
      told = is_told(r, peers) || rail_now_ns() > give_up;
      usleep(200);
    }
    kit_call_end();
    if (error) return rail_now_ns();
    if (told) return 0;
    if (done) kit_nccl_finish(r, &c, false, &wrong);
    ENSURE(!wrong, "a result that came while a rank was lost is wrong: %s", r->wrong);
  }
}

/* `happened`: when, of the rank that has started the call in which it did; 0: the last rank says it. */
static void wait_for_loss(struct kit_nccl_rank *r, struct peers peers, unsigned round, uint64_t happened) {
  uint64_t noticed = notice(r, peers, round, happened != 0);
  send_time(r, peers, noticed);
  if (!happened) kit_recv_bytes(r->self, last_of(r), &happened, sizeof happened);
  double ms = noticed < happened ? 0 : (double)(noticed - happened) / 1e6;
  if (noticed) kit_metric(r->self, "noticed_after", ms, "ms");
}

/* The other peers' times, so that nothing of this job is left in the pipes. */
static void drain_peers(struct kit_nccl_rank *r, struct peers peers) {
  uint64_t noticed;
  for (int from = 0; from < peers.n; from++)
    if (from != r->rank) kit_recv_bytes(r->self, from, &noticed, sizeof noticed);
}

/* ---- the end of the communicator ---- */

static void abort_comm(struct kit_nccl_rank *r) {
  uint64_t start = rail_now_ns();
  kit_call_begin(KIT_CALL_COMM_ABORT);
  NCCL(r, r->ncclCommAbort(r->comm));
  kit_call_end();
  kit_metric(r->self, "aborted_in", (double)(rail_now_ns() - start) / 1e6, "ms");
}

/* In NCCL 2.24 and 2.25 the proxy's thread tries an operation that failed again and again, also when it shall stop:
 * after an error of the plugin ncclCommAbort never ends. */
static bool abort_never_ends(struct kit_nccl_rank *r) {
  int release = kit_nccl_version(r) / 100;
  return release == 224 || release == 225;
}

static void abort_or_end(struct kit_nccl_rank *r, struct peers peers) {
  if (!abort_never_ends(r)) {
    abort_comm(r);
    drain_peers(r, peers);
    return;
  }
  drain_peers(r, peers);
  kit_note(r->self, "ended, not aborted: ncclCommAbort of NCCL 2.24 and 2.25 never ends after a plugin's error");
  kit_process_expect_death(r->self);
  kill(getpid(), SIGKILL);
}

/* ---- a rank that is killed ---- */

void kit_nccl_killed(struct kit_nccl_rank *r) {
  struct moment m = work_until_moment(r);
  struct peers peers = without_last(r);
  if (r->rank == last_of(r)) {
    kit_process_expect_death(r->self);
    start_last_call(r, m);
    send_time(r, peers, rail_now_ns());
    kill(getpid(), SIGKILL);
  }
  kit_process_allow_loss(r->self, last_of(r));
  wait_for_loss(r, peers, m.round, 0);
  abort_or_end(r, peers);
}

/* ---- a rank that aborts ---- */

/* And all go on with a new communicator. */
void kit_nccl_aborted(struct kit_nccl_rank *r) {
  void *kept = kit_nccl_keep_one(r);
  struct moment m = work_until_moment(r);
  struct peers peers = without_last(r);
  if (r->rank == last_of(r)) {
    if (!abort_never_ends(r)) start_last_call(r, m); /* which those that end would make fail */
    send_time(r, peers, rail_now_ns());
    abort_comm(r);
  } else {
    kit_process_allow_loss(r->self, last_of(r));
    wait_for_loss(r, peers, m.round, 0);
    abort_or_end(r, peers);
  }
  if (abort_never_ends(r)) return;
  kit_barrier(r->self);
  r->comm = kit_nccl_make_comm(r);
  kit_nccl_one_call(r, KIT_NCCL_LARGE, 0);
  kit_barrier(r->self);
  kit_nccl_destroy_comm(r, r->comm);
  kit_nccl_destroy_kept(r, kept);
}

/* ---- a rank that is stopped ---- */

/* As under a debugger or on a busy host. The child waits for the moment, stops its parent and wakes it. */
static pid_t stop_for_a_while(struct moment m) {
  pid_t rank = getpid(), child = fork();
  ENSURE(child >= 0, "fork failed");
  if (child > 0) return child;
  usleep(m.us);
  kill(rank, SIGSTOP);
  sleep(STOPPED_S);
  kill(rank, SIGCONT);
  _exit(0);
}

void kit_nccl_stopped(struct kit_nccl_rank *r) {
  struct moment m = work_until_moment(r);
  pid_t child = r->rank == last_of(r) ? stop_for_a_while(m) : 0;
  for (unsigned round = m.round; round < m.round + KIT_NCCL_ROUNDS; round++)
    kit_nccl_one_call(r, KIT_NCCL_LARGE, round);
  if (child) waitpid(child, NULL, 0);
  kit_barrier(r->self);
  kit_nccl_destroy_comm(r, r->comm);
}

/* ---- a link ---- */

void kit_nccl_link_lost(struct kit_nccl_rank *r) {
  struct moment m = work_until_moment(r);
  struct peers peers = {r->n};
  uint64_t happened = 0;
  if (r->rank == last_of(r)) {
    start_last_call(r, m);
    happened = rail_now_ns();
    send_time(r, peers, happened);
    kit_send_record(r->self, &happened, sizeof happened); /* rail-kit takes the link down */
  }
  wait_for_loss(r, peers, m.round, happened);
  abort_or_end(r, peers);
}
