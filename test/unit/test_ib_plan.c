/* SPDX-License-Identifier: Apache-2.0
 * What two offers make: every asymmetry, every refusal, and the same answer on both sides. */
#include "plugin/ib/ib_plan.h"
#include "test/harness/program.h"
#include "test/harness/tap.h"

/* ---- offers -------------------------------------------------------------- */

static struct ib_offer_rail roce(uint8_t host) {
  struct ib_offer_rail r = {.roce = true, .port = 1, .mtu = 3, .gid_type = IB_GID_ROCE_V2, .speed = 100000};
  r.gid[10] = r.gid[11] = 0xff;
  r.gid[12] = 10;
  r.gid[15] = host;
  snprintf(r.name, sizeof r.name, "mlx5_%u", host);
  return r;
}

static struct ib_offer_rail infiniband(uint16_t lid) {
  struct ib_offer_rail r = {.port = 1, .mtu = 5, .gid_type = IB_GID_IB, .lid = lid, .subnet_prefix = 0xfe80ull << 48};
  r.gid[0] = 0xfe;
  r.gid[1] = 0x80;
  r.gid[15] = (uint8_t)lid;
  return r;
}

static struct ib_offer offer(bool sender, unsigned int nrails) {
  struct ib_offer o = {.sender = sender, .nrails = nrails, .qps_per_rail = 1, .max_qps = IB_MAX_QPS, .ece = true,
                       .verify = true, .max_write_log2 = 30, .recv_depth = IB_RECV_DEPTH};
  for (unsigned int i = 0; i < nrails; i++) o.rails[i] = roce((uint8_t)(1 + i + (sender ? 0 : 100)));
  return o;
}

/* Both sides make it, and find the same. */
static enum ib_refusal both(const struct ib_offer *s, const struct ib_offer *r, struct ib_plan *plan, int *sender_rail,
                            int *receiver_rail) {
  struct ib_plan other;
  int a, b;
  enum ib_refusal refusal = ib_plan_make(s, r, plan, sender_rail, receiver_rail);
  ENSURE_INT(ib_plan_make(r, s, &other, &a, &b), refusal);
  ENSURE_INT(a, *receiver_rail);
  ENSURE_INT(b, *sender_rail);
  ENSURE_INT(other.nqps, plan->nqps);
  ENSURE_INT(other.qps_per_message, plan->qps_per_message);
  ENSURE_INT(other.max_write_log2, plan->max_write_log2);
  ENSURE(other.ece == plan->ece && other.verify == plan->verify && other.rdmacm == plan->rdmacm &&
           other.notices == plan->notices && other.failover == plan->failover, "the sides disagree");
  for (unsigned int i = 0; i < plan->nqps; i++) {
    const struct ib_plan_qp *x = &plan->qps[i], *y = &other.qps[i];
    ENSURE(x->local_rail == y->remote_rail && x->remote_rail == y->local_rail && x->mtu == y->mtu && x->grh == y->grh,
           "queue pair %u differs", i);
  }
  return refusal;
}

static void good(const struct ib_offer *s, const struct ib_offer *r, struct ib_plan *plan) {
  int a, b;
  CHECK_INT(both(s, r, plan, &a, &b), IB_REFUSAL_NONE);
  CHECK(a == -1 && b == -1);
}

static void bad(const struct ib_offer *s, const struct ib_offer *r, enum ib_refusal wanted, int a, int b) {
  struct ib_plan plan;
  int x, y;
  CHECK_INT(both(s, r, &plan, &x, &y), wanted);
  CHECK_INT(x, a);
  CHECK_INT(y, b);
  CHECK_INT(plan.nqps, 0);
}

/* ---- what fits ----------------------------------------------------------- */

TEST(one_and_one) {
  struct ib_offer s = offer(true, 1), r = offer(false, 1);
  struct ib_plan plan;
  good(&s, &r, &plan);
  CHECK(plan.nqps == 1 && plan.qps_per_message == 1 && plan.max_write_log2 == 30 && plan.ece && plan.verify);
  CHECK(plan.qps[0].grh && plan.qps[0].mtu == 3);
}

TEST(different_rails) {
  struct ib_offer s = offer(true, 3), r = offer(false, 2);
  struct ib_plan plan;
  r.qps_per_rail = 4;
  good(&s, &r, &plan);
  CHECK_INT(plan.nqps, 12);
  CHECK_INT(plan.qps_per_message, 3);
  for (unsigned int i = 0; i < plan.nqps; i++)
    CHECK(plan.qps[i].local_rail == i % 3 && plan.qps[i].remote_rail == i % 2);
}

