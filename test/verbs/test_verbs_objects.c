/* SPDX-License-Identifier: Apache-2.0
 * Objects, their limits, the states of a queue pair, what may be posted when. TEST-LIMIT: 240 */
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "test/verbs/verbs.h"

TEST(device_says_what_it_is) {
  struct end e;
  end_open(&e, 0);
  CHECK(e.attr.max_qp > 0 && e.attr.max_qp_wr > 0 && e.attr.max_cqe > 0 && e.attr.phys_port_cnt > 0);
  CHECK(e.port.state == IBV_PORT_ACTIVE);
  CHECK(e.port.active_mtu >= IBV_MTU_256 && e.port.active_mtu <= e.port.max_mtu);
  struct ibv_port_attr none;
  CHECK(ibv_query_port(e.context, 0, &none) != 0);
  CHECK(ibv_query_port(e.context, (uint8_t)(e.attr.phys_port_cnt + 1), &none) != 0);
  struct ibv_gid_entry entries[256];
  ssize_t n = ibv_query_gid_table(e.context, entries, 256, 0);
  bool found = false;
  for (ssize_t i = 0; i < n; i++)
    found |= entries[i].port_num == 1 && (int)entries[i].gid_index == e.gid_index &&
             memcmp(&entries[i].gid, &e.gid, sizeof e.gid) == 0;
  CHECK(found);
  end_close(&e);
}

TEST(a_domain_in_use_stays) {
  struct end e;
  end_open(&e, 0);
  CHECK(ibv_dealloc_pd(e.pd) != 0); /* the memory region uses it */
  end_close(&e);
}

TEST(registration_refuses) {
  struct end e;
  end_open(&e, 0);
  CHECK(!ibv_reg_mr(e.pd, e.data, 4096, IBV_ACCESS_REMOTE_WRITE));  /* not writable here */
  CHECK(!ibv_reg_mr(e.pd, e.data, 4096, IBV_ACCESS_REMOTE_ATOMIC));
  void *gone = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(gone != MAP_FAILED);
  munmap(gone, 8192);
  CHECK(!ibv_reg_mr(e.pd, gone, 8192, IBV_ACCESS_LOCAL_WRITE));
  struct ibv_mr *whole = ibv_reg_mr(e.pd, e.data, BYTES, IBV_ACCESS_LOCAL_WRITE);
  struct ibv_mr *same = ibv_reg_mr(e.pd, e.data, BYTES, IBV_ACCESS_LOCAL_WRITE); /* as often as one likes */
  CHECK(whole && same && whole->lkey != same->lkey);
  CHECK_OK(ibv_dereg_mr(whole));
  CHECK_OK(ibv_dereg_mr(same));
  end_close(&e);
}

TEST(a_registration_ends) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  pair_open(&a, &b, &s);
  struct ibv_mr *mr = ibv_reg_mr(b.pd, b.data, 4096, ALL_ACCESS);
  CHECK(mr);
  struct work w;
  work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 64);
  w.wr.wr.rdma.rkey = mr->rkey;
  CHECK_OK(post(&a, &w.wr));
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK_OK(ibv_dereg_mr(mr));
  CHECK_OK(post(&a, &w.wr));
  CHECK_COMPLETION(&a, 1, IBV_WC_REM_ACCESS_ERR);
  pair_close(&a, &b);
}

TEST(queues_have_limits) {
  struct end e;
  end_open(&e, 0);
  CHECK(!ibv_create_cq(e.context, 0, NULL, NULL, 0));
  CHECK(!ibv_create_cq(e.context, e.attr.max_cqe + 1, NULL, NULL, 0));
  e.cq = ibv_create_cq(e.context, 16, NULL, NULL, 0);
  CHECK(e.cq && e.cq->cqe >= 16);
  const struct ibv_qp_init_attr good = {.send_cq = e.cq, .recv_cq = e.cq, .cap = {4, 4, 1, 1, 0},
                                        .qp_type = IBV_QPT_RC};
  struct ibv_qp_init_attr bad = good;
  bad.cap.max_send_wr = (uint32_t)e.attr.max_qp_wr + 1;
  CHECK(!ibv_create_qp(e.pd, &bad));
  bad = good;
  bad.cap.max_recv_wr = (uint32_t)e.attr.max_qp_wr + 1;
  CHECK(!ibv_create_qp(e.pd, &bad));
  bad = good;
  bad.cap.max_send_sge = (uint32_t)e.attr.max_sge + 1;
  CHECK(!ibv_create_qp(e.pd, &bad));
  bad = good;
  bad.cap.max_inline_data = 1 << 20;
  CHECK(!ibv_create_qp(e.pd, &bad));
  bad = good;
  e.qp = ibv_create_qp(e.pd, &bad);
  CHECK(e.qp && e.qp->state == IBV_QPS_RESET);
  CHECK(bad.cap.max_send_wr >= 4 && bad.cap.max_recv_wr >= 4);
  CHECK(ibv_destroy_cq(e.cq) == EBUSY);
  CHECK(ibv_dealloc_pd(e.pd) != 0);
  end_close(&e);
}

