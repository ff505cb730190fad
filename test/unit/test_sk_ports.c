/* SPDX-License-Identifier: Apache-2.0
 * Where listeners listen, and how connections mark their packets. A process
 * reads the parameters of the first once: those cases run in children. */
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <stdlib.h>

#include "plugin/socket/sk_sockopt.h"
#include "test/unit/sk_handshake.h"

/* The first of `count` ports of which none is in use; chosen where the system does not choose by itself. */
static unsigned int free_range(unsigned int count) {
  unsigned int base = 10000 + (unsigned int)getpid() * 37 % 15000;
  for (int tries = 0; tries < 200; tries++, base += count + 1) {
    unsigned int good = 0;
    while (good < count) {
      union rail_addr addr = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)}};
      int fd;
      rail_addr_set_port(&addr, (uint16_t)(base + good));
      if (rail_sock_listen(&addr, 1, &fd) != RAIL_OK) break;
      rail_sock_close(&fd);
      good++;
    }
    if (good == count) return base;
  }
  kit_failed(__FILE__, __LINE__, "no %u free ports in a row", count);
}

static void in_child(void (*fn)(struct pipes *io, void *arg), const void *arg) {
  struct proc p = proc_start(fn, (void *)(uintptr_t)arg);
  proc_join(&p);
}

static void begin(struct hs *h) {
  hs_begin(h);
  sk_ports_load();
}

static void child_range(struct pipes *io, void *arg) {
  struct hs h[7];
  char text[32], whole[128];
  unsigned int first = free_range(6), order[6];
  bool taken[6] = {false};
  (void)arg;
  snprintf(text, sizeof text, "%u-%u", first, first + 5);
  setenv("RAIL_SOCKET_PORTS", text, 1);
  for (int i = 0; i < 6; i++) {
    begin(&h[i]);
    hs_listen(&h[i], DEV_A);
    unsigned int port = rail_addr_port(&h[i].decoded.addrs[0]);
    ENSURE(port >= first && port < first + 6 && !taken[port - first], "port %u of %s", port, text);
    taken[port - first] = true;
    order[i] = port - first;
  }
  void *listen = &listen;
  begin(&h[6]);
  ENSURE_INT(sk_listen(&h[6].ctx, DEV_A, h[6].handle, &listen), RAIL_SYSTEM_ERROR);
  snprintf(whole, sizeof whole, "all 6 ports of RAIL_SOCKET_PORTS=%s are taken", text);
  ENSURE(!listen && log_said(whole), "it said: %s", log_lines);
  hs_close_listen(&h[3]); /* one is free again, and found */
  hs_listen(&h[6], DEV_A);
  ENSURE_INT(rail_addr_port(&h[6].decoded.addrs[0]), first + order[3]);
  for (int i = 0; i < 7; i++) hs_end(&h[i]);
  pipe_write(io, order, sizeof order);
}

TEST(a_range_of_ports) {
  unsigned int order[6], first[6];
  bool differ = false;
  for (int i = 0; i < 12; i++) { /* 12 processes that all begin with the same two ports: once in 30^11 */
    struct proc p = proc_start(child_range, NULL);
    pipe_read(&p.io, order, sizeof order);
    proc_join(&p);
    if (i == 0) memcpy(first, order, sizeof first);
    differ |= memcmp(first, order, sizeof first) != 0;
  }
  CHECK(differ);
}

static void child_rails(struct pipes *io, void *arg) {
  struct hs h;
  char text[32];
  unsigned int first = free_range(2);
  (void)io, (void)arg;
  snprintf(text, sizeof text, "%u-%u", first, first + 1);
  setenv("RAIL_SOCKET_PORTS", text, 1);
  begin(&h);
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  for (int i = 0; i < 2; i++) {
    unsigned int port = rail_addr_port(&h.decoded.addrs[i]);
    ENSURE(port == first || port == first + 1, "port %u of %s", port, text);
  }
  hs_end(&h);
}

TEST(a_port_for_each_rail) { in_child(child_rails, NULL); }

static void child_bad(struct pipes *io, void *arg) {
  struct hs h;
  const char *const *value = arg;
  (void)io;
  hs_begin(&h);
  setenv(value[0], value[1], 1);
  sk_params_load();
  sk_ports_load();
  ENSURE(log_said(value[0]) && log_said("allowed"), "it said: %s", log_lines);
  hs_pair(&h, DEV_A, DEV_A);
  hs_end(&h);
}

TEST(values_that_make_no_sense) {
  static const char *const bad[][2] = {
    {"RAIL_SOCKET_PORTS", "nonsense"}, {"RAIL_SOCKET_PORTS", "0-10"},      {"RAIL_SOCKET_PORTS", "5000-4000"},
    {"RAIL_SOCKET_PORTS", "5000-"},    {"RAIL_SOCKET_PORTS", "5000-70000"}, {"RAIL_SOCKET_PORTS", "-5000"},
    {"RAIL_SOCKET_PORTS", "5000-5010,5020"}, {"RAIL_SOCKET_BIND", "eth0"}, {"RAIL_SOCKET_BIND", "1.2.3"}};
  for (size_t i = 0; i < RAIL_COUNT_OF(bad); i++) in_child(child_bad, bad[i]);
}

