/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading plugins of every version, and choosing one. The plugins are
 * test/preload/netfix_*.c, built beside this program's directory. The dynamic
 * linker reads LD_LIBRARY_PATH once, at start: main makes a directory of links
 * with NCCL's file names and starts this program again with it.
 */
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "loader/netload.h"
#include "test/harness/tap.h"
#include "test/preload/net_fixture.h"
#include "test/unit/netload_links.h"

#define STALE ((void *)0xdead)

static char logged[16384];
static int warnings, infos;

__attribute__((format(printf, 5, 6))) static void capture(enum rail_log_level level, unsigned long flags,
                                                          const char *file, int line, const char *fmt, ...) {
  va_list ap;
  size_t used = strlen(logged);
  (void)flags;
  (void)file;
  (void)line;
  warnings += level == RAIL_LOG_WARN;
  infos += level == RAIL_LOG_INFO;
  va_start(ap, fmt);
  vsnprintf(logged + used, sizeof logged - used, fmt, ap);
  va_end(ap);
}

static void start_capture(void) {
  logged[0] = 0;
  warnings = infos = 0;
  rail_log_set_sink(capture);
}

static struct rail_net *load(const char *name, int max_version) {
  struct rail_net *net = STALE;
  char why[2048];
  rail_result_t result = rail_net_load(name, max_version, &net, why, sizeof why);
  CHECK_MSG(result == RAIL_OK, "%s: %s", name, why);
  CHECK_STR(why, "");
  return net;
}

static struct fixture_seen *seen_by(const struct rail_net *net) {
  void *library = dlopen(rail_net_path(net), RTLD_NOW | RTLD_NOLOAD);
  CHECK(library != NULL);
  struct fixture_seen *seen = dlsym(library, "fixture_seen");
  dlclose(library); /* net holds it */
  CHECK(seen != NULL);
  return seen;
}

static const struct rail_net_init plain = {.comm_id = 0x1234567890ull, .traffic_class = 33};

/* ---- every version through the one interface --------------------------- */

static void check_properties(struct rail_net *net, int v) {
  struct rail_net_props_v12 p;
  memset(&p, 0x5a, sizeof p);
  CHECK_OK(rail_net_properties(net, 1, &p));
  CHECK_STR(p.name, "fix1");
  CHECK(p.pci_path == NULL && p.guid == 41);
  CHECK_INT(p.ptr_support, RAIL_PTR_HOST);
  CHECK_INT(p.speed, 25000);
  CHECK_INT(p.port, 1);
  CHECK(p.latency > 1.9f && p.latency < 2.1f);
  CHECK_INT(p.max_comms, 1000);
  CHECK_INT(p.max_recvs, 4);
  CHECK_INT(p.net_device_type, RAIL_NET_DEVICE_HOST);
  CHECK_INT(p.net_device_version, 0);
  CHECK_INT(p.reg_is_global, v >= 8);
  CHECK_INT(p.force_flush, v >= 9);
  CHECK_INT(p.vprops.ndevs, v >= 9 ? 2 : 1);
  CHECK_INT(p.vprops.devs[0], v >= 9 ? 6 : 1);
  CHECK_INT(p.max_p2p_bytes, v >= 9 ? 1ll << 35 : 1 << 30);
  CHECK_INT(p.max_coll_bytes, v >= 9 ? 1ll << 34 : 512 << 20);
  CHECK_INT(p.max_multi_request_size, v >= 11 ? 3 : 1);
  CHECK_INT(p.rail_id, v >= 12 ? 1 : -1);
  CHECK_INT(p.plane_id, v >= 12 ? 2 : -1);
}

