/* SPDX-License-Identifier: Apache-2.0
 * Which defect this library has, and those that need more than a line. */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test/broken/ref_defects.h"

enum ref_defect ref_defect = REF_SOUND;

static enum ref_defect called(const char *file) {
  static const char *const names[] = {
#define X(name, what, origin) "libnccl-net-broken-" #name ".so",
    REF_DEFECTS(X)
#undef X
  };
  if (strcmp(file, "libnccl-net-ref.so") == 0) return REF_SOUND;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(file, names[i]) == 0) return (enum ref_defect)(REF_UNKNOWN + 1 + i);
  fprintf(stderr, "%s: no defect is called so; this plugin has no devices\n", file);
  return REF_UNKNOWN;
}

__attribute__((constructor)) static void choose(void) {
  Dl_info self;
  if (!dladdr(&ref_defect, &self) || !self.dli_fname) return;
  const char *slash = strrchr(self.dli_fname, '/');
  ref_defect = called(slash ? slash + 1 : self.dli_fname);
  /* Their threads are the defect, not that they crash; the third one shall hang in exit, not in dlclose. */
  if (BROKEN(thread_leak) || BROKEN(idle_spin) || BROKEN(exit_hangs))
    (void)dlopen(self.dli_fname, RTLD_NOW | RTLD_NODELETE);
}

/* ---- threads, leaks ---- */

static void *sleep_for_ever(void *arg) {
  for (;;) usleep(BROKEN(thread_leak) ? 10000000 : 1000);
  return arg;
}

static void *spin(void *arg) {
  for (volatile unsigned long n = 0;; n++) {}
  return arg;
}

static void start(void *(*fn)(void *)) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, fn, NULL) == 0) pthread_detach(thread);
}

void ref_break_unloading(void) { start(sleep_for_ever); }

void ref_break_connection(void) {
  static void *volatile lost;
  static _Atomic int spinning;
  if (BROKEN(fd_leak) && eventfd(0, EFD_CLOEXEC) < 0) return;
  if (BROKEN(memory_leak) && (lost = malloc(64 << 10))) memset(lost, 1, 64 << 10);
  if (BROKEN(thread_leak)) start(sleep_for_ever);
  if (BROKEN(idle_spin) && spinning++ == 0) start(spin);
}

void ref_break_message(void) {
  static void *volatile lost;
  if ((lost = malloc(256))) memset(lost, 1, 256);
}

uint8_t *ref_break_place(size_t size) { return malloc(size + 1); }

void ref_break_close(int fd) {
  const struct linger at_once = {.l_onoff = 1};
  (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

int ref_cloexec(void) { return BROKEN(inheritable) ? 0 : SOCK_CLOEXEC; }

/* ---- what two threads should not do at once ---- */

static pthread_mutex_t global_lock = PTHREAD_MUTEX_INITIALIZER;

void ref_break_lock(void) {
  if (BROKEN(global_lock)) pthread_mutex_lock(&global_lock);
}

void ref_break_unlock(void) {
  if (BROKEN(global_lock)) pthread_mutex_unlock(&global_lock);
}

void ref_break_attr(const void *attr, size_t size) {
  static void *volatile kept;
  void *old = kept, *fresh = malloc(size);
  kept = NULL;
  free(old);
  sched_yield();
  kept = fresh;
  sched_yield();
  memcpy(kept, attr, size); /* NULL, if another thread is where this one was above */
}

/* ---- copies ---- */

static void copy_backwards(uint8_t *to, const uint8_t *from, size_t size) {
  for (size_t i = size; i-- > 0;) {
    ((volatile uint8_t *)to)[i] = from[i];
    if (i % 512 == 0) sched_yield();
  }
}

/* Lines as they lie in memory, the half with the flag first. */
static void copy_lines(uint8_t *to, const uint8_t *from, size_t size) {
  for (size_t at = 0; at < size;) {
    size_t first = 128 - (uintptr_t)(to + at) % 128, len = first < size - at ? first : size - at, half = len / 2;
    memcpy(to + at + half, from + at + half, len - half);
    if (at % 4096 < 128) sched_yield();
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    memcpy(to + at, from + at, half);
    at += len;
  }
}

size_t ref_break_reading(int fd, uint8_t *to, size_t size) {
  static uint8_t shared[64 << 10];
  static _Thread_local uint8_t own[64 << 10];
  uint8_t *bounce = BROKEN(static_buffer) ? shared : own;
  ssize_t n = recv(fd, bounce, size < sizeof own ? size : sizeof own, MSG_DONTWAIT);
  if (n <= 0) return 0;
  if (BROKEN(static_buffer)) sched_yield();
  if (BROKEN(bytewise_copy)) copy_backwards(to, bounce, (size_t)n);
  else if (BROKEN(torn_line)) copy_lines(to, bounce, (size_t)n);
  else memcpy(to, bounce, (size_t)n);
  return (size_t)n;
}
