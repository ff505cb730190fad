/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan tsan
 *
 * Proves: the calls that a program for NCCL may make besides moving data do what NCCL promises, or refuse by name:
 * windows, several ids, simulated groups, teams, the device API, logging started anew.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 30000

#ifdef __SANITIZE_THREAD__ /* ranks are forked and start threads */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }
#endif

/* ---- windows ---- */

static void windows(const struct rank *rank, void *arg) {
  (void)arg;
  enum { N = 100000 };
  ncclComm_t comm = open_comm(rank), other = NULL;
  ncclWindow_t win[2] = {NULL}, bad = (ncclWindow_t)(void *)&comm;
  void *mem[2];
  REFUSED(ncclCommWindowRegister(comm, NULL, 8, &bad, 0), ncclInvalidArgument, "buff");
  ENSURE(bad == NULL, "a refused registration left a window");
  REFUSED(ncclCommWindowRegister(comm, &comm, 0, &bad, 0), ncclInvalidArgument, "size 0");
  REFUSED(ncclCommWindowRegister(comm, &comm, 8, NULL, 0), ncclInvalidArgument, "ncclCommWindowRegister");
  REFUSED(ncclCommWindowRegister(comm, &comm, 8, &bad, 4), ncclInvalidArgument, "winFlags is 0x4");
  REFUSED(ncclCommWindowRegister(NULL, &comm, 8, &bad, 0), ncclInvalidArgument, "comm");
  for (int w = 0; w < 2; w++) {
    OK(ncclMemAlloc(&mem[w], N * sizeof(int32_t)));
    OK(ncclCommWindowRegister(comm, mem[w], N * sizeof(int32_t), &win[w],
                              w ? NCCL_WIN_COLL_SYMMETRIC : NCCL_WIN_DEFAULT));
    ENSURE(win[w] != NULL, "no window");
  }
  int32_t *in = mem[0], *out = mem[1];
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < N; i++) in[i] = i + rank->rank + round;
    OK(ncclAllReduce(in, out, N, ncclInt32, ncclSum, comm, NULL));
    OK(railCommWait(comm));
    for (int i = 0; i < N; i++) ENSURE_INT(out[i], 2 * (i + round) + 1);
  }
  OK(ncclCommSplit(comm, 0, 0, &other, NULL));
  REFUSED(ncclCommWindowDeregister(other, win[0]), ncclInvalidArgument, "ncclCommWindowDeregister");
  OK(ncclCommWindowDeregister(comm, win[0]));
  REFUSED(ncclCommWindowDeregister(comm, win[0]), ncclInvalidArgument, "not a registration");
  REFUSED(ncclCommWindowDeregister(NULL, win[1]), ncclInvalidArgument, "comm");
  OK(ncclCommWindowDeregister(comm, NULL));
  close_comm(other);
  close_comm(comm); /* with a window left, which goes with it */
  for (int w = 0; w < 2; w++) OK(ncclMemFree(mem[w]));
}
TEST(windows_are_registrations) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), windows, NULL);
  if (ranks_plugin()) job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 2, kit_patience_ms(TIMEOUT_MS), windows, NULL);
}

/* ---- several ids ---- */

static void several_ids(const struct rank *rank, void *arg) {
  const int nids = *(const int *)arg;
  ncclUniqueId ids[4];
  ncclComm_t comm = NULL;
  int r = rank->rank, threads = kit_thread_count(), fds = kit_fd_count();
  memset(ids, 0, sizeof ids);
  ncclUniqueId *all = rank->shared; /* NCCL leaves it to the user how they come to all */
  if (r < nids) OK(ncclGetUniqueId(&all[r]));
  rank_barrier(rank);
  memcpy(ids, all, (size_t)nids * sizeof *ids);
  OK(ncclCommInitRankScalable(&comm, rank->nranks, r, nids, ids, NULL));
  check_members(comm, r, 0xf);
  close_comm(comm);
  rank_back_to(fds, threads, "the rendezvous");
  REFUSED(ncclCommInitRankScalable(&comm, 2, 0, 3, ids, NULL), ncclInvalidArgument, "3 ids");
  REFUSED(ncclCommInitRankScalable(&comm, 2, 0, 1, NULL, NULL), ncclInvalidArgument, "1 ids");
  REFUSED(ncclCommInitRankScalable(&comm, 2, 2, 1, ids, NULL), ncclInvalidArgument, "rank is 2");
  REFUSED(ncclCommInitRankScalable(NULL, 2, 0, 1, ids, NULL), ncclInvalidArgument, "comm");
}
TEST(of_several_ids_no_rendezvous_is_left) {
  for (int n = 1; n <= 4; n++) job_run("NCCL_DEBUG=NONE", 4, kit_patience_ms(TIMEOUT_MS), several_ids, &n);
}

