/* SPDX-License-Identifier: Apache-2.0
 * Proves: how many streams and threads follow from the parameters, NCCL's rule, the card's vendor and the cores; which
 * of NCCL's variables are named as having no effect. */
#include "common/base/compiler.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_wire.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

enum { OTHER = 0x15b3, AWS = 0x1d0f, GOOGLE = 0x1ae0, CORES = 4, FEW = 3, UNSET = -2 };

static struct sk_params params(int64_t nthreads, int64_t nsocks) {
  return (struct sk_params){.nthreads = nthreads, .nsocks = nsocks, .engine = SK_ENGINE_NCCL};
}

/* ---- NCCL's variables -------------------------------------------------------- */

static const struct by_nccl {
  int64_t nthreads, nsocks;
  unsigned int vendor, cores, streams, threads;
} by_nccl[] = {
  /* none is set */
  {UNSET, UNSET, 0, CORES, 1, 0},
  {UNSET, UNSET, OTHER, CORES, 1, 0},
  {UNSET, UNSET, AWS, CORES, 16, 2},
  {UNSET, UNSET, AWS, FEW, 16, 0},
  {UNSET, UNSET, AWS, 0, 16, 0},
  {UNSET, UNSET, GOOGLE, CORES, 4, 4},
  {UNSET, UNSET, GOOGLE, FEW, 4, 0},
  {-1, -1, AWS, CORES, 16, 2},
  /* one of them is */
  {3, UNSET, OTHER, FEW, 3, 3},
  {1, UNSET, AWS, FEW, 8, 1},
  {3, UNSET, AWS, FEW, 16, 3},
  {3, UNSET, GOOGLE, FEW, 3, 3},
  {UNSET, 4, OTHER, CORES, 1, 0},
  {UNSET, 4, AWS, CORES, 8, 2},
  {UNSET, 4, AWS, FEW, 8, 0},
  {UNSET, 2, GOOGLE, CORES, 8, 4},
  {0, UNSET, OTHER, CORES, 1, 0},
  {0, UNSET, AWS, CORES, 1, 0},
  /* both */
  {2, 4, OTHER, FEW, 8, 2},
  {2, 4, AWS, FEW, 8, 2},
  {1, 1, AWS, CORES, 1, 1},
  {4, 8, OTHER, FEW, 16, 4},
  {0, 8, GOOGLE, CORES, 1, 0},
  {4, 0, AWS, CORES, 1, 0},
  {16, 1, OTHER, 1, 16, 16},
  {17, 1, OTHER, 1, 16, 16},
  {INT32_MAX, INT32_MAX, OTHER, 1, 16, 16},
};

TEST(by_the_variables_of_nccl) {
  for (size_t i = 0; i < RAIL_COUNT_OF(by_nccl); i++) {
    const struct by_nccl *r = &by_nccl[i];
    struct sk_params p = params(r->nthreads, r->nsocks);
    struct sk_choice streams = sk_choose_streams(&p, r->vendor), threads = sk_choose_threads(&p, r->vendor, r->cores);
    CHECK_MSG(streams.count == r->streams, "row %zu: %u streams", i, streams.count);
    CHECK_MSG(threads.count == r->threads, "row %zu: %u threads", i, threads.count);
    CHECK(streams.why && *streams.why && threads.why && *threads.why);
  }
}

/* ncclNetSocketGetNsockNthread, as it stands in NCCL 2.28; the number of sockets. */
static int64_t sockets_of_nccl(int64_t nthreads, int64_t nsocks, unsigned int vendor) {
  if (nthreads > 16) nthreads = 16;
  int64_t auto_threads = vendor == AWS ? 2 : vendor == GOOGLE ? 4 : 0, auto_socks = vendor == AWS ? 8 : 1;
  if (nthreads == -2) nthreads = auto_threads;
  if (nsocks == -2) nsocks = auto_socks;
  if (nthreads * nsocks > 64) nsocks = 64 / nthreads;
  return nthreads * nsocks;
}

