/* SPDX-License-Identifier: Apache-2.0
 * Requests: outputs written at every call, NULL means later, as many outstanding as NCCL may have, buffers back at
 * done. */
#include <sched.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

enum { DEPTH = RAIL_NET_MAX_REQUESTS, MAX_SENDS = DEPTH * KIT_MAX_GROUP };

/* ---- far more than fits: numbered messages, posted one by one ---- */

enum { CROWD = 2000 };

struct crowd {
  struct kit_conn *conn;
  int total, sent, received, guaranteed; /* sends, receives that were posted; what a plugin must bear */
  bool refusal_is_fine;                  /* an error beyond what is guaranteed ends the posting */
  int *out, *in;
  struct kit_op send[CROWD], recv[CROWD];
};

static struct crowd *crowd_make(struct kit_conn *conn, int total, bool refusal_is_fine) {
  static struct crowd c;
  memset(&c, 0, sizeof c);
  c.conn = conn;
  c.total = total;
  c.guaranteed = DEPTH * conn->max_recvs;
  c.refusal_is_fine = refusal_is_fine;
  c.out = (int *)(void *)kit_conn_high(conn, sizeof *c.out * (size_t)total);
  c.in = (int *)(void *)kit_conn_high(conn, sizeof *c.in * (size_t)total);
  for (int i = 0; i < total; i++) {
    c.out[i] = i;
    c.in[i] = -1;
    c.send[i] = kit_conn_send(conn, &c.out[i], sizeof c.out[i], 2);
    c.recv[i] = kit_conn_recv(conn, &c.in[i], sizeof c.in[i], 2);
  }
  return &c;
}

/* One isend of the next message. True when it gave a request. */
static bool crowd_send(struct crowd *c) {
  struct kit_op *op = &c->send[c->sent];
  if (c->sent == c->total) return false;
  if (kit_op_post(c->conn->net, op)) {
    c->sent++;
    return true;
  }
  if (op->error && c->refusal_is_fine && c->sent >= c->guaranteed) c->total = c->sent;
  else
    ENSURE(!op->error, "isend with %d outstanding returned %s: 32 x maxRecvs (%d) must fit, and NULL in *request, "
           "which NCCL repeats, says that more do not", c->sent, kit_rc_text(op->error), c->guaranteed);
  return false;
}

static bool crowd_receive(struct crowd *c) {
  struct kit_op *op = &c->recv[c->received];
  if (c->received == c->total) return false;
  if (kit_op_post(c->conn->net, op)) {
    c->received++;
    return true;
  }
  ENSURE(!op->error, "irecv with %d outstanding returned %s: 32 must fit, and NULL in *request, which NCCL repeats, "
         "says that more do not", c->received, kit_rc_text(op->error));
  return false;
}

/* All messages to their end, each arriving once and in its place. */
static void crowd_drain(struct crowd *c) {
  struct kit_net *n = c->conn->net;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (int got = 0, gone = 0; got < c->total || gone < c->total;) {
    crowd_receive(c);
    crowd_send(c);
    while (gone < c->sent && (c->send[gone].done || kit_op_test(n, &c->send[gone]))) {
      ENSURE(!c->send[gone].error, "send %d ended with error %s", gone, kit_rc_text(c->send[gone].error));
      gone++;
    }
    while (got < c->received && kit_op_test(n, &c->recv[got])) {
      ENSURE(!c->recv[got].error, "receive %d ended with error %s", got, kit_rc_text(c->recv[got].error));
      ENSURE(c->in[got] == got, "receive %d got message %d: an isend that gives NULL must not send, one that gives a "
             "request must do so once", got, c->in[got]);
      got++;
    }
    ENSURE(!rail_deadline_passed(deadline), "only %d of %d messages arrived before the deadline", got, c->total);
  }
}

static void request_and_done_are_always_written(
    struct kit_process *self) { /* kit_op_post and kit_op_test poison both */
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  struct crowd *c = crowd_make(&conn, 600, true);
  for (int k = 0; k < 2 * 600; k++) { /* with nothing to match, until well past full */
    crowd_send(c);
    if (c->sent && !c->send[0].done) kit_op_test(conn.net, &c->send[0]);
  }
  crowd_drain(c);
  kit_conn_close(&conn);
}

