/* SPDX-License-Identifier: Apache-2.0
 * Item 12, closing: it always succeeds and soon, whatever is outstanding, and what was done before it still arrives. */
#include <sched.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

static void null(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  kit_net_open(&n);
  int a = n.vt->close_send(NULL), b = n.vt->close_recv(NULL), c = n.vt->close_listen(NULL);
  ENSURE(a == 0 && b == 0 && c == 0,
         "closeSend(NULL), closeRecv(NULL), closeListen(NULL) returned %s, %s, %s, expected 0: NCCL makes these calls "
         "for a connection that failed while it was set up", kit_rc_text(a), kit_rc_text(b), kit_rc_text(c));
  kit_net_close(&n);
}

static void never_used(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  for (int i = 0; i < 4; i++) {
    kit_pair_open(&n, &p);
    kit_close_pair_within(&p, i % 2, KIT_CLOSE_HUNG_MS);
  }
  kit_net_close(&n);
}

/* ---- with requests outstanding ---- */

enum { DEPTH = 8 };
#define BULK ((size_t)8 << 20)

struct loaded { struct kit_pair p; void *mh_out, *mh_in; };

/* Everything that can be outstanding: more data than the sockets hold, receives without sends. */
static void load(struct loaded *l, bool sends, bool receives, bool tests, uint8_t *out, uint8_t *in) {
  struct kit_net *n = l->p.net;
  struct kit_op op;
  sends &= l->p.send != NULL;
  receives &= l->p.recv != NULL;
  l->mh_out = sends ? kit_mr_reg(n, l->p.send, out, BULK) : NULL;
  l->mh_in = receives ? kit_mr_reg(n, l->p.recv, in, BULK) : NULL;
  for (int i = 0; i < DEPTH; i++) {
    op = kit_op_recv(l->p.recv, in, BULK, 0);
    op.mh[0] = l->mh_in;
    if (receives) kit_op_post(n, &op);
    ENSURE(!op.error, "irecv number %d returned %s, expected 0", i, kit_rc_text(op.error));
    op = kit_op_send(l->p.send, out, BULK, 0);
    op.mh[0] = l->mh_out;
    for (int tries = 0; sends && tries < 100 && !op.error; tries++)
      if (kit_op_post(n, &op)) break;
    ENSURE(!op.error, "isend number %d returned %s, expected 0", i, kit_rc_text(op.error));
    if (tests && op.req) kit_op_test(n, &op);
  }
}

/* deregMr, then close, as NCCL does. The memory may go after deregMr. */
static void close_sender(struct loaded *l, uint64_t limit_ms) {
  if (!l->p.send) return;
  if (l->mh_out) kit_mr_dereg(l->p.net, l->p.send, l->mh_out);
  kit_close_within(l->p.net->vt->close_send, l->p.send, "closeSend", limit_ms);
  l->p.send = NULL;
}

static void close_receiver(struct loaded *l, uint64_t limit_ms) {
  if (!l->p.recv) return;
  if (l->mh_in) kit_mr_dereg(l->p.net, l->p.recv, l->mh_in);
  kit_close_within(l->p.net->vt->close_recv, l->p.recv, "closeRecv", limit_ms);
  l->p.recv = NULL;
}

static void close_loaded(struct loaded *l, bool send_first) {
  if (send_first) close_sender(l, KIT_CLOSE_HUNG_MS);
  close_receiver(l, KIT_CLOSE_HUNG_MS);
  close_sender(l, KIT_CLOSE_HUNG_MS);
}

static void with_requests_outstanding(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct loaded l = {0};
  struct kit_pair p;
  kit_net_open(&n);
  for (int round = 0; round < 12; round++) {
    uint8_t *out = kit_pages(BULK), *in = kit_pages(BULK);
    kit_pair_open(&n, &l.p);
    load(&l, round % 3 != 2, round % 3 != 1, round % 2, out, in);
    close_loaded(&l, round % 2);
    kit_pages_free(out, BULK); /* nothing may touch these any more: they fault from here on */
    kit_pages_free(in, BULK);
    kit_pair_open(&n, &p); /* what takes the old one's place begins anew */
    for (int i = 0; i < 3; i++) kit_pair_ping(&p, 50000, 10 * (uint64_t)round + (uint64_t)i);
    kit_pair_close(&p);
  }
  kit_net_close(&n);
}

