/* SPDX-License-Identifier: Apache-2.0
 *
 * The watch thread: at each tick it runs sk_keepalive.c for every comm, which moves those whose callers do not test and
 * finds dead peers.
 *
 * A tick goes through the list in batches: check some comms under the lock, release it, ask the kernel with one poll(2)
 * which sockets are readable, then run those comms one after another. sk_watch_remove takes the comm out of the batch,
 * too, and waits if it is the one that is being run. So no lock is held across a system call, and no close waits for
 * more than one comm.
 */
#include "plugin/socket/sk_comm.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/conn/linger.h"
#include "plugin/socket/sk_param.h"

#define BATCH 64
#define BATCH_FDS 256
#define TICK_NS (SK_TICK_MS * 1000000ull)
#define LATE_NS (TICK_NS + TICK_NS / 2) /* a tick that is later than this: we did not run ourselves */

struct entry {
  struct sk_comm *comm; /* NULL: removed meanwhile */
  enum sk_keepalive_need need;
  uint32_t nfds;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static pthread_cond_t wake, released; /* work, or the end; `running_comm` is another, or a fork is over */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static LIST_HEAD(comm_list, sk_comm) comms = LIST_HEAD_INITIALIZER(comms);
static struct sk_comm *cursor;       /* the next one of this tick */
static struct sk_comm *running_comm; /* the one that the thread runs, without the lock */
static struct entry batch[BATCH];
static uint32_t batched;
static pthread_t thread;
static bool running, ending;
static bool forking; /* a fork waits until the thread is within no comm */
static pid_t owner; /* of the thread: a child made by clone(2), without the fork handlers, must not wait for it */

/* ---- the thread ---------------------------------------------------------- */

/* Under the lock: a batch of comms that need something. The sockets to poll go to fds. */
static uint32_t gather(uint64_t now, struct pollfd *fds) {
  uint32_t nfds = 0;
  batched = 0;
  while (cursor && batched < BATCH && nfds + SK_MAX_STREAMS <= BATCH_FDS) {
    struct entry *e = &batch[batched];
    *e = (struct entry){.comm = cursor};
    cursor = LIST_NEXT(cursor, next);
    e->need = sk_keepalive_check(e->comm, now, fds + nfds, &e->nfds);
    if (e->need == SK_KEEPALIVE_NONE) continue;
    nfds += e->nfds;
    batched++;
  }
  return nfds;
}

/* Under the lock, which is released meanwhile. */
static void run_entry(const struct entry *e, uint64_t now) {
  while (forking) pthread_cond_wait(&released, &lock);
  running_comm = e->comm;
  if (!running_comm) return;
  pthread_mutex_unlock(&lock);
  sk_keepalive_run(running_comm, now);
  pthread_mutex_lock(&lock);
  running_comm = NULL;
  pthread_cond_broadcast(&released);
}

/* Under the lock, which is released now and then. */
static void tick(uint64_t now) {
  struct pollfd fds[BATCH_FDS];
  cursor = LIST_FIRST(&comms);
  while (cursor && !ending) {
    const struct pollfd *at = fds;
    uint32_t nfds = gather(now, fds);
    pthread_mutex_unlock(&lock);
    bool any_ready = nfds && poll(fds, nfds, 0) > 0;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < batched && !ending; i++) {
      bool readable = false;
      for (uint32_t k = 0; k < batch[i].nfds; k++, at++) readable |= any_ready && at->revents;
      if (readable || batch[i].need == SK_KEEPALIVE_RUN) run_entry(&batch[i], now);
    }
    batched = 0;
  }
}

/* Under the lock: until the next tick, or until there is a reason to have one. True if there was none meanwhile. */
static bool sleep_until(uint64_t then) {
  struct timespec ts = {.tv_sec = (time_t)(then / 1000000000ull), .tv_nsec = (long)(then % 1000000000ull)};
  bool nothing = false;
  for (; !ending && LIST_EMPTY(&comms) && !rail_linger_any(); nothing = true) pthread_cond_wait(&wake, &lock);
  while (!ending && pthread_cond_timedwait(&wake, &lock, &ts) != ETIMEDOUT) continue;
  return nothing;
}

/* Under the lock. */
static bool any_in_use(void) {
  const struct sk_comm *comm;
  LIST_FOREACH(comm, &comms, next)
    if (sk_comm_in_use(comm)) return true;
  return false;
}

/* Under the lock, which is released meanwhile. The peers report this process as silent; here is the reason. `used`:
 * requests were outstanding before, which a caller's thread may have completed by now. */
static void report_absence(uint64_t ns, bool used) {
  if (!sk_params.stall_ms || ns < (uint64_t)sk_params.stall_ms * 1000000) return;
  if (!used && !any_in_use()) return;
  pthread_mutex_unlock(&lock);
  RAIL_WARN("RailSocket: this process did not run for %.1f s (it was stopped, in a debugger, being checkpointed, or "
            "its machine was); its peers have waited, and it goes on", (double)ns / 1e9);
  pthread_mutex_lock(&lock);
}

