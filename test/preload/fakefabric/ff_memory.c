/* SPDX-License-Identifier: Apache-2.0
 * Locking, allocating and copying that a sanitizer of the calling program takes no notice of, and what it is told. */
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test/preload/fakefabric/ff.h"

/* The C library's own, behind the names that sanitizers replace. */
void *__libc_calloc(size_t n, size_t size);
void __libc_free(void *p);

/* There when the program is sanitized. */
__attribute__((weak)) void __tsan_read_range(void *p, unsigned long size);
__attribute__((weak)) void __tsan_write_range(void *p, unsigned long size);
__attribute__((weak)) void *__asan_region_is_poisoned(void *p, size_t size);

/* The library's copies of these, also where the compiler calls them: a race detector would take the ones that it
 * replaces for accesses of the calling thread. */
/* Word by word, in address order, as an adapter writes. */
void *memcpy(void *restrict to, const void *restrict from, size_t size) {
  size_t at = 0;
  if ((((uintptr_t)to | (uintptr_t)from) & 7) == 0)
    for (; at + 8 <= size; at += 8)
      *(volatile uint64_t *)(void *)((char *)to + at) =
          *(const volatile uint64_t *)(const void *)((const char *)from + at);
  for (; at < size; at++) ((volatile char *)to)[at] = ((const volatile char *)from)[at];
  return to;
}

void *memmove(void *to, const void *from, size_t size) {
  if ((uintptr_t)to - (uintptr_t)from >= size) return memcpy(to, from, size);
  while (size--) ((volatile char *)to)[size] = ((const volatile char *)from)[size];
  return to;
}

void *memset(void *to, int value, size_t size) {
  for (size_t at = 0; at < size; at++) ((volatile char *)to)[at] = (char)value;
  return to;
}

void *ff_alloc(size_t size) { return __libc_calloc(1, size); }
void ff_free(void *p) { __libc_free(p); }

int ff_vprint(char *to, size_t size, const char *fmt, va_list ap) {
  char text[512];
  int n = vsnprintf(text, sizeof text, fmt, ap);
  size_t most = size < sizeof text ? size : sizeof text, len = strlen(text) + 1;
  if (!most) return n;
  memcpy(to, text, len < most ? len : most);
  to[most - 1] = 0;
  return n;
}

int ff_print(char *to, size_t size, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  int n = ff_vprint(to, size, fmt, ap);
  va_end(ap);
  return n;
}

/* 0: free; 1: taken; 2: taken, and others sleep until it is free. A short while it is waited for awake. */
static atomic_int lock_state;

void ff_lock(void) {
  for (int i = 0, is = 0; i < 200; i++, is = 0)
    if (atomic_compare_exchange_weak(&lock_state, &is, 1)) return;
  while (atomic_exchange(&lock_state, 2) != 0)
    syscall(SYS_futex, &lock_state, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

void ff_unlock(void) {
  if (atomic_exchange(&lock_state, 0) == 2)
    syscall(SYS_futex, &lock_state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void ff_will_read(const void *p, size_t size) {
  if (__tsan_read_range && size) __tsan_read_range((void *)(uintptr_t)p, size);
}

void ff_will_write(void *p, size_t size) {
  if (__tsan_write_range && size) __tsan_write_range(p, size);
}

bool ff_poisoned(const void *p, size_t size) {
  return __asan_region_is_poisoned && size && __asan_region_is_poisoned((void *)(uintptr_t)p, size);
}
