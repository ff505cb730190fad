/* SPDX-License-Identifier: Apache-2.0
 * Messages pair up in posting order whatever is tested when, and a full table is back-pressure, not an error.
 * TEST-LIMIT: 60 */
#include <sched.h>

#include "common/clock.h"
#include "test/harness/program.h"

enum { ROOM = 4096, MANY = RAIL_NET_MAX_REQUESTS };
static uint8_t out_buf[2][300][ROOM], in_buf[2][300][ROOM];

/* `count` messages of sizes from the rng on pair `which`: receives in ops[0…], sends in ops[count…]. */
static void prepare(struct kit_pair *p, int which, struct kit_op *ops, int count, struct kit_rng *rng,
                    bool sends_first) {
  struct kit_op *recvs = ops + (sends_first ? count : 0), *sends = ops + (sends_first ? 0 : count);
  for (int i = 0; i < count; i++) {
    size_t size = kit_rng_below(rng, ROOM + 1);
    kit_pattern_fill(out_buf[which][i], size, (uint64_t)which * 1000 + (uint64_t)i);
    memset(in_buf[which][i], 0xcc, ROOM);
    sends[i] = kit_op_send(p->send, out_buf[which][i], size, 5);
    recvs[i] = kit_op_recv(p->recv, in_buf[which][i], ROOM, 5);
  }
}

static void verify(int which, const struct kit_op *ops, int count, bool sends_first) {
  const struct kit_op *recvs = ops + (sends_first ? count : 0), *sends = ops + (sends_first ? 0 : count);
  for (int i = 0; i < count; i++) {
    CHECK_MSG(recvs[i].sizes[0] == (int)sends[i].size[0], "receive %d has %d bytes, send %d had %zu", i,
              recvs[i].sizes[0], i, sends[i].size[0]);
    ssize_t wrong = kit_pattern_check(in_buf[which][i], sends[i].size[0], (uint64_t)which * 1000 + (uint64_t)i);
    CHECK_MSG(wrong < 0, "receive %d does not hold message %d (byte %zd)", i, i, wrong);
  }
}

