/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * The acceptor's answer, as the connector decodes it. Input: the features it
 * expects, then the answer; only as many bytes of it are shown to the decoder
 * as rail_message_need asked for.
 */
#include <stdlib.h>

#include "test/fuzz/lib/fuzz.h"
#include "test/unit/sk_hello.h"

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  unsigned int reason, version = 0x5a, features = fuzz_u8(&in);
  const struct sk_answer_bytes expected = sk_make_welcome(features);
  struct rail_session session;
  rail_session_init(&session, &sk_protocol, true, &(struct rail_hello){.streams = 1});
  size_t have = 0;
  for (;;) {
    uint8_t *bytes = malloc(have ? have : 1); /* so much and no more */
    FUZZ_CHECK(bytes != NULL);
    if (have) memcpy(bytes, in.at, have);
    size_t need = rail_message_need(&sk_protocol, bytes, have);
    FUZZ_CHECK(need >= sizeof expected.head && need <= RAIL_ANSWER_MAX);
    if (need <= have) {
      reason = sk_answer_decode(&session, bytes, features, &version);
      FUZZ_CHECK(rail_reason_text(&sk_protocol, reason)[0]);
      const struct sk_answer_bytes *a = (const void *)bytes;
      bool welcome = have == sizeof expected && memcmp(&a->head, &expected.head, 12) == 0 &&
                     a->answer.reason == 0 && a->features == expected.features;
      FUZZ_CHECK((reason == RAIL_REASON_NONE) == welcome);
    }
    free(bytes);
    if (need <= have || in.left < need) return;
    have = need;
  }
}

static void seed(const char *name, unsigned int reason, unsigned int features) {
  struct fuzz_out out = {.size = 0};
  struct sk_answer_bytes wire = sk_make_welcome(features);
  if (reason != RAIL_REASON_NONE) rail_refusal_encode(&sk_protocol, reason, NULL, &wire);
  fuzz_put8(&out, features);
  fuzz_put(&out, &wire, sizeof wire);
  fuzz_seed(name, out.bytes, out.size);
}

void fuzz_make_seeds(void) {
  seed("welcome", RAIL_REASON_NONE, 0);
  seed("welcome-failover", RAIL_REASON_NONE, SK_FEATURE_FAILOVER);
  seed("refused", RAIL_REASON_SECRET, 0);
  seed("other-version", RAIL_REASON_VERSION, 0);
}