static void check_connection(struct rail_net *net, struct fixture_seen *seen, void *ctx, int v) {
  char handle[RAIL_NET_HANDLE_SIZE] = {0};
  void *comm = STALE;
  CHECK_OK(rail_net_listen(net, ctx, 1, handle, &comm));
  CHECK(comm != NULL && comm != STALE && handle[127] == 0x77);
  CHECK_INT(seen->dev, 1);
  if (v >= 11) CHECK(seen->ctx == ctx);
  void *recv_comm = STALE, *send_comm = STALE;
  CHECK_OK(rail_net_accept(net, comm, &recv_comm));
  CHECK(recv_comm == comm);
  seen->dev = -1;
  CHECK_OK(rail_net_connect(net, ctx, 0, handle, -1, &send_comm));
  CHECK_INT(seen->dev, 0);
  if (v >= 10) CHECK_INT(seen->traffic_class, 33); /* from init, whatever way it travels */
  CHECK_OK(rail_net_connect(net, ctx, 0, handle, 5, &send_comm));
  if (v == 10) CHECK_INT(seen->traffic_class, 5);
  CHECK_OK(rail_net_close_send(net, send_comm));
  CHECK_OK(rail_net_close_recv(net, recv_comm));
  CHECK_OK(rail_net_close_listen(net, comm));
  CHECK_OK(rail_net_close_send(net, NULL));
  CHECK_OK(rail_net_close_recv(net, NULL));
  CHECK_OK(rail_net_close_listen(net, NULL));
  seen->answer = RAIL_REMOTE_ERROR; /* the fixture writes the comm all the same */
  CHECK_INT(rail_net_connect(net, ctx, 0, handle, -1, &send_comm), RAIL_REMOTE_ERROR);
  CHECK(send_comm == NULL);
  seen->answer = RAIL_OK;
}

static void check_memory(struct rail_net *net, struct fixture_seen *seen, int v) {
  void *mr = STALE;
  CHECK_OK(rail_net_reg_mr(net, NULL, seen, INT_MAX, RAIL_PTR_HOST, &mr));
  CHECK_INT(seen->size, INT_MAX);
  CHECK_INT(seen->type, RAIL_PTR_HOST);
  CHECK_OK(rail_net_dereg_mr(net, NULL, mr));
  CHECK_OK(rail_net_dereg_mr(net, NULL, NULL));
  CHECK_INT(rail_net_reg_mr(net, NULL, seen, (size_t)INT_MAX + 1, RAIL_PTR_HOST, &mr),
            v >= 8 ? RAIL_OK : RAIL_INTERNAL_ERROR);
  CHECK_OK(rail_net_reg_mr_dmabuf(net, NULL, seen, 1ull << 34, RAIL_PTR_CUDA, 4096, 17, &mr));
  CHECK(seen->size == 1ull << 34 && seen->n == 17 && seen->comm_id == 4096);
}

static void check_data(struct rail_net *net, struct fixture_seen *seen, int v) {
  void *request = STALE, *data[33] = {0}, *mr[33] = {0};
  size_t gib = 1u << 30, sizes[33] = {5, 0, gib};
  int tags[33] = {1, 2, 3}, done = 77, got[3] = {0}, flush_sizes[1] = {66};
  CHECK_OK(rail_net_isend(net, NULL, data, gib, 9, NULL, &request));
  CHECK(request != NULL && request != STALE && seen->request_in == NULL);
  CHECK_INT(seen->size, gib);
  CHECK_INT(seen->tag, 9);
  CHECK_OK(rail_net_test(net, request, &done, got));
  CHECK_INT(done, 1);
  CHECK_INT(got[0], 99);
  CHECK_OK(rail_net_irecv_consumed(net, NULL, 1, request));
  CHECK_INT(seen->consumed, v >= 7);

  request = RAIL_NET_OPTIONAL_RECV;
  CHECK_OK(rail_net_irecv(net, NULL, 3, data, sizes, tags, mr, &request));
  CHECK(request != RAIL_NET_OPTIONAL_RECV && request != NULL);
  CHECK(seen->request_in == (v >= 9 ? RAIL_NET_OPTIONAL_RECV : NULL));
  CHECK_INT(seen->n, 3);
  CHECK_INT(seen->tag, 3);
  CHECK(seen->sizes[0] == 5 && seen->sizes[1] == 0 && seen->sizes[2] == gib);

  /* 1 GiB is the end below v9. */
  rail_result_t beyond = v >= 9 ? RAIL_OK : RAIL_INTERNAL_ERROR;
  CHECK_INT(rail_net_isend(net, NULL, data, gib + 1, 9, NULL, &request), beyond);
  CHECK(v >= 9 || request == NULL);
  sizes[2] = gib + 1;
  CHECK_INT(rail_net_irecv(net, NULL, 3, data, sizes, tags, mr, &request), beyond);
  CHECK(v >= 9 || request == NULL);
  sizes[2] = 1;
  if (v < 9) CHECK_INT(rail_net_irecv(net, NULL, 33, data, sizes, tags, mr, &request), RAIL_INTERNAL_ERROR);

  CHECK_OK(rail_net_iflush(net, NULL, 1, data, flush_sizes, mr, &request));
  CHECK_INT(seen->size, 66);
  seen->answer = RAIL_REMOTE_ERROR;
  request = RAIL_NET_OPTIONAL_RECV;
  CHECK_INT(rail_net_irecv(net, NULL, 1, data, sizes, tags, mr, &request), RAIL_REMOTE_ERROR);
  CHECK(v < 9 || request == NULL);
  seen->answer = RAIL_OK;
}

