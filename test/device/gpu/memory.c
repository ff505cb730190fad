/* SPDX-License-Identifier: Apache-2.0
 * The fake driver's devices, contexts and memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/device/gpu/fake.h"
#include "test/device/gpu/driver.h"

#define MAX_NAMES 128
#define MAX_NESTED 8

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialized;
static int broken;
static struct context contexts[MAX_DEVICES];

/* ---- counters, and calls that shall fail ---- */

struct count { char name[48]; long n; };
static struct count calls[MAX_NAMES], left[MAX_NAMES];

static long *count_of(struct count *table, const char *name) {
  int i = 0;
  while (i < MAX_NAMES - 1 && table[i].name[0] && strcmp(table[i].name, name) != 0) i++;
  snprintf(table[i].name, sizeof table[i].name, "%s", name);
  return &table[i].n;
}

static bool asked_to_fail(const char *name, long n) {
  const char *list = getenv("FAKEGPU_FAIL");
  char wanted[64];
  snprintf(wanted, sizeof wanted, "%s:%ld", name, n);
  for (const char *at = list; at && (at = strstr(at, wanted)); at++) {
    char after = at[strlen(wanted)];
    if ((at == list || at[-1] == ' ') && (after == 0 || after == ' ')) return true;
  }
  return false;
}

bool fake_wanted(const char *name) {
  pthread_mutex_lock(&lock);
  long n = ++*count_of(calls, name);
  pthread_mutex_unlock(&lock);
  return asked_to_fail(name, n);
}

void fake_left(const char *what, int change) {
  pthread_mutex_lock(&lock);
  *count_of(left, what) += change;
  pthread_mutex_unlock(&lock);
}

static long read_count(struct count *table, const char *name) {
  pthread_mutex_lock(&lock);
  long n = *count_of(table, name);
  pthread_mutex_unlock(&lock);
  return n;
}

API long fakegpu_calls(const char *name) { return read_count(calls, name); }
API long fakegpu_left(const char *what) { return read_count(left, what); }

/* ---- contexts ---- */

static __thread struct context *nested[MAX_NESTED];
static __thread int depth;
static __thread int mode;

struct context *fake_context(void) { return depth ? nested[depth - 1] : NULL; }
int fake_capture_mode(void) { return mode; }

void fake_break(int result) { __atomic_store_n(&broken, result, __ATOMIC_RELEASE); }
bool fake_broken(void) { return __atomic_load_n(&broken, __ATOMIC_ACQUIRE) != OK; }

int fake_enter(const char *call) {
  bool fails = fake_wanted(call);
  if (fake_in_callback()) return NOT_PERMITTED;
  if (!__atomic_load_n(&initialized, __ATOMIC_ACQUIRE)) return NOT_INITIALIZED;
  int result = __atomic_load_n(&broken, __ATOMIC_ACQUIRE);
  return result ? result : fails ? INVALID_VALUE : OK;
}

int fake_enter_context(const char *call) {
  int r = fake_enter(call);
  return r ? r : fake_context() ? OK : INVALID_CONTEXT;
}

int fake_enter_ending(const char *call) {
  if (fake_in_callback()) return NOT_PERMITTED;
  return fake_wanted(call) ? INVALID_VALUE : __atomic_load_n(&initialized, __ATOMIC_ACQUIRE) ? OK : NOT_INITIALIZED;
}

int fake_enter_unsafe(const char *call) {
  int r = fake_enter_context(call);
  if (r || mode == MODE_RELAXED) return r;
  return fake_capture_forbids() ? CAPTURE_UNSUPPORTED : OK;
}

int fake_devices(void) {
  const char *text = getenv("FAKEGPU_DEVICES");
  int n = text ? atoi(text) : 1;
  return n < 1 ? 1 : n > MAX_DEVICES ? MAX_DEVICES : n;
}

API int cuInit(unsigned flags) {
  if (flags) return INVALID_VALUE;
  for (int i = 0; i < MAX_DEVICES; i++) contexts[i].device = i;
  __atomic_store_n(&initialized, true, __ATOMIC_RELEASE);
  return OK;
}

