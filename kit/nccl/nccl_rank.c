/* SPDX-License-Identifier: Apache-2.0
 * NCCL opened; a communicator; one call, with its contents. */
#include "kit/nccl/nccl_rank.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kit/kit_call_trace.h"

enum { HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, NON_BLOCKING = 1 }; /* CUDA's */
enum { FLOAT = 7 }; /* NCCL's */

const char *kit_nccl_last_error(const struct kit_nccl_rank *r) { return r->error_text ? r->error_text(NULL) : ""; }

/* ---- opened ---- */

static void *symbol_of(void *library, const char *name) {
  void *found = dlsym(library, name);
  ENSURE(found, "%s is missing from NCCL or from what it was linked with", name);
  return found;
}

static void open_nccl(struct kit_nccl_rank *r, const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ENSURE(library, "%s", dlerror());
  ENSURE(driver, "%s", dlerror());
#define FIND_(symbol, arguments) *(void **)&r->symbol = symbol_of(library, #symbol);
  KIT_NCCL_CALLS(FIND_)
  *(void **)&r->error_text = dlsym(library, "ncclGetLastError");
  *(void **)&r->shrink = dlsym(library, "ncclCommShrink");
  *(void **)&r->has = symbol_of(driver, "ghost_nccl_has");
  *(void **)&r->failure = symbol_of(driver, "ghost_nccl_failure");
}

static void use_gpu(const struct kit_nccl_rank *r) { CUDA(r->cudaSetDevice(r->gpu)); }

void kit_nccl_rank_open(struct kit_nccl_rank *r, struct kit_process *self, int which, size_t room) {
  const struct kit_job *job = kit_process_job(self);
  int gpus = (int)kit_job_number(job, "gpus_per_process", 1);
  *r = (struct kit_nccl_rank){.self = self, .rank = kit_process_rank(self) * gpus + which,
                              .n = kit_process_count(self) * gpus, .room = room};
  r->gpu = r->rank % (int)kit_job_number(job, "gpus", 1);
  open_nccl(r, kit_job_arg(job, "library"));
  use_gpu(r);
  CUDA(r->cudaStreamCreateWithFlags(&r->stream, NON_BLOCKING));
  CUDA(r->cudaMalloc((void **)&r->send, room));
  CUDA(r->cudaMalloc((void **)&r->recv, room));
  r->host = malloc(room);
  ENSURE(r->host, "no memory for %zu bytes", room);
}

void kit_nccl_rank_close(struct kit_nccl_rank *r) {
  use_gpu(r);
  CUDA(r->cudaFree(r->send));
  CUDA(r->cudaFree(r->recv));
  CUDA(r->cudaStreamDestroy(r->stream));
  free(r->host);
}

/* One for all ranks, made by the first process. */
static struct kit_nccl_id get_id(struct kit_nccl_rank *r) {
  struct kit_nccl_id id;
  if (kit_process_rank(r->self) > 0) {
    kit_recv_bytes(r->self, 0, &id, sizeof id);
    return id;
  }
  NCCL(r, r->ncclGetUniqueId(&id));
  for (int to = 1; to < kit_process_count(r->self); to++) kit_send_bytes(r->self, to, &id, sizeof id);
  return id;
}

void *kit_nccl_make_comm(struct kit_nccl_rank *r) {
  struct kit_nccl_id id = get_id(r);
  void *comm = NULL;
  kit_call_begin(KIT_CALL_COMM_INIT);
  NCCL(r, r->ncclCommInitRank(&comm, r->n, id, r->rank));
  kit_call_end();
  return comm;
}

void kit_nccl_make_comms(struct kit_nccl_rank *ranks, int n) {
  struct kit_nccl_id id = get_id(&ranks[0]);
  kit_call_begin(KIT_CALL_COMM_INIT);
  NCCL(ranks, ranks->ncclGroupStart());
  for (struct kit_nccl_rank *r = ranks; r < ranks + n; r++) {
    use_gpu(r);
    NCCL(r, r->ncclCommInitRank(&r->comm, r->n, id, r->rank));
  }
  NCCL(ranks, ranks->ncclGroupEnd());
  kit_call_end();
}

void kit_nccl_destroy_comms(struct kit_nccl_rank *ranks, int n) {
  kit_call_begin(KIT_CALL_COMM_DESTROY);
  NCCL(ranks, ranks->ncclGroupStart());
  for (struct kit_nccl_rank *r = ranks; r < ranks + n; r++) NCCL(r, r->ncclCommDestroy(r->comm));
  NCCL(ranks, ranks->ncclGroupEnd());
  kit_call_end();
}

void kit_nccl_destroy_comm(struct kit_nccl_rank *r, void *comm) {
  kit_call_begin(KIT_CALL_COMM_DESTROY);
  NCCL(r, r->ncclCommDestroy(comm));
  kit_call_end();
}

/* ---- one call ---- */

static int exchange_all(struct kit_nccl_rank *r, const struct kit_nccl_call *c, const char *send, char *recv) {
  size_t bytes = c->count * kit_nccl_type_size(c->type);
  int result = r->ncclGroupStart();
  for (int peer = 0; peer < r->n && result == 0; peer++) {
    long long out = kit_nccl_part(c, r->rank, peer), in = kit_nccl_part(c, peer, r->rank);
    char *to = recv + (size_t)peer * bytes;
    if (out >= 0)
      result = r->ncclSend(send + (size_t)peer * bytes, (size_t)out, c->type, peer, r->comm, r->stream);
    if (in >= 0 && result == 0) result = r->ncclRecv(to, (size_t)in, c->type, peer, r->comm, r->stream);
  }
  int end = r->ncclGroupEnd();
  return result ? result : end;
}

