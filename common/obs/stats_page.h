/* SPDX-License-Identifier: Apache-2.0
 *
 * What a page of counters looks like in its file (common/obs/stats.h writes it,
 * kit/kit_stats.h reads it), and who is still alive to write it.
 *
 * Fixed widths, no pointers: everything is found by offsets from the start of
 * the file. Byte order is the machine's; a reader of the other one does not
 * find the magic. Texts end with 0. The file is sparse: a record's bytes exist
 * from the moment it is taken first.
 *
 *   head            rail_stats_head, 256 bytes
 *   at groups_at    ngroups x rail_stats_group_desc, 128 bytes each
 *   counters_at     of each group: ncounters x rail_stats_counter_desc, 256 bytes each
 *   records_at      of each group: max_records x record_size bytes: rail_stats_record_head, 256 bytes, and at
 *                   values_at one uint64_t per counter; a record begins on a cache line
 *
 * A record's `life` is odd while it is taken, and every take and every drop
 * adds one. A reader reads it before and after the rest: equal and odd, and
 * label and values belong to one and the same life.
 */
#ifndef RAIL_STATS_PAGE_H
#define RAIL_STATS_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/obs/stats.h"

#define RAIL_STATS_PREFIX "rail-stat."
#define RAIL_STATS_NAME_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
#define RAIL_STATS_MAGIC 0x544154534c494152ull /* "RAILSTAT" */
#define RAIL_STATS_VERSION 1u

/* What a page may have at most; a reader refuses more. */
#define RAIL_STATS_MAX_GROUPS 16u
#define RAIL_STATS_MAX_COUNTERS 64u
#define RAIL_STATS_MAX_RECORDS 16384u
#define RAIL_STATS_MAX_SIZE (64ull << 20)

struct rail_stats_head {
  uint64_t magic; /* written last, when everything below is there */
  uint32_t version;
  uint32_t ngroups;
  uint64_t size;       /* of the file */
  uint64_t groups_at;  /* multiple of 8 */
  int64_t pid;         /* in the writer's own PID namespace */
  uint64_t pid_ns;     /* inode of that namespace; 0 unknown */
  uint64_t start_time; /* of the process, in clock ticks since boot: a pid is used again, this with it is not */
  uint64_t opened_ns;  /* CLOCK_MONOTONIC */
  char name[RAIL_STATS_NAME];    /* of the plugin or library */
  char process[RAIL_STATS_NAME]; /* of the program */
  uint64_t reserved[8];
};

struct rail_stats_group_desc {
  char name[RAIL_STATS_NAME];
  uint64_t counters_at; /* multiple of 8 */
  uint64_t records_at;  /* multiple of RAIL_CACHELINE */
  uint64_t left_out;    /* records that found the group full so far; only grows */
  uint32_t ncounters;
  uint32_t max_records;
  uint32_t record_size; /* multiple of RAIL_CACHELINE */
  uint32_t values_at;   /* in a record; multiple of 8 */
  uint32_t used;        /* records from here on were never taken; only grows */
  uint32_t reserved[5];
};

struct rail_stats_counter_desc {
  char name[RAIL_STATS_NAME];
  char doc[RAIL_STATS_DOC];
  uint32_t kind; /* enum rail_stats_kind */
  uint32_t reserved;
};

/* The first cache line is written at take and drop only. */
struct rail_stats_record_head {
  uint64_t life;
  char label[RAIL_STATS_LABEL];
  uint64_t reserved[7];
};

_Static_assert(sizeof(struct rail_stats_head) == 256, "layout");
_Static_assert(offsetof(struct rail_stats_head, name) == 64, "layout");
_Static_assert(sizeof(struct rail_stats_group_desc) == 128, "layout");
_Static_assert(offsetof(struct rail_stats_group_desc, used) == 104, "layout");
_Static_assert(sizeof(struct rail_stats_counter_desc) == 256, "layout");
_Static_assert(sizeof(struct rail_stats_record_head) == 256, "layout");

enum rail_stats_alive {
  RAIL_STATS_LIVE,
  RAIL_STATS_DEAD,      /* ended; another process may have its pid by now */
  RAIL_STATS_ELSEWHERE, /* cannot be seen from here: in a PID namespace that is not ours, or /proc cannot be read now */
};

/* Start time of a living process, as in the head. False: there is none (a zombie is none), and errno is ESRCH; or, with
 * another errno, it is not known: without descriptors, for example. */
bool rail_stats_process_start(pid_t pid, uint64_t *ticks);
/* Inode of our own PID namespace; 0 unknown. */
uint64_t rail_stats_pid_ns(void);
enum rail_stats_alive rail_stats_alive(int64_t pid, uint64_t start_time, uint64_t pid_ns);

/* Is this the name of a page's file, "rail-stat.PID.NAME", NAME of the letters above and dots? Then also its PID, and
 * where NAME begins. */
bool rail_stats_file_name(const char *file, int64_t *pid, const char **name);

/* Removes the pages of dead processes from `dir`, of our own user or (`others`) of any; looks at `most` pages. Returns
 * how many are gone; *failed (may be NULL) counts those that could not be removed. */
int rail_stats_clean(const char *dir, bool others, int most, int *failed);

#endif
