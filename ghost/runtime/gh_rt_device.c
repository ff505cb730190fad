/* SPDX-License-Identifier: Apache-2.0
 * The runtime's devices, errors, and the driver's calls by name. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "ghost/runtime/gh_cudart.h"

static __thread int device, last_error;
static void *contexts[GH_MAX_DEVICES];

static void start(void) {
  int n = 0;
  if (cuInit(0) || cuDeviceGetCount(&n)) return;
  for (int i = 0; i < n && i < GH_MAX_DEVICES; i++) cuDevicePrimaryCtxRetain(&contexts[i], i);
}

static void start_once(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start);
}

/* The device whose context is current, which the driver's own calls may have changed. */
int gh_rt_device(void) {
  int current;
  start_once();
  return cuCtxGetDevice(&current) == 0 ? current : device;
}

int gh_rt_enter(void) {
  void *context = NULL;
  start_once();
  int r = cuCtxGetCurrent(&context);
  return r || context ? r : cuCtxSetCurrent(contexts[device]);
}

int gh_rt_leave(int result) {
  if (result && result != GH_RT_NOT_READY) last_error = result;
  return result;
}

GH_API int cudaGetLastError(void) {
  int r = last_error;
  last_error = 0;
  return r;
}

GH_API int cudaPeekAtLastError(void) { return last_error; }

GH_API const char *cudaGetErrorName(int error) {
  const char *text = NULL;
  cuGetErrorName(error, &text);
  return text ? text : "unrecognized error code";
}

GH_API const char *cudaGetErrorString(int error) { return cudaGetErrorName(error); }

GH_API int cudaDriverGetVersion(int *version) { return cuDriverGetVersion(version); }
GH_API int cudaRuntimeGetVersion(int *version) { return *version = GH_RT_VERSION, GH_RT_SUCCESS; }

GH_API int cudaGetDeviceCount(int *count) {
  start_once();
  return gh_rt_leave(cuDeviceGetCount(count));
}

GH_API int cudaGetDevice(int *out) {
  *out = gh_rt_device();
  return GH_RT_SUCCESS;
}

GH_API int cudaSetDevice(int wanted) {
  int n = 0;
  start_once();
  int r = cuDeviceGetCount(&n);
  if (r == 0 && (wanted < 0 || wanted >= n)) r = GH_RT_INVALID_DEVICE;
  if (r == 0) r = cuCtxSetCurrent(contexts[wanted]);
  if (r == 0) device = wanted;
  return gh_rt_leave(r);
}

/* Where fields of cudaDeviceProp lie; which of the runtime's two layouts it is was decided when this was compiled. */
#if GH_RT_VERSION >= 13000
enum { PROP_SIZE = 1008, PROP_MAX_THREADS = 320, PROP_MAJOR = 360, PROP_SMS = 384, PROP_PCI = 568, PROP_OPTIN = 672 };
#else
enum { PROP_SIZE = 1032, PROP_MAX_THREADS = 320, PROP_MAJOR = 360, PROP_SMS = 388, PROP_PCI = 584, PROP_OPTIN = 696 };
#endif
enum { PROP_UUID = 256, PROP_MEMORY = 288, PROP_SHARED = 296, PROP_WARP = 308 };

static void put_int(char *properties, size_t at, int value) { memcpy(properties + at, &value, sizeof value); }

