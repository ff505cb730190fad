/* SPDX-License-Identifier: Apache-2.0
 * Closing always succeeds and soon, whatever is outstanding, and what was completed before it still arrives.
 * TEST-LIMIT: 60 */
#include <sched.h>

#include "common/clock.h"
#include "test/harness/program.h"

enum { CLOSE_LIMIT_MS = 1000 };

static void close_timed(struct kit_net *n, int (*close)(void *), void *comm, const char *what) {
  (void)n;
  uint64_t start = rail_now_ns();
  int rc = close(comm);
  uint64_t ms = (rail_now_ns() - start) / 1000000;
  CHECK_MSG(rc == 0, "%s returned %d", what, rc);
  CHECK_MSG(ms < kit_patience_ms(CLOSE_LIMIT_MS), "%s took %d ms", what, (int)ms);
}

static void close_both(struct kit_pair *p, bool send_first) {
  struct kit_net *n = p->net;
  if (send_first) close_timed(n, n->vt->close_send, p->send, "closeSend");
  close_timed(n, n->vt->close_recv, p->recv, "closeRecv");
  if (!send_first) close_timed(n, n->vt->close_send, p->send, "closeSend");
}

TEST(null) {
  struct kit_net n;
  kit_net_open(&n);
  CHECK_OK(n.vt->close_send(NULL));
  CHECK_OK(n.vt->close_recv(NULL));
  CHECK_OK(n.vt->close_listen(NULL));
  kit_net_close(&n);
}

TEST(never_used) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  for (int i = 0; i < 4; i++) {
    kit_pair_open(&n, &p);
    close_both(&p, i % 2);
  }
  kit_net_close(&n);
}

/* Everything outstanding that can be: more data than the sockets hold, receives without sends. */
TEST(with_requests_outstanding) {
  struct kit_net n;
  kit_net_open(&n);
  size_t size = (size_t)8 << 20;
  for (int round = 0; round < 12; round++) {
    struct kit_pair p;
    kit_pair_open(&n, &p);
    struct kit_guarded out = kit_guard_high(size), in = kit_guard_high(size);
    struct kit_op op;
    for (int i = 0; i < 8; i++) {
      op = kit_op_recv(p.recv, in.data, size, 0);
      if (round % 3 != 1) kit_op_post(&n, &op);
      for (int tries = 0; tries < 100; tries++) {
        op = kit_op_send(p.send, out.data, size, 0);
        if (round % 3 != 2 && kit_op_post(&n, &op)) break;
      }
      if (op.req && round % 2) kit_op_test(&n, &op);
    }
    close_both(&p, round % 2);
    kit_guard_free(&out); /* nothing may touch these any more: they fault from here on */
    kit_guard_free(&in);
  }
  kit_net_close(&n);
}

/* The last completion is followed by close at once; meanwhile the receiver has
 * not looked, and has itself sent things (grants, credits) that the closing
 * side has not read: closing such a socket carelessly resets it and takes the
 * data away. */
TEST(the_last_message_still_arrives) {
  enum { MOST = 16, LARGEST = 1000000 }; /* some rounds exceed what the receiving socket holds */
  struct kit_net n;
  struct kit_rng rng;
  kit_net_open(&n);
  kit_rng_start(&rng);
  static uint8_t out[MOST][LARGEST], in[MOST + 8][LARGEST];
  for (int round = 0; round < kit_scaled(200); round++) {
    struct kit_pair p;
    kit_pair_open(&n, &p);
    struct kit_op send[MOST], recv[MOST + 8];
    int count = 1 + (int)kit_rng_below(&rng, MOST), ahead = (int)kit_rng_below(&rng, 8), sent = 0, got = 0;
    for (int i = 0; i < count + ahead; i++) recv[i] = kit_op_recv(p.recv, in[i], sizeof in[i], 0);
    for (int i = 0; i < count; i++) {
      size_t size = kit_rng_below(&rng, 3) ? kit_rng_below(&rng, 3000) : kit_rng_below(&rng, LARGEST + 1);
      kit_pattern_fill(out[i], size, (uint64_t)round * MOST + (uint64_t)i);
      send[i] = kit_op_send(p.send, out[i], size, 0);
    }
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    int posted = 0, receives = 0;
    while (sent < count) {
      /* The receiver posts, also more than will ever come, and tests only now and then. */
      if (receives < count + ahead && kit_op_post(&n, &recv[receives])) receives++;
      if (receives < count + ahead) CHECK_INT(recv[receives].error, 0);
      if (posted < count && kit_op_post(&n, &send[posted])) posted++;
      while (sent < posted && kit_op_test(&n, &send[sent])) {
        CHECK_INT(send[sent].error, 0);
        sent++;
      }
      if (got < receives && !kit_rng_below(&rng, 4) && kit_op_test(&n, &recv[got])) {
        CHECK_INT(recv[got].error, 0);
        got++;
      }
      CHECK_MSG(!rail_deadline_passed(deadline), "%d of %d sent", sent, count);
    }
    close_timed(&n, n.vt->close_send, p.send, "closeSend");
    for (int i = 0; i < count; i++) memset(out[i], 0xee, send[i].size[0]);
    while (got < count) {
      struct kit_op *next = &recv[got];
      if (receives <= got && kit_op_post(&n, next)) receives++;
      bool done = got < receives && kit_op_test(&n, next);
      CHECK_MSG(!next->error, "round %d: message %d of %d was lost, error %d", round, got, count, next->error);
      CHECK_MSG(!rail_deadline_passed(deadline), "round %d: message %d of %d never came", round, got, count);
      got += done;
    }
    for (int i = 0; i < count; i++) {
      CHECK_INT(recv[i].sizes[0], send[i].size[0]);
      CHECK(kit_pattern_check(in[i], send[i].size[0], (uint64_t)round * MOST + (uint64_t)i) < 0);
    }
    close_timed(&n, n.vt->close_recv, p.recv, "closeRecv");
  }
  kit_net_close(&n);
}

