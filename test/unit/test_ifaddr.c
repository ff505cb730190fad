/* SPDX-License-Identifier: Apache-2.0
 * Which interfaces are chosen, and what sysfs says of them. Tables and fake
 * sysfs trees; only one case looks at this machine. */
#include <arpa/inet.h>
#include <limits.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/ifaddr.h"
#include "common/base/log.h"
#include "test/harness/tap.h"

static struct rail_interface face(const char *name, const char *address, unsigned int prefix_len) {
  struct rail_interface f = {.prefix_len = prefix_len, .up = true};
  snprintf(f.name, sizeof f.name, "%s", name);
  if (rail_addr_parse(address, &f.addr) != RAIL_OK) abort();
  return f;
}

static union rail_addr parsed(const char *text) {
  union rail_addr addr;
  if (rail_addr_parse(text, &addr) != RAIL_OK) abort();
  return addr;
}

/* The chosen names with their addresses: "eth0=10.0.0.1:0 ib0=...". */
static const char *choose(const struct rail_interface *all, int n, const char *ifname, int family,
                          const char *hint_text, int cap) {
  static char text[1024];
  struct rail_interface out[RAIL_MAX_INTERFACES];
  union rail_addr hint;
  if (hint_text) hint = parsed(hint_text);
  int count = rail_interfaces_choose(all, n, ifname, family, hint_text ? &hint : NULL, out, cap);
  text[0] = 0;
  for (int i = 0; i < count; i++) {
    char addr[RAIL_ADDR_TEXT];
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s%s=%s", i ? " " : "", out[i].name, rail_addr_text(&out[i].addr, addr));
  }
  return text;
}

TEST(name_filter) {
  CHECK(rail_name_filter("eth", "eth0"));
  CHECK(!rail_name_filter("eth", "xeth0"));
  CHECK(rail_name_filter("ib,eth", "eth1"));
  CHECK(!rail_name_filter("ib,eth", "lo"));
  CHECK(rail_name_filter("=eth1", "eth1"));
  CHECK(!rail_name_filter("=eth1", "eth10"));
  CHECK(rail_name_filter("eth1", "eth10"));
  CHECK(!rail_name_filter("^docker,lo", "docker0"));
  CHECK(!rail_name_filter("^docker,lo", "lo"));
  CHECK(rail_name_filter("^docker,lo", "eth0"));
  CHECK(!rail_name_filter("^=eth1", "eth1"));
  CHECK(rail_name_filter("^=eth1", "eth10"));
  CHECK(rail_name_filter("", "anything"));
  CHECK(rail_name_filter(",,", "anything"));
  CHECK(rail_name_filter("^", "anything"));
  CHECK(rail_name_filter(",eth,", "eth0"));
}

#define HOST(...) const struct rail_interface all[] = {__VA_ARGS__}; const int n = sizeof all / sizeof all[0]

TEST(default_leaves_out_loopback_and_bridges) {
  HOST(face("lo", "127.0.0.1:0", 8), face("eth0", "10.0.0.1:0", 24), face("docker0", "172.17.0.1:0", 16),
       face("virbr0", "192.168.122.1:0", 24), face("eth1", "10.0.1.1:0", 24));
  CHECK_STR(choose(all, n, NULL, AF_UNSPEC, NULL, 16), "eth0=10.0.0.1:0 eth1=10.0.1.1:0");
  CHECK_STR(choose(all, n, "", AF_UNSPEC, NULL, 16), "eth0=10.0.0.1:0 eth1=10.0.1.1:0");
  CHECK_STR(choose(all, n, NULL, AF_UNSPEC, NULL, 1), "eth0=10.0.0.1:0");
  CHECK_STR(choose(all, n, NULL, AF_UNSPEC, NULL, 0), "");
}