TEST(one_side_wants_more) {
  struct ib_offer s = offer(true, 2), r = offer(false, 2);
  struct ib_plan plan;
  s.qps_per_rail = 8;
  r.split = true;
  s.max_write_log2 = 20;
  s.verify = false;
  r.ece = false;
  s.rails[1].mtu = 5;
  r.rails[1].mtu = 1;
  good(&s, &r, &plan);
  CHECK(plan.nqps == 16 && plan.qps_per_message == 16 && plan.max_write_log2 == 20 && plan.verify && !plan.ece);
  CHECK(plan.qps[0].mtu == 3 && plan.qps[1].mtu == 1);
  r.verify = false;
  good(&s, &r, &plan);
  CHECK(!plan.verify);
}

TEST(as_many_queue_pairs_as_both_can) {
  struct ib_offer s = offer(true, 3), r = offer(false, 1);
  struct ib_plan plan;
  s.qps_per_rail = IB_MAX_QPS;
  good(&s, &r, &plan);
  CHECK_INT(plan.nqps, 126); /* a multiple of 3 */
  r.max_qps = 8;
  good(&s, &r, &plan);
  CHECK_INT(plan.nqps, 6);
  r.max_qps = 3;
  good(&s, &r, &plan);
  CHECK_INT(plan.nqps, 3);
  r.max_qps = 2;
  bad(&s, &r, IB_REFUSAL_QPS, -1, -1);
  r.max_qps = 0;
  bad(&s, &r, IB_REFUSAL_QPS, -1, -1);
}

TEST(iwarp_and_the_rdma_cm) {
  struct ib_offer s = offer(true, 2), r = offer(false, 1);
  struct ib_plan plan;
  good(&s, &r, &plan);
  CHECK(!plan.rdmacm && !plan.notices);
  s.rdmacm = true;
  bad(&s, &r, IB_REFUSAL_CM, -1, -1);
  r.rdmacm = true;
  good(&s, &r, &plan);
  CHECK(plan.rdmacm && !plan.notices);
  s.failover = r.failover = true;
  good(&s, &r, &plan);
  CHECK(plan.failover);
  r.no_imm = true; /* one side's need is enough */
  good(&s, &r, &plan);
  CHECK(plan.notices && !plan.failover); /* nothing counts what the peer has */
  for (unsigned int i = 0; i < 2; i++) s.rails[i].roce = false, s.rails[i].iwarp = true;
  bad(&s, &r, IB_REFUSAL_LINK, 0, 0);
  r.rails[0].roce = false;
  bad(&s, &r, IB_REFUSAL_LINK, 0, 0); /* InfiniBand */
  r.rails[0].iwarp = true;
  s.rails[0].gid_type = s.rails[1].gid_type = IB_GID_UNKNOWN;
  good(&s, &r, &plan);
  CHECK(!plan.qps[0].grh && plan.nqps == 2);
  CHECK_INT(ib_plan_dlid(&s.rails[0], &r.rails[0]), 0);
  s.rails[1].gid[0] = 0x20; /* no IPv4 address */
  bad(&s, &r, IB_REFUSAL_FAMILY, 1, 0);
  memset(s.rails[1].gid, 0, sizeof s.rails[1].gid);
  bad(&s, &r, IB_REFUSAL_GID, 1, 0);
}

TEST(payload_by_send) {
  struct ib_offer s = offer(true, 2), r = offer(false, 1);
  struct ib_plan plan;
  s.failover = r.failover = true;
  s.no_imm = true;
  s.two_sided = true;
  bad(&s, &r, IB_REFUSAL_PROTOCOL, -1, -1);
  r.two_sided = true;
  good(&s, &r, &plan);
  CHECK(plan.two_sided && !plan.notices && !plan.failover);
  s.two_sided = false;
  bad(&s, &r, IB_REFUSAL_PROTOCOL, -1, -1);
}

