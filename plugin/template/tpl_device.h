/* SPDX-License-Identifier: Apache-2.0
 * One device for each network interface that NCCL_SOCKET_IFNAME names. */
#ifndef TPL_DEVICE_H
#define TPL_DEVICE_H

#include <net/if.h>

#include "common/base/sock.h"

#define TPL_NAME "RailTemplate" /* the vtables' name, and how every log line begins */

struct tpl_device {
  char name[IFNAMSIZ];
  union rail_addr addr;
  int speed; /* Mb/s */
  uint64_t guid;
  const char *pci_path; /* NULL: none */
};

/* Once per process, before any of the others: devices keep their numbers. */
void tpl_devices_load(void);
int tpl_device_count(void);
/* NULL, after one line, if there is no such device. */
const struct tpl_device *tpl_device_at(int dev, const char *call);
rail_result_t tpl_get_properties(int dev, struct rail_net_props_v12 *props);

#endif
