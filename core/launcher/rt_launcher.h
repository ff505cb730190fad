/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of railLaunchFromEnv and railUniqueIdFromEnv (rail/railyard.h), for tests.
 */
#ifndef RT_LAUNCHER_H
#define RT_LAUNCHER_H

#include "core/bootstrap/rt_bootstrap.h"
#include "core/launcher/rt_store.h"
#include "rail/railyard.h"

/* First host of a Slurm host list: "gpu[07-09,12],login" is "gpu07". False: not a host list, or too long. */
bool rt_launcher_first_host(const char *list, char *host, size_t cap);

/* Tasks on node number `node` in Slurm's "2(x3),1"; -1: not such a text, or no such node. */
int rt_launcher_tasks_of_node(const char *text, int node);

/* Distributes rank 0's id through the store; every key begins with `prefix`. Each rank writes a request with a random
 * nonce and accepts only an answer with that nonce, so values that an earlier job left behind are never used. Returns
 * when all ranks have the id and all keys are removed. */
rail_result_t rt_launcher_exchange(struct rt_store *s, const char *prefix, int rank, int nranks,
                                   char id[RT_UNIQUE_ID_BYTES], uint64_t timeout_ms);

#endif
