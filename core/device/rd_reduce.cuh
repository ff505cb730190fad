/* SPDX-License-Identifier: Apache-2.0
 *
 * reduceCopy: what rt_work.h describes, done by a range of threads. Elements go
 * through registers in packs of 16 bytes, each pack by one thread, so that a
 * destination may be a source.
 *
 * Where all pointers agree modulo 16, a head of less than 16 bytes goes by
 * bytes, and all that follows by accesses of 16. Where they agree in fewer
 * bits, or no whole number of elements leads to a boundary, a pack is moved by
 * the widest accesses that are aligned for all of them, down to single bytes.
 *
 * Loading and storing are the same for all types and operators. What they compute is one
 * function, called pack by pack with all in registers. So a kernel is small, and compiled in
 * seconds; the price, by counting instructions and not yet measured, is less than the time in which
 * the memory of a channel delivers a pack.
 */
#ifndef RD_REDUCE_CUH
#define RD_REDUCE_CUH

#include <string.h>

#include "core/device/rd_fence.cuh"
#include "core/kernel/rt_element.h"
#include "core/kernel/rt_work.h"

#define RD_PACK 16u /* bytes */
#define RD_UNROLL 4 /* packs that a thread has in flight */

/* ---- one type's operations under common names ---- */

template <int size> struct rd_storage;
template <> struct rd_storage<1> { typedef uint8_t bits; };
template <> struct rd_storage<2> { typedef uint16_t bits; };
template <> struct rd_storage<4> { typedef uint32_t bits; };
template <> struct rd_storage<8> { typedef uint64_t bits; };

