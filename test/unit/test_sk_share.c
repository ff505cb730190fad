/* SPDX-License-Identifier: Apache-2.0
 * How much of large messages each of several streams is given: less where one holds up the others. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "test/unit/sk_data.h"

enum { STREAMS = 4, CHUNK = 256 * 1024, SHARED = 256 * 1024, ENDLESS = 1 << 30 };

static struct sk_stream streams[STREAMS];
static struct sk_shares shares;
static uint64_t now;

#define NO_SOCKET (1 << 28) /* not open: what a stream holds is out_bytes */

/* `lost`: a bit for each stream. */
static void lose(unsigned int lost) {
  for (int i = 0; i < STREAMS; i++) streams[i].fd = lost >> i & 1 ? -1 : NO_SOCKET;
}

static void begin(uint32_t chunk) {
  now = 1;
  for (int i = 0; i < STREAMS; i++) {
    streams[i] = (struct sk_stream){.index = (uint16_t)i, .fd = NO_SOCKET};
    streams[i].counts.stream = streams[i].counts.own;
  }
  sk_shares_init(&shares, STREAMS, chunk);
  sk_shares_begin(&shares);
}

/* A stream over a path of this rate, which was given `held` bytes more than have arrived, for `busy` of the time. */
struct flow {
  double mb_s, held, busy;
};

/* So many periods. A stream holds no more than its limit. */
static void pass(int periods, const struct flow flows[STREAMS]) {
  const int samples = SK_SHARES_PERIOD_NS / SK_SHARES_SAMPLE_NS;
  for (int n = 0; n < periods * samples; n++) {
    now += SK_SHARES_SAMPLE_NS;
    for (int i = 0; i < STREAMS; i++) {
      const struct flow *f = &flows[i];
      double limit = shares.limit[i] ? shares.limit[i] : 1e9, most = f->held < limit ? f->held : limit;
      bool idle = n % samples >= f->busy * samples;
      streams[i].out_bytes = idle ? 0 : (uint64_t)most;
      if (!idle) rail_stats_add(&streams[i].counts.stream[SK_STREAM_BYTES],
                                (uint64_t)(f->mb_s * SK_SHARES_SAMPLE_NS / 1e3));
    }
    sk_shares_sample(&shares, streams, now);
  }
}

static uint32_t given(uint32_t stream) { return sk_shares_chunk_size(&shares, stream, ENDLESS, ENDLESS); }
static void check_unlimited(uint32_t stream) {
  CHECK_INT(shares.limit[stream], 0);
  CHECK_INT(given(stream), CHUNK);
}

TEST(all_have_a_chunk_of_at_least_64_kib) {
  begin(CHUNK);
  CHECK_INT(sk_shares_chunk_size(&shares, 0, 512 * 1024, 512 * 1024), 128 * 1024);
  CHECK_INT(sk_shares_chunk_size(&shares, 0, 512 * 1024, 100), 100);
  CHECK_INT(sk_shares_chunk_size(&shares, 0, 100 * 1024, 100 * 1024), 64 * 1024);
  CHECK_INT(given(0), CHUNK);
}

/* Its bytes take 80 ms, theirs 4. */
static const struct flow one_slow[] = {{60, 240e3, 0.4}, {60, 240e3, 0.4}, {5, 400e3, 1}, {60, 240e3, 0.4}};

TEST(a_slow_stream_holds_what_its_path_sends_in_the_time_of_the_others) {
  begin(CHUNK);
  pass(10, one_slow);
  for (uint32_t i = 0; i < STREAMS; i++)
    if (i != 2) check_unlimited(i);
  CHECK(shares.limit[2] >= SK_LEAST_LIMIT && shares.limit[2] < 32 * 1024); /* 20,000 bytes in 4 ms */
  CHECK(given(2) <= shares.limit[2] / 2 + 128);
  streams[2].out_bytes = shares.limit[2] / 2;
  CHECK(sk_shares_may_take(&shares, &streams[2]));
  streams[2].out_bytes++;
  CHECK(!sk_shares_may_take(&shares, &streams[2]));
  CHECK(sk_shares_may_take(&shares, &streams[1]));
}

/* Three times their delay, and a twentieth more of the time: chance. */
TEST(a_stream_that_is_hardly_longer_busy_has_no_limit) {
  static const struct flow hardly[] = {{60, 240e3, 0.95}, {60, 240e3, 0.95}, {20, 240e3, 1}, {60, 240e3, 0.95}};
  begin(CHUNK);
  pass(5, hardly);
  check_unlimited(2);
}

