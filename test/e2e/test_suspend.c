/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 120
 * TEST-SAN: asan tsan
 *
 * Proves: what a communicator has allocated is counted; suspending it gives the memory of its connections back, and
 * after a resume every kind of operation works as before; a suspended communicator refuses all but queries and its end.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 40000
#define N 300000

static uint64_t stat_of(ncclComm_t comm, ncclCommMemStat_t stat) {
  uint64_t value = 77;
  OK(ncclCommMemStats(comm, stat, &value));
  return value;
}

/* The process' mappings of the library's shared memory, in KiB. */
static long shared_kib(void) {
  char line[512];
  long sum = 0;
  FILE *f = fopen("/proc/self/maps", "re");
  ENSURE(f, "no /proc/self/maps");
  while (fgets(line, sizeof line, f)) {
    unsigned long from, to;
    if (strstr(line, "memfd:railyard") && sscanf(line, "%lx-%lx", &from, &to) == 2) sum += (long)(to - from) / 1024;
  }
  fclose(f);
  return sum;
}

/* A small and a large all-reduce, and a ring of sends. */
static void use(ncclComm_t comm, const struct rank *rank, int32_t *in, int32_t *out) {
  const int n = rank->nranks, r = rank->rank;
  check_members(comm, r, (1 << n) - 1);
  for (int i = 0; i < N; i++) in[i] = i + r;
  OK(ncclAllReduce(in, out, N, ncclInt32, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  for (int i = 0; i < N; i++) ENSURE_INT(out[i], n * i + n * (n - 1) / 2);
  OK(ncclGroupStart());
  OK(ncclSend(in, 1000, ncclInt32, (r + 1) % n, comm, NULL));
  OK(ncclRecv(out, 1000, ncclInt32, (r + n - 1) % n, comm, NULL));
  OK(ncclGroupEnd());
  OK(railCommWait(comm));
  for (int i = 0; i < 1000; i++) ENSURE_INT(out[i], i + (r + n - 1) % n);
}

static void suspend_and_resume(const struct rank *rank, void *arg) {
  static int32_t in[N], out[N];
  const bool net = *(const bool *)arg;
  ncclComm_t comm = open_comm(rank);
  void *handle = NULL;
  ncclWindow_t win = NULL;
  OK(ncclCommRegister(comm, in, sizeof in, &handle));
  OK(ncclCommWindowRegister(comm, out, sizeof out, &win, 0));
  const uint64_t rest = stat_of(comm, ncclStatGpuMemPersist);
  ENSURE(rest > 4096 && rest < 10 << 20, "a new communicator has %llu bytes", (unsigned long long)rest);
  ENSURE_INT(stat_of(comm, ncclStatGpuMemSuspend), 0);
  const int fds = kit_fd_count();
  for (int round = 0; round < 3; round++) {
    use(comm, rank, in, out);
    const uint64_t held = stat_of(comm, ncclStatGpuMemSuspend);
    ENSURE(held > 4 << 20, "connections have %llu bytes", (unsigned long long)held);
    ENSURE_INT(stat_of(comm, ncclStatGpuMemTotal), held + rest);
    ENSURE_INT(stat_of(comm, ncclStatGpuMemSuspended), 0);
    ENSURE(net || shared_kib() >= (long)(held / 2048), "%ld KiB are mapped", shared_kib());
    OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
    ENSURE_INT(stat_of(comm, ncclStatGpuMemSuspended), 1);
    ENSURE_INT(stat_of(comm, ncclStatGpuMemSuspend), 0);
    ENSURE_INT(stat_of(comm, ncclStatGpuMemPersist), rest);
    ENSURE_INT(shared_kib(), 0);
    ENSURE(net || kit_fd_count() <= fds + 2 * rank->nranks, "%d descriptors, %d before", kit_fd_count(), fds);
    OK(ncclCommResume(comm));
    ENSURE_INT(stat_of(comm, ncclStatGpuMemSuspended), 0);
  }
  use(comm, rank, in, out);
  OK(ncclCommDeregister(comm, handle));
  OK(ncclCommWindowDeregister(comm, win));
  close_comm(comm);
}
TEST(memory_is_given_back_and_made_again) {
  bool net = false;
  for (int n = 2; n <= 3; n++)
    job_run("NCCL_DEBUG=NONE", n, kit_patience_ms(TIMEOUT_MS), suspend_and_resume, &net);
  job_run("NCCL_DEBUG=NONE RAIL_PROXY=thread RAIL_NCHANNELS=2", 3, kit_patience_ms(TIMEOUT_MS), suspend_and_resume,
          &net);
  net = true;
  if (!ranks_plugin()) return;
  job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 3, kit_patience_ms(TIMEOUT_MS), suspend_and_resume, &net);
  job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1 RAIL_PROXY=thread", 2, kit_patience_ms(TIMEOUT_MS), suspend_and_resume,
          &net);
}

/* The first operation after a resume is not everybody's: two of three ranks send and receive. */
static void two_of_three(const struct rank *rank, void *arg) {
  (void)arg;
  const int r = rank->rank;
  ncclComm_t comm = open_comm(rank);
  int32_t v = r;
  check_members(comm, r, 7);
  OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  OK(ncclCommResume(comm));
  if (r == 0) OK(ncclSend(&v, 1, ncclInt32, 1, comm, NULL));
  if (r == 1) OK(ncclRecv(&v, 1, ncclInt32, 0, comm, NULL));
  OK(railCommWait(comm));
  if (r == 1) ENSURE_INT(v, 0);
  rank_barrier(rank);
  check_members(comm, r, 7);
  check_members(comm, r, 7);
  close_comm(comm);
}
TEST(sends_come_first_after_a_resume) {
  job_run("NCCL_DEBUG=NONE", 3, kit_patience_ms(TIMEOUT_MS), two_of_three, NULL);
}

