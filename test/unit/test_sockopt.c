/* SPDX-License-Identifier: Apache-2.0
 * Options of connections. */
#include "common/base/sockopt.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

static int option_of(int fd, int level, int option) {
  int value = -1;
  socklen_t len = sizeof value;
  CHECK(getsockopt(fd, level, option, &value, &len) == 0);
  return value;
}

static int new_socket(int family) { return socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0); }

TEST(which_traffic_class) {
  rail_log_set_sink(log_capture);
  log_forget();
  CHECK_INT(rail_traffic_class("RailTest", -1, -1, -1), -1);
  CHECK_INT(rail_traffic_class("RailTest", -1, -1, 3), 3);
  CHECK_INT(rail_traffic_class("RailTest", -1, 2, 3), 2);
  CHECK_INT(rail_traffic_class("RailTest", 0, 2, 3), 0);
  CHECK_INT(rail_traffic_class("RailTest", -1, 255, -1), 255);
  CHECK_STR(log_lines, "");
  CHECK_INT(rail_traffic_class("RailTest", -1, 256, 3), -1);
  CHECK(log_said("RailTest: traffic class 256") && log_said("0..255"));
  rail_log_set_sink(NULL);
}

TEST(marks_of_ipv4) {
  int fd = new_socket(AF_INET);
  rail_sockopt_traffic_class(fd, -1);
  CHECK_INT(option_of(fd, IPPROTO_IP, IP_TOS), 0);
  rail_sockopt_traffic_class(fd, 0x68);
  CHECK_INT(option_of(fd, IPPROTO_IP, IP_TOS), 0x68);
  CHECK_INT(option_of(fd, SOL_SOCKET, SO_PRIORITY), 3);
  rail_sockopt_traffic_class(fd, 0xfc);
  CHECK_INT(option_of(fd, SOL_SOCKET, SO_PRIORITY), 6);
  close(fd);
}

TEST(marks_of_ipv6) {
  int fd = new_socket(AF_INET6);
  if (fd < 0) tap_skip_case("no IPv6 here");
  rail_sockopt_traffic_class(fd, 0x68);
  CHECK_INT(option_of(fd, IPPROTO_IPV6, IPV6_TCLASS), 0x68);
  CHECK_INT(option_of(fd, IPPROTO_IP, IP_TOS), 0x68); /* what it sends to mapped addresses */
  CHECK_INT(option_of(fd, SOL_SOCKET, SO_PRIORITY), 3);
  close(fd);
}

TEST(user_timeout) {
  int fd = new_socket(AF_INET);
  rail_sockopt_user_timeout(fd, 0);
  rail_sockopt_user_timeout(fd, -1);
  CHECK_INT(option_of(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
  rail_sockopt_user_timeout(fd, 31000);
  CHECK_INT(option_of(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 31000);
  close(fd);
}

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

TEST(max_rto) {
  int fd = new_socket(AF_INET), value;
  socklen_t len = sizeof value;
  if (getsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &value, &len) != 0)
    tap_skip_case("this kernel has no TCP_RTO_MAX_MS");
  rail_sockopt_max_rto(fd, 5000);
  CHECK_INT(option_of(fd, IPPROTO_TCP, TCP_RTO_MAX_MS), 5000);
  rail_sockopt_max_rto(fd, 300);
  CHECK_INT(option_of(fd, IPPROTO_TCP, TCP_RTO_MAX_MS), 1000);
  rail_sockopt_max_rto(fd, 24 * 3600 * 1000);
  CHECK_INT(option_of(fd, IPPROTO_TCP, TCP_RTO_MAX_MS), 120000);
  close(fd);
}

static void check_keepalive(int64_t every_ms, int64_t deadline_ms, int every, int count) {
  int fd = new_socket(AF_INET);
  rail_sockopt_keepalive(fd, every_ms, deadline_ms);
  CHECK_INT(option_of(fd, SOL_SOCKET, SO_KEEPALIVE), every != 0);
  if (every) {
    CHECK_INT(option_of(fd, IPPROTO_TCP, TCP_KEEPIDLE), every);
    CHECK_INT(option_of(fd, IPPROTO_TCP, TCP_KEEPINTVL), every);
    CHECK_INT(option_of(fd, IPPROTO_TCP, TCP_KEEPCNT), count);
  }
  close(fd);
}

TEST(keepalive) {
  check_keepalive(0, 30000, 0, 0);
  check_keepalive(10000, 30000, 10, 2);
  check_keepalive(10001, 60000, 11, 4);
  check_keepalive(1, 30000, 1, 29);
  check_keepalive(20000, 30000, 20, 2);
  check_keepalive(10000, 0, 10, 2);
  check_keepalive(1000, 24 * 3600 * 1000, 1, 100);
}

TEST_MAIN(TEST_CASE(which_traffic_class), TEST_CASE(marks_of_ipv4), TEST_CASE(marks_of_ipv6), TEST_CASE(user_timeout),
          TEST_CASE(max_rto), TEST_CASE(keepalive))
