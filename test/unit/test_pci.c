/* SPDX-License-Identifier: Apache-2.0
 * Proves: the distance between two GPUs follows from their places in a tree of sysfs; NCCL_P2P_LEVEL takes NCCL's words
 * and older numbers; what is refused says why. */
#include "core/topo/rt_pci.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

/* Two NUMA nodes. Node 0: switch 01 with GPUs 03 and 04, switch 05 below it with GPU 07; root port 08 with GPU 09; a
 * second root complex, 20, with GPU 21. Node 1: GPU 81. GPUs 91 and a1 are of no node. */
static const struct { const char *place, *bus; int node; } devices[] = {
    {"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0", "0000:03:00.0", 0},
    {"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0", "0000:04:00.0", 0},
    {"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.1", "0000:04:00.1", 0},
    {"pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0", "0000:07:00.0", 0},
    {"pci0000:00/0000:00:02.0/0000:09:00.0", "0000:09:00.0", 0},
    {"pci0000:20/0000:20:01.0/0000:21:00.0", "0000:21:00.0", 0},
    {"pci0000:80/0000:80:01.0/0000:81:00.0", "0000:81:00.0", 1},
    {"pci0000:90/0000:90:01.0/0000:91:00.0", "0000:91:00.0", -1},
    {"pci0000:a0/0000:a0:01.0/0000:a1:00.0", "0000:a1:00.0", -1},
};

static char top[512];

static void make_dirs(const char *path) {
  char part[1024];
  for (size_t n = 1; n <= strlen(path); n++) {
    if (path[n] != '/' && path[n] != 0) continue;
    snprintf(part, sizeof part, "%.*s", (int)n, path);
    mkdir(part, 0700);
  }
}

static void make_tree(void) {
  const char *tmp = getenv("TMPDIR");
  char dir[1024], link[1024], file[1100];
  snprintf(top, sizeof top, "%s/test-path-XXXXXX", tmp ? tmp : "/tmp");
  if (!mkdtemp(top)) abort();
  snprintf(dir, sizeof dir, "%s/bus/pci/devices", top);
  make_dirs(dir);
  for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
    snprintf(dir, sizeof dir, "%s/devices/%s", top, devices[i].place);
    snprintf(link, sizeof link, "%s/bus/pci/devices/%s", top, devices[i].bus);
    snprintf(file, sizeof file, "%s/numa_node", dir);
    make_dirs(dir);
    FILE *f = fopen(file, "w");
    CHECK_MSG(f && fprintf(f, "%d\n", devices[i].node) > 0 && symlink(dir, link) == 0, "%s cannot be made", dir);
    if (f) fclose(f);
  }
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
  (void)st, (void)kind, (void)at;
  return remove(path);
}

#define DISTANCE(a, b, expected)                                                     \
  do {                                                                               \
    CHECK_STR(rt_distance_name(rt_pci_bus_distance(top, a, b)), expected);                 \
    CHECK_STR(rt_distance_name(rt_pci_bus_distance(top, b, a)), expected);                 \
  } while (0)

TEST(distances) {
  make_tree();
  DISTANCE("0000:03:00.0", "0000:03:00.0", "LOC");
  DISTANCE("0000:A1:00.0", "0000:a1:00.0", "LOC"); /* as drivers spell it */
  DISTANCE("0000:03:00.0", "0000:04:00.0", "PIX"); /* ports of one switch */
  DISTANCE("0000:04:00.0", "0000:04:00.1", "PIX"); /* functions of one device */
  DISTANCE("0000:03:00.0", "0000:07:00.0", "PXB"); /* a switch below a switch */
  DISTANCE("0000:03:00.0", "0000:09:00.0", "PHB"); /* two root ports */
  DISTANCE("0000:09:00.0", "0000:21:00.0", "PHB"); /* two root complexes of one node */
  DISTANCE("0000:09:00.0", "0000:81:00.0", "SYS"); /* two nodes */
  DISTANCE("0000:91:00.0", "0000:a1:00.0", "PHB"); /* of no node, as where there is one processor */
  DISTANCE("0000:91:00.0", "0000:ff:00.0", "SYS"); /* that is not there */
  DISTANCE("0000:ee:00.0", "0000:ff:00.0", "SYS");
  DISTANCE("../../etc", "", "SYS");
  nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void level(const char *text, const char *expected, bool warned) {
  log_forget();
  rail_log_set_sink(log_capture);
  CHECK_STR(rt_distance_name(rt_distance_level("NCCL_P2P_LEVEL", text, RT_SYS)), expected);
  rail_log_set_sink(NULL);
  CHECK_MSG((strstr(log_warning, "NCCL_P2P_LEVEL") != NULL) == warned, "%s: \"%s\"", text ? text : "NULL", log_warning);
}

TEST(levels) {
  level(NULL, "SYS", false);
  level("", "SYS", false);
  static const char *const words[] = {"LOC", "NVL", "PIX", "PXB", "PHB", "SYS"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) level(words[i], words[i], false);
  level("pix", "PIX", false);
  static const char *const numbers[] = {"LOC", "PIX", "PXB", "PHB", "SYS", "SYS"};
  for (int i = 0; i < 6; i++) level((const char[]){(char)('0' + i), 0}, numbers[i], false);
  level("99", "SYS", false);
  level("-1", "SYS", true);
  level("PIXIE", "SYS", true);
  level("3x", "SYS", true);
}

static void refusal(enum rt_distance path, enum rt_distance farthest, bool reachable, const char *word) {
  char text[128];
  const char *why = rt_p2p_refusal(path, farthest, reachable, text, sizeof text);
  CHECK_MSG(word ? why && strstr(why, word) : !why, "path %d, farthest %d: %s", path, farthest, why ? why : "allowed");
}

TEST(refusals) {
  refusal(RT_LOC, RT_SYS, true, NULL);
  refusal(RT_PIX, RT_PIX, true, NULL);
  refusal(RT_PXB, RT_PIX, true, "PXB");
  refusal(RT_NVL, RT_SYS, false, "driver");
  refusal(RT_LOC, RT_LOC, true, "NCCL_P2P_DISABLE"); /* even within one GPU */
}

TEST_MAIN(TEST_CASE(distances), TEST_CASE(levels), TEST_CASE(refusals))
