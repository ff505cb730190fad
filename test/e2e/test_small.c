/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan tsan
 *
 * Proves, for collectives of a few bytes between ranks of one host: results are reduced in the order of ranks, with the
 * same bits on all; at the sizes where a payload leaves its line, its slot and the small path; small and large calls in
 * turn, in groups and on several communicators; roots that run ahead of late ranks; and that calls that differ, ranks
 * that leave, abort or die end the others' waits.
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 30000

/* Rounds differently in every order. */
static float value(int rank, size_t i) { return (float)((i * 7919 + 13) % 1000 + 1) / (float)(3 + 10 * rank * rank); }

/* ---- the order of ranks ---- */

static float sum_of(int nranks, size_t i) {
  float sum = value(0, i);
  for (int r = 1; r < nranks; r++) sum += value(r, i);
  return sum;
}

/* 40 bytes are what a line holds, 4096 what is small for up to 16 ranks. */
static const size_t counts[] = {1, 2, 3, 9, 10, 11, 15, 16, 17, 26, 27, 255, 1000, 1023, 1024};
enum { MOST = 1024, NCOUNTS = sizeof counts / sizeof counts[0] };

static void check_all_reduce(ncclComm_t comm, int rank, int nranks, size_t n, bool in_place) {
  float in[MOST], out[MOST + 1];
  for (size_t i = 0; i < n; i++) in[i] = value(rank, i), out[i] = in_place ? in[i] : -1;
  out[n] = -7;
  OK(ncclAllReduce(in_place ? out : in, out, n, ncclFloat, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  for (size_t i = 0; i < n; i++)
    ENSURE(out[i] == sum_of(nranks, i), "%zu of %zu: %.9g, expected %.9g", i, n, (double)out[i],
           (double)sum_of(nranks, i));
  ENSURE(out[n] == -7, "something was written behind %zu elements", n);
}

static void check_reduce(ncclComm_t comm, int rank, int nranks, size_t n, int root) {
  float in[MOST], out[MOST];
  for (size_t i = 0; i < n; i++) in[i] = value(rank, i), out[i] = -1;
  OK(ncclReduce(in, out, n, ncclFloat, ncclSum, root, comm, NULL));
  OK(railCommWait(comm));
  for (size_t i = 0; i < n; i++) ENSURE(out[i] == (rank == root ? sum_of(nranks, i) : -1), "%zu of %zu", i, n);
}

/* nranks blocks of n elements, all small together. */
static void check_blocks(ncclComm_t comm, int rank, int nranks, size_t n) {
  float all[MOST], mine[MOST];
  const size_t total = n * (size_t)nranks;
  for (size_t i = 0; i < total; i++) all[i] = value(rank, i);
  OK(ncclReduceScatter(all, mine, n, ncclFloat, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  for (size_t i = 0; i < n; i++) ENSURE(mine[i] == sum_of(nranks, (size_t)rank * n + i), "%zu of %zu", i, n);
  OK(ncclAllGather(mine, all, n, ncclFloat, comm, NULL));
  OK(railCommWait(comm));
  for (size_t i = 0; i < total; i++) ENSURE(all[i] == sum_of(nranks, i), "%zu of %zu", i, total);
}

static void check_calls(ncclComm_t comm, int rank, int nranks) {
  for (int c = 0; c < NCOUNTS; c++) {
    for (int in_place = 0; in_place < 2; in_place++) check_all_reduce(comm, rank, nranks, counts[c], in_place);
    for (int root = 0; root < nranks; root++) check_reduce(comm, rank, nranks, counts[c], root);
    if (counts[c] * (size_t)nranks <= MOST) check_blocks(comm, rank, nranks, counts[c]);
  }
}

static void in_order(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  check_calls(comm, rank->rank, rank->nranks);
  close_comm(comm);
}

/* The same with all ranks in one process, where the thread sanitizer sees them. */
struct worker {
  ncclComm_t comm;
  int rank, nranks;
};

static void work(void *arg) {
  struct worker *w = arg;
  check_calls(w->comm, w->rank, w->nranks);
}

static void in_threads(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  enum { N = 3 };
  ncclComm_t comm[N];
  struct worker w[N];
  OK(ncclCommInitAll(comm, N, NULL));
  for (int r = 0; r < N; r++) w[r] = (struct worker){comm[r], r, N};
  kit_run_threads(N, work, w, sizeof w[0]);
  for (int r = 0; r < N; r++) OK(ncclCommDestroy(comm[r]));
}
TEST(inputs_are_reduced_in_the_order_of_ranks) {
  for (int n = 2; n <= 5; n++) job_run("", n, kit_patience_ms(TIMEOUT_MS), in_order, NULL);
  job_run("", 1, kit_patience_ms(TIMEOUT_MS), in_threads, NULL);
}

/* ---- small and large ---- */

static void all_reduce_ints(ncclComm_t comm, int rank, int32_t *v, int32_t *out, size_t n, int salt) {
  for (size_t i = 0; i < n; i++) v[i] = (int32_t)i + rank + salt;
  OK(ncclAllReduce(v, out, n, ncclInt32, ncclSum, comm, NULL));
}

static void ensure_ints(int nranks, const int32_t *out, size_t n, int salt) {
  for (size_t i = 0; i < n; i++) ENSURE_INT(out[i], nranks * ((int)i + salt) + nranks * (nranks - 1) / 2);
}

/* Two communicators; calls one by one, several before a wait, and in groups with sends. */
static void in_turn(const struct rank *rank, void *arg) {
  (void)arg;
  enum { ROUNDS = 40, CALLS = 4, LARGE = 9000 };
  static const size_t sizes[CALLS] = {1, LARGE, 10, 1025};
  static int32_t v[2][CALLS][LARGE], out[2][CALLS][LARGE], got;
  const int r = rank->rank, n = rank->nranks;
  ncclComm_t comm[2];
  for (int c = 0; c < 2; c++) {
    ncclUniqueId id = make_id(rank, c);
    OK(ncclCommInitRank(&comm[c], n, id, r));
  }
  for (int round = 0; round < ROUNDS; round++) {
    const bool grouped = round % 3 == 2, waits = round % 3 == 0;
    if (grouped) OK(ncclGroupStart());
    for (int i = 0; i < CALLS; i++)
      for (int c = 0; c < 2; c++) {
        int at = (i + round) % CALLS;
        all_reduce_ints(comm[c], r, v[c][at], out[c][at], sizes[at], round);
        if (waits) OK(railCommWait(comm[c]));
      }
    if (grouped) {
      OK(ncclSend(&v[0][0][0], 1, ncclInt32, (r + 1) % n, comm[0], NULL));
      OK(ncclRecv(&got, 1, ncclInt32, (r + n - 1) % n, comm[0], NULL));
      OK(ncclGroupEnd());
    }
    for (int c = 0; c < 2; c++) {
      OK(railCommWait(comm[c]));
      for (int i = 0; i < CALLS; i++) ensure_ints(n, out[c][i], sizes[i], round);
    }
    if (grouped) ENSURE_INT(got, (r + n - 1) % n + round);
  }
  for (int c = 0; c < 2; c++) close_comm(comm[c]);
}
TEST(small_and_large_calls_in_turn) {
  for (int n = 2; n <= 4; n += 2) job_run("", n, kit_patience_ms(TIMEOUT_MS), in_turn, NULL);
  job_run("RAIL_SMALL_MAX=8", 3, kit_patience_ms(TIMEOUT_MS), in_turn, NULL);
  job_run("RAIL_SMALL_MAX=0", 3, kit_patience_ms(TIMEOUT_MS), in_turn, NULL);
}

/* ---- operators ---- */

static void factors(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  const int n = rank->nranks;
  for (int32_t k = 1; k <= 5; k++)
    for (int later = 0; later < 2; later++) {
      int32_t factor = k, v = rank->rank + 1, out = 0;
      ncclRedOp_t op; /* the same number each time */
      OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclInt32, later ? ncclScalarDevice : ncclScalarHostImmediate, comm));
      OK(ncclAllReduce(&v, &out, 1, ncclInt32, op, comm, NULL));
      OK(ncclRedOpDestroy(op, comm));
      OK(railCommWait(comm));
      ENSURE_INT(out, k * n * (n + 1) / 2);
      OK(ncclAllReduce(&v, &out, 1, ncclInt32, ncclAvg, comm, NULL));
      OK(railCommWait(comm));
      ENSURE_INT(out, (n + 1) / 2);
    }
  close_comm(comm);
}
TEST(operators_with_factors) { job_run("", 3, kit_patience_ms(TIMEOUT_MS), factors, NULL); }

/* ---- ranks that are late ---- */

/* More broadcasts than a lane has slots, and no rank but the last waits. */
static void ahead(const struct rank *rank, void *arg) {
  (void)arg;
  enum { CALLS = 100 };
  ncclComm_t comm = open_comm(rank);
  const int last = rank->nranks - 1;
  int64_t v[CALLS], sum = 1;
  OK(ncclAllReduce(&sum, &sum, 1, ncclInt64, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  if (rank->rank == last) usleep(100000);
  for (int i = 0; i < CALLS; i++) {
    v[i] = rank->rank == i % 2 ? i : -1;
    OK(ncclBroadcast(&v[i], &v[i], 1, ncclInt64, i % 2, comm, NULL));
  }
  OK(railCommWait(comm));
  for (int i = 0; i < CALLS; i++) ENSURE_INT(v[i], i);
  close_comm(comm);
}
TEST(roots_wait_for_a_slot) { job_run("", 3, kit_patience_ms(TIMEOUT_MS), ahead, NULL); }

/* A call returns although no other rank has made its own. */
static void not_waiting(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  int32_t v = 1;
  OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  if (rank->rank == 0) OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL));
  rank_barrier(rank);
  if (rank->rank == 1) OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  ENSURE_INT(v, 4);
  close_comm(comm);
}
TEST(a_call_does_not_wait_for_other_ranks) { job_run("", 2, kit_patience_ms(TIMEOUT_MS), not_waiting, NULL); }

/* ---- failures ---- */

struct differ {
  size_t count[2];
};

/* After calls that agree, so that all connections are there. */
static void differ(const struct rank *rank, void *arg) {
  const struct differ *d = arg;
  enum { LARGE = 50000 };
  static int32_t v[LARGE], out[LARGE];
  ncclComm_t comm = open_comm(rank);
  for (int i = 0; i < 20; i++) {
    all_reduce_ints(comm, rank->rank, v, out, i % 2 ? 1 : LARGE, 0);
    OK(railCommWait(comm));
  }
  ncclResult_t r = ncclAllReduce(v, out, d->count[rank->rank], ncclInt32, ncclSum, comm, NULL);
  if (r == ncclSuccess) r = railCommWait(comm);
  ENSURE_INT(r, ncclInvalidUsage);
  ENSURE(strstr(ncclGetLastError(comm), "calls differ"), "\"%s\"", ncclGetLastError(comm));
  OK(ncclCommDestroy(comm));
}
TEST(calls_that_differ_are_found) {
  static const struct differ cases[] = {{{1, 2}},     {{10, 11}},     {{1, 50000}},
                                        {{50000, 1}}, {{1024, 1025}}, {{1025, 1024}}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    printf("# counts %zu and %zu\n", cases[i].count[0], cases[i].count[1]);
    job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), differ, (void *)(uintptr_t)&cases[i]);
  }
}

