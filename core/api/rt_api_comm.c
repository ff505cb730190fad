/* SPDX-License-Identifier: Apache-2.0
 * Public calls that make, query and end communicators. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/thread.h"
#include "core/api/rt_api.h"
#include "core/comm/rt_param.h"
#include "core/host/rt_reduce.h"

/* ---- checks shared by all calls ------------------------------------------------- */

ncclResult_t rt_check_handle(const struct ncclComm *comm, const char *call) {
  if (!comm) return rt_error(RAIL_BAD_ARGUMENT, "%s: comm is NULL", call);
  if (comm->magic != RT_COMM_MAGIC)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: comm %p is not a communicator, or was destroyed", call, (const void *)comm);
  return ncclSuccess;
}

static ncclResult_t still_initializing(const char *call) {
  return rt_error(RAIL_BAD_USAGE, "%s: the communicator is still being made; poll ncclCommGetAsyncError first", call);
}

ncclResult_t rt_check_made(const struct ncclComm *comm, const char *call) {
  ncclResult_t r = rt_check_handle(comm, call);
  if (r != ncclSuccess) return r;
  r = (ncclResult_t)atomic_load(&comm->init_state);
  if (r == ncclInProgress) return still_initializing(call);
  if (r != ncclSuccess) rt_error_keep(comm->error);
  return r;
}

ncclResult_t rt_check_comm(const struct ncclComm *comm, const char *call) {
  ncclResult_t r = rt_check_handle(comm, call);
  if (r != ncclSuccess) return r;
  if (atomic_load(&comm->revoked))
    return rt_error(RAIL_BAD_USAGE, "%s: the communicator was revoked; split it, shrink it or destroy it", call);
  int failed = atomic_load(&comm->failed);
  if (failed) {
    rt_error_keep(comm->error);
    return (ncclResult_t)failed;
  }
  if (atomic_load(&comm->init_state) == ncclInProgress) return still_initializing(call);
  enum rt_comm_state state = atomic_load(&comm->state);
  if (state == RT_COMM_OPEN) return ncclSuccess;
  if (state == RT_COMM_SUSPENDED)
    return rt_error(RAIL_BAD_USAGE, "%s: the communicator is suspended; call ncclCommResume first", call);
  return rt_error(RAIL_BAD_USAGE, "%s: ncclCommFinalize was called on this communicator", call);
}

/* ---- library ------------------------------------------------------------------------ */

RAIL_EXPORT ncclResult_t ncclGetVersion(int *version) {
  if (!version) return rt_error(RAIL_BAD_ARGUMENT, "ncclGetVersion: version is NULL");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

RAIL_EXPORT const char *ncclGetErrorString(ncclResult_t result) {
  switch ((int)result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the Railyard developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "operation in progress";
    case ncclTimeout: return "operation timed out";
    default: return "unknown result code";
  }
}

RAIL_EXPORT const char *ncclGetLastError(ncclComm_t comm) {
  /* The cause is the communicator's, but for a call that was refused for another reason since. */
  if (comm && comm->magic == RT_COMM_MAGIC && rt_comm_failed(comm) && !rt_error_refused_since(comm->failed_at))
    return comm->error;
  return rt_error_text();
}

/* ---- making ---------------------------------------------------------------------------- */

RAIL_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId) {
  if (!uniqueId) return rt_error(RAIL_BAD_ARGUMENT, "ncclGetUniqueId: uniqueId is NULL");
  const unsigned errors = rt_error_count();
  rail_result_t r = rt_unique_id_create(uniqueId->internal);
  if (r != RAIL_OK && rt_error_count() == errors)
    rt_error_keep("ncclGetUniqueId: no rendezvous could be opened; the log says why");
  return (ncclResult_t)r;
}

void rt_apply_simd(void) {
  static const char *const words[] = {"auto", "base", "avx2", "avx512"}; /* of RAIL_SIMD's row */
  int64_t simd = rt_params()->simd;
  if (simd > 0 && !rt_reduce_force_simd(rt_simd_from_name(words[simd])))
    RAIL_WARN("RAIL_SIMD=%s: this processor or build lacks it; using %s", words[simd], rt_simd_name(rt_reduce_simd()));
}

