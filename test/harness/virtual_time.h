/* SPDX-License-Identifier: Apache-2.0
 *
 * Hours in milliseconds. CLOCK_MONOTONIC of this program, and of the libraries that it opens, is real time plus what
 * time_skip has added: the program's clock_gettime and epoll_wait stand before libc's. A thread that sleeps in
 * epoll_wait wakes when its time is over by that clock. For one file of a program, and for one thread beside the
 * caller that calls epoll_wait: a plugin's watch thread.
 */
#ifndef RAIL_TEST_VIRTUAL_TIME_H
#define RAIL_TEST_VIRTUAL_TIME_H

#include <dlfcn.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static struct {
  _Atomic uint64_t skipped_ns;
  atomic_int skip_fd; /* readable: time was skipped since the thread looked at the clock; -1: before time_begin */
  atomic_int asleep;  /* the epoll set in which the thread waits; -1: it runs, or there is none */
} time_ = {.skip_fd = -1, .asleep = -1};

/* Call first in the process that skips time. */
__attribute__((unused)) static void time_begin(void) { time_.skip_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

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

/* The thread has handled all that has come, and waits for more, or for its time. */
__attribute__((unused)) static bool time_thread_sleeps(void) {
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
