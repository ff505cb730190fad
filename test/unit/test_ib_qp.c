/* SPDX-License-Identifier: Apache-2.0
 * Queue pairs against a table of pointers that writes down what it is given: the attributes of each transition, what is
 * tried again and when, what is read back, and the lines about failures. */
#include <errno.h>
#include <stdarg.h>
#include <sys/resource.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_qp.h"
#include "test/harness/tap.h"

/* ---- the table ----------------------------------------------------------- */

static struct {
  struct ibv_qp qp;
  struct ibv_qp_init_attr init;
  struct ibv_qp_attr attr, read; /* given; what is said when asked */
  int mask, modifies, creates, destroys, queries, eces;
  int fail_modify, fail_create, fail_ece; /* errno */
  int modify_failures;                    /* so often */
  uint32_t most_inline;
  bool says_nothing; /* errno stays as it was */
  struct ibv_ece ece;
} fake;

static struct ibv_qp *create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr) {
  (void)pd;
  fake.creates++;
  fake.init = *attr;
  if (fake.fail_create || attr->cap.max_inline_data > fake.most_inline) {
    if (!fake.says_nothing) errno = fake.fail_create ? fake.fail_create : EINVAL;
    return NULL;
  }
  attr->cap.max_inline_data += 28; /* a provider rounds up */
  return &fake.qp;
}
static int modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask) {
  (void)qp;
  fake.modifies++;
  fake.attr = *attr;
  fake.mask = mask;
  return fake.modify_failures-- > 0 ? fake.fail_modify : 0;
}
static int query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
  (void)qp, (void)mask, (void)init;
  fake.queries++;
  *attr = fake.read;
  return 0;
}
static int destroy_qp(struct ibv_qp *qp) {
  (void)qp;
  fake.destroys++;
  return 0;
}
static int set_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
  (void)qp;
  fake.eces++;
  fake.ece = *ece;
  return fake.fail_ece;
}
static int query_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
  (void)qp;
  *ece = (struct ibv_ece){0x15b3, 7, 0};
  return fake.fail_ece;
}

/* ---- the log ------------------------------------------------------------- */

static char lines[8192];

__attribute__((format(printf, 5, 6)))
static void hear(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
  size_t at = strlen(lines);
  va_list ap;
  (void)level, (void)flags, (void)file, (void)line;
  va_start(ap, fmt);
  vsnprintf(lines + at, sizeof lines - at, fmt, ap);
  va_end(ap);
}

static bool said(const char *words) { return strstr(lines, words) != NULL; }

/* ---- a queue pair -------------------------------------------------------- */

static struct ib_hca hca = {.name = "emu0"};
static struct ib_port port = {.hca = &hca, .number = 2, .roce = true, .name = "emu0:2"};
static struct ibv_cq cq;

static void begin(struct ib_qp *qp) {
  memset(&fake, 0, sizeof fake);
  fake.qp.qp_num = 0x77;
  fake.most_inline = 1000;
  lines[0] = 0;
  ib_verbs = (struct ib_verbs){.create_qp = create_qp, .modify_qp = modify_qp, .query_qp = query_qp,
                               .destroy_qp = destroy_qp, .set_ece = set_ece, .query_ece = query_ece};
  ib_params = (struct ib_params){.modify_retries = 3, .modify_retry_ms = 1};
  memset(qp, 0, sizeof *qp);
  qp->index = 5;
  qp->attr = (struct ib_qp_attr){.port = 2, .pkey_index = 4, .sgid_index = 3, .grh = true, .mtu = 4, .sl = 5,
                                 .traffic_class = 96, .timeout = 17, .retry_cnt = 6, .dlid = 0, .dest_qpn = 0x99,
                                 .sq_psn = 0x123, .rq_psn = 0x456};
  memset(qp->attr.dgid, 0xab, sizeof qp->attr.dgid);
  struct ib_qp_sizes sizes = {512, 288, 128};
  CHECK_OK(ib_qp_create(qp, &port, &cq, &sizes, &port));
}

