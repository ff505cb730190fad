/* SPDX-License-Identifier: Apache-2.0
 * Handshakes with a key: that they come about, and every way in which one without it, or with somebody in the middle,
 * does not. */
#include <fcntl.h>

#include "test/unit/ib_handshake.h"

static char key_file[64];

static void make_key(void) {
  snprintf(key_file, sizeof key_file, "/tmp/test_ib_auth.%d", getpid());
  int fd = open(key_file, O_WRONLY | O_CREAT | O_EXCL, 0600);
  if (fd < 0 || write(fd, "a key of more than sixteen bytes\n", 33) != 33) abort();
  close(fd);
  setenv("RAIL_IB_AUTH_FILE", key_file, 1);
}

TEST(both_have_it) {
  struct hs h;
  hs_begin(&h);
  hs_pair(&h, DEV_A1, DEV_FUSED);
  CHECK(h.decoded.auth && hs_logged("authenticated"));
  hs_end(&h);
}

TEST(only_here) {
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  h.handle[5] = 0; /* as a listener without the parameter makes it */
  hs_connect_once(&h, DEV_B);
  CHECK_INT(h.connect, RAIL_BAD_USAGE);
  CHECK(hs_logged("RAIL_IB_AUTH_FILE is set here and not there"));
  hs_end(&h);
}

/* The reason with which these bytes are refused, as read by a peer without the key. */
static unsigned int hello_reason(struct hs *h, const struct ib_hello_bytes *bytes) {
  struct raw r = {.hello = *bytes};
  raw_begin(&r, h, &(struct rail_hello){.streams = 1});
  unsigned int reason = raw_verdict(&r, h);
  raw_end(&r);
  return reason;
}

TEST(hellos) {
  struct hs h;
  struct rail_hello hello;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  struct ib_hello_bytes bytes = ib_make_hello(&h.decoded, NULL, &hello);
  bytes.head.flags = 0;
  CHECK_INT(hello_reason(&h, &bytes), RAIL_REASON_AUTH);
  for (size_t at = 24; at < sizeof bytes; at += 8) {
    bytes = ib_make_hello(&h.decoded, NULL, &hello);
    ((uint8_t *)&bytes)[at] ^= 1;
    CHECK_INT(hello_reason(&h, &bytes), RAIL_REASON_MAC);
  }
  struct rail_handle elsewhere = h.decoded; /* meant for another listener */
  rail_addr_set_port(&elsewhere.addrs[0], 1);
  bytes = ib_make_hello(&elsewhere, NULL, &hello);
  CHECK_INT(hello_reason(&h, &bytes), RAIL_REASON_MAC);
  CHECK_INT(h.accept, RAIL_IN_PROGRESS);
  hs_end(&h);
}

TEST(played_back) {
  struct hs h;
  struct raw r;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  raw_hello(&r, &h);
  for (int i = 0; i < 20; i++) hs_accept_once(&h);
  CHECK_INT(hello_reason(&h, &r.hello), RAIL_REASON_REPLAY);
  raw_end(&r);
  hs_end(&h);
}

/* A message that was changed, comes from another handshake, or is one of the acceptor's own, sent back. */
static unsigned int with_message(struct hs *h, void (*spoil)(struct raw *r)) {
  struct raw r;
  struct ib_offer offer = raw_offer(true);
  raw_hello(&r, h);
  struct ib_offer_wire wire;
  size_t size = ib_offer_encode(&offer, &wire);
  ENSURE_INT(rail_handshake_send(&r.handshake, IB_MESSAGE_OFFER, &wire, size), RAIL_OK);
  spoil(&r);
  raw_write(r.handshake.fd, r.handshake.out, r.handshake.out_size);
  unsigned int reason = raw_verdict(&r, h);
  raw_end(&r);
  return reason;
}
static void change_body(struct raw *r) { r->handshake.out[sizeof(struct rail_head_wire) + 4] ^= 1; }
static void change_mac(struct raw *r) { r->handshake.out[r->handshake.out_size - 1] ^= 1; }
static void zero_mac(struct raw *r) {
  memset(r->handshake.out + r->handshake.out_size - RAIL_MAC_SIZE, 0, RAIL_MAC_SIZE);
}

/* The offer once more, as somebody else's message. */
static void resign(struct raw *r, struct rail_session session) {
  const size_t body = r->handshake.out_size - sizeof(struct rail_head_wire) - RAIL_MAC_SIZE;
  struct ib_offer_wire wire;
  memcpy(&wire, r->handshake.out + sizeof(struct rail_head_wire), body);
  ENSURE_INT(rail_message_encode(&session, IB_MESSAGE_OFFER, &wire, body, r->handshake.out), RAIL_OK);
}
static void as_acceptor(struct raw *r) {
  struct rail_session other = r->handshake.session;
  other.connector = false, other.sent = 0;
  resign(r, other);
}
static void as_second(struct raw *r) { resign(r, r->handshake.session); }
static void of_another_handshake(struct raw *r) {
  struct rail_session other = r->handshake.session;
  other.hello_mac[0] ^= 1, other.sent = 0;
  resign(r, other);
}

TEST(messages) {
  static void (*const spoils[])(struct raw *) = {change_body, change_mac, zero_mac, as_acceptor, as_second,
                                                 of_another_handshake};
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  for (size_t i = 0; i < sizeof spoils / sizeof spoils[0]; i++)
    CHECK_INT(with_message(&h, spoils[i]), RAIL_REASON_MAC);
  CHECK_INT(h.accept, RAIL_IN_PROGRESS);
  hs_run(&h, DEV_B);
  CHECK(h.connect == RAIL_OK && h.accept == RAIL_OK);
  hs_end(&h);
}

/* What was recorded of a whole handshake does not make another one: the welcome's nonce is new. */
TEST(the_nonce_counts) {
  struct hs h;
  struct raw r;
  struct rail_message message;
  struct ib_offer offer = raw_offer(true);
  struct ib_qps qps = {.nqps = 1, .nrails = 1, .token = 3, .ctrl_addr = 4096, .verify_addr = 8192, .qps = {{.qpn = 9}}};
  struct ib_qps_wire wire;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  raw_hello(&r, &h);
  raw_send_offer(&r, &offer);
  for (int i = 0; i < 3; i++) CHECK(raw_recv(&r, &h, &message)); /* welcome, offer, queue pairs */
  memset(r.handshake.session.nonce, 0, sizeof r.handshake.session.nonce);
  raw_send(&r, IB_MESSAGE_QPS, &wire, ib_qps_encode(&qps, &wire));
  CHECK_INT(raw_verdict(&r, &h), RAIL_REASON_MAC);
  raw_end(&r);
  hs_end(&h);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(both_have_it), TEST_CASE(only_here), TEST_CASE(hellos),
                                          TEST_CASE(played_back), TEST_CASE(messages), TEST_CASE(the_nonce_counts)};
  make_key();
  hs_main();
  unlink(key_file);
  return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
