/* SPDX-License-Identifier: Apache-2.0
 *
 * One epoll set: an eventfd that wakes the thread, the oob connections, the plugin's other descriptors. Oob connections
 * are served under the lock, without waiting. Other descriptors are handled without it: a thread that destroys a QP
 * waits, perhaps with that lock, until the QP's events are acknowledged.
 *
 * The thread sleeps until an event comes. It ticks only while there are connections and a limit asks for it, because
 * the thread is not notified when requests begin. Only a tick looks at all connections.
 *
 * A removed connection's entry may still be in the thread's batch of epoll events. It goes to the list `unlinked`,
 * which the thread frees between two batches.
 */
#include "common/conn/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "common/base/log.h"
#include "common/base/sock.h"
#include "common/base/thread.h"

#define BATCH 64         /* epoll events per system call; more are there at the next one */
#define DRAIN_POLL_MS 10 /* between two looks at what wakes no thread: the last completions of a sender whose peer waits
                          * to close, which may be so late; and a plugin's frame that waits for room */
#define LATE_TICKS 4     /* a later tick: this thread was descheduled, so a silent peer is not blamed */

/* What an epoll event is about: the first member of the struct that its pointer names. */
enum kind { KIND_WAKE, KIND_FD, KIND_COMM };

struct rail_watched {
  enum kind kind;
  struct rail_watch *watch;
  struct rail_watch_args args; /* args.comm NULL: removed meanwhile */
  LIST_ENTRY(rail_watched) link, poll;
  TAILQ_ENTRY(rail_watched) linger;
  struct rail_oob oob;
  uint32_t interest;           /* epoll events asked for; 0: not in the set */
  bool polled;                 /* it is in that list */
  void (*destroy)(void *comm); /* not NULL: it lingers */
  uint64_t linger_until;
  bool goodbye_last; /* when it has lingered */
};

/* Guards every watch: there is one per plugin, and each plugin has this file to itself. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, rail_watch) watches = LIST_HEAD_INITIALIZER(watches); /* those that run */
static enum kind wake_source = KIND_WAKE;

static void wake(const struct rail_watch *watch) {
  uint64_t one = 1;
  while (write(watch->wake_fd, &one, sizeof one) < 0 && errno == EINTR) continue; /* a full eventfd wakes it, too */
}

/* ---- lists, under the lock -------------------------------------------------- */

/* In the order of their ends. Those of one length are added at the end. */
static void queue_linger(struct rail_watch *watch, struct rail_watched *w) {
  struct rail_watched *before = TAILQ_LAST(&watch->lingering, rail_lingering);
  while (before && before->linger_until > w->linger_until) before = TAILQ_PREV(before, rail_lingering, linger);
  if (before) TAILQ_INSERT_AFTER(&watch->lingering, before, w, linger);
  else TAILQ_INSERT_HEAD(&watch->lingering, w, linger);
}

/* While one is polled the thread looks every DRAIN_POLL_MS. For the first it is woken, unless it is the caller. */
static void set_polled(struct rail_watch *watch, struct rail_watched *w, bool polled) {
  if (w->polled == polled) return;
  w->polled = polled;
  if (polled && LIST_EMPTY(&watch->polled) && !pthread_equal(pthread_self(), watch->thread)) wake(watch);
  if (polled) LIST_INSERT_HEAD(&watch->polled, w, poll);
  else LIST_REMOVE(w, poll);
}

/* The comm is its caller's again. */
static void unlink_watched(struct rail_watch *watch, struct rail_watched *w) {
  set_polled(watch, w, false);
  if (w->destroy) TAILQ_REMOVE(&watch->lingering, w, linger);
  LIST_REMOVE(w, link);
  if (w->interest) epoll_ctl(watch->epoll_fd, EPOLL_CTL_DEL, w->oob.fd, NULL);
  w->interest = 0;
  w->args.comm = NULL;
  LIST_INSERT_HEAD(&watch->unlinked, w, link);
}

static void free_list(struct rail_watched_list *list) {
  while (!LIST_EMPTY(list)) {
    struct rail_watched *w = LIST_FIRST(list);
    LIST_REMOVE(w, link);
    free(w);
  }
}

/* ---- one connection, under the lock ------------------------------------------ */

/* Writes what is due, and asks epoll for the events that it waits for. */
static void update_epoll(const struct rail_watch *watch, struct rail_watched *w) {
  bool more = rail_oob_write(&w->oob);
  uint32_t interest = w->oob.closed || w->oob.net_down ? 0 : EPOLLIN | (more ? EPOLLOUT : 0);
  struct epoll_event event = {.events = interest, .data.ptr = w};
  if (interest == w->interest) return;
  int op = !w->interest ? EPOLL_CTL_ADD : interest ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
  if (epoll_ctl(watch->epoll_fd, op, w->oob.fd, &event) == 0) w->interest = interest;
}

