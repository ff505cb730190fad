/* SPDX-License-Identifier: Apache-2.0
 * Bytes of the socket plugin's protocol: golden layouts, round trips, and that
 * nothing wrong gets through the decoders. */
#include "plugin/socket/sk_wire.h"

#include "test/harness/tap.h"
#include "test/unit/sk_hello.h"

static struct rail_handle some_handle(void) {
  struct rail_handle h = {.param = 3, .naddrs = 2, .auth = true};
  CHECK_OK(rail_addr_parse("10.1.2.3:4660", &h.addrs[0]));
  CHECK_OK(rail_addr_parse("[fd00::9]:4661", &h.addrs[1]));
  for (int i = 0; i < RAIL_SECRET_SIZE; i++) h.secret[i] = (uint8_t)(0xa0 + i);
  return h;
}

TEST(handle_bytes) {
  struct rail_handle h = some_handle(), back;
  uint8_t bytes[RAIL_HANDLE_SIZE];
  const char *why;
  memset(bytes, 0xee, sizeof bytes);
  rail_handle_encode(&sk_protocol, &h, bytes);
  static const uint8_t golden[] = {'R', 'S', 'K', 'H', 4, 1, 2, 3, 0xa0};
  static const uint8_t first[] = {4, 0, 0x12, 0x34, 0, 0, 0, 0, 10, 1, 2, 3};
  static const uint8_t second[] = {6, 0, 0x12, 0x35, 0, 0, 0, 0, 0xfd, 0};
  CHECK(memcmp(bytes, golden, sizeof golden) == 0);
  CHECK(memcmp(bytes + 24, first, sizeof first) == 0);
  CHECK(memcmp(bytes + 48, second, sizeof second) == 0);
  for (size_t i = 72; i < sizeof bytes; i++) CHECK_INT(bytes[i], 0);
  CHECK(rail_handle_decode(&sk_protocol, bytes, &back, &why));
  CHECK_INT(back.param, 3);
  CHECK_INT(back.naddrs, 2);
  CHECK(back.auth);
  for (int i = 0; i < 2; i++)
    CHECK(rail_addr_same_host(&back.addrs[i], &h.addrs[i]) && rail_addr_port(&back.addrs[i]) == 4660 + i);
  CHECK(memcmp(back.secret, h.secret, sizeof h.secret) == 0);
  rail_handle_set_attempt(bytes, 0x0102030405060708ull);
  CHECK_INT(bytes[120], 8);
  CHECK(rail_handle_decode(&sk_protocol, bytes, &back, &why));
  CHECK(back.attempt == 0x0102030405060708ull);
}

TEST(handle_of_four_rails) {
  struct rail_handle h = some_handle(), back;
  uint8_t bytes[RAIL_HANDLE_SIZE];
  const char *why;
  h.naddrs = 4;
  h.addrs[2] = h.addrs[3] = h.addrs[0];
  rail_handle_encode(&sk_protocol, &h, bytes);
  CHECK(rail_handle_decode(&sk_protocol, bytes, &back, &why));
  CHECK_INT(back.naddrs, 4);
  CHECK_INT(back.secret[0], 0xa0);
}

TEST(handle_refusals) {
  struct rail_handle h = some_handle(), back;
  uint8_t good[RAIL_HANDLE_SIZE], bad[RAIL_HANDLE_SIZE];
  const char *why = NULL;
  rail_handle_encode(&sk_protocol, &h, good);
  static const struct { int at; uint8_t value; } wrong[] = {
    {0, 'X'}, {3, 0}, {4, 3}, {4, 5}, {5, 2}, {6, 0}, {6, 1}, {6, 3}, {6, 5}, {7, 0}, {7, 17},
    {24, 5}, {24, 0}, {48, 7}, {72, 9}, {96, 4}, {119, 1}};
  for (size_t i = 0; i < RAIL_COUNT_OF(wrong); i++) {
    memcpy(bad, good, sizeof bad);
    bad[wrong[i].at] = wrong[i].value;
    CHECK_MSG(!rail_handle_decode(&sk_protocol, bad, &back, &why), "byte %d = %d passed", wrong[i].at, wrong[i].value);
    CHECK(why && *why);
  }
  for (int rail = 0; rail < 2; rail++) {
    memcpy(bad, good, sizeof bad);
    bad[26 + 24 * rail] = bad[27 + 24 * rail] = 0; /* port */
    CHECK(!rail_handle_decode(&sk_protocol, bad, &back, &why));
  }
  memset(bad, 0, sizeof bad);
  CHECK(!rail_handle_decode(&sk_protocol, bad, &back, &why));
}

