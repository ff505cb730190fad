/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 120
 * TEST-SAN: asan tsan
 *
 * Proves: of a communicator on device buffers the GPU's memory is counted, given back by a suspend and made again; a
 * graph that has its connections forbids that; memory of a device has no window, because a kernel could take one for an
 * address; and a registration can be given back once the stream has run what uses it, but not before.
 */
#include "test/device/gpu/side.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000

static uint64_t stat_of(ncclComm_t comm, ncclCommMemStat_t stat) {
  uint64_t value = 77;
  OK(ncclCommMemStats(comm, stat, &value));
  return value;
}

struct expected {
  const char *transports;
  bool in_gpu; /* slots lie there */
};

static void suspended(const struct rank *rank, void *arg) {
  const struct expected *e = arg;
  struct side s;
  gpu_open();
  ncclComm_t comm = open_comm(rank);
  side_open(&s, comm);
  sum(&s, 1); /* loads the kernels */
  const long pieces = gpu.live ? gpu.live("mapped") : 0;
  for (int round = 0; round < 3; round++) {
    sum(&s, 1);
    sum(&s, MANY);
    is_transport(&s, e->transports);
    ENSURE((stat_of(comm, ncclStatGpuMemSuspend) >= 64u << 10) == e->in_gpu, "%llu bytes of the GPU are counted",
           (unsigned long long)stat_of(comm, ncclStatGpuMemSuspend));
    OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
    ENSURE(stat_of(comm, ncclStatGpuMemTotal) == 0, "%llu bytes of the GPU are left",
           (unsigned long long)stat_of(comm, ncclStatGpuMemTotal));
    rank_barrier(rank); /* both have given back what they have of the other */
    if (gpu.live && e->in_gpu)
      ENSURE(gpu.live("mapped") < pieces, "%ld pieces are mapped, %ld before", gpu.live("mapped"), pieces);
    REFUSED(ncclAllReduce(s.device, s.device, 1, ncclInt32, ncclSum, comm, s.stream), ncclInvalidUsage, "suspended");
    OK(ncclCommResume(comm));
    rank_barrier(rank);
  }
  sum(&s, MANY);
  side_free(&s);
  close_comm(comm);
  rank_barrier(rank);
  gpu_nothing_left();
}
TEST(memory_of_the_gpu_is_given_back) {
  static struct expected p2p = {"P2P", true}, shm = {"SHM", false}, net = {"NET/RailSocket", false};
  const char *quiet = "NCCL_DEBUG=NONE " SMALL;
  char env[256];
  job_run(quiet, 2, kit_patience_ms(TIMEOUT_MS), suspended, &p2p);
  snprintf(env, sizeof env, "%s NCCL_P2P_DISABLE=1", quiet);
  job_run(env, 2, kit_patience_ms(TIMEOUT_MS), suspended, &shm);
  if (!ranks_plugin()) return;
  snprintf(env, sizeof env, "%s NCCL_SHM_DISABLE=1", quiet);
  job_run(env, 2, kit_patience_ms(TIMEOUT_MS), suspended, &net);
}

/* Both ranks in one process: when a kernel is over, its communicator's executor may not have seen it yet, and the other
 * communicator can be suspended all the same. */
static void in_one_process(const struct rank *rank, void *arg) {
  enum { RANKS = 2, COUNT = 3000 };
  static int32_t numbers[COUNT];
  (void)rank, (void)arg;
  gpu_open();
  ncclComm_t comms[RANKS];
  void *streams[RANKS];
  int32_t *buffers[RANKS];
  OK(ncclCommInitAll(comms, RANKS, NULL));
  for (int i = 0; i < RANKS; i++) {
    streams[i] = gpu_stream();
    buffers[i] = gpu_alloc(sizeof numbers);
    gpu_put(buffers[i], numbers, sizeof numbers);
  }
  for (int round = 0; round < 40; round++) {
    OK(ncclGroupStart());
    for (int i = 0; i < RANKS; i++)
      OK(ncclAllReduce(buffers[i], buffers[i], COUNT, ncclInt32, ncclMax, comms[i], streams[i]));
    OK(ncclGroupEnd());
    for (int i = 0; i < RANKS; i++) GPU(gpu.cuStreamSynchronize(streams[i]));
    for (int i = 0; i < RANKS; i++) OK(ncclCommSuspend(comms[i], NCCL_SUSPEND_MEM));
    for (int i = 0; i < RANKS; i++) OK(ncclCommResume(comms[i]));
  }
  for (int i = 0; i < RANKS; i++) OK(ncclCommDestroy(comms[i]));
}
TEST(ranks_of_one_process_suspend) {
  job_run("NCCL_DEBUG=NONE " SMALL, 1, kit_patience_ms(TIMEOUT_MS), in_one_process, NULL);
}

