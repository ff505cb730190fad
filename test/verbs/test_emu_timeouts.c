/* SPDX-License-Identifier: Apache-2.0
 * The emulated device's timers: ACK timeouts, receivers that are not ready, the virtual clock. TEST-LIMIT: 240 */
#include "test/verbs/verbs.h"

static struct end a, b;

/* ---- ACK timeouts ------------------------------------------------------------------------ */

/* 8 timeouts of a's request, none of whose packets arrives, while c always has requests under way: so many at most. */
static void check_timeout_beside(enum ibv_wr_opcode op, int latency_us) {
  const int most = latency_us ? 300 : 2000; /* MB */
  struct shape s = USUAL_SHAPE;
  struct end c = {0}, d = {0};
  struct ibv_wc wc;
  int done = 0, posted = 0;
  s.timeout = 8;
  s.retry_cnt = 7;
  emu_pair_open(&a, &b, &s);
  end_open(&c, 0);
  end_open(&d, 1);
  s.timeout = 14;
  end_make_qp(&c, &s);
  end_make_qp(&d, &s);
  connect_ends(&c, &d, &s);
  emu_command_for("drop times=ever", &b);
  if (latency_us) emu_port(&c, "bandwidth", 100); /* 500 packets are under way, more would be lost */
  emu_port(&d, "latency", latency_us);
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8);
  while (ibv_poll_cq(a.cq, 1, &wc) == 0) {
    CHECK_MSG(done < most, "no timeout beside %d requests", done);
    for (; posted < done + DEPTH; posted++) send_work(&c, &d, op, 2, 0, BYTES);
    if (ibv_poll_cq(c.cq, 1, &wc) == 0) continue;
    CHECK_INT(wc.status, IBV_WC_SUCCESS);
    done++;
  }
  CHECK_INT(wc.status, IBV_WC_RETRY_EXC_ERR);
  emu_port(&d, "latency", 0);
  emu_port(&c, "bandwidth", 0);
  for (; done < posted; done++) CHECK_COMPLETION(&c, 2, IBV_WC_SUCCESS);
  end_close(&c);
  end_close(&d);
  emu_pair_close(&a, &b);
}

TEST(a_timeout_beside_writes) { check_timeout_beside(IBV_WR_RDMA_WRITE, 0); }
TEST(a_timeout_beside_reads) { check_timeout_beside(IBV_WR_RDMA_READ, 0); }
TEST(a_timeout_beside_packets_under_way) { check_timeout_beside(IBV_WR_RDMA_WRITE, 5000); }

/* From the oldest request on, though later ones of its queue pair leave for a minute and more. */
TEST(a_timeout_before_all_is_sent) {
  struct shape s = USUAL_SHAPE;
  s.timeout = 14;
  s.retry_cnt = 0;
  emu_pair_open(&a, &b, &s);
  emu_port(&a, "bandwidth", 1);
  emu_command_for("drop times=ever", &b);
  for (unsigned int i = 0; i < DEPTH; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, i ? BYTES : 8);
  CHECK_COMPLETION(&a, 0, IBV_WC_RETRY_EXC_ERR);
  emu_port(&a, "bandwidth", 0);
  emu_pair_close(&a, &b);
  emu_pair_open(&a, &b, &s);
  emu_command_for("drop times=ever", &b);
  emu_command_for("slow us=600000000 from=2", &a); /* ten minutes */
  for (unsigned int i = 0; i < 2; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, 8);
  CHECK_COMPLETION(&a, 0, IBV_WC_RETRY_EXC_ERR);
  emu_pair_close(&a, &b);
}

/* No ACK is due before a message has left; a response that leaves slowly is no silence. A packet takes 1 ms. */
TEST(messages_that_take_longer_than_a_timeout) {
  struct shape s = USUAL_SHAPE;
  s.timeout = 7; /* 0.5 ms */
  s.retry_cnt = 0;
  emu_pair_open(&a, &b, &s);
  fill(a.data, 32000, 3);
  emu_port(&a, "bandwidth", 1);
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 32000);
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK(memcmp(a.data, b.data, 32000) == 0);
  emu_port(&a, "bandwidth", 0);
  memset(a.data, 0, 32000);
  emu_port(&b, "bandwidth", 1);
  send_work(&a, &b, IBV_WR_RDMA_READ, 2, 0, 32000);
  CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
  CHECK(memcmp(a.data, b.data, 32000) == 0);
  emu_port(&b, "bandwidth", 0);
  emu_pair_close(&a, &b);
}

/* What has begun is sent again where nothing may begin. */
TEST(a_loss_while_it_drains) {
  struct shape s = USUAL_SHAPE;
  s.timeout = 14;
  emu_pair_open(&a, &b, &s);
  emu_command_for("drop times=1", &b);
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8);
  to_state(&a, IBV_QPS_SQD);
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 2, 0, 8);
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK(is_quiet(&a));
  to_state(&a, IBV_QPS_RTS);
  CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
  emu_pair_close(&a, &b);
}

/* ---- the clock --------------------------------------------------------------------------------- */

/* Seconds of the devices' clock. */
static double device_s(void) {
  uint64_t (*now)(void);
  void *symbol = dlsym(RTLD_DEFAULT, "rail_emu_now");
  CHECK(symbol);
  memcpy(&now, &symbol, sizeof now);
  return (double)now() / 1e9;
}

