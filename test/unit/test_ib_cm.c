/* SPDX-License-Identifier: Apache-2.0
 * Queue pairs that the RDMA CM sets up: connections that come about, sides that do not fit, requests and responses that
 * are wrong. */
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_progress.h"
#include "test/unit/ib_cm_rig.h"

static struct ib_comm *sent(const struct hs *h) { return h->sent; }
static struct ib_comm *received(const struct hs *h) { return h->received; }

/* ---- that come about ------------------------------------------------------------- */

static void check_common(const struct hs *h, unsigned int nqps, bool iwarp) {
  const struct ib_comm *s = sent(h), *r = received(h);
  CHECK(s->cm && r->cm && s->plan.rdmacm && r->plan.rdmacm && !s->plan.ece);
  CHECK(s->plan.notices == iwarp && r->plan.notices == iwarp && !s->failover == (iwarp || nqps == 1));
  CHECK_INT(s->plan.nqps, nqps);
  for (unsigned int i = 0; i < nqps; i++) {
    const struct ib_qp *a = &s->qps[i], *b = &r->qps[i];
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(a->state == IB_QP_RTS && b->state == IB_QP_RTS);
    CHECK_OK(ib_verbs.query_qp(a->qp, &attr, IBV_QP_STATE, &init));
    CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == b->qp->qp_num);
    CHECK(s->cm->qps[i].state == IB_CM_UP && r->cm->qps[i].state == IB_CM_UP);
    if (!iwarp) CHECK(a->attr.dest_qpn == b->qp->qp_num && b->attr.dest_qpn == a->qp->qp_num);
  }
  for (unsigned int i = 0; i < IB_MAX_RAILS; i++) CHECK(!r->cm->listeners[i]);
  CHECK(hs_logged("by the RDMA CM") && hs_logged("verified") && iwarp == hs_logged("parts reported by SEND"));
}

TEST(one_and_several_queue_pairs) {
  for (int qps = 1; qps <= 8; qps += 7) {
    uint64_t longest = UINT64_MAX;
    for (int i = 0; i < HS_TRIES && longest >= 200000000; i++) {
      struct hs h;
      begin(&h);
      ib_params.qps = qps;
      hs_pair(&h, A1, B);
      check_common(&h, (unsigned int)qps, false);
      longest = h.longest_ns;
      end(&h);
    }
    CHECK_MSG(longest < 200000000, "a call took %" PRIu64 " ns", longest);
  }
}

TEST(several_rails) {
  for (int fused_sends = 0; fused_sends < 2; fused_sends++) {
    struct hs h;
    begin(&h);
    ib_params.qps = 2;
    hs_pair(&h, fused_sends ? B : FUSED, fused_sends ? FUSED : B);
    check_common(&h, 6, false);
    end(&h);
  }
}

TEST(to_itself) {
  struct hs h;
  begin(&h);
  hs_pair(&h, A1, A1);
  check_common(&h, 1, false);
  end(&h);
}

TEST(iwarp) {
  struct hs h;
  begin(&h);
  ib_params.qps = 3;
  hs_pair(&h, RNIC1, FUSED_RNIC);
  check_common(&h, 6, true);
  CHECK(!ib_recv_comm_of(received(&h))->flush && !(ib_device_at(RNIC1, "")->rails[0]->roce));
  end(&h);
}

