/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of the engine, and their poll contexts.
 *
 * Three things must never be lost: an event of a socket, a request that was left in the comm's ring (a notification), a
 * comm with work when a bound was reached. Each puts the context into the thread's run list, the notification by way of
 * a list that any thread may push to. A context is taken from the run list before it is run, and put back when its comm
 * has another owner.
 *
 * Before it sleeps a thread sets `sleeping`, then looks for notifications and shared work once more; who brings one of
 * them does that first, then looks at `sleeping`. So one of them sees the other, and only a thread that sleeps costs a
 * system call.
 *
 * Events are edges: a socket that became ready is reported once, so a comm must be moved until its sockets would block.
 * A short read means that the socket is empty, a short write that it is full; either way the next change makes a new
 * edge. The end of a stream is the exception: it may come with the last bytes and make one edge with them, so after it
 * reading goes on until the end was read.
 */
#include "plugin/socket/sk_affinity.h"
#include "plugin/socket/sk_engine.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "plugin/socket/sk_param.h"

#define EVENTS_AT_ONCE 64
#define YIELD_POLLS 4   /* a spinning thread calls sched_yield after so many polls */
#define SHARED_NS 20000 /* and stops spinning when that, or a poll, took so long: another thread needs the core */
#define GAP_FACTOR 8    /* longest gap that counts in the mean, in units of the longest spin: it must come down again */

struct poll_thread;

/* Memory that stays until the thread ends, so that an event or a notification that comes late finds the context empty,
 * or with another comm, which is then run for nothing. */
struct sk_poll_ctx {
  struct poll_thread *thread;
  sk_poll_fn fn;          /* sk_progress_engine; of `arg`, a comm */
  _Atomic(void *) arg;    /* NULL: free */
  _Atomic uint32_t busy;  /* the thread runs it; detach waits for it */
  _Atomic uint32_t notified; /* it is in the thread's list of notified ones */
  struct sk_poll_ctx *notified_next;
  struct sk_poll_ctx *contexts_next, *free_next; /* under the lock */

  /* The thread's. */
  struct sk_poll_ctx *run_next;
  bool queued;   /* in the run list */
  bool readable; /* a socket has said so since it last ran */
  bool ended;    /* a socket has said that nothing more comes: a short read is not the last one */
};

/* What a thread shares with the others. An item is free while next < count. */
struct shared_work {
  _Atomic uint64_t claims; /* generation, count, next: 32, 16 and 16 bits */
  _Atomic uint32_t done;   /* items */
  void (*run)(void *items, uint32_t i);
  void *items;
};

struct poll_thread {
  pthread_t id;
  int wake_fd; /* an eventfd */
  int epoll_fd;
  _Atomic uint32_t sleeping, quit;
  _Atomic(struct sk_poll_ctx *) notified;

  struct shared_work work;

  uint32_t count; /* of contexts in use; under the lock, as are the two lists */
  struct sk_poll_ctx *contexts, *free_contexts;

