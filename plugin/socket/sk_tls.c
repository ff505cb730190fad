/* SPDX-License-Identifier: Apache-2.0
 * libssl by dlopen; one stream's TLS between its socket and its frames. Without OpenSSL's headers: sk_tls_key.c. */
#ifdef RAIL_HAVE_OPENSSL
#include "plugin/socket/sk_tls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "common/base/log.h"
#include "common/base/ordered_copy.h"
#include "common/base/sock.h"
#include "plugin/socket/sk_openssl.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_wire.h"

#define RECORD_ROOM (SK_TLS_RECORD + 256 + 5) /* with its head and tag (RFC 8446, 5.2) */
/* Room for what the kernel does not take: a batch, and what the protocol itself sends, which is less than a record. */
#define OUT_ROOM ((SK_TLS_BATCH + 1) * RECORD_ROOM)
#define AHEAD_ROOM (SK_TLS_BATCH * RECORD_ROOM) /* bytes that are read past a record: the next ones */

static const unsigned char identity[] = "RailSocket"; /* of the key; both sides have just one */
static const unsigned char cipher_id[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 (RFC 8446, B.4) */

/* ---- loading ---------------------------------------------------------- */

static SSL_CTX *context; /* of both sides; read-only once it is made */
static BIO_METHOD *bio_method;

static int use_session(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_size, SSL_SESSION **session);
static int find_session(SSL *ssl, const unsigned char *id, size_t id_size, SSL_SESSION **session);
static int bio_write(BIO *bio, const char *bytes, int size);
static int bio_read(BIO *bio, char *bytes, int size);
static long bio_ctrl(BIO *bio, int command, long number, void *pointer);

/* TLS 1.3 with one cipher, PSK with (EC)DHE (OpenSSL's default is psk_dhe_ke alone), nothing else. */
static const char *make_context(void) {
  const uint64_t options = SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET;
  /* The system's openssl.cnf may have set these: a key without (EC)DHE, and a cut that is taken for an end. */
  const uint64_t forbidden = SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_IGNORE_UNEXPECTED_EOF;
  const long modes = SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_AUTO_RETRY;
  context = ossl.SSL_CTX_new(ossl.TLS_method());
  bio_method = ossl.BIO_meth_new(BIO_TYPE_SOURCE_SINK, "RailSocket");
  if (!context || !bio_method) return "OpenSSL has no memory, or its configuration is broken";
  bool fits = ossl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, NULL) == 1 &&
              ossl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MAX_PROTO_VERSION, TLS1_3_VERSION, NULL) == 1 &&
              ossl.SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1;
  if (!fits) return "this OpenSSL has no TLS 1.3 with AES-128-GCM (does a policy forbid it?)";
  (void)ossl.SSL_CTX_set_options(context, options);
  (void)ossl.SSL_CTX_clear_options(context, forbidden);
  (void)ossl.SSL_CTX_ctrl(context, SSL_CTRL_MODE, modes, NULL);
  (void)ossl.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, NULL);
  (void)ossl.SSL_CTX_set_num_tickets(context, 0);
  ossl.SSL_CTX_set_psk_use_session_callback(context, use_session);
  ossl.SSL_CTX_set_psk_find_session_callback(context, find_session);
  (void)ossl.BIO_meth_set_write(bio_method, bio_write);
  (void)ossl.BIO_meth_set_read(bio_method, bio_read);
  (void)ossl.BIO_meth_set_ctrl(bio_method, bio_ctrl);
  return NULL;
}

bool sk_tls_load(void) {
  static bool failed, said;
  const char *why, *what = "install OpenSSL 3 (Debian: libssl3)";
  if (!sk_params.tls || context) return !failed;
  if (failed) return false;
  if (!rail_key_on(sk_protocol.key)) {
    why = "it encrypts with the key of RAIL_SOCKET_AUTH_FILE, which is not set";
    what = "set that";
  } else {
    why = ossl_open();
    if (!why) why = make_context();
  }
  if (!why && !said)
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: connections are encrypted (TLS 1.3 by %s); "
              "RAIL_SOCKET_ZEROCOPY does not apply", ossl.OpenSSL_version(OPENSSL_VERSION));
  said |= !why;
  if (!why) return true;
  RAIL_WARN("RailSocket: RAIL_SOCKET_TLS=psk cannot be used: %s; %s, or set it to off on all sides; no devices", why,
            what);
  sk_tls_unload();
  failed = true;
  return false;
}

