/* SPDX-License-Identifier: Apache-2.0
 *
 * The reduction kernels, compiled once per instruction set with RT_SIMD naming
 * it. Per type there is one small inline function an operation; RT_KERNELS wraps
 * them into loops that compilers vectorise, and the table at the end takes the
 * loops of every type in RT_TYPE_LIST. Only f16 has a vector form by hand,
 * because no compiler finds the conversion instructions by itself.
 *
 * Never compile this with -ffast-math or with contraction to fused multiply-add:
 * the results would differ between the sets.
 */
#include <string.h>

#include "core/kernel/rt_reduce_table.h"
#include "core/kernel/rt_types.h"

#if defined(__F16C__)
#include <immintrin.h>
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
#pragma clang diagnostic ignored "-Wpass-failed" /* 64-bit division is not to be vectorised, -O1 vectorises nothing */
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Elements as they lie in memory: any address, any declared type. Floats are
 * handled as their bits and turned into numbers one operation at a time. */
typedef uint8_t u8_any __attribute__((aligned(1), may_alias));
typedef uint16_t u16_any __attribute__((aligned(1), may_alias));
typedef uint32_t u32_any __attribute__((aligned(1), may_alias));
typedef uint64_t u64_any __attribute__((aligned(1), may_alias));

/* ---- integers: unsigned arithmetic, which wraps; the order is that of the value type ---- */

#define INT_OPS(T, U, V)                                                                         \
  INLINE U sum_##T(U a, U b) { return (U)(a + b); }                                              \
  INLINE U prod_##T(U a, U b) { return (U)(a * b); }                                             \
  INLINE U max_##T(U a, U b) { return (V)a > (V)b ? a : b; }                                     \
  INLINE U min_##T(U a, U b) { return (V)a < (V)b ? a : b; }                                     \
  INLINE U scale_##T(U a, const union rt_scalar *arg) { return (U)(a * (U)arg->u64); }

INT_OPS(INT8, uint8_t, int8_t)
INT_OPS(UINT8, uint8_t, uint8_t)
INT_OPS(INT32, uint32_t, int32_t)
INT_OPS(UINT32, uint32_t, uint32_t)
INT_OPS(INT64, uint64_t, int64_t)
INT_OPS(UINT64, uint64_t, uint64_t)

/* x / d by the reciprocal (2^32 - 1) / d: vectors have no integer division. The
 * quotient found that way is right or one too small. */
INLINE uint32_t divide32(uint32_t x, uint32_t d, uint32_t reciprocal) {
  uint32_t q = (uint32_t)(((uint64_t)x * reciprocal) >> 32);
  return q + (x - q * d >= d);
}

/* Division toward zero of a signed or unsigned value of up to 32 bits kept in U. */
#define DIV32(T, U, V)                                                                             \
  static void T##_div(void *dst, const void *src, size_t n, const union rt_scalar *arg) {          \
    U##_any *to = dst;                                                                             \
    const U##_any *from = src;                                                                     \
    const uint32_t d = arg->divisor, reciprocal = UINT32_MAX / d;                                  \
    INDEPENDENT for (size_t i = 0; i < n; i++) {                                                   \
      int64_t x = (V)from[i];                                                                      \
      uint32_t negative = x < 0 ? UINT32_MAX : 0;                                                  \
      uint32_t q = divide32(((uint32_t)x ^ negative) - negative, d, reciprocal);                   \
      to[i] = (U##_any)((q ^ negative) - negative);                                                \
    }                                                                                              \
  }

DIV32(INT8, u8, int8_t)
DIV32(UINT8, u8, uint8_t)
DIV32(INT32, u32, int32_t)
DIV32(UINT32, u32, uint32_t)

static void INT64_div(void *dst, const void *src, size_t n, const union rt_scalar *arg) {
  u64_any *to = dst;
  const u64_any *from = src;
  /* In 64 bits, where no divisor (up to 2^31) can be -1 and overflow. */
  for (size_t i = 0; i < n; i++) to[i] = (uint64_t)((int64_t)from[i] / (int64_t)arg->divisor);
}

