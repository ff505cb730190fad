/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 300
 * TEST-SAN: asan tsan
 *
 * Proves: what is wrong with a call on device buffers is said when it is made; what goes wrong later ends the
 * communicator on all ranks, with its reason; ncclCommAbort ends kernels that wait; whatever call of the driver fails,
 * the caller hears of it and nothing is left.
 */
#include <limits.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "test/device/gpu/calls.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000
#define N 5000

static ncclResult_t wait_for_error(ncclComm_t comm) {
  uint64_t until = rail_deadline_in_ms(kit_patience_ms(20000));
  ncclResult_t r = ncclSuccess;
  while (r == ncclSuccess) {
    ENSURE(!rail_deadline_passed(until), "no error was reported");
    OK(ncclCommGetAsyncError(comm, &r));
    usleep(2000);
  }
  return r;
}

/* ---- wrong calls ---- */

static void wrong_buffers(const struct rank *rank, void *arg) {
  (void)arg;
  gpu_open();
  ncclComm_t comm = open_comm(rank);
  void *stream = gpu_stream(), *pinned = NULL;
  float host[16] = {0}, *device = gpu_alloc(sizeof host);
  uint64_t address;
  REFUSED(ncclAllReduce(device, host, 16, ncclFloat, ncclSum, comm, stream), ncclInvalidArgument, "recvbuff");
  ENSURE(strstr(ncclGetLastError(NULL), "CUDA device 0"), "\"%s\"", ncclGetLastError(NULL));
  REFUSED(ncclAllReduce(host, device, 16, ncclFloat, ncclSum, comm, stream), ncclInvalidArgument, "not registered");
  /* Registered host memory and managed memory are the device's as well. */
  ENSURE(posix_memalign(&pinned, 4096, 4096) == 0, "out of memory");
  GPU(gpu.cuMemHostRegister_v2(pinned, 4096, 3));
  OK(ncclAllReduce(device, pinned, 16, ncclFloat, ncclSum, comm, stream));
  OK(ncclAllReduce(pinned, pinned, 16, ncclFloat, ncclSum, comm, stream));
  REFUSED(ncclAllReduce(pinned, host, 16, ncclFloat, ncclSum, comm, stream), ncclInvalidUsage, "recvbuff");
  GPU(gpu.cuMemAllocManaged(&address, 4096, 1));
  OK(ncclAllReduce((void *)(uintptr_t)address, device, 16, ncclFloat, ncclSum, comm, stream));
  OK(railCommWait(comm));
  GPU(gpu.cuStreamSynchronize(stream));
  if (gpu.calls) ENSURE(gpu.calls("kernel") == 3, "%ld kernels", gpu.calls("kernel"));
  GPU(gpu.cuMemFree_v2(address));
  GPU(gpu.cuMemHostUnregister(pinned));
  free(pinned);
  gpu_free(device);
  close_comm(comm);
  gpu_nothing_left();
  GPU(gpu.cuStreamDestroy_v2(stream));
}
TEST(buffers_that_do_not_fit_are_refused) {
  job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), wrong_buffers, NULL);
}

/* More blocks than run at once would wait for each other for ever. Collectives alone would share blocks. */
static void large_group(const struct rank *rank, void *arg) {
  (void)arg;
  gpu_open();
  ncclComm_t comm = open_comm(rank);
  char *device = gpu_alloc(64);
  OK(ncclGroupStart());
  for (int i = 0; i < 16; i++) OK(ncclAllReduce(device, device, 1, ncclInt8, ncclSum, comm, NULL));
  OK(ncclSend(device, 1, ncclInt8, 0, comm, NULL));
  OK(ncclRecv(device + 1, 1, ncclInt8, 0, comm, NULL));
  ENSURE(ncclGroupEnd() == ncclInvalidUsage, "a group of 17 was taken by a device that runs 16");
  OK(ncclCommAbort(comm));
  gpu_free(device);
  gpu_nothing_left();
}
TEST(a_group_that_is_too_large_is_refused) {
  if (getenv("TEST_REAL_GPU")) tap_skip_case("needs the fake driver's small device");
  job_run("NCCL_DEBUG=NONE GHOST_ATTRIBUTES=16:4", 1, kit_patience_ms(TIMEOUT_MS), large_group, NULL);
}

