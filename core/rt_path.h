/* SPDX-License-Identifier: Apache-2.0
 *
 * Are two GPUs of one host near enough for kernels of one to use the memory of the
 * other? What the driver and sysfs say comes in as arguments.
 */
#ifndef RT_PATH_H
#define RT_PATH_H

#include <stdbool.h>
#include <stddef.h>

#include "core/rt_pci.h"

/* NCCL_P2P_LEVEL's text, as rt_distance_parse takes it. As the farthest that is allowed, RT_LOC is no P2P at all. NULL:
 * as far as the driver allows. Anything else is warned of, and taken for NULL. */
enum rt_distance rt_path_level(const char *text);

/* Over PCIe, of GPUs by their numbers (RT_PCI_BUS_ID); RT_SYS where one of them is not in sysfs. */
enum rt_distance rt_path_distance(const char *sysfs, const char *bus_a, const char *bus_b);

/* May kernels of one GPU use memory of the other? `reachable`: the driver says so, or it is one GPU. NULL, or the
 * reason why not, which `text` has room for. */
const char *rt_path_refusal(enum rt_distance path, enum rt_distance farthest, bool reachable, char *text, size_t size);

#endif
