/* SPDX-License-Identifier: Apache-2.0
 * The emulated device where posts or polls alone carry out requests, and what it says of receives that is not so. */
#include "test/verbs/verbs.h"

static struct end a, b;

static void open_pair(void) {
  struct shape s = USUAL_SHAPE;
  CHECK(emu_command("reset; progress thread"));
  pair_open(&a, &b, &s);
  fill(a.data, BYTES, 5);
}

static void close_pair(void) {
  CHECK(emu_command("reset; progress thread"));
  pair_close(&a, &b);
}

/* How many of a's requests are over after one more poll. */
static int polled(void) {
  struct ibv_wc wc[8];
  int n = ibv_poll_cq(a.cq, 8, wc);
  for (int i = 0; i < n; i++) CHECK_INT(wc[i].status, IBV_WC_SUCCESS);
  return n;
}

static void rest(void) { poll(NULL, 0, 20); }

/* ---- who carries them out ----------------------------------------------------------- */

TEST(within_the_post) {
  open_pair();
  CHECK(emu_command("progress post"));
  receive(&b, 7, 0, 0);
  send_work(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, BYTES);
  CHECK(memcmp(a.data, b.data, BYTES) == 0);
  CHECK_INT(polled(), 1);
  CHECK(!is_quiet(&b));
  memset(a.data, 0, 64);
  send_work(&a, &b, IBV_WR_RDMA_READ, 2, 0, 64);
  CHECK(memcmp(a.data, b.data, 64) == 0);
  CHECK_INT(polled(), 1);
  close_pair();
}

/* What a receiver that is not ready has sent back is not done: the send queue is not drained before. */
TEST(a_send_queue_that_drains) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1}, got;
  struct ibv_qp_init_attr init;
  open_pair();
  CHECK(emu_command("progress post"));
  send_work(&a, &b, IBV_WR_SEND, 1, 0, 64); /* the RNR NAK is here */
  CHECK_OK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
  struct pollfd fd = {.fd = a.context->async_fd, .events = POLLIN};
  CHECK_INT(poll(&fd, 1, 0), 0);
  CHECK_OK(ibv_query_qp(a.qp, &got, IBV_QP_STATE, &init));
  CHECK_INT(got.sq_draining, 1);
  receive(&b, 2, 0, 64);
  CHECK(emu_command("progress thread"));
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  wait_event(&a, IBV_EVENT_SQ_DRAINED);
  CHECK_OK(ibv_query_qp(a.qp, &got, IBV_QP_STATE, &init));
  CHECK_INT(got.sq_draining, 0);
  close_pair();
}

/* To the ports' other addresses, while nothing is sent. The former ones go: the connection does not need them. */
TEST(a_path_that_is_changed_in_sqd) {
  enum { NEXT = 1, FORMER = 3 };
  struct shape s = USUAL_SHAPE;
  struct end *ends[2] = {&a, &b};
  open_pair();
  CHECK(a.gid_index == FORMER && b.gid_index == FORMER);
  for (int i = 0; i < 2; i++) {
    to_state(ends[i], IBV_QPS_SQD);
    CHECK_OK(ibv_query_gid(ends[i]->context, 1, NEXT, &ends[i]->gid));
    ends[i]->gid_index = NEXT;
  }
  for (int i = 0; i < 2; i++) {
    struct ibv_qp_attr attr = rtr_attr(ends[i], ends[!i], &s);
    attr.qp_state = IBV_QPS_SQD;
    CHECK_INT(ibv_modify_qp(ends[i]->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN), EINVAL);
    CHECK_OK(ibv_modify_qp(ends[i]->qp, &attr, IBV_QP_STATE | IBV_QP_AV));
    to_state(ends[i], IBV_QPS_RTS);
  }
  CHECK(emu_command("gid emu0 1 2 none; gid emu0 1 3 none; gid emu1 1 2 none; gid emu1 1 3 none"));
  for (unsigned int i = 0; i < 2; i++) {
    send_work(ends[i], ends[!i], IBV_WR_RDMA_WRITE, i, 0, 5000);
    CHECK_COMPLETION(ends[i], i, IBV_WC_SUCCESS);
  }
  CHECK(emu_command("gid emu0 1 2 10.77.0.1 type=v1; gid emu0 1 3 10.77.0.1 type=v2"));
  CHECK(emu_command("gid emu1 1 2 10.77.1.1 type=v1; gid emu1 1 3 10.77.1.1 type=v2"));
  close_pair();
}

/* And what is slow stays slow: its timer does not end the pause. */
TEST(a_slow_queue_pair_that_is_sent_back) {
  open_pair();
  CHECK(emu_command("progress post; slow us=300000 from=2 times=1"));
  long began = now_ms();
  send_work(&a, &b, IBV_WR_SEND, 1, 0, 1500); /* its second packet waits, its first one is not received */
  receive(&b, 2, 0, 1500);
  CHECK(emu_command("progress thread"));
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK(now_ms() - began >= 299);
  CHECK_COMPLETION(&b, 2, IBV_WC_SUCCESS);
  close_pair();
}

