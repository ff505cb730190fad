/* SPDX-License-Identifier: Apache-2.0
 * Where listeners listen. */
#include "common/conn/ports.h"

#include <arpa/inet.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "test/harness/log_lines.h"
#include "test/harness/program.h"
#include "test/unit/free_ports.h"

#define NEW_PORTS {.plugin = "RailTest", .range_param = "RAIL_TEST_PORTS", .bind_param = "RAIL_TEST_BIND"}

static const union rail_addr here = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = 0x0100007f}};

static void begin(void) {
  rail_log_set_sink(log_capture);
  log_forget();
}

static void end(void) { rail_log_set_sink(NULL); }

static rail_result_t listen_at(struct rail_ports *ports, unsigned int *port, int *fd) {
  union rail_addr addr;
  rail_result_t result = rail_ports_listen(ports, "lo0", &here, 8, &addr, fd);
  *port = rail_addr_port(&addr);
  return result;
}

static void check_range(unsigned int first, unsigned int order[6]) {
  struct rail_ports ports = NEW_PORTS;
  bool taken[6] = {false};
  int fds[6], fd;
  unsigned int port;
  char text[32], whole[192];
  snprintf(text, sizeof text, "%u-%u", first, first + 5);
  rail_ports_load(&ports, text, NULL);
  for (int i = 0; i < 6; i++) {
    CHECK_OK(listen_at(&ports, &port, &fds[i]));
    CHECK_MSG(port >= first && port < first + 6 && !taken[port - first], "port %u of %s", port, text);
    taken[port - first] = true;
    order[i] = port - first;
  }
  CHECK_INT(listen_at(&ports, &port, &fd), RAIL_SYSTEM_ERROR);
  snprintf(whole, sizeof whole, "RailTest: listen on lo0, address 127.0.0.1:%u: Address already in use; all 6 ports of "
           "RAIL_TEST_PORTS=%s are taken", first + order[5], text);
  CHECK_MSG(fd < 0 && log_said(whole), "it said: %s", log_lines);
  rail_sock_close(&fds[3]); /* one is free again, and found */
  CHECK_OK(listen_at(&ports, &port, &fds[3]));
  CHECK_INT(port, first + order[3]);
  for (int i = 0; i < 6; i++) rail_sock_close(&fds[i]);
}

TEST(a_range_of_ports) {
  unsigned int order[6], before[6];
  bool differ = false;
  begin();
  for (int i = 0; i < 12; i++) { /* 12 orders that all begin with the same two ports: once in 30^11 */
    check_range(free_range(6), order);
    if (i) differ |= memcmp(before, order, sizeof order) != 0;
    memcpy(before, order, sizeof order);
  }
  CHECK(differ);
  end();
}

/* Its last peers may still think of the listener that was there. */
TEST(a_port_is_not_used_again_at_once) {
  struct rail_ports ports = NEW_PORTS;
  unsigned int first = free_range(3), order[3], again;
  char text[32];
  int fd;
  begin();
  snprintf(text, sizeof text, "%u-%u", first, first + 2);
  rail_ports_load(&ports, text, NULL);
  for (int i = 0; i < 3; i++) {
    CHECK_OK(listen_at(&ports, &order[i], &fd));
    rail_sock_close(&fd);
  }
  CHECK(order[0] != order[1] && order[1] != order[2] && order[2] != order[0]);
  CHECK_OK(listen_at(&ports, &again, &fd));
  CHECK_INT(again, order[0]);
  rail_sock_close(&fd);
  end();
}

TEST(one_port) {
  struct rail_ports ports = NEW_PORTS;
  unsigned int first = free_range(1), port;
  char text[8];
  int fd;
  begin();
  snprintf(text, sizeof text, "%u", first);
  rail_ports_load(&ports, text, "");
  CHECK_OK(listen_at(&ports, &port, &fd));
  CHECK_INT(port, first);
  CHECK_STR(log_lines, "");
  rail_sock_close(&fd);
  end();
}

