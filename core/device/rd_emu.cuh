/* SPDX-License-Identifier: Apache-2.0
 *
 * A CPU executor: lets a C++ compiler build the device sources, and runs their
 * kernels, so that they are tested where there is no GPU. What CUDA C++ has built
 * in and these sources use is defined here; nothing else is.
 *
 * Every thread of every block is a thread of the system, and all blocks of a
 * launch run at once. Fibers stepped from barrier to barrier would be faster, but
 * would run the threads of a block in one order, always the same: a missing
 * __syncthreads would go unseen. With real threads it is a data race, and the
 * thread sanitizer reports it. The price is the size: tests launch blocks of a
 * few threads, or one or two warps where the kernel needs warps.
 *
 * A barrier is for all threads of the block, or of the warp, or of 8 neighbouring
 * lanes that begin at a multiple of 8; other masks are refused. As on a GPU, a
 * thread that returns while others wait for it is a mistake; here the test hangs.
 * What only hardware promises (the lanes of a warp step together, their stores to
 * one line become visible together) is not promised here: rd_fence.cuh has a
 * counterpart for each place that relies on it.
 */
#ifndef RD_EMU_CUH
#define RD_EMU_CUH

#ifdef __CUDACC__
#error "for compilers that do not know CUDA"
#endif

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __global__ static inline
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline, unused))
#define __grid_constant__

#define RD_EMU_WARP 32u
#define RD_EMU_MAX_THREADS 256u /* of a block */
#define RD_EMU_SHARED 4096u     /* bytes of shared memory of a block */

struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};

struct rd_emu_dim {
  unsigned x;
};

/* Threads that meet: each leaves a word, and reads the others'. */
struct rd_emu_meeting {
  pthread_barrier_t barrier;
  unsigned size;
  uint64_t word[RD_EMU_MAX_THREADS];
};

struct rd_emu_block {
  struct rd_emu_meeting all;
  struct rd_emu_meeting warp[RD_EMU_MAX_THREADS / RD_EMU_WARP];
  struct rd_emu_meeting eight[RD_EMU_MAX_THREADS / 8];
  alignas(16) char shared[RD_EMU_SHARED];
};

struct rd_emu_thread {
  rd_emu_dim thread, block, block_dim, grid_dim;
  struct rd_emu_block *own;
  void (*run)(const void *kernel);
  const void *kernel;
  pthread_t handle;
};

/* Of this file's includer: a kernel is launched where it is compiled. */
static __thread struct rd_emu_thread *rd_emu_self;

#define threadIdx (rd_emu_self->thread)
#define blockIdx (rd_emu_self->block)
#define blockDim (rd_emu_self->block_dim)
#define gridDim (rd_emu_self->grid_dim)

/* A variable in shared memory; at most one a kernel. */
#define RD_SHARED(type, name)                                             \
  static_assert(sizeof(type) <= RD_EMU_SHARED, "too much shared memory"); \
  type &name = *reinterpret_cast<type *>(rd_emu_self->own->shared)

__attribute__((noreturn)) static inline void rd_emu_refuse(const char *what) {
  fprintf(stderr, "rd_emu: %s\n", what);
  abort();
}

/* ---- barriers, votes, shuffles ---- */

static inline void rd_emu_wait(struct rd_emu_meeting *m) { pthread_barrier_wait(&m->barrier); }

static inline void __syncthreads(void) { rd_emu_wait(&rd_emu_self->own->all); }

static inline int __syncthreads_or(int predicate) {
  struct rd_emu_meeting *m = &rd_emu_self->own->all;
  uint64_t any = 0;
  m->word[threadIdx.x] = predicate != 0;
  rd_emu_wait(m);
  for (unsigned i = 0; i < m->size; i++) any |= m->word[i];
  rd_emu_wait(m); /* nobody writes the next word while others still read this one */
  return any != 0;
}

/* The threads of the mask, and the lane of the first of them. */
static inline struct rd_emu_meeting *rd_emu_lanes(unsigned mask, unsigned *first) {
  unsigned lane = threadIdx.x % RD_EMU_WARP, eight = lane / 8;
  *first = 0;
  if (mask == ~0u) return &rd_emu_self->own->warp[threadIdx.x / RD_EMU_WARP];
  *first = 8 * eight;
  if (mask != 0xffu << *first) rd_emu_refuse("a mask is a whole warp or 8 lanes of it");
  return &rd_emu_self->own->eight[threadIdx.x / 8];
}

