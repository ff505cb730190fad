/* SPDX-License-Identifier: Apache-2.0
 * Which GID of a port is used: synthetic tables. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/if_packet.h>

#include "plugin/ib/ib_device.h"
#include "plugin/ib/ib_param.h"
#include "test/harness/tap.h"

static struct ib_gid gid(const char *address, uint8_t type) {
  struct ib_gid g = {.type = type, .valid = address != NULL};
  bool ipv6 = address && strchr(address, ':');
  if (address && !ipv6) g.raw[10] = g.raw[11] = 0xff;
  if (address && inet_pton(ipv6 ? AF_INET6 : AF_INET, address, g.raw + (ipv6 ? 0 : 12)) != 1) abort();
  return g;
}

#define V1 IB_GID_ROCE_V1
#define V2 IB_GID_ROCE_V2
#define HOLE gid(NULL, 0)
static struct ib_gid_table table;
#define TABLE(...)                                                              \
  do {                                                                          \
    const struct ib_gid rows_[] = {__VA_ARGS__};                                \
    memset(&table, 0, sizeof table);                                            \
    memcpy(table.gids, rows_, sizeof rows_);                                    \
    table.count = sizeof rows_ / sizeof rows_[0];                               \
  } while (0)

static struct ib_gid_prefs usual(void) {
  return (struct ib_gid_prefs){.index = -1, .family = AF_INET, .version = 2, .flid_index = 1};
}
static int choose(const struct ib_gid_prefs *prefs, const struct ib_gid *peer) {
  const char *why;
  int index = ib_gid_choose(&table, true, prefs, peer, &why);
  CHECK((index == IB_GID_NONE) == (why != NULL));
  return index;
}

TEST(the_first_that_is_wished_for) {
  struct ib_gid_prefs w = usual();
  TABLE(gid("fe80::1", V1), gid("fe80::1", V2), gid("10.0.0.1", V1), gid("10.0.0.1", V2), gid("10.0.1.1", V2));
  CHECK_INT(choose(&w, NULL), 3);
  w.version = 1;
  CHECK_INT(choose(&w, NULL), 2);
  TABLE(gid("10.0.0.1", V2), gid("10.0.1.1", V2));
  w.version = 2;
  CHECK_INT(choose(&w, NULL), 0);
}

TEST(holes_are_passed_over) {
  struct ib_gid_prefs w = usual();
  TABLE(HOLE, HOLE, gid("fe80::1", V2), HOLE, gid("10.0.0.1", V2));
  CHECK_INT(choose(&w, NULL), 4);
  TABLE(HOLE, HOLE, gid("fe80::1", V2), HOLE);
  CHECK_INT(choose(&w, NULL), 2); /* index 0 is what NCCL takes, but there is nothing */
  TABLE(HOLE, HOLE);
  CHECK_INT(choose(&w, NULL), IB_GID_NONE);
  TABLE(gid("fe80::", V2), gid("::", V2)); /* a port without an address yet */
  CHECK_INT(choose(&w, NULL), IB_GID_NONE);
  memset(&table, 0, sizeof table);
  CHECK_INT(choose(&w, NULL), IB_GID_NONE);
}

TEST(ipv6_and_link_local) {
  struct ib_gid_prefs w = usual();
  TABLE(gid("fe80::1", V1), gid("fe80::1", V2), gid("fd00::5", V1), gid("fd00::5", V2));
  CHECK_INT(choose(&w, NULL), 0); /* as NCCL */
  w.family = AF_INET6;
  CHECK_INT(choose(&w, NULL), 3);
  TABLE(gid("fe80::1", V1), gid("fe80::1", V2));
  CHECK_INT(choose(&w, NULL), 0);
  TABLE(gid("169.254.3.4", V2), gid("10.0.0.1", V2));
  w.family = AF_INET;
  CHECK_INT(choose(&w, NULL), 1);
}

TEST(a_type_that_is_not_known_is_the_wished_one) {
  struct ib_gid_prefs w = usual();
  TABLE(gid("fe80::1", IB_GID_UNKNOWN), gid("10.0.0.1", IB_GID_UNKNOWN));
  CHECK_INT(choose(&w, NULL), 1);
}