static void child_bind(struct pipes *io, void *arg) {
  struct hs h;
  union rail_addr bound = {0};
  socklen_t len = sizeof bound;
  (void)io;
  setenv("RAIL_SOCKET_BIND", arg, 1);
  begin(&h);
  hs_pair(&h, DEV_B, DEV_A);
  ENSURE(getsockname(h.listen->reception->doors[0], &bound.sa, &len) == 0, "getsockname");
  if (bound.sa.sa_family == AF_INET) ENSURE_INT(bound.in.sin_addr.s_addr, htonl(INADDR_ANY));
  else ENSURE(IN6_IS_ADDR_UNSPECIFIED(&bound.in6.sin6_addr), "not bound to ::");
  ENSURE_INT(h.decoded.addrs[0].in.sin_addr.s_addr, htonl(0x7f000002));
  ENSURE_INT(rail_addr_port(&h.decoded.addrs[0]), rail_addr_port(&bound));
  hs_linked(hs_sent.fds[0], hs_received.fds[0]);
  hs_end(&h);
}

static void child_bind_elsewhere(struct pipes *io, void *arg) {
  struct hs h;
  void *listen = &listen;
  (void)io, (void)arg;
  setenv("RAIL_SOCKET_BIND", "192.0.2.77", 1);
  begin(&h);
  ENSURE_INT(sk_listen(&h.ctx, DEV_A, h.handle, &listen), RAIL_SYSTEM_ERROR);
  ENSURE(!listen && log_said("RAIL_SOCKET_BIND") && log_said("192.0.2.77"), "it said: %s", log_lines);
  hs_end(&h);
}

TEST(bound_to_all_addresses) { in_child(child_bind, "0.0.0.0"); }
TEST(bound_to_all_of_both_families) {
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) tap_skip_case("no IPv6 here");
  close(fd);
  in_child(child_bind, "::");
}
TEST(bound_to_an_address_that_is_not_here) { in_child(child_bind_elsewhere, NULL); }

/* ---- traffic class -------------------------------------------------------- */

static int option_of(int fd, int level, int option) {
  int value = -1;
  socklen_t len = sizeof value;
  ENSURE(getsockopt(fd, level, option, &value, &len) == 0, "getsockopt");
  return value;
}

static void check_class(int fd, int tos, int priority) {
  ENSURE_INT(option_of(fd, IPPROTO_IP, IP_TOS), tos);
  if (priority >= 0) ENSURE_INT(option_of(fd, SOL_SOCKET, SO_PRIORITY), priority);
}

/* What the peer's first packets were marked with: kept by the kernel where a
 * connection was accepted on a socket that asks for it. */
static int seen_tos(int fd) {
  char buf[256];
  socklen_t len = sizeof buf;
  ENSURE(getsockopt(fd, IPPROTO_IP, IP_PKTOPTIONS, buf, &len) == 0, "IP_PKTOPTIONS");
  struct msghdr msg = {.msg_control = buf, .msg_controllen = len};
  for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) return *(const uint8_t *)CMSG_DATA(c);
  return -1;
}

static void connect_with(struct hs *h, int of_ctx, int of_call, int expected_out, int expected_in) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(PATIENCE_MS));
  void *out = NULL, *in = NULL;
  int one = 1;
  h->ctx.traffic_class = of_ctx;
  hs_listen(h, DEV_A);
  CHECK(setsockopt(h->listen->reception->doors[0], IPPROTO_IP, IP_RECVTOS, &one, sizeof one) == 0);
  while (!out || !in) {
    if (!out) CHECK_OK(sk_connect(&h->ctx, DEV_A, h->handle, of_call, &out, NULL));
    if (!in) CHECK_OK(sk_accept(h->listen, &in, NULL));
    CHECK(!rail_deadline_passed(deadline));
  }
  check_class(hs_sent.fds[0], expected_out, expected_out ? expected_out >> 5 : -1);
  check_class(hs_received.fds[0], expected_in, expected_in ? expected_in >> 5 : -1);
  CHECK_INT(seen_tos(hs_received.fds[0]), expected_out);
  hs_close(&hs_sent);
  hs_close(&hs_received);
  hs_close_listen(h);
}

TEST(traffic_class) {
  struct hs h;
  hs_begin(&h);
  connect_with(&h, -1, -1, 0, 0);
  connect_with(&h, 0x68, -1, 0x68, 0x68);
  connect_with(&h, 0x68, 0xb8, 0xb8, 0x68);
  connect_with(&h, -1, 0xc0, 0xc0, 0);
  connect_with(&h, 300, -1, 0, 0);
  CHECK(log_said("traffic class 300"));
  sk_params.tc = 0x20;
  connect_with(&h, -1, 0xb8, 0x20, 0x20);
  connect_with(&h, -1, -1, 0x20, 0x20);
  hs_end(&h);
}

static void congestion_of(int fd, char name[16]) {
  socklen_t len = 16;
  CHECK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) == 0);
}

TEST(congestion_control) {
  struct hs h;
  char system[16] = "", got[16] = "";
  hs_begin(&h);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  congestion_of(fd, system);
  sk_params.congestion = "reno"; /* always there, and allowed to everybody */
  sk_sockopt_load();
  sk_sockopt_set(fd, -1);
  congestion_of(fd, got);
  CHECK_STR(got, "reno");
  close(fd);
  sk_params.congestion = "unheard-of";
  sk_sockopt_load();
  CHECK(log_said("RAIL_SOCKET_CONGESTION=unheard-of"));
  CHECK(log_said("reno")); /* what is allowed */
  fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sk_sockopt_set(fd, -1);
  congestion_of(fd, got);
  CHECK_STR(got, system);
  close(fd);
  sk_params.congestion = NULL;
  sk_sockopt_load();
  hs_end(&h);
}

TEST_MAIN(TEST_CASE(a_range_of_ports), TEST_CASE(a_port_for_each_rail), TEST_CASE(values_that_make_no_sense),
          TEST_CASE(bound_to_all_addresses), TEST_CASE(bound_to_all_of_both_families),
          TEST_CASE(bound_to_an_address_that_is_not_here), TEST_CASE(traffic_class),
          TEST_CASE(congestion_control))
