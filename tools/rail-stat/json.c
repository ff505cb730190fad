/* SPDX-License-Identifier: Apache-2.0
 * All pages as one JSON object. Every text is printable ASCII by now. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "rail/version.h"
#include "tools/rail-stat/stat.h"

static void string(FILE *f, const char *s) {
  fputc('"', f);
  for (; *s; s++) {
    if (*s == '"' || *s == '\\') fputc('\\', f);
    fputc(*s < 0x20 || *s > 0x7e ? '?' : *s, f);
  }
  fputc('"', f);
}

static void field(FILE *f, const char *name, const char *value) {
  fprintf(f, "\"%s\": ", name);
  string(f, value);
}

/* The first of two equal keys counts: a writer that repeats one must not make the object ambiguous. */
static void label(FILE *f, const char *text) {
  char key[RAIL_STATS_LABEL], value[RAIL_STATS_LABEL], other[RAIL_STATS_LABEL], unused[RAIL_STATS_LABEL];
  const char *comma = "";
  fprintf(f, "{");
  for (const char *at = text; rs_label_next(&at, key, value);) {
    bool again = false;
    const char *end = at;
    for (const char *k = text; rs_label_next(&k, other, unused) && k < end;) again |= strcmp(other, key) == 0;
    if (again) continue;
    fprintf(f, "%s", comma);
    field(f, key, value);
    comma = ", ";
  }
  fprintf(f, "}");
}

static void group(FILE *f, const struct rail_stats_view_group *g) {
  static const char *const kinds[] = {
    [RAIL_STATS_COUNTER] = "counter", [RAIL_STATS_GAUGE] = "gauge", [RAIL_STATS_TIME] = "time"};
  fprintf(f, "\n      {");
  field(f, "name", g->name);
  fprintf(f, ", \"left_out\": %" PRIu64 ", \"counters\": [", g->left_out);
  for (uint32_t i = 0; i < g->ncounters; i++) {
    fprintf(f, "%s\n        {", i ? "," : "");
    field(f, "name", g->counters[i].name);
    fprintf(f, ", ");
    field(f, "kind", kinds[g->counters[i].kind]);
    fprintf(f, ", ");
    field(f, "doc", g->counters[i].doc);
    fprintf(f, "}");
  }
  fprintf(f, "],\n       \"records\": [");
  for (uint32_t r = 0; r < g->nrecords; r++) {
    fprintf(f, "%s\n        {\"index\": %u, \"label\": ", r ? "," : "", g->records[r].index);
    label(f, g->records[r].label);
    fprintf(f, ", \"values\": {");
    for (uint32_t i = 0; i < g->ncounters; i++)
      fprintf(f, "%s\"%s\": %" PRIu64, i ? ", " : "", g->counters[i].name, g->records[r].values[i]);
    fprintf(f, "}}");
  }
  fprintf(f, "]}");
}

void rs_json(FILE *f, const struct rs_look *look) {
  const char *comma = "";
  fprintf(f, "{\"version\": \"" RAIL_VERSION "\", \"time\": %lld, \"pages\": [", (long long)time(NULL));
  for (size_t i = 0; i < look->n; i++) {
    const struct rs_page *page = &look->pages[i];
    if (!rs_page_shows(page)) continue;
    const struct rail_stats_view *v = page->view;
    fprintf(f, "%s\n    {", comma);
    comma = ",";
    field(f, "plugin", rs_page_name(page));
    fprintf(f, ", ");
    field(f, "process", v->process);
    fprintf(f, ", \"pid\": %" PRId64 ", \"opened_ns\": %" PRIu64 ", \"read_ns\": %" PRIu64 ", \"groups\": [", v->pid,
            v->opened_ns, v->read_ns);
    for (uint32_t g = 0; g < v->ngroups; g++) {
      fprintf(f, "%s", g ? "," : "");
      group(f, &v->groups[g]);
    }
    fprintf(f, "]}");
  }
  fprintf(f, "]}\n");
}
