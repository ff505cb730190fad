/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan tsan
 *
 * Proves: the calls that a program for NCCL may make besides moving data do what NCCL promises, or refuse by name:
 * windows, several ids, simulated groups, properties, teams, the device API, one-sided calls, parameters, the
 * configuration, logging started anew.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 30000

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
  void *user = &user;
  REFUSED(ncclCommWindowRegister(NULL, &comm, 8, &bad, 0), ncclInvalidArgument, "comm");
  for (int w = 0; w < 2; w++) {
    OK(ncclMemAlloc(&mem[w], N * sizeof(int32_t)));
    OK(ncclCommWindowRegister(comm, mem[w], N * sizeof(int32_t), &win[w],
                              w ? NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING : NCCL_WIN_DEFAULT));
    ENSURE(win[w] != NULL, "no window");
    OK(ncclWinGetUserPtr(comm, win[w], &user));
    ENSURE(user == mem[w], "the window's buffer is %p, expected %p", user, mem[w]);
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
  REFUSED(ncclWinGetUserPtr(other, win[0], &user), ncclInvalidArgument, "not a window");
  REFUSED(ncclWinGetUserPtr(comm, win[0], NULL), ncclInvalidArgument, "outUserPtr");
  REFUSED(ncclWinGetUserPtr(NULL, win[0], &user), ncclInvalidArgument, "comm");
  OK(ncclWinGetUserPtr(comm, NULL, &user));
  ENSURE(user == NULL, "no window has a buffer");
  OK(ncclCommWindowDeregister(comm, win[0]));
  REFUSED(ncclWinGetUserPtr(comm, win[0], &user), ncclInvalidArgument, "not a window");
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

static void check_properties(ncclComm_t comm, int rank) {
  ncclCommProperties_t all = NCCL_COMM_PROPERTIES_INITIALIZER, part = all;
  memset(&part.rank, 0x11, sizeof part - offsetof(ncclCommProperties_t, rank));
  part.size = offsetof(ncclCommProperties_t, cudaDev); /* as of an older release */
  OK(ncclCommQueryProperties(comm, &all));
  ENSURE_INT(all.rank, rank);
  ENSURE_INT(all.nRanks, 3);
  ENSURE_INT(all.cudaDev, rank);
  ENSURE_INT(all.nLsaTeams, 3);
  ENSURE(!all.deviceApiSupport && !all.multimemSupport && !all.hostRmaSupport, "something is offered");
  ENSURE(all.ginType == NCCL_GIN_TYPE_NONE && all.railedGinType == NCCL_GIN_TYPE_NONE, "GIN is offered");
  OK(ncclCommQueryProperties(comm, &part));
  ENSURE_INT(part.nRanks, 3);
  ENSURE_INT(part.cudaDev, 0x11111111);
  part.magic = 5;
  REFUSED(ncclCommQueryProperties(comm, &part), ncclInvalidArgument, "magic 0x5 ");
  part = all;
  part.size = 9;
  REFUSED(ncclCommQueryProperties(comm, &part), ncclInvalidArgument, "size 9; ");
  REFUSED(ncclCommQueryProperties(comm, NULL), ncclInvalidArgument, "props is NULL");
  REFUSED(ncclCommQueryProperties(NULL, &all), ncclInvalidArgument, "comm is NULL");
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
  void *p = NULL;
  const ncclMultimemHandle_t multimem = {NULL};
  REFUSED(ncclGinOutboxCreateRequirement(1, 1, NULL, NULL), ncclInvalidUsage, "ncclGinOutbox");
  REFUSED(ncclGinInboxA2ACreateRequirement(ncclTeamWorld(comm), 1, 1, NULL, NULL), ncclInvalidUsage, "ncclGinInbox");
  REFUSED(ncclGetLsaDevicePointer(NULL, 0, 0, &p), ncclInvalidUsage, "ncclGetLsaDevicePointer");
  REFUSED(ncclGetPeerDevicePointer(NULL, 0, 0, &p), ncclInvalidUsage, "ncclGetPeerDevicePointer");
  REFUSED(ncclGetLsaMultimemDevicePointer(NULL, 0, &p), ncclInvalidUsage, "ncclGetLsaMultimemDevicePointer");
  REFUSED(ncclGetMultimemDevicePointer(NULL, 0, multimem, &p), ncclInvalidUsage, "ncclGetMultimemDevicePointer");
  ncclWaitSignalDesc_t signals = {.opCnt = 1};
  REFUSED(ncclPutSignal(&r, 1, ncclInt32, 0, NULL, 0, 0, 0, 0, comm, NULL), ncclInvalidUsage, "ncclPutSignal");
  REFUSED(ncclSignal(0, 0, 0, 0, comm, NULL), ncclInvalidUsage, "ncclSignal");
  REFUSED(ncclWaitSignal(1, &signals, comm, NULL), ncclInvalidUsage, "ncclWaitSignal");
  OK(ncclGroupStart());
  REFUSED(ncclSignal(0, 0, 0, 0, comm, NULL), ncclInvalidUsage, "ncclSignal");
  ENSURE_INT(ncclGroupEnd(), ncclInvalidUsage); /* a wrong call drops the group */
  check_properties(comm, r);
  check_members(comm, r, 7);
  close_comm(comm);
}
TEST(teams_are_told_and_the_device_api_is_refused) {
  job_run("NCCL_DEBUG=NONE", 3, kit_patience_ms(TIMEOUT_MS), teams, NULL);
}

/* ---- parameters ---- */

static ncclParamHandle_t handle_of(const char *key) {
  ncclParamHandle_t h = NULL;
  OK(ncclParamBind(&h, key));
  ENSURE(h, "%s has no handle", key);
  return h;
}

static const char *text_of(const char *key) {
  const char *by_handle = NULL, *by_name = NULL;
  int length = -1;
  OK(ncclParamGetStr(handle_of(key), &by_handle));
  OK(ncclParamGetParameter(key, &by_name, &length));
  ENSURE(strcmp(by_handle, by_name) == 0 && (int)strlen(by_name) == length, "%s is \"%s\", or \"%s\" of %d", key,
         by_handle, by_name, length);
  return by_name;
}

#define IS(key, text) ENSURE(strcmp(text_of(key), text) == 0, "%s is \"%s\"", key, text_of(key))

static void check_numbers(void) {
  ncclParamHandle_t shm = handle_of("NCCL_SHM_DISABLE"), cumem = handle_of("NCCL_CUMEM_ENABLE"),
                    size = handle_of("NCCL_BUFFSIZE"), hostid = handle_of("NCCL_HOSTID");
  int8_t i8;
  int16_t i16;
  int32_t i32;
  int64_t i64;
  uint8_t u8;
  uint16_t u16;
  uint32_t u32;
  uint64_t u64;
  OK(ncclParamGetI8(shm, &i8));
  OK(ncclParamGetU8(shm, &u8));
  ENSURE(i8 == 1 && u8 == 1, "NCCL_SHM_DISABLE is %d or %u", i8, u8);
  OK(ncclParamGetI16(cumem, &i16));
  ENSURE_INT(i16, -2);
  REFUSED(ncclParamGetU16(cumem, &u16), ncclInvalidArgument, "NCCL_CUMEM_ENABLE is -2");
  REFUSED(ncclParamGetU64(cumem, &u64), ncclInvalidArgument, "has 0 to 9223372036854775807");
  REFUSED(ncclParamGetI16(size, &i16), ncclInvalidArgument, "NCCL_BUFFSIZE is 2097152");
  OK(ncclParamGetI32(size, &i32));
  OK(ncclParamGetU32(size, &u32));
  OK(ncclParamGetI64(size, &i64));
  OK(ncclParamGetU64(size, &u64));
  ENSURE(i32 == 2 << 20 && u32 == 2u << 20 && i64 == 2 << 20 && u64 == 2u << 20, "NCCL_BUFFSIZE is %d", i32);
  REFUSED(ncclParamGetI64(hostid, &i64), ncclInvalidArgument, "NCCL_HOSTID is text");
  REFUSED(ncclParamGetI64(NULL, &i64), ncclInvalidArgument, "no handle");
  REFUSED(ncclParamGetI64((ncclParamHandle_t)((char *)size + 1), &i64), ncclInvalidArgument, "no handle");
  REFUSED(ncclParamGetI64(size, NULL), ncclInvalidArgument, "NULL");
}

static void check_bytes(void) {
  char bytes[16] = "";
  int64_t number = 0;
  int length = -1;
  OK(ncclParamGet(handle_of("NCCL_BUFFSIZE"), &number, sizeof number, &length));
  ENSURE(number == 2 << 20 && length == 8, "%lld of %d bytes", (long long)number, length);
  OK(ncclParamGet(handle_of("NCCL_HOSTID"), bytes, sizeof bytes, &length));
  ENSURE(strcmp(bytes, "here") == 0 && length == 5, "\"%s\" of %d bytes", bytes, length);
  REFUSED(ncclParamGet(handle_of("NCCL_HOSTID"), bytes, 4, &length), ncclInvalidArgument, "takes 5 bytes");
  REFUSED(ncclParamGet(handle_of("NCCL_HOSTID"), bytes, -1, &length), ncclInvalidArgument, "maxLen is -1");
  REFUSED(ncclParamGet(handle_of("NCCL_HOSTID"), bytes, 16, NULL), ncclInvalidArgument, "len is NULL");
}

static void parameters(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  const char **keys = NULL, *value = "";
  int n = 0, length = 7;
  ncclParamHandle_t h = NULL;
  IS("NCCL_BUFFSIZE", "2097152");
  IS("NCCL_HOSTID", "here");
  IS("NCCL_ALGO", "");
  IS("RAIL_PROXY", "inline");
  IS("RAIL_SIMD", "auto");
  IS("RAIL_HEARTBEAT", "1000ms");
  check_numbers();
  check_bytes();
  OK(ncclParamGetAllParameterKeys(&keys, &n));
  ENSURE(n > 30, "%d parameters", n);
  for (int i = 0; i < n; i++) ENSURE(text_of(keys[i]), "%s has no text", keys[i]);
  REFUSED(ncclParamBind(&h, "NCCL_NO_SUCH"), ncclInvalidArgument, "\"NCCL_NO_SUCH\" is no parameter");
  ENSURE(h == NULL, "an unknown name has a handle");
  REFUSED(ncclParamBind(NULL, "NCCL_ALGO"), ncclInvalidArgument, "ncclParamBind");
  REFUSED(ncclParamBind(&h, NULL), ncclInvalidArgument, "ncclParamBind");
  REFUSED(ncclParamGetParameter("RAIL_NO_SUCH", &value, &length), ncclInvalidArgument, "\"RAIL_NO_SUCH\"");
  ENSURE(value == NULL && length == 0, "an unknown name has a value");
  REFUSED(ncclParamGetParameter("NCCL_ALGO", NULL, &length), ncclInvalidArgument, "ncclParamGetParameter");
  REFUSED(ncclParamGetAllParameterKeys(NULL, &n), ncclInvalidArgument, "ncclParamGetAllParameterKeys");
  char text[8192] = "";
  FILE *out = freopen("/dev/null", "w", stdout);
  ENSURE(out && setvbuf(stdout, text, _IOFBF, sizeof text) == 0, "the output cannot be read");
  ncclParamDumpAll();
  ENSURE(strstr(text, "NCCL_BUFFSIZE=2097152\n") && strstr(text, "RAIL_PROXY=inline\n"), "printed: %s", text);
  fflush(stdout);
  setvbuf(stdout, NULL, _IONBF, 0);
}
TEST(parameters_are_read) {
  job_run("NCCL_DEBUG=NONE NCCL_BUFFSIZE=2M NCCL_SHM_DISABLE=yes NCCL_HOSTID=here RAIL_PROXY=inline", 1,
          kit_patience_ms(TIMEOUT_MS), parameters, NULL);
}

/* ---- configuration ---- */

#define WRONG(field, value, text)                                                                         \
  do {                                                                                                    \
    ncclConfig_t wrong_ = NCCL_CONFIG_INITIALIZER;                                                        \
    wrong_.field = value;                                                                                 \
    REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &wrong_), ncclInvalidArgument, "config." #field " is " text); \
    ENSURE(comm == NULL, "a refused configuration made a communicator");                                  \
  } while (0)

