/* SPDX-License-Identifier: Apache-2.0
 *
 * The vtables v6 to v12 over an operations table that records its arguments.
 * Every version is driven through every slot that it has.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/net/abi.h"
#include "test/harness/tap.h"
#include "test/unit/abi_fake.h"

/* Values no function may leave in an output. */
#define STALE ((void *)0xdead)

/* Runs BODY for each version, with `net` its vtable and V its number; what a
 * version lacks is left out by giving a range. */
#define WITH(N, ...)                                           \
  {                                                            \
    enum { V = N };                                            \
    const struct rail_net_v##N *net = &ncclNetPlugin_v##N;     \
    (void)net;                                                 \
    (void)V;                                                   \
    __VA_ARGS__                                                \
  }
#define V6(...) WITH(6, __VA_ARGS__)
#define V7(...) WITH(7, __VA_ARGS__)
#define V8(...) WITH(8, __VA_ARGS__)
#define V9(...) WITH(9, __VA_ARGS__)
#define V10(...) WITH(10, __VA_ARGS__)
#define V11(...) WITH(11, __VA_ARGS__)
#define V12(...) WITH(12, __VA_ARGS__)
#define V6_TO_8(...) V6(__VA_ARGS__) V7(__VA_ARGS__) V8(__VA_ARGS__)
#define V11_TO_12(...) V11(__VA_ARGS__) V12(__VA_ARGS__)
#define V7_TO_12(...) V7(__VA_ARGS__) V8(__VA_ARGS__) V9(__VA_ARGS__) V10(__VA_ARGS__) V11_TO_12(__VA_ARGS__)
#define ALL(...) V6(__VA_ARGS__) V7_TO_12(__VA_ARGS__)

/* ---- cases ------------------------------------------------------------ */

TEST(no_slot_is_null) {
  ALL(const void *const *slots = (const void *const *)(const void *)net;
      for (size_t i = 0; i < sizeof *net / sizeof *slots; i++) CHECK_MSG(slots[i] != NULL, "v%d slot %zu", V, i);
      CHECK_STR(net->name, "Fake");)
}

/* Runs the destructor, as dlclose would: a process that initialised v8 and
 * exits; with `forked` it exits only after a forked child did so too. Must
 * come before any case that initialises this process. */
static int finalizes_at_exit(bool forked) {
  int fds[2], count = 0;
  char byte;
  CHECK_OK(pipe(fds));
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    unload_report = fds[1];
    if (ncclNetPlugin_v8.init(NULL) != RAIL_OK) _exit(1);
    pid_t child = forked ? fork() : 0;
    if (child > 0) {
      int status;
      _exit(waitpid(child, &status, 0) == child && status == 0 ? 0 : 1); /* skips destructors */
    }
    exit(0);
  }
  close(fds[1]);
  while (read(fds[0], &byte, 1) == 1) count += byte == 'f' ? 1 : 100;
  close(fds[0]);
  int status;
  CHECK_INT(waitpid(pid, &status, 0), pid);
  CHECK_INT(status, 0);
  return count;
}

TEST(process_context_is_finalized_at_unload) {
  CHECK(rail_abi_process_ctx() == NULL);
  CHECK_INT(finalizes_at_exit(false), 1);
  CHECK_INT(finalizes_at_exit(true), 0); /* a forked child does not own it */
}

static int second_lines;
__attribute__((format(printf, 5, 6))) static void second_logger(enum rail_log_level level, unsigned long flags,
                                                                const char *file, int line, const char *fmt, ...) {
  (void)level, (void)flags, (void)file, (void)line, (void)fmt;
  second_lines++;
}

TEST(one_init_per_process_below_v11) {
  fresh();
  fake.answer = RAIL_SYSTEM_ERROR;
  CHECK_INT(ncclNetPlugin_v8.init(quiet), RAIL_SYSTEM_ERROR);
  CHECK(rail_abi_process_ctx() == NULL);
  fake.answer = RAIL_OK; /* a failed init may be tried again */
  CHECK_OK(ncclNetPlugin_v10.init(quiet, NULL));
  CHECK_INT(fake.inits, 2);
  CHECK_INT(fake.init_args.traffic_class, -1);
  CHECK_INT(fake.init_args.comm_id, 0);
  CHECK(fake.init_args.log == quiet);
  CHECK(rail_abi_process_ctx() == &a_ctx);
  CHECK_OK(ncclNetPlugin_v6.init(quiet));
  CHECK_OK(ncclNetPlugin_v7.init(quiet));
  CHECK_OK(ncclNetPlugin_v8.init(quiet));
  CHECK_OK(ncclNetPlugin_v9.init(quiet));
  CHECK_INT(fake.inits, 2);
  CHECK_INT(fake.finalizes, 0);
  CHECK_OK(ncclNetPlugin_v8.init(second_logger)); /* the first logger's library may have been unloaded */
  second_lines = 0;
  RAIL_WARN("to the second");
  CHECK_INT(second_lines, 1);
  rail_log_set_sink(quiet);
}

