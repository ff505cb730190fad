/* SPDX-License-Identifier: Apache-2.0
 *
 * Inputs and the results they must give. Each rank computes all ranks' inputs for
 * itself, so nothing that was moved is needed to know what should have arrived.
 *
 * "exact" inputs are chosen so that no order of operations can round:
 *   sum      integers so small that every partial sum fits the significand
 *   prod     +-1 but for up to three ranks, which have +-2 or +-1/2
 *   min, max anything finite
 *   integers anything; sums and products wrap. Avg: small enough not to
 * and the result must be equal. Types with few bits let only some ranks give nonzero
 * inputs, others for each element. "random" inputs round, and the result must lie within
 * the bound that n roundings can cause; so must an exact average over a count
 * of ranks that is no power of two, because 1/n rounds.
 */
#include <math.h>
#include <string.h>

#include "tools/rail-coll/coll.h"

#define CHUNK 256u
#define POISON 0xa5

static uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

static uint64_t stream_of(const struct rc_case *c, int rank) {
  return mix(c->seed + mix((uint64_t)rank + 1) + ((uint64_t)c->type << 8) + (uint64_t)(c->op + 1));
}

static uint64_t draw(uint64_t stream, size_t index) { return mix(stream + (uint64_t)index * 0x9e3779b97f4a7c15ull); }

/* 0 ... n - 1, n < 2^32 */
static uint64_t below(uint64_t random, uint64_t n) { return (random >> 32) * n >> 32; }

static bool sums(int op) { return op == ncclSum || op == ncclAvg || op == RC_OP_MULSUM; }
static uint64_t scalar_of(int rank) { return 1 + (uint64_t)(rank & 1); }
static bool power_of_two(int n) { return (n & (n - 1)) == 0; }

/* How many ranks give more than the neutral element, and how much. */
struct range {
  int active;
  uint64_t most; /* of |input| */
};

static struct range sum_range(const struct rc_case *c) {
  const struct rc_type *t = rc_type(c->type);
  int bits = t->is_float ? t->digits : (int)t->size * 8 - (t->is_signed ? 1 : 0);
  uint64_t room = bits > 31 ? (1ull << 31) - 1 : (1ull << bits) - (t->is_float ? 0 : 1);
  if (c->op == RC_OP_MULSUM) room /= scalar_of(1);
  int active = (uint64_t)c->nranks > room ? (int)room : c->nranks;
  return (struct range){.active = active, .most = room / (uint64_t)active};
}

static bool takes_part(const struct rc_case *c, int active, int rank, size_t index) {
  return active >= c->nranks || (int)(((size_t)rank + index) % (size_t)c->nranks) < active;
}

static uint64_t truncate_to(int type, uint64_t v) {
  const struct rc_type *t = rc_type(type);
  if (t->size == 8) return v;
  unsigned shift = 64 - 8 * (unsigned)t->size;
  return t->is_signed && !t->is_float ? (uint64_t)((int64_t)(v << shift) >> shift) : v << shift >> shift;
}

/* Inputs of integer types, and of all types when data is only moved: bits, sign-extended. */
static void draw_bits(const struct rc_case *c, int rank, size_t first, uint64_t *v, size_t n) {
  uint64_t stream = stream_of(c, rank);
  if (c->op != ncclAvg) {
    for (size_t i = 0; i < n; i++) v[i] = truncate_to(c->type, draw(stream, first + i));
    return;
  }
  struct range r = sum_range(c);
  bool is_signed = rc_type(c->type)->is_signed;
  for (size_t i = 0; i < n; i++) {
    uint64_t x = below(draw(stream, first + i), (is_signed ? 2 * r.most : r.most) + 1);
    v[i] = takes_part(c, r.active, rank, first + i) ? x - (is_signed ? r.most : 0) : 0;
  }
}

static double quantised(int type, double x) {
  char bytes[8];
  if (type == ncclFloat32) return (double)(float)x;
  rc_encode(type, x, bytes);
  return rc_decode(type, bytes);
}

