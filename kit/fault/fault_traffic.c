/* SPDX-License-Identifier: Apache-2.0
 * The time of the fault, and data that is transferred while it happens, in order or not, until all is reported. */
#include "kit/fault/fault_process.h"

#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/fault/fault_net.h"
#include "kit/fault/fault_usage.h"

#define AGREED_MS 20 /* from the barrier to the moment that delays count from */
#define NOTABLE_NS 300000000ll
#define LOOK_NS 20000000ll /* between two looks at how long this thread waited for a core */
#define KEEP_TRYING_MS 4000 /* foreign clients stay that much longer where it takes so long to connect */

bool kit_fault_state_is_victim(const struct kit_fault_state *f) { return kit_fault_is_victim(&f->plan, f->rank); }

bool kit_fault_state_sends(const struct kit_fault_state *f, int connection) {
  int sender = f->plan.dirs == KIT_DIRS_BOTH ? connection % 2 : f->plan.dirs == KIT_DIRS_FORTH ? 0 : 1;
  return sender == f->rank;
}

void kit_fault_note_error(struct kit_fault_state *f, int code, const char *call) {
  struct kit_fault_record *t = &f->record;
  int64_t since = (int64_t)(rail_now_ns() - (f->event_ns ? f->event_ns : f->start_ns));
  if (!t->code) {
    t->code = code;
    snprintf(t->call, sizeof t->call, "%s", call);
    t->first_ns = since;
  }
  t->last_ns = since;
  if (code != RAIL_REMOTE_ERROR) t->other_code = code;
}

/* Since the last look, which this one becomes. A look that fails counts as none. */
static int64_t waited_for_core(struct kit_fault_state *f) {
  int64_t now = kit_run_delay_ns(), waited = now - f->waited_ns;
  f->looked_ns = rail_now_ns();
  if (waited <= 0) return 0;
  f->waited_ns = now;
  return waited;
}

/* What this thread waited before the call must not excuse it. A look reads a file, so that one serves many calls. */
uint64_t kit_fault_begin(struct kit_fault_state *f) {
  if (rail_now_ns() - f->looked_ns > LOOK_NS) waited_for_core(f);
  return rail_now_ns();
}

/* The time that a busy machine took is not the plugin's. */
static int64_t without_waiting(struct kit_fault_state *f, int64_t took) {
  int64_t waited = waited_for_core(f);
  return took > waited ? took - waited : 0;
}

void kit_fault_note_duration(struct kit_fault_state *f, uint64_t before_ns, int64_t *longest) {
  int64_t took = (int64_t)(rail_now_ns() - before_ns);
  bool slept = f->plan.act == KIT_ACT_STOP && kit_fault_state_is_victim(f); /* not the call's fault */
  if (took > NOTABLE_NS) took = without_waiting(f, took);
  if (took > *longest && !slept) *longest = took;
}

/* ---- the moment ---- */

void kit_fault_order(struct kit_fault_state *f, uint64_t at_ns, uint64_t last_ms) {
  static struct kit_tcp_socket ports[KIT_INJECTOR_PORTS];
  struct kit_injector_order o = {.act = f->plan.act, .how = f->plan.how, .count = f->plan.count, .seed = f->plan.seed,
                             .at_ns = at_ns, .last_ms = last_ms, .rank = f->rank};
  if (f->plan.act == KIT_ACT_CLIENTS) {
    o.nports = kit_tcp_new_listeners(f->before, f->nbefore, ports, KIT_INJECTOR_PORTS);
    if (o.nports == 0) kit_skip("the plugin listens on no TCP port");
    for (int i = 0; i < o.nports; i++) {
      o.port[i].addr = ports[i].local;
      o.port[i].size = ports[i].local_len;
    }
  }
  if (f->plan.act == KIT_ACT_LINK) o.link = kit_fault_port_get(kit_process_job(f->self), f->rank);
  kit_injector_send(f->injector, &o);
}

