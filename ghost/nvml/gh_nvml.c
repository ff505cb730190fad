/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML as far as NCCL asks: which devices there are. They have no NVLink, and nothing that is optional; what a machine
 * is like NCCL takes from the file NCCL_TOPO_FILE where that is set.
 */
#include <stdio.h>
#include <string.h>

#include "ghost/driver/gh_cuda.h"


enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

/* A handle is a pointer to one of these. */
static struct device { int index; } devices[GH_MAX_DEVICES];

/* nvmlPciInfo_t and nvmlPciInfoExt_t as NCCL has them: NVML's own end with a longer text. */
struct pci_info {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char text[16];
};
struct pci_info_ext {
  unsigned version, domain, bus, device, id, subsystem, class, subclass;
  char text[16];
};
enum { PCI_ID = 0x233010de, PCI_SUBSYSTEM = 0x16c110de, PCI_CLASS = 3, PCI_SUBCLASS = 2 };
enum { PCI_GENERATION = 5, PCI_LANES = 16, PCI_MEGABYTES = 32000 };

/* All return a result. */
GH_API int nvmlInit(void);
GH_API int nvmlInit_v2(void);
GH_API int nvmlShutdown(void);
GH_API int nvmlDeviceGetCount(unsigned *count);
GH_API int nvmlDeviceGetCount_v2(unsigned *count);
GH_API int nvmlDeviceGetHandleByIndex(unsigned index, void **device);
GH_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
GH_API int nvmlDeviceGetHandleByPciBusId(const char *text, void **device);
GH_API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device);
GH_API int nvmlDeviceGetIndex(void *device, unsigned *index);
GH_API int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);
GH_API int nvmlDeviceGetP2PStatus(void *a, void *b, int index, int *status);
GH_API int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info);
GH_API int nvmlDeviceGetPciInfoExt(void *device, struct pci_info_ext *info);
GH_API int nvmlDeviceGetPcieLinkMaxSpeed(void *device, unsigned *megabytes);
GH_API int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *generation);
GH_API int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *lanes);
GH_API int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active);
GH_API int nvmlDeviceGetNvLinkCapability(void *device, unsigned link, int what, unsigned *value);
GH_API const char *nvmlErrorString(int error);

GH_API int nvmlInit_v2(void) {
  for (int i = 0; i < GH_MAX_DEVICES; i++) devices[i].index = i;
  return cuInit(0) == 0 ? SUCCESS : DRIVER_NOT_LOADED;
}
GH_API int nvmlInit(void) { return nvmlInit_v2(); }
GH_API int nvmlShutdown(void) { return SUCCESS; }

GH_API const char *nvmlErrorString(int error) {
  switch (error) {
    case SUCCESS: return "success";
    case INVALID_ARGUMENT: return "invalid argument";
    case NOT_SUPPORTED: return "not supported";
    case NOT_FOUND: return "not found";
    case DRIVER_NOT_LOADED: return "driver not loaded";
    default: return "unknown error";
  }
}

GH_API int nvmlDeviceGetCount_v2(unsigned *count) {
  int n = 0;
  if (cuDeviceGetCount(&n)) return DRIVER_NOT_LOADED;
  *count = (unsigned)n;
  return SUCCESS;
}
GH_API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

GH_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  unsigned n = 0;
  if (nvmlDeviceGetCount_v2(&n) || index >= n || index >= GH_MAX_DEVICES) return INVALID_ARGUMENT;
  *device = &devices[index];
  return SUCCESS;
}
GH_API int nvmlDeviceGetHandleByIndex(unsigned index, void **device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

GH_API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device) {
  int index;
  return cuDeviceGetByPCIBusId(&index, text) ? NOT_FOUND : nvmlDeviceGetHandleByIndex_v2((unsigned)index, device);
}
GH_API int nvmlDeviceGetHandleByPciBusId(const char *text, void **device) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

GH_API int nvmlDeviceGetIndex(void *device, unsigned *index) {
  *index = (unsigned)((struct device *)device)->index;
  return SUCCESS;
}

GH_API int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  int index = ((struct device *)device)->index;
  bool bad =
      cuDeviceGetAttribute(major, GH_COMPUTE_MAJOR, index) || cuDeviceGetAttribute(minor, GH_COMPUTE_MINOR, index);
  return bad ? INVALID_ARGUMENT : SUCCESS;
}

GH_API int nvmlDeviceGetP2PStatus(void *a, void *b, int index, int *status) {
  int can = 1, from = ((struct device *)a)->index, to = ((struct device *)b)->index;
  (void)index;
  if (from != to && cuDeviceCanAccessPeer(&can, from, to)) return INVALID_ARGUMENT;
  *status = can ? P2P_OK : P2P_NOT_SUPPORTED;
  return SUCCESS;
}

/* ---- its place, and a link as good as any ---- */

GH_API int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info) {
  memset(info, 0, sizeof *info);
  if (cuDeviceGetPCIBusId(info->legacy, sizeof info->legacy, ((struct device *)device)->index)) return NOT_FOUND;
  if (sscanf(info->legacy, "%x:%x:%x", &info->domain, &info->bus, &info->device) != 3) return NOT_FOUND;
  memcpy(info->text, info->legacy, sizeof info->text);
  info->id = PCI_ID;
  info->subsystem = PCI_SUBSYSTEM;
  return SUCCESS;
}

GH_API int nvmlDeviceGetPciInfoExt(void *device, struct pci_info_ext *info) {
  struct pci_info of;
  int r = nvmlDeviceGetPciInfo_v3(device, &of);
  if (r) return r;
  *info = (struct pci_info_ext){.version = info->version, .domain = of.domain, .bus = of.bus, .device = of.device,
                                .id = of.id, .subsystem = of.subsystem, .class = PCI_CLASS, .subclass = PCI_SUBCLASS};
  memcpy(info->text, of.text, sizeof of.text);
  return SUCCESS;
}

GH_API int nvmlDeviceGetPcieLinkMaxSpeed(void *device, unsigned *megabytes) {
  (void)device;
  *megabytes = PCI_MEGABYTES;
  return SUCCESS;
}

GH_API int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *generation) {
  (void)device;
  *generation = PCI_GENERATION;
  return SUCCESS;
}

GH_API int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *lanes) {
  (void)device;
  *lanes = PCI_LANES;
  return SUCCESS;
}

GH_API int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active) {
  (void)device, (void)link;
  *active = 0;
  return SUCCESS;
}

GH_API int nvmlDeviceGetNvLinkCapability(void *device, unsigned link, int what, unsigned *value) {
  (void)device, (void)link, (void)what;
  *value = 0;
  return SUCCESS;
}
