/* SPDX-License-Identifier: Apache-2.0
 * Handle and handshake messages: round trips, every field out of its range, truncation, other versions. */
#include "test/harness/tap.h"
#include "test/unit/ib_hello.h"

/* ---- the handle ---------------------------------------------------------- */

static struct rail_handle model(void) {
  struct rail_handle h = {.auth = true, .secret = "fifteen letters", .naddrs = 1, .attempt = 0x123456789};
  struct ib_hints hints = {.n = 2};
  CHECK_OK(rail_addr_parse("10.1.2.3:4711", &h.addrs[0]));
  for (int i = 0; i < 16; i++) hints.gids[0][i] = hints.gids[1][i] = (uint8_t)(i + 1);
  ib_hints_encode(&hints, &h);
  return h;
}

TEST(handle_round_trip) {
  struct rail_handle in = model(), out;
  struct ib_hints hints;
  uint8_t bytes[RAIL_HANDLE_SIZE + 1];
  const char *why;
  memset(bytes, 0xaa, sizeof bytes);
  rail_handle_encode(&ib_protocol, &in, bytes + 1);
  CHECK(memcmp(bytes + 1, "RBKH\5\1\1\2fifteen letters\0\4\0\x12\x67", 28) == 0);
  CHECK_MSG(ib_handle_decode(bytes + 1, &out, &hints, &why), "%s", why);
  CHECK(out.auth && hints.n == 2 && out.attempt == in.attempt);
  CHECK(memcmp(out.secret, in.secret, sizeof in.secret) == 0 && memcmp(hints.gids, in.payload, sizeof hints.gids) == 0);
  CHECK(rail_addr_same_host(&in.addrs[0], &out.addrs[0]) && rail_addr_port(&out.addrs[0]) == 4711);
  rail_handle_set_attempt(bytes + 1, 0);
  CHECK(ib_handle_decode(bytes + 1, &out, &hints, &why) && out.attempt == 0);
  memset(&in.addrs[0], 0, sizeof in.addrs[0]);
  CHECK_OK(rail_addr_parse("[fe80::1%3]:1", &in.addrs[0]));
  rail_handle_encode(&ib_protocol, &in, bytes);
  CHECK(ib_handle_decode(bytes, &out, &hints, &why) && rail_addr_same_host(&in.addrs[0], &out.addrs[0]));
}

static void bad_byte(size_t at, uint8_t value) {
  struct rail_handle in = model(), out;
  struct ib_hints hints;
  uint8_t bytes[RAIL_HANDLE_SIZE];
  const char *why = NULL;
  rail_handle_encode(&ib_protocol, &in, bytes);
  bytes[at] = value;
  CHECK_MSG(!ib_handle_decode(bytes, &out, &hints, &why), "byte %zu = %u was taken", at, value);
  CHECK(why && why[0]);
}

TEST(handle_refuses) {
  bad_byte(0, 'X');
  bad_byte(4, IB_WIRE_VERSION + 1);
  bad_byte(4, IB_WIRE_VERSION - 1);
  bad_byte(5, 2);
  bad_byte(6, 0);
  bad_byte(6, 2); /* addresses */
  bad_byte(7, IB_HANDLE_GIDS + 1);
  bad_byte(7, 1); /* then the second GID is no longer zero */
  bad_byte(24, 5);   /* family */
  bad_byte(25, 1);
  bad_byte(28, 1);  /* a scope of an IPv4 address */
  bad_byte(112, 1);
  bad_byte(119, 1);
  struct rail_handle in = model(), out;
  struct ib_hints hints;
  uint8_t bytes[RAIL_HANDLE_SIZE];
  const char *why = NULL;
  rail_addr_set_port(&in.addrs[0], 0);
  rail_handle_encode(&ib_protocol, &in, bytes);
  CHECK(!ib_handle_decode(bytes, &out, &hints, &why) && why);
}

/* ---- HELLO --------------------------------------------------------------- */

