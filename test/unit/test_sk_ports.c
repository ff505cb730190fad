/* SPDX-License-Identifier: Apache-2.0
 * Where listeners listen, how connections mark their packets, sizes that are asked for; what is counted of
 * connections. A process reads the parameters of the first once: those cases run in children. */
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <stdlib.h>

#include "plugin/socket/sk_param.h"
#include "test/unit/free_ports.h"
#include "test/unit/sk_handshake.h"

static void in_child(void (*fn)(struct pipes *io, void *arg)) {
  struct proc p = proc_start(fn, NULL);
  proc_join(&p);
}

static void begin(struct hs *h) {
  hs_begin(h);
  sk_ports_load();
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

TEST(a_port_for_each_rail) { in_child(child_rails); }

static void child_bad(struct pipes *io, void *arg) {
  struct hs h;
  (void)io, (void)arg;
  hs_begin(&h);
  setenv("RAIL_SOCKET_PORTS", "nonsense", 1);
  setenv("RAIL_SOCKET_BIND", "eth0", 1);
  sk_params_load();
  sk_ports_load();
  ENSURE(log_said("RAIL_SOCKET_PORTS=nonsense") && log_said("RAIL_SOCKET_BIND=eth0"), "it said: %s", log_lines);
  hs_pair(&h, DEV_A, DEV_A);
  hs_end(&h);
}

TEST(values_that_make_no_sense) { in_child(child_bad); }

static void child_bind(struct pipes *io, void *arg) {
  struct hs h;
  union rail_addr bound = {0};
  socklen_t len = sizeof bound;
  (void)io, (void)arg;
  setenv("RAIL_SOCKET_BIND", "0.0.0.0", 1);
  begin(&h);
  hs_pair(&h, DEV_B, DEV_A);
  ENSURE(getsockname(h.listen->acceptor->listener.fds[0], &bound.sa, &len) == 0, "getsockname");
  ENSURE_INT(bound.in.sin_addr.s_addr, htonl(INADDR_ANY));
  ENSURE_INT(h.decoded.addrs[0].in.sin_addr.s_addr, htonl(0x7f000002));
  ENSURE_INT(rail_addr_port(&h.decoded.addrs[0]), rail_addr_port(&bound));
  hs_linked(hs_sent.fds[0], hs_received.fds[0]);
  hs_end(&h);
}

TEST(bound_to_all_addresses) { in_child(child_bind); }

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
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  void *out = NULL, *in = NULL;
  int one = 1;
  h->ctx->traffic_class = of_ctx;
  hs_listen(h, DEV_A);
  CHECK(setsockopt(h->listen->acceptor->listener.fds[0], IPPROTO_IP, IP_RECVTOS, &one, sizeof one) == 0);
  while (!out || !in) {
    if (!out) CHECK_OK(sk_connect(h->ctx, DEV_A, h->handle, of_call, &out, NULL));
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

static int buffer_of(int fd, int option) {
  int size = 0;
  socklen_t len = sizeof size;
  ENSURE(getsockopt(fd, SOL_SOCKET, option, &size, &len) == 0, "no buffer size");
  return size;
}

TEST(each_buffer_has_its_own_size) {
  struct hs h;
  hs_begin(&h);
  sk_params.sndbuf = 32 * 1024;
  sk_params.rcvbuf = 64 * 1024;
  hs_pair(&h, DEV_A, DEV_A);
  for (int i = 0; i < 2; i++) { /* the kernel doubles what it is asked for */
    int fd = i ? hs_received.fds[0] : hs_sent.fds[0];
    CHECK_INT(buffer_of(fd, SO_SNDBUF), 2 * 32 * 1024);
    CHECK_INT(buffer_of(fd, SO_RCVBUF), 2 * 64 * 1024);
  }
  hs_end(&h);
}

TEST(eager_bytes_that_are_too_few_are_raised) {
  setenv("RAIL_SOCKET_EAGER_BYTES", "4096", 1);
  rail_log_set_sink(log_capture);
  sk_params_load();
  unsetenv("RAIL_SOCKET_EAGER_BYTES");
  CHECK(log_said("RAIL_SOCKET_EAGER_BYTES=4096 is too small for RAIL_SOCKET_EAGER="));
  CHECK_INT(sk_params.eager_bytes, SK_MIN_EAGER_BYTES((uint32_t)sk_params.eager));
  sk_params_load();
  rail_log_set_sink(NULL);
}

/* The feature is off where no more may go ahead than without it, or nothing at all. */
TEST(how_much_goes_ahead) {
  static const struct { int64_t ahead, bytes, eager, size; bool feature; } cases[] = {
    {256 * 1024, 8 << 20, 32 * 1024, 256 * 1024, true},
    {64 * 1024 + 1, 8 << 20, 1, 64 * 1024 + 1, true},
    {1 << 20, 1 << 20, 32 * 1024, (1 << 18) - 128, true}, /* a quarter of the eager bytes */
    {0, 8 << 20, 32 * 1024, 32 * 1024, false},
    {64 * 1024, 8 << 20, 32 * 1024, 32 * 1024, false},
    {256 * 1024, 8 << 20, 0, 0, false},
    {1 << 20, 4 * (32 * 1024 + 128), 32 * 1024, 32 * 1024, false}};
  for (size_t i = 0; i < RAIL_COUNT_OF(cases); i++) {
    struct hs h;
    hs_begin(&h);
    sk_params.eager = cases[i].eager;
    sk_params.ahead = cases[i].ahead;
    sk_params.eager_bytes = cases[i].bytes;
    hs_pair(&h, DEV_A, DEV_A);
    CHECK_INT(hs_sent.eager_size, cases[i].size);
    CHECK_INT(hs_received.eager_size, cases[i].size);
    CHECK_INT(hs_received.features, cases[i].feature ? SK_FEATURE_AHEAD : 0);
    hs_end(&h);
  }
}

static uint64_t counted(enum sk_stats_device counter) {
  const uint64_t *record = sk_stats_device("lo0");
  ENSURE(record, "no record");
  return rail_stats_get(&record[counter]);
}

TEST(what_is_counted) {
  struct hs h;
  setenv("RAIL_STATS", "0", 1);
  CHECK_OK(sk_stats_open());
  hs_begin(&h);
  hs_pair(&h, DEV_A, DEV_A);
  CHECK_INT(counted(SK_DEVICE_CONNECTS), 1);
  CHECK_INT(counted(SK_DEVICE_ACCEPTS), 1);
  struct sk_hello_bytes w = sk_make_hello(&h.decoded, (struct rail_hello){.streams = 9}, (struct sk_limits){0}, 0);
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_accept_none, &h), SK_REASON_STREAMS);
  memset(&w, 'x', sizeof w);
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_accept_none, &h), HS_DROPPED);
  CHECK_INT(counted(SK_DEVICE_REFUSED), 1);
  CHECK_INT(counted(SK_DEVICE_DROPPED), 1);
  hs_end(&h);
  sk_stats_close();
}

