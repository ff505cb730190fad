/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan tsan
 *
 * Proves: an all-reduce by trees, and one by exchanges, gives every rank the same right bits, over shared memory, over
 * a plugin and over both; among other calls of a group too; ranks whose calls differ get an error; and what NCCL_ALGO
 * does not leave is refused as NCCL refuses it.
 */
#include <stdlib.h>

#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 30000
#define TREE "NCCL_ALGO=ring;allreduce:tree "
#define EXCHANGE "NCCL_ALGO=ring;allreduce:exchange "

/* ---- results ---- */

static uint64_t hash(const void *p, size_t bytes) {
  uint64_t h = 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; i++) h = (h ^ ((const unsigned char *)p)[i]) * 0x100000001b3u;
  return h;
}

/* Rounding shows in which order a rank has added up: all must have taken one. */
static void same_bits(const struct rank *rank, ncclComm_t comm, size_t n, bool in_place) {
  uint64_t *all = rank->shared;
  float *in = calloc(n + 1, sizeof *in), *out = in_place ? in : calloc(n + 1, sizeof *out);
  for (size_t i = 0; i < n; i++) in[i] = 1.0f / (float)(1 + (i * 31 + (size_t)rank->rank * 17) % 997);
  OK(ncclAllReduce(in, out, n, ncclFloat, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  all[rank->rank] = hash(out, n * sizeof *out);
  rank_barrier(rank);
  for (int r = 0; r < rank->nranks; r++)
    ENSURE(all[r] == all[0], "%zu floats%s: ranks 0 and %d differ", n, in_place ? " in place" : "", r);
  rank_barrier(rank);
  if (out != in) free(out);
  free(in);
}

static void right_sums(const struct rank *rank, ncclComm_t comm, size_t n, bool in_place) {
  int64_t *in = calloc(n + 1, sizeof *in), *out = in_place ? in : calloc(n + 1, sizeof *out);
  for (size_t i = 0; i < n; i++) in[i] = (int64_t)(i * 1000 + (size_t)rank->rank);
  OK(ncclAllReduce(in, out, n, ncclInt64, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  const int64_t ranks = rank->nranks;
  for (size_t i = 0; i < n; i++)
    ENSURE(out[i] == ranks * (int64_t)i * 1000 + ranks * (ranks - 1) / 2, "element %zu of %zu%s is %lld", i, n,
           in_place ? " in place" : "", (long long)out[i]);
  ENSURE(out[n] == 0, "written beyond %zu elements", n);
  if (out != in) free(out);
  free(in);
}

static void sums(const struct rank *rank, void *arg) {
  static const size_t counts[] = {0, 1, 2, 7, 1000, 4097, 33333, 200003};
  ncclComm_t comm = open_comm(rank);
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    for (int in_place = 0; in_place < 2; in_place++) {
      right_sums(rank, comm, counts[i], in_place);
      same_bits(rank, comm, counts[i], in_place);
    }
  const char *transports = arg, *found = railCommTransports(comm);
  if (transports) ENSURE(strcmp(found, transports) == 0, "transports are %s, expected %s", found, transports);
  close_comm(comm);
}

static void need_plugin(void) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
}

/* Of the connections that were made, in railCommTransports' words. */
static char over_shm[] = "SHM", over_net[] = "NET/RailSocket", over_both[] = "SHM+NET/RailSocket";

static void each_number_of_ranks(const char *env, char *transports) {
  static const char *const more[] = {"", "NCCL_PROTO=LL", "RAIL_NCHANNELS=3 RAIL_CHUNK=4K"};
  for (int n = 2; n <= 6; n++) {
    char all[200];
    snprintf(all, sizeof all, TREE "%s %s", env, more[n % 3]);
    printf("# %d ranks, %s\n", n, all);
    job_run(all, n, kit_patience_ms(TIMEOUT_MS), sums, transports);
  }
}

TEST(shared_memory) { each_number_of_ranks("", over_shm); }
TEST(network) {
  need_plugin();
  each_number_of_ranks("NCCL_SHM_DISABLE=1", over_net);
}
TEST(both) {
  need_plugin();
  job_run(TREE "NCCL_HOSTID=half%h RAIL_PROXY=thread", 5, kit_patience_ms(TIMEOUT_MS), sums, over_both);
}

/* With two ranks: test_collectives. */
TEST(exchanges) {
  job_run(EXCHANGE, 4, kit_patience_ms(TIMEOUT_MS), sums, over_shm);
  job_run(EXCHANGE "NCCL_PROTO=LL RAIL_SMALL_MAX=0", 8, kit_patience_ms(TIMEOUT_MS), sums, over_shm);
  need_plugin();
  job_run(EXCHANGE "NCCL_SHM_DISABLE=1", 4, kit_patience_ms(TIMEOUT_MS), sums, over_net);
  job_run(EXCHANGE "NCCL_SHM_DISABLE=1 RAIL_NCHANNELS=3 RAIL_CHUNK=4K", 8, kit_patience_ms(TIMEOUT_MS), sums, over_net);
  job_run(EXCHANGE "NCCL_HOSTID=half%h RAIL_PROXY=thread", 8, kit_patience_ms(TIMEOUT_MS), sums, over_both);
}

/* ---- among other calls ---- */

/* The rings' and the sends' connections are the trees', too: a neighbour in the ring may be one in a tree. */
static void mixed_group(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  int n = rank->nranks, r = rank->rank, next = (r + 1) % n, prev = (r + n - 1) % n;
  enum { N = 30000 };
  static int32_t a[N], first[N], second[N], b[N], c[N], from_prev[N];
  for (int round = 0; round < 4; round++) {
    for (int i = 0; i < N; i++) a[i] = r + i + round, b[i] = r == 1 ? i * 3 : -1;
    OK(ncclGroupStart());
    OK(ncclSend(a, N, ncclInt32, next, comm, NULL));
    OK(ncclAllReduce(a, first, N, ncclInt32, ncclSum, comm, NULL));
    OK(ncclBroadcast(b, c, N, ncclInt32, 1, comm, NULL));
    OK(ncclAllReduce(a, second, N, ncclInt32, ncclMax, comm, NULL));
    OK(ncclRecv(from_prev, N, ncclInt32, prev, comm, NULL));
    OK(ncclGroupEnd());
    OK(railCommWait(comm));
    for (int i = 0; i < N; i++) {
      ENSURE_INT(first[i], n * (i + round) + n * (n - 1) / 2);
      ENSURE_INT(second[i], n - 1 + i + round);
      ENSURE_INT(from_prev[i], prev + i + round);
      ENSURE_INT(c[i], i * 3);
    }
  }
  close_comm(comm);
}
TEST(in_a_group_with_others) {
  for (int n = 2; n <= 5; n++) job_run(TREE, n, kit_patience_ms(TIMEOUT_MS), mixed_group, NULL);
  job_run(EXCHANGE, 4, kit_patience_ms(TIMEOUT_MS), mixed_group, NULL);
  if (!ranks_plugin()) return;
  job_run(TREE "NCCL_SHM_DISABLE=1", 4, kit_patience_ms(TIMEOUT_MS), mixed_group, NULL);
  job_run(EXCHANGE "NCCL_SHM_DISABLE=1", 4, kit_patience_ms(TIMEOUT_MS), mixed_group, NULL);
}

/* ---- what does not fit ---- */

static void differ(const struct rank *rank, void *arg) {
  const int odd = *(const int *)arg;
  ncclComm_t comm = open_comm(rank);
  float v[200] = {0};
  rank_barrier(rank); /* or the first to notice ends it for one that is still made */
  ncclResult_t r = ncclAllReduce(v, v, rank->rank == odd ? 200 : 100, ncclFloat, ncclSum, comm, NULL);
  if (r == ncclSuccess) r = railCommWait(comm);
  ENSURE(r != ncclSuccess && ncclGetLastError(comm)[0], "rank %d noticed nothing", rank->rank);
  OK(ncclCommDestroy(comm));
}
TEST(counts_that_differ_end_with_an_error) {
  for (int odd = 0; odd < 4; odd++) job_run(TREE "NCCL_DEBUG=NONE", 4, kit_patience_ms(TIMEOUT_MS), differ, &odd);
  for (int odd = 0; odd < 4; odd++) job_run(EXCHANGE "NCCL_DEBUG=NONE", 4, kit_patience_ms(TIMEOUT_MS), differ, &odd);
  if (!ranks_plugin()) return;
  int odd = 2;
  job_run(TREE "NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 4, kit_patience_ms(TIMEOUT_MS), differ, &odd);
  job_run(EXCHANGE "NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 4, kit_patience_ms(TIMEOUT_MS), differ, &odd);
}

/* Whichever connections the odd rank's call needs, another rank makes one of them in the exchange, or the other way
 * round. */
struct odd_call {
  int odd, root;
  bool reduce;
};
static void another_call(const struct rank *rank, void *arg) {
  const struct odd_call *call = arg;
  ncclComm_t comm = open_comm(rank);
  float v[100] = {0};
  ncclResult_t r;
  rank_barrier(rank);
  if (rank->rank != call->odd) r = ncclAllReduce(v, v, 100, ncclFloat, ncclSum, comm, NULL);
  else if (call->reduce) r = ncclReduce(v, v, 100, ncclFloat, ncclSum, call->root, comm, NULL);
  else r = ncclBroadcast(v, v, 100, ncclFloat, call->root, comm, NULL);
  if (r == ncclSuccess) r = railCommWait(comm);
  ENSURE(r != ncclSuccess && ncclGetLastError(comm)[0], "rank %d noticed nothing", rank->rank);
  OK(ncclCommDestroy(comm));
}
TEST(another_call_than_an_exchange_ends_with_an_error) {
  need_plugin();
  for (int i = 0; i < 4 * 4 * 2; i++) {
    struct odd_call call = {.odd = i / 2 % 4, .root = i / 8, .reduce = i % 2};
    job_run(EXCHANGE "NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 4, kit_patience_ms(TIMEOUT_MS), another_call, &call);
  }
}

/* As NCCL since 2.24: an algorithm that a function has not is an error of the call, and not before. */
static void refused(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  float v[8] = {(float)rank->rank}, all[32];
  OK(ncclAllReduce(v, v, 8, ncclFloat, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  REFUSED(ncclAllGather(v, all, 8, ncclFloat, comm, NULL), ncclInvalidUsage, "AllGather");
  ENSURE(strstr(ncclGetLastError(NULL), "'Tree'"), "\"%s\" does not say what was asked for", ncclGetLastError(NULL));
  REFUSED(ncclBroadcast(v, v, 8, ncclFloat, 0, comm, NULL), ncclInvalidUsage, "Broadcast");
  OK(ncclAllReduce(v, v, 8, ncclFloat, ncclSum, comm, NULL)); /* it harms nothing else */
  OK(railCommWait(comm));
  close_comm(comm);
}
static void no_tree(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  check_members(comm, rank->rank, (1 << rank->nranks) - 1);
  close_comm(comm);
}
static void exchange_of_three(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  float v = 1;
  REFUSED(ncclAllReduce(&v, &v, 1, ncclFloat, ncclSum, comm, NULL), ncclInvalidUsage, "AllReduce");
  close_comm(comm);
}
TEST(algorithms_asked_for) {
  job_run("NCCL_DEBUG=NONE NCCL_ALGO=Tree", 3, kit_patience_ms(TIMEOUT_MS), refused, NULL);
  job_run("NCCL_ALGO=^Tree", 3, kit_patience_ms(TIMEOUT_MS), no_tree, NULL);
  job_run("NCCL_ALGO=Ring", 3, kit_patience_ms(TIMEOUT_MS), no_tree, NULL);
  job_run("NCCL_ALGO=Tree", 1, kit_patience_ms(TIMEOUT_MS), no_tree, NULL);
  job_run("NCCL_DEBUG=NONE NCCL_ALGO=Exchange", 3, kit_patience_ms(TIMEOUT_MS), exchange_of_three, NULL);
}

TEST_MAIN(TEST_CASE(shared_memory), TEST_CASE(network), TEST_CASE(both), TEST_CASE(exchanges),
          TEST_CASE(in_a_group_with_others),
          TEST_CASE(counts_that_differ_end_with_an_error),
          TEST_CASE(another_call_than_an_exchange_ends_with_an_error), TEST_CASE(algorithms_asked_for))
