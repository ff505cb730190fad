/* SPDX-License-Identifier: Apache-2.0
 * What railtrace writes: every call is in the file or counted, in order, from every thread. */
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common/base/clock.h"
#include "plugin/railtrace/trace_file.h"
#include "test/unit/trace_rig.h"

/* What a file holds. */
static struct {
  uint64_t kinds[RAIL_TRACE_KINDS], calls, dropped, tries, waited, tests;
  struct rail_trace_event connect, send, recv, reg;
  struct rail_trace_end end;
  size_t threads;
  uint64_t bytes;
} got;

static void read_back(void) {
  struct rail_trace *t;
  struct rail_trace_event e;
  char why[300];
  uint64_t last[8] = {0};
  struct stat st;
  int r;
  memset(&got, 0, sizeof got);
  CHECK_MSG(rail_trace_open(trace_path, &t, why, sizeof why), "%s", why);
  while ((r = rail_trace_next(t, &e, why, sizeof why)) == 1) {
    got.kinds[e.kind]++;
    if (e.kind == RAIL_TRACE_DROPPED) got.dropped += e.value;
    else if (e.kind != RAIL_TRACE_FINDING) got.calls++;
    CHECK(e.thread < 8 && e.number >= last[e.thread]);
    last[e.thread] = e.number;
    if (e.kind == RAIL_TRACE_CONNECT) got.connect = e;
    if (e.kind == RAIL_TRACE_ISEND) got.send = e;
    if (e.kind == RAIL_TRACE_ISEND) got.tries += e.tries;
    if (e.kind == RAIL_TRACE_IRECV) got.recv = e;
    if (e.kind == RAIL_TRACE_REG_MR) got.reg = e;
    if (e.kind == RAIL_TRACE_TEST) got.tests += e.tries;
  }
  CHECK_MSG(r == 0 && !rail_trace_cut(t), "%s", r ? why : rail_trace_cut(t));
  CHECK_MSG(rail_trace_end(t) != NULL, "the file has no end");
  got.end = *rail_trace_end(t);
  got.threads = rail_trace_threads(t);
  CHECK_STR(rail_trace_header(t)->plugin_name, "Fix");
  CHECK_INT(rail_trace_header(t)->pid, getpid());
  rail_trace_close(t);
  CHECK_OK(stat(trace_path, &st));
  got.bytes = (uint64_t)st.st_size;
  CHECK_INT(got.end.recorded, got.calls);
}

TEST(calls_are_in_the_file) {
  void *request = NULL;
  rig_open("warn", "done");
  for (int i = 0; i < 100; i++) {
    CHECK_OK(rig_isend(100, &request));
    rig_finish(request);
    CHECK_OK(rig_irecv(3, &request));
    rig_finish(request);
  }
  rig_close();
  read_back();
  CHECK_INT(got.kinds[RAIL_TRACE_ISEND], 100);
  CHECK_INT(got.kinds[RAIL_TRACE_IRECV], 100);
  CHECK_INT(got.kinds[RAIL_TRACE_TEST], 200);
  CHECK_INT(got.kinds[RAIL_TRACE_INIT] + got.kinds[RAIL_TRACE_FINALIZE], 2);
  CHECK_INT(got.kinds[RAIL_TRACE_LISTEN] + got.kinds[RAIL_TRACE_CONNECT] + got.kinds[RAIL_TRACE_ACCEPT], 3);
  CHECK_INT(got.kinds[RAIL_TRACE_REG_MR] + got.kinds[RAIL_TRACE_DEREG_MR], 4);
  CHECK_INT(got.end.dropped, 0);
  CHECK_INT(got.send.bufs[0].size, 100);
  CHECK_INT(got.send.bufs[0].tag, 7);
  CHECK_INT(got.send.made, 100);
  CHECK_INT(got.recv.n, 3);
  CHECK_INT(got.recv.bufs[2].at, 128);
  CHECK_INT(got.recv.bufs[2].tag, 2);
  CHECK_INT(got.reg.size, sizeof rig.data);
  CHECK_INT(got.recv.bufs[0].mr, got.reg.made);
  /* the handle before the plugin wrote its state into it */
  CHECK(got.connect.handle[100] == 0x5a && got.connect.handle[0] == 0x5a);
}

