/* SPDX-License-Identifier: Apache-2.0
 * Encrypted connections, both sides in this process, over a wire in the test's hands: what crosses it, and what becomes
 * of a connection whose wire is cut, changed or slow.
 * TEST-SAN: asan tsan
 *
 * RAIL_TEST_MEGABYTES=1000: so much crosses in the capture (100; 10 under a sanitizer). */
#include <poll.h>

#include "test/unit/sk_data.h"
#include "test/unit/sk_tls.h"

#define STREAMS 2
#define MARK "this line is not for others to read"
#define MESSAGE (1u << 20)

static struct data sender, receiver;
static uint8_t out[MESSAGE], in[MESSAGE];

/* ---- the wire ---------------------------------------------------------------- */

static struct {
  uint64_t carried, found; /* bytes; marks among them */
  uint8_t kept[STREAMS][2][sizeof MARK]; /* the last ones, for a mark that is cut in two */
  uint64_t change_at;      /* the byte after so many is changed; 0: none */
  size_t most;             /* bytes at a time */
} wire;

static void look_for_marks(uint8_t *kept, const uint8_t *bytes, size_t n) {
  static uint8_t all[sizeof MARK + 65536];
  const size_t mark = sizeof MARK - 1, before = mark - 1;
  memcpy(all, kept, before);
  memcpy(all + before, bytes, n);
  for (uint8_t *at = all; (at = memmem(at, (size_t)(all + before + n - at), MARK, mark)); at++) wire.found++;
  memcpy(kept, all + n, before);
}

static bool carry(unsigned int stream, int from, int to, int direction) {
  uint8_t bytes[65536];
  ssize_t n = recv(from, bytes, wire.most, MSG_PEEK | MSG_DONTWAIT);
  if (n <= 0) return false;
  if (wire.change_at && wire.carried <= wire.change_at && wire.carried + (uint64_t)n > wire.change_at)
    bytes[wire.change_at - wire.carried] ^= 1;
  ssize_t sent = send(to, bytes, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent <= 0) return false;
  look_for_marks(wire.kept[stream][direction], bytes, (size_t)sent);
  ENSURE(recv(from, bytes, (size_t)sent, MSG_DONTWAIT) == sent, "the wire has lost bytes");
  wire.carried += (uint64_t)sent;
  return true;
}

static void carry_all(void) {
  for (bool moved = true; moved;) {
    moved = false;
    for (unsigned int i = 0; i < STREAMS; i++) {
      moved |= carry(i, sender.ends[i], receiver.ends[i], 0);
      moved |= carry(i, receiver.ends[i], sender.ends[i], 1);
    }
  }
}

/* ---- connections -------------------------------------------------------------- */

static void open_streams(uint32_t features, unsigned int n, uint32_t eager_size) {
  ENSURE(tls_prepare(), "no TLS: %s", log_lines);
  memset(&wire, 0, sizeof wire);
  wire.most = sizeof(uint8_t[65536]);
  data_begin_another(&sender, SK_SENDER, n, features);
  data_begin_another(&receiver, SK_RECEIVER, n, features);
  sender.args.eager_size = receiver.args.eager_size = eager_size;
  data_create(&receiver);
  data_create(&sender);
  for (unsigned int i = 0; i < n; i++) { /* the acceptor's answer, which crosses like all else */
    const struct sk_answer_bytes welcome = sk_make_welcome(features);
    data_write(&sender, i, &welcome, sizeof welcome);
  }
}

static void open_both(uint32_t features) { open_streams(features, STREAMS, EAGER); }

static void close_both(void) {
  ENSURE_INT(sk_close_send(sender.comm), RAIL_OK);
  ENSURE_INT(sk_close_recv(receiver.comm), RAIL_OK);
  carry_all();
  for (unsigned int i = 0; i < STREAMS; i++) {
    data_end(&sender, i);
    data_end(&receiver, i);
  }
  sk_close_all();
}

static void *isend(size_t size) {
  void *request = NULL;
  ENSURE_INT(sk_isend(sender.comm, out, size, 7, NULL, NULL, &request), RAIL_OK);
  return request;
}

static void *irecv(size_t size) {
  void *request, *data = in;
  int tag = 7;
  ENSURE_INT(sk_irecv(receiver.comm, 1, &data, &size, &tag, NULL, NULL, &request), RAIL_OK);
  return request;
}

