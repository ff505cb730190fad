/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 * TEST-SAN: asan tsan
 *
 * Proves: calls with device buffers take their place on the stream that they name and return before they are done;
 * they follow each other on whatever streams; a group is one launch; plans of the host and of the device keep the order
 * in which they were made; captured calls do in each run of the graph what they would have done.
 */
#include "test/device/gpu/calls.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000
#define N 5000

/* Two streams, and buffers of N numbers each. */
struct rig {
  ncclComm_t comm;
  int rank, nranks;
  void *a, *b;
  int32_t *x, *y, *z, host[N];
};

static void rig_open(struct rig *g, const struct rank *rank) {
  gpu_open();
  g->rank = rank->rank;
  g->nranks = rank->nranks;
  g->comm = open_comm(rank);
  g->a = gpu_stream();
  g->b = gpu_stream();
  g->x = gpu_alloc(sizeof g->host);
  g->y = gpu_alloc(sizeof g->host);
  g->z = gpu_alloc(sizeof g->host);
}

static void rig_close(struct rig *g) {
  close_comm(g->comm);
  gpu_free(g->x);
  gpu_free(g->y);
  gpu_free(g->z);
  gpu_nothing_left();
  GPU(gpu.cuStreamDestroy_v2(g->a));
  GPU(gpu.cuStreamDestroy_v2(g->b));
}

/* x is filled so that sums tell rounds and places apart. */
static void fill(struct rig *g, int round) {
  for (int i = 0; i < N; i++) g->host[i] = (g->rank + 1) * (i + round);
  gpu_put(g->x, g->host, sizeof g->host);
}

static int32_t want(const struct rig *g, int round, int i) { return g->nranks * (g->nranks + 1) / 2 * (i + round); }

/* `times`: how often the sum was summed up over all ranks once more. */
static void check_sum(struct rig *g, const int32_t *device, int round, int times) {
  gpu_get(g->host, device, sizeof g->host);
  int factor = 1;
  while (times-- > 0) factor *= g->nranks;
  for (int i = 0; i < N; i++)
    ENSURE(g->host[i] == factor * want(g, round, i), "round %d, number %d is %d instead of %d", round, i, g->host[i],
           factor * want(g, round, i));
}

static void sum(struct rig *g, const int32_t *from, int32_t *to, void *stream) {
  OK(ncclAllReduce(from, to, N, ncclInt32, ncclSum, g->comm, stream));
}

/* ---- */

static void asynchronous(const struct rank *rank, void *arg) {
  (void)arg;
  struct rig g;
  struct gpu_gate gate;
  rig_open(&g, rank);
  gpu_warm(g.comm, g.a);
  for (int round = 0; round < 3; round++) {
    int done = 1;
    fill(&g, round);
    gpu_hold(&gate, g.a);
    sum(&g, g.x, g.y, g.a);
    sum(&g, g.y, g.z, g.b);
    ENSURE(gpu.cuStreamQuery(g.a) == RT_CU_NOT_READY, "the first stream is done while it is held");
    usleep(20000);
    ENSURE(gpu.cuStreamQuery(g.b) == RT_CU_NOT_READY, "a call overtook the one before it");
    OK(railCommQuery(g.comm, &done));
    ENSURE(!done, "the communicator says that all is done");
    gpu_let_go(&gate);
    GPU(gpu.cuStreamSynchronize(g.b));
    check_sum(&g, g.y, round, 0);
    check_sum(&g, g.z, round, 1);
  }
  OK(railCommWait(g.comm));
  rig_close(&g);
}
TEST(calls_are_asynchronous_and_in_order) { job_run("", 2, kit_patience_ms(TIMEOUT_MS), asynchronous, NULL); }
TEST(and_so_over_a_network) { job_run("NCCL_SHM_DISABLE=1", 2, kit_patience_ms(TIMEOUT_MS), asynchronous, NULL); }

