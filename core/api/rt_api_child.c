/* SPDX-License-Identifier: Apache-2.0
 * Public calls that make communicators from others: split, shrink and grow; and revoke, which prepares a parent for the
 * first two. */
#include <stdlib.h>
#include <string.h>

#include "core/api/rt_api.h"
#include "core/comm/rt_param.h"

/* Others can be made from a usable communicator, or from a revoked one without unfinished operations. */
static ncclResult_t check_parent(struct ncclComm *comm, const char *call) {
  if (!comm || comm->magic != RT_COMM_MAGIC || !atomic_load(&comm->revoked)) return rt_check_comm(comm, call);
  if (rt_queue_settle(&comm->queue)) return ncclSuccess;
  return rt_error(RAIL_BAD_USAGE,
                  "%s: the revoked communicator has unfinished operations; poll ncclCommGetAsyncError first", call);
}

static ncclResult_t check_new_comm(const char *call, ncclComm_t *newcomm, const ncclConfig_t *config,
                                 struct rt_init_args *args) {
  if (!newcomm) return rt_error(RAIL_BAD_ARGUMENT, "%s: newcomm is NULL", call);
  return rt_config_take(config, &args->config);
}

/* A child has its parent's device, and without a config of its own the parent's. */
static void inherit(struct ncclComm *comm, const ncclConfig_t *config, struct rt_init_args *args) {
  args->parent = comm;
  args->device = comm->device;
  if (config) return;
  args->config = comm->config;
  if (comm->requested_net[0]) args->config.netName = comm->requested_net;
  if (comm->name[0]) args->config.commName = comm->name;
}

/* ---- split ------------------------------------------------------------------------------- */

static ncclResult_t split(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, const ncclConfig_t *config) {
  struct rt_init_args args = {0};
  ncclResult_t r = check_parent(comm, "ncclCommSplit");
  if (r == ncclSuccess) r = check_new_comm("ncclCommSplit", newcomm, config, &args);
  if (r != ncclSuccess) return r;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclCommSplit: color is %d; allowed are NCCL_SPLIT_NOCOLOR and 0 or more",
                    color);
  inherit(comm, config, &args);
  args.color = color;
  args.key = key;
  args.serial = comm->children++;
  return rt_make_comm(&args, newcomm);
}

RAIL_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config) {
  return rt_group_note(split(comm, color, key, newcomm, config));
}

/* ---- shrink ------------------------------------------------------------------------------ */

static ncclResult_t revoke(struct ncclComm *comm, const char *call);

/* Fills survivors, in the parent's order, and this rank's new number; `survivors` has room for all. */
static ncclResult_t list_survivors(const struct ncclComm *comm, const int *excluded, int n, int *survivors,
                              struct rt_init_args *args) {
  for (int r = 0; r < comm->nranks; r++) survivors[r] = r;
  for (int i = 0; i < n; i++) {
    int r = excluded[i];
    if (r < 0 || r >= comm->nranks)
      return rt_error(RAIL_BAD_ARGUMENT, "ncclCommShrink: excludeRanksList[%d] is %d; allowed are 0 to %d", i, r,
                      comm->nranks - 1);
    if (r == comm->rank)
      return rt_error(RAIL_BAD_ARGUMENT,
                      "ncclCommShrink: excludeRanksList[%d] is this rank (%d); an excluded rank makes no such call", i,
                      r);
    survivors[r] = -1;
  }
  for (int r = 0; r < comm->nranks; r++) {
    if (survivors[r] < 0) continue;
    if (r == comm->rank) args->rank = args->nranks;
    survivors[args->nranks++] = r;
  }
  args->survivors = survivors;
  return ncclSuccess;
}

static ncclResult_t check_shrink(const struct ncclComm *comm, const int *excluded, int n, int flags) {
  ncclResult_t r = rt_check_handle(comm, "ncclCommShrink");
  if (r != ncclSuccess) return r;
  if (!excluded || n < 1)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclCommShrink: %d ranks at %p are excluded; at least one is needed", n,
                    (const void *)excluded);
  if (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclCommShrink: shrinkFlags is %#x; allowed are %#x and %#x", (unsigned)flags,
                    NCCL_SHRINK_DEFAULT, NCCL_SHRINK_ABORT);
  return ncclSuccess;
}

static ncclResult_t shrink(ncclComm_t comm, const int *excluded, int n, ncclComm_t *newcomm,
                           const ncclConfig_t *config, int flags) {
  struct rt_init_args args = {0};
  ncclResult_t r = check_shrink(comm, excluded, n, flags);
  if (r != ncclSuccess) return r;
  int *survivors = calloc((size_t)comm->nranks, sizeof *survivors);
  if (!survivors) return rt_error(RAIL_SYSTEM_ERROR, "ncclCommShrink: out of memory");
  r = list_survivors(comm, excluded, n, survivors, &args);
  /* Checked before the revoke: a wrong call has no effect. */
  if (r == ncclSuccess) r = check_new_comm("ncclCommShrink", newcomm, config, &args);
  if (r == ncclSuccess && (flags & NCCL_SHRINK_ABORT)) r = revoke(comm, "ncclCommShrink");
  if (r == ncclSuccess) r = check_parent(comm, "ncclCommShrink");
  if (r == ncclSuccess) {
    inherit(comm, config, &args);
    r = rt_make_comm(&args, newcomm);
  }
  free(survivors);
  return r;
}

RAIL_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                                        ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags) {
  return rt_group_note(shrink(comm, excludeRanksList, excludeRanksCount, newcomm, config, shrinkFlags));
}

/* ---- grow -------------------------------------------------------------------------------- */

