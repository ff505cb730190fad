/* SPDX-License-Identifier: Apache-2.0
 * Messages pair up in posting order, whatever is tested when, in the shapes that NCCL's proxy gives to its traffic. */
#include <sched.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

enum { ROOM = 4096, MANY = RAIL_NET_MAX_REQUESTS };

/* MANY messages' buffers of one connection. */
struct batch {
  struct kit_conn *conn;
  uint8_t *out, *in;
  uint64_t seed;
};

static struct batch batch_make(struct kit_conn *conn, uint64_t seed) {
  uint8_t *out = kit_conn_high(conn, MANY * ROOM);
  return (struct batch){.conn = conn, .out = out, .in = kit_conn_high(conn, MANY * ROOM), .seed = seed};
}

/* `count` messages of random sizes: receives and sends each `stride` apart. */
static void batch_prepare(struct batch *b, struct kit_op *recvs, struct kit_op *sends, int count, int stride) {
  for (int i = 0; i < count; i++) {
    size_t size = kit_rng_below(&b->conn->rng, ROOM + 1);
    uint8_t *out = b->out + i * ROOM, *in = b->in + i * ROOM;
    kit_pattern_fill(out, size, b->seed + (uint64_t)i);
    memset(in, 0xcc, ROOM);
    recvs[i * stride] = kit_conn_recv(b->conn, in, ROOM, 5);
    sends[i * stride] = kit_conn_send(b->conn, out, size, 5);
  }
}

static void batch_verify(const struct batch *b, const struct kit_op *recvs, const struct kit_op *sends, int count,
                         int stride) {
  for (int i = 0; b->conn->receives && i < count; i++) {
    int got = recvs[i * stride].sizes[0];
    size_t size = sends[i * stride].size[0];
    ENSURE(got == (int)size, "receive %d of %d got %d bytes, send %d had %zu: the k-th send belongs to the k-th "
           "receive, whatever is tested first", i, count, got, i, size);
    ssize_t wrong = kit_pattern_check(b->in + i * ROOM, size, b->seed + (uint64_t)i);
    ENSURE(wrong < 0, "receive %d of %d does not hold message %d (%zu bytes, from byte %zd)", i, count, i, size, wrong);
  }
}

static void rounds(struct kit_conn *conn, enum kit_ops_order order, bool sends_first, int times) {
  static struct kit_op ops[2 * MANY];
  struct kit_op *recvs = ops + (sends_first ? MANY : 0), *sends = ops + (sends_first ? 0 : MANY);
  struct batch b = batch_make(conn, 1);
  for (int r = 0; r < times; r++) {
    batch_prepare(&b, recvs, sends, MANY, 1);
    kit_conn_run(conn, ops, 2 * MANY, order);
    batch_verify(&b, recvs, sends, MANY, 1);
  }
  kit_conn_free(conn, b.out);
  kit_conn_free(conn, b.in);
}

/* NCCL lets several operations share a comm when maxRecvs is above 1, and then tests in no order. */
static void needs_sharing(const struct kit_conn *conn) {
  if (conn->max_recvs < 2)
    kit_skip("maxRecvs is 1: NCCL shares no comm and tests oldest first; order.unshared_in_any_order tries it anyway");
}

static void in_order(struct kit_process *self, enum kit_ops_order order, bool sends_first) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  if (order != KIT_OPS_OLDEST) needs_sharing(&conn);
  rounds(&conn, order, sends_first, kit_scaled(200));
  kit_conn_close(&conn);
}

static void oldest_first(struct kit_process *self) { in_order(self, KIT_OPS_OLDEST, false); }
static void sends_before_receives(struct kit_process *self) { in_order(self, KIT_OPS_OLDEST, true); }
static void all_in_every_pass(struct kit_process *self) { in_order(self, KIT_OPS_FORWARD, false); }
static void newest_first(struct kit_process *self) { in_order(self, KIT_OPS_BACKWARD, false); }
static void any_order(struct kit_process *self) { in_order(self, KIT_OPS_SHUFFLED, true); }

