/* SPDX-License-Identifier: Apache-2.0
 * OpenSSL's functions, found at run time: for sk_tls.c alone. */
#ifndef SK_OPENSSL_H
#define SK_OPENSSL_H

#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#define OSSL_FUNCTIONS(X)                                                                                              \
  X(TLS_method) X(SSL_CTX_new) X(SSL_CTX_free) X(SSL_CTX_ctrl) X(SSL_CTX_set_options) X(SSL_CTX_clear_options)        \
  X(SSL_CTX_set_ciphersuites) X(SSL_CTX_set_num_tickets) X(SSL_set_verify) X(SSL_CTX_set_psk_use_session_callback)     \
  X(SSL_CTX_set_psk_find_session_callback) X(SSL_new) X(SSL_free) X(SSL_set_bio) X(SSL_set_ex_data)                    \
  X(SSL_get_ex_data) X(SSL_set_connect_state) X(SSL_set_accept_state) X(SSL_do_handshake) X(SSL_session_reused)        \
  X(SSL_read) X(SSL_write) X(SSL_key_update) X(SSL_shutdown) X(SSL_get_error) X(SSL_has_pending) X(SSL_CIPHER_find)    \
  X(SSL_SESSION_new) X(SSL_SESSION_free) X(SSL_SESSION_set1_master_key) X(SSL_SESSION_set_cipher)                      \
  X(SSL_SESSION_set_protocol_version) X(BIO_meth_new) X(BIO_meth_free) X(BIO_meth_set_write) X(BIO_meth_set_read)      \
  X(BIO_meth_set_ctrl) X(BIO_new) X(BIO_set_data) X(BIO_get_data) X(BIO_set_init) X(BIO_set_flags) X(BIO_clear_flags)  \
  X(ERR_clear_error) X(ERR_peek_error) X(ERR_reason_error_string) X(OpenSSL_version)

static struct {
#define OSSL_POINTER(name) __typeof__(name) *name;
  OSSL_FUNCTIONS(OSSL_POINTER)
} ossl;
#undef OSSL_POINTER

/* NULL, or what is wrong. libssl brings libcrypto, whose functions are found by it. */
static const char *ossl_open(void) {
  /* Never closed: it has exit handlers of its own. */
  void *dl = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!dl) return "OpenSSL's libssl.so.3 is not installed";
#define OSSL_FIND(name) if (!(*(void **)&ossl.name = dlsym(dl, #name))) return "libssl.so.3 lacks " #name;
  OSSL_FUNCTIONS(OSSL_FIND)
  return NULL;
}
#undef OSSL_FIND
#undef OSSL_FUNCTIONS

#endif