TEST(the_receiver_closes_first) { /* at a normal end closeRecv may come seconds before closeSend */
  struct kit_net n;
  kit_net_open(&n);
  for (int round = 0; round < 20; round++) {
    struct kit_pair p;
    kit_pair_open(&n, &p);
    kit_pair_ping(&p, (size_t)round * 5000, (uint64_t)round);
    close_timed(&n, n.vt->close_recv, p.recv, "closeRecv");
    if (round % 5 == 0) {
      uint64_t until = rail_deadline_in_ms(50);
      while (!rail_deadline_passed(until)) sched_yield();
    }
    close_timed(&n, n.vt->close_send, p.send, "closeSend");
  }
  kit_net_close(&n);
}

TEST(a_closed_peer_is_noticed) {
  struct kit_net n;
  kit_net_open(&n);
  static uint8_t data[100000];
  for (int round = 0; round < 6; round++) {
    struct kit_pair p;
    kit_pair_open(&n, &p);
    if (round % 2) kit_pair_ping(&p, 1000, 1);
    bool send_left = round >= 3;
    if (send_left) close_timed(&n, n.vt->close_recv, p.recv, "closeRecv");
    else close_timed(&n, n.vt->close_send, p.send, "closeSend");
    struct kit_op op =
        send_left ? kit_op_send(p.send, data, sizeof data, 0) : kit_op_recv(p.recv, data, sizeof data, 0);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(5000));
    while (!op.error) {
      if (op.req) kit_op_test(&n, &op);
      else kit_op_post(&n, &op);
      if (op.done) op = kit_op_send(p.send, data, sizeof data, 0); /* what the kernel still took */
      CHECK_MSG(!rail_deadline_passed(deadline), "a %s with a closed peer goes on for ever",
                send_left ? "send" : "receive");
      sched_yield();
    }
    CHECK_INT(op.error, RAIL_REMOTE_ERROR);
    if (send_left) close_timed(&n, n.vt->close_send, p.send, "closeSend");
    else close_timed(&n, n.vt->close_recv, p.recv, "closeRecv");
  }
  kit_net_close(&n);
}

TEST(both_directions_at_once) {
  struct kit_net n;
  kit_net_open(&n);
  size_t size = (size_t)4 << 20;
  for (int round = 0; round < 10; round++) {
    struct kit_pair p, q;
    kit_pair_open(&n, &p);
    kit_pair_open(&n, &q);
    struct kit_guarded a = kit_guard_high(size), b = kit_guard_high(size), c = kit_guard_high(size);
    struct kit_guarded d = kit_guard_high(size);
    struct kit_op ops[4] = {kit_op_recv(p.recv, a.data, size, 0), kit_op_send(p.send, b.data, size, 0),
                        kit_op_recv(q.recv, c.data, size, 0), kit_op_send(q.send, d.data, size, 0)};
    for (int i = 0; i < 4; i++) kit_op_post(&n, &ops[i]);
    for (int i = 0; i < 4 && round % 2; i++) if (ops[i].req) kit_op_test(&n, &ops[i]);
    close_both(&p, round % 3 == 0);
    close_both(&q, round % 3 == 1);
    kit_guard_free(&a);
    kit_guard_free(&b);
    kit_guard_free(&c);
    kit_guard_free(&d);
  }
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(null), TEST_CASE(never_used), TEST_CASE(with_requests_outstanding),
          TEST_CASE(the_last_message_still_arrives), TEST_CASE(the_receiver_closes_first),
          TEST_CASE(a_closed_peer_is_noticed), TEST_CASE(both_directions_at_once))
