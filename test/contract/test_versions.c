/* SPDX-License-Identifier: Apache-2.0
 * The same connections and transfers through each vtable version, and between processes that use different ones.
 * TEST-LIMIT: 60 */
#include <dlfcn.h>
#include <sched.h>

#include "common/clock.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

static size_t group_size(int buffer, int count) { return (size_t)buffer * 50 + (size_t)count; }

/* Sizes, a group, a flood and an optional receive: enough to use every argument of every slot. */
static void exercise(struct kit_net *n) {
  struct kit_pair p;
  struct rail_net_props_v12 props;
  memset(&props, 0xa5, sizeof props);
  ENSURE(n->vt->get_properties(n->dev, &props) == 0, "getProperties failed");
  ENSURE(props.max_p2p_bytes > 0 && props.max_p2p_bytes <= RAIL_NET_MAX_BYTES, "maxP2pBytes %zu", props.max_p2p_bytes);
  ENSURE(props.max_recvs >= 1 && props.max_recvs <= KIT_MAX_GROUP, "maxRecvs %d", props.max_recvs);
  kit_pair_open(n, &p);
  static const size_t size[] = {0, 1, 129, 65537, 3000001};
  for (int i = 0; i < 5; i++) kit_pair_ping(&p, size[i], (uint64_t)i);
  static uint8_t out[KIT_MAX_GROUP][500], in[KIT_MAX_GROUP][500];
  void *mh_out = kit_mr_reg(n, p.send, out, sizeof out), *mh_in = kit_mr_reg(n, p.recv, in, sizeof in);
  for (int count = 1; count <= props.max_recvs; count++) {
    struct kit_op ops[1 + KIT_MAX_GROUP] = {{.kind = KIT_OP_RECV, .comm = p.recv, .n = count, .optional = count == 1}};
    for (int b = 0; b < count; b++) {
      ops[0].data[b] = in[b];
      ops[0].size[b] = sizeof in[b];
      ops[0].tag[b] = 1000 + b;
      ops[0].mh[b] = mh_in;
      kit_pattern_fill(out[b], group_size(b, count), (uint64_t)b);
      ops[count - b] = kit_op_send(p.send, out[b], group_size(b, count), 1000 + b); /* last buffer first */
      ops[count - b].mh[0] = mh_out;
    }
    kit_ops_run(n, ops, 1 + count, (struct kit_ops_how){0});
    for (int b = 0; b < count && count > 1; b++) {
      ENSURE_INT(ops[0].sizes[b], group_size(b, count));
      ENSURE(kit_pattern_check(in[b], group_size(b, count), (uint64_t)b) < 0, "buffer %d of %d is wrong", b, count);
    }
  }
  for (int i = 0; i < 200; i++) kit_pair_ping(&p, (size_t)i, (uint64_t)i);
  kit_mr_dereg(n, p.send, mh_out);
  kit_mr_dereg(n, p.recv, mh_in);
  kit_pair_close(&p);
}

static void exercise_version(int version) {
  struct kit_net n;
  kit_net_open_version(&n, version);
  exercise(&n);
  kit_net_close(&n);
}

TEST(v6) { exercise_version(6); }
TEST(v7) { exercise_version(7); }
TEST(v8) { exercise_version(8); }
TEST(v9) { exercise_version(9); }
TEST(v10) { exercise_version(10); }
TEST(v11) { exercise_version(11); }
TEST(v12) { exercise_version(12); }

/* ---- by hand, without netload in between: the oldest shape and the one with configs ---- */

static void *open_plugin(void) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  void *dl = dlopen(kit_plugin_path(), RTLD_NOW | RTLD_LOCAL);
  CHECK_MSG(dl, "dlopen: %s", dlerror());
  return dl;
}

TEST(v6_by_hand) {
  void *dl = open_plugin();
  const struct rail_net_v6 *v = dlsym(dl, "ncclNetPlugin_v6");
  CHECK(v);
  int ndev = 0, done = 0, got = 0, room = 64, tag = 9;
  char handle[RAIL_NET_HANDLE_SIZE], out[16] = "fifteen letters", in[64];
  void *listen = NULL, *send = NULL, *recv = NULL, *mh_out = NULL, *mh_in = NULL, *to = in;
  CHECK_OK(v->init(kit_net_log));
  CHECK_OK(v->devices(&ndev));
  CHECK(ndev > 0);
  CHECK_OK(v->listen(0, handle, &listen));
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!send || !recv) {
    if (!send) CHECK_OK(v->connect(0, handle, &send));
    if (!recv) CHECK_OK(v->accept(listen, &recv));
    CHECK(!rail_deadline_passed(deadline));
  }
  CHECK_OK(v->reg_mr(send, out, sizeof out, RAIL_PTR_HOST, &mh_out));
  CHECK_OK(v->reg_mr(recv, in, sizeof in, RAIL_PTR_HOST, &mh_in));
  void *rs = NULL, *rr = NULL;
  while (!rr) CHECK_OK(v->irecv(recv, 1, &to, &room, &tag, &mh_in, &rr));
  while (!rs) {
    CHECK_OK(v->isend(send, out, sizeof out, 9, mh_out, &rs));
    CHECK(!rail_deadline_passed(deadline));
  }
  while (rs || rr) {
    if (rs) CHECK_OK(v->test(rs, &done, NULL));
    if (rs && done) rs = NULL;
    if (rr) CHECK_OK(v->test(rr, &done, &got));
    if (rr && done) rr = NULL;
    CHECK(!rail_deadline_passed(deadline));
  }
  CHECK_INT(got, sizeof out);
  CHECK_STR(in, out);
  CHECK_OK(v->dereg_mr(send, mh_out));
  CHECK_OK(v->dereg_mr(recv, mh_in));
  CHECK_OK(v->close_send(send));
  CHECK_OK(v->close_recv(recv));
  CHECK_OK(v->close_listen(listen));
  dlclose(dl);
}

