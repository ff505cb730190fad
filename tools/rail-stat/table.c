/* SPDX-License-Identifier: Apache-2.0
 *
 * The table for people: a block per page, in it a part per group, a line per record: the values of its label, then
 * columns, the more important ones first because a narrow terminal cuts the line. What the columns of a known group are
 * stands in a table here, by plugin where that matters; a group that is not known shows all it has.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/rail-stat/stat.h"

enum how { HOW_BYTES_RATE, HOW_RATE, HOW_COUNT, HOW_BYTES, HOW_AGE };

struct column {
  const char *title, *counter;
  const char *plus; /* another counter to add, or NULL */
  enum how how;
};

static const struct column comm_columns[] = {
  {"bytes/s", "sent_bytes", "received_bytes", HOW_BYTES_RATE},
  {"msgs/s", "messages", NULL, HOW_RATE},
  {"outst", "outstanding", NULL, HOW_COUNT},
  {"stalls", "stalls", NULL, HOW_COUNT},
  {"progress", "progress_time", NULL, HOW_AGE},
  {"failovers", "failovers", NULL, HOW_COUNT},
  {"retries", "retries", NULL, HOW_COUNT},
  {"errors", "errors", NULL, HOW_COUNT},
  {"bytes", "sent_bytes", "received_bytes", HOW_BYTES},
};
static const struct column stream_columns[] = {
  {"bytes/s", "bytes", NULL, HOW_BYTES_RATE}, {"chunks/s", "chunks", NULL, HOW_RATE},
  {"alive", "alive", NULL, HOW_COUNT},        {"lost", "lost", NULL, HOW_COUNT},
  {"bytes", "bytes", NULL, HOW_BYTES},
};
static const struct column device_columns[] = {
  {"bytes/s", "bytes", NULL, HOW_BYTES_RATE},   {"msgs/s", "messages", NULL, HOW_RATE},
  {"comms", "comms", NULL, HOW_COUNT},          {"errors", "errors", NULL, HOW_COUNT},
  {"refused", "refused", NULL, HOW_COUNT},      {"dropped", "dropped", NULL, HOW_COUNT},
  {"connects", "connects", NULL, HOW_COUNT},    {"accepts", "accepts", NULL, HOW_COUNT},
  {"bytes", "bytes", NULL, HOW_BYTES},
};

/* The ib plugin's: no streams, but queue pairs and ports; waits for the peer's buffers or for room of our own. */
static const struct column ib_comm_columns[] = {
  {"bytes/s", "bytes", NULL, HOW_BYTES_RATE},  {"msgs/s", "messages", NULL, HOW_RATE},
  {"outst", "outstanding", NULL, HOW_COUNT},   {"progress", "progress_time", NULL, HOW_AGE},
  {"writes/s", "writes", NULL, HOW_RATE},      {"no cts/s", "waits_cts", NULL, HOW_RATE},
  {"no room/s", "waits_room", NULL, HOW_RATE}, {"bytes", "bytes", NULL, HOW_BYTES},
};
static const struct column ib_device_columns[] = {
  {"comms", "comms", NULL, HOW_COUNT},         {"qps", "qps", NULL, HOW_COUNT},
  {"errors", "errors", NULL, HOW_COUNT},       {"downs", "port_downs", NULL, HOW_COUNT},
  {"ups", "port_ups", NULL, HOW_COUNT},        {"events", "events", NULL, HOW_COUNT},
  {"regs", "registrations", NULL, HOW_COUNT},  {"refused", "refused", NULL, HOW_COUNT},
  {"dropped", "dropped", NULL, HOW_COUNT},     {"connects", "connects", NULL, HOW_COUNT},
  {"accepts", "accepts", NULL, HOW_COUNT},
};

static const struct column ib_rail_columns[] = {
  {"bytes/s", "bytes", NULL, HOW_BYTES_RATE}, {"share/1000", "share_permille", NULL, HOW_COUNT},
  {"rate", "rate", NULL, HOW_BYTES},          {"bytes", "bytes", NULL, HOW_BYTES},
};

/* The first row that fits. */
static const struct {
  const char *page; /* NULL: any */
  const char *group;
  const struct column *columns;
  size_t n;
} known[] = {
  {"RailIB", "comm", ib_comm_columns, RAIL_COUNT_OF(ib_comm_columns)},
  {"RailIB", "device", ib_device_columns, RAIL_COUNT_OF(ib_device_columns)},
  {"RailIB", "rail", ib_rail_columns, RAIL_COUNT_OF(ib_rail_columns)},
  {NULL, "comm", comm_columns, RAIL_COUNT_OF(comm_columns)},
  {NULL, "stream", stream_columns, RAIL_COUNT_OF(stream_columns)},
  {NULL, "device", device_columns, RAIL_COUNT_OF(device_columns)},
};

