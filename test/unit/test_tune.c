/* SPDX-License-Identifier: Apache-2.0
 * Proves: NCCL_ALGO's and NCCL_PROTO's words, what is chosen by them and by size, that chunks fit their slots, and what
 * calls are estimated to take. */
#include "core/plan/rt_tune.h"

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "core/host/rt_program.h"
#include "core/plan/rt_tree.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

#define SIMPLE (1u << RT_SIMPLE)
#define LL (1u << RT_LL)
#define RING (1u << RT_ALGO_RING)
#define EXCHANGE (1u << RT_ALGO_EXCHANGE)
#define TREE (1u << RT_ALGO_TREE)
#define PAT (1u << RT_ALGO_PAT)
#define ALL (RING | EXCHANGE | TREE) /* of AllReduce */

/* The same for all functions? Then what. */
static int each(uint32_t masks, int nfuncs) {
  int first = (int)rt_func_mask(masks, (enum rt_func)0);
  for (int f = 1; f < nfuncs; f++)
    CHECK_MSG((int)rt_func_mask(masks, (enum rt_func)f) == first, "%x is not the same for all", masks);
  return first;
}
#define PROTOS(text) each(rt_proto_masks(text), RT_NFUNC)

static void quiet(void) {
  rail_log_set_sink(log_capture);
  log_forget();
}

/* So many lines, the last of which holds the words. */
#define SAID(n, ...)                                                                           \
  do {                                                                                         \
    const char *const words_[] = {__VA_ARGS__};                                                \
    rail_log_set_sink(NULL);                                                                   \
    CHECK_INT(log_warnings(), n);                                                                    \
    for (size_t i_ = 0; i_ < sizeof words_ / sizeof *words_; i_++)                             \
      CHECK_MSG(strstr(log_warning, words_[i_]), "\"%s\" does not say \"%s\"", log_warning, words_[i_]); \
  } while (0)

TEST(words) {
  quiet();
  CHECK_INT(PROTOS(NULL), SIMPLE | LL);
  CHECK_INT(PROTOS(""), SIMPLE | LL);
  CHECK_INT(PROTOS("Simple"), SIMPLE);
  CHECK_INT(PROTOS("simple"), SIMPLE);
  CHECK_INT(PROTOS("LL"), LL);
  CHECK_INT(PROTOS("ll"), LL);
  CHECK_INT(PROTOS("LL,Simple"), SIMPLE | LL);
  CHECK_INT(PROTOS("LL128"), SIMPLE | 1u << RD_LL128);
  CHECK_INT(PROTOS("^LL"), SIMPLE);
  CHECK_INT(PROTOS("^Simple"), LL);
  /* LL128 is accepted as a word, but excluding it must not exclude Simple, which stands in for it. */
  CHECK_INT(PROTOS("^LL128"), SIMPLE | LL);
  CHECK_INT(PROTOS("^LL,LL128"), SIMPLE);
  SAID(0, "");
}

static unsigned algo(const char *text, enum rt_func f) { return rt_func_mask(rt_algo_masks(text), f); }

TEST(algorithms) {
  quiet();
  CHECK_INT(algo(NULL, RT_F_ALLREDUCE), ALL);
  CHECK_INT(algo(NULL, RT_F_REDUCE), RING | PAT); /* only an all-reduce has the others */
  CHECK_INT(algo("ring", RT_F_ALLREDUCE), RING);
  CHECK_INT(algo("^EXCHANGE", RT_F_ALLREDUCE), RING | TREE);
  CHECK_INT(algo("tree", RT_F_ALLREDUCE), TREE);
  CHECK_INT(algo("TREE,ring", RT_F_ALLREDUCE), RING | TREE);
  CHECK_INT(algo("^Tree", RT_F_ALLREDUCE), RING | EXCHANGE);
  CHECK_INT(algo("^Tree", RT_F_BROADCAST), RING | PAT);
  CHECK_INT(algo("PAT", RT_F_ALLGATHER), PAT);
  CHECK_INT(algo("PAT", RT_F_ALLREDUCE), 0);
  CHECK_INT(algo("^pat", RT_F_ALLGATHER), RING);
  CHECK_INT(algo("NVLS,Ring", RT_F_ALLREDUCE), RING); /* NCCL's words that stand for nothing */
  CHECK_INT(algo("^collnet,CollnetDirect,CollnetChain,NVLS,NVLSTree,PAT", RT_F_ALLREDUCE), ALL);
  SAID(0, "");
}