static ncclResult_t check_ranks(const char *call, ncclComm_t *comm, int nranks, int rank) {
  if (!comm) return rt_error(RAIL_BAD_ARGUMENT, "%s: comm is NULL", call);
  if (nranks < 1) return rt_error(RAIL_BAD_ARGUMENT, "%s: nranks is %d; at least 1 is allowed", call, nranks);
  if (rank < 0 || rank >= nranks)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: rank is %d; allowed are 0 to %d", call, rank, nranks - 1);
  return ncclSuccess;
}

/* A non-blocking init: the communicator exists at once, a thread makes it. */
struct async_init {
  struct rt_init_args args;
  struct ncclComm *comm;
};

static void *async_init_thread(void *arg) {
  struct async_init *a = arg;
  rail_result_t r = rt_comm_init(a->comm, &a->args);
  if (r != RAIL_OK && rt_error_count())
    rt_comm_fail_logged(a->comm, r, rt_error_text());
  else if (r != RAIL_OK)
    rt_comm_fail(a->comm, r, "the communicator could not be made; earlier lines say why");
  atomic_store(&a->comm->init_state, (int)r);
  free(a);
  return NULL;
}

static ncclResult_t start_async(struct rt_init_args *args, ncclComm_t *out) {
  struct async_init *a = calloc(1, sizeof *a);
  struct ncclComm *comm = a ? rt_comm_alloc(args) : NULL;
  if (!comm) {
    free(a);
    rt_init_end(args);
    return rt_error(RAIL_SYSTEM_ERROR, "out of memory for a communicator");
  }
  rt_init_hold_parent(args);
  a->args = *args;
  a->comm = comm;
  atomic_store(&comm->init_state, ncclInProgress);
  int err = rail_thread_start("rail-init", async_init_thread, a, &comm->init_thread);
  if (err) {
    rt_init_end(args);
    free(a);
    rt_comm_free(comm);
    return rt_error(RAIL_SYSTEM_ERROR, "cannot start a thread: %s; raise the limit of threads", strerror(err));
  }
  comm->init_thread_running = true;
  *out = comm;
  rt_group_note_in_progress();
  return ncclInProgress;
}

ncclResult_t rt_make_comm(struct rt_init_args *args, ncclComm_t *out) {
  *out = NULL;
  /* A split without a color always blocks: *out is NULL already when it returns. */
  bool no_color = args->parent && args->color == NCCL_SPLIT_NOCOLOR;
  return args->config.blocking == 0 && !no_color ? start_async(args, out) : rt_group_add_init(args, out);
}

/* spare: an id whose rendezvous this rank started and no rank will use, or NULL. */
static ncclResult_t init_rank(const char *call, ncclComm_t *comm, int nranks, const ncclUniqueId *id, int rank,
                              int device, const ncclConfig_t *config, const ncclUniqueId *spare) {
  ncclResult_t r = check_ranks(call, comm, nranks, rank);
  struct rt_init_args args = {.rank = rank, .nranks = nranks, .device = device, .has_spare = spare != NULL};
  if (r == ncclSuccess) r = rt_config_take(config, &args.config);
  if (r != ncclSuccess) return r;
  rt_apply_simd();
  memcpy(args.id, id->internal, sizeof args.id);
  if (spare) memcpy(args.spare, spare->internal, sizeof args.spare);
  return rt_make_comm(&args, comm);
}

RAIL_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank) {
  return rt_group_note(init_rank("ncclCommInitRank", comm, nranks, &commId, rank, -1, NULL, NULL));
}

RAIL_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                                ncclConfig_t *config) {
  return rt_group_note(init_rank("ncclCommInitRankConfig", comm, nranks, &commId, rank, -1, config, NULL));
}

