/* SPDX-License-Identifier: Apache-2.0
 * Queue pairs that the RDMA CM sets up: every step that is lost, late, refused or fails, sides that end at any time.
 * TEST-LIMIT: 240 */
#include "test/unit/ib_cm_rig.h"

/* ---- steps that are lost, late, refused ------------------------------------------------------ */

struct outcome {
  const char *statements;
  int64_t connect_ms;
  const char *why;
};

static void check_outcome(const struct outcome *o, int listen_dev, int dev) {
  struct hs h;
  begin(&h);
  ib_params.qps = 2;
  if (o->connect_ms) ib_params.connect_ms = o->connect_ms;
  hs_listen(&h, listen_dev);
  hs_connect_once(&h, dev); /* it keeps its limit; the acceptor, which begins later, has the usual one */
  ib_params.connect_ms = 30000;
  emu_do(o->statements);
  hs_run_connect(&h, dev);
  for (int i = 0; i < 100 && h.accept == RAIL_IN_PROGRESS; i++) hs_accept_once(&h);
  CHECK_MSG(h.connect != RAIL_OK && h.accept != RAIL_OK, "%s", o->statements);
  CHECK_MSG(hs_logged(o->why), "%s: not '%s': %s", o->statements, o->why, hs_lines);
  CHECK_MSG(hs_logged("RDMA CM, queue pair ") && hs_logged("GID 10.77."), "%s: %s", o->statements, hs_lines);
  CHECK_MSG(hs_logged("check: "), "%s: %s", o->statements, hs_lines);
  end(&h);
}

