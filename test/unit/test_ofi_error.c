/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 *
 * What the ofi plugin makes of errors, over a scripted libfabric: each operation of an exchange fails in its turn,
 * operations that never end, calls that fail, and a peer that breaks the protocol. Nothing hangs, each error is said
 * once, in words, and what was done stays done.
 */
#include <sys/mman.h>

#include "plugin/ofi/ofi_progress.h"
#include "test/unit/ofi_rig.h"

#define N 6
#define SIZE 9000

static struct rig r;
static uint8_t out[N * SIZE], in[N * SIZE];
static void *recvs[N], *sends[N];

static void open_pair(const char *offers) {
  rig_start(offers);
  rig_open_pair(&r, 1, 1, out, sizeof out, in, sizeof in);
  for (size_t i = 0; i < sizeof out; i++) out[i] = (uint8_t)(i * 31 + (i >> 8));
  memset(in, 0, sizeof in);
}

static rail_result_t error_of(void *comm) { return rail_first_error(&rig_comm(comm)->error); }

/* It will fail: its first error. */
static rail_result_t awaited_error(void *comm) {
  RIG_UNTIL(error_of(comm) != RAIL_OK, { rig_poll(r.sc); rig_poll(r.rc); });
  return error_of(comm);
}

/* ---- each operation in its turn ------------------------------------------------------------ */

static size_t size_of(int i) { return (size_t)(i % 3 == 0 ? 60 : i * 1700); }

static rail_result_t test_one(void **request) {
  int done = 0;
  if (!*request) return RAIL_OK;
  rail_result_t result = net->test(*request, &done, NULL);
  CHECK(done == 0 || (done == 1 && result == RAIL_OK));
  if (done) *request = NULL;
  return result;
}

static bool any(void **requests) {
  for (int i = 0; i < N; i++)
    if (requests[i]) return true;
  return false;
}

/* Up to its end, or until both sides have failed: the second because the first is closed. True: one has failed. */
static bool exchange(void) {
  memset(recvs, 0, sizeof recvs);
  memset(sends, 0, sizeof sends);
  for (int i = 0; i < N && error_of(r.rc) == RAIL_OK; i++) {
    void *data = in + i * SIZE;
    size_t capacity = i % 2 ? SIZE : RAIL_MAX(size_of(i), 1);
    RIG_UNTIL(recvs[i] || error_of(r.rc) != RAIL_OK,
              (void)net->irecv(r.rc, 1, &data, &capacity, &i, &r.mh_in, NULL, &recvs[i]));
  }
  int next = 0;
  RIG_UNTIL(error_of(r.sc) != RAIL_OK || error_of(r.rc) != RAIL_OK || (next == N && !any(sends) && !any(recvs)), {
    if (next < N) (void)net->isend(r.sc, out + next * SIZE, size_of(next), next, r.mh_out, NULL, &sends[next]);
    if (next < N && sends[next]) next++;
    for (int i = 0; i < N; i++) (void)test_one(&sends[i]);
    for (int i = 0; i < N; i++) (void)test_one(&recvs[i]);
    rig_poll(r.sc);
    rig_poll(r.rc);
  });
  return error_of(r.sc) != RAIL_OK || error_of(r.rc) != RAIL_OK;
}

/* What a comm that has failed says, for ever. */
static void check_failed(void *comm, void **requests) {
  rail_result_t error = error_of(comm);
  void *request = NULL, *data = in;
  CHECK(error == RAIL_REMOTE_ERROR || error == RAIL_SYSTEM_ERROR);
  int warnings = log_warnings();
  for (int i = 0; i < N; i++)
    if (requests[i]) { /* what is done, is done */
      rail_result_t result = test_one(&requests[i]);
      CHECK_INT(result, requests[i] ? error : RAIL_OK);
    }
  if (comm == r.sc) CHECK_INT(net->isend(comm, out, 1, 0, r.mh_out, NULL, &request), error);
  else CHECK_INT(net->irecv(comm, 1, &data, &(size_t){1}, &(int){0}, &r.mh_in, NULL, &request), error);
  CHECK(!request);
  CHECK_INT(log_warnings(), warnings); /* it was said once */
}

