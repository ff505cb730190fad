/* SPDX-License-Identifier: Apache-2.0
 * A stream's key: made of the shared key, given to TLS, and wiped. */
#include <string.h>

#include "common/base/log.h"
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
  rail_result_t result = sk_tls_secret(session, secret);
  if (result == RAIL_OK) {
    result = sk_tls_begin(tls, fd, secret);
    if (result != RAIL_OK) RAIL_WARN("RailSocket: TLS cannot begin: %s", sk_tls_error(tls));
  }
  explicit_bzero(secret, sizeof secret);
  return result;
}

rail_result_t sk_tls_open(const struct rail_session *session, int fd, struct sk_tls **tls) {
  *tls = sk_tls_new(session->connector);
  if (!*tls) {
    RAIL_WARN("RailSocket: out of memory for the TLS of a stream");
    return RAIL_SYSTEM_ERROR;
  }
  rail_result_t result = sk_tls_begin_stream(*tls, fd, session);
  if (result == RAIL_OK) return RAIL_OK;
  sk_tls_free(*tls);
  *tls = NULL;
  return result;
}
