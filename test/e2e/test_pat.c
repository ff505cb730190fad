/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan tsan
 *
 * Proves: broadcast, reduce, all-gather and reduce-scatter in log2(ranks) steps give right results on 2 to 9 ranks,
 * over a plugin, over shared memory and over both, with every root, one after the other and in one group; sums have the
 * same bits each time; a rank that dies ends it for all; calls that differ get an error; and NCCL_ALGO is followed.
 */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 30000
#define PAT "NCCL_ALGO=PAT;allreduce:ring "
#define MOST 3000 /* elements of a block */

/* ---- results ---- */

static int32_t input(int rank, size_t i) { return (int32_t)(i * 3 + (size_t)rank * 100003); }

static int32_t sum(int nranks, size_t i) {
  int32_t s = 0;
  for (int r = 0; r < nranks; r++) s += input(r, i);
  return s;
}

struct buffers {
  int32_t *in, *gathered, *scattered, *sent, *reduced, from_prev[8];
};

/* The four calls, on n elements a block; and a send, which has no such steps. */
static void call(const struct rank *rank, ncclComm_t comm, struct buffers *b, size_t n, int root) {
  OK(ncclAllGather(b->in, b->gathered, n, ncclInt32, comm, NULL));
  OK(ncclReduceScatter(b->in, b->scattered, n, ncclInt32, ncclSum, comm, NULL));
  OK(ncclBroadcast(b->in, b->sent, n, ncclInt32, root, comm, NULL));
  OK(ncclReduce(b->in, rank->rank == root ? b->reduced : NULL, n, ncclInt32, ncclSum, root, comm, NULL));
  OK(ncclGroupStart());
  OK(ncclSend(b->in, 8, ncclInt32, (rank->rank + 1) % rank->nranks, comm, NULL));
  OK(ncclRecv(b->from_prev, 8, ncclInt32, (rank->rank + rank->nranks - 1) % rank->nranks, comm, NULL));
  OK(ncclGroupEnd());
}

static void check(const struct rank *rank, const struct buffers *b, size_t n, int root) {
  for (int r = 0; r < rank->nranks; r++)
    for (size_t i = 0; i < n; i++) ENSURE_INT(b->gathered[(size_t)r * n + i], input(r, i));
  for (size_t i = 0; i < 8; i++)
    ENSURE_INT(b->from_prev[i], input((rank->rank + rank->nranks - 1) % rank->nranks, i));
  for (size_t i = 0; i < n; i++) {
    ENSURE_INT(b->scattered[i], sum(rank->nranks, (size_t)rank->rank * n + i));
    ENSURE_INT(b->sent[i], input(root, i));
    if (rank->rank == root) ENSURE_INT(b->reduced[i], sum(rank->nranks, i));
  }
  ENSURE(b->gathered[(size_t)rank->nranks * n] == 0 && b->scattered[n] == 0 && b->sent[n] == 0 && b->reduced[n] == 0,
         "written beyond %zu elements", n);
}

static void results(const struct rank *rank, void *arg) {
  static const size_t counts[] = {1, 7, 1000, MOST};
  const char *transports = arg;
  const size_t n = (size_t)rank->nranks;
  ncclComm_t comm = open_comm(rank);
  struct buffers b = {.in = calloc(n * MOST + 1, 4)};
  for (size_t i = 0; i < n * MOST; i++) b.in[i] = input(rank->rank, i);
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
    for (int root = 0; root < rank->nranks; root++) {
      b.gathered = calloc(n * MOST + 1, 4);
      b.scattered = calloc(MOST + 1, 4);
      b.sent = calloc(MOST + 1, 4);
      b.reduced = calloc(MOST + 1, 4);
      if (root % 2) OK(ncclGroupStart());
      call(rank, comm, &b, counts[c], root);
      if (root % 2) OK(ncclGroupEnd());
      OK(railCommWait(comm));
      check(rank, &b, counts[c], root);
      free(b.gathered);
      free(b.scattered);
      free(b.sent);
      free(b.reduced);
    }
  free(b.in);
  const char *found = railCommTransports(comm);
  ENSURE(strcmp(found, transports) == 0, "transports are %s, expected %s", found, transports);
  close_comm(comm);
}

static char over_shm[] = "SHM", over_net[] = "NET/RailSocket", over_both[] = "SHM+NET/RailSocket";

static void need_plugin(void) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
}

static void run(const char *env, int nranks, char *transports) {
  static const char *const more[] = {"RAIL_PROXY=inline", "RAIL_NCHANNELS=3 RAIL_CHUNK=1K", "NCCL_PROTO=LL"};
  char all[200];
  snprintf(all, sizeof all, PAT "%s %s", env, more[nranks % 3]);
  printf("# %d ranks, %s\n", nranks, all);
  job_run(all, nranks, kit_patience_ms(TIMEOUT_MS), results, transports);
}

