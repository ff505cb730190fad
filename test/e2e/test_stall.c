/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: tsan
 *
 * Proves: a call that does not move is reported after RAIL_STALL_WARN, again after twice that time, and says which call
 * of which rank it is and for whom it waits, over shared memory, over a plugin, with few bytes, with many, and for a
 * send without its receive; on device buffers, too, also behind what else is on the stream; the first call of all,
 * which waits for connections; also where ranks' calls differ so that they use different connections. Calls that move
 * on afterwards end well. With 0 nothing is reported.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/device/gpu/calls.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000
#define N 20000      /* floats: more than a small call has */
#define MANY 2000000 /* more than the slots of a connection hold */

static char log_text[1 << 16];

/* What this process has written to stderr. */
static const char *log_so_far(int fd) {
  ssize_t n = pread(fd, log_text, sizeof log_text - 1, 0);
  log_text[n > 0 ? n : 0] = 0;
  return log_text;
}

/* Lines with both, the one before the other. */
static int count(const char *text, const char *call, const char *wait) {
  int n = 0;
  for (const char *at = text; (at = strstr(at, call)); at += strlen(call)) {
    const char *end = strchr(at, '\n'), *found = strstr(at, wait);
    n += end && found && found < end;
  }
  return n;
}

static void wait_for_log(int fd, const char *call, const char *wait, int times) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS / 2));
  while (count(log_so_far(fd), call, wait) < times) {
    ENSURE(!rail_deadline_passed(deadline), "not %d times \"%s...%s\" in: %s", times, call, wait, log_text);
    usleep(10000);
  }
}

static int log_to_memory(void) {
  int fd = memfd_create("log", MFD_CLOEXEC);
  ENSURE(fd >= 0 && dup2(fd, 2) == 2, "no file for the log");
  return fd;
}

enum what { SMALL, RING, TREE, SEND, HELD };
struct stall {
  enum what what;
  const char *call, *wait; /* of the line that rank 0 writes */
};

static float in[MANY], out[MANY];

static ncclResult_t call(const struct rank *rank, ncclComm_t comm, enum what what) {
  if (what == SEND && rank->rank == 0) return ncclSend(in, MANY, ncclFloat, 1, comm, NULL);
  if (what == SEND) return rank->rank == 1 ? ncclRecv(out, MANY, ncclFloat, 0, comm, NULL) : ncclSuccess;
  return ncclAllReduce(in, out, what == RING ? N : 2, ncclFloat, ncclSum, comm, NULL);
}

static ncclResult_t device_call(const struct rank *rank, ncclComm_t comm, enum what what, float *x, void *stream) {
  if (what == SEND && rank->rank == 0) return ncclSend(x, MANY, ncclFloat, 1, comm, stream);
  if (what == SEND) return ncclRecv(x, MANY, ncclFloat, 0, comm, stream);
  return ncclAllReduce(x, x, N, ncclFloat, ncclSum, comm, stream);
}

/* Rank 0 calls, and the others when it has reported that twice. */
static void late(const struct rank *rank, void *arg) {
  const struct stall *s = arg;
  atomic_bool *reported = rank->shared;
  int fd = log_to_memory();
  ncclComm_t comm = open_comm(rank);
  for (size_t i = 0; i < MANY; i++) in[i] = 1;
  OK(call(rank, comm, s->what)); /* a first time, in which ranks connect */
  OK(railCommWait(comm));
  rank_barrier(rank);
  while (rank->rank > 0 && !atomic_load(reported)) usleep(1000);
  OK(call(rank, comm, s->what));
  if (rank->rank == 0) {
    ncclResult_t state; /* which has the executor begin */
    OK(ncclCommGetAsyncError(comm, &state));
    wait_for_log(fd, s->call, s->wait, 2);
    atomic_store(reported, true);
  }
  OK(railCommWait(comm));
  if (s->what != SEND || rank->rank == 1) ENSURE_INT((int)out[1], s->what == SEND ? 1 : rank->nranks);
  close_comm(comm);
}

static void run(const char *env, enum what what, const char *call_text, const char *wait) {
  char all[200];
  struct stall s = {what, call_text, wait};
  snprintf(all, sizeof all, "NCCL_DEBUG=WARN RAIL_STALL_WARN=200ms %s", env);
  job_run(all, 3, kit_patience_ms(TIMEOUT_MS), late, &s);
}

