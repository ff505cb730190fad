/* SPDX-License-Identifier: Apache-2.0
 *
 * Prometheus' text format (version 0.0.4). All samples of a metric must stand
 * together under one HELP and TYPE, so metrics are collected over all pages
 * first. A time becomes a gauge in Unix seconds, as Prometheus wants times.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "tools/rail-stat/stat.h"

#define METRIC_NAME (2 * RAIL_STATS_NAME + 32)

struct metric {
  char name[METRIC_NAME];
  const struct kit_stats_view_counter *counter; /* of the first page that has it: its doc and kind */
};

static void metric_name(char *name, const char *group, const struct kit_stats_view_counter *c) {
  static const char total[] = "_total";
  size_t len = strlen(c->name);
  bool ends = len >= sizeof total - 1 && strcmp(c->name + len - (sizeof total - 1), total) == 0;
  const char *suffix = c->kind == RAIL_STATS_COUNTER && !ends ? total : c->kind == RAIL_STATS_TIME ? "_seconds" : "";
  snprintf(name, METRIC_NAME, "rail_%s_%s%s", group, c->name, suffix);
}

/* Backslash and line feed are escaped everywhere, the quote in label values. */
static void escaped(FILE *f, const char *text, bool quoted) {
  for (; *text; text++) {
    if (*text == '\n') fputs("\\n", f);
    else if (*text == '\\' || (quoted && *text == '"')) fprintf(f, "\\%c", *text);
    else fputc(*text < 0x20 || *text > 0x7e ? '?' : *text, f);
  }
}

static void pair(FILE *f, const char *key, const char *value) {
  fprintf(f, "%s=\"", key);
  escaped(f, value, true);
  fputc('"', f);
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* A label's key by Prometheus' rules and not one of ours. */
static void label_key(const char *key, char *out, size_t size) {
  static const char *const ours[] = {"pid", "process", "plugin", "record"};
  bool prefix = !(is_letter(*key) || *key == '_') || strncmp(key, "__", 2) == 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(ours); i++) prefix |= strcmp(key, ours[i]) == 0;
  snprintf(out, size, "%s%s", prefix ? "label_" : "", key);
  for (char *c = out; *c; c++)
    if (!is_letter(*c) && !(*c >= '0' && *c <= '9')) *c = '_';
}

/* pid, plugin and record make a series unique whatever the record's own label says. */
static void labels(FILE *f, const struct rs_page *page, const struct kit_stats_view_record *record) {
  enum { MAX_PAIRS = RAIL_STATS_LABEL / 2, KEY = RAIL_STATS_LABEL + 8 };
  char key[RAIL_STATS_LABEL], value[RAIL_STATS_LABEL], number[32];
  char(*seen)[KEY] = calloc(MAX_PAIRS, sizeof *seen);
  int n = 0;
  fputc('{', f);
  for (const char *at = record->label; seen && rs_label_next(&at, key, value);) {
    bool again = false;
    label_key(key, seen[n], KEY);
    for (int i = 0; i < n; i++) again |= strcmp(seen[i], seen[n]) == 0;
    if (again) continue;
    pair(f, seen[n++], value);
    fputc(',', f);
  }
  free(seen);
  snprintf(number, sizeof number, "%" PRId64, page->view->pid);
  pair(f, "pid", number);
  fputc(',', f);
  pair(f, "process", page->view->process);
  fputc(',', f);
  pair(f, "plugin", rs_page_name(page));
  snprintf(number, sizeof number, "%u", record->index);
  fputc(',', f);
  pair(f, "record", number);
  fputc('}', f);
}

static void samples(FILE *f, const struct metric *m, const struct rs_page *page, double boot) {
  char name[METRIC_NAME];
  for (uint32_t g = 0; g < page->view->ngroups; g++) {
    const struct kit_stats_view_group *group = &page->view->groups[g];
    for (uint32_t c = 0; c < group->ncounters; c++) {
      metric_name(name, group->name, &group->counters[c]);
      if (strcmp(name, m->name) != 0 || group->counters[c].kind != m->counter->kind) continue;
      for (uint32_t r = 0; r < group->nrecords; r++) {
        uint64_t value = group->records[r].values[c];
        bool is_time = m->counter->kind == RAIL_STATS_TIME;
        if (is_time && value == 0) continue; /* never: no sample */
        fputs(name, f);
        labels(f, page, &group->records[r]);
        if (is_time) fprintf(f, " %.3f\n", boot + (double)value / 1e9);
        else fprintf(f, " %" PRIu64 "\n", value);
      }
      return; /* another group could make the same name: one of them is enough for a name */
    }
  }
}

static bool add_metric(struct metric *metrics, size_t *n, const char *group, const struct kit_stats_view_counter *c) {
  struct metric *m = &metrics[*n];
  metric_name(m->name, group, c);
  for (size_t i = 0; i < *n; i++)
    if (strcmp(metrics[i].name, m->name) == 0) return false;
  m->counter = c;
  ++*n;
  return true;
}

int rs_prometheus(FILE *f, const struct rs_snapshot *shot) {
  static const char *const types[] = {
    [RAIL_STATS_COUNTER] = "counter", [RAIL_STATS_GAUGE] = "gauge", [RAIL_STATS_TIME] = "gauge"};
  struct timespec now;
  size_t most = 0, n = 0;
  for (size_t i = 0; i < shot->n; i++)
    for (uint32_t g = 0; rs_page_shows(&shot->pages[i]) && g < shot->pages[i].view->ngroups; g++)
      most += shot->pages[i].view->groups[g].ncounters;
  struct metric *metrics = calloc(most + 1, sizeof *metrics);
  if (!metrics) {
    fprintf(stderr, RS_NAME ": out of memory\n");
    return -1;
  }
  for (size_t i = 0; i < shot->n; i++) {
    if (!rs_page_shows(&shot->pages[i])) continue;
    for (uint32_t g = 0; g < shot->pages[i].view->ngroups; g++) {
      const struct kit_stats_view_group *group = &shot->pages[i].view->groups[g];
      for (uint32_t c = 0; c < group->ncounters; c++) add_metric(metrics, &n, group->name, &group->counters[c]);
    }
  }
  clock_gettime(CLOCK_REALTIME, &now);
  double boot = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - (double)rail_now_ns() / 1e9;
  for (size_t m = 0; m < n; m++) {
    fprintf(f, "# HELP %s ", metrics[m].name);
    escaped(f, metrics[m].counter->doc, false);
    fprintf(f, "\n# TYPE %s %s\n", metrics[m].name, types[metrics[m].counter->kind]);
    for (size_t i = 0; i < shot->n; i++)
      if (rs_page_shows(&shot->pages[i])) samples(f, &metrics[m], &shot->pages[i], boot);
  }
  free(metrics);
  return 0;
}
