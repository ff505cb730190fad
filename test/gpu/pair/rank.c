/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank: CUDA, NCCL, the collectives. Every size is checked once with data of
 * its own, memory after the result included, and then timed.
 */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pair.h"

#define GUARD 4096u
#define HEAD "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n"

struct rank {
  const struct pair_options *o;
  struct pair_shared *shared;
  int rank;
  ncclComm_t comm;
  cudaStream_t stream;
  char *send, *recv; /* device */
  char *host;
};

static int bad_cuda(const struct rank *r, const char *what, cudaError_t e) {
  if (e == cudaSuccess) return 0;
  printf("# rank %d: %s: %s\n", r->rank, what, cudaGetErrorString(e));
  return -1;
}

static int bad_nccl(const struct rank *r, const char *what, ncclResult_t e) {
  if (e == ncclSuccess) return 0;
  printf("# rank %d: %s: %s: %s\n", r->rank, what, ncclGetErrorString(e), ncclGetLastError(r->comm));
  return -1;
}

#define CUDA(call) do { if (bad_cuda(r, #call, call) != 0) return -1; } while (0)
#define NCCL(call) do { if (bad_nccl(r, #call, call) != 0) return -1; } while (0)

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static ncclDataType_t nccl_type(enum pair_type type) {
  switch (type) {
    case PAIR_FLOAT: return ncclFloat32;
    case PAIR_INT32: return ncclInt32;
    default: return ncclUint8;
  }
}

/* ---- one call ---- */

static int alltoall(const struct rank *r, size_t count, ncclDataType_t type, size_t size) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  (void)size;
  NCCL(ncclAlltoAll(r->send, r->recv, count, type, r->comm, r->stream));
#else
  NCCL(ncclGroupStart());
  for (int peer = 0; peer < PAIR_RANKS; peer++) {
    size_t at = (size_t)peer * count * size;
    NCCL(ncclSend(r->send + at, count, type, peer, r->comm, r->stream));
    NCCL(ncclRecv(r->recv + at, count, type, peer, r->comm, r->stream));
  }
  NCCL(ncclGroupEnd());
#endif
  return 0;
}

static int issue(const struct rank *r, const struct pair_case *c) {
  ncclDataType_t type = nccl_type(c->type);
  size_t count = c->shape.count;
  switch (c->kind) {
    case PAIR_ALL_REDUCE: NCCL(ncclAllReduce(r->send, r->recv, count, type, ncclSum, r->comm, r->stream)); return 0;
    case PAIR_ALL_GATHER: NCCL(ncclAllGather(r->send, r->recv, count, type, r->comm, r->stream)); return 0;
    default: return alltoall(r, count, type, pair_type_size(c->type));
  }
}

/* Waits for the stream, but not longer than the other rank lives: NCCL itself waits for ever. */
static int finish(const struct rank *r) {
  for (;;) {
    cudaError_t e = cudaStreamQuery(r->stream);
    if (e != cudaErrorNotReady) return bad_cuda(r, "waiting for the stream", e);
    ncclResult_t async = ncclSuccess;
    NCCL(ncclCommGetAsyncError(r->comm, &async));
    if (bad_nccl(r, "while waiting for the stream", async) != 0) return -1;
    if (atomic_load(&r->shared->failed)) return -1;
  }
}

/* ---- one size ---- */

static int check(const struct rank *r, const struct pair_case *c, uint64_t *wrong) {
  size_t size = pair_type_size(c->type), in = c->shape.send * size, out = c->shape.recv * size;
  pair_fill(c, r->rank, r->host);
  CUDA(cudaMemcpy(r->send, r->host, in, cudaMemcpyHostToDevice));
  CUDA(cudaMemset(r->recv, KIT_POISON, out + GUARD));
  CUDA(cudaDeviceSynchronize()); /* the copies used another stream than NCCL will */
  if (issue(r, c) != 0 || finish(r) != 0) return -1;
  CUDA(cudaMemcpy(r->host, r->recv, out + GUARD, cudaMemcpyDeviceToHost));
  *wrong = pair_wrong(c, r->rank, r->host) + pair_disturbed(r->host + out, GUARD);
  return 0;
}

static int measure(const struct rank *r, const struct pair_case *c, double *us) {
  for (int i = 0; i < r->o->warmup; i++)
    if (issue(r, c) != 0) return -1;
  if (finish(r) != 0 || !pair_barrier(r->shared)) return -1;
  double start = now_us();
  for (int i = 0; i < r->o->iters; i++)
    if (issue(r, c) != 0) return -1;
  if (finish(r) != 0) return -1;
  *us = (now_us() - start) / r->o->iters;
  return 0;
}