static void UINT64_div(void *dst, const void *src, size_t n, const union rt_scalar *arg) {
  u64_any *to = dst;
  const u64_any *from = src;
  for (size_t i = 0; i < n; i++) to[i] = from[i] / arg->divisor;
}

/* ---- float and double ---- */

INLINE double bits_f64(uint64_t bits) {
  double f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

INLINE uint64_t f64_bits(double f) {
  uint64_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

/* A processor's NaN depends on the operands' order, which the compiler may swap; ours must not. */
INLINE uint32_t canonical_f32(float f) { return f != f ? 0x7fffffffu : rt_f32_bits(f); }
INLINE uint64_t canonical_f64(double f) { return f != f ? 0x7fffffffffffffffu : f64_bits(f); }

INLINE uint32_t sum_FLOAT32(uint32_t a, uint32_t b) { return canonical_f32(rt_bits_f32(a) + rt_bits_f32(b)); }
INLINE uint32_t prod_FLOAT32(uint32_t a, uint32_t b) { return canonical_f32(rt_bits_f32(a) * rt_bits_f32(b)); }
INLINE uint32_t scale_FLOAT32(uint32_t a, const union rt_scalar *arg) {
  return canonical_f32(rt_bits_f32(a) * arg->f32);
}
INLINE uint64_t sum_FLOAT64(uint64_t a, uint64_t b) { return canonical_f64(bits_f64(a) + bits_f64(b)); }
INLINE uint64_t prod_FLOAT64(uint64_t a, uint64_t b) { return canonical_f64(bits_f64(a) * bits_f64(b)); }
INLINE uint64_t scale_FLOAT64(uint64_t a, const union rt_scalar *arg) {
  return canonical_f64(bits_f64(a) * arg->f64);
}

/* ---- small floats: up to float, compute, round back ---- */

#define SMALL_OPS(T, U, name)                                                                                        \
  INLINE U sum_##T(U a, U b) { return rt_f32_to_##name(rt_##name##_to_f32(a) + rt_##name##_to_f32(b)); }             \
  INLINE U prod_##T(U a, U b) { return rt_f32_to_##name(rt_##name##_to_f32(a) * rt_##name##_to_f32(b)); }            \
  INLINE U scale_##T(U a, const union rt_scalar *arg) { return rt_f32_to_##name(rt_##name##_to_f32(a) * arg->f32); }

SMALL_OPS(FLOAT16, uint16_t, f16)
SMALL_OPS(BFLOAT16, uint16_t, bf16)
SMALL_OPS(FLOAT8E4M3, uint8_t, e4m3)
SMALL_OPS(FLOAT8E5M2, uint8_t, e5m2)

/* ---- min and max of floats, on the bits ----
 * A float's bits, the lower ones flipped if the sign is set, are ordered as signed
 * integers just as the numbers are, with -0 below +0. That mapping undoes itself.
 * A NaN is given the key that loses: most positive for min, most negative for max.
 * infinity: the code of +infinity (e4m3: the largest finite); clip: 1 where an
 * infinity must come out as the largest finite value, one code below it. */
#define FLOAT_MINMAX(T, U, V, infinity, clip)                                           \
  INLINE V key_##T(U x, V if_nan) {                                                     \
    const U magnitude = (U)~(U)0 >> 1;                                                  \
    U key = (x >> (8 * sizeof(U) - 1)) ? (U)(x ^ magnitude) : x;                        \
    return (U)(x & magnitude) > (U)(infinity) ? if_nan : (V)key;                        \
  }                                                                                     \
  INLINE U unkey_##T(V key) {                                                           \
    const U magnitude = (U)~(U)0 >> 1;                                                  \
    U x = key < 0 ? (U)((U)key ^ magnitude) : (U)key;                                   \
    return (clip) && (x & magnitude) == (U)(infinity) ? (U)(x - 1) : x;                 \
  }                                                                                     \
  INLINE U min_##T(U a, U b) {                                                          \
    const V largest = (V)((U)~(U)0 >> 1);                                               \
    V x = key_##T(a, largest), y = key_##T(b, largest);                                 \
    return unkey_##T(x < y ? x : y);                                                    \
  }                                                                                     \
  INLINE U max_##T(U a, U b) {                                                          \
    const V smallest = (V)~((U)~(U)0 >> 1);                                             \
    V x = key_##T(a, smallest), y = key_##T(b, smallest);                               \
    V key = x > y ? x : y;                                                              \
    return unkey_##T(key == smallest ? (V)((U)~(U)0 >> 1) : key);                       \
  }

