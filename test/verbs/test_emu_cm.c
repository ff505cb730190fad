/* SPDX-License-Identifier: Apache-2.0
 * The emulated RDMA CM: connections, rejections, faults, processes that end. TEST-LIMIT: 240 */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "emu/cm/cm.h"
#include "test/verbs/verbs.h"

/* One side: its channel, its id, what it has of verbs. */
struct side {
  struct rdma_event_channel *channel;
  struct rdma_cm_id *id;
  struct ibv_mr *mr;
  char data[256];
};

static struct sockaddr_in address(const char *ip, uint16_t port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  CHECK(inet_pton(AF_INET, ip, &a.sin_addr) == 1);
  return a;
}

static struct sockaddr *any_address(struct sockaddr_in *a) { return (struct sockaddr *)(void *)a; }

/* The next event of a channel; the caller acknowledges it. */
static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted) {
  struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
  struct rdma_cm_event *event;
  CHECK_MSG(poll(&fd, 1, WAIT_MS) == 1, "no %s within %d ms", rdma_event_str(wanted), WAIT_MS);
  CHECK_OK(rdma_get_cm_event(channel, &event));
  CHECK_MSG(event->event == wanted, "%s with status %d, expected %s", rdma_event_str(event->event), event->status,
            rdma_event_str(wanted));
  return event;
}

/* And that is all to be known of it. */
static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted, int status) {
  struct rdma_cm_event *event = next_event(channel, wanted);
  CHECK_INT(event->status, status);
  CHECK_OK(rdma_ack_cm_event(event));
}

static bool has_event(const struct rdma_event_channel *channel) {
  struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
  return poll(&fd, 1, 0) == 1;
}

static void side_open(struct side *s, enum rdma_port_space ps) {
  memset(s, 0, sizeof *s);
  s->channel = rdma_create_event_channel();
  CHECK(s->channel);
  CHECK_OK(rdma_create_id(s->channel, &s->id, s, ps));
}

static void side_make_qp(struct side *s) {
  struct ibv_qp_init_attr init = {.cap = {8, 8, 1, 1, 0}, .qp_type = s->id->qp_type, .sq_sig_all = 1};
  CHECK_OK(rdma_create_qp(s->id, NULL, &init));
  s->mr = ibv_reg_mr(s->id->pd, s->data, sizeof s->data, ALL_ACCESS);
  CHECK(s->mr);
}

static void side_close(struct side *s) {
  if (s->mr) CHECK_OK(ibv_dereg_mr(s->mr));
  if (s->id && s->id->qp) rdma_destroy_qp(s->id);
  if (s->id) CHECK_OK(rdma_destroy_id(s->id));
  if (s->channel) rdma_destroy_event_channel(s->channel);
}

/* Listens there; the port that it got. */
static uint16_t side_listen(struct side *s, const char *ip, int backlog) {
  struct sockaddr_in a = address(ip, 0);
  CHECK_OK(rdma_bind_addr(s->id, any_address(&a)));
  CHECK_OK(rdma_listen(s->id, backlog));
  uint16_t port = ntohs(rdma_get_src_port(s->id));
  CHECK(port);
  return port;
}