TEST(infiniband_subnets) {
  struct ib_offer s = offer(true, 1), r = offer(false, 1);
  struct ib_plan plan;
  s.rails[0] = infiniband(7);
  r.rails[0] = infiniband(9);
  good(&s, &r, &plan);
  CHECK(!plan.qps[0].grh);
  CHECK_INT(ib_plan_dlid(&s.rails[0], &r.rails[0]), 9);
  r.rails[0].grh_required = true;
  good(&s, &r, &plan);
  CHECK(plan.qps[0].grh);
  r.rails[0].lid = 0;
  bad(&s, &r, IB_REFUSAL_SUBNET, 0, 0);
  /* Another subnet: only with a router's LID in both GIDs. */
  r.rails[0] = infiniband(9);
  r.rails[0].subnet_prefix++;
  bad(&s, &r, IB_REFUSAL_SUBNET, 0, 0);
  r.rails[0].gid[4] = 0x12;
  r.rails[0].gid[5] = 0x34;
  bad(&s, &r, IB_REFUSAL_SUBNET, 0, 0);
  s.rails[0].gid[5] = 0x56;
  good(&s, &r, &plan);
  CHECK(plan.qps[0].grh);
  CHECK_INT(ib_plan_dlid(&s.rails[0], &r.rails[0]), 0x1234);
  CHECK_INT(ib_plan_dlid(&r.rails[0], &s.rails[0]), 0x56);
  CHECK_INT(ib_plan_dlid(&(struct ib_offer_rail){.roce = true}, &r.rails[0]), 0);
}

/* ---- what does not ------------------------------------------------------- */

TEST(links) {
  struct ib_offer s = offer(true, 2), r = offer(false, 2);
  r.rails[1] = infiniband(3);
  bad(&s, &r, IB_REFUSAL_LINK, 1, 1);
  s.nrails = 1;
  bad(&s, &r, IB_REFUSAL_LINK, 0, 1);
}

TEST(gids) {
  struct ib_offer s = offer(true, 1), r = offer(false, 1);
  struct ib_plan plan;
  const struct ib_offer_rail ipv4 = r.rails[0];
  struct ib_offer_rail local = ipv4, global = ipv4;
  memset(local.gid, 0, sizeof local.gid);
  r.rails[0] = local;
  bad(&s, &r, IB_REFUSAL_GID, 0, 0);
  local.gid[0] = 0xfe;
  local.gid[1] = 0x80;
  local.gid[15] = 1;
  r.rails[0] = local;
  bad(&s, &r, IB_REFUSAL_FAMILY, 0, 0);
  s.rails[0] = local;
  good(&s, &r, &plan); /* both on one link */
  memset(global.gid, 0, sizeof global.gid);
  global.gid[0] = 0xfd;
  global.gid[15] = 1;
  r.rails[0] = global;
  bad(&s, &r, IB_REFUSAL_GID, 0, 0);
  s.rails[0] = global;
  good(&s, &r, &plan);
  s.rails[0].gid_type = IB_GID_ROCE_V1;
  bad(&s, &r, IB_REFUSAL_ROCE, 0, 0);
  s.rails[0].gid_type = IB_GID_UNKNOWN;
  good(&s, &r, &plan);
}

TEST(infiniband_without_gid) {
  struct ib_offer s = offer(true, 1), r = offer(false, 1);
  struct ib_plan plan;
  s.rails[0] = infiniband(7);
  r.rails[0] = infiniband(9);
  memset(r.rails[0].gid, 0, sizeof r.rails[0].gid);
  good(&s, &r, &plan);
  s.rails[0].grh_required = true;
  bad(&s, &r, IB_REFUSAL_GID, 0, 0);
}

TEST(values) {
  const struct ib_offer s0 = offer(true, 2), r0 = offer(false, 2);
#define BAD(change, refusal, rail)      \
  do {                                  \
    struct ib_offer s = s0, r = r0;     \
    change;                             \
    bad(&s, &r, refusal, rail, rail);   \
  } while (0)
  BAD(s.rails[1].mtu = 0, IB_REFUSAL_MTU, 1);
  BAD(r.rails[0].mtu = 6, IB_REFUSAL_MTU, 0);
  BAD(r.rails[1].port = 0, IB_REFUSAL_OFFER, 1);
  BAD(r.rails[1].gid_type = IB_GID_UNKNOWN + 1, IB_REFUSAL_OFFER, 1);
  BAD(r.recv_depth = IB_RECV_DEPTH - 1, IB_REFUSAL_DEPTH, -1);
  BAD(s.nrails = 0, IB_REFUSAL_OFFER, -1);
  BAD(s.nrails = IB_MAX_RAILS + 1, IB_REFUSAL_OFFER, -1);
  BAD(s.qps_per_rail = 0, IB_REFUSAL_OFFER, -1);
  BAD(s.qps_per_rail = IB_MAX_QPS + 1, IB_REFUSAL_OFFER, -1);
  BAD(r.max_write_log2 = 11, IB_REFUSAL_OFFER, -1);
  BAD(r.max_write_log2 = 31, IB_REFUSAL_OFFER, -1);
  BAD(r.sl = 16, IB_REFUSAL_OFFER, -1);
  BAD(s.timeout = 32, IB_REFUSAL_OFFER, -1);
#undef BAD
  struct ib_offer s = s0, r = r0;
  struct ib_plan plan;
  s.recv_depth = 0; /* a sender receives nothing */
  good(&s, &r, &plan);
  r.sender = true;
  bad(&s, &r, IB_REFUSAL_OFFER, -1, -1);
}