/* The k-th of a kind fails, for all k; returns how many there are. */
static int each_in_turn(const char *offers, const char *kind, const char *behaviour) {
  for (int k = 1;; k++) {
    char script[200];
    CHECK(k < 200);
    open_pair(offers);
    snprintf(script, sizeof script, "%s err_text=the_cable_is_cut fail=%s:%d:ECONNRESET:77", behaviour, kind, k);
    fake_script(script);
    bool failed = exchange();
    if (failed) {
      CHECK_MSG(log_warnings() >= 1 && log_warnings() <= 2, "%d warnings:\n%s", log_warnings(), log_lines);
      CHECK_MSG(!log_said(" of 0 bytes"), "%s", log_lines); /* a control message has at least its frame */
      CHECK_MSG(log_said("127.0.0.1:") && log_said("over fake0 (fake)") && log_said("error 104") &&
                log_said("the provider says 77: the cable is cut"), "%s", log_lines);
      bool sender = error_of(r.sc) != RAIL_OK;
      check_failed(sender ? r.sc : r.rc, sender ? sends : recvs);
      /* The other side learns of it when this one is closed. */
      CHECK_OK(sender ? net->close_send(r.sc) : net->close_recv(r.rc));
      void **left = sender ? recvs : sends, *other = sender ? r.rc : r.sc;
      *(sender ? &r.sc : &r.rc) = NULL;
      RIG_UNTIL(!any(left) || error_of(other) != RAIL_OK, {
        for (int i = 0; i < N; i++) (void)test_one(&left[i]);
      });
      if (sender) {
        CHECK_OK(net->dereg_mr(r.rc, r.mh_in));
        CHECK_OK(net->close_recv(r.rc));
      } else {
        CHECK_OK(net->dereg_mr(r.sc, r.mh_out));
        CHECK_OK(net->close_send(r.sc));
      }
      rig_finalize(&r);
      rig_end();
      continue;
    }
    for (int i = 0; i < N; i++) CHECK(memcmp(in + i * SIZE, out + i * SIZE, size_of(i)) == 0);
    CHECK_MSG(log_warnings() == 0, "%s", log_warning);
    rig_close_pair(&r);
    return k - 1;
  }
}

TEST(each_operation) {
  static const char *const ways[] = {"", "late=3 reorder=50", "eagain=30 burst=2"};
  for (size_t i = 0; i < RAIL_COUNT_OF(ways); i++) {
    CHECK(each_in_turn("nic=fake0", "send", ways[i]) > N); /* one for each message, and GRANTs */
    CHECK(each_in_turn("nic=fake0", "write", ways[i]) >= N / 2);
    CHECK(each_in_turn("nic=fake0 no=saw", "write", ways[i]) >= N / 2);
    CHECK(each_in_turn("nic=fake0 no=rma", "send", ways[i]) > N / 3); /* those on credit, and GRANTs */
    CHECK(each_in_turn("nic=fake0 no=rma", "tsend", ways[i]) >= N / 2);
    CHECK(each_in_turn("nic=fake0 no=rma", "trecv", ways[i]) >= N / 2);
  }
}

/* ---- what never ends ---------------------------------------------------------------------------- */

/* A closed connection may not leave its caller's memory in libfabric's hands: its endpoint is shut, and all over it
 * with it. The next connection has a new one. */
