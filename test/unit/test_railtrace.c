/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules that railtrace watches: a plugin (test/preload/tracefix.c) and a
 * caller break each of them; each is reported with who broke it. The last case
 * fails when a rule has no case here.
 */
#include <pthread.h>

#include "test/unit/trace_rig.h"

static bool fired[RAIL_RULES]; /* over all cases */

static void check_told(enum rail_trace_rule rule) {
  char text[128];
  const struct rail_trace_rule_row *row = rail_trace_rule(rule);
  snprintf(text, sizeof text, "%s broke %s:", row->plugin ? "the plugin" : "the caller", row->name);
  CHECK_MSG(said(text), "\"%s\" was not said, but: %s", text, logged);
  fired[rule] = true;
}

/* The call inside must break this rule, and no other. */
#define BREAKS(rule, ...)                                                           \
  do {                                                                               \
    forget_lines();                                                                  \
    __VA_ARGS__;                                                                     \
    check_told(rule);                                                                \
    char *first_ = strstr(logged, " broke ");                                        \
    CHECK_MSG(!strstr(first_ + 1, " broke "), "more than one finding: %s", logged);  \
  } while (0)

/* The same, with the plugin doing wrong. */
#define PLUGIN_BREAKS(rule, how, ...) \
  do {                                 \
    *rig.fault = (how);                \
    BREAKS(rule, __VA_ARGS__);         \
    *rig.fault = FIX_NONE;             \
  } while (0)

TEST(good_calls_are_no_finding) {
  void *request = NULL;
  rig_open("warn", "done");
  for (int i = 0; i < 100; i++) {
    CHECK_OK(rig_isend(100, &request));
    rig_finish(request);
    CHECK_OK(rig_irecv(1 + i % FIX_MAX_RECVS, &request));
    rig_finish(request);
    CHECK_OK(rig.vt->irecv_consumed(rig.recv, 1, request));
  }
  CHECK_OK(rig.vt->close_send(NULL));
  CHECK_OK(rig.vt->dereg_mr(rig.send, NULL));
  rig_close();
  CHECK_MSG(logged[0] == 0, "%s", logged);
}

TEST(arguments_pass) {
  void *request = NULL, *ph = &request, *phs[4] = {NULL, NULL, NULL, &rig}, *data[4], *mhs[4];
  size_t sizes[4];
  int tags[4] = {1, 2, 3, 4};
  struct rail_net_props_v12 props;
  struct rail_net_vprops_v12 fuse = {.ndevs = 2, .devs = {0, 1}};
  struct rail_net_attr attr = {.op = 1};
  int dev = -1, ndev = -1;
  rig_open("warn", "done");
  CHECK_STR(rail_net_name(rig.net), "Fix+trace");
  CHECK_INT(rig.seen->traffic_class, 3);
  CHECK_OK(rig.vt->devices(&ndev));
  CHECK_INT(ndev, 2);
  CHECK_OK(rig.vt->get_properties(1, &props));
  CHECK_STR(props.name, "fix1");
  CHECK_OK(rig.vt->make_vdevice(&dev, &fuse));
  CHECK_INT(dev, 2);
  CHECK_OK(rig.vt->set_net_attr(rig.ctx, &attr));
  CHECK_INT(rig.seen->attrs, 1);
  CHECK_OK(rig.vt->isend(rig.send, rig.data, 5, 9, rig.send_mr, ph, &request));
  CHECK(rig.seen->phandle == ph);
  CHECK_INT(rig.seen->tag, 9);
  CHECK(rig.seen->comm != rig.send && rig.seen->mhandle != rig.send_mr); /* the plugin's own */
  rig_finish(request);
  CHECK_OK(rig.vt->get_device_mr(rig.send, rig.send_mr, &request));
  CHECK(request == rig.seen && rig.seen->mhandle != rig.send_mr);
  CHECK(rig.send_dh && rig.send_dh->version == 7 && rig.recv_dh && rig.recv_dh->version == 7);
  for (int i = 0; i < 4; i++) {
    data[i] = rig.data;
    mhs[i] = rig.recv_mr;
    sizes[i] = 10;
  }
  request = RAIL_NET_OPTIONAL_RECV;
  CHECK_OK(rig.vt->irecv(rig.recv, 4, data, sizes, tags, mhs, phs, &request));
  CHECK(rig.seen->hint == RAIL_NET_OPTIONAL_RECV && rig.seen->phandle == &rig);
  rig_finish(request);
  void *plugins = rig.seen->request;
  CHECK_OK(rig.vt->irecv_consumed(rig.recv, 4, request));
  CHECK(rig.seen->consumed == 1 && rig.seen->request == plugins);
  rig_close();
  CHECK_MSG(logged[0] == 0, "%s", logged);
}

