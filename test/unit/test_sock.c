/* SPDX-License-Identifier: Apache-2.0
 * Non-blocking sockets, over loopback. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/sock.h"
#include "test/harness/tap.h"

#define TIMEOUT_MS 20000 /* for what should happen at once */

static union rail_addr loopback(void) {
  union rail_addr addr = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  return addr;
}

struct kit_pair { int listener, a, b; union rail_addr addr; };

static void kit_pair_open(struct kit_pair *p) {
  p->addr = loopback();
  CHECK_OK(rail_sock_listen(&p->addr, 16, &p->listener));
  CHECK_OK(rail_sock_connect_all(&p->addr, NULL, rail_deadline_in_ms(TIMEOUT_MS), NULL, &p->a));
  CHECK_OK(rail_sock_accept_all(p->listener, rail_deadline_in_ms(TIMEOUT_MS), NULL, &p->b, NULL));
}

static void kit_pair_close(struct kit_pair *p) {
  rail_sock_close(&p->a);
  rail_sock_close(&p->b);
  rail_sock_close(&p->listener);
  CHECK_INT(p->a, -1);
}

static void check_flags(int fd) {
  int value = 0;
  socklen_t len = sizeof value;
  CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
  CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  CHECK_OK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len));
  CHECK(value != 0);
}

TEST(connect_accept_flags) {
  struct kit_pair p;
  kit_pair_open(&p);
  CHECK(rail_addr_port(&p.addr) != 0);
  check_flags(p.a);
  check_flags(p.b);
  CHECK_OK(rail_sock_connected(p.a));
  kit_pair_close(&p);
}

TEST(ipv6_and_local_address) {
  union rail_addr addr = {.in6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT}}, from = addr, peer;
  int listener, a, b;
  if (rail_sock_listen(&addr, 1, &listener) != RAIL_OK) tap_skip_case("no IPv6 loopback on this machine");
  CHECK_OK(rail_sock_connect_all(&addr, &from, rail_deadline_in_ms(TIMEOUT_MS), NULL, &a));
  CHECK_OK(rail_sock_accept_all(listener, rail_deadline_in_ms(TIMEOUT_MS), NULL, &b, &peer));
  CHECK(rail_addr_same_host(&peer, &from));
  rail_sock_close(&a);
  rail_sock_close(&b);
  rail_sock_close(&listener);
}

TEST(bind_to_a_second_local_address) {
  union rail_addr from = loopback(), peer;
  struct kit_pair p;
  p.addr = loopback();
  from.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
  CHECK_OK(rail_sock_listen(&p.addr, 16, &p.listener));
  CHECK_OK(rail_sock_connect_all(&p.addr, &from, rail_deadline_in_ms(TIMEOUT_MS), NULL, &p.a));
  CHECK_OK(rail_sock_accept_all(p.listener, rail_deadline_in_ms(TIMEOUT_MS), NULL, &p.b, &peer));
  CHECK(rail_addr_same_host(&peer, &from));
  kit_pair_close(&p);
}

/* A port that was just free refuses. */
static union rail_addr refusing_address(void) {
  union rail_addr addr = loopback();
  int fd = -1;
  CHECK_OK(rail_sock_listen(&addr, 1, &fd));
  rail_sock_close(&fd);
  return addr;
}

TEST(refused_is_remote_error) {
  union rail_addr addr = refusing_address();
  int fd;
  rail_result_t result = rail_sock_connect(&addr, NULL, &fd);
  while (result == RAIL_IN_PROGRESS) result = rail_sock_connected(fd);
  CHECK_INT(result, RAIL_REMOTE_ERROR);
  CHECK_INT(errno, ECONNREFUSED);
  rail_sock_close(&fd);
}

TEST(connected_of_an_unconnected_socket_is_an_error) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  CHECK(rail_sock_connected(fd) != RAIL_OK);
  rail_sock_close(&fd);
}

TEST(accept_of_nothing_is_in_progress) {
  union rail_addr addr = loopback();
  int listener, fd = 7;
  CHECK_OK(rail_sock_listen(&addr, 1, &listener));
  CHECK_INT(rail_sock_accept(listener, &fd, NULL), RAIL_IN_PROGRESS);
  CHECK_INT(fd, -1);
  rail_sock_close(&listener);
}