TEST(an_operation_that_never_ends) {
  static const struct { const char *offers, *script; bool sender, shut; } rows[] = {
    {"nic=fake0", "hang=write:1:9", true, true}, {"nic=fake0", "hang=send:1:99", true, false}, /* the FIN */
    {"nic=fake0 no=rma", "hang=tsend:1:9", true, true}, {"nic=fake0 no=rma", "hang=trecv:1:9", false, true}};
  for (size_t i = 0; i < RAIL_COUNT_OF(rows); i++) {
    struct rig second;
    open_pair(rows[i].offers);
    second = r;
    rig_connect(&second, 0, 0);
    ofi_params.close_ms = 50;
    void *recv = rig_recv(&r, in, SIZE, 1, r.mh_in);
    for (int k = 0; k < 20; k++) rig_poll(k % 2 ? r.sc : r.rc);
    fake_script(rows[i].script);
    void *send = rig_send(&r, out, rows[i].sender ? SIZE : SIZE - 1, 1, r.mh_out);
    for (int k = 0; k < 20; k++) rig_poll(k % 2 ? r.sc : r.rc);
    CHECK(send && recv);
    uint64_t then = rail_now_ns();
    CHECK_OK(rows[i].sender ? net->close_send(r.sc) : net->close_recv(r.rc));
    CHECK(rail_now_ns() - then < 30 * 1000000000ull);
    CHECK_INT(log_said("may use its memory"), rows[i].shut);
    if (rows[i].shut) {
      void *request;
      CHECK_MSG(log_said("(RAIL_OFI_CLOSE_TIMEOUT)"), "%s", log_lines);
      if (rows[i].sender) CHECK_INT(net->isend(second.sc, out, 0, 1, NULL, NULL, &request), RAIL_SYSTEM_ERROR);
      else CHECK_INT(net->irecv(second.rc, 1, &(void *){in}, &(size_t){0}, &(int){1}, &(void *){NULL}, NULL, &request),
                     RAIL_SYSTEM_ERROR);
    }
    CHECK_OK(rows[i].sender ? net->close_recv(r.rc) : net->close_send(r.sc));
    CHECK_OK(net->close_send(second.sc));
    CHECK_OK(net->close_recv(second.rc));
    fake_script("reset=1");
    ofi_params.close_ms = RIG_PATIENCE_MS;
    rig_connect(&second, 0, 0);
    void *mh = rig_reg(second.rc, in, SIZE), *mh2 = rig_reg(second.sc, out, SIZE);
    recv = rig_recv(&second, in, SIZE, 1, mh);
    CHECK_INT(rig_finish(&second, rig_send(&second, out, SIZE, 1, mh2), recv), SIZE);
    rig_close(&second);
    rig_end();
  }
}

/* ---- calls that fail ------------------------------------------------------------------------------------ */

/* One call fails, where the connector or the acceptor opens its endpoint. */
static void open_fails(const char *call, bool acceptor) {
  char script[64];
  rail_result_t result = RAIL_OK;
  memset(&r, 0, sizeof r);
  rig_start("nic=fake0 mr_mode=local");
  r.ctx[0] = rig_ctx();
  r.ctx[1] = rig_ctx();
  rig_listen(&r, 0);
  long enabled = fake_calls("enable");
  if (acceptor) /* after the connector has opened its own */
    RIG_UNTIL(fake_calls("enable") > enabled, CHECK_OK(net->connect(r.ctx[0], 0, r.handle, -1, &r.sc, NULL)));
  snprintf(script, sizeof script, "fail=%s:1:ENOMEM", call);
  long before = fake_calls(call);
  fake_script(script);
  RIG_UNTIL(result != RAIL_OK || (r.sc && r.rc), (void)rig_step(&r, 0, &result));
  CHECK_MSG(fake_calls(call) > before, "%s: %s does not call it", call, acceptor ? "the acceptor" : "the connector");
  CHECK_INT(result, RAIL_SYSTEM_ERROR);
  CHECK_MSG(log_warnings() >= 1 && log_said("fake0"), "%s: %s", call, log_lines);
  CHECK_OK(net->close_listen(r.listen));
  rig_close(&r);
  rig_end();
}

TEST(an_endpoint_that_cannot_be_opened) {
  static const char *const calls[] = {"fabric", "domain", "cq_open", "av_open", "endpoint", "ep_bind", "enable",
                                      "getname", "mr_reg"};
  for (size_t i = 0; i < RAIL_COUNT_OF(calls); i++) {
    open_fails(calls[i], false);
    open_fails(calls[i], true);
  }
}

/* ---- a peer that breaks the protocol -------------------------------------------------------------------------- */