TEST(a_cq_can_be_resized) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  s.cqe = 8;
  pair_open(&a, &b, &s);
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8);
  send_work(&a, &b, IBV_WR_RDMA_WRITE, 2, 0, 8);
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK_OK(ibv_resize_cq(a.cq, 128));
  CHECK(a.cq->cqe >= 128);
  CHECK_COMPLETION(&a, 2, IBV_WC_SUCCESS);
  for (unsigned int i = 0; i < DEPTH; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, i, 0, 8);
  for (unsigned int i = 0; i < DEPTH; i++) CHECK_COMPLETION(&a, i, IBV_WC_SUCCESS);
  pair_close(&a, &b);
}

/* ---- states -------------------------------------------------------------------------- */

/* Fresh QPs at both ends, the first one in that state. */
static void make_in(struct end *a, struct end *b, const struct shape *s, enum ibv_qp_state state) {
  end_make_qp(a, s);
  end_make_qp(b, s);
  if (state == IBV_QPS_RESET) return;
  to_init(a, s);
  to_init(b, s);
  if (state == IBV_QPS_INIT) return;
  to_rtr(a, b, s);
  if (state == IBV_QPS_RTR) return;
  if (state == IBV_QPS_ERR) to_state(a, IBV_QPS_ERR);
  else to_rts(a, s);
}

static const enum ibv_qp_state states[] = {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR};
enum { STATES = sizeof states / sizeof states[0] };

static int mask_to(enum ibv_qp_state to) {
  return to == IBV_QPS_INIT ? INIT_MASK : to == IBV_QPS_RTR ? RTR_MASK : to == IBV_QPS_RTS ? RTS_MASK : IBV_QP_STATE;
}

static struct ibv_qp_attr attr_to(struct end *a, struct end *b, const struct shape *s, enum ibv_qp_state to) {
  if (to == IBV_QPS_INIT) return init_attr(s);
  if (to == IBV_QPS_RTR) return rtr_attr(a, b, s);
  if (to == IBV_QPS_RTS) return rts_attr(s);
  return (struct ibv_qp_attr){.qp_state = to};
}

/* Every pair of states: the steps forward, from anywhere to RESET, and to ERR; nothing else. */
TEST(transitions) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  end_open(&a, 0);
  end_open(&b, 1);
  for (int f = 0; f < STATES; f++)
    for (int t = 0; t < STATES; t++) {
      enum ibv_qp_state from = states[f], to = states[t];
      bool allowed = to == IBV_QPS_RESET || (to == IBV_QPS_ERR && from != IBV_QPS_RESET) ||
                     (from == IBV_QPS_RESET && to == IBV_QPS_INIT) ||
                     (from == IBV_QPS_INIT && (to == IBV_QPS_INIT || to == IBV_QPS_RTR)) ||
                     (from == IBV_QPS_RTR && to == IBV_QPS_RTS);
      make_in(&a, &b, &s, from);
      CHECK(state_of(&a) == from);
      struct ibv_qp_attr attr = attr_to(&a, &b, &s, to);
      int err = ibv_modify_qp(a.qp, &attr, mask_to(to));
      CHECK_MSG((err == 0) == allowed, "from %d to %d: %s", (int)from, (int)to, strerror(err));
      CHECK_INT(state_of(&a), allowed ? to : from);
      end_drop_qp(&a);
      end_drop_qp(&b);
    }
  pair_close(&a, &b);
}

