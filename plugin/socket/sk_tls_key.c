/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream's key: made of the shared key, given to TLS, and wiped. Then, where OpenSSL's headers are not, what sk_tls.c
 * has with them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_tls.h"
#include "plugin/socket/sk_wire.h"

_Static_assert(SK_TLS_SECRET == RAIL_MAC_SIZE, "a stream's key is a mac");

rail_result_t sk_tls_secret(const struct rail_session *session, uint8_t secret[RAIL_MAC_SIZE]) {
  char label[RAIL_LABEL_SIZE] = "";
  snprintf(label, sizeof label, "RailSocket %d tls", SK_WIRE_VERSION);
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

/* ---- without OpenSSL ----------------------------------------------------------
 *
 * Who asks for TLS has no devices, so but for load and unload only sk_tls_free(NULL) is reached. */

#ifndef RAIL_HAVE_OPENSSL
bool sk_tls_load(void) {
  static bool said;
  if (!sk_params.tls) return true;
  if (!said)
    RAIL_WARN("RailSocket: RAIL_SOCKET_TLS=psk cannot be used: this plugin was built without OpenSSL's headers; "
              "install libssl-dev and build it again, or set it to off on all sides; no devices");
  said = true;
  return false;
}
void sk_tls_unload(void) {}

struct sk_tls *sk_tls_new(bool connector) { return (void)connector, NULL; }
void sk_tls_free(struct sk_tls *t) { (void)t; }
void sk_tls_reset(struct sk_tls *t) { (void)t; }
rail_result_t sk_tls_begin(struct sk_tls *t, int fd, const uint8_t secret[SK_TLS_SECRET]) {
  (void)t, (void)fd, (void)secret;
  return RAIL_INTERNAL_ERROR;
}
rail_result_t sk_tls_handshake(struct sk_tls *t) { return (void)t, RAIL_INTERNAL_ERROR; }
ssize_t sk_tls_writev(struct sk_tls *t, const struct iovec *iov, int niov) {
  (void)t, (void)iov, (void)niov;
  errno = ENOSYS;
  return -1;
}
rail_result_t sk_tls_recvv(struct sk_tls *t, int fd, const struct iovec *iov, int niov, size_t *n) {
  (void)t, (void)fd, (void)iov, (void)niov, (void)n;
  errno = ENOSYS;
  return RAIL_INTERNAL_ERROR;
}
bool sk_tls_is_pending(const struct sk_tls *t) { return (void)t, false; }
const char *sk_tls_error(const struct sk_tls *t) { return (void)t, NULL; }
size_t sk_tls_take_held(struct sk_tls *t) { return (void)t, (size_t)0; }
void sk_tls_close(struct sk_tls *t, const void *bytes, size_t size, bool ended, uint8_t **out, size_t *out_size) {
  (void)t, (void)bytes, (void)size, (void)ended;
  *out = NULL;
  *out_size = 0;
}
void sk_tls_set_records_per_key(struct sk_tls *t, uint32_t records) { (void)t, (void)records; }
#endif
