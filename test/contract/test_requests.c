/* SPDX-License-Identifier: Apache-2.0
 * Requests: every output is written at every call, sizes may be NULL, a finished send's buffer is the caller's again.
 * TEST-LIMIT: 60 */
#include <sched.h>
#include <stdlib.h>

#include "common/clock.h"
#include "test/harness/program.h"

TEST(request_and_done_are_always_written) { /* kit_op_post and kit_op_test poison them before every single call */
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  static int out[600], in[600];
  static struct kit_op send[600], recv[600];
  int nsend = 0, nrecv = 0;
  for (int i = 0; i < 600; i++) {
    out[i] = i;
    send[i] = kit_op_send(p.send, &out[i], sizeof out[i], 2);
    recv[i] = kit_op_recv(p.recv, &in[i], sizeof in[i], 2);
  }
  for (int k = 0; k < 1200; k++) { /* sends with nothing to match, until well past full */
    if (nsend < 600 && kit_op_post(&n, &send[nsend])) nsend++;
    if (nsend < 600) CHECK_MSG(!send[nsend].error, "send %d: error %d", nsend, send[nsend].error);
    if (nsend && !send[0].done) kit_op_test(&n, &send[0]);
  }
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (int got = 0, sent = 0; got < 600;) {
    if (nrecv < 600 && kit_op_post(&n, &recv[nrecv])) nrecv++;
    if (nsend < 600 && kit_op_post(&n, &send[nsend])) nsend++;
    while (sent < nsend && (send[sent].done || kit_op_test(&n, &send[sent]))) sent++;
    while (got < nrecv && kit_op_test(&n, &recv[got])) {
      CHECK_MSG(!recv[got].error && in[got] == got, "receive %d: error %d, got message %d", got,
                recv[got].error, in[got]);
      got++;
    }
    CHECK_MSG(!rail_deadline_passed(deadline), "%d of 600 arrived", got);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

static void test_without_sizes(struct kit_net *n, void **req, uint64_t deadline) {
  int done = 0x5a5a5a5a, rc = n->vt->test(*req, &done, NULL);
  CHECK_MSG(rc == 0, "test returned %d", rc);
  CHECK(done == 0 || done == 1);
  CHECK(!rail_deadline_passed(deadline));
  if (done) *req = NULL;
}

TEST(done_is_written_while_a_request_is_not) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  size_t size = (size_t)64 << 20; /* more than a plugin sends ahead */
  char *out = calloc(1, size), *in = malloc(size);
  struct kit_op send = kit_op_send(p.send, out, size, 2), recv = kit_op_recv(p.recv, in, size, 2);
  CHECK(kit_op_post(&n, &send));
  for (int i = 0; i < 100; i++) CHECK_MSG(!kit_op_test(&n, &send), "done, with nobody to receive it");
  CHECK(kit_op_post(&n, &recv));
  struct kit_op ops[2] = {send, recv};
  kit_ops_run(&n, ops, 2, (struct kit_ops_how){0});
  free(out);
  free(in);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(sizes_may_be_null) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  for (size_t size = 0; size < 200000; size = size * 3 + 7) {
    struct kit_guarded out = kit_guard_high(size), in = kit_guard_high(size);
    kit_pattern_fill(out.data, size, size);
    struct kit_op send = kit_op_send(p.send, out.data, size, 1), recv = kit_op_recv(p.recv, in.data, size, 1);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    while (!kit_op_post(&n, &recv)) CHECK(!recv.error && !rail_deadline_passed(deadline));
    while (!kit_op_post(&n, &send)) CHECK(!send.error && !rail_deadline_passed(deadline));
    while (send.req || recv.req) {
      if (send.req) test_without_sizes(&n, &send.req, deadline);
      if (recv.req) test_without_sizes(&n, &recv.req, deadline);
    }
    CHECK(kit_pattern_check(in.data, size, size) < 0);
    kit_guard_free(&out);
    kit_guard_free(&in);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(a_send_reports_its_size) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  static uint8_t out[100000], in[200000];
  static const size_t size[] = {0, 1, 1000, 100000};
  for (size_t i = 0; i < 4; i++) {
    struct kit_op ops[2] = {kit_op_recv(p.recv, in, sizeof in, 1), kit_op_send(p.send, out, size[i], 1)};
    kit_ops_run(&n, ops, 2, (struct kit_ops_how){0});
    CHECK_INT(ops[1].sizes[0], size[i]);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* done means done: the caller scribbles over the send buffer, and unmaps it, at that moment. */
TEST(a_finished_send_needs_its_buffer_no_more) {
  enum { DEPTH = 4 };
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  size_t size = 700001;
  struct kit_guarded in[DEPTH], out[DEPTH];
  for (int i = 0; i < DEPTH; i++) in[i] = kit_guard_high(size);
  for (int round = 0; round < kit_scaled(40); round++) {
    struct kit_op send[DEPTH], recv[DEPTH];
    for (int i = 0; i < DEPTH; i++) {
      out[i] = kit_guard_high(size);
      kit_pattern_fill(out[i].data, size, (uint64_t)round * DEPTH + (uint64_t)i);
      send[i] = kit_op_send(p.send, out[i].data, size, 0);
      recv[i] = kit_op_recv(p.recv, in[i].data, size, 0);
    }
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    for (int left = 2 * DEPTH; left > 0;) {
      for (int i = 0; i < DEPTH; i++) {
        if (!recv[i].req && !recv[i].done && (i == 0 || recv[i - 1].req || recv[i - 1].done)) kit_op_post(&n, &recv[i]);
        if (!send[i].req && !send[i].done && (i == 0 || send[i - 1].req || send[i - 1].done)) kit_op_post(&n, &send[i]);
        if (send[i].req && kit_op_test(&n, &send[i])) {
          CHECK_INT(send[i].error, 0);
          left--;
          memset(out[i].data, 0xee, size);
          kit_guard_free(&out[i]);
        }
        if (recv[i].req && kit_op_test(&n, &recv[i])) {
          CHECK_INT(recv[i].error, 0);
          left--;
        }
      }
      CHECK_MSG(!rail_deadline_passed(deadline), "%d requests left", left);
    }
    for (int i = 0; i < DEPTH; i++) {
      ssize_t wrong = kit_pattern_check(in[i].data, size, (uint64_t)round * DEPTH + (uint64_t)i);
      CHECK_MSG(wrong < 0, "the receiver saw the scribble at byte %zd", wrong);
    }
  }
  for (int i = 0; i < DEPTH; i++) kit_guard_free(&in[i]);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(requests_are_reused_without_end) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  for (int i = 0; i < kit_scaled(20000); i++) {
    int out = i, in = -1;
    struct kit_op ops[2] = {kit_op_recv(p.recv, &in, sizeof in, i & 3), kit_op_send(p.send, &out, sizeof out, i & 3)};
    kit_ops_run(&n, ops, 2, (struct kit_ops_how){0});
    CHECK_INT(in, i);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(request_and_done_are_always_written), TEST_CASE(done_is_written_while_a_request_is_not),
          TEST_CASE(sizes_may_be_null),
          TEST_CASE(a_send_reports_its_size), TEST_CASE(a_finished_send_needs_its_buffer_no_more),
          TEST_CASE(requests_are_reused_without_end))