static void check_vdevice(struct rail_net *net, struct fixture_seen *seen, int v) {
  struct rail_net_vprops_v12 four = {.ndevs = 4, .devs = {4, 3, 2, 11}}, five = {.ndevs = 5, .devs = {1, 1, 1, 1, 12}};
  int dev = -1;
  if (v < 9) {
    CHECK_INT(rail_net_make_vdevice(net, &dev, &four), RAIL_BAD_USAGE);
    return;
  }
  CHECK_OK(rail_net_make_vdevice(net, &dev, &four));
  CHECK_INT(dev, 2);
  CHECK_INT(seen->n, 4);
  CHECK_INT(seen->dev, 11);
  CHECK_INT(rail_net_make_vdevice(net, &dev, &five), v >= 12 ? RAIL_OK : RAIL_BAD_ARGUMENT);
}

TEST(each_version) {
  start_capture();
  for (int v = RAIL_NET_VERSION_MIN; v <= RAIL_NET_VERSION_MAX; v++) {
    char name[16];
    struct rail_net_attr attr = {.op = 1};
    void *ctx = STALE;
    int ndev = -1;
    snprintf(name, sizeof name, "v%d", v);
    struct rail_net *net = load(fixture(name), 0);
    struct fixture_seen *seen = seen_by(net);
    CHECK_INT(rail_net_version(net), v);
    CHECK_STR(rail_net_name(net), "Fixture");
    CHECK_STR(rail_net_path(net), fixture(name));
    CHECK(rail_net_vtable(net) != NULL);
    CHECK_OK(rail_net_init(net, &plain, &ctx));
    CHECK(ctx != NULL && ctx != STALE);
    if (v >= 11) CHECK(seen->comm_id == plain.comm_id && seen->traffic_class == 33);
    CHECK_OK(rail_net_devices(net, &ndev));
    CHECK_INT(ndev, 2);
    check_properties(net, v);
    check_connection(net, seen, ctx, v);
    check_memory(net, seen, v);
    check_data(net, seen, v);
    check_vdevice(net, seen, v);
    CHECK_OK(rail_net_set_attr(net, ctx, &attr));
    CHECK_INT(seen->attrs, v >= 11);
    CHECK_OK(rail_net_finalize(net, ctx));
    CHECK_INT(seen->finalizes, v >= 11);
    rail_net_unload(net);
  }
}

TEST(old_plugins_are_initialised_once) {
  struct rail_net *a = load(fixture("v8"), 0), *b = load(fixture("v8"), 0), *c;
  void *ctx[3];
  CHECK_OK(rail_net_init(a, &plain, &ctx[0]));
  CHECK_OK(rail_net_init(a, &plain, &ctx[1]));
  CHECK_OK(rail_net_init(b, &plain, &ctx[2]));
  CHECK_INT(seen_by(a)->inits, 1);
  for (int i = 0; i < 3; i++) CHECK_OK(rail_net_finalize(a, ctx[i]));
  rail_net_unload(a);
  CHECK_OK(rail_net_init(b, &plain, &ctx[0]));
  CHECK_INT(seen_by(b)->inits, 1);
  CHECK_OK(rail_net_finalize(b, ctx[0]));
  rail_net_unload(b);
  c = load(fixture("v8"), 0); /* unmapped and mapped anew: a new life */
  CHECK_OK(rail_net_init(c, &plain, &ctx[0]));
  CHECK_INT(seen_by(c)->inits, 1);
  CHECK_OK(rail_net_finalize(c, ctx[0]));
  rail_net_unload(c);

  struct rail_net *d = load(fixture("v11"), 0); /* contexts: one init each */
  CHECK_OK(rail_net_init(d, &plain, &ctx[0]));
  CHECK_OK(rail_net_init(d, &plain, &ctx[1]));
  CHECK_INT(seen_by(d)->inits, 2);
  rail_net_unload(d);
  rail_net_unload(NULL);
}

