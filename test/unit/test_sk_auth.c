/* SPDX-License-Identifier: Apache-2.0
 * Keys, macs, and connections between sides that have them, or not. A process
 * loads its key once: each case runs in a child of its own. */
#include <stdlib.h>

#include "plugin/socket/sk_tls.h"
#include "test/unit/key_file.h"
#include "test/unit/sk_handshake.h"

static bool load(void) {
  setenv("RAIL_SOCKET_AUTH_FILE", key_path, 1);
  sk_params_load();
  rail_log_set_sink(log_capture);
  log_forget();
  return sk_protocol_load();
}

static void in_child(void (*fn)(struct pipes *io, void *arg), void *arg) {
  make_key_dir();
  struct proc p = proc_start(fn, arg);
  proc_join(&p);
  remove_key_dir();
}

static void child_no_key(struct pipes *io, void *arg) {
  (void)io, (void)arg;
  write_key(key_text, 15, 0600);
  ENSURE(!load() && !rail_key_on(sk_protocol.key), "a key of 15 bytes");
  ENSURE(log_said("RailSocket: RAIL_SOCKET_AUTH_FILE=") && log_said("16 bytes"), "it said: %s", log_lines);
}

TEST(a_key_that_cannot_be_used) { in_child(child_no_key, NULL); }

/* ---- macs ---------------------------------------------------------------- */

static struct rail_handle some_listener(void) {
  struct rail_handle l = {.param = 4, .naddrs = 1, .auth = true, .attempt = 77};
  ENSURE_INT(rail_addr_parse("10.1.2.3:4660", &l.addrs[0]), RAIL_OK);
  for (int i = 0; i < RAIL_SECRET_SIZE; i++) l.secret[i] = (uint8_t)(0xa0 + i);
  return l;
}

static struct sk_hello_bytes some_hello(const struct rail_handle *l) {
  struct rail_hello h = {.stream = 1, .streams = 4};
  memset(h.comm_id, 0x5c, sizeof h.comm_id);
  return sk_make_hello(l, h, (struct sk_limits){.features = SK_FEATURE_FAILOVER, .eager_size = 8192, .eager_count = 64,
                                                .eager_bytes = 1 << 20}, 0);
}

static bool passes(const struct rail_handle *listener, const struct sk_hello_bytes *bytes) {
  struct rail_hello hello;
  return rail_hello_decode(&sk_protocol, listener, bytes, &hello) == RAIL_REASON_NONE;
}

