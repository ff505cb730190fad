/* SPDX-License-Identifier: Apache-2.0
 *
 * A copy whose bytes become visible in the order of their addresses, for a reader that polls the destination. memcpy
 * stores in any order: the C library's stores a large copy's first bytes last, and a thread that is suspended there
 * leaves a flag at the end visible before the data, for milliseconds. NCCL's LL takes 8 bytes by their flag, LL128
 * lines of 128.
 */
#ifndef RAIL_ORDERED_COPY_H
#define RAIL_ORDERED_COPY_H

#include <stdint.h>
#include <string.h>

#include "common/base/barrier.h"

/* Less than a line, in units of 8 bytes where the destination has them. */
static inline void rail_ordered_copy_part(uint8_t *to, const uint8_t *from, size_t n) {
  while (n > 0) {
    size_t step = n >= 8 && (uintptr_t)to % 8 == 0 ? 8 : 1;
    if (step == 8) {
      uint64_t word;
      memcpy(&word, from, 8);
      __atomic_store_n((uint64_t *)(void *)to, word, __ATOMIC_RELAXED);
    } else {
      *to = *from;
    }
    rail_stores_in_order();
    to += step;
    from += step;
    n -= step;
  }
}

/* From low to high addresses: aligned 8 bytes at once, and of each aligned 128 the last 16 after the rest. */
static inline void rail_ordered_copy(void *to, const void *from, size_t n) {
  enum { LINE = 128, LAST = 16 };
  uint8_t *t = to;
  const uint8_t *f = from;
  size_t head = n < LINE ? 0 : (LINE - (uintptr_t)t % LINE) % LINE;
  rail_ordered_copy_part(t, f, head);
  for (t += head, f += head, n -= head; n >= LINE; t += LINE, f += LINE, n -= LINE) {
    memcpy(t, f, LINE - LAST);
    rail_stores_in_order();
    memcpy(t + LINE - LAST, f + LINE - LAST, LAST);
    rail_stores_in_order();
  }
  rail_ordered_copy_part(t, f, n);
}

#endif
