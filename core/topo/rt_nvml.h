/* SPDX-License-Identifier: Apache-2.0
 * What this machine says of a GPU: its place in the PCI tree, and where its NVLinks lead (NVML). */
#ifndef RT_NVML_H
#define RT_NVML_H

#include "core/topo/rt_topo.h"

/* A CUDA device of this process; all zero where there is none, or its place is not to be found out. Without NVML it
 * has no NVLinks. A process finds that out once a device. */
void rt_topo_look(int device, struct rt_topo_gpu *gpu);

#endif