TEST(each_function_its_list) {
  quiet();
  uint32_t w = rt_algo_masks("ring,collnetdirect;allreduce:exchange,tree;Broadcast:ring");
  CHECK_INT(rt_func_mask(w, RT_F_ALLREDUCE), EXCHANGE | TREE);
  CHECK_INT(rt_func_mask(w, RT_F_BROADCAST), RING);
  CHECK_INT(rt_func_mask(w, RT_F_ALLGATHER), RING);
  w = rt_algo_masks("allreduce:^ring");
  CHECK_INT(rt_func_mask(w, RT_F_ALLREDUCE), EXCHANGE | TREE);
  CHECK_INT(rt_func_mask(w, RT_F_REDUCESCATTER), RING | PAT);
  w = rt_proto_masks("^ll;reducescatter:ll;sendrecv:^simple;REDUCE:simple,ll");
  CHECK_INT(rt_func_mask(w, RT_F_BROADCAST), SIMPLE);
  CHECK_INT(rt_func_mask(w, RT_F_ALLGATHER), SIMPLE);
  CHECK_INT(rt_func_mask(w, RT_F_ALLREDUCE), SIMPLE);
  CHECK_INT(rt_func_mask(w, RT_F_REDUCESCATTER), LL);
  CHECK_INT(rt_func_mask(w, RT_F_SENDRECV), LL);
  CHECK_INT(rt_func_mask(w, RT_F_REDUCE), SIMPLE | LL);
  SAID(0, "");
}

/* None is cut off, nor what comes behind it. */
TEST(long_lists) {
  char text[2000] = "LL";
  while (strlen(text) < sizeof text - 40) strcat(text, ",LL");
  strcat(text, ";allreduce:Simple");
  quiet();
  CHECK_INT(rt_func_mask(rt_proto_masks(text), RT_F_ALLREDUCE), SIMPLE);
  CHECK_INT(rt_func_mask(rt_proto_masks(text), RT_F_REDUCE), LL);
  CHECK_INT(log_warnings(), 0);
}

TEST(wrong_words_are_named) {
  quiet();
  CHECK_INT(PROTOS("LL,Fast"), LL);
  SAID(1, "NCCL_PROTO", "'Fast'", "Simple, LL, LL128");
  quiet();
  CHECK_INT(algo("ring,shrub", RT_F_ALLREDUCE), RING);
  SAID(1, "NCCL_ALGO", "'shrub'", "Ring, Exchange, Tree", "PAT");
  quiet();
  CHECK_INT(PROTOS("alltoall:LL"), SIMPLE | LL);
  SAID(1, "NCCL_PROTO", "'alltoall'", "Broadcast, Reduce, AllGather, ReduceScatter, AllReduce, SendRecv");
  quiet();
  CHECK_INT(algo("sendrecv:ring", RT_F_ALLREDUCE), ALL); /* those have no algorithm */
  SAID(1, "NCCL_ALGO", "'sendrecv'");
  quiet();
  CHECK_INT(PROTOS("LL;Simple"), LL);
  SAID(1, "'Simple'", "function", "first");
}

/* Nothing is said before a call needs it: a program may well have no other calls than those that Tree is for. */
TEST(nothing_may_be_left) {
  quiet();
  uint32_t w = rt_algo_masks("Tree");
  CHECK_INT(rt_func_mask(w, RT_F_ALLREDUCE), TREE);
  CHECK_INT(rt_func_mask(w, RT_F_BROADCAST), 0);
  CHECK_INT(rt_func_mask(w, RT_F_REDUCE), 0);
  w = rt_algo_masks("ring;allreduce:nvls,nvlstree");
  CHECK_INT(rt_func_mask(w, RT_F_ALLREDUCE), 0);
  CHECK_INT(rt_func_mask(w, RT_F_ALLGATHER), RING);
  CHECK_INT(PROTOS("^LL,Simple"), 0);
  SAID(0, "");
}

