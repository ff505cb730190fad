/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 120
 * TEST-SAN: asan tsan
 *
 * Proves: calls on host buffers and calls on device buffers work in one group: of one communicator, in whatever order
 * and on connections that they share, differently on each rank, and sends and receives that wait for each other across
 * ranks; of several communicators. Nothing overtakes such a group. What neither host nor device could do is refused,
 * and a group that waits for nobody ends with its communicator.
 */
#include "test/device/gpu/calls.h"
#include "test/harness/program.h"

#define PATIENCE 30000
#define N 3000       /* numbers of a call; */
#define MANY 20000  /* more than the slots of the smallest buffer hold */
#define CALLS 6

/* What one call gives and gets: on the host or on the device. */
struct pair {
  bool on_device;
  int32_t *send, *recv;
};

struct rig {
  ncclComm_t comm;
  int rank, nranks, left, right;
  void *stream;
  int n;
  int32_t host[MANY];
  struct pair pairs[CALLS];
};

static int32_t *make(bool on_device) {
  int32_t *p = on_device ? gpu_alloc(MANY * sizeof *p) : malloc(MANY * sizeof *p);
  ENSURE(p, "out of memory");
  return p;
}

/* Bit i of `devices`: call i is on the device. */
static void rig_open(struct rig *g, const struct rank *rank, int slot, unsigned devices) {
  *g = (struct rig){.rank = rank->rank, .nranks = rank->nranks, .n = N};
  g->left = (g->rank + g->nranks - 1) % g->nranks;
  g->right = (g->rank + 1) % g->nranks;
  OK(ncclCommInitRank(&g->comm, rank->nranks, make_id(rank, slot), rank->rank));
  g->stream = gpu_stream();
  for (int i = 0; i < CALLS; i++) {
    bool on_device = devices >> i & 1;
    g->pairs[i] = (struct pair){on_device, make(on_device), make(on_device)};
  }
}

static void rig_free(struct rig *g) {
  for (int i = 0; i < CALLS; i++) {
    struct pair *p = &g->pairs[i];
    if (p->on_device) gpu_free(p->send), gpu_free(p->recv);
    else free(p->send), free(p->recv);
  }
  gpu_nothing_left();
  GPU(gpu.cuStreamDestroy_v2(g->stream));
}

static void rig_close(struct rig *g) {
  close_comm(g->comm);
  rig_free(g);
}

/* What rank gives to call i in this round. */
static int32_t given(int rank, int round, int i, int k) { return (rank + 1) * (k % 97 + round + 10 * i); }

static void fill(struct rig *g, int round) {
  for (int i = 0; i < CALLS; i++) {
    for (int k = 0; k < g->n; k++) g->host[k] = given(g->rank, round, i, k);
    if (g->pairs[i].on_device) gpu_put(g->pairs[i].send, g->host, (size_t)g->n * sizeof g->host[0]);
    else memcpy(g->pairs[i].send, g->host, (size_t)g->n * sizeof g->host[0]);
    memset(g->host, 0x77, sizeof g->host);
    if (g->pairs[i].on_device) gpu_put(g->pairs[i].recv, g->host, (size_t)g->n * sizeof g->host[0]);
    else memcpy(g->pairs[i].recv, g->host, (size_t)g->n * sizeof g->host[0]);
  }
}

static void check(struct rig *g, int round, int i, int32_t (*want)(const struct rig *, int, int, int)) {
  if (g->pairs[i].on_device) gpu_get(g->host, g->pairs[i].recv, (size_t)g->n * sizeof g->host[0]);
  else memcpy(g->host, g->pairs[i].recv, (size_t)g->n * sizeof g->host[0]);
  for (int k = 0; k < g->n; k++)
    ENSURE(g->host[k] == want(g, round, i, k), "round %d, call %d on the %s: number %d is %d instead of %d", round, i,
           g->pairs[i].on_device ? "device" : "host", k, g->host[k], want(g, round, i, k));
}

