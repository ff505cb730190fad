/* SPDX-License-Identifier: Apache-2.0
 * What arrives: every operation, sizes, order, notification, SRQs, UC. TEST-LIMIT: 240 */
#include "test/verbs/verbs.h"

static const uint32_t sizes[] = {1, 7, 8, 255, 1023, 1024, 1025, 4096, 65537, 300001};
enum { SIZES = sizeof sizes / sizeof sizes[0], GUARD = 64 };

/* All bytes and not one more. */
static void check_moved(const char *to, const char *from, uint32_t size, unsigned int beyond) {
  CHECK(memcmp(to, from, size) == 0);
  for (unsigned int i = 0; i < GUARD; i++) CHECK_INT(to[size + i], (char)beyond);
}

TEST(writes_of_all_sizes) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  pair_open(&a, &b, &s);
  for (int i = 0; i < SIZES; i++) {
    fill(a.data, BYTES, (unsigned int)i);
    memset(b.data, 0x5a, BYTES);
    send_work(&a, &b, IBV_WR_RDMA_WRITE, 10 + (unsigned int)i, 0, sizes[i]);
    CHECK_COMPLETION(&a, 10 + (unsigned int)i, IBV_WC_SUCCESS);
    check_moved(b.data, a.data, sizes[i], 0x5a);
  }
  CHECK(is_quiet(&b));
  pair_close(&a, &b);
}

TEST(reads_of_all_sizes) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  pair_open(&a, &b, &s);
  for (int i = 0; i < SIZES; i++) {
    fill(b.data, BYTES, (unsigned int)i);
    memset(a.data, 0x5a, BYTES);
    send_work(&a, &b, IBV_WR_RDMA_READ, 10 + (unsigned int)i, 0, sizes[i]);
    struct ibv_wc wc = completion(&a);
    CHECK_INT(wc.status, IBV_WC_SUCCESS);
    CHECK_INT(wc.opcode, IBV_WC_RDMA_READ);
    check_moved(a.data, b.data, sizes[i], 0x5a);
  }
  pair_close(&a, &b);
}

TEST(sends_of_all_sizes) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  pair_open(&a, &b, &s);
  for (int i = 0; i < SIZES; i++) {
    fill(a.data, BYTES, (unsigned int)i);
    memset(b.data, 0x5a, BYTES);
    receive(&b, 7, 0, BYTES);
    send_work(&a, &b, IBV_WR_SEND, 8, 0, sizes[i]);
    CHECK_COMPLETION(&a, 8, IBV_WC_SUCCESS);
    struct ibv_wc wc = completion(&b);
    CHECK(wc.wr_id == 7 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
    CHECK_INT(wc.byte_len, sizes[i]);
    CHECK_INT(wc.qp_num, b.qp->qp_num);
    CHECK(!(wc.wc_flags & IBV_WC_WITH_IMM));
    check_moved(b.data, a.data, sizes[i], 0x5a);
  }
  pair_close(&a, &b);
}

TEST(immediate_data_is_not_swapped) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  for (int i = 0; i < 2; i++) {
    receive(&b, 3, 0, 4096);
    work(&w, &a, &b, i ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM, 4, 0, 2500);
    w.wr.imm_data = htobe32(0x01020304);
    CHECK_OK(post(&a, &w.wr));
    CHECK_COMPLETION(&a, 4, IBV_WC_SUCCESS);
    struct ibv_wc wc = completion(&b);
    CHECK_INT(wc.status, IBV_WC_SUCCESS);
    CHECK_INT(wc.opcode, i ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK_INT(wc.byte_len, 2500);
    CHECK(wc.wc_flags & IBV_WC_WITH_IMM);
    CHECK(memcmp(&wc.imm_data, "\1\2\3\4", 4) == 0);
  }
  pair_close(&a, &b);
}

