/* SPDX-License-Identifier: Apache-2.0
 *
 * Are two GPUs of one host near enough for kernels of one to use the memory of the
 * other? What the driver and sysfs say comes in as arguments.
 */
#ifndef RT_PATH_H
#define RT_PATH_H

#include <stdbool.h>
#include <stddef.h>

#include "core/topo/rt_pci.h"

/* Over PCIe, of GPUs by their numbers (RT_PCI_BUS_ID); RT_SYS where one of them is not in sysfs. */
enum rt_distance rt_path_distance(const char *sysfs, const char *bus_a, const char *bus_b);

/* May kernels of one GPU use memory of the other? RT_LOC as the farthest that is allowed is no P2P at all.
 * `reachable`: the driver says so, or it is one GPU. NULL, or the reason why not, which `text` has room for. */
const char *rt_path_refusal(enum rt_distance path, enum rt_distance farthest, bool reachable, char *text, size_t size);

#endif
