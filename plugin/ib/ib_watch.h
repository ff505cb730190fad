/* SPDX-License-Identifier: Apache-2.0
 *
 * The watch thread, one per process while there is a context: it reads the HCAs' asynchronous events and the oob
 * connections of all comms, and sets fault bits. It posts nothing, polls no CQ, touches no request.
 *
 * A comm whose peer closed, or whose oob connection broke, gets a fault bit; the caller's next test reads
 * it when there is nothing left to poll.
 *
 * The thread also owns closed receivers that linger: their QPs still answer retransmissions of a sender whose last ACK
 * was lost.
 */
#ifndef IB_WATCH_H
#define IB_WATCH_H

#include <stdbool.h>

#include "common/base/result.h"

struct ib_comm;
struct ib_hca;
struct ib_watched;

/* Starts the thread with the first context, and ends it with the last, when no comm lingers any more. Call under the
 * plugin's lock. */
rail_result_t ib_watch_begin(void);
void ib_watch_end(void);

/* Gives the comm's oob connection to the watch thread: call when the handshake's last byte has been read. Activity is
 * read from the comm's counters. HCA events find the comm in qp_context of all of its QPs and cq_context of its CQs. */
rail_result_t ib_watch_add(struct ib_comm *comm);
/* Takes it back: when this returns the thread does not know the comm any more. `goodbye`: sends GOODBYE first. Does
 * nothing for a comm that is not watched. The socket stays open; it is the comm's (ib_comm_destroy). */
void ib_watch_remove(struct ib_comm *comm, bool goodbye);
/* A closed receive comm with nothing outstanding: GOODBYE is sent, and the watch thread calls `destroy` when the peer
 * has closed or has sent DRAINED, or after RAIL_IB_LINGER. This thread calls it at once if the comm is not watched. */
void ib_watch_linger(struct ib_comm *comm, void (*destroy)(struct ib_comm *comm));

/* ---- ib_events.c: asynchronous events of an HCA, what each means for fault bits, counters and the log ---- */

enum ib_events {
  IB_EVENTS_READ,  /* all that were there, or 64 of them */
  IB_EVENTS_FATAL, /* the HCA failed, and every connection over it */
  IB_EVENTS_GONE,  /* its events cannot be read any more */
};

/* Reads, handles and acknowledges what is there; the HCA's descriptor does not block. Called by the watch thread
 * without its lock: ibv_destroy_qp waits until the QP's events are acknowledged. */
enum ib_events ib_events_read(struct ib_hca *hca);

#endif
