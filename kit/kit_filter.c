/* SPDX-License-Identifier: Apache-2.0
 * Reads --only, --skip, --level and files of reasons, checks that each pattern names something, and applies them. */
#include "kit/kit_filter.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define WORD 256 /* of a list */

bool kit_list_next(const char **list, char *word, size_t size) {
  const char *at = *list;
  if (!at) return false;
  size_t n = strcspn(at, ",");
  snprintf(word, size, "%.*s", (int)n, at);
  *list = at[n] ? at + n + 1 : NULL;
  return true;
}

bool kit_list_has(const char *list, const char *wanted) {
  char word[WORD];
  while (kit_list_next(&list, word, sizeof word))
    if (strcmp(word, wanted) == 0) return true;
  return false;
}

static bool matches(const char *pattern, const char *id, const char *name) {
  size_t len = strlen(pattern);
  if (strcmp(pattern, id) == 0 || fnmatch(pattern, name, 0) == 0) return true;
  return strncmp(name, pattern, len) == 0 && name[len] == '.'; /* its area */
}

static bool in_list(const char *list, const char *id, const char *name) {
  char word[WORD];
  while (kit_list_next(&list, word, sizeof word))
    if (*word && matches(word, id, name)) return true;
  return false;
}

static int level_of(const char *word) {
  int level = KIT_MUST;
  while (level <= KIT_OBSERVED && strcasecmp(word, kit_level_text((enum kit_level)level)) != 0) level++;
  return level;
}

static bool read_levels(struct kit_filter *filter, const char *list) {
  filter->levels = list ? 0 : ~0u;
  char word[WORD];
  while (kit_list_next(&list, word, sizeof word)) {
    int level = level_of(word);
    if (!*word) continue;
    if (level > KIT_OBSERVED) {
      fprintf(stderr, "rail-kit: --level '%s' is none of must, should, observed\n", word);
      return false;
    }
    filter->levels |= 1u << level;
  }
  return true;
}

static bool add_reason(struct kit_filter *filter, char *pattern, char *reason) {
  struct kit_reason *bigger = realloc(filter->reasons, sizeof *bigger * (size_t)(filter->nreasons + 1));
  if (!bigger) return false;
  filter->reasons = bigger;
  bigger[filter->nreasons] = (struct kit_reason){strdup(pattern), strdup(reason)};
  return bigger[filter->nreasons].pattern && bigger[filter->nreasons++].reason;
}

static bool read_line(struct kit_filter *filter, char *line, const char *path, int number) {
  line[strcspn(line, "\n")] = 0;
  while (isspace((unsigned char)*line)) line++;
  if (!*line || *line == '#') return true;
  char *reason = line + strcspn(line, " \t");
  if (*reason) *reason++ = 0;
  while (isspace((unsigned char)*reason)) reason++;
  if (*reason) return add_reason(filter, line, reason);
  fprintf(stderr, "rail-kit: %s:%d: '%s' has no reason; a line is PATTERN REASON\n", path, number, line);
  return false;
}

static bool read_file(struct kit_filter *filter, const char *path) {
  FILE *f = fopen(path, "re");
  char line[1024];
  bool ok = f;
  for (int number = 1; ok && fgets(line, sizeof line, f); number++) {
    ok = strlen(line) < sizeof line - 1 || line[sizeof line - 2] == '\n';
    if (!ok) fprintf(stderr, "rail-kit: %s:%d: a line has at most %zu characters\n", path, number, sizeof line - 2);
    ok = ok && read_line(filter, line, path, number);
  }
  if (!f) fprintf(stderr, "rail-kit: --skip-file %s: %s\n", path, strerror(errno));
  else fclose(f);
  return ok;
}

bool kit_filter_read(struct kit_filter *filter, const char *only, const char *skip, const char *skip_file,
                     const char *levels) {
  *filter = (struct kit_filter){.only = only, .skip = skip, .level_list = levels};
  if (read_levels(filter, levels) && (!skip_file || read_file(filter, skip_file))) return true;
  kit_filter_free(filter);
  return false;
}

void kit_filter_free(struct kit_filter *filter) {
  for (int i = 0; i < filter->nreasons; i++) {
    free(filter->reasons[i].pattern);
    free(filter->reasons[i].reason);
  }
  free(filter->reasons);
  filter->reasons = NULL;
  filter->nreasons = 0;
}

static bool names_something(const char *pattern, kit_filter_entry *entry) {
  const char *id, *name;
  for (int i = 0; (id = entry(i, &name)); i++)
    if (matches(pattern, id, name)) return true;
  return false;
}

static bool check_list(const char *list, const char *option, const char *command, kit_filter_entry *entry) {
  char word[WORD];
  bool ok = true;
  while (kit_list_next(&list, word, sizeof word))
    if (*word && !names_something(word, entry)) {
      fprintf(stderr, "rail-kit %s: %s: nothing is called %s; --list shows all\n", command, option, word);
      ok = false;
    }
  return ok;
}

bool kit_filter_check(const struct kit_filter *filter, const char *command, kit_filter_entry *entry) {
  (void)check_list(filter->skip, "--skip", command, entry);
  for (int i = 0; i < filter->nreasons; i++)
    if (!names_something(filter->reasons[i].pattern, entry))
      fprintf(stderr, "rail-kit %s: --skip-file: nothing is called %s\n", command, filter->reasons[i].pattern);
  return check_list(filter->only, "--only", command, entry);
}

void kit_filter_print_empty(const struct kit_filter *filter, const char *command) {
  fprintf(stderr, "rail-kit %s: nothing is left by%s%s%s%s%s%s for this version; --list shows all\n", command,
          filter->only ? " --only " : "", filter->only ? filter->only : "", filter->skip ? " --skip " : "",
          filter->skip ? filter->skip : "", filter->level_list ? " --level " : "",
          filter->level_list ? filter->level_list : "");
}

bool kit_filter_accepts(const struct kit_filter *filter, const char *id, const char *name, enum kit_level level) {
  return (filter->levels & (1u << level)) && (!filter->only || in_list(filter->only, id, name)) &&
         !in_list(filter->skip, id, name);
}

const char *kit_filter_skip_reason(const struct kit_filter *filter, const char *id, const char *name) {
  for (int i = 0; i < filter->nreasons; i++)
    if (matches(filter->reasons[i].pattern, id, name)) return filter->reasons[i].reason;
  return NULL;
}
