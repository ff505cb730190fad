/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 300
 * TEST-SAN: asan tsan
 *
 * Striping by measured rate, of the ib plugin, over three emulated ports whose bandwidths are set, and change while
 * messages go over them. Every byte is checked.
 */
#include <sched.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "kit/kit_stats.h"
#include "test/harness/emu.h"
#include "test/harness/ib_counters.h"
#include "test/harness/ib_rails.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

#define RAILS 3
#define MOST (4 << 20)
#define SHIFTS 61 /* messages begin at different places of the pattern */
#define WINDOW 8
#define LOOK_MS 10 /* between two looks at the counters */
#define LOOKS 800

struct scenario {
  const char *striping;
  int mb_s[RAILS];  /* bandwidth of each rail of the sender */
  int qps;          /* of each rail; 0: one */
  bool split;       /* each message over all of them */
  int window;       /* receives that are posted, sends that are begun */
  size_t size;      /* of a message */
  int ms, counted_from_ms;
  struct { int at_ms, rail, mb_s; } changes[2];
  /* back from the child: */
  double mb_per_s;             /* of what was received from then on */
  int share[LOOKS];            /* of rail 0, in thousandths, by time; -1: not looked */
  uint64_t rail_bytes, bytes;  /* by the counters of all rails; of all messages */
};

static struct kit_net net;
static struct kit_pair pair;
static uint8_t out[MOST + 128 * SHIFTS], in[WINDOW][MOST];

/* ---- a connection ------------------------------------------------------------- */

static void open_connection(const struct scenario *s) {
  char devices[512], qps[16];
  size_t used = 0;
  for (int i = 0; i < 2 * RAILS; i++)
    used += (size_t)snprintf(devices + used, sizeof devices - used, "device emu%d bandwidth=%d;", i,
                             i < RAILS ? s->mb_s[i] : 0);
  emu_use(devices);
  snprintf(qps, sizeof qps, "%d", RAIL_MAX(s->qps, 1));
  setenv("NCCL_IB_QPS_PER_CONNECTION", qps, 1);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", s->split ? "1" : "0", 1);
  setenv("RAIL_IB_STRIPING", s->striping, 1);
  setenv("RAIL_IB_PATH_TIMEOUT", "0", 1); /* these rates are far below a hundredth of the ports' speed */
  rails_connect(&net, &pair, RAILS);
}

/* ---- the run ------------------------------------------------------------------- */

struct flow {
  void *sends[WINDOW], *recvs[WINDOW];
  void *send_mh, *recv_mh;
  unsigned int sent, received, recvs_begun, sends_begun;
};

static uint8_t *bytes_of(unsigned int message) { return out + message % SHIFTS * 128; }

static void begin(const struct scenario *s, struct flow *f) {
  unsigned int r = f->recvs_begun, w = f->sends_begun;
  void *data = in[r % WINDOW], *request = NULL;
  int tag = 7;
  size_t size = s->size;
  if (r - f->received < (unsigned int)s->window) {
    ENSURE_INT(net.vt->irecv(pair.recv, 1, &data, &size, &tag, &f->recv_mh, NULL, &request), 0);
    if (request) f->recvs[f->recvs_begun++ % WINDOW] = request;
  }
  if (w - f->sent >= (unsigned int)s->window) return;
  request = NULL;
  ENSURE_INT(net.vt->isend(pair.send, bytes_of(w), s->size, tag, f->send_mh, NULL, &request), 0);
  if (request) f->sends[f->sends_begun++ % WINDOW] = request;
}

/* In order, as NCCL does. */
static void finish(const struct scenario *s, struct flow *f) {
  int done = 0, size = 0;
  if (f->received != f->recvs_begun) {
    ENSURE_INT(net.vt->test(f->recvs[f->received % WINDOW], &done, &size), 0);
    if (done) {
      ENSURE_INT(size, s->size);
      ENSURE(memcmp(in[f->received % WINDOW], bytes_of(f->received), s->size) == 0, "message %u is wrong", f->received);
      f->received++;
    }
  }
  done = 0;
  if (f->sent != f->sends_begun) ENSURE_INT(net.vt->test(f->sends[f->sent % WINDOW], &done, &size), 0);
  f->sent += (unsigned int)done;
}

