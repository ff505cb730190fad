/* SPDX-License-Identifier: Apache-2.0
 * TEST-ALONE
 * TEST-LIMIT: 240
 *
 * Proves: more than 2^31 elements in one call are all moved, over shared memory and over the network.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "rail/railyard.h"
#include "test/harness/program.h"
#include "test/harness/ranks.h"

#define COUNT ((1ull << 31) + 4097)
#define NEED_KB (2ull * COUNT / 1024 + (1u << 20)) /* two ranks, in place, and room to live */

static uint64_t available_kb(void) {
  unsigned long long kb = 0;
  char line[128];
  FILE *f = fopen("/proc/meminfo", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "MemAvailable: %llu", &kb) == 1) break;
  if (f) fclose(f);
  return kb;
}

static int8_t pattern(uint64_t i, int rank) { return (int8_t)(i * 2654435761u >> 24 & 15 ? rank + 1 : (int)(i >> 20)); }

static void body(const struct rank *rank, void *arg) {
  (void)arg;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  if (rank->rank == 0) ENSURE_INT(ncclGetUniqueId(&id), 0);
  rank_broadcast(rank, 0, &id, sizeof id);
  ENSURE_INT(ncclCommInitRank(&comm, rank->nranks, id, rank->rank), 0);
  int8_t *v = mmap(NULL, COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ENSURE(v != MAP_FAILED, "no memory");
  for (uint64_t i = 0; i < COUNT; i++) v[i] = pattern(i, rank->rank);
  ENSURE_INT(ncclAllReduce(v, v, COUNT, ncclInt8, ncclSum, comm, NULL), 0);
  ENSURE(railCommWait(comm) == ncclSuccess, "%s", ncclGetLastError(comm));
  for (uint64_t i = 0; i < COUNT; i++) {
    int8_t want = (int8_t)(pattern(i, 0) + pattern(i, 1));
    if (v[i] != want) ENSURE(false, "element %llu is %d, expected %d", (unsigned long long)i, v[i], want);
  }
  munmap(v, COUNT);
  ENSURE_INT(ncclCommDestroy(comm), 0);
}

static void run(const char *env) {
  if (available_kb() < NEED_KB)
    tap_skip_case("%llu MiB of memory available, %llu needed", (unsigned long long)available_kb() / 1024,
                  (unsigned long long)NEED_KB / 1024);
  job_run(env, 2, kit_patience_ms(100000), body, NULL);
}

TEST(over_shared_memory) { run(""); }
TEST(over_the_network) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
  run("NCCL_SHM_DISABLE=1");
}

TEST_MAIN(TEST_CASE(over_shared_memory), TEST_CASE(over_the_network))