/* Progress must not depend on tests of the older ones. */
static void newest_only(struct kit_conn *conn, int times) {
  enum { FEW = 4 };
  struct batch b = batch_make(conn, 7);
  for (int r = 0; r < times; r++) {
    struct kit_op recv[FEW], send[FEW], *ops[2] = {recv, send};
    bool over[2] = {!conn->receives, !conn->sends};
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS / 2));
    batch_prepare(&b, recv, send, FEW, 1);
    for (int posted[2] = {0, 0}; !over[0] || !over[1];) {
      for (int k = 0; k < 2; k++) {
        struct kit_op *newest = &ops[k][FEW - 1];
        while (posted[k] < FEW && kit_op_post(conn->net, &ops[k][posted[k]])) posted[k]++;
        if (!over[k] && posted[k] == FEW) over[k] = kit_op_test(conn->net, newest);
        ENSURE(!newest->error && (posted[k] == FEW || !ops[k][posted[k]].error), "%s ended with an error",
               k ? "a send" : "a receive");
      }
      ENSURE(!rail_deadline_passed(deadline), "4 transfers are posted and only the newest is tested: it is never done. "
             "NCCL may leave an older one alone for long when operations share a comm");
      sched_yield();
    }
    for (int i = 0; i < FEW; i++) {
      kit_op_finish(conn->net, &recv[i]);
      kit_op_finish(conn->net, &send[i]);
    }
    batch_verify(&b, recv, send, FEW, 1);
  }
  kit_conn_free(conn, b.out);
  kit_conn_free(conn, b.in);
}

static void only_the_newest_is_tested(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  needs_sharing(&conn);
  newest_only(&conn, kit_scaled(50));
  kit_conn_close(&conn);
}

static void two_comms_interleaved(struct kit_process *self) {
  static struct kit_op ops[4 * MANY];
  struct kit_conn conn[2];
  struct batch b[2];
  kit_conn_open(&conn[0], self);
  kit_conn_join(&conn[1], &conn[0], 1);
  for (int w = 0; w < 2; w++) b[w] = batch_make(&conn[w], 1000 * (uint64_t)w);
  for (int r = 0; r < kit_scaled(100); r++) {
    for (int w = 0; w < 2; w++) batch_prepare(&b[w], ops + w, ops + 2 * MANY + w, MANY, 2);
    kit_conn_run(&conn[0], ops, 4 * MANY, conn[0].max_recvs > 1 ? KIT_OPS_SHUFFLED : KIT_OPS_OLDEST);
    for (int w = 0; w < 2; w++) batch_verify(&b[w], ops + w, ops + 2 * MANY + w, MANY, 2);
  }
  kit_conn_close(&conn[1]);
  kit_conn_close(&conn[0]);
}

/* With no receive posted: NULL or pending or (copied) done; never lost, never an error. */
static void a_send_waits_for_its_receive(struct kit_process *self) {
  static const size_t size[] = {0, 10, 70000, 1 << 20};
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  uint8_t *out = kit_conn_high(&conn, 1 << 20), *in = kit_conn_high(&conn, 1 << 20);
  for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
    kit_pattern_fill(out, size[i], i);
    struct kit_op ops[2] = {kit_conn_recv(&conn, in, 1 << 20, 1), kit_conn_send(&conn, out, size[i], 1)};
    uint64_t until = rail_deadline_in_ms(100);
    while (!rail_deadline_passed(until)) {
      if (ops[1].req) kit_op_test(conn.net, &ops[1]);
      else if (!ops[1].done) kit_op_post(conn.net, &ops[1]);
      ENSURE(!ops[1].error, "a send of %zu bytes, its receive not posted yet, ended with error %s: the peer may be "
             "late", size[i], kit_rc_text(ops[1].error));
    }
    kit_conn_run(&conn, ops, 2, KIT_OPS_OLDEST);
    ENSURE(ops[0].sizes[0] == (int)size[i] && kit_pattern_check(in, size[i], i) < 0,
           "a send of %zu bytes, posted 100 ms before its receive, arrived wrong (%d bytes)", size[i], ops[0].sizes[0]);
  }
  kit_conn_close(&conn);
}

/* ---- a long stream of small messages, the sender as far ahead as it may run ---- */

enum { WINDOW = 16, MAX_BYTES = 300, PLACE = MAX_BYTES + 8 };

struct stream {
  struct kit_conn *conn;
  enum kit_op_kind kind;
  enum kit_ops_order order;
  uint64_t count, posted, done;
  struct kit_op op[WINDOW];
  uint8_t *buf;
};

static size_t stream_size(uint64_t i) { return (size_t)(((i + 1) * 0x9e3779b97f4a7c15ull >> 33) % (MAX_BYTES + 1)); }

/* The message's number, then bytes that follow from it; short ones hold what fits. */
static void compose(uint8_t *data, uint64_t i) {
  uint8_t whole[PLACE];
  memcpy(whole, &i, 8);
  memset(whole + 8, (int)(i * 7 + 1) & 0xff, MAX_BYTES);
  memcpy(data, whole, stream_size(i));
}