static bool is_known(size_t k, const char *page, const char *group) {
  return strcmp(known[k].group, group) == 0 && (!known[k].page || strcmp(known[k].page, page) == 0);
}

/* ---- one cell ---- */

static void scaled(char *text, size_t size, double value, const char *unit) {
  static const char prefixes[][2] = {"", "k", "M", "G", "T", "P", "E"};
  size_t i = 0;
  while (value >= 999.95 && i + 1 < RAIL_COUNT_OF(prefixes)) value /= 1000, i++;
  if (i == 0 && value == (double)(int)value) snprintf(text, size, "%d%s%s", (int)value, *unit ? " " : "", unit);
  else snprintf(text, size, "%.*f%s%s%s", value < 10 ? 2 : 1, value, *unit ? " " : "", prefixes[i], unit);
}

static void age(char *text, size_t size, uint64_t then, uint64_t now) {
  double s = then < now ? (double)(now - then) / 1e9 : 0;
  if (then == 0) snprintf(text, size, "never");
  else if (s < 1) snprintf(text, size, "%.0f ms", s * 1e3);
  else if (s < 100) snprintf(text, size, "%.1f s", s);
  else if (s < 6000) snprintf(text, size, "%.0f min", s / 60);
  else snprintf(text, size, "%.1f h", s / 3600);
}

struct source { /* of a page's cells */
  const struct rs_snapshot *before;
  const struct rs_page *page;
  uint32_t group;
};

static double column_rate(const struct source *s, const struct column *c, const struct kit_stats_view_record *r) {
  const struct kit_stats_view_group *g = &s->page->view->groups[s->group];
  int a = rs_counter(g, c->counter), b = c->plus ? rs_counter(g, c->plus) : -1;
  double rate = a < 0 ? -1 : rs_rate(s->before, s->page, s->group, r, a);
  double more = b < 0 ? -1 : rs_rate(s->before, s->page, s->group, r, b);
  return rate < 0 ? more : rate + (more > 0 ? more : 0);
}

static void cell(const struct source *s, const struct column *c, const struct kit_stats_view_record *r, char *text,
                 size_t size) {
  const struct kit_stats_view_group *g = &s->page->view->groups[s->group];
  int a = rs_counter(g, c->counter), b = c->plus ? rs_counter(g, c->plus) : -1;
  uint64_t value = (a < 0 ? 0 : r->values[a]) + (b < 0 ? 0 : r->values[b]);
  double rate;
  snprintf(text, size, "-");
  if (a < 0 && b < 0) return;
  switch (c->how) {
    case HOW_BYTES_RATE:
    case HOW_RATE:
      rate = column_rate(s, c, r);
      if (rate >= 0) scaled(text, size, rate, c->how == HOW_RATE ? "" : "B");
      break;
    case HOW_COUNT: snprintf(text, size, "%" PRIu64, value); break;
    case HOW_BYTES: scaled(text, size, (double)value, "B"); break;
    case HOW_AGE: age(text, size, value, s->page->view->read_ns); break;
  }
}

/* ---- one group ---- */

struct row {
  double rate;
  const struct kit_stats_view_record *record;
};

static int by_rate(const void *a, const void *b) {
  const struct row *x = a, *y = b;
  if (x->rate != y->rate) return x->rate > y->rate ? -1 : 1;
  return x->record->index < y->record->index ? -1 : x->record->index > y->record->index;
}

/* "send eth0 10.0.0.2:4711": the values without their keys. */
static void plain_label(const char *label, char *text) {
  char key[RAIL_STATS_LABEL];
  size_t len = 0;
  for (const char *at = label; rs_label_next(&at, key, text + len);) {
    len += strlen(text + len);
    text[len++] = ' ';
  }
  text[len ? len - 1 : 0] = 0;
}

static void print_label(FILE *f, const char *text, int width) {
  bool cut = strlen(text) > (size_t)width;
  fprintf(f, "  %-*.*s%s", cut ? width - 1 : width, cut ? width - 1 : width, text, cut ? "+" : "");
}

static int label_width(const struct rs_options *o, const struct kit_stats_view_group *g) {
  char text[RAIL_STATS_LABEL + 1];
  size_t width = strlen(g->name);
  for (uint32_t i = 0; i < g->nrecords; i++) {
    plain_label(g->records[i].label, text);
    width = RAIL_MAX(width, strlen(text));
  }
  return (int)(o->label_width && width > (size_t)o->label_width ? (size_t)o->label_width : width);
}

