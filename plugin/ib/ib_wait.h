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
#ifndef IB_WAIT_H
#define IB_WAIT_H

#include "plugin/ib/ib_comm.h"

enum ib_progress_kind { IB_PROGRESS_POLL, IB_PROGRESS_EVENT, IB_PROGRESS_AUTO }; /* RAIL_IB_PROGRESS */

/* Makes the rail's completion queue, with a channel if RAIL_IB_PROGRESS asks for it and the device has them; if it has
 * none, one line for each HCA says so. False: errno says why there is no queue. */
bool ib_wait_create_cq(struct ib_comm *comm, struct ib_rail *rail, int entries);
/* All of them are made. */
void ib_wait_open(struct ib_comm *comm);
/* Before its completion queues are destroyed, which takes all events to be acknowledged. Idempotent. */
void ib_wait_close(struct ib_comm *comm);
/* After that; errno of ibv_destroy_comp_channel, or 0. */
int ib_wait_destroy_channel(struct ib_rail *rail);

/* A poll found completions. For comms that are `event_driven` only; here and below. */
void ib_wait_found(struct ib_comm *comm);
/* A test of `request` found nothing. May wait. True: poll again, the queues are armed now or an event came. */
bool ib_wait_idle(struct ib_comm *comm, const struct ib_request *request);

#endif
