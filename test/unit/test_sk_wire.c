/* SPDX-License-Identifier: Apache-2.0
 * Bytes of the socket plugin's protocol: golden layouts, round trips, and that
 * nothing wrong gets through the decoders. */
#include "plugin/socket/sk_frame.h"
#include "plugin/socket/sk_wire.h"

#include "test/harness/tap.h"

static struct sk_handle some_handle(void) {
  struct sk_handle h = {.streams = 3, .naddrs = 2, .flags = SK_HANDLE_AUTH};
  CHECK_OK(rail_addr_parse("10.1.2.3:4660", &h.addrs[0]));
  CHECK_OK(rail_addr_parse("[fd00::9]:4661", &h.addrs[1]));
  for (int i = 0; i < SK_SECRET_SIZE; i++) h.secret[i] = (uint8_t)(0xa0 + i);
  return h;
}

TEST(handle_bytes) {
  struct sk_handle h = some_handle(), back;
  uint8_t bytes[RAIL_NET_HANDLE_SIZE];
  const char *why;
  memset(bytes, 0xee, sizeof bytes);
  sk_handle_encode(&h, bytes);
  static const uint8_t golden[] = {'R', 'S', 'K', 'H', 2, 1, 3, 0, 4, 0, 0x12, 0x34, 0, 0, 0, 0, 10, 1, 2, 3};
  static const uint8_t second[] = {6, 0, 0x12, 0x35, 0, 0, 0, 0, 0xfd, 0};
  CHECK(memcmp(bytes, golden, sizeof golden) == 0);
  CHECK(memcmp(bytes + 32, second, sizeof second) == 0);
  for (size_t i = 56; i < 104; i++) CHECK_INT(bytes[i], 0);
  CHECK_INT(bytes[104], 0xa0);
  for (size_t i = 120; i < sizeof bytes; i++) CHECK_INT(bytes[i], 0);
  CHECK(sk_handle_decode(bytes, &back, &why));
  CHECK_INT(back.streams, 3);
  CHECK_INT(back.naddrs, 2);
  CHECK_INT(back.flags, SK_HANDLE_AUTH);
  for (int i = 0; i < 2; i++)
    CHECK(rail_addr_same_host(&back.addrs[i], &h.addrs[i]) && rail_addr_port(&back.addrs[i]) == 4660 + i);
  CHECK(memcmp(back.secret, h.secret, sizeof h.secret) == 0);
  sk_handle_set_attempt(bytes, 0x0102030405060708ull);
  CHECK_INT(bytes[120], 8);
  CHECK(sk_handle_decode(bytes, &back, &why));
  CHECK(back.attempt == 0x0102030405060708ull);
}

TEST(handle_of_four_rails) {
  struct sk_handle h = some_handle(), back;
  uint8_t bytes[RAIL_NET_HANDLE_SIZE];
  const char *why;
  h.naddrs = 4;
  h.addrs[2] = h.addrs[3] = h.addrs[0];
  sk_handle_encode(&h, bytes);
  CHECK(sk_handle_decode(bytes, &back, &why));
  CHECK_INT(back.naddrs, 4);
  CHECK_INT(back.secret[0], 0xa0);
}

TEST(handle_refusals) {
  struct sk_handle h = some_handle(), back;
  uint8_t good[RAIL_NET_HANDLE_SIZE], bad[RAIL_NET_HANDLE_SIZE];
  const char *why = NULL;
  sk_handle_encode(&h, good);
  static const struct { int at; uint8_t value; } wrong[] = {
    {0, 'X'}, {3, 0}, {4, 1}, {5, 2}, {6, 0}, {6, 17}, {7, 1}, {8, 5}, {8, 0}, {32, 7}, {56, 9}, {80, 4}, {103, 1}};
  for (size_t i = 0; i < RAIL_COUNT_OF(wrong); i++) {
    memcpy(bad, good, sizeof bad);
    bad[wrong[i].at] = wrong[i].value;
    CHECK_MSG(!sk_handle_decode(bad, &back, &why), "byte %d = %d passed", wrong[i].at, wrong[i].value);
    CHECK(why && *why);
  }
  for (int rail = 0; rail < 2; rail++) {
    memcpy(bad, good, sizeof bad);
    bad[10 + 24 * rail] = bad[11 + 24 * rail] = 0; /* port */
    CHECK(!sk_handle_decode(bad, &back, &why));
  }
  memcpy(bad, good, sizeof bad);
  memcpy(bad + 56, bad + 32, 24); /* a gap */
  memset(bad + 32, 0, 24);
  CHECK(!sk_handle_decode(bad, &back, &why));
  memset(bad, 0, sizeof bad);
  CHECK(!sk_handle_decode(bad, &back, &why));
}