static void send_a_message(const struct hs *h) {
  static char out[5000], in[5000];
  void *data = in, *mh_in, *mh_out, *requests[2] = {NULL, NULL};
  const size_t size = sizeof in;
  const int tag = 7;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  memset(out, 0x5a, sizeof out);
  memset(in, 0, sizeof in);
  CHECK_OK(ib_reg_mr(h->sent, out, sizeof out, RAIL_PTR_HOST, &mh_out));
  CHECK_OK(ib_reg_mr(h->received, in, sizeof in, RAIL_PTR_HOST, &mh_in));
  CHECK_OK(ib_irecv(h->received, 1, &data, &size, &tag, &mh_in, NULL, &requests[0]));
  while (!requests[1]) {
    CHECK_OK(ib_isend(h->sent, out, sizeof out, tag, mh_out, NULL, &requests[1]));
    CHECK_MSG(!rail_deadline_passed(deadline), "no clear-to-send: %s", hs_lines);
  }
  for (int i = 0; i < 2; i++)
    for (int done = 0, bytes = 0; !done;) {
      CHECK_OK(ib_test(requests[i], &done, &bytes));
      CHECK(!done || bytes == (int)size);
      CHECK_MSG(!rail_deadline_passed(deadline), "request %d is not done: %s", i, hs_lines);
    }
  CHECK(memcmp(in, out, sizeof in) == 0);
  CHECK_OK(ib_dereg_mr(h->sent, mh_out));
  CHECK_OK(ib_dereg_mr(h->received, mh_in));
}

/* iWARP's notices are inline, whatever the parameter says of data. */
TEST(iwarp_without_inline) {
  struct hs h;
  begin(&h);
  ib_params.use_inline = 0;
  hs_pair(&h, RNIC1, RNIC2);
  CHECK(sent(&h)->qps[0].max_inline == 0);
  send_a_message(&h);
  end(&h);
  for (int connects = 0; connects < 2; connects++) {
    begin(&h);
    hs_listen(&h, connects ? RNIC1 : NO_INLINE);
    hs_run_connect(&h, connects ? NO_INLINE : RNIC1);
    CHECK(h.connect != RAIL_OK && h.accept != RAIL_OK);
    CHECK_MSG(hs_logged("plain: its queue pairs take 0 bytes inline, and 8 are needed"), "%s", hs_lines);
    end(&h);
  }
}

/* NCCL's parameters reach the queue pair, whatever the RDMA CM takes from the network. */
TEST(traffic_class_and_timeouts) {
  struct hs h;
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  begin(&h);
  ib_params.tc = 104;
  ib_params.sl = 3;
  ib_params.timeout = 19;
  ib_params.retry_cnt = 5;
  hs_pair(&h, A1, B);
  for (int side = 0; side < 2; side++) {
    const struct ib_qp *qp = side ? &received(&h)->qps[0] : &sent(&h)->qps[0];
    CHECK_OK(ib_verbs.query_qp(qp->qp, &attr, IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT, &init));
    CHECK(attr.ah_attr.grh.traffic_class == 104 && attr.ah_attr.sl == 3 && attr.timeout == 19 && attr.retry_cnt == 5);
    CHECK(attr.rnr_retry == IB_RNR_RETRY && attr.min_rnr_timer == IB_MIN_RNR_TIMER);
    CHECK(qp->attr.traffic_class == 104 && qp->attr.sl == 3);
  }
  end(&h);
}

static void wait_for_qps(long wanted) {
  uint64_t deadline = rail_deadline_in_ms(TIMEOUT_MS);
  while (emu_live("qp") != wanted && !rail_deadline_passed(deadline)) sched_yield();
  CHECK_INT(emu_live("qp"), wanted);
}

/* The time that an iWARP sender's queue pair stays after close: until the peer closes, or for a second. */
static uint64_t lingers_for(bool peer_closes) {
  struct hs h;
  begin(&h);
  hs_pair(&h, RNIC1, RNIC2);
  ib_params.linger_ms = 10000;
  uint64_t start = rail_now_ns();
  CHECK_OK(ib_close_send(h.sent));
  CHECK(emu_live("qp") == h.qps + 2 && !(atomic_load(&received(&h)->pending_work) & IB_COMM_PEER_CLOSED));
  h.connect = RAIL_IN_PROGRESS; /* hs_end has nothing to close */
  if (peer_closes) {
    CHECK_OK(ib_close_recv(h.received));
    h.accept = RAIL_IN_PROGRESS;
  }
  wait_for_qps(peer_closes ? h.qps : h.qps + 1);
  uint64_t took = rail_now_ns() - start, deadline = rail_deadline_in_ms(TIMEOUT_MS);
  if (!peer_closes) {
    while (!(atomic_load(&received(&h)->pending_work) & IB_COMM_PEER_CLOSED)) CHECK(!rail_deadline_passed(deadline));
    CHECK(!(atomic_load(&received(&h)->pending_work) & IB_COMM_PEER_LOST));
  }
  end(&h);
  return took;
}

