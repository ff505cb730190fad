/* SPDX-License-Identifier: Apache-2.0
 * One way to a peer, over loopback. What ties it to an interface is tested where there are several: e2e/test_rails. */
#include "common/conn/dial.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 10000

static union rail_addr loopback(unsigned int last) {
  return (union rail_addr){.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000u + last)}};
}

static int options_set, class_set;
static void set_options(int fd, int traffic_class) {
  union rail_addr peer;
  socklen_t len = sizeof peer;
  options_set++;
  class_set = traffic_class;
  CHECK(getpeername(fd, &peer.sa, &len) != 0 && errno == ENOTCONN); /* before it connects */
  CHECK_OK(rail_sock_set_buffers(fd, 4096, -1));
}

static union rail_addr own;

static struct rail_dial_args from_here(void) {
  own = loopback(1);
  options_set = 0;
  return (struct rail_dial_args){.plugin = "RailTest", .interface = "lo", .addr = &own, .traffic_class = 7,
                                 .set_options = set_options, .stream = -1};
}

/* Until it is done, or its timeout has passed. */
static rail_result_t go_on(struct rail_dial *d, const void *message, size_t size, int timeout_ms) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(timeout_ms));
  rail_result_t result;
  while ((result = rail_dial_step(d, message, size)) == RAIL_IN_PROGRESS && !rail_deadline_passed(deadline))
    sched_yield();
  return result;
}

/* A port that was free a moment ago. */
static union rail_addr closed_port(void) {
  union rail_addr addr = loopback(1);
  int fd;
  CHECK_OK(rail_sock_listen(&addr, 1, &fd));
  rail_sock_close(&fd);
  return addr;
}

static void check_received(int listener, const char *message, size_t size, const union rail_addr *source) {
  union rail_addr peer;
  char got[64];
  int fd;
  CHECK_OK(rail_sock_accept_all(listener, rail_deadline_in_ms(TIMEOUT_MS), NULL, &fd, &peer));
  CHECK_OK(rail_sock_recv_all(fd, got, size, rail_deadline_in_ms(TIMEOUT_MS), NULL));
  CHECK(memcmp(got, message, size) == 0);
  CHECK(rail_addr_same_host(&peer, source));
  rail_sock_close(&fd);
}

TEST(a_listener_that_is_there) {
  union rail_addr addr = loopback(1);
  struct rail_dial_args from = from_here();
  struct rail_dial d;
  int listener;
  CHECK_OK(rail_sock_listen(&addr, 8, &listener));
  own = loopback(3);
  rail_dial_init(&d, &from, &addr);
  CHECK_INT(d.fd, -1);
  CHECK_OK(go_on(&d, "hello", 5, TIMEOUT_MS));
  CHECK(d.state == RAIL_DIAL_DONE && d.fd >= 0 && d.last_errno == 0);
  CHECK_INT(options_set, 1);
  CHECK_INT(class_set, 7);
  CHECK_OK(rail_dial_step(&d, "hello", 5)); /* nothing left to do */
  check_received(listener, "hello", 5, &own);
  rail_dial_close(&d);
  CHECK_INT(d.fd, -1);
  rail_sock_close(&listener);
}

TEST(one_that_comes_later) {
  union rail_addr addr = closed_port();
  struct rail_dial_args from = from_here();
  struct rail_dial d;
  int listener;
  rail_dial_init(&d, &from, &addr);
  CHECK_INT(go_on(&d, "hi", 2, 100), RAIL_IN_PROGRESS);
  CHECK(d.last_errno == ECONNREFUSED && d.fd < 0);
  CHECK_MSG(d.attempts >= 3 && d.attempts <= 20, "%u attempts", d.attempts); /* ever more rarely, not in every call */
  CHECK_OK(rail_sock_listen(&addr, 8, &listener));
  CHECK_OK(go_on(&d, "hi", 2, TIMEOUT_MS));
  check_received(listener, "hi", 2, &own);
  CHECK_INT(options_set, d.attempts);
  rail_dial_close(&d);
  rail_sock_close(&listener);
}

TEST(the_pause_between_attempts_has_a_limit) {
  union rail_addr addr = closed_port();
  struct rail_dial_args from = from_here();
  struct rail_dial d;
  uint64_t last = 0;
  rail_dial_init(&d, &from, &addr);
  for (unsigned int attempts = 0; attempts < 12;) { /* 1 ms doubled eleven times were more than 2 s */
    d.retry_at = d.retry_at ? 1 : 0; /* the pause is over */
    CHECK_INT(rail_dial_step(&d, "hi", 2), RAIL_IN_PROGRESS);
    if (d.attempts == attempts || d.state != RAIL_DIAL_WAIT) continue;
    attempts = d.attempts;
    last = d.retry_at - rail_now_ns();
    CHECK_MSG(last <= 200000000ull, "a pause of %llu ns", (unsigned long long)last);
  }
  CHECK(last > 100000000ull);
  rail_dial_close(&d);
}

/* Bound to the device and not bound in turns: an attempt that is not bound does not count as bound. */
TEST(every_second_attempt_is_not_device_bound) {
  union rail_addr addr = closed_port();
  struct rail_dial_args from = from_here();
  struct rail_dial d;
  rail_dial_init(&d, &from, &addr);
  d.args.bind = RAIL_BIND_DEVICE_TRY; /* which a peer on this machine would not get */
  d.device_bound = true;
  d.attempts = 1;
  d.state = RAIL_DIAL_WAIT;
  (void)rail_dial_step(&d, "hi", 2);
  CHECK(d.attempts == 2 && !d.device_bound);
  rail_dial_close(&d);
}

