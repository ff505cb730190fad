/* SPDX-License-Identifier: Apache-2.0
 * Profiler events through v10, v11 and v12: which, when, for what, and that every one is ended once.
 * TEST-LIMIT: 60 */
#include <pthread.h>
#include <sched.h>

#include "common/base/clock.h"
#include "loader/netload.h"
#include "test/harness/program.h"

#define MAX_EVENTS 1024
#define SOCKET_ID ((INT64_C(2) << 16) | 1)

/* NCCL's ncclProfilerNetSockDescr_v1_t, as a profiler reads it. */
struct descr {
  uint8_t type;
  union {
    struct { int fd; int op; size_t length; } sock;
  } u;
};

static struct event {
  void *phandle;
  struct descr descr;
  int stops;
} events[MAX_EVENTS];
static int started, stopped, bad;
static bool decline; /* leave *e_handle alone, as NCCL does when no profiler asked for network events */
static pthread_t caller;

static int profiler(void **e_handle, int type, void *phandle, int64_t id, void *ext) {
  if (!pthread_equal(pthread_self(), caller)) bad++;
  if (type == 0) {
    if (!phandle || !ext || id != SOCKET_ID || started == MAX_EVENTS || *e_handle) bad++;
    if (bad || !ext) return 0;
    events[started] = (struct event){.phandle = phandle};
    memcpy(&events[started].descr, ext, sizeof(struct descr));
    if (!decline) *e_handle = &events[started];
    started++;
  } else if (type == 1) {
    struct event *e = *e_handle;
    if (e < events || e >= events + started || e->stops) {
      bad++;
      return 0;
    }
    e->stops++;
    stopped++;
  } else {
    bad++;
  }
  return 0;
}

/* ---- a plugin's vtable of one version in v12's shape, phandles and all ---- */

static const struct rail_net_v10 *v10;
static int v10_init(void **ctx, uint64_t id, struct rail_net_config *config, rail_logger_fn log,
                    rail_profiler_fn prof) {
  (void)id, (void)config;
  *ctx = NULL;
  return v10->init(log, prof);
}
static int v10_listen(void *ctx, int dev, void *handle, void **comm) {
  (void)ctx;
  return v10->listen(dev, handle, comm);
}
static int v10_connect(void *ctx, int dev, void *handle, void **comm, struct rail_net_device_handle **dh) {
  (void)ctx;
  return v10->connect(dev, NULL, handle, comm, dh);
}
static int v10_finalize(void *ctx) {
  (void)ctx;
  return 0;
}

static void open_profiled(struct kit_net *n, int version) {
  static struct rail_net_v12 vt;
  memset(events, 0, sizeof events);
  started = stopped = bad = 0;
  decline = false;
  caller = pthread_self();
  setenv("RAIL_SOCKET_AHEAD", "0", 1); /* large sends, which must fail here, are not done before their receive */
  kit_net_load(n, version);
  const void *table = rail_net_vtable(n->any);
  if (version >= 11) {
    memcpy(&vt, table, sizeof vt); /* v11 has the same slots */
  } else {
    v10 = table;
    vt = (struct rail_net_v12){.init = v10_init, .devices = v10->devices, .listen = v10_listen,
                               .connect = v10_connect, .accept = v10->accept, .reg_mr = v10->reg_mr,
                               .dereg_mr = v10->dereg_mr, .isend = v10->isend, .irecv = v10->irecv,
                               .test = v10->test, .close_send = v10->close_send, .close_recv = v10->close_recv,
                               .close_listen = v10->close_listen, .finalize = v10_finalize};
  }
  n->vt = &vt;
  struct rail_net_config config = {.traffic_class = -1};
  CHECK_OK(vt.init(&n->ctx, 1, &config, kit_net_log, profiler));
  CHECK_OK(vt.devices(&n->ndev));
  CHECK(n->ndev > 0);
}

static void *send_one(struct kit_pair *p, void *data, size_t size, int tag, void *phandle) {
  void *r = NULL;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!r) {
    CHECK_OK(p->net->vt->isend(p->send, data, size, tag, NULL, phandle, &r));
    CHECK(!rail_deadline_passed(deadline));
  }
  return r;
}

