/* SPDX-License-Identifier: Apache-2.0
 * *request preset to 0x1 means that a receive's completion is optional: a hint, not a pointer, and the data still
 * comes. */
#include <sched.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

static const size_t sizes[] = {8, 128, 4096, 524288};
enum { NSIZES = sizeof sizes / sizeof sizes[0] };

/* The receive may have been done ahead of its data, which a GPU then polls for. Nothing of the plugin is called. */
static void await_data(const uint8_t *in, size_t size, uint64_t seed, const char *when) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS / 2));
  while (kit_pattern_check(in, size, seed) >= 0) {
    ENSURE(!rail_deadline_passed(deadline), "the %zu bytes of a receive with optional completion never came, %s: done "
           "may come early, the data must come nevertheless", size, when);
    sched_yield();
  }
}

/* kit_op_post fails when *request comes back as 0x1. */
static void the_hint_is_not_a_pointer(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  uint8_t *next = kit_conn_high(&conn, 4);
  for (int i = 0; i < kit_scaled(20) * (NSIZES + 1); i++) {
    size_t size = i % (NSIZES + 1) ? sizes[i % (NSIZES + 1) - 1] : 0;
    uint8_t *out = kit_conn_high(&conn, size), *in = kit_conn_high(&conn, size);
    kit_pattern_fill(out, size, (uint64_t)i);
    memset(in, 0, size);
    struct kit_op ops[4] = {kit_conn_recv(&conn, in, size, 1), kit_conn_send(&conn, out, size, 1),
                            kit_conn_recv(&conn, next, 4, 1), kit_conn_send(&conn, next, 4, 1)};
    ops[0].optional = true;
    kit_conn_run(&conn, ops, 2, KIT_OPS_OLDEST);
    kit_conn_run(&conn, ops + 2, 2, KIT_OPS_OLDEST);
    if (conn.receives) await_data(in, size, (uint64_t)i, "with another message behind it");
    kit_conn_free(&conn, out);
    kit_conn_free(&conn, in);
  }
  kit_conn_close(&conn);
}

/* After an operation's last step the proxy calls nothing more on this comm, and the GPU waits for the flags. */
static void the_data_comes_by_itself(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  for (size_t i = 0; i < NSIZES; i++) {
    uint8_t *out = kit_conn_high(&conn, sizes[i]), *in = kit_conn_high(&conn, sizes[i]);
    kit_pattern_fill(out, sizes[i], i);
    memset(in, 0, sizes[i]);
    struct kit_op ops[2] = {kit_conn_recv(&conn, in, sizes[i], 1), kit_conn_send(&conn, out, sizes[i], 1)};
    ops[0].optional = true;
    kit_conn_run(&conn, ops, 2, KIT_OPS_OLDEST);
    if (conn.receives) await_data(in, sizes[i], i, "with no call of the plugin after test had said done");
    kit_barrier(self); /* the sender, too, has called nothing after its done */
    kit_conn_free(&conn, out);
    kit_conn_free(&conn, in);
  }
  kit_conn_close(&conn);
}

/* LL's 8 steps, most receives with the hint and some without. A slot is used again when its data has been seen. */
static void eight_steps(struct kit_process *self) {
  enum { STEPS = 8, SLOT = 65536 };
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  uint8_t *out = kit_conn_high(&conn, STEPS * SLOT), *in = kit_conn_high(&conn, STEPS * SLOT);
  for (int round = 0; round < kit_scaled(30); round++) {
    struct kit_op ops[2 * STEPS];
    for (int i = 0; i < STEPS; i++) {
      size_t size = 8 + kit_rng_below(&conn.rng, SLOT / 8) * 8 % (SLOT - 8);
      uint64_t seed = (uint64_t)round * STEPS + (uint64_t)i;
      kit_pattern_fill(out + i * SLOT, size, seed);
      memset(in + i * SLOT, 0, SLOT);
      ops[i] = kit_conn_recv(&conn, in + i * SLOT, SLOT, 0);
      ops[i].optional = kit_rng_below(&conn.rng, 4) != 0;
      ops[STEPS + i] = kit_conn_send(&conn, out + i * SLOT, size, 0);
    }
    kit_conn_run(&conn, ops, 2 * STEPS, KIT_OPS_OLDEST);
    for (int i = 0; conn.receives && i < STEPS; i++) {
      uint64_t seed = (uint64_t)round * STEPS + (uint64_t)i;
      size_t size = ops[STEPS + i].size[0];
      if (ops[i].optional) await_data(in + i * SLOT, size, seed, "one of 8 steps");
      else
        ENSURE(ops[i].sizes[0] == (int)size && kit_pattern_check(in + i * SLOT, size, seed) < 0,
               "step %d, without the hint and between others with it, is done with %d of %zu bytes or wrong ones", i,
               ops[i].sizes[0], size);
    }
  }
  kit_conn_close(&conn);
}

