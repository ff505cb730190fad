/* SPDX-License-Identifier: Apache-2.0
 * Devices are interfaces with an address: those NCCL_SOCKET_IFNAME names, else all but loopback, else loopback. */
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test/broken/ref.h"

/* NCCL keeps pointers to the names: an entry is written once, before the count that covers it. */
static struct ref_device table[REF_DEVICES];
static _Atomic int count = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* NCCL's rule: [^][=]name[,name…]; ^ excludes, = wants the whole name, else its beginning counts. */
static bool wanted(const char *name, const char *rule) {
  bool exclude = *rule == '^';
  rule += exclude;
  bool whole = *rule == '=';
  rule += whole;
  for (const char *p = rule; *p;) {
    size_t len = strcspn(p, ",");
    if (len > 0 && strncmp(name, p, len) == 0 && (!whole || name[len] == 0)) return !exclude;
    p += len + (p[len] == ',');
  }
  return exclude;
}

static int speed_of(const char *name) {
  char path[64];
  int speed = -1;
  snprintf(path, sizeof path, "/sys/class/net/%s/speed", name);
  FILE *f = fopen(path, "re");
  if (f && fscanf(f, "%d", &speed) != 1) speed = -1;
  if (f) fclose(f);
  return speed > 0 ? speed : 10000; /* virtual interfaces and such without a link say -1, or nothing */
}

/* Only what ends in a PCI address is of use to NCCL, which copies that part into 32 bytes. */
static void pci_path_of(const char *name, char *to, size_t size) {
  char path[64], real[PATH_MAX];
  unsigned int domain, bus, device, function;
  char end;
  snprintf(path, sizeof path, "/sys/class/net/%s/device", name);
  to[0] = 0;
  if (!realpath(path, real) || strlen(real) >= size) return;
  const char *last = strrchr(real, '/');
  if (last && sscanf(last, "/%x:%x:%x.%x%c", &domain, &bus, &device, &function, &end) == 4)
    memcpy(to, real, strlen(real) + 1);
}

static bool usable(const struct ifaddrs *i) {
  if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) return false;
  if (i->ifa_addr->sa_family == AF_INET) return true;
  if (i->ifa_addr->sa_family != AF_INET6) return false;
  struct sockaddr_in6 in6;
  memcpy(&in6, i->ifa_addr, sizeof in6);
  return !IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr);
}

static void add(const struct ifaddrs *i) {
  for (int d = 0; d < count; d++)
    if (strcmp(table[d].name, i->ifa_name) == 0) return; /* its first address is taken */
  if (count == REF_DEVICES) return;
  struct ref_device *d = &table[count];
  d->members = (struct rail_net_vprops_v12){.ndevs = 1, .devs = {count}};
  snprintf(d->name, sizeof d->name, "%s", i->ifa_name);
  d->index = (int)if_nametoindex(i->ifa_name);
  d->speed = speed_of(d->name);
  pci_path_of(d->name, d->pci_path, sizeof d->pci_path);
  if (i->ifa_addr->sa_family == AF_INET) memcpy(&d->addr.in, i->ifa_addr, sizeof d->addr.in);
  else memcpy(&d->addr.in6, i->ifa_addr, sizeof d->addr.in6);
  count++;
}

static void add_all(const struct ifaddrs *list, const char *rule, unsigned int loopback) {
  for (int family = 0; family < 2; family++) /* IPv4 first */
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
      if (!usable(i) || i->ifa_addr->sa_family != (family ? AF_INET6 : AF_INET)) continue;
      if (rule ? wanted(i->ifa_name, rule) : (i->ifa_flags & IFF_LOOPBACK) == loopback) add(i);
    }
}

int ref_devices_load(void) {
  struct ifaddrs *list = NULL;
  const char *rule = getenv("NCCL_SOCKET_IFNAME");
  pthread_mutex_lock(&lock);
  if (count < 0 && getifaddrs(&list) == 0) {
    count = 0;
    if (rule && rule[0]) {
      add_all(list, rule, 0);
    } else {
      add_all(list, NULL, 0);
      if (count == 0) add_all(list, NULL, IFF_LOOPBACK);
    }
    freeifaddrs(list);
  }
  int result = count < 0 ? RAIL_SYSTEM_ERROR : RAIL_OK;
  pthread_mutex_unlock(&lock);
  return result;
}

