/* SPDX-License-Identifier: Apache-2.0
 *
 * A device's path in the PCI tree, and the distance between two devices, in NCCL's words.
 * A path is plain numbers of fixed width, so that ranks can exchange it.
 */
#ifndef RT_PCI_H
#define RT_PCI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RT_PCI_HOPS 12
#define RT_PCI_BUS_ID 20 /* bytes of "00000000:3b:00.0" with its NUL */

struct rt_pci {
  uint64_t hop[RT_PCI_HOPS]; /* the root complex, bridges, and last the device */
  int32_t nhops;             /* 0: unknown */
  int32_t numa;              /* -1: unknown */
};

/* From near to far. Two devices of unknown paths on one host are at RT_SYS. */
enum rt_distance {
  RT_LOC, /* one device */
  RT_NVL, /* NVLink */
  RT_PIX, /* through one PCI switch */
  RT_PXB, /* through several, and no processor */
  RT_PHB, /* through a processor's host bridges */
  RT_SYS, /* from one processor to another */
  RT_NET, /* from host to host */
};

/* From a path of sysfs, by its text alone: /sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0. False, with an unknown
 * path, if it is not one or has more than RT_PCI_HOPS hops. */
bool rt_pci_parse(const char *path, struct rt_pci *out);
/* The same, with the NUMA node that the directory has. `path` may be NULL: unknown. */
bool rt_pci_read(const char *path, struct rt_pci *out);
/* A device by its bus id, as the CUDA driver or sysfs writes it, in the sysfs mounted at `sysfs` ("/sys"). */
bool rt_pci_find(const char *sysfs, const char *bus_id, struct rt_pci *out);
/* A bus id as hop[] has it, whatever the number of its leading zeros; 0: not a bus id. */
uint64_t rt_pci_number(const char *bus_id);

/* Of a and b on one host. */
enum rt_distance rt_pci_distance(const struct rt_pci *a, const struct rt_pci *b);
/* The same by bus ids. */
enum rt_distance rt_pci_bus_distance(const char *sysfs, const char *bus_a, const char *bus_b);

/* A parameter's value as rt_distance_parse takes it. The default for NULL, "", and, with a warning, for anything else.
 */
enum rt_distance rt_distance_level(const char *param, const char *text, enum rt_distance def);
/* NCCL's words (LOC, NVL, PIX, PXB, PHB, SYS), or the numbers of older versions: 0 LOC, 1 PIX, 2 PXB, 3 PHB, 4 and
 * above SYS. False: neither. */
bool rt_distance_parse(const char *text, enum rt_distance *out);
const char *rt_distance_name(enum rt_distance distance);

/* May kernels of one GPU use memory of the other (P2P)? `level` is NCCL_P2P_LEVEL, RT_LOC where P2P is off;
 * `reachable`: the driver allows it, or it is one GPU. NULL, or the reason why not, which is written to `text`. */
const char *rt_p2p_refusal(enum rt_distance distance, enum rt_distance level, bool reachable, char *text, size_t size);

#endif