static ncclResult_t make_grow_id(struct ncclComm *comm, const char *call, ncclUniqueId *id) {
  if (comm->has_grow_id && rt_unique_id_waits(comm->grow_id))
    return rt_error(RAIL_BAD_USAGE, "%s: this communicator's last id waits for its ncclCommGrow; it has one at a time",
                    call);
  if (rt_params()->comm_id)
    return rt_error(RAIL_BAD_USAGE, "%s: NCCL_COMM_ID=%s is one address for all communicators; unset it to grow", call,
                    rt_params()->comm_id);
  ncclResult_t r = (ncclResult_t)rt_unique_id_create(id->internal);
  if (r != ncclSuccess) return r;
  comm->has_grow_id = true;
  memcpy(comm->grow_id, id->internal, sizeof comm->grow_id);
  return ncclSuccess;
}

RAIL_EXPORT ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId) {
  const char *call = "ncclCommGetUniqueId";
  ncclResult_t r = rt_check_comm(comm, call);
  if (r != ncclSuccess) return r;
  if (!uniqueId) return rt_error(RAIL_BAD_ARGUMENT, "%s: uniqueId is NULL", call);
  atomic_fetch_add(&comm->users, 1);
  r = make_grow_id(comm, call, uniqueId);
  atomic_fetch_sub(&comm->users, 1);
  return r;
}

/* A rank of the parent. It may leave the id away where it made it: only ranks of the parent know each other. */
static ncclResult_t grow_from(struct ncclComm *comm, int nranks, const ncclUniqueId *id, int rank,
                              struct rt_init_args *args) {
  ncclResult_t r = rt_check_handle(comm, "ncclCommGrow");
  if (r != ncclSuccess) return r;
  r = rt_check_comm(comm, "ncclCommGrow");
  if (r != ncclSuccess) {
    if (rt_comm_failed(comm)) rt_comm_drop_id(comm); /* it will never grow: the new ranks need not wait */
    return r;
  }
  if (nranks <= comm->nranks)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclCommGrow: nRanks is %d; more than the communicator's %d are allowed",
                    nranks, comm->nranks);
  if (rank != -1)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclCommGrow: rank is %d; a rank of comm keeps its number and passes -1", rank);
  if (id && (!comm->has_grow_id || memcmp(id->internal, comm->grow_id, sizeof comm->grow_id) != 0))
    return rt_error(RAIL_BAD_ARGUMENT, "ncclCommGrow: uniqueId is not this rank's from ncclCommGetUniqueId; the other "
                    "ranks of comm pass NULL");
  args->rank = comm->rank;
  args->has_id = comm->has_grow_id;
  memcpy(args->id, comm->grow_id, sizeof args->id);
  return ncclSuccess;
}

static ncclResult_t grow_into(int nranks, const ncclUniqueId *id, int rank, struct rt_init_args *args) {
  if (!id) return rt_error(RAIL_BAD_ARGUMENT, "ncclCommGrow: uniqueId is NULL; a new rank needs it");
  if (rank < 1 || rank >= nranks)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclCommGrow: rank is %d; a new rank is one from the old size to %d", rank,
                    nranks - 1);
  args->rank = rank;
  args->device = -1;
  memcpy(args->id, id->internal, sizeof args->id);
  return ncclSuccess;
}

static ncclResult_t grow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                         const ncclConfig_t *config) {
  struct rt_init_args args = {.nranks = nranks};
  ncclResult_t r = check_new_comm("ncclCommGrow", newcomm, config, &args);
  if (r != ncclSuccess) return r;
  r = comm ? grow_from(comm, nranks, id, rank, &args) : grow_into(nranks, id, rank, &args);
  if (r != ncclSuccess) return r;
  if (!comm) {
    rt_apply_simd();
    return rt_make_comm(&args, newcomm);
  }
  inherit(comm, config, &args);
  args.grow = true;
  args.serial = comm->children++;
  comm->has_grow_id = false;
  return rt_make_comm(&args, newcomm);
}

RAIL_EXPORT ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
                                      ncclComm_t *newcomm, ncclConfig_t *config) {
  return rt_group_note(grow(comm, nRanks, uniqueId, rank, newcomm, config));
}

/* ---- revoke ------------------------------------------------------------------------------ */

/* Returns when no operation is unfinished. May be called again. */
static ncclResult_t revoke(struct ncclComm *comm, const char *call) {
  ncclResult_t r = rt_check_handle(comm, call);
  if (r != ncclSuccess) return r;
  bool finalized = atomic_load(&comm->state) == RT_COMM_FINALIZED;
  if (atomic_load(&comm->init_state) != ncclSuccess || finalized)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: the communicator %s; nothing can be revoked", call,
                    finalized ? "was finalized" : "is not made");
  atomic_fetch_add(&comm->users, 1);
  rt_comm_revoke(comm);
  rt_queue_wait(&comm->queue);
  atomic_fetch_sub(&comm->users, 1);
  return ncclSuccess;
}

RAIL_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  if (!comm) return ncclSuccess;
  ncclResult_t r = rt_check_handle(comm, "ncclCommRevoke");
  if (r != ncclSuccess) return r;
  if (revokeFlags != NCCL_REVOKE_DEFAULT)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclCommRevoke: revokeFlags is %#x; allowed is NCCL_REVOKE_DEFAULT (0)",
                    (unsigned)revokeFlags);
  if (atomic_load(&comm->revoked))
    return rt_error(RAIL_BAD_ARGUMENT, "ncclCommRevoke: the communicator was revoked before");
  return revoke(comm, "ncclCommRevoke");
}

RT_PNAME(CommSplit);
RT_PNAME(CommShrink);
RT_PNAME(CommRevoke);
RT_PNAME(CommGetUniqueId);
RT_PNAME(CommGrow);
