/* SPDX-License-Identifier: Apache-2.0
 * TLS of one stream, without connections: the handshake and how it fails, records over any socket, the end.
 * TEST-SAN: asan tsan */
#include <poll.h>

#include "test/harness/program.h"
#include "test/unit/sk_tls.h"

#define SIZE (3u << 20)

static uint8_t sent[SIZE], got[SIZE];

/* ---- bytes -------------------------------------------------------------- */

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525 + 1013904223; }

/* Up to 5 pieces of what is to be sent from `done` on, as the plugin hands over what is queued; the first ones are
 * small. In a copy, which is elsewhere at each call. */
static int make_pieces(struct iovec iov[5], size_t done, uint32_t *seed) {
  static uint8_t *copy;
  free(copy);
  copy = malloc(SIZE);
  memcpy(copy, sent, SIZE);
  int n = 0;
  for (; n < 5 && done < SIZE; n++) {
    size_t most = n < 3 ? 600 : 100000, wanted = next_random(seed) % most, len = RAIL_MIN(wanted, SIZE - done);
    iov[n] = (struct iovec){copy + done, len};
    done += len;
  }
  return n;
}

/* Sends all of `sent` from one side and reads it at the other, over a wire that carries `most` bytes at a time. */
static void exchange(struct tls_pair *p, int from, size_t most, uint32_t seed) {
  struct iovec iov[5], last[5];
  size_t written = 0, read = 0, n;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(60000));
  memset(got, 0, sizeof got);
  int pieces = 0;
  while (read < SIZE) {
    if (written < SIZE) {
      /* What was not written comes again, and maybe more behind it. */
      pieces = make_pieces(iov, written, &seed);
      memcpy(last, iov, sizeof last);
      ssize_t done = sk_tls_writev(p->side[from], last, pieces);
      if (done < 0) ENSURE(errno == EAGAIN, "write: %s", sk_tls_error(p->side[from]));
      else written += (size_t)done;
    }
    while (tls_carry(p, from, most)) continue;
    (void)tls_carry(p, !from, most);
    size_t asked = next_random(&seed) % 70000;
    struct iovec in[2] = {{got + read, RAIL_MIN(asked, SIZE - read)}, {NULL, 0}};
    in[1] = (struct iovec){got + read + in[0].iov_len, RAIL_MIN(24u, SIZE - read - in[0].iov_len)};
    rail_result_t result = sk_tls_recvv(p->side[!from], p->fds[!from], in, 2, &n);
    ENSURE(result == RAIL_OK || result == RAIL_IN_PROGRESS, "read: %d, %s", result, sk_tls_error(p->side[!from]));
    read += n;
    ENSURE(!rail_deadline_passed(deadline), "%zu of %u bytes came", read, SIZE);
  }
  ENSURE(memcmp(sent, got, SIZE) == 0, "other bytes came");
}

static void fill(void) {
  uint32_t seed = 5;
  for (size_t i = 0; i < SIZE; i++) sent[i] = (uint8_t)(next_random(&seed) >> 24);
}

/* Vectors of any form, sockets that are full most of the time, memory that moves between a write that did not go and
 * the next: everything arrives once, in order. */
TEST(bytes_go_both_ways) {
  struct tls_pair p;
  fill();
  tls_open(&p, tls_secret);
  tls_shake(&p, 1 << 20);
  for (int from = 0; from < 2; from++) exchange(&p, from, 1 << 20, 7u + (uint32_t)from);
  exchange(&p, TLS_CONNECTOR, 1000, 3);
  tls_end(&p);
}