TEST(contexts_from_v11) {
  struct rail_net_config config = {.traffic_class = 106};
  V11_TO_12(
    fresh(); void *ctx = STALE;
    CHECK_OK(net->init(&ctx, 0xabcdef0123456789ull, &config, quiet, NULL));
    CHECK(ctx == &a_ctx);
    CHECK(fake.init_args.comm_id == 0xabcdef0123456789ull);
    CHECK_INT(fake.init_args.traffic_class, 106);
    CHECK_OK(net->init(&ctx, 1, NULL, quiet, NULL));
    CHECK_INT(fake.init_args.traffic_class, -1);
    CHECK_INT(fake.inits, 2);
    CHECK_OK(net->finalize(ctx));
    CHECK_INT(fake.finalizes, 1);
    CHECK(fake.ctx == &a_ctx);
    CHECK_OK(net->finalize(NULL));
    CHECK_INT(fake.finalizes, 1);
    struct rail_net_attr attr = {.op = 3};
    CHECK_OK(net->set_net_attr(&a_ctx, &attr));
    CHECK_INT(fake.n, 3);
    CHECK_OK(net->set_net_attr(NULL, &attr));
    fake.answer = RAIL_SYSTEM_ERROR;
    ctx = STALE;
    CHECK_INT(net->init(&ctx, 1, &config, quiet, NULL), RAIL_SYSTEM_ERROR);
    CHECK(ctx == NULL);)
}

TEST(devices_and_errors) {
  ALL(fresh(); int n = -5;
      CHECK_OK(net->devices(&n));
      CHECK_INT(n, 3);
      fake.answer = RAIL_SYSTEM_ERROR;
      n = -5;
      CHECK_INT(net->devices(&n), RAIL_SYSTEM_ERROR);
      CHECK_INT(n, 0);)
}

#define CHECK_V6_PROPS(p)                                \
  CHECK_STR((p).name, "fake0");                          \
  CHECK_STR((p).pci_path, device_path);                  \
  CHECK((p).guid == 0x1122334455667788ull);              \
  CHECK_INT((p).ptr_support, 5);                         \
  CHECK_INT((p).speed, 100000);                          \
  CHECK_INT((p).port, 2);                                \
  CHECK((p).latency > 1.4f && (p).latency < 1.6f);       \
  CHECK_INT((p).max_comms, 77);                          \
  CHECK_INT((p).max_recvs, 8)

#define CHECK_V9_PROPS(p)                       \
  CHECK_V6_PROPS(p);                            \
  CHECK_INT((p).reg_is_global, 1);              \
  CHECK_INT((p).force_flush, 1);                \
  CHECK_INT((p).net_device_type, 0);            \
  CHECK_INT((p).vprops.ndevs, 2);               \
  CHECK_INT((p).vprops.devs[0], 4);             \
  CHECK_INT((p).vprops.devs[1], 5);             \
  CHECK((p).max_p2p_bytes == RAIL_NET_MAX_BYTES); \
  CHECK((p).max_coll_bytes == 123456789012ull)

