/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations on one element, for every type: what the loops of
 * rt_reduce_impl.c and the packs of core/device/rd_reduce.cuh are made of. Plain
 * C11 that is also CUDA C++, so that host and device give the same bits;
 * rt_reduce.h says which. For a type T of RT_TYPE_LIST, on elements as they are stored:
 *
 *   rt_sum_T rt_prod_T rt_max_T rt_min_T   (a, b)
 *   rt_scale_T                             (a, arg): a times the factor of arg
 *   rt_div_T                               (a, divisor, rt_reciprocal(divisor)): integers only
 *   RT_BY_KIND_T(integer, floating)        the argument that belongs to T
 *
 * Never compile this with -ffast-math or with contraction to fused multiply-add.
 */
#ifndef RT_ELEMENT_H
#define RT_ELEMENT_H

#include "core/host/rt_reduce.h"
#include "core/host/rt_types.h"

#ifdef __CUDACC__
#define RT_ELEMENT RT_HD
#else
#define RT_ELEMENT static inline __attribute__((always_inline))
#endif

#define RT_BY_KIND_INT8(integer, floating) integer
#define RT_BY_KIND_UINT8(integer, floating) integer
#define RT_BY_KIND_INT32(integer, floating) integer
#define RT_BY_KIND_UINT32(integer, floating) integer
#define RT_BY_KIND_INT64(integer, floating) integer
#define RT_BY_KIND_UINT64(integer, floating) integer
#define RT_BY_KIND_FLOAT16(integer, floating) floating
#define RT_BY_KIND_FLOAT32(integer, floating) floating
#define RT_BY_KIND_FLOAT64(integer, floating) floating
#define RT_BY_KIND_BFLOAT16(integer, floating) floating
#define RT_BY_KIND_FLOAT8E4M3(integer, floating) floating
#define RT_BY_KIND_FLOAT8E5M2(integer, floating) floating

/* ---- integers: unsigned arithmetic, which wraps; the order is that of the value type ---- */

#define RT_INT_OPS_(T, U, V)                                                                       \
  RT_ELEMENT U rt_sum_##T(U a, U b) { return (U)(a + b); }                                         \
  RT_ELEMENT U rt_prod_##T(U a, U b) { return (U)(a * b); }                                        \
  RT_ELEMENT U rt_max_##T(U a, U b) { return (V)a > (V)b ? a : b; }                                \
  RT_ELEMENT U rt_min_##T(U a, U b) { return (V)a < (V)b ? a : b; }                                \
  RT_ELEMENT U rt_scale_##T(U a, const union rt_scalar *arg) { return (U)(a * (U)arg->u64); }

RT_INT_OPS_(INT8, uint8_t, int8_t)
RT_INT_OPS_(UINT8, uint8_t, uint8_t)
RT_INT_OPS_(INT32, uint32_t, int32_t)
RT_INT_OPS_(UINT32, uint32_t, uint32_t)
RT_INT_OPS_(INT64, uint64_t, int64_t)
RT_INT_OPS_(UINT64, uint64_t, uint64_t)

/* x / d by the reciprocal (2^32 - 1) / d: vectors have no integer division. The
 * quotient found that way is right or one too small. */
RT_ELEMENT uint32_t rt_reciprocal(uint32_t d) { return UINT32_MAX / d; }
RT_ELEMENT uint32_t rt_divide32_(uint32_t x, uint32_t d, uint32_t reciprocal) {
  uint32_t q = (uint32_t)(((uint64_t)x * reciprocal) >> 32);
  return q + (x - q * d >= d);
}

/* Division toward zero of a signed or unsigned value of up to 32 bits kept in U. */
#define RT_DIV32_(T, U, V)                                                                         \
  RT_ELEMENT U rt_div_##T(U a, uint32_t d, uint32_t reciprocal) {                                  \
    int64_t x = (V)a;                                                                              \
    uint32_t negative = x < 0 ? UINT32_MAX : 0;                                                    \
    uint32_t q = rt_divide32_(((uint32_t)x ^ negative) - negative, d, reciprocal);                 \
    return (U)((q ^ negative) - negative);                                                         \
  }

RT_DIV32_(INT8, uint8_t, int8_t)
RT_DIV32_(UINT8, uint8_t, uint8_t)
RT_DIV32_(INT32, uint32_t, int32_t)
RT_DIV32_(UINT32, uint32_t, uint32_t)

RT_ELEMENT uint64_t rt_div_INT64(uint64_t a, uint32_t d, uint32_t reciprocal) {
  (void)reciprocal;
  /* In 64 bits, where no divisor (up to 2^31) can be -1 and overflow. */
  return (uint64_t)((int64_t)a / (int64_t)d);
}

RT_ELEMENT uint64_t rt_div_UINT64(uint64_t a, uint32_t d, uint32_t reciprocal) {
  (void)reciprocal;
  return a / d;
}

/* ---- float and double ---- */

