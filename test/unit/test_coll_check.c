/* SPDX-License-Identifier: Apache-2.0
 * Proves: rail-coll's checks see every wrong element and every byte outside of a result, first and last included; and
 * sizes that do not fit are refused. */
#include <stdlib.h>
#include <string.h>

#include "test/harness/tap.h"
#include "tools/common/options.h"
#include "tools/rail-coll/coll.h"

#define MOST 1000

static const size_t counts[] = {1, 2, 255, 256, 257, 511, 513, MOST};
#define EACH_COUNT(n) for (size_t c_ = 0, n; c_ < sizeof counts / sizeof counts[0] && (n = counts[c_], true); c_++)

/* Each of these elements wrong, one at a time. */
static void each_wrong(const struct rc_case *c, char *got, size_t count, size_t size,
                       size_t (*check)(const struct rc_case *, const void *, size_t)) {
  const size_t places[] = {0, count / 2, count - 1, count > 256 ? 256 : 0, count > 255 ? 255 : 0};
  CHECK_INT(check(c, got, count), 0);
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    char *at = got + places[i] * size + size - 1; /* where sign and exponent are */
    *at ^= 0x41;
    CHECK_MSG(check(c, got, count) == 1, "type %d op %d: element %zu of %zu is wrong: %zu found", c->type, c->op,
              places[i], count, check(c, got, count));
    *at ^= 0x41;
  }
}

static size_t check_reduced(const struct rc_case *c, const void *got, size_t count) {
  return rc_check_reduced(c, 5, got, count);
}

static size_t check_copy(const struct rc_case *c, const void *got, size_t count) {
  return rc_check_copy(c, 1, 5, got, count);
}

TEST(every_wrong_sum_is_found) {
  struct rc_case ints = {.type = ncclInt32, .op = ncclSum, .nranks = 3, .seed = 7};
  struct rc_case floats = {.type = ncclFloat32, .op = ncclSum, .nranks = 3, .seed = 7};
  EACH_COUNT(n) {
    int32_t i32[MOST] = {0}, one[MOST];
    float f32[MOST] = {0}, part[MOST];
    for (int rank = 0; rank < 3; rank++) {
      rc_fill(&ints, rank, 5, one, n);
      rc_fill(&floats, rank, 5, part, n);
      for (size_t i = 0; i < n; i++) {
        i32[i] = (int32_t)((uint32_t)i32[i] + (uint32_t)one[i]);
        f32[i] += part[i];
      }
    }
    each_wrong(&ints, (char *)i32, n, 4, check_reduced);
    each_wrong(&floats, (char *)f32, n, 4, check_reduced);
  }
}

TEST(every_wrong_copy_is_found) {
  static const int types[] = {ncclInt8, ncclFloat16, ncclFloat32, ncclInt64};
  static const size_t sizes[] = {1, 2, 4, 8};
  EACH_COUNT(n) {
    for (int t = 0; t < 4; t++) {
      static char got[MOST * 8];
      struct rc_case c = {.type = types[t], .op = -1, .nranks = 3, .seed = 9};
      rc_fill(&c, 1, 5, got, n);
      each_wrong(&c, got, n, sizes[t], check_copy);
    }
  }
}

TEST(every_byte_outside_is_found) {
  static char memory[600];
  for (size_t size = 1; size <= sizeof memory; size = size * 2 + 1) {
    rc_poison(memory, size);
    CHECK_INT(rc_check_poison(memory, size), 0);
    const size_t places[] = {0, size / 2, size - 1};
    for (int i = 0; i < 3; i++) {
      memory[places[i]] ^= 1;
      CHECK_MSG(rc_check_poison(memory, size) == 1, "byte %zu of %zu", places[i], size);
      memory[places[i]] ^= 1;
    }
    memset(memory, 0, size); /* all of it, with one value */
    CHECK_INT(rc_check_poison(memory, size), size);
  }
  CHECK_INT(rc_check_poison(memory, 0), 0);
}

TEST(sizes) {
  uint64_t v = 0;
  CHECK(tool_parse_u64("8", true, &v) && v == 8);
  CHECK(tool_parse_u64("64K", true, &v) && v == 65536);
  CHECK(tool_parse_u64("1mb", true, &v) && v == 1 << 20);
  CHECK(tool_parse_u64("16777215T", true, &v) && v == 16777215ull << 40);
  CHECK(tool_parse_u64("18446744073709551615", true, &v) && v == UINT64_MAX);
  static const char *const wrong[] = {"16777216T", "18446744073709551616", "", "-1", "+1", " 1", "1x", "1KK", "K",
                                      "1Kbb"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    CHECK_MSG(!tool_parse_u64(wrong[i], true, &v), "'%s' is taken for %llu", wrong[i], (unsigned long long)v);
  CHECK(!tool_parse_u64("1K", false, &v));
}

TEST_MAIN(TEST_CASE(every_wrong_sum_is_found), TEST_CASE(every_wrong_copy_is_found),
          TEST_CASE(every_byte_outside_is_found), TEST_CASE(sizes))
