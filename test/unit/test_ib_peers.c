/* SPDX-License-Identifier: Apache-2.0
 * Clients that send no HELLO, peers that go silent, die, or lie in the middle of a handshake, and ends at any time. */
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_connect.h"
#include "test/unit/ib_handshake.h"

/* Another pair connects to the same listener meanwhile. */
static void others_come_through(struct hs *h) {
  hs_run(h, DEV_B);
  ENSURE(h->connect == RAIL_OK && h->accept == RAIL_OK, "connect %d, accept %d: %s", h->connect, h->accept, hs_lines);
}

static void accept_for(struct hs *h, uint64_t ms) {
  uint64_t end = rail_deadline_in_ms(ms);
  while (!rail_deadline_passed(end)) {
    hs_accept_once(h);
    ENSURE_INT(h->accept, RAIL_IN_PROGRESS);
    sched_yield();
  }
}

/* ---- before HELLO -------------------------------------------------------- */

TEST(silent_clients_delay_no_accept) {
  struct hs h;
  struct ib_hello_bytes hello;
  struct rail_hello unused;
  int fds[60];
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  hello = ib_make_hello(&h.decoded, "0123456789abcde", &unused);
  for (int i = 0; i < 60; i++) {
    fds[i] = raw_dial(&h);
    if (i % 3 == 1) raw_write(fds[i], &hello, sizeof hello / 2);
    if (i % 3 == 2) raw_write(fds[i], "GET / HTTP/1.1\r\n\r\n", 18);
    hs_accept_once(&h);
  }
  CHECK_INT(h.accept, RAIL_IN_PROGRESS);
  others_come_through(&h);
  CHECK(hs_logged("not a RailIB hello"));
  for (int i = 0; i < 60; i++) rail_sock_close(&fds[i]);
  hs_end(&h);
}

static unsigned int hello_reason(struct hs *h, void (*change)(struct ib_hello_bytes *)) {
  struct raw r;
  struct rail_hello hello;
  r.hello = ib_make_hello(&h->decoded, "0123456789abcde", &hello);
  change(&r.hello);
  raw_begin(&r, h, &hello);
  unsigned int reason = raw_verdict(&r, h);
  raw_end(&r);
  return reason;
}

static void other_magic(struct ib_hello_bytes *w) { w->head.magic[0] ^= 1; }
static void other_version(struct ib_hello_bytes *w) { w->head.version = 9; }
static void other_version_and_secret(struct ib_hello_bytes *w) { w->head.version = 9, w->head.secret[3] ^= 1; }
static void other_secret(struct ib_hello_bytes *w) { w->head.secret[3] ^= 1; }
static void with_mac(struct ib_hello_bytes *w) { w->head.flags = RAIL_HELLO_AUTH; }
static void several_streams(struct ib_hello_bytes *w) { w->head.streams = 2; }
static void reconnecting(struct ib_hello_bytes *w) { w->head.flags = RAIL_HELLO_RECONNECT; }

TEST(hellos_that_are_refused) {
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  usleep(150000); /* the listener's lines are at most ten a second */
  CHECK_INT(hello_reason(&h, other_version), RAIL_REASON_VERSION);
  CHECK(hs_logged("(9, ours 5)"));
  CHECK_INT(hello_reason(&h, other_version_and_secret), RAIL_REASON_SECRET);
  CHECK_INT(hello_reason(&h, other_magic), RAIL_REASON_NONE);
  CHECK_INT(hello_reason(&h, other_secret), RAIL_REASON_SECRET);
  CHECK_INT(hello_reason(&h, with_mac), RAIL_REASON_AUTH);
  CHECK_INT(hello_reason(&h, several_streams), RAIL_REASON_MESSAGE);
  CHECK_INT(hello_reason(&h, reconnecting), RAIL_REASON_MESSAGE);
  others_come_through(&h);
  hs_end(&h);
}

/* ---- after it ------------------------------------------------------------ */

static void say_qps(struct raw *r, unsigned int nqps) {
  struct ib_qps qps = {.nqps = nqps, .nrails = 1, .token = 3, .ctrl_addr = 4096, .verify_addr = 8192};
  struct ib_qps_wire wire;
  for (unsigned int i = 0; i < nqps; i++) qps.qps[i] = (struct ib_qp_info){.qpn = 77 + i};
  size_t size = ib_qps_encode(&qps, &wire);
  raw_send(r, IB_MESSAGE_QPS, &wire, size);
}

