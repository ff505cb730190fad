/* SPDX-License-Identifier: Apache-2.0
 * One process during a fault, from the start to the report. */
#include "kit/fault/fault_process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/fault/fault_usage.h"
#include "kit/fault/kit_fault.h"
#include "kit/kit_call_trace.h"
#include "kit/preload/preload.h"

#define FOREVER_MS 600000

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
  kit_fds_note();
  kit_net_load(&f->net, kit_process_job(f->self)->version);
  f->start_ns = rail_now_ns();
  if (!kit_fault_state_is_victim(f)) return;
  bool shape = p->piece || p->buffer || p->interrupt, preload = p->act == KIT_ACT_FAIL || shape;
  ENSURE(!preload || kit_fail_loaded(), "librail-fault.so is not preloaded here");
  if (p->act == KIT_ACT_FAIL) kit_fail_arm((long)p->nth, (int)p->kinds);
  if (shape) kit_fail_shape((size_t)p->piece, (int)p->buffer, (int)p->interrupt, p->seed);
  if (p->files) limit_files(f, (int)p->files);
  if (p->act == KIT_ACT_SIGNALS) {
    struct sigaction plain = {.sa_handler = on_signal}; /* no SA_RESTART: every call that waits is interrupted */
    sigaction(KIT_INJECTED_SIGNAL, &plain, NULL);
    kit_fault_order(f, f->start_ns, FOREVER_MS);
  }
}

/* ---- From init to connections, where any call may fail and the peer may vanish ---- */

enum { CONNECT_MS = 8000, PEER_FAILED_MS = 1000, CLIENTS_MS = 1000 };

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
    kit_fault_note_error(f, rc, call);
    return false;
  }
  *group = props.max_recvs < 1 ? 1 : props.max_recvs > KIT_TRAFFIC_BLOCK ? KIT_TRAFFIC_BLOCK : props.max_recvs;
  return true;
}

