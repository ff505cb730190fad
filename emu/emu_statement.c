/* SPDX-License-Identifier: Apache-2.0
 * The words of a statement. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu_fault.h"

struct emu_device *emu_device_named(const char *name) {
  for (unsigned int i = 0; i < emu.ndevices; i++)
    if (strcmp(emu.devices[i].ibv.name, name) == 0) return &emu.devices[i];
  return NULL;
}

bool emu_complain(const struct emu_statement *s, const char *what) {
  fprintf(stderr, "rail-emu: '%s", s->words[0]);
  for (int i = 1; i < s->n; i++) fprintf(stderr, " %s", s->words[i]);
  fprintf(stderr, "': %s\n", what);
  return false;
}

const char *emu_value(const struct emu_statement *s, const char *key) {
  size_t len = strlen(key);
  for (int i = 1; i < s->n; i++)
    if (strncmp(s->words[i], key, len) == 0 && s->words[i][len] == '=') return s->words[i] + len + 1;
  return NULL;
}

uint64_t emu_number(const struct emu_statement *s, const char *key, uint64_t otherwise, int base) {
  const char *text = emu_value(s, key);
  return text ? strtoull(text, NULL, base) : otherwise;
}

bool emu_word(const struct emu_word *words, const char *text, int *value) {
  for (; text && words->name; words++)
    if (strcmp(words->name, text) == 0) {
      *value = words->value;
      return true;
    }
  return false;
}

struct emu_device *emu_device_and_port(const struct emu_statement *s, unsigned int *number) {
  struct emu_device *d = s->n >= 3 ? emu_device_named(s->words[1]) : NULL;
  *number = d ? (unsigned int)strtoul(s->words[2], NULL, 10) : 0;
  return d && *number >= 1 && *number <= d->nports ? d : NULL;
}