static uint64_t print_row(const struct rank *r, const struct pair_case *c) {
  double us = 0;
  uint64_t wrong = 0;
  for (int i = 0; i < PAIR_RANKS; i++) {
    if (r->shared->found[i].us > us) us = r->shared->found[i].us;
    wrong += r->shared->found[i].wrong;
  }
  double algbw = (double)c->shape.bytes / 1e3 / us;
  const char *op = c->kind == PAIR_ALL_REDUCE ? "sum" : "none";
  int digits = us < 100 ? 2 : us < 10000 ? 1 : 0;
  printf("%12zu  %12zu  %8s  %6s  %6d  %7.*f  %6.2f  %6.2f  %6llu  %7s  %6s  %6s  %6s\n", c->shape.bytes,
         c->shape.count, pair_type_name(c->type), op, -1, digits, us, algbw, algbw * pair_bus_factor(c->kind),
         (unsigned long long)wrong, "N/A", "N/A", "N/A", "N/A");
  return wrong;
}

static int run_case(const struct rank *r, struct pair_case *c, int index) {
  if (r->rank == 0) printf("# %s\n", pair_kind_name(c->kind));
  for (size_t bytes = r->o->min_bytes; bytes <= r->o->max_bytes; bytes *= 2) {
    uint64_t wrong = 0;
    double us = 0;
    c->shape = pair_shape_of(c->kind, c->type, bytes);
    c->seed++;
    if (check(r, c, &wrong) != 0 || measure(r, c, &us) != 0) return -1;
    r->shared->found[r->rank].us = us;
    r->shared->found[r->rank].wrong = wrong;
    if (!pair_barrier(r->shared)) return -1;
    if (r->rank == 0) r->shared->wrong[index] += print_row(r, c);
    if (!pair_barrier(r->shared)) return -1; /* rank 0 has read what the next size overwrites */
  }
  if (r->rank == 0) atomic_store(&r->shared->done[index], true);
  return 0;
}

/* ---- start and end ---- */

static int share_id(const struct rank *r, ncclUniqueId *id) {
  if (r->rank == 0) {
    NCCL(ncclGetUniqueId(id));
    memcpy(r->shared->id, id, sizeof *id);
  }
  if (!pair_barrier(r->shared)) return -1;
  memcpy(id, r->shared->id, sizeof *id);
  return 0;
}

static void print_head(const struct rank *r) {
  char bus[32] = "?";
  int driver = 0, runtime = 0, nccl = 0;
  (void)cudaDeviceGetPCIBusId(bus, sizeof bus, r->o->devices[0]);
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  (void)ncclGetVersion(&nccl);
  printf("# NCCL headers %d, library %d; CUDA runtime %d, driver %d; rank 0's GPU at %s\n", NCCL_VERSION_CODE, nccl,
         runtime, driver, bus);
  printf("# %d ranks, warmup iters: %d, iters: %d, checked: 1\n#\n", PAIR_RANKS, r->o->warmup, r->o->iters);
  printf("# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n", "", "", "",
         "", "");
  printf(HEAD, "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw",
         "#wrong");
  printf(HEAD, "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
}

static int run(struct rank *r) {
  ncclUniqueId id;
  size_t room = r->o->max_bytes + GUARD;
  _Static_assert(sizeof id == sizeof r->shared->id, "a unique id fits the shared page");
  CUDA(cudaSetDevice(r->o->devices[r->rank]));
  CUDA(cudaMalloc((void **)&r->send, room));
  CUDA(cudaMalloc((void **)&r->recv, room));
  CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
  r->host = malloc(room);
  if (!r->host) {
    printf("# rank %d: no memory for %zu bytes\n", r->rank, room);
    return -1;
  }
  if (share_id(r, &id) != 0) return -1;
  NCCL(ncclCommInitRank(&r->comm, PAIR_RANKS, id, r->rank));
  if (!pair_barrier(r->shared)) return -1;
  if (r->rank == 0) print_head(r);
  for (int i = 0; i < PAIR_CASES; i++) {
    struct pair_case c = {.kind = (enum pair_kind)(i / PAIR_TYPES), .type = (enum pair_type)(i % PAIR_TYPES)};
    if (run_case(r, &c, i) != 0) return -1;
  }
  NCCL(ncclCommFinalize(r->comm));
  NCCL(ncclCommDestroy(r->comm));
  return 0;
}

int pair_rank(const struct pair_options *o, struct pair_shared *s, int rank) {
  struct rank r = {.o = o, .shared = s, .rank = rank};
  int status = run(&r);
  free(r.host);
  if (status != 0) return 1; /* the process ends; tidying up CUDA after a failure could hang as well */
  (void)cudaStreamDestroy(r.stream);
  (void)cudaFree(r.send);
  (void)cudaFree(r.recv);
  return 0;
}

int pair_probe(const struct pair_options *o) {
  int n = 0;
  cudaError_t e = cudaGetDeviceCount(&n);
  for (int r = 0; e == cudaSuccess && r < PAIR_RANKS; r++) {
    if (o->devices[r] >= n) {
      printf("CUDA sees %d device(s), so there is no number %d\n", n, o->devices[r]);
      return PAIR_NO_DEVICE;
    }
    e = cudaSetDevice(o->devices[r]);
    if (e == cudaSuccess) e = cudaFree(NULL); /* makes the context */
  }
  if (e == cudaSuccess) return 0;
  printf("CUDA says: %s\n", cudaGetErrorString(e));
  return PAIR_NO_DEVICE;
}
