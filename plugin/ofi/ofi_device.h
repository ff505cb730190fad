/* SPDX-License-Identifier: Apache-2.0
 *
 * The device table: NICs of one provider, found once per process, in an order that is the same in every local process.
 * It only grows: makeVDevice appends devices fused from others. Names and paths live as long as the process.
 *
 *   NIC     a libfabric domain: what it is opened with, what it can do
 *   device  what NCCL sees: a NIC, or up to 4 fused ones (rails)
 */
#ifndef OFI_DEVICE_H
#define OFI_DEVICE_H

#include "common/base/sock.h"
#include "common/net/net_ops.h"
#include "plugin/ofi/ofi_fabric.h"
#include "plugin/ofi/ofi_select.h"
#include "plugin/ofi/ofi_wire.h"

#define OFI_MAX_DEVICES 128 /* NICs and the devices fused from them */

struct ofi_nic {
  unsigned int index;   /* in the order of ofi_nic_at */
  struct fi_info *info; /* for fi_fabric, fi_domain, fi_endpoint; the NIC's own copy */
  struct ofi_caps caps;
  enum ofi_protocol protocol;
  bool local;           /* reaches processes of this host only */
  char name[80];        /* of the domain: "eth0", "mlx5_0"; made unique where domains share one: "psm2#1" */
  const char *provider; /* "tcp;ofi_rxm"; in info */
  char pci_path[256];   /* in sysfs; "" if none */
  int speed;            /* Mb/s */
  uint64_t guid;        /* never 0 */
  int port;             /* tells NICs of one guid apart */
};

struct ofi_device {
  char name[OFI_MAX_PATHS * 80];
  unsigned int nrails;
  const struct ofi_nic *rails[OFI_MAX_PATHS];
  int nmembers;
  int members[OFI_MAX_PATHS]; /* indices in this table; itself unless makeVDevice made it */
};

/* Builds the table at the first call. Without libfabric, a usable provider or an interface for oob connections there
 * are no devices, after one line. Call under the plugin's lock. */
void ofi_devices_load(void);
/* Frees what libfabric allocated, when the plugin is unloaded; the table is empty then. No device may be in use. */
void ofi_devices_unload(void);
int ofi_device_count(void);
/* RAIL_OFI_INLINE, or where it is unset the default of the device's provider. */
uint32_t ofi_device_inline(const struct ofi_device *device);
/* NULL, after one line that names the index and what is allowed, if there is no such device. */
const struct ofi_device *ofi_device_at(int dev, const char *call);
rail_result_t ofi_get_properties(int dev, struct rail_net_props_v12 *props);
/* makeVDevice. Call under the plugin's lock. */
rail_result_t ofi_device_fuse(int *dev, const struct rail_net_vprops_v12 *props);

unsigned int ofi_nic_count(void);
const struct ofi_nic *ofi_nic_at(unsigned int i);

/* The interface that listeners of oob connections use: name and address (port 0). */
const char *ofi_oob_interface(union rail_addr *addr);

/* The number of the GPU, in this process, whose memory this is; 0 where the driver does not say. */
int ofi_cuda_device_of(uint64_t address);

#endif
