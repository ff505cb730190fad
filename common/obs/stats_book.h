/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin's page of counters (common/obs/stats.h) and who still needs it: made by
 * the first context, gone with the last context or record, whichever is later;
 * and one record per device, found by its name. Thread-safe.
 */
#ifndef RAIL_STATS_BOOK_H
#define RAIL_STATS_BOOK_H

#include <pthread.h>

#include "common/obs/stats.h"

#define RAIL_STATS_VALUE 64 /* room for a label's value, its final 0 included */

struct rail_stats_device;

/* Static: the first four are the plugin's, `lock` is PTHREAD_MUTEX_INITIALIZER. */
struct rail_stats_book {
  const char *name; /* "RailSocket" */
  const struct rail_stats_group *groups;
  uint32_t ngroups, device_group;
  pthread_mutex_t lock; /* guards all below */
  struct rail_stats *page;
  unsigned int users; /* contexts, and records that were taken */
  struct rail_stats_device *devices;
};

/* One each per context. RAIL_SYSTEM_ERROR, logged: out of memory. */
rail_result_t rail_stats_book_open(struct rail_stats_book *book);
void rail_stats_book_close(struct rail_stats_book *book);

/* A record, given back by rail_stats_book_drop; NULL when memory is out, or nothing is open. */
RAIL_PRINTF(3, 4) uint64_t *rail_stats_book_take(struct rail_stats_book *book, uint32_t group, const char *label, ...);
void rail_stats_book_drop(struct rail_stats_book *book, uint32_t group, uint64_t *record); /* NULL is fine */

/* The device's one record ("device=NAME"), made at its first call; valid while anything is open, never dropped. Not for
 * the data path: it searches. NULL as above. */
uint64_t *rail_stats_book_device(struct rail_stats_book *book, const char *name);

/* A label's value has no comma; a device's name may. Returns `to`. */
const char *rail_stats_value(char to[RAIL_STATS_VALUE], const char *from);

#endif