static void two_devices(const struct rank *rank, void *arg) {
  (void)arg;
  gpu_open();
  ncclComm_t comm = open_comm(rank);
  void *context;
  char *first = gpu_alloc(64), *second;
  uint64_t managed;
  GPU(gpu.cuDevicePrimaryCtxRetain(&context, 1));
  GPU(gpu.cuCtxSetCurrent(context));
  second = gpu_alloc(64);
  REFUSED(ncclAllReduce(first, second, 1, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument, "device 1");
  OK(ncclAllReduce(second, second, 1, ncclInt8, ncclSum, comm, NULL));
  REFUSED(ncclAllReduce(first, first, 1, ncclInt8, ncclSum, comm, NULL), ncclInvalidArgument, "device 0");
  GPU(gpu.cuCtxSetCurrent(gpu.context)); /* whichever is current: the communicator is on its buffers' device */
  GPU(gpu.cuMemAllocManaged(&managed, 64, 1));
  OK(ncclAllReduce(second, (void *)(uintptr_t)managed, 1, ncclInt8, ncclSum, comm, NULL));
  OK(ncclAllReduce(second, second, 1, ncclInt8, ncclSum, comm, NULL));
  close_comm(comm);
  gpu_free(first);
  gpu_free(second);
  GPU(gpu.cuMemFree_v2(managed));
  gpu_nothing_left();
}
TEST(a_communicator_has_one_device) {
  job_run("NCCL_DEBUG=NONE GHOST_DEVICES=2", 1, kit_patience_ms(TIMEOUT_MS), two_devices, NULL);
}

static void factors(const struct rank *rank, void *arg) {
  (void)arg;
  gpu_open();
  ncclComm_t comm = open_comm(rank);
  void *stream = gpu_stream();
  struct gpu_gate gate;
  int32_t host[16], out[16], factor = 3, later = 5, *device = gpu_alloc(sizeof host), *scalar = gpu_alloc(4);
  ncclRedOp_t in_host, in_device, in_device_for_host;
  ncclComm_t on_host;
  for (int i = 0; i < 16; i++) host[i] = i;
  gpu_put(device, host, sizeof host);
  gpu_put(scalar, &factor, 4);
  OK(ncclRedOpCreatePreMulSum(&in_host, &factor, ncclInt32, ncclScalarDevice, comm));
  OK(ncclRedOpCreatePreMulSum(&in_device, scalar, ncclInt32, ncclScalarDevice, comm));
  REFUSED(ncclAllReduce(device, device, 16, ncclInt32, in_host, comm, stream), ncclInvalidArgument, "factor");
  OK(ncclCommSplit(comm, 0, rank->rank, &on_host, NULL));
  OK(ncclRedOpCreatePreMulSum(&in_device_for_host, scalar, ncclInt32, ncclScalarDevice, on_host));
  REFUSED(ncclAllReduce(host, host, 16, ncclInt32, in_device_for_host, on_host, stream), ncclInvalidArgument, "factor");
  OK(ncclCommDestroy(on_host));
  gpu_warm(comm, stream);
  gpu_hold(&gate, stream);
  OK(ncclAllReduce(device, device, 16, ncclInt32, in_device, comm, stream));
  gpu_put(scalar, &later, 4); /* read when the collective runs */
  gpu_let_go(&gate);
  GPU(gpu.cuStreamSynchronize(stream));
  gpu_get(out, device, sizeof out);
  for (int i = 0; i < 16; i++) ENSURE(out[i] == rank->nranks * 5 * i, "number %d is %d", i, out[i]);
  gpu_free(device);
  gpu_free(scalar);
  close_comm(comm);
  gpu_nothing_left();
  GPU(gpu.cuStreamDestroy_v2(stream));
}
TEST(factors_lie_where_the_buffers_do) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), factors, NULL);
}