TEST(hello) {
  struct rail_handle listener = {.secret = "fifteen letters", .naddrs = 1};
  struct rail_hello decoded;
  struct ib_hello_bytes good = ib_make_hello(&listener, "somebody", &decoded), w;
  CHECK(memcmp(&good, "RBK1\5\0\x60\0fifteen letters\0somebody", 32) == 0);
#define CHECK_HELLO(change, reason)                                             \
  do {                                                                          \
    w = good;                                                                   \
    change;                                                                     \
    CHECK_INT(rail_hello_decode(&ib_protocol, &listener, &w, &decoded), reason); \
  } while (0)
  CHECK_HELLO((void)0, RAIL_REASON_NONE);
  CHECK_HELLO(w.head.magic[0] ^= 1, RAIL_REASON_GARBAGE);
  CHECK_HELLO(w.head.version ^= 2, RAIL_REASON_VERSION);
  CHECK_HELLO(w.head.length ^= 1, RAIL_REASON_MESSAGE);
  CHECK_HELLO(w.head.flags = 4, RAIL_REASON_MESSAGE);
  CHECK_HELLO(w.head.secret[15] ^= 1, RAIL_REASON_SECRET);
  CHECK_HELLO(w.head.flags = RAIL_HELLO_AUTH, RAIL_REASON_AUTH);
  CHECK_HELLO(w.head.stream = 1, RAIL_REASON_MESSAGE);
  listener.auth = true;
  CHECK_HELLO((void)0, RAIL_REASON_AUTH);
#undef CHECK_HELLO
  for (size_t have = 0; have <= sizeof good; have++)
    CHECK_INT(rail_hello_check_prefix(&ib_protocol, &listener, &good, have), RAIL_REASON_NONE);
  CHECK_INT(rail_hello_check_prefix(&ib_protocol, &listener, "G", 1), RAIL_REASON_GARBAGE);
}

/* Of another version no more is known than where its secret is, and nothing is said of ours before that was seen. */
TEST(hello_of_another_version) {
  struct rail_handle listener = {.secret = "fifteen letters", .naddrs = 1};
  struct rail_hello decoded;
  for (int wrong = 0; wrong < 2; wrong++) {
    struct ib_hello_bytes w = ib_make_hello(&listener, "somebody", &decoded);
    w.head.version ^= 2;
    w.head.length = 7;
    w.head.flags = 0xff;
    if (wrong) w.head.secret[15] ^= 1;
    for (size_t have = 0; have < RAIL_HELLO_PREFIX; have++)
      CHECK_INT(rail_hello_check_prefix(&ib_protocol, &listener, &w, have), RAIL_REASON_NONE);
    enum rail_reason reason = wrong ? RAIL_REASON_SECRET : RAIL_REASON_VERSION;
    for (size_t have = RAIL_HELLO_PREFIX; have <= sizeof w; have++)
      CHECK_INT(rail_hello_check_prefix(&ib_protocol, &listener, &w, have), reason);
    CHECK_INT(rail_hello_decode(&ib_protocol, &listener, &w, &decoded), reason);
    w = ib_make_hello(&listener, "somebody", &decoded); /* of ours, and not what ours says */
    w.head.length ^= 1;
    if (wrong) w.head.secret[0] ^= 1;
    CHECK_INT(rail_hello_decode(&ib_protocol, &listener, &w, &decoded),
              wrong ? RAIL_REASON_SECRET : RAIL_REASON_MESSAGE);
  }
}

/* ---- heads and answers --------------------------------------------------- */

static rail_result_t decode(const void *bytes, struct rail_message *message, enum rail_reason *reason) {
  struct rail_session session;
  const char *why;
  *reason = RAIL_REASON_NONE;
  rail_session_init(&session, &ib_protocol, true, &(struct rail_hello){.streams = 1});
  return rail_message_decode(&session, bytes, message, reason, &why);
}

