/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/fault/fault_usage.h"
#include "kit/fault/kit_fault.h"
#include "kit/kit_call_trace.h"
#include "kit/preload/preload.h"
#include "kit/fault/fault_injector.h"
#include "kit/fault/fault_plan.h"
#include "kit/kit_net.h"
#include "kit/kit_process.h"
#include "kit/kit_tcp.h"
#include "kit/kit_traffic.h"

#define KIT_FAULT_COMMS 64
#define KIT_FAULT_SOCKETS 256

struct kit_fault_state {
  struct kit_process *self;
  int rank, peer;
  struct kit_fault_plan plan;
  struct kit_fault_record record;
  struct kit_injector *injector;
  struct kit_net net;
  struct kit_traffic_plan traffic;
  struct kit_tcp_socket before[KIT_FAULT_SOCKETS]; /* what was there before the plugin */
  int nbefore;
  void *listen[KIT_FAULT_COMMS], *comm[KIT_FAULT_COMMS];
  struct kit_flow flow[KIT_FAULT_COMMS];
  int nflows;
  bool dereg_done;
  char peer_result; /* about its connections: '?' nothing yet, 'y'es, 'n'o */
  uint64_t start_ns, event_ns; /* event_ns 0: not agreed yet */
  int64_t waited_ns;           /* for a core, when that was last looked at */
};

#define AGREED_MS 20 /* from the barrier to the moment that delays count from */
#define FOREVER_MS 600000
#define NOTABLE_NS 300000000ll
#define KEEP_TRYING_MS 4000 /* foreign clients stay that much longer where it takes so long to connect */

static bool is_victim(const struct kit_fault_state *f) { return kit_fault_is_victim(&f->plan, f->rank); }

static bool sends_on(const struct kit_fault_state *f, int connection) {
  int sender = f->plan.dirs == KIT_DIRS_BOTH ? connection % 2 : f->plan.dirs == KIT_DIRS_FORTH ? 0 : 1;
  return sender == f->rank;
}

