/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of the protocols whose lines carry flags: no thread waits for another, and
 * data is used as soon as its own line is there. A line that came in is combined
 * with the local input in registers, stored to the local output, and sent on.
 *
 * LL     lines of 16 bytes, 8 of them data; flag = step + 1 in 32 bits, twice.
 *        Written as rt_prims.h writes them, whole slots now and then included.
 * LL128  lines of 128 bytes, 120 of them data; flag = step + 1 in 64 bits, which never comes again.
 *        The block's size is a multiple of 8, on a GPU of 32.
 *
 * A thread has RD_LINES lines in hand at a time: first it asks for its local input of all of them, then for the lines,
 * and only then waits for the first. Lines that are there already so cost one trip to memory together.
 *
 * LL128's lines that may come in parts are not looked at until tail has the step.
 *
 * Credit is as with Simple. Tail is published, too, once all lines of a step are
 * written: a receiver whose step is not the sender's waits for a line that will not come, and
 * learns that from tail. What the slot says of the step can be read only then.
 */
#ifndef RD_LL_CUH
#define RD_LL_CUH

#include "core/device/rd_fifo.cuh"
#include "core/device/rd_reduce.cuh"
#include "core/host/rt_prims.h"

#define RD_LL128_LINE RT_LL128_LINE
#define RD_LL128_PAYLOAD RT_LL128_PAYLOAD

#define RD_LINES 4 /* that a thread, or with LL128 8 of them, has in hand */

/* ---- words of 8 bytes ---- */

/* Word number i of n bytes at any address; what is beyond the end reads as zeros. */
RD_FN uint64_t rd_word_load(const char *p, uint64_t i, uint64_t n) {
  const uint64_t at = 8 * i;
  if (at + 8 <= n && ((uintptr_t)p + at) % 8 == 0) return *(const uint64_t *)(const void *)(p + at);
  uint64_t word = 0;
  for (unsigned b = 0; b < 8 && at + b < n; b++) word |= (uint64_t)(uint8_t)p[at + b] << 8 * b;
  return word;
}

RD_FN void rd_word_store(char *p, uint64_t i, uint64_t n, uint64_t word) {
  const uint64_t at = 8 * i;
  if (at + 8 <= n && ((uintptr_t)p + at) % 8 == 0) {
    *(uint64_t *)(void *)(p + at) = word;
    return;
  }
  for (unsigned b = 0; b < 8 && at + b < n; b++) p[at + b] = (char)(uint8_t)(word >> 8 * b);
}

/* ---- a step ---- */

/* All of it may lie in shared memory. */
struct rd_lines {
  const char *in;    /* the slot a step comes in by, or NULL */
  bool tail_first;   /* LL128: a line there may come in parts */
  char *out;         /* the slot it goes out by, or NULL */
  const char *local; /* local input, or NULL */
  char *dst;         /* local output, or NULL */
  uint64_t bytes;    /* payload */
  uint64_t in_step, out_step;
  uint64_t out_lines;   /* as many are written, and those beyond the payload with zeros */
  const uint64_t *tail; /* of the FIFO it comes in by */
  const uint32_t *abort;
  /* What becomes of local input and what came in, as rt_reduce_copy.h says. */
  int type, op;
  unsigned what; /* RD_PRE, RD_REDUCE, RD_POST */
  union rt_scalar scalar;
};

/* The local input's words i and, but for RD_HALF, i + 1. */
RD_FN struct rd_pack rd_line_local(const struct rd_lines &l, uint64_t i, unsigned half) {
  struct rd_pack local = {};
  if (!l.local) return local;
  local.word[0] = rd_word_load(l.local, i, l.bytes);
  if (!half) local.word[1] = rd_word_load(l.local, i + 1, l.bytes);
  return local;
}

/* These, combined with those that came in, and stored where they are wanted here. */
RD_FN struct rd_pack rd_line_step(const struct rd_lines &l, uint64_t i, unsigned half, const struct rd_pack &local,
                                  const struct rd_pack &in) {
  struct rd_pack value = l.local ? local : in;
  if (l.what) value = rd_pack_compute(l.type, l.op, l.what | half, l.scalar, value, in);
  if (l.dst) rd_word_store(l.dst, i, l.bytes, value.word[0]);
  if (l.dst && !half) rd_word_store(l.dst, i + 1, l.bytes, value.word[1]);
  return value;
}

/* A line has not come yet. True: look a last time, since the wait was aborted, or all lines of the step are there. */
RD_FN bool rd_line_give_up(const struct rd_lines &l, uint32_t *looks) {
  if (rd_wait_aborted(looks, l.abort)) return true;
  return *looks % RD_ABORT_LOOK == 0 && rd_load_acquire_sys(l.tail) > l.in_step;
}

/* ---- LL ---------------------------------------------------------------- */

/* One at least, so that even an empty step arrives. */
RD_FN uint64_t rd_ll_lines(uint64_t bytes) { return bytes ? (bytes + RT_LL_PAYLOAD - 1) / RT_LL_PAYLOAD : 1; }

/* Lines that the step is written with. */
RD_FN uint64_t rd_ll_out_lines(const struct rd_fifo *f, uint64_t bytes) {
  if ((f->step & RT_LL_CLEAN_MASK) == RT_LL_CLEAN_MASK) return f->slot_size / RT_LL_LINE;
  return rd_ll_lines(bytes);
}

