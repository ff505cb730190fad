/* SPDX-License-Identifier: Apache-2.0
 * The list of all checks: which are wanted, each run in a process group of its own, its outcome as a row of the report.
 * In a process of a group: the check that the job names. */
#include "kit/conform/kit_conform.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"
#include "kit/kit_filter.h"
#include "kit/kit_json.h"
#include "kit/kit_probe.h"
#include "kit/kit_report.h"
#include "loader/netload.h"

#define LIMIT_S 20 /* of a check that names none */

/* ---- every area's table, in the contract's order ---- */

static const struct kit_check *const check_tables[] = {
    kit_checks_lifecycle,
    kit_checks_properties,
    kit_checks_listen,
    kit_checks_foreign,
    kit_checks_connect,
    kit_checks_handles,
    kit_checks_dead_port,
    kit_checks_requests,
    kit_checks_sizes,
    kit_checks_order,
    kit_checks_grouped,
    kit_checks_optional,
    kit_checks_flush,
    kit_checks_tear,
    kit_checks_mr,
    kit_checks_dereg,
    kit_checks_close,
    kit_checks_peer_close,
    kit_checks_death,
    kit_checks_threads,
    kit_checks_forks,
    kit_checks_wakeups,
    kit_checks_attrs,
    kit_checks_leaks,
    kit_checks_cost,
    NULL,
};

static const struct kit_check *check_at(int index) {
  for (int t = 0; check_tables[t]; t++)
    for (const struct kit_check *c = check_tables[t]; c->id; c++)
      if (index-- == 0) return c;
  return NULL;
}

void kit_conform_process(struct kit_process *self) {
  const struct kit_check *c;
  for (int i = 0; (c = check_at(i)); i++) {
    if (strcmp(c->name, kit_process_job(self)->name) != 0) continue;
    c->run(self);
    return;
  }
  ENSURE(false, "this rail-kit has no check %s", kit_process_job(self)->name);
}

static bool has_version(const struct kit_check *c, int version) {
  return c->versions == 0 || (c->versions & KIT_V(version));
}

static void on_message(struct kit_group *group, const struct kit_message *message, void *arg) {
  (void)group;
  kit_result_message(arg, message);
}

static void run_check(const struct kit_conform *how, const struct kit_check *c, struct kit_result *r) {
  struct kit_group_options group = {.nprocesses = c->mode == KIT_TWO ? 2 : 1, .on_message = on_message, .arg = r};
  struct kit_outcome outcome;
  struct kit_job *job = &group.job;
  snprintf(job->kind, sizeof job->kind, "conform");
  snprintf(job->name, sizeof job->name, "%s", c->name);
  snprintf(job->plugin, sizeof job->plugin, "%s", how->plugin);
  job->version = r->version;
  job->dev = how->dev;
  job->fuse = how->fuse;
  job->seed = r->seed;
  job->limit_ms = kit_patience_ms((c->limit_s ? c->limit_s : LIMIT_S) * 1000ull);
  for (int i = 0; i < group.nprocesses; i++) kit_placement_apply(&how->placement, i, &group.setup[i]);
  kit_group_run(c->mode == KIT_TWO ? how->link : NULL, &group, &outcome);
  kit_result_outcome(r, &outcome, group.nprocesses);
}

/* False: no more is tried, and the report shows it. */
static bool try_check(const struct kit_conform *how, struct kit_report *report, const struct kit_filter *filter,
                      const struct kit_check *c, int version, int run) {
  struct kit_result r = {.id = c->id, .name = c->name, .what = c->what, .source = c->source, .level = c->level,
                         .version = version, .seed = report->seed + (uint64_t)run};
  const char *reason = kit_filter_skip_reason(filter, c->id, c->name);
  kit_report_again(report, &r, how->connect);
  kit_placement_append(&how->placement, r.again, sizeof r.again);
  kit_report_progress(report, c->name);
  if (reason) {
    r.end = KIT_END_SKIPPED;
    snprintf(r.text, sizeof r.text, "%s", reason);
  } else if (kit_link_lost(how->link)) { /* since the last one, which it did not disturb */
    r.end = KIT_END_ERROR;
    snprintf(r.text, sizeof r.text, KIT_HOST_LOST);
  } else {
    run_check(how, c, &r);
  }
  kit_report_add(report, &r);
  report->stopped = how->fail_fast && kit_result_bad(&r);
  return !report->stopped && (r.end != KIT_END_ERROR || !kit_link_lost(how->link));
}

