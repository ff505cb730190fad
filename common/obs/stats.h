/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters that are always on and that another process can read: a page of
 * shared memory per process, plugin and runtime alike, which describes itself.
 * tools/rail-stat shows it.
 *
 * A page has groups ("comm", "device", "stream"); a group has named counters
 * and a fixed number of records; a record has a label and one 64-bit value per
 * counter. Each record has one writer at a time, so counting is a plain
 * load and store, no locked instruction; rail_stats_add_shared is for the rare
 * record that has several. Where no shared memory is to be had, or a group is
 * full, records are private memory: counting never fails.
 *
 * The file is /dev/shm/rail-stat.<pid>.<name>, for its user alone, and is
 * removed by rail_stats_close or when the process exits. A process that is
 * killed leaves it: the next page that is opened removes it, or rail-stat
 * --clean. A forked child counts on in memory of its own, from 0, unseen: the
 * page stays its parent's. RAIL_STATS=0 keeps all records private.
 */
#ifndef RAIL_STATS_H
#define RAIL_STATS_H

#include <pthread.h>
#include <stdint.h>

#include "common/base/compiler.h"
#include "common/base/result.h"

/* Sizes of names and texts in a page, their final 0 included; what is longer is cut, a label after a whole pair. */
#define RAIL_STATS_NAME 64
#define RAIL_STATS_DOC 184
#define RAIL_STATS_LABEL 192
#define RAIL_STATS_DIR "/dev/shm"

struct rail_param_table;

enum rail_stats_kind {
  RAIL_STATS_COUNTER, /* only grows: bytes, messages */
  RAIL_STATS_GAUGE,   /* goes up and down: requests outstanding */
  RAIL_STATS_TIME,    /* CLOCK_MONOTONIC nanoseconds of the latest event; 0 never */
};

struct rail_stats_counter {
  const char *name; /* Prometheus' rules: [a-z_]+, unit at the end ("sent_bytes"); without "_total" */
  enum rail_stats_kind kind;
  const char *doc;
};

struct rail_stats_group {
  const char *name;
  const struct rail_stats_counter *counters;
  uint32_t ncounters;
  uint32_t max_records;
};

struct rail_stats; /* a page */

/* Makes the page of `name` ("RailSocket") with these groups; never NULL but when memory is out. The tables may go
 * afterwards. Thread-safe like all below. */
struct rail_stats *rail_stats_open(const char *name, const struct rail_stats_group *groups, uint32_t ngroups);
/* Removes the file. Records that are still taken stay valid until dropped; drop them with the same `stats`, which is
 * freed with the last one. NULL is fine. */
void rail_stats_close(struct rail_stats *stats);

/* A record, all values 0, with a label of comma-separated key=value ("peer=10.0.0.2:4711,side=send"): no comma in a
 * key or value, no '=' in a key. It has cache lines of its own. NULL only when memory is out. */
RAIL_PRINTF(3, 4) uint64_t *rail_stats_take(struct rail_stats *stats, uint32_t group, const char *label, ...);
/* Its counters must not be written any more. A NULL record is fine. */
void rail_stats_drop(struct rail_stats *stats, uint32_t group, uint64_t *record);

/* The record's one writer counts; readers see whole values. */
static inline void rail_stats_add(uint64_t *value, uint64_t n) {
  __atomic_store_n(value, __atomic_load_n(value, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}
/* For a record with several writers. */
static inline void rail_stats_add_shared(uint64_t *value, uint64_t n) {
  __atomic_fetch_add(value, n, __ATOMIC_RELAXED);
}
static inline void rail_stats_set(uint64_t *value, uint64_t n) { __atomic_store_n(value, n, __ATOMIC_RELAXED); }
static inline uint64_t rail_stats_get(const uint64_t *value) { return __atomic_load_n(value, __ATOMIC_RELAXED); }

/* RAIL_STATS. */
extern const struct rail_param_table rail_stats_param_table;

/* ---- a plugin's page ----
 *
 * Made by the first context, gone with the last context or record, whichever is later; with one record per device,
 * found by its name. Thread-safe. */

#define RAIL_STATS_VALUE 64 /* room for a label's value, its final 0 included */

struct rail_stats_device;

/* Static: the first four are the plugin's, `lock` is PTHREAD_MUTEX_INITIALIZER. */
struct rail_plugin_stats {
  const char *name; /* "RailSocket" */
  const struct rail_stats_group *groups;
  uint32_t ngroups, device_group;
  pthread_mutex_t lock; /* guards all below */
  struct rail_stats *page;
  unsigned int users; /* contexts, and records that were taken */
  struct rail_stats_device *devices;
};

/* One each per context. RAIL_SYSTEM_ERROR, logged: out of memory. */
rail_result_t rail_plugin_stats_open(struct rail_plugin_stats *plugin);
void rail_plugin_stats_close(struct rail_plugin_stats *plugin);

/* A record, given back by rail_plugin_stats_drop; NULL when memory is out, or nothing is open. */
RAIL_PRINTF(3, 4) uint64_t *rail_plugin_stats_take(struct rail_plugin_stats *plugin, uint32_t group,
                                                   const char *label, ...);
void rail_plugin_stats_drop(struct rail_plugin_stats *plugin, uint32_t group, uint64_t *record); /* NULL is fine */

/* The device's one record ("device=NAME"), made at its first call; valid while anything is open, never dropped. Not for
 * the data path: it searches. NULL as above. */
uint64_t *rail_plugin_stats_device(struct rail_plugin_stats *plugin, const char *name);
/* One more of these in that record, which is looked up each time: the page may be gone while a connection that was
 * never closed is still there. */
void rail_plugin_stats_count(struct rail_plugin_stats *plugin, const char *device, unsigned int counter);

/* A label's value has no comma; a device's name may. Returns `to`. */
const char *rail_stats_value(char to[RAIL_STATS_VALUE], const char *from);

#endif
