/* SPDX-License-Identifier: Apache-2.0
 *
 * One epoll set: a descriptor to wake the thread, the HCAs' events, the side
 * channels. Side channels are handled under the lock; nothing there waits. HCA
 * events are handled without it, because whoever destroys a QP may hold up
 * others until its events are acknowledged.
 *
 * The thread sleeps until something comes. It ticks only while there are
 * connections and a parameter asks for it (RAIL_IB_DEADLINE, _PEER_TIMEOUT,
 * _PEER_WARN), because a request that begins tells nobody.
 *
 * A removed connection's entry may still be in the thread's batch of epoll
 * events: it goes to a list of the dead, which the thread empties between two
 * batches.
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
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "plugin/ib/ib_channel.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_param.h"

#define BATCH 64
#define SLACK_NS 10000000 /* how late a tick may be, so that the kernel can join it with others */
#define DRAIN_MS 10       /* between two looks at a sender whose peer waits for its last completions */
#define LATE_TICKS 4      /* a tick that is later: we did not run ourselves, and nobody's silence is his fault */

/* What an epoll event is about; the first member of what its pointer points to. */
enum kind { KIND_WAKE, KIND_HCA, KIND_COMM };

struct source_hca {
  enum kind kind;
  struct ib_hca *hca;
};

struct ib_watched {
  enum kind kind;
  struct ib_comm *comm; /* NULL: removed meanwhile */
  struct ib_watched *next, *prev;
  struct ib_channel channel;
  uint32_t interest; /* epoll's; 0: not in the set */
  void (*destroy)(struct ib_comm *comm); /* it lingers */
  uint64_t linger_until;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static struct ib_watched *watched, *dead;
static unsigned int users; /* contexts */
static pthread_t thread;
static bool running, ending, at_once; /* at_once: without those that linger */
static int epoll_fd = -1, wake_fd = -1;
static uint64_t now_ns; /* of time that the thread was awake to see */
static enum kind wake_source = KIND_WAKE;
static struct source_hca hca_sources[IB_MAX_PORTS];

static void wake(void) {
  uint64_t one = 1;
  (void)!write(wake_fd, &one, sizeof one); /* if it is full the thread is awake */
}

/* ---- lists, under the lock -------------------------------------------------- */

static void link_watched(struct ib_watched *w) {
  w->next = watched;
  if (watched) watched->prev = w;
  watched = w;
}

/* To the dead. The comm is its caller's again. */
static void bury(struct ib_watched *w) {
  if (w->prev) w->prev->next = w->next;
  else watched = w->next;
  if (w->next) w->next->prev = w->prev;
  if (w->interest) epoll_ctl(epoll_fd, EPOLL_CTL_DEL, w->channel.fd, NULL);
  w->interest = 0;
  w->comm = NULL;
  w->next = dead;
  dead = w;
}

static void free_dead(void) {
  while (dead) {
    struct ib_watched *w = dead;
    dead = w->next;
    free(w);
  }
}

/* ---- one connection, under the lock ------------------------------------------ */

/* Writes what is due, and asks epoll for what is missing. */
static void settle(struct ib_watched *w) {
  bool more = ib_channel_write(&w->channel, w->comm);
  uint32_t interest = w->channel.over || w->channel.cut ? 0 : EPOLLIN | (more ? EPOLLOUT : 0);
  struct epoll_event event = {.events = interest, .data.ptr = w};
  if (interest == w->interest) return;
  int op = !w->interest ? EPOLL_CTL_ADD : interest ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
  if (epoll_ctl(epoll_fd, op, w->channel.fd, &event) == 0) w->interest = interest;
}

static bool linger_is_over(const struct ib_watched *w) {
  return w->destroy && (w->channel.over || rail_now_ns() >= w->linger_until);
}

/* Lets the lock go meanwhile: destroying QPs takes its time. */
static void end_linger(struct ib_watched *w) {
  struct ib_comm *comm = w->comm;
  void (*destroy)(struct ib_comm *) = w->destroy;
  bury(w);
  pthread_mutex_unlock(&lock);
  destroy(comm);
  pthread_mutex_lock(&lock);
}

/* ---- the thread --------------------------------------------------------------- */

static bool any_lingers(void) {
  for (const struct ib_watched *w = watched; w; w = w->next)
    if (w->destroy) return true;
  return false;
}

/* Milliseconds; -1: until something comes. */
static int time_to_sleep(uint64_t next_tick) {
  uint64_t at = watched && ib_channel_tick_ns() ? next_tick : 0;
  for (const struct ib_watched *w = watched; w; w = w->next) {
    uint64_t until = ib_channel_is_draining(&w->channel) ? rail_deadline_in_ms(DRAIN_MS) : w->linger_until;
    if (until && (!at || until < at)) at = until;
  }
  return rail_deadline_left_ms(at);
}

/* Once per process that is silent, not once per connection with it. */
static void report_silence(struct ib_watched *w) {
  for (const struct ib_watched *other = watched; other; other = other->next)
    if (other->channel.reported != IB_UNREPORTED && other->comm->peer_process == w->comm->peer_process) {
      w->channel.reported = IB_REPORTED_BY_ANOTHER;
      return;
    }
  ib_channel_report(&w->channel, w->comm, now_ns);
}

static void tick(void) {
  for (struct ib_watched *w = watched; w; w = w->next) {
    ib_channel_tick(&w->channel, w->comm, now_ns);
    if (ib_channel_is_report_due(&w->channel, now_ns)) report_silence(w);
    settle(w);
  }
}

static void drain_some(void) {
  for (struct ib_watched *w = watched; w; w = w->next) {
    if (!ib_channel_is_draining(&w->channel)) continue;
    ib_channel_drain(&w->channel, w->comm);
    settle(w);
  }
}

static void end_lingers(void) {
  for (struct ib_watched *w = watched; w;) {
    if (!linger_is_over(w)) {
      w = w->next;
      continue;
    }
    end_linger(w);
    w = watched; /* the list may be another by now */
  }
}

/* Every comm over the HCA. */
static void hca_died(const struct ib_hca *hca) {
  for (struct ib_watched *w = watched; w; w = w->next)
    for (unsigned int r = 0; r < w->comm->nrails; r++)
      if (w->comm->rails[r].port->hca == hca) atomic_fetch_or(&w->comm->health, IB_COMM_DEVICE_FATAL);
}

/* Under the lock, which is let go meanwhile. */
static void on_hca(const struct source_hca *source) {
  pthread_mutex_unlock(&lock);
  enum ib_events events = ib_events_read(source->hca);
  pthread_mutex_lock(&lock);
  if (events == IB_EVENTS_FATAL) hca_died(source->hca);
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
    if (event->events & ~(uint32_t)EPOLLOUT) ib_channel_read(&w->channel, w->comm, now_ns);
    settle(w);
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
    free_dead();
    pthread_mutex_unlock(&lock);
    int n = epoll_wait(epoll_fd, events, BATCH, timeout);
    pthread_mutex_lock(&lock);
    uint64_t real = rail_now_ns(), step = ib_channel_tick_ns();
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
  free_dead();
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* ---- fork --------------------------------------------------------------------- */

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&lock); }

