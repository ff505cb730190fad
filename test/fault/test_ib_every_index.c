/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 300
 * TEST-SAN: asan tsan
 *
 * The ib plugin on the emulated device, of which a part fails at message i of a run of 10,000: a port goes down, a
 * queue pair breaks, a device fails. Every i has its turn. With other rails the run goes on, and what can return is
 * used again before the next failure. With one rail both sides get an error that says what to check. Either way no byte
 * is wrong, no request is done early or twice, none waits for ever, and everything can be closed.
 *
 * A run over several rails has a failure at every 32nd message, so 32 runs have one at each; a device stays failed, so
 * a run over 8 rails has 7. A run over one rail ends with its failure. Time is virtual.
 *
 * make test tries some runs, which the seed chooses; RAIL_TEST_SEED repeats them. RAIL_TEST_INDICES=17 tries those in
 * which something fails at message 17, 100-199 those at messages 100 to 199. `make ib-failures` tries all, 0-9999: half
 * an hour of processor time.
 */
#include <stdarg.h>

#include "test/harness/ib_messages.h"
#include "test/harness/proc.h"

enum { MESSAGES = 10000, STRIDE = 32, SURVIVED = RUN_RAILS - 1 };
enum { END = MESSAGES + STRIDE }; /* of a run, so that a failure at the last message shows */
#define LONG_IN_USE_NS 11000000000u /* what is lost after that is tried again at once */

enum kind { PORT_DOWN, QP_ERROR, DEVICE_FATAL };
static const char *const kinds[] = {"port down", "QP error", "device fatal"};

/* One run, in a process of its own: failures at message `first` and at each stride-th behind it. */
struct task {
  enum kind kind;
  int rails;
  long first, stride;
  bool twice; /* another rail fails before the first failure is over */
  uint64_t seed;
  long failures; /* back from the child */
  bool over;
};

static struct task task;
static struct pipes *parent;
static struct kit_rng rng;
static uint32_t below(uint32_t n) { return kit_rng_below(&rng, n); }

/* ---- failures ----------------------------------------------------------------------------------- */

static struct {
  long next;       /* the message at which the next one is */
  bool open;       /* the latest one is not over */
  int lost_before; /* it: queue pairs of both sides */
  int quiet;       /* looks since it seems to be over */
  int rail;        /* of it, where that is known */
  uint32_t second; /* steps to the second one; 0: none is to come */
  struct {
    bool is_down;   /* or will be */
    bool flaps;     /* it comes up, so many steps later, before or after the loss was reported */
    uint32_t steps;
  } ports[2 * RUN_RAILS];
} failure;

/* Statement `what` when the n-th request from now on begins; 0: now. */
__attribute__((format(printf, 2, 3))) static void arm(uint32_t n, const char *format, ...) {
  char what[64], text[96];
  va_list ap;
  va_start(ap, format);
  vsnprintf(what, sizeof what, format, ap);
  va_end(ap);
  snprintf(text, sizeof text, n ? "at %u %s" : "%.0u%s", n, what); // NOLINT
  emu_do(text);
}

/* A request later than the next one or two may be one of either side, of data or of a CTS. */
static void fail(uint32_t request) {
  static const char *const status[] = {"retry_exc_err", "rem_op_err", "fatal_err"};
  /* another rail than the latest, of either side; of devices one that is left */
  if (task.kind == DEVICE_FATAL) failure.rail = (int)(task.failures % task.rails);
  else if (task.rails > 1) failure.rail = (failure.rail + 1 + (int)below((uint32_t)task.rails - 1)) % task.rails;
  const int device = failure.rail + (below(2) ? task.rails : 0);
  const uint32_t way = below(task.rails > 1 ? 4 : 3); /* the last queue pair may be one for flushes */
  if (task.kind == DEVICE_FATAL) {
    arm(request, "fatal emu%d", device);
  } else if (task.kind == QP_ERROR && (way == 3 || !request)) {
    arm(request, "qp_error qp=last");
  } else if (task.kind == QP_ERROR) {
    arm(0, "complete %s from=%u", status[way], request);
  } else {
    arm(request, "port emu%d 1 state=down", device);
    failure.ports[device].is_down = true;
    failure.ports[device].flaps = below(8) == 0;
    failure.ports[device].steps = below(20);
  }
  task.failures++;
}

