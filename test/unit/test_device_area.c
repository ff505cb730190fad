/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Proves: an offer of GPU memory that cannot be true is refused by who would take it, with its reason, and nothing
 * comes of it; a true one is taken all the same afterwards, by each way, and given back.
 */
#include "core/gpu/rt_area.h"

#include "core/comm/rt_comm.h"
#include "test/device/gpu/user.h"
#include "test/harness/program.h"

#define PATIENCE 20000
#define SIZE 100000

enum { OWNER, TAKER };

/* What the two share. */
struct table {
  struct rt_peer peers[2];
  struct rt_area_offer offer;
};
_Static_assert(sizeof(struct table) <= RANKS_SHARED, "it fits");

/* As much of a communicator as an area needs. */
static struct ncclComm *meet(const struct rank *rank, struct table *t) {
  struct ncclComm *comm = calloc(1, sizeof *comm);
  ENSURE(comm, "out of memory");
  comm->rank = rank->rank;
  comm->peers = t->peers;
  comm->gpu.context = gpu.context;
  struct rt_peer *me = &t->peers[rank->rank];
  me->pid = getpid();
  me->ways = rt_ways_open(0, &comm->inbox);
  memcpy(me->inbox, comm->inbox.name, sizeof me->inbox);
  rank_barrier(rank);
  return comm;
}

static void part(struct ncclComm *comm) {
  rt_inbox_close(&comm->inbox);
  if (comm->gpu.side) GPU(gpu.cuStreamDestroy_v2(comm->gpu.side));
  free(comm);
}

static void refuses(struct ncclComm *comm, struct rt_area_offer lie, const char *words) {
  struct rt_area_view view;
  char why[RT_WHY] = "";
  lie.to.key[0] ^= 1; /* whatever else is wrong: the descriptor is for the true one */
  ENSURE(!rt_area_take(comm, &lie, SIZE, OWNER, RT_SYS, &view, why), "\"%s\" was taken", words);
  ENSURE(strstr(why, words), "\"%s\" does not say \"%s\"", why, words);
  ENSURE(!view.base && rt_offer_state(&lie) == RT_OFFER_REFUSED, "it is in state %d", rt_offer_state(&lie));
}

static void refuses_lies(struct ncclComm *comm, const struct rt_area_offer *truth) {
  struct rt_area_offer lie = *truth;
  static const uint32_t ways[] = {RT_WAY_NONE, RT_WAY_MAPPED, RT_WAY_PLAIN, RT_WAYS, UINT32_MAX};
  for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
    lie.to.way = ways[i];
    refuses(comm, lie, "cannot");
  }
  lie = *truth;
  lie.size *= 2;
  refuses(comm, lie, "instead of");
  lie.size = SIZE;
  refuses(comm, lie, "instead of");
  lie = *truth;
  lie.to.granularity = 0;
  refuses(comm, lie, "instead of");
  lie = *truth;
  memset(lie.bus_id, 'x', sizeof lie.bus_id);
  refuses(comm, lie, "garbled");
  lie = *truth;
  memcpy(lie.bus_id, "0000:99:00.0", 13);
  refuses(comm, lie, "CUDA_VISIBLE_DEVICES");
  lie = *truth;
  if (lie.to.way == RT_WAY_FD) refuses(comm, lie, "has not come");
  if (lie.to.way != RT_WAY_FD) refuses(comm, lie, "CUDA_ERROR_INVALID_VALUE");
}

static void owner(const struct rank *rank, struct ncclComm *comm, struct rt_area_offer *offer, enum rt_way way) {
  char why[RT_WHY] = "";
  struct rt_area *area = rt_area_make(comm, TAKER, SIZE, offer, why);
  ENSURE(area, "%s", why);
  ENSURE(offer->to.way == way, "it goes by %s", rt_way_text(offer->to.way));
  rt_area_publish(offer);
  rank_barrier(rank);
  rank_barrier(rank);
  ENSURE(rt_offer_state(offer) == RT_OFFER_RETURNED, "it is in state %d", rt_offer_state(offer));
  int32_t seen;
  gpu_get(&seen, rt_area_base(area), sizeof seen);
  ENSURE(seen == 4711, "the taker's word is %d", seen);
  ENSURE(!rt_area_leave(area, offer, comm->peers[TAKER].pid, (struct rt_range){NULL, 0}), "somebody still has it");
}

static void taker(const struct rank *rank, struct ncclComm *comm, struct rt_area_offer *offer) {
  struct rt_area_view view;
  char why[RT_WHY] = "";
  const int32_t word = 4711;
  rank_barrier(rank);
  refuses_lies(comm, offer);
  ENSURE(rt_area_take(comm, offer, SIZE, OWNER, RT_SYS, &view, why), "%s", why);
  int32_t first;
  gpu_get(&first, view.base, sizeof first);
  ENSURE(first == 0, "it is not zeroed: %d", first);
  gpu_put(view.base, &word, sizeof word);
  rt_area_use(&view, offer);
  rt_area_return(&view, offer);
  rank_barrier(rank);
}

static void both(const struct rank *rank, void *arg) {
  struct table *t = rank->shared;
  gpu_open();
  int fds = kit_fd_count();
  struct ncclComm *comm = meet(rank, t);
  if (rank->rank == OWNER)
    owner(rank, comm, &t->offer, *(const enum rt_way *)arg);
  else
    taker(rank, comm, &t->offer);
  part(comm);
  gpu_nothing_left();
  rank_back_to(fds, kit_thread_count(), "the area");
}

static void by(const char *env, enum rt_way way) {
  char all[128];
  snprintf(all, sizeof all, "NCCL_DEBUG=NONE %s", env);
  job_run(all, 2, kit_patience_ms(PATIENCE), both, &way);
}

TEST(file_descriptors) { by("", RT_WAY_FD); }
TEST(fabric_handles) { by("FAKEGPU_ATTRIBUTES=128:1", RT_WAY_FABRIC); }
TEST(cuda_ipc) { by("NCCL_CUMEM_ENABLE=0", RT_WAY_IPC); }

TEST_MAIN(TEST_CASE(file_descriptors), TEST_CASE(fabric_handles), TEST_CASE(cuda_ipc))
