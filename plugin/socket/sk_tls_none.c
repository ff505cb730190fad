/* SPDX-License-Identifier: Apache-2.0
 * Built where OpenSSL's headers are not: who asks for TLS has no devices, so but for load and unload
 * only sk_tls_free(NULL) is reached. */
#ifndef RAIL_HAVE_OPENSSL
#include <errno.h>

#include "common/base/log.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_tls.h"

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
