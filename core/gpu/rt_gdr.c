/* SPDX-License-Identifier: Apache-2.0
 * Whether a NET connection's slots lie in the GPU's memory; allocates and registers that memory. rt_net.c calls it when
 * it sets a connection up and when it frees it. */
#include "core/gpu/rt_gdr.h"

#include <unistd.h>

#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_param.h"
#include "core/gpu/rt_cuda.h"

#define FIRST_THAT_ORDERS 9 /* compute capability */

/* ---- the choice ----------------------------------------------------------------- */

enum rt_gdr_way rt_gdr_choose(const struct rt_gdr_facts *f, const char **why) {
  *why = NULL;
  if (!(f->ptr_support & (RAIL_PTR_CUDA | RAIL_PTR_DMABUF)))
    *why = "the plugin takes host memory only";
  else if (!f->rdma)
    *why = "the CUDA driver lets no NIC into this device's memory";
  else if (!(f->ptr_support & RAIL_PTR_CUDA) && !f->dmabuf)
    *why = "the plugin wants a dma-buf, which the CUDA driver does not export";
  else if (f->distance > f->level)
    *why = "the NIC is farther from the GPU than NCCL_NET_GDR_LEVEL";
  else if (f->is_send && !f->read)
    *why = "NCCL_NET_GDR_READ is 0";
  if (*why) return RT_GDR_NONE;
  return f->dmabuf && f->ptr_support & RAIL_PTR_DMABUF ? RT_GDR_DMABUF : RT_GDR_CUDA;
}

bool rt_gdr_must_flush(bool forced, int compute_major, bool own_link) {
  return forced || compute_major < FIRST_THAT_ORDERS || own_link;
}

static int attribute(const struct ncclComm *comm, int which) {
  int value = 0;
  return rt_cuda()->device_attribute(&value, which, comm->gpu.ordinal) == RT_CU_SUCCESS ? value : 0;
}

static enum rt_distance distance_to(const struct ncclComm *comm, const char *nic_path) {
  char bus_id[RT_PCI_BUS_ID] = "";
  struct rt_pci gpu, nic;
  if (rt_cuda()->device_bus_id(bus_id, sizeof bus_id, comm->gpu.ordinal) != RT_CU_SUCCESS) return RT_SYS;
  rt_pci_find(rt_params()->sysfs, bus_id, &gpu);
  rt_pci_read(nic_path, &nic);
  return rt_pci_distance(&gpu, &nic);
}

/* What is tried, and said of it. */
struct attempt {
  enum rt_gdr_way way;
  bool peer_memory; /* the plugin also takes GPU memory by its address alone */
  const char *why;  /* not */
};

static struct attempt choose(struct ncclComm *comm, int dev, bool is_send, bool *flush) {
  struct rail_net_props_v12 props;
  struct attempt a = {.way = RT_GDR_NONE, .why = "the plugin does not tell its device's properties"};
  if (rail_net_properties(comm->net.plugin, dev, &props) != RAIL_OK) return a;
  const struct rt_params *p = rt_params();
  const struct rt_gdr_facts facts = {
      .ptr_support = props.ptr_support,
      .rdma = attribute(comm, RT_CU_DEVICE_GPU_DIRECT_RDMA) != 0,
      .dmabuf = p->dmabuf_enable && rt_cuda()->range_handle && attribute(comm, RT_CU_DEVICE_DMA_BUF) != 0,
      .distance = distance_to(comm, props.pci_path),
      .level = rt_distance_level("NCCL_NET_GDR_LEVEL", p->net_gdr_level, RT_PXB),
      .is_send = is_send,
      .read = p->net_gdr_read != 0,
  };
  *flush = !is_send && rt_gdr_must_flush(p->net_force_flush || props.force_flush == 1,
                                         attribute(comm, RT_CU_DEVICE_COMPUTE_MAJOR),
                                         attribute(comm, RT_CU_DEVICE_HOST_PAGE_TABLES) != 0);
  a.way = rt_gdr_choose(&facts, &a.why);
  a.peer_memory = props.ptr_support & RAIL_PTR_CUDA;
  return a;
}

