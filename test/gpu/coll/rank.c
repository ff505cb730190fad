/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank: CUDA's driver, the library, the collectives. Every size is checked once with data of its own, memory after
 * the result included, and then timed. Driver and library are loaded here, so this needs neither to be built.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "coll.h"
#include "rail/railyard.h"
#include "test/device/gpu/user.h"

#define GUARD 4096u
#define WAIT_NS 20000L
#define NO_DEVICE 100 /* CUDA_ERROR_NO_DEVICE */
#define HEAD "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n"

#define LIBRARY_CALLS(X)                                                                                       \
  X(ncclGetVersion) X(ncclGetErrorString) X(ncclGetLastError) X(ncclGetUniqueId) X(ncclCommInitRank)           \
  X(ncclCommGetAsyncError) X(ncclCommFinalize) X(ncclCommDestroy) X(ncclAllReduce) X(ncclAllGather)            \
  X(ncclReduceScatter) X(ncclSend) X(ncclRecv) X(ncclGroupStart) X(ncclGroupEnd)

#define FIELD_(symbol) __typeof__(symbol) *symbol;
static struct { LIBRARY_CALLS(FIELD_) } lib;

struct rank_run {
  const struct coll_options *o;
  struct coll_shared *shared;
  int rank;
  ncclComm_t comm;
  void *stream;
  char *send, *recv; /* device */
  char *host;
};