static bool wanted(const struct kit_filter *filter, const struct kit_check *c, int version) {
  return has_version(c, version) && kit_filter_accepts(filter, c->id, c->name, c->level);
}

static int count_checks(const struct kit_filter *filter, int version) {
  const struct kit_check *c;
  int n = 0;
  for (int i = 0; (c = check_at(i)); i++) n += wanted(filter, c, version);
  return n;
}

static const char *entry(int i, const char **name) {
  const struct kit_check *c = check_at(i);
  if (c) *name = c->name;
  return c ? c->id : NULL;
}

static int run_versions(const struct kit_conform *how, const struct kit_filter *filter, uint32_t versions,
                        struct kit_report report) {
  const struct kit_check *c;
  if (report.seed == 0) report.seed = (rail_now_ns() & 0xffffffff) | 1;
  for (int v = RAIL_NET_VERSION_MIN; v <= RAIL_NET_VERSION_MAX; v++)
    if (versions & KIT_V(v)) report.expected += count_checks(filter, v) * how->repeat;
  if (report.expected == 0) {
    kit_filter_print_empty(filter, "conform");
    return 2;
  }
  kit_report_start(&report);
  bool more = true;
  for (int v = RAIL_NET_VERSION_MAX; v >= RAIL_NET_VERSION_MIN; v--)
    for (int i = 0; (versions & KIT_V(v)) && (c = check_at(i)); i++)
      for (int run = 0; more && run < how->repeat && wanted(filter, c, v); run++)
        more = try_check(how, &report, filter, c, v, run);
  return kit_report_finish(&report);
}

int kit_conform_run(const struct kit_conform *how) {
  struct kit_probe probe;
  struct kit_filter filter;
  struct kit_report report = {.command = "conform", .plugin = how->plugin, .seed = how->seed, .dev = how->dev,
                              .fuse = how->fuse, .verbose = how->verbose, .json = how->json, .junit = how->junit};
  char why[1024];
  int result;
  if (!kit_filter_read(&filter, how->only, how->skip, how->skip_file, how->levels)) return 2;
  if (!kit_filter_check(&filter, "conform", entry)) {
    result = 2;
  } else if (!kit_probe(how->plugin, &how->placement, &probe, why, sizeof why)) {
    result = kit_report_unusable(&report, how->version ? how->version : kit_probe_newest(&probe), why);
  } else if (!kit_probe_has(&probe, how->version, "conform", how->plugin)) {
    result = 2;
  } else {
    int version = how->version ? how->version : kit_probe_newest(&probe);
    result = run_versions(how, &filter, how->all_versions ? probe.versions : KIT_V(version), report);
  }
  kit_filter_free(&filter);
  return result;
}

int kit_conform_list(const struct kit_conform *how, FILE *f, bool json) {
  struct kit_filter filter;
  struct kit_json j = kit_json_start(f);
  const struct kit_check *c;
  if (!kit_filter_read(&filter, how->only, how->skip, how->skip_file, how->levels)) return 2;
  if (json) kit_json_array(&j, NULL);
  for (int i = 0; (c = check_at(i)); i++) {
    if (!kit_filter_accepts(&filter, c->id, c->name, c->level)) continue;
    if (json) {
      kit_json_object(&j, NULL);
      kit_json_text(&j, "id", c->id);
      kit_json_text(&j, "name", c->name);
      kit_json_text(&j, "level", kit_level_text(c->level));
      kit_json_int(&j, "processes", c->mode == KIT_TWO ? 2 : 1);
      kit_json_text(&j, "what", c->what);
      kit_json_text(&j, "source", c->source);
      kit_json_end(&j, '}');
    } else {
      fprintf(f, "%-6s %-44s %-8s %s\n", c->id, c->name, kit_level_text(c->level), c->what);
      if (how->verbose) fprintf(f, "%-6s source: %s\n", "", c->source);
    }
  }
  if (json) {
    kit_json_end(&j, ']');
    kit_json_finish(&j);
  }
  kit_filter_free(&filter);
  return fflush(f) == 0 ? 0 : 3;
}
