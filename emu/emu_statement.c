/* SPDX-License-Identifier: Apache-2.0
 * The words of a statement: what is wrong with them, and what they say. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu_fault.h"

struct emu_device *emu_device_named(const char *name) {
  for (unsigned int i = 0; i < emu.ndevices; i++)
    if (strcmp(emu.devices[i].ibv.name, name) == 0) return &emu.devices[i];
  return NULL;
}

bool emu_refuse(const struct emu_statement *s, const char *format, ...) {
  char what[512];
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  fprintf(stderr, "rail-emu: %s:%d: '%s", s->file, s->line, s->words[0]);
  for (int i = 1; i < s->n; i++) fprintf(stderr, " %s", s->words[i]);
  fprintf(stderr, "': %s\n", what);
  return false;
}

/* ---- the words that a verb takes ------------------------------------------------ */

static bool is_number(const char *text, int base) {
  char *end;
  errno = 0;
  (void)strtoull(text, &end, base);
  return *text && !*end && text[0] != '-' && !errno;
}

/* The entry of a list of keys, which says what kind of value it has: ' ' or 0 any, '#' decimal, '%' hexadecimal; 'x':
 * the key is not in the list. */
static char kind_of(const char *keys, const char *key, size_t len) {
  for (const char *at = keys; *at;) {
    size_t n = strcspn(at, " #%");
    if (n == len && strncmp(at, key, len) == 0) return at[n];
    at += n;
    at += strspn(at, " #%");
  }
  return 'x';
}

/* The list as a user may read it. */
static void list_keys(const char *keys, char *text, size_t size) {
  size_t used = 0;
  for (; *keys && used + 1 < size; keys++)
    if (*keys != '#' && *keys != '%') text[used++] = *keys;
  text[used] = 0;
}

bool emu_statement_fits(const struct emu_statement *s, const struct emu_verb *verb) {
  char allowed[400];
  int plain = 0;
  if (!verb->keys) return true; /* a statement in a statement, which is looked at by itself */
  list_keys(*verb->keys ? verb->keys : "none", allowed, sizeof allowed);
  for (int i = 1; i < s->n; i++) {
    const char *word = s->words[i], *value = strchr(word, '=');
    if (!value) {
      if (++plain > verb->words)
        return emu_refuse(s, "%s: no key=value; allowed: %d such words, then keys: %s", word, verb->words, allowed);
      continue;
    }
    char kind = kind_of(verb->keys, word, (size_t)(value - word));
    if (kind == 'x')
      return emu_refuse(s, "%.*s: there is no such key; allowed: %s", (int)(value - word), word, allowed);
    if ((kind == '#' || kind == '%') && !is_number(value + 1, kind == '#' ? 10 : 16))
      return emu_refuse(s, "%s: allowed: a %s number", word, kind == '#' ? "decimal" : "hexadecimal");
  }
  return true;
}

/* ---- what they say ----------------------------------------------------------------- */

const char *emu_value(const struct emu_statement *s, const char *key) {
  size_t len = strlen(key);
  for (int i = 1; i < s->n; i++)
    if (strncmp(s->words[i], key, len) == 0 && s->words[i][len] == '=') return s->words[i] + len + 1;
  return NULL;
}

bool emu_read_number(const struct emu_statement *s, const char *text, int base, unsigned long *number) {
  if (!is_number(text, base)) return emu_refuse(s, "%s: allowed: a number", text);
  *number = strtoul(text, NULL, base);
  return true;
}

uint64_t emu_number(const struct emu_statement *s, const char *key, uint64_t otherwise, int base) {
  const char *text = emu_value(s, key);
  return text ? strtoull(text, NULL, base) : otherwise;
}

bool emu_choose(const struct emu_statement *s, const char *text, const struct emu_word *words, int *value) {
  char allowed[400] = "";
  size_t used = 0;
  if (!text) return true;
  for (const struct emu_word *w = words; w->name; w++) {
    if (strcmp(w->name, text) == 0) {
      *value = w->value;
      return true;
    }
    if (used < sizeof allowed) used += (size_t)snprintf(allowed + used, sizeof allowed - used, " %s", w->name);
  }
  return emu_refuse(s, "%s: allowed:%s", text, allowed);
}

struct emu_device *emu_device_and_port(const struct emu_statement *s, unsigned int *number) {
  struct emu_device *d = s->n >= 3 ? emu_device_named(s->words[1]) : NULL;
  *number = d && is_number(s->words[2], 10) ? (unsigned int)strtoul(s->words[2], NULL, 10) : 0;
  if (d && *number >= 1 && *number <= d->nports) return d;
  if (s->n < 3) emu_refuse(s, "a device and the number of its port are missing");
  else if (!d) emu_refuse(s, "%s: there is no such device", s->words[1]);
  else emu_refuse(s, "%s: allowed: a port from 1 to %u", s->words[2], d->nports);
  return NULL;
}
