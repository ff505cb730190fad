/* SPDX-License-Identifier: Apache-2.0
 * Queue pairs that the RDMA CM sets up, over the emulated device: connections that come about, requests and responses
 * that are wrong, every step that is lost, late, refused or fails, sides that end at any time. TEST-LIMIT: 240 */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

#include "plugin/ib/ib_cm.h"
#include "test/unit/ib_handshake.h"

#define EMU "device emuA ports=2; device emuB; device rnic transport=iwarp ports=2; device soft"
enum { A1, A2, B, RNIC1, RNIC2, SOFT, FUSED, FUSED_RNIC };

static struct ib_rdmacm real; /* ib_rdmacm, as it was loaded */

static struct ib_comm *sent(const struct hs *h) { return h->sent; }
static struct ib_comm *received(const struct hs *h) { return h->received; }

static int open_files(void) {
  int n = 0;
  DIR *dir = opendir("/proc/self/fd");
  while (dir && readdir(dir)) n++;
  if (dir) closedir(dir);
  return n;
}

static int files_before;

static void begin(struct hs *h) {
  fake_script("reset; cm answer ms=68000");
  ib_rdmacm = real;
  files_before = open_files();
  hs_begin(h);
}

/* Nothing is left, no descriptor either. (The emulated CM's thread closes sockets that nobody has seen.) */
static void end(struct hs *h) {
  uint64_t deadline = rail_deadline_in_ms(TIMEOUT_MS);
  fake_script("reset");
  ib_rdmacm = real;
  hs_end(h);
  while (open_files() > files_before && !rail_deadline_passed(deadline)) sched_yield();
  CHECK_INT(open_files(), files_before);
}

/* ---- that come about ------------------------------------------------------------- */

static void check_common(const struct hs *h, unsigned int nqps, bool iwarp) {
  const struct ib_comm *s = sent(h), *r = received(h);
  CHECK(s->cm && r->cm && s->plan.rdmacm && r->plan.rdmacm && !s->plan.ece);
  CHECK(s->plan.notices == iwarp && r->plan.notices == iwarp && !s->failover == (iwarp || nqps == 1));
  CHECK_INT(s->plan.nqps, nqps);
  for (unsigned int i = 0; i < nqps; i++) {
    const struct ib_qp *a = &s->qps[i], *b = &r->qps[i];
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(a->state == IB_QP_RTS && b->state == IB_QP_RTS);
    CHECK_OK(ib_verbs.query_qp(a->qp, &attr, IBV_QP_STATE, &init));
    CHECK(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == b->qp->qp_num);
    CHECK(s->cm->paths[i].state == IB_CM_UP && r->cm->paths[i].state == IB_CM_UP);
    if (!iwarp) CHECK(a->attr.dest_qpn == b->qp->qp_num && b->attr.dest_qpn == a->qp->qp_num);
  }
  for (unsigned int i = 0; i < IB_MAX_RAILS; i++) CHECK(!r->cm->listeners[i]);
  CHECK(hs_logged("by the RDMA CM") && hs_logged("verified") && iwarp == hs_logged("parts reported by SEND"));
}

TEST(one_and_several_queue_pairs) {
  for (int qps = 1; qps <= 8; qps += 7) {
    struct hs h;
    begin(&h);
    ib_params.qps = qps;
    hs_pair(&h, A1, B);
    check_common(&h, (unsigned int)qps, false);
    CHECK_MSG(h.longest_ns < 200000000, "a call took %" PRIu64 " ns", h.longest_ns);
    end(&h);
  }
}

TEST(several_rails) {
  for (int fused_sends = 0; fused_sends < 2; fused_sends++) {
    struct hs h;
    begin(&h);
    ib_params.qps = 2;
    hs_pair(&h, fused_sends ? B : FUSED, fused_sends ? FUSED : B);
    check_common(&h, 6, false);
    end(&h);
  }
}

TEST(to_itself) {
  struct hs h;
  begin(&h);
  hs_pair(&h, A1, A1);
  check_common(&h, 1, false);
  end(&h);
}

TEST(iwarp) {
  struct hs h;
  begin(&h);
  ib_params.qps = 3;
  hs_pair(&h, RNIC1, FUSED_RNIC);
  check_common(&h, 6, true);
  CHECK(!ib_recv_comm_of(received(&h))->flush && !(ib_device_at(RNIC1, "")->rails[0]->roce));
  end(&h);
}