TEST(accept_of_a_closed_listener_is_an_error) {
  int fd;
  CHECK_INT(rail_sock_accept(-1, &fd, NULL), RAIL_SYSTEM_ERROR);
  CHECK_INT(errno, EBADF);
}

/* A peer that resets while it waits in the queue must not hide the next one. */
TEST(accept_survives_a_reset_in_the_queue) {
  struct linger hard = {.l_onoff = 1, .l_linger = 0};
  struct kit_pair p;
  int dead;
  p.addr = loopback();
  CHECK_OK(rail_sock_listen(&p.addr, 16, &p.listener));
  CHECK_OK(rail_sock_connect_all(&p.addr, NULL, rail_deadline_in_ms(TIMEOUT_MS), NULL, &dead));
  CHECK_OK(setsockopt(dead, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
  rail_sock_close(&dead);
  CHECK_OK(rail_sock_connect_all(&p.addr, NULL, rail_deadline_in_ms(TIMEOUT_MS), NULL, &p.a));
  CHECK_OK(rail_sock_send_all(p.a, "x", 1, rail_deadline_in_ms(TIMEOUT_MS), NULL));
  for (;;) { /* Linux may hand out the dead one first; the live one must follow */
    char c = 0;
    CHECK_OK(rail_sock_accept_all(p.listener, rail_deadline_in_ms(TIMEOUT_MS), NULL, &p.b, NULL));
    if (rail_sock_recv_all(p.b, &c, 1, rail_deadline_in_ms(TIMEOUT_MS), NULL) == RAIL_OK) {
      CHECK_INT(c, 'x');
      break;
    }
    rail_sock_close(&p.b);
  }
  kit_pair_close(&p);
}

TEST(transfer_resumes_after_a_full_buffer) {
  enum { SIZE = 16 << 20 };
  char *out = malloc(SIZE), *in = calloc(1, SIZE);
  struct kit_pair p;
  size_t sent = 0, got = 0;
  kit_pair_open(&p);
  for (size_t i = 0; i < SIZE; i++) out[i] = (char)(i * 31 >> 3);
  CHECK_INT(rail_sock_send_some(p.a, out, SIZE, &sent), RAIL_IN_PROGRESS); /* more than buffers hold */
  CHECK(sent > 0 && sent < SIZE);
  uint64_t deadline = rail_deadline_in_ms(TIMEOUT_MS);
  while (got < SIZE && !rail_deadline_passed(deadline)) {
    rail_result_t s = rail_sock_send_some(p.a, out, SIZE, &sent), r = rail_sock_recv_some(p.b, in, SIZE, &got);
    CHECK(s == RAIL_OK || s == RAIL_IN_PROGRESS);
    CHECK(r == RAIL_OK || r == RAIL_IN_PROGRESS);
  }
  CHECK_INT(got, SIZE);
  CHECK(memcmp(in, out, SIZE) == 0);
  CHECK_INT(rail_sock_recv_some(p.b, in, 1, &(size_t){0}), RAIL_IN_PROGRESS);
  free(in);
  free(out);
  kit_pair_close(&p);
}

TEST(vectors_scatter_and_gather) {
  struct kit_pair p;
  char a[3], b[4];
  size_t n;
  kit_pair_open(&p);
  struct iovec out[2] = {{.iov_base = (void *)(uintptr_t)"abc", .iov_len = 3}, {(void *)(uintptr_t)"defg", 4}};
  struct iovec in[2] = {{a, 3}, {b, 4}};
  CHECK_OK(rail_sock_sendv(p.a, out, 2, &n));
  CHECK_INT(n, 7);
  rail_result_t result;
  while ((result = rail_sock_recvv(p.b, in, 2, &n)) == RAIL_IN_PROGRESS) CHECK_INT(n, 0);
  CHECK_OK(result);
  CHECK_INT(n, 7);
  CHECK(memcmp(a, "abc", 3) == 0 && memcmp(b, "defg", 4) == 0);
  kit_pair_close(&p);
}

TEST(end_of_stream_has_errno_0) {
  struct kit_pair p;
  char c;
  kit_pair_open(&p);
  rail_sock_close(&p.a);
  errno = EBADF;
  CHECK_INT(rail_sock_recv_all(p.b, &c, 1, rail_deadline_in_ms(TIMEOUT_MS), NULL), RAIL_REMOTE_ERROR);
  CHECK_INT(errno, 0);
  kit_pair_close(&p);
}

TEST(send_to_a_gone_peer_is_an_error_not_a_signal) {
  static char data[65536];
  struct kit_pair p;
  kit_pair_open(&p);
  rail_sock_close(&p.b);
  rail_result_t result = RAIL_OK;
  uint64_t deadline = rail_deadline_in_ms(TIMEOUT_MS);
  while (result == RAIL_OK) result = rail_sock_send_all(p.a, data, sizeof data, deadline, NULL);
  CHECK_INT(result, RAIL_REMOTE_ERROR);
  CHECK(errno == EPIPE || errno == ECONNRESET);
  kit_pair_close(&p);
}

TEST(waits_end_at_the_deadline) {
  static char data[1 << 20];
  union rail_addr refusing = refusing_address();
  struct kit_pair p;
  char c;
  int fd;
  kit_pair_open(&p);
  uint64_t start = rail_now_ns();
  CHECK_INT(rail_sock_recv_all(p.b, &c, 1, rail_deadline_in_ms(120), NULL), RAIL_REMOTE_ERROR);
  CHECK_INT(errno, ETIMEDOUT);
  CHECK(rail_now_ns() - start >= 120000000ull);
  CHECK_INT(rail_sock_accept_all(p.listener, rail_deadline_in_ms(120), NULL, &fd, NULL), RAIL_REMOTE_ERROR);
  CHECK_INT(errno, ETIMEDOUT);
  CHECK_INT(rail_sock_connect_all(&refusing, NULL, rail_deadline_in_ms(120), NULL, &fd), RAIL_REMOTE_ERROR);
  CHECK_INT(errno, ETIMEDOUT);
  CHECK_INT(fd, -1);
  rail_result_t result = RAIL_OK; /* nobody reads: buffers fill */
  uint64_t deadline = rail_deadline_in_ms(500);
  while (result == RAIL_OK) result = rail_sock_send_all(p.a, data, sizeof data, deadline, NULL);
  CHECK_INT(result, RAIL_REMOTE_ERROR);
  CHECK_INT(errno, ETIMEDOUT);
  CHECK(rail_now_ns() - start < 10000000000ull);
  kit_pair_close(&p);
}

static _Atomic int abort_flag;

static void *raise_flag(void *arg) {
  (void)arg;
  usleep(100000);
  atomic_store(&abort_flag, 1);
  return NULL;
}

TEST(waits_end_when_aborted) {
  struct kit_pair p;
  pthread_t thread;
  char c;
  int fd;
  kit_pair_open(&p);
  atomic_store(&abort_flag, 0);
  CHECK_OK(pthread_create(&thread, NULL, raise_flag, NULL));
  CHECK_INT(rail_sock_recv_all(p.b, &c, 1, 0, &abort_flag), RAIL_REMOTE_ERROR); /* no deadline at all */
  CHECK_INT(errno, ECANCELED);
  pthread_join(thread, NULL);
  CHECK_INT(rail_sock_accept_all(p.listener, 0, &abort_flag, &fd, NULL), RAIL_REMOTE_ERROR);
  CHECK_INT(errno, ECANCELED);
  kit_pair_close(&p);
}

static void *listen_late(void *arg) {
  struct kit_pair *p = arg;
  usleep(200000);
  if (rail_sock_listen(&p->addr, 16, &p->listener) != RAIL_OK) p->listener = -1;
  return NULL;
}

TEST(connect_all_waits_for_a_late_listener) {
  struct kit_pair p = {.listener = -1, .a = -1, .b = -1};
  pthread_t thread;
  p.addr = refusing_address();
  union rail_addr to = p.addr;
  CHECK_OK(pthread_create(&thread, NULL, listen_late, &p));
  rail_result_t result = rail_sock_connect_all(&to, NULL, rail_deadline_in_ms(TIMEOUT_MS), NULL, &p.a);
  pthread_join(thread, NULL);
  CHECK_OK(result);
  kit_pair_close(&p);
}

/* The socket is closed whenever a connection does not come about. */
TEST(connect_that_fails_leaves_no_socket) {
  union rail_addr nowhere = {.in = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = INADDR_BROADCAST}};
  int fd = -2, before = dup(1);
  rail_sock_close(&(int){before});
  rail_result_t result = rail_sock_connect(&nowhere, NULL, &fd);
  CHECK(result != RAIL_OK && result != RAIL_IN_PROGRESS);
  CHECK_INT(fd, -1);
  int after = dup(1);
  rail_sock_close(&(int){after});
  CHECK_INT(after, before);
}

/* What is accepted and turns out not to be TCP is closed, not kept. */
TEST(accept_closes_what_it_does_not_take) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), fd;
  socklen_t len = sizeof name;
  char c;
  CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&name, sizeof name.sun_family) == 0); /* a name of its own */
  CHECK(listen(listener, 4) == 0 && getsockname(listener, (struct sockaddr *)&name, &len) == 0);
  int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(client >= 0 && connect(client, (struct sockaddr *)&name, len) == 0);
  CHECK_INT(rail_sock_accept(listener, &fd, NULL), RAIL_IN_PROGRESS);
  CHECK_INT(fd, -1);
  CHECK_INT(recv(client, &c, 1, MSG_DONTWAIT), 0);
  rail_sock_close(&client);
  rail_sock_close(&listener);
}

