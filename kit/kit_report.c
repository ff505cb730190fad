/* SPDX-License-Identifier: Apache-2.0
 * A result as lines for people, as JSON and as JUnit XML; the sums, and the exit status that follows from them. */
#include "kit/kit_report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_json.h"

const char *kit_level_text(enum kit_level level) {
  static const char *const names[] = {[KIT_MUST] = "MUST", [KIT_SHOULD] = "SHOULD", [KIT_OBSERVED] = "OBSERVED"};
  return names[level];
}

/* ---- one result ---- */

void kit_result_free(struct kit_result *r) {
  free(r->notes);
  free(r->figures);
  free(r->log);
  r->notes = r->log = NULL;
  r->figures = NULL;
}

static void append_line(char **to, const char *text) {
  size_t have = *to ? strlen(*to) : 0, more = strlen(text);
  if (have + more > 64 << 10) return; /* a plugin may talk forever */
  char *bigger = realloc(*to, have + more + 2);
  if (!bigger) return;
  memcpy(bigger + have, text, more + 1);
  memcpy(bigger + have + more, "\n", 2);
  *to = bigger;
}

void kit_result_message(struct kit_result *r, const struct kit_message *message) {
  if (message->kind == KIT_MESSAGE_NOTE) {
    append_line(&r->notes, message->text);
  } else if (message->kind == KIT_MESSAGE_LOG) {
    append_line(&r->log, message->text);
  } else if (message->kind == KIT_MESSAGE_METRIC && r->nfigures < 256) {
    struct kit_figure *bigger = realloc(r->figures, sizeof *bigger * (size_t)(r->nfigures + 1)), *f;
    if (!bigger) return;
    r->figures = bigger;
    f = &bigger[r->nfigures++];
    *f = (struct kit_figure){.value = message->value, .rank = message->rank};
    snprintf(f->name, sizeof f->name, "%s", message->text);
    snprintf(f->unit, sizeof f->unit, "%s", message->unit);
  }
}

void kit_result_outcome(struct kit_result *r, const struct kit_outcome *outcome, int nprocesses) {
  r->end = outcome->end;
  r->seconds = outcome->seconds;
  r->text[0] = 0;
  if (outcome->rank < 0) return;
  const char *text = outcome->sides[outcome->rank].text;
  if (nprocesses > 1) snprintf(r->text, sizeof r->text, "side %d: %.1000s", outcome->rank, text);
  else snprintf(r->text, sizeof r->text, "%s", text);
}

bool kit_result_bad(const struct kit_result *r) {
  return r->end != KIT_END_FINE && r->end != KIT_END_SKIPPED &&
         !(r->level == KIT_OBSERVED && r->end == KIT_END_FAILED);
}

/* ---- for people ---- */

static const char *word_of(const struct kit_result *r) {
  static const char *const words[] = {[KIT_END_FINE] = "pass", [KIT_END_SKIPPED] = "skip", [KIT_END_FAILED] = "FAIL",
                                      [KIT_END_CRASH] = "CRASH", [KIT_END_HANG] = "HANG", [KIT_END_LOST] = "FAIL",
                                      [KIT_END_ERROR] = "ERROR"};
  if (r->level == KIT_OBSERVED && r->end == KIT_END_FINE) return "seen";
  if (r->level == KIT_OBSERVED && r->end == KIT_END_FAILED) return "no";
  return words[r->end];
}

static void clear_line(const struct kit_report *r) {
  if (r->table && r->live) fprintf(r->table, "\r\033[K");
}

static void print_lines(FILE *f, const char *label, const char *lines) {
  while (lines && *lines) {
    size_t len = strcspn(lines, "\n");
    fprintf(f, "        %-8s%.*s\n", label, (int)len, lines);
    lines += len + (lines[len] == '\n');
    label = "";
  }
}

/* 1234567 B/s as 1.23 MB/s; other units as they are. */
static void figure_text(const struct kit_figure *f, char *text, size_t size) {
  static const char *const prefix[] = {"", "k", "M", "G", "T"};
  double value = f->value;
  int p = 0;
  bool scaled = f->unit[0] && (strcmp(f->unit, "B/s") == 0 || strcmp(f->unit, "B") == 0 || strcmp(f->unit, "/s") == 0);
  for (; scaled && value >= 1000 && p < 4; p++) value /= 1000;
  snprintf(text, size, "%s %.4g%s%s%s", f->name, value, *f->unit ? " " : "", prefix[p], f->unit);
}