template <int type> struct rd_element;
#define RD_ELEMENT_(T, value, size, text)                                                            \
  template <> struct rd_element<RT_##T> {                                                            \
    typedef rd_storage<size>::bits bits;                                                             \
    RD_FN bits sum(bits a, bits b) { return rt_sum_##T(a, b); }                                      \
    RD_FN bits prod(bits a, bits b) { return rt_prod_##T(a, b); }                                    \
    RD_FN bits max(bits a, bits b) { return rt_max_##T(a, b); }                                      \
    RD_FN bits min(bits a, bits b) { return rt_min_##T(a, b); }                                      \
    RD_FN bits pre(bits a, const union rt_scalar *arg) { return rt_scale_##T(a, arg); }              \
    RD_FN bits post(bits a, uint32_t divisor, uint32_t reciprocal) {                                 \
      (void)divisor, (void)reciprocal;                                                               \
      return RT_BY_KIND_##T(rt_div_##T(a, divisor, reciprocal), a);                                  \
    }                                                                                                \
  };
RT_TYPE_LIST(RD_ELEMENT_)
#undef RD_ELEMENT_

/* ---- packs ---- */

struct alignas(16) rd_pack {
  uint64_t word[2];
};

template <typename U> RD_FN U rd_pack_get(const struct rd_pack &p, unsigned i) {
  U u;
  memcpy(&u, reinterpret_cast<const char *>(&p) + i * sizeof u, sizeof u);
  return u;
}

template <typename U> RD_FN void rd_pack_set(struct rd_pack &p, unsigned i, U u) {
  memcpy(reinterpret_cast<char *>(&p) + i * sizeof u, &u, sizeof u);
}

template <typename U> RD_FN void rd_pack_gather(struct rd_pack &p, const char *from) {
#pragma unroll
  for (unsigned i = 0; i < RD_PACK / sizeof(U); i++) rd_pack_set<U>(p, i, reinterpret_cast<const U *>(from)[i]);
}

template <typename U> RD_FN void rd_pack_scatter(const struct rd_pack &p, char *to) {
#pragma unroll
  for (unsigned i = 0; i < RD_PACK / sizeof(U); i++) reinterpret_cast<U *>(to)[i] = rd_pack_get<U>(p, i);
}

/* Where a thread's next packs lie: the first `at` bytes behind each pointer, the others `stride` further each. */
struct rd_span {
  uint64_t at, stride;
  unsigned width; /* of an access, and a power of two */
  unsigned bytes; /* of each pack that exist: all 16, but for a head and a tail */
};

RD_FN void rd_pack_load(struct rd_pack &p, const char *from, const struct rd_span &s) {
  if (s.bytes < RD_PACK) {
    p.word[0] = p.word[1] = 0;
#pragma unroll
    for (unsigned i = 0; i < RD_PACK; i++)
      if (i < s.bytes) p.word[i / 8] |= (uint64_t)(uint8_t)from[i] << i % 8 * 8;
    return;
  }
  switch (s.width) {
    case 16: {
      const ulonglong2 v = *reinterpret_cast<const ulonglong2 *>(from);
      p.word[0] = v.x;
      p.word[1] = v.y;
      break;
    }
    case 8: rd_pack_gather<uint64_t>(p, from); break;
    case 4: rd_pack_gather<uint32_t>(p, from); break;
    case 2: rd_pack_gather<uint16_t>(p, from); break;
    default: rd_pack_gather<uint8_t>(p, from); break;
  }
}

RD_FN void rd_pack_store(const struct rd_pack &p, char *to, const struct rd_span &s) {
  if (s.bytes < RD_PACK) {
#pragma unroll
    for (unsigned i = 0; i < RD_PACK; i++)
      if (i < s.bytes) to[i] = (char)(uint8_t)(p.word[i / 8] >> i % 8 * 8);
    return;
  }
  switch (s.width) {
    case 16: {
      ulonglong2 v;
      v.x = p.word[0];
      v.y = p.word[1];
      *reinterpret_cast<ulonglong2 *>(to) = v;
      break;
    }
    case 8: rd_pack_scatter<uint64_t>(p, to); break;
    case 4: rd_pack_scatter<uint32_t>(p, to); break;
    case 2: rd_pack_scatter<uint16_t>(p, to); break;
    default: rd_pack_scatter<uint8_t>(p, to); break;
  }
}

/* ---- the operations on a pack. Elements that it lacks, at an end, are zeros, and nobody stores them ---- */

template <typename U> RD_FN U rd_word_get(uint64_t word, unsigned i) { return (U)(word >> 8 * sizeof(U) * i); }

template <typename U> RD_FN uint64_t rd_word_put(unsigned i, U u) { return (uint64_t)u << 8 * sizeof(U) * i; }

/* Each element of a word becomes f(element, that of the other word). */
template <typename U, typename F> RD_FN uint64_t rd_word_map(uint64_t a, uint64_t b, const F &f) {
  uint64_t word = 0;
#pragma unroll
  for (unsigned i = 0; i < sizeof word / sizeof(U); i++)
    word |= rd_word_put<U>(i, f(rd_word_get<U>(a, i), rd_word_get<U>(b, i)));
  return word;
}

#define RD_PRE 1u    /* what is done, in this order: the pre-operation to the first pack */
#define RD_REDUCE 2u /* the operation to both */
#define RD_POST 4u   /* the post-operation to the result */
#define RD_HALF 8u   /* only the first word of the packs is there */

template <int type>
RD_FN uint64_t rd_word_compute(int op, unsigned what, const union rt_scalar &arg, uint64_t a, uint64_t b) {
  typedef rd_element<type> E;
  typedef typename E::bits U;
  if (what & RD_PRE) a = rd_word_map<U>(a, b, [&arg](U x, U) { return E::pre(x, &arg); });
  if (what & RD_REDUCE) {
    switch (op) {
      case RT_PROD: a = rd_word_map<U>(a, b, [](U x, U y) { return E::prod(x, y); }); break;
      case RT_MAX: a = rd_word_map<U>(a, b, [](U x, U y) { return E::max(x, y); }); break;
      case RT_MIN: a = rd_word_map<U>(a, b, [](U x, U y) { return E::min(x, y); }); break;
      default: a = rd_word_map<U>(a, b, [](U x, U y) { return E::sum(x, y); }); break;
    }
  }
  if (rt_type_is_integer(type) && (what & RD_POST)) {
    const uint32_t divisor = arg.divisor, reciprocal = rt_reciprocal(divisor);
    a = rd_word_map<U>(a, b, [divisor, reciprocal](U x, U) { return E::post(x, divisor, reciprocal); });
  }
  return a;
}

/* All of it by value: it stays in registers. */
RD_CALL struct rd_pack rd_pack_compute(int type, int op, unsigned what, union rt_scalar arg, struct rd_pack a,
                                       struct rd_pack b) {
  switch (type) {
#define RD_CASE_(T, value, size, text)                                                               \
    case RT_##T:                                                                                     \
      a.word[0] = rd_word_compute<RT_##T>(op, what, arg, a.word[0], b.word[0]);                      \
      if (!(what & RD_HALF)) a.word[1] = rd_word_compute<RT_##T>(op, what, arg, a.word[1], b.word[1]); \
      break;
    RT_TYPE_LIST(RD_CASE_)
#undef RD_CASE_
    default: break;
  }
  return a;
}

/* ---- reduceCopy ---- */

template <int unroll>
RD_FN void rd_packs_compute(const struct rt_work &w, unsigned what, struct rd_pack *a, const struct rd_pack *b) {
  if (what == 0) return;
#pragma unroll
  for (int u = 0; u < unroll; u++) a[u] = rd_pack_compute(w.type, w.op, what, w.scalar, a[u], b[u]);
}

/* All sources' packs of a span into all destinations. */
template <int unroll> RD_FN void rd_combine_span(const struct rt_work &w, const struct rd_span &s) {
  const int npre = rt_work_npre(&w);
  const unsigned post = rt_work_post(&w) ? RD_POST : 0;
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
RD_FN unsigned rd_common_width(const struct rt_work &w, uint64_t at, unsigned esize, unsigned *head) {
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
RD_CALL void rd_reduce_copy(const struct rt_work &w, uint64_t first, uint64_t count, uint32_t thread,
                            uint32_t nthreads) {
  const uint64_t size = rt_type_size(w.type), bytes = count * size, step = (uint64_t)nthreads * RD_PACK;
  const unsigned esize = rt_work_is_copy(&w) ? 1 : (unsigned)size;
  const uint64_t at = first * size;
  unsigned head;
  struct rd_span s;
  s.stride = step;
  s.width = rd_common_width(w, at, esize, &head);
  if (head > bytes) head = (unsigned)bytes;
  const uint64_t body = at + head, packs = (bytes - head) / RD_PACK;
  const unsigned tail = (unsigned)((bytes - head) % RD_PACK);
  uint64_t i = thread;
  if (s.width == RD_PACK) {
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

RD_FN void rd_reduce_copy_block(const struct rt_work &w) {
  uint64_t first;
  const uint64_t n = rd_part(w.count, (unsigned)rt_type_size(w.type), blockIdx.x, gridDim.x, &first);
  rd_reduce_copy(w, first, n, threadIdx.x, blockDim.x);
}

/* Is it one that the kernel can do? Asked before a launch. */
static inline bool rd_work_is_valid(const struct rt_work *w) {
  return w->nsrc >= 1 && w->nsrc <= RT_WORK_MAX && w->ndst >= 1 && w->ndst <= RT_WORK_MAX && w->op >= 0 &&
         w->op < RT_OP_COUNT && rt_type_size(w->type) != 0;
}

#endif
