/* SPDX-License-Identifier: Apache-2.0
 *
 * reduceCopy: what rt_reduce_copy.h describes, done by a range of threads. Elements go
 * through registers in packs of 16 bytes, each pack by one thread, so that a
 * destination may be a source.
 *
 * Where all pointers agree modulo 16, a head of less than 16 bytes goes by
 * bytes, and all that follows by accesses of 16. Where they agree in fewer
 * bits, or no whole number of elements leads to a boundary, a pack is moved by
 * the widest accesses that are aligned for all of them, down to single bytes.
 *
 * Whole packs of the frequent works go through rd_bulk.cuh's loops. All else, and the ends, goes from pack
 * to pack: loading and storing are the same for all types and operators there, what they compute is one function,
 * called with all in registers. So a kernel is small, and compiled in seconds.
 */
#ifndef RD_REDUCE_CUH
#define RD_REDUCE_CUH

#include "core/device/rd_bulk.cuh"

#define RD_UNROLL 4 /* packs that a thread has in flight */

/* ---- reduceCopy ---- */

template <int unroll>
RD_FN void rd_packs_compute(const struct rt_reduce_copy &w, unsigned what, struct rd_pack *a, const struct rd_pack *b) {
  if (what == 0) return;
#pragma unroll
  for (int u = 0; u < unroll; u++) a[u] = rd_pack_compute(w.type, w.op, what, w.scalar, a[u], b[u]);
}

/* All sources' packs of a span into all destinations. */
template <int unroll> RD_FN void rd_combine_span(const struct rt_reduce_copy &w, const struct rd_span &s) {
  const int npre = rt_reduce_copy_npre(&w);
  const unsigned post = rt_reduce_copy_post(&w) ? RD_POST : 0;
  struct rd_pack acc[unroll] = {}, in[unroll];
#pragma unroll 1
  for (int i = 0; i < w.nsrc; i++) {
#pragma unroll
    for (int u = 0; u < unroll; u++) rd_pack_load(in[u], w.src[i] + s.at + u * s.stride, s);
    if (i < npre) rd_packs_compute<unroll>(w, RD_PRE, in, in);
    if (i == 0) {
#pragma unroll
      for (int u = 0; u < unroll; u++) acc[u] = in[u];
    }
    rd_packs_compute<unroll>(w, (i > 0 ? RD_REDUCE : 0) | (i == w.nsrc - 1 ? post : 0), acc, in);
  }
#pragma unroll 1
  for (int i = 0; i < w.ndst; i++) {
#pragma unroll
    for (int u = 0; u < unroll; u++) rd_pack_store(acc[u], w.dst[i] + s.at + u * s.stride, s);
  }
}

/* The widest access that is aligned for every pointer of w behind `head` bytes from `at` on. */
RD_FN unsigned rd_common_width(const struct rt_reduce_copy &w, uint64_t at, unsigned esize, unsigned *head) {
  const uintptr_t first = (uintptr_t)w.src[0] + at;
  uintptr_t differ = RD_PACK;
  for (int i = 1; i < w.nsrc; i++) differ |= ((uintptr_t)w.src[i] + at) ^ first;
  for (int i = 0; i < w.ndst; i++) differ |= ((uintptr_t)w.dst[i] + at) ^ first;
  const unsigned width = (unsigned)(differ & (~differ + 1));
  *head = 0;
  if ((first & ((width < esize ? width : esize) - 1)) != 0) /* in the middle of an element, for ever */
    return (unsigned)(first & (~first + 1));
  *head = (unsigned)(~first + 1) & (width - 1);
  return width;
}

/* Elements [first, first + count) of w, by the calling thread as number `thread` of `nthreads`. No barrier inside. */
RD_FN void rd_reduce_copy(const struct rt_reduce_copy &w, uint64_t first, uint64_t count, uint32_t thread,
                            uint32_t nthreads) {
  const uint64_t size = rt_type_size(w.type), bytes = count * size, step = (uint64_t)nthreads * RD_PACK;
  const unsigned esize = rt_reduce_copy_is_copy(&w) ? 1 : (unsigned)size;
  const uint64_t at = first * size;
  unsigned head;
  struct rd_span s;
  s.stride = step;
  s.width = rd_common_width(w, at, esize, &head);
  if (head > bytes) head = (unsigned)bytes;
  const uint64_t body = at + head, packs = (bytes - head) / RD_PACK;
  const unsigned tail = (unsigned)((bytes - head) % RD_PACK);
  const int what = s.width == RD_PACK ? rd_bulk_what(w, nthreads) : -1;
  uint64_t i = thread;
  if (what >= 0) {
    rd_bulk(w, (unsigned)what, body, packs, thread, nthreads);
    i += packs;
  } else if (s.width == RD_PACK) {
    struct rd_span whole;
    whole.stride = step;
    whole.width = whole.bytes = RD_PACK;
    for (; i + (RD_UNROLL - 1) * (uint64_t)nthreads < packs; i += RD_UNROLL * (uint64_t)nthreads) {
      whole.at = body + i * RD_PACK;
      rd_combine_span<RD_UNROLL>(w, whole);
    }
  }
  /* What is left, then the tail and the head as packs with a number of their own. */
  for (; i < packs + 2; i += nthreads) {
    s.at = i <= packs ? body + i * RD_PACK : at;
    s.bytes = i < packs ? RD_PACK : i == packs ? tail : head;
    if (s.bytes > 0) rd_combine_span<1>(w, s);
  }
}

/* ---- a kernel: one block per channel, each with its part of the elements ---- */

/* Part number i of n: whole lines of 128 bytes but for the last, so that all parts are aligned as the first. */
RD_FN uint64_t rd_part(uint64_t count, unsigned esize, unsigned i, unsigned n, uint64_t *first) {
  const uint64_t line = 128 / esize, lines = (count + line - 1) / line, part = (lines + n - 1) / n * line;
  *first = part * i < count ? part * i : count;
  return count - *first < part ? count - *first : part;
}

RD_FN void rd_reduce_copy_block(const struct rt_reduce_copy &w) {
  uint64_t first;
  const uint64_t n = rd_part(w.count, (unsigned)rt_type_size(w.type), blockIdx.x, gridDim.x, &first);
  rd_reduce_copy(w, first, n, threadIdx.x, blockDim.x);
}

/* Is it one that the kernel can do? Asked before a launch. */
static inline bool rd_work_is_valid(const struct rt_reduce_copy *w) {
  return w->nsrc >= 1 && w->nsrc <= RT_REDUCE_COPY_MAX && w->ndst >= 1 && w->ndst <= RT_REDUCE_COPY_MAX && w->op >= 0 &&
         w->op < RT_OP_COUNT && rt_type_size(w->type) != 0;
}

#endif