static void side_resolve(struct side *s, const char *ip, uint16_t port) {
  struct sockaddr_in a = address(ip, port);
  CHECK_OK(rdma_resolve_addr(s->id, NULL, any_address(&a), 1000));
  expect(s->channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
  CHECK_OK(rdma_resolve_route(s->id, 1000));
  expect(s->channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
}

static struct rdma_conn_param param_with(const char *data) {
  return (struct rdma_conn_param){.private_data = data, .private_data_len = (uint8_t)(data ? strlen(data) + 1 : 0),
                                  .responder_resources = 4, .initiator_depth = 2, .retry_count = 7,
                                  .rnr_retry_count = 7};
}

static int side_connect(struct side *s, const char *data) {
  struct rdma_conn_param p = param_with(data);
  return rdma_connect(s->id, &p);
}

/* A request that arrived, as a side of its own. */
static void side_take(struct side *s, struct side *listener) {
  memset(s, 0, sizeof *s);
  struct rdma_cm_event *event = next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
  CHECK(event->listen_id == listener->id);
  s->id = event->id;
  CHECK_OK(rdma_ack_cm_event(event));
}

/* `server` stays on the listener's channel. */
static void connect_all(struct side *listener, struct side *client, struct side *server, const char *ip) {
  side_open(listener, RDMA_PS_TCP);
  side_open(client, RDMA_PS_TCP);
  uint16_t port = side_listen(listener, ip, 4);
  side_resolve(client, ip, port);
  side_make_qp(client);
  CHECK_OK(side_connect(client, NULL));
  side_take(server, listener);
  side_make_qp(server);
  struct rdma_conn_param p = param_with(NULL);
  CHECK_OK(rdma_accept(server->id, &p));
  expect(client->channel, RDMA_CM_EVENT_ESTABLISHED, 0);
  expect(listener->channel, RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void close_all(struct side *listener, struct side *client, struct side *server) {
  side_close(client);
  side_close(server);
  side_close(listener);
}

static void wait_completion(struct ibv_cq *cq, enum ibv_wc_status wanted) {
  struct ibv_wc wc;
  long end = now_ms() + WAIT_MS;
  while (ibv_poll_cq(cq, 1, &wc) == 0) CHECK_MSG(now_ms() < end, "no completion within %d ms", WAIT_MS);
  CHECK_INT(wc.status, wanted);
}

static void send_bytes(struct side *from, struct side *to) {
  struct ibv_sge out = {(uintptr_t)from->data, sizeof from->data, from->mr->lkey};
  struct ibv_sge in = {(uintptr_t)to->data, sizeof to->data, to->mr->lkey};
  struct ibv_recv_wr recv = {.sg_list = &in, .num_sge = 1}, *bad_recv;
  struct ibv_send_wr send = {.sg_list = &out, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
  fill(from->data, sizeof from->data, 5);
  memset(to->data, 0, sizeof to->data);
  CHECK_OK(ibv_post_recv(to->id->qp, &recv, &bad_recv));
  CHECK_OK(ibv_post_send(from->id->qp, &send, &bad));
  wait_completion(from->id->send_cq, IBV_WC_SUCCESS);
  wait_completion(to->id->recv_cq, IBV_WC_SUCCESS);
  CHECK(memcmp(from->data, to->data, sizeof from->data) == 0);
}

static bool is_zero(const void *data, size_t size) {
  const char *c = data;
  for (size_t i = 0; i < size; i++)
    if (c[i]) return false;
  return true;
}

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

/* ---- endpoints: calls that wait --------------------------------------------------------- */

static char service[8];

static void *serve_endpoint(void *arg) {
  struct rdma_cm_id *listen = arg, *id = NULL;
  struct rdma_conn_param p = param_with(NULL);
  bool good = rdma_get_request(listen, &id) == 0 && rdma_accept(id, &p) == 0 && rdma_disconnect(id) == 0;
  if (id) rdma_destroy_ep(id);
  return good ? listen : NULL;
}

TEST(endpoints) {
  struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *res;
  struct ibv_qp_init_attr init = {.cap = {4, 4, 1, 1, 0}, .sq_sig_all = 1};
  struct rdma_cm_id *listen, *id;
  pthread_t thread;
  void *good;
  CHECK_OK(rdma_getaddrinfo("10.77.0.1", NULL, &hints, &res));
  CHECK_OK(rdma_create_ep(&listen, res, NULL, &init));
  rdma_freeaddrinfo(res);
  CHECK_OK(rdma_listen(listen, 1));
  snprintf(service, sizeof service, "%u", ntohs(rdma_get_src_port(listen)));
  CHECK_OK(pthread_create(&thread, NULL, serve_endpoint, listen));
  hints.ai_flags = 0;
  CHECK_OK(rdma_getaddrinfo("10.77.0.1", service, &hints, &res));
  CHECK_OK(rdma_create_ep(&id, res, NULL, &init));
  rdma_freeaddrinfo(res);
  CHECK_OK(rdma_connect(id, NULL));
  CHECK_OK(rdma_disconnect(id));
  CHECK_OK(pthread_join(thread, &good));
  CHECK(good);
  rdma_destroy_ep(id);
  rdma_destroy_ep(listen);
  CHECK_OK(rdma_getaddrinfo("10.77.0.1", "1", &hints, &res));
  CHECK_OK(rdma_create_ep(&id, res, NULL, &init));
  rdma_freeaddrinfo(res);
  CHECK_INT(rdma_connect(id, NULL), -1);
  CHECK_INT(errno, ECONNREFUSED);
  rdma_destroy_ep(id);
}

/* ---- faults -------------------------------------------------------------------------------- */

TEST(ports_that_are_down) {
  struct side listener, client;
  struct sockaddr_in src = address("10.77.0.1", 0), dst = address("10.77.1.1", 0);
  side_open(&listener, RDMA_PS_TCP);
  dst.sin_port = htons(side_listen(&listener, "10.77.1.1", 4));
  CHECK(emu_command("cm answer ms=300; port emu1 1 state=down"));
  side_open(&client, RDMA_PS_TCP); /* its own port is up: it waits in vain */
  CHECK_OK(rdma_resolve_addr(client.id, any_address(&src), any_address(&dst), 1000));
  expect(client.channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
  CHECK_OK(rdma_resolve_route(client.id, 1000));
  expect(client.channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
  side_make_qp(&client);
  CHECK_OK(side_connect(&client, NULL));
  expect(client.channel, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
  CHECK(!has_event(listener.channel));
  side_close(&client);
  side_open(&client, RDMA_PS_TCP);
  CHECK_OK(rdma_resolve_addr(client.id, NULL, any_address(&dst), 1000));
  expect(client.channel, RDMA_CM_EVENT_ADDR_ERROR, -ENETUNREACH);
  side_close(&client);
  side_close(&listener);
  CHECK(emu_command("port emu1 1 state=active; reset"));
}

TEST(an_address_or_a_route_that_does_not_resolve) {
  struct sockaddr_in dst = address("10.77.1.1", 9);
  struct side s;
  side_open(&s, RDMA_PS_TCP);
  CHECK(emu_command("cm lost event=addr_resolved; cm reject event=route_resolved; cm late event=addr_resolved us=1000"));
  CHECK_OK(rdma_resolve_addr(s.id, NULL, any_address(&dst), 50));
  expect(s.channel, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
  CHECK_OK(rdma_resolve_addr(s.id, NULL, any_address(&dst), 50));
  expect(s.channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
  CHECK_OK(rdma_resolve_route(s.id, 50));
  expect(s.channel, RDMA_CM_EVENT_ROUTE_ERROR, -EHOSTUNREACH);
  CHECK_OK(rdma_resolve_route(s.id, 50));
  expect(s.channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
  side_close(&s);
  CHECK(emu_command("reset"));
}

/* The events that a statement leads to; -1: none. */
struct outcome {
  const char *statement;
  int client, client_status, server, server_status;
};

static void check_outcome(const struct outcome *o) {
  struct side listener, client, server = {0};
  side_open(&listener, RDMA_PS_TCP);
  side_open(&client, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 4);
  side_resolve(&client, "10.77.0.1", port);
  side_make_qp(&client);
  CHECK(emu_command("cm answer ms=400"));
  CHECK(emu_command(o->statement));
  CHECK_OK(side_connect(&client, NULL));
  if (!strstr(o->statement, "request") || strstr(o->statement, "late")) {
    side_take(&server, &listener);
    side_make_qp(&server);
    struct rdma_conn_param p = param_with(NULL);
    CHECK_OK(rdma_accept(server.id, &p));
  }
  if (o->client >= 0) expect(client.channel, (enum rdma_cm_event_type)o->client, o->client_status);
  if (o->server >= 0) expect(listener.channel, (enum rdma_cm_event_type)o->server, o->server_status);
  CHECK(emu_command("reset"));
  close_all(&listener, &client, &server);
}

TEST(messages_that_are_lost_late_or_rejected) {
  static const struct outcome outcomes[] = {
    {"cm lost event=connect_request", RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, -1, 0},
    {"cm reject event=connect_request", RDMA_CM_EVENT_REJECTED, 28, -1, 0},
    {"cm late event=connect_request us=30000", RDMA_CM_EVENT_ESTABLISHED, 0, RDMA_CM_EVENT_ESTABLISHED, 0},
    /* The server waits as long; it may hear of the client's giving up before. */
    {"cm lost event=connect_response", RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, -1, 0},
    {"cm reject event=connect_response", RDMA_CM_EVENT_REJECTED, 28, RDMA_CM_EVENT_REJECTED, 28},
    {"cm late event=connect_response us=30000", RDMA_CM_EVENT_ESTABLISHED, 0, RDMA_CM_EVENT_ESTABLISHED, 0},
    {"cm lost event=established", RDMA_CM_EVENT_ESTABLISHED, 0, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT},
    {"cm late event=established us=30000", RDMA_CM_EVENT_ESTABLISHED, 0, RDMA_CM_EVENT_ESTABLISHED, 0}};
  for (size_t i = 0; i < sizeof outcomes / sizeof outcomes[0]; i++) {
    printf("# %s\n", outcomes[i].statement);
    check_outcome(&outcomes[i]);
  }
}

TEST(a_goodbye_that_is_lost) {
  struct side listener, client, server;
  connect_all(&listener, &client, &server, "10.77.0.1");
  CHECK(emu_command("cm answer ms=200; cm lost event=disconnected"));
  CHECK_OK(rdma_disconnect(client.id));
  expect(client.channel, RDMA_CM_EVENT_DISCONNECTED, -ETIMEDOUT);
  CHECK(!has_event(listener.channel));
  CHECK(emu_command("reset"));
  close_all(&listener, &client, &server);
}

/* ---- other processes --------------------------------------------------------------------------- */

static void say(int fd, const void *what, size_t size) { CHECK(write(fd, what, size) == (ssize_t)size); }
static void hear(int fd, void *what, size_t size) { CHECK(read(fd, what, size) == (ssize_t)size); }

struct process {
  pid_t pid;
  int fd;
};

static struct process start(void (*body)(int fd)) {
  int fds[2];
  CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds));
  fflush(stdout);
  struct process p = {.pid = fork(), .fd = fds[0]};
  CHECK(p.pid >= 0);
  if (p.pid == 0) {
    close(fds[0]);
    if (setjmp(tap_end_) != 0) _exit(1);
    body(fds[1]);
    _exit(0);
  }
  close(fds[1]);
  return p;
}

/* Accepts one connection, and sees its end. */
static void serve_one(int fd) {
  struct side listener, server;
  side_open(&listener, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 4);
  say(fd, &port, sizeof port);
  side_take(&server, &listener);
  side_make_qp(&server);
  struct rdma_conn_param p = param_with(NULL);
  CHECK_OK(rdma_accept(server.id, &p));
  expect(listener.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
  say(fd, "c", 1);
  expect(listener.channel, RDMA_CM_EVENT_DISCONNECTED, 0);
  side_close(&server);
  side_close(&listener);
}

static void connect_one(int fd) {
  struct side client;
  uint16_t port;
  hear(fd, &port, sizeof port);
  side_open(&client, RDMA_PS_TCP);
  side_resolve(&client, "10.77.0.1", port);
  side_make_qp(&client);
  CHECK_OK(side_connect(&client, NULL));
  expect(client.channel, RDMA_CM_EVENT_ESTABLISHED, 0);
  for (;;) pause();
}

/* The first case: its parent has no device open and no threads, so that ThreadSanitizer can follow the others. */
TEST(a_killed_process_disconnects) {
  struct process server = start(serve_one), client = start(connect_one);
  uint16_t port;
  char c;
  int status;
  hear(server.fd, &port, sizeof port);
  say(client.fd, &port, sizeof port);
  hear(server.fd, &c, 1);
  kill(client.pid, SIGKILL);
  CHECK(waitpid(client.pid, NULL, 0) == client.pid);
  CHECK(waitpid(server.pid, &status, 0) == server.pid);
  CHECK_INT(status, 0);
  close(server.fd);
  close(client.fd);
}

/* A socket that is connected with the one that listens for this port. */
static int dial_raw(uint16_t port) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  char line[512], part[32];
  size_t len = 0;
  FILE *in = fopen("/proc/net/unix", "re");
  CHECK(in);
  snprintf(part, sizeof part, ".%u.::ffff:", port);
  while (fgets(line, sizeof line, in)) {
    char *name = strstr(line, "@rail-emu-cm.");
    if (!name || !strstr(name, part) || !strstr(name, "10.77.0.1")) continue;
    name[strcspn(name, "\n")] = 0;
    len = strlen(name);
    memcpy(to.sun_path + 1, name + 1, len - 1);
  }
  fclose(in);
  CHECK_MSG(len, "no socket listens for port %u", port);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  CHECK(fd >= 0);
  CHECK_OK(connect(fd, (struct sockaddr *)(void *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)));
  return fd;
}

TEST(nonsense_hurts_nobody) {
  struct side listener, client, server = {0};
  uint64_t random = 88172645463325252u;
  side_open(&listener, RDMA_PS_TCP);
  uint16_t port = side_listen(&listener, "10.77.0.1", 64);
  for (int round = 0; round < 200; round++) {
    _Alignas(struct cm_message) unsigned char bytes[600];
    int fd = dial_raw(port);
    for (size_t i = 0; i < sizeof bytes; i++) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      bytes[i] = (unsigned char)(random >> 32);
    }
    struct cm_message *m = (struct cm_message *)(void *)bytes; /* what is looked at first is right in some */
    m->magic = 0x316d6372;
    m->type = (uint8_t)(round % 8);
    m->udp = 0;
    m->mtu = m->retry_count = m->rnr_retry_count = 3;
    size_t size = round % 3 ? sizeof *m : 1 + random % (sizeof bytes - 1);
    CHECK(send(fd, bytes, size, MSG_NOSIGNAL) > 0);
    close(fd);
  }
  side_open(&client, RDMA_PS_TCP);
  side_resolve(&client, "10.77.0.1", port);
  side_make_qp(&client);
  CHECK_OK(side_connect(&client, "good"));
  for (;;) { /* some of the nonsense may have been a request */
    struct rdma_cm_event *event;
    CHECK_OK(rdma_get_cm_event(listener.channel, &event));
    bool is_request = event->event == RDMA_CM_EVENT_CONNECT_REQUEST;
    bool good = is_request && strcmp(event->param.conn.private_data, "good") == 0;
    server.id = event->id;
    CHECK_OK(rdma_ack_cm_event(event));
    if (good) break;
    if (is_request) CHECK_OK(rdma_destroy_id(server.id));
  }
  close_all(&listener, &client, &server);
}

static const struct tap_case cases[] = {
  TEST_CASE(a_killed_process_disconnects),
  TEST_CASE(a_connection_from_beginning_to_end),
  TEST_CASE(a_rejection_brings_its_data),
  TEST_CASE(nobody_listens),
  TEST_CASE(addresses_belong_to_ports),
  TEST_CASE(a_port_is_taken_once),
  TEST_CASE(listening_on_all_addresses),
  TEST_CASE(without_a_queue_pair_of_the_id),
  TEST_CASE(datagrams),
  TEST_CASE(a_channel_that_does_not_wait),
  TEST_CASE(an_id_moves_to_another_channel_with_its_events),
  TEST_CASE(requests_that_nobody_reads_are_rejected_with_their_listener),
  TEST_CASE(a_full_backlog_rejects),
  TEST_CASE(calls_at_the_wrong_time),
  TEST_CASE(endpoints),
  TEST_CASE(ports_that_are_down),
  TEST_CASE(an_address_or_a_route_that_does_not_resolve),
  TEST_CASE(messages_that_are_lost_late_or_rejected),
  TEST_CASE(a_goodbye_that_is_lost),
  TEST_CASE(nonsense_hurts_nobody)};

int main(int argc, char **argv) {
  static char folder[] = "/dev/shm/emu-test.XXXXXX";
  if (!mkdtemp(folder)) return 2;
  setenv("RAIL_EMU_DIR", folder, 1);
  int status = tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
  DIR *dir = opendir(folder);
  for (struct dirent *d; dir && (d = readdir(dir)) != NULL;) (void)unlinkat(dirfd(dir), d->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
  return status;
}