static void *recv_group(struct kit_pair *p, int n, void **data, size_t *sizes, int *tags, void **phandles) {
  void *r = NULL;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!r) {
    CHECK_OK(p->net->vt->irecv(p->recv, n, data, sizes, tags, NULL, phandles, &r));
    CHECK(!rail_deadline_passed(deadline));
  }
  return r;
}

/* Tests both until each is done, or has failed. Sums their results up. */
static int finish_two(struct kit_net *n, void *a, void *b) {
  void *r[2] = {a, b};
  int sum = 0, sizes[KIT_MAX_GROUP];
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (r[0] || r[1]) {
    for (int i = 0; i < 2; i++) {
      int done = 0, open = started - stopped;
      if (!r[i]) continue;
      int rc = n->vt->test(r[i], &done, sizes);
      sum += rc;
      if (rc || done) r[i] = NULL;
      else CHECK_INT(started - stopped, open); /* no end before the request's */
    }
    CHECK(!rail_deadline_passed(deadline));
    sched_yield();
  }
  return sum;
}

static void check_event(const struct event *e, void *phandle, int op, size_t length) {
  CHECK(e->phandle == phandle);
  CHECK_INT(e->descr.type, 1);
  CHECK_INT(e->descr.u.sock.op, op);
  CHECK_INT(e->descr.u.sock.length, length);
  CHECK(e->descr.u.sock.fd > 2);
}

/* ---- cases ---- */

static int handles[64]; /* their addresses */

static void requests_and_groups(struct kit_pair *p) {
  static uint8_t out[300000], in[4][300000];
  static const size_t lengths[] = {0, 100, 300000};
  for (int i = 0; i < 3; i++) {
    int first = started, tag = i;
    void *to = in[0], *ph = &handles[1];
    size_t room = sizeof in[0];
    void *rr = recv_group(p, 1, &to, &room, &tag, &ph);
    void *rs = send_one(p, out, lengths[i], i, &handles[0]);
    CHECK_INT(started, first + 2); /* both began with their calls */
    CHECK_OK(finish_two(p->net, rr, rs));
    check_event(&events[first], &handles[1], 1, sizeof in[0]);
    check_event(&events[first + 1], &handles[0], 0, lengths[i]);
    CHECK_INT(events[first].stops, 1);
    CHECK_INT(events[first + 1].stops, 1);
  }
  /* A group: an event for each buffer that has a handle. */
  void *to[4] = {in[0], in[1], in[2], in[3]}, *ph[4] = {&handles[2], NULL, &handles[3], NULL}, *rs[4];
  size_t room[4] = {1000, 2000, 3000, 4000};
  int tags[4] = {10, 11, 12, 13}, first = started;
  void *rr = recv_group(p, 4, to, room, tags, ph);
  for (int i = 0; i < 4; i++) rs[i] = send_one(p, out, 500, 10 + i, NULL);
  CHECK_INT(started, first + 2);
  for (int i = 0; i < 3; i++) CHECK_OK(finish_two(p->net, rs[i], NULL));
  CHECK_OK(finish_two(p->net, rs[3], rr));
  check_event(&events[first], &handles[2], 1, 1000);
  check_event(&events[first + 1], &handles[3], 1, 3000);
  CHECK_INT(started, stopped);
}

static void without_handles(struct kit_pair *p) {
  static uint8_t out[2000], in[2000];
  void *to = in, *none = NULL;
  size_t room = sizeof in;
  int tag = 1, first = started;
  CHECK_OK(finish_two(p->net, recv_group(p, 1, &to, &room, &tag, NULL), send_one(p, out, sizeof out, 1, NULL)));
  CHECK_OK(finish_two(p->net, recv_group(p, 1, &to, &room, &tag, &none), send_one(p, out, 7, 1, NULL)));
  CHECK_INT(started, first);
  decline = true; /* started, yet nothing that could be stopped */
  CHECK_OK(finish_two(p->net, recv_group(p, 1, &to, &room, &tag, NULL), send_one(p, out, 9, 1, &handles[4])));
  decline = false;
  CHECK_INT(started, first + 1);
  CHECK_INT(stopped, first);
  stopped++;
  CHECK_OK(finish_two(p->net, recv_group(p, 1, &to, &room, &tag, NULL), send_one(p, out, 9, 1, &handles[5])));
  CHECK_INT(events[first + 1].stops, 1); /* the same request once more */
}

