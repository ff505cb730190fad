/* SPDX-License-Identifier: Apache-2.0
 * What waits: timers, queue pairs with something to send; and the thread that is woken for them. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "emu/emu.h"

/* A port with bandwidth= makes up for the time in which this process did not run, or did something else, and a card
 * would have sent: for so much of it at most. */
#define CATCH_UP_NS 200000000u

void emu_engine_wake(void) {
  if (!emu.engine_running) return;
  emu.engine_until = 0;
  emu.engine_idle = false;
  atomic_fetch_add(emu_wire_doorbell(), 1);
  syscall(SYS_futex, emu_wire_doorbell(), FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* ---- timers -------------------------------------------------------------------- */

void emu_timer_set(struct emu_qp *qp, enum emu_timer kind, uint64_t at) {
  qp->timer_at[kind] = at;
  if (!qp->in_timers) {
    qp->in_timers = true;
    LIST_INSERT_HEAD(&emu.timers, qp, timers);
  }
  if (at < emu.next_timer) emu.next_timer = at;
  if (emu.engine_until && at < emu.engine_until) emu_engine_wake();
}

/* The queue pair leaves the list when the timers are looked at next. */
void emu_timer_off(struct emu_qp *qp, enum emu_timer kind) { qp->timer_at[kind] = 0; }

void emu_timer_remove(struct emu_qp *qp) {
  for (int kind = 0; kind < EMU_TIMERS; kind++) qp->timer_at[kind] = 0;
  if (!qp->in_timers) return;
  qp->in_timers = false;
  LIST_REMOVE(qp, timers);
}

/* ---- what is to be sent ----------------------------------------------------------- */

/* The program need not post or poll again: the thread sends it, if nobody does before. */
void emu_run_later(struct emu_qp *qp) {
  if (qp->in_run) return;
  qp->in_run = true;
  TAILQ_INSERT_TAIL(&emu.run, qp, run);
  if (emu.engine_idle) emu_engine_wake();
}

void emu_run_remove(struct emu_qp *qp) {
  if (!qp->in_run) return;
  qp->in_run = false;
  TAILQ_REMOVE(&emu.run, qp, run);
}

bool emu_is_lost(struct emu_qp *qp, uint32_t payload) {
  const struct emu_port *port = emu_port_of(qp);
  return !qp->link || port->state != IBV_PORT_ACTIVE || payload > port->packet || qp->device->fatal ||
         !emu_link_has_memory(qp->link);
}

bool emu_is_throttled(struct emu_qp *qp, uint32_t payload) {
  struct emu_port *port = emu_port_of(qp);
  if (!port->bandwidth) return false;
  uint64_t now = emu_now();
  if (port->busy_until > now) {
    qp->behind = true;
    return true;
  }
  const uint64_t earliest = qp->behind ? now - CATCH_UP_NS : now;
  const uint64_t from = port->busy_until > earliest ? port->busy_until : earliest;
  port->busy_until = from + (payload + EMU_HEADER) * 1000000000u / port->bandwidth;
  return false;
}