TEST(plugin_breaks_posting) {
  void *request = NULL, *second;
  rig_open("warn", "done");
  PLUGIN_BREAKS(RAIL_RULE_RESULT, FIX_RESULT, CHECK_INT(rig_isend(1, &request), RAIL_INTERNAL_ERROR));
  PLUGIN_BREAKS(RAIL_RULE_REQUEST_UNWRITTEN, FIX_REQUEST_UNWRITTEN, CHECK_OK(rig_isend(1, &request)));
  CHECK(request == NULL);
  PLUGIN_BREAKS(RAIL_RULE_REQUEST_UNWRITTEN, FIX_REQUEST_UNWRITTEN, CHECK_OK(rig_irecv(2, &request)));
  *rig.fault = FIX_REQUEST_TWICE;
  CHECK_OK(rig_isend(1, &request));
  PLUGIN_BREAKS(RAIL_RULE_REQUEST_TWICE, FIX_REQUEST_TWICE, CHECK_OK(rig_isend(1, &second)));
  rig_finish(request);
  rig_finish(second);
  PLUGIN_BREAKS(RAIL_RULE_MHANDLE_UNWRITTEN, FIX_MHANDLE_UNWRITTEN,
                CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, 9, RAIL_PTR_HOST, &second)));
  rig_close();
}

TEST(plugin_breaks_connecting) {
  void *comm = NULL;
  struct rail_net_device_handle *dh = NULL;
  char handle[RAIL_NET_HANDLE_SIZE];
  rig_open("warn", "done");
  memcpy(handle, rig.handle, sizeof handle);
  PLUGIN_BREAKS(RAIL_RULE_COMM_UNWRITTEN, FIX_COMM_UNWRITTEN,
                CHECK_OK(rig.vt->connect(rig.ctx, 0, handle, &comm, &dh)));
  CHECK(comm == NULL);
  PLUGIN_BREAKS(RAIL_RULE_COMM_WITH_ERROR, FIX_COMM_WITH_ERROR,
                CHECK_INT(rig.vt->connect(rig.ctx, 0, handle, &comm, &dh), RAIL_REMOTE_ERROR));
  PLUGIN_BREAKS(RAIL_RULE_COMM_WITH_ERROR, FIX_COMM_WITH_ERROR,
                CHECK_INT(rig.vt->accept(rig.listen, &comm, &dh), RAIL_REMOTE_ERROR));
  CHECK(comm == NULL);
  PLUGIN_BREAKS(RAIL_RULE_LISTEN_NULL, FIX_LISTEN_NULL, CHECK_OK(rig.vt->listen(rig.ctx, 0, handle, &comm)));
  PLUGIN_BREAKS(RAIL_RULE_SLOW_CALL, FIX_SLOW_CALL, CHECK_OK(rig.vt->listen(rig.ctx, 0, handle, &comm)));
  CHECK(said("at most 4.000 ms"));
  PLUGIN_BREAKS(RAIL_RULE_CLOSE_ERROR, FIX_CLOSE_ERROR, CHECK_INT(rig.vt->close_listen(comm), RAIL_SYSTEM_ERROR));
  rig_close();
}

static void break_test(enum rail_trace_rule rule, int fault, int wanted_done) {
  int done = 5, sizes[8] = {0};
  void *request = NULL;
  CHECK_OK(rig_irecv(2, &request));
  PLUGIN_BREAKS(rule, fault, CHECK_OK(rig.vt->test(request, &done, sizes)));
  CHECK_INT(done, wanted_done);
  if (!done) rig_finish(request);
}

