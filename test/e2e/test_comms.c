/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan tsan
 *
 * Proves: groups, several communicators in a process, splits and configurations do what NCCL promises; ranks whose
 * settings or calls differ get an error, which names what differs, instead of a wait for ever.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 30000

/* ---- groups ---- */

static void mixed_group(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  int n = rank->nranks, r = rank->rank, next = (r + 1) % n, prev = (r + n - 1) % n;
  enum { N = 5000 };
  static int32_t a[N], sum[N], b[N], c[N], from_prev[N], self[N];
  for (int round = 0; round < 5; round++) {
    for (int i = 0; i < N; i++) a[i] = r + i + round, b[i] = r == 1 ? i * 3 : -1;
    OK(ncclGroupStart());
    OK(ncclAllReduce(a, sum, N, ncclInt32, ncclSum, comm, NULL));
    OK(ncclSend(a, N, ncclInt32, next, comm, NULL));
    OK(ncclBroadcast(b, c, N, ncclInt32, 1 % n, comm, NULL));
    OK(ncclRecv(from_prev, N, ncclInt32, prev, comm, NULL));
    OK(ncclSend(b, N, ncclInt32, r, comm, NULL));
    OK(ncclRecv(self, N, ncclInt32, r, comm, NULL));
    OK(ncclGroupEnd());
    OK(railCommWait(comm));
    for (int i = 0; i < N; i++) {
      ENSURE_INT(sum[i], n * (i + round) + n * (n - 1) / 2);
      ENSURE_INT(from_prev[i], prev + i + round);
      ENSURE_INT(c[i], n == 1 ? b[i] : i * 3);
      ENSURE_INT(self[i], b[i]);
    }
  }
  close_comm(comm);
}
TEST(collectives_and_sends_in_one_group) {
  for (int n = 1; n <= 4; n++) job_run("", n, kit_patience_ms(TIMEOUT_MS), mixed_group, NULL);
  if (ranks_plugin()) job_run("NCCL_SHM_DISABLE=1", 3, kit_patience_ms(TIMEOUT_MS), mixed_group, NULL);
}

/* Many operations enqueued before one wait, results in order. */
static void many_enqueued(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  int64_t v = 1;
  for (int i = 0; i < 20; i++) OK(ncclAllReduce(&v, &v, 1, ncclInt64, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  int64_t want = 1;
  for (int i = 0; i < 20; i++) want *= rank->nranks;
  ENSURE_INT(v, want);
  int done = 0;
  OK(railCommQuery(comm, &done));
  ENSURE_INT(done, 1);
  close_comm(comm);
}
TEST(calls_run_in_the_order_they_were_made) { job_run("", 3, kit_patience_ms(TIMEOUT_MS), many_enqueued, NULL); }

/* Several matching sends between one pair in one group: first sent, first received. */
static void ordered_sends(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  enum { N = 12 };
  static char data[N][9000];
  OK(ncclGroupStart());
  for (int i = 0; i < N; i++) {
    size_t size = (size_t)(i % 3 == 0 ? 0 : i % 3 == 1 ? 9 : 9000);
    memset(data[i], rank->rank == 0 ? 'a' + i : 0, sizeof data[i]);
    if (rank->rank == 0)
      OK(ncclSend(data[i], size, ncclChar, 1, comm, NULL));
    else
      OK(ncclRecv(data[i], size, ncclChar, 0, comm, NULL));
  }
  OK(ncclGroupEnd());
  OK(railCommWait(comm));
  for (int i = 0; i < N; i++)
    if (i % 3)
      ENSURE(data[i][0] == 'a' + i && data[i][i % 3 == 1 ? 8 : 8999] == 'a' + i, "message %d is %c", i, data[i][0]);
  close_comm(comm);
}
TEST(sends_to_one_peer_keep_their_order) {
  job_run("", 2, kit_patience_ms(TIMEOUT_MS), ordered_sends, NULL);
  if (ranks_plugin()) job_run("NCCL_SHM_DISABLE=1", 2, kit_patience_ms(TIMEOUT_MS), ordered_sends, NULL);
}

static void nested(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  int32_t v = 1;
  int done = 0;
  OK(ncclGroupStart());
  OK(ncclGroupStart());
  OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL));
  OK(ncclGroupEnd());
  OK(railCommQuery(comm, &done));
  ENSURE_INT(done, 1); /* the inner end starts nothing */
  OK(railCommWait(comm));
  ENSURE_INT(v, 1);
  OK(ncclGroupEnd());
  OK(railCommWait(comm));
  ENSURE_INT(v, rank->nranks);
  OK(ncclGroupStart()); /* an empty group is fine */
  OK(ncclGroupEnd());
  close_comm(comm);
}
TEST(nested_groups) { job_run("", 2, kit_patience_ms(TIMEOUT_MS), nested, NULL); }