TEST(optional_slots_may_be_null) {
  struct rail_net *net = load(fixture("bare"), 0);
  struct rail_net_vprops_v12 props = {.ndevs = 1};
  struct rail_net_attr attr = {.op = 1};
  void *ctx, *out = STALE, *data[1] = {0};
  int dev, sizes[1] = {1};
  start_capture();
  CHECK_OK(rail_net_init(net, &plain, &ctx));
  CHECK_INT(rail_net_make_vdevice(net, &dev, &props), RAIL_BAD_USAGE);
  CHECK_INT(rail_net_reg_mr_dmabuf(net, NULL, NULL, 1, RAIL_PTR_CUDA, 0, 3, &out), RAIL_BAD_USAGE);
  CHECK(out == NULL);
  CHECK_OK(rail_net_irecv_consumed(net, NULL, 1, NULL));
  CHECK_OK(rail_net_set_attr(net, ctx, &attr));
  CHECK_INT(warnings, 0);
  out = STALE;
  CHECK_INT(rail_net_iflush(net, NULL, 1, data, sizes, data, &out), RAIL_INTERNAL_ERROR);
  CHECK(out == NULL);
  CHECK_INT(warnings, 1);
  CHECK_OK(rail_net_finalize(net, ctx));
  rail_net_unload(net);
}

TEST(strange_results_become_internal_errors) {
  static const int strange[] = {7, 8, -1, INT_MIN, INT_MAX};
  struct rail_net *net = load(fixture("v12"), 0);
  int ndev;
  start_capture();
  for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++) {
    seen_by(net)->answer = strange[i];
    CHECK_INT(rail_net_devices(net, &ndev), RAIL_INTERNAL_ERROR);
  }
  CHECK_INT(warnings, 5);
  rail_net_unload(net);
}

TEST(what_a_failed_call_leaves_is_not_taken) {
  static char handle[RAIL_NET_HANDLE_SIZE];
  const struct rail_net_init args = {.log = capture};
  struct rail_net *net = load(fixture("v12"), 0);
  void *ctx, *out;
  start_capture();
  CHECK_OK(rail_net_init(net, &args, &ctx));
  seen_by(net)->answer = RAIL_SYSTEM_ERROR; /* the plugin writes its outputs nevertheless */
  CHECK(rail_net_listen(net, ctx, 0, handle, &out) == RAIL_SYSTEM_ERROR && !out);
  CHECK(rail_net_connect(net, ctx, 0, handle, -1, &out) == RAIL_SYSTEM_ERROR && !out);
  CHECK(rail_net_accept(net, handle, &out) == RAIL_SYSTEM_ERROR && !out);
  CHECK(rail_net_reg_mr(net, handle, handle, 1, RAIL_PTR_HOST, &out) == RAIL_SYSTEM_ERROR && !out);
  CHECK(rail_net_reg_mr_dmabuf(net, handle, handle, 1, RAIL_PTR_CUDA, 0, 0, &out) == RAIL_SYSTEM_ERROR && !out);
  seen_by(net)->answer = RAIL_OK;
  CHECK_OK(rail_net_finalize(net, ctx));
  rail_net_unload(net);
}

/* ---- files and failures ------------------------------------------------ */

static void check_fails(const char *name, int max_version, const char *want) {
  struct rail_net *net = STALE;
  char why[4096], tiny[16];
  CHECK(rail_net_load(name, max_version, &net, why, sizeof why) != RAIL_OK);
  CHECK(net == NULL);
  CHECK_MSG(strstr(why, want) != NULL, "\"%s\" does not say \"%s\"", why, want);
  CHECK(rail_net_load(name, max_version, &net, tiny, sizeof tiny) != RAIL_OK);
  CHECK_INT(strnlen(tiny, sizeof tiny) < sizeof tiny, 1);
  CHECK(rail_net_load(name, max_version, &net, NULL, 0) != RAIL_OK);
}

TEST(load_says_what_is_wrong) {
  check_fails(fixture("empty"), 0, "no ncclNetPlugin_v6..v12");
  check_fails(fixture("v9"), 8, "no ncclNetPlugin_v6..v8");
  check_fails("", 0, "empty");
  check_fails(NULL, 0, "empty");
  check_fails("/nosuch/plugin.so", 0, "/nosuch/plugin.so");
  check_fails("nosuch", 0, "libnccl-net-nosuch.so"); /* both files are named */
  check_fails("nosuch", 0, "nosuch: cannot open");
}

TEST(names_become_files_as_in_nccl) {
  static const char *const good[] = {"alpha", "libnccl-net-alpha.so", "libodd.so", "plain-file"};
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
    struct rail_net *net = load(good[i], 0);
    CHECK_INT(rail_net_version(net), 9);
    rail_net_unload(net);
  }
  check_fails("libalpha.so", 0, "libalpha.so");    /* lib*.so is not decorated */
  check_fails("./alpha", 0, "./alpha");            /* nor is a path */
  check_fails("odd", 0, "libnccl-net-odd.so");
}