static void forge(void *from_comm, struct ofi_frame frame) {
  struct ofi_comm *from = from_comm;
  RIG_UNTIL(RIG_LOCKED(from, from->pings[0].state) == OFI_OP_IDLE, rig_poll(from));
  ofi_endpoint_lock(from->endpoint);
  bool carries = frame.type == OFI_FRAME_DATA || frame.type == OFI_FRAME_EAGER;
  from->pings[0].data = carries ? out : NULL;
  from->pings[0].size = carries ? frame.size : 0;
  from->pings[0].desc = carries ? ((struct ofi_mhandle *)r.mh_out)->descs[0] : NULL;
  rail_result_t result = ofi_comm_post_frame(from, &from->pings[0], OFI_OP_PING, 0, &frame, from->frames.bytes);
  ofi_endpoint_unlock(from->endpoint);
  CHECK_OK(result);
  for (int i = 0; i < 10; i++) rig_poll(i % 2 ? r.sc : r.rc);
}

/* Two buffers: one that is written to, one for control messages. */
static void *two_buffers(void) {
  void *data[2] = {in, in + SIZE}, *mhs[2] = {r.mh_in, r.mh_in};
  void *request = rig_recv_group(&r, 2, data, (size_t[]){8192, 100}, (int[]){1, 2}, mhs);
  for (int i = 0; i < 10; i++) rig_poll(i % 2 ? r.sc : r.rc);
  return request;
}