enum lie {
  OFFER_OF_NOTHING, OFFER_AS_ACCEPTOR, QPS_INSTEAD, READY_INSTEAD, WELCOME_INSTEAD, GARBAGE, TOO_LONG, QPS_TOO_MANY,
  READY_FOR_QPS, LIES
};

static void lie(struct raw *r, enum lie what) {
  struct ib_offer offer = raw_offer(true);
  switch (what) {
    case OFFER_OF_NOTHING: raw_send(r, IB_MESSAGE_OFFER, "", 1); break;
    case OFFER_AS_ACCEPTOR:
      offer.sender = false;
      raw_send_offer(r, &offer);
      break;
    case QPS_INSTEAD: say_qps(r, 1); break;
    case READY_INSTEAD: raw_send(r, IB_MESSAGE_READY, NULL, 0); break;
    case WELCOME_INSTEAD:
      ENSURE_INT(rail_handshake_welcome(&r->handshake, NULL), RAIL_OK);
      (void)rail_handshake_flush(&r->handshake);
      break;
    case GARBAGE: raw_write(r->handshake.fd, "GET / HTTP/1.1\r\n\r\n", 18); break;
    case TOO_LONG:
      raw_write(r->handshake.fd, "RBKM\5\0\2\0\0\0\0\x40\0\0\0\0", sizeof(struct rail_head_wire));
      break;
    case QPS_TOO_MANY:
      raw_send_offer(r, &offer);
      say_qps(r, 2);
      break;
    case READY_FOR_QPS:
      raw_send_offer(r, &offer);
      raw_send(r, IB_MESSAGE_READY, NULL, 0);
      break;
    case LIES: break;
  }
}

TEST(lying_peers_are_refused) {
  for (enum lie what = 0; what < LIES; what++) {
    struct hs h;
    struct raw r;
    hs_begin(&h);
    hs_listen(&h, DEV_A1);
    raw_hello(&r, &h);
    lie(&r, what);
    CHECK_INT(raw_verdict(&r, &h), RAIL_REASON_MESSAGE);
    CHECK_INT(h.accept, RAIL_IN_PROGRESS);
    CHECK_MSG(hs_logged("accept of 127.0.0.1:"), "lie %d: %s", what, hs_lines);
    raw_end(&r);
    others_come_through(&h);
    hs_end(&h);
  }
}

/* An offer that does not fit ends accept: no other peer would fit better. */
TEST(an_offer_of_values_that_cannot_be) {
  struct hs h;
  struct raw r;
  struct ib_offer offer = raw_offer(true);
  offer.rails[0].mtu = 9;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  raw_hello(&r, &h);
  raw_send_offer(&r, &offer);
  CHECK_INT(raw_verdict(&r, &h), IB_REASON_PLAN);
  CHECK_INT(h.accept, RAIL_BAD_USAGE);
  CHECK(hs_logged("port raw0 there") && hs_logged("an MTU that does not exist"));
  raw_end(&r);
  hs_end(&h);
}

/* Silent after HELLO, after OFFER, or with half a message; dropped at the deadline, while others come through. */
TEST(silent_peers) {
  struct hs h;
  struct raw r[3];
  struct ib_offer offer = raw_offer(true);
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  for (int i = 0; i < 3; i++) raw_hello(&r[i], &h);
  raw_send_offer(&r[1], &offer);
  raw_write(r[2].handshake.fd, "RBKM\1\0", 6);
  accept_for(&h, 100);
  struct hs other = h;
  others_come_through(&other);
  hs_set_connect_ms(&h, 1000); /* only now: on a busy machine the others take their time */
  for (int i = 0; i < 3; i++) CHECK_INT(raw_verdict(&r[i], &h), RAIL_REASON_TIMEOUT);
  CHECK(hs_logged("waited for the peer's offer") && hs_logged("waited for the peer's queue pairs"));
  for (int i = 0; i < 3; i++) raw_end(&r[i]);
  CHECK_OK(ib_close_send(other.sent));
  CHECK_OK(ib_close_recv(other.received));
  hs_end(&h);
}