/* What arrives is not defined; a rank's own block stays, and nothing outside the buffer is touched. */
static void same_buffer(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  enum { BLOCK = 70000, N = 3 * BLOCK };
  int32_t *x = malloc((N + 1) * sizeof *x);
  for (int i = 0; i <= N; i++) x[i] = rank->rank * 1000000 + i;
  OK(ncclAlltoAll(x, x, BLOCK, ncclInt32, comm, NULL));
  OK(railCommWait(comm));
  for (int i = rank->rank * BLOCK; i < (rank->rank + 1) * BLOCK; i++) ENSURE_INT(x[i], rank->rank * 1000000 + i);
  ENSURE_INT(x[N], rank->rank * 1000000 + N);
  free(x);
  close_comm(comm);
}

TEST(alltoall_with_one_buffer) { job_run("", 3, kit_patience_ms(TIMEOUT_MS), same_buffer, NULL); }

static void group_errors(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  int32_t v = 1;
  REFUSED(ncclGroupEnd(), ncclInvalidUsage, "ncclGroupStart");
  OK(ncclGroupStart());
  OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL));
  REFUSED(ncclAllReduce(NULL, &v, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidArgument, "sendbuff");
  ENSURE_INT(ncclGroupEnd(), ncclInvalidArgument); /* all of it is dropped, on every rank alike */
  OK(railCommWait(comm));
  ENSURE_INT(v, 1);
  OK(ncclGroupStart()); /* and the next group is a new one */
  OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL));
  OK(ncclGroupEnd());
  OK(railCommWait(comm));
  ENSURE_INT(v, rank->nranks);
  close_comm(comm);
}
TEST(an_error_in_a_group_drops_the_group) { job_run("", 2, kit_patience_ms(TIMEOUT_MS), group_errors, NULL); }

/* ---- several communicators in one process ---- */

static atomic_int threads_started; /* in this process; a sanitizer's build does not count, it has this call itself */

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                                                          void *(*run)(void *), void *arg) {
  int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  atomic_fetch_add(&threads_started, 1);
  return real(thread, attr, run, arg);
}
#endif

