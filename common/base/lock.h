/* SPDX-License-Identifier: Apache-2.0
 *
 * A lock for data paths, which only try it: one compare-and-exchange, one exchange to release it. A mutex of libc does
 * the same at the cost of two calls and of checks of its kind and owner, some 70 instructions. Other threads may wait
 * for it, in the kernel. It is not recursive, has no owner and is not fair: a thread that tries may overtake a waiter.
 */
#ifndef RAIL_LOCK_H
#define RAIL_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/base/compiler.h"

enum { RAIL_LOCK_FREE, RAIL_LOCK_TAKEN, RAIL_LOCK_WANTED /* taken, and a thread may wait */ };

/* All zero: free. Nothing to be destroyed. */
struct rail_lock {
  _Atomic int state;
};

/* False: it is taken. */
static inline bool rail_lock_try(struct rail_lock *lock) {
  int is_free = RAIL_LOCK_FREE;
  return atomic_compare_exchange_strong_explicit(&lock->state, &is_free, RAIL_LOCK_TAKEN, memory_order_acquire,
                                                 memory_order_relaxed);
}

/* Waits until it is free, without limit. */
void rail_lock_wait(struct rail_lock *lock);

/* Of rail_lock_release: wakes one that waits. */
void rail_lock_wake(struct rail_lock *lock);

static inline void rail_lock_release(struct rail_lock *lock) {
  int was = atomic_exchange_explicit(&lock->state, RAIL_LOCK_FREE, memory_order_release);
  if (rail_unlikely(was == RAIL_LOCK_WANTED)) rail_lock_wake(lock);
}

#endif
