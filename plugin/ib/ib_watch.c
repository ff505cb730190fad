/* SPDX-License-Identifier: Apache-2.0
 *
 * One epoll set: an eventfd that wakes the thread, the HCAs' events, the oob connections. Oob connections are served
 * under the lock, without waiting. HCA events are handled without it, because a thread that destroys a QP waits,
 * perhaps with that lock, until the QP's events are acknowledged.
 *
 * The thread sleeps until an event comes. It ticks only while there are connections and a parameter asks for it
 * (RAIL_IB_DEADLINE, _PEER_TIMEOUT, _PEER_WARN), because the thread is not notified when requests begin.
 *
 * A removed connection's entry may still be in the thread's batch of epoll events. It goes to the list `unlinked`,
 * which the thread frees between two batches.
 */
#include "plugin/ib/ib_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/queue.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/conn/oob.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_stats.h"
#include "plugin/ib/ib_wire.h"

#define BATCH 64
#define SLACK_NS 10000000 /* timer slack: how late a tick may be, so that the kernel can join it with others */
#define DRAIN_POLL_MS 10  /* between two checks of a sender whose peer waits for its last completions */
#define LATE_TICKS 4      /* a later tick: this thread was descheduled, so a silent peer is not blamed */

/* What an epoll event is about: the first member of the struct that its pointer names. */
enum kind { KIND_WAKE, KIND_HCA, KIND_COMM };

struct source_hca {
  enum kind kind;
  struct ib_hca *hca;
};

struct ib_watched {
  enum kind kind;
  struct ib_comm *comm; /* NULL: removed meanwhile */
  LIST_ENTRY(ib_watched) link;
  struct rail_oob oob;
  uint32_t interest; /* epoll events asked for; 0: not in the set */
  void (*destroy)(struct ib_comm *comm); /* not NULL: it lingers */
  uint64_t linger_until;
};
LIST_HEAD(watched_list, ib_watched);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static struct watched_list watched = LIST_HEAD_INITIALIZER(watched), unlinked = LIST_HEAD_INITIALIZER(unlinked);
static unsigned int users; /* contexts */
static pthread_t thread;
static bool running, ending, at_once; /* at_once: without waiting for those that linger */
static int epoll_fd = -1, wake_fd = -1;
static uint64_t now_ns; /* counts only time in which the thread ran */
static enum kind wake_source = KIND_WAKE;
static struct source_hca hca_sources[IB_MAX_PORTS];

static void wake(void) {
  uint64_t one = 1;
  (void)!write(wake_fd, &one, sizeof one); /* a full eventfd wakes it, too */
}

/* ---- oob connections --------------------------------------------------------- */

static struct rail_oob_limits oob_limits = {.deadline_param = "RAIL_IB_DEADLINE", .peer_param = "RAIL_IB_PEER_TIMEOUT"};

static void load_limits(void) {
  oob_limits.deadline_ms = ib_params.deadline_ms;
  oob_limits.peer_ms = ib_params.peer_ms;
  oob_limits.warn_ms = ib_params.peer_warn_ms;
}

static struct rail_oob_work oob_work(const void *arg) {
  const struct ib_comm *comm = arg;
  return (struct rail_oob_work){
    .outstanding = atomic_load_explicit(&comm->outstanding, memory_order_relaxed),
    .activity = rail_stats_get(&comm->stats[IB_COMM_MESSAGES]) + rail_stats_get(&comm->stats[IB_COMM_WRITES]) +
                rail_stats_get(&comm->stats[IB_COMM_LAST_PROGRESS]),
    .waits = rail_stats_get(&comm->stats[IB_COMM_WAITS_CTS]),
  };
}

static void oob_event(void *arg, uint32_t events) {
  struct ib_comm *comm = arg;
  atomic_fetch_or(&comm->faults, events);
}

static void oob_silent(void *arg, bool silent) {
  struct ib_comm *comm = arg;
  atomic_store_explicit(&comm->peer_silent, silent, memory_order_relaxed);
}

static const struct rail_oob_ops oob_ops = {
  .protocol = &ib_protocol, .work = oob_work, .event = oob_event, .silent = oob_silent};

/* ---- lists, under the lock -------------------------------------------------- */