static void before_send(long message) {
  if (message % 256 == 0) pipe_write(parent, &task, sizeof task); /* it gets on, however slow the machine is */
  if (message != failure.next || message >= MESSAGES) return;
  fail(1 + below(6));
  failure.open = true;
  failure.quiet = 0;
  failure.lost_before = atomic_load(&run_.lost);
  failure.next += task.stride;
  if (!task.twice) return;
  if (below(2)) fail(1 + below(12)); /* maybe a request that is made again */
  else failure.second = 1 + below(below(2) ? 16 : 64);
}

static void bring_up_ports(void) {
  for (int i = 0; i < 2 * task.rails; i++) {
    if (!failure.ports[i].is_down || !atomic_load(&run_.port_down[i])) continue;
    if (!failure.ports[i].flaps && atomic_load(&run_.lost) == failure.lost_before) continue;
    if (failure.ports[i].steps-- > 0) continue;
    arm(0, "port emu%d 1 state=active", i);
    failure.ports[i].is_down = false;
  }
}

static bool all_ports_up(void) {
  for (int i = 0; i < 2 * task.rails; i++)
    if (failure.ports[i].is_down) return false;
  return true;
}

/* A port that flaps may be up before anybody has lost anything. */
static bool is_over(void) {
  const int lost = atomic_load(&run_.lost);
  if (failure.second || !all_ports_up()) return false;
  if (task.kind != PORT_DOWN && lost < failure.lost_before + 2) return false;
  return task.kind == DEVICE_FATAL || lost == atomic_load(&run_.returned);
}

/* One step of what follows a failure. Where it seems to be over the watch thread may not have seen all of it. */
static void go_on(void) {
  if (!failure.open) return;
  const bool noticed = atomic_load(&run_.lost) > failure.lost_before || (task.kind == PORT_DOWN && all_ports_up());
  if (failure.second && noticed && --failure.second == 0) fail(0);
  bring_up_ports();
  if (!is_over()) failure.quiet = 0;
  else if (time_thread_sleeps() && ++failure.quiet == 8) failure.open = false;
  if (failure.open) return;
  emu_do("reset"); /* those that are over */
  time_skip(LONG_IN_USE_NS);
}

/* ---- runs ------------------------------------------------------------------------------------------- */

/* The rest of the window is on its way when the next one comes. */
static long may_send(void) { return failure.open ? failure.next - RUN_WINDOW : END; }

/* Requests are carried out when they are posted, or when completions are polled, some at a time. */
static void open_run(void) {
  static const char *const progress[] = {"post", "poll", "poll burst=1", "poll burst=2"};
  run_open(task.rails);
  arm(0, "progress %s", progress[below(4)]);
  run_.before_send = before_send;
  failure.next = task.first;
}

static void run_over_rails(void) {
  open_run();
  while (run_.send.done < END || run_.recv.done < END) {
    go_on();
    run_step(RAIL_MIN(may_send(), END), END);
    ENSURE(!run_.send.error && !run_.recv.error, "error %d of the sender, %d of the receiver: %s", run_.send.error,
           run_.recv.error, run_.error);
  }
}

/* Both sides get an error, and the line says what to check. */
static void run_over_one_rail(void) {
  open_run();
  while (!run_.send.error || !run_.recv.error) {
    ENSURE(run_.recv.done < END, "nothing has failed at message %ld", task.first);
    run_step(END, END);
  }
  ENSURE(run_.error[0], "no line says what to check");
}

