/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 300
 * TEST-SAN: asan tsan
 *
 * The ib plugin on the emulated device outlives what takes a part of its queue pairs: a run of messages of all sizes
 * over devices fused from three, in which something fails when the i-th work request begins, for every STEP-th i. Every
 * byte is checked; a sender's buffer is overwritten as soon as its send is done, and a receiver's is looked at again at
 * the end, so that what is written or read late shows. The run goes on until both sides have reported the loss, where
 * ports come up again until the queue pairs are in use again, and then once more. RAIL_TEST_STEP=1 takes every i;
 * RAIL_TEST_FAULTS='at 61 port emu1 1 state=down' is one of them, in the case these_faults.
 */
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "kit/kit_stats.h"
#include "test/harness/emu.h"
#include "test/harness/ib_counters.h"
#include "test/harness/ib_rails.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

#define MESSAGES 40
#define WINDOW 9  /* receives that are posted, sends that are begun */
#define MOST 60000
#define RAILS 3
#define LATE 0xdd

static const size_t sizes[] = {8, 60000, 0, 4096, 1, 30000, 129, 9000, 2048, 50000, 300};

enum kind {
  PORT,
  DEVICE,
  QUEUE_PAIR, /* a request is not carried out, and its queue pair breaks */
  ANSWERS,    /* what arrives is lost, acknowledgements too: the peer has what this side does not know of */
};

/* Begun when so many queue pairs are lost: a port that comes up by a count of requests may do so before its loss. */
struct follow { int lost; char faults[256]; };

struct scenario {
  char faults[512];
  struct follow follows[2];
  int qps_per_rail;
  bool patient; /* a port may be down for a minute, and the device tries for seconds */
  bool ends; /* every rail is lost: both sides get an error */
  int least_lost; /* queue pairs, of both sides: the run goes on until so many are reported */
  long returns; /* what is lost comes back; the run is so many requests long at least */
  bool looks; /* at the rails' shares, until they differ */
  /* back from the child */
  bool differed; /* before anything was lost */
  long requests;
  int switches, lost, returned; /* losses that were reported; queue pairs of both sides */
  int by_cm, by_events; /* sides whose queue pairs the RDMA CM has set up; whose tests wait for events */
  uint64_t slowest_ns; /* from the last port that came up to a return */
};

static struct kit_net net;
static struct kit_pair pair;
static uint8_t out[WINDOW][MOST], in[MESSAGES][MOST + 64];
static atomic_int switches, lost, returned, by_cm, by_events;
static _Atomic uint64_t last_up, slowest;

/* ---- a connection ------------------------------------------------------------- */

static void count_warning(const char *text) {
  const char *line = strstr(text, "goes on without ");
  if (!line) return;
  atomic_fetch_add(&lost, atoi(line + strlen("goes on without ")));
  atomic_fetch_add(&switches, 1);
}

static void count_info(const char *text) {
  if (strstr(text, ", by the RDMA CM")) atomic_fetch_add(&by_cm, 1);
  if (strstr(text, ", waits for events")) atomic_fetch_add(&by_events, 1);
  if (strstr(text, "is up again after")) atomic_store(&last_up, rail_now_ns());
  if (!strstr(text, "is in use again")) return;
  uint64_t up = atomic_load(&last_up), ns = up ? rail_now_ns() - up : 0;
  if (ns > atomic_load(&slowest)) atomic_store(&slowest, ns);
  atomic_fetch_add(&returned, 1);
}

