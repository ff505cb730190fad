/* SPDX-License-Identifier: Apache-2.0
 * One rank: NCCL opened, a communicator made, one collective with all sizes, types and operations, contents checked. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/nccl/kit_nccl.h"

#define ID_SIZE 128
#define FULL_MATRIX (64u << 10) /* bytes up to which all types and operations are tried; beyond: the first of them */

struct unique_id { char bytes[ID_SIZE]; };

/* NCCL's calls, and CUDA's runtime's, from the library and what it was linked with. */
#define CALLS(X)                                                                                             \
  X(ncclGetVersion, (int *version))                                                                          \
  X(ncclGetUniqueId, (struct unique_id *id))                                                                 \
  X(ncclCommInitRank, (void **comm, int ranks, struct unique_id id, int rank))                               \
  X(ncclCommDestroy, (void *comm))                                                                           \
  X(ncclCommGetAsyncError, (void *comm, int *error))                                                         \
  X(ncclGroupStart, (void))                                                                                  \
  X(ncclGroupEnd, (void))                                                                                    \
  X(ncclAllReduce, (const void *, void *, size_t, int type, int redop, void *comm, void *stream))            \
  X(ncclAllGather, (const void *, void *, size_t, int type, void *comm, void *stream))                       \
  X(ncclReduceScatter, (const void *, void *, size_t, int type, int redop, void *comm, void *stream))        \
  X(ncclBroadcast, (const void *, void *, size_t, int type, int root, void *comm, void *stream))             \
  X(ncclReduce, (const void *, void *, size_t, int type, int redop, int root, void *comm, void *stream))     \
  X(ncclSend, (const void *, size_t, int type, int peer, void *comm, void *stream))                          \
  X(ncclRecv, (void *, size_t, int type, int peer, void *comm, void *stream))                                \
  X(cudaSetDevice, (int device))                                                                             \
  X(cudaMalloc, (void **memory, size_t size))                                                                \
  X(cudaFree, (void *memory))                                                                                \
  X(cudaMemcpy, (void *to, const void *from, size_t size, int kind))                                         \
  X(cudaMemset, (void *memory, int value, size_t size))                                                      \
  X(cudaStreamCreateWithFlags, (void **stream, unsigned flags))                                              \
  X(cudaStreamQuery, (void *stream))                                                                         \
  X(cudaStreamSynchronize, (void *stream))                                                                   \
  X(cudaStreamDestroy, (void *stream))

struct rank {
  struct kit_process *self;
  int rank, n;
#define FIELD_(symbol, arguments) int(*symbol) arguments;
  CALLS(FIELD_)
  const char *(*error_text)(void *comm);
  bool (*has)(const char *function); /* ghost's */
  void *comm, *stream;
  char *send, *recv, *host; /* of the largest call */
  size_t room;
  const char *algo, *proto;
  char wrong[256]; /* the first wrong content */
};

static const char *last_error(const struct rank *r) { return r->error_text ? r->error_text(NULL) : ""; }

