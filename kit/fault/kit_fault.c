/* SPDX-License-Identifier: Apache-2.0
 * Runs scenarios one after the other, each in a process group of its own, and puts what the processes observed, and the
 * verdict on it, into the report. */
#include "kit/fault/kit_fault.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_filter.h"
#include "kit/kit_json.h"
#include "kit/kit_probe.h"
#include "loader/install_dirs.h"
#include "loader/netload.h"

enum { OVERHEAD_MS = 19000, DEFAULT_CALLS = 8 };

struct run {
  const struct kit_fault *how;
  struct kit_report report;
  struct kit_filter filter;
  struct kit_fault_net net;
  char preload[PATH_MAX]; /* librail-fault.so; "": it is not there */
  int version;
};

static volatile sig_atomic_t interrupted; /* by Ctrl-C: namespaces must not stay */

static void on_interrupt(int number) { interrupted = number; }

/* ---- one process group ---- */

static void on_message(struct kit_group *group, const struct kit_message *message, void *arg) {
  struct kit_trial *t = arg;
  bool known = message->rank == 0 || message->rank == 1;
  (void)group;
  if (message->kind == KIT_MESSAGE_RECORD && known && message->size == sizeof t->record[0]) {
    memcpy(&t->record[message->rank], message->data, sizeof t->record[0]);
    t->has_record[message->rank] = true;
    return;
  }
  if (message->kind == KIT_MESSAGE_LOG && known)
    snprintf(t->warning[message->rank], sizeof t->warning[0], "%s", message->text);
  kit_result_message(t->result, message);
}

static void on_tick(struct kit_group *group, void *arg) {
  (void)arg;
  if (interrupted) kit_group_stop(group);
}

static void try_plan(struct run *run, struct kit_trial *t) {
  static const char *const env[] = {"NCCL_SOCKET_IFNAME==" KIT_LINK_NAME, NULL};
  const struct kit_fault *how = run->how;
  const struct kit_fault_plan *p = &t->plan;
  struct kit_group_options group = {.nprocesses = 2, .on_message = on_message, .on_tick = on_tick, .arg = t};
  struct kit_job *job = &group.job;
  snprintf(job->kind, sizeof job->kind, "fault");
  snprintf(job->name, sizeof job->name, "%s", t->scenario->name);
  snprintf(job->plugin, sizeof job->plugin, "%s", how->plugin);
  job->version = run->version;
  job->dev = how->dev;
  job->fuse = how->fuse;
  job->seed = p->seed;
  job->limit_ms = kit_patience_ms(p->delay_us / 1000 + p->last_ms + p->after_ms + p->patience_ms + OVERHEAD_MS);
  kit_fault_plan_put(p, job);
  for (int i = 0; i < 2; i++) {
    kit_placement_apply(&how->placement, i, &group.setup[i]);
    if (t->scenario->needs & KIT_NEEDS_NETNS) kit_fault_port_put(&run->net.port[i], i, job);
    if ((t->scenario->needs & KIT_NEEDS_NETNS) && run->net.made) {
      group.setup[i].netns = run->net.space[i];
      group.setup[i].env = env;
    }
    if ((t->scenario->needs & KIT_NEEDS_PRELOAD) && kit_fault_is_victim(p, i)) group.setup[i].preload = run->preload;
  }
  kit_group_run(how->link, &group, &t->outcome);
  t->result->seconds += t->outcome.seconds;
}

/* ---- failing calls: one run counts them, each of the others makes one fail ---- */

static void count_calls(struct kit_result *r, long seen, int hits, int errors) {
  struct kit_message counts[] = {
      {.kind = KIT_MESSAGE_METRIC, .text = "calls", .value = (double)seen, .unit = ""},
      {.kind = KIT_MESSAGE_METRIC, .text = "made_to_fail", .value = hits, .unit = ""},
      {.kind = KIT_MESSAGE_METRIC, .text = "ended_in_an_error", .value = errors, .unit = ""},
  };
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) kit_result_message(r, &counts[i]);
}

