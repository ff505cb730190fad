/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files with public functions. */
#ifndef RT_API_H
#define RT_API_H

#include "core/comm/rt_comm.h"
#include "core/comm/rt_error.h"
#include "core/plan/rt_enqueue.h"

/* pncclX: the profiling name of every function. */
#define RT_PNAME(name) \
  extern __typeof__(nccl##name) pnccl##name __attribute__((alias("nccl" #name), visibility("default")))

/* ---- what a call checks first: rt_api_comm.c ------------------------------------ */

/* Is comm a communicator that can take a call: not failed, suspended, finalized or still being made? An error is logged
 * with the call's name. */
ncclResult_t rt_check_comm(const struct ncclComm *comm, const char *call);
/* Is comm a communicator in any state? For queries, and for ending it. */
ncclResult_t rt_check_handle(const struct ncclComm *comm, const char *call);
/* The same for queries of what is known once it is made. */
ncclResult_t rt_check_made(const struct ncclComm *comm, const char *call);

/* ---- groups: rt_group.c ----------------------------------------------------------
 *
 * The calls between a thread's ncclGroupStart and ncclGroupEnd are queued and run at the outermost end: first
 * communicators are made (each in a thread of its own, since that waits for the other ranks), then the tasks of every
 * communicator become one plan. A call outside of a group is a group of one. */

/* Adds a task to the thread's group; outside of one, launches it. */
ncclResult_t rt_group_add(struct rt_task *task);
/* Adds the making of a communicator, stored in *out when done. Takes the args over, also on failure. */
ncclResult_t rt_group_add_init(struct rt_init_args *args, ncclComm_t *out);
/* Returns `result`; inside a group the first error is kept, and the group's end returns it and drops all calls. */
ncclResult_t rt_group_note(ncclResult_t result);
/* Inside a group: its end returns ncclInProgress, since a thread makes a communicator that does not block. */
void rt_group_note_in_progress(void);
/* Before a call that ends the communicator or its connections: ncclInvalidUsage if this thread's open group has calls
 * of it. */
ncclResult_t rt_group_check_unused(const struct ncclComm *comm, const char *call);

/* ---- making a communicator: rt_api_comm.c, rt_config.c ----------------------------- */

/* rt_config.c. The caller's configuration, checked, or NCCL's defaults for NULL. */
ncclResult_t rt_config_take(const ncclConfig_t *config, ncclConfig_t *out);
/* RAIL_SIMD takes effect. Before the first lookup of a reduction, so where a communicator is made from an id. */
void rt_apply_simd(void);
/* Makes a communicator of any kind: now, at the group's end, or in a thread if the configuration is non-blocking. Takes
 * the args over, also on failure (rt_init_end). */
ncclResult_t rt_make_comm(struct rt_init_args *args, ncclComm_t *out);

#endif
