/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of ids, and the thread that waits for their sockets and timers. It starts with the first that waits for
 * something and ends with the process. A file descriptor's event names an id by its serial number: the id may be gone
 * by the time the thread looks. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "emu/cm/cm.h"

struct cm_all cm = {.lock = PTHREAD_MUTEX_INITIALIZER, .acked = PTHREAD_COND_INITIALIZER};

static struct {
  pthread_t thread;
  bool running, stop;
  int epoll, wake;
  uint64_t serial;
  uint64_t sleeps_until; /* ms; 0: it is awake */
} loop = {.epoll = -1, .wake = -1};

int cm_result(int err) {
  if (!err) return 0;
  errno = err;
  return -1;
}

uint64_t cm_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void wake(void) {
  uint64_t one = 1;
  while (write(loop.wake, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static struct cm_id *find(uint64_t serial) {
  struct cm_id *id;
  LIST_FOREACH(id, &cm.ids, link)
    if (id->serial == serial) return id;
  return NULL;
}

/* When the earliest timer is due, UINT64_MAX: there is none. Those that are due are called; each may end its id, or
 * others, so the search begins again behind it. */
static uint64_t run_timers(void) {
  for (;;) {
    uint64_t now = cm_now(), next = UINT64_MAX;
    struct cm_id *id, *due = NULL;
    LIST_FOREACH(id, &cm.ids, link) {
      if (!id->deadline) continue;
      if (id->deadline <= now) due = id;
      else if (id->deadline < next) next = id->deadline;
    }
    if (!due) return next;
    due->deadline = 0;
    due->on_deadline(due);
  }
}

static void *run(void *arg) {
  struct epoll_event events[64];
  (void)arg;
  pthread_mutex_lock(&cm.lock);
  while (!loop.stop) {
    uint64_t next = run_timers(), now = cm_now();
    loop.sleeps_until = next;
    pthread_mutex_unlock(&cm.lock);
    int ms = next == UINT64_MAX ? -1 : next <= now ? 0 : next - now > 60000 ? 60000 : (int)(next - now);
    int n = epoll_wait(loop.epoll, events, 64, ms);
    pthread_mutex_lock(&cm.lock);
    loop.sleeps_until = 0;
    for (int i = 0; i < n; i++) {
      uint64_t serial = events[i].data.u64, count;
      struct cm_id *id = serial ? find(serial) : NULL;
      if (id && id->is_watched) id->on_readable(id);
      if (!serial && read(loop.wake, &count, sizeof count) < 0) continue;
    }
  }
  pthread_mutex_unlock(&cm.lock);
  return NULL;
}

static int start(void) {
  struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0};
  sigset_t all, old;
  if (loop.running) return 0;
  if (loop.epoll < 0) loop.epoll = epoll_create1(EPOLL_CLOEXEC);
  if (loop.wake < 0) loop.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (loop.epoll < 0 || loop.wake < 0) return errno;
  if (epoll_ctl(loop.epoll, EPOLL_CTL_ADD, loop.wake, &event) != 0 && errno != EEXIST) return errno;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int err = pthread_create(&loop.thread, NULL, run, NULL);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (err) return err;
  pthread_setname_np(loop.thread, "rail-emu-cm");
  loop.running = true;
  return 0;
}

void cm_add(struct cm_id *id) {
  id->serial = ++loop.serial;
  id->fd = -1;
  LIST_INSERT_HEAD(&cm.ids, id, link);
}

void cm_remove(struct cm_id *id) {
  cm_unwatch(id);
  if (id->fd >= 0) close(id->fd);
  id->fd = -1;
  if (id->serial) LIST_REMOVE(id, link); /* in a child none is on it */
  id->serial = 0;
}

int cm_watch(struct cm_id *id) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = id->serial};
  int err = start();
  if (err || id->is_watched) return err;
  if (epoll_ctl(loop.epoll, EPOLL_CTL_ADD, id->fd, &event) != 0) return errno;
  id->is_watched = true;
  return 0;
}

void cm_unwatch(struct cm_id *id) {
  if (!id->is_watched) return;
  id->is_watched = false;
  (void)epoll_ctl(loop.epoll, EPOLL_CTL_DEL, id->fd, NULL);
}

int cm_set_deadline(struct cm_id *id, uint64_t ms, void (*on_deadline)(struct cm_id *id)) {
  int err = start();
  if (err) return err;
  id->deadline = cm_now() + ms;
  id->on_deadline = on_deadline;
  if (id->deadline < loop.sleeps_until) wake();
  return 0;
}

/* ---- fork, exit ------------------------------------------------------------------- */

static void before_fork(void) { pthread_mutex_lock(&cm.lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&cm.lock); }

/* A child has none of its parent's connections, and takes none of its ports. */
static void after_fork_child(void) {
  for (struct cm_id *id; (id = LIST_FIRST(&cm.ids)) != NULL;) {
    id->is_watched = false;
    id->state = CM_OVER;
    id->deadline = 0;
    if (id->fd >= 0) close(id->fd);
    id->fd = -1;
    id->serial = 0;
    LIST_REMOVE(id, link);
  }
  if (loop.epoll >= 0) close(loop.epoll);
  if (loop.wake >= 0) close(loop.wake);
  loop.epoll = loop.wake = -1;
  loop.running = false;
  pthread_mutex_unlock(&cm.lock);
}

__attribute__((constructor)) static void at_start(void) {
  (void)pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

__attribute__((destructor)) static void at_exit(void) {
  pthread_mutex_lock(&cm.lock);
  bool was = loop.running;
  loop.stop = true;
  if (was) wake();
  pthread_mutex_unlock(&cm.lock);
  if (was) pthread_join(loop.thread, NULL);
}