static void rounds(enum kit_ops_order order, bool sends_first, int count, int times) {
  struct kit_net n;
  struct kit_pair p;
  struct kit_rng rng;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_rng_start(&rng);
  static struct kit_op ops[600];
  for (int r = 0; r < times; r++) {
    prepare(&p, 0, ops, count, &rng, sends_first);
    kit_ops_run(&n, ops, 2 * count, (struct kit_ops_how){.order = order, .rng = &rng});
    verify(0, ops, count, sends_first);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(oldest_first) { rounds(KIT_OPS_FORWARD, false, MANY, kit_scaled(200)); }
TEST(newest_first) { rounds(KIT_OPS_BACKWARD, false, MANY, kit_scaled(200)); }
TEST(any_order) { rounds(KIT_OPS_SHUFFLED, false, MANY, kit_scaled(200)); }
TEST(sends_before_receives) { rounds(KIT_OPS_SHUFFLED, true, MANY, kit_scaled(200)); }

TEST(only_the_newest_is_tested) { /* progress must not depend on tests of the older ones */
  struct kit_net n;
  struct kit_pair p;
  struct kit_rng rng;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_rng_start(&rng);
  for (int r = 0; r < kit_scaled(50); r++) {
    struct kit_op ops[8];
    prepare(&p, 0, ops, 4, &rng, false);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    for (int i = 0; i < 8; i++) {
      while (!kit_op_post(&n, &ops[i])) {
        CHECK_MSG(!ops[i].error, "error %d", ops[i].error);
        CHECK_MSG(!rail_deadline_passed(deadline), "op %d cannot be posted", i);
      }
    }
    bool recv_done = false, send_done = false;
    while (!recv_done || !send_done) { /* ops[3] and ops[7] are the newest of each comm */
      if (!recv_done) recv_done = kit_op_test(&n, &ops[3]);
      if (!send_done) send_done = kit_op_test(&n, &ops[7]);
      CHECK(!ops[3].error && !ops[7].error);
      CHECK_MSG(!rail_deadline_passed(deadline), "testing only the newest requests gets nowhere");
      if (!recv_done || !send_done) sched_yield();
    }
    for (int i = 0; i < 8; i++) if (!ops[i].done) kit_op_finish(&n, &ops[i]);
    verify(0, ops, 4, false);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(two_comms_interleaved) {
  struct kit_net n;
  struct kit_pair p[2];
  struct kit_rng rng;
  kit_net_open(&n);
  kit_pair_open(&n, &p[0]);
  kit_pair_open(&n, &p[1]);
  kit_rng_start(&rng);
  static struct kit_op one[2][2 * MANY], ops[4 * MANY];
  for (int r = 0; r < kit_scaled(100); r++) {
    for (int w = 0; w < 2; w++) prepare(&p[w], w, one[w], MANY, &rng, false);
    for (int i = 0; i < 2 * MANY; i++) {
      ops[2 * i] = one[0][i];
      ops[2 * i + 1] = one[1][i];
    }
    kit_ops_run(&n, ops, 4 * MANY, (struct kit_ops_how){.order = KIT_OPS_SHUFFLED, .rng = &rng});
    for (int w = 0; w < 2; w++) {
      for (int i = 0; i < 2 * MANY; i++) one[w][i] = ops[2 * i + w];
      verify(w, one[w], MANY, false);
    }
  }
  kit_pair_close(&p[0]);
  kit_pair_close(&p[1]);
  kit_net_close(&n);
}

/* 32 grouped receives of maxRecvs each, and all the sends for them at once. */
TEST(all_requests_outstanding) {
  struct kit_net n;
  struct kit_pair p;
  struct rail_net_props_v12 props;
  kit_net_open(&n);
  CHECK_OK(n.vt->get_properties(n.dev, &props));
  kit_pair_open(&n, &p);
  int group = props.max_recvs, sends = MANY * group;
  static struct kit_op recv[MANY], send[MANY * KIT_MAX_GROUP];
  static uint32_t out[MANY * KIT_MAX_GROUP][4], in[MANY * KIT_MAX_GROUP][4];
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (int round = 0; round < kit_scaled(20); round++) {
    for (int r = 0; r < MANY; r++) {
      recv[r] = (struct kit_op){.kind = KIT_OP_RECV, .comm = p.recv, .n = group};
      for (int g = 0; g < group; g++) {
        int k = r * group + g;
        recv[r].data[g] = in[k];
        recv[r].size[g] = sizeof in[k];
        recv[r].tag[g] = g;
        for (int w = 0; w < 4; w++) out[k][w] = (uint32_t)(round * 100000 + k);
        memset(in[k], 0xcc, sizeof in[k]);
        send[k] = kit_op_send(p.send, out[k], sizeof out[k], g);
      }
    }
    for (int r = 0; r < MANY; r++)
      CHECK_MSG(kit_op_post(&n, &recv[r]), "receive %d of %d outstanding: error %d, request NULL", r, MANY,
                recv[r].error);
    /* All sends are posted before the first is tested; a NULL waits for grants to arrive, no more. */
    for (int k = 0; k < sends; k++) {
      while (!kit_op_post(&n, &send[k])) {
        CHECK_MSG(!send[k].error, "send %d: error %d", k, send[k].error);
        CHECK_MSG(!rail_deadline_passed(deadline), "send %d of %d outstanding stays NULL", k, sends);
        sched_yield();
      }
    }
    /* Newest first, and both ends in turn: a send may well wait for calls on the receiving side. */
    static struct kit_op all[MANY * (1 + KIT_MAX_GROUP)];
    memcpy(all, recv, sizeof recv);
    memcpy(all + MANY, send, sizeof send[0] * (size_t)sends);
    kit_ops_run(&n, all, MANY + sends, (struct kit_ops_how){.order = KIT_OPS_BACKWARD});
    for (int k = 0; k < sends; k++)
      CHECK_MSG(in[k][0] == out[k][0] && in[k][3] == out[k][3], "slot %d got message %u", k, in[k][0] % 100000);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* Far more than the guaranteed depth, one side at a time. */
TEST(full_table_is_not_an_error) {
  enum { TOO_MANY = 2000 };
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  static struct kit_op send[TOO_MANY], recv[TOO_MANY];
  static int out[TOO_MANY], in[TOO_MANY];
  int sent = 0, received = 0;
  for (int i = 0; i < TOO_MANY; i++) {
    out[i] = i;
    send[i] = kit_op_send(p.send, &out[i], sizeof out[i], 0);
    recv[i] = kit_op_recv(p.recv, &in[i], sizeof in[i], 0);
  }
  while (received < TOO_MANY && kit_op_post(&n, &recv[received])) received++;
  CHECK_MSG(received == TOO_MANY || !recv[received].error, "receive %d: error %d", received, recv[received].error);
  CHECK_MSG(received >= MANY, "only %d receives can be outstanding", received);
  for (int idle = 0; sent < received && idle < 20000;) { /* NULL a good while: full */
    if (kit_op_post(&n, &send[sent])) sent++, idle = 0;
    else idle++, sched_yield();
    CHECK_MSG(!send[sent < TOO_MANY ? sent : 0].error, "send %d: error %d", sent, send[sent].error);
  }
  CHECK_MSG(sent >= MANY, "only %d sends can be outstanding", sent);
  for (int k = 0; k < 200; k++) { /* and it says so as often as it is asked */
    if (received < TOO_MANY && kit_op_post(&n, &recv[received])) received++;
    if (received < TOO_MANY) CHECK_MSG(!recv[received].error, "receive %d: error %d", received, recv[received].error);
  }
  printf("# %d receives and %d sends outstanding\n", received, sent);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (int done = 0, first_send = 0; done < TOO_MANY;) {
    if (received < TOO_MANY && kit_op_post(&n, &recv[received])) received++;
    if (sent < TOO_MANY && kit_op_post(&n, &send[sent])) sent++;
    if (first_send < sent && kit_op_test(&n, &send[first_send])) first_send++;
    if (done < received && kit_op_test(&n, &recv[done])) {
      CHECK_MSG(!recv[done].error && in[done] == done, "receive %d: error %d, message %d", done, recv[done].error,
                in[done]);
      done++;
    }
    CHECK_MSG(!rail_deadline_passed(deadline), "%d of %d arrived", done, TOO_MANY);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(a_send_waits_for_its_receive) { /* with no receive posted: NULL or pending, never lost, never an error */
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  static uint8_t out[1 << 20], in[1 << 20];
  static const size_t size[] = {0, 10, 70000, 1 << 20};
  for (size_t i = 0; i < 4; i++) {
    kit_pattern_fill(out, size[i], i);
    struct kit_op send = kit_op_send(p.send, out, size[i], 1), recv = kit_op_recv(p.recv, in, sizeof in, 1);
    bool posted = false, done = false;
    uint64_t until = rail_deadline_in_ms(100);
    while (!rail_deadline_passed(until)) {
      if (!posted) posted = kit_op_post(&n, &send);
      else if (!done) done = kit_op_test(&n, &send);
      CHECK_INT(send.error, 0);
    }
    struct kit_op ops[2] = {recv, send};
    kit_ops_run(&n, ops, 2, (struct kit_ops_how){0});
    CHECK_INT(ops[0].sizes[0], size[i]);
    CHECK(kit_pattern_check(in, size[i], i) < 0);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(oldest_first), TEST_CASE(newest_first), TEST_CASE(any_order), TEST_CASE(sends_before_receives),
          TEST_CASE(only_the_newest_is_tested), TEST_CASE(two_comms_interleaved), TEST_CASE(all_requests_outstanding),
          TEST_CASE(full_table_is_not_an_error), TEST_CASE(a_send_waits_for_its_receive))