/* The macs were computed by Python's hmac from the description in docs/protocol-socket.md. */
static void child_macs(struct pipes *io, void *arg) {
  static const uint8_t hello_mac[RAIL_MAC_SIZE] = {
    0x2a, 0x7f, 0x79, 0xfc, 0x93, 0x6e, 0xeb, 0xcc, 0x51, 0x36, 0x1d, 0x41, 0x20, 0xe7, 0xbd, 0x0c,
    0xa2, 0x9a, 0xf1, 0xa5, 0xeb, 0x17, 0xaa, 0xce, 0x33, 0x01, 0x68, 0xf3, 0x71, 0x43, 0x93, 0xb8};
  static const uint8_t answer_mac[RAIL_MAC_SIZE] = {
    0x9c, 0x41, 0xe9, 0x9c, 0x4e, 0xf9, 0x37, 0x28, 0xdd, 0x73, 0x74, 0xb1, 0xe1, 0x55, 0xcd, 0x64,
    0xef, 0xc4, 0xed, 0x34, 0xdf, 0x44, 0xc5, 0x78, 0x82, 0xcf, 0x4c, 0xb1, 0x1c, 0xc9, 0x99, 0xfa};
  static const uint8_t tls_key[SK_TLS_SECRET] = {
    0x57, 0xf1, 0x8c, 0xc9, 0x92, 0x49, 0x67, 0x9c, 0xd6, 0x1a, 0xd8, 0xa1, 0x7b, 0x38, 0x1e, 0xad,
    0x75, 0xe4, 0x7b, 0xb9, 0x11, 0xc8, 0xba, 0x53, 0x6b, 0xb1, 0xc4, 0xf9, 0x3b, 0xcc, 0x20, 0x38};
  uint8_t secret[SK_TLS_SECRET];
  struct rail_handle listener = some_listener(), other;
  struct sk_hello_bytes hello, w;
  struct sk_answer_bytes answer = sk_make_welcome(SK_FEATURE_FAILOVER);
  struct rail_session session;
  unsigned int version;
  (void)io, (void)arg;
  ENSURE(load(), "no key: %s", log_lines);
  hello = some_hello(&listener);
  memset(hello.head.nonce, 0x77, sizeof hello.head.nonce);
  memcpy(hello.mac, hello_mac, sizeof hello_mac);
  ENSURE(passes(&listener, &hello), "a mac made elsewhere from the same key does not pass");
  memset(answer.answer.nonce, 0x66, sizeof answer.answer.nonce);
  memcpy(answer.mac, answer_mac, sizeof answer_mac);
  struct rail_hello decoded = {.auth = true};
  memcpy(decoded.mac, hello_mac, sizeof hello_mac);
  rail_session_init(&session, &sk_protocol, true, &decoded);
  ENSURE_INT(sk_answer_decode(&session, &answer, SK_FEATURE_FAILOVER, &version), RAIL_REASON_NONE);
  ENSURE_INT(sk_tls_secret(&session, secret), RAIL_OK);
  ENSURE(memcmp(secret, tls_key, sizeof secret) == 0, "TLS has another key than one made elsewhere");
  for (size_t bit = 0; bit < 8 * sizeof answer; bit++) {
    struct sk_answer_bytes bad = answer;
    ((uint8_t *)&bad)[bit / 8] ^= (uint8_t)(1 << (bit % 8));
    rail_session_init(&session, &sk_protocol, true, &decoded);
    ENSURE(sk_answer_decode(&session, &bad, SK_FEATURE_FAILOVER, &version) != RAIL_REASON_NONE,
           "bit %zu of the answer does not count", bit);
  }
  for (size_t bit = 0; bit < 8 * sizeof hello; bit++) {
    w = hello;
    ((uint8_t *)&w)[bit / 8] ^= (uint8_t)(1 << (bit % 8));
    ENSURE(!passes(&listener, &w), "bit %zu of HELLO does not count", bit);
  }
  other = listener, other.secret[0] ^= 1;
  ENSURE(!passes(&other, &hello), "the secret does not count");
  other = listener, rail_addr_set_port(&other.addrs[0], 4661);
  ENSURE(!passes(&other, &hello), "the address does not count");
  other = listener, other.naddrs = 2, other.addrs[1] = other.addrs[0];
  ENSURE(!passes(&other, &hello), "the number of addresses does not count");
  other = listener, other.param = 3;
  ENSURE(!passes(&other, &hello), "the plugin's parameter does not count");
  /* Two signatures of one HELLO differ by their nonces. */
  hello = some_hello(&listener);
  w = some_hello(&listener);
  ENSURE(passes(&listener, &hello) && passes(&listener, &w), "our own does not pass");
  ENSURE(memcmp(hello.mac, w.mac, sizeof w.mac) != 0, "no nonce in it");
}

TEST(macs) { in_child(child_macs, NULL); }

/* ---- connections ---------------------------------------------------------- */

static void begin(struct hs *h) {
  hs_begin(h);
  ENSURE(load(), "no key: %s", log_lines);
}

static void child_both(struct pipes *io, void *arg) {
  struct hs h;
  (void)io, (void)arg;
  begin(&h);
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  ENSURE(h.decoded.auth, "the handle does not say so");
  for (unsigned int i = 0; i < 2; i++) ENSURE_INT(hs_answer(i), RAIL_REASON_NONE);
  hs_close_listen(&h);
  rail_sock_close(&hs_sent.fds[1]);
  rail_sock_close(&hs_received.fds[1]);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  unsigned int stream;
  while (hs_sent.fds[1] < 0 || hs_received.fds[1] < 0) {
    if (hs_sent.fds[1] < 0) sk_reconnect_lost(hs_sent.reconnect, 1, &hs_sent.fds[1], &hs_tls);
    if (hs_received.fds[1] < 0) sk_accepted_take(hs_received.accepted, &stream, &hs_received.fds[1], &hs_tls);
    ENSURE(!rail_deadline_passed(deadline), "it did not come back: %s", log_lines);
  }
  hs_linked(hs_sent.fds[1], hs_received.fds[1]);
  hs_end(&h);
}