/* A program finds plugins in ../lib and beside itself, called by whatever name. */
TEST(beside_the_program) {
  char command[2 * PATH_MAX];
  snprintf(command, sizeof command, "cd /; unset LD_LIBRARY_PATH; PATH='%s/bin':$PATH; netload --find alpha", links);
  CHECK_INT(system(command), 0);
  snprintf(command, sizeof command, "cd /; unset LD_LIBRARY_PATH; '%s/bin/netload' --find beside", links);
  CHECK_INT(system(command), 0);
  snprintf(command, sizeof command, "cd /; unset LD_LIBRARY_PATH; '%s/bin/netload' --find plain-file2", links);
  CHECK(system(command) != 0);
}

/* ---- choosing ---------------------------------------------------------- */

/* Which plugin is chosen: "Name/version", or "error N". */
static const char *chosen(const char *plugins, const char *net_name, const char *fallback) {
  static char text[64];
  struct rail_net *net = STALE;
  void *ctx = STALE;
  if (plugins) setenv("NCCL_NET_PLUGIN", plugins, 1);
  else unsetenv("NCCL_NET_PLUGIN");
  if (net_name) setenv("NCCL_NET", net_name, 1);
  else unsetenv("NCCL_NET");
  start_capture();
  rail_result_t result = rail_net_select(&plain, fallback, &net, &ctx);
  if (result != RAIL_OK) {
    CHECK(net == NULL && ctx == NULL);
    snprintf(text, sizeof text, "error %d", (int)result);
    return text;
  }
  snprintf(text, sizeof text, "%s/%d", rail_net_name(net), rail_net_version(net));
  CHECK(infos == 1);
  CHECK_OK(rail_net_finalize(net, ctx));
  rail_net_unload(net);
  return text;
}

TEST(first_that_works) {
  CHECK_STR(chosen("alpha", NULL, NULL), "Fixture/9");
  CHECK_INT(warnings, 0);
  CHECK(strstr(logged, "libnccl-net-alpha.so") && strstr(logged, "v9") && strstr(logged, "Fixture"));
  CHECK_STR(chosen("bare,alpha", NULL, NULL), "Bare/12");
  CHECK_STR(chosen(",,nosuch,,badinit,nodev,empty,alpha,bare", NULL, NULL), "Fixture/9");
  CHECK_STR(chosen(NULL, NULL, NULL), "Bare/12"); /* libnccl-net.so */
}

/* A plugin that initialised but is of no use gets its context back. */
TEST(passed_over_plugins_are_finalized) {
  struct rail_net *held = load("nodev", 0); /* keeps the library, and what it has seen */
  CHECK_STR(chosen("nodev,badinit,alpha", NULL, NULL), "Fixture/9");
  CHECK_INT(seen_by(held)->inits, 1);
  CHECK_INT(seen_by(held)->finalizes, 1);
  rail_net_unload(held);
}

TEST(none_is_none) {
  CHECK_STR(chosen("none", NULL, NULL), "error 5");
  CHECK_STR(chosen("NoNe", NULL, "alpha"), "Fixture/9");
  CHECK_STR(chosen("", NULL, NULL), "error 5");
}

TEST(nccl_net_names_the_vtable) {
  CHECK_STR(chosen("alpha,bare", "bare", NULL), "Bare/12");
  CHECK_STR(chosen("alpha,bare", "FIXTURE", NULL), "Fixture/9");
  CHECK_STR(chosen("alpha,bare", "alpha", NULL), "error 5"); /* a file's name is no name */
  CHECK_STR(chosen("alpha,bare", "", NULL), "Fixture/9");
  CHECK_STR(chosen("alpha", "bare", "bare"), "Bare/12");
}

TEST(fallback_is_last) {
  CHECK_STR(chosen("alpha", NULL, "bare"), "Fixture/9");
  CHECK_STR(chosen("nosuch", NULL, "bare"), "Bare/12");
  CHECK_STR(chosen("badinit", NULL, "badinit"), "error 5");
  const char *again = strstr(logged, "badinit: init failed");
  CHECK(again != NULL && strstr(again + 1, "badinit: init failed") == NULL); /* tried once */
}

