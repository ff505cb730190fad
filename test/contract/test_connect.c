/* SPDX-License-Identifier: Apache-2.0
 * Connecting: in any order of calls, without ever blocking, to the right peer, and cleanly not at all.
 * TEST-LIMIT: 60 */
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/clock.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

/* ---- how long a call takes ---- */

struct timing { uint64_t *ns; int n, cap, slept; uint64_t worst; };
struct lap { uint64_t start; long switches; };

static long voluntary_switches(void) {
  struct rusage ru;
  getrusage(RUSAGE_THREAD, &ru);
  return ru.ru_nvcsw;
}

static struct lap lap_start(void) { return (struct lap){rail_now_ns(), voluntary_switches()}; }

static void lap_end(struct timing *t, struct lap lap) {
  uint64_t ns = rail_now_ns() - lap.start;
  bool slept = voluntary_switches() != lap.switches;
  if (ns > t->worst) t->worst = ns;
  if (t->n < t->cap) t->ns[t->n++] = ns;
  /* On a busy machine a call may be preempted; only one that gave up the core itself has waited. */
  if (slept && ns > 1000000) t->slept++;
  CHECK_MSG(!slept || ns < 50000000, "a call waited %d ms", (int)(ns / 1000000));
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

TEST(no_call_waits) {
  struct kit_net n;
  kit_net_open(&n);
  static uint64_t ns[100000];
  struct timing t = {.ns = ns, .cap = 100000};
  int rounds = kit_scaled(100), calls = 0;
  for (int r = 0; r < rounds; r++) {
    struct kit_pair p = {.net = &n};
    struct lap lap = lap_start();
    p.listen = kit_net_listen(&n, p.handle);
    lap_end(&t, lap);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    while (!p.send || !p.recv) {
      lap = lap_start();
      if (!p.send) kit_connect_step(&n, p.handle, &p.send);
      lap_end(&t, lap);
      lap = lap_start();
      if (!p.recv) kit_accept_step(&n, p.listen, &p.recv);
      lap_end(&t, lap);
      calls += 2;
      CHECK(!rail_deadline_passed(deadline));
    }
    kit_pair_close(&p);
  }
  qsort(ns, (size_t)t.n, sizeof ns[0], by_value);
  uint64_t median = ns[t.n / 2];
  printf("# %d calls, median %.1f us, worst %.1f us\n", t.n, (double)median / 1e3, (double)t.worst / 1e3);
  CHECK_MSG(median < kit_patience_ms(1) * 1000000, "the median call takes %d us", (int)(median / 1000));
  CHECK_MSG(t.slept <= calls / 20 + 2, "%d of %d calls slept for more than a millisecond", t.slept, calls);
  kit_net_close(&n);
}

/* ---- the order of calls ---- */

static void finish(struct kit_pair *p) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!p->send || !p->recv) {
    if (!p->send) kit_connect_step(p->net, p->handle, &p->send);
    if (!p->recv) kit_accept_step(p->net, p->listen, &p->recv);
    CHECK_MSG(!rail_deadline_passed(deadline), "no connection (send %p, recv %p)", p->send, p->recv);
    sched_yield();
  }
}

static void poll_for(struct kit_pair *p, bool connecting, int ms) {
  uint64_t deadline = rail_deadline_in_ms((uint64_t)ms);
  while (!rail_deadline_passed(deadline)) {
    if (connecting && !p->send) kit_connect_step(p->net, p->handle, &p->send);
    if (!connecting && !p->recv) kit_accept_step(p->net, p->listen, &p->recv);
    sched_yield();
  }
}