static void captured(const struct rank *rank, void *arg) {
  void *graph, *exec;
  struct side s;
  (void)arg;
  gpu_open();
  ncclComm_t comm = open_comm(rank);
  side_open(&s, comm);
  sum(&s, 100);
  GPU(gpu.cuStreamBeginCapture_v2(s.stream, 0));
  OK(ncclAllReduce(s.device, s.device, 100, ncclInt32, ncclSum, comm, s.stream));
  GPU(gpu.cuStreamEndCapture(s.stream, &graph));
  GPU(gpu.cuGraphInstantiateWithFlags(&exec, graph, 0));
  GPU(gpu.cuGraphDestroy(graph));
  REFUSED(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), ncclInvalidUsage, "graph");
  GPU(gpu.cuGraphLaunch(exec, s.stream)); /* which was no harm */
  GPU(gpu.cuStreamSynchronize(s.stream));
  GPU(gpu.cuGraphExecDestroy(exec));
  OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  OK(ncclCommResume(comm));
  sum(&s, 100);
  side_free(&s);
  close_comm(comm);
}
TEST(a_graph_keeps_the_connections) {
  job_run("NCCL_DEBUG=NONE " SMALL, 2, kit_patience_ms(TIMEOUT_MS), captured, NULL);
}

static void windows(const struct rank *rank, void *arg) {
  static int32_t host[1000];
  struct side s;
  void *user = &s;
  (void)arg;
  gpu_open();
  ncclComm_t comm = open_comm(rank), on_host = NULL;
  OK(ncclCommSplit(comm, 0, 0, &on_host, NULL));
  side_open(&s, comm);
  for (int used = 0; used < 2; used++) {
    ncclWindow_t win = (ncclWindow_t)(void *)&s;
    OK(ncclCommWindowRegister(comm, s.device, 4096, &win, NCCL_WIN_COLL_SYMMETRIC));
    ENSURE(win == NULL, "memory of the device has window %p", (void *)win);
    OK(ncclWinGetUserPtr(comm, win, &user));
    ENSURE(user == NULL, "no window has buffer %p", user);
    OK(ncclCommWindowDeregister(comm, win));
    sum(&s, 100);
  }
  ncclWindow_t win = NULL;
  OK(ncclCommWindowRegister(comm, host, sizeof host, &win, 0));
  ENSURE(win == NULL, "a communicator on the device has window %p", (void *)win);
  OK(ncclCommWindowRegister(on_host, host, sizeof host, &win, 0));
  ENSURE(win != NULL, "host memory has no window");
  OK(ncclCommWindowDeregister(on_host, win));
  side_free(&s);
  close_comm(on_host);
  close_comm(comm);
}
TEST(memory_of_the_device_has_no_window) {
  job_run("NCCL_DEBUG=NONE " SMALL, 2, kit_patience_ms(TIMEOUT_MS), windows, NULL);
}

#define ROUNDS 50

static void registrations(const struct rank *rank, void *arg) {
  struct side s;
  void *handle = NULL;
  (void)arg;
  gpu_open();
  ncclComm_t comm = open_comm(rank);
  side_open(&s, comm);
  sum(&s, MANY);
  for (int i = 0; i < ROUNDS; i++) {
    OK(ncclCommRegister(comm, s.device, MANY * sizeof *s.device, &handle));
    OK(ncclAllReduce(s.device, s.device, MANY, ncclInt32, ncclSum, comm, s.stream));
    GPU(gpu.cuStreamSynchronize(s.stream));
    OK(ncclCommDeregister(comm, handle));
  }
  OK(ncclCommRegister(comm, s.device, MANY * sizeof *s.device, &handle));
  rank_barrier(rank);
  if (rank->rank == 0) { /* the other rank's part is still to come */
    OK(ncclAllReduce(s.device, s.device, MANY, ncclInt32, ncclSum, comm, s.stream));
    REFUSED(ncclCommDeregister(comm, handle), ncclInvalidUsage, "unfinished");
  }
  rank_barrier(rank);
  if (rank->rank != 0) OK(ncclAllReduce(s.device, s.device, MANY, ncclInt32, ncclSum, comm, s.stream));
  GPU(gpu.cuStreamSynchronize(s.stream));
  OK(ncclCommDeregister(comm, handle));
  side_free(&s);
  close_comm(comm);
}
TEST(a_registration_ends_after_its_stream) {
  job_run("NCCL_DEBUG=NONE " SMALL, 2, kit_patience_ms(TIMEOUT_MS), registrations, NULL);
  if (ranks_plugin())
    job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1 " SMALL, 2, kit_patience_ms(TIMEOUT_MS), registrations, NULL);
}

TEST_MAIN(TEST_CASE(memory_of_the_gpu_is_given_back), TEST_CASE(ranks_of_one_process_suspend),
          TEST_CASE(a_graph_keeps_the_connections), TEST_CASE(memory_of_the_device_has_no_window),
          TEST_CASE(a_registration_ends_after_its_stream))
