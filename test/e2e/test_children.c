/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 180
 * TEST-SAN: asan tsan
 *
 * Proves: from a communicator others can be made when some of its ranks are left out, have died, or hang in an
 * operation: ncclCommShrink, ncclCommRevoke, and splits of a revoked communicator. Also several in one group without
 * blocking, and bounds of channels that differ.
 */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 40000
#define COUNT 20000 /* of an all-reduce that does not fit into the slots */

/* ---- a healthy parent ---- */

/* Ranks that are left out call nothing; the parent works on, and can be split and shrunk again. */
static void leave_out(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t world = open_comm(rank), some = NULL, pair = NULL, all = NULL;
  int r = rank->rank;
  int without_1[] = {1}, twice_0_and_3[] = {3, 0, 3};
  if (r != 1) {
    OK(ncclCommShrink(world, without_1, 1, &some, NULL, NCCL_SHRINK_DEFAULT));
    check_place(some, 3, r == 0 ? 0 : r - 1);
    check_members(some, r, 0xd);
  }
  check_members(world, r, 0xf);
  if (r == 1 || r == 2) {
    OK(ncclCommShrink(world, twice_0_and_3, 3, &pair, NULL, NCCL_SHRINK_DEFAULT));
    check_place(pair, 2, r - 1);
    check_members(pair, r, 0x6);
  }
  OK(ncclCommSplit(world, 0, -r, &all, NULL));
  check_place(all, 4, 3 - r);
  close_comm(world); /* children outlive their parent */
  if (some) check_members(some, r, 0xd);
  if (pair) check_members(pair, r, 0x6);
  check_members(all, r, 0xf);
  if (some) close_comm(some);
  if (pair) close_comm(pair);
  close_comm(all);
}
TEST(ranks_are_left_out) {
  job_run("", 4, kit_patience_ms(TIMEOUT_MS), leave_out, NULL);
  if (ranks_plugin()) job_run("NCCL_HOSTID=host%h", 4, kit_patience_ms(TIMEOUT_MS), leave_out, NULL);
}

/* All ranks in one thread, in a group; then without blocking. One rank is left over: alone it works as well. */
static void grouped(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  enum { N = 4 };
  ncclComm_t comm[N], child[N] = {NULL}, single = NULL;
  int without_2[] = {2}, without_others[] = {0, 1, 3};
  ncclConfig_t config = without_blocking();
  OK(ncclCommInitAll(comm, N, NULL));
  OK(ncclGroupStart());
  for (int c = 0; c < N; c++)
    if (c != 2) OK(ncclCommShrink(comm[c], without_2, 1, &child[c], NULL, NCCL_SHRINK_DEFAULT));
  without_2[0] = 77; /* the list was read by the calls */
  OK(ncclGroupEnd());
  ncclResult_t r = ncclCommShrink(comm[2], without_others, 3, &single, &config, NCCL_SHRINK_DEFAULT);
  ENSURE(r == ncclInProgress || r == ncclSuccess, "a shrink without blocking gives %d", r);
  without_others[0] = 99;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(20000));
  do OK(ncclCommGetAsyncError(single, &r));
  while (r == ncclInProgress && !rail_deadline_passed(deadline));
  ENSURE_INT(r, ncclSuccess);
  check_place(single, 1, 0);
  check_members(single, 2, 4);
  int32_t v[N], out[N];
  OK(ncclGroupStart());
  for (int c = 0; c < N; c++) {
    v[c] = 1 << c;
    if (child[c]) OK(ncclAllReduce(&v[c], &out[c], 1, ncclInt32, ncclSum, child[c], NULL));
  }
  OK(ncclGroupEnd());
  for (int c = 0; c < N; c++) {
    if (child[c]) {
      OK(railCommWait(child[c]));
      ENSURE_INT(out[c], 0xb);
      OK(ncclCommDestroy(child[c]));
    }
    OK(ncclCommDestroy(comm[c]));
  }
  close_comm(single);
}
TEST(shrinking_in_a_group_and_without_blocking) { job_run("", 1, kit_patience_ms(TIMEOUT_MS), grouped, NULL); }

