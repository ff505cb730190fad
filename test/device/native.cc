/* SPDX-License-Identifier: Apache-2.0 */
#include "test/device/emu.cuh"

#include "test/device/native_model.cuh"

#include "core/device/rd_pack.cuh"
#include "test/device/native.h"

template <unsigned what> static uint32_t compute(int type, int op, const union rt_scalar *arg, uint32_t a, uint32_t b) {
  switch (type) {
    case RT_FLOAT16: return rd_word_compute<RT_FLOAT16>(op, what, *arg, a, b);
    case RT_BFLOAT16: return rd_word_compute<RT_BFLOAT16>(op, what, *arg, a, b);
    case RT_FLOAT8E4M3: return rd_word_compute<RT_FLOAT8E4M3>(op, what, *arg, a, b);
    default: return rd_word_compute<RT_FLOAT8E5M2>(op, what, *arg, a, b);
  }
}

uint32_t native_reduce(int type, int op, uint32_t a, uint32_t b) {
  const union rt_scalar none = {};
  return compute<RD_REDUCE>(type, op, &none, a, b);
}

uint32_t native_scale(int type, uint32_t a, const union rt_scalar *arg) {
  return compute<RD_PRE>(type, RT_PREMULSUM, arg, a, a);
}
