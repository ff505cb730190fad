/* SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic of the collectives on host memory. A collective looks up its type
 * and operation once and then calls through the struct, chunk after chunk.
 *
 * A reduction over ranks is, in this order:
 *   1. pre, where not NULL, on each rank's own input before it is reduced;
 *   2. reduce along the ring or tree;
 *   3. post, where not NULL, once on the finished sum.
 * pre needs no memory of its own: scale the input into the destination of the
 * reduction, then reduce there in place.
 *
 * All of them: pointers at any byte address; n counts elements, 0 is fine (and
 * pointers may be NULL then). A destination may be exactly equal to a source;
 * any other overlap, and dst == dst2, is not allowed. No state, no errors, safe
 * from any thread. The result has the same bits whatever instruction set runs,
 * and whichever operand comes first.
 *
 * What is computed; the aim is what NCCL computes on a GPU, taken from reading its
 * kernels and not yet compared on one:
 * - integers wrap;
 * - f16, bf16 and fp8 are computed in float and rounded once, at each step of
 *   the ring or tree (float is wide enough for that to equal the exact sum or
 *   product rounded); fp8 saturates to finite, see rt_types.h;
 * - a NaN that comes out is always the one with a clear sign and all other bits
 *   set (what NVIDIA's arithmetic gives for float and smaller; double follows);
 * - float min and max: as fmin and fmax, of a NaN and a number the result is the number, and -0 is
 *   less than +0; only two NaNs make a NaN. e5m2's infinity comes out as its
 *   largest finite value, since NCCL converts back with saturation;
 * - avg of floats: each input times 1/ranks, that factor rounded to the type
 *   (fp8 therefore averages coarsely over 3 ranks, and no less so in NCCL), then
 *   the sum. Avg of integers: the wrapped sum, divided at the end, toward zero.
 */
#ifndef RT_REDUCE_H
#define RT_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/host/rt_types.h"

/* Values of ncclRedOp_t; PREMULSUM is the operation of a handle of ncclRedOpCreatePreMulSum. */
enum rt_redop { RT_SUM = 0, RT_PROD = 1, RT_MAX = 2, RT_MIN = 3, RT_AVG = 4, RT_PREMULSUM = 5, RT_OP_COUNT };

/* The argument of pre and post, written by rt_scalar_avg or rt_scalar_premul.
 * The type (and, for integers, the op) decides which member is used. */
union rt_scalar {
  uint64_t u64;     /* integers: the factor, its low bits */
  uint32_t divisor; /* integers, avg: number of ranks */
  float f32;        /* f32 and all smaller floats: the factor */
  double f64;
};

struct rt_reduce_fns {
  void (*pre)(void *dst, const void *src, size_t n, const union rt_scalar *arg);
  void (*reduce)(void *dst, const void *a, const void *b, size_t n);
  /* The same result to two destinations: what a ring step stores and sends on. */
  void (*reduce2)(void *dst, void *dst2, const void *a, const void *b, size_t n);
  void (*post)(void *dst, const void *src, size_t n, const union rt_scalar *arg);
};

/* The functions for one type and operation; NULL if either number is unknown.
 * The first call detects the processor's instruction sets. */
const struct rt_reduce_fns *rt_reduce_lookup(int type, int op);

/* Fills *arg for RT_AVG over nranks >= 1 ranks: for floats the argument of pre, for integers that of post. */
void rt_scalar_avg(union rt_scalar *arg, int type, int nranks);
/* Fills *arg for RT_PREMULSUM from one element of the type, at any address. */
void rt_scalar_premul(union rt_scalar *arg, int type, const void *value);

/* Instruction sets, worst first. The names are those of RAIL_SIMD. */
enum rt_simd { RT_SIMD_AUTO = -1, RT_SIMD_BASE = 0, RT_SIMD_AVX2, RT_SIMD_AVX512, RT_SIMD_COUNT };

/* Number of a name (auto, base, avx2, avx512), or -2. */
int rt_simd_from_name(const char *name);
const char *rt_simd_name(int simd);
/* From the next lookup on use this set. False, and nothing changes, if this build or this machine lacks it. */
bool rt_reduce_force_simd(int simd);
/* The set in use. */
int rt_reduce_simd(void);

/* n bytes; dst == src is allowed and does nothing, other overlap is not. */
void rt_copy(void *dst, const void *src, size_t n);
/* n bytes to two destinations; either may equal src. */
void rt_copy2(void *dst, void *dst2, const void *src, size_t n);

/* The functions of each instruction set, by type and operation, made of rt_reduce_impl.c; rt_reduce_lookup chooses. */
typedef const struct rt_reduce_fns rt_reduce_table[RT_TYPE_COUNT][RT_OP_COUNT];
extern rt_reduce_table rt_reduce_table_base, rt_reduce_table_avx2, rt_reduce_table_avx512;

#endif
