/* SPDX-License-Identifier: Apache-2.0
 * Loss of a queue pair, in parts: what a count settles, and what the watch thread answers for a comm. What both sides
 * make of it is fault/test_ib_failover.c's. */
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_failover.h"
#include "plugin/ib/ib_progress.h"
#include "test/unit/ib_pair.h"
#include "test/unit/ib_watch_rig.h"

/* ---- what a count settles --------------------------------------------------- */

static struct ib_posted entries[IB_SEND_DEPTH];

static void push(struct ib_qp *qp, unsigned int send, unsigned int part, bool tail) {
  *ib_posted_at(&qp->posted, qp->posted.end++) =
    (struct ib_posted){.send = send & 0xff, .part = part & 0x7f, .tail = tail};
}

/* A QP with so many parts that are not acknowledged, behind `acked` that are; part i has i % 3 writes before its tail,
 * and after the last come `begun` writes of one whose tail is not posted. */
static struct ib_qp qp_with(uint32_t start, uint32_t acked, unsigned int unacked, unsigned int begun) {
  struct ib_qp qp = {.posted = {.entries = entries, .first = start, .end = start}};
  atomic_init(&qp.tails, acked + unacked);
  for (unsigned int i = 0; i < unacked; i++) {
    for (unsigned int b = 0; b < i % 3; b++) push(&qp, i, 5, false);
    push(&qp, i, 5, true);
  }
  for (unsigned int b = 0; b < begun; b++) push(&qp, unacked, 0, false);
  return qp;
}

TEST(a_count_tells_what_arrived) {
  static const uint32_t starts[] = {0, 500, UINT32_MAX - 3};
  struct ib_posted done[IB_SEND_DEPTH];
  unsigned int ndone;
  for (size_t s = 0; s < RAIL_COUNT_OF(starts); s++)
    for (unsigned int unacked = 0; unacked <= 9; unacked++)
      for (unsigned int delivered = 0; delivered <= unacked; delivered++) {
        uint32_t acked = starts[RAIL_COUNT_OF(starts) - 1 - s];
        struct ib_qp qp = qp_with(starts[s], acked, unacked, 2);
        uint32_t before = qp.posted.end - qp.posted.first;
        CHECK_INT(ib_posted_split(&qp, acked + delivered, done, &ndone), unacked - delivered);
        CHECK_INT(qp.posted.end - qp.posted.first, unacked - delivered);
        for (unsigned int i = 0; i < unacked - delivered; i++) { /* in order, the oldest first */
          const struct ib_posted *left = ib_posted_at(&qp.posted, qp.posted.first + i);
          CHECK(left->send == delivered + i && left->part == 5 && left->tail);
        }
        CHECK_INT(ndone, before - (unacked - delivered));
        unsigned int tails = 0;
        for (unsigned int i = 0; i < ndone; i++) tails += done[i].tail;
        CHECK_INT(tails, delivered);
      }
}

TEST(a_count_that_cannot_be) {
  struct ib_posted done[IB_SEND_DEPTH];
  unsigned int ndone;
  for (uint32_t acked = 0; acked < 3; acked++) {
    static const int wrong[] = {-1, 5, 1000, 1 << 30};
    for (size_t i = 0; i < RAIL_COUNT_OF(wrong); i++) {
      struct ib_qp qp = qp_with(7, acked, 4, 1);
      const uint32_t end = qp.posted.end;
      CHECK(ib_posted_split(&qp, acked + (uint32_t)wrong[i], done, &ndone) == IB_COUNT_INVALID);
      CHECK(ndone == 0 && qp.posted.end == end); /* nothing has changed */
    }
  }
}

