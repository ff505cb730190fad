/* SPDX-License-Identifier: Apache-2.0
 * Data flows while it happens, in order or not, until all is said. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/fault/fault_side.h"
#include "kit/fault/fault_usage.h"

enum {
  SETTLE_MS = 300,    /* after the first error, for the others to be told theirs */
  FINISH_MS = 8000,  /* for what is left after the last message was sent */
  STAY_MS = 250,      /* strangers, once data flows */
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

/* ---- what a side does to itself ---- */

static void reset_sockets(struct kit_faulty *f) {
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

/* From its return on the memory is the caller's: what it writes stays, and nobody sends it. */
static void dereg_all(struct kit_faulty *f) {
  for (int i = 0; i < f->nflows; i++) {
    rail_result_t r = kit_flow_dereg(&f->flow[i]);
    if (r == RAIL_OK || f->told.close_code) continue;
    f->told.close_code = (int)r;
    snprintf(f->told.close_call, sizeof f->told.close_call, "deregMr");
  }
  f->dereg_done = true;
  for (int i = 0; i < f->nflows; i++) kit_flow_scribble(&f->flow[i]);
  for (int turn = 0; turn < SCRIBBLED; turn++) { /* a test here may fail, but must not move these bytes */
    for (int i = 0; i < f->nflows; i++) kit_flow_test_after_error(&f->flow[i]);
    usleep(1000);
  }
  for (int i = 0; i < f->nflows; i++) f->told.moved += !kit_flow_untouched(&f->flow[i]);
}

/* True: this side is done. */
static bool act(struct kit_faulty *f, struct stream *s) {
  s->acted = true;
  if (f->plan.when == KIT_WHEN_IDLE)
    for (int i = 0; i < f->nflows; i++) f->flow[i].hold = false;
  if (!kit_faulty_is_victim(f)) return false;
  switch ((enum kit_act)f->plan.act) {
  case KIT_ACT_CLOSE: return true;
  case KIT_ACT_DEREG: dereg_all(f); return true;
  case KIT_ACT_RESET: reset_sockets(f); return false;
  default: return false; /* the hand's, or nobody's */
  }
}

/* ---- the clock ---- */

static struct stream timeline(const struct kit_faulty *f) {
  const struct kit_fault_plan *p = &f->plan;
  struct stream s = {0};
  uint64_t now = rail_now_ns();
  s.over = f->event_ns + p->last_ms * 1000000;
  if (p->act == KIT_ACT_STRANGERS && s.over < now + STAY_MS * 1000000) s.over = now + STAY_MS * 1000000;
  s.end = s.over + p->after_ms * 1000000;
  s.limit = p->goal == KIT_GOAL_TOLD ? f->event_ns + kit_patience_ms(p->patience_ms) * 1000000
                                     : s.end + kit_patience_ms(FINISH_MS) * 1000000;
  return s;
}

static void count_cpu(struct kit_faulty *f, struct stream *s, uint64_t now) {
  double cpu = (double)kit_cpu_ns() / 1e9, plugin = kit_cpu_of_others();
  if (!s->counted) {
    s->cpu = cpu;
    s->cpu_plugin = plugin;
    s->counted = true;
    return;
  }
  if (s->measured) return;
  s->measured = true;
  f->told.stuck_s = (double)(now - f->event_ns) / 1e9;
  f->told.stuck_cpu = cpu - s->cpu;
  f->told.stuck_cpu_plugin = plugin - s->cpu_plugin;
}

/* ---- the turns ---- */

static void note_error(struct kit_faulty *f, struct stream *s, struct kit_flow *flow) {
  kit_faulty_error(f, (int)flow->error, flow->error_call);
  f->told.errors++;
  if (!s->first_error) s->first_error = rail_now_ns();
  kit_flow_test_after_error(flow);
}

static int step_all(struct kit_faulty *f, struct stream *s, int *open) {
  int did = 0;
  *open = 0;
  for (int i = 0; i < f->nflows; i++) {
    struct kit_flow *flow = &f->flow[i];
    if (flow->error || flow->finished) continue;
    uint64_t before = rail_now_ns();
    did += kit_flow_step(flow);
    kit_faulty_timed(f, before, &f->told.call_ns);
    if (flow->error) note_error(f, s, flow);
    *open += !flow->error && !flow->finished;
  }
  return did;
}

/* As one who waits for more peers: strangers come to the same door. */
static void stay_open(struct kit_faulty *f) {
  for (int i = 0; i < (int)f->plan.comms; i++) {
    struct rail_net_device_handle *dh = NULL;
    void *more = NULL;
    if (!f->listen[i] || f->net.vt->accept(f->listen[i], &more, &dh) != 0 || !more) continue;
    f->told.accepted++;
    f->net.vt->close_recv(more);
  }
}

static void idle(struct stream *s, int did) {
  if (did) s->quiet = 0;
  else if (s->quiet++ < QUIET) sched_yield();
  else usleep(QUIET_US);
}

static void summary(struct kit_faulty *f) {
  struct kit_told *t = &f->told;
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

static void turns(struct kit_faulty *f, struct stream *s) {
  uint64_t look = 0;
  for (int open = f->nflows; open > 0;) {
    idle(s, step_all(f, s, &open));
    uint64_t now = rail_now_ns();
    if (now >= f->event_ns && !s->counted) count_cpu(f, s, now);
    if (now >= f->event_ns && !s->acted && act(f, s)) return;
    if (s->first_error && !s->measured && s->counted) count_cpu(f, s, now);
    if (now >= s->over && f->plan.act == KIT_ACT_STRANGERS && !s->undone) {
      s->undone = true;
      kit_hand_stop(f->hand);
    }
    if (now >= s->end && !s->ended && f->plan.goal != KIT_GOAL_TOLD) {
      s->ended = true;
      for (int i = 0; i < f->nflows; i++) kit_flow_end(&f->flow[i]);
    }
    if (now >= s->limit) return;
    bool abandons = f->plan.goal != KIT_GOAL_TOLD && s->first_error;
    if (abandons && now >= s->first_error + SETTLE_MS * 1000000ull) return;
    if (now < look || f->plan.act != KIT_ACT_STRANGERS) continue;
    look = now + 1000000;
    stay_open(f);
  }
}

void kit_faulty_stream(struct kit_faulty *f) {
  f->told.phase = KIT_PHASE_STREAM;
  kit_shm_mapped(f->told.shm, sizeof f->told.shm);
  if (f->plan.when == KIT_WHEN_IDLE)
    for (int i = 0; i < f->nflows; i++) f->flow[i].hold = f->flow[i].sends;
  if (!f->event_ns) kit_faulty_agree(f);
  struct stream s = timeline(f);
  turns(f, &s);
  if (s.counted && !s.measured) count_cpu(f, &s, rail_now_ns());
  summary(f);
}
