/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan tsan
 *
 * Proves: every wrong call of the API is refused with an error and a text that names the argument; allocated and
 * registered memory, operators, and every way to end a communicator do what NCCL promises.
 */
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "test/harness/comms.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 30000

/* ---- wrong calls ---- */

static void wrong_makers(const struct rank *rank, void *arg) {
  (void)arg;
  ncclUniqueId id = make_id(rank, 0);
  ncclComm_t comm = NULL;
  const int devices[2] = {0, -1};
  REFUSED(ncclGetVersion(NULL), ncclInvalidArgument, "version");
  REFUSED(ncclGetUniqueId(NULL), ncclInvalidArgument, "uniqueId");
  REFUSED(ncclCommInitRank(NULL, 1, id, 0), ncclInvalidArgument, "comm");
  REFUSED(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument, "nranks");
  REFUSED(ncclCommInitRank(&comm, -4, id, 0), ncclInvalidArgument, "-4");
  REFUSED(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument, "rank is 2");
  REFUSED(ncclCommInitRank(&comm, 2, id, -1), ncclInvalidArgument, "rank is -1");
  REFUSED(ncclCommInitAll(NULL, 1, NULL), ncclInvalidArgument, "comm");
  REFUSED(ncclCommInitAll(&comm, 0, NULL), ncclInvalidArgument, "ndev");
  REFUSED(ncclCommInitAll(&comm, 2, devices), ncclInvalidArgument, "devlist[1]");
  memset(&id, 0x77, sizeof id);
  ncclResult_t r = ncclCommInitRank(&comm, 1, id, 0);
  ENSURE(r == ncclInvalidArgument, "an id of rubbish gives %d", r);
  ENSURE(comm == NULL, "a failed init stored a communicator");
}
TEST(wrong_makers_are_refused) { job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), wrong_makers, NULL); }

