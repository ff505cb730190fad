/* SPDX-License-Identifier: Apache-2.0
 * Where statements come from: RAIL_EMU, the file RAIL_EMU_CONTROL while the process runs, the program itself, other
 * statements. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emu/emu_fault.h"
#include "emu/rail_emu.h"

/* All that a network may do and a connection must bear, at random. */
static bool do_adversary(const struct emu_statement *s) {
  char text[] = "delay us=300 rate=16; delay us=20 rate=4; tear us=50 rate=4; duplicate rate=64; drop rate=256;"
                "clock virtual";
  return (s->n < 2 || emu_fault_seed(s)) && emu_script(text);
}

static bool run(char *text) {
  struct emu_statement s = {0};
  char *rest = NULL;
  for (char *word = strtok_r(text, " \t\r", &rest); word && s.n < EMU_WORDS; word = strtok_r(NULL, " \t\r", &rest))
    s.words[s.n++] = word;
  if (s.n == 0) return true;
  bool good = false;
  if (strcmp(s.words[0], "adversary") == 0) return do_adversary(&s);
  if (emu_config_statement(&s, &good) || emu_fault_statement(&s, &good)) return good;
  return emu_complain(&s, "no such statement");
}

/* Statements end at ';' or a line's end; '#' begins a comment. */
bool emu_script(char *text) {
  bool good = true, comment = false;
  char *rest = NULL;
  for (char *c = text; *c; c++) {
    comment = *c == '#' || (comment && *c != '\n');
    if (comment) *c = ' ';
  }
  for (char *line = strtok_r(text, ";\n", &rest); line; line = strtok_r(NULL, ";\n", &rest)) good &= run(line);
  return good;
}

/* The text of RAIL_EMU, or of the file that it names: RAIL_EMU=@FILE. */
static char *read_text(void) {
  const char *text = getenv("RAIL_EMU");
  char *copy = NULL;
  size_t cap = 0;
  if (!text || text[0] != '@') return strdup(text ? text : "");
  FILE *in = fopen(text + 1, "re");
  if (!in || getdelim(&copy, &cap, 0, in) < 0) {
    fprintf(stderr, "rail-emu: RAIL_EMU=%s: the file cannot be read: %s\n", text, strerror(errno));
    if (copy) *copy = 0;
  }
  if (in) fclose(in);
  return copy ? copy : strdup("");
}

static void load(void) {
  char usual[] = "device emu0; device emu1", *text = read_text();
  pthread_mutex_lock(&emu.lock);
  if (text && !emu_script(text)) fprintf(stderr, "rail-emu: RAIL_EMU has wrong statements; they are ignored\n");
  if (emu.ndevices == 0 && !emu.no_devices) (void)emu_script(usual);
  pthread_mutex_unlock(&emu.lock);
  free(text);
}

int rail_emu_command(const char *text) {
  emu_load();
  char *copy = strdup(text);
  if (!copy) return -1;
  pthread_mutex_lock(&emu.lock);
  bool good = emu_script(copy);
  pthread_mutex_unlock(&emu.lock);
  free(copy);
  return good ? 0 : -1;
}

void emu_load(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
}

/* ---- while it runs ---------------------------------------------------------------------- */

void emu_script_pending(void) {
  char text[EMU_DUE_BYTES];
  if (!emu_faults.due_text[0]) return;
  memcpy(text, emu_faults.due_text, sizeof text);
  emu_faults.due_text[0] = 0;
  (void)emu_script(text);
}

enum { LOOK_NS = 5000000 };

static struct {
  bool looked;
  const char *path;
  off_t read;
  uint64_t next;
} control;

/* Whole lines that were appended to the file RAIL_EMU_CONTROL since the last look. */
void emu_commands(void) {
  char text[EMU_DUE_BYTES];
  if (!control.looked) control.path = getenv("RAIL_EMU_CONTROL");
  control.looked = true;
  if (!control.path || emu_now() < control.next) return;
  control.next = emu_now() + LOOK_NS;
  int fd = open(control.path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t n = pread(fd, text, sizeof text - 1, control.read);
  close(fd);
  while (n > 0 && text[n - 1] != '\n') n--;
  if (n <= 0) return;
  control.read += n;
  text[n] = 0;
  (void)emu_script(text);
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