TEST(frames_that_no_sender_sends) {
  const uint32_t seq = OFI_FIRST_SEQ;
  const struct { struct ofi_frame frames[2]; rail_result_t result; } wrong[] = {
    {{{.type = OFI_FRAME_DATA, .seq = seq, .index = 2, .size = 1}}, RAIL_REMOTE_ERROR}, /* no such buffer */
    {{{.type = OFI_FRAME_DATA, .seq = seq + 1, .size = 1}}, RAIL_REMOTE_ERROR},         /* no such receive */
    {{{.type = OFI_FRAME_DATA, .seq = seq + OFI_MAX_RECVS, .size = 1}}, RAIL_REMOTE_ERROR},
    {{{.type = OFI_FRAME_DATA, .seq = seq, .index = 1, .size = 101}}, RAIL_REMOTE_ERROR}, /* more than it holds */
    {{{.type = OFI_FRAME_DATA, .seq = seq, .index = 1, .size = 1}, {.type = OFI_FRAME_DATA, .seq = seq, .index = 1}},
     RAIL_REMOTE_ERROR}, /* twice */
    {{{.type = OFI_FRAME_FIN, .seq = seq, .index = 1, .parts = 1, .size = 1}}, RAIL_REMOTE_ERROR},
    {{{.type = OFI_FRAME_FIN, .seq = seq, .index = 0, .parts = 1, .size = 8193}}, RAIL_REMOTE_ERROR},
    {{{.type = OFI_FRAME_FIN, .seq = seq, .parts = 2, .size = 10}, {.type = OFI_FRAME_FIN, .seq = seq, .parts = 3,
     .size = 10}}, RAIL_REMOTE_ERROR},
    {{{.type = OFI_FRAME_FIN, .seq = seq, .parts = 2, .size = 10}, {.type = OFI_FRAME_FIN, .seq = seq, .parts = 2,
     .size = 11}}, RAIL_REMOTE_ERROR},
    {{{.type = OFI_FRAME_FIN, .seq = seq, .parts = 2, .size = 10}, {.type = OFI_FRAME_DATA, .seq = seq, .size = 10}},
     RAIL_REMOTE_ERROR},
    {{{.type = OFI_FRAME_TOO_LARGE, .seq = seq, .size = 100}}, RAIL_REMOTE_ERROR}, /* and it would fit */
    {{{.type = OFI_FRAME_TOO_LARGE, .seq = seq, .size = 8193}}, RAIL_BAD_USAGE},   /* the caller's mistake */
    {{{.type = OFI_FRAME_EAGER, .seq = seq + OFI_MAX_EAGER, .tag = 9, .count = seq}}, RAIL_REMOTE_ERROR}, /* credit */
    {{{.type = OFI_FRAME_EAGER, .seq = seq - 1, .tag = 9, .count = seq}}, RAIL_REMOTE_ERROR},
    {{{.type = OFI_FRAME_EAGER, .seq = seq, .tag = 9, .count = seq}, {.type = OFI_FRAME_EAGER, .seq = seq, .tag = 9,
     .count = seq}}, RAIL_REMOTE_ERROR}, /* the same again */
    {{{.type = OFI_FRAME_EAGER, .seq = seq + 1, .tag = 9, .count = seq}, {.type = OFI_FRAME_EAGER, .seq = seq + 1,
     .tag = 9, .count = seq}}, RAIL_REMOTE_ERROR}, /* early, and again */
    {{{.type = OFI_FRAME_EAGER, .seq = seq, .tag = 9, .count = seq, .size = 2049}}, RAIL_REMOTE_ERROR},
    {{{.type = OFI_FRAME_EAGER, .seq = seq, .tag = 9, .count = seq + 2}}, RAIL_REMOTE_ERROR}, /* one was granted */
    {{{.type = OFI_FRAME_EAGER, .seq = seq, .tag = 2, .count = seq, .size = 101}}, RAIL_BAD_USAGE},
    {{{.type = OFI_FRAME_EAGER, .seq = seq, .tag = 2, .count = seq, .size = 1}, {.type = OFI_FRAME_DATA, .seq = seq,
     .index = 1, .size = 1}}, RAIL_REMOTE_ERROR}, /* the buffer is filled */
    {{{.type = OFI_FRAME_ACK}}, RAIL_REMOTE_ERROR},
    {{{.type = OFI_FRAME_REVOKE}}, RAIL_REMOTE_ERROR},
    {{{.type = OFI_FRAME_PONG, .index = 1}}, RAIL_REMOTE_ERROR},
    {{{.type = OFI_FRAME_GRANT, .seq = seq, .nbuffers = 1, .nkeys = 1,
       .buffers = {{.kind = OFI_BUFFER_RMA, .last = true}}}}, RAIL_REMOTE_ERROR},
  };
  for (size_t i = 0; i < RAIL_COUNT_OF(wrong); i++) {
    open_pair("nic=fake0");
    void *request = two_buffers();
    for (int k = 0; k < 2 && wrong[i].frames[k].type; k++) forge(r.sc, wrong[i].frames[k]);
    CHECK_INT(rig_error(request), wrong[i].result);
    /* The sender has its own view of a report of a message that it did not send. */
    CHECK_MSG(log_warnings() >= 1 && log_warnings() <= 2, "case %zu:\n%s", i, log_lines);
    if (wrong[i].result == RAIL_REMOTE_ERROR) CHECK_MSG(log_said("protocol error"), "%s", log_warning);
    for (size_t b = 0; b < sizeof in; b++) CHECK(!in[b] || b == SIZE); /* nothing beside the first message of a case */
    rig_close_pair(&r);
  }
}

