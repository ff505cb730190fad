/* SPDX-License-Identifier: Apache-2.0
 *
 * One process of a process group, from the inside. `rail-kit side` runs
 * kit_process_main: it reads a job, runs the role that the job names, reports, and exits. The
 * plugin is loaded here and nowhere else, so whatever it does ends only this
 * process.
 *
 * A role ends by returning (fine), by ENSURE (failed: the text goes to the
 * report), by kit_skip (cannot be done here), or with the process.
 */
#ifndef RAIL_KIT_PROCESS_H
#define RAIL_KIT_PROCESS_H

#include <stddef.h>

#include "kit/kit_ensure.h"
#include "kit/kit_job.h"

struct kit_process;

struct kit_role {
  const char *kind; /* as in kit_job */
  void (*run)(struct kit_process *self);
};

/* main() of a process; `roles` ends with a NULL kind. Never returns. */
_Noreturn void kit_process_main(const struct kit_role *roles);

const struct kit_job *kit_process_job(const struct kit_process *self);
int kit_process_rank(const struct kit_process *self);
int kit_process_count(const struct kit_process *self);

/* Bytes between processes, in order for each pair, through the parents: for handles, plans and results, not for
 * bandwidth. kit_recv_bytes waits for exactly `size` bytes and fails the process at the job's deadline, or when a
 * process it waits for has ended. One thread of a process at a time. */
void kit_send_bytes(struct kit_process *self, int to, const void *data, size_t size);
void kit_recv_bytes(struct kit_process *self, int from, void *data, size_t size);
/* Are `size` bytes of `from` here? Never waits. */
bool kit_bytes_ready(struct kit_process *self, int from, size_t size);
/* Both directions with one peer. */
void kit_exchange(struct kit_process *self, int with, const void *mine, void *theirs, size_t size);
/* Barrier: returns when all processes have reached it. */
void kit_barrier(struct kit_process *self);

/* What the report says besides the verdict. A metric is a number that tools compare: unit "us", "B/s", "", … */
void kit_note(struct kit_process *self, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void kit_metric(struct kit_process *self, const char *name, double value, const char *unit);
/* A role's own record for the parent's on_message. */
void kit_send_record(struct kit_process *self, const void *data, size_t size);

/* From now on the death of this process by a signal, or its silence, is what the job wants. */
void kit_process_expect_death(struct kit_process *self);
/* The same of a peer: waiting for it must not fail this process. */
void kit_process_allow_loss(struct kit_process *self, int rank);

#endif
