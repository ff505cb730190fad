/* SPDX-License-Identifier: Apache-2.0
 *
 * The small floats against a reference that shares nothing with the code: it
 * knows a format only as a list of values, built with ldexp, and rounds by
 * searching that list for the two neighbours and comparing distances in double.
 */
#include <math.h>

#include "core/host/rt_types.h"
#include "test/harness/tap.h"

/* A format: its field widths, what lies beyond the finite values, and the functions under test. */
struct format {
  const char *name;
  int exponent_bits, mantissa_bits;
  int finite_codes; /* codes 0 … finite_codes-1 are the finite magnitudes, in order */
  bool has_infinity, saturates;
  uint32_t nan; /* what encoding a NaN gives */
  float (*decode)(uint32_t);
  uint32_t (*encode)(float);
};

#define WRAP(name, type)                                                             \
  static float decode_##name(uint32_t v) { return rt_##name##_to_f32((type)v); }     \
  static uint32_t encode_##name(float f) { return rt_f32_to_##name(f); }
WRAP(f16, uint16_t)
WRAP(bf16, uint16_t)
WRAP(e4m3, uint8_t)
WRAP(e5m2, uint8_t)

static const struct format formats[] = {
  {"f16", 5, 10, 0x7c00, true, false, 0x7fff, decode_f16, encode_f16},
  {"bf16", 8, 7, 0x7f80, true, false, 0x7fff, decode_bf16, encode_bf16},
  {"e4m3", 4, 3, 0x7f, false, true, 0x7f, decode_e4m3, encode_e4m3},
  {"e5m2", 5, 2, 0x7c, true, true, 0x7f, decode_e5m2, encode_e5m2},
};
#define FORMATS (sizeof formats / sizeof formats[0])

static double values[FORMATS][0x8000]; /* the finite magnitudes, ascending */

static uint32_t sign_of(const struct format *f) { return 1u << (f->exponent_bits + f->mantissa_bits); }

static void list_values(void) {
  for (size_t k = 0; k < FORMATS; k++) {
    const struct format *f = &formats[k];
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    for (int code = 0; code < f->finite_codes; code++) {
      int e = code >> f->mantissa_bits, m = code & ((1 << f->mantissa_bits) - 1);
      double fraction = ldexp(m, -f->mantissa_bits);
      values[k][code] = e == 0 ? ldexp(fraction, 1 - bias) : ldexp(1 + fraction, e - bias);
    }
  }
}

/* The nearest value's code, ties to the even code; past the last value the next
 * step of the same size stands for infinity, as IEEE rounds. */
static uint32_t reference_encode(size_t k, float x) {
  const struct format *f = &formats[k];
  if (isnan(x)) return f->nan;
  uint32_t sign = signbit(x) ? sign_of(f) : 0;
  int last = f->finite_codes - 1;
  double mag = fabs((double)x), step = values[k][last] - values[k][last - 1];
  if (mag >= values[k][last] + step / 2)
    return sign | (uint32_t)(f->saturates ? last : f->finite_codes);
  int low = 0, high = last;
  while (low < high) { /* the last value not above mag */
    int mid = (low + high + 1) / 2;
    if (values[k][mid] <= mag) low = mid;
    else high = mid - 1;
  }
  if (low == last) return sign | (uint32_t)last;
  double below = mag - values[k][low], above = values[k][low + 1] - mag;
  int code = below < above ? low : above < below ? low + 1 : low + (low & 1);
  return sign | (uint32_t)code;
}

static void check_encode(size_t k, float x) {
  uint32_t got = formats[k].encode(x), want = reference_encode(k, x);
  CHECK_MSG(got == want, "%s of %a (bits %08x) is %04x, expected %04x", formats[k].name, (double)x, rt_f32_bits(x), got,
            want);
}

static void check_both_signs(size_t k, float x) {
  check_encode(k, x);
  check_encode(k, -x);
}

TEST(decode_every_pattern) {
  for (size_t k = 0; k < FORMATS; k++) {
    const struct format *f = &formats[k];
    for (uint32_t v = 0; v < 2 * sign_of(f); v++) {
      uint32_t mag = v & (sign_of(f) - 1);
      float got = f->decode(v);
      CHECK_MSG(!!signbit(got) == !!(v & sign_of(f)), "%s %04x: sign lost", f->name, v);
      if (mag < (uint32_t)f->finite_codes)
        CHECK_MSG(fabs((double)got) == values[k][mag], "%s %04x is %a, expected %a", f->name, v, (double)got,
                  values[k][mag]);
      else if (f->has_infinity && mag == (uint32_t)f->finite_codes)
        CHECK_MSG(isinf(got), "%s %04x is %a, expected infinity", f->name, v, (double)got);
      else CHECK_MSG(isnan(got), "%s %04x is %a, expected NaN", f->name, v, (double)got);
    }
  }
}

