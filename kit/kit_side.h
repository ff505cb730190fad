/* SPDX-License-Identifier: Apache-2.0
 *
 * One process of a world, from the inside. `rail-kit side` runs kit_side_main:
 * it reads a job, runs the role that the job names, reports, and exits. The
 * plugin is loaded here and nowhere else, so whatever it does ends only this
 * process.
 *
 * A role ends by returning (fine), by ENSURE (failed: the text goes to the
 * report), by kit_skip (cannot be done here), or with the process.
 */
#ifndef RAIL_KIT_SIDE_H
#define RAIL_KIT_SIDE_H

#include <stddef.h>

#include "kit/kit_ensure.h"
#include "kit/kit_job.h"

struct kit_side;

struct kit_role {
  const char *kind; /* as in kit_job */
  void (*run)(struct kit_side *side);
};

/* main() of a side; `roles` ends with a NULL kind. Never returns. */
_Noreturn void kit_side_main(const struct kit_role *roles);

const struct kit_job *kit_side_job(const struct kit_side *side);
int kit_side_rank(const struct kit_side *side);
int kit_side_count(const struct kit_side *side);

/* Bytes between sides, in order for each pair, through the parents: for handles, plans and results, not for bandwidth.
 * kit_get waits for exactly `size` bytes and fails the side at the job's deadline, or when a side it waits for has
 * ended. One thread of a side at a time. */
void kit_put(struct kit_side *side, int to, const void *data, size_t size);
void kit_get(struct kit_side *side, int from, void *data, size_t size);
/* Are `size` bytes of `from` here? Never waits. */
bool kit_heard(struct kit_side *side, int from, size_t size);
/* Both directions with one other side. */
void kit_swap(struct kit_side *side, int with, const void *mine, void *theirs, size_t size);
/* Returns when all sides have come here. */
void kit_meet(struct kit_side *side);

/* What the report says besides the verdict. A metric is a number that tools compare: unit "us", "B/s", "", … */
void kit_note(struct kit_side *side, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void kit_metric(struct kit_side *side, const char *name, double value, const char *unit);
/* A role's own record for the parent's on_word. */
void kit_tell(struct kit_side *side, const void *data, size_t size);

/* From now on the death of this process by a signal, or its silence, is what the job wants. */
void kit_side_will_die(struct kit_side *side);
/* The same of another side: waiting for it must not fail this one. */
void kit_side_may_lose(struct kit_side *side, int rank);

#endif
