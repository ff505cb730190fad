/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 120
 * TEST-SAN: asan tsan
 *
 * Proves: between ranks of one process, on one device, no call of the driver that waits for what runs there stands
 * between a kernel and the one that it waits for: not while communicators are made, used, in graphs or without, nor
 * while another one is taken down. The fake driver ends a process in which that happens (test/device/gpu/wait.c).
 */
#include <pthread.h>
#include <signal.h>

#include "test/device/gpu/user.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000
#define N 2000
#define MOST_RANKS 6

/* A thread's rank of two communicators. */
struct half {
  ncclUniqueId id[2];
  int rank, nranks;
  ncclComm_t comm[2];
  void *stream;
  int32_t *x, host[N];
};

static pthread_barrier_t meeting;

static void meet(void) { pthread_barrier_wait(&meeting); }

static void half_open(struct half *h, int comms) {
  GPU(gpu.cuCtxSetCurrent(gpu.context));
  for (int c = 0; c < comms; c++) OK(ncclCommInitRank(&h->comm[c], h->nranks, h->id[c], h->rank));
  h->stream = gpu_stream();
  h->x = gpu_alloc(sizeof h->host);
  for (int i = 0; i < N; i++) h->host[i] = i + h->rank;
  gpu_put(h->x, h->host, sizeof h->host);
}

static void half_close(struct half *h) {
  gpu_free(h->x);
  GPU(gpu.cuStreamDestroy_v2(h->stream));
}

static void sum(struct half *h, int c) {
  OK(ncclAllReduce(h->x, h->x, N, ncclInt32, ncclSum, h->comm[c], h->stream));
}

/* x is the sum of sums of … of what it was. */
static void check(struct half *h, int times) {
  GPU(gpu.cuStreamSynchronize(h->stream));
  gpu_get(h->host, h->x, sizeof h->host);
  for (int i = 0; i < N; i++) {
    uint32_t want = (uint32_t)(h->nranks * i + h->nranks * (h->nranks - 1) / 2);
    for (int t = 1; t < times; t++) want *= (uint32_t)h->nranks;
    ENSURE((uint32_t)h->host[i] == want, "rank %d: number %d is %d instead of %u", h->rank, i, h->host[i], want);
  }
}

static void all_threads(int nranks, void (*body)(void *arg)) {
  static struct half all[MOST_RANKS];
  gpu_open();
  memset(all, 0, sizeof all);
  pthread_barrier_init(&meeting, NULL, (unsigned)nranks);
  for (int c = 0; c < 2; c++) OK(ncclGetUniqueId(&all[0].id[c]));
  for (int r = 0; r < nranks; r++) {
    memcpy(all[r].id, all[0].id, sizeof all[0].id);
    all[r].rank = r;
    all[r].nranks = nranks;
  }
  kit_run_threads((unsigned)nranks, body, all, sizeof all[0]);
  gpu_nothing_left();
}

/* ---- the first call: more ranks than have each other for neighbours ---- */

static void first_call(void *arg) {
  struct half *h = arg;
  half_open(h, 1);
  usleep((useconds_t)h->rank * 3000); /* some are late */
  sum(h, 0);
  check(h, 1);
  OK(ncclCommDestroy(h->comm[0]));
  half_close(h);
}

static void first_calls(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  all_threads(5, first_call);
}
TEST(the_first_call) {
  job_run("NCCL_DEBUG=WARN", 1, kit_patience_ms(TIMEOUT_MS), first_calls, NULL);
  job_run("NCCL_DEBUG=WARN GHOST_MAPPING=waits", 1, kit_patience_ms(TIMEOUT_MS), first_calls, NULL);
}

/* ---- one communicator ends while kernels of another wait ---- */

/* Rank 1's kernel of the second waits for rank 0, which first takes down its end of the first. */
static void end_one(void *arg) {
  struct half *h = arg;
  half_open(h, 2);
  sum(h, 0);
  sum(h, 1);
  GPU(gpu.cuStreamSynchronize(h->stream));
  if (h->rank != 0) sum(h, 1);
  meet();
  if (h->rank == 0) {
    usleep(20000); /* the kernels are at it */
    OK(ncclCommDestroy(h->comm[0]));
    sum(h, 1);
  }
  check(h, 3);
  if (h->rank != 0) OK(ncclCommDestroy(h->comm[0]));
  OK(ncclCommDestroy(h->comm[1]));
  half_close(h);
}

static void ends_one(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  all_threads(2, end_one);
}
TEST(another_communicator_ends) {
  job_run("NCCL_DEBUG=WARN", 1, kit_patience_ms(TIMEOUT_MS), ends_one, NULL);
  job_run("NCCL_DEBUG=WARN NCCL_P2P_DISABLE=1", 1, kit_patience_ms(TIMEOUT_MS), ends_one, NULL);
  job_run("NCCL_DEBUG=WARN NCCL_SHM_DISABLE=1", 1, kit_patience_ms(TIMEOUT_MS), ends_one, NULL);
}