#define NET "NCCL_SHM_DISABLE=1 "
#define ASKS ". Do all ranks make the same calls"

static void need_plugin(void) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
}

TEST(small_calls) {
  run("", SMALL, "rank 0 of 3: AllReduce (Ring) of 8 bytes, collective 1, has not moved for ",
      " s: it waits for rank 1, which has not made that call. Do all ranks make the same calls");
}
TEST(shared_memory) {
  run("", RING, "rank 0 of 3: AllReduce (Ring) of 80000 bytes, collective 1, has not moved for ",
      " s: it waits for rank 2 (SHM, channel 0), in step ");
}
TEST(plugin) {
  need_plugin();
  run(NET, RING, "AllReduce (Ring) of 80000 bytes, collective 1, has not moved for ",
      " s: it waits for rank 2 (NET, channel 0), in step ");
  run(NET, TREE, "AllReduce (Tree) of 8 bytes, collective 1, has not moved for ", " s: it waits for rank ");
}
TEST(send_without_a_receive) {
  run("", SEND, "rank 0 of 3: Send of 8000000 bytes has not moved for ",
      " s: it waits for rank 1 to receive (SHM, channel ");
}

struct watch {
  const struct stall *stall;
  atomic_bool *reported;
  int fd;
};

static void *watch_log(void *arg) {
  const struct watch *w = arg;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS / 4));
  while (count(log_so_far(w->fd), w->stall->call, w->stall->wait) < 2 && !rail_deadline_passed(deadline)) usleep(10000);
  atomic_store(w->reported, true);
  return NULL;
}

/* The first call of all waits for connections, in the caller's thread; the others make it when rank 0 has reported that
 * twice. */
static void first(const struct rank *rank, void *arg) {
  struct watch w = {.stall = arg, .reported = rank->shared, .fd = log_to_memory()};
  pthread_t thread;
  ncclComm_t comm = open_comm(rank);
  if (rank->rank == 0) ENSURE_INT(pthread_create(&thread, NULL, watch_log, &w), 0);
  while (rank->rank > 0 && !atomic_load(w.reported)) usleep(1000);
  OK(call(rank, comm, w.stall->what));
  OK(railCommWait(comm));
  if (rank->rank == 0) ENSURE_INT(pthread_join(thread, NULL), 0);
  if (rank->rank == 0) wait_for_log(w.fd, w.stall->call, w.stall->wait, 2);
  close_comm(comm);
}

TEST(first_calls) {
  struct stall s = {RING, "rank 0 of 3: an operation has waited ", " to connect. Do all ranks make the same calls"};
  job_run("NCCL_DEBUG=WARN RAIL_STALL_WARN=200ms", 3, kit_patience_ms(TIMEOUT_MS), first, &s);
}

/* As `late`, with device buffers. HELD: the stream of the only rank does something else first. */
static void late_on_device(const struct rank *rank, void *arg) {
  const struct stall *s = arg;
  atomic_bool *reported = rank->shared;
  int fd = log_to_memory();
  gpu_open();
  ncclComm_t comm = open_comm(rank);
  void *stream = gpu_stream();
  struct gpu_gate gate;
  float *x = gpu_alloc(MANY * sizeof *x), got[2];
  for (size_t i = 0; i < MANY; i++) in[i] = 1;
  gpu_put(x, in, sizeof in);
  OK(device_call(rank, comm, s->what, x, stream));
  GPU(gpu.cuStreamSynchronize(stream));
  rank_barrier(rank);
  while (rank->rank > 0 && !atomic_load(reported)) usleep(1000);
  if (s->what == HELD && rank->rank == 0) gpu_hold(&gate, stream);
  OK(device_call(rank, comm, s->what, x, stream));
  if (rank->rank == 0) {
    wait_for_log(fd, s->call, s->wait, 2);
    if (s->what == HELD) gpu_let_go(&gate);
    atomic_store(reported, true);
  }
  GPU(gpu.cuStreamSynchronize(stream));
  OK(railCommWait(comm));
  gpu_get(got, x, sizeof got);
  ENSURE_INT((int)got[1], s->what == SEND || s->what == HELD ? 1 : rank->nranks * rank->nranks);
  gpu_free(x);
  close_comm(comm);
  gpu_nothing_left();
  GPU(gpu.cuStreamDestroy_v2(stream));
}