API int cuGetErrorName(int error, const char **text) {
#define NAMED(error) {error, "CUDA_ERROR_" #error}
  static const struct { int error; const char *name; } names[] = {
      {OK, "CUDA_SUCCESS"}, NAMED(INVALID_VALUE), NAMED(OUT_OF_MEMORY), NAMED(INVALID_IMAGE), NAMED(INVALID_CONTEXT),
      NAMED(FILE_NOT_FOUND), NAMED(INVALID_HANDLE), NAMED(NOT_FOUND), NAMED(PEER_ACCESS_UNSUPPORTED),
      NAMED(ILLEGAL_ADDRESS), NAMED(INVALID_DEVICE), NAMED(NOT_SUPPORTED),
      {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].error == error) return *text = names[i].name, OK;
  return *text = NULL, INVALID_VALUE;
}

API int cuDriverGetVersion(int *version) {
  const char *text = getenv("FAKEGPU_VERSION");
  fake_wanted("cuDriverGetVersion");
  *version = text ? atoi(text) : 12080;
  return OK;
}

API int cuDevicePrimaryCtxRetain(void **context, int device) {
  int r = fake_enter("cuDevicePrimaryCtxRetain");
  if (r == OK && (device < 0 || device >= fake_devices())) r = INVALID_DEVICE;
  if (r == OK) *context = &contexts[device];
  return r;
}

bool fake_is_context(const void *context) {
  for (int i = 0; i < fake_devices(); i++)
    if (context == &contexts[i]) return true;
  return false;
}

API int cuCtxSetCurrent(void *context) {
  int r = fake_enter("cuCtxSetCurrent");
  if (r == OK && context && !fake_is_context(context)) r = INVALID_CONTEXT;
  if (r) return r;
  if (!depth) depth = 1;
  nested[depth - 1] = context;
  if (!context && depth == 1) depth = 0;
  return OK;
}

API int cuCtxGetCurrent(void **context) {
  int r = fake_enter("cuCtxGetCurrent");
  if (r == OK) *context = fake_context();
  return r;
}

API int cuCtxPushCurrent_v2(void *context) {
  int r = fake_enter_ending("cuCtxPushCurrent_v2");
  if (r == OK && (!fake_is_context(context) || depth == MAX_NESTED)) r = INVALID_CONTEXT;
  if (r == OK) nested[depth++] = context;
  return r;
}

API int cuCtxPopCurrent_v2(void **context) {
  fake_wanted("cuCtxPopCurrent_v2");
  if (!depth) return INVALID_CONTEXT;
  *context = nested[--depth];
  return OK;
}

API int cuCtxGetDevice(int *device) {
  int r = fake_enter_context("cuCtxGetDevice");
  if (r == OK) *device = fake_context()->device;
  return r;
}

int fake_attribute(int attribute) {
  const char *list = getenv("FAKEGPU_ATTRIBUTES");
  char wanted[16];
  size_t len = (size_t)snprintf(wanted, sizeof wanted, "%d:", attribute);
  for (const char *at = list; at && (at = strstr(at, wanted)); at++)
    if (at == list || at[-1] == ',') return atoi(at + len);
  switch (attribute) {
    case 16: return 16; /* multiprocessors */
    case 75: return 8;  /* compute capability, its major number */
    case 91:            /* registered memory has the host's addresses */
    case 102:           /* memory can be mapped, */
    case 103:           /* exported as a file descriptor, */
    case 110:           /* and opened to NICs */
    case 116:           /* NICs may come into device memory, */
    case 124: return 1; /* also by way of a dma-buf */
    default: return 0;
  }
}

API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int r = fake_enter("cuDeviceGetAttribute");
  if (r == OK && (device < 0 || device >= fake_devices())) r = INVALID_DEVICE;
  if (r) return r;
  *value = fake_attribute(attribute);
  return OK;
}

unsigned fake_room(unsigned threads) { return (unsigned)fake_attribute(16) * (1024 / threads); }

API int cuThreadExchangeStreamCaptureMode(int *m) {
  fake_wanted("cuThreadExchangeStreamCaptureMode");
  int old = mode;
  mode = *m;
  *m = old;
  return OK;
}

/* ---- memory ---- */

enum { HOST_MEMORY = 1, DEVICE_MEMORY = 2 };

struct range {
  struct range *next;
  char *base;
  size_t size;
  int type;
  bool managed;
  struct context *context; /* NULL: it is mapped */
  int device;
  unsigned access; /* of mapped memory: a bit for each device */
  bool rdma;
};
static struct range *ranges;

