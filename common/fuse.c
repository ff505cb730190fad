/* SPDX-License-Identifier: Apache-2.0
 * The members of a fused device. */
#include "common/fuse.h"

#include <stdbool.h>

#include "common/compiler.h"
#include "common/log.h"

static bool has_member(const int *members, int n, int dev) {
  for (int i = 0; i < n; i++)
    if (members[i] == dev) return true;
  return false;
}

int rail_fuse_members(const char *plugin, const struct rail_net_vprops_v12 *props, rail_fuse_lookup lookup, int most,
                      int *members) {
  int n = 0;
  if (props->ndevs < 2 || props->ndevs > (int)RAIL_COUNT_OF(props->devs)) {
    RAIL_WARN("%s: makeVDevice: %d devices; allowed: 2 to %d", plugin, props->ndevs, most);
    return 0;
  }
  for (int i = 0; i < props->ndevs; i++) {
    const int *theirs;
    int count = lookup(props->devs[i], &theirs);
    if (!count) return 0;
    for (int k = 0; k < count; k++) {
      if (has_member(members, n, theirs[k])) {
        RAIL_WARN("%s: makeVDevice: device %d is named twice", plugin, theirs[k]);
        return 0;
      }
      if (n == most) {
        RAIL_WARN("%s: makeVDevice: more than %d devices; a fused device has 2 to %d", plugin, most, most);
        return 0;
      }
      int at = n++;
      for (; at > 0 && members[at - 1] > theirs[k]; at--) members[at] = members[at - 1];
      members[at] = theirs[k];
    }
  }
  return n;
}
