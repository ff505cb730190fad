/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of the engines, and how a comm comes to one and leaves it.
 *
 * Three things must never be lost: an event of a socket, a request that was
 * left in the comm's ring, a comm with work when a bound was reached. Each puts
 * the seat into the thread's list of those with work, the second by way of a
 * list that anybody may push to. From that list a seat is taken before it is
 * looked at, and is put back when somebody else owns its comm.
 *
 * Before it sleeps a thread says so (`sleeping`), then looks for kicks once
 * more; who kicks pushes first, then looks at `sleeping`. So one of them sees
 * the other, and only a sleeper costs a system call.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "plugin/socket/sk_engine_impl.h"
#include "plugin/socket/sk_param.h"

#define YIELD_POLLS 4       /* a spinning thread offers its core so often */
#define SHARED_NS 20000     /* and spins no more for a while when somebody took it for so long */
#define AUTO_CORES 4
#define GAP_FACTOR 8        /* longest gap that counts, in units of the longest spin */

/* ---- the engine of the process ---------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  bool tried; /* also when it failed: the reason was said */
  uint32_t count;
  struct sk_worker *workers;
} engine;

/* ---- lists of one thread ----------------------------------------------- */

void sk_worker_enqueue(struct sk_seat *seat) {
  struct sk_worker *w = seat->worker;
  if (seat->queued) return;
  seat->queued = true;
  seat->run_next = NULL;
  *w->run_end = seat;
  w->run_end = &seat->run_next;
}

static void wake(struct sk_worker *w) {
  if (!atomic_load(&w->sleeping) || !atomic_exchange(&w->sleeping, 0)) return;
  /* An eventfd that is full wakes, too. */
  while (write(w->wake_fd, &(uint64_t){1}, sizeof(uint64_t)) < 0 && errno == EINTR) {}
}

void sk_seat_kick(struct sk_seat *seat) {
  struct sk_worker *w = seat->worker;
  if (atomic_exchange(&seat->kicked, 1)) return;
  struct sk_seat *first = atomic_load_explicit(&w->kicked, memory_order_relaxed);
  do seat->kick_next = first;
  while (!atomic_compare_exchange_weak(&w->kicked, &first, seat));
  wake(w);
}

void sk_engine_kick(struct sk_comm *comm) { sk_seat_kick(comm->seat); }

static void take_kicked(struct sk_worker *w) {
  if (!atomic_load_explicit(&w->kicked, memory_order_relaxed)) return;
  for (struct sk_seat *seat = atomic_exchange(&w->kicked, NULL), *next; seat; seat = next) {
    next = seat->kick_next;
    atomic_exchange(&seat->kicked, 0); /* from here on a kick makes a new entry */
    sk_worker_enqueue(seat);
  }
}

/* ---- the thread --------------------------------------------------------- */

/* One look at a comm. False: somebody else has it. */
static bool run_seat(struct sk_seat *seat) {
  bool owned = true;
  if (seat->worker->ops->attend) seat->worker->ops->attend(seat);
  atomic_store(&seat->busy, 1); /* before the load below: who empties the seat does so, then looks at busy */
  struct sk_comm *comm = atomic_load(&seat->comm);
  if (comm && !sk_comm_is_stopped(comm)) {
    owned = sk_comm_try_own(comm);
    bool again = !owned || seat->worker->ops->run(seat, comm);
    if (owned) atomic_store_explicit(&comm->owner, 0, memory_order_release); /* disown; `again` is our kick */
    if (again) sk_worker_enqueue(seat);
  }
  atomic_store_explicit(&seat->busy, 0, memory_order_release);
  return owned;
}

/* Each of those with work once, so that none waits for long. */
static void run_all(struct sk_worker *w) {
  struct sk_seat *seat = w->run, *next;
  bool moved = !seat;
  w->run = NULL;
  w->run_end = &w->run;
  for (; seat; seat = next) {
    next = seat->run_next;
    seat->queued = false;
    moved |= run_seat(seat);
  }
  if (!moved) sched_yield(); /* the owner may need this core to get out */
}

/* How long did nothing happen? Spinning pays when that is usually short. */
static void learn(struct sk_worker *w, uint64_t gap) {
  uint64_t most = (uint64_t)sk_params.spin_us * 1000;
  w->gap_ns = (7 * w->gap_ns + RAIL_MIN(gap, GAP_FACTOR * most)) / 8;
  w->spin_ns = w->gap_ns < most ? RAIL_MIN(most, 2 * w->gap_ns) : 0;
}