static void both_directions_at_once(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct loaded a = {0}, b = {0};
  kit_net_open(&n);
  for (int round = 0; round < 10; round++) {
    uint8_t *mem[4];
    for (int i = 0; i < 4; i++) mem[i] = kit_pages(BULK);
    kit_pair_open(&n, &a.p);
    kit_pair_open(&n, &b.p);
    load(&a, true, true, round % 2, mem[0], mem[1]);
    load(&b, true, true, round % 2, mem[2], mem[3]);
    close_loaded(&a, round % 3 == 0);
    close_loaded(&b, round % 3 == 1);
    for (int i = 0; i < 4; i++) kit_pages_free(mem[i], BULK);
  }
  kit_net_close(&n);
}

/* Ends of many connections, idle and loaded, in no order at all; the listen comm last, as bootstrap does. */
static void in_any_order(struct kit_process *self) {
  (void)self;
  enum { COUNT = 8 };
  struct kit_net n;
  struct loaded l[COUNT] = {0};
  struct kit_rng rng;
  kit_net_open(&n);
  kit_rng_start(&rng);
  uint8_t *out = kit_pages(BULK), *in = kit_pages(BULK);
  for (int round = 0; round < kit_scaled(5); round++) {
    int order[2 * COUNT];
    char handle[RAIL_NET_HANDLE_SIZE];
    void *listen = kit_net_listen(&n, handle);
    for (int i = 0; i < COUNT; i++) {
      kit_pair_open(&n, &l[i].p);
      kit_pair_ping(&l[i].p, (size_t)i * 1000, (uint64_t)i);
      load(&l[i], i & 1, i & 2, i & 4, out, in);
    }
    for (int i = 0; i < 2 * COUNT; i++) order[i] = i;
    kit_rng_shuffle(&rng, order, 2 * COUNT);
    for (int i = 0; i < 2 * COUNT; i++)
      (order[i] % 2 ? close_sender : close_receiver)(&l[order[i] / 2], KIT_CLOSE_HUNG_MS);
    kit_close_within(n.vt->close_listen, listen, "closeListen", KIT_CLOSE_HUNG_MS);
  }
  kit_net_close(&n);
}

/* Connections come and go, some with news and some with requests, under the eyes of whatever threads there are. */
static void many_come_and_go(struct kit_process *self) {
  (void)self;
  enum { AT_ONCE = 80, SIZE = 200000 };
  struct kit_net n;
  static struct kit_pair p[AT_ONCE];
  static struct kit_op op[AT_ONCE];
  uint8_t *buf = kit_pages(SIZE);
  int at_once = kit_scaled(AT_ONCE);
  uint64_t deadline = rail_deadline_in_ms(1000);
  kit_net_open(&n);
  for (int round = 0; !rail_deadline_passed(deadline); round++) {
    for (int i = 0; i < at_once; i++) {
      kit_pair_open(&n, &p[i]);
      bool sends = i % 3 == 0;
      op[i] = sends ? kit_op_send(p[i].send, buf, 100, 0) : kit_op_recv(p[i].recv, buf, SIZE, 0);
      op[i].mh[0] = kit_mr_reg(&n, op[i].comm, buf, SIZE);
      if (i % 3 < 2) kit_op_post(&n, &op[i]);
    }
    kit_sleep_ms((uint64_t)(round * 37 % 130)); /* some of them live to see a timer go off */
    for (int i = 0; i < at_once; i++) {
      kit_mr_dereg(&n, op[i].comm, op[i].mh[0]);
      kit_close_pair_within(&p[i], round % 2, KIT_CLOSE_HUNG_MS);
    }
  }
  kit_net_close(&n);
}

/* ---- what was done arrives ---- */

enum { MAX_MESSAGES = 16, AHEAD = 8, LARGEST = 1000000 }; /* some rounds exceed what the receiving socket holds */

struct last_messages {
  struct kit_net *net;
  struct kit_pair p;
  struct kit_op send[MAX_MESSAGES], recv[MAX_MESSAGES + AHEAD];
  int count, ahead, sent, got, posted, receives;
  uint8_t *out, *in;
};