TEST(frames_that_no_receiver_sends) {
  const uint32_t seq = OFI_FIRST_SEQ;
  const struct ofi_buffer good = {.size = 10, .kind = OFI_BUFFER_RMA, .last = true};
  const struct ofi_report none = {seq, seq, 0}; /* no EAGER was sent, and one message for a buffer */
#define GRANT(number, keys, ...)                                                                               \
  {.type = OFI_FRAME_GRANT, .seq = number, .nbuffers = 1, .nkeys = keys, .report = none, .buffers = {__VA_ARGS__}}
  const struct ofi_frame wrong[] = {
    {.type = OFI_FRAME_ACK, .seq = seq + 1, .report = {seq + 1, seq, 0}}, /* what is not sent */
    {.type = OFI_FRAME_ACK, .seq = seq + 1, .report = {seq, seq + 1, 0}},
    {.type = OFI_FRAME_ACK, .seq = seq + 1, .report = {seq, seq, 2}},
    {.type = OFI_FRAME_ACK, .seq = seq + 1 + OFI_MAX_GRANTS + 1, .report = none}, /* GRANTs that cannot be */
    GRANT(seq, 1, good),                     /* again */
    GRANT(seq - 1, 1, good),                 /* long ago */
    GRANT(seq + OFI_MAX_GRANTS, 1, good),    /* in use */
    GRANT(seq + 1 + OFI_MAX_GRANTS, 1, good),
    GRANT(seq + 1, 2, good),
    GRANT(seq + 1, 0, good),
    GRANT(seq + 1, 1, {.size = 10, .kind = OFI_BUFFER_TAGGED, .path = 1, .last = true}),
    GRANT(seq + 1, 1, {.size = 10, .kind = OFI_BUFFER_TAGGED, .takes_data = true, .last = true}),
    GRANT(seq + 1, 1, {.size = 10, .kind = OFI_BUFFER_INLINE, .last = true}),
    GRANT(seq + 1, 1, {.size = 5000, .kind = OFI_BUFFER_INLINE, .takes_data = true, .last = true}),
    /* Several, of which the second is wrong: in use already, or no buffer of this connection's. */
    {.type = OFI_FRAME_GRANT, .seq = seq + OFI_MAX_GRANTS - 1, .nbuffers = 2, .nkeys = 1, .report = none,
     .buffers = {good, good}},
    {.type = OFI_FRAME_GRANT, .seq = seq + OFI_MAX_GRANTS, .nbuffers = 2, .nkeys = 1, .report = none,
     .buffers = {good, good}},
    {.type = OFI_FRAME_GRANT, .seq = seq + 1, .nbuffers = 2, .nkeys = 1, .report = none,
     .buffers = {good, {.size = 10, .kind = OFI_BUFFER_TAGGED, .path = 1, .last = true}}},
    {.type = OFI_FRAME_GRANT, .seq = seq + 1, .nbuffers = 1, .nkeys = 1, .report = {seq + 3, seq, 0},
     .buffers = {good}},
    {.type = OFI_FRAME_EAGER, .seq = seq, .tag = 1},
    {.type = OFI_FRAME_ASK, .seq = seq},
    {.type = OFI_FRAME_DATA, .seq = seq, .size = 1},
    {.type = OFI_FRAME_FIN, .seq = seq, .parts = 1},
    {.type = OFI_FRAME_TOO_LARGE, .seq = seq},
    {.type = OFI_FRAME_PONG, .index = 1},
    {.type = OFI_FRAME_REVOKED},
  };
  for (size_t i = 0; i < RAIL_COUNT_OF(wrong); i++) {
    open_pair("nic=fake0");
    CHECK(two_buffers());
    void *send = rig_send(&r, out, SIZE - 2000, 1, r.mh_out), *request;
    CHECK(send);
    fake_script("hang=any:1:0");
    forge(r.rc, wrong[i]);
    CHECK_INT(awaited_error(r.sc), RAIL_REMOTE_ERROR);
    CHECK_INT(net->isend(r.sc, out, 10, 2, r.mh_out, NULL, &request), RAIL_REMOTE_ERROR);
    CHECK_MSG(log_warnings() == 1 && log_said("protocol error"), "case %zu:\n%s", i, log_lines);
    rig_close_pair(&r);
  }
#undef GRANT
}

/* Of the right comm, and not as this version sends them: a type that there is none of, a DATA without its payload. */
TEST(frames_that_cannot_be_decoded) {
  static const struct { struct ofi_frame frame; const char *said; } wrong[] = {
    {{.type = (enum ofi_frame_type)OFI_FRAME_TYPES, .seq = OFI_FIRST_SEQ}, "a control message of type 12 and 32 bytes"},
    {{.type = OFI_FRAME_TOO_LARGE, .seq = OFI_FIRST_SEQ, .size = UINT64_MAX}, "a control message of type 6 and 32"}};
  for (int side = 0; side < 2; side++)
    for (size_t i = 0; i < RAIL_COUNT_OF(wrong); i++) {
      open_pair("nic=fake0");
      void *to = side ? r.rc : r.sc;
      CHECK(two_buffers());
      forge(side ? r.sc : r.rc, wrong[i].frame);
      CHECK_INT(awaited_error(to), RAIL_REMOTE_ERROR);
      CHECK_MSG(log_warnings() == 1 && log_said("protocol error") && log_said(wrong[i].said), "%s", log_lines);
      rig_close_pair(&r);
    }
}