static void init_all(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  enum { N = 4 };
  ncclComm_t comm[N];
  const int devices[N] = {3, 1, 0, 7};
  OK(ncclCommInitAll(comm, N, devices));
  static int32_t in[N][3000], out[N][3000], from[N];
  for (int c = 0; c < N; c++) {
    int v = -1;
    OK(ncclCommCount(comm[c], &v));
    ENSURE_INT(v, N);
    OK(ncclCommUserRank(comm[c], &v));
    ENSURE_INT(v, c);
    OK(ncclCommCuDevice(comm[c], &v));
    ENSURE_INT(v, devices[c]);
    for (int i = 0; i < 3000; i++) in[c][i] = c * 10 + i;
  }
  int connected = 0;
  for (int round = 0; round < 3; round++) {
    OK(ncclGroupStart());
    for (int c = 0; c < N; c++) OK(ncclAllReduce(in[c], out[c], 3000, ncclInt32, ncclSum, comm[c], NULL));
    for (int c = 0; c < N; c++) OK(ncclSend(&in[c][0], 1, ncclInt32, (c + 1) % N, comm[c], NULL));
    for (int c = 0; c < N; c++) OK(ncclRecv(&from[c], 1, ncclInt32, (c + N - 1) % N, comm[c], NULL));
    OK(ncclGroupEnd());
    for (int c = 0; c < N; c++) OK(railCommWait(comm[c]));
    for (int c = 0; c < N; c++) {
      for (int i = 0; i < 3000; i++) ENSURE_INT(out[c][i], 60 + 4 * i);
      ENSURE_INT(from[c], (c + N - 1) % N * 10);
    }
    /* Only while ranks wait for each other's connections each has a thread. */
    if (round == 0) connected = atomic_load(&threads_started);
    ENSURE(connected > 0 || kit_sanitized(), "no thread was counted");
    ENSURE_INT(atomic_load(&threads_started), connected);
  }
  for (int c = 0; c < N; c++) OK(ncclCommDestroy(comm[c]));
}
TEST(several_ranks_in_one_thread) {
  job_run("", 1, kit_patience_ms(TIMEOUT_MS), init_all, NULL);
  job_run("RAIL_NCHANNELS=3 NCCL_PROTO=Simple RAIL_PROXY=thread", 1, kit_patience_ms(TIMEOUT_MS), init_all, NULL);
  if (ranks_plugin()) job_run("NCCL_SHM_DISABLE=1 RAIL_PROXY=inline", 1, kit_patience_ms(TIMEOUT_MS), init_all, NULL);
}

/* Two communicators over the same ranks, used at once from two threads. */
struct user {
  ncclComm_t comm;
  int nranks;
};
static void use_comm(void *arg) {
  struct user *u = arg;
  for (int i = 0; i < 200; i++) {
    int32_t v[300];
    for (int k = 0; k < 300; k++) v[k] = k + i;
    OK(ncclAllReduce(v, v, 300, ncclInt32, ncclSum, u->comm, NULL));
    OK(railCommWait(u->comm));
    for (int k = 0; k < 300; k++) ENSURE_INT(v[k], (k + i) * u->nranks);
  }
}
static void two_threads(const struct rank *rank, void *arg) {
  (void)arg;
  struct user u[2];
  for (int c = 0; c < 2; c++) {
    ncclUniqueId id = make_id(rank, c);
    u[c].nranks = rank->nranks;
    OK(ncclCommInitRank(&u[c].comm, rank->nranks, id, rank->rank));
  }
  kit_run_threads(2, use_comm, u, sizeof u[0]);
  for (int c = 0; c < 2; c++) close_comm(u[c].comm);
}
TEST(two_communicators_in_two_threads) {
  job_run("", 2, kit_patience_ms(TIMEOUT_MS), two_threads, NULL);
  if (ranks_plugin()) job_run("NCCL_SHM_DISABLE=1", 2, kit_patience_ms(TIMEOUT_MS), two_threads, NULL);
}

/* ---- splitting ---- */

static void split_traffic(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t world = open_comm(rank), half = NULL, part = NULL, copy = NULL;
  int r = rank->rank, v = -1;
  OK(ncclCommSplit(world, r == 5 ? NCCL_SPLIT_NOCOLOR : r % 2, -r, &half, NULL));
  check_members(world, r, 0x3f); /* the parent works on */
  if (r == 5) {
    ENSURE(half == NULL, "no color, but a communicator");
  } else {
    OK(ncclCommCount(half, &v));
    ENSURE_INT(v, r % 2 ? 2 : 3);
    OK(ncclCommUserRank(half, &v));
    ENSURE_INT(v, r % 2 ? (r == 3 ? 0 : 1) : (4 - r) / 2);
    check_members(half, r, r % 2 ? 0x0a : 0x15);
    OK(ncclCommSplit(half, r == 4 ? NCCL_SPLIT_NOCOLOR : 0, 0, &part, NULL)); /* a split of a split */
    ENSURE((part == NULL) == (r == 4), "rank %d", r);
    if (part) check_members(part, r, r % 2 ? 0x0a : 0x05);
  }
  OK(ncclCommSplit(world, 1000000, 0, &copy, NULL)); /* everybody, equal keys: the old order */
  OK(ncclCommUserRank(copy, &v));
  ENSURE_INT(v, r);
  check_members(copy, r, 0x3f);
  check_members(world, r, 0x3f);
  close_comm(world); /* children outlive their parent */
  check_members(copy, r, 0x3f);
  if (part) check_members(part, r, r % 2 ? 0x0a : 0x05);
  if (half) close_comm(half);
  if (part) close_comm(part);
  close_comm(copy);
}
TEST(splitting) {
  job_run("", 6, kit_patience_ms(TIMEOUT_MS), split_traffic, NULL);
  if (ranks_plugin()) job_run("NCCL_HOSTID=host%h", 6, kit_patience_ms(TIMEOUT_MS), split_traffic, NULL);
}

