/* SPDX-License-Identifier: Apache-2.0
 *
 * From the command line to this process' place in the job: ranks forked here, a
 * launcher's ranks, or one process alone.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/rail-coll/coll.h"

#define GRACE_S 10 /* for the ranks that are left to notice that one failed */

/* The rendezvous lives in the process that makes the id. */
static int make_id(ncclUniqueId *id) {
  ncclResult_t result = ncclGetUniqueId(id);
  if (result == ncclSuccess) return 0;
  fprintf(stderr, RC_NAME ": rank 0: ncclGetUniqueId: %s: %s\n", ncclGetErrorString(result), ncclGetLastError(NULL));
  return -1;
}

/* Before there are ranks: the others would wait for the one that finds out. An id of an address opens nothing. */
static bool comm_id_is_valid(void) {
  ncclUniqueId id;
  const char *address = getenv("NCCL_COMM_ID");
  return !address || !*address || make_id(&id) == 0;
}

static int id_alone(void *arg, ncclUniqueId *id) {
  (void)arg;
  return make_id(id);
}

static int id_from_parent(void *arg, ncclUniqueId *id) {
  const struct tool_rank *rank = arg;
  if (rank->rank == 0 && make_id(id) != 0) return -1;
  if (tool_share_id(rank, id, sizeof *id) == 0) return 0;
  fprintf(stderr, RC_NAME ": rank %d got no unique id: rank 0 or the parent is gone\n", rank->rank);
  return -1;
}

static int id_from_launcher(void *arg, ncclUniqueId *id) {
  const railLaunch_t *launch = arg;
  ncclResult_t result = railUniqueIdFromEnv(launch, id);
  if (result == ncclSuccess) return 0;
  fprintf(stderr, RC_NAME ": rank %d of %d (%s): no unique id: %s: %s\n", launch->rank, launch->nranks, launch->source,
          ncclGetErrorString(result), ncclGetLastError(NULL));
  return -1;
}

static int forked_rank(const struct tool_rank *rank, void *arg) {
  struct tool_rank self = *rank;
  struct rc_place place = {.process = rank->rank, .nprocesses = rank->nranks, .local_processes = rank->nranks,
                           .source = "forked here"};
  return rc_run(arg, &place, id_from_parent, &self);
}

/* The ranks talk by an all-gather (rc_exchange), which an NCCL_ALGO that is about another collective may exclude: it
 * takes the ring wherever NCCL_ALGO is set. */
static void allow_exchange(const struct rc_options *o) {
  char text[1024];
  const char *algo = getenv("NCCL_ALGO");
  if (!algo || !*algo || strcmp(o->collective->name, "all_gather") == 0) return;
  if ((size_t)snprintf(text, sizeof text, "%s;allgather:ring", algo) < sizeof text) setenv("NCCL_ALGO", text, 1);
}

int main(int argc, char **argv) {
  struct rc_options o;
  int parsed = rc_options_parse(argc, argv, &o);
  if (parsed != 0) return parsed > 0 ? tool_exit_printed(RC_NAME) : TOOL_EXIT_USAGE;
  if (o.plugin && rc_plugin_check(o.plugin) != 0) return TOOL_EXIT_FAILED;
  allow_exchange(&o);
  if (o.local_ranks > 0 && !comm_id_is_valid()) return TOOL_EXIT_FAILED;
  if (o.local_ranks > 0)
    return tool_fork_job(RC_NAME, o.local_ranks, sizeof(ncclUniqueId), GRACE_S, forked_rank, &o);

  railLaunch_t launch = {0};
  ncclResult_t launched = railLaunchFromEnv(&launch);
  if (launched == ncclSuccess) {
    struct rc_place place = {.process = launch.rank, .nprocesses = launch.nranks, .source = launch.source,
                             .local_processes = launch.localSize > 0 ? launch.localSize : 1};
    return rc_run(&o, &place, id_from_launcher, &launch);
  }
  if (launched != ncclInvalidUsage) { /* not the result of "no launcher" */
    fprintf(stderr, RC_NAME ": %s\n", ncclGetLastError(NULL));
    return TOOL_EXIT_FAILED;
  }
  struct rc_place place = {.process = 0, .nprocesses = 1, .local_processes = 1, .source = "one process"};
  return rc_run(&o, &place, id_alone, NULL);
}