TEST(texts) {
  for (unsigned int i = 0; i <= IB_REFUSAL_COUNT; i++) CHECK(ib_refusal_text(i)[0]);
}

/* ---- any two offers ------------------------------------------------------ */

static uint64_t state = 12345;
static unsigned int below(unsigned int n) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (unsigned int)(state >> 33) % n;
}

static struct ib_offer any(bool sender) {
  struct ib_offer o = offer(sender, 1 + below(IB_MAX_RAILS));
  o.qps_per_rail = 1 + below(below(2) ? 4 : IB_MAX_QPS);
  o.max_qps = below(4) ? IB_MAX_QPS : below(IB_MAX_QPS + 1);
  o.split = below(2);
  o.ece = below(2);
  o.verify = below(2);
  o.max_write_log2 = 12 + below(19);
  for (unsigned int i = 0; i < o.nrails; i++) {
    struct ib_offer_rail *r = &o.rails[i];
    if (!below(12)) *r = infiniband((uint16_t)below(3));
    r->mtu = (uint8_t)(below(40) ? 1 + below(5) : below(8));
    if (!below(30)) r->gid[10] = (uint8_t)below(256);
    if (!below(30)) r->gid_type = (uint8_t)below(5);
    if (!below(30)) r->subnet_prefix = below(2);
    r->grh_required = !below(5);
  }
  return o;
}

TEST(the_sides_agree) {
  unsigned int fit = 0, refused = 0;
  for (int i = 0; i < 20000; i++) {
    struct ib_offer s = any(true), r = any(false);
    struct ib_plan plan;
    int a, b;
    enum ib_refusal refusal = both(&s, &r, &plan, &a, &b);
    if (refusal != IB_REFUSAL_NONE) {
      refused++;
      CHECK((a < 0) == (b < 0) && a < (int)s.nrails && b < (int)r.nrails);
      continue;
    }
    fit++;
    unsigned int rails = s.nrails > r.nrails ? s.nrails : r.nrails;
    CHECK(rails > 0);
    CHECK(plan.nqps >= rails && plan.nqps <= IB_MAX_QPS && plan.nqps % rails == 0);
    CHECK(plan.nqps <= s.max_qps && plan.nqps <= r.max_qps);
    CHECK(plan.qps_per_message == rails || plan.qps_per_message == plan.nqps);
    for (unsigned int q = 0; q < plan.nqps; q++) {
      const struct ib_plan_qp *p = &plan.qps[q];
      CHECK(p->local_rail < s.nrails && p->remote_rail < r.nrails);
      CHECK(p->mtu <= s.rails[p->local_rail].mtu && p->mtu <= r.rails[p->remote_rail].mtu && p->mtu >= 1);
      CHECK(s.rails[p->local_rail].roce == r.rails[p->remote_rail].roce);
    }
  }
  CHECK(fit > 1000 && refused > 1000);
}

TEST_MAIN(TEST_CASE(one_and_one), TEST_CASE(different_rails), TEST_CASE(one_side_wants_more),
          TEST_CASE(as_many_queue_pairs_as_both_can), TEST_CASE(infiniband_subnets), TEST_CASE(links), TEST_CASE(gids),
          TEST_CASE(infiniband_without_gid), TEST_CASE(values), TEST_CASE(texts), TEST_CASE(the_sides_agree),
          TEST_CASE(iwarp_and_the_rdma_cm), TEST_CASE(payload_by_send))