static bool stream_post(struct stream *s) {
  uint64_t i = s->posted;
  if (i == s->count || i == s->done + WINDOW) return false;
  struct kit_op *op = &s->op[i % WINDOW];
  uint8_t *data = s->buf + i % WINDOW * PLACE;
  if (s->kind == KIT_OP_SEND) compose(data, i);
  *op = s->kind == KIT_OP_SEND ? kit_conn_send(s->conn, data, stream_size(i), 4)
                               : kit_conn_recv(s->conn, data, MAX_BYTES, 4);
  bool taken = kit_op_post(s->conn->net, op);
  ENSURE(!op->error, "message %llu: error %s", (unsigned long long)i, kit_rc_text(op->error));
  s->posted += taken;
  return taken;
}

static void stream_test(struct stream *s) {
  int n = (int)(s->posted - s->done), at[WINDOW];
  for (int i = 0; i < n; i++) at[i] = s->order == KIT_OPS_BACKWARD ? n - 1 - i : i;
  if (s->order == KIT_OPS_SHUFFLED) kit_rng_shuffle(&s->conn->own_rng, at, n);
  for (int i = 0; i < n; i++) {
    uint64_t message = s->done + (uint64_t)at[i];
    struct kit_op *op = &s->op[message % WINDOW];
    bool over = op->done || kit_op_test(s->conn->net, op);
    ENSURE(!op->error, "message %llu: error %s", (unsigned long long)message, kit_rc_text(op->error));
    if (!over && s->order == KIT_OPS_OLDEST) break;
  }
}

static void stream_retire(struct stream *s) {
  uint8_t expected[PLACE], *data = s->buf + s->done % WINDOW * PLACE;
  const struct kit_op *op = &s->op[s->done % WINDOW];
  if (s->kind == KIT_OP_SEND) memset(data, 0xdd, PLACE); /* ours again */
  else if (op->comm) {
    size_t size = stream_size(s->done);
    compose(expected, s->done);
    ENSURE(op->sizes[0] == (int)size, "message %llu of %llu arrived with %d bytes, sent %zu",
           (unsigned long long)s->done, (unsigned long long)s->count, op->sizes[0], size);
    ENSURE(memcmp(data, expected, size) == 0, "message %llu of %llu (%zu bytes) holds something else, up to 16 being "
           "outstanding", (unsigned long long)s->done, (unsigned long long)s->count, size);
  }
  s->done++;
}

static bool stream_step(struct stream *s) {
  uint64_t before = s->posted + s->done;
  while (stream_post(s)) {}
  stream_test(s);
  while (s->done < s->posted && s->op[s->done % WINDOW].done) stream_retire(s);
  return s->posted + s->done != before;
}

static void flood(struct kit_conn *conn, enum kit_ops_order order, int count) {
  static struct stream out, in;
  out = (struct stream){.conn = conn, .kind = KIT_OP_SEND, .order = order, .count = (uint64_t)count};
  in = (struct stream){.conn = conn, .kind = KIT_OP_RECV, .order = order, .count = (uint64_t)count};
  out.buf = kit_conn_high(conn, WINDOW * PLACE);
  in.buf = kit_conn_high(conn, WINDOW * PLACE);
  uint64_t idle = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (in.done < in.count || out.done < out.count) {
    bool moved = stream_step(&out);
    moved |= stream_step(&in);
    if (moved) idle = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    else sched_yield();
    ENSURE(!rail_deadline_passed(idle), "a stream of %d small messages stands still: %llu sent, %llu received here",
           count, (unsigned long long)(conn->sends ? out.done : 0), (unsigned long long)(conn->receives ? in.done : 0));
  }
  kit_conn_free(conn, out.buf);
  kit_conn_free(conn, in.buf);
}

static void flood_tested(struct kit_process *self, enum kit_ops_order order) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  if (order != KIT_OPS_OLDEST) needs_sharing(&conn);
  flood(&conn, order, kit_scaled(order == KIT_OPS_OLDEST ? 40000 : 15000));
  kit_conn_close(&conn);
}

static void flood_oldest_first(struct kit_process *self) { flood_tested(self, KIT_OPS_OLDEST); }
static void flood_all_in_every_pass(struct kit_process *self) { flood_tested(self, KIT_OPS_FORWARD); }
static void flood_newest_first(struct kit_process *self) { flood_tested(self, KIT_OPS_BACKWARD); }
static void flood_any_order(struct kit_process *self) { flood_tested(self, KIT_OPS_SHUFFLED); }

