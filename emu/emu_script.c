/* SPDX-License-Identifier: Apache-2.0
 * Where statements come from: RAIL_EMU, the file RAIL_EMU_CONTROL while the process runs, the program itself, other
 * statements. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emu/emu_fault.h"
#include "emu/rail_emu.h"

/* ---- statements that hold others ---------------------------------------------------- */

static const struct emu_verb *verb_of(const struct emu_statement *s);
static bool run_all(char *text, const char *file, int line);

/* All that a network may do and a connection must bear, at random. */
static bool do_adversary(const struct emu_statement *s) {
  char text[] = "delay us=300 rate=16; delay us=20 rate=4; tear us=50 rate=4; duplicate rate=64; drop rate=256;"
                "clock virtual";
  unsigned long seed;
  if (s->n > 1 && !emu_read_number(s, s->words[1], 0, ULONG_MAX, &seed)) return false;
  if (s->n > 1) emu_faults_seed(seed);
  return run_all(text, s->file, s->line);
}

/* at N STATEMENT: when this process' N-th request begins, counted from here on. */
static bool do_at(const struct emu_statement *s) {
  enum { MAX_LATER = sizeof emu_faults.later / sizeof emu_faults.later[0], ROOM = sizeof emu_faults.later[0].text };
  unsigned long request;
  size_t used = 0;
  if (s->n < 3) return emu_refuse(s, "a number and a statement are missing");
  if (emu_faults.nlater == MAX_LATER) return emu_refuse(s, "there may be %d", MAX_LATER);
  struct emu_statement later = {.n = s->n - 2, .file = s->file, .line = s->line};
  memcpy(later.words, s->words + 2, (size_t)later.n * sizeof later.words[0]);
  if (!emu_read_number(s, s->words[1], 10, LONG_MAX / 2, &request) || !verb_of(&later)) return false;
  char *text = emu_faults.later[emu_faults.nlater].text;
  for (int i = 0; i < later.n && used < ROOM; i++)
    used += (size_t)snprintf(text + used, ROOM - used, "%s ", later.words[i]);
  if (used >= ROOM) return emu_refuse(s, "longer than %d bytes", ROOM);
  emu_faults.later[emu_faults.nlater++].request = emu_faults.begun + (long)request;
  return true;
}

static const struct emu_verb holding_verbs[] = {
  {"adversary", do_adversary, 1, ""}, {"at", do_at, EMU_WORDS, NULL}, {NULL, NULL, 0, ""}};

/* ---- one statement, or many ------------------------------------------------------ */

/* NULL: there is none, or its words are wrong, which is said. */
static const struct emu_verb *verb_of(const struct emu_statement *s) {
  const struct emu_verb *const tables[] = {emu_config_verbs, emu_fault_verbs, holding_verbs};
  for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
    for (const struct emu_verb *verb = tables[i]; verb->name; verb++)
      if (strcmp(verb->name, s->words[0]) == 0) return emu_statement_fits(s, verb) ? verb : NULL;
  emu_refuse(s, "there is no such statement; docs/emu.md has them all");
  return NULL;
}

static bool run(char *text, const char *file, int line) {
  struct emu_statement s = {.file = file, .line = line};
  char *rest = NULL;
  for (char *word = strtok_r(text, " \t\r", &rest); word; word = strtok_r(NULL, " \t\r", &rest)) {
    if (s.n == EMU_WORDS) return emu_refuse(&s, "more than %d words", EMU_WORDS);
    s.words[s.n++] = word;
  }
  const struct emu_verb *verb = s.n ? verb_of(&s) : NULL;
  return s.n == 0 || (verb && verb->run(&s));
}

/* Statements end at ';' or a line's end; '#' begins a comment. Under the lock; the text is changed. */
static bool run_all(char *text, const char *file, int line) {
  bool good = true;
  while (*text) {
    size_t len = strcspn(text, ";\n#");
    char end = text[len], *next = text + len;
    text[len] = 0;
    good &= run(text, file, line);
    if (end == '#') { /* to the end of its line */
      size_t comment = strcspn(next + 1, "\n");
      next += 1 + comment;
      end = *next;
    }
    if (end == '\n') line++;
    text = end ? next + 1 : next;
  }
  return good;
}

/* ---- RAIL_EMU ---------------------------------------------------------------------- */

