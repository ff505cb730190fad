/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gpu/rt_way.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/sock.h"
#include "core/comm/rt_comm.h"

#define BIT RT_WAY_BIT
#define ELSEWHERE (BIT(RT_WAY_FABRIC) | BIT(RT_WAY_FD) | BIT(RT_WAY_IPC))
#define WITHIN (BIT(RT_WAY_MAPPED) | BIT(RT_WAY_PLAIN))
#define LARGEST_GRANULARITY (1u << 30)

const char *rt_way_text(uint32_t way) {
  static const char *const text[RT_WAYS] = {"no way",   "cuMem fabric handles", "cuMem file descriptors",
                                            "CUDA IPC", "direct pointers",      "direct pointers"};
  return way < RT_WAYS ? text[way] : "an unknown way";
}

/* ---- what can be done --------------------------------------------------------------- */

uint32_t rt_ways_open(int device, struct rt_inbox *inbox) {
  uint32_t ways = BIT(RT_WAY_IPC) | BIT(RT_WAY_PLAIN);
  char why[RT_WHY];
  if (!rt_mem_may_map(device)) return ways;
  const int handles = rt_mem_handles(device);
  ways |= BIT(RT_WAY_MAPPED);
  if (handles & RT_CU_FABRIC_HANDLE && rt_mem_has_fabric(device, why))
    ways |= BIT(RT_WAY_FABRIC);
  else if (handles & RT_CU_FABRIC_HANDLE)
    RAIL_INFO(RAIL_SUB_INIT, "P2P: CUDA device %d has no fabric: %s", device, why);
  if (handles & RT_CU_FD_HANDLE && rt_inbox_open(inbox))
    ways |= BIT(RT_WAY_FD);
  else if (handles & RT_CU_FD_HANDLE)
    RAIL_INFO(RAIL_SUB_INIT, "P2P: no unix socket for file descriptors of GPU memory: %s", strerror(errno));
  return ways;
}

uint32_t rt_ways_to(const struct ncclComm *comm, const struct rt_peer *peer) {
  const struct rt_peer *me = &comm->peers[comm->rank];
  return rt_peer_same_process(me, peer) ? me->ways & WITHIN : me->ways & peer->ways & ELSEWHERE;
}

bool rt_way_size_fits(const struct rt_way_to *to, uint64_t size, size_t wanted) {
  const uint32_t g = to->granularity;
  return g >= RT_PAGE && g <= LARGEST_GRANULARITY && (g & (g - 1)) == 0 && size == RAIL_ROUND_UP(wanted, (size_t)g);
}

/* ---- making ------------------------------------------------------------------------- */

static bool export_fabric(uint64_t handle, struct rt_way_to *to, char why[RT_WHY]) {
  return !rt_cuda_refused(rt_cuda()->mem_export(&to->fabric, handle, RT_CU_FABRIC_HANDLE, 0),
                          "cuMemExportToShareableHandle", why);
}

static bool export_fd(uint64_t handle, const struct rt_peer *peer, struct rt_way_to *to, char why[RT_WHY]) {
  int fd = -1;
  if (rail_random_bytes(to->key, sizeof to->key) != RAIL_OK) {
    snprintf(why, RT_WHY, "no random bytes for a key");
    return false;
  }
  if (rt_cuda_refused(rt_cuda()->mem_export(&fd, handle, RT_CU_FD_HANDLE, 0), "cuMemExportToShareableHandle", why))
    return false;
  bool good = rt_inbox_send(peer->inbox, peer->pid, to->key, fd, why);
  close(fd);
  return good;
}

/* Where the driver counts who has the memory, nobody needs the handle once it is exported. */
static bool make_mapped(struct ncclComm *comm, const struct rt_peer *peer, enum rt_way way, size_t size,
                        struct rt_mem *mem, struct rt_way_to *to, char why[RT_WHY]) {
  const int type = way == RT_WAY_FABRIC ? RT_CU_FABRIC_HANDLE : way == RT_WAY_FD ? RT_CU_FD_HANDLE : 0;
  uint64_t handle = 0;
  if (!rt_mem_map(mem, comm->gpu.ordinal, size, type, &handle, why)) return false;
  bool good = way == RT_WAY_FABRIC ? export_fabric(handle, to, why)
              : way == RT_WAY_FD   ? export_fd(handle, peer, to, why)
                                   : true;
  rt_mem_release(handle);
  if (!good) rt_mem_free(mem);
  return good;
}

static bool make_plain(enum rt_way way, size_t size, struct rt_mem *mem, struct rt_way_to *to, char why[RT_WHY]) {
  if (!rt_mem_alloc(mem, RAIL_ROUND_UP(size, RT_GPU_BLOCK), why)) return false;
  bool good = way != RT_WAY_IPC || !rt_cuda_refused(rt_cuda()->ipc_export(&to->ipc, mem->address),
                                                    "cuIpcGetMemHandle", why);
  if (!good) rt_mem_free(mem);
  return good;
}

/* The largest power of 2 that the size is a multiple of says as much as the driver's own number would. */
static uint32_t granularity_of(size_t size) {
  const size_t lowest = size & (~size + 1);
  return lowest < LARGEST_GRANULARITY ? (uint32_t)lowest : LARGEST_GRANULARITY;
}

bool rt_way_make(struct ncclComm *comm, const struct rt_peer *peer, enum rt_way way, size_t size, struct rt_mem *mem,
                 struct rt_way_to *to, char why[RT_WHY]) {
  memset(to, 0, sizeof *to);
  bool good = way == RT_WAY_IPC || way == RT_WAY_PLAIN ? make_plain(way, size, mem, to, why)
                                                       : make_mapped(comm, peer, way, size, mem, to, why);
  to->way = way;
  to->granularity = granularity_of(mem->size);
  return good;
}

/* ---- taking --------------------------------------------------------------------------- */

bool rt_way_take(struct ncclComm *comm, const struct rt_way_to *to, size_t size, int fd, struct rt_mem *mem,
                 char why[RT_WHY]) {
  struct rt_cuda_fabric fabric = to->fabric;
  const int device = comm->gpu.ordinal;
  *mem = (struct rt_mem){.size = size};
  switch (to->way) {
    case RT_WAY_FABRIC: return rt_mem_import(mem, device, size, RT_CU_FABRIC_HANDLE, &fabric, why);
    case RT_WAY_FD: return rt_mem_import(mem, device, size, RT_CU_FD_HANDLE, (void *)(intptr_t)fd, why);
    default:
      return !rt_cuda_refused(rt_cuda()->ipc_open(&mem->address, to->ipc, RT_CU_IPC_LAZY_PEER_ACCESS),
                              "cuIpcOpenMemHandle", why);
  }
}

void rt_way_return(enum rt_way way, struct rt_mem *mem) {
  char why[RT_WHY];
  if (way != RT_WAY_IPC)
    rt_mem_free(mem);
  else if (rt_cuda_refused(rt_cuda()->ipc_close(mem->address), "cuIpcCloseMemHandle", why))
    RAIL_INFO(RAIL_SUB_INIT, "%s", why);
  *mem = (struct rt_mem){0};
}
