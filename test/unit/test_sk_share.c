/* SPDX-License-Identifier: Apache-2.0
 * How much of large messages each of several streams is given: less where one holds up the others. */
#include "plugin/socket/sk_send.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_ensure.h"
#include "test/harness/tap.h"

enum { STREAMS = 4, CHUNK = 256 * 1024, ENDLESS = 1 << 30 };

static struct sk_stream streams[STREAMS];
static struct sk_shares shares;

/* `lost`: a bit for each stream. No socket stands behind the others: what they hold is out_count. */
static void lose(unsigned int lost) {
  for (int i = 0; i < STREAMS; i++) streams[i].fd = lost >> i & 1 ? -1 : 0;
}

static void begin(uint32_t chunk) {
  for (int i = 0; i < STREAMS; i++) streams[i] = (struct sk_stream){.index = (uint16_t)i};
  sk_shares_init(&shares, STREAMS, chunk);
}

/* So many periods in which the streams of `busy`, a bit each, hold something at every new message. */
static void pass(int periods, unsigned int busy) {
  for (unsigned int i = 0; i < STREAMS; i++) streams[i].out_count = busy >> i & 1;
  for (int i = 0; i < 16 * periods; i++) sk_shares_sample(&shares, streams, CHUNK * 2);
}

static uint32_t given(uint32_t stream) { return sk_shares_chunk(&shares, stream, ENDLESS, ENDLESS); }

TEST(all_have_a_chunk_of_at_least_64_kib) {
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

/* They carry all, and are busy: none of them holds up the others. */
TEST(streams_that_are_left_are_given_as_much_as_before) {
  begin(CHUNK);
  lose(0x6);
  pass(20, 0x9);
  CHECK_INT(given(0), CHUNK);
  CHECK_INT(given(3), CHUNK);
  lose(0x7);
  pass(20, 0x8);
  CHECK_INT(given(3), CHUNK);
}

TEST(a_stream_that_comes_back_is_given_as_much_as_the_others) {
  begin(CHUNK);
  pass(3, 1u << 1);
  CHECK_INT(given(1), CHUNK / 8);
  sk_shares_renew(&shares, 1);
  CHECK_INT(given(1), CHUNK);
}

/* Of loopback TCP. */
static void connect_pair(int ends[2]) {
  struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof addr;
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  CHECK(bind(listener, (struct sockaddr *)(void *)&addr, sizeof addr) == 0 && listen(listener, 1) == 0);
  CHECK(getsockname(listener, (struct sockaddr *)(void *)&addr, &len) == 0);
  CHECK(connect(ends[0], (struct sockaddr *)(void *)&addr, sizeof addr) == 0);
  ends[1] = accept(listener, NULL, NULL);
  CHECK(ends[1] >= 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
  close(listener);
}

static uint32_t unsent_limit(int fd) {
  uint32_t limit = 0;
  socklen_t len = sizeof limit;
  CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &limit, &len) == 0);
  return limit;
}

TEST(a_socket_that_holds_unsent_bytes_is_busy) {
  static char bytes[1 << 20];
  int ends[2];
  begin(CHUNK);
  connect_pair(ends);
  streams[0].fd = ends[0];
  CHECK(!sk_stream_is_busy(&streams[0]));
  while (send(ends[0], bytes, sizeof bytes, MSG_NOSIGNAL) > 0) continue;
  CHECK(sk_stream_is_busy(&streams[0]));
  pass(1, 0);
  CHECK_INT(given(0), CHUNK / 2);
  CHECK_INT(unsent_limit(ends[0]), CHUNK / 2);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
  for (; sk_stream_is_busy(&streams[0]); poll(NULL, 0, 1)) {
    while (recv(ends[1], bytes, sizeof bytes, 0) > 0) continue;
    CHECK(!rail_deadline_passed(deadline));
  }
  pass(8, 0);
  CHECK_INT(unsent_limit(ends[0]), SK_UNSENT_BYTES);
  close(ends[0]);
  close(ends[1]);
}

/* NCCL's LL128 needs lines of 128 bytes whole. */
TEST(chunks_end_at_lines) {
  begin(100000);
  for (int i = 0; i < 5; i++) {
    CHECK_INT(given(3) % 128, 0);
    CHECK_INT(sk_shares_chunk(&shares, 3, 300001, ENDLESS) % 128, 0);
    pass(1, 1u << 3);
  }
}

TEST_MAIN(TEST_CASE(all_have_a_chunk_of_at_least_64_kib),
          TEST_CASE(a_stream_that_holds_up_the_others_is_given_less),
          TEST_CASE(streams_that_are_all_busy_or_idle_are_given_as_much_as_before),
          TEST_CASE(streams_that_are_left_are_given_as_much_as_before),
          TEST_CASE(a_stream_that_comes_back_is_given_as_much_as_the_others),
          TEST_CASE(a_socket_that_holds_unsent_bytes_is_busy), TEST_CASE(chunks_end_at_lines))