/* The whole message, from its beginning to the other side. */
static void pass_on(struct rail_dial *d, const char *out, int fd, char *in, size_t size) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  size_t have = 0;
  while (have < size) {
    rail_result_t sent = rail_dial_step(d, out, size), got = rail_sock_recv_some(fd, in, size, &have);
    CHECK(sent == RAIL_OK || sent == RAIL_IN_PROGRESS);
    CHECK(got == RAIL_OK || got == RAIL_IN_PROGRESS);
    CHECK(!rail_deadline_passed(deadline));
  }
  CHECK(memcmp(in, out, size) == 0);
}

TEST(a_message_in_pieces) {
  enum { SIZE = 4 << 20 }; /* more than the buffers hold */
  static char out[SIZE], in[SIZE];
  union rail_addr addr = loopback(1);
  struct rail_dial_args from = from_here();
  struct rail_dial d;
  int listener, fd;
  for (size_t i = 0; i < SIZE; i++) out[i] = (char)(i * 31 + i / 997);
  CHECK_OK(rail_sock_listen(&addr, 8, &listener));
  CHECK_OK(rail_sock_set_buffers(listener, -1, 4096));
  rail_dial_init(&d, &from, &addr);
  CHECK_INT(go_on(&d, out, SIZE, 20), RAIL_IN_PROGRESS);
  CHECK(d.state == RAIL_DIAL_HELLO && d.sent > 0 && d.sent < SIZE);
  CHECK_OK(rail_sock_accept_all(listener, rail_deadline_in_ms(TIMEOUT_MS), NULL, &fd, NULL));
  pass_on(&d, out, fd, in, SIZE);
  rail_dial_close(&d);
  rail_sock_close(&fd);
  rail_sock_close(&listener);
}

/* The peer's side hangs up in the middle of the message: from the beginning again, to whoever listens then. */
TEST(lost_in_the_middle) {
  enum { SIZE = 4 << 20 };
  static char out[SIZE], in[SIZE];
  union rail_addr addr = loopback(1);
  struct rail_dial_args from = from_here();
  struct rail_dial d;
  int listener, fd;
  for (size_t i = 0; i < SIZE; i++) out[i] = (char)(i * 37 + i / 991);
  CHECK_OK(rail_sock_listen(&addr, 8, &listener));
  rail_dial_init(&d, &from, &addr);
  CHECK_INT(go_on(&d, out, SIZE, 20), RAIL_IN_PROGRESS);
  CHECK_OK(rail_sock_accept_all(listener, rail_deadline_in_ms(TIMEOUT_MS), NULL, &fd, NULL));
  rail_sock_close(&fd); /* with bytes unread: a reset */
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (d.attempts < 2) {
    CHECK_INT(rail_dial_step(&d, out, SIZE), RAIL_IN_PROGRESS);
    CHECK(!rail_deadline_passed(deadline));
  }
  CHECK(d.last_errno == ECONNRESET || d.last_errno == EPIPE);
  CHECK_OK(rail_sock_accept_all(listener, rail_deadline_in_ms(TIMEOUT_MS), NULL, &fd, NULL));
  pass_on(&d, out, fd, in, SIZE);
  rail_dial_close(&d);
  rail_sock_close(&fd);
  rail_sock_close(&listener);
}

TEST(sources_that_cannot_be_one) {
  union rail_addr addr = loopback(1);
  struct rail_dial_args from = from_here();
  struct rail_dial d;
  int listener;
  CHECK_OK(rail_sock_listen(&addr, 8, &listener));
  own = (union rail_addr){.in6 = {.sin6_family = AF_INET6}}; /* of another family */
  rail_dial_init(&d, &from, &addr);
  CHECK_OK(go_on(&d, "x", 1, TIMEOUT_MS));
  check_received(listener, "x", 1, &addr);
  rail_dial_close(&d);
  own = (union rail_addr){.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xc0000205)}}; /* not loopback */
  rail_dial_init(&d, &from, &addr);
  CHECK_OK(go_on(&d, "y", 1, TIMEOUT_MS));
  check_received(listener, "y", 1, &addr);
  rail_dial_close(&d);
  rail_sock_close(&listener);
}

TEST(a_peer_on_this_machine_is_not_device_bound) {
  union rail_addr addr = closed_port();
  struct rail_dial_args from = from_here();
  struct rail_dial d;
  for (int bind = RAIL_BIND_DEVICE_TRY; bind <= RAIL_BIND_DEVICE; bind++) {
    from.bind = (enum rail_dial_bind)bind;
    rail_dial_init(&d, &from, &addr);
    CHECK_INT(d.args.bind, RAIL_BIND_ADDR);
  }
}

TEST(what_time_does_not_cure) {
  union rail_addr addr = closed_port();
  struct rail_dial_args from = from_here();
  struct rail_dial d;
  struct rlimit old, none;
  CHECK(getrlimit(RLIMIT_NOFILE, &old) == 0);
  none = (struct rlimit){.rlim_cur = 0, .rlim_max = old.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  rail_dial_init(&d, &from, &addr);
  rail_result_t result = rail_dial_step(&d, "x", 1);
  CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
  CHECK_INT(result, RAIL_SYSTEM_ERROR);
  CHECK(d.last_errno == EMFILE && d.fd < 0);
}

TEST_MAIN(TEST_CASE(a_listener_that_is_there), TEST_CASE(one_that_comes_later),
          TEST_CASE(the_pause_between_attempts_has_a_limit), TEST_CASE(every_second_attempt_is_not_device_bound),
          TEST_CASE(a_message_in_pieces),
          TEST_CASE(lost_in_the_middle), TEST_CASE(sources_that_cannot_be_one),
          TEST_CASE(a_peer_on_this_machine_is_not_device_bound), TEST_CASE(what_time_does_not_cure))
