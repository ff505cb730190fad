/* SPDX-License-Identifier: Apache-2.0
 * What is refused, and how both ends learn of it; receivers that are not ready, peers that are not there.
 * TEST-LIMIT: 240 */
#include "test/verbs/verbs.h"

/* One request that fails with `wanted` at the sender, whose queue pair is then in ERR. */
static void check_fails(struct end *a, struct ibv_send_wr *wr, enum ibv_wc_status wanted) {
  CHECK_OK(post(a, wr));
  CHECK_COMPLETION(a, wr->wr_id, wanted);
  CHECK_INT(state_of(a), IBV_QPS_ERR);
}

/* Bytes that a refused request must not change, at neither end. */
static void mark(struct end *a, struct end *b) {
  memset(a->data, 0x22, BYTES);
  memset(b->data, 0x11, BYTES);
}
static bool is_all(const char *data, char byte) { return data[0] == byte && memcmp(data, data + 1, BYTES - 1) == 0; }
static void check_marks(const struct end *a, const struct end *b) {
  CHECK_MSG(is_all(a->data, 0x22), "the requester's memory has changed");
  CHECK_MSG(is_all(b->data, 0x11), "the responder's memory has changed");
}

/* Each with a pair of its own, for it ends there. */
#define REFUSED(name, op, wanted, change)                                          \
  TEST(name) {                                                                     \
    struct end a, b;                                                               \
    struct shape s = USUAL_SHAPE;                                                  \
    struct work w;                                                                 \
    pair_open(&a, &b, &s);                                                         \
    work(&w, &a, &b, op, 1, 4096, 64);                                             \
    mark(&a, &b);                                                                  \
    change;                                                                        \
    check_fails(&a, &w.wr, wanted);                                                \
    check_marks(&a, &b);                                                           \
    pair_close(&a, &b);                                                            \
  }

REFUSED(a_write_with_a_wrong_key, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, w.wr.wr.rdma.rkey ^= 0x5500)
REFUSED(a_write_before_the_region, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR,
        w.wr.wr.rdma.remote_addr = (uintptr_t)b.data - 1)
REFUSED(a_write_beyond_the_region, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR,
        w.wr.wr.rdma.remote_addr = (uintptr_t)b.data + BYTES - 63)
REFUSED(a_write_that_wraps, IBV_WR_RDMA_WRITE, IBV_WC_REM_ACCESS_ERR, w.wr.wr.rdma.remote_addr = UINT64_MAX - 8)
REFUSED(a_read_with_a_wrong_key, IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR, w.wr.wr.rdma.rkey ^= 0x5500)
REFUSED(a_read_beyond_the_region, IBV_WR_RDMA_READ, IBV_WC_REM_ACCESS_ERR,
        w.wr.wr.rdma.remote_addr = (uintptr_t)b.data + BYTES - 63)
/* Soft-RoCE deviates: it says that the operation is wrong. */
REFUSED(a_local_key_that_is_none, IBV_WR_RDMA_WRITE,
        a.attr.vendor_id == SOFT_ROCE ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_PROT_ERR, w.sge.lkey ^= 0x5500)
REFUSED(a_local_range_beyond_the_region, IBV_WR_RDMA_WRITE, IBV_WC_LOC_PROT_ERR,
        w.sge.addr = (uintptr_t)a.data + BYTES - 63)

/* A region with less access than the operation needs, at the remote end. */
static void check_access(enum ibv_wr_opcode op, int access) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  struct ibv_mr *mr = ibv_reg_mr(b.pd, b.data, BYTES, access);
  CHECK(mr);
  work(&w, &a, &b, op, 1, 0, 8);
  if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) w.wr.wr.atomic.rkey = mr->rkey;
  else w.wr.wr.rdma.rkey = mr->rkey;
  mark(&a, &b);
  check_fails(&a, &w.wr, IBV_WC_REM_ACCESS_ERR);
  check_marks(&a, &b);
  CHECK_OK(ibv_dereg_mr(mr));
  pair_close(&a, &b);
}

