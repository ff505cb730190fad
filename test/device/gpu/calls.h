/* SPDX-License-Identifier: Apache-2.0
 *
 * Every collective as a value, and the buffers of both kinds that it needs.
 */
#ifndef FAKEGPU_CALLS_H
#define FAKEGPU_CALLS_H

#include <string.h>

#include "test/device/gpu/user.h"
#include "test/harness/comms.h"

enum { C_ALLREDUCE, C_REDUCE_SCATTER, C_REDUCE, C_ALLGATHER, C_BROADCAST, C_SENDRECV, C_ALLTOALL, C_GATHER, C_SCATTER,
       C_COUNT };
static const char *const gpu_call_names[C_COUNT] = {"AllReduce", "ReduceScatter", "Reduce",  "AllGather", "Broadcast",
                                                    "SendRecv",  "AlltoAll",      "Gather", "Scatter"};

struct gpu_call {
  int coll, root;
  ncclDataType_t type;
  ncclRedOp_t op;
  size_t count;
};

static size_t gpu_type_size(ncclDataType_t type) {
  static const size_t sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

/* To the right neighbour, from the left one. */
static ncclResult_t gpu_ring(const void *send, void *recv, const struct gpu_call *c, ncclComm_t comm, void *stream) {
  int rank, n;
  ncclCommUserRank(comm, &rank);
  ncclCommCount(comm, &n);
  ncclGroupStart();
  ncclResult_t r = ncclSend(send, c->count, c->type, (rank + 1) % n, comm, stream);
  if (r == ncclSuccess) r = ncclRecv(recv, c->count, c->type, (rank + n - 1) % n, comm, stream);
  ncclResult_t end = ncclGroupEnd();
  return r == ncclSuccess ? end : r;
}

__attribute__((unused)) static ncclResult_t gpu_make(const struct gpu_call *c, const void *send, void *recv,
                                                     ncclComm_t comm, void *stream) {
  switch (c->coll) {
    case C_ALLREDUCE: return ncclAllReduce(send, recv, c->count, c->type, c->op, comm, stream);
    case C_REDUCE_SCATTER: return ncclReduceScatter(send, recv, c->count, c->type, c->op, comm, stream);
    case C_REDUCE: return ncclReduce(send, recv, c->count, c->type, c->op, c->root, comm, stream);
    case C_ALLGATHER: return ncclAllGather(send, recv, c->count, c->type, comm, stream);
    case C_BROADCAST: return ncclBroadcast(send, recv, c->count, c->type, c->root, comm, stream);
    case C_SENDRECV: return gpu_ring(send, recv, c, comm, stream);
    case C_ALLTOALL: return ncclAlltoAll(send, recv, c->count, c->type, comm, stream);
    case C_GATHER: return ncclGather(send, recv, c->count, c->type, c->root, comm, stream);
    default: return ncclScatter(send, recv, c->count, c->type, c->root, comm, stream);
  }
}

/* Bits that are numbers of moderate size in every type: floats near 1, small integers. */
__attribute__((unused)) static void gpu_fill(char *p, size_t bytes, ncclDataType_t type, unsigned seed) {
  static const unsigned char one[ncclNumTypes] = {[ncclFloat16] = 0x3c, [ncclFloat32] = 0x3f, [ncclFloat64] = 0x3f,
                                                  [ncclBfloat16] = 0x3f, [ncclFloat8e4m3] = 0x38,
                                                  [ncclFloat8e5m2] = 0x3c};
  size_t each = gpu_type_size(type);
  for (size_t i = 0; i < bytes; i++) {
    seed = seed * 1664525u + 1013904223u;
    bool top = i % each == each - 1;
    p[i] = (char)(!top || each == 1 ? (seed >> 24 & (one[type] ? 3 : 0x7f)) + (each == 1 ? one[type] : 0) : one[type]);
  }
}

/* A call, done: before a stream is held. Loading the kernels may wait for all streams of the context. */
__attribute__((unused)) static void gpu_warm(ncclComm_t comm, void *stream) {
  char *x = gpu_alloc(1);
  gpu_put(x, "", 1);
  OK(ncclAllReduce(x, x, 1, ncclInt8, ncclSum, comm, stream));
  GPU(gpu.cuStreamSynchronize(stream));
  gpu_free(x);
}

struct gpu_buffers {
  size_t size;
  ncclComm_t on_host; /* the same ranks, for the host's run; made with the first call that is checked */
  char *host_send, *host_recv, *got; /* the host's own run, and what came from the device */
  char *send, *recv;                 /* the device's */
};

__attribute__((unused)) static struct gpu_buffers gpu_buffers_new(size_t size) {
  struct gpu_buffers b = {.size = size};
  b.host_send = malloc(size);
  b.host_recv = malloc(size);
  b.got = malloc(size);
  b.send = gpu_alloc(size);
  b.recv = gpu_alloc(size);
  ENSURE(b.host_send && b.host_recv && b.got, "out of memory");
  return b;
}

__attribute__((unused)) static void gpu_buffers_free(struct gpu_buffers *b) {
  if (b->on_host) OK(ncclCommDestroy(b->on_host));
  free(b->host_send);
  free(b->host_recv);
  free(b->got);
  gpu_free(b->send);
  gpu_free(b->recv);
}

#endif
