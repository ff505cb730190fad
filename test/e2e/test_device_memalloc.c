/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 60
 * TEST-SAN: asan tsan
 *
 * Proves: ncclMemAlloc gives memory of the current device, or of the host where no device is; calls take it as any
 * other; ncclMemFree knows its own; of mapped memory the fake driver forbids what a real one does.
 */
#include <fcntl.h>
#include <pthread.h>

#include "test/device/gpu/side.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000
#define N 5000
#define MIB ((size_t)1 << 20)

static void *context_of(int device) {
  void *context;
  GPU(gpu.cuDevicePrimaryCtxRetain(&context, device));
  return context;
}

static void be_on(int device) { GPU(gpu.cuCtxSetCurrent(context_of(device))); }

struct place { void *context; unsigned type; int ordinal; };

static struct place place_of(const void *p) {
  int what[] = {RT_CU_POINTER_CONTEXT, RT_CU_POINTER_MEMORY_TYPE, RT_CU_POINTER_DEVICE_ORDINAL};
  struct place at = {NULL, 0, -1};
  void *values[] = {&at.context, &at.type, &at.ordinal};
  GPU(gpu.cuPointerGetAttributes(3, what, values, (uint64_t)(uintptr_t)p));
  return at;
}

static void on_device(const char *env, int nranks, rank_fn body, void *arg) {
  char all[256];
  snprintf(all, sizeof all, "NCCL_DEBUG=NONE %s", env);
  job_run(all, nranks, kit_patience_ms(TIMEOUT_MS), body, arg);
}

/* ---- where it lies ---- */

/* `arg`: is it mapped? */
static void of_the_device(const struct rank *rank, void *arg) {
  const bool mapped = *(const int *)arg;
  int32_t *p, *q, *none;
  (void)rank;
  gpu_open();
  int fds = kit_fd_count();
  be_on(1);
  OK(ncclMemAlloc((void **)&p, N * sizeof *p));
  OK(ncclMemAlloc((void **)&none, 0));
  be_on(0);
  OK(ncclMemAlloc((void **)&q, N * sizeof *q));
  ENSURE(none && none != p && none != q, "no bytes are %p", (void *)none);
  ENSURE(place_of(p).type == 2 && place_of(p).ordinal == 1, "it lies on device %d", place_of(p).ordinal);
  ENSURE(place_of(q).ordinal == 0, "it lies on device %d", place_of(q).ordinal);
  ENSURE((place_of(p).context == NULL) == mapped, "it has context %p", place_of(p).context);
  ENSURE(gpu.live("mapped") == (mapped ? 3 : 0), "%ld pieces are mapped", gpu.live("mapped"));
  const char *peers = getenv("GHOST_PEERS"); /* other devices may use it, if they reach it */
  void *stream = gpu_stream();
  int r = gpu.cuMemsetD8Async((uint64_t)(uintptr_t)p, 0, N, stream);
  ENSURE(!mapped || (r == 0) == (peers == NULL), "device 0 comes to device 1's memory with %d", r);
  GPU(gpu.cuStreamDestroy_v2(stream));
  int fd = -1; /* a NIC may come in */
  if (mapped) GPU(gpu.cuMemGetHandleForAddressRange(&fd, (uint64_t)(uintptr_t)p, 4096, 1, 0));
  if (mapped) close(fd);
  REFUSED(ncclMemFree(p + 1), ncclInvalidArgument, "ncclMemAlloc");
  OK(ncclMemFree(p));
  REFUSED(ncclMemFree(p), ncclInvalidArgument, "freed already");
  OK(ncclMemFree(none));
  OK(ncclMemFree(q));
  gpu_nothing_left();
  rank_back_to(fds, kit_thread_count(), "the memory");
}
TEST(memory_of_the_current_device) {
  static int yes = 1, no = 0;
  on_device("GHOST_DEVICES=2", 1, of_the_device, &yes);
  on_device("GHOST_DEVICES=2 GHOST_PEERS=none", 1, of_the_device, &yes);
  on_device("GHOST_DEVICES=2 GHOST_ATTRIBUTES=128:1", 1, of_the_device, &yes);
  on_device("GHOST_DEVICES=2 NCCL_CUMEM_ENABLE=0", 1, of_the_device, &no);
  on_device("GHOST_DEVICES=2 GHOST_ATTRIBUTES=102:0", 1, of_the_device, &no);
}

