/* SPDX-License-Identifier: Apache-2.0
 * One process of a replay: one recorded file. */
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "kit/trace/kit_replay.h"
#include "kit/trace/replay_run.h"

#define RELAX_MS 500   /* nothing moves for so long: perhaps because sends are done later than recorded */
#define STALL_MS 20000 /* nothing moves for so long: it never will */
#define TELL_AT_MOST 20
#define SPIN_ROUNDS 500

void replay_differs(struct replay *r, uint64_t *counter, const char *fmt, ...) {
  char text[500];
  va_list ap;
  ++*counter;
  if (r->told++ >= TELL_AT_MOST) return;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  kit_note(r->side, "differs: %s%s", text, r->told == TELL_AT_MOST ? "; more are only counted" : "");
}

static void read_plan(struct replay *r) {
  const struct kit_job *job = kit_side_job(r->side);
  char *files[KIT_MAX_SIDES], why[700];
  for (int i = 0; i < job->nsides; i++) {
    char key[16];
    snprintf(key, sizeof key, "file%d", i);
    const char *file = kit_job_arg(job, key);
    ENSURE(file && (files[i] = strdup(file)), "no %s in the job", key);
  }
  bool ok = replay_plan_make(&r->plan, files, job->nsides, job->rank, why, sizeof why);
  for (int i = 0; i < job->nsides; i++) free(files[i]);
  ENSURE(ok, "%s", why);
}

static void prepare(struct replay *r) {
  struct rail_net_props_v12 props;
  struct replay_file *own = &r->plan.files[r->plan.own];
  const struct kit_job *job = kit_side_job(r->side);
  kit_net_open(&r->net);
  ENSURE_INT(r->net.vt->get_properties(RAIL_MAX(job->dev, 0), &props), RAIL_OK);
  ENSURE(own->max_group <= (unsigned int)RAIL_MIN(props.max_recvs, KIT_MAX_GROUP),
         "the recording has receives of %u buffers, the plugin takes %d", own->max_group, props.max_recvs);
  r->ends = calloc(own->ncomms + 1, sizeof *r->ends);
  ENSURE(r->ends && replay_text_make(r), "out of memory");
  for (size_t i = 0; i < own->ncomms; i++) {
    r->ends[i].plan = &own->comms[i];
    r->ends[i].done = calloc(own->comms[i].ncalls + 1, 1);
    ENSURE(r->ends[i].done, "out of memory");
  }
}

/* Nothing moves: is it that nothing is due yet? */
static bool all_in_future(const struct replay *r) {
  uint64_t now = rail_now_ns();
  for (size_t i = 0; i < r->plan.files[r->plan.own].ncomms; i++) {
    const struct replay_end *end = &r->ends[i];
    if (end->over) continue;
    const struct replay_call *call = &end->plan->calls[end->next];
    if (call->kind == REPLAY_DONE || now >= r->start_ns + call->ns) return false;
  }
  return true;
}

static void stuck(struct replay *r) {
  char text[200];
  for (size_t i = 0; i < r->plan.files[r->plan.own].ncomms; i++) {
    struct replay_end *end = &r->ends[i];
    if (end->over) continue;
    replay_waits(end, text, sizeof text);
    replay_differs(r, &r->result.undone, "nothing has moved for %d s: %s", STALL_MS / 1000, text);
  }
}

/* A plugin that buffers lets the caller go on where one that does not waits for the receiver: what the recording has
 * then can be an order in which both sides would wait for each other. */
static void relax(struct replay *r) {
  if (r->relaxed) return;
  r->relaxed = true;
  kit_note(r->side, "sends are done later than in the recording: posts do not wait for them any more");
}

static void run(struct replay *r) {
  size_t n = r->plan.files[r->plan.own].ncomms;
  uint64_t deadline = 0, patience = 0;
  unsigned int idle = 0;
  for (bool left = true; left;) {
    bool moved = false;
    left = false;
    for (size_t i = 0; i < n; i++) {
      moved |= replay_step(r, &r->ends[i]);
      left |= !r->ends[i].over;
    }
    if (moved || !deadline || (r->timed && all_in_future(r))) {
      deadline = rail_deadline_in_ms(kit_patience_ms(STALL_MS));
      patience = rail_deadline_in_ms(RELAX_MS);
    }
    if (left && rail_deadline_passed(patience)) relax(r);
    idle = moved ? 0 : idle + 1;
    if (idle > SPIN_ROUNDS) sched_yield(); /* the other side may need this core */
    else if (idle) rail_cpu_relax();
    if (left && rail_deadline_passed(deadline)) {
      stuck(r);
      return;
    }
  }
}

/* What the recording left open. Everybody has done everything by now. */
static void tidy(struct replay *r) {
  size_t n = r->plan.files[r->plan.own].ncomms;
  for (size_t i = 0; i < r->nmemory; i++) replay_memory_drop(r, &r->memory[i]);
  for (size_t i = 0; i < n; i++) {
    struct replay_end *end = &r->ends[i];
    for (size_t k = 0; k < end->nlive; k++)
      for (int b = 0; b < KIT_MAX_GROUP; b++) replay_memory_drop(r, &end->live[k].loose[b]);
    if (end->comm && end->plan->made_by == RAIL_TRACE_LISTEN) (void)r->net.vt->close_listen(end->comm);
    else if (end->comm && end->plan->made_by == RAIL_TRACE_CONNECT) (void)r->net.vt->close_send(end->comm);
    else if (end->comm) (void)r->net.vt->close_recv(end->comm);
    free(end->live);
    free(end->done);
  }
  kit_net_close(&r->net);
}

static void sum_up(struct replay *r) {
  static const double quantiles[REPLAY_QUANTILES] = {0.5, 0.99, 1};
  struct replay_result *to = &r->result;
  const struct replay_file *own = &r->plan.files[r->plan.own];
  to->left_out = r->plan.unmatched;
  to->unknown = r->plan.unknown;
  to->errors = own->errors;
  to->dropped = own->dropped;
  to->flushes = own->flushes;
  to->recorded_ns = r->plan.last_ns - r->plan.first_ns;
  to->replayed_ns = r->last_ns > r->first_ns ? r->last_ns - r->first_ns : 0;
  for (int side = 0; side < 2; side++) {
    for (int q = 0; q < REPLAY_QUANTILES; q++) {
      to->recorded[side][q] = kit_trace_list_at(&r->recorded[side], quantiles[q]);
      to->replayed[side][q] = kit_trace_list_at(&r->replayed[side], quantiles[q]);
    }
    free(r->recorded[side].v);
    free(r->replayed[side].v);
  }
}

void kit_replay_side(struct kit_side *side) {
  static struct replay r; /* a process has one */
  r.side = side;
  r.timed = kit_job_number(kit_side_job(side), "speed", 0) == 1;
  r.own_devices = kit_job_number(kit_side_job(side), "recorded_devices", 1) == 1;
  r.check = kit_job_number(kit_side_job(side), "check", 1) == 1;
  read_plan(&r);
  prepare(&r);
  kit_meet(side);
  r.start_ns = rail_now_ns();
  run(&r);
  kit_meet(side);
  sum_up(&r);
  tidy(&r);
  kit_tell(side, &r.result, sizeof r.result);
  free(r.text);
  free(r.ends);
  free(r.memory);
  kit_trace_map_free(&r.memory_by_id);
  replay_plan_free(&r.plan);
}
