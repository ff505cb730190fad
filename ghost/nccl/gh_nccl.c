/* SPDX-License-Identifier: Apache-2.0
 * NCCL's kernels: which there are, what a launch says, and the blocks that do it. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ghost/driver/gh_driver.h"
#include "ghost/driver/gh_kernel.h"
#include "ghost/nccl/gh_coll.h"

#define MAX_WORKS 512 /* of a batch with all that extends it */

enum work_type { WORK_P2P, WORK_COLL };
enum storage { BEHIND_ARGUMENTS, RING, OF_GRAPH }; /* where works lie */

static bool is_collective(const char *name) { return strstr(name, "ncclDevKernel_") != NULL; }

/* NCCL asks for all of its kernels before it launches any, so an unknown one fails when it is launched. */
int gh_kernel_parameters(const char *name, const size_t **sizes) {
  (void)name;
  if (sizes) *sizes = NULL;
  return 0;
}

/* ---- what a launch says ---- */

static bool check_comm(const struct gh_layout *l, const struct gh_launch *launch) {
  char *args = launch->arguments, *comm = GH_FIELD(char *, args, GH_ARGS_COMM);
  size_t size = l->channels + (size_t)l->max_channels * l->channel_size;
  if (!gh_reachable(comm, size, NULL)) return false;
  int rank = GH_FIELD(int, comm, GH_COMM_RANK), n = GH_FIELD(int, comm, GH_COMM_NRANKS);
  bool good = n > 0 && rank >= 0 && rank < n && GH_FIELD(char *, comm, l->comm_channels) == comm + l->channels;
  for (int p = 0; p < GH_PROTOS; p++) good = good && GH_FIELD(int, comm, GH_COMM_BUFF_SIZES + 4 * p) > 0;
  return good;
}

int gh_kernel_check(const struct gh_launch *launch) {
  if (!is_collective(launch->name)) {
    fprintf(stderr, "ghost: there is no code for the kernel %s\n", launch->name);
    return NOT_SUPPORTED;
  }
  const struct gh_layout *l = gh_nccl();
  if (!l) return NOT_SUPPORTED;
  bool good = launch->size >= GH_ARGS_SIZE + launch->blocks * GH_BATCH_SIZE &&
              __builtin_popcountll(GH_FIELD(uint64_t, launch->arguments, GH_ARGS_CHANNELS)) == (int)launch->blocks &&
              check_comm(l, launch);
  if (good) return OK;
  fprintf(stderr, "ghost: the arguments of %s are not what NCCL %d has\n", launch->name, gh_nccl_version());
  return INVALID_VALUE;
}

/* ---- blocks ---- */

struct batch {
  enum work_type type;
  unsigned function;
  int next;          /* -1: it is the last */
  uint32_t consumed; /* where its works end in NCCL's ring */
  int n;
  char *works[MAX_WORKS], *storage;
};

/* The structs of one batch, from behind the arguments or from a ring of NCCL's. They are copied: the ring goes on. */
static bool read_batch(struct gh_block *b, size_t limit, int index, struct batch *batch) {
  const struct gh_layout *l = b->layout;
  uint8_t storage = GH_FIELD(uint8_t, b->args, GH_ARGS_STORAGE);
  uint32_t mask = GH_FIELD(uint32_t, b->args, GH_ARGS_MASK);
  const char *buffer = storage == BEHIND_ARGUMENTS ? b->args : GH_FIELD(const char *, b->args, GH_ARGS_BUFFER);
  batch->n = 0;
  for (bool extends = true; extends;) {
    size_t at = GH_ARGS_SIZE + (size_t)index * GH_BATCH_SIZE;
    if (at + GH_BATCH_SIZE > limit) return gh_block_fail(b, "batch %d lies outside of the arguments", index);
    uint32_t flags = GH_FIELD(uint32_t, b->args, at + GH_BATCH_FLAGS),
             offset = GH_FIELD(uint32_t, b->args, at + GH_BATCH_OFFSET);
    uint64_t bits = GH_FIELD(uint64_t, b->args, at + GH_BATCH_BITS);
    unsigned type = flags >> 15 & 3;
    if (type > WORK_COLL) return gh_block_fail(b, "work of type %u, which ghost has no kernels for", type);
    size_t size = type == WORK_P2P ? GH_P2P_SIZE : l->coll_size;
    batch->type = (enum work_type)type;
    batch->function = flags >> 17;
    batch->consumed = offset + (bits ? 64 - (uint32_t)__builtin_clzll(bits) : 0) * (uint32_t)size;
    for (unsigned i = 0; i < 64; i++) {
      if (!(bits >> i & 1)) continue;
      if (batch->n == MAX_WORKS) return gh_block_fail(b, "more than %d works in one batch", MAX_WORKS);
      char *to = batch->works[batch->n] = batch->storage + (size_t)batch->n * l->coll_size;
      batch->n++;
      for (size_t k = 0; k < size; k += 16) {
        size_t from = offset + i * size + k;
        if (storage != BEHIND_ARGUMENTS) from &= mask;
        else if (from + 16 > limit) return gh_block_fail(b, "work lies outside of the arguments");
        memcpy(to + k, buffer + from, 16);
      }
    }
    int jump = flags & 0x3fff;
    extends = flags >> 14 & 1;
    batch->next = jump || extends ? index + jump : -1;
    index += jump;
  }
  return true;
}