static inline void __syncwarp(unsigned mask = ~0u) {
  unsigned first;
  rd_emu_wait(rd_emu_lanes(mask, &first));
}

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned first, votes = 0;
  struct rd_emu_meeting *m = rd_emu_lanes(mask, &first);
  m->word[threadIdx.x % RD_EMU_WARP - first] = predicate != 0;
  rd_emu_wait(m);
  for (unsigned i = 0; i < m->size; i++) votes |= (unsigned)m->word[i] << (first + i);
  rd_emu_wait(m);
  return votes;
}

static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

template <typename T> static inline T __shfl_sync(unsigned mask, T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a word at most");
  unsigned first;
  struct rd_emu_meeting *m = rd_emu_lanes(mask, &first);
  memcpy(&m->word[threadIdx.x % RD_EMU_WARP - first], &value, sizeof value);
  rd_emu_wait(m);
  T got;
  memcpy(&got, &m->word[lane % RD_EMU_WARP - first], sizeof got);
  rd_emu_wait(m);
  return got;
}

/* ---- launching ---- */

static inline void rd_emu_meeting_init(struct rd_emu_meeting *m, unsigned size) {
  m->size = size;
  if (size > 0 && pthread_barrier_init(&m->barrier, NULL, size)) rd_emu_refuse("no barrier");
}

static inline void rd_emu_meeting_destroy(struct rd_emu_meeting *m) {
  if (m->size > 0) pthread_barrier_destroy(&m->barrier);
}

/* Of `threads`, how many are in the group number i of `size`? */
static inline unsigned rd_emu_share(unsigned threads, unsigned i, unsigned size) {
  unsigned from = i * size;
  return from >= threads ? 0 : threads - from < size ? threads - from : size;
}

static inline struct rd_emu_block *rd_emu_block_new(unsigned threads) {
  struct rd_emu_block *b = static_cast<struct rd_emu_block *>(aligned_alloc(64, (sizeof *b + 63) / 64 * 64));
  if (!b) rd_emu_refuse("no memory");
  rd_emu_meeting_init(&b->all, threads);
  for (unsigned i = 0; i < RD_EMU_MAX_THREADS / RD_EMU_WARP; i++)
    rd_emu_meeting_init(&b->warp[i], rd_emu_share(threads, i, RD_EMU_WARP));
  for (unsigned i = 0; i < RD_EMU_MAX_THREADS / 8; i++) rd_emu_meeting_init(&b->eight[i], rd_emu_share(threads, i, 8));
  return b;
}

static inline void rd_emu_block_free(struct rd_emu_block *b) {
  rd_emu_meeting_destroy(&b->all);
  for (unsigned i = 0; i < RD_EMU_MAX_THREADS / RD_EMU_WARP; i++) rd_emu_meeting_destroy(&b->warp[i]);
  for (unsigned i = 0; i < RD_EMU_MAX_THREADS / 8; i++) rd_emu_meeting_destroy(&b->eight[i]);
  free(b);
}

static inline void *rd_emu_thread_main(void *arg) {
  rd_emu_self = static_cast<struct rd_emu_thread *>(arg);
  rd_emu_self->run(rd_emu_self->kernel);
  return NULL;
}

/* Runs `kernel`, a callable without arguments, in a grid; returns when all of it has ended. */
template <typename K> static inline void rd_emu_launch(unsigned blocks, unsigned threads, const K &kernel) {
  if (threads > RD_EMU_MAX_THREADS) rd_emu_refuse("too many threads in a block");
  struct rd_emu_block **block = static_cast<struct rd_emu_block **>(calloc(blocks, sizeof *block));
  struct rd_emu_thread *thread = static_cast<struct rd_emu_thread *>(calloc(blocks * threads, sizeof *thread));
  if (!block || !thread) rd_emu_refuse("no memory");
  for (unsigned b = 0; b < blocks; b++) block[b] = rd_emu_block_new(threads);
  for (unsigned i = 0; i < blocks * threads; i++) {
    struct rd_emu_thread *t = &thread[i];
    t->thread.x = i % threads;
    t->block.x = i / threads;
    t->block_dim.x = threads;
    t->grid_dim.x = blocks;
    t->own = block[t->block.x];
    t->run = [](const void *k) { (*static_cast<const K *>(k))(); };
    t->kernel = &kernel;
    if (pthread_create(&t->handle, NULL, rd_emu_thread_main, t)) rd_emu_refuse("no thread");
  }
  for (unsigned i = 0; i < blocks * threads; i++) pthread_join(thread[i].handle, NULL);
  for (unsigned b = 0; b < blocks; b++) rd_emu_block_free(block[b]);
  free(block);
  free(thread);
}

#endif
