/* SPDX-License-Identifier: Apache-2.0
 *
 * A CPU executor: lets a C++ compiler build the device sources (core/device), and runs their
 * kernels, so that they are tested where there is no GPU. What CUDA C++ has built
 * in and these sources use is defined here, and what rd_fence.cuh wants; to be included before them.
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
#ifndef EMU_CUH
#define EMU_CUH

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

#define EMU_WARP 32u
#define EMU_MAX_THREADS 256u /* of a block */
#define EMU_SHARED 4096u     /* bytes of shared memory of a block */

struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};

struct emu_dim {
  unsigned x;
};

/* Threads that meet: each leaves a word, and reads the others'. */
struct emu_meeting {
  pthread_barrier_t barrier;
  unsigned size;
  uint64_t word[EMU_MAX_THREADS];
};

struct emu_block {
  struct emu_meeting all;
  struct emu_meeting warp[EMU_MAX_THREADS / EMU_WARP];
  struct emu_meeting eight[EMU_MAX_THREADS / 8];
  alignas(16) char shared[EMU_SHARED];
};

struct emu_thread {
  emu_dim thread, block, block_dim, grid_dim;
  struct emu_block *own;
  void (*run)(const void *kernel);
  const void *kernel;
  pthread_t handle;
};

/* Of this file's includer: a kernel is launched where it is compiled. */
static __thread struct emu_thread *emu_self;

#define threadIdx (emu_self->thread)
#define blockIdx (emu_self->block)
#define blockDim (emu_self->block_dim)
#define gridDim (emu_self->grid_dim)

/* For the thread sanitizer, which goes by addresses. Ranks of one process have a connection's counters mapped once
 * each, but slots in a GPU's memory only once, so nothing that the sanitizer sees orders what lies in there. The order
 * is annotated at the slots' own address. */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define RD_TSAN_RELEASE(buff) __tsan_release((void *)(uintptr_t)(buff))
#define RD_TSAN_ACQUIRE(buff) __tsan_acquire((void *)(uintptr_t)(buff))
#else
#define RD_TSAN_RELEASE(buff) ((void)(buff))
#define RD_TSAN_ACQUIRE(buff) ((void)(buff))
#endif

#define RD_ABORT_LOOK 16u
#define RD_YIELD() sched_yield() /* the thread that is waited for may want this very core */

/* A variable in shared memory; at most one a kernel. */
#define RD_SHARED(type, name)                                             \
  static_assert(sizeof(type) <= EMU_SHARED, "too much shared memory"); \
  type &name = *reinterpret_cast<type *>(emu_self->own->shared)

__attribute__((noreturn)) static inline void emu_refuse(const char *what) {
  fprintf(stderr, "emu: %s\n", what);
  abort();
}

/* ---- barriers, votes, shuffles ---- */

static inline void emu_wait(struct emu_meeting *m) { pthread_barrier_wait(&m->barrier); }

static inline void __syncthreads(void) { emu_wait(&emu_self->own->all); }

static inline int __syncthreads_or(int predicate) {
  struct emu_meeting *m = &emu_self->own->all;
  uint64_t any = 0;
  m->word[threadIdx.x] = predicate != 0;
  emu_wait(m);
  for (unsigned i = 0; i < m->size; i++) any |= m->word[i];
  emu_wait(m); /* nobody writes the next word while others still read this one */
  return any != 0;
}

/* The threads of the mask, and the lane of the first of them. */
static inline struct emu_meeting *emu_lanes(unsigned mask, unsigned *first) {
  unsigned lane = threadIdx.x % EMU_WARP, eight = lane / 8;
  *first = 0;
  if (mask == ~0u) return &emu_self->own->warp[threadIdx.x / EMU_WARP];
  *first = 8 * eight;
  if (mask != 0xffu << *first) emu_refuse("a mask is a whole warp or 8 lanes of it");
  return &emu_self->own->eight[threadIdx.x / 8];
}

static inline void __syncwarp(unsigned mask = ~0u) {
  unsigned first;
  emu_wait(emu_lanes(mask, &first));
}

