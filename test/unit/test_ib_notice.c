/* SPDX-License-Identifier: Apache-2.0
 * Notices: what a sender makes, a receiver reads; what else comes is none. */
#include <stdlib.h>

#include "plugin/ib/ib_progress.h"
#include "test/harness/tap.h"

enum { ALL = 6, QP = 3, PLACE = 287 };

static struct ib_send_comm sender;
static struct ib_recv_comm receiver;

static struct ib_notice_wire *place(void) { return &receiver.notices[QP * IB_RECV_DEPTH + PLACE]; }

static struct ibv_wc completion(void) {
  return (struct ibv_wc){.wr_id = ib_wr_id(IB_WR_RECV, QP, 1, PLACE), .opcode = IBV_WC_RECV, .byte_len = 8};
}

TEST(every_length_arrives) {
  for (unsigned int log2 = 0; log2 <= 40; log2++) {
    for (int64_t more = -129; more <= 129; more++) {
      int64_t size = (int64_t)1 << log2;
      struct ib_imm imm = {.slot = 31, .index = 7, .parts = ALL}, out;
      struct ibv_send_wr wr = {.send_flags = IBV_SEND_SIGNALED};
      struct ibv_sge sge;
      struct ibv_wc wc = completion();
      uint32_t bits;
      uint64_t rest;
      size += more;
      if (size < 0 || size > (int64_t)RAIL_NET_MAX_BYTES) continue;
      ib_notice_make(&sender, &imm, (uint64_t)size, &wr, &sge, place());
      CHECK(wr.opcode == IBV_WR_SEND && wr.send_flags == (IBV_SEND_SIGNALED | IBV_SEND_INLINE) && wr.num_sge == 1);
      CHECK(sge.addr == (uintptr_t)place() && sge.length == 8);
      CHECK(ib_notice_take(&receiver, &wc, &bits, &rest));
      ib_imm_decode(bits, ALL, &out);
      CHECK(out.slot == 31 && out.index == 7 && out.parts == ALL && !out.error);
      CHECK_MSG(out.body + rest == (uint64_t)size, "%llu + %llu of %lld", (unsigned long long)out.body,
                (unsigned long long)rest, (long long)size);
    }
  }
}

TEST(what_is_no_notice) {
  uint32_t bits;
  uint64_t rest;
  struct ibv_wc wc = completion();
  CHECK(ib_notice_take(&receiver, &wc, &bits, &rest));
  wc.byte_len = 4;
  CHECK(!ib_notice_take(&receiver, &wc, &bits, &rest));
  wc = completion();
  wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  CHECK(!ib_notice_take(&receiver, &wc, &bits, &rest));
}

/* Each of a queue pair's receive WRs has memory of its own, in the order in which they are posted again. */
TEST(memory_goes_round) {
  struct ibv_mr mr = {.lkey = 77};
  struct ib_qp qp = {.index = QP, .rail = 1};
  receiver.base.rails[1].notice_mr = &mr;
  for (unsigned int batch = 0; batch < 3 * IB_RECV_DEPTH / IB_RECV_BATCH; batch++) {
    struct ibv_recv_wr wrs[IB_RECV_BATCH];
    struct ibv_sge sges[IB_RECV_BATCH];
    for (unsigned int i = 0; i < IB_RECV_BATCH; i++)
      wrs[i] = (struct ibv_recv_wr){.wr_id = ib_wr_id(IB_WR_RECV, QP, 1, 0)};
    ib_notices_attach(&receiver, &qp, wrs, sges);
    for (unsigned int i = 0; i < IB_RECV_BATCH; i++) {
      unsigned int at = (batch * IB_RECV_BATCH + i) % IB_RECV_DEPTH;
      CHECK_INT(ib_wr_arg(wrs[i].wr_id), at);
      CHECK(ib_wr_qp(wrs[i].wr_id) == QP && wrs[i].num_sge == 1 && wrs[i].sg_list == &sges[i]);
      CHECK(sges[i].addr == (uintptr_t)&receiver.notices[QP * IB_RECV_DEPTH + at] && sges[i].length == 8);
      CHECK_INT(sges[i].lkey, 77);
    }
  }
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(every_length_arrives), TEST_CASE(what_is_no_notice),
                                          TEST_CASE(memory_goes_round)};
  sender.base.plan.qps_per_message = ALL;
  receiver.notices = calloc((QP + 1) * IB_RECV_DEPTH, sizeof *receiver.notices);
  int failed = tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
  free(receiver.notices);
  return failed;
}