TEST(counts_of_streams) {
  CHECK_INT(sk_streams_of(1, 1), 1);
  CHECK_INT(sk_streams_of(3, 4), 12);
  CHECK_INT(sk_streams_of(16, 4), SK_MAX_STREAMS);
}

/* A listener with one rail and four streams. */
static struct rail_handle some_listener(void) {
  return (struct rail_handle){.param = 4, .naddrs = 1, .secret = {1, 2, 3}};
}

static struct sk_hello_bytes some_hello(const struct rail_handle *listener) {
  struct rail_hello h = {.stream = 1, .streams = 4, .reconnect = true};
  memset(h.comm_id, 0x5c, sizeof h.comm_id);
  return sk_make_hello(listener, h, (struct sk_limits){.features = SK_FEATURE_FAILOVER, .eager_size = 8192,
                                                       .eager_count = 64, .eager_bytes = 1 << 20}, 7);
}

/* The reason with which the listener, then the plugin, refuses this HELLO. */
static unsigned int hello_reason(const struct sk_hello_bytes *bytes, const struct rail_handle *listener,
                                 struct sk_limits *limits) {
  struct rail_hello hello;
  uint64_t counter;
  unsigned int reason = rail_hello_decode(&sk_protocol, listener, bytes, &hello);
  return reason == RAIL_REASON_NONE ? sk_limits_decode(&hello, listener, limits, &counter) : reason;
}

TEST(hello_bytes) {
  struct rail_handle listener = some_listener();
  struct sk_hello_bytes wire = some_hello(&listener);
  struct rail_hello hello;
  struct sk_limits limits;
  uint64_t counter;
  const uint8_t *b = (const uint8_t *)&wire;
  static const uint8_t golden[] = {'R', 'S', 'K', '1', 4, 0, 120, 0, 1, 2, 3};
  static const uint8_t middle[] = {1, 0, 4, 0, 2, 0, 0, 0};
  static const uint8_t payload[] = {1, 0, 0, 0, 0, 0x20, 0, 0, 64, 0, 0, 0, 0, 0, 16, 0, 7, 0};
  CHECK(memcmp(b, golden, sizeof golden) == 0);
  CHECK(memcmp(b + 40, middle, sizeof middle) == 0);
  for (size_t i = 48; i < 64; i++) CHECK_INT(b[i], 0);
  CHECK(memcmp(b + 64, payload, sizeof payload) == 0);
  for (size_t i = 82; i < sizeof wire; i++) CHECK_INT(b[i], 0);
  CHECK_INT(rail_hello_decode(&sk_protocol, &listener, &wire, &hello), RAIL_REASON_NONE);
  CHECK(hello.stream == 1 && hello.streams == 4 && hello.reconnect && !hello.auth);
  CHECK_INT(sk_limits_decode(&hello, &listener, &limits, &counter), RAIL_REASON_NONE);
  CHECK_INT(limits.eager_size, 8192);
  CHECK_INT(limits.eager_count, 64);
  CHECK_INT(limits.eager_bytes, 1 << 20);
  CHECK_INT(limits.features, SK_FEATURE_FAILOVER);
  CHECK_INT(counter, 7);
}