/* Without RAIL_CUDA_KERNELS: what the build has, or one clear line. */
static void built_in(const struct rank *rank, void *arg) {
  (void)arg;
  gpu_open();
  unsetenv("RAIL_CUDA_KERNELS");
  ncclComm_t comm = open_comm(rank);
  char *device = gpu_alloc(64);
  ncclResult_t r = ncclAllReduce(device, device, 1, ncclInt8, ncclSum, comm, NULL);
  ENSURE(r == ncclSuccess || r == ncclInvalidUsage, "the result is %d", r);
  if (r == ncclSuccess) {
    close_comm(comm);
  } else {
    ENSURE(ncclAllReduce(device, device, 1, ncclInt8, ncclSum, comm, NULL) == r, "the failure was forgotten");
    OK(ncclCommAbort(comm));
  }
  gpu_free(device);
  gpu_nothing_left();
}
TEST(kernels_of_the_build) { job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), built_in, NULL); }

/* ---- endings ---- */

struct pair {
  ncclComm_t comm;
  void *stream;
  char *x, *y;
};

static void pair_open(struct pair *p, const struct rank *rank) {
  gpu_open();
  p->comm = open_comm(rank);
  rank_barrier(rank); /* what follows may end it: not while the other one is still making it */
  p->stream = gpu_stream();
  p->x = gpu_alloc(N);
  p->y = gpu_alloc(N);
}

static ncclResult_t pair_sum(struct pair *p, size_t count) {
  return ncclAllReduce(p->x, p->y, count, ncclUint8, ncclSum, p->comm, p->stream);
}

static void pair_close(struct pair *p) {
  gpu_free(p->x);
  gpu_free(p->y);
  gpu_nothing_left();
  GPU(gpu.cuStreamDestroy_v2(p->stream)); /* which waits until it is idle */
}

static void missing(const struct rank *rank, void *arg) {
  (void)arg;
  struct pair p;
  pair_open(&p, rank);
  OK(pair_sum(&p, N));
  GPU(gpu.cuStreamSynchronize(p.stream));
  if (rank->rank == 0) {
    OK(pair_sum(&p, N));
    OK(pair_sum(&p, N)); /* and one that is queued behind it */
    usleep(50000);
    ENSURE(gpu.cuStreamQuery(p.stream) == RT_CU_NOT_READY, "a call ended without the other rank");
    uint64_t t0 = rail_now_ns();
    OK(ncclCommAbort(p.comm));
    GPU(gpu.cuStreamSynchronize(p.stream));
    ENSURE(rail_now_ns() - t0 < kit_patience_ms(5000) * 1000000, "the abort took long");
  } else {
    ENSURE(wait_for_error(p.comm) == ncclRemoteError, "another error");
    OK(ncclCommAbort(p.comm));
  }
  pair_close(&p);
}
TEST(abort_ends_a_kernel_that_waits) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), missing, NULL);
}
TEST(abort_ends_a_kernel_that_waits_for_a_network) {
  job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 2, kit_patience_ms(TIMEOUT_MS), missing, NULL);
}

static void revoked(const struct rank *rank, void *arg) {
  (void)arg;
  struct pair p;
  pair_open(&p, rank);
  OK(pair_sum(&p, N));
  GPU(gpu.cuStreamSynchronize(p.stream));
  rank_barrier(rank);
  if (rank->rank == 0) OK(pair_sum(&p, N));
  OK(ncclCommRevoke(p.comm, 0));
  GPU(gpu.cuStreamSynchronize(p.stream));
  rank_barrier(rank);
  OK(ncclCommDestroy(p.comm));
  pair_close(&p);
}
TEST(revoking_ends_a_kernel_that_waits) { job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), revoked, NULL); }