/* Far more than the guaranteed depth, one end at a time. */
static void full_table_is_not_an_error(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  struct crowd *c = crowd_make(&conn, CROWD, false);
  while (crowd_receive(c)) {}
  for (int idle = 0; c->sent < c->received && idle < 20000;) { /* NULL a good while: full */
    idle = crowd_send(c) ? 0 : idle + 1;
    if (idle > 0) sched_yield();
  }
  for (int k = 0; k < 200; k++) crowd_receive(c); /* and returns NULL each time */
  kit_metric(self, "receives_outstanding", c->received, "");
  kit_metric(self, "sends_outstanding", c->sent, "");
  if (c->received == CROWD) kit_note(self, "no limit was met with %d receives", CROWD);
  crowd_drain(c);
  kit_conn_close(&conn);
}

/* ---- 32 grouped receives of maxRecvs each, and all the sends for them ---- */

struct depth {
  struct kit_conn *conn;
  struct kit_op recv[DEPTH], send[MAX_SENDS];
  uint32_t (*out)[4], (*in)[4];
  int sends;
  bool strict; /* all must be outstanding at once */
};

static void depth_prepare(struct depth *d, int round) {
  int group = d->conn->max_recvs;
  d->sends = DEPTH * group;
  for (int r = 0; r < DEPTH; r++) {
    d->recv[r] = kit_conn_group(d->conn);
    for (int g = 0; g < group; g++) {
      int k = r * group + g;
      for (int w = 0; w < 4; w++) d->out[k][w] = (uint32_t)(round * 100000 + k);
      memset(d->in[k], 0xcc, sizeof d->in[k]);
      kit_conn_add(d->conn, &d->recv[r], d->in[k], sizeof d->in[k], g);
      d->send[k] = kit_conn_send(d->conn, d->out[k], sizeof d->out[k], g);
    }
  }
}

/* Newest first, so that older ones stay outstanding as long as can be. A comm with maxRecvs 1 is never shared, and NCCL
 * tests its requests oldest first. True when nothing is left. */
static bool depth_test(struct depth *d, struct kit_op *ops, int count) {
  bool shared = d->conn->max_recvs > 1, all = true;
  for (int i = 0; i < count; i++) {
    struct kit_op *op = &ops[shared ? count - 1 - i : i];
    if (op->req) kit_op_test(d->conn->net, op);
    ENSURE(!op->error, "%s %d ended with error %s", op->kind == KIT_OP_SEND ? "send" : "receive", (int)(op - ops),
           kit_rc_text(op->error));
    all &= op->done;
    if (!shared && !op->done) return false;
  }
  return all;
}

static void depth_post(struct depth *d, struct kit_op *op, int index, int most, uint64_t deadline) {
  const char *call = op->kind == KIT_OP_SEND ? "isend" : "irecv";
  while (!kit_op_post(d->conn->net, op)) {
    ENSURE(!op->error, "%s returned %s with %d outstanding: a plugin must bear %d", call, kit_rc_text(op->error),
           index, most);
    /* A NULL may wait for the receiver's post to arrive, no longer. */
    ENSURE(!rail_deadline_passed(deadline), "%s gives NULL for ever with %d outstanding%s", call, index,
           d->strict ? ", none of them tested yet" : ", all of them tested again and again");
    if (!d->strict) {
      depth_test(d, d->send, d->sends);
      depth_test(d, d->recv, DEPTH);
    }
    sched_yield();
  }
}

static void depth_round(struct depth *d, int round) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  depth_prepare(d, round);
  for (int r = 0; r < DEPTH; r++) depth_post(d, &d->recv[r], r, DEPTH, deadline);
  for (int k = 0; k < d->sends; k++) depth_post(d, &d->send[k], k, d->sends, deadline);
  for (bool over = false; !over;) {
    over = depth_test(d, d->send, d->sends);
    over &= depth_test(d, d->recv, DEPTH);
    ENSURE(!rail_deadline_passed(deadline), "32 receives of %d buffers and their %d sends are outstanding for ever",
           d->conn->max_recvs, d->sends);
  }
  for (int k = 0; k < d->sends; k++)
    ENSURE(d->in[k][0] == d->out[k][0] && d->in[k][3] == d->out[k][3],
           "buffer %d of receive %d got message %u, expected %d (32 receives of %d buffers outstanding)",
           k % d->conn->max_recvs, k / d->conn->max_recvs, d->in[k][0] % 100000, k, d->conn->max_recvs);
}

