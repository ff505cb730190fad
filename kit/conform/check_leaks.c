/* SPDX-License-Identifier: Apache-2.0
 *
 * Item 15, leaks: files, threads and memory stay flat however often something is done; what is idle costs nothing.
 *
 * Growth is judged block by block: a leak grows in every block, a cache or an allocator only in some. */
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

enum { BLOCKS = 5 };

struct levels { int fds, threads; long rss_kb; };

static struct levels levels_now(void) {
  return (struct levels){kit_fd_count(), kit_thread_count(), kit_rss_kb()};
}

/* What is closed may take its time. */
static struct levels settled(const struct levels *before) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(500));
  struct levels now = levels_now();
  while ((now.fds > before->fds || now.threads > before->threads) && !rail_deadline_passed(deadline)) {
    kit_sleep_ms(10);
    now = levels_now();
  }
  return now;
}

/* Does `what` `each` times a block: once to warm up, then BLOCKS times. At most `bytes` each may be lost. */
static void flat(struct kit_process *self, void (*fn)(void *arg, int i), void *arg, int each, size_t bytes,
                 const char *what) {
  int i = 0, fds = 1 << 20, threads = 1 << 20;
  long kb = 1 << 30;
  for (; i < each; i++) fn(arg, i);
  struct levels before = levels_now();
  long first = before.rss_kb;
  for (int block = 0; block < BLOCKS; block++) {
    for (int k = 0; k < each; k++) fn(arg, i++);
    struct levels now = settled(&before);
    if (now.fds - before.fds < fds) fds = now.fds - before.fds;
    if (now.threads - before.threads < threads) threads = now.threads - before.threads;
    if (now.rss_kb - before.rss_kb < kb) kb = now.rss_kb - before.rss_kb;
    bool plain = now.fds - before.fds >= each || now.threads - before.threads >= each; /* one each time */
    before = now;
    if (plain) break;
  }
  kit_metric(self, "resident memory grew", (double)(before.rss_kb - first), "KiB");
  ENSURE(fds <= 0, "after every %d %s at least %d more descriptors are open: the process runs into its limit", each,
         what, fds);
  ENSURE(threads <= 0, "after every %d %s at least %d more threads are there", each, what, threads);
  /* ASan keeps what is freed; there LeakSanitizer decides. */
  ENSURE(kit_sanitized() || (double)kb * 1024 <= (double)bytes * each,
         "after every %d %s at least %ld KiB more memory is in use, in %d blocks one after the other: a leak", each,
         what, kb, BLOCKS);
}

/* ---- what is done over and over ---- */

static void connection(void *arg, int i) {
  struct kit_net *n = arg;
  struct kit_pair p;
  kit_pair_open(n, &p);
  kit_pair_ping(&p, (size_t)(i * 6151) % 70000, (uint64_t)i);
  static uint8_t byte;
  struct kit_op op = kit_op_recv(p.recv, &byte, 1, 0);
  op.mh[0] = kit_mr_reg(n, p.recv, &byte, 1);
  if (i % 3 == 0) kit_op_post(n, &op); /* closed with something outstanding, too */
  kit_mr_dereg(n, p.recv, op.mh[0]);
  kit_pair_close(&p);
}

static void a_thousand_connections(struct kit_process *self) {
  struct kit_net n;
  kit_net_open(&n);
  flat(self, connection, &n, kit_scaled(200), 512, "connections");
  kit_net_close(&n);
}

static void context(void *arg, int i) {
  struct kit_net n;
  (void)arg;
  kit_net_open(&n);
  connection(&n, i);
  kit_net_close(&n);
}

static void a_hundred_contexts(struct kit_process *self) {
  flat(self, context, NULL, kit_scaled(20), 16384, "contexts, made and finalized,");
}

/* To a port that is closed, as of a peer that has died. Some end in an error, some are still being tried when the
 * communicator is given up: the context's own end has to take them with it. */
static void failed_connections_of_a_context(void *arg, int i) {
  struct kit_net n;
  (void)arg;
  kit_net_open(&n);
  for (int k = 0; k < 3; k++) {
    char handle[RAIL_NET_HANDLE_SIZE];
    void *listen = kit_net_listen(&n, handle), *comm = NULL;
    int rc = n.vt->close_listen(listen);
    ENSURE(rc == 0, "closeListen returned %s", kit_rc_text(rc));
    uint64_t deadline = rail_deadline_in_ms(3);
    while (rc == 0 && !comm && !rail_deadline_passed(deadline)) {
      struct rail_net_device_handle *dh = NULL;
      rc = n.vt->connect(n.ctx, n.dev, handle, &comm, &dh);
    }
    ENSURE(!comm, "connect number %d of context %d gave a comm though nobody listens", k, i);
  }
  kit_net_close(&n);
}

static void failed_connections(struct kit_process *self) {
  flat(self, failed_connections_of_a_context, NULL, kit_scaled(10), 16384, "contexts with connections that failed");
}

struct place { struct kit_pair p; uint8_t *out, *in; void *mh_out, *mh_in; };
enum { PLACE = 300000 };

