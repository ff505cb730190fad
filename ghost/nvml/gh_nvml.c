/* SPDX-License-Identifier: Apache-2.0
 *
 * NVML as far as NCCL asks: which devices there are. They have no NVLink, and nothing that is optional; what a machine
 * is like NCCL takes from the file NCCL_TOPO_FILE where that is set.
 */
#include <stdio.h>
#include <string.h>

#include "ghost/driver/gh_cuda.h"

#define API __attribute__((visibility("default")))
#define MAX_DEVICES 8

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

/* A handle is a pointer to one of these. */
static struct device { int index; } devices[MAX_DEVICES];

/* X(symbol, arguments): all return a result. */
#define CALLS(X)                                                                       \
  X(nvmlInit, (void))                                                                  \
  X(nvmlInit_v2, (void))                                                               \
  X(nvmlShutdown, (void))                                                              \
  X(nvmlDeviceGetCount, (unsigned *count))                                             \
  X(nvmlDeviceGetCount_v2, (unsigned *count))                                          \
  X(nvmlDeviceGetHandleByIndex, (unsigned index, void **device))                       \
  X(nvmlDeviceGetHandleByIndex_v2, (unsigned index, void **device))                    \
  X(nvmlDeviceGetHandleByPciBusId, (const char *text, void **device))                  \
  X(nvmlDeviceGetHandleByPciBusId_v2, (const char *text, void **device))               \
  X(nvmlDeviceGetIndex, (void *device, unsigned *index))                               \
  X(nvmlDeviceGetCudaComputeCapability, (void *device, int *major, int *minor))        \
  X(nvmlDeviceGetP2PStatus, (void *a, void *b, int index, int *status))                \
  X(nvmlDeviceGetNvLinkState, (void *device, unsigned link, int *active))              \
  X(nvmlDeviceGetNvLinkCapability, (void *device, unsigned link, int what, unsigned *value))

#define DECLARE_(symbol, arguments) API int symbol arguments;
CALLS(DECLARE_)
API const char *nvmlErrorString(int error);

API int nvmlInit_v2(void) {
  for (int i = 0; i < MAX_DEVICES; i++) devices[i].index = i;
  return cuInit(0) == 0 ? SUCCESS : DRIVER_NOT_LOADED;
}
API int nvmlInit(void) { return nvmlInit_v2(); }
API int nvmlShutdown(void) { return SUCCESS; }

API const char *nvmlErrorString(int error) {
  switch (error) {
    case SUCCESS: return "success";
    case INVALID_ARGUMENT: return "invalid argument";
    case NOT_SUPPORTED: return "not supported";
    case NOT_FOUND: return "not found";
    case DRIVER_NOT_LOADED: return "driver not loaded";
    default: return "unknown error";
  }
}

API int nvmlDeviceGetCount_v2(unsigned *count) {
  int n = 0;
  if (cuDeviceGetCount(&n)) return DRIVER_NOT_LOADED;
  *count = (unsigned)n;
  return SUCCESS;
}
API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  unsigned n = 0;
  if (nvmlDeviceGetCount_v2(&n) || index >= n || index >= MAX_DEVICES) return INVALID_ARGUMENT;
  *device = &devices[index];
  return SUCCESS;
}
API int nvmlDeviceGetHandleByIndex(unsigned index, void **device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device) {
  int index;
  return cuDeviceGetByPCIBusId(&index, text) ? NOT_FOUND : nvmlDeviceGetHandleByIndex_v2((unsigned)index, device);
}
API int nvmlDeviceGetHandleByPciBusId(const char *text, void **device) {
  return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

API int nvmlDeviceGetIndex(void *device, unsigned *index) {
  *index = (unsigned)((struct device *)device)->index;
  return SUCCESS;
}

API int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  int index = ((struct device *)device)->index;
  bool bad =
      cuDeviceGetAttribute(major, GH_COMPUTE_MAJOR, index) || cuDeviceGetAttribute(minor, GH_COMPUTE_MINOR, index);
  return bad ? INVALID_ARGUMENT : SUCCESS;
}

API int nvmlDeviceGetP2PStatus(void *a, void *b, int index, int *status) {
  int can = 1, from = ((struct device *)a)->index, to = ((struct device *)b)->index;
  (void)index;
  if (from != to && cuDeviceCanAccessPeer(&can, from, to)) return INVALID_ARGUMENT;
  *status = can ? P2P_OK : P2P_NOT_SUPPORTED;
  return SUCCESS;
}

API int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active) {
  (void)device, (void)link;
  *active = 0;
  return SUCCESS;
}

API int nvmlDeviceGetNvLinkCapability(void *device, unsigned link, int what, unsigned *value) {
  (void)device, (void)link, (void)what;
  *value = 0;
  return SUCCESS;
}
