/* SPDX-License-Identifier: Apache-2.0
 * More connections than a listener of the template keeps for accept: the rest try again; those whose peer went away
 * make room. */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/net/net_ops.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

enum { KEPT = 64 }; /* tpl_connect.c: MAX_HALF_OPEN */

static const struct rail_net_ops *const net = &rail_plugin_ops;
static void *ctx, *listener;
static uint8_t handle[RAIL_NET_HANDLE_SIZE];

static void begin(void) {
  const struct rail_net_init args = {.traffic_class = -1, .log = log_capture};
  int ndev = 0;
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  log_forget();
  CHECK_INT(net->init(&ctx, &args), RAIL_OK);
  CHECK_INT(net->devices(&ndev), RAIL_OK);
  CHECK_INT(ndev, 1);
  CHECK_INT(net->listen(ctx, 0, handle, &listener), RAIL_OK);
}

static void end(void) {
  CHECK_INT(net->close_listen(listener), RAIL_OK);
  CHECK_INT(net->finalize(ctx), RAIL_OK);
}

/* HELLO is sent when connect returns a comm. */
static void *connect_one(void) {
  uint8_t mine[sizeof handle];
  void *comm = NULL;
  uint64_t deadline = rail_deadline_in_ms(10000);
  memcpy(mine, handle, sizeof mine);
  while (!comm && !rail_deadline_passed(deadline)) CHECK_INT(net->connect(ctx, 0, mine, -1, &comm, NULL), RAIL_OK);
  CHECK(comm);
  return comm;
}

static void *accept_one(void) {
  void *comm = NULL;
  CHECK_INT(net->accept(listener, &comm, NULL), RAIL_OK);
  return comm;
}

/* The sender reads what the acceptor answered; nothing is posted, so nothing is sent. */
static void progress(void *send_comm) {
  static uint8_t byte;
  void *request = NULL;
  CHECK_INT(net->isend(send_comm, &byte, 1, 0, NULL, NULL, &request), RAIL_OK);
  CHECK(!request);
}

/* One byte: the two are ends of one connection. */
static void exchange(void *send_comm, void *recv_comm) {
  static uint8_t out = 7, in;
  void *data = &in, *send = NULL, *recv = NULL;
  int sent = 0, received = 0;
  uint64_t deadline = rail_deadline_in_ms(10000);
  CHECK_INT(net->irecv(recv_comm, 1, &data, &(size_t){1}, &(int){0}, NULL, NULL, &recv), RAIL_OK);
  while (!(sent && received) && !rail_deadline_passed(deadline)) {
    if (!send) CHECK_INT(net->isend(send_comm, &out, 1, 0, NULL, NULL, &send), RAIL_OK);
    if (send && !sent) CHECK_INT(net->test(send, &sent, NULL), RAIL_OK);
    if (!received) CHECK_INT(net->test(recv, &received, NULL), RAIL_OK);
  }
  CHECK(sent && received);
  CHECK_INT(in, 7);
}

TEST(those_beyond_the_bound_try_again) {
  enum { ALL = KEPT + 40 };
  static void *sends[ALL], *recvs[ALL];
  int n = 0;
  begin();
  for (int i = 0; i < ALL; i++) sends[i] = connect_one();
  uint64_t deadline = rail_deadline_in_ms(20000);
  while (n < ALL && !rail_deadline_passed(deadline)) {
    if ((recvs[n] = accept_one())) n++;
    for (int i = 0; i < ALL; i++) progress(sends[i]);
  }
  CHECK_INT(n, ALL);
  CHECK(log_said("too many half-open connections"));
  CHECK(!accept_one());
  for (int i = 0; i < ALL; i++) CHECK_INT(net->close_send(sends[i]), RAIL_OK);
  for (int i = 0; i < ALL; i++) CHECK_INT(net->close_recv(recvs[i]), RAIL_OK);
  end();
}

TEST(those_that_went_away_make_room) {
  void *gone[KEPT], *recv = NULL;
  begin();
  for (int i = 0; i < KEPT; i++) gone[i] = connect_one();
  for (int i = 0; i < KEPT; i++) CHECK_INT(net->close_send(gone[i]), RAIL_OK);
  void *send = connect_one();
  uint64_t deadline = rail_deadline_in_ms(10000);
  while (!recv && !rail_deadline_passed(deadline)) recv = accept_one();
  CHECK(recv);
  CHECK(!accept_one());
  exchange(send, recv);
  CHECK_INT(net->close_send(send), RAIL_OK);
  CHECK_INT(net->close_recv(recv), RAIL_OK);
  end();
}

TEST_MAIN(TEST_CASE(those_beyond_the_bound_try_again), TEST_CASE(those_that_went_away_make_room))