static void note_error(struct kit_fault_state *f, int code, const char *call) {
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

/* The time that a busy machine took is not the plugin's. Looked at only when it matters. */
static int64_t without_waiting(struct kit_fault_state *f, int64_t took) {
  int64_t now = kit_run_delay_ns(), waited = now - f->waited_ns;
  f->waited_ns = now;
  return took > waited ? took - waited : 0;
}

static void note_duration(struct kit_fault_state *f, uint64_t before_ns, int64_t *longest) {
  int64_t took = (int64_t)(rail_now_ns() - before_ns);
  bool slept = f->plan.act == KIT_ACT_STOP && is_victim(f); /* not the call's fault */
  if (took > NOTABLE_NS) took = without_waiting(f, took);
  if (took > *longest && !slept) *longest = took;
}

/* ---- the moment ---- */

static void order(struct kit_fault_state *f, uint64_t at_ns, uint64_t last_ms) {
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

static void agree_on_time(struct kit_fault_state *f) {
  bool kills = f->plan.act == KIT_ACT_KILL;
  if (kills && is_victim(f)) kit_process_expect_death(f->self);
  if (kills && !is_victim(f)) kit_process_allow_loss(f->self, f->peer);
  kit_barrier(f->self);
  uint64_t moment = rail_now_ns() + AGREED_MS * 1000000ull;
  /* One clock on one host; between two, as well as the barrier allows. */
  if (kit_process_job(f->self)->hosts == 1 && f->rank == 0) kit_send_bytes(f->self, 1, &moment, sizeof moment);
  if (kit_process_job(f->self)->hosts == 1 && f->rank == 1) kit_recv_bytes(f->self, 0, &moment, sizeof moment);
  f->event_ns = moment + f->plan.delay_us * 1000;
  bool clients = f->plan.act == KIT_ACT_CLIENTS;
  bool injected = clients || kills || f->plan.act == KIT_ACT_STOP || f->plan.act == KIT_ACT_LINK;
  bool stays = clients && !f->plan.files;
  if (injected && is_victim(f))
    order(f, f->event_ns, f->plan.last_ms + (stays ? KEEP_TRYING_MS : 0));
}

/* ---- preparations ---- */

static void on_signal(int number) { (void)number; }

/* Foreign clients can use them up, then. The connections themselves must still fit. */
static void limit_files(const struct kit_fault_state *f, int more) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = (rlim_t)f->record.before.fds + (rlim_t)more;
  setrlimit(RLIMIT_NOFILE, &files);
}

static void prepare(struct kit_fault_state *f) {
  const struct kit_fault_plan *p = &f->plan;
  signal(SIGPIPE, SIG_DFL); /* as in a process that NCCL lives in; a shell may have left it ignored */
  f->traffic = (struct kit_traffic_plan){.seed = p->seed, .mix = (enum kit_traffic_mix)p->mix, .max = (size_t)p->max,
                                         .group = 1, .window = (int)p->window};
  ENSURE(kit_traffic_prepare(&f->traffic), "out of memory");
  f->injector = kit_injector_start();
  f->nbefore = kit_tcp_sockets(f->before, KIT_FAULT_SOCKETS);
  f->record = (struct kit_fault_record){.rank = f->rank, .connections = (int)p->comms, .first_ns = -1, .last_ns = -1,
                              .connect_ns = -1, .seen = -1};
  kit_usage_first_thread();
  f->record.before = kit_usage_now();
  kit_net_load(&f->net, kit_process_job(f->self)->version);
  f->start_ns = rail_now_ns();
  if (!is_victim(f)) return;
  bool shape = p->piece || p->buffer || p->interrupt, preload = p->act == KIT_ACT_FAIL || shape;
  ENSURE(!preload || kit_fail_loaded(), "librail-fault.so is not preloaded here");
  if (p->act == KIT_ACT_FAIL) kit_fail_arm((long)p->nth, (int)p->kinds);
  if (shape) kit_fail_shape((size_t)p->piece, (int)p->buffer, (int)p->interrupt, p->seed);
  if (p->files) limit_files(f, (int)p->files);
  if (p->act == KIT_ACT_SIGNALS) {
    struct sigaction plain = {.sa_handler = on_signal}; /* no SA_RESTART: every call that waits is interrupted */
    sigaction(KIT_INJECTED_SIGNAL, &plain, NULL);
    order(f, f->start_ns, FOREVER_MS);
  }
}

/* ---- From init to connections, where any call may fail and the peer may vanish ---- */

enum { CONNECT_MS = 8000, UNTOLD_MS = 1000, CLIENTS_MS = 1000 };

struct hello {
  int32_t fine, group;
  char handle[KIT_FAULT_COMMS][RAIL_NET_HANDLE_SIZE];
};

static bool start(struct kit_fault_state *f, int *group) {
  struct rail_net_config config = {.traffic_class = -1};
  struct rail_net_props_v12 props;
  const struct rail_net_v12 *vt = f->net.vt;
  int dev = kit_process_job(f->self)->dev;
  int rc = vt->init(&f->net.ctx, f->plan.seed, &config, kit_net_log, NULL);
  const char *call = "init";
  if (rc == 0) rc = vt->devices(&f->net.ndev), call = "devices";
  if (rc == 0 && f->net.ndev <= dev) {
    /* A failing call may have hidden it: that counts as an error, too. */
    if (f->plan.act != KIT_ACT_FAIL) kit_skip("the plugin has %d devices here, none with number %d", f->net.ndev, dev);
    rc = RAIL_SYSTEM_ERROR;
  }
  f->net.dev = dev;
  if (rc == 0) rc = kit_net_fuse(&f->net), call = "makeVDevice";
  if (rc == 0) rc = vt->get_properties(f->net.dev, &props), call = "getProperties";
  if (rc != 0) {
    note_error(f, rc, call);
    return false;
  }
  *group = props.max_recvs < 1 ? 1 : props.max_recvs > KIT_TRAFFIC_BLOCK ? KIT_TRAFFIC_BLOCK : props.max_recvs;
  return true;
}

static bool listen_all(struct kit_fault_state *f, struct hello *mine) {
  for (int i = 0; i < (int)f->plan.comms; i++) {
    if (sends_on(f, i)) continue;
    int rc = f->net.vt->listen(f->net.ctx, f->net.dev, mine->handle[i], &f->listen[i]);
    if (rc == 0) continue;
    f->listen[i] = NULL;
    note_error(f, rc, "listen");
    return false;
  }
  return true;
}

/* Not for one that was to be killed meanwhile. */
static bool waits_for_other(const struct kit_fault_state *f) {
  return !(f->plan.act == KIT_ACT_KILL && f->plan.when == KIT_WHEN_CONNECTING);
}

/* True when it came. An error is noted. */
static bool connect_one(struct kit_fault_state *f, int i, struct hello *theirs) {
  struct rail_net_device_handle *dh = NULL;
  bool sends = sends_on(f, i);
  uint64_t before = rail_now_ns();
  int rc = sends ? f->net.vt->connect(f->net.ctx, f->net.dev, theirs->handle[i], &f->comm[i], &dh)
                 : f->net.vt->accept(f->listen[i], &f->comm[i], &dh);
  note_duration(f, before, &f->record.call_ns);
  if (rc == 0) return f->comm[i] != NULL;
  f->comm[i] = NULL;
  note_error(f, rc, sends ? "connect" : "accept");
  return false;
}

/* Has the peer reported its result? Then until when this process keeps trying: not long when the peer gave up, nor,
 * where calls fail, when it has all it wanted; a failure may have been at this end of a connection. */
static uint64_t try_until(struct kit_fault_state *f, uint64_t until) {
  if (f->peer_result != '?' || !waits_for_other(f) || !kit_bytes_ready(f->self, f->peer, 1)) return until;
  kit_recv_bytes(f->self, f->peer, &f->peer_result, 1);
  bool soon = f->peer_result == 'n' || f->plan.act == KIT_ACT_FAIL;
  return soon ? rail_deadline_in_ms(UNTOLD_MS) : until;
}

static bool connect_all(struct kit_fault_state *f, struct hello *theirs) {
  uint64_t limit = f->plan.goal == KIT_GOAL_ERROR ? f->plan.patience_ms : CONNECT_MS;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(limit));
  for (int left = 1; left > 0; usleep(20)) {
    left = 0;
    for (int i = 0; i < (int)f->plan.comms && !f->record.code; i++)
      left += !f->comm[i] && !connect_one(f, i, theirs);
    if (f->record.code) return false;
    deadline = try_until(f, deadline);
    if (left > 0 && rail_deadline_passed(deadline)) return false;
  }
  return true;
}