TEST(tries_are_counted) {
  struct rail_net_device_handle *dh = NULL;
  void *comm = NULL, *request = NULL;
  char handle[RAIL_NET_HANDLE_SIZE], moved[RAIL_NET_HANDLE_SIZE];
  int done;
  rig_open("warn", "done");
  memset(handle, 0x5b, sizeof handle);
  *rig.fault = FIX_IN_PROGRESS;
  for (int i = 0; i < 5; i++) CHECK_OK(rig.vt->connect(rig.ctx, 1, handle, &comm, &dh));
  memcpy(moved, handle, sizeof moved); /* the bytes may move */
  memset(handle, 0, sizeof handle);
  *rig.fault = FIX_NONE;
  CHECK_OK(rig.vt->connect(rig.ctx, 1, moved, &comm, &dh));
  CHECK_OK(rig.vt->close_send(comm));
  *rig.fault = FIX_NOT_NOW;
  for (int i = 0; i < 7; i++) {
    CHECK_OK(rig_isend(1, &request));
    CHECK(request == NULL);
  }
  *rig.fault = FIX_NONE;
  CHECK_OK(rig_isend(1, &request));
  *rig.fault = FIX_NOT_DONE;
  for (int i = 0; i < 9; i++) CHECK_OK(rig.vt->test(request, &done, NULL));
  *rig.fault = FIX_NONE;
  rig_finish(request);
  for (int i = 0; i < 1000; i++) { /* more than there are places for requests: each place is taken again */
    CHECK_OK(rig_isend(1, &request));
    rig_finish(request);
  }
  rig_close();
  read_back();
  CHECK_INT(got.connect.tries, 5);
  CHECK_INT(got.connect.handle[100], 0x5b);
  CHECK_INT(got.connect.dev, 1);
  CHECK_INT(got.tries, 7);
  CHECK_INT(got.kinds[RAIL_TRACE_ISEND], 1001);
  CHECK_INT(got.kinds[RAIL_TRACE_TEST], 1001);
  CHECK_INT(got.tests, 9);
}

TEST(all_tests_when_asked_for) {
  void *request = NULL;
  int done;
  rig_open("warn", "all");
  CHECK_OK(rig_isend(1, &request));
  *rig.fault = FIX_NOT_DONE;
  for (int i = 0; i < 9; i++) CHECK_OK(rig.vt->test(request, &done, NULL));
  *rig.fault = FIX_NONE;
  rig_finish(request);
  rig_close();
  read_back();
  CHECK_INT(got.kinds[RAIL_TRACE_TEST], 10);
}

/* More than the buffers hold and the thread can take away: what is missing is counted, and the numbers go on. */
TEST(what_finds_no_room_is_counted) {
  void *request = NULL;
  const int rounds = 200000;
  setenv("RAIL_TRACE_BUFFER", "16K", 1);
  rig_open("warn", "done");
  for (int i = 0; i < rounds; i++) {
    CHECK_OK(rig_isend(1, &request));
    rig_finish(request);
  }
  rig_close();
  unsetenv("RAIL_TRACE_BUFFER");
  read_back();
  CHECK(got.end.dropped > 0);
  CHECK_INT(got.calls + got.end.dropped, 2 * rounds + 12); /* 12: connecting and the rest */
  CHECK_MSG(got.dropped <= got.end.dropped, "%" PRIu64 " in the records, %" PRIu64 " in all", got.dropped,
            got.end.dropped);
  printf("# %" PRIu64 " of %d calls dropped with 16 KiB\n", got.end.dropped, 2 * rounds);
}

static void send_some(int n) {
  void *request = NULL;
  for (int i = 0; i < n; i++) {
    CHECK_OK(rig_isend(1, &request));
    rig_finish(request);
  }
}

/* The writer needs its time: until the file has come to where it stops, then once more. */
TEST(the_limit_holds) {
  const off_t limit = 1 << 20, near = limit - 3 * 65536;
  struct stat st = {.st_size = 0};
  int calls = 0;
  setenv("RAIL_TRACE_LIMIT", "1M", 1);
  rig_open("warn", "done");
  for (int round = 0; round < 3000 && st.st_size < near; round++, calls += 2000) {
    send_some(1000);
    usleep(3000);
    CHECK_OK(stat(trace_path, &st));
  }
  usleep(200000);
  send_some(100000);
  usleep(200000);
  send_some(1000);
  rig_close();
  unsetenv("RAIL_TRACE_LIMIT");
  read_back();
  CHECK(got.end.limited && got.end.dropped > 0);
  CHECK_MSG(got.bytes <= (uint64_t)limit, "%" PRIu64 " bytes", got.bytes);
  CHECK_INT(got.calls + got.end.dropped, calls + 202000 + 12);
}

#define THREADS 3
static struct lane { void *send, *mr; char handle[RAIL_NET_HANDLE_SIZE], data[64]; } lanes[THREADS];

static void *lane_run(void *arg) {
  struct lane *l = arg;
  void *request;
  int done, failed = 0;
  for (int i = 0; i < 5000; i++) {
    failed |= rig.vt->isend(l->send, l->data, 8, i, l->mr, NULL, &request);
    failed |= rig.vt->test(request, &done, NULL) || !done;
  }
  return failed ? arg : NULL;
}