TEST(properties_of_all_versions) {
  struct rail_net_props_v6 p6;
  struct rail_net_props_v7 p7;
  struct rail_net_props_v8 p8;
  struct rail_net_props_v9 p9;
  struct rail_net_props_v11 p11;
  struct rail_net_props_v12 p12;
  fresh();
  memset(&p6, 0xa5, sizeof p6);
  CHECK_OK(ncclNetPlugin_v6.get_properties(2, &p6));
  CHECK_INT(fake.dev, 2);
  CHECK_V6_PROPS(p6);
  memset(&p7, 0xa5, sizeof p7);
  CHECK_OK(ncclNetPlugin_v7.get_properties(1, &p7));
  CHECK_V6_PROPS(p7);
  CHECK_INT(p7.net_device_type, 0);
  CHECK_INT(p7.net_device_version, 0);
  memset(&p8, 0xa5, sizeof p8);
  CHECK_OK(ncclNetPlugin_v8.get_properties(1, &p8));
  CHECK_V6_PROPS(p8);
  CHECK_INT(p8.reg_is_global, 1);
  CHECK_INT(p8.net_device_version, 0);
  memset(&p9, 0xa5, sizeof p9);
  CHECK_OK(ncclNetPlugin_v9.get_properties(1, &p9));
  CHECK_V9_PROPS(p9);
  memset(&p9, 0xa5, sizeof p9);
  CHECK_OK(ncclNetPlugin_v10.get_properties(1, &p9));
  CHECK_V9_PROPS(p9);
  memset(&p11, 0xa5, sizeof p11);
  CHECK_OK(ncclNetPlugin_v11.get_properties(1, &p11));
  CHECK_V9_PROPS(p11);
  CHECK_INT(p11.max_multi_request_size, 4);
  memset(&p12, 0xa5, sizeof p12);
  CHECK_OK(ncclNetPlugin_v12.get_properties(1, &p12));
  CHECK_V9_PROPS(p12);
  CHECK_INT(p12.max_multi_request_size, 4);
  CHECK_INT(p12.rail_id, 6);
  CHECK_INT(p12.plane_id, 7);
  fake.answer = RAIL_BAD_ARGUMENT;
  CHECK_INT(ncclNetPlugin_v6.get_properties(99, &p6), RAIL_BAD_ARGUMENT);
  CHECK_INT(ncclNetPlugin_v12.get_properties(99, &p12), RAIL_BAD_ARGUMENT);
}

TEST(wide_vdevice_is_cut_for_old_versions) {
  struct rail_net_props_v11 p;
  fresh();
  fake.vprops = (struct rail_net_vprops_v12){.ndevs = 8, .devs = {1, 2, 3, 4, 5, 6, 7, 8}};
  CHECK_OK(ncclNetPlugin_v11.get_properties(0, &p));
  CHECK_INT(p.vprops.ndevs, 4);
  CHECK_INT(p.vprops.devs[3], 4);
}

TEST(make_vdevice) {
  struct rail_net_vprops_v9 narrow = {.ndevs = 4, .devs = {3, 2, 1, 0}};
  struct rail_net_vprops_v12 wide = {.ndevs = 8, .devs = {7, 6, 5, 4, 3, 2, 1, 0}};
  int dev = -1;
  fresh();
  CHECK_OK(ncclNetPlugin_v9.make_vdevice(&dev, &narrow));
  CHECK_INT(dev, 9);
  CHECK_INT(fake.vprops.ndevs, 4);
  CHECK_INT(fake.vprops.devs[0], 3);
  CHECK_OK(ncclNetPlugin_v12.make_vdevice(&dev, &wide));
  CHECK_INT(fake.vprops.ndevs, 8);
  CHECK_INT(fake.vprops.devs[7], 0);
  narrow.ndevs = 5;
  CHECK_INT(ncclNetPlugin_v10.make_vdevice(&dev, &narrow), RAIL_BAD_ARGUMENT);
  narrow.ndevs = -1;
  CHECK_INT(ncclNetPlugin_v11.make_vdevice(&dev, &narrow), RAIL_BAD_ARGUMENT);
  CHECK_INT(warned, 2);
}

