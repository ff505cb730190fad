/* SPDX-License-Identifier: Apache-2.0
 *
 * GPUDirect: slots of a NET connection in the memory of the GPU whose kernels use
 * it, which the NIC then reads and writes itself. LL's slots stay in the host's memory.
 * Which memory one end has does not matter to the other.
 */
#ifndef RT_GDR_H
#define RT_GDR_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/result.h"
#include "core/topo/rt_pci.h"

struct ncclComm;

enum rt_gdr_way { RT_GDR_NONE, RT_GDR_CUDA, RT_GDR_DMABUF };

/* What the choice rests on. */
struct rt_gdr_facts {
  int ptr_support;           /* of the NIC: RAIL_PTR_… */
  bool rdma, dmabuf;         /* the driver lets a NIC into the GPU's memory; it exports that as a dma-buf */
  enum rt_distance distance; /* of NIC and GPU */
  enum rt_distance level;    /* the farthest that is allowed */
  bool is_send, read;        /* may the NIC read the GPU's memory, too? */
};

/* How to register the GPU's memory with the NIC; RT_GDR_NONE: not at all, and *why says why. */
enum rt_gdr_way rt_gdr_choose(const struct rt_gdr_facts *f, const char **why);

/* Does a receive need a flush before the GPU may look? What a NIC has written can still be on its way when the GPU sees
 * the completion, and only later GPUs order the two themselves, unless they hang on the processor by a link that the
 * NIC's writes do not take. */
bool rt_gdr_must_flush(bool forced, int compute_major, bool own_link);

/* Slots of one end of a connection. */
struct rt_gdr {
  char *slots; /* NULL: there are none */
  void *mhandle;
  bool flush;
};

/* Makes and registers `size` bytes for the connection of plugin's `net_comm` on its device `dev`. Does nothing
 * but say so in one line where that is not wanted or not possible: then the host's slots serve. */
void rt_gdr_open(struct ncclComm *comm, int dev, void *net_comm, bool is_send, size_t size, struct rt_gdr *gdr);
/* Accepts a zeroed struct. */
void rt_gdr_close(struct ncclComm *comm, void *net_comm, struct rt_gdr *gdr);

#endif
