/* SPDX-License-Identifier: Apache-2.0
 *
 * A job of several ranks on this machine: one process each, forked here. The
 * parent carries the unique id from rank 0 to the others and watches: when a rank
 * fails or is killed it says so in one line, gives the others a moment to notice by
 * themselves, and kills what is left. It never outlives its ranks, nor they it.
 */
#ifndef TOOL_FORK_H
#define TOOL_FORK_H

#include <stddef.h>

#include "tools/common/exit.h"

/* What a rank's process knows of its job. */
struct tool_rank {
  int rank, nranks;
  int fd; /* to the parent */
};

/* Forks nranks processes, which exit with what body returns (TOOL_EXIT_...), and waits for them: the job's status. Call
 * it while this process has one thread. After the first failure the others have grace_s seconds. The parent says
 * nothing of a rank that ends with TOOL_EXIT_RESULT: that is a finding, which rank 0 has printed. `prog` begins error
 * lines. */
int tool_fork_job(const char *prog, int nranks, size_t id_size, int grace_s,
                  int (*body)(const struct tool_rank *rank, void *arg), void *arg);

/* In a rank's process: hands rank 0's id to all, once. 0, or -1 when the parent or rank 0 is gone. */
int tool_share_id(const struct tool_rank *rank, void *id, size_t size);

#endif
