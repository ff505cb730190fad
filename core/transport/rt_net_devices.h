/* SPDX-License-Identifier: Apache-2.0
 * Which of a plugin's devices a communicator uses, and which of them it has the plugin fuse. */
#ifndef RT_NET_DEVICES_H
#define RT_NET_DEVICES_H

#include "common/base/result.h"
#include "core/topo/rt_pci.h"
#include "loader/netload.h"

#define RT_NET_DEVICES_MAX 64

struct rt_net_devices {
  int n;
  int dev[RT_NET_DEVICES_MAX]; /* the plugin's numbers */
  struct rt_pci pci[RT_NET_DEVICES_MAX];
};

/* A device as NCCL_NET_FORCE_MERGE names it. */
struct rt_net_device {
  const char *name;
  int port;
  int members[8], nmembers; /* of a fused one; nmembers 1: it is not */
};

/* One more of the text's groups ("a,b:1;c,d": ';' between groups, ',' between members, each a device's exact name, with
 * ':port' only that port; NCCL 2.30 graph/topo.cc, ncclTopoForceMerge). Advances *text. The members go to *group,
 * ascending; ndevs 0: there are no more groups. RAIL_BAD_USAGE after one line: the group is no 2 to 8 devices of the
 * table. */
rail_result_t rt_merge_next(const char **text, const struct rt_net_device *table, int n,
                            struct rail_net_vprops_v12 *group);

/* The devices that are no other's members, after the plugin has fused what `merge` (NULL: nothing) asks for. A fused
 * device that is there already is taken as it is. One at least; RAIL_BAD_USAGE after one line: there is none. */
rail_result_t rt_net_devices_open(struct rail_net *plugin, const char *merge, struct rt_net_devices *out);

#endif