TEST(counts_of_streams) {
  CHECK_INT(sk_streams_of(1, 1), 1);
  CHECK_INT(sk_streams_of(3, 4), 12);
  CHECK_INT(sk_streams_of(16, 4), SK_MAX_STREAMS);
}

/* A listener with one rail and four streams. */
static struct sk_handle some_listener(void) {
  return (struct sk_handle){.streams = 4, .naddrs = 1, .secret = {1, 2, 3}};
}

static struct sk_hello some_hello(void) {
  struct sk_hello h = {.stream = 1, .streams = 4, .features = SK_FEATURE_FAILOVER, .eager_size = 8192,
                       .eager_count = 64, .eager_bytes = 1 << 20, .flags = SK_HELLO_REJOIN, .counter = 7};
  memset(h.comm_id, 0x5c, sizeof h.comm_id);
  return h;
}

TEST(hello_bytes) {
  struct sk_handle listener = some_listener();
  struct sk_hello h = some_hello(), back;
  struct sk_hello_wire wire;
  sk_hello_encode(&h, listener.secret, &wire);
  const uint8_t *b = (const uint8_t *)&wire;
  static const uint8_t golden[] = {'R', 'S', 'K', '1', 2, 0, 160, 0, 1, 2, 3};
  static const uint8_t middle[] = {1, 0, 4, 0, 1, 0, 0, 0, 0, 0x20, 0, 0, 64, 0, 0, 0, 0, 0, 16, 0, 2, 0, 0, 0, 7, 0};
  CHECK(memcmp(b, golden, sizeof golden) == 0);
  CHECK(memcmp(b + 40, middle, sizeof middle) == 0);
  for (size_t i = 72; i < sizeof wire; i++) CHECK_INT(b[i], 0);
  CHECK_INT(sk_hello_decode(&wire, &listener, &back), SK_REASON_NONE);
  CHECK_INT(back.stream, 1);
  CHECK_INT(back.eager_size, 8192);
  CHECK_INT(back.eager_bytes, 1 << 20);
  CHECK_INT(back.features, SK_FEATURE_FAILOVER);
  CHECK_INT(back.flags, SK_HELLO_REJOIN);
  CHECK_INT(back.counter, 7);
}

TEST(hello_refusals) {
  struct sk_handle listener = some_listener();
  struct sk_hello h = some_hello(), back;
  struct sk_hello_wire good, w;
  sk_hello_encode(&h, listener.secret, &good);
  w = good, w.magic ^= 1;
  CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_GARBAGE);
  w = good, w.version = htole16(1);
  CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_VERSION);
  w = good, w.length = htole16(168);
  CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_VERSION);
  w = good, w.flags = htole32(4);
  CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_VERSION);
  for (int i = 0; i < SK_SECRET_SIZE * 8; i++) {
    w = good, w.secret[i / 8] ^= (uint8_t)(1 << (i % 8));
    CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_SECRET);
  }
  w = good, w.flags = htole32(SK_HELLO_AUTH);
  CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_AUTH);
  listener.flags = SK_HANDLE_AUTH;
  CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_NONE);
  CHECK_INT(sk_hello_decode(&good, &listener, &back), SK_REASON_AUTH);
  listener.flags = 0;
  w = good, w.stream = htole16(4);
  CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_STREAMS);
  static const struct { unsigned int wanted, rails, said; bool good; } counts[] = {
    {4, 1, 3, false}, {4, 1, 8, true}, {4, 1, 12, true}, {4, 1, 16, true}, {4, 1, 17, false},
    {1, 2, 1, false}, {1, 2, 2, true}, {1, 2, 4, true}, {1, 2, 5, false}, {16, 4, 16, true}, {2, 1, 5, false}};
  for (size_t i = 0; i < RAIL_COUNT_OF(counts); i++) {
    w = good, w.streams = htole16((uint16_t)counts[i].said), w.stream = 0;
    listener.streams = counts[i].wanted;
    listener.naddrs = counts[i].rails;
    CHECK_INT(sk_hello_decode(&w, &listener, &back), counts[i].good ? SK_REASON_NONE : SK_REASON_STREAMS);
  }
  listener = some_listener();
  w = good, w.eager_size = htole32(SK_MAX_EAGER + 1);
  CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_EAGER);
  w = good, w.eager_count = htole32(SK_MAX_EAGER_COUNT + 1);
  CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_EAGER);
  w = good, w.eager_bytes = htole32(SK_MAX_EAGER_BYTES + 1);
  CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_EAGER);
  w = good, w.eager_bytes = htole32(SK_MIN_EAGER_BYTES(8192) - 1);
  CHECK_INT(sk_hello_decode(&w, &listener, &back), SK_REASON_EAGER);
}

