/* SPDX-License-Identifier: Apache-2.0
 * Item 12, the peer closes: what was done stays done, and what was not ends with an error soon. */

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

static void the_receiver_closes_first(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  for (int round = 0; round < 20; round++) {
    kit_pair_open(&n, &p);
    kit_pair_ping(&p, (size_t)round * 5000, (uint64_t)round);
    kit_close_within(n.vt->close_recv, p.recv, "closeRecv", KIT_CLOSE_HUNG_MS);
    if (round % 5 == 0) kit_sleep_ms(50);
    kit_close_within(n.vt->close_send, p.send, "closeSend, after the receiver had closed,", KIT_CLOSE_HUNG_MS);
  }
  kit_net_close(&n);
}

/* The receiver is done with its last message, and closes before the sender tests its send again: the sender finds the
 * message's completion and the end of the connection together. */
static void the_receiver_closes_at_once(struct kit_process *self) {
  (void)self;
  enum { MAX_SENDS = 6 };
  struct kit_net n;
  struct kit_pair p;
  const size_t room = 300000;
  uint8_t *out = kit_pages(room), *in = kit_pages(room);
  kit_net_open(&n);
  for (int round = 0; round < 40; round++) {
    struct kit_op send[MAX_SENDS], recv[MAX_SENDS];
    int count = 1 + round % MAX_SENDS, got = 0;
    size_t size = round % 4 == 3 ? room / MAX_SENDS : (size_t)round * 50;
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    kit_pair_open(&n, &p);
    int warnings = kit_net_warnings();
    void *mh_out = kit_mr_reg(&n, p.send, out, room), *mh_in = kit_mr_reg(&n, p.recv, in, room);
    for (int i = 0; i < count; i++) {
      send[i] = kit_op_send(p.send, out + (size_t)i * size, size, i);
      recv[i] = kit_op_recv(p.recv, in + (size_t)i * size, size, i);
      send[i].mh[0] = mh_out;
      recv[i].mh[0] = mh_in;
      kit_op_start(&n, &recv[i]);
    }
    for (int i = 0; i < count; i++) kit_op_start(&n, &send[i]);
    while (got < count) { /* the sender's test only where the receiver's alone does not get on */
      bool step = kit_op_step(&n, &recv[got]);
      ENSURE(!recv[got].error, "a receive ended with error %s", kit_rc_text(recv[got].error));
      if (step) got++;
      else if (!send[count - 1].done) kit_op_step(&n, &send[got]);
      ENSURE(!rail_deadline_passed(deadline), "receive %d of %d is not done at the deadline", got, count);
    }
    kit_mr_dereg(&n, p.recv, mh_in);
    kit_close_within(n.vt->close_recv, p.recv, "closeRecv", KIT_CLOSE_HUNG_MS);
    if (round % 8 == 7) kit_sleep_ms(20); /* the end of the connection has arrived for certain */
    for (int i = 0; i < count; i++) {
      bool ended = kit_op_within(&n, &send[i], kit_patience_ms(KIT_PATIENCE_MS));
      ENSURE(ended && !send[i].error,
             "send %d of %d %s (error %s) though its receive was done: the receiver closed before the sender's test", i,
             count, ended ? "failed" : "is not done", kit_rc_text(send[i].error));
    }
    kit_mr_dereg(&n, p.send, mh_out);
    kit_close_within(n.vt->close_send, p.send, "closeSend, after the receiver had closed,", KIT_CLOSE_HUNG_MS);
    ENSURE(kit_net_warnings() == warnings,
           "a receiver that closed after its last receive made the plugin log %d warnings; the connection has done all "
           "that was asked", kit_net_warnings() - warnings);
  }
  kit_net_close(&n);
}

/* One end is closed, and the other goes on with `op` until that fails. */
static void until_error(struct kit_net *n, struct kit_op *op, bool sends) {
  const struct kit_op again = *op;
  int quiet = 0;
  uint64_t start = rail_now_ns(), deadline = rail_deadline_in_ms(kit_patience_ms(5000));
  while (!op->error) {
    kit_op_step(n, op);
    ENSURE(sends || !op->done, "a receive was done although its sender had closed without sending");
    if (op->done) { /* what the kernel still took */
      *op = again;
      quiet = 0;
    }
    ENSURE(!rail_deadline_passed(deadline),
           "the peer closed, and %.1f s later a %s still ends in no error: NCCL itself has no timeout, the job hangs",
           (double)(rail_now_ns() - start) / 1e9, sends ? "send" : "receive");
    kit_rest(&quiet);
  }
}

static void a_closed_peer_is_noticed(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  size_t size = 100000;
  uint8_t *data = kit_pages(size);
  kit_net_open(&n);
  for (int round = 0; round < 6; round++) {
    bool sends = round >= 3; /* the end that is left */
    kit_pair_open(&n, &p);
    if (round % 2) kit_pair_ping(&p, 1000, 1);
    if (sends) kit_close_within(n.vt->close_recv, p.recv, "closeRecv", KIT_CLOSE_HUNG_MS);
    else kit_close_within(n.vt->close_send, p.send, "closeSend", KIT_CLOSE_HUNG_MS);
    struct kit_op op = sends ? kit_op_send(p.send, data, size, 0) : kit_op_recv(p.recv, data, size, 0);
    void *mh = op.mh[0] = kit_mr_reg(&n, op.comm, data, size);
    until_error(&n, &op, sends);
    ENSURE(op.error == RAIL_REMOTE_ERROR,
           "a closed peer is error %s, expected %d (ncclRemoteError): by it users tell a lost peer from a fault here",
           kit_rc_text(op.error), RAIL_REMOTE_ERROR);
    kit_mr_dereg(&n, op.comm, mh);
    if (sends) kit_close_within(n.vt->close_send, p.send, "closeSend", KIT_CLOSE_HUNG_MS);
    else kit_close_within(n.vt->close_recv, p.recv, "closeRecv", KIT_CLOSE_HUNG_MS);
  }
  kit_net_close(&n);
}

const struct kit_check kit_checks_peer_close[] = {
    {"12.9", "close.the_receiver_closes_first", KIT_MUST, KIT_ONE, .limit_s = 30,
     .what = "closeSend returns success after the peer's closeRecv",
     .source = "src/transport/net.cc:1204", .run = the_receiver_closes_first},
    {"12.10", "close.a_closed_peer_is_noticed", KIT_SHOULD, KIT_ONE, .limit_s = 60,
     .what = "a transfer whose peer has closed ends with ncclRemoteError, within seconds",
     .source = "plugins/net/README.md:128", .run = a_closed_peer_is_noticed},
    {"12.13", "close.the_receiver_closes_at_once", KIT_SHOULD, KIT_ONE, .limit_s = 60,
     .what = "sends whose receives are done end well, and nothing is logged, though the receiver has closed before "
             "their test",
     .source = "src/transport/net.cc:1259,1435", .run = the_receiver_closes_at_once},
    {0},
};
