/* SPDX-License-Identifier: Apache-2.0
 * What this machine knows about a GPU: its PCI path from sysfs, its NVLinks from NVML. */
#include "core/topo/rt_topo.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "core/comm/rt_param.h"
#include "core/gpu/rt_cuda.h"

/* Values of NVML's enums, and NVML_NVLINK_MAX_LINKS. */
enum { OK = 0, MAX_LINKS = 18, REMOTE_GPU = 0, REMOTE_SWITCH = 2 };

/* NVML's nvmlPciInfo_t. */
struct pci_info {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};

struct nvml {
  int (*init)(void);
  int (*shutdown)(void);
  int (*device)(const char *bus_id, void **device);
  int (*state)(void *device, unsigned link, unsigned *active);
  int (*remote)(void *device, unsigned link, struct pci_info *pci);
  int (*remote_type)(void *device, unsigned link, int *type);
};

static bool fill_table(void *library, struct nvml *table) {
  const struct { const char *symbol; void *at; } calls[] = {
      {"nvmlInit_v2", &table->init},
      {"nvmlShutdown", &table->shutdown},
      {"nvmlDeviceGetHandleByPciBusId_v2", &table->device},
      {"nvmlDeviceGetNvLinkState", &table->state},
      {"nvmlDeviceGetNvLinkRemotePciInfo_v2", &table->remote},
      {"nvmlDeviceGetNvLinkRemoteDeviceType", &table->remote_type},
  };
  for (size_t i = 0; i < RAIL_COUNT_OF(calls); i++) {
    void *found = dlsym(library, calls[i].symbol);
    if (!found) return false;
    memcpy(calls[i].at, &found, sizeof found);
  }
  return true;
}

static void add_peer(struct rt_topo_gpu *gpu, uint64_t number) {
  for (uint32_t i = 0; i < gpu->npeers; i++)
    if (gpu->peer[i] == number) return;
  if (number && gpu->npeers < RT_TOPO_PEERS) gpu->peer[gpu->npeers++] = number;
}

static void read_links(const struct nvml *nvml, const char *bus_id, struct rt_topo_gpu *gpu) {
  void *device;
  if (nvml->device(bus_id, &device) != OK) return;
  for (unsigned link = 0; link < MAX_LINKS; link++) {
    unsigned active = 0;
    int type = -1;
    struct pci_info pci;
    memset(&pci, 0, sizeof pci);
    if (nvml->state(device, link, &active) != OK || !active || nvml->remote_type(device, link, &type) != OK) continue;
    if (type == REMOTE_SWITCH) gpu->switched = 1;
    if (type != REMOTE_GPU || nvml->remote(device, link, &pci) != OK) continue;
    pci.bus_id[sizeof pci.bus_id - 1] = 0;
    add_peer(gpu, rt_pci_number(pci.bus_id));
  }
}

static void detect_links(const char *bus_id, struct rt_topo_gpu *gpu) {
  struct nvml nvml;
  void *library = dlopen(rt_params()->nvml_lib, RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  if (!fill_table(library, &nvml)) {
    RAIL_INFO(RAIL_SUB_INIT, "%s lacks calls for NVLink: GPUs are taken to have none", rt_params()->nvml_lib);
  } else if (nvml.init() == OK) {
    read_links(&nvml, bus_id, gpu);
    nvml.shutdown();
  }
  dlclose(library);
}

/* Results so far: NVML is slow to open, and the answer does not change. */
static struct {
  char bus_id[RT_PCI_BUS_ID];
  struct rt_topo_gpu gpu;
} cache[16];
static int ncached;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void detect(const char *bus_id, struct rt_topo_gpu *gpu) {
  for (int i = 0; i < ncached; i++)
    if (strcmp(cache[i].bus_id, bus_id) == 0) {
      *gpu = cache[i].gpu;
      return;
    }
  rt_pci_find(rt_params()->sysfs, bus_id, &gpu->pci);
  detect_links(bus_id, gpu);
  if (ncached == (int)RAIL_COUNT_OF(cache)) return;
  snprintf(cache[ncached].bus_id, sizeof cache[ncached].bus_id, "%s", bus_id);
  cache[ncached++].gpu = *gpu;
}

void rt_topo_detect(int device, struct rt_topo_gpu *gpu) {
  const struct rt_cuda *cu = rt_cuda();
  char bus_id[RT_PCI_BUS_ID] = "";
  memset(gpu, 0, sizeof *gpu);
  gpu->pci.numa = -1;
  if (!cu || device < 0 || cu->device_bus_id(bus_id, sizeof bus_id, device) != RT_CU_SUCCESS) return;
  pthread_mutex_lock(&lock);
  detect(bus_id, gpu);
  pthread_mutex_unlock(&lock);
}
