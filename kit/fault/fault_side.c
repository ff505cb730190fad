/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/fault/fault_side.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "common/base/clock.h"
#include "kit/fault/fault_usage.h"
#include "kit/fault/kit_fault.h"
#include "kit/kit_trail.h"
#include "kit/preload/preload.h"

#define AGREED_MS 20 /* from the meeting to the moment that delays count from */
#define FOREVER_MS 600000
#define NOTABLE_NS 300000000ll
#define KEEP_TRYING_MS 4000 /* strangers stay that much longer where it takes so long to connect */

bool kit_faulty_is_victim(const struct kit_faulty *f) { return kit_fault_is_victim(&f->plan, f->rank); }

bool kit_faulty_sends(const struct kit_faulty *f, int connection) {
  int sender = f->plan.dirs == KIT_DIRS_BOTH ? connection % 2 : f->plan.dirs == KIT_DIRS_FORTH ? 0 : 1;
  return sender == f->rank;
}

void kit_faulty_error(struct kit_faulty *f, int code, const char *call) {
  struct kit_told *t = &f->told;
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
static int64_t without_waiting(struct kit_faulty *f, int64_t took) {
  int64_t now = kit_run_delay_ns(), waited = now - f->waited_ns;
  f->waited_ns = now;
  return took > waited ? took - waited : 0;
}

void kit_faulty_timed(struct kit_faulty *f, uint64_t before_ns, int64_t *longest) {
  int64_t took = (int64_t)(rail_now_ns() - before_ns);
  bool slept = f->plan.act == KIT_ACT_STOP && kit_faulty_is_victim(f); /* not the call's fault */
  if (took > NOTABLE_NS) took = without_waiting(f, took);
  if (took > *longest && !slept) *longest = took;
}

/* ---- the moment ---- */

static void order(struct kit_faulty *f, uint64_t at_ns, uint64_t last_ms) {
  static struct kit_tcp_socket doors[KIT_HAND_PORTS];
  struct kit_hand_order o = {.act = f->plan.act, .how = f->plan.how, .count = f->plan.count, .seed = f->plan.seed,
                             .at_ns = at_ns, .last_ms = last_ms, .rank = f->rank};
  if (f->plan.act == KIT_ACT_STRANGERS) {
    o.nports = kit_tcp_new_listeners(f->before, f->nbefore, doors, KIT_HAND_PORTS);
    if (o.nports == 0) kit_skip("the plugin listens on no TCP port");
    for (int i = 0; i < o.nports; i++) {
      o.port[i].addr = doors[i].local;
      o.port[i].size = doors[i].local_len;
    }
  }
  if (f->plan.act == KIT_ACT_LINK) o.link = kit_fault_port_get(kit_side_job(f->side), f->rank);
  kit_hand_do(f->hand, &o);
}

void kit_faulty_agree(struct kit_faulty *f) {
  bool kills = f->plan.act == KIT_ACT_KILL;
  if (kills && kit_faulty_is_victim(f)) kit_side_will_die(f->side);
  if (kills && !kit_faulty_is_victim(f)) kit_side_may_lose(f->side, f->peer);
  kit_meet(f->side);
  uint64_t moment = rail_now_ns() + AGREED_MS * 1000000ull;
  /* One clock on one host; between two, as well as the meeting tells. */
  if (kit_side_job(f->side)->hosts == 1 && f->rank == 0) kit_put(f->side, 1, &moment, sizeof moment);
  if (kit_side_job(f->side)->hosts == 1 && f->rank == 1) kit_get(f->side, 0, &moment, sizeof moment);
  f->event_ns = moment + f->plan.delay_us * 1000;
  bool strangers = f->plan.act == KIT_ACT_STRANGERS;
  bool by_hand = strangers || kills || f->plan.act == KIT_ACT_STOP || f->plan.act == KIT_ACT_LINK;
  bool stays = strangers && !f->plan.files;
  if (by_hand && kit_faulty_is_victim(f))
    order(f, f->event_ns, f->plan.last_ms + (stays ? KEEP_TRYING_MS : 0));
}

/* ---- preparations ---- */

static void on_signal(int number) { (void)number; }

/* Strangers can use them up, then. The connections themselves must still fit. */
static void limit_files(const struct kit_faulty *f, int more) {
  struct rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = (rlim_t)f->told.before.fds + (rlim_t)more;
  setrlimit(RLIMIT_NOFILE, &files);
}

static void prepare(struct kit_faulty *f) {
  const struct kit_fault_plan *p = &f->plan;
  signal(SIGPIPE, SIG_DFL); /* as in a process that NCCL lives in; a shell may have left it ignored */
  f->traffic = (struct kit_traffic_plan){.seed = p->seed, .mix = (enum kit_traffic_mix)p->mix, .max = (size_t)p->max,
                                         .group = 1, .window = (int)p->window};
  ENSURE(kit_traffic_prepare(&f->traffic), "out of memory");
  f->hand = kit_hand_start();
  f->nbefore = kit_tcp_sockets(f->before, KIT_FAULT_SOCKETS);
  f->told = (struct kit_told){.rank = f->rank, .connections = (int)p->comms, .first_ns = -1, .last_ns = -1,
                              .connect_ns = -1, .seen = -1};
  kit_usage_first_thread();
  f->told.before = kit_usage_now();
  kit_net_load(&f->net, kit_side_job(f->side)->version);
  f->start_ns = rail_now_ns();
  if (!kit_faulty_is_victim(f)) return;
  bool shape = p->piece || p->buffer || p->interrupt, preload = p->act == KIT_ACT_FAIL || shape;
  ENSURE(!preload || kit_fail_loaded(), "librail-fault.so is not preloaded here");
  if (p->act == KIT_ACT_FAIL) kit_fail_arm((long)p->nth, (int)p->kinds);
  if (shape) kit_fail_shape((size_t)p->piece, (int)p->buffer, (int)p->interrupt, p->seed);
  if (p->files) limit_files(f, (int)p->files);
  if (p->act == KIT_ACT_STORM) {
    struct sigaction plain = {.sa_handler = on_signal}; /* no SA_RESTART: every call that waits is interrupted */
    sigaction(KIT_STORM_SIGNAL, &plain, NULL);
    order(f, f->start_ns, FOREVER_MS);
  }
}

/* ---- the end ---- */

static void must_do(struct kit_faulty *f, int code, const char *call) {
  if (code == 0 || f->told.close_code) return;
  f->told.close_code = code;
  snprintf(f->told.close_call, sizeof f->told.close_call, "%s", call);
}

static void close_all(struct kit_faulty *f) {
  const struct rail_net_v12 *vt = f->net.vt;
  for (int i = 0; i < (int)f->plan.comms; i++) {
    uint64_t since = rail_now_ns();
    if (i < f->nflows && !f->dereg_done) must_do(f, (int)kit_flow_dereg(&f->flow[i]), "deregMr");
    if (!f->comm[i]) continue;
    if (kit_faulty_sends(f, i)) must_do(f, vt->close_send(f->comm[i]), "closeSend");
    else must_do(f, vt->close_recv(f->comm[i]), "closeRecv");
    kit_faulty_timed(f, since, &f->told.close_ns);
  }
  for (int i = 0; i < (int)f->plan.comms; i++) {
    uint64_t since = rail_now_ns();
    if (f->listen[i]) must_do(f, vt->close_listen(f->listen[i]), "closeListen");
    kit_faulty_timed(f, since, &f->told.close_ns);
  }
  for (int i = 0; i < f->nflows; i++) kit_flow_free(&f->flow[i]);
}

static void end_plugin(struct kit_faulty *f) {
  uint64_t since = rail_now_ns();
  if (f->net.vt->finalize) must_do(f, f->net.vt->finalize(f->net.ctx), "finalize");
  kit_faulty_timed(f, since, &f->told.close_ns);
  kit_trail_enter(KIT_CALL_UNLOAD);
  rail_net_unload(f->net.any);
  kit_trail_leave();
}

static void report(struct kit_faulty *f) {
  struct kit_told *t = &f->told;
  if (f->plan.act == KIT_ACT_FAIL && kit_faulty_is_victim(f)) {
    kit_fail_disarm();
    t->seen = kit_fail_seen();
    if (kit_fail_hit()) snprintf(t->failed, sizeof t->failed, "%s", kit_fail_hit());
  }
  if (kit_fail_loaded()) t->shaped = kit_fail_shaped();
  t->strangers = kit_hand_strangers(f->hand);
  t->signals = kit_hand_signals(f->hand);
  kit_traffic_release(&f->traffic);
  t->after = kit_usage_settled(&t->before);
  kit_tell(f->side, t, sizeof *t);
}

void kit_fault_side(struct kit_side *side) {
  static struct kit_faulty f;
  f.side = side;
  f.rank = kit_side_rank(side);
  f.peer = 1 - f.rank;
  f.plan = kit_fault_plan_get(kit_side_job(side));
  prepare(&f);
  if (kit_faulty_meet(&f)) kit_faulty_stream(&f);
  close_all(&f);
  end_plugin(&f);
  report(&f);
  kit_hand_end(f.hand);
}