/* A step without one of its attributes, and with one that does not belong to it. */
TEST(transitions_take_their_attributes) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  end_open(&a, 0);
  end_open(&b, 1);
  for (int t = 1; t <= 3; t++) {
    int mask = mask_to(states[t]);
    make_in(&a, &b, &s, states[t - 1]);
    struct ibv_qp_attr attr = attr_to(&a, &b, &s, states[t]);
    for (int bit = 0; bit < 21; bit++) {
      if (!(mask & (1 << bit)) || 1 << bit == IBV_QP_STATE) continue;
      CHECK_MSG(ibv_modify_qp(a.qp, &attr, mask & ~(1 << bit)) != 0, "to %d without %#x", (int)states[t], 1 << bit);
    }
    CHECK(ibv_modify_qp(a.qp, &attr, mask | IBV_QP_QKEY) != 0);
    CHECK_INT(state_of(&a), states[t - 1]);
    CHECK_OK(ibv_modify_qp(a.qp, &attr, mask));
    end_drop_qp(&a);
    end_drop_qp(&b);
  }
  pair_close(&a, &b);
}

TEST(attributes_out_of_range) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  end_open(&a, 0);
  end_open(&b, 1);
  make_in(&a, &b, &s, IBV_QPS_RESET);
  struct ibv_qp_attr attr = init_attr(&s);
  attr.port_num = (uint8_t)(a.attr.phys_port_cnt + 1);
  CHECK(ibv_modify_qp(a.qp, &attr, INIT_MASK) != 0);
  attr = init_attr(&s);
  attr.pkey_index = 0xffff;
  bool any_pkey = a.attr.vendor_id == SOFT_ROCE; /* a known deviation: it does not look at that */
  if (!any_pkey) CHECK(ibv_modify_qp(a.qp, &attr, INIT_MASK) != 0);
  to_init(&a, &s);
  attr = rtr_attr(&a, &b, &s);
  attr.ah_attr.grh.sgid_index = 200;
  CHECK(ibv_modify_qp(a.qp, &attr, RTR_MASK) != 0);
  attr = rtr_attr(&a, &b, &s);
  attr.path_mtu = (enum ibv_mtu)(a.port.max_mtu + 1);
  CHECK(ibv_modify_qp(a.qp, &attr, RTR_MASK) != 0);
  attr = rtr_attr(&a, &b, &s);
  attr.max_dest_rd_atomic = 255;
  bool any_number = a.attr.vendor_id == SOFT_ROCE; /* the same */
  if (!any_number) CHECK(ibv_modify_qp(a.qp, &attr, RTR_MASK) != 0);
  if (!any_number) to_rtr(&a, &b, &s);
  else CHECK_OK(ibv_modify_qp(a.qp, &attr, RTR_MASK));
  attr = rts_attr(&s);
  attr.max_rd_atomic = 255;
  CHECK(ibv_modify_qp(a.qp, &attr, RTS_MASK) != 0);
  to_rts(&a, &s);
  pair_close(&a, &b);
}

TEST(query_gives_back_what_was_set) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  pair_open(&a, &b, &s);
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK_OK(ibv_query_qp(a.qp, &attr, RTR_MASK | RTS_MASK | IBV_QP_CAP, &init));
  CHECK_INT(attr.qp_state, IBV_QPS_RTS);
  CHECK_INT(attr.dest_qp_num, b.qp->qp_num);
  CHECK_INT(attr.path_mtu, IBV_MTU_1024);
  CHECK_INT(attr.retry_cnt, s.retry_cnt);
  CHECK_INT(attr.rnr_retry, s.rnr_retry);
  CHECK_INT(attr.timeout, s.timeout);
  CHECK(memcmp(&attr.ah_attr.grh.dgid, &b.gid, sizeof b.gid) == 0);
  CHECK(attr.cap.max_send_wr >= DEPTH && init.cap.max_send_wr >= DEPTH);
  CHECK(init.send_cq == a.cq && init.qp_type == IBV_QPT_RC);
  pair_close(&a, &b);
}

/* ---- posting ---------------------------------------------------------------------------- */

TEST(posting_by_state) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  end_open(&a, 0);
  end_open(&b, 1);
  for (int f = 0; f < 3; f++) {
    make_in(&a, &b, &s, states[f]);
    CHECK(post(&a, work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8)) != 0);
    CHECK_INT(try_receive(&a, 1, 0, 8) == 0, states[f] != IBV_QPS_RESET);
    end_drop_qp(&a);
    end_drop_qp(&b);
  }
  pair_close(&a, &b);
}

