/* SPDX-License-Identifier: Apache-2.0
 * The key, and what is made with it. */
#include "plugin/ib/ib_auth.h"

#include <endian.h>
#include <string.h>

#include "common/log.h"
#include "plugin/ib/ib_param.h"

/* Keep a mac of one kind from passing for one of another, in whatever protocol the key is used for. */
static const char hello_label[32] = "RailIB 1 hello";
static const char connector_label[32] = "RailIB 1 connector";
static const char acceptor_label[32] = "RailIB 1 acceptor";

static struct rail_key key = {.plugin = "RailIB", .param = "RAIL_IB_AUTH_FILE"};

bool ib_auth_load(void) { return rail_key_load(&key, ib_params.auth_file); }
bool ib_auth_on(void) { return rail_key_on(&key); }

static rail_result_t mac_of_hello(const struct ib_handle *listener, const struct ib_hello_wire *hello,
                                  uint8_t mac[RAIL_MAC_SIZE]) {
  uint8_t message[sizeof hello_label + RAIL_NET_HANDLE_SIZE + offsetof(struct ib_hello_wire, mac)];
  struct ib_handle handle = *listener;
  handle.attempt = 0;
  memcpy(message, hello_label, sizeof hello_label);
  ib_handle_encode(&handle, message + sizeof hello_label);
  memcpy(message + sizeof hello_label + RAIL_NET_HANDLE_SIZE, hello, offsetof(struct ib_hello_wire, mac));
  return rail_key_mac(&key, message, sizeof message, mac);
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

struct mac_input {
  char label[sizeof connector_label];
  struct ib_auth_session session;
  uint32_t number;
  uint8_t message[IB_MESSAGE_MAX - RAIL_MAC_SIZE];
};
_Static_assert(offsetof(struct mac_input, session) == 32 && offsetof(struct mac_input, number) == 80 &&
                 offsetof(struct mac_input, message) == 84, "no holes in what is signed");

rail_result_t ib_auth_mac(const struct ib_auth_session *session, bool connector, uint32_t number, const void *message,
                          size_t size, uint8_t mac[RAIL_MAC_SIZE]) {
  struct mac_input in;
  if (size > sizeof in.message) return RAIL_INTERNAL_ERROR;
  memcpy(in.label, connector ? connector_label : acceptor_label, sizeof in.label);
  in.session = *session;
  in.number = htole32(number);
  memcpy(in.message, message, size);
  return rail_key_mac(&key, &in, offsetof(struct mac_input, message) + size, mac);
}
