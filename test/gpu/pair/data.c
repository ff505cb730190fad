/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#include <string.h>

static const struct { const char *name; size_t size; } types[PAIR_TYPES] = {
    [PAIR_FLOAT] = {"float", 4}, [PAIR_INT32] = {"int32", 4}, [PAIR_UINT8] = {"uint8", 1}};

static const char *const kinds[PAIR_KINDS] = {
    [PAIR_ALL_REDUCE] = "all_reduce", [PAIR_ALL_GATHER] = "all_gather", [PAIR_ALLTOALL] = "alltoall"};

const char *pair_kind_name(enum pair_kind kind) { return kinds[kind]; }
const char *pair_type_name(enum pair_type type) { return types[type].name; }
size_t pair_type_size(enum pair_type type) { return types[type].size; }

double pair_bus_factor(enum pair_kind kind) {
  double others = (PAIR_RANKS - 1) / (double)PAIR_RANKS;
  return kind == PAIR_ALL_REDUCE ? 2 * others : others;
}

struct pair_shape pair_shape_of(enum pair_kind kind, enum pair_type type, size_t bytes) {
  size_t total = bytes / types[type].size, each = total / PAIR_RANKS;
  struct pair_shape s = {.count = each, .send = each * PAIR_RANKS, .recv = each * PAIR_RANKS};
  if (kind == PAIR_ALL_REDUCE) s.count = s.send = s.recv = total;
  if (kind == PAIR_ALL_GATHER) s.send = each;
  s.bytes = s.recv * types[type].size;
  return s;
}

/* splitmix64's finaliser */
static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

static uint64_t bits_of(const struct pair_case *c, int rank, size_t i) {
  uint64_t stream = mix(c->seed * 64 + (uint64_t)c->kind * 16 + (uint64_t)c->type * 4 + (uint64_t)rank + 1);
  return mix(stream + i * 0x9e3779b97f4a7c15ull);
}

/* Floats that are added are small integers: then no order of additions rounds, and the sum must be equal. */
static int small_of(uint64_t bits) { return (int)(bits % 2001) - 1000; }

static void encode(enum pair_type type, uint64_t bits, void *to) {
  uint32_t word = (uint32_t)bits;
  uint8_t byte = (uint8_t)bits;
  if (types[type].size == 1) memcpy(to, &byte, 1);
  else memcpy(to, &word, 4);
}

static void input(const struct pair_case *c, int rank, size_t i, void *to) {
  uint64_t bits = bits_of(c, rank, i);
  float value = (float)small_of(bits);
  if (c->kind == PAIR_ALL_REDUCE && c->type == PAIR_FLOAT) memcpy(to, &value, sizeof value);
  else encode(c->type, bits, to); /* moved only, or integers, whose sums wrap */
}

static void expected(const struct pair_case *c, int rank, size_t i, void *to) {
  size_t block = c->shape.count ? i / c->shape.count : 0;
  if (c->kind == PAIR_ALL_GATHER) {
    input(c, (int)block, i - block * c->shape.count, to);
  } else if (c->kind == PAIR_ALLTOALL) {
    input(c, (int)block, (size_t)rank * c->shape.count + i - block * c->shape.count, to);
  } else if (c->type == PAIR_FLOAT) {
    int sum = 0;
    for (int r = 0; r < PAIR_RANKS; r++) sum += small_of(bits_of(c, r, i));
    float value = (float)sum;
    memcpy(to, &value, sizeof value);
  } else {
    uint64_t sum = 0;
    for (int r = 0; r < PAIR_RANKS; r++) sum += bits_of(c, r, i);
    encode(c->type, sum, to);
  }
}

void pair_fill(const struct pair_case *c, int rank, void *to) {
  size_t size = types[c->type].size;
  for (size_t i = 0; i < c->shape.send; i++) input(c, rank, i, (char *)to + i * size);
}

size_t pair_wrong(const struct pair_case *c, int rank, const void *got) {
  size_t size = types[c->type].size, wrong = 0;
  for (size_t i = 0; i < c->shape.recv; i++) {
    unsigned char want[4];
    expected(c, rank, i, want);
    wrong += memcmp((const char *)got + i * size, want, size) != 0;
  }
  return wrong;
}

size_t pair_disturbed(const void *at, size_t bytes) {
  size_t n = 0;
  for (size_t i = 0; i < bytes; i++) n += ((const unsigned char *)at)[i] != KIT_POISON;
  return n;
}
