/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads pages of counters (common/obs/stats_page.h) that others wrote. Nothing in a
 * file is believed: sizes, counts and offsets are checked, texts are ended and
 * made printable, and the file is read, not mapped, so that one which shrinks
 * meanwhile is an error and no SIGBUS.
 */
#ifndef KIT_STATS_H
#define KIT_STATS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/obs/stats_page.h"

struct kit_stats_view_record {
  uint32_t index;  /* its place in the group */
  uint64_t life;   /* another number: another record at this place */
  char label[RAIL_STATS_LABEL];
  uint64_t *values; /* one per counter of the group */
};

struct kit_stats_view_counter {
  char name[RAIL_STATS_NAME]; /* [a-z_][a-z0-9_]* */
  char doc[RAIL_STATS_DOC];
  enum rail_stats_kind kind;
};

struct kit_stats_view_group {
  char name[RAIL_STATS_NAME]; /* as a counter's */
  uint32_t ncounters, nrecords;
  uint64_t left_out; /* records that the page had no room for */
  struct kit_stats_view_counter *counters;
  struct kit_stats_view_record *records; /* those that are taken */
  uint64_t *values;
};

/* What one read of a page has found. */
struct kit_stats_view {
  int64_t pid;
  uint64_t start_time, pid_ns, opened_ns;
  uint64_t read_ns; /* CLOCK_MONOTONIC of this read */
  enum rail_stats_alive alive;
  uid_t uid; /* of the file */
  char name[RAIL_STATS_NAME], process[RAIL_STATS_NAME];
  uint32_t ngroups;
  struct kit_stats_view_group groups[];
};

/* Reads dir/file. NULL: `why` says in words why not; errno is EACCES for a page of another user, ENOENT for one
 * that has gone, EAGAIN for one that is being made, EPROTO for what is no page. */
struct kit_stats_view *kit_stats_read(const char *dir, const char *file, char *why, size_t why_size);
void kit_stats_view_free(struct kit_stats_view *view); /* NULL is fine */

#endif
