/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 180
 * TEST-SAN: asan tsan
 *
 * Proves: a communicator and new ranks make a larger one (ncclCommGetUniqueId, ncclCommGrow): whoever makes the id,
 * grouped, without blocking, again and again; wrong calls are refused by name, and a rank that does not come is an
 * error in time.
 */
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 40000

/* The first `old` ranks of the job make a communicator. */
static ncclComm_t open_old(const struct rank *rank, int old) {
  ncclUniqueId id = make_id(rank, 0);
  ncclComm_t comm = NULL;
  if (rank->rank < old) OK(ncclCommInitRank(&comm, old, id, rank->rank));
  return comm;
}

/* That rank makes the id; it comes to all. */
static ncclUniqueId grow_id(const struct rank *rank, ncclComm_t comm, int maker) {
  if (rank->rank == maker) OK(ncclCommGetUniqueId(comm, rank->shared));
  rank_barrier(rank);
  ncclUniqueId id;
  memcpy(&id, rank->shared, sizeof id);
  rank_barrier(rank);
  return id;
}

static void took_less(uint64_t t0, uint64_t ms, const char *what) {
  const uint64_t took = (rail_now_ns() - t0) / 1000000;
  ENSURE(took < kit_patience_ms(ms), "%s took %llu ms", what, (unsigned long long)took);
}

/* ---- it grows ---- */

struct growth {
  int old, maker;
  bool names_it; /* does the rank that made the id pass it? */
};

static void grow(const struct rank *rank, void *arg) {
  const struct growth *g = arg;
  const int r = rank->rank, fds = kit_fd_count(), threads = kit_thread_count();
  ncclComm_t comm = open_old(rank, g->old), all = NULL;
  if (comm) check_members(comm, r, (1 << g->old) - 1);
  const ncclUniqueId id = grow_id(rank, comm, g->maker);
  const bool passes = !comm || (g->names_it && r == g->maker);
  OK(ncclCommGrow(comm, rank->nranks, passes ? &id : NULL, comm ? -1 : r, &all, NULL));
  check_place(all, rank->nranks, r);
  check_members(all, r, (1 << rank->nranks) - 1);
  if (comm) check_members(comm, r, (1 << g->old) - 1); /* the parent works on */
  if (comm) close_comm(comm);
  check_members(all, r, (1 << rank->nranks) - 1);
  close_comm(all);
  rank_back_to(fds, threads, "the grow");
}
TEST(ranks_join) {
  static const struct growth all[] = {{1, 0, true}, {1, 0, false}, {2, 1, true}, {3, 0, false}, {3, 1, true}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    job_run("NCCL_DEBUG=NONE", 4, kit_patience_ms(TIMEOUT_MS), grow, (void *)(uintptr_t)&all[i]);
  if (ranks_plugin())
    job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 4, kit_patience_ms(TIMEOUT_MS), grow, (void *)(uintptr_t)&all[2]);
}

/* From one rank to four, one at a time; each ends its parent. */
static void one_by_one(const struct rank *rank, void *arg) {
  (void)arg;
  const int r = rank->rank;
  ncclComm_t comm = open_old(rank, 1);
  for (int n = 2; n <= rank->nranks; n++) {
    ncclComm_t next = NULL;
    const ncclUniqueId id = grow_id(rank, comm, n % 2 ? 1 : 0);
    if (r >= n) continue;
    OK(ncclCommGrow(comm, n, comm ? NULL : &id, comm ? -1 : r, &next, NULL));
    check_members(next, r, (1 << n) - 1);
    if (comm) close_comm(comm);
    comm = next;
  }
  check_place(comm, rank->nranks, r);
  close_comm(comm);
}
TEST(it_grows_again) { job_run("NCCL_DEBUG=NONE", 4, kit_patience_ms(TIMEOUT_MS), one_by_one, NULL); }