static struct rt_tuning tuning(void) {
  return (struct rt_tuning){.algos = rt_algo_masks(NULL),
                            .protos = rt_proto_masks(NULL),
                            .all_direct = true,
                            .nchannels = 3,
                            .slot_size = {512 << 10, 64 << 10},
                            .ll_max = 8192,
                            .exchange_max = 32768,
                            .tree_max = 4096,
                            .tree_max_net = 65536,
                            .pat_max_net = 4096};
}

static enum rt_proto proto(const struct rt_tuning *t, uint64_t bytes) {
  return rt_tune(t, RT_ALLGATHER, bytes, 4).proto;
}

TEST(choice_of_protocol) {
  struct rt_tuning t = tuning();
  CHECK_INT(proto(&t, 0), RT_LL);
  CHECK_INT(proto(&t, 8192), RT_LL);
  CHECK_INT(proto(&t, 8193), RT_SIMPLE);
  CHECK_INT(proto(&t, 1ull << 40), RT_SIMPLE);
  CHECK_INT(rt_tune(&t, RT_SEND, 8, 4).proto, RT_LL);
  CHECK_INT(rt_tune(&t, RT_COPY, 8, 4).proto, RT_SIMPLE); /* no connection */
  t.all_direct = false;
  CHECK_INT(proto(&t, 8), RT_SIMPLE);
  t.protos = rt_proto_masks("LL");
  CHECK_INT(proto(&t, 1ull << 40), RT_LL);
  CHECK_INT(rt_tune(&t, RT_COPY, 8, 4).proto, RT_SIMPLE);
  t.protos = rt_proto_masks("Simple");
  t.all_direct = true;
  CHECK_INT(proto(&t, 8), RT_SIMPLE);
  t.protos = rt_proto_masks("allgather:ll;allreduce:simple");
  CHECK_INT(proto(&t, 1 << 20), RT_LL);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 8, 4).proto, RT_SIMPLE);
  CHECK_INT(rt_tune(&t, RT_EXCHANGE, 8, 2).proto, RT_SIMPLE); /* an all-reduce as well */
  CHECK_INT(rt_tune(&t, RT_RECV, 8192, 4).proto, RT_LL);
  CHECK_INT(rt_tune(&t, RT_RECV, 8193, 4).proto, RT_SIMPLE);
}

TEST(each_call_goes_by_its_function) {
  static const struct {
    enum rt_coll coll;
    const char *spec;
  } calls[] = {{RT_BROADCAST, "simple;broadcast:ll"}, {RT_REDUCE, "simple;reduce:ll"},
               {RT_ALLGATHER, "simple;allgather:ll"}, {RT_REDUCE_SCATTER, "simple;reducescatter:ll"},
               {RT_ALLREDUCE, "simple;allreduce:ll"}, {RT_SEND, "simple;sendrecv:ll"},
               {RT_RECV, "simple;sendrecv:ll"}};
  struct rt_tuning t = tuning();
  for (size_t at = 0; at < sizeof calls / sizeof *calls; at++) {
    t.protos = rt_proto_masks(calls[at].spec);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
      CHECK_MSG((rt_tune(&t, calls[i].coll, 8, 4).proto == RT_LL) == (strcmp(calls[i].spec, calls[at].spec) == 0),
                "call %d with %s", (int)calls[i].coll, calls[at].spec);
  }
}