TEST(default_order_of_last_resorts) {
  HOST(face("virbr0", "192.168.122.1:0", 24), face("lo", "127.0.0.1:0", 8), face("docker0", "172.17.0.1:0", 16));
  CHECK_STR(choose(all, n, NULL, AF_UNSPEC, NULL, 16), "docker0=172.17.0.1:0");
  CHECK_STR(choose(all, 2, NULL, AF_UNSPEC, NULL, 16), "lo=127.0.0.1:0");
  CHECK_STR(choose(all, 1, NULL, AF_UNSPEC, NULL, 16), "virbr0=192.168.122.1:0");
  CHECK_STR(choose(all, 0, NULL, AF_UNSPEC, NULL, 16), "");
}

TEST(infiniband_first) {
  HOST(face("eth0", "10.0.0.1:0", 24), face("ib0", "10.9.0.1:0", 24), face("ib1", "10.9.1.1:0", 24));
  CHECK_STR(choose(all, n, NULL, AF_UNSPEC, "10.0.0.7:1", 16), "ib0=10.9.0.1:0 ib1=10.9.1.1:0");
}

TEST(subnet_of_the_root) {
  HOST(face("eth0", "10.0.0.1:0", 24), face("eth1", "10.0.1.1:0", 20), face("docker0", "172.17.0.1:0", 16),
       face("eth2", "[2001:db8:1::1]:0", 64));
  CHECK_STR(choose(all, n, NULL, AF_UNSPEC, "10.0.15.200:1", 16), "eth1=10.0.1.1:0");
  CHECK_STR(choose(all, n, NULL, AF_UNSPEC, "172.17.3.3:1", 16), "docker0=172.17.0.1:0");
  CHECK_STR(choose(all, n, NULL, AF_UNSPEC, "[2001:db8:1::99]:1", 16), "eth2=[2001:db8:1::1]:0");
  /* a root elsewhere says nothing */
  CHECK_STR(choose(all, n, NULL, AF_INET, "192.0.2.1:1", 16), "eth0=10.0.0.1:0 eth1=10.0.1.1:0");
}

/* 22 bits: the third bytes 4 and 7 differ in bits that do not count, 4 and 9 in one that does. */
TEST(a_subnet_that_ends_within_a_byte) {
  HOST(face("eth0", "10.2.4.1:0", 22), face("eth1", "10.0.1.1:0", 20));
  CHECK_STR(choose(all, n, NULL, AF_INET, "10.2.7.200:1", 16), "eth0=10.2.4.1:0");
  CHECK_STR(choose(all, n, NULL, AF_INET, "10.2.9.5:1", 16), "eth0=10.2.4.1:0 eth1=10.0.1.1:0");
}

TEST(named_by_the_user) {
  HOST(face("lo", "127.0.0.1:0", 8), face("eth0", "10.0.0.1:0", 24), face("eth1", "10.0.1.1:0", 24),
       face("eth10", "10.0.2.1:0", 24));
  CHECK_STR(choose(all, n, "lo", AF_UNSPEC, NULL, 16), "lo=127.0.0.1:0");
  CHECK_STR(choose(all, n, "eth1", AF_UNSPEC, NULL, 16), "eth1=10.0.1.1:0 eth10=10.0.2.1:0");
  CHECK_STR(choose(all, n, "=eth1", AF_UNSPEC, NULL, 16), "eth1=10.0.1.1:0");
  CHECK_STR(choose(all, n, "^eth1,lo", AF_UNSPEC, NULL, 16), "eth0=10.0.0.1:0");
  CHECK_STR(choose(all, n, "wlan", AF_UNSPEC, NULL, 16), ""); /* no fall-back from an explicit choice */
}