/* Both ranks of the parent in one thread, a new one beside them in the group; then all without blocking. */
static void grouped(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  ncclComm_t comm[2], all[3] = {NULL}, more[4] = {NULL};
  ncclUniqueId id;
  ncclConfig_t config = without_blocking();
  OK(ncclCommInitAll(comm, 2, NULL));
  OK(ncclCommGetUniqueId(comm[1], &id));
  OK(ncclGroupStart());
  OK(ncclCommGrow(comm[0], 3, NULL, -1, &all[0], NULL));
  OK(ncclCommGrow(comm[1], 3, &id, -1, &all[1], NULL));
  OK(ncclCommGrow(NULL, 3, &id, 2, &all[2], NULL));
  OK(ncclGroupEnd());
  for (int c = 0; c < 3; c++) check_place(all[c], 3, c);
  OK(ncclCommGetUniqueId(all[0], &id));
  for (int c = 0; c < 4; c++) {
    ncclResult_t r = ncclCommGrow(c < 3 ? all[c] : NULL, 4, c < 3 ? NULL : &id, c < 3 ? -1 : c, &more[c], &config);
    ENSURE(r == ncclInProgress || r == ncclSuccess, "a grow without blocking gives %d", r);
  }
  const uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(20000));
  for (int c = 0; c < 4; c++) {
    ncclResult_t r = ncclInProgress;
    while (r == ncclInProgress && !rail_deadline_passed(deadline)) OK(ncclCommGetAsyncError(more[c], &r));
    ENSURE_INT(r, ncclSuccess);
    check_place(more[c], 4, c);
  }
  int32_t in[4], out[4];
  OK(ncclGroupStart());
  for (int c = 0; c < 4; c++) {
    in[c] = 1 << c;
    OK(ncclAllReduce(&in[c], &out[c], 1, ncclInt32, ncclSum, more[c], NULL));
  }
  OK(ncclGroupEnd());
  for (int c = 0; c < 4; c++) {
    OK(railCommWait(more[c]));
    ENSURE_INT(out[c], 0xf);
  }
  for (int c = 0; c < 4; c++) OK(ncclCommDestroy(more[c]));
  for (int c = 0; c < 3; c++) OK(ncclCommDestroy(all[c]));
  for (int c = 0; c < 2; c++) OK(ncclCommDestroy(comm[c]));
}
TEST(in_a_group_and_without_blocking) {
  job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), grouped, NULL);
}

/* ---- what is refused ---- */