/* All ranks in one thread: each split waits for the others, so they go into a group. */
static void split_grouped(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  enum { N = 4 };
  ncclComm_t comm[N], child[N];
  int32_t v[N], out[N];
  OK(ncclCommInitAll(comm, N, NULL));
  OK(ncclGroupStart());
  for (int c = 0; c < N; c++) OK(ncclCommSplit(comm[c], c == 3 ? NCCL_SPLIT_NOCOLOR : 7, c, &child[c], NULL));
  OK(ncclGroupEnd());
  ENSURE(child[3] == NULL, "no color, but a communicator");
  OK(ncclGroupStart());
  for (int c = 0; c < 3; c++) {
    v[c] = 1 << c;
    OK(ncclAllReduce(&v[c], &out[c], 1, ncclInt32, ncclSum, child[c], NULL));
  }
  OK(ncclGroupEnd());
  for (int c = 0; c < 3; c++) {
    OK(railCommWait(child[c]));
    ENSURE_INT(out[c], 7);
  }
  for (int c = 0; c < N; c++) {
    if (child[c]) OK(ncclCommDestroy(child[c]));
    OK(ncclCommDestroy(comm[c]));
  }
}
TEST(splits_in_a_group) { job_run("", 1, kit_patience_ms(TIMEOUT_MS), split_grouped, NULL); }

/* ---- configurations ---- */

static ncclResult_t poll_until_made(ncclComm_t comm) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(20000));
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress && !rail_deadline_passed(deadline)) {
    OK(ncclCommGetAsyncError(comm, &state));
    usleep(500);
  }
  return state;
}

static void nonblocking(const struct rank *rank, void *arg) {
  (void)arg;
  ncclConfig_t config = without_blocking();
  config.commName = "a name";
  ncclComm_t comm = NULL;
  ncclUniqueId id = make_id(rank, 0);
  if (rank->rank == 0) usleep(100000); /* so that the others are seen in progress */
  ENSURE_INT(ncclCommInitRankConfig(&comm, rank->nranks, id, rank->rank, &config), ncclInProgress);
  if (rank->rank != 0) {
    int32_t v = 0;
    ncclResult_t state;
    OK(ncclCommGetAsyncError(comm, &state));
    if (state == ncclInProgress) {
      ncclResult_t r = ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL);
      ENSURE(r == ncclInvalidUsage || r == ncclSuccess, "a call during the init gives %d", r);
      ENSURE(r != ncclSuccess, "cannot tell: made in the meantime");
    }
  }
  ENSURE_INT(poll_until_made(comm), ncclSuccess);
  check_members(comm, rank->rank, (1 << rank->nranks) - 1);
  ncclComm_t child = NULL;
  ncclResult_t r = ncclCommSplit(comm, 0, -rank->rank, &child, &config);
  ENSURE(r == ncclInProgress || r == ncclSuccess, "a split without blocking gives %d", r);
  ENSURE_INT(poll_until_made(child), ncclSuccess);
  check_members(child, rank->rank, (1 << rank->nranks) - 1);
  close_comm(child);
  close_comm(comm);
}
TEST(nonblocking_init) { job_run("", 3, kit_patience_ms(TIMEOUT_MS), nonblocking, NULL); }