TEST(steps_that_do_not_come) {
  static const struct outcome rows[] = {
    {"cm reject event=addr_resolved", 0, "the address is not resolved: No route to host"},
    {"cm reject event=route_resolved", 0, "the route is not resolved: No route to host"},
    {"cm reject event=connect_request", 0, "rejected by the peer's process"},
    {"cm reject event=connect_response", 0, "rejected by the peer's process"},
    {"cm lost event=addr_resolved", 300, "waiting for: the address to be resolved"},
    {"cm lost event=route_resolved", 300, "waiting for: the route to be resolved"},
    {"cm lost event=connect_request", 300, "waiting for: the peer's response"},
    {"cm lost event=connect_response", 300, "waiting for: the peer's response"},
    {"cm answer ms=100; cm lost event=connect_request", 0, "no answer: Connection timed out"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    check_outcome(&rows[i], A1, B);
    check_outcome(&rows[i], RNIC1, RNIC2);
  }
}

/* Of two queue pairs' connection. */
struct cost { uint64_t ns; long modifies; };

static struct cost connect_with(const char *statements, int listen_dev, int dev) {
  struct hs h;
  begin(&h);
  ib_params.qps = 2;
  hs_listen(&h, listen_dev);
  emu_do(statements);
  const long modifies = emu_calls("modify_qp");
  const uint64_t start = rail_now_ns();
  hs_run(&h, dev);
  struct cost cost = {rail_now_ns() - start, emu_calls("modify_qp") - modifies};
  CHECK_MSG(h.connect == RAIL_OK && h.accept == RAIL_OK, "%s: %s", statements, hs_lines);
  end(&h);
  return cost;
}

TEST(steps_that_come_late) {
  static const char *const events[] = {"addr_resolved", "route_resolved", "connect_request", "connect_response",
                                       "established"};
  for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
    for (int rnic = 0; rnic < 2; rnic++) {
      char statements[64];
      snprintf(statements, sizeof statements, "cm late event=%s us=50000", events[i]);
      struct cost cost = connect_with(statements, rnic ? RNIC1 : A1, rnic ? RNIC2 : B);
      CHECK_MSG(cost.ns >= 50000000, "%s: nobody waited for it: %" PRIu64 " ns", statements, cost.ns);
    }
}

TEST(a_queue_pair_is_moved_again) {
  long usual = connect_with("reset", A1, B).modifies;
  CHECK_INT(connect_with("fail modify_qp from=1 errno=ETIMEDOUT", A1, B).modifies, usual + 1);
}

/* The connector is ready; the acceptor never hears that. */
TEST(a_last_message_that_is_lost) {
  for (int rnic = 0; rnic < 2; rnic++) {
    struct hs h;
    begin(&h);
    ib_params.connect_ms = 400;
    hs_listen(&h, rnic ? RNIC1 : A1);
    emu_do("cm lost event=established times=ever");
    hs_run_connect(&h, rnic ? RNIC2 : B);
    CHECK(h.connect == RAIL_REMOTE_ERROR);
    CHECK_MSG(hs_logged("waiting for: the peer's last message") || hs_logged("waited for the peer's queue pairs"), "%s",
              hs_lines);
    end(&h);
  }
}

TEST(a_port_that_is_down_is_no_place_to_connect_from) {
  struct hs h;
  begin(&h);
  hs_listen(&h, A1);
  ib_params.connect_ms = 400;
  for (int i = 0; i < 4; i++) hs_connect_once(&h, B); /* its port is queried */
  emu_do("port emuB 1 state=down");
  hs_run_connect(&h, B);
  emu_do("port emuB 1 state=active");
  CHECK_MSG(h.connect != RAIL_OK && hs_logged("the address is not resolved: Network is unreachable"), "%s", hs_lines);
  end(&h);
}

/* ---- calls that fail ------------------------------------------------------------------------- */

static int calls_left; /* the call after so many fails; of the function that is chosen */

static bool fails(void) {
  errno = ENOMEM;
  return calls_left-- == 0;
}

#define FAILING(name, params, args) \
  static int failing_##name params { return fails() ? -1 : real.name args; }
FAILING(create_id, (struct rdma_event_channel * c, struct rdma_cm_id **id, void *x, enum rdma_port_space ps),
        (c, id, x, ps))
FAILING(set_option, (struct rdma_cm_id * id, int level, int name, void *value, size_t size),
        (id, level, name, value, size))
FAILING(bind_addr, (struct rdma_cm_id * id, struct sockaddr *addr), (id, addr))
FAILING(listen, (struct rdma_cm_id * id, int backlog), (id, backlog))
FAILING(resolve_addr, (struct rdma_cm_id * id, struct sockaddr *src, struct sockaddr *dst, int ms), (id, src, dst, ms))
FAILING(resolve_route, (struct rdma_cm_id * id, int ms), (id, ms))
FAILING(connect, (struct rdma_cm_id * id, struct rdma_conn_param *p), (id, p))
FAILING(establish, (struct rdma_cm_id * id), (id))
FAILING(accept, (struct rdma_cm_id * id, struct rdma_conn_param *p), (id, p))
FAILING(init_qp_attr, (struct rdma_cm_id * id, struct ibv_qp_attr *attr, int *mask), (id, attr, mask))
static struct rdma_event_channel *failing_create_event_channel(void) {
  return fails() ? NULL : real.create_event_channel();
}

static void choose(int call) {
  switch (call) {
    case 0: ib_rdmacm.create_event_channel = failing_create_event_channel; break;
    case 1: ib_rdmacm.create_id = failing_create_id; break;
    case 2: ib_rdmacm.set_option = failing_set_option; break;
    case 3: ib_rdmacm.bind_addr = failing_bind_addr; break;
    case 4: ib_rdmacm.listen = failing_listen; break;
    case 5: ib_rdmacm.resolve_addr = failing_resolve_addr; break;
    case 6: ib_rdmacm.resolve_route = failing_resolve_route; break;
    case 7: ib_rdmacm.connect = failing_connect; break;
    case 8: ib_rdmacm.establish = failing_establish; break;
    case 9: ib_rdmacm.accept = failing_accept; break;
    default: ib_rdmacm.init_qp_attr = failing_init_qp_attr; break;
  }
}

/* Every call fails once, at each place: a line and an error on that side, one on the other, and nothing is left. */
TEST(whatever_fails) {
  for (int call = 0; call <= 10; call++) {
    bool failed = true;
    for (int n = 0; failed; n++) {
      struct hs h;
      begin(&h);
      ib_params.tc = 96;
      ib_params.connect_ms = 5000;
      hs_listen(&h, FUSED);
      choose(call);
      calls_left = n;
      hs_run_connect(&h, B);
      failed = h.connect != RAIL_OK;
      if (!failed) hs_run(&h, B);
      CHECK_MSG(failed || n > 0, "call %d never failed", call);
      CHECK_MSG(!failed || hs_logged("Cannot allocate memory"), "call %d, %d: %s", call, n, hs_lines);
      CHECK(n < 40);
      end(&h);
    }
  }
}

TEST(whatever_fails_of_verbs) {
  static const char *const calls[] = {"create_cq", "reg_mr", "create_qp", "modify_qp", "post_send", "post_recv"};
  for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
    for (int rnic = 0; rnic < 2; rnic++) {
      bool failed = true;
      for (int n = 1; failed; n += n < 40 ? 1 : 100) {
        struct hs h;
        char script[128];
        begin(&h);
        snprintf(script, sizeof script, "fail %s from=%d errno=EIO", calls[c], n);
        hs_listen(&h, rnic ? FUSED_RNIC : FUSED);
        emu_do(script);
        hs_run_connect(&h, rnic ? RNIC1 : B);
        failed = h.connect != RAIL_OK;
        if (!failed && h.accept == RAIL_IN_PROGRESS) hs_run(&h, rnic ? RNIC1 : B);
        CHECK_MSG(failed || n > 1, "%s never failed", calls[c]);
        CHECK_MSG(!failed || hs_logged("Input/output error"), "%s, %d: %s", calls[c], n, hs_lines);
        CHECK(n < 2000);
        end(&h);
      }
    }
  }
}