TEST(a_queue_has_its_depth) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct work w;
  s.sends = s.recvs = 8;
  pair_open(&a, &b, &s);
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK_OK(ibv_query_qp(a.qp, &attr, IBV_QP_CAP, &init)); /* a device may give more than asked for */
  for (unsigned int i = 0; i < attr.cap.max_recv_wr; i++) receive(&a, i, 0, 8);
  CHECK(try_receive(&a, 99, 0, 8) != 0);
  work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8);
  unsigned int posted = 0;
  while (posted < 4 * attr.cap.max_send_wr && post(&a, &w.wr) == 0) posted++;
  CHECK(posted >= 8);
  for (unsigned int i = 0; i < posted; i++) CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK_OK(post(&a, &w.wr)); /* polled completions give places back */
  CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  pair_close(&a, &b);
}

TEST(requests_that_are_too_much) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  struct work w;
  s.inline_bytes = 32;
  pair_open(&a, &b, &s);
  CHECK_OK(ibv_query_qp(a.qp, &attr, IBV_QP_CAP, &init));
  struct ibv_sge sges[64];
  for (int i = 0; i < 64; i++) sges[i] = (struct ibv_sge){(uintptr_t)a.data, 4, a.mr->lkey};
  work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, 8);
  w.wr.sg_list = sges;
  w.wr.num_sge = (int)attr.cap.max_send_sge + 1;
  CHECK(post(&a, &w.wr) != 0);
  work(&w, &a, &b, IBV_WR_RDMA_WRITE, 1, 0, attr.cap.max_inline_data + 1);
  w.wr.send_flags |= IBV_SEND_INLINE;
  CHECK(post(&a, &w.wr) != 0);
  struct ibv_recv_wr recv = {.sg_list = sges, .num_sge = (int)attr.cap.max_recv_sge + 1}, *bad;
  CHECK(ibv_post_recv(a.qp, &recv, &bad) != 0);
  CHECK(is_quiet(&a));
  CHECK_INT(state_of(&a), IBV_QPS_RTS); /* a refused call breaks nothing */
  pair_close(&a, &b);
}

/* Three writes by ibv_wr_*. */
static int post_three(struct end *e, const struct end *peer) {
  struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(e->qp);
  CHECK(ex);
  ibv_wr_start(ex);
  for (unsigned int i = 0; i < 3; i++) {
    ex->wr_id = 10 + i;
    ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(ex, peer->mr->rkey, (uintptr_t)peer->data);
    ibv_wr_set_sge(ex, e->mr->lkey, (uintptr_t)e->data, 8);
  }
  return ibv_wr_complete(ex);
}

