/* SPDX-License-Identifier: Apache-2.0
 *
 * Every type, operation and instruction set of this machine against a scalar
 * reference of this file, which works on one element at a time in 64-bit integers
 * or double and shares only the scalar conversions (proved by test_types).
 *
 * One thread, so the thread sanitizer has nothing to find:
 * TEST-SAN: asan
 */
#include <math.h>

#include "common/base/compiler.h"
#include "core/host/rt_reduce.h"
#include "core/host/rt_types.h"
#include "test/harness/elements.h"
#include "test/harness/tap.h"

#define GUARD 64
#define MAX_N 5000
#define ROOM (GUARD + 16 + MAX_N * 8 + GUARD)

static unsigned char buf_a[ROOM], buf_b[ROOM], buf_d[ROOM], buf_d2[ROOM], want[ROOM], first_set[ROOM];
static uint64_t seed = 88172645463325252u;

static uint64_t random64(void) { /* xorshift: the same values in each run */
  seed ^= seed << 13;
  seed ^= seed >> 7;
  return seed ^= seed << 17;
}

static bool is_float(int type) { return type >= RT_FLOAT16; }
static bool is_signed(int type) { return type == RT_INT8 || type == RT_INT32 || type == RT_INT64; }

/* ---- the reference, on elements held in the low bits of a uint64_t ---- */

/* Double to the type. Sums and products of two floats or smaller, computed in
 * double and rounded to float, are what float arithmetic gives. */
static uint64_t from_double(double d, int type) {
  uint64_t v;
  if (isnan(d)) return type == RT_FLOAT64 ? INT64_MAX : (1u << (8 * rt_type_size(type) - 1)) - 1;
  switch (type) {
    case RT_FLOAT16: return rt_f32_to_f16((float)d);
    case RT_BFLOAT16: return rt_f32_to_bf16((float)d);
    case RT_FLOAT8E4M3: return rt_f32_to_e4m3((float)d);
    case RT_FLOAT8E5M2: return rt_f32_to_e5m2((float)d);
    case RT_FLOAT32: return rt_f32_bits((float)d);
    default: memcpy(&v, &d, sizeof v); return v;
  }
}

static int64_t to_signed(uint64_t v, int type) {
  int spare = 64 - 8 * (int)rt_type_size(type);
  return (int64_t)(v << spare) >> spare;
}

static bool less(uint64_t a, uint64_t b, int type) {
  if (is_signed(type)) return to_signed(a, type) < to_signed(b, type);
  if (!is_float(type)) return a < b;
  double x = element_number(a, type), y = element_number(b, type);
  return x < y || (x == y && signbit(x) && !signbit(y));
}

static uint64_t ref_minmax(uint64_t a, uint64_t b, int type, bool min) {
  uint64_t r;
  if (is_float(type) && isnan(element_number(a, type))) r = b;
  else if (is_float(type) && isnan(element_number(b, type))) r = a;
  else r = less(a, b, type) == min ? a : b;
  /* Through the type's own rounding: NaN becomes the one NaN, e5m2's infinity is clipped. */
  return is_float(type) ? from_double(element_number(r, type), type) : r;
}

static uint64_t ref_reduce(uint64_t a, uint64_t b, int type, int op) {
  if (op == RT_MAX || op == RT_MIN) return ref_minmax(a, b, type, op == RT_MIN);
  if (!is_float(type)) return op == RT_PROD ? a * b : a + b;
  double x = element_number(a, type), y = element_number(b, type);
  return from_double(op == RT_PROD ? x * y : x + y, type);
}

static uint64_t ref_divide(uint64_t v, int type, int ranks) {
  if (!is_signed(type)) return v / (uint64_t)ranks;
  return (uint64_t)(to_signed(v, type) / ranks);
}

/* ---- inputs: mostly random bits, among them what is special to the type ---- */

static uint64_t special_value(int type) {
  uint64_t bits = 8 * rt_type_size(type), top = (uint64_t)1 << (bits - 1), ones = top | (top - 1);
  static const double specials[] = {0.0, 1.0,  -1.0,  INFINITY, -INFINITY, NAN, 448,
                                    -448, 57344, 65504, 3e38,     1e-40,     6e-8};
  uint64_t pick = random64();
  if (is_float(type) && pick % 3) return from_double(specials[pick / 3 % RAIL_COUNT_OF(specials)], type);
  const uint64_t patterns[] = {0, 1, ones, top, top - 1, top + 1, ones - 1};
  return patterns[pick / 3 % RAIL_COUNT_OF(patterns)];
}