/* ---- many calls at once ---- */

/* Rank 0 is that many calls ahead of the others: none of theirs may need what waits for its kernel. */
#define AHEAD 60

static void run_ahead(void *arg) {
  struct half *h = arg;
  half_open(h, 1);
  sum(h, 0);
  GPU(gpu.cuStreamSynchronize(h->stream));
  long registered = gpu.calls ? gpu.calls("cuMemHostRegister_v2") : 0;
  meet();
  if (h->rank == 0)
    for (int i = 0; i < AHEAD; i++) sum(h, 0);
  meet();
  if (h->rank != 0)
    for (int i = 0; i < AHEAD; i++) sum(h, 0);
  check(h, AHEAD + 1);
  if (gpu.calls) ENSURE(gpu.calls("cuMemHostRegister_v2") == registered, "calls registered memory");
  meet();
  OK(ncclCommDestroy(h->comm[0]));
  half_close(h);
}

static void runs_ahead(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  all_threads(2, run_ahead);
}
TEST(calls_ahead_of_the_others) {
  job_run("NCCL_DEBUG=WARN GHOST_MAPPING=waits", 1, kit_patience_ms(TIMEOUT_MS), runs_ahead, NULL);
}

/* ---- the fake driver is as strict as it says ---- */

static int in_callback;

static void call_back(void *arg) {
  uint64_t address;
  (void)arg;
  in_callback = gpu.cuMemAlloc_v2(&address, 1);
}

static void is(int result, int expected, int line) {
  ENSURE(result == expected, "line %d: CUDA result %d instead of %d", line, result, expected);
}

static void strict(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  enum { INVALID_VALUE = 1, NOT_PERMITTED = 800, IMPLICIT = 906, INVALIDATED = 901 };
  void *blocking, *graph, *small;
  struct rt_cuda_ipc handle;
  struct gpu_gate gate;
  gpu_open();
  GPU(gpu.cuStreamCreate(&blocking, 0));
  GPU(gpu.cuLaunchHostFunc(NULL, call_back, NULL));
  GPU(gpu.cuStreamSynchronize(NULL));
  is(in_callback, NOT_PERMITTED, __LINE__);
  GPU(gpu.cuStreamBeginCapture_v2(blocking, RT_CU_CAPTURE_MODE_RELAXED));
  is(gpu.cuStreamQuery(NULL), IMPLICIT, __LINE__);
  is(gpu.cuStreamEndCapture(blocking, &graph), INVALIDATED, __LINE__);
  gpu_hold(&gate, blocking); /* the legacy stream waits for it */
  GPU(gpu.cuLaunchHostFunc(NULL, call_back, NULL));
  is(gpu.cuStreamQuery(NULL), RT_CU_NOT_READY, __LINE__);
  gpu_let_go(&gate);
  GPU(gpu.cuStreamSynchronize(NULL));
  small = gpu_alloc(4096); /* has others beside it */
  is(gpu.cuIpcGetMemHandle(&handle, (uint64_t)(uintptr_t)small), INVALID_VALUE, __LINE__);
  gpu_free(small);
  GPU(gpu.cuStreamDestroy_v2(blocking));
}
TEST(the_fake_is_strict) {
  if (getenv("TEST_REAL_GPU")) tap_skip_case("needs the fake driver");
  job_run("", 1, kit_patience_ms(TIMEOUT_MS), strict, NULL);
}

/* Memory is freed, by any thread, while a stream is held. */
static int *found;

static void aborted(int number) {
  *found = number;
  _exit(0);
}

static void deadlocked(const struct rank *rank, void *arg) {
  (void)arg;
  struct gpu_gate gate;
  gpu_open();
  void *x = gpu_alloc(1);
  gpu_hold(&gate, gpu_stream());
  found = rank->shared;
  signal(SIGABRT, aborted);
  gpu_free(x);
}
TEST(the_fake_finds_deadlocks) {
  if (getenv("TEST_REAL_GPU")) tap_skip_case("needs the fake driver");
  struct job *job = job_start("GHOST_PATIENCE=1", 1, deadlocked, NULL);
  int status = -1;
  CHECK(job_wait(job, 0, kit_patience_ms(TIMEOUT_MS), &status));
  CHECK_INT(*(const int *)job_shared(job), SIGABRT);
  job_end(job, kit_patience_ms(TIMEOUT_MS), 0);
}

TEST_MAIN(TEST_CASE(the_first_call), TEST_CASE(another_communicator_ends), TEST_CASE(calls_ahead_of_the_others),
          TEST_CASE(the_fake_is_strict), TEST_CASE(the_fake_finds_deadlocks))