static void print_figures(FILE *f, const struct kit_result *r) {
  char text[128];
  bool sides = false; /* do they come from several? */
  for (int i = 1; i < r->nfigures; i++) sides |= r->figures[i].rank != r->figures[0].rank;
  for (int i = 0; i < r->nfigures; i++) {
    int rank = r->figures[i].rank;
    bool next = i == 0 || rank != r->figures[i - 1].rank;
    figure_text(&r->figures[i], text, sizeof text);
    if (i && next) putc('\n', f);
    if (next) fprintf(f, "        %-8s", i ? "" : "figure");
    if (next && sides) fprintf(f, "side %d: ", rank);
    fprintf(f, "%s%s", next ? "" : ", ", text);
  }
  if (r->nfigures) putc('\n', f);
}

/* Of the vtable; blank where there is none: a plugin that does not load, NCCL's own network. */
static const char *version_text(const struct kit_result *r, char text[16]) {
  text[0] = 0;
  if (r->version > 0) snprintf(text, 16, "v%d", r->version);
  return text;
}

static void print_result(const struct kit_report *report, const struct kit_result *r) {
  FILE *f = report->table;
  bool bad = kit_result_bad(r), seen = r->level == KIT_OBSERVED;
  char version[16];
  fprintf(f, "  %-6s %-44s %-8s %-4s %-6s %7.2f s\n", r->id, r->name, kit_level_text(r->level),
          version_text(r, version), word_of(r), r->seconds);
  if (bad || r->end == KIT_END_SKIPPED || *r->text) print_lines(f, r->end == KIT_END_SKIPPED ? "why" : "seen", r->text);
  if (bad) {
    print_lines(f, "wanted", r->what);
    print_lines(f, "source", r->source);
    print_lines(f, "log", r->log);
  }
  if (bad || seen || report->verbose) {
    print_figures(f, r);
    print_lines(f, "note", r->notes);
  }
  if (bad) print_lines(f, "again", r->again);
}

struct sums {
  int all[3], good[3], bad[3]; /* by level */
  int skipped, errors;
};

static struct sums sums_of(const struct kit_report *r) {
  struct sums s = {0};
  for (int i = 0; i < r->count; i++) {
    const struct kit_result *x = &r->results[i];
    bool bad = kit_result_bad(x);
    s.all[x->level]++;
    if (x->end == KIT_END_SKIPPED) s.skipped++;
    else if (!bad) s.good[x->level]++;
    if (bad && x->end == KIT_END_ERROR) s.errors++;
    else if (bad) s.bad[x->level]++;
  }
  return s;
}

static int untried(const struct kit_report *r) { return r->stopped ? r->expected - r->count : 0; }

/* ---- as JSON, as JUnit XML ---- */

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

static bool write_json(FILE *f, const struct kit_report *r) {
  struct kit_json j = kit_json_start(f);
  struct sums s = sums_of(r);
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
  kit_json_int(&j, "untried", untried(r));
  kit_json_end(&j, '}');
  kit_json_end(&j, '}');
  return kit_json_finish(&j);
}

/* One character; returns its bytes. What is no UTF-8, or no character of XML, becomes the replacement character. */
static int xml_character(FILE *f, const unsigned char *p) {
  int n = kit_utf8_size(p);
  bool none = n == 0 || (n == 3 && p[0] == 0xef && p[1] == 0xbf && p[2] >= 0xbe);
  if (none) fputs("&#xFFFD;", f);
  else if (*p == '<') fputs("&lt;", f);
  else if (*p == '>') fputs("&gt;", f);
  else if (*p == '&') fputs("&amp;", f);
  else if (*p == '"') fputs("&quot;", f);
  else if (*p == '\n') fputs("&#10;", f);
  else if (*p >= 0x20) fwrite(p, 1, (size_t)n, f);
  return n ? n : 1;
}

static void xml_text(FILE *f, const char *text) {
  for (const unsigned char *p = (const unsigned char *)text; p && *p;) p += xml_character(f, p);
}

static void xml_attribute(FILE *f, const char *name, const char *value) {
  fprintf(f, " %s=\"", name);
  xml_text(f, value);
  putc('"', f);
}

/* The plugin did what a check says it must not; an error is that a check came to no end of its own. */
static bool is_failure(const struct kit_result *r) { return r->end == KIT_END_FAILED || r->end == KIT_END_LOST; }

