/* SPDX-License-Identifier: Apache-2.0
 * The handle that connect is given, and what connect and accept give back. */
#include <sched.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

static uint64_t soon(void) { return rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS)); }

static void handle_may_move(struct kit_process *self) { /* it holds state, never its own address */
  (void)self;
  enum { PLACES = 256 };
  static char place[PLACES][RAIL_NET_HANDLE_SIZE];
  struct kit_net n;
  kit_net_open(&n);
  for (int round = 0; round < 20; round++) {
    struct kit_pair p = {.net = &n};
    int at = 0;
    p.listen = kit_net_listen(&n, place[0]);
    uint64_t deadline = soon();
    while (!p.send || !p.recv) {
      if (!p.send) kit_connect_step(&n, place[at], &p.send);
      if (!p.recv) kit_accept_step(&n, p.listen, &p.recv);
      int next = (at + 1) % PLACES;
      memcpy(place[next], place[at], RAIL_NET_HANDLE_SIZE);
      memset(place[at], 0xdd, RAIL_NET_HANDLE_SIZE);
      at = next;
      ENSURE(!rail_deadline_passed(deadline), "no connection from a handle that lies elsewhere at each call");
    }
    kit_pair_ping(&p, 50, 6);
    kit_pair_close(&p);
  }
  kit_net_close(&n);
}

static void several_to_one_listener(struct kit_process *self) { /* one after another, each from the pristine handle */
  (void)self;
  struct kit_net n;
  struct kit_pair p[4];
  char handle[RAIL_NET_HANDLE_SIZE];
  kit_net_open(&n);
  void *listen = kit_net_listen(&n, handle);
  for (int i = 0; i < 4; i++) {
    p[i] = (struct kit_pair){.net = &n, .listen = listen};
    memcpy(p[i].handle, handle, sizeof handle);
    kit_pair_connect(&p[i]);
    p[i].listen = NULL;
  }
  int rc = n.vt->close_listen(listen);
  ENSURE(rc == 0, "closeListen returned %s", kit_rc_text(rc));
  for (int i = 0; i < 4; i++) kit_pair_ping(&p[i], 3000, (uint64_t)i);
  for (int i = 0; i < 4; i++) kit_pair_close(&p[i]);
  kit_net_close(&n);
}

/* ---- several through one listen comm at once ---- */

enum { RANKS = 2, EACH = 8, ALL = RANKS * EACH };

struct meeting { /* of two ranks, each of which connects EACH times to the other's listen comm */
  struct kit_net *net;
  void *listen[RANKS];
  char handle[ALL][RAIL_NET_HANDLE_SIZE]; /* of connection i, to the listen comm i / EACH */
  void *send[ALL], *recv[ALL];            /* recv: by listen comm, in the order of accept */
  int accepted[RANKS];
};

/* Calls in any order, many connects before the first accept: the connections' bytes arrive mixed. */
static void meet(struct meeting *m, struct kit_rng *rng) {
  uint64_t deadline = soon();
  for (int r = 0; r < RANKS; r++) {
    m->listen[r] = kit_net_listen(m->net, m->handle[r * EACH]);
    for (int i = 1; i < EACH; i++) memcpy(m->handle[r * EACH + i], m->handle[r * EACH], RAIL_NET_HANDLE_SIZE);
  }
  for (int left = 2 * ALL, calls = 0; left > 0; calls++) {
    int i = (int)kit_rng_below(rng, ALL), r = i / EACH;
    bool connects = calls < 20 * ALL || kit_rng_below(rng, 4) > 0;
    if (connects && !m->send[i] && kit_connect_step(m->net, m->handle[i], &m->send[i])) left--;
    if (!connects && m->accepted[r] < EACH &&
        kit_accept_step(m->net, m->listen[r], &m->recv[r * EACH + m->accepted[r]])) {
      m->accepted[r]++;
      left--;
    }
    ENSURE(!rail_deadline_passed(deadline), "%d ends of %d connections through %d listen comms are missing", left, ALL,
           RANKS);
  }
}

