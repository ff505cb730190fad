/* SPDX-License-Identifier: Apache-2.0
 * What of HELLO and answer is signed. */
#include "plugin/socket/sk_auth.h"

#include "common/conn/hmac.h"
#include "plugin/socket/sk_param.h"

_Static_assert(SK_MAC_SIZE == RAIL_MAC_SIZE, "the mac on the wire");

static const char hello_label[RAIL_LABEL_SIZE] = "RailSocket 2 hello";
static const char answer_label[RAIL_LABEL_SIZE] = "RailSocket 2 answer";

static struct rail_key key = {.plugin = "RailSocket", .param = "RAIL_SOCKET_AUTH_FILE"};

bool sk_auth_load(void) { return rail_key_load(&key, sk_params.auth_file); }

bool sk_auth_on(void) { return rail_key_on(&key); }

static rail_result_t mac_of_hello(const struct sk_handle *listener, const struct sk_hello_wire *hello,
                                  uint8_t mac[SK_MAC_SIZE]) {
  struct sk_handle as_given = *listener;
  uint8_t handle[RAIL_NET_HANDLE_SIZE];
  as_given.attempt = 0;
  sk_handle_encode(&as_given, handle);
  const struct rail_mac_part parts[] = {{handle, sizeof handle}, {hello, offsetof(struct sk_hello_wire, mac)}};
  return rail_key_mac_of(&key, hello_label, parts, RAIL_COUNT_OF(parts), mac);
}

rail_result_t sk_auth_sign_hello(const struct sk_handle *listener, struct sk_hello_wire *hello) {
  hello->flags |= htole32(SK_HELLO_AUTH);
  RAIL_TRY(rail_random_bytes(hello->nonce, sizeof hello->nonce));
  return mac_of_hello(listener, hello, hello->mac);
}

bool sk_auth_check_hello(const struct sk_handle *listener, const struct sk_hello_wire *hello) {
  uint8_t mac[SK_MAC_SIZE];
  return mac_of_hello(listener, hello, mac) == RAIL_OK && rail_same_bytes(mac, hello->mac, sizeof mac);
}

rail_result_t sk_auth_sign_answer(const uint8_t *hello_mac, struct sk_answer_wire *answer) {
  const struct rail_mac_part parts[] = {{hello_mac, SK_MAC_SIZE}, {answer, offsetof(struct sk_answer_wire, mac)}};
  return rail_key_mac_of(&key, answer_label, parts, RAIL_COUNT_OF(parts), answer->mac);
}