static void xml_case(FILE *f, const char *command, const struct kit_result *r) {
  bool bad = kit_result_bad(r);
  fprintf(f, "  <testcase classname=\"rail-kit.%s.v%d\"", command, r->version);
  xml_attribute(f, "name", r->name);
  fprintf(f, " time=\"%.3f\"", r->seconds);
  if (!bad && r->end != KIT_END_SKIPPED) {
    fputs("/>\n", f);
    return;
  }
  const char *tag = !bad ? "skipped" : is_failure(r) ? "failure" : "error";
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

static bool write_junit(FILE *f, const struct kit_report *r) {
  struct sums s = sums_of(r);
  int failures = 0, errors = 0;
  for (int i = 0; i < r->count; i++) {
    bool bad = kit_result_bad(&r->results[i]), failure = is_failure(&r->results[i]);
    failures += bad && failure;
    errors += bad && !failure;
  }
  fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite", f);
  xml_attribute(f, "name", r->plugin);
  fprintf(f, " tests=\"%d\" failures=\"%d\" errors=\"%d\" skipped=\"%d\">\n", r->count, failures, errors, s.skipped);
  for (int i = 0; i < r->count; i++) xml_case(f, r->command, &r->results[i]);
  fputs("</testsuite>\n", f);
  return fflush(f) == 0 && !ferror(f);
}

/* ---- the whole ---- */

static double now_s(void) { return (double)rail_now_ns() / 1e9; }

void kit_report_start(struct kit_report *r) {
  r->start = now_s();
  bool taken = (r->json && strcmp(r->json, "-") == 0) || (r->junit && strcmp(r->junit, "-") == 0);
  r->table = taken ? NULL : stdout;
  r->live = r->table && isatty(STDOUT_FILENO);
  if (!r->table) return;
  fprintf(r->table, "rail-kit %s: %s, device %d, seed %#llx\n", r->command, r->plugin, r->dev,
          (unsigned long long)r->seed);
  fprintf(r->table, "  %-6s %-44s %-8s %-4s %-6s %9s\n", "number", "name", "level", "abi", "result", "time");
}

void kit_report_progress(struct kit_report *r, const char *name) {
  if (r->table) fflush(r->table);
  if (!r->live) return;
  fprintf(r->table, "\r\033[K  %d of %d  %s …", r->count + 1, r->expected, name);
  fflush(r->table);
}

void kit_report_add(struct kit_report *r, struct kit_result *result) {
  clear_line(r);
  if (r->table) print_result(r, result);
  if (r->count == r->room) {
    int room = r->room ? 2 * r->room : 64;
    struct kit_result *bigger = realloc(r->results, sizeof *bigger * (size_t)room);
    if (!bigger) {
      fprintf(stderr, "rail-kit: out of memory\n");
      exit(3);
    }
    r->results = bigger;
    r->room = room;
  }
  r->results[r->count++] = *result;
}

/* "10.2" after "9.13"; of one check the newest version first. */
static int compare_numbers(const void *a, const void *b) {
  const struct kit_result *x = *(const struct kit_result *const *)a, *y = *(const struct kit_result *const *)b;
  int by_number = strverscmp(x->id, y->id);
  return by_number ? by_number : y->version - x->version;
}

/* What failed, the lowest number first. A check that failed several times is one line. */
static void print_bad(const struct kit_report *r) {
  const struct kit_result **bad = calloc((size_t)r->count + 1, sizeof(void *));
  int n = 0, same;
  for (int i = 0; bad && i < r->count; i++)
    if (kit_result_bad(&r->results[i])) bad[n++] = &r->results[i];
  char version[16];
  if (n > 0 && r->count > 1) {
    qsort(bad, (size_t)n, sizeof *bad, compare_numbers);
    fprintf(r->table, "failed, the lowest number first:\n");
    for (int i = 0; i < n; i += same) {
      const struct kit_result *x = bad[i];
      for (same = 1; i + same < n && compare_numbers(&bad[i], &bad[i + same]) == 0;) same++;
      fprintf(r->table, "  %-6s %-44s %-8s %-4s %s", x->id, x->name, kit_level_text(x->level),
              version_text(x, version), word_of(x));
      if (same > 1) fprintf(r->table, ", %d times", same);
      putc('\n', r->table);
    }
  }
  free(bad);
}

static void print_sums(const struct kit_report *r, const struct sums *s) {
  FILE *f = r->table;
  clear_line(r);
  print_bad(r);
  fprintf(f, "%s: %d MUST, %d SHOULD, %d OBSERVED in %.1f s\n", r->plugin, s->all[KIT_MUST], s->all[KIT_SHOULD],
          s->all[KIT_OBSERVED], now_s() - r->start);
  int bad = s->bad[KIT_MUST] + s->bad[KIT_SHOULD] + s->bad[KIT_OBSERVED];
  if (bad)
    fprintf(f, "broken: %d MUST, %d SHOULD%s\n", s->bad[KIT_MUST], s->bad[KIT_SHOULD],
            s->bad[KIT_OBSERVED] ? ", and a crash or hang where only figures were taken" : "");
  fprintf(f, "%d passed, %d failed, %d skipped\n", s->good[0] + s->good[1] + s->good[2], bad + s->errors, s->skipped);
  if (r->stopped) fprintf(f, "ended at the first failure: %d of %d were not run\n", untried(r), r->expected);
}

static bool written(const char *path, bool (*write)(FILE *f, const struct kit_report *r), const struct kit_report *r) {
  FILE *f = kit_file_open("rail-kit", path);
  if (!f) return false;
  (void)write(f, r);
  return kit_file_close("rail-kit", f, path);
}

int kit_report_finish(struct kit_report *r) {
  struct sums s = sums_of(r);
  bool ok = true;
  if (r->table) print_sums(r, &s);
  if (r->json) ok &= written(r->json, write_json, r);
  if (r->junit) ok &= written(r->junit, write_junit, r);
  for (int i = 0; i < r->count; i++) kit_result_free(&r->results[i]);
  free(r->results);
  r->results = NULL;
  if (!ok || s.errors) return 3;
  return s.bad[KIT_MUST] + s.bad[KIT_SHOULD] + s.bad[KIT_OBSERVED] > 0 ? 1 : 0;
}

void kit_report_again(const struct kit_report *r, struct kit_result *result, const char *connect) {
  char *text = result->again;
  size_t size = sizeof result->again;
  snprintf(text, size, "rail-kit %s ", r->command);
  kit_append_quoted(text, size, r->plugin);
  size_t at = strlen(text);
  snprintf(text + at, size - at, " --abi %d --only %s --seed %#llx", result->version, result->name,
           (unsigned long long)result->seed);
  at = strlen(text);
  if (r->dev) snprintf(text + at, size - at, " --device %d", r->dev);
  for (int i = 0; i < r->fuse.ndevs; i++) {
    at = strlen(text);
    snprintf(text + at, size - at, "%s%d", i ? "," : " --fuse ", r->fuse.devs[i]);
  }
  at = strlen(text);
  if (connect) snprintf(text + at, size - at, " --connect %s", connect);
}

int kit_report_unusable(struct kit_report *r, int version, const char *why) {
  /* A name without a slash is for the dynamic linker to find. */
  bool missing = strchr(r->plugin, '/') && access(r->plugin, R_OK) != 0;
  struct kit_result result = {.id = "0.1", .name = "plugin.usable", .level = KIT_MUST, .version = version,
                              .end = missing ? KIT_END_ERROR : KIT_END_FAILED,
                              .what = "the plugin loads, initialises and has a device here",
                              .source = "src/plugin/plugin_open.cc:79, src/plugin/net.cc:169"};
  if (missing) snprintf(result.text, sizeof result.text, "%s: %s", r->plugin, strerror(errno));
  else snprintf(result.text, sizeof result.text, "%s", why);
  snprintf(result.again, sizeof result.again, "rail-kit inspect ");
  kit_append_quoted(result.again, sizeof result.again, r->plugin);
  r->expected = 1;
  kit_report_start(r);
  kit_report_add(r, &result);
  return kit_report_finish(r);
}

void kit_append_quoted(char *text, size_t size, const char *word) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=+:,@%^";
  size_t at = strlen(text);
  if (strspn(word, plain) == strlen(word) && *word) {
    snprintf(text + at, size - at, "%s", word);
    return;
  }
  if (at + 1 < size) text[at++] = '\'';
  for (; *word && at + 6 < size; word++) {
    if (*word == '\'') at += (size_t)snprintf(text + at, size - at, "'\\''");
    else text[at++] = *word;
  }
  snprintf(text + at, size - at, "'");
}