TEST(a_write_to_a_region_that_is_only_read) {
  check_access(IBV_WR_RDMA_WRITE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
}
TEST(a_read_of_a_region_that_is_only_written) {
  check_access(IBV_WR_RDMA_READ, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}
TEST(an_atomic_without_access) {
  check_access(IBV_WR_ATOMIC_FETCH_AND_ADD,
               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
}

TEST(a_region_of_another_domain) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  struct ibv_pd *pd = ibv_alloc_pd(b.context);
  CHECK(pd);
  struct ibv_mr *mr = ibv_reg_mr(pd, b.data, BYTES, ALL_ACCESS);
  CHECK(mr);
  work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8);
  w.wr.wr.rdma.rkey = mr->rkey;
  mark(&a, &b);
  check_fails(&a, &w.wr, IBV_WC_REM_ACCESS_ERR);
  check_marks(&a, &b);
  CHECK_OK(ibv_dereg_mr(mr));
  CHECK_OK(ibv_dealloc_pd(pd));
  pair_close(&a, &b);
}

TEST(a_queue_pair_without_remote_access) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  s.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  pair_open(&a, &b, &s);
  mark(&a, &b);
  check_fails(&a, work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8), IBV_WC_REM_INV_REQ_ERR);
  check_marks(&a, &b);
  pair_close(&a, &b);
}

TEST(an_atomic_off_its_boundary) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  if (a.attr.atomic_cap == IBV_ATOMIC_NONE) tap_skip_case("this device has none");
  work(&w, &a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 8);
  w.wr.wr.atomic.remote_addr += 4;
  DEVIATES(&a, SOFT_ROCE, "its library refuses to post such a request");
  mark(&a, &b);
  check_fails(&a, &w.wr, IBV_WC_REM_INV_REQ_ERR);
  check_marks(&a, &b);
  pair_close(&a, &b);
}

/* ---- receives ------------------------------------------------------------------------ */

TEST(a_receive_that_is_too_short) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  receive(&b, 5, 0, 100);
  receive(&b, 6, 0, 100);
  memset(b.data, 0x11, 4096);
  /* Soft-RoCE deviates: it says that the operation failed. */
  check_fails(&a, work(&w, &a, &b, IBV_WR_SEND, 1, 0, 101),
              a.attr.vendor_id == SOFT_ROCE ? IBV_WC_REM_OP_ERR : IBV_WC_REM_INV_REQ_ERR);
  CHECK_COMPLETION(&b, 5, b.attr.vendor_id == SOFT_ROCE ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_LEN_ERR);
  CHECK_COMPLETION(&b, 6, IBV_WC_WR_FLUSH_ERR);
  for (int i = 100; i < 4096; i++) CHECK_INT(b.data[i], 0x11);
  pair_close(&a, &b);
}

TEST(a_receive_with_a_wrong_key) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  struct ibv_sge sge = {(uintptr_t)b.data, 4096, b.mr->lkey ^ 0x5500};
  struct ibv_recv_wr recv = {.wr_id = 5, .sg_list = &sge, .num_sge = 1}, *bad;
  CHECK_OK(ibv_post_recv(b.qp, &recv, &bad));
  CHECK_OK(post(&a, work(&w, &a, &b, IBV_WR_SEND, 1, 0, 64)));
  struct ibv_wc wc = completion(&a);
  CHECK(wc.status == IBV_WC_REM_OP_ERR || wc.status == IBV_WC_REM_INV_REQ_ERR);
  CHECK_COMPLETION(&b, 5, b.attr.vendor_id == SOFT_ROCE ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_PROT_ERR);
  pair_close(&a, &b);
}

/* ---- receiver not ready ---------------------------------------------------------------- */

TEST(a_receiver_that_is_never_ready) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  for (int retries = 0; retries <= 2; retries += 2) {
    s.rnr_retry = retries;
    pair_open(&a, &b, &s);
    check_fails(&a, work(&w, &a, &b, retries ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, 1, 0, 8),
                IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK(is_quiet(&b));
    pair_close(&a, &b);
  }
}

/* A count of 7 has no end. */
TEST(a_receiver_that_is_ready_late) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  pair_open(&a, &b, &s);
  fill(a.data, 10000, 1);
  send_work(&a, &b, IBV_WR_SEND, 1, 0, 10000);
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 2, 20000, 10000);
  for (int i = 0; i < 300; i++) {
    CHECK(is_quiet(&a));
    poll(NULL, 0, 1);
  }
  receive(&b, 3, 0, 10000);
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
  CHECK_COMPLETION(&b, 3, IBV_WC_SUCCESS);
  CHECK(memcmp(a.data, b.data, 10000) == 0);
  pair_close(&a, &b);
}

/* ---- nobody there -------------------------------------------------------------------------- */

TEST(a_peer_that_is_gone) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  s.retry_cnt = 2;
  s.timeout = 10;
  pair_open(&a, &b, &s);
  end_drop_qp(&b);
  CHECK_OK(post(&a, work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8)));
  CHECK_OK(post(&a, work(&w, &a, &b, IBV_WR_RDMA_WRITE, 2, 0, 8)));
  CHECK_COMPLETION(&a, 1, IBV_WC_RETRY_EXC_ERR);
  CHECK_COMPLETION(&a, 2, IBV_WC_WR_FLUSH_ERR);
  pair_close(&a, &b);
}

