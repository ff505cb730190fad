/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 200
 * TEST-QUIET
 * TEST-SAN: asan
 *
 * Many connections of one process with itself over a real provider, tcp;ofi_rxm on loopback, and a message over each.
 * `RAIL_TEST_CONNECTIONS=4096` makes as many, as far as descriptors suffice. With one context they share an endpoint: a
 * process has one more descriptor for each connection, its oob connection, and no more threads and endpoints than with
 * one. Where each pair is between two other endpoints, of as few contexts as make so many, the provider has a TCP
 * connection for each, of some 4 MiB in libfabric 1.17. Where descriptors are used up, connecting ends in an error.
 */
#include <sys/resource.h>

#include "test/unit/ofi_rig.h"

#define SIZE 3000
#define MOST_CTX 64

struct pair { void *sc, *rc, *mh_out, *mh_in; };
static uint8_t out[SIZE], *in;
static void *ctx[2 * MOST_CTX];
static int spare[64], nspare;

/* Pairs: a sender and a receiver, two connections of this process, each with so many descriptors. */
static int wanted_pairs(int preset, int descriptors, int most) {
  struct rlimit limit;
  const char *text = getenv("RAIL_TEST_CONNECTIONS");
  int pairs = (text ? atoi(text) : preset) / 2;
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  most = RAIL_MIN(most, (int)(RAIL_MIN(limit.rlim_max, 1u << 20) - 1000) / 2 / descriptors);
  return RAIL_MIN(RAIL_MAX(pairs, 1), most);
}

static void connect_pair(struct pair *p, int i, void *from, void *to) {
  struct rig r = {.ctx = {from, to}};
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
    RIG_UNTIL(sends[i], {
      sends[i] = rig_isend(pairs[i].sc, out, SIZE, i, pairs[i].mh_out);
      if (!sends[i]) rig_poll(pairs[i].rc);
    });
  for (int i = 0; i < n; i++) {
    int size = 0;
    RIG_UNTIL(rig_done(recvs[i], &size), rig_poll(pairs[i].sc));
    CHECK_INT(size, SIZE);
    RIG_UNTIL(rig_done(sends[i], NULL), rig_poll(pairs[i].rc));
    CHECK(memcmp(in + (size_t)i * SIZE, out, SIZE) == 0);
    memset(in + (size_t)i * SIZE, 0, SIZE);
  }
  free(sends);
  free(recvs);
}

static struct pair *start(int n) {
  struct pair *pairs = calloc((size_t)n, sizeof *pairs);
  in = calloc((size_t)n, SIZE);
  CHECK(pairs && in);
  for (size_t i = 0; i < SIZE; i++) out[i] = (uint8_t)(i * 7 + 1);
  log_forget();
  ctx[0] = rig_ctx();
  if (ofi_device_count() == 0) tap_skip_case("libfabric has no provider tcp;ofi_rxm here");
  return pairs;
}

static void end(struct pair *pairs, int n, int nctx) {
  for (int i = 0; i < n; i++) {
    CHECK_OK(net->dereg_mr(pairs[i].sc, pairs[i].mh_out));
    CHECK_OK(net->dereg_mr(pairs[i].rc, pairs[i].mh_in));
    CHECK_OK(net->close_send(pairs[i].sc));
    CHECK_OK(net->close_recv(pairs[i].rc));
  }
  for (int i = 0; i < nctx; i++) CHECK_OK(net->finalize(ctx[i]));
  free(pairs);
  free(in);
}

static void report(int n, int nendpoints, uint64_t start_ns, uint64_t connected, long rss) {
  printf("# %d connections, %d endpoint%s: %d descriptors, %d threads, RSS %.1f MiB, %.1f of it without connections; "
         "connected in %.2f s, a message over each in %.2f s\n", 2 * n, nendpoints, nendpoints == 1 ? "" : "s",
         kit_fd_count(), kit_thread_count(), (double)kit_rss_kb() / 1024, (double)rss / 1024,
         (double)(connected - start_ns) / 1e9, (double)(rail_now_ns() - connected) / 1e9);
}

