/* SPDX-License-Identifier: Apache-2.0
 * Interfaces become devices. */
#include "plugin/socket/sk_device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "common/log.h"
#include "plugin/socket/sk_param.h"

static struct sk_device devices[RAIL_MAX_INTERFACES]; /* not allocated: nothing to free at dlclose */
static int device_count;
static bool loaded;

/* NCCL_COMM_ID is host:port; only a numeric one is a hint, a lookup could block. */
static bool comm_id_hint(union rail_addr *hint) {
  const char *text = sk_params.comm_id;
  if (!text || !*text || strspn(text, "0123456789abcdefABCDEF.:[]%") != strlen(text)) return false;
  return rail_addr_parse(text, hint) == RAIL_OK;
}

void sk_devices_load(void) {
  struct rail_interface all[2 * RAIL_MAX_INTERFACES], chosen[RAIL_MAX_INTERFACES];
  union rail_addr hint;
  if (loaded) return;
  loaded = true;
  int n = rail_interfaces_list(all, (int)RAIL_COUNT_OF(all));
  if (n < 0) {
    loaded = false;
    RAIL_WARN("RailSocket: cannot list network interfaces: %s; no devices", strerror(errno));
    return;
  }
  n = rail_interfaces_choose(all, n, sk_params.ifname, rail_family_from_text(sk_params.family),
                             comm_id_hint(&hint) ? &hint : NULL, chosen, RAIL_MAX_INTERFACES);
  if (n <= 0) {
    RAIL_WARN("RailSocket: no usable network interface (NCCL_SOCKET_IFNAME=%s, NCCL_SOCKET_FAMILY=%s); no devices",
              sk_params.ifname ? sk_params.ifname : "unset", sk_params.family ? sk_params.family : "unset");
    return;
  }
  for (int i = 0; i < n; i++) {
    struct sk_device *d = &devices[i];
    char text[RAIL_ADDR_TEXT];
    memcpy(d->name, chosen[i].name, sizeof d->name);
    d->name[sizeof d->name - 1] = 0;
    d->addr = chosen[i].addr;
    d->speed = rail_interface_speed("/sys", d->name);
    d->guid = rail_interface_guid("/sys", d->name);
    if (!rail_interface_pci_path("/sys", d->name, d->pci_path, sizeof d->pci_path)) d->pci_path[0] = 0;
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: device %d is %s, address %s, %d Mb/s", i, d->name,
              rail_addr_text(&d->addr, text), d->speed);
  }
  device_count = n;
}

int sk_device_count(void) { return device_count; }

const struct sk_device *sk_device_at(int dev, const char *call) {
  if (rail_likely(dev >= 0 && dev < device_count)) return &devices[dev];
  if (device_count) RAIL_WARN("RailSocket: %s: device %d does not exist; allowed: 0..%d", call, dev, device_count - 1);
  else RAIL_WARN("RailSocket: %s: device %d does not exist; there are no devices", call, dev);
  return NULL;
}

void sk_device_properties(const struct sk_device *device, int dev, struct rail_net_props_v12 *props) {
  memset(props, 0, sizeof *props);
  props->name = (char *)device->name;
  props->pci_path = device->pci_path[0] ? (char *)device->pci_path : NULL;
  props->guid = device->guid;
  props->ptr_support = RAIL_PTR_HOST;
  props->speed = device->speed;
  props->max_comms = 65536;
  props->max_recvs = 8;
  props->net_device_type = RAIL_NET_DEVICE_HOST;
  props->net_device_version = RAIL_NET_DEVICE_INVALID_VERSION;
  props->vprops.ndevs = 1;
  props->vprops.devs[0] = dev;
  props->max_p2p_bytes = RAIL_NET_MAX_BYTES;
  props->max_coll_bytes = RAIL_NET_MAX_BYTES;
  props->max_multi_request_size = 1;
  props->rail_id = RAIL_NET_ID_UNDEF;
  props->plane_id = RAIL_NET_ID_UNDEF;
}

static bool is_loopback(const union rail_addr *addr) {
  if (addr->sa.sa_family == AF_INET) return (ntohl(addr->in.sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&addr->in6.sin6_addr);
}

const union rail_addr *sk_device_source(const struct sk_device *device, const union rail_addr *to) {
  if (device->addr.sa.sa_family != to->sa.sa_family) return NULL;
  /* A loopback source cannot leave the host, and a loopback peer needs no device. */
  return is_loopback(&device->addr) == is_loopback(to) ? &device->addr : NULL;
}
