/* SPDX-License-Identifier: Apache-2.0 */
#include "test/device/cases.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/compiler.h"
#include "test/harness/elements.h"

#define REGION 6144u
#define GUARD 64u
#define MAX_N 700u
#define SOURCES 3
#define PLACES 5 /* sources, then destinations */

/* How far each place lies behind a multiple of 128; ESIZE stands for the size of an element. */
#define ESIZE 100
static const unsigned alignments[][PLACES] = {
  {0, 0, 0, 0, 0},                     /* 16 bytes at a time */
  {ESIZE, ESIZE, ESIZE, ESIZE, ESIZE}, /* after a head */
  {8, 24, 8, 40, 8},                   /* the same, across several lines */
  {0, 8, 0, 8, 16},                    /* 8 bytes are common */
  {4, 8, 12, 0, 4},                    /* 4 */
  {2, 4, 6, 0, 14},                    /* 2 */
  {1, 1, 1, 1, 1},                     /* all alike, and inside an element wherever one begins, but for bytes */
  {3, 6, 1, 0, 5},                     /* nothing in common */
};
static const unsigned sizes[] = {0, 1, 3, 7, 16, 17, 33, 129, MAX_N};
static const unsigned grids[][2] = {{1, 1}, {1, 4}, {2, 3}};

static uint64_t seed;

static uint64_t random64(void) { /* xorshift: the same values in each run */
  seed ^= seed << 13;
  seed ^= seed >> 7;
  return seed ^= seed << 17;
}

__attribute__((format(printf, 3, 4))) static bool wrong(char *why, size_t size, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  vsnprintf(why, size, format, ap);
  va_end(ap);
  return false;
}

/* ---- elements as numbers ---- */

static const struct { int mantissa, smallest; } float_of[RT_TYPE_COUNT] = { /* bits kept; exponent of the least value */
  [RT_FLOAT16] = {10, -24},     [RT_FLOAT32] = {23, -149},   [RT_FLOAT64] = {52, -1074},
  [RT_BFLOAT16] = {7, -133},    [RT_FLOAT8E4M3] = {3, -9},   [RT_FLOAT8E5M2] = {2, -16},
};

static void put_number(char *p, int type, double d) {
  uint64_t v;
  switch (type) {
    case RT_FLOAT16: v = rt_f32_to_f16((float)d); break;
    case RT_BFLOAT16: v = rt_f32_to_bf16((float)d); break;
    case RT_FLOAT8E4M3: v = rt_f32_to_e4m3((float)d); break;
    case RT_FLOAT8E5M2: v = rt_f32_to_e5m2((float)d); break;
    case RT_FLOAT32: v = rt_f32_bits((float)d); break;
    case RT_FLOAT64: v = rt_f64_bits(d); break;
    default: v = (uint64_t)(int64_t)d; break;
  }
  memcpy(p, &v, rt_type_size(type));
}

/* ---- one case ---- */

struct one {
  struct rt_reduce_copy w; /* its pointers are into the machine's memory */
  unsigned place[PLACES]; /* offsets there */
  unsigned blocks, threads;
  bool plain; /* a few units in size */
};

static char before[CASES_MEMORY], expected[CASES_MEMORY], after[CASES_MEMORY];