/* After a resume, too, ranks whose first calls differ find out, although a small one needs no connections. */
static void differ(const struct rank *rank, void *arg) {
  static int32_t data[N];
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  check_members(comm, rank->rank, 3);
  OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  OK(ncclCommResume(comm));
  ncclResult_t r = ncclAllReduce(data, data, rank->rank ? N : 1, ncclInt32, ncclSum, comm, NULL);
  if (r == ncclSuccess) r = railCommWait(comm);
  ENSURE_INT(r, ncclInvalidUsage);
  ENSURE(strstr(ncclGetLastError(comm), "differ"), "the text is \"%s\"", ncclGetLastError(comm));
  OK(ncclCommAbort(comm));
}
TEST(calls_that_differ_after_a_resume) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), differ, NULL);
}

/* Another thread aborts what this one has suspended and resumed. */
static atomic_bool resumed;
static void *aborts(void *comm) {
  while (!atomic_load_explicit(&resumed, memory_order_relaxed)) usleep(100);
  OK(ncclCommAbort(comm));
  return NULL;
}
static void in_two_threads(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  pthread_t thread;
  ENSURE_INT(pthread_create(&thread, NULL, aborts, comm), 0);
  for (int i = 0; i < 10; i++) {
    OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
    OK(ncclCommResume(comm));
  }
  atomic_store_explicit(&resumed, true, memory_order_relaxed);
  ENSURE_INT(pthread_join(thread, NULL), 0);
}
TEST(another_thread_may_abort) {
  job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), in_two_threads, NULL);
}

static void refuses(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank), child = NULL;
  ncclUniqueId id;
  uint64_t value;
  float a = 1;
  void *handle;
  int v = 0, list[] = {1 - rank->rank};
  REFUSED(ncclCommMemStats(NULL, ncclStatGpuMemTotal, &value), ncclInvalidArgument, "comm is NULL");
  REFUSED(ncclCommMemStats(comm, ncclStatGpuMemTotal, NULL), ncclInvalidArgument, "value");
  REFUSED(ncclCommMemStats(comm, (ncclCommMemStat_t)4, &value), ncclInvalidArgument, "stat is 4");
  REFUSED(ncclCommSuspend(NULL, 1), ncclInvalidArgument, "comm is NULL");
  REFUSED(ncclCommSuspend(comm, 0), ncclInvalidArgument, "flags is 0");
  REFUSED(ncclCommSuspend(comm, 3), ncclInvalidArgument, "flags is 0x3");
  REFUSED(ncclCommResume(NULL), ncclInvalidArgument, "comm is NULL");
  REFUSED(ncclCommResume(comm), ncclInvalidUsage, "not suspended");
  OK(ncclGroupStart());
  OK(ncclAllReduce(&a, &a, 1, ncclFloat, ncclSum, comm, NULL));
  REFUSED(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), ncclInvalidUsage, "group");
  OK(ncclGroupEnd());
  check_members(comm, rank->rank, 3);
  void *kept;
  OK(ncclCommRegister(comm, &a, sizeof a, &kept));
  OK(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
  REFUSED(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), ncclInvalidUsage, "ncclCommResume");
  REFUSED(ncclAllReduce(&a, &a, 1, ncclFloat, ncclSum, comm, NULL), ncclInvalidUsage, "suspended");
  REFUSED(ncclSend(&a, 1, ncclFloat, 0, comm, NULL), ncclInvalidUsage, "suspended");
  REFUSED(ncclCommSplit(comm, 0, 0, &child, NULL), ncclInvalidUsage, "suspended");
  REFUSED(ncclCommShrink(comm, list, 1, &child, NULL, 0), ncclInvalidUsage, "suspended");
  REFUSED(ncclCommGetUniqueId(comm, &id), ncclInvalidUsage, "suspended");
  REFUSED(ncclCommRegister(comm, &a, 4, &handle), ncclInvalidUsage, "suspended");
  REFUSED(ncclCommFinalize(comm), ncclInvalidUsage, "suspended");
  OK(ncclCommCount(comm, &v));
  ENSURE_INT(v, 2);
  ncclResult_t state;
  OK(ncclCommGetAsyncError(comm, &state));
  ENSURE_INT(state, ncclSuccess);
  ncclCommProperties_t props = NCCL_COMM_PROPERTIES_INITIALIZER;
  OK(ncclCommQueryProperties(comm, &props));
  ENSURE_INT(props.nRanks, 2);
  OK(ncclCommDeregister(comm, kept));
  OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  REFUSED(ncclCommResume(comm), ncclInvalidUsage, "revoked");
  rank_barrier(rank);
  OK(rank->rank ? ncclCommAbort(comm) : ncclCommDestroy(comm));
}
TEST(a_suspended_communicator_refuses_by_name) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), refuses, NULL);
}

TEST_MAIN(TEST_CASE(memory_is_given_back_and_made_again), TEST_CASE(sends_come_first_after_a_resume),
          TEST_CASE(calls_that_differ_after_a_resume), TEST_CASE(a_suspended_communicator_refuses_by_name),
          TEST_CASE(another_thread_may_abort))