TEST(a_message_over_each) {
  const int n = wanted_pairs(512, 1, INT_MAX);
  struct pair *pairs = start(n);
  long rss = kit_rss_kb();
  connect_pair(&pairs[0], 0, ctx[0], ctx[0]);
  send_all(pairs, 1);
  int fds = kit_fd_count(), threads = kit_thread_count();
  uint64_t then = rail_now_ns();
  for (int i = 1; i < n; i++) connect_pair(&pairs[i], i, ctx[0], ctx[0]);
  uint64_t connected = rail_now_ns();
  send_all(pairs, n);
  report(n, 1, then, connected, rss);
  CHECK_INT(kit_thread_count(), threads);
  CHECK_INT(kit_fd_count(), fds + 2 * (n - 1)); /* no descriptor of libfabric's is a connection's */
  for (int i = 1; i < n; i++) {
    CHECK(rig_comm(pairs[i].sc)->endpoint == rig_comm(pairs[0].sc)->endpoint);
    CHECK(rig_comm(pairs[i].rc)->endpoint == rig_comm(pairs[0].sc)->endpoint);
  }
  CHECK_INT(rig_comm(pairs[0].sc)->endpoint->nnics, 1);
  end(pairs, n, 1);
  CHECK_MSG(log_warnings() == 0, "%s", log_warning);
}

/* Senders' endpoints are those of the first contexts, receivers' those of as many others. */
TEST(each_between_other_endpoints) {
  const int n = wanted_pairs(32, 2, MOST_CTX * MOST_CTX);
  struct pair *pairs = start(n);
  int half = 1;
  while (half * half < n) half++;
  long rss = kit_rss_kb();
  for (int i = 1; i < 2 * half; i++) ctx[i] = rig_ctx();
  uint64_t then = rail_now_ns();
  for (int i = 0; i < n; i++) connect_pair(&pairs[i], i, ctx[i % half], ctx[half + i / half]);
  uint64_t connected = rail_now_ns();
  send_all(pairs, n);
  report(n, half + (n + half - 1) / half, then, connected, rss);
  for (int i = 1; i < n; i++) {
    CHECK((rig_comm(pairs[i].sc)->endpoint == rig_comm(pairs[0].sc)->endpoint) == (i % half == 0));
    CHECK((rig_comm(pairs[i].rc)->endpoint == rig_comm(pairs[0].rc)->endpoint) == (i < half));
  }
  end(pairs, n, 2 * half);
  CHECK_MSG(log_warnings() == 0, "%s", log_warning);
}

/* None left, or so many. */
static void use_up_descriptors(int left) {
  while ((spare[nspare] = dup(0)) >= 0) CHECK(++nspare < (int)RAIL_COUNT_OF(spare));
  for (; left; left--) close(spare[--nspare]);
}
static void give_descriptors_back(void) {
  while (nspare) close(spare[--nspare]);
}

/* The oob connection takes two descriptors, and the provider finds none for its own connection of two endpoints that
 * have none yet. What was connected before goes on, and later the two can be connected. */
TEST(an_error_where_the_provider_finds_no_descriptor) {
  struct pair *pairs = start(3);
  struct rlimit before, few;
  struct rig r = {.ctx = {ctx[0], ctx[1] = rig_ctx()}};
  rail_result_t result = RAIL_OK;
  for (int i = 0; i < 2; i++) connect_pair(&pairs[i], i, ctx[i], ctx[i]);
  send_all(pairs, 2);
  rig_listen(&r, 0);
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  few = (struct rlimit){.rlim_cur = (rlim_t)kit_fd_count() + RAIL_COUNT_OF(spare) / 2, .rlim_max = before.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  use_up_descriptors(2);
  ofi_params.connect_ms = 1000;
  uint64_t then = rail_now_ns();
  RIG_UNTIL(!rig_step(&r, 0, &result) || (r.sc && r.rc), (void)0);
  uint64_t took_ms = (rail_now_ns() - then) / 1000000;
  give_descriptors_back();
  printf("# result %d after %.1f s; %s\n", result, (double)took_ms / 1e3, log_warning);
  CHECK(result == RAIL_SYSTEM_ERROR || result == RAIL_REMOTE_ERROR);
  CHECK_MSG(took_ms < 5000, "%d ms", (int)took_ms);
  CHECK(log_warnings() > 0);
  send_all(pairs, 2);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK_OK(net->close_listen(r.listen));
  ofi_params = rig_defaults;
  connect_pair(&pairs[2], 2, ctx[0], ctx[1]);
  send_all(pairs, 3);
  end(pairs, 3, 2);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
      TEST_CASE(a_message_over_each), TEST_CASE(each_between_other_endpoints),
      TEST_CASE(an_error_where_the_provider_finds_no_descriptor)};
  setenv("FI_PROVIDER", "tcp", 1);
  unsetenv("RAIL_OFI_LIBRARY");
  rig_use(NULL);
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