/* Nobody else comes: abort ends the init at once, long before the bootstrap's deadline. */
static void abort_during_init(const struct rank *rank, void *arg) {
  (void)arg;
  ncclConfig_t config = without_blocking();
  ncclUniqueId id = make_id(rank, 0);
  for (int i = 0; i < 5; i++) {
    ncclComm_t comm = NULL;
    ENSURE_INT(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
    usleep((useconds_t)i * 20000);
    ncclResult_t state = ncclSuccess;
    OK(ncclCommGetAsyncError(comm, &state));
    ENSURE_INT(state, ncclInProgress);
    ENSURE_INT(railCommWait(comm), ncclInProgress);
    uint64_t t0 = rail_now_ns();
    OK(ncclCommAbort(comm));
    ENSURE(rail_now_ns() - t0 < kit_patience_ms(5000) * 1000000, "abort took %llu ms",
           (unsigned long long)(rail_now_ns() - t0) / 1000000);
    OK(ncclGetUniqueId(&id));
  }
}
TEST(abort_ends_an_init_under_way) {
  job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), abort_during_init, NULL);
}

static void configs(const struct rank *rank, void *arg) {
  (void)arg;
  ncclUniqueId id = make_id(rank, 0);
  ncclComm_t comm = NULL;
  ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  c.magic = 1;
  REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &c), ncclInvalidArgument, "magic");
  c = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  c.size = 8;
  REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &c), ncclInvalidArgument, "size");
  c = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  c.blocking = 2;
  REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &c), ncclInvalidArgument, "blocking");
  c = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  c.minCTAs = 0;
  REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &c), ncclInvalidArgument, "minCTAs");
  c = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  c.maxCTAs = -3;
  REFUSED(ncclCommInitRankConfig(&comm, 1, id, 0, &c), ncclInvalidArgument, "maxCTAs");
  /* The struct of NCCL 2.14 ends behind `blocking`; what lies there is not ours. */
  c = (ncclConfig_t)NCCL_CONFIG_INITIALIZER;
  c.size = offsetof(ncclConfig_t, cgaClusterSize);
  c.minCTAs = -77;
  OK(ncclCommInitRankConfig(&comm, 1, id, 0, &c));
  check_members(comm, 0, 1);
  close_comm(comm);
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRankScalable(&comm, 1, 0, 1, &id, NULL));
  check_members(comm, 0, 1);
  close_comm(comm);
  REFUSED(ncclCommInitRankScalable(&comm, 1, 0, 0, &id, NULL), ncclInvalidArgument, "ids");
}
TEST(configurations) { job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), configs, NULL); }

/* ---- settings that differ ---- */

/* Some ranks have LL, others Simple; a network plugin, where there is one, is not what they fail at. */
static void protocols(const struct rank *rank, void *arg) {
  (void)arg;
  setenv("NCCL_PROTO", rank->rank == rank->nranks - 1 ? "LL" : "Simple", 1);
  int fds = kit_fd_count(), threads = kit_thread_count();
  ncclUniqueId id = make_id(rank, 0);
  ncclComm_t comm = NULL;
  REFUSED(ncclCommInitRank(&comm, rank->nranks, id, rank->rank), ncclInvalidUsage, "NCCL_PROTO");
  rank_back_to(fds, threads, "a communicator that could not be made");
  char last[32];
  snprintf(last, sizeof last, "rank %d", rank->nranks - 1);
  ENSURE(strstr(ncclGetLastError(NULL), last), "\"%s\" does not name %s", ncclGetLastError(NULL), last);
  ENSURE(comm == NULL, "a communicator in spite of that");
}
TEST(protocols_that_differ_are_refused_on_every_rank) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), protocols, NULL);
  job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 5, kit_patience_ms(TIMEOUT_MS), protocols, NULL);
}

/* ---- calls that differ ---- */

struct differ {
  size_t count[2];
  bool point;
};