#define NCCL(call)                                                                   \
  do {                                                                               \
    int result_ = (call);                                                            \
    ENSURE(result_ == 0, "%s: NCCL result %d: %s", #call, result_, last_error(r));   \
  } while (0)
#define CUDA(call)                                                   \
  do {                                                               \
    int result_ = (call);                                            \
    ENSURE(result_ == 0, "%s: CUDA result %d", #call, result_);      \
  } while (0)

static void *symbol_of(void *library, const char *name) {
  void *found = dlsym(library, name);
  ENSURE(found, "%s is missing from NCCL or from what it was linked with", name);
  return found;
}

static void open_nccl(struct rank *r, const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ENSURE(library, "%s", dlerror());
  ENSURE(driver, "%s", dlerror());
#define FIND_(symbol, arguments) *(void **)&r->symbol = symbol_of(library, #symbol);
  CALLS(FIND_)
  *(void **)&r->error_text = dlsym(library, "ncclGetLastError");
  *(void **)&r->has = symbol_of(driver, "ghost_nccl_has");
}

static void make_comm(struct rank *r) {
  struct unique_id id;
  if (r->rank == 0) {
    NCCL(r->ncclGetUniqueId(&id));
    for (int to = 1; to < r->n; to++) kit_send_bytes(r->self, to, &id, sizeof id);
  } else {
    kit_recv_bytes(r->self, 0, &id, sizeof id);
  }
  CUDA(r->cudaSetDevice(r->rank));
  CUDA(r->cudaStreamCreateWithFlags(&r->stream, 1));
  NCCL(r->ncclCommInitRank(&r->comm, r->n, id, r->rank));
}

/* ---- one call ---- */

static int exchange_all(struct rank *r, const struct kit_nccl_call *c, const char *send, char *recv) {
  size_t bytes = c->count * kit_nccl_type_size(c->type);
  int result = r->ncclGroupStart();
  for (int peer = 0; peer < r->n && result == 0; peer++) {
    result = r->ncclSend(send + (size_t)peer * bytes, c->count, c->type, peer, r->comm, r->stream);
    if (result == 0) result = r->ncclRecv(recv + (size_t)peer * bytes, c->count, c->type, peer, r->comm, r->stream);
  }
  int end = r->ncclGroupEnd();
  return result ? result : end;
}

/* To the next rank, from the one before. */
static int exchange_ring(struct rank *r, const struct kit_nccl_call *c, const char *send, char *recv) {
  int result = r->ncclGroupStart();
  if (result == 0) result = r->ncclSend(send, c->count, c->type, (r->rank + 1) % r->n, r->comm, r->stream);
  if (result == 0) result = r->ncclRecv(recv, c->count, c->type, (r->rank + r->n - 1) % r->n, r->comm, r->stream);
  int end = r->ncclGroupEnd();
  return result ? result : end;
}

static int make_call(struct rank *r, const struct kit_nccl_call *c, const char *send, char *recv) {
  switch (c->coll) {
    case KIT_NCCL_ALL_REDUCE: return r->ncclAllReduce(send, recv, c->count, c->type, c->redop, r->comm, r->stream);
    case KIT_NCCL_ALL_GATHER: return r->ncclAllGather(send, recv, c->count, c->type, r->comm, r->stream);
    case KIT_NCCL_REDUCE_SCATTER:
      return r->ncclReduceScatter(send, recv, c->count, c->type, c->redop, r->comm, r->stream);
    case KIT_NCCL_BROADCAST: return r->ncclBroadcast(send, recv, c->count, c->type, c->root, r->comm, r->stream);
    case KIT_NCCL_REDUCE: return r->ncclReduce(send, recv, c->count, c->type, c->redop, c->root, r->comm, r->stream);
    case KIT_NCCL_SENDRECV: return exchange_ring(r, c, send, recv);
    default: return exchange_all(r, c, send, recv);
  }
}

/* Waits for the stream, and for what NCCL says of the network meanwhile. */
static void wait_for(struct rank *r) {
  int state, error = 0;
  while ((state = r->cudaStreamQuery(r->stream)) == 600) { /* not ready */
    NCCL(r->ncclCommGetAsyncError(r->comm, &error));
    ENSURE(error == 0 || error == 7, "NCCL reports result %d while a collective runs: %s", error, last_error(r));
    usleep(200);
  }
  ENSURE(state == 0, "cudaStreamQuery: CUDA result %d", state);
}

/* Microseconds; the number of wrong elements is added. */
static double one_call(struct rank *r, const struct kit_nccl_call *c, bool in_place, size_t *wrong) {
  size_t each = kit_nccl_type_size(c->type), sent = kit_nccl_send_count(c) * each, got = kit_nccl_recv_count(c) * each;
  char *send = r->send, *recv = r->recv, first[128];
  size_t inside = (size_t)(in_place ? kit_nccl_in_place(c) : 0) * each;
  if (in_place && c->coll == KIT_NCCL_REDUCE_SCATTER) recv = send + inside;
  else if (in_place) send = recv + inside;
  kit_nccl_fill(c, r->host);
  CUDA(r->cudaMemset(r->recv, 0x5a, r->room));
  CUDA(r->cudaMemcpy(send, r->host, sent, 1));
  uint64_t start = rail_now_ns();
  int result = make_call(r, c, send, recv);
  ENSURE(result == 0, "%s of %zu %s: NCCL result %d: %s", kit_nccl_colls[c->coll], c->count, kit_nccl_types[c->type],
         result, last_error(r));
  wait_for(r);
  double us = (double)(rail_now_ns() - start) / 1e3;
  CUDA(r->cudaMemcpy(r->host, recv, got, 2));
  size_t bad = kit_nccl_verify(c, r->host, first, sizeof first);
  if (bad && !r->wrong[0])
    snprintf(r->wrong, sizeof r->wrong, "%s of %zu %s, %s%s, root %d: %zu wrong elements: %s", kit_nccl_colls[c->coll],
             c->count, kit_nccl_types[c->type], kit_nccl_redops[c->redop], in_place ? ", in place" : "", c->root, bad,
             first);
  *wrong += bad;
  return us;
}

/* What all ranks found, at rank 0. */
static size_t sum_wrong(struct rank *r, size_t mine) {
  uint64_t sum = mine, other;
  if (r->rank > 0) {
    kit_send_bytes(r->self, 0, &sum, sizeof sum);
    return mine;
  }
  for (int from = 1; from < r->n; from++) {
    kit_recv_bytes(r->self, from, &other, sizeof other);
    sum += other;
  }
  return (size_t)sum;
}

static void one_row(struct rank *r, struct kit_nccl_call c) {
  bool places = kit_nccl_in_place(&c) >= 0;
  size_t wrong[2] = {0, 0};
  double us[2] = {0, 0};
  for (int i = 0; i < 1 + places; i++) {
    c.round++;
    us[i] = one_call(r, &c, i == 1, &wrong[i]);
    wrong[i] = sum_wrong(r, wrong[i]);
  }
  char inside[64] = "          -        -";
  if (places) snprintf(inside, sizeof inside, "%11.1f %8zu", us[1], wrong[1]);
  bool rooted = c.coll == KIT_NCCL_BROADCAST || c.coll == KIT_NCCL_REDUCE;
  if (r->rank == 0)
    kit_note(r->self, "%12zu %12zu %9s %6s %4d %11.1f %8zu %s", c.count * kit_nccl_type_size(c.type), c.count,
             kit_nccl_types[c.type], kit_nccl_reduces(c.coll) ? kit_nccl_redops[c.redop] : "-", rooted ? c.root : -1,
             us[0], wrong[0], inside);
}

/* ---- which calls ---- */

/* Is the word one of a list with commas? NULL: any is. */
static bool listed(const char *list, const char *word) {
  size_t n = strlen(word);
  for (const char *at = list; at; at = strchr(at, ','), at += at != NULL)
    if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == 0)) return true;
  return !list;
}

