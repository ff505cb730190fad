/* SPDX-License-Identifier: Apache-2.0
 *
 * The ib plugin on the emulated device, which fails at message i of a run: its port goes down, a queue pair breaks, the
 * device fails. However that ends, with an error or without: no byte is wrong, nothing is received twice, no request
 * waits for ever, and everything can be closed.
 *
 * Of the 10,000 messages of a run some indices are tried, each in a process of its own. All of them, in 8 parts that
 * may run side by side: RAIL_TEST_INDICES=all:1/8 build/test/fault/test_ib_every_index, all:2/8, … all:8/8.
 * RAIL_TEST_INDICES=17 tries one.
 *
 * TEST-LIMIT: 240
 * TEST-SAN: asan tsan */
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kit/kit_net.h"
#include "test/harness/emu.h"
#include "test/harness/tap.h"

enum { MESSAGES = 10000, AFTER = 64, WINDOW = 8, MOST = 9000, WENT_ON = 10, AT_ONCE = 2 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SAMPLE = 8 };
#else
enum { SAMPLE = 40 };
#endif

enum kind { PORT_DOWN, QP_ERROR, DEVICE_FATAL };
static const char *const kinds[] = {"port down", "QP error", "device fatal"};
static char plugin[PATH_MAX];
static const char *doing; /* of this run, for the report */
static long at;

/* ---- a run ------------------------------------------------------------------------------ */

static struct kit_net net;
static struct kit_pair pair;
static char *from, *to;
static void *from_mr, *to_mr;

struct side {
  void *reqs[WINDOW];
  long posted, done;
  bool failed;
};

static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 32);
}

static size_t size_of(long message) { return mix((uint64_t)message) % (message % 4 ? 200 : MOST); }

static void fill(char *data, long message) {
  uint64_t value = mix((uint64_t)message * 3 + 1);
  for (size_t i = 0; i < size_of(message); i++) data[i] = (char)(value >> (i % 8 * 8)) ^ (char)(i >> 3);
}

static void check(const char *data, long message) {
  char wanted[MOST];
  fill(wanted, message);
  for (size_t i = 0; i < MOST; i++) {
    char want = i < size_of(message) ? wanted[i] : 0x77;
    ENSURE(data[i] == want, "byte %zu of message %ld, which has %zu, is %02x and not %02x", i, message,
           size_of(message), (unsigned char)data[i], (unsigned char)want);
  }
}

/* A request later than the next one or two, so that it may be one of either side, of data or of a CTS. */
static void break_it(enum kind kind) {
  char text[96];
  static const char *const qp_errors[] = {"qp_error qp=last", "complete retry_exc_err", "complete fatal_err"};
  const char *what = kind == PORT_DOWN ? "port emu0 1 state=down" : kind == DEVICE_FATAL ? "fatal emu0"
                                                                                         : qp_errors[at % 3];
  snprintf(text, sizeof text, "at %ld %s", 1 + at / 3 % 3, what);
  emu_do(text);
}

static void post_receives(struct side *s, long n) {
  while (!s->failed && s->posted < n && s->posted - s->done < WINDOW) {
    long slot = s->posted % WINDOW;
    void *data = to + slot * MOST;
    size_t size = MOST;
    int tag = 0;
    s->reqs[slot] = NULL;
    memset(data, 0x77, MOST);
    s->failed = net.vt->irecv(pair.recv, 1, &data, &size, &tag, &to_mr, NULL, &s->reqs[slot]) != 0;
    if (s->failed || !s->reqs[slot]) return;
    s->posted++;
  }
}

static void post_sends(struct side *s, long n, enum kind kind) {
  static bool broken;
  while (!s->failed && s->posted < n && s->posted - s->done < WINDOW) {
    long slot = s->posted % WINDOW;
    if (s->posted == at && !broken) break_it(kind);
    broken |= s->posted == at;
    s->reqs[slot] = NULL;
    fill(from + slot * MOST, s->posted);
    s->failed = net.vt->isend(pair.send, from + slot * MOST, size_of(s->posted), 0, from_mr, NULL, &s->reqs[slot]) != 0;
    if (s->failed || !s->reqs[slot]) return;
    s->posted++;
  }
}

/* The oldest request; true when there was one and it is over. */
static bool test_oldest(struct side *s, bool receives) {
  int done = 0, size = -1;
  if (s->failed || s->posted == s->done) return false;
  s->failed = net.vt->test(s->reqs[s->done % WINDOW], &done, &size) != 0;
  if (s->failed || !done) return false;
  if (receives) {
    ENSURE((size_t)size == size_of(s->done), "message %ld has %d bytes, %zu were sent", s->done, size,
           size_of(s->done));
    check(to + s->done % WINDOW * MOST, s->done);
  }
  s->done++;
  return true;
}

