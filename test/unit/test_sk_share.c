/* SPDX-License-Identifier: Apache-2.0
 * How much of large messages each of several streams is given: less where one holds up the others. */
#include "plugin/socket/sk_share.h"

#include "test/harness/tap.h"

enum { STREAMS = 4, CHUNK = 256 * 1024, ENDLESS = 1 << 30 };

static struct sk_stream streams[STREAMS];
static struct sk_shares shares;

static void begin(uint32_t chunk) {
  for (uint16_t i = 0; i < STREAMS; i++) streams[i] = (struct sk_stream){.fd = -1, .index = i};
  sk_shares_init(&shares, STREAMS, chunk);
}

/* So many periods in which the streams of `busy`, a bit each, hold something at every new message. */
static void pass(int periods, unsigned int busy) {
  for (unsigned int i = 0; i < STREAMS; i++) streams[i].out_count = busy >> i & 1;
  for (int i = 0; i < 16 * periods; i++) sk_shares_look(&shares, streams, CHUNK * 2);
}

static uint32_t given(uint32_t stream) { return sk_shares_chunk(&shares, stream, ENDLESS, ENDLESS); }

TEST(all_have_a_piece_of_at_least_64_kib) {
  begin(CHUNK);
  CHECK_INT(sk_shares_chunk(&shares, 0, 512 * 1024, 512 * 1024), 128 * 1024);
  CHECK_INT(sk_shares_chunk(&shares, 0, 512 * 1024, 100), 100);
  CHECK_INT(sk_shares_chunk(&shares, 0, 100 * 1024, 100 * 1024), 64 * 1024);
  CHECK_INT(given(0), CHUNK);
}

TEST(a_stream_that_holds_up_the_others_is_given_less) {
  begin(CHUNK);
  for (uint32_t most = CHUNK; most > SK_LEAST_SHARE; most /= 2) {
    CHECK_INT(given(2), most);
    pass(1, 1u << 2);
  }
  pass(3, 1u << 2);
  CHECK_INT(given(2), SK_LEAST_SHARE);
  CHECK_INT(given(1), CHUNK);
  pass(8, 0); /* it does no more */
  CHECK_INT(given(2), 2 * SK_LEAST_SHARE);
  pass(8 * 4, 0);
  CHECK_INT(given(2), CHUNK);
}

TEST(streams_that_are_all_busy_or_idle_are_given_as_much_as_before) {
  begin(CHUNK);
  pass(20, (1u << STREAMS) - 1);
  for (uint32_t i = 0; i < STREAMS; i++) CHECK_INT(given(i), CHUNK);
  pass(20, 0);
  for (uint32_t i = 0; i < STREAMS; i++) CHECK_INT(given(i), CHUNK);
  pass(1, 7); /* three of four: the connection is at its limit, not at theirs */
  for (uint32_t i = 0; i < STREAMS; i++) CHECK_INT(given(i), CHUNK);
}

/* NCCL's LL128 needs lines of 128 bytes whole. */
TEST(pieces_end_at_lines) {
  begin(100000);
  for (int i = 0; i < 5; i++) {
    CHECK_INT(given(3) % 128, 0);
    CHECK_INT(sk_shares_chunk(&shares, 3, 300001, ENDLESS) % 128, 0);
    pass(1, 1u << 3);
  }
}

TEST_MAIN(TEST_CASE(all_have_a_piece_of_at_least_64_kib),
          TEST_CASE(a_stream_that_holds_up_the_others_is_given_less),
          TEST_CASE(streams_that_are_all_busy_or_idle_are_given_as_much_as_before), TEST_CASE(pieces_end_at_lines))