/* Does it wait for what the data path does without waking this thread? */
static bool must_poll(const struct rail_watched *w) {
  return rail_oob_is_draining(&w->oob) || (w->oob.ask_again && !w->oob.closed && !w->oob.net_down);
}

/* After anything that changes its oob: what is due is written, and it is in the lists that it belongs to. */
static void update(struct rail_watch *watch, struct rail_watched *w) {
  update_epoll(watch, w);
  set_polled(watch, w, must_poll(w));
  if (!w->destroy || !w->oob.closed) return;
  w->linger_until = rail_now_ns();
  TAILQ_REMOVE(&watch->lingering, w, linger);
  TAILQ_INSERT_HEAD(&watch->lingering, w, linger);
}

/* GOODBYE, of a connection that is closed next. Unread bytes would make the kernel reset it then, and the peer might
 * lose the GOODBYE. */
static void goodbye_and_read(struct rail_oob *oob) {
  char scratch[256];
  rail_oob_goodbye(oob);
  shutdown(oob->fd, SHUT_WR);
  for (int i = 0; i < 16 && recv(oob->fd, scratch, sizeof scratch, MSG_DONTWAIT) > 0; i++) continue;
}

/* Releases the lock meanwhile: destroying QPs takes long. */
static void end_linger(struct rail_watch *watch, struct rail_watched *w) {
  void *comm = w->args.comm;
  void (*destroy)(void *) = w->destroy;
  if (w->goodbye_last) goodbye_and_read(&w->oob);
  unlink_watched(watch, w);
  pthread_mutex_unlock(&lock);
  destroy(comm);
  pthread_mutex_lock(&lock);
}

/* ---- the thread --------------------------------------------------------------- */

/* Milliseconds; -1: until something comes. */
static int time_to_sleep(const struct rail_watch *watch, uint64_t next_tick) {
  const struct rail_watched *lingers = TAILQ_FIRST(&watch->lingering);
  uint64_t at = UINT64_MAX;
  if (!LIST_EMPTY(&watch->watched) && rail_oob_tick_ns(&watch->limits)) at = next_tick;
  if (!LIST_EMPTY(&watch->polled)) at = RAIL_MIN(at, rail_deadline_in_ms(DRAIN_POLL_MS));
  if (lingers) at = RAIL_MIN(at, lingers->linger_until);
  return at == UINT64_MAX ? -1 : rail_deadline_left_ms(at);
}

/* One line per silent process, not one per connection with it. */
static void report_silence(const struct rail_watch *watch, struct rail_watched *w) {
  const struct rail_watched *other;
  LIST_FOREACH(other, &watch->watched, link)
    if (other->oob.reported != RAIL_OOB_UNREPORTED && other->args.peer_process == w->args.peer_process) {
      w->oob.reported = RAIL_OOB_REPORTED_BY_ANOTHER;
      return;
    }
  rail_oob_report(&w->oob, watch->now_ns);
}

static void tick(struct rail_watch *watch) {
  struct rail_watched *w;
  LIST_FOREACH(w, &watch->watched, link) {
    rail_oob_tick(&w->oob, watch->now_ns);
    if (rail_oob_is_report_due(&w->oob, watch->now_ns)) report_silence(watch, w);
    update(watch, w);
  }
}

static void drain_some(struct rail_watch *watch) {
  for (struct rail_watched *w = LIST_FIRST(&watch->polled), *next; w; w = next) {
    next = LIST_NEXT(w, poll);
    rail_oob_drain(&w->oob);
    update(watch, w);
  }
}

static void end_lingers(struct rail_watch *watch) {
  struct rail_watched *w;
  while ((w = TAILQ_FIRST(&watch->lingering)) != NULL && rail_now_ns() >= w->linger_until) end_linger(watch, w);
}