/* One input of a float type, from 64 random bits. */
static double exact_factor(uint64_t h) {
  double x = h >> 40 & 1 ? 2.0 : 0.5;
  return h >> 41 & 1 ? -x : x;
}

static double random_term(const struct rc_case *c, uint64_t h) {
  double x = ldexp((double)(int64_t)h, -63 - (int)(h & 3)); /* (-1, 1), four magnitudes */
  return quantised(c->type, x);
}

static double random_factor(const struct rc_case *c, uint64_t h) {
  return quantised(c->type, 1.0 + ldexp((double)(int64_t)h, -65)); /* 0.75 ... 1.25 */
}

static void draw_values(const struct rc_case *c, int rank, size_t first, double *v, size_t n) {
  uint64_t stream = stream_of(c, rank);
  if (c->op == ncclProd) {
    int active = c->data == RC_DATA_EXACT ? 3 : 16;
    for (size_t i = 0; i < n; i++) {
      uint64_t h = draw(stream, first + i);
      if (!takes_part(c, active, rank, first + i)) v[i] = h & 1 ? -1.0 : 1.0;
      else v[i] = c->data == RC_DATA_EXACT ? exact_factor(h) : random_factor(c, h);
    }
  } else if (sums(c->op) && c->data == RC_DATA_EXACT) {
    struct range r = sum_range(c);
    for (size_t i = 0; i < n; i++) {
      double x = (double)(int64_t)(below(draw(stream, first + i), 2 * r.most + 1) - r.most);
      v[i] = takes_part(c, r.active, rank, first + i) ? x : 0.0;
    }
  } else {
    for (size_t i = 0; i < n; i++) v[i] = random_term(c, draw(stream, first + i));
  }
}

static bool draws_bits(const struct rc_case *c) { return c->op < 0 || !rc_type(c->type)->is_float; }

void rc_fill(const struct rc_case *c, int rank, size_t first, void *to, size_t count) {
  size_t size = rc_type(c->type)->size;
  char *at = to;
  for (size_t done = 0; done < count;) {
    size_t n = count - done < CHUNK ? count - done : CHUNK;
    if (draws_bits(c)) {
      uint64_t bits[CHUNK];
      draw_bits(c, rank, first + done, bits, n);
      /* The low bytes of a little-endian integer are the narrower integer. */
      for (size_t i = 0; i < n; i++) memcpy(at + i * size, &bits[i], size);
    } else {
      double values[CHUNK];
      draw_values(c, rank, first + done, values, n);
      for (size_t i = 0; i < n; i++) rc_encode(c->type, values[i], at + i * size);
    }
    at += n * size;
    done += n;
  }
}

size_t rc_check_copy(const struct rc_case *c, int rank, size_t first, const void *got, size_t count) {
  size_t size = rc_type(c->type)->size, wrong = 0;
  const char *at = got;
  for (size_t done = 0; done < count;) {
    size_t n = count - done < CHUNK ? count - done : CHUNK;
    char expected[CHUNK * 8];
    rc_fill(c, rank, first + done, expected, n);
    if (memcmp(at, expected, n * size) != 0)
      for (size_t i = 0; i < n; i++) wrong += memcmp(at + i * size, expected + i * size, size) != 0;
    at += n * size;
    done += n;
  }
  return wrong;
}

/* ---- reductions ---- */

static uint64_t reduce_bits(const struct rc_case *c, uint64_t acc, uint64_t x) {
  bool is_signed = rc_type(c->type)->is_signed;
  bool less = is_signed ? (int64_t)x < (int64_t)acc : x < acc;
  switch (c->op) {
    case ncclProd: return acc * x;
    case ncclMax: return less ? acc : x;
    case ncclMin: return less ? x : acc;
    default: return acc + x;
  }
}

