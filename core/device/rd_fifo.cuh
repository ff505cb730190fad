/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection as a block sees it: the 8-slot FIFO of rt_conn.h, with addresses
 * that are valid on the device. Slots may lie in device or in mapped host memory;
 * the counters and the sizes lie in mapped host memory, because a proxy or a host
 * program may be on the other side.
 *
 * Thread 0 of a block alone looks at and writes the shared words; all that is here is called by it. Every
 * wait ends when the abort flag is set.
 *
 *   rd_fifo_look(&f, f.credit)             wait until credit > step
 *   … barrier; the block's threads write rd_fifo_slot(&f); barrier …
 *   rd_fifo_describe(&f, proto, bytes)     size
 *   rd_fence_sys()
 *   rd_fifo_publish(&f)                    tail = step + 1
 *
 *   rd_fifo_look(&f, f.tail)               wait until tail > step, acquire
 *   … barrier, which carries that over to the other threads; they read; barrier …
 *   rd_fence_sys()                         the same one, if the block both receives and sends
 *   rd_fifo_return(&f)                     credit = step + 1 + 8
 */
#ifndef RD_FIFO_CUH
#define RD_FIFO_CUH

#include "core/device/rd_fence.cuh"
#include "core/host/rt_conn.h"

struct rd_fifo {
  char *buff; /* RT_STEPS slots, at a multiple of 128 bytes */
  uint64_t slot_size;
  struct rt_slot *slot;
  uint64_t *tail, *credit;
  const uint32_t *abort; /* not 0: give up */
  uint64_t step;         /* next step of this side */
  uint64_t seen;         /* the other side's counter as last read */
  uint64_t call;         /* sent along with every step: struct rt_slot's `call` */
};

RD_FN char *rd_fifo_slot(const struct rd_fifo *f) {
  return f->buff + f->step % RT_STEPS * f->slot_size;
}

/* Until the other side's counter is beyond the step; false when aborted. */
RD_FN bool rd_fifo_look(struct rd_fifo *f, const uint64_t *counter) {
  uint32_t looks = 0;
  while (f->seen <= f->step) {
    f->seen = rd_load_acquire_sys(counter);
    if (f->seen <= f->step && rd_wait_aborted(&looks, f->abort)) return false;
  }
  RD_TSAN_ACQUIRE(f->buff);
  return true;
}

/* What the step is. */
RD_FN void rd_fifo_describe(const struct rd_fifo *f, int proto, uint64_t bytes) {
  struct rt_slot s;
  s.bytes = bytes;
  s.proto = (unsigned)proto & 0xff;
  s.ptr = s.mhandle = NULL; /* it lies in the slot */
  s.call = f->call;
  f->slot[f->step % RT_STEPS] = s;
}

/* That it is there. Behind a fence, which is behind all that it consists of. */
RD_FN void rd_fifo_publish(const struct rd_fifo *f) {
  RD_TSAN_RELEASE(f->buff);
  rd_store_fenced_sys(f->tail, f->step + 1);
}

/* The slot of the step is free again. Behind a fence, which is behind the last look at it. */
RD_FN void rd_fifo_return(const struct rd_fifo *f) {
  RD_TSAN_RELEASE(f->buff);
  rd_store_fenced_sys(f->credit, f->step + 1 + RT_STEPS);
}

#endif
