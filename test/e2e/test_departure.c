/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: tsan
 *
 * Proves: a rank that ends its communicator is an error, with its number, on ranks whose first call waits for it, over
 * shared memory and over a plugin; a communicator that is destroyed while another is being made from it stays until
 * that is over.
 */
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000
#define NET "NCCL_SHM_DISABLE=1 "

enum when { BEFORE, MEANWHILE };
struct departure {
  int leaver, n; /* n: elements of the call that waits */
  enum when when;
};

/* Rank 0 receives from the leaver, which is no neighbour of its in the ring; or all others make a collective. */
static void leave(const struct rank *rank, void *arg) {
  const struct departure *d = arg;
  static int32_t in[100], out[100];
  ncclComm_t comm = open_comm(rank);
  const bool waits = d->n == 2 || rank->rank == 0;
  if (rank->rank == d->leaver && d->when == MEANWHILE) usleep(300000);
  if (rank->rank == d->leaver) OK(ncclCommDestroy(comm));
  if (d->when == BEFORE) rank_barrier(rank);
  if (waits && rank->rank != d->leaver) {
    ncclResult_t r = d->n > 2 ? ncclRecv(out, (size_t)d->n, ncclInt32, d->leaver, comm, NULL)
                              : ncclAllReduce(in, out, (size_t)d->n, ncclInt32, ncclSum, comm, NULL);
    if (r == ncclSuccess) r = railCommWait(comm);
    ENSURE_INT(r, ncclRemoteError);
    char who[32];
    snprintf(who, sizeof who, "rank %d", d->leaver);
    ENSURE(strstr(ncclGetLastError(comm), who), "\"%s\" does not name %s", ncclGetLastError(comm), who);
  }
  rank_barrier(rank); /* an abort is an error, too */
  if (rank->rank != d->leaver) OK(ncclCommAbort(comm));
}

static void run(const char *env, struct departure d) {
  char all[100];
  snprintf(all, sizeof all, "NCCL_DEBUG=WARN %s", env);
  job_run(all, 4, kit_patience_ms(TIMEOUT_MS), leave, &d);
}

TEST(a_first_receive) {
  for (int when = BEFORE; when <= MEANWHILE; when++) run("", (struct departure){2, 100, when});
}
TEST(a_first_receive_over_a_plugin) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
  for (int when = BEFORE; when <= MEANWHILE; when++) run(NET, (struct departure){2, 100, when});
}
TEST(a_first_small_call) {
  run("", (struct departure){0, 2, MEANWHILE});
  run("", (struct departure){2, 2, MEANWHILE});
}

/* Rank 1 makes the call late: rank 0's communicator waits for it in a thread when the parent is destroyed. */
static void destroy_parent(const struct rank *rank, void *arg) {
  (void)arg;
  ncclConfig_t config = without_blocking();
  ncclComm_t parent = open_comm(rank), child = NULL;
  if (rank->rank == 1) usleep(200000);
  ncclResult_t r = ncclCommSplit(parent, 0, 0, &child, &config);
  ENSURE(r == ncclInProgress || r == ncclSuccess, "a split without blocking gives %d", r);
  if (rank->rank == 0) OK(ncclCommDestroy(parent));
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(20000));
  do OK(ncclCommGetAsyncError(child, &r));
  while (r == ncclInProgress && !rail_deadline_passed(deadline));
  ENSURE_INT(r, ncclSuccess);
  check_members(child, rank->rank, 3);
  close_comm(child);
  if (rank->rank == 1) OK(ncclCommDestroy(parent));
}
TEST(a_parent_destroyed_while_a_child_is_made) { job_run("", 2, kit_patience_ms(TIMEOUT_MS), destroy_parent, NULL); }

TEST_MAIN(TEST_CASE(a_first_receive), TEST_CASE(a_first_receive_over_a_plugin), TEST_CASE(a_first_small_call),
          TEST_CASE(a_parent_destroyed_while_a_child_is_made))