/* A kernel that has not begun when its communicator is aborted. */
static void queued(const struct rank *rank, void *arg) {
  (void)arg;
  struct pair p;
  struct gpu_gate gate;
  pair_open(&p, rank);
  gpu_warm(p.comm, p.stream);
  gpu_hold(&gate, p.stream);
  OK(pair_sum(&p, N));
  gpu_let_go(&gate);
  OK(ncclCommAbort(p.comm));
  pair_close(&p);
}
TEST(abort_of_a_kernel_that_has_not_begun) {
  job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), queued, NULL);
}

static void leaving(const struct rank *rank, void *arg) {
  (void)arg;
  struct pair p;
  pair_open(&p, rank);
  for (int i = 0; i < 3; i++) OK(pair_sum(&p, N));
  GPU(gpu.cuStreamSynchronize(p.stream));
  if (rank->rank == 0) {
    OK(pair_sum(&p, N));
    ncclResult_t r = wait_for_error(p.comm);
    ENSURE(r == ncclRemoteError, "the result is %d", r);
    ENSURE(strstr(ncclGetLastError(p.comm), "rank 1"), "\"%s\"", ncclGetLastError(p.comm));
    OK(ncclCommAbort(p.comm));
  } else {
    OK(ncclCommDestroy(p.comm));
  }
  pair_close(&p);
}
TEST(a_rank_that_leaves_is_noticed) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), leaving, NULL);
}

/* From rank 1 to rank 0. */
static ncclResult_t pair_send(struct pair *p, int rank) {
  return rank ? ncclSend(p->x, 100, ncclUint8, 0, p->comm, p->stream)
              : ncclRecv(p->y, 100, ncclUint8, 1, p->comm, p->stream);
}

/* Has sent all that it owes, and leaves, before the other one's kernel begins. */
static void early(const struct rank *rank, void *arg) {
  (void)arg;
  struct pair p;
  struct gpu_gate gate;
  pair_open(&p, rank);
  OK(pair_send(&p, rank->rank)); /* what the first call makes may wait for all streams */
  GPU(gpu.cuStreamSynchronize(p.stream));
  if (rank->rank == 0) gpu_hold(&gate, p.stream);
  OK(pair_send(&p, rank->rank));
  if (rank->rank == 0) {
    usleep(1500000);
    gpu_let_go(&gate);
    GPU(gpu.cuStreamSynchronize(p.stream));
    OK(railCommWait(p.comm));
  }
  OK(ncclCommDestroy(p.comm));
  pair_close(&p);
}
TEST(a_rank_may_leave_when_it_has_done_its_part) {
  job_run("NCCL_DEBUG=WARN", 2, kit_patience_ms(TIMEOUT_MS), early, NULL);
}

static void different(const struct rank *rank, void *arg) {
  (void)arg;
  struct pair p;
  pair_open(&p, rank);
  OK(pair_sum(&p, N));
  pair_sum(&p, rank->rank ? N : N / 2);
  ncclResult_t r = wait_for_error(p.comm);
  ENSURE(r == ncclInvalidUsage || r == ncclRemoteError, "the result is %d", r);
  ENSURE(strstr(ncclGetLastError(p.comm), "calls differ"), "\"%s\"", ncclGetLastError(p.comm));
  OK(ncclCommAbort(p.comm));
  pair_close(&p);
}
TEST(calls_that_differ_are_found) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), different, NULL);
  job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 2, kit_patience_ms(TIMEOUT_MS), different, NULL);
}

/* Rank 0 launches a graph more often than rank 1, and aborts: of the runs that have not begun then, the kernels find
 * out when they do. */
