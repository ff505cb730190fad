/* SPDX-License-Identifier: Apache-2.0
 * Handle and handshake messages: round trips, every field out of its range, truncation, other versions. */
#include "plugin/ib/ib_wire.h"
#include "test/harness/tap.h"

/* ---- the handle ---------------------------------------------------------- */

static struct ib_handle model(void) {
  struct ib_handle h = {.flags = IB_HANDLE_AUTH, .secret = "fifteen letters", .ngids = 2, .attempt = 0x123456789};
  CHECK_OK(rail_addr_parse("10.1.2.3:4711", &h.addr));
  for (int i = 0; i < 16; i++) h.gids[0][i] = h.gids[1][i] = (uint8_t)(i + 1);
  return h;
}

TEST(handle_round_trip) {
  struct ib_handle in = model(), out;
  uint8_t bytes[RAIL_NET_HANDLE_SIZE + 1];
  const char *why;
  memset(bytes, 0xaa, sizeof bytes);
  ib_handle_encode(&in, bytes + 1);
  CHECK_MSG(ib_handle_decode(bytes + 1, &out, &why), "%s", why);
  CHECK(out.flags == in.flags && out.ngids == 2 && out.attempt == in.attempt);
  CHECK(memcmp(out.secret, in.secret, sizeof in.secret) == 0 && memcmp(out.gids, in.gids, sizeof in.gids) == 0);
  CHECK(rail_addr_same_host(&in.addr, &out.addr) && rail_addr_port(&out.addr) == 4711);
  ib_handle_set_attempt(bytes + 1, 0);
  CHECK(ib_handle_decode(bytes + 1, &out, &why) && out.attempt == 0);
  memset(&in.addr, 0, sizeof in.addr);
  CHECK_OK(rail_addr_parse("[fe80::1%3]:1", &in.addr));
  ib_handle_encode(&in, bytes);
  CHECK(ib_handle_decode(bytes, &out, &why) && rail_addr_same_host(&in.addr, &out.addr));
}

static void bad_byte(size_t at, uint8_t value) {
  struct ib_handle in = model(), out;
  uint8_t bytes[RAIL_NET_HANDLE_SIZE];
  const char *why = NULL;
  ib_handle_encode(&in, bytes);
  bytes[at] = value;
  CHECK_MSG(!ib_handle_decode(bytes, &out, &why), "byte %zu = %u was taken", at, value);
  CHECK(why && why[0]);
}

TEST(handle_refuses) {
  bad_byte(0, 'X');
  bad_byte(4, IB_WIRE_VERSION + 1);
  bad_byte(5, 2);
  bad_byte(6, IB_HANDLE_GIDS + 1);
  bad_byte(6, 1); /* then the second GID is no longer zero */
  bad_byte(7, 1);
  bad_byte(8, 5);   /* family */
  bad_byte(9, 1);
  bad_byte(12, 1);  /* a scope of an IPv4 address */
  bad_byte(112, 1);
  bad_byte(119, 1);
  struct ib_handle in = model(), out;
  uint8_t bytes[RAIL_NET_HANDLE_SIZE];
  const char *why = NULL;
  rail_addr_set_port(&in.addr, 0);
  ib_handle_encode(&in, bytes);
  CHECK(!ib_handle_decode(bytes, &out, &why) && why);
}

/* ---- HELLO --------------------------------------------------------------- */

TEST(hello) {
  struct ib_handle listener = {.secret = "fifteen letters"};
  uint8_t comm_id[IB_COMM_ID_SIZE] = "somebody";
  struct ib_hello_wire good, w;
  ib_hello_encode(listener.secret, comm_id, &good);
  CHECK_INT(ib_hello_check(&good, &listener), IB_REASON_NONE);
#define JUDGE(change, reason)                       \
  do {                                              \
    w = good;                                       \
    change;                                         \
    CHECK_INT(ib_hello_check(&w, &listener), reason); \
  } while (0)
  JUDGE(w.magic ^= 1, IB_REASON_GARBAGE);
  JUDGE(w.version ^= 3, IB_REASON_VERSION);
  JUDGE(w.length ^= 1, IB_REASON_VERSION);
  JUDGE(w.flags = 2, IB_REASON_VERSION);
  JUDGE(w.secret[15] ^= 1, IB_REASON_SECRET);
  JUDGE(w.flags = IB_HELLO_AUTH, IB_REASON_AUTH);
  listener.flags = IB_HANDLE_AUTH;
  JUDGE((void)0, IB_REASON_AUTH);
  JUDGE(w.flags = IB_HELLO_AUTH, IB_REASON_NONE);
#undef JUDGE
  for (size_t have = 0; have <= sizeof good; have++)
    CHECK_INT(ib_hello_plausible(&good, have, &listener), IB_REASON_NONE);
  CHECK_INT(ib_hello_plausible("G", 1, &listener), IB_REASON_GARBAGE);
}

