/* SPDX-License-Identifier: Apache-2.0
 *
 * Item 13: several threads, comms, contexts and processes at once.
 *
 * NCCL has two threads for each communicator: the service thread makes and closes connections and registers memory,
 * the progress thread moves data. Communicators are independent of each other, within a process, too. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

/* ---- two processes, many comms ---- */

enum { COMMS = 8, LARGEST = 60000 };

static size_t size_of(int rank, int comm, int round) {
  return (size_t)((rank * 31 + comm * 7 + round * 131) * 977) % LARGEST;
}

static uint64_t seed_of(int rank, int comm, int round) {
  return (uint64_t)rank * 100000 + (uint64_t)round * 10 + (uint64_t)comm;
}

struct crossing { struct kit_net n; struct kit_pair p[COMMS]; uint8_t *out, *in; void *mh_out[COMMS], *mh_in[COMMS]; };

static void cross_once(struct crossing *x, int rank, int round) {
  struct kit_op ops[2 * COMMS];
  for (int i = 0; i < COMMS; i++) {
    uint8_t *out = x->out + (size_t)i * LARGEST, *in = x->in + (size_t)i * LARGEST;
    kit_pattern_fill(out, size_of(rank, i, round), seed_of(rank, i, round));
    ops[i] = kit_op_recv(x->p[i].recv, in, LARGEST, round);
    ops[i].mh[0] = x->mh_in[i];
    ops[COMMS + i] = kit_op_send(x->p[i].send, out, size_of(rank, i, round), round);
    ops[COMMS + i].mh[0] = x->mh_out[i];
  }
  kit_ops_run(&x->n, ops, 2 * COMMS, (struct kit_ops_options){0});
  for (int i = 0; i < COMMS; i++) {
    size_t size = size_of(1 - rank, i, round);
    ENSURE(ops[i].sizes[0] == (int)size, "comm %d round %d: received %d bytes, sent were %zu", i, round,
           ops[i].sizes[0], size);
    ssize_t wrong = kit_pattern_check(ops[i].data[0], size, seed_of(1 - rank, i, round));
    ENSURE(wrong < 0, "comm %d round %d: byte %zd of %zu arrived wrong, perhaps another comm's", i, round, wrong, size);
  }
}

/* 8 comms to the other process and 8 from it, all moving at once. */
static void eight_comms_each_way(struct kit_process *self) {
  static struct crossing x;
  kit_net_open(&x.n);
  kit_check_connect_both_ways(self, &x.n, x.p, COMMS);
  x.out = kit_pages((size_t)COMMS * LARGEST);
  x.in = kit_pages((size_t)COMMS * LARGEST);
  for (int i = 0; i < COMMS; i++) {
    x.mh_out[i] = kit_mr_reg(&x.n, x.p[i].send, x.out + (size_t)i * LARGEST, LARGEST);
    x.mh_in[i] = kit_mr_reg(&x.n, x.p[i].recv, x.in + (size_t)i * LARGEST, LARGEST);
  }
  for (int round = 0; round < kit_scaled(200); round++) cross_once(&x, kit_process_rank(self), round);
  for (int i = 0; i < COMMS; i++) {
    kit_mr_dereg(&x.n, x.p[i].send, x.mh_out[i]);
    kit_mr_dereg(&x.n, x.p[i].recv, x.mh_in[i]);
    kit_pair_close(&x.p[i]);
  }
  kit_net_close(&x.n);
}

/* ---- threads ---- */

struct worker { struct kit_net *net; int id, rounds; };

static void own_pair(void *arg) {
  struct worker *w = arg;
  struct kit_pair p;
  kit_pair_open(w->net, &p);
  for (int i = 0; i < w->rounds; i++)
    kit_pair_ping(&p, (size_t)((w->id + 1) * i * 1013) % 100000, (uint64_t)w->id * 1000 + (uint64_t)i);
  kit_pair_close(&p);
}

