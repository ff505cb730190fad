/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 * TEST-SAN: asan tsan
 *
 * Proves: when a rank is killed, stopped or aborts, at any moment, every other rank's calls end with an error within
 * seconds, and what they then take down leaves no descriptor and no thread behind. A rank that only pauses
 * harms nobody.
 */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "rail/railyard.h"
#include "test/harness/program.h"
#include "test/harness/ranks.h"

#define NOTICE_MS 5000 /* from a rank's end to the last error of the others */

#define OK(call)                                                                                           \
  do {                                                                                                     \
    ncclResult_t ok_r_ = (call);                                                                           \
    ENSURE(ok_r_ == ncclSuccess, "%s: %s (%s)", #call, ncclGetErrorString(ok_r_), ncclGetLastError(NULL)); \
  } while (0)

enum moment { IN_INIT, IN_CONNECT, IN_COLLECTIVE, IN_IDLE, NMOMENTS };
static const char *const moment_names[] = {"during the init", "while connecting", "in a collective", "while idle"};

/* What parent and ranks share. */
struct scene {
  atomic_int ready;            /* ranks that have come to the moment in question */
  _Atomic uint64_t gone_at_ns; /* when the victim was killed, stopped or aborted; 0 not yet */
  atomic_int stop;             /* no failure is to come: end in order */
  atomic_int noticed;
};

struct act {
  enum moment moment;
  int victim;
  size_t count;
  bool abort_after;
};

/* ---- in a rank ---- */

static void since_the_end(const struct scene *s, const char *what) {
  uint64_t gone = atomic_load(&s->gone_at_ns), now = rail_now_ns();
  ENSURE(gone, "%s failed before anybody was killed: %s", what, ncclGetLastError(NULL));
  ENSURE(now < gone + kit_patience_ms(NOTICE_MS) * 1000000, "%s noticed the end only after %llu ms", what,
         (unsigned long long)(now - gone) / 1000000);
}

/* Collectives until one fails; false: told to stop. */
static bool work_until_error(const struct rank *rank, const struct act *a, ncclComm_t comm, struct scene *s) {
  float *data = calloc(a->count + 1, sizeof *data);
  ENSURE(data, "out of memory");
  ncclResult_t r = ncclSuccess;
  int32_t stop = 0;
  while (r == ncclSuccess && !stop) {
    if (a->moment == IN_IDLE) {
      usleep(1000);
      ENSURE(ncclCommGetAsyncError(comm, &r) == ncclSuccess, "GetAsyncError fails");
      uint64_t gone = atomic_load(&s->gone_at_ns);
      if (gone && rail_now_ns() > gone + kit_patience_ms(NOTICE_MS) * 1000000) since_the_end(s, "an idle rank");
      continue;
    }
    if (rank->rank == 0) stop = atomic_load(&s->stop);
    r = ncclAllReduce(data, data, a->count, ncclFloat, ncclMax, comm, NULL);
    if (r == ncclSuccess) r = ncclBroadcast(&stop, &stop, 1, ncclInt32, 0, comm, NULL);
    const ncclResult_t waited = railCommWait(comm); /* after an error too: the call before it may use `data` yet */
    if (r == ncclSuccess) r = waited;
  }
  free(data);
  return r != ncclSuccess;
}

static void survive(const struct rank *rank, void *arg) {
  const struct act *a = arg;
  struct scene *s = rank->shared;
  int fds = kit_fd_count(), threads = kit_thread_count();
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  if (rank->rank == 0) OK(ncclGetUniqueId(&id));
  rank_broadcast(rank, 0, &id, sizeof id);
  if (a->moment == IN_INIT) atomic_fetch_add(&s->ready, 1);
  ncclResult_t r = ncclCommInitRank(&comm, rank->nranks, id, rank->rank);
  if (r != ncclSuccess) {
    since_the_end(s, "ncclCommInitRank");
    ENSURE(comm == NULL, "a failed init stored a communicator");
    atomic_fetch_add(&s->noticed, 1);
    /* Rank 0 has the rendezvous, which ends by itself. */
    if (rank->rank != 0) rank_back_to(fds, threads, "the communicator");
    return;
  }
  if (a->moment == IN_IDLE) { /* connected, then idle */
    int32_t v = 1;
    r = ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL);
    if (r == ncclSuccess) r = railCommWait(comm);
    ENSURE(r == ncclSuccess, "before the end: %s", ncclGetLastError(comm));
  }
  if (a->moment != IN_INIT) atomic_fetch_add(&s->ready, 1);
  if (work_until_error(rank, a, comm, s)) {
    since_the_end(s, "a rank");
    ENSURE(ncclGetLastError(comm)[0], "an error without a text");
    ncclResult_t async = ncclSuccess;
    OK(ncclCommGetAsyncError(comm, &async));
    ENSURE(async != ncclSuccess && async != ncclInProgress, "the communicator's state is %d", (int)async);
    atomic_fetch_add(&s->noticed, 1);
  }
  if (a->abort_after)
    OK(ncclCommAbort(comm));
  else
    OK(ncclCommDestroy(comm));
  rank_back_to(fds, threads, "the communicator");
}