static void look_at_share(struct scenario *s, uint64_t ms) {
  uint64_t shares[RAILS] = {0};
  size_t i = ms / LOOK_MS;
  if (i >= LOOKS || s->share[i] >= 0) return;
  if (rails_look("share_permille", shares, RAILS) == RAILS) s->share[i] = (int)shares[0];
}

static void set_bandwidth(int device, int mb_s) {
  char text[64];
  snprintf(text, sizeof text, "port emu%d 1 bandwidth=%d", device, mb_s);
  emu_do(text);
}

static void change(struct scenario *s, uint64_t ms) {
  for (size_t i = 0; i < RAIL_COUNT_OF(s->changes); i++) {
    if (!s->changes[i].at_ms || ms < (uint64_t)s->changes[i].at_ms) continue;
    set_bandwidth(s->changes[i].rail, s->changes[i].mb_s);
    s->changes[i].at_ms = 0;
  }
}

static void transfer(struct scenario *s, struct flow *f) {
  uint64_t start = rail_now_ns(), counted_from = 0, ms = 0;
  unsigned int before = 0;
  while (ms < (uint64_t)s->ms || f->received != f->recvs_begun || f->sent != f->sends_begun) {
    ENSURE(ms < kit_patience_ms(60000), "%u sent, %u received", f->sent, f->received);
    ms = (rail_now_ns() - start) / 1000000;
    change(s, ms);
    if (ms < (uint64_t)s->ms || f->recvs_begun > f->sends_begun) begin(s, f);
    finish(s, f);
    look_at_share(s, ms);
    if (counted_from || ms < (uint64_t)s->counted_from_ms) continue;
    counted_from = rail_now_ns();
    before = f->received;
  }
  s->mb_per_s = (double)(f->received - before) * (double)s->size * 1e3 / (double)(rail_now_ns() - counted_from);
  s->bytes = f->received * s->size;
}

static void child(struct pipes *io, void *arg) {
  struct scenario *s = arg;
  uint64_t bytes[RAILS] = {0};
  struct flow f = {0};
  for (size_t i = 0; i < sizeof out; i++) out[i] = (uint8_t)(i * 7 + (i >> 7) + (i >> 13));
  for (size_t i = 0; i < LOOKS; i++) s->share[i] = -1;
  open_connection(s);
  f.send_mh = kit_mr_reg(&net, pair.send, out, sizeof out);
  f.recv_mh = kit_mr_reg(&net, pair.recv, in, sizeof in);
  transfer(s, &f);
  for (int i = rails_look("bytes", bytes, RAILS) - 1; i >= 0; i--) s->rail_bytes += bytes[i];
  kit_mr_dereg(&net, pair.send, f.send_mh);
  kit_mr_dereg(&net, pair.recv, f.recv_mh);
  kit_pair_close(&pair);
  kit_net_close(&net);
  pipe_write(io, s, sizeof *s);
}

/* In a process of its own: parameters are read once. Returns MB/s. */
static double run(struct scenario *s) {
  struct proc p = proc_start(child, s);
  pipe_read(&p.io, s, sizeof *s);
  proc_join(&p);
  return s->mb_per_s;
}

/* ---- cases ----------------------------------------------------------------------- */

/* Other programs take the processors for half a second now and then. A case that asks for speed counts the best of
 * several runs. */
#define TRIES 12

/* A sanitizer's speed says little: less is asked of it, and it has more time. */
static double asked(double part) { return kit_sanitized() ? part / 2 : part; }
static int patience(int ms) { return kit_sanitized() ? 2 * ms : ms; }

/* MB/s of all three rails. Of what they carry a fiftieth is the device's headers. */
static double capacity(int slow_mb_s, int mb_s) { return 0.98 * (slow_mb_s + 2 * mb_s); }

static double three(const char *striping, int slow_mb_s, int mb_s, int qps, bool split) {
  struct scenario s = {.striping = striping, .mb_s = {slow_mb_s, mb_s, mb_s}, .qps = qps, .split = split,
                       .window = WINDOW, .size = 128 << 10, .ms = 1600, .counted_from_ms = 600};
  double rate = run(&s);
  if (strcmp(striping, "rate") == 0)
    CHECK_MSG(s.rail_bytes == s.bytes, "%" PRIu64 " bytes in the rails' counters, %" PRIu64 " in messages",
              s.rail_bytes, s.bytes);
  return rate;
}

/* One rail has a tenth of the speed of the other two. */
static bool adds_up(double mb_per_s) { return mb_per_s >= asked(0.9) * capacity(2, 20); }

