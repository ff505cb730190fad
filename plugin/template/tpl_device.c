/* SPDX-License-Identifier: Apache-2.0
 * Interfaces become devices. */
#include "plugin/template/tpl_device.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#include "common/base/ifaddr.h"
#include "common/base/log.h"
#include "common/net/net_ops.h"
#include "plugin/template/tpl_param.h"
#include "plugin/template/tpl_wire.h"

/* Not allocated: the names and paths that NCCL gets live as long as the process. */
static struct tpl_device devices[RAIL_MAX_INTERFACES];
static char pci_paths[RAIL_MAX_INTERFACES][PATH_MAX];
static int ndevices;

void tpl_devices_load(void) {
  struct rail_interface found[RAIL_MAX_INTERFACES];
  int n = rail_interfaces_find(tpl_params.ifname, tpl_params.family, tpl_params.comm_id, found, RAIL_MAX_INTERFACES);
  if (n <= 0)
    RAIL_WARN(TPL_NAME ": no usable network interface (NCCL_SOCKET_IFNAME=%s): %s; no devices",
              tpl_params.ifname ? tpl_params.ifname : "unset", n < 0 ? strerror(errno) : "none matches");
  for (int i = 0; i < n; i++) {
    struct tpl_device *d = &devices[i];
    memcpy(d->name, found[i].name, sizeof d->name - 1);
    d->addr = found[i].addr;
    d->speed = rail_interface_speed("/sys", d->name);
    d->guid = rail_interface_guid("/sys", d->name);
    if (rail_interface_pci_path("/sys", d->name, pci_paths[i], sizeof pci_paths[i])) d->pci_path = pci_paths[i];
  }
  ndevices = RAIL_MAX(n, 0);
}

int tpl_device_count(void) { return ndevices; }

const struct tpl_device *tpl_device_at(int dev, const char *call) {
  if (rail_likely(dev >= 0 && dev < ndevices)) return &devices[dev];
  RAIL_WARN(TPL_NAME ": %s: device %d does not exist; there are %d", call, dev, ndevices);
  return NULL;
}

rail_result_t tpl_get_properties(int dev, struct rail_net_props_v12 *props) {
  const struct tpl_device *device = tpl_device_at(dev, "getProperties");
  if (!device) return RAIL_BAD_ARGUMENT;
  rail_net_props_usual(props, &dev, 1);
  props->name = (char *)(uintptr_t)device->name;
  props->pci_path = (char *)(uintptr_t)device->pci_path;
  props->guid = device->guid;
  props->ptr_support = RAIL_PTR_HOST;
  props->speed = device->speed;
  props->max_comms = 65536;
  props->max_recvs = TPL_MAX_RECVS;
  return RAIL_OK;
}
