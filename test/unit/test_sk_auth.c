/* SPDX-License-Identifier: Apache-2.0
 * Keys, macs, and connections between sides that have them, or not. A process
 * loads its key once: each case runs in a child of its own. */
#include <stdlib.h>

#include "plugin/socket/sk_auth.h"
#include "test/unit/key_file.h"
#include "test/unit/sk_handshake.h"

static bool load(void) {
  setenv("RAIL_SOCKET_AUTH_FILE", key_path, 1);
  sk_params_load();
  rail_log_set_sink(log_capture);
  log_forget();
  return sk_auth_load();
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
  ENSURE(!load() && !sk_auth_on(), "a key of 15 bytes");
  ENSURE(log_said("RailSocket: RAIL_SOCKET_AUTH_FILE=") && log_said("16 bytes"), "it said: %s", log_lines);
}

TEST(a_key_that_cannot_be_used) { in_child(child_no_key, NULL); }

/* ---- macs ---------------------------------------------------------------- */

static struct sk_handle some_listener(void) {
  struct sk_handle l = {.streams = 4, .naddrs = 1, .flags = SK_HANDLE_AUTH, .attempt = 77};
  ENSURE_INT(rail_addr_parse("10.1.2.3:4660", &l.addrs[0]), RAIL_OK);
  for (int i = 0; i < SK_SECRET_SIZE; i++) l.secret[i] = (uint8_t)(0xa0 + i);
  return l;
}

static void some_hello(const struct sk_handle *l, struct sk_hello_wire *wire) {
  struct sk_hello h = {.stream = 1, .streams = 4, .features = SK_FEATURE_FAILOVER, .eager_size = 8192,
                       .eager_count = 64, .eager_bytes = 1 << 20, .flags = SK_HELLO_AUTH};
  memset(h.comm_id, 0x5c, sizeof h.comm_id);
  sk_hello_encode(&h, l->secret, wire);
}