TEST(hello_beginnings) {
  CHECK(sk_hello_plausible("", 0));
  CHECK(sk_hello_plausible("R", 1));
  CHECK(sk_hello_plausible("RSK1....", 8));
  CHECK(!sk_hello_plausible("G", 1));
  CHECK(!sk_hello_plausible("RSK2", 4));
}

TEST(answers) {
  struct sk_answer_wire expected, wire, short_one = {0};
  unsigned int reason, version;
  sk_answer_encode(SK_REASON_NONE, 5, SK_FEATURE_FAILOVER, &expected);
  wire = expected;
  CHECK_INT(sk_answer_size(&wire, 0), SK_ANSWER_PREFIX);
  CHECK_INT(sk_answer_size(&wire, SK_ANSWER_PREFIX), sizeof wire);
  CHECK(sk_answer_decode(&wire, &expected, &reason, &version));
  CHECK_INT(reason, 0);
  wire.stream = htole16(4);
  CHECK(!sk_answer_decode(&wire, &expected, &reason, &version)); /* of another stream */
  wire = expected, wire.features = 0;
  CHECK(!sk_answer_decode(&wire, &expected, &reason, &version)); /* another ability than was asked for */
  for (size_t i = 0; i < SK_MAC_SIZE * 8; i++) {
    wire = expected, wire.mac[i / 8] ^= (uint8_t)(1 << (i % 8));
    CHECK(sk_answer_decode(&wire, &expected, &reason, &version));
    CHECK_INT(reason, SK_REASON_MAC);
  }
  sk_answer_encode(SK_REASON_SECRET, 0, 0, &wire);
  memcpy(&short_one, &wire, SK_ANSWER_PREFIX);
  short_one.version = htole16(9);
  CHECK_INT(sk_answer_size(&short_one, SK_ANSWER_PREFIX), SK_ANSWER_PREFIX);
  CHECK(sk_answer_decode(&short_one, &expected, &reason, &version)); /* a refusal is understood anyway */
  CHECK_INT(reason, SK_REASON_SECRET);
  CHECK_INT(version, 9);
  short_one.reason = 0;
  CHECK(!sk_answer_decode(&short_one, &expected, &reason, &version)); /* a welcome of another version is not */
  wire = expected, wire.magic = 0;
  CHECK_INT(sk_answer_size(&wire, sizeof wire), SK_ANSWER_PREFIX);
  CHECK(!sk_answer_decode(&wire, &expected, &reason, &version));
  for (unsigned int r = 0; r < SK_REASON_COUNT + 3; r++) CHECK(*sk_reason_text(r));
}

TEST(frames) {
  struct sk_frame f;
  uint8_t b[sizeof f];
  sk_frame_encode(b, SK_FRAME_MSG, SK_FRAME_GRANTED, 0x01020304, 0x1122334455667788ull, 0x00a0b0c0, 0xfffffffe);
  static const uint8_t golden[] = {1,    1,    0x46, 0x53, 4,    3,    2,    1,    0x88, 0x77, 0x66, 0x55,
                                   0x44, 0x33, 0x22, 0x11, 0xc0, 0xb0, 0xa0, 0,    0xfe, 0xff, 0xff, 0xff};
  CHECK(memcmp(b, golden, sizeof b) == 0);
  CHECK(sk_frame_decode(b, &f));
  CHECK_INT(f.type, SK_FRAME_MSG);
  CHECK_INT(f.flags, SK_FRAME_GRANTED);
  CHECK_INT(f.seq, 0x01020304);
  CHECK(f.size == 0x1122334455667788ull && f.len == 0x00a0b0c0 && f.tag == 0xfffffffe);
  static const struct { int at; uint8_t value; } wrong[] = {{0, 0}, {0, SK_FRAME_TYPES}, {1, 2},
                                                            {2, 0}, {3, 0}, {19, 0x41}};
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
