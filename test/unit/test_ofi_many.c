/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 200
 * TEST-QUIET
 * TEST-SAN: asan
 *
 * Many connections of one process with itself over a real provider, tcp;ofi_rxm on loopback, and a message over each.
 * They share endpoints: a process has one more descriptor for each connection, its oob connection, and no more threads
 * and endpoints than with one. `RAIL_TEST_CONNECTIONS=4096` makes as many, as far as descriptors suffice.
 */
#include <sys/resource.h>

#include "test/unit/ofi_rig.h"

#define SIZE 3000

struct pair { void *sc, *rc, *mh_out, *mh_in; };
static uint8_t out[SIZE], *in;
static void *ctx;

/* Pairs: a sender and a receiver, two connections of this process, each with a descriptor. */
static int wanted_pairs(void) {
  struct rlimit limit;
  const char *text = getenv("RAIL_TEST_CONNECTIONS");
  int pairs = (text ? atoi(text) : 512) / 2;
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  return RAIL_MIN(RAIL_MAX(pairs, 1), (int)(RAIL_MIN(limit.rlim_max, 1u << 20) - 100) / 2);
}

static void connect_pair(struct pair *p, int i) {
  struct rig r = {.ctx = {ctx, ctx}};
  rig_connect(&r, 0, 0);
  p->sc = r.sc;
  p->rc = r.rc;
  p->mh_out = rig_reg(p->sc, out, SIZE);
  p->mh_in = rig_reg(p->rc, in + (size_t)i * SIZE, SIZE);
}

/* One message over each at once. */
static void send_all(const struct pair *pairs, int n) {
  void **sends = calloc((size_t)n, sizeof *sends), **recvs = calloc((size_t)n, sizeof *recvs);
  CHECK(sends && recvs);
  for (int i = 0; i < n; i++)
    RIG_UNTIL(recvs[i], recvs[i] = rig_irecv(pairs[i].rc, in + (size_t)i * SIZE, SIZE, i, pairs[i].mh_in));
  for (int i = 0; i < n; i++)
    RIG_UNTIL(sends[i], sends[i] = rig_isend(pairs[i].sc, out, SIZE, i, pairs[i].mh_out));
  for (int i = 0; i < n; i++) {
    int size = 0;
    RIG_UNTIL(rig_done(recvs[i], &size), (void)0);
    CHECK_INT(size, SIZE);
    RIG_UNTIL(rig_done(sends[i], NULL), (void)0);
    CHECK(memcmp(in + (size_t)i * SIZE, out, SIZE) == 0);
  }
  free(sends);
  free(recvs);
}

TEST(a_message_over_each) {
  const int n = wanted_pairs();
  struct pair *pairs = calloc((size_t)n, sizeof *pairs);
  in = calloc((size_t)n, SIZE);
  CHECK(pairs && in);
  for (size_t i = 0; i < SIZE; i++) out[i] = (uint8_t)(i * 7 + 1);
  ctx = rig_ctx();
  if (ofi_device_count() == 0) tap_skip_case("libfabric has no provider tcp;ofi_rxm here");
  connect_pair(&pairs[0], 0);
  send_all(pairs, 1);
  int fds = kit_fd_count(), threads = kit_thread_count();
  long rss = kit_rss_kb();
  uint64_t then = rail_now_ns();
  for (int i = 1; i < n; i++) connect_pair(&pairs[i], i);
  uint64_t connected = rail_now_ns();
  send_all(pairs, n);
  printf("# %d connections: %d descriptors, %d threads, %ld KiB each; connected in %.2f s, a message over each in "
         "%.2f s\n", 2 * n, kit_fd_count(), kit_thread_count(), (kit_rss_kb() - rss) / (2 * n),
         (double)(connected - then) / 1e9, (double)(rail_now_ns() - connected) / 1e9);
  CHECK_INT(kit_thread_count(), threads);
  CHECK_INT(kit_fd_count(), fds + 2 * (n - 1)); /* no descriptor of libfabric's is a connection's */
  for (int i = 1; i < n; i++) {
    CHECK(rig_comm(pairs[i].sc)->endpoint == rig_comm(pairs[0].sc)->endpoint);
    CHECK(rig_comm(pairs[i].rc)->endpoint == rig_comm(pairs[0].sc)->endpoint);
  }
  CHECK_INT(rig_comm(pairs[0].sc)->endpoint->nnics, 1);
  for (int i = 0; i < n; i++) {
    CHECK_OK(net->dereg_mr(pairs[i].sc, pairs[i].mh_out));
    CHECK_OK(net->dereg_mr(pairs[i].rc, pairs[i].mh_in));
    CHECK_OK(net->close_send(pairs[i].sc));
    CHECK_OK(net->close_recv(pairs[i].rc));
  }
  CHECK_OK(net->finalize(ctx));
  CHECK_MSG(log_warnings() == 0, "%s", log_warning);
  free(pairs);
  free(in);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(a_message_over_each)};
  setenv("FI_PROVIDER", "tcp", 1);
  unsetenv("RAIL_OFI_LIBRARY");
  rig_use(NULL);
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
