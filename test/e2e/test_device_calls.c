/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 * TEST-SAN: asan tsan
 *
 * Proves: collectives on device buffers give what they give on host buffers, on 1 to 4 ranks, as processes and as
 * threads of one; over shared memory, a network plugin and both; with each protocol and several channels; nothing is
 * left when communicators have ended.
 */
#include "test/device/gpu/check.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000
#define BYTES (256u * 1024)

static void all_calls(ncclComm_t comm, void *stream) {
  static const size_t counts[] = {1, 8191, 3, 1000};
  const size_t ncounts = kit_sanitized() ? 2 : 4;
  struct gpu_buffers b = gpu_buffers_new(BYTES);
  int n;
  OK(ncclCommCount(comm, &n));
  for (int coll = 0; coll < C_COUNT; coll++)
    for (size_t i = 0; i < ncounts; i++) {
      struct gpu_call c = {.coll = coll, .root = (int)i % n, .type = ncclFloat32, .op = ncclSum, .count = counts[i]};
      gpu_check(&c, &b, comm, stream, (unsigned)(coll * 100 + (int)i));
    }
  gpu_buffers_free(&b);
}

static void in_processes(const struct rank *rank, void *arg) {
  (void)arg;
  gpu_open();
  ncclComm_t comm = open_comm(rank);
  void *stream = gpu_stream();
  all_calls(comm, stream);
  close_comm(comm);
  gpu_nothing_left();
  GPU(gpu.cuStreamDestroy_v2(stream));
}

static void each_number_of_ranks(const char *env) {
  for (int n = 1; n <= 4; n++)
    if (n == 3 || !kit_sanitized()) job_run(env, n, kit_patience_ms(TIMEOUT_MS), in_processes, NULL);
}

/* Two ranks exchange. */
TEST(exchange) {
  job_run("RAIL_EXCHANGE_MAX=64K", 2, kit_patience_ms(TIMEOUT_MS), in_processes, NULL);
  job_run("RAIL_EXCHANGE_MAX=64K NCCL_SHM_DISABLE=1", 2, kit_patience_ms(TIMEOUT_MS), in_processes, NULL);
}

TEST(shared_memory) { each_number_of_ranks(""); }
TEST(ll) { job_run("NCCL_PROTO=LL", 3, kit_patience_ms(TIMEOUT_MS), in_processes, NULL); }
TEST(channels) { job_run("RAIL_NCHANNELS=3", 3, kit_patience_ms(TIMEOUT_MS), in_processes, NULL); }
TEST(tree) {
  job_run("NCCL_ALGO=ring;allreduce:tree RAIL_NCHANNELS=2", 4, kit_patience_ms(TIMEOUT_MS), in_processes, NULL);
  job_run("NCCL_ALGO=ring;allreduce:tree NCCL_PROTO=LL", 3, kit_patience_ms(TIMEOUT_MS), in_processes, NULL);
  job_run("NCCL_ALGO=ring;allreduce:tree NCCL_HOSTID=half%h", 4, kit_patience_ms(TIMEOUT_MS), in_processes, NULL);
}
TEST(network) { each_number_of_ranks("NCCL_SHM_DISABLE=1"); }
TEST(network_thread) {
  job_run("NCCL_SHM_DISABLE=1 RAIL_PROXY=thread", 3, kit_patience_ms(TIMEOUT_MS), in_processes, NULL);
}
/* Where the host's kernels speak LL through a proxy, the device's speak Simple. */
TEST(network_ll) { job_run("NCCL_SHM_DISABLE=1 NCCL_PROTO=LL", 2, kit_patience_ms(TIMEOUT_MS), in_processes, NULL); }
TEST(both) { job_run("NCCL_HOSTID=half%h RAIL_NCHANNELS=2", 4, kit_patience_ms(TIMEOUT_MS), in_processes, NULL); }

/* ---- types and operators ---- */

static void types(const struct rank *rank, void *arg) {
  (void)arg;
  gpu_open();
  ncclComm_t comm = open_comm(rank);
  void *stream = gpu_stream();
  struct gpu_buffers b = gpu_buffers_new(BYTES);
  for (int type = 0; type < ncclNumTypes; type++)
    for (int op = 0; op < ncclNumOps; op++) {
      struct gpu_call c = {.coll = (type + op) % 3, .type = (ncclDataType_t)type, .op = (ncclRedOp_t)op, .count = 777};
      gpu_check(&c, &b, comm, stream, (unsigned)(type * 10 + op));
    }
  gpu_buffers_free(&b);
  close_comm(comm);
  gpu_nothing_left();
  GPU(gpu.cuStreamDestroy_v2(stream));
}
TEST(types_and_operators) { job_run("", 3, kit_patience_ms(TIMEOUT_MS), types, NULL); }