TEST(heads) {
  uint8_t bytes[RAIL_MESSAGE_MAX] = {0}, body[88] = {1};
  struct rail_head_wire head, h;
  struct rail_session session;
  struct rail_message message;
  enum rail_reason reason;
  rail_session_init(&session, &ib_protocol, false, &(struct rail_hello){.streams = 1});
  CHECK_OK(rail_message_encode(&session, IB_MESSAGE_QPS, body, sizeof body, bytes));
  memcpy(&head, bytes, sizeof head);
  CHECK_INT(rail_message_need(&ib_protocol, bytes, sizeof head), sizeof head + 88 + RAIL_MAC_SIZE);
  CHECK_OK(decode(bytes, &message, &reason));
  CHECK(message.type == IB_MESSAGE_QPS && message.size == 88 && message.version == IB_WIRE_VERSION);
#define BAD(change)                                                                   \
  do {                                                                                \
    h = head;                                                                         \
    change;                                                                           \
    memcpy(bytes, &h, sizeof h);                                                      \
    CHECK_INT(rail_message_need(&ib_protocol, bytes, sizeof bytes), sizeof h);        \
    CHECK(decode(bytes, &message, &reason) != RAIL_OK && reason == RAIL_REASON_MESSAGE); \
  } while (0)
  BAD(h.magic[3] ^= 1);
  BAD(h.version = IB_WIRE_VERSION + 1);
  BAD(h.version = IB_WIRE_VERSION - 1);
  BAD(h.type = 0);
  BAD(h.length = RAIL_MAC_SIZE - 1);
  BAD(h.length = sizeof(struct ib_qps_wire) + RAIL_MAC_SIZE + 1);
  BAD(h.length = 0xffffffff);
#undef BAD
}

TEST(refusals) {
  uint8_t bytes[RAIL_ANSWER_MAX];
  struct rail_head_wire head;
  struct rail_message message;
  enum rail_reason reason;
  const struct ib_refused_plan in = {.refusal = IB_REFUSAL_LINK, .rail_here = 2, .rail_there = -1, .name = "mlx5_0:1"};
  struct ib_refused_plan out;
  struct ib_refused_plan_wire wire;
  ib_refused_plan_encode(&in, &wire);
  rail_refusal_encode(&ib_protocol, IB_REASON_PLAN, &wire, bytes);
  CHECK_INT(rail_message_need(&ib_protocol, bytes, sizeof bytes), rail_answer_size(&ib_protocol));
  CHECK_OK(decode(bytes, &message, &reason));
  CHECK(message.type == RAIL_MESSAGE_ANSWER && message.reason == IB_REASON_PLAN);
  CHECK(ib_refused_plan_decode(message.body, message.size, &out) == NULL);
  CHECK(out.refusal == in.refusal && out.rail_here == 2 && out.rail_there == -1);
  CHECK_STR(out.name, in.name);
  wire.rail_here = IB_MAX_RAILS;
  CHECK(ib_refused_plan_decode(&wire, sizeof wire, &out) == NULL && out.rail_here == -1);
  CHECK(ib_refused_plan_decode(&wire, 0, &out) != NULL && ib_refused_plan_decode(&wire, sizeof wire - 1, &out) != NULL);
  wire.name[3] = '\n';
  CHECK(ib_refused_plan_decode(&wire, sizeof wire, &out) != NULL);
  memset(wire.name, 'x', sizeof wire.name);
  CHECK(ib_refused_plan_decode(&wire, sizeof wire, &out) != NULL);
  /* Of another version, and of another form: the reason is understood. */
  memcpy(&head, bytes, sizeof head);
  head.version = 9;
  head.length = RAIL_MAC_SIZE + 2;
  memcpy(bytes, &head, sizeof head);
  CHECK_OK(decode(bytes, &message, &reason));
  CHECK(message.reason == IB_REASON_PLAN && message.size == 0 && message.version == 9);
  head.length = RAIL_MAC_SIZE + 1;
  memcpy(bytes, &head, sizeof head);
  CHECK(decode(bytes, &message, &reason) != RAIL_OK && reason == RAIL_REASON_MESSAGE);
  rail_refusal_encode(&ib_protocol, RAIL_REASON_SECRET, NULL, bytes);
  CHECK_OK(decode(bytes, &message, &reason));
  /* Our version is sent only to peers that know the secret. */
  CHECK(message.reason == RAIL_REASON_SECRET && message.version == 0);
  for (unsigned int r = 0; r < RAIL_REASON_PLUGIN + 6; r++) CHECK(*rail_reason_text(&ib_protocol, r));
}

