/* SPDX-License-Identifier: Apache-2.0
 * Reads PCI paths from sysfs, compares them, and names distances; keeps nothing. Called when a communicator is made,
 * and when a connection chooses its NIC, its memory or whether two GPUs reach each other. */
#include "core/topo/rt_pci.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/compiler.h"
#include "common/base/ifaddr.h"
#include "common/base/log.h"

/* Bits of a hop's number that tell a root complex from a device; no hop is 0, which means none. */
#define ROOT (1ull << 63)
#define DEVICE (1ull << 62)

static uint64_t device_number(unsigned domain, unsigned bus, unsigned device, unsigned function) {
  return DEVICE | (uint64_t)domain << 16 | (uint64_t)(bus & 0xff) << 8 | (device & 0x1f) << 3 | (function & 7);
}

/* One component of a path; 0: not one of the PCI tree. */
static uint64_t hop_number(const char *name, size_t len) {
  char text[32], end;
  unsigned domain, bus, device, function;
  if (len >= sizeof text) return 0;
  memcpy(text, name, len);
  text[len] = 0;
  if (sscanf(text, "pci%x:%x%c", &domain, &bus, &end) == 2) return ROOT | (uint64_t)domain << 8 | (bus & 0xff);
  if (sscanf(text, "%x:%x:%x.%x%c", &domain, &bus, &device, &function, &end) == 4)
    return device_number(domain, bus, device, function);
  return 0;
}

uint64_t rt_pci_number(const char *bus_id) {
  uint64_t n = hop_number(bus_id, strlen(bus_id));
  return n & ROOT ? 0 : n;
}

bool rt_pci_parse(const char *path, struct rt_pci *out) {
  memset(out, 0, sizeof *out);
  out->numa = -1;
  for (const char *p = path; *p;) {
    size_t len = strcspn(p, "/");
    uint64_t hop = hop_number(p, len);
    if (hop && out->nhops == RT_PCI_HOPS) {
      out->nhops = 0;
      return false;
    }
    if (hop) out->hop[out->nhops++] = hop;
    p += len;
    p += *p == '/';
  }
  if (out->nhops && out->hop[out->nhops - 1] & ROOT) out->nhops = 0; /* a root complex alone is no device */
  return out->nhops > 0;
}

bool rt_pci_read(const char *path, struct rt_pci *out) {
  char name[PATH_MAX];
  if (!rt_pci_parse(path ? path : "", out)) return false;
  int n = snprintf(name, sizeof name, "%s/numa_node", path);
  FILE *f = n > 0 && (size_t)n < sizeof name ? fopen(name, "re") : NULL;
  if (!f) return true;
  int node;
  if (fscanf(f, "%d", &node) == 1 && node >= 0) out->numa = node;
  fclose(f);
  return true;
}

bool rt_pci_find(const char *sysfs, const char *bus_id, struct rt_pci *out) {
  char link[PATH_MAX], path[PATH_MAX];
  uint64_t d = rt_pci_number(bus_id);
  int n = snprintf(link, sizeof link, "%s/bus/pci/devices/%04x:%02x:%02x.%x", sysfs, (unsigned)(d >> 16 & 0xffffffff),
                   (unsigned)(d >> 8 & 0xff), (unsigned)(d >> 3 & 0x1f), (unsigned)(d & 7));
  if (d && n > 0 && (size_t)n < sizeof link && rail_pci_path(link, path, sizeof path)) return rt_pci_read(path, out);
  return rt_pci_parse("", out);
}

enum rt_distance rt_pci_distance(const struct rt_pci *a, const struct rt_pci *b) {
  if (!a->nhops || !b->nhops) return RT_SYS;
  int common = 0, longer = RAIL_MAX(a->nhops, b->nhops);
  while (common < a->nhops && common < b->nhops && a->hop[common] == b->hop[common]) common++;
  if (common == longer) return RT_LOC;
  /* Host bridges of one processor are connected inside it. */
  if (common == 0) return a->numa == b->numa ? RT_PHB : RT_SYS;
  if (common == 1) return RT_PHB;
  /* Below the last common bridge each device has a port of the switch, and itself: two hops are one switch. */
  return longer - common <= 2 ? RT_PIX : RT_PXB;
}

enum rt_distance rt_pci_bus_distance(const char *sysfs, const char *bus_a, const char *bus_b) {
  struct rt_pci a, b;
  rt_pci_find(sysfs, bus_a, &a);
  rt_pci_find(sysfs, bus_b, &b);
  return rt_pci_distance(&a, &b);
}

static const char *const names[] = {"LOC", "NVL", "PIX", "PXB", "PHB", "SYS", "NET"};

const char *rt_distance_name(enum rt_distance distance) { return names[distance]; }

bool rt_distance_parse(const char *text, enum rt_distance *out) {
  static const enum rt_distance numbers[] = {RT_LOC, RT_PIX, RT_PXB, RT_PHB, RT_SYS};
  for (size_t i = 0; i < RT_NET; i++)
    if (strcasecmp(text, names[i]) == 0) {
      *out = (enum rt_distance)i;
      return true;
    }
  size_t digits = strspn(text, "0123456789");
  if (digits == 0 || digits > 9 || text[digits]) return false;
  *out = numbers[RAIL_MIN((size_t)strtoul(text, NULL, 10), RAIL_COUNT_OF(numbers) - 1)];
  return true;
}

enum rt_distance rt_distance_level(const char *param, const char *text, enum rt_distance def) {
  enum rt_distance level = def;
  if (text && *text && !rt_distance_parse(text, &level))
    RAIL_WARN("%s: '%s' is none of LOC, NVL, PIX, PXB, PHB, SYS, or a number from 0 to 4; %s is used", param, text,
              names[def]);
  return level;
}

const char *rt_p2p_refusal(enum rt_distance distance, enum rt_distance level, bool reachable, char *text, size_t size) {
  if (level == RT_LOC)
    snprintf(text, size, "NCCL_P2P_DISABLE or NCCL_P2P_LEVEL says so");
  else if (distance > level)
    snprintf(text, size, "the GPUs' distance is %s, NCCL_P2P_LEVEL allows %s", rt_distance_name(distance),
             rt_distance_name(level));
  else if (!reachable)
    snprintf(text, size, "the driver lets neither GPU reach the other's memory (distance %s)",
             rt_distance_name(distance));
  else
    return NULL;
  return text;
}
