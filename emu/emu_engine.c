/* SPDX-License-Identifier: Apache-2.0
 *
 * Progress, and the process' thread. Whoever posts or polls does the work under the lock. The thread is for what a
 * device does by itself: it answers while the program computes, and its timers run. While a program polls, the thread
 * looks once a millisecond whether it still does, and peers need not wake it; when it no longer does, or asked to be
 * notified, the thread sleeps on the doorbell that peers ring. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "emu/emu.h"
#include "emu/emu_fault.h"
#include "emu/rail_emu.h"

enum { LOOK_NS = 1000000, RETRY_ROOM_NS = 200000, HOLD_NS = 2000000, RELEASED_NS = 20000 };

static struct {
  pthread_t thread;
  bool stop;
  uint64_t polls_seen, polls_at_handover;
  uint64_t locked_at; /* since when the thread has the lock */
} engine;
pthread_mutex_t emu_lifecycle = PTHREAD_MUTEX_INITIALIZER;

/* ---- timers -------------------------------------------------------------------- */

static void find_next_timer(void) {
  struct emu_qp *qp;
  emu.next_timer = UINT64_MAX;
  LIST_FOREACH(qp, &emu.timers, timers)
    for (enum emu_timer kind = 0; kind < EMU_TIMERS; kind++)
      if (qp->timer_at[kind] && qp->timer_at[kind] < emu.next_timer) emu.next_timer = qp->timer_at[kind];
}

static void run_timers(uint64_t now) {
  struct emu_qp *qp, *next;
  emu.next_timer = UINT64_MAX;
  for (qp = LIST_FIRST(&emu.timers); qp; qp = next) {
    next = LIST_NEXT(qp, timers);
    bool any = false;
    for (enum emu_timer kind = 0; kind < EMU_TIMERS; kind++) {
      const uint64_t at = qp->timer_at[kind];
      any |= at != 0;
      if (at && at <= now) emu_req_timeout(qp, kind, now);
    }
    if (any) continue;
    qp->in_timers = false;
    LIST_REMOVE(qp, timers);
  }
  find_next_timer();
}

/* ---- what is to be sent ----------------------------------------------------------- */

/* One turn for each that waits. Those that have more to do come again. */
static void run_all(void) {
  struct emu_run turn = TAILQ_HEAD_INITIALIZER(turn);
  struct emu_qp *qp;
  TAILQ_CONCAT(&turn, &emu.run, run);
  while ((qp = TAILQ_FIRST(&turn)) != NULL) {
    TAILQ_REMOVE(&turn, qp, run);
    qp->in_run = false;
    bool answered = emu_resp_run(qp), sent = emu_req_run(qp);
    if (!answered || !sent) emu_run_later(qp);
  }
}

/* ---- packets in --------------------------------------------------------------------- */

static bool is_for(struct emu_qp *qp, const struct emu_packet *p) {
  const struct emu_port *port = emu_port_of(qp);
  if (port->state != IBV_PORT_ACTIVE || port->one_way || qp->device->fatal || p->payload > port->packet) return false;
  bool found = port->ib && p->to == emu_hash_address(port, NULL, port->lid);
  for (int i = 0; i < EMU_GIDS && !found; i++) found = p->to == port->gid_hash[i];
  if (!found) return false;
  if (qp->ex.qp_base.qp_type == IBV_QPT_UD) return true;
  return p->sqpn == qp->attr.dest_qp_num && p->from == qp->to && p->mtu == (uint8_t)qp->attr.path_mtu;
}

static void give(struct emu_qp *qp, const struct emu_packet *p, const char *payload) {
  bool response = p->op == EMU_OP_ACK || p->op == EMU_OP_READ_RESPONSE || p->op == EMU_OP_ATOMIC_RESPONSE;
  if (response && qp->ex.qp_base.qp_type == IBV_QPT_RC) emu_req_packet(qp, p, payload);
  else if (!response) emu_resp_packet(qp, p, payload);
}

static void deliver(const struct emu_packet *p, const char *payload) {
  struct emu_qp *qp = emu_qp_find(p->dqpn);
  if (!qp || qp->ex.qp_base.state < IBV_QPS_RTR || qp->ex.qp_base.state == IBV_QPS_ERR || !is_for(qp, p)) return;
  if (!emu_fault_packet(qp, p, payload, give)) give(qp, p, payload);
}

