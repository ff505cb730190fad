/* SPDX-License-Identifier: Apache-2.0
 *
 * Options of a TCP connection that have little to do with its bytes: how its
 * packets are marked, and when the kernel gives a silent peer up. Best effort:
 * a kernel that refuses one leaves the connection without it.
 */
#ifndef RAIL_SOCKOPT_H
#define RAIL_SOCKOPT_H

#include <stdbool.h>
#include <stdint.h>

/* The class a connection gets: the parameter's, else the call's, else its context's; each -1: unset. -1: the
 * system's. One that does not fit the TOS byte of IP is warned about in the name of `plugin` and is the system's. */
int rail_traffic_class(const char *plugin, int64_t of_param, int of_call, int of_ctx);

/* Marks what the socket sends: the TOS or traffic class byte, and the queueing priority that goes with it. -1: leave.
 * Before connect or listen for it to count from the first packet on; accepted sockets inherit all but the priority. */
void rail_sockopt_traffic_class(int fd, int traffic_class);

/* TCP_USER_TIMEOUT: the kernel gives up when what was sent stays unacknowledged for this long. <= 0: leave. */
void rail_sockopt_user_timeout(int fd, int64_t ms);

/* TCP_RTO_MAX_MS (Linux 6.15): how rarely at most the kernel repeats what is not acknowledged and probes a window that
 * is shut; 2 minutes without. Cut to what the kernel allows, 1 to 120 s. */
void rail_sockopt_max_rto(int fd, int64_t ms);

/* Probes of a quiet connection every `every_ms` (rounded up to seconds; <= 0: none), which is given up when nothing has
 * come for deadline_ms, but not before two of them went unanswered. */
void rail_sockopt_keepalive(int fd, int64_t every_ms, int64_t deadline_ms);

/* Both, for a wait in which the peer's process may take its time: the kernel probes a host that is quiet, and gives it
 * up when it has not answered for deadline_ms; what was sent and is not acknowledged, grace_ms later. 0: leave. */
void rail_sockopt_host_deadline(int fd, int64_t deadline_ms, int64_t grace_ms);

/* How long ago, in ms, the peer's host last acknowledged anything. False, and *ms as it was: it is not TCP's. */
bool rail_sockopt_last_ack(int fd, uint32_t *ms);

#endif
