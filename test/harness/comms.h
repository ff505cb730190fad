/* SPDX-License-Identifier: Apache-2.0
 * Communicators in tests of the public API: opened, used once, closed; and calls that must succeed or be refused. */
#ifndef RAIL_TEST_COMMS_H
#define RAIL_TEST_COMMS_H

#include <stdint.h>
#include <string.h>

#include "kit/kit_ensure.h"
#include "rail/railyard.h"
#include "test/harness/ranks.h"

#define OK(call)                                                                                           \
  do {                                                                                                     \
    ncclResult_t ok_r_ = (call);                                                                           \
    ENSURE(ok_r_ == ncclSuccess, "%s: %s (%s)", #call, ncclGetErrorString(ok_r_), ncclGetLastError(NULL)); \
  } while (0)

/* The call fails with `result` and its text holds `word`. */
#define REFUSED(call, result, word)                                                                               \
  do {                                                                                                            \
    ncclResult_t rf_r_ = (call);                                                                                  \
    ENSURE(rf_r_ == (result), "%s is %d, expected %d", #call, (int)rf_r_, (int)(result));                         \
    ENSURE(strstr(ncclGetLastError(NULL), word), "%s: \"%s\" does not say \"%s\"", #call, ncclGetLastError(NULL), \
           word);                                                                                                 \
  } while (0)

__attribute__((unused)) static ncclConfig_t without_blocking(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

__attribute__((unused)) static ncclUniqueId make_id(const struct rank *rank, int slot) {
  ncclUniqueId id;
  if (rank->rank == 0) OK(ncclGetUniqueId(&id));
  rank_broadcast(rank, slot, &id, sizeof id);
  return id;
}

__attribute__((unused)) static ncclComm_t open_comm(const struct rank *rank) {
  ncclComm_t comm = NULL;
  OK(ncclCommInitRank(&comm, rank->nranks, make_id(rank, 0), rank->rank));
  return comm;
}

__attribute__((unused)) static void close_comm(ncclComm_t comm) {
  OK(ncclCommFinalize(comm));
  OK(ncclCommDestroy(comm));
}

__attribute__((unused)) static void check_place(ncclComm_t comm, int nranks, int rank) {
  int v = -1;
  OK(ncclCommCount(comm, &v));
  ENSURE_INT(v, nranks);
  OK(ncclCommUserRank(comm, &v));
  ENSURE_INT(v, rank);
}

/* An all-reduce whose result tells the members apart: the sum of 1 << world rank. */
__attribute__((unused)) static void check_members(ncclComm_t comm, int world_rank, int expected) {
  int32_t v[100], out[100];
  for (int i = 0; i < 100; i++) v[i] = 1 << world_rank;
  OK(ncclAllReduce(v, out, 100, ncclInt32, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  for (int i = 0; i < 100; i++) ENSURE(out[i] == expected, "members are %x, expected %x", out[i], expected);
}

#endif