/* Comes with the old pointer when the plugin may have given the request to another receive, which is outstanding; half
 * of the receives come after it. A place that is freed a second time serves two of them. */
static void irecv_consumed_of_a_finished_request(struct kit_process *self) {
  enum { MANY = RAIL_NET_MAX_REQUESTS, LEN = 64 };
  static struct kit_op ops[2 * MANY];
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  if (!conn.net->vt->irecv_consumed) kit_skip("the plugin has no irecvConsumed");
  uint8_t *out = kit_conn_high(&conn, MANY * LEN), *in = kit_conn_high(&conn, MANY * LEN);
  for (int round = 0; round < 10; round++) {
    void *old = NULL;
    ops[0] = kit_conn_recv(&conn, in, LEN, 1);
    ops[1] = kit_conn_send(&conn, out, LEN, 1);
    if (conn.receives && kit_op_post(conn.net, &ops[0])) old = ops[0].req;
    kit_conn_run(&conn, ops, 2, KIT_OPS_OLDEST);
    for (int i = 0; i < MANY; i++) {
      kit_pattern_fill(out + i * LEN, LEN, (uint64_t)round * MANY + (uint64_t)i);
      ops[i] = kit_conn_recv(&conn, in + i * LEN, LEN, 1);
      ops[MANY + i] = kit_conn_send(&conn, out + i * LEN, LEN, 1);
    }
    memset(in, 0, MANY * LEN);
    for (int i = 0; i < MANY / 2 && kit_op_post(conn.net, &ops[i]); i++) {}
    if (old) conn.net->vt->irecv_consumed(conn.pair.recv, 1, old); /* whatever it returns, nothing breaks */
    kit_conn_run(&conn, ops, 2 * MANY, KIT_OPS_OLDEST);
    for (int i = 0; i < MANY; i++)
      ENSURE(kit_pattern_check(in + i * LEN, LEN, (uint64_t)round * MANY + (uint64_t)i) < 0,
             "after irecvConsumed with a request that was done before, receive %d of %d got something else", i, MANY);
  }
  kit_conn_close(&conn);
}

#define NET "src/transport/net.cc:"

const struct kit_check kit_checks_optional[] = {
    {"9.1", "optional.the_hint_is_not_a_pointer", KIT_MUST, KIT_TWO, .limit_s = 40, .versions = KIT_SINCE(9),
     .what = "irecv with 0x1 in *request (completion is optional) gives a request of its own, and the data comes.",
     .source = NET "187, 1585-1589", .run = the_hint_is_not_a_pointer},
    {"9.2", "optional.the_data_comes_by_itself", KIT_MUST, KIT_TWO, .limit_s = 40, .versions = KIT_SINCE(9),
     .what = "When such a receive is done, its data comes without another call of the plugin: a GPU polls for it.",
     .source = NET "1585-1589", .run = the_data_comes_by_itself},
    {"9.3", "optional.eight_steps", KIT_MUST, KIT_TWO, .limit_s = 40, .versions = KIT_SINCE(9),
     .what = "LL's 8 steps in flight, with the hint and without, all bring their data.",
     .source = NET "1323, 1585-1589", .run = eight_steps},
    {"9.4", "optional.irecv_consumed_of_a_finished_request", KIT_MUST, KIT_ONE, .limit_s = 40, .versions = KIT_SINCE(7),
     .what = "irecvConsumed may name a receive that is long finished, its request given to others.",
     .source = NET "1593, 1735-1742", .run = irecv_consumed_of_a_finished_request},
    {0},
};
