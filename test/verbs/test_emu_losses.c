/* SPDX-License-Identifier: Apache-2.0
 * The emulated device: responses that are lost, objects that go while something of theirs is left. TEST-LIMIT: 240 */
#include "test/verbs/verbs.h"

static struct end a, b;

/* ---- responses ---------------------------------------------------------------------- */

/* Any one response of many that are under way is lost: that takes one retry, and all is as it is without. */
static void check_lost_response(enum ibv_wr_opcode op, unsigned int requests, uint32_t size, unsigned int responses) {
  struct shape s = USUAL_SHAPE;
  char text[64];
  s.max_rd_atomic = 16;
  s.retry_cnt = 1;
  for (unsigned int lost = 1; lost <= responses; lost++) {
    emu_pair_open(&a, &b, &s);
    fill(b.data, requests * size, lost);
    snprintf(text, sizeof text, "drop op=answer from=%u times=1", lost);
    CHECK(emu_command(text));
    for (unsigned int i = 0; i < requests; i++) send_work(&a, &b, op, i, i * size, size); /* atomics: they add 0 */
    for (unsigned int i = 0; i < requests; i++) CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
    CHECK(memcmp(a.data, b.data, requests * size) == 0);
    emu_pair_close(&a, &b);
  }
}
TEST(a_lost_response_of_a_long_read) { check_lost_response(IBV_WR_RDMA_READ, 1, 64 << 10, 64); }
TEST(a_lost_response_of_many_reads) { check_lost_response(IBV_WR_RDMA_READ, 16, 8, 16); }
TEST(a_lost_response_of_many_atomics) { check_lost_response(IBV_WR_ATOMIC_FETCH_AND_ADD, 16, 8, 16); }

TEST(lost_responses_of_long_reads) {
  enum { READS = 16, SIZE = 64 << 10 };
  struct shape s = USUAL_SHAPE;
  s.max_rd_atomic = READS;
  s.retry_cnt = 7;
  emu_pair_open(&a, &b, &s);
  CHECK(emu_command("drop op=answer rate=256"));
  for (unsigned int round = 0; round < 10; round++) {
    fill(b.data, READS * SIZE, round);
    for (unsigned int i = 0; i < READS; i++) send_work(&a, &b, IBV_WR_RDMA_READ, i, i * SIZE, SIZE);
    for (unsigned int i = 0; i < READS; i++) CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
    CHECK(memcmp(a.data, b.data, READS * SIZE) == 0);
  }
  emu_pair_close(&a, &b);
}

/* ---- objects ---------------------------------------------------------------------- */

/* An event that nobody has read goes with its object: the descriptor is not readable any more. */
TEST(withdrawn_events) {
  struct shape s = USUAL_SHAPE;
  struct pollfd fd;
  s.channel = true;
  emu_pair_open(&a, &b, &s);
  CHECK_OK(ibv_req_notify_cq(a.cq, 0));
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8);
  fd = (struct pollfd){.fd = a.channel->fd, .events = POLLIN};
  CHECK(poll(&fd, 1, WAIT_MS) == 1);
  emu_command_for("qp_error", &a);
  CHECK_OK(ibv_destroy_qp(a.qp));
  CHECK_OK(ibv_destroy_cq(a.cq));
  a.qp = NULL;
  a.cq = NULL;
  CHECK_INT(poll(&fd, 1, 0), 0);
  fd.fd = a.context->async_fd;
  CHECK_INT(poll(&fd, 1, 0), 0);
  emu_pair_close(&a, &b);
}

/* A device is closed with a queue pair whose ACK timer runs: nothing touches it any more, what is opened next works. */
TEST(a_device_that_is_closed_too_early) {
  static struct end left; /* what it has is never given back */
  struct shape s = USUAL_SHAPE;
  s.timeout = 1; /* 8 us */
  end_open(&left, 0);
  end_make_qp(&left, &s);
  to_init(&left, &s);
  to_rtr(&left, &left, &s);
  to_rts(&left, &s);
  CHECK(emu_command("drop times=ever"));
  send_work(&left, &left, IBV_WR_RDMA_WRITE, 1, 0, 8);
  CHECK_OK(ibv_close_device(left.context));
  s = USUAL_SHAPE;
  emu_pair_open(&a, &b, &s);
  for (unsigned int i = 0; i < 20; i++) {
    send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, 8);
    CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  }
  emu_pair_close(&a, &b);
}

