/* SPDX-License-Identifier: Apache-2.0
 *
 * Event-driven progress (RAIL_IB_PROGRESS=event|auto): a test that finds nothing waits for a completion, where one that
 * polls would be called again at once. The CQs have completion channels. What one thread tests is its *wait set*, with
 * one epoll descriptor for the channels of all its comms, so that a completion of any ends the wait. In order:
 *
 *   spin   so many tests of the thread, whichever comm's, have found nothing
 *   arm    the comm's events so far are read, its CQs are to notify (ibv_req_notify_cq), and are polled once more: what
 *          came before that is found, what comes later is an event
 *   wait   once each comm of the set that has requests is armed, for 100 us at most; then again when the same request
 *          is tested, so that a caller with many requests waits once for all of them
 *
 * A caller has other things to look at than this plugin, so no wait is longer, and nothing but a completion has to end
 * it: what the watch thread finds is seen by the next test. A comm with `pending_work` is polled.
 *
 * Threads: the comm's progress thread, but ib_wait_close: the one that destroys it. A lock guards the sets; no thread
 * sleeps with it.
 */
#include "plugin/ib/ib_progress.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"

#define WAIT_NS 100000 /* the longest wait; the kernel's timers add some 50 us */
/* Tests that find nothing before a comm is armed: the fewest, at first, the most. Twice as many after a wait that was
 * not worth its wake-up, half as many after any other. */
#define SPIN_MIN 16
#define SPIN_FIRST 64
#define SPIN_MAX 256
#define SHORT_NS 20000
#define ROUND_MAX 1024      /* tests without one of the request that waited last */
#define ACK_BATCH 64        /* ibv_ack_cq_events takes a lock */
#define EVENTS_AT_ONCE 16
#define LOOK_NS 10000000    /* auto: so often it is looked whether other threads want the core, */
#define BUSY_NS 100000000   /* and if so, it waits for so long before it polls again to see */
#define STALE_NS 1000000000 /* what was seen before that says nothing: the thread did something else */
#define LOST_SHARE 8        /* others want it if they had more than this part of the time */

/* What one thread tests. */
struct ib_wait_set {
  pthread_t thread;
  pid_t process; /* a child of fork has no part in its parent's */
  int epoll_fd;
  LIST_HEAD(, ib_comm) comms; /* under the lock */
  LIST_ENTRY(ib_wait_set) link;
  /* the thread's own */
  unsigned int empty; /* tests that found nothing, one after the other */
  unsigned int spin;
  const struct ib_request *waited; /* whose test waited last; NULL: none since something was found */
  unsigned int since_wait;         /* tests */
  struct {
    uint64_t until; /* 0: the core is the thread's own, as far as is known since `from` */
    uint64_t from, cpu;
    long switches;
  } busy;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, ib_wait_set) sets = LIST_HEAD_INITIALIZER(sets); /* under it */

/* ---- channels ---------------------------------------------------------------- */

/* NULL with errno. */
static struct ibv_comp_channel *open_channel(struct ibv_context *context) {
  if (!ib_verbs.create_comp_channel || !ib_verbs.destroy_comp_channel || !ib_verbs.get_cq_event ||
      !ib_verbs.ack_cq_events) {
    errno = ENOSYS;
    return NULL;
  }
  struct ibv_comp_channel *channel = ib_verbs.create_comp_channel(context);
  if (!channel) return NULL;
  int flags = fcntl(channel->fd, F_GETFL);
  if (flags >= 0 && fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) == 0) return channel;
  int err = errno;
  (void)ib_verbs.destroy_comp_channel(channel);
  errno = err;
  return NULL;
}

RAIL_COLD static void report_polled(struct ib_hca *hca, const char *what, int err) {
  if (atomic_exchange(&hca->reported_polled, true)) return;
  RAIL_WARN("RailIB: %s gives no completion events (%s: %s), so its connections are polled, as with "
            "RAIL_IB_PROGRESS=poll", hca->name, what, strerror(err));
}

bool ib_wait_create_cq(struct ib_comm *comm, struct ib_rail *rail, int entries) {
  struct ib_hca *hca = rail->port->hca;
  const char *what = "ibv_create_comp_channel";
  const bool wanted = ib_params.progress != IB_PROGRESS_POLL;
  if (wanted) rail->channel = open_channel(hca->context);
  int err = errno;
  if (rail->channel) {
    rail->cq = ib_verbs.create_cq(hca->context, entries, comm, rail->channel, 0);
    if (rail->cq) return true;
    what = "ibv_create_cq";
    err = errno;
    (void)ib_wait_destroy_channel(rail);
  }
  rail->cq = ib_verbs.create_cq(hca->context, entries, comm, NULL, 0);
  if (rail->cq && wanted) report_polled(hca, what, err);
  return rail->cq != NULL;
}

int ib_wait_destroy_channel(struct ib_rail *rail) {
  int err = rail->channel ? ib_verbs.destroy_comp_channel(rail->channel) : 0;
  rail->channel = NULL;
  return err;
}

