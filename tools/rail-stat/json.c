/* SPDX-License-Identifier: Apache-2.0
 * All pages as one JSON object. */
#include <string.h>
#include <time.h>

#include "kit/kit_json.h"
#include "rail/version.h"
#include "tools/rail-stat/stat.h"

/* The first of two equal keys counts: a writer that repeats one must not make the object ambiguous. */
static void write_label(struct kit_json *j, const char *text) {
  char key[RAIL_STATS_LABEL], value[RAIL_STATS_LABEL], other[RAIL_STATS_LABEL], unused[RAIL_STATS_LABEL];
  kit_json_object(j, "label");
  for (const char *at = text; rs_label_next(&at, key, value);) {
    bool again = false;
    const char *end = at;
    for (const char *k = text; rs_label_next(&k, other, unused) && k < end;) again |= strcmp(other, key) == 0;
    if (!again) kit_json_text(j, key, value);
  }
  kit_json_end(j, '}');
}

static void write_group(struct kit_json *j, const struct kit_stats_view_group *g) {
  static const char *const kinds[] = {
    [RAIL_STATS_COUNTER] = "counter", [RAIL_STATS_GAUGE] = "gauge", [RAIL_STATS_TIME] = "time"};
  kit_json_object(j, NULL);
  kit_json_text(j, "name", g->name);
  kit_json_uint(j, "left_out", g->left_out);
  kit_json_array(j, "counters");
  for (uint32_t i = 0; i < g->ncounters; i++) {
    kit_json_object(j, NULL);
    kit_json_text(j, "name", g->counters[i].name);
    kit_json_text(j, "kind", kinds[g->counters[i].kind]);
    kit_json_text(j, "doc", g->counters[i].doc);
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
  kit_json_array(j, "records");
  for (uint32_t r = 0; r < g->nrecords; r++) {
    kit_json_object(j, NULL);
    kit_json_uint(j, "index", g->records[r].index);
    write_label(j, g->records[r].label);
    kit_json_object(j, "values");
    for (uint32_t i = 0; i < g->ncounters; i++) kit_json_uint(j, g->counters[i].name, g->records[r].values[i]);
    kit_json_end(j, '}');
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
  kit_json_end(j, '}');
}

void rs_json(FILE *f, const struct rs_snapshot *shot) {
  struct kit_json j = kit_json_start(f);
  kit_json_object(&j, NULL);
  kit_json_text(&j, "version", RAIL_VERSION);
  kit_json_int(&j, "time", time(NULL));
  kit_json_array(&j, "pages");
  for (size_t i = 0; i < shot->n; i++) {
    const struct rs_page *page = &shot->pages[i];
    if (!rs_page_shows(page)) continue;
    const struct kit_stats_view *v = page->view;
    kit_json_object(&j, NULL);
    kit_json_text(&j, "plugin", rs_page_name(page));
    kit_json_text(&j, "process", v->process);
    kit_json_int(&j, "pid", v->pid);
    kit_json_uint(&j, "opened_ns", v->opened_ns);
    kit_json_uint(&j, "read_ns", v->read_ns);
    kit_json_array(&j, "groups");
    for (uint32_t g = 0; g < v->ngroups; g++) write_group(&j, &v->groups[g]);
    kit_json_end(&j, ']');
    kit_json_end(&j, '}');
  }
  kit_json_end(&j, ']');
  kit_json_end(&j, '}');
  (void)kit_json_finish(&j); /* the caller looks whether standard output took all */
}