void kit_fault_agree_on_time(struct kit_fault_state *f) {
  bool kills = f->plan.act == KIT_ACT_KILL;
  if (kills && kit_fault_state_is_victim(f)) kit_process_expect_death(f->self);
  if (kills && !kit_fault_state_is_victim(f)) kit_process_allow_loss(f->self, f->peer);
  kit_barrier(f->self);
  uint64_t moment = rail_now_ns() + AGREED_MS * 1000000ull;
  /* One clock on one host; between two, as well as the barrier allows. */
  if (kit_process_job(f->self)->hosts == 1 && f->rank == 0) kit_send_bytes(f->self, 1, &moment, sizeof moment);
  if (kit_process_job(f->self)->hosts == 1 && f->rank == 1) kit_recv_bytes(f->self, 0, &moment, sizeof moment);
  f->event_ns = moment + f->plan.delay_us * 1000;
  bool clients = f->plan.act == KIT_ACT_CLIENTS;
  bool injected = clients || kills || f->plan.act == KIT_ACT_STOP || f->plan.act == KIT_ACT_LINK;
  bool stays = clients && !f->plan.files;
  if (injected && kit_fault_state_is_victim(f))
    kit_fault_order(f, f->event_ns, f->plan.last_ms + (stays ? KEEP_TRYING_MS : 0));
}

/* ---- the traffic ---- */

enum {
  SETTLE_MS = 300,    /* after the first error, for the others to get theirs */
  FINISH_MS = 8000,  /* for what is left after the last message was sent */
  STAY_MS = 250,      /* foreign clients, once data flows */
  SCRIBBLED = 50,     /* turns after deregMr in which the memory must stay as it is */
};

struct stream {
  uint64_t over, end, limit; /* when it is undone, when the senders end, when patience does */
  bool acted, undone, ended, measured;
  uint64_t first_error;
  double cpu, cpu_plugin; /* at the event */
  bool counted;
  int quiet;
};

/* ---- what a process does to itself ---- */

static void reset_sockets(struct kit_fault_state *f) {
  static struct kit_tcp_socket all[4096];
  struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
  int n = kit_tcp_sockets(all, 4096), hit = 0;
  for (int i = 0; i < n; i++) {
    bool old = false;
    for (int k = 0; k < f->nbefore; k++) old |= all[i].inode == f->before[k].inode;
    if (!old && all[i].connected && !all[i].listening)
      hit += syscall(SYS_connect, all[i].fd, &nowhere, sizeof nowhere) == 0;
  }
  if (hit == 0) kit_skip("the plugin has no TCP connection that could be reset");
}

/* From its return on the memory is the caller's: what it writes stays, and no one sends it. */
static void dereg_all(struct kit_fault_state *f) {
  for (int i = 0; i < f->nflows; i++) {
    rail_result_t r = kit_flow_dereg(&f->flow[i]);
    if (r == RAIL_OK || f->record.close_code) continue;
    f->record.close_code = (int)r;
    snprintf(f->record.close_call, sizeof f->record.close_call, "deregMr");
  }
  f->dereg_done = true;
  for (int i = 0; i < f->nflows; i++) kit_flow_scribble(&f->flow[i]);
  for (int turn = 0; turn < SCRIBBLED; turn++) { /* a test here may fail, but must not move these bytes */
    for (int i = 0; i < f->nflows; i++) kit_flow_test_after_error(&f->flow[i]);
    usleep(1000);
  }
  for (int i = 0; i < f->nflows; i++) f->record.moved += !kit_flow_untouched(&f->flow[i]);
}

/* True: this process is done. */
static bool act(struct kit_fault_state *f, struct stream *s) {
  s->acted = true;
  if (f->plan.when == KIT_WHEN_IDLE)
    for (int i = 0; i < f->nflows; i++) f->flow[i].hold = false;
  if (!kit_fault_state_is_victim(f)) return false;
  switch ((enum kit_act)f->plan.act) {
  case KIT_ACT_CLOSE: return true;
  case KIT_ACT_DEREG: dereg_all(f); return true;
  case KIT_ACT_RESET: reset_sockets(f); return false;
  default: return false; /* done by the fault injector, or by none */
  }
}

/* ---- the clock ---- */

static struct stream timeline(const struct kit_fault_state *f) {
  const struct kit_fault_plan *p = &f->plan;
  struct stream s = {0};
  uint64_t now = rail_now_ns();
  s.over = f->event_ns + p->last_ms * 1000000;
  if (p->act == KIT_ACT_CLIENTS && s.over < now + STAY_MS * 1000000) s.over = now + STAY_MS * 1000000;
  s.end = s.over + p->after_ms * 1000000;
  s.limit = p->goal == KIT_GOAL_ERROR ? f->event_ns + kit_patience_ms(p->patience_ms) * 1000000
                                     : s.end + kit_patience_ms(FINISH_MS) * 1000000;
  return s;
}

