/* SPDX-License-Identifier: Apache-2.0
 * Vtables in the shape of v12, whatever version the plugin exports; properties in the shape of their own version. */
#ifndef RAIL_KIT_VTABLE_H
#define RAIL_KIT_VTABLE_H

#include <stdbool.h>

#include "loader/netload.h"
#include "loader/netload_slots.h"

/* Any version's vtable in the shape of a v12 one, and a v12 vtable whose calls leave a call trace. Both for one
 * plugin at a time in a process. */
const struct rail_net_v12 *kit_any_vtable(struct rail_net *net);
void kit_any_vtable_end(const struct rail_net *net);
const struct rail_net_v12 *kit_traced_vtable(const struct rail_net_v12 *plugin); /* a second plugin: as it is */
void kit_traced_vtable_end(const struct rail_net_v12 *given);

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

/* The subsystem of a device's path in sysfs: "pci". False: it is no such path. */
bool kit_props_subsystem(const char *path, char *name, size_t size);
/* Does NCCL take this pciPath for a PCI device's? Any other device, and one whose path is NULL, it attaches to the
 * first CPU (src/graph/xml.cc, ncclTopoFillNet). */
bool kit_props_is_pci(const char *pci_path);

#endif
