/* SPDX-License-Identifier: Apache-2.0
 * The job of one process of a group. Crosses process and host borders as it lies in memory: both ends are the same
 * build of the kit (kit_link.c compares versions), and a reader checks it all the same (kit_job_check). */
#ifndef RAIL_KIT_JOB_H
#define RAIL_KIT_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "rail/net.h"

#define KIT_MAX_PROCESSES 16

struct kit_job {
  char kind[16];     /* which role: "conform", "bench", … (kit_process.h) */
  char name[128];    /* the role's: a check's name, a scenario's */
  char plugin[1024]; /* path or name */
  char args[4096];   /* the role's own, kit_job_arg's KEY=VALUE lines */
  uint64_t seed;
  uint64_t limit_ms; /* of the whole job; the parent kills what is left then */
  int32_t version;   /* of the vtable; 0: the newest there is */
  int32_t dev;
  struct rail_net_vprops_v12 fuse; /* devices to make one of, which is used; ndevs 0: none, it is dev */
  int32_t rank, nprocesses;
  int32_t hosts;     /* 1 or 2: are all processes on this host? */
};

/* Appends a line "key=value" to job->args; ends the program with a line on stderr if there is no room. */
void kit_job_add(struct kit_job *job, const char *key, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The value of `key`, in a buffer of this thread that the next call reuses; NULL: there is none. */
const char *kit_job_arg(const struct kit_job *job, const char *key);
/* The value as a number; `otherwise` when there is none. A value that is no number fails the process. */
uint64_t kit_job_number(const struct kit_job *job, const char *key, uint64_t otherwise);
/* Are all texts ended and all numbers in range? */
bool kit_job_check(const struct kit_job *job);

#endif
