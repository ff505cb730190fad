/* SPDX-License-Identifier: Apache-2.0
 *
 * A comm's place among the counters (sk_stats.h): records of its own and of its
 * streams, in which its owner counts, and what the watch thread makes of them.
 */
#ifndef SK_COUNT_H
#define SK_COUNT_H

#include <stdbool.h>

#include "plugin/socket/sk_stats.h"

struct sk_comm;
struct sk_comm_args;

/* In a comm. The records are never NULL once it is open: without memory they are private. */
struct sk_counts {
  bool open;
  uint64_t *comm;   /* its record; enum sk_stats_comm */
  uint64_t *device; /* of the device that the caller named, shared with other comms; enum sk_stats_device */
  uint64_t seen_messages;
  uint64_t own[SK_COMM_COUNTERS];
};

/* In a stream. */
struct sk_stream_counts {
  uint64_t *stream; /* its record; enum sk_stats_stream */
  uint64_t *device; /* of its interface */
  uint64_t seen_bytes;
  uint64_t own[SK_STREAM_COUNTERS];
};

/* The comm's streams are there, nothing is counted yet. */
void sk_count_open(struct sk_comm *comm, const struct sk_comm_args *args);
/* Brings sums up to date. One thread at a time: the watch thread, then close. */
void sk_count_fold(struct sk_comm *comm);
/* Gives the records back; what is counted afterwards is lost. Harmless twice, or without open. */
void sk_count_close(struct sk_comm *comm);

/* For lines to people. */
static inline uint64_t sk_count_bytes(const struct sk_counts *counts) {
  return rail_stats_get(&counts->comm[SK_COMM_SENT_BYTES]) + rail_stats_get(&counts->comm[SK_COMM_RECEIVED_BYTES]);
}
static inline uint64_t sk_count_messages(const struct sk_counts *counts) {
  return rail_stats_get(&counts->comm[SK_COMM_MESSAGES]);
}

#endif