/* One and a half times their delay: too little for a first limit, enough to lower one. */
TEST(a_limit_is_lowered_sooner_than_a_first_one_is_set) {
  static const struct flow longer[] = {{60, 240e3, 0.4}, {60, 240e3, 0.4}, {40, 240e3, 1}, {60, 240e3, 0.4}};
  begin(CHUNK);
  pass(5, longer);
  check_unlimited(2);
  shares.limit[2] = 240000;
  pass(1, longer);
  CHECK_MSG(shares.limit[2] < 240000, "the limit is %u", shares.limit[2]);
}

TEST(the_main_stream_that_holds_up_what_the_receiver_reads_is_slow) {
  static const struct flow stuck[] = {{5, 470e3, 1}, {5, 60e3, 0.96}, {5, 60e3, 0.96}, {5, 60e3, 0.96}};
  begin(CHUNK);
  pass(1, stuck);
  CHECK_INT(shares.limit[0], 470000);
  pass(1, stuck);
  CHECK_INT(shares.limit[0], 235000);
}

/* With a long queue in the network: the first limit is less than would be taken off. */
TEST(a_slow_stream_that_holds_much_has_a_limit) {
  static const struct flow much[] = {{60, 240e3, 0.4}, {60, 240e3, 0.4}, {5, 20e6, 1}, {60, 240e3, 0.4}};
  begin(CHUNK);
  pass(1, much);
  CHECK_INT(shares.limit[2], 4 << 20);
  pass(12, much);
  CHECK(shares.limit[2] < 32 * 1024);
}

/* It holds nearly all that it may, for little longer than the others. */
TEST(a_limit_that_is_too_high_is_never_raised) {
  static const struct flow nearly[] = {{60, 240e3, 0.85}, {60, 240e3, 0.85}, {5, 24e3, 1}, {60, 240e3, 0.85}};
  begin(CHUNK);
  pass(1, one_slow);
  uint32_t limit = shares.limit[2] = 25000;
  for (int i = 0; i < 5; i++) {
    pass(1, nearly);
    CHECK(shares.limit[2] <= limit);
    limit = shares.limit[2];
  }
}

/* What it holds is 1.4 times what its path sends in the time of the others, for the part of the time that they hold
 * bytes, or half of the limit before. */
TEST(a_limit_falls_to_what_makes_its_delay_less_than_the_others) {
  static const struct flow one_half[] = {{60, 240e3, 0.8}, {60, 240e3, 0.8}, {50, 2e6, 1}, {60, 240e3, 0.8}};
  begin(CHUNK);
  pass(10, one_half);
  CHECK_MSG(shares.limit[2] > 180e3 && shares.limit[2] < 240e3, "the limit is %u", shares.limit[2]);
}

/* A caller that sends nothing for a part of the time: this stream is idle hardly longer than the others. */
TEST(a_limit_is_not_raised_because_all_are_idle) {
  static const struct flow idle[] = {{60, 360e3, 0.7}, {60, 360e3, 0.7}, {5, 29e3, 0.63}, {60, 360e3, 0.7}};
  begin(CHUNK);
  shares.limit[2] = 60000;
  pass(5, idle);
  CHECK_INT(shares.limit[2], 60000);
}

TEST(a_path_that_is_fast_again_has_no_limit) {
  static const struct flow equal[] = {{60, 240e3, 1}, {60, 240e3, 1}, {60, 240e3, 1}, {60, 240e3, 1}};
  static const struct flow empty[] = {{60, 240e3, 1}, {60, 240e3, 1}, {60, 200e3, 0.5}, {60, 240e3, 1}};
  begin(CHUNK);
  pass(10, one_slow);
  CHECK(shares.limit[2] > 0);
  pass(10, equal);
  CHECK(!shares.limit[2] || shares.limit[2] > 100e3); /* half of what the others hold, and it is never idle */
  pass(30, empty);
  check_unlimited(2);
}

TEST(streams_that_take_as_long_have_no_limit) {
  static const struct flow alike[] = {{60, 420e3, 1}, {60, 470e3, 1}, {60, 500e3, 1}, {60, 390e3, 1}};
  static const struct flow unequal[] = {{60, 240e3, 1}, {5, 30e3, 1}, {600, 2400e3, 1}, {60, 300e3, 1}};
  static const struct flow short_delays[] = {{2000, 20e3, 0.5}, {2000, 20e3, 0.5}, {500, 200e3, 1}, {2000, 20e3, 0.5}};
  begin(CHUNK);
  pass(20, alike);
  pass(20, unequal);
  pass(20, short_delays);
  for (uint32_t i = 0; i < STREAMS; i++) check_unlimited(i);
}