TEST(plugin_breaks_testing) {
  int sizes[8], done;
  void *request;
  rig_open("warn", "done");
  break_test(RAIL_RULE_DONE_UNWRITTEN, FIX_DONE_UNWRITTEN, 0);
  break_test(RAIL_RULE_DONE_VALUE, FIX_DONE_VALUE, 1);
  break_test(RAIL_RULE_SIZE_BEYOND, FIX_SIZE_NEGATIVE, 1);
  break_test(RAIL_RULE_SIZES_TOO_MANY, FIX_SIZES_TOO_MANY, 1);
  CHECK_OK(rig_irecv(1, &request));
  PLUGIN_BREAKS(RAIL_RULE_SIZE_UNWRITTEN, FIX_SIZE_UNWRITTEN, CHECK_OK(rig.vt->test(request, &done, sizes)));
  CHECK_OK(rig_irecv(1, &request));
  PLUGIN_BREAKS(RAIL_RULE_SIZE_BEYOND, FIX_SIZE_BEYOND, CHECK_OK(rig.vt->test(request, &done, sizes)));
  CHECK(said("size 65 in buffer 0 of 64 bytes"));
  rig_close();
}

TEST(caller_breaks_handles) {
  void *comm = NULL, *request = NULL, *mh = NULL;
  char handle[RAIL_NET_HANDLE_SIZE];
  int done;
  rig_open("warn", "done");
  BREAKS(RAIL_RULE_CTX_UNKNOWN, CHECK_INT(rig.vt->listen(&rig, 0, handle, &comm), RAIL_INTERNAL_ERROR));
  BREAKS(RAIL_RULE_DEVICE_UNKNOWN, CHECK_OK(rig.vt->listen(rig.ctx, 2, handle, &comm)));
  CHECK_OK(rig.vt->close_listen(comm));
  BREAKS(RAIL_RULE_COMM_CLOSED, CHECK_INT(rig.vt->close_listen(comm), RAIL_INTERNAL_ERROR));
  BREAKS(RAIL_RULE_COMM_UNKNOWN, CHECK_INT(rig.vt->close_send(&rig), RAIL_INTERNAL_ERROR));
  BREAKS(RAIL_RULE_COMM_KIND, CHECK_INT(rig.vt->isend(rig.recv, rig.data, 1, 0, rig.recv_mr, NULL, &request),
                                        RAIL_INTERNAL_ERROR));
  BREAKS(RAIL_RULE_TEST_UNKNOWN, CHECK_INT(rig.vt->test(&rig, &done, NULL), RAIL_INTERNAL_ERROR));
  CHECK_OK(rig_isend(1, &request));
  rig_finish(request);
  BREAKS(RAIL_RULE_TEST_AFTER_DONE, CHECK_INT(rig.vt->test(request, &done, NULL), RAIL_INTERNAL_ERROR));
  BREAKS(RAIL_RULE_CONSUMED_UNKNOWN, CHECK_OK(rig.vt->irecv_consumed(rig.recv, 1, request))); /* of the send comm */
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, 1, RAIL_PTR_HOST, &mh));
  CHECK_OK(rig.vt->dereg_mr(rig.send, mh));
  BREAKS(RAIL_RULE_MR_DEREGISTERED, CHECK_INT(rig.vt->dereg_mr(rig.send, mh), RAIL_INTERNAL_ERROR));
  rig_close();
}