static void depth_run(struct kit_process *self, bool strict, int rounds) {
  static struct depth d;
  static struct kit_conn conn;
  kit_conn_open(&conn, self);
  memset(&d, 0, sizeof d);
  d.conn = &conn;
  d.strict = strict;
  d.out = (uint32_t(*)[4])(void *)kit_conn_high(&conn, sizeof *d.out * MAX_SENDS);
  d.in = (uint32_t(*)[4])(void *)kit_conn_high(&conn, sizeof *d.in * MAX_SENDS);
  for (int round = 0; round < rounds; round++) depth_round(&d, round);
  kit_conn_close(&conn);
}

static void all_requests_outstanding(struct kit_process *self) { depth_run(self, false, kit_scaled(20)); }
static void all_requests_fit_at_once(struct kit_process *self) { depth_run(self, true, kit_scaled(20)); }

/* ---- what test writes ---- */

static void done_is_written_while_a_request_is_not(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  size_t size = (size_t)32 << 20; /* more than a plugin sends ahead */
  uint8_t *out = kit_conn_high(&conn, size), *in = kit_conn_high(&conn, size);
  struct kit_op ops[2] = {kit_conn_recv(&conn, in, size, 2), kit_conn_send(&conn, out, size, 2)};
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS / 2));
  while (!kit_op_post(conn.net, &ops[0])) {
    ENSURE(!ops[0].error, "irecv returned %s", kit_rc_text(ops[0].error));
    ENSURE(!rail_deadline_passed(deadline), "irecv gives NULL for ever, with nothing outstanding");
  }
  for (int i = 0; i < 100; i++)
    ENSURE(!kit_op_test(conn.net, &ops[0]), "test of a receive says %s %d, before anything was sent",
           ops[0].error ? "error" : "done", ops[0].error);
  kit_conn_run(&conn, ops, 2, KIT_OPS_OLDEST);
  kit_conn_close(&conn);
}

/* One test as bootstrap does it. */
static void test_without_sizes(struct kit_conn *conn, struct kit_op *op, uint64_t deadline) {
  int done = 0x5a5a5a5a, rc;
  if (!op->req) return;
  rc = conn->net->vt->test(op->req, &done, NULL);
  ENSURE(rc == 0, "test with NULL for sizes returned %s, a message of %zu bytes was sent", kit_rc_text(rc),
         op->size[0]);
  ENSURE(done == 0 || done == 1, "test with NULL for sizes left *done at %#x", (unsigned)done);
  ENSURE(!rail_deadline_passed(deadline), "a transfer of %zu bytes, tested with NULL for sizes, is never done",
         op->size[0]);
  if (!done) return;
  op->done = true;
  op->req = NULL;
}

static void sizes_may_be_null(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  for (size_t size = 0; size < 200000; size = size * 3 + 7) {
    uint8_t *out = kit_conn_high(&conn, size), *in = kit_conn_high(&conn, size);
    kit_pattern_fill(out, size, size);
    struct kit_op ops[2] = {kit_conn_recv(&conn, in, size, 1), kit_conn_send(&conn, out, size, 1)};
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    while (!ops[0].done || !ops[1].done) {
      for (int i = 0; i < 2; i++) {
        if (!ops[i].req && !ops[i].done) kit_op_post(conn.net, &ops[i]);
        ENSURE(!ops[i].error, "%s returned %s", i ? "isend" : "irecv", kit_rc_text(ops[i].error));
        test_without_sizes(&conn, &ops[i], deadline);
      }
      ENSURE(!rail_deadline_passed(deadline), "%zu bytes did not cross before the deadline", size);
    }
    if (conn.receives)
      ENSURE(kit_pattern_check(in, size, size) < 0, "%zu bytes arrived wrong where sizes is NULL", size);
    kit_conn_free(&conn, out);
    kit_conn_free(&conn, in);
  }
  kit_conn_close(&conn);
}

static const size_t reported[] = {0, 1, 1000, 100000};