GH_API int cudaGetDeviceProperties(void *properties, int of) {
  char *p = properties, text[16];
  size_t memory = 0, shared = 48 << 10;
  int major = 0, minor = 0, sms = 0, optin = 0;
  unsigned pci[3] = {0, 0, 0};
  start_once();
  memset(p, 0, PROP_SIZE);
  int r = cuDeviceGetName(p, 256, of);
  if (r == 0) r = cuDeviceGetUuid_v2((struct gh_uuid *)(void *)(p + PROP_UUID), of);
  if (r == 0) r = cuDeviceTotalMem_v2(&memory, of);
  if (r == 0) r = cuDeviceGetAttribute(&major, GH_COMPUTE_MAJOR, of);
  if (r == 0) r = cuDeviceGetAttribute(&minor, GH_COMPUTE_MINOR, of);
  if (r == 0) r = cuDeviceGetAttribute(&sms, GH_MULTIPROCESSORS, of);
  if (r == 0) r = cuDeviceGetAttribute(&optin, GH_SHARED_MEMORY_OPTIN, of);
  if (r == 0) r = cuDeviceGetPCIBusId(text, sizeof text, of);
  if (r == 0 && sscanf(text, "%4x:%2x:%2x", &pci[0], &pci[1], &pci[2]) != 3) r = GH_RT_INVALID_VALUE;
  if (r) return gh_rt_leave(r);
  memcpy(p + PROP_MEMORY, &memory, sizeof memory);
  memcpy(p + PROP_SHARED, &shared, sizeof shared);
  put_int(p, PROP_WARP, 32);
  put_int(p, PROP_MAX_THREADS, 1024);
  put_int(p, PROP_MAJOR, major);
  put_int(p, PROP_MAJOR + 4, minor);
  put_int(p, PROP_SMS, sms);
  put_int(p, PROP_PCI, (int)pci[1]);
  put_int(p, PROP_PCI + 4, (int)pci[2]);
  put_int(p, PROP_PCI + 8, (int)pci[0]);
  put_int(p, PROP_OPTIN, optin);
  return GH_RT_SUCCESS;
}

/* What CUDA 12's headers make of the name. */
GH_API int cudaGetDeviceProperties_v2(void *properties, int of) { return cudaGetDeviceProperties(properties, of); }

GH_API int cudaDeviceGetAttribute(int *value, int attribute, int of) {
  start_once();
  return gh_rt_leave(cuDeviceGetAttribute(value, attribute, of));
}

GH_API int cudaDeviceGetPCIBusId(char *text, int size, int of) {
  start_once();
  return gh_rt_leave(cuDeviceGetPCIBusId(text, size, of));
}

GH_API int cudaDeviceGetByPCIBusId(int *out, const char *text) {
  start_once();
  return gh_rt_leave(cuDeviceGetByPCIBusId(out, text));
}

GH_API int cudaDeviceCanAccessPeer(int *can, int of, int peer) {
  start_once();
  *can = 0;
  return gh_rt_leave(of == peer ? GH_RT_SUCCESS : cuDeviceCanAccessPeer(can, of, peer));
}

GH_API int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  if (peer < 0 || peer >= GH_MAX_DEVICES || !contexts[peer]) return gh_rt_leave(GH_RT_INVALID_DEVICE);
  GH_RT_CALL(cuCtxEnablePeerAccess(contexts[peer], flags));
}

/* Kernels have the host's stack. */
GH_API int cudaDeviceSetLimit(int limit, size_t value) {
  (void)limit;
  (void)value;
  return gh_rt_leave(gh_rt_enter());
}

GH_API int cudaDeviceSynchronize(void) { GH_RT_CALL(cuCtxSynchronize()); }

/* ---- the driver's calls by name: cuda.h has given some a newer version, which is another symbol ---- */

static int entry_point(const char *symbol, void **function, int *status) {
  static const char *const versions[] = {"_v3", "_v2", ""};
  char name[96];
  *function = NULL;
  for (int i = 0; i < 3 && !*function; i++) {
    snprintf(name, sizeof name, "%s%s", symbol, versions[i]);
    *function = dlsym(RTLD_DEFAULT, name);
    if (!*function) {
      void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
      if (driver) *function = dlsym(driver, name);
      if (driver) dlclose(driver);
    }
  }
  if (status) *status = *function ? 0 : 1; /* there is no such symbol */
  return GH_RT_SUCCESS;
}

GH_API int cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *status) {
  (void)flags;
  start_once();
  return entry_point(symbol, function, status);
}

GH_API int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                               unsigned long long flags, int *status) {
  (void)version;
  return cudaGetDriverEntryPoint(symbol, function, flags, status);
}
