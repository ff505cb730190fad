/* SPDX-License-Identifier: Apache-2.0
 * RDMA devices in sysfs. */
#include "plugin/ib/ib_sysfs.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/ifaddr.h"
#include "plugin/ib/ib_gid.h"
#include "plugin/ib/ib_verbs.h"

const char *ib_sysfs_root(void) {
  const char *root = ib_verbs.get_sysfs_path ? ib_verbs.get_sysfs_path() : NULL;
  return root && *root ? root : "/sys";
}

/* Writes `digits` over the end of a PCI path, "....:DD.F", if there is such a function. */
static void fold(char *path, const char *digits) {
  char folded[256];
  size_t len = strlen(path), n = strlen(digits);
  memcpy(folded, path, len + 1);
  memcpy(folded + len - n, digits, n);
  if (access(folded, F_OK) == 0) memcpy(path, folded, len + 1);
}

void ib_sysfs_pci_paths(const char *root, const char *hca, bool merge_vfs, char own[256], char card[256]) {
  char link[PATH_MAX], physical[256];
  own[0] = card[0] = 0;
  snprintf(link, sizeof link, "%s/class/infiniband/%s/device", root, hca);
  if (!rail_pci_path(link, own, 256)) {
    own[0] = 0;
    return;
  }
  memcpy(card, own, 256);
  snprintf(link, sizeof link, "%s/physfn", own);
  if (merge_vfs && rail_pci_path(link, physical, sizeof physical) && strcmp(physical, own) != 0)
    memcpy(card, physical, sizeof physical);
  fold(card, "0");
  /* In a guest a virtual function does not say what it belongs to: NCCL goes by the number. */
  if (merge_vfs) fold(card, "00.0");
}

/* First bytes of a file; false if it cannot be read, or is empty. */
static bool read_file(const char *path, char *text, size_t cap) {
  FILE *file = fopen(path, "re");
  if (!file) return false;
  bool good = fgets(text, (int)cap, file) != NULL;
  fclose(file);
  return good;
}

uint8_t ib_sysfs_gid_type(const char *root, const char *hca, unsigned int port, unsigned int index) {
  char path[PATH_MAX], text[32];
  snprintf(path, sizeof path, "%s/class/infiniband/%s/ports/%u/gid_attrs/types/%u", root, hca, port, index);
  if (!read_file(path, text, sizeof text)) return IB_GID_UNKNOWN;
  if (strncmp(text, "RoCE v2", 7) == 0) return IB_GID_ROCE_V2;
  /* The kernel's one word for InfiniBand and RoCE v1. The link says which. */
  return strncmp(text, "IB/RoCE v1", 10) == 0 ? IB_GID_ROCE_V1 : IB_GID_UNKNOWN;
}

bool ib_sysfs_has_peer_memory(const char *root) {
  static const char *const signs[] = {"module/nvidia_peermem/version", "kernel/mm/memory_peers/nv_mem/version",
                                      "kernel/mm/memory_peers/nv_mem_nc/version"};
  char path[PATH_MAX];
  for (size_t i = 0; i < RAIL_COUNT_OF(signs); i++) {
    snprintf(path, sizeof path, "%s/%s", root, signs[i]);
    if (access(path, F_OK) == 0) return true;
  }
  return false;
}
