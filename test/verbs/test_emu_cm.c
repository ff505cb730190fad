/* SPDX-License-Identifier: Apache-2.0
 * The emulated RDMA CM: connections from beginning to end, rejections, addresses, what may be done meanwhile.
 * TEST-LIMIT: 240 */
#include <fcntl.h>
#include <sys/resource.h>

#include "test/verbs/cm.h"

/* ---- connections ---------------------------------------------------------------------- */

TEST(a_connection_from_beginning_to_end) {
  struct side listener, client, server = {0};
  side_open(&listener, RDMA_PS_TCP);
  side_open(&client, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.1.1", 4);
  side_resolve(&client, "10.77.1.1", port);
  CHECK_STR(ibv_get_device_name(client.id->verbs->device), "emu1");
  CHECK_INT(client.id->route.num_paths, 1);
  side_make_qp(&client);
  CHECK_OK(side_connect(&client, "question"));
  struct rdma_cm_event *event = next_event(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST);
  CHECK(event->listen_id == listener.id);
  CHECK(event->id->context == &listener);
  CHECK_STR(event->param.conn.private_data, "question");
  CHECK_INT(event->param.conn.private_data_len, 56); /* all that a REQ has room for */
  CHECK(is_zero((const char *)event->param.conn.private_data + 9, 56 - 9));
  CHECK_INT(event->param.conn.responder_resources, 2); /* what the other end starts, this one answers */
  CHECK_INT(event->param.conn.initiator_depth, 4);
  CHECK_INT(event->param.conn.qp_num, client.id->qp->qp_num);
  server.id = event->id;
  CHECK_INT(rdma_get_dst_port(server.id), rdma_get_src_port(client.id));
  CHECK_INT(ntohs(rdma_get_src_port(server.id)), port);
  side_make_qp(&server);
  struct rdma_conn_param p = {.private_data = "answer", .private_data_len = 7, .responder_resources = 1,
                              .initiator_depth = 3, .rnr_retry_count = 7};
  CHECK_OK(rdma_accept(server.id, &p));
  CHECK_OK(rdma_ack_cm_event(event));
  event = next_event(client.channel, RDMA_CM_EVENT_ESTABLISHED);
  CHECK_STR(event->param.conn.private_data, "answer");
  CHECK_INT(event->param.conn.private_data_len, 196);
  CHECK_INT(event->param.conn.responder_resources, 3);
  CHECK_INT(event->param.conn.initiator_depth, 1);
  CHECK_OK(rdma_ack_cm_event(event));
  event = next_event(listener.channel, RDMA_CM_EVENT_ESTABLISHED);
  CHECK(event->id == server.id);
  CHECK_OK(rdma_ack_cm_event(event));
  send_bytes(&client, &server);
  send_bytes(&server, &client);
  CHECK_OK(rdma_disconnect(client.id));
  expect(listener.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
  CHECK(!has_event(client.channel)); /* not before the other end has answered */
  CHECK_OK(rdma_disconnect(server.id));
  expect(client.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
  expect(client.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
  expect(listener.channel, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
  close_all(&listener, &client, &server);
}

TEST(a_rejection_brings_its_data) {
  struct side listener, client, server;
  side_open(&listener, RDMA_PS_TCP);
  side_open(&client, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 4);
  side_resolve(&client, "10.77.0.1", port);
  side_make_qp(&client);
  CHECK_OK(side_connect(&client, NULL));
  side_take(&server, &listener);
  CHECK_OK(rdma_reject(server.id, "no room", 8));
  struct rdma_cm_event *event = next_event(client.channel, RDMA_CM_EVENT_REJECTED);
  CHECK_INT(event->status, 28); /* by the consumer */
  CHECK_STR(event->param.conn.private_data, "no room");
  CHECK_INT(event->param.conn.private_data_len, 148);
  CHECK_OK(rdma_ack_cm_event(event));
  close_all(&listener, &client, &server);
}

TEST(nobody_listens) {
  struct side client;
  side_open(&client, RDMA_PS_TCP);
  side_resolve(&client, "10.77.0.1", 1);
  side_make_qp(&client);
  CHECK_OK(side_connect(&client, NULL));
  expect(client.channel, RDMA_CM_EVENT_REJECTED, 8); /* no such service */
  side_close(&client);
}

TEST(addresses_belong_to_ports) {
  static const struct { const char *ip, *device; } all[] = {
    {"10.77.0.1", "emu0"}, {"10.77.1.1", "emu1"}, {"127.77.1.1", "emu1"}, {"127.0.0.1", "emu0"}, {"127.9.9.9", "emu0"}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    struct side s;
    side_open(&s, RDMA_PS_TCP);
    struct sockaddr_in a = address(all[i].ip, 0);
    CHECK_OK(rdma_bind_addr(s.id, any_address(&a)));
    CHECK_STR(ibv_get_device_name(s.id->verbs->device), all[i].device);
    side_close(&s);
  }
  struct side s;
  side_open(&s, RDMA_PS_TCP);
  struct sockaddr_in nowhere = address("198.51.100.7", 5);
  CHECK_INT(rdma_bind_addr(s.id, any_address(&nowhere)), -1);
  CHECK_INT(errno, EADDRNOTAVAIL);
  CHECK_OK(rdma_resolve_addr(s.id, NULL, any_address(&nowhere), 1000));
  expect(s.channel, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH);
  side_close(&s);
}

TEST(a_port_is_taken_once) {
  struct side a, b, c;
  side_open(&a, RDMA_PS_TCP);
  side_open(&b, RDMA_PS_TCP);
  side_open(&c, RDMA_PS_UDP);
  uint16_t port = side_listen(&a, "10.77.0.1", 1);
  struct sockaddr_in same = address("10.77.0.1", port);
  CHECK_INT(rdma_bind_addr(b.id, any_address(&same)), -1);
  CHECK_INT(errno, EADDRINUSE);
  CHECK_OK(rdma_bind_addr(c.id, any_address(&same))); /* another port space */
  side_close(&a);
  CHECK_OK(rdma_bind_addr(b.id, any_address(&same)));
  side_close(&b);
  side_close(&c);
}

TEST(listening_on_all_addresses) {
  static const char *const ips[] = {"10.77.0.1", "10.77.1.1", "127.0.0.1"};
  struct side listener, client, server;
  side_open(&listener, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "0.0.0.0", 4);
  CHECK(!listener.id->verbs);
  for (size_t i = 0; i < 3; i++) {
    side_open(&client, RDMA_PS_TCP);
    side_resolve(&client, ips[i], port);
    side_make_qp(&client);
    CHECK_OK(side_connect(&client, NULL));
    side_take(&server, &listener);
    CHECK_STR(ibv_get_device_name(server.id->verbs->device), i == 1 ? "emu1" : "emu0");
    CHECK_OK(rdma_reject(server.id, NULL, 0));
    side_close(&server);
    side_close(&client);
  }
  side_close(&listener);
}

TEST(without_a_queue_pair_of_the_id) {
  struct side listener, client, server;
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
  int mask;
  side_open(&listener, RDMA_PS_TCP);
  side_open(&client, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 4);
  side_resolve(&client, "10.77.0.1", port);
  struct rdma_conn_param p = param_with(NULL);
  p.qp_num = 77;
  CHECK_OK(rdma_connect(client.id, &p));
  side_take(&server, &listener);
  p.qp_num = 88;
  CHECK_OK(rdma_accept(server.id, &p));
  struct rdma_cm_event *event = next_event(client.channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
  CHECK_INT(event->param.conn.qp_num, 88);
  CHECK_OK(rdma_ack_cm_event(event));
  CHECK_OK(rdma_init_qp_attr(client.id, &attr, &mask));
  CHECK_INT(attr.dest_qp_num, 88);
  CHECK(mask & IBV_QP_DEST_QPN);
  CHECK(!has_event(listener.channel));
  CHECK_OK(rdma_establish(client.id));
  expect(listener.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
  close_all(&listener, &client, &server);
}

/* In INIT, as a program that keeps its queue pairs from its ids makes it. */
static struct ibv_qp *loose_qp(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq) {
  struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RC};
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
  CHECK(pd->context == context);
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  CHECK(qp);
  CHECK_OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  return qp;
}

static void check_is_connected(struct ibv_qp *qp, const struct ibv_qp *peer, uint8_t traffic_class) {
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  CHECK_OK(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV, &init));
  CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == peer->qp_num);
  CHECK_INT(attr.ah_attr.grh.traffic_class, traffic_class);
}

/* An iWARP device moves the queue pairs that both sides name, and there is no response to answer. */
TEST(iwarp_moves_queue_pairs_by_number) {
  struct side listener, client, server;
  uint8_t tos = 104;
  side_open(&listener, RDMA_PS_TCP);
  side_open(&client, RDMA_PS_TCP);
  CHECK_OK(rdma_set_option(listener.id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1));
  uint16_t port = side_listen(&listener, "10.77.2.1", 4);
  side_resolve(&client, "10.77.2.1", port);
  struct ibv_pd *pd = ibv_alloc_pd(client.id->verbs);
  struct ibv_cq *cq = ibv_create_cq(client.id->verbs, 32, NULL, NULL, 0);
  CHECK(pd && cq);
  struct ibv_qp *a = loose_qp(client.id->verbs, pd, cq), *b = loose_qp(client.id->verbs, pd, cq);
  struct rdma_conn_param p = param_with("hello");
  p.qp_num = a->qp_num;
  CHECK_OK(rdma_connect(client.id, &p));
  side_take(&server, &listener);
  p.qp_num = b->qp_num;
  CHECK_OK(rdma_accept(server.id, &p));
  struct rdma_cm_event *event = next_event(client.channel, RDMA_CM_EVENT_ESTABLISHED);
  CHECK(event->param.conn.private_data_len == 6 && memcmp(event->param.conn.private_data, "hello", 6) == 0);
  CHECK_OK(rdma_ack_cm_event(event));
  expect(listener.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
  CHECK_INT(rdma_establish(client.id), -1);
  check_is_connected(a, b, 0);
  check_is_connected(b, a, 104);
  CHECK_OK(ibv_destroy_qp(a));
  CHECK_OK(ibv_destroy_qp(b));
  CHECK_OK(ibv_destroy_cq(cq));
  CHECK_OK(ibv_dealloc_pd(pd));
  close_all(&listener, &client, &server);
}

TEST(datagrams) {
  struct side listener, client, server;
  side_open(&listener, RDMA_PS_UDP);
  side_open(&client, RDMA_PS_UDP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 4);
  side_resolve(&client, "10.77.0.1", port);
  side_make_qp(&client);
  CHECK_OK(side_connect(&client, "who"));
  struct rdma_cm_event *event = next_event(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST);
  CHECK_STR(event->param.ud.private_data, "who");
  memset(&server, 0, sizeof server);
  server.id = event->id;
  CHECK_OK(rdma_ack_cm_event(event));
  side_make_qp(&server);
  struct rdma_conn_param p = param_with("me");
  CHECK_OK(rdma_accept(server.id, &p));
  event = next_event(client.channel, RDMA_CM_EVENT_ESTABLISHED);
  CHECK_INT(event->param.ud.qp_num, server.id->qp->qp_num);
  CHECK_INT(event->param.ud.qkey, RDMA_UDP_QKEY);
  CHECK_STR(event->param.ud.private_data, "me");
  struct ibv_ah *ah = ibv_create_ah(client.id->pd, &event->param.ud.ah_attr);
  CHECK(ah);
  CHECK_OK(ibv_destroy_ah(ah));
  CHECK_OK(rdma_ack_cm_event(event));
  close_all(&listener, &client, &server);
}

/* ---- what may be done meanwhile -------------------------------------------------------- */

TEST(a_channel_that_does_not_wait) {
  struct side s;
  struct rdma_cm_event *event;
  side_open(&s, RDMA_PS_TCP);
  CHECK(fcntl(s.channel->fd, F_SETFL, O_NONBLOCK) == 0);
  CHECK_INT(rdma_get_cm_event(s.channel, &event), -1);
  CHECK_INT(errno, EAGAIN);
  struct sockaddr_in a = address("10.77.0.1", 9);
  CHECK_OK(rdma_resolve_addr(s.id, NULL, any_address(&a), 1000));
  expect(s.channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
  CHECK(!has_event(s.channel));
  CHECK_INT(rdma_get_cm_event(s.channel, &event), -1);
  CHECK_INT(errno, EAGAIN);
  side_close(&s);
}

TEST(an_id_moves_to_another_channel_with_its_events) {
  struct side listener, client, server;
  connect_all(&listener, &client, &server, "10.77.0.1");
  struct rdma_event_channel *other = rdma_create_event_channel();
  CHECK_OK(rdma_disconnect(client.id));
  struct pollfd fd = {.fd = listener.channel->fd, .events = POLLIN};
  CHECK_INT(poll(&fd, 1, WAIT_MS), 1); /* DISCONNECTED is there, and unread */
  CHECK_OK(rdma_migrate_id(server.id, other));
  CHECK(server.id->channel == other);
  CHECK(!has_event(listener.channel));
  expect(other, RDMA_CM_EVENT_DISCONNECTED, 0);
  CHECK_OK(rdma_disconnect(server.id));
  expect(other, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
  close_all(&listener, &client, &server);
  rdma_destroy_event_channel(other);
}

/* A request that came, and was given up again: two events of an id that nobody has seen. */
static void leave_a_request(struct side *listener) {
  struct side client;
  uint16_t port = side_listen(listener, "10.77.0.1", 8);
  side_open(&client, RDMA_PS_TCP);
  side_resolve(&client, "10.77.0.1", port);
  side_make_qp(&client);
  CHECK_OK(side_connect(&client, NULL));
  struct pollfd fd = {.fd = listener->channel->fd, .events = POLLIN};
  CHECK_INT(poll(&fd, 1, WAIT_MS), 1);
  side_close(&client);
}

TEST(a_listener_moves_with_its_requests) {
  struct side listener, server;
  side_open(&listener, RDMA_PS_TCP);
  leave_a_request(&listener);
  struct rdma_event_channel *old = listener.channel;
  listener.channel = rdma_create_event_channel();
  CHECK_OK(rdma_migrate_id(listener.id, listener.channel));
  CHECK(!has_event(old));
  rdma_destroy_event_channel(old); /* nothing is to come there any more */
  side_take(&server, &listener);
  CHECK(server.id->channel == listener.channel);
  expect(listener.channel, RDMA_CM_EVENT_REJECTED, 28);
  side_close(&server);
  side_close(&listener);
}

TEST(a_listener_goes_with_all_events_of_its_requests) {
  struct side listener;
  side_open(&listener, RDMA_PS_TCP);
  leave_a_request(&listener);
  poll(NULL, 0, 100); /* for the second event: nothing tells that it is there */
  CHECK_OK(rdma_destroy_id(listener.id));
  listener.id = NULL;
  CHECK(!has_event(listener.channel));
  side_close(&listener);
}

TEST(a_queue_pair_that_fails_leaves_nothing) {
  long (*live)(const char *);
  void *symbol = dlsym(RTLD_DEFAULT, "rail_emu_live");
  struct ibv_qp_init_attr init = {.cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RC};
  struct side s;
  CHECK(symbol);
  memcpy(&live, &symbol, sizeof live);
  side_open(&s, RDMA_PS_TCP);
  side_resolve(&s, "10.77.0.1", 9);
  long pds = live("pd"), cqs = live("cq");
  static const char *const faults[] = {"fail create_cq", "fail create_cq from=2", "fail create_qp", "fail modify_qp"};
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    CHECK(emu_command(faults[i]));
    CHECK_MSG(rdma_create_qp(s.id, NULL, &init) != 0, "%s: it does not fail", faults[i]);
    CHECK_MSG(live("pd") == pds && live("cq") == cqs, "%s: %ld PDs, %ld CQs; before %ld, %ld", faults[i], live("pd"),
              live("cq"), pds, cqs);
    CHECK(!s.id->qp && !s.id->pd && !s.id->send_cq);
    CHECK(emu_command("reset"));
  }
  side_make_qp(&s);
  side_close(&s);
}

TEST(requests_that_nobody_reads_are_rejected_with_their_listener) {
  struct side listener, clients[3];
  side_open(&listener, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 8);
  for (int i = 0; i < 3; i++) {
    side_open(&clients[i], RDMA_PS_TCP);
    side_resolve(&clients[i], "10.77.0.1", port);
    side_make_qp(&clients[i]);
    CHECK_OK(side_connect(&clients[i], NULL));
  }
  struct pollfd fd = {.fd = listener.channel->fd, .events = POLLIN};
  CHECK_INT(poll(&fd, 1, WAIT_MS), 1);
  side_close(&listener);
  for (int i = 0; i < 3; i++) {
    expect(clients[i].channel, RDMA_CM_EVENT_REJECTED, 28);
    side_close(&clients[i]);
  }
}

TEST(a_full_backlog_rejects) {
  struct side listener, a, b, server;
  side_open(&listener, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 1);
  side_open(&a, RDMA_PS_TCP);
  side_resolve(&a, "10.77.0.1", port);
  side_make_qp(&a);
  CHECK_OK(side_connect(&a, NULL));
  struct pollfd fd = {.fd = listener.channel->fd, .events = POLLIN};
  CHECK_INT(poll(&fd, 1, WAIT_MS), 1);
  side_open(&b, RDMA_PS_TCP);
  side_resolve(&b, "10.77.0.1", port);
  side_make_qp(&b);
  CHECK_OK(side_connect(&b, NULL));
  expect(b.channel, RDMA_CM_EVENT_REJECTED, 28);
  side_take(&server, &listener);
  side_close(&server);
  expect(a.channel, RDMA_CM_EVENT_REJECTED, 28);
  side_close(&a);
  side_close(&b);
  side_close(&listener);
}

/* Calls in a wrong state say so, and change nothing. */
TEST(calls_at_the_wrong_time) {
  struct side s;
  struct rdma_conn_param p = param_with(NULL);
  side_open(&s, RDMA_PS_TCP);
  CHECK_INT(rdma_resolve_route(s.id, 1000), -1);
  CHECK_INT(errno, EINVAL);
  CHECK_INT(rdma_connect(s.id, &p), -1);
  CHECK_INT(rdma_accept(s.id, &p), -1);
  CHECK_INT(rdma_reject(s.id, NULL, 0), -1);
  CHECK_INT(rdma_disconnect(s.id), -1);
  CHECK_INT(rdma_establish(s.id), -1);
  side_resolve(&s, "10.77.0.1", 9);
  CHECK_INT(rdma_listen(s.id, 1), -1);
  side_make_qp(&s);
  char long_data[57] = {0};
  p.private_data = long_data;
  p.private_data_len = sizeof long_data;
  CHECK_INT(rdma_connect(s.id, &p), -1);
  CHECK_INT(errno, EINVAL);
  p.private_data_len = 56;
  p.responder_resources = 200; /* more than the device has */
  CHECK_INT(rdma_connect(s.id, &p), -1);
  side_close(&s);
}

/* As many as descriptors suffice for. They have no queue pairs of the CM's: what it costs is bench/emu_peers.c. */
TEST(a_thousand_connect_at_once) {
  enum { MOST = 1000 };
  static struct rdma_cm_id *clients[MOST], *servers[MOST];
  struct rlimit files;
  struct side listener, all;
  int accepted = 0, answered = 0, established = 0;
  CHECK_OK(getrlimit(RLIMIT_NOFILE, &files));
  files.rlim_cur = files.rlim_max;
  CHECK_OK(setrlimit(RLIMIT_NOFILE, &files));
  int n = files.rlim_max > 2 * MOST + 100 ? MOST : (int)(files.rlim_max - 100) / 2;
  side_open(&listener, RDMA_PS_TCP);
  side_open(&all, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", MOST);
  struct sockaddr_in to = address("10.77.0.1", port);
  struct rdma_conn_param p = param_with(NULL);
  for (int i = 0; i < n; i++) {
    CHECK_OK(rdma_create_id(all.channel, &clients[i], NULL, RDMA_PS_TCP));
    CHECK_OK(rdma_resolve_addr(clients[i], NULL, any_address(&to), 1000));
    expect(all.channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    CHECK_OK(rdma_resolve_route(clients[i], 1000));
    expect(all.channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
  }
  for (int i = 0; i < n; i++) CHECK_OK(rdma_connect(clients[i], &p));
  for (; accepted < n; accepted++) {
    struct rdma_cm_event *event = next_event(listener.channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    servers[accepted] = event->id;
    CHECK_OK(rdma_ack_cm_event(event));
  }
  for (int i = 0; i < n; i++) CHECK_OK(rdma_accept(servers[i], &p));
  for (; answered < n; answered++) {
    struct rdma_cm_event *event = next_event(all.channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
    CHECK_OK(rdma_establish(event->id));
    CHECK_OK(rdma_ack_cm_event(event));
  }
  for (; established < n; established++) expect(listener.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
  for (int i = 0; i < n; i++) {
    CHECK_OK(rdma_destroy_id(clients[i]));
    CHECK_OK(rdma_destroy_id(servers[i]));
  }
  side_close(&all);
  side_close(&listener);
}

static const struct tap_case cases[] = {
  TEST_CASE(a_connection_from_beginning_to_end),
  TEST_CASE(a_rejection_brings_its_data),
  TEST_CASE(nobody_listens),
  TEST_CASE(addresses_belong_to_ports),
  TEST_CASE(a_port_is_taken_once),
  TEST_CASE(listening_on_all_addresses),
  TEST_CASE(without_a_queue_pair_of_the_id),
  TEST_CASE(iwarp_moves_queue_pairs_by_number),
  TEST_CASE(datagrams),
  TEST_CASE(a_channel_that_does_not_wait),
  TEST_CASE(an_id_moves_to_another_channel_with_its_events),
  TEST_CASE(a_listener_moves_with_its_requests),
  TEST_CASE(a_listener_goes_with_all_events_of_its_requests),
  TEST_CASE(a_queue_pair_that_fails_leaves_nothing),
  TEST_CASE(requests_that_nobody_reads_are_rejected_with_their_listener),
  TEST_CASE(a_full_backlog_rejects),
  TEST_CASE(calls_at_the_wrong_time),
  TEST_CASE(a_thousand_connect_at_once)};

int main(int argc, char **argv) {
  setenv("RAIL_EMU", "device emu0; device emu1; device rnic transport=iwarp", 1);
  return cm_test_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