/* The comm is its caller's again. */
static void unlink_watched(struct ib_watched *w) {
  LIST_REMOVE(w, link);
  if (w->interest) epoll_ctl(epoll_fd, EPOLL_CTL_DEL, w->oob.fd, NULL);
  w->interest = 0;
  w->comm = NULL;
  LIST_INSERT_HEAD(&unlinked, w, link);
}

static void free_list(struct watched_list *list) {
  while (!LIST_EMPTY(list)) {
    struct ib_watched *w = LIST_FIRST(list);
    LIST_REMOVE(w, link);
    free(w);
  }
}

/* ---- one connection, under the lock ------------------------------------------ */

/* Writes what is due, and asks epoll for the events that it waits for. */
static void update_epoll(struct ib_watched *w) {
  bool more = rail_oob_write(&w->oob);
  uint32_t interest = w->oob.closed || w->oob.net_down ? 0 : EPOLLIN | (more ? EPOLLOUT : 0);
  struct epoll_event event = {.events = interest, .data.ptr = w};
  if (interest == w->interest) return;
  int op = !w->interest ? EPOLL_CTL_ADD : interest ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
  if (epoll_ctl(epoll_fd, op, w->oob.fd, &event) == 0) w->interest = interest;
}

static bool linger_is_over(const struct ib_watched *w) {
  return w->destroy && (w->oob.closed || rail_now_ns() >= w->linger_until);
}

/* Releases the lock meanwhile: destroying QPs takes long. */
static void end_linger(struct ib_watched *w) {
  struct ib_comm *comm = w->comm;
  void (*destroy)(struct ib_comm *) = w->destroy;
  unlink_watched(w);
  pthread_mutex_unlock(&lock);
  destroy(comm);
  pthread_mutex_lock(&lock);
}

/* ---- the thread --------------------------------------------------------------- */

static bool any_lingers(void) {
  const struct ib_watched *w;
  LIST_FOREACH(w, &watched, link)
    if (w->destroy) return true;
  return false;
}

/* Milliseconds; -1: until something comes. */
static int time_to_sleep(uint64_t next_tick) {
  const struct ib_watched *w;
  uint64_t at = !LIST_EMPTY(&watched) && rail_oob_tick_ns(&oob_limits) ? next_tick : 0;
  LIST_FOREACH(w, &watched, link) {
    uint64_t until = rail_oob_is_draining(&w->oob) ? rail_deadline_in_ms(DRAIN_POLL_MS) : w->linger_until;
    if (until && (!at || until < at)) at = until;
  }
  return rail_deadline_left_ms(at);
}

/* One line per silent process, not one per connection with it. */
static void report_silence(struct ib_watched *w) {
  const struct ib_watched *other;
  LIST_FOREACH(other, &watched, link)
    if (other->oob.reported != RAIL_OOB_UNREPORTED && other->comm->peer_process == w->comm->peer_process) {
      w->oob.reported = RAIL_OOB_REPORTED_BY_ANOTHER;
      return;
    }
  rail_oob_report(&w->oob, now_ns);
}

static void tick(void) {
  struct ib_watched *w;
  LIST_FOREACH(w, &watched, link) {
    rail_oob_tick(&w->oob, now_ns);
    if (rail_oob_is_report_due(&w->oob, now_ns)) report_silence(w);
    update_epoll(w);
  }
}

static void drain_some(void) {
  struct ib_watched *w;
  LIST_FOREACH(w, &watched, link) {
    if (!rail_oob_is_draining(&w->oob)) continue;
    rail_oob_drain(&w->oob);
    update_epoll(w);
  }
}

static void end_lingers(void) {
  for (struct ib_watched *w = LIST_FIRST(&watched), *next; w; w = next) {
    next = LIST_NEXT(w, link);
    if (!linger_is_over(w)) continue;
    end_linger(w);
    next = LIST_FIRST(&watched); /* the lock was released: the list may have changed */
  }
}

/* Every comm over the HCA. */
static void fail_comms_over(const struct ib_hca *hca) {
  struct ib_watched *w;
  LIST_FOREACH(w, &watched, link)
    for (unsigned int r = 0; r < w->comm->nrails; r++)
      if (w->comm->rails[r].port->hca == hca) atomic_fetch_or(&w->comm->faults, IB_COMM_DEVICE_FATAL);
}