static void wrong_calls(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank), c = comm;
  float a[64] = {0}, b[64] = {0}, factor = 2;
  int v;
  void *p = NULL;
  ncclRedOp_t op;
  const ncclDataType_t bad = (ncclDataType_t)ncclNumTypes, F = ncclFloat;
  REFUSED(ncclAllReduce(a, b, 4, F, ncclSum, NULL, NULL), ncclInvalidArgument, "comm");
  REFUSED(ncclAllReduce(NULL, b, 4, F, ncclSum, c, NULL), ncclInvalidArgument, "sendbuff");
  REFUSED(ncclAllReduce(a, NULL, 4, F, ncclSum, c, NULL), ncclInvalidArgument, "recvbuff");
  REFUSED(ncclAllReduce(a, b, 4, bad, ncclSum, c, NULL), ncclInvalidArgument, "datatype");
  REFUSED(ncclAllReduce(a, b, 4, (ncclDataType_t)-1, ncclSum, c, NULL), ncclInvalidArgument, "datatype");
  REFUSED(ncclAllReduce(a, b, 4, F, (ncclRedOp_t)99, c, NULL), ncclInvalidArgument, "op is 99");
  REFUSED(ncclAllReduce(a, b, 4, F, (ncclRedOp_t)-1, c, NULL), ncclInvalidArgument, "op is");
  REFUSED(ncclAllReduce(a, b, SIZE_MAX / 2, F, ncclSum, c, NULL), ncclInvalidArgument, "count");
  REFUSED(ncclReduceScatter(a, b, SIZE_MAX / 4, F, ncclSum, c, NULL), ncclInvalidArgument, "count");
  REFUSED(ncclReduceScatter(NULL, b, 1, F, ncclSum, c, NULL), ncclInvalidArgument, "sendbuff");
  REFUSED(ncclReduceScatter(a, b, 1, F, (ncclRedOp_t)5, c, NULL), ncclInvalidArgument, "op is 5");
  REFUSED(ncclAllGather(a, NULL, 1, F, c, NULL), ncclInvalidArgument, "recvbuff");
  REFUSED(ncclAllGather(a, b, 1, bad, c, NULL), ncclInvalidArgument, "datatype");
  REFUSED(ncclBroadcast(a, b, 4, F, 1, c, NULL), ncclInvalidArgument, "root is");
  REFUSED(ncclBroadcast(a, b, 4, F, -1, c, NULL), ncclInvalidArgument, "root is");
  REFUSED(ncclBcast(NULL, 4, F, 0, c, NULL), ncclInvalidArgument, "buff");
  REFUSED(ncclReduce(a, b, 4, F, ncclSum, 7, c, NULL), ncclInvalidArgument, "root is");
  REFUSED(ncclReduce(a, NULL, 4, F, ncclSum, 0, c, NULL), ncclInvalidArgument, "recvbuff");
  REFUSED(ncclSend(a, 4, F, 1, c, NULL), ncclInvalidArgument, "peer");
  REFUSED(ncclSend(a, 4, F, -1, c, NULL), ncclInvalidArgument, "peer");
  REFUSED(ncclSend(NULL, 4, F, 0, c, NULL), ncclInvalidArgument, "sendbuff");
  REFUSED(ncclRecv(NULL, 4, F, 0, c, NULL), ncclInvalidArgument, "recvbuff");
  REFUSED(ncclRecv(a, 4, F, 1, c, NULL), ncclInvalidArgument, "peer");
  REFUSED(ncclAlltoAll(NULL, b, 4, F, c, NULL), ncclInvalidArgument, "sendbuff");
  REFUSED(ncclGather(a, NULL, 4, F, 0, c, NULL), ncclInvalidArgument, "recvbuff");
  REFUSED(ncclGather(a, b, 4, F, -1, c, NULL), ncclInvalidArgument, "root is");
  REFUSED(ncclScatter(NULL, b, 4, F, 0, c, NULL), ncclInvalidArgument, "sendbuff");
  REFUSED(ncclScatter(a, b, 4, F, 3, c, NULL), ncclInvalidArgument, "root is");
  REFUSED(ncclCommCount(NULL, &v), ncclInvalidArgument, "comm");
  REFUSED(ncclCommCount(c, NULL), ncclInvalidArgument, "ncclCommCount");
  REFUSED(ncclCommUserRank(c, NULL), ncclInvalidArgument, "ncclCommUserRank");
  REFUSED(ncclCommCuDevice(c, NULL), ncclInvalidArgument, "ncclCommCuDevice");
  REFUSED(ncclCommGetAsyncError(c, NULL), ncclInvalidArgument, "asyncError");
  REFUSED(ncclCommFinalize(NULL), ncclInvalidArgument, "comm");
  REFUSED(ncclCommSplit(c, 0, 0, NULL, NULL), ncclInvalidArgument, "newcomm");
  REFUSED(ncclCommSplit(c, -5, 0, &c, NULL), ncclInvalidArgument, "color is -5");
  REFUSED(ncclCommSplit(NULL, 0, 0, &c, NULL), ncclInvalidArgument, "comm");
  REFUSED(ncclMemAlloc(NULL, 5), ncclInvalidArgument, "ptr");
  REFUSED(ncclMemAlloc(&p, SIZE_MAX), ncclInvalidArgument, "size");
  REFUSED(ncclCommRegister(c, NULL, 4, &p), ncclInvalidArgument, "buff");
  REFUSED(ncclCommRegister(c, a, 0, &p), ncclInvalidArgument, "size");
  REFUSED(ncclCommRegister(c, a, 4, NULL), ncclInvalidArgument, "handle");
  REFUSED(ncclCommDeregister(c, a), ncclInvalidArgument, "registration");
  REFUSED(ncclRedOpCreatePreMulSum(NULL, &factor, F, ncclScalarDevice, c), ncclInvalidArgument, "op");
  REFUSED(ncclRedOpCreatePreMulSum(&op, NULL, F, ncclScalarDevice, c), ncclInvalidArgument, "scalar");
  REFUSED(ncclRedOpCreatePreMulSum(&op, &factor, bad, ncclScalarDevice, c), ncclInvalidArgument, "datatype");
  REFUSED(ncclRedOpCreatePreMulSum(&op, &factor, F, (ncclScalarResidence_t)2, c), ncclInvalidArgument, "residence");
  REFUSED(ncclRedOpDestroy(ncclSum, c), ncclInvalidArgument, "op 0");
  REFUSED(railCommWait(NULL), ncclInvalidArgument, "comm");
  REFUSED(railCommQuery(c, NULL), ncclInvalidArgument, "done");
  OK(ncclAllReduce(NULL, NULL, 0, F, ncclSum, c, NULL)); /* nothing from nowhere is fine */
  static uint64_t not_a_comm[600];
  REFUSED(ncclCommCount((ncclComm_t)(void *)not_a_comm, &v), ncclInvalidArgument, "not a communicator");
  check_members(comm, 0, 1); /* none of this broke it */
  close_comm(comm);
}
TEST(wrong_calls_are_refused_by_name) { job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), wrong_calls, NULL); }