RD_FN bool rd_ll_wait(const struct rd_lines &l, uint64_t i, uint64_t *word) {
  const char *line = l.in + i * RT_LL_LINE;
  const uint32_t flag = rt_ll_flag(l.in_step);
  uint32_t looks = 0;
  while (!rd_ll_load(line, word, flag))
    if (rd_line_give_up(l, &looks)) return rd_ll_load(line, word, flag);
  return true;
}

/* The part of thread number `thread` of `nthreads`. False when a line did not come: then not all of it is done. */
RD_CALL bool rd_ll_step(const struct rd_lines &l, uint32_t thread, uint32_t nthreads) {
  const uint64_t lines = rd_ll_lines(l.bytes), all = l.out && l.out_lines > lines ? l.out_lines : lines;
  for (uint64_t first = thread; first < all; first += RD_LINES * (uint64_t)nthreads) {
    struct rd_pack local[RD_LINES], in[RD_LINES] = {};
    bool came[RD_LINES] = {};
#pragma unroll
    for (unsigned u = 0; u < RD_LINES; u++) local[u] = rd_line_local(l, first + u * (uint64_t)nthreads, RD_HALF);
#pragma unroll
    for (unsigned u = 0; u < RD_LINES; u++) {
      const uint64_t i = first + u * (uint64_t)nthreads;
      if (l.in && i < lines) came[u] = rd_ll_load(l.in + i * RT_LL_LINE, &in[u].word[0], rt_ll_flag(l.in_step));
    }
#pragma unroll
    for (unsigned u = 0; u < RD_LINES; u++) {
      const uint64_t i = first + u * (uint64_t)nthreads;
      if (i >= all) break;
      if (i < lines) {
        if (l.in && !came[u] && !rd_ll_wait(l, i, &in[u].word[0])) return false;
        in[u] = rd_line_step(l, i, RD_HALF, local[u], in[u]);
      }
      if (l.out) rd_ll_store(l.out + i * RT_LL_LINE, in[u].word[0], rt_ll_flag(l.out_step));
    }
  }
  return true;
}

/* ---- LL128 ------------------------------------------------------------- */

RD_FN uint64_t rd_ll128_lines(uint64_t bytes) {
  return bytes ? (bytes + RD_LL128_PAYLOAD - 1) / RD_LL128_PAYLOAD : 1;
}

RD_FN bool rd_ll128_give_up(const struct rd_lines &l, uint32_t *looks) {
  return rd_line_give_up(l, looks) || (l.tail_first && rd_load_acquire_sys(l.tail) > l.in_step);
}

/* Waits for line i. */
RD_FN bool rd_ll128_wait(const struct rd_lines &l, uint64_t i, struct rd_ll128_lane lane, uint64_t *word0,
                         uint64_t *word1) {
  const char *line = l.in + i * RD_LL128_LINE;
  const uint64_t flag = l.in_step + 1;
  uint32_t looks = 0;
  while (l.tail_first || !rd_ll128_poll(line, lane, flag, word0, word1))
    if (__any_sync(lane.mask, rd_ll128_give_up(l, &looks))) return rd_ll128_poll(line, lane, flag, word0, word1);
  return true;
}

/* As rd_ll_step; both numbers are multiples of 8 but for the lane. */
RD_CALL bool rd_ll128_step(const struct rd_lines &l, uint32_t thread, uint32_t nthreads) {
  const struct rd_ll128_lane lane = rd_ll128_lane_of(thread);
  const bool has_flag = lane.lane == RD_LL128_LANES - 1; /* in the place of a second word */
  const unsigned half = has_flag ? RD_HALF : 0;
  const uint64_t lines = rd_ll128_lines(l.bytes), apart = nthreads / RD_LL128_LANES;
  for (uint64_t i = thread / RD_LL128_LANES; i < lines; i += RD_LINES * apart) {
    unsigned n = 0;
    while (n < RD_LINES && i + n * apart < lines) n++;
    struct rd_pack local[RD_LINES], in[RD_LINES] = {};
    bool came[RD_LINES] = {};
#pragma unroll
    for (unsigned u = 0; u < RD_LINES; u++)
      local[u] = rd_line_local(l, (i + u * apart) * (RD_LL128_PAYLOAD / 8) + 2 * lane.lane, half);
    if (l.in && !l.tail_first)
      rd_ll128_look<RD_LINES>(l.in + i * RD_LL128_LINE, apart * RD_LL128_LINE, n, lane, l.in_step + 1, in, came);
#pragma unroll
    for (unsigned u = 0; u < RD_LINES; u++) {
      const uint64_t line = i + u * apart;
      if (u >= n) break;
      if (l.in && !came[u] && !rd_ll128_wait(l, line, lane, &in[u].word[0], &in[u].word[1])) return false;
      in[u] = rd_line_step(l, line * (RD_LL128_PAYLOAD / 8) + 2 * lane.lane, half, local[u], in[u]);
      if (has_flag) in[u].word[1] = l.out_step + 1;
      if (l.out) rd_ll128_store(l.out + line * RD_LL128_LINE, lane, in[u].word[0], in[u].word[1]);
    }
  }
  return true;
}

#endif
