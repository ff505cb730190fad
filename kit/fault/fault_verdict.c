/* SPDX-License-Identifier: Apache-2.0
 * What each process reported of a fault: findings, notes and figures of the scenario's result. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/result.h"
#include "kit/fault/kit_fault.h"

#define SLOW_MS 1000    /* a call */
#define HELD_UP_MS 6000 /* a close, where the network kept bytes back that were reported as sent */
#define CONNECT_MS 2500 /* with foreign clients connected, which leave later */
#define HEAP_BYTES (256 << 10)

static bool longer(int64_t ns, uint64_t ms) { return ns > (int64_t)kit_patience_ms(ms) * 1000000; }

static double seconds(int64_t ns) { return (double)ns / 1e9; }

/* ---- findings ---- */

__attribute__((format(printf, 4, 5))) static void finding(struct kit_trial *t, enum kit_level level, int rank,
                                                          const char *fmt, ...) {
  struct kit_result *r = t->result;
  char text[700];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (r->end == KIT_END_FINE || level < r->level) r->level = level;
  if (r->end == KIT_END_FINE) r->end = KIT_END_FAILED;
  size_t at = strlen(r->text);
  snprintf(r->text + at, sizeof r->text - at, "%s%s: %s%sside %d%s: %s", at ? "\n" : "", kit_level_text(level),
           t->about ? t->about : "", t->about ? ": " : "", rank,
           kit_fault_is_victim(&t->plan, rank) && t->plan.act ? " (it happened to)" : "", text);
}

static bool died(const struct kit_trial *t, int rank) {
  return t->plan.act == KIT_ACT_KILL && kit_fault_is_victim(&t->plan, rank);
}

/* The process itself. */
static void check_end(struct kit_trial *t, int rank) {
  const struct kit_process_end *e = &t->outcome.sides[rank];
  struct kit_result *r = t->result;
  if (died(t, rank) || e->end == KIT_END_FINE || e->end == KIT_END_LOST) return;
  if (e->end == KIT_END_SKIPPED) {
    if (r->end == KIT_END_FINE) r->end = KIT_END_SKIPPED;
    if (!r->text[0]) snprintf(r->text, sizeof r->text, "%.1000s", e->text);
    return;
  }
  finding(t, KIT_MUST, rank, "%s: %.500s", kit_end_text(e->end), e->text);
  if (e->end > r->end || r->end == KIT_END_FAILED) r->end = e->end;
}

static void check_bytes(struct kit_trial *t, int rank, const struct kit_fault_record *s) {
  if (s->wrong)
    finding(t, KIT_MUST, rank, "%llu messages arrived wrong: %s", (unsigned long long)s->wrong, s->why);
  if (s->moved)
    finding(t, KIT_MUST, rank, "%d connections wrote to memory after deregMr", s->moved);
  if (s->accepted) finding(t, KIT_MUST, rank, "accept returned %d foreign clients as connections", s->accepted);
}

static void check_close(struct kit_trial *t, int rank, const struct kit_fault_record *s) {
  if (s->close_code)
    finding(t, KIT_MUST, rank, "%s returned %s", s->close_call, kit_rc_text(s->close_code));
  if (longer(s->close_ns, t->plan.act == KIT_ACT_LINK ? HELD_UP_MS : SLOW_MS))
    finding(t, KIT_SHOULD, rank, "a close took %.2f s", seconds(s->close_ns));
  if (longer(s->call_ns, SLOW_MS)) finding(t, KIT_SHOULD, rank, "a call took %.2f s", seconds(s->call_ns));
}

static void check_leaks(struct kit_trial *t, int rank, const struct kit_fault_record *s) {
  if (s->after.fds > s->before.fds)
    finding(t, KIT_SHOULD, rank, "%d file descriptors before, %d after finalize (%d of them listening sockets): %.150s",
            s->before.fds, s->after.fds, s->after.listeners - s->before.listeners, s->left);
  if (s->after.threads > s->before.threads)
    finding(t, KIT_SHOULD, rank, "%d threads before, %d after finalize", s->before.threads, s->after.threads);
  if (s->after.heap - s->before.heap > HEAP_BYTES)
    finding(t, KIT_SHOULD, rank, "%lld KiB more of the heap are in use after finalize than before",
            (long long)(s->after.heap - s->before.heap) >> 10);
  if (s->shm[0] && t->plan.act != KIT_ACT_KILL && access(s->shm, F_OK) == 0)
    finding(t, KIT_SHOULD, rank, "%s is left", s->shm);
}

/* ---- what the scenario is about ---- */

static void check_survival(struct kit_trial *t, int rank, const struct kit_fault_record *s) {
  if (s->code)
    finding(t, t->scenario->level, rank, "%s returned %s after %.3f s%s%.200s", s->call,
            kit_rc_text(s->code), seconds(s->first_ns), t->warning[rank][0] ? ": " : "",
            t->warning[rank]);
  else if (longer(s->connect_ns, CONNECT_MS) && t->plan.act == KIT_ACT_CLIENTS && !t->plan.files)
    finding(t, t->scenario->level, rank, "connecting took %.2f s, until the foreign clients left",
            seconds(s->connect_ns));
  else if (s->connect_ns < 0 && !t->record[1 - rank].code)
    finding(t, t->scenario->level, rank, "not all of %d connections were made in time", s->connections);
  else if (s->connect_ns >= 0 && s->finished < s->connections && !t->record[1 - rank].code)
    finding(t, t->scenario->level, rank, "%d of %d connections did not finish and got no error",
            s->connections - s->finished, s->connections);
}

