/* SPDX-License-Identifier: Apache-2.0
 * A stream's key: made of the shared key, given to TLS, and wiped. */
#include <string.h>

#include "plugin/socket/sk_tls.h"
#include "plugin/socket/sk_wire.h"

_Static_assert(SK_TLS_SECRET == RAIL_MAC_SIZE, "a stream's key is a mac");

rail_result_t sk_tls_secret(const struct rail_session *session, uint8_t secret[RAIL_MAC_SIZE]) {
  static const char label[RAIL_LABEL_SIZE] = "RailSocket 3 tls"; /* the version is SK_WIRE_VERSION */
  const struct rail_mac_part parts[] = {{session->hello_mac, sizeof session->hello_mac},
                                        {session->nonce, sizeof session->nonce}};
  return rail_key_mac_of(session->protocol->key, label, parts, RAIL_COUNT_OF(parts), secret);
}

rail_result_t sk_tls_begin_stream(struct sk_tls *tls, int fd, const struct rail_session *session) {
  uint8_t secret[SK_TLS_SECRET];
  bool made = sk_tls_secret(session, secret) == RAIL_OK;
  rail_result_t result = made ? sk_tls_begin(tls, fd, secret) : RAIL_INTERNAL_ERROR;
  explicit_bzero(secret, sizeof secret);
  return result;
}
