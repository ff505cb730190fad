/* SPDX-License-Identifier: Apache-2.0
 * A plugin can be found, started, stopped, unloaded and started again, by every vtable version.
 * TEST-LIMIT: 60 */
#include <dlfcn.h>

#include "test/harness/program.h"

static void *open_plugin(void) {
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  void *dl = dlopen(kit_plugin_path(), RTLD_NOW | RTLD_LOCAL);
  CHECK_MSG(dl, "dlopen: %s", dlerror());
  return dl;
}

TEST(symbols_of_all_versions) {
  void *dl = open_plugin();
  const char *first = NULL;
  for (int v = 6; v <= 12; v++) {
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", v);
    const char *const *table = dlsym(dl, symbol); /* the first slot is the name */
    CHECK_MSG(table, "no symbol %s", symbol);
    CHECK_MSG(table[0] && table[0][0], "%s has no name", symbol);
    if (!first) first = table[0];
    CHECK_STR(table[0], first);
  }
  /* NCCL's own transports are called so; a plugin of the same name would be taken for them. */
  CHECK(strcmp(first, "IB") != 0 && strcmp(first, "Socket") != 0);
  dlclose(dl);
}

TEST(nothing_else_is_visible) {
  void *dl = open_plugin();
  static const char *const internal[] = {"rail_plugin_ops", "rail_log_at", "rail_now_ns", "rail_param_load",
                                         "rail_sock_listen", "rail_result_name"};
  for (size_t i = 0; i < sizeof internal / sizeof internal[0]; i++)
    CHECK_MSG(!dlsym(dl, internal[i]), "%s is exported", internal[i]);
  dlclose(dl);
}

TEST(no_needed_slot_is_null) {
  void *dl = open_plugin();
  const struct rail_net_v12 *vt = dlsym(dl, "ncclNetPlugin_v12");
  CHECK(vt->init && vt->devices && vt->get_properties && vt->listen && vt->connect && vt->accept);
  CHECK(vt->reg_mr && vt->dereg_mr && vt->isend && vt->irecv && vt->iflush && vt->test);
  CHECK(vt->close_send && vt->close_recv && vt->close_listen && vt->finalize);
  const struct rail_net_v6 *v6 = dlsym(dl, "ncclNetPlugin_v6");
  CHECK(v6->init && v6->devices && v6->get_properties && v6->listen && v6->connect && v6->accept);
  CHECK(v6->reg_mr && v6->dereg_mr && v6->isend && v6->irecv && v6->iflush && v6->test);
  CHECK(v6->close_send && v6->close_recv && v6->close_listen);
  dlclose(dl);
}

TEST(each_version_lives_twice) {
  for (int round = 0; round < 2; round++) {
    for (int v = 6; v <= 12; v++) {
      struct kit_net n;
      struct kit_pair p;
      kit_net_open_version(&n, v);
      struct rail_net_props_v12 props;
      CHECK_OK(n.vt->get_properties(n.dev, &props));
      kit_pair_open(&n, &p);
      kit_pair_ping(&p, 1000, (uint64_t)v);
      kit_pair_close(&p);
      kit_net_close(&n);
    }
  }
}

TEST(finalize_of_null) { /* nccl 2.28 finalizes even what failed to start */
  void *dl = open_plugin();
  const struct rail_net_v12 *v12 = dlsym(dl, "ncclNetPlugin_v12");
  const struct rail_net_v11 *v11 = dlsym(dl, "ncclNetPlugin_v11");
  CHECK_OK(v12->finalize(NULL));
  CHECK_OK(v11->finalize(NULL));
  struct kit_net n;
  kit_net_open(&n);
  CHECK_OK(v12->finalize(NULL));
  struct kit_pair p; /* and that did no harm to the living context */
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 100, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
  CHECK_OK(v12->finalize(NULL));
  dlclose(dl);
}