/* An address handle may go while datagrams to it wait for the port: the last one leaves after 12 ms. */
TEST(an_address_handle_that_is_destroyed) {
  struct shape s = USUAL_SHAPE;
  s.type = IBV_QPT_UD;
  emu_pair_open(&a, &b, &s);
  struct ibv_ah *ah = path_to(&a, &b);
  emu_port(&a, "bandwidth", 1);
  for (unsigned int i = 0; i < 4; i++) receive(&b, i, 0, 4096);
  for (unsigned int i = 0; i < 4; i++) send_datagram(&a, ah, b.qp->qp_num, i, 4000);
  CHECK_OK(ibv_destroy_ah(ah));
  for (unsigned int i = 0; i < 4; i++) CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  for (unsigned int i = 0; i < 4; i++) CHECK_COMPLETION(&b, i, IBV_WC_SUCCESS);
  emu_port(&a, "bandwidth", 0);
  emu_pair_close(&a, &b);
}

/* More packets than half of all PSNs: what does not fit is asked for later, and the first bytes come at once. The
 * device is busy for long, and calls do not wait for that: most of what was asked for has not come yet. */
TEST(more_reads_than_psns) {
  enum { READS = 12, LATE = 6, LOOK = 1 << 20 };
  const size_t size = 256 << 20;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  struct shape s = USUAL_SHAPE;
  s.max_rd_atomic = READS;
  s.mtu = IBV_MTU_256;
  emu_pair_open(&a, &b, &s);
  char *from = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  char *to = mmap(NULL, READS * size, PROT_READ | PROT_WRITE, flags, -1, 0);
  CHECK(from != MAP_FAILED && to != MAP_FAILED);
  struct ibv_mr *source = ibv_reg_mr(b.pd, from, size, ALL_ACCESS);
  struct ibv_mr *sink = ibv_reg_mr(a.pd, to, READS * size, ALL_ACCESS);
  CHECK(source && sink);
  fill(from, LOOK, 3);
  CHECK(emu_command("progress poll burst=1000")); /* the last poll's requests have begun when it returns */
  for (unsigned int i = 0; i < READS; i++) {
    struct work w;
    work(&w, &a, &b, IBV_WR_RDMA_READ, i, 0, (uint32_t)size);
    w.sge.addr = (uintptr_t)to + i * size;
    w.sge.lkey = sink->lkey;
    w.wr.wr.rdma.remote_addr = (uintptr_t)from;
    w.wr.wr.rdma.rkey = source->rkey;
    CHECK_OK(post(&a, &w.wr));
  }
  CHECK(emu_command("progress thread"));
  for (const long end = now_ms() + WAIT_MS; memcmp(from, to, LOOK) != 0;) {
    CHECK_MSG(now_ms() < end, "not a byte of the first read has come");
    poll(NULL, 0, 1);
  }
  end_drop_qp(&a);
  CHECK_MSG(memcmp(from, to + LATE * size, LOOK) != 0, "the queue pair was destroyed after all was read");
  CHECK_OK(ibv_dereg_mr(source));
  CHECK_OK(ibv_dereg_mr(sink));
  munmap(from, size);
  munmap(to, READS * size);
  emu_pair_close(&a, &b);
}

/* A shared receive queue's posts have a name of their own. */
TEST(a_post_that_fails) {
  struct shape s = USUAL_SHAPE;
  s.srq = true;
  emu_pair_open(&a, &b, &s);
  CHECK(emu_command("fail post_srq_recv from=2 errno=ENOMEM"));
  CHECK_INT(try_receive(&b, 1, 0, 64), 0);
  CHECK_INT(try_receive(&b, 2, 0, 64), ENOMEM);
  CHECK_INT(try_receive(&b, 3, 0, 64), 0);
  for (unsigned int i = 0; i < 2; i++) send_work(&a, &b, IBV_WR_SEND, 10 + i, 0, 64);
  CHECK_COMPLETION(&b, 1, IBV_WC_SUCCESS);
  CHECK_COMPLETION(&b, 3, IBV_WC_SUCCESS);
  emu_pair_close(&a, &b);
}

TEST_MAIN(TEST_CASE(a_lost_response_of_a_long_read), TEST_CASE(a_lost_response_of_many_reads),
          TEST_CASE(a_lost_response_of_many_atomics), TEST_CASE(lost_responses_of_long_reads),
          TEST_CASE(withdrawn_events), TEST_CASE(a_device_that_is_closed_too_early),
          TEST_CASE(an_address_handle_that_is_destroyed), TEST_CASE(more_reads_than_psns),
          TEST_CASE(a_post_that_fails))
