/* SPDX-License-Identifier: Apache-2.0
 * Return of a lost queue pair, in parts: when it is tried, and what may happen to the new one before it is in use. What
 * both sides make of it is fault/test_ib_failover.c's. */
#include <semaphore.h>

#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_progress.h"
#include "test/unit/ib_pair.h"
#include "test/unit/ib_watch_rig.h"

/* ---- when -------------------------------------------------------------------------- */

/* A subnet manager that has been restarted may give a port another LID; the peer's address vectors have the old one. */
TEST(a_port_of_infiniband_comes_back_with_its_addresses) {
  static const struct { bool gid; const char *now; bool rebuilt; } rows[] = {
    {true, "port emu0 1 lid=9", true},
    {true, "port emu0 1 lid=10", false},
    {true, "gid emu0 1 0 none; gid emu0 1 2 fe80::1 type=ib", true}, /* at another index */
    {true, "gid emu0 1 0 fe80::77 type=ib", false},
    {false, "gid emu0 1 0 fe80::77 type=ib", true}, /* the handshake had none */
  };
  static const struct pair_shape shape = {1, 2, 1, 12, 4, 0};
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) {
    struct pair p;
    pair_open(&p, &shape);
    CHECK_OK(ib_failover_init(p.rc));
    struct ib_failover_qp *fq = &p.rc->failover->qps[1];
    struct ib_rail *rail = &p.rc->rails[0];
    rail->port->roce = false;
    rail->gid_index = 0;
    rail->lid = 9;
    memset(rail->gid, 0, sizeof rail->gid);
    if (rows[i].gid) rail->gid[0] = 0xfe, rail->gid[1] = 0x80, rail->gid[15] = 1;
    p.rc->remote_rails[0].gid_type = IB_GID_IB;
    ib_comm_drop_qp(&p.rc->qps[1]);
    fq->state = IB_FAILOVER_REBUILDING;
    emu_do("port emu0 1 link=ib lid=9; gid emu0 1 0 fe80::1 type=ib; gid emu0 1 2 none");
    emu_do(rows[i].now);
    CHECK_OK(ib_failover_run(p.rc));
    const bool announced = atomic_load(&fq->own_qpn) != 0; /* without an oob connection the try ends there */
    CHECK_MSG(announced == rows[i].rebuilt, "row %zu: a new queue pair is announced: %d", i, announced);
    emu_do("port emu0 1 link=eth");
    ib_return_close(p.rc);
    pair_close(&p);
  }
  rail_log_set_sink(log_capture);
}

/* However many tries have failed: a switch may take a second until it forwards, and 30 would be lost. */
TEST(a_port_that_comes_up_is_tried_at_once_and_soon_again) {
  static const struct pair_shape shape = {1, 2, 1, 12, 4, 0};
  struct pair p;
  pair_open(&p, &shape);
  CHECK_OK(ib_failover_init(p.rc));
  struct ib_failover_qp *fq = &p.rc->failover->qps[1];
  fq->state = IB_FAILOVER_DOWN;
  fq->tries = 6;
  ib_return_schedule(fq);
  CHECK(ib_return_next(p.rc) > rail_deadline_in_ms(25000));
  atomic_fetch_or(&fq->return_events, IB_EVENT_PORT_UP);
  CHECK(rail_deadline_passed(ib_return_next(p.rc)));
  fq->tries++; /* that one fails */
  ib_return_schedule(fq);
  CHECK(ib_return_next(p.rc) <= rail_deadline_in_ms(1000));
  pair_close(&p);
  rail_log_set_sink(log_capture);
}

/* ---- faults before it is in use ------------------------------------------------------- */

/* QP 1, which is in RTS, is the new one in its own place. */
static struct ib_failover_qp *take_as_new(struct ib_comm *comm) {
  struct ib_failover_qp *fq = ib_failover_qp(comm, 1);
  fq->next = comm->qps[1];
  comm->qps[1].qp = NULL;
  fq->state = IB_FAILOVER_REBUILDING;
  return fq;
}

/* A flush that could not be posted, an event of the flush queue pair that is replaced: the new one has not failed. But
 * a port that is down is. */