/* The text of RAIL_EMU, or of the file that it names: RAIL_EMU=@FILE. */
static char *read_text(const char **file) {
  const char *text = getenv("RAIL_EMU");
  char *copy = NULL;
  size_t cap = 0;
  *file = "RAIL_EMU";
  if (!text || text[0] != '@') return strdup(text ? text : "");
  *file = text + 1;
  FILE *in = fopen(text + 1, "re");
  if (!in || getdelim(&copy, &cap, 0, in) < 0) {
    fprintf(stderr, "rail-emu: RAIL_EMU=%s: the file cannot be read: %s\n", text, strerror(errno));
    if (copy) *copy = 0;
  }
  if (in) fclose(in);
  return copy ? copy : strdup("");
}

static void load(void) {
  const char *file;
  char usual[] = "device emu0; device emu1", *text = read_text(&file);
  pthread_mutex_lock(&emu.lock);
  if (text && !run_all(text, file, 1))
    fprintf(stderr, "rail-emu: the statements that are wrong are ignored; the others hold\n");
  if (emu.ndevices == 0 && !emu.no_devices) (void)run_all(usual, "the usual devices", 1);
  pthread_mutex_unlock(&emu.lock);
  free(text);
}

void emu_load(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
}

/* ---- while it runs ---------------------------------------------------------------------- */

int rail_emu_command(const char *text) {
  emu_load();
  char *copy = strdup(text);
  if (!copy) return -1;
  pthread_mutex_lock(&emu.lock);
  bool good = run_all(copy, "rail_emu_command", 1);
  pthread_mutex_unlock(&emu.lock);
  free(copy);
  return good ? 0 : -1;
}

void emu_script_pending(void) {
  char text[EMU_DUE_BYTES];
  if (!emu_faults.due_text[0]) return;
  memcpy(text, emu_faults.due_text, sizeof text);
  emu_faults.due_text[0] = 0;
  (void)run_all(text, "of a statement 'at'", 1);
}

enum { LOOK_NS = 5000000 };

static struct {
  bool looked;
  const char *path;
  off_t read;
  int line;
  bool too_long; /* what is read is the rest of a line that is */
  uint64_t next;
} control = {.line = 1};

/* Whole lines that were appended to the file RAIL_EMU_CONTROL since the last look. */
void emu_commands(void) {
  char text[EMU_DUE_BYTES];
  if (!control.looked) control.path = getenv("RAIL_EMU_CONTROL");
  control.looked = true;
  if (!control.path || emu_now() < control.next) return;
  control.next = emu_now() + LOOK_NS;
  int fd = open(control.path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t got = pread(fd, text, sizeof text - 1, control.read), n = got;
  close(fd);
  while (n > 0 && text[n - 1] != '\n') n--;
  if (n == 0 && got == sizeof text - 1) {
    if (!control.too_long)
      fprintf(stderr, "rail-emu: %s:%d: the line is left out: allowed: %zu bytes\n", control.path, control.line,
              sizeof text - 2);
    control.too_long = true;
    control.read += got;
    control.next = 0;
  }
  if (n <= 0) return;
  control.read += n;
  text[n] = 0;
  int line = control.line;
  char *first = text;
  for (ssize_t i = 0; i < n; i++) control.line += text[i] == '\n';
  if (control.too_long) {
    first = (char *)memchr(text, '\n', (size_t)n) + 1;
    line++;
  }
  control.too_long = false;
  (void)run_all(first, control.path, line);
}

uint64_t emu_commands_next(void) { return control.path ? control.next : UINT64_MAX; }

/* ---- the connection manager's events ------------------------------------------------- */

enum rail_emu_cm rail_emu_cm_fault(const char *event, long *us) {
  enum rail_emu_cm action = RAIL_EMU_CM_NONE;
  emu_load();
  pthread_mutex_lock(&emu.lock);
  emu_commands();
  for (int i = 0; i < emu_faults.n; i++) {
    struct emu_fault *f = &emu_faults.all[i];
    bool is_about = f->kind == EMU_FAULT_CM && (strcmp(f->call, "any") == 0 || strcmp(f->call, event) == 0);
    if (!is_about || !emu_fault_is_due(f) || action) continue;
    action = (enum rail_emu_cm)f->status;
    *us = (long)(f->ns / 1000);
  }
  pthread_mutex_unlock(&emu.lock);
  return action;
}

long rail_emu_cm_answer_ms(long otherwise) {
  emu_load();
  pthread_mutex_lock(&emu.lock);
  long ms = emu_faults.cm_answer_ms ? emu_faults.cm_answer_ms : otherwise;
  pthread_mutex_unlock(&emu.lock);
  return ms;
}