TEST(both_sides_have_it) { in_child(child_both, NULL); }

static struct sk_hello_bytes signed_hello(const struct hs *h, bool reconnect) {
  struct rail_hello hello = {.streams = h->decoded.param, .reconnect = reconnect};
  memset(hello.comm_id, 0x42, sizeof hello.comm_id);
  return sk_make_hello(&h->decoded, hello, (struct sk_limits){.eager_size = 1024, .eager_bytes = 1 << 20}, reconnect);
}

static void child_without_a_right_mac(struct pipes *io, void *arg) {
  struct hs h;
  struct sk_hello_bytes good, w;
  (void)io, (void)arg;
  begin(&h);
  hs_listen(&h, DEV_A);
  good = signed_hello(&h, false);
  w = good, w.mac[31] ^= 1;
  ENSURE_INT(hs_reason(hs_client(&h, 0, &w), hs_accept_none, &h), RAIL_REASON_MAC);
  ENSURE(log_said("RAIL_SOCKET_AUTH_FILE"), "it said: %s", log_lines);
  w = good, w.limits.features ^= htole32(2);
  ENSURE_INT(hs_reason(hs_client(&h, 0, &w), hs_accept_none, &h), RAIL_REASON_MAC);
  w = signed_hello(&h, true);
  ENSURE_INT(hs_reason(hs_client(&h, 0, &w), hs_accept_none, &h), RAIL_REASON_GONE);
  w.limits.counter = htole64(2);
  ENSURE_INT(hs_reason(hs_client(&h, 0, &w), hs_accept_none, &h), RAIL_REASON_MAC);
  w = good, w.head.flags = 0, memset(w.mac, 0, sizeof w.mac);
  ENSURE_INT(hs_reason(hs_client(&h, 0, &w), hs_accept_none, &h), RAIL_REASON_AUTH);
  /* The good one comes in; what was recorded of it does not, accepted or not. */
  int fd = hs_client(&h, 0, &good);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!hs_accept_step(&h)) ENSURE(!rail_deadline_passed(deadline), "kept out: %s", log_lines);
  ENSURE_INT(hs_reason(hs_client(&h, 0, &good), hs_accept_none, &h), RAIL_REASON_REPLAY);
  rail_sock_close(&fd);
  ENSURE_INT(hs_reason(hs_client(&h, 0, &good), hs_accept_none, &h), RAIL_REASON_REPLAY);
  hs_close(&hs_received);
  /* A new one does, with the same comm id: a connector that was refused for a passing reason tries again. */
  w = signed_hello(&h, false);
  fd = hs_client(&h, 0, &w);
  while (!hs_accept_step(&h)) ENSURE(!rail_deadline_passed(deadline), "kept out: %s", log_lines);
  rail_sock_close(&fd);
  hs_close(&hs_received);
  hs_close_listen(&h);
  /* Nor does it at another listener. */
  hs_listen(&h, DEV_A);
  ENSURE(hs_reason(hs_client(&h, 0, &good), hs_accept_none, &h) == RAIL_REASON_SECRET, "replayed elsewhere");
  memcpy(good.head.secret, h.decoded.secret, RAIL_SECRET_SIZE);
  ENSURE(hs_reason(hs_client(&h, 0, &good), hs_accept_none, &h) == RAIL_REASON_MAC, "and with the secret changed");
  hs_end(&h);
}

TEST(wrong_macs_and_replays) { in_child(child_without_a_right_mac, NULL); }

