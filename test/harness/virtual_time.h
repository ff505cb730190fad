/* SPDX-License-Identifier: Apache-2.0
 *
 * Hours in milliseconds. CLOCK_MONOTONIC of this program, and of the libraries that it opens, is real time plus what
 * time_skip has added: the program's clock_gettime and epoll_wait stand before libc's. A thread that sleeps in
 * epoll_wait wakes when its time is over by that clock. For one file of a program, for one thread beside the caller
 * that calls epoll_wait, a plugin's watch thread, and for threads that do something short and end: those that
 * are started after time_count_threads.
 */
#ifndef RAIL_TEST_VIRTUAL_TIME_H
#define RAIL_TEST_VIRTUAL_TIME_H

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static struct {
  _Atomic uint64_t skipped_ns;
  atomic_int skip_fd; /* readable: time was skipped since the thread looked at the clock; -1: before time_begin */
  atomic_int asleep;  /* the epoll set in which the thread waits; -1: it runs, or there is none */
  atomic_bool counts; /* threads, from here on */
  atomic_int working; /* that were started since, and have not ended */
} time_ = {.skip_fd = -1, .asleep = -1};

/* Call first in the process that skips time. */
__attribute__((unused)) static void time_begin(void) { time_.skip_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

__attribute__((unused)) static void time_count_threads(void) { atomic_store(&time_.counts, true); }

/* The function of that name behind this program's: a sanitizer's, or libc's. */
static void time_behind_(const char *name, void *function, size_t size) {
  void *symbol = dlsym(RTLD_NEXT, name);
  memcpy(function, &symbol, size);
}

static int time_clock_gettime_(clockid_t clock, struct timespec *now) {
  static int (*behind)(clockid_t, struct timespec *);
  if (!behind) time_behind_("clock_gettime", &behind, sizeof behind);
  return behind(clock, now);
}

__attribute__((unused)) static uint64_t time_real_ns(void) {
  struct timespec now;
  (void)time_clock_gettime_(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

__attribute__((unused)) static void time_skip(uint64_t ns) {
  const uint64_t one = 1;
  atomic_fetch_add(&time_.skipped_ns, ns);
  (void)!write(time_.skip_fd, &one, sizeof one);
}

__attribute__((unused)) static uint64_t time_skipped_ns(void) { return atomic_load(&time_.skipped_ns); }

/* The thread has handled all that has come, and waits for more, or for its time; and no other thread works. */
__attribute__((unused)) static bool time_thread_sleeps(void) {
  if (atomic_load(&time_.working)) return false;
  struct pollfd p[] = {{.fd = time_.asleep, .events = POLLIN}, {.fd = time_.skip_fd, .events = POLLIN}};
  return p[0].fd >= 0 && poll(p, 2, 0) == 0;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *now) {
  int result = time_clock_gettime_(clock, now);
  if (result != 0 || clock != CLOCK_MONOTONIC) return result;
  const uint64_t ns = atomic_load(&time_.skipped_ns) + (uint64_t)now->tv_nsec;
  now->tv_sec += (time_t)(ns / 1000000000u);
  now->tv_nsec = (long)(ns % 1000000000u);
  return 0;
}

struct time_thread_ { void *(*run)(void *); void *arg; };

static void *time_run_(void *thread) {
  const struct time_thread_ t = *(struct time_thread_ *)thread;
  free(thread);
  void *result = t.run(t.arg);
  atomic_fetch_sub(&time_.working, 1);
  return result;
}

__attribute__((visibility("default"))) int pthread_create(pthread_t *id, const pthread_attr_t *attr,
                                                          void *(*run)(void *), void *arg) {
  static int (*behind)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (!behind) time_behind_("pthread_create", &behind, sizeof behind);
  if (!atomic_load(&time_.counts)) return behind(id, attr, run, arg);
  struct time_thread_ *t = malloc(sizeof *t);
  if (!t) return EAGAIN;
  *t = (struct time_thread_){run, arg};
  atomic_fetch_add(&time_.working, 1);
  const int err = behind(id, attr, time_run_, t);
  if (err == 0) return 0;
  atomic_fetch_sub(&time_.working, 1);
  free(t);
  return err;
}

static uint64_t time_now_ns_(void) { return time_real_ns() + time_skipped_ns(); }

/* Until there is something, time was skipped, or that time has come; UINT64_MAX: never. */
static void time_sleep_(int set, uint64_t until) {
  struct pollfd p[] = {{.fd = set, .events = POLLIN}, {.fd = time_.skip_fd, .events = POLLIN}};
  uint64_t now = time_now_ns_(), ns = until > now ? until - now : 0, skips;
  const struct timespec left = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  time_.asleep = set;
  (void)ppoll(p, 2, until == UINT64_MAX ? NULL : &left, NULL);
  time_.asleep = -1;
  (void)!read(time_.skip_fd, &skips, sizeof skips);
}

static int time_epoll_wait_(int set, struct epoll_event *events, int most, int ms) {
  static int (*behind)(int, struct epoll_event *, int, int);
  if (!behind) time_behind_("epoll_wait", &behind, sizeof behind);
  return behind(set, events, most, ms);
}

__attribute__((visibility("default"))) int epoll_wait(int set, struct epoll_event *events, int most, int ms) {
  const uint64_t until = ms < 0 ? UINT64_MAX : time_now_ns_() + (uint64_t)ms * 1000000u;
  if (time_.skip_fd < 0) return time_epoll_wait_(set, events, most, ms);
  for (;;) {
    int n = time_epoll_wait_(set, events, most, 0);
    if (n != 0 || time_now_ns_() >= until) return n;
    time_sleep_(set, until);
  }
}

#endif
