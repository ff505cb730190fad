/* SPDX-License-Identifier: Apache-2.0 */
#include "test/device/pairs.h"

#include "common/base/compiler.h"
#include "core/host/rt_types.h"

/* Zero, subnormals and the least normals, 1 and what is next to it, the greatest finite, infinity, NaNs. */
static const uint16_t limits_f16[] = {
  0, 1, 0x3ff, 0x400, 0x401, 0x3c00, 0x3c01, 0x3bff, 0x7bff, 0x7c00, 0x7c01, 0x7fff,
};
static const uint16_t limits_bf16[] = {
  0, 1, 0x7f, 0x80, 0x81, 0x3f80, 0x3f81, 0x3f7f, 0x7f7f, 0x7f80, 0x7f81, 0x7fff,
};
#define LIMITS RAIL_COUNT_OF(limits_f16)
#define OTHERS 16u

unsigned pairs_rounds(int type) {
  if (type == RT_FLOAT8E4M3 || type == RT_FLOAT8E5M2) return 1;
  return type == RT_FLOAT16 || type == RT_BFLOAT16 ? 2 * LIMITS + OTHERS : 0;
}

void pairs_fill(int type, unsigned round, void *a, void *b) {
  if (rt_type_size(type) == 1) {
    for (unsigned i = 0; i < PAIRS; i++) {
      ((uint8_t *)a)[i] = (uint8_t)(i >> 8);
      ((uint8_t *)b)[i] = (uint8_t)i;
    }
    return;
  }
  const uint16_t *limits = type == RT_FLOAT16 ? limits_f16 : limits_bf16;
  uint16_t with = (uint16_t)((round - 2 * LIMITS) * 0x9e37u + 0x1357u); /* steps that meet every exponent */
  if (round < 2 * LIMITS) with = (uint16_t)(limits[round / 2] | (round % 2) << 15);
  for (unsigned i = 0; i < PAIRS; i++) {
    ((uint16_t *)a)[i] = (uint16_t)i;
    ((uint16_t *)b)[i] = with;
  }
}