TEST(network) {
  need_plugin();
  for (int n = 2; n <= 9; n++) run("NCCL_SHM_DISABLE=1", n, over_net);
}
TEST(shared_memory) {
  for (int n = 3; n <= 6; n++) run("", n, over_shm);
}
TEST(both) {
  need_plugin();
  for (int n = 4; n <= 7; n++) run("NCCL_HOSTID=half%h", n, over_both);
}

/* Rounding shows in which order was added up: one that the number of ranks alone decides. */
static void same_bits(const struct rank *rank, void *arg) {
  (void)arg;
  enum { N = 500 };
  const size_t n = (size_t)rank->nranks;
  float first[2][N], again[2][N], *in = calloc(n * N, sizeof *in);
  ncclComm_t comm = open_comm(rank);
  for (size_t i = 0; i < n * N; i++) in[i] = 1.0f / (float)(1 + (i * 31 + (size_t)rank->rank * 17) % 997);
  for (int round = 0; round < 10; round++) {
    float(*out)[N] = round ? again : first;
    OK(ncclReduceScatter(in, out[0], N, ncclFloat, ncclSum, comm, NULL));
    OK(ncclReduce(in, out[1], N, ncclFloat, ncclSum, 2, comm, NULL));
    OK(railCommWait(comm));
    if (round == 0) continue;
    ENSURE(memcmp(first[0], again[0], sizeof first[0]) == 0, "round %d: a reduce-scatter's differ", round);
    ENSURE(rank->rank != 2 || memcmp(first[1], again[1], sizeof first[1]) == 0, "round %d: a reduce's differ", round);
  }
  free(in);
  close_comm(comm);
}
TEST(the_same_bits_each_time) {
  need_plugin();
  job_run("NCCL_SHM_DISABLE=1", 5, kit_patience_ms(TIMEOUT_MS), same_bits, NULL);
}

/* ---- errors ---- */

/* The other ranks end, each with an error, whichever operation they were at. */
static void dies(const struct rank *rank, void *arg) {
  const int dead = *(const int *)arg;
  enum { N = 100 };
  static float in[6 * N], out[6 * N];
  ncclComm_t comm = open_comm(rank);
  ncclResult_t r = ncclSuccess;
  for (int i = 0; r == ncclSuccess; i++) {
    if (i == 20 && rank->rank == dead) raise(SIGKILL);
    r = i % 2 ? ncclAllGather(in, out, N, ncclFloat, comm, NULL)
              : ncclReduceScatter(in, out, N, ncclFloat, ncclSum, comm, NULL);
    if (r == ncclSuccess) r = ncclBroadcast(in, out, N, ncclFloat, i % rank->nranks, comm, NULL);
    if (r == ncclSuccess) r = railCommWait(comm);
  }
  ENSURE(ncclGetLastError(comm)[0], "rank %d has no text", rank->rank);
  OK(ncclCommAbort(comm));
}
TEST(a_rank_that_dies_is_an_error_for_all) {
  need_plugin();
  for (int dead = 0; dead < 6; dead += 5) {
    struct job *job = job_start("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 6, dies, &dead);
    job_end(job, kit_patience_ms(TIMEOUT_MS), 1u << dead);
  }
}

static void differ(const struct rank *rank, void *arg) {
  const int odd = *(const int *)arg;
  ncclComm_t comm = open_comm(rank);
  static float in[4 * 200], out[4 * 200];
  ncclResult_t r = ncclAllGather(in, out, rank->rank == odd ? 200 : 100, ncclFloat, comm, NULL);
  if (r == ncclSuccess) r = railCommWait(comm);
  ENSURE(r != ncclSuccess && ncclGetLastError(comm)[0], "rank %d noticed nothing", rank->rank);
  OK(ncclCommDestroy(comm));
}
TEST(counts_that_differ_end_with_an_error) {
  need_plugin();
  for (int odd = 0; odd < 4; odd += 3)
    job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 4, kit_patience_ms(TIMEOUT_MS), differ, &odd);
}

static void refused(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  float v[8] = {(float)rank->rank}, all[24];
  REFUSED(ncclAllReduce(v, v, 8, ncclFloat, ncclSum, comm, NULL), ncclInvalidUsage, "AllReduce");
  ENSURE(strstr(ncclGetLastError(NULL), "'PAT'"), "\"%s\" does not say what was asked for", ncclGetLastError(NULL));
  OK(ncclAllGather(v, all, 8, ncclFloat, comm, NULL)); /* it harms nothing else */
  OK(railCommWait(comm));
  for (int r = 0; r < 3; r++) ENSURE_INT((int)all[8 * r], r);
  close_comm(comm);
}
TEST(no_all_reduce) { job_run("NCCL_DEBUG=NONE NCCL_ALGO=PAT", 3, kit_patience_ms(TIMEOUT_MS), refused, NULL); }

TEST_MAIN(TEST_CASE(network), TEST_CASE(shared_memory), TEST_CASE(both), TEST_CASE(the_same_bits_each_time),
          TEST_CASE(a_rank_that_dies_is_an_error_for_all), TEST_CASE(counts_that_differ_end_with_an_error),
          TEST_CASE(no_all_reduce))
