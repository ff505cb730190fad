/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 * TEST-SAN: asan tsan
 *
 * Proves: sends and receives of a group that are more than a small device runs at once share its blocks: an all-to-all,
 * and different numbers of messages; over processes and over ranks of one process; in a graph; with ranks that make
 * their calls one by one. So do any number of collectives. Ranks that share a device launch no more than its wide
 * blocks.
 */
#include "test/device/gpu/calls.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000
#define N 700 /* numbers of a message */
#define MOST_RANKS 6
#define MESSAGES 2 /* to one rank, at most */
#define BLOCK (N * MESSAGES)

struct rig {
  ncclComm_t comm;
  int rank, nranks;
  void *stream;
  int32_t *send, *recv, host[MOST_RANKS * BLOCK];
};

static void rig_open(struct rig *g, ncclComm_t comm) {
  g->comm = comm;
  OK(ncclCommUserRank(comm, &g->rank));
  OK(ncclCommCount(comm, &g->nranks));
  g->stream = gpu_stream();
  g->send = gpu_alloc(sizeof g->host);
  g->recv = gpu_alloc(sizeof g->host);
}

static void rig_close(struct rig *g) {
  close_comm(g->comm);
  gpu_free(g->send);
  gpu_free(g->recv);
  GPU(gpu.cuStreamDestroy_v2(g->stream));
}

static int32_t number(int round, int from, int to, int i) { return ((round * 8 + from) * 8 + to) * 10000 + i; }

static void fill(struct rig *g, int round) {
  for (int to = 0; to < g->nranks; to++)
    for (int i = 0; i < BLOCK; i++) g->host[to * BLOCK + i] = number(round, g->rank, to, i);
  gpu_put(g->send, g->host, sizeof g->host);
  memset(g->host, 0, sizeof g->host);
  gpu_put(g->recv, g->host, sizeof g->host);
}

/* Of each block the first `messages` messages have come. */
static void check(struct rig *g, int round, int from, int messages) {
  gpu_get(g->host, g->recv, sizeof g->host);
  for (int i = 0; i < BLOCK; i++) {
    int32_t want = i < messages * N ? number(round, from, g->rank, i) : 0, got = g->host[from * BLOCK + i];
    ENSURE(got == want, "round %d, from %d to %d: number %d is %d instead of %d", round, from, g->rank, i, got, want);
  }
}

static void send(struct rig *g, int to, int message) {
  OK(ncclSend(g->send + to * BLOCK + message * N, N, ncclInt32, to, g->comm, g->stream));
}

static void receive(struct rig *g, int from, int message) {
  OK(ncclRecv(g->recv + from * BLOCK + message * N, N, ncclInt32, from, g->comm, g->stream));
}

/* ---- the calls ---- */

static void all_to_all(struct rig *g) { OK(ncclAlltoAll(g->send, g->recv, BLOCK, ncclInt32, g->comm, g->stream)); }

static int messages_between(int a, int b) { return 1 + (a + b) % 2; }

/* Those from high ranks first. */
static void uneven(struct rig *g) {
  OK(ncclGroupStart());
  for (int peer = g->nranks - 1; peer >= 0; peer--)
    for (int m = 0; m < messages_between(g->rank, peer); m++) {
      receive(g, peer, m);
      send(g, peer, m);
    }
  OK(ncclGroupEnd());
}

/* Rank 0 with all others in a group; these take first and give then. */
static void star(struct rig *g) {
  if (g->rank == 0) OK(ncclGroupStart());
  for (int peer = 1; peer < g->nranks && g->rank == 0; peer++) {
    send(g, peer, 0);
    receive(g, peer, 0);
  }
  if (g->rank == 0) OK(ncclGroupEnd());
  if (g->rank == 0) return;
  receive(g, 0, 0);
  send(g, 0, 0);
}

static void check_all_to_all(struct rig *g, int round) {
  for (int from = 0; from < g->nranks; from++) check(g, round, from, MESSAGES);
}

static void check_uneven(struct rig *g, int round) {
  for (int from = 0; from < g->nranks; from++) check(g, round, from, messages_between(g->rank, from));
}

