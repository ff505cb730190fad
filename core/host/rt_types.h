/* SPDX-License-Identifier: Apache-2.0
 *
 * The element types of the collectives, with NCCL's numbers, and the scalar
 * conversions of the small floats. Plain C11 that is also CUDA C++, so host and
 * device kernels round alike; no intrinsics here, the vector forms are in
 * rt_reduce_impl.c and must give the same bits.
 *
 * Conversion from float, for every small type:
 * - round to nearest, ties to even, subnormals included (the floating-point
 *   environment must be in its default rounding mode);
 * - every NaN becomes the one NaN that CUDA's conversions give: sign clear, all
 *   other bits set. Keeping payloads would make results depend on operand order;
 * - f16 and bf16 overflow to infinity. The fp8 types saturate: anything beyond
 *   the largest finite value, infinity included, becomes that value, because
 *   NCCL converts with CUDA's fp8 constructors and those saturate to finite.
 *   e5m2 can hold an infinity that came from elsewhere; it decodes as infinity.
 * Conversion to float is exact.
 */
#ifndef RT_TYPES_H
#define RT_TYPES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define RT_HD static __host__ __device__ __forceinline__
#else
#define RT_HD static inline
#endif

/* One row a type: name, value of ncclDataType_t, bytes, printed name. */
#define RT_TYPE_LIST(X)               \
  X(INT8, 0, 1, "int8")               \
  X(UINT8, 1, 1, "uint8")             \
  X(INT32, 2, 4, "int32")             \
  X(UINT32, 3, 4, "uint32")           \
  X(INT64, 4, 8, "int64")             \
  X(UINT64, 5, 8, "uint64")           \
  X(FLOAT16, 6, 2, "half")            \
  X(FLOAT32, 7, 4, "float")           \
  X(FLOAT64, 8, 8, "double")          \
  X(BFLOAT16, 9, 2, "bfloat16")       \
  X(FLOAT8E4M3, 10, 1, "f8e4m3")      \
  X(FLOAT8E5M2, 11, 1, "f8e5m2")

enum rt_type {
#define RT_TYPE_ENUM_(name, value, size, text) RT_##name = value,
  RT_TYPE_LIST(RT_TYPE_ENUM_)
#undef RT_TYPE_ENUM_
  RT_TYPE_COUNT
};

/* Bytes of one element; 0 for a number that is no type. */
RT_HD size_t rt_type_size(int type) {
  switch (type) {
#define RT_TYPE_SIZE_(name, value, size, text) case RT_##name: return size;
    RT_TYPE_LIST(RT_TYPE_SIZE_)
#undef RT_TYPE_SIZE_
    default: return 0;
  }
}

/* nccl-tests' name of the type; NULL for a number that is no type. */
RT_HD const char *rt_type_name(int type) {
  switch (type) {
#define RT_TYPE_NAME_(name, value, size, text) case RT_##name: return text;
    RT_TYPE_LIST(RT_TYPE_NAME_)
#undef RT_TYPE_NAME_
    default: return NULL;
  }
}

RT_HD float rt_bits_f32(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

RT_HD uint32_t rt_f32_bits(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

/* The small floats differ in four numbers, all known when these are inlined:
 *   man    bits of the mantissa
 *   bias   exponent bias
 *   top    largest magnitude a finite float may become (infinity's code, or the
 *          largest finite where the type saturates)
 *   nan    code of NaN
 * All paths are computed and then selected, without branches, so that loops over
 * these functions become vector code. */
RT_HD uint32_t rt_small_encode_(float f, int man, int bias, uint32_t top, uint32_t nan, int sign_bit) {
  const int drop = 23 - man;
  uint32_t bits = rt_f32_bits(f), mag = bits & 0x7fffffffu;
  uint32_t sign = bits >> 31 << sign_bit;
  /* Normal: add just under half a unit, one more if the kept part is odd; a carry
   * runs into the exponent as it should. Then rebias. */
  uint32_t normal = ((mag + (1u << (drop - 1)) - 1 + ((mag >> drop) & 1)) >> drop) - ((uint32_t)(127 - bias) << man);
  /* Subnormal: added to this power of two, whose unit is the type's smallest
   * subnormal, the magnitude is rounded by the adder itself. */
  const uint32_t magic = (uint32_t)(127 + 23 + 1 - bias - man) << 23;
  uint32_t subnormal = rt_f32_bits(rt_bits_f32(mag) + rt_bits_f32(magic)) - magic;
  const uint32_t min_normal = (uint32_t)(128 - bias) << 23;
  uint32_t r = mag < min_normal ? subnormal : normal;
  r = r > top ? top : r;
  return mag > 0x7f800000u ? nan : (r | sign);
}

RT_HD float rt_small_decode_(uint32_t v, int man, int bias, uint32_t first_special, int sign_bit) {
  uint32_t sign = (v >> sign_bit) << 31, mag = v & ((1u << sign_bit) - 1);
  uint32_t normal = (mag << (23 - man)) + ((uint32_t)(127 - bias) << 23);
  /* Infinity and NaN: the exponent goes to float's all-ones, the mantissa stays. */
  uint32_t special = (mag << (23 - man)) | 0x7f800000u;
  /* Subnormal: an integer count of the smallest subnormal. */
  uint32_t subnormal = rt_f32_bits((float)(int32_t)mag * rt_bits_f32((uint32_t)(127 + 1 - bias - man) << 23));
  uint32_t r = mag < (1u << man) ? subnormal : normal;
  r = mag >= first_special ? special : r;
  return rt_bits_f32(r | sign);
}

/* IEEE binary16: 1-5-10. */
RT_HD float rt_f16_to_f32(uint16_t v) { return rt_small_decode_(v, 10, 15, 0x7c00, 15); }
RT_HD uint16_t rt_f32_to_f16(float f) { return (uint16_t)rt_small_encode_(f, 10, 15, 0x7c00, 0x7fff, 15); }

/* fp8 e4m3 ("fn"): 1-4-3, largest 448, no infinity, NaN is 0x7f or 0xff. */
RT_HD float rt_e4m3_to_f32(uint8_t v) { return rt_small_decode_(v, 3, 7, 0x7f, 7); }
RT_HD uint8_t rt_f32_to_e4m3(float f) { return (uint8_t)rt_small_encode_(f, 3, 7, 0x7e, 0x7f, 7); }

/* fp8 e5m2: 1-5-2, largest 57344, infinity 0x7c, NaN 0x7d to 0x7f. */
RT_HD float rt_e5m2_to_f32(uint8_t v) { return rt_small_decode_(v, 2, 15, 0x7c, 7); }
RT_HD uint8_t rt_f32_to_e5m2(float f) { return (uint8_t)rt_small_encode_(f, 2, 15, 0x7b, 0x7f, 7); }

/* bfloat16: the upper half of a float. */
RT_HD float rt_bf16_to_f32(uint16_t v) { return rt_bits_f32((uint32_t)v << 16); }
RT_HD uint16_t rt_f32_to_bf16(float f) {
  uint32_t bits = rt_f32_bits(f);
  uint32_t r = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : r);
}

#endif