/* Before accept a stream's latest HELLO counts; one that was recorded does not, whether it is the latest or not. */
static void child_replay_for_a_stream(struct pipes *io, void *arg) {
  struct hs h;
  char byte;
  (void)io, (void)arg;
  begin(&h);
  sk_params.streams = 2;
  hs_listen(&h, DEV_A);
  const struct sk_hello_bytes first = signed_hello(&h, false), again = signed_hello(&h, false);
  int fds[2] = {hs_client(&h, 0, &first), -1};
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (TAILQ_EMPTY(&h.listen->acceptor->half_open)) {
    hs_accept_none(&h);
    ENSURE(!rail_deadline_passed(deadline), "kept out: %s", log_lines);
  }
  ENSURE_INT(hs_reason(hs_client(&h, 0, &first), hs_accept_none, &h), RAIL_REASON_REPLAY);
  ENSURE(recv(fds[0], &byte, 1, MSG_DONTWAIT) < 0, "a replay has closed the stream's socket");
  fds[1] = hs_client(&h, 0, &again);
  ENSURE_INT(hs_reason(fds[0], hs_accept_none, &h), HS_DROPPED);
  ENSURE_INT(hs_reason(hs_client(&h, 0, &first), hs_accept_none, &h), RAIL_REASON_REPLAY);
  ENSURE_INT(hs_reason(hs_client(&h, 0, &again), hs_accept_none, &h), RAIL_REASON_REPLAY);
  ENSURE(recv(fds[1], &byte, 1, MSG_DONTWAIT) < 0, "a replay has closed the stream's latest socket");
  rail_sock_close(&fds[1]);
  hs_end(&h);
}

TEST(a_replay_replaces_no_stream) { in_child(child_replay_for_a_stream, NULL); }

/* A listener with the parameter, a connector without, and the other way round. */
static void refused_before_dialling(struct hs *h, const char *words) {
  void *comm = NULL;
  h->handle[5] ^= RAIL_HANDLE_AUTH;
  ENSURE_INT(sk_connect(h->ctx, DEV_A, h->handle, -1, &comm, NULL), RAIL_BAD_USAGE);
  ENSURE(!comm && log_said("RAIL_SOCKET_AUTH_FILE is set") && log_said(words), "it said: %s", log_lines);
}

static void child_without(struct pipes *io, void *arg) {
  struct hs h;
  (void)io, (void)arg;
  unsetenv("RAIL_SOCKET_AUTH_FILE");
  hs_begin(&h);
  ENSURE(sk_protocol_load(), "not wanted");
  hs_listen(&h, DEV_A);
  refused_before_dialling(&h, "there and not here");
  struct sk_hello_bytes w =
    sk_make_hello(&h.decoded, (struct rail_hello){.streams = 1}, (struct sk_limits){.eager_bytes = 1 << 20}, 0);
  w.head.flags = htole32(RAIL_HELLO_AUTH);
  ENSURE_INT(hs_reason(hs_client(&h, 0, &w), hs_accept_none, &h), RAIL_REASON_AUTH);
  ENSURE(log_said("RAIL_SOCKET_AUTH_FILE is set on one side only"), "it said: %s", log_lines);
  hs_end(&h);
}

static void child_with(struct pipes *io, void *arg) {
  struct hs h;
  (void)io, (void)arg;
  begin(&h);
  hs_listen(&h, DEV_A);
  refused_before_dialling(&h, "here and not there");
  hs_end(&h);
}

TEST(one_side_without) {
  in_child(child_without, NULL);
  in_child(child_with, NULL);
}

/* The same handle, the same everything, but another key at the connector: both learn of it. */
static void child_other_key(struct pipes *io, void *arg) {
  struct hs h;
  char handle[RAIL_NET_HANDLE_SIZE];
  (void)arg;
  write_key("another key of enough bytes", 27, 0600);
  begin(&h);
  pipe_read(io, handle, sizeof handle);
  memcpy(h.handle, handle, sizeof handle);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!hs_connect_step(&h, DEV_A)) ENSURE(!rail_deadline_passed(deadline), "not connected");
  ENSURE_INT(hs_answer(0), RAIL_REASON_MAC);
  hs_end(&h);
}

static void child_listener(struct pipes *io, void *arg) {
  struct proc other = proc_start(child_other_key, arg); /* with a file of its own */
  struct hs h;
  (void)io;
  snprintf(key_path, sizeof key_path, "%s/mine", key_dir);
  write_key(key_text, sizeof key_text - 1, 0600);
  begin(&h);
  unlink(key_path);
  hs_listen(&h, DEV_A);
  pipe_write(&other.io, h.handle, sizeof h.handle);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!log_said("has another key in RAIL_SOCKET_AUTH_FILE")) {
    hs_accept_none(&h);
    ENSURE(!rail_deadline_passed(deadline), "nobody connected");
  }
  proc_join(&other);
  hs_end(&h);
}

