/* SPDX-License-Identifier: Apache-2.0
 *
 * The instructions of core/device/rd_native.cuh as the PTX ISA describes them, for C++ on the CPU. Included before
 * that, it takes their place. A format is known by its numbers only and values are doubles, so that
 * nothing is shared with the bit patterns of rt_types.h.
 */
#ifndef DEVICE_NATIVE_MODEL_CUH
#define DEVICE_NATIVE_MODEL_CUH

#include <math.h>
#include <stdint.h>
#include <string.h>

#define RD_NATIVE 1
#define RD_NATIVE_FP8 1

struct model_format {
  int bits, mantissa, bias;
  uint32_t infinity; /* its code; where there is none, what would be it */
  uint32_t largest;  /* finite code */
  uint32_t nan;      /* the canonical one */
};
static const struct model_format model_f16 = {16, 10, 15, 0x7c00, 0x7bff, 0x7fff};
static const struct model_format model_bf16 = {16, 7, 127, 0x7f80, 0x7f7f, 0x7fff};
static const struct model_format model_e4m3 = {8, 3, 7, 0x7f, 0x7e, 0x7f}; /* no infinity, and one NaN for each sign */
static const struct model_format model_e5m2 = {8, 2, 15, 0x7c, 0x7b, 0x7f};

static inline double model_value(const struct model_format &f, uint32_t code) {
  const uint32_t sign = 1u << (f.bits - 1), magnitude = code & (sign - 1);
  const int exponent = (int)(magnitude >> f.mantissa);
  const int fraction = (int)(magnitude & ((1u << f.mantissa) - 1));
  double v = exponent == 0 ? ldexp(fraction, 1 - f.bias - f.mantissa)
                           : ldexp(fraction + (1 << f.mantissa), exponent - f.bias - f.mantissa);
  if (magnitude > f.largest) v = magnitude == f.infinity && f.infinity != f.nan ? INFINITY : NAN;
  return code & sign ? -v : v;
}

/* Rounded to nearest, ties to even. */
static inline uint32_t model_code(const struct model_format &f, double v, bool satfinite) {
  if (isnan(v)) return f.nan;
  const uint32_t sign = signbit(v) ? 1u << (f.bits - 1) : 0;
  int exponent;
  frexp(v, &exponent);
  const int least = 1 - f.bias - f.mantissa, normal = exponent - 1 - f.mantissa, unit = normal < least ? least : normal;
  const double rounded = isinf(v) ? INFINITY : ldexp(nearbyint(ldexp(fabs(v), -unit)), unit);
  if (rounded > model_value(f, f.largest)) return sign | (satfinite ? f.largest : f.infinity);
  if (rounded == 0) return sign;
  frexp(rounded, &exponent);
  if (exponent - 1 < 1 - f.bias) return sign | (uint32_t)ldexp(rounded, -least);
  /* The leading 1 of the fraction counts as 1 in the exponent. */
  const uint32_t fraction = (uint32_t)ldexp(rounded, f.mantissa + 1 - exponent);
  return sign | (((uint32_t)(exponent - 2 + f.bias) << f.mantissa) + fraction);
}

/* a + b with its last bit set if the sum is not exact: then it may be rounded once more, as if it were. */
static inline double model_add(double a, double b) {
  const double s = a + b, b_in = s - a, rest = (a - (s - b_in)) + (b - b_in);
  uint64_t bits;
  memcpy(&bits, &s, sizeof bits);
  if (isnan(rest) || isinf(s) || rest == 0 || (bits & 1)) return s;
  return nextafter(s, rest > 0 ? INFINITY : -INFINITY);
}

template <typename F>
static inline uint32_t model_each(const struct model_format &f, uint32_t a, uint32_t b, const F &op) {
  uint32_t d = 0;
  for (int i = 0; i < 32; i += 16) {
    const double v = op(model_value(f, a >> i & 0xffff), model_value(f, b >> i & 0xffff));
    d |= model_code(f, v, false) << i;
  }
  return d;
}

static inline double model_max(double a, double b) {
  if (isnan(a) || isnan(b)) return isnan(a) ? b : a;
  if (a == b) return signbit(a) ? b : a;
  return a > b ? a : b;
}
static inline double model_min(double a, double b) {
  return isnan(a) || isnan(b) ? model_max(a, b) : -model_max(-a, -b);
}

static inline uint32_t rd_add_f16x2(uint32_t a, uint32_t b) { return model_each(model_f16, a, b, model_add); }
static inline uint32_t rd_mul_f16x2(uint32_t a, uint32_t b) {
  return model_each(model_f16, a, b, [](double x, double y) { return x * y; }); /* 22 bits: exact */
}
static inline uint32_t rd_max_f16x2(uint32_t a, uint32_t b) { return model_each(model_f16, a, b, model_max); }
static inline uint32_t rd_min_f16x2(uint32_t a, uint32_t b) { return model_each(model_f16, a, b, model_min); }
static inline uint32_t rd_max_bf16x2(uint32_t a, uint32_t b) { return model_each(model_bf16, a, b, model_max); }
static inline uint32_t rd_min_bf16x2(uint32_t a, uint32_t b) { return model_each(model_bf16, a, b, model_min); }
static inline uint32_t rd_fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d = 0;
  for (int i = 0; i < 32; i += 16) {
    const double product = model_value(model_bf16, a >> i & 0xffff) * model_value(model_bf16, b >> i & 0xffff);
    d |= model_code(model_bf16, model_add(product, model_value(model_bf16, c >> i & 0xffff)), false) << i;
  }
  return d;
}

#define MODEL_FP8_(name)                                                                         \
  static inline void rd_##name##x4_to_f16x4(uint32_t a, uint32_t *low, uint32_t *high) {         \
    uint32_t half[4];                                                                            \
    for (int i = 0; i < 4; i++)                                                                  \
      half[i] = model_code(model_f16, model_value(model_##name, a >> 8 * i & 0xff), false);      \
    *low = half[1] << 16 | half[0];                                                              \
    *high = half[3] << 16 | half[2];                                                             \
  }                                                                                              \
  static inline uint32_t rd_f16x4_to_##name##x4(uint32_t low, uint32_t high) {                   \
    const uint64_t halves = (uint64_t)high << 32 | low;                                          \
    uint32_t d = 0;                                                                              \
    for (int i = 0; i < 4; i++)                                                                  \
      d |= model_code(model_##name, model_value(model_f16, (uint32_t)(halves >> 16 * i) & 0xffff), true) << 8 * i; \
    return d;                                                                                    \
  }
MODEL_FP8_(e4m3)
MODEL_FP8_(e5m2)

#endif