TEST(as_many_streams_as_nccl_has_sockets) {
  static const int64_t nthreads[] = {-2, 0, 1, 2, 3, 5, 8, 15, 16, 17, 1000};
  static const int64_t nsocks[] = {-2, 0, 1, 2, 3, 8, 63, 64, 65};
  static const unsigned int vendors[] = {0, OTHER, AWS, GOOGLE};
  for (size_t t = 0; t < RAIL_COUNT_OF(nthreads); t++)
    for (size_t s = 0; s < RAIL_COUNT_OF(nsocks); s++)
      for (size_t v = 0; v < RAIL_COUNT_OF(vendors); v++) {
        struct sk_params p = params(nthreads[t], nsocks[s]);
        struct sk_choice streams = sk_choose_streams(&p, vendors[v]);
        int64_t want = sockets_of_nccl(nthreads[t], nsocks[s], vendors[v]);
        bool threads = sk_choose_threads(&p, vendors[v], CORES).count > 0;
        CHECK_MSG(streams.count == (want < 1 ? 1 : want > SK_MAX_STREAMS ? SK_MAX_STREAMS : want),
                  "%lld x %lld: %u streams, NCCL %lld", (long long)p.nthreads, (long long)p.nsocks, streams.count,
                  (long long)want);
        CHECK((streams.asked > streams.count) == (want > SK_MAX_STREAMS));
        CHECK(threads == (want > 0));
      }
}

/* ---- ours ---------------------------------------------------------------------- */

TEST(streams_that_are_set) {
  static const int64_t nthreads[] = {UNSET, 0, 2};
  for (size_t i = 0; i < RAIL_COUNT_OF(nthreads); i++) {
    struct sk_params p = params(nthreads[i], 100);
    p.streams = 5;
    struct sk_choice streams = sk_choose_streams(&p, AWS);
    CHECK_INT(streams.count, 5);
    CHECK_INT(streams.asked, 5);
    CHECK_STR(streams.why, "RAIL_SOCKET_STREAMS");
    CHECK_INT(sk_choose_threads(&p, AWS, CORES).count, i == 1 ? 0 : 2); /* they say nothing of threads */
  }
}

static const struct engine_row {
  enum sk_engine_kind engine;
  int64_t threads, nthreads;
  unsigned int vendor, cores, want;
} engine_rows[] = {
  {SK_ENGINE_INLINE, 0, 4, AWS, CORES, 0},
  {SK_ENGINE_INLINE, 3, 4, AWS, CORES, 0},
  {SK_ENGINE_EPOLL, 0, UNSET, OTHER, 1, 1},
  {SK_ENGINE_EPOLL, 0, 0, OTHER, 1, 1},
  {SK_ENGINE_EPOLL, 0, 4, OTHER, 1, 4},
  {SK_ENGINE_EPOLL, 0, UNSET, AWS, CORES, 2},
  {SK_ENGINE_EPOLL, 0, UNSET, AWS, FEW, 1},
  {SK_ENGINE_EPOLL, 3, 4, AWS, 1, 3},
  {SK_ENGINE_AUTO, 0, UNSET, OTHER, CORES, 1},
  {SK_ENGINE_AUTO, 0, UNSET, OTHER, FEW, 0},
  {SK_ENGINE_AUTO, 0, UNSET, GOOGLE, CORES, 4},
  {SK_ENGINE_AUTO, 0, 2, OTHER, CORES, 2},
  {SK_ENGINE_AUTO, 0, 2, OTHER, FEW, 0},
  {SK_ENGINE_AUTO, 5, 2, OTHER, CORES, 5},
  {SK_ENGINE_NCCL, 3, UNSET, OTHER, CORES, 0},
  {SK_ENGINE_NCCL, 3, 0, AWS, CORES, 0},
  {SK_ENGINE_NCCL, 3, 2, OTHER, 1, 3},
  {SK_ENGINE_NCCL, 3, UNSET, AWS, CORES, 3},
  {SK_ENGINE_NCCL, 3, UNSET, AWS, FEW, 0},
};

TEST(engine_and_threads_that_are_set) {
  for (size_t i = 0; i < RAIL_COUNT_OF(engine_rows); i++) {
    const struct engine_row *r = &engine_rows[i];
    struct sk_params p = params(r->nthreads, UNSET);
    p.engine = r->engine;
    p.threads = r->threads;
    unsigned int got = sk_choose_threads(&p, r->vendor, r->cores).count;
    CHECK_MSG(got == r->want, "row %zu: %u threads", i, got);
  }
}

