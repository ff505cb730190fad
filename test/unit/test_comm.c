/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 60
 *
 * Proves, with all ranks of a communicator in one process and over shared memory: groups keep the first error, that of
 * a call that makes a communicator too, and forget what was simulated; channels share counts that they do not divide;
 * children's ranks, whatever the keys; configurations; every waiter wakes; the first reason of a failure stays; and
 * what has ended left nothing mapped or open. The public calls against several processes are e2e's.
 */
#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "core/comm/rt_comm.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 20000
#define RANKS 3
#define MOST 50000

static void alone(const char *env, rank_fn body, void *arg) {
  char all[300];
  snprintf(all, sizeof all, "NCCL_DEBUG=NONE %s", env);
  job_run(all, 1, kit_patience_ms(TIMEOUT_MS), body, arg);
}

static void open_all(ncclComm_t *comm, int n) { OK(ncclCommInitAll(comm, n, NULL)); }

static void destroy_all(ncclComm_t *comm, int n) {
  for (int r = 0; r < n; r++) OK(ncclCommDestroy(comm[r]));
}

static int32_t in[RANKS][MOST + 1], out[RANKS][MOST + 1];

/* Each result once, and nothing behind it. */
static void all_reduce(ncclComm_t *comm, int n, size_t count) {
  for (int r = 0; r < n; r++)
    for (size_t i = 0; i <= count; i++) in[r][i] = (int32_t)i + 100 * r, out[r][i] = -7;
  OK(ncclGroupStart());
  for (int r = 0; r < n; r++) OK(ncclAllReduce(in[r], out[r], count, ncclInt32, ncclSum, comm[r], NULL));
  OK(ncclGroupEnd());
  for (int r = 0; r < n; r++) OK(railCommWait(comm[r]));
  for (int r = 0; r < n; r++) {
    for (size_t i = 0; i < count; i++) ENSURE_INT(out[r][i], n * (int)i + 50 * n * (n - 1));
    ENSURE_INT(out[r][count], -7);
  }
}

/* ---- channels ---- */

static void uneven(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  static const size_t counts[] = {1, 15, 16, 17, 33, 47, 49, 1000, 4801, MOST};
  ncclComm_t comm[RANKS];
  open_all(comm, RANKS);
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) all_reduce(comm, RANKS, counts[c]);
  destroy_all(comm, RANKS);
}
TEST(channels_share_counts_that_they_do_not_divide) {
  alone("RAIL_NCHANNELS=3", uneven, NULL);
  alone("RAIL_NCHANNELS=2 NCCL_ALGO=Tree RAIL_TREE_MAX=1G", uneven, NULL);
  alone("RAIL_NCHANNELS=2 NCCL_PROTO=LL", uneven, NULL);
}

