/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * HELLO, the first bytes of every stream, and the judgement on it. Input: the
 * listener's rails, streams and flags, then HELLO.
 */
#include "plugin/socket/sk_wire.h"
#include "test/fuzz/lib/fuzz.h"

static const struct sk_handle listener_model = {.secret = "fifteen letters"};

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  struct sk_handle listener = listener_model;
  struct sk_hello_wire wire, again;
  struct sk_hello hello;
  uint8_t head = fuzz_u8(&in);
  listener.naddrs = 1 + head % SK_MAX_RAILS;
  listener.flags = head & 0x80 ? SK_HANDLE_AUTH : 0;
  listener.streams = 1 + fuzz_u8(&in) % SK_MAX_STREAMS;
  size_t left = in.left;
  fuzz_fill(&in, &wire, sizeof wire);
  if (left > sizeof wire) left = sizeof wire;
  bool plausible = sk_hello_plausible(&wire, left);
  enum sk_reason reason = sk_hello_decode(&wire, &listener, &hello);
  FUZZ_CHECK(reason < SK_REASON_COUNT && sk_reason_text(reason)[0]);
  if (reason != SK_REASON_GARBAGE) FUZZ_CHECK(plausible);
  if (reason != SK_REASON_NONE) return;
  FUZZ_CHECK(hello.streams >= 1 && hello.streams <= SK_MAX_STREAMS && hello.stream < hello.streams);
  FUZZ_CHECK(hello.eager_size <= SK_MAX_EAGER && hello.eager_count <= SK_MAX_EAGER_COUNT);
  FUZZ_CHECK(hello.eager_bytes <= SK_MAX_EAGER_BYTES);
  FUZZ_CHECK(!!(hello.flags & SK_HELLO_AUTH) == !!(listener.flags & SK_HANDLE_AUTH));
  /* Everything that decode keeps comes back. */
  sk_hello_encode(&hello, listener.secret, &again);
  memcpy(again.nonce, wire.nonce, sizeof again.nonce);
  memcpy(again.zero, wire.zero, sizeof again.zero);
  memcpy(again.mac, wire.mac, sizeof again.mac);
  FUZZ_CHECK(memcmp(&again, &wire, sizeof wire) == 0);
}

static void seed(const char *name, unsigned int head, unsigned int per_rail, const struct sk_hello *hello) {
  struct fuzz_out out = {.size = 0};
  struct sk_hello_wire wire;
  sk_hello_encode(hello, listener_model.secret, &wire);
  fuzz_put8(&out, head);
  fuzz_put8(&out, per_rail - 1);
  fuzz_put(&out, &wire, sizeof wire);
  fuzz_seed(name, out.bytes, out.size);
}

void fuzz_make_seeds(void) {
  struct sk_hello hello = {.comm_id = "somebody", .streams = 1, .eager_size = 8192, .eager_count = 64,
                           .eager_bytes = 1 << 20};
  seed("plain", 0, 1, &hello);
  hello.streams = 16;
  hello.stream = 15;
  seed("two-rails", 1, 8, &hello);
  hello.flags = SK_HELLO_AUTH | SK_HELLO_REJOIN;
  hello.features = SK_FEATURE_FAILOVER;
  hello.counter = 3;
  seed("rejoin", 0x81, 8, &hello);
}