TEST(a_peer_that_is_not_connected) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  s.retry_cnt = 1;
  s.timeout = 10;
  end_open(&a, 0);
  end_open(&b, 1);
  end_make_qp(&a, &s);
  end_make_qp(&b, &s);
  to_init(&a, &s);
  to_init(&b, &s); /* and no further */
  to_rtr(&a, &b, &s);
  to_rts(&a, &s);
  check_fails(&a, work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8), IBV_WC_RETRY_EXC_ERR);
  pair_close(&a, &b);
}

/* ---- flush ------------------------------------------------------------------------------------ */

TEST(err_flushes_everything_in_order) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  DEVIATES(&a, SOFT_ROCE, "requests that wait for a receiver were not all flushed within a minute (Linux 6.1)");
  for (unsigned int i = 0; i < 5; i++) receive(&a, 100 + i, 0, 64);
  for (unsigned int i = 0; i < 5; i++) {
    work(&w, &a, &b, IBV_WR_SEND, i, 0, 64); /* which b does not receive */
    if (i % 2) w.wr.send_flags = 0;          /* unsignaled ones, too */
    CHECK_OK(post(&a, &w.wr));
  }
  to_state(&a, IBV_QPS_ERR);
  unsigned int sends = 0, recvs = 0;
  while (sends < 5 || recvs < 5) {
    struct ibv_wc wc = completion(&a);
    CHECK_INT(wc.status, IBV_WC_WR_FLUSH_ERR);
    if (wc.wr_id >= 100) CHECK_INT(wc.wr_id, 100 + recvs++);
    else CHECK_INT(wc.wr_id, sends++);
  }
  CHECK(is_quiet(&a));
  receive(&a, 200, 0, 64); /* what is posted from here on follows */
  CHECK_COMPLETION(&a, 200, IBV_WC_WR_FLUSH_ERR);
  CHECK_OK(post(&a, work(&w, &a, &b, IBV_WR_SEND, 201, 0, 64)));
  CHECK_COMPLETION(&a, 201, IBV_WC_WR_FLUSH_ERR);
  pair_close(&a, &b);
}

/* UC and UD: an error of the send queue ends that alone, and it can be used again. */
static void check_send_queue_error(enum ibv_qp_type type) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w, behind;
  s.type = type;
  pair_open(&a, &b, &s);
  DEVIATES(&a, SOFT_ROCE, "it puts UC and UD queue pairs into ERR");
  struct ibv_ah *to_b = path_to(&a, &b), *to_a = path_to(&b, &a);
  for (unsigned int i = 0; i < 2; i++) receive(&a, 100 + i, 4096, 4096);
  for (unsigned int i = 0; i < 2; i++) {
    work(&w, &a, &b, IBV_WR_SEND, 1, 0, 64);
    work(&behind, &a, &b, IBV_WR_SEND, 2, 0, 64);
    if (type == IBV_QPT_UD) {
      w.wr.wr.ud.ah = behind.wr.wr.ud.ah = to_b;
      w.wr.wr.ud.remote_qpn = behind.wr.wr.ud.remote_qpn = b.qp->qp_num;
      w.wr.wr.ud.remote_qkey = behind.wr.wr.ud.remote_qkey = QKEY;
    }
    w.sge.lkey ^= 0x5500;
    w.wr.next = &behind.wr;
    CHECK_OK(post(&a, &w.wr));
    CHECK_COMPLETION(&a, 1, IBV_WC_LOC_PROT_ERR);
    CHECK_COMPLETION(&a, 2, IBV_WC_WR_FLUSH_ERR);
    CHECK_INT(state_of(&a), IBV_QPS_SQE);
    CHECK_OK(post(&a, &behind.wr));
    CHECK_COMPLETION(&a, 2, IBV_WC_WR_FLUSH_ERR);
    if (i == 1) break;
    if (type == IBV_QPT_UD) send_datagram(&b, to_a, a.qp->qp_num, 3, 64); /* receives go on */
    else send_work(&b, &a, IBV_WR_SEND, 3, 0, 64);
    CHECK_COMPLETION(&b, 3, IBV_WC_SUCCESS);
    CHECK_COMPLETION(&a, 100, IBV_WC_SUCCESS);
    to_state(&a, IBV_QPS_RTS);
    receive(&b, 200, 4096, 4096);
    CHECK_OK(post(&a, &behind.wr));
    CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
    CHECK_COMPLETION(&b, 200, IBV_WC_SUCCESS);
  }
  to_state(&a, IBV_QPS_ERR);
  CHECK_COMPLETION(&a, 101, IBV_WC_WR_FLUSH_ERR);
  CHECK_OK(ibv_destroy_ah(to_a));
  CHECK_OK(ibv_destroy_ah(to_b));
  pair_close(&a, &b);
}
TEST(a_send_queue_of_uc_in_error) { check_send_queue_error(IBV_QPT_UC); }
TEST(a_send_queue_of_ud_in_error) { check_send_queue_error(IBV_QPT_UD); }

