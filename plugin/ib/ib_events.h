/* SPDX-License-Identifier: Apache-2.0
 * Asynchronous events of an HCA: what each means for health words, counters and the log. */
#ifndef IB_EVENTS_H
#define IB_EVENTS_H

#include <stdbool.h>

struct ib_hca;

enum ib_events {
  IB_EVENTS_READ,  /* all that were there, or enough for now */
  IB_EVENTS_FATAL, /* the HCA is dead: every connection over it */
  IB_EVENTS_GONE,  /* none can be read from it any more */
};

/* Reads, handles and acknowledges what there is; the HCA's descriptor does not block. The watch thread's, without its
 * lock: who destroys a QP waits until the QP's events are acknowledged. */
enum ib_events ib_events_read(struct ib_hca *hca);

#endif
