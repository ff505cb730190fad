/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ofi/ofi_timer.h"

#include <stdatomic.h>
#include <stdint.h>
#include <sys/timerfd.h>
#include <unistd.h>

static _Atomic int timer_fd = -1;
static _Atomic long timer_ms; /* it fires within so many; 0: it is not set */

int ofi_timer_open(void) {
  ofi_timer_close(); /* a forked child has its parent's */
  int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  atomic_store(&timer_ms, 0);
  atomic_store(&timer_fd, fd);
  return fd;
}

void ofi_timer_close(void) {
  int fd = atomic_exchange(&timer_fd, -1);
  if (fd >= 0) close(fd);
}

/* Of two threads that set it at once, the later one's system call may have the longer time: it looks again. */
void ofi_timer_set(long ms) {
  long set = atomic_load_explicit(&timer_ms, memory_order_relaxed);
  do
    if (set && set <= ms) return;
  while (!atomic_compare_exchange_weak(&timer_ms, &set, ms));
  int fd = atomic_load(&timer_fd);
  while (fd >= 0) {
    const struct itimerspec once = {.it_value.tv_nsec = ms * 1000000};
    (void)timerfd_settime(fd, 0, &once, NULL);
    set = atomic_load(&timer_ms);
    if (!set || set >= ms) return;
    ms = set;
  }
}

void ofi_timer_read(void) {
  uint64_t count;
  (void)!read(atomic_load(&timer_fd), &count, sizeof count);
  atomic_store(&timer_ms, 0);
}