/* The macs were computed by Python's hmac from the description in docs/protocol-socket.md. */
static void child_macs(struct pipes *io, void *arg) {
  static const uint8_t hello_mac[SK_MAC_SIZE] = {
    0xf5, 0xb2, 0x80, 0x8f, 0xe0, 0xf6, 0x21, 0x6f, 0x59, 0x1b, 0x4b, 0x67, 0xb7, 0xe4, 0x26, 0xdb,
    0x60, 0x26, 0xcd, 0x12, 0x05, 0xcb, 0x5d, 0xd5, 0xbe, 0x58, 0x49, 0x7e, 0xe3, 0x8a, 0x17, 0x26};
  static const uint8_t answer_mac[SK_MAC_SIZE] = {
    0xe6, 0x80, 0x07, 0xc5, 0x72, 0x44, 0x95, 0x82, 0x31, 0x31, 0xf9, 0xda, 0x62, 0x2e, 0xce, 0x01,
    0x42, 0xaa, 0xf5, 0x0e, 0x7a, 0xc0, 0xf9, 0x2a, 0xf3, 0x1e, 0x68, 0x53, 0x2d, 0xa6, 0xf9, 0x25};
  struct sk_handle listener = some_listener(), other;
  struct sk_hello_wire hello, w;
  struct sk_answer_wire answer;
  (void)io, (void)arg;
  ENSURE(load(), "no key: %s", log_lines);
  some_hello(&listener, &hello);
  memset(hello.nonce, 0x77, sizeof hello.nonce);
  memcpy(hello.mac, hello_mac, sizeof hello_mac);
  ENSURE(sk_auth_check_hello(&listener, &hello), "a mac made elsewhere from the same key does not pass");
  sk_answer_encode(SK_REASON_NONE, 1, SK_FEATURE_FAILOVER, &answer);
  ENSURE_INT(sk_auth_sign_answer(hello_mac, &answer), RAIL_OK);
  ENSURE(memcmp(answer.mac, answer_mac, sizeof answer_mac) == 0, "another mac than the description's");
  for (size_t bit = 0; bit < 8 * sizeof hello; bit++) {
    w = hello;
    ((uint8_t *)&w)[bit / 8] ^= (uint8_t)(1 << (bit % 8));
    ENSURE(!sk_auth_check_hello(&listener, &w), "bit %zu of HELLO does not count", bit);
  }
  other = listener, other.secret[0] ^= 1;
  ENSURE(!sk_auth_check_hello(&other, &hello), "the secret does not count");
  other = listener, rail_addr_set_port(&other.addrs[0], 4661);
  ENSURE(!sk_auth_check_hello(&other, &hello), "the address does not count");
  other = listener, other.naddrs = 2, other.addrs[1] = other.addrs[0];
  ENSURE(!sk_auth_check_hello(&other, &hello), "the number of addresses does not count");
  /* Two signatures of one HELLO differ by their nonces. */
  some_hello(&listener, &hello);
  some_hello(&listener, &w);
  ENSURE(sk_auth_sign_hello(&listener, &hello) == RAIL_OK && sk_auth_sign_hello(&listener, &w) == RAIL_OK, "no mac");
  ENSURE(sk_auth_check_hello(&listener, &hello) && sk_auth_check_hello(&listener, &w), "our own does not pass");
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
  ENSURE(h.decoded.flags & SK_HANDLE_AUTH, "the handle does not say so");
  for (unsigned int i = 0; i < 2; i++) ENSURE_INT(hs_answer(i), SK_REASON_NONE);
  hs_close_listen(&h);
  rail_sock_close(&hs_sent.fds[1]);
  rail_sock_close(&hs_received.fds[1]);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(PATIENCE_MS));
  unsigned int stream;
  while (hs_sent.fds[1] < 0 || hs_received.fds[1] < 0) {
    if (hs_sent.fds[1] < 0) sk_rejoin_dial(hs_sent.rejoin, 1, &hs_sent.fds[1]);
    if (hs_received.fds[1] < 0) sk_rejoin_take(hs_received.rejoin, &stream, &hs_received.fds[1]);
    ENSURE(!rail_deadline_passed(deadline), "it did not come back: %s", log_lines);
  }
  hs_linked(hs_sent.fds[1], hs_received.fds[1]);
  hs_end(&h);
}

TEST(both_sides_have_it) { in_child(child_both, NULL); }

static struct sk_hello_wire signed_hello(const struct hs *h, uint32_t flags) {
  struct sk_hello hello = {.streams = h->decoded.streams, .eager_size = 1024, .eager_bytes = 1 << 20,
                           .flags = SK_HELLO_AUTH | flags, .counter = flags ? 1 : 0};
  struct sk_hello_wire wire;
  memset(hello.comm_id, 0x42, sizeof hello.comm_id);
  sk_hello_encode(&hello, h->decoded.secret, &wire);
  ENSURE_INT(sk_auth_sign_hello(&h->decoded, &wire), RAIL_OK);
  return wire;
}

