/* SPDX-License-Identifier: Apache-2.0
 *
 * Every access of a kernel to a word that another block, another GPU or a thread of the host writes or reads at the
 * same time. All other accesses of a kernel are plain, ordered by barriers and by these. No standalone fence is needed:
 * what publishes is a store with release order, what finds it a load with acquire order, and bar.sync (__syncthreads)
 * carries both over to the other threads of the block, since causality in PTX's memory model goes through it.
 *
 *  accessor               PTX                   emulation              what it orders
 *  rd_load_acquire_sys    ld.acquire.sys.u64    atomic, acquire        later accesses of this thread, and of its block
 *                                                                      after a barrier, stay behind it
 *  rd_store_release_sys   st.release.sys.u64    atomic, release        earlier accesses of this thread, and of its
 *                                                                      block before a barrier, are visible to whoever
 *                                                                      acquires the value
 *  rd_fence_sys         fence.acq_rel.sys     none                   as that, for what rd_store_fenced_sys stores
 *                                                                      behind it: a fence waits until all that was
 *                                                                      written has arrived, so a step has only one
 *  rd_store_fenced_sys  st.relaxed.sys.u64    atomic, release        see there
 *  rd_load_relaxed_sys    ld.relaxed.sys.u32    atomic, relaxed        nothing: for flags that stand for no data
 *  rd_ll_store, _load     {st,ld}.volatile      2 atomics, relaxed     nothing: each 8-byte half has its own flag
 *                         .v2.u64
 *  rd_ll128_store, _poll  {st,ld}.volatile      see there              the 120 bytes of data to the 8 of the flag
 *                         .v2.u64, 8 lanes
 *
 * .sys, since the counters lie in mapped host memory and the other side may be the
 * host. st.release.sys is what a membar.sys and a plain store would be, but leaves
 * the compiler and the hardware the choice. ld.volatile and st.volatile have the
 * meaning of relaxed.sys, and come as vectors, which the model takes as
 * separate accesses of each component: 64 bits are the most that is never torn.
 */
#ifndef RD_FENCE_CUH
#define RD_FENCE_CUH

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define RD_SHARED(type, name) __shared__ type name
#define RD_ABORT_LOOK 1024u /* the flag is in host memory, microseconds away */
#define RD_YIELD() ((void)0)
#define RD_TSAN_RELEASE(buff) ((void)(buff)) /* slots have been read or written; their counter follows */
#define RD_TSAN_ACQUIRE(buff) ((void)(buff))
#elif !defined(RD_SHARED)
#error "without CUDA an executor comes first, which defines these (test/device/emu.cuh)"
#endif

#define RD_FN static __device__ __forceinline__
/* One that stays a function, for what is called from many places or is large. */
#define RD_CALL static __device__ __noinline__

/* ---- counters and flags ---- */

RD_FN uint64_t rd_load_acquire_sys(const uint64_t *p) {
#ifdef __CUDACC__
  uint64_t v;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
#else
  return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}