static void no_such_call(struct kit_result *r) {
  if (r->end != KIT_END_FINE) return;
  r->end = KIT_END_SKIPPED;
  snprintf(r->text, sizeof r->text, "the plugin makes no such call that could be caught");
}

/* One run without a failure: how many calls are there? -1: it went wrong by itself, and the result has how. */
static long calls_of(struct run *run, struct kit_trial *t) {
  t->about = "none failing";
  t->plan.goal = KIT_GOAL_SURVIVE;
  try_plan(run, t);
  kit_fault_check(t);
  if (t->result->end != KIT_END_FINE || !t->has_record[0]) return -1;
  if (t->record[0].seen > 0) return (long)t->record[0].seen;
  no_such_call(t->result);
  return -1;
}

/* Spread over the life: most calls are made at its start, or all while data flows. */
static uint64_t choose_call(long seen, int i, int of, struct kit_rng *rng) {
  uint64_t n = (uint64_t)seen, from = n * (uint64_t)i / (uint64_t)of, to = n * (uint64_t)(i + 1) / (uint64_t)of;
  return 1 + from + (to > from + 1 ? kit_rng_below(rng, (uint32_t)(to - from)) : 0);
}

static void try_calls(struct run *run, struct kit_trial *first, struct kit_rng *rng) {
  int wanted = run->how->calls > 0 ? run->how->calls : DEFAULT_CALLS, hits = 0, errors = 0;
  long seen = calls_of(run, first);
  if (seen < 0) return;
  if (wanted > seen) wanted = (int)seen;
  for (int i = 0; i < wanted && !interrupted; i++) {
    struct kit_trial t = {.scenario = first->scenario, .plan = first->plan, .result = first->result};
    char about[96];
    t.plan.goal = KIT_GOAL_EITHER;
    t.plan.nth = choose_call(seen, i, wanted, rng);
    try_plan(run, &t);
    const struct kit_fault_record *victim = &t.record[0];
    snprintf(about, sizeof about, "call %llu of about %ld (%s)", (unsigned long long)t.plan.nth, seen,
             victim->failed[0] ? victim->failed : t.has_record[0] ? "not reached" : "not known");
    t.about = about;
    hits += victim->failed[0] != 0;
    errors += victim->failed[0] && victim->code;
    if (t.has_record[0] && !victim->failed[0] && victim->seen < seen) seen = (long)victim->seen; /* fewer this time */
    kit_fault_check(&t);
    kit_fault_describe(&t);
  }
  count_calls(first->result, seen, hits, errors);
}

/* ---- one scenario ---- */

static const char *cannot(struct run *run, const struct kit_scenario *s) {
  bool catches = s->needs & KIT_NEEDS_PRELOAD;
  if (catches && kit_sanitized()) return "a sanitizer has calls of its own instead of those of libc";
  if (catches && !run->preload[0]) return "librail-fault.so is not in the folder railyard of this program's libraries";
  if (!(s->needs & KIT_NEEDS_NETNS)) return NULL;
  if (run->how->link) return "needs both sides on this host";
  if (!kit_fault_net_open(&run->net)) return run->net.why;
  if ((s->needs & KIT_NEEDS_SHAPE) && run->net.no_shape[0]) return run->net.no_shape;
  bool netem = (s->needs & KIT_NEEDS_DELAY) || (run->net.given && s->plan.how == KIT_LINK_SILENCE);
  if (netem && run->net.no_delay[0]) return run->net.no_delay;
  if (!kit_fault_net_restore(&run->net)) return "the link between the namespaces does not come up";
  return NULL;
}

