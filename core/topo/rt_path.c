/* SPDX-License-Identifier: Apache-2.0 */
#include "core/topo/rt_path.h"

#include <stdio.h>

enum rt_distance rt_path_distance(const char *sysfs, const char *bus_a, const char *bus_b) {
  struct rt_pci a, b;
  rt_pci_find(sysfs, bus_a, &a);
  rt_pci_find(sysfs, bus_b, &b);
  return rt_pci_distance(&a, &b);
}

const char *rt_path_refusal(enum rt_distance path, enum rt_distance farthest, bool reachable, char *text, size_t size) {
  if (farthest == RT_LOC)
    snprintf(text, size, "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL says so");
  else if (path > farthest)
    snprintf(text, size, "the GPUs' distance is %s, NCCL_P2P_LEVEL allows %s", rt_distance_name(path),
             rt_distance_name(farthest));
  else if (!reachable)
    snprintf(text, size, "the driver lets neither GPU reach the other's memory (distance %s)", rt_distance_name(path));
  else
    return NULL;
  return text;
}