static void wrong(const struct rank *rank, void *arg) {
  (void)arg;
  const int r = rank->rank;
  ncclComm_t comm = open_comm(rank), all = (ncclComm_t)(void *)&all;
  ncclUniqueId id = make_id(rank, 1), other = id;
  REFUSED(ncclCommGetUniqueId(NULL, &id), ncclInvalidArgument, "comm is NULL");
  REFUSED(ncclCommGetUniqueId(comm, NULL), ncclInvalidArgument, "uniqueId is NULL");
  REFUSED(ncclCommGrow(comm, 3, NULL, -1, NULL, NULL), ncclInvalidArgument, "newcomm");
  REFUSED(ncclCommGrow(comm, 2, NULL, -1, &all, NULL), ncclInvalidArgument, "nRanks is 2");
  REFUSED(ncclCommGrow(comm, -1, NULL, -1, &all, NULL), ncclInvalidArgument, "nRanks is -1");
  REFUSED(ncclCommGrow(comm, 3, NULL, r, &all, NULL), ncclInvalidArgument, "passes -1");
  REFUSED(ncclCommGrow(comm, 3, &other, -1, &all, NULL), ncclInvalidArgument, "not this rank's");
  REFUSED(ncclCommGrow(NULL, 3, NULL, 2, &all, NULL), ncclInvalidArgument, "uniqueId is NULL");
  REFUSED(ncclCommGrow(NULL, 3, &id, -1, &all, NULL), ncclInvalidArgument, "rank is -1");
  REFUSED(ncclCommGrow(NULL, 3, &id, 0, &all, NULL), ncclInvalidArgument, "rank is 0");
  REFUSED(ncclCommGrow(NULL, 3, &id, 3, &all, NULL), ncclInvalidArgument, "rank is 3");
  REFUSED(ncclCommGrow(comm, 3, NULL, -1, &all, NULL), ncclInvalidUsage, "no rank of the communicator has made an id");
  OK(ncclCommGetUniqueId(comm, &id));
  REFUSED(ncclCommGetUniqueId(comm, &other), ncclInvalidUsage, "one at a time");
  REFUSED(ncclCommGrow(comm, 3, &id, -1, &all, NULL), ncclInvalidUsage, "have both made an id");
  rank_barrier(rank);
  REFUSED(ncclCommGrow(comm, 3 + r, NULL, -1, &all, NULL), ncclInvalidUsage, "nRanks is");
  ENSURE(all == NULL, "a refused grow stored a communicator");
  check_members(comm, r, 3); /* none of this broke it */
  if (r == 0) OK(ncclCommGetUniqueId(comm, &id)); /* used by nobody: it ends with the communicator */
  close_comm(comm);
}
/* A group that is dropped takes the id with it: no rendezvous is left. */
static void dropped(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank), all = NULL;
  ncclUniqueId id;
  const int threads = rank_threads_settled(), fds = kit_fd_count();
  OK(ncclCommGetUniqueId(comm, &id));
  ENSURE(kit_thread_count() > threads, "an id has no rendezvous");
  OK(ncclGroupStart());
  OK(ncclCommGrow(comm, 3, &id, -1, &all, NULL));
  ENSURE_INT(ncclBroadcast(NULL, NULL, 1, ncclInt8, 5, comm, NULL), ncclInvalidArgument);
  ENSURE_INT(ncclGroupEnd(), ncclInvalidArgument);
  ENSURE(all == NULL, "a dropped group made a communicator");
  rank_back_to(fds, threads, "the dropped grow");
  OK(ncclCommGetUniqueId(comm, &id));
  close_comm(comm); /* this one ends with the communicator */
  rank_back_to(fds, threads, "the id");
}
TEST(no_rendezvous_is_left) { job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), dropped, NULL); }

TEST(wrong_calls_are_refused) { job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), wrong, NULL); }

static void fixed_address(const struct rank *rank, void *arg) {
  (void)arg;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&comm, 1, id, rank->rank));
  REFUSED(ncclCommGetUniqueId(comm, &id), ncclInvalidUsage, "NCCL_COMM_ID=127.0.0.1:");
  close_comm(comm);
}
TEST(one_address_for_all_is_refused) {
  job_run("NCCL_DEBUG=NONE NCCL_COMM_ID=127.0.0.1:29777", 1, kit_patience_ms(TIMEOUT_MS), fixed_address, NULL);
}

/* ---- who does not come ---- */