/* No record waits for bytes that do not follow. */
TEST(empty_pieces_at_the_end) {
  for (size_t records = 1; records <= 4; records++) {
    struct tls_pair p;
    size_t size = records * SK_TLS_RECORD, read = 0, n;
    struct iovec out[3] = {{sent, size}, {sent, 0}, {NULL, 0}};
    fill();
    tls_open(&p, tls_secret);
    tls_shake(&p, 1 << 20);
    CHECK_INT(sk_tls_writev(p.side[0], out, 3), size);
    CHECK(!sk_tls_is_pending(p.side[0]));
    while (read < size) {
      (void)tls_carry(&p, 0, 1 << 20);
      CHECK(sk_tls_recvv(p.side[1], p.fds[1], &(struct iovec){got + read, size - read}, 1, &n) != RAIL_REMOTE_ERROR);
      read += n;
    }
    CHECK(memcmp(sent, got, size) == 0);
    tls_end(&p);
  }
}

/* Nothing is written that is not encrypted, whatever the caller wants. */
TEST(nothing_leaves_before_the_handshake) {
  struct tls_pair p;
  CHECK(tls_prepare());
  struct sk_tls *fresh = sk_tls_new(true);
  struct iovec iov = {sent, 100};
  CHECK(sk_tls_writev(fresh, &iov, 1) == -1 && errno == EAGAIN);
  sk_tls_free(fresh);
  tls_open(&p, tls_secret);
  CHECK(sk_tls_writev(p.side[0], &iov, 1) == -1 && errno == EAGAIN);
  CHECK_INT(tls_carry(&p, 0, 1000), 0);
  tls_end(&p);
}

TEST(a_byte_at_a_time) {
  struct tls_pair p;
  struct iovec out = {sent, 5000}, in = {got, 5000};
  size_t read = 0, n;
  fill();
  tls_open(&p, tls_secret);
  tls_shake(&p, 1);
  CHECK_INT(sk_tls_writev(p.side[1], &out, 1), 5000);
  while (read < 5000) {
    CHECK_INT(tls_carry(&p, 1, 1), 1);
    in = (struct iovec){got + read, 5000 - read};
    CHECK(sk_tls_recvv(p.side[0], p.fds[0], &in, 1, &n) != RAIL_REMOTE_ERROR);
    read += n;
    CHECK_MSG(p.carried[1] < 8000, "%zu bytes came", read);
  }
  CHECK(memcmp(sent, got, 5000) == 0);
  tls_end(&p);
}

/* The sender takes its next key on its own, and the other way at another time. */
TEST(keys_are_changed) {
  struct tls_pair p;
  fill();
  tls_open(&p, tls_secret);
  tls_shake(&p, 1 << 20);
  sk_tls_set_records_per_key(p.side[0], 3);
  sk_tls_set_records_per_key(p.side[1], 40);
  uint64_t before = p.carried[0];
  exchange(&p, 0, 1 << 20, 1);
  exchange(&p, 1, 1 << 20, 2);
  uint64_t with = p.carried[0] - before;
  sk_tls_set_records_per_key(p.side[0], SK_TLS_RECORDS_PER_KEY);
  before = p.carried[0];
  exchange(&p, 0, 1 << 20, 1);
  CHECK_MSG(with > p.carried[0] - before + 20 * 27, "no KeyUpdate went: %llu bytes, %llu without",
            (unsigned long long)with, (unsigned long long)(p.carried[0] - before)); /* one is 27 bytes */
  tls_end(&p);
}

/* A record is read at once: what the caller did not ask for stays where poll(2) does not see it. */
TEST(what_poll_does_not_see) {
  struct tls_pair p;
  struct iovec out = {sent, 1000}, in = {got, 10};
  size_t n;
  tls_open(&p, tls_secret);
  tls_shake(&p, 1 << 20);
  CHECK(!sk_tls_is_pending(p.side[0]));
  CHECK_INT(sk_tls_writev(p.side[1], &out, 1), 1000);
  CHECK(tls_carry(&p, 1, 1 << 14) > 1000);
  CHECK_INT(sk_tls_recvv(p.side[0], p.fds[0], &in, 1, &n), RAIL_OK);
  CHECK_INT(n, 10);
  struct pollfd pfd = {.fd = p.fds[0], .events = POLLIN};
  CHECK_INT(poll(&pfd, 1, 0), 0);
  CHECK(sk_tls_is_pending(p.side[0]));
  in.iov_len = 2000;
  CHECK_INT(sk_tls_recvv(p.side[0], p.fds[0], &in, 1, &n), RAIL_OK);
  CHECK_INT(n, 990);
  CHECK(!sk_tls_is_pending(p.side[0]));
  tls_end(&p);
}