/* ---- simulated groups ---- */

static float simulated(ncclComm_t comm, size_t count, int calls) {
  static int32_t in[1 << 20], out[1 << 20];
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  memset(out, 0x11, sizeof out);
  OK(ncclGroupStart());
  for (int i = 0; i < calls; i++) OK(ncclAllReduce(in, out, count, ncclInt32, ncclSum, comm, NULL));
  OK(ncclGroupSimulateEnd(&info));
  int done = 0;
  OK(railCommQuery(comm, &done));
  ENSURE(done && out[0] == 0x11111111, "a simulated group was run");
  return info.estimatedTime;
}

/* Rank 1 has no part in it: nothing is sent. */
static void simulate(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank), none = NULL;
  if (rank->rank == 0) {
    float small = simulated(comm, 2, 1), large = simulated(comm, 1 << 20, 1), three = simulated(comm, 1 << 20, 3);
    ENSURE(small > 0.5f && small < 1, "%g us for one step of 8 bytes", (double)small);
    ENSURE(large > 10 * small, "%g us for 8 bytes, %g us for 4 MiB", (double)small, (double)large);
    ENSURE(three > 2.9f * large && three < 3.1f * large, "%g us for one, %g us for three", (double)large,
           (double)three);
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER, wrong = info, early = info;
    OK(ncclGroupStart()); /* as with ncclGroupEnd the outermost end counts */
    OK(ncclGroupStart());
    OK(ncclGroupSimulateEnd(&info));
    ENSURE(info.estimatedTime < 0, "an inner end has made an estimate");
    OK(ncclGroupSimulateEnd(&info));
    ENSURE(info.estimatedTime >= 0 && info.estimatedTime <= 0, "an empty group takes %g", (double)info.estimatedTime);
    REFUSED(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "without ncclGroupStart");
    wrong.magic = 7;
    OK(ncclGroupStart());
    REFUSED(ncclGroupSimulateEnd(&wrong), ncclInvalidArgument, "NCCL_SIM_INFO_INITIALIZER");
    early.size = 16;
    OK(ncclGroupStart());
    REFUSED(ncclGroupSimulateEnd(&early), ncclInvalidArgument, "NCCL_SIM_INFO_INITIALIZER");
    OK(ncclGroupStart());
    REFUSED(ncclGroupSimulateEnd(NULL), ncclInvalidArgument, "simInfo");
    OK(ncclGroupStart());
    ENSURE(ncclBroadcast(NULL, NULL, 1, ncclInt8, 5, comm, NULL) != ncclSuccess, "root 5 of 2");
    ENSURE_INT(ncclGroupSimulateEnd(&info), ncclInvalidArgument); /* a wrong call drops the group */
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&none, 1, id, 0));
    REFUSED(ncclGroupSimulateEnd(&info), ncclInvalidUsage, "communicators");
    ENSURE(none == NULL, "a simulated group made a communicator");
  }
  rank_barrier(rank);
  check_members(comm, rank->rank, 3); /* nothing of it is left over */
  close_comm(comm);
}
TEST(simulated_groups_do_nothing) { job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), simulate, NULL); }

/* ---- teams, device API ---- */

static void check_team(ncclTeam_t t, int nranks, int rank) {
  ENSURE_INT(t.nRanks, nranks);
  ENSURE_INT(t.rank, rank);
  ENSURE_INT(t.stride, nranks ? 1 : 0);
}