static void check_reported(struct kit_trial *t, int rank, const struct kit_fault_record *s) {
  bool self = kit_fault_is_victim(&t->plan, rank) && t->plan.act != KIT_ACT_RESET;
  if (self || s->phase < KIT_PHASE_STREAM) return; /* connect may wait forever: its caller gives up */
  int unreported = s->connections - s->errors - s->finished;
  if (unreported > 0)
    finding(t, t->scenario->level, rank, "%d of %d connections got no error within %.1f s", unreported, s->connections,
            (double)t->plan.patience_ms / 1e3);
  if (s->other_code)
    finding(t, t->scenario->level, rank, "%s returned %s, not %s", s->call, kit_rc_text(s->other_code),
            kit_rc_text(RAIL_REMOTE_ERROR));
}

static void check_either(struct kit_trial *t, int rank, const struct kit_fault_record *s) {
  bool over = s->code || s->finished == s->connections || s->phase < KIT_PHASE_STREAM;
  if (!over)
    finding(t, t->scenario->level, rank, "%d of %d connections did not finish and got no error",
            s->connections - s->finished, s->connections);
}

void kit_fault_check(struct kit_trial *t) {
  for (int rank = 0; rank < 2; rank++) {
    const struct kit_fault_record *s = &t->record[rank];
    check_end(t, rank);
    if (!t->has_record[rank]) continue;
    check_bytes(t, rank, s);
    check_close(t, rank, s);
    check_leaks(t, rank, s);
    if (t->plan.goal == KIT_GOAL_SURVIVE) check_survival(t, rank, s);
    else if (t->plan.goal == KIT_GOAL_ERROR) check_reported(t, rank, s);
    else check_either(t, rank, s);
  }
  if (t->outcome.end != KIT_END_FINE && t->result->end == KIT_END_FINE)
    finding(t, KIT_MUST, t->outcome.rank, "%s: %.500s", kit_end_text(t->outcome.end),
            t->outcome.rank >= 0 ? t->outcome.sides[t->outcome.rank].text : "");
}

/* ---- notes and figures ---- */

static void figure(const struct kit_trial *t, int rank, const char *name, double value, const char *unit) {
  struct kit_message message = {.kind = KIT_MESSAGE_METRIC, .rank = rank, .text = name, .value = value, .unit = unit};
  kit_result_message(t->result, &message);
}

__attribute__((format(printf, 3, 4))) static void note(const struct kit_trial *t, int rank, const char *fmt, ...) {
  char text[900];
  int at = snprintf(text, sizeof text, "%s%sside %d: ", t->about ? t->about : "", t->about ? ": " : "", rank);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text + at, sizeof text - (size_t)at, fmt, ap);
  va_end(ap);
  struct kit_message message = {.kind = KIT_MESSAGE_NOTE, .rank = rank, .text = text};
  kit_result_message(t->result, &message);
}

static void describe_error(const struct kit_trial *t, int rank, const struct kit_fault_record *s) {
  char when[96] = "";
  if (t->plan.act != KIT_ACT_FAIL && s->errors > 1)
    snprintf(when, sizeof when, "after %.4f s (the last of %d connections after %.4f s), ", seconds(s->first_ns),
             s->errors, seconds(s->last_ns));
  else if (t->plan.act != KIT_ACT_FAIL)
    snprintf(when, sizeof when, "after %.4f s, ", seconds(s->first_ns));
  note(t, rank, "got an error %sfrom %s: %s%s%.250s", when, s->call, kit_rc_text(s->code),
       t->warning[rank][0] ? "; logged: " : "; logged no warning", t->warning[rank]);
}

static void describe_reported(const struct kit_trial *t, int rank, const struct kit_fault_record *s) {
  if (s->code) describe_error(t, rank, s);
  else if (s->connect_ns < 0) note(t, rank, "got no error, and had no connection yet");
  else if (s->phase < KIT_PHASE_STREAM) note(t, rank, "got no error before the other side gave up");
  else if (s->finished == s->connections)
    note(t, rank, "got no error, and all %llu messages arrived", (unsigned long long)s->messages);
  else if (!kit_fault_is_victim(&t->plan, rank)) note(t, rank, "got no error");
}

static void figures(const struct kit_trial *t, int rank, const struct kit_fault_record *s) {
  if (s->code) {
    figure(t, rank, "told_after", seconds(s->first_ns), "s");
    figure(t, rank, "result", s->code, "");
  }
  figure(t, rank, "pause", seconds(s->pause_ns), "s");
  figure(t, rank, "close", seconds(s->close_ns), "s");
  figure(t, rank, "messages", (double)s->messages, "");
  if (s->connect_ns >= 0) figure(t, rank, "connect", seconds(s->connect_ns), "s");
  bool waited = t->plan.act == KIT_ACT_STOP || t->plan.act == KIT_ACT_LINK || t->plan.goal == KIT_GOAL_ERROR;
  if (s->stuck_s > 0.5 && waited) {
    figure(t, rank, "cores_meanwhile", s->stuck_cpu / s->stuck_s, "");
    figure(t, rank, "of_the_plugins_threads", s->stuck_cpu_plugin / s->stuck_s, "");
  }
  if (s->clients) figure(t, rank, "foreign_clients", s->clients, "");
  if (s->signals) figure(t, rank, "signals", s->signals, "");
  if (s->shaped > 0) figure(t, rank, "calls_changed", (double)s->shaped, "");
}

void kit_fault_describe(const struct kit_trial *t) {
  for (int rank = 0; rank < 2; rank++) {
    if (!t->has_record[rank]) continue;
    describe_reported(t, rank, &t->record[rank]);
    if (t->plan.act != KIT_ACT_FAIL) figures(t, rank, &t->record[rank]); /* of those there are too many runs */
  }
}