/* One message, checked. */
static void pass(size_t size) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  void *s = isend(size), *r = irecv(MESSAGE);
  int got = -1;
  while (s || r) {
    if (s && data_test(s, NULL)) s = NULL;
    if (r && data_test(r, &got)) r = NULL;
    carry_all();
    ENSURE(!rail_deadline_passed(deadline), "a message of %zu bytes does not arrive: %s", size, log_lines);
  }
  ENSURE_INT(got, size);
  ENSURE(memcmp(in, out, size) == 0, "a message of %zu bytes arrives changed", size);
}

/* Until this side has failed. */
static void fails(void *send_request, void *recv_request, bool sends) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  rail_result_t results[2] = {RAIL_OK, RAIL_OK};
  for (int done = 0; results[sends] == RAIL_OK; carry_all()) {
    results[1] = sk_test(send_request, &done, NULL);
    results[0] = sk_test(recv_request, &done, NULL);
    ENSURE(!rail_deadline_passed(deadline), "it does not fail: %s", log_lines);
  }
  ENSURE_INT(results[sends], RAIL_REMOTE_ERROR);
}

/* ---- what crosses the wire ------------------------------------------------------ */

static void cross(uint32_t features, uint64_t bytes) {
  static const size_t sizes[] = {MESSAGE, 8, 600, 5000, 40000, 300000, sizeof MARK - 1};
  for (size_t at = 0; at + sizeof MARK <= MESSAGE; at += sizeof MARK) memcpy(out + at, MARK " ", sizeof MARK);
  data_prepare();
  open_both(features);
  for (uint64_t i = 0; wire.carried < bytes; i++) pass(sizes[i % RAIL_COUNT_OF(sizes)]);
  close_both();
  rail_log_set_sink(NULL);
}

TEST(a_mark_crosses_in_clear) {
  cross(0, 4 << 20);
  CHECK_MSG(wire.found > 50000, "%llu marks in %llu bytes", (unsigned long long)wire.found,
            (unsigned long long)wire.carried);
}

TEST(no_mark_crosses_encrypted) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  uint64_t megabytes = 10;
#else
  uint64_t megabytes = 100;
#endif
  const char *asked = getenv("RAIL_TEST_MEGABYTES");
  if (asked) megabytes = strtoull(asked, NULL, 10);
  cross(SK_FEATURE_TLS, megabytes * 1000000);
  printf("# %llu MB crossed\n", (unsigned long long)(wire.carried / 1000000));
  CHECK(wire.carried >= megabytes * 1000000);
  CHECK_INT(wire.found, 0);
}

/* A wire of a byte at a time, handshake and all. */
TEST(a_slow_wire) {
  data_prepare();
  open_both(SK_FEATURE_TLS);
  wire.most = 1;
  for (size_t size = 0; size < 3000; size += 999) pass(size);
  close_both();
}

/* ---- what becomes of it ------------------------------------------------------------ */

/* Cut with a message on its way, without TLS' own end: both sides say so. */
TEST(a_wire_that_is_cut) {
  for (unsigned int i = 0; i < STREAMS; i++) {
    data_prepare();
    open_both(SK_FEATURE_TLS);
    pass(100);
    void *r = irecv(MESSAGE);
    void *s = isend(MESSAGE);
    shutdown(receiver.ends[i], SHUT_WR);
    fails(s, r, false);
    CHECK_MSG(log_said("without TLS' close_notify"), "it said: %s", log_lines);
    for (unsigned int k = 0; k < STREAMS; k++) data_end(&sender, k); /* as the receiver's caller would */
    fails(s, r, true);
    close_both();
  }
}

/* The same when nothing is outstanding is none of anybody's business. */
TEST(a_wire_that_is_cut_at_rest) {
  data_prepare();
  open_both(SK_FEATURE_TLS);
  pass(100);
  data_end(&receiver, 0);
  data_end(&sender, 0);
  for (int i = 0; i < 20; i++) {
    CHECK_INT(data_turn(&sender), RAIL_OK);
    CHECK_INT(data_turn(&receiver), RAIL_OK);
  }
  CHECK_INT(log_warnings_, 0);
  close_both();
}

/* A peer that closes with a message on its way: the message arrives, though nothing can be sent to it. */
TEST(what_has_come_is_read) {
  int got = 0;
  data_prepare();
  open_both(SK_FEATURE_TLS);
  pass(100);
  void *s = isend(3000);
  data_wait(s, NULL);
  carry_all();
  for (unsigned int i = 0; i < STREAMS; i++) data_end(&receiver, i);
  CHECK(sk_comm_try_own(receiver.comm));
  sk_stream_send_frame(&receiver.comm->streams[0], SK_FRAME_PONG, 0, 0, 0);
  CHECK_INT(receiver.comm->streams[0].out_errno, EPIPE);
  sk_comm_disown(receiver.comm);
  data_wait(irecv(MESSAGE), &got);
  CHECK_INT(got, 3000);
  close_both();
}