static void open_connection(const struct scenario *s) {
  char qps[16], devices[256];
  size_t used = 0;
  snprintf(qps, sizeof qps, "%d", s->qps_per_rail);
  /* With short send queues a part is posted piece by piece, and losses come between the pieces. */
  for (int i = 0; i < 2 * RAILS; i++)
    used += (size_t)snprintf(devices + used, sizeof devices - used, "device emu%d %s;", i,
                             i < RAILS && s->qps_per_rail == 1 ? "max_qp_wr=6" : "");
  emu_use(devices);
  setenv("NCCL_IB_TIMEOUT", s->patient ? "18" : "8", 1); /* a second, or a millisecond */
  setenv("NCCL_IB_RETRY_CNT", s->patient ? "7" : "2", 1);
  setenv("NCCL_IB_QPS_PER_CONNECTION", qps, 1);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", "1", 1);
  setenv("RAIL_IB_PORT_GRACE", s->patient ? "60s" : "0", 1);
  setenv("RAIL_IB_MAX_WRITE", "4096", 1);
  setenv("RAIL_IB_MIN_PART", "1024", 1);
  kit_net_on_warning(count_warning);
  kit_net_on_info(count_info);
  rails_connect(&net, &pair, RAILS);
}

/* ---- the run ------------------------------------------------------------------- */

static uint8_t byte_of(int message, size_t i) { return (uint8_t)(message * 37 + (int)(i * 7) + (int)(i >> 8)); }
static size_t size_of(int message) { return sizes[(size_t)message % RAIL_COUNT_OF(sizes)]; }

static void check_received(int message, int size) {
  ENSURE_INT(size, size_of(message));
  for (size_t i = 0; i < MOST + 64; i++) {
    uint8_t expected = i < size_of(message) ? byte_of(message, i) : 0xee;
    ENSURE(in[message][i] == expected, "message %d of %zu bytes: byte %zu is %#x, expected %#x", message,
           size_of(message), i, in[message][i], expected);
  }
  memset(in[message], LATE, sizeof in[message]); /* the caller's again */
}

/* How far each side is: requests are tested in turn. */
struct side { void *requests[MESSAGES], *mh; int begun, done, error; };

/* One call for each that is outstanding. */
static void test_all(struct side *side, bool sends) {
  for (int i = 0; i < side->begun && !side->error; i++) {
    int done = 0, size = -1;
    if (!side->requests[i]) continue;
    side->error = net.vt->test(side->requests[i], &done, &size);
    ENSURE(!done || !side->error, "done, with error %d", side->error);
    if (!done) continue;
    side->requests[i] = NULL;
    side->done++;
    if (sends) memset(out[i % WINDOW], 0x11, MOST); /* the caller's again: what is read now is wrong */
    else check_received(i, size);
  }
}

static int outstanding(const struct side *side) { return side->begun - side->done; }

static void begin_recv(struct side *r) {
  int i = r->begun, tag = i;
  void *data = in[i], *request = NULL;
  size_t size = size_of(i) + (i % 3 ? 0 : 40);
  if (r->error || i == MESSAGES || outstanding(r) >= WINDOW) return;
  memset(in[i], 0xee, sizeof in[i]);
  r->error = net.vt->irecv(pair.recv, 1, &data, &size, &tag, &r->mh, NULL, &request);
  if (!request) return;
  r->requests[i] = request;
  r->begun++;
}

static void begin_send(struct side *s) {
  int i = s->begun;
  void *request = NULL;
  if (s->error || i == MESSAGES || (i >= WINDOW && s->requests[i - WINDOW])) return;
  for (size_t b = 0; b < size_of(i); b++) out[i % WINDOW][b] = byte_of(i, b);
  s->error = net.vt->isend(pair.send, out[i % WINDOW], size_of(i), i, s->mh, NULL, &request);
  if (!request) return;
  s->requests[i] = request;
  s->begun++;
}

static void close_side(struct side *side, void **comm, bool sends) {
  if (!*comm) return;
  kit_mr_dereg(&net, *comm, side->mh);
  ENSURE_INT(sends ? net.vt->close_send(*comm) : net.vt->close_recv(*comm), 0);
  *comm = NULL;
}

static void begin_follows(struct scenario *sc) {
  for (size_t i = 0; i < RAIL_COUNT_OF(sc->follows); i++) {
    struct follow *f = &sc->follows[i];
    if (!f->lost || atomic_load(&lost) < f->lost) continue;
    emu_do(f->faults);
    f->lost = 0;
  }
}

