/* SPDX-License-Identifier: Apache-2.0
 * What getProperties writes, as the version's own struct: for those who look at bytes. The others ask the vtable. */
#ifndef RAIL_KIT_PROPS_H
#define RAIL_KIT_PROPS_H

#include <stdbool.h>

#include "loader/netload_slots.h"

union kit_props {
  uint8_t bytes[sizeof(struct rail_net_props_v12) + 128]; /* the end shows who writes too much */
  struct rail_net_props_v6 v6;
  struct rail_net_props_v7 v7;
  struct rail_net_props_v8 v8;
  struct rail_net_props_v9 v9; /* and v10 */
  struct rail_net_props_v11 v11;
  struct rail_net_props_v12 v12;
};

/* The plugin's call, of the version that the slots are of. */
int kit_props_get(const struct rail_net_slots *s, int dev, union kit_props *p);

/* Does NCCL take this pciPath for a PCI device's? Any other device, and one whose path is NULL, it attaches to the first
 * CPU (src/graph/xml.cc, ncclTopoFillNet). */
bool kit_props_is_pci(const char *pci_path);

#endif
