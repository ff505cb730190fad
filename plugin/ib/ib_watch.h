/* SPDX-License-Identifier: Apache-2.0
 *
 * The watch thread (common/conn/watch.h) of this plugin: it reads the HCAs' asynchronous events and the oob connections
 * of all comms, and sets bits of `pending_work`. It posts nothing, polls no CQ, touches no request.
 *
 * A comm whose peer closed, or whose oob connection broke, gets a fault bit; the caller's next test reads
 * it when there is nothing left to poll.
 *
 * The thread also owns closed receivers that linger: their QPs still answer retransmissions of a sender whose last ACK
 * was lost.
 */
#ifndef IB_WATCH_H
#define IB_WATCH_H

#include "common/conn/watch.h"

struct ib_comm;
struct ib_hca;

extern struct rail_watch ib_watch;

/* Gives the comm's oob connection to the watch thread. Activity is read from the comm's counters. HCA events find the
 * comm in qp_context of all of its QPs and cq_context of its CQs. rail_watch_remove takes it back. */
rail_result_t ib_watch_add(struct ib_comm *comm);

/* ---- ib_events.c: asynchronous events of an HCA, what each means for fault bits, counters and the log ---- */

enum ib_events {
  IB_EVENTS_READ,      /* all that were there, or 64 of them */
  IB_EVENTS_PORT,      /* a port went down, came up, or has other GIDs */
  IB_EVENTS_FATAL,     /* the HCA failed, and every connection over it alone */
  IB_EVENTS_GONE,      /* its events cannot be read any more */
};

/* Reads, handles and acknowledges what is there; the HCA's descriptor does not block. Called by the watch thread
 * without its lock: ibv_destroy_qp waits until the QP's events are acknowledged. */
enum ib_events ib_events_read(struct ib_hca *hca);

#endif
