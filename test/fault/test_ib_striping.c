/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 180
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

#define RAILS 3
#define MOST (4 << 20)
#define SHIFTS 61 /* messages begin at different places of the pattern */
#define WINDOW 8
#define BUCKET_MS 50
#define BUCKETS 120

struct scenario {
  const char *striping;
  int first, rails; /* the devices that are fused */
  int mb_s[RAILS];  /* bandwidth of each */
  int window;       /* receives that are posted, sends that are begun */
  size_t size;
  int ms;
  struct { int at_ms, rail, mb_s; } changes[4];
  /* back from the child: */
  double mb_per_s;                        /* of all but the first fifth of the time */
  double rail_mb[BUCKETS][RAILS];         /* that left each port, by time */
  int nbuckets;
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
  char devices[512];
  size_t used = 0;
  ENSURE(rail_path_from_bin(plugin, "../../lib/libnccl-net-ib.so"), "no path");
  ENSURE(rail_path_from_bin(emu, "../../lib/emu/libibverbs.so.1"), "no path");
  if (getenv("X_PLUGIN")) snprintf(plugin, sizeof plugin, "%s", getenv("X_PLUGIN"));
  for (int i = 0; i < 2 * RAILS; i++)
    used += (size_t)snprintf(devices + used, sizeof devices - used, "device emu%d bandwidth=%d;", i,
                             i < RAILS ? s->mb_s[i] : 0);
  setenv("NCCL_IBVERBS_LIB", emu, 1);
  setenv("RAIL_EMU", devices, 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  setenv("RAIL_NET_FUSE_NO_PCI", "1", 1);
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

static void change(struct scenario *s, uint64_t ms) {
  for (size_t i = 0; i < RAIL_COUNT_OF(s->changes); i++) {
    if (!s->changes[i].at_ms || ms < (uint64_t)s->changes[i].at_ms) continue;
    set_bandwidth(s->changes[i].rail, s->changes[i].mb_s);
    s->changes[i].at_ms = 0;
  }
}

static void child(struct pipes *io, void *arg) {
  struct scenario *s = arg;
  struct flow f = {0};
  for (size_t i = 0; i < sizeof out; i++) out[i] = (uint8_t)(i * 7 + (i >> 7) + (i >> 13));
  open_connection(s);
  f.send_mh = kit_mr_reg(&net, pair.send, out, sizeof out);
  f.recv_mh = kit_mr_reg(&net, pair.recv, in, sizeof in);
  uint64_t start = rail_now_ns(), counted_from = 0, ms = 0;
  unsigned int before = 0;
  while (ms < (uint64_t)s->ms || f.received != f.recvs_begun || f.sent != f.sends_begun) {
    ms = (rail_now_ns() - start) / 1000000;
    change(s, ms);
    if (ms < (uint64_t)s->ms || f.recvs_begun > f.sends_begun) begin(s, &f);
    finish(s, &f);
    if (!counted_from && ms > (uint64_t)s->ms / 5) counted_from = rail_now_ns(), before = f.received;
  }
  s->mb_per_s = (double)(f.received - before) * (double)s->size * 1e3 / (double)(rail_now_ns() - counted_from);
  kit_mr_dereg(&net, pair.send, f.send_mh);
  kit_mr_dereg(&net, pair.recv, f.recv_mh);
  kit_pair_close(&pair);
  kit_net_close(&net);
  pipe_write(io, s, sizeof *s);
}

static double run(struct scenario *s) {
  struct proc p = proc_start(child, s);
  pipe_read(&p.io, s, sizeof *s);
  proc_join(&p);
  return s->mb_per_s;
}

TEST(x) {
  struct scenario s = {.striping = getenv("X_STRIPING") ? getenv("X_STRIPING") : "rate", .rails = 3, .window = 4, .size = 1 << 20, .ms = 1500};
  if (getenv("X_SIZE")) s.size = (size_t)atoi(getenv("X_SIZE"));
  if (getenv("X_WINDOW")) s.window = atoi(getenv("X_WINDOW"));
  if (getenv("X_RAILS")) s.rails = atoi(getenv("X_RAILS"));
  if (getenv("X_FIRST")) s.first = atoi(getenv("X_FIRST"));
  if (getenv("X_MS")) s.ms = atoi(getenv("X_MS"));
  if (getenv("X_BW")) sscanf(getenv("X_BW"), "%d,%d,%d", &s.mb_s[0], &s.mb_s[1], &s.mb_s[2]);
  printf("# %.1f MB/s\n", run(&s));
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(x)};
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