/* ---- several ranks in a process ---- */

struct thread_rank {
  ncclUniqueId id;
  int rank, nranks;
};

static void be_thread(void *arg) {
  const struct thread_rank *t = arg;
  ncclComm_t comm;
  GPU(gpu.cuCtxSetCurrent(gpu.context));
  OK(ncclCommInitRank(&comm, t->nranks, t->id, t->rank));
  void *stream = gpu_stream();
  all_calls(comm, stream);
  close_comm(comm);
  GPU(gpu.cuStreamDestroy_v2(stream));
}

static void in_threads(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  gpu_open();
  struct thread_rank t[4];
  OK(ncclGetUniqueId(&t[0].id));
  for (int i = 0; i < 4; i++) t[i] = (struct thread_rank){t[0].id, i, 4};
  gpu_launches_are_shared = true;
  kit_run_threads(4, be_thread, t, sizeof t[0]);
  long maps = gpu.calls ? gpu.calls("cuMemMap") : 0, allowed = gpu.calls ? gpu.calls("cuMemSetAccess") : 0;
  ENSURE(maps == allowed, "%ld pieces were mapped, access was set %ld times, also while kernels ran", maps, allowed);
  ENSURE(!gpu.calls || maps > 0, "nothing was mapped");
  gpu_nothing_left();
}
TEST(threads) { job_run("", 1, kit_patience_ms(TIMEOUT_MS), in_threads, NULL); }

/* One thread has all ranks, on two devices; none of them is current while it makes the calls. */
static void in_one_thread(const struct rank *rank, void *arg) {
  enum { RANKS = 4, COUNT = 3000 };
  (void)rank, (void)arg;
  gpu_open();
  ncclComm_t comms[RANKS];
  void *contexts[2] = {gpu.context}, *streams[RANKS];
  int32_t *buffers[RANKS], numbers[COUNT];
  GPU(gpu.cuDevicePrimaryCtxRetain(&contexts[1], gpu.calls ? 1 : 0));
  OK(ncclCommInitAll(comms, RANKS, NULL));
  for (int i = 0; i < RANKS; i++) {
    GPU(gpu.cuCtxSetCurrent(contexts[i % 2]));
    streams[i] = gpu_stream();
    buffers[i] = gpu_alloc(sizeof numbers);
    for (int k = 0; k < COUNT; k++) numbers[k] = k << i;
    gpu_put(buffers[i], numbers, sizeof numbers);
  }
  for (int round = 0; round < 5; round++) {
    OK(ncclGroupStart());
    for (int i = 0; i < RANKS; i++)
      OK(ncclAllReduce(buffers[i], buffers[i], COUNT, ncclInt32, ncclMax, comms[i], streams[i]));
    OK(ncclGroupEnd());
  }
  for (int i = 0; i < RANKS; i++) {
    GPU(gpu.cuStreamSynchronize(streams[i]));
    gpu_get(numbers, buffers[i], sizeof numbers);
    for (int k = 0; k < COUNT; k++) ENSURE(numbers[k] == k << (RANKS - 1), "rank %d: %d", i, numbers[k]);
  }
  for (int i = 0; i < RANKS; i++) {
    OK(ncclCommDestroy(comms[i]));
    GPU(gpu.cuStreamDestroy_v2(streams[i]));
    gpu_free(buffers[i]);
  }
  gpu_nothing_left();
}
TEST(one_thread) { job_run("GHOST_DEVICES=2", 1, kit_patience_ms(TIMEOUT_MS), in_one_thread, NULL); }
TEST(one_thread_and_a_network) {
  job_run("GHOST_DEVICES=2 NCCL_SHM_DISABLE=1", 1, kit_patience_ms(TIMEOUT_MS), in_one_thread, NULL);
}

TEST_MAIN(TEST_CASE(shared_memory), TEST_CASE(exchange), TEST_CASE(ll), TEST_CASE(channels), TEST_CASE(tree),
          TEST_CASE(network), TEST_CASE(network_thread), TEST_CASE(network_ll), TEST_CASE(both),
          TEST_CASE(types_and_operators), TEST_CASE(threads), TEST_CASE(one_thread),
          TEST_CASE(one_thread_and_a_network))