  /* The thread's. */
  struct sk_poll_ctx *run_list, **run_list_end;
  uint64_t gap_ns, spin_ns; /* how long nothing happens, on average; how long it is worth to spin for it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint32_t nsharing; /* threads that share work: all, once all are started; 0: there is no engine */
static _Thread_local struct poll_thread *self; /* in a thread of the engine */
static _Atomic bool forking; /* a fork waits until no thread is within a comm; set under the lock */
static struct {
  unsigned int vendor;
  bool tried; /* also when it failed: the reason was logged */
  pid_t owner; /* of the threads */
  uint32_t count;
  struct poll_thread *threads;
  struct sk_affinity affinity;
} engine;

/* ---- run list and notifications -------------------------------------------- */

static void enqueue(struct sk_poll_ctx *ctx) {
  struct poll_thread *t = ctx->thread;
  if (ctx->queued) return;
  ctx->queued = true;
  ctx->run_next = NULL;
  *t->run_list_end = ctx;
  t->run_list_end = &ctx->run_next;
}

/* False: it does not sleep. */
static bool wake(struct poll_thread *t) {
  if (!atomic_load(&t->sleeping) || !atomic_exchange(&t->sleeping, 0)) return false;
  /* An eventfd that is full wakes, too. */
  while (write(t->wake_fd, &(uint64_t){1}, sizeof(uint64_t)) < 0 && errno == EINTR) {}
  return true;
}

void sk_engine_notify(struct sk_poll_ctx *ctx) {
  struct poll_thread *t = ctx->thread;
  if (atomic_exchange(&ctx->notified, 1)) return;
  struct sk_poll_ctx *first = atomic_load_explicit(&t->notified, memory_order_relaxed);
  do ctx->notified_next = first;
  while (!atomic_compare_exchange_weak(&t->notified, &first, ctx));
  (void)wake(t);
}

static void take_notified(struct poll_thread *t) {
  if (!atomic_load_explicit(&t->notified, memory_order_relaxed)) return;
  for (struct sk_poll_ctx *ctx = atomic_exchange(&t->notified, NULL), *next; ctx; ctx = next) {
    next = ctx->notified_next;
    atomic_exchange(&ctx->notified, 0); /* from here on a notification makes a new entry */
    enqueue(ctx);
  }
}

/* ---- shared work ---------------------------------------------------------- */

/* Takes a free item and runs it. The generation keeps a claim from being made on work that is over; `run` and `items`
 * stay until the item is done. False: none is free. */
static bool run_item(struct shared_work *w) {
  uint64_t claims = atomic_load(&w->claims);
  do
    if ((uint16_t)claims >= (uint16_t)(claims >> 16)) return false;
  while (!atomic_compare_exchange_weak(&w->claims, &claims, claims + 1));
  w->run(w->items, (uint16_t)claims);
  atomic_fetch_add_explicit(&w->done, 1, memory_order_release);
  return true;
}

/* After each item it looks whether it has work of its own. */
static void take_shared_work(struct poll_thread *t) {
  const uint32_t n = atomic_load(&nsharing);
  for (uint32_t i = 0; i < n; i++)
    while (&engine.threads[i] != t && run_item(&engine.threads[i].work))
      if (t->run_list || atomic_load_explicit(&t->notified, memory_order_relaxed)) return;
}

static bool is_work_free(void) {
  const uint32_t n = atomic_load(&nsharing);
  for (uint32_t i = 0; i < n; i++) {
    uint64_t claims = atomic_load(&engine.threads[i].work.claims);
    if ((uint16_t)claims < (uint16_t)(claims >> 16)) return true;
  }
  return false;
}

bool sk_engine_can_share(void) { return self && atomic_load_explicit(&nsharing, memory_order_relaxed) > 1; }

void sk_engine_share(void (*run)(void *items, uint32_t i), void *items, uint32_t n) {
  struct shared_work *w = &self->work;
  const uint32_t threads = atomic_load(&nsharing);
  uint32_t wanted = n - 1;
  w->run = run;
  w->items = items;
  atomic_store_explicit(&w->done, 0, memory_order_relaxed);
  atomic_store(&w->claims, ((atomic_load(&w->claims) >> 32) + 1) << 32 | (uint64_t)n << 16);
  for (uint32_t i = 0; i < threads && wanted; i++)
    if (&engine.threads[i] != self && wake(&engine.threads[i])) wanted--;
  while (run_item(w)) continue;
  for (int spins = 0; atomic_load_explicit(&w->done, memory_order_acquire) < n; spins++) {
    if (spins < 1000) rail_cpu_relax();
    else sched_yield(); /* the other thread may need this core to finish */
  }
}

/* ---- the thread ----------------------------------------------------------- */

/* False: another thread owns it, or a fork waits. */
static bool run_ctx(struct sk_poll_ctx *ctx) {
  enum sk_poll_result result = SK_POLL_IDLE;
  atomic_store(&ctx->busy, 1); /* before the loads below: detach clears arg, then looks at busy; so does a fork */
  void *arg = atomic_load(&ctx->arg);
  if (rail_unlikely(atomic_load(&forking))) {
    result = SK_POLL_BUSY;
    enqueue(ctx);
  } else if (arg) {
    result = ctx->fn(arg, ctx->readable);
    if (result == SK_POLL_MORE) ctx->readable = true;
    if (result == SK_POLL_IDLE) {
      ctx->readable = ctx->ended;
      if (ctx->ended) result = SK_POLL_MORE;
      ctx->ended = false;
    }
    if (result != SK_POLL_IDLE) enqueue(ctx);
  }
  atomic_store_explicit(&ctx->busy, 0, memory_order_release);
  return result != SK_POLL_BUSY;
}

/* Each context of the run list once, so that none waits for long. */
static void run_all(struct poll_thread *t) {
  struct sk_poll_ctx *ctx = t->run_list, *next;
  bool moved = !ctx;
  t->run_list = NULL;
  t->run_list_end = &t->run_list;
  for (; ctx; ctx = next) {
    next = ctx->run_next;
    ctx->queued = false;
    moved |= run_ctx(ctx);
  }
  if (!moved) sched_yield(); /* the owner may need this core to finish */
}

static unsigned int poll_events(struct poll_thread *t, bool sleep) {
  struct epoll_event events[EVENTS_AT_ONCE];
  int n = epoll_wait(t->epoll_fd, events, EVENTS_AT_ONCE, sleep ? -1 : 0);
  for (int i = 0; i < n; i++) {
    struct sk_poll_ctx *ctx = events[i].data.ptr;
    if (!ctx) continue; /* wake_fd */
    if (events[i].events & ~(uint32_t)EPOLLOUT) ctx->readable = true;
    if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) ctx->ended = true;
    enqueue(ctx);
  }
  return n > 0 ? (unsigned int)n : 0;
}

