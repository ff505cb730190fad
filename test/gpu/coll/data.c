/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#include <stdbool.h>
#include <string.h>

static const struct { const char *name; size_t size; } types[COLL_TYPES] = {
    [COLL_FLOAT] = {"float", 4}, [COLL_INT32] = {"int32", 4}, [COLL_UINT8] = {"uint8", 1}};

static const char *const kinds[COLL_KINDS] = {
    [COLL_ALL_REDUCE] = "all_reduce", [COLL_ALL_GATHER] = "all_gather",
    [COLL_REDUCE_SCATTER] = "reduce_scatter", [COLL_ALLTOALL] = "alltoall"};

const char *coll_kind_name(enum coll_kind kind) { return kinds[kind]; }
const char *coll_type_name(enum coll_type type) { return types[type].name; }
size_t coll_type_size(enum coll_type type) { return types[type].size; }

double coll_bus_factor(const struct coll_case *c) {
  double others = (c->nranks - 1) / (double)c->nranks;
  return c->kind == COLL_ALL_REDUCE ? 2 * others : others;
}

struct coll_shape coll_shape_of(const struct coll_case *c, size_t bytes) {
  size_t n = (size_t)c->nranks, total = bytes / types[c->type].size, each = total / n;
  struct coll_shape s = {.count = each, .send = each * n, .recv = each * n};
  if (c->kind == COLL_ALL_REDUCE) s.count = s.send = s.recv = total;
  if (c->kind == COLL_ALL_GATHER) s.send = each;
  if (c->kind == COLL_REDUCE_SCATTER) s.recv = each;
  s.bytes = (s.send > s.recv ? s.send : s.recv) * types[c->type].size;
  return s;
}

/* splitmix64's finaliser */
static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

static uint64_t bits_of(const struct coll_case *c, int rank, size_t i) {
  uint64_t stream = mix(((c->seed * COLL_KINDS + c->kind) * COLL_TYPES + c->type) * 64 + (uint64_t)rank + 1);
  return mix(stream + i * 0x9e3779b97f4a7c15ull);
}

static bool adds(const struct coll_case *c) { return c->kind == COLL_ALL_REDUCE || c->kind == COLL_REDUCE_SCATTER; }

/* Floats that are added are small integers: then no order of additions rounds, and the sum must be equal. */
static int small_of(uint64_t bits) { return (int)(bits % 2001) - 1000; }

static void encode(enum coll_type type, uint64_t bits, void *to) {
  uint32_t word = (uint32_t)bits;
  uint8_t byte = (uint8_t)bits;
  if (types[type].size == 1) memcpy(to, &byte, 1);
  else memcpy(to, &word, 4);
}

static void input(const struct coll_case *c, int rank, size_t i, void *to) {
  uint64_t bits = bits_of(c, rank, i);
  float value = (float)small_of(bits);
  if (adds(c) && c->type == COLL_FLOAT) memcpy(to, &value, sizeof value);
  else encode(c->type, bits, to); /* moved only, or integers, whose sums wrap */
}

static void sum_of(const struct coll_case *c, size_t i, void *to) {
  uint64_t bits = 0;
  int small = 0;
  for (int r = 0; r < c->nranks; r++) {
    bits += bits_of(c, r, i);
    small += small_of(bits_of(c, r, i));
  }
  float value = (float)small;
  if (c->type == COLL_FLOAT) memcpy(to, &value, sizeof value);
  else encode(c->type, bits, to);
}

static void expected(const struct coll_case *c, int rank, size_t i, void *to) {
  size_t count = c->shape.count, block = count ? i / count : 0, mine = (size_t)rank * count;
  switch (c->kind) {
    case COLL_ALL_REDUCE: sum_of(c, i, to); break;
    case COLL_REDUCE_SCATTER: sum_of(c, mine + i, to); break;
    case COLL_ALL_GATHER: input(c, (int)block, i - block * count, to); break;
    default: input(c, (int)block, mine + i - block * count, to); break;
  }
}

void coll_fill(const struct coll_case *c, int rank, void *to) {
  size_t size = types[c->type].size;
  for (size_t i = 0; i < c->shape.send; i++) input(c, rank, i, (char *)to + i * size);
}

size_t coll_wrong(const struct coll_case *c, int rank, const void *got) {
  size_t size = types[c->type].size, wrong = 0;
  for (size_t i = 0; i < c->shape.recv; i++) {
    unsigned char want[4];
    expected(c, rank, i, want);
    wrong += memcmp((const char *)got + i * size, want, size) != 0;
  }
  return wrong;
}

size_t coll_disturbed(const void *at, size_t bytes) {
  size_t n = 0;
  for (size_t i = 0; i < bytes; i++) n += ((const unsigned char *)at)[i] != COLL_POISON;
  return n;
}