/* What NCCL spares a plugin with maxRecvs 1, and its own socket transport does not survive. */
static void unshared_in_any_order(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  if (conn.max_recvs > 1) kit_skip("maxRecvs is %d: the other checks of order ask for all of it", conn.max_recvs);
  for (enum kit_ops_order order = KIT_OPS_FORWARD; order <= KIT_OPS_SHUFFLED; order++) {
    rounds(&conn, order, false, kit_scaled(50));
    flood(&conn, order, kit_scaled(10000));
  }
  newest_only(&conn, kit_scaled(20));
  kit_conn_close(&conn);
}

/* ---- one connection as NCCL's proxy drives it ---- */

/* A connection's protocol buffers are cut into 8 slots. LL and LL128 send a slot at a time, up to 8 in flight; Simple
 * two slots as one message, up to 4 in flight. A slot is used again when its message is done. */
static const struct protocol {
  size_t size;
  int slots_at_once;
} protocols[] = {{524288, 1}, {4915200, 1}, {4194304, 2}};
enum { NPROTOS = 3, STEPS = 8, MAX_MESSAGES = 400 };

struct message { int proto, op; size_t at, room, size; };

struct fifo {
  struct kit_conn *conn;
  uint8_t *buf[NPROTOS];
  struct message plan[MAX_MESSAGES];
  int count;
};

/* Operations of 1 to 40 steps, each with one protocol. Most messages are full; some are shorter, and some empty, as the
 * slices at the end of an operation. */
static void fifo_plan(struct fifo *f, int count) {
  size_t step[NPROTOS] = {0};
  for (f->count = 0; f->count < count;) {
    int proto = (int)kit_rng_below(&f->conn->rng, NPROTOS), steps = 1 + (int)kit_rng_below(&f->conn->rng, 40);
    const struct protocol *p = &protocols[proto];
    int op = f->count;
    for (int i = 0; i < steps && f->count < count; i++) {
      struct message *m = &f->plan[f->count++];
      size_t slot = p->size / STEPS, kind = kit_rng_below(&f->conn->rng, 8);
      *m = (struct message){.proto = proto, .op = op, .room = slot * (size_t)p->slots_at_once};
      m->at = step[proto] % STEPS * slot;
      m->size = kind == 0 ? 0 : kind < 3 ? kit_rng_below(&f->conn->rng, (uint32_t)m->room) : m->room;
      step[proto] += (size_t)p->slots_at_once;
    }
  }
}

/* May message `next` be posted, `done` being the oldest that is not done? */
static bool fifo_room(const struct fifo *f, int next, int done) {
  const struct message *m = &f->plan[next];
  if (next == f->count) return false;
  return next == done || (f->plan[done].op == m->op && next - done < STEPS / protocols[m->proto].slots_at_once);
}

static void fifo_drive(struct fifo *f, bool sends) {
  struct kit_op ring[STEPS];
  struct kit_conn *conn = f->conn;
  const char *what = sends ? "send" : "receive";
  int posted = 0, done = 0;
  uint64_t idle = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (; done < f->count; sched_yield()) {
    bool moved = false;
    while (fifo_room(f, posted, done)) {
      struct kit_op *op = &ring[posted % STEPS];
      const struct message *m = &f->plan[posted];
      uint8_t *data = f->buf[m->proto] + m->at;
      if (sends) kit_pattern_fill(data, m->size, (uint64_t)posted);
      *op = sends ? kit_conn_send(conn, data, m->size, 0) : kit_conn_recv(conn, data, m->room, 0);
      bool taken = kit_op_post(conn->net, op);
      ENSURE(!op->error, "%s %d returned error %s", what, posted, kit_rc_text(op->error));
      if (!taken) break;
      posted++;
    }
    for (; done < posted && kit_op_test(conn->net, &ring[done % STEPS]); done++, moved = true) {
      const struct message *m = &f->plan[done];
      uint8_t *data = f->buf[m->proto] + m->at;
      ENSURE(!ring[done % STEPS].error, "%s %d ended with error %s", what, done, kit_rc_text(ring[done % STEPS].error));
      ENSURE(sends || ring[done % STEPS].sizes[0] == (int)m->size, "step %d of protocol %d got %d bytes, sent %zu",
             done, m->proto, ring[done % STEPS].sizes[0], m->size);
      ssize_t wrong = sends ? -1 : kit_pattern_check(data, m->size, (uint64_t)done);
      ENSURE(wrong < 0, "step %d (%zu bytes, protocol %d, slot at %zu) arrived wrong from byte %zd", done, m->size,
             m->proto, m->at, wrong);
    }
    if (moved) idle = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    ENSURE(!rail_deadline_passed(idle), "%s %d of %d is not done at the deadline, %d later ones are posted", what, done,
           f->count, posted - done - 1);
  }
}

