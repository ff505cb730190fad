/* SPDX-License-Identifier: Apache-2.0
 *
 * The instructions of a GPU for the small floats, each as a function of words of 4
 * bytes: 2 halves or 4 bytes at a time, the first element in the lowest bits. What is made of
 * them in rd_words.cuh has the bits of rt_element.h's integer arithmetic, because
 *
 * - add, mul and fma round the exact result once, to nearest even, with subnormals. rt_element.h computes in float
 *   and rounds that: twice, but float's 24 bits are more than 2 * 11 + 2, so the second rounding gives the same;
 * - a NaN that comes out is 0x7fff, in f16 and bf16, and 0x7f in the fp8 types; of min and max it loses, and -0 is
 *   less than +0;
 * - .satfinite makes the largest finite value of all beyond it, infinity included, and keeps a NaN.
 *
 * test/unit/test_device_native.c proves it for the instructions as documented, for every pair of fp8 and every value
 * of the others with many; test/gpu/kernels.cu for those of the GPU it runs on.
 *
 * fp8 is converted by hardware from compute capability 8.9 on; RD_NATIVE_FP8 is 0 before, and the integers do it.
 * On the CPU executor there is none of this, unless a model (test/device/native_model.cuh) was included first.
 */
#ifndef RD_NATIVE_CUH
#define RD_NATIVE_CUH

#include "core/device/rd_fence.cuh"

#ifdef __CUDACC__
#define RD_NATIVE 1
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define RD_NATIVE_FP8 1
#else
#define RD_NATIVE_FP8 0
#endif

#define RD_NATIVE_TWO_(name, instruction)                                     \
  RD_FN uint32_t name(uint32_t a, uint32_t b) {                               \
    uint32_t d;                                                               \
    asm(instruction " %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));               \
    return d;                                                                 \
  }

RD_NATIVE_TWO_(rd_add_f16x2, "add.rn.f16x2")
RD_NATIVE_TWO_(rd_mul_f16x2, "mul.rn.f16x2")
RD_NATIVE_TWO_(rd_max_f16x2, "max.f16x2")
RD_NATIVE_TWO_(rd_min_f16x2, "min.f16x2")
RD_NATIVE_TWO_(rd_max_bf16x2, "max.bf16x2")
RD_NATIVE_TWO_(rd_min_bf16x2, "min.bf16x2")

/* a * b + c */
RD_FN uint32_t rd_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

#if RD_NATIVE_FP8
/* 4 bytes as two words of halves, and back. */
#define RD_NATIVE_FP8_(name, type)                                                                     \
  RD_FN void rd_##name##x4_to_f16x4(uint32_t a, uint32_t *low, uint32_t *high) {                       \
    asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2." type " %0, l; cvt.rn.f16x2." type " %1, h;}" \
        : "=r"(*low), "=r"(*high)                                                                      \
        : "r"(a));                                                                                     \
  }                                                                                                    \
  RD_FN uint32_t rd_f16x4_to_##name##x4(uint32_t low, uint32_t high) {                                 \
    uint32_t d;                                                                                        \
    asm("{.reg .b16 l, h; cvt.rn.satfinite." type ".f16x2 l, %1; cvt.rn.satfinite." type               \
        ".f16x2 h, %2; mov.b32 %0, {l, h};}"                                                           \
        : "=r"(d)                                                                                      \
        : "r"(low), "r"(high));                                                                        \
    return d;                                                                                          \
  }
RD_NATIVE_FP8_(e4m3, "e4m3x2")
RD_NATIVE_FP8_(e5m2, "e5m2x2")
#endif

#elif !defined(RD_NATIVE)
#define RD_NATIVE 0
#define RD_NATIVE_FP8 0
#endif

#endif
