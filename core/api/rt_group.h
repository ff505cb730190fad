/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups: what a thread calls between ncclGroupStart and ncclGroupEnd is kept
 * and done together at the outermost end: first communicators are made (each in
 * a thread of its own, since making one waits for the other ranks), then every communicator's tasks
 * become one plan. A call outside of a group is a group of one.
 */
#ifndef RT_GROUP_H
#define RT_GROUP_H

#include "core/plan/rt_enqueue.h"

/* Passes a call's result on; inside a group an error is kept, and the group's end returns it and does nothing else. */
ncclResult_t rt_group_note(ncclResult_t result);
/* Adds n tasks of one communicator. */
ncclResult_t rt_group_add(const struct rt_task *tasks, int n);
/* Adds the making of a communicator, stored in *out when done. */
ncclResult_t rt_group_add_init(const struct rt_init_args *args, ncclComm_t *out);

#endif