/* ---- in the parent ---- */

static void wait_ready(struct job *job, int n) {
  struct scene *s = job_shared(job);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(30000));
  while (atomic_load(&s->ready) < n && !rail_deadline_passed(deadline)) usleep(100);
}

/* Without counters and emulated devices: those of a killed process lie there until the next one starts. */
static int shm_files(void) {
  int n = 0;
  DIR *d = opendir("/dev/shm");
  for (struct dirent *e; d && (e = readdir(d));)
    n += strncmp(e->d_name, "rail", 4) == 0 && strncmp(e->d_name, "rail-stat.", 10) != 0 &&
         strncmp(e->d_name, "rail-emu.", 9) != 0;
  if (d) closedir(d);
  return n;
}

static void kill_one(const char *env, struct act *a, uint32_t after_us) {
  char with[300];
  int files = shm_files();
  snprintf(with, sizeof with, "NCCL_DEBUG=NONE RAIL_BOOTSTRAP_TIMEOUT=3 %s", env);
  struct job *job = job_start(with, 4, survive, a);
  struct scene *s = job_shared(job);
  wait_ready(job, 4);
  usleep(after_us);
  atomic_store(&s->gone_at_ns, rail_now_ns());
  kill(job_pid(job, a->victim), SIGKILL);
  job_end(job, kit_patience_ms(20000), 1u << a->victim);
  ENSURE_INT(shm_files(), files);
}

static void rounds(const char *env, int n) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  n = kit_scaled(n);
  for (int i = 0; i < n; i++) {
    struct act a = {.moment = (enum moment)(i % NMOMENTS),
                    .victim = (int)kit_rng_below(&rng, 4),
                    .abort_after = kit_rng_below(&rng, 2)};
    a.count = a.moment == IN_COLLECTIVE && kit_rng_below(&rng, 2) ? 1u << 20 : 1 + kit_rng_below(&rng, 3000);
    uint32_t after = kit_rng_below(&rng, a.moment == IN_COLLECTIVE ? 100000 : a.moment == IN_IDLE ? 20000 : 6000);
    printf("# round %d: rank %d %s, %u us later, count %zu, then %s\n", i, a.victim, moment_names[a.moment], after,
           a.count, a.abort_after ? "abort" : "destroy");
    kill_one(env, &a, after);
  }
}

static void need_plugin(void) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
}

TEST(killed_over_shared_memory) { rounds("", 24); }
TEST(killed_over_the_network) {
  need_plugin();
  rounds("NCCL_SHM_DISABLE=1", 16);
}
TEST(killed_over_both) {
  need_plugin();
  rounds("NCCL_HOSTID=host%h RAIL_PROXY=thread", 12);
}

/* Who dies is a parent, a child or both of others, and its own tree's other half goes on for a while. */
TEST(killed_in_trees) {
  rounds("NCCL_ALGO=ring;allreduce:tree", 8);
  if (ranks_plugin()) rounds("NCCL_ALGO=ring;allreduce:tree NCCL_SHM_DISABLE=1", 6);
}

/* A stopped rank is silent, not gone: the heartbeats tell. */
static void stopped(const char *env) {
  for (int moment = IN_COLLECTIVE; moment <= IN_IDLE; moment++) {
    struct act a = {.moment = (enum moment)moment, .victim = moment == IN_IDLE ? 0 : 2, .count = 1000};
    char with[300];
    snprintf(with, sizeof with, "NCCL_DEBUG=NONE RAIL_HEARTBEAT=200ms RAIL_HEARTBEAT_TIMEOUT=1s %s", env);
    struct job *job = job_start(with, 4, survive, &a);
    struct scene *s = job_shared(job);
    wait_ready(job, 4);
    usleep(50000);
    atomic_store(&s->gone_at_ns, rail_now_ns());
    kill(job_pid(job, a.victim), SIGSTOP);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(3000));
    while (atomic_load(&s->noticed) < 3 && !rail_deadline_passed(deadline)) usleep(1000);
    int noticed = atomic_load(&s->noticed);
    kill(job_pid(job, a.victim), SIGKILL);
    job_end(job, kit_patience_ms(20000), 1u << a.victim);
    ENSURE(noticed == 3, "%s: %d of 3 ranks noticed a stopped one within 3 s", moment_names[moment], noticed);
  }
}
TEST(stopped_over_shared_memory) { stopped(""); }
TEST(stopped_over_the_network) {
  need_plugin();
  stopped("NCCL_SHM_DISABLE=1");
}