/* Two in one group, without blocking: the group's end says that they are being made, and nothing can be asked yet. */
static void in_progress(const struct rank *rank, void *arg) {
  (void)arg;
  ncclConfig_t config = without_blocking();
  ncclComm_t comm[2] = {NULL, NULL};
  ncclUniqueId id[2] = {make_id(rank, 0), make_id(rank, 1)};
  int n;
  OK(ncclGroupStart());
  for (int i = 0; i < 2; i++)
    ENSURE_INT(ncclCommInitRankConfig(&comm[i], 2, id[i], rank->rank, &config), ncclInProgress);
  ENSURE_INT(ncclGroupEnd(), ncclInProgress);
  OK(ncclGroupStart());
  OK(ncclGroupEnd()); /* of another group that is not said */
  if (rank->rank == 0) REFUSED(ncclCommCount(comm[0], &n), ncclInvalidUsage, "still being made");
  rank_barrier(rank);
  for (int i = 0; i < 2; i++) {
    ncclResult_t r = ncclInProgress;
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(20000));
    while (r == ncclInProgress && !rail_deadline_passed(deadline)) OK(ncclCommGetAsyncError(comm[i], &r));
    check_place(comm[i], 2, rank->rank);
    close_comm(comm[i]);
  }
}
static void held_back(const struct rank *rank, void *arg) {
  if (rank->rank == 1) usleep(200000); /* so that rank 0 asks too early */
  in_progress(rank, arg);
}
TEST(a_group_without_blocking) { job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), held_back, NULL); }

/* Bounds of channels that no number fits: both ranks have the smaller one. */
static void bounds(const struct rank *rank, void *arg) {
  (void)arg;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = NULL;
  if (rank->rank == 0) config.maxCTAs = 1;
  else config.minCTAs = 2;
  OK(ncclCommInitRankConfig(&comm, 2, make_id(rank, 0), rank->rank, &config));
  static int32_t v[100000];
  OK(ncclAllReduce(v, v, 100000, ncclInt32, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  close_comm(comm);
}
TEST(numbers_of_channels_that_differ) { job_run("", 2, kit_patience_ms(TIMEOUT_MS), bounds, NULL); }

static void wrong(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank), child = NULL;
  int other[] = {1 - rank->rank}, self[] = {rank->rank}, far[] = {2}, below[] = {-1};
  REFUSED(ncclCommShrink(NULL, other, 1, &child, NULL, 0), ncclInvalidArgument, "comm is NULL");
  REFUSED(ncclCommShrink(NULL, other, 1, &child, NULL, 1), ncclInvalidArgument, "comm is NULL");
  REFUSED(ncclCommShrink(comm, NULL, 1, &child, NULL, 0), ncclInvalidArgument, "excluded");
  REFUSED(ncclCommShrink(comm, other, 0, &child, NULL, 0), ncclInvalidArgument, "0 ranks");
  REFUSED(ncclCommShrink(comm, far, 1, &child, NULL, 0), ncclInvalidArgument, "[0] is 2");
  REFUSED(ncclCommShrink(comm, below, 1, &child, NULL, 0), ncclInvalidArgument, "[0] is -1");
  REFUSED(ncclCommShrink(comm, self, 1, &child, NULL, 0), ncclInvalidArgument, "this rank");
  REFUSED(ncclCommShrink(comm, other, 1, NULL, NULL, 0), ncclInvalidArgument, "newcomm");
  REFUSED(ncclCommShrink(comm, other, 1, NULL, NULL, 1), ncclInvalidArgument, "newcomm");
  REFUSED(ncclCommShrink(comm, far, 1, &child, NULL, 1), ncclInvalidArgument, "[0] is 2");
  REFUSED(ncclCommShrink(comm, other, 1, &child, NULL, 2), ncclInvalidArgument, "shrinkFlags is 0x2");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.minCTAs = 0;
  REFUSED(ncclCommShrink(comm, other, 1, &child, &config, 0), ncclInvalidArgument, "minCTAs");
  ENSURE(child == NULL, "a refused shrink stored a communicator");
  OK(ncclCommRevoke(NULL, 0));
  REFUSED(ncclCommRevoke(comm, 1), ncclInvalidArgument, "revokeFlags is 0x1");
  check_members(comm, rank->rank, 3);
  OK(ncclCommFinalize(comm));
  REFUSED(ncclCommShrink(comm, other, 1, &child, NULL, 0), ncclInvalidUsage, "ncclCommFinalize");
  REFUSED(ncclCommShrink(comm, other, 1, &child, NULL, 1), ncclInvalidArgument, "finalized");
  REFUSED(ncclCommRevoke(comm, 0), ncclInvalidArgument, "finalized");
  OK(ncclCommDestroy(comm));
}
TEST(wrong_calls_are_refused) { job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), wrong, NULL); }