static void print_group(FILE *f, const struct rs_options *o, const struct source *s, const struct column *columns,
                        size_t n) {
  const struct kit_stats_view_group *g = &s->page->view->groups[s->group];
  char text[64], label[RAIL_STATS_LABEL + 1];
  int widths[RAIL_STATS_MAX_COUNTERS], label_chars = label_width(o, g);
  struct row *rows = calloc(g->nrecords + 1, sizeof *rows);
  if (!rows) return;
  for (uint32_t i = 0; i < g->nrecords; i++)
    rows[i] = (struct row){column_rate(s, &columns[0], &g->records[i]), &g->records[i]};
  qsort(rows, g->nrecords, sizeof *rows, by_rate);
  print_label(f, g->name, label_chars);
  for (size_t c = 0; c < n; c++) {
    widths[c] = (int)RAIL_MAX(strlen(columns[c].title), columns[c].how == HOW_COUNT ? 5u : 8u);
    fprintf(f, " %*s", widths[c], columns[c].title);
  }
  fputc('\n', f);
  for (uint32_t i = 0; i < g->nrecords; i++) {
    plain_label(rows[i].record->label, label);
    print_label(f, label, label_chars);
    for (size_t c = 0; c < n; c++) {
      cell(s, &columns[c], rows[i].record, text, sizeof text);
      fprintf(f, " %*s", widths[c], text);
    }
    fputc('\n', f);
  }
  if (g->left_out) fprintf(f, "  and %" PRIu64 " that found no place in the page so far\n", g->left_out);
  free(rows);
}

static void print_all_columns(FILE *f, const struct rs_options *o, const struct source *s) {
  static const enum how of_kind[] = {
    [RAIL_STATS_COUNTER] = HOW_COUNT, [RAIL_STATS_GAUGE] = HOW_COUNT, [RAIL_STATS_TIME] = HOW_AGE};
  const struct kit_stats_view_group *g = &s->page->view->groups[s->group];
  struct column columns[RAIL_STATS_MAX_COUNTERS];
  for (uint32_t i = 0; i < g->ncounters; i++)
    columns[i] = (struct column){g->counters[i].name, g->counters[i].name, NULL, of_kind[g->counters[i].kind]};
  print_group(f, o, s, columns, g->ncounters);
}

static void print_page(FILE *f, const struct rs_options *o, const struct rs_snapshot *before,
                       const struct rs_page *page) {
  char up[32];
  const struct kit_stats_view *v = page->view;
  age(up, sizeof up, v->opened_ns, v->read_ns);
  fprintf(f, "%s in %s, pid %" PRId64 ", for %s", rs_page_name(page), v->process, v->pid, up);
  for (uint32_t i = 0; i < v->ngroups; i++)
    fprintf(f, "; %u %s%s", v->groups[i].nrecords, v->groups[i].name, v->groups[i].nrecords == 1 ? "" : "s");
  fprintf(f, "%s\n", v->alive == RAIL_STATS_ELSEWHERE ? " (in another PID namespace)" : "");
  for (uint32_t i = 0; i < v->ngroups; i++) {
    const struct kit_stats_view_group *g = &v->groups[i];
    const struct source s = {before, page, i};
    if (g->nrecords + g->left_out == 0 || (strcmp(g->name, "stream") == 0 && !o->streams)) continue;
    size_t k = 0;
    while (k < RAIL_COUNT_OF(known) && !is_known(k, rs_page_name(page), g->name)) k++;
    if (k < RAIL_COUNT_OF(known)) print_group(f, o, &s, known[k].columns, known[k].n);
    else print_all_columns(f, o, &s);
  }
}

void rs_table(FILE *f, const struct rs_options *o, const struct rs_snapshot *shot, const struct rs_snapshot *before) {
  int shown = 0;
  for (size_t i = 0; i < shot->n; i++) {
    if (!rs_page_shows(&shot->pages[i])) continue;
    if (shown++) fputc('\n', f);
    print_page(f, o, before, &shot->pages[i]);
  }
  if (!shown) fprintf(f, "no process counts here\n");
}

void rs_list(FILE *f, const struct rs_snapshot *shot) {
  static const char *const words[] = {
    [RAIL_STATS_LIVE] = "live", [RAIL_STATS_DEAD] = "dead", [RAIL_STATS_ELSEWHERE] = "elsewhere"};
  fprintf(f, "%-10s %-9s %8s  %-20s %s\n", "pid", "state", "records", "process", "page");
  for (size_t i = 0; i < shot->n; i++) {
    const struct rs_page *page = &shot->pages[i];
    uint32_t records = 0;
    int64_t pid = 0;
    const char *name;
    rail_stats_file_name(page->file, &pid, &name);
    for (uint32_t g = 0; page->view && g < page->view->ngroups; g++) records += page->view->groups[g].nrecords;
    if (page->view)
      fprintf(f, "%-10" PRId64 " %-9s %8u  %-20s %s\n", pid, words[page->view->alive], records, page->view->process,
              page->file);
    else
      fprintf(f, "%-10" PRId64 " %-9s %8s  %-20s %s: %s\n", pid, "unread", "-", "-", page->file, page->why);
  }
}
