/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the emulated RDMA CM: a side is a channel, an id, and what it has of verbs. */
#ifndef TEST_VERBS_CM_H
#define TEST_VERBS_CM_H

#include <arpa/inet.h>
#include <dirent.h>
#include <rdma/rdma_cma.h>

#include "test/verbs/verbs.h"

/* One side: its channel, its id, what it has of verbs. */
struct side {
  struct rdma_event_channel *channel;
  struct rdma_cm_id *id;
  struct ibv_mr *mr;
  char data[256];
};

__attribute__((unused)) static struct sockaddr_in address(const char *ip, uint16_t port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  CHECK(inet_pton(AF_INET, ip, &a.sin_addr) == 1);
  return a;
}

__attribute__((unused)) static struct sockaddr *any_address(struct sockaddr_in *a) {
  return (struct sockaddr *)(void *)a;
}

/* The next event of a channel; the caller acknowledges it. */
__attribute__((unused)) static struct rdma_cm_event *next_event(struct rdma_event_channel *channel,
                                                                enum rdma_cm_event_type wanted) {
  struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
  struct rdma_cm_event *event;
  CHECK_MSG(poll(&fd, 1, WAIT_MS) == 1, "no %s within %d ms", rdma_event_str(wanted), WAIT_MS);
  CHECK_OK(rdma_get_cm_event(channel, &event));
  CHECK_MSG(event->event == wanted, "%s with status %d, expected %s", rdma_event_str(event->event), event->status,
            rdma_event_str(wanted));
  return event;
}

/* And that is all to be known of it. */
__attribute__((unused)) static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted,
                                           int status) {
  struct rdma_cm_event *event = next_event(channel, wanted);
  CHECK_INT(event->status, status);
  CHECK_OK(rdma_ack_cm_event(event));
}

__attribute__((unused)) static bool has_event(const struct rdma_event_channel *channel) {
  struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
  return poll(&fd, 1, 0) == 1;
}

__attribute__((unused)) static void side_open(struct side *s, enum rdma_port_space ps) {
  memset(s, 0, sizeof *s);
  s->channel = rdma_create_event_channel();
  CHECK(s->channel);
  CHECK_OK(rdma_create_id(s->channel, &s->id, s, ps));
}

__attribute__((unused)) static void side_make_qp(struct side *s) {
  struct ibv_qp_init_attr init = {.cap = {8, 8, 1, 1, 0}, .qp_type = s->id->qp_type, .sq_sig_all = 1};
  CHECK_OK(rdma_create_qp(s->id, NULL, &init));
  s->mr = ibv_reg_mr(s->id->pd, s->data, sizeof s->data, ALL_ACCESS);
  CHECK(s->mr);
}

__attribute__((unused)) static void side_close(struct side *s) {
  if (s->mr) CHECK_OK(ibv_dereg_mr(s->mr));
  if (s->id && s->id->qp) rdma_destroy_qp(s->id);
  if (s->id) CHECK_OK(rdma_destroy_id(s->id));
  if (s->channel) rdma_destroy_event_channel(s->channel);
}

/* Listens there; the port that it got. */
__attribute__((unused)) static uint16_t side_listen(struct side *s, const char *ip, int backlog) {
  struct sockaddr_in a = address(ip, 0);
  CHECK_OK(rdma_bind_addr(s->id, any_address(&a)));
  CHECK_OK(rdma_listen(s->id, backlog));
  uint16_t port = ntohs(rdma_get_src_port(s->id));
  CHECK(port);
  return port;
}

__attribute__((unused)) static void side_resolve(struct side *s, const char *ip, uint16_t port) {
  struct sockaddr_in a = address(ip, port);
  CHECK_OK(rdma_resolve_addr(s->id, NULL, any_address(&a), 1000));
  expect(s->channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
  CHECK_OK(rdma_resolve_route(s->id, 1000));
  expect(s->channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
}

__attribute__((unused)) static struct rdma_conn_param param_with(const char *data) {
  return (struct rdma_conn_param){.private_data = data, .private_data_len = (uint8_t)(data ? strlen(data) + 1 : 0),
                                  .responder_resources = 4, .initiator_depth = 2, .retry_count = 7,
                                  .rnr_retry_count = 7};
}

__attribute__((unused)) static int side_connect(struct side *s, const char *data) {
  struct rdma_conn_param p = param_with(data);
  return rdma_connect(s->id, &p);
}

/* A request that arrived, as a side of its own. */
__attribute__((unused)) static void side_take(struct side *s, struct side *listener) {
  memset(s, 0, sizeof *s);
  struct rdma_cm_event *event = next_event(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
  CHECK(event->listen_id == listener->id);
  s->id = event->id;
  CHECK_OK(rdma_ack_cm_event(event));
}

/* `server` stays on the listener's channel. */
__attribute__((unused)) static void connect_all(struct side *listener, struct side *client, struct side *server,
                                                const char *ip) {
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

__attribute__((unused)) static void close_all(struct side *listener, struct side *client, struct side *server) {
  side_close(client);
  side_close(server);
  side_close(listener);
}

__attribute__((unused)) static void wait_completion(struct ibv_cq *cq, enum ibv_wc_status wanted) {
  struct ibv_wc wc;
  long end = now_ms() + WAIT_MS;
  while (ibv_poll_cq(cq, 1, &wc) == 0) CHECK_MSG(now_ms() < end, "no completion within %d ms", WAIT_MS);
  CHECK_INT(wc.status, wanted);
}

__attribute__((unused)) static void send_bytes(struct side *from, struct side *to) {
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

__attribute__((unused)) static bool is_zero(const void *data, size_t size) {
  const char *c = data;
  for (size_t i = 0; i < size; i++)
    if (c[i]) return false;
  return true;
}

/* In a folder of its own: ports that others have taken are free in it. */
__attribute__((unused)) static int cm_test_main(int argc, char **argv, const struct tap_case *cases, size_t n) {
  static char folder[] = "/dev/shm/emu-test.XXXXXX";
  if (!mkdtemp(folder)) return 2;
  setenv("RAIL_EMU_DIR", folder, 1);
  int status = tap_main(argc, argv, cases, n);
  DIR *dir = opendir(folder);
  for (struct dirent *d; dir && (d = readdir(dir)) != NULL;) (void)unlinkat(dirfd(dir), d->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
  return status;
}

#endif