/* What happens while connecting happens soon after this. */
static void wait_for_moment(const struct kit_fault_state *f) {
  uint64_t moment = f->event_ns - f->plan.delay_us * 1000, now = rail_now_ns();
  if (moment > now) usleep((useconds_t)((moment - now) / 1000));
}

static void wait_for_clients(struct kit_fault_state *f) {
  uint64_t deadline = rail_deadline_in_ms(CLIENTS_MS);
  if (f->plan.act != KIT_ACT_CLIENTS || !is_victim(f)) return;
  while (kit_injector_clients(f->injector) < (int)f->plan.count / 2 && !rail_deadline_passed(deadline)) usleep(500);
}

static bool open_flows(struct kit_fault_state *f) {
  for (int i = 0; i < (int)f->plan.comms; i++) {
    struct kit_flow *flow = &f->flow[i];
    rail_result_t r = kit_flow_open(flow, &f->traffic, f->net.any, f->comm[i], sends_on(f, i), (uint32_t)i);
    if (r != RAIL_OK) {
      note_error(f, (int)r, "regMr");
      return false;
    }
    f->nflows++;
  }
  return true;
}

/* Both report their results. */
static bool both(struct kit_fault_state *f, bool fine) {
  char mine = fine ? 'y' : 'n';
  if (!waits_for_other(f)) return fine;
  kit_send_bytes(f->self, f->peer, &mine, 1);
  if (f->peer_result == '?') kit_recv_bytes(f->self, f->peer, &f->peer_result, 1);
  return fine && f->peer_result == 'y';
}

static bool hellos(struct kit_fault_state *f, bool fine, int group, struct hello *mine, struct hello *theirs) {
  mine->fine = fine;
  mine->group = group;
  kit_exchange(f->self, f->peer, mine, theirs, sizeof *mine);
  int least = theirs->group < group ? theirs->group : group;
  f->traffic.group = (int)f->plan.group < least ? (int)f->plan.group : least;
  f->traffic.oldest_only = least == 1; /* whether more is asked of such a plugin is for conform to find */
  return fine && theirs->fine;
}

static bool connect_all_flows(struct kit_fault_state *f) {
  static struct hello mine, theirs;
  f->peer_result = '?';
  int group = 1;
  memset(&mine, 0xa5, sizeof mine);
  bool fine = start(f, &group);
  if (fine) f->record.phase = KIT_PHASE_CONNECT;
  fine = fine && listen_all(f, &mine);
  if (!hellos(f, fine, group, &mine, &theirs)) return false;
  if (f->plan.when == KIT_WHEN_CONNECTING) {
    agree_on_time(f);
    wait_for_moment(f);
    wait_for_clients(f);
  }
  uint64_t begin = rail_now_ns();
  fine = connect_all(f, &theirs);
  if (fine) f->record.connect_ns = (int64_t)(rail_now_ns() - begin);
  fine = fine && open_flows(f);
  return both(f, fine);
}