TEST(one_address_per_interface) {
  HOST(face("eth0", "[fe80::1%2]:0", 64), face("eth0", "[2001:db8::1]:0", 64), face("eth0", "10.0.0.1:0", 24),
       face("eth0", "10.0.0.2:0", 24), face("eth1", "[fe80::2%3]:0", 64), face("eth2", "[fe80::3%4]:0", 64),
       face("eth2", "[2001:db8::3]:0", 64));
  CHECK_STR(choose(all, n, "eth", AF_UNSPEC, NULL, 16), "eth0=10.0.0.1:0 eth1=[fe80::2%3]:0 eth2=[2001:db8::3]:0");
  CHECK_STR(choose(all, n, "eth", AF_INET, NULL, 16), "eth0=10.0.0.1:0");
  CHECK_STR(choose(all, n, "eth", AF_INET6, NULL, 16),
            "eth0=[2001:db8::1]:0 eth1=[fe80::2%3]:0 eth2=[2001:db8::3]:0");
}

TEST(family_decides_the_fall_back) {
  HOST(face("eth0", "10.0.0.1:0", 24), face("lo", "[::1]:0", 128));
  CHECK_STR(choose(all, n, NULL, AF_INET6, NULL, 16), "lo=[::1]:0");
}

TEST(interfaces_that_are_down_are_not_used) {
  struct rail_interface all[] = {face("eth0", "10.0.0.1:0", 24), face("eth1", "10.0.1.1:0", 24)};
  all[0].up = false;
  CHECK_STR(choose(all, 2, NULL, AF_UNSPEC, NULL, 16), "eth1=10.0.1.1:0");
}

static int warned;
__attribute__((format(printf, 5, 6))) static void count_warnings(enum rail_log_level level, unsigned long flags,
                                                                 const char *file, int line, const char *fmt, ...) {
  (void)flags;
  (void)file;
  (void)line;
  (void)fmt;
  warned += level == RAIL_LOG_WARN;
}

TEST(family_words) {
  rail_log_set_sink(count_warnings);
  CHECK_INT(rail_family_from_text("AF_INET"), AF_INET);
  CHECK_INT(rail_family_from_text("AF_INET6"), AF_INET6);
  CHECK_INT(rail_family_from_text(NULL), AF_UNSPEC);
  CHECK_INT(rail_family_from_text(""), AF_UNSPEC);
  CHECK_INT(warned, 0);
  for (int i = 0; i < 2; i++) CHECK_INT(rail_family_from_text("ipv6"), AF_UNSPEC);
  CHECK_INT(warned, 1);
  rail_log_set_sink(NULL);
}

TEST(list_of_this_machine) {
  struct rail_interface *all = NULL;
  int n = rail_interfaces_list(&all);
  CHECK(n >= 0);
  for (int i = 0; i < n; i++) {
    CHECK(all[i].name[0] && all[i].up);
    CHECK_INT(rail_addr_port(&all[i].addr), 0);
    CHECK(all[i].prefix_len <= (all[i].addr.sa.sa_family == AF_INET ? 32 : 128));
    if (strcmp(all[i].name, "lo") == 0 && all[i].addr.sa.sa_family == AF_INET) CHECK_INT(all[i].prefix_len, 8);
  }
  free(all);
}

static bool is_listed(const char *name) {
  struct rail_interface *all = NULL;
  bool found = false;
  int n = rail_interfaces_list(&all);
  for (int i = 0; i < n; i++) found |= strcmp(all[i].name, name) == 0;
  free(all);
  return found;
}

