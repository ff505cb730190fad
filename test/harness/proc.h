/* SPDX-License-Identifier: Apache-2.0
 * Forked children of a test, with a pipe each way. A child that fails an
 * ENSURE prints it and exits 1; a child dies with its parent. */
#ifndef RAIL_TEST_PROC_H
#define RAIL_TEST_PROC_H

#include <sys/types.h>

#include "kit/kit_ensure.h"

struct pipes { int in, out; }; /* one process's ends */
struct proc { pid_t pid; struct pipes io; };

/* Fork before opening a plugin: no contract covers a forked copy of a plugin in use. */
struct proc proc_start(void (*fn)(struct pipes *io, void *arg), void *arg);
void proc_join(struct proc *p);  /* fails unless it exits 0 within the deadline */

void pipe_write(struct pipes *io, const void *data, size_t size);
void pipe_read(struct pipes *io, void *data, size_t size); /* fails at the end of the stream or a deadline */

#endif
