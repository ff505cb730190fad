/* SPDX-License-Identifier: Apache-2.0
 * When a wait for other ranks is looked at next, and when it is reported. Called by the thread that waits: it runs
 * plans or watches launches (rt_queue.c), connects (rt_transport.c), or opens the segment of small calls (rt_small.c).
 */
#include "core/comm/rt_wait.h"

#include "common/base/clock.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_param.h"

/* By the clock: where a core is shared with others, each yield may take milliseconds. */
#define CHECK_NS 20000000ull
/* Counted, not timed: where the machine stood still, what a peer sent before it departed is read first. */
#define DEPARTED_CHECKS 25

void rt_wait_begin(struct rt_wait *w) {
  const uint64_t now = rail_now_ns();
  *w = (struct rt_wait){.since_ns = now, .next_check_ns = now + CHECK_NS,
                        .report_ms = (uint64_t)rt_params()->stall_warn_ms};
}

bool rt_wait_check_due(struct rt_wait *w, uint64_t *now) {
  *now = rail_now_ns();
  if (*now < w->next_check_ns) return false;
  w->next_check_ns = *now + CHECK_NS;
  return true;
}

void rt_wait_check_departed(struct rt_wait *w, struct ncclComm *comm, int peer) {
  w->departed = peer < 0 ? 0 : w->departed + 1;
  if (w->departed > DEPARTED_CHECKS)
    rt_comm_fail(comm, RAIL_REMOTE_ERROR, "rank %d ended its communicator while rank %d waits for it in an operation",
                 peer, comm->rank);
}

bool rt_wait_is_long(struct rt_wait *w, uint64_t now, uint64_t *ms) {
  *ms = (now - w->since_ns) / 1000000;
  if (w->report_ms == 0 || *ms < w->report_ms) return false;
  while (*ms >= w->report_ms) w->report_ms *= 2;
  return true;
}