static struct range *find(const void *p, size_t size) {
  const char *at = p;
  struct range *r = ranges;
  while (r && !(at >= r->base && at + size <= r->base + r->size)) r = r->next;
  return r;
}

bool fake_reachable(const void *p, size_t size, const struct context *context) {
  pthread_mutex_lock(&lock);
  const struct range *r = find(p, size);
  bool foreign = r && context && r->type == DEVICE_MEMORY && !r->managed && r->context != context;
  const struct context *owner = foreign ? r->context : NULL;
  bool forbidden = foreign && !owner && !(r->access >> context->device & 1);
  pthread_mutex_unlock(&lock);
  return r && !forbidden && (!owner || fake_reaches(context, owner));
}

bool fake_on_device(const void *p) {
  pthread_mutex_lock(&lock);
  const struct range *r = find(p, 1);
  bool device = r && r->type == DEVICE_MEMORY;
  pthread_mutex_unlock(&lock);
  return device;
}

size_t fake_allocated(const void *base) {
  pthread_mutex_lock(&lock);
  const struct range *r = find(base, 1);
  size_t size = r && r->base == base && r->type == DEVICE_MEMORY && !r->managed && r->context ? r->size : 0;
  pthread_mutex_unlock(&lock);
  return size;
}

static void add(struct range range) {
  struct range *r = malloc(sizeof *r);
  *r = range;
  pthread_mutex_lock(&lock);
  r->next = ranges;
  ranges = r;
  pthread_mutex_unlock(&lock);
}

static void add_range(void *base, size_t size, int type, bool managed) {
  struct context *c = fake_context();
  add((struct range){.base = base, .size = size, .type = type, .managed = managed, .context = c, .device = c->device});
}

static struct range **place_of(const void *base, int type, bool mapped) {
  struct range **at = &ranges;
  while (*at && !((*at)->base == base && (*at)->type == type && !(*at)->context == mapped)) at = &(*at)->next;
  return at;
}

static bool remove_range(const void *base, int type, bool mapped) {
  pthread_mutex_lock(&lock);
  struct range **at = place_of(base, type, mapped), *r = *at;
  if (r) *at = r->next;
  pthread_mutex_unlock(&lock);
  free(r);
  return r != NULL;
}

void fake_add_memory(void *base, size_t size) { add_range(base, size, DEVICE_MEMORY, false); }
bool fake_remove_memory(const void *base) { return remove_range(base, DEVICE_MEMORY, false); }

void fake_add_mapped(void *base, size_t size, int device, unsigned access, bool rdma) {
  pthread_mutex_lock(&lock);
  struct range *there = *place_of(base, DEVICE_MEMORY, true);
  if (there) there->access = access; /* kernels of who had it may run */
  pthread_mutex_unlock(&lock);
  if (!there) add((struct range){.base = base, .size = size, .type = DEVICE_MEMORY, .device = device, .access = access,
                     .rdma = rdma});
}

void fake_remove_mapped(const void *base) { remove_range(base, DEVICE_MEMORY, true); }

/* From `LARGE` on an allocation shares no page with another; whole pages never do: they could be exported. */
#define LARGE ((size_t)2 << 20)

static int allocate(uint64_t *address, size_t size, bool managed) {
  void *memory = NULL;
  if (!size) return INVALID_VALUE;
  if (posix_memalign(&memory, size < LARGE && size % 4096 ? 512 : 4096, size)) return OUT_OF_MEMORY;
  memset(memory, 0xA5, size);
  add_range(memory, size, DEVICE_MEMORY, managed);
  fake_left("allocated", 1);
  *address = (uint64_t)(uintptr_t)memory;
  return OK;
}

API int cuMemAlloc_v2(uint64_t *address, size_t size) {
  int r = fake_enter_unsafe("cuMemAlloc_v2");
  if (r) return r;
  fake_may_wait_for("cuMemAlloc", fake_context());
  return allocate(address, size, false);
}

API int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags) {
  int r = fake_enter_unsafe("cuMemAllocManaged");
  if (r == OK && flags != 1) r = INVALID_VALUE;
  return r ? r : allocate(address, size, true);
}

