/* SPDX-License-Identifier: Apache-2.0 */
#include "plugin/ofi/ofi_timer.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/timerfd.h>
#include <unistd.h>

static _Atomic int timer_fd = -1;
static _Atomic bool timer_set;

int ofi_timer_open(void) {
  ofi_timer_close(); /* a forked child has its parent's */
  int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  atomic_store(&timer_set, false);
  atomic_store(&timer_fd, fd);
  return fd;
}

void ofi_timer_close(void) {
  int fd = atomic_exchange(&timer_fd, -1);
  if (fd >= 0) close(fd);
}

void ofi_timer_set(long ms) {
  const struct itimerspec once = {.it_value.tv_nsec = ms * 1000000};
  if (atomic_load_explicit(&timer_set, memory_order_relaxed) || atomic_exchange(&timer_set, true)) return;
  int fd = atomic_load(&timer_fd);
  if (fd >= 0) (void)timerfd_settime(fd, 0, &once, NULL);
}

void ofi_timer_read(void) {
  uint64_t count;
  (void)!read(atomic_load(&timer_fd), &count, sizeof count);
  atomic_store(&timer_set, false);
}