/* Nothing happened for `gap` ns. Spinning pays when that is usually short. */
static void learn_gap(struct poll_thread *t, uint64_t gap) {
  uint64_t most = (uint64_t)sk_params.spin_us * 1000;
  t->gap_ns = (7 * t->gap_ns + RAIL_MIN(gap, GAP_FACTOR * most)) / 8;
  t->spin_ns = t->gap_ns < most ? RAIL_MIN(most, 2 * t->gap_ns) : 0;
}

static void wait_for_events(struct poll_thread *t) {
  if (t->run_list) {
    poll_events(t, false);
    return;
  }
  bool measured = sk_params.spin_us > 0, shared = false;
  uint64_t since = measured ? rail_now_ns() : 0, now = since;
  for (unsigned int polls = 1; now - since < t->spin_ns && !shared; polls++) {
    if (poll_events(t, false) || atomic_load_explicit(&t->notified, memory_order_relaxed) || is_work_free()) {
      learn_gap(t, now - since);
      return;
    }
    if (polls % YIELD_POLLS == 0) sched_yield();
    uint64_t before = now;
    now = rail_now_ns();
    shared = now - before > SHARED_NS;
  }
  atomic_store(&t->sleeping, 1);
  bool sleep = !atomic_load(&t->notified) && !is_work_free() && !atomic_load(&t->quit);
  poll_events(t, sleep);
  atomic_store(&t->sleeping, 0);
  if (measured) learn_gap(t, shared ? UINT64_MAX : rail_now_ns() - since);
}

static void *thread_main(void *arg) {
  struct poll_thread *t = self = arg;
  while (!atomic_load(&t->quit)) {
    take_notified(t);
    run_all(t);
    take_shared_work(t);
    wait_for_events(t);
  }
  return NULL;
}

/* ---- begin and end -------------------------------------------------------- */

/* A child of fork keeps contexts of the thread: the numbers are soon those of other files. */
static void close_fds(struct poll_thread *t) {
  if (t->wake_fd >= 0) close(t->wake_fd);
  if (t->epoll_fd >= 0) close(t->epoll_fd);
  t->wake_fd = t->epoll_fd = -1;
}