TEST(a_full_ring) {
  struct ib_posted done[IB_SEND_DEPTH];
  unsigned int ndone;
  struct ib_qp qp = {.posted = {.entries = entries, .first = 100, .end = 100 + IB_SEND_DEPTH}};
  for (unsigned int i = 0; i < IB_SEND_DEPTH; i++) entries[i] = (struct ib_posted){.tail = 1};
  atomic_init(&qp.tails, IB_SEND_DEPTH);
  CHECK_INT(ib_posted_split(&qp, 0, done, &ndone), IB_SEND_DEPTH);
  CHECK_INT(ndone, 0);
  CHECK_INT(ib_posted_split(&qp, IB_SEND_DEPTH, done, &ndone), 0);
  CHECK_INT(ndone, IB_SEND_DEPTH);
}

/* ---- what is written again ------------------------------------------------------ */

/* The loss of a QP, as if the peer had been told already; from `peer` on it has said that nothing came over it. */
static void lose_qp(struct ib_comm *comm, unsigned int qp, bool peer) {
  atomic_store(&comm->failover->qps[qp].stopped_or_refused, true);
  ib_qp_fault(comm, qp, IB_FAULT_EVENT | (peer ? IB_FAULT_PEER_STOPPED : 0));
}

/* Two are lost. The part of one is half written again when the other one's turn comes. */
TEST(what_was_begun_is_ended_first) {
  static const struct pair_shape shape = {1, 4, 1, 12, 4, 0};
  static const size_t sizes[] = {100, 4096, 16384};
  static uint8_t out[3][16384], in[3][16384];
  struct pair p;
  void *sends[3], *recvs[3];
  pair_open(&p, &shape);
  emu_do("progress poll");
  CHECK_OK(ib_failover_init(p.sc));
  struct ib_mhandle *mh_out = pair_reg(&p, p.sc, out, sizeof out), *mh_in = pair_reg(&p, p.rc, in, sizeof in);
  memset(in, 0, sizeof in);
  for (int i = 0; i < 3; i++) {
    for (size_t b = 0; b < sizes[i]; b++) out[i][b] = (uint8_t)(i * 91 + (int)(b * 3) + (int)(b >> 8) + 1);
    recvs[i] = pair_irecv(&p, in[i], sizes[i], i, mh_in);
    CHECK(recvs[i]);
  }
  CHECK_OK(ib_progress(p.rc)); /* the announcements arrive */
  for (int i = 0; i < 3; i++) CHECK((sends[i] = pair_isend(&p, out[i], sizes[i], i, mh_out)) != NULL);
  for (unsigned int i = 0; i < 3; i++) CHECK_INT(p.sc->qps[i].posted.end, 1); /* a message each */
  p.sc->qps[0].sq_avail = p.sc->qps[3].sq_avail = 2; /* of the 4 that the largest takes */
  lose_qp(p.sc, 1, false);
  lose_qp(p.sc, 2, true);
  CHECK_OK(ib_failover_run(p.sc));
  for (int i = 0; i < 9 && p.sc->failover->qps[2].state != IB_FAILOVER_DOWN; i++) CHECK_OK(ib_progress(p.sc));
  CHECK(ib_is_begun(&ib_send_comm_of(p.sc)->resend) && ib_send_comm_of(p.sc)->resend_of == 2);
  CHECK_INT(p.sc->failover->qps[1].state, IB_FAILOVER_AWAIT_PEER);
  lose_qp(p.sc, 1, true);
  for (int i = 0; i < 3; i++) CHECK_INT(pair_finish(sends[i], RAIL_OK), sizes[i]);
  for (int i = 0; i < 3; i++) CHECK_INT(pair_finish(recvs[i], RAIL_OK), sizes[i]);
  for (int i = 0; i < 3; i++) CHECK_MSG(memcmp(in[i], out[i], sizes[i]) == 0, "message %d", i);
  CHECK_INT(p.sc->stats[IB_COMM_RESENT], 2);
  CHECK(!p.sc->failover->recovering && strstr(pair_line, "goes on without 2 of 4 queue pairs"));
  pair_close(&p);
  rail_log_set_sink(log_capture);
}

