/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS 1.3 over one stream's socket (RAIL_SOCKET_TLS=psk): what leaves is encrypted, what comes in is authentic, or the
 * stream fails. OpenSSL's libssl.so.3 does it, opened when it is asked for and never otherwise.
 *
 *   sk_tls_new            before anything: ANSWER still comes in clear, nothing can be written
 *   sk_tls_begin          ANSWER was read, or sent: from here on both directions are TLS
 *   sk_tls_open           both, where ANSWER is there already
 *   sk_tls_handshake      until RAIL_OK
 *   sk_tls_writev, _recvv as sendmsg and recvmsg
 *   sk_tls_close          the end, so that the peer can tell it from a cut
 *
 * The key is not that of the file but made of it for this one stream (sk_tls_secret): it fits no other
 * HELLO. Both sides have it before TLS begins, so there are no certificates and no tickets; the
 * (EC)DHE exchange keeps what was recorded from whoever learns the key later.
 *
 * Encrypted bytes are sent next, even if the caller's next call passes other memory. Up to eight records leave
 * together, and count as written when the kernel has the last byte of them. What the kernel does not take waits here.
 *
 * One thread at a time, as for the stream that it belongs to. No call waits. Those log that load OpenSSL or make a key:
 * sk_tls_load, sk_tls_secret, sk_tls_begin_stream, sk_tls_open.
 */
#ifndef SK_TLS_H
#define SK_TLS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/base/result.h"

#define SK_TLS_SECRET 32      /* bytes of a stream's key */
#define SK_TLS_RECORD 16384   /* most bytes of payload in a record (RFC 8446, 5.1) */
#define SK_TLS_BATCH 8        /* most records of a system call: several, and few enough for a core's cache */
/* A key of AES-GCM is for 2^24.5 records at most (RFC 8446, 5.5); then each side takes its next one (KeyUpdate). */
#define SK_TLS_RECORDS_PER_KEY (1u << 24)

/* Opens libssl, if RAIL_SOCKET_TLS asks for it and no earlier call has. False, after one line that ends in "no
 * devices": TLS is wanted and not to be had. Under the plugin's lock, as sk_tls_unload, of the last finalize: no
 * stream has TLS any more. */
bool sk_tls_load(void);
void sk_tls_unload(void);

struct rail_session;
struct sk_tls;

/* NULL: out of memory. */
struct sk_tls *sk_tls_new(bool connector);
void sk_tls_free(struct sk_tls *tls); /* NULL is fine */
/* As new, for another socket. */
void sk_tls_reset(struct sk_tls *tls);

/* The stream's key: of the shared key, its HELLO and the nonce of its welcome, which the session holds once the welcome
 * was sent or received. RAIL_SYSTEM_ERROR, after one line: libcrypto makes none. */
rail_result_t sk_tls_secret(const struct rail_session *session, uint8_t secret[SK_TLS_SECRET]);
/* sk_tls_begin with it. An error, of the key or of memory, has had one line. */
rail_result_t sk_tls_begin_stream(struct sk_tls *tls, int fd, const struct rail_session *session);
/* sk_tls_new and sk_tls_begin_stream. An error has had one line, and *tls is NULL. */
rail_result_t sk_tls_open(const struct rail_session *session, int fd, struct sk_tls **tls);

/* Over `fd`, which stays the caller's. An error is one of memory; its text is sk_tls_error's. */
rail_result_t sk_tls_begin(struct sk_tls *tls, int fd, const uint8_t secret[SK_TLS_SECRET]);
/* RAIL_IN_PROGRESS: later, when the socket has changed or TLS was begun. Else it has failed, and so will every call.
 * It must end within RAIL_SOCKET_HANDSHAKE_TIMEOUT of begin. The first call that finds the time passed and the peer's
 * bytes there gives it that time once more: this process may have been stopped. */
rail_result_t sk_tls_handshake(struct sk_tls *tls);

/* As sendmsg: how many of these bytes the kernel has, or -1 with errno. EAGAIN: it is full, or the handshake goes on.
 * The next call begins with the bytes after those; their memory may be another. */
ssize_t sk_tls_writev(struct sk_tls *tls, const struct iovec *iov, int niov);
/* As rail_sock_recvv: fills the vector unless the socket is empty. The end of the stream (errno 0) is the peer's
 * close_notify; a connection that ends without is a failure. Before sk_tls_begin: what comes in clear. */
rail_result_t sk_tls_recvv(struct sk_tls *tls, int fd, const struct iovec *iov, int niov, size_t *n);

/* Is there something to do that poll(2) on the socket would not tell: bytes that were read and not asked for, or that
 * wait to leave? */
bool sk_tls_is_pending(const struct sk_tls *tls);
/* Why it failed: constant text without a trace of keys; NULL: it has not. */
const char *sk_tls_error(const struct sk_tls *tls);

/* How many of the bytes that were handed over, and not reported as written, are encrypted: the next ones to leave. They
 * count as written from here on. */
size_t sk_tls_take_held(struct sk_tls *tls);
/* Encrypts `size` more bytes and, with `ended`, close_notify. *out, to be freed by the caller, is what is left to send
 * as it is; NULL: nothing. Nothing can be written afterwards. */
void sk_tls_close(struct sk_tls *tls, const void *bytes, size_t size, bool ended, uint8_t **out, size_t *out_size);

/* For tests: KeyUpdate after so many records. */
void sk_tls_set_records_per_key(struct sk_tls *tls, uint32_t records);

#endif