TEST(known_values) {
  CHECK(rt_e4m3_to_f32(0x7e) == 448.0f && rt_e4m3_to_f32(0x01) == 0x1p-9f && rt_e4m3_to_f32(0x38) == 1.0f);
  CHECK(rt_e5m2_to_f32(0x7b) == 57344.0f && rt_e5m2_to_f32(0x01) == 0x1p-16f && rt_e5m2_to_f32(0x3c) == 1.0f);
  CHECK(rt_f16_to_f32(0x7bff) == 65504.0f && rt_f16_to_f32(0x0001) == 0x1p-24f && rt_f16_to_f32(0xc000) == -2.0f);
  CHECK(rt_bf16_to_f32(0x3f80) == 1.0f && rt_bf16_to_f32(0x4049) == 3.140625f);
  CHECK_INT(rt_f32_to_f16(65519.996f), 0x7bff);
  CHECK_INT(rt_f32_to_f16(65520.0f), 0x7c00);
  CHECK_INT(rt_f32_to_f16(-INFINITY), 0xfc00);
  CHECK_INT(rt_f32_to_bf16(3.4028235e38f), 0x7f80);
  CHECK_INT(rt_f32_to_e4m3(INFINITY), 0x7e);
  CHECK_INT(rt_f32_to_e4m3(-1e30f), 0xfe);
  CHECK_INT(rt_f32_to_e5m2(INFINITY), 0x7b);
  CHECK_INT(rt_f32_to_e5m2(-61440.0f), 0xfb);
}

TEST(round_trip) {
  for (size_t k = 0; k < FORMATS; k++) {
    const struct format *f = &formats[k];
    for (uint32_t v = 0; v < 2 * sign_of(f); v++) {
      uint32_t mag = v & (sign_of(f) - 1), want = v;
      if (mag >= (uint32_t)f->finite_codes) want = f->nan;
      if (f->has_infinity && mag == (uint32_t)f->finite_codes) want = f->saturates ? v - 1 : v;
      uint32_t got = f->encode(f->decode(v));
      CHECK_MSG(got == want, "%s %04x came back as %04x, expected %04x", f->name, v, got, want);
    }
  }
}

/* Every value, every halfway point between neighbours, and the floats next to both. */
TEST(encode_halfway) {
  for (size_t k = 0; k < FORMATS; k++) {
    for (int code = 0; code < formats[k].finite_codes; code++) {
      int last = formats[k].finite_codes - 1;
      double value = values[k][code];
      double gap = code < last ? values[k][code + 1] - value : value - values[k][code - 1];
      float points[] = {(float)value, (float)(value + gap / 2), (float)(value + gap / 4), (float)(value + gap)};
      for (size_t i = 0; i < sizeof points / sizeof points[0]; i++) {
        check_both_signs(k, points[i]);
        check_both_signs(k, nextafterf(points[i], INFINITY));
        check_both_signs(k, nextafterf(points[i], 0));
      }
    }
  }
}

TEST(encode_extremes) {
  static const uint32_t bits[] = {
    0x00000000, 0x00000001, 0x00000002, 0x007fffff, 0x00800000, 0x00800001, 0x33000000, 0x33000001, 0x477fefff,
    0x477ff000, 0x43e7ffff, 0x43e80000, 0x43e80001, 0x476fffff, 0x47700000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff,
    0x7f800000, 0x7f800001, 0x7fa00000, 0x7fc00000, 0x7fffffff,
  };
  for (size_t k = 0; k < FORMATS; k++)
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
      check_encode(k, rt_bits_f32(bits[i]));
      check_encode(k, rt_bits_f32(bits[i] | 0x80000000u));
    }
}

/* A walk over all float patterns in odd steps: every exponent, many mantissas. */
TEST(encode_sweep) {
  for (size_t k = 0; k < FORMATS; k++)
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 4093) check_encode(k, rt_bits_f32((uint32_t)bits));
}

TEST(type_sizes) {
  static const size_t want[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  CHECK_INT(RT_TYPE_COUNT, sizeof want / sizeof want[0]);
  for (int t = 0; t < RT_TYPE_COUNT; t++) CHECK_INT(rt_type_size(t), want[t]);
  CHECK_INT(rt_type_size(-1), 0);
  CHECK_INT(rt_type_size(RT_TYPE_COUNT), 0);
  CHECK_STR(rt_type_name(RT_BFLOAT16), "bfloat16");
  CHECK(rt_type_name(RT_TYPE_COUNT) == NULL);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(type_sizes),     TEST_CASE(known_values),    TEST_CASE(decode_every_pattern), TEST_CASE(round_trip),
    TEST_CASE(encode_halfway), TEST_CASE(encode_extremes), TEST_CASE(encode_sweep),
  };
  list_values();
  return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
