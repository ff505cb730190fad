/* SPDX-License-Identifier: Apache-2.0
 * The watch thread and a process that forks while the thread is within a connection. What it does with one is the
 * test's.
 * TEST-SAN: asan tsan */
#include <poll.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "plugin/socket/sk_comm.h"
#include "test/harness/tap.h"

#define WITHIN_MS 200 /* a fork that does not wait comes sooner */

static _Atomic bool within;
static _Atomic int runs;

enum sk_keepalive_need sk_keepalive_check(struct sk_comm *comm, uint64_t now, struct pollfd *fds, uint32_t *nfds) {
  (void)comm, (void)now, (void)fds;
  *nfds = 0;
  return SK_KEEPALIVE_RUN;
}

void sk_keepalive_run(struct sk_comm *comm, uint64_t now) {
  (void)comm, (void)now;
  atomic_store(&within, true);
  atomic_fetch_add(&runs, 1);
  poll(NULL, 0, WITHIN_MS);
  atomic_store(&within, false);
}

TEST(a_fork_waits_until_the_thread_has_left_the_connection) {
  static struct sk_comm comm;
  int status, before;
  sk_watch_add(&comm);
  for (int i = 0; i < 3; i++) {
    before = atomic_load(&runs);
    while (atomic_load(&runs) == before) poll(NULL, 0, 1); /* at its next tick; the runner has a limit */
    pid_t child = fork();
    if (child == 0) _exit(atomic_load(&within) || comm.listed || !comm.detached ? 1 : 0);
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned int)status);
  }
  before = atomic_load(&runs);
  while (atomic_load(&runs) == before) poll(NULL, 0, 1); /* the parent's thread goes on */
  sk_watch_remove(&comm);
  CHECK(!atomic_load(&within));
  sk_watch_end();
}

TEST_MAIN(TEST_CASE(a_fork_waits_until_the_thread_has_left_the_connection))