void ib_wait_open(struct ib_comm *comm) {
  comm->event_driven = comm->nrails > 0;
  for (unsigned int r = 0; r < comm->nrails; r++) comm->event_driven = comm->event_driven && comm->rails[r].channel;
}

/* The descriptor does not block. */
static void read_events(struct ib_rail *rail) {
  struct ibv_cq *cq;
  void *comm;
  for (int i = 0; i < EVENTS_AT_ONCE && ib_verbs.get_cq_event(rail->channel, &cq, &comm) == 0; i++)
    rail->unacknowledged++;
}

static void acknowledge(struct ib_rail *rail) {
  if (rail->unacknowledged) ib_verbs.ack_cq_events(rail->cq, rail->unacknowledged);
  rail->unacknowledged = 0;
}

/* ---- wait sets ------------------------------------------------------------------ */

/* The parent may have been changing the list under the lock. Its sets are not the child's. */
static void after_fork_child(void) {
  lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  LIST_INIT(&sets);
}

/* Under the lock. A set goes with its last comm: its thread tests none of it then. */
static void leave(struct ib_comm *comm) {
  struct ib_wait_set *set = comm->wait.set;
  comm->wait.set = NULL;
  if (!set || set->process != getpid()) return;
  for (unsigned int r = 0; r < comm->nrails; r++)
    (void)epoll_ctl(set->epoll_fd, EPOLL_CTL_DEL, comm->rails[r].channel->fd, NULL);
  LIST_REMOVE(comm, wait.link);
  if (!LIST_EMPTY(&set->comms)) return;
  LIST_REMOVE(set, link);
  close(set->epoll_fd);
  free(set);
}

static bool is_own(const struct ib_wait_set *set) {
  return pthread_equal(set->thread, pthread_self()) && set->process == getpid();
}

/* The calling thread's, under the lock; NULL with errno. One that an ended thread has left is the next thread's with
 * its number. */
static struct ib_wait_set *own_set(void) {
  static bool fork_handled;
  struct ib_wait_set *set;
  if (!fork_handled) fork_handled = pthread_atfork(NULL, NULL, after_fork_child) == 0;
  LIST_FOREACH(set, &sets, link)
    if (is_own(set)) return set;
  set = calloc(1, sizeof *set);
  if (!set) return NULL;
  *set = (struct ib_wait_set){.thread = pthread_self(), .process = getpid(), .spin = SPIN_FIRST,
                              .epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
  if (set->epoll_fd < 0) {
    free(set);
    return NULL;
  }
  LIST_INIT(&set->comms);
  LIST_INSERT_HEAD(&sets, set, link);
  return set;
}

/* Edge-triggered: an event that its comm has not read yet ends one wait, not all that follow. errno, or 0. */
static int enter(struct ib_comm *comm) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = comm};
  leave(comm);
  struct ib_wait_set *set = own_set();
  if (!set) return errno;
  comm->wait.set = set;
  atomic_store_explicit(&comm->wait.armed, false, memory_order_relaxed);
  LIST_INSERT_HEAD(&set->comms, comm, wait.link);
  for (unsigned int r = 0; r < comm->nrails; r++)
    if (epoll_ctl(set->epoll_fd, EPOLL_CTL_ADD, comm->rails[r].channel->fd, &event) != 0) {
      int err = errno;
      leave(comm);
      return err;
    }
  return 0;
}

static void leave_set(struct ib_comm *comm) {
  pthread_mutex_lock(&lock);
  leave(comm);
  pthread_mutex_unlock(&lock);
}

/* From here on it is polled. */
RAIL_COLD static void give_up(struct ib_comm *comm, const char *what, int err) {
  comm->event_driven = false;
  leave_set(comm);
  RAIL_WARN("RailIB: connection with %s over %s is polled from here on, as with RAIL_IB_PROGRESS=poll: %s: %s",
            comm->peer_text, comm->device->name, what, strerror(err));
}

static struct ib_wait_set *set_of(struct ib_comm *comm) {
  if (rail_likely(comm->wait.set && pthread_equal(comm->wait.set->thread, pthread_self()))) return comm->wait.set;
  pthread_mutex_lock(&lock);
  int err = enter(comm);
  pthread_mutex_unlock(&lock);
  if (err) give_up(comm, "no epoll descriptor for its thread", err);
  return comm->wait.set;
}

void ib_wait_close(struct ib_comm *comm) {
  comm->event_driven = false;
  leave_set(comm);
  for (unsigned int r = 0; r < comm->nrails; r++)
    if (comm->rails[r].cq && comm->rails[r].channel) acknowledge(&comm->rails[r]);
}

/* ---- auto: do other threads want this core? ---------------------------------------- */

static void look_again(struct ib_wait_set *set, uint64_t now, uint64_t cpu, long switches) {
  set->busy.until = 0;
  set->busy.from = now;
  set->busy.cpu = cpu;
  set->busy.switches = switches;
}