/* ---- OFFER --------------------------------------------------------------- */

static struct ib_offer any_offer(unsigned int nrails) {
  struct ib_offer o = {.sender = true, .nrails = nrails, .qps_per_rail = 3, .max_qps = 77, .split = true, .ece = true,
                       .verify = true, .failover = true, .max_write_log2 = 30, .recv_depth = 288, .timeout = 20,
                       .sl = 3, .traffic_class = 96, .process = 0x0123456789abcdef, .rdmacm = true, .no_imm = true,
                       .two_sided = true,
                       .cm_token = 0xfedcba9876543210};
  for (unsigned int i = 0; i < nrails; i++) {
    o.rails[i] = (struct ib_offer_rail){.roce = i % 3 == 1, .iwarp = i % 3 == 2, .port = (uint8_t)(i + 1),
                                        .mtu = 4, .gid_type = 2, .grh_required = i % 3 == 0,
                                        .lid = (uint16_t)(i * 1000), .speed = 400000,
                                        .subnet_prefix = 0xfe80000000000000ull + i};
    memset(o.rails[i].gid, (int)i + 1, sizeof o.rails[i].gid);
    snprintf(o.rails[i].name, sizeof o.rails[i].name, "mlx5_%u", i);
  }
  return o;
}

TEST(offers_round_trip) {
  for (unsigned int n = 1; n <= IB_MAX_RAILS; n++) {
    struct ib_offer in = any_offer(n), out;
    struct ib_offer_wire wire, again;
    memset(&wire, 0xaa, sizeof wire);
    size_t size = ib_offer_encode(&in, &wire);
    CHECK(ib_offer_decode(&wire, size, &out) == NULL);
    CHECK_INT(ib_offer_encode(&out, &again), size);
    CHECK(memcmp(&wire, &again, sizeof wire) == 0);
    CHECK(out.sender && out.split && out.ece && out.verify && out.failover && out.rdmacm);
    CHECK(out.no_imm && out.two_sided);
    CHECK(out.cm_token == in.cm_token && out.rails[n - 1].roce == in.rails[n - 1].roce);
    CHECK(out.rails[n - 1].iwarp == in.rails[n - 1].iwarp);
    CHECK(out.max_qps == 77 && out.traffic_class == 96);
    CHECK(out.timeout == 20 && out.process == in.process);
    CHECK(out.rails[n - 1].subnet_prefix == in.rails[n - 1].subnet_prefix && out.rails[n - 1].speed == 400000);
    CHECK_STR(out.rails[n - 1].name, in.rails[n - 1].name);
    for (size_t less = 0; less < size; less++) CHECK(ib_offer_decode(&wire, less, &out) != NULL);
    CHECK(ib_offer_decode(&wire, size + 1, &out) != NULL);
  }
}

TEST(offers_refused) {
  struct ib_offer in = any_offer(2), out;
  struct ib_offer_wire good, w;
  size_t size = ib_offer_encode(&in, &good);
#define BAD(change)                                     \
  do {                                                  \
    w = good;                                           \
    change;                                             \
    CHECK(ib_offer_decode(&w, size, &out) != NULL);     \
  } while (0)
  BAD(w.flags = 256);
  BAD(w.nrails = 0);
  BAD(w.nrails = 1);
  BAD(w.nrails = 9);
  BAD(w.nrails = 0xffff);
  BAD(w.rails[1].flags = 8);
  BAD(w.rails[1].flags = IB_RAIL_ROCE | IB_RAIL_IWARP);
  BAD(w.rails[1].name[0] = ' ');
  BAD(w.rails[1].name[0] = (char)0x80);
  BAD(w.rails[1].name[63] = 'x');
  BAD(memset(w.rails[0].name, 'x', sizeof w.rails[0].name));
#undef BAD
  /* A longer name is cut, and is text still. */
  memset(in.rails[0].name, 'n', sizeof in.rails[0].name);
  ib_offer_encode(&in, &w);
  CHECK(ib_offer_decode(&w, size, &out) == NULL && strlen(out.rails[0].name) == IB_NAME_SIZE - 1);
}

