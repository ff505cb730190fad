/* SPDX-License-Identifier: Apache-2.0
 * The emulated RDMA CM: endpoints, whose calls wait. */
#include <pthread.h>

#include "test/verbs/cm.h"

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

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(endpoints)};
  return cm_test_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
