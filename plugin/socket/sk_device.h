/* SPDX-License-Identifier: Apache-2.0
 *
 * The device table: interfaces in NCCL's order, found once per process. An
 * index means the same device for ever and in every local process, and names
 * may be handed out. The table only grows: makeVDevice appends devices that
 * are fused from others and whose connections run over all of them.
 */
#ifndef SK_DEVICE_H
#define SK_DEVICE_H

#include "common/base/ifaddr.h"
#include "common/net/net_ops.h"
#include "plugin/socket/sk_wire.h"

struct sk_device {
  char name[SK_MAX_RAILS * IFNAMSIZ]; /* "eth0", "eth0+eth1" */
  const char *pci_path;               /* NULL if none; a fused device has its first rail's */
  union rail_addr addr;               /* port 0; the first rail's */
  unsigned int vendor;                /* PCI's number, 0 if unknown; the first rail's */
  uint64_t guid;
  int speed; /* Mb/s, of all rails together */
  cpu_set_t cpus; /* near the cards of all rails; empty: unknown */
  /* The interfaces: itself, or those that it is fused from, in the order of the machine. */
  unsigned int nrails;
  const struct sk_device *rails[SK_MAX_RAILS];
  /* The same in indices of devices that were there when the process began; itself unless makeVDevice made it. */
  int nmembers;
  int members[SK_MAX_RAILS];
};

/* Builds the table at the first call; later calls only return. Call under the plugin's lock. */
void sk_devices_load(void);

int sk_device_count(void);
/* Of the interfaces: one for whose cards NCCL wants threads, if there is one. */
unsigned int sk_devices_vendor(void);
/* NULL, after one line that names the index and what is allowed, if there is no such device. */
const struct sk_device *sk_device_at(int dev, const char *call);
rail_result_t sk_get_properties(int dev, struct rail_net_props_v12 *props);

/* makeVDevice: the device fused from these, made now or before. Call under the plugin's lock. */
rail_result_t sk_device_fuse(int *dev, const struct rail_net_vprops_v12 *props);

#endif