TEST(why) {
  struct sk_params p = params(UNSET, UNSET);
  CHECK_STR(sk_choose_streams(&p, OTHER).why, "default");
  CHECK_STR(sk_choose_streams(&p, AWS).why, "NCCL's default on AWS");
  CHECK_STR(sk_choose_streams(&p, GOOGLE).why, "NCCL's default on Google Cloud");
  CHECK_STR(sk_choose_threads(&p, AWS, CORES).why, "NCCL's default on AWS");
  CHECK_STR(sk_choose_threads(&p, AWS, FEW).why, "fewer than 4 cores");
  CHECK_STR(sk_choose_threads(&p, OTHER, FEW).why, "default");
  p = params(0, 8);
  CHECK_STR(sk_choose_streams(&p, AWS).why, "NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD");
  CHECK_STR(sk_choose_threads(&p, AWS, CORES).why, "NCCL_SOCKET_NTHREADS");
  p = params(UNSET, 8);
  CHECK_STR(sk_choose_streams(&p, OTHER).why, "NCCL_NSOCKS_PERTHREAD has no effect without NCCL_SOCKET_NTHREADS");
  CHECK_STR(sk_choose_streams(&p, AWS).why, "NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD");
}

/* ---- the table ------------------------------------------------------------------- */

static void load(const char *nthreads, const char *nsocks) {
  setenv("NCCL_SOCKET_NTHREADS", nthreads, 1);
  setenv("NCCL_NSOCKS_PERTHREAD", nsocks, 1);
  rail_log_set_sink(log_capture);
  log_forget();
  sk_params_load();
  rail_log_set_sink(NULL);
}

TEST(from_the_environment) {
  for (int i = 0; i < 2; i++) { /* an empty variable is an unset one */
    load("", "");
    CHECK_INT(sk_choose_streams(&sk_params, OTHER).count, 1);
    CHECK_INT(sk_choose_streams(&sk_params, AWS).count, 16);
    CHECK_INT(sk_choose_threads(&sk_params, OTHER, CORES).count, 0);
    load("2", "3");
    CHECK_INT(sk_choose_streams(&sk_params, AWS).count, 6);
    CHECK_INT(sk_choose_threads(&sk_params, AWS, 1).count, 2);
    CHECK_INT(log_warnings(), 0);
  }
  load("17", "1");
  CHECK(log_warned("NCCL_SOCKET_NTHREADS=17 is more than 16; 16 is used"));
  CHECK_INT(sk_choose_threads(&sk_params, OTHER, 1).count, 16);
  load("many", "-3");
  CHECK(log_warned("NCCL_SOCKET_NTHREADS=many is not understood"));
  CHECK(log_warned("NCCL_NSOCKS_PERTHREAD=-3 is out of range"));
  CHECK_INT(sk_choose_streams(&sk_params, OTHER).count, 1);
  CHECK_INT(sk_choose_threads(&sk_params, OTHER, CORES).count, 0);
}

/* All at once: nothing is cut off. */
TEST(variables_without_effect) {
  static const char *const names[][2] = {{"NCCL_SOCKET_INLINE", "RAIL_SOCKET_EAGER"},
                                         {"NCCL_SOCKET_MIN_TASKSIZE", "RAIL_SOCKET_CHUNK"},
                                         {"NCCL_SOCKET_RETRY_CNT", "RAIL_SOCKET_CONNECT_TIMEOUT"},
                                         {"NCCL_SOCKET_RETRY_SLEEP_MSEC", "RAIL_SOCKET_CONNECT_TIMEOUT"},
                                         {"NCCL_SOCKET_MAGIC", "RAIL_SOCKET_AUTH_FILE"}};
  char said[128];
  load("", "");
  CHECK(!log_said("without effect"));
  setenv("NCCL_SOCKET_MAGIC", "", 1);
  setenv("NCCL_SOCKET_RETRY_CNT", "3", 1);
  load("1", "1"); /* which have an effect */
  CHECK_STR(log_lines, "RailSocket: set, but without effect on its connections: NCCL_SOCKET_RETRY_CNT (instead: "
                       "RAIL_SOCKET_CONNECT_TIMEOUT)\n");
  for (size_t i = 0; i < RAIL_COUNT_OF(names); i++) setenv(names[i][0], "1", 1);
  load("", "");
  CHECK_INT(log_count("without effect"), 1);
  for (size_t i = 0; i < RAIL_COUNT_OF(names); i++) {
    snprintf(said, sizeof said, "%s (instead: %s)", names[i][0], names[i][1]);
    CHECK(log_said(said));
    CHECK_OK(unsetenv(names[i][0]));
  }
  CHECK_INT(log_warnings(), 0);
}

TEST_MAIN(TEST_CASE(by_the_variables_of_nccl), TEST_CASE(as_many_streams_as_nccl_has_sockets),
          TEST_CASE(streams_that_are_set), TEST_CASE(engine_and_threads_that_are_set), TEST_CASE(why),
          TEST_CASE(from_the_environment), TEST_CASE(variables_without_effect))