/* Of another version no more is known than where its secret is, and nothing is said of ours before that was seen. */
TEST(hello_of_another_version) {
  struct ib_handle listener = {.secret = "fifteen letters"};
  uint8_t comm_id[IB_COMM_ID_SIZE] = "somebody";
  for (int wrong = 0; wrong < 2; wrong++) {
    struct ib_hello_wire w;
    ib_hello_encode(listener.secret, comm_id, &w);
    w.version ^= 3;
    w.length = 7;
    w.flags = 0xff;
    if (wrong) w.secret[15] ^= 1;
    for (size_t have = 0; have < IB_HELLO_COMMON; have++)
      CHECK_INT(ib_hello_plausible(&w, have, &listener), IB_REASON_NONE);
    enum ib_reason reason = wrong ? IB_REASON_SECRET : IB_REASON_VERSION;
    for (size_t have = IB_HELLO_COMMON; have <= sizeof w; have++)
      CHECK_INT(ib_hello_plausible(&w, have, &listener), reason);
    CHECK_INT(ib_hello_check(&w, &listener), reason);
    ib_hello_encode(listener.secret, comm_id, &w); /* of ours, and not what ours says */
    w.length ^= 1;
    if (wrong) w.secret[0] ^= 1;
    CHECK_INT(ib_hello_check(&w, &listener), reason);
  }
}

/* ---- heads and answers --------------------------------------------------- */

TEST(heads) {
  struct ib_head_wire head, h;
  unsigned int type;
  size_t body;
  ib_head_encode(IB_MESSAGE_QPS, 88, &head);
  CHECK(ib_head_decode(&head, &type, &body) == NULL && type == IB_MESSAGE_QPS && body == 88);
#define BAD(change)                                  \
  do {                                               \
    h = head;                                        \
    change;                                          \
    CHECK(ib_head_decode(&h, &type, &body) != NULL); \
    CHECK_INT(body, 0);                              \
  } while (0)
  BAD(h.magic ^= 1);
  BAD(h.version = IB_WIRE_VERSION + 1);
  BAD(h.version = IB_WIRE_VERSION - 1);
  BAD(h.type = 0);
  BAD(h.type = IB_MESSAGE_READY + 1);
  BAD(h.length = RAIL_MAC_SIZE - 1);
  BAD(h.length = IB_BODY_MAX + RAIL_MAC_SIZE + 1);
  BAD(h.length = 0xffffffff);
#undef BAD
  h = head;
  h.version = 2;
  h.type = IB_MESSAGE_ANSWER; /* a refusal from another version is understood */
  CHECK(ib_head_decode(&h, &type, &body) == NULL);
}

TEST(answers) {
  struct ib_answer in = {.reason = IB_REASON_PLAN, .refusal = IB_REFUSAL_LINK, .rail_here = 2, .rail_there = -1,
                         .nonce = "a random number", .name = "mlx5_0:1"}, out;
  struct ib_answer_wire wire;
  ib_answer_encode(&in, &wire);
  CHECK(ib_answer_decode(&wire, sizeof wire, &out) == NULL);
  CHECK(out.reason == in.reason && out.refusal == in.refusal && out.rail_here == 2 && out.rail_there == -1);
  CHECK_STR(out.name, in.name);
  CHECK(memcmp(out.nonce, in.nonce, sizeof in.nonce) == 0);
  CHECK(ib_answer_decode(&wire, 0, &out) != NULL && ib_answer_decode(&wire, 1, &out) != NULL);
  CHECK(ib_answer_decode(&wire, 2, &out) == NULL && out.reason == IB_REASON_PLAN && out.rail_here == -1);
  wire.rail_here = IB_MAX_RAILS;
  CHECK(ib_answer_decode(&wire, sizeof wire, &out) == NULL && out.rail_here == -1);
  wire.name[3] = '\n';
  CHECK(ib_answer_decode(&wire, sizeof wire, &out) != NULL);
  memset(wire.name, 'x', sizeof wire.name);
  CHECK(ib_answer_decode(&wire, sizeof wire, &out) != NULL);
  wire.reason = 0;
  CHECK(ib_answer_decode(&wire, sizeof wire - 1, &out) != NULL);
  for (unsigned int i = 0; i <= IB_REASON_COUNT; i++) CHECK(ib_reason_text(i)[0]);
}