/* The group's error is the communicator's, and its text is the cause. */
static void unequal_to_itself(const struct rank *rank, void *arg) {
  (void)arg;
  int32_t from[4] = {0}, to[4];
  ncclComm_t comm = open_comm(rank);
  OK(ncclGroupStart());
  OK(ncclSend(from, 4, ncclInt32, 0, comm, NULL));
  OK(ncclRecv(to, 3, ncclInt32, 0, comm, NULL));
  REFUSED(ncclGroupEnd(), ncclInvalidUsage, "4 elements are sent to the own rank");
  OK(ncclCommAbort(comm));
  comm = open_comm(rank);
  OK(ncclGroupStart());
  OK(ncclRecv(to, 3, ncclInt32, 0, comm, NULL));
  REFUSED(ncclGroupEnd(), ncclInvalidUsage, "a receive from the own rank without a send");
  OK(ncclCommAbort(comm));
}
TEST(a_send_to_itself_needs_an_equal_receive) {
  job_run("NCCL_DEBUG=NONE", 1, kit_patience_ms(TIMEOUT_MS), unequal_to_itself, NULL);
}

/* Its rendezvous is over, which takes no time to find out, and the only rank needs none. */
static void one_id_twice(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  char name[64], line[2][300] = {"", ""};
  ncclUniqueId id;
  ncclComm_t comm[2] = {NULL, NULL};
  OK(ncclGetUniqueId(&id));
  OK(ncclCommInitRank(&comm[0], 1, id, 0));
  uint64_t least = UINT64_MAX; /* of several tries: the machine may stand still in one */
  for (int i = 0; i < 4 && least >= 1000000000u; i++) {
    const uint64_t t0 = rail_now_ns();
    OK(ncclCommInitRank(&comm[1], 1, id, 0));
    least = RAIL_MIN(least, rail_now_ns() - t0);
    OK(ncclCommDestroy(comm[1]));
  }
  ENSURE(least < 1000000000u, "%.3f s", (double)least / 1e9);
  OK(ncclCommDestroy(comm[0]));
  memset(&id, 1, sizeof id);
  REFUSED(ncclCommInitRank(&comm[0], 2, id, 0), ncclInvalidArgument, "unique id");
  snprintf(name, sizeof name, "/tmp/rail-test-api.%d", (int)getpid());
  FILE *f = fopen(name, "r");
  unlink(name);
  ENSURE(f && fgets(line[0], sizeof line[0], f) && strstr(line[0], "not a unique id"), "\"%s\"", line[0]);
  ENSURE(!fgets(line[1], sizeof line[1], f), "one more: %s", line[1]);
  fclose(f);
}
TEST(one_rank_uses_an_id_twice) {
  job_run("NCCL_DEBUG=WARN NCCL_DEBUG_FILE=/tmp/rail-test-api.%p", 1, kit_patience_ms(TIMEOUT_MS), one_id_twice, NULL);
}

