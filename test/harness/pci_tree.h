/* SPDX-License-Identifier: Apache-2.0
 * A sysfs of one's own, in a directory that goes with it: places in a PCI tree, by number and by path. */
#ifndef RAIL_TEST_PCI_TREE_H
#define RAIL_TEST_PCI_TREE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kit/kit_ensure.h"

#define PCI_TREE_PATH 512

static void pci_tree_make(const char *path) {
  char part[PCI_TREE_PATH];
  for (size_t i = 1; i <= strlen(path); i++) {
    if (path[i] != '/' && path[i]) continue;
    ENSURE(snprintf(part, sizeof part, "%.*s", (int)i, path) < (int)sizeof part, "%s is too long", path);
    mkdir(part, 0700);
  }
}

__attribute__((unused)) static void pci_tree_open(char root[PCI_TREE_PATH]) {
  snprintf(root, PCI_TREE_PATH, "%s/rail-pci-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
  ENSURE(mkdtemp(root), "no directory %s", root);
}

/* `place`: the path below devices, "pci0000:3a/0000:3a:00.0/0000:3b:00.0". The full one comes back in `path`. */
__attribute__((unused)) static void pci_tree_add(const char *root, const char *place, int numa,
                                                 char path[PCI_TREE_PATH]) {
  char name[2 * PCI_TREE_PATH];
  ENSURE(snprintf(path, PCI_TREE_PATH, "%s/devices/%s", root, place) < PCI_TREE_PATH, "%s is too long", place);
  pci_tree_make(path);
  snprintf(name, sizeof name, "%s/numa_node", path);
  FILE *f = fopen(name, "w");
  ENSURE(f && fprintf(f, "%d\n", numa) > 0 && fclose(f) == 0, "%s cannot be written", name);
  snprintf(name, sizeof name, "%s/bus/pci/devices", root);
  pci_tree_make(name);
  snprintf(name, sizeof name, "%s/bus/pci/devices%s", root, strrchr(place, '/'));
  ENSURE(symlink(path, name) == 0, "no link %s", name);
}

__attribute__((unused)) static void pci_tree_close(const char *root) {
  char command[PCI_TREE_PATH + 16];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  ENSURE(system(command) == 0, "%s cannot be removed", root);
}

#endif
