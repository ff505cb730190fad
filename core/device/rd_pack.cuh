/* SPDX-License-Identifier: Apache-2.0
 *
 * A pack: 16 bytes of elements in a thread's registers. Loading and storing it, by accesses as wide as its address
 * allows, and computing with it. Elements that it lacks, at an end, are zeros, and are never stored.
 *
 * rd_pack_compute is the one place with all types and operations, a function that is called pack by pack: for ends,
 * lines, odd addresses and what else rd_bulk.cuh has no loop for.
 */
#ifndef RD_PACK_CUH
#define RD_PACK_CUH

#include "core/device/rd_words.cuh"

#define RD_PACK 16u /* bytes */

struct alignas(16) rd_pack {
  uint64_t word[2];
};

/* At a multiple of 16. All that is moved lies in global memory, a GPU's own or mapped; a compiler that does
 * not know that tests each access. Volatile accesses stay in the order of the source: loads that shall be in flight
 * together stand together. */
RD_FN void rd_words_load(uint32_t (&w)[4], const char *from) {
#ifdef __CUDACC__
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "l"(__cvta_generic_to_global(from))
               : "memory");
#else
  memcpy(w, __builtin_assume_aligned(from, RD_PACK), sizeof w);
#endif
}

RD_FN void rd_words_load(uint64_t (&w)[2], const char *from) {
#ifdef __CUDACC__
  asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(w[0]), "=l"(w[1])
               : "l"(__cvta_generic_to_global(from))
               : "memory");
#else
  memcpy(w, __builtin_assume_aligned(from, RD_PACK), sizeof w);
#endif
}

RD_FN void rd_words_store(char *to, const uint32_t (&w)[4]) {
#ifdef __CUDACC__
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
               : "memory");
#else
  memcpy(__builtin_assume_aligned(to, RD_PACK), w, sizeof w);
#endif
}

RD_FN void rd_words_store(char *to, const uint64_t (&w)[2]) {
#ifdef __CUDACC__
  asm volatile("st.global.v2.u64 [%0], {%1, %2};"
               :
               : "l"(__cvta_generic_to_global(to)), "l"(w[0]), "l"(w[1])
               : "memory");
#else
  memcpy(__builtin_assume_aligned(to, RD_PACK), w, sizeof w);
#endif
}

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
    case 16: rd_words_load(p.word, from); break;
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
    case 16: rd_words_store(to, p.word); break;
    case 8: rd_pack_scatter<uint64_t>(p, to); break;
    case 4: rd_pack_scatter<uint32_t>(p, to); break;
    case 2: rd_pack_scatter<uint16_t>(p, to); break;
    default: rd_pack_scatter<uint8_t>(p, to); break;
  }
}

/* ---- computing ---- */

#define RD_PRE 1u    /* what is done, in this order: the pre-operation to the first pack */
#define RD_REDUCE 2u /* the operation to both */
#define RD_POST 4u   /* the post-operation to the result */
#define RD_HALF 8u   /* only the first word of the packs is there */

template <int type>
RD_FN typename rd_words<type>::word rd_word_compute(int op, unsigned what, const union rt_scalar &arg,
                                                    typename rd_words<type>::word a, typename rd_words<type>::word b) {
  typedef rd_words<type> W;
  if (what & RD_PRE) a = W::pre(a, arg);
  if (what & RD_REDUCE) {
    switch (op) {
      case RT_PROD: a = W::prod(a, b); break;
      case RT_MAX: a = W::max(a, b); break;
      case RT_MIN: a = W::min(a, b); break;
      default: a = W::sum(a, b); break;
    }
  }
  if (what & RD_POST) a = W::post(a, arg.divisor);
  return a;
}

template <int type>
RD_FN uint64_t rd_half_compute(int op, unsigned what, const union rt_scalar &arg, uint64_t a, uint64_t b) {
  if (sizeof(typename rd_words<type>::word) == 8) return rd_word_compute<type>(op, what, arg, a, b);
  const uint32_t low = (uint32_t)rd_word_compute<type>(op, what, arg, (uint32_t)a, (uint32_t)b);
  return (uint64_t)rd_word_compute<type>(op, what, arg, (uint32_t)(a >> 32), (uint32_t)(b >> 32)) << 32 | low;
}

/* All of it by value: it stays in registers. */
RD_CALL struct rd_pack rd_pack_compute(int type, int op, unsigned what, union rt_scalar arg, struct rd_pack a,
                                       struct rd_pack b) {
  switch (type) {
#define RD_CASE_(T, value, size, text)                                                               \
    case RT_##T:                                                                                     \
      a.word[0] = rd_half_compute<RT_##T>(op, what, arg, a.word[0], b.word[0]);                      \
      if (!(what & RD_HALF)) a.word[1] = rd_half_compute<RT_##T>(op, what, arg, a.word[1], b.word[1]); \
      break;
    RT_TYPE_LIST(RD_CASE_)
#undef RD_CASE_
    default: break;
  }
  return a;
}

#endif