TEST(connect_long_before_accept) {
  struct kit_net n;
  kit_net_open(&n);
  struct kit_pair p = {.net = &n};
  p.listen = kit_net_listen(&n, p.handle);
  poll_for(&p, true, 500);
  finish(&p);
  kit_pair_ping(&p, 777, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(accept_long_before_connect) {
  struct kit_net n;
  kit_net_open(&n);
  struct kit_pair p = {.net = &n};
  p.listen = kit_net_listen(&n, p.handle);
  poll_for(&p, false, 300);
  CHECK(!p.recv);
  finish(&p);
  kit_pair_ping(&p, 777, 2);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(one_side_at_a_time) { /* neither call may need the other's turn to come soon */
  struct kit_net n;
  kit_net_open(&n);
  struct kit_pair p = {.net = &n};
  p.listen = kit_net_listen(&n, p.handle);
  for (int turn = 0; turn < 30 && (!p.send || !p.recv); turn++) poll_for(&p, turn % 2 == 0, 100);
  CHECK_MSG(p.send && p.recv, "not connected after 15 turns each (send %p, recv %p)", p.send, p.recv);
  kit_pair_ping(&p, 777, 3);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(two_connections_crosswise) { /* a ring of two ranks on one thread, connect first */
  struct kit_net n;
  kit_net_open(&n);
  struct kit_pair p = {.net = &n}, q = {.net = &n};
  p.listen = kit_net_listen(&n, p.handle);
  q.listen = kit_net_listen(&n, q.handle);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!p.send || !q.send || !p.recv || !q.recv) {
    if (!p.send) kit_connect_step(&n, p.handle, &p.send);
    if (!q.send) kit_connect_step(&n, q.handle, &q.send);
    if (!q.recv) kit_accept_step(&n, q.listen, &q.recv);
    if (!p.recv) kit_accept_step(&n, p.listen, &p.recv);
    CHECK(!rail_deadline_passed(deadline));
  }
  kit_pair_ping(&p, 5000, 4);
  kit_pair_ping(&q, 5000, 5);
  kit_pair_close(&p);
  kit_pair_close(&q);
  kit_net_close(&n);
}

TEST(many_interleaved) {
  enum { MANY = 24 };
  struct kit_net n;
  struct kit_rng rng;
  kit_net_open(&n);
  kit_rng_start(&rng);
  for (int round = 0; round < 3; round++) {
    static struct kit_pair p[MANY];
    int left = 2 * MANY;
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
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
      CHECK_MSG(!rail_deadline_passed(deadline), "%d ends of %d connections are missing", left, MANY);
    }
    /* Each pair is really a pair: what i sends, i receives. */
    for (int i = 0; i < MANY; i++) kit_pair_ping(&p[i], 100 + (size_t)i, (uint64_t)i);
    for (int i = 0; i < MANY; i++) kit_pair_close(&p[i]);
  }
  kit_net_close(&n);
}

/* ---- the handle ---- */

TEST(handle_may_move) { /* it holds state, never its own address */
  enum { PLACES = 256 };
  struct kit_net n;
  kit_net_open(&n);
  for (int round = 0; round < 20; round++) {
    struct kit_pair p = {.net = &n};
    static char place[PLACES][RAIL_NET_HANDLE_SIZE];
    int at = 0;
    p.listen = kit_net_listen(&n, place[0]);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    while (!p.send || !p.recv) {
      if (!p.send) kit_connect_step(&n, place[at], &p.send);
      if (!p.recv) kit_accept_step(&n, p.listen, &p.recv);
      int next = (at + 1) % PLACES;
      memcpy(place[next], place[at], RAIL_NET_HANDLE_SIZE);
      memset(place[at], 0xdd, RAIL_NET_HANDLE_SIZE);
      at = next;
      CHECK_MSG(!rail_deadline_passed(deadline), "no connection from a handle that moves");
    }
    kit_pair_ping(&p, 50, 6);
    kit_pair_close(&p);
  }
  kit_net_close(&n);
}

TEST(several_through_one_door) { /* one after another, each from the pristine handle */
  struct kit_net n;
  kit_net_open(&n);
  struct kit_pair p[4];
  char handle[RAIL_NET_HANDLE_SIZE];
  void *listen = kit_net_listen(&n, handle);
  for (int i = 0; i < 4; i++) {
    p[i] = (struct kit_pair){.net = &n, .listen = listen};
    memcpy(p[i].handle, handle, sizeof handle);
    finish(&p[i]);
    p[i].listen = NULL;
  }
  CHECK_OK(n.vt->close_listen(listen));
  for (int i = 0; i < 4; i++) kit_pair_ping(&p[i], 3000, (uint64_t)i);
  for (int i = 0; i < 4; i++) kit_pair_close(&p[i]);
  kit_net_close(&n);
}

TEST(several_at_once_through_one_door) {
  enum { MANY = 6 };
  struct kit_net n;
  kit_net_open(&n);
  char handle[MANY][RAIL_NET_HANDLE_SIZE];
  void *listen = kit_net_listen(&n, handle[0]), *send[MANY] = {0}, *recv[MANY] = {0};
  for (int i = 1; i < MANY; i++) memcpy(handle[i], handle[0], sizeof handle[0]);
  int nsend = 0, nrecv = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (nsend < MANY || nrecv < MANY) {
    for (int i = 0; i < MANY; i++)
      if (!send[i] && kit_connect_step(&n, handle[i], &send[i])) nsend++;
    if (nrecv < MANY && kit_accept_step(&n, listen, &recv[nrecv])) nrecv++;
    CHECK_MSG(!rail_deadline_passed(deadline), "%d of %d connected, %d accepted", nsend, MANY, nrecv);
  }
  int out[MANY], in[MANY], seen = 0;
  struct kit_op ops[2 * MANY];
  for (int i = 0; i < MANY; i++) {
    out[i] = 1 << i;
    ops[i] = kit_op_recv(recv[i], &in[i], sizeof in[i], 0);
    ops[MANY + i] = kit_op_send(send[i], &out[i], sizeof out[i], 0);
  }
  kit_ops_run(&n, ops, 2 * MANY, (struct kit_ops_how){0});
  for (int i = 0; i < MANY; i++) seen += in[i];
  CHECK_INT(seen, (1 << MANY) - 1);
  for (int i = 0; i < MANY; i++) {
    CHECK_OK(n.vt->close_send(send[i]));
    CHECK_OK(n.vt->close_recv(recv[i]));
  }
  CHECK_OK(n.vt->close_listen(listen));
  kit_net_close(&n);
}

/* ---- nobody there ---- */

static void connect_to_nobody(struct pipes *io, void *arg) {
  struct kit_net n;
  (void)io, (void)arg;
  setenv("RAIL_SOCKET_CONNECT_TIMEOUT", "300ms", 1);
  kit_net_open(&n);
  char handle[RAIL_NET_HANDLE_SIZE];
  int rc = n.vt->close_listen(kit_net_listen(&n, handle)), fds = kit_fd_count();
  ENSURE(rc == 0, "closeListen returned %d", rc);
  uint64_t deadline = rail_deadline_in_ms(3000);
  while (rc == 0 && !rail_deadline_passed(deadline)) {
    void *comm = KIT_POISON;
    struct rail_net_device_handle *dh = NULL;
    rc = n.vt->connect(n.ctx, n.dev, handle, &comm, &dh);
    ENSURE(comm == NULL, "connect to nobody returned %d and comm %p", rc, comm);
    sched_yield();
  }
  printf("# connect to a closed port returned %d\n", rc);
  ENSURE(rc == 0 || rc == RAIL_REMOTE_ERROR || rc == RAIL_SYSTEM_ERROR, "connect to nobody returned %d", rc);
  if (rc != 0) ENSURE_INT(kit_fd_count(), fds);
  rc = n.vt->close_send(NULL); /* what NCCL does next */
  ENSURE(rc == 0, "closeSend(NULL) returned %d", rc);
  struct kit_pair p;
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 10, 7);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(dead_port) { /* in a process of its own, for the sake of a short timeout */
  struct proc c = proc_start(connect_to_nobody, NULL);
  proc_join(&c);
}

TEST(a_handle_of_junk) { /* an error, at once or never, and no comm */
  struct kit_net n;
  kit_net_open(&n);
  static const uint8_t fill[] = {0x00, 0xff, 0x5a};
  for (size_t i = 0; i < sizeof fill; i++) {
    char handle[RAIL_NET_HANDLE_SIZE];
    memset(handle, fill[i], sizeof handle);
    void *comm = KIT_POISON;
    struct rail_net_device_handle *dh = NULL;
    int rc = n.vt->connect(n.ctx, n.dev, handle, &comm, &dh);
    CHECK_MSG(rc != 0, "a handle of bytes %#x was taken for one", fill[i]);
    CHECK(comm == NULL);
  }
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(no_call_waits), TEST_CASE(connect_long_before_accept), TEST_CASE(accept_long_before_connect),
          TEST_CASE(one_side_at_a_time), TEST_CASE(two_connections_crosswise), TEST_CASE(many_interleaved),
          TEST_CASE(handle_may_move), TEST_CASE(several_through_one_door), TEST_CASE(several_at_once_through_one_door),
          TEST_CASE(dead_port), TEST_CASE(a_handle_of_junk))
