/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * HELLO of the ib plugin and the judgement on it, and the bodies of the messages
 * that follow. Input: which of them, the listener's flags, then the bytes.
 *
 * Held: what is taken is in its bounds, text is text, and encoding it again
 * gives the bytes that were there, but for those that are ignored.
 */
#include "plugin/ib/ib_wire.h"
#include "test/fuzz/lib/fuzz.h"

enum { HELLO, HEAD, ANSWER, OFFER, QPS, KINDS };

static void check_name(const char *name) {
  FUZZ_CHECK(memchr(name, 0, IB_NAME_SIZE));
  for (; *name; name++) FUZZ_CHECK(*name > ' ' && *name <= '~');
}

static void hello(struct fuzz_in *in, unsigned int flags) {
  const struct ib_handle listener = {.secret = "fifteen letters", .flags = flags & IB_HANDLE_AUTH};
  struct ib_hello_wire wire;
  size_t have = in->left < sizeof wire ? in->left : sizeof wire;
  fuzz_fill(in, &wire, sizeof wire);
  enum ib_reason plausible = ib_hello_plausible(&wire, have, &listener), reason = ib_hello_check(&wire, &listener);
  FUZZ_CHECK(reason < IB_REASON_COUNT && ib_reason_text(reason)[0]);
  FUZZ_CHECK(plausible <= IB_REASON_SECRET);
  if (plausible == IB_REASON_VERSION) FUZZ_CHECK(memcmp(wire.secret, listener.secret, sizeof wire.secret) == 0);
  if (reason != IB_REASON_NONE) return;
  FUZZ_CHECK(plausible == IB_REASON_NONE && memcmp(wire.secret, listener.secret, sizeof wire.secret) == 0);
}

static void head(struct fuzz_in *in) {
  struct ib_head_wire wire;
  unsigned int type;
  size_t body;
  fuzz_fill(in, &wire, sizeof wire);
  const char *why = ib_head_decode(&wire, &type, &body);
  FUZZ_CHECK(body <= IB_BODY_MAX && (!why || (body == 0 && why[0])));
  if (!why) FUZZ_CHECK(type >= IB_MESSAGE_ANSWER && type <= IB_MESSAGE_READY);
}

static void answer(const uint8_t *body, size_t size) {
  struct ib_answer a;
  if (ib_answer_decode(body, size, &a)) return;
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
  if (kind == HEAD) head(&in);
  if (kind < ANSWER) return;
  size = in.left < IB_BODY_MAX + 8 ? in.left : IB_BODY_MAX + 8;
  uint8_t *body = fuzz_guarded(size); /* nothing beyond it may be read */
  fuzz_fill(&in, body, size);
  if (kind == ANSWER) answer(body, size);
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
  struct ib_hello_wire hello_wire;
  struct ib_head_wire head_wire;
  struct ib_answer_wire answer_wire;
  struct ib_offer_wire offer_wire;
  struct ib_qps_wire qps_wire;
  ib_hello_encode((const uint8_t *)"fifteen letters", (const uint8_t *)"somebody's name", &hello_wire);
  seed("hello", HELLO, &hello_wire, sizeof hello_wire);
  ib_head_encode(IB_MESSAGE_QPS, 88, &head_wire);
  seed("head", HEAD, &head_wire, sizeof head_wire);
  struct ib_answer a = {.reason = IB_REASON_PLAN, .refusal = IB_REFUSAL_LINK, .rail_there = 1, .name = "mlx5_0"};
  ib_answer_encode(&a, &answer_wire);
  seed("refusal", ANSWER, &answer_wire, sizeof answer_wire);
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
