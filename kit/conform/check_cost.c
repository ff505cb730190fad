/* SPDX-License-Identifier: Apache-2.0
 *
 * Item 15, what things cost: mostly figures without a verdict, each from about half a second. rail-kit bench measures
 * with more care. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

enum { WINDOW = 8, /* what NCCL has outstanding on a connection, at most */
       LONG_ENOUGH_MS = 400 };

static double seconds_since(uint64_t start) { return (double)(rail_now_ns() - start) / 1e9; }

/* Steps an op to its end; an error fails the check. */
static void must_finish(struct kit_net *n, struct kit_op *op) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!kit_op_step(n, op)) {
    ENSURE(!rail_deadline_passed(deadline), "a transfer of %zu bytes is not done after %.0f s", op->size[0],
           (double)kit_patience_ms(KIT_PATIENCE_MS) / 1000);
    sched_yield();
  }
  ENSURE(!op->error, "a transfer of %zu bytes ended with error %s", op->size[0], kit_rc_text(op->error));
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* ---- the progress thread's time ---- */

enum { CALLS = 200 };

static void is_short(struct kit_process *self, double us[CALLS], const char *call, const char *state) {
  char name[96];
  qsort(us, CALLS, sizeof us[0], ascending);
  snprintf(name, sizeof name, "%s, %s", call, state);
  kit_metric(self, name, us[CALLS / 2], "us");
  ENSURE(us[CALLS / 2] < 1000.0 * (kit_sanitized() ? 10 : 1),
         "%s, %s, takes %.1f ms (the median of %d calls), expected less than 1: NCCL serves all connections of a "
         "communicator by turns, on one thread", call, state, us[CALLS / 2] / 1000, CALLS);
}

/* What is asked for again and again while nothing comes, and small messages. */
static void no_call_is_long(struct kit_process *self) {
  static double waiting[CALLS], posting[CALLS], sending[CALLS];
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 1000, 1);
  uint8_t *data = kit_pages(4096);
  void *mh_in = kit_mr_reg(&n, p.recv, data, 4096), *mh_out = kit_mr_reg(&n, p.send, data, 4096);
  for (int i = 0; i < CALLS; i++) {
    struct kit_op recv = kit_op_recv(p.recv, data, 1000, 0), send = kit_op_send(p.send, data + 1000, 1000, 0);
    recv.mh[0] = mh_in;
    send.mh[0] = mh_out;
    uint64_t start = rail_now_ns();
    kit_op_post(&n, &recv);
    posting[i] = seconds_since(start) * 1e6;
    start = rail_now_ns();
    if (recv.req) kit_op_test(&n, &recv);
    waiting[i] = seconds_since(start) * 1e6;
    start = rail_now_ns();
    kit_op_post(&n, &send);
    sending[i] = seconds_since(start) * 1e6;
    struct kit_op ops[2] = {recv, send};
    kit_ops_run(&n, ops, 2, (struct kit_ops_options){0});
  }
  is_short(self, posting, "irecv", "of 1000 bytes");
  is_short(self, waiting, "test", "of a receive that nothing has come for");
  is_short(self, sending, "isend", "of 1000 bytes");
  kit_mr_dereg(&n, p.recv, mh_in);
  kit_mr_dereg(&n, p.send, mh_out);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* ---- latency ---- */

struct table { struct kit_net n; struct kit_pair p; uint8_t *data; void *mh_out, *mh_in; };

/* Side 0 serves; `times` (NULL on the way) takes half of each round trip, in microseconds. The receive is posted
 * before the ball is hit, as NCCL does. */
static void ping_pong(struct kit_process *self, struct table *t, int count, double *times) {
  bool serves = kit_process_rank(self) == 0;
  for (int i = 0; i < count; i++) {
    struct kit_op send = kit_op_send(t->p.send, t->data, 8, 0), recv = kit_op_recv(t->p.recv, t->data + 64, 8, 0);
    send.mh[0] = t->mh_out;
    recv.mh[0] = t->mh_in;
    kit_op_post(&t->n, &recv);
    uint64_t start = rail_now_ns();
    if (serves) must_finish(&t->n, &send);
    must_finish(&t->n, &recv);
    if (times) times[i] = seconds_since(start) * 1e6 / 2;
    if (!serves) must_finish(&t->n, &send);
  }
}