static void comms_on_different_threads(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  kit_net_open(&n);
  for (int round = 0; round < 3; round++) {
    struct worker w[4];
    for (int i = 0; i < 4; i++) w[i] = (struct worker){&n, i, kit_scaled(200)};
    kit_run_threads(4, own_pair, w, sizeof w[0]);
  }
  kit_net_close(&n);
}

/* A communicator of its own: init and finalize, which NCCL calls under one lock for the whole process. */
static void own_context(void *arg) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  struct worker *w = arg;
  struct rail_net_config config = {.traffic_class = -1};
  for (int i = 0; i < 5; i++) {
    struct kit_net mine = *w->net;
    mine.ctx = NULL; /* as NCCL presets it */
    pthread_mutex_lock(&lock);
    int rc = mine.vt->init(&mine.ctx, (uint64_t)w->id, &config, kit_net_log, NULL), ndev = -1;
    int rd = mine.vt->devices(&ndev);
    pthread_mutex_unlock(&lock);
    ENSURE(rc == 0, "init of another context returned %s while others are in use", kit_rc_text(rc));
    ENSURE(rd == 0 && ndev == mine.ndev, "devices returned %s and says %d, but there were %d before", kit_rc_text(rd),
           ndev,
           mine.ndev);
    struct worker same = {&mine, w->id, w->rounds};
    own_pair(&same);
    pthread_mutex_lock(&lock);
    rc = mine.vt->finalize ? mine.vt->finalize(mine.ctx) : 0;
    pthread_mutex_unlock(&lock);
    ENSURE(rc == 0, "finalize of a context returned %s while others are in use", kit_rc_text(rc));
  }
}

static void contexts_on_different_threads(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct worker w[4];
  kit_net_open(&n);
  for (int i = 0; i < 4; i++) w[i] = (struct worker){&n, i, kit_scaled(20)};
  kit_run_threads(4, own_context, w, sizeof w[0]);
  kit_net_close(&n);
}

/* A connection made by one thread, used by the next and closed by a third, all of them there all the time. */
enum stage { MADE, USED, CLOSED, STAGES, FAILED };
struct relay { struct kit_net *net; struct kit_pair *pair; atomic_int *now; int stage, rounds; };

static void one_stage(void *arg) {
  const struct relay *r = arg;
  if (r->stage == MADE) kit_pair_open(r->net, r->pair);
  for (int i = 0; r->stage == USED && i < 50; i++) kit_pair_ping(r->pair, (size_t)i * 3001, (uint64_t)i);
  if (r->stage == CLOSED) kit_pair_close(r->pair);
}

static void own_stage(void *arg) {
  static const char *const what[STAGES] = {"made", "used", "closed"};
  struct relay *r = arg;
  char why[1024] = "";
  for (int i = 0; i < r->rounds; i++) {
    int now;
    while ((now = atomic_load(r->now)) != r->stage && now != FAILED) sched_yield();
    if (now == FAILED) return;
    bool fine = kit_catch(one_stage, r, why, sizeof why);
    atomic_store(r->now, fine ? (r->stage + 1) % STAGES : FAILED);
    ENSURE(fine, "a connection is made by one thread, used by another and closed by a third; when it was %s: %s",
           what[r->stage], why);
  }
}

static void handed_from_thread_to_thread(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  struct relay r[STAGES];
  atomic_int now = MADE;
  kit_net_open(&n);
  for (int i = 0; i < STAGES; i++) r[i] = (struct relay){&n, &p, &now, i, kit_scaled(10)};
  kit_run_threads(STAGES, own_stage, r, sizeof r[0]);
  kit_net_close(&n);
}

/* Two communicators move data while a third one's connections come and go, some with requests outstanding. */
struct churn { struct kit_net *net; atomic_bool *over; int id, rounds; };