/* ---- QPS ----------------------------------------------------------------- */

static struct ib_qps any_qps(unsigned int n) {
  struct ib_qps q = {.nqps = n, .nrails = 2, .token = 1, .ctrl_addr = 0x1000, .verify_addr = 0x2000, .rkeys = {5, 6},
                     .cm_ports = {7, 0xffff}};
  for (unsigned int i = 0; i < n; i++) q.qps[i] = (struct ib_qp_info){2 + i, 0xffffff - i, 0x15b3, i, ~i};
  return q;
}

TEST(qps_round_trip) {
  for (unsigned int n = 1; n <= IB_MAX_QPS; n += 127) {
    struct ib_qps in = any_qps(n), out;
    struct ib_qps_wire wire;
    memset(&wire, 0xaa, sizeof wire);
    size_t size = ib_qps_encode(&in, &wire);
    CHECK(size <= ib_protocol.max_body);
    CHECK(ib_qps_decode(&wire, size, &out) == NULL);
    CHECK(memcmp(&in, &out, sizeof in) == 0);
    for (size_t less = 0; less < size; less++) CHECK(ib_qps_decode(&wire, less, &out) != NULL);
    CHECK(ib_qps_decode(&wire, size + 1, &out) != NULL);
  }
}

TEST(qps_refused) {
  struct ib_qps in = any_qps(2), out;
  struct ib_qps_wire good, w;
  size_t size = ib_qps_encode(&in, &good);
#define BAD(change)                                    \
  do {                                                 \
    w = good;                                          \
    change;                                            \
    CHECK(ib_qps_decode(&w, size, &out) != NULL);      \
  } while (0)
  BAD(w.nqps = 0);
  BAD(w.nqps = 1);
  BAD(w.nqps = 129);
  BAD(w.nrails = 0);
  BAD(w.nrails = 9);
  BAD(w.token = 0);
  BAD(w.ctrl_addr = 0);
  BAD(w.ctrl_addr = 4);
  BAD(w.verify_addr = 0);
  BAD(w.verify_addr = 1);
  BAD(w.qps[1].qpn = 0);
  BAD(w.qps[1].qpn = 1);
  BAD(w.qps[1].qpn = 1u << 24);
  BAD(w.qps[0].psn = 1u << 24);
#undef BAD
}

/* ---- private data of the RDMA CM ------------------------------------------ */

TEST(private_data) {
  struct ib_cm_wire wire;
  uint8_t longer[56] = {0};
  unsigned int qp = 0;
  memset(&wire, 0xaa, sizeof wire);
  ib_cm_encode(127, 0x1122334455667788, &wire);
  CHECK(memcmp(&wire, "RBKC\5\0\x7f\0\x88\x77\x66\x55\x44\x33\x22\x11", sizeof wire) == 0);
  memcpy(longer, &wire, sizeof wire); /* InfiniBand brings zeros behind it */
  CHECK(ib_cm_decode(longer, sizeof longer, 0x1122334455667788, &qp) == NULL && qp == 127);
  CHECK(ib_cm_decode(&wire, sizeof wire, 0x1122334455667788, &qp) == NULL);
  CHECK(ib_cm_decode(&wire, sizeof wire - 1, 0x1122334455667788, &qp) && ib_cm_decode(NULL, 0, 1, &qp));
  CHECK(ib_cm_decode(&wire, sizeof wire, 0x1122334455667789, &qp));
  for (size_t i = 0; i < sizeof wire; i++) {
    struct ib_cm_wire changed = wire;
    ((uint8_t *)&changed)[i] ^= 0x80;
    CHECK(ib_cm_decode(&changed, sizeof changed, 0x1122334455667788, &qp)); /* QP 255 is too many, too */
  }
}

TEST_MAIN(TEST_CASE(handle_round_trip), TEST_CASE(handle_refuses), TEST_CASE(hello),
          TEST_CASE(hello_of_another_version), TEST_CASE(heads),
          TEST_CASE(refusals), TEST_CASE(offers_round_trip),
          TEST_CASE(offers_refused), TEST_CASE(qps_round_trip), TEST_CASE(qps_refused), TEST_CASE(private_data))