static size_t check_integers(const struct rc_case *c, size_t first, const char *got, size_t n) {
  size_t size = rc_type(c->type)->size, wrong = 0;
  uint64_t acc[CHUNK] = {0}, x[CHUNK];
  for (int rank = 0; rank < c->nranks; rank++) {
    draw_bits(c, rank, first, x, n);
    uint64_t scalar = c->op == RC_OP_MULSUM ? scalar_of(rank) : 1;
    for (size_t i = 0; i < n; i++)
      acc[i] = rank == 0 ? x[i] * scalar : truncate_to(c->type, reduce_bits(c, acc[i], x[i] * scalar));
  }
  for (size_t i = 0; i < n; i++) {
    if (c->op == ncclAvg) /* towards zero */
      acc[i] = rc_type(c->type)->is_signed ? (uint64_t)((int64_t)acc[i] / c->nranks) : acc[i] / (uint64_t)c->nranks;
    wrong += memcmp(got + i * size, &acc[i], size) != 0;
  }
  return wrong;
}

static double reduce_value(int op, double acc, double x) {
  switch (op) {
    case ncclProd: return acc * x;
    case ncclMax: return x > acc ? x : acc;
    case ncclMin: return x < acc ? x : acc;
    default: return acc + x;
  }
}

/* What n roundings to the type's precision, each relative to a partial result, can add up to, relative to the sum of
 * magnitudes: n - 1 operations, up to three for scaling, and the reference's own in double. 0: none may happen. */
static double relative_bound(const struct rc_case *c) {
  const struct rc_type *t = rc_type(c->type);
  if (c->op == ncclMin || c->op == ncclMax) return 0;
  if (c->data == RC_DATA_EXACT && (c->op != ncclAvg || power_of_two(c->nranks))) return 0;
  int roundings = c->nranks + 2 + (c->type == ncclFloat64 ? c->nranks + 2 : 0);
  return expm1(roundings * log1p(ldexp(1.0, -t->digits)));
}

static size_t check_floats(const struct rc_case *c, size_t first, const char *got, size_t n) {
  const struct rc_type *t = rc_type(c->type);
  double acc[CHUNK] = {0}, magnitude[CHUNK] = {0}, x[CHUNK];
  size_t wrong = 0;
  for (int rank = 0; rank < c->nranks; rank++) {
    double scalar = c->op == RC_OP_MULSUM ? (double)scalar_of(rank) : 1.0;
    draw_values(c, rank, first, x, n);
    for (size_t i = 0; i < n; i++) {
      double v = x[i] * scalar;
      acc[i] = rank == 0 ? v : reduce_value(c->op, acc[i], v);
      magnitude[i] += fabs(v);
    }
  }
  double bound = relative_bound(c), divisor = c->op == ncclAvg ? c->nranks : 1.0;
  for (size_t i = 0; i < n; i++) {
    double value = rc_decode(c->type, got + i * t->size), expected = acc[i] / divisor;
    double scale = c->op == ncclProd ? fabs(expected) : magnitude[i] / divisor;
    double allowed = bound == 0 ? 0 : bound * scale + (c->nranks + 2) * t->tiniest;
    wrong += !(fabs(value - expected) <= allowed); /* a NaN is wrong */
  }
  return wrong;
}

size_t rc_check_reduced(const struct rc_case *c, size_t first, const void *got, size_t count) {
  size_t size = rc_type(c->type)->size, wrong = 0;
  const char *at = got;
  for (size_t done = 0; done < count; done += CHUNK) {
    size_t n = count - done < CHUNK ? count - done : CHUNK;
    wrong += draws_bits(c) ? check_integers(c, first + done, at + done * size, n)
                           : check_floats(c, first + done, at + done * size, n);
  }
  return wrong;
}

void rc_mulsum_scalar(int type, int rank, void *to) {
  uint64_t bits = scalar_of(rank);
  if (rc_type(type)->is_float) rc_encode(type, (double)bits, to);
  else memcpy(to, &bits, rc_type(type)->size);
}

/* ---- memory that must stay as it is ---- */

void rc_poison(void *at, size_t bytes) { memset(at, POISON, bytes); }

size_t rc_check_poison(const void *at, size_t bytes) {
  const unsigned char *p = at;
  size_t written = 0;
  if (bytes == 0 || (p[0] == POISON && memcmp(p, p + 1, bytes - 1) == 0)) return 0;
  for (size_t i = 0; i < bytes; i++) written += p[i] != POISON;
  return written;
}