/* Bits near 1.0, so that rounding, not over- or underflow, is what happens. */
static uint64_t ordinary_value(int type) {
  double d = ldexp((double)(random64() >> 11), -53) * ldexp(1, (int)(random64() % 9) - 4);
  return from_double(random64() & 1 ? d : -d, type);
}

static void fill(unsigned char *p, size_t n, int type) {
  for (size_t i = 0; i < n; i++) {
    uint64_t v = random64(), kind = random64() % 8;
    if (kind == 0) v = special_value(type);
    else if (kind < 5 && is_float(type)) v = ordinary_value(type);
    memcpy(p + i * rt_type_size(type), &v, rt_type_size(type));
  }
}

/* ---- one call checked ---- */

struct shape { size_t n, off_a, off_b, off_d, off_d2; };

static unsigned char *at(unsigned char *buf, size_t offset) { return buf + GUARD + offset; }

static void check_result(const unsigned char *buf, size_t offset, size_t bytes, const char *what, int type, int op,
                         const struct shape *s) {
  for (size_t i = 0; i < ROOM; i++) {
    bool inside = i >= GUARD + offset && i < GUARD + offset + bytes;
    unsigned char expected = inside ? want[i - GUARD - offset] : 0xa5;
    CHECK_MSG(buf[i] == expected, "%s %s op %d %s: n %zu offsets %zu %zu %zu %zu: byte %td is %02x, expected %02x",
              rt_simd_name(rt_reduce_simd()), rt_type_name(type), op, what, s->n, s->off_a, s->off_b, s->off_d,
              s->off_d2, (ptrdiff_t)i - (ptrdiff_t)(GUARD + offset), buf[i], expected);
  }
}

static void fresh(const struct shape *s, int type) {
  memset(buf_a, 0xa5, ROOM);
  memset(buf_b, 0xa5, ROOM);
  memset(buf_d, 0xa5, ROOM);
  memset(buf_d2, 0xa5, ROOM);
  fill(at(buf_a, s->off_a), s->n, type);
  fill(at(buf_b, s->off_b), s->n, type);
}

static void expect_reduce(const struct shape *s, int type, int op) {
  size_t size = rt_type_size(type);
  for (size_t i = 0; i < s->n; i++) {
    uint64_t a = element_bits(at(buf_a, s->off_a) + i * size, type);
    uint64_t b = element_bits(at(buf_b, s->off_b) + i * size, type);
    uint64_t r = ref_reduce(a, b, type, op);
    memcpy(want + i * size, &r, size);
  }
}

static void check_reduce(const struct shape *s, int type, int op) {
  const struct rt_reduce_fns *fns = rt_reduce_lookup(type, op);
  size_t bytes = s->n * rt_type_size(type);
  CHECK(fns && fns->reduce && fns->reduce2);
  fresh(s, type);
  expect_reduce(s, type, op);
  unsigned char *a = at(buf_a, s->off_a), *b = at(buf_b, s->off_b), *d = at(buf_d, s->off_d);
  unsigned char *d2 = at(buf_d2, s->off_d2);
  fns->reduce(d, a, b, s->n);
  check_result(buf_d, s->off_d, bytes, "reduce", type, op, s);
  memset(buf_d, 0xa5, ROOM);
  fns->reduce(d, b, a, s->n); /* the operands' order must not show, NaN and zero signs included */
  check_result(buf_d, s->off_d, bytes, "reduce swapped", type, op, s);
  memset(buf_d, 0xa5, ROOM);
  fns->reduce2(d, d2, a, b, s->n);
  check_result(buf_d, s->off_d, bytes, "reduce2 first", type, op, s);
  check_result(buf_d2, s->off_d2, bytes, "reduce2 second", type, op, s);

  memcpy(buf_d, buf_a, ROOM);
  fns->reduce(at(buf_d, s->off_a), at(buf_d, s->off_a), b, s->n);
  check_result(buf_d, s->off_a, bytes, "in place on a", type, op, s);
  memcpy(buf_d, buf_b, ROOM);
  memset(buf_d2, 0xa5, ROOM);
  fns->reduce2(d2, at(buf_d, s->off_b), a, at(buf_d, s->off_b), s->n);
  check_result(buf_d2, s->off_d2, bytes, "reduce2 in place on b, first", type, op, s);
  check_result(buf_d, s->off_b, bytes, "reduce2 in place on b, second", type, op, s);
  fns->reduce(b, a, b, s->n);
  check_result(buf_b, s->off_b, bytes, "in place on b", type, op, s);
}

