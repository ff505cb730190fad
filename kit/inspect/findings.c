/* SPDX-License-Identifier: Apache-2.0
 * What was found, gravest first. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "kit/inspect/inspect.h"

const char *kit_grade_name(enum kit_grade grade) {
  static const char *const names[] = {[KIT_NOTE] = "note", [KIT_WARNING] = "warning", [KIT_ERROR] = "error"};
  return names[grade];
}

void *kit_more(void *items, size_t *n, size_t *cap, size_t size) {
  if (*n == *cap) {
    size_t grown = *cap ? 2 * *cap : 16;
    items = realloc(items, grown * size);
    if (!items) {
      fprintf(stderr, "rail-kit inspect: no memory for %zu items of %zu bytes\n", grown, size);
      exit(3);
    }
    *cap = grown;
  }
  memset((char *)items + *n * size, 0, size);
  ++*n;
  return items;
}

void kit_find(struct kit_findings *f, int version, enum kit_grade grade, const char *id, const char *why,
              const char *source, const char *what, ...) {
  uint32_t versions = version > 0 ? 1u << version : 0;
  struct kit_finding found = {.grade = grade, .id = id, .versions = versions, .why = why, .source = source};
  va_list ap;
  va_start(ap, what);
  vsnprintf(found.what, sizeof found.what, what, ap);
  va_end(ap);
  for (size_t i = 0; i < f->n; i++) {
    struct kit_finding *old = &f->items[i];
    if (old->grade != grade || strcmp(old->id, id) != 0 || strcmp(old->what, found.what) != 0) continue;
    old->versions |= versions;
    return;
  }
  f->items = kit_more(f->items, &f->n, &f->cap, sizeof *f->items);
  f->items[f->n - 1] = found;
}

const char *kit_finding_versions(const struct kit_finding *finding, char *text, size_t size) {
  size_t used = 0;
  text[0] = 0;
  for (int v = 1; v < 32 && used < size; v++) {
    int last = v;
    if (!(finding->versions >> v & 1)) continue;
    while (last + 1 < 32 && finding->versions >> (last + 1) & 1) last++;
    used += (size_t)snprintf(text + used, size - used, last > v ? "%sv%d-v%d" : "%sv%d", used ? ", " : "", v, last);
    v = last;
  }
  if (used > 0 && used < size) snprintf(text + used, size - used, ": ");
  return text;
}

/* By grade; else in the order in which they were found, which is that of the report. */
void kit_findings_sort(struct kit_findings *f) {
  for (size_t i = 1; i < f->n; i++) {
    struct kit_finding item = f->items[i];
    size_t at = i;
    for (; at > 0 && f->items[at - 1].grade < item.grade; at--) f->items[at] = f->items[at - 1];
    f->items[at] = item;
  }
}

size_t kit_findings_count(const struct kit_findings *f, enum kit_grade grade) {
  size_t n = 0;
  for (size_t i = 0; i < f->n; i++) n += f->items[i].grade == grade;
  return n;
}