/* A peer that stops a queue pair twice would settle with its second count what waits to be resent. */
TEST(a_second_stopped_is_a_protocol_error) {
  static const struct pair_shape shape = {1, 4, 1, 12, 4, 0};
  static const size_t sizes[] = {100, 4096, 16384};
  static uint8_t out[3][16384], in[3][16384];
  struct pair p;
  void *sends[3];
  pair_open(&p, &shape);
  emu_do("progress poll");
  CHECK_OK(ib_failover_init(p.sc));
  struct ib_mhandle *mh_out = pair_reg(&p, p.sc, out, sizeof out), *mh_in = pair_reg(&p, p.rc, in, sizeof in);
  for (int i = 0; i < 3; i++) CHECK(pair_irecv(&p, in[i], sizes[i], i, mh_in));
  CHECK_OK(ib_progress(p.rc));
  for (int i = 0; i < 3; i++) CHECK((sends[i] = pair_isend(&p, out[i], sizes[i], i, mh_out)) != NULL);
  p.sc->qps[0].sq_avail = p.sc->qps[1].sq_avail = p.sc->qps[3].sq_avail = 2; /* of the 4 that the largest takes */
  lose_qp(p.sc, 2, true);
  CHECK_OK(ib_failover_run(p.sc));
  for (int i = 0; i < 9 && p.sc->failover->qps[2].state != IB_FAILOVER_DOWN; i++) CHECK_OK(ib_progress(p.sc));
  CHECK(ib_is_begun(&ib_send_comm_of(p.sc)->resend) && ib_send_comm_of(p.sc)->resend_of == 2);
  ib_qp_fault(p.sc, 2, IB_FAULT_PEER_STOPPED);
  CHECK_INT(ib_failover_run(p.sc), RAIL_REMOTE_ERROR);
  CHECK(strstr(pair_line, "sent a second STOPPED for lost queue pair 2"));
  int done = 0;
  CHECK_INT(ib_test(sends[2], &done, NULL), RAIL_REMOTE_ERROR);
  pair_close(&p);
  rail_log_set_sink(log_capture);
}

/* A receiver made no calls while its peer lost a queue pair that was on its way back; the watch thread has answered,
 * and the peer's next NEW is there: it is the next try's, and this one sends nothing more. */
TEST(a_try_that_the_peer_has_ended_does_not_go_on) {
  static const struct pair_shape shape = {1, 3, 1, 12, 4, 0};
  struct pair p;
  pair_open(&p, &shape);
  CHECK_OK(ib_failover_init(p.rc));
  struct ib_failover_qp *half_made = &p.rc->failover->qps[1], *verified = &p.rc->failover->qps[2];
  half_made->state = IB_FAILOVER_REBUILDING;
  half_made->next.state = IB_QP_INIT;
  verified->state = IB_FAILOVER_VERIFYING;
  verified->verified = true;
  for (struct ib_failover_qp *fq = half_made; fq <= verified; fq++) {
    atomic_store(&fq->stopped_or_refused, true);
    atomic_store(&fq->return_events, IB_EVENT_PEER_NEW);
    ib_qp_fault(p.rc, (unsigned int)(fq - p.rc->failover->qps), IB_FAULT_PEER_STOPPED);
  }
  CHECK_OK(ib_failover_run(p.rc));
  CHECK_INT(half_made->state, IB_FAILOVER_DOWN);
  CHECK_INT(verified->state, IB_FAILOVER_AWAIT_FLUSH);
  CHECK(!atomic_load(&verified->ready_due));
  CHECK_INT(atomic_load(&half_made->return_events) & IB_EVENT_PEER_NEW, IB_EVENT_PEER_NEW);
  CHECK_INT(atomic_load(&verified->return_events) & IB_EVENT_PEER_NEW, IB_EVENT_PEER_NEW);
  pair_close(&p);
  rail_log_set_sink(log_capture);
}

/* Of a message's four writes the first `posted` are taken, the next one is refused. The message waits from then on: its
 * QP is not lost before a poll finds nothing, and its peer answers later still. */