/* Whatever the system's configuration allows (write_openssl_conf): keys are agreed on anew, by (EC)DHE, with the one
 * cipher. RFC 8446, 4.1.2 and 4.2.9. */
TEST(what_is_offered) {
  static const uint8_t modes[] = {0, 45, 0, 2, 1, 1};              /* psk_dhe_ke alone */
  static const uint8_t ciphers[] = {0, 4, 0x13, 0x01, 0x00, 0xff}; /* the other is the SCSV of RFC 5746 */
  struct tls_pair p;
  uint8_t hello[2048];
  tls_open(&p, tls_secret);
  CHECK_INT(sk_tls_handshake(p.side[TLS_CONNECTOR]), RAIL_IN_PROGRESS);
  ssize_t n = recv(p.wire[TLS_CONNECTOR], hello, sizeof hello, MSG_DONTWAIT);
  CHECK(n > 100);
  CHECK(memmem(hello, (size_t)n, modes, sizeof modes) != NULL);
  CHECK(memmem(hello, (size_t)n, ciphers, sizeof ciphers) != NULL);
  tls_end(&p);
}

/* ---- handshakes that fail -------------------------------------------------- */

static void fails(struct tls_pair *p, int side, int err) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
  rail_result_t results[2] = {RAIL_OK, RAIL_OK};
  while (results[side] == RAIL_IN_PROGRESS || !sk_tls_error(p->side[side])) {
    (void)tls_step(p, 1 << 20, results);
    ENSURE(results[side] != RAIL_OK, "side %d is content", side);
    ENSURE(!rail_deadline_passed(deadline), "side %d does not fail", side);
  }
  ENSURE_INT(results[side], RAIL_REMOTE_ERROR);
  ENSURE_INT(sk_tls_handshake(p->side[side]), RAIL_REMOTE_ERROR); /* and stays so */
  ENSURE_INT(errno, err);
}

TEST(another_key) {
  struct tls_pair p;
  uint8_t other[SK_TLS_SECRET];
  memcpy(other, tls_secret, sizeof other);
  other[31] ^= 1;
  tls_open(&p, other);
  fails(&p, TLS_ACCEPTOR, EPROTO);
  fails(&p, TLS_CONNECTOR, EPROTO);
  tls_end(&p);
}

/* What was recorded of a good handshake and of what followed, played to an acceptor with the same key. */
TEST(a_handshake_that_is_played_again) {
  struct tls_pair p, again;
  uint8_t record[8192];
  size_t size = 0;
  rail_result_t results[2];
  struct iovec out = {sent, 100}, in = {got, 100};
  tls_open(&p, tls_secret);
  while (!tls_step(&p, 1 << 20, results)) {
    (void)sk_tls_handshake(p.side[0]);
    ssize_t n = recv(p.wire[0], record + size, sizeof record - size, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) size += (size_t)n;
  }
  CHECK_INT(sk_tls_writev(p.side[0], &out, 1), 100);
  ssize_t n = recv(p.wire[0], record + size, sizeof record - size, MSG_DONTWAIT);
  CHECK(n > 0);
  size += (size_t)n;
  tls_open(&again, tls_secret);
  CHECK_INT(send(again.wire[1], record, size, MSG_NOSIGNAL), size);
  for (int i = 0; i < 10; i++) results[1] = sk_tls_handshake(again.side[1]);
  CHECK_INT(results[1], RAIL_REMOTE_ERROR);
  CHECK(sk_tls_error(again.side[1]));
  CHECK_INT(sk_tls_recvv(again.side[1], again.fds[1], &in, 1, &(size_t){0}), RAIL_REMOTE_ERROR);
  tls_end(&p);
  tls_end(&again);
}

