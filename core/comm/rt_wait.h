/* SPDX-License-Identifier: Apache-2.0
 *
 * A wait for other ranks, which has no deadline: they may be busy for as long as they like. So it is looked at from
 * time to time, says when it lasts long (RAIL_STALL_WARN), and ends when a rank that it waits for has ended its
 * communicator. */
#ifndef RT_WAIT_H
#define RT_WAIT_H

#include <stdbool.h>
#include <stdint.h>

struct ncclComm;

struct rt_wait {
  uint64_t since_ns, next_check_ns;
  uint64_t report_ms; /* after since_ns: RAIL_STALL_WARN, then twice the time; 0: never */
  int departed;       /* checks in a row that found an awaited rank departed */
};

void rt_wait_begin(struct rt_wait *w);
/* True, and *now: a check is due. Each makes the two calls below. */
bool rt_wait_check_due(struct rt_wait *w, uint64_t *now);
/* `peer`: an awaited rank that has departed, or -1. Fails the communicator when it stays so: a peer that departed
 * because of a failure has reported that, which names the cause and may take a moment. */
void rt_wait_check_departed(struct rt_wait *w, struct ncclComm *comm, int peer);
/* True, and *ms: it is time to say how long it has lasted. */
bool rt_wait_is_long(struct rt_wait *w, uint64_t now, uint64_t *ms);

#endif