RD_FN void rd_store_release_sys(uint64_t *p, uint64_t v) {
#ifdef __CUDACC__
  asm volatile("st.release.sys.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
#else
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
#endif
}

RD_FN void rd_fence_sys(void) {
#ifdef __CUDACC__
  asm volatile("fence.acq_rel.sys;" : : : "memory");
#endif
}

RD_FN void rd_store_fenced_sys(uint64_t *p, uint64_t v) {
#ifdef __CUDACC__
  asm volatile("st.relaxed.sys.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
#else
  __atomic_store_n(p, v, __ATOMIC_RELEASE);
#endif
}

RD_FN uint32_t rd_load_relaxed_sys(const uint32_t *p) {
#ifdef __CUDACC__
  uint32_t v;
  asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
#else
  return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}

/* ---- waiting ---- */

/* After each poll of a wait that found nothing. True when the communicator was aborted: the wait must end. */
RD_FN bool rd_wait_aborted(uint32_t *looks, const uint32_t *aborted) {
  RD_YIELD();
  return ++*looks % RD_ABORT_LOOK == 0 && rd_load_relaxed_sys(aborted) != 0;
}

/* ---- LL ----
 * A line is 16 bytes, {data, flag, data, flag} in words of 4, as rt_prims.h has
 * it on the host. Data and flag of a half are one 64-bit access: a half whose flag
 * is right has the right data, with no order between accesses at all. */

RD_FN void rd_ll_store(char *line, uint64_t data, uint32_t flag) {
  const uint64_t half0 = (uint64_t)flag << 32 | (uint32_t)data, half1 = (uint64_t)flag << 32 | data >> 32;
#ifdef __CUDACC__
  asm volatile("st.volatile.v2.u64 [%0], {%1, %2};" : : "l"(line), "l"(half0), "l"(half1) : "memory");
#else
  uint64_t *p = (uint64_t *)(void *)line;
  __atomic_store_n(&p[0], half0, __ATOMIC_RELAXED);
  __atomic_store_n(&p[1], half1, __ATOMIC_RELAXED);
#endif
}

/* True when the line has arrived: then *data is its payload. */
RD_FN bool rd_ll_load(const char *line, uint64_t *data, uint32_t flag) {
  uint64_t half0, half1;
#ifdef __CUDACC__
  asm volatile("ld.volatile.v2.u64 {%0, %1}, [%2];" : "=l"(half0), "=l"(half1) : "l"(line) : "memory");
#else
  const uint64_t *p = (const uint64_t *)(const void *)line;
  half0 = __atomic_load_n(&p[0], __ATOMIC_RELAXED);
  half1 = __atomic_load_n(&p[1], __ATOMIC_RELAXED);
#endif
  *data = half1 << 32 | (uint32_t)half0;
  return (uint32_t)(half0 >> 32) == flag && (uint32_t)(half1 >> 32) == flag;
}

/* ---- LL128 ----
 * A line is 128 bytes at a multiple of 128: 15 words of 8 bytes of data, one of flag. 8
 * neighbouring lanes move 16 bytes each, in one step of their warp; the last one
 * has the flag. PTX's memory model does not guarantee that the data is there when
 * the flag is: the hardware stores and loads a line of one warp step as a whole,
 * within one GPU and over NVLink. Over PCIe it may not, so the
 * choice of the protocol leaves LL128 out there. The emulation does in two steps what the
 * hardware does in one: the flag is stored after the data, and the data loaded
 * after the flag. */

#define RD_LL128_LANES 8u

struct rd_ll128_lane {
  unsigned lane; /* 0..7 */
  unsigned mask; /* of the 8 in their warp */
};

RD_FN struct rd_ll128_lane rd_ll128_lane_of(unsigned thread) {
  struct rd_ll128_lane l;
  l.lane = thread % RD_LL128_LANES;
  l.mask = 0xffu << (thread % 32 - l.lane);
  return l;
}

/* This lane's 16 bytes of the line; word1 of the last lane is the flag. */
RD_FN void rd_ll128_store(char *line, struct rd_ll128_lane l, uint64_t word0, uint64_t word1) {
  char *own = line + 16 * l.lane;
#ifdef __CUDACC__
  __syncwarp(l.mask); /* one step of the warp for all of them */
  asm volatile("st.volatile.v2.u64 [%0], {%1, %2};" : : "l"(own), "l"(word0), "l"(word1) : "memory");
#else
  uint64_t *p = (uint64_t *)(void *)own;
  bool has_flag = l.lane == RD_LL128_LANES - 1;
  __atomic_store_n(&p[0], word0, __ATOMIC_RELAXED);
  if (!has_flag) __atomic_store_n(&p[1], word1, __ATOMIC_RELAXED);
  __syncwarp(l.mask);
  if (has_flag) __atomic_store_n(&p[1], word1, __ATOMIC_RELEASE);
#endif
}

#ifdef __CUDACC__
RD_FN void rd_ll128_load(const char *line, struct rd_ll128_lane l, uint64_t *word0, uint64_t *word1) {
  asm volatile("ld.volatile.v2.u64 {%0, %1}, [%2];"
               : "=l"(*word0), "=l"(*word1)
               : "l"(line + 16 * l.lane)
               : "memory");
}

RD_FN bool rd_ll128_came(struct rd_ll128_lane l, uint64_t flag, uint64_t word1) {
  return __all_sync(l.mask, l.lane != RD_LL128_LANES - 1 || word1 == flag);
}
#endif

/* All 8 lanes get the same answer: has the line arrived? Then the words are this lane's. */
RD_FN bool rd_ll128_poll(const char *line, struct rd_ll128_lane l, uint64_t flag, uint64_t *word0, uint64_t *word1) {
#ifdef __CUDACC__
  __syncwarp(l.mask);
  rd_ll128_load(line, l, word0, word1);
  return rd_ll128_came(l, flag, *word1);
#else
  const uint64_t *p = (const uint64_t *)(const void *)(line + 16 * l.lane);
  bool has_flag = l.lane == RD_LL128_LANES - 1;
  bool there = !has_flag || __atomic_load_n(&p[1], __ATOMIC_ACQUIRE) == flag;
  if (!__all_sync(l.mask, there)) return false;
  *word0 = __atomic_load_n(&p[0], __ATOMIC_RELAXED);
  *word1 = __atomic_load_n(&p[1], __ATOMIC_RELAXED);
  return true;
#endif
}

/* A look at the first n of `most` lines, all loads before the first answer. pack[u] is this lane's of line u, if that
 * came. */
template <int most, typename P>
RD_FN void rd_ll128_look(const char *first, uint64_t apart, unsigned n, struct rd_ll128_lane l, uint64_t flag,
                         P (&pack)[most], bool (&came)[most]) {
#ifdef __CUDACC__
  __syncwarp(l.mask);
#pragma unroll
  for (unsigned u = 0; u < most; u++)
    if (u < n) rd_ll128_load(first + u * apart, l, &pack[u].word[0], &pack[u].word[1]);
#pragma unroll
  for (unsigned u = 0; u < most; u++)
    if (u < n) came[u] = rd_ll128_came(l, flag, pack[u].word[1]);
#else
  for (unsigned u = 0; u < n; u++)
    came[u] = rd_ll128_poll(first + u * apart, l, flag, &pack[u].word[0], &pack[u].word[1]);
#endif
}

#endif
