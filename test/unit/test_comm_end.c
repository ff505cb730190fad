/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 60
 *
 * Proves, with all ranks of a communicator in one process: an abort ends a destroy that waits, and one of them frees;
 * one thread finalizes all ranks, in a group or without; no communicator ends while calls of it wait for the end of the
 * thread's group, unless it is aborted. Ranks that are processes finalize their communicators in different orders.
 */
#include <unistd.h>

#include "core/comm/rt_comm.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 20000
#define COUNT 100000

static ncclComm_t pair[2], child[2];
static int32_t x[2][COUNT];

static void alone(rank_fn body) { job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), body, NULL); }

static void open_pair(void) {
  OK(ncclCommInitAll(pair, 2, NULL));
  OK(ncclGroupStart());
  for (int r = 0; r < 2; r++) OK(ncclAllReduce(x[r], x[r], COUNT, ncclInt32, ncclSum, pair[r], NULL));
  OK(ncclGroupEnd());
  for (int r = 0; r < 2; r++) OK(railCommWait(pair[r]));
}

/* ---- an abort beside a destroy ---- */

static void destroy_or_abort(void *arg) {
  if (*(int *)arg == 0) {
    ENSURE_INT(ncclCommDestroy(pair[0]), ncclRemoteError);
    return;
  }
  while (!atomic_load(&pair[0]->ending)) usleep(1000);
  REFUSED(ncclCommDestroy(pair[0]), ncclInvalidArgument, "another thread");
  OK(ncclCommAbort(pair[0]));
}

/* Rank 1 never makes the call that rank 0's destroy waits for. */
static void beside(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  int which[2] = {0, 1};
  for (int i = 0; i < 10; i++) {
    open_pair();
    OK(ncclAllReduce(x[0], x[0], COUNT, ncclInt32, ncclSum, pair[0], NULL));
    kit_run_threads(2, destroy_or_abort, which, sizeof which[0]);
    OK(ncclCommAbort(pair[1]));
  }
}
TEST(an_abort_ends_a_destroy_that_waits) { alone(beside); }

/* ---- finalize ---- */

static void finalized(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  for (int in_group = 0; in_group < 2; in_group++) {
    open_pair();
    if (in_group) OK(ncclGroupStart());
    for (int r = 0; r < 2; r++) OK(ncclCommFinalize(pair[r]));
    if (in_group) OK(ncclGroupEnd());
    for (int r = 0; r < 2; r++) OK(ncclCommDestroy(pair[r]));
  }
}
TEST(one_thread_finalizes_all_ranks) { alone(finalized); }

/* Rank 0 finalizes and ends both communicators before rank 1 does, in the other order, and has read the last sum. */
static void crossed(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comms[2];
  for (int k = 0; k < 2; k++) {
    OK(ncclCommInitRank(&comms[k], rank->nranks, make_id(rank, k), rank->rank));
    for (int i = 0; i < COUNT; i++) x[k][i] = rank->rank + 1;
    OK(ncclAllReduce(x[k], x[k], COUNT, ncclInt32, ncclSum, comms[k], NULL));
  }
  if (rank->rank == 1) usleep(100000);
  for (int k = 0; k < 2; k++) OK(ncclCommFinalize(comms[k ^ rank->rank]));
  for (int k = 0; k < 2; k++) {
    OK(ncclCommDestroy(comms[k]));
    for (int i = 0; i < COUNT; i++) ENSURE_INT(x[k][i], 3);
  }
}
TEST(ranks_finalize_in_different_orders) {
  job_run("", 2, kit_patience_ms(TIMEOUT_MS), crossed, NULL);
  if (ranks_plugin()) job_run("NCCL_SHM_DISABLE=1", 2, kit_patience_ms(TIMEOUT_MS), crossed, NULL);
}

/* ---- in an open group ---- */

static void sum_in_group(void) {
  OK(ncclGroupStart());
  for (int r = 0; r < 2; r++) OK(ncclAllReduce(x[r], x[r], COUNT, ncclInt32, ncclSum, pair[r], NULL));
}

static void split_in_group(void) {
  OK(ncclGroupStart());
  for (int r = 0; r < 2; r++) OK(ncclCommSplit(pair[r], 0, 0, &child[r], NULL));
}

static void in_group(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  open_pair();
  sum_in_group();
  split_in_group();
  OK(ncclGroupEnd());
  REFUSED(ncclCommDestroy(pair[0]), ncclInvalidUsage, "open group");
  REFUSED(ncclCommFinalize(pair[1]), ncclInvalidUsage, "open group");
  OK(ncclGroupEnd());
  for (int r = 0; r < 2; r++) OK(ncclCommDestroy(pair[r]));
  for (int r = 0; r < 2; r++) OK(ncclCommDestroy(child[r]));
  void (*const begin[2])(void) = {sum_in_group, split_in_group};
  for (int b = 0; b < 2; b++) {
    open_pair();
    begin[b]();
    for (int r = 0; r < 2; r++) OK(ncclCommAbort(pair[r]));
    ENSURE_INT(ncclGroupEnd(), ncclInvalidUsage);
  }
}
TEST(a_communicator_does_not_end_before_the_calls_of_its_group) { alone(in_group); }

TEST_MAIN(TEST_CASE(an_abort_ends_a_destroy_that_waits), TEST_CASE(one_thread_finalizes_all_ranks),
          TEST_CASE(ranks_finalize_in_different_orders),
          TEST_CASE(a_communicator_does_not_end_before_the_calls_of_its_group))
