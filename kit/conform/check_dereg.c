/* SPDX-License-Identifier: Apache-2.0
 *
 * Item 11, deregistration: after deregMr not one byte of the range is read or written again.
 *
 * When a communicator is aborted NCCL calls deregMr with requests outstanding, frees the memory, and only then closes
 * the connection. */
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

#define LARGE ((size_t)32 << 20) /* more than sockets and rings hold: it stays outstanding */
enum { OLD_OUT = 0x11, OLD_IN = 0x33, NEW_IN = 0x44, NEW_OUT = 0xee };

/* A connection with one large transfer begun. */
struct begun {
  struct kit_net *net;
  struct kit_pair p;
  struct kit_op send, recv;
  uint8_t *out, *in;
  void *mh_out, *mh_in;
};

static void begin(struct kit_net *n, struct begun *b) {
  b->net = n;
  kit_pair_open(n, &b->p);
  b->out = kit_pages(LARGE);
  b->in = kit_pages(LARGE);
  memset(b->out, OLD_OUT, LARGE);
  memset(b->in, OLD_IN, LARGE);
  b->mh_out = kit_mr_reg(n, b->p.send, b->out, LARGE);
  b->mh_in = kit_mr_reg(n, b->p.recv, b->in, LARGE);
  b->send = kit_op_send(b->p.send, b->out, LARGE, 0);
  b->recv = kit_op_recv(b->p.recv, b->in, LARGE, 0);
  b->send.mh[0] = b->mh_out;
  b->recv.mh[0] = b->mh_in;
  kit_op_start(n, &b->recv);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!kit_op_post(n, &b->send)) { /* a rendezvous needs both ends to get on */
    ENSURE(!b->send.error && !rail_deadline_passed(deadline), "isend gave no request, error %s",
           kit_rc_text(b->send.error));
    kit_op_step(n, &b->recv);
  }
}

static void look_on(struct begun *b, struct kit_op *op, uint64_t ms) {
  uint64_t until = rail_deadline_in_ms(ms);
  for (int quiet = 0; !rail_deadline_passed(until) && !kit_op_step(b->net, op);) kit_rest(&quiet);
}

static void nothing_is_read_after_dereg(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  kit_net_open(&n);
  for (int round = 0; round < kit_scaled(6); round++) {
    struct begun b;
    begin(&n, &b);
    for (int i = 0; i < round && !kit_op_step(&n, &b.send); i++) {} /* some of it is on its way, not all */
    kit_mr_dereg(&n, b.p.send, b.mh_out);
    memset(b.out, NEW_OUT, LARGE);
    kit_op_test_again(&n, &b.send, 100);
    look_on(&b, &b.recv, 100);
    kit_op_test_again(&n, &b.send, 100);
    kit_close_within(n.vt->close_send, b.p.send, "closeSend", KIT_CLOSE_HUNG_MS);
    look_on(&b, &b.recv, 1000);
    ENSURE(!b.recv.done || kit_bytes_check(b.in, LARGE, OLD_OUT) < 0,
           "the sender's memory was deregistered halfway, and yet the receive was done, without its data");
    uint8_t *bad = memchr(b.in, NEW_OUT, LARGE);
    ENSURE(!bad, "byte %zu of %zu was read from the sender's memory after deregMr had returned: NCCL frees that memory "
           "next, so this is somebody else's data or a crash", (size_t)(bad - b.in), LARGE);
    kit_mr_dereg(&n, b.p.recv, b.mh_in);
    kit_close_within(n.vt->close_recv, b.p.recv, "closeRecv", KIT_CLOSE_HUNG_MS);
    kit_pages_free(b.out, LARGE);
    kit_pages_free(b.in, LARGE);
  }
  kit_net_close(&n);
}

/* A packet's worth is a device that has not been waited for; more is one that does not know. */
static size_t count_wrong(const uint8_t *data, ssize_t from, uint8_t right) {
  size_t n = 0;
  for (size_t i = (size_t)from; i < LARGE; i++) n += data[i] != right;
  return n;
}

