/* SPDX-License-Identifier: Apache-2.0
 * Requests that are carried out by posts or polls alone (statement `progress`), so that a program of one thread decides
 * what has arrived when. */
#include "emu/emu.h"
#include "emu/rail_emu.h"

void emu_quiesce(void) {
  do emu_progress();
  while (emu_wire_has_input());
}

void rail_emu_quiesce(void) {
  pthread_mutex_lock(&emu.lock);
  emu_quiesce();
  pthread_mutex_unlock(&emu.lock);
}

/* One bit of a linear congruential generator (Knuth's constants). */
static bool is_passed_over(void) {
  if (!emu.skip) return false;
  emu.skip = emu.skip * 6364136223846793005u + 1442695040888963407u;
  return emu.skip >> 63;
}

void emu_turn_polled(const struct emu_cq *cq) {
  struct emu_qp *qp;
  if (emu.progress_by == EMU_BY_POLL)
    TAILQ_FOREACH(qp, &emu.run, run)
      if (qp->ex.qp_base.send_cq == &cq->ibv) qp->turn = is_passed_over() ? 0 : emu.burst;
  emu_quiesce();
}