/* Without a configuration of its own a child has its parent's, which wants a plugin that is not there. */
static void inherit(const struct rank *rank, void *arg) {
  (void)arg;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.netName = "NoSuchNet";
  ncclComm_t world = NULL, child = NULL;
  int32_t v = 1, last[] = {2};
  OK(ncclCommInitRankConfig(&world, rank->nranks, make_id(rank, 0), rank->rank, &config));
  if (rank->rank != 2) OK(ncclCommShrink(world, last, 1, &child, NULL, NCCL_SHRINK_DEFAULT));
  rank_barrier(rank); /* made on both: the failure to come is not the shrink's */
  if (child) {
    ncclResult_t r = ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, child, NULL);
    ENSURE(r != ncclSuccess, "a plugin of another name was taken");
    OK(ncclCommAbort(child));
  }
  OK(ncclCommDestroy(world));
}
TEST(a_child_has_its_parents_configuration) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
  job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 3, kit_patience_ms(TIMEOUT_MS), inherit, NULL);
}

/* ---- ranks have died ---- */

struct death {
  unsigned dead; /* a bit for each victim */
  bool busy;     /* the others are in an operation meanwhile */
};

static ncclResult_t until_error(ncclComm_t comm, bool busy) {
  static float data[COUNT];
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(20000));
  ncclResult_t r = ncclSuccess;
  while (r == ncclSuccess && !rail_deadline_passed(deadline)) {
    if (busy) r = ncclAllReduce(data, data, COUNT, ncclFloat, ncclMax, comm, NULL);
    if (busy && r == ncclSuccess) r = railCommWait(comm);
    if (!busy) OK(ncclCommGetAsyncError(comm, &r));
  }
  return r;
}

static void go_on(const struct rank *rank, void *arg) {
  const struct death *d = arg;
  int r = rank->rank, list[4], n = 0, mine = 0, alive = 0, members = 0;
  ncclComm_t world = open_comm(rank), child = NULL;
  check_members(world, r, 0xf);
  rank_barrier(rank);
  if (d->dead & 1u << r) raise(SIGKILL);
  for (int i = 3; i >= 0; i--) {
    bool dies = d->dead & 1u << i;
    if (dies) list[n++] = i;
    mine += !dies && i < r;
    alive += !dies;
    members |= dies ? 0 : 1 << i;
  }
  ncclResult_t failure = until_error(world, d->busy), state;
  ENSURE(failure != ncclSuccess, "a rank's death goes unnoticed");
  ENSURE_INT(ncclCommShrink(world, list, n, &child, NULL, NCCL_SHRINK_DEFAULT), failure);
  ENSURE(child == NULL, "a refused shrink stored a communicator");
  OK(ncclCommShrink(world, list, n, &child, NULL, NCCL_SHRINK_ABORT));
  check_place(child, alive, mine);
  for (int round = 0; round < 20; round++) check_members(child, r, members);
  OK(ncclCommGetAsyncError(world, &state));
  ENSURE_INT(state, ncclSuccess); /* at rest */
  REFUSED(ncclCommFinalize(world), ncclInvalidUsage, "revoked");
  OK(ncclCommDestroy(world));
  check_members(child, r, members);
  close_comm(child);
}
TEST(survivors_go_on) {
  static const struct death deaths[] = {{1u << 2, true}, {1u << 0, true}, {1u << 3, false}, {0x5, true}, {0x6, false}};
  for (size_t i = 0; i < sizeof deaths / sizeof deaths[0]; i++)
    for (int net = 0; net < (ranks_plugin() ? 2 : 1); net++) {
      const char *env = net ? "NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1" : "NCCL_DEBUG=NONE";
      printf("# %s: dead %x, %s\n", env, deaths[i].dead, deaths[i].busy ? "busy" : "idle");
      struct job *job = job_start(env, 4, go_on, (void *)(uintptr_t)&deaths[i]);
      job_end(job, kit_patience_ms(TIMEOUT_MS), deaths[i].dead);
    }
}

