/* SPDX-License-Identifier: Apache-2.0
 * When the loss of a queue pair is the end of its connection, when it is not, and what the line says. */
#include <unistd.h>

#include "common/base/clock.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_progress.h"
#include "test/unit/ib_pair.h"

/* What is to be resent waits for room in the send queue of a QP whose work requests its HCA has lost. That ends as
 * without a loss; while the lost QP waits for its peer it does not. */
TEST(a_stall_ends_the_wait_for_room) {
  static const struct pair_shape shape = {1, 2, 1, 12, 4, 0};
  static uint8_t out[100], in[2][100];
  struct pair p;
  void *sends[2];
  int done = 0;
  rail_result_t result = RAIL_OK;
  pair_open(&p, &shape);
  CHECK_OK(ib_failover_init(p.sc));
  struct ib_mhandle *mh_out = pair_reg(&p, p.sc, out, sizeof out), *mh_in = pair_reg(&p, p.rc, in, sizeof in);
  for (int i = 0; i < 2; i++) CHECK(pair_irecv(&p, in[i], sizeof in[i], i, mh_in));
  CHECK_OK(ib_progress(p.rc));
  emu_do("stall op=imm times=ever");
  for (int i = 0; i < 2; i++) CHECK((sends[i] = pair_isend(&p, out, sizeof out, i, mh_out)) != NULL);
  p.sc->qps[0].sq_avail = 0;
  p.sc->qps[0].attr.timeout = 1;
  atomic_store(&p.sc->failover->qps[1].stopped_or_refused, true); /* as if the peer had been told */
  ib_qp_fault(p.sc, 1, IB_FAULT_EVENT);
  for (int i = 0; i < 9; i++) {
    atomic_fetch_or(&p.sc->pending_work, IB_COMM_STALLED);
    CHECK_OK(ib_test(sends[0], &done, NULL));
  }
  CHECK(p.sc->failover->qps[1].state == IB_FAILOVER_AWAIT_PEER && !p.sc->probe_deadline);
  ib_qp_fault(p.sc, 1, IB_FAULT_PEER_STOPPED);
  for (uint64_t end = rail_deadline_in_ms(10000); result == RAIL_OK && !rail_deadline_passed(end); usleep(1000))
    result = ib_test(sends[0], &done, NULL);
  CHECK_INT(result, RAIL_SYSTEM_ERROR);
  CHECK(p.sc->failover->recovering && strstr(pair_line, "the HCA has lost a work request"));
  pair_close(&p);
}

/* This side saw a retry exceeded; why the connection ends is that the peer's has failed. */
TEST(a_refusal_is_named_whatever_this_side_saw) {
  static const struct pair_shape shape = {1, 2, 1, 12, 4, 0};
  struct pair p;
  pair_open(&p, &shape);
  CHECK_OK(ib_failover_init(p.sc));
  const struct ibv_wc wc = {.status = IBV_WC_RETRY_EXC_ERR, .wr_id = ib_wr_id(IB_WR_SEND, 1, 1, 0)};
  CHECK(ib_failover_completion(p.sc, &wc));
  ib_qp_fault(p.sc, 1, IB_FAULT_PEER_REFUSED);
  CHECK_INT(ib_failover_run(p.sc), RAIL_REMOTE_ERROR);
  CHECK(strstr(pair_line, "the peer has given up the last queue pair, or its connection has failed"));
  CHECK(strstr(pair_line, "queue pairs lost before: 1 of port emu0:1"));
  pair_close(&p);
}

/* READY of one, or its first write, has come before the loss of the other was seen, and after the last look at it. */
TEST(one_that_has_just_come_back_counts) {
  static const struct pair_shape shape = {1, 2, 1, 12, 4, 0};
  for (int sender = 0; sender < 2; sender++) {
    struct pair p;
    pair_open(&p, &shape);
    struct ib_comm *comm = sender ? p.sc : p.rc;
    CHECK_OK(ib_failover_init(comm));
    struct ib_failover_qp *fq = ib_failover_qp(comm, 1);
    const struct ibv_wc wc = {.status = IBV_WC_RETRY_EXC_ERR, .wr_id = ib_wr_id(IB_WR_SEND, 0, 1, 0)};
    fq->state = IB_FAILOVER_VERIFYING;
    if (sender) ib_send_update_live(ib_send_comm_of(comm));
    CHECK(!ib_failover_completion(comm, &wc)); /* not yet: 0 is the last */
    if (sender) atomic_store(&fq->return_events, IB_EVENT_PEER_READY);
    else ib_return_verified(comm, 1);
    CHECK(ib_failover_completion(comm, &wc));
    CHECK_INT(ib_failover_qp(comm, 0)->state, IB_FAILOVER_AWAIT_FLUSH);
    CHECK_INT(fq->state, IB_FAILOVER_UP);
    if (sender) CHECK(ib_send_comm_of(comm)->nlive == 1 && ib_send_comm_of(comm)->live[0] == &comm->qps[1]);
    pair_close(&p);
  }
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(a_stall_ends_the_wait_for_room),
                                          TEST_CASE(a_refusal_is_named_whatever_this_side_saw),
                                          TEST_CASE(one_that_has_just_come_back_counts)};
  ib_emu_use("device emu0");
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