/* A new rank, or one of the parent: then the ranks that wait at the rendezvous get the error at once. */
static void late(const struct rank *rank, void *arg) {
  const bool old_one = *(const bool *)arg;
  const int r = rank->rank;
  ncclComm_t comm = open_old(rank, 2), all = NULL;
  const ncclUniqueId id = grow_id(rank, comm, 0);
  atomic_int *over = rank->shared; /* ranks with their error; it held the id */
  if (r == 0) atomic_store(over, 0);
  if (r == (old_one ? 1 : 3)) raise(SIGKILL);
  if (old_one && r == 0) usleep(500000); /* until the new ranks wait */
  const uint64_t t0 = rail_now_ns();
  ncclResult_t result = ncclCommGrow(comm, 4, comm ? NULL : &id, comm ? -1 : r, &all, NULL);
  ENSURE(result != ncclSuccess && !all, "a grow without a rank gives %d", result);
  const char *missing = old_one ? "rank 1" : "missing: 3";
  if (!old_one || r == 0)
    ENSURE(strstr(ncclGetLastError(NULL), missing), "the text is \"%s\"", ncclGetLastError(NULL));
  took_less(t0, old_one ? 5000 : 15000, "the error");
  atomic_fetch_add(over, 1);
  while (atomic_load(over) < 3) usleep(1000); /* no error comes from the end of the process that made the id */
  if (comm) OK(ncclCommAbort(comm));
}
TEST(a_rank_that_does_not_come_is_an_error) {
  for (int i = 0; i < 2; i++) {
    const bool old_one = i == 1;
    const char *env[] = {"NCCL_DEBUG=NONE RAIL_BOOTSTRAP_TIMEOUT=3", "NCCL_DEBUG=NONE RAIL_BOOTSTRAP_TIMEOUT=20"};
    struct job *job = job_start(env[i], 4, late, (void *)(uintptr_t)&old_one);
    job_end(job, kit_patience_ms(TIMEOUT_MS), old_one ? 1u << 1 : 1u << 3);
  }
}

/* Of the parent's two ranks one makes a wrong call, or none, and lives on: the other gets an error that names it. */
static void alone(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank), child = NULL;
  ncclUniqueId id = grow_id(rank, comm, 0);
  if (rank->rank == 1) {
    REFUSED(ncclCommGrow(comm, 3, NULL, 1, &child, NULL), ncclInvalidArgument, "passes -1");
  } else {
    const char *const waits = "has waited 1000 ms for rank 1 (";
    REFUSED(ncclCommGrow(comm, 3, &id, -1, &child, NULL), ncclRemoteError, "ncclCommGrow: ");
    ENSURE(strstr(ncclGetLastError(NULL), waits), "the text is \"%s\"", ncclGetLastError(NULL));
    REFUSED(ncclCommSplit(comm, 0, 0, &child, NULL), ncclRemoteError, "ncclCommSplit: ");
    ENSURE(strstr(ncclGetLastError(NULL), waits), "the text is \"%s\"", ncclGetLastError(NULL));
  }
  rank_barrier(rank);
  check_members(comm, rank->rank, 3);
  close_comm(comm);
}
TEST(a_rank_that_makes_no_call_is_an_error) {
  job_run("NCCL_DEBUG=NONE RAIL_BOOTSTRAP_TIMEOUT=1", 2, kit_patience_ms(TIMEOUT_MS), alone, NULL);
}