TEST(operations_without_bytes) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
                                           IBV_WR_RDMA_READ};
  pair_open(&a, &b, &s);
  for (int i = 0; i < 4; i++) {
    bool receives = i == 1 || i == 2;
    if (receives) receive(&b, 3, 0, 4096);
    work(&w, &a, &b, ops[i], (unsigned int)i, 0, 0);
    w.wr.num_sge = 0;
    CHECK_OK(post(&a, &w.wr));
    CHECK_COMPLETION(&a, (unsigned int)i, IBV_WC_SUCCESS);
    if (!receives) continue;
    struct ibv_wc wc = completion(&b);
    CHECK_INT(wc.status, IBV_WC_SUCCESS);
    CHECK_INT(wc.byte_len, 0);
  }
  pair_close(&a, &b);
}

/* By the InfiniBand specification the key of an operation without bytes is not looked at. */
TEST(without_bytes_no_key_is_needed) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  receive(&b, 3, 0, 0);
  work(&w, &a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 4, 0, 0);
  w.wr.num_sge = 0;
  w.wr.wr.rdma.rkey = 0xdead;
  w.wr.wr.rdma.remote_addr = 0;
  CHECK_OK(post(&a, &w.wr));
  CHECK_COMPLETION(&a, 4, IBV_WC_SUCCESS);
  CHECK_COMPLETION(&b, 3, IBV_WC_SUCCESS);
  pair_close(&a, &b);
}

TEST(pieces_are_gathered_and_scattered) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  pair_open(&a, &b, &s);
  fill(a.data, BYTES, 5);
  struct ibv_sge from[2] = {{(uintptr_t)a.data, 1500, a.mr->lkey}, {(uintptr_t)a.data + 8000, 3001, a.mr->lkey}};
  struct ibv_sge to[2] = {{(uintptr_t)b.data, 100, b.mr->lkey}, {(uintptr_t)b.data + 5000, 9000, b.mr->lkey}};
  struct ibv_recv_wr recv = {.wr_id = 1, .sg_list = to, .num_sge = 2}, *bad_recv;
  struct ibv_send_wr send = {.wr_id = 2, .sg_list = from, .num_sge = 2, .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED};
  CHECK_OK(ibv_post_recv(b.qp, &recv, &bad_recv));
  CHECK_OK(post(&a, &send));
  CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
  CHECK_COMPLETION(&b, 1, IBV_WC_SUCCESS);
  CHECK(memcmp(b.data, a.data, 100) == 0);
  CHECK(memcmp(b.data + 5000, a.data + 100, 1400) == 0);
  CHECK(memcmp(b.data + 6400, a.data + 8000, 3001) == 0);
  pair_close(&a, &b);
}

TEST(inline_data_is_taken_when_posted) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  s.inline_bytes = 64;
  pair_open(&a, &b, &s);
  char own[64]; /* not registered */
  memset(own, 0x31, sizeof own);
  work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 64);
  w.sge.addr = (uintptr_t)own;
  w.sge.lkey = 0xbad;
  w.wr.send_flags |= IBV_SEND_INLINE;
  CHECK_OK(post(&a, &w.wr));
  memset(own, 0x32, sizeof own);
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  for (int i = 0; i < 64; i++) CHECK_INT(b.data[i], 0x31);
  pair_close(&a, &b);
}

TEST(atomics) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  if (a.attr.atomic_cap == IBV_ATOMIC_NONE) tap_skip_case("this device has none");
  uint64_t *mine = (uint64_t *)(void *)a.data, *theirs = (uint64_t *)(void *)b.data;
  *theirs = 100;
  work(&w, &a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0, 8);
  w.wr.wr.atomic.compare_add = 5;
  CHECK_OK(post(&a, &w.wr));
  struct ibv_wc wc = completion(&a);
  CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_FETCH_ADD);
  CHECK_INT(*mine, 100);
  CHECK_INT(*theirs, 105);
  work(&w, &a, &b, IBV_WR_ATOMIC_CMP_AND_SWP, 2, 0, 8);
  w.wr.wr.atomic.compare_add = 104; /* differs */
  w.wr.wr.atomic.swap = 7;
  CHECK_OK(post(&a, &w.wr));
  CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
  CHECK(*mine == 105 && *theirs == 105);
  w.wr.wr.atomic.compare_add = 105;
  CHECK_OK(post(&a, &w.wr));
  CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
  CHECK(*mine == 105 && *theirs == 7);
  pair_close(&a, &b);
}

