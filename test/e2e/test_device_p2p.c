/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 * TEST-SAN: asan tsan
 *
 * Proves: kernels of ranks on GPUs that reach each other meet in a GPU's memory, in one process and in several, with
 * every protocol and kind of memory; where that is not possible or not wished they meet in the host's, and a line
 * says why; what ranks export to each other is freed in time and never
 * too early, however they end.
 */
#include <signal.h>
#include <stdio.h>

#include "test/device/gpu/check.h"
#include "test/device/gpu/side.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000

/* Steps went through memory of the GPU only, or of the host only. */
static void is_place(const char *proto, bool on_gpu) {
  char in_gpu[32], in_host[32];
  if (!gpu.calls) return;
  snprintf(in_gpu, sizeof in_gpu, "GPU: %s", proto);
  snprintf(in_host, sizeof in_host, "host: %s", proto);
  long a = gpu.calls(in_gpu), b = gpu.calls(in_host);
  ENSURE((a > 0) == on_gpu && (b > 0) == !on_gpu, "%s: %ld kernels sent by the GPU's memory, %ld by the host's", proto,
         a, b);
}

/* ---- where steps lie ---- */

struct expected { const char *proto, *transports; };

static void work(ncclComm_t comm, const struct expected *e) {
  static const int counts[] = {1, 1000, MANY};
  struct side s;
  side_open(&s, comm);
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) sum(&s, counts[i]);
  is_transport(&s, e->transports);
  is_place(e->proto, strcmp(e->transports, "P2P") == 0);
  struct gpu_buffers b = gpu_buffers_new(64 * 1024);
  for (int coll = 0; coll < C_COUNT; coll++) {
    struct gpu_call c = {.coll = coll, .root = 1 % s.n, .type = ncclFloat32, .op = ncclSum, .count = 1001};
    gpu_check(&c, &b, comm, s.stream, (unsigned)coll);
  }
  gpu_buffers_free(&b);
  close_comm(comm);
  side_free(&s);
}

static void in_process(const struct rank *rank, void *arg) {
  gpu_open();
  work(open_comm(rank), arg);
  rank_barrier(rank); /* all have closed what they imported */
  gpu_nothing_left();
}

static void processes(const char *env, int n, const char *proto, const char *transports) {
  char all[256];
  struct expected e = {proto, transports};
  snprintf(all, sizeof all, SMALL "%s", env);
  job_run(all, n, kit_patience_ms(TIMEOUT_MS), in_process, &e);
}

TEST(processes_write) {
  processes("", 2, "Simple", "P2P");
  processes("NCCL_CUMEM_ENABLE=0", 2, "Simple", "P2P");
  processes("RAIL_NCHANNELS=2", 3, "Simple", "P2P");
}
TEST(processes_read) {
  processes("NCCL_P2P_READ_ENABLE=1", 3, "Simple", "P2P");
  processes("NCCL_P2P_READ_ENABLE=1 NCCL_CUMEM_ENABLE=0", 3, "Simple", "P2P");
}
TEST(one_reads_the_other_does_not) { processes("NCCL_P2P_READ_ENABLE=%h", 2, "Simple", "P2P"); }
TEST(ll) {
  processes("NCCL_PROTO=LL", 3, "LL", "P2P");
  processes("NCCL_PROTO=LL NCCL_P2P_READ_ENABLE=1", 2, "LL", "P2P");
}
TEST(ll128) {
  processes("NCCL_PROTO=LL128", 3, "LL128", "P2P");
  processes("NCCL_PROTO=LL128 NCCL_P2P_READ_ENABLE=1", 2, "LL128", "P2P");
}
TEST(ll128_in_memory_of_the_host) { processes("NCCL_PROTO=LL128 NCCL_P2P_DISABLE=1", 2, "LL128", "SHM"); }
TEST(disabled) {
  processes("NCCL_P2P_DISABLE=1", 2, "Simple", "SHM");
  processes("NCCL_P2P_LEVEL=LOC", 2, "Simple", "SHM");
  processes("NCCL_P2P_DISABLE=%d", 2, "Simple", "SHM");
}

/* ---- ranks of one process, each on a device of its own or all on one ---- */

struct thread_rank {
  ncclUniqueId id;
  int rank, nranks, device;
  const struct expected *expected;
};

static void be_thread(void *arg) {
  const struct thread_rank *t = arg;
  ncclComm_t comm;
  void *context;
  GPU(gpu.cuDevicePrimaryCtxRetain(&context, t->device));
  GPU(gpu.cuCtxSetCurrent(context));
  OK(ncclCommInitRank(&comm, t->nranks, t->id, t->rank));
  work(comm, t->expected);
}