static void configured(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  static const struct { int least, most, want; } cases[] = {
      {NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, 4}, {NCCL_CONFIG_UNDEF_INT, 2, 2}, {6, NCCL_CONFIG_UNDEF_INT, 6},
      {NCCL_CONFIG_UNDEF_INT, 100, 4},                   {100, NCCL_CONFIG_UNDEF_INT, RT_MAX_CHANNELS}, {2, 3, 3},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclComm_t comm;
    config.minCTAs = cases[i].least;
    config.maxCTAs = cases[i].most;
    OK(ncclGetUniqueId(&id));
    OK(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    ENSURE_INT(comm->nchannels, cases[i].want);
    OK(ncclCommDestroy(comm));
  }
}
TEST(ctas_bound_the_channels) { alone("RAIL_NCHANNELS=4", configured, NULL); }

/* ---- groups ---- */

static void groups(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ncclComm_t comm[2];
  int32_t v[2] = {1, 1};
  open_all(comm, 2);
  /* The error of one call drops the group, whatever follows it. */
  OK(ncclGroupStart());
  for (int r = 0; r < 2; r++) OK(ncclAllReduce(&v[r], &v[r], 1, ncclInt32, ncclSum, comm[r], NULL));
  ENSURE_INT(ncclAllReduce(&v[0], &v[0], 1, ncclInt32, (ncclRedOp_t)77, comm[0], NULL), ncclInvalidArgument);
  OK(ncclAllReduce(&v[0], &v[0], 1, ncclInt32, ncclSum, comm[0], NULL));
  ENSURE_INT(ncclGroupEnd(), ncclInvalidArgument);
  /* What was simulated is not run. */
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  OK(ncclGroupStart());
  for (int r = 0; r < 2; r++) OK(ncclAllReduce(&v[r], &v[r], 1, ncclInt32, ncclSum, comm[r], NULL));
  OK(ncclGroupSimulateEnd(&info));
  ENSURE(info.estimatedTime > 0, "%g", (double)info.estimatedTime);
  OK(ncclGroupStart());
  OK(ncclGroupEnd());
  for (int r = 0; r < 2; r++) OK(railCommWait(comm[r]));
  ENSURE(v[0] == 1 && v[1] == 1, "%d and %d", v[0], v[1]);
  all_reduce(comm, 2, 100);
  destroy_all(comm, 2);
}
TEST(groups_keep_their_first_error_and_forget_simulations) { alone("", groups, NULL); }

/* The good call of each group waits for a rank that the wrong one was to make. */
static void wrong_makers(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ncclComm_t comm[2], made = NULL, wrong = NULL;
  ncclUniqueId id;
  open_all(comm, 2);
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  OK(ncclCommInitRank(&made, 2, id, 0));
  REFUSED(ncclCommInitRank(&wrong, 2, id, 2), ncclInvalidArgument, "rank is 2");
  ENSURE_INT(ncclGroupEnd(), ncclInvalidArgument);
  OK(ncclGroupStart());
  OK(ncclCommInitRank(&made, 2, id, 0));
  REFUSED(ncclCommInitRankScalable(&wrong, 2, 1, 3, &id, NULL), ncclInvalidArgument, "3 ids");
  ENSURE_INT(ncclGroupEnd(), ncclInvalidArgument);
  OK(ncclGroupStart());
  OK(ncclCommInitRank(&made, 2, id, 0));
  REFUSED(ncclCommGrow(NULL, 2, &id, 2, &wrong, NULL), ncclInvalidArgument, "rank is 2");
  ENSURE_INT(ncclGroupEnd(), ncclInvalidArgument);
  OK(ncclGroupStart());
  OK(ncclCommSplit(comm[0], 0, 0, &made, NULL));
  REFUSED(ncclCommSplit(comm[1], -7, 0, &wrong, NULL), ncclInvalidArgument, "color is -7");
  ENSURE_INT(ncclGroupEnd(), ncclInvalidArgument);
  OK(ncclGroupStart());
  OK(ncclCommInitRank(&made, 2, id, 0));
  REFUSED(ncclCommShrink(comm[1], (int[]){7}, 1, &wrong, NULL, NCCL_SHRINK_DEFAULT), ncclInvalidArgument, "is 7");
  ENSURE_INT(ncclGroupEnd(), ncclInvalidArgument);
  ENSURE(!made && !wrong, "%p and %p of groups that were dropped", (void *)made, (void *)wrong);
  destroy_all(comm, 2);
}
TEST(a_wrong_call_that_makes_a_communicator_drops_its_group) {
  alone("RAIL_BOOTSTRAP_TIMEOUT=1h", wrong_makers, NULL);
}

/* ---- children ---- */

static void split(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  enum { N = 5 };
  static const int keys[N] = {INT_MAX, 0, INT_MIN, -1, INT_MAX}, want[N] = {3, 2, 0, 1, 4};
  ncclComm_t comm[N], child[N];
  open_all(comm, N);
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++) OK(ncclCommSplit(comm[r], 0, keys[r], &child[r], NULL));
  OK(ncclGroupEnd());
  for (int r = 0; r < N; r++)
    ENSURE(child[r]->rank == want[r], "key %d: rank %d, not %d", keys[r], child[r]->rank, want[r]);
  destroy_all(child, N);
  int without[] = {0, 3};
  OK(ncclGroupStart());
  for (int r = 0; r < N; r++)
    if (r != 0 && r != 3) OK(ncclCommShrink(comm[r], without, 2, &child[r], NULL, NCCL_SHRINK_DEFAULT));
  OK(ncclGroupEnd());
  ENSURE(child[1]->rank == 0 && child[2]->rank == 1 && child[4]->rank == 2, "ranks %d, %d, %d", child[1]->rank,
         child[2]->rank, child[4]->rank);
  ENSURE_INT(child[4]->nranks, 3);
  OK(ncclCommDestroy(child[1]));
  OK(ncclCommDestroy(child[2]));
  OK(ncclCommDestroy(child[4]));
  destroy_all(comm, N);
}
TEST(children_have_the_ranks_that_keys_and_gaps_give) { alone("", split, NULL); }