TEST(peers_that_die) {
  struct hs h;
  struct raw r;
  struct ib_offer offer = raw_offer(true);
  struct rail_message message;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  for (int step = 0; step < 4; step++) {
    raw_hello(&r, &h);
    if (step > 0) raw_send_offer(&r, &offer);
    for (int received = 0; step > 1 && received < (step == 2 ? 1 : 3); received++) CHECK(raw_recv(&r, &h, &message));
    raw_end(&r);
    accept_for(&h, 50);
  }
  CHECK_INT(emu_live("qp"), h.qps);
  CHECK(hs_logged("closed the connection in the middle of the handshake") || hs_logged("Connection reset"));
  others_come_through(&h);
  hs_end(&h);
}

/* It says good things, but no write of its comes. */
TEST(a_peer_whose_writes_do_not_come) {
  struct hs h;
  struct raw r;
  struct ib_offer offer = raw_offer(true);
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  raw_hello(&r, &h);
  raw_send_offer(&r, &offer);
  say_qps(&r, 1);
  CHECK_INT(raw_verdict(&r, &h), IB_REASON_VERIFY);
  CHECK_INT(h.accept, RAIL_REMOTE_ERROR);
  CHECK(hs_logged("port emuA:1 here (GID 10.77.0.1) and port raw0 there (GID 10.77.9.9)"));
  raw_end(&r);
  hs_end(&h);
}

TEST(no_more_than_64_half_made) {
  static struct raw r[RAIL_NET_MAX_HALF_OPEN + 1];
  struct ib_offer offer = raw_offer(true);
  struct rail_message message;
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  for (int i = 0; i < RAIL_NET_MAX_HALF_OPEN; i++) {
    raw_hello(&r[i], &h);
    raw_send_offer(&r[i], &offer);
  }
  for (int i = 0; i < RAIL_NET_MAX_HALF_OPEN; i++) CHECK(raw_recv(&r[i], &h, &message)); /* the offers were read */
  raw_hello(&r[RAIL_NET_MAX_HALF_OPEN], &h);
  CHECK_INT(raw_verdict(&r[RAIL_NET_MAX_HALF_OPEN], &h), RAIL_REASON_BUSY);
  for (int i = 0; i <= RAIL_NET_MAX_HALF_OPEN; i++) raw_end(&r[i]);
  accept_for(&h, 100);
  others_come_through(&h);
  hs_end(&h);
}

/* A peer that sends only HELLO does not block others. */
TEST(hellos_alone_make_room) {
  static struct raw r[2 * RAIL_NET_MAX_HALF_OPEN];
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  usleep(110000); /* another test's line may hold this one back for 100 ms */
  for (int i = 0; i < 2 * RAIL_NET_MAX_HALF_OPEN; i++) raw_hello(&r[i], &h);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!hs_logged("too many half-open connections, and this one has sent nothing after its hello")) {
    accept_for(&h, 20);
    CHECK_MSG(!rail_deadline_passed(deadline), "none made room: %s", hs_lines);
  }
  others_come_through(&h);
  for (int i = 0; i < 2 * RAIL_NET_MAX_HALF_OPEN; i++) raw_end(&r[i]);
  hs_end(&h);
}

/* ---- a listener that lies to connect ------------------------------------- */

static void listen_raw(struct hs *h, int *listener) {
  struct rail_handle handle = {.secret = "fifteen letters", .naddrs = 1};
  ENSURE_INT(rail_addr_parse("127.0.0.1:0", &handle.addrs[0]), RAIL_OK);
  ENSURE_INT(rail_sock_listen(&handle.addrs[0], 16, listener), RAIL_OK);
  rail_handle_encode(&ib_protocol, &handle, h->handle);
}

enum { HANGS_UP, NONSENSE, WELCOME_TWICE, OTHER_VERSION, REFUSAL, LISTENERS };