/* They carry all: none of them holds up the others. */
TEST(streams_that_are_left_have_no_limit) {
  begin(CHUNK);
  lose(0xb);
  pass(20, one_slow);
  check_unlimited(2);
}

TEST(a_stream_that_is_lost_or_comes_back_takes_all_limits_off) {
  begin(CHUNK);
  pass(10, one_slow);
  CHECK(shares.limit[2] > 0);
  sk_shares_renew(&shares);
  CHECK(shares.under_way);
  for (uint32_t i = 0; i < STREAMS; i++) check_unlimited(i);
}

/* Each was slow once; whichever is live must take what there is. */
TEST(one_stream_always_may_take) {
  begin(CHUNK);
  lose(0xc);
  static const struct flow first[STREAMS] = {{5, 400e3, 1}, {60, 100e3, 0.4}};
  static const struct flow second[STREAMS] = {{60, 16e3, 1}, {5, 400e3, 1}};
  pass(2, first);
  CHECK(shares.limit[0] > 0);
  for (int i = 0; i < 10; i++) {
    pass(1, second);
    CHECK(!shares.limit[0] || !shares.limit[1]);
  }
}

/* All have come to a limit: those that are about as fast as the fastest lose theirs, the slow one does not. */
TEST(a_slow_stream_keeps_its_limit_when_all_have_one) {
  static const struct flow flows[] = {{60, 240e3, 1}, {80, 320e3, 1}, {5, 20e3, 1}, {36, 144e3, 1}};
  const uint32_t limits[STREAMS] = {400000, 400000, 25000, 400000};
  begin(CHUNK);
  memcpy(shares.limit, limits, sizeof limits);
  pass(1, flows);
  for (uint32_t i = 0; i < STREAMS; i++) CHECK_INT(shares.limit[i], i < 2 ? 0 : limits[i]);
}

TEST(samples_end_when_nothing_is_held) {
  begin(CHUNK);
  pass(1, one_slow);
  CHECK(shares.under_way);
  for (int i = 0; i < STREAMS; i++) streams[i].out_bytes = 0;
  sk_shares_sample(&shares, streams, now += SK_SHARES_SAMPLE_NS);
  CHECK(!shares.under_way);
}