/* More at a time than the connection may have under way: the rest waits. */
TEST(many_reads_and_atomics_at_once) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  s.max_rd_atomic = 2;
  pair_open(&a, &b, &s);
  fill(b.data, BYTES, 3);
  *(uint64_t *)(void *)b.data = 0;
  for (unsigned int i = 0; i < 30; i++) {
    bool atomic = i % 3 == 0 && a.attr.atomic_cap != IBV_ATOMIC_NONE;
    work(&w, &a, &b, atomic ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_RDMA_READ, i, atomic ? 0 : 4096 * i,
         atomic ? 8 : 3000);
    w.sge.addr = (uintptr_t)a.data + 4096 * i;
    if (atomic) w.wr.wr.atomic.compare_add = 1;
    CHECK_OK(post(&a, &w.wr));
  }
  for (unsigned int i = 0; i < 30; i++) CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  for (unsigned int i = 0; i < 30; i++) {
    bool atomic = i % 3 == 0 && a.attr.atomic_cap != IBV_ATOMIC_NONE;
    if (atomic) CHECK_INT(*(uint64_t *)(void *)(a.data + 4096 * i), i / 3); /* in their order, each once */
    else if (i) CHECK(memcmp(a.data + 4096 * i, b.data + 4096 * i, 3000) == 0);
  }
  if (a.attr.atomic_cap != IBV_ATOMIC_NONE) CHECK_INT(*(uint64_t *)(void *)b.data, 10);
  pair_close(&a, &b);
}

TEST(order_is_kept) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  pair_open(&a, &b, &s);
  for (unsigned int round = 0; round < 20; round++) {
    for (unsigned int i = 0; i < DEPTH; i++) receive(&b, i, 0, 64);
    for (unsigned int i = 0; i < DEPTH; i++) {
      memset(a.data + i * 64, (int)(i + round), 64);
      send_work(&a, &b, i % 2 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, i, i * 64, 1 + i);
    }
    for (unsigned int i = 0; i < DEPTH; i++) { /* the length says which message it was */
      struct ibv_wc wc = completion(&b);
      CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == i);
      CHECK_INT(wc.byte_len, 1 + i);
    }
    for (unsigned int i = 0; i < DEPTH; i++) CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  }
  pair_close(&a, &b);
}

/* A read that is fenced sees what an earlier atomic did; a read sees an earlier write anyway. */
TEST(a_read_sees_the_writes_before_it) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  for (unsigned int i = 1; i < 50; i++) {
    memset(a.data, (int)i, 5000);
    send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 5000);
    work(&w, &a, &b, IBV_WR_RDMA_READ, 2, 0, 5000);
    w.sge.addr += 100000;
    if (a.attr.vendor_id != SOFT_ROCE) w.wr.send_flags |= IBV_SEND_FENCE; /* with which one read never completed */
    CHECK_OK(post(&a, &w.wr));
    CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
    CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
    CHECK(memcmp(a.data + 100000, a.data, 5000) == 0);
  }
  pair_close(&a, &b);
}

TEST(unsignaled_requests_complete_silently) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  for (unsigned int round = 0; round < 10; round++) {
    for (unsigned int i = 0; i < DEPTH; i++) {
      work(&w, &a, &b, IBV_WR_RDMA_WRITE, i, 0, 8);
      if (i != DEPTH - 1) w.wr.send_flags = 0;
      CHECK_OK(post(&a, &w.wr));
    }
    CHECK_COMPLETION(&a, DEPTH - 1, IBV_WC_SUCCESS);
  }
  CHECK(is_quiet(&a));
  end_drop_qp(&a);
  end_drop_qp(&b);
  s.all_signaled = 1;
  end_make_qp(&a, &s);
  end_make_qp(&b, &s);
  connect_ends(&a, &b, &s);
  work(&w, &a, &b, IBV_WR_RDMA_WRITE, 77, 0, 8);
  w.wr.send_flags = 0;
  CHECK_OK(post(&a, &w.wr));
  CHECK_COMPLETION(&a, 77, IBV_WC_SUCCESS);
  pair_close(&a, &b);
}

