/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 300
 * TEST-SAN: asan tsan
 *
 * Striping by measured rate, of the ib plugin, over three emulated ports whose bandwidths are set, and change while
 * messages go over them. Every byte is checked.
 */
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "loader/install_dirs.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"
#include "tools/rail-stat/stats_read.h"

#define RAILS 3
#define MOST (4 << 20)
#define SHIFTS 61 /* messages begin at different places of the pattern */
#define WINDOW 8
#define LOOK_MS 10 /* between two looks at the counters */
#define LOOKS 800
#define TRIES 5    /* other programs take the processors for half a second now and then */

struct scenario {
  const char *striping;
  int first, rails; /* the devices that are fused */
  int mb_s[RAILS];  /* bandwidth of each */
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

/* ---- the emulated device ----------------------------------------------------- */

static void *emu_symbol(const char *name) {
  void *library = dlopen(getenv("NCCL_IBVERBS_LIB"), RTLD_NOW | RTLD_NOLOAD);
  void *symbol = library ? dlsym(library, name) : NULL;
  ENSURE(symbol, "%s: %s", name, dlerror());
  return symbol;
}

static void set_bandwidth(int device, int mb_s) {
  int (*command)(const char *);
  char text[64];
  void *symbol = emu_symbol("rail_emu_command");
  memcpy(&command, &symbol, sizeof command);
  snprintf(text, sizeof text, "port emu%d 1 bandwidth=%d", device, mb_s);
  ENSURE(command(text) == 0, "%s: the device does not understand it", text);
}

/* ---- a connection ------------------------------------------------------------- */

static int fused(int first, int n) {
  struct rail_net_vprops_v12 props = {.ndevs = n};
  int dev = -1;
  for (int i = 0; i < n; i++) props.devs[i] = first + i;
  if (n == 1) return first;
  ENSURE_INT(net.vt->make_vdevice(&dev, &props), 0);
  return dev;
}

static void open_connection(const struct scenario *s) {
  static char plugin[4096], emu[4096];
  char devices[512], qps[16];
  size_t used = 0;
  ENSURE(rail_path_from_bin(plugin, "../../lib/libnccl-net-ib.so"), "no path");
  ENSURE(rail_path_from_bin(emu, "../../lib/emu/libibverbs.so.1"), "no path");
  for (int i = 0; i < 2 * RAILS; i++)
    used += (size_t)snprintf(devices + used, sizeof devices - used, "device emu%d bandwidth=%d;", i,
                             i < RAILS ? s->mb_s[i] : 0);
  setenv("NCCL_IBVERBS_LIB", emu, 1);
  setenv("RAIL_EMU", devices, 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("RAIL_NET_FUSE_NO_PCI", "1", 1);
  snprintf(qps, sizeof qps, "%d", RAIL_MAX(s->qps, 1));
  setenv("NCCL_IB_QPS_PER_CONNECTION", qps, 1);
  setenv("NCCL_IB_SPLIT_DATA_ON_QPS", s->split ? "1" : "0", 1);
  setenv("RAIL_IB_STRIPING", s->striping, 1);
  kit_net_target(plugin, 12, 0);
  kit_net_open(&net);
  memset(&pair, 0, sizeof pair);
  pair.net = &net;
  int sender = fused(s->first, s->rails);
  net.dev = fused(RAILS + s->first, s->rails);
  pair.listen = kit_net_listen(&net, pair.handle);
  net.dev = sender;
  kit_pair_connect(&pair);
  ENSURE_INT(net.vt->close_listen(pair.listen), 0);
  pair.listen = NULL;
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

/* The records of this sender's rails: the values of a counter. Returns how many. */
static int look(const char *counter, uint64_t values[RAILS]) {
  char file[64], why[256];
  int n = 0;
  snprintf(file, sizeof file, RAIL_STATS_PREFIX "%d.RailIB", (int)getpid());
  struct rail_stats_view *v = rail_stats_read(RAIL_STATS_DIR, file, why, sizeof why);
  ENSURE(v, "%s", why);
  for (uint32_t g = 0; g < v->ngroups; g++)
    for (uint32_t r = 0; strcmp(v->groups[g].name, "rail") == 0 && r < v->groups[g].nrecords; r++, n++) {
      ENSURE(n < RAILS, "%u records of rails", v->groups[g].nrecords);
      for (uint32_t c = 0; c < v->groups[g].ncounters; c++)
        if (strcmp(v->groups[g].counters[c].name, counter) == 0) values[n] = v->groups[g].records[r].values[c];
    }
  rail_stats_view_free(v);
  return n;
}

static void look_at_share(struct scenario *s, uint64_t ms) {
  uint64_t shares[RAILS];
  size_t i = ms / LOOK_MS;
  if (i < LOOKS && s->share[i] < 0 && look("share_permille", shares) == RAILS) s->share[i] = (int)shares[0];
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
  for (int i = look("bytes", bytes) - 1; i >= 0; i--) s->rail_bytes += bytes[i];
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

#define SIZE (512 << 10)

static double alone(int rail, int mb_s) {
  struct scenario s = {.striping = "rate", .first = rail, .rails = 1, .window = WINDOW, .size = SIZE, .ms = 1500};
  s.mb_s[rail] = mb_s;
  return run(&s);
}

static double three(const char *striping, int slow_mb_s, int mb_s, int qps, bool split) {
  struct scenario s = {.striping = striping, .rails = RAILS, .mb_s = {slow_mb_s, mb_s, mb_s}, .qps = qps,
                       .split = split, .window = WINDOW, .size = SIZE, .ms = 5000, .counted_from_ms = 2000};
  double rate = run(&s);
  if (strcmp(striping, "rate") == 0)
    CHECK_MSG(s.rail_bytes == s.bytes, "%" PRIu64 " bytes in the rails' counters, %" PRIu64 " in messages",
              s.rail_bytes, s.bytes);
  return rate;
}

/* One rail has a tenth of the speed of the other two. */
static void add_up(int qps, bool split) {
  double best = 0;
  for (int i = 0; i < TRIES && best < 0.9; i++) {
    double sum = alone(0, 1) + 2 * alone(1, 10), together = three("rate", 1, 10, qps, split);
    printf("# %.1f MB/s together, the sum of each alone is %.1f\n", together, sum);
    best = RAIL_MAX(best, together / sum);
  }
  CHECK_MSG(best >= 0.9, "%.2f of the sum", best);
}

TEST(a_slow_rail_adds_what_it_has) { add_up(1, false); }
TEST(with_queue_pairs_that_take_turns) { add_up(4, false); }
TEST(with_messages_over_all_queue_pairs) { add_up(4, true); }

/* The test sees the difference: with equal parts the slow rail sets the pace. */
TEST(equal_parts_wait_for_the_slow_rail) {
  double rate = three("equal", 1, 10, 1, false);
  printf("# %.1f MB/s\n", rate);
  CHECK_MSG(rate < 5, "%.1f MB/s", rate);
}

TEST(equal_rails_lose_nothing) {
  double best = 0;
  for (int i = 0; i < TRIES && best < 0.98; i++) {
    double equal = three("equal", 10, 10, 1, false), rate = three("rate", 10, 10, 1, false);
    printf("# %.2f MB/s with equal parts, %.2f by rate\n", equal, rate);
    best = RAIL_MAX(best, rate / equal);
  }
  CHECK_MSG(best >= 0.98, "%.3f of it", best);
}

/* Milliseconds from `from` until the share of rail 0 is in [lo, hi]; -1: never. */
static int ms_until(const struct scenario *s, int from, int lo, int hi) {
  for (int i = from / LOOK_MS; i < LOOKS; i++)
    if (s->share[i] >= lo && s->share[i] <= hi) return i * LOOK_MS - from;
  return -1;
}

TEST(a_rail_turns_slow_and_recovers) {
  int slower = -1, again = -1;
  for (int i = 0; i < TRIES && (slower < 0 || slower > 1000 || again < 0); i++) {
    struct scenario s = {.striping = "rate", .rails = RAILS, .mb_s = {10, 10, 10}, .window = WINDOW, .size = 128 << 10,
                         .ms = 6000, .changes = {{2000, 0, 1}, {4000, 0, 10}}};
    double rate = run(&s);
    slower = ms_until(&s, 2000, 30, 100);
    again = ms_until(&s, 4000, 250, 400);
    printf("# %.1f MB/s; %d ms until the slow rail had its share, %d ms until it had its old one again\n", rate, slower,
           again);
  }
  CHECK_MSG(slower >= 0 && slower <= 1000, "%d ms", slower);
  CHECK_MSG(again >= 0 && again <= 1000, "%d ms", again);
}

/* So slow that it has no part of a message: it is tried now and then. */
TEST(a_rail_without_a_share_is_found_again) {
  int slow = -1, again = -1;
  for (int i = 0; i < TRIES && (slow < 0 || slow > 2000 || again < 0); i++) {
    struct scenario s = {.striping = "rate", .rails = RAILS, .mb_s = {1, 100, 100}, .window = 1, .size = 24 << 10,
                         .ms = 4000, .changes = {{2000, 0, 100}}};
    double rate = run(&s);
    slow = ms_until(&s, 0, 0, 30);
    again = ms_until(&s, 2000, 200, 500);
    printf("# %.1f MB/s; %d ms until it had no share, %d ms until it had one again\n", rate, slow, again);
  }
  CHECK_MSG(slow >= 0 && slow < 2000 && again >= 0, "%d ms, %d ms", slow, again);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(a_slow_rail_adds_what_it_has), TEST_CASE(with_queue_pairs_that_take_turns),
    TEST_CASE(with_messages_over_all_queue_pairs), TEST_CASE(equal_parts_wait_for_the_slow_rail),
    TEST_CASE(equal_rails_lose_nothing), TEST_CASE(a_rail_turns_slow_and_recovers),
    TEST_CASE(a_rail_without_a_share_is_found_again)};
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