static void prepare(struct last_messages *f, struct kit_rng *rng, uint64_t seed) {
  f->count = 1 + (int)kit_rng_below(rng, MAX_MESSAGES);
  f->ahead = (int)kit_rng_below(rng, AHEAD);
  f->sent = f->got = f->posted = f->receives = 0;
  void *mh_out = kit_mr_reg(f->net, f->p.send, f->out, (size_t)MAX_MESSAGES * LARGEST);
  void *mh_in = kit_mr_reg(f->net, f->p.recv, f->in, (size_t)(MAX_MESSAGES + AHEAD) * LARGEST);
  for (int i = 0; i < f->count + f->ahead; i++) {
    f->recv[i] = kit_op_recv(f->p.recv, f->in + (size_t)i * LARGEST, LARGEST, 0);
    f->recv[i].mh[0] = mh_in;
  }
  for (int i = 0; i < f->count; i++) {
    size_t size = kit_rng_below(rng, 3) ? kit_rng_below(rng, 3000) : kit_rng_below(rng, LARGEST + 1);
    f->send[i] = kit_op_send(f->p.send, f->out + (size_t)i * LARGEST, size, 0);
    f->send[i].mh[0] = mh_out;
    kit_pattern_fill(f->send[i].data[0], size, seed + (uint64_t)i);
  }
}

/* The receiver posts, also more than will ever come, and tests only now and then. */
static void send_all(struct last_messages *f, struct kit_rng *rng) {
  struct kit_net *n = f->net;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (f->sent < f->count) {
    if (f->receives < f->count + f->ahead) {
      if (kit_op_post(n, &f->recv[f->receives])) f->receives++;
      else ENSURE(!f->recv[f->receives].error, "irecv returned %s", kit_rc_text(f->recv[f->receives].error));
    }
    if (f->posted < f->count && kit_op_post(n, &f->send[f->posted])) f->posted++;
    while (f->sent < f->posted && kit_op_test(n, &f->send[f->sent])) {
      ENSURE(!f->send[f->sent].error, "the send of message %d ended with error %s", f->sent,
             kit_rc_text(f->send[f->sent].error));
      f->sent++;
    }
    if (f->got < f->receives && !kit_rng_below(rng, 4) && kit_op_test(n, &f->recv[f->got])) {
      ENSURE(!f->recv[f->got].error, "the receive of message %d ended with error %s", f->got,
             kit_rc_text(f->recv[f->got].error));
      f->got++;
    }
    ENSURE(!rail_deadline_passed(deadline), "%d of %d messages sent at the deadline", f->sent, f->count);
  }
}

static void take_all(struct last_messages *f, int round, uint64_t seed) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (f->got < f->count) {
    struct kit_op *next = &f->recv[f->got];
    if (f->receives <= f->got && kit_op_post(f->net, next)) f->receives++;
    bool done = f->got < f->receives && kit_op_test(f->net, next);
    ENSURE(!next->error && !rail_deadline_passed(deadline),
           "round %d: message %d of %d %s (error %s); its send was done before closeSend: NCCL counts it as delivered",
           round, f->got, f->count, next->error ? "was lost" : "never came", kit_rc_text(next->error));
    f->got += done;
  }
  for (int i = 0; i < f->count; i++)
    ENSURE(f->recv[i].sizes[0] == (int)f->send[i].size[0] &&
               kit_pattern_check(f->recv[i].data[0], f->send[i].size[0], seed + (uint64_t)i) < 0,
           "round %d: message %d of %d arrived wrong (%d bytes, sent %zu)", round, i, f->count, f->recv[i].sizes[0],
           f->send[i].size[0]);
}

/* The last completion is followed by close at once; meanwhile the receiver has not looked, and has itself sent things
 * (grants, credits) that the closing side has not read: closing such a socket carelessly resets it and takes the data
 * away. */