TEST(choice_of_algorithm) {
  static const struct {
    const char *spec;
    int nranks;
    uint64_t bytes;
    enum rt_coll is;
  } cases[] = {{NULL, 2, 32768, RT_EXCHANGE},     {NULL, 2, 32769, RT_ALLREDUCE},     {NULL, 3, 4096, RT_TREE},
               {NULL, 4, 65537, RT_ALLREDUCE},    {NULL, 1, 8, RT_ALLREDUCE},         {"ring", 2, 8, RT_ALLREDUCE},
               {"ring", 4, 8, RT_ALLREDUCE},      {"^tree", 3, 8, RT_ALLREDUCE},
               {"^ring", 2, 1 << 30, RT_EXCHANGE}, {"exchange", 8, 1 << 30, RT_EXCHANGE},
               {"^ring", 4, 1 << 30, RT_TREE},
               {"^ring", 3, 1 << 30, RT_TREE},    {"tree", 2, 8, RT_TREE},            {"tree", 4, 1 << 30, RT_TREE},
               {"tree,ring", 2, 8, RT_ALLREDUCE}, {"tree,ring", 4, 8, RT_TREE},       {"exchange", 2, 1, RT_EXCHANGE},
               {"tree", 1, 8, RT_ALLREDUCE},      {"^exchange", 2, 1, RT_ALLREDUCE},  {"nvls", 1, 8, RT_ALLREDUCE}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int shm = 0; shm < 2; shm++) {
      struct rt_tuning t = tuning();
      rail_log_set_sink(log_capture);
      t.algos = rt_algo_masks(cases[i].spec);
      rail_log_set_sink(NULL);
      t.all_direct = shm;
      struct rt_choice c = rt_tune(&t, RT_ALLREDUCE, cases[i].bytes, cases[i].nranks);
      CHECK_MSG(c.schedule == cases[i].is, "case %zu: schedule %d", i, c.schedule);
      CHECK_INT(c.algo, cases[i].is == RT_EXCHANGE ? RT_ALGO_EXCHANGE
                                                   : (cases[i].is == RT_TREE ? RT_ALGO_TREE : RT_ALGO_RING));
      CHECK_INT(c.nchannels, 3);
      CHECK(!c.none);
    }
  struct rt_tuning t = tuning();
  for (int coll = 0; coll < RT_COLL_COUNT; coll++) { /* nothing else is changed into anything */
    if (coll == RT_ALLREDUCE || coll == RT_EXCHANGE || coll == RT_TREE) continue;
    CHECK_INT(rt_tune(&t, (enum rt_coll)coll, 8, 2).schedule, coll);
    CHECK_INT(rt_tune(&t, (enum rt_coll)coll, 8, 2).algo, RT_ALGO_RING);
  }
}

TEST(small_exchanges_and_reduces_take_slots) {
  CHECK(!rt_tune_receives_direct(RT_EXCHANGE, 65536) && !rt_tune_receives_direct(RT_REDUCE, 1 << 20));
  CHECK(rt_tune_receives_direct(RT_EXCHANGE, 65537) && rt_tune_receives_direct(RT_ALLREDUCE, 8));
}

TEST(a_pair_over_a_network) {
  struct rt_tuning t = tuning();
  t.all_direct = false, t.exchange_max_pair = 65536;
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 65536, 2).algo, RT_ALGO_EXCHANGE);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 65537, 2).algo, RT_ALGO_RING);
  t.on_device = true;
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 32769, 2).algo, RT_ALGO_RING);
}

/* Of more than two ranks: a power of two of them, on host memory. */
TEST(an_exchange_over_a_network) {
  struct rt_tuning t = tuning();
  t.all_direct = false;
  for (int n = 3; n <= 1024; n++) {
    const bool power = (n & (n - 1)) == 0;
    CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 32768, n).algo, power ? RT_ALGO_EXCHANGE : RT_ALGO_TREE);
    CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 32769, n).algo, RT_ALGO_TREE);
  }
  const struct rt_choice c = rt_tune(&t, RT_ALLREDUCE, 8, 64);
  CHECK_INT(c.schedule, RT_EXCHANGE);
  CHECK_INT(rt_tune_links(&c, 64), 6);
  t.crowded = true; /* the fewest messages */
  t.exchange_max = 128 << 10;
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 128 << 10, 64).algo, RT_ALGO_TREE);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 128 << 10, 3).algo, RT_ALGO_TREE);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 128 << 10, 2).algo, RT_ALGO_EXCHANGE);
  t.on_device = true;
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 128 << 10, 3).algo, RT_ALGO_RING);
  t.crowded = t.on_device = false;
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 128 << 10, 3).algo, RT_ALGO_RING);
  t.on_device = true;
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 8, 4).algo, RT_ALGO_TREE);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 8, 2).algo, RT_ALGO_EXCHANGE);
  t.algos = rt_algo_masks("exchange");
  CHECK(rt_tune(&t, RT_ALLREDUCE, 8, 4).none && !rt_tune(&t, RT_ALLREDUCE, 8, 2).none);
}