TEST(ranges) {
  struct ib_gid_prefs w = usual();
  TABLE(gid("192.168.0.1", V2), gid("10.1.0.1", V2), gid("10.2.3.4", V2), gid("fd00:0:0:1::1", V2));
  CHECK(ib_gid_parse_range("10.2.0.0/15", &w));
  CHECK_INT(choose(&w, NULL), 2);
  CHECK(ib_gid_parse_range("10.0.0.0/14", &w));
  CHECK_INT(choose(&w, NULL), 1);
  CHECK(ib_gid_parse_range("0.0.0.0/0", &w));
  CHECK_INT(choose(&w, NULL), 0);
  CHECK(ib_gid_parse_range("10.2.3.4/32", &w));
  CHECK_INT(choose(&w, NULL), 2);
  CHECK(ib_gid_parse_range("fd00:0:0:1::/64", &w));
  w.family = AF_INET6;
  CHECK_INT(choose(&w, NULL), 3);
  static const char *const bad[] = {"", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "10.0.0.0/8x",
                                    "10.0.0.0/-1", "10.0.0.0/+8", "/8", "a/8", "10.0.0.0/ 8",
                                    "1111111111111111111111111111111111111111111111111111111/8"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    CHECK_MSG(!ib_gid_parse_range(bad[i], &w), "'%s' is taken for a range", bad[i]);
}

TEST(a_peer_of_the_same_subnet_decides) {
  struct ib_gid_prefs w = usual();
  TABLE(gid("fe80::1", V2), gid("10.0.1.1", V2), gid("10.0.2.1", V1), gid("10.0.2.1", V2), gid("10.0.3.1", V2));
  struct ib_gid peer = gid("10.0.2.9", V2), far = gid("172.16.0.1", V2), other = gid("fd00::1", V2);
  CHECK_INT(choose(&w, &peer), 3);
  CHECK_INT(choose(&w, &far), 1);
  CHECK_INT(choose(&w, &other), 1);
  w.index = 4; /* what the user says goes first */
  CHECK_INT(choose(&w, &peer), 4);
}

TEST(an_index_that_was_given) {
  struct ib_gid_prefs w = usual();
  TABLE(gid("fe80::1", V1), HOLE, gid("10.0.0.1", V1));
  w.index = 2;
  CHECK_INT(choose(&w, NULL), 2);
  w.index = 0;
  CHECK_INT(choose(&w, NULL), 0);
  w.index = 1;
  CHECK_INT(choose(&w, NULL), IB_GID_NONE);
  w.index = 3;
  CHECK_INT(choose(&w, NULL), IB_GID_NONE);
}

TEST(infiniband) {
  struct ib_gid_prefs w = usual();
  const char *why;
  TABLE(gid("fe80::aa", IB_GID_IB), gid("fe80:0:7::aa", IB_GID_IB), gid("fe80:0:8::aa", IB_GID_IB));
  CHECK_INT(ib_gid_choose(&table, false, &w, NULL, &why), 1);
  w.flid_index = 2;
  CHECK_INT(ib_gid_choose(&table, false, &w, NULL, &why), 2);
  w.flid_index = 0;
  CHECK_INT(ib_gid_choose(&table, false, &w, NULL, &why), 0);
  w.flid_index = 9;
  w.index = 2; /* for RoCE only */
  CHECK_INT(ib_gid_choose(&table, false, &w, NULL, &why), 0);
  TABLE(gid("fe80::aa", IB_GID_IB), HOLE);
  w.flid_index = 1;
  CHECK_INT(ib_gid_choose(&table, false, &w, NULL, &why), 0);
}

TEST(subnets_and_text) {
  struct ib_gid a = gid("10.0.1.1", V2), b = gid("10.0.1.200", V2), c = gid("10.0.2.1", V2), d = gid("fd00::1", V2),
                e = gid("fd00::2", V2);
  char text[IB_GID_TEXT];
  CHECK(ib_gid_same_subnet(&a, &b, 24) && !ib_gid_same_subnet(&a, &c, 24) && ib_gid_same_subnet(&a, &c, 22));
  CHECK(!ib_gid_same_subnet(&a, &b, 32) && ib_gid_same_subnet(&a, &a, 128) && ib_gid_same_subnet(&a, &c, 0));
  CHECK(ib_gid_same_subnet(&d, &e, 64) && !ib_gid_same_subnet(&d, &e, 128) && !ib_gid_same_subnet(&a, &d, 0));
  CHECK(ib_gid_is_ipv4(&a) && !ib_gid_is_ipv4(&d));
  CHECK_STR(ib_gid_text(a.raw, text), "10.0.1.1");
  CHECK_STR(ib_gid_text(d.raw, text), "fd00::1");
}

TEST(socket_addresses) {
  const struct ib_gid ipv4 = gid("10.0.1.1", V2), ipv6 = gid("fd00::1", V2);
  struct sockaddr_storage addr;
  struct sockaddr_in in;
  struct sockaddr_in6 in6;
  char text[INET6_ADDRSTRLEN];
  ib_gid_to_sockaddr(ipv4.raw, 4711, &addr);
  memcpy(&in, &addr, sizeof in);
  CHECK(in.sin_family == AF_INET && in.sin_port == htons(4711));
  CHECK_STR(inet_ntop(AF_INET, &in.sin_addr, text, sizeof text), "10.0.1.1");
  ib_gid_to_sockaddr(ipv6.raw, 0, &addr);
  memcpy(&in6, &addr, sizeof in6);
  CHECK(in6.sin6_family == AF_INET6 && in6.sin6_port == 0);
  CHECK_STR(inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof text), "fd00::1");
}

