/* SPDX-License-Identifier: Apache-2.0
 *
 * Primitives of one step on the host: move and combine its elements for both protocols.
 *
 * Simple: the step's bytes as they are; published by the counters.
 * LL: lines of 16 bytes {data, flag, data, flag}; flag = step + 1 in every half.
 * A line needs no counter: each 8-byte half is stored atomically, so a half with the expected
 * flag has its data. Half the bandwidth, one cache miss less.
 */
#ifndef RT_PRIMS_H
#define RT_PRIMS_H

#include <assert.h>
#include <string.h>

#include "core/host/rt_program.h"
#include "core/host/rt_types.h"

#define RT_LL_LINE 16u   /* bytes of a line */
#define RT_LL_PAYLOAD 8u /* bytes it carries */
/* Flags have 32 bits. Every 2^27 steps all slots are written to their ends once, so that no line that short messages
 * do not reach keeps a flag from 2^32 steps ago. */
#define RT_LL_CLEAN_MASK 0x07fffff8u

/* ---- Simple ------------------------------------------------------------ */

/* Operations besides the reduction. */
#define RT_PRIM_PRE 0x1u  /* local is a rank's own input */
#define RT_PRIM_POST 0x2u /* the result is final */

/* out, out2 = op(in, local). One of in and local may be NULL, which makes it a copy; so may the outputs. Where there is
 * no pre-operation, in may be out. */
static inline void rt_prim_combine(const struct rt_program *prog, char *out, char *out2, const char *in,
                                   const char *local, unsigned what, uint64_t n) {
  const struct rt_reduce_fns *f = prog->fns;
  size_t bytes = (size_t)(n * prog->sched.esize);
  if (n == 0) return;
  if (!out) {
    out = out2;
    out2 = NULL;
  }
  if (!out) return;
  bool pre = what & RT_PRIM_PRE && f && f->pre, post = what & RT_PRIM_POST && f && f->post;
  if (!in || !local) {
    const char *from = in ? in : local;
    if (local && pre) {
      f->pre(out, local, (size_t)n, &prog->scalar);
      from = out;
    }
    if (post) {
      f->post(out, from, (size_t)n, &prog->scalar);
      from = out;
    }
    if (out2)
      rt_copy2(out, out2, from, bytes);
    else
      rt_copy(out, from, bytes);
    return;
  }
  assert(f); /* two inputs need an operation */
  if (pre) {
    f->pre(out, local, (size_t)n, &prog->scalar);
    local = out;
  }
  if (out2 && !post) {
    f->reduce2(out, out2, in, local, (size_t)n);
    return;
  }
  f->reduce(out, in, local, (size_t)n);
  if (post) f->post(out, out, (size_t)n, &prog->scalar);
  if (out2) rt_copy(out2, out, bytes);
}

/* ---- LL ---------------------------------------------------------------- */

RT_HD uint32_t rt_ll_flag(uint64_t step) { return (uint32_t)(step + 1); }

/* How many of `lines` from `from` on have arrived in a row. */
static inline uint64_t rt_ll_arrived(const char *slot, uint64_t from, uint64_t lines, uint32_t flag) {
  const uint64_t *half = (const uint64_t *)(const void *)slot;
  while (from < lines) {
    uint64_t a = __atomic_load_n(&half[2 * from], __ATOMIC_ACQUIRE);
    uint64_t b = __atomic_load_n(&half[2 * from + 1], __ATOMIC_ACQUIRE);
    if ((uint32_t)(a >> 32) != flag || (uint32_t)(b >> 32) != flag) break;
    from++;
  }
  return from;
}

/* Payload of lines that have arrived, into plain memory. */
static inline void rt_ll_unpack(char *out, const char *slot, uint64_t bytes) {
  const uint64_t *half = (const uint64_t *)(const void *)slot;
  for (uint64_t i = 0, at = 0; at < bytes; i++, at += 4) {
    uint32_t data = (uint32_t)__atomic_load_n(&half[i], __ATOMIC_RELAXED);
    memcpy(out + at, &data, (size_t)(bytes - at < 4 ? bytes - at : 4));
  }
}

/* Plain memory into `lines` lines; those beyond the payload carry zeros. */
static inline void rt_ll_pack(char *slot, const char *in, uint64_t bytes, uint64_t lines, uint32_t flag) {
  uint64_t *half = (uint64_t *)(void *)slot;
  for (uint64_t i = 0; i < 2 * lines; i++) {
    uint32_t data = 0;
    uint64_t at = 4 * i;
    if (at < bytes) memcpy(&data, in + at, (size_t)(bytes - at < 4 ? bytes - at : 4));
    __atomic_store_n(&half[i], (uint64_t)flag << 32 | data, __ATOMIC_RELEASE);
  }
}

#endif
