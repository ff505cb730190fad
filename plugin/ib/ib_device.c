/* SPDX-License-Identifier: Apache-2.0
 * Ports become devices. */
#include "plugin/ib/ib_device.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/net/fuse.h"
#include "common/base/ifaddr.h"
#include "common/base/log.h"
#include "plugin/ib/ib_hca.h"
#include "plugin/ib/ib_param.h"

/* Not allocated: nothing to free at dlclose, and what was handed out stays. Entries are written before the count that
 * covers them. */
static struct ib_device devices[IB_MAX_DEVICES];
static _Atomic int count;
static struct ib_port *ports[IB_MAX_PORTS];
static unsigned int nports;
static struct rail_interface side;
static bool loaded;

unsigned int ib_port_count(void) { return nports; }
struct ib_port *ib_port_at(unsigned int i) { return ports[i]; }

const char *ib_side_interface(union rail_addr *addr) {
  *addr = side.addr;
  return side.name;
}

/* ---- the table --------------------------------------------------------------- */

static const char *link_name(const struct ib_port *port) { return port->roce ? "RoCE" : "InfiniBand"; }

static int speed_of(const struct ib_device *device) {
  int64_t speed = 0;
  for (unsigned int i = 0; i < device->nrails; i++) speed += device->rails[i]->speed;
  return (int)RAIL_MIN(speed, (int64_t)INT_MAX);
}

/* The device at the end of the table, whose rails and members are there, gets its name and becomes visible. */
static void list_device(struct ib_device *d) {
  size_t at = 0;
  for (unsigned int i = 0; i < d->nrails; i++)
    at += (size_t)snprintf(d->name + at, sizeof d->name - at, "%s%s", i ? "+" : "", d->rails[i]->name);
  RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailIB: device %d is %s, %s, %d Mb/s%s%s", (int)(d - devices), d->name,
            link_name(d->rails[0]), speed_of(d), d->nrails == 1 && d->rails[0]->pci_path[0] ? ", at " : "",
            d->nrails == 1 ? d->rails[0]->pci_path : "");
  atomic_store_explicit(&count, (int)(d - devices) + 1, memory_order_release);
}

/* False after one line. */
static bool find_side_interface(void) {
  int n = rail_interfaces_find(ib_params.ifname, ib_params.family, ib_params.comm_id, &side, 1);
  if (n > 0) return true;
  if (n < 0)
    RAIL_WARN("RailIB: cannot list network interfaces for the side channel: %s; no devices", strerror(errno));
  else
    RAIL_WARN("RailIB: no usable network interface for the side channel (NCCL_SOCKET_IFNAME=%s, "
              "NCCL_SOCKET_FAMILY=%s); no devices", ib_params.ifname ? ib_params.ifname : "unset",
              ib_params.family ? ib_params.family : "unset");
  return false;
}

void ib_devices_load(void) {
  char text[RAIL_ADDR_TEXT];
  if (loaded) return;
  loaded = true;
  if (ib_params.disable) {
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailIB: NCCL_IB_DISABLE=1, so there are no devices");
    return;
  }
  if (!find_side_interface() || !ib_verbs_open()) return;
  int err = ib_verbs.fork_init();
  if (err)
    RAIL_WARN("RailIB: ibv_fork_init: %s; a process that forks may lose data in registered memory", strerror(err));
  nports = ib_ports_discover(ports);
  for (unsigned int i = 0; i < nports; i++) {
    devices[i] = (struct ib_device){.nrails = 1, .rails = {ports[i]}, .nmembers = 1, .members = {(int)i}};
    list_device(&devices[i]);
  }
  if (nports)
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailIB: side channels use %s, address %s", side.name,
              rail_addr_text(&side.addr, text));
}

void ib_devices_unload(void) {
  atomic_store(&count, 0);
  nports = 0;
  ib_hcas_close();
  loaded = false;
}

int ib_device_count(void) { return atomic_load_explicit(&count, memory_order_acquire); }

const struct ib_device *ib_device_at(int dev, const char *call) {
  int n = ib_device_count();
  if (rail_likely(dev >= 0 && dev < n)) return &devices[dev];
  if (n) RAIL_WARN("RailIB: %s: device %d does not exist; allowed: 0..%d", call, dev, n - 1);
  else RAIL_WARN("RailIB: %s: device %d does not exist; there are no devices", call, dev);
  return NULL;
}

/* ---- properties ---------------------------------------------------------------- */

/* Of GPU memory a device can register what all of its HCAs can. */
static int ptr_support(const struct ib_device *device) {
  int support = RAIL_PTR_HOST | RAIL_PTR_CUDA | RAIL_PTR_DMABUF;
  for (unsigned int i = 0; i < device->nrails; i++) {
    if (!device->rails[i]->hca->gpu_direct) support &= ~RAIL_PTR_CUDA;
    if (!device->rails[i]->hca->dmabuf) support &= ~RAIL_PTR_DMABUF;
  }
  return support;
}

static int16_t rail_of(const struct ib_device *device) {
  for (unsigned int i = 1; i < device->nrails; i++)
    if (device->rails[i]->rail != device->rails[0]->rail) return RAIL_NET_ID_UNDEF;
  return device->rails[0]->rail;
}

/* Of a fused device: all of its planes as bits, in NCCL's form. */
static int16_t plane_of(const struct ib_device *device) {
  enum { FUSED = 0x4000, MOST = 13 };
  int planes = FUSED;
  if (device->nrails == 1) return device->rails[0]->plane;
  for (unsigned int i = 0; i < device->nrails; i++) {
    int plane = device->rails[i]->plane;
    if (plane < 0 || plane > MOST) return RAIL_NET_ID_UNDEF;
    planes |= 1 << plane;
  }
  return (int16_t)planes;
}

/* Of the first rail; NULL if it has none. */
static const char *pci_path_of(const struct ib_device *device) {
  return device->rails[0]->pci_path[0] ? device->rails[0]->pci_path : NULL;
}

static int max_comms(const struct ib_device *device) {
  int most = INT_MAX;
  for (unsigned int i = 0; i < device->nrails; i++) most = RAIL_MIN(most, device->rails[i]->hca->attr.max_qp);
  return RAIL_MAX(most, 1);
}

void ib_device_properties(const struct ib_device *device, struct rail_net_props_v12 *props) {
  const struct ib_port *first = device->rails[0];
  rail_net_props_usual(props, device->members, device->nmembers);
  props->name = (char *)device->name;
  props->pci_path = (char *)pci_path_of(device);
  props->guid = first->hca->guid;
  props->ptr_support = ptr_support(device);
  props->reg_is_global = 1;
  props->speed = speed_of(device);
  props->port = first->number_on_card;
  props->max_comms = max_comms(device);
  props->max_recvs = IB_MAX_GROUP;
  props->rail_id = rail_of(device);
  props->plane_id = plane_of(device);
}

/* ---- makeVDevice ---------------------------------------------------------------- */

static bool look_up(int dev, struct rail_fuse_device *device) {
  const struct ib_device *d = ib_device_at(dev, "makeVDevice");
  if (!d) return false;
  *device = (struct rail_fuse_device){.members = d->members, .nmembers = d->nmembers, .name = d->name,
                                      .pci_path = pci_path_of(d)};
  return true;
}

/* All rails over one kind of link: connections of the other kind need other addresses. */
static bool is_one_link(const struct ib_device *d) {
  for (unsigned int i = 1; i < d->nrails; i++) {
    if (d->rails[i]->roce == d->rails[0]->roce) continue;
    RAIL_WARN("RailIB: makeVDevice: %s is %s and %s is %s; a fused device has ports of one kind", d->rails[0]->name,
              link_name(d->rails[0]), d->rails[i]->name, link_name(d->rails[i]));
    return false;
  }
  return true;
}

rail_result_t ib_device_fuse(int *dev, const struct rail_net_vprops_v12 *props) {
  const struct rail_fuse_rules rules = {"RailIB", look_up, IB_MAX_RAILS, ib_params.fuse_no_pci};
  int n, members[IB_MAX_RAILS], have = ib_device_count();
  if (!ib_params.merge_nics) {
    RAIL_WARN("RailIB: makeVDevice: NCCL_IB_MERGE_NICS=0 forbids it");
    return RAIL_BAD_USAGE;
  }
  RAIL_TRY(rail_fuse_members(&rules, props, members, &n));
  for (int i = 0; i < have; i++)
    if (devices[i].nmembers == n && memcmp(devices[i].members, members, (size_t)n * sizeof members[0]) == 0) {
      *dev = i;
      return RAIL_OK;
    }
  if (have == IB_MAX_DEVICES) {
    RAIL_WARN("RailIB: makeVDevice: there are %d devices already, and no room for more", IB_MAX_DEVICES);
    return RAIL_BAD_USAGE;
  }
  struct ib_device *d = &devices[have];
  memset(d, 0, sizeof *d);
  for (int i = 0; i < n; i++) d->rails[d->nrails++] = devices[members[i]].rails[0];
  if (!is_one_link(d)) return RAIL_BAD_ARGUMENT;
  memcpy(d->members, members, (size_t)n * sizeof members[0]);
  d->nmembers = n;
  *dev = have;
  list_device(d);
  return RAIL_OK;
}
