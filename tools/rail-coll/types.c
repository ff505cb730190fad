/* SPDX-License-Identifier: Apache-2.0
 *
 * Element formats from their definitions, with frexp and ldexp: slow, plain, and
 * nothing in common with the runtime's bit tricks that they check.
 */
#include <math.h>
#include <string.h>

#include "tools/rail-coll/coll.h"

static const struct rc_type types[ncclNumTypes] = {
    [ncclInt8] = {"int8", 1, false, true, 0, 0},
    [ncclUint8] = {"uint8", 1, false, false, 0, 0},
    [ncclInt32] = {"int32", 4, false, true, 0, 0},
    [ncclUint32] = {"uint32", 4, false, false, 0, 0},
    [ncclInt64] = {"int64", 8, false, true, 0, 0},
    [ncclUint64] = {"uint64", 8, false, false, 0, 0},
    [ncclFloat16] = {"half", 2, true, true, 11, 0x1p-24},
    [ncclFloat32] = {"float", 4, true, true, 24, 0x1p-149},
    [ncclFloat64] = {"double", 8, true, true, 53, 0x1p-1074},
    [ncclBfloat16] = {"bfloat16", 2, true, true, 8, 0x1p-133},
    [ncclFloat8e4m3] = {"f8e4m3", 1, true, true, 4, 0x1p-9},
    [ncclFloat8e5m2] = {"f8e5m2", 1, true, true, 3, 0x1p-16},
};

static const char *const ops[RC_OP_COUNT] = {
    [ncclSum] = "sum", [ncclProd] = "prod", [ncclMax] = "max",
    [ncclMin] = "min", [ncclAvg] = "avg",   [RC_OP_MULSUM] = "mulsum",
};

/* The small floats: sign, exponent, mantissa. `finite_top`: the all-ones exponent
 * holds numbers too, and only its all-ones mantissa is no number (e4m3). */
struct small {
  int exponent, mantissa;
  bool finite_top;
};

static const struct small *small_of(int type) {
  static const struct small half = {5, 10, false}, bfloat = {8, 7, false}, e4m3 = {4, 3, true}, e5m2 = {5, 2, false};
  switch (type) {
    case ncclFloat16: return &half;
    case ncclBfloat16: return &bfloat;
    case ncclFloat8e4m3: return &e4m3;
    case ncclFloat8e5m2: return &e5m2;
    default: return NULL;
  }
}

const struct rc_type *rc_type(int type) { return &types[type]; }
const char *rc_op_name(int op) { return op < 0 ? "none" : ops[op]; }

int rc_type_find(const char *name, size_t len) {
  for (int i = 0; i < ncclNumTypes; i++)
    if (strlen(types[i].name) == len && strncmp(types[i].name, name, len) == 0) return i;
  return -1;
}

int rc_op_find(const char *name, size_t len) {
  for (int i = 0; i < RC_OP_COUNT; i++)
    if (strlen(ops[i]) == len && strncmp(ops[i], name, len) == 0) return i;
  return -1;
}

static double decode_small(const struct small *s, unsigned bits) {
  int bias = (1 << (s->exponent - 1)) - 1, top = (1 << s->exponent) - 1;
  int m = (int)(bits & ((1u << s->mantissa) - 1));
  int e = (int)(bits >> s->mantissa) & top;
  double sign = bits >> (s->exponent + s->mantissa) ? -1.0 : 1.0;
  if (e == top && !s->finite_top) return m ? (double)NAN : sign * (double)INFINITY;
  if (e == top && m == (1 << s->mantissa) - 1) return (double)NAN;
  if (e == 0) return sign * ldexp(m, 1 - bias - s->mantissa);
  return sign * ldexp(m + (1 << s->mantissa), e - bias - s->mantissa);
}

/* Inputs are finite and in range; a value too large for the type would be a mistake here, not in what is tested. */
static unsigned encode_small(const struct small *s, double value) {
  int bias = (1 << (s->exponent - 1)) - 1, e;
  unsigned sign = (signbit(value) ? 1u : 0u) << (s->exponent + s->mantissa);
  double a = fabs(value);
  if (a == 0) return sign;
  (void)frexp(a, &e); /* a = f * 2^e, f in [1/2, 1) */
  int unit = e - 1 - s->mantissa, least = 1 - bias - s->mantissa;
  if (unit < least) unit = least;
  /* In units of its last place it is an integer after rounding: below 2^mantissa a subnormal; 2^(mantissa+1)
   * when it was rounded up to the next power, for which the same sum is right too. */
  double q = nearbyint(ldexp(a, -unit));
  return sign | (((unsigned)(unit - least) << s->mantissa) + (unsigned)q);
}

double rc_decode(int type, const void *at) {
  const struct small *s = small_of(type);
  if (type == ncclFloat64) {
    double d;
    memcpy(&d, at, sizeof d);
    return d;
  }
  if (!s) {
    float f;
    memcpy(&f, at, sizeof f);
    return (double)f;
  }
  if (types[type].size == 1) return decode_small(s, *(const uint8_t *)at);
  uint16_t h;
  memcpy(&h, at, sizeof h);
  return decode_small(s, h);
}

void rc_encode(int type, double value, void *at) {
  const struct small *s = small_of(type);
  if (type == ncclFloat64) {
    memcpy(at, &value, sizeof value);
  } else if (!s) {
    float f = (float)value;
    memcpy(at, &f, sizeof f);
  } else if (types[type].size == 1) {
    uint8_t b = (uint8_t)encode_small(s, value);
    memcpy(at, &b, sizeof b);
  } else {
    uint16_t h = (uint16_t)encode_small(s, value);
    memcpy(at, &h, sizeof h);
  }
}
