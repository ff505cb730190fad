/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 120
 * TEST-SAN: asan tsan
 *
 * Proves: a communicator works on host or on device memory, as its first call with a buffer decides. A call with the
 * other kind is refused with a line that says so, and the communicator works on; ranks that differ fail with a line,
 * and none hangs. Calls without data decide nothing; ranks that they have connected, and that differ then, get right
 * results or an error. A group may have communicators of both kinds.
 */
#include "test/device/gpu/side.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 30000
#define N 3000

static ncclResult_t all_reduce(struct side *s, int32_t *x) {
  return ncclAllReduce(x, x, N, ncclInt32, ncclSum, s->comm, s->stream);
}

static void open_side(struct side *s, const struct rank *rank) {
  gpu_open();
  side_open(s, open_comm(rank));
  memset(s->host, 0, N * sizeof *s->host);
  gpu_put(s->device, s->host, N * sizeof *s->host);
}

static void close_side(struct side *s) {
  close_comm(s->comm);
  side_free(s);
  gpu_nothing_left();
}

/* ---- one rank's calls ---- */

static void host_first(const struct rank *rank, void *arg) {
  struct side s;
  (void)arg;
  open_side(&s, rank);
  OK(all_reduce(&s, s.host));
  OK(railCommWait(s.comm));
  REFUSED(all_reduce(&s, s.device), ncclInvalidUsage, "sendbuff");
  ENSURE(strstr(ncclGetLastError(NULL), "host memory") && strstr(ncclGetLastError(NULL), "another one"), "\"%s\"",
         ncclGetLastError(NULL));
  REFUSED(ncclAllReduce(s.host, s.device, N, ncclInt32, ncclSum, s.comm, s.stream), ncclInvalidUsage, "recvbuff");
  OK(all_reduce(&s, s.host));
  OK(railCommWait(s.comm));
  close_side(&s);
}

static void device_first(const struct rank *rank, void *arg) {
  struct side s;
  (void)arg;
  open_side(&s, rank);
  sum(&s, N);
  REFUSED(all_reduce(&s, s.host), ncclInvalidUsage, "CUDA device 0");
  REFUSED(ncclBroadcast(NULL, s.host, N, ncclInt32, 1 - s.rank, s.comm, s.stream), ncclInvalidUsage, "recvbuff");
  sum(&s, N);
  close_side(&s);
}

/* The second call's refusal drops the group. */
static void one_group(const struct rank *rank, void *arg) {
  struct side s;
  (void)arg;
  open_side(&s, rank);
  OK(ncclGroupStart());
  OK(all_reduce(&s, s.device));
  REFUSED(all_reduce(&s, s.host), ncclInvalidUsage, "sendbuff");
  ENSURE(ncclGroupEnd() == ncclInvalidUsage, "the group was run");
  if (gpu.calls) ENSURE(gpu.calls("cuLaunchKernel") == 0, "a part of the group was run");
  sum(&s, N);
  close_side(&s);
}

/* Registered memory of the host is of use to both; alone it counts as the device's. */
static void registered(const struct rank *rank, void *arg) {
  struct side s;
  ncclComm_t first, on_host;
  void *pinned;
  (void)arg;
  open_side(&s, rank);
  first = s.comm;
  ENSURE(posix_memalign(&pinned, 4096, RAIL_ROUND_UP(N * sizeof(int32_t), 4096)) == 0, "out of memory");
  memset(pinned, 0, N * sizeof(int32_t));
  GPU(gpu.cuMemHostRegister_v2(pinned, RAIL_ROUND_UP(N * sizeof(int32_t), 4096), 3));
  OK(ncclCommSplit(s.comm, 0, s.rank, &on_host, NULL));
  OK(all_reduce(&s, pinned));
  REFUSED(all_reduce(&s, s.host), ncclInvalidUsage, "sendbuff");
  OK(all_reduce(&s, s.device));
  GPU(gpu.cuStreamSynchronize(s.stream));
  s.comm = on_host;
  OK(all_reduce(&s, s.host));
  OK(all_reduce(&s, pinned));
  REFUSED(all_reduce(&s, s.device), ncclInvalidUsage, "sendbuff");
  OK(railCommWait(s.comm));
  OK(ncclCommDestroy(on_host));
  GPU(gpu.cuMemHostUnregister(pinned));
  free(pinned);
  s.comm = first;
  close_side(&s);
}

