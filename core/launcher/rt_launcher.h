/* SPDX-License-Identifier: Apache-2.0
 *
 * Behind railLaunchFromEnv and railUniqueIdFromEnv (rail/railyard.h): the
 * pieces that tests reach for.
 */
#ifndef RT_LAUNCHER_H
#define RT_LAUNCHER_H

#include "core/bootstrap/rt_bootstrap.h"
#include "core/launcher/rt_store.h"
#include "rail/railyard.h"

/* First host of a Slurm host list: "gpu[07-09,12],login" is "gpu07". False: not a host list, or too long. */
bool rt_launcher_first_host(const char *list, char *host, size_t cap);

/* Tasks of node number `node` by Slurm's "2(x3),1"; -1: not such a text, or no such node. */
int rt_launcher_tasks_of_node(const char *text, int node);

/* Hands rank 0's id to all through the store; every key begins with `prefix`. Each rank asks with a random word and
 * takes only an answer to it, so what an earlier job left behind is never mistaken for this one's. All leave when all
 * have the id, and leave nothing. */
rail_result_t rt_launcher_exchange(struct rt_store *s, const char *prefix, int rank, int nranks,
                                   char id[RT_UNIQUE_ID_BYTES], uint64_t timeout_ms);

#endif
