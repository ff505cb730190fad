/* SPDX-License-Identifier: Apache-2.0
 * Connections that come about, those that are refused, and those that fail half-way. */
#include "test/unit/ib_handshake.h"

static struct ib_comm *sent(const struct hs *h) { return h->sent; }
static struct ib_comm *received(const struct hs *h) { return h->received; }

/* ---- that come about ----------------------------------------------------- */

static void check_common(const struct hs *h, unsigned int nqps) {
  const struct ib_comm *s = sent(h), *r = received(h);
  CHECK(s->magic == IB_SEND_COMM_MAGIC && s->sender && r->magic == IB_RECV_COMM_MAGIC && !r->sender);
  CHECK_INT(s->plan.nqps, nqps);
  CHECK_INT(r->plan.nqps, nqps);
  CHECK(s->watched && r->watched && s->oob_fd >= 0 && r->oob_fd >= 0);
  CHECK(s->nremote_rails == r->nrails && r->nremote_rails == s->nrails);
  for (unsigned int i = 0; i < nqps; i++) {
    const struct ib_qp *a = &s->qps[i], *b = &r->qps[i];
    CHECK(a->state == IB_QP_RTS && b->state == IB_QP_RTS && a->index == i && b->index == i);
    CHECK(a->rail == i % s->nrails && a->remote_rail == i % r->nrails && b->rail == a->remote_rail);
    CHECK(a->attr.dest_qpn == b->qp->qp_num && b->attr.dest_qpn == a->qp->qp_num);
    CHECK(a->attr.sq_psn == b->attr.rq_psn && b->attr.sq_psn == a->attr.rq_psn);
    CHECK(a->attr.mtu == b->attr.mtu && a->attr.port == s->rails[a->rail].port->number);
    CHECK(memcmp(a->attr.dgid, r->rails[b->rail].gid, 16) == 0 && memcmp(b->attr.dgid, s->rails[a->rail].gid, 16) == 0);
    CHECK(a->sq_avail == IB_SEND_DEPTH && b->sq_avail == IB_CTS_DEPTH);
    CHECK(a->qp->qp_context == s && b->qp->qp_context == r && a->max_inline >= 64);
  }
}

TEST(one_rail) {
  uint64_t longest = UINT64_MAX;
  for (int i = 0; i < HS_TRIES && longest >= 200000000; i++) {
    struct hs h;
    hs_begin(&h);
    hs_pair(&h, DEV_A1, DEV_B);
    check_common(&h, 1);
    CHECK(sent(&h)->plan.verify && received(&h)->plan.ece);
    CHECK(hs_logged("listening for emuA:1 at 127.0.0.1:") && hs_logged("connected to 127.0.0.1:") &&
          hs_logged("verified"));
    longest = h.longest_ns;
    hs_end(&h);
  }
  CHECK_MSG(longest < 200000000, "a call took %" PRIu64 " ns", longest);
}

TEST(to_itself) {
  struct hs h;
  hs_begin(&h);
  hs_pair(&h, DEV_A1, DEV_A1);
  check_common(&h, 1);
  hs_end(&h);
}

TEST(infiniband) {
  struct hs h;
  hs_begin(&h);
  hs_pair(&h, DEV_IB, DEV_IB);
  check_common(&h, 1);
  CHECK(!sent(&h)->qps[0].attr.grh && sent(&h)->qps[0].attr.dlid == 7);
  hs_end(&h);
}

TEST(different_rails_queue_pairs_and_mtus) {
  struct hs h;
  for (int fused_sends = 0; fused_sends < 2; fused_sends++) {
    hs_begin(&h);
    emu_do("port emuA 2 mtu=2");
    ib_params.qps = 4;
    hs_pair(&h, fused_sends ? DEV_B : DEV_FUSED, fused_sends ? DEV_FUSED : DEV_B);
    check_common(&h, 12);
    CHECK_INT(sent(&h)->plan.qps_per_message, 3);
    for (unsigned int i = 0; i < 12; i++) CHECK_INT(sent(&h)->qps[i].attr.mtu, i % 3 == 1 ? 2 : 5);
    emu_do("port emuA 2 mtu=5");
    hs_end(&h);
  }
}