static void wait_for_news(struct sk_worker *w) {
  if (w->run) {
    w->ops->wait(w, false);
    return;
  }
  bool measured = sk_params.spin_us > 0, shared = false;
  uint64_t since = measured ? rail_now_ns() : 0, now = since;
  for (unsigned int polls = 1; now - since < w->spin_ns && !shared; polls++) {
    if (w->ops->wait(w, false) || atomic_load_explicit(&w->kicked, memory_order_relaxed)) {
      learn(w, now - since);
      return;
    }
    if (polls % YIELD_POLLS == 0) sched_yield();
    uint64_t before = now;
    now = rail_now_ns();
    shared = now - before > SHARED_NS;
  }
  atomic_store(&w->sleeping, 1);
  bool sleep = !atomic_load(&w->kicked) && !atomic_load(&w->quit);
  w->ops->wait(w, sleep);
  atomic_store(&w->sleeping, 0);
  if (measured) learn(w, shared ? UINT64_MAX : rail_now_ns() - since);
}

static void *work(void *arg) {
  struct sk_worker *w = arg;
  w->result = w->ops->open(w);
  w->error = errno;
  bool opened = w->result == RAIL_OK;
  sem_post(&w->opened);
  if (!opened) return NULL; /* whoever waits may have freed w */
  while (!atomic_load(&w->quit)) {
    take_kicked(w);
    run_all(w);
    wait_for_news(w);
  }
  w->ops->close(w);
  return NULL;
}

/* ---- begin and end -------------------------------------------------------- */

static rail_result_t start_worker(struct sk_worker *w, const struct sk_engine_ops *ops, unsigned int index) {
  char name[16];
  *w = (struct sk_worker){.ops = ops, .epoll_fd = -1};
  w->run_end = &w->run;
  w->gap_ns = GAP_FACTOR * (uint64_t)sk_params.spin_us * 1000; /* spinning must show its worth first */
  w->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (w->wake_fd < 0) return RAIL_SYSTEM_ERROR;
  sem_init(&w->opened, 0, 0);
  snprintf(name, sizeof name, "rail-socket-%u", index % 1000);
  int err = rail_thread_start(name, work, w, &w->thread);
  if (!err) {
    while (sem_wait(&w->opened) != 0) continue; /* EINTR */
    if (w->result == RAIL_OK) return RAIL_OK;
    pthread_join(w->thread, NULL);
    err = w->error;
  }
  sem_destroy(&w->opened);
  close(w->wake_fd);
  errno = err;
  return RAIL_SYSTEM_ERROR;
}

/* The thread ends. What it worked with stays. */
static void join_worker(struct sk_worker *w) {
  if (atomic_exchange(&w->quit, 1)) return;
  wake(w);
  pthread_join(w->thread, NULL);
}

static void stop_worker(struct sk_worker *w) {
  join_worker(w);
  for (struct sk_seat *seat = w->seats, *next; seat; seat = next) {
    next = seat->all_next;
    if (w->ops->free_seat) w->ops->free_seat(seat);
    free(seat);
  }
  sem_destroy(&w->opened);
  close(w->wake_fd);
}

void sk_engine_stop(void) {
  pthread_mutex_lock(&lock);
  while (engine.count) stop_worker(&engine.workers[--engine.count]);
  free(engine.workers);
  engine.workers = NULL;
  engine.tried = false;
  pthread_mutex_unlock(&lock);
}

/* Who unloads without finalizing: the threads' code is about to go. At exit others may still use their comms. */
__attribute__((destructor)) static void end_at_unload(void) {
  for (uint32_t i = 0; i < engine.count; i++) join_worker(&engine.workers[i]);
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&lock); }

/* What the child has are copies, of no use: the comms in the seats are closed, the descriptors are its parent's too. */
static void after_fork_child(void) {
  for (uint32_t i = 0; i < engine.count; i++) {
    close(engine.workers[i].wake_fd);
    engine.workers[i].ops->forked(&engine.workers[i]);
  }
  engine.workers = NULL;
  engine.count = 0;
  engine.tried = false;
  pthread_mutex_unlock(&lock);
}