static void of_the_host(const struct rank *rank, void *arg) {
  char *p;
  (void)rank, (void)arg;
  gpu_open();
  GPU(gpu.cuCtxSetCurrent(NULL));
  OK(ncclMemAlloc((void **)&p, 10000));
  ENSURE(place_of(p).type == 0 && (uintptr_t)p % 4096 == 0, "it is a device's");
  for (int i = 0; i < 10000; i++) ENSURE(p[i] == 0, "byte %d is %d", i, p[i]);
  memset(p, 1, 10000);
  gpu_open(); /* a context is current again: it is freed as what it is */
  OK(ncclMemFree(p));
  ENSURE(gpu.calls("cuMemFree_v2") == 0, "the driver was to free the host's memory");
}
TEST(memory_of_the_host_without_a_context) { on_device("", 1, of_the_host, NULL); }

/* ---- what fails ---- */

struct failure { const char *fail; int creates, allocs; bool good; const char *words; };

static void failing(const struct rank *rank, void *arg) {
  const struct failure *f = arg;
  void *p;
  (void)rank;
  gpu_open();
  setenv("GHOST_FAIL", f->fail, 1);
  if (f->good)
    OK(ncclMemAlloc(&p, N));
  else
    REFUSED(ncclMemAlloc(&p, N), ncclUnhandledCudaError, f->words);
  ENSURE(gpu.calls("cuMemCreate") == f->creates && gpu.calls("cuMemAlloc_v2") == f->allocs,
         "%s: %ld pieces were tried, and %ld of cuMemAlloc", f->fail, gpu.calls("cuMemCreate"),
         gpu.calls("cuMemAlloc_v2"));
  ENSURE(f->good == (p != NULL), "it gave %p", p);
  OK(ncclMemFree(p));
  gpu_nothing_left();
}
TEST(what_fails_is_done_otherwise) {
  static struct failure all[] = {
      {"cuMemCreate:1", 2, 0, true, NULL}, /* a fabric that is not permitted */
      {"cuMemCreate:1 cuMemCreate:2", 2, 1, true, NULL},
      {"cuMemMap:1 cuMemMap:2", 2, 1, true, NULL},
      {"cuMemSetAccess:2", 1, 0, true, NULL}, /* another device's */
      {"cuMemAddressReserve:1 cuMemAddressReserve:2 cuMemAlloc_v2:1", 2, 1, false, "cuMemAlloc"},
      {"cuCtxPushCurrent_v2:1", 0, 0, false, "context"},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    on_device("GHOST_ATTRIBUTES=128:1 GHOST_DEVICES=2", 1, failing, &all[i]);
}

/* ---- as buffers of calls ---- */

static void *free_in_a_thread(void *p) {
  OK(ncclMemFree(p));
  return NULL;
}

static void used(const struct rank *rank, void *arg) {
  int32_t *p, *q, host[N];
  void *handle;
  pthread_t thread;
  (void)arg;
  gpu_open();
  void *stream = gpu_stream();
  ncclComm_t comm = open_comm(rank);
  OK(ncclMemAlloc((void **)&p, N * sizeof *p));
  OK(ncclMemAlloc((void **)&q, N * sizeof *q));
  OK(ncclCommRegister(comm, p, N * sizeof *p, &handle));
  for (int i = 0; i < N; i++) host[i] = i << rank->rank;
  gpu_put(p, host, sizeof host);
  OK(ncclAllReduce(p, q, N, ncclInt32, ncclSum, comm, stream));
  GPU(gpu.cuStreamSynchronize(stream));
  gpu_get(host, q, sizeof host);
  for (int i = 0; i < N; i++) ENSURE(host[i] == 3 * i, "element %d is %d", i, host[i]);
  ENSURE(gpu.calls("cuLaunchKernel") == 1, "%ld kernels were launched", gpu.calls("cuLaunchKernel"));
  OK(railCommWait(comm));
  OK(ncclCommDeregister(comm, handle));
  close_comm(comm);
  OK(ncclMemFree(p));
  ENSURE(pthread_create(&thread, NULL, free_in_a_thread, q) == 0, "no thread"); /* which has no context */
  pthread_join(thread, NULL);
  GPU(gpu.cuStreamDestroy_v2(stream));
  rank_barrier(rank);
  gpu_nothing_left();
}
TEST(calls_take_it) {
  on_device("", 2, used, NULL);
  on_device("NCCL_CUMEM_ENABLE=0", 2, used, NULL);
  on_device("NCCL_P2P_DISABLE=1", 2, used, NULL);
}

/* Mapped memory has no context that would tell where its kernels belong: the caller's must be of its device. */
static void elsewhere(const struct rank *rank, void *arg) {
  int32_t *p;
  (void)arg;
  gpu_open();
  be_on(1);
  OK(ncclMemAlloc((void **)&p, N * sizeof *p));
  be_on(0);
  ncclComm_t comm = open_comm(rank);
  REFUSED(ncclAllReduce(p, p, N, ncclInt32, ncclSum, comm, NULL), ncclInvalidArgument, "device 1");
  be_on(1);
  OK(ncclAllReduce(p, p, N, ncclInt32, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  close_comm(comm);
  OK(ncclMemFree(p));
  gpu_nothing_left();
}
TEST(its_device_must_be_current) { on_device("GHOST_DEVICES=2", 1, elsewhere, NULL); }

/* ---- many threads ---- */

static void *allocate_and_free(void *arg) {
  void *p[8];
  GPU(gpu.cuCtxSetCurrent(gpu.context));
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < 8; i++) OK(ncclMemAlloc(&p[i], (size_t)i * 1000));
    for (int i = 0; i < 8; i++) OK(ncclMemFree(p[7 - i]));
  }
  return arg;
}

static void in_threads(const struct rank *rank, void *arg) {
  pthread_t thread[3];
  (void)rank, (void)arg;
  gpu_open();
  for (int i = 0; i < 3; i++) ENSURE(pthread_create(&thread[i], NULL, allocate_and_free, NULL) == 0, "no thread");
  for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
  gpu_nothing_left();
}
TEST(threads_at_once) { on_device("", 1, in_threads, NULL); }

/* ---- the fake driver is as strict as a real one ---- */

/* cuda.h's results. */
enum { INVALID = 1, BAD_DEVICE = 101, UNSUPPORTED = 801 };

#define IS(call, result) \
  do { \
    int is_r_ = (call); \
    ENSURE(is_r_ == (result), "%s is %d, expected %d", #call, is_r_, (int)(result)); \
  } while (0)

static struct rt_cuda_allocation how(int handles) {
  return (struct rt_cuda_allocation){.type = 1, .handles = handles, .location = {1, 0}};
}

static void strict_pieces(void) {
  struct rt_cuda_allocation plain = how(0), fabric = how(RT_CU_FABRIC_HANDLE), far = how(0), odd = how(2);
  uint64_t h, fd_piece;
  size_t unit;
  int fd;
  far.location.id = 1;
  IS(gpu.cuMemGetAllocationGranularity(&unit, &plain, 0), 0);
  ENSURE(unit == 2 * MIB, "the unit is %zu", unit);
  IS(gpu.cuMemCreate(&h, MIB, &plain, 0), INVALID);
  IS(gpu.cuMemCreate(&h, 2 * MIB, &fabric, 0), UNSUPPORTED);
  IS(gpu.cuMemCreate(&h, 2 * MIB, &odd, 0), INVALID);
  IS(gpu.cuMemCreate(&h, 2 * MIB, &far, 0), BAD_DEVICE);
  IS(gpu.cuMemCreate(&h, 2 * MIB, &plain, 0), 0);
  IS(gpu.cuMemExportToShareableHandle(&fd, h, RT_CU_FD_HANDLE, 0), INVALID); /* that was not asked for */
  IS(gpu.cuMemRelease(h), 0);
  IS(gpu.cuMemRelease(h), INVALID);
  struct rt_cuda_allocation shared = how(RT_CU_FD_HANDLE);
  IS(gpu.cuMemCreate(&fd_piece, 2 * MIB, &shared, 0), 0);
  IS(gpu.cuMemExportToShareableHandle(&fd, fd_piece, RT_CU_FABRIC_HANDLE, 0), INVALID);
  IS(gpu.cuMemExportToShareableHandle(&fd, fd_piece, RT_CU_FD_HANDLE, 0), 0);
  IS(gpu.cuMemRelease(fd_piece), 0);
  IS(gpu.cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, RT_CU_FD_HANDLE), 0); /* it lives on in the file */
  IS(gpu.cuMemRelease(h), 0);
  close(fd);
  fd = open("/dev/null", O_RDWR);
  IS(gpu.cuMemImportFromShareableHandle(&h, (void *)(intptr_t)fd, RT_CU_FD_HANDLE), INVALID);
  close(fd);
}

static void strict_addresses(void) {
  const struct rt_cuda_access own = {{1, 0}, 3}, far = {{1, 1}, 3}, readonly = {{1, 0}, 2};
  struct rt_cuda_allocation plain = how(0);
  uint64_t at, h;
  void *stream = gpu_stream();
  int fd;
  IS(gpu.cuMemAddressReserve(&at, MIB, 0, 0, 0), INVALID);
  IS(gpu.cuMemAddressReserve(&at, 4 * MIB, 3, 0, 0), INVALID);
  IS(gpu.cuMemAddressReserve(&at, 4 * MIB, 2 * MIB, 0, 0), 0);
  ENSURE(at % (2 * MIB) == 0, "the address is %lx", (long)at);
  IS(gpu.cuMemCreate(&h, 2 * MIB, &plain, 0), 0);
  IS(gpu.cuMemMap(at, 4 * MIB, 0, h, 0), INVALID); /* more than there is */
  IS(gpu.cuMemAddressFree(at, 4 * MIB), 0);
  IS(gpu.cuMemAddressReserve(&at, 2 * MIB, 2 * MIB, 0, 0), 0);
  IS(gpu.cuMemSetAccess(at, 2 * MIB, &own, 1), INVALID); /* nothing is mapped */
  IS(gpu.cuMemUnmap(at, 2 * MIB), INVALID);
  IS(gpu.cuMemMap(at, 2 * MIB, 0, h, 0), 0);
  IS(gpu.cuMemMap(at, 2 * MIB, 0, h, 0), INVALID); /* twice */
  IS(gpu.cuMemsetD8Async(at, 1, 16, stream), INVALID); /* nobody may use it yet */
  IS(gpu.cuMemSetAccess(at, 2 * MIB, &readonly, 1), INVALID);
  IS(gpu.cuMemSetAccess(at, 2 * MIB, &far, 1), BAD_DEVICE);
  IS(gpu.cuMemSetAccess(at, 2 * MIB, &own, 1), 0);
  IS(gpu.cuMemsetD8Async(at, 1, 16, stream), 0);
  IS(gpu.cuMemGetHandleForAddressRange(&fd, at, 4096, 1, 0), INVALID); /* no NIC was thought of */
  IS(gpu.cuIpcGetMemHandle(&(struct rt_cuda_ipc){{0}}, at), INVALID);
  IS(gpu.cuMemFree_v2(at), INVALID);
  IS(gpu.cuMemAddressFree(at, 2 * MIB), INVALID); /* it is mapped */
  IS(gpu.cuMemRelease(h), 0); /* what is mapped stays */
  IS(gpu.cuMemsetD8Async(at, 1, 16, stream), 0);
  IS(gpu.cuMemUnmap(at, 2 * MIB), 0);
  IS(gpu.cuMemsetD8Async(at, 1, 16, stream), INVALID);
  IS(gpu.cuMemAddressFree(at, 2 * MIB), 0);
  IS(gpu.cuMemAddressFree(at, 2 * MIB), INVALID);
  GPU(gpu.cuStreamDestroy_v2(stream));
}

/* The first byte of a new piece. */
static unsigned char new_byte(void) {
  const struct rt_cuda_access own = {{1, 0}, 3};
  struct rt_cuda_allocation plain = how(0);
  uint64_t at, h;
  IS(gpu.cuMemCreate(&h, 2 * MIB, &plain, 0), 0);
  IS(gpu.cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0), 0);
  IS(gpu.cuMemMap(at, 2 * MIB, 0, h, 0), 0);
  IS(gpu.cuMemSetAccess(at, 2 * MIB, &own, 1), 0);
  unsigned char byte = *(const unsigned char *)(uintptr_t)at;
  IS(gpu.cuMemUnmap(at, 2 * MIB), 0);
  IS(gpu.cuMemRelease(h), 0);
  IS(gpu.cuMemAddressFree(at, 2 * MIB), 0);
  return byte;
}

/* Nobody has promised zeros, but who relies on them can have them. */
static void new_contents(void) {
  ENSURE(new_byte() == 0xA5, "new memory begins with %u", new_byte());
  setenv("GHOST_MAPPED", "zeros", 1);
  ENSURE(new_byte() == 0, "new memory begins with %u", new_byte());
  unsetenv("GHOST_MAPPED");
}

static void strict(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  gpu_open();
  int fds = kit_fd_count();
  strict_pieces();
  strict_addresses();
  new_contents();
  gpu_nothing_left();
  rank_back_to(fds, kit_thread_count(), "the pieces");
}
TEST(the_fake_driver_is_strict) { on_device("", 1, strict, NULL); }

TEST_MAIN(TEST_CASE(memory_of_the_current_device), TEST_CASE(memory_of_the_host_without_a_context),
          TEST_CASE(what_fails_is_done_otherwise), TEST_CASE(calls_take_it), TEST_CASE(its_device_must_be_current),
          TEST_CASE(threads_at_once), TEST_CASE(the_fake_driver_is_strict))