/* The connector's first call makes its offer; what is set afterwards is the acceptor's. */
TEST(different_parameters) {
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  ib_params.qps = 3;
  ib_params.ece = 0;
  ib_params.max_write = 1 << 16;
  for (int i = 0; i < 20; i++) hs_connect_once(&h, DEV_B);
  ib_params.qps = 5;
  ib_params.ece = 1;
  ib_params.max_write = 1 << 30;
  ib_params.split = 1;
  ib_params.verify = 0;
  hs_run(&h, DEV_B);
  CHECK(h.connect == RAIL_OK && h.accept == RAIL_OK);
  check_common(&h, 5);
  CHECK(sent(&h)->plan.qps_per_message == 5 && !sent(&h)->plan.ece && sent(&h)->plan.verify);
  CHECK_INT(received(&h)->plan.max_write_log2, 16);
  hs_end(&h);
}

TEST(as_many_queue_pairs_as_there_can_be) {
  uint64_t longest = UINT64_MAX;
  for (int i = 0; i < HS_TRIES && longest >= 500000000; i++) {
    struct hs h;
    hs_begin(&h);
    ib_params.qps = IB_MAX_QPS;
    hs_pair(&h, DEV_A1, DEV_FUSED);
    check_common(&h, 126);
    longest = h.longest_ns;
    hs_end(&h);
  }
  CHECK_MSG(longest < 500000000, "a call took %" PRIu64 " ns", longest);
}

TEST(without_the_first_writes) {
  struct hs h;
  hs_begin(&h);
  long before = emu_calls("post_send");
  ib_params.verify = 0;
  hs_pair(&h, DEV_A1, DEV_B);
  check_common(&h, 1);
  CHECK_INT(emu_calls("post_send"), before);
  hs_end(&h);
  hs_begin(&h);
  hs_pair(&h, DEV_A1, DEV_B);
  CHECK_INT(emu_calls("post_send"), before + 4); /* each side a packet and a word */
  hs_end(&h);
}

TEST(without_inline) {
  struct hs h;
  hs_begin(&h);
  ib_params.use_inline = 0;
  hs_pair(&h, DEV_A1, DEV_B);
  CHECK(sent(&h)->qps[0].max_inline == 0 && received(&h)->qps[0].max_inline == 0);
  hs_end(&h);
}

TEST(one_side_is_called_much_later) {
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  for (int i = 0; i < 2000; i++) hs_connect_once(&h, DEV_B);
  CHECK_INT(h.connect, RAIL_IN_PROGRESS);
  for (int i = 0; i < 2000; i++) hs_accept_once(&h);
  CHECK_INT(h.accept, RAIL_IN_PROGRESS);
  hs_run(&h, DEV_B);
  CHECK(h.connect == RAIL_OK && h.accept == RAIL_OK);
  hs_end(&h);
}

/* The first one stops half-way, the second comes through, then the first goes on. */
TEST(several_at_one_listener) {
  struct hs h, other;
  int accepts = 0;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  other = h;
  for (int i = 0; i < 8; i++) hs_connect_once(&h, DEV_B);
  while (emu_live("qp") == h.qps && accepts++ < 1000) hs_accept_once(&h);
  for (int i = 0; i < 8; i++) hs_accept_once(&h);
  CHECK(emu_live("qp") > h.qps);
  CHECK_INT(h.accept, RAIL_IN_PROGRESS); /* its queue pairs are there, and wait for those of the connector */
  hs_run(&other, DEV_A2);
  CHECK(other.connect == RAIL_OK && other.accept == RAIL_OK);
  CHECK_OK(ib_close_send(other.sent));
  CHECK_OK(ib_close_recv(other.received));
  hs_run(&h, DEV_B);
  CHECK(h.connect == RAIL_OK && h.accept == RAIL_OK);
  hs_end(&h);
}

