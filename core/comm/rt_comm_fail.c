/* SPDX-License-Identifier: Apache-2.0
 * A communicator's error. It depends on the bootstrap alone, so every part of the runtime can call it. */
#include <stdarg.h>
#include <stdio.h>

#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_error.h"

/* True for the first error. */
static bool record_failure(struct ncclComm *comm, rail_result_t result, const char *text) {
  pthread_mutex_lock(&comm->error_lock);
  bool first = atomic_load(&comm->failed) == 0;
  if (first) {
    snprintf(comm->error, sizeof comm->error, "%s", text);
    comm->failed_at = rt_error_moment();
    if (!atomic_load(&comm->revoked)) atomic_store(&comm->abort_flag, 1);
    atomic_store_explicit(&comm->failed, (int)result, memory_order_release);
  }
  pthread_mutex_unlock(&comm->error_lock);
  return first;
}

static void fail(struct ncclComm *comm, rail_result_t result, const char *text, bool logged) {
  char cause[sizeof comm->error];
  struct rt_bootstrap *bootstrap = __atomic_load_n(&comm->bootstrap, __ATOMIC_ACQUIRE);
  /* The error that the bootstrap has found or received comes first: this one may be its consequence, seen before
   * rt_comm_bootstrap_failed was called. */
  rail_result_t earlier = bootstrap ? rt_bootstrap_failure(bootstrap, cause, sizeof cause) : RAIL_OK;
  if (earlier != RAIL_OK) {
    record_failure(comm, earlier, cause);
    return;
  }
  if (!record_failure(comm, result, text)) return;
  if (!logged)
    RAIL_WARN("rank %d of %d: %s (%s)", comm->rank, comm->nranks, text, rail_result_name((int)result));
  if (bootstrap) rt_bootstrap_abort(bootstrap, result, text);
}

void rt_comm_fail(struct ncclComm *comm, rail_result_t result, const char *fmt, ...) {
  char text[sizeof comm->error];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  fail(comm, result, text, false);
}

void rt_comm_fail_logged(struct ncclComm *comm, rail_result_t result, const char *text) {
  fail(comm, result, text, true);
}

void rt_comm_fail_mismatch(struct ncclComm *comm, int peer, uint64_t got, uint64_t expected) {
  rt_comm_fail(comm, RAIL_BAD_USAGE,
               "rank %d got %llu bytes from rank %d where its own call expects %llu: the two ranks' calls differ in "
               "count, type or order",
               comm->rank, (unsigned long long)got, peer, (unsigned long long)expected);
}

void rt_comm_revoke(struct ncclComm *comm) {
  atomic_store(&comm->revoked, true);
  record_failure(comm, RAIL_BAD_USAGE, "revoked by its user (ncclCommRevoke or NCCL_SHRINK_ABORT)");
}

void rt_comm_bootstrap_failed(void *arg, rail_result_t result, const char *why) {
  record_failure(arg, result == RAIL_OK ? RAIL_REMOTE_ERROR : result, why);
}