static void look_at_shares(struct scenario *sc) {
  uint64_t shares[RAILS] = {0};
  if (!sc->looks || sc->differed || rails_look("share_permille", shares, RAILS) != RAILS) return;
  sc->differed = atomic_load(&lost) == 0 && shares[2] * 2 < shares[0] && shares[2] * 2 < shares[1];
}

/* All messages once; then it is both sides' end, or the next begins. */
static void exchange_all(struct scenario *sc, struct side *s, struct side *r, uint64_t deadline) {
  *s = (struct side){.mh = s->mh};
  *r = (struct side){.mh = r->mh};
  while (sc->ends ? !s->error || !r->error : s->done < MESSAGES || r->done < MESSAGES) {
    ENSURE(!rail_deadline_passed(deadline), "%d of %d sends, %d of %d receives are done", s->done, s->begun, r->done,
           r->begun);
    ENSURE(sc->ends || (!s->error && !r->error), "error %d of the sender, %d of the receiver", s->error, r->error);
    look_at_shares(sc);
    begin_follows(sc);
    begin_recv(r);
    begin_send(s);
    test_all(r, false);
    test_all(s, true);
    sched_yield();
    if (s->error) close_side(s, &pair.send, true); /* as NCCL does, and the other side learns of it */
    if (r->error) close_side(r, &pair.recv, false);
  }
}

static bool cm_is_asked_for(void) { return getenv("RAIL_IB_CM") != NULL; }

/* What the RDMA CM has set up never does: a second after its port has come up nothing has. */
static bool all_is_back(void) {
  uint64_t up = atomic_load(&last_up);
  if (cm_is_asked_for()) return up && rail_now_ns() - up > 1000000000u;
  return atomic_load(&returned) >= atomic_load(&lost);
}

static bool is_over(const struct scenario *sc, long requests) {
  return atomic_load(&lost) >= sc->least_lost && (!sc->returns || (requests >= sc->returns && all_is_back()));
}

static void exchange(struct scenario *sc) {
  struct side s = {.mh = kit_mr_reg(&net, pair.send, out, sizeof out)};
  struct side r = {.mh = kit_mr_reg(&net, pair.recv, in, sizeof in)};
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(60000));
  long before = emu_calls("post_send");
  emu_do(sc->faults);
  exchange_all(sc, &s, &r, deadline);
  sc->requests = emu_calls("post_send") - before;
  while (!is_over(sc, emu_calls("post_send") - before)) {
    ENSURE(!rail_deadline_passed(deadline), "%d queue pairs are lost, %d in use again", atomic_load(&lost),
           atomic_load(&returned));
    exchange_all(sc, &s, &r, deadline);
  }
  if (sc->returns) exchange_all(sc, &s, &r, deadline);
  close_side(&s, &pair.send, true);
  close_side(&r, &pair.recv, false);
  for (int i = 0; i < r.begun; i++)
    for (size_t b = 0; b < sizeof in[i] && !r.requests[i]; b++)
      ENSURE(in[i][b] == LATE, "message %d: byte %zu was written after it was done", i, b);
}

static void child(struct pipes *io, void *arg) {
  struct scenario *s = arg;
  open_connection(s);
  exchange(s);
  kit_net_close(&net);
  s->switches = atomic_load(&switches);
  s->lost = atomic_load(&lost);
  s->returned = atomic_load(&returned);
  s->by_cm = atomic_load(&by_cm);
  s->by_events = atomic_load(&by_events);
  s->slowest_ns = atomic_load(&slowest);
  pipe_write(io, s, sizeof *s);
}

/* In a process of its own: a device that has failed stays so. */
static void run(struct scenario *s) {
  struct proc p = proc_start(child, s);
  pipe_read(&p.io, s, sizeof *s);
  proc_join(&p);
  CHECK_INT(s->by_cm, cm_is_asked_for() ? 2 : 0);
  CHECK_INT(s->by_events, getenv("RAIL_IB_PROGRESS") ? 2 : 0);
}

/* ---- cases ----------------------------------------------------------------------- */

static long requests_of_a_run(int qps_per_rail) {
  struct scenario s = {.qps_per_rail = qps_per_rail, .faults = "reset"};
  run(&s);
  CHECK_INT(s.switches, 0);
  return s.requests;
}