API int cuMemFree_v2(uint64_t address) {
  int r = fake_enter_ending("cuMemFree_v2");
  if (r) return r;
  fake_wait_for_all("cuMemFree"); /* peers of the context have it mapped, too */
  fake_unexport((void *)(uintptr_t)address, fake_allocated((void *)(uintptr_t)address));
  if (!fake_remove_memory((void *)(uintptr_t)address)) return INVALID_VALUE;
  free((void *)(uintptr_t)address);
  fake_left("allocated", -1);
  return OK;
}

/* A file stands for the dma-buf: of the range's size, and whose it is can be counted. */
API int cuMemGetHandleForAddressRange(void *handle, uint64_t address, size_t size, int type, unsigned long long flags) {
  int r = fake_enter_unsafe("cuMemGetHandleForAddressRange");
  if (r == OK && (type != 1 || flags || address % 4096 || size % 4096)) r = INVALID_VALUE;
  pthread_mutex_lock(&lock);
  const struct range *of = find((void *)(uintptr_t)address, size);
  if (r == OK && (!of || of->type != DEVICE_MEMORY || of->managed || !(of->context || of->rdma))) r = INVALID_VALUE;
  pthread_mutex_unlock(&lock);
  if (r) return r;
  int fd = memfd_create("dma-buf", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)size)) return OUT_OF_MEMORY;
  *(int *)handle = fd;
  return OK;
}

static bool overlaps_registered(const char *base, size_t size) {
  pthread_mutex_lock(&lock);
  struct range *r = ranges;
  while (r && (r->type != HOST_MEMORY || base >= r->base + r->size || base + size <= r->base)) r = r->next;
  pthread_mutex_unlock(&lock);
  return r != NULL;
}

/* Whole pages are what the hardware maps: a page of two registrations is refused as the driver does. */
API int cuMemHostRegister_v2(void *memory, size_t size, unsigned flags) {
  int r = fake_enter_unsafe("cuMemHostRegister_v2");
  if (r == OK && (!memory || !size || flags & ~3u || (uintptr_t)memory % 4096 || size % 4096)) r = INVALID_VALUE;
  if (r == OK && overlaps_registered(memory, size)) r = ALREADY_REGISTERED;
  if (r) return r;
  fake_may_wait_for("cuMemHostRegister", fake_context());
  add_range(memory, size, HOST_MEMORY, false);
  fake_left("registered", 1);
  return OK;
}

API int cuMemHostUnregister(void *memory) {
  int r = fake_enter_ending("cuMemHostUnregister");
  if (r == OK) fake_wait_for_all("cuMemHostUnregister");
  if (r == OK && !remove_range(memory, HOST_MEMORY, false)) r = NOT_REGISTERED;
  if (r == OK) fake_left("registered", -1);
  return r;
}

API int cuPointerGetAttributes(unsigned n, int *attributes, void **values, uint64_t pointer) {
  int result = fake_enter("cuPointerGetAttributes");
  if (result) return result;
  pthread_mutex_lock(&lock);
  const struct range *r = find((void *)(uintptr_t)pointer, 1), none = {.context = NULL};
  struct range of = r ? *r : none;
  pthread_mutex_unlock(&lock);
  for (unsigned i = 0; i < n; i++) {
    switch (attributes[i]) {
      case 1: *(void **)values[i] = of.context; break;
      case 2: *(unsigned *)values[i] = (unsigned)of.type; break;
      case 3: *(uint64_t *)values[i] = r ? pointer : 0; break;
      case 8: *(unsigned *)values[i] = of.managed; break;
      case 9: *(int *)values[i] = r ? of.device : -2; break;
      default: return INVALID_VALUE;
    }
  }
  return OK;
}

static int copy(const char *call, void *to, const void *from, size_t size, const void *on_device) {
  int r = fake_enter_context(call);
  if (r == OK) fake_wait_for_legacy(call);
  if (r == OK && !fake_reachable(on_device, size, NULL)) r = INVALID_VALUE;
  if (r == OK) memcpy(to, from, size);
  return r;
}

API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  void *p = (void *)(uintptr_t)to;
  return copy("cuMemcpyHtoD_v2", p, from, size, p);
}

API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  void *p = (void *)(uintptr_t)from;
  return copy("cuMemcpyDtoH_v2", to, p, size, p);
}
