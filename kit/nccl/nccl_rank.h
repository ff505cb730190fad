/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank of rail-kit nccl: NCCL and CUDA's runtime opened, a communicator, and one call whose result is compared.
 * Errors fail the process (ENSURE). One thread.
 */
#ifndef RAIL_KIT_NCCL_RANK_H
#define RAIL_KIT_NCCL_RANK_H

#include "kit/nccl/kit_nccl.h"

#define KIT_CUDA_NOT_READY 600  /* of cudaStreamQuery */
#define KIT_NCCL_IN_PROGRESS 7

struct kit_nccl_id { char bytes[128]; };

/* NCCL's calls, and CUDA's runtime's, from the library and what it was linked with. */
#define KIT_NCCL_CALLS(X)                                                                                    \
  X(ncclGetVersion, (int *version))                                                                          \
  X(ncclGetUniqueId, (struct kit_nccl_id *id))                                                               \
  X(ncclCommInitRank, (void **comm, int ranks, struct kit_nccl_id id, int rank))                             \
  X(ncclCommSplit, (void *comm, int color, int key, void **part, void *config))                              \
  X(ncclCommDestroy, (void *comm))                                                                           \
  X(ncclCommAbort, (void *comm))                                                                             \
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
  X(cudaDeviceGetAttribute, (int *value, int attribute, int device))                                         \
  X(cudaMalloc, (void **memory, size_t size))                                                                \
  X(cudaFree, (void *memory))                                                                                \
  X(cudaMemcpy, (void *to, const void *from, size_t size, int kind))                                         \
  X(cudaMemset, (void *memory, int value, size_t size))                                                      \
  X(cudaStreamCreateWithFlags, (void **stream, unsigned flags))                                              \
  X(cudaStreamQuery, (void *stream))                                                                         \
  X(cudaStreamSynchronize, (void *stream))                                                                   \
  X(cudaStreamDestroy, (void *stream))                                                                       \
  X(cudaStreamBeginCapture, (void *stream, int mode))                                                        \
  X(cudaStreamEndCapture, (void *stream, void **graph))                                                      \
  X(cudaGraphInstantiate, (void **exec, void *graph, unsigned long long flags))                              \
  X(cudaGraphLaunch, (void *exec, void *stream))                                                             \
  X(cudaGraphExecDestroy, (void *exec))                                                                      \
  X(cudaGraphDestroy, (void *graph))

struct kit_nccl_rank {
  struct kit_process *self;
  int rank, n, gpu;
#define FIELD_(symbol, arguments) int(*symbol) arguments;
  KIT_NCCL_CALLS(FIELD_)
#undef FIELD_
  const char *(*error_text)(void *comm);
  int (*shrink)(void *comm, int *excluded, int n, void **part, void *config, int flags); /* ncclCommShrink, or NULL */
  bool (*has)(const char *function); /* ghost's */
  const char *(*failure)(void);      /* ghost's: why the first kernel failed */
  void *comm, *stream;      /* that calls are made with */
  char *send, *recv, *host; /* `room` bytes each */
  size_t room;
  const char *algo, *proto;
  char wrong[256]; /* the first wrong content */
};

/* NCCL's words for its last error; "" if there are none. */
const char *kit_nccl_last_error(const struct kit_nccl_rank *r);

#define NCCL(rank, call)                                                                                    \
  do {                                                                                                      \
    int result_ = (call);                                                                                   \
    ENSURE(result_ == 0, "%s: NCCL result %s: %s", #call, kit_rc_text(result_), kit_nccl_last_error(rank)); \
  } while (0)
#define CUDA(call)                                              \
  do {                                                          \
    int result_ = (call);                                       \
    ENSURE(result_ == 0, "%s: CUDA result %d", #call, result_); \
  } while (0)

/* Opens the job's NCCL, chooses the rank's GPU, makes a stream and buffers. which: of the process' ranks. */
void kit_nccl_rank_open(struct kit_nccl_rank *r, struct kit_process *self, int which, size_t room);
/* Frees these. */
void kit_nccl_rank_close(struct kit_nccl_rank *r);

/* A communicator of all ranks, and its end. With one rank a process. */
void *kit_nccl_make_comm(struct kit_nccl_rank *r);
void kit_nccl_destroy_comm(struct kit_nccl_rank *r, void *comm);

/* The same of the n ranks of a process: each one's comm is made and destroyed, by one group of NCCL's. */
void kit_nccl_make_comms(struct kit_nccl_rank *ranks, int n);
void kit_nccl_destroy_comms(struct kit_nccl_rank *ranks, int n);

/* What a call is made of, one after the other. `prepare` fills the buffers; `start` calls NCCL and returns its result;
 * `wait` returns when the stream has done it, or with NCCL's result when that reports an error; `finish` compares, adds
 * the number of wrong elements, and writes the first of them to r->wrong. */
void kit_nccl_prepare(struct kit_nccl_rank *r, const struct kit_nccl_call *c, bool in_place);
int kit_nccl_start(struct kit_nccl_rank *r, const struct kit_nccl_call *c, bool in_place);
/* The ranks' calls as one group of NCCL's; the first result that is no success. */
int kit_nccl_start_all(struct kit_nccl_rank *ranks, const struct kit_nccl_call *calls, int n, bool in_place);
int kit_nccl_wait(struct kit_nccl_rank *r);
/* Looks once: true when the stream has done it, or when *error, which is 0 otherwise, has NCCL's result. */
bool kit_nccl_poll(struct kit_nccl_rank *r, int *error);
void kit_nccl_finish(struct kit_nccl_rank *r, const struct kit_nccl_call *c, bool in_place, size_t *wrong);

/* ---- for scenarios: all-reduces of floats, which NCCL runs as it likes ---- */

#define KIT_NCCL_SMALL 1000
#define KIT_NCCL_LARGE (256u << 10) /* elements: several steps of every channel */
#define KIT_NCCL_ROUNDS 20          /* at most, before something happens */

struct kit_nccl_call kit_nccl_all_reduce(const struct kit_nccl_rank *r, size_t count, unsigned round);
/* One, whose contents are right. */
void kit_nccl_one_call(struct kit_nccl_rank *r, size_t count, unsigned round);
int kit_nccl_version(struct kit_nccl_rank *r);

/* NCCL 2.28.3 to 2.29.7 forget the plugin's name when they unload it, with the last communicator of the process
 * (nccl#1978): there one more is kept as long as others come and go. NULL elsewhere. */
void *kit_nccl_keep_one(struct kit_nccl_rank *r);
void kit_nccl_destroy_kept(struct kit_nccl_rank *r, void *kept);

#endif