/* Stopped for less than the limit: nothing happens but the delay. */
static void paused(const char *env) {
  struct act a = {.moment = IN_COLLECTIVE, .victim = 1, .count = 1000};
  char with[300];
  snprintf(with, sizeof with, "RAIL_HEARTBEAT=200ms RAIL_HEARTBEAT_TIMEOUT=10s %s", env);
  struct job *job = job_start(with, 4, survive, &a);
  struct scene *s = job_shared(job);
  wait_ready(job, 4);
  for (int i = 0; i < 3; i++) {
    kill(job_pid(job, (a.victim + i) % 4), SIGSTOP);
    usleep(400000);
    kill(job_pid(job, (a.victim + i) % 4), SIGCONT);
    usleep(50000);
  }
  atomic_store(&s->stop, 1);
  job_end(job, kit_patience_ms(20000), 0);
}
TEST(a_pause_is_no_failure) {
  paused("");
  if (ranks_plugin()) paused("NCCL_SHM_DISABLE=1");
}

/* ---- abort ---- */

static void one_aborts(const struct rank *rank, void *arg) {
  struct scene *s = rank->shared;
  struct act a = {.moment = IN_COLLECTIVE, .count = *(size_t *)arg};
  int fds = kit_fd_count(), threads = kit_thread_count();
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  if (rank->rank == 0) OK(ncclGetUniqueId(&id));
  rank_broadcast(rank, 0, &id, sizeof id);
  OK(ncclCommInitRank(&comm, rank->nranks, id, rank->rank));
  if (rank->rank == 1) {
    float *v = calloc(a.count, sizeof *v);
    int32_t stop = 0;
    for (int i = 0; i < 5; i++) { /* in step with work_until_error */
      OK(ncclAllReduce(v, v, a.count, ncclFloat, ncclMax, comm, NULL));
      OK(ncclBroadcast(&stop, &stop, 1, ncclInt32, 0, comm, NULL));
      OK(railCommWait(comm));
    }
    free(v);
    atomic_store(&s->gone_at_ns, rail_now_ns());
    OK(ncclCommAbort(comm));
  } else {
    ENSURE(work_until_error(rank, &a, comm, s), "the loop ended without an error");
    since_the_end(s, "a rank");
    ncclResult_t async = ncclSuccess;
    OK(ncclCommGetAsyncError(comm, &async));
    ENSURE_INT(async, ncclRemoteError);
    ENSURE(strstr(ncclGetLastError(comm), "rank 1"), "\"%s\" does not say who", ncclGetLastError(comm));
    OK(ncclCommDestroy(comm));
  }
  rank_back_to(fds, threads, "the communicator");
}
TEST(an_abort_ends_the_others) {
  size_t counts[] = {10, 1 << 20};
  for (int i = 0; i < 2; i++) {
    job_run("NCCL_DEBUG=NONE", 4, kit_patience_ms(20000), one_aborts, &counts[i]);
    job_run("NCCL_DEBUG=NONE NCCL_ALGO=ring;allreduce:tree", 4, kit_patience_ms(20000), one_aborts, &counts[i]);
    if (ranks_plugin())
      job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 4, kit_patience_ms(20000), one_aborts, &counts[i]);
  }
}

/* The first thread sits in a call whose partner never comes; the second aborts. */
enum where { IN_WAIT, IN_CALL, IN_FINALIZE, IN_SPLIT, NWHERE };
struct sitter {
  ncclComm_t comm;
  enum where where;
  atomic_bool inside;
  ncclResult_t result;
};