static void place_open(struct kit_net *n, struct place *at) {
  kit_net_open(n);
  kit_pair_open(n, &at->p);
  at->out = kit_pages(PLACE);
  at->in = kit_pages(PLACE);
  at->mh_out = kit_mr_reg(n, at->p.send, at->out, PLACE);
  at->mh_in = kit_mr_reg(n, at->p.recv, at->in, PLACE);
}

static void place_close(struct kit_net *n, struct place *at) {
  kit_mr_dereg(n, at->p.send, at->mh_out);
  kit_mr_dereg(n, at->p.recv, at->mh_in);
  kit_pair_close(&at->p);
  kit_net_close(n);
}

static void message(void *arg, int i) {
  struct place *at = arg;
  size_t size = (size_t)i * 7919 % 100000;
  struct kit_op ops[2] = {kit_op_recv(at->p.recv, at->in, PLACE, 0), kit_op_send(at->p.send, at->out, size, 0)};
  ops[0].mh[0] = at->mh_in;
  ops[1].mh[0] = at->mh_out;
  kit_ops_run(at->p.net, ops, 2, (struct kit_ops_options){0});
}

static void ten_thousand_messages(struct kit_process *self) {
  struct kit_net n;
  struct place at;
  place_open(&n, &at);
  flat(self, message, &at, kit_scaled(2000), 64, "messages");
  place_close(&n, &at);
}

static void registration(void *arg, int i) {
  struct place *at = arg;
  size_t from = (size_t)i * 64 % 100000;
  void *a = kit_mr_reg(at->p.net, at->p.send, at->out + from, 4096);
  void *b = kit_mr_reg(at->p.net, at->p.recv, at->in + from, 100000 + from);
  kit_mr_dereg(at->p.net, at->p.send, a);
  kit_mr_dereg(at->p.net, at->p.recv, b);
}

static void ten_thousand_registrations(struct kit_process *self) {
  struct kit_net n;
  struct place at;
  place_open(&n, &at);
  flat(self, registration, &at, kit_scaled(2000), 64, "registrations");
  place_close(&n, &at);
}

/* ---- idle ---- */

static void idle_connections_cost_nothing(struct kit_process *self) {
  enum { FEW = 10, IDLE = 50, MORE_THREADS = 8 };
  struct kit_net n;
  static struct kit_pair p[IDLE];
  int few = 0;
  kit_net_open(&n);
  for (int i = 0; i < IDLE; i++) {
    kit_pair_open(&n, &p[i]);
    kit_pair_ping(&p[i], 100, (uint64_t)i);
    if (i == FEW - 1) few = kit_thread_count();
  }
  int threads = kit_thread_count();
  ENSURE(threads - few <= MORE_THREADS,
         "%d connections keep %d more threads than %d do, expected at most %d: hundreds of connections are common, and "
         "the processor is the application's", IDLE, threads - few, FEW, MORE_THREADS);
  kit_sleep_ms(200); /* what is still settling */
  double used = kit_cpu_asleep(600);
  kit_metric(self, "processor time of 50 idle connections", used * 100, "% of a core");
  ENSURE(used < 0.05, "%d idle connections use %.1f %% of a core, expected less than 5", IDLE, used * 100);
  for (int i = 0; i < IDLE; i++) {
    kit_pair_ping(&p[i], 1000, (uint64_t)i); /* and they still work */
    kit_pair_close(&p[i]);
  }
  kit_net_close(&n);
}

const struct kit_check kit_checks_leaks[] = {
    {"15.1", "leaks.a_thousand_connections", KIT_SHOULD, KIT_ONE, .limit_s = 120,
     .what = "no descriptor, thread or memory is left of a connection that was closed",
     .source = "src/transport/net.cc:1204,1259", .run = a_thousand_connections},
    {"15.2", "leaks.a_hundred_contexts", KIT_SHOULD, KIT_ONE, .limit_s = 120, .versions = KIT_SINCE(11),
     .what = "no descriptor, thread or memory is left of a context that was finalized",
     .source = "src/init.cc:284,380", .run = a_hundred_contexts},
    {"15.3", "leaks.failed_connections", KIT_SHOULD, KIT_ONE, .limit_s = 120, .versions = KIT_SINCE(11),
     .what = "no descriptor, thread or memory is left of connects that failed or were given up when their context is "
             "finalized",
     .source = "src/transport/net.cc:890,1204", .run = failed_connections},
    {"15.4", "leaks.ten_thousand_messages", KIT_SHOULD, KIT_ONE, .limit_s = 120,
     .what = "no descriptor, thread or memory is left of messages",
     .source = "src/transport/net.cc:1435", .run = ten_thousand_messages},
    {"15.5", "leaks.ten_thousand_registrations", KIT_SHOULD, KIT_ONE, .limit_s = 120,
     .what = "no descriptor, thread or memory is left of registrations that were taken back",
     .source = "src/transport/net.cc:1804,2047", .run = ten_thousand_registrations},
    {"15.6", "leaks.idle_connections_cost_nothing", KIT_SHOULD, KIT_ONE, .limit_s = 60,
     .what = "connections without traffic cost no processor time and no threads of their own",
     .source = "src/proxy.cc:848", .run = idle_connections_cost_nothing},
    {0},
};