TEST(caller_breaks_buffers) {
  void *request = NULL, *mh = NULL, *data[8], *mhs[8];
  size_t sizes[8];
  int tags[8] = {1, 2, 1, 4};
  rig_open("warn", "done");
  BREAKS(RAIL_RULE_MR_UNKNOWN, CHECK_OK(rig.vt->isend(rig.send, rig.data, 1, 0, &rig, NULL, &request)));
  rig_finish(request);
  BREAKS(RAIL_RULE_MR_OTHER_COMM, CHECK_OK(rig.vt->isend(rig.send, rig.data, 1, 0, rig.recv_mr, NULL, &request)));
  rig_finish(request);
  BREAKS(RAIL_RULE_MR_RANGE,
         CHECK_OK(rig.vt->isend(rig.send, rig.data + 4000, 97, 0, rig.send_mr, NULL, &request)));
  rig_finish(request);
  CHECK_OK(rig.vt->isend(rig.send, rig.data + 4000, 96, 0, rig.send_mr, NULL, &request));
  BREAKS(RAIL_RULE_MR_IN_USE, CHECK_OK(rig.vt->dereg_mr(rig.send, rig.send_mr)));
  rig_finish(request);
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, sizeof rig.data, RAIL_PTR_HOST, &rig.send_mr));
  *rig.fault = FIX_MHANDLE_NULL;
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, 1, RAIL_PTR_HOST, &mh));
  *rig.fault = FIX_NONE;
  CHECK(mh == NULL);
  BREAKS(RAIL_RULE_NULL_DATA, CHECK_OK(rig.vt->isend(rig.send, NULL, 1, 0, NULL, NULL, &request)));
  rig_finish(request);
  BREAKS(RAIL_RULE_BUFFER_COUNT, CHECK_INT(rig_irecv(FIX_MAX_RECVS + 1, &request), RAIL_INTERNAL_ERROR));
  BREAKS(RAIL_RULE_BUFFER_COUNT, CHECK_INT(rig_irecv(0, &request), RAIL_INTERNAL_ERROR));
  for (int i = 0; i < 4; i++) {
    data[i] = rig.data;
    mhs[i] = rig.recv_mr;
    sizes[i] = 1;
  }
  BREAKS(RAIL_RULE_TAG_TWICE, CHECK_OK(rig.vt->irecv(rig.recv, 4, data, sizes, tags, mhs, NULL, &request)));
  rig_finish(request);
  rig_close();
}

/* A buffer may be all of its memory, from the first byte to the last. */
TEST(a_buffer_to_the_end) {
  void *request = NULL;
  rig_open("warn", "done");
  CHECK_OK(rig_isend(sizeof rig.data, &request));
  rig_finish(request);
  CHECK_OK(rig.vt->isend(rig.send, rig.data + sizeof rig.data, 0, 7, rig.send_mr, NULL, &request));
  rig_finish(request);
  CHECK_MSG(logged[0] == 0, "%s", logged);
  rig_close();
}

/* The handle of memory that was given back stays wrong when its place is taken again. */
TEST(handles_are_not_used_twice) {
  void *request = NULL, *old = NULL, *fresh = NULL;
  rig_open("warn", "done");
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, 64, RAIL_PTR_HOST, &old));
  CHECK_OK(rig.vt->dereg_mr(rig.send, old));
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, 64, RAIL_PTR_HOST, &fresh));
  CHECK(fresh != old);
  BREAKS(RAIL_RULE_MR_DEREGISTERED, CHECK_OK(rig.vt->isend(rig.send, rig.data, 1, 0, old, NULL, &request)));
  rig_finish(request);
  CHECK_OK(rig.vt->dereg_mr(rig.send, fresh));
  rig_close();
}

/* Memory that was given back while a buffer lay in it: what is registered next is not that buffer's. */
TEST(a_buffer_outlives_its_memory) {
  void *request = NULL, *old = NULL, *fresh = NULL;
  rig_open("warn", "done");
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, 64, RAIL_PTR_HOST, &old));
  CHECK_OK(rig.vt->isend(rig.send, rig.data, 1, 0, old, NULL, &request));
  BREAKS(RAIL_RULE_MR_IN_USE, CHECK_OK(rig.vt->dereg_mr(rig.send, old)));
  forget_lines();
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, 64, RAIL_PTR_HOST, &fresh));
  rig_finish(request);
  CHECK_OK(rig.vt->dereg_mr(rig.send, fresh));
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, 64, RAIL_PTR_HOST, &old)); /* the place of the first one */
  CHECK_OK(rig.vt->dereg_mr(rig.send, old));
  CHECK_MSG(logged[0] == 0, "%s", logged);
  rig_close();
}

