/* SPDX-License-Identifier: Apache-2.0
 * See mutate.h. */
#include "test/fuzz/lib/mutate.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/compiler.h"

uint64_t fuzz_random(struct fuzz_rng *rng) { /* splitmix64 */
  uint64_t z = rng->state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

size_t fuzz_below(struct fuzz_rng *rng, size_t n) { return n ? (size_t)(fuzz_random(rng) % n) : 0; }

/* ---- values that go wrong -------------------------------------------- */

static const uint64_t interesting[] = {
    0,          1,          2,          7,          8,          15,         16,         17,
    23,         24,         25,         31,         32,         63,         64,         65,
    127,        128,        255,        256,        257,        511,        512,        4095,
    4096,       4097,       0x7fff,     0x8000,     0xffff,     0x10000,    0x10001,    0xfffff,
    1u << 20,   1u << 30,   0x3fffffff, 0x40000001, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff,
    1ull << 32, 1ull << 40, INT64_MAX,  1ull << 63, UINT64_MAX, UINT64_MAX - 1,
};

/* A field of 1, 2, 4 or 8 bytes, mostly little-endian as all of ours. */
static void set_field(struct fuzz_rng *rng, uint8_t *bytes, size_t size, bool near_size) {
  size_t width = (size_t)1 << fuzz_below(rng, 4);
  if (size < width) return;
  size_t at = fuzz_below(rng, size - width + 1);
  if (fuzz_below(rng, 2)) at &= ~(width - 1); /* fields are mostly aligned */
  uint64_t value = interesting[fuzz_below(rng, RAIL_COUNT_OF(interesting))];
  if (near_size) value = size - at - width + fuzz_below(rng, 5) - 2; /* a length that nearly fits */
  else if (fuzz_below(rng, 3) == 0) {
    memcpy(&value, bytes + at, width);
    value += fuzz_below(rng, 2) ? 1 + fuzz_below(rng, 16) : 0 - (1 + (uint64_t)fuzz_below(rng, 16));
  }
  bool big_endian = fuzz_below(rng, 4) == 0;
  for (size_t i = 0; i < width; i++) bytes[at + (big_endian ? width - 1 - i : i)] = (uint8_t)(value >> 8 * i);
}

/* ---- one step -------------------------------------------------------- */

static size_t erase(struct fuzz_rng *rng, uint8_t *bytes, size_t size) {
  if (!size) return 0;
  size_t at = fuzz_below(rng, size), n = 1 + fuzz_below(rng, RAIL_MIN(size - at, (size_t)32));
  memmove(bytes + at, bytes + at + n, size - at - n);
  return size - n;
}

/* Makes a hole of n bytes at a random place; *at tells where, the new size comes back. */
static size_t make_room(struct fuzz_rng *rng, uint8_t *bytes, size_t size, size_t n, size_t *at) {
  *at = fuzz_below(rng, size + 1);
  memmove(bytes + *at + n, bytes + *at, size - *at);
  return size + n;
}

static size_t insert(struct fuzz_rng *rng, uint8_t *bytes, size_t size, size_t cap) {
  size_t at, n = 1 + fuzz_below(rng, fuzz_below(rng, 8) ? 32 : 1024); /* at times more than any buffer holds */
  if (size + n > cap) return size;
  size = make_room(rng, bytes, size, n, &at);
  uint8_t byte = (uint8_t)fuzz_random(rng);
  bool random = fuzz_below(rng, 2);
  for (size_t i = 0; i < n; i++) bytes[at + i] = random ? (uint8_t)fuzz_random(rng) : byte;
  return size;
}

/* A piece of the same input once more, somewhere else. */
static size_t repeat(struct fuzz_rng *rng, uint8_t *bytes, size_t size, size_t cap) {
  uint8_t piece[128];
  if (!size) return 0;
  size_t from = fuzz_below(rng, size), at, n = 1 + fuzz_below(rng, RAIL_MIN(size - from, sizeof piece));
  if (size + n > cap) return size;
  memcpy(piece, bytes + from, n);
  size = make_room(rng, bytes, size, n, &at);
  memcpy(bytes + at, piece, n);
  return size;
}

static size_t splice(struct fuzz_rng *rng, uint8_t *bytes, size_t size, size_t cap, const uint8_t *other,
                     size_t other_size) {
  if (!other_size) return size;
  size_t keep = fuzz_below(rng, size + 1), from = fuzz_below(rng, other_size);
  size_t n = RAIL_MIN(other_size - from, cap - keep);
  memcpy(bytes + keep, other + from, n);
  return keep + n;
}

static size_t step(struct fuzz_rng *rng, uint8_t *bytes, size_t size, size_t cap, const uint8_t *other,
                   size_t other_size) {
  switch (fuzz_below(rng, 12)) {
    case 0:
    case 1:
      if (size) bytes[fuzz_below(rng, size)] ^= (uint8_t)(1u << fuzz_below(rng, 8));
      return size;
    case 2:
      if (size) bytes[fuzz_below(rng, size)] = (uint8_t)fuzz_random(rng);
      return size;
    case 3:
    case 4:
    case 5: set_field(rng, bytes, size, false); return size;
    case 6: set_field(rng, bytes, size, true); return size;
    case 7: return erase(rng, bytes, size);
    case 8: return insert(rng, bytes, size, cap);
    case 9: return repeat(rng, bytes, size, cap);
    case 10: return splice(rng, bytes, size, cap, other, other_size);
    default: return fuzz_below(rng, 4) ? size : fuzz_below(rng, size + 1);
  }
}

size_t fuzz_mutate(struct fuzz_rng *rng, uint8_t *bytes, size_t size, size_t cap, const uint8_t *other,
                   size_t other_size) {
  size_t steps = (size_t)1 << fuzz_below(rng, 4);
  while (steps-- > 0) size = step(rng, bytes, size, cap, other, other_size);
  return size;
}