/* iWARP's notices are inline, whatever the parameter says of data. */
TEST(iwarp_without_inline) {
  struct hs h;
  begin(&h);
  ib_params.use_inline = 0;
  hs_pair(&h, RNIC1, RNIC2);
  CHECK(sent(&h)->qps[0].max_inline == 0);
  end(&h);
  begin(&h);
  fake_script("fail create_qp from=1 times=ever errno=EINVAL");
  hs_listen(&h, RNIC1);
  hs_run_connect(&h, RNIC2);
  CHECK(h.connect != RAIL_OK);
  end(&h);
}

/* NCCL's parameters reach the queue pair, whatever the RDMA CM takes from the network. */
TEST(traffic_class_and_timeouts) {
  struct hs h;
  struct ibv_qp_attr attr;
  struct ibv_qp_init_attr init;
  begin(&h);
  ib_params.tc = 104;
  ib_params.sl = 3;
  ib_params.timeout = 17;
  ib_params.retry_cnt = 5;
  hs_pair(&h, A1, B);
  for (int side = 0; side < 2; side++) {
    const struct ib_qp *qp = side ? &received(&h)->qps[0] : &sent(&h)->qps[0];
    CHECK_OK(ib_verbs.query_qp(qp->qp, &attr, IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT, &init));
    CHECK(attr.ah_attr.grh.traffic_class == 104 && attr.ah_attr.sl == 3 && attr.timeout == 17 && attr.retry_cnt == 5);
    CHECK(attr.rnr_retry == IB_RNR_RETRY && attr.min_rnr_timer == IB_MIN_RNR_TIMER);
    CHECK(qp->attr.traffic_class == 104 && qp->attr.sl == 3);
  }
  end(&h);
}

/* ---- that do not ---------------------------------------------------------------------- */

static struct ib_port *port_at(int dev) { return ib_device_at(dev, "test")->rails[0]; }

TEST(one_side_without_it) {
  struct hs h;
  for (int i = 0; i < 2; i++) {
    begin(&h);
    port_at(i ? A1 : B)->rdmacm = false;
    hs_listen(&h, A1);
    hs_run(&h, B);
    port_at(i ? A1 : B)->rdmacm = true;
    CHECK(h.connect == RAIL_REMOTE_ERROR && h.accept == RAIL_BAD_USAGE && hs_logged("set RAIL_IB_CM alike on both"));
    end(&h);
  }
}

TEST(roce_and_iwarp) {
  struct hs h;
  begin(&h);
  hs_listen(&h, RNIC1);
  hs_run(&h, B);
  CHECK(h.connect == RAIL_REMOTE_ERROR && hs_logged("of two kinds of InfiniBand, RoCE and iWARP"));
  end(&h);
}

/* ---- private data that is wrong ----------------------------------------------------------- */

/* Which byte of the private data is changed, or how it is cut; by the index of the queue pair. */
static struct {
  int byte;  /* -1: none */
  int size;  /* -1: all */
  int qp;    /* only of this one; -1: all */
  int as_qp; /* the index that it shows instead; -1: its own */
  uint32_t qpn; /* xor */
} lie;

static const void *lying(struct rdma_conn_param *p, struct ib_cm_wire *wire) {
  memcpy(wire, p->private_data, sizeof *wire);
  if (lie.qp >= 0 && wire->qp != lie.qp) return wire;
  if (lie.byte >= 0) ((uint8_t *)wire)[lie.byte] ^= 0x80;
  if (lie.size >= 0) p->private_data_len = (uint8_t)lie.size;
  if (lie.as_qp >= 0) wire->qp = (uint16_t)lie.as_qp;
  return wire;
}

static int lying_connect(struct rdma_cm_id *id, struct rdma_conn_param *param) {
  struct rdma_conn_param p = *param;
  struct ib_cm_wire wire;
  p.private_data = lying(&p, &wire);
  return real.connect(id, &p);
}

static int lying_accept(struct rdma_cm_id *id, struct rdma_conn_param *param) {
  struct rdma_conn_param p = *param;
  struct ib_cm_wire wire;
  p.private_data = lying(&p, &wire);
  p.qp_num ^= lie.qpn;
  return real.accept(id, &p);
}

static void rejected(int listen_dev, int dev, const char *why) {
  struct hs h;
  begin(&h);
  ib_params.qps = 2;
  ib_rdmacm.connect = lying_connect;
  hs_listen(&h, listen_dev);
  hs_run_connect(&h, dev);
  for (int i = 0; i < 100; i++) hs_accept_once(&h);
  CHECK(h.connect == RAIL_REMOTE_ERROR && h.accept == RAIL_IN_PROGRESS); /* accept waits for the next peer */
  CHECK_MSG(hs_logged(why), "not '%s': %s", why, hs_lines);
  CHECK(hs_logged("rejected by the peer's process"));
  end(&h);
}