TEST(small_calls) {
  struct rt_tuning t = {.algos = rt_algo_masks(NULL), .protos = rt_proto_masks(NULL), .all_direct = true,
                        .nchannels = 1, .small_max = 4096, .small_funcs = ~0u};
  CHECK(rt_tune(&t, RT_ALLREDUCE, 4096, 16).small && !rt_tune(&t, RT_ALLREDUCE, 4097, 2).small);
  CHECK(rt_tune(&t, RT_ALLREDUCE, 1024, 64).small && !rt_tune(&t, RT_ALLREDUCE, 1025, 64).small);
  /* A rank publishes its inputs for all blocks, or one block. */
  CHECK(rt_tune(&t, RT_REDUCE_SCATTER, 1024, 4).small && !rt_tune(&t, RT_REDUCE_SCATTER, 1025, 4).small);
  CHECK(rt_tune(&t, RT_ALLGATHER, 4096, 4).small && rt_tune(&t, RT_BROADCAST, 4096, 4).small);
  CHECK(!rt_tune(&t, RT_SEND, 8, 2).small && !rt_tune(&t, RT_ALLREDUCE, 8, 1).small);
  t.small_funcs = 1u << RT_F_REDUCE;
  CHECK(rt_tune(&t, RT_REDUCE, 8, 2).small && !rt_tune(&t, RT_ALLREDUCE, 8, 2).small);
  t.all_direct = false;
  CHECK(!rt_tune(&t, RT_REDUCE, 8, 2).small);
  /* Which functions NCCL_ALGO and NCCL_PROTO leave alone. */
  const struct rt_params p = {.small_max = 4096};
  CHECK_INT((int)rt_tuning_of(&p, rt_algo_masks(NULL), rt_proto_masks(NULL)).small_funcs, (1 << RT_NFUNC) - 1);
  CHECK_INT((int)rt_tuning_of(&p, rt_algo_masks("AllReduce:Ring"), rt_proto_masks("Reduce:LL")).small_funcs,
            (1 << RT_NFUNC) - 1 - (1 << RT_F_ALLREDUCE) - (1 << RT_F_REDUCE));
}

/* A step takes longer there, and a tree has fewer. */
TEST(trees_go_further_over_a_network) {
  struct rt_tuning t = tuning();
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 4096, 4).algo, RT_ALGO_TREE);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 4097, 4).algo, RT_ALGO_RING);
  t.all_direct = false;
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 65536, 4).algo, RT_ALGO_TREE);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 65537, 4).algo, RT_ALGO_RING);
}

/* Where a step is long, and no kernel runs it; and where it is named. */
TEST(log2_steps_over_a_network) {
  static const enum rt_coll colls[][2] = {{RT_BROADCAST, RT_PAT_BROADCAST},
                                          {RT_REDUCE, RT_PAT_REDUCE},
                                          {RT_ALLGATHER, RT_PAT_ALLGATHER},
                                          {RT_REDUCE_SCATTER, RT_PAT_REDUCE_SCATTER}};
  for (size_t i = 0; i < RAIL_COUNT_OF(colls); i++) {
    const enum rt_coll coll = colls[i][0], pat = colls[i][1];
    struct rt_tuning t = tuning();
    CHECK_INT(rt_tune(&t, coll, 8, 4).schedule, coll);
    t.all_direct = false;
    CHECK_INT(rt_tune(&t, coll, 8, 2).schedule, coll);
    CHECK_INT(rt_tune(&t, coll, 8, 1).schedule, coll);
    CHECK_INT(rt_tune(&t, coll, 4096, 3).schedule, pat);
    CHECK_INT(rt_tune(&t, coll, 4096, 3).algo, RT_ALGO_PAT);
    CHECK_INT(rt_tune(&t, coll, 4096, 3).func, rt_tune(&t, coll, 4097, 3).func);
    CHECK_INT(rt_tune(&t, coll, 4097, 3).schedule, coll);
    CHECK(rt_tune(&t, coll, 8, 3).algo_measured);
    t.on_device = true;
    CHECK_INT(rt_tune(&t, coll, 8, 4).schedule, coll);
    t.algos = rt_algo_masks("PAT");
    CHECK(rt_tune(&t, coll, 8, 4).none);
    t.on_device = false;
    t.all_direct = true;
    CHECK_INT(rt_tune(&t, coll, 1 << 30, 2).schedule, pat);
    CHECK(rt_tune(&t, RT_ALLREDUCE, 8, 4).none);
    t.algos = rt_algo_masks("^PAT");
    t.all_direct = false;
    CHECK_INT(rt_tune(&t, coll, 8, 4).schedule, coll);
  }
}