TEST(a_bit_that_is_changed) {
  data_prepare();
  open_both(SK_FEATURE_TLS);
  pass(100);
  wire.change_at = wire.carried + 300000;
  void *r = irecv(MESSAGE);
  void *s = isend(MESSAGE);
  fails(s, r, false);
  CHECK_MSG(log_said("stream") && log_said("broke: decryption failed or bad record mac"), "it said: %s", log_lines);
  fails(s, r, true);
  close_both();
}

/* What somebody has put between the answer and TLS is never taken for the peer's. */
TEST(bytes_in_clear_behind_the_answer) {
  uint8_t frame[SK_HEAD];
  data_prepare();
  open_both(SK_FEATURE_TLS);
  sk_frame_encode(frame, SK_FRAME_PING, 0, 0, 0, 0, 0);
  data_write(&sender, 0, frame, sizeof frame);
  void *s = isend(100);
  CHECK_INT(data_failure(s), RAIL_REMOTE_ERROR);
  CHECK_MSG(log_said("bytes in clear on stream 0"), "it said: %s", log_lines);
  close_both();
}

/* An answer without TLS is no answer to who wants it. */
TEST(an_answer_without_tls) {
  data_prepare();
  open_both(SK_FEATURE_TLS);
  data_close(&sender);
  data_begin(&sender, SK_SENDER, STREAMS, SK_FEATURE_TLS);
  data_create(&sender);
  const struct sk_answer_bytes welcome = sk_make_welcome(0);
  data_write(&sender, 0, &welcome, sizeof welcome);
  CHECK_INT(data_failure(isend(100)), RAIL_REMOTE_ERROR);
  CHECK_MSG(log_said("RAIL_SOCKET_TLS must be the same on both"), "it said: %s", log_lines);
  close_both();
}

/* A peer that is accepted and says nothing more. */
TEST(a_handshake_that_does_not_end) {
  data_prepare();
  int64_t was = sk_params.handshake_ms;
  sk_params.handshake_ms = 100;
  open_both(SK_FEATURE_TLS);
  void *r = irecv(100), *s = isend(100);
  CHECK_INT(data_failure(r), RAIL_REMOTE_ERROR);
  CHECK_MSG(log_said("broke in TLS' handshake") && log_said("RAIL_SOCKET_HANDSHAKE_TIMEOUT"), "it said: %s", log_lines);
  CHECK_INT(data_failure(s), RAIL_REMOTE_ERROR);
  close_both();
  sk_params.handshake_ms = was;
}

/* Both sides wait for the other's process, at the watch thread's ticks, and say what for. */
TEST(a_handshake_that_stalls) {
  open_both(SK_FEATURE_TLS);
  (void)irecv(100);
  (void)isend(100);
  log_forget();
  data_settle(&sender);
  data_settle(&receiver);
  for (uint64_t ms = 0; ms < 11000; ms += SK_TICK_MS) {
    sk_keepalive_run(sender.comm, 1000000 * (1000000 + ms));
    sk_keepalive_run(receiver.comm, 1000000 * (1000000 + ms));
  }
  CHECK_INT(log_count("the peer's process, whose TLS handshake is not over, though"), 2);
  CHECK_INT(log_count("has not accepted"), 0);
  close_both();
}

/* ---- a stream that is lost before its handshake is over ------------------------------- */

enum loss { LOSS_RESET, LOSS_END, LOSS_GARBAGE };

/* Stream k of this side, which has written its part of the handshake and waits for the other's. */
static void lose(struct data *d, unsigned int k, enum loss loss) {
  static const uint8_t garbage[16] = "no TLS record";
  uint8_t unread[4096];
  ENSURE(d->comm->streams[k].welcomed && !d->comm->streams[k].established, "not in its handshake");
  ENSURE(data_is_readable(d, k), "it has written nothing");
  if (loss == LOSS_GARBAGE) data_write(d, k, garbage, sizeof garbage);
  while (loss == LOSS_END && recv(d->ends[k], unread, sizeof unread, MSG_DONTWAIT) > 0) continue;
  if (loss != LOSS_GARBAGE) data_end(d, k); /* with bytes that were not read: a reset */
}