/* What it sent may be on its way: its queue pair stays, and GOODBYE waits. A busy machine may take longer to see the
 * peer's close than the second that the queue pair stays without one, but not each time. */
TEST(an_iwarp_sender_lingers) {
  enum { LIMIT_NS = 900000000, TRIES = 20 };
  int tries = 0;
  while (lingers_for(true) >= LIMIT_NS) CHECK(++tries < TRIES);
  CHECK(lingers_for(false) > LIMIT_NS);
}

/* ---- that do not ---------------------------------------------------------------------- */

static struct ib_port *port_at(int dev) { return ib_device_at(dev, "test")->rails[0]; }

TEST(one_side_without_it) {
  struct hs h;
  for (int i = 0; i < 2; i++) {
    begin(&h);
    port_at(i ? A1 : B)->rdmacm = false;
    hs_listen(&h, A1);
    hs_run(&h, B);
    port_at(i ? A1 : B)->rdmacm = true;
    CHECK(h.connect == RAIL_REMOTE_ERROR && h.accept == RAIL_BAD_USAGE && hs_logged("set RAIL_IB_CM alike on both"));
    end(&h);
  }
}

static __be16 no_port(struct rdma_cm_id *id) { return (void)id, 0; }

TEST(an_acceptor_without_a_port) {
  struct hs h;
  begin(&h);
  ib_rdmacm.get_src_port = no_port;
  hs_listen(&h, FUSED);
  hs_run_connect(&h, B);
  CHECK_INT(h.connect, RAIL_REMOTE_ERROR);
  CHECK_MSG(hs_logged("it sent no port of the RDMA CM"), "%s", hs_lines);
  end(&h);
}

TEST(link_local_addresses) {
  struct hs h;
  begin(&h);
  ib_params.gid_index = 1;
  hs_listen(&h, A1);
  hs_run_connect(&h, B);
  CHECK_MSG(h.connect != RAIL_OK && hs_logged("one that is not link-local"), "%s", hs_lines);
  end(&h);
}

TEST(roce_and_iwarp) {
  struct hs h;
  begin(&h);
  hs_listen(&h, RNIC1);
  hs_run(&h, B);
  CHECK(h.connect == RAIL_REMOTE_ERROR && hs_logged("of different kinds (InfiniBand, RoCE, iWARP)"));
  end(&h);
}

/* ---- private data that is wrong ----------------------------------------------------------- */

/* Which byte of the private data is changed, or how it is cut; by the index of the queue pair. */
static struct {
  int byte;  /* -1: none */
  int size;  /* -1: all */
  int qp;    /* only of this one; -1: all */
  int as_qp; /* the index that it shows instead; -1: its own */
  uint32_t qpn; /* xor */
} lie;

static const void *lying(struct rdma_conn_param *p, struct ib_cm_wire *wire) {
  memcpy(wire, p->private_data, sizeof *wire);
  if (lie.qp >= 0 && wire->qp != lie.qp) return wire;
  if (lie.byte >= 0) ((uint8_t *)wire)[lie.byte] ^= 0x80;
  if (lie.size >= 0) p->private_data_len = (uint8_t)lie.size;
  if (lie.as_qp >= 0) wire->qp = (uint16_t)lie.as_qp;
  return wire;
}

static int lying_connect(struct rdma_cm_id *id, struct rdma_conn_param *param) {
  struct rdma_conn_param p = *param;
  struct ib_cm_wire wire;
  p.private_data = lying(&p, &wire);
  return real.connect(id, &p);
}

