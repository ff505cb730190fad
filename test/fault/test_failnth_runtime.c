/* SPDX-License-Identifier: Apache-2.0
 * TEST-PRELOAD: rail-fault
 * TEST-LIMIT: 240
 *
 * Proves: whichever allocation or system call fails in one rank, from the first call to the last, both ranks come to an
 * end: success, or an error with a text; no crash, no hang, no descriptor or thread left.
 */
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/preload/preload.h"
#include "rail/railyard.h"
#include "test/harness/program.h"
#include "test/harness/ranks.h"

#define MOST_CALLS 3000

struct report {
  atomic_bool hit;
  char name[32];
  long seen;
  atomic_int result[2];
};

struct sweep {
  long n;
  int kinds, failing;
};

/* Where the first error came, 0 success. */
static ncclResult_t whole_life(const struct rank *rank, ncclUniqueId *id, bool *have_id) {
  static int32_t v[2000];
  ncclComm_t comm = NULL;
  ncclResult_t r = ncclSuccess;
  if (rank->rank == 0) r = ncclGetUniqueId(id);
  *have_id = r == ncclSuccess;
  char ok = *have_id;
  rank_broadcast(rank, 0, &ok, 1);
  if (!ok) return rank->rank == 0 ? r : ncclSystemError;
  rank_broadcast(rank, 1, id, sizeof *id);
  r = ncclCommInitRank(&comm, 2, *id, rank->rank);
  if (r != ncclSuccess) return r;
  for (int i = 0; i < 2000; i++) v[i] = i;
  r = ncclAllReduce(v, v, 2000, ncclInt32, ncclSum, comm, NULL);
  if (r == ncclSuccess) r = railCommWait(comm);
  if (r == ncclSuccess)
    for (int i = 0; i < 2000; i++) ENSURE(v[i] == 2 * i, "success, but element %d is %d", i, v[i]);
  else
    ENSURE(ncclGetLastError(comm)[0], "an error without a text");
  ncclResult_t end = ncclCommDestroy(comm);
  return r == ncclSuccess ? end : r;
}

static void one_rank(const struct rank *rank, void *arg) {
  const struct sweep *s = arg;
  struct report *report = rank->shared;
  int fds = kit_fd_count(), threads = kit_thread_count();
  ncclUniqueId id;
  bool have_id = false;
  if (rank->rank == s->failing) kit_fail_arm(s->n, s->kinds);
  ncclResult_t r = whole_life(rank, &id, &have_id);
  atomic_store(&report->result[rank->rank], (int)r);
  if (rank->rank == s->failing) {
    kit_fail_disarm();
    report->seen = kit_fail_seen();
    if (kit_fail_hit()) {
      snprintf(report->name, sizeof report->name, "%s", kit_fail_hit());
      atomic_store(&report->hit, true);
    }
  }
  if (r != ncclSuccess && rank->rank == s->failing)
    ENSURE(ncclGetLastError(NULL)[0], "result %d without a text", (int)r);
  uint64_t deadline =
      rail_deadline_in_ms(kit_patience_ms(5000)); /* the rendezvous ends by itself, at its timeout */
  while ((kit_fd_count() > fds || kit_thread_count() > threads) && !rail_deadline_passed(deadline)) usleep(2000);
  ENSURE(kit_fd_count() <= fds, "%d descriptors, %d before", kit_fd_count(), fds);
  ENSURE(kit_thread_count() <= threads, "%d threads, %d before", kit_thread_count(), threads);
}

/* Calls that fail in one job each, side by side: most of the time is spent waiting for a rank's timeout. */
#define BESIDE 8

struct attempt {
  struct sweep sweep;
  struct job *job;
};

static void finish(void *arg) { job_end(((struct attempt *)arg)->job, kit_patience_ms(15000), 0); }

struct tally {
  int errors, beyond, bad;
};

static void check_attempt(struct attempt *a, struct tally *t) {
  char why[600];
  /* The shared memory goes with the job: wait first, then look. */
  for (int r = 0; r < 2; r++) job_wait(a->job, r, kit_patience_ms(15000), NULL);
  struct report report = *(struct report *)job_shared(a->job);
  bool hit = atomic_load(&report.hit);
  t->beyond += !hit;
  t->errors += hit && atomic_load(&report.result[a->sweep.failing]) != ncclSuccess;
  if (kit_catch(finish, a, why, sizeof why)) return;
  printf("# call %ld of rank %d (%s): %s\n", a->sweep.n, a->sweep.failing, hit ? report.name : "not reached", why);
  t->bad++;
}

static void sweep(const char *env, int kinds, int failing) {
  if (!kit_fail_loaded()) tap_skip_case("librail-fault.so is not preloaded");
  struct tally t = {0, 0, 0};
  char with[300];
  snprintf(with, sizeof with, "NCCL_DEBUG=%s RAIL_BOOTSTRAP_TIMEOUT=1 RAIL_PROXY=inline %s",
           getenv("RAIL_TEST_VERBOSE") ? "WARN" : "NONE", env);
  const char *from = getenv("RAIL_TEST_FROM");
  long n = from ? atol(from) : 1;
  for (; n < MOST_CALLS && t.beyond < 3 && t.bad < 5; n += BESIDE) {
    struct attempt a[BESIDE];
    t.beyond = 0;
    for (int i = 0; i < BESIDE; i++) {
      a[i].sweep = (struct sweep){.n = n + i, .kinds = kinds, .failing = failing};
      a[i].job = job_start(with, 2, one_rank, &a[i].sweep);
    }
    for (int i = 0; i < BESIDE; i++) check_attempt(&a[i], &t);
  }
  printf("# about %ld calls of rank %d, %d of them fatal\n", n - t.beyond - 1, failing, t.errors);
  ENSURE(t.bad == 0, "%d or more calls whose failure ends badly", t.bad);
  ENSURE(n > 20 && t.errors > 10, "only %ld calls and %d errors: nothing was swept", n, t.errors);
}

static void need_plugin(void) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
}

TEST(allocations_shm) { sweep("", KIT_FAIL_ALLOC, 0); }
TEST(syscalls_shm) { sweep("", KIT_FAIL_SYSCALL, 0); }
TEST(everything_in_the_other_rank_shm) { sweep("", KIT_FAIL_ALL, 1); }
TEST(allocations_net) {
  need_plugin();
  sweep("NCCL_SHM_DISABLE=1", KIT_FAIL_ALLOC, 0);
}
TEST(syscalls_net) {
  need_plugin();
  sweep("NCCL_SHM_DISABLE=1", KIT_FAIL_SYSCALL, 0);
}
TEST(everything_in_the_other_rank_net) {
  need_plugin();
  sweep("NCCL_SHM_DISABLE=1", KIT_FAIL_ALL, 1);
}

TEST_MAIN(TEST_CASE(allocations_shm), TEST_CASE(syscalls_shm), TEST_CASE(everything_in_the_other_rank_shm),
          TEST_CASE(allocations_net), TEST_CASE(syscalls_net), TEST_CASE(everything_in_the_other_rank_net))