TEST(v10_traffic_classes) {
  void *dl = open_plugin();
  const struct rail_net_v10 *v = dlsym(dl, "ncclNetPlugin_v10");
  CHECK(v);
  int ndev = 0;
  CHECK_OK(v->init(kit_net_log, NULL));
  CHECK_OK(v->devices(&ndev));
  static const int classes[] = {-1, 0, 46, 255};
  for (int i = 0; i < 5; i++) { /* the fifth has no config at all */
    struct rail_net_config config = {.traffic_class = classes[i % 4]};
    char handle[RAIL_NET_HANDLE_SIZE];
    void *listen = NULL, *send = NULL, *recv = NULL;
    struct rail_net_device_handle *dh = NULL;
    CHECK_OK(v->listen(0, handle, &listen));
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    while (!send || !recv) {
      if (!send) CHECK_OK(v->connect(0, i < 4 ? &config : NULL, handle, &send, &dh));
      if (!recv) CHECK_OK(v->accept(listen, &recv, &dh));
      CHECK(!rail_deadline_passed(deadline));
    }
    CHECK(dh == NULL); /* a host device leaves it alone */
    CHECK_OK(v->close_send(send));
    CHECK_OK(v->close_recv(recv));
    CHECK_OK(v->close_listen(listen));
  }
  dlclose(dl);
}

static int fatal_profiler(void **e_handle, int type, void *p_handle, int64_t plugin_id, void *ext) {
  (void)e_handle, (void)type, (void)plugin_id, (void)ext;
  if (!p_handle) abort(); /* NCCL's own would dereference it */
  return 0;
}

TEST(profiler_is_not_called_without_a_handle) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  struct rail_net_config config = {.traffic_class = 7};
  void *mine = n.ctx, *ctx = NULL;
  CHECK_OK(n.vt->init(&ctx, 99, &config, kit_net_log, fatal_profiler));
  n.ctx = ctx;
  kit_pair_open(&n, &p);
  for (int i = 0; i < 20; i++) kit_pair_ping(&p, (size_t)i * 1000, (uint64_t)i);
  kit_pair_close(&p);
  CHECK_OK(n.vt->finalize(ctx));
  n.ctx = mine;
  kit_net_close(&n);
}

/* ---- different versions at the two ends: the wire knows nothing of them ---- */

static void other_version(struct pipes *io, void *arg) {
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  uint8_t data[5000];
  kit_net_open_version(&n, *(int *)arg);
  pipe_read(io, handle, sizeof handle);
  void *comm = kit_net_connect(&n, handle);
  kit_pattern_fill(data, sizeof data, 8);
  struct kit_op op = kit_op_send(comm, data, sizeof data, 1);
  kit_op_finish(&n, &op);
  ENSURE(n.vt->close_send(comm) == 0, "closeSend failed");
  kit_net_close(&n);
}

TEST(old_sends_to_new) {
  for (int v = 6; v < 12; v += 2) {
    struct proc c = proc_start(other_version, &v);
    struct kit_net n;
    char handle[RAIL_NET_HANDLE_SIZE];
    static uint8_t data[6000];
    kit_net_open(&n);
    void *listen = kit_net_listen(&n, handle);
    pipe_write(&c.io, handle, sizeof handle);
    void *comm = kit_net_accept(&n, listen);
    struct kit_op op = kit_op_recv(comm, data, sizeof data, 1);
    kit_op_finish(&n, &op);
    CHECK_INT(op.sizes[0], 5000);
    CHECK(kit_pattern_check(data, 5000, 8) < 0);
    proc_join(&c);
    CHECK_OK(n.vt->close_recv(comm));
    CHECK_OK(n.vt->close_listen(listen));
    kit_net_close(&n);
  }
}

TEST_MAIN(TEST_CASE(v6), TEST_CASE(v7), TEST_CASE(v8), TEST_CASE(v9), TEST_CASE(v10), TEST_CASE(v11), TEST_CASE(v12),
          TEST_CASE(v6_by_hand), TEST_CASE(v10_traffic_classes), TEST_CASE(profiler_is_not_called_without_a_handle),
          TEST_CASE(old_sends_to_new))
