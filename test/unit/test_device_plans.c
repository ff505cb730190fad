/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 60
 *
 * Proves, over a CUDA driver without a GPU and with a look inside: launches use their memory again; nothing counts as
 * under way once all is done; every stream that a group named waits for
 * the group; and a void capture is refused. What the calls compute is e2e's.
 */
#include <unistd.h>

#include "common/base/clock.h"
#include "core/comm/rt_comm.h"
#include "core/gpu/rt_gpu.h"
#include "test/device/gpu/calls.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 30000
#define RANKS 2
#define COUNT 20000 /* elements: several steps */

struct rig {
  ncclComm_t comm[RANKS];
  void *context[RANKS], *stream[RANKS], *other[RANKS];
  int32_t *device[RANKS], host[RANKS][COUNT];
};

/* Each rank has a device of its own; one thread makes all calls. */
static void rig_open(struct rig *g) {
  gpu_open();
  memset(g, 0, sizeof *g);
  g->context[0] = gpu.context;
  GPU(gpu.cuDevicePrimaryCtxRetain(&g->context[1], 1));
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    GPU(gpu.cuCtxSetCurrent(g->context[r]));
    OK(ncclCommInitRank(&g->comm[r], RANKS, id, r));
  }
  OK(ncclGroupEnd());
  for (int r = 0; r < RANKS; r++) {
    GPU(gpu.cuCtxSetCurrent(g->context[r]));
    g->stream[r] = gpu_stream();
    g->other[r] = gpu_stream();
    g->device[r] = gpu_alloc(sizeof g->host[r]);
    memset(g->host[r], 0, sizeof g->host[r]);
    gpu_put(g->device[r], g->host[r], sizeof g->host[r]);
  }
}

static void rig_close(struct rig *g) {
  for (int r = 0; r < RANKS; r++) {
    OK(ncclCommDestroy(g->comm[r]));
    GPU(gpu.cuStreamDestroy_v2(g->stream[r]));
    GPU(gpu.cuStreamDestroy_v2(g->other[r]));
    gpu_free(g->device[r]);
  }
  gpu_nothing_left();
}

static void on_device(struct rig *g) {
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++)
    OK(ncclAllReduce(g->device[r], g->device[r], COUNT, ncclInt32, ncclMax, g->comm[r], g->stream[r]));
  OK(ncclGroupEnd());
}

static void wait_all(struct rig *g) {
  for (int r = 0; r < RANKS; r++) OK(railCommWait(g->comm[r]));
}

/* What a communicator has under way. */
struct under_way {
  int memory; /* launches that its memory has been cut into */
  int launches, sends, recvs;
};

static struct under_way look(struct ncclComm *comm, int peer) {
  struct under_way w = {0};
  pthread_mutex_lock(&comm->gpu.lock);
  for (const struct rt_launch_memory *m = comm->gpu.memory; m; m = m->next, w.memory++) w.launches += m->used;
  for (int lane = 0; lane < rt_comm_all_channels(comm); lane++) {
    const struct rt_connector *send = comm->channels[lane].send[peer], *recv = comm->channels[lane].recv[peer];
    w.sends += send ? (int)send->launches : 0;
    w.recvs += recv ? (int)recv->launches : 0;
  }
  pthread_mutex_unlock(&comm->gpu.lock);
  return w;
}

/* A wait may end just before the executor gives back what the last run had. */
static void nothing_is_left(struct ncclComm *comm, int rank, int round) {
  uint64_t until = rail_deadline_in_ms(5000);
  struct under_way w = look(comm, 1 - rank);
  for (; (w.launches || w.sends || w.recvs) && !rail_deadline_passed(until); w = look(comm, 1 - rank)) usleep(1000);
  ENSURE(w.memory <= 2, "rank %d has memory for %d launches after %d", rank, w.memory, round + 1);
  ENSURE(w.launches == 0, "rank %d: %d launches are in use when all is done", rank, w.launches);
  ENSURE(w.sends == 0, "rank %d: %d runs send when all is done", rank, w.sends);
  ENSURE(w.recvs == 0, "rank %d: %d runs receive when all is done", rank, w.recvs);
}