FLOAT_MINMAX(FLOAT16, uint16_t, int16_t, 0x7c00, 0)
FLOAT_MINMAX(FLOAT32, uint32_t, int32_t, 0x7f800000, 0)
FLOAT_MINMAX(FLOAT64, uint64_t, int64_t, 0x7ff0000000000000, 0)
FLOAT_MINMAX(BFLOAT16, uint16_t, int16_t, 0x7f80, 0)
FLOAT_MINMAX(FLOAT8E4M3, uint8_t, int8_t, 0x7e, 0)
FLOAT_MINMAX(FLOAT8E5M2, uint8_t, int8_t, 0x7c, 1)

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
    INDEPENDENT for (size_t i = done; i < n; i++) d[i] = op##_##T(x[i], y[i]);      \
  }                                                                                 \
  static void T##_##op##2(void *dst, void *dst2, const void *a, const void *b, size_t n) { \
    U##_any *d = dst, *d2 = dst2;                                                   \
    const U##_any *x = a, *y = b;                                                   \
    size_t done = BLOCKS(op, d, d2, x, y, n);                                       \
    INDEPENDENT for (size_t i = done; i < n; i++) d[i] = d2[i] = op##_##T(x[i], y[i]); \
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
    INDEPENDENT for (size_t i = done; i < n; i++) d[i] = scale_##T(x[i], &factor);  \
  }

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
#define AVG_INT8 AVG_INTEGER(INT8)
#define AVG_UINT8 AVG_INTEGER(UINT8)
#define AVG_INT32 AVG_INTEGER(INT32)
#define AVG_UINT32 AVG_INTEGER(UINT32)
#define AVG_INT64 AVG_INTEGER(INT64)
#define AVG_UINT64 AVG_INTEGER(UINT64)
#define AVG_FLOAT16 AVG_FLOAT(FLOAT16)
#define AVG_FLOAT32 AVG_FLOAT(FLOAT32)
#define AVG_FLOAT64 AVG_FLOAT(FLOAT64)
#define AVG_BFLOAT16 AVG_FLOAT(BFLOAT16)
#define AVG_FLOAT8E4M3 AVG_FLOAT(FLOAT8E4M3)
#define AVG_FLOAT8E5M2 AVG_FLOAT(FLOAT8E5M2)

#define ROW(T, value, size, text)                                                          \
  [RT_##T] = {                                                                             \
    [RT_SUM] = {.reduce = T##_sum, .reduce2 = T##_sum2},                                   \
    [RT_PROD] = {.reduce = T##_prod, .reduce2 = T##_prod2},                                \
    [RT_MAX] = {.reduce = T##_max, .reduce2 = T##_max2},                                   \
    [RT_MIN] = {.reduce = T##_min, .reduce2 = T##_min2},                                   \
    [RT_AVG] = AVG_##T,                                                                    \
    [RT_PREMULSUM] = {.pre = T##_scale, .reduce = T##_sum, .reduce2 = T##_sum2},           \
  },

rt_reduce_table CAT(rt_reduce_table_, RT_SIMD) = {RT_TYPE_LIST(ROW)};