/* ---- iWARP ------------------------------------------------------------------ */

static struct sockaddr_storage addresses[8];
static struct ifaddrs list[8];

static void interface(unsigned int i, const char *name, const char *address) {
  struct sockaddr_in in = {.sin_family = AF_INET};
  struct sockaddr_in6 in6 = {.sin6_family = AF_INET6};
  struct sockaddr_ll link = {.sll_family = AF_PACKET, .sll_halen = 6, .sll_addr = {2, [5] = (uint8_t)address[0]}};
  list[i] = (struct ifaddrs){.ifa_next = i + 1 < 8 ? &list[i + 1] : NULL, .ifa_name = (char *)name,
                             .ifa_addr = (struct sockaddr *)(void *)&addresses[i]};
  bool ipv6 = strchr(address, ':') != NULL;
  if (ipv6 && inet_pton(AF_INET6, address, &in6.sin6_addr) == 1) memcpy(&addresses[i], &in6, sizeof in6);
  else if (inet_pton(AF_INET, address, &in.sin_addr) == 1) memcpy(&addresses[i], &in, sizeof in);
  else memcpy(&addresses[i], &link, sizeof link);
}

/* An interface named twice, one with another MAC address, one without any address, one that is a VLAN of the first. */
TEST(addresses_of_the_interface_with_that_mac) {
  interface(0, "eth0", "a");
  interface(1, "eth1", "b");
  interface(2, "eth0.7", "a");
  interface(3, "eth1", "10.9.0.1");
  interface(4, "eth0", "10.1.0.1");
  interface(5, "eth0", "fe80::7");
  interface(6, "eth0.7", "fd00::7");
  interface(7, "tun0", "10.8.0.1");
  list[7].ifa_addr = NULL;
  TABLE(HOLE);
  table.gids[0] = (struct ib_gid){.raw = {2, 0, 0, 0, 0, 'a'}, .valid = true};
  ib_gid_table_of_interface(&table, list);
  CHECK_INT(table.count, 3);
  struct ib_gid first = gid("10.1.0.1", IB_GID_UNKNOWN), second = gid("fe80::7", 0), third = gid("fd00::7", 0);
  CHECK(memcmp(&table.gids[0], &first, sizeof first) == 0);
  CHECK(memcmp(table.gids[1].raw, second.raw, 16) == 0 && memcmp(table.gids[2].raw, third.raw, 16) == 0);
  struct ib_gid_prefs w = usual();
  CHECK_INT(choose(&w, NULL), 0);
  w.family = AF_INET6;
  CHECK_INT(choose(&w, NULL), 2); /* not link-local */
}

TEST(a_table_that_is_no_mac_stays) {
  interface(0, "eth0", "a");
  TABLE(gid("10.0.0.1", V1), gid("10.0.0.1", V2));
  ib_gid_table_of_interface(&table, list);
  CHECK_INT(table.count, 2);
  TABLE(HOLE);
  ib_gid_table_of_interface(&table, list);
  CHECK_INT(table.count, 1);
  table.gids[0] = (struct ib_gid){.raw = {2, 0, 0, 0, 0, 'z'}, .valid = true}; /* nobody's */
  ib_gid_table_of_interface(&table, list);
  CHECK_INT(table.count, 0);
  struct ib_gid_prefs w = usual();
  CHECK_INT(choose(&w, NULL), IB_GID_NONE);
}

TEST_MAIN(TEST_CASE(the_first_that_is_wished_for), TEST_CASE(holes_are_passed_over), TEST_CASE(ipv6_and_link_local),
          TEST_CASE(a_type_that_is_not_known_is_the_wished_one), TEST_CASE(ranges),
          TEST_CASE(a_peer_of_the_same_subnet_decides), TEST_CASE(an_index_that_was_given), TEST_CASE(infiniband),
          TEST_CASE(subnets_and_text), TEST_CASE(socket_addresses), TEST_CASE(addresses_of_the_interface_with_that_mac),
          TEST_CASE(a_table_that_is_no_mac_stays))