static void groups(const struct rank *rank, void *arg) {
  (void)arg;
  struct rig g;
  struct gpu_gate gate;
  rig_open(&g, rank);
  int32_t *got = gpu_alloc(sizeof g.host);
  for (int round = 0; round < 4; round++) {
    bool held = round > 0; /* what the first makes may wait for all streams */
    fill(&g, round);
    long before = gpu.calls ? gpu.calls("cuLaunchKernel") : 0;
    if (held) gpu_hold(&gate, g.b); /* the second of the group's streams: the launch waits for both */
    OK(ncclGroupStart());
    sum(&g, g.x, g.y, g.a);
    OK(ncclReduce(g.x, g.z, N, ncclInt32, ncclSum, 0, g.comm, g.b));
    OK(ncclSend(g.x, N, ncclInt32, (g.rank + 1) % g.nranks, g.comm, g.a));
    OK(ncclRecv(got, N, ncclInt32, (g.rank + g.nranks - 1) % g.nranks, g.comm, g.b));
    OK(ncclSend(NULL, 0, ncclInt32, (g.rank + 1) % g.nranks, g.comm, NULL));
    OK(ncclRecv(NULL, 0, ncclInt32, (g.rank + g.nranks - 1) % g.nranks, g.comm, NULL));
    OK(ncclGroupEnd());
    if (gpu.calls) ENSURE(gpu.calls("cuLaunchKernel") == before + 1, "a group is more than one launch");
    usleep(20000);
    ENSURE(!held || gpu.cuStreamQuery(g.a) == RT_CU_NOT_READY, "the group did not wait for one of its streams");
    if (held) gpu_let_go(&gate);
    GPU(gpu.cuStreamSynchronize(g.b)); /* which waits for the launch, too */
    check_sum(&g, g.y, round, 0);
    if (g.rank == 0) check_sum(&g, g.z, round, 0);
    gpu_get(g.host, got, sizeof g.host);
    int left = (g.rank + g.nranks - 1) % g.nranks;
    for (int i = 0; i < N; i++) ENSURE(g.host[i] == (left + 1) * (i + round), "number %d is %d", i, g.host[i]);
    GPU(gpu.cuStreamSynchronize(NULL));
  }
  gpu_free(got);
  rig_close(&g);
}
TEST(a_group_is_one_launch) { job_run("", 3, kit_patience_ms(TIMEOUT_MS), groups, NULL); }
TEST(a_group_over_a_network) { job_run("NCCL_SHM_DISABLE=1", 3, kit_patience_ms(TIMEOUT_MS), groups, NULL); }

/* ---- graphs ---- */

/* x → y on the first stream; on a second one, which forks off and comes back, y → z: nothing but the
 * communicator puts that behind the first. Then y → x. */
static void *capture(struct rig *g) {
  void *graph, *exec, *fork, *back;
  GPU(gpu.cuEventCreate(&fork, RT_CU_EVENT_DISABLE_TIMING));
  GPU(gpu.cuEventCreate(&back, RT_CU_EVENT_DISABLE_TIMING));
  GPU(gpu.cuStreamBeginCapture_v2(g->a, 0));
  GPU(gpu.cuEventRecord(fork, g->a));
  GPU(gpu.cuStreamWaitEvent(g->b, fork, 0));
  sum(g, g->x, g->y, g->a);
  sum(g, g->y, g->z, g->b);
  GPU(gpu.cuEventRecord(back, g->b));
  GPU(gpu.cuStreamWaitEvent(g->a, back, 0));
  sum(g, g->y, g->x, g->a);
  GPU(gpu.cuStreamEndCapture(g->a, &graph));
  GPU(gpu.cuGraphInstantiateWithFlags(&exec, graph, 0));
  GPU(gpu.cuGraphDestroy(graph));
  GPU(gpu.cuEventDestroy_v2(fork));
  GPU(gpu.cuEventDestroy_v2(back));
  return exec;
}