/* Some plugins fill their tables in init. */
TEST(a_table_may_be_filled_by_init) {
  static const int versions[] = {12, 8};
  for (int i = 0; i < 2; i++) {
    struct rail_net *net = load("late", versions[i]);
    struct rail_net_init args = {.comm_id = 1, .traffic_class = -1};
    void *ctx = NULL;
    int ndev = 0;
    CHECK_INT(rail_net_version(net), versions[i]);
    CHECK_OK(rail_net_init(net, &args, &ctx));
    CHECK(rail_net_missing_slot(net) == NULL);
    CHECK_OK(rail_net_devices(net, &ndev));
    CHECK_INT(ndev, 1);
    CHECK_OK(rail_net_finalize(net, ctx));
    rail_net_unload(net);
  }
  CHECK_STR(chosen("late", NULL, NULL), "Late/12");
}

/* Then what init has made, perhaps threads, ends with it: the plugin will be unloaded. */
TEST(a_table_that_init_leaves_incomplete) {
  struct rail_net *net = load("noclose12", 12);
  const struct fixture_seen *seen = seen_by(net);
  struct rail_net_init args = {.comm_id = 1, .traffic_class = -1};
  void *ctx = net;
  CHECK(rail_net_init(net, &args, &ctx) != RAIL_OK);
  CHECK_STR(rail_net_missing_slot(net), "closeSend");
  CHECK(!ctx && seen->inits == 1 && seen->finalizes == 1);
  rail_net_unload(net);
}

TEST(failure_lists_what_was_tried) {
  CHECK_STR(chosen("nosuch,badinit,nodev,empty,noclose", NULL, NULL), "error 5");
  CHECK_INT(warnings, 1);
  static const char *const wants[] = {"NCCL_NET_PLUGIN=nosuch,badinit", "libnccl-net-nosuch.so", "badinit: init failed",
                                      "nodev: no device", "no ncclNetPlugin_v6..v12",
                                      "noclose: ncclNetPlugin_v8 has no closeSend, also after init"};
  for (size_t i = 0; i < sizeof wants / sizeof wants[0]; i++)
    CHECK_MSG(strstr(logged, wants[i]) != NULL, "\"%s\" does not say \"%s\"", logged, wants[i]);
}

TEST(list_has_limits) {
  char list[4096] = "";
  for (int i = 0; i < 14; i++) strcat(list, "nosuch,");
  strcat(list, "alpha"); /* the 15th */
  CHECK_STR(chosen(list, NULL, NULL), "error 5");
  CHECK_STR(chosen(list + 7, NULL, NULL), "Fixture/9");
  memset(list, 'x', 255);
  strcpy(list + 255, ",alpha");
  CHECK_STR(chosen(list, NULL, NULL), "Fixture/9");
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(each_version), TEST_CASE(old_plugins_are_initialised_once), TEST_CASE(optional_slots_may_be_null),
    TEST_CASE(strange_results_become_internal_errors),
          TEST_CASE(what_a_failed_call_leaves_is_not_taken), TEST_CASE(load_says_what_is_wrong),
    TEST_CASE(names_become_files_as_in_nccl), TEST_CASE(beside_the_program), TEST_CASE(first_that_works),
    TEST_CASE(passed_over_plugins_are_finalized),
    TEST_CASE(none_is_none), TEST_CASE(nccl_net_names_the_vtable), TEST_CASE(fallback_is_last),
    TEST_CASE(a_table_may_be_filled_by_init), TEST_CASE(a_table_that_init_leaves_incomplete),
    TEST_CASE(failure_lists_what_was_tried), TEST_CASE(list_has_limits),
  };
  char self[PATH_MAX], lib[PATH_MAX + 8];
  const char *made = getenv("RAIL_TEST_NETLOAD_LINKS");
  if (argc == 3 && strcmp(argv[1], "--find") == 0) {
    struct rail_net *net;
    if (rail_net_load(argv[2], 0, &net, NULL, 0) != RAIL_OK) return 1;
    rail_net_unload(net);
    return 0;
  }
  if (!realpath("/proc/self/exe", self)) return 1;
  char copy[PATH_MAX];
  memcpy(copy, self, sizeof copy);
  snprintf(fixtures, sizeof fixtures, "%s", dirname(dirname(copy)));
  if (!made) {
    make_links(self);
    setenv("RAIL_TEST_NETLOAD_LINKS", links, 1);
    snprintf(lib, sizeof lib, "%s/lib", links);
    setenv("LD_LIBRARY_PATH", lib, 1);
    execv(self, argv);
    return 1;
  }
  snprintf(links, sizeof links, "%s", made);
  int status = tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
  remove_links();
  return status;
}