/* What a struct of an older release has behind its end, or fields that its version did not have, is not looked at. */
static void older(ncclUniqueId id, unsigned version, size_t size) {
  ncclComm_t comm = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.version = version;
  config.size = size;
  config.graphUsageMode = config.numRmaCtx = config.maxP2pPeers = config.graphStreamOrdering = -7;
  OK(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  close_comm(comm);
}

static void configurations(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  OK(ncclGetUniqueId(&id));
  WRONG(blocking, 2, "2; allowed are 0 to 1");
  WRONG(cgaClusterSize, -1, "-1; at least 0 is allowed");
  WRONG(minCTAs, 0, "0; at least 1 is allowed");
  WRONG(maxCTAs, -3, "-3; at least 1");
  WRONG(splitShare, 2, "2");
  WRONG(collnetEnable, -1, "-1");
  WRONG(CTAPolicy, 4, "4; allowed are 0 to 3");
  WRONG(shrinkShare, 3, "3");
  WRONG(nvlsCTAs, 0, "0");
  WRONG(nChannelsPerNetPeer, 65, "65; allowed are 1 to 64");
  WRONG(nvlinkCentricSched, 2, "2");
  WRONG(graphUsageMode, 3, "3; allowed are 0 to 2");
  WRONG(numRmaCtx, -1, "-1");
  WRONG(maxP2pPeers, 0, "0; at least 1");
  WRONG(graphStreamOrdering, 2, "2; allowed are 0 to 1");
  config.minCTAs = 5;
  config.maxCTAs = 4;
  REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument, "config.maxCTAs, which is 4");
  config.magic = 1;
  REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument, "magic 0x1");
  config.size = 15;
  REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument, "size 15");
  ncclConfig_t full = NCCL_CONFIG_INITIALIZER;
  full.graphUsageMode = 2;
  full.numRmaCtx = full.maxP2pPeers = full.graphStreamOrdering = 1;
  full.size += 64; /* of a later release */
  struct { ncclConfig_t known; char later[64]; } later = {.known = full};
  OK(ncclCommInitRankConfig(&comm, 1, id, 0, &later.known));
  close_comm(comm);
  OK(ncclGetUniqueId(&id));
  older(id, NCCL_VERSION(2, 28, 9), sizeof config);
  OK(ncclGetUniqueId(&id));
  older(id, NCCL_VERSION_CODE, offsetof(ncclConfig_t, graphUsageMode));
}
TEST(configurations_are_checked) {
  job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), configurations, NULL);
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
          TEST_CASE(parameters_are_read), TEST_CASE(configurations_are_checked), TEST_CASE(logging_is_started_anew))
