/* SPDX-License-Identifier: Apache-2.0
 * A communicator that is made from another one, its parent: how long that is kept, which of its ranks belong to the new
 * one (split), and which unique id all use (grow). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/comm/rt_comm.h"
#include "core/comm/rt_error.h"

/* ---- the parent, and ids, are held until they are not needed ---------------------- */

void rt_init_hold_parent(struct rt_init_args *args) {
  if (!args->parent) return;
  atomic_fetch_add(&args->parent->users, 1);
  args->parent_held = true;
}

void rt_init_release_parent(struct rt_init_args *args) {
  if (args->parent_held) atomic_fetch_sub(&args->parent->users, 1);
  args->parent_held = false;
  args->parent = NULL;
}

static void cancel_id(const char id[RT_UNIQUE_ID_BYTES], int rank) {
  char why[200];
  snprintf(why, sizeof why,
           "rank %d, which made the unique id for ncclCommGrow, will not come: its call failed, or its communicator "
           "has ended; get another id",
           rank);
  rt_unique_id_cancel(id, why);
}

void rt_init_end(struct rt_init_args *args) {
  rt_init_release_parent(args);
  if (args->has_id) cancel_id(args->id, args->rank);
  args->has_id = false;
  if (args->has_spare) rt_unique_id_drop(args->spare);
  args->has_spare = false;
}

void rt_comm_drop_id(struct ncclComm *comm) {
  if (comm->has_grow_id) cancel_id(comm->grow_id, comm->rank);
  comm->has_grow_id = false;
}

/* ---- what the ranks of a parent tell each other ----------------------------------- */

/* As rt_bootstrap_gather_for_child; an error names what ended the parent. */
static rail_result_t gather_in_parent(const struct ncclComm *comm, const struct rt_init_args *args, void *all,
                                      size_t each) {
  const struct ncclComm *parent = args->parent;
  const struct rt_bootstrap_child child = {.call = args->grow ? "ncclCommGrow" : "ncclCommSplit",
                                           .serial = args->serial, .abort_flag = &comm->abort_flag};
  rail_result_t r = rt_bootstrap_gather_for_child(parent->bootstrap, &child, all, each);
  char why[sizeof parent->error];
  if (r != RAIL_OK && rt_bootstrap_failure(parent->bootstrap, why, sizeof why) != RAIL_OK)
    rt_error(r, "the communicator from which this one was to be made has failed: %s", why);
  return r;
}

/* ---- split: which ranks belong to the new communicator ---------------------------- */

struct color_key { int32_t color, key, rank, pad; };

static int by_key(const void *a, const void *b) {
  const struct color_key *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->rank < y->rank ? -1 : x->rank > y->rank;
}

rail_result_t rt_comm_exchange_colors(struct ncclComm *comm, const struct rt_init_args *args, int **ranks) {
  struct ncclComm *parent = args->parent;
  struct color_key *all = calloc((size_t)parent->nranks, sizeof *all);
  *ranks = calloc((size_t)parent->nranks, sizeof **ranks);
  comm->rank = comm->nranks = 0;
  rail_result_t r = all && *ranks ? RAIL_OK : RAIL_SYSTEM_ERROR;
  if (r == RAIL_OK) {
    all[parent->rank] = (struct color_key){.color = args->color, .key = args->key, .rank = parent->rank};
    r = gather_in_parent(comm, args, all, sizeof *all);
  }
  if (r == RAIL_OK && args->color != NCCL_SPLIT_NOCOLOR) {
    int n = 0;
    for (int i = 0; i < parent->nranks; i++)
      if (all[i].color == args->color) all[n++] = all[i];
    qsort(all, (size_t)n, sizeof *all, by_key);
    for (int i = 0; i < n; i++) {
      (*ranks)[i] = all[i].rank;
      if (all[i].rank == parent->rank) comm->rank = i;
    }
    comm->nranks = n;
  }
  free(all);
  return r;
}

/* ---- grow: the ranks of the parent learn the id ----------------------------------- */

/* Of each rank of the parent. */
struct grow_record {
  int32_t nranks, has_id;
  char id[RT_UNIQUE_ID_BYTES];
};

static rail_result_t choose_grow_id(const struct rt_init_args *args, const struct grow_record *all, char *id) {
  const struct ncclComm *parent = args->parent;
  int made_by = -1;
  for (int r = 0; r < parent->nranks; r++) {
    if (all[r].nranks != args->nranks) {
      rt_error(RAIL_BAD_USAGE,
               "ncclCommGrow: nRanks is %d on rank %d and %d on rank %d; it must be the same on all ranks",
               args->nranks, parent->rank, all[r].nranks, r);
      return RAIL_BAD_USAGE;
    }
    if (!all[r].has_id) continue;
    if (made_by >= 0) {
      rt_error(RAIL_BAD_USAGE,
               "ncclCommGrow: ranks %d and %d have both made an id (ncclCommGetUniqueId); one rank does", made_by, r);
      return RAIL_BAD_USAGE;
    }
    made_by = r;
  }
  if (made_by < 0) {
    rt_error(RAIL_BAD_USAGE, "ncclCommGrow: no rank of the communicator has made an id; one calls ncclCommGetUniqueId "
                             "first");
    return RAIL_BAD_USAGE;
  }
  memcpy(id, all[made_by].id, RT_UNIQUE_ID_BYTES);
  return RAIL_OK;
}

rail_result_t rt_comm_exchange_grow_id(const struct ncclComm *comm, const struct rt_init_args *args,
                                       char id[RT_UNIQUE_ID_BYTES]) {
  const struct ncclComm *parent = args->parent;
  struct grow_record *all = calloc((size_t)parent->nranks, sizeof *all);
  if (!all) return RAIL_SYSTEM_ERROR;
  struct grow_record *mine = &all[parent->rank];
  mine->nranks = args->nranks;
  mine->has_id = args->has_id;
  if (args->has_id) memcpy(mine->id, args->id, sizeof mine->id);
  rail_result_t r = gather_in_parent(comm, args, all, sizeof *all);
  if (r == RAIL_OK) r = choose_grow_id(args, all, id);
  free(all);
  return r;
}