static int32_t summed(const struct rig *g, int round, int i, int k) {
  return g->nranks * (g->nranks + 1) / 2 * given(0, round, i, k);
}
static int32_t from_left(const struct rig *g, int round, int i, int k) { return given(g->left, round, i, k); }
static int32_t from_root(const struct rig *g, int round, int i, int k) {
  return given(i % g->nranks, round, i, k);
}

static void sum(struct rig *g, int i) {
  OK(ncclAllReduce(g->pairs[i].send, g->pairs[i].recv, g->n, ncclInt32, ncclSum, g->comm, g->stream));
}

static void send_right(struct rig *g, int i) {
  OK(ncclSend(g->pairs[i].send, g->n, ncclInt32, g->right, g->comm, g->stream));
}

static void receive_left(struct rig *g, int i) {
  OK(ncclRecv(g->pairs[i].recv, g->n, ncclInt32, g->left, g->comm, g->stream));
}

static void finish(struct rig *g) {
  OK(railCommWait(g->comm));
  GPU(gpu.cuStreamSynchronize(g->stream));
}

/* ---- one communicator ---- */

/* All calls use the ring's connections, one after the other. */
static void ring_rounds(struct rig *g) {
  for (int round = 0; round < 4; round++) {
    fill(g, round);
    OK(ncclGroupStart());
    for (int i = 0; i < 4; i++) sum(g, i);
    for (int i = 4; i < CALLS; i++)
      OK(ncclBroadcast(g->pairs[i].send, g->pairs[i].recv, g->n, ncclInt32, i % g->nranks, g->comm, g->stream));
    OK(ncclGroupEnd());
    finish(g);
    for (int i = 0; i < 4; i++) check(g, round, i, summed);
    for (int i = 4; i < CALLS; i++) check(g, round, i, from_root);
  }
}

/* The same mixture everywhere; its inverse on every other rank; host alone and device alone beside mixtures. */
static void collectives(const struct rank *rank, void *arg) {
  static const unsigned mixtures[][3] = {
      {0x15, 0x15, 0x15}, {0x2a, 0x2a, 0x2a}, {0x15, 0x2a, 0x15}, {0x0c, 0x3f, 0x00}};
  static struct rig g;
  (void)arg;
  gpu_open();
  for (size_t m = 0; m < sizeof mixtures / sizeof *mixtures; m++) {
    rig_open(&g, rank, (int)m, mixtures[m][rank->rank % 3]);
    ring_rounds(&g);
    rig_close(&g);
  }
}
TEST(collectives) { job_run("", 3, kit_patience_ms(PATIENCE), collectives, NULL); }
TEST(collectives_by_ll) { job_run("NCCL_PROTO=LL", 2, kit_patience_ms(PATIENCE), collectives, NULL); }
TEST(collectives_on_channels) { job_run("RAIL_NCHANNELS=2", 2, kit_patience_ms(PATIENCE), collectives, NULL); }
TEST(collectives_without_p2p) { job_run("NCCL_P2P_DISABLE=1", 2, kit_patience_ms(PATIENCE), collectives, NULL); }
TEST(collectives_in_trees) {
  job_run("NCCL_ALGO=ring;allreduce:tree", 3, kit_patience_ms(PATIENCE), collectives, NULL);
}
TEST(collectives_over_a_network) { job_run("NCCL_SHM_DISABLE=1", 3, kit_patience_ms(PATIENCE), collectives, NULL); }
/* Where hosts alone would speak LL through a proxy. */
TEST(collectives_by_ll_over_a_network) {
  job_run("NCCL_SHM_DISABLE=1 NCCL_PROTO=LL", 2, kit_patience_ms(PATIENCE), collectives, NULL);
}
TEST(collectives_and_a_proxy_thread) {
  job_run("NCCL_SHM_DISABLE=1 RAIL_PROXY=thread", 2, kit_patience_ms(PATIENCE), collectives, NULL);
}

/* Round the ring, each message larger than the slots can hold, so that a rank that did one kind first would wait for
 * another that does the other first. The mixtures differ in who receives in what it sends from. */