TEST(hello_refusals) {
  struct rail_handle listener = some_listener();
  struct sk_limits limits;
  struct sk_hello_bytes good = some_hello(&listener), w;
  w = good, w.head.magic[1] ^= 1;
  CHECK_INT(hello_reason(&w, &listener, &limits), RAIL_REASON_GARBAGE);
  w = good, w.head.version = htole16(3);
  CHECK_INT(hello_reason(&w, &listener, &limits), RAIL_REASON_VERSION);
  w = good, w.head.length = htole16(168);
  CHECK_INT(hello_reason(&w, &listener, &limits), RAIL_REASON_MESSAGE);
  w = good, w.head.flags = htole32(4);
  CHECK_INT(hello_reason(&w, &listener, &limits), RAIL_REASON_MESSAGE);
  for (int i = 0; i < RAIL_SECRET_SIZE * 8; i++) {
    w = good, w.head.secret[i / 8] ^= (uint8_t)(1 << (i % 8));
    CHECK_INT(hello_reason(&w, &listener, &limits), RAIL_REASON_SECRET);
  }
  w = good, w.head.flags = htole32(RAIL_HELLO_AUTH);
  CHECK_INT(hello_reason(&w, &listener, &limits), RAIL_REASON_AUTH);
  listener.auth = true;
  CHECK_INT(hello_reason(&w, &listener, &limits), RAIL_REASON_MAC); /* nobody here has a key */
  CHECK_INT(hello_reason(&good, &listener, &limits), RAIL_REASON_AUTH);
  listener.auth = false;
  w = good, w.head.stream = htole16(4);
  CHECK_INT(hello_reason(&w, &listener, &limits), RAIL_REASON_MESSAGE);
  static const struct { unsigned int wanted, rails, said; bool good; } counts[] = {
    {4, 1, 3, false}, {4, 1, 8, true}, {4, 1, 12, true}, {4, 1, 16, true}, {4, 1, 17, false},
    {1, 2, 1, false}, {1, 2, 2, true}, {1, 2, 4, true}, {1, 2, 5, false}, {16, 4, 16, true}, {2, 1, 5, false}};
  for (size_t i = 0; i < RAIL_COUNT_OF(counts); i++) {
    w = good, w.head.streams = htole16((uint16_t)counts[i].said), w.head.stream = 0;
    listener.param = (uint8_t)counts[i].wanted;
    listener.naddrs = counts[i].rails;
    CHECK_INT(hello_reason(&w, &listener, &limits),
              counts[i].good ? (unsigned int)RAIL_REASON_NONE : SK_REASON_STREAMS);
  }
  listener = some_listener();
  w = good, w.limits.eager_size = htole32(SK_MAX_EAGER + 1);
  CHECK_INT(hello_reason(&w, &listener, &limits), SK_REASON_LIMITS);
  w.limits.features |= htole32(SK_FEATURE_AHEAD);
  w.limits.eager_bytes = htole32(SK_MAX_EAGER_BYTES);
  CHECK_INT(hello_reason(&w, &listener, &limits), RAIL_REASON_NONE);
  CHECK_INT(limits.features, SK_FEATURE_FAILOVER | SK_FEATURE_AHEAD);
  w.limits.eager_size = htole32(SK_MAX_AHEAD + 1);
  CHECK_INT(hello_reason(&w, &listener, &limits), SK_REASON_LIMITS);
  w = good, w.limits.eager_count = htole32(SK_MAX_EAGER_COUNT + 1);
  CHECK_INT(hello_reason(&w, &listener, &limits), SK_REASON_LIMITS);
  w = good, w.limits.eager_bytes = htole32(SK_MAX_EAGER_BYTES + 1);
  CHECK_INT(hello_reason(&w, &listener, &limits), SK_REASON_LIMITS);
  w = good, w.limits.eager_bytes = htole32(SK_MIN_EAGER_BYTES(8192) - 1);
  CHECK_INT(hello_reason(&w, &listener, &limits), SK_REASON_LIMITS);
}

TEST(hello_beginnings) {
  struct rail_handle listener = some_listener();
  struct sk_hello_bytes good = some_hello(&listener);
  for (size_t have = 0; have <= sizeof good.head; have++)
    CHECK_INT(rail_hello_check_prefix(&sk_protocol, &listener, &good, have), RAIL_REASON_NONE);
  CHECK_INT(rail_hello_check_prefix(&sk_protocol, &listener, "G", 1), RAIL_REASON_GARBAGE);
  CHECK_INT(rail_hello_check_prefix(&sk_protocol, &listener, "RSK2", 4), RAIL_REASON_GARBAGE);
  good.head.version = htole16(9);
  CHECK_INT(rail_hello_check_prefix(&sk_protocol, &listener, &good, RAIL_HELLO_PREFIX - 1), RAIL_REASON_NONE);
  CHECK_INT(rail_hello_check_prefix(&sk_protocol, &listener, &good, RAIL_HELLO_PREFIX), RAIL_REASON_VERSION);
  good.head.secret[15] ^= 1;
  CHECK_INT(rail_hello_check_prefix(&sk_protocol, &listener, &good, RAIL_HELLO_PREFIX), RAIL_REASON_SECRET);
}

static unsigned int decode_answer(const void *bytes, uint32_t features, unsigned int *version) {
  struct rail_session session;
  rail_session_init(&session, &sk_protocol, true, &(struct rail_hello){.streams = 1});
  return sk_answer_decode(&session, bytes, features, version);
}

