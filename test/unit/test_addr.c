/* SPDX-License-Identifier: Apache-2.0
 * Addresses as text and on the wire. */
#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>

#include "common/base/sock.h"
#include "test/harness/tap.h"

TEST(text_round_trip) {
  static const char *const texts[] = {
    "1.2.3.4:5", "255.255.255.255:65535", "0.0.0.0:0", "[::1]:5", "[2001:db8::7]:80", "[fe80::1%7]:9",
  };
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    union rail_addr addr;
    char text[RAIL_ADDR_TEXT];
    CHECK_OK(rail_addr_parse(texts[i], &addr));
    CHECK_STR(rail_addr_text(&addr, text), texts[i]);
  }
}

TEST(longest_text_fits) {
  union rail_addr addr = {.in6 = {.sin6_family = AF_INET6, .sin6_scope_id = UINT32_MAX, .sin6_port = 0xffff}};
  char text[RAIL_ADDR_TEXT];
  memset(&addr.in6.sin6_addr, 0xff, 16);
  rail_addr_text(&addr, text);
  CHECK_STR(strrchr(text, ']'), "]:65535");
}

TEST(unset_address_has_a_text) {
  union rail_addr addr = {.sa = {.sa_family = AF_UNSPEC}};
  char text[RAIL_ADDR_TEXT];
  CHECK(strstr(rail_addr_text(&addr, text), "no address") != NULL);
}

TEST(parse_refuses) {
  static const char *const bad[] = {
    "", ":", "1.2.3.4", "1.2.3.4:", ":5", "1.2.3.4:65536", "1.2.3.4:-1", "1.2.3.4:5x", "1.2.3.4: 5", "::1:5",
    "[::1]", "[::1]5", "[::1", "[]:5", "[fe80::1%nosuchif0]:5", "[fe80::1%]:5", "1.2.3.4:000005",
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    union rail_addr addr;
    CHECK_MSG(rail_addr_parse(bad[i], &addr) == RAIL_BAD_ARGUMENT, "\"%s\" was taken", bad[i]);
  }
  union rail_addr addr;
  CHECK_INT(rail_addr_parse(NULL, &addr), RAIL_BAD_ARGUMENT);
}

TEST(parse_resolves_names) {
  union rail_addr addr;
  char text[RAIL_ADDR_TEXT];
  struct addrinfo *known = NULL;
  if (getaddrinfo("localhost", NULL, NULL, &known) != 0) tap_skip_case("this machine cannot resolve localhost");
  freeaddrinfo(known);
  CHECK_OK(rail_addr_parse("localhost:77", &addr));
  CHECK_INT(rail_addr_port(&addr), 77);
  rail_addr_text(&addr, text);
  CHECK_MSG(strncmp(text, "127.", 4) == 0 || strncmp(text, "[::1]", 5) == 0, "localhost is %s", text);
}

TEST(scope_by_interface_name) {
  unsigned int lo = if_nametoindex("lo");
  union rail_addr addr;
  if (!lo) tap_skip_case("no interface called lo");
  CHECK_OK(rail_addr_parse("[fe80::1%lo]:1", &addr));
  CHECK_INT(addr.in6.sin6_scope_id, lo);
}

TEST(same_host) {
  union rail_addr a, b, c, d;
  CHECK_OK(rail_addr_parse("1.2.3.4:5", &a));
  CHECK_OK(rail_addr_parse("1.2.3.4:6", &b));
  CHECK_OK(rail_addr_parse("1.2.3.5:5", &c));
  CHECK_OK(rail_addr_parse("[::1]:5", &d));
  CHECK(rail_addr_same_host(&a, &b));
  CHECK(!rail_addr_same_host(&a, &c));
  CHECK(!rail_addr_same_host(&a, &d));
  CHECK(rail_addr_same_host(&d, &d));
  CHECK_OK(rail_addr_parse("[fe80::1%1]:5", &a));
  CHECK_OK(rail_addr_parse("[fe80::1%2]:5", &b));
  CHECK(!rail_addr_same_host(&a, &b));
}

TEST(wire_round_trip) {
  static const char *const texts[] = {"10.1.2.3:4567", "[2001:db8::9]:1", "[fe80::a%3]:65535"};
  for (size_t i = 0; i < 3; i++) {
    union rail_addr in, out;
    struct rail_addr_wire wire;
    char text[RAIL_ADDR_TEXT];
    CHECK_OK(rail_addr_parse(texts[i], &in));
    memset(&wire, 0xa5, sizeof wire);
    rail_addr_pack(&in, &wire);
    CHECK(rail_addr_unpack(&wire, &out));
    CHECK_STR(rail_addr_text(&out, text), texts[i]);
    CHECK_INT(rail_addr_len(&out), i == 0 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
  }
}

TEST(wire_golden_bytes) {
  static const uint8_t golden[24] = {4, 0, 0x11, 0xd7, 0, 0, 0, 0, 10, 1, 2, 3};
  union rail_addr in;
  struct rail_addr_wire wire;
  CHECK_OK(rail_addr_parse("10.1.2.3:4567", &in));
  rail_addr_pack(&in, &wire);
  CHECK(memcmp(&wire, golden, sizeof golden) == 0);
}

TEST(unpack_refuses) {
  struct rail_addr_wire good, bad;
  union rail_addr addr;
  CHECK_OK(rail_addr_parse("10.1.2.3:4567", &addr));
  rail_addr_pack(&addr, &good);
  CHECK(rail_addr_unpack(&good, &addr));
  for (int family = 0; family < 256; family++) {
    bad = good;
    bad.family = (uint8_t)family;
    if (family != 4 && family != 6) CHECK(!rail_addr_unpack(&bad, &addr));
  }
  bad = good;
  bad.zero = 1;
  CHECK(!rail_addr_unpack(&bad, &addr));
  bad = good;
  bad.ip[15] = 1;
  CHECK(!rail_addr_unpack(&bad, &addr));
  bad = good;
  bad.scope[0] = 1;
  CHECK(!rail_addr_unpack(&bad, &addr));
}

TEST_MAIN(TEST_CASE(text_round_trip), TEST_CASE(longest_text_fits), TEST_CASE(unset_address_has_a_text),
          TEST_CASE(parse_refuses), TEST_CASE(parse_resolves_names), TEST_CASE(scope_by_interface_name),
          TEST_CASE(same_host), TEST_CASE(wire_round_trip), TEST_CASE(wire_golden_bytes), TEST_CASE(unpack_refuses))
