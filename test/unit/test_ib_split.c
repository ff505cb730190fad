/* SPDX-License-Identifier: Apache-2.0
 * How messages are cut, for every class of size and number of parts, and that
 * immediates say back what they were told. */
#include "plugin/ib/ib_cts.h"

#include "common/base/compiler.h"
#include "kit/kit_ensure.h"
#include "test/harness/tap.h"

static const unsigned int alls[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 31, 32, 64, 96, 100, 127, 128};
static const unsigned int max_writes[] = {12, 13, 16, 20, 22, 26, 30};

/* Around every power of two up to 1 TiB. */
static unsigned int sizes(uint64_t *out) {
  static const int64_t around[] = {-129, -128, -127, -1, 0, 1, 127, 128, 129};
  unsigned int n = 0;
  for (unsigned int log2 = 0; log2 <= 40; log2++)
    for (unsigned int i = 0; i < RAIL_COUNT_OF(around); i++) {
      int64_t size = (int64_t)(1ull << log2) + around[i];
      if (size >= 0 && size <= (int64_t)RAIL_NET_MAX_BYTES) out[n++] = (uint64_t)size;
    }
  return n;
}

static struct ib_layout split(uint64_t size, unsigned int i, unsigned int n, unsigned int max_write_log2,
                              bool separate) {
  struct ib_layout layout = ib_equal_part(size, i, n);
  ib_split_writes(&layout, max_write_log2, separate);
  return layout;
}

static void check_part(const struct ib_layout *p, uint64_t size, unsigned int max_write_log2, bool separate) {
  uint64_t tail = p->size - p->body, most = 1ull << max_write_log2;
  CHECK(p->offset % IB_ALIGN == 0 || !p->size); /* of a message with fewer lines than parts some are empty */
  CHECK_INT(p->body % IB_ALIGN, 0);
  CHECK(p->offset + p->size == size || p->size % IB_ALIGN == 0); /* only the last one's end is anywhere */
  CHECK(p->body <= p->size && tail <= p->write);
  CHECK(p->write >= most && (p->write & (p->write - 1)) == 0);
  if (p->size / most <= 0xffff) CHECK_INT(p->write, most); /* more only where nothing else goes */
  CHECK(p->write <= 1ull << 30 || max_write_log2 > 30);
  if (separate) CHECK(tail < IB_ALIGN || tail <= p->size >> 15);
  else CHECK((p->size <= p->write) == (p->body == 0) && p->body % p->write == 0 && (tail || !p->size));
}

static void check_message(uint64_t size, unsigned int n, unsigned int all, unsigned int max_write_log2, bool separate) {
  uint64_t at = 0, least = UINT64_MAX, largest = 0;
  for (unsigned int i = 0; i < n; i++) {
    struct ib_layout p = split(size, i, n, max_write_log2, separate);
    CHECK_MSG(p.offset == at, "size %" PRIu64 ", part %u of %u begins at %" PRIu64 ", expected %" PRIu64, size, i, n,
              p.offset, at);
    check_part(&p, size, max_write_log2, separate);
    at += p.size;
    least = RAIL_MIN(least, p.size);
    largest = RAIL_MAX(largest, p.size);
    struct ib_imm imm = {.slot = i % 32, .index = i % 8, .parts = n, .body = p.body}, back;
    ib_imm_decode(ib_imm_encode(&imm, all), all, &back);
    CHECK_INT(back.slot, imm.slot);
    CHECK_INT(back.index, imm.index);
    CHECK_INT(back.parts, n);
    CHECK_INT(back.body, p.body);
    CHECK_INT(back.error, 0);
  }
  CHECK_MSG(at == size, "%u parts of %" PRIu64 " bytes hold %" PRIu64, n, size, at);
  CHECK_MSG(largest - least <= 2 * IB_ALIGN, "size %" PRIu64 ": parts of %" PRIu64 " and %" PRIu64, size, least,
            largest);
}

/* As few parts as one message may have, and as many: n and its neighbours that an immediate can name. */
TEST(parts_add_up) {
  uint64_t all_sizes[400];
  unsigned int n = sizes(all_sizes);
  CHECK(n > 300);
  for (unsigned int a = 0; a < RAIL_COUNT_OF(alls); a++)
    for (unsigned int m = 0; m < RAIL_COUNT_OF(max_writes); m++)
      for (unsigned int i = 0; i < n; i++)
        for (int separate = 0; separate < 2; separate++) {
          check_message(all_sizes[i], alls[a], alls[a], max_writes[m], separate);
          for (unsigned int parts = 1; parts <= alls[a]; parts *= 2)
            if (i % 7 == 0) check_message(all_sizes[i], parts, alls[a], max_writes[m], separate);
        }
}