/* RAIL_OK: at least one thread is there. */
static rail_result_t start_engine(const struct sk_engine_ops *ops) {
  uint32_t wanted = (uint32_t)sk_params.threads;
  engine.workers = calloc(wanted, sizeof *engine.workers);
  if (!engine.workers) return RAIL_SYSTEM_ERROR;
  while (engine.count < wanted && start_worker(&engine.workers[engine.count], ops, engine.count) == RAIL_OK)
    engine.count++;
  if (engine.count) {
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: engine %s with %u of %u threads", ops->name, engine.count,
              wanted);
    return RAIL_OK;
  }
  int err = errno;
  free(engine.workers);
  engine.workers = NULL;
  errno = err;
  return RAIL_SYSTEM_ERROR;
}

/* Threads of our own pay where the caller's have cores to spare. */
static enum sk_engine_kind choose_kind(void) {
  cpu_set_t cores;
  if (sk_params.engine != SK_ENGINE_AUTO) return (enum sk_engine_kind)sk_params.engine;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) >= AUTO_CORES ? SK_ENGINE_URING
                                                                                            : SK_ENGINE_INLINE;
}

static void start_once(void) {
  static bool fork_handled;
  if (engine.tried) return;
  engine.tried = true;
  if (!fork_handled) fork_handled = pthread_atfork(before_fork, after_fork_parent, after_fork_child) == 0;
  enum sk_engine_kind kind = choose_kind();
  if (kind == SK_ENGINE_INLINE) return;
  if (kind == SK_ENGINE_URING && start_engine(&sk_engine_uring) == RAIL_OK) return;
  if (kind == SK_ENGINE_URING)
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: io_uring is not to be had (%s); the engine is epoll",
              strerror(errno));
  if (start_engine(&sk_engine_epoll) != RAIL_OK)
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: no thread for engine epoll (%s); the caller's calls move data",
              strerror(errno));
}

/* ---- seats ---------------------------------------------------------------- */

static struct sk_seat *take_seat(void) {
  struct sk_worker *w = &engine.workers[0];
  for (uint32_t i = 1; i < engine.count; i++)
    if (engine.workers[i].comms < w->comms) w = &engine.workers[i];
  struct sk_seat *seat = w->free_seats;
  if (seat) {
    w->free_seats = seat->free_next;
  } else {
    seat = calloc(1, sizeof *seat);
    if (!seat) return NULL;
    seat->worker = w;
    seat->all_next = w->seats;
    w->seats = seat;
  }
  w->comms++;
  return seat;
}

static void give_seat(struct sk_seat *seat) {
  seat->free_next = seat->worker->free_seats;
  seat->worker->free_seats = seat;
  seat->worker->comms--;
}

void sk_engine_attach(struct sk_comm *comm) {
  pthread_mutex_lock(&lock);
  start_once();
  struct sk_seat *seat = engine.count ? take_seat() : NULL;
  pthread_mutex_unlock(&lock);
  if (!seat) return;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    if (seat->worker->ops->add_stream(seat, &comm->streams[i])) continue;
    RAIL_INFO(RAIL_SUB_NET, "RailSocket: engine %s does not take a connection (%s); the caller's calls move it",
              seat->worker->ops->name, strerror(errno));
    while (i-- > 0) seat->worker->ops->drop_stream(seat, comm, &comm->streams[i]);
    pthread_mutex_lock(&lock);
    give_seat(seat);
    pthread_mutex_unlock(&lock);
    return;
  }
  comm->seat = seat;
  atomic_store(&seat->comm, comm);
  sk_seat_kick(seat); /* what came before the sockets were watched */
}

void sk_engine_detach(struct sk_comm *comm) {
  struct sk_seat *seat = comm->seat;
  if (!seat) return;
  atomic_store(&seat->comm, NULL);
  while (atomic_load(&seat->busy)) sched_yield(); /* short: it finds that the comm is stopped */
  seat->worker->ops->drop(seat, comm);
  pthread_mutex_lock(&lock);
  give_seat(seat);
  pthread_mutex_unlock(&lock);
}

void sk_engine_stream_new(struct sk_comm *comm, struct sk_stream *s) {
  if (!comm->seat) return;
  if (!comm->seat->worker->ops->add_stream(comm->seat, s)) sk_stream_out_failed(s, errno);
  sk_seat_kick(comm->seat);
}

void sk_engine_stream_gone(struct sk_comm *comm, struct sk_stream *s) {
  if (comm->seat) comm->seat->worker->ops->drop_stream(comm->seat, comm, s);
}

void sk_engine_settle(struct sk_comm *comm) {
  if (comm->seat && comm->seat->worker->ops->settle) comm->seat->worker->ops->settle(comm->seat, comm);
}

bool sk_engine_wants(const struct sk_comm *comm) { return comm->seat->worker->ops->wants(comm); }