/* Has this NCCL the function? Its build may have left it out. */
static bool built(const struct rank *r, const struct kit_nccl_call *c) {
  static const char *const colls[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"};
  static const char *const types[] = {"i8",  "u8",  "i32", "u32",  "i64",    "u64",
                                      "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
  static const char *const redops[] = {"Sum", "Prod", "MinMax", "MinMax", "PreMulSum"};
  char text[96];
  if (c->coll >= KIT_NCCL_SENDRECV) return true;
  bool reduces = kit_nccl_reduces(c->coll), integers = c->type < 6;
  snprintf(text, sizeof text, "%s %s %s %s %s", colls[c->coll],
           !reduces                    ? "Copy"
           : c->redop == 4 && integers ? "SumPostDiv"
                                       : redops[c->redop],
           reduces ? types[c->type] : "i8", r->algo, r->proto);
  return r->has(text);
}

static void each_size(struct rank *r, struct kit_nccl_call c, const char *sizes, bool first) {
  for (const char *at = sizes; *at;) {
    char *end;
    uint64_t bytes = strtoull(at, &end, 10);
    at = end + (*end == ',');
    c.count = bytes / kit_nccl_type_size(c.type);
    if (bytes <= FULL_MATRIX || first) one_row(r, c);
  }
}

static unsigned each_kind(struct rank *r, struct kit_nccl_call c, const struct kit_job *job) {
  char types[512] = "", redops[256] = "", sizes[512];
  bool some_types = kit_job_arg(job, "types") != NULL, some_redops = kit_job_arg(job, "redops") != NULL;
  if (some_types) snprintf(types, sizeof types, "%s", kit_job_arg(job, "types"));
  if (some_redops) snprintf(redops, sizeof redops, "%s", kit_job_arg(job, "redops"));
  snprintf(sizes, sizeof sizes, "%s", kit_job_arg(job, "sizes"));
  unsigned tried = 0;
  for (c.type = 0; kit_nccl_types[c.type]; c.type++)
    for (c.redop = 0; kit_nccl_redops[c.redop] && (c.redop == 0 || kit_nccl_reduces(c.coll)); c.redop++) {
      if (!listed(some_types ? types : NULL, kit_nccl_types[c.type])) continue;
      if (!listed(some_redops ? redops : NULL, kit_nccl_redops[c.redop])) continue;
      if (!built(r, &c) || !kit_nccl_exact(&c)) continue;
      c.root = (int)(tried % (unsigned)c.ranks);
      c.round += 16;
      each_size(r, c, sizes, tried++ == 0);
    }
  return tried;
}

static uint64_t largest(const char *sizes) {
  uint64_t most = 8;
  for (const char *at = sizes; *at;) {
    char *end;
    uint64_t bytes = strtoull(at, &end, 10);
    if (bytes > most) most = bytes;
    at = end + (*end == ',');
  }
  return most;
}

void kit_nccl_process(struct kit_process *self) {
  const struct kit_job *job = kit_process_job(self);
  struct rank rank = {.self = self, .rank = kit_process_rank(self), .n = kit_process_count(self)}, *r = &rank;
  char algo[16], proto[16], library[1024];
  struct kit_nccl_call c = {.coll = (enum kit_nccl_coll)kit_job_number(job, "coll", 0), .rank = r->rank, .ranks = r->n};
  snprintf(library, sizeof library, "%s", kit_job_arg(job, "library"));
  snprintf(algo, sizeof algo, "%s", kit_job_arg(job, "algo"));
  snprintf(proto, sizeof proto, "%s", kit_job_arg(job, "proto"));
  r->algo = algo;
  r->proto = proto;
  r->room = (size_t)largest(kit_job_arg(job, "sizes")) * (size_t)r->n;
  ENSURE(c.coll < KIT_NCCL_COLLS, "collective %d", (int)c.coll);
  open_nccl(r, library);
  make_comm(r);
  r->host = malloc(r->room);
  ENSURE(r->host, "no memory for %zu bytes", r->room);
  CUDA(r->cudaMalloc((void **)&r->send, r->room));
  CUDA(r->cudaMalloc((void **)&r->recv, r->room));
  unsigned tried = each_kind(r, c, job);
  CUDA(r->cudaStreamSynchronize(r->stream));
  kit_barrier(self);
  NCCL(r->ncclCommDestroy(r->comm));
  CUDA(r->cudaFree(r->send));
  CUDA(r->cudaFree(r->recv));
  CUDA(r->cudaStreamDestroy(r->stream));
  free(r->host);
  ENSURE(!r->wrong[0], "%s", r->wrong);
  if (!tried) kit_skip("this NCCL was built without %s %s, or --types and --redops leave nothing", algo, proto);
}
