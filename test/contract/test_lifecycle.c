/* SPDX-License-Identifier: Apache-2.0
 * Every vtable version is there, and they live side by side in one process.
 * What holds for any plugin: kit/conform/check_lifecycle.c.
 * TEST-LIMIT: 60 */
#include <dlfcn.h>
#include <pthread.h>

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

TEST(old_versions_side_by_side) {
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

struct registrar {
  struct kit_net *net;
  void *comm;
  bool failed;
};

static void *register_often(void *arg) {
  struct registrar *r = arg;
  char memory[64];
  for (int i = 0; i < 4000 && !r->failed; i++) {
    void *kept, *passing;
    r->failed |= r->net->vt->reg_mr(r->comm, memory, sizeof memory, RAIL_PTR_HOST, &kept) != RAIL_OK;
    r->failed |= r->net->vt->reg_mr(r->comm, memory, 1, RAIL_PTR_HOST, &passing) != RAIL_OK;
    r->failed |= r->net->vt->dereg_mr(r->comm, kept) != RAIL_OK || r->net->vt->dereg_mr(r->comm, passing) != RAIL_OK;
  }
  return NULL;
}

/* NCCL has one thread that registers; others may have two. */
TEST(two_threads_register) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  struct registrar all[2] = {{.net = &n, .comm = p.send}, {.net = &n, .comm = p.send}};
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) CHECK_INT(pthread_create(&threads[i], NULL, register_often, &all[i]), 0);
  for (int i = 0; i < 2; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
  CHECK(!all[0].failed && !all[1].failed);
  kit_pair_ping(&p, 1000, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(symbols_of_all_versions), TEST_CASE(nothing_else_is_visible), TEST_CASE(old_versions_side_by_side),
          TEST_CASE(each_version_lives_twice), TEST_CASE(two_threads_register))