static int agree_on_count(struct kit_process *self, double seconds_each, int least, int most) {
  int count = 0;
  if (kit_process_rank(self) == 0) {
    double fits = LONG_ENOUGH_MS / 1000.0 / (seconds_each > 1e-9 ? seconds_each : 1e-9);
    count = fits > most ? most : fits < least ? least : (int)fits;
    kit_send_bytes(self, 1, &count, sizeof count);
  } else {
    kit_recv_bytes(self, 0, &count, sizeof count);
  }
  return count;
}

static void latency(struct kit_process *self) {
  enum { WARM = 200, MAX_SAMPLES = 20000 };
  static double times[MAX_SAMPLES];
  struct table t;
  kit_net_open(&t.n);
  kit_check_connect_both_ways(self, &t.n, &t.p, 1);
  t.data = kit_pages(4096);
  t.mh_out = kit_mr_reg(&t.n, t.p.send, t.data, 4096);
  t.mh_in = kit_mr_reg(&t.n, t.p.recv, t.data, 4096);
  uint64_t start = rail_now_ns();
  ping_pong(self, &t, WARM, NULL);
  int count = agree_on_count(self, seconds_since(start) / WARM, 10, MAX_SAMPLES);
  ping_pong(self, &t, count, times);
  if (kit_process_rank(self) == 0) {
    qsort(times, (size_t)count, sizeof times[0], ascending);
    kit_metric(self, "half a round trip of 8 bytes, median", times[count / 2], "us");
    kit_metric(self, "half a round trip of 8 bytes, 99th percentile", times[count * 99 / 100], "us");
  }
  kit_barrier(self);
  kit_mr_dereg(&t.n, t.p.send, t.mh_out);
  kit_mr_dereg(&t.n, t.p.recv, t.mh_in);
  kit_pair_close(&t.p);
  kit_net_close(&t.n);
}

/* ---- one direction ---- */

/* This process's end, with `window` buffers of `size`. */
struct pipe { struct kit_net *n; void *comm, *mh; bool sends; uint8_t *data; size_t size; int window; };

static struct pipe pipe_open(struct kit_process *self, struct kit_pair *p, size_t size, int window) {
  struct pipe e = {.n = p->net, .sends = kit_sends(self), .size = size, .window = window};
  e.comm = e.sends ? p->send : p->recv;
  e.data = kit_pages(size * (size_t)window);
  if (e.sends) memset(e.data, 0x5c, size * (size_t)window);
  e.mh = kit_mr_reg(e.n, e.comm, e.data, size * (size_t)window);
  return e;
}

static void pipe_close(struct pipe *e) {
  kit_mr_dereg(e->n, e->comm, e->mh);
  kit_pages_free(e->data, e->size * (size_t)e->window);
}

/* Moves `count` messages, `window` of them outstanding, tested oldest first. */
static void pump(struct pipe *e, int count) {
  struct kit_op op[WINDOW];
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (int posted = 0, done = 0; done < count;) {
    bool moved = false;
    while (posted < count && posted < done + e->window) {
      struct kit_op *next = &op[posted % e->window];
      uint8_t *data = e->data + (size_t)(posted % e->window) * e->size;
      *next = e->sends ? kit_op_send(e->comm, data, e->size, 0) : kit_op_recv(e->comm, data, e->size, 0);
      next->mh[0] = e->mh;
      if (!kit_op_post(e->n, next)) break;
      posted++;
      moved = true;
    }
    if (done < posted && kit_op_test(e->n, &op[done % e->window])) {
      ENSURE(!op[done % e->window].error, "message %d of %zu bytes ended with error %s", done, e->size,
             kit_rc_text(op[done % e->window].error));
      done++;
      moved = true;
    }
    if (moved) deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    else sched_yield();
    ENSURE(!rail_deadline_passed(deadline), "message %d of %zu bytes is stuck", done, e->size);
  }
}

/* The receiver's seconds for so many messages, as they were agreed on; *count is set. */
static double timed(struct kit_process *self, struct pipe *e, int *count) {
  uint64_t start = rail_now_ns();
  pump(e, WINDOW);
  *count = agree_on_count(self, seconds_since(start) / WINDOW, WINDOW, 200000);
  kit_barrier(self);
  start = rail_now_ns();
  pump(e, *count);
  return seconds_since(start);
}

