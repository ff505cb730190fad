/* SPDX-License-Identifier: Apache-2.0
 * Elements of any type as bits and as numbers, for references. The conversions are the product's; test_types proves
 * them. */
#ifndef RAIL_TEST_ELEMENTS_H
#define RAIL_TEST_ELEMENTS_H

#include <stdint.h>
#include <string.h>

#include "core/host/rt_element.h"
#include "core/host/rt_types.h"

static inline uint64_t element_bits(const void *p, int type) {
  uint64_t v = 0;
  memcpy(&v, p, rt_type_size(type));
  return v;
}

/* Of the float types. */
static inline double element_number(uint64_t v, int type) {
  switch (type) {
    case RT_FLOAT16: return (double)rt_f16_to_f32((uint16_t)v);
    case RT_BFLOAT16: return (double)rt_bf16_to_f32((uint16_t)v);
    case RT_FLOAT8E4M3: return (double)rt_e4m3_to_f32((uint8_t)v);
    case RT_FLOAT8E5M2: return (double)rt_e5m2_to_f32((uint8_t)v);
    case RT_FLOAT32: return (double)rt_bits_f32((uint32_t)v);
    default: return rt_bits_f64(v);
  }
}

/* x as an element; without its fraction in the types of integers. */
static inline void element_put(void *to, int type, double x) {
  uint64_t v;
  switch (type) {
    case RT_FLOAT64: v = rt_f64_bits(x); break;
    case RT_FLOAT32: v = rt_f32_bits((float)x); break;
    case RT_FLOAT16: v = rt_f32_to_f16((float)x); break;
    case RT_BFLOAT16: v = rt_f32_to_bf16((float)x); break;
    case RT_FLOAT8E4M3: v = rt_f32_to_e4m3((float)x); break;
    case RT_FLOAT8E5M2: v = rt_f32_to_e5m2((float)x); break;
    default: v = (uint64_t)(int64_t)x; break;
  }
  memcpy(to, &v, rt_type_size(type)); /* the low bytes come first */
}

#endif