TEST(connect_with_each_versions_arguments) {
  char handle[RAIL_NET_HANDLE_SIZE];
  struct rail_net_device_handle *dh = STALE;
  struct rail_net_config config = {.traffic_class = 42};
  void *comm;
  fresh();
  CHECK_OK(ncclNetPlugin_v6.init(quiet));
#define CHECK_CONNECT(call, want_class, want_dh)       \
  comm = STALE;                                        \
  fake.answer = RAIL_OK;                               \
  CHECK_OK(call);                                      \
  CHECK(comm == &a_send && fake.ctx == &a_ctx);        \
  CHECK_INT(fake.dev, 1);                              \
  CHECK_INT(fake.traffic_class, want_class);           \
  CHECK(dh == STALE && fake.dev_handle == (want_dh));  \
  fake.answer = RAIL_REMOTE_ERROR;                     \
  fake.write_on_failure = true;                        \
  CHECK_INT(call, RAIL_REMOTE_ERROR);                  \
  CHECK(comm == NULL)
  CHECK_CONNECT(ncclNetPlugin_v6.connect(1, handle, &comm), -1, NULL);
  CHECK_CONNECT(ncclNetPlugin_v7.connect(1, handle, &comm, &dh), -1, &dh);
  CHECK_CONNECT(ncclNetPlugin_v8.connect(1, handle, &comm, &dh), -1, &dh);
  CHECK_CONNECT(ncclNetPlugin_v9.connect(1, handle, &comm, &dh), -1, &dh);
  CHECK_CONNECT(ncclNetPlugin_v10.connect(1, &config, handle, &comm, &dh), 42, &dh);
  CHECK_CONNECT(ncclNetPlugin_v10.connect(1, NULL, handle, &comm, &dh), -1, &dh);
  CHECK_CONNECT(ncclNetPlugin_v11.connect(&a_ctx, 1, handle, &comm, &dh), -1, &dh);
  CHECK_CONNECT(ncclNetPlugin_v12.connect(&a_ctx, 1, handle, &comm, NULL), -1, NULL);
}

TEST(listen_and_accept) {
  char handle[RAIL_NET_HANDLE_SIZE] = {0};
  struct rail_net_device_handle *dh = STALE;
  void *comm = STALE;
  fresh();
  CHECK_OK(ncclNetPlugin_v10.listen(2, handle, &comm));
  CHECK(comm == &a_listen && fake.ctx == rail_abi_process_ctx());
  CHECK_INT(handle[127], 0x5a);
  CHECK_OK(ncclNetPlugin_v11.listen(&a_mr, 2, handle, &comm));
  CHECK(fake.ctx == &a_mr);
  CHECK_OK(ncclNetPlugin_v6.accept(&a_listen, &comm));
  CHECK(comm == &a_recv);
  V7_TO_12(fresh(); comm = STALE;
           CHECK_OK(net->accept(&a_listen, &comm, &dh));
           CHECK(comm == &a_recv && dh == STALE && fake.dev_handle == &dh);
           fake.answer = RAIL_SYSTEM_ERROR; fake.write_on_failure = true;
           CHECK_INT(net->accept(&a_listen, &comm, &dh), RAIL_SYSTEM_ERROR);
           CHECK(comm == NULL);)
}

TEST(memory) {
  ALL(fresh(); char byte; void *mr = STALE;
      CHECK_OK(net->reg_mr(&a_send, &byte, 0x7fffffff, RAIL_PTR_HOST, &mr));
      CHECK(mr == &a_mr);
      CHECK_INT(fake.size, 0x7fffffff);
      CHECK_INT(fake.type, RAIL_PTR_HOST);
      CHECK_OK(net->dereg_mr(&a_send, mr));
      CHECK_OK(net->dereg_mr(&a_send, NULL));
      CHECK_INT(fake.deregs, 1);
      CHECK_OK(net->reg_mr_dmabuf(&a_send, &byte, 1ull << 33, RAIL_PTR_CUDA, 4096, 17, &mr));
      CHECK(fake.size == 1ull << 33 && fake.offset == 4096 && fake.fd == 17);
      fake.answer = RAIL_SYSTEM_ERROR; mr = STALE;
      CHECK_INT(net->reg_mr(&a_send, &byte, 1, RAIL_PTR_HOST, &mr), RAIL_SYSTEM_ERROR);
      CHECK(mr == NULL);)
  void *mr = STALE;
  fresh();
  CHECK_INT(ncclNetPlugin_v6.reg_mr(&a_send, &fake, -1, RAIL_PTR_HOST, &mr), RAIL_BAD_ARGUMENT);
  CHECK(mr == NULL);
  CHECK_INT(ncclNetPlugin_v7.reg_mr(&a_send, &fake, -1, RAIL_PTR_HOST, &mr), RAIL_BAD_ARGUMENT);
  CHECK_OK(ncclNetPlugin_v8.reg_mr(&a_send, &fake, 1ull << 40, RAIL_PTR_HOST, &mr));
  CHECK(fake.size == 1ull << 40);
}