static bool warm;
/* `arg`: with a call in front, which makes the connections; else the captured one does. */
static void graphs(const struct rank *rank, void *arg) {
  struct rig g;
  rig_open(&g, rank);
  if (arg) {
    fill(&g, 1);
    sum(&g, g.x, g.y, g.a);
    GPU(gpu.cuStreamSynchronize(g.a));
  }
  long before = gpu.calls ? gpu.calls("kernel") : 0;
  void *exec = capture(&g);
  if (gpu.calls) ENSURE(gpu.calls("kernel") == before, "a kernel ran while it was captured");
  for (int round = 0; round < 5; round++) {
    fill(&g, round);
    GPU(gpu.cuGraphLaunch(exec, g.a));
    if (round == 3) sum(&g, g.x, g.x, g.a); /* between two runs, on the same stream */
    GPU(gpu.cuStreamSynchronize(g.a));
    check_sum(&g, g.y, round, 0);
    check_sum(&g, g.z, round, 1);
    check_sum(&g, g.x, round, round == 3 ? 2 : 1);
  }
  fill(&g, 9);
  for (int run = 0; run < 5; run++) GPU(gpu.cuGraphLaunch(exec, g.a)); /* x is what the last run left there */
  GPU(gpu.cuStreamSynchronize(g.a));
  if (gpu.calls) ENSURE(gpu.calls("kernel") == before + 3 * 10 + 1, "%ld kernels", gpu.calls("kernel") - before);
  OK(railCommWait(g.comm));
  /* One more, for which rank 0 has to wait: it is not over before it is. */
  if (g.rank > 0) rank_barrier(rank);
  GPU(gpu.cuGraphLaunch(exec, g.a));
  if (g.rank == 0) {
    int done = 1;
    usleep(50000);
    OK(railCommQuery(g.comm, &done));
    ENSURE(!done, "a run of a graph is said to be over");
    rank_barrier(rank);
  }
  GPU(gpu.cuStreamSynchronize(g.a));
  OK(railCommWait(g.comm));
  GPU(gpu.cuGraphExecDestroy(exec));
  rig_close(&g);
}
TEST(graphs) { job_run("", 2, kit_patience_ms(TIMEOUT_MS), graphs, &warm); }
TEST(graphs_that_connect) { job_run("", 3, kit_patience_ms(TIMEOUT_MS), graphs, NULL); }
TEST(graphs_over_a_network) {
  job_run("NCCL_SHM_DISABLE=1 RAIL_NCHANNELS=2", 2, kit_patience_ms(TIMEOUT_MS), graphs, NULL);
}
TEST(graphs_and_a_proxy_thread) {
  job_run("NCCL_SHM_DISABLE=1 RAIL_PROXY=thread GHOST_MAPPING=waits", 3, kit_patience_ms(TIMEOUT_MS), graphs, &warm);
}

/* Captured again and again, what the last graph had is used for the next; the last one outlives the communicator. */
static void again(const struct rank *rank, void *arg) {
  (void)arg;
  struct rig g;
  rig_open(&g, rank);
  void *exec = NULL;
  long registered = 0;
  for (int round = 0; round < 10; round++) {
    if (exec) GPU(gpu.cuGraphExecDestroy(exec));
    exec = capture(&g);
    fill(&g, round);
    GPU(gpu.cuGraphLaunch(exec, g.a));
    GPU(gpu.cuStreamSynchronize(g.a));
    check_sum(&g, g.z, round, 1);
    OK(railCommWait(g.comm));
    if (round == 2 && gpu.live) registered = gpu.live("registered");
  }
  if (gpu.live) registered -= gpu.live("registered");
  ENSURE(registered == 0, "%ld registrations more", -registered);
  close_comm(g.comm);
  GPU(gpu.cuGraphExecDestroy(exec));
  gpu_free(g.x);
  gpu_free(g.y);
  gpu_free(g.z);
  gpu_nothing_left();
  GPU(gpu.cuStreamDestroy_v2(g.a));
  GPU(gpu.cuStreamDestroy_v2(g.b));
}
TEST(graphs_come_and_go) { job_run("", 2, kit_patience_ms(TIMEOUT_MS), again, NULL); }

TEST_MAIN(TEST_CASE(calls_are_asynchronous_and_in_order), TEST_CASE(and_so_over_a_network),
          TEST_CASE(a_group_is_one_launch), TEST_CASE(a_group_over_a_network),
          TEST_CASE(graphs), TEST_CASE(graphs_that_connect),
          TEST_CASE(graphs_over_a_network), TEST_CASE(graphs_and_a_proxy_thread), TEST_CASE(graphs_come_and_go))