/* Each connection in turn sends its number, while all receive; recv is sorted by what came. */
static void find_partners(struct meeting *m) {
  void *sorted[ALL] = {NULL};
  struct kit_op recv[ALL];
  uint32_t in[ALL], out;
  for (int i = 0; i < ALL; i++) {
    recv[i] = kit_op_recv(m->recv[i], &in[i], sizeof in[i], 0);
    recv[i].mh[0] = kit_mr_reg(m->net, m->recv[i], &in[i], sizeof in[i]);
    kit_op_start(m->net, &recv[i]);
  }
  for (uint32_t i = 0; i < ALL; i++) {
    int first = (int)i / EACH * EACH, got = -1;
    struct kit_op send = kit_op_send(m->send[i], &out, sizeof out, 0);
    uint64_t deadline = soon();
    out = i;
    send.mh[0] = kit_mr_reg(m->net, m->send[i], &out, sizeof out);
    while (got < 0 || !send.done) {
      kit_op_step(m->net, &send);
      ENSURE(!send.error, "the send of connection %u ended with error %s", i, kit_rc_text(send.error));
      for (int k = 0; k < ALL; k++) {
        if (recv[k].done || !kit_op_step(m->net, &recv[k])) continue;
        ENSURE(!recv[k].error, "a receive ended with error %s while connection %u sent", kit_rc_text(recv[k].error), i);
        ENSURE(k >= first && k < first + EACH && in[k] == i && got < 0,
               "connection %u sent, and number %u came through accepted connection %d of listen comm %d", i, in[k],
               k % EACH, k / EACH);
        got = k;
      }
      ENSURE(!rail_deadline_passed(deadline), "the message of connection %u, alone, is not there at the deadline", i);
    }
    kit_mr_dereg(m->net, m->send[i], send.mh[0]);
    kit_mr_dereg(m->net, m->recv[got], recv[got].mh[0]);
    sorted[i] = m->recv[got];
  }
  memcpy(m->recv, sorted, sizeof sorted);
}

/* All at once, sizes that tell them apart: each connection's bytes are its own, on whatever streams they travel. */
static void use_all(struct meeting *m, size_t most) {
  struct kit_op ops[2 * ALL];
  uint8_t *out = kit_pages(most * ALL), *in = kit_pages(most * ALL);
  for (int i = 0; i < ALL; i++) {
    size_t size = most - (size_t)i * most / (2 * ALL);
    uint8_t *to = in + most * (size_t)i, *from = out + most * (size_t)i;
    kit_pattern_fill(from, size, (uint64_t)i);
    ops[i] = kit_op_recv(m->recv[i], to, size, i);
    ops[i].mh[0] = kit_mr_reg(m->net, m->recv[i], to, most);
    ops[ALL + i] = kit_op_send(m->send[i], from, size, i);
    ops[ALL + i].mh[0] = kit_mr_reg(m->net, m->send[i], from, most);
  }
  kit_ops_run(m->net, ops, 2 * ALL, (struct kit_ops_options){0});
  for (int i = 0; i < ALL; i++) {
    ssize_t wrong = kit_pattern_check(ops[i].data[0], ops[i].size[0], (uint64_t)i);
    ENSURE(ops[i].sizes[0] == (int)ops[i].size[0] && wrong < 0,
           "connection %d: %d bytes came of %zu, byte %zd is wrong; the bytes of connections are mixed up", i,
           ops[i].sizes[0], ops[i].size[0], wrong);
    kit_mr_dereg(m->net, m->recv[i], ops[i].mh[0]);
    kit_mr_dereg(m->net, m->send[i], ops[ALL + i].mh[0]);
  }
  kit_pages_free(out, most * ALL);
  kit_pages_free(in, most * ALL);
}

/* What one connection is made of, TCP streams or QPs, must not be put together with another's. */
static void several_at_once(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_rng rng;
  kit_net_open(&n);
  kit_rng_start(&rng);
  for (int round = 0; round < 3; round++) {
    static struct meeting m;
    m = (struct meeting){.net = &n};
    meet(&m, &rng);
    find_partners(&m);
    use_all(&m, round == 0 ? 5000 : 1000000);
    for (int i = 0; i < ALL; i++) {
      struct kit_pair p = {.net = &n, .send = m.send[i], .recv = m.recv[i]};
      if (i < RANKS) p.listen = m.listen[i];
      kit_pair_close(&p);
    }
  }
  kit_net_close(&n);
}