static void a_send_reports_its_size(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  uint8_t *out = kit_conn_high(&conn, 100000), *in = kit_conn_high(&conn, 200000);
  for (size_t i = 0; i < sizeof reported / sizeof reported[0]; i++) {
    struct kit_op ops[2] = {kit_conn_recv(&conn, in, 200000, 1), kit_conn_send(&conn, out, reported[i], 1)};
    kit_conn_run(&conn, ops, 2, KIT_OPS_OLDEST);
    if (conn.sends)
      ENSURE(ops[1].sizes[0] == (int)reported[i], "test of a send of %zu bytes wrote %d (%#x) to *sizes", reported[i],
             ops[1].sizes[0], (unsigned)ops[1].sizes[0]);
  }
  kit_conn_close(&conn);
}

/* Poisoned here, not zeroed as by NCCL: a plugin that writes the size it knows passes. */
static void a_receive_writes_its_size(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  uint8_t *out = kit_conn_high(&conn, 100000), *in = kit_conn_high(&conn, 200000);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (size_t i = 0; i < sizeof reported / sizeof reported[0]; i++) {
    struct kit_op recv = kit_conn_recv(&conn, in, 200000, 1), send = kit_conn_send(&conn, out, reported[i], 1);
    int done = 0, size = 0x5a5a5a5a;
    while (!done) {
      ENSURE(!recv.error && !send.error, "irecv, isend ended with errors %s, %s", kit_rc_text(recv.error),
             kit_rc_text(send.error));
      ENSURE(!rail_deadline_passed(deadline), "%zu bytes did not arrive before the deadline", reported[i]);
      if (!send.done) send.req ? kit_op_test(conn.net, &send) : kit_op_post(conn.net, &send);
      if (!recv.req && !kit_op_post(conn.net, &recv)) continue;
      int rc = conn.net->vt->test(recv.req, &done, &size);
      ENSURE(rc == 0, "test returned %s", kit_rc_text(rc));
    }
    kit_op_finish(conn.net, &send);
    ENSURE(size == (int)reported[i], "test of a receive left sizes[0] at %d (%#x) for a message of %zu bytes", size,
           (unsigned)size, reported[i]);
  }
  kit_conn_close(&conn);
}

/* ---- when a request is over ---- */

enum { IN_FLIGHT = 4 };
static const size_t in_flight_size = 700001;

/* Posts and tests one of `IN_FLIGHT`, in posting order; true when it has just become done. */
static bool step_in_flight(struct kit_conn *conn, struct kit_op *ops, int i) {
  struct kit_op *op = &ops[i];
  if (op->done) return false;
  if (!op->req && (i == 0 || ops[i - 1].req || ops[i - 1].done)) kit_op_post(conn->net, op);
  bool tested = op->req && (i == 0 || ops[i - 1].done), now = tested && kit_op_test(conn->net, op);
  ENSURE(!op->error, "%s %d ended with error %s", op->kind == KIT_OP_SEND ? "send" : "receive", i,
         kit_rc_text(op->error));
  return now;
}

static bool all_over(const struct kit_op *ops) {
  for (int i = 0; i < IN_FLIGHT; i++)
    if (ops[i].comm && !ops[i].done) return false;
  return true;
}

/* done means done: the caller scribbles over the send buffer, deregisters and unmaps it, at that moment. */
static void a_finished_send_needs_its_buffer_no_more(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  uint8_t *in[IN_FLIGHT], *out[IN_FLIGHT];
  for (int i = 0; i < IN_FLIGHT; i++) in[i] = kit_conn_high(&conn, in_flight_size);
  for (int round = 0; round < kit_scaled(40); round++) {
    struct kit_op send[IN_FLIGHT], recv[IN_FLIGHT];
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS)), seed = (uint64_t)round * IN_FLIGHT;
    for (int i = 0; i < IN_FLIGHT; i++) {
      out[i] = kit_conn_high(&conn, in_flight_size);
      kit_pattern_fill(out[i], in_flight_size, seed + (uint64_t)i);
      send[i] = kit_conn_send(&conn, out[i], in_flight_size, 0);
      recv[i] = kit_conn_recv(&conn, in[i], in_flight_size, 0);
    }
    while (!all_over(send) || !all_over(recv)) {
      for (int i = 0; i < IN_FLIGHT; i++) {
        step_in_flight(&conn, recv, i);
        if (!step_in_flight(&conn, send, i)) continue;
        memset(out[i], 0xee, in_flight_size);
        kit_conn_free(&conn, out[i]);
      }
      ENSURE(!rail_deadline_passed(deadline), "transfers of %zu bytes are not done at the deadline", in_flight_size);
    }
    for (int i = 0; i < IN_FLIGHT; i++) {
      ssize_t wrong = conn.receives ? kit_pattern_check(in[i], in_flight_size, seed + (uint64_t)i) : -1;
      ENSURE(wrong < 0, "byte %zd of %zu is what the sender wrote over its buffer after test had said done: NCCL "
             "reuses a step's buffer at that moment", wrong, in_flight_size);
      if (!conn.sends) kit_conn_free(&conn, out[i]);
    }
  }
  kit_conn_close(&conn);
}

