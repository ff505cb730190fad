/* SPDX-License-Identifier: Apache-2.0
 * The emulated driver's devices and contexts, what a call begins with, and the counters of calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ghost/driver/gh_cuda.h"
#include "ghost/driver/gh_driver.h"

#define MAX_NAMES 128
#define MAX_NESTED 8

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialized;
static int sticky_error;
static struct gh_context contexts[GH_MAX_DEVICES];

/* ---- counters, and calls that shall fail ---- */

struct count { char name[48]; long n; };
static struct count calls[MAX_NAMES], live[MAX_NAMES];

static long *count_of(struct count *table, const char *name) {
  int i = 0;
  while (i < MAX_NAMES - 1 && table[i].name[0] && strcmp(table[i].name, name) != 0) i++;
  snprintf(table[i].name, sizeof table[i].name, "%s", name);
  return &table[i].n;
}

static bool asked_to_fail(const char *name, long n) {
  const char *list = getenv("GHOST_FAIL");
  char wanted[64];
  snprintf(wanted, sizeof wanted, "%s:%ld", name, n);
  for (const char *at = list; at && (at = strstr(at, wanted)); at++) {
    char after = at[strlen(wanted)];
    if ((at == list || at[-1] == ' ') && (after == 0 || after == ' ')) return true;
  }
  return false;
}

bool gh_should_fail(const char *name) {
  pthread_mutex_lock(&lock);
  long n = ++*count_of(calls, name);
  pthread_mutex_unlock(&lock);
  return asked_to_fail(name, n);
}

void gh_count_live(const char *what, int change) {
  pthread_mutex_lock(&lock);
  *count_of(live, what) += change;
  pthread_mutex_unlock(&lock);
}

static long read_count(struct count *table, const char *name) {
  pthread_mutex_lock(&lock);
  long n = *count_of(table, name);
  pthread_mutex_unlock(&lock);
  return n;
}

GH_API long ghost_calls(const char *name) { return read_count(calls, name); }
GH_API long ghost_live(const char *what) { return read_count(live, what); }

/* ---- contexts ---- */

static __thread struct gh_context *nested[MAX_NESTED];
static __thread int depth;
static __thread int capture_mode;

struct gh_context *gh_context(void) { return depth ? nested[depth - 1] : NULL; }
int gh_capture_mode(void) { return capture_mode; }

void gh_set_sticky_error(int result) { __atomic_store_n(&sticky_error, result, __ATOMIC_RELEASE); }
bool gh_has_sticky_error(void) { return __atomic_load_n(&sticky_error, __ATOMIC_ACQUIRE) != OK; }

int gh_enter(const char *call) {
  bool fails = gh_should_fail(call);
  if (gh_in_callback()) return NOT_PERMITTED;
  if (!__atomic_load_n(&initialized, __ATOMIC_ACQUIRE)) return NOT_INITIALIZED;
  int result = __atomic_load_n(&sticky_error, __ATOMIC_ACQUIRE);
  return result ? result : fails ? INVALID_VALUE : OK;
}

int gh_enter_context(const char *call) {
  int r = gh_enter(call);
  return r ? r : gh_context() ? OK : INVALID_CONTEXT;
}

int gh_enter_ending(const char *call) {
  if (gh_in_callback()) return NOT_PERMITTED;
  return gh_should_fail(call) ? INVALID_VALUE : __atomic_load_n(&initialized, __ATOMIC_ACQUIRE) ? OK : NOT_INITIALIZED;
}

int gh_enter_unsafe(const char *call) {
  int r = gh_enter_context(call);
  if (r || capture_mode == MODE_RELAXED) return r;
  return gh_invalidate_captures() ? CAPTURE_UNSUPPORTED : OK;
}

int gh_devices(void) {
  const char *text = getenv("GHOST_DEVICES");
  int n = text ? atoi(text) : 1;
  return n < 1 ? 1 : n > GH_MAX_DEVICES ? GH_MAX_DEVICES : n;
}

