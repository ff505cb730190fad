/* SPDX-License-Identifier: Apache-2.0
 * A report as JSON, as JUnit XML. */
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_json.h"
#include "kit/kit_report_impl.h"

static const char *status_of(const struct kit_result *r) {
  static const char *const words[] = {[KIT_END_FINE] = "pass", [KIT_END_SKIPPED] = "skip", [KIT_END_FAILED] = "fail",
                                      [KIT_END_CRASH] = "crash", [KIT_END_HANG] = "hang", [KIT_END_LOST] = "fail",
                                      [KIT_END_ERROR] = "error"};
  return words[r->end];
}

static void json_where(struct kit_json *j) {
  struct utsname u;
  char date[32];
  time_t now = time(NULL);
  struct tm tm;
  if (gmtime_r(&now, &tm) && strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &tm)) kit_json_text(j, "date", date);
  if (uname(&u) == 0) {
    kit_json_text(j, "host", u.nodename);
    kit_json_format(j, "system", "%s %s %s", u.sysname, u.release, u.machine);
  }
  kit_json_int(j, "cores", sysconf(_SC_NPROCESSORS_ONLN));
}

static void json_lines(struct kit_json *j, const char *key, const char *lines) {
  kit_json_array(j, key);
  while (lines && *lines) {
    int len = (int)strcspn(lines, "\n");
    kit_json_format(j, NULL, "%.*s", len, lines);
    lines += len + (lines[len] == '\n');
  }
  kit_json_end(j, ']');
}

static void json_result(struct kit_json *j, const struct kit_result *r) {
  kit_json_object(j, NULL);
  kit_json_text(j, "id", r->id);
  kit_json_text(j, "name", r->name);
  kit_json_text(j, "level", kit_level_text(r->level));
  kit_json_int(j, "abi", r->version);
  kit_json_text(j, "status", status_of(r));
  kit_json_bool(j, "bad", kit_result_bad(r));
  kit_json_text(j, "seen", r->text);
  kit_json_text(j, "what", r->what);
  kit_json_text(j, "source", r->source);
  kit_json_format(j, "seed", "%#llx", (unsigned long long)r->seed);
  kit_json_text(j, "again", r->again);
  kit_json_number(j, "seconds", r->seconds);
  kit_json_array(j, "figures");
  for (int i = 0; i < r->nfigures; i++) {
    const struct kit_figure *f = &r->figures[i];
    kit_json_object(j, NULL);
    kit_json_text(j, "name", f->name);
    kit_json_number(j, "value", f->value);
    kit_json_text(j, "unit", f->unit);
    kit_json_int(j, "side", f->rank);
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
  json_lines(j, "notes", r->notes);
  json_lines(j, "log", r->log);
  kit_json_end(j, '}');
}

bool kit_report_json(FILE *f, const struct kit_report *r) {
  struct kit_json j = kit_json_start(f);
  struct kit_sums s = kit_report_sums(r);
  kit_json_object(&j, NULL);
  kit_json_text(&j, "tool", "rail-kit");
  kit_json_int(&j, "format", 1);
  kit_json_text(&j, "command", r->command);
  json_where(&j);
  kit_json_text(&j, "plugin", r->plugin);
  kit_json_int(&j, "device", r->dev);
  kit_json_format(&j, "seed", "%#llx", (unsigned long long)r->seed);
  kit_json_number(&j, "seconds", (double)rail_now_ns() / 1e9 - r->start);
  kit_json_array(&j, "results");
  for (int i = 0; i < r->count; i++) json_result(&j, &r->results[i]);
  kit_json_end(&j, ']');
  kit_json_object(&j, "summary");
  kit_json_int(&j, "passed", s.good[0] + s.good[1] + s.good[2]);
  kit_json_int(&j, "failed_must", s.bad[KIT_MUST]);
  kit_json_int(&j, "failed_should", s.bad[KIT_SHOULD]);
  kit_json_int(&j, "failed_observed", s.bad[KIT_OBSERVED]);
  kit_json_int(&j, "not_run", s.errors);
  kit_json_int(&j, "skipped", s.skipped);
  kit_json_end(&j, '}');
  kit_json_end(&j, '}');
  return kit_json_finish(&j);
}

static void xml_text(FILE *f, const char *text) {
  for (; text && *text; text++) {
    if (*text == '<') fputs("&lt;", f);
    else if (*text == '>') fputs("&gt;", f);
    else if (*text == '&') fputs("&amp;", f);
    else if (*text == '"') fputs("&quot;", f);
    else if (*text == '\n') fputs("&#10;", f);
    else if ((unsigned char)*text >= 0x20) putc(*text, f);
  }
}

static void xml_attribute(FILE *f, const char *name, const char *value) {
  fprintf(f, " %s=\"", name);
  xml_text(f, value);
  putc('"', f);
}

static void xml_case(FILE *f, const char *command, const struct kit_result *r) {
  bool bad = kit_result_bad(r);
  fprintf(f, "  <testcase classname=\"rail-kit.%s.v%d\"", command, r->version);
  xml_attribute(f, "name", r->name);
  fprintf(f, " time=\"%.3f\"", r->seconds);
  if (!bad && r->end != KIT_END_SKIPPED) {
    fputs("/>\n", f);
    return;
  }
  const char *tag = !bad ? "skipped" : r->end == KIT_END_FAILED || r->end == KIT_END_LOST ? "failure" : "error";
  fprintf(f, ">\n    <%s", tag);
  xml_attribute(f, "message", r->text);
  if (bad) {
    xml_attribute(f, "type", kit_level_text(r->level));
    fputs(">", f);
    xml_text(f, r->what);
    fputs("&#10;", f);
    xml_text(f, r->source);
    fputs("&#10;", f);
    xml_text(f, r->again);
    fprintf(f, "</%s>\n  </testcase>\n", tag);
  } else {
    fputs("/>\n  </testcase>\n", f);
  }
}

bool kit_report_junit(FILE *f, const struct kit_report *r) {
  struct kit_sums s = kit_report_sums(r);
  int bad = s.bad[0] + s.bad[1] + s.bad[2] + s.errors;
  fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite", f);
  xml_attribute(f, "name", r->plugin);
  fprintf(f, " tests=\"%d\" failures=\"%d\" skipped=\"%d\">\n", r->count, bad, s.skipped);
  for (int i = 0; i < r->count; i++) xml_case(f, r->command, &r->results[i]);
  fputs("</testsuite>\n", f);
  return fflush(f) == 0 && !ferror(f);
}