static void in_threads(const struct rank *rank, void *arg) {
  enum { RANKS = 3 };
  struct thread_rank t[RANKS];
  const char *devices = getenv("GHOST_DEVICES");
  (void)rank;
  gpu_open();
  OK(ncclGetUniqueId(&t[0].id));
  for (int i = 0; i < RANKS; i++)
    t[i] = (struct thread_rank){t[0].id, i, RANKS, devices && gpu.calls ? i % atoi(devices) : 0, arg};
  gpu_launches_are_shared = true;
  kit_run_threads(RANKS, be_thread, t, sizeof t[0]);
  gpu_nothing_left();
}

static void threads(const char *env, const char *proto, const char *transports) {
  char all[256];
  struct expected e = {proto, transports};
  snprintf(all, sizeof all, SMALL "%s", env);
  job_run(all, 1, kit_patience_ms(TIMEOUT_MS), in_threads, &e);
}

TEST(threads_on_one_device) {
  threads("", "Simple", "P2P");
  threads("NCCL_P2P_READ_ENABLE=1", "Simple", "P2P");
  threads("NCCL_PROTO=LL", "LL", "P2P");
}
TEST(threads_on_three_devices) {
  threads("GHOST_DEVICES=3", "Simple", "P2P");
  threads("GHOST_DEVICES=3 NCCL_CUMEM_ENABLE=0", "Simple", "P2P");
  threads("GHOST_DEVICES=3 NCCL_P2P_READ_ENABLE=1 GHOST_PEERS=nvlink", "Simple", "P2P");
}
TEST(ll128_between_devices) { /* whose lines come whole over NVLink only */
  threads("NCCL_PROTO=LL128 GHOST_DEVICES=3", "LL128", "P2P");
  threads("NCCL_PROTO=LL128 GHOST_DEVICES=3 GHOST_PEERS=nvlink", "LL128", "P2P");
}
TEST(devices_that_are_too_far) {
  if (getenv("TEST_REAL_GPU")) tap_skip_case("needs the fake driver's devices");
  threads("GHOST_DEVICES=3 GHOST_PEERS=none", "Simple", "SHM");
  threads("GHOST_DEVICES=3 NCCL_P2P_LEVEL=PHB", "Simple", "SHM");
  threads("GHOST_DEVICES=3 GHOST_PEERS=nvlink NCCL_P2P_LEVEL=NVL", "Simple", "P2P");
}

/* ---- a driver that refuses ---- */

struct refusal { const char *call, *words; };

static void must_say(int fd, int kept, const struct refusal *refusal) {
  char text[64 * 1024] = "";
  release_stderr(fd, kept, text);
  static const char said[] = "use shared memory of the host";
  const char *line = strstr(text, said);
  ENSURE(line && strstr(line, refusal->words), "no line says that %s was refused: %s", refusal->words, text);
  ENSURE(!strstr(line + 1, said), "it is said twice: %s", text);
}

/* Rank 1's call fails, and with it its part of one connection; the sum is right all the same. */
static void refused(const struct rank *rank, void *arg) {
  const struct refusal *refusal = arg;
  struct side s;
  int kept = -1, fd = -1;
  gpu_open();
  if (rank->rank == 1) {
    setenv("GHOST_FAIL", refusal->call, 1);
    setenv("NCCL_DEBUG", "INFO", 1);
    fd = catch_stderr(&kept);
  }
  side_open(&s, open_comm(rank));
  for (int i = 0; i < 3; i++) sum(&s, MANY);
  close_comm(s.comm);
  side_free(&s);
  rank_barrier(rank);
  if (rank->rank == 1) must_say(fd, kept, refusal);
  gpu_nothing_left();
}

TEST(a_driver_that_refuses) {
  static struct refusal all[] = {
      {"cuMemAlloc_v2:2", "cuMemAlloc"}, /* the first is the test's */
      {"cuStreamCreate:2", "cuStreamCreate"},
      {"cuMemsetD8Async:1", "cuMemsetD8Async"},
      {"cuDeviceGetPCIBusId:2", "cuDeviceGetPCIBusId"}, /* the first is of who looks where it is */
      {"cuIpcGetMemHandle:1", "cuIpcGetMemHandle"},
      {"cuDeviceGetByPCIBusId:1", "CUDA_VISIBLE_DEVICES"},
      {"cuIpcOpenMemHandle_v2:1", "cuIpcOpenMemHandle"},
  };
  if (getenv("TEST_REAL_GPU")) tap_skip_case("needs the fake driver");
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    job_run(SMALL "NCCL_DEBUG=NONE NCCL_CUMEM_ENABLE=0", 2, kit_patience_ms(TIMEOUT_MS), refused, &all[i]);
}

