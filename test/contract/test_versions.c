/* SPDX-License-Identifier: Apache-2.0
 * Old vtable versions called directly, and connections between processes that use different ones. Everything that
 * holds for any plugin goes through each version in test_conform.py.
 * TEST-LIMIT: 60 */
#include <dlfcn.h>
#include <sched.h>

#include "common/base/clock.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

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

TEST_MAIN(TEST_CASE(v6_by_hand), TEST_CASE(v10_traffic_classes), TEST_CASE(old_sends_to_new))