static uint64_t earliest(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* With a virtual clock: nothing happens before the next timer, or before the next held packet is due, so it is that
 * time now. Both are found again first: what emu keeps may be the time of a timer that is off since. */
static bool skip_to_next(void) {
  if (!emu.virtual_clock) return false;
  find_next_timer();
  emu.next_held = emu_fault_due(0, give);
  uint64_t at = earliest(emu.next_timer, emu.next_held), now = emu_now();
  if (at == UINT64_MAX) return false;
  if (at > now) emu.clock_skip += (int64_t)(at - now);
  return true;
}

/* Timers come last: what has arrived is known by then, and what there was room for is sent. */
void emu_progress(void) {
  if (emu_fault_is_pending()) emu_script_pending();
  bool any = emu_wire_receive(deliver);
  if (emu.virtual_clock && !any && emu.next_held != UINT64_MAX) (void)skip_to_next();
  uint64_t now = emu.next_timer != UINT64_MAX || emu.next_held != UINT64_MAX ? emu_now() : 0;
  if (emu.next_held <= now) emu.next_held = emu_fault_due(now, give);
  if (!TAILQ_EMPTY(&emu.run)) run_all();
  emu_wire_flush();
  if (now >= emu.next_timer) {
    run_timers(now);
    run_all();
    emu_wire_flush();
  }
  if (emu.overrun) emu_cqs_overrun();
  emu_wire_answered(emu_fault_each_held);
}

uint64_t rail_emu_now(void) {
  pthread_mutex_lock(&emu.lock);
  uint64_t now = emu_now();
  pthread_mutex_unlock(&emu.lock);
  return now;
}

/* ---- the thread ------------------------------------------------------------------------ */

/* Those that make progress. A program that polls a CQ which is to notify it looks once more before it sleeps. */
static uint64_t count_polls(void) {
  return atomic_load_explicit(&emu.polls, memory_order_relaxed) -
         atomic_load_explicit(&emu.armed_polls, memory_order_relaxed);
}

void emu_engine_handover(void) {
  engine.polls_at_handover = count_polls();
  if (emu.engine_until) emu_engine_wake();
}

/* Waits, without the lock, while the doorbell is `doorbell`, or until `until` (by the clock of emu_now). */
static void wait_for_doorbell(uint32_t doorbell, uint64_t until) {
  uint64_t now = emu_now();
  uint64_t ns = until > now ? until - now : 0;
  struct timespec timeout = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
  if (ns == 0) return;
  _Atomic uint32_t *word = emu_wire_doorbell();
  pthread_mutex_unlock(&emu.lock);
  syscall(SYS_futex, word, FUTEX_WAIT, doorbell, until == UINT64_MAX ? NULL : &timeout, NULL, 0);
  pthread_mutex_lock(&emu.lock);
  engine.locked_at = emu_now();
}

/* Of a thread that always has input nobody else would get the lock: who waits for it must wake first. */
static void release_lock(void) {
  const struct timespec pause = {.tv_nsec = RELEASED_NS};
  if (emu_now() - engine.locked_at < HOLD_NS) return;
  pthread_mutex_unlock(&emu.lock);
  nanosleep(&pause, NULL);
  pthread_mutex_lock(&emu.lock);
  engine.locked_at = emu_now();
}

/* And earlier, if there is an earlier timer before it is over. */
static void sleep_until(uint32_t doorbell, uint64_t until) {
  emu.engine_until = until;
  wait_for_doorbell(doorbell, until);
  emu.engine_until = 0;
  emu.engine_idle = false;
}

static void *run(void *arg) {
  (void)arg;
  pthread_mutex_lock(&emu.lock);
  while (!engine.stop) {
    uint32_t doorbell = atomic_load(emu_wire_doorbell());
    emu_commands();
    if (emu.progress_by != EMU_BY_THREAD) { /* it only reads statements, and waits until that changes */
      wait_for_doorbell(doorbell, emu_commands_next());
      continue;
    }
    emu_progress();
    uint64_t timer = earliest(emu.next_timer, emu.next_held), look = emu_commands_next();
    uint64_t polls = count_polls();
    bool polled = polls != engine.polls_seen && polls != engine.polls_at_handover;
    engine.polls_seen = polls;
    if (polled) {
      sleep_until(doorbell, earliest(emu_now() + LOOK_NS, timer));
      continue;
    }
    emu_wire_sleeping(true);
    bool input = emu_wire_has_input(); /* it came in between */
    if (!input && !TAILQ_EMPTY(&emu.run)) sleep_until(doorbell, emu_now() + RETRY_ROOM_NS); /* room rings no doorbell */
    else if (!input && skip_to_next()) sleep_until(doorbell, emu_now() + RETRY_ROOM_NS / 4);
    else if (!input) {
      emu.engine_idle = true;
      sleep_until(doorbell, earliest(timer, look));
    }
    emu_wire_sleeping(false);
    if (input) release_lock();
  }
  pthread_mutex_unlock(&emu.lock);
  return NULL;
}

/* Until the process ends: its thread runs in it, if the program does not close its devices. */
static void stay_loaded(void) {
  Dl_info self;
  if (!dladdr(&engine, &self)) return;
  void *library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  if (library) dlclose(library);
}

int emu_engine_start(void) {
  sigset_t all, old;
  int err = 0;
  pthread_mutex_lock(&emu_lifecycle);
  if (!emu.engine_running) {
    stay_loaded();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    engine.stop = false;
    err = pthread_create(&engine.thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!err) pthread_setname_np(engine.thread, "rail-emu");
    pthread_mutex_lock(&emu.lock);
    emu.engine_running = !err;
    pthread_mutex_unlock(&emu.lock);
  }
  pthread_mutex_unlock(&emu_lifecycle);
  return err;
}

/* And the process has no memory that peers see any more. */
void emu_engine_stop(void) {
  pthread_mutex_lock(&emu.lock);
  bool was = emu.engine_running;
  if (was) {
    engine.stop = true;
    emu_engine_wake();
  }
  pthread_mutex_unlock(&emu.lock);
  if (was) pthread_join(engine.thread, NULL);
  pthread_mutex_lock(&emu.lock);
  emu.engine_running = false;
  emu_wire_close();
  pthread_mutex_unlock(&emu.lock);
}

void emu_engine_forget(void) {
  emu.engine_running = false;
  emu.engine_until = 0;
  emu.engine_idle = false;
  emu.next_timer = UINT64_MAX;
}
