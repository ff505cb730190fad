/* SPDX-License-Identifier: Apache-2.0
 * Which instruction set's functions to use, the arguments of pre and post, copies. */
#include "core/host/rt_reduce.h"

#include <stdatomic.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "common/base/compiler.h"
#include "core/host/rt_element.h"
#include "core/host/rt_types.h"

/* rt_copy2 goes over the source in pieces that stay in the first-level cache between the two copies. */
#define COPY2_PIECE 8192

static const char *const simd_names[RT_SIMD_COUNT] = {"base", "avx2", "avx512"};

#ifdef __x86_64__
/* __builtin_cpu_supports knows "f16c" only in newer compilers. Meaningful once avx2
 * is known to be usable: that already says the system saves the wide registers. */
static bool has_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

/* What was compiled in; NULL where it was not. */
static const rt_reduce_table *table_of(int simd) {
  switch (simd) {
    case RT_SIMD_BASE: return &rt_reduce_table_base;
#if defined(__x86_64__)
    case RT_SIMD_AVX2: return &rt_reduce_table_avx2;
    case RT_SIMD_AVX512: return &rt_reduce_table_avx512;
#endif
    default: return NULL;
  }
}

/* Does this processor have it? Not for hot paths: in a virtual machine CPUID traps, which takes microseconds. */
static bool runs(int simd) {
#if defined(__x86_64__)
  if (simd == RT_SIMD_AVX2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (simd == RT_SIMD_AVX512)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && runs(RT_SIMD_AVX2);
#endif
  return table_of(simd) != NULL;
}

static int best_simd(void) {
  for (int simd = RT_SIMD_COUNT - 1; simd > RT_SIMD_BASE; simd--)
    if (runs(simd)) return simd;
  return RT_SIMD_BASE;
}

/* RT_SIMD_AUTO until the first lookup. Two threads that race there compute the same
 * value, and nothing else is published through it, so relaxed order is enough. */
static atomic_int simd_in_use = RT_SIMD_AUTO;

int rt_reduce_simd(void) {
  int simd = atomic_load_explicit(&simd_in_use, memory_order_relaxed);
  if (simd != RT_SIMD_AUTO) return simd;
  int best = best_simd();
  /* Only if still undecided: a set forced meanwhile must not be lost. */
  if (atomic_compare_exchange_strong_explicit(&simd_in_use, &simd, best, memory_order_relaxed, memory_order_relaxed))
    return best;
  return simd;
}

bool rt_reduce_force_simd(int simd) {
  if (simd != RT_SIMD_AUTO && !runs(simd)) return false;
  atomic_store_explicit(&simd_in_use, simd == RT_SIMD_AUTO ? best_simd() : simd, memory_order_relaxed);
  return true;
}

int rt_simd_from_name(const char *name) {
  if (strcmp(name, "auto") == 0) return RT_SIMD_AUTO;
  for (int simd = 0; simd < RT_SIMD_COUNT; simd++)
    if (strcmp(name, simd_names[simd]) == 0) return simd;
  return -2;
}

const char *rt_simd_name(int simd) {
  return simd >= 0 && simd < RT_SIMD_COUNT ? simd_names[simd] : "auto";
}

const struct rt_reduce_fns *rt_reduce_lookup(int type, int op) {
  if (type < 0 || type >= RT_TYPE_COUNT || op < 0 || op >= RT_OP_COUNT) return NULL;
  return &(*table_of(rt_reduce_simd()))[type][op];
}

/* The factor f as a value of the small type can hold it. */
static float rounded_to(int type, float f) {
  switch (type) {
    case RT_FLOAT16: return rt_f16_to_f32(rt_f32_to_f16(f));
    case RT_BFLOAT16: return rt_bf16_to_f32(rt_f32_to_bf16(f));
    case RT_FLOAT8E4M3: return rt_e4m3_to_f32(rt_f32_to_e4m3(f));
    case RT_FLOAT8E5M2: return rt_e5m2_to_f32(rt_f32_to_e5m2(f));
    default: return f;
  }
}

void rt_scalar_avg(union rt_scalar *arg, int type, int nranks) {
  *arg = (union rt_scalar){.u64 = 0};
  switch (type) {
    case RT_FLOAT64: arg->f64 = 1.0 / nranks; break;
    case RT_FLOAT32:
    case RT_FLOAT16:
    case RT_BFLOAT16:
    case RT_FLOAT8E4M3:
    case RT_FLOAT8E5M2: arg->f32 = rounded_to(type, (float)(1.0 / nranks)); break;
    default: arg->divisor = (uint32_t)nranks;
  }
}

void rt_scalar_premul(union rt_scalar *arg, int type, const void *value) {
  uint64_t bits = 0;
  /* Low bytes first on every machine we build for; the factor's upper bits do not matter to wrapped products. */
  memcpy(&bits, value, rt_type_size(type));
  *arg = rt_factor(type, bits);
}

/* The C library's memcpy already switches to streaming stores where they win. */
void rt_copy(void *dst, const void *src, size_t n) {
  if (n > 0 && dst != src) memcpy(dst, src, n);
}

void rt_copy2(void *dst, void *dst2, const void *src, size_t n) {
  for (size_t at = 0; at < n; at += COPY2_PIECE) {
    size_t piece = RAIL_MIN(n - at, (size_t)COPY2_PIECE);
    const char *from = (const char *)src + at;
    rt_copy((char *)dst + at, from, piece);
    rt_copy((char *)dst2 + at, from, piece);
  }
}