static void requests_are_reused_without_end(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  int *out = (int *)(void *)kit_conn_high(&conn, sizeof *out), *in = (int *)(void *)kit_conn_high(&conn, sizeof *in);
  for (int i = 0; i < kit_scaled(8000); i++) {
    *out = i;
    *in = -1;
    struct kit_op ops[2] = {kit_conn_recv(&conn, in, sizeof *in, i & 3), kit_conn_send(&conn, out, sizeof *out, i & 3)};
    kit_conn_run(&conn, ops, 2, KIT_OPS_OLDEST);
    if (conn.receives) ENSURE(*in == i, "message %d arrived as %d", i, *in);
  }
  kit_conn_close(&conn);
}

#define NET "src/transport/net.cc:"

const struct kit_check kit_checks_requests[] = {
    {"6.1", "requests.request_and_done_are_always_written", KIT_MUST, KIT_ONE, .limit_s = 40,
     .what = "isend, irecv and test write *request and *done at every return of 0: NCCL's variables hold old pointers "
             "and nothing at all.",
     .source = NET "1414-1416, 1433, 1584, 1615", .run = request_and_done_are_always_written},
    {"6.2", "requests.done_is_written_while_a_request_is_not", KIT_MUST, KIT_ONE, .limit_s = 40,
     .what = "test writes 0 to *done as long as a transfer is not complete.",
     .source = NET "1433, 1615, 1698", .run = done_is_written_while_a_request_is_not},
    {"6.3", "requests.sizes_may_be_null", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "test accepts NULL for sizes, of sends and receives.",
     .source = "src/bootstrap.cc:174, 189", .run = sizes_may_be_null},
    {"6.4", "requests.all_requests_outstanding", KIT_MUST, KIT_ONE, .limit_s = 40,
     .what = "32 receives of maxRecvs buffers each and 32 x maxRecvs sends may be outstanding; NULL in *request "
             "delays, nothing fails.",
     .source = "plugins/net/README.md:330-337; " NET "1302", .run = all_requests_outstanding},
    {"6.5", "requests.all_requests_fit_at_once", KIT_SHOULD, KIT_ONE, .limit_s = 40,
     .what = "All of these have a request before the first of them is tested.",
     .source = "plugins/net/README.md:330-337", .run = all_requests_fit_at_once},
    {"6.6", "requests.full_table_is_not_an_error", KIT_SHOULD, KIT_ONE, .limit_s = 40,
     .what = "More requests than the plugin has place for are NULL, which NCCL repeats, and not an error, which ends "
             "the job.",
     .source = "plugins/net/README.md:135-137; " NET "1414", .run = full_table_is_not_an_error},
    {"6.7", "requests.a_finished_send_needs_its_buffer_no_more", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "When test says that a send is done, its buffer may be overwritten, deregistered and unmapped at once.",
     .source = NET "1433-1440; plugins/net/README.md, test", .run = a_finished_send_needs_its_buffer_no_more},
    {"6.8", "requests.requests_are_reused_without_end", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "A finished request's place is free again, thousands of times.",
     .source = NET "1593, 1735-1742", .run = requests_are_reused_without_end},
    {"6.9", "requests.a_receive_writes_its_size", KIT_SHOULD, KIT_ONE, .limit_s = 40,
     .what = "test writes a finished receive's size even if it is 0; NCCL zeroes the array before, others need not.",
     .source = NET "1617-1620", .run = a_receive_writes_its_size},
    {"6.10", "requests.a_send_reports_its_size", KIT_SHOULD, KIT_TWO, .limit_s = 40,
     .what = "test writes a finished send's size: NCCL passes one int for it.",
     .source = NET "1434-1436", .run = a_send_reports_its_size},
    {0},
};