/* Two new ranks wait for old ones that will not come, and live on: the error is there at once, with the reason. */
enum why_not { DESTROYED, REVOKED, DISAGREED };
static void not_coming(const struct rank *rank, void *arg) {
  const enum why_not why = *(const enum why_not *)arg;
  const int r = rank->rank, old = rank->nranks - 2;
  ncclComm_t comm = open_old(rank, old), all = NULL;
  const ncclUniqueId id = grow_id(rank, comm, 0);
  const uint64_t t0 = rail_now_ns();
  if (r >= old) {
    REFUSED(ncclCommGrow(NULL, rank->nranks, &id, r, &all, NULL), ncclRemoteError, "rank 0, which made the unique id");
    took_less(t0, 5000, "the error");
  } else {
    usleep(300000); /* until the new ranks wait */
    if (why == REVOKED) {
      OK(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
      REFUSED(ncclCommGrow(comm, rank->nranks, NULL, -1, &all, NULL), ncclInvalidUsage, "revoked");
    } else if (why == DISAGREED) {
      REFUSED(ncclCommGrow(comm, rank->nranks + r, NULL, -1, &all, NULL), ncclInvalidUsage, "nRanks is");
    }
    OK(ncclCommDestroy(comm));
  }
  rank_barrier(rank);
}
TEST(new_ranks_learn_that_the_old_will_not_come) {
  for (enum why_not why = DESTROYED; why <= DISAGREED; why++)
    job_run("NCCL_DEBUG=NONE RAIL_BOOTSTRAP_TIMEOUT=20", why == DISAGREED ? 4 : 3, kit_patience_ms(TIMEOUT_MS),
            not_coming, &why);
}

/* The rendezvous ends without the old rank: that can get another id, and its end does not wait for the old one. */
static void expired(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_old(rank, 1), all = NULL;
  for (int round = 0; round < 2; round++) {
    ncclUniqueId id = grow_id(rank, comm, 0);
    if (!comm) REFUSED(ncclCommGrow(NULL, 2, &id, 1, &all, NULL), ncclRemoteError, "missing: 0");
    rank_barrier(rank);
  }
  const uint64_t t0 = rail_now_ns();
  if (comm) OK(ncclCommDestroy(comm));
  took_less(t0, 1000, "the end of a communicator");
}
TEST(an_id_can_follow_one_that_has_expired) {
  job_run("NCCL_DEBUG=NONE RAIL_BOOTSTRAP_TIMEOUT=1", 2, kit_patience_ms(TIMEOUT_MS), expired, NULL);
}

/* A new rank does not come: that holds up neither the end of the parent nor, then, that of the new communicator. */
static void parent_ends(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank), all = NULL;
  ncclConfig_t config = without_blocking();
  ncclUniqueId id;
  OK(ncclCommGetUniqueId(comm, &id));
  ENSURE_INT(ncclCommGrow(comm, 2, &id, -1, &all, &config), ncclInProgress);
  usleep(200000);
  const uint64_t t0 = rail_now_ns();
  OK(ncclCommAbort(comm));
  OK(ncclCommAbort(all));
  took_less(t0, 5000, "an abort of both");
}
TEST(the_parent_can_be_aborted) {
  job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), parent_ends, NULL);
}

/* Without memory for it, and with an id that must not stay. */
static void no_memory(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank), all = NULL;
  ncclConfig_t config = without_blocking();
  ncclUniqueId id;
  struct rlimit before, none;
  const int fds = kit_fd_count(), threads = kit_thread_count();
  OK(ncclCommGetUniqueId(comm, &id));
  ENSURE_INT(getrlimit(RLIMIT_AS, &before), 0);
  none = before;
  none.rlim_cur = 1;
  ENSURE_INT(setrlimit(RLIMIT_AS, &none), 0);
  ncclResult_t r = ncclCommGrow(comm, 2, &id, -1, &all, &config);
  ENSURE_INT(setrlimit(RLIMIT_AS, &before), 0);
  ENSURE_INT(r, ncclSystemError);
  rank_back_to(fds, threads, "a grow without memory");
  close_comm(comm);
}
TEST(without_memory_no_id_is_left) {
  if (kit_sanitized()) tap_skip_case("a sanitizer needs more address space than the case leaves");
  job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), no_memory, NULL);
}

/* While the new communicator waits for rank 1 of its parent, it is aborted. */
static void ended(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank), child = NULL;
  ncclConfig_t config = without_blocking();
  ncclUniqueId id = grow_id(rank, comm, 0);
  if (rank->rank == 0) {
    ENSURE_INT(ncclCommGrow(comm, 3, &id, -1, &child, &config), ncclInProgress);
    usleep(200000);
    const uint64_t t0 = rail_now_ns();
    OK(ncclCommAbort(child));
    took_less(t0, 5000, "an abort of the new communicator");
  }
  rank_barrier(rank);
  check_members(comm, rank->rank, 3);
  close_comm(comm);
}
TEST(the_new_communicator_can_be_aborted) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), ended, NULL);
}

/* Two children of one parent at once, in threads that may come in any order: two splits in a group, and a split and a
 * grow without blocking. */