static ncclResult_t init_rank_of_ids(ncclComm_t *newcomm, int nranks, int myrank, int nId, const ncclUniqueId *commIds,
                                     const ncclConfig_t *config) {
  const char *call = "ncclCommInitRankScalable";
  ncclResult_t r = check_ranks(call, newcomm, nranks, myrank);
  if (r != ncclSuccess) return r;
  if (nId < 1 || nId > nranks || !commIds)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: %d ids at %p for %d ranks; allowed are 1 to one per rank", call, nId,
                    (const void *)commIds, nranks);
  const ncclUniqueId *spare = myrank > 0 && myrank < nId ? &commIds[myrank] : NULL;
  if (spare && memcmp(spare, &commIds[0], sizeof *spare) == 0) spare = NULL;
  return init_rank(call, newcomm, nranks, &commIds[0], myrank, -1, config, spare);
}

RAIL_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                                  ncclUniqueId *commIds, ncclConfig_t *config) {
  return rt_group_note(init_rank_of_ids(newcomm, nranks, myrank, nId, commIds, config));
}

static ncclResult_t init_all(ncclComm_t *comm, int ndev, const int *devlist) {
  if (!comm) return rt_error(RAIL_BAD_ARGUMENT, "ncclCommInitAll: comm is NULL");
  if (ndev < 1) return rt_error(RAIL_BAD_ARGUMENT, "ncclCommInitAll: ndev is %d; at least 1 is allowed", ndev);
  for (int i = 0; devlist && i < ndev; i++)
    if (devlist[i] < 0)
      return rt_error(RAIL_BAD_ARGUMENT, "ncclCommInitAll: devlist[%d] is %d; at least 0 is allowed", i, devlist[i]);
  ncclUniqueId id;
  ncclResult_t r = ncclGetUniqueId(&id);
  if (r != ncclSuccess) return r;
  ncclGroupStart();
  for (int i = 0; i < ndev && r == ncclSuccess; i++)
    r = rt_group_note(init_rank("ncclCommInitAll", &comm[i], ndev, &id, i, devlist ? devlist[i] : i, NULL, NULL));
  ncclResult_t end = ncclGroupEnd();
  return r == ncclSuccess ? end : r;
}

RAIL_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist) {
  return rt_group_note(init_all(comm, ndev, devlist));
}

/* ---- ending ------------------------------------------------------------------------------- */

static void join_init(struct ncclComm *comm) {
  if (!comm->init_thread_running) return;
  pthread_join(comm->init_thread, NULL);
  comm->init_thread_running = false;
}

/* Waits for no other rank, as NCCL's: each may finalize its communicators in an order of its own. */
static ncclResult_t finalize(struct ncclComm *comm) {
  join_init(comm);
  if (atomic_load(&comm->state) != RT_COMM_FINALIZED && comm->queue.comm) rt_queue_wait(&comm->queue);
  atomic_store(&comm->state, RT_COMM_FINALIZED);
  return (ncclResult_t)atomic_load(&comm->failed);
}

RAIL_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  ncclResult_t r = rt_check_comm(comm, "ncclCommFinalize");
  if (r == ncclSuccess) r = rt_group_check_unused(comm, "ncclCommFinalize");
  if (r != ncclSuccess) return r;
  atomic_fetch_add(&comm->users, 1);
  r = finalize(comm);
  if (r != ncclSuccess) rt_error_keep(comm->error);
  atomic_fetch_sub(&comm->users, 1);
  return r;
}

/* Calls of other threads, and communicators that are being made from this one, which use its bootstrap. */
static void wait_for_users(const struct ncclComm *comm) {
  while (atomic_load(&comm->users) > 0) sched_yield();
}

RAIL_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  ncclResult_t r = rt_check_handle(comm, "ncclCommDestroy");
  if (r == ncclSuccess) r = rt_group_check_unused(comm, "ncclCommDestroy");
  if (r != ncclSuccess) return r;
  if (atomic_exchange(&comm->ending, true))
    return rt_error(RAIL_BAD_ARGUMENT, "ncclCommDestroy: another thread is ending communicator %p", (void *)comm);
  const bool known = rt_comm_failed(comm);
  r = finalize(comm);
  wait_for_users(comm);
  if (r != ncclSuccess && !known) rt_error_keep(comm->error);
  rt_comm_free(comm);
  return known ? ncclSuccess : r;
}