/* That a plugin gave no handles for memory of one connection says nothing of the next one, at the same place. */
TEST(no_handles_on_another_connection) {
  void *request = NULL, *none = NULL;
  rig_open("warn", "done");
  *rig.fault = FIX_MHANDLE_NULL;
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, 64, RAIL_PTR_HOST, &none));
  *rig.fault = FIX_NONE;
  CHECK_OK(rig.vt->isend(rig.send, rig.data, 1, 0, none, NULL, &request));
  rig_finish(request);
  CHECK_OK(rig.vt->dereg_mr(rig.send, rig.send_mr));
  CHECK_OK(rig.vt->close_send(rig.send));
  struct rail_net_device_handle *dh = NULL;
  CHECK_OK(rig.vt->connect(rig.ctx, 0, rig.handle, &rig.send, &dh));
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, sizeof rig.data, RAIL_PTR_HOST, &rig.send_mr));
  BREAKS(RAIL_RULE_MR_UNKNOWN, CHECK_OK(rig.vt->isend(rig.send, rig.data, 1, 0, NULL, NULL, &request)));
  rig_finish(request);
  rig_close();
}

TEST(requests_end_in_any_order) {
  enum { N = 8 };
  static const int orders[][N] = {{0, 7, 1, 6, 2, 5, 3, 4}, {3, 7, 0, 1, 6, 2, 4, 5}, {1, 0, 3, 2, 7, 6, 5, 4}};
  void *requests[N];
  rig_open("warn", "done");
  for (int round = 0; round < 30; round++) {
    for (int i = 0; i < N; i++) CHECK_OK(rig_isend(1, &requests[i]));
    for (int i = 0; i < N; i++) {
      int at = orders[round % 3][i];
      rig_finish(requests[at]);
      CHECK_OK(rig_isend(1, &requests[at])); /* the plugin may give the same request again */
      rig_finish(requests[at]);
    }
  }
  CHECK_MSG(logged[0] == 0, "%s", logged);
  for (int i = 0; i < 3; i++) CHECK_OK(rig_isend(1, &requests[i]));
  rig_finish(requests[0]);
  rig_finish(requests[2]);
  BREAKS(RAIL_RULE_MR_IN_USE, CHECK_OK(rig.vt->dereg_mr(rig.send, rig.send_mr)));
  CHECK_OK(rig.vt->close_send(rig.send)); /* with the one in the middle, which ends with it */
  struct rail_net_device_handle *dh = NULL;
  CHECK_OK(rig.vt->connect(rig.ctx, 0, rig.handle, &rig.send, &dh));
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, sizeof rig.data, RAIL_PTR_HOST, &rig.send_mr));
  rig_close();
}

TEST(caller_posts_too_much) {
  enum { LIMIT = RAIL_NET_MAX_REQUESTS * FIX_MAX_RECVS };
  void *requests[2 * LIMIT + 1];
  rig_open("warn", "done");
  for (int i = 0; i < LIMIT; i++) CHECK_OK(rig_isend(1, &requests[i]));
  CHECK_MSG(logged[0] == 0, "%s", logged);
  BREAKS(RAIL_RULE_TOO_MANY_REQUESTS, CHECK_OK(rig_isend(1, &requests[LIMIT])));
  for (int i = LIMIT + 1; i <= 2 * LIMIT; i++) CHECK_OK(rig_isend(1, &requests[i]));
  CHECK(requests[2 * LIMIT - 1] != NULL && requests[2 * LIMIT] == NULL); /* no place is left: "not now" */
  for (int i = 2 * LIMIT; i-- > 0;) rig_finish(requests[i]);             /* newest first */
  rig_close();
}

static void *send_one(void *arg) {
  (void)rig_isend(1, arg);
  return NULL;
}

TEST(caller_uses_two_threads) {
  void *requests[2] = {NULL, NULL};
  pthread_t threads[2];
  rig_open("warn", "done");
  *rig.fault = FIX_SLEEPS;
  for (int i = 0; i < 2; i++) CHECK_OK(pthread_create(&threads[i], NULL, send_one, &requests[i]));
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  *rig.fault = FIX_NONE;
  check_told(RAIL_RULE_TWO_THREADS);
  for (int i = 0; i < 2; i++)
    if (requests[i]) rig_finish(requests[i]);
  rig_close();
}

TEST(caller_closes_with_memory) {
  void *extra;
  rig_open("warn", "done");
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, 1, RAIL_PTR_HOST, &extra));
  CHECK_OK(rig.vt->dereg_mr(rig.send, rig.send_mr));
  BREAKS(RAIL_RULE_CLOSE_WITH_MR, CHECK_OK(rig.vt->close_send(rig.send)));
  struct rail_net_device_handle *dh = NULL;
  CHECK_OK(rig.vt->connect(rig.ctx, 0, rig.handle, &rig.send, &dh));
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, 1, RAIL_PTR_HOST, &rig.send_mr));
  rig_close();
}