TEST(a_thousand_listeners) {
  static void *listens[1000];
  struct hs h;
  char handle[RAIL_NET_HANDLE_SIZE];
  hs_begin(&h);
  for (int i = 0; i < 1000; i++) CHECK_OK(ib_listen(h.ctx, DEV_A1, handle, &listens[i]));
  for (int i = 0; i < 1000; i += 2) CHECK_OK(ib_close_listen(listens[i]));
  hs_pair(&h, DEV_A1, DEV_B);
  hs_end(&h); /* the rest goes with the context */
}

/* ---- quality of service, GIDs -------------------------------------------- */

TEST(traffic_classes) {
  struct hs h;
  hs_init.traffic_class = 8; /* of init: both sides have it */
  hs_begin(&h);
  hs_init.traffic_class = -1;
  hs_pair(&h, DEV_A1, DEV_B);
  CHECK(sent(&h)->qps[0].attr.traffic_class == 8 && sent(&h)->qps[0].attr.sl == 8);
  CHECK(received(&h)->qps[0].attr.traffic_class == 8 && received(&h)->qps[0].attr.sl == 8);
  hs_end(&h);

  hs_begin(&h); /* of the sender alone: the receiver answers in kind, but for what NCCL_IB_FIFO_TC says */
  hs_listen(&h, DEV_A1);
  ib_params.tc = 96;
  ib_params.sl = 3;
  for (int i = 0; i < 20; i++) hs_connect_once(&h, DEV_B);
  ib_params.tc = ib_params.sl = -1;
  ib_params.fifo_tc = 104;
  hs_run(&h, DEV_B);
  CHECK(sent(&h)->qps[0].attr.traffic_class == 96 && sent(&h)->qps[0].attr.sl == 3);
  CHECK(received(&h)->qps[0].attr.traffic_class == 104 && received(&h)->qps[0].attr.sl == 3);
  hs_end(&h);
}

TEST(timeouts) {
  struct hs h;
  hs_begin(&h);
  ib_params.retry_cnt = 4;
  hs_pair(&h, DEV_A1, DEV_B);
  CHECK_INT(sent(&h)->qps[0].attr.retry_cnt, 4);
  CHECK_INT(sent(&h)->qps[0].attr.timeout, 20);
  CHECK(sent(&h)->sender_timeout == 20 && received(&h)->sender_timeout == 20);
  CHECK(sent(&h)->receiver_timeout == 20 && received(&h)->receiver_timeout == 20);
  CHECK(sent(&h)->peer_process && sent(&h)->peer_process == received(&h)->peer_process); /* both are this one */
  hs_end(&h);
  hs_begin(&h);
  ib_params.timeout = 22;
  hs_pair(&h, DEV_A1, DEV_B);
  CHECK_INT(received(&h)->qps[0].attr.timeout, 22);
  hs_end(&h);
}

/* The acceptor has several GIDs that are as good, and chooses the one in the connector's subnet. */
TEST(a_gid_for_the_peer) {
  struct hs h;
  hs_begin(&h);
  emu_do("gid emuA 1 4 10.88.5.1 type=v2; gid emuB 1 3 10.88.5.9 type=v2");
  hs_pair(&h, DEV_A1, DEV_B);
  CHECK_INT(received(&h)->rails[0].gid_index, 4);
  CHECK_INT(sent(&h)->rails[0].gid_index, 3);
  emu_do("gid emuA 1 4 none; gid emuB 1 3 10.77.1.1 type=v2");
  hs_end(&h);
}

/* The connector has several, and chooses the one in the subnet of the listener's, which is in the handle. */
TEST(a_gid_for_the_listener) {
  struct hs h;
  hs_begin(&h);
  usleep(1100000); /* what the last listeners knew of their ports is forgotten */
  emu_do("gid emuB 1 4 10.77.0.9 type=v2; gid emuB 1 3 10.88.1.1 type=v2");
  hs_pair(&h, DEV_A1, DEV_B);
  CHECK_INT(h.decoded.param, 1);
  CHECK_INT(sent(&h)->rails[0].gid_index, 4);
  emu_do("gid emuB 1 4 none; gid emuB 1 3 10.77.1.1 type=v2");
  hs_end(&h);
}

