/* SPDX-License-Identifier: Apache-2.0
 * Memory registration: any range at any time, and after deregMr not one byte of it is read or written again.
 * TEST-LIMIT: 60 */
#include <sched.h>
#include <stdatomic.h>

#include "common/clock.h"
#include "test/harness/program.h"

TEST(odd_and_overlapping_ranges) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  static uint8_t buf[1 << 20];
  void *mh[64];
  for (size_t i = 0; i < 32; i++) {
    mh[i] = kit_mr_reg(&n, p.send, buf + i * 1001 + (i % 7), 4915200 % (i * 997 + 1) + 1);
    mh[32 + i] = kit_mr_reg(&n, p.recv, buf + i * 1001 + (i % 5), i * 3000 + 1);
  }
  void *same_a = kit_mr_reg(&n, p.send, buf, sizeof buf), *same_b = kit_mr_reg(&n, p.send, buf, sizeof buf);
  kit_mr_dereg(&n, p.send, same_a);
  static uint8_t in[1000];
  kit_pattern_fill(buf, sizeof in, 4);
  struct kit_op ops[2] = {kit_op_recv(p.recv, in, sizeof in, 0), kit_op_send(p.send, buf, sizeof in, 0)};
  ops[1].mh[0] = same_b; /* the twin is still registered */
  kit_ops_run(&n, ops, 2, (struct kit_ops_how){0});
  CHECK(kit_pattern_check(in, sizeof in, 4) < 0);
  kit_mr_dereg(&n, p.send, same_b);
  for (size_t i = 0; i < 32; i++) {
    kit_mr_dereg(&n, p.send, mh[31 - i]);
    kit_mr_dereg(&n, p.recv, mh[32 + i]);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(dereg_of_null) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  CHECK_OK(n.vt->dereg_mr(p.send, NULL));
  CHECK_OK(n.vt->dereg_mr(p.recv, NULL));
  kit_pair_ping(&p, 10, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(device_memory_is_refused_if_not_supported) {
  struct kit_net n;
  struct kit_pair p;
  struct rail_net_props_v12 props;
  kit_net_open(&n);
  CHECK_OK(n.vt->get_properties(n.dev, &props));
  kit_pair_open(&n, &p);
  void *mh = NULL;
  static uint8_t buf[4096];
  if (!(props.ptr_support & RAIL_PTR_CUDA)) CHECK(n.vt->reg_mr(p.send, buf, sizeof buf, RAIL_PTR_CUDA, &mh) != 0);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* ---- registration from a second thread, as NCCL's service thread does ---- */

struct traffic { struct kit_net *net; struct kit_pair *pair; atomic_bool *over; bool registers; int rounds; };

static void traffic_or_registration(void *arg) {
  struct traffic *t = arg;
  static uint8_t spare[2][300000];
  for (int i = 0; t->registers ? !atomic_load(t->over) : i < t->rounds; i++) {
    if (!t->registers) {
      kit_pair_ping(t->pair, (size_t)i * 7919 % 200000, (uint64_t)i);
      continue;
    }
    size_t size = (size_t)i * 4099 % sizeof spare[0] + 1;
    void *a = kit_mr_reg(t->net, t->pair->send, spare[0], size), *b = kit_mr_reg(t->net, t->pair->recv, spare[1], size);
    void *c = kit_mr_reg(t->net, t->pair->send, spare[0] + size / 2, size / 2 + 1);
    kit_mr_dereg(t->net, t->pair->send, a);
    kit_mr_dereg(t->net, t->pair->recv, b);
    kit_mr_dereg(t->net, t->pair->send, c);
  }
  if (!t->registers) atomic_store(t->over, true);
}

TEST(while_traffic_runs) {
  struct kit_net n;
  struct kit_pair p;
  atomic_bool over = false;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  struct traffic t[2] = {{&n, &p, &over, false, kit_scaled(2000)}, {&n, &p, &over, true, 0}};
  /* A failing traffic thread must not leave the other waiting. */
  kit_run_threads(2, traffic_or_registration, t, sizeof t[0]);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* ---- deregistration with requests outstanding: the abort of a communicator ---- */

static void poll_recv(struct kit_net *n, struct kit_op *recv, int ms) {
  uint64_t until = rail_deadline_in_ms((uint64_t)ms);
  while (!recv->done && !recv->error && !rail_deadline_passed(until)) {
    kit_op_test(n, recv);
    sched_yield();
  }
}

/* Somebody still asks for the request: whatever the answer, the memory is left alone. */
static void stray_test(struct kit_net *n, struct kit_op *op) {
  int done = 0, sizes[KIT_MAX_GROUP];
  for (int i = 0; i < 100 && op->req && !op->error; i++) {
    op->error = n->vt->test(op->req, &done, sizes);
    if (done) op->req = NULL;
  }
}

TEST(nothing_is_read_after_dereg) {
  struct kit_net n;
  kit_net_open(&n);
  size_t size = (size_t)32 << 20; /* more than any socket buffer */
  for (int round = 0; round < kit_scaled(6); round++) {
    struct kit_pair p;
    kit_pair_open(&n, &p);
    struct kit_guarded out = kit_guard_high(size), in = kit_guard_high(size);
    memset(out.data, 0x11, size);
    memset(in.data, 0x33, size);
    void *mh = kit_mr_reg(&n, p.send, out.data, size);
    struct kit_op send = kit_op_send(p.send, out.data, size, 0), recv = kit_op_recv(p.recv, in.data, size, 0);
    send.mh[0] = mh;
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    while (!kit_op_post(&n, &recv)) CHECK(!recv.error && !rail_deadline_passed(deadline));
    while (!kit_op_post(&n, &send)) CHECK(!send.error && !rail_deadline_passed(deadline));
    for (int i = 0; i < round && !kit_op_test(&n, &send); i++) {} /* some of it is on its way, not all */
    kit_mr_dereg(&n, p.send, mh);
    memset(out.data, 0xee, size);
    stray_test(&n, &send);
    poll_recv(&n, &recv, 100);
    stray_test(&n, &send);
    CHECK_OK(n.vt->close_send(p.send));
    poll_recv(&n, &recv, 3000);
    CHECK_MSG(!recv.done || kit_bytes_check(in.data, size, 0x11) < 0, "a receive was done without its data");
    for (size_t i = 0; i < size; i++) CHECK_MSG(in.data[i] != 0xee, "byte %zu was read after deregMr", i);
    CHECK_OK(n.vt->close_recv(p.recv));
    kit_guard_free(&out);
    kit_guard_free(&in);
  }
  kit_net_close(&n);
}

TEST(nothing_is_written_after_dereg) {
  struct kit_net n;
  kit_net_open(&n);
  size_t size = (size_t)32 << 20;
  for (int round = 0; round < kit_scaled(6); round++) {
    struct kit_pair p;
    kit_pair_open(&n, &p);
    struct kit_guarded out = kit_guard_high(size), in = kit_guard_high(size);
    memset(out.data, 0x11, size);
    memset(in.data, 0x33, size);
    void *mh = kit_mr_reg(&n, p.recv, in.data, size);
    struct kit_op send = kit_op_send(p.send, out.data, size, 0), recv = kit_op_recv(p.recv, in.data, size, 0);
    recv.mh[0] = mh;
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    while (!kit_op_post(&n, &recv)) CHECK(!recv.error && !rail_deadline_passed(deadline));
    while (!kit_op_post(&n, &send)) CHECK(!send.error && !rail_deadline_passed(deadline));
    for (int i = 0; i < round; i++) {
      kit_op_test(&n, &send);
      if (kit_op_test(&n, &recv)) break;
    }
    kit_mr_dereg(&n, p.recv, mh);
    memset(in.data, 0x44, size);
    uint64_t until = rail_deadline_in_ms(100);
    while (!send.done && !send.error && !rail_deadline_passed(until)) {
      kit_op_test(&n, &send);
      stray_test(&n, &recv);
    }
    CHECK_OK(n.vt->close_recv(p.recv));
    ssize_t wrong = kit_bytes_check(in.data, size, 0x44);
    CHECK_MSG(wrong < 0, "byte %zd was written after deregMr", wrong);
    CHECK_OK(n.vt->close_send(p.send));
    kit_guard_free(&out);
    kit_guard_free(&in);
  }
  kit_net_close(&n);
}

/* The same at close, whose sockets stay open for a while to let the peer finish: what comes in goes nowhere. */
TEST(nothing_is_written_after_close) {
  struct kit_net n;
  kit_net_open(&n);
  size_t size = (size_t)32 << 20;
  for (int round = 0; round < kit_scaled(6); round++) {
    struct kit_pair p;
    kit_pair_open(&n, &p);
    struct kit_guarded out = kit_guard_high(size), in = kit_guard_high(size);
    memset(out.data, 0x11, size);
    struct kit_op send = kit_op_send(p.send, out.data, size, 0), recv = kit_op_recv(p.recv, in.data, size, 0);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    while (!kit_op_post(&n, &recv)) CHECK(!recv.error && !rail_deadline_passed(deadline));
    while (!kit_op_post(&n, &send)) CHECK(!send.error && !rail_deadline_passed(deadline));
    for (int i = 0; i < 20 * round && !send.done; i++) {
      kit_op_test(&n, &send);
      if (kit_op_test(&n, &recv)) break;
    }
    CHECK_OK(n.vt->close_recv(p.recv));
    memset(in.data, 0x44, size);
    uint64_t until = rail_deadline_in_ms(50);
    while (!send.done && !send.error && !rail_deadline_passed(until)) kit_op_test(&n, &send);
    ssize_t wrong = kit_bytes_check(in.data, size, 0x44);
    CHECK_MSG(wrong < 0, "byte %zd was written after closeRecv", wrong);
    CHECK_OK(n.vt->close_send(p.send));
    kit_guard_free(&out);
    kit_guard_free(&in);
  }
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(odd_and_overlapping_ranges), TEST_CASE(dereg_of_null),
          TEST_CASE(device_memory_is_refused_if_not_supported), TEST_CASE(while_traffic_runs),
          TEST_CASE(nothing_is_read_after_dereg), TEST_CASE(nothing_is_written_after_dereg),
          TEST_CASE(nothing_is_written_after_close))