static void inheritance(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  char name[] = "RailSocket", called[] = "mother";
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  ncclComm_t comm, child, other;
  config.netName = name;
  config.commName = called;
  config.trafficClass = 3;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  name[0] = called[0] = '?';
  OK(ncclCommSplit(comm, 0, 0, &child, NULL));
  ENSURE(strcmp(child->requested_net, "RailSocket") == 0 && strcmp(child->name, "mother") == 0, "'%s' and '%s'",
         child->requested_net, child->name);
  ENSURE_INT(child->config.trafficClass, 3);
  ncclConfig_t own = NCCL_CONFIG_INITIALIZER;
  OK(ncclCommSplit(comm, 0, 0, &other, &own));
  ENSURE(!other->requested_net[0] && other->config.trafficClass == NCCL_CONFIG_UNDEF_INT, "'%s', traffic class %d",
         other->requested_net, other->config.trafficClass);
  OK(ncclCommDestroy(other));
  OK(ncclCommDestroy(child));
  OK(ncclCommDestroy(comm));
}
TEST(a_child_has_its_parents_configuration_unless_it_has_one) { alone("", inheritance, NULL); }

static void set_pending(ncclComm_t comm, int pending) {
  pthread_mutex_lock(&comm->queue.lock);
  comm->queue.pending = pending;
  atomic_store(&comm->queue.pending_hint, pending);
  pthread_mutex_unlock(&comm->queue.lock);
}

/* A revoked communicator of which something is still under way; here only its counters say so. */
static void restless(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ncclUniqueId id;
  ncclComm_t comm, child = NULL;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&comm, 1, id, 0));
  OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
  set_pending(comm, 1);
  REFUSED(ncclCommSplit(comm, 0, 0, &child, NULL), ncclInvalidUsage, "unfinished operations");
  ncclResult_t state;
  OK(ncclCommGetAsyncError(comm, &state));
  ENSURE_INT(state, ncclInProgress);
  set_pending(comm, 0);
  OK(ncclCommSplit(comm, 0, 0, &child, NULL));
  OK(ncclCommDestroy(child));
  OK(ncclCommDestroy(comm));
}
TEST(a_revoked_communicator_is_split_when_it_is_at_rest) { alone("", restless, NULL); }

/* ---- waiting, failing ---- */

static atomic_int waiters_done;

static void wait_for(void *arg) {
  OK(railCommWait(*(ncclComm_t *)arg));
  atomic_fetch_add(&waiters_done, 1);
}

static void wait_or_release(void *arg) {
  ncclComm_t *comm = *(ncclComm_t **)arg;
  static int32_t v = 1;
  if (comm) {
    wait_for(comm);
    return;
  }
  comm = *((ncclComm_t **)arg - 3); /* of the first waiter: rank 0; rank 1 is behind it */
  usleep(100000); /* all of them wait */
  OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm[1], NULL));
  OK(railCommWait(comm[1]));
}

/* One of those who wait runs the operation, the others sleep meanwhile. */
static void waiters(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ncclComm_t comm[2];
  int32_t v = 1;
  open_all(comm, 2);
  all_reduce(comm, 2, 10);
  OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm[0], NULL));
  ncclComm_t *each[4] = {&comm[0], &comm[0], &comm[0], NULL};
  kit_run_threads(4, wait_or_release, each, sizeof each[0]);
  ENSURE_INT(waiters_done, 3);
  ENSURE_INT(v, 2);
  destroy_all(comm, 2);
}
TEST(all_that_wait_are_woken) { alone("", waiters, NULL); }

static void failures(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ncclComm_t comm[2];
  int32_t v = 1;
  open_all(comm, 2);
  all_reduce(comm, 2, 10);
  rt_comm_fail(comm[0], RAIL_BAD_USAGE, "the first reason");
  rt_comm_fail(comm[0], RAIL_SYSTEM_ERROR, "a later one");
  ENSURE_INT(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm[0], NULL), ncclInvalidUsage);
  ENSURE(strcmp(ncclGetLastError(comm[0]), "the first reason") == 0, "\"%s\"", ncclGetLastError(comm[0]));
  /* The other rank's error names that one. */
  ncclResult_t r = ncclSuccess;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(5000));
  while (r == ncclSuccess && !rail_deadline_passed(deadline)) OK(ncclCommGetAsyncError(comm[1], &r));
  ENSURE_INT(r, ncclInvalidUsage);
  ENSURE(strstr(ncclGetLastError(comm[1]), "the first reason"), "\"%s\"", ncclGetLastError(comm[1]));
  for (int i = 0; i < 2; i++) OK(ncclCommAbort(comm[i]));
}
TEST(the_first_reason_of_a_failure_stays) { alone("", failures, NULL); }

