/* SPDX-License-Identifier: Apache-2.0
 * Elements of any type as bits and as numbers, for references. The conversions are the product's; test_types proves
 * them. */
#ifndef RAIL_TEST_ELEMENTS_H
#define RAIL_TEST_ELEMENTS_H

#include <stdint.h>
#include <string.h>

#include "core/kernel/rt_element.h"
#include "core/kernel/rt_types.h"

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

#endif