static long step_of(long usual) {
  const char *text = getenv("RAIL_TEST_STEP");
  long step = text ? atol(text) : kit_sanitized() ? 3 * usual : usual;
  return step > 0 ? step : usual;
}

/* Both sides report the loss. That may take another run, where nothing was on its way over the queue pair, or where
 * this run has fewer requests than the first one. */
static void fail_at_each(enum kind kind, int qps_per_rail, long usual_step) {
  long last = requests_of_a_run(qps_per_rail);
  int turn = 0;
  for (long i = 1; i <= last; i += step_of(usual_step), turn++)
    for (int first = 0; first <= RAILS; first += RAILS) {
      struct scenario s = {.qps_per_rail = qps_per_rail, .least_lost = 2};
      int device = first + turn % RAILS;
      if (kind == PORT) snprintf(s.faults, sizeof s.faults, "at %ld port emu%d 1 state=down", i, device);
      if (kind == DEVICE) snprintf(s.faults, sizeof s.faults, "at %ld fatal emu%d", i, device);
      if (kind == QUEUE_PAIR) snprintf(s.faults, sizeof s.faults, "complete retry_exc_err from=%ld", i);
      if (kind == ANSWERS) snprintf(s.faults, sizeof s.faults, "at %ld port emu%d 1 one_way=1", i, device);
      printf("# %s\n", s.faults);
      run(&s);
      CHECK_MSG(s.lost == 2 && s.switches == 2, "%s: %d queue pairs lost, %d losses", s.faults, s.lost, s.switches);
    }
}

TEST(a_port_goes_down) { fail_at_each(PORT, 1, 29); }
TEST(a_device_fails) { fail_at_each(DEVICE, 1, 29); }
TEST(a_queue_pair_breaks) { fail_at_each(QUEUE_PAIR, 2, 29); }
TEST(acknowledgements_are_lost) { fail_at_each(ANSWERS, 1, 37); }

/* Queue pairs that the RDMA CM has set up are lost as others are, and stay lost. */
TEST(by_the_rdma_cm) {
  struct scenario s = {.qps_per_rail = 1, .returns = 500, .least_lost = 2, .follows = {{.lost = 1}}};
  snprintf(s.faults, sizeof s.faults, "at 30 port emu1 1 state=down");
  snprintf(s.follows[0].faults, sizeof s.follows[0].faults, "at 10 port emu1 1 state=active");
  setenv("RAIL_IB_CM", "rdmacm", 1);
  run(&s);
  CHECK_MSG(s.lost == 2 && s.returned == 0, "%d lost, %d in use again", s.lost, s.returned);
  fail_at_each(PORT, 1, 83);
  fail_at_each(DEVICE, 1, 83);
  fail_at_each(QUEUE_PAIR, 2, 83);
  unsetenv("RAIL_IB_CM");
}

/* Tests wait for completions, and nothing completes over what is lost. */
TEST(while_tests_wait) {
  setenv("RAIL_IB_PROGRESS", "event", 1);
  fail_at_each(PORT, 1, 83);
  fail_at_each(DEVICE, 1, 83);
  fail_at_each(QUEUE_PAIR, 2, 83);
  unsetenv("RAIL_IB_PROGRESS");
}

/* The second one fails while what the first one carried is written again. */
TEST(two_fail_one_after_the_other) {
  long last = requests_of_a_run(1);
  for (long i = 1; i <= last; i += step_of(41))
    for (long more = 0; more < 12; more += getenv("RAIL_TEST_STEP") ? 1 : 4) {
      struct scenario s = {.qps_per_rail = 1, .least_lost = 4};
      int a = (int)(i % RAILS), b = (a + 1 + (int)(more / 2 % 2)) % RAILS; /* a later rail, or an earlier one */
      int side = (int)(i / 3 % 2) * RAILS, other = more % 2 ? RAILS - side : side;
      snprintf(s.faults, sizeof s.faults, "at %ld port emu%d 1 state=down; at %ld port emu%d 1 state=down", i, side + a,
               i + more, other + b);
      printf("# %s\n", s.faults);
      run(&s);
    }
}

