/* SPDX-License-Identifier: Apache-2.0
 * Bytes of the socket plugin's protocol: golden layouts, round trips, and that
 * nothing wrong gets through the decoders. */
#include "plugin/socket/sk_frame.h"
#include "plugin/socket/sk_wire.h"

#include "test/harness/tap.h"

static struct sk_handle some_handle(void) {
  struct sk_handle h = {.streams = 3, .attempt = 0};
  CHECK_OK(rail_addr_parse("10.1.2.3:4660", &h.addr));
  for (int i = 0; i < SK_SECRET_SIZE; i++) h.secret[i] = (uint8_t)(0xa0 + i);
  return h;
}

TEST(handle_bytes) {
  struct sk_handle h = some_handle(), back;
  uint8_t bytes[RAIL_NET_HANDLE_SIZE];
  const char *why;
  memset(bytes, 0xee, sizeof bytes);
  sk_handle_encode(&h, bytes);
  static const uint8_t golden[] = {'R', 'S', 'K', 'H', 1, 0, 3, 0, 4, 0, 0x12, 0x34, 0, 0, 0, 0, 10, 1, 2, 3};
  CHECK(memcmp(bytes, golden, sizeof golden) == 0);
  CHECK_INT(bytes[32], 0xa0);
  for (size_t i = 48; i < sizeof bytes; i++) CHECK_INT(bytes[i], 0);
  CHECK(sk_handle_decode(bytes, &back, &why));
  CHECK_INT(back.streams, 3);
  CHECK(rail_addr_same_host(&back.addr, &h.addr) && rail_addr_port(&back.addr) == 4660);
  CHECK(memcmp(back.secret, h.secret, sizeof h.secret) == 0);
  sk_handle_set_attempt(bytes, 0x0102030405060708ull);
  CHECK_INT(bytes[48], 8);
  CHECK(sk_handle_decode(bytes, &back, &why));
  CHECK(back.attempt == 0x0102030405060708ull);
}

TEST(handle_refusals) {
  struct sk_handle h = some_handle(), back;
  uint8_t good[RAIL_NET_HANDLE_SIZE], bad[RAIL_NET_HANDLE_SIZE];
  const char *why = NULL;
  sk_handle_encode(&h, good);
  static const struct { int at; uint8_t value; } wrong[] = {
    {0, 'X'}, {3, 0}, {4, 2}, {5, 1}, {6, 0}, {6, 17}, {7, 1}, {8, 5}, {8, 0}};
  for (size_t i = 0; i < RAIL_COUNT_OF(wrong); i++) {
    memcpy(bad, good, sizeof bad);
    bad[wrong[i].at] = wrong[i].value;
    CHECK_MSG(!sk_handle_decode(bad, &back, &why), "byte %d = %d passed", wrong[i].at, wrong[i].value);
    CHECK(why && *why);
  }
  memcpy(bad, good, sizeof bad);
  bad[10] = bad[11] = 0; /* port */
  CHECK(!sk_handle_decode(bad, &back, &why));
  memset(bad, 0, sizeof bad);
  CHECK(!sk_handle_decode(bad, &back, &why));
}

static struct sk_hello some_hello(const uint8_t *secret) {
  struct sk_hello h = {.stream = 1, .streams = 4, .eager_size = 8192, .eager_count = 64};
  memcpy(h.secret, secret, SK_SECRET_SIZE);
  memset(h.comm_id, 0x5c, sizeof h.comm_id);
  return h;
}

TEST(hello_bytes) {
  uint8_t secret[SK_SECRET_SIZE] = {1, 2, 3};
  struct sk_hello h = some_hello(secret), back;
  struct sk_hello_wire wire;
  sk_hello_encode(&h, &wire);
  const uint8_t *b = (const uint8_t *)&wire;
  static const uint8_t golden[] = {'R', 'S', 'K', '1', 1, 0, 64, 0, 1, 2, 3};
  static const uint8_t middle[] = {1, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 64, 0, 0, 0};
  CHECK(memcmp(b, golden, sizeof golden) == 0);
  CHECK(memcmp(b + 40, middle, sizeof middle) == 0);
  CHECK_INT(sk_hello_decode(&wire, secret, 4, &back), SK_REASON_NONE);
  CHECK_INT(back.stream, 1);
  CHECK_INT(back.eager_size, 8192);
}