RT_ELEMENT double rt_bits_f64(uint64_t bits) {
  double f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

RT_ELEMENT uint64_t rt_f64_bits(double f) {
  uint64_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

/* A processor's NaN depends on the operands' order, which the compiler may swap; ours must not. */
RT_ELEMENT uint32_t rt_canonical_f32(float f) { return f != f ? 0x7fffffffu : rt_f32_bits(f); }
RT_ELEMENT uint64_t rt_canonical_f64(double f) { return f != f ? 0x7fffffffffffffffu : rt_f64_bits(f); }

RT_ELEMENT uint32_t rt_sum_FLOAT32(uint32_t a, uint32_t b) {
  return rt_canonical_f32(rt_bits_f32(a) + rt_bits_f32(b));
}
RT_ELEMENT uint32_t rt_prod_FLOAT32(uint32_t a, uint32_t b) {
  return rt_canonical_f32(rt_bits_f32(a) * rt_bits_f32(b));
}
RT_ELEMENT uint32_t rt_scale_FLOAT32(uint32_t a, const union rt_scalar *arg) {
  return rt_canonical_f32(rt_bits_f32(a) * arg->f32);
}
RT_ELEMENT uint64_t rt_sum_FLOAT64(uint64_t a, uint64_t b) {
  return rt_canonical_f64(rt_bits_f64(a) + rt_bits_f64(b));
}
RT_ELEMENT uint64_t rt_prod_FLOAT64(uint64_t a, uint64_t b) {
  return rt_canonical_f64(rt_bits_f64(a) * rt_bits_f64(b));
}
RT_ELEMENT uint64_t rt_scale_FLOAT64(uint64_t a, const union rt_scalar *arg) {
  return rt_canonical_f64(rt_bits_f64(a) * arg->f64);
}

/* ---- small floats: up to float, compute, round back ---- */

#define RT_SMALL_OPS_(T, U, name)                                                                                   \
  RT_ELEMENT U rt_sum_##T(U a, U b) { return rt_f32_to_##name(rt_##name##_to_f32(a) + rt_##name##_to_f32(b)); }     \
  RT_ELEMENT U rt_prod_##T(U a, U b) { return rt_f32_to_##name(rt_##name##_to_f32(a) * rt_##name##_to_f32(b)); }    \
  RT_ELEMENT U rt_scale_##T(U a, const union rt_scalar *arg) {                                                      \
    return rt_f32_to_##name(rt_##name##_to_f32(a) * arg->f32);                                                      \
  }

RT_SMALL_OPS_(FLOAT16, uint16_t, f16)
RT_SMALL_OPS_(BFLOAT16, uint16_t, bf16)
RT_SMALL_OPS_(FLOAT8E4M3, uint8_t, e4m3)
RT_SMALL_OPS_(FLOAT8E5M2, uint8_t, e5m2)

/* The factor of a premulsum, from one element as it is stored. */
RT_HD union rt_scalar rt_factor(int type, uint64_t bits) {
  union rt_scalar arg;
  arg.u64 = bits;
  switch (type) {
    case RT_FLOAT16: arg.f32 = rt_f16_to_f32((uint16_t)bits); break;
    case RT_BFLOAT16: arg.f32 = rt_bf16_to_f32((uint16_t)bits); break;
    case RT_FLOAT8E4M3: arg.f32 = rt_e4m3_to_f32((uint8_t)bits); break;
    case RT_FLOAT8E5M2: arg.f32 = rt_e5m2_to_f32((uint8_t)bits); break;
    case RT_FLOAT32: arg.f32 = rt_bits_f32((uint32_t)bits); break;
    case RT_FLOAT64: arg.f64 = rt_bits_f64(bits); break;
    default: break;
  }
  return arg;
}

/* ---- min and max of floats, on the bits ----
 * A float's bits, the lower ones flipped if the sign is set, are ordered as signed
 * integers just as the numbers are, with -0 below +0. That mapping undoes itself.
 * A NaN is given the key that loses: most positive for min, most negative for max.
 * infinity: the code of +infinity (e4m3: the largest finite); clip: 1 where an
 * infinity must come out as the largest finite value, one code below it. */
#define RT_FLOAT_MINMAX_(T, U, V, infinity, clip)                                       \
  RT_ELEMENT V rt_key_##T(U x, V if_nan) {                                              \
    const U magnitude = (U)~(U)0 >> 1;                                                  \
    U key = (x >> (8 * sizeof(U) - 1)) ? (U)(x ^ magnitude) : x;                        \
    return (U)(x & magnitude) > (U)(infinity) ? if_nan : (V)key;                        \
  }                                                                                     \
  RT_ELEMENT U rt_unkey_##T(V key) {                                                    \
    const U magnitude = (U)~(U)0 >> 1;                                                  \
    U x = key < 0 ? (U)((U)key ^ magnitude) : (U)key;                                   \
    return (clip) && (x & magnitude) == (U)(infinity) ? (U)(x - 1) : x;                 \
  }                                                                                     \
  RT_ELEMENT U rt_min_##T(U a, U b) {                                                   \
    const V largest = (V)((U)~(U)0 >> 1);                                               \
    V x = rt_key_##T(a, largest), y = rt_key_##T(b, largest);                           \
    return rt_unkey_##T(x < y ? x : y);                                                 \
  }                                                                                     \
  RT_ELEMENT U rt_max_##T(U a, U b) {                                                   \
    const V smallest = (V)~((U)~(U)0 >> 1);                                             \
    V x = rt_key_##T(a, smallest), y = rt_key_##T(b, smallest);                         \
    V key = x > y ? x : y;                                                              \
    return rt_unkey_##T(key == smallest ? (V)((U)~(U)0 >> 1) : key);                    \
  }

RT_FLOAT_MINMAX_(FLOAT16, uint16_t, int16_t, 0x7c00, 0)
RT_FLOAT_MINMAX_(FLOAT32, uint32_t, int32_t, 0x7f800000, 0)
RT_FLOAT_MINMAX_(FLOAT64, uint64_t, int64_t, 0x7ff0000000000000, 0)
RT_FLOAT_MINMAX_(BFLOAT16, uint16_t, int16_t, 0x7f80, 0)
RT_FLOAT_MINMAX_(FLOAT8E4M3, uint8_t, int8_t, 0x7e, 0)
RT_FLOAT_MINMAX_(FLOAT8E5M2, uint8_t, int8_t, 0x7c, 1)

#endif
