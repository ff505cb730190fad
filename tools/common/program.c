/* SPDX-License-Identifier: Apache-2.0
 * A program of several subcommands: which one is meant, and what there are. */
#include <string.h>

#include "tools/common/options.h"

static void help(const struct tool_program *p, FILE *f) {
  fprintf(f, "usage: %s SUBCOMMAND [argument...]\n       %s --version\n\n%s\n\nsubcommands:\n", p->name, p->name,
          p->about);
  for (const struct tool_sub *s = p->subs; s->name; s++)
    if (s->what) fprintf(f, "  %-10s %s\n", s->name, s->what);
  fprintf(f, "  %-10s %s\n", "help", "this text; help SUBCOMMAND: its options");
  if (p->tail) fprintf(f, "\n%s\n", p->tail);
}

static int misuse(const struct tool_program *p, const char *what, const char *word) {
  bool any = false;
  fprintf(stderr, "%s: %s%s%s%s; it takes ", p->name, what, word ? " '" : "", word ? word : "", word ? "'" : "");
  for (const struct tool_sub *s = p->subs; s->name; s++) {
    if (!s->what) continue;
    fprintf(stderr, "%s%s", any ? ", " : "", s->name);
    any = true;
  }
  fprintf(stderr, "%shelp\n", any ? " or " : "");
  return TOOL_EXIT_USAGE;
}

static const struct tool_sub *find(const struct tool_program *p, const char *name) {
  const struct tool_sub *s = p->subs;
  while (s->name && strcmp(s->name, name) != 0) s++;
  return s->name ? s : NULL;
}

int tool_program_run(const struct tool_program *p, int argc, char **argv) {
  char ask[] = "--help";
  if (argc < 2) return misuse(p, "a subcommand is missing", NULL);
  char *word = argv[1];
  bool asked = strcmp(word, "help") == 0;
  if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || (asked && argc == 2)) {
    help(p, stdout);
    return tool_exit_printed(p->name);
  }
  if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
    printf("%s %s\n", p->name, p->version);
    return tool_exit_printed(p->name);
  }
  if (asked) word = argv[2];
  const struct tool_sub *sub = find(p, word);
  if (!sub) return misuse(p, "no such subcommand:", word);
  if (!asked) return sub->run(argc - 1, argv + 1);
  char *question[] = {word, ask, NULL};
  return sub->run(2, question);
}