/* A network of its own with a link ra0 without carrier. */
static bool network_of_its_own(void) {
  if (unshare(geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  return system("(ip link add ra0 type veth peer name rb0 && ip addr add 198.18.0.1/24 dev ra0 && "
                "ip link set ra0 up) >/dev/null 2>&1") == 0;
}

/* Without carrier, then with it. 0: as it should be; 77: no such network here. */
static int child_carrier(void) {
  if (!network_of_its_own()) return 77;
  if (is_listed("ra0")) return 1;
  if (system("ip link set rb0 up >/dev/null 2>&1") != 0) return 77;
  for (int i = 0; i < 2000 && !is_listed("ra0"); i++) usleep(5000);
  return is_listed("ra0") ? 0 : 2;
}

/* The kernel lists addresses by the link's index: 100 of ra0, then the one of rc0. */
static int child_many(void) {
  struct rail_interface found;
  if (!network_of_its_own() ||
      system("(ip link set rb0 up && for i in $(seq 2 101); do ip addr add 198.18.0.$i/24 dev ra0 || exit; done && "
             "ip link add rc0 type veth peer name rd0 && ip addr add 198.19.0.1/24 dev rc0 && ip link set rc0 up && "
             "ip link set rd0 up) >/dev/null 2>&1") != 0)
    return 77;
  for (int i = 0; i < 2000 && !is_listed("rc0"); i++) usleep(5000);
  if (!is_listed("rc0")) return 1;
  return rail_interfaces_find("=rc0", "AF_INET", NULL, &found, 1) == 1 && strcmp(found.name, "rc0") == 0 ? 0 : 2;
}

static void in_a_child(int (*body)(void)) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) _exit(body());
  CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) tap_skip_case("no network namespace with veths here (needs ip, and root)");
  CHECK_INT(WEXITSTATUS(status), 0);
}

TEST(interfaces_without_carrier_are_not_listed) { in_a_child(child_carrier); }

TEST(an_interface_behind_many_addresses_is_found) { in_a_child(child_many); }

/* ---- sysfs ------------------------------------------------------------ */

static char root[PATH_MAX];

static const char *at(const char *path) {
  static char full[2 * PATH_MAX];
  snprintf(full, sizeof full, "%s/%s", root, path);
  return full;
}

static void make_dirs(const char *path) {
  char full[2 * PATH_MAX];
  snprintf(full, sizeof full, "%s", at(path));
  for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
    *slash = 0;
    mkdir(full, 0700);
    *slash = '/';
  }
  mkdir(full, 0700);
}

static void put(const char *path, const char *text) {
  FILE *f = fopen(at(path), "w");
  if (!f || fputs(text, f) < 0 || fclose(f) != 0) abort();
}

/* A PCI NIC, a virtio NIC, a bridge, and odd values. */
static void make_sysfs(void) {
  char temp[] = "/tmp/rail-sysfs-XXXXXX", target[PATH_MAX + 64];
  CHECK(mkdtemp(temp) != NULL && realpath(temp, root) != NULL);
  make_dirs("devices/pci0000:3a/0000:3b:00.1");
  make_dirs("devices/pci0000:00/0000:00:03.0/virtio0");
  make_dirs("class/net/eth0");
  make_dirs("class/net/eth1");
  make_dirs("class/net/br0");
  make_dirs("class/net/ib0");
  make_dirs("class/net/eth2");
  make_dirs("devices/pci0000:3a/0000:3b:00.1/0000:3c:00.0-extra");
  snprintf(target, sizeof target, "%s/devices/pci0000:3a/0000:3b:00.1/0000:3c:00.0-extra", root);
  CHECK_OK(symlink(target, at("class/net/eth2/device")));
  snprintf(target, sizeof target, "%s/devices/pci0000:3a/0000:3b:00.1", root);
  CHECK_OK(symlink(target, at("class/net/eth0/device")));
  snprintf(target, sizeof target, "%s/devices/pci0000:00/0000:00:03.0/virtio0", root);
  CHECK_OK(symlink(target, at("class/net/eth1/device")));
  put("devices/pci0000:3a/0000:3b:00.1/vendor", "0x1d0f\n");
  put("devices/pci0000:00/0000:00:03.0/virtio0/vendor", "0x1af4\n");
  put("class/net/eth2/device/vendor", "0x1d0f1\n");
  put("class/net/eth0/speed", "100000\n");
  put("class/net/eth1/speed", "-1\n");
  put("class/net/br0/speed", "fast\n");
  put("class/net/eth2/speed", "0\n");
  put("class/net/eth0/address", "b8:ce:f6:01:02:03\n");
  put("class/net/eth1/address", "52:54:00:aa:bb:cc\n");
  put("class/net/br0/address", "00:00:00:00:00:00\n");
  put("class/net/ib0/address", "80:00:02:08:fe:80:00:00:00:00:00:00:b8:ce:f6:03:00:11:22:33\n");
}