TEST(requests_that_are_rejected) {
  static const struct { int byte, size, qp, as_qp; const char *why; } rows[] = {
    {0, -1, -1, -1, "not of this protocol"},     {4, -1, -1, -1, "not of this protocol"},
    {8, -1, -1, -1, "token that is not"},        {15, -1, -1, -1, "token that is not"},
    {6, -1, -1, -1, "a queue pair that does not exist"},
    {-1, -1, 1, 2, "not in the plan"},           {-1, -1, 1, 0, "a second request"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    memset(&lie, 0, sizeof lie);
    lie.byte = rows[i].byte, lie.size = rows[i].size, lie.qp = rows[i].qp, lie.as_qp = rows[i].as_qp;
    rejected(A1, B, rows[i].why);
    rejected(RNIC1, RNIC2, rows[i].why);
  }
  /* iWARP brings as many bytes as were sent; InfiniBand's CM zeros behind them. */
  memset(&lie, 0xff, sizeof lie);
  lie.size = 15;
  rejected(RNIC1, RNIC2, "too short");
  lie.size = 0;
  rejected(RNIC1, RNIC2, "too short");
  rejected(A1, B, "not of this protocol");
}

static void refused_response(int listen_dev, int dev, const char *why) {
  struct hs h;
  begin(&h);
  ib_params.qps = 2;
  ib_rdmacm.accept = lying_accept;
  hs_listen(&h, listen_dev);
  hs_run_connect(&h, dev);
  CHECK_INT(h.connect, RAIL_REMOTE_ERROR);
  CHECK_MSG(hs_logged(why), "not '%s': %s", why, hs_lines);
  end(&h);
}

TEST(responses_that_are_wrong) {
  static const struct { int byte, as_qp; uint32_t qpn; const char *why; } rows[] = {
    {0, -1, 0, "not of this protocol"}, {9, -1, 0, "token that is not"}, {-1, 1, 0, "for another queue pair"},
    {-1, -1, 1, "not the one of its list"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    memset(&lie, 0xff, sizeof lie);
    lie.byte = rows[i].byte, lie.as_qp = rows[i].as_qp, lie.qpn = rows[i].qpn;
    refused_response(A1, B, rows[i].why);
    if (!rows[i].qpn) refused_response(RNIC1, RNIC2, rows[i].why);
  }
}

/* ---- steps that are lost, late, refused ------------------------------------------------------ */

struct outcome {
  const char *statements;
  int64_t connect_ms;
  bool comes_about;
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
  fake_script(o->statements);
  if (o->comes_about) {
    hs_run(&h, dev);
    CHECK_MSG(h.connect == RAIL_OK && h.accept == RAIL_OK, "%s: %s", o->statements, hs_lines);
  } else {
    hs_run_connect(&h, dev);
    for (int i = 0; i < 100 && h.accept == RAIL_IN_PROGRESS; i++) hs_accept_once(&h);
    CHECK_MSG(h.connect != RAIL_OK && h.accept != RAIL_OK, "%s", o->statements);
    CHECK_MSG(hs_logged(o->why), "%s: not '%s': %s", o->statements, o->why, hs_lines);
    CHECK_MSG(hs_logged("RDMA CM, queue pair ") && hs_logged("GID 10.77."), "%s: %s", o->statements, hs_lines);
    CHECK_MSG(hs_logged("check: "), "%s: %s", o->statements, hs_lines);
  }
  end(&h);
}

TEST(steps_that_do_not_come) {
  static const struct outcome rows[] = {
    {"cm reject event=addr_resolved", 0, false, "the address is not resolved: No route to host"},
    {"cm reject event=route_resolved", 0, false, "the route is not resolved: No route to host"},
    {"cm reject event=connect_request", 0, false, "rejected by the peer's process"},
    {"cm reject event=connect_response", 0, false, "rejected by the peer's process"},
    {"cm lost event=addr_resolved", 300, false, "waiting for: the address to be resolved"},
    {"cm lost event=route_resolved", 300, false, "waiting for: the route to be resolved"},
    {"cm lost event=connect_request", 300, false, "waiting for: the peer's response"},
    {"cm lost event=connect_response", 300, false, "waiting for: the peer's response"},
    {"cm answer ms=100; cm lost event=connect_request", 0, false, "no answer: Connection timed out"},
    {"cm late event=addr_resolved us=50000", 0, true, ""},
    {"cm late event=route_resolved us=50000", 0, true, ""},
    {"cm late event=connect_request us=50000", 0, true, ""},
    {"cm late event=connect_response us=50000", 0, true, ""},
    {"cm late event=established us=50000", 0, true, ""},
    {"fail modify_qp from=1 errno=ETIMEDOUT", 0, true, ""}, /* tried again */
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    check_outcome(&rows[i], A1, B);
    if (!strstr(rows[i].statements, "modify")) check_outcome(&rows[i], RNIC1, RNIC2);
  }
}

/* The connector is ready; the acceptor never hears that. */
TEST(a_last_message_that_is_lost) {
    for (int rnic = 0; rnic < 2; rnic++) {
    struct hs h;
    begin(&h);
    ib_params.connect_ms = 400;
    hs_listen(&h, rnic ? RNIC1 : A1);
    fake_script("cm lost event=established times=ever");
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
  fake_script("port emuB 1 state=down");
  hs_run_connect(&h, B);
  fake_script("port emuB 1 state=active");
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

/* Every call fails once, at each place: a line and an error on that side, an error on the other, and nothing is left. */
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
        ib_params.connect_ms = 5000;
        snprintf(script, sizeof script, "fail %s from=%d errno=EIO", calls[c], n);
        hs_listen(&h, rnic ? FUSED_RNIC : FUSED);
        fake_script(script);
        hs_run_connect(&h, rnic ? RNIC1 : B);
        failed = h.connect != RAIL_OK;
        if (!failed && h.accept == RAIL_IN_PROGRESS) hs_run(&h, rnic ? RNIC1 : B);
        CHECK(n < 2000);
        end(&h);
      }
    }
  }
}

