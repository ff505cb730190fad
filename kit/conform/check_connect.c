/* SPDX-License-Identifier: Apache-2.0
 * Connecting: in any order of calls, without ever blocking, and to the right peer. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

static uint64_t soon(void) { return rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS)); }

static void close_listen(struct kit_net *n, void **listen) {
  int rc = n->vt->close_listen(*listen);
  *listen = NULL;
  ENSURE(rc == 0, "closeListen returned %s", kit_rc_text(rc));
}

/* ---- how long a call takes ---- */

#define MAX_CALLS 100000

struct timing { uint64_t ns[MAX_CALLS]; int calls, slept, slept_long; uint64_t worst; };
struct lap { uint64_t start; long switches; };

static long voluntary_switches(void) {
  struct rusage ru;
  getrusage(RUSAGE_THREAD, &ru);
  return ru.ru_nvcsw;
}

static struct lap lap_start(void) { return (struct lap){rail_now_ns(), voluntary_switches()}; }

/* On a busy machine a call may be preempted; only one that gave up the core itself has waited. */
static void lap_end(struct timing *t, struct lap lap) {
  uint64_t ns = rail_now_ns() - lap.start;
  bool slept = voluntary_switches() != lap.switches;
  if (ns > t->worst) t->worst = ns;
  if (t->calls < MAX_CALLS) t->ns[t->calls++] = ns;
  if (slept && ns > 1000000) t->slept++;
  if (slept && ns > 50000000) t->slept_long++;
  ENSURE(t->slept_long < 5,
         "%d of %d calls of listen, connect and accept waited for more than 50 ms, the longest for %d ms; one thread "
         "makes them for all connections of a communicator",
         t->slept_long, t->calls, (int)(t->worst / 1000000));
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

static void timed_pair(struct kit_net *n, struct timing *t) {
  struct kit_pair p = {.net = n};
  struct lap lap = lap_start();
  p.listen = kit_net_listen(n, p.handle);
  lap_end(t, lap);
  lap = lap_start();
  kit_accept_step(n, p.listen, &p.recv); /* while no one is there */
  lap_end(t, lap);
  uint64_t deadline = soon();
  while (!p.send || !p.recv) {
    lap = lap_start();
    bool due = !p.send;
    if (due) kit_connect_step(n, p.handle, &p.send);
    if (due) lap_end(t, lap);
    lap = lap_start();
    due = !p.recv;
    if (due) kit_accept_step(n, p.listen, &p.recv);
    if (due) lap_end(t, lap);
    ENSURE(!rail_deadline_passed(deadline), "no connection within the deadline");
  }
  kit_pair_close(&p);
}

static void no_call_waits(struct kit_process *self) {
  static struct timing t;
  struct kit_net n;
  kit_net_open(&n);
  for (int r = 0; r < kit_scaled(100); r++) timed_pair(&n, &t);
  qsort(t.ns, (size_t)t.calls, sizeof t.ns[0], by_value);
  uint64_t middle = t.ns[t.calls / 2], late = t.ns[(size_t)t.calls * 99 / 100];
  double median = (double)middle / 1e3;
  kit_metric(self, "call_median", median, "us");
  kit_metric(self, "call_p99", (double)late / 1e3, "us");
  kit_metric(self, "call_worst", (double)t.worst / 1e3, "us");
  ENSURE(median < (double)kit_patience_ms(1) * 1000,
         "the median call of listen, connect and accept takes %.0f us; one thread makes them for all connections of a "
         "communicator, in turn",
         median);
  ENSURE(t.slept <= t.calls / 20 + 2, "%d of %d calls of listen, connect and accept slept for over a millisecond",
         t.slept, t.calls);
  kit_net_close(&n);
}

/* ---- the order of calls ---- */

static void poll_for(struct kit_pair *p, bool connecting, int ms) {
  uint64_t deadline = rail_deadline_in_ms((uint64_t)ms);
  while (!rail_deadline_passed(deadline)) {
    if (connecting && !p->send) kit_connect_step(p->net, p->handle, &p->send);
    if (!connecting && !p->recv) kit_accept_step(p->net, p->listen, &p->recv);
    kit_short_sleep();
  }
}

static void start(struct kit_net *n, struct kit_pair *p) {
  kit_net_open(n);
  memset(p, 0, sizeof *p);
  p->net = n;
  p->listen = kit_net_listen(n, p->handle);
}

static void use_and_end(struct kit_net *n, struct kit_pair *p) {
  kit_pair_ping(p, 777, 1);
  kit_pair_close(p);
  kit_net_close(n);
}

static void connect_long_before_accept(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  start(&n, &p);
  poll_for(&p, true, 500);
  kit_pair_connect(&p);
  use_and_end(&n, &p);
}

static void accept_long_before_connect(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  start(&n, &p);
  poll_for(&p, false, 300);
  ENSURE(!p.recv, "accept gave a connection before anybody called connect");
  kit_pair_connect(&p);
  use_and_end(&n, &p);
}

static void one_side_at_a_time(struct kit_process *self) { /* neither call may need the other's turn to come soon */
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  start(&n, &p);
  for (int turn = 0; turn < 30 && (!p.send || !p.recv); turn++) poll_for(&p, turn % 2 == 0, 100);
  ENSURE(p.send && p.recv, "connect and accept were polled in turns of 100 ms, 15 each; %s%s has not come",
         p.send ? "" : "*sendComm", p.recv ? "" : " *recvComm");
  use_and_end(&n, &p);
}

/* As above in two processes, as NCCL's ranks are: each busy with other peers while the other one asks. */
static void one_process_at_a_time(struct kit_process *self) {
  struct kit_net n;
  struct kit_pair p = {.net = &n};
  kit_net_open(&n);
  if (kit_receives(self)) {
    p.listen = kit_net_listen(&n, p.handle);
    kit_send_bytes(self, 0, p.handle, sizeof p.handle);
  } else {
    kit_recv_bytes(self, 1, p.handle, sizeof p.handle);
  }
  for (int turn = 0; turn < 16; turn++) {
    bool mine = turn % 2 == (kit_sends(self) ? 0 : 1);
    if (mine) poll_for(&p, kit_sends(self), 100);
    kit_barrier(self);
  }
  ENSURE(p.send || p.recv, "polled in turns with the other process, 8 times 100 ms, %s gave nothing",
         kit_sends(self) ? "connect" : "accept");
  if (p.listen) close_listen(&n, &p.listen);
  kit_pair_ping(&p, 777, 1);
  kit_check_disconnect(self, &p);
  kit_net_close(&n);
}

static void two_connections_crosswise(struct kit_process *self) { /* a ring of two ranks on one thread, connect first */
  (void)self;
  struct kit_net n;
  struct kit_pair p, q = {.net = &n};
  start(&n, &p);
  q.listen = kit_net_listen(&n, q.handle);
  uint64_t deadline = soon();
  while (!p.send || !q.send || !p.recv || !q.recv) {
    if (!p.send) kit_connect_step(&n, p.handle, &p.send);
    if (!q.send) kit_connect_step(&n, q.handle, &q.send);
    if (!q.recv) kit_accept_step(&n, q.listen, &q.recv);
    if (!p.recv) kit_accept_step(&n, p.listen, &p.recv);
    ENSURE(!rail_deadline_passed(deadline), "two connections, crosswise on one thread, are not made");
  }
  kit_pair_ping(&p, 5000, 4);
  kit_pair_ping(&q, 5000, 5);
  kit_pair_close(&p);
  kit_pair_close(&q);
  kit_net_close(&n);
}

/* ---- many at once ---- */

enum { MANY = 24 };

static void many_interleaved(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_rng rng;
  kit_net_open(&n);
  kit_rng_start(&rng);
  for (int round = 0; round < 3; round++) {
    static struct kit_pair p[MANY];
    int left = 2 * MANY;
    uint64_t deadline = soon();
    memset(p, 0, sizeof p);
    for (int i = 0; i < MANY; i++) {
      p[i].net = &n;
      p[i].listen = kit_net_listen(&n, p[i].handle);
    }
    while (left > 0) {
      struct kit_pair *one = &p[kit_rng_below(&rng, MANY)];
      if (kit_rng_below(&rng, 2)) {
        if (!one->send && kit_connect_step(&n, one->handle, &one->send)) left--;
      } else if (!one->recv && kit_accept_step(&n, one->listen, &one->recv)) {
        left--;
      }
      ENSURE(!rail_deadline_passed(deadline), "%d ends of %d connections are missing", left, MANY);
    }
    /* Each pair is really a pair: what i sends, i receives. */
    for (int i = 0; i < MANY; i++) kit_pair_ping(&p[i], 100 + (size_t)i, (uint64_t)i);
    for (int i = 0; i < MANY; i++) kit_pair_close(&p[i]);
  }
  kit_net_close(&n);
}

/* The same between two processes, as many each way; which end carries which message shows who is connected to whom. */
static void many_across(struct kit_process *self) {
  static char mine[MANY][RAIL_NET_HANDLE_SIZE], theirs[MANY][RAIL_NET_HANDLE_SIZE];
  static struct kit_pair p[MANY]; /* listen, recv: from them; send: to them */
  struct kit_net n;
  struct kit_rng rng;
  int me = kit_process_rank(self), left = 2 * MANY;
  uint32_t out[MANY], in[MANY];
  kit_net_open(&n);
  kit_rng_start(&rng);
  for (int i = 0; i < MANY; i++) p[i].listen = kit_net_listen(&n, mine[i]);
  kit_exchange(self, 1 - me, mine, theirs, sizeof mine);
  uint64_t deadline = soon();
  while (left > 0) {
    uint32_t i = kit_rng_below(&rng, MANY);
    if (kit_rng_below(&rng, 2)) {
      if (!p[i].send && kit_connect_step(&n, theirs[i], &p[i].send)) left--;
    } else if (!p[i].recv && kit_accept_step(&n, p[i].listen, &p[i].recv)) {
      left--;
    }
    ENSURE(!rail_deadline_passed(deadline), "%d ends of %d connections each way are missing", left, MANY);
  }
  static struct kit_op ops[2 * MANY];
  for (uint32_t i = 0; i < MANY; i++) {
    out[i] = (uint32_t)me * 1000 + i;
    ops[i] = kit_op_recv(p[i].recv, &in[i], sizeof in[i], 0);
    ops[i].mh[0] = kit_mr_reg(&n, p[i].recv, &in[i], sizeof in[i]);
    ops[MANY + i] = kit_op_send(p[i].send, &out[i], sizeof out[i], 0);
    ops[MANY + i].mh[0] = kit_mr_reg(&n, p[i].send, &out[i], sizeof out[i]);
  }
  kit_ops_run(&n, ops, 2 * MANY, (struct kit_ops_options){0});
  for (uint32_t i = 0; i < MANY; i++)
    ENSURE(in[i] == (uint32_t)(1 - me) * 1000 + i, "through listen comm %u came message %u; handles are mixed up", i,
           in[i]);
  kit_barrier(self);
  for (int i = 0; i < MANY; i++) {
    kit_mr_dereg(&n, p[i].recv, ops[i].mh[0]);
    kit_mr_dereg(&n, p[i].send, ops[MANY + i].mh[0]);
    p[i].net = &n;
    kit_pair_close(&p[i]);
  }
  kit_net_close(&n);
}

/* ---- one end early ---- */

/* NCCL closes the listen comm when accept has given the connection, and posts receives; the other end may still be
 * asking whether it is connected. */
static void listen_closed_before_connect_is_done(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  int before = 0;
  kit_net_open(&n);
  for (int round = 0; round < 20; round++) {
    struct kit_pair p = {.net = &n};
    uint8_t out[500], in[500];
    p.listen = kit_net_listen(&n, p.handle);
    uint64_t deadline = soon();
    while (!p.recv) { /* accept first, and oftener */
      for (int i = 0; i < 20 && !p.recv; i++) kit_accept_step(&n, p.listen, &p.recv);
      if (!p.recv && !p.send) kit_connect_step(&n, p.handle, &p.send);
      ENSURE(!rail_deadline_passed(deadline), "no connection within the deadline");
    }
    close_listen(&n, &p.listen);
    if (!p.send) before++;
    kit_pattern_fill(out, sizeof out, (uint64_t)round);
    struct kit_op ops[2] = {kit_op_recv(p.recv, in, sizeof in, 3)};
    ops[0].mh[0] = kit_mr_reg(&n, p.recv, in, sizeof in);
    kit_op_post(&n, &ops[0]);
    if (!p.send) p.send = kit_net_connect(&n, p.handle);
    ops[1] = kit_op_send(p.send, out, sizeof out, 3);
    ops[1].mh[0] = kit_mr_reg(&n, p.send, out, sizeof out);
    kit_ops_run(&n, ops, 2, (struct kit_ops_options){0});
    ENSURE(kit_pattern_check(in, sizeof in, (uint64_t)round) < 0,
           "a receive posted before connect was done got wrong bytes");
    kit_mr_dereg(&n, p.recv, ops[0].mh[0]);
    kit_mr_dereg(&n, p.send, ops[1].mh[0]);
    kit_pair_close(&p);
  }
  kit_note(self, "%s", before ? "accept may be done before connect" : "connect is done before accept");
  kit_net_close(&n);
}

static void send_before_accept_is_done(struct kit_process *self) {
  struct kit_net n;
  struct kit_pair p;
  uint8_t out[5000], in[5000];
  start(&n, &p);
  poll_for(&p, true, 100);
  kit_note(self, "connect is %s before accept was called", p.send ? "done" : "not done");
  if (!p.send) kit_pair_connect(&p);
  kit_pattern_fill(out, sizeof out, 5);
  struct kit_op s = kit_op_send(p.send, out, sizeof out, 3);
  s.mh[0] = kit_mr_reg(&n, p.send, out, sizeof out);
  for (int i = 0; i < 1000 && !s.done; i++) {
    if (!s.req) kit_op_post(&n, &s);
    if (s.req) kit_op_test(&n, &s);
    ENSURE(!s.error, "a send before the peer has accepted failed with %s", kit_rc_text(s.error));
  }
  if (!p.recv) p.recv = kit_net_accept(&n, p.listen);
  struct kit_op both[2] = {s, kit_op_recv(p.recv, in, sizeof in, 3)};
  both[1].mh[0] = kit_mr_reg(&n, p.recv, in, sizeof in);
  kit_ops_run(&n, both, 2, (struct kit_ops_options){0});
  ENSURE(kit_pattern_check(in, sizeof in, 5) < 0, "a message sent before the peer has accepted arrived wrong");
  kit_mr_dereg(&n, p.send, s.mh[0]);
  kit_mr_dereg(&n, p.recv, both[1].mh[0]);
  use_and_end(&n, &p);
}

/* ---- while signals come ---- */

static atomic_int alarms;

static void on_alarm(int sig) {
  (void)sig;
  atomic_fetch_add(&alarms, 1);
}

/* Profilers and debuggers send them, and system calls that were interrupted end early: EINTR is no error. */
static void interrupted(struct kit_process *self) {
  struct sigaction act = {.sa_handler = on_alarm}, old; /* no SA_RESTART */
  struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  sigaction(SIGALRM, &act, &old);
  setitimer(ITIMER_REAL, &often, NULL);
  uint64_t deadline = rail_deadline_in_ms(400);
  int made = 0;
  for (; !rail_deadline_passed(deadline) || made < 20; made++) {
    p = (struct kit_pair){.net = &n};
    p.listen = kit_net_listen(&n, p.handle);
    kit_accept_step(&n, p.listen, &p.recv); /* a plugin may wait here for a moment */
    kit_pair_connect(&p);
    kit_pair_ping(&p, 100000, (uint64_t)made);
    kit_pair_close(&p);
  }
  setitimer(ITIMER_REAL, &never, NULL);
  sigaction(SIGALRM, &old, NULL);
  kit_note(self, "%d connections were made and used under %d signals", made, atomic_load(&alarms));
  kit_net_close(&n);
}

static void set_up_rate(struct kit_process *self) {
  struct kit_net n;
  struct kit_pair p;
  int count = 0;
  kit_net_open(&n);
  uint64_t begin = rail_now_ns(), deadline = rail_deadline_in_ms(300);
  for (; !rail_deadline_passed(deadline); count++) {
    kit_pair_open(&n, &p);
    kit_pair_close(&p);
  }
  kit_metric(self, "connections", count / ((double)(rail_now_ns() - begin) / 1e9), "1/s");
  kit_net_close(&n);
}

const struct kit_check kit_checks_connect[] = {
  {"4.1", "connect.no_call_waits", KIT_SHOULD, KIT_ONE, .limit_s = 60,
   .what = "No call of listen, connect or accept waits for anything; the median one takes less than a millisecond.",
   .source = "src/proxy.cc:1776, plugins/net/README.md:286-297", .run = no_call_waits},
  {"4.2", "connect.connect_long_before_accept", KIT_MUST, KIT_ONE,
   .what = "connect is polled for half a second before the other side calls accept at all.",
   .source = "src/transport/net.cc:844-900, src/proxy.cc:1583, 1637-1640", .run = connect_long_before_accept},
  {"4.3", "connect.accept_long_before_connect", KIT_MUST, KIT_ONE,
   .what = "accept is polled for a while before anybody connects, and gives NULL meanwhile.",
   .source = "src/transport/net.cc:1031-1090", .run = accept_long_before_connect},
  {"4.4", "connect.one_side_at_a_time", KIT_MUST, KIT_ONE,
   .what = "A connection comes about although each side is polled only while the other is not.",
   .source = "src/bootstrap.cc:604-608, src/transport/net.cc:844-900", .run = one_side_at_a_time},
  {"4.5", "connect.one_process_at_a_time", KIT_MUST, KIT_TWO,
   .what = "The same between two processes.", .source = "src/proxy.cc:1637-1640, 1776", .run = one_process_at_a_time},
  {"4.6", "connect.two_connections_crosswise", KIT_MUST, KIT_ONE,
   .what = "One thread makes both connections of a ring of two, connect first: connect needs no accept to have "
           "finished.",
   .source = "src/bootstrap.cc:604-608", .run = two_connections_crosswise},
  {"4.7", "connect.many_interleaved", KIT_MUST, KIT_ONE,
   .what = "Many connections come about with their calls in any order, and each handle leads to its own listen comm.",
   .source = "src/proxy.cc:1776, src/transport.cc:140-330", .run = many_interleaved},
  {"4.8", "connect.many_across", KIT_MUST, KIT_TWO,
   .what = "The same between two processes, in both directions at once.",
   .source = "src/proxy.cc:1776, src/transport.cc:140-330", .run = many_across},
  {"4.9", "connect.listen_closed_before_connect_is_done", KIT_MUST, KIT_ONE,
   .what = "closeListen after accept, and a first irecv, disturb no connect that has not come through yet.",
   .source = "src/transport/net.cc:1090", .run = listen_closed_before_connect_is_done},
  {"4.10", "connect.send_before_accept_is_done", KIT_MUST, KIT_ONE,
   .what = "Whoever is connected may send at once, also when the other side has not called accept.",
   .source = "src/transport/net.cc:844-900, 1414", .run = send_before_accept_is_done},
  {"4.11", "connect.interrupted", KIT_MUST, KIT_ONE,
   .what = "Signals that interrupt listen, connect, accept and the first message are no errors.",
   .source = "issue 1757", .run = interrupted},
  {"4.12", "connect.set_up_rate", KIT_OBSERVED, KIT_ONE,
   .what = "Connections made and closed per second, one at a time.",
   .source = "src/transport.cc:140-330", .run = set_up_rate},
  {0},
};