static int lying_accept(struct rdma_cm_id *id, struct rdma_conn_param *param) {
  struct rdma_conn_param p = *param;
  struct ib_cm_wire wire;
  p.private_data = lying(&p, &wire);
  p.qp_num ^= lie.qpn;
  return real.accept(id, &p);
}

static void rejected(int listen_dev, int dev, const char *why) {
  struct hs h;
  begin(&h);
  ib_params.qps = 2;
  ib_rdmacm.connect = lying_connect;
  hs_listen(&h, listen_dev);
  hs_run_connect(&h, dev);
  for (int i = 0; i < 100; i++) hs_accept_once(&h);
  CHECK(h.connect == RAIL_REMOTE_ERROR && h.accept == RAIL_IN_PROGRESS); /* accept waits for the next peer */
  CHECK_MSG(hs_logged(why), "not '%s': %s", why, hs_lines);
  CHECK(hs_logged("rejected by the peer's process"));
  end(&h);
}

TEST(requests_that_are_rejected) {
  static const struct { int byte, size, qp, as_qp; const char *why; } rows[] = {
    {0, -1, -1, -1, "not of this protocol"},     {4, -1, -1, -1, "not of this protocol"},
    {8, -1, -1, -1, "token that is not"},        {15, -1, -1, -1, "token that is not"},
    {6, -1, -1, -1, "a queue pair that does not exist"},
    {-1, -1, 1, 2, "not in the plan"},           {-1, -1, 1, 0, "a second request"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    memset(&lie, 0, sizeof lie);
    lie.byte = rows[i].byte, lie.size = rows[i].size, lie.qp = rows[i].qp, lie.as_qp = rows[i].as_qp;
    rejected(A1, B, rows[i].why);
    rejected(RNIC1, RNIC2, rows[i].why);
  }
  /* iWARP brings as many bytes as were sent; InfiniBand's CM zeros behind them. */
  memset(&lie, 0xff, sizeof lie);
  lie.size = 15;
  rejected(RNIC1, RNIC2, "too short");
  lie.size = 0;
  rejected(RNIC1, RNIC2, "too short");
  rejected(A1, B, "not of this protocol");
}

static void refused_response(int listen_dev, int dev, const char *why) {
  struct hs h;
  begin(&h);
  ib_params.qps = 2;
  ib_rdmacm.accept = lying_accept;
  hs_listen(&h, listen_dev);
  hs_run_connect(&h, dev);
  CHECK_INT(h.connect, RAIL_REMOTE_ERROR);
  CHECK_MSG(hs_logged(why), "not '%s': %s", why, hs_lines);
  end(&h);
}

TEST(responses_that_are_wrong) {
  static const struct { int byte, as_qp; uint32_t qpn; const char *why; } rows[] = {
    {0, -1, 0, "not of this protocol"}, {9, -1, 0, "token that is not"}, {-1, 1, 0, "for another queue pair"},
    {-1, -1, 1, "not the one of its list"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    memset(&lie, 0xff, sizeof lie);
    lie.byte = rows[i].byte, lie.as_qp = rows[i].as_qp, lie.qpn = rows[i].qpn;
    refused_response(A1, B, rows[i].why);
    if (!rows[i].qpn) refused_response(RNIC1, RNIC2, rows[i].why);
  }
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(one_and_several_queue_pairs), TEST_CASE(several_rails), TEST_CASE(to_itself), TEST_CASE(iwarp),
    TEST_CASE(an_iwarp_sender_lingers), TEST_CASE(iwarp_without_inline), TEST_CASE(traffic_class_and_timeouts),
    TEST_CASE(one_side_without_it), TEST_CASE(an_acceptor_without_a_port), TEST_CASE(link_local_addresses),
    TEST_CASE(roce_and_iwarp), TEST_CASE(requests_that_are_rejected), TEST_CASE(responses_that_are_wrong)};
  return cm_rig_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