TEST(faults_of_before_are_not_the_new_queue_pairs) {
  static const struct pair_shape shape = {1, 2, 1, 12, 4, 0};
  for (int down = 0; down < 2; down++) {
    struct pair p;
    pair_open(&p, &shape);
    CHECK_OK(ib_failover_init(p.rc));
    struct ib_failover_qp *fq = take_as_new(p.rc);
    atomic_store(&fq->faults, IB_FAULT_EVENT | IB_FAULT_POST | IB_FAULT_PORT);
    atomic_store(&p.ports[0].faults, down ? IB_PORT_DOWN : 0);
    CHECK_OK(ib_failover_run(p.rc));
    CHECK_INT(fq->state, down ? IB_FAILOVER_AWAIT_FLUSH : IB_FAILOVER_VERIFYING);
    CHECK_INT(atomic_load(&fq->faults), down ? IB_FAULT_PORT : 0);
    pair_close(&p);
  }
  rail_log_set_sink(log_capture);
}

/* Its receive WRs are flushed once, before it is in use: were it used, its stop would be waited for in vain. */
TEST(a_new_queue_pair_that_breaks_is_not_used) {
  static const struct pair_shape shape = {1, 2, 1, 12, 4, 0};
  struct pair p;
  char text[32];
  pair_open(&p, &shape);
  CHECK_OK(ib_failover_init(p.rc));
  struct ib_failover_qp *fq = take_as_new(p.rc);
  fq->has_peer_new = true;
  snprintf(text, sizeof text, "qp_error qp=%u", fq->next.qp->qp_num);
  emu_do(text);
  CHECK_OK(ib_progress(p.rc)); /* polls what was flushed */
  CHECK_OK(ib_failover_run(p.rc));
  CHECK_INT(fq->state, IB_FAILOVER_AWAIT_PEER);
  CHECK(!fq->next.qp);
  pair_close(&p);
  rail_log_set_sink(log_capture);
}

/* Between two of them what the lost one has left is polled; and where the comm is stopped there is no last one. */
TEST(each_step_of_a_flush_queue_pair_is_a_run) {
  static const struct pair_shape shape = {2, 2, 1, 12, 4, 0};
  for (int stopped = 0; stopped < 2; stopped++) {
    struct pair p;
    pair_open(&p, &shape);
    CHECK_OK(ib_failover_init(p.rc));
    ib_params.flush = IB_FLUSH_ALWAYS;
    for (int calls = 0; ib_flush_open(p.rc) == RAIL_IN_PROGRESS; calls++) CHECK(calls < 10000);
    struct ib_flush *flush = ib_recv_comm_of(p.rc)->flush;
    struct ib_failover_qp *fq = take_as_new(p.rc);
    flush->rails = 1; /* the second rail's is lost, too */
    atomic_store(&p.rc->stopped, stopped);
    CHECK_OK(ib_failover_run(p.rc));
    CHECK(!flush->qps[1].qp && !flush->next[1].qp);
    CHECK_OK(ib_failover_run(p.rc));
    CHECK(flush->next[1].qp && flush->next[1].state == IB_QP_RESET);
    for (int i = 0; i < 20; i++) CHECK_OK(ib_failover_run(p.rc));
    CHECK_INT(fq->state, stopped ? IB_FAILOVER_REBUILDING : IB_FAILOVER_VERIFYING);
    CHECK_INT(flush->rails, stopped ? 1 : 3);
    ib_return_close(p.rc);
    ib_flush_close(p.rc);
    pair_close(&p);
  }
  rail_log_set_sink(log_capture);
}

/* ---- a new queue pair whose peer's address takes long to resolve ------------------ */

static sem_t resolved;
static int (*modify)(struct ibv_qp *, struct ibv_qp_attr *, int);

static int modify_slowly(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
  while (attr->qp_state == IBV_QPS_RTR && sem_wait(&resolved) != 0) continue;
  return modify(qp, attr, mask);
}