static void *run(void *arg) {
  (void)arg;
  uint64_t last = rail_now_ns(), now = last; /* now: of time in which this thread ran */
  bool used = false;
  rail_thread_coarse_timers();
  pthread_mutex_lock(&lock);
  while (!ending) {
    bool nothing = sleep_until(rail_now_ns() + TICK_NS);
    if (ending) break;
    uint64_t real = rail_now_ns();
    if (!nothing) report_absence(real - last, used);
    now += real - last < LATE_NS ? real - last : TICK_NS;
    last = real;
    tick(now);
    pthread_mutex_unlock(&lock);
    rail_linger_reap();
    pthread_mutex_lock(&lock);
    used = any_in_use();
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* ---- fork ---------------------------------------------------------------- */

/* Not while the thread is within a comm: it may hold its acceptor's lock, or be half-way through a call of OpenSSL, and
 * a child that closes the comm would wait for ever, or free what is not whole. */
static void before_fork(void) {
  rail_linger_before_fork();
  pthread_mutex_lock(&lock);
  bool is_other = running && owner == getpid() && !pthread_equal(pthread_self(), thread);
  forking = is_other;
  while (is_other && running_comm) pthread_cond_wait(&released, &lock);
}

static void after_fork_parent(void) {
  if (forking) pthread_cond_broadcast(&released);
  forking = false;
  pthread_mutex_unlock(&lock);
  rail_linger_after_fork(false);
}

static void after_fork_child(void) {
  struct sk_comm *comm;
  LIST_FOREACH(comm, &comms, next) {
    comm->listed = false;
    comm->detached = true; /* only the close call is left, which frees the memory */
    atomic_store(&comm->stop, 1);
    atomic_store(&comm->owner, 1); /* also if its owner is a thread that the child has not */
    for (uint32_t i = 0; i < comm->nstreams; i++) rail_sock_close(&comm->streams[i].fd);
  }
  LIST_INIT(&comms);
  cursor = running_comm = NULL;
  batched = 0;
  running = ending = forking = false;
  once = (pthread_once_t)PTHREAD_ONCE_INIT;
  pthread_mutex_unlock(&lock);
  rail_linger_after_fork(true);
}

/* ---- starting and ending -------------------------------------------------- */

static void prepare_conditions(void) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&wake, &attr);
  pthread_cond_init(&released, NULL);
  pthread_condattr_destroy(&attr);
}

/* Under the lock. Returns an errno. */
static int start(void) {
  static bool fork_handled;
  pthread_once(&once, prepare_conditions);
  if (!fork_handled) fork_handled = pthread_atfork(before_fork, after_fork_parent, after_fork_child) == 0;
  int err = rail_thread_start("rail-watch", run, NULL, &thread);
  running = err == 0;
  owner = getpid();
  return err;
}

void sk_watch_add(struct sk_comm *comm) {
  int err = 0;
  pthread_mutex_lock(&lock);
  if (!running) err = start();
  else if (LIST_EMPTY(&comms)) pthread_cond_signal(&wake);
  LIST_INSERT_HEAD(&comms, comm, next);
  comm->listed = true;
  pthread_mutex_unlock(&lock);
  if (err) /* the next comm tries again */
    RAIL_WARN("RailSocket: no thread to watch over connections: %s; silent peers go unnoticed", strerror(err));
}

/* Under the lock. */
static void unlink_comm(struct sk_comm *comm) {
  LIST_REMOVE(comm, next);
  comm->listed = false;
}

void sk_watch_remove(struct sk_comm *comm) {
  pthread_mutex_lock(&lock);
  if (comm->listed) {
    if (cursor == comm) cursor = LIST_NEXT(comm, next);
    unlink_comm(comm);
    for (uint32_t i = 0; i < batched; i++)
      if (batch[i].comm == comm) batch[i].comm = NULL;
    while (running_comm == comm && owner == getpid()) pthread_cond_wait(&released, &lock);
  }
  pthread_mutex_unlock(&lock);
}

struct sk_comm *sk_watch_take(void) {
  pthread_mutex_lock(&lock);
  struct sk_comm *comm = LIST_FIRST(&comms);
  if (comm) unlink_comm(comm);
  pthread_mutex_unlock(&lock);
  return comm;
}

void sk_watch_end(void) {
  pthread_mutex_lock(&lock);
  bool was_running = running && !ending && owner == getpid();
  if (was_running) {
    ending = true;
    pthread_cond_signal(&wake);
  }
  pthread_mutex_unlock(&lock);
  if (!was_running) return;
  pthread_join(thread, NULL);
  pthread_mutex_lock(&lock);
  running = ending = false;
  pthread_mutex_unlock(&lock);
}

/* The plugin is unloaded without finalize: the thread's code is about to go. */
__attribute__((destructor)) static void end_at_unload(void) { sk_watch_end(); }