/* One is dead and not on the list: an error in time, which names it. */
static void incomplete(const struct rank *rank, void *arg) {
  (void)arg;
  int r = rank->rank, list[] = {3};
  ncclComm_t world = open_comm(rank), child = NULL;
  check_members(world, r, 0xf);
  rank_barrier(rank);
  if (r >= 2) raise(SIGKILL);
  ENSURE(until_error(world, false) != ncclSuccess, "a rank's death goes unnoticed");
  uint64_t t0 = rail_now_ns();
  REFUSED(ncclCommShrink(world, list, 1, &child, NULL, NCCL_SHRINK_ABORT), ncclRemoteError, "");
  ENSURE(child == NULL, "a failed shrink stored a communicator");
  ENSURE(rail_now_ns() - t0 < kit_patience_ms(15000) * 1000000, "the error took %llu ms",
         (unsigned long long)(rail_now_ns() - t0) / 1000000);
  OK(ncclCommAbort(world));
}
TEST(a_death_that_was_not_told_is_an_error) {
  struct job *job = job_start("NCCL_DEBUG=NONE RAIL_BOOTSTRAP_TIMEOUT=3", 4, incomplete, NULL);
  job_end(job, kit_patience_ms(TIMEOUT_MS), 0xc);
}

/* ---- operations that do not end ---- */

static int32_t hung_in[COUNT], hung_out[COUNT];
static void *wait_for_it(void *comm) {
  static ncclResult_t r;
  r = railCommWait(comm);
  return &r;
}

/* Nothing of the library touches the buffers any more: the caller may do so. */
static void reuse_buffers(void) {
  memset(hung_in, 0x55, sizeof hung_in);
  memset(hung_out, 0x55, sizeof hung_out);
  usleep(20000);
  for (int i = 0; i < COUNT; i++) ENSURE(hung_out[i] == 0x55555555, "the buffer was written after the revoke");
}