/* Offsets 0..15 of each pointer in some combination, all n up to 67, some large. */
static void for_shapes(int type, int op, void (*check)(const struct shape *, int, int)) {
  static const size_t large[] = {255, 1024, MAX_N};
  for (size_t n = 0; n <= 67; n++)
    check(&(struct shape){n, n % 16, n * 5 % 16, n * 7 / 2 % 16, n * 11 / 3 % 16}, type, op);
  for (size_t off = 0; off < 16; off++)
    check(&(struct shape){37 + off, off, (off + 3) % 16, (off * 3 + 1) % 16, 15 - off}, type, op);
  for (size_t i = 0; i < RAIL_COUNT_OF(large); i++) check(&(struct shape){large[i], 0, 0, 0, 0}, type, op);
}

static void check_all(void (*check)(const struct shape *, int, int)) {
  for (volatile int simd = 0; simd < RT_SIMD_COUNT; simd++) {
    if (!rt_reduce_force_simd(simd)) continue;
    for (int type = 0; type < RT_TYPE_COUNT; type++)
      for (int op = 0; op < RT_OP_COUNT; op++) for_shapes(type, op, check);
  }
  rt_reduce_force_simd(RT_SIMD_AUTO);
}

TEST(reduce_all) { check_all(check_reduce); }

/* pre: each element times the factor; post: divided by the number of ranks. */
static void check_unary(const struct shape *s, int type, int op) {
  const struct rt_reduce_fns *fns = rt_reduce_lookup(type, op);
  bool pre = op == RT_PREMULSUM || (op == RT_AVG && is_float(type)), post = op == RT_AVG && !is_float(type);
  CHECK(!!fns->pre == pre && !!fns->post == post);
  if (!pre && !post) return;
  static const int some_ranks[] = {1, 2, 3, 7, 300, 65537, INT32_MAX};
  int ranks = some_ranks[random64() % RAIL_COUNT_OF(some_ranks)];
  size_t size = rt_type_size(type), bytes = s->n * size;
  uint64_t factor = is_float(type) ? ordinary_value(type) : random64();
  union rt_scalar arg;
  unsigned char unaligned[9];
  memcpy(unaligned + 1, &factor, 8);
  if (op == RT_AVG) rt_scalar_avg(&arg, type, ranks);
  else rt_scalar_premul(&arg, type, unaligned + 1);
  if (op == RT_AVG) factor = from_double(type == RT_FLOAT64 ? 1.0 / ranks : (double)(float)(1.0 / ranks), type);

  fresh(s, type);
  for (size_t i = 0; i < s->n; i++) {
    uint64_t v = element_bits(at(buf_a, s->off_a) + i * size, type);
    uint64_t r = post ? ref_divide(v, type, ranks) : ref_reduce(v, factor, type, RT_PROD);
    memcpy(want + i * size, &r, size);
  }
  void (*run)(void *, const void *, size_t, const union rt_scalar *) = pre ? fns->pre : fns->post;
  run(at(buf_d, s->off_d), at(buf_a, s->off_a), s->n, &arg);
  check_result(buf_d, s->off_d, bytes, pre ? "pre" : "post", type, op, s);
  run(at(buf_a, s->off_a), at(buf_a, s->off_a), s->n, &arg);
  check_result(buf_a, s->off_a, bytes, pre ? "pre in place" : "post in place", type, op, s);
}

TEST(pre_and_post) { check_all(check_unary); }

/* All pairs of 8-bit patterns, and the bits of all sets compared directly, on random 64-bit noise. */
TEST(bytes_exhaustive) {
  static const int types[] = {RT_INT8, RT_UINT8, RT_FLOAT8E4M3, RT_FLOAT8E5M2};
  for (volatile int simd = 0; simd < RT_SIMD_COUNT; simd++) {
    if (!rt_reduce_force_simd(simd)) continue;
    for (size_t t = 0; t < RAIL_COUNT_OF(types); t++)
      for (int op = RT_SUM; op <= RT_MIN; op++)
        for (int x = 0; x < 256; x++) {
          for (int y = 0; y < 256; y++) buf_a[y] = (unsigned char)x, buf_b[y] = (unsigned char)y;
          rt_reduce_lookup(types[t], op)->reduce(buf_d, buf_a, buf_b, 256);
          for (unsigned y = 0; y < 256; y++) {
            int expected = (uint8_t)ref_reduce((unsigned)x, y, types[t], op);
            CHECK_MSG(buf_d[y] == expected, "%s %s op %d of %02x and %02x is %02x, expected %02x", rt_simd_name(simd),
                      rt_type_name(types[t]), op, x, y, buf_d[y], expected);
          }
        }
  }
  rt_reduce_force_simd(RT_SIMD_AUTO);
}