static bool listen_all(struct kit_fault_state *f, struct hello *mine) {
  for (int i = 0; i < (int)f->plan.comms; i++) {
    if (kit_fault_state_sends(f, i)) continue;
    int rc = f->net.vt->listen(f->net.ctx, f->net.dev, mine->handle[i], &f->listen[i]);
    if (rc == 0) continue;
    f->listen[i] = NULL;
    kit_fault_note_error(f, rc, "listen");
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
  bool sends = kit_fault_state_sends(f, i);
  uint64_t before = kit_fault_begin(f);
  int rc = sends ? f->net.vt->connect(f->net.ctx, f->net.dev, theirs->handle[i], &f->comm[i], &dh)
                 : f->net.vt->accept(f->listen[i], &f->comm[i], &dh);
  kit_fault_note_duration(f, before, &f->record.call_ns);
  if (rc == 0) return f->comm[i] != NULL;
  f->comm[i] = NULL;
  kit_fault_note_error(f, rc, sends ? "connect" : "accept");
  return false;
}

/* Has the peer reported its result? Then until when this process keeps trying: not long when the peer gave up, nor,
 * where calls fail, when it has all it wanted; a failure may have been at this end of a connection. */
static uint64_t try_until(struct kit_fault_state *f, uint64_t until) {
  if (f->peer_result != '?' || !waits_for_other(f) || !kit_bytes_ready(f->self, f->peer, 1)) return until;
  kit_recv_bytes(f->self, f->peer, &f->peer_result, 1);
  bool soon = f->peer_result == 'n' || f->plan.act == KIT_ACT_FAIL;
  return soon ? rail_deadline_in_ms(PEER_FAILED_MS) : until;
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
  if (f->plan.act != KIT_ACT_CLIENTS || !kit_fault_state_is_victim(f)) return;
  while (kit_injector_clients(f->injector) < (int)f->plan.count / 2 && !rail_deadline_passed(deadline)) usleep(500);
}

static bool open_flows(struct kit_fault_state *f) {
  for (int i = 0; i < (int)f->plan.comms; i++) {
    struct kit_flow *flow = &f->flow[i];
    rail_result_t r =
        kit_flow_open(flow, &f->traffic, f->net.any, f->comm[i], kit_fault_state_sends(f, i), (uint32_t)i);
    if (r != RAIL_OK) {
      kit_fault_note_error(f, (int)r, "regMr");
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
    kit_fault_agree_on_time(f);
    wait_for_moment(f);
    wait_for_clients(f);
  }
  uint64_t begin = rail_now_ns();
  fine = connect_all(f, &theirs);
  if (fine) f->record.connect_ns = (int64_t)(rail_now_ns() - begin);
  fine = fine && open_flows(f);
  return both(f, fine);
}

/* ---- the end ---- */

static void record_close_error(struct kit_fault_state *f, int code, const char *call) {
  if (code == 0 || f->record.close_code) return;
  f->record.close_code = code;
  snprintf(f->record.close_call, sizeof f->record.close_call, "%s", call);
}

static void close_all(struct kit_fault_state *f) {
  const struct rail_net_v12 *vt = f->net.vt;
  for (int i = 0; i < (int)f->plan.comms; i++) {
    uint64_t since = kit_fault_begin(f);
    if (i < f->nflows && !f->dereg_done) record_close_error(f, (int)kit_flow_dereg(&f->flow[i]), "deregMr");
    if (!f->comm[i]) continue;
    if (kit_fault_state_sends(f, i)) record_close_error(f, vt->close_send(f->comm[i]), "closeSend");
    else record_close_error(f, vt->close_recv(f->comm[i]), "closeRecv");
    kit_fault_note_duration(f, since, &f->record.close_ns);
  }
  for (int i = 0; i < (int)f->plan.comms; i++) {
    uint64_t since = kit_fault_begin(f);
    if (f->listen[i]) record_close_error(f, vt->close_listen(f->listen[i]), "closeListen");
    kit_fault_note_duration(f, since, &f->record.close_ns);
  }
  for (int i = 0; i < f->nflows; i++) kit_flow_free(&f->flow[i]);
}

static void end_plugin(struct kit_fault_state *f) {
  uint64_t since = kit_fault_begin(f);
  if (f->net.vt->finalize) record_close_error(f, f->net.vt->finalize(f->net.ctx), "finalize");
  kit_fault_note_duration(f, since, &f->record.close_ns);
  kit_call_begin(KIT_CALL_UNLOAD);
  rail_net_unload(f->net.any);
  kit_call_end();
}

static void report(struct kit_fault_state *f) {
  struct kit_fault_record *t = &f->record;
  if (f->plan.act == KIT_ACT_FAIL && kit_fault_state_is_victim(f)) {
    kit_fail_disarm();
    t->seen = kit_fail_seen();
    if (kit_fail_hit()) snprintf(t->failed, sizeof t->failed, "%s", kit_fail_hit());
  }
  if (kit_fail_loaded()) t->shaped = kit_fail_shaped();
  t->clients = kit_injector_clients(f->injector);
  t->signals = kit_injector_signals(f->injector);
  kit_traffic_release(&f->traffic);
  t->after = kit_usage_settled(&t->before);
  if (t->after.fds > t->before.fds) kit_fds_new(t->left, sizeof t->left);
  kit_send_record(f->self, t, sizeof *t);
}

void kit_fault_process(struct kit_process *self) {
  static struct kit_fault_state f;
  f.self = self;
  f.rank = kit_process_rank(self);
  f.peer = 1 - f.rank;
  f.plan = kit_fault_plan_get(kit_process_job(self));
  prepare(&f);
  if (connect_all_flows(&f)) kit_fault_run_traffic(&f);
  close_all(&f);
  end_plugin(&f);
  report(&f);
  kit_injector_end(f.injector);
}