static void refuses_all(ncclComm_t comm) {
  void *handle;
  ncclRedOp_t op;
  float f = 1;
  REFUSED(ncclAllReduce(hung_in, hung_out, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidUsage, "revoked");
  REFUSED(ncclSend(hung_in, 1, ncclInt32, 0, comm, NULL), ncclInvalidUsage, "revoked");
  REFUSED(ncclCommFinalize(comm), ncclInvalidUsage, "revoked");
  REFUSED(ncclCommRegister(comm, hung_in, 64, &handle), ncclInvalidUsage, "revoked");
  REFUSED(ncclRedOpCreatePreMulSum(&op, &f, ncclFloat, ncclScalarHostImmediate, comm), ncclInvalidUsage, "revoked");
  REFUSED(ncclCommRevoke(comm, 0), ncclInvalidArgument, "revoked before");
}

/* Rank 2 does not come; a thread waits. After the revoke all four split and go on. */
static void revoked(const struct rank *rank, void *arg) {
  (void)arg;
  int r = rank->rank;
  ncclComm_t world = open_comm(rank), half = NULL, three = NULL;
  check_members(world, r, 0xf);
  pthread_t waiter;
  if (r != 2) {
    OK(ncclAllReduce(hung_in, hung_out, COUNT, ncclInt32, ncclSum, world, NULL));
    OK(ncclBroadcast(hung_in, hung_out, COUNT, ncclInt32, 2, world, NULL)); /* waits behind it */
    ENSURE(pthread_create(&waiter, NULL, wait_for_it, world) == 0, "no thread");
    usleep(50000);
  }
  OK(ncclCommRevoke(world, NCCL_REVOKE_DEFAULT));
  ncclResult_t state = ncclInProgress;
  OK(ncclCommGetAsyncError(world, &state));
  ENSURE_INT(state, ncclSuccess);
  if (r != 2) {
    void *result;
    pthread_join(waiter, &result);
    ENSURE_INT(*(ncclResult_t *)result, ncclInvalidUsage);
    ENSURE(strstr(ncclGetLastError(world), "revoked"), "the text is \"%s\"", ncclGetLastError(world));
    reuse_buffers();
  }
  refuses_all(world);
  OK(ncclCommSplit(world, r % 2, 0, &half, NULL));
  check_place(half, 2, r / 2);
  check_members(half, r, r % 2 ? 0xa : 0x5);
  int without_2[] = {2};
  if (r != 2) {
    OK(ncclCommShrink(world, without_2, 1, &three, NULL, NCCL_SHRINK_DEFAULT));
    check_members(three, r, 0xb);
    close_comm(three);
  }
  rank_barrier(rank); /* what a rank destroys must not look like the reason for anything above */
  if (r % 2)
    OK(ncclCommDestroy(world));
  else
    OK(ncclCommAbort(world));
  check_members(half, r, r % 2 ? 0xa : 0x5);
  close_comm(half);
}
/* One algorithm for all sizes: the call that hangs must find the connections of the one before it. */
#define RING "NCCL_DEBUG=NONE NCCL_ALGO=Ring "
TEST(revoking_ends_what_hangs) {
  job_run(RING, 4, kit_patience_ms(TIMEOUT_MS), revoked, NULL);
  job_run(RING "RAIL_PROXY=thread RAIL_NCHANNELS=2", 4, kit_patience_ms(TIMEOUT_MS), revoked, NULL);
  if (ranks_plugin()) job_run(RING "NCCL_SHM_DISABLE=1", 4, kit_patience_ms(TIMEOUT_MS), revoked, NULL);
}

/* The same in one call: rank 1 hangs (does not come), the others leave it behind. */
static void leave_behind(const struct rank *rank, void *arg) {
  (void)arg;
  int r = rank->rank, without_1[] = {1};
  ncclComm_t world = open_comm(rank), child = NULL;
  check_members(world, r, 0x7);
  if (r != 1) {
    OK(ncclAllReduce(hung_in, hung_out, COUNT, ncclInt32, ncclSum, world, NULL));
    OK(ncclCommShrink(world, without_1, 1, &child, NULL, NCCL_SHRINK_ABORT));
    reuse_buffers();
    refuses_all(world);
    check_members(child, r, 0x5);
  }
  rank_barrier(rank);
  OK(ncclCommDestroy(world));
  if (child) close_comm(child);
}
TEST(a_rank_that_hangs_is_left_behind) {
  job_run("NCCL_DEBUG=NONE", 3, kit_patience_ms(TIMEOUT_MS), leave_behind, NULL);
  if (ranks_plugin()) job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 3, kit_patience_ms(TIMEOUT_MS), leave_behind, NULL);
}

TEST_MAIN(TEST_CASE(ranks_are_left_out), TEST_CASE(shrinking_in_a_group_and_without_blocking),
          TEST_CASE(a_group_without_blocking), TEST_CASE(numbers_of_channels_that_differ),
          TEST_CASE(wrong_calls_are_refused), TEST_CASE(a_child_has_its_parents_configuration),
          TEST_CASE(survivors_go_on), TEST_CASE(a_death_that_was_not_told_is_an_error),
          TEST_CASE(revoking_ends_what_hangs), TEST_CASE(a_rank_that_hangs_is_left_behind))