TEST(sends_have_no_algorithm) {
  static const char *const specs[] = {NULL, "PAT", "Ring", "Tree"};
  for (size_t i = 0; i < RAIL_COUNT_OF(specs); i++)
    for (int shm = 0; shm < 2; shm++) {
      struct rt_tuning t = tuning();
      t.algos = rt_algo_masks(specs[i]);
      t.all_direct = shm;
      const struct rt_choice c = rt_tune(&t, i % 2 ? RT_SEND : RT_RECV, 8, 4);
      CHECK(!c.none && c.algo == RT_ALGO_RING && c.schedule == (i % 2 ? RT_SEND : RT_RECV));
    }
}

TEST(both_trees_share_what_is_worth_it) {
  struct rt_tuning t = tuning();
  t.algos = rt_algo_masks("tree");
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 3 * 2 * 16384 - 1, 4).ntrees, 1);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 3 * 2 * 16384, 4).ntrees, 2);
  t.all_direct = false;
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 3 * 2 * 65536 - 1, 4).ntrees, 1);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 3 * 2 * 65536, 4).ntrees, 2);
  t.algos = rt_algo_masks("ring");
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 1 << 30, 4).ntrees, 1);
}

/* What cannot be done with what is left. */
TEST(calls_that_must_fail) {
  struct rt_tuning t = tuning();
  t.algos = rt_algo_masks("tree");
  CHECK(rt_tune(&t, RT_BROADCAST, 8, 4).none && rt_tune(&t, RT_REDUCE, 8, 2).none);
  CHECK_INT(rt_tune(&t, RT_REDUCE, 8, 2).func, RT_F_REDUCE);
  CHECK(!rt_tune(&t, RT_BROADCAST, 8, 1).none); /* one rank moves nothing */
  CHECK(!rt_tune(&t, RT_SEND, 8, 4).none && !rt_tune(&t, RT_COPY, 8, 4).none);
  t.algos = rt_algo_masks("exchange");
  CHECK(rt_tune(&t, RT_ALLREDUCE, 8, 3).none && !rt_tune(&t, RT_ALLREDUCE, 8, 2).none);
  t = tuning();
  t.protos = rt_proto_masks("^LL,Simple");
  CHECK(rt_tune(&t, RT_SEND, 8, 4).none && rt_tune(&t, RT_ALLREDUCE, 8, 4).none);
}

/* A file is named where there was a choice. */
TEST(where_it_was_measured) {
  struct rt_tuning t = tuning();
  struct rt_choice c = rt_tune(&t, RT_ALLREDUCE, 8, 2);
  CHECK(c.algo_measured && c.proto_measured);
  CHECK(rt_tune(&t, RT_ALLREDUCE, 8, 8).algo_measured != c.algo_measured);
  CHECK(rt_tune(&t, RT_ALLREDUCE, 1 << 30, 8).algo_measured);
  CHECK(!rt_tune(&t, RT_REDUCE, 8, 2).algo_measured);
  t.all_direct = false;
  CHECK(!rt_tune(&t, RT_ALLREDUCE, 8, 2).proto_measured);
  t.algos = rt_algo_masks("ring");
  CHECK(!rt_tune(&t, RT_ALLREDUCE, 8, 2).algo_measured);
  CHECK(!rt_tune(&t, RT_ALLREDUCE, 8, 8).algo_measured);
}

