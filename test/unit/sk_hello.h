/* SPDX-License-Identifier: Apache-2.0
 * A whole HELLO of the socket plugin, field by field, and answers to it. */
#ifndef SK_HELLO_TEST_H
#define SK_HELLO_TEST_H

#include "plugin/socket/sk_wire.h"

struct sk_hello_bytes {
  struct rail_hello_wire head;
  struct sk_limits_wire limits;
  uint8_t mac[RAIL_MAC_SIZE];
};
_Static_assert(sizeof(struct sk_hello_bytes) == 120, "no holes");

struct sk_answer_bytes {
  struct rail_head_wire head;
  struct rail_answer_wire answer;
  uint32_t features;
  uint8_t mac[RAIL_MAC_SIZE];
};
_Static_assert(sizeof(struct sk_answer_bytes) == 76, "no holes");

/* Without a key not signed; with one, it is. */
__attribute__((unused)) static struct sk_hello_bytes sk_make_hello(const struct rail_handle *listener,
                                                                   struct rail_hello hello, struct sk_limits limits,
                                                                   uint64_t counter) {
  struct sk_hello_bytes bytes;
  sk_limits_encode(&limits, counter, &hello);
  if (rail_hello_encode(&sk_protocol, listener, &hello, &bytes) != RAIL_OK) memset(&bytes, 0, sizeof bytes);
  return bytes;
}

/* A welcome to a HELLO without key. */
__attribute__((unused)) static struct sk_answer_bytes sk_make_welcome(uint32_t features) {
  struct sk_answer_bytes bytes;
  struct rail_session session;
  rail_session_init(&session, &sk_protocol, false, &(struct rail_hello){.streams = 1});
  (void)sk_welcome_encode(&session, features, &bytes);
  return bytes;
}

#endif