/* Both calls fail, and neither is counted or logged as a connection. */
TEST(no_memory_for_a_comm) {
  struct hs h;
  void *comm;
  rail_result_t connected, accepted;
  setenv("RAIL_STATS", "0", 1);
  CHECK_OK(sk_stats_open());
  hs_begin(&h);
  hs_listen(&h, DEV_A);
  hs_refuse = true;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while ((connected = sk_connect(h.ctx, DEV_A, h.handle, -1, &comm, NULL)) == RAIL_OK)
    ENSURE(!rail_deadline_passed(deadline), "connect does not end");
  while ((accepted = sk_accept(h.listen, &comm, NULL)) == RAIL_OK)
    ENSURE(!rail_deadline_passed(deadline), "accept does not end");
  hs_refuse = false;
  CHECK(connected == RAIL_SYSTEM_ERROR && accepted == RAIL_SYSTEM_ERROR);
  CHECK_INT(counted(SK_DEVICE_CONNECTS), 0);
  CHECK_INT(counted(SK_DEVICE_ACCEPTS), 0);
  CHECK(!log_said("connected from") && !log_said("accepted"));
  hs_end(&h);
  sk_stats_close();
}

TEST_MAIN(TEST_CASE(a_port_for_each_rail), TEST_CASE(values_that_make_no_sense), TEST_CASE(bound_to_all_addresses),
          TEST_CASE(traffic_class), TEST_CASE(congestion_control), TEST_CASE(each_buffer_has_its_own_size),
          TEST_CASE(eager_bytes_that_are_too_few_are_raised), TEST_CASE(how_much_goes_ahead),
          TEST_CASE(what_is_counted), TEST_CASE(no_memory_for_a_comm))