TEST(hello_refusals) {
  uint8_t secret[SK_SECRET_SIZE] = {1, 2, 3};
  struct sk_hello h = some_hello(secret), back;
  struct sk_hello_wire good, w;
  sk_hello_encode(&h, &good);
  w = good, w.magic ^= 1;
  CHECK_INT(sk_hello_decode(&w, secret, 4, &back), SK_REASON_GARBAGE);
  w = good, w.version = htole16(2);
  CHECK_INT(sk_hello_decode(&w, secret, 4, &back), SK_REASON_VERSION);
  w = good, w.length = htole16(72);
  CHECK_INT(sk_hello_decode(&w, secret, 4, &back), SK_REASON_VERSION);
  for (int i = 0; i < SK_SECRET_SIZE * 8; i++) {
    w = good, w.secret[i / 8] ^= (uint8_t)(1 << (i % 8));
    CHECK_INT(sk_hello_decode(&w, secret, 4, &back), SK_REASON_SECRET);
  }
  w = good, w.stream = htole16(4);
  CHECK_INT(sk_hello_decode(&w, secret, 4, &back), SK_REASON_STREAMS);
  CHECK_INT(sk_hello_decode(&good, secret, 2, &back), SK_REASON_STREAMS);
  w = good, w.eager_size = htole32(SK_MAX_EAGER + 1);
  CHECK_INT(sk_hello_decode(&w, secret, 4, &back), SK_REASON_EAGER);
  w = good, w.eager_count = htole32(SK_MAX_EAGER_COUNT + 1);
  CHECK_INT(sk_hello_decode(&w, secret, 4, &back), SK_REASON_EAGER);
}

TEST(hello_beginnings) {
  CHECK(sk_hello_plausible("", 0));
  CHECK(sk_hello_plausible("R", 1));
  CHECK(sk_hello_plausible("RSK1....", 8));
  CHECK(!sk_hello_plausible("G", 1));
  CHECK(!sk_hello_plausible("RSK2", 4));
}

TEST(answers) {
  struct sk_answer_wire wire;
  unsigned int reason, version;
  sk_answer_encode(SK_REASON_NONE, 5, &wire);
  CHECK(sk_answer_decode(&wire, 5, &reason, &version));
  CHECK_INT(reason, 0);
  CHECK(!sk_answer_decode(&wire, 4, &reason, &version)); /* of another stream */
  sk_answer_encode(SK_REASON_SECRET, 0, &wire);
  wire.version = htole16(9);
  CHECK(sk_answer_decode(&wire, 4, &reason, &version)); /* a refusal is understood anyway */
  CHECK_INT(reason, SK_REASON_SECRET);
  CHECK_INT(version, 9);
  wire.reason = 0;
  CHECK(!sk_answer_decode(&wire, 0, &reason, &version)); /* a welcome of another version is not */
  wire.magic = 0;
  CHECK(!sk_answer_decode(&wire, 0, &reason, &version));
  for (unsigned int r = 0; r < SK_REASON_COUNT + 3; r++) CHECK(*sk_reason_text(r));
}

TEST(frames) {
  struct sk_frame_wire f;
  uint8_t b[sizeof f];
  sk_frame_encode(b, SK_FRAME_DATA, 0x01020304, 0x1122334455667788ull, 0x00a0b0c0, 0xfffffffe);
  static const uint8_t golden[] = {2,    0,    0x46, 0x53, 4,    3,    2,    1,    0x88, 0x77, 0x66, 0x55,
                                   0x44, 0x33, 0x22, 0x11, 0xc0, 0xb0, 0xa0, 0,    0xfe, 0xff, 0xff, 0xff};
  CHECK(memcmp(b, golden, sizeof b) == 0);
  CHECK(sk_frame_decode(b, &f));
  CHECK_INT(f.type, SK_FRAME_DATA);
  CHECK_INT(f.seq, 0x01020304);
  CHECK(f.size == 0x1122334455667788ull && f.len == 0x00a0b0c0 && f.tag == 0xfffffffe);
  static const struct { int at; uint8_t value; } wrong[] = {{0, 0}, {0, 5}, {1, 1}, {2, 0}, {3, 0}, {19, 0x41}};
  for (size_t i = 0; i < RAIL_COUNT_OF(wrong); i++) {
    uint8_t bad[sizeof b];
    memcpy(bad, b, sizeof b);
    bad[wrong[i].at] = wrong[i].value;
    CHECK_MSG(!sk_frame_decode(bad, &f), "byte %d = %d passed", wrong[i].at, wrong[i].value);
  }
}

TEST_MAIN(TEST_CASE(handle_bytes), TEST_CASE(handle_refusals), TEST_CASE(hello_bytes), TEST_CASE(hello_refusals),
          TEST_CASE(hello_beginnings), TEST_CASE(answers), TEST_CASE(frames))
