/* SPDX-License-Identifier: Apache-2.0
 *
 * The watch thread, one per process while there is a context: it hears the
 * HCAs' asynchronous events and the side channels of all connections, and sets
 * health words. It posts nothing, polls no CQ, touches no request.
 *
 * A side channel after the handshake carries PING, PONG, GOODBYE and DRAINED (ib_pulse.h).
 * A connection whose peer closed or whose channel broke says so in its health
 * word; the caller's next test sees it when there is nothing left to poll.
 *
 * It also keeps closed receivers for a while (linger): their QPs must still
 * answer the retries of a sender whose last ACK was lost.
 */
#ifndef IB_WATCH_H
#define IB_WATCH_H

#include <stdbool.h>

#include "common/base/result.h"

struct ib_comm;
struct ib_hca;
struct ib_watched;

/* Thread and lists, with the first context; ended with the last, when lingering is over or its time is up. Call under
 * the plugin's lock. */
rail_result_t ib_watch_begin(void);
void ib_watch_end(void);

/* The comm's side channel is the watch thread's from here on: called when the handshake's last byte has been read. What
 * counts as a sign that transfers move are the comm's counters. HCA events find the comm in qp_context of all of its
 * QPs, and cq_context of its CQs. */
rail_result_t ib_watch_add(struct ib_comm *comm);
/* Takes it back: when this returns the thread knows the comm no more. Says GOODBYE first if `goodbye`. Harmless for a
 * comm that is not watched. The channel stays open; it is the comm's (ib_comm_destroy). */
void ib_watch_remove(struct ib_comm *comm, bool goodbye);
/* A closed receive comm without anything outstanding: said goodbye, freed by `destroy` in the watch thread when the
 * peer has closed, too, or has nothing unacknowledged, or after RAIL_IB_LINGER; at once, in this
 * thread, if it is not watched. */
void ib_watch_linger(struct ib_comm *comm, void (*destroy)(struct ib_comm *comm));

/* ---- ib_events.c: asynchronous events of an HCA, what each means for health words, counters and the log ---- */

enum ib_events {
  IB_EVENTS_READ,  /* all that were there, or enough for now */
  IB_EVENTS_FATAL, /* the HCA is dead: every connection over it */
  IB_EVENTS_GONE,  /* none can be read from it any more */
};

/* Reads, handles and acknowledges what there is; the HCA's descriptor does not block. The watch thread's, without its
 * lock: who destroys a QP waits until the QP's events are acknowledged. */
enum ib_events ib_events_read(struct ib_hca *hca);

#endif
