/* SPDX-License-Identifier: Apache-2.0
 * Small words the compiler understands: attributes, container_of, min/max. */
#ifndef RAIL_COMPILER_H
#define RAIL_COMPILER_H

#include <stddef.h>

#define RAIL_EXPORT __attribute__((visibility("default")))
#define RAIL_PRINTF(fmt_arg, first_arg) __attribute__((format(printf, fmt_arg, first_arg)))
#define RAIL_COLD __attribute__((cold, noinline))
#define RAIL_HOT_INLINE static inline __attribute__((always_inline)) /* for a hot caller, though there are others */
/* Before a loop of a few steps: no counter, no branches. */
#ifdef __clang__
#define RAIL_UNROLL _Pragma("unroll")
#else
#define RAIL_UNROLL _Pragma("GCC unroll 8")
#endif
#define RAIL_UNUSED __attribute__((unused))
#define RAIL_CACHELINE 64
#define RAIL_FALLTHROUGH __attribute__((fallthrough))
#define RAIL_ALIGNED(n) __attribute__((aligned(n)))

#define rail_likely(x) __builtin_expect(!!(x), 1)
#define rail_unlikely(x) __builtin_expect(!!(x), 0)

#define rail_container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
#define RAIL_COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define RAIL_MIN(a, b) ((a) < (b) ? (a) : (b))
#define RAIL_MAX(a, b) ((a) > (b) ? (a) : (b))
#define RAIL_DIV_UP(a, b) (((a) + (b)-1) / (b))
#define RAIL_ROUND_UP(a, b) (RAIL_DIV_UP(a, b) * (b))

/* One pause of a spinning loop. */
static inline void rail_cpu_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif
