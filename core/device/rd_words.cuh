/* SPDX-License-Identifier: Apache-2.0
 *
 * rt_element.h's operations on words, all elements of a word at once. A word is a register of 4 bytes, or of 8 for
 * the types that have no more in 4 than a part:
 *
 *   rd_words<type>::word
 *   rd_words<type>::sum prod max min   (a, b)
 *   rd_words<type>::pre                (a, scalar)
 *   rd_words<type>::post               (a, divisor): integers; others are left as they are
 *
 * One element after the other, unless something better is here: bytes are added within a word, floats by the
 * GPU's own arithmetic (rd_native.cuh). The bits are the same.
 */
#ifndef RD_WORDS_CUH
#define RD_WORDS_CUH

#include <string.h>

#include "core/device/rd_native.cuh"
#include "core/host/rt_element.h"
#include "core/host/rt_reduce_copy.h"

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

/* ---- element after element ---- */

/* Each element U of a word W becomes f(element, that of the other word). */
template <typename U, typename W, typename F> RD_FN W rd_word_map(W a, W b, const F &f) {
  W word = 0;
#pragma unroll
  for (unsigned i = 0; i < sizeof(W); i += sizeof(U)) word |= (W)f((U)(a >> 8 * i), (U)(b >> 8 * i)) << 8 * i;
  return word;
}

template <int type> struct rd_words_mapped {
  typedef rd_element<type> E;
  typedef typename E::bits U;
  typedef typename rd_storage<sizeof(U) == 8 ? 8 : 4>::bits word;
  RD_FN word sum(word a, word b) {
    return rd_word_map<U>(a, b, [](U x, U y) { return E::sum(x, y); });
  }
  RD_FN word prod(word a, word b) {
    return rd_word_map<U>(a, b, [](U x, U y) { return E::prod(x, y); });
  }
  RD_FN word max(word a, word b) {
    return rd_word_map<U>(a, b, [](U x, U y) { return E::max(x, y); });
  }
  RD_FN word min(word a, word b) {
    return rd_word_map<U>(a, b, [](U x, U y) { return E::min(x, y); });
  }
  RD_FN word pre(word a, const union rt_scalar &arg) {
    return rd_word_map<U>(a, a, [&arg](U x, U) { return E::pre(x, &arg); });
  }
  RD_FN word post(word a, uint32_t divisor) {
    if (!rt_type_is_integer(type)) return a;
    const uint32_t reciprocal = rt_reciprocal(divisor);
    return rd_word_map<U>(a, a, [divisor, reciprocal](U x, U) { return E::post(x, divisor, reciprocal); });
  }
};

template <int type> struct rd_words : rd_words_mapped<type> {};

/* ---- bytes: the upper bit of each apart, so that no carry leaves its byte ---- */

template <int type> struct rd_words_bytes : rd_words_mapped<type> {
  RD_FN uint32_t sum(uint32_t a, uint32_t b) {
    const uint32_t low = 0x7f7f7f7fu;
    return ((a & low) + (b & low)) ^ ((a ^ b) & ~low);
  }
};
template <> struct rd_words<RT_INT8> : rd_words_bytes<RT_INT8> {};
template <> struct rd_words<RT_UINT8> : rd_words_bytes<RT_UINT8> {};

/* ---- the GPU's arithmetic. Factors are of the type (rt_reduce.h), so they can be taken back there ---- */

#ifdef __CUDACC__
/* A NaN of its single-precision arithmetic is the canonical one already. */
template <> struct rd_words<RT_FLOAT32> : rd_words_mapped<RT_FLOAT32> {
  RD_FN uint32_t sum(uint32_t a, uint32_t b) { return rt_f32_bits(rt_bits_f32(a) + rt_bits_f32(b)); }
  RD_FN uint32_t prod(uint32_t a, uint32_t b) { return rt_f32_bits(rt_bits_f32(a) * rt_bits_f32(b)); }
  RD_FN uint32_t pre(uint32_t a, const union rt_scalar &arg) { return prod(a, rt_f32_bits(arg.f32)); }
};
#endif

#if RD_NATIVE
template <> struct rd_words<RT_FLOAT16> : rd_words_mapped<RT_FLOAT16> {
  RD_FN uint32_t sum(uint32_t a, uint32_t b) { return rd_add_f16x2(a, b); }
  RD_FN uint32_t prod(uint32_t a, uint32_t b) { return rd_mul_f16x2(a, b); }
  RD_FN uint32_t max(uint32_t a, uint32_t b) { return rd_max_f16x2(a, b); }
  RD_FN uint32_t min(uint32_t a, uint32_t b) { return rd_min_f16x2(a, b); }
  RD_FN uint32_t pre(uint32_t a, const union rt_scalar &arg) { return prod(a, rt_f32_to_f16(arg.f32) * 0x10001u); }
};

/* There is no add of bf16 before compute capability 9.0, but a fused one, which is no slower: a * 1 + b, and for a
 * product a * b - 0, which keeps the sign of a zero. */
template <> struct rd_words<RT_BFLOAT16> : rd_words_mapped<RT_BFLOAT16> {
  RD_FN uint32_t sum(uint32_t a, uint32_t b) { return rd_fma_bf16x2(a, 0x3f803f80u, b); }
  RD_FN uint32_t prod(uint32_t a, uint32_t b) { return rd_fma_bf16x2(a, b, 0x80008000u); }
  RD_FN uint32_t max(uint32_t a, uint32_t b) { return rd_max_bf16x2(a, b); }
  RD_FN uint32_t min(uint32_t a, uint32_t b) { return rd_min_bf16x2(a, b); }
  RD_FN uint32_t pre(uint32_t a, const union rt_scalar &arg) { return prod(a, rt_f32_to_bf16(arg.f32) * 0x10001u); }
};
#endif

#if RD_NATIVE_FP8
/* In f16, which holds all of both types, and where 11 bits are no less than 2 * 4 + 2. What overflows there
 * saturates here; what is too small there for all its bits (products of e5m2 below 2^-18) is zero here. */
#define RD_FP8_OP_(op, name)                                          \
  RD_FN uint32_t op(uint32_t a, uint32_t b) {                         \
    uint32_t a0, a1, b0, b1;                                          \
    rd_##name##x4_to_f16x4(a, &a0, &a1);                              \
    rd_##name##x4_to_f16x4(b, &b0, &b1);                              \
    return rd_f16x4_to_##name##x4(H::op(a0, b0), H::op(a1, b1));      \
  }
#define RD_FP8_(T, name)                                              \
  template <> struct rd_words<RT_##T> : rd_words_mapped<RT_##T> {     \
    typedef rd_words<RT_FLOAT16> H;                                   \
    RD_FP8_OP_(sum, name)                                             \
    RD_FP8_OP_(prod, name)                                            \
    RD_FP8_OP_(max, name)                                             \
    RD_FP8_OP_(min, name)                                             \
    RD_FN uint32_t pre(uint32_t a, const union rt_scalar &arg) {      \
      uint32_t a0, a1;                                                \
      rd_##name##x4_to_f16x4(a, &a0, &a1);                            \
      return rd_f16x4_to_##name##x4(H::pre(a0, arg), H::pre(a1, arg)); \
    }                                                                 \
  };
RD_FP8_(FLOAT8E4M3, e4m3)
RD_FP8_(FLOAT8E5M2, e5m2)
#undef RD_FP8_
#undef RD_FP8_OP_
#endif

#endif