static void points(const struct rank *rank, void *arg) {
  static struct rig g;
  (void)arg;
  gpu_open();
  rig_open(&g, rank, 0, rank->rank % 2 ? 0x15 : 0x2a);
  g.n = MANY;
  for (int round = 0; round < 4; round++) {
    fill(&g, round);
    OK(ncclGroupStart());
    for (int i = 0; i < 4; i++) {
      send_right(&g, i);
      receive_left(&g, i);
    }
    sum(&g, 4);
    sum(&g, 5);
    OK(ncclGroupEnd());
    finish(&g);
    for (int i = 0; i < 4; i++) check(&g, round, i, from_left);
    check(&g, round, 4, summed);
    check(&g, round, 5, summed);
  }
  rig_close(&g);
}
TEST(sends_and_receives) { job_run("NCCL_BUFFSIZE=64K", 2, kit_patience_ms(PATIENCE), points, NULL); }
TEST(sends_and_receives_of_three) { job_run("NCCL_BUFFSIZE=64K", 3, kit_patience_ms(PATIENCE), points, NULL); }
TEST(sends_and_receives_over_a_network) {
  job_run("NCCL_BUFFSIZE=64K NCCL_SHM_DISABLE=1", 2, kit_patience_ms(PATIENCE), points, NULL);
}

/* What a rank sends itself goes where it was. */
static void alone(const struct rank *rank, void *arg) {
  static struct rig g;
  (void)arg;
  gpu_open();
  rig_open(&g, rank, 0, 0x15);
  fill(&g, 1);
  OK(ncclGroupStart());
  for (int i = 0; i < 4; i++) {
    send_right(&g, i);
    receive_left(&g, i);
  }
  sum(&g, 4);
  sum(&g, 5);
  OK(ncclGroupEnd());
  finish(&g);
  for (int i = 0; i < 4; i++) check(&g, 1, i, from_left);
  check(&g, 1, 4, summed);
  check(&g, 1, 5, summed);
  rig_close(&g);
}
TEST(alone) { job_run("", 1, kit_patience_ms(PATIENCE), alone, NULL); }

/* ---- before and after it ---- */

/* A group is not over before the stream of its device's calls comes to it; the next calls, of either kind, follow. */
static void in_order(const struct rank *rank, void *arg) {
  static struct rig g;
  struct gpu_gate gate;
  (void)arg;
  gpu_open();
  rig_open(&g, rank, 0, 0x0d);
  for (int round = 0; round < 3; round++) {
    int done = 1;
    fill(&g, round);
    sum(&g, 0);
    gpu_hold(&gate, g.stream);
    OK(ncclGroupStart());
    sum(&g, 1);
    sum(&g, 2);
    OK(ncclGroupEnd());
    ENSURE(gpu.cuStreamQuery(g.stream) == RT_CU_NOT_READY, "the group did not wait for its stream");
    OK(railCommQuery(g.comm, &done));
    ENSURE(!done, "the communicator says that all is done");
    sum(&g, 4);
    gpu_let_go(&gate);
    sum(&g, 3);
    sum(&g, 5);
    finish(&g);
    for (int i = 0; i < CALLS; i++) check(&g, round, i, summed);
  }
  rig_close(&g);
}
TEST(in_order) { job_run("", 2, kit_patience_ms(PATIENCE), in_order, NULL); }
TEST(in_order_over_a_network) { job_run("NCCL_SHM_DISABLE=1", 2, kit_patience_ms(PATIENCE), in_order, NULL); }

/* Rank 1 makes the calls of rank 0's group one by one, the last one late: rank 0's next call, on the device, must not
 * take that one's place on the connections. */
static void overtaking(const struct rank *rank, void *arg) {
  static struct rig g;
  (void)arg;
  gpu_open();
  rig_open(&g, rank, 0, 0x05);
  fill(&g, 1);
  if (g.rank == 0) OK(ncclGroupStart());
  sum(&g, 0);
  if (g.rank == 0) sum(&g, 1);
  if (g.rank == 0) OK(ncclGroupEnd());
  GPU(gpu.cuStreamSynchronize(g.stream));
  rank_barrier(rank);
  if (g.rank == 1) usleep(50000);
  if (g.rank == 1) sum(&g, 1);
  sum(&g, 2);
  finish(&g);
  for (int i = 0; i < 3; i++) check(&g, 1, i, summed);
  rig_close(&g);
}
TEST(nothing_overtakes) { job_run("", 2, kit_patience_ms(PATIENCE), overtaking, NULL); }