/* ---- notification ------------------------------------------------------------------------- */

static void wait_notified(struct ibv_comp_channel *channel, struct ibv_cq *expected) {
  struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
  struct ibv_cq *cq;
  void *context;
  CHECK_MSG(poll(&fd, 1, WAIT_MS) == 1, "not notified within %d ms", WAIT_MS);
  CHECK_OK(ibv_get_cq_event(channel, &cq, &context));
  CHECK(cq == expected);
  ibv_ack_cq_events(cq, 1);
}

TEST(completions_notify) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  end_open(&a, 0);
  end_open(&b, 1);
  struct ibv_comp_channel *channel = ibv_create_comp_channel(b.context);
  CHECK(channel);
  end_make_qp(&a, &s);
  end_make_qp(&b, &s);
  struct ibv_cq *cq = ibv_create_cq(b.context, 64, NULL, channel, 0);
  CHECK(cq);
  CHECK_OK(ibv_destroy_qp(b.qp));
  CHECK_OK(ibv_destroy_cq(b.cq));
  b.cq = cq;
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RC};
  b.qp = ibv_create_qp(b.pd, &init);
  CHECK(b.qp);
  connect_ends(&a, &b, &s);
  for (unsigned int i = 0; i < 3; i++) {
    CHECK_OK(ibv_req_notify_cq(cq, 0));
    receive(&b, i, 0, 64);
    send_work(&a, &b, IBV_WR_SEND, i, 0, 64);
    wait_notified(channel, cq);
    CHECK_COMPLETION(&b, i, IBV_WC_SUCCESS);
    CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  }
  CHECK_OK(ibv_req_notify_cq(cq, 1)); /* solicited ones only */
  receive(&b, 8, 0, 64);
  receive(&b, 9, 0, 64);
  send_work(&a, &b, IBV_WR_SEND, 8, 0, 64);
  CHECK_COMPLETION(&b, 8, IBV_WC_SUCCESS);
  struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
  CHECK_INT(poll(&fd, 1, 0), 0);
  work(&w, &a, &b, IBV_WR_SEND, 9, 0, 64);
  w.wr.send_flags |= IBV_SEND_SOLICITED;
  CHECK_OK(post(&a, &w.wr));
  wait_notified(channel, cq);
  CHECK_COMPLETION(&b, 9, IBV_WC_SUCCESS);
  CHECK(ibv_destroy_comp_channel(channel) != 0); /* in use */
  end_drop_qp(&b);
  CHECK_OK(ibv_destroy_comp_channel(channel));
  pair_close(&a, &b);
}

/* ---- shared receive queues ------------------------------------------------------------------- */

TEST(a_shared_receive_queue) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  end_open(&a, 0);
  end_open(&b, 1);
  if (b.attr.max_srq == 0) tap_skip_case("this device has none");
  end_make_qp(&a, &s);
  s.srq = true;
  end_make_qp(&b, &s);
  s.srq = false;
  connect_ends(&a, &b, &s);
  CHECK(ibv_destroy_srq(b.srq) != 0); /* in use */
  struct ibv_srq_attr limit = {.srq_limit = 4}, got;
  for (unsigned int i = 0; i < 6; i++) receive(&b, i, 1024 * i, 1024);
  CHECK_OK(ibv_modify_srq(b.srq, &limit, IBV_SRQ_LIMIT));
  CHECK_OK(ibv_query_srq(b.srq, &got));
  CHECK_INT(got.srq_limit, 4);
  for (unsigned int i = 0; i < 6; i++) {
    memset(a.data, (int)(i + 1), 1000);
    send_work(&a, &b, IBV_WR_SEND, i, 0, 1000);
    CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
    CHECK_COMPLETION(&b, i, IBV_WC_SUCCESS);
    CHECK_INT(b.data[1024 * i + 999], (char)(i + 1));
  }
  wait_event(&b, IBV_EVENT_SRQ_LIMIT_REACHED);
  pair_close(&a, &b);
}