static void command_to_repeat(const struct run *run, struct kit_result *r) {
  const struct kit_fault *how = run->how;
  kit_report_again(&run->report, r, how->connect);
  size_t size = sizeof r->again;
  kit_placement_append(&how->placement, r->again, size);
  size_t at = strlen(r->again);
  if (how->links_text) snprintf(r->again + at, size - at, " --links %s", how->links_text);
  at = strlen(r->again);
  if (how->calls) snprintf(r->again + at, size - at, " --calls %d", how->calls);
  at = strlen(r->again);
  if (how->patience_ms != KIT_FAULT_PATIENCE_MS)
    snprintf(r->again + at, size - at, " --patience %g", (double)how->patience_ms / 1e3);
  at = strlen(r->again);
  if (how->stop_ms != KIT_FAULT_STOP_MS)
    snprintf(r->again + at, size - at, " --stop-time %g", (double)how->stop_ms / 1e3);
}

/* The same seed and name give the same plan, alone or among others. */
static struct kit_rng scenario_rng(uint64_t seed, const char *name) {
  struct kit_rng rng = {seed};
  for (; *name; name++) rng.state = (rng.state ^ (uint8_t)*name) * 0x100000001b3ull;
  kit_rng_next(&rng);
  return rng;
}

static void try_scenario(struct run *run, const struct kit_scenario *s, uint64_t seed) {
  struct kit_result r = {.id = s->id, .name = s->name, .what = s->what, .source = "", .level = s->level,
                         .version = run->version, .seed = seed};
  struct kit_trial t = {.scenario = s, .plan = s->plan, .result = &r};
  struct kit_rng rng = scenario_rng(seed, s->name);
  command_to_repeat(run, &r);
  kit_report_progress(&run->report, s->name);
  const char *reason = kit_filter_skip_reason(&run->filter, s->id, s->name);
  if (!reason) reason = cannot(run, s);
  if (reason) {
    r.end = KIT_END_SKIPPED;
    snprintf(r.text, sizeof r.text, "%s", reason);
    kit_report_add(&run->report, &r);
    return;
  }
  if (t.plan.last_ms == 1) t.plan.last_ms = run->how->stop_ms;
  if (!t.plan.patience_ms) t.plan.patience_ms = run->how->patience_ms;
  kit_fault_plan_draw(&t.plan, &rng);
  if (t.plan.act == KIT_ACT_FAIL) {
    try_calls(run, &t, &rng);
  } else {
    try_plan(run, &t);
    kit_fault_check(&t);
    kit_fault_describe(&t);
    if ((s->needs & KIT_NEEDS_PRELOAD) && t.has_record[0] && t.record[0].shaped == 0) no_such_call(&r);
  }
  if (interrupted && kit_result_bad(&r)) { /* its processes were ended for that, not by the plugin */
    r.end = KIT_END_ERROR;
    r.level = s->level;
    snprintf(r.text, sizeof r.text, "interrupted by signal %d", (int)interrupted);
  }
  kit_report_add(&run->report, &r);
}

/* ---- all of them ---- */

static bool wanted(const struct run *run, const struct kit_scenario *s) {
  return kit_filter_accepts(&run->filter, s->id, s->name, s->level);
}

static void each_once(struct run *run) {
  for (const struct kit_scenario *s = kit_scenarios; s->id; s++)
    for (int i = 0; i < run->how->repeat && wanted(run, s) && !interrupted; i++)
      try_scenario(run, s, run->report.seed + (uint64_t)i);
}

static const struct kit_scenario *draw(const struct run *run, struct kit_rng *rng) {
  uint32_t sum = 0;
  for (const struct kit_scenario *s = kit_scenarios; s->id; s++) sum += wanted(run, s) ? s->weight : 0;
  uint32_t at = sum ? kit_rng_below(rng, sum) : 0;
  for (const struct kit_scenario *s = kit_scenarios; s->id; s++) {
    uint32_t weight = wanted(run, s) ? s->weight : 0;
    if (at < weight) return s;
    at -= weight;
  }
  return NULL;
}