void sk_tls_unload(void) {
  if (context) ossl.SSL_CTX_free(context);
  if (bio_method) ossl.BIO_meth_free(bio_method);
  context = NULL;
  bio_method = NULL;
}

/* ---- one stream's ------------------------------------------------------- */

struct sk_tls {
  SSL *ssl; /* NULL: not begun */
  int fd;
  bool connector;
  bool up;      /* the handshake is over */
  bool ended;   /* the peer's close_notify was read */
  bool more;    /* what is written now is followed by more in the same call */
  bool batching; /* and leaves with it */
  bool drained; /* the socket was found empty in this call */
  bool eof;     /* of the socket */
  bool closing; /* out may grow */
  int out_err;  /* nothing can be sent any more; what the peer has sent is read all the same */
  int err;      /* failed: no call does anything any more */
  const char *why;
  uint64_t deadline; /* of the handshake */
  bool read_some; /* bytes were read in this call of it */
  bool extended;  /* its deadline was: once */
  uint32_t records, records_per_key;
  uint8_t secret[SK_TLS_SECRET]; /* until the handshake is over */

  uint8_t *ahead; /* read, and not handed to OpenSSL: AHEAD_ROOM */
  uint32_t ahead_at, ahead_size;

  uint8_t *out; /* encrypted, and not in the kernel: out[out_at..out_size) */
  size_t out_at, out_size, out_cap;
  size_t held; /* bytes of the caller's that it ends with: they were not reported as written */
  uint8_t record[SK_TLS_RECORD]; /* small pieces, put together */
  uint8_t plain[SK_TLS_RECORD];  /* what was read, on its way to the caller */
};

struct sk_tls *sk_tls_new(bool connector) {
  struct sk_tls *t = calloc(1, sizeof *t);
  if (!t) return NULL;
  t->connector = connector;
  t->fd = -1;
  t->records_per_key = SK_TLS_RECORDS_PER_KEY;
  t->out_cap = OUT_ROOM;
  t->out = malloc(t->out_cap);
  t->ahead = malloc(AHEAD_ROOM);
  if (t->out && t->ahead) return t;
  sk_tls_free(t);
  return NULL;
}

void sk_tls_reset(struct sk_tls *t) {
  if (t->ssl) ossl.SSL_free(t->ssl);
  explicit_bzero(t->secret, sizeof t->secret);
  *t = (struct sk_tls){.connector = t->connector, .fd = -1, .records_per_key = t->records_per_key, .out = t->out,
                       .out_cap = t->out_cap, .ahead = t->ahead};
}

void sk_tls_free(struct sk_tls *t) {
  if (!t) return;
  sk_tls_reset(t);
  free(t->out);
  free(t->ahead);
  free(t);
}

const char *sk_tls_error(const struct sk_tls *t) { return t->why; }
void sk_tls_set_records_per_key(struct sk_tls *t, uint32_t records) { t->records_per_key = records; }

bool sk_tls_is_pending(const struct sk_tls *t) {
  return t->ssl && !t->err && (t->out_size || t->ahead_size || ossl.SSL_has_pending(t->ssl));
}

/* The socket is shut down, so that whoever waits for it looks once more, and so that the peer learns of it. */
RAIL_COLD static rail_result_t fail(struct sk_tls *t, int err, const char *why) {
  if (!t->err) {
    t->err = err;
    t->why = why;
    (void)shutdown(t->fd, SHUT_RDWR);
  }
  errno = t->err;
  return rail_result_of_errno(t->err);
}