/* ---- several communicators ---- */

/* Two communicators of the same ranks: one on the device and one on the host, the other way round, both mixed. */
static void communicators(const struct rank *rank, void *arg) {
  static const unsigned mixtures[] = {0x0f, 0x30, 0x15};
  static struct rig g;
  (void)arg;
  gpu_open();
  for (size_t m = 0; m < sizeof mixtures / sizeof *mixtures; m++) {
    ncclComm_t first, second;
    rig_open(&g, rank, (int)m, mixtures[m]);
    first = g.comm;
    OK(ncclCommSplit(first, 0, g.rank, &second, NULL));
    for (int round = 0; round < 3; round++) {
      fill(&g, round);
      OK(ncclGroupStart());
      for (int i = 0; i < CALLS; i++) {
        g.comm = i < 4 ? first : second;
        sum(&g, i);
      }
      OK(ncclGroupEnd());
      OK(railCommWait(first));
      finish(&g);
      for (int i = 0; i < CALLS; i++) check(&g, round, i, summed);
    }
    OK(ncclCommDestroy(second));
    g.comm = first;
    rig_close(&g);
  }
}
TEST(communicators) { job_run("", 2, kit_patience_ms(PATIENCE), communicators, NULL); }

/* One thread has both ranks; nothing waits for the one before the other is told. */
static void in_one_thread(const struct rank *rank, void *arg) {
  enum { RANKS = 2 };
  static struct rig g[RANKS];
  ncclComm_t comms[RANKS];
  (void)rank, (void)arg;
  gpu_open();
  OK(ncclCommInitAll(comms, RANKS, NULL));
  for (int i = 0; i < RANKS; i++) {
    g[i] = (struct rig){.comm = comms[i], .rank = i, .nranks = RANKS, .n = N, .stream = gpu_stream()};
    for (int c = 0; c < CALLS; c++) g[i].pairs[c] = (struct pair){(c + i) & 1, make((c + i) & 1), make((c + i) & 1)};
  }
  for (int round = 0; round < 4; round++) {
    for (int i = 0; i < RANKS; i++) fill(&g[i], round);
    OK(ncclGroupStart());
    for (int c = 0; c < CALLS; c++)
      for (int i = 0; i < RANKS; i++) sum(&g[i], c);
    OK(ncclGroupEnd());
    for (int i = 0; i < RANKS; i++) finish(&g[i]);
    for (int i = 0; i < RANKS; i++)
      for (int c = 0; c < CALLS; c++) check(&g[i], round, c, summed);
  }
  for (int i = 0; i < RANKS; i++) OK(ncclCommDestroy(comms[i]));
  for (int i = RANKS - 1; i >= 0; i--)
    for (int c = 0; c < CALLS; c++)
      if (g[i].pairs[c].on_device) gpu_free(g[i].pairs[c].send), gpu_free(g[i].pairs[c].recv);
      else free(g[i].pairs[c].send), free(g[i].pairs[c].recv);
  gpu_nothing_left();
  for (int i = 0; i < RANKS; i++) GPU(gpu.cuStreamDestroy_v2(g[i].stream));
}
TEST(one_thread) { job_run("", 1, kit_patience_ms(PATIENCE), in_one_thread, NULL); }

/* ---- what cannot be done ---- */

static void to_itself(const struct rank *rank, void *arg) {
  static struct rig g;
  (void)arg;
  gpu_open();
  rig_open(&g, rank, 0, 1);
  OK(ncclGroupStart());
  OK(ncclSend(g.pairs[0].send, N, ncclInt32, 0, g.comm, g.stream));
  OK(ncclRecv(g.pairs[1].recv, N, ncclInt32, 0, g.comm, g.stream));
  ENSURE(ncclGroupEnd() == ncclInvalidUsage, "a device's memory was sent to the host's");
  OK(ncclCommAbort(g.comm));
  rig_free(&g);
}
TEST(a_send_to_itself_across) { job_run("", 1, kit_patience_ms(PATIENCE), to_itself, NULL); }

