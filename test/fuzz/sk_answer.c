/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * The acceptor's answer, as the connector judges it. Input: which stream and
 * features it expects, then the answer; only as many bytes of it are shown to
 * the decoder as sk_answer_size asked for.
 */
#include <stdlib.h>

#include "plugin/socket/sk_wire.h"
#include "test/fuzz/lib/fuzz.h"

/* However little is there: nothing beyond it is read, and what is not ours is judged by what all versions share. */
static void judge_size(const uint8_t *data, size_t size) {
  for (size_t have = 0; have <= size && have <= sizeof(struct sk_answer_wire); have++) {
    struct sk_answer_wire wire = {0};
    uint8_t *bytes = malloc(have ? have : 1);
    FUZZ_CHECK(bytes != NULL);
    if (have) memcpy(bytes, data, have);
    memcpy(&wire, data, have);
    bool ours = le32toh(wire.magic) == SK_ANSWER_MAGIC && le16toh(wire.version) == SK_WIRE_VERSION;
    FUZZ_CHECK(sk_answer_size(bytes, have) == (ours && have >= SK_ANSWER_PREFIX ? sizeof wire : SK_ANSWER_PREFIX));
    free(bytes);
  }
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  struct sk_answer_wire expected;
  unsigned int reason = 0x5a, version = 0x5a, stream = fuzz_u8(&in), features = fuzz_u8(&in);
  sk_answer_encode(SK_REASON_NONE, stream, features, &expected);
  memset(expected.mac, features, sizeof expected.mac);
  judge_size(in.at, in.left);
  size_t have = SK_ANSWER_PREFIX, want;
  for (;;) {
    uint8_t *bytes = malloc(have); /* so much and no more */
    FUZZ_CHECK(bytes != NULL);
    if (in.left >= have) memcpy(bytes, in.at, have);
    want = in.left >= have ? sk_answer_size(bytes, have) : have;
    FUZZ_CHECK(want >= SK_ANSWER_PREFIX && want <= sizeof expected);
    if (in.left >= have && want <= have && sk_answer_decode(bytes, &expected, &reason, &version)) {
      FUZZ_CHECK(sk_reason_text(reason)[0]);
      bool welcome = have == sizeof expected && memcmp(bytes, &expected, 16) == 0 &&
                     memcmp(bytes + 32, expected.mac, sizeof expected.mac) == 0;
      FUZZ_CHECK((reason == SK_REASON_NONE) == welcome);
    }
    free(bytes);
    if (in.left < have || want <= have) return;
    have = want;
  }
}

static void seed(const char *name, enum sk_reason reason, unsigned int stream, unsigned int features) {
  struct fuzz_out out = {.size = 0};
  struct sk_answer_wire wire;
  sk_answer_encode(reason, stream, features, &wire);
  memset(wire.mac, (int)features, sizeof wire.mac);
  fuzz_put8(&out, stream);
  fuzz_put8(&out, features);
  fuzz_put(&out, &wire, sizeof wire);
  fuzz_seed(name, out.bytes, out.size);
}

void fuzz_make_seeds(void) {
  seed("welcome", SK_REASON_NONE, 0, 0);
  seed("welcome-failover", SK_REASON_NONE, 15, SK_FEATURE_FAILOVER);
  seed("refused", SK_REASON_SECRET, 3, 0);
  seed("other-version", SK_REASON_VERSION, 0, 0);
}