/* 8 times more than two hours each, at least. */
TEST(hours_of_timeouts_take_no_time) {
  struct shape s = USUAL_SHAPE;
  s.timeout = 31;
  s.retry_cnt = 7;
  emu_pair_open(&a, &b, &s);
  CHECK(emu_command("clock virtual"));
  end_drop_qp(&b);
  double began = device_s();
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8);
  CHECK_COMPLETION(&a, 1, IBV_WC_RETRY_EXC_ERR);
  double took = device_s() - began, timeout = 4.096e-6 * (1ll << 31);
  CHECK_MSG(took >= 8 * timeout && took < 9 * timeout, "8 timeouts of %.0f s took %.0f s", timeout, took);
  emu_pair_close(&a, &b);
}

/* Packets are under way for ten minutes, and so are ACKs; not one after the other. */
TEST(packets_are_under_way_for_ten_minutes) {
  struct shape s = USUAL_SHAPE;
  s.timeout = 31;
  emu_pair_open(&a, &b, &s);
  fill(a.data, 20000, 5);
  emu_port(&a, "latency", 600000000);
  emu_port(&b, "latency", 600000000);
  double began = device_s();
  for (unsigned int i = 0; i < 10; i++) {
    receive(&b, i, 0, 0);
    send_work(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, i, i * 2000, 2000);
  }
  CHECK(is_quiet(&a) && is_quiet(&b));
  CHECK(emu_command("progress post; clock virtual")); /* the clock rests between polls */
  CHECK_COMPLETION(&b, 0, IBV_WC_SUCCESS);
  double took = device_s() - began;
  CHECK_MSG(took >= 600 && took < 1100, "arrived after %.0f s", took);
  for (unsigned int i = 1; i < 10; i++) CHECK_COMPLETION(&b, i, IBV_WC_SUCCESS);
  CHECK(memcmp(a.data, b.data, 20000) == 0);
  for (unsigned int i = 0; i < 10; i++) CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  took = device_s() - began;
  CHECK_MSG(took >= 1200 && took < 1700, "done after %.0f s", took);
  CHECK(emu_command("progress thread"));
  emu_port(&a, "latency", 0);
  emu_port(&b, "latency", 0);
  emu_pair_close(&a, &b);
}

/* c's packet leaves after a second, while one to b is under way for ten minutes. */
TEST(a_timer_before_a_packet_arrives) {
  struct shape s = USUAL_SHAPE;
  struct end c = {0}, d = {0};
  s.timeout = 31;
  emu_pair_open(&a, &b, &s);
  pair_open(&c, &d, &s);
  emu_command_for("delay us=600000000", &b);
  emu_command_for("slow us=1000000 times=1", &c);
  CHECK(emu_command("progress post")); /* the clock rests between polls */
  double began = device_s();
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8);
  send_work(&c, &d, IBV_WR_RDMA_WRITE, 2, 0, 8);
  CHECK(emu_command("clock virtual"));
  CHECK_COMPLETION(&c, 2, IBV_WC_SUCCESS);
  double took = device_s() - began;
  CHECK_MSG(took >= 1 && took < 600, "a packet that waits for 1 s took %.3f s", took);
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  took = device_s() - began;
  CHECK_MSG(took >= 600 && took < 1200, "a packet that is under way for 600 s took %.3f s", took);
  CHECK(emu_command("progress thread"));
  end_close(&c);
  end_close(&d);
  emu_pair_close(&a, &b);
}

/* The write is done and its timer off: there is nothing to skip to. */
TEST(a_timer_that_is_off_moves_no_clock) {
  struct shape s = USUAL_SHAPE;
  s.timeout = 31;
  emu_pair_open(&a, &b, &s);
  double began = device_s();
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8);
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK(emu_command("clock virtual"));
  usleep(50000);
  double took = device_s() - began;
  CHECK_MSG(took < 1000, "a write and 50 ms took %.3f s", took);
  emu_pair_close(&a, &b);
}

TEST(receivers_that_are_not_ready_take_no_time) {
  struct shape s = USUAL_SHAPE;
  s.min_rnr_timer = 0; /* 655 ms, the longest */
  s.rnr_retry = 6;
  emu_pair_open(&a, &b, &s);
  CHECK(emu_command("clock virtual"));
  double began = device_s();
  send_work(&a, &b, IBV_WR_SEND, 1, 0, 8);
  CHECK_COMPLETION(&a, 1, IBV_WC_RNR_RETRY_EXC_ERR);
  double took = device_s() - began;
  CHECK_MSG(took >= 6 * 0.655 && took < 6 * 0.655 + 60, "6 times 655 ms took %.3f s", took);
  emu_pair_close(&a, &b);
}

TEST_MAIN(TEST_CASE(a_timeout_beside_writes), TEST_CASE(a_timeout_beside_reads),
          TEST_CASE(a_timeout_beside_packets_under_way),
          TEST_CASE(a_timeout_before_all_is_sent), TEST_CASE(messages_that_take_longer_than_a_timeout),
          TEST_CASE(a_loss_while_it_drains), TEST_CASE(hours_of_timeouts_take_no_time),
          TEST_CASE(packets_are_under_way_for_ten_minutes), TEST_CASE(a_timer_before_a_packet_arrives),
          TEST_CASE(a_timer_that_is_off_moves_no_clock),
          TEST_CASE(receivers_that_are_not_ready_take_no_time))
