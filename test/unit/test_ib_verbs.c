/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of libibverbs' functions: that each is the one that its name says, over the emulated device.
 */
#include <arpa/inet.h>
#include <errno.h>

#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_verbs.h"
#include "test/unit/ib_emu.h"

struct end {
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_cq *cq;
  struct ibv_qp *qp;
  struct ibv_mr *mr;
  uint32_t rkey; /* of mr, which may be gone */
  union ibv_gid gid;
  char memory[8192];
};

static void open_end(struct end *e, int device) {
  int count;
  struct ibv_device **list = ib_verbs.get_device_list(&count);
  CHECK(list && count == 2);
  e->context = ib_verbs.open_device(list[device]);
  ib_verbs.free_device_list(list);
  CHECK(e->context);
  e->pd = ib_verbs.alloc_pd(e->context);
  e->cq = ib_verbs.create_cq(e->context, 16, NULL, NULL, 0);
  e->mr = ib_verbs.reg_mr(e->pd, e->memory, sizeof e->memory,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  CHECK(e->pd && e->cq && e->mr);
  e->rkey = e->mr->rkey;
  struct ibv_qp_init_attr init = {
    .send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC,
    .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_inline_data = 64}};
  e->qp = ib_verbs.create_qp(e->pd, &init);
  CHECK(e->qp);
  CHECK_OK(ib_verbs.query_gid(e->context, 1, 3, &e->gid));
}

static void close_end(struct end *e) {
  CHECK_OK(ib_verbs.destroy_qp(e->qp));
  CHECK_OK(ib_verbs.destroy_cq(e->cq));
  CHECK_OK(ib_verbs.dereg_mr(e->mr));
  CHECK_OK(ib_verbs.dealloc_pd(e->pd));
  CHECK_OK(ib_verbs.close_device(e->context));
}

static void connect_to(struct end *e, const struct end *peer) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1,
                             .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
  CHECK_OK(ib_verbs.modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer->qp->qp_num,
                              .max_dest_rd_atomic = 1,
                              .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = 3}}};
  CHECK_OK(ib_verbs.modify_qp(e->qp, &attr,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                              .max_rd_atomic = 1};
  CHECK_OK(ib_verbs.modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                              IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static struct end a, b;
static void open_pair(void) {
  emu_do("reset; progress post");
  open_end(&a, 0);
  open_end(&b, 1);
  connect_to(&a, &b);
  connect_to(&b, &a);
}
static void close_pair(void) {
  close_end(&a);
  close_end(&b);
  CHECK_INT(emu_live("qp") + emu_live("cq") + emu_live("mr") + emu_live("pd") + emu_live("context"), 0);
}

static int post(enum ibv_wr_opcode opcode, size_t size, unsigned int flags, uint64_t id) {
  struct ibv_sge sge = {.addr = (uintptr_t)a.memory, .length = (uint32_t)size, .lkey = a.mr->lkey};
  struct ibv_send_wr wr = {.wr_id = id, .opcode = opcode, .send_flags = flags, .sg_list = &sge, .num_sge = 1,
                           .imm_data = htonl(0x1234)}, *bad;
  wr.wr.rdma.remote_addr = (uintptr_t)b.memory;
  wr.wr.rdma.rkey = b.rkey;
  return ibv_post_send(a.qp, &wr, &bad);
}
static int post_recv(uint64_t id) {
  struct ibv_recv_wr wr = {.wr_id = id}, *bad;
  return ibv_post_recv(b.qp, &wr, &bad);
}

TEST(the_library_is_found_and_whole) {
  CHECK(ib_verbs_open());
  CHECK(ib_verbs_open());
  CHECK(ib_verbs.reg_mr_iova2 && ib_verbs.reg_dmabuf_mr && ib_verbs.query_gid_table);
  CHECK(!ib_verbs.query_port_speed); /* an optional one that it lacks */
}

TEST(writes_reads_and_immediates_arrive) {
  struct ibv_wc wc[4];
  open_pair();
  strcpy(a.memory, "hello");
  CHECK_OK(post(IBV_WR_RDMA_WRITE, 6, 0, 1));
  CHECK_STR(b.memory, "hello");
  CHECK_INT(ibv_poll_cq(a.cq, 4, wc), 0);
  CHECK_OK(post_recv(77));
  CHECK_OK(post(IBV_WR_RDMA_WRITE_WITH_IMM, 8000, IBV_SEND_SIGNALED, 2));
  CHECK_INT(ibv_poll_cq(a.cq, 4, wc), 1);
  CHECK(wc[0].wr_id == 2 && wc[0].status == IBV_WC_SUCCESS && wc[0].opcode == IBV_WC_RDMA_WRITE);
  CHECK_INT(ibv_poll_cq(b.cq, 4, wc), 1);
  CHECK(wc[0].wr_id == 77 && wc[0].byte_len == 8000 && ntohl(wc[0].imm_data) == 0x1234 && wc[0].qp_num == b.qp->qp_num);
  strcpy(b.memory, "answer");
  CHECK_OK(post(IBV_WR_RDMA_READ, 7, IBV_SEND_SIGNALED, 3));
  CHECK_STR(a.memory, "answer");
  strcpy(a.memory, "inline");
  CHECK_OK(post(IBV_WR_RDMA_WRITE, 7, IBV_SEND_INLINE, 4));
  CHECK_STR(b.memory, "inline");
  CHECK(post(IBV_WR_RDMA_WRITE, 65, IBV_SEND_INLINE, 5) == EINVAL);
  close_pair();
}

TEST(wrong_keys_break_both_ends) {
  struct ibv_wc wc[4];
  open_pair();
  CHECK_OK(post_recv(9));
  CHECK_OK(ib_verbs.dereg_mr(b.mr));
  CHECK_OK(post(IBV_WR_RDMA_WRITE, 8, 0, 5));
  CHECK_INT(ibv_poll_cq(a.cq, 4, wc), 1);
  CHECK(wc[0].wr_id == 5 && wc[0].status == IBV_WC_REM_ACCESS_ERR);
  CHECK_INT(ibv_poll_cq(b.cq, 4, wc), 1);
  CHECK(wc[0].wr_id == 9 && wc[0].status == IBV_WC_WR_FLUSH_ERR);
  struct ibv_async_event event;
  CHECK_OK(ib_verbs.get_async_event(b.context, &event));
  CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b.qp);
  ib_verbs.ack_async_event(&event);
  b.mr = ib_verbs.reg_mr(b.pd, b.memory, 8, 0);
  close_pair();
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(the_library_is_found_and_whole), TEST_CASE(writes_reads_and_immediates_arrive),
    TEST_CASE(wrong_keys_break_both_ends)};
  ib_emu_use(NULL);
  return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
