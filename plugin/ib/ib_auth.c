/* SPDX-License-Identifier: Apache-2.0
 * The key, and what is made with it. */
#include "plugin/ib/ib_auth.h"

#include <endian.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/ib/ib_param.h"

static const char hello_label[RAIL_LABEL_SIZE] = "RailIB 2 hello";
static const char connector_label[RAIL_LABEL_SIZE] = "RailIB 2 connector";
static const char acceptor_label[RAIL_LABEL_SIZE] = "RailIB 2 acceptor";

static struct rail_key key = {.plugin = "RailIB", .param = "RAIL_IB_AUTH_FILE"};

bool ib_auth_load(void) { return rail_key_load(&key, ib_params.auth_file); }
bool ib_auth_on(void) { return rail_key_on(&key); }

static rail_result_t mac_of_hello(const struct ib_handle *listener, const struct ib_hello_wire *hello,
                                  uint8_t mac[RAIL_MAC_SIZE]) {
  struct ib_handle as_given = *listener;
  uint8_t handle[RAIL_NET_HANDLE_SIZE];
  as_given.attempt = 0;
  ib_handle_encode(&as_given, handle);
  const struct rail_mac_part parts[] = {{handle, sizeof handle}, {hello, offsetof(struct ib_hello_wire, mac)}};
  return rail_key_mac_of(&key, hello_label, parts, RAIL_COUNT_OF(parts), mac);
}

rail_result_t ib_auth_sign_hello(const struct ib_handle *listener, struct ib_hello_wire *hello) {
  hello->flags |= htole32(IB_HELLO_AUTH);
  RAIL_TRY(rail_random_bytes(hello->nonce, sizeof hello->nonce));
  return mac_of_hello(listener, hello, hello->mac);
}

bool ib_auth_check_hello(const struct ib_handle *listener, const struct ib_hello_wire *hello) {
  uint8_t mac[RAIL_MAC_SIZE];
  return mac_of_hello(listener, hello, mac) == RAIL_OK && rail_same_bytes(mac, hello->mac, sizeof mac);
}

_Static_assert(sizeof(struct ib_auth_session) == 48, "no padding in what is signed");
_Static_assert(RAIL_LABEL_SIZE + sizeof(struct ib_auth_session) + 4 + IB_MESSAGE_MAX <= RAIL_MAC_INPUT_MAX,
               "every message can be signed");

rail_result_t ib_auth_mac(const struct ib_auth_session *session, bool connector, uint32_t number, const void *message,
                          size_t size, uint8_t mac[RAIL_MAC_SIZE]) {
  uint32_t place = htole32(number);
  const struct rail_mac_part parts[] = {{session, sizeof *session}, {&place, sizeof place}, {message, size}};
  return rail_key_mac_of(&key, connector ? connector_label : acceptor_label, parts, RAIL_COUNT_OF(parts), mac);
}
