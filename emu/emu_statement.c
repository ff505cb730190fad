/* SPDX-License-Identifier: Apache-2.0
 * The words of a statement: what is wrong with them, and what they say. */
#include <errno.h>
#include <inttypes.h>
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

#define LONGEST_US 1000000000000u /* eleven days */

/* Keys with a number as their value, the same in all statements that take them. */
static const struct number {
  const char *key;
  int base;
  uint64_t lowest, highest;
} numbers[] = {
  /* device */
  {"ports", 10, 1, EMU_PORTS}, {"guid", 16, 0, UINT64_MAX}, {"vendor", 16, 0, UINT32_MAX}, {"part", 10, 0, UINT32_MAX},
  {"max_qp", 10, 0, 1 << 20}, {"max_qp_wr", 10, 1, 1 << 20}, {"max_sge", 10, 1, EMU_MAX_SGE}, {"inline", 10, 0, 4096},
  {"max_cq", 10, 0, 1 << 20}, {"max_cqe", 10, 1, 1 << 24}, {"max_mr", 10, 0, 1 << 20}, {"max_pd", 10, 0, 1 << 20},
  {"max_srq", 10, 0, 1 << 20}, {"max_srq_wr", 10, 1, 1 << 20}, {"max_rd_atomic", 10, 1, EMU_MAX_RD_ATOMIC},
  {"dmabuf", 10, 0, 1}, {"ece", 10, 0, 1}, {"atomics", 10, 0, 1}, {"imm", 10, 0, 1}, {"zero_byte_rkey", 10, 0, 1},
  {"endless_retry", 10, 0, 1},
  /* port, gid */
  {"mtu", 10, IBV_MTU_256, IBV_MTU_4096}, {"lid", 10, 0, UINT16_MAX}, {"subnet", 16, 0, UINT64_MAX},
  {"grh", 10, 0, 1}, {"max_msg", 10, 1, 1u << 31}, {"packet", 10, 0, UINT32_MAX}, {"speed", 10, 1, UINT8_MAX},
  {"width", 10, 1, UINT8_MAX}, {"bandwidth", 10, 0, 1000000}, {"latency", 10, 0, LONGEST_US}, {"one_way", 10, 0, 1},
  {"ifindex", 10, 0, INT32_MAX},
  /* faults */
  {"us", 10, 0, LONGEST_US}, {"ms", 10, 0, LONGEST_US / 1000}, {"from", 10, 1, INT64_MAX / 2},
  {"rate", 10, 0, UINT32_MAX}, {"xor", 16, 0, UINT32_MAX}, {"burst", 10, 1, UINT32_MAX}, {"skip", 10, 0, UINT64_MAX},
  {"port", 10, 1, EMU_PORTS}};

static const struct number *number_of(const char *key, size_t len) {
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    if (strncmp(numbers[i].key, key, len) == 0 && !numbers[i].key[len]) return &numbers[i];
  return NULL;
}

static bool read_number(const char *text, int base, uint64_t lowest, uint64_t highest, uint64_t *number) {
  char *end;
  errno = 0;
  *number = strtoull(text, &end, base);
  return *text && !*end && text[0] != '-' && !errno && *number >= lowest && *number <= highest;
}

static bool has_key(const char *keys, const char *key, size_t len) {
  for (const char *at = keys; *at; at += strspn(at, " ")) {
    size_t n = strcspn(at, " ");
    if (n == len && strncmp(at, key, len) == 0) return true;
    at += n;
  }
  return false;
}

/* A value that is to be a number. */
static bool fits(const struct emu_statement *s, const char *word, const char *value) {
  const struct number *n = number_of(word, (size_t)(value - word - 1));
  uint64_t number;
  if (!n || read_number(value, n->base, n->lowest, n->highest, &number)) return true;
  if (n->base == 10)
    return emu_refuse(s, "%s: allowed: a decimal number from %" PRIu64 " to %" PRIu64, word, n->lowest, n->highest);
  return emu_refuse(s, "%s: allowed: a hexadecimal number from %" PRIx64 " to %" PRIx64, word, n->lowest, n->highest);
}

bool emu_statement_fits(const struct emu_statement *s, const struct emu_verb *verb) {
  int plain = 0;
  if (!verb->keys) return true; /* a statement in a statement, which is looked at by itself */
  const char *allowed = *verb->keys ? verb->keys : "none";
  for (int i = 1; i < s->n; i++) {
    const char *word = s->words[i], *value = strchr(word, '=');
    if (!value) {
      if (++plain > verb->words)
        return emu_refuse(s, "%s: no key=value; allowed: %d such words, then keys: %s", word, verb->words, allowed);
      continue;
    }
    if (!has_key(verb->keys, word, (size_t)(value - word)))
      return emu_refuse(s, "%.*s: there is no such key; allowed: %s", (int)(value - word), word, allowed);
    if (!fits(s, word, value + 1)) return false;
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

bool emu_read_number(const struct emu_statement *s, const char *text, int base, unsigned long highest,
                     unsigned long *number) {
  return read_number(text, base, 0, highest, number) || emu_refuse(s, "%s: allowed: a number up to %lu", text, highest);
}

uint64_t emu_number(const struct emu_statement *s, const char *key, uint64_t otherwise) {
  const char *text = emu_value(s, key);
  return text ? strtoull(text, NULL, number_of(key, strlen(key))->base) : otherwise;
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
  uint64_t port;
  if (d && read_number(s->words[2], 10, 1, d->nports, &port)) {
    *number = (unsigned int)port;
    return d;
  }
  if (s->n < 3) emu_refuse(s, "a device and the number of its port are missing");
  else if (!d) emu_refuse(s, "%s: there is no such device", s->words[1]);
  else emu_refuse(s, "%s: allowed: a port from 1 to %u", s->words[2], d->nports);
  return NULL;
}