#define OK(call) \
  do { \
    ncclResult_t ok_r_ = (call); \
    ENSURE(ok_r_ == ncclSuccess, "%s: %s: %s", #call, lib.ncclGetErrorString(ok_r_), lib.ncclGetLastError(r->comm)); \
  } while (0)

static void together(const struct rank_run *r) {
  ENSURE(coll_barrier(r->o, r->shared), "another rank has failed");
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static ncclDataType_t nccl_type(enum coll_type type) {
  switch (type) {
    case COLL_FLOAT: return ncclFloat32;
    case COLL_INT32: return ncclInt32;
    default: return ncclUint8;
  }
}

/* ---- one call ---- */

static void alltoall(const struct rank_run *r, size_t count, ncclDataType_t type, size_t size) {
  OK(lib.ncclGroupStart());
  for (int peer = 0; peer < r->o->nranks; peer++) {
    size_t at = (size_t)peer * count * size;
    OK(lib.ncclSend(r->send + at, count, type, peer, r->comm, r->stream));
    OK(lib.ncclRecv(r->recv + at, count, type, peer, r->comm, r->stream));
  }
  OK(lib.ncclGroupEnd());
}

static void issue(const struct rank_run *r, const struct coll_case *c) {
  ncclDataType_t type = nccl_type(c->type);
  size_t n = c->shape.count;
  switch (c->kind) {
    case COLL_ALL_REDUCE: OK(lib.ncclAllReduce(r->send, r->recv, n, type, ncclSum, r->comm, r->stream)); break;
    case COLL_ALL_GATHER: OK(lib.ncclAllGather(r->send, r->recv, n, type, r->comm, r->stream)); break;
    case COLL_REDUCE_SCATTER: OK(lib.ncclReduceScatter(r->send, r->recv, n, type, ncclSum, r->comm, r->stream)); break;
    default: alltoall(r, n, type, coll_type_size(c->type)); break;
  }
}

/* Waits for the stream, but not longer than the other ranks live: a library may wait for ever. */
static void finish(const struct rank_run *r) {
  for (;;) {
    int e = gpu.cuStreamQuery(r->stream);
    if (e == 0) return;
    ENSURE(e == RT_CU_NOT_READY, "while waiting for the stream: CUDA result %d", e);
    ncclResult_t async = ncclSuccess;
    OK(lib.ncclCommGetAsyncError(r->comm, &async));
    ENSURE(async == ncclSuccess, "while waiting for the stream: %s: %s", lib.ncclGetErrorString(async),
           lib.ncclGetLastError(r->comm));
    ENSURE(!atomic_load(&r->shared->failed), "another rank has failed");
    nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL); /* proxies need the cores, too */
  }
}

/* ---- one size ---- */

static uint64_t check(const struct rank_run *r, const struct coll_case *c) {
  size_t size = coll_type_size(c->type), in = c->shape.send * size, out = c->shape.recv * size;
  memset(r->host, COLL_POISON, out + GUARD);
  gpu_put(r->recv, r->host, out + GUARD);
  coll_fill(c, r->rank, r->host);
  gpu_put(r->send, r->host, in);
  issue(r, c);
  finish(r);
  gpu_get(r->host, r->recv, out + GUARD);
  return coll_wrong(c, r->rank, r->host) + coll_disturbed(r->host + out, GUARD);
}

static double timed(const struct rank_run *r, const struct coll_case *c, int iters) {
  together(r);
  double start = now_us();
  for (int i = 0; i < iters; i++) issue(r, c);
  r->shared->found[r->rank].call_us = (now_us() - start) / iters;
  finish(r);
  return (now_us() - start) / iters;
}

static double measure(const struct rank_run *r, const struct coll_case *c) {
  double once = timed(r, c, 1);
  if (r->rank == 0) {
    double most = r->o->most_ms * 1e3 / once;
    r->shared->iters = most >= r->o->iters ? r->o->iters : most < 1 ? 1 : (int)most;
  }
  together(r);
  return timed(r, c, r->shared->iters);
}

static uint64_t print_row(const struct rank_run *r, const struct coll_case *c) {
  double us = 0, call_us = 0;
  uint64_t wrong = 0;
  for (int i = 0; i < r->o->nranks; i++) {
    if (r->shared->found[i].us > us) us = r->shared->found[i].us;
    if (r->shared->found[i].call_us > call_us) call_us = r->shared->found[i].call_us;
    wrong += r->shared->found[i].wrong;
  }
  double algbw = (double)c->shape.bytes / 1e3 / us;
  const char *op = c->kind == COLL_ALL_REDUCE || c->kind == COLL_REDUCE_SCATTER ? "sum" : "none";
  int digits = us < 100 ? 2 : us < 10000 ? 1 : 0;
  printf("%12zu  %12zu  %8s  %6s  %6d  %7.*f  %6.2f  %6.2f  %6llu  %7s  %6s  %6s  %6s\n", c->shape.bytes,
         c->shape.count, coll_type_name(c->type), op, -1, digits, us, algbw, algbw * coll_bus_factor(c),
         (unsigned long long)wrong, "N/A", "N/A", "N/A", "N/A");
  printf("# %10zu  a call returns after %.1f us\n", c->shape.bytes, call_us);
  return wrong;
}

static void run_case(const struct rank_run *r, struct coll_case *c, int index) {
  if (r->rank == 0) printf("# %s\n", coll_kind_name(c->kind));
  for (size_t bytes = r->o->min_bytes; bytes <= r->o->max_bytes; bytes *= r->o->factor) {
    c->shape = coll_shape_of(c, bytes);
    c->seed++;
    uint64_t wrong = check(r, c);
    r->shared->found[r->rank].wrong = wrong;
    r->shared->found[r->rank].us = measure(r, c);
    together(r);
    if (r->rank == 0) r->shared->wrong[index] += print_row(r, c);
    together(r); /* rank 0 has read what the next size overwrites */
  }
  if (r->rank == 0) atomic_store(&r->shared->done[index], true);
}

/* ---- start and end ---- */

static void load_library(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ENSURE(handle, "%s: %s", path, dlerror());
#define FIND_(symbol) \
  *(void **)&lib.symbol = dlsym(handle, #symbol); \
  ENSURE(lib.symbol, "%s has no %s", path, #symbol);
  LIBRARY_CALLS(FIND_)
}

static ncclUniqueId share_id(const struct rank_run *r) {
  ncclUniqueId id;
  _Static_assert(sizeof id == sizeof r->shared->id, "a unique id fits the shared page");
  if (r->rank == 0) {
    OK(lib.ncclGetUniqueId(&id));
    memcpy(r->shared->id, &id, sizeof id);
  }
  together(r);
  memcpy(&id, r->shared->id, sizeof id);
  return id;
}

static void print_head(const struct rank_run *r) {
  int version = 0;
  Dl_info at = {.dli_fname = NULL};
  (void)lib.ncclGetVersion(&version);
  (void)dladdr(*(void **)&lib.ncclGetVersion, &at);
  printf("# library %s, version %d\n", at.dli_fname ? at.dli_fname : r->o->library, version);
  printf("# %d ranks on one GPU, iters: at most %d, %d ms a size, checked: 1\n#\n", r->o->nranks, r->o->iters,
         r->o->most_ms);
  printf("# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n", "", "", "",
         "", "");
  printf(HEAD, "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw",
         "#wrong");
  printf(HEAD, "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
}

static void body(void *arg) {
  struct rank_run *r = arg;
  size_t room = r->o->max_bytes + GUARD;
  gpu_open();
  load_library(r->o->library);
  r->send = gpu_alloc(room);
  r->recv = gpu_alloc(room);
  r->stream = gpu_stream();
  r->host = malloc(room);
  ENSURE(r->host, "no memory for %zu bytes", room);
  ncclUniqueId id = share_id(r);
  OK(lib.ncclCommInitRank(&r->comm, r->o->nranks, id, r->rank));
  together(r);
  if (r->rank == 0) print_head(r);
  for (int i = 0; i < COLL_CASES; i++) {
    struct coll_case c = {.kind = (enum coll_kind)(i / COLL_TYPES), .type = (enum coll_type)(i % COLL_TYPES),
                          .nranks = r->o->nranks};
    if (coll_wanted(r->o, i)) run_case(r, &c, i);
  }
  OK(lib.ncclCommFinalize(r->comm));
  OK(lib.ncclCommDestroy(r->comm));
  gpu_free(r->send);
  gpu_free(r->recv);
  GPU(gpu.cuStreamDestroy_v2(r->stream));
}

int coll_rank(const struct coll_options *o, struct coll_shared *s, int rank) {
  struct rank_run r = {.o = o, .shared = s, .rank = rank};
  char why[500];
  bool good = kit_catch(body, &r, why, sizeof why);
  free(r.host);
  if (good) return 0;
  printf("# rank %d: %s\n", rank, why); /* tidying up CUDA after a failure could hang as well: the process ends */
  return 1;
}

static void probe(void *arg) {
  (void)arg;
  gpu_open();
}

/* The driver's own word for it. Everything else that goes wrong with a driver that is there is a fault. */
static bool driver_sees_none(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  int (*init)(unsigned flags) = NULL;
  if (library) *(void **)&init = dlsym(library, "cuInit");
  return init && init(0) == NO_DEVICE;
}

int coll_probe(void) {
  char why[500];
  if (getenv("TEST_REAL_GPU") && driver_sees_none()) {
    puts("CUDA sees no device");
    return COLL_NO_DEVICE;
  }
  if (kit_catch(probe, NULL, why, sizeof why)) return 0;
  printf("%s\n", why);
  return 1;
}
