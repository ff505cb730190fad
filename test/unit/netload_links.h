/* SPDX-License-Identifier: Apache-2.0
 * Where test_netload's plugins lie, and a directory of links to them with NCCL's file names. */
#ifndef RAIL_TEST_NETLOAD_LINKS_H
#define RAIL_TEST_NETLOAD_LINKS_H

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char fixtures[PATH_MAX]; /* BUILD/test */
static char links[PATH_MAX];    /* temporary: lib/, bin/ */

static const char *fixture(const char *name) {
  static char path[PATH_MAX + 64];
  snprintf(path, sizeof path, "%s/libnetfix_%s.so", fixtures, name);
  return path;
}

static void link_as(const char *target, const char *name) {
  char path[3 * PATH_MAX + 2];
  snprintf(path, sizeof path, "%s/%s", links, name);
  if (symlink(target, path) != 0) {
    perror(path);
    exit(1);
  }
}

static void make_links(const char *self) {
  static const char *const names[] = {"badinit", "nodev", "empty", "noclose", "noclose12", "bare", "late"};
  char temp[] = "/tmp/rail-netload-XXXXXX", path[2 * PATH_MAX], command[3 * PATH_MAX];
  if (!mkdtemp(temp)) exit(1);
  snprintf(links, sizeof links, "%s", temp);
  snprintf(path, sizeof path, "%s/lib", links);
  mkdir(path, 0700);
  snprintf(path, sizeof path, "%s/bin", links);
  mkdir(path, 0700);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    snprintf(path, sizeof path, "lib/libnccl-net-%s.so", names[i]);
    link_as(fixture(names[i]), path);
  }
  link_as(fixture("bare"), "lib/libnccl-net.so");
  link_as(fixture("v9"), "lib/libnccl-net-alpha.so");
  link_as(fixture("v9"), "lib/libodd.so");
  link_as(fixture("v9"), "lib/plain-file");
  link_as(fixture("v9"), "bin/libnccl-net-beside.so");
  /* A copy: through a link the program would know where it really lies. */
  snprintf(command, sizeof command, "cp '%s' '%s/bin/netload'", self, links);
  if (system(command) != 0) exit(1);
}

static void remove_links(void) {
  char command[PATH_MAX + 16];
  snprintf(command, sizeof command, "rm -rf '%s'", links);
  if (system(command) != 0) printf("# could not remove %s\n", links);
}

#endif
