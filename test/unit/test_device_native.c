/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPU's arithmetic for small floats, as the PTX ISA describes its instructions (test/device/native_model.cuh),
 * beside the host's kernels: the same bits, of every pair of fp8 values, and of every f16 and bf16 value with many.
 */
#include <string.h>

#include "core/host/rt_element.h"
#include "core/host/rt_reduce.h"
#include "test/device/native.h"
#include "test/device/pairs.h"
#include "test/harness/tap.h"

/* The model takes its time: sanitized, it has every so many rounds and words. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ROUNDS 7
#define STRIDE 5
#else
#define ROUNDS 1
#define STRIDE 1
#endif

static uint32_t a[PAIRS / 2], b[PAIRS / 2], expected[PAIRS / 2];

static void check_same(int type, const char *what, uint32_t got, size_t i) {
  CHECK_MSG(got == expected[i], "%s, %s of %08x and %08x is %08x by the instructions, %08x by the host's kernels",
            rt_type_name(type), what, a[i], b[i], got, expected[i]);
}

static void check_reduce(int type, int op, const char *name) {
  const struct rt_reduce_fns *fns = rt_reduce_lookup(type, op);
  for (unsigned round = 0; round < pairs_rounds(type); round += ROUNDS) {
    pairs_fill(type, round, a, b);
    fns->reduce(expected, a, b, PAIRS);
    for (size_t i = 0; i < PAIRS * rt_type_size(type) / 4; i += STRIDE)
      check_same(type, name, native_reduce(type, op, a[i], b[i]), i);
  }
}

/* Every value of fp8 is a factor, too; of the others some. */
static void check_scale(int type) {
  const struct rt_reduce_fns *fns = rt_reduce_lookup(type, RT_PREMULSUM);
  const size_t size = rt_type_size(type), values = size == 1 ? 256 : PAIRS;
  for (unsigned factor = 0; factor < values; factor += size == 1 ? 1 : 0x0c35) {
    union rt_scalar arg = rt_factor(type, factor);
    pairs_fill(type, 0, b, a); /* in a, all values at its beginning */
    if (size == 2) memcpy(a, b, sizeof a);
    fns->pre(expected, a, values, &arg);
    for (size_t i = 0; i < values * size / 4; i += STRIDE)
      check_same(type, "product with a factor", native_scale(type, a[i], &arg), i);
  }
}

static void check_type(int type) {
  check_reduce(type, RT_SUM, "sum");
  check_reduce(type, RT_PROD, "product");
  check_reduce(type, RT_MAX, "maximum");
  check_reduce(type, RT_MIN, "minimum");
  check_scale(type);
}

TEST(f16) { check_type(RT_FLOAT16); }
TEST(bf16) { check_type(RT_BFLOAT16); }
TEST(e4m3) { check_type(RT_FLOAT8E4M3); }
TEST(e5m2) { check_type(RT_FLOAT8E5M2); }

TEST_MAIN(TEST_CASE(f16), TEST_CASE(bf16), TEST_CASE(e4m3), TEST_CASE(e5m2))