/* ---- Data flows while it happens, in order or not, until all is reported ---- */

enum {
  SETTLE_MS = 300,    /* after the first error, for the others to get theirs */
  FINISH_MS = 8000,  /* for what is left after the last message was sent */
  STAY_MS = 250,      /* foreign clients, once data flows */
  QUIET = 100,        /* turns without news, then the caller sleeps a little, as it well may */
  QUIET_US = 50,
  SCRIBBLED = 50,     /* turns after deregMr in which the memory must stay as it is */
};

struct stream {
  uint64_t over, end, limit; /* when it is undone, when the senders end, when patience does */
  bool acted, undone, ended, measured;
  uint64_t first_error;
  double cpu, cpu_plugin; /* at the event */
  bool counted;
  unsigned quiet;
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
  if (!is_victim(f)) return false;
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
  note_error(f, (int)flow->error, flow->error_call);
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
    uint64_t before = rail_now_ns();
    did += kit_flow_step(flow);
    note_duration(f, before, &f->record.call_ns);
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
  else if (s->quiet++ < QUIET) sched_yield();
  else usleep(QUIET_US);
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

static void run_traffic(struct kit_fault_state *f) {
  f->record.phase = KIT_PHASE_STREAM;
  kit_shm_mapped(f->record.shm, sizeof f->record.shm);
  if (f->plan.when == KIT_WHEN_IDLE)
    for (int i = 0; i < f->nflows; i++) f->flow[i].hold = f->flow[i].sends;
  if (!f->event_ns) agree_on_time(f);
  struct stream s = timeline(f);
  turns(f, &s);
  if (s.counted && !s.measured) count_cpu(f, &s, rail_now_ns());
  summary(f);
}

/* ---- the end ---- */

static void must_do(struct kit_fault_state *f, int code, const char *call) {
  if (code == 0 || f->record.close_code) return;
  f->record.close_code = code;
  snprintf(f->record.close_call, sizeof f->record.close_call, "%s", call);
}

static void close_all(struct kit_fault_state *f) {
  const struct rail_net_v12 *vt = f->net.vt;
  for (int i = 0; i < (int)f->plan.comms; i++) {
    uint64_t since = rail_now_ns();
    if (i < f->nflows && !f->dereg_done) must_do(f, (int)kit_flow_dereg(&f->flow[i]), "deregMr");
    if (!f->comm[i]) continue;
    if (sends_on(f, i)) must_do(f, vt->close_send(f->comm[i]), "closeSend");
    else must_do(f, vt->close_recv(f->comm[i]), "closeRecv");
    note_duration(f, since, &f->record.close_ns);
  }
  for (int i = 0; i < (int)f->plan.comms; i++) {
    uint64_t since = rail_now_ns();
    if (f->listen[i]) must_do(f, vt->close_listen(f->listen[i]), "closeListen");
    note_duration(f, since, &f->record.close_ns);
  }
  for (int i = 0; i < f->nflows; i++) kit_flow_free(&f->flow[i]);
}

static void end_plugin(struct kit_fault_state *f) {
  uint64_t since = rail_now_ns();
  if (f->net.vt->finalize) must_do(f, f->net.vt->finalize(f->net.ctx), "finalize");
  note_duration(f, since, &f->record.close_ns);
  kit_call_begin(KIT_CALL_UNLOAD);
  rail_net_unload(f->net.any);
  kit_call_end();
}

static void report(struct kit_fault_state *f) {
  struct kit_fault_record *t = &f->record;
  if (f->plan.act == KIT_ACT_FAIL && is_victim(f)) {
    kit_fail_disarm();
    t->seen = kit_fail_seen();
    if (kit_fail_hit()) snprintf(t->failed, sizeof t->failed, "%s", kit_fail_hit());
  }
  if (kit_fail_loaded()) t->shaped = kit_fail_shaped();
  t->clients = kit_injector_clients(f->injector);
  t->signals = kit_injector_signals(f->injector);
  kit_traffic_release(&f->traffic);
  t->after = kit_usage_settled(&t->before);
  kit_send_record(f->self, t, sizeof *t);
}

void kit_fault_process(struct kit_process *self) {
  static struct kit_fault_state f;
  f.self = self;
  f.rank = kit_process_rank(self);
  f.peer = 1 - f.rank;
  f.plan = kit_fault_plan_get(kit_process_job(self));
  prepare(&f);
  if (connect_all_flows(&f)) run_traffic(&f);
  close_all(&f);
  end_plugin(&f);
  report(&f);
  kit_injector_end(f.injector);
}