static void run_on_device(const char *env, enum what what, const char *call_text, const char *wait) {
  char path[RANKS_PATH], all[200];
  struct stall s = {what, call_text, wait};
  if (!ranks_built("test/libfakegpu.so", path)) tap_skip_case("the build has no test/libfakegpu.so");
  snprintf(all, sizeof all, "NCCL_DEBUG=WARN RAIL_STALL_WARN=200ms %s", env);
  job_run(all, what == HELD ? 1 : 2, kit_patience_ms(TIMEOUT_MS), late_on_device, &s);
}

#define OR_STREAM ", or for what is before it on its stream. Do all ranks make the same calls"

TEST(device_shared_memory) {
  run_on_device("", RING, "rank 0 of 2: AllReduce (Ring) of 80000 bytes, collective 1, has not moved for ",
                " s: it waits for rank 1 (P2P, channel 0), in step 1 of ");
}
TEST(device_plugin) {
  need_plugin();
  run_on_device(NET, RING, "rank 0 of 2: AllReduce (Ring) of 80000 bytes, collective 1, has not moved for ",
                " s: it waits for rank 1 (NET, channel 0), in step 1 of ");
}
TEST(device_send_without_a_receive) {
  run_on_device("", SEND, "rank 0 of 2: Send of 8000000 bytes has not moved for ", OR_STREAM);
}
TEST(device_stream_is_held) {
  run_on_device("", HELD, "rank 0 of 1: ", " s: it waits for what is before it on its stream. Do all ranks make");
}

static void never(const struct rank *rank, void *arg) {
  (void)arg;
  int fd = log_to_memory();
  ncclComm_t comm = open_comm(rank);
  if (rank->rank == 1) usleep(600000);
  OK(ncclAllReduce(in, out, N, ncclFloat, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  ENSURE(!strstr(log_so_far(fd), "has not moved"), "reported all the same: %s", log_text);
  close_comm(comm);
}
TEST(zero_is_never) {
  job_run("NCCL_DEBUG=WARN RAIL_STALL_WARN=0", 2, kit_patience_ms(TIMEOUT_MS), never, NULL);
}

/* Rank 2 broadcasts so much more that it takes the ring, all of whose connections are there: it waits for rank 1, which
 * has nothing to send it, and rank 3, a child of rank 2 in the other ranks' tree, waits for that. */
static void differ(const struct rank *rank, void *arg) {
  (void)arg;
  atomic_int *reported = rank->shared;
  int fd = log_to_memory();
  ncclComm_t comm = open_comm(rank);
  OK(ncclBroadcast(in, out, N, ncclFloat, 0, comm, NULL));
  OK(ncclBroadcast(in, out, 2, ncclFloat, 0, comm, NULL));
  OK(railCommWait(comm));
  OK(ncclBroadcast(in, out, rank->rank == 2 ? N : 2, ncclFloat, 0, comm, NULL));
  ncclResult_t state; /* which has the executor begin */
  OK(ncclCommGetAsyncError(comm, &state));
  if (rank->rank == 2)
    wait_for_log(fd, "Broadcast (Ring) of 80000 bytes, collective 2, has not moved for ",
                 " s: it waits for rank 1 (NET, channel 0), in step 1 of ", 1);
  if (rank->rank == 3)
    wait_for_log(fd, "Broadcast (PAT) of 8 bytes, collective 2, has not moved for ",
                 " s: it waits for rank 2 (NET, channel 0), in step 1 of ", 1);
  atomic_fetch_add(reported, 1);
  while (atomic_load(reported) < rank->nranks) usleep(1000);
  OK(ncclCommAbort(comm));
}
TEST(calls_that_differ) {
  need_plugin();
  job_run("NCCL_DEBUG=WARN RAIL_STALL_WARN=200ms " NET, 4, kit_patience_ms(TIMEOUT_MS), differ, NULL);
}

TEST_MAIN(TEST_CASE(small_calls), TEST_CASE(shared_memory), TEST_CASE(plugin), TEST_CASE(send_without_a_receive),
          TEST_CASE(device_shared_memory), TEST_CASE(device_plugin), TEST_CASE(device_send_without_a_receive),
          TEST_CASE(device_stream_is_held), TEST_CASE(first_calls), TEST_CASE(zero_is_never),
          TEST_CASE(calls_that_differ))