static void add_up(int qps, bool split) {
  double best = 0;
  for (int i = 0; i < TRIES && !adds_up(best); i++) {
    double rate = three("rate", 2, 20, qps, split);
    printf("# %.1f MB/s of %.1f\n", rate, capacity(2, 20));
    best = RAIL_MAX(best, rate);
  }
  CHECK_MSG(adds_up(best), "%.1f MB/s", best);
}

TEST(a_slow_rail_adds_what_it_has) { add_up(1, false); }
TEST(with_queue_pairs_that_take_turns) { add_up(4, false); }
TEST(with_messages_over_all_queue_pairs) { add_up(4, true); }

/* The test sees the difference: with equal parts the slow rail sets the pace. */
TEST(equal_parts_wait_for_the_slow_rail) {
  double rate = three("equal", 2, 20, 1, false);
  CHECK_MSG(!adds_up(rate), "%.1f MB/s", rate);
}

/* A run that makes up for a pause before it counts may exceed what the ports carry. */
static bool loses_nothing(double rate, double equal) { return rate >= asked(0.98) * RAIL_MIN(equal, capacity(10, 10)); }

TEST(equal_rails_lose_nothing) {
  double equal = 0, rate = 0;
  for (int i = 0; i < TRIES && !(i && loses_nothing(rate, equal)); i++) {
    equal = RAIL_MAX(equal, three("equal", 10, 10, 1, false));
    rate = RAIL_MAX(rate, three("rate", 10, 10, 1, false));
    printf("# %.2f MB/s with equal parts, %.2f by rate\n", equal, rate);
  }
  CHECK_MSG(loses_nothing(rate, equal), "%.2f MB/s by rate, %.2f with equal parts", rate, equal);
}

/* Milliseconds from `from` until the share of rail 0 is in [lo, hi]; -1: never. */
static int ms_until(const struct scenario *s, int from, int lo, int hi) {
  for (int i = from / LOOK_MS; i < LOOKS; i++)
    if (s->share[i] >= lo && s->share[i] <= hi) return i * LOOK_MS - from;
  return -1;
}

static bool in_time(int ms) { return ms >= 0 && ms < patience(1000); }

TEST(a_rail_turns_slow_and_recovers) {
  const int slow_at = 300, well_at = slow_at + patience(1000);
  int slower = -1, again = -1;
  for (int i = 0; i < TRIES && !(in_time(slower) && in_time(again)); i++) {
    struct scenario s = {.striping = "rate", .mb_s = {10, 10, 10}, .window = WINDOW, .size = 64 << 10,
                         .ms = well_at + patience(1000), .changes = {{slow_at, 0, 1}, {well_at, 0, 10}}};
    double rate = run(&s);
    slower = ms_until(&s, slow_at, 30, 100);
    again = ms_until(&s, well_at, 250, 400);
    printf("# %.1f MB/s; %d ms until the slow rail had its share, %d ms until it had its old one again\n", rate, slower,
           again);
  }
  CHECK_MSG(in_time(slower) && in_time(again), "%d ms, %d ms", slower, again);
}

/* So slow that it has no part of a message: it is tried now and then. */
TEST(a_rail_without_a_share_is_found_again) {
  const int well_at = patience(1000);
  int slow = -1, again = -1;
  for (int i = 0; i < TRIES && !(in_time(slow) && in_time(again)); i++) {
    struct scenario s = {.striping = "rate", .mb_s = {1, 100, 100}, .window = 1, .size = 24 << 10,
                         .ms = well_at + patience(1000), .changes = {{well_at, 0, 100}}};
    double rate = run(&s);
    slow = ms_until(&s, 0, 0, 30);
    again = ms_until(&s, well_at, 200, 500);
    printf("# %.1f MB/s; %d ms until it had no share, %d ms until it had one again\n", rate, slow, again);
  }
  CHECK_MSG(in_time(slow) && in_time(again), "%d ms, %d ms", slow, again);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(a_slow_rail_adds_what_it_has), TEST_CASE(with_queue_pairs_that_take_turns),
    TEST_CASE(with_messages_over_all_queue_pairs), TEST_CASE(equal_parts_wait_for_the_slow_rail),
    TEST_CASE(equal_rails_lose_nothing), TEST_CASE(a_rail_turns_slow_and_recovers),
    TEST_CASE(a_rail_without_a_share_is_found_again)};
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