static void siblings(const struct rank *rank, void *arg) {
  (void)arg;
  const int r = rank->rank;
  ncclComm_t comm = open_old(rank, 2);
  ncclConfig_t config = without_blocking();
  for (int i = 0; i < 30; i++) {
    ncclComm_t a = NULL, b = NULL;
    if (comm) {
      OK(ncclGroupStart());
      OK(ncclCommSplit(comm, 0, r, &a, NULL));
      OK(ncclCommSplit(comm, r, 0, &b, NULL));
      OK(ncclGroupEnd());
      check_place(a, 2, r);
      check_place(b, 1, 0);
      OK(ncclCommDestroy(a));
      OK(ncclCommDestroy(b));
    }
    const ncclUniqueId id = grow_id(rank, comm, 0);
    ncclResult_t split = ncclSuccess, grown = ncclInProgress;
    if (comm) {
      split = ncclCommSplit(comm, 0, r, &a, &config);
      ENSURE_INT(ncclCommGrow(comm, 3, NULL, -1, &b, &config), ncclInProgress);
    } else {
      grown = ncclCommGrow(NULL, 3, &id, 2, &b, NULL);
    }
    while (split == ncclInProgress) OK(ncclCommGetAsyncError(a, &split));
    while (grown == ncclInProgress) OK(ncclCommGetAsyncError(b, &grown));
    ENSURE(split == ncclSuccess && grown == ncclSuccess, "round %d: a split gave %d, a grow beside it %d: %s", i, split,
           grown, ncclGetLastError(b));
    check_place(b, 3, r);
    OK(ncclCommDestroy(b));
    if (comm) check_place(a, 2, r);
    if (comm) OK(ncclCommDestroy(a));
  }
  if (comm) close_comm(comm);
}
TEST(children_of_one_parent_at_once) {
  job_run("NCCL_DEBUG=NONE RAIL_BOOTSTRAP_TIMEOUT=30", 3, kit_patience_ms(TIMEOUT_MS), siblings, NULL);
}

/* Without a configuration of its own a rank of the parent has the parent's; a new one the defaults. */
static void inherit(const struct rank *rank, void *arg) {
  (void)arg;
  ncclConfig_t config = without_blocking();
  ncclUniqueId first = make_id(rank, 0);
  ncclComm_t comm = NULL, all = NULL;
  if (rank->rank == 0) {
    ncclResult_t r = ncclCommInitRankConfig(&comm, 1, first, 0, &config);
    while (r == ncclInProgress) OK(ncclCommGetAsyncError(comm, &r));
    ENSURE_INT(r, ncclSuccess);
  }
  const ncclUniqueId id = grow_id(rank, comm, 0);
  ncclResult_t r = ncclCommGrow(comm, 2, comm ? NULL : &id, comm ? -1 : 1, &all, NULL);
  ENSURE_INT(r, comm ? ncclInProgress : ncclSuccess);
  while (r == ncclInProgress) OK(ncclCommGetAsyncError(all, &r));
  check_members(all, rank->rank, 3);
  close_comm(all);
  if (comm) close_comm(comm);
}
TEST(ranks_of_the_parent_keep_its_configuration) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), inherit, NULL);
}

TEST_MAIN(TEST_CASE(ranks_join), TEST_CASE(it_grows_again), TEST_CASE(in_a_group_and_without_blocking),
          TEST_CASE(wrong_calls_are_refused), TEST_CASE(no_rendezvous_is_left),
          TEST_CASE(one_address_for_all_is_refused), TEST_CASE(a_rank_that_does_not_come_is_an_error),
          TEST_CASE(a_rank_that_makes_no_call_is_an_error), TEST_CASE(the_new_communicator_can_be_aborted),
          TEST_CASE(children_of_one_parent_at_once), TEST_CASE(new_ranks_learn_that_the_old_will_not_come),
          TEST_CASE(an_id_can_follow_one_that_has_expired), TEST_CASE(the_parent_can_be_aborted),
          TEST_CASE(without_memory_no_id_is_left),
          TEST_CASE(ranks_of_the_parent_keep_its_configuration))
