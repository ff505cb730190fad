/* SPDX-License-Identifier: Apache-2.0
 * Proves: sets of CPUs as text, and which CPUs sysfs says to be near a network card. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/cpus.h"
#include "common/base/ifaddr.h"
#include "test/harness/tap.h"

/* ---- text ---------------------------------------------------------------------- */

static const struct { const char *text, *again; int count; } good[] = {
  {"", "none", 0},
  {"0", "0", 1},
  {"0-3,8-11", "0-3,8-11", 8},
  {"5,3,4", "3-5", 3},
  {"0-1,1-2", "0-2", 3},
  {"7-7", "7", 1},
  {"1022-1030", "1022-1023", 2},
  {"2000", "none", 0},
  {"0-2147483647", "0-1023", CPU_SETSIZE},
};

static const char *const bad[] = {"x", "0-", "-3", "3-1", "0,", ",0", "0,,1", "0 1", " 0", "+1", "0-3:1/2", "0-3\n",
                                  "2147483648", "99999999999999999999", "0-1-2"};

TEST(text_of_cpus) {
  cpu_set_t cpus;
  char text[RAIL_CPUS_TEXT];
  for (size_t i = 0; i < RAIL_COUNT_OF(good); i++) {
    CHECK_MSG(rail_cpus_parse(good[i].text, &cpus), "'%s'", good[i].text);
    CHECK_INT(CPU_COUNT(&cpus), good[i].count);
    CHECK_STR(rail_cpus_text(&cpus, text), good[i].again);
  }
  for (size_t i = 0; i < RAIL_COUNT_OF(bad); i++)
    CHECK_MSG(!rail_cpus_parse(bad[i], &cpus) && CPU_COUNT(&cpus) == 0, "'%s'", bad[i]);
}

TEST(text_that_does_not_fit) {
  cpu_set_t cpus;
  char text[RAIL_CPUS_TEXT];
  CPU_ZERO(&cpus);
  for (size_t i = 0; i < CPU_SETSIZE; i += 2) CPU_SET(i, &cpus);
  size_t len = strlen(rail_cpus_text(&cpus, text));
  CHECK(len < RAIL_CPUS_TEXT && len > RAIL_CPUS_TEXT - 10);
  CHECK(strncmp(text, "0,2,4,", 6) == 0);
  CHECK_STR(text + len - 4, ",...");
}

/* ---- sysfs --------------------------------------------------------------------- */

static char root[PATH_MAX];

static const char *at(const char *relative) {
  static char path[PATH_MAX + 128];
  snprintf(path, sizeof path, "%s/%s", root, relative);
  return path;
}

static void make(const char *relative) {
  char command[PATH_MAX + 160];
  snprintf(command, sizeof command, "mkdir -p '%s'", at(relative));
  CHECK(system(command) == 0);
}

static void put(const char *relative, const char *text) {
  FILE *file = fopen(at(relative), "w");
  CHECK(file && fputs(text, file) >= 0);
  if (file) fclose(file);
}

static void remove_file(const char *relative) { CHECK_OK(unlink(at(relative))); }

static void check(const char *interface, const char *want) {
  cpu_set_t cpus;
  char text[RAIL_CPUS_TEXT];
  memset(&cpus, 0xff, sizeof cpus);
  bool known = rail_interface_cpus(root, interface, &cpus);
  CHECK_STR(rail_cpus_text(&cpus, text), want);
  CHECK_INT(known, strcmp(want, "none") != 0);
}

TEST(cpus_near_an_interface) {
  char temp[] = "/tmp/rail-sysfs-XXXXXX", target[PATH_MAX + 64], command[PATH_MAX + 16], list[12000] = "";
  CHECK(mkdtemp(temp) != NULL && realpath(temp, root) != NULL);
  make("class/net/eth0/device"); /* as a card's */
  make("class/net/br0");         /* as a virtual interface's */
  make("devices/system/node/node0");
  make("devices/system/node/node1");
  make("devices/pci0000:00/0000:00:03.0/virtio0");
  make("class/net/eth1");
  snprintf(target, sizeof target, "%s/devices/pci0000:00/0000:00:03.0/virtio0", root);
  CHECK_OK(symlink(target, at("class/net/eth1/device")));
  put("devices/system/node/node0/cpulist", "0-3,8-11\n");
  put("devices/system/node/node1/cpulist", "\n"); /* memory only */
  check("br0", "none");
  check("nosuch", "none");
  check("eth0", "none");

  put("class/net/eth0/device/numa_node", "0\n");
  check("eth0", "0-3,8-11");
  put("class/net/eth0/device/local_cpulist", "2-3\n");
  check("eth0", "2-3"); /* it wins */
  put("class/net/eth0/device/local_cpulist", "\n");
  check("eth0", "0-3,8-11");
  put("class/net/eth0/device/local_cpulist", "2-\n");
  check("eth0", "0-3,8-11");
  for (int i = 0; i < 1100; i++) sprintf(list + strlen(list), "%s%d", i ? "," : "", 10000 + i); /* more than is read */
  put("class/net/eth0/device/local_cpulist", list);
  check("eth0", "0-3,8-11");
  remove_file("class/net/eth0/device/local_cpulist");
  static const char *const nodes[] = {"-1\n", "1\n", "2\n", "x\n", "\n", "0x\n", ""};
  for (size_t i = 0; i < RAIL_COUNT_OF(nodes); i++) {
    put("class/net/eth0/device/numa_node", nodes[i]);
    check("eth0", "none");
  }

  check("eth1", "none"); /* what has the files is the PCI function above */
  put("devices/pci0000:00/0000:00:03.0/numa_node", "0\n");
  check("eth1", "0-3,8-11");
  put("devices/pci0000:00/0000:00:03.0/local_cpulist", "0-1\n");
  check("eth1", "0-1");
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  CHECK(system(command) == 0);
}

TEST_MAIN(TEST_CASE(text_of_cpus), TEST_CASE(text_that_does_not_fit), TEST_CASE(cpus_near_an_interface))