/* Finalized, and no thread uses it: an abort has nothing to tell the other ranks. */
static bool at_rest(struct ncclComm *comm) {
  return atomic_load(&comm->state) == RT_COMM_FINALIZED && atomic_load(&comm->users) == 0 &&
         (!comm->queue.comm || rt_queue_idle(&comm->queue));
}

static void fail_for_abort(struct ncclComm *comm) {
  rt_comm_fail(comm, RAIL_REMOTE_ERROR, "aborted by its user (ncclCommAbort on rank %d)", comm->rank);
}

/* Another thread is in ncclCommDestroy or ncclCommAbort and will free the communicator, but not before this call is no
 * user any more. As any abort it returns when no operation uses the program's buffers. */
static void abort_beside(struct ncclComm *comm) {
  fail_for_abort(comm);
  while (atomic_load(&comm->init_state) == ncclInProgress) sched_yield();
  if (comm->queue.comm) rt_queue_wait(&comm->queue);
}

RAIL_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  ncclResult_t r = rt_check_handle(comm, "ncclCommAbort");
  if (r != ncclSuccess) return r;
  rt_group_note(rt_group_check_unused(comm, "ncclCommAbort")); /* the group is dropped, the abort goes on */
  atomic_fetch_add(&comm->users, 1);
  const bool beside = atomic_exchange(&comm->ending, true);
  if (beside) abort_beside(comm);
  atomic_fetch_sub(&comm->users, 1);
  if (beside) return ncclSuccess;
  if (!at_rest(comm)) fail_for_abort(comm);
  join_init(comm);
  wait_for_users(comm); /* they end soon, because the communicator has failed */
  rt_comm_free(comm);
  return ncclSuccess;
}

/* ---- queries -------------------------------------------------------------------------------- */

RAIL_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError) {
  ncclResult_t r = rt_check_handle(comm, "ncclCommGetAsyncError");
  if (r != ncclSuccess) return r;
  if (!asyncError) return rt_error(RAIL_BAD_ARGUMENT, "ncclCommGetAsyncError: asyncError is NULL");
  if (atomic_load(&comm->revoked)) {
    *asyncError = rt_queue_idle(&comm->queue) ? ncclSuccess : ncclInProgress;
    return ncclSuccess;
  }
  int failed = atomic_load(&comm->failed);
  *asyncError = (ncclResult_t)(failed ? failed : atomic_load(&comm->init_state));
  return ncclSuccess;
}

static ncclResult_t query(const struct ncclComm *comm, const char *call, size_t offset, int *out) {
  ncclResult_t r = rt_check_made(comm, call);
  if (r != ncclSuccess) return r;
  if (!out) return rt_error(RAIL_BAD_ARGUMENT, "%s: the result's pointer is NULL", call);
  memcpy(out, (const char *)comm + offset, sizeof *out);
  return ncclSuccess;
}

RAIL_EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
  return query(comm, "ncclCommCount", offsetof(struct ncclComm, nranks), count);
}

RAIL_EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
  return query(comm, "ncclCommCuDevice", offsetof(struct ncclComm, device), device);
}

RAIL_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
  return query(comm, "ncclCommUserRank", offsetof(struct ncclComm, rank), rank);
}

RT_PNAME(GetVersion);
RT_PNAME(GetErrorString);
RT_PNAME(GetLastError);
RT_PNAME(GetUniqueId);
RT_PNAME(CommInitRank);
RT_PNAME(CommInitRankConfig);
RT_PNAME(CommInitRankScalable);
RT_PNAME(CommInitAll);
RT_PNAME(CommFinalize);
RT_PNAME(CommDestroy);
RT_PNAME(CommAbort);
RT_PNAME(CommGetAsyncError);
RT_PNAME(CommCount);
RT_PNAME(CommCuDevice);
RT_PNAME(CommUserRank);