/* False with errno. */
static bool start_thread(struct poll_thread *t, unsigned int index) {
  char name[16];
  struct epoll_event event = {.events = EPOLLIN | EPOLLET}; /* each write to wake_fd is an edge: it need not be read */
  *t = (struct poll_thread){.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                            .epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
  t->run_list_end = &t->run_list;
  t->gap_ns = GAP_FACTOR * (uint64_t)sk_params.spin_us * 1000; /* no spinning until gaps were seen to be short */
  snprintf(name, sizeof name, "rail-socket-%u", index % 1000);
  int err = errno;
  if (t->wake_fd >= 0 && t->epoll_fd >= 0) {
    err = epoll_ctl(t->epoll_fd, EPOLL_CTL_ADD, t->wake_fd, &event) ? errno
                                                                   : rail_thread_start(name, thread_main, t, &t->id);
    if (!err) return true;
  }
  close_fds(t);
  errno = err;
  return false;
}

static void join_thread(struct poll_thread *t) {
  if (atomic_exchange(&t->quit, 1)) return;
  (void)wake(t);
  pthread_join(t->id, NULL);
}

static void free_thread(struct poll_thread *t) {
  for (struct sk_poll_ctx *ctx = t->contexts, *next; ctx; ctx = next) {
    next = ctx->contexts_next;
    free(ctx);
  }
  close_fds(t);
}

void sk_engine_stop(void) {
  pthread_mutex_lock(&lock);
  atomic_store(&nsharing, 0);
  for (uint32_t i = 0; i < engine.count; i++) join_thread(&engine.threads[i]);
  while (engine.count) free_thread(&engine.threads[--engine.count]);
  free(engine.threads);
  engine.threads = NULL;
  engine.tried = false;
  pthread_mutex_unlock(&lock);
}

/* The plugin is unloaded without finalize: the threads' code is about to go. At exit others may still use their
 * comms. */
__attribute__((destructor)) static void end_at_unload(void) {
  for (uint32_t i = 0; i < engine.count; i++) join_thread(&engine.threads[i]);
}

static bool any_busy(void) {
  for (uint32_t i = 0; i < engine.count; i++)
    for (const struct sk_poll_ctx *ctx = engine.threads[i].contexts; ctx; ctx = ctx->contexts_next)
      if (atomic_load(&ctx->busy)) return true;
  return false;
}

/* A fork waits until no engine thread is within a comm, as in sk_watch.c; that is short. A child of clone(2) has none
 * of the threads, and its copies of `busy` are stale: it does not wait. */
static void before_fork(void) {
  pthread_mutex_lock(&lock);
  if (engine.owner != getpid()) return;
  atomic_store(&forking, true);
  while (any_busy()) sched_yield();
}

static void after_fork_parent(void) {
  atomic_store(&forking, false);
  pthread_mutex_unlock(&lock);
}

/* The child has copies without threads: their comms are closed, the epoll set itself is the parent's. */
static void after_fork_child(void) {
  for (uint32_t i = 0; i < engine.count; i++) close_fds(&engine.threads[i]);
  atomic_store(&nsharing, 0);
  engine.threads = NULL;
  engine.count = 0;
  engine.tried = false;
  after_fork_parent();
}

void sk_engine_load(unsigned int vendor) {
  pthread_mutex_lock(&lock);
  engine.vendor = vendor;
  pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static void start_once(void) {
  static bool fork_handled;
  if (engine.tried) return;
  engine.tried = true;
  if (!fork_handled) fork_handled = pthread_atfork(before_fork, after_fork_parent, after_fork_child) == 0;
  struct sk_choice choice = sk_choose_threads(&sk_params, engine.vendor, rail_thread_cores());
  const uint32_t wanted = choice.count;
  if (!wanted) {
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: engine inline (%s)", choice.why);
    return;
  }
  engine.owner = getpid();
  sk_affinity_begin(&engine.affinity);
  engine.threads = calloc(wanted, sizeof *engine.threads);
  while (engine.threads && engine.count < wanted && start_thread(&engine.threads[engine.count], engine.count))
    engine.count++;
  if (engine.count) {
    atomic_store(&nsharing, engine.count);
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: engine epoll with %u of %u threads (%s)", engine.count, wanted,
              choice.why);
    return;
  }
  RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: no thread for engine epoll (%s); the caller's calls move data",
            strerror(errno));
  free(engine.threads);
  engine.threads = NULL;
}