/* A root that is through before the other rank looks, or a rank that sends to a root: only the one that waits can find
 * that its own call is small and the other's is not, or the other way round. */
struct one_waits {
  bool broadcast;
  size_t count[2];
};

static void one_waits(const struct rank *rank, void *arg) {
  const struct one_waits *w = arg;
  enum { LARGE = 2000 };
  static int32_t v[LARGE], out[LARGE];
  ncclComm_t comm = open_comm(rank);
  all_reduce_ints(comm, rank->rank, v, out, 1, 0);
  OK(railCommWait(comm));
  const size_t n = w->count[rank->rank];
  ncclResult_t r = w->broadcast ? ncclBroadcast(v, out, n, ncclInt32, 0, comm, NULL)
                                : ncclReduce(v, out, n, ncclInt32, ncclSum, 0, comm, NULL);
  if (r == ncclSuccess) r = railCommWait(comm);
  /* The one that does not wait is told. */
  for (uint64_t end = rail_deadline_in_ms(kit_patience_ms(10000)); r == ncclSuccess && !rail_deadline_passed(end);) {
    usleep(1000);
    OK(ncclCommGetAsyncError(comm, &r));
  }
  ENSURE_INT(r, ncclInvalidUsage);
  ENSURE(strstr(ncclGetLastError(comm), "calls differ"), "\"%s\"", ncclGetLastError(comm));
  OK(ncclCommDestroy(comm));
}
TEST(a_rank_that_waits_finds_a_call_that_differs) {
  static const struct one_waits cases[] = {{true, {2000, 1}}, {true, {1, 2000}},
                                           {false, {2000, 1}}, {false, {1, 2000}}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    printf("# %s, counts %zu and %zu\n", cases[i].broadcast ? "broadcast" : "reduce", cases[i].count[0],
           cases[i].count[1]);
    job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), one_waits, (void *)(uintptr_t)&cases[i]);
  }
}

