/* SPDX-License-Identifier: Apache-2.0
 * Streams that are cut before the acceptor has answered, as a flood of silent clients does to them: they are connected
 * again, within RAIL_SOCKET_CONNECT_TIMEOUT, and the caller notices nothing.
 *
 * A relay stands between the two: it hangs up on some connections, or answers for the acceptor, and forwards the rest.
 * TEST-LIMIT: 60 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/sock.h"
#include "test/harness/program.h"

enum { HELLO = 120, ANSWER = 76, MAX_LINKS = 16, PORT_AT = 26, BUSY = 7, TIMEOUT_MS = 2000 };

struct relay {
  int listener, real_port;
  int cut;      /* so many connections are hung up on, after their HELLO */
  int reason;   /* with this refusal, if not 0 */
  bool deaf;    /* then no port listens any more */
  pthread_t thread;
  _Atomic bool over;
  _Atomic int seen, more; /* connections; bytes that came behind a HELLO which was not answered */
  int links[MAX_LINKS][2], nlinks;
};

static void cut(struct relay *r, int fd) {
  uint8_t bytes[HELLO + 1];
  size_t done = 0;
  (void)rail_sock_recv_all(fd, bytes, HELLO, rail_deadline_in_ms(TIMEOUT_MS), NULL);
  poll(NULL, 0, 50);
  if (rail_sock_recv_some(fd, bytes, 1, &done) == RAIL_OK) r->more++;
  if (r->reason) {
    uint8_t answer[ANSWER] = {'R', 'S', 'K', 'M', bytes[4], bytes[5], 1, 0, ANSWER - 16, 0, 0, 0, 0, 0, 0, 0,
                              (uint8_t)r->reason};
    memcpy(answer + 10, bytes + 40, 2);
    done = 0;
    (void)rail_sock_send_some(fd, answer, sizeof answer, &done);
  }
  rail_sock_close(&fd);
}

static void forward(struct relay *r, int fd) {
  union rail_addr real = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  rail_addr_set_port(&real, (uint16_t)r->real_port);
  int *link = r->links[r->nlinks++];
  link[0] = fd;
  if (rail_sock_connect_all(&real, NULL, rail_deadline_in_ms(TIMEOUT_MS), NULL, &link[1]) != RAIL_OK) link[1] = -1;
}

static void copy(int from, int to) {
  uint8_t bytes[65536];
  ssize_t n = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
  if (n > 0) (void)rail_sock_send_all(to, bytes, (size_t)n, rail_deadline_in_ms(TIMEOUT_MS), NULL);
  else if (n == 0 || errno != EAGAIN) shutdown(to, SHUT_WR);
}

static void *relay_main(void *arg) {
  struct relay *r = arg;
  int fd;
  while (!r->over) {
    if (r->listener >= 0 && rail_sock_accept(r->listener, &fd, NULL) == RAIL_OK) {
      if (r->seen++ >= r->cut) {
        forward(r, fd);
      } else {
        if (r->deaf) rail_sock_close(&r->listener);
        cut(r, fd);
      }
    }
    for (int i = 0; i < r->nlinks; i++)
      for (int k = 0; k < 2; k++) copy(r->links[i][k], r->links[i][!k]);
    poll(NULL, 0, 1);
  }
  for (int i = 0; i < r->nlinks; i++)
    for (int k = 0; k < 2; k++) rail_sock_close(&r->links[i][k]);
  rail_sock_close(&r->listener);
  return NULL;
}

/* The handle's address becomes the relay's: its port lies there in network byte order. */
static void relay_start(struct relay *r, char *handle) {
  union rail_addr addr = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  uint16_t port;
  memcpy(&port, handle + PORT_AT, sizeof port);
  r->real_port = ntohs(port);
  CHECK_OK(rail_sock_listen(&addr, 64, &r->listener));
  port = htons(rail_addr_port(&addr));
  memcpy(handle + PORT_AT, &port, sizeof port);
  CHECK_OK(pthread_create(&r->thread, NULL, relay_main, r));
}

static void relay_end(struct relay *r) {
  r->over = true;
  pthread_join(r->thread, NULL);
}

