/* SPDX-License-Identifier: Apache-2.0
 * The members of a fused device. */
#include "common/net/fuse.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/log.h"

static bool has_member(const int *members, int n, int dev) {
  for (int i = 0; i < n; i++)
    if (members[i] == dev) return true;
  return false;
}

/* Adds one device's members in their order. */
static rail_result_t add_members(const struct rail_fuse_rules *rules, const struct rail_fuse_device *device,
                                 int *members, int *count) {
  for (int k = 0; k < device->nmembers; k++) {
    int dev = device->members[k];
    if (has_member(members, *count, dev)) {
      RAIL_WARN("%s: makeVDevice: device %d is named twice", rules->plugin, dev);
      return RAIL_BAD_ARGUMENT;
    }
    if (*count == rules->max_members) {
      RAIL_WARN("%s: makeVDevice: more than %d devices; a fused device has 2 to %d", rules->plugin, rules->max_members,
                rules->max_members);
      return RAIL_BAD_ARGUMENT;
    }
    int at = (*count)++;
    for (; at > 0 && members[at - 1] > dev; at--) members[at] = members[at - 1];
    members[at] = dev;
  }
  return RAIL_OK;
}

/* The device that makeVDevice has made of these; -1: it has made none. */
static int find_same(const struct rail_fuse_rules *rules, int have, const int *members, int n) {
  struct rail_fuse_device device;
  for (int dev = 0; dev < have; dev++)
    if (rules->lookup(dev, &device) && device.nmembers == n && dev != members[0] &&
        memcmp(device.members, members, (size_t)n * sizeof *members) == 0)
      return dev;
  return -1;
}

rail_result_t rail_fuse_members(const struct rail_fuse_rules *rules, const struct rail_net_vprops_v12 *props,
                                int have, int *members, int *count, int *same) {
  *count = 0;
  *same = -1;
  if (props->ndevs < 1 || props->ndevs > (int)RAIL_COUNT_OF(props->devs)) {
    RAIL_WARN("%s: makeVDevice: %d devices; allowed: 1 to %d", rules->plugin, props->ndevs, rules->max_members);
    return RAIL_BAD_ARGUMENT;
  }
  for (int i = 0; i < props->ndevs; i++) {
    struct rail_fuse_device device;
    if (!rules->lookup(props->devs[i], &device)) return RAIL_BAD_ARGUMENT;
    RAIL_TRY(add_members(rules, &device, members, count));
    if (device.pci_path || rules->no_pci || props->ndevs == 1) continue;
    RAIL_WARN("%s: makeVDevice: device %d (%s) has no PCI path, and NCCL's init fails with a device that is fused from "
              "such; RAIL_NET_FUSE_NO_PCI=1 allows it for programs other than NCCL", rules->plugin, props->devs[i],
              device.name);
    return RAIL_BAD_ARGUMENT;
  }
  *same = find_same(rules, have, members, *count);
  if (*same >= 0 || have < rules->max_devices) return RAIL_OK;
  if (props->ndevs == 1) {
    *same = props->devs[0];
    return RAIL_OK;
  }
  RAIL_WARN("%s: makeVDevice: there are %d devices already, and no room for more", rules->plugin, have);
  return RAIL_BAD_ARGUMENT;
}
