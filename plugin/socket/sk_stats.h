/* SPDX-License-Identifier: Apache-2.0
 *
 * What the socket plugin counts (common/obs/stats.h); tools/rail-stat shows it. The enums are the order of the values
 * in a record; what each counts stands in the tables of sk_stats.c.
 *
 * A comm's and a stream's record is written by the comm's owner. A device's record has several writers:
 * rail_stats_add_shared, and only for rare events. Its bytes and messages are summed from the records of streams and
 * comms (sk_stats_update), at each tick of the watch thread and at close.
 */
#ifndef SK_STATS_H
#define SK_STATS_H

#include <stdbool.h>

#include "common/base/sock.h"
#include "common/obs/stats.h"

enum sk_stats_group { SK_STATS_COMM, SK_STATS_STREAM, SK_STATS_DEVICE, SK_STATS_GROUPS };

enum sk_stats_comm {
  SK_COMM_SENT_BYTES,
  SK_COMM_RECEIVED_BYTES,
  SK_COMM_MESSAGES,
  SK_COMM_EAGER_MESSAGES,
  SK_COMM_GRANTED_MESSAGES,
  SK_COMM_CHUNKS,
  SK_COMM_SYSTEM_CALLS,
  SK_COMM_CONTROL_FRAMES,
  SK_COMM_STALLS,
  SK_COMM_RETRIES,
  SK_COMM_FAILOVERS,
  SK_COMM_ERRORS,
  SK_COMM_OUTSTANDING,
  SK_COMM_CREDIT_BYTES,
  SK_COMM_PROGRESS_TIME,
  SK_COMM_COUNTERS
};

enum sk_stats_stream {
  SK_STREAM_BYTES,
  SK_STREAM_CHUNKS,
  SK_STREAM_ALIVE,
  SK_STREAM_LOST,
  SK_STREAM_COUNTERS
};

enum sk_stats_device {
  SK_DEVICE_BYTES,
  SK_DEVICE_MESSAGES,
  SK_DEVICE_COMMS,
  SK_DEVICE_CONNECTS,
  SK_DEVICE_ACCEPTS,
  SK_DEVICE_REFUSED,
  SK_DEVICE_DROPPED,
  SK_DEVICE_ERRORS,
  SK_DEVICE_COUNTERS
};

/* The records of a comm. Never NULL once it is open: without memory they are private. */
struct sk_comm_counts {
  bool open;
  uint64_t *comm;   /* its record; enum sk_stats_comm */
  uint64_t *device; /* of the device that the caller named, shared with other comms; enum sk_stats_device */
  uint64_t seen_messages;
  uint64_t own[SK_COMM_COUNTERS];
};

/* The records of a stream. */
struct sk_stream_counts {
  uint64_t *stream; /* its record; enum sk_stats_stream */
  uint64_t *device; /* of its interface */
  uint64_t seen_bytes;
  uint64_t own[SK_STREAM_COUNTERS];
};

struct sk_comm;
struct sk_comm_args;

/* Takes records for a comm and its streams. */
void sk_stats_attach(struct sk_comm *comm, const struct sk_comm_args *args);
/* Brings sums up to date. One thread at a time: the watch thread, then close. */
void sk_stats_update(struct sk_comm *comm);
/* Gives the records back; what is counted afterwards is lost. Harmless twice, or without attach. */
void sk_stats_detach(struct sk_comm *comm);

/* For log lines. */
static inline uint64_t sk_stats_bytes(const struct sk_comm_counts *counts) {
  return rail_stats_get(&counts->comm[SK_COMM_SENT_BYTES]) + rail_stats_get(&counts->comm[SK_COMM_RECEIVED_BYTES]);
}
static inline uint64_t sk_stats_messages(const struct sk_comm_counts *counts) {
  return rail_stats_get(&counts->comm[SK_COMM_MESSAGES]);
}

/* One each per context. The page is made by the first open and goes with the last close or the last record of a comm
 * or stream, whichever is later. RAIL_SYSTEM_ERROR, logged: out of memory. Thread-safe like all below. */
rail_result_t sk_stats_open(void);
void sk_stats_close(void);

/* Records, NULL when memory is out (or nothing is open). `side` is "send" or "receive", `device` a device's name, and
 * the first 4 bytes of comm_id name the comm in labels. Each is given back by sk_stats_drop. */
uint64_t *sk_stats_comm(const char *side, const char *device, const union rail_addr *peer, const uint8_t *comm_id);
uint64_t *sk_stats_stream(const char *side, const char *device, const union rail_addr *peer, const uint8_t *comm_id,
                          unsigned int stream);
/* NULL is fine. */
void sk_stats_drop(enum sk_stats_group group, uint64_t *record);

/* The device's one record, made at its first call; valid while anything is open. Not for the data path: it searches.
 * Never dropped. */
uint64_t *sk_stats_device(const char *name);
/* One more of these for the device. Not for the data path. */
void sk_stats_count(const char *device, enum sk_stats_device counter);

/* A gauge with several writers (SK_DEVICE_COMMS). */
static inline void sk_stats_gauge(uint64_t *gauge, int by) { rail_stats_add_shared(gauge, (uint64_t)(int64_t)by); }

#endif
