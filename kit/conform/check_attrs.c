/* SPDX-License-Identifier: Apache-2.0
 * What else a communicator passes to its plugin: network attributes, traffic class, profiler. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

/* ---- network attributes ---- */

/* NCCL's two threads: both give hints, one makes connections, one moves data. */
struct proxy { struct kit_net *net; struct kit_pair *pair; atomic_bool *over; bool progress; };

static void hint(struct kit_net *n, int i) {
  struct rail_net_attr attr = {.op = 1, .algo = 2, .proto = 4};
  attr.send.max_concurrent_peers = attr.recv.max_concurrent_peers = i;
  n->vt->set_net_attr(n->ctx, &attr); /* NCCL ignores what it returns */
  memset(&attr, 0xee, sizeof attr);   /* and it lay on the stack */
}

static void one_proxy_thread(void *arg) {
  struct proxy *t = arg;
  for (int i = 0; t->progress ? i < kit_scaled(600) : !atomic_load(t->over); i++) {
    struct kit_pair p;
    hint(t->net, i);
    if (t->progress) {
      kit_pair_ping(t->pair, (size_t)i % 5000, (uint64_t)i);
    } else {
      kit_pair_open(t->net, &p);
      hint(t->net, -i);
      kit_pair_close(&p);
    }
  }
  if (t->progress) atomic_store(t->over, true);
}

static void one_proxy_thread_ends(void *arg) { /* whatever happens, the other thread must not run forever */
  struct proxy *t = arg;
  char why[1024];
  bool fine = kit_catch(one_proxy_thread, t, why, sizeof why);
  atomic_store(t->over, true);
  ENSURE(fine, "%s", why);
}

/* As in the loop of connect's retries, against the same from the other thread. */
static void hint_again_and_again(void *arg) {
  struct proxy *t = arg;
  for (int i = 0; i < kit_scaled(20000); i++) hint(t->net, i);
}

static void attributes_from_two_threads(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  atomic_bool over = false;
  kit_net_load(&n, KIT_TARGET);
  if (!n.vt->set_net_attr) kit_skip("the plugin has no setNetAttr, which NCCL allows");
  int rc = kit_net_init(&n, NULL, -1);
  ENSURE(rc == 0, "init returned %s", kit_rc_text(rc));
  kit_pair_open(&n, &p);
  struct proxy t[2] = {{&n, &p, &over, true}, {&n, &p, &over, false}};
  kit_run_threads(2, one_proxy_thread_ends, t, sizeof t[0]);
  kit_run_threads(2, hint_again_and_again, t, sizeof t[0]);
  kit_pair_close(&p);
  kit_net_close(&n);
}