static void check_star(struct rig *g, int round) {
  for (int from = 0; from < g->nranks; from++) check(g, round, from, (from == 0) != (g->rank == 0));
}

static const struct {
  void (*call)(struct rig *g);
  void (*check)(struct rig *g, int round);
} calls[] = {{all_to_all, check_all_to_all}, {uneven, check_uneven}, {star, check_star}};
#define NCALLS ((int)(sizeof calls / sizeof calls[0]))

static void run_calls(struct rig *g) {
  for (int round = 0; round < 2 * NCALLS; round++) {
    fill(g, round);
    calls[round % NCALLS].call(g);
    GPU(gpu.cuStreamSynchronize(g->stream));
    calls[round % NCALLS].check(g, round);
  }
}

static void run_graphs(struct rig *g) {
  for (int c = 0; c < NCALLS; c++) {
    void *graph, *exec;
    GPU(gpu.cuStreamBeginCapture_v2(g->stream, 0));
    calls[c].call(g);
    GPU(gpu.cuStreamEndCapture(g->stream, &graph));
    GPU(gpu.cuGraphInstantiateWithFlags(&exec, graph, 0));
    GPU(gpu.cuGraphDestroy(graph));
    for (int round = 0; round < 3; round++) {
      fill(g, round);
      GPU(gpu.cuGraphLaunch(exec, g->stream));
      GPU(gpu.cuStreamSynchronize(g->stream));
      calls[c].check(g, round);
    }
    GPU(gpu.cuGraphExecDestroy(exec));
  }
}

/* ---- over processes ---- */

static void in_processes(const struct rank *rank, void *arg) {
  (void)arg;
  struct rig g;
  gpu_open();
  rig_open(&g, open_comm(rank));
  run_calls(&g);
  fill(&g, 9);
  long before = gpu.calls("cuLaunchKernel");
  all_to_all(&g);
  ENSURE(gpu.calls("cuLaunchKernel") == before + 1, "%ld launches, not 1", gpu.calls("cuLaunchKernel") - before);
  GPU(gpu.cuStreamSynchronize(g.stream));
  check_all_to_all(&g, 9);
  run_graphs(&g);
  rig_close(&g);
  gpu_nothing_left();
}

static void small_devices(const char *env) {
  if (getenv("TEST_REAL_GPU")) tap_skip_case("needs the fake driver's small device");
  job_run(env, MOST_RANKS, kit_patience_ms(TIMEOUT_MS), in_processes, NULL);
}
TEST(processes) { small_devices("GHOST_ATTRIBUTES=16:3"); }
TEST(a_network) { small_devices("GHOST_ATTRIBUTES=16:3 NCCL_SHM_DISABLE=1"); }

/* ---- over ranks of one process, which share the device ---- */

struct thread_rank {
  ncclUniqueId id;
  int rank, nranks;
};

static void be_thread(void *arg) {
  const struct thread_rank *t = arg;
  struct rig g;
  ncclComm_t comm;
  GPU(gpu.cuCtxSetCurrent(gpu.context));
  OK(ncclCommInitRank(&comm, t->nranks, t->id, t->rank));
  rig_open(&g, comm);
  run_calls(&g);
  run_graphs(&g);
  rig_close(&g);
}

static void run_threads(int n, void (*be)(void *)) {
  struct thread_rank t[MOST_RANKS];
  gpu_open();
  OK(ncclGetUniqueId(&t[0].id));
  for (int i = 0; i < n; i++) t[i] = (struct thread_rank){t[0].id, i, n};
  kit_run_threads(n, be, t, sizeof t[0]);
  gpu_nothing_left();
}

/* Each rank has 4 wide blocks, and a launch for each group; of the star's, all but its middle make two calls. */
static void in_threads(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  run_threads(4, be_thread);
  long launches = gpu.calls("kernel"), each = 4 + 4 + (1 + 3 * 2);
  ENSURE(launches == (2 + 3) * each, "%ld kernels", launches);
}
TEST(threads) {
  if (getenv("TEST_REAL_GPU")) tap_skip_case("needs the fake driver's small device");
  job_run("GHOST_ATTRIBUTES=16:8", 1, kit_patience_ms(TIMEOUT_MS), in_threads, NULL);
}

