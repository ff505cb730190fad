/* SPDX-License-Identifier: Apache-2.0
 * The waiting side of a lock: futex(2). */
#include "common/base/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A waiter takes it as WANTED: others may still wait. */
void rail_lock_wait(struct rail_lock *lock) {
  if (rail_lock_try(lock)) return;
  while (atomic_exchange_explicit(&lock->state, RAIL_LOCK_WANTED, memory_order_acquire) != RAIL_LOCK_FREE)
    syscall(SYS_futex, &lock->state, FUTEX_WAIT_PRIVATE, RAIL_LOCK_WANTED, NULL, NULL, 0);
}

/* The owner of its memory may have freed it meanwhile, as with a mutex of libc: the kernel then wakes nobody, or one
 * that looks again. */
void rail_lock_wake(struct rail_lock *lock) { syscall(SYS_futex, &lock->state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }
