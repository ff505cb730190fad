/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * HELLO of the ib plugin, whether it is taken, and the bodies of the messages
 * that follow. Input: which of them, the listener's flags, then the bytes.
 *
 * Held: what is taken is in its bounds, text is text, and encoding it again
 * gives the bytes that were there, but for those that are ignored.
 */
#include "test/fuzz/lib/fuzz.h"
#include "test/unit/ib_hello.h"

enum { HELLO, MESSAGE, REFUSED_PLAN, OFFER, QPS, KINDS };

static void check_name(const char *name) {
  FUZZ_CHECK(memchr(name, 0, IB_NAME_SIZE));
  for (; *name; name++) FUZZ_CHECK(*name > ' ' && *name <= '~');
}

static void hello(struct fuzz_in *in, unsigned int flags) {
  const struct rail_handle listener = {.secret = "fifteen letters", .naddrs = 1, .auth = flags & 1};
  struct rail_hello decoded;
  struct ib_hello_bytes wire;
  size_t have = in->left < sizeof wire ? in->left : sizeof wire;
  fuzz_fill(in, &wire, sizeof wire);
  enum rail_reason early = rail_hello_check_prefix(&ib_protocol, &listener, &wire, have);
  enum rail_reason reason = rail_hello_decode(&ib_protocol, &listener, &wire, &decoded);
  FUZZ_CHECK(reason < RAIL_REASON_COMMON && rail_reason_text(&ib_protocol, reason)[0]);
  FUZZ_CHECK(early <= RAIL_REASON_SECRET);
  if (early == RAIL_REASON_VERSION) FUZZ_CHECK(memcmp(wire.head.secret, listener.secret, RAIL_SECRET_SIZE) == 0);
  if (reason != RAIL_REASON_NONE) return;
  FUZZ_CHECK(early == RAIL_REASON_NONE && memcmp(wire.head.secret, listener.secret, RAIL_SECRET_SIZE) == 0);
}

/* Only as many bytes are shown to the decoder as rail_message_need asked for. */
static void message(struct fuzz_in *in) {
  struct rail_session session;
  struct rail_message m;
  enum rail_reason reason = RAIL_REASON_NONE;
  const char *why;
  uint8_t head[sizeof(struct rail_head_wire)];
  rail_session_init(&session, &ib_protocol, true, &(struct rail_hello){.streams = 1});
  fuzz_fill(in, head, sizeof head);
  size_t need = rail_message_need(&ib_protocol, head, sizeof head);
  FUZZ_CHECK(need >= sizeof head && need <= RAIL_MESSAGE_MAX);
  uint8_t *bytes = fuzz_guarded(need);
  memcpy(bytes, head, sizeof head);
  fuzz_fill(in, bytes + sizeof head, need - sizeof head);
  if (rail_message_decode(&session, bytes, &m, &reason, &why) != RAIL_OK) {
    FUZZ_CHECK(reason != RAIL_REASON_NONE && why[0]);
  } else {
    FUZZ_CHECK(m.size <= ib_protocol.max_body && m.type >= RAIL_MESSAGE_ANSWER);
    if (m.type == RAIL_MESSAGE_ANSWER) FUZZ_CHECK(rail_reason_text(&ib_protocol, m.reason)[0]);
  }
  fuzz_guarded_free(bytes, need);
}

static void refused_plan(const uint8_t *body, size_t size) {
  struct ib_refused_plan a;
  if (ib_refused_plan_decode(body, size, &a)) return;
  FUZZ_CHECK(a.rail_here < IB_MAX_RAILS && a.rail_there < IB_MAX_RAILS && ib_refusal_text(a.refusal)[0]);
  check_name(a.name);
}

static void offer(const uint8_t *body, size_t size) {
  struct ib_offer o;
  struct ib_offer_wire wire, mine;
  if (ib_offer_decode(body, size, &o)) return;
  FUZZ_CHECK(o.nrails >= 1 && o.nrails <= IB_MAX_RAILS);
  for (unsigned int i = 0; i < o.nrails; i++) check_name(o.rails[i].name);
  FUZZ_CHECK(ib_offer_encode(&o, &wire) == size);
  memset(&mine, 0, sizeof mine);
  memcpy(&mine, body, size);
  mine.zero = 0;
  memset(mine.zeros, 0, sizeof mine.zeros);
  for (unsigned int i = 0; i < o.nrails; i++) mine.rails[i].zero = mine.rails[i].zero2 = 0;
  FUZZ_CHECK(memcmp(&wire, &mine, sizeof wire) == 0);
  /* Whatever it offers, both sides make the same of it. */
  struct ib_offer other = o;
  struct ib_plan a, b;
  int r[4];
  other.sender = !o.sender;
  enum ib_refusal refusal = ib_plan_make(&o, &other, &a, &r[0], &r[1]);
  FUZZ_CHECK(ib_plan_make(&other, &o, &b, &r[2], &r[3]) == refusal && r[0] == r[3] && r[1] == r[2]);
  FUZZ_CHECK(a.nqps == b.nqps && a.nqps <= IB_MAX_QPS && (a.nqps > 0) == (refusal == IB_REFUSAL_NONE));
}