static void texts(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  int v = 0;
  OK(ncclGetVersion(&v));
  ENSURE_INT(v, NCCL_VERSION_CODE);
  OK(pncclGetVersion(&v));
  ENSURE(ncclGetLastError(NULL)[0] == 0, "an error before any: \"%s\"", ncclGetLastError(NULL));
  for (int r = -3; r < 12; r++) {
    const char *t = ncclGetErrorString((ncclResult_t)r);
    ENSURE(t && *t, "result %d has no text", r);
    for (int other = ncclSuccess; r >= 0 && other < r && r < ncclNumResults; other++)
      ENSURE(strcmp(t, ncclGetErrorString((ncclResult_t)other)) != 0, "results %d and %d have one text", r, other);
  }
}
TEST(versions_and_texts) { job_run("", 1, kit_patience_ms(TIMEOUT_MS), texts, NULL); }

/* ---- memory ---- */

static void memory(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  enum { N = 300000 };
  int32_t *a = NULL, *b = NULL, *shifted;
  void *ha = NULL, *hb = NULL, *hshift = NULL;
  OK(ncclMemAlloc((void **)&a, N * 4));
  OK(ncclMemAlloc((void **)&b, N * 4));
  ENSURE((uintptr_t)a % 4096 == 0, "%p is not on a page", (void *)a);
  for (int i = 0; i < N; i++) ENSURE_INT(a[i], 0);
  OK(ncclCommRegister(comm, a, N * 4, &ha));
  OK(ncclCommRegister(comm, b, N * 4, &hb));
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < N; i++) a[i] = i + rank->rank;
    shifted = a + round * 7; /* part of a registered buffer */
    OK(ncclCommRegister(comm, shifted, 1000, &hshift));
    OK(ncclAllReduce(shifted, b, N - 50, ncclInt32, ncclSum, comm, NULL));
    OK(railCommWait(comm));
    int n = rank->nranks;
    for (int i = 0; i < N - 50; i++) ENSURE_INT(b[i], n * (i + round * 7) + n * (n - 1) / 2);
    OK(ncclCommDeregister(comm, hshift));
  }
  OK(ncclCommDeregister(comm, ha));
  REFUSED(ncclCommDeregister(comm, ha), ncclInvalidArgument, "registration");
  close_comm(comm); /* hb goes with it */
  OK(ncclMemFree(a));
  OK(ncclMemFree(b));
  OK(ncclMemFree(NULL));
  static char mine[3 * 4096] __attribute__((aligned(4096)));
  REFUSED(ncclMemFree(mine + 4096), ncclInvalidArgument, "ncclMemAlloc");
  REFUSED(ncclMemFree(mine + 4097), ncclInvalidArgument, "ncclMemAlloc");
}
TEST(allocated_and_registered_memory) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), memory, NULL);
  if (ranks_plugin()) job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 3, kit_patience_ms(TIMEOUT_MS), memory, NULL);
}

/* ---- operators ---- */