/* What every version's isend, test, iflush, close do; the slots differ in phandle alone. */
#define SEND_6(size, req) net->isend(&a_send, data, size, 7, &a_mr, req)
#define SEND_10(size, req) net->isend(&a_send, data, size, 7, &a_mr, &a_ctx, req)
#define CHECK_SEND(SEND)                                  \
  fresh(); void *req = STALE;                             \
  CHECK_OK(SEND(1000, &req));                             \
  CHECK(req == &a_request && fake.request_in == NULL);    \
  CHECK_INT(fake.size, 1000);                             \
  CHECK_INT(fake.tag, 7);                                 \
  fake.answer = RAIL_REMOTE_ERROR; req = STALE;           \
  CHECK_INT(SEND(1000, &req), RAIL_REMOTE_ERROR);         \
  CHECK(req == NULL);

TEST(isend) {
  char data[1];
  V6_TO_8(CHECK_SEND(SEND_6) fresh(); req = STALE;
          CHECK_INT(SEND_6(-1, &req), RAIL_BAD_ARGUMENT);
          CHECK(req == NULL);)
  V9(CHECK_SEND(SEND_6) fresh(); CHECK_OK(SEND_6(1ull << 40, &req)); CHECK(fake.size == 1ull << 40);)
  V10(CHECK_SEND(SEND_10) CHECK(fake.phandle == &a_ctx);)
  V11_TO_12(CHECK_SEND(SEND_10) CHECK(fake.phandle == &a_ctx);
            CHECK_INT(net->isend(&a_send, data, 1, 0, NULL, NULL, &req), RAIL_REMOTE_ERROR);
            CHECK(fake.phandle == NULL);)
}

#define CHECK_RECV(...)                                                  \
  fresh(); void *req = RAIL_NET_OPTIONAL_RECV;                           \
  CHECK_OK(net->irecv(&a_recv, 3, data, sizes, tags, mr, __VA_ARGS__));  \
  CHECK(req == &a_request);                                              \
  CHECK(fake.request_in == RAIL_NET_OPTIONAL_RECV);                      \
  CHECK_INT(fake.n, 3);                                                  \
  CHECK_INT(fake.tag, 13);                                               \
  CHECK(fake.sizes[0] == 10 && fake.sizes[1] == 0 && fake.sizes[2] == 0x7fffffff); \
  fake.answer = RAIL_REMOTE_ERROR; req = RAIL_NET_OPTIONAL_RECV;         \
  CHECK_INT(net->irecv(&a_recv, 3, data, sizes, tags, mr, __VA_ARGS__), RAIL_REMOTE_ERROR); \
  CHECK(req == NULL);

TEST(irecv) {
  void *data[RAIL_ABI_MAX_RECVS + 1] = {0}, *mr[RAIL_ABI_MAX_RECVS + 1] = {0}, *ph[3] = {0};
  int tags[RAIL_ABI_MAX_RECVS + 1] = {11, 12, 13};
  V6_TO_8(int sizes[RAIL_ABI_MAX_RECVS + 1] = {10, 0, 0x7fffffff};
          CHECK_RECV(&req)
          fresh(); req = STALE;
          CHECK_INT(net->irecv(&a_recv, RAIL_ABI_MAX_RECVS + 1, data, sizes, tags, mr, &req), RAIL_BAD_ARGUMENT);
          CHECK(req == NULL); req = STALE;
          CHECK_INT(net->irecv(&a_recv, 0, data, sizes, tags, mr, &req), RAIL_BAD_ARGUMENT);
          CHECK(req == NULL); req = STALE; sizes[1] = -1;
          CHECK_INT(net->irecv(&a_recv, 3, data, sizes, tags, mr, &req), RAIL_BAD_ARGUMENT);
          CHECK(req == NULL);
          sizes[1] = 0;
          CHECK_OK(net->irecv(&a_recv, RAIL_ABI_MAX_RECVS, data, sizes, tags, mr, &req));
          CHECK_INT(fake.n, RAIL_ABI_MAX_RECVS);)
  size_t sizes[3] = {10, 0, 0x7fffffff};
  V9(CHECK_RECV(&req) CHECK(fake.phandles == NULL);)
  V10(CHECK_RECV(ph, &req) CHECK(fake.phandles == ph);)
  V11_TO_12(CHECK_RECV(ph, &req) CHECK(fake.phandles == ph);)
}