/* Of both sides QP 1 is lost, and the receiver's new one is in INIT. */
static struct ib_failover_qp *pair_with_new_qp(struct pair *p) {
  static const struct pair_shape shape = {1, 2, 1, 12, 4, 0};
  pair_open(p, &shape);
  CHECK_OK(ib_failover_init(p->sc));
  CHECK_OK(ib_failover_init(p->rc));
  p->sc->failover->qps[1].state = IB_FAILOVER_REBUILDING;
  ib_send_update_live(ib_send_comm_of(p->sc));
  struct ib_failover_qp *fq = &p->rc->failover->qps[1];
  struct ib_qp *lost = &p->rc->qps[1];
  fq->next.index = lost->index;
  fq->next.attr = lost->attr;
  CHECK_OK(ib_qp_create(&fq->next, &p->ports[0], p->rc->rails[0].cq, &lost->sizes, p->rc));
  CHECK_OK(ib_qp_to_init(&fq->next, &p->ports[0], PAIR_ACCESS));
  ib_comm_drop_qp(lost);
  fq->state = IB_FAILOVER_REBUILDING;
  fq->has_peer_new = true;
  return fq;
}

TEST(data_goes_on_while_an_address_is_resolved) {
  static uint8_t out[16384], in[16384];
  for (int stopped = 0; stopped < 2; stopped++) {
    struct pair p;
    struct ib_failover_qp *fq = pair_with_new_qp(&p);
    struct ib_mhandle *mh_out = pair_reg(&p, p.sc, out, sizeof out), *mh_in = pair_reg(&p, p.rc, in, sizeof in);
    CHECK(sem_init(&resolved, 0, 0) == 0);
    modify = ib_verbs.modify_qp;
    ib_verbs.modify_qp = modify_slowly;
    CHECK_OK(ib_failover_run(p.rc));
    CHECK(ib_return_is_busy(fq));
    void *recv = pair_irecv(&p, in, sizeof in, 1, mh_in), *send = pair_isend(&p, out, sizeof out, 1, mh_out);
    pair_finish(send, RAIL_OK);
    pair_finish(recv, RAIL_OK);
    if (stopped) ib_qp_fault(p.rc, 1, IB_FAULT_PEER_STOPPED);
    CHECK_OK(ib_failover_run(p.rc));
    CHECK(ib_return_is_busy(fq) && fq->next.qp); /* destroyed when the thread has done with it */
    CHECK(sem_post(&resolved) == 0);
    RIG_WAIT(!ib_return_is_busy(fq), 5000);
    CHECK(PENDING(p.rc) & IB_COMM_FAILOVER);
    CHECK_OK(ib_failover_run(p.rc));
    CHECK_INT(fq->state, stopped ? IB_FAILOVER_DOWN : IB_FAILOVER_VERIFYING);
    CHECK(!fq->next.qp);
    ib_verbs.modify_qp = modify;
    pair_close(&p);
  }
  rail_log_set_sink(log_capture);
}

/* A close does not leave the thread behind. */
TEST(a_close_while_an_address_is_resolved) {
  struct pair p;
  struct ib_failover_qp *fq = pair_with_new_qp(&p);
  CHECK(sem_init(&resolved, 0, 0) == 0);
  modify = ib_verbs.modify_qp;
  ib_verbs.modify_qp = modify_slowly;
  CHECK_OK(ib_failover_run(p.rc));
  CHECK(ib_return_is_busy(fq));
  CHECK(sem_post(&resolved) == 0);
  ib_return_close(p.rc);
  CHECK(!fq->rtr_begun && !fq->next.qp);
  ib_verbs.modify_qp = modify;
  pair_close(&p);
  rail_log_set_sink(log_capture);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(a_port_of_infiniband_comes_back_with_its_addresses),
    TEST_CASE(a_port_that_comes_up_is_tried_at_once_and_soon_again),
    TEST_CASE(faults_of_before_are_not_the_new_queue_pairs),
    TEST_CASE(a_new_queue_pair_that_breaks_is_not_used),
    TEST_CASE(each_step_of_a_flush_queue_pair_is_a_run),
    TEST_CASE(data_goes_on_while_an_address_is_resolved),
    TEST_CASE(a_close_while_an_address_is_resolved)};
  rig_use("device emu0 ports=2");
  return rig_main_watched(argc, argv, cases, RAIL_COUNT_OF(cases));
}
