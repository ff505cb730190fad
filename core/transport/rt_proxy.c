/* SPDX-License-Identifier: Apache-2.0
 * A communicator's proxy operations, the passes over them, and the proxy thread. The thread that begins a plan or a
 * launch submits; the proxy thread makes the passes, or, where there is none, the thread that runs plans. */
#include "core/transport/rt_proxy.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "core/comm/rt_comm.h"

/* Passes without progress before the thread yields its core, and before it sleeps, for less than a wake-up costs. */
#define SPIN_PASSES 200
#define YIELD_PASSES 20000
#define NAP_NS 20000
/* How long the thread looks for operations before it sleeps: the next call mostly comes sooner. */
#define AWAKE_NS 50000
/* Of 1 ms, see network_failed: a message through the ring takes milliseconds, but the processor that a bootstrap's
 * thread waits for may stand still for longer (a virtual machine's). */
#define REASON_NAPS 1000

/* ---- active connectors and their operations: for the thread that runs a pass ---- */

static void activate(struct rt_proxy *p, struct rt_connector *c) {
  if (!p->active) {
    p->active = c;
    c->next_active = c;
    return;
  }
  c->next_active = p->active->next_active;
  p->active->next_active = c;
}

static void append(struct rt_proxy *p, struct rt_proxy_op *op) {
  struct rt_connector *c = op->connector;
  op->next = NULL;
  if (c->ops) {
    c->ops_last->next = op;
    c->ops_last = op;
    return;
  }
  c->ops = c->ops_last = op;
  activate(p, c);
}

static void take_incoming(struct rt_proxy *p) {
  struct rt_proxy_op *newest = atomic_exchange(&p->incoming, NULL), *oldest = NULL;
  for (struct rt_proxy_op *op = newest, *before; op; op = before) {
    before = op->next;
    op->next = oldest;
    oldest = op;
  }
  for (struct rt_proxy_op *op = oldest, *after; op; op = after) {
    after = op->next;
    append(p, op);
  }
}

/* Takes c's finished first operation off its list. True: it was the last, and c, which `prev` precedes, is not active
 * any more. */
static bool retire(struct rt_proxy *p, struct rt_connector *prev, struct rt_connector *c) {
  struct rt_proxy_op *op = c->ops;
  c->ops = op->next;
  atomic_fetch_sub(&p->unfinished, 1);
  atomic_store_explicit(&op->finished, true, memory_order_release); /* op is the plan's again */
  if (c->ops) return false;
  if (prev == c) {
    p->active = NULL;
  } else {
    prev->next_active = c->next_active;
    if (p->active == c) p->active = prev;
  }
  c->next_active = NULL;
  return true;
}

/* When a rank dies, its neighbours see a connection close before the bootstrap has reported which rank it was, and
 * why: wait briefly for the bootstrap's error. Naps are counted, not timed: where the machine stands still, or is
 * crowded, the bootstrap's thread gets as many turns. */
static void network_failed(struct ncclComm *comm, const struct rt_connector *c, rail_result_t result) {
  for (int naps = 0; result == RAIL_REMOTE_ERROR && !rt_comm_failed(comm) && naps < REASON_NAPS; naps++)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  rt_comm_fail(comm, result, "the network reported an error on the connection %s rank %d", c->is_send ? "to" : "from",
               c->peer);
}

static bool pass(struct rt_proxy *p) {
  bool moved = false;
  if (atomic_load_explicit(&p->incoming, memory_order_relaxed)) take_incoming(p);
  struct rt_connector *prev = p->active, *end = p->active;
  for (bool at_end = false; p->active && !at_end;) {
    struct rt_connector *c = prev->next_active;
    at_end = c == end;
    rail_result_t r = c->end->progress(p->comm, c, c->ops);
    if (r == RAIL_OK) {
      moved = true;
      if (c->ops->done == c->ops->nsteps && retire(p, prev, c)) continue;
    } else if (r != RAIL_IN_PROGRESS) {
      network_failed(p->comm, c, r);
      break;
    }
    prev = c;
  }
  return moved;
}