TEST(flush_test_consumed) {
  ALL(fresh(); void *req = STALE; void *data[1] = {0}; void *mr[1] = {0}; int sizes[1] = {55}; int done = 77;
      CHECK_OK(net->iflush(&a_recv, 1, data, sizes, mr, &req));
      CHECK(req == NULL);
      CHECK_INT(fake.size, 55);
      CHECK_OK(net->test(&a_request, &done, sizes));
      CHECK_INT(done, 0);
      CHECK_INT(sizes[0], 4711);
      done = 77;
      CHECK_OK(net->test(&a_request, &done, NULL));
      CHECK_INT(done, 0);
      done = 77;
      fake.answer = RAIL_REMOTE_ERROR;
      CHECK_INT(net->test(&a_request, &done, NULL), RAIL_REMOTE_ERROR);
      CHECK_INT(done, 0);)
  V7_TO_12(fresh(); void *mr = STALE;
           CHECK_OK(net->irecv_consumed(&a_recv, 1, &a_request));
           CHECK_INT(fake.consumed, 1);
           CHECK_INT(net->get_device_mr(&a_recv, &a_mr, &mr), RAIL_INTERNAL_ERROR);
           CHECK_INT(warned, 1);)
}

TEST(close) {
  ALL(fresh();
      CHECK_OK(net->close_send(NULL));
      CHECK_OK(net->close_recv(NULL));
      CHECK_OK(net->close_listen(NULL));
      CHECK_INT(fake.closes, 0);
      CHECK_OK(net->close_send(&a_send));
      CHECK_OK(net->close_recv(&a_recv));
      CHECK_OK(net->close_listen(&a_listen));
      CHECK_INT(fake.closes, 3);)
}

/* "In progress" is for us alone. */
TEST(in_progress_never_escapes) {
  ALL(fresh(); void *out = STALE; void *data[1] = {0}; int done = 77; int n; int tags[1] = {0};
      fake.answer = RAIL_IN_PROGRESS;
      CHECK_INT(net->devices(&n), RAIL_INTERNAL_ERROR);
      CHECK_INT(net->reg_mr(&a_send, data, 1, RAIL_PTR_HOST, &out), RAIL_INTERNAL_ERROR);
      CHECK_INT(net->test(&a_request, &done, NULL), RAIL_INTERNAL_ERROR);
      CHECK_INT(net->iflush(&a_recv, 1, data, tags, data, &out), RAIL_INTERNAL_ERROR);
      CHECK_INT(net->close_send(&a_send), RAIL_INTERNAL_ERROR);
      CHECK_INT(warned, 5);)
}

/* The shared slots for what a plugin does not have. */
TEST(absent_operations) {
  void *out = NULL;
  int dev = 0;
  struct rail_net_vprops_v12 props = {.ndevs = 1, .devs = {3}};
  CHECK_OK(rail_net_no_make_vdevice(&dev, &props));
  CHECK_INT(dev, 3);
  props = (struct rail_net_vprops_v12){.ndevs = 2, .devs = {0, 1}};
  CHECK_INT(rail_net_no_make_vdevice(&dev, &props), RAIL_BAD_ARGUMENT);
  CHECK_INT(rail_net_no_reg_mr_dmabuf(NULL, NULL, 1, RAIL_PTR_CUDA, 0, 3, &out), RAIL_BAD_USAGE);
  CHECK_OK(rail_net_no_iflush(NULL, 0, NULL, NULL, NULL, &out));
  CHECK_OK(rail_net_no_irecv_consumed(NULL, 1, NULL));
  CHECK_OK(rail_net_no_set_net_attr(NULL, NULL));
}

TEST_MAIN(TEST_CASE(no_slot_is_null), TEST_CASE(process_context_is_finalized_at_unload),
          TEST_CASE(one_init_per_process_below_v11), TEST_CASE(contexts_from_v11),
          TEST_CASE(devices_and_errors), TEST_CASE(properties_of_all_versions),
          TEST_CASE(wide_vdevice_is_cut_for_old_versions), TEST_CASE(make_vdevice),
          TEST_CASE(connect_with_each_versions_arguments), TEST_CASE(listen_and_accept), TEST_CASE(memory),
          TEST_CASE(isend), TEST_CASE(irecv), TEST_CASE(flush_test_consumed), TEST_CASE(close),
          TEST_CASE(in_progress_never_escapes), TEST_CASE(absent_operations))