static void answer_raw(int listener, int what) {
  struct ib_refused_plan_wire plan;
  uint8_t bytes[RAIL_ANSWER_MAX];
  const size_t size = rail_answer_size(&ib_protocol);
  int fd;
  union rail_addr peer;
  if (rail_sock_accept(listener, &fd, &peer) != RAIL_OK) return;
  ib_refused_plan_encode(&(struct ib_refused_plan){.rail_here = -1, .rail_there = -1}, &plan);
  rail_refusal_encode(&ib_protocol, what == REFUSAL ? (unsigned int)IB_REASON_PLAN : RAIL_REASON_NONE, &plan, bytes);
  if (what == OTHER_VERSION) bytes[4] = 7;
  if (what == NONSENSE) memset(bytes, 'x', size);
  if (what != HANGS_UP) raw_write(fd, bytes, size);
  if (what == WELCOME_TWICE) raw_write(fd, bytes, size);
  if (what != NONSENSE) shutdown(fd, SHUT_WR);
  usleep(1000);
  rail_sock_close(&fd);
}

TEST(listeners_that_lie) {
  for (int what = 0; what < LISTENERS; what++) {
    struct hs h;
    int listener;
    hs_begin(&h);
    ib_params.connect_ms = 400;
    listen_raw(&h, &listener);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
    while (h.connect == RAIL_IN_PROGRESS) {
      hs_connect_once(&h, DEV_B);
      answer_raw(listener, what);
      CHECK(!rail_deadline_passed(deadline));
    }
    CHECK_INT(h.connect, RAIL_REMOTE_ERROR);
    CHECK_MSG(hs_logged("connect to 127.0.0.1:") && hs_logged("over emuB"), "%d: %s", what, hs_lines);
    if (what == HANGS_UP) CHECK(hs_logged("connections in a row, within 400 ms (RAIL_IB_CONNECT_TIMEOUT)"));
    rail_sock_close(&listener);
    hs_end(&h);
  }
}

/* RAIL_IB_CONNECT_TIMEOUT counts from the first answer, and the wait before it is reported. */
TEST(accept_may_take_any_time) {
  struct hs h;
  hs_begin(&h);
  ib_params.connect_ms = 150;
  ib_params.peer_warn_ms = 100;
  hs_listen(&h, DEV_A1);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  do {
    hs_connect_once(&h, DEV_B);
    CHECK_INT(h.connect, RAIL_IN_PROGRESS);
    CHECK_MSG(!rail_deadline_passed(deadline), "%s", hs_lines);
  } while (!hs_logged("over emuB: not accepted for ") || hs_attempt(&h)->handshake.waited.ns < 300000000);
  CHECK(hs_logged("connect to 127.0.0.1:"));
  hs_set_connect_ms(&h, 30000); /* the rest may take its time on a busy machine */
  hs_run(&h, DEV_B);
  CHECK(h.connect == RAIL_OK && h.accept == RAIL_OK);
  hs_end(&h);
}

/* Neither side holds the time against the other in which it was stopped itself. */
TEST(stopped_in_the_middle) {
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  for (int i = 0; i < 2; i++) {
    hs_connect_once(&h, DEV_B);
    hs_accept_once(&h);
  }
  CHECK(h.connect == RAIL_IN_PROGRESS && h.accept == RAIL_IN_PROGRESS);
  hs_set_connect_ms(&h, 1200);
  usleep(1300000);
  hs_connect_once(&h, DEV_B);
  hs_accept_once(&h);
  hs_set_connect_ms(&h, 30000);
  hs_run(&h, DEV_B);
  CHECK_MSG(h.connect == RAIL_OK && h.accept == RAIL_OK, "%s", hs_lines);
  hs_end(&h);
}

/* A listener without room drops connections that have said no more than HELLO. */
TEST(dropped_before_the_answer) {
  static struct raw r[2 * RAIL_NET_MAX_HALF_OPEN];
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  for (int i = 0; i < 1000 && !hs_half_open(&h)->count; i++) {
    hs_connect_once(&h, DEV_B);
    hs_accept_once(&h);
  }
  CHECK_INT(hs_half_open(&h)->count, 1);
  for (int i = 0; i < 2 * RAIL_NET_MAX_HALF_OPEN; i++) raw_hello(&r[i], &h);
  CHECK_INT(raw_verdict(&r[0], &h), RAIL_REASON_NONE); /* dropped, and what came before it, too */
  others_come_through(&h);
  for (int i = 0; i < 2 * RAIL_NET_MAX_HALF_OPEN; i++) raw_end(&r[i]);
  hs_end(&h);
}