TEST(create) {
  struct ib_qp qp;
  begin(&qp);
  CHECK(fake.init.qp_type == IBV_QPT_RC && fake.init.sq_sig_all == 0 && fake.init.qp_context == &port);
  CHECK(fake.init.send_cq == &cq && fake.init.recv_cq == &cq && !fake.init.srq);
  CHECK(fake.init.cap.max_send_wr == 512 && fake.init.cap.max_recv_wr == 288);
  CHECK(fake.init.cap.max_send_sge == 1 && fake.init.cap.max_recv_sge == 1);
  CHECK(qp.state == IB_QP_RESET && qp.sq_avail == 512 && qp.max_inline == 156 && fake.creates == 1);
  ib_qp_destroy(&qp);
  CHECK(fake.destroys == 1 && qp.state == IB_QP_NONE && !qp.qp);
  ib_qp_destroy(&qp);
  CHECK_INT(fake.destroys, 1);
  memset(&qp, 0, sizeof qp);
  ib_qp_destroy(&qp);
  ib_qp_to_err(&qp);
  CHECK(fake.destroys == 1 && fake.modifies == 0);
}

TEST(less_inline) {
  struct ib_qp qp;
  struct ib_qp_sizes sizes = {16, 1, 128};
  begin(&qp);
  fake.most_inline = 40;
  CHECK_OK(ib_qp_create(&qp, &port, &cq, &sizes, NULL));
  CHECK_INT(qp.max_inline, 32 + 28);
  fake.says_nothing = true;
  errno = EAGAIN; /* of a socket, say */
  CHECK_OK(ib_qp_create(&qp, &port, &cq, &sizes, NULL));
  CHECK_INT(qp.max_inline, 32 + 28);
  fake.fail_create = 1;
  CHECK_INT(ib_qp_create(&qp, &port, &cq, &sizes, NULL), RAIL_SYSTEM_ERROR);
  CHECK(said("the driver gives no reason"));
  fake.says_nothing = false;
  fake.fail_create = 0;
  fake.most_inline = 0;
  CHECK_OK(ib_qp_create(&qp, &port, &cq, &sizes, NULL));
  sizes.inline_bytes = 0; /* not wanted, whatever the device gives */
  CHECK_OK(ib_qp_create(&qp, &port, &cq, &sizes, NULL));
  CHECK_INT(qp.max_inline, 0);
  fake.fail_create = ENOMEM;
  CHECK_INT(ib_qp_create(&qp, &port, &cq, &sizes, NULL), RAIL_SYSTEM_ERROR);
  CHECK(said("emu0:2") && said("16 send and 1 receive") && said("Cannot allocate memory") && said("ulimit -l"));
}