TEST(a_pause_is_not_counted) {
  begin(CHUNK);
  for (int i = 0; i < 100; i++) {
    streams[2].out_bytes = 400000;
    rail_stats_add(&streams[1].counts.stream[SK_STREAM_BYTES], 100000);
    sk_shares_sample(&shares, streams, now += SK_SHARES_PAUSE_NS + 1);
  }
  check_unlimited(2);
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

TEST(a_stream_holds_what_its_socket_has_not_delivered) {
  static char bytes[1 << 20];
  int ends[2];
  begin(CHUNK);
  connect_pair(ends);
  streams[0].fd = ends[0];
  CHECK_INT(sk_stream_held(&streams[0]), 0);
  while (send(ends[0], bytes, sizeof bytes, MSG_NOSIGNAL) > 0) continue;
  CHECK(sk_stream_held(&streams[0]) > CHUNK);
  CHECK(sk_stream_min_rtt_ns(&streams[0]) < 1000000000);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
  for (; sk_stream_held(&streams[0]); poll(NULL, 0, 1)) {
    while (recv(ends[1], bytes, sizeof bytes, 0) > 0) continue;
    CHECK(!rail_deadline_passed(deadline));
  }
  streams[0].out_bytes = 100;
  CHECK_INT(sk_stream_held(&streams[0]), 100);
  close(ends[0]);
  close(ends[1]);
}

/* NCCL's LL128 needs lines of 128 bytes whole. */
TEST(chunks_end_at_lines) {
  begin(100000);
  for (int i = 0; i < 5; i++) {
    CHECK_INT(given(2) % 128, 0);
    CHECK_INT(sk_shares_chunk_size(&shares, 2, 300001, ENDLESS) % 128, 0);
    pass(1, one_slow);
  }
}

/* ---- in a connection ------------------------------------------------------------- */

static void *isend(const struct data *d, uint32_t seq, size_t size) {
  static uint8_t bytes[SHARED];
  data_send_control(d, 0, seq, 0, 0, &(struct data_entry){SK_ENTRY_GRANT, 0, size}, 1);
  return data_isend(d, bytes, seq, size, 0);
}

/* The main stream has a limit, and holds more than half of it: others take all chunks. Then it holds nothing. */
TEST(a_stream_takes_no_chunk_beyond_its_limit) {
  struct data d;
  data_begin(&d, SK_SENDER, 2, 0);
  sk_params.chunk = SHARED / 4;
  data_open(&d);
  data_settle(&d);
  data_sender(&d)->shares.limit[0] = SK_LEAST_LIMIT;
  d.comm->streams[0].out_bytes += SK_LEAST_LIMIT;
  void *request = isend(&d, 0, SHARED);
  CHECK_INT(data_recv_payload(&d, 0).len, 0);
  for (int i = 0; i < 4; i++) CHECK_INT(data_recv_payload(&d, 1).len, SHARED / 4);
  data_wait(request, NULL);
  d.comm->streams[0].out_bytes -= SK_LEAST_LIMIT;
  request = isend(&d, 1, SHARED);
  CHECK_INT(data_recv_payload(&d, 0).len, SK_LEAST_LIMIT / 2);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (size_t have = SK_LEAST_LIMIT / 2; have < SHARED;) {
    ENSURE(!rail_deadline_passed(deadline), "%zu bytes came", have);
    (void)data_turn(&d);
    for (unsigned int i = 0; i < 2; i++)
      if (data_is_readable(&d, i)) have += data_recv_payload(&d, i).len;
  }
  data_wait(request, NULL);
  data_close(&d);
}

/* 8 ms of a stream's rate while it has bytes to send, within bounds. */
TEST(a_socket_takes_what_its_rate_needs) {
  int told = 0, sock = socket(AF_INET, SOCK_STREAM, 0);
  socklen_t size = sizeof told;
  begin(CHUNK);
  streams[0].fd = sock;
  const struct flow flows[STREAMS] = {{2, 3e5, 1}, {10, 3e5, 1}, {1000, 3e5, 1}, {1000, 3e5, 0.1}};
  pass(2, flows);
  CHECK_INT(shares.unsent[0], 32 * 1024);
  CHECK(getsockopt(sock, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &told, &size) == 0 && told == 32 * 1024);
  CHECK_MSG(shares.unsent[1] > 75000 && shares.unsent[1] < 85000, "%u", shares.unsent[1]);
  CHECK_INT(shares.unsent[2], SK_MOST_UNSENT);
  CHECK_INT(shares.unsent[3], SK_MOST_UNSENT);
  const struct flow later[STREAMS] = {{1000, 3e5, 1}, {11, 3e5, 1}, {2, 3e5, 1}, {0, 0, 0}};
  pass(2, later);
  CHECK_INT(shares.unsent[0], SK_MOST_UNSENT);
  CHECK_MSG(shares.unsent[1] > 75000 && shares.unsent[1] < 85000, "%u", shares.unsent[1]); /* about the same */
  CHECK_INT(shares.unsent[2], 32 * 1024);
  CHECK_INT(shares.unsent[3], SK_MOST_UNSENT);
  close(sock);
}

TEST_MAIN(TEST_CASE(a_socket_takes_what_its_rate_needs), TEST_CASE(all_have_a_chunk_of_at_least_64_kib),
          TEST_CASE(a_stream_that_is_hardly_longer_busy_has_no_limit),
          TEST_CASE(a_limit_is_lowered_sooner_than_a_first_one_is_set),
          TEST_CASE(a_slow_stream_holds_what_its_path_sends_in_the_time_of_the_others),
          TEST_CASE(the_main_stream_that_holds_up_what_the_receiver_reads_is_slow),
          TEST_CASE(a_slow_stream_that_holds_much_has_a_limit), TEST_CASE(a_limit_that_is_too_high_is_never_raised),
          TEST_CASE(a_limit_falls_to_what_makes_its_delay_less_than_the_others),
          TEST_CASE(a_limit_is_not_raised_because_all_are_idle),
          TEST_CASE(a_path_that_is_fast_again_has_no_limit), TEST_CASE(streams_that_take_as_long_have_no_limit),
          TEST_CASE(streams_that_are_left_have_no_limit),
          TEST_CASE(a_stream_that_is_lost_or_comes_back_takes_all_limits_off), TEST_CASE(one_stream_always_may_take),
          TEST_CASE(a_slow_stream_keeps_its_limit_when_all_have_one),
          TEST_CASE(samples_end_when_nothing_is_held), TEST_CASE(a_pause_is_not_counted),
          TEST_CASE(a_stream_holds_what_its_socket_has_not_delivered), TEST_CASE(chunks_end_at_lines),
          TEST_CASE(a_stream_takes_no_chunk_beyond_its_limit))
