/* SPDX-License-Identifier: Apache-2.0
 * Reductions of all types. Integers are unsigned throughout: sums and products are the same bits, and NCCL hands over a
 * mask by which the smallest or largest of signed ones is found. Floats smaller than 32 bits are computed in 32. */
#include "ghost/nccl/gh_reduce.h"

#include <math.h>

size_t gh_type_size(enum gh_type type) {
  static const size_t sizes[GH_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

/* ---- floats of 8 and 16 bits ---- */

struct small {
  int exponent, mantissa; /* bits */
  bool infinities;        /* else the largest exponent is for numbers, too, and only all ones are NaN */
  bool saturates;         /* what is too large becomes the largest number: so do conversions to fp8 */
};

static const struct small *small_of(enum gh_type type) {
  static const struct small half = {5, 10, true, false}, bfloat = {8, 7, true, false}, e4m3 = {4, 3, false, true},
                            e5m2 = {5, 2, true, true};
  return type == GH_FLOAT16 ? &half : type == GH_BFLOAT16 ? &bfloat : type == GH_FLOAT8E4M3 ? &e4m3 : &e5m2;
}

static float widen(const struct small *s, unsigned bits) {
  int top = (1 << s->exponent) - 1, bias = top / 2, e = (int)(bits >> s->mantissa) & top;
  unsigned m = bits & ((1u << s->mantissa) - 1);
  float sign = bits >> (s->exponent + s->mantissa) & 1 ? -1.0f : 1.0f;
  if (e == top && s->infinities) return m ? NAN : sign * INFINITY;
  if (e == top && m == (1u << s->mantissa) - 1) return NAN;
  if (e == 0) return sign * ldexpf((float)m, 1 - bias - s->mantissa);
  return sign * ldexpf((float)(m | 1u << s->mantissa), e - bias - s->mantissa);
}

/* To the nearest; of two, to the even one. */
static unsigned narrow(const struct small *s, float x) {
  int top = (1 << s->exponent) - 1, bias = top / 2, e;
  unsigned sign = (signbit(x) ? 1u : 0u) << (s->exponent + s->mantissa), ones = (1u << s->mantissa) - 1;
  unsigned infinity = (unsigned)top << s->mantissa,
           nan = s->infinities ? infinity | 1u << (s->mantissa - 1) : infinity | ones;
  unsigned largest = s->infinities ? infinity - 1 : nan - 1;
  if (isnan(x)) return sign | nan;
  if (isinf(x)) return sign | (s->saturates ? largest : infinity);
  frexpf(x, &e); /* x is 0.5 to 1 times 2^e */
  if (x == 0) return sign;
  int scale = e - 1 < 1 - bias ? 1 - bias : e - 1; /* below that, numbers have leading zeros */
  unsigned long m = (unsigned long)nearbyintf(ldexpf(fabsf(x), s->mantissa - scale));
  /* Rounding up to the next power carries into the exponent, which is what it shall do. */
  unsigned long bits = ((unsigned long)(scale + bias - 1) << s->mantissa) + m;
  if (bits > largest) return sign | (s->saturates ? largest : infinity);
  return sign | (unsigned)bits;
}

static float load_small(enum gh_type type, const void *p, size_t i) {
  const struct small *s = small_of(type);
  return widen(s, gh_type_size(type) == 1 ? ((const uint8_t *)p)[i] : ((const uint16_t *)p)[i]);
}

static void store_small(enum gh_type type, void *p, size_t i, float x) {
  const struct small *s = small_of(type);
  if (gh_type_size(type) == 1) ((uint8_t *)p)[i] = (uint8_t)narrow(s, x);
  else ((uint16_t *)p)[i] = (uint16_t)narrow(s, x);
}

static float float_op(enum gh_op op, uint64_t argument, float a, float b) {
  switch (op) {
    case GH_PROD: return a * b;
    case GH_MINMAX: return argument & 1 ? fmaxf(a, b) : fminf(a, b);
    default: return a + b;
  }
}

static double double_op(enum gh_op op, uint64_t argument, double a, double b) {
  switch (op) {
    case GH_PROD: return a * b;
    case GH_MINMAX: return argument & 1 ? fmax(a, b) : fmin(a, b);
    default: return a + b;
  }
}

/* ---- two operands ---- */

#define INTEGERS(T)                                                              \
  do {                                                                           \
    T *o = out;                                                                  \
    const T *x = a, *y = b, mask = (T)r->argument;                               \
    if (r->op == GH_PROD)                                                        \
      for (size_t i = 0; i < n; i++) o[i] = (T)((uint64_t)x[i] * y[i]);          \
    else if (r->op == GH_MINMAX)                                                 \
      for (size_t i = 0; i < n; i++) o[i] = (T)(x[i] ^ mask) < (T)(y[i] ^ mask) ? x[i] : y[i]; \
    else                                                                         \
      for (size_t i = 0; i < n; i++) o[i] = (T)(x[i] + y[i]);                    \
  } while (0)

void gh_reduce(const struct gh_reduction *r, void *out, const void *a, const void *b, size_t n) {
  switch (r->type) {
    case GH_INT8:
    case GH_UINT8: INTEGERS(uint8_t); return;
    case GH_INT32:
    case GH_UINT32: INTEGERS(uint32_t); return;
    case GH_INT64:
    case GH_UINT64: INTEGERS(uint64_t); return;
    case GH_FLOAT32:
      for (size_t i = 0; i < n; i++)
        ((float *)out)[i] = float_op(r->op, r->argument, ((const float *)a)[i], ((const float *)b)[i]);
      return;
    case GH_FLOAT64:
      for (size_t i = 0; i < n; i++)
        ((double *)out)[i] = double_op(r->op, r->argument, ((const double *)a)[i], ((const double *)b)[i]);
      return;
    default:
      for (size_t i = 0; i < n; i++)
        store_small(r->type, out, i,
                    float_op(r->op, r->argument, load_small(r->type, a, i), load_small(r->type, b, i)));
  }
}

/* ---- one operand ---- */

#define MULTIPLY(T)                                                                         \
  do {                                                                                      \
    T factor;                                                                               \
    memcpy(&factor, &r->argument, sizeof factor);                                           \
    for (size_t i = 0; i < n; i++) ((T *)out)[i] = (T)(((const T *)in)[i] * factor);         \
  } while (0)

void gh_reduce_before(const struct gh_reduction *r, void *out, const void *in, size_t n) {
  if (r->op != GH_PREMULSUM) {
    if (out != in) memmove(out, in, n * gh_type_size(r->type));
    return;
  }
  switch (r->type) {
    case GH_INT8:
    case GH_UINT8: MULTIPLY(uint8_t); return;
    case GH_INT32:
    case GH_UINT32: MULTIPLY(uint32_t); return;
    case GH_INT64:
    case GH_UINT64: MULTIPLY(uint64_t); return;
    case GH_FLOAT32: MULTIPLY(float); return;
    case GH_FLOAT64: MULTIPLY(double); return;
    default:
      for (size_t i = 0; i < n; i++)
        store_small(r->type, out, i, load_small(r->type, in, i) * load_small(r->type, &r->argument, 0));
  }
}

/* Towards zero. The argument's last bit: the integers are signed. */
#define DIVIDE(T, S)                                                                            \
  do {                                                                                          \
    for (size_t i = 0; i < n; i++) {                                                            \
      T *x = &((T *)out)[i];                                                                    \
      *x = r->argument & 1 ? (T)((S)*x / (S)divisor) : (T)(*x / (T)divisor);                    \
    }                                                                                           \
  } while (0)

void gh_reduce_after(const struct gh_reduction *r, void *out, size_t n) {
  uint32_t divisor = (uint32_t)(r->argument >> 1);
  if (r->op != GH_SUMPOSTDIV || divisor == 0) return;
  switch (r->type) {
    case GH_INT8:
    case GH_UINT8:
      for (size_t i = 0; i < n; i++) { /* a divisor may be larger than the type's numbers */
        uint8_t *x = &((uint8_t *)out)[i];
        *x = r->argument & 1 ? (uint8_t)((int8_t)*x / (int)divisor) : (uint8_t)(*x / divisor);
      }
      return;
    case GH_INT32:
    case GH_UINT32: DIVIDE(uint32_t, int32_t); return;
    case GH_INT64:
    case GH_UINT64: DIVIDE(uint64_t, int64_t); return;
    default: return;
  }
}