TEST(chunks_fit_their_slots) {
  const uint64_t slots[] = {64, 2048, 65536, 512 << 10, 128 << 20};
  const size_t esizes[] = {1, 2, 4, 8};
  for (int p = 0; p <= RD_LL128; p++)
    for (size_t s = p == RD_LL128; s < 5; s++) /* whose slots are larger than a line */
      for (size_t e = 0; e < 4; e++)
        for (int coll = 0; coll < RT_COLL_COUNT; coll++)
          for (uint64_t fixed = 0; fixed <= 1 << 20; fixed = fixed ? fixed * 1024 : 1)
            for (uint64_t bytes = 0; bytes < 1ull << 40; bytes = bytes * 3 + 8) {
              struct rt_tuning t = tuning();
              t.slot_size[p == RD_LL128 ? RT_SIMPLE : p] = slots[s];
              t.chunk = fixed;
              uint64_t n = rt_tune_chunk(&t, (enum rt_proto)p, (enum rt_coll)coll, bytes, 4, esizes[e]);
              CHECK(n >= 1);
              CHECK_MSG(rt_proto_bytes((enum rt_proto)p, n * esizes[e]) <= slots[s],
                        "proto %d: %llu elements of %zu bytes in a slot of %llu", p, (unsigned long long)n, esizes[e],
                        (unsigned long long)slots[s]);
            }
}

TEST(chunks_over_a_network_are_larger) {
  struct rt_tuning t = tuning();
  t.slot_size[RT_SIMPLE] = 512 << 10;
  CHECK_INT((int)rt_tune_chunk(&t, RT_SIMPLE, RT_ALLREDUCE, 64 << 20, 2, 1), 128 << 10);
  t.all_direct = false;
  CHECK_INT((int)rt_tune_chunk(&t, RT_SIMPLE, RT_ALLREDUCE, 64 << 20, 2, 1), 256 << 10);
  CHECK_INT((int)rt_tune_chunk(&t, RT_SIMPLE, RT_ALLREDUCE, 256 << 10, 2, 1), 128 << 10);
  CHECK_INT((int)rt_tune_chunk(&t, RT_SIMPLE, RT_BROADCAST, 64 << 20, 2, 1), 256 << 10);
  CHECK_INT((int)rt_tune_chunk(&t, RT_SIMPLE, RT_BROADCAST, 64 << 20, 3, 1), 128 << 10);
}

/* A channel for each 32 KiB of a step, as far as there are blocks. */
TEST(channels_of_gpus) {
  struct rt_tuning t = tuning();
  t.blocks = t.nchannels = 8;
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 4 * 32768 - 1, 2).nchannels, 1);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 4 * 32768, 2).nchannels, 2);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 4 * 32768, 4).nchannels, 1);
  CHECK_INT(rt_tune(&t, RT_ALLGATHER, 2 * 32768, 4).nchannels, 2);
  CHECK_INT(rt_tune(&t, RT_BROADCAST, 1ull << 40, 4).nchannels, 8);
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 0, 4).nchannels, 1);
  CHECK_INT(rt_tune(&t, RT_SEND, 1ull << 40, 4).nchannels, 1);
  t.blocks = 0;
  CHECK_INT(rt_tune(&t, RT_ALLREDUCE, 0, 4).nchannels, 8);
}

TEST(kernels_of_a_gpu) {
  struct rt_tuning t = tuning();
  CHECK_INT(rt_tune_device(&t, RT_ALLREDUCE, RT_SIMPLE), RT_SIMPLE); /* it must be named */
  t.protos = rt_proto_masks("allreduce:LL128;broadcast:LL");
  CHECK_INT(rt_tune_device(&t, RT_ALLREDUCE, RT_SIMPLE), RD_LL128);
  CHECK_INT(rt_tune_device(&t, RT_EXCHANGE, RT_SIMPLE), RD_LL128);
  CHECK_INT(rt_tune_device(&t, RT_ALLREDUCE, RT_LL), RT_LL);
  CHECK_INT(rt_tune_device(&t, RT_BROADCAST, RT_SIMPLE), RT_SIMPLE);
  CHECK_INT(rt_tune_device(&t, RT_COPY, RT_SIMPLE), RT_SIMPLE);
  CHECK(rt_func_mask_any(t.protos, RD_LL128) && !rt_func_mask_any(rt_proto_masks("LL"), RD_LL128));
}