static void the_last_message_still_arrives(struct kit_process *self) {
  (void)self;
  static struct kit_net n;
  static struct last_messages f;
  struct kit_rng rng;
  kit_net_open(&n);
  kit_rng_start(&rng);
  f.net = &n;
  f.out = kit_pages((size_t)MAX_MESSAGES * LARGEST);
  f.in = kit_pages((size_t)(MAX_MESSAGES + AHEAD) * LARGEST);
  for (int round = 0; round < kit_scaled(200); round++) {
    uint64_t seed = (uint64_t)round * MAX_MESSAGES;
    kit_pair_open(&n, &f.p);
    prepare(&f, &rng, seed);
    send_all(&f, &rng);
    kit_mr_dereg(&n, f.p.send, f.send[0].mh[0]);
    kit_close_within(n.vt->close_send, f.p.send, "closeSend", KIT_CLOSE_HUNG_MS);
    for (int i = 0; i < f.count; i++) memset(f.send[i].data[0], 0xee, f.send[i].size[0]);
    take_all(&f, round, seed);
    kit_mr_dereg(&n, f.p.recv, f.recv[0].mh[0]);
    kit_close_within(n.vt->close_recv, f.p.recv, "closeRecv", KIT_CLOSE_HUNG_MS);
  }
  kit_net_close(&n);
}

/* … and after the sender's process has ended, as a program does right after ncclCommDestroy. */
static void the_last_message_outlives_its_process(struct kit_process *self) {
  enum { COUNT = 8 };
  size_t each = 20000;
  struct kit_net n;
  struct kit_pair p;
  struct kit_op op[COUNT];
  kit_net_open(&n);
  kit_check_connect(self, &n, &p);
  uint8_t *data = kit_pages(COUNT * each);
  if (kit_sends(self)) {
    void *mh = kit_mr_reg(&n, p.send, data, COUNT * each);
    kit_pattern_fill(data, COUNT * each, 9);
    for (int i = 0; i < COUNT; i++) {
      op[i] = kit_op_send(p.send, data + (size_t)i * each, each, i);
      op[i].mh[0] = mh;
    }
    kit_ops_run(&n, op, COUNT, (struct kit_ops_options){0});
    kit_mr_dereg(&n, p.send, mh);
    kit_check_disconnect(self, &p);
    kit_net_close(&n);
    return; /* and the process ends */
  }
  void *mh = kit_mr_reg(&n, p.recv, data, COUNT * each);
  for (int i = 0; i < COUNT; i++) {
    op[i] = kit_op_recv(p.recv, data + (size_t)i * each, each, i);
    op[i].mh[0] = mh;
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    while (!kit_op_post(&n, &op[i]) && !op[i].error && !rail_deadline_passed(deadline)) sched_yield();
  }
  kit_op_within(&n, &op[0], 5); /* so that the peer gets on */
  for (int i = 0; i < COUNT && !op[COUNT - 1].done; i++) {
    bool ended = kit_op_within(&n, &op[i], kit_patience_ms(KIT_PATIENCE_MS));
    ENSURE(ended && !op[i].error,
           "message %d of %d %s (error %s): its send was done, then the sender closed and its program ended", i, COUNT,
           ended ? "was lost" : "never came", kit_rc_text(op[i].error));
    kit_sleep_ms(20); /* longer than the sender needs to be gone */
  }
  ENSURE(kit_pattern_check(data, COUNT * each, 9) < 0, "what a sender sent before its program ended arrived wrong");
  kit_mr_dereg(&n, p.recv, mh);
  kit_check_disconnect(self, &p);
  kit_net_close(&n);
}