TEST(a_host_communicator) { job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), host_first, NULL); }
TEST(a_device_communicator) { job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), device_first, NULL); }
TEST(one_group_of_both) { job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), one_group, NULL); }
TEST(registered_memory) { job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), registered, NULL); }

/* ---- ranks that differ ---- */

static void must_fail(struct side *s, ncclResult_t r) {
  if (r == ncclSuccess) r = railCommWait(s->comm);
  ENSURE(r == ncclInvalidUsage || r == ncclRemoteError, "the result is %d", r);
  ENSURE(strstr(ncclGetLastError(s->comm), "one kind of memory"), "\"%s\"", ncclGetLastError(s->comm));
  OK(ncclCommAbort(s->comm));
  side_free(s);
  gpu_nothing_left();
}

static void ranks_differ(const struct rank *rank, void *arg) {
  struct side s;
  (void)arg;
  open_side(&s, rank);
  must_fail(&s, all_reduce(&s, rank->rank == 1 ? s.device : s.host));
}

/* A send and its receive; then a collective that meets a rank with another kind. */
static void pairs_differ(const struct rank *rank, void *arg) {
  struct side s;
  (void)arg;
  open_side(&s, rank);
  int32_t *x = rank->rank < 2 ? s.device : s.host;
  if (rank->rank % 2 == 0)
    OK(ncclSend(x, N, ncclInt32, rank->rank + 1, s.comm, s.stream));
  else
    OK(ncclRecv(x, N, ncclInt32, rank->rank - 1, s.comm, s.stream));
  GPU(gpu.cuStreamSynchronize(s.stream));
  rank_barrier(rank);
  must_fail(&s, all_reduce(&s, x));
}

static void both_differ(const char *env) {
  job_run(env, 2, kit_patience_ms(TIMEOUT_MS), ranks_differ, NULL);
  job_run(env, 3, kit_patience_ms(TIMEOUT_MS), ranks_differ, NULL);
  job_run(env, 4, kit_patience_ms(TIMEOUT_MS), pairs_differ, NULL);
}
TEST(ranks_that_differ) { both_differ("NCCL_DEBUG=NONE"); }
TEST(ranks_that_differ_over_a_network) { both_differ("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1"); }

/* ---- calls without data ---- */

/* Rank 0 sends nothing before its first buffer; rank 1 receives that beside a send from the device. */
static void empty_messages(const struct rank *rank, void *arg) {
  struct side s;
  (void)arg;
  open_side(&s, rank);
  for (int i = 0; i < 3; i++) {
    OK(ncclAllReduce(NULL, NULL, 0, ncclInt32, ncclSum, s.comm, s.stream));
    if (s.rank == 0) {
      OK(ncclSend(NULL, 0, ncclInt32, 1, s.comm, s.stream));
      OK(ncclRecv(s.device, N, ncclInt32, 1, s.comm, s.stream));
    } else {
      OK(ncclGroupStart());
      OK(ncclRecv(NULL, 0, ncclInt32, 0, s.comm, s.stream));
      OK(ncclSend(s.device, N, ncclInt32, 0, s.comm, s.stream));
      OK(ncclGroupEnd());
    }
    GPU(gpu.cuStreamSynchronize(s.stream));
    sum(&s, N);
  }
  for (int peer = 0; peer < 2; peer++) {
    if (s.rank == peer) OK(ncclRecv(NULL, 0, ncclInt32, 1 - peer, s.comm, s.stream));
    if (s.rank != peer) OK(ncclSend(NULL, 0, ncclInt32, peer, s.comm, s.stream));
  }
  OK(railCommWait(s.comm));
  close_side(&s);
}
TEST(empty_messages_first) {
  static const char *const env[] = {"", "NCCL_PROTO=LL", "NCCL_PROTO=LL128", "NCCL_SHM_DISABLE=1",
                                    "NCCL_SHM_DISABLE=1 NCCL_PROTO=LL"};
  for (size_t i = 0; i < sizeof env / sizeof *env; i++)
    job_run(env[i], 2, kit_patience_ms(TIMEOUT_MS), empty_messages, NULL);
}

/* Connects both ways while no rank has had a buffer, so neither record names a kind. Then rank 0 has host buffers, rank
 * 1 device buffers. `error`: a part of the text, where the kinds choose different protocols; NULL: the sum is right. */