static void rounds(struct run *run) {
  struct kit_rng rng = {run->report.seed};
  for (int i = 0; i < run->how->rounds && !interrupted; i++) {
    const struct kit_scenario *s = draw(run, &rng);
    if (s) try_scenario(run, s, kit_rng_next(&rng) >> 16);
  }
}

static int count(const struct run *run) {
  int n = 0;
  for (const struct kit_scenario *s = kit_scenarios; s->id; s++)
    n += wanted(run, s) && (s->weight || !run->how->rounds);
  return n;
}

static void find_preload(struct run *run) {
  char file[PATH_MAX];
  snprintf(file, sizeof file, "%s/railyard/librail-fault.so", rail_lib_from_bin);
  if (!rail_path_from_bin(run->preload, file) || access(run->preload, R_OK) != 0) run->preload[0] = 0;
}

static int run_all(struct run *run) {
  struct sigaction plain = {.sa_handler = on_interrupt};
  int n = count(run);
  if (n == 0) {
    kit_filter_print_empty(&run->filter, "fault");
    return 2;
  }
  sigaction(SIGINT, &plain, NULL);
  sigaction(SIGTERM, &plain, NULL);
  find_preload(run);
  if (run->report.seed == 0) run->report.seed = (rail_now_ns() & 0xffffffff) | 1;
  run->report.expected = run->how->rounds ? run->how->rounds : n * run->how->repeat;
  kit_report_start(&run->report);
  if (run->how->rounds) rounds(run);
  else each_once(run);
  kit_fault_net_close(&run->net);
  return kit_report_finish(&run->report);
}

static const char *entry(int i, const char **name) {
  *name = kit_scenarios[i].name;
  return kit_scenarios[i].id;
}

int kit_fault_run(const struct kit_fault *how) {
  static struct run run;
  struct kit_probe probe;
  char why[1024];
  int result;
  run = (struct run){.how = how, .version = how->version,
                     .report = {.command = "fault", .plugin = how->plugin, .seed = how->seed, .dev = how->dev,
                                .fuse = how->fuse, .verbose = how->verbose, .json = how->json, .junit = how->junit}};
  run.net.given = how->links_text != NULL;
  memcpy(run.net.port, how->links, sizeof run.net.port);
  if (!kit_filter_read(&run.filter, how->only, how->skip, how->skip_file, how->levels)) return 2;
  if (!kit_filter_check(&run.filter, "fault", entry)) {
    result = 2;
  } else if (!kit_probe(how->plugin, &how->placement, &probe, why, sizeof why)) {
    result = kit_report_unusable(&run.report, how->version ? how->version : kit_probe_newest(&probe), why);
  } else if (!kit_probe_has(&probe, how->version, "fault", how->plugin)) {
    result = 2;
  } else {
    if (!run.version) run.version = kit_probe_newest(&probe);
    result = run_all(&run);
  }
  kit_filter_free(&run.filter);
  return interrupted ? 3 : result;
}

int kit_fault_list(const struct kit_fault *how, FILE *f, bool json) {
  struct run run = {.how = how};
  struct kit_json j = kit_json_start(f);
  if (!kit_filter_read(&run.filter, how->only, how->skip, how->skip_file, how->levels)) return 2;
  if (json) kit_json_array(&j, NULL);
  for (const struct kit_scenario *s = kit_scenarios; s->id; s++) {
    if (!wanted(&run, s)) continue;
    if (!json) {
      fprintf(f, "%-6s %-44s %-8s %s\n", s->id, s->name, kit_level_text(s->level), s->what);
      continue;
    }
    kit_json_object(&j, NULL);
    kit_json_text(&j, "id", s->id);
    kit_json_text(&j, "name", s->name);
    kit_json_text(&j, "level", kit_level_text(s->level));
    kit_json_text(&j, "what", s->what);
    kit_json_end(&j, '}');
  }
  if (json) {
    kit_json_end(&j, ']');
    kit_json_finish(&j);
  }
  kit_filter_free(&run.filter);
  return fflush(f) == 0 ? 0 : 3;
}