TEST(by_polls_of_the_senders_queue) {
  open_pair();
  CHECK(emu_command("progress poll"));
  for (unsigned int i = 0; i < 4; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, i, i * 5000, 5000);
  rest();
  CHECK(is_quiet(&b)); /* and this is a poll, of another one */
  CHECK_INT(b.data[1], 0);
  CHECK_INT(polled(), 4);
  CHECK(memcmp(a.data, b.data, 20000) == 0);
  CHECK(emu_command("progress poll burst=2"));
  for (unsigned int i = 0; i < 5; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, 8);
  CHECK_INT(polled(), 2);
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 5, 0, 8);
  CHECK_INT(polled(), 2);
  CHECK_INT(polled(), 2);
  CHECK_INT(polled(), 0);
  close_pair();
}

/* Of 60 polls about half pass it over, and the same ones again. */
TEST(some_are_passed_over) {
  long none[2] = {0};
  open_pair();
  for (int round = 0; round < 2; round++) {
    CHECK(emu_command("progress poll burst=1 skip=3"));
    for (unsigned int i = 0; i < 60; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, 8);
    for (int done = 0, polls = 0; done < 60; polls++) {
      int n = polled();
      CHECK(n <= 1 && polls < 1000);
      done += n;
      if (n == 0) none[round] += polls;
    }
    CHECK(none[round] > 0);
  }
  CHECK_INT(none[0], none[1]);
  close_pair();
}

/* What was posted before, too. */
TEST(by_the_thread_again) {
  open_pair();
  CHECK(emu_command("progress poll"));
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 64);
  rest();
  CHECK_INT(b.data[1], 0);
  CHECK(emu_command("progress thread"));
  for (long end = now_ms() + WAIT_MS; memcmp(a.data, b.data, 64) != 0; rest()) CHECK(now_ms() < end);
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  close_pair();
}

/* ---- what a receive says ------------------------------------------------------------ */

TEST(a_receive_fails) {
  open_pair();
  CHECK(emu_command("complete loc_prot_err op=recv from=2 vendor=44"));
  for (unsigned int i = 0; i < 3; i++) receive(&b, i, 0, 0);
  send_work(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 8);
  send_work(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 2, 0, 8);
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS); /* it arrived */
  CHECK_COMPLETION(&b, 0, IBV_WC_SUCCESS);
  struct ibv_wc wc = completion(&b);
  CHECK(wc.wr_id == 1 && wc.status == IBV_WC_LOC_PROT_ERR && wc.vendor_err == 0x44);
  CHECK_COMPLETION(&b, 2, IBV_WC_WR_FLUSH_ERR);
  close_pair();
}

TEST(an_immediate_changes) {
  struct work w;
  open_pair();
  CHECK(emu_command("immediate xor=ff00 from=2"));
  for (unsigned int i = 0; i < 3; i++) receive(&b, i, 0, 0);
  for (unsigned int i = 0; i < 3; i++) {
    work(&w, &a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, i, 0, 8);
    w.wr.imm_data = htobe32(0x12345678);
    CHECK_OK(post(&a, &w.wr));
    struct ibv_wc wc = completion(&b);
    CHECK_INT(be32toh(wc.imm_data), i == 1 ? 0x1234a978 : 0x12345678);
    CHECK_INT(wc.status, IBV_WC_SUCCESS);
  }
  close_pair();
}

/* ---- calls that only ask -------------------------------------------------------------- */

TEST(a_query_fails_on_command) {
  struct ibv_device_attr device;
  struct ibv_port_attr port;
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  union ibv_gid gid;
  struct ibv_wc wc;
  open_pair();
  CHECK(emu_command("fail query_device errno=EIO; fail query_port errno=EIO; fail query_gid errno=EIO; "
                    "fail query_qp errno=EIO; fail get_device_list errno=ENOSYS; fail fork_init errno=EINVAL; "
                    "fail query_ece errno=EIO; fail set_ece errno=EIO; fail poll_cq errno=EIO"));
  CHECK_INT(ibv_query_device(a.context, &device), EIO);
  CHECK_INT(ibv_query_port(a.context, 1, &port), EIO);
  CHECK(ibv_query_gid(a.context, 1, 0, &gid) == -1 && errno == EIO);
  CHECK_INT(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init), EIO);
  CHECK(!ibv_get_device_list(NULL) && errno == ENOSYS);
  CHECK_INT(ibv_fork_init(), EINVAL);
  CHECK_INT(ibv_query_ece(a.qp, &(struct ibv_ece){0}), EIO);
  CHECK_INT(ibv_set_ece(a.qp, &(struct ibv_ece){0}), EIO);
  CHECK_INT(ibv_poll_cq(a.cq, 1, &wc), -EIO);
  CHECK_OK(ibv_query_device(a.context, &device)); /* once each */
  CHECK_OK(ibv_query_port(a.context, 1, &port));
  CHECK_INT(ibv_poll_cq(a.cq, 1, &wc), 0);
  close_pair();
}

TEST_MAIN(TEST_CASE(within_the_post), TEST_CASE(a_send_queue_that_drains), TEST_CASE(a_path_that_is_changed_in_sqd),
          TEST_CASE(a_slow_queue_pair_that_is_sent_back), TEST_CASE(by_polls_of_the_senders_queue),
          TEST_CASE(some_are_passed_over),
          TEST_CASE(by_the_thread_again), TEST_CASE(a_receive_fails), TEST_CASE(an_immediate_changes),
          TEST_CASE(a_query_fails_on_command))