static void qps(const uint8_t *body, size_t size) {
  struct ib_qps q;
  if (ib_qps_decode(body, size, &q)) return;
  FUZZ_CHECK(q.nqps >= 1 && q.nqps <= IB_MAX_QPS && q.nrails >= 1 && q.nrails <= IB_MAX_RAILS && q.token);
  FUZZ_CHECK(q.ctrl_addr && q.ctrl_addr % 8 == 0 && q.verify_addr && q.verify_addr % 8 == 0);
  for (unsigned int i = 0; i < q.nqps; i++)
    FUZZ_CHECK(q.qps[i].qpn >= 2 && q.qps[i].qpn < 1u << 24 && q.qps[i].psn < 1u << 24);
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  unsigned int kind = fuzz_u8(&in) % KINDS, flags = fuzz_u8(&in);
  if (kind == HELLO) hello(&in, flags);
  if (kind == MESSAGE) message(&in);
  if (kind < REFUSED_PLAN) return;
  size = RAIL_MIN(in.left, ib_protocol.max_body + 8);
  uint8_t *body = fuzz_guarded(size); /* nothing beyond it may be read */
  fuzz_fill(&in, body, size);
  if (kind == REFUSED_PLAN) refused_plan(body, size);
  if (kind == OFFER) offer(body, size);
  if (kind == QPS) qps(body, size);
  fuzz_guarded_free(body, size);
}

static void seed(const char *name, unsigned int kind, const void *bytes, size_t size) {
  struct fuzz_out out = {.size = 0};
  fuzz_put8(&out, kind);
  fuzz_put8(&out, 0);
  fuzz_put(&out, bytes, size);
  fuzz_seed(name, out.bytes, out.size);
}

void fuzz_make_seeds(void) {
  const struct rail_handle listener = {.secret = "fifteen letters", .naddrs = 1};
  struct rail_hello hello;
  struct rail_session session;
  struct ib_refused_plan_wire plan_wire;
  uint8_t bytes[RAIL_MESSAGE_MAX], body[88] = {0};
  struct ib_offer_wire offer_wire;
  struct ib_qps_wire qps_wire;
  const struct ib_hello_bytes hello_wire = ib_make_hello(&listener, "somebody's name", &hello);
  seed("hello", HELLO, &hello_wire, sizeof hello_wire);
  rail_session_init(&session, &ib_protocol, false, &hello);
  FUZZ_CHECK(rail_message_encode(&session, IB_MESSAGE_QPS, body, sizeof body, bytes) == RAIL_OK);
  seed("message", MESSAGE, bytes, rail_message_size(sizeof body));
  const struct ib_refused_plan a = {.refusal = IB_REFUSAL_LINK, .rail_there = 1, .name = "mlx5_0"};
  ib_refused_plan_encode(&a, &plan_wire);
  seed("refused-plan", REFUSED_PLAN, &plan_wire, sizeof plan_wire);
  rail_refusal_encode(&ib_protocol, IB_REASON_PLAN, &plan_wire, bytes);
  seed("refusal", MESSAGE, bytes, rail_answer_size(&ib_protocol));
  struct ib_offer o = {.sender = true, .nrails = 2, .qps_per_rail = 2, .max_qps = 128, .ece = true, .verify = true,
                       .max_write_log2 = 30, .recv_depth = IB_RECV_DEPTH, .timeout = 20, .process = 12345};
  for (unsigned int i = 0; i < 2; i++) {
    o.rails[i] = (struct ib_offer_rail){
      .roce = true, .port = 1, .mtu = 5, .gid_type = 2, .speed = 400000, .name = "mlx"};
    memcpy(o.rails[i].gid, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\1", 16);
  }
  seed("offer", OFFER, &offer_wire, ib_offer_encode(&o, &offer_wire));
  struct ib_qps q = {.nqps = 2, .nrails = 1, .token = 1, .ctrl_addr = 4096, .verify_addr = 8192, .rkeys = {7},
                     .qps = {{.qpn = 17}, {.qpn = 18, .psn = 5}}};
  seed("queue-pairs", QPS, &qps_wire, ib_qps_encode(&q, &qps_wire));
}
