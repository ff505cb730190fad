/* SPDX-License-Identifier: Apache-2.0
 * The kernel of fifo_pair.h. */
#ifndef DEVICE_FIFO_PAIR_CUH
#define DEVICE_FIFO_PAIR_CUH

#include "core/device/rd_ll.cuh"
#include "core/device/rd_reduce.cuh"
#include "test/device/fifo_pair.h"

/* All of this is called by all threads of a block, with a copy of struct rd_fifo each, whose steps advance alike. */

/* As rd_fifo_look; the barrier is also what carries thread 0's acquire to the others. */
RD_FN bool fifo_pair_wait(struct rd_fifo *f, const uint64_t *counter) {
  const bool aborted = threadIdx.x == 0 && !rd_fifo_look(f, counter);
  return !__syncthreads_or(aborted);
}

RD_FN void fifo_pair_copy(char *dst, const char *src, uint64_t n) {
  struct rt_reduce_copy w = {};
  w.src[0] = src;
  w.dst[0] = dst;
  w.nsrc = w.ndst = 1;
  w.count = n;
  w.type = RT_UINT8;
  rd_reduce_copy(w, 0, n, threadIdx.x, blockDim.x);
}

RD_FN bool fifo_pair_lines(const struct rd_lines &l, int proto) {
  if (proto == RT_LL) return rd_ll_step(l, threadIdx.x, blockDim.x);
  return rd_ll128_step(l, threadIdx.x, blockDim.x);
}

/* 0, or what gave_up will say. */
RD_FN uint32_t fifo_pair_send(const struct fifo_pair &p, struct rd_fifo *f, const char *src, uint64_t bytes) {
  uint64_t size = bytes;
  if (!fifo_pair_wait(f, f->credit)) return 1;
  if (p.proto == RT_SIMPLE) {
    fifo_pair_copy(rd_fifo_slot(f), src, bytes);
  } else {
    struct rd_lines l = {};
    l.out = rd_fifo_slot(f);
    l.local = src;
    l.bytes = bytes;
    l.out_step = f->step;
    l.out_lines = rd_ll_out_lines(f, bytes);
    size = p.proto == RT_LL ? l.out_lines * RT_LL_LINE : rd_ll128_lines(bytes) * RD_LL128_LINE;
    fifo_pair_lines(l, p.proto);
  }
  __syncthreads(); /* all of the slot is written before thread 0 says so */
  if (threadIdx.x == 0) {
    rd_fifo_describe(f, p.proto, size);
    rd_fence_sys();
    rd_fifo_publish(f);
  }
  f->step++;
  return 0;
}

RD_FN uint32_t fifo_pair_recv(const struct fifo_pair &p, struct rd_fifo *f, char *dst, uint64_t bytes) {
  if (p.proto == RT_SIMPLE) {
    if (!fifo_pair_wait(f, f->tail)) return 1;
    if (f->slot[f->step % RT_STEPS].bytes != bytes) return 2;
    fifo_pair_copy(dst, rd_fifo_slot(f), bytes);
  } else {
    struct rd_lines l = {};
    l.in = rd_fifo_slot(f);
    l.dst = dst;
    l.bytes = bytes;
    l.in_step = f->step;
    l.tail = f->tail;
    l.abort = f->abort;
    const bool came = fifo_pair_lines(l, p.proto);
    if (__syncthreads_or(!came)) return 1;
  }
  __syncthreads(); /* nobody reads the slot any more when thread 0 gives it back */
  if (threadIdx.x == 0) {
    rd_fence_sys();
    rd_fifo_return(f);
  }
  f->step++;
  return 0;
}

__global__ void fifo_pair_kernel(const __grid_constant__ struct fifo_pair p) {
  const bool producer = blockIdx.x == 0;
  if ((p.roles & (producer ? FIFO_PRODUCER : FIFO_CONSUMER)) == 0) return;
  struct rd_fifo f;
  f.buff = p.buff;
  f.slot_size = p.slot_size;
  f.slot = p.slot;
  f.tail = p.tail;
  f.credit = p.credit;
  f.abort = p.abort;
  f.step = p.first;
  f.seen = f.call = 0;
  uint64_t at = 0;
  uint32_t bad = 0;
  for (uint64_t s = 0; s < p.steps && !bad; s++) {
    const uint64_t bytes = fifo_pair_bytes(&p, p.first + s);
    bad = producer ? fifo_pair_send(p, &f, p.src + at, bytes) : fifo_pair_recv(p, &f, p.dst + at, bytes);
    at += bytes;
  }
  if (threadIdx.x == 0) p.gave_up[blockIdx.x] = bad;
}

#endif