TEST(random_sizes) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  for (int i = 0; i < 20000; i++) {
    uint64_t size = kit_rng_next(&rng) >> (24 + kit_rng_below(&rng, 40));
    unsigned int all = 1 + kit_rng_below(&rng, IB_MAX_QPS), max_write = 12 + kit_rng_below(&rng, 19);
    uint64_t min_part = 1ull << kit_rng_below(&rng, 24);
    unsigned int n = ib_count_parts(size, all, min_part);
    check_message(size, n, all, max_write, kit_rng_below(&rng, 2));
  }
}

/* No part is smaller than asked for, unless it is the only one; and there are as many as can be named. */
TEST(number_of_parts) {
  uint64_t all_sizes[400];
  unsigned int n = sizes(all_sizes);
  static const uint64_t mins[] = {0, 1, 128, 4096, 65536, 1 << 20};
  for (unsigned int a = 0; a < RAIL_COUNT_OF(alls); a++)
    for (unsigned int k = 0; k < RAIL_COUNT_OF(mins); k++)
      for (unsigned int i = 0; i < n; i++) {
        uint64_t size = all_sizes[i], min = RAIL_MAX(mins[k], 128);
        unsigned int all = alls[a], parts = ib_count_parts(size, all, mins[k]);
        CHECK(parts >= 1 && parts <= all && (parts == all || (parts & (parts - 1)) == 0));
        CHECK(parts == 1 || size / parts >= min);
        CHECK(parts == all || (parts * 2 > all ? size / all < min : size / (parts * 2ull) < min));
        for (unsigned int p = 0; p < parts; p++) {
          struct ib_layout layout = split(size, p, parts, 30, false);
          CHECK(parts == 1 || layout.size + IB_ALIGN > min);
        }
      }
}

TEST(known_values) {
  CHECK_INT(ib_count_parts(0, 8, 8192), 1);
  CHECK_INT(ib_count_parts(16383, 8, 8192), 1);
  CHECK_INT(ib_count_parts(16384, 8, 8192), 2);
  CHECK_INT(ib_count_parts(65536, 6, 8192), 6);
  CHECK_INT(ib_count_parts(48 * 1024 - 1, 6, 8192), 4);
  struct ib_layout p = split(1025, 0, 8, 30, false);
  CHECK_INT(p.size, 256);
  p = split(1025, 7, 8, 30, false);
  CHECK_INT(p.offset, 1024);
  CHECK_INT(p.size, 1);
  p = split(3u << 30, 0, 1, 30, false); /* exactly three writes: the last is the tail */
  CHECK_INT(p.body, 2u << 30);
  p = split((3u << 20) + 5, 0, 1, 30, true);
  CHECK_INT(p.body, 3u << 20);
  p = split(RAIL_NET_MAX_BYTES, 0, 1, 12, false); /* 4 KiB writes cannot be counted that far */
  CHECK_INT(p.write, 1 << 25);
  struct ib_imm imm = {.slot = 31, .index = 7, .parts = 64, .body = 0xffffull << 7};
  CHECK_INT(ib_imm_encode(&imm, 128), 0xffc0ffff);
}

/* Words are no lengths, and the largest length is no word. */
TEST(words) {
  struct ib_imm imm = {.slot = 5, .index = 3, .parts = 1, .error = IB_IMM_TOO_LARGE}, back;
  ib_imm_decode(ib_imm_encode(&imm, 4), 4, &back);
  CHECK_INT(back.error, IB_IMM_TOO_LARGE);
  CHECK_INT(back.slot, 5);
  CHECK_INT(back.index, 3);
  CHECK_INT(back.parts, 1);
  CHECK_INT(back.body, 0);
  imm = (struct ib_imm){.parts = 1, .body = RAIL_NET_MAX_BYTES};
  ib_imm_decode(ib_imm_encode(&imm, 4), 4, &back);
  CHECK(!back.error && back.body == RAIL_NET_MAX_BYTES);
}

/* Whatever the 32 bits are, what comes out of them is within bounds that the receiver then checks. */
TEST(any_bits) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  for (int i = 0; i < 1000000; i++) {
    struct ib_imm imm;
    unsigned int all = 1 + kit_rng_below(&rng, IB_MAX_QPS);
    ib_imm_decode((uint32_t)kit_rng_next(&rng), all, &imm);
    CHECK(imm.slot < IB_MAX_RECVS && imm.index < IB_MAX_GROUP && imm.parts >= 1 && imm.parts <= IB_MAX_QPS);
    CHECK(imm.body < 1ull << 53);
  }
}

TEST_MAIN(TEST_CASE(parts_add_up), TEST_CASE(random_sizes), TEST_CASE(number_of_parts), TEST_CASE(known_values),
          TEST_CASE(words), TEST_CASE(any_bits))