static void refuse_a_write(int posted) {
  static const struct pair_shape shape = {1, 2, 1, 12, 8, 0};
  static uint8_t out[16384], in[16384];
  struct pair p;
  char script[64];
  pair_open(&p, &shape);
  CHECK_OK(ib_failover_init(p.sc));
  struct ib_mhandle *mh_out = pair_reg(&p, p.sc, out, sizeof out), *mh_in = pair_reg(&p, p.rc, in, sizeof in);
  memset(in, 0, sizeof in);
  for (size_t i = 0; i < sizeof out; i++) out[i] = (uint8_t)((i * 7) + (i >> 8) + 1);
  void *recv = pair_irecv(&p, in, sizeof in, 5, mh_in);
  atomic_store(&p.sc->failover->qps[0].stopped_or_refused, true);
  snprintf(script, sizeof script, "fail post_send from=%d errno=ENOMEM", posted + 1);
  emu_do(script);
  void *send = pair_isend(&p, out, sizeof out, 5, mh_out);
  CHECK(send);
  CHECK_INT(atomic_load(&p.sc->failover->qps[0].faults), IB_FAULT_POST);
  for (int i = 0; i < 3; i++) CHECK_OK(ib_progress(p.sc));
  CHECK_INT(p.sc->failover->qps[0].state, IB_FAILOVER_AWAIT_PEER);
  ib_qp_fault(p.sc, 0, IB_FAULT_PEER_STOPPED);
  CHECK_INT(pair_finish(send, RAIL_OK), sizeof out);
  CHECK_INT(pair_finish(recv, RAIL_OK), sizeof in);
  for (size_t i = 0; i < sizeof in; i++) CHECK_MSG(in[i] == out[i], "%d posted: byte %zu was never written", posted, i);
  CHECK(strstr(pair_line, "a work request could not be posted"));
  pair_close(&p);
  rail_log_set_sink(log_capture);
}

TEST(what_could_not_be_posted_begins_anew) {
  for (int posted = 0; posted < 4; posted++) refuse_a_write(posted);
}

/* QPs that are not up carry nothing; one that has come back carries its share. */
TEST(messages_take_the_queue_pairs_that_are_up) {
  static const struct pair_shape shape = {1, 4, 4, 12, 64, 0};
  static const unsigned int parts[] = {4, 2, 2, 1};
  static uint8_t out[8], in[8];
  struct pair p;
  pair_open(&p, &shape);
  CHECK_OK(ib_failover_init(p.sc));
  struct ib_mhandle *mh_out = pair_reg(&p, p.sc, out, sizeof out), *mh_in = pair_reg(&p, p.rc, in, sizeof in);
  struct ib_send_comm *sc = ib_send_comm_of(p.sc);
  for (int down = 3; down >= -3; down--) { /* 3, 2, 1, none, and then one less each time */
    unsigned int ndown = (unsigned int)(down < 0 ? -down : down);
    uint32_t before[4], sum = 0;
    for (unsigned int i = 0; i < 4; i++)
      p.sc->failover->qps[i].state = i < ndown ? IB_FAILOVER_REBUILDING : IB_FAILOVER_UP;
    ib_send_update_live(sc);
    CHECK_INT(sc->nlive, 4 - ndown);
    CHECK_INT(sc->most_parts, parts[ndown]);
    for (unsigned int i = 0; i < 4; i++) before[i] = p.sc->qps[i].posted.end;
    for (int i = 0; i < 12; i++) {
      void *recv = pair_irecv(&p, in, sizeof in, 1, mh_in), *send = pair_isend(&p, out, sizeof out, 1, mh_out);
      pair_finish(send, RAIL_OK);
      pair_finish(recv, RAIL_OK);
    }
    for (unsigned int i = 0; i < 4; i++) {
      uint32_t posted = p.sc->qps[i].posted.end - before[i];
      CHECK_INT(posted, i < ndown ? 0 : 12 / (4 - ndown));
      sum += posted;
    }
    CHECK_INT(sum, 12);
  }
  pair_close(&p);
  rail_log_set_sink(log_capture);
}