/* ---- the memory; the communicator's context is current ----------------------------- */

static rail_result_t register_dmabuf(struct ncclComm *comm, void *net_comm, size_t size, struct rt_gdr *gdr) {
  int fd = -1;
  int r = rt_cuda()->range_handle(&fd, (uint64_t)(uintptr_t)gdr->slots, size, RT_CU_HANDLE_DMA_BUF_FD, 0);
  if (r != RT_CU_SUCCESS) {
    RAIL_INFO(RAIL_SUB_NET, "cuMemGetHandleForAddressRange: CUDA result %d", r);
    return RAIL_CUDA_ERROR;
  }
  rail_result_t result =
      rail_net_reg_mr_dmabuf(comm->net.plugin, net_comm, gdr->slots, size, RAIL_PTR_CUDA, 0, fd, &gdr->mhandle);
  close(fd); /* a plugin that keeps it has duplicated it */
  return result;
}

static rail_result_t register_slots(struct ncclComm *comm, void *net_comm, size_t size, struct attempt *a,
                                    struct rt_gdr *gdr) {
  if (a->way == RT_GDR_DMABUF) {
    rail_result_t r = register_dmabuf(comm, net_comm, size, gdr);
    if (r == RAIL_OK || !a->peer_memory) return r;
  }
  a->way = RT_GDR_CUDA;
  return rail_net_reg_mr(comm->net.plugin, net_comm, gdr->slots, size, RAIL_PTR_CUDA, &gdr->mhandle);
}

static void make(struct ncclComm *comm, void *net_comm, size_t size, struct attempt *a, struct rt_gdr *gdr) {
  uint64_t address = 0;
  a->why = "there is no device memory for them";
  if (rt_cuda()->mem_alloc(&address, size) != RT_CU_SUCCESS) return;
  gdr->slots = (char *)(uintptr_t)address;
  a->why = "the plugin refuses to register them";
  if (register_slots(comm, net_comm, size, a, gdr) == RAIL_OK) return;
  rt_cuda()->mem_free(address);
  *gdr = (struct rt_gdr){.slots = NULL};
}

void rt_gdr_open(struct ncclComm *comm, int dev, void *net_comm, bool is_send, size_t size, struct rt_gdr *gdr) {
  const char *end = is_send ? "send" : "receive";
  struct rt_cuda_scope scope;
  struct attempt a = choose(comm, dev, is_send, &gdr->flush);
  if (a.way != RT_GDR_NONE && rt_cuda_enter(&scope, comm->gpu.context) == RAIL_OK) {
    make(comm, net_comm, RAIL_ROUND_UP(size, RT_GPU_BLOCK), &a, gdr);
    rt_cuda_leave(&scope);
  }
  if (gdr->slots)
    RAIL_INFO(RAIL_SUB_NET, "rank %d: %s slots for device %d are in GPU memory (%s)%s", comm->rank, end, dev,
              a.way == RT_GDR_DMABUF ? "dma-buf" : "peer memory", gdr->flush ? ", flushed" : "");
  else
    RAIL_INFO(RAIL_SUB_NET, "rank %d: %s slots for device %d stay in host memory: %s", comm->rank, end, dev, a.why);
}

void rt_gdr_close(struct ncclComm *comm, void *net_comm, struct rt_gdr *gdr) {
  struct rt_cuda_scope scope;
  if (!gdr->slots) return;
  if (gdr->mhandle) rail_net_dereg_mr(comm->net.plugin, net_comm, gdr->mhandle);
  /* With a context that is gone went its memory. */
  if (rt_cuda_enter(&scope, comm->gpu.context) == RAIL_OK) {
    rt_cuda()->mem_free((uint64_t)(uintptr_t)gdr->slots);
    rt_cuda_leave(&scope);
  }
  gdr->slots = NULL;
}