TEST(garbage_instead_of_a_handshake) {
  for (int side = 0; side < 2; side++) {
    for (uint32_t seed = 1; seed < 50; seed++) {
      struct tls_pair p;
      static const uint8_t record_head[] = {0x16, 3, 1, 1, 0};
      uint8_t garbage[600];
      uint32_t state = seed;
      for (size_t i = 0; i < sizeof garbage; i++) garbage[i] = (uint8_t)(next_random(&state) >> 24);
      if (seed % 2) memcpy(garbage, record_head, sizeof record_head);
      tls_open(&p, tls_secret);
      CHECK_INT(send(p.wire[side], garbage, sizeof garbage, MSG_NOSIGNAL), sizeof garbage);
      rail_result_t result = RAIL_IN_PROGRESS;
      for (int i = 0; i < 5 && result == RAIL_IN_PROGRESS; i++) result = sk_tls_handshake(p.side[side]);
      CHECK_INT(result, RAIL_REMOTE_ERROR);
      tls_end(&p);
    }
  }
}

/* Every byte of the acceptor's flight is needed. */
TEST(changed_on_the_way) {
  struct tls_pair p;
  for (size_t at = 0, size = 1; at < size; at += 7) {
    uint8_t bytes[2048];
    tls_open(&p, tls_secret);
    (void)sk_tls_handshake(p.side[0]);
    (void)tls_carry(&p, 0, 1 << 20);
    (void)sk_tls_handshake(p.side[1]);
    ssize_t n = recv(p.wire[1], bytes, sizeof bytes, MSG_DONTWAIT);
    CHECK(n > 100);
    size = (size_t)n;
    bytes[at] ^= 0x10;
    CHECK_INT(send(p.wire[0], bytes, size, MSG_NOSIGNAL), n);
    rail_result_t result = RAIL_OK;
    for (int i = 0; i < 3; i++) result = sk_tls_handshake(p.side[0]);
    CHECK_MSG(result != RAIL_OK, "byte %zu of %zu does not count", at, size); /* a longer record is waited for */
    tls_end(&p);
  }
}

/* A peer that says nothing, or stops in the middle. */
TEST(a_slow_peer_has_a_deadline) {
  int64_t was = sk_params.handshake_ms;
  sk_params.handshake_ms = 50;
  for (size_t bytes = 0; bytes < 200; bytes += 100) {
    struct tls_pair p;
    rail_result_t result;
    const uint64_t begun = rail_now_ns();
    tls_open(&p, tls_secret);
    (void)sk_tls_handshake(p.side[TLS_CONNECTOR]);
    (void)tls_carry(&p, TLS_CONNECTOR, bytes);
    while ((result = sk_tls_handshake(p.side[TLS_ACCEPTOR])) == RAIL_IN_PROGRESS) poll(NULL, 0, 1);
    CHECK_INT(result, RAIL_REMOTE_ERROR);
    CHECK_INT(errno, ETIMEDOUT);
    CHECK(rail_now_ns() - begun >= 45000000);
    CHECK(strstr(sk_tls_error(p.side[TLS_ACCEPTOR]), "RAIL_SOCKET_HANDSHAKE_TIMEOUT"));
    tls_end(&p);
  }
  sk_params.handshake_ms = was;
}

/* Who was stopped until the time had passed goes on with what has come meanwhile. */
TEST(who_was_stopped_goes_on) {
  int64_t was = sk_params.handshake_ms;
  struct tls_pair p;
  sk_params.handshake_ms = 50;
  tls_open(&p, tls_secret);
  (void)sk_tls_handshake(p.side[TLS_CONNECTOR]);
  (void)tls_carry(&p, TLS_CONNECTOR, 1 << 20);
  poll(NULL, 0, 80);
  sk_params.handshake_ms = was;
  CHECK_INT(sk_tls_handshake(p.side[TLS_ACCEPTOR]), RAIL_IN_PROGRESS);
  (void)tls_carry(&p, TLS_ACCEPTOR, 1 << 20);
  tls_shake(&p, 1 << 20);
  tls_end(&p);
}