void sk_engine_set_affinity(const cpu_set_t *near, const char *device) {
  pthread_mutex_lock(&lock);
  if (engine.count && sk_affinity_add(&engine.affinity, near, device, engine.count))
    for (uint32_t i = 0; i < engine.count; i++) /* where it fails the thread stays where it may run */
      (void)pthread_setaffinity_np(engine.threads[i].id, sizeof engine.affinity.now, &engine.affinity.now);
  pthread_mutex_unlock(&lock);
}

/* ---- poll contexts ---------------------------------------------------------- */

/* Under the lock. NULL: no engine, or no memory. */
static struct sk_poll_ctx *take_ctx(void) {
  if (!engine.threads) return NULL;
  struct poll_thread *t = &engine.threads[0];
  for (uint32_t i = 1; i < engine.count; i++)
    if (engine.threads[i].count < t->count) t = &engine.threads[i];
  struct sk_poll_ctx *ctx = t->free_contexts;
  if (ctx) {
    t->free_contexts = ctx->free_next;
  } else {
    ctx = calloc(1, sizeof *ctx);
    if (!ctx) return NULL;
    ctx->thread = t;
    ctx->contexts_next = t->contexts;
    t->contexts = ctx;
  }
  t->count++;
  return ctx;
}

static void return_ctx(struct sk_poll_ctx *ctx) {
  pthread_mutex_lock(&lock);
  ctx->free_next = ctx->thread->free_contexts;
  ctx->thread->free_contexts = ctx;
  ctx->thread->count--;
  pthread_mutex_unlock(&lock);
}

bool sk_engine_add(struct sk_poll_ctx *ctx, int fd) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = ctx};
  return epoll_ctl(ctx->thread->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Not left to close(2): a descriptor that a child of fork has inherited would keep the socket in the set. */
void sk_engine_remove(struct sk_poll_ctx *ctx, int fd) {
  struct epoll_event event = {0};
  if (fd >= 0) epoll_ctl(ctx->thread->epoll_fd, EPOLL_CTL_DEL, fd, &event);
}

void sk_engine_attach(struct sk_poll_ctx **out, sk_poll_fn fn, void *arg, const int *fds, uint32_t n) {
  pthread_mutex_lock(&lock);
  start_once();
  struct sk_poll_ctx *ctx = take_ctx();
  pthread_mutex_unlock(&lock);
  *out = NULL;
  if (!ctx) return;
  for (uint32_t i = 0; i < n; i++) {
    if (sk_engine_add(ctx, fds[i])) continue;
    RAIL_INFO(RAIL_SUB_NET, "RailSocket: engine epoll does not take a connection (%s); the caller's calls move it",
              strerror(errno));
    while (i-- > 0) sk_engine_remove(ctx, fds[i]);
    return_ctx(ctx);
    return;
  }
  ctx->fn = fn;
  *out = ctx;
  atomic_store(&ctx->arg, arg);
  sk_engine_notify(ctx); /* for what came before the sockets were watched */
}

void sk_engine_detach(struct sk_poll_ctx *ctx, const int *fds, uint32_t n) {
  atomic_store(&ctx->arg, NULL);
  while (atomic_load(&ctx->busy)) sched_yield(); /* short: the comm is stopped, fn finds that out */
  for (uint32_t i = 0; i < n; i++) sk_engine_remove(ctx, fds[i]);
  return_ctx(ctx);
}