static atomic_bool core_is_shared;

/* Then others run, each time. */
int sched_yield(void) {
  return atomic_load(&core_is_shared) ? usleep(5000) : (int)syscall(SYS_sched_yield);
}

/* A rank that ends its communicator while another one waits for it: noticed after some time, not after some polls. */
static void leaver(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ncclComm_t comm[2];
  int32_t v = 1;
  open_all(comm, 2);
  all_reduce(comm, 2, 10);
  atomic_store(&core_is_shared, true);
  OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm[0], NULL));
  OK(ncclCommDestroy(comm[1]));
  ENSURE_INT(railCommWait(comm[0]), ncclRemoteError);
  ENSURE(strstr(ncclGetLastError(comm[0]), "rank 1 ended"), "\"%s\"", ncclGetLastError(comm[0]));
  OK(ncclCommAbort(comm[0]));
}
TEST(a_rank_that_leaves_is_not_waited_for) { alone("", leaver, NULL); }

static void ended(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ncclUniqueId id;
  ncclComm_t comm;
  int32_t v = 1;
  void *p = NULL;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&comm, 1, id, 0));
  OK(ncclCommFinalize(comm));
  REFUSED(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidUsage, "ncclCommFinalize");
  OK(ncclCommDestroy(comm));
  OK(ncclMemAlloc(&p, 100));
  OK(ncclMemFree(p));
  REFUSED(ncclMemFree(p), ncclInvalidArgument, "freed already");
}
TEST(what_has_ended_is_refused) { alone("", ended, NULL); }

/* ---- what is left ---- */

static int lines_with(const char *file, const char *word) {
  char line[1024];
  int n = 0;
  FILE *f = fopen(file, "r");
  ENSURE(f, "%s cannot be read", file);
  while (fgets(line, sizeof line, f)) n += strstr(line, word) != NULL;
  fclose(f);
  return n;
}

static int segments_open(void) {
  int n = 0;
  DIR *d = opendir("/proc/self/fd");
  ENSURE(d, "no /proc");
  for (struct dirent *e; (e = readdir(d));) {
    char path[300], target[300] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
    if (readlink(path, target, sizeof target - 1) > 0) n += strstr(target, "memfd:railyard") != NULL;
  }
  closedir(d);
  return n;
}

/* Rings and both trees on two channels. A segment's descriptor is closed once both ends have it mapped. */
static void cleaned(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ncclComm_t comm[RANKS];
  open_all(comm, RANKS);
  all_reduce(comm, RANKS, 20000);
  all_reduce(comm, RANKS, MOST);
  ENSURE(lines_with("/proc/self/maps", "memfd:railyard") > 0, "no segments");
  ENSURE_INT(segments_open(), 0);
  destroy_all(comm, RANKS);
  ENSURE_INT(lines_with("/proc/self/maps", "memfd:railyard"), 0);
}
TEST(segments_go_with_their_connections) {
  alone("RAIL_NCHANNELS=2 RAIL_TREE_MAX=100K NCCL_BUFFSIZE=64K NCCL_LL_BUFFSIZE=16K", cleaned, NULL);
}

TEST_MAIN(TEST_CASE(channels_share_counts_that_they_do_not_divide), TEST_CASE(ctas_bound_the_channels),
          TEST_CASE(groups_keep_their_first_error_and_forget_simulations),
          TEST_CASE(a_wrong_call_that_makes_a_communicator_drops_its_group),
          TEST_CASE(children_have_the_ranks_that_keys_and_gaps_give),
          TEST_CASE(a_child_has_its_parents_configuration_unless_it_has_one),
          TEST_CASE(a_revoked_communicator_is_split_when_it_is_at_rest), TEST_CASE(all_that_wait_are_woken),
          TEST_CASE(the_first_reason_of_a_failure_stays), TEST_CASE(a_rank_that_leaves_is_not_waited_for),
          TEST_CASE(what_has_ended_is_refused), TEST_CASE(segments_go_with_their_connections))