/* A comm for each: the contract allows one thread in the data calls of a comm. */
TEST(threads_record_side_by_side) {
  pthread_t threads[THREADS];
  struct rail_net_device_handle *dh = NULL;
  void *failed;
  rig_open("warn", "done");
  for (int i = 0; i < THREADS; i++) {
    memset(lanes[i].handle, i + 1, sizeof lanes[i].handle);
    CHECK_OK(rig.vt->connect(rig.ctx, 0, lanes[i].handle, &lanes[i].send, &dh));
    CHECK_OK(rig.vt->reg_mr(lanes[i].send, lanes[i].data, sizeof lanes[i].data, RAIL_PTR_HOST, &lanes[i].mr));
  }
  for (int i = 0; i < THREADS; i++) CHECK_OK(pthread_create(&threads[i], NULL, lane_run, &lanes[i]));
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], &failed);
    CHECK(!failed);
    CHECK_OK(rig.vt->dereg_mr(lanes[i].send, lanes[i].mr));
    CHECK_OK(rig.vt->close_send(lanes[i].send));
  }
  rig_close();
  read_back();
  CHECK_INT(got.threads, THREADS + 1);
  CHECK_INT(got.kinds[RAIL_TRACE_ISEND], THREADS * 5000);
  CHECK_INT(got.kinds[RAIL_TRACE_TEST], THREADS * 5000);
}

TEST(a_file_that_exists_is_kept) {
  char second[PATH_MAX + 80];
  struct stat st;
  rig_open("warn", "done");
  snprintf(second, sizeof second, "%s.2", trace_path);
  rig_close();
  CHECK_OK(stat(trace_path, &st));
  off_t size = st.st_size;
  rig_load();
  struct rail_net_config config = {.traffic_class = -1};
  CHECK_OK(rig.vt->init(&rig.ctx, 1, &config, capture, NULL));
  CHECK_OK(rig.vt->finalize(rig.ctx));
  rail_net_unload(rig.net);
  CHECK_OK(stat(second, &st));
  CHECK_OK(unlink(second));
  CHECK_OK(stat(trace_path, &st));
  CHECK_INT(st.st_size, size);
}

/* A forked child has no thread that writes, and the file is its parent's. */
TEST(a_child_does_not_write) {
  void *request = NULL;
  int status;
  rig_open("warn", "done");
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    if (rig_isend(1, &request) != 0) _exit(1);
    exit(request ? 0 : 2); /* runs destructors */
  }
  CHECK_INT(waitpid(pid, &status, 0), pid);
  CHECK_INT(status, 0);
  CHECK_OK(rig_isend(1, &request));
  rig_finish(request);
  rig_close();
  read_back();
  CHECK_INT(got.kinds[RAIL_TRACE_ISEND], 1);
}

static uint64_t cpu_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Processor time of the caller, so that others on the machine matter little. Not checked; docs/trace.md has figures. */
TEST(cost_of_a_call) {
  enum { ROUNDS = 200000 };
  static const char *const checks[] = {"warn", "off"};
  void *request = NULL;
  int done;
  for (int c = 0; c < 2; c++) {
    rig_open(checks[c], "done");
    uint64_t both = cpu_ns();
    send_some(ROUNDS);
    both = cpu_ns() - both;
    CHECK_OK(rig_isend(1, &request));
    *rig.fault = FIX_NOT_DONE;
    uint64_t idle = cpu_ns();
    for (int i = 0; i < ROUNDS; i++) (void)rig.vt->test(request, &done, NULL);
    idle = cpu_ns() - idle;
    *rig.fault = FIX_NONE;
    rig_finish(request);
    rig_close();
    uint64_t clock = cpu_ns();
    for (int i = 0; i < ROUNDS; i++) (void)rail_now_ns();
    clock = cpu_ns() - clock;
    printf("# check %s: isend and its test %" PRIu64 " ns, a test that finds nothing %" PRIu64
           " ns; reading the clock %" PRIu64 " ns\n", checks[c], both / ROUNDS, idle / ROUNDS, clock / ROUNDS);
  }
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(calls_are_in_the_file), TEST_CASE(tries_are_counted), TEST_CASE(all_tests_when_asked_for),
    TEST_CASE(what_finds_no_room_is_counted), TEST_CASE(the_limit_holds), TEST_CASE(threads_record_side_by_side),
    TEST_CASE(a_file_that_exists_is_kept), TEST_CASE(a_child_does_not_write), TEST_CASE(cost_of_a_call),
  };
  rig_start("test_railtrace_record");
  int status = tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
  unlink(trace_path);
  return status;
}