static void captured(const struct rank *rank, void *arg) {
  static struct rig g;
  void *graph = NULL;
  (void)arg;
  gpu_open();
  rig_open(&g, rank, 0, 1);
  GPU(gpu.cuStreamBeginCapture_v2(g.stream, 0));
  OK(ncclGroupStart());
  sum(&g, 0);
  sum(&g, 1);
  ENSURE(ncclGroupEnd() == ncclInvalidUsage, "a call of the host was captured");
  (void)gpu.cuStreamEndCapture(g.stream, &graph);
  if (graph) GPU(gpu.cuGraphDestroy(graph));
  OK(ncclCommAbort(g.comm));
  rig_free(&g);
}
TEST(a_capture) { job_run("", 1, kit_patience_ms(PATIENCE), captured, NULL); }

/* Rank 0 waits for a group that rank 1 never makes, on the host and on the device; rank 1 aborts. */
static void aborted(const struct rank *rank, void *arg) {
  static struct rig g;
  (void)arg;
  gpu_open();
  rig_open(&g, rank, 0, 0x15);
  ring_rounds(&g);
  if (rank->rank == 0) {
    OK(ncclGroupStart());
    for (int i = 0; i < CALLS; i++) sum(&g, i);
    OK(ncclGroupEnd());
    rank_barrier(rank);
    ENSURE(railCommWait(g.comm) != ncclSuccess, "a group was done by one rank of two");
    GPU(gpu.cuStreamSynchronize(g.stream));
  } else {
    rank_barrier(rank);
  }
  OK(ncclCommAbort(g.comm));
  rig_free(&g);
}
TEST(an_abort) { job_run("", 2, kit_patience_ms(PATIENCE), aborted, NULL); }
TEST(an_abort_on_a_network) { job_run("NCCL_SHM_DISABLE=1", 2, kit_patience_ms(PATIENCE), aborted, NULL); }

/* Calls that do not fit together are found on whichever side; rank 1's first call, on the host, is shorter. */
static void mismatched(const struct rank *rank, void *arg) {
  static struct rig g;
  (void)arg;
  gpu_open();
  rig_open(&g, rank, 0, 0x15);
  OK(ncclGroupStart());
  for (int i = 1; i < 4; i++)
    OK(ncclAllReduce(g.pairs[i].send, g.pairs[i].recv, i == 1 && rank->rank == 1 ? N / 2 : N, ncclInt32, ncclSum,
                     g.comm, g.stream));
  (void)ncclGroupEnd();
  ENSURE(railCommWait(g.comm) != ncclSuccess, "calls of different counts were done");
  GPU(gpu.cuStreamSynchronize(g.stream));
  OK(ncclCommAbort(g.comm));
  rig_free(&g);
}
TEST(a_mismatch) { job_run("", 2, kit_patience_ms(PATIENCE), mismatched, NULL); }

TEST_MAIN(TEST_CASE(collectives), TEST_CASE(collectives_by_ll), TEST_CASE(collectives_on_channels),
          TEST_CASE(collectives_without_p2p), TEST_CASE(collectives_in_trees), TEST_CASE(collectives_over_a_network),
          TEST_CASE(collectives_by_ll_over_a_network), TEST_CASE(collectives_and_a_proxy_thread),
          TEST_CASE(sends_and_receives), TEST_CASE(sends_and_receives_of_three),
          TEST_CASE(sends_and_receives_over_a_network), TEST_CASE(alone), TEST_CASE(in_order),
          TEST_CASE(in_order_over_a_network), TEST_CASE(nothing_overtakes), TEST_CASE(communicators),
          TEST_CASE(one_thread), TEST_CASE(a_send_to_itself_across), TEST_CASE(a_capture), TEST_CASE(an_abort),
          TEST_CASE(an_abort_on_a_network), TEST_CASE(a_mismatch))