/* With NCCL_IB_SUBNET_AWARE_ROUTING the acceptor's rails lie opposite the connector's of the same subnet. */
TEST(rails_by_subnet) {
  struct hs h;
  hs_begin(&h);
  ib_params.subnet_aware = 1;
  emu_do("gid emuA 2 3 10.99.0.2 type=v2");
  hs_pair(&h, DEV_FUSED, DEV_A2);
  CHECK_STR(received(&h)->rails[0].port->name, "emuA:2");
  CHECK_STR(sent(&h)->remote_rails[0].name, "emuA:2");
  emu_do("gid emuA 2 3 10.77.0.2 type=v2");
  hs_end(&h);
}

TEST(payload_by_send) {
  struct hs h;
  hs_begin(&h);
  ib_params.protocol = IB_PROTOCOL_SEND;
  ib_params.max_write = 4096; /* of writes alone */
  hs_pair(&h, DEV_FUSED, DEV_FUSED);
  const struct ib_comm *both[] = {sent(&h), received(&h)};
  for (int i = 0; i < 2; i++) {
    CHECK(both[i]->plan.two_sided && !both[i]->plan.failover && !both[i]->failover);
    CHECK_INT(both[i]->plan.max_write_log2, IB_MAX_WRITE_LOG2);
  }
  const char *said = strstr(hs_lines, "payload by SEND (no failover)");
  CHECK(said && strstr(said + 1, "payload by SEND (no failover)"));
  hs_end(&h);
}

/* ---- refused ------------------------------------------------------------- */

static void refused(int listen_dev, int connect_dev, const char *script, const char *back, const char *why) {
  struct hs h;
  hs_begin(&h);
  if (script) emu_do(script);
  hs_listen(&h, listen_dev);
  hs_run(&h, connect_dev);
  if (back) emu_do(back);
  CHECK_INT(h.connect, RAIL_REMOTE_ERROR);
  CHECK_INT(h.accept, RAIL_BAD_USAGE);
  const char *second = strstr(hs_lines, why);
  CHECK_MSG(second && strstr(second + 1, why), "not one line a side that says '%s': %s", why, hs_lines);
  const char *names[] = {ib_device_at(listen_dev, "")->rails[0]->name, ib_device_at(connect_dev, "")->rails[0]->name};
  char text[160];
  for (int i = 0; i < 2; i++) {
    snprintf(text, sizeof text, "refused: port %s here", names[i]);
    CHECK_MSG(hs_logged(text), "'%s' is missing: %s", text, hs_lines);
    snprintf(text, sizeof text, "and port %s there", names[i]);
    CHECK_MSG(hs_logged(text), "'%s' is missing: %s", text, hs_lines);
  }
  hs_end(&h);
}

TEST(infiniband_and_ethernet) {
  refused(DEV_B, DEV_IB, NULL, NULL, "of different kinds (InfiniBand, RoCE, iWARP)");
  refused(DEV_IB, DEV_B, NULL, NULL, "of different kinds (InfiniBand, RoCE, iWARP)");
}

TEST(ipv4_and_ipv6) {
  refused(DEV_A1, DEV_B, "gid emuB 1 0 fd00::9 type=v2; gid emuB 1 1 none; gid emuB 1 2 none; gid emuB 1 3 none",
          "gid emuB 1 0 fe80::9 type=v1; gid emuB 1 1 fe80::9 type=v2; gid emuB 1 2 10.77.1.1 type=v1; "
          "gid emuB 1 3 10.77.1.1 type=v2", "one GID is an IPv4 address");
}