/* Requests that ibv_wr_complete refuses are not posted in part. */
TEST(a_batch_is_posted_whole_or_not) {
  struct end a, b;
  struct shape s = USUAL_SHAPE;
  s.sends = 3;
  end_open(&a, 0);
  end_open(&b, 1);
  end_make_qp(&a, &s);
  end_make_qp(&b, &s);
  CHECK(!ibv_qp_to_qp_ex(a.qp)); /* it was made without */
  CHECK_OK(ibv_destroy_qp(a.qp));
  struct ibv_qp_init_attr_ex init = {.send_cq = a.cq, .recv_cq = a.cq, .cap = {3, 3, 1, 1, 0}, .qp_type = IBV_QPT_RC,
                                     .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = a.pd,
                                     .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
  a.qp = ibv_create_qp_ex(a.context, &init);
  if (!a.qp) tap_skip_case("this device has no ibv_wr_*");
  connect_ends(&a, &b, &s);
  DEVIATES(&a, SOFT_ROCE, "requests that are done and not polled take no place of the queue");
  const uint32_t before = init.cap.max_send_wr - 2; /* there is room for two */
  for (uint32_t i = 0; i < before; i++) send_work(&a, &b, IBV_WR_RDMA_WRITE, 1, 8, 8);
  CHECK(post_three(&a, &b) != 0);
  for (uint32_t i = 0; i < before; i++) CHECK_COMPLETION(&a, 1, IBV_WC_SUCCESS);
  CHECK(is_quiet(&a));
  if (emu_command("fail post_send from=3 errno=EIO")) CHECK_INT(post_three(&a, &b), EIO);
  CHECK_OK(post_three(&a, &b));
  for (unsigned int i = 0; i < 3; i++) CHECK_COMPLETION(&a, 10 + i, IBV_WC_SUCCESS);
  pair_close(&a, &b);
}

enum { BATCHES = 20000 };
static struct end shared_end, shared_peer;
static unsigned int most_unpolled;
static atomic_uint unpolled; /* writes that are posted, or about to be, and not polled */

/* As many writes as it takes, of one thread: their numbers are `arg`, and `arg` + 1 and so on. */
static void *post_many(void *arg) {
  struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(shared_end.qp);
  for (uintptr_t i = 0; i < BATCHES;) {
    bool posted = atomic_fetch_add_explicit(&unpolled, 1, memory_order_relaxed) < most_unpolled;
    if (posted) {
      ibv_wr_start(ex);
      ex->wr_id = (uintptr_t)arg + i;
      ex->wr_flags = IBV_SEND_SIGNALED;
      ibv_wr_rdma_write(ex, shared_peer.mr->rkey, (uintptr_t)shared_peer.data);
      ibv_wr_set_sge(ex, shared_end.mr->lkey, (uintptr_t)shared_end.data, 8);
      posted = ibv_wr_complete(ex) == 0;
    }
    if (posted) {
      i++;
    } else { /* the queue is full */
      atomic_fetch_sub_explicit(&unpolled, 1, memory_order_relaxed);
      sched_yield();
    }
  }
  return NULL;
}

/* ibv_wr_start to ibv_wr_complete is one thread's alone.
 *
 * Known deviations of Soft-RoCE, because of which no more than DEPTH writes are posted and not polled there: requests
 * that are done and not polled take no place of the queue, so completions overflow their queue and are lost; and when
 * the queue is full, ibv_wr_complete gives up the lock before it reads that, and returns 0 for a batch that was not
 * posted if the other thread's ibv_wr_start was faster (wr_complete in providers/rxe/rxe.c, rdma-core 44). */
TEST(two_threads_build_batches) {
  struct shape s = USUAL_SHAPE;
  static unsigned char seen[2 * BATCHES];
  pthread_t threads[2];
  end_open(&shared_end, 0);
  end_open(&shared_peer, 1);
  end_make_qp(&shared_end, &s);
  end_make_qp(&shared_peer, &s);
  CHECK_OK(ibv_destroy_qp(shared_end.qp));
  struct ibv_qp_init_attr_ex init = {.send_cq = shared_end.cq, .recv_cq = shared_end.cq, .cap = {DEPTH, 1, 1, 1, 0},
                                     .qp_type = IBV_QPT_RC, .pd = shared_end.pd,
                                     .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                     .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
  shared_end.qp = ibv_create_qp_ex(shared_end.context, &init);
  if (!shared_end.qp) tap_skip_case("this device has no ibv_wr_*");
  connect_ends(&shared_end, &shared_peer, &s);
  most_unpolled = shared_end.attr.vendor_id == SOFT_ROCE ? DEPTH : UINT_MAX;
  for (uintptr_t i = 0; i < 2; i++) CHECK_OK(pthread_create(&threads[i], NULL, post_many, (void *)(i * BATCHES)));
  for (unsigned int i = 0; i < 2 * BATCHES; i++) {
    struct ibv_wc wc = completion(&shared_end);
    CHECK_INT(wc.status, IBV_WC_SUCCESS);
    CHECK_MSG(wc.wr_id < 2 * BATCHES && !seen[wc.wr_id]++, "request %u came twice", (unsigned int)wc.wr_id);
    atomic_fetch_sub_explicit(&unpolled, 1, memory_order_relaxed);
  }
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  pair_close(&shared_end, &shared_peer);
}

TEST_MAIN(TEST_CASE(device_says_what_it_is), TEST_CASE(a_domain_in_use_stays), TEST_CASE(registration_refuses),
          TEST_CASE(a_registration_ends), TEST_CASE(queues_have_limits), TEST_CASE(a_cq_can_be_resized),
          TEST_CASE(transitions), TEST_CASE(transitions_take_their_attributes), TEST_CASE(attributes_out_of_range),
          TEST_CASE(query_gives_back_what_was_set), TEST_CASE(posting_by_state), TEST_CASE(a_queue_has_its_depth),
          TEST_CASE(requests_that_are_too_much), TEST_CASE(a_batch_is_posted_whole_or_not),
          TEST_CASE(two_threads_build_batches))