/* ---- ends ------------------------------------------------------------------------------------------ */

static void drop_connector(struct hs *h) {
  struct rail_net_connect call;
  CHECK_OK(rail_net_connect_enter(&call, &ib_protocol, h->ctx, h->handle));
  rail_net_connect_leave(&call);
  rail_net_setup_drop_attempt(call.attempt);
}

/* Until accept has accepted or dropped the peers that have said HELLO to it. */
static void accept_what_is_there(struct hs *h) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (h->accept == RAIL_IN_PROGRESS && !TAILQ_EMPTY(&hs_half_open(h)->list)) {
    hs_accept_once(h);
    CHECK_MSG(!rail_deadline_passed(deadline), "accept holds on to a peer that is gone or silent: %s", hs_lines);
  }
}

/* The connector makes no more calls after the n-th, for every n: in the steps of the RDMA CM, too, the acceptor drops
 * that peer alone. True: some n was met in which the acceptor waits for the peer by the RDMA CM. */
static bool silent_after_any_call(bool rnic, bool no_last) { /* no_last: its last message is lost */
  const int dev = rnic ? RNIC2 : B;
  bool over = false, waited = false;
  for (int n = 1; !over; n++) {
    struct hs h;
    begin(&h);
    hs_listen(&h, rnic ? RNIC1 : A1);
    if (no_last) emu_do("cm lost event=established times=ever");
    struct hs first = h;
    for (int i = 0; i < n && first.connect == RAIL_IN_PROGRESS && first.accept == RAIL_IN_PROGRESS; i++) {
      hs_connect_once(&first, dev);
      hs_accept_once(&first);
    }
    over = first.connect != RAIL_IN_PROGRESS || first.accept != RAIL_IN_PROGRESS;
    struct rail_setup *half_open;
    TAILQ_FOREACH(half_open, &hs_half_open(&h)->list, link) half_open->limits.connect_ms = 30;
    accept_what_is_there(&first);
    emu_do("reset; cm answer ms=68000");
    bool slow = hs_logged("waiting for: the driver"); /* the machine is: the driver answers at once */
    waited |= hs_logged(no_last ? "waiting for: the peer's last message" : "waiting for: the peer's request");
    over |= no_last && waited;
    if (hs_logged("RDMA CM, queue pair ") && !slow) {
      CHECK_MSG(first.accept == RAIL_IN_PROGRESS, "after %d calls: %s", n, hs_lines);
      if (first.connect == RAIL_IN_PROGRESS) drop_connector(&first);
      hs_run(&h, dev);
      CHECK_MSG(h.connect == RAIL_OK && h.accept == RAIL_OK, "after %d calls: %s", n, hs_lines);
    } else if (first.connect == RAIL_IN_PROGRESS) {
      drop_connector(&first);
    }
    if (first.connect == RAIL_OK) CHECK_OK(ib_close_send(first.sent));
    if (first.accept == RAIL_OK) CHECK_OK(ib_close_recv(first.received));
    end(&h);
    CHECK(n < 500);
  }
  return waited;
}