static void open_and_close(void *arg) {
  struct churn *b = arg;
  size_t size = 200000;
  uint8_t *buf = kit_pages(size);
  for (int i = 0; i < b->rounds; i++) {
    struct kit_pair p;
    kit_pair_open(b->net, &p);
    kit_pair_ping(&p, (size_t)i * 611 % 5000, (uint64_t)i);
    struct kit_op op = i % 2 ? kit_op_send(p.send, buf, size, 0) : kit_op_recv(p.recv, buf, size, 0);
    op.mh[0] = kit_mr_reg(b->net, op.comm, buf, size);
    if (i % 3) kit_op_post(b->net, &op);
    kit_mr_dereg(b->net, op.comm, op.mh[0]);
    kit_close_pair_within(&p, i % 2, KIT_CLOSE_HUNG_MS);
  }
  kit_pages_free(buf, size);
}

static void keep_pinging(const struct churn *b) {
  struct kit_pair p;
  kit_pair_open(b->net, &p);
  for (int i = 0; !atomic_load(b->over); i++)
    kit_pair_ping(&p, (size_t)i * 7919 % 100000, (uint64_t)b->id + (uint64_t)i);
  kit_pair_close(&p);
}

static void run_churn(void *arg) {
  struct churn *b = arg;
  char why[1024] = "";
  if (b->id > 0) {
    keep_pinging(b);
    return;
  }
  bool fine = kit_catch(open_and_close, b, why, sizeof why);
  atomic_store(b->over, true);
  ENSURE(fine, "connections come and go while others on other threads carry data: %s", why);
}

static void connections_come_and_go(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  atomic_bool over = false;
  kit_net_open(&n);
  struct churn b[3];
  for (int i = 0; i < 3; i++) b[i] = (struct churn){&n, &over, i, kit_scaled(200)};
  kit_run_threads(3, run_churn, b, sizeof b[0]);
  kit_net_close(&n);
}

/* ---- signals: a profiler's, a timer's of the application ---- */

static void on_signal(int number) { (void)number; }

static void signals(struct kit_process *self) {
  struct kit_net n;
  struct kit_pair p;
  struct sigaction act = {.sa_handler = on_signal}; /* without SA_RESTART: system calls are interrupted */
  struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
  sigaction(SIGALRM, &act, NULL);
  setitimer(ITIMER_REAL, &often, NULL);
  kit_net_open(&n);
  uint64_t deadline = rail_deadline_in_ms(500);
  for (int i = 0; i % 10 || !rail_deadline_passed(deadline); i++) {
    if (i % 10 == 0) kit_check_connect(self, &n, &p);
    kit_pair_ping(&p, (size_t)i * 100003 % 500000, (uint64_t)i);
    if (i % 10 == 9) kit_check_disconnect(self, &p);
  }
  kit_net_close(&n);
  setitimer(ITIMER_REAL, &never, NULL);
}

const struct kit_check kit_checks_threads[] = {
    {"13.1", "processes.eight_comms_each_way", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "eight connections each way between two processes move data at once, each its own",
     .source = "src/proxy.cc:801", .run = eight_comms_each_way},
    {"13.2", "processes.comms_on_different_threads", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "connections of one process are made, used and closed by several threads at once, each its own",
     .source = "src/proxy.cc:954,1580", .run = comms_on_different_threads},
    {"13.3", "processes.contexts_on_different_threads", KIT_MUST, KIT_ONE, .limit_s = 60, .versions = KIT_SINCE(11),
     .what = "contexts come and go by init and finalize while other contexts move data",
     .source = "src/plugin/net.cc:169,324", .run = contexts_on_different_threads},
    {"13.4", "processes.handed_from_thread_to_thread", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "a connection is made by one thread, used by another and closed by a third",
     .source = "src/proxy.cc:954,1580,1926", .run = handed_from_thread_to_thread},
    {"13.5", "processes.connections_come_and_go", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "connections that one thread opens and closes do not disturb those that other threads use",
     .source = "src/proxy.cc:1112", .run = connections_come_and_go},
    {"13.6", "threads.signals", KIT_MUST, KIT_ONE, .limit_s = 60,
     .what = "signals that interrupt system calls do not disturb connecting and moving data",
     .source = "src/misc/socket.cc:48", .run = signals},
    {0},
};