TEST(sets_agree_on_noise) {
  for (int type = 0; type < RT_TYPE_COUNT; type++)
    for (int op = 0; op < RT_OP_COUNT; op++)
      for (volatile int round = 0; round < 8; round++) {
        for (size_t i = 0; i + 8 <= ROOM; i += 8) {
          uint64_t a = random64(), b = random64();
          memcpy(buf_a + i, &a, 8);
          memcpy(buf_b + i, &b, 8);
        }
        size_t n = MAX_N - 3, bytes = n * rt_type_size(type);
        for (int simd = 0; simd < RT_SIMD_COUNT; simd++) {
          if (!rt_reduce_force_simd(simd)) continue;
          rt_reduce_lookup(type, op)->reduce(buf_d, buf_a, buf_b, n);
          if (simd == RT_SIMD_BASE) memcpy(first_set, buf_d, bytes);
          CHECK_MSG(memcmp(first_set, buf_d, bytes) == 0, "%s op %d: %s differs from base", rt_type_name(type), op,
                    rt_simd_name(simd));
        }
      }
  rt_reduce_force_simd(RT_SIMD_AUTO);
}

TEST(lookup) {
  CHECK(!rt_reduce_lookup(-1, RT_SUM) && !rt_reduce_lookup(RT_TYPE_COUNT, RT_SUM));
  CHECK(!rt_reduce_lookup(RT_INT8, -1) && !rt_reduce_lookup(RT_INT8, RT_OP_COUNT));
  CHECK(rt_reduce_force_simd(RT_SIMD_BASE) && rt_reduce_simd() == RT_SIMD_BASE);
  CHECK(!rt_reduce_force_simd(RT_SIMD_COUNT) && !rt_reduce_force_simd(-2) && rt_reduce_simd() == RT_SIMD_BASE);
  CHECK(rt_reduce_force_simd(RT_SIMD_AUTO) && rt_reduce_simd() >= RT_SIMD_BASE);
  for (int simd = RT_SIMD_AUTO; simd < RT_SIMD_COUNT; simd++) CHECK_INT(rt_simd_from_name(rt_simd_name(simd)), simd);
  CHECK_INT(rt_simd_from_name("sse9"), -2);
  for (int type = 0; type < RT_TYPE_COUNT; type++) /* n = 0 touches nothing */
    for (int op = 0; op < RT_OP_COUNT; op++) rt_reduce_lookup(type, op)->reduce2(NULL, NULL, NULL, NULL, 0);
}

TEST(copies) {
  static const size_t sizes[] = {0, 1, 7, 64, 8191, 8192, 8193, 40000};
  for (size_t i = 0; i < RAIL_COUNT_OF(sizes); i++) {
    struct shape s = {sizes[i], 1, 0, 3, 6};
    fresh(&s, RT_UINT8);
    memcpy(want, at(buf_a, 1), sizes[i]);
    rt_copy(at(buf_d, 3), at(buf_a, 1), sizes[i]);
    check_result(buf_d, 3, sizes[i], "copy", RT_UINT8, -1, &s);
    memset(buf_d, 0xa5, ROOM);
    rt_copy2(at(buf_d, 3), at(buf_d2, 6), at(buf_a, 1), sizes[i]);
    check_result(buf_d, 3, sizes[i], "copy2 first", RT_UINT8, -1, &s);
    check_result(buf_d2, 6, sizes[i], "copy2 second", RT_UINT8, -1, &s);
    memset(buf_d, 0xa5, ROOM);
    rt_copy2(at(buf_a, 1), at(buf_d, 3), at(buf_a, 1), sizes[i]);
    check_result(buf_a, 1, sizes[i], "copy2 in place", RT_UINT8, -1, &s);
    check_result(buf_d, 3, sizes[i], "copy2 beside in place", RT_UINT8, -1, &s);
  }
  rt_copy(NULL, NULL, 0);
  rt_copy2(NULL, NULL, NULL, 0);
}

TEST_MAIN(TEST_CASE(lookup), TEST_CASE(reduce_all), TEST_CASE(pre_and_post), TEST_CASE(bytes_exhaustive),
          TEST_CASE(sets_agree_on_noise), TEST_CASE(copies))