TEST(twenty_lines_of_a_kind) {
  int done, lines = 0;
  rig_open("warn", "done");
  for (int i = 0; i < 50; i++) (void)rig.vt->test(&rig, &done, NULL);
  for (const char *p = logged; (p = strstr(p, " broke test_unknown")) != NULL; p++) lines++;
  CHECK_INT(lines, 20);
  CHECK(said("more of these are only counted"));
  forget_lines();
  rig_close();
  CHECK_MSG(said("50 findings: test_unknown 50"), "%s", logged);
}

TEST(errors_when_asked_for) {
  void *request = NULL;
  int done, sizes[8];
  rig_open("error", "done");
  CHECK_INT(rig.vt->isend(rig.send, rig.data + 4000, 97, 0, rig.send_mr, NULL, &request), RAIL_INTERNAL_ERROR);
  CHECK(request == NULL);
  CHECK_OK(rig_irecv(1, &request));
  *rig.fault = FIX_SIZE_BEYOND;
  CHECK_INT(rig.vt->test(request, &done, sizes), RAIL_INTERNAL_ERROR);
  *rig.fault = FIX_REQUEST_UNWRITTEN;
  CHECK_INT(rig_isend(1, &request), RAIL_INTERNAL_ERROR);
  rig_close();
}

TEST(nothing_when_off) {
  void *request = NULL;
  int done;
  rig_open("off", "done");
  CHECK_OK(rig.vt->isend(rig.send, rig.data + 4000, 97, 0, rig.send_mr, NULL, &request));
  CHECK(request != NULL);
  rig_finish(request);
  CHECK_INT(rig.vt->test(request, &done, NULL), RAIL_INTERNAL_ERROR); /* there is nothing to pass on */
  rig_close();
  CHECK_MSG(logged[0] == 0, "%s", logged);
}

TEST(without_a_plugin_there_are_no_devices) {
  void *ctx = NULL;
  int ndev = 7;
  for (int round = 0; round < 2; round++) {
    if (round) setenv("RAIL_TRACE_PLUGIN", "/nowhere/lib.so", 1);
    else unsetenv("RAIL_TRACE_PLUGIN");
    rig_load();
    CHECK_STR(rail_net_name(rig.net), "RailTrace");
    CHECK_OK(rig.vt->init(&ctx, 0, NULL, capture, NULL));
    CHECK_OK(rig.vt->devices(&ndev));
    CHECK_INT(ndev, 0);
    CHECK_MSG(said(round ? "/nowhere/lib.so" : "set RAIL_TRACE_PLUGIN"), "%s", logged);
    CHECK_OK(rig.vt->finalize(ctx));
    rail_net_unload(rig.net);
  }
}

TEST(every_rule_has_a_case) {
  for (int rule = RAIL_RULE_NONE + 1; rule < RAIL_RULES; rule++)
    CHECK_MSG(fired[rule], "no case breaks %s", rail_trace_rule((unsigned int)rule)->name);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(good_calls_are_no_finding), TEST_CASE(arguments_pass), TEST_CASE(plugin_breaks_posting),
    TEST_CASE(plugin_breaks_connecting), TEST_CASE(plugin_breaks_testing), TEST_CASE(caller_breaks_handles),
    TEST_CASE(caller_breaks_buffers), TEST_CASE(a_buffer_to_the_end), TEST_CASE(handles_are_not_used_twice),
    TEST_CASE(a_buffer_outlives_its_memory), TEST_CASE(no_handles_on_another_connection),
    TEST_CASE(requests_end_in_any_order),
    TEST_CASE(caller_posts_too_much), TEST_CASE(caller_uses_two_threads),
    TEST_CASE(caller_closes_with_memory), TEST_CASE(twenty_lines_of_a_kind), TEST_CASE(errors_when_asked_for),
    TEST_CASE(nothing_when_off), TEST_CASE(without_a_plugin_there_are_no_devices), TEST_CASE(every_rule_has_a_case),
  };
  rig_start("test_railtrace");
  int status = tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
  unlink(trace_path);
  return status;
}