static void again(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  static struct rig g;
  rig_open(&g);
  for (int round = 0; round < 30; round++) {
    on_device(&g);
    wait_all(&g);
    for (int r = 0; r < RANKS; r++) nothing_is_left(g.comm[r], r, round);
  }
  rig_close(&g);
}
TEST(nothing_is_under_way_when_all_is_done) {
  job_run("GHOST_DEVICES=2", 1, kit_patience_ms(TIMEOUT_MS), again, NULL);
  job_run("GHOST_DEVICES=2 NCCL_SHM_DISABLE=1", 1, kit_patience_ms(TIMEOUT_MS), again, NULL);
}

/* A group whose calls name two streams runs on the first; the second must wait for it all the same. */
static void joined(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  static struct rig g;
  struct gpu_gate gate[RANKS];
  rig_open(&g);
  on_device(&g);
  wait_all(&g);
  for (int r = 0; r < RANKS; r++) {
    GPU(gpu.cuCtxSetCurrent(g.context[r]));
    gpu_hold(&gate[r], g.stream[r]);
  }
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    OK(ncclAllReduce(g.device[r], g.device[r], 10, ncclInt32, ncclMax, g.comm[r], g.stream[r]));
    OK(ncclAllReduce(g.device[r] + 100, g.device[r] + 100, 10, ncclInt32, ncclMax, g.comm[r], g.other[r]));
  }
  OK(ncclGroupEnd());
  usleep(20000);
  for (int r = 0; r < RANKS; r++) {
    GPU(gpu.cuCtxSetCurrent(g.context[r]));
    ENSURE(gpu.cuStreamQuery(g.other[r]) == RT_CU_NOT_READY, "rank %d: the second stream does not wait", r);
  }
  for (int r = 0; r < RANKS; r++) gpu_let_go(&gate[r]);
  wait_all(&g);
  for (int r = 0; r < RANKS; r++) GPU(gpu.cuStreamSynchronize(g.other[r]));
  rig_close(&g);
}
TEST(all_streams_of_a_group_wait_for_it) { job_run("GHOST_DEVICES=2", 1, kit_patience_ms(TIMEOUT_MS), joined, NULL); }

/* A capture that the program has spoilt is its mistake, and is called so: nothing is put into it. */
static void spoilt(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  static struct rig g;
  void *graph;
  rig_open(&g);
  on_device(&g);
  wait_all(&g);
  GPU(gpu.cuCtxSetCurrent(g.context[0]));
  GPU(gpu.cuStreamBeginCapture_v2(g.stream[0], 0));
  ENSURE(gpu.cuStreamSynchronize(g.stream[0]) != RT_CU_SUCCESS, "a stream that captures can be waited for");
  long launches = gpu.calls("cuLaunchKernel");
  ENSURE_INT(ncclAllReduce(g.device[0], g.device[0], 10, ncclInt32, ncclMax, g.comm[0], g.stream[0]), ncclInvalidUsage);
  ENSURE_INT(gpu.calls("cuLaunchKernel"), launches);
  ENSURE(gpu.cuStreamEndCapture(g.stream[0], &graph) != RT_CU_SUCCESS && !graph, "the capture was valid");
  for (int r = 0; r < RANKS; r++) OK(ncclCommAbort(g.comm[r]));
}
TEST(a_capture_that_is_void_is_refused) {
  job_run("GHOST_DEVICES=2 NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), spoilt, NULL);
}

TEST_MAIN(TEST_CASE(nothing_is_under_way_when_all_is_done), TEST_CASE(all_streams_of_a_group_wait_for_it),
          TEST_CASE(a_capture_that_is_void_is_refused))