/* Under the lock, which is released meanwhile. */
static void on_hca(const struct source_hca *source) {
  pthread_mutex_unlock(&lock);
  enum ib_events events = ib_events_read(source->hca);
  pthread_mutex_lock(&lock);
  if (events == IB_EVENTS_FATAL) fail_comms_over(source->hca);
  if (events == IB_EVENTS_GONE) epoll_ctl(epoll_fd, EPOLL_CTL_DEL, source->hca->context->async_fd, NULL);
}

/* Under the lock. */
static void on_event(const struct epoll_event *event) {
  enum kind kind = *(const enum kind *)event->data.ptr;
  uint64_t count;
  if (kind == KIND_WAKE) {
    (void)!read(wake_fd, &count, sizeof count);
  } else if (kind == KIND_HCA) {
    on_hca(event->data.ptr);
  } else {
    struct ib_watched *w = event->data.ptr;
    if (!w->comm) return;
    if (event->events & ~(uint32_t)EPOLLOUT) rail_oob_read(&w->oob, now_ns);
    update_epoll(w);
  }
}

static void *run(void *arg) {
  (void)arg;
  struct epoll_event events[BATCH];
  uint64_t last = rail_now_ns(), next_tick = last;
  (void)prctl(PR_SET_TIMERSLACK, SLACK_NS, 0, 0, 0);
  pthread_mutex_lock(&lock);
  while (!ending || (!at_once && any_lingers())) {
    int timeout = time_to_sleep(next_tick);
    free_list(&unlinked);
    pthread_mutex_unlock(&lock);
    int n = epoll_wait(epoll_fd, events, BATCH, timeout);
    pthread_mutex_lock(&lock);
    uint64_t real = rail_now_ns(), step = rail_oob_tick_ns(&oob_limits);
    now_ns += real - last < LATE_TICKS * step ? real - last : step;
    last = real;
    for (int i = 0; i < n; i++) on_event(&events[i]);
    if (step && real >= next_tick) {
      tick();
      next_tick = real + step;
    }
    drain_some();
    end_lingers();
  }
  free_list(&unlinked);
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* ---- fork --------------------------------------------------------------------- */

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&lock); }

/* A child has no thread, and none of its parent's connections. Their sockets are closed without GOODBYE, so that a
 * child that outlives its parent does not keep them open; their verbs objects stay the parent's. */
static void after_fork_child(void) {
  struct ib_watched *w;
  LIST_FOREACH(w, &watched, link) {
    atomic_store(&w->comm->stopped, true);
    w->comm->forked = true;
    w->comm->watched = NULL;
    rail_sock_close(&w->comm->oob_fd);
  }
  free_list(&watched);
  free_list(&unlinked);
  rail_sock_close(&epoll_fd);
  rail_sock_close(&wake_fd);
  users = 0;
  running = ending = false;
  pthread_mutex_unlock(&lock);
}

/* ---- starting and ending -------------------------------------------------------- */

static bool add_source(int fd, void *source) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
  return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static bool add_hcas(void) {
  for (unsigned int i = 0; i < ib_hca_count() && i < RAIL_COUNT_OF(hca_sources); i++) {
    struct ib_hca *hca = ib_hca_at(i);
    int fd = hca->context->async_fd, flags = fcntl(fd, F_GETFL);
    hca_sources[i] = (struct source_hca){KIND_HCA, hca};
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || !add_source(fd, &hca_sources[i])) return false;
  }
  return true;
}

/* Under the lock. False with errno. */
static bool start(void) {
  static bool fork_handled;
  load_limits();
  if (!fork_handled) fork_handled = pthread_atfork(before_fork, after_fork_parent, after_fork_child) == 0;
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  wake_fd = epoll_fd < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd >= 0 && add_source(wake_fd, &wake_source) && add_hcas()) {
    errno = rail_thread_start("rail-ib-watch", run, NULL, &thread);
    running = errno == 0;
  }
  if (!running) {
    rail_sock_close(&epoll_fd);
    rail_sock_close(&wake_fd);
  }
  return running;
}

rail_result_t ib_watch_begin(void) {
  pthread_mutex_lock(&lock);
  bool ok = running || start();
  int err = errno;
  if (ok) users++;
  pthread_mutex_unlock(&lock);
  if (ok) return RAIL_OK;
  RAIL_WARN("RailIB: init: no thread to watch connections: %s", strerror(err));
  return RAIL_SYSTEM_ERROR;
}