static void child(struct pipes *io, void *arg) {
  task = *(struct task *)arg;
  parent = io;
  rng.state = task.seed;
  setenv("NCCL_IB_TIMEOUT", "14", 1); /* 67 ms */
  if (task.rails > 1) run_over_rails();
  else run_over_one_rail();
  run_close();
  task.over = true;
  pipe_write(io, &task, sizeof task);
}

static long failures;

static void run_child(void *arg) {
  struct task *t = arg;
  struct proc p = proc_start(child, t);
  while (!t->over) pipe_read(&p.io, t, sizeof *t);
  proc_join(&p);
}

static void run(struct task t) {
  char why[512];
  t.seed = kit_rng_next(&rng);
  if (!kit_catch(run_child, &t, why, sizeof why))
    tap_fail_(__FILE__, __LINE__, "%s at %ld and each %ld-th behind it: %s", kinds[t.kind], t.first, t.stride, why);
  failures += t.failures;
}

/* ---- which ones ---------------------------------------------------------------------------------------- */

/* Of `n` runs those of the messages that are asked for, or so many. */
static void run_some(struct task t, long n, long sample) {
  const char *text = getenv("RAIL_TEST_INDICES");
  long first = 0, last = 0;
  const int read = text ? sscanf(text, "%ld-%ld", &first, &last) : 0; // NOLINT
  if (read == 1) last = first;
  if (text) sample = last - first + 1;
  CHECK_MSG(!text || (read >= 1 && first >= 0 && sample >= 1 && last < MESSAGES),
            "RAIL_TEST_INDICES=%s: allowed: N, FIRST-LAST up to %d", text, MESSAGES - 1);
  kit_rng_start(&rng);
  failures = 0;
  t.stride = n;
  sample = RAIL_MIN(sample, n);
  for (long i = 0; i < sample; i++) {
    t.first = text || sample == n ? (first + i) % n : (long)below((uint32_t)n);
    run(t);
  }
  printf("# %ld runs of %s, %ld failures\n", sample, kinds[t.kind], failures);
  CHECK_MSG(last - first + 1 < MESSAGES || failures >= MESSAGES, "not every message had its failure");
}

enum { DEVICE_STRIDE = (MESSAGES + SURVIVED - 1) / SURVIVED };
static long few(long n) { return kit_sanitized() ? (n + 7) / 8 : n; }

TEST(a_port_goes_down) { run_some((struct task){.kind = PORT_DOWN, .rails = 3}, STRIDE, few(4)); }
TEST(a_queue_pair_breaks) { run_some((struct task){.kind = QP_ERROR, .rails = 3}, STRIDE, few(4)); }
TEST(a_device_fails) {
  run_some((struct task){.kind = DEVICE_FATAL, .rails = RUN_RAILS}, DEVICE_STRIDE, few(8));
}
TEST(the_only_port_goes_down) { run_some((struct task){.kind = PORT_DOWN, .rails = 1}, MESSAGES, few(12)); }
TEST(the_only_queue_pair_breaks) { run_some((struct task){.kind = QP_ERROR, .rails = 1}, MESSAGES, few(12)); }
TEST(the_only_device_fails) { run_some((struct task){.kind = DEVICE_FATAL, .rails = 1}, MESSAGES, few(12)); }

/* Another rail fails while what the first one carried is written again, or while it returns. */
TEST(two_ports_go_down) { run_some((struct task){.kind = PORT_DOWN, .rails = 3, .twice = true}, STRIDE, few(2)); }
TEST(two_queue_pairs_break) { run_some((struct task){.kind = QP_ERROR, .rails = 3, .twice = true}, STRIDE, few(2)); }

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(a_port_goes_down), TEST_CASE(a_queue_pair_breaks), TEST_CASE(a_device_fails),
    TEST_CASE(the_only_port_goes_down), TEST_CASE(the_only_queue_pair_breaks), TEST_CASE(the_only_device_fails),
    TEST_CASE(two_ports_go_down), TEST_CASE(two_queue_pairs_break)};
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