/* Down and up again in time: nothing is given up. */
TEST(a_port_comes_back_in_time) {
  for (int device = 0; device <= RAILS; device += RAILS) {
    struct scenario s = {.qps_per_rail = 1, .patient = true};
    snprintf(s.faults, sizeof s.faults, "at 40 port emu%d 1 state=down; at 44 port emu%d 1 state=active", device,
             device);
    run(&s);
    CHECK_INT(s.switches, 0);
  }
}

static int late; /* runs of a case that took more than two seconds to use again what was lost */

/* All that is lost is used again, within two seconds of its port's coming up unless the machine stands still. */
static void comes_back(struct scenario *s, long requests, int least) {
  printf("# %s; %s; %s\n", s->faults, s->follows[0].faults, s->follows[1].faults);
  const bool ports = s->follows[0].lost > 0;
  s->returns = requests;
  s->least_lost = least;
  run(s);
  printf("# %d lost, %d in use again, after %.1f ms\n", s->lost, s->returned, (double)s->slowest_ns / 1e6);
  CHECK_MSG(s->returned >= least && s->returned == s->lost, "%d lost, %d in use again", s->lost, s->returned);
  CHECK_MSG(s->slowest_ns < kit_patience_ms(20000) * 1000000ull, "%.1f ms", (double)s->slowest_ns / 1e6);
  late += s->slowest_ns >= kit_patience_ms(2000) * 1000000ull;
  if (ports) CHECK_MSG(s->slowest_ns > 0, "no port was seen to come up");
}

TEST(a_lost_port_returns) {
  int turn = 0, runs = 0;
  late = 0;
  for (long i = 1; i <= requests_of_a_run(1); i += step_of(43), turn++)
    for (int first = 0; first <= RAILS; first += RAILS) {
      struct scenario s = {.qps_per_rail = 1, .follows = {{.lost = 1}}};
      int device = first + turn % RAILS;
      snprintf(s.faults, sizeof s.faults, "at %ld port emu%d 1 state=down", i, device);
      snprintf(s.follows[0].faults, sizeof s.follows[0].faults, "at %d port emu%d 1 state=active", 1 + 3 * turn,
               device);
      comes_back(&s, 500, 2);
      runs++;
    }
  CHECK_MSG(late <= runs / 4, "%d of %d returns took more than two seconds", late, runs);
}

/* In the middle of its return: the port is up again for some requests only. */
TEST(it_is_lost_while_it_returns) {
  static const int after[] = {1, 3, 8};
  for (size_t a = 0; a < RAIL_COUNT_OF(after); a++)
    for (int device = 1; device <= RAILS + 1; device += RAILS) {
      struct scenario s = {.qps_per_rail = 1, .follows = {{.lost = 1}}};
      snprintf(s.faults, sizeof s.faults, "at 30 port emu%d 1 state=down", device);
      snprintf(s.follows[0].faults, sizeof s.follows[0].faults, "at 10 port emu%d 1 state=active; at %d port emu%d 1 "
               "state=down; at %d port emu%d 1 state=active", device, 10 + after[a], device, 50 + after[a], device);
      comes_back(&s, 500, 2);
    }
}

TEST(it_is_lost_again_long_after_its_return) {
  for (int device = 1; device <= RAILS + 1; device += RAILS) {
    struct scenario s = {.qps_per_rail = 1, .follows = {{.lost = 1}, {.lost = 3}}};
    snprintf(s.faults, sizeof s.faults, "at 30 port emu%d 1 state=down", device);
    snprintf(s.follows[0].faults, sizeof s.follows[0].faults, "at 10 port emu%d 1 state=active; at 10000 port emu%d 1 "
             "state=down", device, device);
    snprintf(s.follows[1].faults, sizeof s.follows[1].faults, "at 10 port emu%d 1 state=active", device);
    comes_back(&s, 10500, 4);
  }
}