static void *sit(void *arg) {
  struct sitter *s = arg;
  static float v[4096];
  ncclComm_t child = NULL;
  atomic_store(&s->inside, true);
  switch (s->where) {
    case IN_WAIT:
      s->result = ncclAllReduce(v, v, 4096, ncclFloat, ncclSum, s->comm, NULL);
      if (s->result == ncclSuccess) s->result = railCommWait(s->comm);
      break;
    case IN_CALL: s->result = ncclSend(v, 4096, ncclFloat, 1, s->comm, NULL); break;
    case IN_FINALIZE:
      s->result = ncclAllReduce(v, v, 4096, ncclFloat, ncclSum, s->comm, NULL);
      if (s->result == ncclSuccess) s->result = ncclCommFinalize(s->comm);
      break;
    default: s->result = ncclCommSplit(s->comm, 0, 0, &child, NULL); break;
  }
  return NULL;
}

static void abort_beside(const struct rank *rank, void *arg) {
  int fds = kit_fd_count(), threads = kit_thread_count();
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  if (rank->rank == 0) OK(ncclGetUniqueId(&id));
  rank_broadcast(rank, 0, &id, sizeof id);
  OK(ncclCommInitRank(&comm, rank->nranks, id, rank->rank));
  float v = 1;
  struct sitter s = {.comm = comm, .where = *(enum where *)arg};
  if (s.where == IN_WAIT || s.where == IN_FINALIZE) { /* connected already, so that the all-reduce does not wait */
    OK(ncclAllReduce(&v, &v, 1, ncclFloat, ncclSum, comm, NULL));
    OK(railCommWait(comm));
  }
  if (rank->rank == 1) {
    ncclResult_t async = ncclSuccess;
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
    while (async == ncclSuccess && !rail_deadline_passed(deadline)) {
      usleep(1000);
      OK(ncclCommGetAsyncError(comm, &async));
    }
    ENSURE_INT(async, ncclRemoteError);
    OK(ncclCommDestroy(comm));
    return;
  }
  pthread_t thread;
  ENSURE(pthread_create(&thread, NULL, sit, &s) == 0, "no thread");
  while (!atomic_load(&s.inside)) usleep(100);
  usleep(50000);
  uint64_t t0 = rail_now_ns();
  OK(ncclCommAbort(comm));
  pthread_join(thread, NULL);
  uint64_t took = (rail_now_ns() - t0) / 1000000;
  ENSURE(took < kit_patience_ms(3000), "the abort took %llu ms", (unsigned long long)took);
  ENSURE(s.result == ncclRemoteError || s.result == ncclInvalidArgument, "the call that was aborted gives %d",
         (int)s.result);
  rank_back_to(fds, threads, "the communicator");
}
TEST(abort_from_another_thread) {
  for (int where = 0; where < NWHERE; where++) {
    enum where w = (enum where)where;
    printf("# case %d\n", where);
    job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(20000), abort_beside, &w);
    if (ranks_plugin())
      job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1 RAIL_PROXY=inline", 2, kit_patience_ms(20000), abort_beside, &w);
    if (ranks_plugin())
      job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1 RAIL_PROXY=thread", 2, kit_patience_ms(20000), abort_beside, &w);
  }
}

/* A rank that ends in order while another waits for it in a collective: that is an error too, not a wait for ever. */
static void leaves(const struct rank *rank, void *arg) {
  (void)arg;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  if (rank->rank == 0) OK(ncclGetUniqueId(&id));
  rank_broadcast(rank, 0, &id, sizeof id);
  OK(ncclCommInitRank(&comm, rank->nranks, id, rank->rank));
  float v = 1;
  OK(ncclAllReduce(&v, &v, 1, ncclFloat, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  rank_barrier(rank);
  if (rank->rank != 1) {
    ncclResult_t r = ncclAllReduce(&v, &v, 1, ncclFloat, ncclSum, comm, NULL);
    if (r == ncclSuccess) r = railCommWait(comm);
    ENSURE(r != ncclSuccess, "an all-reduce without rank 1 succeeded");
  }
  OK(ncclCommDestroy(comm));
}
TEST(a_rank_that_leaves_is_not_waited_for) {
  job_run("NCCL_DEBUG=NONE", 3, kit_patience_ms(10000), leaves, NULL);
  if (ranks_plugin()) job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 3, kit_patience_ms(10000), leaves, NULL);
}

TEST_MAIN(TEST_CASE(killed_over_shared_memory), TEST_CASE(killed_over_the_network), TEST_CASE(killed_over_both),
          TEST_CASE(killed_in_trees),
          TEST_CASE(stopped_over_shared_memory), TEST_CASE(stopped_over_the_network), TEST_CASE(a_pause_is_no_failure),
          TEST_CASE(an_abort_ends_the_others), TEST_CASE(abort_from_another_thread),
          TEST_CASE(a_rank_that_leaves_is_not_waited_for))