/* And refuses those for which none makes room; until some do. */
TEST(busy_is_not_for_ever) {
  static struct raw r[RAIL_NET_MAX_HALF_OPEN];
  struct ib_offer offer = raw_offer(true);
  struct rail_message message;
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  for (int i = 0; i < RAIL_NET_MAX_HALF_OPEN; i++) {
    raw_hello(&r[i], &h);
    raw_send_offer(&r[i], &offer);
  }
  for (int i = 0; i < RAIL_NET_MAX_HALF_OPEN; i++) CHECK(raw_recv(&r[i], &h, &message));
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!hs_logged("too many half-open connections); trying again")) {
    hs_connect_once(&h, DEV_B);
    hs_accept_once(&h);
    ENSURE(!rail_deadline_passed(deadline) && h.connect == RAIL_IN_PROGRESS, "%d: %s", h.connect, hs_lines);
  }
  for (int i = 0; i < RAIL_NET_MAX_HALF_OPEN; i++) raw_end(&r[i]);
  others_come_through(&h);
  hs_end(&h);
}

/* A listener that is gone is no reason to go on trying. */
TEST(dropped_for_good) {
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A1);
  for (int i = 0; i < 10; i++) hs_connect_once(&h, DEV_B);
  CHECK_INT(h.connect, RAIL_IN_PROGRESS);
  hs_close_listen(&h);
  uint64_t begun = rail_now_ns();
  hs_run_connect(&h, DEV_B);
  CHECK_INT(h.connect, RAIL_REMOTE_ERROR);
  CHECK(hs_logged("the listener is gone"));
  CHECK(rail_now_ns() - begun < 10000000000ull); /* RAIL_IB_CONNECT_TIMEOUT is 30 s */
  hs_end(&h);
}

TEST(nobody_listens) {
  struct hs h;
  hs_begin(&h);
  ib_params.connect_ms = 200;
  hs_listen(&h, DEV_A1);
  hs_close_listen(&h);
  hs_run_connect(&h, DEV_B);
  CHECK_INT(h.connect, RAIL_REMOTE_ERROR);
  CHECK(hs_logged("no TCP connection from lo") && hs_logged("Connection refused"));
  hs_end(&h);
  hs_begin(&h); /* 0 is never */
  ib_params.connect_ms = 0;
  hs_listen(&h, DEV_A1);
  hs_close_listen(&h);
  uint64_t end = rail_deadline_in_ms(300);
  while (!rail_deadline_passed(end)) hs_connect_once(&h, DEV_B);
  CHECK_INT(h.connect, RAIL_IN_PROGRESS);
  hs_end(&h);
}

/* ---- ends at any time ---------------------------------------------------- */

/* After n calls of each the listener is closed, or the context finalized; nothing is left, and connect comes to an
 * end. */
TEST(ends_at_any_time) {
  for (int finalize = 0; finalize < 2; finalize++) {
    bool over = false;
    for (int n = 0; !over; n++) {
      struct hs h;
      hs_begin(&h);
      ib_params.connect_ms = 300;
      hs_listen(&h, DEV_FUSED);
      for (int i = 0; i < n; i++) {
        hs_connect_once(&h, DEV_B);
        hs_accept_once(&h);
      }
      over = h.connect == RAIL_OK && h.accept == RAIL_OK;
      if (!finalize) {
        hs_close_listen(&h);
        hs_run_connect(&h, DEV_B);
      }
      hs_end(&h);
      CHECK(n < 500);
    }
  }
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(silent_clients_delay_no_accept), TEST_CASE(hellos_that_are_refused), TEST_CASE(lying_peers_are_refused),
    TEST_CASE(an_offer_of_values_that_cannot_be), TEST_CASE(silent_peers), TEST_CASE(peers_that_die),
    TEST_CASE(a_peer_whose_writes_do_not_come), TEST_CASE(no_more_than_64_half_made), TEST_CASE(hellos_alone_make_room),
    TEST_CASE(listeners_that_lie), TEST_CASE(accept_may_take_any_time), TEST_CASE(stopped_in_the_middle),
    TEST_CASE(dropped_before_the_answer), TEST_CASE(busy_is_not_for_ever), TEST_CASE(dropped_for_good),
    TEST_CASE(nobody_listens), TEST_CASE(ends_at_any_time)};
  hs_main();
  return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