/* A message larger than its buffer: the requests fail, and their events are ended once, however often one asks. */
static void failing(struct kit_pair *p) {
  static uint8_t out[200000], in[100];
  void *to = in, *ph = &handles[7];
  size_t room = sizeof in;
  int tag = 5, first = started, done;
  void *rr = recv_group(p, 1, &to, &room, &tag, &ph), *rs = send_one(p, out, sizeof out, 5, &handles[6]);
  CHECK(finish_two(p->net, rr, rs) != 0);
  CHECK_INT(events[first].stops + events[first + 1].stops, 2);
  for (int i = 0; i < 5; i++) CHECK(p->net->vt->test(rs, &done, NULL) != 0);
  void *none = &none;
  CHECK(p->net->vt->isend(p->send, out, 1, 5, NULL, &handles[8], &none) != 0); /* no request: no event */
  CHECK_INT(started, first + 2);
  CHECK_INT(started, stopped);
}

/* Given up: the event stays open, and nothing is called from close on. */
static void closed_while_outstanding(struct kit_net *n) {
  static uint8_t out[200000], in[300000];
  struct kit_pair p;
  kit_pair_open(n, &p);
  int first = started, ended = stopped, tag = 6;
  void *to = in, *ph = &handles[9];
  size_t room = sizeof in;
  send_one(&p, out, sizeof out, 5, &handles[10]); /* tags differ: neither can be done */
  recv_group(&p, 1, &to, &room, &tag, &ph);
  CHECK_INT(started, first + 2);
  kit_pair_close(&p);
  CHECK_INT(started, first + 2);
  CHECK_INT(stopped, ended);
}

static void through(int version) {
  struct kit_net n;
  struct kit_pair p;
  open_profiled(&n, version);
  kit_pair_open(&n, &p);
  requests_and_groups(&p);
  without_handles(&p);
  failing(&p);
  kit_pair_close(&p);
  closed_while_outstanding(&n);
  int total = started + stopped;
  kit_net_close(&n);
  CHECK_INT(started + stopped, total); /* nor from finalize */
  CHECK_INT(bad, 0);
}

TEST(v10) { through(10); }
TEST(v11) { through(11); }
TEST(v12) { through(12); }

/* These have no place for a callback or a handle. */
TEST(v6_to_v9) {
  for (int version = 6; version <= 9; version++) {
    struct kit_net n;
    struct kit_pair p;
    started = stopped = bad = 0;
    kit_net_open_version(&n, version);
    struct rail_net_config config = {.traffic_class = -1};
    void *ctx = NULL, *mine = n.ctx;
    CHECK_OK(n.vt->init(&ctx, 1, &config, kit_net_log, profiler));
    n.ctx = ctx;
    kit_pair_open(&n, &p);
    for (int i = 0; i < 5; i++) kit_pair_ping(&p, (size_t)i * 30000, (uint64_t)i);
    kit_pair_close(&p);
    CHECK_OK(n.vt->finalize(ctx));
    n.ctx = mine;
    kit_net_close(&n);
    CHECK_INT(started + stopped + bad, 0);
  }
}

/* One context with a callback and one without, in one process: each connection has its own context's. */
TEST(contexts_differ) {
  struct kit_net n;
  struct kit_pair p;
  static uint8_t out[10], in[10];
  void *to = in, *plain = NULL, *mine;
  size_t room = sizeof in;
  int tag = 1;
  open_profiled(&n, 12);
  struct rail_net_config config = {.traffic_class = -1};
  CHECK_OK(n.vt->init(&plain, 2, &config, kit_net_log, NULL));
  mine = n.ctx;
  n.ctx = plain;
  kit_pair_open(&n, &p);
  void *ph = &handles[1];
  CHECK_OK(finish_two(&n, recv_group(&p, 1, &to, &room, &tag, &ph), send_one(&p, out, 10, 1, &handles[0])));
  CHECK_INT(started, 0);
  kit_pair_close(&p);
  CHECK_OK(n.vt->finalize(plain));
  n.ctx = mine;
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(v10), TEST_CASE(v11), TEST_CASE(v12), TEST_CASE(v6_to_v9), TEST_CASE(contexts_differ))