/* To the next rank, from the one before. */
static int exchange_ring(struct kit_nccl_rank *r, const struct kit_nccl_call *c, const char *send, char *recv) {
  int result = r->ncclGroupStart();
  if (result == 0) result = r->ncclSend(send, c->count, c->type, (r->rank + 1) % r->n, r->comm, r->stream);
  if (result == 0) result = r->ncclRecv(recv, c->count, c->type, (r->rank + r->n - 1) % r->n, r->comm, r->stream);
  int end = r->ncclGroupEnd();
  return result ? result : end;
}

static int make_call(struct kit_nccl_rank *r, const struct kit_nccl_call *c, const char *send, char *recv) {
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

struct places {
  char *send, *recv;
};

static struct places places_of(const struct kit_nccl_rank *r, const struct kit_nccl_call *c, bool in_place) {
  struct places p = {r->send, r->recv};
  size_t inside = (size_t)(in_place ? kit_nccl_in_place(c) : 0) * kit_nccl_type_size(c->type);
  if (in_place && c->coll == KIT_NCCL_REDUCE_SCATTER) p.recv = p.send + inside;
  else if (in_place) p.send = p.recv + inside;
  return p;
}

void kit_nccl_prepare(struct kit_nccl_rank *r, const struct kit_nccl_call *c, bool in_place) {
  struct places p = places_of(r, c, in_place);
  use_gpu(r);
  kit_nccl_fill(c, r->host);
  CUDA(r->cudaMemset(r->recv, KIT_NCCL_UNTOUCHED, r->room));
  CUDA(r->cudaMemcpy(p.send, r->host, kit_nccl_send_count(c) * kit_nccl_type_size(c->type), HOST_TO_DEVICE));
}

int kit_nccl_start(struct kit_nccl_rank *r, const struct kit_nccl_call *c, bool in_place) {
  struct places p = places_of(r, c, in_place);
  use_gpu(r);
  kit_call_begin(KIT_CALL_COLLECTIVE);
  int result = make_call(r, c, p.send, p.recv);
  kit_call_end();
  return result;
}

int kit_nccl_start_all(struct kit_nccl_rank *ranks, const struct kit_nccl_call *calls, int n, bool in_place) {
  int result = ranks->ncclGroupStart();
  for (int i = 0; i < n && result == 0; i++) result = kit_nccl_start(&ranks[i], &calls[i], in_place);
  kit_call_begin(KIT_CALL_COLLECTIVE);
  int end = ranks->ncclGroupEnd();
  kit_call_end();
  return result ? result : end;
}

bool kit_nccl_poll(struct kit_nccl_rank *r, int *error) {
  int state = r->cudaStreamQuery(r->stream);
  *error = 0;
  if (state == 0) return true;
  ENSURE(state == KIT_CUDA_NOT_READY, "the kernel has failed (CUDA result %d): %s", state, r->failure());
  NCCL(r, r->ncclCommGetAsyncError(r->comm, error));
  if (*error == KIT_NCCL_IN_PROGRESS) *error = 0;
  return *error != 0;
}

int kit_nccl_wait(struct kit_nccl_rank *r) {
  int error;
  kit_call_begin(KIT_CALL_COLLECTIVE);
  while (!kit_nccl_poll(r, &error)) usleep(200);
  kit_call_end();
  return error;
}

void kit_nccl_finish(struct kit_nccl_rank *r, const struct kit_nccl_call *c, bool in_place, size_t *wrong) {
  struct places p = places_of(r, c, in_place);
  char first[128];
  use_gpu(r);
  CUDA(r->cudaMemcpy(r->host, p.recv, kit_nccl_recv_count(c) * kit_nccl_type_size(c->type), DEVICE_TO_HOST));
  size_t bad = kit_nccl_verify(c, r->host, first, sizeof first);
  if (bad && !r->wrong[0])
    snprintf(r->wrong, sizeof r->wrong, "%s of %zu %s, %s%s, root %d: %zu wrong elements: %s", kit_nccl_colls[c->coll],
             c->count, kit_nccl_types[c->type], kit_nccl_redops[c->redop], in_place ? ", in place" : "", c->root, bad,
             first);
  *wrong += bad;
}

/* ---- for scenarios ---- */

struct kit_nccl_call kit_nccl_all_reduce(const struct kit_nccl_rank *r, size_t count, unsigned round) {
  return (struct kit_nccl_call){.coll = KIT_NCCL_ALL_REDUCE, .type = FLOAT, .count = count, .rank = r->rank,
                                .ranks = r->n, .round = round};
}

void kit_nccl_one_call(struct kit_nccl_rank *r, size_t count, unsigned round) {
  struct kit_nccl_call c = kit_nccl_all_reduce(r, count, round);
  size_t wrong = 0;
  kit_nccl_prepare(r, &c, false);
  NCCL(r, kit_nccl_start(r, &c, false));
  NCCL(r, kit_nccl_wait(r));
  kit_nccl_finish(r, &c, false, &wrong);
  ENSURE(!wrong, "%s", r->wrong);
}

int kit_nccl_version(struct kit_nccl_rank *r) {
  int version = 0;
  NCCL(r, r->ncclGetVersion(&version));
  return version;
}

void *kit_nccl_keep_one(struct kit_nccl_rank *r) {
  const int version = kit_nccl_version(r);
  return version >= 22803 && version <= 22907 ? kit_nccl_make_comm(r) : NULL;
}

void kit_nccl_destroy_kept(struct kit_nccl_rank *r, void *kept) {
  kit_barrier(r->self);
  if (kept) kit_nccl_destroy_comm(r, kept);
}
