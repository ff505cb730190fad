/* SPDX-License-Identifier: Apache-2.0
 * Splitting: who belongs to which new communicator. */
#ifndef RT_SPLIT_H
#define RT_SPLIT_H

#include "core/comm/rt_comm.h"

/* Collective over args->parent. *ranks (to be freed) lists the parent's ranks that have this rank's color, in their
 * new order; *rank and *nranks are the new numbering, nranks 0 for a rank without a color. */
rail_result_t rt_split_vote(const struct rt_init_args *args, int **ranks, int *rank, int *nranks);

#endif