static void choose(struct one *c, const struct cases_machine *m, int type, int op, unsigned number, unsigned alignment,
                   unsigned count) {
  const unsigned esize = (unsigned)rt_type_size(type);
  *c = (struct one){.w = {.type = type, .op = op, .count = count}, .plain = number % 2};
  c->w.nsrc = 1 + (int)(number % SOURCES);
  c->w.ndst = 1 + (int)(number / 3 % 2);
  c->w.npre = (int)(number / 2 % (unsigned)(c->w.nsrc + 1));
  c->w.last = number % 5 != 0;
  c->blocks = grids[number % RAIL_COUNT_OF(grids)][0];
  c->threads = grids[number % RAIL_COUNT_OF(grids)][1];
  for (unsigned i = 0; i < PLACES; i++) {
    unsigned off = alignments[alignment][i];
    c->place[i] = i * REGION + GUARD + (off == ESIZE ? esize : off);
  }
  if (number % 4 == 3) c->place[SOURCES] = c->place[0]; /* in place */
  for (int i = 0; i < c->w.nsrc; i++) c->w.src[i] = m->memory + c->place[i];
  for (int i = 0; i < c->w.ndst; i++) c->w.dst[i] = m->memory + c->place[SOURCES + i];
  char factor[8];
  put_number(factor, type, rt_type_is_integer(type) ? 3 : 1.5);
  if (op == RT_AVG) rt_scalar_avg(&c->w.scalar, type, c->w.nsrc + 1);
  if (op == RT_PREMULSUM) rt_scalar_premul(&c->w.scalar, type, factor);
}

static void fill(const struct one *c) {
  const size_t esize = rt_type_size(c->w.type);
  for (size_t i = 0; i < CASES_MEMORY; i += 8) {
    uint64_t v = random64();
    memcpy(before + i, &v, 8);
  }
  if (!c->plain) return;
  for (int s = 0; s < c->w.nsrc; s++)
    for (uint64_t i = 0; i < c->w.count; i++)
      put_number(before + c->place[s] + i * esize, c->w.type, (double)(random64() % 33) / 4 - 4);
}

/* What the host's kernels make of it. */
static void expect(const struct one *c) {
  static char input[MAX_N * 8], sum[MAX_N * 8];
  const struct rt_reduce_fns *f = rt_reduce_lookup(c->w.type, c->w.op);
  const size_t n = (size_t)c->w.count, bytes = n * rt_type_size(c->w.type);
  for (int s = 0; s < c->w.nsrc; s++) {
    char *to = s == 0 ? sum : input;
    memcpy(to, before + c->place[s], bytes);
    if (f->pre && s < c->w.npre) f->pre(to, to, n, &c->w.scalar);
    if (s > 0) f->reduce(sum, sum, input, n);
  }
  if (f->post && c->w.last) f->post(sum, sum, n, &c->w.scalar);
  memcpy(expected, before, sizeof expected);
  for (int d = 0; d < c->w.ndst; d++) memcpy(expected + c->place[SOURCES + d], sum, bytes);
}

static uint64_t in_type(uint64_t v, int type) { /* cut to the type's size, then widened again with its sign */
  const int spare = 64 - 8 * (int)rt_type_size(type);
  const bool has_sign = type == RT_INT8 || type == RT_INT32 || type == RT_INT64;
  return has_sign ? (uint64_t)((int64_t)(v << spare) >> spare) : v << spare >> spare;
}

static bool less(uint64_t a, uint64_t b, int type) {
  return type == RT_INT8 || type == RT_INT32 || type == RT_INT64 ? (int64_t)a < (int64_t)b : a < b;
}

static bool integer_agrees(const struct one *c, uint64_t i) {
  const struct rt_reduce_copy *w = &c->w;
  const size_t at = i * rt_type_size(w->type);
  uint64_t v = 0;
  for (int s = 0; s < w->nsrc; s++) {
    uint64_t x = in_type(element_bits(before + c->place[s] + at, w->type), w->type);
    if (w->op == RT_PREMULSUM && s < w->npre) x = in_type(x * 3, w->type);
    if (s == 0) v = x;
    else if (w->op == RT_PROD) v *= x;
    else if (w->op == RT_MAX || w->op == RT_MIN) v = less(v, x, w->type) == (w->op == RT_MAX) ? x : v;
    else v += x;
    v = in_type(v, w->type);
  }
  if (w->op == RT_AVG && w->last) {
    const int64_t divisor = w->nsrc + 1;
    const bool negative = less(v, 0, w->type);
    v = negative ? (uint64_t)((int64_t)v / divisor) : v / (uint64_t)divisor;
  }
  return in_type(element_bits(after + c->place[SOURCES] + at, w->type), w->type) == v;
}

