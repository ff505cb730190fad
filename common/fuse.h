/* SPDX-License-Identifier: Apache-2.0
 *
 * makeVDevice: which devices a fused one has. Those asked for may be fused
 * themselves; what counts are the members, devices that were there when the
 * process began, in one order for one set: both ends of a connection pair
 * them by place.
 */
#ifndef RAIL_FUSE_H
#define RAIL_FUSE_H

#include "common/net_ops.h"

/* How many members a device has, itself if it is not fused; 0, after one line, if there is no such device. */
typedef int (*rail_fuse_lookup)(int dev, const int **members);

/* The members of the device that is asked for, ascending: 2 to `most` of them. Their number, or 0 after one line that
 * begins with the plugin's name. */
int rail_fuse_members(const char *plugin, const struct rail_net_vprops_v12 *props, rail_fuse_lookup lookup, int most,
                      int *members);

#endif