static void premulsum(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  ncclRedOp_t now, later, third;
  float factor_now = 3, factor_later = 5, v, out;
  OK(ncclRedOpCreatePreMulSum(&now, &factor_now, ncclFloat, ncclScalarHostImmediate, comm));
  OK(ncclRedOpCreatePreMulSum(&later, &factor_later, ncclFloat, ncclScalarDevice, comm));
  ENSURE(now >= ncclNumOps && later >= ncclNumOps && now != later, "operators %d and %d", now, later);
  factor_now = factor_later = (float)(rank->rank + 7); /* every rank its own */
  v = 2;
  OK(ncclAllReduce(&v, &out, 1, ncclFloat, now, comm, NULL));
  OK(railCommWait(comm));
  ENSURE(out == (float)(6 * rank->nranks), "immediate: %g", (double)out);
  OK(ncclAllReduce(&v, &out, 1, ncclFloat, later, comm, NULL));
  OK(railCommWait(comm));
  float want = 0;
  for (int r = 0; r < rank->nranks; r++) want += 2 * (float)(r + 7);
  ENSURE(out == want, "read when it runs: %g, expected %g", (double)out, (double)want);
  int32_t i = 1;
  REFUSED(ncclAllReduce(&i, &i, 1, ncclInt32, now, comm, NULL), ncclInvalidArgument, "datatype");
  OK(ncclRedOpDestroy(now, comm));
  REFUSED(ncclAllReduce(&v, &out, 1, ncclFloat, now, comm, NULL), ncclInvalidArgument, "op is");
  REFUSED(ncclRedOpDestroy(now, comm), ncclInvalidArgument, "op");
  OK(ncclRedOpCreatePreMulSum(&third, &factor_now, ncclFloat, ncclScalarHostImmediate, comm));
  OK(ncclRedOpDestroy(third, comm));
  close_comm(comm); /* `later` goes with it */
}
TEST(premulsum_reads_its_factor_when_it_said) {
  job_run("NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), premulsum, NULL);
}

/* An operator may be destroyed as soon as the call that uses it was made, also within a group. */
static void premulsum_in_group(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  float factor = 4, v = 1;
  ncclRedOp_t op;
  OK(ncclGroupStart());
  OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, comm));
  OK(ncclAllReduce(&v, &v, 1, ncclFloat, op, comm, NULL));
  OK(ncclRedOpDestroy(op, comm));
  factor = 100;
  OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, comm));
  OK(ncclRedOpDestroy(op, comm));
  OK(ncclGroupEnd());
  OK(railCommWait(comm));
  ENSURE(v == (float)(4 * rank->nranks), "%g", (double)v);
  close_comm(comm);
}
TEST(an_operator_may_go_once_the_call_was_made) {
  job_run("", 2, kit_patience_ms(TIMEOUT_MS), premulsum_in_group, NULL);
}

/* ---- ends ---- */

static void ends(const struct rank *rank, void *arg) {
  (void)arg;
  int32_t v = 1;
  for (int way = 0; way < 6; way++) {
    ncclUniqueId id = make_id(rank, way);
    ncclComm_t comm = NULL;
    OK(ncclCommInitRank(&comm, rank->nranks, id, rank->rank));
    switch (way) {
      case 0: OK(ncclCommDestroy(comm)); break; /* never used */
      case 1:                                   /* with work that nobody waited for */
        for (int i = 0; i < 10; i++) OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL));
        OK(ncclCommDestroy(comm));
        break;
      case 2:
        OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclMax, comm, NULL));
        OK(ncclCommFinalize(comm));
        REFUSED(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL), ncclInvalidUsage, "ncclCommFinalize");
        REFUSED(ncclCommFinalize(comm), ncclInvalidUsage, "ncclCommFinalize");
        OK(ncclCommDestroy(comm));
        break;
      case 3:
        OK(ncclCommFinalize(comm));
        OK(ncclCommAbort(comm)); /* nothing to end: no peer gets a message */
        break;
      case 4:
        OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclMax, comm, NULL));
        OK(railCommWait(comm));
        rank_barrier(rank);
        OK(ncclCommAbort(comm)); /* on all ranks */
        break;
      default:
        if (rank->rank == 0) usleep(50000); /* goodbyes cross */
        OK(ncclCommDestroy(comm));
        break;
    }
    rank_barrier(rank);
  }
  OK(ncclCommDestroy(NULL));
  OK(ncclCommAbort(NULL));
}
TEST(every_way_to_end) {
  for (int n = 1; n <= 3; n++) job_run("NCCL_DEBUG=NONE", n, kit_patience_ms(TIMEOUT_MS), ends, NULL);
  if (ranks_plugin()) job_run("NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1", 3, kit_patience_ms(TIMEOUT_MS), ends, NULL);
}

TEST_MAIN(TEST_CASE(wrong_makers_are_refused), TEST_CASE(wrong_calls_are_refused_by_name),
          TEST_CASE(a_send_to_itself_needs_an_equal_receive), TEST_CASE(versions_and_texts),
          TEST_CASE(one_rank_uses_an_id_twice),
          TEST_CASE(allocated_and_registered_memory),
          TEST_CASE(premulsum_reads_its_factor_when_it_said), TEST_CASE(an_operator_may_go_once_the_call_was_made),
          TEST_CASE(every_way_to_end))