/* But it has the time only once more, however the bytes come. */
TEST(a_deadline_is_put_off_once) {
  int64_t was = sk_params.handshake_ms;
  struct tls_pair p;
  sk_params.handshake_ms = 50;
  tls_open(&p, tls_secret);
  (void)sk_tls_handshake(p.side[TLS_CONNECTOR]);
  for (int stop = 1; stop <= 2; stop++) {
    CHECK_INT(tls_carry(&p, TLS_CONNECTOR, 50), 50);
    poll(NULL, 0, 80);
    CHECK_INT(sk_tls_handshake(p.side[TLS_ACCEPTOR]), stop == 1 ? RAIL_IN_PROGRESS : RAIL_REMOTE_ERROR);
  }
  CHECK_INT(errno, ETIMEDOUT);
  tls_end(&p);
  sk_params.handshake_ms = was;
}

/* ---- the end ------------------------------------------------------------------ */

/* One side ends properly with these bytes; the other end of the wire carries them and ends. */
static void close_side(struct tls_pair *p, int side, const void *bytes, size_t size, bool ended) {
  uint8_t *out;
  size_t out_size;
  sk_tls_close(p->side[side], bytes, size, ended, &out, &out_size);
  CHECK((out != NULL) == (ended || size));
  if (out) CHECK_INT(send(p->fds[side], out, out_size, MSG_NOSIGNAL), out_size);
  free(out);
  while (tls_carry(p, side, 1 << 20)) continue;
  shutdown(p->wire[!side], SHUT_WR);
}

static rail_result_t read_all(struct tls_pair *p, int side, size_t *size) {
  rail_result_t result = RAIL_OK;
  size_t n;
  *size = 0;
  /* After less than was asked for the socket counts as empty, once. */
  for (int i = 0; i < 20 && (result == RAIL_OK || result == RAIL_IN_PROGRESS); i++) {
    struct iovec in = {got + *size, sizeof got - *size};
    result = sk_tls_recvv(p->side[side], p->fds[side], &in, 1, &n);
    *size += n;
  }
  return result;
}

TEST(ended_and_cut) {
  struct tls_pair p;
  size_t size;
  for (int ended = 0; ended < 2; ended++) {
    fill();
    tls_open(&p, tls_secret);
    tls_shake(&p, 1 << 20);
    CHECK_INT(sk_tls_writev(p.side[0], &(struct iovec){sent, 500}, 1), 500);
    close_side(&p, 0, sent + 500, 20000, ended);
    CHECK_INT(read_all(&p, 1, &size), RAIL_REMOTE_ERROR);
    CHECK_INT(errno, ended ? 0 : ECONNRESET);
    CHECK_INT(size, 20500);
    CHECK(memcmp(sent, got, size) == 0);
    CHECK_MSG(!ended == (sk_tls_error(p.side[1]) != NULL), "%s", sk_tls_error(p.side[1]));
    tls_end(&p);
  }
}

/* In the middle of a record, wherever. */
TEST(cut_in_a_record) {
  for (size_t keep = 1; keep < 1016; keep += 101) {
    struct tls_pair p;
    size_t size;
    tls_open(&p, tls_secret);
    tls_shake(&p, 1 << 20);
    CHECK_INT(sk_tls_writev(p.side[0], &(struct iovec){sent, 1000}, 1), 1000);
    CHECK_INT(tls_carry(&p, 0, keep), keep);
    shutdown(p.wire[1], SHUT_WR);
    CHECK_INT(read_all(&p, 1, &size), RAIL_REMOTE_ERROR);
    CHECK_INT(errno, ECONNRESET);
    CHECK_INT(size, 0);
    tls_end(&p);
  }
}

