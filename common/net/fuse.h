/* SPDX-License-Identifier: Apache-2.0
 *
 * makeVDevice: which devices a fused one has. Those asked for may be fused
 * themselves; what counts are the members, devices that were there when the
 * process began, in one order for one set: both ends of a connection pair
 * them by place.
 */
#ifndef RAIL_FUSE_H
#define RAIL_FUSE_H

#include <stdbool.h>

#include "common/net/net_ops.h"

/* A device that is to be fused, as getProperties describes it. */
struct rail_fuse_device {
  const int *members; /* itself if it is not fused */
  int nmembers;
  const char *name, *pci_path; /* pci_path: NULL if it is no PCI device */
};

/* False, after one line, if there is no such device. */
typedef bool (*rail_fuse_lookup)(int dev, struct rail_fuse_device *device);

/* One plugin's rules for its fused devices. */
struct rail_fuse_rules {
  const char *plugin; /* its name, with which each line begins */
  rail_fuse_lookup lookup;
  int max_members; /* of one device */
  int max_devices; /* of the plugin, fused ones included */
  bool no_pci;     /* devices without a PCI path may be fused (RAIL_NET_FUSE_NO_PCI) */
};

/* The members of the device that is asked for, ascending, 1 to `max_members` of them: `members` has room for these.
 * *same: the one of the `have` devices that makeVDevice has made of these, or -1: the caller makes a device now.
 *
 * One member: NCCL 2.24 to 2.26 call makeVDevice for each device that they do not fuse, too, and if it has made any
 * devices they use no others. So one device gets a second one, which has it as its only member; where there is no room
 * for more, *same is the device itself. After an error 2.26 would ask again without end.
 *
 * RAIL_BAD_ARGUMENT, after one line: no such devices, a number of them that cannot be, no room, or a device without a
 * PCI path. NCCL up to 2.30.7 would put a device that is fused from such where its topology search does not look, and
 * ncclCommInitRank would fail (ncclInternalError); after an error it goes on with the single devices. The error is not
 * RAIL_BAD_USAGE (ncclInvalidUsage), with which ncclCommInitRank of 2.24 and 2.25 fails. */
rail_result_t rail_fuse_members(const struct rail_fuse_rules *rules, const struct rail_net_vprops_v12 *props,
                                int have, int *members, int *count, int *same);

#endif