/* Where NCCL's profiler, since 2.26, reads that a work began or ended, and since 2.27 when; `number`: of the channel's
 * works. */
static void profile_work(const struct gh_block *b, size_t table, uint64_t number) {
  struct event { uint64_t number, time; };
  struct timespec now;
  if (b->layout->profiler == GH_PROFILER_COUNTS) {
    uint64_t *counts = GH_FIELD(uint64_t *, b->comm, table);
    if (counts) __atomic_store_n(&counts[b->id], number, __ATOMIC_RELEASE);
    return;
  }
  struct event *events = GH_FIELD(struct event *, b->comm, table);
  if (!events) return;
  clock_gettime(CLOCK_REALTIME, &now);
  events += (size_t)b->id * GH_EVENTS + number % GH_EVENTS;
  events->time = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  __atomic_store_n(&events->number, number, __ATOMIC_RELEASE);
}

static bool is_profiled(const char *work, enum work_type type) {
  return type == WORK_P2P ? GH_FIELD(uint8_t, work, GH_P2P_FLAGS) >> 6 & 1
                          : GH_FIELD(uint32_t, work, GH_COLL_FLAGS) >> 31;
}

static void profile_batch(const struct gh_block *b, const struct batch *batch, size_t table) {
  if (b->layout->profiler == GH_PROFILER_NONE) return;
  uint64_t before = GH_FIELD(uint64_t, b->channel, b->layout->channel_counter);
  for (int i = 0; i < batch->n; i++)
    if (is_profiled(batch->works[i], batch->type)) profile_work(b, table, before + 1 + (uint64_t)i);
}

static bool run_batch(struct gh_block *b, const struct batch *batch) {
  struct gh_function f;
  if (batch->type == WORK_P2P) return gh_p2p_run(b, batch->works, batch->n);
  if (!gh_function_find(batch->function, &f))
    return gh_block_fail(b, "function %u: this NCCL was built without what was asked for (ONLY_FUNCS)",
                         batch->function);
  bool good = true;
  for (int i = 0; good && i < batch->n; i++) good = gh_coll_run(b, &f, batch->works[i]);
  return good;
}

struct block_run {
  struct gh_block block;
  size_t limit;
  int index;
};

static bool run_block(void *arg) {
  struct block_run *r = arg;
  struct gh_block *b = &r->block;
  const struct gh_layout *l = b->layout;
  bool from_ring = GH_FIELD(uint8_t, b->args, GH_ARGS_STORAGE) == RING;
  struct batch *batch = calloc(1, sizeof *batch);
  bool good = batch && (batch->storage = calloc(MAX_WORKS, l->coll_size));
  if (!good) gh_block_fail(b, "out of memory");
  for (int index = r->index; good && index >= 0; index = batch->next) {
    good = read_batch(b, r->limit, index, batch);
    if (!good) break;
    if (l->comm_consumed && from_ring)
      __atomic_store_n(&GH_FIELD(uint32_t *, b->comm, l->comm_consumed)[b->id], batch->consumed, __ATOMIC_RELEASE);
    profile_batch(b, batch, l->comm_started);
    good = run_batch(b, batch);
    profile_batch(b, batch, l->comm_completed);
    if (l->profiler != GH_PROFILER_NONE) GH_FIELD(uint64_t, b->channel, l->channel_counter) += (uint64_t)batch->n;
  }
  if (batch) free(batch->storage);
  free(batch);
  return good;
}

int gh_kernel_run(const struct gh_launch *launch) {
  const struct gh_layout *l = gh_nccl();
  char *args = launch->arguments, *comm = GH_FIELD(char *, args, GH_ARGS_COMM);
  uint64_t channels = GH_FIELD(uint64_t, args, GH_ARGS_CHANNELS);
  struct block_run runs[GH_MAX_CHANNELS];
  void *list[GH_MAX_CHANNELS];
  int n = 0, error = OK;
  for (int id = 0; id < l->max_channels; id++) {
    if (!(channels >> id & 1)) continue;
    runs[n] = (struct block_run){.limit = launch->size, .index = n};
    runs[n].block = (struct gh_block){.layout = l,
                                      .args = args,
                                      .comm = comm,
                                      .id = id,
                                      .error = &error,
                                      .context = launch->context,
                                      .channel = comm + l->channels + (size_t)id * l->channel_size,
                                      .rank = GH_FIELD(int, comm, GH_COMM_RANK),
                                      .nranks = GH_FIELD(int, comm, GH_COMM_NRANKS)};
    list[n] = &runs[n];
    n++;
  }
  gh_threads_run(&runs[0].block, run_block, list, n);
  return error;
}