TEST(two_keys) { in_child(child_listener, NULL); }

/* ---- encryption ------------------------------------------------------------ */

static void child_tls_without_a_key(struct pipes *io, void *arg) {
  (void)io, (void)arg;
  setenv("RAIL_SOCKET_TLS", "psk", 1);
  unsetenv("RAIL_SOCKET_AUTH_FILE");
  sk_params_load();
  rail_log_set_sink(log_capture);
  ENSURE(sk_protocol_load() && !sk_tls_load() && !sk_tls_load(), "TLS without a key");
  ENSURE_INT(log_count("RAIL_SOCKET_AUTH_FILE, which is not set"), 1);
}

TEST(tls_without_a_key) { in_child(child_tls_without_a_key, NULL); }

/* A stream of its own with each HELLO: the same key file, and never the same key. */
static void child_stream_keys(struct pipes *io, void *arg) {
  struct hs h;
  uint8_t here[2][SK_TLS_SECRET], there[2][SK_TLS_SECRET];
  (void)io, (void)arg;
  setenv("RAIL_SOCKET_TLS", "psk", 1);
  begin(&h);
  ENSURE(sk_tls_load(), "no TLS: %s", log_lines);
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  ENSURE(sk_handle_tls(&h.decoded), "the handle does not say so");
  ENSURE_INT(hs_sent.features, SK_FEATURE_FAILOVER | SK_FEATURE_TLS);
  ENSURE_INT(hs_received.features, hs_sent.features);
  for (unsigned int i = 0; i < 2; i++) {
    ENSURE_INT(hs_answer(i), RAIL_REASON_NONE);
    ENSURE_INT(sk_tls_secret(&hs_sent.sessions[i], here[i]), RAIL_OK);
    ENSURE_INT(sk_tls_secret(&hs_received.sessions[i], there[i]), RAIL_OK);
    ENSURE(memcmp(here[i], there[i], sizeof here[i]) == 0, "the sides have different keys for stream %u", i);
  }
  ENSURE(memcmp(here[0], here[1], sizeof here[0]) != 0, "two streams have one key");
  /* One that is lost comes back encrypted. */
  rail_sock_close(&hs_sent.fds[1]);
  rail_sock_close(&hs_received.fds[1]);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  struct sk_tls *sent = NULL, *received = NULL;
  unsigned int stream;
  while (!sent || !received) {
    if (!sent) sk_reconnect_lost(hs_sent.reconnect, 1, &hs_sent.fds[1], &sent);
    if (!received) sk_accepted_take(hs_received.accepted, &stream, &hs_received.fds[1], &received);
    ENSURE(!rail_deadline_passed(deadline), "it did not come back: %s", log_lines);
  }
  uint8_t out[100] = "bytes", in[100];
  size_t n = 0;
  ENSURE_INT(sk_tls_writev(sent, &(struct iovec){out, sizeof out}, 1), sizeof out);
  while (sk_tls_recvv(received, hs_received.fds[1], &(struct iovec){in, sizeof in}, 1, &n) == RAIL_IN_PROGRESS)
    ENSURE(!rail_deadline_passed(deadline), "nothing comes over it");
  ENSURE(n == sizeof in && memcmp(in, out, n) == 0, "other bytes came");
  sk_tls_free(sent);
  sk_tls_free(received);
  hs_end(&h);
  sk_tls_unload();
}

TEST(each_stream_has_its_key) { in_child(child_stream_keys, NULL); }

static rail_result_t dial_again(struct sk_tls **tls, int steps) {
  rail_result_t result = RAIL_IN_PROGRESS;
  for (int i = 0; i < steps && result == RAIL_IN_PROGRESS; i++) {
    result = sk_reconnect_lost(hs_sent.reconnect, 1, &hs_sent.fds[1], tls);
    usleep(1000);
  }
  return result;
}

static void take_back(struct sk_tls **tls) {
  unsigned int stream;
  for (int i = 0; i < 20; i++) {
    ENSURE_INT(sk_accepted_take(hs_received.accepted, &stream, &hs_received.fds[1], tls), RAIL_IN_PROGRESS);
    usleep(1000);
  }
}

