/* SPDX-License-Identifier: Apache-2.0
 *
 * Barriers between plain accesses, where no single atomic access carries the order. The thread sanitizer does not know
 * C's fences, so these are instructions.
 */
#ifndef RAIL_BARRIER_H
#define RAIL_BARRIER_H

/* What was stored before is visible before what is stored after. */
static inline void rail_stores_in_order(void) {
#if defined(__x86_64__)
  __asm__ volatile("" ::: "memory");
#elif defined(__aarch64__)
  __asm__ volatile("dmb ishst" ::: "memory");
#else
  __sync_synchronize();
#endif
}

/* What was loaded before was loaded before what is loaded after. */
static inline void rail_loads_in_order(void) {
#if defined(__x86_64__)
  __asm__ volatile("" ::: "memory");
#elif defined(__aarch64__)
  __asm__ volatile("dmb ishld" ::: "memory");
#else
  __sync_synchronize();
#endif
}

#endif
