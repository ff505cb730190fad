/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 * TEST-SAN: asan tsan
 *
 * Proves: a thousand times init, all-reduce, destroy in one process leave descriptors, threads and memory as they were.
 */
#include <unistd.h>

#include "common/base/clock.h"
#include "rail/railyard.h"
#include "test/harness/program.h"
#include "test/harness/ranks.h"

#define CYCLES 1000
#define WARM_UP 50 /* caches, arenas of threads, tables */
#define RSS_SLACK_KB 4096

struct half {
  ncclUniqueId id;
  int rank;
  int cycle;
};

static void one_half(void *arg) {
  struct half *h = arg;
  ncclComm_t comm = NULL;
  float v[500], out[500];
  ENSURE_INT(ncclCommInitRank(&comm, 2, h->id, h->rank), 0);
  for (int i = 0; i < 500; i++) v[i] = (float)(i + h->rank + h->cycle);
  ENSURE_INT(ncclAllReduce(v, out, 500, ncclFloat, ncclSum, comm, NULL), 0);
  ENSURE(railCommWait(comm) == ncclSuccess, "%s", ncclGetLastError(comm));
  for (int i = 0; i < 500; i++)
    ENSURE(out[i] == (float)(2 * (i + h->cycle) + 1), "element %d is %g", i, (double)out[i]);
  ENSURE_INT(ncclCommDestroy(comm), 0);
}

static void cycle(int number) {
  struct half h[2] = {{.rank = 0, .cycle = number}, {.rank = 1, .cycle = number}};
  ENSURE_INT(ncclGetUniqueId(&h[0].id), 0);
  h[1].id = h[0].id;
  kit_run_threads(2, one_half, h, sizeof h[0]);
}

static void settle(int fds, int threads) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(3000));
  while ((kit_fd_count() > fds || kit_thread_count() > threads) && !rail_deadline_passed(deadline)) usleep(2000);
}

static void cycles(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  int n = kit_scaled(CYCLES), fds = 0, threads = 0;
  long rss = 0;
  for (int i = 0; i < n + WARM_UP; i++) {
    if (i == WARM_UP) {
      threads = rank_threads_settled();
      fds = kit_fd_count();
      rss = kit_rss_kb();
    }
    cycle(i);
  }
  settle(fds, threads);
  long grown = kit_rss_kb() - rss;
  printf("# %d cycles: %d descriptors (%d before), %d threads (%d), %ld KiB more\n", n, kit_fd_count(), fds,
         kit_thread_count(), threads, grown);
  fflush(stdout);
  ENSURE(kit_fd_count() <= fds, "%d descriptors, %d before", kit_fd_count(), fds);
  ENSURE(kit_thread_count() <= threads, "%d threads, %d before", kit_thread_count(), threads);
  /* Sanitizers keep what was freed; leaks of memory are theirs to find. */
  ENSURE(kit_scaled(1000) < 1000 || grown < RSS_SLACK_KB, "memory grew by %ld KiB in %d cycles", grown, n);
}

TEST(over_shared_memory) { job_run("", 1, kit_patience_ms(100000), cycles, NULL); }
TEST(over_the_network) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
  job_run("NCCL_SHM_DISABLE=1 RAIL_PROXY=thread", 1, kit_patience_ms(100000), cycles, NULL);
}

TEST_MAIN(TEST_CASE(over_shared_memory), TEST_CASE(over_the_network))
