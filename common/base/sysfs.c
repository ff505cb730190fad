/* SPDX-License-Identifier: Apache-2.0
 * What sysfs knows of a network interface. Virtual interfaces lack most of it. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cpus.h"
#include "common/base/hash.h"
#include "common/base/ifaddr.h"

#define DEFAULT_SPEED_MBPS 10000 /* what NCCL assumes of an interface that does not say */

/* First line of a file, without the newline. False: there is none, or it does not fit. */
static bool read_line(const char *path, char *text, size_t cap) {
  FILE *file = fopen(path, "re");
  if (!file) return false;
  bool good = fgets(text, (int)cap, file) != NULL; /* "speed" of a link that is down: EINVAL at read */
  fclose(file);
  if (!good) return false;
  size_t len = strcspn(text, "\n");
  good = len + 1 < cap;
  text[len] = 0;
  return good;
}

/* Of <root>/class/net/<ifname>/<leaf>. */
static bool read_attribute(const char *root, const char *ifname, const char *leaf, char *text, size_t cap) {
  char path[PATH_MAX];
  int n = snprintf(path, sizeof path, "%s/class/net/%s/%s", root, ifname, leaf);
  return n >= 0 && (size_t)n < sizeof path && read_line(path, text, cap);
}

int rail_interface_speed(const char *sysfs_root, const char *ifname) {
  char text[32], *end;
  if (!read_attribute(sysfs_root, ifname, "speed", text, sizeof text)) return DEFAULT_SPEED_MBPS;
  errno = 0;
  long speed = strtol(text, &end, 10);
  if (errno || end == text || *end || speed <= 0 || speed > INT_MAX) return DEFAULT_SPEED_MBPS;
  return (int)speed;
}

unsigned int rail_interface_vendor(const char *sysfs_root, const char *ifname) {
  char text[32], *end;
  if (!read_attribute(sysfs_root, ifname, "device/vendor", text, sizeof text)) return 0;
  errno = 0;
  unsigned long vendor = strtoul(text, &end, 16);
  return errno || end == text || *end || vendor > 0xffff ? 0 : (unsigned int)vendor;
}

/* "0000:3b:00.1": NCCL copies the last component into 32 bytes unchecked and
 * parses it, so nothing else may be handed to it. */
static bool is_pci_address(const char *text) {
  static const char form[] = "hhhh:hh:hh.h";
  size_t i;
  for (i = 0; form[i]; i++) {
    if (form[i] == 'h' ? !isxdigit((unsigned char)text[i]) : text[i] != form[i]) return false;
  }
  return text[i] == 0;
}

bool rail_pci_path(const char *link, char *path, size_t cap) {
  char *real = realpath(link, NULL);
  if (!real) return false;
  /* A virtio NIC's device is a child ("virtio0") of the PCI function: go up to it. */
  char *slash;
  while ((slash = strrchr(real, '/')) != NULL && !is_pci_address(slash + 1)) *slash = 0;
  bool good = slash && strlen(real) < cap;
  if (good) strcpy(path, real);
  free(real);
  return good;
}

bool rail_interface_pci_path(const char *sysfs_root, const char *ifname, char *path, size_t cap) {
  char link[PATH_MAX];
  int n = snprintf(link, sizeof link, "%s/class/net/%s/device", sysfs_root, ifname);
  return n >= 0 && (size_t)n < sizeof link && rail_pci_path(link, path, cap);
}

uint64_t rail_interface_guid(const char *sysfs_root, const char *ifname) {
  char text[128] = "";
  unsigned int m[6];
  int used = 0;
  uint64_t guid = 0;
  if (!read_attribute(sysfs_root, ifname, "address", text, sizeof text)) text[0] = 0;
  if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x%n", &m[0], &m[1], &m[2], &m[3], &m[4], &m[5], &used) == 6 &&
      text[used] == 0) {
    for (int i = 0; i < 6; i++) guid = guid << 8 | m[i];
  } else if (strpbrk(text, "123456789abcdefABCDEF")) {
    guid = rail_hash_text(RAIL_HASH_BASIS, text); /* IPoIB: 20 bytes */
  }
  if (guid == 0) guid = rail_hash_text(RAIL_HASH_BASIS, ifname); /* lo and tunnels have no address, or all zeros */
  return guid ? guid : 1;
}

#define CPU_LIST 8192 /* bytes: every second of 1024 CPUs, and more */

static bool read_cpus(const char *path, cpu_set_t *cpus) {
  char text[CPU_LIST];
  return read_line(path, text, sizeof text) && rail_cpus_parse(text, cpus) && CPU_COUNT(cpus) > 0;
}

/* Of a device's folder: its list, or that of its NUMA node. */
static bool cpus_near_device(const char *root, const char *device, cpu_set_t *cpus) {
  char path[PATH_MAX + 64], text[32], *end;
  snprintf(path, sizeof path, "%s/local_cpulist", device);
  if (read_cpus(path, cpus)) return true;
  snprintf(path, sizeof path, "%s/numa_node", device);
  if (!read_line(path, text, sizeof text)) return false;
  long node = strtol(text, &end, 10);
  if (end == text || *end || node < 0) return false; /* -1: the firmware has not said */
  snprintf(path, sizeof path, "%s/devices/system/node/node%ld/cpulist", root, node);
  return read_cpus(path, cpus);
}

bool rail_interface_cpus(const char *sysfs_root, const char *ifname, cpu_set_t *cpus) {
  char device[PATH_MAX];
  int n = snprintf(device, sizeof device, "%s/class/net/%s/device", sysfs_root, ifname);
  if (n >= 0 && (size_t)n < sizeof device && cpus_near_device(sysfs_root, device, cpus)) return true;
  /* A virtio NIC's device is a child of the PCI function, which has the files. */
  if (rail_interface_pci_path(sysfs_root, ifname, device, sizeof device) &&
      cpus_near_device(sysfs_root, device, cpus))
    return true;
  CPU_ZERO(cpus);
  return false;
}