GH_API int cuInit(unsigned flags) {
  if (flags) return INVALID_VALUE;
  for (int i = 0; i < GH_MAX_DEVICES; i++) contexts[i].device = i;
  __atomic_store_n(&initialized, true, __ATOMIC_RELEASE);
  return OK;
}

GH_API int cuGetErrorName(int error, const char **text) {
#define NAMED(error) {error, "CUDA_ERROR_" #error}
  static const struct { int error; const char *name; } names[] = {
      {OK, "CUDA_SUCCESS"}, NAMED(INVALID_VALUE), NAMED(OUT_OF_MEMORY), NAMED(INVALID_IMAGE), NAMED(INVALID_CONTEXT),
      NAMED(FILE_NOT_FOUND), NAMED(INVALID_HANDLE), NAMED(NOT_FOUND), NAMED(PEER_ACCESS_UNSUPPORTED),
      NAMED(ILLEGAL_ADDRESS), NAMED(INVALID_DEVICE), NAMED(NOT_SUPPORTED), NAMED(NOT_READY), NAMED(NOT_INITIALIZED),
      NAMED(NOT_PERMITTED), NAMED(LAUNCH_FAILED), NAMED(PEER_ACCESS_ALREADY_ENABLED),
      {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
      {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
      {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
      {CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"}, {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
      {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].error == error) return *text = names[i].name, OK;
  return *text = NULL, INVALID_VALUE;
}

GH_API int cuGetErrorString(int error, const char **text) {
  int r = cuGetErrorName(error, text);
  return r == OK && error != OK ? OK : (*text = error == OK ? "no error" : "unrecognized error code", r);
}

GH_API int cuDriverGetVersion(int *version) {
  const char *text = getenv("GHOST_VERSION");
  gh_should_fail("cuDriverGetVersion");
  *version = text ? atoi(text) : 13000;
  return OK;
}

GH_API int cuDevicePrimaryCtxRetain(void **context, int device) {
  int r = gh_enter("cuDevicePrimaryCtxRetain");
  if (r == OK && (device < 0 || device >= gh_devices())) r = INVALID_DEVICE;
  if (r == OK) *context = &contexts[device];
  return r;
}

bool gh_is_context(const void *context) {
  for (int i = 0; i < gh_devices(); i++)
    if (context == &contexts[i]) return true;
  return false;
}

GH_API int cuCtxSetCurrent(void *context) {
  int r = gh_enter("cuCtxSetCurrent");
  if (r == OK && context && !gh_is_context(context)) r = INVALID_CONTEXT;
  if (r) return r;
  if (!depth) depth = 1;
  nested[depth - 1] = context;
  if (!context && depth == 1) depth = 0;
  return OK;
}

GH_API int cuCtxGetCurrent(void **context) {
  int r = gh_enter("cuCtxGetCurrent");
  if (r == OK) *context = gh_context();
  return r;
}

GH_API int cuCtxPushCurrent_v2(void *context) {
  int r = gh_enter_ending("cuCtxPushCurrent_v2");
  if (r == OK && (!gh_is_context(context) || depth == MAX_NESTED)) r = INVALID_CONTEXT;
  if (r == OK) nested[depth++] = context;
  return r;
}

GH_API int cuCtxPopCurrent_v2(void **context) {
  gh_should_fail("cuCtxPopCurrent_v2");
  if (!depth) return INVALID_CONTEXT;
  *context = nested[--depth];
  return OK;
}

GH_API int cuCtxGetDevice(int *device) {
  int r = gh_enter_context("cuCtxGetDevice");
  if (r == OK) *device = gh_context()->device;
  return r;
}

int gh_attribute(int attribute) {
  const char *list = getenv("GHOST_ATTRIBUTES");
  char wanted[16];
  size_t len = (size_t)snprintf(wanted, sizeof wanted, "%d:", attribute);
  for (const char *at = list; at && (at = strstr(at, wanted)); at++)
    if (at == list || at[-1] == ',') return atoi(at + len);
  switch (attribute) {
    case GH_WARP_SIZE: return 32; /* lanes */
    case GH_MULTIPROCESSORS: return 16;
    case GH_COMPUTE_MAJOR: return 8;
    case GH_SHARED_MEMORY_OPTIN: return 163 << 10;
    case GH_REGISTERED_HOST_POINTER:        /* registered memory has the host's addresses */
    case GH_DEVICE_VIRTUAL_MEMORY:          /* memory can be mapped, */
    case GH_DEVICE_FD_HANDLES:              /* exported as a file descriptor, */
    case GH_DEVICE_RDMA_OF_VIRTUAL_MEMORY:  /* and opened to NICs */
    case GH_DEVICE_GPU_DIRECT_RDMA:         /* NICs may come into device memory, */
    case GH_DEVICE_RDMA_FLUSH_OPTIONS:      /* whose writes cuFlushGPUDirectRDMAWrites flushes, */
    case GH_DEVICE_DMA_BUF: return 1;       /* also by way of a dma-buf */
    default: return 0;
  }
}

GH_API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int r = gh_enter("cuDeviceGetAttribute");
  if (r == OK && (device < 0 || device >= gh_devices())) r = INVALID_DEVICE;
  if (r) return r;
  *value = gh_attribute(attribute);
  return OK;
}

unsigned gh_max_resident_blocks(unsigned threads) {
  return (unsigned)gh_attribute(GH_MULTIPROCESSORS) * (1024 / threads);
}

GH_API int cuThreadExchangeStreamCaptureMode(int *m) {
  gh_should_fail("cuThreadExchangeStreamCaptureMode");
  int old = capture_mode;
  capture_mode = *m;
  *m = old;
  return OK;
}

/* ---- devices ---- */

GH_API int cuDeviceGetCount(int *count) {
  int r = gh_enter("cuDeviceGetCount");
  if (r == OK) *count = gh_devices();
  return r;
}

GH_API int cuDeviceGet(int *device, int ordinal) {
  int r = gh_enter("cuDeviceGet");
  if (r == OK && (ordinal < 0 || ordinal >= gh_devices())) r = INVALID_DEVICE;
  if (r == OK) *device = ordinal;
  return r;
}

GH_API int cuDeviceGetName(char *text, int size, int device) {
  int r = gh_enter("cuDeviceGetName");
  if (r == OK && (device < 0 || device >= gh_devices())) r = INVALID_DEVICE;
  if (r == OK) snprintf(text, (size_t)size, "ghost GPU %d", device);
  return r;
}

/* Devices' contexts are there as long as the process. */
GH_API int cuDevicePrimaryCtxRelease_v2(int device) {
  int r = gh_enter_ending("cuDevicePrimaryCtxRelease");
  return r == OK && (device < 0 || device >= gh_devices()) ? INVALID_DEVICE : r;
}

/* The device's number alone says which it is: processes of one host agree. */
GH_API int cuDeviceGetUuid(struct gh_uuid *uuid, int device) {
  int r = gh_enter("cuDeviceGetUuid");
  if (r == OK && (device < 0 || device >= gh_devices())) r = INVALID_DEVICE;
  if (r == OK) *uuid = (struct gh_uuid){"ghost GPU"};
  if (r == OK) uuid->bytes[15] = (unsigned char)device;
  return r;
}

GH_API int cuDeviceGetUuid_v2(struct gh_uuid *uuid, int device) { return cuDeviceGetUuid(uuid, device); }

GH_API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  int r = gh_enter("cuDeviceTotalMem_v2");
  if (r == OK && (device < 0 || device >= gh_devices())) r = INVALID_DEVICE;
  if (r == OK) *bytes = (size_t)16 << 30;
  return r;
}