/* All that is outstanding is asked for once more after the first error, some of it twice, and new calls are made. */
static void calls_after_an_error(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct loaded l = {0}; /* the end that goes has something to do, too */
  uint8_t *out = kit_pages(BULK), *in = kit_pages(BULK);
  kit_net_open(&n);
  for (int round = 0; round < 8; round++) {
    struct kit_op op[DEPTH];
    bool sends = round % 2;
    kit_pair_open(&n, &l.p);
    load(&l, !sends && round >= 4, sends && round >= 4, true, out, in);
    void *comm = sends ? l.p.send : l.p.recv;
    uint8_t *data = sends ? out : in; /* what the other end sends, or receives, is in the other memory */
    void *mh = kit_mr_reg(&n, comm, data, BULK);
    for (int i = 0; i < DEPTH; i++) {
      op[i] = sends ? kit_op_send(comm, data, BULK, 0) : kit_op_recv(comm, data, BULK, 0);
      op[i].mh[0] = mh;
      kit_op_post(&n, &op[i]);
    }
    (sends ? close_receiver : close_sender)(&l, KIT_CLOSE_HUNG_MS);
    uint64_t until = rail_deadline_in_ms(300);
    for (int i = 0; i < DEPTH && !op[i].error && !rail_deadline_passed(until);)
      if (kit_op_step(&n, &op[i]) && op[i].done) i++;
    for (int i = 0; i < 2 * DEPTH; i++) {
      struct kit_op late = op[i % DEPTH];
      kit_op_test_again(&n, &op[i % DEPTH], 1);
      kit_op_post(&n, &late);
    }
    kit_mr_dereg(&n, comm, mh);
    (sends ? close_sender : close_receiver)(&l, KIT_CLOSE_HUNG_MS);
  }
  kit_net_close(&n);
}

/* ---- how long it takes ---- */

/* Each state of a connection once: new, idle, loaded; the peer makes no call at all meanwhile. */
static void soon(struct kit_process *self) {
  struct kit_net n;
  struct loaded l = {0};
  uint8_t *out = kit_pages(BULK), *in = kit_pages(BULK);
  kit_net_open(&n);
  for (int round = 0; round < 6; round++) {
    kit_check_connect(self, &n, &l.p);
    if (round / 2 > 0) kit_pair_ping(&l.p, 1000, 1);
    load(&l, round / 2 == 2, round / 2 == 2, true, out, in);
    kit_barrier(self);
    if (round % 2) close_sender(&l, KIT_CLOSE_SOON_MS);
    else close_receiver(&l, KIT_CLOSE_SOON_MS);
    kit_barrier(self); /* the other one has been waiting here */
    close_sender(&l, KIT_CLOSE_SOON_MS);
    close_receiver(&l, KIT_CLOSE_SOON_MS);
  }
  kit_net_close(&n);
}

const struct kit_check kit_checks_close[] = {
    {"12.1", "close.null", KIT_MUST, KIT_ONE, .limit_s = 30,
     .what = "closing NULL returns success", .source = "src/transport/net.cc:890,1204", .run = null},
    {"12.2", "close.never_used", KIT_MUST, KIT_ONE, .limit_s = 15,
     .what = "a connection that carried nothing closes with success, in either order",
     .source = "src/transport/net.cc:1204,1259", .run = never_used},
    {"12.3", "close.with_requests_outstanding", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "closing with sends and receives outstanding returns success, and a new connection knows nothing of them",
     .source = "src/proxy.cc:1008", .run = with_requests_outstanding},
    {"12.4", "close.both_directions_at_once", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "two connections, each loaded both ways, close with success in any order",
     .source = "src/proxy.cc:1008,1112", .run = both_directions_at_once},
    {"12.5", "close.in_any_order", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "the ends of many connections, idle and loaded, close with success in any order",
     .source = "src/proxy.cc:1112, src/bootstrap.cc:1323", .run = in_any_order},
    {"12.6", "close.many_come_and_go", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "many connections at a time open, get work and close, again and again",
     .source = "src/proxy.cc:1112", .run = many_come_and_go},
    {"12.7", "close.the_last_message_still_arrives", KIT_MUST, KIT_ONE, .limit_s = 120,
     .what = "what test reported as sent arrives, though closeSend follows at once",
     .source = "src/transport/net.cc:1204,1435", .run = the_last_message_still_arrives},
    {"12.8", "close.the_last_message_outlives_its_process", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "what test reported as sent arrives, though the sender closes and its program ends",
     .source = "src/transport/net.cc:1204,1435", .run = the_last_message_outlives_its_process},
    {"12.11", "close.calls_after_an_error", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "after an error, test of that request and of others, isend and irecv crash nothing, and closing succeeds",
     .source = "src/proxy.cc:801,977", .run = calls_after_an_error},
    {"12.12", "close.soon", KIT_SHOULD, KIT_TWO, .limit_s = 60,
     .what = "closing takes less than a second, whether the connection is new, idle or loaded, while the peer makes "
             "no call",
     .source = "src/proxy.cc:1112", .run = soon},
    {0},
};
