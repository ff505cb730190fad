/* SPDX-License-Identifier: Apache-2.0
 * Messages cut into parts, parts into writes, and what an immediate says of them. */
#include "plugin/ib/ib_split.h"

#include "common/base/compiler.h"

#define ALIGN_LOG2 7
_Static_assert(1 << ALIGN_LOG2 == IB_ALIGN, "a body is counted in lines");
#define MANTISSA_MAX 0xffffu
#define EXPONENT_WORD 31u
#define CODE_ALL 7u

/* ---- immediates --------------------------------------------------------- */

/* log2 of the least unit in which so many bytes are at most MANTISSA_MAX. */
static unsigned int unit_log2(uint64_t bytes) {
  unsigned int log2 = ALIGN_LOG2;
  while (bytes >> log2 > MANTISSA_MAX) log2++;
  return log2;
}

uint32_t ib_imm_encode(const struct ib_imm *imm, unsigned int all) {
  unsigned int code = imm->parts == all ? CODE_ALL : (unsigned int)__builtin_ctz(imm->parts);
  uint32_t place = imm->row << 27 | imm->index << 24 | code << 21;
  if (rail_unlikely(imm->word)) return place | EXPONENT_WORD << 16 | imm->word;
  unsigned int log2 = unit_log2(imm->body);
  return place | (log2 - ALIGN_LOG2) << 16 | (uint32_t)(imm->body >> log2);
}

void ib_imm_decode(uint32_t bits, unsigned int all, struct ib_imm *imm) {
  unsigned int code = bits >> 21 & 7, exponent = bits >> 16 & 31, mantissa = bits & MANTISSA_MAX;
  imm->row = bits >> 27;
  imm->index = bits >> 24 & 7;
  imm->parts = code == CODE_ALL ? all : 1u << code;
  imm->word = exponent == EXPONENT_WORD ? mantissa : 0;
  imm->body = exponent == EXPONENT_WORD ? 0 : (uint64_t)mantissa << (ALIGN_LOG2 + exponent);
}

/* ---- parts -------------------------------------------------------------- */

unsigned int ib_split_parts(uint64_t size, unsigned int all, uint64_t min_part) {
  uint64_t most = size / RAIL_MAX(min_part, (uint64_t)IB_ALIGN);
  if (most >= all) return all;
  return most < 2 ? 1 : 1u << (31 - (unsigned int)__builtin_clz((unsigned int)most));
}

/* How much of a part goes ahead, and in what pieces. */
static void cut(struct ib_part *part, unsigned int max_write_log2, bool separate) {
  unsigned int least = unit_log2(part->size), log2 = RAIL_MAX(max_write_log2, least);
  part->write = 1ull << log2;
  if (separate) part->body = part->size >> least << least;
  else part->body = part->size <= part->write ? 0 : (part->size - 1) >> log2 << log2;
}

struct ib_part ib_split_part(uint64_t size, unsigned int i, unsigned int n, unsigned int max_write_log2,
                             bool separate) {
  struct ib_part part = {.size = size};
  if (n > 1) {
    uint64_t lines = (size + IB_ALIGN - 1) / IB_ALIGN, each = lines / n, more = lines % n;
    part.offset = RAIL_MIN((i * each + RAIL_MIN(i, more)) * IB_ALIGN, size);
    part.size = RAIL_MIN((each + (i < more)) * IB_ALIGN, size - part.offset);
  }
  cut(&part, max_write_log2, separate);
  return part;
}