/* Every step may be off by half a unit of its result's last place. */
static bool float_agrees(const struct one *c, uint64_t i) {
  const struct rt_reduce_copy *w = &c->w;
  const size_t at = i * rt_type_size(w->type);
  const long double half_unit = ldexpl(1, -float_of[w->type].mantissa - 1);
  const bool scaled = w->op == RT_AVG || w->op == RT_PREMULSUM;
  const long double factor = w->type == RT_FLOAT64 ? w->scalar.f64 : (double)w->scalar.f32;
  long double v = 0, off = 0;
  for (int s = 0; s < w->nsrc; s++) {
    long double x = element_number(element_bits(before + c->place[s] + at, w->type), w->type), x_off = 0;
    if (scaled && s < w->npre) x *= factor, x_off = half_unit * fabsl(x);
    if (s == 0) {
      v = x;
      off = x_off;
    } else if (w->op == RT_PROD) {
      off = off * fabsl(x) + half_unit * fabsl(v * x);
      v *= x;
    } else if (w->op == RT_MAX || w->op == RT_MIN) {
      v = w->op == RT_MAX ? fmaxl(v, x) : fminl(v, x);
    } else {
      v += x;
      off += x_off + half_unit * fabsl(v);
    }
  }
  const long double got = element_number(element_bits(after + c->place[SOURCES] + at, w->type), w->type);
  return fabsl(got - v) <= off * 1.25L + w->nsrc * ldexpl(1, float_of[w->type].smallest);
}

static bool check(const struct one *c, char *why, size_t size) {
  const int type = c->w.type;
  for (size_t i = 0; i < CASES_MEMORY; i++)
    if (after[i] != expected[i])
      return wrong(why, size, "byte %zu of region %zu is 0x%02x, the host's kernels say 0x%02x", i % REGION, i / REGION,
                   (unsigned char)after[i], (unsigned char)expected[i]);
  for (uint64_t i = 0; i < c->w.count; i++) {
    if (rt_type_is_integer(type) ? !integer_agrees(c, i) : c->plain && !float_agrees(c, i))
      return wrong(why, size, "element %d is far from the reference", (int)i);
  }
  return true;
}

static bool run(const struct cases_machine *m, const struct one *c, char *why, size_t size) {
  fill(c);
  expect(c);
  if (!m->write(m->memory, before, CASES_MEMORY)) return wrong(why, size, "the memory cannot be written");
  if (!m->reduce_copy(&c->w, c->blocks, c->threads)) return wrong(why, size, "the kernel does not start");
  if (!m->read(after, m->memory, CASES_MEMORY)) return wrong(why, size, "the memory cannot be read");
  return check(c, why, size);
}

int cases_run(const struct cases_machine *m, int type, int op, bool few, char *why, size_t size) {
  unsigned number = (unsigned)(type * RT_OP_COUNT + op);
  int done = 0;
  seed = 88172645463325252u + number;
  for (unsigned a = 0; a < RAIL_COUNT_OF(alignments); a++) {
    for (unsigned s = 0; s < RAIL_COUNT_OF(sizes); s++, number += 7) {
      struct one c;
      char what[200];
      if (few && (a + s) % 5 != 0) continue;
      choose(&c, m, type, op, number, a, sizes[s]);
      if (run(m, &c, what, sizeof what)) {
        done++;
        continue;
      }
      wrong(why, size, "%s op %d, alignment %u, %u elements, %d to %d, npre %d, last %d, grid %u x %u%s: %s",
            rt_type_name(type), op, a, sizes[s], c.w.nsrc, c.w.ndst, c.w.npre, c.w.last, c.blocks, c.threads,
            number % 4 == 3 ? ", in place" : "", what);
      return -1;
    }
  }
  return done;
}