TEST(to_init) {
  struct ib_qp qp;
  begin(&qp);
  CHECK_OK(ib_qp_to_init(&qp, &port, IBV_ACCESS_REMOTE_WRITE));
  CHECK_INT(fake.mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  CHECK(fake.attr.qp_state == IBV_QPS_INIT && fake.attr.pkey_index == 4 && fake.attr.port_num == 2);
  CHECK(fake.attr.qp_access_flags == IBV_ACCESS_REMOTE_WRITE && qp.state == IB_QP_INIT);
}

static void to_rtr(struct ib_qp *qp) {
  CHECK_OK(ib_qp_to_init(qp, &port, 0));
  CHECK_OK(ib_qp_to_rtr(qp, &port));
  CHECK_INT(qp->state, IB_QP_RTR);
}

TEST(to_rtr_by_gid) {
  struct ib_qp qp;
  begin(&qp);
  to_rtr(&qp);
  const struct ibv_ah_attr *ah = &fake.attr.ah_attr;
  CHECK_INT(fake.mask, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  CHECK(fake.attr.qp_state == IBV_QPS_RTR && fake.attr.path_mtu == IBV_MTU_2048 && fake.attr.dest_qp_num == 0x99);
  CHECK(fake.attr.rq_psn == 0x456 && fake.attr.max_dest_rd_atomic == 1 && fake.attr.min_rnr_timer == 12);
  CHECK(ah->is_global && ah->port_num == 2 && ah->sl == 5 && ah->dlid == 0);
  CHECK(ah->grh.sgid_index == 3 && ah->grh.hop_limit == 255 && ah->grh.traffic_class == 96 && ah->grh.flow_label == 0);
  CHECK(memcmp(ah->grh.dgid.raw, qp.attr.dgid, 16) == 0);
  CHECK_INT(fake.eces, 0);
}

TEST(to_rtr_by_lid) {
  struct ib_qp qp;
  begin(&qp);
  qp.attr.grh = false;
  qp.attr.dlid = 44;
  to_rtr(&qp);
  CHECK(!fake.attr.ah_attr.is_global && fake.attr.ah_attr.dlid == 44 && fake.attr.ah_attr.grh.hop_limit == 0);
}

TEST(to_rts) {
  struct ib_qp qp;
  begin(&qp);
  to_rtr(&qp);
  CHECK_OK(ib_qp_to_rts(&qp, &port));
  CHECK_INT(fake.mask, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                         IBV_QP_MAX_QP_RD_ATOMIC);
  CHECK(fake.attr.timeout == 17 && fake.attr.retry_cnt == 6 && fake.attr.rnr_retry == 7 && fake.attr.sq_psn == 0x123);
  CHECK(fake.attr.max_rd_atomic == 1 && qp.state == IB_QP_RTS);
  ib_qp_to_err(&qp);
  CHECK(fake.mask == IBV_QP_STATE && fake.attr.qp_state == IBV_QPS_ERR && qp.state == IB_QP_ERR);
  int before = fake.modifies;
  ib_qp_to_err(&qp);
  CHECK_INT(fake.modifies, before);
}

TEST(enhanced_connections) {
  struct ib_qp qp;
  struct ibv_ece ece;
  begin(&qp);
  CHECK(ib_qp_query_ece(&qp, &ece) && ece.vendor_id == 0x15b3);
  fake.fail_ece = EOPNOTSUPP;
  CHECK(!ib_qp_query_ece(&qp, &ece));
  qp.attr.use_ece = true;
  qp.attr.ece.options = 9;
  CHECK_OK(ib_qp_to_init(&qp, &port, 0));
  CHECK_OK(ib_qp_to_rtr(&qp, &port)); /* a device without it goes without */
  CHECK(fake.eces == 1 && fake.ece.options == 9);
  fake.fail_ece = EINVAL;
  CHECK_INT(ib_qp_to_rtr(&qp, &port), RAIL_SYSTEM_ERROR);
  CHECK(said("NCCL_IB_ECE_ENABLE=0"));
  ib_verbs.query_ece = NULL;
  ib_verbs.set_ece = NULL;
  CHECK(!ib_qp_query_ece(&qp, &ece));
  CHECK_OK(ib_qp_to_rtr(&qp, &port));
}

/* ---- again, later -------------------------------------------------------- */

/* How often this thread gave up its core by itself. */
static long naps(void) {
  struct rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

static rail_result_t until_it_ends(struct ib_qp *qp, int *calls) {
  uint64_t deadline = rail_deadline_in_ms(5000);
  rail_result_t result;
  do {
    long before = naps();
    result = ib_qp_to_rtr(qp, &port);
    CHECK_MSG(naps() == before, "a call slept");
    CHECK(!rail_deadline_passed(deadline));
    ++*calls;
  } while (result == RAIL_IN_PROGRESS);
  return result;
}

TEST(a_timeout_is_tried_again) {
  struct ib_qp qp;
  int calls = 0;
  begin(&qp);
  CHECK_OK(ib_qp_to_init(&qp, &port, 0));
  fake.fail_modify = ETIMEDOUT;
  fake.modify_failures = 3;
  fake.modifies = 0;
  uint64_t start = rail_now_ns();
  CHECK_OK(until_it_ends(&qp, &calls));
  CHECK(fake.modifies == 4 && calls > 4 && qp.state == IB_QP_RTR);
  CHECK(rail_now_ns() - start >= 6000000); /* 1 + 2 + 3 ms */
  CHECK_INT(qp.modify_tries, 0); /* the next transition has its own */
}

TEST(not_for_ever) {
  struct ib_qp qp;
  int calls = 0;
  begin(&qp);
  CHECK_OK(ib_qp_to_init(&qp, &port, 0));
  fake.fail_modify = ETIMEDOUT;
  fake.modify_failures = 100;
  fake.modifies = 0;
  CHECK_INT(until_it_ends(&qp, &calls), RAIL_SYSTEM_ERROR);
  CHECK_INT(fake.modifies, 4);
  CHECK(said("emu0:2: queue pair 5 (0x77) INIT -> RTR") && said("abab:abab") && said("GID index 3") &&
        said("neighbour"));
}

TEST(other_errors_are_not_unless_asked_for) {
  struct ib_qp qp;
  int calls = 0;
  begin(&qp);
  fake.fail_modify = EINVAL;
  fake.modify_failures = 1;
  CHECK_INT(ib_qp_to_init(&qp, &port, 0), RAIL_SYSTEM_ERROR);
  CHECK(said("RESET -> INIT") && said("NCCL_IB_PKEY") && qp.state == IB_QP_RESET);
  ib_params.modify_retry_all = 1;
  fake.modify_failures = 1;
  CHECK_INT(ib_qp_to_rtr(&qp, &port), RAIL_IN_PROGRESS);
  CHECK_OK(until_it_ends(&qp, &calls));
  fake.fail_modify = -1; /* errno says which */
  errno = ENODEV;
  fake.modify_failures = 1;
  ib_params.modify_retry_all = 0;
  CHECK_INT(ib_qp_to_rts(&qp, &port), RAIL_SYSTEM_ERROR);
  CHECK(said("No such device"));
}

/* ---- read back ----------------------------------------------------------- */

TEST(what_the_driver_made_of_it) {
  struct ib_qp qp;
  begin(&qp);
  CHECK_OK(ib_qp_to_init(&qp, &port, 0));
  fake.read.qp_state = IBV_QPS_RTR;
  fake.read.path_mtu = IBV_MTU_2048;
  fake.read.dest_qp_num = 0x99;
  fake.read.ah_attr = (struct ibv_ah_attr){.sl = 0, .is_global = 1, .grh = {.traffic_class = 96, .sgid_index = 3}};
  int before = fake.queries;
  lines[0] = 0;
  CHECK_OK(ib_qp_to_rtr(&qp, &port));
  CHECK_INT(fake.queries, before + 1);
  CHECK(said("was given service level 5 and says 0"));
  CHECK(!said("was given traffic class") && !said("was given path MTU"));
  CHECK(said("INIT -> RTR: to 0x99, GID abab:"));
}

/* 4.096 us times 2 to the power of timeout, and as often again as there are retries. */
TEST(retry_budget) {
  CHECK_INT(ib_qp_retry_s(14, 0) * 1e6, 67108);
  CHECK_INT(ib_qp_retry_s(20, 7) * 1e3, 34359);
  CHECK_INT(ib_qp_retry_s(17, 7) * 1e3, 4294);
  CHECK_INT(ib_qp_retry_s(0, 7), 0);
  CHECK_INT(ib_qp_limit_ms(&(struct ib_qp_attr){.timeout = 20, .retry_cnt = 7}), 138438);
  CHECK_INT(ib_qp_limit_ms(&(struct ib_qp_attr){.timeout = 0, .retry_cnt = 7}), 0);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(create), TEST_CASE(less_inline), TEST_CASE(to_init), TEST_CASE(to_rtr_by_gid), TEST_CASE(to_rtr_by_lid),
    TEST_CASE(to_rts), TEST_CASE(enhanced_connections), TEST_CASE(a_timeout_is_tried_again), TEST_CASE(not_for_ever),
    TEST_CASE(other_errors_are_not_unless_asked_for), TEST_CASE(what_the_driver_made_of_it),
    TEST_CASE(retry_budget)};
  setenv("NCCL_DEBUG", "TRACE", 1);
  rail_log_set_sink(hear);
  return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
