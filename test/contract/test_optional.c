/* SPDX-License-Identifier: Apache-2.0
 * *request preset to 0x1 says that a receive's completion is optional: a hint, not a pointer, and the data still comes.
 * TEST-LIMIT: 60 */
#include <sched.h>

#include "common/clock.h"
#include "test/harness/program.h"

TEST(the_hint_is_not_a_pointer) {
  struct net n;
  struct pair p;
  net_open(&n);
  pair_open(&n, &p);
  static const size_t size[] = {0, 8, 128, 4096, 524288};
  for (int round = 0; round < scaled(50); round++) {
    for (size_t s = 0; s < sizeof size / sizeof size[0]; s++) {
      struct guarded out = guard_high(size[s]), in = guard_high(size[s]);
      pattern_fill(out.data, size[s], s);
      memset(in.data, 0, size[s]);
      struct op ops[2] = {op_recv(p.recv, in.data, size[s], 1), op_send(p.send, out.data, size[s], 1)};
      ops[0].optional = true;
      ops_run(&n, ops, 2, (struct ops_how){0}); /* fails if *request comes back as 0x1 */
      /* The receive may have completed ahead of the data, which its reader then polls for:
       * a plugin without threads moves it when the next request is tested. */
      int next_out = 1, next_in = 0;
      struct op next[2] = {op_recv(p.recv, &next_in, sizeof next_in, 1),
                           op_send(p.send, &next_out, sizeof next_out, 1)};
      ops_run(&n, next, 2, (struct ops_how){0});
      uint64_t deadline = rail_deadline_in_ms(patience_ms(PAIR_PATIENCE_MS));
      while (pattern_check(in.data, size[s], s) >= 0) {
        CHECK_MSG(!rail_deadline_passed(deadline), "the data of an optional receive of %zu bytes never came", size[s]);
        sched_yield();
      }
      guard_free(&out);
      guard_free(&in);
    }
  }
  pair_close(&p);
  net_close(&n);
}

TEST(irecv_consumed_of_a_finished_request) { /* comes later with the old pointer, after the request was reused */
  struct net n;
  struct pair p;
  net_open(&n);
  pair_open(&n, &p);
  if (n.vt->irecv_consumed) {
    int out = 5, in = 0;
    struct op ops[2] = {op_recv(p.recv, &in, sizeof in, 1), op_send(p.send, &out, sizeof out, 1)};
    CHECK(op_post(&n, &ops[0]));
    void *old = ops[0].req;
    ops_run(&n, ops, 2, (struct ops_how){0});
    pair_ping(&p, 100, 1);
    n.vt->irecv_consumed(p.recv, 1, old); /* whatever it says, nothing breaks */
  }
  pair_ping(&p, 100, 2);
  pair_close(&p);
  net_close(&n);
}

TEST_MAIN(TEST_CASE(the_hint_is_not_a_pointer), TEST_CASE(irecv_consumed_of_a_finished_request))