/* A connection at rest is moved once a second. An attempt to come back has 3 s until its answer is read, and 3 s from
 * there; here it takes 1.6 s for each. */
static void child_slow_return(struct pipes *io, void *arg) {
  struct hs h;
  struct sk_tls *sent = NULL, *received = NULL;
  (void)io, (void)arg;
  setenv("RAIL_SOCKET_TLS", "psk", 1);
  begin(&h);
  ENSURE(sk_tls_load(), "no TLS: %s", log_lines);
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  rail_sock_close(&hs_sent.fds[1]);
  rail_sock_close(&hs_received.fds[1]);
  ENSURE_INT(dial_again(&sent, 20), RAIL_IN_PROGRESS); /* HELLO goes */
  take_back(&received);                                /* and the answer */
  usleep(1600 * 1000);
  ENSURE_INT(dial_again(&sent, 1), RAIL_IN_PROGRESS); /* is read, and ClientHello goes */
  usleep(1600 * 1000);
  ENSURE_INT(dial_again(&sent, 1), RAIL_IN_PROGRESS); /* nothing is there yet */
  take_back(&received);
  ENSURE_INT(dial_again(&sent, 1), RAIL_OK);
  sk_tls_free(sent);
  hs_end(&h);
  sk_tls_unload();
}

TEST(a_slow_return_has_time_for_tls) { in_child(child_slow_return, NULL); }

/* The acceptor refuses, with those words in its line, and its answer tells the connector why. */
static void expect_refusal(struct hs *h, unsigned int reason, const char *words) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  bool connected = false;
  log_forget();
  while (!connected || !log_said(words)) {
    if (!connected) connected = hs_connect_step(h, DEV_A);
    hs_accept_none(h);
    ENSURE(!rail_deadline_passed(deadline), "not refused: %s", log_lines);
  }
  ENSURE_INT(hs_answer(0), reason);
}

/* Both have the key, and one side encrypts. */
static void child_one_encrypts(struct pipes *io, void *arg) {
  const int *which = arg; /* 0: the acceptor, 1: the connector */
  struct hs h;
  (void)io;
  begin(&h);
  sk_params.tls = which[0] == 0 ? SK_TLS_PSK : SK_TLS_OFF;
  hs_listen(&h, DEV_A);
  sk_params.tls = which[0] == 0 ? SK_TLS_OFF : SK_TLS_PSK;
  expect_refusal(&h, SK_REASON_TLS, "RAIL_SOCKET_TLS must be the same on both");
  hs_end(&h);
}

TEST(one_side_encrypts) {
  for (int which = 0; which < 2; which++) in_child(child_one_encrypts, &which);
}

/* Without a key on the connector's side it dials all the same, so that both sides say why: the key comes first. */
static void child_tls_and_no_key(struct pipes *io, void *arg) {
  struct hs h;
  (void)io, (void)arg;
  unsetenv("RAIL_SOCKET_AUTH_FILE");
  hs_begin(&h);
  ENSURE(sk_protocol_load(), "not wanted");
  hs_listen(&h, DEV_A);
  h.handle[5] ^= RAIL_HANDLE_AUTH; /* as that of a listener which encrypts */
  h.handle[7] = (char)(h.handle[7] ^ (int)SK_HANDLE_TLS);
  struct rail_handle *listener = &h.listen->acceptor->listener.handle;
  listener->auth = true;
  listener->param |= SK_HANDLE_TLS;
  expect_refusal(&h, RAIL_REASON_AUTH, "set on one side only");
  hs_end(&h);
}

TEST(no_key_where_the_other_encrypts) { in_child(child_tls_and_no_key, NULL); }

TEST_MAIN(TEST_CASE(tls_without_a_key), TEST_CASE(each_stream_has_its_key),
          TEST_CASE(a_slow_return_has_time_for_tls), TEST_CASE(one_side_encrypts),
          TEST_CASE(no_key_where_the_other_encrypts), TEST_CASE(a_key_that_cannot_be_used), TEST_CASE(macs),
          TEST_CASE(both_sides_have_it), TEST_CASE(wrong_macs_and_replays), TEST_CASE(a_replay_replaces_no_stream),
          TEST_CASE(one_side_without), TEST_CASE(two_keys))