/* The receiver lets go of its memory, by deregMr and close, or by close alone. */
static void receiver_lets_go(bool deregisters) {
  struct kit_net n;
  kit_net_open(&n);
  for (int round = 0; round < kit_scaled(6); round++) {
    struct begun b;
    begin(&n, &b);
    for (int i = 0; i < (deregisters ? 1 : 20) * round; i++) {
      kit_op_step(&n, &b.send);
      if (kit_op_step(&n, &b.recv)) break;
    }
    if (deregisters) kit_mr_dereg(&n, b.p.recv, b.mh_in);
    else kit_close_within(n.vt->close_recv, b.p.recv, "closeRecv", KIT_CLOSE_HUNG_MS);
    memset(b.in, NEW_IN, LARGE);
    uint64_t until = rail_deadline_in_ms(deregisters ? 100 : 50);
    while (!rail_deadline_passed(until) && !kit_op_step(&n, &b.send))
      if (deregisters && !b.recv.done) kit_op_test_again(&n, &b.recv, 1);
    if (deregisters) kit_close_within(n.vt->close_recv, b.p.recv, "closeRecv", KIT_CLOSE_HUNG_MS);
    ssize_t wrong = kit_bytes_check(b.in, LARGE, NEW_IN);
    ENSURE(wrong < 0, "%zu bytes from byte %zd of %zu of the receiver's memory on were written after %s had returned: "
           "NCCL has freed that memory, so this destroys somebody else's", count_wrong(b.in, wrong, NEW_IN), wrong,
           LARGE, deregisters ? "deregMr" : "closeRecv");
    kit_mr_dereg(&n, b.p.send, b.mh_out);
    int rc = n.vt->close_send(b.p.send); /* perhaps a device that cannot go because of the other end's memory */
    ENSURE(rc == 0 || !deregisters, "closeSend returned %s, expected 0", kit_rc_text(rc));
    kit_pages_free(b.out, LARGE);
    kit_pages_free(b.in, LARGE);
  }
  kit_net_close(&n);
}

static void nothing_is_written_after_dereg(struct kit_process *self) {
  (void)self;
  receiver_lets_go(true);
}

static void nothing_is_written_after_close(struct kit_process *self) {
  (void)self;
  receiver_lets_go(false);
}

/* NCCL's own order at an abort. Whoever touches the memory then faults. */
static void memory_is_gone_before_close(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  kit_net_open(&n);
  for (int round = 0; round < kit_scaled(6); round++) {
    struct begun b;
    begin(&n, &b);
    for (int i = 0; i < 3 * round; i++) {
      kit_op_step(&n, &b.send);
      if (kit_op_step(&n, &b.recv)) break;
    }
    kit_mr_dereg(&n, b.p.send, b.mh_out);
    kit_mr_dereg(&n, b.p.recv, b.mh_in);
    kit_pages_free(b.out, LARGE);
    kit_pages_free(b.in, LARGE);
    if (round % 2) kit_sleep_ms(20); /* helper threads have their chance */
    kit_close_pair_within(&b.p, round % 3 == 0, KIT_CLOSE_HUNG_MS);
  }
  kit_sleep_ms(50);
  struct kit_pair p;
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 100000, 5);
  kit_pair_close(&p);
  kit_net_close(&n);
}

const struct kit_check kit_checks_dereg[] = {
    {"11.21", "mr.nothing_is_read_after_dereg", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "after deregMr not one byte of the range is read, also with a send outstanding",
     .source = "src/transport/net.cc:1204", .run = nothing_is_read_after_dereg},
    {"11.22", "mr.nothing_is_written_after_dereg", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "after deregMr not one byte of the range is written, also with a receive outstanding",
     .source = "src/transport/net.cc:1259", .run = nothing_is_written_after_dereg},
    {"11.23", "mr.nothing_is_written_after_close", KIT_SHOULD, KIT_ONE, .limit_s = 60,
     .what = "after closeRecv not one byte of a buffer is written, also with a receive outstanding and without deregMr",
     .source = "src/transport/net.cc:1259", .run = nothing_is_written_after_close},
    {"11.24", "mr.memory_is_gone_before_close", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "with requests outstanding the order deregMr, free, close works: NCCL's own at an abort",
     .source = "src/transport/net.cc:1204,1259", .run = memory_is_gone_before_close},
    {0},
};