/* The connector makes its offer long before accept is called. */
TEST(payload_by_send_on_one_side) {
  for (int64_t first = IB_PROTOCOL_WRITE; first <= IB_PROTOCOL_SEND; first++) {
    struct hs h;
    hs_begin(&h);
    ib_params.protocol = first;
    hs_listen(&h, DEV_A1);
    for (int i = 0; i < 100; i++) hs_connect_once(&h, DEV_B);
    ib_params.protocol = !first;
    hs_run(&h, DEV_B);
    CHECK(h.connect == RAIL_REMOTE_ERROR && h.accept == RAIL_BAD_USAGE);
    const char *said = strstr(hs_lines, "set RAIL_IB_PROTOCOL alike on both");
    CHECK(said && strstr(said + 1, "set RAIL_IB_PROTOCOL alike on both"));
    hs_end(&h);
  }
}

TEST(ports_that_are_down) {
  struct hs h;
  hs_begin(&h);
  emu_do("port emuB 1 state=down");
  hs_listen(&h, DEV_A1);
  hs_run_connect(&h, DEV_B);
  CHECK_INT(h.connect, RAIL_SYSTEM_ERROR);
  CHECK(hs_logged("port emuB is down"));
  hs_end(&h);
  hs_begin(&h);
  hs_listen(&h, DEV_B); /* the acceptor's: both sides learn of it */
  hs_run(&h, DEV_A1);
  emu_do("port emuB 1 state=active");
  CHECK_INT(h.accept, RAIL_SYSTEM_ERROR);
  CHECK_INT(h.connect, RAIL_REMOTE_ERROR);
  CHECK(hs_logged("its log says why"));
  hs_end(&h);
}

/* ---- failing half-way ---------------------------------------------------- */

TEST(a_first_write_that_is_lost) {
  struct hs h;
  hs_begin(&h);
  emu_do("complete retry_exc_err op=write times=ever");
  hs_listen(&h, DEV_A1);
  hs_run_connect(&h, DEV_B);
  emu_do("reset");
  CHECK_INT(h.connect, RAIL_REMOTE_ERROR);
  CHECK(hs_logged("the first write between port emuB here (GID 10.77.1.1) and port emuA:1 there (GID 10.77.0.1) "
                "failed"));
  CHECK(hs_logged("NCCL_IB_GID_INDEX") && hs_logged("4791"));
  hs_end(&h);
}

/* Ports of 4096 bytes, and a switch between them that takes less: small packets come through. */
TEST(a_network_of_a_smaller_mtu) {
  struct hs h;
  hs_begin(&h);
  emu_do("port emuA 1 packet=1500; port emuB 1 packet=1500");
  hs_listen(&h, DEV_A1);
  hs_run_connect(&h, DEV_B);
  emu_do("port emuA 1 packet=4096; port emuB 1 packet=4096");
  CHECK_INT(h.connect, RAIL_REMOTE_ERROR);
  /* Both sides write; the one whose retries end first says so, and the other is refused. */
  bool connector = hs_logged("the first write between port emuB here (GID 10.77.1.1) and port emuA:1 there");
  bool acceptor = hs_logged("the first write between port emuA:1 here (GID 10.77.0.1) and port emuB there");
  CHECK_MSG((connector || acceptor) && hs_logged("MTUs of both ports"), "%s", hs_lines);
  hs_end(&h);
}

TEST(a_first_write_that_never_comes) {
  struct hs h;
  hs_begin(&h);
  emu_do("stall op=write");
  ib_params.connect_ms = 300;
  hs_listen(&h, DEV_A1);
  hs_run(&h, DEV_B);
  emu_do("reset");
  CHECK(h.connect == RAIL_REMOTE_ERROR);
  CHECK(hs_logged("no first write"));
  hs_end(&h);
}

TEST(modify_is_tried_again) {
  uint64_t longest = UINT64_MAX;
  for (int i = 0; i < HS_TRIES && longest >= 200000000; i++) {
    struct hs h;
    hs_begin(&h);
    ib_params.modify_retry_ms = 1;
    emu_do("fail modify_qp to=rtr times=4 errno=ETIMEDOUT");
    hs_pair(&h, DEV_A1, DEV_B);
    check_common(&h, 1);
    longest = h.longest_ns;
    hs_end(&h);
  }
  CHECK_MSG(longest < 200000000, "a call took %" PRIu64 " ns", longest);
}