TEST(a_queue_pair_is_used_again) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  pair_open(&a, &b, &s);
  for (int i = 0; i < 5; i++) {
    receive(&b, 1, 0, 64);
    send_work(&a, &b, IBV_WR_SEND, 2, 0, 64);
    CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
    CHECK_COMPLETION(&b, 1, IBV_WC_SUCCESS);
    receive(&b, 3, 0, 64);
    to_state(&a, IBV_QPS_ERR);
    to_state(&b, IBV_QPS_ERR);
    CHECK_COMPLETION(&b, 3, IBV_WC_WR_FLUSH_ERR);
    to_state(&a, IBV_QPS_RESET);
    to_state(&b, IBV_QPS_RESET);
    connect_ends(&a, &b, &s);
  }
  pair_close(&a, &b);
}

TEST(a_destroyed_queue_pair_leaves_no_completion) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  pair_open(&a, &b, &s);
  DEVIATES(&a, SOFT_ROCE, "completions of a destroyed queue pair stay in the CQ");
  for (unsigned int i = 0; i < 10; i++) receive(&a, i, 0, 64);
  to_state(&a, IBV_QPS_ERR);
  CHECK_OK(ibv_destroy_qp(a.qp));
  a.qp = NULL;
  CHECK(is_quiet(&a));
  pair_close(&a, &b);
}

TEST(a_full_completion_queue) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  s.cqe = 4;
  pair_open(&a, &b, &s);
  DEVIATES(&a, SOFT_ROCE, "its CQs may be larger than asked for; a full one has an event for each completion lost");
  for (unsigned int i = 0; i < 6; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, 8);
  wait_event(&a, IBV_EVENT_CQ_ERR);
  if (emu_command("reset")) { /* real devices may find out later */
    wait_event(&a, IBV_EVENT_QP_FATAL);
    CHECK_INT(state_of(&a), IBV_QPS_ERR);
    CHECK_INT(state_of(&b), IBV_QPS_RTS);
  }
  pair_close(&a, &b);
}

TEST(a_refused_request_is_an_event) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  DEVIATES(&a, SOFT_ROCE, "it reports a refused request to the sender only");
  work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8);
  w.wr.wr.rdma.rkey ^= 0x5500;
  check_fails(&a, &w.wr, IBV_WC_REM_ACCESS_ERR);
  wait_event(&b, IBV_EVENT_QP_ACCESS_ERR);
  CHECK_INT(state_of(&b), IBV_QPS_ERR);
  pair_close(&a, &b);
}

TEST_MAIN(TEST_CASE(a_write_with_a_wrong_key), TEST_CASE(a_write_before_the_region),
          TEST_CASE(a_write_beyond_the_region), TEST_CASE(a_write_that_wraps), TEST_CASE(a_read_with_a_wrong_key),
          TEST_CASE(a_read_beyond_the_region), TEST_CASE(a_local_key_that_is_none),
          TEST_CASE(a_local_range_beyond_the_region), TEST_CASE(a_write_to_a_region_that_is_only_read),
          TEST_CASE(a_read_of_a_region_that_is_only_written), TEST_CASE(an_atomic_without_access),
          TEST_CASE(a_region_of_another_domain), TEST_CASE(a_queue_pair_without_remote_access),
          TEST_CASE(an_atomic_off_its_boundary), TEST_CASE(a_receive_that_is_too_short),
          TEST_CASE(a_receive_with_a_wrong_key), TEST_CASE(a_receiver_that_is_never_ready),
          TEST_CASE(a_receiver_that_is_ready_late), TEST_CASE(a_peer_that_is_gone),
          TEST_CASE(a_peer_that_is_not_connected), TEST_CASE(err_flushes_everything_in_order),
          TEST_CASE(a_send_queue_of_uc_in_error), TEST_CASE(a_send_queue_of_ud_in_error),
          TEST_CASE(a_queue_pair_is_used_again), TEST_CASE(a_destroyed_queue_pair_leaves_no_completion),
          TEST_CASE(a_full_completion_queue), TEST_CASE(a_refused_request_is_an_event))