TEST(old_init_twice) {
  void *dl = open_plugin();
  const struct rail_net_v10 *v10 = dlsym(dl, "ncclNetPlugin_v10");
  const struct rail_net_v6 *v6 = dlsym(dl, "ncclNetPlugin_v6");
  int a = 0, b = 0;
  CHECK_OK(v10->init(kit_net_log, NULL));
  CHECK_OK(v10->devices(&a));
  CHECK_OK(v10->init(kit_net_log, NULL));
  CHECK_OK(v6->init(kit_net_log));
  CHECK_OK(v6->init(NULL));
  CHECK_OK(v6->devices(&b));
  CHECK_INT(a, b);
  dlclose(dl);
}

TEST(contexts_are_independent) {
  struct kit_net a, b;
  kit_net_open(&a);
  kit_net_open(&b);
  struct kit_pair p, q;
  kit_pair_open(&a, &p);
  kit_pair_open(&b, &q);
  kit_pair_ping(&p, 5000, 1);
  kit_pair_close(&p);
  kit_net_close(&a);
  kit_pair_ping(&q, 5000, 2); /* b lives on without a */
  struct kit_pair r;
  kit_pair_open(&b, &r);
  kit_pair_ping(&r, 5000, 3);
  kit_pair_close(&r);
  kit_pair_close(&q);
  kit_net_close(&b);
}

TEST(contexts_meet) { /* listen in one, connect from the other */
  struct kit_net a, b;
  kit_net_open(&a);
  kit_net_open(&b);
  struct kit_pair p = {.net = &a};
  p.listen = kit_net_listen(&a, p.handle);
  uint64_t tries = 0;
  while (!p.send || !p.recv) {
    if (!p.send) kit_connect_step(&b, p.handle, &p.send);
    if (!p.recv) kit_accept_step(&a, p.listen, &p.recv);
    CHECK(tries++ < 10000000);
  }
  kit_pair_ping(&p, 300, 4);
  kit_pair_close(&p);
  kit_net_close(&b);
  kit_net_close(&a);
}

TEST(reopened_leaves_nothing) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n); /* once, so that what stays for good is there */
  kit_net_close(&n);
  int fds = kit_fd_count(), threads = kit_thread_count();
  for (int i = 0; i < 5; i++) {
    kit_net_open(&n);
    kit_pair_open(&n, &p);
    kit_pair_ping(&p, 10000, (uint64_t)i);
    kit_pair_close(&p);
    kit_net_close(&n);
  }
  CHECK_INT(kit_fd_count(), fds);
  CHECK_INT(kit_thread_count(), threads);
}

TEST(finalize_reclaims_half_open) { /* an aborting caller drops these silently */
  struct kit_net n;
  kit_net_open(&n);
  kit_net_close(&n);
  int fds = kit_fd_count();
  kit_net_open(&n);
  char handle[3][RAIL_NET_HANDLE_SIZE];
  void *unused = kit_net_listen(&n, handle[0]), *asked = kit_net_listen(&n, handle[1]);
  void *both = kit_net_listen(&n, handle[2]);
  void *send = NULL, *recv = NULL;
  for (int i = 0; i < 3; i++) kit_accept_step(&n, unused, &recv);
  /* A first step each; whatever came complete is closed, the rest is left to finalize. */
  if (kit_connect_step(&n, handle[1], &send)) CHECK_OK(n.vt->close_send(send));
  if (kit_accept_step(&n, asked, &recv)) CHECK_OK(n.vt->close_recv(recv));
  if (kit_accept_step(&n, both, &recv)) CHECK_OK(n.vt->close_recv(recv));
  if (kit_connect_step(&n, handle[2], &send)) CHECK_OK(n.vt->close_send(send));
  kit_net_close(&n);
  CHECK_INT(kit_fd_count(), fds);
}

TEST_MAIN(TEST_CASE(symbols_of_all_versions), TEST_CASE(nothing_else_is_visible), TEST_CASE(no_needed_slot_is_null),
          TEST_CASE(finalize_of_null), TEST_CASE(old_init_twice), TEST_CASE(each_version_lives_twice),
          TEST_CASE(contexts_are_independent), TEST_CASE(contexts_meet), TEST_CASE(reopened_leaves_nothing),
          TEST_CASE(finalize_reclaims_half_open))