static void attributes_of_any_value(struct kit_process *self) {
  (void)self;
  static const int32_t value[] = {RAIL_NET_ATTR_UNDEF, 0, 1, 1 << 20, INT32_MAX, INT32_MIN};
  struct kit_net n;
  struct kit_pair p;
  kit_net_load(&n, KIT_TARGET);
  if (!n.vt->set_net_attr) kit_skip("the plugin has no setNetAttr, which NCCL allows");
  int rc = kit_net_init(&n, NULL, -1);
  ENSURE(rc == 0, "init returned %s", kit_rc_text(rc));
  for (int round = 0; round < 2; round++) { /* before there is a connection, and with one */
    if (round == 1) kit_pair_open(&n, &p);
    for (size_t i = 0; i < sizeof value / sizeof value[0]; i++) {
      struct rail_net_comm_attr both = {value[i], value[i], value[i], value[i]};
      struct rail_net_attr attr = {both, both, (uint32_t)value[i], (uint32_t)value[i], (uint32_t)value[i]};
      n.vt->set_net_attr(n.ctx, &attr);
    }
  }
  kit_pair_ping(&p, 10000, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* ---- traffic class ---- */

static bool works_with_class(int traffic_class, int *refusal) {
  struct kit_net n;
  struct kit_pair p = {.net = &n};
  kit_net_load(&n, KIT_TARGET);
  *refusal = kit_net_init(&n, NULL, traffic_class);
  if (*refusal != 0) { /* no context: nothing to finalize */
    kit_net_unload(&n);
    return false;
  }
  p.listen = kit_net_listen(&n, p.handle);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (*refusal == 0 && (!p.send || !p.recv)) {
    struct rail_net_device_handle *dh = NULL;
    if (!p.send) *refusal = n.vt->connect(n.ctx, n.dev, p.handle, &p.send, &dh);
    if (!p.recv && *refusal == 0) *refusal = n.vt->accept(p.listen, &p.recv, &dh);
    ENSURE(!rail_deadline_passed(deadline), "with trafficClass %d there is no connection, and no error", traffic_class);
    sched_yield();
  }
  if (*refusal == 0) kit_pair_ping(&p, 1000, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
  return *refusal == 0;
}

static void traffic_class_undefined(struct kit_process *self) {
  (void)self;
  static const int usual[] = {-1, 0};
  for (int i = 0; i < 2; i++) {
    int refusal;
    ENSURE(works_with_class(usual[i], &refusal), "with trafficClass %d (%s) the plugin returns %s", usual[i],
           i == 0 ? "not set: what NCCL gives unless the user says otherwise" : "the default one",
           kit_rc_text(refusal));
  }
}

static void traffic_classes(struct kit_process *self) {
  static const int any[] = {1, 7, 46, 105, 255, 256, 0x7fffffff, -2};
  for (size_t i = 0; i < sizeof any / sizeof any[0]; i++) {
    int refusal;
    if (!works_with_class(any[i], &refusal))
      kit_note(self, "trafficClass %d is refused with %s", any[i], kit_rc_text(refusal));
  }
}

/* ---- the profiler: its own handles in, its own handles out ---- */

#define MAX_EVENTS 4096
enum { EVENT_START, EVENT_STOP };

static struct event { void *phandle; int64_t id; int stops; } events[MAX_EVENTS];
static atomic_int started, stopped;
static atomic_bool decline; /* leave *eHandle alone, as NCCL does when no one asked for network events */
static char wrong[256];     /* the first that was wrong */
static pthread_mutex_t events_lock = PTHREAD_MUTEX_INITIALIZER;
static int handles[64];     /* their addresses are the pHandles */
static bool closed;         /* no more calls from here on */

static void note_wrong(const char *text) {
  if (!wrong[0]) strncpy(wrong, text, sizeof wrong - 1);
}

static void event_start(void **e_handle, void *phandle, int64_t id) {
  if (phandle < (void *)handles || phandle >= (void *)(handles + 64)) {
    note_wrong(phandle ? "start of an event has a pHandle that no isend or irecv was given"
                       : "start of an event has a NULL pHandle; NCCL follows it");
  } else if (atomic_load(&started) < MAX_EVENTS) {
    struct event *e = &events[atomic_fetch_add(&started, 1)];
    *e = (struct event){.phandle = phandle, .id = id};
    if (!atomic_load(&decline)) *e_handle = e;
  }
}

static void event_stop(struct event *e) {
  if (!e && atomic_load(&decline)) return;
  if (e < events || e >= events + atomic_load(&started)) {
    note_wrong("stop of an event has an eHandle that no start gave");
  } else {
    if (e->stops++) note_wrong("an event was stopped twice; NCCL's profiler may have freed it");
    atomic_fetch_add(&stopped, 1);
  }
}

static int profiler(void **e_handle, int type, void *phandle, int64_t id, void *ext) {
  (void)ext;
  pthread_mutex_lock(&events_lock);
  if (closed) note_wrong("the profiler was called after the connection was closed");
  if (!e_handle) note_wrong("the profiler was called without a place for the event handle");
  else if (type == EVENT_START) event_start(e_handle, phandle, id);
  else if (type == EVENT_STOP) event_stop(*e_handle);
  else if (type != 2 && type != 3) note_wrong("the profiler was called with an unknown type (not 0 to 3)");
  pthread_mutex_unlock(&events_lock);
  return 0;
}

static void nothing_wrong(void) { ENSURE(!wrong[0], "%s", wrong); }

static void open_profiled(struct kit_net *n, struct kit_pair *p) {
  kit_net_load(n, KIT_TARGET);
  int rc = kit_net_init(n, profiler, -1);
  ENSURE(rc == 0, "init with a profiler returned %s", kit_rc_text(rc));
  kit_pair_open(n, p);
}

static void close_profiled(struct kit_net *n, struct kit_pair *p) {
  kit_pair_close(p);
  pthread_mutex_lock(&events_lock);
  closed = true;
  pthread_mutex_unlock(&events_lock);
  kit_net_close(n);
  nothing_wrong();
}

/* One message; `phandles` is irecv's array, NULL as a whole in NCCL's bootstrap. */
static void one_message(struct kit_pair *p, size_t size, void *send_phandle, void **phandles) {
  static uint8_t out[300000], in[300000];
  const struct rail_net_v12 *vt = p->net->vt;
  void *to = in, *rr = NULL, *rs = NULL, *mr = kit_mr_reg(p->net, p->recv, in, sizeof in);
  void *ms = kit_mr_reg(p->net, p->send, out, sizeof out);
  size_t room = sizeof in;
  int tag = 5, got = -1, rc = 0, done;
  bool sent = false, received = false;
  kit_pattern_fill(out, size, size);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!sent || !received) {
    if (!rr && !received) rc = vt->irecv(p->recv, 1, &to, &room, &tag, &mr, phandles, &rr);
    ENSURE(rc == 0, "irecv with %s returned %s", !phandles ? "NULL phandles" : "phandles", kit_rc_text(rc));
    if (!rs && !sent) rc = vt->isend(p->send, out, size, tag, ms, send_phandle, &rs);
    ENSURE(rc == 0, "isend with phandle %p returned %s", send_phandle, kit_rc_text(rc));
    done = 0;
    if (rr) rc = vt->test(rr, &done, &got);
    ENSURE(rc == 0, "test of a receive returned %s", kit_rc_text(rc));
    if (rr && done) {
      rr = NULL;
      received = true;
    }
    done = 0;
    if (rs) rc = vt->test(rs, &done, NULL);
    ENSURE(rc == 0, "test of a send returned %s", kit_rc_text(rc));
    if (rs && done) {
      rs = NULL;
      sent = true;
    }
    ENSURE(!rail_deadline_passed(deadline), "a message of %zu bytes is not done at the deadline", size);
    sched_yield();
  }
  ENSURE(got == (int)size && kit_pattern_check(in, size, size) < 0,
         "a message of %zu bytes arrived wrong (%d bytes of it)", size, got);
  kit_mr_dereg(p->net, p->recv, mr);
  kit_mr_dereg(p->net, p->send, ms);
}

static const size_t lengths[] = {0, 1, 100, 5000, 300000};
enum { LENGTHS = sizeof lengths / sizeof lengths[0] };

static void profiler_is_not_called_without_a_handle(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  void *none = NULL;
  open_profiled(&n, &p);
  for (int i = 0; i < 2 * LENGTHS; i++) {
    one_message(&p, lengths[i / 2], NULL, i % 2 ? &none : NULL);
    nothing_wrong();
  }
  ENSURE(atomic_load(&started) == 0, "events were started for requests without a phandle");
  close_profiled(&n, &p);
}

static void profiler_events_are_ended_once(struct kit_process *self) {
  struct kit_net n;
  struct kit_pair p;
  open_profiled(&n, &p);
  for (int i = 0; i < 10 * LENGTHS; i++) {
    void *recv_handle = &handles[i % 64];
    one_message(&p, lengths[i % LENGTHS], &handles[(i + 7) % 64], &recv_handle);
    nothing_wrong();
  }
  int begun = atomic_load(&started), ended = atomic_load(&stopped);
  kit_metric(self, "events_per_message", begun / (10.0 * LENGTHS), "");
  if (begun > 0)
    kit_note(self, "plugin id of the events: type %d version %d", (int)(events[0].id >> 16),
             (int)(events[0].id & 0xffff));
  ENSURE(begun == ended, "of %d profiler events %d were ended when all requests were done", begun, ended);
  close_profiled(&n, &p);
  ENSURE(atomic_load(&stopped) == ended, "profiler events were ended by close");
}

static void profiler_may_decline(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  open_profiled(&n, &p);
  atomic_store(&decline, true);
  for (int i = 0; i < 4 * LENGTHS; i++) {
    void *recv_handle = &handles[1];
    one_message(&p, lengths[i % LENGTHS], &handles[0], &recv_handle);
    nothing_wrong();
  }
  close_profiled(&n, &p);
}

const struct kit_check kit_checks_attrs[] = {
  {"14.1", "attrs.attributes_from_two_threads", KIT_MUST, KIT_ONE, .limit_s = 60, .versions = KIT_SINCE(11),
   .what = "setNetAttr comes from two threads at once, while one of them connects and the other moves data.",
   .source = "src/transport/net.cc:222-228, 846, 1031, 1413, 1588", .run = attributes_from_two_threads},
  {"14.2", "attrs.attributes_of_any_value", KIT_MUST, KIT_ONE, .versions = KIT_SINCE(11),
   .what = "setNetAttr takes undefined (-1) and all other values, with and without connections.",
   .source = "src/include/plugin/net/net_v11.h, src/transport/net.cc:222-228", .run = attributes_of_any_value},
  {"14.3", "attrs.traffic_class_undefined", KIT_MUST, KIT_ONE, .versions = KIT_SINCE(10),
   .what = "The plugin works with a trafficClass of -1 (not set) and 0.",
   .source = "src/plugin/net.cc:169-178", .run = traffic_class_undefined},
  {"14.4", "attrs.traffic_classes", KIT_MUST, KIT_ONE, .limit_s = 60, .versions = KIT_SINCE(10),
   .what = "With any other trafficClass init and connect work or fail; nothing crashes, hangs or arrives wrong.",
   .source = "src/plugin/net.cc:169-178, src/transport/net_ib/connect.cc:996-1001", .run = traffic_classes},
  {"14.5", "attrs.profiler_is_not_called_without_a_handle", KIT_MUST, KIT_ONE, .versions = KIT_SINCE(10),
   .what = "Without a pHandle (NULL, or irecv's whole array NULL) the profiler is not called: NCCL would follow the "
           "NULL.",
   .source = "src/bootstrap.cc:171, 186, src/plugin/profiler.cc:782-814",
   .run = profiler_is_not_called_without_a_handle},
  {"14.6", "attrs.profiler_events_are_ended_once", KIT_MUST, KIT_ONE, .versions = KIT_SINCE(10),
   .what = "Each event is started with its request's pHandle and ended once, before its request is done.",
   .source = "src/plugin/profiler.cc:782-814", .run = profiler_events_are_ended_once},
  {"14.7", "attrs.profiler_may_decline", KIT_MUST, KIT_ONE, .versions = KIT_SINCE(10),
   .what = "The profiler may leave the event handle alone; traffic goes on all the same.",
   .source = "src/plugin/profiler.cc:782-814", .run = profiler_may_decline},
  {0},
};