static void remove_sysfs(void) {
  char command[PATH_MAX + 16];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  if (system(command) != 0) printf("# could not remove %s\n", root);
}

TEST(sysfs_facts) {
  char path[PATH_MAX], tiny[8];
  make_sysfs();
  CHECK_INT(rail_interface_speed(root, "eth0"), 100000);
  CHECK_INT(rail_interface_speed(root, "eth1"), 10000);
  CHECK_INT(rail_interface_speed(root, "br0"), 10000);
  CHECK_INT(rail_interface_speed(root, "nosuch"), 10000);
  CHECK_INT(rail_interface_speed(root, "eth2"), 10000); /* 0 */

  CHECK_INT(rail_interface_vendor(root, "eth0"), 0x1d0f);
  CHECK_INT(rail_interface_vendor(root, "eth1"), 0x1af4); /* what it says itself: not its PCI function */
  CHECK_INT(rail_interface_vendor(root, "eth2"), 0);      /* "0x1d0f1" */
  CHECK_INT(rail_interface_vendor(root, "br0"), 0);
  CHECK_INT(rail_interface_vendor(root, "nosuch"), 0);

  CHECK(rail_interface_pci_path(root, "eth0", path, sizeof path));
  CHECK_STR(path, at("devices/pci0000:3a/0000:3b:00.1"));
  CHECK(rail_interface_pci_path(root, "eth1", path, sizeof path));
  CHECK_STR(path, at("devices/pci0000:00/0000:00:03.0")); /* the function above virtio0 */
  CHECK(!rail_interface_pci_path(root, "br0", path, sizeof path));
  CHECK(!rail_interface_pci_path(root, "eth0", tiny, sizeof tiny));
  size_t need = strlen(at("devices/pci0000:3a/0000:3b:00.1")) + 1;
  path[need - 1] = 'x';
  CHECK(!rail_interface_pci_path(root, "eth0", path, need - 1) && path[need - 1] == 'x');
  CHECK(rail_interface_pci_path(root, "eth0", path, need));
  CHECK(rail_interface_pci_path(root, "eth2", path, sizeof path)); /* a folder that begins as an address is none */
  CHECK_STR(path, at("devices/pci0000:3a/0000:3b:00.1"));

  CHECK(rail_interface_guid(root, "eth0") == 0xb8cef6010203ull);
  CHECK(rail_interface_guid(root, "eth1") == 0x525400aabbccull);
  uint64_t bridge = rail_interface_guid(root, "br0"), ib = rail_interface_guid(root, "ib0");
  CHECK(bridge != 0 && bridge == rail_interface_guid(root, "br0"));
  CHECK(bridge != rail_interface_guid(root, "nosuch"));
  CHECK(ib != 0 && ib != rail_interface_guid(root, "nosuchib"));
  put("class/net/ib0/address", "80:00:02:08:fe:80:00:00:00:00:00:00:b8:ce:f6:03:00:11:22:34\n");
  CHECK(ib != rail_interface_guid(root, "ib0"));
  remove_sysfs();
}

TEST_MAIN(TEST_CASE(name_filter), TEST_CASE(default_leaves_out_loopback_and_bridges),
          TEST_CASE(default_order_of_last_resorts), TEST_CASE(infiniband_first), TEST_CASE(subnet_of_the_root),
          TEST_CASE(a_subnet_that_ends_within_a_byte),
          TEST_CASE(named_by_the_user), TEST_CASE(one_address_per_interface), TEST_CASE(family_decides_the_fall_back),
          TEST_CASE(interfaces_that_are_down_are_not_used), TEST_CASE(family_words), TEST_CASE(list_of_this_machine),
          TEST_CASE(interfaces_without_carrier_are_not_listed),
          TEST_CASE(an_interface_behind_many_addresses_is_found),
          TEST_CASE(sysfs_facts))
