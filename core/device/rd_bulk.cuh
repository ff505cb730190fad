/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops in which nearly all bytes go: whole packs at multiples of 16, copied, scaled, or summed from two
 * sources, into one or two destinations. Each type has a loop of its own, with its arithmetic inside.
 *
 * A thread first asks for all packs of a turn, RD_BULK from each source, and only then waits for the first: what
 * decides is how many bytes are on their way. The packs of a warp lie in a row, so that their addresses are constants
 * away from one another. What is left at the end, less than a turn, goes the same way, with some warps idle.
 */
#ifndef RD_BULK_CUH
#define RD_BULK_CUH

#include "core/device/rd_pack.cuh"

#define RD_BULK 8u /* packs of a thread's turn */
#ifdef __CUDACC__
#define RD_BULK_LANES 32u /* threads whose packs lie in a row; blocks are multiples of it, or have no bulk */
#else
#define RD_BULK_LANES 1u /* blocks of the CPU executor have few threads, of any number */
#endif

/* By integers fp8 is so much code that it has no loops. */
#if RD_NATIVE_FP8 || !defined(__CUDACC__)
#define RD_BULK_FP8 1
#else
#define RD_BULK_FP8 0
#endif

/* Addresses of whole packs, all at multiples of 16. */
struct rd_operands {
  const char *src, *src2; /* src2: where two are summed */
  char *dst, *dst2;       /* dst2: or NULL */
};

RD_FN void rd_operands_advance(struct rd_operands *p, uint64_t bytes) {
  p->src += bytes;
  if (p->src2) p->src2 += bytes;
  p->dst += bytes;
  if (p->dst2) p->dst2 += bytes;
}

/* A pack in the words that its type is computed in. */
template <int type> struct rd_bulk_pack {
  typename rd_words<type>::word word[RD_PACK / sizeof(typename rd_words<type>::word)];
};

template <int type, unsigned what>
RD_FN void rd_bulk_compute(const union rt_scalar &arg, rd_bulk_pack<type> &a, const rd_bulk_pack<type> &b) {
#pragma unroll
  for (unsigned i = 0; i < sizeof a.word / sizeof a.word[0]; i++)
    a.word[i] = rd_word_compute<type>(RT_SUM, what, arg, a.word[i], b.word[i]);
}

#define RD_BULK_APART (RD_BULK_LANES * RD_PACK) /* bytes from one pack of a thread's turn to the next */

/* A thread's turn; if not `whole`, only the first so many packs of it. */
template <int type, unsigned what, bool whole>
RD_FN void rd_bulk_turn(const struct rd_operands &p, const union rt_scalar &arg, unsigned packs) {
  rd_bulk_pack<type> a[RD_BULK] = {}, b[RD_BULK] = {}; /* or else those not loaded would be kept from turn to turn */
#pragma unroll
  for (unsigned u = 0; u < RD_BULK; u++)
    if (whole || u < packs) rd_words_load(a[u].word, p.src + u * RD_BULK_APART);
#pragma unroll
  for (unsigned u = 0; u < RD_BULK && (what & RD_REDUCE); u++)
    if (whole || u < packs) rd_words_load(b[u].word, p.src2 + u * RD_BULK_APART);
#pragma unroll
  for (unsigned u = 0; u < RD_BULK; u++) {
    if (!whole && u >= packs) break;
    rd_bulk_compute<type, what>(arg, a[u], what & RD_REDUCE ? b[u] : a[u]);
    rd_words_store(p.dst + u * RD_BULK_APART, a[u].word);
    if (p.dst2) rd_words_store(p.dst2 + u * RD_BULK_APART, a[u].word);
  }
}

template <int type, unsigned what>
RD_FN void rd_bulk_run(struct rd_operands p, uint64_t packs, union rt_scalar arg, uint32_t thread, uint32_t nthreads) {
  const uint64_t turn = (uint64_t)nthreads * RD_BULK;
  const uint64_t first = (uint64_t)(thread / RD_BULK_LANES) * RD_BULK * RD_BULK_LANES + thread % RD_BULK_LANES;
  rd_operands_advance(&p, first * RD_PACK);
#pragma unroll 1
  for (; packs >= turn; packs -= turn) {
    rd_bulk_turn<type, what, true>(p, arg, RD_BULK);
    rd_operands_advance(&p, turn * RD_PACK);
  }
  if (packs > first)
    rd_bulk_turn<type, what, false>(p, arg, (unsigned)((packs - first + RD_BULK_LANES - 1) / RD_BULK_LANES));
}

/* What a bulk of the work's shape computes, RD_PRE and RD_REDUCE; or -1: there is no loop for it. */
RD_FN int rd_bulk_what(const struct rt_reduce_copy &w, uint32_t nthreads) {
  const bool sums = w.op == RT_SUM || w.op == RT_AVG || w.op == RT_PREMULSUM;
  const int npre = rt_reduce_copy_npre(&w);
  if (nthreads % RD_BULK_LANES != 0 || w.nsrc > 2 || w.ndst > 2 || rt_reduce_copy_post(&w)) return -1;
  if (npre > 0 && (npre > 1 || rt_type_is_integer(w.type))) return -1;
  if (w.nsrc == 2 && !sums) return -1;
  if (!RD_BULK_FP8 && !rt_reduce_copy_is_copy(&w) && (w.type == RT_FLOAT8E4M3 || w.type == RT_FLOAT8E5M2)) return -1;
  return (int)((npre > 0 ? RD_PRE : 0) | (w.nsrc == 2 ? RD_REDUCE : 0));
}

#define RD_BULK_(T, what) rd_bulk_run<RT_##T, what>(p, packs, w.scalar, thread, nthreads)
#define RD_BULK_FLOAT_(T)                                        \
  case RT_##T:                                                   \
    if (what == RD_REDUCE) RD_BULK_(T, RD_REDUCE);               \
    else if (what == RD_PRE) RD_BULK_(T, RD_PRE);                \
    else RD_BULK_(T, RD_PRE | RD_REDUCE);                        \
    break;

/* So many whole packs from `at` bytes behind each of the work's pointers on. */
RD_FN void rd_bulk(const struct rt_reduce_copy &w, unsigned what, uint64_t at, uint64_t packs, uint32_t thread,
                   uint32_t nthreads) {
  struct rd_operands p;
  p.src = w.src[0] + at;
  p.src2 = w.nsrc > 1 ? w.src[1] + at : NULL;
  p.dst = w.dst[0] + at;
  p.dst2 = w.ndst > 1 ? w.dst[1] + at : NULL;
  if (what == 0) {
    RD_BULK_(UINT8, 0);
    return;
  }
  switch (w.type) { /* a sum that wraps has no sign */
    case RT_INT8:
    case RT_UINT8: RD_BULK_(UINT8, RD_REDUCE); break;
    case RT_INT32:
    case RT_UINT32: RD_BULK_(UINT32, RD_REDUCE); break;
    case RT_INT64:
    case RT_UINT64: RD_BULK_(UINT64, RD_REDUCE); break;
    RD_BULK_FLOAT_(FLOAT16)
    RD_BULK_FLOAT_(FLOAT32)
    RD_BULK_FLOAT_(FLOAT64)
    RD_BULK_FLOAT_(BFLOAT16)
#if RD_BULK_FP8
    RD_BULK_FLOAT_(FLOAT8E4M3)
    RD_BULK_FLOAT_(FLOAT8E5M2)
#endif
    default: break;
  }
}
#undef RD_BULK_
#undef RD_BULK_FLOAT_

#endif
