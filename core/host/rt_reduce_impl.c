/* SPDX-License-Identifier: Apache-2.0
 *
 * The reduction loops, compiled once per instruction set with RT_SIMD naming
 * it. rt_element.h has one small inline function per type and operation; KERNELS wraps
 * them into loops that compilers vectorise, and the table at the end takes the
 * loops of every type in RT_TYPE_LIST. Only f16 has a vector form by hand,
 * because no compiler finds the conversion instructions by itself. On aarch64,
 * whose every processor has NEON, the set `base` is NEON.
 *
 * Never compile this with -ffast-math or with contraction to fused multiply-add:
 * the results would differ between the sets.
 */
#include <string.h>

#include "core/host/rt_element.h"
#include "core/host/rt_types.h"

#if defined(__F16C__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef RT_SIMD
#error "RT_SIMD names the instruction set"
#endif
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define INLINE static inline __attribute__((always_inline))

/* A destination is exactly a source or disjoint from it: no iteration reads what
 * another one wrote. The compiler cannot know, and would test for overlap and take
 * the slow loop just for the in-place case. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#define ONE_BY_ONE _Pragma("clang loop vectorize(disable)")
#pragma clang diagnostic ignored "-Wpass-failed" /* -O1 vectorises nothing */
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#define ONE_BY_ONE
#endif

/* Elements as they lie in memory: any address, any declared type. Floats are
 * handled as their bits and turned into numbers one operation at a time. */
typedef uint8_t u8_any __attribute__((aligned(1), may_alias));
typedef uint16_t u16_any __attribute__((aligned(1), may_alias));
typedef uint32_t u32_any __attribute__((aligned(1), may_alias));
typedef uint64_t u64_any __attribute__((aligned(1), may_alias));

/* ---- f16 with the processor's conversions: whole vectors, the loops below do the rest ---- */

#if defined(__AVX512F__)
#define F16_LANES 16
typedef __m512 f16_vec;
INLINE f16_vec f16_load(const u16_any *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
INLINE __m256i f16_round(f16_vec v) {
  const f16_vec nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff));
  v = _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE void f16_store(u16_any *p, __m256i v) { _mm256_storeu_si256((void *)p, v); }
#define F16_SET1 _mm512_set1_ps
#define F16_sum _mm512_add_ps
#define F16_prod _mm512_mul_ps
#elif defined(__F16C__)
#define F16_LANES 8
typedef __m256 f16_vec;
INLINE f16_vec f16_load(const u16_any *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }
INLINE __m128i f16_round(f16_vec v) {
  const f16_vec nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  v = _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}
INLINE void f16_store(u16_any *p, __m128i v) { _mm_storeu_si128((void *)p, v); }
#define F16_SET1 _mm256_set1_ps
#define F16_sum _mm256_add_ps
#define F16_prod _mm256_mul_ps
#elif defined(__aarch64__)
#define F16_LANES 8
typedef float32x4x2_t f16_vec;
INLINE f16_vec f16_load(const u16_any *p) {
  float16x8_t v = vreinterpretq_f16_u8(vld1q_u8((const void *)p));
  return (f16_vec){{vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)}};
}
INLINE float32x4_t f16_one_nan(float32x4_t v) {
  return vbslq_f32(vceqq_f32(v, v), v, vdupq_n_f32(rt_bits_f32(0x7fffffff)));
}
INLINE uint8x16_t f16_round(f16_vec v) {
  float16x4_t low = vcvt_f16_f32(f16_one_nan(v.val[0]));
  return vreinterpretq_u8_f16(vcvt_high_f16_f32(low, f16_one_nan(v.val[1])));
}
INLINE void f16_store(u16_any *p, uint8x16_t v) { vst1q_u8((void *)p, v); }
INLINE f16_vec F16_SET1(float f) { return (f16_vec){{vdupq_n_f32(f), vdupq_n_f32(f)}}; }
INLINE f16_vec F16_sum(f16_vec a, f16_vec b) {
  return (f16_vec){{vaddq_f32(a.val[0], b.val[0]), vaddq_f32(a.val[1], b.val[1])}};
}
INLINE f16_vec F16_prod(f16_vec a, f16_vec b) {
  return (f16_vec){{vmulq_f32(a.val[0], b.val[0]), vmulq_f32(a.val[1], b.val[1])}};
}
#endif

/* Each returns how many elements it did. d2 is d where there is only one destination. */
#ifdef F16_LANES
#define F16_BLOCKS(op)                                                                                 \
  INLINE size_t blocks_##op##_FLOAT16(u16_any *d, u16_any *d2, const u16_any *x, const u16_any *y, size_t n) { \
    size_t i = 0;                                                                                      \
    for (; i + F16_LANES <= n; i += F16_LANES) {                                                       \
      __auto_type r = f16_round(F16_##op(f16_load(x + i), f16_load(y + i)));                           \
      f16_store(d + i, r);                                                                             \
      if (d2 != d) f16_store(d2 + i, r);                                                               \
    }                                                                                                  \
    return i;                                                                                          \
  }
F16_BLOCKS(sum)
F16_BLOCKS(prod)