/* Under the lock, which is released meanwhile. */
static void on_fd(const struct rail_watch *watch, const struct rail_watch_fd *source) {
  pthread_mutex_unlock(&lock);
  bool again = source->readable(source->arg);
  pthread_mutex_lock(&lock);
  if (!again) epoll_ctl(watch->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
}

/* Under the lock. */
static void on_event(struct rail_watch *watch, const struct epoll_event *event) {
  enum kind kind = *(const enum kind *)event->data.ptr;
  uint64_t count;
  if (kind == KIND_WAKE) {
    (void)!read(watch->wake_fd, &count, sizeof count);
  } else if (kind == KIND_FD) {
    on_fd(watch, event->data.ptr);
  } else {
    struct rail_watched *w = event->data.ptr;
    if (!w->args.comm) return;
    if (event->events & ~(uint32_t)EPOLLOUT) rail_oob_read(&w->oob, watch->now_ns);
    update(watch, w);
  }
}

static void *run(void *arg) {
  struct rail_watch *watch = arg;
  struct epoll_event events[BATCH];
  uint64_t last = rail_now_ns(), next_tick = last;
  rail_thread_coarse_timers();
  pthread_mutex_lock(&lock);
  while (!watch->ending || (!watch->at_once && !TAILQ_EMPTY(&watch->lingering))) {
    int timeout = time_to_sleep(watch, next_tick);
    free_list(&watch->unlinked);
    pthread_mutex_unlock(&lock);
    int n = epoll_wait(watch->epoll_fd, events, BATCH, timeout);
    pthread_mutex_lock(&lock);
    uint64_t real = rail_now_ns(), step = rail_oob_tick_ns(&watch->limits);
    watch->now_ns += real - last < LATE_TICKS * step ? real - last : step;
    last = real;
    for (int i = 0; i < n; i++) on_event(watch, &events[i]);
    if (step && real >= next_tick) {
      tick(watch);
      next_tick = real + step;
    }
    drain_some(watch);
    end_lingers(watch);
  }
  free_list(&watch->unlinked);
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* ---- fork --------------------------------------------------------------------- */

/* Under the lock. */
static void not_running(struct rail_watch *watch) {
  LIST_REMOVE(watch, link);
  free_list(&watch->unlinked);
  watch->running = watch->ending = watch->at_once = false;
  rail_sock_close(&watch->epoll_fd);
  rail_sock_close(&watch->wake_fd);
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&lock); }

static void after_fork_child(void) {
  while (!LIST_EMPTY(&watches)) {
    struct rail_watch *watch = LIST_FIRST(&watches);
    const struct rail_watched *w;
    LIST_FOREACH(w, &watch->watched, link) {
      *w->args.handle = NULL;
      watch->ops->forked(w->args.comm);
    }
    free_list(&watch->watched);
    watch->users = 0;
    not_running(watch);
  }
  pthread_mutex_unlock(&lock);
}

/* ---- starting and ending -------------------------------------------------------- */

static bool add_to_epoll(const struct rail_watch *watch, int fd, void *source) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
  return epoll_ctl(watch->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

bool rail_watch_add_fd(struct rail_watch *watch, struct rail_watch_fd *source) {
  source->kind = KIND_FD;
  return add_to_epoll(watch, source->fd, source);
}

/* Under the lock. False with errno. */
static bool start(struct rail_watch *watch) {
  static bool fork_handled;
  const struct rail_watch_ops *ops = watch->ops;
  ops->load_limits(&watch->limits);
  LIST_INIT(&watch->polled); /* in a child of fork they are its parent's */
  TAILQ_INIT(&watch->lingering);
  if (!fork_handled) fork_handled = pthread_atfork(before_fork, after_fork_parent, after_fork_child) == 0;
  watch->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  watch->wake_fd = watch->epoll_fd < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  LIST_INSERT_HEAD(&watches, watch, link);
  if (watch->wake_fd >= 0 && add_to_epoll(watch, watch->wake_fd, &wake_source) &&
      (!ops->add_fds || ops->add_fds(watch))) {
    errno = rail_thread_start(ops->thread_name, run, watch, &watch->thread);
    watch->running = errno == 0;
  }
  if (watch->running) return true;
  int err = errno;
  not_running(watch);
  errno = err;
  return false;
}

rail_result_t rail_watch_begin(struct rail_watch *watch) {
  pthread_mutex_lock(&lock);
  bool ok = watch->running || start(watch);
  int err = errno;
  if (ok) watch->users++;
  pthread_mutex_unlock(&lock);
  if (ok) return RAIL_OK;
  RAIL_WARN("%s: init: no thread to watch connections: %s", watch->ops->plugin, strerror(err));
  return RAIL_SYSTEM_ERROR;
}

/* Comms that their callers never closed. The thread has ended. */
static void abandon_comms(struct rail_watch *watch) {
  while (!LIST_EMPTY(&watch->watched)) {
    const struct rail_watch_args args = LIST_FIRST(&watch->watched)->args;
    RAIL_INFO(RAIL_SUB_NET, "%s: finalize: connection with %s over %s was never closed", watch->ops->plugin, args.peer,
              args.device);
    watch->ops->abandon(args.comm);
  }
}

static void end_thread(struct rail_watch *watch, bool at_once) {
  pthread_mutex_lock(&lock);
  watch->ending = true;
  watch->at_once = at_once;
  wake(watch);
  pthread_mutex_unlock(&lock);
  pthread_join(watch->thread, NULL);
  if (!at_once) abandon_comms(watch);
  pthread_mutex_lock(&lock);
  not_running(watch);
  pthread_mutex_unlock(&lock);
}

void rail_watch_end(struct rail_watch *watch) {
  pthread_mutex_lock(&lock);
  bool last = watch->users > 0 && --watch->users == 0;
  pthread_mutex_unlock(&lock);
  if (last) end_thread(watch, false);
}

/* The library is unloaded without finalize: the thread must end before its code is unmapped. */
__attribute__((destructor)) static void end_at_unload(void) {
  for (;;) {
    pthread_mutex_lock(&lock);
    struct rail_watch *watch = LIST_FIRST(&watches);
    if (watch) watch->users = 0;
    pthread_mutex_unlock(&lock);
    if (!watch) return;
    end_thread(watch, true);
  }
}

/* ---- connections ------------------------------------------------------------------ */

rail_result_t rail_watch_add(struct rail_watch *watch, const struct rail_watch_args *args) {
  const struct rail_watch_ops *ops = watch->ops;
  struct rail_watched *w = calloc(1, sizeof *w);
  if (!w) {
    RAIL_WARN("%s: connection with %s over %s: out of memory", ops->plugin, args->peer, args->device);
    return RAIL_SYSTEM_ERROR;
  }
  w->kind = KIND_COMM;
  w->watch = watch;
  w->args = *args;
  pthread_mutex_lock(&lock);
  ops->load_limits(&watch->limits);
  const struct rail_oob_args oob_args = {.ops = ops->oob, .limits = &watch->limits, .comm = args->comm,
                                         .sender = args->sender, .peer = args->peer, .device = args->device};
  rail_oob_init(&w->oob, &oob_args, args->fd, watch->now_ns);
  update_epoll(watch, w);
  int err = errno;
  bool ok = w->interest != 0;
  if (ok) {
    if (LIST_EMPTY(&watch->watched)) wake(watch); /* it sleeps without ticks */
    LIST_INSERT_HEAD(&watch->watched, w, link);
    set_polled(watch, w, must_poll(w));
    *args->handle = w;
  }
  pthread_mutex_unlock(&lock);
  if (ok) return RAIL_OK;
  free(w);
  RAIL_WARN("%s: connection with %s over %s: its oob connection cannot be watched: %s", ops->plugin, args->peer,
            args->device, strerror(err));
  return RAIL_SYSTEM_ERROR;
}

void rail_watch_remove(struct rail_watch *watch, struct rail_watched **handle, bool goodbye) {
  pthread_mutex_lock(&lock);
  struct rail_watched *w = *handle;
  if (w) {
    if (goodbye) goodbye_and_read(&w->oob);
    unlink_watched(watch, w);
    *handle = NULL;
  }
  pthread_mutex_unlock(&lock);
}

void rail_watch_ping(struct rail_watch *watch, struct rail_watched *const *handle) {
  pthread_mutex_lock(&lock);
  if (*handle && watch->running) {
    rail_oob_ping(&(*handle)->oob);
    update(watch, *handle);
  }
  pthread_mutex_unlock(&lock);
}

bool rail_watch_send_frames(struct rail_watched *const *handle) {
  bool usable = false;
  pthread_mutex_lock(&lock);
  if (*handle && (*handle)->watch->running) {
    update((*handle)->watch, *handle);
    usable = !(*handle)->oob.closed && !(*handle)->oob.net_down;
  }
  pthread_mutex_unlock(&lock);
  return usable;
}

bool rail_watch_linger(struct rail_watch *watch, struct rail_watched **handle, uint64_t ms, bool goodbye_last,
                       void (*destroy)(void *comm)) {
  pthread_mutex_lock(&lock);
  struct rail_watched *w = *handle;
  if (w) {
    w->destroy = destroy;
    w->linger_until = rail_now_ns() + ms * 1000000ull;
    w->goodbye_last = goodbye_last;
    *handle = NULL;
    queue_linger(watch, w);
    if (!goodbye_last) rail_oob_goodbye(&w->oob);
    update(watch, w);
    if (w == TAILQ_FIRST(&watch->lingering)) wake(watch); /* else it looks in time */
  }
  pthread_mutex_unlock(&lock);
  return w != NULL;
}

void rail_watch_each(struct rail_watch *watch, void (*fn)(void *comm, void *arg), void *arg) {
  const struct rail_watched *w;
  pthread_mutex_lock(&lock);
  LIST_FOREACH(w, &watch->watched, link) fn(w->args.comm, arg);
  pthread_mutex_unlock(&lock);
}