TEST(payload_and_bytes_agree) {
  CHECK_INT(rt_proto_bytes(RT_SIMPLE, 1000), 1000);
  CHECK_INT(rt_proto_bytes(RT_LL, 0), 16); /* an empty message is a line all the same */
  CHECK_INT(rt_proto_bytes(RT_LL, 1), 16);
  CHECK_INT(rt_proto_bytes(RT_LL, 8), 16);
  CHECK_INT(rt_proto_bytes(RT_LL, 9), 32);
  for (uint64_t slot = 64; slot < 1 << 20; slot *= 2)
    CHECK(rt_proto_bytes(RT_LL, rt_proto_payload(RT_LL, slot)) <= slot);
}

/* More ranks send more, and take more steps: by how much follows from the schedule. */
TEST(estimates_go_by_what_a_rank_sends) {
  const uint64_t mib = 1 << 20;
  for (int shm = 0; shm < 2; shm++) {
    double step = rt_estimate_us(RT_SEND, 0, 2, shm), one = rt_estimate_us(RT_SEND, mib, 2, shm) - step;
    for (int n = 2; n <= 9; n++) {
      const struct { enum rt_coll coll; double steps, sent; } rows[] = {
          {RT_ALLREDUCE, 2 * (n - 1), 2.0 * (n - 1) / n}, {RT_ALLGATHER, n - 1, n - 1},
          {RT_REDUCE_SCATTER, n - 1, n - 1},
          {RT_BROADCAST, n - 1, 1}, {RT_REDUCE, n - 1, 1}, {RT_RECV, 1, 1},
          {RT_EXCHANGE, rt_sched_rounds(n), rt_sched_rounds(n)},
          {RT_TREE, 2 * rt_tree_depth(n), 2},
          {RT_PAT_ALLGATHER, rt_sched_rounds(n), n - 1},
          {RT_PAT_REDUCE_SCATTER, rt_sched_rounds(n), n - 1},
          {RT_PAT_BROADCAST, rt_sched_rounds(n), rt_sched_rounds(n)},
          {RT_PAT_REDUCE, rt_sched_rounds(n), rt_sched_rounds(n)},
      };
      for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) {
        double want = rows[i].steps * step + rows[i].sent * one, got = rt_estimate_us(rows[i].coll, mib, n, shm);
        CHECK_MSG(got > want * 0.999 && got < want * 1.001, "schedule %d, %d ranks: %g us, expected %g",
                  (int)rows[i].coll, n, got, want);
      }
    }
    CHECK(rt_estimate_us(RT_ALLREDUCE, mib, 1, shm) == 0);
  }
}

TEST_MAIN(TEST_CASE(words), TEST_CASE(algorithms), TEST_CASE(each_function_its_list), TEST_CASE(long_lists),
          TEST_CASE(wrong_words_are_named), TEST_CASE(nothing_may_be_left), TEST_CASE(choice_of_protocol),
          TEST_CASE(each_call_goes_by_its_function), TEST_CASE(choice_of_algorithm), TEST_CASE(a_pair_over_a_network),
          TEST_CASE(small_exchanges_and_reduces_take_slots), TEST_CASE(an_exchange_over_a_network),
          TEST_CASE(small_calls), TEST_CASE(trees_go_further_over_a_network), TEST_CASE(log2_steps_over_a_network),
          TEST_CASE(sends_have_no_algorithm), TEST_CASE(both_trees_share_what_is_worth_it),
          TEST_CASE(calls_that_must_fail), TEST_CASE(where_it_was_measured), TEST_CASE(chunks_fit_their_slots),
          TEST_CASE(chunks_over_a_network_are_larger), TEST_CASE(payload_and_bytes_agree), TEST_CASE(channels_of_gpus),
          TEST_CASE(estimates_go_by_what_a_rank_sends), TEST_CASE(kernels_of_a_gpu))