/* A queue pair in ERR takes no more receives of the shared queue, which stay there. */
TEST(the_last_receive_of_a_shared_queue) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  s.srq = true;
  pair_open(&a, &b, &s);
  DEVIATES(&b, SOFT_ROCE, "it raises no LAST_WQE_REACHED");
  receive(&b, 1, 0, 64);
  to_state(&b, IBV_QPS_ERR);
  wait_event(&b, IBV_EVENT_QP_LAST_WQE_REACHED);
  CHECK(is_quiet(&b));
  pair_close(&a, &b);
}

/* ---- other memory, other types ------------------------------------------------------------------ */

TEST(a_dma_buf) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  pair_open(&a, &b, &s);
  int fd = memfd_create("dma-buf", MFD_CLOEXEC);
  CHECK(fd >= 0);
  CHECK_OK(ftruncate(fd, 65536));
  struct ibv_mr *mr = ibv_reg_dmabuf_mr(b.pd, 4096, 8192, 0x10000, fd, ALL_ACCESS);
  if (!mr) {
    close(fd);
    pair_close(&a, &b);
    tap_skip_case("this device registers no memfd as dma-buf");
  }
  char *there = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  CHECK(there != MAP_FAILED);
  fill(a.data, 8192, 9);
  work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8192);
  w.wr.wr.rdma.remote_addr = 0x10000; /* its I/O address */
  w.wr.wr.rdma.rkey = mr->rkey;
  CHECK_OK(post(&a, &w.wr));
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK(memcmp(there + 4096, a.data, 8192) == 0);
  CHECK(!ibv_reg_dmabuf_mr(b.pd, 0, 1 << 20, 0, fd, ALL_ACCESS)); /* larger than it is */
  CHECK_OK(ibv_dereg_mr(mr));
  munmap(there, 65536);
  close(fd);
  pair_close(&a, &b);
}

TEST(unreliable_connections) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  s.type = IBV_QPT_UC;
  pair_open(&a, &b, &s);
  receive(&b, 1, 0, 8192);
  fill(a.data, BYTES, 2);
  send_work(&a, &b, IBV_WR_SEND, 2, 0, 5000);
  CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
  CHECK_COMPLETION(&b, 1, IBV_WC_SUCCESS);
  CHECK(memcmp(a.data, b.data, 5000) == 0);
  struct work w;
  bool any_op = a.attr.vendor_id == SOFT_ROCE; /* a known deviation: it takes the request */
  if (!any_op) CHECK(post(&a, work(&w, &a, &b, IBV_WR_RDMA_READ, 3, 0, 8)) != 0); /* UC has none */
  pair_close(&a, &b);
}

TEST_MAIN(TEST_CASE(writes_of_all_sizes), TEST_CASE(reads_of_all_sizes), TEST_CASE(sends_of_all_sizes),
          TEST_CASE(immediate_data_is_not_swapped), TEST_CASE(operations_without_bytes),
          TEST_CASE(without_bytes_no_key_is_needed), TEST_CASE(pieces_are_gathered_and_scattered),
          TEST_CASE(inline_data_is_taken_when_posted), TEST_CASE(atomics), TEST_CASE(many_reads_and_atomics_at_once),
          TEST_CASE(order_is_kept), TEST_CASE(a_read_sees_the_writes_before_it),
          TEST_CASE(unsignaled_requests_complete_silently), TEST_CASE(completions_notify),
          TEST_CASE(a_shared_receive_queue), TEST_CASE(the_last_receive_of_a_shared_queue), TEST_CASE(a_dma_buf),
          TEST_CASE(unreliable_connections))
