/* SPDX-License-Identifier: Apache-2.0
 * The counters of the ofi plugin, for rail-stat. Rows in ofi_stats.c are in the order of these values. */
#ifndef OFI_STATS_H
#define OFI_STATS_H

#include "common/obs/stats.h"

struct ofi_comm;

enum ofi_stats_comm { /* label: side, device, provider, peer */
  OFI_COMM_BYTES,         /* of messages that are done */
  OFI_COMM_MESSAGES,
  OFI_COMM_INLINE,        /* messages inside a control message */
  OFI_COMM_FRAMES,        /* control messages posted */
  OFI_COMM_COMPLETIONS,   /* of libfabric's operations */
  OFI_COMM_OUTSTANDING,   /* requests */
  OFI_COMM_WAITS_GRANT,   /* calls of isend that found no receive of their tag */
  OFI_COMM_WAITS_ROOM,    /* calls that found no free request, or the endpoint in use by another thread */
  OFI_COMM_COUNTERS
};

enum ofi_stats_device { /* label: device */
  OFI_DEVICE_CONNECTED,
  OFI_DEVICE_ACCEPTED,
  OFI_DEVICE_REFUSED,
  OFI_DEVICE_DROPPED, /* pending connections of clients that are no peers */
  OFI_DEVICE_COMMS,   /* open */
  OFI_DEVICE_ERRORS,  /* comms that failed */
  OFI_DEVICE_COUNTERS
};

/* One each per context, under the plugin's lock. */
rail_result_t ofi_stats_open(void);
void ofi_stats_close(void);
void ofi_stats_count(const char *device, enum ofi_stats_device counter);

/* The comm's record, which is then comm->stats; an error after a line: out of memory. */
rail_result_t ofi_stats_comm_begin(struct ofi_comm *comm);
void ofi_stats_comm_end(struct ofi_comm *comm);

#endif