/* A thread that polls has its core for itself, or others take their turns: then it is switched out while it could run,
 * and has less of the processor than time goes by. */
static bool others_want_core(struct ib_wait_set *set) {
  struct rusage usage;
  struct timespec t;
  const uint64_t now = rail_now_ns();
  if (now < set->busy.until) return true;
  if (!set->busy.until && now - set->busy.from < LOOK_NS) return false;
  if (getrusage(RUSAGE_THREAD, &usage) != 0 || clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) != 0) return false;
  const uint64_t cpu = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
  const uint64_t passed = now - set->busy.from, ran = cpu - set->busy.cpu;
  const bool polled = !set->busy.until && passed < STALE_NS; /* it neither waited nor did something else */
  const bool busy = polled && usage.ru_nivcsw > set->busy.switches && ran < passed - passed / LOST_SHARE;
  look_again(set, now, cpu, usage.ru_nivcsw);
  if (busy) set->busy.until = now + BUSY_NS;
  return busy;
}

/* ---- a test that finds nothing -------------------------------------------------------- */

void ib_wait_found(struct ib_comm *comm) {
  struct ib_wait_set *set = comm->wait.set;
  atomic_store_explicit(&comm->wait.armed, false, memory_order_relaxed);
  if (!set || !pthread_equal(set->thread, pthread_self())) return;
  set->empty = 0;
  set->waited = NULL;
}

/* Nothing is waited for in this call: the next test does, if the poll finds nothing. */
static bool arm(struct ib_comm *comm) {
  for (unsigned int r = 0; r < comm->nrails; r++) {
    struct ib_rail *rail = &comm->rails[r];
    read_events(rail);
    if (rail->unacknowledged >= ACK_BATCH) acknowledge(rail);
    int err = ibv_req_notify_cq(rail->cq, 0);
    if (rail_likely(!err)) continue;
    give_up(comm, "ibv_req_notify_cq", err);
    return false;
  }
  atomic_store_explicit(&comm->wait.armed, true, memory_order_relaxed);
  return true;
}

/* A comm that has requests and is not armed may have completions already, or its next test arms it. One that has ended
 * is never armed again. */
static bool all_armed(const struct ib_wait_set *set) {
  const struct ib_comm *comm;
  bool all = true;
  pthread_mutex_lock(&lock);
  LIST_FOREACH(comm, &set->comms, wait.link)
    if (atomic_load_explicit(&comm->outstanding, memory_order_relaxed) && rail_first_error(&comm->error) == RAIL_OK &&
        !atomic_load_explicit(&comm->wait.armed, memory_order_relaxed)) {
      all = false;
      break;
    }
  pthread_mutex_unlock(&lock);
  return all;
}

/* Those whose events have come are not waited for before they are polled. One may have been closed by now. */
static void disarm_those_with_events(struct ib_wait_set *set) {
  struct epoll_event events[EVENTS_AT_ONCE];
  int n = epoll_wait(set->epoll_fd, events, EVENTS_AT_ONCE, 0);
  pthread_mutex_lock(&lock);
  for (int i = 0; i < n; i++) {
    struct ib_comm *comm;
    LIST_FOREACH(comm, &set->comms, wait.link)
      if (comm == events[i].data.ptr) atomic_store_explicit(&comm->wait.armed, false, memory_order_relaxed);
  }
  pthread_mutex_unlock(&lock);
}

/* Not epoll_wait, whose time is in milliseconds. */
static bool wait_for_event(struct ib_comm *comm, struct ib_wait_set *set) {
  struct pollfd any = {.fd = set->epoll_fd, .events = POLLIN};
  const struct timespec longest = {.tv_nsec = WAIT_NS};
  const uint64_t start = rail_now_ns();
  const bool woken = ppoll(&any, 1, &longest, NULL) > 0;
  const bool was_short = woken && rail_now_ns() - start < SHORT_NS;
  rail_stats_add(&comm->stats[IB_COMM_WAITS_EVENT], 1);
  set->spin = was_short ? RAIL_MIN(set->spin * 2, SPIN_MAX) : RAIL_MAX(set->spin / 2, SPIN_MIN);
  if (!woken) return false;
  rail_stats_add(&comm->stats[IB_COMM_WAKEUPS], 1);
  disarm_those_with_events(set);
  return true;
}

bool ib_wait_idle(struct ib_comm *comm, const struct ib_request *request) {
  struct ib_wait_set *set = set_of(comm);
  if (!set || ++set->empty < set->spin) return false;
  if (ib_params.progress == IB_PROGRESS_AUTO && !others_want_core(set)) {
    set->empty = 0;
    return false;
  }
  if (!atomic_load_explicit(&comm->wait.armed, memory_order_relaxed)) return arm(comm);
  if (set->waited && set->waited != request && ++set->since_wait < ROUND_MAX) return false;
  if (!all_armed(set)) return false;
  set->waited = request;
  set->since_wait = 0;
  return wait_for_event(comm, set);
}