TEST(answers) {
  const struct sk_answer_bytes welcome = sk_make_welcome(SK_FEATURE_FAILOVER);
  struct sk_answer_bytes wire = welcome;
  unsigned int version;
  CHECK_INT(rail_message_need(&sk_protocol, &wire, 0), sizeof wire.head);
  CHECK_INT(rail_message_need(&sk_protocol, &wire, sizeof wire.head), sizeof wire);
  CHECK_INT(decode_answer(&wire, SK_FEATURE_FAILOVER, &version), RAIL_REASON_NONE);
  CHECK_INT(version, SK_WIRE_VERSION);
  CHECK_INT(decode_answer(&wire, 0, &version), RAIL_REASON_GARBAGE); /* another ability than was asked for */
  wire = welcome, wire.head.type = htole16(2);
  CHECK_INT(decode_answer(&wire, SK_FEATURE_FAILOVER, &version), RAIL_REASON_GARBAGE);
  wire = welcome, wire.head.length = htole32(40);
  CHECK_INT(decode_answer(&wire, SK_FEATURE_FAILOVER, &version), RAIL_REASON_GARBAGE);
  wire = welcome, wire.head.magic[0] = 0;
  CHECK_INT(rail_message_need(&sk_protocol, &wire, sizeof wire), sizeof wire.head);
  CHECK_INT(decode_answer(&wire, SK_FEATURE_FAILOVER, &version), RAIL_REASON_GARBAGE);
  wire = welcome, wire.head.version = htole16(9);
  CHECK_INT(decode_answer(&wire, SK_FEATURE_FAILOVER, &version), RAIL_REASON_VERSION);
  rail_refusal_encode(&sk_protocol, RAIL_REASON_BUSY, NULL, &wire);
  CHECK_INT(decode_answer(&wire, SK_FEATURE_FAILOVER, &version), RAIL_REASON_BUSY);
  CHECK_INT(version, SK_WIRE_VERSION);
  wire.head.version = htole16(9); /* its refusal is understood, of whatever form */
  wire.head.length = htole32(RAIL_MAC_SIZE + 2);
  CHECK_INT(rail_message_need(&sk_protocol, &wire, sizeof wire), sizeof wire.head + 2 + RAIL_MAC_SIZE);
  CHECK_INT(decode_answer(&wire, SK_FEATURE_FAILOVER, &version), RAIL_REASON_BUSY);
  CHECK_INT(version, 9);
  rail_refusal_encode(&sk_protocol, RAIL_REASON_SECRET, NULL, &wire);
  CHECK_INT(decode_answer(&wire, SK_FEATURE_FAILOVER, &version), RAIL_REASON_SECRET);
  CHECK_INT(version, 0);
  for (unsigned int r = 0; r < RAIL_REASON_PLUGIN + 6; r++) CHECK(*rail_reason_text(&sk_protocol, r));
}

TEST(frames) {
  struct sk_frame f;
  uint8_t b[sizeof f];
  sk_frame_encode(b, SK_FRAME_MSG, SK_FRAME_GRANTED, 0x01020304, 0x1122334455667788ull, 0x00a0b0c0, 0xfffffffe);
  static const uint8_t golden[] = {1,    1,    0x46, 0x53, 4,    3,    2,    1,    0x88, 0x77, 0x66, 0x55,
                                   0x44, 0x33, 0x22, 0x11, 0xc0, 0xb0, 0xa0, 0,    0xfe, 0xff, 0xff, 0xff,
                                   0,    0,    0,    0,    0,    0,    0,    0};
  CHECK_INT(sizeof golden, sizeof b);
  CHECK(memcmp(b, golden, sizeof b) == 0);
  CHECK(sk_frame_decode(b, &f));
  CHECK_INT(f.type, SK_FRAME_MSG);
  CHECK_INT(f.flags, SK_FRAME_GRANTED);
  CHECK_INT(f.seq, 0x01020304);
  CHECK(f.size == 0x1122334455667788ull && f.len == 0x00a0b0c0 && f.tag == 0xfffffffe);
  static const struct { int at; uint8_t value; } wrong[] = {{0, 0}, {0, SK_FRAME_TYPES}, {1, 2}, {2, 0},
                                                            {3, 0}, {19, 0x41}, {24, 1}, {31, 0x80}};
  for (size_t i = 0; i < RAIL_COUNT_OF(wrong); i++) {
    uint8_t bad[sizeof b];
    memcpy(bad, b, sizeof b);
    bad[wrong[i].at] = wrong[i].value;
    CHECK_MSG(!sk_frame_decode(bad, &f), "byte %d = %d passed", wrong[i].at, wrong[i].value);
  }
}

TEST_MAIN(TEST_CASE(handle_bytes), TEST_CASE(handle_of_four_rails), TEST_CASE(handle_refusals),
          TEST_CASE(counts_of_streams), TEST_CASE(hello_bytes), TEST_CASE(hello_refusals),
          TEST_CASE(hello_beginnings), TEST_CASE(answers), TEST_CASE(frames))