/* ---- what the watch thread answers ---------------------------------------------- */

static struct ib_comm *comm_with(bool sender, int *peer) {
  struct ib_comm *comm = rig_comm(sender, RIG_COUNTED, 2, peer);
  CHECK_OK(ib_failover_init(comm));
  CHECK_OK(ib_watch_add(comm));
  log_forget();
  return comm;
}

static uint64_t number(unsigned int qp, uint32_t count) { return qp | (uint64_t)count << 32; }

static void close_comm(struct ib_comm *comm, int peer) {
  close(peer);
  CHECK_OK(comm->sender ? ib_close_send(comm) : ib_close_recv(comm));
}

static void send_stopped(int peer, uint64_t number) { send_frame(peer, IB_FRAME_STOPPED, number); }

TEST(an_idle_receiver_answers) {
  int peer;
  uint64_t got = 0;
  struct ib_comm *comm = comm_with(false, &peer);
  for (int i = 0; i < 5; i++) ib_qp_count_tail(&comm->qps[1]);
  send_stopped(peer, number(1, 0));
  CHECK_INT(recv_frame(peer, &got, 5000), IB_FRAME_STOPPED);
  CHECK(got == number(1, 5));
  CHECK_INT(recv_frame(peer, &got, 50), -1); /* once */
  CHECK(PENDING(comm) & IB_COMM_FAILOVER);
  close_comm(comm, peer);
}

TEST(a_busy_receiver_answers_when_it_is_done) {
  int peer;
  uint64_t got = 0;
  struct ib_comm *comm = comm_with(false, &peer);
  ib_outstanding_set(comm, comm->stats, 1);
  send_stopped(peer, number(0, 0));
  RIG_WAIT(PENDING(comm) & IB_COMM_FAILOVER, 5000);
  CHECK_INT(recv_frame(peer, &got, 50), -1);
  ib_qp_count_tail(&comm->qps[0]);
  ib_outstanding_set(comm, comm->stats, 0); /* by its last test, which found something to poll */
  CHECK_INT(recv_frame(peer, &got, 5000), IB_FRAME_STOPPED);
  CHECK(got == number(0, 1));
  close_comm(comm, peer);
}

/* NEW and READY that were to be sent when STOPPED was. */
TEST(behind_stopped_nothing_of_the_same_try_is_sent) {
  int peer;
  uint64_t got = 0;
  struct ib_comm *comm = comm_with(false, &peer);
  struct ib_failover_qp *fq = &comm->failover->qps[1];
  send_stopped(peer, number(1, 0));
  CHECK_INT(recv_frame(peer, &got, 5000), IB_FRAME_STOPPED);
  atomic_store(&fq->new_due, true);
  atomic_store(&fq->ready_due, true);
  atomic_store(&comm->failover->frames_due, true);
  CHECK(rail_watch_send_frames(&comm->watched));
  CHECK_INT(recv_frame(peer, &got, 50), -1);
  close_comm(comm, peer);
}

/* With every limit off, too, the watch thread says when a QP is to be tried again. */
TEST(a_return_by_time_needs_no_limits) {
  const int64_t were[] = {ib_params.deadline_ms, ib_params.peer_ms, ib_params.peer_warn_ms};
  int peer;
  ib_params.deadline_ms = ib_params.peer_ms = ib_params.peer_warn_ms = 0;
  struct ib_comm *comm = comm_with(false, &peer);
  atomic_store(&comm->failover->retry_at, rail_deadline_in_ms(10));
  CHECK_INT(PENDING(comm), 0);
  RIG_WAIT(PENDING(comm) & IB_COMM_FAILOVER, 5000);
  CHECK_INT(recv_frame(peer, NULL, 0), -1); /* it sends nothing */
  close_comm(comm, peer);
  ib_params.deadline_ms = were[0], ib_params.peer_ms = were[1], ib_params.peer_warn_ms = were[2];
}