/* A call of OpenSSL has returned that it did not do what was asked. */
static rail_result_t ssl_error(struct sk_tls *t, int returned) {
  static const char cut[] = "it was cut: it ended without TLS' close_notify";
  switch (ossl.SSL_get_error(t->ssl, returned)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      errno = EAGAIN;
      return RAIL_IN_PROGRESS;
    case SSL_ERROR_ZERO_RETURN:
      if (t->eof) return fail(t, ECONNRESET, cut); /* after a close_notify the socket is not read any more */
      t->ended = true;
      errno = 0;
      return RAIL_REMOTE_ERROR;
    default:
      if (t->err) return fail(t, t->err, t->why); /* the socket's */
      if (t->eof) return fail(t, ECONNRESET, cut);
      const char *why = ossl.ERR_reason_error_string(ossl.ERR_peek_error());
      return fail(t, EPROTO, why ? why : "TLS failed");
  }
}

/* ---- the key ------------------------------------------------------------- */

/* A session that holds nothing but the key, as OpenSSL wants it; NULL: out of memory. */
static SSL_SESSION *make_session(SSL *ssl) {
  const struct sk_tls *t = ossl.SSL_get_ex_data(ssl, 0);
  SSL_SESSION *session = ossl.SSL_SESSION_new();
  const SSL_CIPHER *cipher = ossl.SSL_CIPHER_find(ssl, cipher_id);
  if (session && cipher && ossl.SSL_SESSION_set1_master_key(session, t->secret, sizeof t->secret) &&
      ossl.SSL_SESSION_set_cipher(session, cipher) && ossl.SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
    return session;
  if (session) ossl.SSL_SESSION_free(session);
  return NULL;
}

static int use_session(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_size, SSL_SESSION **session) {
  (void)md; /* there is one cipher, so one hash */
  *session = make_session(ssl);
  *id = identity;
  *id_size = sizeof identity - 1;
  return *session != NULL;
}

/* Without a session OpenSSL would go on without the key, and fail because there is no certificate. */
static int find_session(SSL *ssl, const unsigned char *id, size_t id_size, SSL_SESSION **session) {
  bool known = id_size == sizeof identity - 1 && memcmp(id, identity, id_size) == 0;
  *session = known ? make_session(ssl) : NULL;
  return !known || *session;
}

/* ---- the socket ----------------------------------------------------------- */

/* OpenSSL's socket BIO would raise SIGPIPE, and read each record's head by a call of its own. */

/* Of these bytes those that do not fit into the socket are kept. -1: so many cannot be. */
static int keep(struct sk_tls *t, const char *bytes, size_t size) {
  if (t->out_cap - t->out_size < size) {
    size_t cap = t->out_size + size + OUT_ROOM;
    uint8_t *out = t->closing ? realloc(t->out, cap) : NULL;
    if (!out) return -1;
    t->out = out;
    t->out_cap = cap;
  }
  memcpy(t->out + t->out_size, bytes, size);
  t->out_size += size;
  return 0;
}

/* One send; bytes that the socket took. After a failure (out_err) it takes all, and they are lost. */
static size_t send_once(struct sk_tls *t, const void *bytes, size_t size) {
  ssize_t n;
  if (rail_unlikely(t->out_err)) return size;
  do n = send(t->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT | (t->more ? MSG_MORE : 0));
  while (rail_unlikely(n < 0) && errno == EINTR);
  if (rail_likely(n >= 0)) return (size_t)n;
  if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
  t->out_err = errno;
  return size;
}

static int bio_write(BIO *bio, const char *bytes, int size) {
  struct sk_tls *t = ossl.BIO_get_data(bio);
  ossl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
  size_t n = t->out_size || t->closing || t->batching ? 0 : send_once(t, bytes, (size_t)size);
  if (n == (size_t)size || keep(t, bytes + n, (size_t)size - n) == 0) return size;
  ossl.BIO_set_flags(bio, BIO_FLAGS_WRITE | BIO_FLAGS_SHOULD_RETRY);
  return -1;
}

/* OpenSSL asks for a record's head, then for the rest of it. One call brings what it asks for and the next records. */
static int bio_read(BIO *bio, char *bytes, int size) {
  struct sk_tls *t = ossl.BIO_get_data(bio);
  ossl.BIO_clear_flags(bio, BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY);
  if (t->ahead_size) {
    uint32_t n = RAIL_MIN(t->ahead_size, (uint32_t)size);
    memcpy(bytes, t->ahead + t->ahead_at, n);
    t->ahead_at += n;
    t->ahead_size -= n;
    return (int)n;
  }
  struct iovec iov[2] = {{.iov_base = bytes, .iov_len = (size_t)size}, {.iov_base = t->ahead, .iov_len = AHEAD_ROOM}};
  size_t n = 0;
  rail_result_t result = t->drained ? RAIL_IN_PROGRESS : rail_sock_recvv(t->fd, iov, 2, &n);
  if (result == RAIL_IN_PROGRESS) {
    ossl.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
    return -1;
  }
  if (result != RAIL_OK && errno) (void)fail(t, errno, NULL);
  else if (result != RAIL_OK) t->eof = true;
  if (result != RAIL_OK) return t->eof ? 0 : -1;
  t->read_some = true;
  t->drained = n < (size_t)size + AHEAD_ROOM;
  if (n <= (size_t)size) return (int)n;
  t->ahead_at = 0;
  t->ahead_size = (uint32_t)(n - (size_t)size);
  return size;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer) {
  (void)number, (void)pointer;
  if (command == BIO_CTRL_EOF) return ((struct sk_tls *)ossl.BIO_get_data(bio))->eof;
  return command == BIO_CTRL_FLUSH; /* nothing is buffered here */
}

/* What waits goes first. True: all of it has left. */
static bool push_out(struct sk_tls *t) {
  for (size_t n; t->out_at < t->out_size; t->out_at += n) {
    n = send_once(t, t->out + t->out_at, t->out_size - t->out_at);
    if (n == 0) return false;
  }
  t->out_at = t->out_size = 0;
  return true;
}

/* ---- handshake -------------------------------------------------------------- */

rail_result_t sk_tls_begin(struct sk_tls *t, int fd, const uint8_t secret[SK_TLS_SECRET]) {
  static const char no_memory[] = "OpenSSL has no memory for the connection";
  t->fd = fd;
  t->ssl = ossl.SSL_new(context);
  if (!t->ssl || !ossl.SSL_set_ex_data(t->ssl, 0, t)) return fail(t, ENOMEM, no_memory);
  BIO *bio = ossl.BIO_new(bio_method);
  if (!bio) return fail(t, ENOMEM, no_memory);
  ossl.BIO_set_data(bio, t);
  ossl.BIO_set_init(bio, 1);
  ossl.SSL_set_bio(t->ssl, bio, bio); /* its own from here on */
  memcpy(t->secret, secret, sizeof t->secret);
  /* An acceptor without the key might show a certificate; none is trusted. sk_tls_handshake asks once more. */
  if (t->connector) ossl.SSL_set_verify(t->ssl, SSL_VERIFY_PEER, NULL);
  if (t->connector) ossl.SSL_set_connect_state(t->ssl);
  else ossl.SSL_set_accept_state(t->ssl);
  t->deadline = rail_deadline_in_ms((uint64_t)sk_params.handshake_ms);
  return RAIL_OK;
}

/* A process that was stopped finds the time passed and the peer's bytes there: it has one more time, for the rest. */
static bool is_out_of_time(struct sk_tls *t) {
  if (!rail_deadline_passed(t->deadline)) return false;
  if (!t->read_some || t->extended) return true;
  t->extended = true;
  t->deadline = rail_deadline_in_ms((uint64_t)sk_params.handshake_ms);
  return false;
}

rail_result_t sk_tls_handshake(struct sk_tls *t) {
  if (t->up) return RAIL_OK;
  if (t->err) return fail(t, t->err, t->why);
  if (!t->ssl) return RAIL_IN_PROGRESS;
  t->drained = t->read_some = false;
  ossl.ERR_clear_error();
  int returned = ossl.SSL_do_handshake(t->ssl);
  if (returned != 1) {
    rail_result_t result = ssl_error(t, returned);
    if (t->ended) return fail(t, ECONNRESET, "the peer ended TLS in its handshake");
    if (result == RAIL_IN_PROGRESS && t->out_size) (void)push_out(t);
    if (result == RAIL_IN_PROGRESS && t->out_err) return fail(t, t->out_err, NULL);
    if (result != RAIL_IN_PROGRESS || !is_out_of_time(t)) return result;
    return fail(t, ETIMEDOUT, "it was not finished in time (RAIL_SOCKET_HANDSHAKE_TIMEOUT)");
  }
  explicit_bzero(t->secret, sizeof t->secret);
  if (!ossl.SSL_session_reused(t->ssl)) return fail(t, EPROTO, "the peer has not shown that it has the key");
  t->up = true;
  return RAIL_OK;
}

/* ---- out ---------------------------------------------------------------------- */

/* The next record's bytes: of one piece that fills it, or of several, put together. Moves *i and *at behind them. */
static const uint8_t *next_record(struct sk_tls *t, const struct iovec *iov, int niov, int *i, size_t *at,
                                  size_t *size) {
  size_t have = 0;
  while (*i < niov && *at == iov[*i].iov_len) {
    *at = 0;
    ++*i;
  }
  if (*i == niov) return NULL;
  const uint8_t *from = (const uint8_t *)iov[*i].iov_base + *at;
  if (iov[*i].iov_len - *at >= SK_TLS_RECORD || *i == niov - 1) {
    *size = RAIL_MIN(iov[*i].iov_len - *at, (size_t)SK_TLS_RECORD);
    *at += *size;
    return from;
  }
  for (; *i < niov && have < SK_TLS_RECORD; *at = *at == iov[*i].iov_len ? (++*i, 0) : *at) {
    size_t n = RAIL_MIN(iov[*i].iov_len - *at, SK_TLS_RECORD - have);
    if (n) memcpy(t->record + have, (const uint8_t *)iov[*i].iov_base + *at, n);
    have += n;
    *at += n;
  }
  *size = have;
  return t->record;
}

/* Encrypts one record; OpenSSL takes all of it, because `out` has room for what the socket does not. */
static rail_result_t write_record(struct sk_tls *t, const uint8_t *bytes, size_t size) {
  if (rail_unlikely(t->records++ == t->records_per_key)) {
    t->records = 1;
    if (!ossl.SSL_key_update(t->ssl, SSL_KEY_UPDATE_NOT_REQUESTED)) return fail(t, EPROTO, "no next key to send with");
  }
  int n = ossl.SSL_write(t->ssl, bytes, (int)size);
  if (rail_likely(n == (int)size)) return RAIL_OK;
  if (n > 0) return fail(t, EPROTO, "OpenSSL has cut a record");
  return ssl_error(t, n);
}

ssize_t sk_tls_writev(struct sk_tls *t, const struct iovec *iov, int niov) {
  if (t->err || !t->up) {
    errno = t->err ? t->err : EAGAIN;
    return -1;
  }
  while (niov && !iov[niov - 1].iov_len) niov--; /* then bytes follow in what follows */
  size_t old = t->held, done, size; /* what was encrypted in an earlier call comes first in this vector, too */
  int i = 0;
  bool full = t->out_size && !push_out(t);
  if (full || t->out_err) {
    errno = full ? EAGAIN : t->out_err;
    return -1;
  }
  while (i < niov && old >= iov[i].iov_len) old -= iov[i++].iov_len;
  done = i < niov ? t->held : t->held - old;
  t->held -= done;
  if (t->held) return (ssize_t)done; /* the caller has handed over less than in that call */
  size_t at = old; /* within iov[i] */
  struct { size_t bytes, end; } batch[SK_TLS_BATCH]; /* records that leave together, and where they end in `out` */
  unsigned int n = 0, left;
  ossl.ERR_clear_error();
  for (const uint8_t *bytes; (bytes = next_record(t, iov, niov, &i, &at, &size));) {
    t->more = i < niov - 1 || (i == niov - 1 && at < iov[i].iov_len); /* the socket's last segment waits for it */
    t->batching = t->more && n + 1 < SK_TLS_BATCH;
    if (rail_unlikely(write_record(t, bytes, size) != RAIL_OK)) break;
    batch[n].bytes = size;
    batch[n++].end = t->out_size;
    if (t->batching) continue;
    if (t->out_size && n > 1) (void)push_out(t); /* one alone was sent from OpenSSL's memory */
    if (rail_unlikely(t->out_err)) break;
    for (left = 0; left < n && (!t->out_size || batch[left].end <= t->out_at); left++) done += batch[left].bytes;
    for (; left < n; left++) t->held += batch[left].bytes;
    if (t->held) break; /* full */
    n = 0;
  }
  t->batching = t->more = false;
  if (done) return (ssize_t)done;
  if (t->held || t->out_err) errno = t->held ? EAGAIN : t->out_err;
  return -1;
}

size_t sk_tls_take_held(struct sk_tls *t) {
  size_t held = t->held;
  t->held = 0;
  return held;
}

void sk_tls_close(struct sk_tls *t, const void *bytes, size_t size, bool ended, uint8_t **out, size_t *out_size) {
  const uint8_t *at = bytes;
  *out = NULL;
  *out_size = 0;
  if (t->err || t->out_err || !t->up) return;
  t->closing = true; /* nothing is sent from here on */
  ossl.ERR_clear_error();
  for (size_t n; size && !t->err; at += n, size -= n) {
    n = RAIL_MIN(size, (size_t)SK_TLS_RECORD);
    if (write_record(t, at, n) != RAIL_OK) return;
  }
  if (ended) (void)ossl.SSL_shutdown(t->ssl);
  if (t->out_size > t->out_at) {
    memmove(t->out, t->out + t->out_at, t->out_size - t->out_at);
    *out = t->out;
    *out_size = t->out_size - t->out_at;
    t->out = NULL;
  }
  t->out_at = t->out_size = t->out_cap = 0;
  t->up = false;
}

/* ---- in ------------------------------------------------------------------------ */

/* OpenSSL copies what it has decrypted in any order; NCCL's LL128 polls the buffer and needs that of addresses
 * (docs/protocol-socket.md, section 5). So it copies to where the cache holds it, and the second copy is ours. */
rail_result_t sk_tls_recvv(struct sk_tls *t, int fd, const struct iovec *iov, int niov, size_t *n) {
  *n = 0;
  if (rail_unlikely(!t->ssl && !t->err)) return rail_sock_recvv(fd, iov, niov, n);
  if (rail_unlikely(t->err)) return fail(t, t->err, t->why);
  if (rail_unlikely(!t->up)) return RAIL_IN_PROGRESS;
  if (rail_unlikely(t->ended)) {
    errno = 0;
    return RAIL_REMOTE_ERROR;
  }
  if (rail_unlikely(t->out_size)) (void)push_out(t); /* an answer of the protocol's own may wait there */
  t->drained = false;
  ossl.ERR_clear_error();
  for (int i = 0; i < niov; i++) {
    for (size_t at = 0; at < iov[i].iov_len;) {
      size_t want = RAIL_MIN(iov[i].iov_len - at, sizeof t->plain);
      int got = ossl.SSL_read(t->ssl, t->plain, (int)want);
      if (got <= 0) {
        rail_result_t result = ssl_error(t, got);
        return *n ? RAIL_OK : result; /* the next call finds out what is wrong */
      }
      rail_ordered_copy((uint8_t *)iov[i].iov_base + at, t->plain, (size_t)got);
      at += (size_t)got;
      *n += (size_t)got;
    }
  }
  return RAIL_OK;
}

#endif