enum how { LEAVES, ABORTS, DIES };

/* Rank 1 ends while the others wait in a small call. */
static void without_one(const struct rank *rank, void *arg) {
  const enum how how = *(const enum how *)arg;
  ncclComm_t comm = open_comm(rank);
  int32_t v = 1;
  for (int i = 0; i < 3; i++) OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclMax, comm, NULL));
  OK(railCommWait(comm));
  rank_barrier(rank);
  if (rank->rank == 1) {
    usleep(50000);
    if (how == DIES) kill(getpid(), SIGKILL);
    OK(how == LEAVES ? ncclCommDestroy(comm) : ncclCommAbort(comm));
    return;
  }
  ncclResult_t r = ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL);
  if (r == ncclSuccess) r = railCommWait(comm);
  ENSURE_INT(r, ncclRemoteError);
  ENSURE(strstr(ncclGetLastError(comm), "rank 1"), "\"%s\"", ncclGetLastError(comm));
  OK(ncclCommAbort(comm));
}
TEST(a_rank_that_ends_ends_the_others_waits) {
  for (enum how how = LEAVES; how <= DIES; how++) {
    struct job *job = job_start("NCCL_DEBUG=NONE", 3, without_one, &how);
    job_end(job, kit_patience_ms(10000), how == DIES ? 1u << 1 : 0);
  }
}

/* ncclCommAbort in another thread while this one waits. */
static void *abort_it(void *comm) {
  usleep(50000);
  OK(ncclCommAbort(comm));
  return NULL;
}

static void aborted(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  int32_t v = 1;
  pthread_t thread;
  OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  rank_barrier(rank);
  ENSURE_INT(pthread_create(&thread, NULL, abort_it, comm), 0);
  if (rank->rank == 0) {
    OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL));
    ENSURE(railCommWait(comm) != ncclSuccess, "the wait ended without an error");
  }
  pthread_join(thread, NULL);
}
TEST(an_abort_ends_a_wait) { job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(10000), aborted, NULL); }

TEST_MAIN(TEST_CASE(inputs_are_reduced_in_the_order_of_ranks), TEST_CASE(small_and_large_calls_in_turn),
          TEST_CASE(operators_with_factors), TEST_CASE(roots_wait_for_a_slot),
          TEST_CASE(a_call_does_not_wait_for_other_ranks), TEST_CASE(calls_that_differ_are_found),
          TEST_CASE(a_rank_that_waits_finds_a_call_that_differs),
          TEST_CASE(a_rank_that_ends_ends_the_others_waits), TEST_CASE(an_abort_ends_a_wait))