const struct ref_device *ref_device(int dev) { return dev >= 0 && dev < count ? &table[dev] : NULL; }

int ref_devices(int *ndev) {
  static _Atomic int asked;
  *ndev = count < 0 || ref_defect == REF_UNKNOWN ? 0 : count;
  if (BROKEN(devices_grow) && asked++ > 0) (*ndev)++;
  return RAIL_OK;
}

static void spoil(struct rail_net_props_v12 *props, int16_t plane_before) {
  static char one_name[] = "rail0", bare[] = "0000:00:00.0";
  if (BROKEN(name_moves)) props->name = strdup(props->name);
  if (BROKEN(name_twice)) props->name = one_name;
  if (BROKEN(props_hole)) props->plane_id = plane_before;
  if (BROKEN(props_devices)) props->vprops.ndevs = 0;
  if (BROKEN(p2p_bytes_zero)) props->max_p2p_bytes = 0;
  if (BROKEN(p2p_bytes_huge)) props->max_p2p_bytes = SIZE_MAX;
  if (BROKEN(speed_unknown)) props->speed = -1;
  if (BROKEN(pci_path_name)) props->pci_path = bare;
  if (BROKEN(device_type)) props->net_device_type = 9;
  if (BROKEN(guid_random)) props->guid = (uint64_t)getpid() << 8 | (uint64_t)props->vprops.devs[0];
}

int ref_get_properties(int dev, struct rail_net_props_v12 *props) {
  struct ref_device *d = dev >= 0 && dev < count ? &table[dev] : NULL;
  if (!d) {
    ref_warn("there is no device %d, only 0 to %d", dev, count - 1);
    return RAIL_BAD_ARGUMENT;
  }
  int16_t plane_before = props->plane_id;
  *props = (struct rail_net_props_v12){
    .name = d->name,
    .pci_path = d->pci_path[0] ? d->pci_path : NULL,
    .guid = (uint64_t)d->index,
    .ptr_support = RAIL_PTR_HOST,
    .speed = d->speed,
    .max_comms = 65536,
    .max_recvs = REF_GROUP,
    .net_device_type = RAIL_NET_DEVICE_HOST,
    .net_device_version = RAIL_NET_DEVICE_INVALID_VERSION,
    .vprops = d->members,
    .max_p2p_bytes = RAIL_NET_MAX_BYTES,
    .max_coll_bytes = RAIL_NET_MAX_BYTES,
    .max_multi_request_size = 1,
    .rail_id = RAIL_NET_ID_UNDEF,
    .plane_id = RAIL_NET_ID_UNDEF,
  };
  if (ref_defect != REF_SOUND) spoil(props, plane_before);
  return RAIL_OK;
}

/* Two at a time is enough here. */
static int append_fused(const struct rail_net_vprops_v12 *members) {
  const struct ref_device *first = &table[members->devs[0]], *second = &table[members->devs[1]];
  struct ref_device fused = *first;
  snprintf(fused.name, sizeof fused.name, "%.*s+%.*s", IF_NAMESIZE, first->name, IF_NAMESIZE, second->name);
  fused.index = 1 << 20 | first->index << 10 | second->index; /* the guid */
  fused.speed = first->speed + second->speed;
  fused.members = (struct rail_net_vprops_v12){.ndevs = 2, .devs = {members->devs[0], members->devs[1]}};
  table[count] = fused;
  return count++;
}

int ref_make_vdevice(int *dev, struct rail_net_vprops_v12 *members) {
  bool two = members->ndevs == 2 && members->devs[0] != members->devs[1];
  int result = RAIL_BAD_ARGUMENT;
  if (members->ndevs == 1 && ref_device(members->devs[0]) && !BROKEN(fuse_one_refused)) {
    *dev = members->devs[0];
    return RAIL_OK;
  }
  pthread_mutex_lock(&lock);
  for (int i = 0; two && i < 2; i++) {
    const struct ref_device *d = ref_device(members->devs[i]);
    if (!d || d->members.ndevs != 1 || (!d->pci_path[0] && !BROKEN(fuse_no_pci))) two = false;
  }
  if (two && count < REF_DEVICES) *dev = append_fused(members), result = RAIL_OK;
  else ref_warn("makeVDevice: 2 devices with a PCI path, that are not fused, or 1, and no others");
  pthread_mutex_unlock(&lock);
  return result;
}