/* ---- groups of more collectives than blocks ---- */

#define MANY 150
static ncclRedOp_t op_of(int i) { return i % 3 == 0 ? ncclSum : ncclMax; }

/* Each has a buffer of its own; sizes differ. */
static void call_many(struct rig *g) {
  OK(ncclGroupStart());
  for (int i = 0; i < MANY; i++)
    OK(ncclAllReduce(g->send + i, g->recv + i, (size_t)1 + (size_t)(i == MANY - 1) * N, ncclInt32, op_of(i), g->comm,
                     g->stream));
  OK(ncclGroupEnd());
}

static void check_many(struct rig *g, int round) {
  gpu_get(g->host, g->recv, sizeof g->host);
  for (int i = 0; i < MANY + N; i++) {
    int32_t want = 0;
    for (int from = 0; from < g->nranks; from++) {
      const int32_t x = number(round, from, 0, i);
      want = op_of(RAIL_MIN(i, MANY - 1)) == ncclSum ? want + x : RAIL_MAX(want, x);
    }
    ENSURE(g->host[i] == want, "round %d: number %d is %d instead of %d", round, i, g->host[i], want);
  }
}

/* One launch, however many: a block runs several collectives. */
static void many(const struct rank *rank, void *arg) {
  (void)arg;
  struct rig g;
  gpu_open();
  rig_open(&g, open_comm(rank));
  for (int round = 0; round < 3; round++) {
    fill(&g, round);
    long before = gpu.calls("cuLaunchKernel");
    call_many(&g);
    ENSURE(gpu.calls("cuLaunchKernel") == before + 1, "%ld launches, not 1", gpu.calls("cuLaunchKernel") - before);
    GPU(gpu.cuStreamSynchronize(g.stream));
    check_many(&g, round);
  }
  rig_close(&g);
  gpu_nothing_left();
}

static void many_on(const char *env, int nranks) {
  if (getenv("TEST_REAL_GPU")) tap_skip_case("needs the fake driver's small device");
  job_run(env, nranks, kit_patience_ms(TIMEOUT_MS), many, NULL);
}
TEST(many_collectives) { many_on("GHOST_ATTRIBUTES=16:3", 3); }
TEST(many_collectives_over_a_network) { many_on("GHOST_ATTRIBUTES=16:3 NCCL_SHM_DISABLE=1", 2); }

/* Two of them: four wide blocks for each. */
static void be_refused(void *arg) {
  const struct thread_rank *t = arg;
  ncclComm_t comm;
  GPU(gpu.cuCtxSetCurrent(gpu.context));
  OK(ncclCommInitRank(&comm, t->nranks, t->id, t->rank));
  char *x = gpu_alloc(64);
  OK(ncclGroupStart());
  for (int i = 0; i < 3; i++) OK(ncclAllReduce(x, x, 1, ncclInt8, ncclSum, comm, NULL));
  OK(ncclSend(x, 1, ncclInt8, 1 - t->rank, comm, NULL));
  OK(ncclRecv(x + 1, 1, ncclInt8, 1 - t->rank, comm, NULL));
  ENSURE(ncclGroupEnd() == ncclInvalidUsage, "a group of 5 was taken where each rank has room for 4");
  OK(ncclCommAbort(comm));
  gpu_free(x);
}

static void in_refused_threads(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  run_threads(2, be_refused);
}
TEST(narrow_blocks_are_not_for_a_shared_device) {
  if (getenv("TEST_REAL_GPU")) tap_skip_case("needs the fake driver's small device");
  job_run("NCCL_DEBUG=NONE GHOST_ATTRIBUTES=16:4", 1, kit_patience_ms(TIMEOUT_MS), in_refused_threads, NULL);
}

TEST_MAIN(TEST_CASE(processes), TEST_CASE(a_network), TEST_CASE(threads), TEST_CASE(many_collectives),
          TEST_CASE(many_collectives_over_a_network),
          TEST_CASE(narrow_blocks_are_not_for_a_shared_device))