/* On a slow machine the acceptor's 30 ms may be over in an earlier step for the n that would wait. */
TEST(a_peer_that_is_silent) {
  for (int row = 0; row < 4; row++) {
    int tries = 0;
    while (!silent_after_any_call(row & 1, row & 2)) CHECK_MSG(++tries < 10, "row %d never waits for the peer", row);
  }
}

/* The connector is dropped after so many calls: the acceptor gives it up, and accepts another. */
TEST(a_peer_that_ends_at_any_time) {
  for (int rnic = 0; rnic < 2; rnic++) {
    bool over = false;
    for (int n = 1; !over; n++) {
      struct hs h;
      const int dev = rnic ? RNIC2 : B;
      begin(&h);
      ib_params.qps = 2;
      hs_listen(&h, rnic ? RNIC1 : A1);
      struct hs first = h;
      for (int i = 0; i < n && first.connect == RAIL_IN_PROGRESS; i++) {
        hs_connect_once(&first, dev);
        hs_accept_once(&first);
      }
      over = first.connect == RAIL_OK || first.accept != RAIL_IN_PROGRESS;
      if (first.connect == RAIL_OK) CHECK_OK(ib_close_send(first.sent));
      if (first.connect == RAIL_IN_PROGRESS) drop_connector(&first);
      accept_what_is_there(&first); /* it may have sent all that accept needs */
      if (first.accept == RAIL_OK) CHECK_OK(ib_close_recv(first.received));
      if (!over) {
        hs_run(&h, dev);
        CHECK_MSG(h.connect == RAIL_OK && h.accept == RAIL_OK, "after %d calls: %s", n, hs_lines);
      }
      end(&h);
      CHECK(n < 500);
    }
  }
}

TEST(a_listener_that_ends_at_any_time) {
  bool over = false;
  for (int n = 0; !over; n++) {
    struct hs h;
    begin(&h);
    ib_params.connect_ms = 300;
    hs_listen(&h, FUSED);
    for (int i = 0; i < n; i++) {
      hs_connect_once(&h, B);
      hs_accept_once(&h);
    }
    over = h.connect == RAIL_OK && h.accept == RAIL_OK;
    hs_close_listen(&h);
    hs_run_connect(&h, B);
    end(&h);
    CHECK(n < 500);
  }
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(steps_that_do_not_come), TEST_CASE(steps_that_come_late), TEST_CASE(a_queue_pair_is_moved_again),
    TEST_CASE(a_last_message_that_is_lost),
    TEST_CASE(a_port_that_is_down_is_no_place_to_connect_from), TEST_CASE(whatever_fails),
    TEST_CASE(whatever_fails_of_verbs), TEST_CASE(a_peer_that_is_silent), TEST_CASE(a_peer_that_ends_at_any_time),
    TEST_CASE(a_listener_that_ends_at_any_time)};
  return cm_rig_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