static void open_net(struct kit_net *n, const char *streams) {
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
  setenv("RAIL_SOCKET_STREAMS", streams, 1);
  setenv("RAIL_SOCKET_CONNECT_TIMEOUT", "2s", 1);
  kit_net_open(n);
}

/* connect returns although the peer has not answered; what is sent meanwhile waits, and arrives. */
static void cut_and_go_on(const char *streams, int times, int reason) {
  static uint8_t from[300000], to[300000];
  struct kit_net n;
  struct relay r = {.cut = times, .reason = reason};
  open_net(&n, streams);
  struct kit_pair p = {.net = &n};
  p.listen = kit_net_listen(&n, p.handle);
  relay_start(&r, p.handle);
  p.send = kit_net_connect(&n, p.handle);
  memset(from, 7, sizeof from);
  struct kit_op ops[] = {kit_op_send(p.send, from, 100, 0), kit_op_send(p.send, from, sizeof from, 1)};
  for (int i = 0; i < 2; i++) CHECK(kit_op_post(&n, &ops[i]));
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(5000));
  while (!kit_accept_step(&n, p.listen, &p.recv)) {
    for (int i = 0; i < 2; i++) CHECK(!kit_op_test(&n, &ops[i]));
    CHECK_MSG(!rail_deadline_passed(deadline), "no connection; %d connections came", r.seen);
  }
  struct kit_op recvs[] = {kit_op_recv(p.recv, to, 100, 0), kit_op_recv(p.recv, to, sizeof to, 1)};
  struct kit_op all[] = {ops[0], ops[1], recvs[0], recvs[1]};
  CHECK(kit_ops_run(&n, all, 4, (struct kit_ops_options){.order = KIT_OPS_FORWARD}));
  CHECK(memcmp(from, to, sizeof to) == 0);
  CHECK_INT(r.seen, times + atoi(streams));
  CHECK_INT(r.more, 0); /* nothing but HELLO is said before the answer */
  kit_pair_close(&p);
  relay_end(&r);
  kit_net_close(&n);
}

TEST(hung_up_on_once) { cut_and_go_on("1", 1, 0); }
TEST(hung_up_on_again_and_again) { cut_and_go_on("1", 5, 0); }
TEST(one_of_four_streams) { cut_and_go_on("4", 1, 0); }
TEST(all_of_four_streams) { cut_and_go_on("4", 4, 0); }
TEST(refused_because_busy) { cut_and_go_on("1", 2, BUSY); }

static void cut_for_good(bool deaf, int reason, uint64_t least_ms, uint64_t most_ms) {
  static uint8_t byte;
  struct kit_net n;
  struct relay r = {.cut = 1000000, .deaf = deaf, .reason = reason};
  open_net(&n, "1");
  struct kit_pair p = {.net = &n};
  p.listen = kit_net_listen(&n, p.handle);
  relay_start(&r, p.handle);
  p.send = kit_net_connect(&n, p.handle);
  struct kit_op op = kit_op_send(p.send, &byte, 1, 0);
  op.error = 0;
  CHECK(kit_op_post(&n, &op));
  uint64_t start = rail_now_ns(), took;
  kit_ops_run(&n, &op, 1, (struct kit_ops_options){.errors_are_fine = true});
  took = (rail_now_ns() - start) / 1000000;
  CHECK_INT(op.error, RAIL_REMOTE_ERROR);
  CHECK_MSG(took >= least_ms && took < kit_patience_ms(most_ms), "the error came after %llu ms",
            (unsigned long long)took);
  CHECK_OK(n.vt->close_send(p.send));
  CHECK_OK(n.vt->close_listen(p.listen));
  relay_end(&r);
  kit_net_close(&n);
}

TEST(nobody_listens_any_more) { cut_for_good(true, 0, 0, 1500); }
TEST(for_longer_than_the_connect_timeout) { cut_for_good(false, 0, 1500, 4000); }
TEST(refused_for_good) { cut_for_good(false, 3, 0, 1500); }

TEST_MAIN(TEST_CASE(hung_up_on_once), TEST_CASE(hung_up_on_again_and_again), TEST_CASE(one_of_four_streams),
          TEST_CASE(all_of_four_streams), TEST_CASE(refused_because_busy), TEST_CASE(nobody_listens_any_more),
          TEST_CASE(for_longer_than_the_connect_timeout), TEST_CASE(refused_for_good))