/* A child has no thread, and none of its parent's connections: their sockets are closed without a word, so that a child
 * that outlives its parent does not keep them open; their verbs objects stay the parent's. */
static void after_fork_child(void) {
  for (struct ib_watched *w = watched, *next; w; w = next) {
    next = w->next;
    atomic_store(&w->comm->stopped, true);
    w->comm->forked = true;
    w->comm->watched = NULL;
    rail_sock_close(&w->comm->oob_fd);
    free(w);
  }
  watched = NULL;
  free_dead();
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
  RAIL_WARN("RailIB: init: no thread to watch over connections: %s", strerror(err));
  return RAIL_SYSTEM_ERROR;
}

/* Those that their callers never closed stop, and keep their memory: a late close finds it. */
static void end_open_ones(void) {
  while (watched) {
    struct ib_comm *comm = watched->comm;
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
  if (!now) end_open_ones();
  pthread_mutex_lock(&lock);
  free_dead();
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

/* Who unloads without finalizing: the thread's code is about to go. */
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
  ib_channel_init(&w->channel, comm->oob_fd, now_ns);
  settle(w);
  int err = errno;
  bool ok = w->interest != 0;
  if (ok) {
    if (!watched) wake(); /* it sleeps without ticks */
    link_watched(w);
    comm->watched = w;
  }
  pthread_mutex_unlock(&lock);
  if (ok) return RAIL_OK;
  free(w);
  RAIL_WARN("RailIB: connection with %s over %s: its side channel cannot be watched: %s", comm->peer_text,
            comm->device->name, strerror(err));
  return RAIL_SYSTEM_ERROR;
}

/* Bytes that nobody reads would make the kernel reset the connection, and the peer might miss our last word. */
static void read_all(int fd) {
  char scratch[256];
  for (int i = 0; i < 16 && recv(fd, scratch, sizeof scratch, MSG_DONTWAIT) > 0; i++) continue;
}

void ib_watch_remove(struct ib_comm *comm, bool goodbye) {
  pthread_mutex_lock(&lock);
  struct ib_watched *w = comm->watched;
  if (w) {
    if (goodbye) {
      ib_channel_goodbye(&w->channel, comm);
      shutdown(w->channel.fd, SHUT_WR);
      read_all(w->channel.fd);
    }
    bury(w);
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
    ib_channel_goodbye(&w->channel, comm);
    settle(w);
    wake();
  }
  pthread_mutex_unlock(&lock);
  if (!w) destroy(comm);
}