static void count_cpu(struct kit_fault_state *f, struct stream *s, uint64_t now) {
  double cpu = (double)kit_cpu_ns() / 1e9, plugin = kit_cpu_of_others();
  if (!s->counted) {
    s->cpu = cpu;
    s->cpu_plugin = plugin;
    s->counted = true;
    return;
  }
  if (s->measured) return;
  s->measured = true;
  f->record.stuck_s = (double)(now - f->event_ns) / 1e9;
  f->record.stuck_cpu = cpu - s->cpu;
  f->record.stuck_cpu_plugin = plugin - s->cpu_plugin;
}

/* ---- the turns ---- */

static void flow_failed(struct kit_fault_state *f, struct stream *s, struct kit_flow *flow) {
  kit_fault_note_error(f, (int)flow->error, flow->error_call);
  f->record.errors++;
  if (!s->first_error) s->first_error = rail_now_ns();
  kit_flow_test_after_error(flow);
}

static int step_all(struct kit_fault_state *f, struct stream *s, int *open) {
  int did = 0;
  *open = 0;
  for (int i = 0; i < f->nflows; i++) {
    struct kit_flow *flow = &f->flow[i];
    if (flow->error || flow->finished) continue;
    uint64_t before = kit_fault_begin(f);
    did += kit_flow_step(flow);
    kit_fault_note_duration(f, before, &f->record.call_ns);
    if (flow->error) flow_failed(f, s, flow);
    *open += !flow->error && !flow->finished;
  }
  return did;
}

/* Keeps accepting, as a listener that expects more peers: foreign clients connect to the same port. */
static void stay_open(struct kit_fault_state *f) {
  for (int i = 0; i < (int)f->plan.comms; i++) {
    struct rail_net_device_handle *dh = NULL;
    void *more = NULL;
    if (!f->listen[i] || f->net.vt->accept(f->listen[i], &more, &dh) != 0 || !more) continue;
    f->record.accepted++;
    f->net.vt->close_recv(more);
  }
}

static void idle(struct stream *s, int did) {
  if (did) s->quiet = 0;
  else kit_rest(&s->quiet);
}

static void summary(struct kit_fault_state *f) {
  struct kit_fault_record *t = &f->record;
  for (int i = 0; i < f->nflows; i++) {
    const struct kit_flow *flow = &f->flow[i];
    t->finished += flow->finished;
    t->bytes += flow->bytes;
    t->messages += flow->messages;
    t->wrong += flow->wrong;
    if (flow->wrong && !t->why[0]) snprintf(t->why, sizeof t->why, "%.190s", flow->why);
    if ((int64_t)flow->pause_ns > t->pause_ns) t->pause_ns = (int64_t)flow->pause_ns;
  }
}

static void turns(struct kit_fault_state *f, struct stream *s) {
  uint64_t look = 0;
  for (int open = f->nflows; open > 0;) {
    idle(s, step_all(f, s, &open));
    uint64_t now = rail_now_ns();
    if (now >= f->event_ns && !s->counted) count_cpu(f, s, now);
    if (now >= f->event_ns && !s->acted && act(f, s)) return;
    if (s->first_error && !s->measured && s->counted) count_cpu(f, s, now);
    if (now >= s->over && f->plan.act == KIT_ACT_CLIENTS && !s->undone) {
      s->undone = true;
      kit_injector_stop(f->injector);
    }
    if (now >= s->end && !s->ended && f->plan.goal != KIT_GOAL_ERROR) {
      s->ended = true;
      for (int i = 0; i < f->nflows; i++) kit_flow_end(&f->flow[i]);
    }
    if (now >= s->limit) return;
    bool abandons = f->plan.goal != KIT_GOAL_ERROR && s->first_error;
    if (abandons && now >= s->first_error + SETTLE_MS * 1000000ull) return;
    if (now < look || f->plan.act != KIT_ACT_CLIENTS) continue;
    look = now + 1000000;
    stay_open(f);
  }
}

void kit_fault_run_traffic(struct kit_fault_state *f) {
  f->record.phase = KIT_PHASE_STREAM;
  kit_shm_mapped(f->record.shm, sizeof f->record.shm);
  if (f->plan.when == KIT_WHEN_IDLE)
    for (int i = 0; i < f->nflows; i++) f->flow[i].hold = f->flow[i].sends;
  if (!f->event_ns) kit_fault_agree_on_time(f);
  struct stream s = timeline(f);
  turns(f, &s);
  if (s.counted && !s.measured) count_cpu(f, &s, rail_now_ns());
  summary(f);
}