/* Whichever stream it is, on whichever side: the connection goes on over the other. */
TEST(a_stream_lost_in_its_handshake) {
  for (unsigned int k = 0; k < STREAMS; k++)
    for (int side = SK_SENDER; side <= SK_RECEIVER; side++)
      for (int loss = LOSS_RESET; loss <= LOSS_GARBAGE; loss++) {
        data_prepare();
        open_both(SK_FEATURE_TLS | SK_FEATURE_FAILOVER);
        data_settle(&sender);
        if (side == SK_RECEIVER) CHECK(carry(k, sender.ends[k], receiver.ends[k], 0));
        data_settle(&receiver);
        lose(side == SK_SENDER ? &sender : &receiver, k, (enum loss)loss);
        data_settle(side == SK_SENDER ? &sender : &receiver);
        for (size_t size = 0; size < MESSAGE; size = 10 * size + 1) pass(size);
        CHECK_MSG(log_said("lost stream"), "side %d, stream %u, loss %d: %s", side, k, loss, log_lines);
        CHECK(sender.comm->streams[k].fd < 0 && receiver.comm->streams[k].fd < 0);
        CHECK(sender.comm->not_established == 0);
        close_both();
      }
}

/* ---- no key for a stream ---------------------------------------------------------------- */

static unsigned char *no_hmac(const void *md, const void *key, int key_len, const unsigned char *data, size_t len,
                              unsigned char *mac, unsigned int *mac_len) {
  (void)md, (void)key, (void)key_len, (void)data, (void)len, (void)mac, (void)mac_len;
  return NULL;
}

TEST(no_key_for_a_stream) {
  struct rail_key *key = (struct rail_key *)(uintptr_t)sk_protocol.key;
  void *comm = NULL;
  CHECK(tls_prepare());
  data_prepare();
  data_begin_another(&receiver, SK_RECEIVER, STREAMS, SK_FEATURE_TLS);
  __typeof__(key->hmac) was = key->hmac;
  key->hmac = no_hmac;
  CHECK_INT(sk_recv_create(&receiver.args, &comm), RAIL_SYSTEM_ERROR);
  key->hmac = was;
  CHECK(comm == NULL && log_said("HMAC-SHA-256") && !log_said("memory"));
  for (unsigned int i = 0; i < STREAMS; i++) data_end(&receiver, i);
}

TEST(libssl_is_there) { CHECK(tls_prepare()); }

/* ---- ahead of its receive -------------------------------------------------------- */

/* It is left in the socket and, from the record that its header came with, decrypted in OpenSSL's hands, where poll(2)
 * sees nothing: the next call finds it, or the watch thread. */
TEST(a_message_that_waits_for_its_buffer) {
  enum { SIZE = 40000 };
  data_prepare();
  for (int watched = 0; watched < 2; watched++) {
    struct pollfd fds[SK_MAX_STREAMS];
    uint32_t nfds;
    open_streams(SK_FEATURE_TLS | SK_FEATURE_AHEAD, 1, SIZE);
    const struct sk_recv_comm *rc = data_receiver(&receiver);
    for (size_t at = 0; at < SIZE; at++) out[at] = (uint8_t)(at * 7 + (size_t)watched);
    void *s = isend(SIZE);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS)), now = rail_now_ns();
    while (s || rc->unread != SK_UNREAD_MESSAGE) {
      if (s && data_test(s, NULL)) s = NULL;
      carry_all();
      CHECK_OK(data_turn(&receiver));
      CHECK_MSG(!rail_deadline_passed(deadline), "the message is not sent, or does not wait: %s", log_lines);
    }
    CHECK_INT(rc->unexpected.table.count, 0);
    if (watched) {
      (void)sk_keepalive_check(receiver.comm, now, fds, &nfds);
      CHECK_INT(sk_keepalive_check(receiver.comm, now + 1, fds, &nfds), SK_KEEPALIVE_RUN);
      sk_keepalive_run(receiver.comm, now + 1);
      CHECK_INT(rc->unexpected.table.count, 1);
    }
    void *r = irecv(SIZE);
    data_wait(r, NULL);
    CHECK(memcmp(in, out, SIZE) == 0);
    close_both();
  }
  rail_log_set_sink(NULL);
}

TEST_MAIN(TEST_CASE(libssl_is_there), TEST_CASE(a_message_that_waits_for_its_buffer),
          TEST_CASE(a_mark_crosses_in_clear), TEST_CASE(no_mark_crosses_encrypted),
          TEST_CASE(a_slow_wire), TEST_CASE(a_wire_that_is_cut), TEST_CASE(a_wire_that_is_cut_at_rest),
          TEST_CASE(what_has_come_is_read), TEST_CASE(a_bit_that_is_changed),
          TEST_CASE(bytes_in_clear_behind_the_answer), TEST_CASE(an_answer_without_tls),
          TEST_CASE(a_handshake_that_does_not_end), TEST_CASE(a_handshake_that_stalls),
          TEST_CASE(a_stream_lost_in_its_handshake), TEST_CASE(no_key_for_a_stream))