/* One bit of a record: nothing of it is handed out, and nothing after it. */
TEST(changed_data) {
  for (size_t at = 5; at < 1016; at += 97) {
    struct tls_pair p;
    uint8_t bytes[2048];
    size_t size;
    tls_open(&p, tls_secret);
    tls_shake(&p, 1 << 20);
    CHECK_INT(sk_tls_writev(p.side[0], &(struct iovec){sent, 1000}, 1), 1000);
    ssize_t n = recv(p.wire[0], bytes, sizeof bytes, MSG_DONTWAIT);
    CHECK(n > 1000);
    bytes[at] ^= 1;
    CHECK_INT(send(p.wire[1], bytes, (size_t)n, MSG_NOSIGNAL), n);
    CHECK_INT(read_all(&p, 1, &size), RAIL_REMOTE_ERROR);
    CHECK_INT(errno, EPROTO);
    CHECK_INT(size, 0);
    CHECK_INT(sk_tls_writev(p.side[1], &(struct iovec){sent, 10}, 1), -1);
    tls_end(&p);
  }
}

/* The socket is full when the stream ends: what was encrypted, what was not and the end leave as they are, later. */
TEST(what_is_left_at_the_end) {
  struct tls_pair p;
  size_t written = 0, size = 0, n, out_size, at = 0;
  uint8_t *out;
  fill();
  tls_open(&p, tls_secret);
  tls_shake(&p, 1 << 20);
  for (ssize_t done; (done = sk_tls_writev(p.side[0], &(struct iovec){sent + written, SIZE - written}, 1)) > 0;)
    written += (size_t)done;
  size_t held = sk_tls_take_held(p.side[0]);
  CHECK(written > 0 && held > 0 && held <= SK_TLS_BATCH * SK_TLS_RECORD);
  written += held;
  sk_tls_close(p.side[0], sent + written, 100000, true, &out, &out_size);
  written += 100000;
  CHECK(out_size > 100000);
  while (at < out_size || size < written) {
    ssize_t some = send(p.fds[0], out + at, out_size - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (some > 0) at += (size_t)some;
    (void)tls_carry(&p, 0, 1 << 20);
    struct iovec in = {got + size, sizeof got - size};
    CHECK(sk_tls_recvv(p.side[1], p.fds[1], &in, 1, &n) != RAIL_REMOTE_ERROR || size + n == written);
    size += n;
  }
  free(out);
  while (tls_carry(&p, 0, 1 << 20)) continue;
  shutdown(p.wire[1], SHUT_WR);
  CHECK_INT(read_all(&p, 1, &n), RAIL_REMOTE_ERROR);
  CHECK_INT(errno, 0);
  CHECK(memcmp(sent, got, written) == 0);
  tls_end(&p);
}

TEST(libssl_is_there) { CHECK(tls_prepare()); }

TEST_MAIN(TEST_CASE(libssl_is_there), TEST_CASE(empty_pieces_at_the_end),
          TEST_CASE(bytes_go_both_ways), TEST_CASE(nothing_leaves_before_the_handshake),
          TEST_CASE(a_byte_at_a_time), TEST_CASE(keys_are_changed), TEST_CASE(what_poll_does_not_see),
          TEST_CASE(what_is_offered), TEST_CASE(another_key), TEST_CASE(a_handshake_that_is_played_again),
          TEST_CASE(garbage_instead_of_a_handshake), TEST_CASE(changed_on_the_way),
          TEST_CASE(a_slow_peer_has_a_deadline), TEST_CASE(who_was_stopped_goes_on),
          TEST_CASE(a_deadline_is_put_off_once), TEST_CASE(ended_and_cut), TEST_CASE(cut_in_a_record),
          TEST_CASE(changed_data), TEST_CASE(what_is_left_at_the_end))
