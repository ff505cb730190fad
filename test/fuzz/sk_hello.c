/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * HELLO, the first bytes of every stream, and whether it is accepted. Input: the
 * listener's rails and streams, then HELLO.
 */
#include "test/fuzz/lib/fuzz.h"
#include "test/unit/sk_hello.h"

static const struct rail_handle listener_model = {.secret = "fifteen letters"};

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  struct rail_handle listener = listener_model;
  struct sk_hello_bytes wire, again;
  struct rail_hello hello;
  struct sk_limits limits;
  uint64_t counter;
  uint8_t head = fuzz_u8(&in);
  listener.naddrs = 1 + head % SK_MAX_RAILS;
  listener.auth = head & 0x80;
  listener.param = 1 + fuzz_u8(&in) % SK_MAX_STREAMS;
  size_t left = in.left;
  fuzz_fill(&in, &wire, sizeof wire);
  if (left > sizeof wire) left = sizeof wire;
  enum rail_reason early = rail_hello_check_prefix(&sk_protocol, &listener, &wire, left);
  unsigned int reason = rail_hello_decode(&sk_protocol, &listener, &wire, &hello);
  FUZZ_CHECK(rail_reason_text(&sk_protocol, reason)[0]);
  if (reason == RAIL_REASON_NONE) {
    FUZZ_CHECK(early == RAIL_REASON_NONE && !hello.auth); /* there is no key here */
    reason = sk_limits_decode(&hello, &listener, &limits, &counter);
    FUZZ_CHECK(rail_reason_text(&sk_protocol, reason)[0]);
  }
  if (reason != RAIL_REASON_NONE) return;
  FUZZ_CHECK(hello.streams >= 1 && hello.streams <= SK_MAX_STREAMS && hello.stream < hello.streams);
  FUZZ_CHECK(limits.eager_size <= (limits.features & SK_FEATURE_AHEAD ? SK_MAX_AHEAD : SK_MAX_EAGER));
  FUZZ_CHECK(limits.eager_count <= SK_MAX_EAGER_COUNT);
  FUZZ_CHECK(limits.eager_bytes <= SK_MAX_EAGER_BYTES);
  /* Everything that decode keeps comes back. */
  again = sk_make_hello(&listener, hello, limits, counter);
  memcpy(again.head.nonce, wire.head.nonce, sizeof again.head.nonce);
  memcpy(again.mac, wire.mac, sizeof again.mac);
  again.limits.features = wire.limits.features; /* unknown ones are ignored */
  FUZZ_CHECK(memcmp(&again, &wire, sizeof wire) == 0);
}

static void seed(const char *name, unsigned int head, unsigned int per_rail, const struct rail_hello *hello,
                 uint32_t features, uint64_t counter) {
  struct fuzz_out out = {.size = 0};
  const struct sk_limits limits = {
    .features = features, .eager_size = 8192, .eager_count = 64, .eager_bytes = 1 << 20};
  struct sk_hello_bytes wire = sk_make_hello(&listener_model, *hello, limits, counter);
  if (head & 0x80) wire.head.flags |= htole32(RAIL_HELLO_AUTH);
  fuzz_put8(&out, head);
  fuzz_put8(&out, per_rail - 1);
  fuzz_put(&out, &wire, sizeof wire);
  fuzz_seed(name, out.bytes, out.size);
}

void fuzz_make_seeds(void) {
  struct rail_hello hello = {.comm_id = "somebody", .streams = 1};
  seed("plain", 0, 1, &hello, 0, 0);
  hello.streams = 16;
  hello.stream = 15;
  seed("two-rails", 1, 8, &hello, 0, 0);
  hello.reconnect = true;
  seed("reconnect", 1, 8, &hello, SK_FEATURE_FAILOVER, 3);
  seed("signed", 0x81, 8, &hello, SK_FEATURE_FAILOVER, 3);
}