/* Another is lost while the first comes back, of the same side or of the other. */
TEST(another_is_lost_during_a_return) {
  for (int after = 0; after < 12; after += getenv("RAIL_TEST_STEP") ? 1 : 3)
    for (int second = 0; second < 2 * RAILS; second += 2) {
      struct scenario s = {.qps_per_rail = 1, .follows = {{.lost = 1}, {.lost = 3}}};
      if (second % RAILS == 1) continue;
      snprintf(s.faults, sizeof s.faults, "at 20 port emu1 1 state=down");
      snprintf(s.follows[0].faults, sizeof s.follows[0].faults, "at 10 port emu1 1 state=active; at %d port emu%d 1 "
               "state=down", 10 + after, second);
      snprintf(s.follows[1].faults, sizeof s.follows[1].faults, "at 10 port emu%d 1 state=active", second);
      comes_back(&s, 500, 4);
    }
}

/* What cannot be made is tried again a second later. */
TEST(a_return_fails_at_first) {
  static const char *const faults[] = {"complete retry_exc_err from=30; fail create_qp errno=EIO",
                                       "complete retry_exc_err from=30; fail modify_qp from=3 errno=EINVAL"};
  for (size_t i = 0; i < RAIL_COUNT_OF(faults); i++) {
    struct scenario s = {.qps_per_rail = 1};
    snprintf(s.faults, sizeof s.faults, "%s", faults[i]);
    comes_back(&s, 500, 2);
  }
}

/* No port says when: the queue pair alone broke. */
TEST(a_broken_queue_pair_returns) {
  for (long i = 1; i < 120; i += 17) {
    struct scenario s = {.qps_per_rail = 2};
    snprintf(s.faults, sizeof s.faults, "complete retry_exc_err from=%ld", i);
    comes_back(&s, 500, 2);
  }
}

/* Of which one has a hundredth of the others' speed: parts are not equal when one is lost. */
TEST(a_slow_rail_beside_those_that_fail) {
  for (int device = 0; device < RAILS; device++) {
    struct scenario s = {.qps_per_rail = 2, .looks = true, .follows = {{.lost = 1}}};
    snprintf(s.faults, sizeof s.faults, "port emu2 1 bandwidth=5; at 600 port emu%d 1 state=down", device);
    snprintf(s.follows[0].faults, sizeof s.follows[0].faults, "at 10 port emu%d 1 state=active", device);
    comes_back(&s, 1300, 4);
    CHECK_MSG(s.differed, "%s: no share was less than another before the loss", s.faults);
  }
}

TEST(these_faults) {
  struct scenario s = {.qps_per_rail = 1};
  const char *faults = getenv("RAIL_TEST_FAULTS");
  if (!faults) tap_skip_case("RAIL_TEST_FAULTS names none");
  snprintf(s.faults, sizeof s.faults, "%s", faults);
  run(&s);
}

/* An error on both sides, and what was done before is right. */
TEST(all_fail) {
  for (long i = 1; i < 60; i += 19) {
    struct scenario s = {.qps_per_rail = 1, .ends = true};
    snprintf(s.faults, sizeof s.faults, "at %ld fatal emu0; at %ld fatal emu1; at %ld fatal emu2", i, i + 2, i + 5);
    run(&s);
  }
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(a_port_goes_down), TEST_CASE(a_device_fails), TEST_CASE(a_queue_pair_breaks),
    TEST_CASE(acknowledgements_are_lost), TEST_CASE(two_fail_one_after_the_other),
    TEST_CASE(a_port_comes_back_in_time), TEST_CASE(a_lost_port_returns), TEST_CASE(it_is_lost_while_it_returns),
    TEST_CASE(it_is_lost_again_long_after_its_return), TEST_CASE(another_is_lost_during_a_return),
    TEST_CASE(a_broken_queue_pair_returns), TEST_CASE(a_return_fails_at_first), TEST_CASE(all_fail),
    TEST_CASE(by_the_rdma_cm),
    TEST_CASE(while_tests_wait), TEST_CASE(a_slow_rail_beside_those_that_fail), TEST_CASE(these_faults)};
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