TEST(buffers_and_random) {
  struct kit_pair p;
  int value = 0;
  socklen_t len = sizeof value;
  unsigned char x[32] = {0}, y[32] = {0};
  kit_pair_open(&p);
  CHECK_OK(rail_sock_set_buffers(p.a, 65536, -1));
  CHECK_OK(getsockopt(p.a, SOL_SOCKET, SO_SNDBUF, &value, &len));
  CHECK_INT(value, 2 * 65536);
  CHECK_OK(rail_sock_set_buffers(p.a, -1, INT64_MAX));
  CHECK_OK(rail_random_bytes(x, sizeof x));
  CHECK_OK(rail_random_bytes(y, sizeof y));
  CHECK(memcmp(x, y, sizeof x) != 0);
  kit_pair_close(&p);
}

TEST(close_keeps_errno) {
  int fd = -1;
  errno = EINTR;
  rail_sock_close(&fd);
  fd = dup(1);
  errno = EINTR;
  rail_sock_close(&fd);
  CHECK_INT(errno, EINTR);
  CHECK_INT(fd, -1);
}

TEST(results_of_errno_and_names) {
  CHECK_INT(rail_result_of_errno(ECONNRESET), RAIL_REMOTE_ERROR);
  CHECK_INT(rail_result_of_errno(ENETUNREACH), RAIL_REMOTE_ERROR);
  CHECK_INT(rail_result_of_errno(EMFILE), RAIL_SYSTEM_ERROR);
  CHECK_INT(rail_result_of_errno(0), RAIL_SYSTEM_ERROR);
  for (int i = 0; i <= RAIL_IN_PROGRESS; i++) CHECK(strcmp(rail_result_name(i), "unknown result") != 0);
  CHECK_STR(rail_result_name(-1), "unknown result");
  CHECK_STR(rail_result_name(8), "unknown result");
}

TEST_MAIN(TEST_CASE(connect_accept_flags), TEST_CASE(ipv6_and_local_address),
          TEST_CASE(bind_to_a_second_local_address), TEST_CASE(refused_is_remote_error),
          TEST_CASE(connected_of_an_unconnected_socket_is_an_error), TEST_CASE(accept_of_nothing_is_in_progress),
          TEST_CASE(accept_of_a_closed_listener_is_an_error), TEST_CASE(accept_survives_a_reset_in_the_queue),
          TEST_CASE(transfer_resumes_after_a_full_buffer), TEST_CASE(vectors_scatter_and_gather),
          TEST_CASE(end_of_stream_has_errno_0), TEST_CASE(send_to_a_gone_peer_is_an_error_not_a_signal),
          TEST_CASE(waits_end_at_the_deadline), TEST_CASE(waits_end_when_aborted),
          TEST_CASE(connect_all_waits_for_a_late_listener), TEST_CASE(connect_that_fails_leaves_no_socket),
          TEST_CASE(accept_closes_what_it_does_not_take), TEST_CASE(buffers_and_random), TEST_CASE(close_keeps_errno),
          TEST_CASE(results_of_errno_and_names))
