/* SPDX-License-Identifier: Apache-2.0
 * Proves: NCCL_PROTO's words, the choice between LL and Simple, and that chunks fit their slots. */
#include "core/rt_proto.h"

#include "common/log.h"
#include "core/kernel/rt_kernel.h"
#include "test/harness/tap.h"

#define SIMPLE (1u << RT_SIMPLE)
#define LL (1u << RT_LL)

static int warnings;
static char warned[512];

__attribute__((format(printf, 5, 6))) static void capture(enum rail_log_level level, unsigned long flags,
                                                          const char *file, int line, const char *fmt, ...) {
  (void)flags, (void)file, (void)line;
  if (level > RAIL_LOG_WARN) return;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(warned, sizeof warned, fmt, ap);
  va_end(ap);
  warnings++;
}

TEST(words) {
  rail_log_set_sink(capture);
  warnings = 0;
  CHECK_INT(rt_protos_allowed(NULL), SIMPLE | LL);
  CHECK_INT(rt_protos_allowed(""), SIMPLE | LL);
  CHECK_INT(rt_protos_allowed("Simple"), SIMPLE);
  CHECK_INT(rt_protos_allowed("simple"), SIMPLE);
  CHECK_INT(rt_protos_allowed("LL"), LL);
  CHECK_INT(rt_protos_allowed("ll"), LL);
  CHECK_INT(rt_protos_allowed("LL,Simple"), SIMPLE | LL);
  CHECK_INT(rt_protos_allowed("LL128"), SIMPLE);
  CHECK_INT(rt_protos_allowed("^LL"), SIMPLE);
  CHECK_INT(rt_protos_allowed("^Simple"), LL);
  CHECK_INT(warnings, 0);
  rail_log_set_sink(NULL);
}

/* LL128 is accepted as a word, but excluding it must not exclude Simple, which stands in for it. */
TEST(excluding_ll128_leaves_the_others) {
  rail_log_set_sink(capture);
  warnings = 0;
  unsigned got = rt_protos_allowed("^LL128");
  unsigned both = rt_protos_allowed("^LL,LL128");
  rail_log_set_sink(NULL);
  CHECK_INT(got, SIMPLE | LL);
  CHECK_INT(both, SIMPLE);
  CHECK_INT(warnings, 0);
}

TEST(wrong_words_are_named) {
  rail_log_set_sink(capture);
  warnings = 0;
  unsigned got = rt_protos_allowed("LL,Fast");
  CHECK_INT(got, LL);
  CHECK_INT(warnings, 1);
  CHECK_MSG(strstr(warned, "Fast") && strstr(warned, "NCCL_PROTO"), "%s", warned);
  warnings = 0;
  got = rt_protos_allowed("^LL,Simple");
  rail_log_set_sink(NULL);
  CHECK_INT(got, SIMPLE | LL);
  CHECK_INT(warnings, 1);
}

static struct rt_tuning tuning(void) {
  return (struct rt_tuning){.protos = SIMPLE | LL, .all_shm = true, .slot_size = {512 << 10, 64 << 10}, .ll_max = 8192};
}

TEST(choice_of_protocol) {
  struct rt_tuning t = tuning();
  CHECK_INT(rt_choose_proto(&t, 0), RT_LL);
  CHECK_INT(rt_choose_proto(&t, 8192), RT_LL);
  CHECK_INT(rt_choose_proto(&t, 8193), RT_SIMPLE);
  CHECK_INT(rt_choose_proto(&t, 1ull << 40), RT_SIMPLE);
  t.all_shm = false;
  CHECK_INT(rt_choose_proto(&t, 8), RT_SIMPLE);
  t.protos = LL;
  CHECK_INT(rt_choose_proto(&t, 1ull << 40), RT_LL);
  t.protos = SIMPLE;
  t.all_shm = true;
  CHECK_INT(rt_choose_proto(&t, 8), RT_SIMPLE);
}

TEST(chunks_fit_their_slots) {
  const uint64_t slots[] = {64, 2048, 65536, 512 << 10, 128 << 20};
  const size_t esizes[] = {1, 2, 4, 8};
  for (int proto = 0; proto < RT_NPROTO; proto++)
    for (size_t s = 0; s < 5; s++)
      for (size_t e = 0; e < 4; e++)
        for (int coll = 0; coll < RT_COLL_COUNT; coll++)
          for (uint64_t fixed = 0; fixed <= 1 << 20; fixed = fixed ? fixed * 1024 : 1)
            for (uint64_t bytes = 0; bytes < 1ull << 40; bytes = bytes * 3 + 8) {
              struct rt_tuning t = tuning();
              t.slot_size[proto] = slots[s];
              t.chunk = fixed;
              uint64_t n = rt_choose_chunk(&t, (enum rt_proto)proto, (enum rt_coll)coll, bytes, 4, esizes[e]);
              CHECK(n >= 1);
              CHECK_MSG(rt_proto_bytes((enum rt_proto)proto, n * esizes[e]) <= slots[s],
                        "proto %d: %llu elements of %zu bytes in a slot of %llu", proto, (unsigned long long)n,
                        esizes[e], (unsigned long long)slots[s]);
            }
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

TEST_MAIN(TEST_CASE(words), TEST_CASE(excluding_ll128_leaves_the_others), TEST_CASE(wrong_words_are_named),
          TEST_CASE(choice_of_protocol), TEST_CASE(chunks_fit_their_slots), TEST_CASE(payload_and_bytes_agree))