/* Every call of the library fails once, at each place: an error on both sides, or none, and nothing is left. */
TEST(whatever_fails) {
  static const char *const calls[] = {"create_cq",  "reg_mr",    "create_qp", "modify_qp", "post_send",
                                      "post_recv",  "query_port", "set_ece"};
  for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
    bool failed = true;
    for (int n = 1; failed; n += n < 40 ? 1 : 100) {
      struct hs h;
      char script[128];
      hs_begin(&h);
      ib_params.connect_ms = 5000;
      snprintf(script, sizeof script, "fail %s from=%d errno=EIO", calls[c], n);
      hs_listen(&h, DEV_FUSED);
      emu_do(script);
      hs_run_connect(&h, DEV_B);
      failed = h.connect != RAIL_OK;
      if (!failed && h.accept == RAIL_IN_PROGRESS) hs_run(&h, DEV_B);
      if (failed) CHECK_MSG(hs_logged("I/O error") || hs_logged("connect"), "%s, %d: no line", calls[c], n);
      emu_do("reset");
      hs_end(&h);
      CHECK_MSG(n < 2000, "%s is called for ever", calls[c]);
      if (!failed && n == 1 && c != 7) CHECK_MSG(false, "%s never failed", calls[c]);
    }
  }
}

TEST(arguments) {
  struct hs h;
  void *comm = NULL;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  CHECK_INT(ib_connect(h.ctx, DEV_A1, NULL, -1, &comm, NULL), RAIL_BAD_ARGUMENT);
  CHECK_INT(ib_connect(h.ctx, 99, h.handle, -1, &comm, NULL), RAIL_BAD_ARGUMENT);
  CHECK(hs_logged("device 99 does not exist"));
  CHECK_INT(ib_connect(NULL, DEV_A1, h.handle, -1, &comm, NULL), RAIL_BAD_ARGUMENT);
  rail_handle_set_attempt(h.handle, 12345);
  CHECK_INT(ib_connect(h.ctx, DEV_A1, h.handle, -1, &comm, NULL), RAIL_BAD_ARGUMENT);
  h.handle[0] ^= 1;
  CHECK_INT(ib_connect(h.ctx, DEV_A1, h.handle, -1, &comm, NULL), RAIL_BAD_ARGUMENT);
  CHECK(hs_logged("was not made by this plugin's listen"));
  CHECK_INT(ib_listen(h.ctx, DEV_A1, NULL, &comm), RAIL_BAD_ARGUMENT);
  CHECK_INT(ib_listen(h.ctx, -1, h.handle, &comm), RAIL_BAD_ARGUMENT);
  CHECK_INT(ib_accept(NULL, &comm, NULL), RAIL_BAD_ARGUMENT);
  CHECK_OK(ib_close_listen(NULL));
  hs_end(&h);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(one_rail), TEST_CASE(to_itself), TEST_CASE(infiniband), TEST_CASE(different_rails_queue_pairs_and_mtus),
    TEST_CASE(different_parameters), TEST_CASE(as_many_queue_pairs_as_there_can_be),
    TEST_CASE(without_the_first_writes), TEST_CASE(without_inline), TEST_CASE(one_side_is_called_much_later),
    TEST_CASE(several_at_one_listener), TEST_CASE(a_thousand_listeners), TEST_CASE(traffic_classes),
    TEST_CASE(timeouts), TEST_CASE(a_gid_for_the_peer), TEST_CASE(a_gid_for_the_listener),
    TEST_CASE(rails_by_subnet), TEST_CASE(infiniband_and_ethernet),
    TEST_CASE(ipv4_and_ipv6), TEST_CASE(ports_that_are_down), TEST_CASE(a_first_write_that_is_lost),
    TEST_CASE(a_network_of_a_smaller_mtu), TEST_CASE(a_first_write_that_never_comes),
    TEST_CASE(modify_is_tried_again), TEST_CASE(whatever_fails),
    TEST_CASE(payload_by_send), TEST_CASE(payload_by_send_on_one_side),
    TEST_CASE(arguments)};
  hs_main();
  return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