static void differ(const struct rank *rank, void *arg) {
  const struct differ *d = arg;
  ncclComm_t comm = open_comm(rank);
  size_t n = d->count[rank->rank], most = d->count[0] > d->count[1] ? d->count[0] : d->count[1];
  float *a = calloc(most + 1, 4), *b = calloc(most + 1, 4);
  ncclResult_t r;
  if (!d->point)
    r = ncclAllReduce(a, b, n, ncclFloat, ncclSum, comm, NULL);
  else if (rank->rank == 0)
    r = ncclSend(a, n, ncclFloat, 1, comm, NULL);
  else
    r = ncclRecv(b, n, ncclFloat, 0, comm, NULL);
  if (r == ncclSuccess) r = railCommWait(comm);
  if (d->point && rank->rank == 0 && r == ncclSuccess) { /* the sender may be through before the receiver looks */
    float v;
    r = ncclRecv(&v, 1, ncclFloat, 1, comm, NULL);
    if (r == ncclSuccess) r = railCommWait(comm);
  }
  ((ncclResult_t *)rank->shared)[rank->rank] = r;
  rank_barrier(rank);
  ncclResult_t *all = rank->shared;
  ENSURE(all[0] != ncclSuccess && all[1] != ncclSuccess, "results are %d and %d", all[0], all[1]);
  ENSURE(all[0] == ncclInvalidUsage || all[1] == ncclInvalidUsage, "results are %d and %d", all[0], all[1]);
  ENSURE(ncclGetLastError(comm)[0], "no text");
  ncclResult_t async = ncclSuccess;
  OK(ncclCommGetAsyncError(comm, &async));
  ENSURE_INT(async, r);
  ENSURE_INT(ncclCommGetAsyncError(comm, NULL), ncclInvalidArgument); /* refused for another reason */
  ENSURE(strstr(ncclGetLastError(comm), "asyncError is NULL"), "\"%s\"", ncclGetLastError(comm));
  ENSURE_INT(ncclAllReduce(a, b, 1, ncclFloat, ncclSum, comm, NULL), r); /* it stays so */
  ENSURE(!strstr(ncclGetLastError(comm), "asyncError is NULL"), "\"%s\"", ncclGetLastError(comm));
  free(a);
  free(b);
  OK(ncclCommDestroy(comm));
}

static void differ_over(const char *transport) {
  static const struct differ cases[] = {{{10, 20}, false},      {{20, 10}, false},     {{100, 100000}, false},
                                        {{100000, 100}, false}, {{10, 20}, true},      {{20, 10}, true},
                                        {{0, 5}, true},         {{5, 0}, true},        {{2048, 4096}, false},
                                        {{4096, 2048}, true},   {{3000, 70000}, true}, {{70000, 3000}, true}};
  static const char *const protos[] = {"", "NCCL_PROTO=LL", "NCCL_PROTO=Simple"};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (size_t p = 0; p < 3; p++) {
      char env[200];
      /* The steps of 2048 are the first ones of 4096: over a network nothing tells them apart. */
      if (*transport && i >= 8) continue;
      snprintf(env, sizeof env, "NCCL_DEBUG=NONE %s %s", transport, protos[p]);
      printf("# %s: counts %zu and %zu, %s\n", env, cases[i].count[0], cases[i].count[1],
             cases[i].point ? "send" : "all-reduce");
      job_run(env, 2, kit_patience_ms(10000), differ, (void *)(uintptr_t)&cases[i]);
    }
}
TEST(counts_that_differ_end_with_an_error) { differ_over(""); }
TEST(counts_that_differ_end_with_an_error_net) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
  differ_over("NCCL_SHM_DISABLE=1");
}

TEST_MAIN(TEST_CASE(collectives_and_sends_in_one_group), TEST_CASE(calls_run_in_the_order_they_were_made),
          TEST_CASE(sends_to_one_peer_keep_their_order), TEST_CASE(alltoall_with_one_buffer), TEST_CASE(nested_groups),
          TEST_CASE(an_error_in_a_group_drops_the_group), TEST_CASE(several_ranks_in_one_thread),
          TEST_CASE(two_communicators_in_two_threads), TEST_CASE(splitting), TEST_CASE(splits_in_a_group),
          TEST_CASE(nonblocking_init), TEST_CASE(abort_ends_an_init_under_way), TEST_CASE(configurations),
          TEST_CASE(protocols_that_differ_are_refused_on_every_rank),
          TEST_CASE(counts_that_differ_end_with_an_error), TEST_CASE(counts_that_differ_end_with_an_error_net))