TEST(values_that_make_no_sense) {
  static const char *const bad[][2] = {
    {"nonsense", NULL}, {"0-10", NULL},  {"5000-4000", NULL},      {"5000-", NULL}, {"5000-70000", NULL},
    {"65000-65536", NULL},
    {"-5000", NULL},    {"5000--1", NULL}, {"5000-5010,5020", NULL}, {NULL, "eth0"},  {NULL, "1.2.3"}};
  char words[64];
  unsigned int port;
  int fd;
  for (size_t i = 0; i < RAIL_COUNT_OF(bad); i++) {
    struct rail_ports ports = NEW_PORTS;
    begin();
    rail_ports_load(&ports, bad[i][0], bad[i][1]);
    snprintf(words, sizeof words, bad[i][0] ? "RAIL_TEST_PORTS=%s is not" : "RAIL_TEST_BIND=%s is not",
             bad[i][0] ? bad[i][0] : bad[i][1]);
    CHECK_MSG(log_said(words) && log_said("allowed"), "it said: %s", log_lines);
    log_forget();
    rail_ports_load(&ports, bad[i][0], bad[i][1]);
    CHECK_STR(log_lines, ""); /* once is enough */
    CHECK_OK(listen_at(&ports, &port, &fd));
    CHECK(port != 0);
    rail_sock_close(&fd);
    end();
  }
}

/* The socket is bound to `bind`, and the handle has the interface's address. */
static void check_bind(const char *bind, int family) {
  struct rail_ports ports = NEW_PORTS;
  union rail_addr told, bound = {0};
  socklen_t len = sizeof bound;
  int fd, peer;
  begin();
  rail_ports_load(&ports, NULL, bind);
  CHECK_OK(rail_ports_listen(&ports, "lo0", &here, 8, &told, &fd));
  CHECK(getsockname(fd, &bound.sa, &len) == 0);
  CHECK_INT(bound.sa.sa_family, family);
  if (family == AF_INET) CHECK_INT(bound.in.sin_addr.s_addr, INADDR_ANY);
  else CHECK(IN6_IS_ADDR_UNSPECIFIED(&bound.in6.sin6_addr));
  CHECK(rail_addr_same_host(&told, &here));
  CHECK_INT(rail_addr_port(&told), rail_addr_port(&bound));
  CHECK_OK(rail_sock_connect_all(&told, NULL, rail_deadline_in_ms(10000), NULL, &peer));
  rail_sock_close(&peer);
  rail_sock_close(&fd);
  end();
}

TEST(bound_to_all_addresses) { check_bind("0.0.0.0", AF_INET); }
TEST(bound_to_all_of_both_families) {
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) tap_skip_case("no IPv6 here");
  rail_sock_close(&fd);
  check_bind("::", AF_INET6);
}

TEST(addresses_to_which_it_cannot_be_bound) {
  struct rail_ports elsewhere = NEW_PORTS, both = NEW_PORTS, ipv4 = NEW_PORTS;
  union rail_addr v6 = {.in6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT}}, addr;
  unsigned int port, free = free_range(3);
  char range[32];
  int fd;
  begin();
  rail_ports_load(&elsewhere, NULL, "192.0.2.77");
  CHECK_INT(listen_at(&elsewhere, &port, &fd), RAIL_SYSTEM_ERROR);
  CHECK(fd < 0 && log_said("; is that (RAIL_TEST_BIND) an address of this machine?") && log_said("192.0.2.77"));
  snprintf(range, sizeof range, "%u-%u", free, free + 2); /* other ports would be refused for the same reason */
  rail_ports_load(&both, range, "192.0.2.77");
  log_forget();
  CHECK_INT(listen_at(&both, &port, &fd), RAIL_SYSTEM_ERROR);
  CHECK_MSG(fd < 0 && log_said("an address of this machine?") && !log_said("are taken"), "it said: %s", log_lines);
  rail_ports_load(&ipv4, NULL, "0.0.0.0");
  CHECK_INT(rail_ports_listen(&ipv4, "eth6", &v6, 8, &addr, &fd), RAIL_BAD_USAGE);
  CHECK(fd < 0 && log_said("RailTest: listen on eth6: it has an IPv6 address, RAIL_TEST_BIND=0.0.0.0 is IPv4"));
  end();
}

TEST_MAIN(TEST_CASE(a_range_of_ports), TEST_CASE(a_port_is_not_used_again_at_once), TEST_CASE(one_port),
          TEST_CASE(values_that_make_no_sense), TEST_CASE(bound_to_all_addresses),
          TEST_CASE(bound_to_all_of_both_families), TEST_CASE(addresses_to_which_it_cannot_be_bound))
