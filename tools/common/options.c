/* SPDX-License-Identifier: Apache-2.0
 * Reads a command line by its table of options, and prints the help that follows from the table. */
#include "tools/common/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPTIONS 64
#define MAX_BYTES (1ull << 44)

/* ---- texts ---- */

static void left_column(const struct tool_option *o, char *text, size_t size) {
  char letter[8] = "    ";
  if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
  snprintf(text, size, "%s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
}

static void tool_options_help(const struct tool_command *command, FILE *f) {
  char left[64];
  int width = 0;
  fprintf(f, "usage: %s%s%s\n\n%s\n", command->name, *command->usage ? " " : "", command->usage, command->about);
  if (command->lists) command->lists(f);
  for (size_t i = 0; i < command->noptions; i++) {
    left_column(&command->options[i], left, sizeof left);
    if ((int)strlen(left) > width) width = (int)strlen(left);
  }
  fprintf(f, "\noptions (default):\n");
  for (size_t i = 0; i < command->noptions; i++) {
    const struct tool_option *o = &command->options[i];
    left_column(o, left, sizeof left);
    fprintf(f, "  %-*s  %s%s%s%s\n", width, left, o->help, o->preset ? " (" : "", o->preset ? o->preset : "",
            o->preset ? ")" : "");
  }
  if (command->tail) fprintf(f, "\n%s\n", command->tail);
}

int tool_bad(const struct tool_value *value, const char *allowed, ...) {
  char what[256], letter[8] = "";
  va_list ap;
  va_start(ap, allowed);
  vsnprintf(what, sizeof what, allowed, ap);
  va_end(ap);
  if (value->option->letter) snprintf(letter, sizeof letter, "-%c, ", value->option->letter);
  fprintf(stderr, "%s: %s--%s: '%s' is not allowed; it takes %s\n", value->command->name, letter, value->option->name,
          value->text ? value->text : "", what);
  return -1;
}

int tool_misuse(const struct tool_command *command, const char *what, const char *word) {
  fprintf(stderr, "%s: %s%s%s%s; see %s --help\n", command->name, what, word ? " '" : "", word ? word : "",
          word ? "'" : "", command->name);
  return -1;
}

struct tool_value tool_value(const struct tool_command *command, const char *name, const char *text) {
  struct tool_value v = {.command = command, .option = command->options, .text = text};
  for (size_t i = 0; i < command->noptions; i++)
    if (strcmp(command->options[i].name, name) == 0) v.option = &command->options[i];
  return v;
}

/* ---- values ---- */

bool tool_parse_u64(const char *text, bool suffix, uint64_t *out) {
  static const char units[] = "KMGT";
  char *end;
  if (text[0] < '0' || text[0] > '9') return false; /* strtoull takes signs and spaces */
  errno = 0;
  unsigned long long v = strtoull(text, &end, 0);
  if (errno != 0) return false;
  if (suffix && *end != 0) {
    char up = (char)(*end & ~0x20);
    const char *unit = strchr(units, up);
    if (!unit || up == 0) return false;
    unsigned shift = 10 * (unsigned)(unit - units + 1);
    if (v > UINT64_MAX >> shift) return false;
    v <<= shift;
    end++;
    if ((*end | 0x20) == 'b') end++;
  }
  *out = v;
  return *end == 0;
}

static bool parse_real(const char *text, const struct tool_option *o, double *out) {
  char *end;
  if (text[0] < '0' || text[0] > '9') return false; /* no signs, no nan */
  errno = 0;
  double v = strtod(text, &end);
  if (errno != 0 || *end != 0 || !(v >= o->min && v <= o->max)) return false;
  *out = v;
  return true;
}

static int get_int(const struct tool_value *v, int *out) {
  uint64_t n;
  if (!tool_parse_u64(v->text, false, &n) || n < (uint64_t)v->option->min || n > (uint64_t)v->option->max)
    return tool_bad(v, "a number from %.0f to %.0f", v->option->min, v->option->max);
  *out = (int)n;
  return 0;
}

static int get_bool(const struct tool_value *v, bool *out) {
  if (strcmp(v->text, "0") != 0 && strcmp(v->text, "1") != 0) return tool_bad(v, "a number from 0 to 1");
  *out = *v->text == '1';
  return 0;
}

static int get_bytes(const struct tool_value *v, uint64_t *out) {
  uint64_t n;
  if (!tool_parse_u64(v->text, true, &n) || n < (uint64_t)v->option->min || n > MAX_BYTES)
    return tool_bad(v, "a size from %.0f bytes to 16T, such as 8, 64K or 1M", v->option->min);
  *out = n;
  return 0;
}

static int get_seconds(const struct tool_value *v, uint64_t *out) {
  double seconds;
  if (!parse_real(v->text, v->option, &seconds))
    return tool_bad(v, "seconds from %g to %g", v->option->min, v->option->max);
  *out = (uint64_t)llround(seconds * 1000);
  return 0;
}

static int get_choice(const struct tool_value *v, int *out) {
  char allowed[200] = "";
  for (int i = 0; v->option->words[i]; i++) {
    if (strcmp(v->option->words[i], v->text) == 0) {
      *out = i;
      return 0;
    }
    size_t used = strlen(allowed);
    snprintf(allowed + used, sizeof allowed - used, "%s%s", i == 0 ? "" : v->option->words[i + 1] ? ", " : " or ",
             v->option->words[i]);
  }
  return tool_bad(v, "%s", allowed);
}

static int apply(const struct tool_value *v) {
  const struct tool_option *o = v->option;
  void *field = (char *)v->into + o->at;
  switch (o->kind) {
    case TOOL_FLAG: *(bool *)field = true; return 0;
    case TOOL_BOOL: return get_bool(v, field);
    case TOOL_INT: return get_int(v, field);
    case TOOL_U64: return tool_parse_u64(v->text, false, field) ? 0 : tool_bad(v, "a number from 0 to 2^64 - 1");
    case TOOL_BYTES: return get_bytes(v, field);
    case TOOL_REAL:
      return parse_real(v->text, o, field) ? 0 : tool_bad(v, "a number from %g to %g", o->min, o->max);
    case TOOL_SECONDS: return get_seconds(v, field);
    case TOOL_TEXT:
      if (*v->text == 0) return tool_bad(v, "%s", o->allowed);
      *(const char **)field = v->text;
      return 0;
    case TOOL_CHOICE: return get_choice(v, field);
    case TOOL_CALL: return o->set(v);
    case TOOL_HELP: tool_options_help(v->command, stdout); return 1;
  }
  return -1;
}

/* ---- the loop ---- */

static void fill_getopt(const struct tool_command *command, struct option *longs, char *letters) {
  *letters++ = ':'; /* a missing value is told apart from an unknown option */
  for (size_t i = 0; i < command->noptions; i++) {
    const struct tool_option *o = &command->options[i];
    longs[i] = (struct option){o->name, o->arg ? required_argument : no_argument, NULL, 256 + (int)i};
    if (o->letter) *letters++ = o->letter;
    if (o->letter && o->arg) *letters++ = ':';
  }
  longs[command->noptions] = (struct option){NULL, 0, NULL, 0};
  *letters = 0;
}

static int not_an_option(const struct tool_command *command, int c, char **argv) {
  char letter[3] = {'-', (char)optopt, 0};
  if (c == ':') return tool_misuse(command, "a value is missing after", argv[optind - 1]);
  if (optopt >= 256) return tool_misuse(command, "takes no value:", argv[optind - 1]);
  return tool_misuse(command, "no such option:", optopt ? letter : argv[optind - 1]);
}

int tool_options_read(const struct tool_command *command, int argc, char **argv, void *into, char ***operands) {
  struct option longs[MAX_OPTIONS + 1];
  char letters[2 + 2 * MAX_OPTIONS];
  if (command->noptions > MAX_OPTIONS) return tool_misuse(command, "its table has too many options", NULL);
  fill_getopt(command, longs, letters);
  opterr = 0;
  optind = 0; /* begin anew, although a subcommand's dispatcher may have read before */
  for (int c; (c = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
    if (c == '?' || c == ':') return not_an_option(command, c, argv);
    size_t id = (size_t)(c - 256);
    for (size_t i = 0; c < 256 && i < command->noptions; i++)
      if (command->options[i].letter == c) id = i;
    struct tool_value value = {command, &command->options[id], optarg, into};
    int r = apply(&value);
    if (r != 0) return r;
  }
  if (operands) *operands = argv + optind;
  else if (optind < argc) return tool_misuse(command, "takes options only, not", argv[optind]);
  return 0;
}