static void queued_graphs(const struct rank *rank, void *arg) {
  (void)arg;
  struct pair p;
  void *graph, *exec;
  pair_open(&p, rank);
  GPU(gpu.cuStreamBeginCapture_v2(p.stream, 0));
  OK(pair_sum(&p, N));
  GPU(gpu.cuStreamEndCapture(p.stream, &graph));
  GPU(gpu.cuGraphInstantiateWithFlags(&exec, graph, 0));
  GPU(gpu.cuGraphDestroy(graph));
  GPU(gpu.cuGraphLaunch(exec, p.stream));
  GPU(gpu.cuStreamSynchronize(p.stream));
  rank_barrier(rank);
  for (int i = 0; i < 5 && rank->rank == 0; i++) GPU(gpu.cuGraphLaunch(exec, p.stream));
  if (rank->rank == 1) ENSURE(wait_for_error(p.comm) == ncclRemoteError, "another error");
  if (rank->rank == 0) usleep(20000);
  OK(ncclCommAbort(p.comm));
  GPU(gpu.cuStreamSynchronize(p.stream));
  GPU(gpu.cuGraphExecDestroy(exec));
  /* Now the next communicator's end gives back what this one had to keep. */
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&p.comm, 1, id, 0));
  OK(ncclCommDestroy(p.comm));
  pair_close(&p);
}
TEST(abort_of_graphs_that_have_not_begun) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), queued_graphs, NULL);
  job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 2, kit_patience_ms(TIMEOUT_MS), queued_graphs, NULL);
}

/* ---- again and again ---- */

struct half {
  ncclUniqueId id;
  int rank;
  bool abort; /* rank 0 calls once more than rank 1 */
};

static void one_half(void *arg) {
  const struct half *h = arg;
  struct pair p;
  GPU(gpu.cuCtxSetCurrent(gpu.context));
  OK(ncclCommInitRank(&p.comm, 2, h->id, h->rank));
  p.stream = gpu_stream();
  p.x = gpu_alloc(N);
  p.y = gpu_alloc(N);
  OK(pair_sum(&p, N));
  GPU(gpu.cuStreamSynchronize(p.stream));
  if (h->abort && h->rank == 0) pair_sum(&p, N); /* or finds that the other one has already ended it */
  if (h->abort && h->rank == 1) usleep(10000);
  OK(h->abort ? ncclCommAbort(p.comm) : ncclCommDestroy(p.comm));
  gpu_free(p.x);
  gpu_free(p.y);
  GPU(gpu.cuStreamDestroy_v2(p.stream));
}

static void settle(int fds, int threads) { /* detached threads may take a moment */
  uint64_t until = rail_deadline_in_ms(kit_patience_ms(3000));
  while ((kit_fd_count() > fds || kit_thread_count() > threads) && !rail_deadline_passed(until)) usleep(2000);
}

static void cycles(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  int n = kit_scaled(30), fds = 0, threads = 0;
  gpu_open();
  for (int i = -5; i < n; i++) {
    if (i == 0) {
      settle(INT_MAX, 1);
      fds = kit_fd_count();
      threads = kit_thread_count();
    }
    struct half h[2] = {{.rank = 0, .abort = i % 2 == 0}, {.rank = 1, .abort = i % 2 == 0}};
    OK(ncclGetUniqueId(&h[0].id));
    h[1].id = h[0].id;
    kit_run_threads(2, one_half, h, sizeof h[0]);
  }
  settle(fds, threads);
  ENSURE(kit_fd_count() <= fds, "%d descriptors, %d before", kit_fd_count(), fds);
  ENSURE(kit_thread_count() <= threads, "%d threads, %d before", kit_thread_count(), threads);
  gpu_nothing_left();
}
TEST(cycles_leave_nothing) { job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), cycles, NULL); }
TEST(cycles_over_a_network_leave_nothing) {
  job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 1, kit_patience_ms(TIMEOUT_MS), cycles, NULL);
}

/* ---- a driver that fails ---- */

static void broken_kernel(const struct rank *rank, void *arg) {
  (void)arg;
  struct pair p;
  if (rank->rank == 1) setenv("GHOST_FAIL", "kernel:2", 1);
  pair_open(&p, rank);
  OK(pair_sum(&p, N));
  if (rank->rank == 0) GPU(gpu.cuStreamSynchronize(p.stream));
  pair_sum(&p, N);
  ncclResult_t r = wait_for_error(p.comm);
  ENSURE(r == ncclUnhandledCudaError, "the result is %d", r); /* the first failure is everybody's */
  OK(ncclCommAbort(p.comm));
}
TEST(a_kernel_that_fails_ends_the_communicator) {
  if (getenv("TEST_REAL_GPU")) tap_skip_case("needs the fake driver");
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), broken_kernel, NULL);
}

