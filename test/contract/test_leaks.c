/* SPDX-License-Identifier: Apache-2.0
 * Files, threads and memory stay flat over a thousand connections; idle connections cost no processor time.
 * TEST-LIMIT: 60
 * TEST-ALONE
 * TEST-SAN: asan */
#include <sched.h>
#include <unistd.h>

#include "common/clock.h"
#include "test/harness/program.h"

static void cycle(struct kit_net *n, int i) {
  struct kit_pair p;
  kit_pair_open(n, &p);
  kit_pair_ping(&p, (size_t)(i * 6151) % 70000, (uint64_t)i);
  if (i % 3 == 0) { /* closed with something outstanding, too */
    static uint8_t byte;
    struct kit_op op = kit_op_recv(p.recv, &byte, 1, 0);
    kit_op_post(n, &op);
  }
  kit_pair_close(&p);
}

TEST(a_thousand_connections) {
  struct kit_net n;
  kit_net_open(&n);
  for (int i = 0; i < kit_scaled(200); i++) cycle(&n, i);
  int fds = kit_fd_count(), threads = kit_thread_count();
  long rss = kit_rss_kb();
  for (int i = 0; i < kit_scaled(1000); i++) cycle(&n, i);
  CHECK_INT(kit_fd_count(), fds);
  CHECK_INT(kit_thread_count(), threads);
  long grown = kit_rss_kb() - rss;
  printf("# resident memory grew by %ld KiB\n", grown);
  /* 2 KiB a cycle; ASan's quarantine keeps freed memory, so there LeakSanitizer is the judge. */
  CHECK_MSG(grown < 2 * 1000 || kit_patience_ms(1) > 1, "%ld KiB of memory are gone after %d connections", grown,
            kit_scaled(1000));
  kit_net_close(&n);
}

TEST(a_hundred_contexts) {
  struct kit_net n;
  kit_net_open(&n);
  kit_net_close(&n);
  int fds = kit_fd_count(), threads = kit_thread_count();
  long rss = kit_rss_kb();
  for (int i = 0; i < kit_scaled(100); i++) {
    kit_net_open(&n);
    cycle(&n, 1);
    kit_net_close(&n);
  }
  CHECK_INT(kit_fd_count(), fds);
  CHECK_INT(kit_thread_count(), threads);
  long grown = kit_rss_kb() - rss;
  CHECK_MSG(grown < 4000 || kit_patience_ms(1) > 1, "%ld KiB of memory are gone after 100 contexts", grown);
}

TEST(failed_connections) {
  struct kit_net n;
  kit_net_open(&n);
  int fds = 0;
  for (int i = 0; i < kit_scaled(300); i++) {
    char handle[RAIL_NET_HANDLE_SIZE];
    void *listen = kit_net_listen(&n, handle), *comm = NULL;
    CHECK_OK(n.vt->close_listen(listen));
    uint64_t deadline = rail_deadline_in_ms(20);
    int rc = 0;
    while (rc == 0 && !comm && !rail_deadline_passed(deadline)) {
      struct rail_net_device_handle *dh = NULL;
      rc = n.vt->connect(n.ctx, n.dev, handle, &comm, &dh);
    }
    CHECK(!comm);
    if (rc == 0) break; /* it keeps trying: what is pending is finalize's to reclaim */
    if (i == 20) fds = kit_fd_count();
    if (i > 20) CHECK_INT(kit_fd_count(), fds);
  }
  kit_net_close(&n);
}

TEST(idle_connections_cost_nothing) {
  enum { IDLE = 50 };
  struct kit_net n;
  static struct kit_pair p[IDLE];
  int threads = kit_thread_count();
  kit_net_open(&n);
  for (int i = 0; i < IDLE; i++) {
    kit_pair_open(&n, &p[i]);
    kit_pair_ping(&p[i], 100, (uint64_t)i);
  }
  CHECK_MSG(kit_thread_count() - threads <= 8, "%d idle connections keep %d threads", IDLE,
            kit_thread_count() - threads);
  usleep(100000); /* what is still settling */
  uint64_t cpu = kit_cpu_ns(), start = rail_now_ns();
  usleep(1000000);
  double used = (double)(kit_cpu_ns() - cpu) / (double)(rail_now_ns() - start);
  printf("# %.2f %% of a core for %d idle connections\n", used * 100, IDLE);
  CHECK_MSG(used < 0.05, "%d idle connections use %.1f %% of a core", IDLE, used * 100);
  for (int i = 0; i < IDLE; i++) {
    kit_pair_ping(&p[i], 1000, (uint64_t)i); /* and they still work */
    kit_pair_close(&p[i]);
  }
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(a_thousand_connections), TEST_CASE(a_hundred_contexts), TEST_CASE(failed_connections),
          TEST_CASE(idle_connections_cost_nothing))