/* Comms that their callers never closed: their QPs stop, their memory stays for a late close. */
static void stop_open_comms(void) {
  while (!LIST_EMPTY(&watched)) {
    struct ib_comm *comm = LIST_FIRST(&watched)->comm;
    RAIL_INFO(RAIL_SUB_NET, "RailIB: finalize: connection with %s over %s was never closed", comm->peer_text,
              comm->device->name);
    ib_comm_stop(comm);
    ib_watch_remove(comm, true);
    rail_sock_close(&comm->oob_fd);
  }
}

static void end_thread(bool now) {
  pthread_mutex_lock(&lock);
  ending = true;
  at_once = now;
  wake();
  pthread_mutex_unlock(&lock);
  pthread_join(thread, NULL);
  if (!now) stop_open_comms();
  pthread_mutex_lock(&lock);
  free_list(&unlinked);
  running = ending = at_once = false;
  rail_sock_close(&epoll_fd);
  rail_sock_close(&wake_fd);
  pthread_mutex_unlock(&lock);
}

void ib_watch_end(void) {
  pthread_mutex_lock(&lock);
  bool last = users > 0 && --users == 0;
  pthread_mutex_unlock(&lock);
  if (last) end_thread(false);
}

/* The library is unloaded without finalize: the thread must end before its code is unmapped. */
__attribute__((destructor)) static void end_at_unload(void) {
  pthread_mutex_lock(&lock);
  bool was_running = running;
  users = 0;
  pthread_mutex_unlock(&lock);
  if (was_running) end_thread(true);
}

/* ---- connections ------------------------------------------------------------------ */

rail_result_t ib_watch_add(struct ib_comm *comm) {
  struct ib_watched *w = calloc(1, sizeof *w);
  if (!w) {
    RAIL_WARN("RailIB: connection with %s over %s: out of memory", comm->peer_text, comm->device->name);
    return RAIL_SYSTEM_ERROR;
  }
  w->kind = KIND_COMM;
  w->comm = comm;
  pthread_mutex_lock(&lock);
  load_limits();
  const struct rail_oob_args args = {.ops = &oob_ops, .limits = &oob_limits, .comm = comm, .sender = comm->sender,
                                     .peer = comm->peer_text, .device = comm->device->name};
  rail_oob_init(&w->oob, &args, comm->oob_fd, now_ns);
  update_epoll(w);
  int err = errno;
  bool ok = w->interest != 0;
  if (ok) {
    if (LIST_EMPTY(&watched)) wake(); /* it sleeps without ticks */
    LIST_INSERT_HEAD(&watched, w, link);
    comm->watched = w;
  }
  pthread_mutex_unlock(&lock);
  if (ok) return RAIL_OK;
  free(w);
  RAIL_WARN("RailIB: connection with %s over %s: its oob connection cannot be watched: %s", comm->peer_text,
            comm->device->name, strerror(err));
  return RAIL_SYSTEM_ERROR;
}

/* Unread bytes would make the kernel reset the connection at close, and the peer might lose our GOODBYE. */
static void read_all(int fd) {
  char scratch[256];
  for (int i = 0; i < 16 && recv(fd, scratch, sizeof scratch, MSG_DONTWAIT) > 0; i++) continue;
}

void ib_watch_remove(struct ib_comm *comm, bool goodbye) {
  pthread_mutex_lock(&lock);
  struct ib_watched *w = comm->watched;
  if (w) {
    if (goodbye) {
      rail_oob_goodbye(&w->oob);
      shutdown(w->oob.fd, SHUT_WR);
      read_all(w->oob.fd);
    }
    unlink_watched(w);
    comm->watched = NULL;
  }
  pthread_mutex_unlock(&lock);
}

void ib_watch_linger(struct ib_comm *comm, void (*destroy)(struct ib_comm *comm)) {
  pthread_mutex_lock(&lock);
  struct ib_watched *w = comm->watched;
  if (w) {
    w->destroy = destroy;
    w->linger_until = rail_now_ns() + ib_comm_linger_ms(comm) * 1000000ull;
    comm->watched = NULL;
    rail_oob_goodbye(&w->oob);
    update_epoll(w);
    wake();
  }
  pthread_mutex_unlock(&lock);
  if (!w) destroy(comm);
}
