/* SPDX-License-Identifier: Apache-2.0
 * *request preset to 0x1 says that a receive's completion is optional: a hint, not a pointer, and the data still comes.
 * TEST-LIMIT: 60 */
#include <sched.h>

#include "common/clock.h"
#include "test/harness/program.h"

TEST(the_hint_is_not_a_pointer) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  static const size_t size[] = {0, 8, 128, 4096, 524288};
  for (int round = 0; round < kit_scaled(50); round++) {
    for (size_t s = 0; s < sizeof size / sizeof size[0]; s++) {
      struct kit_guarded out = kit_guard_high(size[s]), in = kit_guard_high(size[s]);
      kit_pattern_fill(out.data, size[s], s);
      memset(in.data, 0, size[s]);
      struct kit_op ops[2] = {kit_op_recv(p.recv, in.data, size[s], 1), kit_op_send(p.send, out.data, size[s], 1)};
      ops[0].optional = true;
      kit_ops_run(&n, ops, 2, (struct kit_ops_how){0}); /* fails if *request comes back as 0x1 */
      /* The receive may have completed ahead of the data, which its reader then polls for:
       * a plugin without threads moves it when the next request is tested. */
      int next_out = 1, next_in = 0;
      struct kit_op next[2] = {kit_op_recv(p.recv, &next_in, sizeof next_in, 1),
                           kit_op_send(p.send, &next_out, sizeof next_out, 1)};
      kit_ops_run(&n, next, 2, (struct kit_ops_how){0});
      uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
      while (kit_pattern_check(in.data, size[s], s) >= 0) {
        CHECK_MSG(!rail_deadline_passed(deadline), "the data of an optional receive of %zu bytes never came", size[s]);
        sched_yield();
      }
      kit_guard_free(&out);
      kit_guard_free(&in);
    }
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(irecv_consumed_of_a_finished_request) { /* comes later with the old pointer, after the request was reused */
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  if (n.vt->irecv_consumed) {
    int out = 5, in = 0;
    struct kit_op ops[2] = {kit_op_recv(p.recv, &in, sizeof in, 1), kit_op_send(p.send, &out, sizeof out, 1)};
    CHECK(kit_op_post(&n, &ops[0]));
    void *old = ops[0].req;
    kit_ops_run(&n, ops, 2, (struct kit_ops_how){0});
    kit_pair_ping(&p, 100, 1);
    n.vt->irecv_consumed(p.recv, 1, old); /* whatever it says, nothing breaks */
  }
  kit_pair_ping(&p, 100, 2);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(the_hint_is_not_a_pointer), TEST_CASE(irecv_consumed_of_a_finished_request))
