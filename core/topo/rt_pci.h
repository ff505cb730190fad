/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a device hangs in the PCI tree, and how far apart two devices are: in
 * the words that NCCL has for it. The place is plain numbers of fixed width, so that
 * ranks can tell it to each other.
 */
#ifndef RT_PCI_H
#define RT_PCI_H

#include <stdbool.h>
#include <stdint.h>

#define RT_PCI_HOPS 12
#define RT_PCI_BUS_ID 20 /* bytes of "00000000:3b:00.0" and its end */

struct rt_pci {
  uint64_t hop[RT_PCI_HOPS]; /* the root complex, bridges, and last the device */
  int32_t nhops;             /* 0: unknown */
  int32_t numa;              /* -1: unknown */
};

/* From near to far. Where nothing is known two devices are as far apart as one host allows. */
enum rt_distance {
  RT_LOC, /* one device */
  RT_NVL, /* NVLink */
  RT_PIX, /* through one PCI switch */
  RT_PXB, /* through several, and no processor */
  RT_PHB, /* through a processor's host bridges */
  RT_SYS, /* from one processor to another */
  RT_NET, /* from host to host */
};

/* From a path of sysfs, the names in it alone: /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0. False, and a place
 * that is unknown, if it is none or goes deeper than RT_PCI_HOPS. */
bool rt_pci_parse(const char *path, struct rt_pci *out);
/* The same, and the NUMA node that the directory names; NULL: unknown. */
bool rt_pci_read(const char *path, struct rt_pci *out);
/* A device by its number, below `sysfs` ("/sys"): as the CUDA driver writes it, or sysfs. */
bool rt_pci_find(const char *sysfs, const char *bus_id, struct rt_pci *out);
/* hop's number of a device, also from what sysfs calls it with more or less zeros; 0: it is none. */
uint64_t rt_pci_number(const char *bus_id);

/* Of a and b on one host. */
enum rt_distance rt_pci_distance(const struct rt_pci *a, const struct rt_pci *b);

/* The text of a parameter as rt_distance_parse takes it; NULL or empty: `otherwise`, as for what it does not take,
 * which is warned of. */
enum rt_distance rt_distance_level(const char *param, const char *text, enum rt_distance otherwise);
/* NCCL's words (LOC, NVL, PIX, PXB, PHB, SYS), or the numbers that they had before: 0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and
 * above SYS. False: it is neither. */
bool rt_distance_parse(const char *text, enum rt_distance *out);
const char *rt_distance_name(enum rt_distance distance);

#endif