/* ---- how ranks end ---- */

static bool memory_is_left(void) { return gpu.live && gpu.live("allocated") + gpu.live("mapped") > 0; }

/* Rank 1 ends long after rank 0, whose memory it has open until then. */
static void late(const struct rank *rank, void *arg) {
  struct side s;
  const int *ms = arg;
  gpu_open();
  ncclComm_t comm = open_comm(rank);
  side_open(&s, comm);
  sum(&s, MANY);
  side_free(&s);
  rank_barrier(rank);
  if (rank->rank == 1) usleep((useconds_t)*ms * 1000);
  OK(ncclCommAbort(comm)); /* does not wait for the others */
  bool waited = !memory_is_left();
  if (rank->rank == 0 && gpu.live) ENSURE(waited == (*ms < 1000), "after %d ms: %d", *ms, waited);
  rank_barrier(rank);
  if (!waited) { /* what was left behind goes with the next that ends */
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRank(&comm, 1, id, 0));
    OK(ncclCommDestroy(comm));
  }
  gpu_nothing_left();
}
TEST(memory_lives_as_long_as_it_is_imported) {
  static int soon = 100, much_later = 1600;
  job_run("NCCL_DEBUG=NONE NCCL_CUMEM_ENABLE=0", 2, kit_patience_ms(TIMEOUT_MS), late, &soon);
  job_run("NCCL_DEBUG=NONE NCCL_CUMEM_ENABLE=0", 2, kit_patience_ms(TIMEOUT_MS), late, &much_later);
}

/* A kernel waits at slots in its GPU's memory for a step that never comes. */
static void aborted(const struct rank *rank, void *arg) {
  struct side s;
  (void)arg;
  gpu_open();
  side_open(&s, open_comm(rank));
  sum(&s, MANY);
  if (rank->rank == 0) OK(ncclAllReduce(s.device, s.device, MANY, ncclInt32, ncclSum, s.comm, s.stream));
  rank_barrier(rank);
  if (rank->rank == 0) usleep(20000); /* the kernel is at it */
  OK(ncclCommAbort(s.comm));
  GPU(gpu.cuStreamSynchronize(s.stream));
  side_free(&s);
  rank_barrier(rank);
  gpu_nothing_left();
}
TEST(abort_ends_a_kernel_that_waits) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), aborted, NULL);
  job_run("NCCL_DEBUG=NONE NCCL_PROTO=LL128", 2, kit_patience_ms(TIMEOUT_MS), aborted, NULL);
}

/* The memory that a dead process had open is freed. */
static void killed(const struct rank *rank, void *arg) {
  struct side s;
  (void)arg;
  gpu_open();
  side_open(&s, open_comm(rank));
  sum(&s, MANY);
  rank_barrier(rank);
  if (rank->rank == 1) raise(SIGKILL);
  OK(ncclCommAbort(s.comm));
  side_free(&s);
  ENSURE(!memory_is_left(), "memory that a dead rank had is left");
}
TEST(a_rank_that_is_killed) {
  static const char *const env[] = {"NCCL_DEBUG=NONE", "NCCL_DEBUG=NONE NCCL_CUMEM_ENABLE=0"};
  for (int i = 0; i < 2; i++) job_end(job_start(env[i], 2, killed, NULL), kit_patience_ms(TIMEOUT_MS), 1u << 1);
}

TEST_MAIN(TEST_CASE(processes_write), TEST_CASE(processes_read), TEST_CASE(one_reads_the_other_does_not), TEST_CASE(ll),
          TEST_CASE(ll128), TEST_CASE(ll128_in_memory_of_the_host), TEST_CASE(disabled),
          TEST_CASE(threads_on_one_device), TEST_CASE(threads_on_three_devices), TEST_CASE(ll128_between_devices),
          TEST_CASE(devices_that_are_too_far), TEST_CASE(a_driver_that_refuses),
          TEST_CASE(memory_lives_as_long_as_it_is_imported), TEST_CASE(abort_ends_a_kernel_that_waits),
          TEST_CASE(a_rank_that_is_killed))