static void bandwidth(struct kit_process *self) {
  static const struct { size_t size; int window; const char *text; } row[] = {
      {64 << 10, 8, "64 KiB"}, {1 << 20, 8, "1 MiB"}, {16 << 20, 2, "16 MiB"}, {64 << 20, 2, "64 MiB"}};
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_check_connect(self, &n, &p);
  for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
    struct pipe e = pipe_open(self, &p, row[i].size, row[i].window);
    char name[96];
    int count;
    uint64_t cpu = kit_cpu_ns();
    double seconds = timed(self, &e, &count), bytes = (double)row[i].size * count;
    snprintf(name, sizeof name, "messages of %s", row[i].text);
    if (kit_receives(self)) kit_metric(self, name, bytes / seconds, "B/s");
    snprintf(name, sizeof name, "processor time to %s messages of %s", e.sends ? "send" : "receive", row[i].text);
    bytes += (double)row[i].size * WINDOW;
    kit_metric(self, name, (double)(kit_cpu_ns() - cpu) / 1e9 / (bytes / (1 << 30)), "s/GiB");
    kit_barrier(self);
    pipe_close(&e);
  }
  kit_check_disconnect(self, &p);
  kit_net_close(&n);
}

static void message_rate(struct kit_process *self) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_check_connect(self, &n, &p);
  struct pipe e = pipe_open(self, &p, 8, WINDOW);
  pump(&e, 100);
  int count;
  double seconds = timed(self, &e, &count);
  if (kit_receives(self)) kit_metric(self, "messages of 8 bytes", count / seconds, "1/s");
  kit_barrier(self);
  pipe_close(&e);
  kit_check_disconnect(self, &p);
  kit_net_close(&n);
}

/* ---- connections ---- */

static void connection_rate(struct kit_process *self) {
  struct kit_net n;
  struct kit_pair p;
  int count = 0;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_pair_close(&p);
  uint64_t start = rail_now_ns(), deadline = rail_deadline_in_ms(LONG_ENOUGH_MS);
  for (; count < 10 || !rail_deadline_passed(deadline); count++) {
    kit_pair_open(&n, &p);
    kit_pair_close(&p);
  }
  kit_metric(self, "connections, one after the other", count / seconds_since(start), "1/s");
  kit_net_close(&n);
}

/* Both ends are here, so of each figure a half is one end's. */
static void what_a_connection_holds(struct kit_process *self) {
  enum { COUNT = 64 };
  static struct kit_pair p[COUNT];
  struct kit_net n;
  kit_net_open(&n);
  kit_pair_open(&n, &p[0]);
  kit_pair_ping(&p[0], 100000, 0);
  int fds = kit_fd_count(), threads = kit_thread_count();
  long rss = kit_rss_kb();
  for (int i = 1; i < COUNT; i++) {
    kit_pair_open(&n, &p[i]);
    kit_pair_ping(&p[i], 100000, (uint64_t)i);
  }
  kit_metric(self, "descriptors of a connection, both ends", (double)(kit_fd_count() - fds) / (COUNT - 1), "");
  kit_metric(self, "threads of a connection, both ends", (double)(kit_thread_count() - threads) / (COUNT - 1), "");
  kit_metric(self, "memory of a connection, both ends", (double)(kit_rss_kb() - rss) / (COUNT - 1), "KiB");
  for (int i = 0; i < COUNT; i++) kit_pair_close(&p[i]);
  kit_net_close(&n);
}

const struct kit_check kit_checks_cost[] = {
    {"15.20", "cost.no_call_is_long", KIT_SHOULD, KIT_ONE, .limit_s = 60,
     .what = "isend and irecv of little data, and test where nothing has come, return within a millisecond",
     .source = "src/proxy.cc:801,954", .run = no_call_is_long},
    {"15.21", "cost.latency", KIT_OBSERVED, KIT_TWO, .limit_s = 60,
     .what = "half of a round trip of 8 bytes", .source = "src/transport/net.cc:1414", .run = latency},
    {"15.22", "cost.bandwidth", KIT_OBSERVED, KIT_TWO, .limit_s = 120,
     .what = "bytes a second of messages from 64 KiB to 64 MiB, a few outstanding, and the processor time they take",
     .source = "src/transport/net.cc:1323", .run = bandwidth},
    {"15.23", "cost.message_rate", KIT_OBSERVED, KIT_TWO, .limit_s = 60,
     .what = "messages of 8 bytes a second, eight outstanding",
     .source = "src/transport/net.cc:1323", .run = message_rate},
    {"15.24", "cost.connection_rate", KIT_OBSERVED, KIT_ONE, .limit_s = 60,
     .what = "connections a second, opened and closed one after the other on one thread",
     .source = "src/transport.cc:75", .run = connection_rate},
    {"15.25", "cost.what_a_connection_holds", KIT_OBSERVED, KIT_ONE, .limit_s = 60,
     .what = "descriptors, threads and memory of one more connection",
     .source = "src/transport.cc:75", .run = what_a_connection_holds},
    {0},
};