/* What NCCL presets to NULL it may one day leave on the stack. */
static void comms_are_written(struct kit_process *self) {
  (void)self;
  struct rail_net_device_handle *dh = NULL;
  struct kit_net n;
  struct kit_pair p = {.net = &n};
  void *handle = p.handle, *comm = KIT_POISON;
  kit_net_load(&n, KIT_TARGET);
  int rc = kit_net_init(&n, NULL, -1);
  ENSURE(rc == 0, "init returned %s", kit_rc_text(rc));
  rc = n.vt->listen(n.ctx, n.dev, handle, &comm);
  ENSURE(rc == 0 && comm && comm != KIT_POISON, "listen returned %s and *listenComm %p", kit_rc_text(rc), comm);
  p.listen = comm;
  comm = KIT_POISON;
  rc = n.vt->accept(p.listen, &comm, &dh);
  ENSURE(rc == 0 && !comm, "accept with nobody there returned %s and *recvComm %p, expected NULL", kit_rc_text(rc),
         comm);
  uint64_t deadline = soon();
  while (!p.send || !p.recv) {
    comm = KIT_POISON;
    if (!p.send) rc = n.vt->connect(n.ctx, n.dev, handle, &comm, &dh);
    ENSURE(rc == 0, "connect returned %s", kit_rc_text(rc));
    if (!p.send) ENSURE(comm != KIT_POISON, "connect in progress did not write *sendComm, expected NULL");
    if (!p.send) p.send = comm;
    comm = KIT_POISON;
    if (!p.recv) rc = n.vt->accept(p.listen, &comm, &dh);
    ENSURE(rc == 0, "accept returned %s", kit_rc_text(rc));
    if (!p.recv) ENSURE(comm != KIT_POISON, "accept in progress did not write *recvComm, expected NULL");
    if (!p.recv) p.recv = comm;
    ENSURE(!rail_deadline_passed(deadline), "no connection within the deadline");
    sched_yield();
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

static void device_handle_is_left_alone(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct rail_net_props_v12 props;
  struct rail_net_device_handle canary, *to_send = &canary, *to_recv = &canary;
  kit_net_open(&n);
  int rc = n.vt->get_properties(n.dev, &props);
  ENSURE(rc == 0, "getProperties returned %s", kit_rc_text(rc));
  kit_net_close(&n);
  if (props.net_device_type != RAIL_NET_DEVICE_HOST) kit_skip("the device offloads to the GPU");
  kit_net_load(&n, KIT_TARGET);
  rc = kit_net_init(&n, NULL, -1);
  ENSURE(rc == 0, "init returned %s", kit_rc_text(rc));
  struct kit_pair p = {.net = &n};
  p.listen = kit_net_listen(&n, p.handle);
  uint64_t deadline = soon();
  while (!p.send || !p.recv) {
    if (!p.send) rc = n.vt->connect(n.ctx, n.dev, p.handle, &p.send, &to_send);
    if (!p.recv && rc == 0) rc = n.vt->accept(p.listen, &p.recv, &to_recv);
    ENSURE(rc == 0, "connect or accept returned %s", kit_rc_text(rc));
    ENSURE(!rail_deadline_passed(deadline), "no connection within the deadline");
    sched_yield();
  }
  ENSURE(to_send == &canary && to_recv == &canary,
         "%s of a host device wrote *%sDevComm; NCCL would hand that to the GPU's kernels",
         to_send != &canary ? "connect" : "accept", to_send != &canary ? "send" : "recv");
  kit_pair_close(&p);
  kit_net_close(&n);
}

const struct kit_check kit_checks_handles[] = {
  {"4.20", "connect.handle_may_move", KIT_MUST, KIT_ONE,
   .what = "State that connect keeps in the handle does not depend on where the handle lies.",
   .source = "src/proxy.cc:1670-1690, src/transport/net.cc:844, 874", .run = handle_may_move},
  {"4.21", "connect.several_to_one_listener", KIT_SHOULD, KIT_ONE,
   .what = "One listen comm accepts several connections, one after another.",
   .source = "src/transport/net_ib/gin.cc:174-207, src/rma/rma_proxy.cc:420-435", .run = several_to_one_listener},
  {"4.22", "connect.device_handle_is_left_alone", KIT_MUST, KIT_ONE, .versions = KIT_SINCE(7),
   .what = "connect and accept of a host device leave *sendDevComm and *recvDevComm as they are.",
   .source = "src/transport/net.cc:817-837", .run = device_handle_is_left_alone},
  {"4.23", "connect.comms_are_written", KIT_SHOULD, KIT_ONE,
   .what = "listen, connect and accept write *comm in every call, with NULL while in progress.",
   .source = "plugins/net/README.md:286-300, src/transport/net.cc:890-892", .run = comms_are_written},
  {"4.24", "connect.several_to_one_listener_at_once", KIT_SHOULD, KIT_ONE, .limit_s = 60,
   .what = "Two listen comms accept several connections each, set up in any order, and none is put together with "
           "another.",
   .source = "src/transport/net_ib/gin.cc:174-207, src/rma/rma_proxy.cc:420-435", .run = several_at_once},
  {0},
};