INLINE size_t blocks_scale_FLOAT16(u16_any *d, const u16_any *x, size_t n, const union rt_scalar *arg) {
  size_t i = 0;
  for (; i + F16_LANES <= n; i += F16_LANES)
    f16_store(d + i, f16_round(F16_prod(f16_load(x + i), F16_SET1(arg->f32))));
  return i;
}
#define BY_BLOCKS(op, ...) blocks_##op##_FLOAT16(__VA_ARGS__)
#else
#define BY_BLOCKS(op, ...) 0
#endif
#define NO_BLOCKS(op, ...) 0

/* ---- the loops: T names the type, U its storage, BLOCKS what is done before the plain loop ---- */

#define REDUCE_LOOPS(T, U, BLOCKS, op)                                              \
  static void T##_##op(void *dst, const void *a, const void *b, size_t n) {         \
    U##_any *d = dst;                                                               \
    const U##_any *x = a, *y = b;                                                   \
    size_t done = BLOCKS(op, d, d, x, y, n);                                        \
    INDEPENDENT for (size_t i = done; i < n; i++) d[i] = rt_##op##_##T(x[i], y[i]); \
  }                                                                                 \
  static void T##_##op##2(void *dst, void *dst2, const void *a, const void *b, size_t n) { \
    U##_any *d = dst, *d2 = dst2;                                                   \
    const U##_any *x = a, *y = b;                                                   \
    size_t done = BLOCKS(op, d, d2, x, y, n);                                       \
    INDEPENDENT for (size_t i = done; i < n; i++) d[i] = d2[i] = rt_##op##_##T(x[i], y[i]); \
  }

#define KERNELS(T, U, BLOCKS)                                                       \
  REDUCE_LOOPS(T, U, BLOCKS, sum)                                                   \
  REDUCE_LOOPS(T, U, BLOCKS, prod)                                                  \
  REDUCE_LOOPS(T, U, NO_BLOCKS, max)                                                \
  REDUCE_LOOPS(T, U, NO_BLOCKS, min)                                                \
  static void T##_scale(void *dst, const void *src, size_t n, const union rt_scalar *arg) { \
    U##_any *d = dst;                                                               \
    const U##_any *x = src;                                                         \
    const union rt_scalar factor = *arg; /* a copy, which no store can change */    \
    size_t done = BLOCKS(scale, d, x, n, &factor);                                  \
    INDEPENDENT for (size_t i = done; i < n; i++) d[i] = rt_scale_##T(x[i], &factor); \
  }

/* The quotient of a finished sum. There is no vector division of 64 bits: LOOP keeps the compiler from taking vectors
 * apart for it. */
#define DIVIDE(T, U, LOOP)                                                                \
  static void T##_div(void *dst, const void *src, size_t n, const union rt_scalar *arg) { \
    U##_any *to = dst;                                                                    \
    const U##_any *from = src;                                                            \
    const uint32_t d = arg->divisor, reciprocal = rt_reciprocal(d);                       \
    LOOP for (size_t i = 0; i < n; i++) to[i] = rt_div_##T(from[i], d, reciprocal);       \
  }

DIVIDE(INT8, u8, INDEPENDENT)
DIVIDE(UINT8, u8, INDEPENDENT)
DIVIDE(INT32, u32, INDEPENDENT)
DIVIDE(UINT32, u32, INDEPENDENT)
DIVIDE(INT64, u64, ONE_BY_ONE)
DIVIDE(UINT64, u64, ONE_BY_ONE)

KERNELS(INT8, u8, NO_BLOCKS)
KERNELS(UINT8, u8, NO_BLOCKS)
KERNELS(INT32, u32, NO_BLOCKS)
KERNELS(UINT32, u32, NO_BLOCKS)
KERNELS(INT64, u64, NO_BLOCKS)
KERNELS(UINT64, u64, NO_BLOCKS)
KERNELS(FLOAT16, u16, BY_BLOCKS)
KERNELS(FLOAT32, u32, NO_BLOCKS)
KERNELS(FLOAT64, u64, NO_BLOCKS)
KERNELS(BFLOAT16, u16, NO_BLOCKS)
KERNELS(FLOAT8E4M3, u8, NO_BLOCKS)
KERNELS(FLOAT8E5M2, u8, NO_BLOCKS)

/* ---- the table: every type of the list, every operation ---- */

#define AVG_INTEGER(T) {.reduce = T##_sum, .reduce2 = T##_sum2, .post = T##_div}
#define AVG_FLOAT(T) {.pre = T##_scale, .reduce = T##_sum, .reduce2 = T##_sum2}

#define ROW(T, value, size, text)                                                          \
  [RT_##T] = {                                                                             \
    [RT_SUM] = {.reduce = T##_sum, .reduce2 = T##_sum2},                                   \
    [RT_PROD] = {.reduce = T##_prod, .reduce2 = T##_prod2},                                \
    [RT_MAX] = {.reduce = T##_max, .reduce2 = T##_max2},                                   \
    [RT_MIN] = {.reduce = T##_min, .reduce2 = T##_min2},                                   \
    [RT_AVG] = RT_BY_KIND_##T(AVG_INTEGER(T), AVG_FLOAT(T)),                               \
    [RT_PREMULSUM] = {.pre = T##_scale, .reduce = T##_sum, .reduce2 = T##_sum2},           \
  },

rt_reduce_table CAT(rt_reduce_table_, RT_SIMD) = {RT_TYPE_LIST(ROW)};