static void empty_messages_then_differ(const struct rank *rank, void *arg) {
  const char *error = arg;
  struct side s;
  open_side(&s, rank);
  for (int peer = 0; peer < 2; peer++) {
    if (s.rank == peer) OK(ncclRecv(NULL, 0, ncclInt32, 1 - peer, s.comm, s.stream));
    if (s.rank != peer) OK(ncclSend(NULL, 0, ncclInt32, peer, s.comm, s.stream));
  }
  OK(railCommWait(s.comm));
  for (int i = 0; i < N; i++) s.host[i] = i % 7 + s.rank;
  gpu_put(s.device, s.host, N * sizeof *s.host);
  ncclResult_t r = all_reduce(&s, s.rank == 1 ? s.device : s.host);
  if (r == ncclSuccess) r = railCommWait(s.comm);
  if (error) {
    ENSURE(r == ncclInvalidUsage && strstr(ncclGetLastError(s.comm), error), "%d: \"%s\"", r, ncclGetLastError(s.comm));
    OK(ncclCommAbort(s.comm));
    side_free(&s);
    gpu_nothing_left();
    return;
  }
  OK(r);
  GPU(gpu.cuStreamSynchronize(s.stream));
  if (s.rank == 1) gpu_get(s.host, s.device, N * sizeof *s.host);
  for (int i = 0; i < N; i++) ENSURE(s.host[i] == 2 * (i % 7) + 1, "%d is %d", i, s.host[i]);
  close_side(&s);
}
TEST(empty_messages_then_ranks_that_differ) {
  static char differ[] = "calls differ", one_kind[] = "one kind of memory";
  static const struct { const char *env; char *error; } cases[] = {
      {"NCCL_DEBUG=NONE", one_kind},
      {"NCCL_DEBUG=NONE NCCL_PROTO=LL", one_kind},
      {"NCCL_DEBUG=NONE RAIL_SMALL_MAX=0", NULL},
      {"NCCL_DEBUG=NONE RAIL_SMALL_MAX=0 NCCL_PROTO=LL", NULL},
      {"NCCL_DEBUG=NONE RAIL_SMALL_MAX=0 NCCL_PROTO=LL128", differ},
      {"NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", NULL},
      {"NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1 NCCL_PROTO=LL", differ},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    printf("# %s\n", cases[i].env);
    job_run(cases[i].env, 2, kit_patience_ms(TIMEOUT_MS), empty_messages_then_differ, cases[i].error);
  }
}

/* ---- several communicators ---- */

/* Two communicators of the same ranks, one of each kind, in one group. */
static void communicators(const struct rank *rank, void *arg) {
  struct side s;
  ncclComm_t first, second;
  (void)arg;
  open_side(&s, rank);
  first = s.comm;
  OK(ncclCommSplit(first, 0, s.rank, &second, NULL));
  for (int round = 1; round < 4; round++) {
    for (int i = 0; i < N; i++) s.host[i] = round * (i % 7 + s.rank);
    gpu_put(s.device, s.host, N * sizeof *s.host);
    OK(ncclGroupStart());
    s.comm = first;
    OK(all_reduce(&s, s.device));
    s.comm = second;
    OK(all_reduce(&s, s.host));
    OK(ncclGroupEnd());
    OK(railCommWait(first));
    OK(railCommWait(second));
    GPU(gpu.cuStreamSynchronize(s.stream));
    for (int i = 0; i < N; i++) ENSURE(s.host[i] == round * (2 * (i % 7) + 1), "host: %d is %d", i, s.host[i]);
    gpu_get(s.host, s.device, N * sizeof *s.host);
    for (int i = 0; i < N; i++) ENSURE(s.host[i] == round * (2 * (i % 7) + 1), "device: %d is %d", i, s.host[i]);
  }
  OK(ncclCommDestroy(second));
  s.comm = first;
  close_side(&s);
}
TEST(communicators_of_both_kinds) { job_run("", 2, kit_patience_ms(TIMEOUT_MS), communicators, NULL); }

TEST_MAIN(TEST_CASE(a_host_communicator), TEST_CASE(a_device_communicator), TEST_CASE(one_group_of_both),
          TEST_CASE(registered_memory), TEST_CASE(ranks_that_differ), TEST_CASE(ranks_that_differ_over_a_network),
          TEST_CASE(empty_messages_first), TEST_CASE(empty_messages_then_ranks_that_differ),
          TEST_CASE(communicators_of_both_kinds))