/* Its queue pairs are the progress thread's to stop. */
TEST(a_sender_leaves_it_to_its_caller) {
  int peer;
  uint64_t got = 0;
  struct ib_comm *comm = comm_with(true, &peer);
  send_stopped(peer, number(1, 3));
  RIG_WAIT(PENDING(comm) & IB_COMM_FAILOVER, 5000);
  CHECK_INT(recv_frame(peer, &got, 50), -1);
  CHECK_INT(atomic_load(&comm->failover->qps[1].peer_count), 3);
  close_comm(comm, peer);
}

TEST(a_failed_side_refuses) {
  for (int sender = 0; sender < 2; sender++) {
    int peer;
    uint64_t got = 0;
    struct ib_comm *comm = comm_with(sender, &peer);
    (void)ib_comm_fail(comm, RAIL_SYSTEM_ERROR);
    send_stopped(peer, number(1, 0));
    CHECK_INT(recv_frame(peer, &got, 5000), IB_FRAME_REFUSED);
    CHECK(got == number(1, 0));
    close_comm(comm, peer);
  }
}

TEST(invalid_frames_end_the_connection) {
  static const struct { uint16_t type; uint64_t number; bool twice, plain; } bad[] = {
    {IB_FRAME_STOPPED, 2, false, false},         {IB_FRAME_STOPPED, 1ull << 31, false, false},
    {IB_FRAME_STOPPED, 0, true, false},          {IB_FRAME_READY + 1, 0, false, false},
    {IB_FRAME_STOPPED, 0, false, true},          {IB_FRAME_REFUSED, 5, false, false},
    {IB_FRAME_NEW, 1, false, false},             {IB_FRAME_NEW, 2 | 17 << 8, false, false},
    {IB_FRAME_NEW, 17 << 8, true, false},        {IB_FRAME_NEW, 17 << 8 | 1ull << 56, false, false},
    {IB_FRAME_NEW, 17 << 8, false, true},        {IB_FRAME_READY, 2, false, false},
    {IB_FRAME_READY, 1ull << 32, false, false},  {IB_FRAME_READY, 1, true, false}};
  for (size_t i = 0; i < RAIL_COUNT_OF(bad); i++) {
    int peer;
    struct ib_comm *comm = bad[i].plain ? rig_comm(false, RIG_WATCHED, 2, &peer) : comm_with(false, &peer);
    log_forget();
    for (int n = 0; n <= bad[i].twice; n++) send_frame(peer, (enum rail_oob_frame_type)bad[i].type, bad[i].number);
    RIG_WAIT(PENDING(comm) & IB_COMM_PEER_LOST, 5000);
    RIG_WAIT(log_said("invalid frame on the oob connection"), 5000); /* by the watch thread, behind the fault */
    close_comm(comm, peer);
  }
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(a_count_tells_what_arrived), TEST_CASE(a_count_that_cannot_be), TEST_CASE(a_full_ring),
    TEST_CASE(what_was_begun_is_ended_first), TEST_CASE(a_second_stopped_is_a_protocol_error),
    TEST_CASE(a_try_that_the_peer_has_ended_does_not_go_on), TEST_CASE(what_could_not_be_posted_begins_anew),
    TEST_CASE(messages_take_the_queue_pairs_that_are_up),
    TEST_CASE(an_idle_receiver_answers), TEST_CASE(a_busy_receiver_answers_when_it_is_done),
    TEST_CASE(behind_stopped_nothing_of_the_same_try_is_sent), TEST_CASE(a_return_by_time_needs_no_limits),
    TEST_CASE(a_sender_leaves_it_to_its_caller), TEST_CASE(a_failed_side_refuses),
    TEST_CASE(invalid_frames_end_the_connection)};
  rig_use("device emu0");
  return rig_main_watched(argc, argv, cases, RAIL_COUNT_OF(cases));
}