static void exchange(enum kind kind) {
  struct side send = {.posted = 0}, recv = {.posted = 0};
  long n = at + AFTER;
  for (;;) {
    bool over = (send.failed || send.done == n) && (recv.failed || recv.done == n);
    if (over) break;
    /* A side whose peer has failed gets no more than is under way; that must end, too. */
    long sends = recv.failed ? send.posted : n, recvs = send.failed ? recv.posted : n;
    if (recv.failed && send.done == send.posted) break;
    post_receives(&recv, recvs);
    post_sends(&send, sends, kind);
    bool any = test_oldest(&recv, true);
    any |= test_oldest(&send, false);
    if (!any && (send.failed || recv.failed)) usleep(100);
  }
  ENSURE(recv.done <= send.posted, "%ld messages were received, %ld were sent", recv.done, send.posted);
  for (long m = recv.done - WINDOW > 0 ? recv.done - WINDOW : 0; m < recv.done; m++)
    if (recv.posted - m < WINDOW) check(to + m % WINDOW * MOST, m); /* what was received stays as it was */
  if (!send.failed && !recv.failed) doing = "went on";
}

__attribute__((format(printf, 3, 4))) static void report(const char *file, int line, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  printf("# message %ld, %s: %s:%d: ", at, doing, file, line);
  vprintf(fmt, ap);
  printf("\n");
  va_end(ap);
  fflush(stdout);
  _exit(1);
}

static void run(enum kind kind) {
  doing = kinds[kind];
  alarm(100);
  kit_on_failure(report);
  kit_net_target(plugin, 0, 0);
  kit_net_open(&net);
  kit_pair_open(&net, &pair);
  from = calloc(WINDOW, MOST);
  to = calloc(WINDOW, MOST);
  ENSURE(from && to, "out of memory");
  from_mr = kit_mr_reg(&net, pair.send, from, (size_t)WINDOW * MOST);
  to_mr = kit_mr_reg(&net, pair.recv, to, (size_t)WINDOW * MOST);
  exchange(kind);
  (void)net.vt->dereg_mr(pair.send, from_mr);
  (void)net.vt->dereg_mr(pair.recv, to_mr);
  (void)net.vt->close_send(pair.send);
  (void)net.vt->close_recv(pair.recv);
  kit_net_close(&net);
  static const char *const objects[] = {"qp", "cq", "mr", "pd", "context"};
  for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++)
    ENSURE(emu_live(objects[i]) == 0, "%ld %s left", emu_live(objects[i]), objects[i]);
  free(from);
  free(to);
  _exit(strcmp(doing, "went on") == 0 ? WENT_ON : 0);
}

/* ---- which ones -------------------------------------------------------------------------- */

static long errors, without;

static void reap(enum kind kind) {
  int status;
  pid_t pid = wait(&status);
  CHECK(pid > 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == WENT_ON) without++;
  else if (WIFEXITED(status) && WEXITSTATUS(status) == 0) errors++;
  else CHECK_MSG(false, "%s: a process ended with status %#x (%s)", kinds[kind], (unsigned int)status,
                 WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? "it hung" : "see above");
}

static void try_all(enum kind kind) {
  const char *text = getenv("RAIL_TEST_INDICES");
  long part = 1, parts = 1, running = 0, step = MESSAGES / SAMPLE, first = 1 + (long)kind * 97 % step, last = MESSAGES;
  if (text && sscanf(text, "all:%ld/%ld", &part, &parts) == 2) {
    first = part - 1;
    step = parts;
  } else if (text) {
    first = last = atol(text);
    last++;
  }
  errors = without = 0;
  for (at = first; at < last; at += step) {
    fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) run(kind);
    if (++running == AT_ONCE) {
      reap(kind);
      running--;
    }
  }
  for (; running; running--) reap(kind);
  printf("# %s: %ld ended with an error, %ld went on\n", kinds[kind], errors, without);
  bool only_one = text && parts == 1; /* which may be one that nothing depends on any more */
  CHECK_MSG(only_one || errors > 0, "%s: no fault was noticed: none was injected", kinds[kind]);
}

TEST(a_port_goes_down) { try_all(PORT_DOWN); }
TEST(a_queue_pair_breaks) { try_all(QP_ERROR); }
TEST(a_device_fails) { try_all(DEVICE_FATAL); }

static const struct tap_case cases[] = {TEST_CASE(a_port_goes_down), TEST_CASE(a_queue_pair_breaks),
                                        TEST_CASE(a_device_fails)};

int main(int argc, char **argv) {
  if (!rail_path_from_bin(plugin, "../../lib/libnccl-net-ib.so")) return 2;
  emu_use("device emu0");
  const char *emulated = getenv("NCCL_IBVERBS_LIB");
  if (access(plugin, R_OK) != 0 || !emulated || access(emulated, R_OK) != 0) {
    printf("1..1\nok 1 - the ib plugin # SKIP it is not built: no infiniband/verbs.h\n");
    return 0;
  }
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("NCCL_IB_TIMEOUT", "10", 1); /* 4 ms; the emulated device does not count time in which a peer could not run */
  setenv("NCCL_IB_RETRY_CNT", "3", 1);
  return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