static void child_strangers(struct pipes *io, void *arg) {
  struct hs h;
  struct sk_hello_wire good, w;
  (void)io, (void)arg;
  begin(&h);
  hs_listen(&h, DEV_A);
  good = signed_hello(&h, 0);
  w = good, w.mac[31] ^= 1;
  ENSURE_INT(hs_verdict(hs_stranger(&h, 0, &w), hs_accept_nobody, &h), SK_REASON_MAC);
  ENSURE(log_said("RAIL_SOCKET_AUTH_FILE"), "it said: %s", log_lines);
  w = good, w.zero[39] ^= 1;
  ENSURE_INT(hs_verdict(hs_stranger(&h, 0, &w), hs_accept_nobody, &h), SK_REASON_MAC);
  w = signed_hello(&h, SK_HELLO_REJOIN);
  ENSURE_INT(hs_verdict(hs_stranger(&h, 0, &w), hs_accept_nobody, &h), SK_REASON_GONE);
  w.counter = htole64(2);
  ENSURE_INT(hs_verdict(hs_stranger(&h, 0, &w), hs_accept_nobody, &h), SK_REASON_MAC);
  w = good, w.flags = 0, memset(w.mac, 0, sizeof w.mac);
  ENSURE_INT(hs_verdict(hs_stranger(&h, 0, &w), hs_accept_nobody, &h), SK_REASON_AUTH);
  /* The good one comes in; what was recorded of it does not, accepted or not. */
  int fd = hs_stranger(&h, 0, &good);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(PATIENCE_MS));
  while (!hs_accept_step(&h)) ENSURE(!rail_deadline_passed(deadline), "kept out: %s", log_lines);
  ENSURE_INT(hs_verdict(hs_stranger(&h, 0, &good), hs_accept_nobody, &h), SK_REASON_REPLAY);
  rail_sock_close(&fd);
  ENSURE_INT(hs_verdict(hs_stranger(&h, 0, &good), hs_accept_nobody, &h), SK_REASON_REPLAY);
  hs_close(&hs_received);
  hs_close_listen(&h);
  /* Nor does it at another listener. */
  hs_listen(&h, DEV_A);
  ENSURE(hs_verdict(hs_stranger(&h, 0, &good), hs_accept_nobody, &h) == SK_REASON_SECRET, "replayed elsewhere");
  memcpy(good.secret, h.decoded.secret, SK_SECRET_SIZE);
  ENSURE(hs_verdict(hs_stranger(&h, 0, &good), hs_accept_nobody, &h) == SK_REASON_MAC, "and with the secret changed");
  hs_end(&h);
}

TEST(strangers_and_recordings) { in_child(child_strangers, NULL); }

/* A listener with the parameter, a connector without, and the other way round. */
static void refused_before_dialling(struct hs *h, const char *words) {
  void *comm = &comm;
  h->handle[5] ^= SK_HANDLE_AUTH;
  ENSURE_INT(sk_connect(h->ctx, DEV_A, h->handle, -1, &comm, NULL), RAIL_BAD_USAGE);
  ENSURE(!comm && log_said("RAIL_SOCKET_AUTH_FILE is set") && log_said(words), "it said: %s", log_lines);
}

static void child_without(struct pipes *io, void *arg) {
  struct hs h;
  (void)io, (void)arg;
  unsetenv("RAIL_SOCKET_AUTH_FILE");
  hs_begin(&h);
  ENSURE(sk_auth_load(), "not wanted");
  hs_listen(&h, DEV_A);
  refused_before_dialling(&h, "there and not here");
  struct sk_hello hello = {.streams = 1, .eager_bytes = 1 << 20, .flags = SK_HELLO_AUTH};
  struct sk_hello_wire w;
  sk_hello_encode(&hello, h.decoded.secret, &w);
  ENSURE_INT(hs_verdict(hs_stranger(&h, 0, &w), hs_accept_nobody, &h), SK_REASON_AUTH);
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
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(PATIENCE_MS));
  while (!hs_connect_step(&h, DEV_A)) ENSURE(!rail_deadline_passed(deadline), "not connected");
  ENSURE_INT(hs_answer(0), SK_REASON_MAC);
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
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(PATIENCE_MS));
  while (!log_said("has not the key")) {
    hs_accept_nobody(&h);
    ENSURE(!rail_deadline_passed(deadline), "nobody knocked");
  }
  proc_join(&other);
  hs_end(&h);
}

TEST(two_keys) { in_child(child_listener, NULL); }

TEST_MAIN(TEST_CASE(a_key_that_cannot_be_used), TEST_CASE(macs), TEST_CASE(both_sides_have_it),
          TEST_CASE(strangers_and_recordings), TEST_CASE(one_side_without), TEST_CASE(two_keys))