static void nccl_steps(struct kit_process *self) {
  static struct fifo f;
  static struct kit_conn conn;
  kit_conn_open(&conn, self);
  f.conn = &conn;
  size_t whole = 1152; /* one allocation for all three, and not at a page's start */
  for (int i = 0; i < NPROTOS; i++) whole += protocols[i].size;
  struct kit_guarded memory = kit_guard_low(whole);
  uint8_t *at = memory.data + 1152;
  for (int i = 0; i < NPROTOS; at += protocols[i++].size) kit_conn_reg(&conn, f.buf[i] = at, protocols[i].size);
  fifo_plan(&f, kit_scaled(MAX_MESSAGES));
  fifo_drive(&f, conn.sends);
  kit_conn_close(&conn);
  kit_guard_free(&memory);
}

#define NET "src/transport/net.cc:"
#define BELOW NET "1435, 1620 (shared comms: 867, 1053, 1477-1513)"

const struct kit_check kit_checks_order[] = {
    {"8.1", "order.oldest_first", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "The k-th send arrives in the k-th receive, with 32 of each outstanding.",
     .source = NET "1435, 1620", .run = oldest_first},
    {"8.2", "order.sends_before_receives", KIT_MUST, KIT_ONE, .limit_s = 40,
     .what = "The same where sends are posted before their receives.",
     .source = NET "1414", .run = sends_before_receives},
    {"8.3", "order.a_send_waits_for_its_receive", KIT_MUST, KIT_ONE, .limit_s = 40,
     .what = "A send whose receive is not posted yet gives NULL or stays pending; it is no error, and nothing is lost.",
     .source = NET "1414", .run = a_send_waits_for_its_receive},
    {"8.4", "order.two_comms_interleaved", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "Transfers of two connections, posted and tested in turns, do not disturb each other.",
     .source = NET "1435, 1620", .run = two_comms_interleaved},
    {"8.5", "order.nccl_steps", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "LL, LL128 and Simple buffers of 8 slots, used again and again with up to 8 messages in flight, carry "
             "every message.",
     .source = NET "1323, 1519, 984-1015; src/init.cc:810-826", .run = nccl_steps},
    {"8.6", "flood.on_one_thread", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "Of 40000 small messages none is lost, doubled or out of order, both ends driven by one thread.",
     .source = NET "1414", .run = flood_oldest_first},
    {"8.7", "flood.from_another_process", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "The same between two processes, the sender as far ahead as it may run.",
     .source = NET "1414", .run = flood_oldest_first},
    {"8.8", "order.all_in_every_pass", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "All outstanding requests may be tested in every pass, not only the oldest.",
     .source = BELOW, .run = all_in_every_pass},
    {"8.9", "order.newest_first", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "Requests may be tested newest first; messages keep the order of posting.",
     .source = BELOW, .run = newest_first},
    {"8.10", "order.any_order", KIT_MUST, KIT_ONE, .limit_s = 40,
     .what = "Requests may be tested in any order; messages keep the order of posting.",
     .source = BELOW, .run = any_order},
    {"8.11", "order.only_the_newest_is_tested", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "A request gets done though older ones of its comm are not tested.",
     .source = BELOW, .run = only_the_newest_is_tested},
    {"8.12", "flood.all_in_every_pass", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "A long stream of small messages survives tests of all that is outstanding.",
     .source = BELOW, .run = flood_all_in_every_pass},
    {"8.13", "flood.newest_first", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "A long stream of small messages survives tests newest first.",
     .source = BELOW, .run = flood_newest_first},
    {"8.14", "flood.any_order", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "A long stream of small messages survives tests in any order.", .source = BELOW, .run = flood_any_order},
    {"8.15", "order.unshared_in_any_order", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = "With maxRecvs 1, too, any order of tests is safe: NCCL's own socket transport mixes up its stream.",
     .source = "src/transport/net_socket.cc:608-672", .run = unshared_in_any_order},
    {0},
};
