/* SPDX-License-Identifier: Apache-2.0
 * Proves: a call outside of a group, and the wait for it, allocate nothing when the communicator has had as large a
 * call before: over shared memory, and over the network with and without a proxy thread.
 */
#include <stdlib.h>

#include "common/base/compiler.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 30000

/* ---- the C library's, counted by thread: the runtime's library finds these ---- */

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);

static _Thread_local unsigned allocations;

RAIL_EXPORT void *malloc(size_t size) {
  allocations++;
  return __libc_malloc(size);
}

RAIL_EXPORT void *calloc(size_t n, size_t size) {
  allocations++;
  return __libc_calloc(n, size);
}

RAIL_EXPORT void *realloc(void *p, size_t size) {
  allocations++;
  return __libc_realloc(p, size);
}

/* ---- calls ---- */

/* The buffers of larger calls are registered with the plugin, which allocates handles. The largest is first: a small
 * call needs a plan only when other ranks are late. */
enum { MOST = 10000 };
static const size_t counts[] = {MOST, 1000, 2};

static void call(ncclComm_t comm, const struct rank *rank, size_t n) {
  static float in[MOST], out[MOST];
  for (size_t i = 0; i < n; i++) in[i] = (float)(i % 1000 + (size_t)rank->rank);
  OK(ncclAllReduce(in, out, n, ncclFloat, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  for (size_t i = 0; i < n; i++) ENSURE(out[i] == (float)(2 * (i % 1000) + 1), "element %zu is %g", i, (double)out[i]);
}

static void repeated(const struct rank *rank, void *arg) {
  (void)arg;
  enum { WARM_UP = 10, CALLS = 50 };
  ncclComm_t comm = NULL;
  const ncclUniqueId id = make_id(rank, 0);
  const unsigned without = allocations;
  OK(ncclCommInitRank(&comm, rank->nranks, id, rank->rank));
  ENSURE(allocations > without, "what the runtime allocates is not counted");
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
    for (int i = 0; i < WARM_UP; i++) call(comm, rank, counts[c]);
    const unsigned before = allocations;
    for (int i = 0; i < CALLS; i++) call(comm, rank, counts[c]);
    ENSURE(allocations == before, "%d calls of %zu elements allocate %u times", CALLS, counts[c], allocations - before);
  }
  close_comm(comm);
}
TEST(over_shared_memory) {
  job_run("", 2, kit_patience_ms(TIMEOUT_MS), repeated, NULL);
  job_run("RAIL_SMALL_MAX=0", 2, kit_patience_ms(TIMEOUT_MS), repeated, NULL);
}
TEST(over_the_network) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
  job_run("NCCL_SHM_DISABLE=1 RAIL_PROXY=inline", 2, kit_patience_ms(TIMEOUT_MS), repeated, NULL);
  job_run("NCCL_SHM_DISABLE=1 RAIL_PROXY=thread", 2, kit_patience_ms(TIMEOUT_MS), repeated, NULL);
}

TEST_MAIN(TEST_CASE(over_shared_memory), TEST_CASE(over_the_network))