bool rt_proxy_pass(struct rt_proxy *p) {
  if (atomic_flag_test_and_set_explicit(&p->in_pass, memory_order_acquire)) return false;
  bool moved = !rt_comm_failed(p->comm) && pass(p);
  atomic_flag_clear_explicit(&p->in_pass, memory_order_release);
  return moved;
}

void rt_proxy_quiesce(struct rt_proxy *p) {
  while (atomic_flag_test_and_set_explicit(&p->in_pass, memory_order_acquire)) sched_yield();
  atomic_flag_clear_explicit(&p->in_pass, memory_order_release);
}

/* ---- submission and the thread ------------------------------------------- */

void rt_proxy_submit(struct rt_proxy *p, struct rt_proxy_op *op) {
  op->posted = op->received = op->done = 0;
  op->started = false;
  atomic_store(&op->finished, false);
  memset(op->requests, 0, sizeof op->requests);
  atomic_fetch_add(&p->unfinished, 1);
  op->next = atomic_load_explicit(&p->incoming, memory_order_relaxed);
  while (!atomic_compare_exchange_weak(&p->incoming, &op->next, op)) {
  }
  /* The thread sets `asleep` before it reads `unfinished` for the last time: one of the two sees the other's store. */
  if (!atomic_load(&p->asleep)) return;
  pthread_mutex_lock(&p->lock);
  pthread_cond_signal(&p->wake);
  pthread_mutex_unlock(&p->lock);
}

static bool has_work(const struct rt_proxy *p) { return atomic_load(&p->unfinished) > 0 && !rt_comm_failed(p->comm); }

/* Waits until there are operations. False: stop. */
static bool wait_for_work(struct rt_proxy *p) {
  const uint64_t until = p->comm->oversubscribed ? 0 : rail_now_ns() + AWAKE_NS;
  for (int idle = 1; !has_work(p) && rail_now_ns() < until; idle++)
    if (idle > SPIN_PASSES)
      sched_yield();
    else
      rail_cpu_relax();
  pthread_mutex_lock(&p->lock);
  atomic_store(&p->asleep, true);
  while (!p->stop && !has_work(p)) pthread_cond_wait(&p->wake, &p->lock);
  atomic_store(&p->asleep, false);
  bool stop = p->stop;
  pthread_mutex_unlock(&p->lock);
  return !stop;
}

static void *proxy_thread(void *arg) {
  struct rt_proxy *p = arg;
  while (wait_for_work(p)) {
    int idle = 0;
    while (has_work(p)) {
      if (rt_proxy_pass(p)) {
        idle = 0;
      } else if (++idle > YIELD_PASSES) {
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
      } else if (idle > SPIN_PASSES) {
        sched_yield();
      }
    }
  }
  return NULL;
}

rail_result_t rt_proxy_init(struct rt_proxy *p, struct ncclComm *comm, bool threaded) {
  p->comm = comm;
  p->threaded = threaded;
  atomic_flag_clear(&p->in_pass);
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->wake, NULL);
  if (!threaded) return RAIL_OK;
  int err = rail_thread_start("rail-proxy", proxy_thread, p, &p->thread);
  if (err) {
    RAIL_WARN("rank %d: cannot start the proxy thread: %s; raise the limit of threads or set RAIL_PROXY=inline",
              comm->rank, strerror(err));
    return RAIL_SYSTEM_ERROR;
  }
  p->thread_running = true;
  return RAIL_OK;
}

void rt_proxy_destroy(struct rt_proxy *p) {
  if (!p->comm) return;
  if (p->thread_running) {
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    p->thread_running = false;
  }
  pthread_cond_destroy(&p->wake);
  pthread_mutex_destroy(&p->lock);
  p->comm = NULL;
}