static ssize_t refuse_to_cancel(struct fid *fid, void *context) {
  (void)fid, (void)context;
  return -FI_ENOSYS;
}

/* A message on credit fills a buffer that was granted meanwhile: its tagged receive must be ended. */
TEST(a_receive_that_cannot_be_cancelled) {
  open_pair("nic=fake0 no=rma");
  struct fid_ep *ep = rig_comm(r.rc)->endpoint->nics[0].ep;
  struct fi_ops_ep *usual = ep->ops, refusing = *usual;
  refusing.cancel = refuse_to_cancel;
  RIG_LOCKED(r.rc, ep->ops = &refusing);
  void *recv = rig_recv(&r, in, SIZE, 1, r.mh_in);
  forge(r.sc, (struct ofi_frame){.type = OFI_FRAME_EAGER, .seq = OFI_FIRST_SEQ, .tag = 1, .count = OFI_FIRST_SEQ,
                                 .size = 10});
  CHECK_INT(rig_error(recv), RAIL_SYSTEM_ERROR);
  CHECK_MSG(log_said("fi_cancel: ") && log_said("RAIL_OFI_PROVIDER"), "%s", log_lines);
  RIG_LOCKED(r.rc, ep->ops = usual);
  rig_close_pair(&r);
}

/* Frames for nobody: another token, an index that is free or none. And what is no frame. They change nothing. */
TEST(messages_that_are_dropped) {
  static const struct ofi_frame frames[] = {
    {.type = OFI_FRAME_PING, .index = 3}, {.type = OFI_FRAME_DATA, .seq = OFI_FIRST_SEQ, .size = 1},
    {.type = OFI_FRAME_REVOKE}, {.type = OFI_FRAME_ACK}, {.type = OFI_FRAME_FIN, .seq = OFI_FIRST_SEQ, .parts = 1}};
  open_pair("nic=fake0");
  void *request = two_buffers();
  for (int side = 0; side < 2; side++)
    for (size_t i = 0; i < RAIL_COUNT_OF(frames); i++) {
      struct ofi_comm *from = side ? r.sc : r.rc;
      uint32_t index = from->remote_index;
      /* Fields that only this thread reads: nothing is under way. */
      from->remote_token ^= 1;
      forge(from, frames[i]);
      from->remote_index = 63; /* nobody's */
      forge(from, frames[i]);
      from->remote_index = UINT32_MAX;
      forge(from, frames[i]);
      from->remote_index = index;
      from->remote_token ^= 1;
      char text[40] = "no frame of ours";
      CHECK_OK(RIG_LOCKED(from, fi_inject(from->endpoint->nics[0].ep, text, sizeof text - i, from->paths[0].to)));
      CHECK_OK(RIG_LOCKED(from, fi_inject(from->endpoint->nics[0].ep, text, i, from->paths[0].to)));
    }
  CHECK_OK(error_of(r.sc));
  CHECK_OK(error_of(r.rc));
  void *first = rig_send(&r, out, 8000, 1, r.mh_out), *second = rig_send(&r, out + SIZE, 100, 2, r.mh_out);
  CHECK_INT(rig_finish(&r, first, request), 8000);
  RIG_UNTIL(rig_done(second, NULL), rig_poll(r.rc));
  CHECK(memcmp(in, out, 8000) == 0 && memcmp(in + SIZE, out + SIZE, 100) == 0);
  CHECK_INT(log_warnings(), 0);
  rig_close_pair(&r);
}