static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned first, votes = 0;
  struct emu_meeting *m = emu_lanes(mask, &first);
  m->word[threadIdx.x % EMU_WARP - first] = predicate != 0;
  emu_wait(m);
  for (unsigned i = 0; i < m->size; i++) votes |= (unsigned)m->word[i] << (first + i);
  emu_wait(m);
  return votes;
}

static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

template <typename T> static inline T __shfl_sync(unsigned mask, T value, unsigned lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a word at most");
  unsigned first;
  struct emu_meeting *m = emu_lanes(mask, &first);
  memcpy(&m->word[threadIdx.x % EMU_WARP - first], &value, sizeof value);
  emu_wait(m);
  T got;
  memcpy(&got, &m->word[lane % EMU_WARP - first], sizeof got);
  emu_wait(m);
  return got;
}

/* ---- launching ---- */

static inline void emu_meeting_init(struct emu_meeting *m, unsigned size) {
  m->size = size;
  if (size > 0 && pthread_barrier_init(&m->barrier, NULL, size)) emu_refuse("no barrier");
}

static inline void emu_meeting_destroy(struct emu_meeting *m) {
  if (m->size > 0) pthread_barrier_destroy(&m->barrier);
}

/* Of `threads`, how many are in the group number i of `size`? */
static inline unsigned emu_share(unsigned threads, unsigned i, unsigned size) {
  unsigned from = i * size;
  return from >= threads ? 0 : threads - from < size ? threads - from : size;
}

static inline struct emu_block *emu_block_new(unsigned threads) {
  struct emu_block *b = static_cast<struct emu_block *>(aligned_alloc(64, (sizeof *b + 63) / 64 * 64));
  if (!b) emu_refuse("no memory");
  emu_meeting_init(&b->all, threads);
  for (unsigned i = 0; i < EMU_MAX_THREADS / EMU_WARP; i++)
    emu_meeting_init(&b->warp[i], emu_share(threads, i, EMU_WARP));
  for (unsigned i = 0; i < EMU_MAX_THREADS / 8; i++) emu_meeting_init(&b->eight[i], emu_share(threads, i, 8));
  return b;
}

static inline void emu_block_free(struct emu_block *b) {
  emu_meeting_destroy(&b->all);
  for (unsigned i = 0; i < EMU_MAX_THREADS / EMU_WARP; i++) emu_meeting_destroy(&b->warp[i]);
  for (unsigned i = 0; i < EMU_MAX_THREADS / 8; i++) emu_meeting_destroy(&b->eight[i]);
  free(b);
}

static inline void *emu_thread_main(void *arg) {
  emu_self = static_cast<struct emu_thread *>(arg);
  emu_self->run(emu_self->kernel);
  return NULL;
}

/* Runs `kernel`, a callable without arguments, in a grid; returns when all of it has ended. */
template <typename K> static inline void emu_launch(unsigned blocks, unsigned threads, const K &kernel) {
  if (threads > EMU_MAX_THREADS) emu_refuse("too many threads in a block");
  struct emu_block **block = static_cast<struct emu_block **>(calloc(blocks, sizeof *block));
  struct emu_thread *thread = static_cast<struct emu_thread *>(calloc(blocks * threads, sizeof *thread));
  if (!block || !thread) emu_refuse("no memory");
  for (unsigned b = 0; b < blocks; b++) block[b] = emu_block_new(threads);
  for (unsigned i = 0; i < blocks * threads; i++) {
    struct emu_thread *t = &thread[i];
    t->thread.x = i % threads;
    t->block.x = i / threads;
    t->block_dim.x = threads;
    t->grid_dim.x = blocks;
    t->own = block[t->block.x];
    t->run = [](const void *k) { (*static_cast<const K *>(k))(); };
    t->kernel = &kernel;
    if (pthread_create(&t->handle, NULL, emu_thread_main, t)) emu_refuse("no thread");
  }
  for (unsigned i = 0; i < blocks * threads; i++) pthread_join(thread[i].handle, NULL);
  for (unsigned b = 0; b < blocks; b++) emu_block_free(block[b]);
  free(block);
  free(thread);
}

#endif