/* The call that `arg` names fails in rank 1: either the collective fails with it, on both ranks, or all is well. */
static void failing_call(const struct rank *rank, void *arg) {
  struct pair p;
  if (rank->rank == 1) setenv("GHOST_FAIL", arg, 1);
  pair_open(&p, rank);
  ncclResult_t r = ncclSuccess;
  for (int i = 0; i < 2 && r == ncclSuccess; i++) r = pair_sum(&p, N);
  if (r == ncclSuccess) r = railCommWait(p.comm);
  if (rank->rank == 1) *(volatile int *)rank->shared = (int)r;
  bool aborted = rank->rank == 0 && r == ncclRemoteError; /* where the call itself was refused to rank 1 */
  ENSURE(r == ncclSuccess || r == ncclUnhandledCudaError || aborted, "the result is %d", r);
  if (r == ncclSuccess)
    OK(ncclCommDestroy(p.comm));
  else
    OK(ncclCommAbort(p.comm));
  pair_close(&p);
}

static const struct {
  const char *call;
  int harmless; /* of its first calls: they ask what there is, and a device that does not tell has less */
} failing[] = {
    {"cuPointerGetAttributes", 0}, {"cuCtxPushCurrent_v2", 0}, {"cuDeviceGetAttribute", 4},
    {"cuModuleLoad", 0}, {"cuModuleGetFunction", 0}, {"cuOccupancyMaxActiveBlocksPerMultiprocessor", 0},
    {"cuEventCreate", 0}, {"cuMemHostRegister_v2", 0}, {"cuStreamWaitEvent", 0}, {"cuStreamGetCaptureInfo_v2", 0},
    {"cuLaunchKernel", 0}, {"cuEventRecord", 0}};

TEST(a_call_of_the_driver_that_fails) {
  if (getenv("TEST_REAL_GPU")) tap_skip_case("needs the fake driver");
  for (size_t i = 0; i < sizeof failing / sizeof *failing; i++) {
    int failures = 0, most = failing[i].harmless + (kit_sanitized() ? 2 : 5);
    for (int n = 1; n <= most; n++) {
      char which[64];
      snprintf(which, sizeof which, "%s:%d", failing[i].call, n);
      struct job *job = job_start("NCCL_DEBUG=NONE", 2, failing_call, which);
      int status;
      for (int r = 0; r < 2; r++)
        CHECK_MSG(job_wait(job, r, kit_patience_ms(TIMEOUT_MS), &status), "%s fails: rank %d hangs", which, r);
      failures += *(const volatile int *)job_shared(job) != 0;
      job_end(job, kit_patience_ms(TIMEOUT_MS), 0);
    }
    CHECK_MSG(failures > 0, "%s was never called, or its failure went unnoticed", failing[i].call);
  }
}

TEST_MAIN(TEST_CASE(buffers_that_do_not_fit_are_refused), TEST_CASE(a_group_that_is_too_large_is_refused),
          TEST_CASE(a_communicator_has_one_device),
          TEST_CASE(factors_lie_where_the_buffers_do), TEST_CASE(kernels_of_the_build),
          TEST_CASE(abort_ends_a_kernel_that_waits), TEST_CASE(abort_ends_a_kernel_that_waits_for_a_network),
          TEST_CASE(revoking_ends_a_kernel_that_waits), TEST_CASE(abort_of_a_kernel_that_has_not_begun),
          TEST_CASE(a_rank_that_leaves_is_noticed), TEST_CASE(a_rank_may_leave_when_it_has_done_its_part),
          TEST_CASE(calls_that_differ_are_found), TEST_CASE(abort_of_graphs_that_have_not_begun),
          TEST_CASE(cycles_leave_nothing), TEST_CASE(cycles_over_a_network_leave_nothing),
          TEST_CASE(a_kernel_that_fails_ends_the_communicator), TEST_CASE(a_call_of_the_driver_that_fails))
