/* SPDX-License-Identifier: Apache-2.0
 *
 * The device table: interfaces in NCCL's order, built once per process and
 * frozen, so that an index means the same device for ever and in every local
 * process, and names may be handed out.
 */
#ifndef SK_DEVICE_H
#define SK_DEVICE_H

#include "common/ifaddr.h"
#include "common/net_ops.h"

struct sk_device {
  char name[IFNAMSIZ];
  char pci_path[4096]; /* "" if none */
  union rail_addr addr; /* port 0 */
  uint64_t guid;
  int speed; /* Mb/s */
};

/* Builds the table at the first call; later calls only return. Call under the plugin's lock. */
void sk_devices_load(void);

int sk_device_count(void);
/* NULL, after one line that names the index and what is allowed, if there is no such device. */
const struct sk_device *sk_device_at(int dev, const char *call);
void sk_device_properties(const struct sk_device *device, int dev, struct rail_net_props_v12 *props);

/* The source address for a stream from this device to `to`; NULL: let the kernel choose. */
const union rail_addr *sk_device_source(const struct sk_device *device, const union rail_addr *to);

#endif
