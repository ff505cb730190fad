/* SPDX-License-Identifier: Apache-2.0
 * The counters of the ib plugin, for rail-stat. Rows in ib_stats.c are in the order of these values. */
#ifndef IB_STATS_H
#define IB_STATS_H

#include "common/obs/stats.h"

struct ib_comm;
struct ib_port;

enum ib_stats_comm { /* label: side, device, peer, qps */
  IB_COMM_BYTES,         /* of messages that are done */
  IB_COMM_MESSAGES,
  IB_COMM_WRITES,        /* RDMA writes posted: data on the sender's side, CTS on the receiver's */
  IB_COMM_WAITS_CTS,     /* isend found no buffer of its tag */
  IB_COMM_WAITS_ROOM,    /* isend or irecv found a table or a send queue full */
  IB_COMM_OUTSTANDING,   /* gauge: requests */
  IB_COMM_LAST_PROGRESS, /* time */
  IB_COMM_COUNTERS
};
enum ib_stats_device { /* of a port; label: device */
  IB_DEVICE_COMMS, /* gauge */
  IB_DEVICE_ACCEPTED,
  IB_DEVICE_CONNECTED,
  IB_DEVICE_REFUSED,
  IB_DEVICE_STRANGERS,
  IB_DEVICE_ERRORS,     /* completions with an error, and fatal events */
  IB_DEVICE_PORT_DOWNS,
  IB_DEVICE_PORT_UPS,
  IB_DEVICE_EVENTS,     /* other asynchronous events */
  IB_DEVICE_REGISTERED, /* gauge: registrations in the cache */
  IB_DEVICE_QPS,        /* gauge: data QPs of open comms */
  IB_DEVICE_COUNTERS
};

/* The page, and the records of all ports; one each per context, under the plugin's lock. It stays until the last comm
 * has given its record back, too. */
rail_result_t ib_stats_open(void);
void ib_stats_close(void);
/* The device's record, shared by threads (rail_stats_add_shared); NULL when the page is not open. */
uint64_t *ib_stats_device(const char *name);
/* Gives the comm its record (private memory where there is no page) and takes it back, if it has one. Device,
 * peer_text, rails and plan are filled in. RAIL_SYSTEM_ERROR, logged: out of memory. */
rail_result_t ib_stats_comm_begin(struct ib_comm *comm);
void ib_stats_comm_end(struct ib_comm *comm);

#endif