/* A receiver that gives its buffers up is not written to any more, though they were granted. */
TEST(a_send_after_the_peer_revoked) {
  open_pair("nic=fake0");
  CHECK(two_buffers());
  forge(r.rc, (struct ofi_frame){.type = OFI_FRAME_REVOKE});
  RIG_UNTIL(RIG_LOCKED(r.rc, rig_comm(r.rc)->revoked), {
    rig_poll(r.sc);
    rig_poll(r.rc);
  });
  long writes = fake_calls("write"), frames = fake_calls("send");
  void *request = NULL;
  rail_result_t result = RAIL_OK;
  RIG_UNTIL(result != RAIL_OK, {
    result = net->isend(r.sc, out, 8000, 1, r.mh_out, NULL, &request);
    CHECK(!request); /* "not now", where the watch thread polls */
  });
  CHECK_INT(result, RAIL_REMOTE_ERROR);
  CHECK_INT(fake_calls("write") + fake_calls("send"), writes + frames);
  rig_close_pair(&r);
}

/* A message that is too large for its buffer fails both sides, with a line each. One that went on credit may be done
 * before. */
TEST(sizes_that_do_not_fit) {
  static const char *const kinds[] = {"nic=fake0", "nic=fake0 no=rma", "nic=fake0 no=saw"};
  for (size_t k = 0; k < RAIL_COUNT_OF(kinds); k++)
    for (int small = 0; small < 2; small++) {
      open_pair(kinds[k]);
      void *recv = rig_recv(&r, in, small ? 50 : 5000, 1, r.mh_in);
      void *send = rig_send(&r, out, small ? 51 : 5001, 1, r.mh_out);
      if (!small) CHECK_INT(rig_error(send), RAIL_BAD_USAGE);
      CHECK_INT(rig_error(recv), RAIL_BAD_USAGE);
      RIG_UNTIL(error_of(r.sc) != RAIL_OK, rig_poll(r.sc));
      CHECK_INT(net->isend(r.sc, out, 1, 1, r.mh_out, NULL, &send), RAIL_BAD_USAGE);
      CHECK_INT(log_warnings(), 2);
      for (size_t b = 0; b < sizeof in; b++) CHECK(!in[b]);
      rig_close_pair(&r);
    }
}

/* Two that went on credit are too large for one receive. The provider has no room for the refusal: it waits, once. */
TEST(two_sizes_that_do_not_fit_and_no_room) {
  void *data[2] = {in, in + 50}, *mhs[2];
  size_t sizes[2] = {50, 50};
  int tags[2] = {1, 2};
  open_pair("nic=fake0");
  mhs[0] = mhs[1] = r.mh_in;
  struct ofi_recv_comm *rc = ofi_recv_comm_of(r.rc);
  for (int i = 0; i < 2; i++) (void)rig_send(&r, out, 51, tags[i], r.mh_out);
  RIG_UNTIL(RIG_LOCKED(r.rc, rc->unexpected) == 2, {
    rig_poll(r.sc);
    rig_poll(r.rc);
  });
  fake_script("eagain=100");
  void *recv = rig_recv_group(&r, 2, data, sizes, tags, mhs);
  CHECK(RIG_LOCKED(r.rc, rc->refusal.state == OFI_OP_WAITING && !STAILQ_NEXT(&rc->refusal, link)));
  rig_poll(r.rc);
  fake_script("eagain=0");
  CHECK_INT(rig_error(recv), RAIL_BAD_USAGE);
  RIG_UNTIL(error_of(r.sc) != RAIL_OK, {
    rig_poll(r.rc);
    rig_poll(r.sc);
  });
  CHECK_INT(error_of(r.sc), RAIL_BAD_USAGE);
  CHECK_INT(log_warnings(), 2);
  for (size_t b = 0; b < sizeof in; b++) CHECK(!in[b]);
  rig_close_pair(&r);
}

RIG_MAIN(TEST_CASE(each_operation), TEST_CASE(an_operation_that_never_ends),
         TEST_CASE(an_endpoint_that_cannot_be_opened),
         TEST_CASE(frames_that_no_sender_sends), TEST_CASE(frames_that_no_receiver_sends),
         TEST_CASE(frames_that_cannot_be_decoded), TEST_CASE(a_receive_that_cannot_be_cancelled),
         TEST_CASE(messages_that_are_dropped), TEST_CASE(a_send_after_the_peer_revoked),
         TEST_CASE(sizes_that_do_not_fit), TEST_CASE(two_sizes_that_do_not_fit_and_no_room))
