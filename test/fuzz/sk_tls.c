/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * One side of a stream's TLS, with the wire to an honest peer in the fuzzer's
 * hands: before the handshake, in it and after it. Input: which side, then
 * steps. Whatever arrives, what is handed out is what the peer has written, in
 * order, and nothing else.
 */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_tls.h"
#include "plugin/socket/sk_wire.h"
#include "test/fuzz/lib/fuzz.h"

#define MOST_STEPS 64

enum step { HANDSHAKE, CARRY, CHANGE, INJECT, WRITE, READ, CUT, STEPS };

struct side {
  struct sk_tls *tls;
  int fd, wire;
};

/* Once: a key, so that TLS can be loaded. Each input has its own streams. */
static void prepare(void) {
  static bool done;
  char path[] = "/tmp/rail-fuzz-key-XXXXXX";
  if (done) return;
  done = true;
  int fd = mkstemp(path);
  FUZZ_CHECK(fd >= 0 && write(fd, "sixteen bytes or more", 21) == 21);
  close(fd);
  setenv("RAIL_SOCKET_AUTH_FILE", path, 1);
  setenv("RAIL_SOCKET_TLS", "psk", 1);
  sk_params_load();
  FUZZ_CHECK(sk_protocol_load() && sk_tls_load());
  unlink(path);
}

static void open_side(struct side *s, bool connector) {
  static const uint8_t secret[SK_TLS_SECRET] = "known to both";
  int fds[2];
  FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
  *s = (struct side){.tls = sk_tls_new(connector), .fd = fds[0], .wire = fds[1]};
  FUZZ_CHECK(s->tls && sk_tls_begin(s->tls, s->fd, secret) == RAIL_OK);
}

static void close_side(struct side *s) {
  sk_tls_free(s->tls);
  close(s->fd);
  if (s->wire >= 0) close(s->wire);
}

/* What one side has sent goes to the other, with one byte changed if `value` is not 0. */
static void carry(const struct side *from, const struct side *to, size_t at, uint8_t value) {
  uint8_t bytes[8192];
  if (from->wire < 0 || to->wire < 0) return;
  ssize_t n = recv(from->wire, bytes, sizeof bytes, MSG_DONTWAIT);
  if (n <= 0) return;
  bytes[at % (size_t)n] ^= value;
  (void)!send(to->wire, bytes, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void fuzz_one(const uint8_t *data, size_t size) {
  static uint8_t written[65536];
  struct fuzz_in in = {data, size};
  struct side me, peer;
  size_t sent = 0, got = 0, n;
  prepare();
  for (size_t i = 0; i < sizeof written; i++) written[i] = (uint8_t)(i * 7 + (i >> 8));
  bool connector = fuzz_u8(&in) & 1;
  open_side(&me, connector);
  open_side(&peer, !connector);
  for (int step = 0; step < MOST_STEPS && in.left; step++) {
    switch (fuzz_u8(&in) % STEPS) {
      case HANDSHAKE:
        (void)sk_tls_handshake(me.tls);
        (void)sk_tls_handshake(peer.tls);
        break;
      case CARRY:
        carry(&peer, &me, 0, 0);
        carry(&me, &peer, 0, 0);
        break;
      case CHANGE: {
        size_t at = fuzz_u16(&in);
        carry(&peer, &me, at, fuzz_u8(&in));
        break;
      }
      case INJECT: {
        size_t piece = fuzz_u8(&in);
        const uint8_t *bytes = fuzz_take(&in, &piece);
        if (me.wire >= 0 && piece) (void)!send(me.wire, bytes, piece, MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
      }
      case WRITE: {
        struct iovec iov = {written + sent, RAIL_MIN((size_t)fuzz_u8(&in) * 8, sizeof written - sent)};
        ssize_t done = sk_tls_writev(peer.tls, &iov, 1);
        if (done > 0) sent += (size_t)done;
        break;
      }
      case READ: {
        uint8_t bytes[600];
        struct iovec iov = {bytes, 1 + fuzz_u8(&in) * 2};
        rail_result_t result = sk_tls_recvv(me.tls, me.fd, &iov, 1, &n);
        FUZZ_CHECK(result != RAIL_OK || n <= iov.iov_len);
        FUZZ_CHECK(got + n <= sizeof written && memcmp(bytes, written + got, n) == 0);
        got += n;
        break;
      }
      case CUT:
        if (me.wire >= 0) close(me.wire);
        me.wire = -1;
        break;
    }
    (void)sk_tls_is_pending(me.tls);
  }
  close_side(&me);
  close_side(&peer);
}

static void put_handshake(struct fuzz_out *out) {
  for (int i = 0; i < 3; i++) {
    fuzz_put8(out, HANDSHAKE);
    fuzz_put8(out, CARRY);
  }
  fuzz_put8(out, HANDSHAKE);
}

static void put_data(struct fuzz_out *out, unsigned int eights) {
  fuzz_put8(out, WRITE);
  fuzz_put8(out, eights);
  fuzz_put8(out, CARRY);
  fuzz_put8(out, READ);
  fuzz_put8(out, 100);
}

void fuzz_make_seeds(void) {
  for (unsigned int side = 0; side < 2; side++) {
    struct fuzz_out out = {.size = 0};
    fuzz_put8(&out, side);
    put_handshake(&out);
    put_data(&out, 20);
    put_data(&out, 200);
    fuzz_put8(&out, CUT);
    put_data(&out, 20);
    fuzz_seed(side ? "connector" : "acceptor", out.bytes, out.size);
    out.size = 0;
    fuzz_put8(&out, side);
    fuzz_put8(&out, INJECT); /* the head of a handshake's record, and its message's */
    fuzz_put8(&out, 20);
    fuzz_put(&out, "\x16\x03\x03\x00\x40\x01\x00\x00\x3c\x03\x03garbage...", 20);
    put_handshake(&out);
    fuzz_seed(side ? "injected-connector" : "injected-acceptor", out.bytes, out.size);
    out.size = 0;
    fuzz_put8(&out, side);
    put_handshake(&out);
    fuzz_put8(&out, WRITE);
    fuzz_put8(&out, 9);
    fuzz_put8(&out, CHANGE);
    fuzz_put8(&out, 30);
    fuzz_put8(&out, 0);
    fuzz_put8(&out, 4);
    fuzz_put8(&out, READ);
    fuzz_put8(&out, 9);
    fuzz_put8(&out, READ);
    fuzz_put8(&out, 9);
    fuzz_seed(side ? "changed-connector" : "changed-acceptor", out.bytes, out.size);
  }
}