TEST(refusals_are_whole_messages) {
  struct ib_answer in = {.reason = IB_REASON_SECRET, .rail_here = -1, .rail_there = -1}, out;
  uint8_t bytes[IB_REFUSAL_SIZE];
  struct ib_head_wire head;
  unsigned int type;
  size_t body;
  ib_refusal_encode(&in, bytes);
  memcpy(&head, bytes, sizeof head);
  CHECK(ib_head_decode(&head, &type, &body) == NULL && type == IB_MESSAGE_ANSWER);
  CHECK_INT(sizeof head + body + RAIL_MAC_SIZE, sizeof bytes);
  CHECK(ib_answer_decode(bytes + sizeof head, body, &out) == NULL && out.reason == IB_REASON_SECRET);
  CHECK_INT(le16toh(head.version), 0); /* ours is told to those who know the secret */
  in.reason = IB_REASON_VERSION;
  ib_refusal_encode(&in, bytes);
  memcpy(&head, bytes, sizeof head);
  CHECK_INT(le16toh(head.version), IB_WIRE_VERSION);
}

/* ---- OFFER --------------------------------------------------------------- */

static struct ib_offer any_offer(unsigned int nrails) {
  struct ib_offer o = {.sender = true, .nrails = nrails, .qps_per_rail = 3, .max_qps = 77, .split = true, .ece = true,
                       .verify = true, .max_write_log2 = 30, .recv_depth = 288, .timeout = 20, .sl = 3,
                       .traffic_class = 96, .process = 0x0123456789abcdef};
  for (unsigned int i = 0; i < nrails; i++) {
    o.rails[i] = (struct ib_offer_rail){.roce = i % 2, .port = (uint8_t)(i + 1), .mtu = 4, .gid_type = 2,
                                        .grh_required = i % 3 == 0, .lid = (uint16_t)(i * 1000), .speed = 400000,
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
    CHECK(out.sender && out.split && out.ece && out.verify && out.max_qps == 77 && out.traffic_class == 96);
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
  BAD(w.flags = 16);
  BAD(w.nrails = 0);
  BAD(w.nrails = 1);
  BAD(w.nrails = 9);
  BAD(w.nrails = 0xffff);
  BAD(w.rails[1].flags = 4);
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
  struct ib_qps q = {.nqps = n, .nrails = 2, .token = 1, .ctrl_addr = 0x1000, .verify_addr = 0x2000, .rkeys = {5, 6}};
  for (unsigned int i = 0; i < n; i++) q.qps[i] = (struct ib_qp_info){2 + i, 0xffffff - i, 0x15b3, i, ~i};
  return q;
}

TEST(qps_round_trip) {
  for (unsigned int n = 1; n <= IB_MAX_QPS; n += 127) {
    struct ib_qps in = any_qps(n), out;
    struct ib_qps_wire wire;
    memset(&wire, 0xaa, sizeof wire);
    size_t size = ib_qps_encode(&in, &wire);
    CHECK(size <= IB_BODY_MAX);
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

TEST_MAIN(TEST_CASE(handle_round_trip), TEST_CASE(handle_refuses), TEST_CASE(hello),
          TEST_CASE(hello_of_another_version), TEST_CASE(heads),
          TEST_CASE(answers), TEST_CASE(refusals_are_whole_messages), TEST_CASE(offers_round_trip),
          TEST_CASE(offers_refused), TEST_CASE(qps_round_trip), TEST_CASE(qps_refused))