/* ---- ends ------------------------------------------------------------------------------------------ */

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
      if (first.connect == RAIL_IN_PROGRESS) {
        struct rail_handle handle;
        struct ib_hints hints;
        const char *why;
        CHECK(ib_handle_decode(first.handle, &handle, &hints, &why));
        void *attempt = rail_net_ctx_attempt("RailIB", h.ctx, handle.attempt);
        rail_attempts_remove(&h.ctx->attempts, handle.attempt);
        ib_connect_drop(attempt);
      }
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

/* Once, so that what the emulated CM opens for the process is open. */
static void warm_up(void) {
  struct hs h;
  hs_begin(&h);
  hs_pair(&h, RNIC1, RNIC2);
  hs_end(&h);
  hs_begin(&h);
  hs_pair(&h, SOFT, FUSED);
  hs_end(&h);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(one_and_several_queue_pairs), TEST_CASE(several_rails), TEST_CASE(to_itself), TEST_CASE(iwarp),
    TEST_CASE(iwarp_without_inline), TEST_CASE(traffic_class_and_timeouts), TEST_CASE(one_side_without_it),
    TEST_CASE(roce_and_iwarp), TEST_CASE(requests_that_are_rejected), TEST_CASE(responses_that_are_wrong),
    TEST_CASE(steps_that_do_not_come), TEST_CASE(a_last_message_that_is_lost),
    TEST_CASE(a_port_that_is_down_is_no_place_to_connect_from), TEST_CASE(whatever_fails),
    TEST_CASE(whatever_fails_of_verbs), TEST_CASE(a_peer_that_ends_at_any_time),
    TEST_CASE(a_listener_that_ends_at_any_time)};
  char folder[] = "/dev/shm/emu-test.XXXXXX";
  if (!mkdtemp(folder)) return 2;
  setenv("RAIL_EMU_DIR", folder, 1);
  setenv("RAIL_IB_CM", "rdmacm", 1);
  fake_use_emu(argv[0], EMU);
  if (!ib_handshake_load()) abort();
  ib_devices_load();
  ib_params.fuse_no_pci = 1;
  struct rail_net_vprops_v12 three = {.ndevs = 3, .devs = {A1, A2, B}}, two = {.ndevs = 2, .devs = {RNIC1, RNIC2}};
  int fused, fused_rnic;
  if (ib_device_count() != 6 || ib_device_fuse(&fused, &three) != RAIL_OK || fused != FUSED ||
      ib_device_fuse(&fused_rnic, &two) != RAIL_OK || fused_rnic != FUSED_RNIC) {
    fprintf(stderr, "no devices to test with\n");
    return 1;
  }
  real = ib_rdmacm;
  rail_log_set_sink(hs_log);
  warm_up();
  int failed = tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
  ib_devices_unload();
  DIR *dir = opendir(folder);
  for (struct dirent *d; dir && (d = readdir(dir)) != NULL;) (void)unlinkat(dirfd(dir), d->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
  return failed;
}