static void teams(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  int r = rank->rank;
  check_team(ncclTeamWorld(comm), 3, r);
  check_team(ncclTeamLsa(comm), 1, 0);
  check_team(ncclTeamRail(comm), 3, r);
  check_team(ncclTeamWorld(NULL), 0, 0);
  check_team(ncclTeamLsa(NULL), 0, 0);
  check_team(ncclTeamRail(NULL), 0, 0);
  for (int i = 0; i < 3; i++) ENSURE_INT(ncclTeamRankToWorld(comm, ncclTeamRail(comm), i), i);
  ENSURE_INT(ncclTeamRankToWorld(comm, ncclTeamLsa(comm), 0), r);
  ENSURE_INT(ncclTeamRankToWorld(comm, (ncclTeam_t){4, 1, 2}, 3), r + 4);
  ENSURE_INT(ncclTeamRankToLsa(comm, ncclTeamWorld(comm), r), 0);
  ENSURE_INT(ncclTeamRankToLsa(comm, ncclTeamWorld(comm), r + 1), 1);
  ENSURE_INT(ncclTeamRankToLsa(comm, (ncclTeam_t){4, 1, 2}, 3), 4);
  ENSURE_INT(ncclTeamRankToWorld(NULL, ncclTeamWorld(comm), 0), -1);
  ENSURE_INT(ncclTeamRankToLsa(NULL, ncclTeamWorld(comm), 0), -1);
  REFUSED(ncclDevCommCreate(comm, NULL, NULL), ncclInvalidUsage, "ncclDevCommCreate");
  REFUSED(ncclDevCommDestroy(comm, NULL), ncclInvalidUsage, "ncclDevCommDestroy");
  REFUSED(ncclLsaBarrierCreateRequirement(ncclTeamLsa(comm), 1, NULL, NULL), ncclInvalidUsage, "ncclLsaBarrier");
  REFUSED(ncclGinBarrierCreateRequirement(comm, ncclTeamRail(comm), 1, NULL, NULL), ncclInvalidUsage, "ncclGinBarrier");
  REFUSED(ncclLLA2ACreateRequirement(1, 1, NULL, NULL), ncclInvalidUsage, "ncclLLA2ACreateRequirement");
  ENSURE_INT(ncclLLA2ACalcSlots(4, 16), 0);
  ENSURE(strstr(ncclGetLastError(NULL), "ncclLLA2ACalcSlots"), "not named: %s", ncclGetLastError(NULL));
  ENSURE_INT(pncclDevCommCreate(comm, NULL, NULL), ncclInvalidUsage);
  check_members(comm, r, 7);
  close_comm(comm);
}
TEST(teams_are_told_and_the_device_api_is_refused) {
  job_run("NCCL_DEBUG=NONE", 3, kit_patience_ms(TIMEOUT_MS), teams, NULL);
}

/* ---- logging ---- */

static off_t line_of_a_wrong_call(int fd) {
  off_t before = lseek(fd, 0, SEEK_END);
  ENSURE(ncclGetVersion(NULL) == ncclInvalidArgument, "no place for the version, and no error");
  return lseek(fd, 0, SEEK_END) - before;
}

static void logging(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  int fd = memfd_create("log", MFD_CLOEXEC);
  ENSURE(fd >= 0 && dup2(fd, STDERR_FILENO) >= 0, "no file for the log");
  ENSURE_INT(line_of_a_wrong_call(fd), 0);
  setenv("NCCL_DEBUG", "WARN", 1);
  ENSURE_INT(line_of_a_wrong_call(fd), 0);
  ncclResetDebugInit();
  ENSURE(line_of_a_wrong_call(fd) > 0, "NCCL_DEBUG was not read again");
  setenv("NCCL_DEBUG", "NONE", 1);
  ncclResetDebugInitInternal();
  ENSURE_INT(line_of_a_wrong_call(fd), 0);
  close(fd);
}
TEST(logging_is_started_anew) { job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), logging, NULL); }

TEST_MAIN(TEST_CASE(windows_are_registrations), TEST_CASE(of_several_ids_no_rendezvous_is_left),
          TEST_CASE(simulated_groups_do_nothing), TEST_CASE(teams_are_told_and_the_device_api_is_refused),
          TEST_CASE(logging_is_started_anew))
